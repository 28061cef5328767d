"""The metrics that scripts can compute: how each is spelt, what it wants predicted, and how predictions become answers.

To add one, append an entry to `METRICS`. `score` is an expression over the truth `y` and the answer `p`:

- kind `probability`: `p` holds one column per class, `y` class numbers;
- kind `label`: `p` holds class numbers, made from probabilities by `decide`;
- kind `ordinal`: the models predict a number, which `decide` cuts into class numbers;
- kind `number`: `p` holds numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

MetricKind = Literal["probability", "label", "ordinal", "number"]

MOST_PROBABLE = '''
def decide(y, known, others):
    """The most probable class."""
    return [p.argmax(axis=1) for p in others]
'''
BEST_CUT = '''
def decide(y, known, others):
    """Class 1 from the cut upwards that serves the metric best on the rows in `known`, small bumps smoothed away."""
    cuts = np.linspace(0.02, 0.98, 97)
    scores = np.array([score(y, (known[:, 1] >= cut).astype(int)) for cut in cuts])
    smooth = np.convolve(np.pad(scores, 3, mode="edge"), np.ones(7) / 7, mode="valid")
    best = cuts[smooth.argmax()]
    return [(p[:, 1] >= best).astype(int) for p in others]
'''
CLASS_FACTORS = '''
def decide(y, known, others):
    """The class with the highest probability times a factor of its own; factors found on the rows in `known`."""
    factors = np.ones(known.shape[1])
    for _ in range(2):
        for k in range(len(factors) if len(factors) <= 12 else 0):
            tries = factors[k] * np.array([1.0, 0.6, 0.75, 0.87, 1.15, 1.33, 1.6])
            scores = []
            for factor in tries:
                factors[k] = factor
                scores.append(score(y, (known * factors).argmax(axis=1)))
            factors[k] = tries[int(np.argmax(scores))]
    return [(p * factors).argmax(axis=1) for p in others]
'''
BY_SHARE = '''
def decide(y, known, others):
    """The class whose probability is highest against its share of the rows: every class weighs the same."""
    share = np.bincount(y, minlength=known.shape[1]) / len(y)
    return [(p / np.maximum(share, 1e-9)).argmax(axis=1) for p in others]
'''
CUT_POINTS = '''
def decide(y, known, others):
    """Classes by cut points between them, moved one at a time to where the metric is best on the rows in `known`."""
    cuts = np.arange(len(classes) - 1) + 0.5
    for width in (0.4, 0.15):
        for k in range(len(cuts)):
            tries = cuts[k] + np.linspace(-width, width, 13)
            moved = [np.sort(np.append(np.delete(cuts, k), cut)) for cut in tries]
            cuts = max(moved, key=lambda candidate: score(y, np.digitize(known, candidate)))
    return [np.digitize(p, cuts) for p in others]
'''
NOT_NEGATIVE = '''
def decide(y, known, others):
    """Numbers that the metric is defined for: none below zero."""
    return [np.clip(p, 0, None) for p in others]
'''


@dataclass(frozen=True)
class Metric:
    """How a metric is computed and served. `multiclass` replaces `score` where there are more than two classes."""

    name: str
    aliases: tuple[str, ...]
    kind: MetricKind
    score: str
    higher: bool = True
    multiclass: str = ""
    decide: str = ""
    multiclass_decide: str = ""
    imports: tuple[str, ...] = ()
    log_target: bool = False
    loss: Literal["squared", "absolute"] = "squared"
    negated: bool = False

    def expression(self, classes: int) -> str:
        """The score as an expression, with the sign that the task's direction asks for."""
        text = self.multiclass if classes > 2 and self.multiclass else self.score
        return f"-({text})" if self.negated else text

    def decision(self, classes: int) -> str:
        """The code of `decide`, or nothing when the blend itself is the answer."""
        text = self.multiclass_decide if classes > 2 and self.multiclass_decide else self.decide
        return text.strip("\n")

    @property
    def name_of_score(self) -> str:
        """The scikit-learn function that the score needs, if any."""
        return self.imports[0] if self.imports else ""


_SM = "sklearn.metrics"

METRICS: tuple[Metric, ...] = (
    # --- probabilities
    Metric(
        "average_precision", ("averageprecision", "prauc", "auprc", "auroprc", "aucpr", "precisionrecall"),
        "probability", "average_precision_score(y, p[:, 1])",
        multiclass="average_precision_score(np.eye(p.shape[1])[y], p)", imports=("average_precision_score",),
    ),
    Metric(
        "roc_auc", ("auc", "rocauc", "areaundertheroccurve", "areaunderroc", "auroc", "receiveroperating"),
        "probability", "roc_auc_score(y, p[:, 1])",
        multiclass="roc_auc_score(y, p / p.sum(axis=1, keepdims=True), multi_class='ovr', "
        "labels=np.arange(p.shape[1]))",
        imports=("roc_auc_score",),
    ),
    Metric(
        "gini", ("gini", "normalizedgini", "ginicoefficient"), "probability", "2 * roc_auc_score(y, p[:, 1]) - 1",
        imports=("roc_auc_score",),
    ),
    Metric(
        "log_loss", ("logloss", "crossentropy", "multiclassloss", "logarithmicloss", "mlogloss"),
        "probability", "log_loss(y, np.clip(p, 1e-6, 1) / np.clip(p, 1e-6, 1).sum(axis=1, keepdims=True), "
        "labels=np.arange(p.shape[1]))", higher=False, imports=("log_loss",),
    ),
    Metric(
        "brier", ("brier", "brierscore", "brierscoreloss"), "probability", "np.mean((p[:, 1] - y) ** 2)",
        multiclass="np.mean(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1))", higher=False,
    ),
    # --- labels
    Metric(
        "balanced_accuracy", ("balancedaccuracy", "bacc", "macrorecall", "recallmacro", "uar", "balancedacc"), "label",
        "balanced_accuracy_score(y, p)", decide=BY_SHARE, imports=("balanced_accuracy_score",),
    ),
    Metric(
        "f1_macro", ("f1macro", "macrof1", "macroaveragedf1", "macrof1score", "meanf1", "f1scoremacro"), "label",
        'f1_score(y, p, average="macro")', decide=CLASS_FACTORS, imports=("f1_score",),
    ),
    Metric(
        "f1_micro", ("f1micro", "microf1", "microaveragedf1"), "label", 'f1_score(y, p, average="micro")',
        decide=MOST_PROBABLE, imports=("f1_score",),
    ),
    Metric(
        "f1_weighted", ("f1weighted", "weightedf1"), "label", 'f1_score(y, p, average="weighted")',
        decide=CLASS_FACTORS, imports=("f1_score",),
    ),
    Metric(
        "f2", ("f2", "f2score", "fbeta2"), "label", "fbeta_score(y, p, beta=2)", decide=BEST_CUT,
        multiclass='fbeta_score(y, p, beta=2, average="macro")', multiclass_decide=CLASS_FACTORS,
        imports=("fbeta_score",),
    ),
    Metric(
        "f1", ("f1", "f1score", "fscore", "fmeasure", "binaryf1"), "label", "f1_score(y, p)", decide=BEST_CUT,
        multiclass='f1_score(y, p, average="macro")', multiclass_decide=CLASS_FACTORS, imports=("f1_score",),
    ),
    Metric(
        "mcc", ("mcc", "matthews", "matthewscorrcoef", "matthewscorrelationcoefficient"), "label",
        "matthews_corrcoef(y, p)", decide=BEST_CUT, multiclass_decide=MOST_PROBABLE, imports=("matthews_corrcoef",),
    ),
    Metric(
        "qwk", ("qwk", "quadraticweightedkappa", "quadratickappa", "weightedkappa", "cohenkappaquadratic"), "ordinal",
        'cohen_kappa_score(y, p, weights="quadratic")', decide=CUT_POINTS, imports=("cohen_kappa_score",),
    ),
    Metric(
        "kappa", ("kappa", "cohenkappa", "cohenskappa"), "label", "cohen_kappa_score(y, p)", decide=MOST_PROBABLE,
        imports=("cohen_kappa_score",),
    ),
    Metric(
        "precision", ("precision", "precisionmacro"), "label",
        'precision_score(y, p, average="macro", zero_division=0)', decide=MOST_PROBABLE, imports=("precision_score",),
    ),
    Metric(
        "recall", ("recall", "sensitivity"), "label", "recall_score(y, p)", decide=MOST_PROBABLE,
        multiclass='recall_score(y, p, average="macro")', imports=("recall_score",),
    ),
    Metric(
        "error_rate", ("errorrate", "misclassification", "classificationerror", "zerooneloss", "hammingloss"), "label",
        "np.mean(y != p)", decide=MOST_PROBABLE, higher=False,
    ),
    Metric(
        "accuracy", ("accuracy", "acc", "categorizationaccuracy", "accuracyscore"), "label", "accuracy_score(y, p)",
        decide=MOST_PROBABLE, imports=("accuracy_score",),
    ),
    # --- numbers
    Metric(
        "rmsle", ("rmsle", "rootmeansquaredlogarithmicerror", "rootmeansquaredlogerror"), "number",
        "np.sqrt(np.mean((np.log1p(y) - np.log1p(np.clip(p, 0, None))) ** 2))", higher=False, decide=NOT_NEGATIVE,
        log_target=True,
    ),
    Metric(
        "msle", ("msle", "meansquaredlogarithmicerror", "meansquaredlogerror"), "number",
        "np.mean((np.log1p(y) - np.log1p(np.clip(p, 0, None))) ** 2)", higher=False, decide=NOT_NEGATIVE,
        log_target=True,
    ),
    Metric(
        "rmspe", ("rmspe", "rootmeansquarepercentageerror"), "number",
        "np.sqrt(np.mean(((y[y != 0] - p[y != 0]) / y[y != 0]) ** 2))", higher=False, log_target=True,
    ),
    Metric(
        "smape", ("smape", "symmetricmeanabsolutepercentageerror"), "number",
        "100 * np.mean(2 * np.abs(y - p) / np.maximum(np.abs(y) + np.abs(p), 1e-9))", higher=False, log_target=True,
        loss="absolute",
    ),
    Metric(
        "mape", ("mape", "meanabsolutepercentageerror"), "number",
        "np.mean(np.abs(y[y != 0] - p[y != 0]) / np.abs(y[y != 0]))", higher=False, log_target=True, loss="absolute",
    ),
    Metric(
        "rmse", ("rmse", "rootmeansquarederror", "rootmeansquareerror", "mcrmse"), "number",
        "np.sqrt(np.mean((y - p) ** 2))", higher=False,
    ),
    Metric("mse", ("mse", "meansquarederror", "l2"), "number", "np.mean((y - p) ** 2)", higher=False),
    Metric(
        "medae", ("medae", "medianabsoluteerror"), "number", "np.median(np.abs(y - p))", higher=False, loss="absolute"
    ),
    Metric(
        "mae", ("mae", "meanabsoluteerror", "l1"), "number", "np.mean(np.abs(y - p))", higher=False, loss="absolute"
    ),
    Metric(
        "r2", ("r2", "r2score", "rsquared", "coefficientofdetermination", "rsq", "explainedvariance"), "number",
        "1 - np.sum((y - p) ** 2) / np.sum((y - y.mean()) ** 2)",
    ),
    Metric(
        "spearman", ("spearman", "spearmanr", "rankcorrelation"), "number", "spearmanr(y, p)[0]",
        imports=("scipy.stats:spearmanr",),
    ),
    Metric("pearson", ("pearson", "pearsonr", "correlation"), "number", "np.corrcoef(y, p)[0, 1]"),
)  # fmt: skip


def find_metric(name: str, direction: str, *, numeric_target: bool) -> Metric:
    """The metric that a task's word means; for an unknown one, the usual one for its direction and target."""
    wanted = re.sub(r"[^a-z0-9]", "", name.lower())
    wanted = re.sub(r"^(negative|neg)", "", wanted) or wanted
    metric = next((m for m in METRICS if wanted in {*m.aliases, re.sub(r"[^a-z0-9]", "", m.name)}), None)
    if metric is None and len(wanted) > 3:
        metric = next((m for m in METRICS if any(_telling(a) and a in wanted for a in m.aliases)), None)
    if metric is None:
        usual = {(True, True): "r2", (True, False): "rmse", (False, True): "accuracy", (False, False): "log_loss"}
        metric = _named(usual[numeric_target, direction == "maximize"])
    if metric.higher != (direction == "maximize"):
        metric = replace(metric, negated=True, higher=not metric.higher)
    return metric


def _named(name: str) -> Metric:
    return next(metric for metric in METRICS if metric.name == name)


def _telling(alias: str) -> bool:
    """Is this alias long or odd enough to be looked for inside a longer text?"""
    return len(alias) > 2 or alias in {"f1", "f2", "r2"}
