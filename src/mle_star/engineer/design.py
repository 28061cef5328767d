"""A design: the settings and parts of a script. Scripts are assembled from it, and it is read back from them.

Parts are found by looking into their folder; a script carries the sources of those that it needs.
"""

import ast
import importlib
import inspect
import math
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

from mle_star.data.metrics import FORMULAS
from mle_star.engineer import parts
from mle_star.engineer.parts import core, encoding, reading, solving, validation
from mle_star.engineer.parts.blending import BLENDS
from mle_star.engineer.parts.deciding import RECIPES
from mle_star.engineer.parts.describe import Blend, Family, Step
from mle_star.engineer.parts.texts import count_words
from mle_star.engineer.profile import Profile

WIDTH = 120
MARK = "# --- "
PACKAGE = "mle_star."
ALWAYS = (core.__name__, encoding.__name__)
_BLOCKS = ("def ", "class ", "@")

# --- the parts that there are ----------------------------------------------------------------------------


def _described() -> list[Any]:
    """What the modules of the parts define, module by module."""
    names = [module.name for module in pkgutil.iter_modules(parts.__path__, f"{parts.__name__}.")]  # in their order
    return [value for name in names for value in vars(importlib.import_module(name)).values()]


@cache
def families() -> dict[str, Family]:
    """The model families by key."""
    return dict(sorted({value.key: value for value in _described() if isinstance(value, Family)}.items()))


@cache
def steps() -> dict[str, Step]:
    """The feature steps by key."""
    tables = (value for value in _described() if isinstance(value, tuple))
    return {step.key: step for table in tables for step in table if isinstance(step, Step)}


def all_blends() -> dict[str, Blend]:
    """The ways to combine models by key."""
    return {blend.key: blend for blend in BLENDS}


def fitting_families(profile: Profile) -> list[Family]:
    """The families that scripts can import and that suit a task, the most promising first."""
    able = [family for family in families().values() if family.package in (*profile.packages, "sklearn")]
    return sorted((f for f in able if f.worth(profile) > 0), key=lambda family: -family.worth(profile))


def fitting_steps(profile: Profile, *, first: bool = False) -> list[Step]:
    """The steps that suit a task, the most promising first; those of the first script in the order of the folder."""
    able = [step for step in steps().values() if step.worth(profile) > 0 and (step.first or not first)]
    return able if first else sorted(able, key=lambda step: -step.worth(profile))


def fitting_blends(profile: Profile) -> list[Blend]:
    """The ways to combine models that suit a task, the most promising first."""
    return sorted((b for b in BLENDS if b.worth(profile) > 0), key=lambda blend: -blend.worth(profile))


# --- sources ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Definition:
    """A function, a class or an alias of a part."""

    module: str
    name: str
    source: str
    mentions: tuple[tuple[str, str], ...]  # module and name of what may be ours
    imports: frozenset[str]  # the lines that import the rest


@cache
def definitions_of(module: str) -> dict[str, Definition]:
    """The definitions of a module by name, in order."""
    text = inspect.getsource(importlib.import_module(module))
    lines, found = text.splitlines(), dict[str, Definition]()
    ours, imports = dict[str, tuple[str, str]](), dict[str, str]()
    for node in _parsed(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            place = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                bound = alias.asname or alias.name
                if place.startswith(PACKAGE):
                    ours[bound] = place, alias.name
                elif place != "__future__":
                    imports[bound] = ast.unparse(ast.ImportFrom(place, [alias], 0) if place else ast.Import([alias]))
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if title := getattr(node, "name", "") or getattr(target, "id", ""):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            source = "\n".join(lines[first - 1 : node.end_lineno]).replace("  # type: ignore[misc]", "")
            names = sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)})
            mentions = tuple(ours.get(name, (module, name)) for name in names)
            needs = frozenset(imports[name] for name in names if name in imports)
            found[title] = Definition(module, title, source, mentions, needs)
    return found


def definition_of(function: Callable[..., Any]) -> Definition:
    """The definition of a function of a part."""
    return definitions_of(function.__module__)[function.__name__]


def needed(roots: Iterable[Definition]) -> list[Definition]:
    """The roots and all of our definitions that they need, in the order in which modules define them."""
    found, waiting = dict[Definition, None](), list(roots)
    while waiting:
        definition = waiting.pop()
        if definition not in found:
            found[definition] = None
            waiting += filter(None, (definitions_of(module).get(name) for module, name in definition.mentions))
    modules = dict.fromkeys(definition.module for definition in found)
    return [d for module in modules for d in definitions_of(module).values() if d in found]


def import_lines(definitions: Iterable[Definition]) -> str:
    """The imports that definitions need, as people order them: the standard library first."""
    lines, named = {line for each in definitions for line in each.imports}, dict[str, list[str]]()
    for line in sorted(lines, key=lambda line: (line.startswith("from "), line)):
        place, _, name = line.partition(" import ")
        named.setdefault(place, []).append(name)
    together = [f"{place} import {', '.join(names)}" if names[0] else place for place, names in named.items()]
    standard = [line for line in together if line.split(" ")[1].split(".")[0] in sys.stdlib_module_names]
    others = [line for line in together if line not in standard]
    return "\n\n".join("\n".join(group) for group in (standard, others) if group)


# --- designs ---------------------------------------------------------------------------------------------


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

    def changed(self, **fields: Any) -> "Design":
        """A copy with other fields."""
        return replace(self, **fields)


# --- writing ---------------------------------------------------------------------------------------------


def assemble(design: Design) -> str:
    """The script of a design: self-contained, its parts in full."""
    roots = [definition_of(solving.study if design.variants else solving.solve)]
    roots += [d for name in ALWAYS for d in definitions_of(name).values()]
    roots += [definition_of(steps()[key].function) for key in design.features]
    roots += [definition_of(families()[own["family"]].fit) for own in design.models.values()]
    roots += [definition_of(all_blends()[design.blend].function), *_scoring(design.metric)]
    definitions = needed(roots)

    def shared(title: str, module: ModuleType) -> str:
        return section(title, *(d.source for d in definitions if d.module == module.__name__))

    names = ["data", "folds", "rows", "seconds", *(["variants"] if design.variants else [])]
    score, decide = _scoring(design.metric)
    call = "study(solution, VARIANTS)" if design.variants else "solve(solution)"
    start = "".join(f"        {each.name}={each.name.upper()},\n" for each in fields(solving.Solution))
    sections = [
        section("settings", *(f"{name.upper()} = {literal(getattr(design, name))}" for name in names)),
        target_section(design.targets),
        shared("rows and time", core),
        shared("reading", reading),
        shared("encoding", encoding),
        words_section(design.words),
        section(
            "metric",
            f"METRIC = {literal(design.metric)}",
            *_sources(score, decide),
            f"SCORE, DECIDE = {score.name}, {decide.name}",
        ),
        features_section(design.features),
        section("models", "MODELS = {}"),
        *(model_section(name, own) for name, own in design.models.items()),
        blend_section(design.blend),
        shared("cross-validation", validation),
        shared("course", solving),
        section("start", f'if __name__ == "__main__":\n    solution = Solution(\n{start}    )\n    {call}'),
    ]
    head = f'"""{design.doc}"""\n\nfrom __future__ import annotations\n\n{import_lines(definitions)}'
    return f"{head}\n\n" + "\n\n\n".join(sections) + "\n"


def section(title: str, *statements: str) -> str:
    """A piece of a script under its title."""
    text = f"{MARK}{title} ".ljust(WIDTH - 20, "-")
    for before, each in pairwise(["", *statements]):
        apart = before and (before.startswith(_BLOCKS) or each.startswith(_BLOCKS))
        text += ("\n\n\n" if apart else "\n") + each
    return text


def _sources(*roots: Definition) -> list[str]:
    """What the roots need beside that which every script has."""
    return [d.source for d in needed(roots) if d.module not in ALWAYS]


def _scoring(metric: Mapping[str, Any]) -> tuple[Definition, Definition]:
    """The formula of the metric, and how its answers are decided."""
    recipe = RECIPES[metric["name"]]
    return definitions_of(FORMULAS)[str(recipe.metric.formula)], definition_of(recipe.decide)


def features_section(features: Mapping[str, dict[str, Any]]) -> str:
    """The section of the feature steps: their settings, their code, and which of them learn inside the folds."""
    chosen = {key: steps()[key] for key in features}
    return section(
        "features",
        f"FEATURES = {literal(dict(features))}",
        *_sources(*(definition_of(step.function) for step in chosen.values())),
        f"ROW_STEPS = {literal({key: step.function for key, step in chosen.items() if not step.learns}, room=14)}",
        f"FOLD_STEPS = {literal({key: step.function for key, step in chosen.items() if step.learns}, room=14)}",
    )


def target_section(targets: list[dict[str, Any]]) -> str:
    """The section of the targets."""
    return section("target", f"TARGETS = {literal(targets)}")


def words_section(words: Mapping[str, Any]) -> str:
    """The section of the words: how texts and lists are read."""
    return section("words", f"WORDS = {literal(dict(words))}", *_sources(definition_of(count_words)))


def model_section(name: str, own: Mapping[str, Any]) -> str:
    """The section of a model: its settings, its code, and its place among the models."""
    family = families()[own["family"]]
    settings = {key: value for key, value in own.items() if key != "family"}
    constant = "".join(c if c.isalnum() else "_" for c in name).upper()
    last = f"MODELS[{literal(name)}] = ({family.fit.__name__}, {constant}, {family.timed})"
    code = _sources(definition_of(family.fit))
    return section(f"model: {name}", f"{constant} = {literal(settings, room=len(constant) + 3)}", *code, last)


def blend_section(blend: str) -> str:
    """The section of the combination."""
    combine = definition_of(all_blends()[blend].function)
    return section("blend", f"BLEND = {literal(blend)}", *_sources(combine), f"COMBINE = {combine.name}")


def literal(value: Any, indent: int = 0, room: float = 12) -> str:
    """A value as Python, a function by its name, broken into lines where it is too long for one."""
    if not isinstance(value, (dict, list, tuple)):
        return quoted(value) if isinstance(value, str) else getattr(value, "__name__", str(value))
    left, right = "{}" if isinstance(value, dict) else "[]"
    items = [(f"{quoted(k)}: ", v) for k, v in value.items()] if isinstance(value, dict) else [("", v) for v in value]
    flat = left + ", ".join(key + literal(v, room=-math.inf) for key, v in items) + right
    if len(flat) + indent + room <= WIDTH or not value:
        return flat
    lines = (f"{' ' * (indent + 4)}{key}{literal(v, indent + 4, len(key) + 1)},\n" for key, v in items)
    return f"{left}\n{''.join(lines)}{' ' * indent}{right}"


def quoted(text: str) -> str:
    """A text as Python, in double quotes where they need no backslash."""
    shown = repr(text)
    if shown.startswith("'") and '"' not in text:
        return '"' + shown[1:-1].replace("\\'", "'") + '"'
    return shown


# --- reading ---------------------------------------------------------------------------------------------


def sections_of(script: str) -> dict[str, str]:
    """The sections of a script of ours by title, each with its title line; empty for other scripts."""
    _, *pieces = re.split(f"^{MARK}", script, flags=re.MULTILINE)
    return {piece.partition("\n")[0].rstrip("-").strip(): f"{MARK}{piece}".rstrip() for piece in pieces}


def _parsed(code: str) -> ast.Module:
    try:
        return ast.parse(code)
    except SystemError:  # not of the code: Python 3.11 counts wrongly where another reading falls into this one
        return _parsed(code)


def settings_in(code: str) -> dict[str, Any]:
    """The constants that code assigns, in small letters, the models' by name under `models`, the docstring as `doc`.

    Empty for what is no Python.
    """
    try:
        tree = _parsed(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two where it is too deep for the parser
        return {}
    values: dict[str, Any] = {"doc": ast.get_docstring(tree, clean=False) or "", "models": {}}
    for node in (node for node in tree.body if isinstance(node, ast.Assign) and len(node.targets) == 1):
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id.isupper():
            with suppress(ValueError):
                values[target.id.lower()] = ast.literal_eval(node.value)
        elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == "MODELS":
            fit, constant = (ast.unparse(each) for each in getattr(node.value, "elts", [])[:2])
            family, own = fit.removeprefix("fit_"), values.get(constant.lower())
            if family in families() and isinstance(own, dict):
                values["models"][ast.literal_eval(target.slice)] = {"family": family, **own}
    return values


def recover(script: str) -> Design | None:
    """The design that a script of ours was assembled from; None for a script of someone else."""
    names = [each.name for each in fields(Design)]
    values = {"variants": {}, **settings_in(script)}
    if any(name not in values for name in names) or not values["models"]:
        return None
    values["features"] = {key: own for key, own in values["features"].items() if key in steps()}
    return Design(**{name: values[name] for name in names})
