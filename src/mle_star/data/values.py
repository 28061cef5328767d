"""Single values as files hold them: gaps, numbers, and what pandas would make of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

GAPS = {"", "na", "n/a", "nan", "null", "none", "?", "-", "<na>", "#n/a", "nil", "missing", "unknown"}
"""How files spell that there is no value, in small letters."""
_SPELLINGS = frozenset(
    "".join(letters) for gap in GAPS for letters in itertools.product(*({c, c.upper()} for c in gap))
)
"""The same in large and small letters, mixed in every way."""
PANDAS_GAPS = {
    "",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-1.#IND",
    "-1.#QNAN",
    "-NaN",
    "-nan",
    "1.#IND",
    "1.#QNAN",
    "<NA>",
    "N/A",
    "NA",
    "NULL",
    "NaN",
    "None",
    "n/a",
    "nan",
    "null",
}
"""Those that pandas knows by itself."""
_BLANK = re.compile(r"[ \t\x0b\x0c\r\x1c-\x1f]")


def is_gap(cell: str) -> bool:
    """Does this stand for a value that is not there?"""
    return cell in _SPELLINGS


def is_tight(text: str) -> bool:
    """Is there nothing in a text, besides line ends, that could be stripped from its cells?"""
    return text.isascii() and _BLANK.search(text) is None


def without_gaps(cells: Iterable[str]) -> list[str]:
    """The values that are there."""
    return [cell for cell in cells if cell not in _SPELLINGS]


def distinct_values(cells: Iterable[Any]) -> set[str | float]:
    """The values that are there, numbers as such: a gap elsewhere in its column writes 3 as 3.0."""
    return {float(text) if is_number(text) else text for text in map(str, cells) if not is_gap(text)}


def is_number(cell: str) -> bool:
    """Is this a number in words that every program knows?"""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def are_numbers(cells: Sequence[str]) -> bool:
    """Are all of these numbers? Many are told more quickly than one by one."""
    try:
        list(map(float, cells))
    except ValueError:
        return False
    return not any("_" in cell for cell in cells)


def letters_of(text: str) -> str:
    """A name as it is compared where spellings differ: its letters and digits alone, in small letters."""
    return re.sub(r"[\W_]+", "", text).lower()


def label_order(label: str) -> tuple[bool, float, str]:
    """What to sort labels by: numbers by their size, then words."""
    return (False, float(label), label) if is_number(label) else (True, 0.0, label)


def positive_label(labels: Iterable[Any]) -> Any:
    """Of two classes the one that is looked for: `1`, `true` and the like, else the last in their order."""
    known = set(labels)
    telling = [label for label in known if str(label).lower() in ("1", "1.0", "true", "yes", "y", "positive")]
    return telling[0] if len(telling) == 1 else max(known, key=float) if are_numbers([*map(str, known)]) else max(known)


def likely_label(classes: Collection[Any]) -> Any:
    """Of two classes the one that a single probability is of: of numbers the larger, as in `predict_proba[:, 1]`."""
    return max(classes, key=float) if are_numbers([*map(str, classes)]) else positive_label(classes)


def odd_gaps(columns: Iterable[Collection[str]]) -> tuple[str, ...]:
    """Spellings of a gap that pandas does not know by itself and that stand among numbers."""
    found = set()
    for cells in columns:
        odd = _SPELLINGS.intersection(cells) - PANDAS_GAPS
        if odd:
            others = [cell for cell in cells if not is_gap(cell)][:200]
            numbers = sum(map(is_number, others))
            found |= {cell for cell in odd if cell in {"?", "-"} or (others and numbers > 0.9 * len(others))}
    return tuple(sorted(found))


def is_misread(cells: Iterable[str], gap_words: Collection[str]) -> bool:
    """Would pandas spell values of a column in another way than the file does, or take one for a gap?"""
    found = set(cells)
    values = found - {""}
    if values.intersection(gap_words):
        return True
    if {value.lower() for value in values} <= {"true", "false"}:
        return not values <= {"True", "False"}
    if not all(map(is_number, values)):
        return False
    whole = "" not in found and all(re.fullmatch(r"[+-]?\d+", value) for value in values)
    return any(str(int(value) if whole else float(value)) != value for value in values)
