"""A fifth of all replies is spoilt in some way: every run ends, in time, with a result or with a reason."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mle_star.engineer.server import MessagesServer
from mle_star.errors import PipelineError
from mle_star.models import FinalResult, TaskDescription
from mle_star.orchestrator import run_pipeline
from mle_star.run.events import AgentFailed, AgentFinished, RunFinished, SubmissionKept
from mle_star.testing import FaultyBrain
from tests.pipeline.conftest import clients_left, events, settings
from tests.pipeline.mind import MindBrain

SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
SEEDS = range(40) if SOAK else [1]
CALL_SECONDS, TIME_LIMIT = (30, 300) if SOAK else (240, 900)
"""Of the faults of the soak some are calls that hang: each takes its whole time."""


@pytest.mark.req("REQ-OR-024", "REQ-OR-042", "REQ-OR-043")
@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
async def test_with_every_fifth_reply_spoilt_a_run_still_ends_well(
    task: TaskDescription, tmp_path: Path, seed: int
) -> None:
    brain = FaultyBrain(MindBrain(), rate=0.2, seed=seed)
    config = settings(
        M=1 + SOAK, T=1, K=1, L=1 + (SOAK and seed % 2), R=1, client_reuse="clear", model="sonnet",
        agent_timeout_seconds=CALL_SECONDS, time_limit_seconds=TIME_LIMIT,
    )  # fmt: skip
    started = time.monotonic()
    error: PipelineError | None = None
    result: FinalResult | None = None
    async with MessagesServer(brain) as server:
        try:
            result = await run_pipeline(task, config, base_url=server.base_url, run_dir=tmp_path / "run", console=False)
        except PipelineError as caught:
            error = caught
    assert time.monotonic() - started < TIME_LIMIT + 120
    assert brain.injected, "no fault was injected"
    last = events(tmp_path / "run", RunFinished)[-1]
    if result is not None:
        assert last.state == "completed" and result.phase1.initial_solution.content
        kept = events(tmp_path / "run", SubmissionKept)
        assert Path(result.submission_path).is_file() or (result.submission_path, kept) == ("", [])
    else:
        assert not events(tmp_path / "run", SubmissionKept), "a submission had been saved"
        assert error is not None and last.state == "failed"
        assert {"reason", "cost_usd", "elapsed_seconds", "last_successful_step"} <= set(error.diagnostics)
    calls = [*events(tmp_path / "run", AgentFinished), *events(tmp_path / "run", AgentFailed)]
    assert calls
    assert clients_left() == []
