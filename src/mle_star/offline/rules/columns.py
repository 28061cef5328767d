"""Says what each column of a table holds: numbers, categories, dates, texts, lists, or nothing of use."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from mle_star.offline.rules.tables import GAPS

Kind = Literal["number", "messy number", "category", "date", "text", "list", "constant"]

DATE_FORMATS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M", "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d-%m-%Y", "%m-%d-%Y", "%d %b %Y",
    "%b %d, %Y", "%d-%b-%Y", "%Y%m%d", "%Y-%m", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f", "%m/%d/%y",
)  # fmt: skip
MANY_LEVELS = 40
"""Above this many levels a category is better encoded by frequency or target than by one column a level."""
_MESSY = re.compile(r"^[$€£]?\s?-?[\d,]*\.?\d+\s?(%|[a-zA-Z]{1,3})?$")


@dataclass(frozen=True)
class Column:
    """What a sample of a column shows. Shares are of all sampled rows."""

    name: str
    kind: Kind
    gaps: float = 0.0
    distinct: int = 0
    unique_share: float = 0.0
    whole: bool = False
    low: float = 0.0
    high: float = 0.0
    zeros: float = 0.0
    skew: float = 0.0
    words: float = 0.0
    characters: float = 0.0
    date_format: str = ""
    has_time: bool = False
    levels: tuple[str, ...] = ()
    sorted_like_rows: bool = False

    @property
    def many_levels(self) -> bool:
        """Is this a category with too many levels for a column each?"""
        return self.kind == "category" and self.distinct > MANY_LEVELS


def describe(name: str, cells: list[Any]) -> Column:
    """Judge a column by its sampled cells."""
    if any(isinstance(cell, (list, dict)) for cell in cells):
        return Column(name, "list", distinct=len(cells), unique_share=1.0)
    values = [cell for cell in cells if cell.lower() not in GAPS]
    gaps = 1 - len(values) / max(len(cells), 1)
    distinct = len(set(values))
    if distinct <= 1:
        return Column(name, "constant", gaps=gaps, distinct=distinct)
    share = distinct / len(values)
    numbers = [number for number in map(_number, values) if number is not None]
    date_format = _date_format(name, values, len(numbers) == len(values))
    if date_format:
        has_time = "%H" in date_format
        return Column(name, "date", gaps, distinct, share, date_format=date_format, has_time=has_time)
    if len(numbers) >= 0.98 * len(values):
        return _describe_numbers(name, numbers, gaps, distinct, share, clean=len(numbers) == len(values))
    messy = sum(bool(_MESSY.match(value)) for value in values[:500])
    if messy >= 0.98 * len(values[:500]) and distinct > 20:
        return Column(name, "messy number", gaps, distinct, share)
    words = sum(len(value.split()) for value in values) / len(values)
    characters = sum(map(len, values)) / len(values)
    levels = tuple(level for level, _ in Counter(values).most_common(200))
    is_text = (words >= 3 and share > 0.5) or (words >= 6 and distinct > 100)
    return Column(
        name, "text" if is_text else "category", gaps, distinct, share, words=words, characters=characters,
        levels=() if is_text else levels,
    )  # fmt: skip


def _describe_numbers(
    name: str, numbers: list[float], gaps: float, distinct: int, share: float, *, clean: bool
) -> Column:
    count = len(numbers)
    unit = max(map(abs, numbers)) or 1.0  # squares of huge numbers are no numbers
    scaled = [n / unit for n in numbers]
    mean = sum(scaled) / count
    spread = math.sqrt(sum((n - mean) ** 2 for n in scaled) / count)
    skew = sum(((n - mean) / spread) ** 3 for n in scaled) / count if spread else 0.0
    steps = sum(b == a + 1 for a, b in itertools.pairwise(numbers))
    return Column(
        name, "number" if clean else "messy number", gaps, distinct, share,
        whole=all(n == int(n) for n in numbers), low=min(numbers), high=max(numbers),
        zeros=numbers.count(0.0) / count, skew=skew, sorted_like_rows=steps > 0.95 * (count - 1),
    )  # fmt: skip


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date_format(name: str, values: list[str], numeric: bool) -> str:
    """The format that nearly all values follow, or nothing. Bare numbers count only where the name speaks of time."""
    some = values[:: max(1, len(values) // 200)][:200]
    if numeric:
        if not re.search(r"date|day|time", name, re.IGNORECASE) or not all(
            re.fullmatch(r"(19|20)\d{6}", v) for v in some
        ):
            return ""
        return "%Y%m%d" if _fits(some, "%Y%m%d") else ""
    if not all(any(character.isdigit() for character in value) for value in some):
        return ""
    return next((fmt for fmt in DATE_FORMATS if _fits(some, fmt)), "")


def _fits(values: list[str], date_format: str) -> bool:
    good = 0
    for value in values:
        try:
            datetime.strptime(value, date_format)
            good += 1
        except ValueError:
            pass
    return good >= 0.95 * len(values)
