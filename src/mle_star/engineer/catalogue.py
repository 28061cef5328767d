"""All parts that there are, found by looking into the folder, and their sources as they stand in a script."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from mle_star.engineer import parts
from mle_star.engineer.parts.blending import BLENDS
from mle_star.engineer.parts.describe import Blend, Family, Step
from mle_star.engineer.profile import Profile

PACKAGE = "mle_star."


def _described() -> list[Any]:
    """What the modules of the parts define, module by module."""
    names = sorted(module.name for module in pkgutil.iter_modules(parts.__path__, f"{parts.__name__}."))
    return [value for name in names for value in vars(importlib.import_module(name)).values()]


@cache
def families() -> dict[str, Family]:
    """The model families by key."""
    found = {value.key: value for value in _described() if isinstance(value, Family)}
    return dict(sorted(found.items()))


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


@dataclass(frozen=True)
class Definition:
    """A function, a class or an alias of a part, with the names that it mentions."""

    module: str
    name: str
    source: str
    mentions: frozenset[str]


@dataclass(frozen=True)
class Module:
    """A part taken apart: its definitions in order, and where its other names come from."""

    definitions: dict[str, Definition]
    ours: dict[str, tuple[str, str]]  # name here: module of ours, name there
    imports: dict[str, str]  # name here: the line that imports it


@cache
def module_of(name: str) -> Module:
    """A part by its module's name."""
    text = inspect.getsource(importlib.import_module(name))
    lines, found = text.splitlines(), Module({}, {}, {})
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            place = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                bound = alias.asname or alias.name
                if place.startswith(PACKAGE):
                    found.ours[bound] = place, alias.name
                elif place != "__future__":
                    found.imports[bound] = ast.unparse(
                        ast.ImportFrom(place, [alias], 0) if place else ast.Import([alias])
                    )
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        title = getattr(node, "name", "") or getattr(target, "id", "")
        if title:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            source = "\n".join(lines[first - 1 : node.end_lineno]).replace("  # type: ignore[misc]", "")
            mentions = frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
            found.definitions[title] = Definition(name, title, source, mentions)
    return found


def definition_of(function: Callable[..., Any]) -> Definition:
    """The definition of a function of a part."""
    return module_of(function.__module__).definitions[function.__name__]


def needed(roots: Iterable[Definition]) -> list[Definition]:
    """The roots and all of our definitions that they need, in the order in which modules define them."""
    found: dict[tuple[str, str], Definition] = {}
    waiting = list(roots)
    while waiting:
        definition = waiting.pop()
        if (definition.module, definition.name) in found:
            continue
        found[definition.module, definition.name] = definition
        for name in sorted(definition.mentions):
            place, there = module_of(definition.module).ours.get(name, (definition.module, name))
            waiting += [d for d in [module_of(place).definitions.get(there)] if d is not None]
    modules = dict.fromkeys(module for module, _ in found)
    return [d for m in modules for d in module_of(m).definitions.values() if (m, d.name) in found]


def import_lines(definitions: Iterable[Definition]) -> str:
    """The imports that definitions need, as people order them: the standard library first."""
    known = ((module_of(each.module).imports, each.mentions) for each in definitions)
    lines = {imports[name] for imports, mentions in known for name in mentions if name in imports}
    plain = sorted(line for line in lines if line.startswith("import "))
    names: dict[str, list[str]] = {}
    for line in sorted(lines - set(plain)):
        _, place, _, name = line.split(" ")
        names.setdefault(place, []).append(name)
    together = [*plain, *(f"from {place} import {', '.join(names[place])}" for place in sorted(names))]
    standard = [line for line in together if line.split(" ")[1].split(".")[0] in sys.stdlib_module_names]
    others = [line for line in together if line not in standard]
    return "\n\n".join("\n".join(group) for group in (standard, others) if group)
