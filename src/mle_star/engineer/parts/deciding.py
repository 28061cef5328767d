"""From a prediction to the answer that a metric wants: how it is decided, and by which loss and scale to learn.

Each function learns on the rows whose truth is known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from mle_star.data.formulas import f_score
from mle_star.data.metrics import METRICS, Metric, find_metric, known_metric, metric_in_prose
from mle_star.engineer.parts.core import Score
from mle_star.errors import ConfigError


def decide_as_predicted(y: np.ndarray, known: np.ndarray, others: list[np.ndarray], score: Score) -> list[np.ndarray]:
    """The prediction itself is the answer."""
    return others


def decide_most_probable(y: np.ndarray, known: np.ndarray, others: list[np.ndarray], score: Score) -> list[np.ndarray]:
    """The most probable class."""
    return [p.argmax(axis=1) for p in others]


def decide_best_cut(y: np.ndarray, known: np.ndarray, others: list[np.ndarray], score: Score) -> list[np.ndarray]:
    """Class 1 from the cut upwards that serves the metric best, small bumps smoothed away."""
    if known.shape[1] > 2:
        return decide_class_factors(y, known, others, score)
    cuts = np.linspace(0.02, 0.98, 97)
    scores = np.array([score(y, (known[:, 1] >= cut).astype(int)) for cut in cuts])
    smooth = np.convolve(np.pad(scores, 3, mode="edge"), np.ones(7) / 7, mode="valid")
    best = cuts[smooth.argmax()]
    return [(p[:, 1] >= best).astype(int) for p in others]


def decide_label_cut(y: np.ndarray, known: np.ndarray, others: list[np.ndarray], score: Score) -> list[np.ndarray]:
    """A label of a set from the cut upwards at which its own F1 is best."""
    return decide_best_cut(y, known, others, partial(f_score, positive=1))


def decide_class_factors(y: np.ndarray, known: np.ndarray, others: list[np.ndarray], score: Score) -> list[np.ndarray]:
    """The class with the highest chance times a factor of its own, found one class after another.

    What is found serves the rows that it was found on better than others, so it is taken back half of the way.
    """
    factors = np.ones(known.shape[1])
    for _ in range(2 if len(factors) <= 12 else 0):
        for k in range(len(factors)):
            tries, scores = factors[k] * np.array([1.0, 0.6, 0.75, 0.87, 1.15, 1.33, 1.6]), []
            for factor in tries:
                factors[k] = factor
                scores.append(score(y, (known * factors).argmax(axis=1)))
            factors[k] = tries[int(np.argmax(scores))]
    return [(p * np.sqrt(factors)).argmax(axis=1) for p in others]


def decide_by_share(y: np.ndarray, known: np.ndarray, others: list[np.ndarray], score: Score) -> list[np.ndarray]:
    """The class whose chance is highest against its share of the rows: every class weighs the same."""
    share = np.bincount(y, minlength=known.shape[1]) / len(y)
    return [(p / np.maximum(share, 1e-9)).argmax(axis=1) for p in others]


def decide_cut_points(y: np.ndarray, known: np.ndarray, others: list[np.ndarray], score: Score) -> list[np.ndarray]:
    """Grades by cut points between them, moved one at a time to where the metric is best."""
    cuts = np.arange(int(y.max())) + 0.5
    for width in (0.4, 0.15):
        for k in range(len(cuts)):
            moved = [np.sort(np.append(np.delete(cuts, k), cuts[k] + step)) for step in np.linspace(-width, width, 13)]
            cuts = max(moved, key=lambda candidate: score(y, np.digitize(known, candidate)))
    return [np.digitize(p, cuts) for p in others]


def decide_not_negative(y: np.ndarray, known: np.ndarray, others: list[np.ndarray], score: Score) -> list[np.ndarray]:
    """Numbers that the metric is defined for: none below zero."""
    return [np.clip(p, 0, None) for p in others]


# --- what each metric asks of a script -------------------------------------------------------------------

AnswerKind = Literal["chances", "label", "grade", "number", "ranking", "set"]


@dataclass(frozen=True)
class Recipe:
    """How scripts serve a metric. With `log` numbers are learned on the log scale."""

    metric: Metric
    kind: AnswerKind
    decide: Callable[..., Any]
    log: bool
    loss: Literal["squared", "absolute"]


_KINDS: dict[str, tuple[AnswerKind, Callable[..., Any]]] = {
    "probabilities": ("chances", decide_as_predicted),
    "labels": ("label", decide_most_probable),
    "grades": ("grade", decide_cut_points),
    "numbers": ("number", decide_as_predicted),
    "rankings": ("ranking", decide_as_predicted),
    "label sets": ("set", decide_label_cut),
}
_DECIDED_BY: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("f1", "f2", "f0.5", "matthews_corrcoef"), decide_best_cut),
    **dict.fromkeys(("f1_macro", "f1_weighted"), decide_class_factors),
    "balanced_accuracy": decide_by_share,
}
_NOT_NEGATIVE = {"rmsle", "msle", "mcrmsle", "mean_poisson_deviance", "mean_gamma_deviance"}
_BY_LOG = {"mape", "smape", "rmspe", *_NOT_NEGATIVE}
_ABSOLUTE = {"mae", "median_absolute_error", "pinball_loss", "wape", "mape", "smape"}


def _recipe(metric: Metric) -> Recipe:
    # hamming loss: the mean over labels that are each scored by themselves
    kind, usual = _KINDS["labels" if metric.name == "hamming_loss" else metric.needs]
    if metric.name == "gini":
        kind = "chances"  # of two classes; the profile knows where it is one of amounts
    decide = decide_not_negative if metric.name in _NOT_NEGATIVE else _DECIDED_BY.get(metric.name, usual)
    return Recipe(metric, kind, decide, metric.name in _BY_LOG, "absolute" if metric.name in _ABSOLUTE else "squared")


RECIPES = {metric.name: _recipe(metric) for metric in METRICS if metric.needs in _KINDS}


def recipe_for(words: str) -> Recipe:
    """The metric that a task's words mean; one that scripts here cannot compute is refused, never replaced."""
    in_prose = None if find_metric(words) else metric_in_prose(f"Metric: {words}")
    metric = in_prose[0] if in_prose else known_metric(words)
    if metric.name not in RECIPES:
        raise ConfigError(f"{metric.name} is not among their metrics: {', '.join(RECIPES)}")
    return RECIPES[metric.name]
