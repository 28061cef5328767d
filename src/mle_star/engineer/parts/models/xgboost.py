"""XGBoost: boosted trees, grown level by level."""

from __future__ import annotations

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Pace, Rows, few_rows, inner_split
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.features.encoding import with_plain_names


def fit_xgboost(rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job) -> list[np.ndarray]:
    """Boosted trees, grown level by level; they stop by a part of the training rows, or in time."""
    model = job.memory.hold(grow_xgboost, rows, y, settings, job)
    return [(model.predict if job.numeric else model.predict_proba)(with_plain_names(part.frame)) for part in others]


def grow_xgboost(rows: Rows, y: np.ndarray, settings: dict[str, Any], job: Job) -> Any:
    """The trees, as many as the time allows."""
    import xgboost

    pace = Pace(settings, job, len(y))

    class InTime(xgboost.callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if pace.tick():
                model.set_param("learning_rate", pace.rate)
            return pace.over

    fit, stop = inner_split(y, settings["patience"], job)
    kind = xgboost.XGBRegressor if job.numeric else xgboost.XGBClassifier
    more = {"objective": "reg:absoluteerror"} if job.loss == "absolute" and settings["absolute"] else {}
    model = kind(
        n_estimators=int(settings["rounds"]),
        learning_rate=settings["rate"],
        max_depth=int(settings["depth"]),
        min_child_weight=settings["leaf_weight"],
        subsample=settings["row_share"],
        colsample_bytree=settings["column_share"],
        reg_lambda=settings["l2"],
        enable_categorical=True,
        early_stopping_rounds=int(settings["patience"]) if len(stop) else None,
        callbacks=[InTime()],
        random_state=job.seed,
        n_jobs=job.threads,
        **more,
    )
    x = with_plain_names(rows.frame)
    if len(stop):
        model.fit(x.iloc[fit], y[fit], eval_set=[(x.iloc[stop], y[stop])], verbose=False)
    else:
        model.fit(x, y)
    if pace.enough < len(y):
        some = few_rows(y, pace.enough, job)
        return grow_xgboost(rows.take(some), y[some], settings, job)
    if len(stop):
        job.found.update(rounds=max(10, model.best_iteration + 1), rate=pace.rate, late=pace.late)
    model.callbacks = None  # they watched the clock, and cannot be kept
    return model


FAMILY = Family(
    name="XGBoost",
    package="xgboost",
    fit=fit_xgboost,
    settings={
        "rounds": Setting(2000, 30, 8000, "most trees"),
        "rate": Setting(0.07, 0.01, 0.3, "how much each tree adds"),
        "depth": Setting(6, 2, 12, "levels of a tree"),
        "leaf_weight": Setting(2.0, 0.5, 50.0, "fewest rows of a leaf, weighted"),
        "row_share": Setting(0.8, 0.4, 1.0, "share of rows for a tree"),
        "column_share": Setting(0.7, 0.2, 1.0, "share of columns for a tree"),
        "l2": Setting(1.0, 0.001, 50.0, "penalty on large leaves"),
        "patience": Setting(50, 0, 200, "trees without gain before it stops; 0: no stopping"),
        "absolute": Setting(0, 0, 1, "1: learn absolute errors where those count; 0: squared ones"),
    },
    worth=lambda p: p.suits_trees(0.9, small=0.5, classes=0.2),
    start=lambda p: (
        {"rounds": 150, "rate": 0.05, "depth": 3, "leaf_weight": 3.0, "column_share": 0.6, "l2": 3.0, "patience": 0}
        if p.small
        else {"rate": 0.12 if p.rows > 20_000 else 0.07, "depth": 6 if p.kind == "regression" else 5}
        | ({"column_share": 0.4} if p.width > 40 else {})
    ),
    cheap={"rounds": 100, "rate": 0.15, "patience": 0},
    ablations={"depth": {"depth": 2}},
    moves=(
        Move(
            "Give XGBoost deeper trees",
            "Deeper trees see interactions of more columns.",
            {"depth": "*1.5", "leaf_weight": "*2", "rate": "*0.7"},
            lambda p: 0.3 if p.small else 0.5,
        ),
        Move(
            "Give XGBoost smaller steps and more trees",
            "Smaller steps end nearer to the best, if later.",
            {"rate": "*0.4", "rounds": "*2.5", "patience": "*1.5"},
            lambda p: 0.45,
        ),
        Move(
            "Give XGBoost stricter trees",
            "Shallow trees on fewer columns overfit less.",
            {"depth": "*0.6", "column_share": "*0.7", "l2": "*4"},
            lambda p: 0.5 if p.small else 0.35,
        ),
        Move(
            "Let XGBoost learn absolute errors",
            "The metric counts them, and rare large ones do not matter.",
            {"absolute": 1},
            lambda p: 0.3 if p.recipe.loss == "absolute" else 0.0,
        ),
    ),
    search=("depth", "leaf_weight", "column_share", "l2", "rate"),
    timed=True,
)
