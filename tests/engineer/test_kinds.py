"""The engineer's scripts on small tasks of fifty kinds: score and answers, or a refusal, and what they keep fitted."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pandas as pd
import pytest

from mle_star.engineer import profile
from mle_star.engineer.brain import serve
from mle_star.engineer.design import assemble, fitting_families, recover
from mle_star.engineer.parts.core import Memory
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


RECALLED, SPOILED = "Nothing was fitted", "does not serve, all is fitted anew"


def answers(folder: Path) -> dict[str, float]:
    """What was answered, by id."""
    return {str(key): float(value) for key, value in pd.read_csv(folder / "final/submission.csv").to_numpy()}


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("auc", ("catboost", "lightgbm", "xgboost", "extra_trees", "hist_boosting")),
        ("auc", ("linear", "neighbours", "kernel", "network")),
        ("r_squared", ("catboost", "lightgbm", "xgboost", "linear", "kernel", "network")),
        ("text", ("nbsvm", "linear", "lightgbm")),
    ],
)
def test_other_rows_need_no_new_fitting(name: str, families: tuple[str, ...], tmp_path: Path, run_script: Run) -> None:
    design = quick(profile_of(TASKS[name](tmp_path / "input")), *families)
    if name == "text":
        design = design.changed(features={**design.features, "reading": {"alpha": 2.0}, "topics": {"count": 5}})
    (tmp_path / "model").mkdir()
    first, before = run_script(assemble(design)), answers(tmp_path)
    assert RECALLED not in first
    for table in ("test.csv", "sample_submission.csv"):  # other rows to answer: the last twenty, in another order
        head, *rows = (tmp_path / "input" / table).read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "input" / table).write_text("".join([head, *rows[:-21:-1]]), encoding="utf-8")
    again = run_script(assemble(design))
    assert RECALLED in again
    scores = [float(each.splitlines()[-1].rpartition(":")[2]) for each in (first, again)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    given = answers(tmp_path)
    assert len(given) == 20 and given == pytest.approx({key: before[key] for key in given}, rel=1e-4, abs=1e-5)


def test_only_the_same_script_on_the_same_data_takes_what_was_kept_if_it_loads(tmp_path: Path, run_script: Run) -> None:
    design = quick(profile_of(TASKS["auc"](tmp_path / "input")), "linear")
    code, kept = assemble(design), tmp_path / "model"
    run_script(code)
    assert not kept.exists(), "a script of the search keeps nothing"
    kept.mkdir()
    run_script(code)
    (folder,) = kept.iterdir()
    max(folder.iterdir(), key=lambda path: path.stat().st_size).write_bytes(b"no pickle")
    assert SPOILED in run_script(code) and len(answers(tmp_path)) == 75
    assert RECALLED in run_script(code)
    assert RECALLED not in run_script(code + "# another script\n")
    train = tmp_path / "input" / "train.csv"
    lines = train.read_text(encoding="utf-8").splitlines(keepends=True)
    train.write_text("".join(lines[:-1]), encoding="utf-8")
    assert RECALLED not in run_script(code)
    before = list(kept.iterdir())
    forecast = quick(profile_of(TASKS["forecast"](tmp_path / "input")), "lightgbm")
    assert forecast.folds["kind"] == "time"
    run_script(assemble(forecast))
    assert list(kept.iterdir()) == before, "how far ahead the rows to answer lie decides what a forecast learns"


@pytest.mark.parametrize("made", [b"x" * 1000, lambda: None])
def test_what_is_too_large_or_cannot_be_kept_stops_no_script(
    made: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("input", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "input" / "train.csv").write_text("a\n", encoding="utf-8")
    memory = Memory({"train": {"file": "train.csv"}})
    memory.room = 500
    assert [memory.hold([thing].copy) for thing in (1, made, 2)] == [[1], [made], [2]]
    memory.close()
    assert "What is fitted is not kept" in capsys.readouterr().out and not list((tmp_path / "model").iterdir())
