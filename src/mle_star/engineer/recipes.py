"""What a metric asks of a script: the form of its answers, how they are decided, the loss and the scale to learn by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mle_star.data.metrics import METRICS, Metric, find_metric, known_metric, metric_in_prose
from mle_star.engineer.parts import deciding
from mle_star.errors import ConfigError

AnswerKind = Literal["chances", "label", "grade", "number", "ranking", "set"]


@dataclass(frozen=True)
class Recipe:
    """How scripts serve a metric. With `log` numbers are learned on the log scale."""

    metric: Metric
    kind: AnswerKind
    decide: Callable[..., Any]
    log: bool = False
    loss: Literal["squared", "absolute"] = "squared"


_KINDS: dict[str, tuple[AnswerKind, Callable[..., Any]]] = {
    "probabilities": ("chances", deciding.decide_as_said),
    "labels": ("label", deciding.decide_most_probable),
    "grades": ("grade", deciding.decide_cut_points),
    "numbers": ("number", deciding.decide_as_said),
    "rankings": ("ranking", deciding.decide_as_said),
    "label sets": ("set", deciding.decide_label_cut),
}
_DECIDED_BY = {
    deciding.decide_best_cut: ("f1", "f2", "f0.5", "matthews_corrcoef"),
    deciding.decide_class_factors: ("f1_macro", "f1_weighted"),
    deciding.decide_by_share: ("balanced_accuracy",),
    deciding.decide_not_negative: ("rmsle", "msle", "mcrmsle", "mean_poisson_deviance", "mean_gamma_deviance"),
}
_BY_LOG = {"mape", "smape", "rmspe", *_DECIDED_BY[deciding.decide_not_negative]}
_ABSOLUTE = {"mae", "median_absolute_error", "pinball_loss", "wape", "mape", "smape"}


def _recipe(metric: Metric) -> Recipe:
    kind, usual = _KINDS[metric.needs]
    if metric.name == "gini":
        kind = "chances"  # of two classes; the profile knows where it is one of amounts
    if metric.name == "hamming_loss":
        kind, usual = _KINDS["labels"]  # the mean over labels that are each scored by themselves
    decide = next((decide for decide, names in _DECIDED_BY.items() if metric.name in names), usual)
    return Recipe(metric, kind, decide, metric.name in _BY_LOG, "absolute" if metric.name in _ABSOLUTE else "squared")


RECIPES = {metric.name: _recipe(metric) for metric in METRICS if metric.needs in _KINDS}


def recipe_for(words: str) -> Recipe:
    """The metric that a task's words mean; one that scripts here cannot compute is refused, never replaced."""
    found = find_metric(words)
    told = None if found is not None else metric_in_prose(f"Metric: {words}")
    metric = found or (told[0] if told else None) or known_metric(words)
    if metric.name not in RECIPES:
        raise ConfigError(f"it cannot compute {metric.name}; it knows {', '.join(RECIPES)}")
    return RECIPES[metric.name]
