"""The formulas of the metrics on plain arrays; `mle_star.data.metrics` names them and says what each one takes.

The embedded engineer copies what a script needs out of this file, so nothing here uses the rest of the package. Figures
from counts cost a tenth of scikit-learn's, which tests hold them to: intervals take hundreds of draws of the rows.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

SMALLEST = 1e-15
MOST_EDITS = 1 << 16
"""So many pairs of texts are kept with their edits: intervals draw the same rows again and again."""

# --- labels ------------------------------------------------------------------------------------------------------


def accuracy(truth: np.ndarray, answer: np.ndarray) -> float:
    """The share of right labels."""
    return float((truth == answer).mean())


def error_rate(truth: np.ndarray, answer: np.ndarray) -> float:
    """The share of wrong labels."""
    return float((truth != answer).mean())


def label_counts(truth: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """How often each label that occurs (by row) was called what (by column)."""
    codes = np.concatenate([truth, answer])
    if codes.dtype.kind != "i" or codes.min() < 0 or codes.max() > 1000:
        codes = np.unique(codes, return_inverse=True)[1]
    size = int(codes.max()) + 1
    table = np.bincount(codes[: len(truth)] * size + codes[len(truth) :], minlength=size**2).reshape(size, size)
    found = np.flatnonzero(table.any(axis=0) | table.any(axis=1))
    counts: np.ndarray = table[np.ix_(found, found)]
    return counts


def label_hits(truth: np.ndarray, answer: np.ndarray, positive: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows rightly called so, rows called so, rows that are: of the class `positive`, or of each class in `truth`."""
    if positive is not None:
        are, called = truth == positive, answer == positive
        return np.array([(are & called).sum()]), np.array([called.sum()]), np.array([are.sum()])
    table = label_counts(truth, answer)
    places = np.flatnonzero(table.sum(axis=1))  # an answer may hold labels that never occur in truth
    return table.diagonal()[places], table.sum(axis=0)[places], table.sum(axis=1)[places]


def share_of(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """The quotients, 0 where there is nothing to divide by."""
    shares: np.ndarray = np.divide(part, whole, out=np.zeros(np.shape(part)), where=whole > 0)
    return shares


def f_score(
    truth: np.ndarray, answer: np.ndarray, positive: Any = None, beta: float = 1.0, weighted: bool = False
) -> float:
    """F of one class; without one the mean of all classes, plain or weighted by their rows."""
    right, called, are = label_hits(truth, answer, positive)
    figures = share_of((1 + beta**2) * right, beta**2 * are + called)
    return float(np.average(figures, weights=are if weighted else None))


def recall(truth: np.ndarray, answer: np.ndarray, positive: Any = None) -> float:
    """Of the rows of a class, the share that is found; without a class the mean of all."""
    right, _, are = label_hits(truth, answer, positive)
    return float(share_of(right, are).mean())


def matthews_corrcoef(truth: np.ndarray, answer: np.ndarray) -> float:
    """The correlation of two labellings."""
    table = label_counts(truth, answer)
    called, are, count = table.sum(axis=0).astype(float), table.sum(axis=1).astype(float), float(table.sum())
    below = math.sqrt((count**2 - called @ called) * (count**2 - are @ are))
    return float((table.trace() * count - called @ are) / below) if below else 0.0


def cohen_kappa(truth: np.ndarray, answer: np.ndarray, power: int = 0) -> float:
    """Agreement beyond chance; an error weighs as its distance to this power."""
    table = label_counts(truth, answer)
    if len(table) == 1:
        return 0.0  # nothing but chance agrees here
    places = np.arange(len(table))
    apart = (places[:, None] != places) * np.abs(places[:, None] - places) ** power
    by_chance = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return float(1 - (apart * table).sum() / (apart * by_chance).sum())


f1_weighted = partial(f_score, weighted=True)
precision = partial(f_score, beta=0.0)
f2 = partial(f_score, beta=2.0)
f05 = partial(f_score, beta=0.5)
balanced_accuracy = recall
quadratic_weighted_kappa = partial(cohen_kappa, power=2)

# --- probabilities -------------------------------------------------------------------------------------------------


def log_loss(truth: np.ndarray, answer: np.ndarray) -> float:
    """The mean negative logarithm of what was given to the right class; rows are scaled to a sum of 1."""
    known = np.clip(answer, 0.0, None)
    known = np.clip(known / np.maximum(known.sum(axis=1, keepdims=True), SMALLEST), SMALLEST, 1.0)
    return float(-np.log(known[np.arange(len(truth)), truth]).mean())


def brier_score(truth: np.ndarray, answer: np.ndarray) -> float:
    """The mean squared error of the probabilities: of the second class alone where there are two."""
    if answer.shape[1] == 2:
        return float(np.mean((answer[:, 1] - truth) ** 2))
    return float(np.mean(((answer - np.eye(answer.shape[1])[truth]) ** 2).sum(axis=1)))


def one_against_rest(truth: np.ndarray, answer: np.ndarray, figure: Callable[[np.ndarray, np.ndarray], float]) -> float:
    """A figure of two classes; of more, the mean over the classes that occur and do not stand alone."""
    if not np.isfinite(answer).all():
        raise ValueError("the answers hold what is no number")
    present = [1] if answer.shape[1] == 2 else [label for label in np.unique(truth) if (truth != label).any()]
    if not present:
        raise ValueError("the rows hold one class only")
    return float(np.mean([figure(truth == label, answer[:, label]) for label in present]))


def pair_share(is_it: np.ndarray, chance: np.ndarray) -> float:
    """Of all pairs of a row that is and one that is not, the share in which the first has more; ties are half."""
    _, place, counts = np.unique(chance, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    are = int(is_it.sum())
    if are in (0, len(is_it)):
        raise ValueError("the rows hold one class only")
    return float((ranks[is_it].sum() - are * (are + 1) / 2) / (are * (len(is_it) - are)))


def mean_precision(is_it: np.ndarray, chance: np.ndarray) -> float:
    """The precision down to each different chance, weighted by the rows that are found there."""
    if not is_it.any():
        raise ValueError("the rows hold one class only")
    _, place, counts = np.unique(-chance, return_inverse=True, return_counts=True)
    found = np.bincount(place, weights=is_it)
    return float((found * np.cumsum(found) / np.cumsum(counts)).sum() / is_it.sum())


def ranked_hits(truth: np.ndarray, answer: np.ndarray, count: int) -> np.ndarray:
    """Which of the most probable classes of each row is the right one."""
    hits: np.ndarray = np.argsort(-answer, axis=1, kind="stable")[:, :count] == truth[:, None]
    return hits


def top_accuracy(truth: np.ndarray, answer: np.ndarray, count: int) -> float:
    """How often the right class is among the first."""
    return float(ranked_hits(truth, answer, count).any(axis=1).mean())


roc_auc = partial(one_against_rest, figure=pair_share)
average_precision = partial(one_against_rest, figure=mean_precision)
top_3_accuracy = partial(top_accuracy, count=3)
top_5_accuracy = partial(top_accuracy, count=5)

# --- numbers ---------------------------------------------------------------------------------------------------------


def mse(truth: np.ndarray, answer: np.ndarray) -> float:
    """The mean squared error."""
    return float(((truth - answer) ** 2).mean())


def rmse(truth: np.ndarray, answer: np.ndarray) -> float:
    """The root of the mean squared error."""
    return math.sqrt(mse(truth, answer))


def msle(truth: np.ndarray, answer: np.ndarray) -> float:
    """The mean squared error of the logarithms; answers below zero count as zero."""
    return mse(np.log1p(truth), np.log1p(np.clip(answer, 0.0, None)))


def rmsle(truth: np.ndarray, answer: np.ndarray) -> float:
    """The root of the mean squared error of the logarithms."""
    return math.sqrt(msle(truth, answer))


def mae(truth: np.ndarray, answer: np.ndarray) -> float:
    """The mean absolute error."""
    return float(abs(truth - answer).mean())


def median_absolute_error(truth: np.ndarray, answer: np.ndarray) -> float:
    """The median of the absolute errors."""
    return float(np.median(abs(truth - answer)))


def max_error(truth: np.ndarray, answer: np.ndarray) -> float:
    """The largest error."""
    return float(abs(truth - answer).max())


def mape(truth: np.ndarray, answer: np.ndarray) -> float:
    """The mean error as a share of the truth, over the rows whose truth is not zero."""
    nonzero = truth != 0
    return float((abs(truth - answer)[nonzero] / abs(truth)[nonzero]).mean())


def smape(truth: np.ndarray, answer: np.ndarray) -> float:
    """The mean of 200 |error| / (|truth| + |answer|), nothing where both are zero."""
    return float((200 * share_of(abs(truth - answer), abs(truth) + abs(answer))).mean())


def wape(truth: np.ndarray, answer: np.ndarray) -> float:
    """The sum of the errors as a share of the sum of the truth."""
    return float(abs(truth - answer).sum() / abs(truth).sum())


def rmspe(truth: np.ndarray, answer: np.ndarray) -> float:
    """The root of the mean squared relative error, over the rows whose truth is not zero."""
    nonzero = truth != 0
    return math.sqrt(float((((truth - answer)[nonzero] / truth[nonzero]) ** 2).mean()))


def pinball_loss(truth: np.ndarray, answer: np.ndarray) -> float:
    """The loss of the median."""
    return mae(truth, answer) / 2


def by_sklearn(truth: np.ndarray, answer: np.ndarray, name: str, **options: Any) -> float:
    """The figure of scikit-learn's function of this name."""
    from sklearn import metrics

    return float(getattr(metrics, name)(truth, answer, **options))


def deviance(truth: np.ndarray, answer: np.ndarray, power: int) -> float:
    """The mean deviance: of counts by the power 1, of amounts above zero by 2."""
    return by_sklearn(truth, np.clip(answer, 1e-9, None), "mean_tweedie_deviance", power=power)


def correlation(truth: np.ndarray, answer: np.ndarray, kind: str) -> float:
    """The correlation by scipy's function of this name, 0 where there is none."""
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant answers
        return float(np.nan_to_num(getattr(stats, kind)(truth, answer)[0]))


def gini(truth: np.ndarray, answer: np.ndarray) -> float:
    """The normalised Gini coefficient: how well the answers sort the truth, against its own order.

    Rows with the same answer count as the mean of their truth: which one comes first in the file says nothing.
    Of the chances of two classes, those of the second are the answers.
    """

    def area(sorted_by: np.ndarray) -> float:
        _, place, counts = np.unique(-sorted_by, return_inverse=True, return_counts=True)
        gained = np.cumsum(np.repeat(np.bincount(place, weights=truth) / counts, counts)) / truth.sum()
        return float((gained - np.arange(1, len(truth) + 1) / len(truth)).sum())

    if not truth.any():
        raise ValueError("the truth is zero in all rows")
    best = area(truth)
    return area(answer[:, 1] if answer.ndim == 2 else answer) / best if best else 0.0


r2 = partial(by_sklearn, name="r2_score")  # the share of the variance that is explained
explained_variance = partial(by_sklearn, name="explained_variance_score")  # a constant error is forgiven
mean_poisson_deviance = partial(deviance, power=1)
mean_gamma_deviance = partial(deviance, power=2)
pearson = partial(correlation, kind="pearsonr")
spearman = partial(correlation, kind="spearmanr")
kendall = partial(correlation, kind="kendalltau")

# --- rankings, label sets, texts -----------------------------------------------------------------------------------


def map_at(truth: np.ndarray, answer: np.ndarray, count: int) -> float:
    """One right label a row: 1 / place where it stands among the first, else nothing.

    The answers are texts of labels in their order, or a column of chances for each class.
    """
    if answer.ndim == 2:
        hits = ranked_hits(truth, answer, count)
        return float((hits / np.arange(1, hits.shape[1] + 1)).sum(axis=1).mean())
    total = 0.0
    for right, ranking in zip(truth, answer, strict=True):
        guesses = list(dict.fromkeys(str(ranking).split()))[:count]
        total += 1 / (guesses.index(str(right)) + 1) if str(right) in guesses else 0.0
    return total / len(truth)


def multilabel_f1(truth: np.ndarray, answer: np.ndarray, axis: int | None = None) -> float:
    """F1 over all labels of all rows; by axis 0 the mean over the labels, by axis 1 over the rows."""
    right, both = (truth & answer).sum(axis=axis), truth.sum(axis=axis) + answer.sum(axis=axis)
    return float(share_of(2 * right, both).mean())


map_at_3 = partial(map_at, count=3)
map_at_5 = partial(map_at, count=5)
map_at_10 = partial(map_at, count=10)
multilabel_f1_macro = partial(multilabel_f1, axis=0)
multilabel_f1_samples = partial(multilabel_f1, axis=1)


def edits(wanted: Sequence[str], given: Sequence[str]) -> int:
    """The fewest insertions, deletions and changes that make one sequence of the other."""
    row = list(range(len(given) + 1))
    for i, token in enumerate(wanted, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(given, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (token != other))
    return row[-1]


@lru_cache(maxsize=MOST_EDITS)
def text_edits(wanted: str, given: str, by_word: bool) -> int:
    """The edits of words or of characters."""
    return edits(wanted.split(), given.split()) if by_word else edits(wanted, given)


def text_error_rate(truth: Sequence[str], answer: Sequence[str], by_word: bool) -> float:
    """The edits that the texts need, as a share of their words or characters."""
    total = sum(text_edits(str(t), str(a), by_word) for t, a in zip(truth, answer, strict=True))
    return total / max(sum(len(str(text).split() if by_word else str(text)) for text in truth), 1)


word_error_rate = partial(text_error_rate, by_word=True)
character_error_rate = partial(text_error_rate, by_word=False)
