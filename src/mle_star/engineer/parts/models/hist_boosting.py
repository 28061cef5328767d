"""scikit-learn's histogram boosting: boosted trees without a further library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.features.encoding import as_codes


def fit_hist_boosting(
    rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job
) -> list[np.ndarray]:
    """Boosted trees on binned columns, as many as the time allows: a few are timed first."""
    model = job.memory.hold(grow_hist_boosting, as_codes(rows.frame), y, settings, job)
    return [(model.predict if job.numeric else model.predict_proba)(as_codes(part.frame)) for part in others]


def grow_hist_boosting(x: pd.DataFrame, y: np.ndarray, settings: dict[str, Any], job: Job) -> Any:
    """The trees, as many as the time allows."""
    import time

    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingRegressor if job.numeric else HistGradientBoostingClassifier
    more = {"loss": "absolute_error"} if job.loss == "absolute" else {}
    model = kind(
        max_iter=10,
        learning_rate=settings["rate"],
        max_leaf_nodes=int(settings["leaves"]),
        min_samples_leaf=int(settings["leaf_rows"]),
        l2_regularization=settings["l2"],
        early_stopping=False,
        warm_start=True,
        random_state=job.seed,
        **more,
    )
    started = time.monotonic()
    model.fit(x, y)
    each = max((time.monotonic() - started) / 10, 1e-4)
    able = max(job.seconds, min(job.most, 100 * each)) / each
    rate = min(0.2, max(settings["rate"], settings["rounds"] * settings["rate"] / able))
    model.set_params(max_iter=int(min(settings["rounds"], max(20, able))), learning_rate=rate)
    return model.fit(x, y)


FAMILY = Family(
    name="HistGradientBoosting",
    package="sklearn",
    fit=fit_hist_boosting,
    settings={
        "rounds": Setting(150, 20, 1500, "most trees"),
        "rate": Setting(0.07, 0.01, 0.3, "how much each tree adds"),
        "leaves": Setting(20, 4, 127, "leaves of a tree"),
        "leaf_rows": Setting(20, 2, 200, "fewest rows of a leaf"),
        "l2": Setting(1.0, 0.001, 50.0, "penalty on large leaves"),
    },
    worth=lambda p: (
        p.suits_trees(0.5, small=0.4, classes=0.1) + (0.0 if {"lightgbm", "xgboost"} & set(p.packages) else 0.4)
    ),
    start=lambda p: {"rounds": 80, "leaves": 8} if p.small else {},
    cheap={"rounds": 80, "rate": 0.12},
    ablations={"depth": {"leaves": 4}},
    moves=(
        Move(
            "Give HistGradientBoosting larger trees",
            "More leaves see interactions of more columns.",
            {"leaves": "*2"},
            lambda p: 0.4,
        ),
        Move(
            "Give HistGradientBoosting smaller steps and more trees",
            "Smaller steps end nearer to the best, if later.",
            {"rate": "*0.5", "rounds": "*2"},
            lambda p: 0.45,
        ),
    ),
    search=("leaves", "leaf_rows", "l2", "rate"),
    timed=True,
)
