"""Runs the engineer's scripts where scripts belong: in the harness."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mle_star.execution import evaluate_solution
from mle_star.models import EvaluationResult, PipelineConfig, SolutionPhase, SolutionScript, TaskDescription

Run = Callable[[str], Awaitable[EvaluationResult]]


@pytest.fixture
def run_script(tmp_path: Path) -> Run:
    """Run a script beside `tmp_path/input`; its submission is at `tmp_path/final/submission.csv`."""
    task = TaskDescription.model_validate(
        {
            "competition_id": "small", "task_type": "tabular", "data_modality": "tabular", "description": "small",
            "evaluation_metric": "rmse", "metric_direction": "minimize", "data_dir": str(tmp_path / "input"),
        }
    )  # fmt: skip

    async def run(code: str) -> EvaluationResult:
        script = SolutionScript(content=code, phase=SolutionPhase.init)
        return await evaluate_solution(script, task, PipelineConfig(), 120, working_dir=str(tmp_path))

    return run
