"""Finds leaks: what was learned from rows that the score is later computed on, or from rows without labels.

Corrections rewrite the block that leaks: the split comes first, whatever is fitted is fitted on the training part.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from mle_star.offline.rules.flow import ALL, FIT, HELD, TEST, Event, Trace, Walker

_USED = re.compile(r"fillna|\.map\(|clip|replace|where|\[.*\]\s*=|-|/")
_ON_TARGET = re.compile(r"\[\[?['\"]?(target|label|y|TARGET)['\"]?\]")


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
    if event.kind in ("group statistic", "ranking"):
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
    found = []
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
    """Leaking statements as blocks; those that a split at the same level follows shortly reach down to it."""
    lines = code.splitlines()
    spans: list[tuple[int, int, str]] = []
    for node, reason in found:
        start, end = node.lineno, node.end_lineno or node.lineno
        if reason != "the model is fitted on all rows, held-out ones included":
            split = next((s for _, s in trace.splits if s.lineno > end and s in tree.body and node in tree.body), None)
            if split is not None and (split.end_lineno or 0) - start < 40 and not isinstance(split, ast.For):
                end = split.end_lineno or end
        spans.append((start, end, reason))
    merged: list[tuple[int, int, str]] = []
    for start, end, reason in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]), merged[-1][2])
        else:
            merged.append((start, end, reason))
    return [Leak("\n".join(lines[start - 1 : end]), reason) for start, end, reason in merged]


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


# --- corrections -----------------------------------------------------------------------------------------


def corrected(code: str, flagged: str) -> str:
    """The flagged block without the leak, or the block itself when no correction is known."""
    if not flagged:
        leaks = find_leaks(code)
        if not leaks:
            return code
        flagged = leaks[0].block
    for mend in (_split_first, _fit_on_training_part, _drop_target):
        new = mend(flagged, code)
        if new is not None and new != flagged:
            return new
    return flagged


def _split_first(block: str, code: str) -> str | None:
    """Move the split above the statements that learn, and let each of them learn from the training part."""
    parsed = _statements(block)
    if parsed is None:
        return None
    indent, statements = parsed
    split = next((s for s in statements if _split_parts(s) is not None), None)
    if split is None:
        return None
    parts = _split_parts(split) or {}
    before, after, moved = [], [], []
    for statement in statements:
        if statement is split:
            continue
        if statement.lineno > split.lineno:
            after.append(ast.unparse(statement))
            continue
        rewritten = _on_parts(statement, parts)
        if rewritten is None:
            before.append(ast.unparse(statement))
        else:
            moved += rewritten
    if not moved:
        return None
    lines = "\n".join([*before, ast.unparse(split), *moved, *after])
    return "\n".join(indent + line if line else line for line in lines.splitlines())


def _statements(block: str) -> tuple[str, list[ast.stmt]] | None:
    import textwrap

    indent = block[: len(block) - len(block.lstrip(" "))]
    try:
        return indent, ast.parse(textwrap.dedent(block)).body
    except SyntaxError:
        return None


def _split_parts(node: ast.stmt) -> dict[str, tuple[str, str]] | None:
    """For `a_train, a_val, ... = train_test_split(a, ...)`: the two parts of each array, by its source."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return None
    if not ast.unparse(node.value.func).endswith("train_test_split") or not isinstance(node.targets[0], ast.Tuple):
        return None
    names = [ast.unparse(e) for e in node.targets[0].elts]
    arrays = [ast.unparse(a) for a in node.value.args]
    return {array: (names[2 * i], names[2 * i + 1]) for i, array in enumerate(arrays) if 2 * i + 1 < len(names)}


def _on_parts(node: ast.stmt, parts: dict[str, tuple[str, str]]) -> list[str] | None:
    """A learning statement as two: learn on the training part, apply to the held-out part; None to leave it alone."""
    text = ast.unparse(node)
    root = next((array for array in parts if re.search(rf"\b{re.escape(array)}\b", text)), None)
    if root is None and parts and re.search(r"fit|fillna|groupby|mean\(|median\(", text):
        root = _table_behind(text)
    if root is None or isinstance(node, (ast.For, ast.If, ast.With)):
        return None
    features = next(iter(parts.values()))
    train, held = parts.get(root, features)

    def with_name(source: str, name: str) -> str:
        return re.sub(rf"\b{re.escape(root)}\b", name, source)

    fit = re.search(r"(\w+(?:\([^()]*\))?)\.fit_transform\(", text)
    if fit and isinstance(node, ast.Assign):
        maker = fit[1]
        lines = []
        if "(" in maker:
            lines.append(f"fitted = {maker}")
            text = text.replace(f"{maker}.fit_transform", "fitted.fit_transform", 1)
            maker = "fitted"
        target_y = parts.get("y", ("y_train", ""))[0]
        learned = re.sub(r"(fit_transform\([^,()]+(?:\[[^\]]*\])?), y\)", rf"\1, {target_y})", with_name(text, train))
        applied = re.sub(r", y\)$", ")", with_name(text, held).replace("fit_transform(", "transform(", 1))
        return [*lines, learned, applied]
    if re.search(r"\.fit\(", text):
        return [re.sub(r", y\)$", f", {parts.get('y', ('y_train', ''))[0]})", with_name(text, train))]
    statistics = list(
        dict.fromkeys(
            re.findall(rf"\b{re.escape(root)}(?:\[[^\]]*\])?\.(?:mean|median|std|quantile|min|max)\([^()]*\)", text)
        )
    )
    if statistics and isinstance(node, ast.Assign):
        lines = []
        for number, statistic in enumerate(statistics):
            name = f"learned_{number}"
            lines.append(f"{name} = {with_name(statistic, train)}")
            text = text.replace(statistic, name)
        return [*lines, with_name(text, train), with_name(text, held)]
    transformed = re.search(r"\.transform\(", text)
    if transformed and isinstance(node, ast.Assign):
        return [with_name(text, train), with_name(text, held)]
    return None


def _table_behind(text: str) -> str | None:
    """The table that a statement works on, when it is not what is split but what that was made of."""
    found = re.match(r"(\w+)(?:\[|\s*=)", text)
    return found[1] if found else None


def _fit_on_training_part(block: str, code: str) -> str | None:
    """Fit on the training part what was fitted on everything."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    parts: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            parts.update(_split_parts(node) or {})
    new = block
    for joined in re.findall(r"(?:pd\.concat|np\.concatenate|np\.vstack|np\.hstack|np\.r_)\(\[[^\]]*\][^()]*\)", block):
        first = re.search(r"\[\s*([\w.]+)", joined)
        if first:
            new = new.replace(joined, first[1])
    for array, (train, _) in parts.items():
        if re.fullmatch(r"\w+", array):
            new = re.sub(rf"(\.fit(?:_transform)?\([^\n]*?)\b{array}\b(?!\w)", rf"\g<1>{train}", new)
            new = re.sub(rf"(\.fit(?:_transform)?\([^\n]*?)\b{array}\b(?!\w)", rf"\g<1>{train}", new)
    return new


def _drop_target(block: str, code: str) -> str | None:
    truth = re.search(r"^(?:y|target|labels?)\w* = (\w+)\[(['\"][^'\"]+['\"])\]", code, re.MULTILINE)
    if truth is None or f"{truth[1]}.drop(" not in block:
        return None
    return re.sub(rf"({truth[1]}\.drop\((?:columns=)?\[)", rf"\g<1>{truth[2]}, ", block, count=1)


# --- copies ----------------------------------------------------------------------------------------------


def verdict(discussion: str, code: str) -> str:
    """`Same` when most of the code that a discussion shows stands in the script, else `Novel`."""
    shown = {_squeezed(line) for line in discussion.splitlines() if re.search(r"[=(]", line) and len(line.strip()) > 12}
    ours = {_squeezed(line) for line in code.splitlines()}
    return "Same" if len(shown) >= 5 and len(shown & ours) > 0.6 * len(shown) else "Novel"


def _squeezed(line: str) -> str:
    return re.sub(r"\s+", "", line.split("#")[0])
