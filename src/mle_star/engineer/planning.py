"""Decides: the first design, which section to refine, the next plan, how solutions become one."""

from __future__ import annotations

import random
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from mle_star.engineer.catalogue import families, fitting_blends, fitting_families, fitting_steps
from mle_star.engineer.design import Design, assemble, quoted, recover, sections_of
from mle_star.engineer.moves import Action, actions, named_in, titles_of
from mle_star.engineer.parts.describe import Family
from mle_star.engineer.profile import Profile
from mle_star.engineer.recipes import Recipe
from mle_star.engineer.studies import findings_in

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
    return next((f for f in families().values() if f.name.lower() == wanted), fitting_families(profile)[0])


def first_design(profile: Profile, family: Family, most_rows: int | None) -> Design:
    """A simple solution around one family."""
    better = "higher" if profile.recipe.metric.higher_is_better else "lower"
    targets = " and ".join(one_line(target["name"]) for target in profile.targets)
    doc = (
        f"Predict {targets} with {family.name}, scored by {profile.metric} ({better} is better).\n\n"
        "Whatever is learned from data is learned inside each fold, from its training rows alone.\n"
    )
    chosen = [step for step in fitting_steps(profile, first=True) if not (family.reads and step.key == "reading")]
    capped = most_rows if most_rows is not None and profile.rows > most_rows else None
    return Design(
        doc=doc,
        data=profile.data,
        targets=[{key: value for key, value in target.items() if key != "rarest"} for target in profile.targets],
        metric=metric_settings(profile.recipe),
        folds=fold_settings(profile, most_rows),
        rows=capped,
        seconds=WANTED_SECONDS,
        features={step.key: step.settings(profile) for step in chosen},
        models={family.name: {"family": family.key, **family.usual(profile)}},
        words=profile.words,
    )


def one_line(text: str) -> str:
    """A name as prose may hold it."""
    return quoted(text).replace('"""', "'''").replace("\\", "/")


def metric_settings(recipe: Recipe) -> dict[str, Any]:
    """What scripts know of the metric."""
    metric = recipe.metric
    settings = {"name": metric.name, "higher": metric.higher_is_better, "answers": recipe.kind, "loss": recipe.loss}
    if metric.of_positive:
        settings["positive"] = 1  # of two classes the second is the one that is looked for
    if recipe.kind == "ranking":
        settings["most"] = int(metric.name.partition("@")[2])
    return settings


def fold_settings(profile: Profile, most_rows: int | None) -> dict[str, Any]:
    """The folds: by time, by groups, alike in the classes; fewer when there are many rows, more when there are few."""
    if profile.later:
        return {"kind": "time", "count": 1, "column": profile.later}
    rows = min(profile.rows, most_rows or profile.rows)
    cells = rows * max(profile.width, 20)
    count = 5 if cells <= 300_000 else 3 if cells <= MANY_CELLS else 1
    if profile.groups:
        return {"kind": "groups", "count": max(3, count), "column": profile.groups}
    alike = profile.kind != "regression" and profile.rarest >= count and len(profile.targets) == 1
    repeats = 2 if rows <= 1000 and profile.width <= 60 and profile.class_count <= 15 else 1
    return {"kind": "classes" if alike else "plain", "count": count, "repeats": repeats}


# --- merging ---------------------------------------------------------------------------------------------


def united(designs: list[Design], blend: str) -> Design:
    """One design with the models of all: each sees the features of its own, what two share is there once."""
    first = designs[0]
    features: dict[str, dict[str, Any]] = {}
    for design in designs:
        features |= {key: own for key, own in design.features.items() if key not in features}
    models: dict[str, dict[str, Any]] = {}
    for number, design in enumerate(designs, start=1):
        for name, own in design.models.items():
            seen = own.get("only", list(design.features))
            own = {key: value for key, value in own.items() if key != "only"}
            own |= {} if set(seen) == set(features) else {"only": [key for key in features if key in seen]}
            if own in models.values():
                continue
            models[name if name not in models else f"{name} {number}"] = own
    return first.changed(doc=_doc(first, models), features=features, models=models, blend=blend)


def _doc(design: Design, models: dict[str, Any]) -> str:
    before, found, _ = design.doc.partition(" with ")
    scored = design.doc.partition(", scored by ")[2]
    listed = " and ".join(models) if len(models) < 3 else f"{len(models)} models"
    told = textwrap.fill(f"Its models: {', '.join(models)}.", 110)
    scored = scored.partition("\n\nIts models:")[0].rstrip()
    more = f"\n\n{told}\n" if len(models) > 2 else "\n"
    return f"{before} with {listed}, scored by {scored}{more}" if found and scored else design.doc


# --- which section, and how ------------------------------------------------------------------------------


def choose_blocks(
    script: str, summary: str, previous: list[str], profile: Profile, given: Counter[str], before: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Sections with their plans, best first; those come first that were `given` least often for the same script.

    What plans `before` have tried in vain comes last.
    """
    design = recover(script)
    if design is None:
        return []
    baseline, losses = findings_in(summary)
    luck = random.Random(script + summary + "".join(previous))
    found: list[tuple[int, float, str, str, list[Action]]] = []
    for title, block in sections_of(script).items():
        if not titles_of(block) or (title == "blend" and len(design.models) < 2):
            continue
        options = with_luck([a for a in actions(block, profile) if _is_new(a, design.models)], luck)
        options = _unspent(options, before) or options
        if not options:
            continue
        part = title.removeprefix("model: ")
        top = max((abs(loss) for loss in losses.values()), default=0.0)
        mine = [abs(loss) for name, loss in losses.items() if part in name.split(" / ")]
        impact = max(mine, default=0.3 * top) / top if top else 0.5
        refined = any(title == old for block_before in previous for old in titles_of(block_before))
        expected = options[0].worth * (0.5 + 0.5 * impact) * (0.35 if refined else 1.0)
        found.append((given[title], -expected, title, block, options))
    found.sort(key=lambda entry: entry[:3])
    chosen = []
    for times, _, _, block, options in found[:3]:
        score = [] if baseline is None else [f"The script scores {baseline:.10g} now."]
        chosen.append((block, plan_text([options[min(times, len(options) - 1)]], *score)))
    given.update(title for _, _, title, _, _ in found[:1])
    return chosen


def _unspent(options: list[Action], before: Sequence[str]) -> list[Action]:
    """Those that no plan of an earlier step names."""
    return [action for action in options if not any(f"{action.title}." in plan for plan in before)]


def _is_new(action: Action, models: Iterable[str]) -> bool:
    """Is it not the addition of a model that the script trains already?"""
    return not any(action.title.startswith(f"Train {name} beside") for name in models)


def with_luck(found: list[Action], luck: random.Random) -> list[Action]:
    """Actions by their worth, shifted a little, so that paths try different things."""
    return sorted(found, key=lambda action: -action.worth * (1 + SURE * luck.uniform(-1, 1)))


def plan_text(chosen: list[Action], *more: str) -> str:
    """A few sentences that name the actions and why."""
    first, *rest = chosen
    sentences = [f"{first.title}. {first.why}"]
    sentences += [f"Then, on top of that: {action.title}. {action.why}" for action in rest]
    sentences.append("Everything else stays as it is, and whatever is learned is learned from the training rows alone.")
    return " ".join([*sentences, *more])


def next_plan(
    block: str,
    tried: list[tuple[str, float | None]],
    profile: Profile,
    baseline: float | None,
    before: Sequence[str] = (),
    models: Collection[str] = (),
) -> str:
    """What helped so far and the most promising action that was not tried; every attempt starts from `block`.

    What earlier steps have tried (`before`) is tried again only when nothing else is left; `models` are those of the
    whole script, which trains none of them twice.
    """
    best = _best(tried, profile.recipe.metric.higher_is_better, baseline)
    kept = named_in(best, block, profile) if best else []
    gone = {action.title for plan, _ in tried for action in named_in(plan, block, profile)}
    luck = random.Random(block + "".join(plan for plan, _ in tried))
    possible = [action for action in actions(block, profile) if _is_new(action, models)]
    fresh = with_luck([action for action in possible if action.title not in gone], luck)
    fresh = _unspent(fresh, before) or fresh
    clash = {action.title.rpartition(" beside ")[0] for action in kept}
    for action in fresh:
        if not any(_same_kind(action, other) for other in kept) and action.title not in clash:
            return plan_text([*kept, action])
    chosen = fresh[:1] or kept or possible[:1]
    return plan_text(chosen) if chosen else "Leave the block as it is."


def _same_kind(action: Action, other: Action) -> bool:
    """Do two actions set the same thing, so that the second would undo the first?"""
    first, second = action.title.split(" ")[0], other.title.split(" ")[0]
    return first == second and first not in ("Add", "Train", "Look", "Measure", "Join", "Compress")


def _best(tried: list[tuple[str, float | None]], higher: bool, baseline: float | None) -> str:
    """The best plan so far, if it beat the script as it was."""
    scored = [(score if higher else -score, plan) for plan, score in tried if score is not None]
    if not scored:
        return ""
    score, plan = max(scored)
    return "" if baseline is not None and score <= (baseline if higher else -baseline) else plan


# --- ensembles -------------------------------------------------------------------------------------------


def next_ensemble_plan(tried: list[tuple[str, float | None]], profile: Profile) -> str:
    """The most promising way to combine that was not tried yet."""
    ranked = fitting_blends(profile)
    gone = " ".join(plan for plan, _ in tried)
    chosen = next((blend for blend in ranked if blend.title not in gone), ranked[len(tried) % len(ranked)])
    return (
        f"Pool the models of all solutions, with promising ones that none of them has. {chosen.title}. {chosen.why} "
        "All models are trained on the same folds, "
        "each with the features of its own solution, and the combination is learned from out-of-fold predictions alone."
    )


def ensemble(scripts: list[str], plan: str, profile: Profile) -> str:
    """One script with the models of all scripts of ours, on all rows; the first script when fewer than two are ours.

    They are combined as the plan says, else in the most promising way.
    """
    designs = [design for script in scripts if (design := recover(script)) is not None]
    if not designs or len(scripts) < 2:
        return scripts[0] if scripts else ""
    ranked = fitting_blends(profile)
    blend = next((blend for blend in ranked if blend.title in plan), ranked[0])
    return assemble(completed(united(designs, blend.key), profile).changed(rows=None))


def completed(design: Design, profile: Profile) -> Design:
    """With those of the most promising families that no solution has come to: different models make a better blend."""
    seen = {own["family"] for own in design.models.values()}
    missing = [family for family in fitting_families(profile)[:MANY_FAMILIES] if family.key not in seen]
    first = next(iter(design.models.values()))
    alike = {"only": first["only"]} if "only" in first else {}
    models = design.models | {f.name: {"family": f.key, **f.usual(profile), **alike} for f in missing}
    return design.changed(doc=_doc(design, models), models=models)


def final(design: Design) -> Design:
    """The design for the submission: on all rows, folds bagged once more where there is time."""
    folds = dict(design.folds)
    if folds["kind"] in ("classes", "plain") and folds["count"] > 1:
        folds["repeats"] = folds.get("repeats", 1) + 1
    return design.changed(rows=None, folds=folds, seconds=2 * design.seconds)
