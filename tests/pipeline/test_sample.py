"""Sample first: where scripts take long they are met and repaired on a tenth of the rows; small tables never are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mle_star.data.place import DataFolder
from mle_star.holdout.views import write_sample
from mle_star.models import ExecutionRawResult, TaskDescription
from mle_star.run.context import ScriptRequest
from mle_star.run.events import CandidateEvaluated, ScriptFinished
from tests.method.conftest import crash
from tests.pipeline.conftest import QuickRun, settings
from tests.pipeline.mind import LevelExecutor, Mind, MindAgents, fenced, script

ROWS = 60_000


@pytest.fixture
def large(task: TaskDescription) -> None:
    """Gives the task a training table of many rows, two of them of a rare class."""
    rows = [f"{row},{row % 97}.125,{2 if row in (7, 70) else row % 2}" for row in range(ROWS)]
    (Path(task.data_dir) / "train.csv").write_text("\n".join(["id,x,label", *rows]) + "\n", encoding="utf-8")


@dataclass
class Counting(LevelExecutor):
    """Says of every run what was run and on what; a script that crashes does so wherever it runs."""

    seen: list[tuple[bool, bool]] = field(default_factory=list)  # does it crash? on the sample?

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        text = Path(request.script_path).read_text(encoding="utf-8")
        assert request.input_dir is not None
        self.seen.append(("raise " in text, "sample-" in request.input_dir))
        return await super().run(request)


ONE: dict[str, Any] = {"M": 1, "L": 1, "T": 1, "K": 1}


CRASHING = Mind(models=1, overrides={"init": fenced(script(0.5, note="first") + "\nraise RuntimeError('late')\n")})


async def test_a_script_that_crashes_late_is_repaired_on_the_sample(quick: QuickRun, large: None) -> None:
    seen: dict[str, list[tuple[bool, bool]]] = {}
    for choice in ("auto", "off", "offline"):
        executor, agents = Counting(), MindAgents(CRASHING)
        chosen = {"model": "offline"} if choice == "offline" else {"sample_first": choice}
        config = settings(**ONE, max_debug_attempts=2, **chosen)
        result = await quick(config, name=choice, agents=agents, executor=executor)
        assert result.phase1.candidate_scores == [0.5]
        assert agents.count("debugger") == 1
        seen[choice] = executor.seen
    assert seen["auto"][:3] == [(True, True), (False, True), (False, False)]
    assert (True, False) not in seen["auto"]
    assert sum(on_sample for _, on_sample in seen["auto"]) == 2  # the solution is quick: later ones need no sample
    assert seen["off"][:2] == [(True, False), (False, False)] and not any(sample for _, sample in seen["off"])
    assert seen["offline"] == seen["off"]  # its scripts watch the clock: the first whole answer comes first
    runs = quick.events(ScriptFinished, "auto")
    assert [(run.purpose, run.result.is_error, run.result.score) for run in runs[:3]] == [
        ("sample", True, None), ("sample", False, None), ("solution", False, 0.5)
    ]  # fmt: skip
    (prompt,) = quick.prompts("debugger", "auto")
    assert "On a sample of 6002 of the 60000 training rows:" in prompt
    again, agents = Counting(), MindAgents(CRASHING)
    config = settings(**ONE, max_debug_attempts=2)
    for late in (config, config.model_copy(update={"time_limit_seconds": 1})):  # too little time for any sample
        await quick(late, name="auto", agents=agents, executor=again, resume=True)
        assert again.seen == [] and agents.calls == []


async def test_what_fails_on_the_sample_only_or_has_little_time_runs_in_full(quick: QuickRun, large: None) -> None:
    def fails_there(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        return crash("ValueError: too few") if executor.seen[-1][1] else done

    executor, agents = Counting(after=fails_there), MindAgents(Mind(models=1))
    await quick(settings(**ONE), agents=agents, executor=executor)  # until no repair is left
    (candidate,) = quick.events(CandidateEvaluated)
    assert candidate.score == 0.5 and executor.seen[:2] == [(False, True), (False, False)]
    await quick(settings(**ONE), executor=Counting(seconds=1003.0), agents=agents, name="slow")
    first = quick.prompts("debugger", "slow")[0]
    assert "the script takes 1003 s on 6002 of 60000 rows, so about 5001 s on all of them" in first
    assert "faster by measured means" in first
    await quick(settings(**ONE, script_timeout_seconds=50), executor=(short := Counting()), name="short")
    assert short.seen and not any(on_sample for _, on_sample in short.seen), "a whole answer comes first"


async def test_a_small_table_sees_no_sample(quick: QuickRun, tmp_path: Path) -> None:
    for seconds in (0.0, 100.0):
        executor = Counting(seconds=seconds)
        await quick(settings(**ONE), executor=executor, name=f"small-{seconds:g}")
        assert executor.seen and not any(on_sample for _, on_sample in executor.seen)
        assert not list((tmp_path / f"small-{seconds:g}").glob("views/sample*"))


async def test_after_a_slow_solution_new_scripts_meet_the_sample(quick: QuickRun, large: None) -> None:
    def slow(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        return done.model_copy(update={"duration_seconds": 1.0 if executor.seen[-1][1] else 40.0})

    config, executor = settings(**{**ONE, "K": 2}, time_limit_seconds=36_000), Counting(after=slow)
    await quick(config, executor=executor, agents=MindAgents(Mind(models=1)))
    refined = [e for e in quick.events(ScriptFinished) if "/k-" in e.step]
    assert [run.purpose for run in refined] == ["sample", "solution", "sample", "solution"]
    for prompt in quick.prompts("coder"):
        assert "on a sample of 6002 of the 60000 training rows, and must work there" in prompt
        assert "more than 60000 training samples" in prompt  # there is time for all of them


def test_the_sample_holds_every_class_and_the_other_files(task: TaskDescription, tmp_path: Path, large: None) -> None:
    sample = write_sample(DataFolder(task.data_dir), tmp_path / "views", task.description, 1)
    again = write_sample(DataFolder(task.data_dir), tmp_path / "again", task.description, 1)
    assert sample is not None and again is not None and (sample.rows, sample.of) == (6002, ROWS)
    lines = (sample.folder / "train.csv").read_text(encoding="utf-8").splitlines()
    assert lines == (again.folder / "train.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == sample.rows + 1 and sum(line.endswith(",2") for line in lines) == 2
    assert {path.name for path in sample.folder.iterdir()} == {path.name for path in Path(task.data_dir).iterdir()}
