"""CatBoost: boosted symmetric trees that take categories as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Pace, Rows, few_rows, inner_split
from mle_star.engineer.parts.describe import Family, Move, Setting


def fit_catboost(rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job) -> list[np.ndarray]:
    """Boosted symmetric trees; categories go in as they are; they stop by a part of the training rows, or in time."""
    model = job.memory.hold(grow_catboost, rows, y, settings, job)
    return [(model.predict if job.numeric else model.predict_proba)(plain_levels(part.frame)) for part in others]


def plain_levels(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as whole numbers."""
    return frame.assign(**{name: frame[name].cat.codes.astype(int) for name in frame.select_dtypes("category")})


def grow_catboost(rows: Rows, y: np.ndarray, settings: dict[str, Any], job: Job) -> Any:
    """The trees, as many as the time allows."""
    import catboost

    class InTime:
        def __init__(self) -> None:
            self.pace = Pace(settings, job, len(y))

        def after_iteration(self, info: Any) -> bool:
            self.pace.tick()
            return not self.pace.late

    fit, stop = inner_split(y, settings["patience"], job)
    kind = catboost.CatBoostRegressor if job.numeric else catboost.CatBoostClassifier
    usual = {
        "depth": int(settings["depth"]),
        "l2_leaf_reg": settings["l2"],
        "border_count": int(settings["borders"]),
        "one_hot_max_size": int(settings["one_hot"]),
        "max_ctr_complexity": 1,
        "random_seed": job.seed,
        "thread_count": job.threads,
        "allow_writing_files": False,
        "verbose": False,
        **({"loss_function": "MAE"} if job.loss == "absolute" and settings["absolute"] else {}),
    }
    x, categories = plain_levels(rows.frame), list(rows.frame.select_dtypes("category"))
    probe, watch = InTime(), InTime()
    kind(iterations=6, learning_rate=0.1, **usual).fit(x, y, categories, callbacks=[probe])
    if probe.pace.enough < len(y):
        some = few_rows(y, probe.pace.enough, job)
        return grow_catboost(rows.take(some), y[some], settings, job)
    model = kind(iterations=int(settings["rounds"]), learning_rate=probe.pace.rate, **usual)
    if len(stop):
        held = (x.iloc[stop], y[stop])
        patience = int(settings["patience"])
        model.fit(x.iloc[fit], y[fit], categories, eval_set=held, early_stopping_rounds=patience, callbacks=[watch])
        job.found.update(rounds=max(10, model.tree_count_), rate=probe.pace.rate, late=watch.pace.late)
    else:
        model.fit(x, y, categories, callbacks=[watch])
    return model


FAMILY = Family(
    name="CatBoost",
    package="catboost",
    fit=fit_catboost,
    settings={
        "rounds": Setting(2000, 30, 8000, "most trees"),
        "rate": Setting(0.08, 0.01, 0.3, "how much each tree adds"),
        "depth": Setting(6, 2, 10, "levels of a tree"),
        "l2": Setting(3.0, 0.1, 50.0, "penalty on large leaves"),
        "borders": Setting(128, 16, 254, "cuts that are tried for a number"),
        "one_hot": Setting(20, 2, 255, "most levels that get a column each"),
        "patience": Setting(40, 0, 200, "trees without gain before it stops; 0: no stopping"),
        "absolute": Setting(0, 0, 1, "1: learn absolute errors where those count; 0: squared ones"),
    },
    worth=lambda p: p.suits_trees(0.94, small=0.92, classes=0.15),
    start=lambda p: (
        {"rounds": 250, "rate": 0.05, "depth": 4, "l2": 5.0, "borders": 64, "patience": 0}
        if p.small
        else {"rate": 0.12 if p.rows > 20_000 else 0.08, "borders": 64 if p.width > 100 else 128}
    ),
    cheap={"rounds": 100, "rate": 0.15, "borders": 32, "patience": 0},
    ablations={"depth": {"depth": 2}},
    moves=(
        Move(
            "Give CatBoost deeper trees",
            "Deeper trees see interactions of more columns.",
            {"depth": "*1.34", "l2": "*1.5"},
            lambda p: 0.3 if p.small else 0.5,
        ),
        Move(
            "Give CatBoost smaller steps and more trees",
            "Smaller steps end nearer to the best, if later.",
            {"rate": "*0.5", "rounds": "*2", "patience": "*1.5"},
            lambda p: 0.5,
        ),
        Move(
            "Let CatBoost weigh categories by the target",
            "Levels that are no column each are told by their target.",
            {"one_hot": 2},
            lambda p: 0.5 if p.categories else 0.0,
        ),
        Move(
            "Let CatBoost learn absolute errors",
            "The metric counts them, and rare large ones do not matter.",
            {"absolute": 1},
            lambda p: 0.3 if p.recipe.loss == "absolute" else 0.0,
        ),
    ),
    search=("depth", "l2", "rate"),
    timed=True,
)
