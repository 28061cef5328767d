"""A design: the settings and parts of a script. Scripts are assembled from it, and it is read back from them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from types import ModuleType
from typing import Any

from mle_star.data.metrics import FORMULAS
from mle_star.engineer.catalogue import (
    Definition,
    all_blends,
    definition_of,
    families,
    import_lines,
    module_of,
    needed,
    steps,
)
from mle_star.engineer.parts import core, encoding, reading, solving, validation
from mle_star.engineer.parts.texts import count_words
from mle_star.engineer.recipes import RECIPES

WIDTH = 120
MARK = "# --- "
_ALWAYS = (core.__name__, encoding.__name__)


@dataclass(frozen=True)
class Design:
    """Settings by part, each a constant of the script. `models`: by name, with `family`; `variants` make it a study."""

    doc: str
    data: dict[str, Any]
    targets: list[dict[str, Any]]
    metric: dict[str, Any]
    folds: dict[str, Any]
    rows: int | None
    seconds: float
    features: dict[str, dict[str, Any]]
    models: dict[str, dict[str, Any]]
    blend: str = "mean"
    words: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)

    def changed(self, **fields: Any) -> Design:
        """A copy with other fields."""
        return replace(self, **fields)


# --- writing ---------------------------------------------------------------------------------------------


def assemble(design: Design) -> str:
    """The script of a design: self-contained, its parts in full."""
    roots = [definition_of(solving.study if design.variants else solving.solve)]
    roots += [d for name in _ALWAYS for d in module_of(name).definitions.values()]
    roots += [definition_of(steps()[key].add) for key in design.features]
    roots += [definition_of(families()[own["family"]].fit) for own in design.models.values()]
    roots += [definition_of(all_blends()[design.blend].combine), *_scoring(design.metric)]
    definitions = needed(roots)

    def shared(title: str, module: ModuleType) -> str:
        return section(title, _sources([d for d in definitions if d.module == module.__name__]))

    head = f'"""{design.doc}"""\n\nfrom __future__ import annotations\n\n{import_lines(definitions)}'
    parts = [
        f"{head}\n\n{section('settings', _settings(design))}",
        target_section(design.targets),
        shared("rows and time", core),
        shared("reading", reading),
        shared("encoding", encoding),
        words_section(design.words),
        section("metric", _metric(design.metric)),
        features_section(design.features),
        section("models", "MODELS = {}"),
        *(model_section(name, own) for name, own in design.models.items()),
        blend_section(design.blend),
        shared("cross-validation", validation),
        shared("course", solving),
        _start(design),
    ]
    return "\n\n\n".join(parts) + "\n"


def section(title: str, body: str) -> str:
    """A piece of a script under its title."""
    return f"{MARK}{title} ".ljust(WIDTH - 20, "-") + f"\n{body}"


def _sources(definitions: list[Definition]) -> str:
    text = definitions[0].source if definitions else ""
    for before, each in pairwise(definitions):
        text += ("\n\n\n" if _is_block(before) or _is_block(each) else "\n") + each.source
    return text


def _is_block(definition: Definition) -> bool:
    return definition.source.startswith(("def ", "class ", "@"))


def _settings(design: Design) -> str:
    names = ["data", "folds", "rows", "seconds", *(["variants"] if design.variants else [])]
    return "\n".join(f"{name.upper()} = {literal(getattr(design, name))}" for name in names)


def _scoring(metric: Mapping[str, Any]) -> tuple[Definition, Definition]:
    """The formula of the metric, and how its answers are decided."""
    recipe = RECIPES[metric["name"]]
    return module_of(FORMULAS).definitions[str(recipe.metric.formula)], definition_of(recipe.decide)


def _metric(metric: Mapping[str, Any]) -> str:
    score, decide = _scoring(metric)
    own = [d for d in needed([score, decide]) if _is_own(d)]
    ends = f"SCORE, DECIDE = {score.name}, {decide.name}"
    return f"METRIC = {literal(metric)}\n" + _gap(own) + f"{_sources(own)}\n\n\n{ends}"


def _gap(definitions: list[Definition]) -> str:
    return "\n\n" if definitions and _is_block(definitions[0]) else ""


def features_section(features: Mapping[str, dict[str, Any]]) -> str:
    """The section of the feature steps: their settings, their code, and which of them learn inside the folds."""
    chosen = {key: steps()[key] for key in features}
    own = [d for step in chosen.values() for d in needed([definition_of(step.add)]) if _is_own(d)]
    own = list({d.name: d for d in own}.values())
    by_row, in_fold = (
        {key: _Name(step.add.__name__) for key, step in chosen.items() if step.learns is learns}
        for learns in (False, True)
    )
    head = f"FEATURES = {literal(dict(features))}"
    ends = f"ROW_STEPS = {literal(by_row, room=14)}\nFOLD_STEPS = {literal(in_fold, room=14)}"
    return section("features", f"{head}\n\n\n{_sources(own)}\n\n\n{ends}" if own else f"{head}\n{ends}")


def target_section(targets: list[dict[str, Any]]) -> str:
    """The section of the targets."""
    return section("target", f"TARGETS = {literal(targets)}")


def words_section(words: Mapping[str, Any]) -> str:
    """The section of the words: how texts and lists are read."""
    own = [d for d in needed([definition_of(count_words)]) if d.module == count_words.__module__]
    return section("words", f"WORDS = {literal(dict(words))}\n\n\n{_sources(own)}")


def model_section(name: str, own: Mapping[str, Any]) -> str:
    """The section of a model: its settings, its code, and its place among the models."""
    family = families()[own["family"]]
    settings = {key: value for key, value in own.items() if key != "family"}
    constant = "".join(c if c.isalnum() else "_" for c in name).upper()
    code = _sources([d for d in needed([definition_of(family.fit)]) if _is_own(d)])
    last = f"MODELS[{literal(name)}] = ({family.fit.__name__}, {constant}, {family.timed})"
    return section(f"model: {name}", f"{constant} = {literal(settings)}\n\n\n{code}\n\n\n{last}")


def blend_section(blend: str) -> str:
    """The section of the combination."""
    combine = all_blends()[blend].combine
    own = [d for d in needed([definition_of(combine)]) if _is_own(d)]
    return section("blend", f"BLEND = {literal(blend)}\n{_gap(own)}{_sources(own)}\n\n\nCOMBINE = {combine.__name__}")


def _is_own(definition: Definition) -> bool:
    """Does it belong into the section, rather than to what every script has?"""
    return definition.module not in _ALWAYS


def _start(design: Design) -> str:
    inner = "".join(f"        {each.name}={each.name.upper()},\n" for each in fields(solving.Solution))
    run = "study(solution, VARIANTS)" if design.variants else "solve(solution)"
    lines = 'if __name__ == "__main__":\n'
    return section("start", f"{lines}    solution = Solution(\n{inner}    )\n    {run}")


def literal(value: Any, indent: int = 0, room: int = 12) -> str:
    """A value as Python, broken into lines where it is too long for one."""
    flat = _flat(value)
    if len(flat) + indent + room <= WIDTH or not isinstance(value, (dict, list)) or not value:
        return flat
    pad = " " * (indent + 4)
    if isinstance(value, dict):
        items = [f"{quoted(key)}: {literal(v, indent + 4, len(quoted(key)) + 3)}" for key, v in value.items()]
    else:
        items = [literal(v, indent + 4, 1) for v in value]
    left, right = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return left + "\n" + "".join(f"{pad}{item},\n" for item in items) + " " * indent + right


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)}: {_flat(v)}" for key, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flat, value)) + "]"
    return quoted(value) if isinstance(value, str) and not isinstance(value, _Name) else str(value)


class _Name(str):
    """A name of a function among values."""


def quoted(text: str) -> str:
    """A text as Python, in double quotes where they need no backslash."""
    shown = repr(text)
    if shown.startswith("'") and '"' not in text:
        return '"' + shown[1:-1].replace("\\'", "'") + '"'
    return shown


# --- reading ---------------------------------------------------------------------------------------------


def sections_of(script: str) -> dict[str, str]:
    """The sections of a script of ours by title, each with its title line; empty for other scripts."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in script.splitlines():
        if line.startswith(MARK):
            title = line.removeprefix(MARK).rstrip("-").strip()
            found[title] = []
        if title:
            found[title].append(line)
    return {name: "\n".join(lines).rstrip() for name, lines in found.items()}


def parsed(code: str) -> ast.Module | None:
    """The syntax tree, or None for what is no Python, or too deep for the parser."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def settings_in(code: str) -> dict[str, Any]:
    """The constants that code assigns, in small letters, the models' by name under `models`, the docstring as `doc`.

    Empty for what is no Python.
    """
    tree = parsed(code)
    if tree is None:
        return {}
    values: dict[str, Any] = {"doc": ast.get_docstring(tree, clean=False) or "", "models": {}}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id.isupper():
            try:
                values[target.id.lower()] = ast.literal_eval(node.value)
            except ValueError:
                continue
        elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == "MODELS":
            fit, constant = (ast.unparse(each) for each in getattr(node.value, "elts", [])[:2])
            family, own = fit.removeprefix("fit_"), values.get(constant.lower())
            if family in families() and isinstance(own, dict):
                values["models"][ast.literal_eval(target.slice)] = {"family": family, **own}
    return values


def recover(script: str) -> Design | None:
    """The design that a script of ours was assembled from; None for a script of somebody else."""
    names = [each.name for each in fields(Design)]
    values = {"variants": {}, **settings_in(script)}
    if any(name not in values for name in names) or not values["models"]:
        return None
    values["features"] = {key: own for key, own in values["features"].items() if key in steps()}
    return Design(**{name: values[name] for name in names})
