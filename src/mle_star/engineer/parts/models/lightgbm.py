"""LightGBM: boosted trees, grown leaf by leaf."""

from __future__ import annotations

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Pace, Rows, few_rows, inner_split
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.features.encoding import with_plain_names


def fit_lightgbm(rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job) -> list[np.ndarray]:
    """Boosted trees, grown leaf by leaf; they stop by a part of the training rows, or in time."""
    asked = sum(len(part.frame) for part in others) * (len(np.unique(y)) if job.kind == "multiclass" else 1)
    model = job.memory.hold(grow_lightgbm, rows, y, settings, job, asked)
    return [(model.predict if job.numeric else model.predict_proba)(with_plain_names(part.frame)) for part in others]


def grow_lightgbm(rows: Rows, y: np.ndarray, settings: dict[str, Any], job: Job, asked: int) -> Any:
    """The trees, as many as the time allows; each takes 0.4 microseconds for each of the answers `asked` of it."""
    import lightgbm

    pace = Pace(settings, job, len(y), 4e-7 * asked / job.threads)

    def in_time(state: Any) -> None:
        if pace.tick():
            state.model.reset_parameter({"learning_rate": pace.rate})
        if pace.over:
            raise lightgbm.callback.EarlyStopException(state.iteration, state.evaluation_result_list or [])

    x = with_plain_names(rows.frame)
    kind = lightgbm.LGBMRegressor if job.numeric else lightgbm.LGBMClassifier
    model = kind(
        n_estimators=int(settings["rounds"]),
        learning_rate=settings["rate"],
        num_leaves=int(settings["leaves"]),
        min_child_samples=int(settings["leaf_rows"]),
        subsample=settings["row_share"],
        subsample_freq=1,
        colsample_bytree=settings["column_share"],
        reg_lambda=settings["l2"],
        objective="regression_l1" if job.loss == "absolute" else None,
        random_state=job.seed,
        n_jobs=job.threads,
        verbose=-1,
    )
    callbacks: list[Any] = [in_time]
    fit, stop = inner_split(y, settings["patience"], job)
    if len(stop):
        callbacks.append(lightgbm.early_stopping(int(settings["patience"]), verbose=False))
        model.fit(x.iloc[fit], y[fit], eval_set=[(x.iloc[stop], y[stop])], callbacks=callbacks)
    else:
        model.fit(x, y, callbacks=callbacks)
    if pace.enough < len(y):
        some = few_rows(y, pace.enough, job)
        return grow_lightgbm(rows.take(some), y[some], settings, job, asked)
    if len(stop):
        job.found.update(rounds=max(10, model.best_iteration_), rate=pace.rate, late=pace.late)
    return model


FAMILY = Family(
    name="LightGBM",
    package="lightgbm",
    fit=fit_lightgbm,
    settings={
        "rounds": Setting(3000, 30, 10000, "most trees"),
        "rate": Setting(0.06, 0.005, 0.3, "how much each tree adds"),
        "leaves": Setting(31, 4, 255, "leaves of a tree"),
        "leaf_rows": Setting(20, 2, 200, "fewest rows of a leaf"),
        "row_share": Setting(0.8, 0.4, 1.0, "share of rows for a tree"),
        "column_share": Setting(0.7, 0.2, 1.0, "share of columns for a tree"),
        "l2": Setting(1.0, 0.001, 50.0, "penalty on large leaves"),
        "patience": Setting(50, 0, 200, "trees without gain before it stops; 0: no stopping"),
    },
    worth=lambda p: p.suits_trees(0.96, small=0.7, classes=0.35),
    start=lambda p: (
        {"rounds": 150, "rate": 0.04, "leaves": 8, "leaf_rows": 10, "column_share": 0.6, "l2": 3.0, "patience": 0}
        if p.small
        else {"rate": 0.1 if p.rows > 20_000 else 0.06, "leaves": 31 if p.kind == "regression" else 16}
        | ({"column_share": 0.4} if p.width > 40 else {})
    ),
    cheap={"rounds": 100, "rate": 0.12, "patience": 0},
    ablations={"depth": {"leaves": 4}},
    moves=(
        Move(
            "Give LightGBM larger trees",
            "More leaves see interactions of more columns.",
            {"leaves": "*2.5", "leaf_rows": "*0.8", "rate": "*0.8"},
            lambda p: 0.3 if p.small else 0.55,
        ),
        Move(
            "Give LightGBM smaller steps and more trees",
            "Smaller steps end nearer to the best, if later.",
            {"rate": "*0.4", "rounds": "*2.5", "patience": "*1.5"},
            lambda p: 0.5,
        ),
        Move(
            "Give LightGBM stricter trees",
            "Fewer leaves and fewer columns a tree overfit less.",
            {"leaves": "*0.4", "column_share": "*0.7", "l2": "*4"},
            lambda p: 0.55 if p.small else 0.4,
        ),
    ),
    search=("leaves", "leaf_rows", "column_share", "l2", "rate"),
    timed=True,
)
