"""The figures behind the metrics, on plain arrays; scikit-learn's own where they are quick enough for many draws.

Each takes the truth and the answer in the form that its metric's `needs` names (`mle_star.data.metrics`). Libraries are
imported inside, so that the command line starts without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from mle_star.data.values import are_numbers

SMALLEST = 1e-15
MOST_EDITS = 1 << 16
"""So many pairs of texts are kept with their edits: intervals draw the same rows again and again."""

# --- labels ------------------------------------------------------------------------------------------------------


def accuracy(truth: Any, answer: Any) -> float:
    """The share of right labels."""
    return float((truth == answer).mean())


def error_rate(truth: Any, answer: Any) -> float:
    """The share of wrong labels."""
    return float((truth != answer).mean())


def balanced_accuracy(truth: Any, answer: Any) -> float:
    """The mean recall of the classes that occur."""
    import numpy as np

    return float(np.mean([(answer[truth == label] == label).mean() for label in np.unique(truth)]))


def positive_label(labels: Any) -> Any:
    """Of two classes the one that is looked for: `1`, `true` and the like, else the last in their order."""
    known = set(labels)
    telling = [label for label in known if str(label).lower() in ("1", "1.0", "true", "yes", "y", "positive")]
    return telling[0] if len(telling) == 1 else max(known, key=float) if are_numbers([*map(str, known)]) else max(known)


def likely_label(classes: Any) -> Any:
    """Of two classes the one that a single probability is of: of numbers the larger, as in `predict_proba[:, 1]`."""
    return max(classes, key=float) if are_numbers([*map(str, classes)]) else positive_label(classes)


def _counts(truth: Any, answer: Any) -> tuple[Any, Any]:
    """The labels in their order, and how often each (by row) was called what (by column).

    Intervals take hundreds of draws of the rows: figures from counts cost a tenth of scikit-learn's, which tests
    hold them to.
    """
    import numpy as np

    labels, codes = np.unique(np.concatenate([truth, answer]), return_inverse=True)
    pairs = codes[: len(truth)] * len(labels) + codes[len(truth) :]
    return labels, np.bincount(pairs, minlength=len(labels) ** 2).reshape(len(labels), -1)


def _looked_at(truth: Any, answer: Any, classes: Any = None, *, every: bool = False) -> tuple[Any, Any, Any]:
    """Of the positive class, or of each one that occurs where there are more than two or `every` one counts: rows that
    were called so rightly, rows called so, rows that are."""
    import numpy as np

    known = np.unique(truth) if classes is None else classes
    if len(known) <= 2 and not every:
        positive = positive_label(known)
        are, said = truth == positive, answer == positive
        return np.array([(are & said).sum()]), np.array([said.sum()]), np.array([are.sum()])
    _, table = _counts(truth, answer)
    places = np.flatnonzero(table.sum(axis=1))  # an answer may hold labels that never occur in truth
    return table.diagonal()[places], table.sum(axis=0)[places], table.sum(axis=1)[places]


def _shares(of: Any, all_of: Any) -> Any:
    import numpy as np

    return np.divide(of, all_of, out=np.zeros(len(of)), where=all_of > 0)


def _f(truth: Any, answer: Any, beta: float, average: str = "binary", classes: Any = None) -> float:
    import numpy as np

    right, said, are = _looked_at(truth, answer, classes, every=average != "binary")
    figures = _shares((1 + beta**2) * right, beta**2 * are + said)
    return float(np.average(figures, weights=are if average == "weighted" else None))


def f1(truth: Any, answer: Any, classes: Any = None) -> float:
    """F1 of the class that is looked for; of more than two classes the mean.

    `classes` are those of the task, here and below; by default those of these rows.
    """
    return _f(truth, answer, 1.0, classes=classes)


def f2(truth: Any, answer: Any, classes: Any = None) -> float:
    """As F1, recall counting more."""
    return _f(truth, answer, 2.0, classes=classes)


def f_half(truth: Any, answer: Any, classes: Any = None) -> float:
    """As F1, precision counting more."""
    return _f(truth, answer, 0.5, classes=classes)


def f1_macro(truth: Any, answer: Any) -> float:
    """The mean of the F1 of all classes."""
    return _f(truth, answer, 1.0, "macro")


def f1_micro(truth: Any, answer: Any) -> float:
    """F1 over all decisions: where each row has one label, the share of right ones."""
    return accuracy(truth, answer)


def f1_weighted(truth: Any, answer: Any) -> float:
    """The mean of the F1 of all classes, each weighing as many rows as it has."""
    return _f(truth, answer, 1.0, "weighted")


def precision(truth: Any, answer: Any, classes: Any = None) -> float:
    """Of the rows that are said to be positive, the share that is."""
    right, said, _ = _looked_at(truth, answer, classes)
    return float(_shares(right, said).mean())


def recall(truth: Any, answer: Any, classes: Any = None) -> float:
    """Of the positive rows, the share that is found."""
    right, _, are = _looked_at(truth, answer, classes)
    return float(_shares(right, are).mean())


def matthews(truth: Any, answer: Any) -> float:
    """The correlation of two labellings."""
    _, table = _counts(truth, answer)
    said, are, count = table.sum(axis=0).astype(float), table.sum(axis=1).astype(float), float(table.sum())
    below = math.sqrt((count**2 - said @ said) * (count**2 - are @ are))
    return float((table.trace() * count - said @ are) / below) if below else 0.0


def kappa(truth: Any, answer: Any) -> float:
    """Agreement beyond chance."""
    return _kappa(truth, answer, None)


def quadratic_kappa(truth: Any, answer: Any) -> float:
    """Agreement of grades beyond chance; an error weighs as the square of its distance."""
    return _kappa(truth, answer, "quadratic")


def _kappa(truth: Any, answer: Any, weights: str | None) -> float:
    import numpy as np

    labels, table = _counts(truth, answer)
    if len(labels) == 1:
        return 0.0  # nothing but chance agrees here
    places = np.arange(len(labels))
    apart = (places[:, None] - places) ** 2 if weights else places[:, None] != places
    by_chance = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return float(1 - (apart * table).sum() / (apart * by_chance).sum())


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


# --- probabilities -------------------------------------------------------------------------------------------------


def _normal(answer: Any) -> Any:
    import numpy as np

    known = np.clip(answer, 0.0, None)
    return np.clip(known / np.maximum(known.sum(axis=1, keepdims=True), SMALLEST), SMALLEST, 1.0)


def log_loss(truth: Any, answer: Any) -> float:
    """The mean negative logarithm of what was given to the right class; rows are scaled to a sum of 1."""
    import numpy as np

    return float(-np.log(_normal(answer)[np.arange(len(truth)), truth]).mean())


def brier(truth: Any, answer: Any) -> float:
    """The mean squared error of the probabilities: of the second class alone where there are two."""
    import numpy as np

    if answer.shape[1] == 2:
        return float(np.mean((answer[:, 1] - truth) ** 2))
    return float(np.mean(((answer - np.eye(answer.shape[1])[truth]) ** 2).sum(axis=1)))


def _one_against_rest(truth: Any, answer: Any, figure: Callable[[Any, Any], float]) -> float:
    """A figure of two classes; of more, the mean over the classes that occur and do not stand alone."""
    import numpy as np

    if not np.isfinite(answer).all():
        raise ValueError("the answers hold what is no number")
    if answer.shape[1] == 2:
        return figure(truth == 1, answer[:, 1])
    present = [label for label in np.unique(truth) if (truth != label).any()]
    return float(np.mean([figure(truth == label, answer[:, label]) for label in present]))


def roc_auc(truth: Any, answer: Any) -> float:
    """How often a row of the class gets more than one of another class."""
    if len(set(truth.tolist())) < 2:
        raise ValueError("the rows hold one class only")
    return _one_against_rest(truth, answer, _area)


def _area(is_it: Any, chance: Any) -> float:
    """Of all pairs of a row that is and one that is not, the share in which the first has more; ties are half."""
    import numpy as np

    _, place, counts = np.unique(chance, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    are = int(is_it.sum())
    return float((ranks[is_it].sum() - are * (are + 1) / 2) / (are * (len(is_it) - are)))


def average_precision(truth: Any, answer: Any) -> float:
    """The area under the curve of precision and recall."""
    if not (truth > 0).any():
        raise ValueError("the rows hold one class only")
    return _one_against_rest(truth, answer, _mean_precision)


def _mean_precision(is_it: Any, chance: Any) -> float:
    """The precision down to each different chance, weighted by the rows that are found there."""
    import numpy as np

    _, place, counts = np.unique(-chance, return_inverse=True, return_counts=True)
    found = np.bincount(place, weights=is_it)
    return float((found * np.cumsum(found) / np.cumsum(counts)).sum() / is_it.sum())


def _top(truth: Any, answer: Any, count: int) -> float:
    import numpy as np

    best = np.argsort(-answer, axis=1, kind="stable")[:, :count]
    return float((best == truth[:, None]).any(axis=1).mean())


def top_3(truth: Any, answer: Any) -> float:
    """How often the right class is among the first three."""
    return _top(truth, answer, 3)


def top_5(truth: Any, answer: Any) -> float:
    """How often the right class is among the first five."""
    return _top(truth, answer, 5)


# --- numbers ---------------------------------------------------------------------------------------------------------


def mse(truth: Any, answer: Any) -> float:
    """The mean squared error."""
    return float(((truth - answer) ** 2).mean())


def rmse(truth: Any, answer: Any) -> float:
    """The root of the mean squared error."""
    return math.sqrt(mse(truth, answer))


def msle(truth: Any, answer: Any) -> float:
    """The mean squared error of the logarithms; answers below zero count as zero."""
    import numpy as np

    return mse(np.log1p(truth), np.log1p(np.clip(answer, 0.0, None)))


def rmsle(truth: Any, answer: Any) -> float:
    """The root of the mean squared error of the logarithms."""
    return math.sqrt(msle(truth, answer))


def mae(truth: Any, answer: Any) -> float:
    """The mean absolute error."""
    return float(abs(truth - answer).mean())


def median_absolute_error(truth: Any, answer: Any) -> float:
    """The median of the absolute errors."""
    import numpy as np

    return float(np.median(abs(truth - answer)))


def max_error(truth: Any, answer: Any) -> float:
    """The largest error."""
    return float(abs(truth - answer).max())


def mape(truth: Any, answer: Any) -> float:
    """The mean error as a share of the truth, over the rows whose truth is not zero."""
    told = truth != 0
    return float((abs(truth - answer)[told] / abs(truth)[told]).mean())


def smape(truth: Any, answer: Any) -> float:
    """The mean of 200 |error| / (|truth| + |answer|), nothing where both are zero."""
    import numpy as np

    size = abs(truth) + abs(answer)
    return float((200 * abs(truth - answer) / np.where(size == 0, 1.0, size)).mean())


def wape(truth: Any, answer: Any) -> float:
    """The sum of the errors as a share of the sum of the truth."""
    return float(abs(truth - answer).sum() / abs(truth).sum())


def rmspe(truth: Any, answer: Any) -> float:
    """The root of the mean squared relative error, over the rows whose truth is not zero."""
    told = truth != 0
    return math.sqrt(float((((truth - answer)[told] / truth[told]) ** 2).mean()))


def pinball(truth: Any, answer: Any) -> float:
    """The loss of the median."""
    return mae(truth, answer) / 2


def poisson_deviance(truth: Any, answer: Any) -> float:
    """The deviance of counts."""
    import numpy as np
    from sklearn.metrics import mean_poisson_deviance

    return float(mean_poisson_deviance(truth, np.clip(answer, 1e-9, None)))


def gamma_deviance(truth: Any, answer: Any) -> float:
    """The deviance of amounts above zero."""
    import numpy as np
    from sklearn.metrics import mean_gamma_deviance

    return float(mean_gamma_deviance(truth, np.clip(answer, 1e-9, None)))


def r2(truth: Any, answer: Any) -> float:
    """The share of the variance that is explained."""
    from sklearn.metrics import r2_score

    return float(r2_score(truth, answer))


def explained_variance(truth: Any, answer: Any) -> float:
    """As R2, a constant error forgiven."""
    from sklearn.metrics import explained_variance_score

    return float(explained_variance_score(truth, answer))


def _correlation(truth: Any, answer: Any, name: str) -> float:
    import warnings

    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant answers, whose correlation is nothing
        return _or_zero(float(getattr(stats, name)(truth, answer)[0]))


def pearson(truth: Any, answer: Any) -> float:
    """The linear correlation."""
    return _correlation(truth, answer, "pearsonr")


def spearman(truth: Any, answer: Any) -> float:
    """The correlation of the ranks."""
    return _correlation(truth, answer, "spearmanr")


def kendall(truth: Any, answer: Any) -> float:
    """The agreement of all pairs."""
    return _correlation(truth, answer, "kendalltau")


def gini(truth: Any, answer: Any) -> float:
    """The normalised Gini coefficient: how well the answers sort the truth, against its own order.

    Rows with the same answer count as the mean of their truth: which one comes first in the file says nothing.
    """
    import numpy as np

    def area(sorted_by: Any) -> float:
        _, place, counts = np.unique(-sorted_by, return_inverse=True, return_counts=True)
        means = np.bincount(place, weights=truth) / counts
        gained = np.cumsum(np.repeat(means, counts)) / truth.sum()
        return float((gained - np.arange(1, len(truth) + 1) / len(truth)).sum())

    best = area(truth)
    return area(answer) / best if best else 0.0


# --- rankings, label sets, texts -----------------------------------------------------------------------------------


def _map_at(truth: Any, answer: Any, count: int) -> float:
    """One right label a row: 1 / place where it stands among the first, else nothing."""
    total = 0.0
    for right, said in zip(truth, answer, strict=True):
        guesses = list(dict.fromkeys(str(said).split()))[:count]
        if str(right) in guesses:
            total += 1 / (guesses.index(str(right)) + 1)
    return total / len(truth)


def map_at_3(truth: Any, answer: Any) -> float:
    """The mean average precision of three guesses."""
    return _map_at(truth, answer, 3)


def map_at_5(truth: Any, answer: Any) -> float:
    """The mean average precision of five guesses."""
    return _map_at(truth, answer, 5)


def map_at_10(truth: Any, answer: Any) -> float:
    """The mean average precision of ten guesses."""
    return _map_at(truth, answer, 10)


def _multilabel_f1(truth: Any, answer: Any, average: str) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(truth, answer, average=average, zero_division=0))


def multilabel_f1_micro(truth: Any, answer: Any) -> float:
    """F1 over all labels of all rows."""
    return _multilabel_f1(truth, answer, "micro")


def multilabel_f1_macro(truth: Any, answer: Any) -> float:
    """The mean F1 of the labels."""
    return _multilabel_f1(truth, answer, "macro")


def multilabel_f1_samples(truth: Any, answer: Any) -> float:
    """The mean F1 of the rows."""
    return _multilabel_f1(truth, answer, "samples")


def hamming(truth: Any, answer: Any) -> float:
    """The share of wrong decisions over all labels."""
    return float((truth != answer).mean())


def _edits(wanted: list[str], said: list[str]) -> int:
    """The fewest insertions, deletions and changes that make one sequence of the other."""
    row = list(range(len(said) + 1))
    for i, token in enumerate(wanted, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(said, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (token != other))
    return row[-1]


@lru_cache(maxsize=MOST_EDITS)
def _word_edits(wanted: str, said: str) -> int:
    return _edits(wanted.split(), said.split())


@lru_cache(maxsize=MOST_EDITS)
def _character_edits(wanted: str, said: str) -> int:
    return _edits(list(wanted), list(said))


def word_error_rate(truth: Any, answer: Any) -> float:
    """The edits of words that the texts need, as a share of the words."""
    edits = sum(_word_edits(str(t), str(a)) for t, a in zip(truth, answer, strict=True))
    return edits / max(sum(len(str(text).split()) for text in truth), 1)


def character_error_rate(truth: Any, answer: Any) -> float:
    """The edits of characters that the texts need, as a share of the characters."""
    edits = sum(_character_edits(str(t), str(a)) for t, a in zip(truth, answer, strict=True))
    return edits / max(sum(len(str(text)) for text in truth), 1)
