"""Corrections of leaks: the split comes first, and whatever is fitted is fitted on the training part.

A correction counts only when the corrected script leaks less than before; otherwise the block comes back as it was.
"""

from __future__ import annotations

import ast
import re
import textwrap

from mle_star.engineer.rules.broken import is_python
from mle_star.engineer.rules.leakage import find_leaks

_STATISTIC = r"\.(?:mean|median|std|quantile|min|max)\([^()]*\)"
_TARGET_MEAN = re.compile(r"\w+\[('[^']+')\] = \w+\.groupby\(('[^']+')\)\['[^']+'\]\.transform\('mean'\)")
_RESAMPLED = re.compile(r"(\w+), (\w+) = (.+)\.fit_resample\((\w+), (\w+)\)")


def corrected(code: str, flagged: str) -> str:
    """The flagged block without its leak, or the block itself when no correction is known."""
    before = find_leaks(code)
    flagged = flagged or (before[0].block if before else code)
    for mend in (_split_first, _pipeline, _fit_on_training_part, _drop_target):
        new = mend(flagged, code)
        if new is None or new == flagged:
            continue
        changed = code.replace(flagged, new, 1)
        if is_python(changed) and len(find_leaks(changed)) < len(before):
            return new
    return flagged


def _statements(block: str) -> tuple[str, list[ast.stmt]] | None:
    """The indentation of a block and its statements."""
    indent = block[: len(block) - len(block.lstrip(" "))]
    try:
        return indent, ast.parse(textwrap.dedent(block)).body
    except SyntaxError:
        return None


def _indented(lines: list[str], indent: str) -> str:
    return "\n".join(indent + line if line else line for line in "\n".join(lines).splitlines())


# --- the split first -------------------------------------------------------------------------------------


def _split_first(block: str, code: str) -> str | None:
    """Move the split above the statements that learn, and let each of them learn from the training part."""
    parsed = _statements(block)
    if parsed is None:
        return None
    indent, statements = parsed
    split = next((s for s in statements if split_parts(s) is not None), None)
    if split is None:
        return None
    parts = split_parts(split) or {}
    before: list[str] = []
    moved: list[str] = []
    after: list[str] = []
    for statement in statements:
        if statement.lineno > split.lineno:
            after.append(ast.unparse(statement))
        elif statement is not split:
            first, then = _on_parts(statement, parts)
            before += first
            moved += then
    return _indented([*before, ast.unparse(split), *moved, *after], indent) if moved else None


def split_parts(node: ast.stmt) -> dict[str, tuple[str, str]] | None:
    """For `a_train, a_val, ... = train_test_split(a, ...)`: the two parts of each array, by its source."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return None
    if not ast.unparse(node.value.func).endswith("train_test_split") or not isinstance(node.targets[0], ast.Tuple):
        return None
    names = [ast.unparse(e) for e in node.targets[0].elts]
    arrays = [ast.unparse(a) for a in node.value.args]
    return {array: (names[2 * i], names[2 * i + 1]) for i, array in enumerate(arrays) if 2 * i + 1 < len(names)}


def _on_parts(node: ast.stmt, parts: dict[str, tuple[str, str]]) -> tuple[list[str], list[str]]:
    """What of a statement stays above the split, and what becomes of it below: learned on one part, applied to both."""
    text = ast.unparse(node)
    resampled = _RESAMPLED.fullmatch(text)
    if resampled and resampled[4] in parts and resampled[5] in parts:
        x, y = parts[resampled[4]][0], parts[resampled[5]][0]
        return [], [f"{x}, {y} = {resampled[3]}.fit_resample({x}, {y})"]
    if not isinstance(node, (ast.Assign, ast.Expr)) or not parts:
        return [text], []
    encoded = _TARGET_MEAN.fullmatch(text)
    if encoded and "y" in parts:
        return [], _means_of_parts(encoded[1], encoded[2], next(iter(parts.values())), parts["y"][0])
    made = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
    root = next((array for array in parts if re.search(rf"\b{re.escape(array)}\b", text)), None)
    source = re.search(r"\.fit_transform\((\w+\[[^\[\]]+\](?:\.\w+\([^()]*\))*)\)", text)
    if made in parts and source and not source[1].startswith(f"{made}["):
        first = [f"{made} = {source[1]}"]
        return first, _learned(text.replace(source[1], made, 1), made, parts)
    if root is None:
        table = re.match(r"(\w+)(?:\[|\s*=)", text)
        root = table[1] if table and re.search(rf"fit|fillna|{_STATISTIC}", text) else None
    lines = _learned(text, root, parts) if root else []
    return ([], lines) if lines else ([text], [])


def _means_of_parts(column: str, key: str, parts: tuple[str, str], y_train: str) -> list[str]:
    """The target's mean by category, learned from the training part."""
    return [
        f"target_means = {y_train}.groupby({parts[0]}[{key}]).mean()",
        *(f"{part}[{column}] = {part}[{key}].map(target_means).fillna({y_train}.mean())" for part in parts),
    ]


def _learned(text: str, root: str, parts: dict[str, tuple[str, str]]) -> list[str]:
    """A statement that learns from `root`, as statements about its two parts; nothing when it learns nothing."""
    train, held = parts.get(root, next(iter(parts.values())))
    y_train = parts.get("y", ("y_train", ""))[0]

    def of(name: str, source: str) -> str:
        return re.sub(rf"\b{re.escape(root)}\b", name, source)

    fit = re.search(r"(\w+(?:\([^()]*\))?)\.fit_transform\(", text)
    if fit:
        lines = []
        if "(" in fit[1]:
            lines.append(f"fitted = {fit[1]}")
            text = text.replace(f"{fit[1]}.fit_transform", "fitted.fit_transform", 1)
        learned = re.sub(r", y\)$", f", {y_train})", of(train, text))
        applied = re.sub(r", y\)$", ")", of(held, text).replace("fit_transform(", "transform(", 1))
        return [*lines, learned, applied]
    if ".fit(" in text:
        return [re.sub(r", y\)$", f", {y_train})", of(train, text))]
    found = list(dict.fromkeys(re.findall(rf"\b{re.escape(root)}(?:\[[^\]]*\])?{_STATISTIC}", text)))
    lines = []
    for number, statistic in enumerate(found):
        lines.append(f"learned_{number} = {of(train, statistic)}")
        text = text.replace(statistic, f"learned_{number}")
    return [*lines, of(train, text), of(held, text)] if found else []


# --- other ways ------------------------------------------------------------------------------------------


def _pipeline(block: str, code: str) -> str | None:
    """A transformer before `cross_val_score` becomes a part of the model, fitted in each fold."""
    parsed = _statements(block)
    if parsed is None:
        return None
    indent, statements = parsed
    lines = [ast.unparse(statement) for statement in statements]
    for number, line in enumerate(lines):
        made = re.fullmatch(r"(\w+) = (\w+\([^()]*\))\.fit_transform\((\w+)\)", line)
        if made is None:
            continue
        scored = [
            n for n, later in enumerate(lines) if n > number and re.search(rf"cross_val\w*\((.+?), {made[1]}, ", later)
        ]
        if scored:
            pattern = rf"(cross_val\w*\()(.+?), {made[1]}, "
            lines[scored[0]] = re.sub(pattern, rf"\1make_pipeline({made[2]}, \2), {made[3]}, ", lines[scored[0]])
            lines[number] = "from sklearn.pipeline import make_pipeline"
            return _indented(lines, indent)
    return None


def _fit_on_training_part(block: str, code: str) -> str | None:
    """Fit on the training part what was fitted on everything."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    parts: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            parts.update(split_parts(node) or {})
    new = block
    for joined in re.findall(r"(?:pd\.concat|np\.concatenate|np\.vstack|np\.hstack)\(\[[^()]*\][^()]*\)", block):
        first = re.search(r"\[\s*([\w.]+)", joined)
        if first:
            new = new.replace(joined, first[1])
    for array, (train, _) in parts.items():
        if re.fullmatch(r"\w+", array):
            for _ in range(2):
                new = re.sub(rf"(\.fit(?:_transform)?\([^\n]*?)\b{array}\b(?!\w)", rf"\g<1>{train}", new)
    return new


def _drop_target(block: str, code: str) -> str | None:
    """Take the target out of the features."""
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
