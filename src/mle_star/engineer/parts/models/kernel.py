"""A support vector machine with a Gaussian kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.features.encoding import as_matrix


def fit_kernel(rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job) -> list[np.ndarray]:
    """A support vector machine with a Gaussian kernel on scaled numbers and levels; its margins become chances."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.svm import SVC, SVR

    matrix, *asked = as_matrix(rows, others, words=not rows.frame.shape[1])
    if job.numeric:
        middle, spread = float(np.mean(y)), float(np.std(y)) or 1.0
        model = job.memory.hold(SVR(C=settings["strength"], cache_size=500).fit, matrix, (y - middle) / spread)
        return [model.predict(part) * spread + middle for part in asked]
    machine = SVC(C=settings["strength"], cache_size=500)
    parts = int(min(3, np.bincount(y).min()))
    if parts < 2:
        margins = job.memory.hold(machine.fit, matrix, y).decision_function
        tables = [margins(part).reshape(part.shape[0], -1) for part in asked]
        tables = [table if table.shape[1] > 1 else np.hstack([0 * table, table]) for table in tables]
        weights = [np.exp(table - table.max(axis=1, keepdims=True)) for table in tables]
        return [weight / weight.sum(axis=1, keepdims=True) for weight in weights]
    model = job.memory.hold(CalibratedClassifierCV(machine, cv=parts, ensemble=False).fit, matrix, y)
    return [model.predict_proba(part) for part in asked]


FAMILY = Family(
    name="Support vector machine",
    package="sklearn",
    fit=fit_kernel,
    settings={"strength": Setting(3.0, 0.05, 100.0, "inverse of the penalty")},
    worth=lambda p: 0.0 if p.rows > 4_000 or p.mostly_text else p.suits_trees(0.5, small=0.7, classes=0.85),
    cheap={"strength": 1.0},
    ablations={"strength": {"strength": 0.05}},
    moves=(
        Move(
            "Loosen the support vector machine",
            "A weaker penalty bends closer to the rows.",
            {"strength": "*4"},
            lambda p: 0.4,
        ),
        Move(
            "Tighten the support vector machine",
            "A stronger penalty is smoother.",
            {"strength": "*0.25"},
            lambda p: 0.4,
        ),
    ),
)
