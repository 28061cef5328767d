"""Invented data whose truth is known: how often an interval of 95 % holds it."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from mle_star.data.metrics import Metric, known_metric
from mle_star.holdout.holdout import HALVINGS
from mle_star.holdout.intervals import drawn_figures, interval, levelled, shifted, telling_rows

ENDLESS = 5000
"""So many rows tell what a script is worth on all rows that there could be."""
FIRSTS = 3
"""So many scripts are made before any score is known."""


class World(NamedTuple):
    """A metric and rows on which it is computed: two classes by default, as many of each."""

    metric: str
    rare: bool = False  # one row in fifteen is positive
    easy: bool = False  # nearly every answer is right

    @property
    def name(self) -> str:
        """What a table calls it."""
        return self.metric + (", rare class" if self.rare else ", nearly all right" if self.easy else "")

    def rows(self, dice: Any, count: int, scripts: int, searched: Any = None) -> tuple[Any, list[Any]]:
        """The truth of so many rows, and what each script says of them; scripts differ by chance alone.

        With `searched` rows each but the first ones is made of the best so far on these: luck adds up.
        """
        metric, known, shared = known_metric(self.metric), dice.normal(size=count), 0.5 * dice.normal(size=count)
        base, slope = (-4, 2) if self.rare else (0, 8 if self.easy else 2)
        noise, errors, given = dice.normal(size=count), list[Any](), list[Any]()
        truth: Any = (dice.random(count) < 1 / (1 + np.exp(-base - slope * known))).astype(int)
        if not metric.higher_is_better and metric.needs == "numbers":
            truth = 2 * known + noise
        elif metric.needs == "grades":
            truth = np.clip(np.round(2 + 1.2 * known + 0.48 * noise), 0, 4).astype(int)
        for number in range(scripts):
            errors.append(0.5 * dice.normal(size=count))
            if searched is not None and number >= FIRSTS:
                best = errors[best_of(metric, truth, given, searched)]
                errors[-1] = np.sqrt(0.7) * best + np.sqrt(0.3) * errors[-1]
            error = shared + errors[-1]
            chance, grade = 1 / (1 + np.exp(-base - slope * known - error)), 2 + 1.2 * known + 0.8 * error
            forms = {"numbers": 2 * known + error, "labels": (chance > 0.5).astype(int)}
            forms["grades"] = np.clip(np.round(grade), 0, 4).astype(int)
            given.append(forms.get(metric.needs, np.column_stack([1 - chance, chance])))
        return truth, given


WORLDS = (
    World("roc_auc"), World("roc_auc", rare=True), World("roc_auc", easy=True), World("average_precision", rare=True),
    World("log_loss"), World("log_loss", rare=True), World("f1"), World("f1", rare=True), World("accuracy"),
    World("accuracy", easy=True), World("rmse"), World("quadratic_weighted_kappa"),
)  # fmt: skip


def coverage(
    world: World, count: int, scripts: int = 1, *, test: int = 0, repeats: int = 200, search: bool = False, **how: int
) -> tuple[float, float]:
    """The share of expected scores from `count` rows that are kept, and their median width.

    On a test of `test` rows or on all there could be. Of several scripts the best on three times as many rows is
    taken; in a `search` each was made of the best before it on two thirds of these.
    """
    metric, kept, widths = known_metric(world.metric), 0, list[float]()
    for repeat in range(repeats):
        dice = np.random.default_rng([count, repeat])
        known = count if scripts == 1 else 3 * count
        try:
            truth, given = world.rows(
                dice, known + (test or ENDLESS), scripts, np.arange(count, known) if search else None
            )
            chosen = best_of(metric, truth, given, np.arange(known))
            worth = metric.compute(truth[known:], given[chosen][known:])
            low, high = ends(metric, truth[:known], [one[:known] for one in given], chosen, count, test, **how)
        except ValueError:  # one class only
            continue
        kept += low <= worth <= high
        widths.append(high - low)
    return kept / len(widths), float(np.median(widths))


def ends(
    metric: Metric, truth: Any, given: Sequence[Any], chosen: int, count: int, test: int, firsts: int = FIRSTS
) -> tuple[float, float]:
    """The interval from the first `count` rows, the others being those of the search; with what first scripts tell."""

    def figure(script: int, rows: Any) -> float:
        return metric.compute(truth[rows], given[script][rows])

    def drawn(scripts: Sequence[int], rows: Any, seed: int) -> Any:
        return drawn_figures(metric, (truth[rows], *(given[one][rows] for one in scripts)), None, seed)

    mine, others, tell = np.arange(count), np.arange(count, len(truth)), range(firsts if len(given) > 1 else 0)
    score, figures, left, shift = figure(chosen, mine), drawn([chosen], mine, 1)[:, 0], 1.0, 0.0
    telling = telling_rows(metric, truth[mine])
    if tell:
        ahead = np.array([figure(one, mine) - figure(one, others) for one in tell])
        both, least = drawn(tell, mine, 1) - drawn(tell, others, 2), count / len(truth)
        score, left = levelled(score, figures, ahead, both, min(count, telling), least)
    known = figures[np.isfinite(figures)] * left**0.5
    beside, score = count / left / test if test else 0.0, min(max(score, metric.low), metric.high)
    low, high = interval(metric, score, known, telling=telling / left, units=count, beside=beside)
    dice = np.random.default_rng(3)
    for _ in range(HALVINGS if len(given) > 1 else 0):
        for half, other in permutations(np.array_split(dice.permutation(count), 2)):
            there = best_of(metric, truth, given, np.concatenate([others, half]))
            shift += (figure(there, other) - figure(chosen, other)) / 2 / HALVINGS
    return shifted(metric, score, low, high, shift)[1:]


def best_of(metric: Metric, truth: Any, given: Sequence[Any], rows: Any) -> int:
    """The best script on these rows."""
    sign = 1 if metric.higher_is_better else -1
    return max(range(len(given)), key=lambda script: sign * metric.compute(truth[rows], given[script][rows]))
