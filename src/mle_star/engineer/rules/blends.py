"""Ways to combine the predictions of several models: the `combine` of a script, learned from out-of-fold predictions.

To add one, append an entry to `BLENDS`. Its code defines `combine(y, known, others)`: `known` holds the out-of-fold
predictions of every model with the truth `y`, `others` predictions of the same models for other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mle_star.engineer.rules.profile import Profile


@dataclass(frozen=True)
class Blend:
    """One way. `judges`: its code calls `judge(y, p)`, higher for better. `numbers` replaces `code` for regression."""

    title: str
    why: str
    code: str
    worth: Callable[[Profile], float]
    judges: bool = False
    numbers: str = ""
    imports: tuple[str, ...] = ()
    number_imports: tuple[str, ...] = ()

    def code_for(self, profile: Profile) -> str:
        """The code for a task."""
        return (self.numbers if profile.numeric and self.numbers else self.code).strip("\n")

    def imports_for(self, profile: Profile) -> tuple[str, ...]:
        """The imports of that code."""
        lines = self.number_imports if profile.numeric and self.numbers else self.imports
        judged = ("from sklearn.metrics import log_loss",) if self.judges and _by_log_loss(profile) else ()
        return (*lines, *judged)


def _by_log_loss(profile: Profile) -> bool:
    return profile.metric.kind == "label"


def judge_code(profile: Profile) -> str:
    """How good a blend is, higher for better: by the metric, or by a smooth stand-in where the metric counts labels."""
    if _by_log_loss(profile):
        body = '"""Higher is better: the log loss, as counts of labels are too coarse to weigh by."""\n    '
        body += "p = np.clip(p, 1e-6, 1)\n    "
        body += "return -log_loss(y, p / p.sum(axis=1, keepdims=True), labels=np.arange(p.shape[1]))"
    elif profile.metric.kind == "ordinal":
        body = '"""Higher is better: the squared error, as counts of labels are too coarse to weigh by."""\n    '
        body += "return -np.mean((y - p) ** 2)"
    else:
        sign, word = ("", "") if profile.metric.higher else ("-", ", negated")
        body = f'"""Higher is better: the metric{word}."""\n    return {sign}score(y, p)'
    return f"def judge(y, p):\n    {body}"


MEAN = '''
def combine(y, known, others):
    """The mean of the models' predictions."""
    return [np.mean(list(other.values()), axis=0) for other in others]
'''
WEIGHTS = '''
def combine(y, known, others):
    """A weighted mean: again and again the model is added that helps the blend most on (at most 8000 of) `known`."""
    rows = np.random.default_rng(SEED).permutation(len(y))[:8000]
    total, times = 0.0, dict.fromkeys(known, 0)
    for size in range(1, 21):
        best = max(known, key=lambda name: judge(y[rows], (total + known[name][rows]) / size))
        total = total + known[best][rows]
        times[best] += 1
    return [sum(times[name] * other[name] for name in times) / 20 for other in others]
'''
LOG_MEAN = '''
def combine(y, known, others):
    """The geometric mean of the models' probabilities: one sure model outweighs several undecided ones."""
    means = [np.exp(np.mean([np.log(np.clip(p, 1e-6, 1)) for p in other.values()], axis=0)) for other in others]
    return [mean / mean.sum(axis=1, keepdims=True) for mean in means]
'''
MEDIAN = '''
def combine(y, known, others):
    """The median of the models' predictions: a model that is far off on a row does not count there."""
    return [np.median(list(other.values()), axis=0) for other in others]
'''
RANKS = '''
def combine(y, known, others):
    """The mean of the models' ranks, so that only the order of their predictions counts, not their scale."""
    blends = []
    for other in others:
        spots = [np.searchsorted(np.sort(known[name][:, 1]), p[:, 1]) / len(y) for name, p in other.items()]
        mean = np.mean(spots, axis=0)
        blends.append(np.column_stack([1 - mean, mean]))
    return blends
'''
STACK = '''
def combine(y, known, others):
    """A logistic regression on the models' log-odds, trained on out-of-fold predictions."""

    def table(predictions):
        return np.hstack([np.log(np.clip(p, 1e-5, 1)) - np.log(np.clip(1 - p, 1e-5, 1)) for p in predictions.values()])

    model = LogisticRegression(C=0.05, max_iter=500).fit(table(known), y)
    blends = []
    for other in others:
        full = np.zeros((len(next(iter(other.values()))), len(classes)))
        full[:, model.classes_] = model.predict_proba(table(other))
        blends.append(0.5 * full + 0.5 * np.mean(list(other.values()), axis=0))
    return blends
'''
STACK_NUMBERS = '''
def combine(y, known, others):
    """A linear model without negative weights on the models' predictions, trained on out-of-fold predictions."""
    table = np.column_stack(list(known.values()))
    model = LinearRegression(positive=True).fit(table, y)
    return [model.predict(np.column_stack(list(other.values()))) for other in others]
'''

BLENDS: dict[str, Blend] = {
    "weights": Blend(
        "Weigh the models by their out-of-fold predictions",
        "A plain mean treats the strong and the weak alike; weights found on predictions for held-out rows do not.",
        WEIGHTS,
        lambda p: 0.85 if p.rows > 300 else 0.4,
        judges=True,
    ),
    "stack": Blend(
        "Stack the models with a linear model on top",
        "A linear model on out-of-fold predictions learns how much to trust each, and corrects what they share.",
        STACK,
        lambda p: 0.0 if len(p.classes) > 20 else 0.6 if p.rows > 1_000 else 0.2,
        numbers=STACK_NUMBERS,
        imports=("from sklearn.linear_model import LogisticRegression",),
        number_imports=("from sklearn.linear_model import LinearRegression",),
    ),
    "ranks": Blend(
        "Average the ranks of the predictions",
        "The metric looks at the order alone, and ranks make the scales of different models comparable.",
        RANKS,
        lambda p: 0.65 if p.metric.name in ("roc_auc", "gini", "average_precision") and len(p.classes) == 2 else 0.0,
    ),
    "geometric": Blend(
        "Take the geometric mean of the probabilities",
        "On the log scale a confident model counts for more, which suits losses on the log scale.",
        LOG_MEAN,
        lambda p: 0.0 if p.numeric else 0.5 if p.metric.name == "log_loss" else 0.3,
    ),
    "median": Blend(
        "Take the median of the predictions",
        "The median shrugs off a model that is far off on a row.",
        MEDIAN,
        lambda p: 0.3 if p.numeric and p.metric.loss == "absolute" else 0.15,
    ),
    "mean": Blend(
        "Take the plain mean of the predictions",
        "With few rows, weights that are learned do more harm than good.",
        MEAN,
        lambda p: 0.3 if p.small else 0.1,
    ),
}
