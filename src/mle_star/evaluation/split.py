"""Which labelled rows are hidden: a choice that mirrors how the test rows differ from the training rows."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mle_star.data.columns import Column, as_date, describe
from mle_star.data.layout import Layout
from mle_star.data.values import is_number

ONE_VIEW_ROWS = 5_000
"""From so many labelled rows on, one hold-out is no noise."""
THREE_FOLDS_ROWS = 1_500
FEWEST_ROWS = 60
"""With fewer labelled rows nothing is hidden: scripts would have too little to learn from."""
HIDDEN_SHARE = 0.1
FOLD_SHARE = 0.2
MOST_HIDDEN = 20_000
QUANTILES = 10

SplitKind = Literal["time", "groups", "classes", "quantiles", "random"]


@dataclass(frozen=True)
class Rule:
    """How rows are chosen. `column` is the one that tells: a date, a group, or the target."""

    kind: SplitKind
    column: str
    reason: str


@dataclass(frozen=True)
class Split:
    """The hidden rows of each view. With one view, `select` are hidden beside them, for the final pick alone."""

    rule: Rule
    views: tuple[tuple[int, ...], ...]
    select: tuple[int, ...] = ()


def find_rule(layout: Layout) -> Rule:
    """By time where the test comes later, by groups where it has others, else alike in the target."""
    test, targets = layout.test, layout.target.columns
    if test is not None:
        shared = [c for c in layout.train.columns if c in test.columns and c != layout.key]
        columns = {name: describe(name, layout.train.sample[name]) for name in shared}
        for name, column in columns.items():
            if _comes_later(column, layout.train.sample[name], test.sample[name]):
                return Rule("time", name, f"{name} of the test rows lies after that of the training rows")
        for name, column in columns.items():
            if _is_apart(column, layout.train.sample[name], test.sample[name]):
                return Rule("groups", name, f"values of {name} repeat in the training rows and never occur in the test")
    if len(targets) == 1 and targets[0].holds_classes:
        return Rule("classes", targets[0].name, "every class has its share")
    if targets and targets[0].numeric:
        return Rule("quantiles", targets[0].name, "small and large values have their share")
    return Rule("random", "", "at random")


def _comes_later(column: Column, train: Sequence[str], test: Sequence[str]) -> bool:
    """Do nearly all test rows come after nearly all training rows?"""
    if column.kind != "date":
        return False
    old, new = (sorted(m for m in (as_date(str(c), column.date_format) for c in cells) if m) for cells in (train, test))
    return bool(old) and bool(new) and new[len(new) // 50] >= old[-1 - len(old) // 50]


def _is_apart(column: Column, train: Sequence[str], test: Sequence[str]) -> bool:
    """Does each value name a group of rows that lies on one side only?"""
    is_code = column.kind in ("category", "date") or (column.kind == "number" and column.whole)
    if not is_code or column.distinct < 5 or column.count < 2 * column.distinct:
        return False
    known, asked = {str(cell) for cell in train if str(cell)}, {str(cell) for cell in test if str(cell)}
    return len(asked) > 1 and not known & asked


def split_rows(rule: Rule, values: Sequence[str], *, seed: int, folds: int | None = None) -> Split:
    """Choose the hidden rows. `values` are those of the rule's column, for every labelled row.

    `folds` sets the number of views; by default it follows the number of rows.
    """
    count, dice = len(values), random.Random(seed)
    if rule.kind == "time":
        return _by_time(rule, values, dice)
    parts = _parts(rule, values, dice)
    if folds is None:
        folds = 1 if count >= ONE_VIEW_ROWS else 3 if count >= THREE_FOLDS_ROWS else 5
    if folds == 1:
        most = min(int(HIDDEN_SHARE * count), MOST_HIDDEN)
        search, select = _filled(parts, [most, most])
        return Split(rule, (search,), select)
    return Split(rule, tuple(_filled(parts, [int(FOLD_SHARE * count)] * folds)))


def _parts(rule: Rule, values: Sequence[str], dice: random.Random) -> list[list[int]]:
    """Rows in the order in which they are hidden, in pieces that stay together."""
    places = list(range(len(values)))
    if rule.kind == "groups":
        groups: dict[str, list[int]] = defaultdict(list)
        for place in places:
            groups[values[place]].append(place)
        pieces = list(groups.values())
        dice.shuffle(pieces)
        return pieces
    dice.shuffle(places)
    if rule.kind in ("classes", "quantiles"):
        strata = _strata(rule, values)
        places = _evenly([strata[place] for place in places], places)
    return [[place] for place in places]


def _strata(rule: Rule, values: Sequence[str]) -> list[str]:
    if rule.kind == "classes":
        return list(values)
    numbers = [float(value) if is_number(value) else 0.0 for value in values]
    ranks = sorted(range(len(numbers)), key=numbers.__getitem__)
    strata = [""] * len(numbers)
    for rank, place in enumerate(ranks):
        strata[place] = str(rank * QUANTILES // len(numbers))
    return strata


def _evenly(strata: list[str], places: list[int]) -> list[int]:
    """The places so ordered that every stretch of them holds each stratum in its share."""
    sizes: dict[str, int] = defaultdict(int)
    for stratum in strata:
        sizes[stratum] += 1
    seen: dict[str, int] = defaultdict(int)
    keyed = []
    for position, (stratum, place) in enumerate(zip(strata, places, strict=True)):
        keyed.append(((seen[stratum] + 0.5) / sizes[stratum], position, place))
        seen[stratum] += 1
    return [place for _, _, place in sorted(keyed)]


def _filled(parts: list[list[int]], sizes: list[int]) -> list[tuple[int, ...]]:
    """Several disjoint sets of about these sizes, filled piece by piece."""
    sets, rest = [], iter(parts)
    for size in sizes:
        taken: list[int] = []
        for piece in rest:
            taken += piece
            if len(taken) >= size:
                break
        sets.append(tuple(sorted(taken)))
    return sets


def _by_time(rule: Rule, values: Sequence[str], dice: random.Random) -> Split:
    """The last rows; which of them are for the search and which for the final pick is decided at random."""
    column = describe(rule.column, list(values))
    moments = [as_date(value, column.date_format) for value in values]
    known = sorted((moment, place) for place, moment in enumerate(moments) if moment is not None)
    last = known[-min(int(2 * HIDDEN_SHARE * len(known)), 2 * MOST_HIDDEN) :]
    first_hidden = last[0][0]
    hidden = [place for moment, place in known if moment >= first_hidden]
    dice.shuffle(hidden)
    half = len(hidden) // 2
    return Split(rule, (tuple(sorted(hidden[:half])),), tuple(sorted(hidden[half:])))
