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
_PARTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "features": ("features", features_section),
    "blend": ("blend", blend_section),
    "target": ("targets", target_section),
    "words": ("words", words_section),
}
"""The sections beside the models', with the name of their settings."""


@dataclass(frozen=True)
class Action:
    """One change of a section's settings, those called `key`; plans name it by its title."""

    title: str
    why: str
    worth: float
    key: str
    change: Callable[[Any], Any]


# --- what can be done ------------------------------------------------------------------------------------


def titles_of(block: str) -> list[str]:
    """The sections of ours that a block holds and that can be changed."""
    return [title for title in sections_of(block) if title in _PARTS or title.startswith("model: ")]


def actions(block: str, profile: Profile) -> list[Action]:
    """All that can be done to a block, the most promising first; nothing for a block that is not ours."""
    values, found = settings_in(block), list[Action]()
    for title in titles_of(block):
        if title == "features":
            found += _feature_actions(values["features"], profile)
        elif title == "blend":
            others = (b for b in fitting_blends(profile) if b.key != values["blend"])
            found += [Action(b.title, b.why, b.worth(profile), "blend", partial(_replaced, by=b.key)) for b in others]
        elif title == "target":
            found += _target_actions(values["targets"], profile)
        elif title == "words" and profile.reading:
            found += _word_actions(values["words"], profile)
    for name in values.get("models", {}):
        found += _model_actions(name, values["models"], profile)
    return sorted({action.title: action for action in found}.values(), key=lambda action: -action.worth)


def _feature_actions(now: Values, profile: Profile) -> list[Action]:
    fresh = (step for step in fitting_steps(profile) if step.key not in now)
    found = [Action(s.title, s.why, s.worth(profile), "features", _with({s.key: s.settings(profile)})) for s in fresh]
    for key in now:
        title = f"Leave out {steps()[key].title[:1].lower()}{steps()[key].title[1:]}"
        found.append(Action(title, "Columns without a signal are noise.", 0.15, "features", _without(key)))
    return found


def _model_actions(name: str, now: Values, profile: Profile) -> list[Action]:
    own = now[name]
    family = families()[own["family"]]
    found = []
    for move in family.moves:
        if move.worth_for(profile) > 0:
            change = _changed_at(name, partial(changed, changes=move.changes, family=family))
            title = move.title.replace(family.name, name)
            found.append(Action(title, move.why, move.worth_for(profile), "models", change))
    if family.search and "search" not in own:
        ranges = {key: [family.settings[key].low, family.settings[key].high] for key in family.search}
        title, why = (
            f"Search the settings of {name}",
            "A frugal search on few rows finds settings that suit this table.",
        )
        change = _changed_at(name, _with({"search": ranges}))
        found.append(Action(title, why, 0.35 if profile.small else 0.65, "models", change))
    for place, other in enumerate(fitting_families(profile)[:6]):
        if other.name not in now and other.key != own["family"]:
            title, why = f"Train {other.name} beside {name}", "Models that err in different ways are better together."
            change = _with({other.name: {"family": other.key, **other.usual(profile)}})
            found.append(Action(title, why, 0.75 - 0.1 * place, "models", change))
    return found


def _target_actions(now: list[Values], profile: Profile) -> list[Action]:
    if profile.kind != "regression" or profile.recipe.kind != "number":
        return []
    able = ("log", "root", "plain") if profile.positive else ("plain",)

    def each(**change: str) -> Callable[[Any], Any]:
        return lambda targets: [{**target, **change} for target in targets]

    likely, scale = "log" if profile.recipe.log else "root", now[0].get("scale", "plain")
    found = [Action(*SCALES[s], 0.5 if s == likely else 0.25, "targets", each(scale=s)) for s in able if s != scale]
    if profile.later and not now[0].get("anchor"):
        why = "Trees repeat levels that they have seen; a change can be added to a level that is new."
        found.append(Action("Learn the change against the last weeks", why, 0.6, "targets", each(anchor=ANCHOR)))
    return found


def _word_actions(now: Values, profile: Profile) -> list[Action]:
    scale = 1.0 if profile.mostly_text else 0.6
    fresh = (reading for reading in READINGS if {**now, **reading[3]} != now)
    return [Action(title, why, scale * worth, "words", _with(change)) for title, why, worth, change in fresh]


def _replaced(now: Any, by: Any) -> Any:
    return by


def _with(change: Values) -> Callable[[Any], Any]:
    return lambda now: {**now, **change}


def _without(key: str) -> Callable[[Any], Any]:
    return lambda now: {k: v for k, v in now.items() if k != key}


def _changed_at(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A change of a model's settings as they are by then: an earlier one of the same plan stays."""
    return lambda now: {**now, name: change(now[name])}


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
    chosen, values, titles = named_in(plan, block, profile), settings_in(block), titles_of(block)
    if not chosen:
        return block
    for action in chosen:
        values[action.key] = action.change(values[action.key])
    made = [make(values[key]) for title, (key, make) in _PARTS.items() if title in titles]
    return "\n\n\n".join([*made, *(model_section(name, own) for name, own in values["models"].items())])
