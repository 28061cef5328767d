"""How scripts serve a metric: the expression that computes it, what it wants predicted, how predictions become answers.

To add one, append an entry to `RECIPES` under its name in `mle_star.data.metrics`. `score` is an expression over the
truth `y` and the answer `p`:

- kind `probability`: `p` holds one column per class, `y` class numbers;
- kind `label`: `p` holds class numbers, made from probabilities by `decide`;
- kind `ordinal`: the models predict a number, which `decide` cuts into class numbers;
- kind `number`: `p` holds numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mle_star.data import metrics as known
from mle_star.errors import ConfigError

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
class Recipe:
    """How a metric is computed and served. `multiclass` replaces `score` where there are more than two classes."""

    kind: MetricKind
    score: str
    multiclass: str = ""
    decide: str = ""
    multiclass_decide: str = ""
    imports: tuple[str, ...] = ()
    log_target: bool = False
    loss: Literal["squared", "absolute"] = "squared"


@dataclass(frozen=True)
class Metric:
    """A metric of the task, with its recipe."""

    name: str
    higher: bool
    recipe: Recipe

    @property
    def kind(self) -> MetricKind:
        """What the models must predict."""
        return self.recipe.kind

    @property
    def loss(self) -> str:
        """The loss that models for it are fitted by."""
        return self.recipe.loss

    @property
    def log_target(self) -> bool:
        """Is it an error of logarithms?"""
        return self.recipe.log_target

    def expression(self, classes: int) -> str:
        """The score as an expression."""
        return self.recipe.multiclass if classes > 2 and self.recipe.multiclass else self.recipe.score

    def decision(self, classes: int) -> str:
        """The code of `decide`, or nothing when the blend itself is the answer."""
        recipe = self.recipe
        text = recipe.multiclass_decide if classes > 2 and recipe.multiclass_decide else recipe.decide
        return text.strip("\n")

    @property
    def imports(self) -> tuple[str, ...]:
        """The functions that the score needs, of scikit-learn where no module is named."""
        return self.recipe.imports


def _f(beta: str) -> Recipe:
    return Recipe(
        "label", f"fbeta_score(y, p, beta={beta})", f'fbeta_score(y, p, beta={beta}, average="macro")', BEST_CUT,
        CLASS_FACTORS, ("fbeta_score",),
    )  # fmt: skip


_RMSE = Recipe("number", "np.sqrt(np.mean((y - p) ** 2))")
_RMSLE = Recipe(
    "number", "np.sqrt(np.mean((np.log1p(y) - np.log1p(np.clip(p, 0, None))) ** 2))", decide=NOT_NEGATIVE,
    log_target=True,
)  # fmt: skip

RECIPES: dict[str, Recipe] = {
    # --- probabilities
    "average_precision": Recipe(
        "probability", "average_precision_score(y, p[:, 1])", "average_precision_score(np.eye(p.shape[1])[y], p)",
        imports=("average_precision_score",),
    ),
    "roc_auc": Recipe(
        "probability", "roc_auc_score(y, p[:, 1])",
        "roc_auc_score(y, p / p.sum(axis=1, keepdims=True), multi_class='ovr', labels=np.arange(p.shape[1]))",
        imports=("roc_auc_score",),
    ),
    "gini": Recipe("probability", "2 * roc_auc_score(y, p[:, 1]) - 1", imports=("roc_auc_score",)),
    "log_loss": Recipe(
        "probability", "log_loss(y, np.clip(p, 1e-6, 1) / np.clip(p, 1e-6, 1).sum(axis=1, keepdims=True), "
        "labels=np.arange(p.shape[1]))", imports=("log_loss",),
    ),
    "brier_score": Recipe(
        "probability", "np.mean((p[:, 1] - y) ** 2)", "np.mean(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1))"
    ),
    "top_3_accuracy": Recipe("probability", "np.mean((np.argsort(-p, axis=1)[:, :3] == y[:, None]).any(axis=1))"),
    "top_5_accuracy": Recipe("probability", "np.mean((np.argsort(-p, axis=1)[:, :5] == y[:, None]).any(axis=1))"),
    # --- labels
    "accuracy": Recipe("label", "accuracy_score(y, p)", decide=MOST_PROBABLE, imports=("accuracy_score",)),
    "error_rate": Recipe("label", "np.mean(y != p)", decide=MOST_PROBABLE),
    "balanced_accuracy": Recipe(
        "label", "balanced_accuracy_score(y, p)", decide=BY_SHARE, imports=("balanced_accuracy_score",)
    ),
    "f1": Recipe(
        "label", "f1_score(y, p)", 'f1_score(y, p, average="macro")', BEST_CUT, CLASS_FACTORS, ("f1_score",)
    ),
    "f1_macro": Recipe("label", 'f1_score(y, p, average="macro")', decide=CLASS_FACTORS, imports=("f1_score",)),
    "f1_micro": Recipe("label", 'f1_score(y, p, average="micro")', decide=MOST_PROBABLE, imports=("f1_score",)),
    "f1_weighted": Recipe("label", 'f1_score(y, p, average="weighted")', decide=CLASS_FACTORS, imports=("f1_score",)),
    "f2": _f("2"),
    "f0.5": _f("0.5"),
    "precision": Recipe(
        "label", "precision_score(y, p, zero_division=0)", 'precision_score(y, p, average="macro", zero_division=0)',
        MOST_PROBABLE, imports=("precision_score",),
    ),
    "recall": Recipe(
        "label", "recall_score(y, p)", 'recall_score(y, p, average="macro")', MOST_PROBABLE, imports=("recall_score",)
    ),
    "matthews_corrcoef": Recipe(
        "label", "matthews_corrcoef(y, p)", decide=BEST_CUT, multiclass_decide=MOST_PROBABLE,
        imports=("matthews_corrcoef",),
    ),
    "cohen_kappa": Recipe("label", "cohen_kappa_score(y, p)", decide=MOST_PROBABLE, imports=("cohen_kappa_score",)),
    "quadratic_weighted_kappa": Recipe(
        "ordinal", 'cohen_kappa_score(y, p, weights="quadratic")', decide=CUT_POINTS, imports=("cohen_kappa_score",)
    ),
    # --- numbers
    "rmse": _RMSE,
    "mcrmse": _RMSE,  # scripts take the mean over the targets in any case
    "rmsle": _RMSLE,
    "mcrmsle": _RMSLE,
    "mse": Recipe("number", "np.mean((y - p) ** 2)"),
    "msle": Recipe(
        "number", "np.mean((np.log1p(y) - np.log1p(np.clip(p, 0, None))) ** 2)", decide=NOT_NEGATIVE, log_target=True
    ),
    "mae": Recipe("number", "np.mean(np.abs(y - p))", loss="absolute"),
    "median_absolute_error": Recipe("number", "np.median(np.abs(y - p))", loss="absolute"),
    "max_error": Recipe("number", "np.max(np.abs(y - p))"),
    "pinball_loss": Recipe("number", "np.mean(np.abs(y - p)) / 2", loss="absolute"),
    "mape": Recipe(
        "number", "np.mean(np.abs(y[y != 0] - p[y != 0]) / np.abs(y[y != 0]))", log_target=True, loss="absolute"
    ),
    "smape": Recipe(
        "number", "np.mean(200 * np.abs(y - p) / np.maximum(np.abs(y) + np.abs(p), 1e-9))", log_target=True,
        loss="absolute",
    ),
    "wape": Recipe("number", "np.sum(np.abs(y - p)) / np.sum(np.abs(y))", loss="absolute"),
    "rmspe": Recipe("number", "np.sqrt(np.mean(((y[y != 0] - p[y != 0]) / y[y != 0]) ** 2))", log_target=True),
    "mean_poisson_deviance": Recipe(
        "number", "mean_poisson_deviance(y, np.clip(p, 1e-9, None))", decide=NOT_NEGATIVE,
        imports=("mean_poisson_deviance",),
    ),
    "mean_gamma_deviance": Recipe(
        "number", "mean_gamma_deviance(y, np.clip(p, 1e-9, None))", decide=NOT_NEGATIVE,
        imports=("mean_gamma_deviance",), log_target=True,
    ),
    "r2": Recipe("number", "1 - np.sum((y - p) ** 2) / np.sum((y - y.mean()) ** 2)"),
    "explained_variance": Recipe("number", "1 - np.var(y - p) / np.var(y)"),
    "pearson": Recipe("number", "np.corrcoef(y, p)[0, 1]"),
    "spearman": Recipe("number", "spearmanr(y, p)[0]", imports=("scipy.stats:spearmanr",)),
    "kendall": Recipe("number", "kendalltau(y, p)[0]", imports=("scipy.stats:kendalltau",)),
}  # fmt: skip


def find_metric(words: str) -> Metric:
    """The metric that a task's words mean; one that scripts here cannot compute is refused, never replaced."""
    named = known.find_metric(words)
    told = None if named is not None else known.metric_in_prose(f"Metric: {words}")
    metric = named or (told[0] if told else None) or known.known_metric(words)
    if metric.name not in RECIPES:
        raise ConfigError(f"it cannot compute {metric.name}; it knows {', '.join(RECIPES)}")
    return Metric(metric.name, metric.higher_is_better, RECIPES[metric.name])
