"""What the values of a column are like: numbers, classes, text, identifiers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mle_star.tasks.tables import is_number

GAPS = {"", "na", "n/a", "nan", "null", "none", "?"}


@dataclass(frozen=True)
class Profile:
    """A column in figures; gaps are left out of all of them but `missing`."""

    count: int
    missing: int
    unique: int
    numeric: bool
    integer: bool
    minimum: float
    maximum: float
    mean_words: float
    shares: tuple[tuple[str, float], ...]  # the most frequent values, largest share first

    @property
    def unique_share(self) -> float:
        """How many of the values are different ones."""
        return self.unique / self.count if self.count else 0.0

    @property
    def smallest_share(self) -> float:
        """The share of the rarest of the listed values."""
        return self.shares[-1][1] if self.shares else 0.0


def profile(values: list[str]) -> Profile:
    """The figures of a column's sampled values."""
    present = [value for value in values if value.lower() not in GAPS]
    counts = Counter(present)
    numeric = bool(present) and all(is_number(value) for value in counts)
    numbers = [float(value) for value in counts] if numeric else []
    words = sum(len(value.split()) for value in present) / len(present) if present else 0.0
    return Profile(
        count=len(present),
        missing=len(values) - len(present),
        unique=len(set(numbers)) if numeric else len(counts),
        numeric=numeric,
        integer=numeric and all(number.is_integer() for number in numbers),
        minimum=min(numbers, default=0.0),
        maximum=max(numbers, default=0.0),
        mean_words=words,
        shares=tuple((value, count / len(present)) for value, count in counts.most_common(100)),
    )


def looks_like_classes(column: Profile) -> bool:
    """Are the values names or codes of classes, rather than quantities?"""
    if not column.numeric:
        return True
    if not column.integer:
        return column.unique <= 2
    if column.unique <= 2:
        return True
    return column.unique <= 20 and column.count >= 5 * column.unique


def looks_like_prose(column: Profile) -> bool:
    """Do most rows hold their own sentence? Names of people and places are shorter."""
    return not column.numeric and column.mean_words >= 6 and column.unique_share > 0.5


def looks_like_id(name: str, column: Profile) -> bool:
    """Does the column only number or name the rows?"""
    lower = name.lower()
    named = (
        lower in ("id", "index", "key", "uuid") or lower.endswith(("_id", " id", "-id")) or name.endswith(("Id", "ID"))
    )
    return named and column.unique_share > 0.95
