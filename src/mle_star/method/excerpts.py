"""The part of a script that some of its lines have to do with: what they rest on, and what makes use of them."""

import ast
import re
from collections import defaultdict
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
_BLOCKS = ("body", "handlers", "orelse", "finalbody")
_MODULE = -1
_Name = tuple[int, str]
"""A name with the head of the function that it is set in."""


@dataclass
class _Unit:
    """A statement, or the head of one that holds others: its lines, the names that it reads and those that it sets."""

    lines: range
    above: tuple[int, ...]  # the heads that it stands under
    scope: int  # the head of the function that it is in
    is_function: bool = False
    reads: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)


def changed_lines(before: str, after: str) -> set[int]:
    """The lines of `after`, counted from 1, that `before` does not have there; where some went, those beside."""
    old, new = before.splitlines(), after.splitlines()
    head = _same(old, new)
    tail = _same(old[head:][::-1], new[head:][::-1])  # a comparison of all is slow, and most changes are in one place
    matcher = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    changed = set[int]()
    for tag, _, _, low, high in matcher.get_opcodes():
        if tag != "equal":
            low, high = low + head, high + head
            changed |= set(range(low + 1, high + 1)) if low < high else {low, low + 1}
    return changed


def _same(some: Sequence[str], others: Sequence[str]) -> int:
    """How many lines both begin with."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((count for count, (one, other) in pairs if one != other), min(len(some), len(others)))


def excerpt(script: str, wanted: Collection[int]) -> str:
    """These lines, what they rest on, what uses what they set, imports, split and score; gaps say how long they are.

    A script that cannot be parsed, or of which little would be left out, comes back whole.
    """
    tree, lines = parsed(script), script.splitlines()
    if tree is None or not wanted:
        return script
    units = _Units(tree, lines)
    shown = {*wanted, *(line for n in units.around(wanted) for line in units.all[n].lines)}
    text = "\n".join(_with_gaps(lines, shown))
    return text if len(text) <= MOST_SHOWN * len(script) else script


def new_lines(script: str, known: Sequence[str]) -> str:
    """The script without stretches that stand in others that are known."""
    kept = [changed_lines(other, script) for other in known]
    return "\n".join(_with_gaps(script.splitlines(), set.intersection(*kept))) if kept else script


class _Units:
    """The statements of a script, and which of them have to do with which."""

    def __init__(self, tree: ast.Module, lines: Sequence[str]) -> None:
        self.all = list[_Unit]()
        self._collect(tree.body, (), _MODULE)
        place = {line: number for number, unit in enumerate(self.all) for line in unit.lines}
        self._always = {place[n] for n, line in enumerate(lines, 1) if n in place and _ALWAYS.search(line)}
        nodes = list(ast.walk(tree))
        for node in nodes:
            if (number := place.get(getattr(node, "lineno", 0))) is not None:
                _note(self.all[number], node)
                self._always |= {number} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
        for node in nodes:
            if isinstance(node, ast.comprehension):  # what it sets nobody else sees
                unit = self.all[place[node.target.lineno]]
                names = {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
                unit.reads, unit.sets = unit.reads - names, unit.sets - names
        self._setters = defaultdict[_Name, list[int]](list)
        for number, unit in enumerate(self.all):
            for name in unit.sets:
                self._setters[unit.scope, name].append(number)

    def _collect(self, body: Iterable[ast.stmt | ast.ExceptHandler], above: tuple[int, ...], scope: int) -> None:
        for node in body:
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            blocks = [block for name in _BLOCKS if (block := getattr(node, name, None))]
            if not blocks or blocks[0][0].lineno == node.lineno:
                self.all.append(_Unit(range(first, (node.end_lineno or first) + 1), above, scope))
                continue
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for block in blocks:
                head = len(self.all)
                self.all.append(_Unit(range(first, block[0].lineno), above, scope, is_function))
                self._collect(block, (*above, head), head if is_function else scope)
                first = (block[-1].end_lineno or 0) + 1

    def around(self, wanted: Collection[int]) -> set[int]:
        """The numbers of the statements to show for the wanted lines."""
        start = {n for n, unit in enumerate(self.all) if any(line in unit.lines for line in wanted)}
        users = self._readers({(self.all[n].scope, name) for n in start for name in self.all[n].sets})
        reached, border = start | users | self._always, start | users
        for _ in range(DEPTH):
            border = {found for n in border for found in self._rests_on(n)} - reached
            reached |= border
        return reached | {head for n in reached for head in self.all[n].above}

    def _readers(self, names: set[_Name]) -> set[int]:
        return {n for n, unit in enumerate(self.all) if not names.isdisjoint(self._read(unit))}

    def _read(self, unit: _Unit) -> Iterator[_Name]:
        """The names that a statement reads, each with the function whose name it is, or the module."""
        for name in unit.reads:
            place = unit.scope
            while place != _MODULE and (place, name) not in self._setters and name not in self.all[place].parameters:
                place = self.all[place].scope
            yield place, name

    def _rests_on(self, number: int) -> Iterator[int]:
        for place, name in self._read(self.all[number]):
            if place != _MODULE and name in self.all[place].parameters:
                yield from self._readers({(self.all[place].scope, one) for one in self.all[place].sets})
            for found in self._setters.get((place, name), ()):
                yield found
                if self.all[found].is_function:  # shown whole
                    yield from (n for n, one in enumerate(self.all) if found in one.above)


def _note(unit: _Unit, node: ast.AST) -> None:
    """Take in the names that a part of a statement reads or sets; what is changed in place is set, too."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            unit.reads.add(name)
        case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            unit.sets.add(name)
        case ast.arg(arg=name):
            unit.parameters.add(name)
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
