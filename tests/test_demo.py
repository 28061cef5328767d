"""The examples that `mle-star demo` builds."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from mle_star.cli.task import ANSWERS, EXAMPLES, SETTINGS, build_example
from mle_star.config import load_config
from mle_star.data.folder import load_task
from mle_star.data.guess import guess_task
from mle_star.errors import ConfigError
from mle_star.models import PipelineConfig
from mle_star.run.events import RunStarted
from mle_star.run.journal import Journal
from mle_star.search.final_result import rescore


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_task_folder_whose_answers_lie_apart_and_fit_its_submissions(name: str, tmp_path: Path) -> None:
    folder = build_example(name, tmp_path)
    task, data = load_task(folder), folder / "input"
    train, test, sample = (pd.read_csv(data / f"{table}.csv") for table in ("train", "test", "sample_submission"))
    target = EXAMPLES[name][0]
    assert task.competition_id == name
    assert target in train and target not in test and train[target].nunique() > 1
    assert list(test["id"]) == list(sample["id"]) and not set(train["id"]) & set(test["id"])
    guess = guess_task(data)
    assert (guess.task.task_type, guess.targets) == (task.task_type, (target,))
    again = build_example(name, tmp_path / "again")
    assert all(file.read_bytes() == (again / file.relative_to(folder)).read_bytes() for file in folder.rglob("*.*"))
    assert not (data / ANSWERS).exists()
    run_dir = tmp_path / "run"
    (run_dir / "final").mkdir(parents=True)
    shutil.copy(data / "sample_submission.csv", run_dir / "final" / "submission.csv")
    with Journal(run_dir / "journal.jsonl") as journal:
        journal.record(RunStarted(run_id="r", task=task, config=PipelineConfig(), model="offline"))
    (final,) = rescore(run_dir, folder / ANSWERS)
    assert final.truth is not None, final.problem


def test_files_of_the_user_s_are_not_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "wine" / "input" / "train.csv"
    mine.parent.mkdir(parents=True)
    mine.write_text("my,own\n1,2\n")
    with pytest.raises(ConfigError, match=r"train\.csv exists already, and is not the example's; --folder names"):
        build_example("wine", tmp_path)
    config = load_config(SETTINGS)
    assert config.num_parallel_solutions == 2 and config.num_retrieved_models > 1, "every part of the method is shown"
    assert mine.read_text() == "my,own\n1,2\n" and [path.name for path in mine.parent.iterdir()] == ["train.csv"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif("MLE_STAR_SOAK" not in os.environ, reason="the whole demo; `make soak`")
def test_the_demo_takes_two_minutes_of_two_cores_and_says_what_to_try_next(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "mle_star", "demo"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 2 * 120, "seconds of a core: however busy the machine is with other things"
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert (run_dir / "final" / "submission.csv").is_file() and (run_dir / "report.html").is_file()
    assert re.search(r"^truth: log_loss 0\.\d+ on the test; expected was 0\.\d+ \(0.*\)$", done.stderr, re.MULTILINE)
    assert [line.split()[2] for line in done.stderr.splitlines() if line.startswith("next: ")] == [
        "report", "predict", "leaderboard", "run",
    ]  # fmt: skip
