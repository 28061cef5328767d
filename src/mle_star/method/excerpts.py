"""The part of a script that some of its lines have to do with: what they rest on, and what makes use of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from mle_star.method.codeblocks import parsed

DEPTH = 2
"""So many steps back from the wanted lines are shown: where their values come from, and where those do."""
MOST_SHOWN = 0.85
"""Where more than this share of a script would be left, all of it is shown."""
SHORT = 200
"""A gap of fewer characters stays: it would cost a reader more than it spares."""
_ALWAYS = re.compile(r"split|fold|final validation performance", re.IGNORECASE)
"""Statements that are always shown: what is trained on, what is held out, and what is printed of it."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MODULE = -1


@dataclass
class _Unit:
    """A statement, or the head of one that holds others: its lines, the names that it reads and those that it sets."""

    first: int
    last: int
    above: tuple[int, ...]  # the heads that it stands under
    scope: int  # the head of the function that it is in
    reads: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    parameters: frozenset[str] | None = None  # of a function's head


def changed_lines(before: str, after: str) -> set[int]:
    """The lines of `after`, counted from 1, that `before` does not have there; where some went, those beside."""
    matcher = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    changed = set[int]()
    for tag, _, _, low, high in matcher.get_opcodes():
        if tag != "equal":
            changed |= set(range(low + 1, high + 1)) if low < high else {low, low + 1}
    return changed


def excerpt(script: str, wanted: Collection[int]) -> str:
    """These lines, what they rest on, what uses what they set, imports, split and score; gaps say how long they are.

    A script that cannot be parsed, or of which little would be left out, comes back whole.
    """
    tree, lines = parsed(script), script.splitlines()
    if tree is None or not wanted:
        return script
    units = _Units(tree, lines)
    shown = {
        *wanted,
        *(line for n in units.around(wanted) for line in range(units.all[n].first, units.all[n].last + 1)),
    }
    text = "\n".join(_with_gaps(lines, shown))
    return text if len(text) <= MOST_SHOWN * len(script) else script


def new_lines(script: str, known: Sequence[str]) -> str:
    """The script without stretches that stand in others that are known."""
    kept = [changed_lines(other, script) for other in known]
    lines = script.splitlines()
    return "\n".join(_with_gaps(lines, set.intersection(*kept))) if kept else script


class _Units:
    """The statements of a script, and which of them have to do with which."""

    def __init__(self, tree: ast.Module, lines: Sequence[str]) -> None:
        self.all = list[_Unit]()
        self._lines = lines
        self._always = set[int]()
        self._collect(tree.body, (), _MODULE)
        self._setters: dict[tuple[int, str], list[int]] = {}
        for number, unit in enumerate(self.all):
            for name in unit.sets:
                self._setters.setdefault((unit.scope, name), []).append(number)

    def around(self, wanted: Collection[int]) -> set[int]:
        """The numbers of the statements to show for the wanted lines."""
        start = {n for n, unit in enumerate(self.all) if any(unit.first <= line <= unit.last for line in wanted)}
        own = {one for n in start for one in self._of_setters(n)}
        users = {n for n, unit in enumerate(self.all) if any((place, name) in own for name, place in self._read(unit))}
        reached, border = start | users | self._always, start | users
        for _ in range(DEPTH):
            border = {found for n in border for found in self._rests_on(n)} - reached
            reached |= border
        return reached | {head for n in reached for head in self.all[n].above}

    def _of_setters(self, number: int) -> Iterator[tuple[int, str]]:
        unit = self.all[number]
        return ((unit.scope, name) for name in unit.sets)

    def _read(self, unit: _Unit) -> Iterator[tuple[str, int]]:
        """The names that a statement reads, each with the function whose name it is, or the module."""
        for name in unit.reads:
            place = unit.scope
            while place != _MODULE and (place, name) not in self._setters:
                if name in (self.all[place].parameters or ()):
                    break
                place = self.all[place].scope
            yield name, place

    def _rests_on(self, number: int) -> Iterator[int]:
        for name, place in self._read(self.all[number]):
            if place != _MODULE and name in (self.all[place].parameters or ()):
                called = {(self.all[place].scope, one) for one in self.all[place].sets}
                yield from (n for n, one in enumerate(self.all) if any((p, w) in called for w, p in self._read(one)))
            for found in self._setters.get((place, name), ()):
                yield found
                if self.all[found].parameters is not None:  # a function is shown whole
                    yield from (n for n, one in enumerate(self.all) if found in one.above)

    # --- reading ---

    def _collect(self, body: Iterable[ast.stmt | ast.ExceptHandler], above: tuple[int, ...], scope: int) -> None:
        for node in body:
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            blocks = [block for block in _blocks(node) if block]
            if not blocks or blocks[0][0].lineno == node.lineno:
                self._add(_Unit(first, node.end_lineno or first, above, scope), ast.walk(node))
                continue
            for block in blocks:
                head = _Unit(first, block[0].lineno - 1, above, scope)
                number = self._add(head, _head_of(node) if block is blocks[0] else ())
                inside = scope
                if isinstance(node, _FUNCTIONS):
                    inside = number
                    head.parameters = frozenset(one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg))
                self._collect(block, (*above, number), inside)
                first = (block[-1].end_lineno or 0) + 1

    def _add(self, unit: _Unit, nodes: Iterable[ast.AST]) -> int:
        nodes = list(nodes)
        comprehended = {
            name.id
            for node in nodes
            if isinstance(node, ast.comprehension)
            for name in ast.walk(node.target)
            if isinstance(name, ast.Name)
        }
        for node in nodes:
            _note(unit, node)
        unit.reads -= comprehended
        unit.sets -= comprehended
        text = "\n".join(self._lines[unit.first - 1 : unit.last])
        if _ALWAYS.search(text) or any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes):
            self._always.add(len(self.all))
        self.all.append(unit)
        return len(self.all) - 1


def _blocks(node: ast.AST) -> Iterator[Sequence[ast.stmt | ast.ExceptHandler]]:
    for name in ("body", "handlers", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _head_of(node: ast.AST) -> Iterator[ast.AST]:
    """All of a statement but the statements that it holds."""
    yield node
    held = {id(one) for block in _blocks(node) for one in block}
    for child in ast.iter_child_nodes(node):
        if id(child) not in held:
            yield from ast.walk(child)


def _note(unit: _Unit, node: ast.AST) -> None:
    """Take in the names that a part of a statement reads or sets; what is changed in place is set, too."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            unit.reads.add(name)
        case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            unit.sets.add(name)
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
            unit.sets |= _base(node)
        case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
            unit.sets |= _base(method)
        case ast.Call(func=ast.Attribute(attr=name) as method) if "fit" in name:
            unit.sets |= _base(method)
        case _:
            pass


def _base(node: ast.AST) -> set[str]:
    """The name of what is changed in place."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _with_gaps(lines: Sequence[str], shown: set[int]) -> Iterator[str]:
    gap = list[str]()
    for number, line in enumerate([*lines, ""], 1):
        if number not in shown and number <= len(lines):
            gap.append(line)
            continue
        if sum(map(len, gap)) < SHORT:
            yield from gap
        elif count := sum(bool(one.strip()) for one in gap):
            yield f"{line[: len(line) - len(line.lstrip())]}# ... {count} lines ..."
        gap = []
        if number <= len(lines):
            yield line
