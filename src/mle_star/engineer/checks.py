"""Small checks of scripts: does what is fitted see rows that score it, and is a script a copy?"""

from __future__ import annotations

import ast

from mle_star.engineer.design import parsed, recover, sections_of

_LEARNING = {"fit", "fit_transform", "fit_resample"}
_SPLITTING = {
    "train_test_split",
    "KFold",
    "StratifiedKFold",
    "GroupKFold",
    "TimeSeriesSplit",
    "split",
    "cross_val_score",
}


def leaks(code: str) -> list[str]:
    """Statements of somebody else's script that learn from all rows before these are split, or from test rows.

    Scripts of ours learn inside the folds by their making. What a script claims and what its answers are worth is for
    the harness to compare.
    """
    if recover(code) is not None:
        return []
    tree = parsed(code)
    if tree is None:
        return []
    split = min((n.lineno for n in ast.walk(tree) if isinstance(n, ast.Call) and _name(n) in _SPLITTING), default=None)
    lines, found = code.splitlines(), []
    for node in tree.body:
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and _name(n) in _LEARNING]
        early = split is not None and (node.end_lineno or 0) < split
        mixed = any(
            "test" in ast.unparse(a).lower() and "concat" in ast.unparse(a) for call in calls for a in call.args
        )
        if calls and not isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (early or mixed):
            found.append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    return found


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def preparation(code: str) -> str:
    """The part of a script that prepares the data, for the answer that quotes it."""
    section = sections_of(code).get("features")
    return section or "\n".join(code.splitlines()[:20])


def verdict(discussion: str, code: str) -> str:
    """`Same` when most of the code that a discussion shows stands in the script, else `Novel`."""
    shown = {
        _squeezed(line) for line in discussion.splitlines() if ("=" in line or "(" in line) and len(line.strip()) > 12
    }
    ours = {_squeezed(line) for line in code.splitlines()}
    return "Same" if len(shown) >= 5 and len(shown & ours) > 0.6 * len(shown) else "Novel"


def _squeezed(line: str) -> str:
    return "".join(line.split("#")[0].split())


def capped_rows(code: str) -> str:
    """The line that caps the training rows, as it stands in a script of ours; empty when there is none."""
    for line in code.splitlines():
        if line.startswith("ROWS = ") and line != "ROWS = None":
            return line
    return ""
