"""What can be said of a script as it stands, and done for one that failed; someone else's stays as it is."""

from dataclasses import replace

from mle_star.engineer.design import Design, assemble, families, fitting_families, recover, steps
from mle_star.engineer.profile import Profile

SMALLEST_ROWS = 2_000
_TIME = ("TimeoutError", "timed out", "time limit", "Timeout", "stopped after")
_MEMORY = ("MemoryError", "Unable to allocate", "Killed", "out of memory", "bad_alloc")
_LIBRARY = ("ModuleNotFoundError", "ImportError")


def verdict(text: str, code: str) -> str:
    """`Same` when most of the code that a discussion shows stands in the script, else `Novel`."""
    shown = {_squeezed(line) for line in text.splitlines() if ("=" in line or "(" in line) and len(line.strip()) > 12}
    ours = {_squeezed(line) for line in code.splitlines()}
    return "Same" if len(shown) >= 5 and len(shown & ours) > 0.6 * len(shown) else "Novel"


def _squeezed(line: str) -> str:
    return "".join(line.split("#")[0].split())


# --- repairs ---------------------------------------------------------------------------------------------


def repair(script: str, error: str, profile: Profile, turn: int) -> str:
    """The script without what made it fail; a script of someone else comes back as it is."""
    design = recover(script)
    return script if design is None else assemble(_repaired(design, error, profile, turn))


def _repaired(design: Design, error: str, profile: Profile, turn: int) -> Design:
    if any(word in error for word in _TIME + _MEMORY):
        return _smaller(design, profile)
    if any(word in error for word in _LIBRARY):
        missing = [name for name, own in design.models.items() if families()[own["family"]].package in error]
        return _without_models(design, missing or list(design.models)[:1], profile)
    guilty_steps = [key for key in design.features if steps()[key].function.__name__ in error]
    guilty_models = [name for name, own in design.models.items() if f"fit_{own['family']}" in error]
    if guilty_steps and turn == 0:
        return design.changed(features={k: v for k, v in design.features.items() if k not in guilty_steps})
    if guilty_models and turn == 0:
        return _without_models(design, guilty_models, profile)
    return _plain(design, profile)


def _smaller(design: Design, profile: Profile) -> Design:
    """Fewer rows, folds and seconds; the cheap settings of every model."""
    rows = max(SMALLEST_ROWS, min(design.rows or profile.rows, profile.rows) // 3)
    models = {name: {**own, **families()[own["family"]].cheap} for name, own in design.models.items()}
    for own in models.values():
        own.pop("search", None)
    folds = {**design.folds, "repeats": 1, "count": min(design.folds["count"], 2)}
    words = {**design.words, "words": 1, "pieces": 0, "bits": 16} if design.words else {}
    return design.changed(rows=rows, models=models, folds=folds, words=words, seconds=design.seconds / 3)


def _without_models(design: Design, names: list[str], profile: Profile) -> Design:
    if not (kept := {name: own for name, own in design.models.items() if name not in names}):
        used = {own["family"] for own in design.models.values()}
        able = (f for f in fitting_families(replace(profile, packages=("sklearn",))) if f.key not in used)
        family = next(able, families()["linear"])
        kept = {family.name: {"family": family.key, **family.usual(profile)}}
    return design.changed(models=kept)


def _plain(design: Design, profile: Profile) -> Design:
    """As little as can go wrong: no further columns, one linear model, random folds."""
    linear = families()["linear"]
    data = {**design.data, "dates": {}}
    targets = [{**target, "scale": "plain"} if "scale" in target else target for target in design.targets]
    folds = {"kind": "plain", "count": 3, "repeats": 1}
    model = {linear.name: {"family": linear.key, **linear.usual(profile), **linear.cheap}}
    return design.changed(features={}, models=model, folds=folds, data=data, targets=targets, blend="mean")
