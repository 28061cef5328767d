"""The columns that every model gets: numbers as they are, categories by number, learned from the training rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows


def encode(frames: list[pd.DataFrame], numbers: list[str], categories: list[str]) -> list[pd.DataFrame]:
    """Numbers and categories; levels that are rare in the first frame, or new, count as missing."""
    told = frames[0][numbers].notna().any()
    kept = [name for name in numbers if told[name]]
    built = [frame[kept].astype("float32" if len(kept) > 300 else "float64") for frame in frames]
    for name in categories:
        counts = frames[0][name].value_counts()
        levels = list(counts[counts >= 2].index[:250])
        for number, frame in enumerate(frames):
            built[number] = built[number].assign(**{name: pd.Categorical(frame[name], categories=levels)})
    return built


def build_features(
    fit: Rows,
    y: np.ndarray,
    others: list[Rows],
    columns: dict[str, Any],
    steps: dict[str, Any],
    settings: dict[str, Any],
    job: Job,
) -> tuple[list[Rows], dict[str, list[str]]]:
    """The features of `fit` and of `others`, learned from `fit` alone; and which columns came from which step."""
    rows = [fit, *others]
    made = [encode([part.frame for part in rows], columns["numbers"], columns["categories"])]
    origin: dict[str, list[str]] = dict(columns.get("steps", {}))
    for name, step in steps.items():
        added = step(rows, y, settings[name], job)
        origin[name] = [str(column) for column in added[0].columns]
        made.append(added)
    frames = [
        pd.concat([piece.set_axis(part.frame.index) for piece in pieces], axis=1)
        for part, *pieces in zip(rows, *made, strict=True)
    ]
    return [Rows(frame, part.words) for frame, part in zip(frames, rows, strict=True)], origin


def without(rows: Rows, names: list[str]) -> Rows:
    """The rows without some of their columns."""
    return Rows(rows.frame.drop(columns=[name for name in names if name in rows.frame]), rows.words) if names else rows


def as_codes(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as numbers, a missing one as -1; column names that every library takes."""
    codes = {name: frame[name].cat.codes.astype("float32") for name in frame.select_dtypes("category")}
    return frame.assign(**codes).set_axis([f"c{number}" for number in range(frame.shape[1])], axis=1)


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

    numbers, levels = list(fit.frame.select_dtypes("number")), list(fit.frame.select_dtypes("category"))
    filled = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    parts: list[Any] = [("numbers", make_pipeline(filled, StandardScaler()), numbers)]
    if levels:
        parts.append(("levels", OneHotEncoder(handle_unknown="ignore", min_frequency=3), levels))
    many = [name for name in numbers if fit.frame[name].nunique() > bins]
    if bins and many:
        cut = KBinsDiscretizer(bins, encode="onehot", strategy="quantile", quantile_method="averaged_inverted_cdf")
        parts.append(("bins", make_pipeline(SimpleImputer(strategy="median"), cut), many))
    matrices: list[Any] = [None] * (1 + len(others))
    if numbers or levels:
        shaped = ColumnTransformer(parts, sparse_threshold=0.3).fit(fit.frame)
        matrices = [shaped.transform(part.frame) for part in (fit, *others)]
        matrices = [np.clip(matrix, -8, 8) if isinstance(matrix, np.ndarray) else matrix for matrix in matrices]
    if words and fit.words is not None:
        weighted = weigh_words(fit.words, [part.words for part in others])
        if numbers or levels:
            pairs = zip(matrices, weighted, strict=True)
            matrices = [sparse.hstack([sparse.csr_matrix(a), b]).tocsr() for a, b in pairs]
        else:
            matrices = weighted
    return matrices


def fit_logistic(matrix: Any, y: np.ndarray, asked: list[Any], strength: float, rounds: int) -> list[np.ndarray]:
    """Chances by logistic regression; on sparse matrices each class against the rest, which is much quicker."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    count = int(y.max()) + 1
    if not sparse.issparse(matrix) or count > 60:
        model = LogisticRegression(C=strength, max_iter=rounds, tol=1e-3).fit(matrix, y)
        return [model.predict_proba(part) for part in asked]
    chances = [np.zeros((part.shape[0], count)) for part in asked]
    for label in [1] if count == 2 else range(count):
        model = LogisticRegression(C=strength, solver="liblinear", dual=True, max_iter=rounds, tol=0.01, random_state=0)
        model.fit(matrix, y == label)
        for chance, part in zip(chances, asked, strict=True):
            chance[:, label] = model.predict_proba(part)[:, 1]
    if count == 2:
        for chance in chances:
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
