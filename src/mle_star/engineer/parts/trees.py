"""Models of trees: boosted ones of four libraries, and many that are averaged.

Rounds, their rate and patience have the same names for all of them; other settings are named as the library does.
"""

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Pace, Rows, Settings, fit_predict, grow, options_in, rounds_in_time
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.encoding import as_codes, as_ranks, with_plain_names

LARGER = "Give {} larger trees. More leaves see interactions of more columns."
DEEPER = "Give {} deeper trees. Deeper trees see interactions of more columns."
SLOWER = "Give {} smaller steps and more trees. Smaller steps end nearer to the best, if later."
STRICTER = "Give {} stricter trees. Smaller trees on fewer columns overfit less."
FINER = "Give {} finer leaves. Leaves of one row see what is particular."
COARSER = "Give {} coarser leaves. Leaves of more rows are steadier."
WIDER = "Let {} try more columns. With many weak columns, more must be tried for a good cut."
WEIGHED = "Let {} weigh categories by the target. Levels that are no column each are told by their target."
STEADIER = "Let {} learn absolute errors. The metric counts them, and rare large ones do not matter."
ABSOLUTE = Move(STEADIER, {"absolute": 1}, 0.3, when=lambda p: p.recipe.loss == "absolute")


# --- LightGBM --------------------------------------------------------------------------------------------


def fit_lightgbm(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Boosted trees, grown leaf by leaf; each takes 0.4 microseconds for each of the answers asked of it."""
    tables = [with_plain_names(part.frame) for part in (rows, *others)]
    answers = sum(map(len, tables[1:])) * (len(np.unique(y)) if job.kind == "multiclass" else 1)
    return fit_predict(grow, tables, y, job, train_lightgbm, settings, job, 4e-7 * answers / job.threads)


def train_lightgbm(x: pd.DataFrame, y: np.ndarray, held: list[Any], settings: Settings, pace: Pace, job: Job) -> Any:
    """The trees; they stop by the rows that are held out, or in time."""
    import lightgbm

    def in_time(state: Any) -> None:
        if pace.tick():
            state.model.reset_parameter({"learning_rate": pace.rate})
        if pace.over:
            raise lightgbm.callback.EarlyStopException(state.iteration, state.evaluation_result_list or [])

    kind = lightgbm.LGBMRegressor if job.numeric else lightgbm.LGBMClassifier
    loss = "regression_l1" if job.loss == "absolute" else None
    steps = {"n_estimators": settings["rounds"], "learning_rate": settings["rate"], "objective": loss}
    more = {"random_state": job.seed, "n_jobs": job.threads, "subsample_freq": 1, "verbose": -1}
    model = kind(**options_in(settings), **steps, **more)
    patient = [lightgbm.early_stopping(settings["patience"], verbose=False)] if held else []
    model.fit(x, y, eval_set=held or None, callbacks=[in_time, *patient])
    return model, model.best_iteration_, pace.late


LIGHTGBM = Family(
    name="LightGBM",
    package="lightgbm",
    fit=fit_lightgbm,
    settings={
        "rounds": Setting(3000, 30, 10000, "most trees", small=150),
        "rate": Setting(0.06, 0.005, 0.3, "how much each tree adds", small=0.04),
        "num_leaves": Setting(31, 4, 255, "leaves of a tree", small=8),
        "min_child_samples": Setting(20, 2, 200, "fewest rows of a leaf", small=10),
        "subsample": Setting(0.8, 0.4, 1.0, "share of rows for a tree"),
        "colsample_bytree": Setting(0.7, 0.2, 1.0, "share of columns for a tree", small=0.6),
        "reg_lambda": Setting(1.0, 0.001, 50.0, "penalty on large leaves", small=3.0),
        "patience": Setting(50, 0, 200, "trees without gain before it stops; 0: no stopping", small=0),
    },
    worth=lambda p: p.suits_trees(0.96, small=0.7, classes=0.35),
    start=lambda p: (
        {"rate": 0.1 if p.rows > 20_000 else 0.06, "num_leaves": 31 if p.kind == "regression" else 16}
        | ({"colsample_bytree": 0.4} if p.width > 40 else {})
    ),
    cheap={"rounds": 100, "rate": 0.12, "patience": 0},
    ablations={"depth": {"num_leaves": 4}},
    moves=(
        Move(LARGER, {"num_leaves": "*2.5", "min_child_samples": "*0.8", "rate": "*0.8"}, 0.55, 0.3),
        Move(SLOWER, {"rate": "*0.4", "rounds": "*2.5", "patience": "*1.5"}, 0.5),
        Move(STRICTER, {"num_leaves": "*0.4", "colsample_bytree": "*0.7", "reg_lambda": "*4"}, 0.4, 0.55),
    ),
    search=("num_leaves", "min_child_samples", "colsample_bytree", "reg_lambda", "rate"),
    timed=True,
)


# --- XGBoost ---------------------------------------------------------------------------------------------


def fit_xgboost(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Boosted trees, grown level by level."""
    tables = [with_plain_names(part.frame) for part in (rows, *others)]
    return fit_predict(grow, tables, y, job, train_xgboost, settings, job)


def train_xgboost(x: pd.DataFrame, y: np.ndarray, held: list[Any], settings: Settings, pace: Pace, job: Job) -> Any:
    """The trees; they stop by the rows that are held out, or in time."""
    import xgboost

    class InTime(xgboost.callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if pace.tick():
                model.set_param("learning_rate", pace.rate)
            return pace.over

    kind = xgboost.XGBRegressor if job.numeric else xgboost.XGBClassifier
    loss = {"objective": "reg:absoluteerror"} if job.loss == "absolute" and settings["absolute"] else {}
    ends = {"early_stopping_rounds": settings["patience"] if held else None, "callbacks": [InTime()]}
    steps = {"n_estimators": settings["rounds"], "learning_rate": settings["rate"], "enable_categorical": True}
    model = kind(**options_in(settings), **steps, **loss, **ends, random_state=job.seed, n_jobs=job.threads)
    model.fit(x, y, eval_set=held or None, verbose=False)
    model.callbacks = None  # they watched the clock, and cannot be kept
    return model, model.best_iteration + 1 if held else 0, pace.late


XGBOOST = Family(
    name="XGBoost",
    package="xgboost",
    fit=fit_xgboost,
    settings={
        "rounds": Setting(2000, 30, 8000, "most trees", small=150),
        "rate": Setting(0.07, 0.01, 0.3, "how much each tree adds", small=0.05),
        "max_depth": Setting(6, 2, 12, "levels of a tree", small=3),
        "min_child_weight": Setting(2.0, 0.5, 50.0, "fewest rows of a leaf, weighted", small=3.0),
        "subsample": Setting(0.8, 0.4, 1.0, "share of rows for a tree"),
        "colsample_bytree": Setting(0.7, 0.2, 1.0, "share of columns for a tree", small=0.6),
        "reg_lambda": Setting(1.0, 0.001, 50.0, "penalty on large leaves", small=3.0),
        "patience": Setting(50, 0, 200, "trees without gain before it stops; 0: no stopping", small=0),
        "absolute": Setting(0, 0, 1, "1: learn absolute errors where those count; 0: squared ones"),
    },
    worth=lambda p: p.suits_trees(0.9, small=0.5, classes=0.2),
    start=lambda p: (
        {"rate": 0.12 if p.rows > 20_000 else 0.07, "max_depth": 6 if p.kind == "regression" else 5}
        | ({"colsample_bytree": 0.4} if p.width > 40 else {})
    ),
    cheap={"rounds": 100, "rate": 0.15, "patience": 0},
    ablations={"depth": {"max_depth": 2}},
    moves=(
        Move(DEEPER, {"max_depth": "*1.5", "min_child_weight": "*2", "rate": "*0.7"}, 0.5, 0.3),
        Move(SLOWER, {"rate": "*0.4", "rounds": "*2.5", "patience": "*1.5"}, 0.45),
        Move(STRICTER, {"max_depth": "*0.6", "colsample_bytree": "*0.7", "reg_lambda": "*4"}, 0.35, 0.5),
        ABSOLUTE,
    ),
    search=("max_depth", "min_child_weight", "colsample_bytree", "reg_lambda", "rate"),
    timed=True,
)


# --- CatBoost --------------------------------------------------------------------------------------------


def fit_catboost(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Boosted symmetric trees; categories go in as they are, by whole numbers."""
    frames = [part.frame for part in (rows, *others)]
    categories = list(rows.frame.select_dtypes("category"))
    tables = [frame.assign(**{name: frame[name].cat.codes.astype(int) for name in categories}) for frame in frames]
    return fit_predict(grow, tables, y, job, train_catboost, {**settings, "cat_features": categories}, job)


def train_catboost(x: pd.DataFrame, y: np.ndarray, held: list[Any], settings: Settings, pace: Pace, job: Job) -> Any:
    """The trees; six are timed first. They stop by the rows that are held out, or in time."""
    import catboost

    kind = catboost.CatBoostRegressor if job.numeric else catboost.CatBoostClassifier
    loss = {"loss_function": "MAE"} if job.loss == "absolute" and settings["absolute"] else {}
    more = {"random_seed": job.seed, "thread_count": job.threads, "allow_writing_files": False, "verbose": False}
    usual = {**options_in(settings), **loss, **more, "max_ctr_complexity": 1}
    kind(iterations=6, learning_rate=0.1, **usual).fit(x, y, callbacks=[pace])
    if pace.enough < pace.rows:
        return None, 0, False
    watch = Pace(settings, job, len(y))
    model = kind(iterations=settings["rounds"], learning_rate=pace.rate, **usual)
    patient = {"eval_set": held[0], "early_stopping_rounds": settings["patience"]} if held else {}
    model.fit(x, y, callbacks=[watch], **patient)
    return model, model.tree_count_, watch.late


CATBOOST = Family(
    name="CatBoost",
    package="catboost",
    fit=fit_catboost,
    settings={
        "rounds": Setting(2000, 30, 8000, "most trees", small=250),
        "rate": Setting(0.08, 0.01, 0.3, "how much each tree adds", small=0.05),
        "depth": Setting(6, 2, 10, "levels of a tree", small=4),
        "l2_leaf_reg": Setting(3.0, 0.1, 50.0, "penalty on large leaves", small=5.0),
        "border_count": Setting(128, 16, 254, "cuts that are tried for a number", small=64),
        "one_hot_max_size": Setting(20, 2, 255, "most levels that get a column each"),
        "patience": Setting(40, 0, 200, "trees without gain before it stops; 0: no stopping", small=0),
        "absolute": Setting(0, 0, 1, "1: learn absolute errors where those count; 0: squared ones"),
    },
    worth=lambda p: p.suits_trees(0.94, small=0.92, classes=0.15),
    start=lambda p: {"rate": 0.12 if p.rows > 20_000 else 0.08, "border_count": 64 if p.width > 100 else 128},
    cheap={"rounds": 100, "rate": 0.15, "border_count": 32, "patience": 0},
    ablations={"depth": {"depth": 2}},
    moves=(
        Move(DEEPER, {"depth": "*1.34", "l2_leaf_reg": "*1.5"}, 0.5, 0.3),
        Move(SLOWER, {"rate": "*0.5", "rounds": "*2", "patience": "*1.5"}, 0.5),
        Move(WEIGHED, {"one_hot_max_size": 2}, 0.5, when=lambda p: p.data["categories"]),
        ABSOLUTE,
    ),
    search=("depth", "l2_leaf_reg", "rate"),
    timed=True,
)


# --- scikit-learn's --------------------------------------------------------------------------------------


def fit_hist_boosting(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Boosted trees on binned columns, as many as the time allows: a few are timed first."""
    tables = [as_codes(part.frame) for part in (rows, *others)]
    return fit_predict(grow_hist_boosting, tables, y, job, settings, job)


def grow_hist_boosting(x: pd.DataFrame, y: np.ndarray, settings: Settings, job: Job) -> Any:
    """The trees, as many as the time allows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingRegressor if job.numeric else HistGradientBoostingClassifier
    loss = {"loss": "absolute_error"} if job.loss == "absolute" else {}
    steps = {"max_iter": 10, "learning_rate": settings["rate"], "early_stopping": False, "warm_start": True}
    model = kind(**options_in(settings), **steps, **loss, random_state=job.seed)
    able = rounds_in_time(model, x, y, 10, job)
    rate = min(0.2, max(settings["rate"], settings["rounds"] * settings["rate"] / able))
    model.set_params(max_iter=int(min(settings["rounds"], max(20, able))), learning_rate=rate)
    return model.fit(x, y)


HIST_BOOSTING = Family(
    name="HistGradientBoosting",
    fit=fit_hist_boosting,
    settings={
        "rounds": Setting(150, 20, 1500, "most trees", small=80),
        "rate": Setting(0.07, 0.01, 0.3, "how much each tree adds"),
        "max_leaf_nodes": Setting(20, 4, 127, "leaves of a tree", small=8),
        "min_samples_leaf": Setting(20, 2, 200, "fewest rows of a leaf"),
        "l2_regularization": Setting(1.0, 0.001, 50.0, "penalty on large leaves"),
    },
    worth=lambda p: (
        p.suits_trees(0.5, small=0.4, classes=0.1) + (0.0 if {"lightgbm", "xgboost"} & set(p.packages) else 0.4)
    ),
    cheap={"rounds": 80, "rate": 0.12},
    ablations={"depth": {"max_leaf_nodes": 4}},
    moves=(Move(LARGER, {"max_leaf_nodes": "*2"}, 0.4), Move(SLOWER, {"rate": "*0.5", "rounds": "*2"}, 0.45)),
    search=("max_leaf_nodes", "min_samples_leaf", "l2_regularization", "rate"),
    timed=True,
)


def fit_extra_trees(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Many deep trees with random cuts, averaged, as many as the time allows: a few are timed first."""
    tables = as_ranks([as_codes(part.frame) for part in (rows, *others)])
    return fit_predict(grow_extra_trees, tables, y, job, settings, job)


def grow_extra_trees(x: np.ndarray, y: np.ndarray, settings: Settings, job: Job) -> Any:
    """The trees, as many as the time allows."""
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    kind = ExtraTreesRegressor if job.numeric else ExtraTreesClassifier
    model = kind(20, **options_in(settings), warm_start=True, random_state=job.seed, n_jobs=job.threads)
    able = rounds_in_time(model, x, y, 20, job)
    model.set_params(n_estimators=int(max(20, min(settings["trees"], able))))
    return model.fit(x, y)


EXTRA_TREES = Family(
    name="ExtraTrees",
    fit=fit_extra_trees,
    settings={
        "trees": Setting(300, 20, 1500, "most trees"),
        "min_samples_leaf": Setting(2, 1, 50, "fewest rows of a leaf"),
        "max_features": Setting(0.5, 0.02, 1.0, "share of columns that are tried for a cut"),
    },
    worth=lambda p: p.suits_trees(0.6, small=0.8, classes=0.92),
    start=lambda p: {
        "trees": 150 if p.rows > 6000 else 300,
        "min_samples_leaf": 1 if p.class_count > 15 else 2 if p.rows < 20_000 else 3,
        "max_features": round(min(0.5, max(0.02, p.width**-0.5)), 3) if p.kind != "regression" or p.width > 60 else 0.5,
    },
    cheap={"trees": 60, "min_samples_leaf": 3},
    ablations={"depth": {"min_samples_leaf": 20}},
    moves=(
        Move(FINER, {"min_samples_leaf": "*0.5", "trees": "*1.5"}, 0.3),
        Move(COARSER, {"min_samples_leaf": "*3"}, 0.35),
        Move(WIDER, {"max_features": "*2"}, 0.35),
    ),
    timed=True,
)
