"""Models of trees: boosted ones of four libraries, and many that are averaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Pace, Rows, Settings, grow, predictions_of, rounds_in_time
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.encoding import as_codes, as_ranks, with_plain_names

# --- what most of them may try ---------------------------------------------------------------------------


def larger_trees(name: str, worth: float, small: float, **changes: str) -> Move:
    """Larger trees, by their leaves or by their depth."""
    size, what = ("larger", "More leaves") if "leaves" in changes else ("deeper", "Deeper trees")
    return Move(f"Give {name} {size} trees. {what} see interactions of more columns.", changes, worth, small)


def smaller_steps(name: str, worth: float, **changes: str) -> Move:
    """Smaller steps, and more of them."""
    plan = f"Give {name} smaller steps and more trees. Smaller steps end nearer to the best, if later."
    return Move(plan, changes, worth)


def stricter_trees(name: str, why: str, worth: float, small: float, **changes: str) -> Move:
    """Smaller trees on fewer columns."""
    return Move(f"Give {name} stricter trees. {why}", {**changes, "column_share": "*0.7", "l2": "*4"}, worth, small)


def absolute_errors(name: str) -> Move:
    """The errors that some metrics count."""
    plan = f"Let {name} learn absolute errors. The metric counts them, and rare large ones do not matter."
    return Move(plan, {"absolute": 1}, 0.3, when=lambda p: p.recipe.loss == "absolute")


# --- LightGBM --------------------------------------------------------------------------------------------


def fit_lightgbm(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Boosted trees, grown leaf by leaf; each takes 0.4 microseconds for each of the answers asked of it."""
    x, *asked = [with_plain_names(part.frame) for part in (rows, *others)]
    answers = sum(map(len, asked)) * (len(np.unique(y)) if job.kind == "multiclass" else 1)
    model = job.memory.hold(grow, train_lightgbm, x, y, settings, job, 4e-7 * answers / job.threads)
    return predictions_of(model, asked, job)


def train_lightgbm(x: pd.DataFrame, y: np.ndarray, held: list[Any], settings: Settings, pace: Pace, job: Job) -> Any:
    """The trees; they stop by the rows that are held out, or in time."""
    import lightgbm

    def in_time(state: Any) -> None:
        if pace.tick():
            state.model.reset_parameter({"learning_rate": pace.rate})
        if pace.over:
            raise lightgbm.callback.EarlyStopException(state.iteration, state.evaluation_result_list or [])

    kind = lightgbm.LGBMRegressor if job.numeric else lightgbm.LGBMClassifier
    size = {"num_leaves": int(settings["leaves"]), "min_child_samples": int(settings["leaf_rows"])}
    loss = "regression_l1" if job.loss == "absolute" else None
    steps = {"n_estimators": int(settings["rounds"]), "learning_rate": settings["rate"], "reg_lambda": settings["l2"]}
    shares = {"subsample": settings["row_share"], "colsample_bytree": settings["column_share"]}
    more = {"random_state": job.seed, "n_jobs": job.threads, "subsample_freq": 1, "verbose": -1}
    model = kind(**steps, **shares, **size, **more, objective=loss)
    patient = [lightgbm.early_stopping(int(settings["patience"]), verbose=False)] if held else []
    model.fit(x, y, eval_set=held or None, callbacks=[in_time, *patient])
    return model, model.best_iteration_, pace.late


LIGHTGBM = Family(
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
        larger_trees("LightGBM", 0.55, 0.3, leaves="*2.5", leaf_rows="*0.8", rate="*0.8"),
        smaller_steps("LightGBM", 0.5, rate="*0.4", rounds="*2.5", patience="*1.5"),
        stricter_trees("LightGBM", "Fewer leaves and fewer columns a tree overfit less.", 0.4, 0.55, leaves="*0.4"),
    ),
    search=("leaves", "leaf_rows", "column_share", "l2", "rate"),
    timed=True,
)


# --- XGBoost ---------------------------------------------------------------------------------------------


def fit_xgboost(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Boosted trees, grown level by level."""
    x, *asked = [with_plain_names(part.frame) for part in (rows, *others)]
    return predictions_of(job.memory.hold(grow, train_xgboost, x, y, settings, job), asked, job)


def train_xgboost(x: pd.DataFrame, y: np.ndarray, held: list[Any], settings: Settings, pace: Pace, job: Job) -> Any:
    """The trees; they stop by the rows that are held out, or in time."""
    import xgboost

    class InTime(xgboost.callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if pace.tick():
                model.set_param("learning_rate", pace.rate)
            return pace.over

    kind = xgboost.XGBRegressor if job.numeric else xgboost.XGBClassifier
    size = {"max_depth": int(settings["depth"]), "min_child_weight": settings["leaf_weight"]}
    loss = {"objective": "reg:absoluteerror"} if job.loss == "absolute" and settings["absolute"] else {}
    ends = {"early_stopping_rounds": int(settings["patience"]) if held else None, "callbacks": [InTime()]}
    steps = {"n_estimators": int(settings["rounds"]), "learning_rate": settings["rate"], "reg_lambda": settings["l2"]}
    shares = {"subsample": settings["row_share"], "colsample_bytree": settings["column_share"]}
    more = {"random_state": job.seed, "n_jobs": job.threads, "enable_categorical": True}
    model = kind(**steps, **shares, **size, **more, **loss, **ends)
    model.fit(x, y, eval_set=held or None, verbose=False)
    model.callbacks = None  # they watched the clock, and cannot be kept
    return model, model.best_iteration + 1 if held else 0, pace.late


XGBOOST = Family(
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
        larger_trees("XGBoost", 0.5, 0.3, depth="*1.5", leaf_weight="*2", rate="*0.7"),
        smaller_steps("XGBoost", 0.45, rate="*0.4", rounds="*2.5", patience="*1.5"),
        stricter_trees("XGBoost", "Shallow trees on fewer columns overfit less.", 0.35, 0.5, depth="*0.6"),
        absolute_errors("XGBoost"),
    ),
    search=("depth", "leaf_weight", "column_share", "l2", "rate"),
    timed=True,
)


# --- CatBoost --------------------------------------------------------------------------------------------


def fit_catboost(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Boosted symmetric trees; categories go in as they are, by whole numbers."""
    frames = [part.frame for part in (rows, *others)]
    categories = list(rows.frame.select_dtypes("category"))
    x, *asked = [frame.assign(**{name: frame[name].cat.codes.astype(int) for name in categories}) for frame in frames]
    model = job.memory.hold(grow, train_catboost, x, y, {**settings, "categories": categories}, job)
    return predictions_of(model, asked, job)


def train_catboost(x: pd.DataFrame, y: np.ndarray, held: list[Any], settings: Settings, pace: Pace, job: Job) -> Any:
    """The trees; six are timed first. They stop by the rows that are held out, or in time."""
    import catboost

    class InTime:
        def __init__(self, pace: Pace) -> None:
            self.pace = pace

        def after_iteration(self, info: Any) -> bool:
            self.pace.tick()
            return not self.pace.late

    kind = catboost.CatBoostRegressor if job.numeric else catboost.CatBoostClassifier
    usual = {
        "depth": int(settings["depth"]),
        "l2_leaf_reg": settings["l2"],
        "border_count": int(settings["borders"]),
        "one_hot_max_size": int(settings["one_hot"]),
        "max_ctr_complexity": 1,
        "cat_features": settings["categories"],
        "random_seed": job.seed,
        "thread_count": job.threads,
        "allow_writing_files": False,
        "verbose": False,
        **({"loss_function": "MAE"} if job.loss == "absolute" and settings["absolute"] else {}),
    }
    kind(iterations=6, learning_rate=0.1, **usual).fit(x, y, callbacks=[InTime(pace)])
    if pace.enough < pace.rows:
        return None, 0, False
    watch = Pace(settings, job, len(y))
    model = kind(iterations=int(settings["rounds"]), learning_rate=pace.rate, **usual)
    patient = {"eval_set": held[0], "early_stopping_rounds": int(settings["patience"])} if held else {}
    model.fit(x, y, callbacks=[InTime(watch)], **patient)
    return model, model.tree_count_, watch.late


CATBOOST = Family(
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
        larger_trees("CatBoost", 0.5, 0.3, depth="*1.34", l2="*1.5"),
        smaller_steps("CatBoost", 0.5, rate="*0.5", rounds="*2", patience="*1.5"),
        Move(
            "Let CatBoost weigh categories by the target. Levels that are no column each are told by their target.",
            {"one_hot": 2},
            0.5,
            when=lambda p: p.categories,
        ),
        absolute_errors("CatBoost"),
    ),
    search=("depth", "l2", "rate"),
    timed=True,
)


# --- scikit-learn's --------------------------------------------------------------------------------------


def fit_hist_boosting(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Boosted trees on binned columns, as many as the time allows: a few are timed first."""
    x, *asked = [as_codes(part.frame) for part in (rows, *others)]
    return predictions_of(job.memory.hold(grow_hist_boosting, x, y, settings, job), asked, job)


def grow_hist_boosting(x: pd.DataFrame, y: np.ndarray, settings: Settings, job: Job) -> Any:
    """The trees, as many as the time allows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingRegressor if job.numeric else HistGradientBoostingClassifier
    loss = {"loss": "absolute_error"} if job.loss == "absolute" else {}
    size = {"max_leaf_nodes": int(settings["leaves"]), "min_samples_leaf": int(settings["leaf_rows"])}
    steps = {"max_iter": 10, "learning_rate": settings["rate"], "l2_regularization": settings["l2"]}
    model = kind(**size, **steps, **loss, early_stopping=False, warm_start=True, random_state=job.seed)
    able = rounds_in_time(model, x, y, 10, job)
    rate = min(0.2, max(settings["rate"], settings["rounds"] * settings["rate"] / able))
    model.set_params(max_iter=int(min(settings["rounds"], max(20, able))), learning_rate=rate)
    return model.fit(x, y)


HIST_BOOSTING = Family(
    name="HistGradientBoosting",
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
        larger_trees("HistGradientBoosting", 0.4, 0.4, leaves="*2"),
        smaller_steps("HistGradientBoosting", 0.45, rate="*0.5", rounds="*2"),
    ),
    search=("leaves", "leaf_rows", "l2", "rate"),
    timed=True,
)


def fit_extra_trees(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Many deep trees with random cuts, averaged, as many as the time allows: a few are timed first."""
    x, *asked = as_ranks([as_codes(part.frame) for part in (rows, *others)])
    return predictions_of(job.memory.hold(grow_extra_trees, x, y, settings, job), asked, job)


def grow_extra_trees(x: np.ndarray, y: np.ndarray, settings: Settings, job: Job) -> Any:
    """The trees, as many as the time allows."""
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    kind = ExtraTreesRegressor if job.numeric else ExtraTreesClassifier
    cuts = {"min_samples_leaf": int(settings["leaf_rows"]), "max_features": settings["column_share"]}
    model = kind(20, **cuts, warm_start=True, random_state=job.seed, n_jobs=job.threads)
    able = rounds_in_time(model, x, y, 20, job)
    model.set_params(n_estimators=int(max(20, min(settings["trees"], able))))
    return model.fit(x, y)


EXTRA_TREES = Family(
    name="ExtraTrees",
    fit=fit_extra_trees,
    settings={
        "trees": Setting(300, 20, 1500, "most trees"),
        "leaf_rows": Setting(2, 1, 50, "fewest rows of a leaf"),
        "column_share": Setting(0.5, 0.02, 1.0, "share of columns that are tried for a cut"),
    },
    worth=lambda p: p.suits_trees(0.6, small=0.8, classes=0.92),
    start=lambda p: {
        "trees": 150 if p.rows > 6000 else 300,
        "leaf_rows": 1 if p.class_count > 15 else 2 if p.rows < 20_000 else 3,
        "column_share": round(min(0.5, max(0.02, p.width**-0.5)), 3) if p.kind != "regression" or p.width > 60 else 0.5,
    },
    cheap={"trees": 60, "leaf_rows": 3},
    ablations={"depth": {"leaf_rows": 20}},
    moves=(
        Move(
            "Give ExtraTrees finer leaves. Leaves of one row see what is particular.",
            {"leaf_rows": "*0.5", "trees": "*1.5"},
            0.3,
        ),
        Move("Give ExtraTrees coarser leaves. Leaves of more rows are steadier.", {"leaf_rows": "*3"}, 0.35),
        Move(
            "Let ExtraTrees try more columns. With many weak columns, more must be tried for a good cut.",
            {"column_share": "*2"},
            0.35,
        ),
    ),
    timed=True,
)
