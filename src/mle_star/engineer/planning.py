"""Decides: the first design, what to study, which section to refine, the next plan, how solutions become one."""

import itertools
import json
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from mle_star.engineer import design as scripts
from mle_star.engineer.moves import Action, actions, named_in, titles_of
from mle_star.engineer.parts.deciding import Recipe
from mle_star.engineer.parts.describe import Family
from mle_star.engineer.profile import Profile

Tried = list[tuple[str, float | None]]
"""Plans with their scores; None for one that did not run."""
PARTS_A_STUDY = 3
WANTED_SECONDS = 90.0
MANY_CELLS = 4_000_000
MANY_FAMILIES = 3
"""So many families an ensemble has at least."""
SURE = 0.25
"""How far luck may shift a worth: guesses are no more certain than that."""


# --- the first design ------------------------------------------------------------------------------------


def family_named(name: str, profile: Profile) -> Family:
    """The family of this name, else the most promising one."""
    wanted = name.strip().lower()
    named = (family for family in scripts.families().values() if family.name.lower() == wanted)
    return next(named, scripts.fitting_families(profile)[0])


def first_design(profile: Profile, family: Family, most_rows: int | None) -> scripts.Design:
    """A simple solution around one family."""
    metric = metric_settings(profile.recipe)
    fitting = scripts.fitting_steps(profile, first=True)
    chosen = [step for step in fitting if not (family.reads and step.key == "reading")]
    return scripts.Design(
        doc=_doc(profile.targets, metric, [family.name]),
        data=profile.data,
        targets=[{key: value for key, value in target.items() if key != "rarest"} for target in profile.targets],
        metric=metric,
        folds=fold_settings(profile, most_rows),
        rows=most_rows if most_rows is not None and profile.rows > most_rows else None,
        seconds=WANTED_SECONDS,
        features={step.key: step.settings(profile) for step in chosen},
        models={family.name: {"family": family.key, **family.usual(profile)}},
        words=profile.words,
    )


def _doc(targets: list[dict[str, Any]], metric: dict[str, Any], models: Collection[str]) -> str:
    """What a script says of itself."""
    names = " and ".join(scripts.quoted(target["name"]) for target in targets).replace('"""', "'''").replace("\\", "/")
    better = "higher" if metric["higher"] else "lower"
    first = f"Predict {names} with {' and '.join(models)}, scored by {metric['name']} ({better} is better)."
    rule = "Whatever is learned from data is learned inside each fold, from its training rows alone."
    return f"{textwrap.fill(first, 110)}\n\n{rule}\n"


def metric_settings(recipe: Recipe) -> dict[str, Any]:
    """What scripts know of the metric."""
    metric = recipe.metric
    settings = {"name": metric.name, "higher": metric.higher_is_better, "answers": recipe.kind, "loss": recipe.loss}
    positive = {"positive": 1} if metric.of_positive else {}  # of two classes the second is the one that is looked for
    most = {"most": int(metric.name.partition("@")[2])} if recipe.kind == "ranking" else {}
    return {**settings, **positive, **most}


def fold_settings(profile: Profile, most_rows: int | None) -> dict[str, Any]:
    """The folds: by time, by groups, alike in the classes; fewer when there are many rows, more when there are few."""
    if profile.later:
        return {"kind": "time", "count": 1, "column": profile.later, "ahead": profile.ahead}
    rows = min(profile.rows, most_rows or profile.rows)
    cells = rows * max(profile.width, 20)
    count = 5 if cells <= 300_000 else 3 if cells <= MANY_CELLS else 1
    if profile.groups:
        return {"kind": "groups", "count": max(3, count), "column": profile.groups}
    alike = profile.kind != "regression" and profile.rarest >= count and len(profile.targets) == 1
    repeats = 2 if rows <= 1000 and profile.width <= 60 and profile.class_count <= 15 else 1
    return {"kind": "classes" if alike else "plain", "count": count, "repeats": repeats}


# --- merging ---------------------------------------------------------------------------------------------


def united(designs: list[scripts.Design], blend: str) -> scripts.Design:
    """One design with the models of all: each sees the features of its own, what two share is there once."""
    first = designs[0]
    features: dict[str, dict[str, Any]] = {}
    for design in designs:
        features |= {key: own for key, own in design.features.items() if key not in features}
    models: dict[str, dict[str, Any]] = {}
    for number, design in enumerate(designs, start=1):
        for name, own in design.models.items():
            seen = own.get("only", design.features)
            own = {key: value for key, value in own.items() if key != "only"}
            own |= {} if set(seen) == set(features) else {"only": [key for key in features if key in seen]}
            if own not in models.values():
                models[name if name not in models else f"{name} {number}"] = own
    return first.changed(doc=_doc(first.targets, first.metric, models), features=features, models=models, blend=blend)


# --- studies ---------------------------------------------------------------------------------------------


def variants_of(design: scripts.Design) -> dict[str, dict[str, Any]]:
    """What can be varied, features and models in turn: by name, as a variant."""
    by_step = {f"features / {key}": {"drop": [key]} for key in design.features}
    several = design.models if len(design.models) > 1 else {}
    by_model: dict[str, Any] = {f"model / {name}": {"drop": [name]} for name in several}
    for name, own in design.models.items():
        for part, change in scripts.families()[own["family"]].ablations.items():
            if not change.items() <= own.items():  # otherwise it is left out already
                by_model[f"{name} / {part}"] = {"change": {name: dict(change)}}
    scaled = any(target.get("scale", "plain") != "plain" for target in design.targets)
    other = {"target / scale": {"target": {"scale": "plain"}}} if scaled else {}
    turns = itertools.zip_longest(by_step.items(), by_model.items(), other.items())
    return dict(part for turn in turns for part in turn if part is not None)


def study(design: scripts.Design, previous: str, turn: int) -> scripts.Design:
    """A study of parts that no earlier summary names; of those that one does when none is left."""
    parts = variants_of(design)
    fresh = [name for name in parts if f"`{name}`" not in previous] or list(parts)
    start = turn % len(fresh) if len(fresh) > PARTS_A_STUDY else 0
    chosen = (fresh[start:] + fresh[:start])[:PARTS_A_STUDY]
    rule = "Each variation changes one part; everything else stays as it is."
    return design.changed(
        doc=f"Ablation study: {', '.join(chosen)}.\n\n{rule}\n",
        data={**design.data, "test": None, "sample": None, "answers": []},
        folds={**design.folds, "count": min(2, design.folds["count"]), "repeats": 1},
        variants={name: parts[name] for name in chosen},
        seconds=round(max(3.0, design.seconds / 3), 1),
    )


# --- results ---------------------------------------------------------------------------------------------


def printed_scores(output: str) -> dict[str, float]:
    """The scores that a study printed, by name: `Ablation name: score`, or pairs between commas."""
    scores: dict[str, float] = {}
    for piece in output.replace(",", "\n").splitlines():
        name, _, number = piece.strip().rpartition(":")
        with suppress(ValueError):
            scores[name.removeprefix("Ablation ").strip()] = float(number)
    scores.pop("", None)  # numbers without a name
    return scores


def summarize(output: str, *, higher: bool, metric: str) -> str:
    """What a study found, in a few sentences, and once more as JSON; most and least important parts by name."""
    scores = printed_scores(output)
    baseline = next((name for name in scores if name.lower() == "baseline"), "")
    if not baseline or len(scores) == 1:
        listed = "".join(f" `{name}` scores {score:.10g}." for name, score in scores.items())
        return f"The study printed no baseline with a part to compare.{listed}"
    base = scores.pop(baseline)
    losses = {name: (base - value) if higher else (value - base) for name, value in scores.items()}
    order = sorted(losses, key=lambda name: -losses[name])
    better = "higher" if higher else "lower"
    sentences = [f"The baseline scores {base:.4g} ({metric or 'score'}, {better} is better)."]
    for name in order:
        change = f"{abs(losses[name]):.3g} {'worse' if losses[name] > 0 else 'better'}" if losses[name] else "no change"
        sentences.append(f"Without `{name}` the score is {scores[name]:.4g}, {change}.")
    most, *others = order
    if losses[most] <= 0:
        sentences.append("Leaving out any of them costs nothing.")
    else:
        sentences.append(f"`{most}` has the most impact: leaving it out costs most.")
        least = min(others, key=lambda name: abs(losses[name]), default=most)
        if abs(losses[least]) < losses[most]:
            sentences.append(f"`{least}` has the least impact.")
    return " ".join(sentences) + "\n" + json.dumps({"baseline": base, "losses": losses})


def findings_in(summary: str) -> tuple[float | None, dict[str, float]]:
    """The baseline and the losses that a summary of ours tells, from its JSON."""
    lines = (line for line in summary.splitlines() if line.startswith('{"baseline": '))
    found = json.loads(next(lines, '{"baseline": null, "losses": {}}'))
    return found["baseline"], found["losses"]


# --- which section, and how ------------------------------------------------------------------------------


def choose_blocks(
    script: str, summary: str, previous: list[str], profile: Profile, given: Counter[str], before: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Sections with their plans, best first; those come first that were `given` least often for the same script.

    Ideas that earlier plans (`before`) have tried without success come last.
    """
    (baseline, losses), models = findings_in(summary), scripts.settings_in(script).get("models", {})
    luck = Random(script + summary + "".join(previous))
    refined = {title for block in previous for title in titles_of(block)}
    top = max((abs(loss) for loss in losses.values()), default=0.0)
    found: list[tuple[int, float, str, str, list[Action]]] = []
    for title, block in scripts.sections_of(script).items():
        if not titles_of(block) or (title == "blend" and len(models) < 2):
            continue
        if not (options := _possible(block, profile, models, before, luck)):
            continue
        part = title.removeprefix("model: ")
        mine = [abs(loss) for name, loss in losses.items() if part in name.split(" / ")]
        impact = max(mine, default=0.3 * top) / top if top else 0.5
        expected = options[0].worth * (0.5 + 0.5 * impact) * (0.35 if title in refined else 1.0)
        found.append((given[title], -expected, title, block, options))
    found.sort(key=lambda entry: entry[:3])
    given.update(title for _, _, title, _, _ in found[:1])
    score = [] if baseline is None else [f"The script scores {baseline:.10g} now."]
    return [(block, plan_text([options[min(n, len(options) - 1)]], *score)) for n, _, _, block, options in found[:3]]


def _possible(
    block: str, profile: Profile, models: Iterable[str], before: Sequence[str], luck: Random, gone: Collection[str] = ()
) -> list[Action]:
    """The actions that are not `gone` and add none of the `models`, by their worth shifted by a little luck, so that
    paths try different things; those that a plan `before` names only where there are no others."""
    there = tuple(f"Train {name} beside" for name in models)
    able = [a for a in actions(block, profile) if a.title not in gone and not a.title.startswith(there)]
    able.sort(key=lambda action: -action.worth * (1 + SURE * luck.uniform(-1, 1)))
    return [a for a in able if not any(f"{a.title}." in plan for plan in before)] or able


def plan_text(chosen: list[Action], *more: str) -> str:
    """A few sentences that name the actions and why."""
    first, *rest = chosen
    then = (f"Then, on top of that: {action.plan}" for action in rest)
    last = "Everything else stays as it is, and whatever is learned is learned from the training rows alone."
    return " ".join([first.plan, *then, last, *more])


def next_plan(
    block: str, tried: Tried, profile: Profile, baseline: float | None, before: Sequence[str], models: Collection[str]
) -> str:
    """What helped so far and the most promising action that was not tried; every attempt starts from `block`.

    What earlier steps have tried (`before`) is tried again only when nothing else is left; `models` are those of the
    whole script, which trains none of them twice.
    """
    best = _best(tried, profile.recipe.metric.higher_is_better, baseline)
    kept = named_in(best, block, profile) if best else []
    gone = {action.title for plan, _ in tried for action in named_in(plan, block, profile)}
    luck = Random(block + "".join(plan for plan, _ in tried))
    fresh = _possible(block, profile, models, before, luck, gone)
    clash = {action.title.rpartition(" beside ")[0] for action in kept}
    for action in fresh:
        if not any(_same_kind(action, other) for other in kept) and action.title not in clash:
            return plan_text([*kept, action])
    chosen = fresh[:1] or kept or _possible(block, profile, models, before, luck)[:1]
    return plan_text(chosen) if chosen else "Leave the block as it is."


def _same_kind(action: Action, other: Action) -> bool:
    """Do two actions set the same thing, so that the second would undo the first?"""
    first, second = action.title.split(" ")[0], other.title.split(" ")[0]
    return first == second and first not in ("Add", "Train", "Look", "Measure", "Join", "Compress")


def _best(tried: Tried, higher: bool, baseline: float | None) -> str:
    """The best plan so far, if it beat the script as it was."""
    sign = 1 if higher else -1
    score, plan = max([(sign * score, plan) for plan, score in tried if score is not None], default=(0.0, ""))
    return plan if baseline is None or score > sign * baseline else ""


# --- ensembles -------------------------------------------------------------------------------------------


def next_ensemble_plan(tried: Tried, profile: Profile) -> str:
    """The most promising way to combine that was not tried yet."""
    ranked = scripts.fitting_blends(profile)
    gone = " ".join(plan for plan, _ in tried)
    chosen = next((blend for blend in ranked if blend.choice.title not in gone), ranked[len(tried) % len(ranked)])
    return (
        f"Pool the models of all solutions, with promising ones that none of them has. {chosen.choice.plan} "
        "All models are trained on the same folds, "
        "each with the features of its own solution, and the combination is learned from out-of-fold predictions alone."
    )


def ensemble(solutions: list[str], plan: str, profile: Profile) -> str:
    """One script with the models of all scripts of ours, on all rows; the first script where none is ours.

    They are combined as the plan says, else in the most promising way.
    """
    designs = [design for script in solutions if (design := scripts.recover(script)) is not None]
    if not designs:
        return solutions[0] if solutions else ""
    ranked = scripts.fitting_blends(profile)
    blend = next((blend for blend in ranked if blend.choice.title in plan), ranked[0])
    return scripts.assemble(completed(united(designs, blend.key), profile).changed(rows=None))


def completed(design: scripts.Design, profile: Profile) -> scripts.Design:
    """With those of the most promising families that no solution has come to: different models make a better blend."""
    seen = {own["family"] for own in design.models.values()}
    missing = [family for family in scripts.fitting_families(profile)[:MANY_FAMILIES] if family.key not in seen]
    first = next(iter(design.models.values()))
    alike = {"only": first["only"]} if "only" in first else {}
    models = design.models | {f.name: {"family": f.key, **f.usual(profile), **alike} for f in missing}
    return design.changed(doc=_doc(design.targets, design.metric, models), models=models)


def final(design: scripts.Design) -> scripts.Design:
    """The design for the submission: on all rows, folds bagged once more where there is time."""
    folds = dict(design.folds)
    if folds["kind"] in ("classes", "plain") and folds["count"] > 1:
        folds["repeats"] = folds.get("repeats", 1) + 1
    return design.changed(rows=None, folds=folds, seconds=2 * design.seconds)
