"""What can be done to a section of a script, how to say it, and when it is worth trying: settings and parts change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mle_star.engineer.catalogue import families, fitting_blends, fitting_families, fitting_steps, steps
from mle_star.engineer.design import (
    blend_section,
    features_section,
    model_section,
    sections_of,
    settings_in,
    target_section,
    words_section,
)
from mle_star.engineer.parts.describe import Family
from mle_star.engineer.profile import Profile

Values = dict[str, Any]
SCALES = {
    "log": ("Learn the logarithm of the target", "Errors count in proportion, and the tail is long."),
    "root": ("Learn the root of the target", "Between the value and its logarithm."),
    "plain": ("Learn the target as it is", "The metric counts errors as they are."),
}
ANCHOR = "median of 28 days"
"""The column of the lags against which the change can be learned."""
READINGS = (
    (
        "Read pieces of words, too",
        "Pieces of words see endings, typing errors and other languages.",
        0.9,
        {"pieces": 5},
    ),
    ("Read short pieces of words", "Short pieces are quick and see style.", 0.5, {"pieces": 3}),
    ("Read single words only", "Fewer columns are quicker and overfit less.", 0.2, {"words": 1}),
    ("Read longer phrases", "Phrases of three words are more particular.", 0.25, {"words": 3}),
)
_PARTS = ("features", "blend", "target", "words")


@dataclass(frozen=True)
class Action:
    """One change of a section's settings; plans name it by its title."""

    title: str
    why: str
    worth: float
    apply: Callable[[Values], Values]


# --- what can be done ------------------------------------------------------------------------------------


def titles_of(block: str) -> list[str]:
    """The sections of ours that a block holds and that can be changed."""
    return [title for title in sections_of(block) if title in _PARTS or title.startswith("model: ")]


def actions(block: str, profile: Profile) -> list[Action]:
    """All that can be done to a block, the most promising first; nothing for a block that is not ours."""
    values, found = settings_in(block), list[Action]()
    for title in titles_of(block):
        if title == "features":
            found += _feature_actions(values, profile)
        elif title == "blend":
            others = (blend for blend in fitting_blends(profile) if blend.key != values["BLEND"])
            found += [Action(b.title, b.why, b.worth(profile), partial(_put, BLEND=b.key)) for b in others]
        elif title == "target":
            found += _target_actions(values, profile)
        elif title == "words" and profile.reading:
            found += _word_actions(values, profile)
    for name in values.get("models", {}):
        found += _model_actions(name, values, profile)
    return sorted({action.title: action for action in found}.values(), key=lambda action: -action.worth)


def _feature_actions(values: Values, profile: Profile) -> list[Action]:
    found = []
    for step in fitting_steps(profile):
        if step.key not in values["FEATURES"]:
            settings = step.settings(profile)
            found.append(Action(step.title, step.why, step.worth(profile), _update("FEATURES", {step.key: settings})))
    for key in values["FEATURES"]:
        title = f"Leave out {steps()[key].title[:1].lower()}{steps()[key].title[1:]}"
        found.append(Action(title, "Columns without a signal are noise.", 0.15, _drop("FEATURES", key)))
    return found


def _model_actions(name: str, values: Values, profile: Profile) -> list[Action]:
    own = values["models"][name]
    family = families()[own["family"]]
    found = [
        Action(
            _named(move.title, family, name),
            move.why,
            move.worth(profile),
            _change(name, partial(changed, changes=move.changes, family=family)),
        )
        for move in family.moves
        if move.worth(profile) > 0
    ]
    if family.search and "search" not in own:
        ranges = {key: [family.settings[key].low, family.settings[key].high] for key in family.search}
        found.append(
            Action(
                f"Search the settings of {name}",
                "A frugal search on few rows finds settings that suit this table.",
                0.35 if profile.small else 0.65,
                _change(name, lambda own: {**own, "search": ranges}),
            )
        )
    for place, other in enumerate(fitting_families(profile)[:6]):
        if other.name not in values["models"] and other.key != own["family"]:
            found.append(
                Action(
                    f"Train {other.name} beside {name}",
                    "Models that err in different ways are better together.",
                    0.75 - 0.1 * place,
                    _update("models", {other.name: {"family": other.key, **other.usual(profile)}}),
                )
            )
    return found


def _named(title: str, family: Family, name: str) -> str:
    return title.replace(family.name, name)


def _target_actions(values: Values, profile: Profile) -> list[Action]:
    if profile.kind != "regression" or profile.recipe.kind != "number":
        return []
    now = values["TARGETS"][0].get("scale", "plain")
    able = ("log", "root", "plain") if profile.positive else ("plain",)

    def each(**change: str) -> Callable[[Values], Values]:
        return lambda values: _put(values, TARGETS=[{**target, **change} for target in values["TARGETS"]])

    likely = "log" if profile.recipe.log else "root"
    found = [Action(*SCALES[s], 0.5 if s == likely else 0.25, each(scale=s)) for s in able if s != now]
    if profile.later and not values["TARGETS"][0].get("anchor"):
        why = "Trees repeat levels that they have seen; a change can be added to a level that is new."
        found.append(Action("Learn the change against the last weeks", why, 0.6, each(anchor=ANCHOR)))
    return found


def _word_actions(values: Values, profile: Profile) -> list[Action]:
    now, scale = values["WORDS"], 1.0 if profile.mostly_text else 0.6
    fresh = (told for told in READINGS if {**now, **told[3]} != now)
    return [Action(title, why, scale * worth, _update("WORDS", change)) for title, why, worth, change in fresh]


def _put(values: Values, **changed: Any) -> Values:
    return {**values, **changed}


def _update(group: str, change: Values) -> Callable[[Values], Values]:
    return lambda values: {**values, group: {**values[group], **change}}


def _change(name: str, change: Callable[[Values], Values]) -> Callable[[Values], Values]:
    """A change of a model's settings as they are by then: an earlier one of the same plan stays."""
    return lambda values: {**values, "models": {**values["models"], name: change(values["models"][name])}}


def _drop(group: str, key: str) -> Callable[[Values], Values]:
    return lambda values: {**values, group: {k: v for k, v in values[group].items() if k != key}}


def changed(own: dict[str, Any], changes: Any, family: Family) -> dict[str, Any]:
    """Settings with changes made, inside their ranges."""
    result = dict(own)
    for name, value in changes.items():
        if isinstance(value, str) and value.startswith("*") and name in family.settings:
            setting = family.settings[name]
            number = min(setting.high, max(setting.low, own.get(name, setting.usual) * float(value[1:])))
            value = round(number) if setting.whole else round(number, 6)
        result[name] = value
    return result


# --- doing it --------------------------------------------------------------------------------------------


def named_in(plan: str, block: str, profile: Profile) -> list[Action]:
    """The actions that a plan names, in the order in which it does; a title inside a longer one does not count."""
    found = {a.title: a for a in actions(block, profile) if a.title in plan}
    apart = [t for t in found if not any(t != other and t in other for other in found)]
    return sorted((found[title] for title in apart), key=lambda action: plan.index(action.title))


def apply(plan: str, block: str, profile: Profile) -> str:
    """The block after the changes that a plan names; the block itself when it names none."""
    chosen = named_in(plan, block, profile)
    if not chosen:
        return block
    values = settings_in(block)
    for action in chosen:
        values = action.apply(values)
    return rendered(values, titles_of(block))


def rendered(values: Values, titles: list[str]) -> str:
    """Sections with these settings, models last."""
    makers: dict[str, Callable[[], str]] = {
        "features": lambda: features_section(values["FEATURES"]),
        "blend": lambda: blend_section(values["BLEND"]),
        "target": lambda: target_section(values["TARGETS"]),
        "words": lambda: words_section(values["WORDS"]),
    }
    made = [make() for title, make in makers.items() if title in titles]
    return "\n\n\n".join([*made, *(model_section(name, own) for name, own in values["models"].items())])
