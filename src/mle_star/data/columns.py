"""Single values as files hold them, and what a column of them is: numbers, categories, dates, texts, lists."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from mle_star.models.texts import printable, some_of

Values = Callable[[list[Any]], list[str]]
Kind = Literal["number", "messy number", "category", "date", "text", "list", "constant"]

MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-", "<na>", "#n/a", "nil", "missing", "unknown"}
"""How files spell that there is no value, in small letters."""
EACH_CLASS = "a probability for each class, in columns called like the classes"
"""What a description says where answers are such, and no sample shows it."""
_NOT_A_NUMBER = ("nan", "-nan", "NaN", "-NaN", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN")
PANDAS_MISSING = {"", "#N/A", "#N/A N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "None", "n/a", "null", *_NOT_A_NUMBER}
"""Those that pandas knows by itself."""
_DAYS = (
    *("%Y-%m-%d", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%d/%m/%y", "%m/%d/%y"),
    *("%d.%m.%y", "%d %b %Y", "%b %d, %Y", "%d-%b-%Y"),
)
_HOURS = ("", *(f"{mark}%H:%M{rest}" for rest in ("", ":%S", ":%S.%f") for mark in " T"), " %I:%M %p", " %I:%M:%S %p")
DATE_FORMATS = (*(day + hour for hour in _HOURS for day in _DAYS), "%Y-%m-%dT%H:%M:%SZ", "%Y-%m", "%Y%m%d")
EPOCH = datetime(1970, 1, 1)
_TIME_NAME = re.compile(r"(^|[\W_])(date|ts)([\W_]|$)|time|epoch|stamp|unix", re.IGNORECASE)
_YEAR_NAME = re.compile(r"(^|[\W_])year$", re.IGNORECASE)
LISTED_VALUES = 200
_DATED = re.compile(
    r"^(?=.{8,40}$)(?=.*(19|20)\d\d)\d{1,4}[-./ ]|^[A-Z][a-z]+ \d{1,2},? (19|20)\d\d|^\d{1,2}[- ][A-Z][a-z]{2}[- ]\d\d"
)
_AMOUNT = re.compile(r"^[$€£]?\s?-?[\d,]*\.?\d+\s?(%|[$€£]|[a-zA-Z]{1,3})?$")
_ID_NAME = re.compile(r"(^|[_\W])(id|uuid|guid|key|index)$|[a-z]I[dD]$|^id[_\W]|^(row|unnamed)", re.IGNORECASE)


def is_missing(cell: str) -> bool:
    """Does this stand for a value that is not there?"""
    return cell.lower() in MISSING


def without_missing(cells: Iterable[str]) -> list[str]:
    """The values that are there."""
    return [cell for cell in cells if cell.lower() not in MISSING]


def is_number(cell: str) -> bool:
    """Is this a number in words that every program knows?"""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


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
    if len(telling) == 1:
        return telling[0]
    return max(known, key=float if all(is_number(str(label)) for label in known) else None)


def likely_label(classes: Collection[Any]) -> Any:
    """Of two classes the one that a single probability is of: of numbers the larger, as in `predict_proba[:, 1]`."""
    return max(classes, key=float) if all(is_number(str(one)) for one in classes) else positive_label(classes)


def odd_missing(columns: Iterable[Collection[str]]) -> tuple[str, ...]:
    """Spellings of a gap that pandas does not know by itself and that stand among numbers."""
    found = set()
    for cells in columns:
        if odd := set(filter(is_missing, cells)) - PANDAS_MISSING:
            others = without_missing(cells)[:200]
            numbers = sum(map(is_number, others))
            found |= {cell for cell in odd if cell in {"?", "-"} or (others and numbers > 0.9 * len(others))}
    return tuple(sorted(found))


def is_misread(cells: Iterable[str], missing_words: Collection[str]) -> bool:
    """Would pandas spell values of a column in another way than the file does, or take one for a gap?"""
    found = set(cells)
    values = found - {""}
    if values.intersection(missing_words):
        return True
    if {value.lower() for value in values} <= {"true", "false"}:
        return not values <= {"True", "False"}
    if not all(map(is_number, values)):
        return False
    whole = "" not in found and all(re.fullmatch(r"[+-]?\d+", value) for value in values)
    return any(str(int(value) if whole else float(value)) != value for value in values)


def named(names: Iterable[str], most: int = 10_000) -> str:
    """Names from outside in backquotes, so that none does anything: `some_of` them."""
    return some_of([f"`{printable(name)}`" for name in names], most)


# --- columns ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """What a sample of a column shows. Missing values are left out of all figures but `missing`, their share."""

    name: str
    kind: Kind
    count: int = 0
    missing: float = 0.0
    distinct: int = 0
    shares: tuple[tuple[str, float], ...] = ()  # the most frequent values, largest share first
    numeric: bool = False  # every value is a number
    whole: bool = False
    low: float = 0.0
    high: float = 0.0
    zeros: float = 0.0
    skew: float = 0.0
    words: float = 0.0
    characters: float = 0.0
    date_format: str = ""
    counts_up: bool = False  # each value is the one before plus one

    @property
    def unique_share(self) -> float:
        """How many of the values are different ones."""
        return self.distinct / self.count if self.count else 0.0

    @property
    def holds_classes(self) -> bool:
        """Are the values names or codes of classes, rather than quantities?"""
        if not self.numeric or self.distinct <= 2:
            return True
        return self.whole and self.distinct <= 20 and self.count >= 5 * self.distinct

    @property
    def names_rows(self) -> bool:
        """Does the column, by its name, only number or name the rows?"""
        return is_id_name(self.name) and self.unique_share > 0.95


def is_id_name(name: str) -> bool:
    """Is this what a column of identifiers is called?"""
    return _ID_NAME.search(name) is not None


def describe(name: str, cells: list[Any], there: Values = without_missing) -> Column:
    """What the sampled cells of a column show, as far as they are values: among labels, words such as `none` are."""
    if not {list, dict}.isdisjoint(map(type, cells)):
        return Column(name, "list", len(cells), distinct=len(cells))
    values = there(cells)
    counts = Counter(values)
    numbers = [number for number in map(float, filter(is_number, values)) if math.isfinite(number)]
    numeric = bool(values) and (len(numbers) == len(values) or all(is_number(value) for value in counts))
    date_format = _date_format(name, values, numeric)
    known: dict[str, Any] = {
        "count": len(values),
        "missing": 1 - len(values) / max(len(cells), 1),
        "distinct": len(set(numbers)) if numeric else len(counts),
        "shares": tuple((value, number / len(values)) for value, number in counts.most_common(LISTED_VALUES)),
        "numeric": numeric,
        "words": 1.0 if numeric else sum(n * len(value.split()) for value, n in counts.items()) / max(len(values), 1),
        "characters": sum(map(len, values)) / max(len(values), 1),
        **(_figures(numbers) if numbers else {}),
    }
    if len(counts) <= 1:
        return Column(name, "constant", **known)
    if date_format:
        return Column(name, "date", date_format=date_format, **known)
    amounts = sum(bool(_AMOUNT.match(value)) for value in values[:500])
    if len(numbers) >= 0.98 * len(values) or (amounts >= 0.98 * len(values[:500]) and len(counts) > 20):
        return Column(name, "number" if len(numbers) == len(values) else "messy number", **known)
    share, words = len(counts) / len(values), known["words"]
    is_text = (words >= 3 and share > 0.5) or (words >= 6 and len(counts) > 100)
    return Column(name, "text" if is_text else "category", **known)


def moments_of(column: Column, cells: Iterable[Any]) -> dict[str, datetime]:
    """The moment that each value names, in UTC where it names a zone; empty where the column holds no dates."""
    texts, form = sorted(set(without_missing(map(str, cells)))), column.date_format or "mixed"
    if column.kind in ("number", "messy number"):
        return _numbered_moments(column.name, texts)
    is_odd = column.kind in ("category", "text") and len(texts) >= 5 and all(map(_DATED.search, texts[:200]))
    if column.kind != "date" and not is_odd:
        return {}
    import pandas

    parsed = pandas.to_datetime(pandas.Series(texts), format=form, errors="coerce", utc=True).dt.tz_localize(None)
    moments = zip(texts, parsed, strict=True)
    found = {text: moment.to_pydatetime(warn=False) for text, moment in moments if moment == moment}
    return found if column.kind == "date" or len(found) > 0.95 * len(texts) else {}


def moments_beside(column: Column, train: Sequence[Any], test: Sequence[Any]) -> tuple[list[datetime], list[datetime]]:
    """The moments of the training rows and those of the test rows, each in their order."""
    moments = moments_of(column, (*train, *test))
    old, new = (sorted(moments[text] for text in map(str, cells) if text in moments) for cells in (train, test))
    return old, new


def comes_later(column: Column, train: Sequence[Any], test: Sequence[Any]) -> bool:
    """Do nearly all test rows come after nearly all training rows?"""
    old, new = moments_beside(column, train, test)
    if not old or not new:
        return False
    first, last = new[len(new) // 50], old[-1 - len(old) // 50]
    return first > last or (first == last and "number" not in column.kind)  # a year is too long to be shared


def is_apart(column: Column, train: Sequence[Any], test: Sequence[Any]) -> bool:
    """Does each value name a group of rows that lies on one side only?"""
    is_code = column.kind in ("category", "date") or (column.kind == "number" and column.whole)
    if not is_code or column.distinct < 5 or column.count < 2 * column.distinct:
        return False
    known, new = (  # numbers as such: a gap elsewhere in its column writes 3 as 3.0
        {float(text) if is_number(text) else text for text in without_missing(map(str, cells))}
        for cells in (train, test)
    )
    return len(new) > 1 and not known & new


def _numbered_moments(name: str, texts: Collection[str]) -> dict[str, datetime]:
    """Those of seconds or milliseconds since 1970 and of years, where the name and nearly all values say so."""
    is_time, is_year = _TIME_NAME.search(name), _YEAR_NAME.search(name)
    if not is_time and not is_year:
        return {}
    numbers = {text: float(text) for text in texts if is_number(text) and float(text).is_integer()}
    for unit in (1, 1000) if is_time else ():
        since = {text: number / unit for text, number in numbers.items() if 6e8 < number / unit < 4e9}
        if len(since) >= 0.98 * len(texts):
            return {text: EPOCH + timedelta(seconds=number) for text, number in since.items()}
    years = {text: int(number) for text, number in numbers.items() if is_year and 1000 < number < 3000}
    return {text: datetime(year, 1, 1) for text, year in years.items()} if len(years) >= 0.98 * len(texts) else {}


def _figures(numbers: list[float]) -> dict[str, Any]:
    import numpy as np

    values, count = np.array(numbers), len(numbers)
    scaled = values / (np.abs(values).max() or 1.0)  # squares of huge numbers are no numbers
    away = scaled - scaled.mean()
    spread = float(np.sqrt((away**2).mean()))
    return {
        "whole": bool((values == np.trunc(values)).all()),
        "low": min(numbers),
        "high": max(numbers),
        "zeros": numbers.count(0.0) / count,
        "skew": float(((away / spread) ** 3).mean()) if spread else 0.0,
        "counts_up": count > 1 and int((values[1:] == values[:-1] + 1).sum()) > 0.95 * (count - 1),
    }


def _date_format(name: str, values: list[str], numeric: bool) -> str:
    """The format that nearly all values follow, or nothing. Bare numbers count only where the name suggests a time."""
    some = values[:: max(1, len(values) // 200)][:200]
    if numeric:
        is_named = re.search(r"date|day|time", name, re.IGNORECASE) is not None
        is_day = is_named and all(re.fullmatch(r"(19|20)\d{6}", value) for value in some)
        return "%Y%m%d" if is_day and _fits(some, "%Y%m%d") else ""
    if not some or not all(any(character.isdigit() for character in value) for value in some):
        return ""
    marks = Counter(re.sub(r"\w", "", value) for value in some).most_common(1)[0][0]
    alike = (form for form in DATE_FORMATS if re.sub(r"%?\w", "", form) == marks)
    return next((form for form in alike if _fits(some, form)), "")


def _fits(values: list[str], date_format: str) -> bool:
    """Do the values follow a format? One in twenty may be of another kind."""
    import pandas

    moments = pandas.to_datetime(pandas.Series(values), format=date_format, errors="coerce")
    return int(moments.isna().sum()) <= len(values) // 20
