"""MLE-bench: its layout under /home, from the data to a submission that its server has seen."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from mle_star.cli.app import main
from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer
from mle_star.models import FinalResult, PipelineConfig, TaskDescription
from mle_star.run.folder import first_line, request_finish
from tests.conftest import Captured, Patch, write_texts
from tests.integrations.test_kaggle import DATA, Handler, served
from tests.pipeline.mind import Mind, MindBrain, fenced
from tests.pipeline.test_cli_run import Cli

AGENT = Path(__file__).parents[2] / "integrations" / "mle-bench" / "mle-star"
SMALLEST = [
    f"--set={key}=1"
    for key in ("num_retrieved_models", "outer_loop_steps", "inner_loop_steps", "num_parallel_solutions", "score_views")
]

SOLUTION = """\
import csv
from pathlib import Path
level = 9.5
rows = csv.DictReader(Path("input/test.csv").read_text().splitlines())
Path("final").mkdir(exist_ok=True)
Path("final/submission.csv").write_text("id,price\\n" + "".join(f"{r['id']},{level * int(r['size'])}\\n" for r in rows))
print("Final Validation Performance: 1.0")
"""


class Finishing(MindBrain):
    """Knows the price of houses, and lets the run end with Phase 1: what comes later is the same wherever it runs."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(Mind(overrides={name: lambda prompt: fenced(SOLUTION) for name in ("init", "test")}))
        self._run_dir = run_dir

    async def reply(self, request: BrainRequest) -> BrainReply:
        """Answer as ever."""
        if request.agent == "init":
            request_finish(self._run_dir)
        return await super().reply(request)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder below /home, where the benchmark works: no sandbox may hide it."""
    if not os.access("/home", os.W_OK):
        pytest.skip("/home cannot be written to")
    with tempfile.TemporaryDirectory(dir="/home") as folder:
        yield Path(folder)


@pytest.fixture
def validator() -> Iterator[tuple[str, list[bytes]]]:
    """The benchmark's validation server: its address, and what it was shown."""
    seen: list[bytes] = []

    class Validator(Handler):
        def do_POST(self) -> None:
            seen.append(self.body())
            self.say("application/json", b'{"result": "Submission is valid."}')

    with served(Validator) as address:
        yield f"{address}/validate", seen


@pytest.mark.long
async def test_a_whole_run(home: Path, validator: tuple[str, list[bytes]], monkeypatch: Patch) -> None:
    data = write_texts(home / "data", {**DATA, "description.md": "Predict the price. Scored by RMSE."})
    with (data / "train.csv").open("a", encoding="utf-8") as stream:
        stream.writelines(f"{i},{i % 7},{'rgb'[i % 3]},{i % 7 * 9.5 + i % 3}\n" for i in range(100, 640))
    (home / "instructions.txt").write_text("Write /home/submission/submission.csv.", encoding="utf-8")
    monkeypatch.setenv("COMPETITION_ID", "houses")
    url, seen = validator
    words = ["--home", str(home), "--model", "sonnet", "--time-limit", "1h", "--validate-url", url, *SMALLEST]
    async with MessagesServer(Finishing(home / "logs" / "mle-star")) as server:
        code, output, complaint = await Cli(server.base_url).run("mlebench", str(data), *words)
    assert code == 0 and "(Submission is valid.)" in output, complaint
    submission = home / "submission" / "submission.csv"
    assert submission.read_text(encoding="utf-8").startswith("id,price") and submission.read_bytes() in seen[0]
    assert (home / "code" / "solution.py").is_file() and (home / "logs" / "report.html").is_file()
    result = FinalResult.model_validate_json((home / "logs" / "mle-star" / "result.json").read_bytes())
    expected = result.expected
    assert expected is not None and expected.measured == "harness" and expected.rows == 60
    task = first_line(home / "logs" / "mle-star").task
    assert (task.competition_id, task.evaluation_metric) == ("houses", "rmse")
    assert task.description.startswith("Predict the price. Scored by RMSE.\n\nWrite /home/submission")


def test_the_agent_folder_is_as_the_benchmark_wants_it_whatever_conda_does(tmp_path: Path) -> None:
    agents = yaml.safe_load((AGENT / "config.yaml").read_text(encoding="utf-8"))
    for name in ("mle-star", "mle-star/offline"):
        agent = agents[name]
        assert (AGENT.parent / agent["start"]).is_file() and (AGENT.parent / agent["dockerfile"]).is_file()
        assert agent["kwargs_type"] == "omegaconf" and agent["kwargs"]["model"]
    assert (AGENT / "Dockerfile").read_text(encoding="utf-8").startswith("FROM mlebench-env\n")
    assert os.access(AGENT / "start.sh", os.X_OK)
    bin_dir, seen = tmp_path / "bin", tmp_path / "seen"
    bin_dir.mkdir()
    hook = """echo 'conda() { [ "$OF_A_PACKAGE" ] || true; }'"""
    for name, code in (("conda", hook), ("mle-star", f'echo "$@" > {seen}')):
        (bin_dir / name).write_text(f"#!/bin/bash\n{code}\n", encoding="utf-8")
        (bin_dir / name).chmod(0o755)
    env = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "TIME_LIMIT_SECS": "4200"}
    subprocess.run(["bash", str(AGENT / "start.sh"), "model=offline"], env=env, capture_output=True, check=False)
    assert seen.read_text(encoding="utf-8") == ("mlebench /home/data --home /home --model offline --time-limit 3600s\n")


def test_without_a_submission_it_hands_in_the_rest(tmp_path: Path, monkeypatch: Patch, capsys: Captured) -> None:
    def without_submission(task: TaskDescription, config: PipelineConfig, run_dir: Path, *_: Any, **__: Any) -> Path:
        write_texts(run_dir, {"solution.py": "", "report.html": ""})
        raise typer.Exit(2)

    monkeypatch.setattr("mle_star.cli.run.start_run", without_submission)
    data = tmp_path / "data"
    assert main(["mlebench", str(data), "--home", str(tmp_path)]) == 1
    assert "MLE-bench mounts the data" in capsys.readouterr().err
    write_texts(data, DATA)
    assert main(["mlebench", str(data), "--home", str(tmp_path), "--model", "offline"]) == 2
    assert "no submission" in capsys.readouterr().err
    assert (tmp_path / "code" / "solution.py").is_file() and (tmp_path / "logs" / "report.html").is_file()
    assert not (tmp_path / "submission").exists()
