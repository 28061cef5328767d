"""What can be done to a section of a script, how to say it, and when it is worth trying: settings and parts change."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mle_star.engineer import design as scripts
from mle_star.engineer.parts.describe import Choice, Family, Move
from mle_star.engineer.profile import Profile

Values = dict[str, Any]
Change = Callable[[Any], Any]
SCALES = {
    "log": "Learn the logarithm of the target. Errors count in proportion, and the tail is long.",
    "root": "Learn the root of the target. Between the value and its logarithm.",
    "plain": "Learn the target as it is. The metric counts errors as they are.",
}
ANCHOR = "median of 28 days"
"""The column of the lags against which the change can be learned."""
READINGS = (
    Move("Read pieces of words, too. They see endings, typing errors and other languages.", {"pieces": 5}, 0.9),
    Move("Read short pieces of words. Short pieces are quick and see style.", {"pieces": 3}, 0.5),
    Move("Read single words only. Fewer columns are quicker and overfit less.", {"words": 1}, 0.2),
    Move("Read longer phrases. Phrases of three words are more particular.", {"words": 3}, 0.25),
)
_PARTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "features": ("features", scripts.features_section),
    "blend": ("blend", scripts.blend_section),
    "target": ("targets", scripts.target_section),
    "words": ("words", scripts.words_section),
}
"""The sections beside the models', with the name of their settings."""


@dataclass(frozen=True)
class Action(Choice):
    """One change of a section's settings, those called `key`; plans name it by its title."""

    worth: float
    key: str
    change: Change


# --- what can be done ------------------------------------------------------------------------------------


def titles_of(block: str) -> list[str]:
    """The sections of ours that a block holds and that can be changed."""
    return [title for title in scripts.sections_of(block) if title in _PARTS or title.startswith("model: ")]


def actions(block: str, profile: Profile) -> list[Action]:
    """All that can be done to a block, the most promising first; nothing for a block that is not ours."""
    values, titles, found = scripts.settings_in(block), titles_of(block), list[Action]()
    if "features" in titles:
        found += _feature_actions(values["features"], profile)
    if "blend" in titles:
        others = (b for b in scripts.fitting_blends(profile) if b.key != values["blend"])
        found += [Action(b.choice.plan, b.worth(profile), "blend", _set(b.key)) for b in others]
    if "target" in titles:
        found += _target_actions(values["targets"], profile)
    if "words" in titles and profile.reading:
        scale = 1.0 if profile.mostly_text else 0.6
        fresh = (move for move in READINGS if {**values["words"], **move.changes} != values["words"])
        found += [Action(move.plan, scale * move.usual, "words", _with(move.changes)) for move in fresh]
    for name in values.get("models", {}):
        found += _model_actions(name, values["models"], profile)
    return sorted({action.title: action for action in found}.values(), key=lambda action: -action.worth)


def _feature_actions(now: Values, profile: Profile) -> Iterator[Action]:
    for step in scripts.fitting_steps(profile):
        if step.key not in now:
            yield Action(step.choice.plan, step.worth(profile), "features", _with({step.key: step.settings(profile)}))
    for key in now:
        title = scripts.steps()[key].choice.title
        plan = f"Leave out {title[:1].lower()}{title[1:]}. Columns without a signal are noise."
        yield Action(plan, 0.15, "features", _without(key))


def _model_actions(name: str, now: Values, profile: Profile) -> Iterator[Action]:
    own = now[name]
    family = scripts.families()[own["family"]]
    for move in family.moves:
        if worth := move.worth(profile):
            change = _changed_at(name, partial(changed, changes=move.changes, family=family))
            yield Action(move.plan.replace("{}", name), worth, "models", change)
    if family.search and "search" not in own:
        ranges = {key: [family.settings[key].low, family.settings[key].high] for key in family.search}
        plan = f"Search the settings of {name}. A frugal search on few rows finds settings that suit this table."
        change = _changed_at(name, _with({"search": ranges}))
        yield Action(plan, 0.35 if profile.small else 0.65, "models", change)
    for place, other in enumerate(scripts.fitting_families(profile)[:6]):
        if other.name not in now and other.key != own["family"]:
            plan = f"Train {other.name} beside {name}. Models that err in different ways are better together."
            change = _with({other.name: {"family": other.key, **other.usual(profile)}})
            yield Action(plan, 0.75 - 0.1 * place, "models", change)


def _target_actions(now: list[Values], profile: Profile) -> Iterator[Action]:
    if profile.recipe.kind != "number":
        return
    able = SCALES if profile.positive else ("plain",)

    def each(**change: str) -> Change:
        return lambda targets: [{**target, **change} for target in targets]

    likely, scale = "log" if profile.recipe.log else "root", now[0].get("scale", "plain")
    yield from (Action(SCALES[s], 0.5 if s == likely else 0.25, "targets", each(scale=s)) for s in able if s != scale)
    if profile.later and not now[0].get("anchor"):
        why = "Trees repeat levels that they have seen; a change can be added to a level that is new."
        yield Action(f"Learn the change against the last weeks. {why}", 0.6, "targets", each(anchor=ANCHOR))


def _set(value: Any) -> Change:
    return lambda now: value


def _with(change: Mapping[str, Any]) -> Change:
    return lambda now: {**now, **change}


def _without(key: str) -> Change:
    return lambda now: {k: v for k, v in now.items() if k != key}


def _changed_at(name: str, change: Change) -> Change:
    """A change of a model's settings as they are by then: an earlier one of the same plan stays."""
    return lambda now: {**now, name: change(now[name])}


def changed(own: Values, changes: Mapping[str, Any], family: Family) -> Values:
    """Settings with changes made, inside their ranges."""
    result = dict(own)
    for name, value in changes.items():
        if isinstance(value, str) and value.startswith("*"):
            setting = family.settings[name]
            number = min(setting.high, max(setting.low, own.get(name, setting.usual) * float(value[1:])))
            value = round(number) if isinstance(setting.usual, int) else round(number, 6)
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
    chosen, values, titles = named_in(plan, block, profile), scripts.settings_in(block), titles_of(block)
    if not chosen:
        return block
    for action in chosen:
        values[action.key] = action.change(values[action.key])
    made = [make(values[key]) for title, (key, make) in _PARTS.items() if title in titles]
    return "\n\n\n".join([*made, *(scripts.model_section(name, own) for name, own in values["models"].items())])
