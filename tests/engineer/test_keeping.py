"""What a script has fitted is kept where `./model/` is, and serves the same script on the same data alone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from mle_star.engineer.design import assemble
from mle_star.engineer.parts.core import Memory
from tests.engineer.conftest import Run, profile_of, quick
from tests.engineer.small_tasks import TASKS

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
