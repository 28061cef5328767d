"""The catalogue of models: families that differ, each as a section of a script, with when it is worth trying.

To add a model, append an entry to `MODELS`. `code` defines `fit_NAME(x, y, others, seed)`, which fits on the rows of
`x` and gives its predictions for each frame in `others`: class probabilities, or numbers. These words are filled in:
`$Kind` (Classifier or Regressor), `$predict` (predict_proba or predict), `$stratify`, `$rare` (keeps rare classes),
`$plain` (drops raw texts), `$neutral` (numbers for names that a library refuses) and whatever `sizes` gives. A model
whose package the scripts cannot import is never proposed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from string import Template

from mle_star.engineer.rules.profile import Profile


@dataclass(frozen=True)
class Model:
    """One family of models."""

    key: str
    name: str
    package: str
    imports: tuple[str, ...]
    code: str
    worth: Callable[[Profile], float]
    sizes: Callable[[Profile], dict[str, str]] = lambda p: {}
    small_code: str = ""


def _boosting_rounds(p: Profile, *, cap: int, cost: float = 1.0) -> int:
    """As many rounds as fit into about two seconds a fold, by a rough law of rows, columns and classes."""
    trees = len(p.classes) if p.kind == "multiclass" else 1
    milliseconds = cost * trees * (0.8 + min(p.rows, 30_000) * p.width / 250_000)
    return max(40, min(cap, int(2_000 / milliseconds) // 20 * 20))


def _rate(rounds: int, *, slow: float, budget: float) -> str:
    """A learning rate that uses the rounds up: fewer rounds, larger steps."""
    return f"{min(0.3, max(slow, budget / rounds)):.2g}"


def _columns(p: Profile) -> str:
    """The share of columns that a tree sees: classes are noisy, and trees that see less overfit less."""
    return "0.4" if p.width > 40 else "0.8" if p.numeric else "0.5"


def _lightgbm_sizes(p: Profile) -> dict[str, str]:
    rounds = _boosting_rounds(p, cap=500 if p.numeric else 800)
    objective = '        objective="regression_l1",\n' if p.numeric and p.metric.loss == "absolute" else ""
    return {
        "rounds": str(rounds),
        "rate": _rate(rounds, slow=0.07 if p.numeric else 0.04, budget=35),
        "leaves": "31" if p.numeric else "16",
        "objective": objective,
        "columns": _columns(p),
    }


def _xgboost_sizes(p: Profile) -> dict[str, str]:
    rounds = _boosting_rounds(p, cap=400 if p.numeric else 700, cost=1.4)
    rate = _rate(rounds, slow=0.08 if p.numeric else 0.05, budget=32)
    return {"rounds": str(rounds), "rate": rate, "depth": "6" if p.numeric else "5", "columns": _columns(p)}


def _catboost_sizes(p: Profile) -> dict[str, str]:
    rounds = _boosting_rounds(p, cap=500, cost=1.8)
    loss = '        loss_function="MAE",\n' if p.numeric and p.metric.loss == "absolute" else ""
    return {"rounds": str(rounds), "rate": _rate(rounds, slow=0.09, budget=45), "loss": loss}


def _hist_boosting_sizes(p: Profile) -> dict[str, str]:
    rounds = _boosting_rounds(p, cap=400, cost=1.5)
    stops = p.numeric or _can_stratify(p)
    until = "; they stop when an inner tenth of the training rows no longer improves" if stops else ""
    return {
        "rounds": str(rounds), "rate": _rate(rounds, slow=0.07, budget=28), "stopping": str(stops), "until": until
    }  # fmt: skip


def _forest_sizes(p: Profile) -> dict[str, str]:
    rows = min(p.rows, 30_000)
    trees = 200 if rows < 6_000 else 150
    leaf = 1 if len(p.classes) > 15 else 2 if rows < 20_000 else 3
    share = '"sqrt"' if not p.numeric else "0.5" if p.width <= 60 else "0.2"
    weight = '        class_weight="balanced",\n' if p.metric.name in ("balanced_accuracy", "f1_macro") else ""
    return {"trees": str(trees), "leaf": str(leaf), "share": share, "weight": weight}


def _linear_sizes(p: Profile) -> dict[str, str]:
    if p.numeric:
        return {"Linear": "RidgeCV", "settings": "alphas=np.logspace(-2, 3, 11)"}
    strength = "5.0" if len(p.classes) > 15 else "0.5"
    return {"Linear": "LogisticRegression", "settings": f"C={strength}, max_iter=500"}


def _reader_sizes(p: Profile) -> dict[str, str]:
    long = p.text_characters * min(p.rows, 30_000) > 4_000_000
    characters = "(3, 4)" if long else "(2, 5)"
    if p.numeric:
        return {"Linear": "Ridge", "settings": "alpha=1.5", "characters": characters}
    return {"Linear": "LogisticRegression", "settings": "C=10.0, max_iter=300", "characters": characters}


def _tabular(p: Profile, *, many: float, few: float, classes: float | None = None) -> float:
    """Worth by size: with many rows, with few, and with very many classes; less where texts are what matters."""
    worth = few if p.small else many
    if len(p.classes) > 15 and classes is not None:
        worth = classes
    return worth * (0.6 if p.mostly_text else 1.0)


def _is_text(p: Profile, worth: float, mixed: float) -> float:
    if not any(c.words >= 4 or c.kind == "list" for c in p.of("text", "list")):
        return 0.0
    return worth if p.mostly_text else mixed


def _rare(p: Profile, rows: int) -> bool:
    """Has a class fewer rows than that?"""
    return not p.numeric and p.rarest_class < rows


_INNER = "    learn, stop = train_test_split(np.arange(len(y)), test_size=0.1, random_state=seed$stratify)\n$rare"
_RARE = """    lone = ~np.isin(y[stop], y[learn])  # classes so rare that all their rows were held back
    learn, stop = np.append(learn, stop[lone]), stop[~lone]
"""
_CODES = """    categories = x.select_dtypes("category").columns
    x, *others = [frame.assign(**{c: frame[c].cat.codes for c in categories}) for frame in (x, *others)]
"""
_MATRIX = """    numbers = x.select_dtypes("number").columns
    categories = x.select_dtypes("category").columns
    fill = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    levels = OneHotEncoder(handle_unknown="ignore", min_frequency=3)
    matrix = ColumnTransformer([("numbers", fill, numbers), ("categories", levels, categories)])
"""
_MATRIX_IMPORTS = (
    "from sklearn.compose import ColumnTransformer",
    "from sklearn.impute import SimpleImputer",
    "from sklearn.pipeline import make_pipeline",
    "from sklearn.preprocessing import OneHotEncoder, StandardScaler",
)
_WORDS = """    texts = [frame[TEXTS].agg(" ".join, axis=1) for frame in (x, *others)]
    words = TfidfVectorizer(
        ngram_range=(1, 2), min_df=2, sublinear_tf=True, strip_accents="unicode", max_features=80000
    )
"""

_FOREST = """    middle = x.median().fillna(0)
    model = FAMILY$Kind(
        n_estimators=$trees,
        min_samples_leaf=$leaf,
        max_features=$share,
$weight        random_state=seed,
        n_jobs=THREADS,
    )
    model.fit(x.fillna(middle), y)
    return [model.$predict(frame.fillna(middle)) for frame in others]
"""


def _forest(key: str, family: str, about: str, worth: Callable[[Profile], float]) -> Model:
    """Trees that are grown apart and averaged."""
    top = f'def fit_{key}(x, y, others, seed):\n    """{about}"""\n$plain'
    imports = (f"from sklearn.ensemble import {family}$Kind",)
    return Model(
        key, family, "sklearn", imports, top + _CODES + _FOREST.replace("FAMILY", family), worth, _forest_sizes
    )


MODELS: tuple[Model, ...] = (
    Model(
        "lightgbm",
        "LightGBM",
        "lightgbm",
        ("from lightgbm import LGBM$Kind, early_stopping", "from sklearn.model_selection import train_test_split"),
        '''
def fit_lightgbm(x, y, others, seed):
    """Boosted trees, grown leaf by leaf; they stop when an inner tenth of the training rows no longer improves."""
$plain$neutral'''
        + _INNER
        + """    model = LGBM$Kind(
$objective        n_estimators=$rounds,
        learning_rate=$rate,
        num_leaves=$leaves,
        min_child_samples=20,
        subsample=0.8,
        subsample_freq=1,
        colsample_bytree=$columns,
        reg_lambda=1.0,
        random_state=seed,
        n_jobs=THREADS,
        verbose=-1,
    )
    stopping = early_stopping(50, verbose=False)
    model.fit(x.iloc[learn], y[learn], eval_set=[(x.iloc[stop], y[stop])], callbacks=[stopping])
    return [model.$predict(frame) for frame in others]
""",
        lambda p: _tabular(p, many=0.95, few=0.7, classes=0.3),
        _lightgbm_sizes,
        '''
def fit_lightgbm(x, y, others, seed):
    """Boosted trees, few and shallow, as there are few rows."""
$plain$neutral    model = LGBM$Kind(
$objective        n_estimators=150,
        learning_rate=0.04,
        num_leaves=8,
        min_child_samples=10,
        subsample=0.8,
        subsample_freq=1,
        colsample_bytree=0.6,
        reg_lambda=3.0,
        random_state=seed,
        n_jobs=THREADS,
        verbose=-1,
    )
    model.fit(x, y)
    return [model.$predict(frame) for frame in others]
''',
    ),
    Model(
        "catboost",
        "CatBoost",
        "catboost",
        ("from catboost import CatBoost$Kind", "from sklearn.model_selection import train_test_split"),
        '''
def fit_catboost(x, y, others, seed):
    """Boosted symmetric trees; categories go in as they are."""
$plain'''
        + _INNER
        + _CODES
        + """    model = CatBoost$Kind(
$loss        iterations=$rounds,
        learning_rate=$rate,
        depth=6,
        l2_leaf_reg=3.0,
        one_hot_max_size=60,
        max_ctr_complexity=1,
        random_seed=seed,
        thread_count=THREADS,
        allow_writing_files=False,
        verbose=False,
    )
    held = (x.iloc[stop], y[stop])
    model.fit(x.iloc[learn], y[learn], cat_features=list(categories), eval_set=held, early_stopping_rounds=40)
    return [model.$predict(frame) for frame in others]
""",
        lambda p: _tabular(p, many=0.93, few=0.9, classes=0.15),
        _catboost_sizes,
        '''
def fit_catboost(x, y, others, seed):
    """Boosted symmetric trees, few and shallow, as there are few rows; categories go in as they are."""
$plain'''
        + _CODES
        + """    model = CatBoost$Kind(
$loss        iterations=250,
        learning_rate=0.05,
        depth=4,
        l2_leaf_reg=5.0,
        border_count=64,
        one_hot_max_size=20,
        max_ctr_complexity=1,
        random_seed=seed,
        thread_count=THREADS,
        allow_writing_files=False,
        verbose=False,
    )
    model.fit(x, y, cat_features=list(categories))
    return [model.$predict(frame) for frame in others]
""",
    ),
    Model(
        "xgboost",
        "XGBoost",
        "xgboost",
        ("from sklearn.model_selection import train_test_split", "from xgboost import XGB$Kind"),
        '''
def fit_xgboost(x, y, others, seed):
    """Boosted trees, grown level by level; they stop when an inner tenth of the training rows no longer improves."""
$plain$neutral'''
        + _INNER
        + """    model = XGB$Kind(
        n_estimators=$rounds,
        learning_rate=$rate,
        max_depth=$depth,
        min_child_weight=2.0,
        subsample=0.8,
        colsample_bytree=$columns,
        reg_lambda=1.0,
        enable_categorical=True,
        early_stopping_rounds=50,
        random_state=seed,
        n_jobs=THREADS,
    )
    model.fit(x.iloc[learn], y[learn], eval_set=[(x.iloc[stop], y[stop])], verbose=False)
    return [model.$predict(frame) for frame in others]
""",
        lambda p: _tabular(p, many=0.9, few=0.5, classes=0.2),
        _xgboost_sizes,
        '''
def fit_xgboost(x, y, others, seed):
    """Boosted trees, few and shallow, as there are few rows."""
$plain$neutral    model = XGB$Kind(
        n_estimators=150,
        learning_rate=0.05,
        max_depth=3,
        min_child_weight=3.0,
        subsample=0.8,
        colsample_bytree=0.6,
        reg_lambda=3.0,
        enable_categorical=True,
        random_state=seed,
        n_jobs=THREADS,
    )
    model.fit(x, y)
    return [model.$predict(frame) for frame in others]
''',
    ),
    _forest(
        "extra_trees",
        "ExtraTrees",
        "Many deep trees with random cuts, averaged.",
        lambda p: _tabular(p, many=0.6, few=0.8, classes=0.92),
    ),
    _forest(
        "random_forest",
        "RandomForest",
        "Many deep trees on resampled rows, averaged.",
        lambda p: _tabular(p, many=0.4, few=0.75, classes=0.7),
    ),
    Model(
        "hist_boosting",
        "HistGradientBoosting",
        "sklearn",
        ("from sklearn.ensemble import HistGradientBoosting$Kind",),
        '''
def fit_hist_boosting(x, y, others, seed):
    """Boosted trees on binned columns$until."""
$plain    model = HistGradientBoosting$Kind(
        max_iter=$rounds,
        learning_rate=$rate,
        max_leaf_nodes=31,
        min_samples_leaf=20,
        l2_regularization=1.0,
        categorical_features="from_dtype",
        early_stopping=$stopping,
        random_state=seed,
    )
    model.fit(x, y)
    return [model.$predict(frame) for frame in others]
''',
        lambda p: (
            _tabular(p, many=0.55, few=0.45, classes=0.2)
            + (0.0 if p.setting.has("lightgbm") or p.setting.has("xgboost") else 0.35)
        ),
        _hist_boosting_sizes,
    ),
    Model(
        "linear",
        "Regularised linear model",
        "sklearn",
        ("from sklearn.linear_model import $Linear", *_MATRIX_IMPORTS),
        '''
def fit_linear(x, y, others, seed):
    """A linear model with a penalty, on scaled numbers and one column per level."""
'''
        + _MATRIX
        + """    model = make_pipeline(matrix, $Linear($settings))
    model.fit(x, y)
    return [model.$predict(frame) for frame in others]
""",
        lambda p: _tabular(p, many=0.35, few=0.85, classes=0.95),
        _linear_sizes,
    ),
    Model(
        "svm",
        "Support vector machine",
        "sklearn",
        (
            "from sklearn.calibration import CalibratedClassifierCV",
            "from sklearn.svm import SV$Short",
            *_MATRIX_IMPORTS,
        ),
        '''
def fit_svm(x, y, others, seed):
    """A support vector machine with a Gaussian kernel, on scaled numbers and one column per level."""
'''
        + _MATRIX
        + """    model = make_pipeline(matrix, $machine)
    model.fit(x, y)
    return [model.$predict(frame) for frame in others]
""",
        lambda p: 0.0 if p.rows > 4_000 or _rare(p, 5) else _tabular(p, many=0.6, few=0.6, classes=0.85),
        lambda p: (
            {"Short": "R", "machine": "SVR(C=float(np.std(y)) * 3)"}
            if p.numeric
            else {"Short": "C", "machine": "CalibratedClassifierCV(SVC(C=3.0), cv=3, ensemble=False)"}
        ),
    ),
    Model(
        "discriminant",
        "Linear discriminant analysis",
        "sklearn",
        ("from sklearn.discriminant_analysis import LinearDiscriminantAnalysis", *_MATRIX_IMPORTS),
        '''
def fit_discriminant(x, y, others, seed):
    """Gaussian classes with one shrunken covariance, on scaled numbers and one column per level."""
'''
        + _MATRIX.replace("min_frequency=3)", "min_frequency=3, sparse_output=False)")
        + """    model = make_pipeline(matrix, LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"))
    model.fit(x, y)
    return [model.predict_proba(frame) for frame in others]
""",
        lambda p: 0.0 if p.numeric else _tabular(p, many=0.2, few=0.4, classes=0.88),
    ),
    Model(
        "network",
        "Neural network",
        "sklearn",
        ("from sklearn.neural_network import MLP$Kind", *_MATRIX_IMPORTS),
        '''
def fit_network(x, y, others, seed):
    """A small neural network, on scaled numbers and one column per level; it stops early on an inner tenth."""
$before'''
        + _MATRIX
        + """    network = MLP$Kind(
        (96, 48),
        alpha=1e-3,
        learning_rate_init=2e-3,
        max_iter=$rounds,
        early_stopping=True,
        random_state=seed,
    )
    model = make_pipeline(matrix, network)
    model.fit(x, y)
    return [$after for frame in others]
""",
        lambda p: 0.0 if _rare(p, 8) else _tabular(p, many=0.45, few=0.15, classes=0.7),
        lambda p: {
            "rounds": "60" if p.rows < 8_000 else "25",
            "before": "    middle, spread = y.mean(), y.std() or 1.0\n    y = (y - middle) / spread\n"
            if p.numeric
            else "",
            "after": "model.predict(frame) * spread + middle" if p.numeric else "model.predict_proba(frame)",
        },
    ),
    Model(
        "neighbours",
        "Nearest neighbours",
        "sklearn",
        ("from sklearn.neighbors import KNeighbors$Kind", *_MATRIX_IMPORTS),
        '''
def fit_neighbours(x, y, others, seed):
    """The mean of the rows that are most alike, the nearer the heavier."""
'''
        + _MATRIX
        + """    model = make_pipeline(matrix, KNeighbors$Kind($size, weights="distance"))
    model.fit(x, y)
    return [model.$predict(frame) for frame in others]
""",
        lambda p: _tabular(p, many=0.15, few=0.3, classes=0.6),
        lambda p: {"size": "5" if len(p.classes) > 15 else "20"},
    ),
    # --- texts
    Model(
        "reader",
        "TF-IDF reader",
        "sklearn",
        (
            "from scipy.sparse import hstack",
            "from sklearn.feature_extraction.text import TfidfVectorizer",
            "from sklearn.linear_model import $Linear",
        ),
        '''
def fit_reader(x, y, others, seed):
    """A linear model on words, pairs of words and pieces of words, weighted by how rare they are."""
'''
        + _WORDS
        + """    pieces = TfidfVectorizer(
        analyzer="char_wb", ngram_range=$characters, min_df=3, sublinear_tf=True, max_features=120000
    )
    words.fit(texts[0])
    pieces.fit(texts[0])
    first, *rest = [hstack([words.transform(text), pieces.transform(text)]).tocsr() for text in texts]
    model = $Linear($settings).fit(first, y)
    return [model.$predict(matrix) for matrix in rest]
""",
        lambda p: _is_text(p, 0.98, 0.5),
        _reader_sizes,
    ),
    Model(
        "nbsvm",
        "Naive Bayes features with a linear model",
        "sklearn",
        (
            "from scipy.sparse import csr_matrix",
            "from sklearn.feature_extraction.text import TfidfVectorizer",
            "from sklearn.linear_model import LogisticRegression",
        ),
        '''
def fit_nbsvm(x, y, others, seed):
    """One linear model per class on words that are scaled by how much they speak for the class (naive Bayes)."""
'''
        + _WORDS
        + """    first, *rest = [words.fit_transform(texts[0]), *(words.transform(text) for text in texts[1:])]
    outputs = [np.zeros((matrix.shape[0], int(y.max()) + 1)) for matrix in rest]
    for k in range(int(y.max()) + 1):
        inside, outside = first[y == k].sum(axis=0) + 1, first[y != k].sum(axis=0) + 1
        ratio = csr_matrix(np.log((inside / inside.sum()) / (outside / outside.sum())))
        model = LogisticRegression(C=15.0, max_iter=200).fit(first.multiply(ratio).tocsr(), y == k)
        for output, matrix in zip(outputs, rest):
            output[:, k] = model.predict_proba(matrix.multiply(ratio).tocsr())[:, 1]
    return [output / output.sum(axis=1, keepdims=True) for output in outputs]
""",
        lambda p: 0.0 if p.numeric or len(p.classes) > 12 else _is_text(p, 0.93, 0.4),
    ),
    Model(
        "bayes",
        "Complement naive Bayes",
        "sklearn",
        (
            "from sklearn.feature_extraction.text import TfidfVectorizer",
            "from sklearn.naive_bayes import ComplementNB",
        ),
        '''
def fit_bayes(x, y, others, seed):
    """Naive Bayes on the complement of each class, on words and pairs of words."""
'''
        + _WORDS
        + """    first, *rest = [words.fit_transform(texts[0]), *(words.transform(text) for text in texts[1:])]
    model = ComplementNB(alpha=0.3).fit(first, y)
    return [model.predict_proba(matrix) for matrix in rest]
""",
        lambda p: 0.0 if p.numeric else _is_text(p, 0.55, 0.1),
    ),
    Model(
        "margin",
        "Linear support vector machine on pieces of words",
        "sklearn",
        (
            "from sklearn.calibration import CalibratedClassifierCV",
            "from sklearn.feature_extraction.text import TfidfVectorizer",
            "from sklearn.svm import LinearSVC",
        ),
        '''
def fit_margin(x, y, others, seed):
    """A linear support vector machine on pieces of words; its margins are turned into probabilities."""
    texts = [frame[TEXTS].agg(" ".join, axis=1) for frame in (x, *others)]
    pieces = TfidfVectorizer(
        analyzer="char_wb", ngram_range=$characters, min_df=2, sublinear_tf=True, max_features=150000
    )
    first, *rest = [pieces.fit_transform(texts[0]), *(pieces.transform(text) for text in texts[1:])]
    model = CalibratedClassifierCV(LinearSVC(C=1.0), cv=3).fit(first, y)
    return [model.predict_proba(matrix) for matrix in rest]
''',
        lambda p: 0.0 if p.numeric or _rare(p, 8) else _is_text(p, 0.9, 0.3),
        _reader_sizes,
    ),
)
BY_KEY = {model.key: model for model in MODELS}


def catalogue(profile: Profile) -> list[Model]:
    """The models that suit the task and that scripts can import, most promising first."""
    usable = [model for model in MODELS if profile.setting.has(model.package) and model.worth(profile) > 0]
    return sorted(usable, key=lambda model: -model.worth(profile))


def named(name: str, profile: Profile) -> Model | None:
    """The model of the catalogue that a name means: the exact one, else the one that shares most words with it."""
    usable = catalogue(profile)
    wanted = _words(name)
    exact = [model for model in usable if _words(model.name) == wanted or model.key == name]
    if exact:
        return exact[0]
    shared = [(len(wanted & _words(f"{model.name} {model.key} {model.package}")), model) for model in usable]
    best = max(shared, key=lambda pair: pair[0], default=(0, None))
    return best[1] if best[0] else None


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())) - {"sklearn", "model"}


def section(model: Model, profile: Profile) -> str:
    """The model as the body of a section: its function, and its entry in `MODELS`."""
    code = model.small_code if profile.small and model.small_code else model.code
    body = Template(code.strip("\n")).substitute(_substitutes(model, profile))
    return f'{body}\n\n\nMODELS["{model.name}"] = fit_{model.key}'


def imports(model: Model, profile: Profile) -> list[str]:
    """The imports that its section needs."""
    values = _substitutes(model, profile)
    lines = [Template(line).substitute(values) for line in model.imports]
    code = section(model, profile)
    lines = [line.replace(", early_stopping", "") if "early_stopping(" not in code else line for line in lines]
    return [line for line in lines if any(re.search(rf"\b{name}\b", code) for name in imported_names(line))]


def imported_names(line: str) -> list[str]:
    """The names that a `from ... import ...` line brings in."""
    return [name.strip().split(" as ")[-1] for name in line.partition(" import ")[2].split(",")]


def example(model: Model, profile: Profile) -> str:
    """Short code that shows how the model is used, for the retriever."""
    lines = ["import numpy as np", *imports(model, profile), "", section(model, profile).split("\n\n\nMODELS")[0]]
    return "\n".join(
        line.replace("n_jobs=THREADS", "n_jobs=1").replace("thread_count=THREADS", "thread_count=1") for line in lines
    )


def _can_stratify(profile: Profile) -> bool:
    """Has every class rows enough for both sides of a split inside a fold?"""
    rows = min(profile.rows, 30_000) * 0.6
    return not profile.numeric and profile.rarest_class * 0.6 >= 4 and rows * 0.1 > len(profile.classes)


def has_odd_names(profile: Profile) -> bool:
    """Are there names of columns that LightGBM or XGBoost refuses: with signs of their formats, or almost alike?"""
    names = {name for table in (profile.train, *profile.extras) for name in table.columns}
    alike = len({re.sub(r"\s", "_", name) for name in names}) < len(names)
    return alike or any(re.search(r'[\[\]{}<>",:\\]|[^ \S]', name) for name in names)


def _substitutes(model: Model, profile: Profile) -> dict[str, str]:
    has_texts = bool(profile.of("text", "list"))
    plain = '    x, *others = [frame.select_dtypes(["number", "category"]) for frame in (x, *others)]\n'
    neutral = "    x, *others = [frame.set_axis(range(frame.shape[1]), axis=1) for frame in (x, *others)]\n"
    can_stratify = _can_stratify(profile)
    return {
        "Kind": "Regressor" if profile.numeric else "Classifier",
        "predict": "predict" if profile.numeric else "predict_proba",
        "stratify": ", stratify=y" if can_stratify else "",
        "rare": "" if can_stratify or profile.numeric else _RARE,
        "plain": plain if has_texts else "",
        "neutral": neutral if has_odd_names(profile) else "",
        **model.sizes(profile),
    }
