"""Metrics by the names people use: the spelling that we write, the direction, and the kind of target they judge."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from mle_star.models import MetricDirection

TargetKind = Literal["classes", "numbers", "any"]


class Metric(NamedTuple):
    """A known metric. `aliases` are matched without case, blanks, hyphens and underscores."""

    name: str
    direction: MetricDirection
    kind: TargetKind
    aliases: tuple[str, ...]


_UP, _DOWN = MetricDirection.maximize, MetricDirection.minimize

METRICS: tuple[Metric, ...] = (
    Metric("accuracy", _UP, "classes", ("acc", "accuracy score", "classification accuracy", "categorization accuracy")),
    Metric("balanced_accuracy", _UP, "classes", ("balanced acc", "bacc", "balanced accuracy score")),
    Metric(
        "roc_auc",
        _UP,
        "classes",
        ("auc", "auroc", "roc", "auc roc", "roc auc score", "area under the roc curve", "area under the curve",
         "area under the receiver operating characteristic curve"),
    ),
    Metric(
        "average_precision", _UP, "classes",
        ("ap", "pr auc", "auprc", "prauc", "aucpr", "area under the precision recall curve", "mean average precision"),
    ),
    Metric("f1", _UP, "classes", ("f1 score", "f score", "f measure", "binary f1", "f1 binary")),
    Metric("f1_macro", _UP, "classes", ("macro f1", "macro f1 score", "f1 score macro", "macro averaged f1")),
    Metric("f1_micro", _UP, "classes", ("micro f1", "micro f1 score", "micro averaged f1")),
    Metric("f1_weighted", _UP, "classes", ("weighted f1", "weighted f1 score")),
    Metric("precision", _UP, "classes", ("precision score",)),
    Metric("recall", _UP, "classes", ("recall score", "sensitivity")),
    Metric("matthews_corrcoef", _UP, "classes", ("mcc", "matthews correlation", "matthews correlation coefficient")),
    Metric("cohen_kappa", _UP, "classes", ("kappa", "cohens kappa", "cohen kappa score")),
    Metric(
        "quadratic_weighted_kappa", _UP, "any",
        ("qwk", "quadratic kappa", "weighted kappa", "quadratic weighted cohen kappa"),
    ),
    Metric(
        "log_loss", _DOWN, "classes",
        ("logloss", "cross entropy", "binary cross entropy", "bce", "logarithmic loss", "multi log loss",
         "multi class log loss", "mlogloss", "negative log likelihood", "nll"),
    ),
    Metric("brier_score", _DOWN, "classes", ("brier", "brier score loss", "brier loss")),
    Metric("hamming_loss", _DOWN, "classes", ("hamming",)),
    Metric("error_rate", _DOWN, "classes", ("misclassification rate", "classification error", "zero one loss")),
    Metric(
        "rmse", _DOWN, "numbers",
        ("root mean squared error", "root mean square error", "rmsd", "root mse"),
    ),
    Metric(
        "rmsle", _DOWN, "numbers",
        ("root mean squared log error", "root mean squared logarithmic error", "root mean square log error",
         "root mean square logarithmic error"),
    ),
    Metric("mse", _DOWN, "numbers", ("mean squared error", "mean square error", "l2")),
    Metric("msle", _DOWN, "numbers", ("mean squared log error", "mean squared logarithmic error")),
    Metric("mae", _DOWN, "numbers", ("mean absolute error", "mean absolute deviation", "l1")),
    Metric("median_absolute_error", _DOWN, "numbers", ("medae", "mdae")),
    Metric("mape", _DOWN, "numbers", ("mean absolute percentage error",)),
    Metric("smape", _DOWN, "numbers", ("symmetric mape", "symmetric mean absolute percentage error")),
    Metric("wape", _DOWN, "numbers", ("weighted absolute percentage error",)),
    Metric("mcrmse", _DOWN, "numbers", ("mean columnwise rmse", "mean columnwise root mean squared error")),
    Metric("pinball_loss", _DOWN, "numbers", ("pinball", "quantile loss")),
    Metric("r2", _UP, "numbers", ("r 2", "r²", "r^2", "r2 score", "r squared", "coefficient of determination")),
    Metric("explained_variance", _UP, "numbers", ("explained variance score",)),
    Metric("pearson", _UP, "numbers", ("pearsonr", "pearson correlation", "pearson correlation coefficient")),
    Metric("spearman", _UP, "numbers", ("spearmanr", "spearman correlation", "spearman rank correlation")),
    Metric("gini", _UP, "any", ("gini coefficient", "normalized gini", "normalised gini")),
    Metric("ndcg", _UP, "any", ("normalized discounted cumulative gain", "normalised discounted cumulative gain")),
    Metric("iou", _UP, "any", ("jaccard", "jaccard index", "jaccard score", "intersection over union", "mean iou")),
    Metric("dice", _UP, "any", ("dice coefficient", "dice score")),
    Metric("psnr", _UP, "any", ("peak signal to noise ratio",)),
    Metric("ssim", _UP, "any", ("structural similarity",)),
    Metric("bleu", _UP, "any", ("bleu score",)),
    Metric("rouge", _UP, "any", ("rouge l", "rouge score")),
    Metric("word_error_rate", _DOWN, "any", ("wer",)),
    Metric("character_error_rate", _DOWN, "any", ("cer",)),
    Metric("perplexity", _DOWN, "any", ("ppl",)),
)  # fmt: skip


def _key(text: str) -> str:
    return re.sub(r"[\s_\-.'’()]+", "", text).lower()


_BY_KEY = {_key(alias): metric for metric in METRICS for alias in (metric.name, *metric.aliases)}


def find_metric(text: str) -> Metric | None:
    """The metric that a name means, however it is spelled; None when the name is not known."""
    return _BY_KEY.get(_key(text))


def normalise_metric(text: str) -> str:
    """The name as we write it; a name that is not known stays as it was given."""
    metric = find_metric(text)
    return metric.name if metric else text.strip()


def metric_in_prose(text: str) -> tuple[Metric, str] | None:
    """The metric that a text speaks of, with the words it was told by. A single word counts only near "evaluated"."""
    sentences = re.split(r"(?<=[.!?:])\s+|\n{2,}|\n(?=[#*-])", text)
    pairs = zip(["", *sentences], sentences, strict=False)
    telling = [bool(_TELLING.search(f"{before} {sentence}")) for before, sentence in pairs]
    for wanted in (True, False):
        for sentence, tells in zip(sentences, telling, strict=True):
            found = _longest_name(sentence, shortest=1 if wanted else 2) if tells is wanted else None
            if found is not None:
                return found
    return None


_TELLING = re.compile(r"\b(metric|evaluat\w*|scored?|scoring|judged|leaderboard)\b", re.IGNORECASE)


def _longest_name(sentence: str, shortest: int) -> tuple[Metric, str] | None:
    """Longest first, so that "root mean squared logarithmic error" is not read as its shorter relatives."""
    words = re.findall(r"[\w²^’'-]+", sentence)
    for size in range(8, shortest - 1, -1):
        for start in range(len(words) - size + 1):
            phrase = " ".join(words[start : start + size])
            metric = find_metric(phrase)
            if metric is not None and (size > 1 or len(phrase) > 2 or phrase.upper() in ("R2", "F1")):
                return metric, phrase
    return None
