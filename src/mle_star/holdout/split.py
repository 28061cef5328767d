"""Which labelled rows are hidden: a choice that mirrors how new rows differ from those that are known."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from mle_star.data.columns import comes_later, is_apart, is_number
from mle_star.data.layout import Layout
from mle_star.data.tables import Unsupported
from mle_star.errors import ConfigError
from mle_star.holdout import related
from mle_star.holdout.related import Known, Rule, moments_in
from mle_star.models import PipelineConfig
from mle_star.models.settings import OPEN
from mle_star.models.texts import did_you_mean

ONE_VIEW_ROWS = 5_000
"""From so many labelled rows on, one hold-out is no noise."""
THREE_FOLDS_ROWS = 1_500
FEWEST_ROWS = 60
"""With fewer labelled rows nothing is hidden: scripts would have too little to learn from."""
FEW_GROUPS = 100
"""So few groups are few observations, however many rows each has."""
HIDDEN_SHARE = 0.1
FOLD_SHARE = 0.2
SELECT_SHARE = 1 / 3
"""Of the rows that folds hide, so many are kept from the search."""
MOST_HIDDEN = 20_000
MORE_VIEWS = 4
"""So many views there are beside the first; those that the search does without are for the end of a run, as far as all
hide no more than twice as many rows."""
LEAST_LEARNED = 0.5
"""An earlier stretch of time is hidden where so many of the rows come before it."""
FEWEST_LATER = 200
"""Where the last rows are hidden, at least so many, however short the time that the test spans."""
AHEAD_SHARE, FEWEST_AHEAD = 1 / 15, 40
"""Without a test, a series is told ahead by a fifteenth of its rows, about as far as forecasts are mostly asked for:
five such stretches leave two thirds to learn from. Where that is less than so many rows, by up to a tenth."""
FEWEST_MOMENTS = 10
QUANTILES = 10
LOOKED_AHEAD = 8
"""Rows are drawn evenly from the classes among so many times as many, which hold enough of each."""


class Split(NamedTuple):
    """The hidden rows of each view. The search never looks at those in `select`: they are for the expected score.

    Views that hide no others are for the end of a run.
    """

    views: tuple[tuple[int, ...], ...]
    select: tuple[int, ...] = ()


def find_rule(layout: Layout, config: PipelineConfig, rows: Known | None = None) -> Rule:
    """As the settings say; by time where the test comes later, by groups where it has others, else alike in the target.

    Where there is no test, `rows` tell what follows each other and what belongs together; copies are never separated.
    """
    is_open, found = config.split == "auto", list[Rule]()
    rule = wanted_rule(layout, config) or (_beside_test(layout, config) if is_open else None)
    if rule is not None:
        return rule
    if rows is not None and is_open:
        by_time = related.order_in_time(rows) if layout.test is None and config.time_column != "none" else None
        by_group = related.entities(rows) if layout.test is None and config.group != "none" else None
        found = [rule for rule in (by_time, by_group, related.copies(rows)) if rule is not None]
    if sure := [rule for rule in found if rule.sure]:
        return sure[0]
    return replace(_like_the_target(layout), unsure=tuple(found))


def wanted_rule(layout: Layout, config: PipelineConfig) -> Rule | None:
    """What the settings say of the split; `ConfigError` where the table has no such column."""
    named = {setting: getattr(config, setting) for setting in ("time_column", "group")}
    setting, name = next(((setting, name) for setting, name in named.items() if name not in OPEN), ("", ""))
    if not setting:
        return _likely_rule(layout, config) if config.split in ("time", "group") else None
    others = [one for one in layout.train.columns if one not in layout.target.names]
    if name not in others:
        what = "is the target" if name in layout.target.names else f"is no column of {layout.train.name}"
        raise ConfigError(f"{setting}: {name!r} {what}; {did_you_mean(name, others[:50])}")
    cells = [str(cell) for cell in layout.train.sample[name]]
    if setting == "time_column":
        known = moments_in(name, cells)
        if sum(cell in known for cell in cells) < 0.9 * len(cells):
            raise ConfigError(f"time_column: {name} holds neither dates nor numbers")
        return Rule("time", name, f"{name} is the time")
    if len(set(cells)) in (1, layout.train.rows):
        many = "all rows have the same" if len(set(cells)) == 1 else "every row has its own"
        raise ConfigError(f"group: {many} {name}, so that there are no groups")
    return Rule("groups", name, f"{name} says what belongs together")


def _likely_rule(layout: Layout, config: PipelineConfig) -> Rule:
    """By time or by groups as wanted, by the likeliest column."""
    rule, by_time = _beside_test(layout, config), config.split == "time"
    if rule is not None and rule.kind.startswith(config.split):
        return rule
    for column in map(layout.train.column, layout.train.columns):
        fits = related.may_be_time(column) if by_time else related.may_be_entity(column) and column.unique_share < 0.8
        if fits and column.name not in layout.target.names:
            what = "is the time" if by_time else "says what belongs together"
            return Rule("time" if by_time else "groups", column.name, f"{column.name} {what}")
    what, option = ("dates", "--time-column") if by_time else ("ids that repeat", "--group")
    raise ConfigError(f"split: no column of {layout.train.name} looks like {what}; name it with {option}")


def _beside_test(layout: Layout, config: PipelineConfig) -> Rule | None:
    """What the test rows show: that they come later, or are of other groups."""
    test = layout.test
    if test is not None:
        columns = {name: layout.train.column(name) for name in layout.train.columns if name in test.columns}
        for name, column in columns.items() if config.time_column != "none" else ():
            if comes_later(column, layout.train.sample[name], test.sample[name]):
                return Rule("time", name, f"{name} of the test rows lies after that of the training rows")
        for name, column in columns.items() if config.group != "none" else ():
            if name != layout.key and is_apart(column, layout.train.sample[name], test.sample[name]):
                return Rule("groups", name, f"values of {name} repeat in the training rows and never occur in the test")
    return None


def _like_the_target(layout: Layout) -> Rule:
    """At random, but so that every view has its share of classes, or of small and large values."""
    targets = layout.target.columns
    if len(targets) == 1 and targets[0].holds_classes:
        return Rule("classes", targets[0].name, "every class has its share")
    if targets and targets[0].numeric:
        return Rule("quantiles", targets[0].name, "small and large values have their share")
    return Rule("random", "", "at random")


def split_rows(
    rule: Rule, values: Sequence[str], *, seed: int, folds: int | None = None, ahead: Sequence[str] = ()
) -> Split:
    """Choose the rows, as places in `values`: the rule's column for every labelled row.

    `folds` sets the number of views; by default it follows the number of rows. `ahead` are the values of the test rows.
    """
    count, dice = len(values), random.Random(seed)
    if rule.kind == "time":
        return _by_time(rule, values, dice, ahead, folds)
    groups = _groups(values, dice) if rule.kind in ("groups", "copies") else None
    few = groups is not None and len(groups) < FEW_GROUPS
    usual = MORE_VIEWS if folds is None else 0
    folds = folds or usual_views(min(count, ONE_VIEW_ROWS - 1) if few else count)
    most = min(int(HIDDEN_SHARE * count), MOST_HIDDEN)
    sizes = [int(FOLD_SHARE * count)] * max(folds, 1 + usual)
    if folds == 1:
        sizes = [most, most, *[2 * most] * min(usual, MOST_HIDDEN // max(most, 1) - 1)]
    parts = groups or [[place] for place in _mixed(rule, values, seed, sum(sizes))]
    if folds == 1:
        first, *others = _filled(parts, sizes)
        kept, *later = map(_rows, others) if others else [_kept_back(first)]
        return Split((tuple(sorted({*_rows(first), *kept})), *later), tuple(sorted({*kept, *chain(*later)})))
    views = _filled(parts, sizes)
    chosen = [row for pieces in views[:folds] for row in _kept_back(pieces)]
    return Split(tuple(map(_rows, views)), tuple(sorted(chain(chosen, *map(_rows, views[folds:])))))


def usual_views(rows: int) -> int:
    """How many views the search has of so many rows."""
    return 1 if rows >= ONE_VIEW_ROWS else 3 if rows >= THREE_FOLDS_ROWS else 5


def _kept_back(pieces: list[list[int]]) -> tuple[int, ...]:
    """The rows of a view that the search does not look at: whole pieces, if there is more than one."""
    if len(pieces) == 1:
        pieces = [[row] for row in pieces[0]]
    return _rows(pieces[len(pieces) - max(1, round(SELECT_SHARE * len(pieces))) :])


def _rows(pieces: list[list[int]]) -> tuple[int, ...]:
    return tuple(sorted(row for piece in pieces for row in piece))


def _groups(values: Sequence[str], dice: random.Random) -> list[list[int]]:
    """The rows of each group, the groups in the order in which they are hidden."""
    groups: dict[str, list[int]] = defaultdict(list)
    for place, value in enumerate(values):
        groups[value].append(place)
    pieces = list(groups.values())
    dice.shuffle(pieces)
    return pieces


def _mixed(rule: Rule, values: Sequence[str], seed: int, most: int) -> list[int]:
    """So many rows at random, but so that every stretch of them holds each stratum in its share."""
    count = len(values)
    order = np.random.default_rng(seed).choice(count, min(LOOKED_AHEAD * most, count), replace=False)
    if rule.kind in ("classes", "quantiles"):
        strata = _strata(rule, values)
        order = order[np.argsort(_turns(strata[order], np.bincount(strata)), kind="stable")]
    return list(map(int, order[:most]))


def _turns(strata: Any, sizes: Any) -> Any:
    """When each row has its turn: the n-th of a stratum comes when this share of the stratum's rows has come."""
    seen = np.bincount(strata, minlength=len(sizes))
    by_stratum = np.argsort(strata, kind="stable")
    number: Any = np.empty(len(strata))
    number[by_stratum] = np.arange(len(strata)) - (np.cumsum(seen) - seen)[strata[by_stratum]]
    return (number + 0.5) / sizes[strata]


def _strata(rule: Rule, values: Sequence[str]) -> Any:
    """The stratum of each row, as a number: its class, or the tenth that its value lies in."""
    if rule.kind == "classes":
        number = {value: place for place, value in enumerate(dict.fromkeys(values))}
        return np.fromiter(map(number.__getitem__, values), np.int64, len(values))
    numbers = np.array([float(value) if is_number(value) else 0.0 for value in values])
    return np.argsort(np.argsort(numbers, kind="stable")) * QUANTILES // len(numbers)


def _filled(parts: list[list[int]], sizes: list[int]) -> list[list[list[int]]]:
    """Several disjoint sets of about these sizes, filled piece by piece; one that is far too large stays."""
    sets, rest = [], iter(parts)
    for size in sizes:
        taken: list[list[int]] = []
        count = 0
        for piece in rest:
            if len(piece) > max(2 * size, 1):
                continue
            taken.append(piece)
            count += len(piece)
            if count >= size:
                break
        sets.append(taken)
    return [taken for taken in sets if taken] or [[min(parts, key=len)]]


def _by_time(rule: Rule, values: Sequence[str], dice: random.Random, ahead: Sequence[str], folds: int | None) -> Split:
    """The last rows, over as long a time as the test spans; half of their moments are kept from the search.

    Earlier stretches with as many rows are for the end of a run: how scores drift shows only over several. Without a
    test stretches are short, and where rows are few the search compares scripts by several.
    """
    moments = moments_in(rule.column, values, ahead)
    known = sorted((moments[value], place) for place, value in enumerate(values) if value in moments)
    if not known:
        raise Unsupported(f"the moments in {rule.column} cannot be told apart")
    count, newest = len(known), known[-1][0]
    end = max((moments[value] for value in ahead if value in moments), default=newest)
    most, searched = min(int(2 * HIDDEN_SHARE * count), 2 * MOST_HIDDEN), 1
    if end > newest:
        spanned = sum(moment > newest - (end - newest) for moment, _ in known)
        wanted = max(min(spanned, most), min(FEWEST_LATER, most))
    else:
        wanted = min(max(int(AHEAD_SHARE * count), min(FEWEST_AHEAD, int(HIDDEN_SHARE * count)), 1), most)
        searched = folds or usual_views(int(wanted / FOLD_SHARE))  # as where a view hides a fifth
    most = min(2 * MOST_HIDDEN, int((1 - LEAST_LEARNED) * count))
    count_of_views = min(1 + MORE_VIEWS if folds is None else searched, max(most // wanted, 1))
    starts = [known[-wanted * number][0] for number in range(1, count_of_views + 1)]
    half = known[max(int(LEAST_LEARNED * count) - 1, 0)][0]  # of moments with many rows, a stretch may hold more
    stretches = [[one for one in known if one[0] >= starts[0]]]
    stretches += [
        [one for one in known if first <= one[0] < last] for last, first in pairwise(starts) if half < first < last
    ]
    if len(stretches[0]) > 2 * wanted:  # of a moment that holds most rows, some
        later = [one for one in stretches[0] if one[0] > starts[0]]
        stretches[0] = dice.sample([one for one in stretches[0] if one[0] == starts[0]], wanted - len(later)) + later
    kept = [_half_of_moments(hidden, dice) for hidden in stretches[:searched]]
    views = [tuple(sorted(place for _, place in one)) for one in stretches]
    return Split(tuple(views), tuple(sorted(chain(*kept, *views[searched:]))))


def _half_of_moments(hidden: Sequence[tuple[Any, int]], dice: random.Random) -> list[int]:
    """The rows of half of the moments, else half of the rows, which are kept from the search."""
    seen = {moment for moment, _ in hidden}
    units: list[Any] = sorted(seen) if len(seen) >= FEWEST_MOMENTS else sorted(place for _, place in hidden)
    dice.shuffle(units)
    kept = set(units[len(units) // 2 :])
    return [place for moment, place in hidden if moment in kept or place in kept]
