"""Repairs scripts that crash: reads the traceback, looks for a mend that fits, and changes as little as that takes.

They stand in `repairs`, one entry per kind of error. When none fits, the statement that fails is left out if nothing
depends on it, and as a last resort the task is solved anew with a model of the same family.
"""

from __future__ import annotations

import ast
import re

from mle_star.engineer.rules import models
from mle_star.engineer.rules.broken import Broken, is_python, read_error
from mle_star.engineer.rules.profile import Profile
from mle_star.engineer.rules.repairs import MENDS
from mle_star.engineer.rules.script import first_script

_FAMILIES = {
    "lightgbm": r"LGBM|lightgbm|lgb\b", "xgboost": r"XGB|xgboost", "catboost": r"CatBoost",
    "random_forest": r"RandomForest", "extra_trees": r"ExtraTrees", "hist_boosting": r"GradientBoosting",
    "linear": r"LogisticRegression|Ridge|Lasso|LinearRegression|ElasticNet|SGD", "svm": r"\bSV[CR]\b",
    "neighbours": r"KNeighbors", "network": r"MLP",
}  # fmt: skip


def repair(code: str, error: str, profile: Profile, *, turn: int = 0, limit: int = 30_000) -> str:
    """The script with its error mended. `turn` counts how often the very same was asked: earlier mends did not help."""
    broken = read_error(code, error, profile, limit)
    answers: list[str] = []
    for mend in MENDS:
        if not mend.fits(broken):
            continue
        new = mend.change(broken)
        if new is not None and new.strip() != code.strip() and is_python(new) and new not in answers:
            answers.append(new)
    for drastic in (_without_statement, _solve_anew):
        new = drastic(broken)
        if new is not None and is_python(new) and new.strip() != code.strip() and new not in answers:
            answers.append(new)
    return answers[min(turn, len(answers) - 1)] if answers else code


def _without_statement(broken: Broken) -> str | None:
    """Leave a statement out that only shows something, or makes one column of many."""
    node = broken.statement
    if node is None:
        return None
    text = ast.unparse(node)
    shows = isinstance(node, ast.Expr) and re.match(
        r"(plt|sns|print|display|logging|logger|gc|warnings|sys\.path)\b", text
    )
    if shows and "Final Validation Performance" not in text:
        return broken.with_text(f"{broken.indent}pass" if broken.indent else "")
    makes_column = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
    if makes_column and not re.search(r"fit|predict|submission|TARGET|target", text):
        return broken.with_text(f"{broken.indent}pass" if broken.indent else "")
    return None


def _solve_anew(broken: Broken) -> str | None:
    """The task solved anew, with a model of the family that the script uses: better than a script that never runs."""
    usable = models.catalogue(broken.profile)
    if not usable or "Ablation " in broken.code:
        return None
    chosen = next((m for m in usable if re.search(_FAMILIES.get(m.key, r"$^"), broken.code)), usable[0])
    script = first_script(broken.profile, chosen, broken.limit)
    doc = f"{script.doc.rstrip()}\n\nIt takes the place of a script that could not be repaired: {broken.kind}.\n"
    return script.changed(doc=doc).render()
