"""The metrics of the whole program: names, direction, range, what an answer must hold, and the figure itself.

An entry point of the group `mle_star.metrics` adds one (its name is the metric's, its object a `Metric`); a function of
the user's own is named in `task.yaml` as `file.py:function` and takes truth and answers as two data frames.
"""

import importlib
import importlib.metadata
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from mle_star.data.columns import positive_label
from mle_star.errors import ConfigError
from mle_star.models import MetricDirection
from mle_star.models.texts import did_you_mean

METRIC_GROUP = "mle_star.metrics"
FORMULAS = "mle_star.data.formulas"

Needs = Literal["labels", "grades", "probabilities", "numbers", "rankings", "label sets", "texts", "frames", "files"]
"""What truth and answer are given as.

- labels, texts: two arrays of texts;
- grades: two arrays of whole numbers, the classes' places in their order;
- probabilities: the classes' numbers, and a column for each class;
- numbers: two arrays of floats;
- rankings: labels, and texts of labels in the order of belief;
- label sets: two arrays of booleans, a column for each label;
- frames: two data frames, for a function of the user's own;
- files: pictures and the like, which only a script can score.
"""
Formula = Callable[..., float]


@dataclass(frozen=True)
class Metric:
    """One metric. `aliases` are matched without case and punctuation.

    `formula` takes truth and answer; a text names one of `mle_star.data.formulas`, so that the command line starts
    without numpy, and without any only scripts compute it.
    """

    name: str
    direction: MetricDirection
    needs: Needs
    formula: Formula | str | None
    low: float = 0.0
    high: float = math.inf
    aliases: tuple[str, ...] = ()
    of_positive: bool = False  # the formula takes, of two classes, the one that is looked for as a third
    proper: bool = False  # a number outside of 0 to 1 is no probability to it; the others only rank
    even: bool = False  # a rare class counts no more than its rows
    by_order: bool = False  # only the order of numbers counts, or how they go along: any number may be an answer
    of_any: bool = False  # numbers, and two classes as well
    likeliest: int = 0  # so many of the likeliest classes count

    @property
    def higher_is_better(self) -> bool:
        """Is it to be maximized?"""
        return self.direction is MetricDirection.maximize

    @property
    def scores(self) -> Literal["classes", "numbers", "any"]:
        """The kind of target that this metric is for."""
        if self.needs in ("labels", "probabilities", "label sets"):
            return "classes"
        return "numbers" if self.needs == "numbers" and not self.of_any else "any"

    def compute(self, truth: Any, answer: Any, classes: Sequence[Sequence[Any]] = ()) -> float:
        """The figure for answers in the form that `needs` names; several columns count as their mean.

        `classes` are those of each column in the whole task, where these rows may lack some. Where only the order
        of probabilities counts, a column whose rows are all of one class is left out, unless all are.
        """
        if self.needs not in ("labels", "grades", "numbers", "probabilities") or getattr(truth, "ndim", 1) < 2:
            return self._figure(truth, answer, classes)
        columns = list(range(truth.shape[1]))
        if self.needs == "probabilities" and not self.proper:
            columns = [i for i in columns if (truth[:, i] != truth[0, i]).any()] or columns
        return sum(self._figure(truth[:, i], answer[:, i], classes[i : i + 1]) for i in columns) / len(columns)

    def _figure(self, truth: Any, answer: Any, classes: Sequence[Sequence[Any]]) -> float:
        formula = self.formula
        if formula is None:
            raise ConfigError(f"{self.name} can only be computed by a script")
        if isinstance(formula, str):
            formula = getattr(importlib.import_module(FORMULAS), formula)
        if not self.of_positive:
            return float(formula(truth, answer))
        known = classes[0] if classes else set(truth.tolist())
        return float(formula(truth, answer, positive_label(known) if len(known) <= 2 else None))


def _up(
    name: str, needs: Needs, aliases: str, low: float = 0.0, high: float = 1.0, formula: str = "", **more: Any
) -> Metric:
    """One to maximize. Its formula has its name, but for the marks that no name of Python has."""
    ours = None if needs == "files" else formula or name.replace("@", "_at_").replace(".", "")
    direction = more.pop("direction", MetricDirection.maximize)
    return Metric(name, direction, needs, ours, low, high, tuple(aliases.split(", ")), **more)


def _down(name: str, needs: Needs, aliases: str, high: float = math.inf, **more: Any) -> Metric:
    return _up(name, needs, aliases, 0.0, high, direction=MetricDirection.minimize, **more)


def _by_order(name: str, aliases: str, **more: Any) -> Metric:
    return _up(name, "numbers", aliases, low=-1.0, by_order=True, **more)


METRICS: tuple[Metric, ...] = (
    # --- labels
    _up("accuracy", "labels", "acc, accuracy score, classification accuracy, categorization accuracy", even=True),
    _up("balanced_accuracy", "labels", "balanced acc, bacc, balanced accuracy score, macro recall, recall macro, uar"),
    _up("f1", "labels", "f1 score, f score, f measure, binary f1, f1 binary", formula="f_score", of_positive=True),
    _up("f1_macro", "labels", "macro f1, macro f1 score, f1 score macro, mean f1", formula="f_score"),
    _up("f1_micro", "labels", "micro f1, micro f1 score", formula="accuracy"),
    _up("f1_weighted", "labels", "weighted f1, weighted f1 score"),
    _up("f2", "labels", "f2 score, fbeta 2", of_positive=True),
    _up("f0.5", "labels", "f05 score, fbeta 0.5", of_positive=True),
    _up("precision", "labels", "precision score", of_positive=True),
    _up("recall", "labels", "recall score, sensitivity", of_positive=True),
    _up("matthews_corrcoef", "labels", "mcc, matthews correlation, matthews", low=-1.0),
    _up("cohen_kappa", "labels", "kappa score", low=-1.0),
    _up("quadratic_weighted_kappa", "grades", "qwk, quadratic kappa, weighted kappa, kappa quadratic", low=-1.0),
    _down("error_rate", "labels", "misclassification rate, classification error, zero one loss", high=1.0, even=True),
    # --- probabilities
    _up("roc_auc", "probabilities", "auc, auroc, roc, auc roc, roc auc score"),
    _up(
        "average_precision",
        "probabilities",
        "ap, pr auc, auprc, aucpr, auc precision recall, mean average precision, average precision score",
    ),
    _by_order("gini", "normalized gini", of_any=True),
    _down(
        "log_loss", "probabilities", "multi log loss, mlogloss, multi loss, negative log likelihood, nll", proper=True
    ),
    _down("brier_score", "probabilities", "brier, brier score loss, brier loss", high=2.0, proper=True),
    _up("top_3_accuracy", "probabilities", "top 3 acc, accuracy top 3", likeliest=3),
    _up("top_5_accuracy", "probabilities", "top 5 acc, accuracy top 5", likeliest=5),
    # --- numbers
    _down("rmse", "numbers", "root mean squared error, rmsd, root mse"),
    _down("mcrmse", "numbers", "mean columnwise rmse, mean columnwise root mean squared error", formula="rmse"),
    _down("rmsle", "numbers", "root mean squared log error"),
    _down("mcrmsle", "numbers", "mean columnwise rmsle, mean columnwise root mean squared log error", formula="rmsle"),
    _down("mse", "numbers", "mean squared error, l2"),
    _down("msle", "numbers", "mean squared log error"),
    _down("mae", "numbers", "mean absolute error, mean absolute deviation, l1"),
    _down("median_absolute_error", "numbers", "medae, mdae"),
    _down("mape", "numbers", "mean absolute percentage error"),
    _down("smape", "numbers", "symmetric mape, symmetric mean absolute percentage error", high=200.0),
    _down("wape", "numbers", "weighted absolute percentage error, wmape, weighted mape"),
    _down("rmspe", "numbers", "root mean squared percentage error"),
    _down("max_error", "numbers", "maximum error"),
    _down("pinball_loss", "numbers", "pinball, quantile loss"),
    _down("mean_poisson_deviance", "numbers", "poisson deviance"),
    _down("mean_gamma_deviance", "numbers", "gamma deviance"),
    _up("r2", "numbers", "r², r^2, r2 score, r squared, rsq, coefficient of determination", low=-math.inf),
    _up("explained_variance", "numbers", "explained variance score", low=-math.inf),
    _by_order("pearson", "pearsonr, pearson correlation, correlation"),
    _by_order("spearman", "spearmanr, spearman correlation, spearman rank correlation, rank correlation"),
    _by_order("kendall", "kendall tau, kendalls tau"),
    # --- several labels, rankings, texts
    _up("map@3", "rankings", "mean average precision at 3"),
    _up("map@5", "rankings", "mean average precision at 5"),
    _up("map@10", "rankings", "mean average precision at 10"),
    _up("multilabel_f1_micro", "label sets", "micro f1 multilabel, multilabel f1", formula="multilabel_f1"),
    _up("multilabel_f1_macro", "label sets", "macro f1 multilabel"),
    _up("multilabel_f1_samples", "label sets", "mean f1 score, samples f1, example f1"),
    _down("hamming_loss", "label sets", "hamming", high=1.0, formula="error_rate"),
    _down("word_error_rate", "texts", "wer"),
    _down("character_error_rate", "texts", "cer"),
    # --- what only a script can compute
    _up("ndcg", "files", "normalized discounted cumulative gain"),
    _up("iou", "files", "jaccard, jaccard index, jaccard score, intersection over union, mean iou"),
    _up("dice", "files", "dice score"),
    _up("psnr", "files", "peak signal to noise ratio", high=math.inf),
    _up("ssim", "files", "structural similarity", low=-1.0),
    _up("bleu", "files", "bleu score", high=100.0),
    _up("rouge", "files", "rouge l, rouge score", high=100.0),
    _down("perplexity", "files", "ppl"),
)


# --- by name ---------------------------------------------------------------------------------------------------


_ONE_WAY = {
    "receiveroperatingcharacteristic": "roc",
    "squared": "square",
    "logarithmic": "log",
    "normalised": "normalized",
    "areaunder(the)?": "auc",
    "averaged|coefficient|curve|cohens?": "",
    "multiclass": "multi",
    "(binary)?crossentropy|bce": "logloss",
    "^neg(ative)?(?=mean|root|log|rms|mae|mse)": "",
}
"""Words that are spelled in several ways, or left out; in this order."""


def metric_key(text: str) -> str:
    """A name as it is compared: without case, blanks and punctuation, and without the `neg_` of some libraries."""
    key = re.sub(r"[\s_\-.'’()@]+", "", text).lower()
    for word, usual in _ONE_WAY.items():
        key = re.sub(word, usual, key)
    return key


@lru_cache(maxsize=1)
def _by_key() -> dict[str, Metric]:
    return {metric_key(name): metric for metric in [*METRICS, *_plugins()] for name in (metric.name, *metric.aliases)}


def _plugins() -> Iterator[Metric]:
    for point in importlib.metadata.entry_points(group=METRIC_GROUP):
        metric = point.load()
        if not isinstance(metric, Metric):
            raise ConfigError(f"the metric {point.name} of {point.value} is not an mle_star Metric")
        yield metric


def find_metric(text: str) -> Metric | None:
    """The metric that a name means, however it is spelled; None when the name is not known."""
    return _by_key().get(metric_key(text))


def known_metric(text: str, *, folder: Path | None = None, direction: MetricDirection | None = None) -> Metric:
    """The metric of this name, or the user's own function; an unknown one is refused with the nearest names.

    So is one in the wrong `direction`: it would make the whole run search for the worst solution.
    """
    if is_own_metric(text):
        return own_metric(text, folder or Path(), direction)
    metric = find_metric(text)
    if metric is None:
        nearest = did_you_mean(text, sorted({metric.name for metric in _by_key().values()}))
        raise ConfigError(f"unknown metric {text!r}: {nearest} (a function of your own: file.py:function)")
    if direction not in (None, metric.direction):
        raise ConfigError(f"metric_direction is {direction.value!r}, but {metric.name} is to {metric.direction.value}")
    return metric


# --- a function of the user's own ------------------------------------------------------------------------------


def is_own_metric(text: str) -> bool:
    """Does the name stand for a function in a file: `score.py:profit`?"""
    return re.fullmatch(r"[^:]+\.py:\w+", text.strip()) is not None


def own_metric(text: str, folder: Path, direction: MetricDirection | None) -> Metric:
    """The function `file.py:name` of a task folder; it gets truth and answers as data frames, rows in one order."""
    file, name = text.strip().rsplit(":", 1)
    path = folder / file
    if direction is None:
        raise ConfigError(f"{text}: say with metric_direction whether to maximize or to minimize it")
    if not path.is_file():
        raise ConfigError(f"{text}: there is no file {path}")
    return Metric(text.strip(), direction, "frames", partial(_run_own, path, name), low=-math.inf)


_runners: list[Callable[[Path, str], Formula]] = []


def run_own_metrics_by(runner: Callable[[Path, str], Formula]) -> None:
    """Say how a function in a file becomes a formula: it is code of the task folder, and never runs in this process."""
    _runners[:] = [runner]


def _run_own(path: Path, name: str, truth: Any, answer: Any) -> float:
    if not _runners:
        raise ConfigError(f"{path}:{name}: it runs in a process of its own: import mle_star.execution first")
    return _runners[0](path, name)(truth, answer)


# --- in prose --------------------------------------------------------------------------------------------------

_TELLING = re.compile(r"\b(metric|evaluat\w*|scored?|scoring|scored|leaderboard)\b", re.IGNORECASE)


def metric_in_prose(text: str) -> tuple[Metric, str] | None:
    """The metric that a text names, with the words that name it. A single word counts only near "evaluated"."""
    sentences = re.split(r"(?<=[.!?:])\s+|\n{2,}|\n(?=[#*-])", text)
    pairs = zip(["", *sentences], sentences, strict=False)
    telling = [bool(_TELLING.search(f"{before} {sentence}")) for before, sentence in pairs]
    for wanted in (True, False):
        likely = [sentence for sentence, tells in zip(sentences, telling, strict=True) if tells is wanted]
        named = (_longest_name(sentence, shortest=1 if wanted else 2) for sentence in likely)
        if found := next(filter(None, named), None):
            return found
    return None


def _longest_name(sentence: str, shortest: int) -> tuple[Metric, str] | None:
    """Longest first, so that "root mean squared logarithmic error" is not read as its shorter relatives."""
    words = re.findall(r"[\w²^’'@-]+", sentence)
    for size in range(8, shortest - 1, -1):
        for start in range(len(words) - size + 1):
            phrase = " ".join(words[start : start + size])
            metric = find_metric(phrase)
            if metric is not None and (size > 1 or len(phrase) > 2 or phrase.upper() in ("R2", "F1", "F2")):
                return metric, phrase
    return None
