"""What the answers of a solution look like beside the truth: what is taken for what, how far off, how sure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mle_star.holdout.answers import Answers, Ungradable
from mle_star.holdout.scorer import Scorer

MOST_CLASSES = 8
"""With more of them, the rarer ones are counted together."""
OTHER = "other"
BINS = 10
FEWEST_IN_BIN = 5
MOST_POINTS = 300


@dataclass(frozen=True)
class Portrait:
    """Facts for charts, over so many hidden rows; what does not fit the task is empty."""

    rows: int
    classes: list[str] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)  # a row for each true class, a column for each said one
    calibration: list[tuple[float, float, int]] = field(default_factory=list)  # chance said, share found, rows
    points: list[tuple[float, float]] = field(default_factory=list)  # truth and answer of some rows


def portrait(scorer: Scorer, answers: Answers, rows: Sequence[int]) -> Portrait | None:
    """The portrait of these answers on these hidden rows; None where no chart says anything about them."""
    covered = [row for row in rows if row in answers.hidden]
    needs = scorer.metric.needs
    if not covered or needs not in ("numbers", "probabilities", "labels", "grades"):
        return None
    try:
        truth, said = scorer.pair(answers.hidden, covered)
    except Ungradable:
        return None
    if needs == "numbers":
        return _of_numbers(truth, said)
    if needs == "probabilities":
        return _of_chances(scorer.classes, truth, said)
    if truth.ndim > 1:
        return None
    names = scorer.classes
    if needs == "grades":
        return _confused(names, [names[int(place)] for place in truth], [names[int(place)] for place in said])
    spelled, _ = scorer.arrays([[name] for name in names], [(name,) for name in names])
    return _confused([str(one) for one in spelled], [str(one) for one in truth], [str(one) for one in said])


def _of_numbers(truth: Any, said: Any) -> Portrait | None:
    """Truth and answer of rows spread over the whole range."""
    import numpy as np

    if truth.ndim > 1:
        return None
    order = np.argsort(truth, kind="stable")
    count = min(MOST_POINTS, len(order))
    places = order[np.linspace(0, len(order) - 1, count).astype(int)]
    return Portrait(len(truth), points=[(float(truth[place]), float(said[place])) for place in places])


def _of_chances(classes: list[str], truth: Any, chances: Any) -> Portrait | None:
    """What is taken for what, and whether chances are what they say: of the second of two, else of the likeliest."""
    import numpy as np

    if chances.min() < -1e-9 or chances.max() > 1 + 1e-9:
        return None  # ranks, not chances
    best = chances.argmax(axis=1)
    found = _confused(classes, [classes[place] for place in truth], [classes[place] for place in best])
    two = len(classes) == 2
    sure = chances[:, 1] if two else chances.max(axis=1)
    right = truth == 1 if two else truth == best
    places = np.clip((sure * BINS).astype(int), 0, BINS - 1)
    calibration = [
        (float(sure[places == place].mean()), float(right[places == place].mean()), int((places == place).sum()))
        for place in range(BINS)
        if (places == place).sum() >= FEWEST_IN_BIN
    ]
    return Portrait(found.rows, found.classes, found.confusion, calibration)


def _confused(classes: list[str], truth: list[str], said: list[str]) -> Portrait:
    common = Counter(truth)
    kept = classes
    if len(classes) > MOST_CLASSES:
        largest = {name for name, _ in common.most_common(MOST_CLASSES - 1)}
        kept = [*(name for name in classes if name in largest), OTHER]
    place = {name: index for index, name in enumerate(kept)}
    table = [[0] * len(kept) for _ in kept]
    for one, other in zip(truth, said, strict=True):
        row, column = place.get(one, len(kept) - 1), place.get(other, len(kept) - 1)
        table[row][column] += 1
    return Portrait(len(truth), kept, table)
