"""A linear model with a penalty, on scaled numbers, levels and words."""

from __future__ import annotations

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.features.encoding import as_matrix, fit_logistic


def fit_linear(rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job) -> list[np.ndarray]:
    """A linear model with a penalty: scaled numbers, their bins, a column for each level, and the weighted words."""
    from scipy import sparse
    from sklearn.linear_model import Ridge

    matrix, *asked = as_matrix(rows, others, bins=int(settings["bins"]))
    if job.numeric:
        middle, spread = float(np.mean(y)), float(np.std(y)) or 1.0
        solver = "sparse_cg" if sparse.issparse(matrix) else "auto"
        line = Ridge(alpha=1 / settings["strength"], solver=solver, tol=1e-3, max_iter=200)
        model = job.memory.hold(line.fit, matrix, (y - middle) / spread)
        low, high = float(y.min()), float(y.max())
        return [np.clip(model.predict(part) * spread + middle, low, high) for part in asked]
    return fit_logistic(matrix, y, asked, settings["strength"], int(settings["rounds"]), job)


FAMILY = Family(
    name="Regularised linear model",
    package="sklearn",
    fit=fit_linear,
    settings={
        "strength": Setting(0.5, 0.001, 100.0, "inverse of the penalty"),
        "bins": Setting(0, 0, 32, "bins of each number, beside the number; 0: none"),
        "rounds": Setting(120, 20, 500, "most steps"),
    },
    worth=lambda p: (
        0.97 if p.mostly_text else p.suits_trees(0.45, small=0.85, classes=0.95) + (0.2 if p.reading else 0)
    ),
    start=lambda p: {
        "strength": 1.0 if p.kind == "regression" else 30.0 if p.mostly_text else 8.0 if p.class_count > 15 else 0.5,
        "bins": 12 if len(p.numbers) <= 40 and p.rows > 1000 and not p.mostly_text else 0,
    },
    cheap={"bins": 0, "rounds": 40},
    ablations={"bins": {"bins": 0}},
    moves=(
        Move(
            "Loosen the linear model",
            "A weaker penalty lets rare words and levels speak.",
            {"strength": "*5"},
            lambda p: 0.5,
        ),
        Move(
            "Tighten the linear model",
            "A stronger penalty trusts no rare word or level.",
            {"strength": "*0.2"},
            lambda p: 0.45,
        ),
        Move(
            "Cut the numbers of the linear model into bins",
            "Bins let a line bend.",
            {"bins": 16},
            lambda p: 0.5 if p.numbers else 0.0,
        ),
    ),
    reads=True,
)
