"""The library of refinement moves: what can be done to a block of a script, how to say it, and when it is worth trying.

A plan names moves by their titles, in the order in which they are to be made; `moves_in` reads them back, `apply` makes
them. To add a move: a feature step goes into `features.STEPS`; a change of a model's settings is an entry of
`SETTINGS`; another kind of change is an entry of `MOVES` with a function that rewrites the block.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from mle_star.engineer.rules import features, foreign, models
from mle_star.engineer.rules.blends import BLENDS, judge_code
from mle_star.engineer.rules.profile import Profile
from mle_star.engineer.rules.sections import header, split_imports

Rewrite = Callable[[str, Profile], str]


@dataclass(frozen=True)
class Move:
    """One change. `fits` says how promising it is for a block of a task, 0 for not at all; `cost` how much slower."""

    title: str
    why: str
    fits: Callable[[str, Profile], float]
    rewrite: Rewrite
    cost: float = 1.0


# --- what a block is -------------------------------------------------------------------------------------


def holds(block: str, function: str) -> bool:
    """Does the block define this function?"""
    return re.search(rf"^def {function}\b", block, re.MULTILINE) is not None


def model_keys(block: str) -> list[str]:
    """The keys of the models that a block defines."""
    return re.findall(r"^def fit_(\w+)\(", block, re.MULTILINE)


def function_of(block: str, key: str) -> tuple[int, int] | None:
    """Where the function `fit_KEY` begins and ends in a block."""
    start = re.search(rf"^def fit_{key}\(", block, re.MULTILINE)
    if start is None:
        return None
    end = re.compile(r"\n(?=\S)").search(block, start.end())
    return start.start(), len(block) if end is None else end.end()


def with_imports(block: str, lines: list[str]) -> str:
    """The block with further imports above it, each once."""
    have, _ = split_imports(block)
    new = [line for line in lines if line not in have]
    if not new:
        return block
    first, _, rest = block.partition("\n")
    if first.startswith("# --- "):
        return "\n".join([first, *new, "", "", rest.lstrip("\n")])
    return "\n".join([*new, "", "", block])


# --- features --------------------------------------------------------------------------------------------

_LAST_STEPS = ("selection",)


def _adds_step(step: features.Step) -> Move:
    def fits(block: str, profile: Profile) -> float:
        if not holds(block, "build_features") or f"    # {step.key}:" in block:
            return 0.0
        return step.worth(profile)

    def rewrite(block: str, profile: Profile) -> str:
        paragraph = features.written_for(step, profile)
        ends = [f"    # {key}:" for key in _LAST_STEPS if f"    # {key}:" in block] or ["    return built"]
        changed = block.replace(ends[0], f"{paragraph}\n\n{ends[0]}", 1)
        return with_imports(changed, features.imports_for(step, profile))

    return Move(step.title, step.why, fits, rewrite, cost=1.15)


def step_keys(block: str) -> list[str]:
    """The feature steps that a block holds, in order."""
    return re.findall(r"^    # ([a-z][a-z ]*):", block, re.MULTILINE)


def without_step(block: str, key: str) -> str:
    """The block without one of its feature steps."""
    pattern = rf"^    # {re.escape(key)}:.*?(?=^    # [a-z][a-z ]*:|^    return built)"
    return re.sub(pattern, "", block, count=1, flags=re.MULTILINE | re.DOTALL)


# --- settings of models ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Other values for a model's settings: a text replaces the value, a number multiplies it."""

    key: str
    title: str
    why: str
    values: dict[str, str | float]
    worth: float | Callable[[Profile], float]
    cost: float = 1.0


def change_settings(block: str, key: str, values: dict[str, str | float]) -> str:
    """The block with other settings for one model; a setting that it lacks is added."""
    place = function_of(block, key)
    if place is None:
        return block
    body = block[slice(*place)]
    for name, value in values.items():
        found = re.search(rf"^(\s+){name}=([^,\n]+),$", body, re.MULTILINE)
        if found is None:
            last = re.search(r"^(\s+)(random_state|random_seed)=", body, re.MULTILINE)
            if last is not None and isinstance(value, str):
                body = body[: last.start()] + f"{last[1]}{name}={value},\n" + body[last.start() :]
        else:
            new = value if isinstance(value, str) else _scaled(found[2], value)
            body = body[: found.start(2)] + new + body[found.end(2) :]
    return block[: place[0]] + body + block[place[1] :]


def _scaled(text: str, factor: float) -> str:
    number = float(text) * factor
    return str(max(1, round(number))) if re.fullmatch(r"\d+", text) else f"{number:.2g}"


def _has_early_stopping(block: str) -> bool:
    return "learn, stop = " in block


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "lightgbm", "Let LightGBM learn slower, with more trees",
        "Smaller steps average out the noise of single trees; early stopping finds how many are needed.",
        {"learning_rate": 0.5, "n_estimators": 2.0}, 0.75, cost=1.9,
    ),
    Setting(
        "lightgbm", "Give LightGBM larger trees",
        "More leaves catch interactions between more columns; more rows per leaf and a penalty keep them honest.",
        {"num_leaves": 2.5, "min_child_samples": 1.5, "reg_lambda": "5.0"},
        lambda p: 0.55 if p.rows > 5_000 else 0.2, cost=1.8,
    ),
    Setting(
        "lightgbm", "Give LightGBM smaller trees",
        "Fewer leaves and more rows in each suit data with much noise.",
        {"num_leaves": 0.4, "min_child_samples": 2.0, "n_estimators": 1.5},
        lambda p: 0.45 if not p.numeric or p.rows < 5_000 else 0.25,
    ),
    Setting(
        "lightgbm", "Show each LightGBM tree fewer columns",
        "Trees that see different columns err differently, so their sum errs less.",
        {"colsample_bytree": "0.4", "subsample": "0.7"}, 0.4,
    ),
    Setting(
        "lightgbm", "Draw LightGBM's cuts at random",
        "Random thresholds make the trees differ more, which often pays once many are added up.",
        {"extra_trees": "True", "n_estimators": 1.6}, 0.3, cost=1.4,
    ),
    Setting(
        "lightgbm", "Smooth LightGBM's categories",
        "A stronger penalty on categories with few rows keeps them from being learned by heart.",
        {"cat_smooth": "30.0", "cat_l2": "20.0", "min_data_per_group": "50"},
        lambda p: 0.4 if p.of("category") else 0.0,
    ),
    Setting(
        "xgboost", "Train XGBoost on the absolute error",
        "The metric counts absolute errors, so the loss should, too.",
        {"objective": '"reg:absoluteerror"'},
        lambda p: 0.5 if p.numeric and p.metric.loss == "absolute" else 0.0, cost=2.0,
    ),
    Setting(
        "xgboost", "Let XGBoost learn slower, with more trees",
        "Smaller steps average out the noise of single trees; early stopping finds how many are needed.",
        {"learning_rate": 0.5, "n_estimators": 2.0}, 0.7, cost=1.9,
    ),
    Setting(
        "xgboost", "Give XGBoost deeper trees",
        "Deeper trees catch interactions between more columns; heavier leaves keep them honest.",
        {"max_depth": 1.4, "min_child_weight": 2.5, "reg_lambda": "4.0"},
        lambda p: 0.5 if p.rows > 5_000 else 0.2, cost=1.6,
    ),
    Setting(
        "xgboost", "Give XGBoost shallower trees",
        "Shallow trees suit data with much noise.",
        {"max_depth": 0.67, "n_estimators": 1.5}, lambda p: 0.45 if not p.numeric else 0.25,
    ),
    Setting(
        "xgboost", "Show each XGBoost tree fewer columns",
        "Trees that see different columns err differently, so their sum errs less.",
        {"colsample_bytree": "0.45", "subsample": "0.7"}, 0.4,
    ),
    Setting(
        "catboost", "Let CatBoost learn slower, with more trees",
        "Smaller steps average out the noise of single trees; early stopping finds how many are needed.",
        {"learning_rate": 0.6, "iterations": 1.8}, 0.7, cost=1.8,
    ),
    Setting(
        "catboost", "Give CatBoost deeper trees",
        "Deeper trees catch interactions between more columns.",
        {"depth": 1.34, "l2_leaf_reg": "5.0"}, lambda p: 0.5 if p.rows > 5_000 else 0.2, cost=1.8,
    ),
    Setting(
        "catboost", "Give CatBoost shallower trees",
        "Shallow trees suit data with much noise.",
        {"depth": 0.67, "iterations": 1.3}, lambda p: 0.4 if not p.numeric else 0.2,
    ),
    Setting(
        "catboost", "Shake CatBoost's trees",
        "Random strength in scoring the cuts and resampled rows make the trees differ more.",
        {"random_strength": "2.0", "bagging_temperature": "1.0", "l2_leaf_reg": "6.0"}, 0.35,
    ),
    Setting(
        "extra_trees", "Give the ExtraTrees more columns a cut",
        "With more columns to choose from at each cut the trees find the strong ones more often.",
        {"max_features": "0.7"}, 0.5, cost=1.4,
    ),
    Setting(
        "extra_trees", "Give the ExtraTrees larger leaves",
        "Larger leaves smooth the trees, which helps where the target is noisy.",
        {"min_samples_leaf": 2.5}, 0.45,
    ),
    Setting(
        "random_forest", "Give the RandomForest larger leaves",
        "Larger leaves smooth the trees, which helps where the target is noisy.",
        {"min_samples_leaf": 2.5}, 0.45,
    ),
    Setting(
        "random_forest", "Give the RandomForest more columns a cut",
        "With more columns to choose from at each cut the trees find the strong ones more often.",
        {"max_features": "0.5"}, 0.45, cost=1.3,
    ),
)  # fmt: skip


def _changes_setting(setting: Setting) -> Move:
    def fits(block: str, profile: Profile) -> float:
        if setting.key not in model_keys(block) or change_settings(block, setting.key, setting.values) == block:
            return 0.0
        return setting.worth(profile) if callable(setting.worth) else setting.worth

    return Move(
        setting.title, setting.why, fits,
        lambda block, profile: change_settings(block, setting.key, setting.values), setting.cost,
    )  # fmt: skip


# --- other changes of models -----------------------------------------------------------------------------

BAGGED = '''def bagged(fit_model, times=3):
    """The mean of several fits that differ by their seed."""

    def fit(x, y, others, seed):
        runs = [fit_model(x, y, others, seed + 1000 * k) for k in range(times)]
        return [np.mean(predictions, axis=0) for predictions in zip(*runs)]

    return fit'''
_REFITS = {
    "lightgbm": (
        "    return [model.",
        "    model.set_params(n_estimators=int(1.1 * model.best_iteration_) + 5)\n"
        "    model.fit(x, y)  # on all rows now\n",
    ),
    "xgboost": (
        "    return [model.",
        "    model.set_params(n_estimators=int(1.1 * model.best_iteration) + 5, early_stopping_rounds=None)\n"
        "    model.fit(x, y)  # on all rows now\n",
    ),
    "catboost": (
        "    return [model.",
        "    rounds = int(1.1 * model.get_best_iteration()) + 5\n"
        '    model = type(model)(**{**model.get_params(), "iterations": rounds})\n'
        "    model.fit(x, y, cat_features=list(categories))  # on all rows now\n",
    ),
}


def _refit(key: str, name: str) -> Move:
    anchor, lines = _REFITS[key]

    def fits(block: str, profile: Profile) -> float:
        place = function_of(block, key)
        if place is None or not _has_early_stopping(block[slice(*place)]) or "on all rows now" in block[slice(*place)]:
            return 0.0
        return 0.8 if profile.rows < 30_000 else 0.5

    def rewrite(block: str, profile: Profile) -> str:
        place = function_of(block, key)
        if place is None:
            return block
        body = block[slice(*place)]
        return block[: place[0]] + body.replace(anchor, lines + anchor, 1) + block[place[1] :]

    return Move(
        f"Refit {name} on all training rows with the rounds that were found",
        "The rows held back for early stopping are missed; once the rounds are known they can be learned from.",
        fits, rewrite, cost=2.0,
    )  # fmt: skip


def _bag(model: models.Model) -> Move:
    entry = f'MODELS["{model.name}"] = fit_{model.key}'

    def fits(block: str, profile: Profile) -> float:
        random = model.key in ("lightgbm", "catboost", "xgboost", "network", "hist_boosting")
        if not random or f"{entry}\n" not in f"{block}\n":
            return 0.0
        return 0.75 if profile.rows < 3_000 else 0.5

    def rewrite(block: str, profile: Profile) -> str:
        helper = "" if holds(block, "bagged") else f"{BAGGED}\n\n\n"
        return block.replace(entry, f'{helper}MODELS["{model.name}"] = bagged(fit_{model.key})', 1)

    return Move(
        f"Average {model.name} over several seeds",
        "Fits that differ only by their seed err differently; their mean is steadier than each of them.",
        fits, rewrite, cost=3.0,
    )  # fmt: skip


def _add_model(model: models.Model) -> Move:
    def fits(block: str, profile: Profile) -> float:
        here = model_keys(block)
        if not here or model.key in here or model not in models.catalogue(profile):
            return 0.0
        return 0.9 * model.worth(profile)

    def rewrite(block: str, profile: Profile) -> str:
        section = f"{header(f'model: {model.name}')}\n{models.section(model, profile)}"
        return with_imports(f"{block.rstrip()}\n\n\n{section}", models.imports(model, profile))

    return Move(
        f"Train {model.name} beside the others",
        "A model of another kind errs on other rows, so the combination errs less than its best part.",
        fits, rewrite, cost=1.6,
    )  # fmt: skip


def _drop_model(model: models.Model) -> Move:
    def fits(block: str, profile: Profile) -> float:
        return 0.05 if model_keys(block) == [model.key] else 0.0

    return Move(
        f"Leave {model.name} out",
        "The weakest part of a mean can cost more than it adds.",
        fits, lambda block, profile: f"# {model.name} is left out: the other models do better without it.", cost=0.7,
    )  # fmt: skip


def _weigh_classes() -> Move:
    def fits(block: str, profile: Profile) -> float:
        uneven = profile.metric.name in (
            "balanced_accuracy",
            "f1_macro",
            "f1",
            "matthews_corrcoef",
            "average_precision",
        )
        return 0.35 if uneven and set(model_keys(block)) & {"lightgbm", "linear", "reader"} else 0.0

    def rewrite(block: str, profile: Profile) -> str:
        block = change_settings(block, "lightgbm", {"class_weight": '"balanced"'})
        return re.sub(r"LogisticRegression\((?!class_weight)", 'LogisticRegression(class_weight="balanced", ', block)

    return Move(
        "Weigh the classes evenly in training",
        "The metric counts rare classes as much as frequent ones, so the loss should, too.",
        fits, rewrite,
    )  # fmt: skip


def _reader_settings(title: str, why: str, pattern: str, new: str, worth: float, cost: float = 1.0) -> Move:
    def fits(block: str, profile: Profile) -> float:
        readers = {"reader", "nbsvm", "margin", "bayes"}
        return worth if readers & set(model_keys(block)) and re.search(pattern, block) else 0.0

    return Move(title, why, fits, lambda block, profile: re.sub(pattern, new, block), cost)


def _linear_strength(title: str, why: str, factor: float, worth: float) -> Move:
    pattern = re.compile(r"(LogisticRegression|LinearSVC)\((.*?)\bC=([\d.]+)")

    def rewrite(block: str, profile: Profile) -> str:
        return pattern.sub(lambda m: f"{m[1]}({m[2]}C={float(m[3]) * factor:.3g}", block)

    return Move(
        title, why, lambda block, profile: worth if model_keys(block) and pattern.search(block) else 0.0, rewrite
    )


# --- target, combination, decision ------------------------------------------------------------------------


def _scale(title: str, why: str, name: str, forth: str, back: str, worth: Callable[[Profile], float]) -> Move:
    def fits(block: str, profile: Profile) -> float:
        usable = holds(block, "to_model") and profile.kind == "regression" and forth not in block
        return worth(profile) if usable else 0.0

    def rewrite(block: str, profile: Profile) -> str:
        block = re.sub(
            r'(def to_model\(values\):\n    """).*?("""\n    return ).*',
            lambda m: f"{m[1]}The target on the scale that models learn: {name}.{m[2]}{forth}", block, count=1,
        )  # fmt: skip
        return re.sub(
            r"(def to_task\(values\):\n    \"\"\".*?\"\"\"\n    return ).*", lambda m: f"{m[1]}{back}", block, count=1
        )

    return Move(title, why, fits, rewrite)


def _log_worth(p: Profile) -> float:
    if not p.positive_target:
        return 0.0
    return 0.85 if p.target_skew > 1 and p.metric.loss == "absolute" else 0.5 if p.target_skew > 1 else 0.2


def _blend(name: str) -> Move:
    blend = BLENDS[name]

    def fits(block: str, profile: Profile) -> float:
        mark = blend.code_for(profile).split('"""')[1]
        return blend.worth(profile) if holds(block, "combine") and mark not in block else 0.0

    def rewrite(block: str, profile: Profile) -> str:
        start = re.search(r"^(def judge\(.*?)?^def combine\(", block, re.MULTILINE | re.DOTALL)
        top = block[: start.start()] if start else block
        judge = f"{judge_code(profile)}\n\n\n" if blend.judges else ""
        return with_imports(f"{top}{judge}{blend.code_for(profile)}", list(blend.imports_for(profile)))

    return Move(blend.title, blend.why, fits, rewrite)


def _tuned_cut() -> Move:
    from mle_star.engineer.rules.metrics import BEST_CUT, CLASS_FACTORS

    def fits(block: str, profile: Profile) -> float:
        return 0.4 if holds(block, "decide") and "The most probable class." in block else 0.0

    def rewrite(block: str, profile: Profile) -> str:
        code = BEST_CUT if len(profile.classes) == 2 else CLASS_FACTORS
        place = block.index("def decide(")
        return block[:place] + code.strip("\n")

    return Move(
        "Tune the cut between the classes",
        "The best cut for the metric need not lie at one half; out-of-fold predictions show where it lies.",
        fits, rewrite,
    )  # fmt: skip


def _strengthen() -> Move:
    return Move(
        foreign.TITLE,
        "More and smaller steps of boosting, or more trees, average out noise.",
        lambda block, profile: 0.0 if re.search(r"^def (fit_|build_feat|combine|score)", block, re.MULTILINE) else 0.01,
        lambda block, profile: foreign.strengthened(block), cost=2.0,
    )  # fmt: skip


MOVES: tuple[Move, ...] = (
    *(_adds_step(step) for step in features.STEPS),
    *(_changes_setting(setting) for setting in SETTINGS),
    *(_refit(key, models.BY_KEY[key].name) for key in _REFITS),
    *(_bag(model) for model in models.MODELS),
    *(_add_model(model) for model in models.MODELS),
    *(_drop_model(model) for model in models.MODELS),
    _weigh_classes(),
    _reader_settings(
        "Read single words only", "Pairs of words are rare in small data and add more noise than meaning.",
        r"ngram_range=\(1, 2\)", "ngram_range=(1, 1)", 0.4,
    ),
    _reader_settings(
        "Read longer phrases", "Three words in a row say things that single words do not.",
        r"ngram_range=\(1, 2\)", "ngram_range=(1, 3)", 0.35, 1.5,
    ),
    _reader_settings(
        "Tell words by case and signs", "Capitals, digits and signs carry style, which lower-casing throws away.",
        r"TfidfVectorizer\((?!lowercase)", r"TfidfVectorizer(lowercase=False, ", 0.5, 1.2,
    ),
    _reader_settings(
        "Read longer pieces of words", "Longer pieces are closer to words, stems and spellings.",
        r"(analyzer=\"char_wb\", ngram_range=\()\d, \d\)", r"\g<1>3, 6)", 0.45, 1.3,
    ),
    _reader_settings(
        "Read pieces across words", "Pieces that run over the gap between words know their order.",
        r"analyzer=\"char_wb\"", 'analyzer="char"', 0.4, 1.3,
    ),
    _linear_strength("Loosen the penalty", "A weaker penalty lets rare signals speak.", 4.0, 0.5),
    _linear_strength("Tighten the penalty", "A stronger penalty keeps noise from being learned by heart.", 0.25, 0.45),
    _scale(
        "Learn the logarithm of the target", "Large values no longer drown small ones, and errors count in proportion.",
        "its logarithm", "np.log1p(values)", "np.expm1(values)", _log_worth,
    ),
    _scale(
        "Learn the square root of the target", "Half way between values and proportions, for counts and amounts.",
        "its square root", "np.sqrt(values)", "np.clip(values, 0, None) ** 2",
        lambda p: 0.4 if p.positive_target and p.target_skew > 0.5 else 0.1 if p.positive_target else 0.0,
    ),
    *(_blend(name) for name in BLENDS),
    _tuned_cut(),
    _strengthen(),
)  # fmt: skip
BY_TITLE = {move.title: move for move in MOVES}


# --- plans -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """A move with its worth for a block."""

    move: Move
    worth: float = field(compare=False)


def options(block: str, profile: Profile) -> list[Option]:
    """The moves that fit a block and change it, most promising first."""
    found = [Option(move, move.fits(block, profile)) for move in MOVES]
    telling = [option for option in found if option.worth > 0 and option.move.rewrite(block, profile) != block]
    return sorted(telling, key=lambda option: -option.worth)


def moves_in(plan: str) -> list[Move]:
    """The moves that a plan names, in its order."""
    places = [(plan.lower().find(move.title.lower()), move) for move in MOVES]
    return [move for place, move in sorted(places, key=lambda pair: pair[0]) if place >= 0]


def apply(moves: list[Move], block: str, profile: Profile) -> str:
    """The block after these moves, those that do not fit it left out."""
    for move in moves:
        if move.fits(block, profile) > 0:
            block = move.rewrite(block, profile)
    return block
