"""Models of a matrix of scaled numbers, levels and words: lines, neighbours, a kernel, a network."""

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Rows, Settings, fit_predict
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.encoding import as_matrix, fit_each_class, fit_logistic, fit_scaled

BINS = "Cut the numbers of the linear model into bins. Bins let a line bend."


def fit_linear(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """A linear model with a penalty: scaled numbers, their bins, a column for each level, and the weighted words."""
    from scipy import sparse
    from sklearn.linear_model import Ridge

    tables = as_matrix(rows, others, bins=settings["bins"])
    if job.numeric:
        solver = "sparse_cg" if sparse.issparse(tables[0]) else "auto"
        line = Ridge(alpha=1 / settings["strength"], solver=solver, tol=1e-3, max_iter=200)
        return [np.clip(p, y.min(), y.max()) for p in fit_scaled(line.fit, tables, y, job)]
    return fit_logistic(tables, y, settings["strength"], settings["rounds"], job)


LINEAR = Family(
    name="Regularised linear model",
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
    ablations={"bins": {"bins": 0}, "strength": {"strength": 0.01}},
    moves=(
        Move("Loosen the linear model. A weaker penalty lets rare words and levels speak.", {"strength": "*5"}, 0.5),
        Move("Tighten the linear model. A stronger penalty trusts no rare word or level.", {"strength": "*0.2"}, 0.45),
        Move(BINS, {"bins": 16}, 0.5, when=lambda p: p.numbers),
    ),
    reads=True,
)


def fit_nbsvm(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """For each class a logistic regression on the words, each weighed by the log-odds of the class among its rows."""
    from scipy import sparse

    kept = np.flatnonzero(np.bincount(rows.words.indices, minlength=rows.words.shape[1]) >= 2)
    matrices = [part.words[:, kept].sign() for part in (rows, *others)]

    def weighed(label: int) -> list[Any]:
        sides = (matrices[0][side] for side in (y == label, y != label))
        ours, rest = (settings["smooth"] + np.asarray(side.sum(axis=0)).ravel() for side in sides)
        weight = sparse.diags(np.log((ours / ours.sum()) / (rest / rest.sum())).astype("float32"))
        return [matrix @ weight for matrix in matrices]

    return fit_each_class(y, weighed, settings["strength"], 60, job)


NBSVM = Family(
    name="NB-SVM",
    fit=fit_nbsvm,
    settings={
        "strength": Setting(1.0, 0.01, 30.0, "inverse of the penalty"),
        "smooth": Setting(1.0, 0.05, 5.0, "rows that every word is granted"),
    },
    worth=lambda p: 0.0 if p.kind == "regression" or not p.reading else 0.95 if p.mostly_text else 0.3,
    cheap={"strength": 0.5},
    ablations={"strength": {"strength": 0.02}},
    moves=(
        Move("Loosen {}. A weaker penalty lets rare words speak.", {"strength": "*4"}, 0.4),
        Move("Tighten {}. A stronger penalty trusts no rare word.", {"strength": "*0.25"}, 0.4),
    ),
    reads=True,
)


def fit_neighbours(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """The weighted mean of the nearest training rows, on scaled numbers and levels."""
    from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

    kind = KNeighborsRegressor if job.numeric else KNeighborsClassifier
    model = kind(max(1, min(settings["count"], len(y) // 2)), weights="distance", n_jobs=job.threads)
    return fit_predict(model.fit, as_matrix(rows, others, words=not rows.frame.shape[1]), y, job)


NEIGHBOURS = Family(
    name="Nearest neighbours",
    fit=fit_neighbours,
    settings={"count": Setting(15, 1, 200, "rows that are looked at")},
    worth=lambda p: 0.0 if p.rows > 50_000 else p.suits_trees(0.25, small=0.45, classes=0.6),
    start=lambda p: {"count": 3 if p.class_count > 15 else 15},
    cheap={"count": 5},
    ablations={"count": {"count": 1}},
    moves=(
        Move("Ask more neighbours. More neighbours are steadier.", {"count": "*2.5"}, 0.35),
        Move("Ask fewer neighbours. The nearest rows know best.", {"count": "*0.4"}, 0.35),
    ),
)


def fit_kernel(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """A support vector machine with a Gaussian kernel on scaled numbers and levels; its margins become chances."""
    from scipy.special import softmax
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.svm import SVC, SVR

    tables = as_matrix(rows, others, words=not rows.frame.shape[1])
    if job.numeric:
        return fit_scaled(SVR(C=settings["strength"], cache_size=500).fit, tables, y, job)
    machine = SVC(C=settings["strength"], cache_size=500)
    parts = int(min(3, np.bincount(y).min()))
    if parts < 2:
        margins = job.memory.hold(machine.fit, tables[0], y).decision_function
        given = [margins(table).reshape(table.shape[0], -1) for table in tables[1:]]
        given = [margin if margin.shape[1] > 1 else np.hstack([0 * margin, margin]) for margin in given]
        return [softmax(margin, axis=1) for margin in given]
    return fit_predict(CalibratedClassifierCV(machine, cv=parts, ensemble=False).fit, tables, y, job)


KERNEL = Family(
    name="Support vector machine",
    fit=fit_kernel,
    settings={"strength": Setting(3.0, 0.05, 100.0, "inverse of the penalty")},
    worth=lambda p: 0.0 if p.rows > 4_000 or p.mostly_text else p.suits_trees(0.5, small=0.7, classes=0.85),
    cheap={"strength": 1.0},
    ablations={"strength": {"strength": 0.05}},
    moves=(
        Move("Loosen the support vector machine. A weaker penalty bends closer to the rows.", {"strength": "*4"}, 0.4),
        Move("Tighten the support vector machine. A stronger penalty is smoother.", {"strength": "*0.25"}, 0.4),
    ),
)


def fit_network(rows: Rows, y: np.ndarray, others: list[Rows], settings: Settings, job: Job) -> list[np.ndarray]:
    """Two layers on scaled numbers and levels, as many rounds as the time allows: the first is timed."""
    tables = [matrix.astype("float32") for matrix in as_matrix(rows, others, words=not rows.frame.shape[1])]
    if job.numeric:
        return [np.clip(p, y.min(), y.max()) for p in fit_scaled(train_network, tables, y, job, settings, job)]
    return fit_predict(train_network, tables, y, job, settings, job)


def train_network(matrix: Any, y: np.ndarray, settings: Settings, job: Job) -> Any:
    """The network after as many rounds as the time allows."""
    import time

    from sklearn.neural_network import MLPClassifier, MLPRegressor

    width = settings["width"]
    shape = {"hidden_layer_sizes": (width, width // 2), "alpha": settings["decay"], "random_state": job.seed}
    kind = MLPRegressor if job.numeric else MLPClassifier
    model = kind(**shape, learning_rate_init=settings["rate"], batch_size=min(256, max(16, len(y) // 20)))
    started, pace = time.monotonic(), 0.0
    for number in range(settings["rounds"]):
        model.partial_fit(matrix, y, **({} if job.numeric or number else {"classes": np.unique(y)}))
        pace = (time.monotonic() - started) / (number + 1)
        if time.monotonic() - started + pace > job.seconds:
            break
    return model


NETWORK = Family(
    name="Neural network",
    fit=fit_network,
    settings={
        "width": Setting(96, 16, 512, "units of the first layer"),
        "rounds": Setting(25, 3, 200, "most rounds over the rows"),
        "rate": Setting(0.002, 0.0001, 0.02, "size of a step"),
        "decay": Setting(0.001, 1e-6, 1.0, "penalty on large weights"),
    },
    worth=lambda p: 0.0 if p.mostly_text else p.suits_trees(0.4, small=0.35, classes=0.7),
    cheap={"width": 32, "rounds": 6},
    ablations={"rounds": {"rounds": 2}},
    moves=(
        Move("Train the network for longer. More rounds follow the rows more closely.", {"rounds": "*2"}, 0.4),
        Move("Give the network a stronger penalty. Smaller weights are smoother.", {"decay": "*30"}, 0.4),
    ),
    timed=True,
)
