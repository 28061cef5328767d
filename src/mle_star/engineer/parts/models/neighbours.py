"""Nearest neighbours: the mean of the rows that are most alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.features.encoding import as_matrix


def fit_neighbours(
    rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job
) -> list[np.ndarray]:
    """The weighted mean of the nearest training rows, on scaled numbers and levels."""
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

    matrix, *asked = as_matrix(rows, others, words=not rows.frame.shape[1])
    kind = KNeighborsRegressor if job.numeric else KNeighborsClassifier
    count = int(max(1, min(settings["count"], len(y) // 2)))
    model = job.memory.hold(kind(count, weights="distance", n_jobs=job.threads).fit, matrix, y)
    return [(model.predict if job.numeric else model.predict_proba)(part) for part in asked]


FAMILY = Family(
    name="Nearest neighbours",
    package="sklearn",
    fit=fit_neighbours,
    settings={"count": Setting(15, 1, 200, "rows that are asked")},
    worth=lambda p: 0.0 if p.rows > 50_000 else p.suits_trees(0.25, small=0.45, classes=0.6),
    start=lambda p: {"count": 3 if p.class_count > 15 else 15},
    cheap={"count": 5},
    ablations={"count": {"count": 1}},
    moves=(
        Move("Ask more neighbours", "More neighbours are steadier.", {"count": "*2.5"}, lambda p: 0.35),
        Move("Ask fewer neighbours", "The nearest rows know best.", {"count": "*0.4"}, lambda p: 0.35),
    ),
)
