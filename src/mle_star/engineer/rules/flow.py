"""Follows rows through a script: which variables hold all rows, training rows, held-out rows or test rows, and who
learns from them. It walks the syntax tree in the order of execution, into functions where they are called."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

ALL, FIT, HELD, TEST = "all", "fit", "held", "test"
"""Origins of rows: the whole labelled table, its training part, its held-out part, the table without labels."""
Rows = frozenset[str]
NONE: Rows = frozenset()

SPLITTERS = {"train_test_split"}
FOLD_MAKERS = re.compile(r"KFold|ShuffleSplit|LeaveOne|PredefinedSplit|TimeSeriesSplit|GroupFold")
INNER_CV = {"cross_val_score", "cross_validate", "cross_val_predict", "GridSearchCV", "RandomizedSearchCV"}
HELD_NAME = re.compile(
    r"(^|_)(val|valid|validation|hold|holdout|held|dev|eval|oof|te|test)(_|\d|$)|_(val|valid|test)$", re.I
)
FIT_NAME = re.compile(r"(^|_)(train|fit|tr|learn)(_|\d|$)", re.I)
TEST_FILE = re.compile(r"test|unlabel|submission", re.I)
READERS = re.compile(r"^read_(csv|json|parquet|table|excel|feather|pickle)$|^json_normalize$|^load_|^fetch_")
MAX_DEPTH = 4


@dataclass(frozen=True)
class Value:
    """What an expression holds: rows, possibly as a list whose first element is known apart from the others."""

    rows: Rows = NONE
    first: Rows | None = None
    index: Rows = NONE
    learner: str = ""
    columns: frozenset[str] = frozenset()

    def joined(self, other: Value) -> Value:
        """Both together."""
        return Value(
            self.rows | other.rows, None, self.index | other.index, self.learner or other.learner,
            self.columns | other.columns,
        )  # fmt: skip


EMPTY = Value()


@dataclass(frozen=True)
class Event:
    """Something was learned from rows. `kind`: transform, model, statistic, resample, join, target, inner cv."""

    kind: str
    rows: Rows
    node: ast.stmt
    detail: str = ""


@dataclass
class Trace:
    """What happened, in order. `splits` and `scores` are positions among the events."""

    events: list[Event] = field(default_factory=list)
    splits: list[tuple[int, ast.stmt]] = field(default_factory=list)
    scored_at: int | None = None


class Walker:
    """Walks a module and records who learned from what."""

    def __init__(self, tree: ast.Module) -> None:
        self.trace = Trace()
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        self.statement: ast.stmt = tree.body[0] if tree.body else ast.Pass()
        self.depth = 0
        self.returned: list[Value] = []
        self.block(tree.body, {})

    # --- statements ---

    def block(self, body: list[ast.stmt], env: dict[str, Value]) -> None:
        """Run statements one after another."""
        for statement in body:
            outer, self.statement = self.statement, statement
            self._statement(statement, env)
            self.statement = outer

    def _statement(self, node: ast.stmt, env: dict[str, Value]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
            return
        if isinstance(node, ast.Assign):
            value = self.value(node.value, env)
            for target in node.targets:
                self._assign(target, value, node.value, env)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, self.value(node.value, env).joined(self.value(node.target, env)), node.value, env)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self.value(node.value, env), node.value, env)
        elif isinstance(node, ast.Expr):
            self.value(node.value, env)
        elif isinstance(node, ast.Return):
            self.returned.append(self.value(node.value, env) if node.value else EMPTY)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._loop(node, env)
        elif isinstance(node, (ast.If, ast.While)):
            self.value(node.test, env)
            self.block(node.body, env)
            self.block(node.orelse, env)
        elif isinstance(node, ast.With):
            self.block(node.body, env)
        elif isinstance(node, ast.Try):
            for part in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
                self.block(part, env)

    def _loop(self, node: ast.For | ast.AsyncFor, env: dict[str, Value]) -> None:
        value = self.value(node.iter, env)
        if value.index:  # for fit, held in folds.split(x): index arrays of one fold
            self._bind_folds(node.target, env)
            self.trace.splits.append((len(self.trace.events), self.statement))
        else:
            self._assign(node.target, Value(value.rows, index=value.index, columns=value.columns), node.iter, env)
        self.block(node.body, env)

    def _bind_folds(self, target: ast.expr, env: dict[str, Value]) -> None:
        """Bind the two index arrays in a loop's target, wherever the pair stands in it."""
        names = [n for n in ast.walk(target) if isinstance(n, ast.Name)]
        pair = names[-2:]
        for name in names[:-2]:
            env[name.id] = EMPTY
        for name, rows in zip(pair, (FIT, HELD), strict=False):
            env[name.id] = Value(index=frozenset({rows}))

    def _assign(self, target: ast.expr, value: Value, source: ast.expr, env: dict[str, Value]) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = self._named(target.id, value, source, env)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value, source, env)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, value, source, env)
        elif isinstance(target, ast.Subscript):
            self.value(target.slice, env)
            base = target.value
            if isinstance(base, ast.Name) and base.id in env:
                env[base.id] = Value(env[base.id].rows, env[base.id].first, env[base.id].index, env[base.id].learner,
                                     env[base.id].columns | _strings(target.slice))  # fmt: skip

    def _named(self, name: str, value: Value, source: ast.expr, env: dict[str, Value]) -> Value:
        """A part of all rows gets its origin from the name it is given, where nothing else tells."""
        if ALL not in value.rows or not _is_part(source, name):
            return value
        if FIT_NAME.search(name) and not HELD_NAME.search(re.sub(FIT_NAME, "", name)):
            origin = FIT
        elif HELD_NAME.search(name):
            origin = HELD
        else:
            return value
        self.trace.splits.append((len(self.trace.events), self.statement))
        return Value((value.rows - {ALL}) | {origin}, index=value.index, columns=value.columns)

    def _unpack(self, targets: list[ast.expr], value: Value, source: ast.expr, env: dict[str, Value]) -> None:
        call = source.func if isinstance(source, ast.Call) else None
        name = call.id if isinstance(call, ast.Name) else call.attr if isinstance(call, ast.Attribute) else ""
        if name in SPLITTERS and isinstance(source, ast.Call):
            self._unpack_split(targets, source, env)
            return
        if isinstance(source, (ast.Tuple, ast.List)) and len(source.elts) == len(targets):
            for target, element in zip(targets, source.elts, strict=True):
                self._assign(target, self.value(element, env), element, env)
            return
        if value.index == {FIT, HELD} and len(targets) == 2:
            for target, rows in zip(targets, (FIT, HELD), strict=True):
                self._assign(target, Value(index=frozenset({rows})), source, env)
            return
        for number, target in enumerate(targets):
            part = value.rows if value.first is None else value.first if number == 0 else value.rows
            self._assign(target, Value(part, index=value.index, columns=value.columns), source, env)

    def _unpack_split(self, targets: list[ast.expr], call: ast.Call, env: dict[str, Value]) -> None:
        """train_test_split: for each array its training part and its held-out part, in turn."""
        arrays = [self.value(argument, env) for argument in call.args if not isinstance(argument, ast.Starred)]
        parent = frozenset().union(*(a.rows | a.index for a in arrays)) if arrays else frozenset()
        nested = parent == {FIT}  # a part of the training rows put aside is training rows still
        for number, target in enumerate(targets):
            source = arrays[number // 2] if number // 2 < len(arrays) else EMPTY
            origin = FIT if nested or number % 2 == 0 else HELD
            is_index = not source.rows
            rows = NONE if is_index else (source.rows - {ALL, FIT, HELD}) | {origin}
            index = frozenset({origin}) if is_index else NONE
            self._assign(target, Value(rows, index=index, columns=source.columns), ast.Constant(None), env)
        if not nested:
            self.trace.splits.append((len(self.trace.events), self.statement))

    # --- expressions ---

    def value(self, node: ast.expr | None, env: dict[str, Value]) -> Value:
        """What an expression holds; what it learns on the way is recorded."""
        if node is None or isinstance(node, ast.Constant):
            return EMPTY
        if isinstance(node, ast.Name):
            return env.get(node.id, EMPTY)
        if isinstance(node, ast.Call):
            return self._call(node, env)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, env)
        if isinstance(node, ast.Attribute):
            base = self.value(node.value, env)
            return Value(base.rows, base.first, base.index, base.learner, base.columns)
        if isinstance(node, (ast.List, ast.Tuple)):
            return self._list(node, env)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
            return self._comprehension(node, env)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            inner = self.value(node.operand, env)
            flipped = frozenset({FIT: HELD, HELD: FIT}.get(i, i) for i in inner.index)
            return Value(inner.rows, index=flipped)
        if isinstance(node, ast.Lambda):
            return EMPTY
        joined = EMPTY
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                joined = joined.joined(self.value(child, env))
        return joined

    def _list(self, node: ast.List | ast.Tuple, env: dict[str, Value]) -> Value:
        values = [self.value(e.value if isinstance(e, ast.Starred) else e, env) for e in node.elts]
        rows = frozenset().union(*(v.rows for v in values)) if values else NONE
        index = frozenset().union(*(v.index for v in values)) if values else NONE
        first = values[0].rows if len(values) > 1 and not isinstance(node.elts[0], ast.Starred) else None
        rest = frozenset().union(*(v.rows for v in values[1:])) if first is not None else rows
        return Value(rest if first is not None else rows, first, index)

    def _comprehension(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp, env: dict[str, Value]
    ) -> Value:
        """A comprehension keeps the first element of what it runs over apart."""
        sources = [self.value(generator.iter, env) for generator in node.generators]
        first_known = len(sources) == 1 and sources[0].first is not None
        results = []
        for pick_first in (True, False) if first_known else (False,):
            inner = dict(env)
            for generator, source in zip(node.generators, sources, strict=True):
                rows = source.first if pick_first and source.first is not None else source.rows
                self._assign(generator.target, Value(rows, index=source.index), ast.Constant(None), inner)
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            value = EMPTY
            for part in parts:
                value = value.joined(self.value(part, inner))
            results.append(value)
        last = results[-1]
        return Value(last.rows, results[0].rows if first_known else None, last.index)

    def _subscript(self, node: ast.Subscript, env: dict[str, Value]) -> Value:
        base, inside = self.value(node.value, env), self.value(node.slice, env)
        columns = base.columns
        if base.first is not None and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            return Value(base.first)
        if base.first is not None and isinstance(node.slice, ast.Slice):
            return Value(base.rows)
        if inside.index and base.rows:
            return Value((base.rows - {ALL}) | inside.index, columns=columns)
        if inside.index and base.index:
            return Value(index=inside.index)
        if isinstance(node.slice, ast.Slice) and {ALL, TEST} <= base.rows:  # tables that were joined come apart again
            upper = "len(" in ast.unparse(node.slice.upper) if node.slice.upper else False
            return Value(base.rows - ({TEST} if upper else {ALL}), columns=columns)
        return Value(
            base.rows if base.first is None else base.rows | base.first, None, base.index, base.learner, columns
        )

    def _call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        from mle_star.engineer.rules.learners import judge_call

        function = node.func
        name = (
            function.id
            if isinstance(function, ast.Name)
            else function.attr
            if isinstance(function, ast.Attribute)
            else ""
        )
        receiver = self.value(function.value, env) if isinstance(function, ast.Attribute) else EMPTY
        arguments = [self.value(a.value if isinstance(a, ast.Starred) else a, env) for a in node.args]
        keywords = {k.arg: self.value(k.value, env) for k in node.keywords if k.arg}
        if name == "print" and "Validation Performance" in ast.unparse(node):
            self.trace.scored_at = len(self.trace.events)
        if READERS.match(name):
            return self._read(node)
        if isinstance(function, ast.Name) and name in self.functions and self.depth < MAX_DEPTH:
            return self._enter(self.functions[name], arguments, keywords, env)
        return judge_call(self, node, name, receiver, arguments, keywords, env)

    def _read(self, node: ast.Call) -> Value:
        texts = " ".join(str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant))
        return Value(frozenset({TEST if TEST_FILE.search(texts) else ALL}))

    def _enter(
        self,
        function: ast.FunctionDef,
        arguments: list[Value],
        keywords: dict[str, Value],
        env: dict[str, Value],
    ) -> Value:
        """Run the body of a function of the script with what it is given."""
        names = [a.arg for a in function.args.args]
        inner = dict(env)
        inner.update(dict.fromkeys(names, EMPTY))
        inner.update(zip(names, arguments, strict=False))
        inner.update(keywords)
        outer, self.returned = self.returned, []
        self.depth += 1
        self.block(function.body, inner)
        self.depth -= 1
        values, self.returned = self.returned, outer
        if len(values) == 1:
            return values[0]
        joined = EMPTY
        for value in values:
            joined = joined.joined(value)
        return joined


def _strings(node: ast.AST) -> frozenset[str]:
    return frozenset(str(n.value) for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def _is_part(source: ast.expr, name: str) -> bool:
    """Does this expression take some of the rows of a table: by position, by a mask, at random?"""
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
        owner = source.func.value
        if source.func.attr in ("copy", "reset_index", "to_numpy"):
            return _is_part(owner, name)
        if source.func.attr in ("sample", "head", "tail"):
            whole = any(k.arg == "frac" and ast.unparse(k.value) in ("1", "1.0") for k in source.keywords)
            return not whole and not (isinstance(owner, ast.Name) and owner.id == name)
        return source.func.attr == "drop" and ".index" in ast.unparse(source)
    if isinstance(source, ast.Subscript):
        text = ast.unparse(source.slice)
        owner = source.value
        if isinstance(owner, ast.Name) and owner.id == name:
            return False
        if isinstance(source.slice, ast.Slice):
            return bool(source.slice.lower or source.slice.upper)
        if isinstance(owner, ast.Attribute) and owner.attr in ("iloc", "loc"):
            return not text.startswith("(slice") and not text.startswith(":") and "slice(None" not in text
        return bool(re.search(r"[<>]=?|==|isin|mask|~|idx|index", text)) and not isinstance(source.slice, ast.Constant)
    return False
