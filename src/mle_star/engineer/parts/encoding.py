"""The columns that every model gets: numbers as they are, categories by number, learned from the training rows."""

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows, Settings, fit_predict


def encode(frames: list[pd.DataFrame], numbers: list[str], categories: list[str]) -> list[pd.DataFrame]:
    """Numbers and categories; levels that are rare in the first frame, or new, count as missing."""
    kept = list(frames[0][numbers].dropna(axis=1, how="all"))
    small = len(kept) > 300 or len(kept) * len(frames[0]) > 20_000_000
    built = [frame[kept].astype("float32" if small else "float64") for frame in frames]
    for name in categories:
        counts = frames[0][name].value_counts()
        levels = list(counts[counts >= 2].index[:250]) or ["none"]  # some models refuse a category without any
        for number, frame in enumerate(frames):
            known = frame[name].where(frame[name].isin(levels))
            built[number] = built[number].assign(**{name: pd.Categorical(known, categories=levels)})
    return built


def build_features(
    fit: Rows, y: np.ndarray, others: list[Rows], columns: Settings, steps: Settings, settings: Settings, job: Job
) -> tuple[list[Rows], dict[str, list[str]]]:
    """The features of `fit` and of `others`, learned from `fit` alone; and which columns came from which step."""
    rows = [fit, *others]
    made = [encode([part.frame for part in rows], columns["numbers"], columns["categories"])]
    origin: dict[str, list[str]] = dict(columns.get("steps", {}))
    for name, step in steps.items():
        made.append([as_table(table, name) for table in step(rows, y, settings[name], job)])
        origin[name] = [str(column) for column in made[-1][0].columns]
    built = []
    for part, *pieces in zip(rows, *made, strict=True):
        frame = pd.concat([piece.set_axis(part.frame.index) for piece in pieces], axis=1)
        built.append(Rows(frame, part.words))
    return built, origin


def as_table(made: Any, name: str) -> pd.DataFrame:
    """What a step has made as a table: columns of an array are numbered."""
    table = pd.DataFrame(made)
    return table.add_prefix(f"{name} ") if isinstance(made, np.ndarray) else table


def cross_fitted(model: Any, tables: list[Any], truth: np.ndarray, folds: int, job: Job) -> list[np.ndarray]:
    """Predictions for each table by a model of the first: for that one's own rows by models that have not seen them."""
    from sklearn.model_selection import KFold

    first, *others = tables
    own = np.zeros(truth.shape)
    for fit, held in KFold(folds, shuffle=True, random_state=job.seed).split(first):
        own[held] = job.memory.hold(model.fit, first[fit], truth[fit]).predict(first[held])
    model = job.memory.hold(model.fit, first, truth)
    return [own, *(model.predict(table) for table in others)]


def without(rows: Rows, names: list[str]) -> Rows:
    """The rows without some of their columns."""
    return Rows(rows.frame.drop(columns=[name for name in names if name in rows.frame]), rows.words) if names else rows


def as_codes(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as numbers, a missing one as -1; column names that every library takes."""
    codes = {name: frame[name].cat.codes.astype("float32") for name in frame.select_dtypes("category")}
    return with_plain_names(frame.assign(**codes))


def as_ranks(frames: list[pd.DataFrame]) -> list[np.ndarray]:
    """Every number as its place among those of the first frame, 0 to 1, so that a cut at random is one among the rows
    however long a tail is; a missing one lies below."""
    made: list[np.ndarray] = [np.full(frame.shape, -0.1, dtype="float32") for frame in frames]
    for place, name in enumerate(frames[0].columns):
        known = np.sort(frames[0][name].dropna().to_numpy())
        known = known[np.linspace(0, len(known) - 1, min(len(known), 1000)).astype(int)]
        for ranks, frame in zip(made, frames, strict=True):
            cells = frame[name].to_numpy()
            given = ~np.isnan(cells)
            ranks[given, place] = np.searchsorted(known, cells[given]) / max(len(known), 1)
    return made


def with_short_tails(frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Numbers with a long tail on a scale that is linear in the middle and logarithmic beyond."""
    numbers = frames[0].select_dtypes("number")
    if not numbers.shape[1]:
        return frames
    low, middle, high = (numbers.quantile(share) for share in (0.25, 0.5, 0.75))
    width, reach = high - low, (numbers - middle).abs().max()
    long = [name for name in numbers if 0 < 20 * width[name] < reach[name]]
    return [frame.assign(**np.arcsinh((frame[long] - middle[long]) / width[long])) for frame in frames]


def with_plain_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Numbered column names, for libraries that refuse some characters."""
    return frame.set_axis([f"c{number}" for number in range(frame.shape[1])], axis=1)


def as_matrix(fit: Rows, others: list[Rows], *, bins: int = 0, words: bool = True) -> list[Any]:
    """A matrix for linear models: scaled numbers, their bins, a column for each level, and the weighted words."""
    from scipy import sparse
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, StandardScaler

    frames = with_short_tails([part.frame for part in (fit, *others)])
    numbers, levels = list(fit.frame.select_dtypes("number")), list(fit.frame.select_dtypes("category"))
    filled = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    parts: list[Any] = [("numbers", make_pipeline(filled, StandardScaler()), numbers)]
    if levels:
        parts.append(("levels", OneHotEncoder(handle_unknown="ignore", min_frequency=3), levels))
    many = [name for name in numbers if frames[0][name].nunique() > bins]
    if bins and many:
        cut = KBinsDiscretizer(bins, encode="onehot", strategy="quantile", quantile_method="averaged_inverted_cdf")
        parts.append(("bins", make_pipeline(SimpleImputer(strategy="median"), cut), many))
    matrices: list[Any] = [None] * (1 + len(others))
    if numbers or levels:
        shaped = ColumnTransformer(parts, sparse_threshold=0.3).fit(frames[0])
        matrices = [shaped.transform(frame) for frame in frames]
        matrices = [np.clip(matrix, -8, 8) if isinstance(matrix, np.ndarray) else matrix for matrix in matrices]
    if words and fit.words is not None:
        weighted = weigh_words(fit.words, [part.words for part in others])
        if numbers or levels:
            pairs = zip(matrices, weighted, strict=True)
            # of about the size of the words, without which solvers take many times as long
            matrices = [sparse.hstack([0.2 * sparse.csr_matrix(a), b]).tocsr() for a, b in pairs]
        else:
            matrices = weighted
    return matrices


def fit_logistic(tables: list[Any], y: np.ndarray, strength: float, rounds: int, job: Job) -> list[np.ndarray]:
    """Chances by logistic regression; on sparse matrices each class against the rest, which is much quicker."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    count = int(y.max()) + 1
    if not sparse.issparse(tables[0]) or count > 60:
        return fit_predict(LogisticRegression(C=strength, max_iter=rounds, tol=1e-3).fit, tables, y, job)
    return fit_each_class(y, lambda label: tables, strength, rounds, job)


def fit_scaled(fit: Any, tables: list[Any], y: np.ndarray, job: Job, *more: Any) -> list[np.ndarray]:
    """Numbers by a model that learns them around 0 and with a spread of 1."""
    middle, spread = float(np.mean(y)), float(np.std(y)) or 1.0
    return [p * spread + middle for p in fit_predict(fit, tables, (y - middle) / spread, job, *more)]


def fit_each_class(y: np.ndarray, parts_for: Any, strength: float, rounds: int, job: Job) -> list[np.ndarray]:
    """Chances by a logistic regression for each class against the rest, on sparse matrices that may differ by class."""
    from sklearn.linear_model import LogisticRegression

    count, chances = int(y.max()) + 1, list[np.ndarray]()
    for label in [1] if count == 2 else range(count):
        matrix, *others = parts_for(label)
        chances = chances or [np.zeros((part.shape[0], count)) for part in others]
        model = LogisticRegression(C=strength, solver="liblinear", dual=True, max_iter=rounds, tol=0.01, random_state=0)
        model = job.memory.hold(model.fit, matrix, y == label)
        for chance, part in zip(chances, others, strict=True):
            chance[:, label] = model.predict_proba(part)[:, 1]
            if count == 2:
                chance[:, 0] = 1 - chance[:, 1]
    return [chance / np.maximum(chance.sum(axis=1, keepdims=True), 1e-9) for chance in chances]


def weigh_words(fit: Any, others: list[Any]) -> list[Any]:
    """Counts of words as TF-IDF: dampened, rarer words heavier, rows of length one; words seen once are left out."""
    from scipy import sparse
    from sklearn.preprocessing import normalize

    seen = np.bincount(fit.indices, minlength=fit.shape[1])
    kept = np.flatnonzero(seen >= 2)
    weight = np.log((1 + fit.shape[0]) / (1 + seen[kept])) + 1
    weighted = []
    for counts in (fit, *others):
        matrix = counts[:, kept].astype("float32")
        matrix.data = 1 + np.log(matrix.data)
        weighted.append(normalize(matrix @ sparse.diags(weight.astype("float32"))).tocsr())
    return weighted
