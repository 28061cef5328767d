"""How the predictions of several models become one.

`known` are predictions for rows with the truth `y`, made out of fold: weights are chosen on them.
"""

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Score
from mle_star.engineer.parts.describe import Blend

Predictions = dict[str, np.ndarray]

# --- one prediction of several ---------------------------------------------------------------------------


def combine_mean(y: np.ndarray, known: Predictions, others: list[Predictions], scorer: Score) -> list[np.ndarray]:
    """Take the plain mean of the predictions. With few rows, weights that are learned do more harm than good."""
    return [np.mean(list(other.values()), axis=0) for other in others]


def combine_weights(y: np.ndarray, known: Predictions, others: list[Predictions], scorer: Score) -> list[np.ndarray]:
    """Weigh the models by their out-of-fold predictions. A plain mean treats the strong and the weak alike; weights
    found on held-out rows do not.

    Again and again the model is added that helps the blend most on (at most 6000 of) `known`.
    """
    rows = np.random.default_rng(0).permutation(len(y))[:6000]
    times, total = dict.fromkeys(known, 0), np.zeros_like(next(iter(known.values()))[rows])
    for size in range(1, 16):
        best = max(known, key=lambda name: scorer(y[rows], (total + known[name][rows]) / size))
        total = total + known[best][rows]
        times[best] += 1
    return [np.sum([times[name] * other[name] for name in times], axis=0) / 15 for other in others]


def combine_careful(y: np.ndarray, known: Predictions, others: list[Predictions], scorer: Score) -> list[np.ndarray]:
    """Weigh the models, half way to the plain mean. Fitted weights overrate what was lucky on the validation rows; half
    way back they keep most of the gain."""
    weighted, plain = combine_weights(y, known, others, scorer), combine_mean(y, known, others, scorer)
    return [(a + b) / 2 for a, b in zip(weighted, plain, strict=True)]


def combine_stack(y: np.ndarray, known: Predictions, others: list[Predictions], scorer: Score) -> list[np.ndarray]:
    """Stack the models with a linear model on top. A linear model on out-of-fold predictions learns how much to trust
    each, and corrects what they share.

    A linear model of chances (as log-odds) has half of the word; the mean has the other.
    """
    from sklearn.linear_model import LinearRegression, LogisticRegression

    def table(given: Predictions) -> Any:
        return np.hstack([np.log(np.clip(p, 1e-5, 1) / np.clip(1 - p, 1e-5, 1)) for p in given.values()])

    plain = combine_mean(y, known, others, scorer)
    if next(iter(known.values())).ndim == 1:
        line = LinearRegression(positive=True).fit(np.column_stack(list(known.values())), y)
        return [line.predict(np.column_stack(list(other.values()))) for other in others]
    model = LogisticRegression(C=0.05, max_iter=300).fit(table(known), y)
    stacked = []
    for other, mean in zip(others, plain, strict=True):
        full = np.zeros_like(mean)
        full[:, model.classes_] = model.predict_proba(table(other))
        stacked.append((full + mean) / 2)
    return stacked


def combine_ranks(y: np.ndarray, known: Predictions, others: list[Predictions], scorer: Score) -> list[np.ndarray]:
    """Average the ranks of the predictions. The metric looks at the order alone, and ranks make the scales of different
    models comparable.

    A rank is the place among the predictions for `known`.
    """
    order = {name: np.sort(p[:, -1]) for name, p in known.items()}
    spots = [[np.searchsorted(order[name], p[:, -1]) / len(y) for name, p in other.items()] for other in others]
    return [np.column_stack([1 - mean, mean]) for mean in (np.mean(each, axis=0) for each in spots)]


def combine_geometric(y: np.ndarray, known: Predictions, others: list[Predictions], scorer: Score) -> list[np.ndarray]:
    """Take the geometric mean of the chances. On the log scale a confident model counts for more, which suits losses on
    the log scale."""
    means = [np.exp(np.mean([np.log(np.clip(p, 1e-6, 1)) for p in other.values()], axis=0)) for other in others]
    return [mean / mean.sum(axis=1, keepdims=True) for mean in means]


def combine_median(y: np.ndarray, known: Predictions, others: list[Predictions], scorer: Score) -> list[np.ndarray]:
    """Take the median of the predictions. The median shrugs off a model that is far off on a row."""
    return [np.median(list(other.values()), axis=0) for other in others]


BY_ORDER = ("roc_auc", "gini", "average_precision")
BLENDS = (
    Blend(combine_weights, lambda p: 0.85 if p.rows > 300 else 0.4),
    Blend(combine_careful, lambda p: 0.8),
    Blend(combine_stack, lambda p: 0.0 if p.class_count > 20 else 0.6 if p.rows > 1000 else 0.2),
    Blend(combine_ranks, lambda p: 0.65 if p.kind == "binary" and p.recipe.metric.name in BY_ORDER else 0.0),
    Blend(
        combine_geometric,
        lambda p: 0.0 if p.kind == "regression" else 0.5 if p.recipe.metric.name == "log_loss" else 0.3,
    ),
    Blend(combine_median, lambda p: 0.3 if p.kind == "regression" and p.recipe.loss == "absolute" else 0.15),
    Blend(combine_mean, lambda p: 0.3 if p.small else 0.1),
)
