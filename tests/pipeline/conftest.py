"""What the tests of the pipeline share: a task, settings, and runs that need no SDK."""

import asyncio
import csv
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import pytest

from mle_star.models import FinalResult, MetricDirection, PhaseTimeBudget, PipelineConfig, TaskDescription, TaskType
from mle_star.models.enums import PHASES
from mle_star.orchestrator import PipelineState, run_pipeline
from mle_star.run.events import AgentFinished, AnyEvent, Event, FinishRequested, PhaseFinished, RunFinished
from mle_star.run.folder import request_finish
from mle_star.run.journal import read_journal
from tests.conftest import small_task, write_small_data, write_texts
from tests.method.conftest import settings as method_settings
from tests.pipeline.mind import CLOSENESS, LevelExecutor, MindAgents

E = TypeVar("E", bound=Event)

ALL_PHASES = [phase.name for phase in PHASES]
LOSS = {"task_type": TaskType.regression, "evaluation_metric": "rmse", "metric_direction": MetricDirection.minimize}
"""Changes that make a task one of numbers, where less is better."""


def settings(**changes: Any) -> PipelineConfig:
    """Small numbers, and scripts that score themselves, as those of `Mind` do; by name or by letter (`K=3`)."""
    return method_settings(**{"max_debug_attempts": 1, **changes})


def timed(limit: int, *shares: float, **changes: Any) -> PipelineConfig:
    names = dict(zip(ALL_PHASES, shares, strict=True)) if shares else {}
    own = {"script_gpus": 0, "max_concurrent_scripts": 2}  # whatever this machine has
    return settings(time_limit_seconds=limit, phase_time_budget=PhaseTimeBudget(**names), **{**own, **changes})


def events(run_dir: Path, kind: type[E]) -> list[E]:
    return [event for event in read_journal(run_dir / "journal.jsonl") if isinstance(event, kind)]


def prompts_of(run_dir: Path, agent: str) -> list[str]:
    return [event.prompt for event in events(run_dir, AgentFinished) if event.agent.value == agent]


def ending_of(result: FinalResult, run_dir: Path) -> str:
    """How the run says that it was stopped; the journal's last line says the same."""
    last = events(run_dir, RunFinished)[-1]
    assert last.state == "completed" and last.result is not None and last.result.stopped_by == result.stopped_by
    assert result.warnings[0].startswith(last.message) and f"`mle-star resume {run_dir}" in result.warnings[0]
    return last.message


async def ask_to_finish(run_dir: Path) -> None:
    """Ask by the control file, and come back when the run has read it."""
    request_finish(run_dir)
    while not events(run_dir, FinishRequested):
        await asyncio.sleep(0.02)


def clients_left() -> list[str]:
    """The command lines of CLI processes that a run of this process has left, once those that were ended are gone."""
    deadline = time.monotonic() + 120
    while True:
        left = [line for child in psutil.Process().children(recursive=True) if "claude" in (line := _command(child))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:
        return ""


def submitted(result: FinalResult) -> str:
    return Path(result.submission_path).read_text(encoding="utf-8")


def answers_of(result: FinalResult) -> dict[int, float]:
    return {int(row["id"]): float(row["label"]) for row in csv.DictReader(submitted(result).splitlines())}


def install(folder: Path, name: str, version: str, entry_points: str = "") -> None:
    """What `pip install` leaves, as far as an interpreter can tell."""
    files = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "entry_points.txt": entry_points}
    write_texts(folder / f"{name}-{version}.dist-info", files)


def story(result: FinalResult) -> dict[str, Any]:
    """A result without its times and places: what two runs of the same task have in common."""

    def common(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = ("created_at", "duration", "submission_path", "work_dir", "run_dir")
            return {key: common(entry) for key, entry in value.items() if not any(word in key for word in left_out)}
        if isinstance(value, float):
            return round(value, 9)
        return [common(entry) for entry in value] if isinstance(value, list) else value

    whole: dict[str, Any] = common(result.model_dump(mode="json"))
    whole["submitted"] = submitted(result) if result.submission_path else ""
    return whole


class QuickRun:
    """The pipeline in milliseconds: the mind behind the agents' protocol, no SDK, no processes.

    Called with settings and the options of `run_pipeline`; `name` is the run's folder.
    """

    def __init__(self, task: TaskDescription, folder: Path) -> None:
        self._task, self._folder, self.dir = task, folder, folder / "run"

    async def __call__(self, config: PipelineConfig | None = None, *, name: str = "run", **options: Any) -> FinalResult:
        given: dict[str, Any] = {"agents": MindAgents(), "executor": LevelExecutor(), "console": False, **options}
        task = given.pop("task", self._task)
        return await run_pipeline(task, config or settings(), run_dir=self._folder / name, **given)

    def events(self, kind: type[E], run: str = "run") -> list[E]:
        return events(self._folder / run, kind)

    def prompts(self, agent: str, run: str = "run") -> list[str]:
        return prompts_of(self._folder / run, agent)

    def ends(self) -> list[tuple[str, str, str, float | None]]:
        ended = [event for event in self.events(PhaseFinished) if event.path is None]
        return [(event.phase, event.outcome, event.detail, event.score) for event in ended]

    @property
    def last(self) -> RunFinished:
        return self.events(RunFinished)[-1]


def near_task(data_dir: Path) -> TaskDescription:
    """One whose scripts, by their levels, have these levels as their scores on hidden rows."""
    return small_task(data_dir).model_copy(update={"evaluation_metric": CLOSENESS.name})


task = pytest.fixture(near_task)


@pytest.fixture
def quick(task: TaskDescription, tmp_path: Path) -> QuickRun:
    return QuickRun(task, tmp_path)


class CalmRun(NamedTuple):
    """A run where all goes well, seen from all sides: for tests that only look."""

    run: QuickRun
    result: FinalResult
    agents: MindAgents
    executor: LevelExecutor
    state: PipelineState
    heard: list[AnyEvent]
    seen: list[tuple[Any, ...]]
    """Of the state at each call: phase, number of calls, their cost, best score, states of the paths."""


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> CalmRun:
    """One on a machine with two GPUs; no path goes on before both are at their ablation studies."""
    folder, seen, heard, together = tmp_path_factory.mktemp("calm"), list[Any](), list[AnyEvent](), asyncio.Event()

    async def look(label: str, agent: str) -> None:
        spent = state.agent_call_count, state.accumulated_cost_usd
        seen.append((state.current_phase, *spent, state.best_score_so_far, tuple(state.phase2_path_statuses)))
        if agent == "ablation":
            if agents.count("ablation") == 2:
                together.set()
            await asyncio.wait_for(together.wait(), 120)

    tool, quick = folder / "nvidia-smi", QuickRun(near_task(write_small_data(folder / "data")), folder)
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200'\necho 'NVIDIA H200'\n", encoding="utf-8")
    tool.chmod(0o755)
    config = settings(M=3, K=3, use_cache=False, reference_files=(str(tool),) * 2)
    agents, executor, state = MindAgents(cost_usd=0.5, before=look), LevelExecutor(), PipelineState()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        result = asyncio.run(quick(config, agents=agents, executor=executor, state=state, listeners=[heard.append]))
    return CalmRun(quick, result, agents, executor, state, heard, seen)
