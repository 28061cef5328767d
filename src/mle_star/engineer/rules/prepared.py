"""Makes frames digestible for a model: one function that learns from the training frame and is put around the others.

It gives categories, dates and texts a number, fills gaps, takes infinities out and lines the columns up. What the
script fits and predicts stays the same, its arguments pass through `prepare` on the way.
"""

from __future__ import annotations

import ast
import re

from mle_star.engineer.rules.broken import Broken

PREPARE = '''class Preparation:
    """Numbers for a model: categories by code, dates in days, gaps filled; learned from one frame."""

    def __init__(self, frame):
        frame = pd.DataFrame(frame)
        self.columns = list(frame.columns)
        self.codes = {
            column: {level: code for code, level in enumerate(frame[column].astype(str).unique())}
            for column in self.columns
            if not (is_numeric_dtype(frame[column]) or is_datetime64_any_dtype(frame[column]))
        }
        self.middle = self._numbers(frame).median().fillna(0)

    def _numbers(self, frame):
        made = {}
        for column in self.columns:
            values = frame[column] if column in frame.columns else pd.Series(np.nan, index=frame.index)
            if column in self.codes:
                values = values.astype(str).map(self.codes[column]).fillna(-1)
            elif is_datetime64_any_dtype(values):
                values = (values - pd.Timestamp("2000-01-01")) / pd.Timedelta(days=1)
            made[re.sub(r"[^0-9A-Za-z_]+", "_", str(column))] = pd.to_numeric(values, errors="coerce")
        return pd.DataFrame(made, index=frame.index).replace([np.inf, -np.inf], np.nan).astype(float)

    def __call__(self, frame):
        frame = pd.DataFrame(frame, columns=None if hasattr(frame, "columns") else self.columns)
        return self._numbers(frame).fillna(self.middle)


'''
_METHODS = ("predict", "predict_proba", "score", "transform", "decision_function")


def with_prepared_frames(broken: Broken) -> str | None:
    """The script with `prepare(...)` around what its first learner is fitted on and asked about."""
    if broken.tree is None or "Preparation(" in broken.code:
        return None
    fit = _failing_fit(broken)
    if fit is None:
        return None
    call, name = fit
    learner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    statement = _statement_of(broken.tree, call)
    if statement is None:
        return None
    inner = _inside_function(broken.tree, statement)
    wrapped = _wrap(broken, learner)
    lines = wrapped.splitlines()
    indent = re.match(r"\s*", lines[statement.lineno - 1])
    made = f"{indent[0] if indent else ''}prepare = Preparation({name})"
    lines.insert(statement.lineno - 1, made)
    code = "\n".join(lines) + "\n"
    top = _first_statement_line(broken.tree)
    lines = code.splitlines()
    lines[top:top] = [*PREPARE.rstrip("\n").splitlines(), "", ""]
    code = "\n".join(lines) + "\n"
    dtypes = "from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype"
    for line in ("import re", "import numpy as np", "import pandas as pd", dtypes):
        code = broken.with_import(line, code)
    return code if not inner or "prepare = " in code else None


def _failing_fit(broken: Broken) -> tuple[ast.Call, str] | None:
    """The fit that fails, or else the first one on a frame with a name."""
    assert broken.tree is not None
    calls = [
        node
        for node in ast.walk(broken.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("fit", "fit_transform")
        and node.args
        and isinstance(node.args[0], ast.Name)
    ]
    calls.sort(key=lambda node: node.lineno)
    here = [node for node in calls if node.lineno <= broken.line <= (node.end_lineno or node.lineno)]
    chosen = here or [node for node in calls if node.lineno <= (broken.line or 10**9)] or calls
    if not chosen:
        return None
    call = chosen[-1] if here or broken.line else chosen[0]
    argument = call.args[0]
    assert isinstance(argument, ast.Name)
    return call, argument.id


def _wrap(broken: Broken, learner: str) -> str:
    """`prepare(...)` around the first argument of every call of the learner, and around its frames to stop early on."""
    assert broken.tree is not None
    frames: list[ast.expr] = []
    for node in ast.walk(broken.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func.value) != learner or node.func.attr not in ("fit", "fit_transform", *_METHODS):
            continue
        frames += node.args[:1]
        for keyword in node.keywords:
            if keyword.arg == "eval_set":
                frames += [
                    pair.elts[0] for pair in ast.walk(keyword.value) if isinstance(pair, ast.Tuple) and pair.elts
                ]
    lines = broken.code.splitlines()
    for node in sorted(frames, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        last, first = (node.end_lineno or node.lineno) - 1, node.lineno - 1
        lines[last] = _insert(lines[last], node.end_col_offset or 0, ")")
        lines[first] = _insert(lines[first], node.col_offset, "prepare(")
    return "\n".join(lines) + "\n"


def _insert(line: str, place: int, text: str) -> str:
    """Text put into a line at a position that counts bytes, as syntax trees do."""
    data = line.encode()
    return (data[:place] + text.encode() + data[place:]).decode()


def _statement_of(tree: ast.Module, call: ast.Call) -> ast.stmt | None:
    found: ast.stmt | None = None
    for node in ast.walk(tree):
        if (
            not isinstance(node, ast.stmt)
            or node.lineno > call.lineno
            or (node.end_lineno or 0) < (call.end_lineno or 0)
        ):
            continue
        if found is None or node.lineno >= found.lineno:
            found = node
    return found


def _inside_function(tree: ast.Module, statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.FunctionDef) and node.lineno < statement.lineno <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )


def _first_statement_line(tree: ast.Module) -> int:
    """The number of lines above the first statement that is no import and no docstring."""
    last = 0
    for node in tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or is_text:
            last = node.end_lineno or last
        else:
            break
    return last
