"""The engineer's scripts on small tasks of fifty kinds: a score and answers in the wanted shape, or a refusal."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from mle_star.engineer import profile
from mle_star.engineer.brain import serve
from mle_star.engineer.design import assemble, fitting_families, recover
from tests.engineer.conftest import Run, profile_of, quick
from tests.engineer.small_tasks import TASKS

pytestmark = pytest.mark.long

FAMILIES = {
    "mean_absolute": ("lightgbm",), "many_classes": ("extra_trees",), "text": ("nbsvm",), "text_value": ("linear",),
    "as_json": ("xgboost", "linear"), "odd_names": ("lightgbm", "xgboost", "catboost"), "grouped": ("catboost",),
    "quadratic_kappa": ("hist_boosting",), "r_squared": ("neighbours", "kernel"), "wide": ("linear",),
    "very_wide": ("linear",), "rankings": ("network",), "balanced": ("kernel", "neighbours"),
    "log_error": ("catboost",),
    "forecast": ("lightgbm",), "nested_records": ("nbsvm", "linear"), "lone_classes": ("lightgbm", "xgboost", "linear"),
    "no_id": ("hist_boosting",),
}  # fmt: skip
SAMPLED = {"later_dates": 100, "two_targets": 80, "labels_apart": 90}
"""Where fewer rows are learned from than there are."""
SHARED_WORDS = ("titanic", "adult-income", "diamonds", "california", "bike", "spam", "breast", "diabetes", "movie")


@pytest.mark.parametrize("name", TASKS)
def test_a_first_script_scores_and_answers_in_the_wanted_shape(name: str, tmp_path: Path, run_script: Run) -> None:
    task = TASKS[name](tmp_path / "input")
    seen = profile_of(task)
    assert serve.refusal(seen.recipe.metric.name, task.folder, "") == ""
    able = [f.key for f in fitting_families(seen) if f.key in ("linear", "extra_trees", "hist_boosting")]
    design = quick(seen, *FAMILIES.get(name, able[:1]))
    design = design.changed(rows=SAMPLED.get(name, design.rows))
    code = assemble(design)
    assert recover(code) == design
    printed = run_script(code)
    words, _, score = printed.strip().splitlines()[-1].partition(": ")
    assert words == "Final Validation Performance" and math.isfinite(float(score)), printed
    first = (tmp_path / "final/submission.csv").read_text(encoding="utf-8").splitlines()[0]
    with (tmp_path / "final/submission.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file, delimiter=";" if ";" in first else ",")
    assert header == task.answer_columns
    assert len(rows) == task.rows
    assert all(cell for row in rows for cell in row if name not in ("no_id",))
    if seen.recipe.kind == "label" and task.labels and len(seen.targets) == 1:
        assert {row[-1] for row in rows} <= task.labels


@pytest.mark.parametrize(
    ("metric", "files", "why"),
    [
        ("ndcg", {}, "it cannot compute ndcg; it knows "),
        ("expected profit", {}, "unknown metric 'expected profit'"),
        ("accuracy", {"a.png": b"x", "b.png": b"x"}, "it has no model for pictures"),
        ("accuracy", {"a.wav": b"x"}, "it has no model for sound"),
        ("rmse", {"train.csv": b"id,x,y\n1,2,a\n2,3,b\n3,1,c\n", "test.csv": b"id,x\n4,1\n"}, "needs numbers"),
        ("rmse", {"train.csv": b"id,y\n1,2\n2,3\n", "test.csv": b"id\n3\n"}, "says something"),
    ],
)
def test_what_it_cannot_do_is_said_in_a_line(metric: str, files: dict[str, bytes], why: str, tmp_path: Path) -> None:
    for name, content in (files or {"train.csv": b"id,x,y\n1,2,3\n", "test.csv": b"id,x\n2,3\n"}).items():
        (tmp_path / name).write_bytes(content)
    text = serve.refusal(metric, tmp_path, "Predict `y`.")
    assert text.startswith("the embedded engineer works on tables and texts: ") and why in text and "\n" not in text


def test_nothing_in_the_engineer_names_a_data_set() -> None:
    package = Path(profile.__file__).parent
    for file in package.rglob("*.py"):
        text = file.read_text().lower()
        assert not [word for word in SHARED_WORDS if word in text], file
