"""Wherever the time limit falls, a run ends in time, with the best it had found, a submission and its money named."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mle_star.engineer.server import MessagesServer
from mle_star.errors import PipelineTimeoutError
from mle_star.models import FinalResult, PipelineConfig, TaskDescription
from mle_star.orchestrator import run_pipeline
from mle_star.run.events import CandidateEvaluated, EnsembleTried, MergeTried, RefinementTried, RunFinished
from mle_star.run.journal import read_journal
from tests.pipeline.conftest import clients_left, events, settings
from tests.pipeline.mind import MindBrain, levels
from tests.test_money import charged, check_money

SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
SHARES = [random.Random(seed).uniform(0.02, 0.6) for seed in range(50)] if SOAK else [0.4]
"""Of the time that an undisturbed run takes."""
USUAL_SECONDS = 20.0
"""How long it takes on a quiet machine: the soak measures that where it runs."""
HAND_OVER_SECONDS = 30.0 if SOAK else 240.0  # what a run may take beyond its time limit, and what a busy machine adds
CALL_SECONDS = 0.2  # so that limits, which are whole seconds, fall into different places

pytestmark = pytest.mark.long


def config_of(time_limit: int) -> PipelineConfig:
    letters = {"M": 2, "K": 2, "R": 2} if SOAK else {"M": 1, "K": 1, "R": 1}
    return settings(T=1, L=2, client_reuse="clear", model="sonnet", time_limit_seconds=time_limit, **letters)


async def run_to_its_end(task: TaskDescription, run_dir: Path, time_limit: int) -> tuple[FinalResult | None, float]:
    """The result, or None when the run says that it has none; and the seconds that it took. The money adds up."""
    started, result = time.monotonic(), None
    async with MessagesServer(MindBrain(delay=CALL_SECONDS)) as server:
        try:
            result = await run_pipeline(
                task, config_of(time_limit), base_url=server.base_url, run_dir=run_dir, console=False
            )
        except PipelineTimeoutError as error:
            assert error.diagnostics["reason"] == "time" and error.diagnostics["candidate_scores"] == {}
        seconds = time.monotonic() - started
        check_money(run_dir, result, charged(server))
    return result, seconds


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, float]:
    """How long a run takes that has all the time it wants, once it was measured."""
    return {} if SOAK else {"seconds": USUAL_SECONDS}


def known_scores(run_dir: Path) -> list[float]:
    """Every score that the method had looked at."""
    tried = (CandidateEvaluated, MergeTried, RefinementTried, EnsembleTried)
    found = [event for event in read_journal(run_dir / "journal.jsonl") if isinstance(event, tried)]
    return [event.score for event in found if event.score is not None]


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    yield
    assert clients_left() == []


@pytest.mark.req("REQ-OR-024", "REQ-OR-030", "REQ-OR-043")
@pytest.mark.parametrize("share", SHARES)
async def test_a_run_that_is_cut_short_ends_in_time_with_the_best_it_knew(
    task: TaskDescription, tmp_path: Path, undisturbed: dict[str, float], share: float
) -> None:
    if not undisturbed:
        whole, undisturbed["seconds"] = await run_to_its_end(task, tmp_path / "undisturbed", 3600)
        assert whole is not None and len(whole.phases_completed) == 4
    limit, run_dir = max(1, round(share * undisturbed["seconds"])), tmp_path / "run"
    with nothing_left_behind():
        result, seconds = await run_to_its_end(task, run_dir, limit)
    assert seconds < limit + HAND_OVER_SECONDS
    scores, last = known_scores(run_dir), events(run_dir, RunFinished)[-1]
    if result is None:
        assert scores == [] and last.state == "failed"
        return
    assert last.state == "completed"
    assert result.final_solution.score is not None and result.final_solution.score >= max(scores) - 1e-9
    submitted = float(Path(result.submission_path).read_text(encoding="utf-8").splitlines()[-1].split(",")[1])
    assert submitted == pytest.approx(levels(result.final_solution.content)[-1])
    assert submitted >= max(scores) - 1e-9
