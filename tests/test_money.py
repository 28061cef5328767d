"""Whatever the limit and whatever dies: the best so far is submitted, and every cent that was charged is named."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest

from mle_star.engineer.server import BrainReply, BrainRequest, Fault, MessagesServer, ToolCall
from mle_star.errors import PipelineError
from mle_star.models import FinalResult, PipelineConfig, TaskDescription
from mle_star.orchestrator import run_pipeline
from mle_star.run.events import AgentFailed, AgentFinished, RunFinished, ScriptFinished, SubmissionKept
from tests.pipeline.conftest import events, settings
from tests.pipeline.mind import MindBrain

SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
USD_PER_TOKEN = {"sonnet": (2e-6, 10e-6)}
"""Input and output, as the price list says it: a second opinion on what the program counts."""
CALL_USD = 0.003
WHOLE_USD = 26 * CALL_USD


class KillingBrain(MindBrain):
    """Answers as the mind does, but a share of the calls loses its CLI, after a paid turn where the agent has tools."""

    def __init__(self, share: float, seed: int, file: Path) -> None:
        super().__init__(delay=0.05)
        self._share, self._random, self._file = share, Random(seed), str(file)
        self.killed = 0
        self._doomed = False

    async def reply(self, request: BrainRequest) -> BrainReply:
        """Answer, or kill whoever asks."""
        if not request.tool_results:
            self._doomed = self._random.random() < self._share
        if not self._doomed:
            return await super().reply(request)
        if "Read" in request.tools and not request.tool_results:
            look = ToolCall("Read", {"file_path": self._file})
            return BrainReply(tool=look, input_tokens=1000, output_tokens=100)
        self.killed += kill_clients(request.agent)
        return BrainReply(fault=Fault("hang"))


def kill_clients(agent: str) -> int:
    """Kill the CLI processes of an agent that this process started."""
    victims = [child for child in psutil.Process().children(recursive=True) if agent in _words(child)]
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    return len(victims)


def _words(process: psutil.Process) -> list[str]:
    try:
        words = process.cmdline()
    except psutil.Error:
        return []
    return words if "--agent" in words else []


def charged(server: MessagesServer) -> float:
    """What the API asks for."""
    total = 0.0
    for charge in server.charges:
        (price,) = [price for part, price in USD_PER_TOKEN.items() if part in charge.model]
        total += charge.input_tokens * price[0] + charge.output_tokens * price[1]
    return total


def check_money(run_dir: Path, result: FinalResult | None, charges: float) -> None:
    """The same amount wherever one looks."""
    finished, failed = events(run_dir, AgentFinished), events(run_dir, AgentFailed)
    calls = sum(call.cost_usd for call in finished) + sum(call.cost_usd for call in failed)
    told = [calls, events(run_dir, RunFinished)[-1].cost_usd]
    if result is not None:
        written = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
        told += [result.total_cost_usd or 0.0, written["total_cost_usd"], written["cost_breakdown"]["total_cost_usd"]]
    assert told == [pytest.approx(charges, abs=1e-9)] * len(told)


def check_hand(run_dir: Path, result: FinalResult | None) -> None:
    """The best that had a score is in hand, with its submission; never an empty one where something was saved."""
    scripts = [
        event for event in events(run_dir, ScriptFinished) if event.purpose == "solution" and not event.result.is_error
    ]
    scores = [event.result.score for event in scripts if event.result.score is not None]
    if not scores and not events(run_dir, SubmissionKept):
        return
    assert result is not None and Path(result.submission_path).is_file()
    assert not scores or result.final_solution.score == pytest.approx(max(scores))


async def run_it(
    task: TaskDescription, config: PipelineConfig, brain: MindBrain, run_dir: Path, *, resume: bool = False
) -> tuple[FinalResult | None, float]:
    """A run by the real CLI: its result, if it has one, and what the API charged."""
    result = None
    async with MessagesServer(brain) as server:
        try:
            result = await run_pipeline(
                task, config, base_url=server.base_url, run_dir=run_dir, resume=resume, console=False
            )  # fmt: skip
        except PipelineError:
            assert events(run_dir, RunFinished)[-1].state == "failed"
        return result, charged(server)


@pytest.mark.req("REQ-OR-027", "REQ-OR-029", "REQ-OR-030")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(50) if SOAK else [0])
async def test_at_any_limit_the_best_is_handed_over_and_all_that_was_charged_is_named(
    task: TaskDescription, tmp_path: Path, seed: int
) -> None:
    share = Random(seed).uniform(0.02, 0.6) if SOAK else 0.25
    limit, brain = share * WHOLE_USD, MindBrain(delay=0.05)
    config = settings(M=1 + SOAK, T=1, K=1, L=2, R=1, client_reuse="clear", model="sonnet", max_budget_usd=limit)
    result, charges = await run_it(task, config, brain, tmp_path / "run")
    check_money(tmp_path / "run", result, charges)
    check_hand(tmp_path / "run", result)
    assert charges <= limit * 1.1 + 2 * CALL_USD  # the reserve of finalization, and the last reply of each path


@pytest.mark.req("REQ-OR-027", "REQ-OR-052")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(50) if SOAK else [4])
async def test_with_every_fifth_client_killed_all_that_was_charged_is_named(
    task: TaskDescription, tmp_path: Path, seed: int
) -> None:
    """One call at a time, so that only the client dies that asked."""
    share = Random(seed).uniform(0.05, 0.9) if SOAK else 0.2
    brain = KillingBrain(0.2, seed, Path(task.data_dir) / "train.csv")
    config = settings(
        M=1, T=1, K=1 + SOAK, L=1, client_reuse="clear", model="sonnet", max_budget_usd=share * WHOLE_USD
    )  # fmt: skip
    result, charges = await run_it(task, config, brain, tmp_path / "run")
    assert brain.killed or SOAK
    check_money(tmp_path / "run", result, charges)
    check_hand(tmp_path / "run", result)


class HangingBrain(MindBrain):
    """A_test begins its work, which is paid for, and never comes to an end."""

    async def reply(self, request: BrainRequest) -> BrainReply:
        """Answer everybody else."""
        if request.agent != "test":
            return await super().reply(request)
        if "Read" in request.tools and not request.tool_results:
            return BrainReply(tool=ToolCall("Read", {"file_path": "none"}), input_tokens=1000, output_tokens=100)
        return BrainReply(fault=Fault("hang"))


@pytest.mark.req("REQ-OR-027", "REQ-OR-036")
@pytest.mark.skipif(not SOAK, reason="two runs by the real CLI; `make soak`")
@pytest.mark.long
async def test_a_call_that_the_end_of_time_cuts_off_is_in_the_result_and_so_it_is_after_resume(
    task: TaskDescription, tmp_path: Path
) -> None:
    """On a machine so busy that the time is up earlier, the sums must agree all the same."""
    run_dir = tmp_path / "run"
    config = settings(M=1, T=1, K=1, L=1, client_reuse="clear", model="sonnet", time_limit_seconds=15)
    result, charges = await run_it(task, config, HangingBrain(), run_dir)
    check_money(run_dir, result, charges)
    check_hand(run_dir, result)
    config = config.model_copy(update={"time_limit_seconds": 3600})
    result, more = await run_it(task, config, MindBrain(), run_dir, resume=True)
    assert result is not None and "finalization" in result.phases_completed
    check_money(run_dir, result, charges + more)
