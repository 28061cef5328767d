"""Invented data whose truth is known: how often an interval of 95 % holds it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mle_star.data.metrics import Metric, known_metric
from mle_star.holdout.intervals import drawn_figures, interval, shifted, telling_rows

ENDLESS = 5000
"""So many rows tell what a script is worth on all rows that there could be."""


class World(NamedTuple):
    """A metric and rows on which it is computed: two classes by default, as many of each."""

    metric: str
    rare: bool = False  # one row in fifteen is positive
    easy: bool = False  # nearly every answer is right

    @property
    def name(self) -> str:
        """What a table calls it."""
        return self.metric + (", rare class" if self.rare else ", nearly all right" if self.easy else "")

    def rows(self, dice: Any, count: int, scripts: int) -> tuple[Any, list[Any]]:
        """The truth of so many rows, and what each script says of them; scripts differ by chance alone."""
        known, shared = dice.normal(size=count), 0.5 * dice.normal(size=count)
        errors = [shared + 0.5 * dice.normal(size=count) for _ in range(scripts)]
        if self.metric == "rmse":
            return 2 * known + dice.normal(size=count), [2 * known + error for error in errors]
        if self.metric == "quadratic_weighted_kappa":
            grades = [2 + 1.2 * known + 0.8 * error for error in [0.6 * dice.normal(size=count), *errors]]
            truth, *given = (np.clip(np.round(grade), 0, 4).astype(int) for grade in grades)
            return truth, given
        base, slope = (-4, 2) if self.rare else (0, 8 if self.easy else 2)
        truth = (dice.random(count) < 1 / (1 + np.exp(-base - slope * known))).astype(int)
        chances = [1 / (1 + np.exp(-base - slope * known - error)) for error in errors]
        if known_metric(self.metric).needs == "labels":
            return truth, [(chance > 0.5).astype(int) for chance in chances]
        return truth, [np.column_stack([1 - chance, chance]) for chance in chances]


WORLDS = (
    World("roc_auc"), World("roc_auc", rare=True), World("roc_auc", easy=True), World("average_precision", rare=True),
    World("log_loss"), World("log_loss", rare=True), World("f1"), World("f1", rare=True), World("accuracy"),
    World("accuracy", easy=True), World("rmse"), World("quadratic_weighted_kappa"),
)  # fmt: skip


def coverage(world: World, count: int, *, shortlist: int = 1, test: int = 0, repeats: int = 200) -> float:
    """The share of expected scores from `count` rows that are kept, on a test of `test` rows or on all there could be.

    Of several shortlist the best one on three times as many rows is taken.
    """
    metric, kept, tried = known_metric(world.metric), 0, 0
    for repeat in range(repeats):
        dice = np.random.default_rng([count, repeat])
        known = count if shortlist == 1 else 3 * count
        truth, given = world.rows(dice, known + (test or ENDLESS), shortlist)
        rows = np.arange(known)
        try:
            chosen = _best(metric, truth, given, rows)
            worth = metric.compute(truth[known:], given[chosen][known:])
            low, high = _ends(metric, truth[:known], [one[:known] for one in given], chosen, count, test)
        except ValueError:  # one class only
            continue
        kept, tried = kept + (low <= worth <= high), tried + 1
    return kept / tried


def _ends(metric: Metric, truth: Any, given: Sequence[Any], chosen: int, count: int, test: int) -> tuple[float, float]:
    mine, answers = truth[:count], given[chosen][:count]
    score, shift = metric.compute(mine, answers), 0.0
    figures = drawn_figures(metric, (mine, answers), None, seed=1)
    beside = count / test if test else 0.0
    low, high = interval(metric, score, figures, telling=telling_rows(metric, mine), units=count, beside=beside)
    others, halves = np.arange(count, len(truth)), np.array_split(np.arange(count), 2)
    for half, other in (halves, halves[::-1]) if len(given) > 1 else ():
        there = _best(metric, truth, given, np.concatenate([others, half]))
        gain = metric.compute(truth[other], given[there][other]) - metric.compute(truth[other], given[chosen][other])
        shift += gain / 2
    _, low, high = shifted(metric, score, low, high, shift)
    return low, high


def _best(metric: Metric, truth: Any, given: Sequence[Any], rows: Any) -> int:
    sign = 1 if metric.higher_is_better else -1
    return max(range(len(given)), key=lambda script: sign * metric.compute(truth[rows], given[script][rows]))
