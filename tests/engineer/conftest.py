"""Runs the engineer's scripts: forked from an interpreter that is warm, in the soak where scripts belong."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from mle_star.execution import LocalExecutor, build_evaluation_result, setup_working_directory, write_script
from mle_star.execution.environment import script_environment
from mle_star.models import EvaluationResult, PipelineConfig, SolutionPhase, SolutionScript, TaskDescription
from mle_star.run.context import Executor, ScriptRequest
from tests.engineer.forks import ForkingExecutor

Run = Callable[[str], Awaitable[EvaluationResult]]
CONFIG, SECONDS = PipelineConfig(), 120


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    """The harness in the soak; else what saves each script the import of its libraries."""
    if os.environ.get("MLE_STAR_SOAK"):
        yield LocalExecutor(CONFIG)
        return
    forking = ForkingExecutor(script_environment(CONFIG))
    yield forking
    forking.close()


@pytest.fixture
def run_script(tmp_path: Path, executor: Executor) -> Run:
    """Run a script beside `tmp_path/input`; its submission is at `tmp_path/final/submission.csv`."""
    task = TaskDescription.model_validate(
        {
            "competition_id": "small", "task_type": "tabular", "data_modality": "tabular", "description": "small",
            "evaluation_metric": "rmse", "metric_direction": "minimize", "data_dir": str(tmp_path / "input"),
        }
    )  # fmt: skip
    folder = setup_working_directory(str(tmp_path))

    async def run(code: str) -> EvaluationResult:
        path = write_script(SolutionScript(content=code, phase=SolutionPhase.init), folder)
        env = script_environment(CONFIG)
        raw = await executor.run(
            ScriptRequest(script_path=path, working_dir=folder, timeout_seconds=SECONDS, env=env)
        )  # fmt: skip
        return build_evaluation_result(raw, task=task, timeout_seconds=SECONDS)

    return run
