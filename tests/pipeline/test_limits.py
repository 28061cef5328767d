"""Limits hold and an end that was asked for comes: by the clock, the money, a signal, another process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from mle_star.errors import ConfigError, PipelineTimeoutError, RunInterrupted
from mle_star.orchestrator import PipelineState
from mle_star.run.context import ScriptRequest
from mle_star.run.events import AgentFinished, BudgetWarning, FinishRequested, PhaseFinished
from mle_star.run.folder import is_running, request_finish
from tests.pipeline.clock import in_its_own_time
from tests.pipeline.conftest import ALL_PHASES, QuickRun, ask_to_finish, message_of_the_end, settings, submitted, timed
from tests.pipeline.mind import LevelExecutor, MindAgents, hang, no_room, once

pytestmark = pytest.mark.long


@pytest.mark.req("REQ-OR-023", "REQ-OR-024", "REQ-OR-030", "REQ-OR-043")
@in_its_own_time
async def test_out_of_time_in_phase_2_the_initial_solution_is_submitted(quick: QuickRun) -> None:
    state = PipelineState()
    result = await quick(timed(8), agents=MindAgents(before=hang("coder")), state=state)
    assert asyncio.get_running_loop().time() == pytest.approx(7.2 * 0.65 / 0.8)  # Phase 2's share of what is left
    assert state.phase2_path_statuses == ["cancelled", "cancelled"]
    assert result.phases_completed == ["phase1", "finalization"] and result.phases_skipped == ["phase3"]
    (_, _, _, score), cut, skipped, _ = quick.ends()
    assert cut == ("phase2", "cancelled", "cancelled, cancelled", score)
    assert skipped == ("phase3", "skipped", "no path got beyond the initial solution in its time", None)
    assert result.stopped_by == "time" and result.warnings[0].startswith("stopped by the time limit")
    for path in result.phase2_results:
        assert path.best_solution.content == result.phase1.initial_solution.content
        assert path.step_history[-1]["failed"]
    assert result.final_solution.score == result.phase1.initial_score and submitted(result)
    assert quick.events(BudgetWarning) == []  # 80 % of the time were never spent


@in_its_own_time
async def test_at_the_end_of_all_time_what_is_under_way_ends_and_what_was_kept_is_submitted(quick: QuickRun) -> None:
    """Nearly all the time belongs to Phase 2, so its end is the run's: finalization has no time of its own."""
    state, agents = PipelineState(), MindAgents(before=hang("coder", after=1))
    result = await quick(timed(5, 0.3, 0.69998, 0.00001, 0.00001), agents=agents, state=state)
    assert asyncio.get_running_loop().time() == pytest.approx(5, abs=0.01)
    assert state.phase2_path_statuses == ["cancelled", "cancelled"] and submitted(result)
    assert result.final_solution.score is not None and result.final_solution.score >= result.phase1.initial_score


@pytest.mark.req("REQ-OR-023", "REQ-OR-026", "REQ-OR-043")
@in_its_own_time
async def test_a_path_that_takes_too_long_is_cut_off_with_the_best_it_had(quick: QuickRun) -> None:
    agents = MindAgents(before=hang("coder", label="path-1", after=1))
    done, cut = (result := await quick(timed(60, 0.02, 0.13, 0.1, 0.75, K=3), agents=agents)).phase2_results
    assert (done.partial, cut.partial) == (False, True)
    assert (done.best_score, cut.best_score) == (0.525, 0.527)  # its first attempt was the improvement
    assert len(cut.step_history[-1]["inner_loop_attempts"]) == 1
    assert result.phase3 is not None  # a path's end is not the run's
    ended = {event.path: event.outcome for event in quick.events(PhaseFinished) if event.phase == "phase2"}
    assert ended == {0: "completed", 1: "cancelled", None: "completed"}


@pytest.mark.req("REQ-OR-041", "REQ-OR-043")
@pytest.mark.parametrize("agent", ["ens_planner", "ensembler"])
@in_its_own_time
async def test_cut_off_in_phase_3_the_rounds_that_were_finished_count(quick: QuickRun, agent: str) -> None:
    result = await quick(timed(30, 0.35, 0.35, 0.1, 0.2, R=3), agents=MindAgents(before=hang(agent, after=1)))
    assert result.phase3 is not None and len(result.phase3.attempts) == 1
    assert result.final_solution.score == result.phase3.best_ensemble_score
    assert result.phase3.best_ensemble == result.phase3.attempts[0].solution, "as the round left it"
    name, outcome, detail, score = quick.ends()[2]
    assert (name, outcome, score) == ("phase3", "cancelled", result.phase3.best_ensemble_score)
    assert detail.startswith("time spent: ") and f"phase3 cancelled: {detail}" in result.warnings
    assert submitted(result) and "phase3" not in result.phases_completed


@pytest.mark.req("REQ-OR-043")
@in_its_own_time
async def test_cut_off_in_finalization_what_was_kept_is_submitted_and_the_reason_said(quick: QuickRun) -> None:
    result = await quick(timed(60), agents=MindAgents(before=hang("test")))
    _, outcome, detail, _ = quick.ends()[3]
    assert outcome == "cancelled" and detail.startswith("time spent: ")
    assert result.phases_completed == ["phase1", "phase2", "phase3"] and result.stopped_by == "time"
    reasons = ("finalization cancelled", "no submission by a script of its own")
    assert result.warnings[1:3] == [f"{reason}: {detail}" for reason in reasons]
    assert result.phase3 is not None and result.final_solution == result.phase3.best_ensemble
    assert (len(result.phase2_results), result.phase1.initial_score) == (2, 0.515)
    assert submitted(result).endswith(f",{result.final_solution.score}\n")
    assert result.lineage["finalization"]["fallback"] and result.config.time_limit_seconds == 60
    assert result.total_duration_seconds == result.duration_breakdown["total_duration_seconds"] > 0


@pytest.mark.req("REQ-OR-024", "REQ-OR-025", "REQ-OR-030")
@pytest.mark.parametrize(
    ("agent", "calls", "unit", "score"),
    [("init", 2, "candidate-1", 0.50), ("merger", 0, "merge-1", 0.51), ("data", 0, "data-use", 0.515)],
)
@in_its_own_time
async def test_when_the_time_of_phase_1_is_over_the_method_goes_on_with_the_best_so_far(
    quick: QuickRun, agent: str, calls: int, unit: str, score: float
) -> None:
    """Its share ends with one candidate of two, with both, or with both merged. That alone does not stop the run."""

    async def before(where: str, who: str) -> None:
        if who == agent and len(agents.calls) > calls:  # of the candidates, the second one
            await asyncio.sleep(600)

    agents = MindAgents(before=before)
    result = await quick(timed(600, 0.004, 0.596, 0.2, 0.2), agents=agents)
    assert result.phase1.initial_score == score and result.final_solution.score is not None
    assert submitted(result).endswith(f",{result.final_solution.score}\n")
    assert result.final_solution.score > score, "Phase 2 was not eaten"
    assert result.stopped_by is None and len(result.phases_completed) == 4 and quick.last.state == "completed"
    assert result.warnings[0].startswith(f"Phase 1 went on without {unit}")


@pytest.mark.req("REQ-OR-030", "REQ-OR-024")
@in_its_own_time
async def test_out_of_time_without_a_solution_the_error_says_how_far_the_run_came(quick: QuickRun) -> None:
    with pytest.raises(PipelineTimeoutError) as caught:
        await quick(timed(2), agents=MindAgents(before=hang("init")))
    found = caught.value.diagnostics
    assert (found["reason"], found["best_candidate"], found["candidate_scores"]) == ("time", None, {})
    assert found["last_successful_step"] == "phase1/retriever" and quick.last.state == "failed"
    ((_, outcome, detail, score),) = quick.ends()
    assert (outcome, score) == ("cancelled", None) and found["error"] == f"BudgetExceeded: {detail}"
    words = f"no solution: stopped by the time limit ({detail}); `mle-star resume {quick.dir} "
    assert str(caught.value).startswith(words)


@pytest.mark.req("REQ-OR-024", "REQ-OR-030")
@in_its_own_time
async def test_when_only_the_time_of_finalization_is_left_phase_3_does_not_begin(quick: QuickRun) -> None:
    """A path that does not let go when its time is over takes that of Phase 3."""

    async def cling(label: str, agent: str) -> None:
        if agent == "planner":
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                await asyncio.sleep(19)
                raise

    agents = MindAgents(before=cling)
    result = await quick(timed(100), agents=agents)
    assert quick.ends()[2] == ("phase3", "skipped", "the time is nearly used up", None)
    assert (agents.count("ens_planner"), agents.count("test"), result.stopped_by) == (0, 2, "time")


@pytest.mark.req("REQ-OR-024")
@in_its_own_time
async def test_a_run_that_would_take_ten_times_as_long_ends_at_its_limit_with_a_submission(quick: QuickRun) -> None:
    """Each script takes a second, a hundred would have to run."""
    result = await quick(timed(12, M=1, T=4, K=4, R=5, use_cache=False), executor=LevelExecutor(delay=1.0))
    assert 10 < asyncio.get_running_loop().time() <= 12
    assert submitted(result) and "phase1" in result.phases_completed


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
async def test_out_of_money_two_calls_are_left_for_the_submission(quick: QuickRun) -> None:
    agents, state = MindAgents(), PipelineState()
    result = await quick(settings(max_budget_usd=0.2, T=4), agents=agents, state=state)  # no path can end
    assert state.phase2_path_statuses == ["cancelled", "cancelled"] and result.phases_skipped == ["phase3"]
    assert result.stopped_by == "money" and "stopped by the money limit" in result.warnings[0]
    assert "--max-budget" in result.warnings[0] and submitted(result)
    assert result.total_cost_usd is not None and 0.2 <= result.total_cost_usd <= 0.2 + 0.01 + 2 * 0.05 * 0.2
    assert agents.count("test") == 1 and agents.caps[-1] == pytest.approx(0.05 * 0.2)
    (warned,) = quick.events(BudgetWarning)
    assert (warned.limit, warned.allowed) == ("money", 0.2) and 0.16 <= warned.used < 0.2


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
async def test_money_that_ends_in_finalization_or_between_phases_is_said_with_what_is_left_out(quick: QuickRun) -> None:
    """The last three calls are about subsampling, for the test script and for its leakage check."""
    whole = await quick(name="whole")
    assert whole.total_cost_usd is not None and not whole.stopped_by and not whole.warnings
    for calls_short in (1, 2, 3):
        limit = whole.total_cost_usd - 0.01 * calls_short - 0.001
        result = await quick(settings(max_budget_usd=limit), name=f"{calls_short} short")
        assert result.stopped_by == "money" and "stopped by the money limit" in result.warnings[0]
        assert "finalization" in result.phases_completed and submitted(result)
        assert "the submitted script was not checked for data leakage: the money was spent" in result.warnings
    agents, limit = MindAgents(), whole.cost_breakdown["phase1_cost_usd"]  # the last call of Phase 1 spends it all
    result = await quick(settings(max_budget_usd=limit), agents=agents)
    assert result.phases_completed == ["finalization"] and result.stopped_by == "money"
    assert quick.ends()[1:3] == [(name, "skipped", "the money is spent", None) for name in ("phase2", "phase3")]
    assert (agents.count("ablation"), agents.count("test"), agents.calls[-1]) == (0, 1, ("main", "test"))


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
async def test_out_of_money_in_phase_1_the_best_is_submitted_or_the_error_names_the_limit(quick: QuickRun) -> None:
    result = await quick(settings(max_budget_usd=0.06))  # both candidates, and no merge that was checked
    assert result.final_solution.score == result.phase1.initial_score == 0.51 and submitted(result)
    assert result.phases_completed == ["finalization"] and result.phases_skipped == ["phase2", "phase3"]
    assert result.cost_breakdown["phase2_per_path_cost_usd"] == [0.0, 0.0]
    name, outcome, _, score = quick.ends()[0]
    assert (name, outcome, score) == ("phase1", "cancelled", 0.51)
    with pytest.raises(PipelineTimeoutError, match="money spent") as caught:
        await quick(settings(max_budget_usd=0.03), name="poorer")
    assert caught.value.diagnostics["reason"] == "money"
    assert 0.03 <= caught.value.diagnostics["cost_usd"] <= 0.05  # two calls may be under way


class Stuck(LevelExecutor):
    """Scripts in the chosen directories never end."""

    def __init__(self, *directories: str) -> None:
        super().__init__(before=self.stick)
        self.stuck_in, self.begun, self.ended = set(directories), 0, 0

    async def stick(self, request: ScriptRequest) -> None:
        if Path(request.working_dir).name in self.stuck_in:
            self.begun += 1
            try:
                await asyncio.sleep(600)
            finally:
                self.ended += 1
            raise AssertionError("it was not cancelled")

    async def one_is_stuck(self) -> None:
        while not self.begun:
            await asyncio.sleep(0.01)


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
@pytest.mark.parametrize("trouble", ["money", "disk"])
async def test_the_last_of_money_or_disk_ends_the_scripts_under_way(quick: QuickRun, trouble: str) -> None:
    executor, state = Stuck("path-1"), PipelineState()

    async def spend(where: str, who: str) -> None:
        if trouble == "money" and (where, who) == ("path-0", "leakage"):  # all that is left is to run the attempt
            await executor.one_is_stuck()
            executor.stuck_in.add("path-0")
            agents.cost_usd = 10.0

    async def full(request: ScriptRequest) -> None:
        if trouble == "disk" and Path(request.working_dir).name == "path-0":
            await executor.one_is_stuck()
            no_room()
        await executor.stick(request)

    agents, executor.before = MindAgents(before=spend), full
    config = settings(max_budget_usd=5.0, use_cache=trouble == "money")  # else one path waits for the other's study
    result = await asyncio.wait_for(quick(config, agents=agents, executor=executor, state=state), 240)
    assert (executor.begun, executor.ended, result.stopped_by) == (1, 1, trouble)
    assert state.phase2_path_statuses == ["cancelled", "cancelled"]
    assert submitted(result) and result.final_solution.score == result.phase1.initial_score
    ended = {event.path: event.detail for event in quick.events(PhaseFinished) if event.phase == "phase2"}
    assert ended[1] and ("money spent" in ended[0] or trouble == "disk")


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
async def test_the_last_of_the_money_ends_the_script_of_another_candidate(quick: QuickRun) -> None:
    executor = Stuck("candidate-0", "candidate-1")

    async def spend(where: str, who: str) -> None:
        if who == "leakage" and agents.count("leakage") == 2:
            await executor.one_is_stuck()
            agents.cost_usd = 10.0

    agents = MindAgents(before=spend)
    with pytest.raises(PipelineTimeoutError, match="money spent"):
        await asyncio.wait_for(quick(settings(max_budget_usd=5.0), agents=agents, executor=executor), 240)
    assert (executor.begun, executor.ended) == (1, 1)


@pytest.mark.parametrize("by", ["control file", "Ctrl-C"])
async def test_asked_to_finish_the_run_ends_its_iteration_submits_and_says_so(quick: QuickRun, by: str) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        request_finish(quick.dir)

    async def ask() -> None:
        if by == "control file":
            await ask_to_finish(quick.dir)
        else:
            os.kill(os.getpid(), signal.SIGINT)
            while not quick.events(FinishRequested):
                await asyncio.sleep(0.02)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    agents = MindAgents(before=once("coder", ask))
    result = await quick(settings(T=4, K=4), agents=agents, signals=True)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers, "they are given back"
    assert result.phases_completed == ["phase1", "phase2", "finalization"] and result.phases_skipped == ["phase3"]
    assert agents.count("coder") < 2 * 4 * 4 and submitted(result)
    (request,) = quick.events(FinishRequested)
    assert (request.source, request.now) == (by, False) and not (quick.dir / "control").exists()
    assert (result.stopped_by, message_of_the_end(result, quick.dir)) == ("request", "stopped by request")
    assert f"({by})" in result.warnings[0]


async def test_stopped_by_another_process_the_run_can_be_taken_up_again(quick: QuickRun) -> None:
    stop, seen = once("coder", lambda: request_finish(quick.dir, now=True), wait=600), list[bool]()

    async def look(where: str, who: str) -> None:
        seen.append(is_running(quick.dir))
        await stop(where, who)

    agents = MindAgents(before=look)
    with pytest.raises(RunInterrupted, match="resume"):
        await quick(agents=agents)
    assert all(seen) and not is_running(quick.dir)
    assert (quick.last.state, quick.last.message) == ("interrupted", "stopped by control file")
    calls, paid = len(agents.calls), len(quick.events(AgentFinished))
    assert paid < calls  # some call was in flight: it has cost something, too, and is asked again
    assert quick.last.cost_usd == pytest.approx(calls * agents.cost_usd)
    agents.before = None
    request_finish(quick.dir)  # too late: this was asked of a run that is over
    result = await quick(agents=agents, resume=True)
    assert result.phases_completed == ALL_PHASES
    undisturbed = MindAgents()
    await quick(agents=undisturbed, name="other")
    assert len(agents.calls) - calls == len(undisturbed.calls) - paid
    assert result.total_cost_usd == pytest.approx(len(agents.calls) * agents.cost_usd)


@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
async def test_ctrl_c_twice_or_sigterm_stops_at_once(quick: QuickRun, number: signal.Signals, times: int) -> None:
    def strike() -> None:
        for _ in range(times):
            signal.raise_signal(number)  # in this thread, so that no second one comes before the first was taken

    started = time.monotonic()
    with pytest.raises(RunInterrupted, match=r"the best submission so far is .*best_submission\.csv") as caught:
        await quick(agents=MindAgents(before=once("extractor", strike, wait=600)), signals=True)
    assert time.monotonic() - started < 240
    last, found = quick.last, caught.value.diagnostics
    assert Path(found["submission"]).is_file()
    assert last.state == "interrupted" and found["elapsed_seconds"] >= last.seconds > 0
    assert found["cost_usd"] == last.cost_usd > 0
    assert quick.events(FinishRequested)[-1].now


async def test_a_caller_who_cancels_gets_the_cancellation(quick: QuickRun) -> None:
    running = asyncio.create_task(quick(agents=MindAgents(before=hang("summarize"))))
    journal = quick.dir / "journal.jsonl"
    while not journal.exists() or b"summarize" not in journal.read_bytes():
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (quick.last.state, quick.last.message) == ("interrupted", "stopped by the caller")


async def test_stopped_before_there_is_anything_the_error_says_only_how_it_goes_on(quick: QuickRun) -> None:
    agents = MindAgents(before=once("retriever", lambda: request_finish(quick.dir, now=True), wait=600))
    with pytest.raises(RunInterrupted) as caught:
        await quick(agents=agents)
    assert str(caught.value) == f"stopped by control file; `mle-star resume {quick.dir}` continues from here"
    assert caught.value.diagnostics["submission"] is None
