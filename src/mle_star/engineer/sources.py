"""The sources of the parts and formulas: which definitions a function needs, and how they stand in a script."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

PACKAGE = "mle_star."
DESCRIPTIONS = ("STEPS", "FAMILY", "BLENDS")


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
    lines, tree = text.splitlines(), ast.parse(text)
    definitions, ours, imports = dict[str, Definition](), dict[str, tuple[str, str]](), dict[str, str]()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bound = alias.asname or alias.name
                if (node.module or "").startswith(PACKAGE):
                    ours[bound] = node.module or "", alias.name
                elif node.module != "__future__":
                    imports[bound] = f"from {node.module} import {alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name
                imports[bound] = f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
        else:
            title = _title(node)
            if title and title not in DESCRIPTIONS:
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
                source = "\n".join(lines[first - 1 : node.end_lineno]).replace("  # type: ignore[misc]", "")
                mentions = frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
                definitions[title] = Definition(name, title, source, mentions)
    return Module(definitions, ours, imports)


def _title(node: ast.stmt) -> str:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""


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
        module = module_of(definition.module)
        for name in sorted(definition.mentions):
            if name in module.definitions:
                waiting.append(module.definitions[name])
            elif name in module.ours:
                place, there = module.ours[name]
                if there in module_of(place).definitions:
                    waiting.append(module_of(place).definitions[there])
    order = {key: number for number, key in enumerate(found)}
    modules = sorted({module for module, _ in found}, key=lambda m: min(order[key] for key in found if key[0] == m))
    return [d for m in modules for d in module_of(m).definitions.values() if (m, d.name) in found]


def import_lines(definitions: Iterable[Definition]) -> str:
    """The imports that definitions need, as people order them: the standard library first."""
    lines = set()
    for definition in definitions:
        module = module_of(definition.module)
        lines |= {module.imports[name] for name in definition.mentions if name in module.imports}
    plain = sorted(line for line in lines if line.startswith("import "))
    names: dict[str, list[str]] = {}
    for line in lines - set(plain):
        _, place, _, name = line.split(" ")
        names.setdefault(place, []).append(name)
    together = [*plain, *(f"from {place} import {', '.join(sorted(names[place]))}" for place in sorted(names))]
    standard = [line for line in together if line.split(" ")[1].split(".")[0] in sys.stdlib_module_names]
    others = [line for line in together if line not in standard]
    return "\n\n".join("\n".join(group) for group in (standard, others) if group)
