"""The metrics as scripts compute them: `y` are class numbers or numbers, `p` chances, class numbers or numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mle_star.engineer.parts.blends import deciding

AnswerKind = Literal["chances", "label", "grade", "number", "ranking", "set"]


def average_precision(y: np.ndarray, p: np.ndarray) -> float:
    """Average precision; of more than two classes the mean."""
    from sklearn.metrics import average_precision_score

    return float(
        average_precision_score(y, p[:, 1]) if p.shape[1] == 2 else average_precision_score(np.eye(p.shape[1])[y], p)
    )


def roc_auc(y: np.ndarray, p: np.ndarray) -> float:
    """Area under the ROC curve; of more than two classes the mean, each against the rest."""
    from sklearn.metrics import roc_auc_score

    if p.shape[1] == 2:
        return float(roc_auc_score(y, p[:, 1])) if len(np.unique(y)) == 2 else 0.5
    chances = p / np.maximum(p.sum(axis=1, keepdims=True), 1e-9)
    both = [k for k in range(p.shape[1]) if 0 < np.sum(y == k) < len(y)]
    return float(np.mean([roc_auc_score(y == k, chances[:, k]) for k in both])) if both else 0.5


def gini(y: np.ndarray, p: np.ndarray) -> float:
    """Twice the area under the ROC curve, less one."""
    from sklearn.metrics import roc_auc_score

    return float(2 * roc_auc_score(y, p[:, 1]) - 1)


def gini_of_amounts(y: np.ndarray, p: np.ndarray) -> float:
    """How well the answers sort the truth, against its own order."""

    def area(order: np.ndarray) -> float:
        gained = np.cumsum(y[order]) / y.sum()
        return float((gained - np.arange(1, len(y) + 1) / len(y)).sum())

    best = area(np.argsort(-y, kind="stable")) if y.sum() else 0.0
    return area(np.argsort(-p, kind="stable")) / best if best else 0.0


def log_loss(y: np.ndarray, p: np.ndarray) -> float:
    """The mean negative logarithm of the true class's chance."""
    chances = np.clip(p, 1e-6, 1)
    chances = chances / chances.sum(axis=1, keepdims=True)
    return float(-np.mean(np.log(chances[np.arange(len(y)), y])))


def brier_score(y: np.ndarray, p: np.ndarray) -> float:
    """The squared distance of the chances from the truth."""
    return float(
        np.mean((p[:, 1] - y) ** 2) if p.shape[1] == 2 else np.mean(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1))
    )


def top_3_accuracy(y: np.ndarray, p: np.ndarray) -> float:
    """Is the truth among the three most probable classes?"""
    return float(np.mean((np.argsort(-p, axis=1)[:, :3] == y[:, None]).any(axis=1)))


def top_5_accuracy(y: np.ndarray, p: np.ndarray) -> float:
    """Is the truth among the five most probable classes?"""
    return float(np.mean((np.argsort(-p, axis=1)[:, :5] == y[:, None]).any(axis=1)))


def accuracy(y: np.ndarray, p: np.ndarray) -> float:
    """The share of right answers."""
    return float(np.mean(y == p))


def error_rate(y: np.ndarray, p: np.ndarray) -> float:
    """The share of wrong answers."""
    return float(np.mean(y != p))


def balanced_accuracy(y: np.ndarray, p: np.ndarray) -> float:
    """The mean over the classes of the share that is found."""
    return float(np.mean([np.mean(p[y == k] == k) for k in np.unique(y)]))


def f_score(y: np.ndarray, p: np.ndarray, beta: float, average: str = "") -> float:
    """F of class 1, or of the classes in `y` by their mean, plain or weighted by their size."""
    size = int(max(y.max(), p.max())) + 1
    average = average or ("class 1" if size <= 2 else "macro")
    hits, truth, said = (np.bincount(rows, minlength=max(size, 2)) for rows in (y[y == p], y, p))
    figures = (1 + beta**2) * hits / np.maximum(beta**2 * truth + said, 1)
    if average == "class 1":
        return float(figures[1])
    return float(np.average(figures[truth > 0], weights=truth[truth > 0] if average == "weighted" else None))


def f1(y: np.ndarray, p: np.ndarray) -> float:
    """F1 of class 1; of more than two classes the mean."""
    return f_score(y, p, 1.0)


def f1_macro(y: np.ndarray, p: np.ndarray) -> float:
    """The mean of the F1 of all classes."""
    return f_score(y, p, 1.0, "macro")


def f1_micro(y: np.ndarray, p: np.ndarray) -> float:
    """F1 over all answers together."""
    return float(np.mean(y == p))


def f1_weighted(y: np.ndarray, p: np.ndarray) -> float:
    """The mean of the F1 of all classes, weighted by their size."""
    return f_score(y, p, 1.0, "weighted")


def f2(y: np.ndarray, p: np.ndarray) -> float:
    """As F1, recall counting more."""
    return f_score(y, p, 2.0)


def f_half(y: np.ndarray, p: np.ndarray) -> float:
    """As F1, precision counting more."""
    return f_score(y, p, 0.5)


def precision(y: np.ndarray, p: np.ndarray) -> float:
    """Of the rows that are said to be of class 1, the share that is; of more than two classes the mean."""
    from sklearn.metrics import precision_score

    average = "binary" if max(y.max(), p.max()) <= 1 else "macro"
    return float(precision_score(y, p, average=average, zero_division=0))


def recall(y: np.ndarray, p: np.ndarray) -> float:
    """Of the rows of class 1, the share that is found; of more than two classes the mean."""
    from sklearn.metrics import recall_score

    average = "binary" if max(y.max(), p.max()) <= 1 else "macro"
    return float(recall_score(y, p, average=average, zero_division=0))


def matthews_corrcoef(y: np.ndarray, p: np.ndarray) -> float:
    """The correlation of truth and answers."""
    from sklearn import metrics

    return float(metrics.matthews_corrcoef(y, p)) if len({*y.tolist(), *p.tolist()}) > 1 else 0.0


def cohen_kappa(y: np.ndarray, p: np.ndarray) -> float:
    """Agreement beyond chance."""
    from sklearn.metrics import cohen_kappa_score

    return float(cohen_kappa_score(y, p))


def quadratic_weighted_kappa(y: np.ndarray, p: np.ndarray) -> float:
    """Agreement beyond chance, distant grades weighing more."""
    from sklearn.metrics import cohen_kappa_score

    return float(np.nan_to_num(cohen_kappa_score(y, p, weights="quadratic")))


def rmse(y: np.ndarray, p: np.ndarray) -> float:
    """The root of the mean squared error."""
    return float(np.sqrt(np.mean((y - p) ** 2)))


def mse(y: np.ndarray, p: np.ndarray) -> float:
    """The mean squared error."""
    return float(np.mean((y - p) ** 2))


def rmsle(y: np.ndarray, p: np.ndarray) -> float:
    """The root of the mean squared error of logarithms."""
    return float(np.sqrt(np.mean((np.log1p(y) - np.log1p(np.clip(p, 0, None))) ** 2)))


def msle(y: np.ndarray, p: np.ndarray) -> float:
    """The mean squared error of logarithms."""
    return float(np.mean((np.log1p(y) - np.log1p(np.clip(p, 0, None))) ** 2))


def mae(y: np.ndarray, p: np.ndarray) -> float:
    """The mean absolute error."""
    return float(np.mean(np.abs(y - p)))


def median_absolute_error(y: np.ndarray, p: np.ndarray) -> float:
    """The median absolute error."""
    return float(np.median(np.abs(y - p)))


def max_error(y: np.ndarray, p: np.ndarray) -> float:
    """The largest error."""
    return float(np.max(np.abs(y - p)))


def pinball_loss(y: np.ndarray, p: np.ndarray) -> float:
    """Half of the mean absolute error."""
    return float(np.mean(np.abs(y - p)) / 2)


def mape(y: np.ndarray, p: np.ndarray) -> float:
    """The mean error in proportion to the truth."""
    given = y != 0
    return float(np.mean(np.abs(y[given] - p[given]) / np.abs(y[given])))


def smape(y: np.ndarray, p: np.ndarray) -> float:
    """The mean error in proportion to truth and answer, in percent."""
    return float(np.mean(200 * np.abs(y - p) / np.maximum(np.abs(y) + np.abs(p), 1e-9)))


def wape(y: np.ndarray, p: np.ndarray) -> float:
    """The sum of errors in proportion to the sum of the truth."""
    return float(np.sum(np.abs(y - p)) / np.sum(np.abs(y)))


def rmspe(y: np.ndarray, p: np.ndarray) -> float:
    """The root of the mean squared error in proportion to the truth."""
    given = y != 0
    return float(np.sqrt(np.mean(((y[given] - p[given]) / y[given]) ** 2)))


def mean_poisson_deviance(y: np.ndarray, p: np.ndarray) -> float:
    """The deviance of counts."""
    from sklearn import metrics

    return float(metrics.mean_poisson_deviance(y, np.clip(p, 1e-9, None)))


def mean_gamma_deviance(y: np.ndarray, p: np.ndarray) -> float:
    """The deviance of positive amounts."""
    from sklearn import metrics

    return float(metrics.mean_gamma_deviance(y, np.clip(p, 1e-9, None)))


def r2(y: np.ndarray, p: np.ndarray) -> float:
    """The share of the variance that is explained."""
    return float(1 - np.sum((y - p) ** 2) / max(float(np.sum((y - y.mean()) ** 2)), 1e-12))


def explained_variance(y: np.ndarray, p: np.ndarray) -> float:
    """The share of the variance that is explained, but for a constant."""
    return float(1 - np.var(y - p) / max(float(np.var(y)), 1e-12))


def pearson(y: np.ndarray, p: np.ndarray) -> float:
    """The correlation of truth and answers."""
    return float(np.nan_to_num(np.corrcoef(y, p)[0, 1]))


def spearman(y: np.ndarray, p: np.ndarray) -> float:
    """The correlation of the ranks."""
    from scipy.stats import spearmanr

    return float(np.nan_to_num(spearmanr(y, p)[0]))


def kendall(y: np.ndarray, p: np.ndarray) -> float:
    """The agreement of the order."""
    from scipy.stats import kendalltau

    return float(np.nan_to_num(kendalltau(y, p)[0]))


def map_at_3(y: np.ndarray, p: np.ndarray) -> float:
    """The mean of one over the truth's place among the first three."""
    hits = np.argsort(-p, axis=1)[:, :3] == y[:, None]
    return float(np.mean((hits / np.arange(1, hits.shape[1] + 1)).sum(axis=1)))


def map_at_5(y: np.ndarray, p: np.ndarray) -> float:
    """The mean of one over the truth's place among the first five."""
    hits = np.argsort(-p, axis=1)[:, :5] == y[:, None]
    return float(np.mean((hits / np.arange(1, hits.shape[1] + 1)).sum(axis=1)))


def map_at_10(y: np.ndarray, p: np.ndarray) -> float:
    """The mean of one over the truth's place among the first ten."""
    hits = np.argsort(-p, axis=1)[:, :10] == y[:, None]
    return float(np.mean((hits / np.arange(1, hits.shape[1] + 1)).sum(axis=1)))


@dataclass(frozen=True)
class Recipe:
    """How a metric is computed and served: what its answers are, the loss to learn by, the scale of the target."""

    kind: AnswerKind
    score: Callable[[np.ndarray, np.ndarray], float]
    decide: Callable[..., Any] = deciding.decide_as_said
    log: bool = False
    loss: Literal["squared", "absolute"] = "squared"


def _numbers(*scores: Callable[[np.ndarray, np.ndarray], float], **more: Any) -> dict[str, Recipe]:
    return {score.__name__: Recipe("number", score, **more) for score in scores}


def _chances(*scores: Callable[[np.ndarray, np.ndarray], float]) -> dict[str, Recipe]:
    return {score.__name__: Recipe("chances", score) for score in scores}


def _labels(decide: Callable[..., Any], *scores: Callable[[np.ndarray, np.ndarray], float]) -> dict[str, Recipe]:
    return {score.__name__: Recipe("label", score, decide) for score in scores}


RECIPES: dict[str, Recipe] = {
    **_chances(average_precision, roc_auc, gini, log_loss, brier_score, top_3_accuracy, top_5_accuracy),
    **_labels(deciding.decide_most_probable, accuracy, error_rate, f1_micro, precision, recall, cohen_kappa),
    **_labels(deciding.decide_best_cut, f1, f2, matthews_corrcoef),
    **_labels(deciding.decide_class_factors, f1_macro, f1_weighted),
    **_labels(deciding.decide_by_share, balanced_accuracy),
    "f0.5": Recipe("label", f_half, deciding.decide_best_cut),
    "quadratic_weighted_kappa": Recipe("grade", quadratic_weighted_kappa, deciding.decide_cut_points),
    **_numbers(rmse, mse, max_error, r2, explained_variance, pearson, spearman, kendall, gini_of_amounts),
    "mcrmse": Recipe("number", rmse),
    **_numbers(rmsle, msle, decide=deciding.decide_not_negative, log=True),
    "mcrmsle": Recipe("number", rmsle, deciding.decide_not_negative, log=True),
    **_numbers(mae, median_absolute_error, pinball_loss, wape, loss="absolute"),
    **_numbers(mape, smape, log=True, loss="absolute"),
    **_numbers(rmspe, log=True),
    **_numbers(mean_poisson_deviance, mean_gamma_deviance, decide=deciding.decide_not_negative, log=True),
    "map@3": Recipe("ranking", map_at_3),
    "map@5": Recipe("ranking", map_at_5),
    "map@10": Recipe("ranking", map_at_10),
    "multilabel_f1_micro": Recipe("set", f1, deciding.decide_best_cut),
    "multilabel_f1_macro": Recipe("set", f1, deciding.decide_best_cut),
    "multilabel_f1_samples": Recipe("set", f1, deciding.decide_best_cut),
    "hamming_loss": Recipe("set", error_rate, deciding.decide_most_probable),
}
