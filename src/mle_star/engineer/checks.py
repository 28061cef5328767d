"""What can be said of a script as it stands, and done for one that failed; of someone else's, only what is safe."""

from __future__ import annotations

import ast
from dataclasses import replace

from mle_star.engineer.design import Design, assemble, families, fitting_families, parsed, recover, sections_of, steps
from mle_star.engineer.profile import Profile

_LEARNING = {"fit", "fit_transform", "fit_resample"}
_SPLITTING = {"train_test_split", "split", "cross_val_score"}
_SPLITTING |= {"KFold", "StratifiedKFold", "GroupKFold", "TimeSeriesSplit"}
SMALLEST_ROWS = 2_000
_TIME = ("TimeoutError", "timed out", "time limit", "Timeout", "stopped after")
_MEMORY = ("MemoryError", "Unable to allocate", "Killed", "out of memory", "bad_alloc")
_LIBRARY = ("ModuleNotFoundError", "ImportError")


def leaks(code: str) -> list[str]:
    """Statements of someone else's script that learn from all rows before these are split, or from test rows.

    Scripts of ours learn inside the folds by their making. What a script claims and what its answers are worth is for
    the harness to compare.
    """
    tree = parsed(code)
    if tree is None or recover(code) is not None:
        return []
    split = min((n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call) and _name(n) in _SPLITTING), default=None)
    lines, found = code.splitlines(), []
    for node in tree.body:
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and _name(n) in _LEARNING]
        early = split is not None and (node.end_lineno or 0) < split
        given = [ast.unparse(argument) for call in calls for argument in call.args]
        mixed = any("test" in words.lower() and "concat" in words for words in given)
        if calls and not isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (early or mixed):
            found.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    return found


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def preparation(code: str) -> str:
    """The part of a script that prepares the data, for the answer that quotes it."""
    return sections_of(code).get("features") or "\n".join(code.splitlines()[:20])


def verdict(text: str, code: str) -> str:
    """`Same` when most of the code that a discussion shows stands in the script, else `Novel`."""
    shown = {_squeezed(line) for line in text.splitlines() if ("=" in line or "(" in line) and len(line.strip()) > 12}
    ours = {_squeezed(line) for line in code.splitlines()}
    return "Same" if len(shown) >= 5 and len(shown & ours) > 0.6 * len(shown) else "Novel"


def _squeezed(line: str) -> str:
    return "".join(line.split("#")[0].split())


# --- scripts that someone else wrote --------------------------------------------------------------------


def foreign_block(code: str, previous: list[str]) -> tuple[str, str]:
    """The longest statement that was not chosen before, and a careful plan."""
    lines, tree = code.splitlines(), parsed(code)
    nodes = [n for n in tree.body if not isinstance(n, (ast.Import, ast.ImportFrom))] if tree is not None else []
    pieces = ["\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in nodes]
    fresh = [piece for piece in pieces if piece not in previous] or pieces or [code]
    return max(fresh, key=len), "Leave the block as it is: its parts are not known to the embedded engineer."


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
    rows = min(design.rows or profile.rows, profile.rows)
    models = {name: {**own, **families()[own["family"]].cheap} for name, own in design.models.items()}
    for own in models.values():
        own.pop("search", None)
    folds = {**design.folds, "repeats": 1, "count": min(design.folds["count"], 2)}
    words = {**design.words, "words": 1, "pieces": 0, "bits": 16} if design.words else {}
    return design.changed(
        rows=max(SMALLEST_ROWS, rows // 3), models=models, folds=folds, words=words, seconds=design.seconds / 3
    )


def _without_models(design: Design, names: list[str], profile: Profile) -> Design:
    kept = {name: own for name, own in design.models.items() if name not in names}
    if not kept:
        used = {own["family"] for own in design.models.values()}
        able = [f for f in fitting_families(replace(profile, packages=("sklearn",))) if f.key not in used]
        family = able[0] if able else families()["linear"]
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
