"""What calls in a script learn something from rows: estimators, statistics, resampling; and what only reshapes them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mle_star.engineer.rules.flow import Value, Walker

TRANSFORMERS = re.compile(
    r"Scaler|Imputer|PCA|SVD|Vectorizer|SelectK|SelectFrom|SelectPercentile|RFE|VarianceThreshold|Encoder|Normalizer|"
    r"PowerTransformer|QuantileTransformer|KBinsDiscretizer|PolynomialFeatures|NMF|KMeans|ColumnTransformer|"
    r"FunctionTransformer|UMAP|TSNE|ICA|Isomap|Binarizer|Hasher|preprocessor|transformer|scaler|imputer|encoder|"
    r"vectori[sz]er|tfidf|pca|svd|selector"
)
HARMLESS = re.compile(
    r"LabelEncoder|LabelBinarizer|FunctionTransformer|HashingVectorizer|FeatureHasher|Normalizer\b|PolynomialFeatures"
)
"""What learns nothing from the features' values that could help a model cheat."""
MODELS = re.compile(
    r"Classifier|Regressor|Regression|Ridge|Lasso|ElasticNet|SV[CR]|Bayes|NB\b|Booster|Pipeline|GridSearch|"
    r"RandomizedSearch|model|clf|reg\b|estimator|pipe|lgb|xgb|cat"
)
RESAMPLERS = re.compile(r"^fit_resample$|^resample$")
STATISTICS = {
    "mean", "median", "mode", "std", "var", "quantile", "min", "max", "sum", "value_counts", "rank", "corr", "corrwith",
    "agg", "aggregate", "nanmean", "nanmedian", "nanstd", "percentile", "skew",
}  # fmt: skip
LEARNING_FUNCTIONS = {
    "qcut", "mutual_info_classif", "mutual_info_regression", "f_classif", "f_regression", "chi2", "scale",
    "minmax_scale", "robust_scale", "power_transform", "quantile_transform", "zscore",
}  # fmt: skip


def judge_call(
    walker: Walker, node: ast.Call, name: str, receiver: Value, arguments: list[Value],
    keywords: dict[str, Value], env: dict[str, Value],
) -> Value:  # fmt: skip
    """What a call gives back; if it learns from rows, the walker's trace says so."""
    from mle_star.engineer.rules.flow import FOLD_MAKERS, INNER_CV, Value

    given = Value()
    for value in (*arguments, *keywords.values()):
        given = given.joined(Value(value.rows | (value.first or frozenset()), index=value.index, columns=value.columns))
    if FOLD_MAKERS.search(name):
        return Value(learner="folds")
    if name == "split" and (receiver.learner == "folds" or "fold" in ast.unparse(node.func).lower()):
        return Value(index=frozenset({"fit", "held"}))
    if name in ("list", "enumerate", "tuple", "sorted", "zip", "tqdm", "reversed"):
        return arguments[-1] if len(arguments) == 1 else given
    if name in INNER_CV and arguments[1:]:
        record(walker, "inner cv", arguments[1])
        return Value()
    if receiver.learner == "model" and name == "fit" and not arguments and keywords:
        arguments = [next(iter(keywords.values()))]
    if name in ("fit", "fit_transform", "fit_predict", "partial_fit") or RESAMPLERS.match(name):
        return _fit(walker, node, name, receiver, arguments, given)
    grouped = "groupby(" in ast.unparse(node.func)
    if not grouped and name in (
        "transform",
        "predict",
        "predict_proba",
        "decision_function",
        "inverse_transform",
        "score_samples",
    ):
        return Value(given.rows, index=given.index)
    if name[:1].isupper() or MODELS.fullmatch(name):
        return _made(name, given)
    if name in STATISTICS or name in LEARNING_FUNCTIONS or name == "transform":
        _statistic(walker, node, name, receiver, given)
        return Value(receiver.rows | given.rows, learner="statistic", columns=receiver.columns)
    if name == "concat":
        first = arguments[0] if arguments else given
        rows = first.rows | (first.first or frozenset())
        return Value(rows)
    if name in ("len", "range", "print", "isinstance", "type", "int", "float", "str", "nunique", "unique"):
        return Value()
    index = receiver.index if receiver.rows else receiver.index | given.index
    learner = "" if receiver.rows else receiver.learner
    return Value(receiver.rows | given.rows, receiver.first, index, learner, receiver.columns)


def record(walker: Walker, kind: str, value: Value, detail: str = "") -> None:
    """Add an event to the trace."""
    from mle_star.engineer.rules.flow import Event

    rows = value.rows | (value.first or frozenset())
    if rows:
        walker.trace.events.append(Event(kind, rows, walker.statement, detail))


def _made(name: str, given: Value) -> Value:
    """A class was called: a transformer, a model, or a container of rows."""
    from mle_star.engineer.rules.flow import Value

    if HARMLESS.search(name):
        return Value(learner="harmless")
    if given.learner == "harmless":
        return Value(learner="transform")
    if TRANSFORMERS.search(name):
        return Value(learner="transform")
    if name in ("DataFrame", "Series", "Categorical", "Index", "csr_matrix"):
        return Value(given.rows, index=given.index)
    return Value(learner="model")


def _fit(walker: Walker, node: ast.Call, name: str, receiver: Value, arguments: list[Value], given: Value) -> Value:
    """Something is fitted: what it is decides what kind of event this is."""
    from mle_star.engineer.rules.flow import Value

    learned = arguments[0] if arguments else given
    text = ast.unparse(node.func)
    if RESAMPLERS.match(name):
        record(walker, "resample", learned)
        return Value(learned.rows, index=learned.index)
    kind = receiver.learner if receiver.learner in ("transform", "model", "harmless") else ""
    if not kind:
        kind = "harmless" if HARMLESS.search(text) else "transform" if TRANSFORMERS.search(text) else "model"
    if kind == "transform" and _is_target(node):
        kind = "harmless"
    if name == "fit_transform" and kind == "model":
        kind = "transform"
    if kind in ("transform", "model"):
        record(walker, kind, learned, name)
    if name == "fit":
        return Value(learner=kind)
    return Value(learned.rows, index=learned.index)


def _is_target(node: ast.Call) -> bool:
    """Is only the target fitted, as by an encoder of labels?"""
    text = ast.unparse(node.args[0]) if node.args else ""
    return (
        re.fullmatch(r"y\w*|\w*target\w*|labels?|y\w*\.values|.*\[(TARGET|target\w*|'(target|label)')\].*", text)
        is not None
    )


def _statistic(walker: Walker, node: ast.Call, name: str, receiver: Value, given: Value) -> None:
    """A number was computed over rows. Across columns (`axis=1`) nothing is learned."""
    text = ast.unparse(node)
    if re.search(r"axis=(1|'columns')", text) or "rolling(" in text or "expanding(" in text:
        return
    grouped = "groupby(" in text
    kind = "group statistic" if grouped else "ranking" if name in ("rank", "qcut", *LEARNING_FUNCTIONS) else "statistic"
    if name in ("corr", "corrwith"):
        kind = "choice"
    value = receiver.joined(given) if not receiver.rows else receiver
    record(walker, kind, value, text)
