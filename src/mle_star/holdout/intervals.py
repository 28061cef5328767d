"""How sure a score is: where 95 of 100 others of its kind would have the truth between their ends.

A bootstrap tells how far a score would go up and down with other rows. Taken as it is, it claims too much where rows
are few: it never sees what none of them shows. So the interval is made where the metric has no ends (an accuracy of
0.98 can be missed by far more to one side than to the other), the rarer classes tell how many rows really speak, and
rows that agree by chance are mixed with the throws of a coin.
"""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from statistics import pvariance
from typing import Any

from mle_star.data.metrics import Metric
from mle_star.errors import ConfigError

DRAWS = 200
LEVELLED_DRAWS, FEW_DRAWS = 100, 40
MANY_ROWS = 4_000
COIN_ROWS = 20
"""The noise of so many rows is taken for that of a coin, which matters where there are hardly more."""
MOST_EXPONENT = 500.0


def drawn_figures(
    metric: Metric,
    arrays: Sequence[Any],
    members: Sequence[Any] | None,
    seed: int,
    classes: Sequence[Any] = (),
    draws: int = DRAWS,
) -> Any:
    """The metric over rows of truth and answers that are drawn again and again: a line for each draw.

    Whole `members` are drawn, where rows are no separate observations. `classes` are the task's: a draw may lack some.
    Where one has no figure, as it holds one class only, its line is not finite.
    """
    import numpy as np

    dice, count = np.random.default_rng(seed), len(arrays[0] if members is None else members)
    figures = np.full((draws if len(arrays[0]) <= MANY_ROWS else FEW_DRAWS, len(arrays) - 1), np.nan)
    for number in range(len(figures)):
        rows = dice.integers(0, count, count)
        if members is not None:
            rows = np.concatenate([members[unit] for unit in rows])
        truth, *answers = (array.iloc[rows] if metric.needs == "frames" else array[rows] for array in arrays)
        with suppress(ValueError, ConfigError):
            figures[number] = [metric.compute(truth, one, classes) for one in answers]
    return figures


def telling_rows(metric: Metric, truth: Any) -> int:
    """How many rows count: of the rarer classes, twice as many as there are, at most all."""
    if metric.needs not in ("labels", "probabilities", "grades") or metric.even or truth.ndim > 1:
        return len(truth)
    rare = len(truth) - max(Counter(truth.tolist()).values())
    return min(len(truth), max(2 * rare, 2))


def interval(
    metric: Metric, score: float, figures: Sequence[float], *, telling: float, units: float, beside: float = 0.0
) -> tuple[float, float]:
    """The ends of the 95 % interval, from so many rows that count, in so many separate observations.

    `beside` is how many times as many there are here as in the test for which the interval is: that has its own noise.
    """
    free, low, high = min(units, telling) - 1, metric.low, metric.high
    if free < 1 or len(figures) < 2:
        return low, high
    is_bounded = math.isfinite(low) and math.isfinite(high)
    away = (high - low) / 2 / telling if is_bounded else 0.0  # no score is certain: half a row may be wrong
    safe = min(max(score, low + away), high - away)
    variance = pvariance(figures)
    if is_bounded and metric.needs not in ("numbers", "frames") and not metric.proper:
        coin = (safe - low) * (high - safe) / telling
        variance = max(variance, (telling * variance + COIN_ROWS * coin) / (telling + COIN_ROWS))
    noise = math.sqrt(variance * (free + 1) / free * (1 + beside))
    reach = _quantile(1 / (1 / free + 1 / (len(figures) - 1))) * noise
    lower, upper = _apart(safe, reach, low, high)
    return min(lower, score), max(upper, score)


def levelled(score: float, figures: Any, ahead: Any, draws: Any, units: int, least: float) -> tuple[float, float]:
    """The score as it were if its rows were as easy as all, and the share of its variance that is left.

    Other scripts are better by `ahead` on these rows than elsewhere, and so in each of the `draws`. How far the score
    goes along, these tell (a control variate); of few rows that count anything goes along with anything.
    """
    import numpy as np

    pairs = np.column_stack([figures[: len(draws)], draws])
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    count = min(units, len(pairs))
    if count <= pairs.shape[1] or pairs[:, 0].min() == pairs[:, 0].max():
        return score, 1.0
    mine, *theirs = (pairs - pairs.mean(axis=0)).T
    weights = np.linalg.lstsq(np.column_stack(theirs), mine, rcond=None)[0]
    share = float((mine - weights @ theirs).var() / mine.var()) * (count - 1) / (count - pairs.shape[1])
    return (score - float(ahead @ weights), max(share, least)) if share < 1 else (score, 1.0)


def shifted(metric: Metric, score: float, low: float, high: float, shift: float) -> tuple[float, float, float]:
    """A score that is moved, and the ends of its interval: by how much to move is as uncertain as the move is large."""
    ends = score - math.hypot(score - low, 2 * shift), score + math.hypot(high - score, 2 * shift)
    moved = [min(max(figure + shift, metric.low), metric.high) for figure in (score, *ends)]
    return moved[0], moved[1], moved[2]


def after_more_rows(metric: Metric, score: float, low: float, high: float, share: float) -> tuple[float, float]:
    """The ends for what has learned from all rows, where what was scored has learned from this share of them.

    How much it gains nobody has measured. With the rows the distance to a perfect score shrinks by their root at most:
    so far to the better side the truth may lie beside what the rows leave open, one as little known as the other.
    """
    perfect = metric.high if metric.higher_is_better else metric.low
    most = (perfect - score) * (1 - math.sqrt(share)) if math.isfinite(perfect) else 0.0
    if metric.higher_is_better:
        return low, min(score + math.hypot(high - score, most), metric.high)
    return max(score - math.hypot(score - low, most), metric.low), high


def _apart(score: float, reach: float, low: float, high: float) -> tuple[float, float]:
    """So far to both sides of a score, on the scale on which it has no ends: logarithms of odds, or of the distance."""
    below, above = score - low, high - score
    if math.isfinite(below) and math.isfinite(above):
        step = min(reach * (high - low) / (below * above), MOST_EXPONENT)
        odds = [below / above * math.exp(side) for side in (-step, step)]
        return low + (high - low) * odds[0] / (1 + odds[0]), high - (high - low) / (1 + odds[1])
    for end, away, sides in ((low, below, (-1, 1)), (high, -above, (1, -1))):
        if math.isfinite(away) and away:
            step = min(reach / abs(away), MOST_EXPONENT)
            return end + away * math.exp(sides[0] * step), end + away * math.exp(sides[1] * step)
    return max(score - reach, low), min(score + reach, high)


def _quantile(freedom: float) -> float:
    """Student's t at 97.5 % (Cornish and Fisher): few observations make wide intervals."""
    z, freedom = 1.959964, max(freedom, 2.0)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
