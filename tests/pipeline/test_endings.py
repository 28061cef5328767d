"""Every run ends with the best it has, and says what stopped it and what to raise; taken up again, it goes on.

Limits, full disks, outages, signals and requests; what else may fail is in `test_fallbacks`.
"""

import asyncio
import errno
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import pytest

from mle_star.cli.run import _spent_limits
from mle_star.errors import AgentError, BudgetExceeded, ConfigError, PipelineError, PipelineTimeoutError, RunInterrupted
from mle_star.models import ExecutionRawResult, StopReason
from mle_star.orchestrator import PipelineState
from mle_star.run import events as ev
from mle_star.run.context import ScriptRequest
from mle_star.run.folder import RunFolder, is_running, last_config, request_finish
from mle_star.safety import LEAK_REPLACED
from mle_star.search.control import Stop, stop_of
from tests.conftest import as_kept
from tests.pipeline import mind as mi
from tests.pipeline.clock import in_its_own_time
from tests.pipeline.conftest import ALL_PHASES, QuickRun, ask_to_finish, ending_of, settings, story, submitted, timed

pytestmark = pytest.mark.long


def test_each_stop_says_what_it_was_and_how_the_run_continues() -> None:
    spent = [BudgetExceeded(limit=limit, used=2, allowed=1) for limit in ("time", "money", "turns")]
    full = [OSError(number, "no room") for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)]
    stops = [stop_of(error) for error in (*spent, *full, ValueError())]
    lines = [f"{stop and (stop.reason, stop.detail)}" for stop in stops]
    lines += [Stop(why, "so").explain(Path("a")) for why in get_args(StopReason)]
    as_kept("pipeline/stops.txt", "\n".join([*lines, Stop("request").explain(Path("a"))]))


def full_disk(runs: int) -> mi.LevelExecutor:
    left = iter(range(runs))

    async def before(request: ScriptRequest) -> None:
        if next(left, None) is None:
            mi.no_room()

    return mi.LevelExecutor(before=before)


@pytest.mark.req("REQ-OR-043")
async def test_on_a_full_disk_the_best_so_far_is_submitted_and_the_run_goes_on_later(quick: QuickRun) -> None:
    config, sizes = settings(L=1, use_cache=False, score_views=1), list[int]()
    reserve = RunFolder(quick.dir.with_name("undisturbed")).reserve

    async def look(label: str, agent: str) -> None:
        sizes.append(reserve.stat().st_size)

    undisturbed = await quick(config, agents=mi.MindAgents(before=look), name="undisturbed")
    assert min(sizes) >= 1 << 20 and not reserve.exists(), "room is reserved while the run goes on"
    for scripts, score in [(2, 0.51), (3, 0.515), (5, 0.525)]:
        quick.dir, agents = quick.dir.with_name(name := f"room for {scripts}"), mi.MindAgents()
        result = await quick(config, agents=agents, executor=full_disk(scripts), name=name)
        assert (result.stopped_by, ending_of(result, quick.dir)) == ("disk", "stopped by a full disk")
        assert "No space left on device" in result.warnings[0] and "free some space" in result.warnings[0]
        assert "no submission by a script of its own: [Errno 28] No space left on device" in result.warnings
        assert result.final_solution.score == score and str(score) in submitted(result)
        assert agents.count("test") == 0  # what it would bring could not be kept
        later = await quick(config, name=name, resume=True)
        assert submitted(later) == submitted(undisturbed)
        assert later.final_solution.score == undisturbed.final_solution.score and later.stopped_by is None
    enough = await quick(config, executor=full_disk(10), name="enough")
    assert enough.stopped_by is None and story(enough) == story(undisturbed)


async def test_a_script_that_fills_a_place_of_its_own_is_a_case_for_the_debugger(quick: QuickRun) -> None:
    """The disk has plenty of room (the other case: tests/test_crash.py)."""

    def fails(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        return mi.crash("OSError: [Errno 28] No space left") if len(executor.ran) == 1 else done

    agents, executor = mi.MindAgents(), mi.LevelExecutor(after=fails)
    result = await quick(settings(L=1, M=1), agents=agents, executor=executor)
    assert (agents.count("debugger"), result.stopped_by) == (1, None)


def outage(*labels: str, agent: str = "", after: int = 0) -> mi.Hook:
    error = AgentError("the CLI died", agent=agent or "any", reason="transport")
    return mi.failing(agent, *labels, error=error, after=after)


async def test_out_of_reach_of_the_model_the_best_is_submitted_and_the_run_goes_on_later(quick: QuickRun) -> None:
    config, agents = settings(T=4, K=4, L=1), mi.MindAgents(before=outage("path-0"))
    result = await quick(config, agents=agents)
    assert (result.stopped_by, ending_of(result, quick.dir)) == ("outage", "stopped by an outage")
    assert "the CLI died" in result.warnings[0] and "when the model can be reached again" in result.warnings[0]
    assert result.final_solution.score == result.phase1.initial_score and submitted(result)
    assert 5 <= sum(label != "main" for label, _ in agents.calls) <= 8
    assert "an outage: " in quick.events(ev.FinishRequested)[0].source
    later = await quick(config, resume=True)
    assert later.stopped_by is None and later.phases_completed == ["phase1", "phase2", "finalization"]
    assert later.phase2_results[0].best_score > result.phase2_results[0].best_score


@pytest.mark.parametrize(("end", "why"), [("a full disk", "; free some space, then"), ("an outage", ".*the CLI died")])
async def test_without_a_solution_the_error_says_what_to_do(quick: QuickRun, end: str, why: str) -> None:
    config, room = settings(M=4), 0 if end == "a full disk" else 99
    agents = mi.MindAgents(before=outage(after=1) if room else None)
    with pytest.raises(PipelineError, match=rf"stopped by {end} .*{why}.*`mle-star resume"):
        await quick(config, agents=agents, executor=full_disk(room))
    assert quick.last.state == "failed"
    result = await quick(config, resume=True)
    assert result.stopped_by is None and result.submission_path


async def test_a_retriever_out_of_reach_does_not_end_the_run_and_is_not_asked_again_on_resume(quick: QuickRun) -> None:
    first = await quick(agents=mi.MindAgents(before=mi.both(outage(agent="retriever"), outage(after=12))))
    assert first.submission_path and first.stopped_by == "outage"
    assert any("the retriever gave nothing usable" in notice.message for notice in quick.events(ev.Notice))
    agents = mi.MindAgents()
    later = await quick(agents=agents, resume=True)
    assert later.stopped_by is None and later.phase1.retrieved_models == first.phase1.retrieved_models
    assert agents.calls and agents.count("retriever") == 0


@pytest.mark.req("REQ-OR-024", "REQ-OR-030", "REQ-OR-034")
@pytest.mark.parametrize("died", [False, True])
async def test_with_no_time_left_loops_stop_and_phases_are_passed_over(quick: QuickRun, died: bool) -> None:
    """A run that is taken up with its time used up: it had died in Phase 2, or there is more to do than before."""
    config = settings(M=1, L=2 if died else 1)
    dies, a_second = mi.failing("ablation" if died else "nobody", error=mi.Crash()), mi.hang("retriever", seconds=1.1)
    with pytest.raises(mi.Crash) if died else nullcontext():
        await quick(config, agents=mi.MindAgents(before=mi.both(a_second, dies)))
    agents, late = mi.MindAgents(), config.model_copy(update={"time_limit_seconds": 1, "outer_loop_steps": 2})
    result = await quick(late, agents=agents, resume=True)
    assert agents.calls == [] and result.submission_path
    assert (result.stopped_by, ending_of(result, quick.dir)) == ("time", "stopped by the time limit")
    assert "--time-limit" in result.warnings[0]
    if died:
        assert result.phases_skipped == ["phase2", "phase3"] and result.phase2_results == []
        assert result.final_solution.score == result.phase1.initial_score == 0.5
    else:
        assert not result.phase2_results[0].partial and len(result.phase2_results[0].step_history) == 1
        assert result.phases_completed == ["phase1", "phase2", "finalization"]
        assert _spent_limits(quick.dir, settings()) == []
        seconds, money = _spent_limits(quick.dir, settings(time_limit_seconds=1, max_budget_usd=0.1))
        assert "time limit is used up" in seconds and "raise it with --time-limit" in seconds
        assert "money limit is used up ($0.1" in money and "raise it with --max-budget" in money


@pytest.mark.req("REQ-OR-043", "REQ-P2I-030")
@pytest.mark.parametrize(("first", "clean"), [(0.4, 0.515), (0.6, 0.6)])
@in_its_own_time
async def test_a_leak_found_after_a_cut_yields_to_a_clean_script(quick: QuickRun, first: float, clean: float) -> None:
    """Of promising scripts the winner of a loop is checked, and the end comes before: the second attempt leaks."""
    coded = iter((first, 0.99))
    overrides = {"coder": lambda _: mi.fenced(f"level = {next(coded):.4f}"), **mi.leaking("level = 0.9900")}
    agents = mi.MindAgents(mi.Mind(overrides=overrides), before=mi.hang("planner", after=1, seconds=6000))
    result = await quick(settings(L=1, K=3, leakage_checks="promising", time_limit_seconds=300), agents=agents)
    (path,) = result.phase2_results
    assert (path.partial, path.best_score) == (True, 0.99), "nobody has checked it when the path is cut off"
    assert result.final_solution.score == clean
    assert f"level = {clean:.4f}" in result.final_solution.content and f",{clean}" in submitted(result)
    assert result.expected is not None and result.expected.score == clean
    assert result.lineage["finalization"]["from_score"] == clean
    assert [text for text in result.warnings if "data leakage" in text] == [LEAK_REPLACED]


async def test_a_resumed_run_with_changed_inputs_can_be_asked_to_finish(quick: QuickRun) -> None:
    config = settings(M=1, K=1, R=4)
    await quick(config)
    agents = mi.MindAgents(changed="ens_planner", before=mi.once("ens_planner", lambda: ask_to_finish(quick.dir)))
    result = await quick(config, agents=agents, resume=True)
    assert agents.count("ens_planner") == 1  # the rounds of the earlier process rest on a plan that is no more
    assert result.stopped_by == "request"


@pytest.mark.req("REQ-OR-038")
async def test_durations_are_those_of_all_processes_and_settings_those_of_the_last(quick: QuickRun) -> None:
    config = settings(L=1)
    first = (await quick(config, agents=mi.MindAgents(before=mi.hang("ablation", seconds=0.5)))).duration_breakdown
    ended = {event.step: event.at for event in quick.events(ev.PhaseFinished)}
    spans = {begun.step: (ended[begun.step] - begun.at).total_seconds() for begun in quick.events(ev.PhaseStarted)}
    for phase in ("phase1", "phase2", "finalization"):  # nothing is invented: the journal's own times say the same
        assert first[f"{phase}_duration_seconds"] == pytest.approx(spans[phase], abs=10)
    assert first["phase2_duration_seconds"] >= 0.5
    again = (await quick(config, resume=True)).duration_breakdown
    assert again["phase2_duration_seconds"] >= 0.5
    assert sum(seconds for name, seconds in again.items() if "total" not in name) <= again["total_duration_seconds"]
    assert quick.events(ev.RunResumed)[-1].config is None
    for steps, calls in ((2, [0, 0, 0, 1, 2]), (1, [0] * 5)):  # more steps cost only the new ones
        agents, more = mi.MindAgents(), config.model_copy(update={"outer_loop_steps": steps})
        result = await quick(more, agents=agents, resume=True)
        assert [agents.count(name) for name in ("retriever", "init", "merger", "ablation", "coder")] == calls
        assert len(result.phase2_results[0].step_history) == steps == last_config(quick.dir).outer_loop_steps
        resumed = quick.events(ev.RunResumed)[-1]
        assert resumed.config == last_config(quick.dir) and resumed.spent_cost_usd > 0


@in_its_own_time
async def test_a_completed_run_outlives_a_resume_in_vain(quick: QuickRun, caplog: pytest.LogCaptureFixture) -> None:
    first, now = await quick(settings(L=1)), asyncio.get_running_loop().time
    agents = mi.MindAgents(changed="retriever", before=mi.hang("retriever"))
    started, late = now(), settings(L=1, time_limit_seconds=1)
    again = await quick(late, agents=agents, resume=True)
    assert now() - started < 300, "new work is cut off at the limit, however much is recorded"
    differs = {"total_duration_seconds", "stopped_by", "warnings", "config", "total_cost_usd", "cost_breakdown"}
    assert again.model_dump(exclude=differs) == first.model_dump(exclude=differs)
    assert again.warnings[1:] == first.warnings and submitted(again) == story(first)["submitted"]
    why = again.warnings[0].removeprefix("the earlier result is kept: ")
    assert again.stopped_by == "time" and why.startswith("no solution: stopped by the time limit")
    assert f"nothing new: {why}; the earlier result is kept" in caplog.messages and quick.last.state == "completed"
    assert again.total_duration_seconds > first.total_duration_seconds
    Path(again.submission_path).unlink()
    gone = await quick(late, agents=agents, resume=True)
    assert gone.submission_path == "" and gone.final_solution == first.final_solution
    later = await quick(settings(L=1), agents=mi.MindAgents(changed="retriever"), resume=True)
    assert later.stopped_by is None and later.final_solution.score == first.final_solution.score


@pytest.mark.req("REQ-OR-024", "REQ-OR-029", "REQ-OR-030")
@pytest.mark.parametrize("limit", ["time", "money"])
@in_its_own_time
async def test_without_a_solution_the_error_says_how_far_the_run_came(quick: QuickRun, limit: str) -> None:
    config, before = (timed(2), mi.hang("init")) if limit == "time" else (settings(max_budget_usd=0.03), None)
    with pytest.raises(PipelineTimeoutError) as caught:
        await quick(config, agents=mi.MindAgents(before=before))
    found = caught.value.diagnostics
    assert (found["reason"], found["best_candidate"], quick.last.state) == (limit, None, "failed")
    ((_, outcome, detail, score),) = quick.ends()
    error = "PhaseTimeExceeded" if limit == "time" else "BudgetExceeded"
    assert (outcome, score) == ("cancelled", None) and found["error"] == f"{error}: {detail}"
    words = f"no solution: stopped by the {limit} limit ({detail}); `mle-star resume {quick.dir} "
    assert str(caught.value).startswith(words) and detail.startswith(f"{limit} spent: ")
    if limit == "time":
        assert (found["candidate_scores"], found["last_successful_step"]) == ({}, "phase1/retriever")
    else:
        assert 0.03 <= found["cost_usd"] <= 0.05  # two calls may be under way


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
async def test_out_of_money_two_calls_are_left_for_the_submission_and_with_more_it_goes_on(quick: QuickRun) -> None:
    agents, state, poor = mi.MindAgents(), PipelineState(), settings(max_budget_usd=0.2, T=4)
    result = await quick(poor, agents=agents, state=state)  # no path can end
    assert state.phase2_path_statuses == ["cancelled", "cancelled"] and result.phases_skipped == ["phase3"]
    assert result.stopped_by == "money" and "stopped by the money limit" in result.warnings[0]
    assert "--max-budget" in result.warnings[0] and submitted(result)
    assert result.total_cost_usd is not None and 0.2 <= result.total_cost_usd <= 0.2 + 0.01 + 2 * 0.05 * 0.2
    assert agents.count("test") == 1 and agents.caps[-1] == pytest.approx(0.05 * 0.2)
    (warned,) = quick.events(ev.BudgetWarning)
    assert (warned.limit, warned.allowed) == ("money", 0.2) and 0.16 <= warned.used < 0.2
    again = await quick(poor, agents=(idle := mi.MindAgents()), resume=True)
    assert idle.calls == [] and submitted(again) and again.final_solution.score == result.final_solution.score
    rich = await quick(settings(max_budget_usd=5), agents=idle, resume=True)
    assert rich.phases_completed == ALL_PHASES and idle.count("init") == 0
    assert rich.total_cost_usd is not None and rich.total_cost_usd > 0.25


class Stuck(mi.LevelExecutor):
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
            mi.no_room()
        await executor.stick(request)

    agents, executor.before = mi.MindAgents(before=spend), full
    config = settings(max_budget_usd=5.0, use_cache=trouble == "money")  # else one path waits for the other's study
    result = await asyncio.wait_for(quick(config, agents=agents, executor=executor, state=state), 240)
    assert (executor.begun, executor.ended, result.stopped_by) == (1, 1, trouble)
    assert state.phase2_path_statuses == ["cancelled", "cancelled"]
    assert submitted(result) and result.final_solution.score == result.phase1.initial_score
    ended = {event.path: event.detail for event in quick.events(ev.PhaseFinished) if event.phase == "phase2"}
    assert ended[1] and ("money spent" in ended[0] or trouble == "disk")


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
async def test_the_last_of_the_money_ends_the_script_of_another_candidate(quick: QuickRun) -> None:
    executor = Stuck("candidate-0", "candidate-1")

    async def spend(where: str, who: str) -> None:
        if who == "leakage" and agents.count("leakage") == 2:
            await executor.one_is_stuck()
            agents.cost_usd = 10.0

    agents = mi.MindAgents(before=spend)
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
            while not quick.events(ev.FinishRequested):
                await asyncio.sleep(0.02)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    agents = mi.MindAgents(before=mi.once("coder", ask))
    result = await quick(settings(T=4, K=4), agents=agents, signals=True)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers, "they are given back"
    assert result.phases_completed == ["phase1", "phase2", "finalization"] and result.phases_skipped == ["phase3"]
    assert agents.count("coder") < 2 * 4 * 4 and submitted(result)
    (request,) = quick.events(ev.FinishRequested)
    assert (request.source, request.now) == (by, False) and not (quick.dir / "control").exists()
    assert (result.stopped_by, ending_of(result, quick.dir)) == ("request", "stopped by request")
    assert f"({by})" in result.warnings[0]


async def test_stopped_by_another_process_the_run_can_be_taken_up_again(quick: QuickRun) -> None:
    def stops(agent: str) -> mi.Hook:
        return mi.once(agent, lambda: request_finish(quick.dir, now=True), wait=600)

    seen, stop = list[bool](), stops("coder")

    async def look(where: str, who: str) -> None:
        seen.append(is_running(quick.dir))
        await stop(where, who)

    agents = mi.MindAgents(before=stops("retriever"))
    with pytest.raises(RunInterrupted) as caught:
        await quick(agents=agents)
    assert str(caught.value) == f"stopped by control file; `mle-star resume {quick.dir}` continues from here"
    assert caught.value.diagnostics["submission"] is None, "there is nothing yet"
    agents.before = look
    with pytest.raises(RunInterrupted, match="resume"):
        await quick(agents=agents, resume=True)
    assert all(seen) and not is_running(quick.dir)
    assert (quick.last.state, quick.last.message) == ("interrupted", "stopped by control file")
    calls, paid = len(agents.calls), len(quick.events(ev.AgentFinished))
    assert paid < calls  # some call was in flight: it has cost something, too, and is asked again
    assert quick.last.cost_usd == pytest.approx(calls * agents.cost_usd)
    agents.before = None
    request_finish(quick.dir)  # too late: this was asked of a run that is over
    result = await quick(agents=agents, resume=True)
    assert result.phases_completed == ALL_PHASES
    undisturbed = mi.MindAgents()
    await quick(agents=undisturbed, name="other")
    assert len(agents.calls) - calls == len(undisturbed.calls) - paid
    assert result.total_cost_usd == pytest.approx(len(agents.calls) * agents.cost_usd)


@pytest.mark.parametrize(("number", "by"), [("INT", "Ctrl-C"), ("TERM", "SIGTERM"), ("HUP", "the end of its terminal")])
async def test_ctrl_c_twice_or_another_signal_stops_at_once(quick: QuickRun, number: str, by: str) -> None:
    def strike() -> None:
        for name in [*["HUP"][number == "HUP" :], *[number] * len(by.split("-"))]:
            signal.raise_signal(signal.Signals[f"SIG{name}"])  # here: no second one comes before the first was taken

    handler = signal.default_int_handler if number == "HUP" else signal.SIG_IGN  # as under nohup: it ends nothing
    usual = signal.signal(signal.SIGHUP, handler)
    with pytest.raises(RunInterrupted, match=r"the best submission so far is .*best_submission\.csv") as caught:
        agents = mi.MindAgents(before=mi.once("extractor", strike, wait=600))
        await asyncio.wait_for(quick(agents=agents, signals=True), 240)
    signal.signal(signal.SIGHUP, usual)
    last, found = quick.last, caught.value.diagnostics
    assert Path(found["submission"]).is_file()
    assert last.state == "interrupted" and found["elapsed_seconds"] >= last.seconds > 0
    assert found["cost_usd"] == last.cost_usd > 0 and quick.events(ev.FinishRequested)[-1].now
    assert last.message == f"stopped by {by}"
    assert number == "HUP" or not any("terminal" in one.source for one in quick.events(ev.FinishRequested))


async def test_a_caller_who_cancels_gets_the_cancellation(quick: QuickRun) -> None:
    running = asyncio.create_task(quick(agents=mi.MindAgents(before=mi.hang("summarize"))))
    journal = quick.dir / "journal.jsonl"
    while not journal.exists() or b"summarize" not in journal.read_bytes():
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (quick.last.state, quick.last.message) == ("interrupted", "stopped by the caller")
