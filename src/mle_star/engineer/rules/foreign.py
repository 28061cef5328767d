"""What can be done with scripts of another hand, which have no sections: study them, and choose a block of them."""

from __future__ import annotations

import ast
import re

_SCORE = "Final Validation Performance"
_STUDY = '''"""Ablation study: the solution as it is, and without some of its parts, one at a time."""

import contextlib
import io
import re

SOLUTION = r\'\'\'
$code
\'\'\'
PARTS = {
$parts
}


def score(code):
    """The score that the code prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "solution", "exec"), {"__name__": "__main__"})
    return float(re.findall(r"$score:\\s*([-+.\\deE]+)", output.getvalue())[-1])


scores = {"baseline": score(SOLUTION)}
for name, (old, new) in PARTS.items():
    scores[name] = score(SOLUTION.replace(old, new))
for name, value in scores.items():
    print(f"Ablation {name}: {value}")
farthest = max(PARTS, key=lambda name: abs(scores[name] - scores["baseline"]))
print(f"The part that contributes most is {farthest}.")
'''


def study(code: str) -> str:
    """A study that runs the script without some of its parts; what comes after the score is cut off."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return code
    end = max((n.end_lineno or 0 for n in tree.body if _SCORE in ast.unparse(n)), default=len(code.splitlines()))
    kept = "\n".join(code.splitlines()[:end])
    parts = _parts(kept)
    lines = "\n".join(f"    {name!r}: ({old!r}, {new!r})," for name, (old, new) in parts.items())
    text = _STUDY.replace("$code", kept.replace("'''", '"""')).replace("$score", _SCORE)
    return text.replace("$parts", lines)


def _parts(code: str) -> dict[str, tuple[str, str]]:
    """Up to three parts that can be taken away: columns that are made, and the strength of the model."""
    parts: dict[str, tuple[str, str]] = {}
    for node in ast.parse(code).body:
        text = ast.get_source_segment(code, node) or ""
        made = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
        if made and len(parts) < 2 and "fillna" not in text:
            parts[re.sub(r"[^\w ]+", " ", text.split("=")[0]).strip() or "column"] = (text, "pass")
    trees = re.search(r"\b(n_estimators|iterations|max_iter)=(\d+)", code)
    if trees:
        parts[f"model {trees[1]}"] = (trees[0], f"{trees[1]}={max(int(trees[2]) // 10, 5)}")
    split = re.search(r"\bfillna\([^()]*\)", code)
    if len(parts) < 2 and split:
        parts["filled gaps"] = (split[0], "fillna(-999)")
    return parts


def block(code: str, previous: list[str]) -> tuple[str, str]:
    """The statements that build the model, or else the longest statement that was not refined before; with a plan."""
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return code, PLAN
    texts = [text for node in body if (text := ast.get_source_segment(code, node)) and not isinstance(node, ast.Import)]
    fresh = [text for text in texts if not any(text in old for old in previous)] or texts
    models = [text for text in fresh if re.search(r"(Classifier|Regressor|Regression|Ridge|SVC|SVR)\(", text)]
    return max(models or fresh or [code], key=len), PLAN


TITLE = "Strengthen the settings of the model"
PLAN = (
    f"{TITLE}. More and smaller steps of boosting, or more trees, average out noise. "
    "Everything else stays as it is, and whatever is learned is learned from the training rows alone."
)


def strengthened(block: str) -> str:
    """The block with twice the trees and half the learning rate."""
    block = re.sub(r"\b(n_estimators|iterations|max_iter)=(\d+)", lambda m: f"{m[1]}={int(m[2]) * 2}", block)
    return re.sub(r"\b(learning_rate|eta)=(0?\.\d+)", lambda m: f"{m[1]}={float(m[2]) / 2:g}", block)
