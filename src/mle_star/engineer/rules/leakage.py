"""Finds leaks: what was learned from rows that the score is later computed on, or from rows without labels.

Corrections of what is found here stand in `corrections`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from mle_star.engineer.rules.flow import ALL, FIT, HELD, TEST, Event, Trace, Walker

REACH = 40
"""Lines between a leak and the split below it that still make one block."""


@dataclass(frozen=True)
class Leak:
    """A place where something is learned from rows it must not see, with the block to be rewritten."""

    block: str
    reason: str


def find_leaks(code: str) -> list[Leak]:
    """Every leak of a script, one per statement or group of neighbouring statements."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return []
    trace = Walker(tree).trace
    found: dict[int, tuple[ast.stmt, str]] = {}
    for number, event in enumerate(trace.events):
        reason = _judge(event, number, trace)
        if event.kind == "choice" and not _chooses_columns(event.node, tree):
            reason = ""
        if reason:
            found.setdefault(id(event.node), (event.node, reason))
    for node, reason in _target_among_features(tree):
        found.setdefault(id(node), (node, reason))
    return _blocks(code, tree, list(found.values()), trace)


def _judge(event: Event, number: int, trace: Trace) -> str:
    """Why an event is a leak, or nothing."""
    if trace.scored_at is not None and number >= trace.scored_at:
        return ""  # what happens after the score is printed cannot flatter it
    rows, later_split = event.rows, bool(trace.splits)
    seen = "all rows, held-out ones included" if ALL in rows else "held-out rows" if HELD in rows else "test rows"
    if event.kind == "inner cv":
        return ""
    mixed = HELD in rows or (ALL in rows and (later_split or _is_judged_inside(trace)))
    with_test = TEST in rows and bool(rows & {ALL, FIT})
    if event.kind == "transform":
        return f"a transformer is fitted on {seen}" if mixed or with_test else ""
    if event.kind == "model":
        full = HELD in rows or (ALL in rows and _split_before(trace, number))
        return f"the model is fitted on {seen}" if full or with_test else ""
    if event.kind == "resample":
        return "rows are resampled before they are split" if mixed else ""
    if event.kind in ("group statistic", "ranking", "choice"):
        return f"a statistic of {seen} becomes a feature" if (mixed or with_test) and _assigns(event.node) else ""
    if event.kind == "statistic" and (mixed or with_test) and _feeds_data(event):
        return f"a statistic of {seen} goes into the features"
    return ""


def _is_judged_inside(trace: Trace) -> bool:
    return any(event.kind == "inner cv" for event in trace.events)


def _split_before(trace: Trace, number: int) -> bool:
    return any(place <= number for place, _ in trace.splits)


def _assigns(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Assign, ast.AugAssign, ast.For)) or (
        isinstance(node, ast.Expr) and "inplace=True" in ast.unparse(node)
    )


def _chooses_columns(node: ast.stmt, tree: ast.Module) -> bool:
    """Is what the statement assigns used to choose columns?"""
    targets = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)]
    slices = [n.slice for n in ast.walk(tree) if isinstance(n, ast.Subscript)]
    return any(isinstance(n, ast.Name) and n.id in targets for part in slices for n in ast.walk(part))


def _feeds_data(event: Event) -> bool:
    """Does a statistic change the features: fills gaps, centres, scales, clips, encodes?"""
    if not _assigns(event.node) and "inplace=True" not in ast.unparse(event.node):
        return False
    text = ast.unparse(event.node)
    statistic = re.escape(event.detail)
    if isinstance(event.node, ast.For):
        return bool(re.search(rf"(fillna|clip|map)\([^\n]*{statistic}|[-/] {statistic}", text))
    if re.search(rf"(fillna|clip|map|replace|where)\([^\n]*{statistic}", text):
        return True
    return bool(re.search(rf"[-/] \(?{statistic}", text)) and bool(re.search(r"^[\w.]+(\[.*?\])? =|=", text))


# --- the target among the features -----------------------------------------------------------------------


def _target_among_features(tree: ast.Module) -> list[tuple[ast.stmt, str]]:
    """Tables of features from which the target was not taken out."""
    targets: dict[str, tuple[str, str]] = {}
    found: list[tuple[ast.stmt, str]] = []
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, source = node.targets[0].id, ast.unparse(node.value)
        truth = re.fullmatch(r"(\w+)\[(['\"].+?['\"]|[A-Z_]+)\](\.values|\.to_numpy\(\)|\.astype\(\w+\))?", source)
        if truth and re.fullmatch(r"y|y_\w+|target\w*|labels?", name):
            targets[truth[1]] = (truth[2].strip("'\""), name)
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, source = node.targets[0].id, ast.unparse(node.value)
        dropped = re.fullmatch(r"(\w+)\.drop\((.*)\)", source)
        if dropped and dropped[1] in targets and re.match(r"X|x|features", name):
            wanted = targets[dropped[1]][0]
            if wanted not in dropped[2] and not re.search(
                r"[A-Za-z_]*(target|drop|cols|columns)\w*\b(?!=)", dropped[2]
            ):
                found.append((node, "the target is among the features"))
    return found


# --- blocks ----------------------------------------------------------------------------------------------


def _blocks(code: str, tree: ast.Module, found: list[tuple[ast.stmt, str]], trace: Trace) -> list[Leak]:
    """Leaking statements as blocks; where the split, or the scoring in folds, follows shortly they reach down to it."""
    lines = code.splitlines()
    bodies = [body for node in ast.walk(tree) for body in _bodies(node)]
    ends = [node for _, node in trace.splits if not isinstance(node, ast.For)]
    ends += [event.node for event in trace.events if event.kind == "inner cv"]
    spans: list[tuple[int, int, str]] = []
    for node, reason in found:
        start, end = node.lineno, node.end_lineno or node.lineno
        body = next((body for body in bodies if node in body), [])
        after = [other for other in ends if other in body and other.lineno > end and other.lineno - start < REACH]
        if after and not reason.startswith("the model"):
            end = after[0].end_lineno or end
        spans.append((start, end, reason))
    merged: list[tuple[int, int, str]] = []
    for start, end, reason in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]), merged[-1][2])
        else:
            merged.append((start, end, reason))
    return [Leak("\n".join(lines[start - 1 : end]), reason) for start, end, reason in merged]


def _bodies(node: ast.AST) -> list[list[ast.stmt]]:
    return [getattr(node, name) for name in ("body", "orelse") if isinstance(getattr(node, name, None), list)]


def preprocessing(code: str) -> str:
    """The part of a clean script that prepares the data, for the answer that quotes it."""
    section = re.search(r"^# --- features.*?(?=^# --- )", code, re.MULTILINE | re.DOTALL)
    if section:
        return section[0].rstrip()
    lines = code.splitlines()
    split = next((n for n, line in enumerate(lines) if re.search(r"split\(|KFold", line)), None)
    if split is None:
        return "\n".join(lines[:20])
    start = next((n for n, line in enumerate(lines) if "read_" in line), max(split - 10, 0))
    return "\n".join(lines[min(start, split) : split + 1])
