"""Every run ends with the best it has, and says what stopped it and what to raise; taken up again, it goes on."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mle_star.cli.run import _spent_limits
from mle_star.errors import AgentError, PipelineError
from mle_star.models import AgentConfig, AgentType, ExecutionRawResult, FinalResult, PhaseTimeBudget
from mle_star.orchestrator import PipelineState
from mle_star.run.context import AgentReply, ScriptRequest
from mle_star.run.events import (
    AgentStarted,
    AnyEvent,
    Notice,
    PhaseFinished,
    PhaseStarted,
    RunFinished,
    RunResumed,
    RunStarted,
)
from mle_star.run.folder import RunFolder, last_config, place_copy
from mle_star.safety import LEAK_REPLACED
from tests.pipeline.clock import in_its_own_time
from tests.pipeline.conftest import QuickRun, ask_to_finish, events, settings, story
from tests.pipeline.mind import Answer, LevelExecutor, Mind, MindAgents, broken, fenced

pytestmark = pytest.mark.long


def said(result: FinalResult, run_dir: Path) -> str:
    """How the run says that it was stopped; the journal's last line says the same."""
    last = events(run_dir, RunFinished)[-1]
    assert last.state == "completed" and last.result is not None
    assert last.result.stopped_by == result.stopped_by
    assert result.warnings[0].startswith(last.message) and f"`mle-star resume {run_dir}" in result.warnings[0]
    return last.message


# --- a path that fails late ------------------------------------------------------------------------------------


@pytest.mark.req("REQ-OR-022", "REQ-OR-040", "REQ-OR-041")
@pytest.mark.parametrize("failing", ["path-0", "path-1"])
async def test_a_path_that_fails_late_hands_over_the_best_it_had(quick: QuickRun, tmp_path: Path, failing: str) -> None:
    class Late(MindAgents):
        async def ask(self, config: AgentConfig, prompt: str, *, label: str, **more: Any) -> AgentReply:
            if label == failing and config.agent_type.value == "planner":  # the second attempt, the first has won
                raise RuntimeError("a bug")
            if label == "main" and config.agent_type.value == "ens_planner":
                raise RuntimeError("another")
            return await super().ask(config, prompt, label=label, **more)

    result = await quick(settings(K=2), agents=Late())
    late, score = result.phase2_results[int(failing[-1])], {"path-0": 0.525, "path-1": 0.527}[failing]
    assert late.best_score == score > result.phase1.initial_score
    assert f"level = {score:.4f}" in late.best_solution.content
    assert (late.partial, late.step_history[-1]["failed"]) == (True, True)
    assert not any(path.step_history[-1]["failed"] for path in result.phase2_results if path is not late)
    assert result.warnings[0] == f"{failing} failed: RuntimeError: a bug; it goes on with {score}"
    assert result.phase3 is None and result.final_solution.score == 0.527  # the best path, whichever it is


# --- a disk that is full ---------------------------------------------------------------------------------------


class FullDisk(LevelExecutor):
    """There is no room from the n-th script on."""

    def __init__(self, runs: int) -> None:
        super().__init__()
        self.left = runs

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= 1
        return await super().run(request)


@pytest.mark.req("REQ-OR-043")
@pytest.mark.parametrize(("scripts", "score"), [(2, 0.51), (3, 0.515), (5, 0.525), (10, None)])
async def test_on_a_full_disk_the_best_so_far_is_handed_over_and_the_run_goes_on_later(
    quick: QuickRun, tmp_path: Path, scripts: int, score: float | None
) -> None:
    config, agents = settings(L=1, K=2, use_cache=False), MindAgents()
    result = await quick(config, agents=agents, executor=FullDisk(scripts))
    undisturbed = await quick(config, name="undisturbed")
    if score is None:  # there was room enough
        assert result.stopped_by is None and story(result) == story(undisturbed)
        return
    assert (result.stopped_by, said(result, tmp_path / "run")) == ("disk", "stopped by a full disk")
    assert "No space left on device" in result.warnings[0] and "free some space" in result.warnings[0]
    assert "no submission by a script of its own: [Errno 28] No space left on device" in result.warnings
    assert result.final_solution.score == score and str(score) in Path(result.submission_path).read_text("utf-8")
    assert agents.count("test") == 0  # what it would bring could not be kept
    later = await quick(config, resume=True)
    assert story(later)["submitted"] == story(undisturbed)["submitted"]
    assert later.final_solution.score == undisturbed.final_solution.score and later.stopped_by is None


async def test_on_a_full_disk_without_a_solution_the_error_says_what_to_do(quick: QuickRun, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"stopped by a full disk .*; free some space, then `mle-star resume"):
        await quick(executor=FullDisk(0))
    assert events(tmp_path / "run", RunFinished)[-1].state == "failed"


class NoRoomOfItsOwn(LevelExecutor):
    """The first script finds no room where it writes; the disk has plenty (the other case: tests/test_full_disk.py)."""

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        done = await super().run(request)
        if self.runs > 1:
            return done
        trace = 'Traceback (most recent call last):\n  File "solution.py", line 3\nOSError: [Errno 28] No space left'
        return done.model_copy(update={"exit_code": 1, "stderr": trace})


async def test_a_script_that_fills_a_place_of_its_own_is_a_case_for_the_debugger(quick: QuickRun) -> None:
    agents = MindAgents()
    result = await quick(settings(L=1, M=1), agents=agents, executor=NoRoomOfItsOwn())
    assert (agents.count("debugger"), result.stopped_by) == (1, None)


def test_a_copy_that_finds_no_room_becomes_a_second_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n", encoding="utf-8")
    place_copy(tmp_path / "a.csv", tmp_path / "final" / "b.csv")
    assert not (tmp_path / "final" / "b.csv").samefile(tmp_path / "a.csv")
    place_copy(tmp_path / "a.csv", tmp_path / "final" / "b.csv")
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["b.csv"]
    with pytest.raises(OSError):
        place_copy(tmp_path / "none.csv", tmp_path / "final" / "b.csv")
    assert (tmp_path / "final" / "b.csv").read_text(encoding="utf-8") == "id\n"
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["b.csv"]


async def test_room_is_set_aside_only_while_the_run_goes_on(quick: QuickRun, tmp_path: Path) -> None:
    sizes: list[int] = []

    async def look(label: str, agent: str) -> None:
        sizes.append(RunFolder(tmp_path / "run").reserve.stat().st_size)

    await quick(settings(L=1), agents=MindAgents(before=look))
    assert min(sizes) >= 1 << 20
    assert not RunFolder(tmp_path / "run").reserve.exists()


# --- limits, requests, outages -----------------------------------------------------------------------------------


async def test_a_run_that_did_all_it_planned_was_stopped_by_nothing(quick: QuickRun, tmp_path: Path) -> None:
    result = await quick()
    assert (result.stopped_by, result.warnings) == (None, [])
    assert events(tmp_path / "run", RunFinished)[-1].message == ""


async def a_second(label: str, agent: str) -> None:
    """Lets more than a second pass in Phase 1."""
    await asyncio.sleep(1.1 if agent == "retriever" else 0)


@pytest.mark.req("REQ-OR-024", "REQ-OR-034")
async def test_near_the_end_loops_stop_after_the_iteration_they_are_in_and_the_run_says_so(
    quick: QuickRun, tmp_path: Path
) -> None:
    """A run that is taken up with its time used up, and more to do than before."""
    await quick(settings(L=1, K=2), agents=MindAgents(before=a_second))
    agents = MindAgents()
    result = await quick(settings(L=1, T=2, K=2, time_limit_seconds=1), agents=agents, resume=True)
    assert agents.calls == []
    assert not result.phase2_results[0].partial and len(result.phase2_results[0].step_history) == 1
    assert result.phases_completed == ["phase1", "phase2", "finalization"]
    assert (result.stopped_by, said(result, tmp_path / "run")) == ("time", "stopped by the time limit")
    assert "--time-limit" in result.warnings[0]


@pytest.mark.req("REQ-OR-024", "REQ-OR-030")
async def test_with_no_time_left_a_phase_is_passed_over(quick: QuickRun, tmp_path: Path) -> None:
    async def die(label: str, agent: str) -> None:
        await a_second(label, agent)
        if agent == "ablation":
            raise Dead

    with pytest.raises(Dead):
        await quick(agents=MindAgents(before=die))
    agents = MindAgents()
    result = await quick(settings(time_limit_seconds=1), agents=agents, resume=True)
    assert agents.calls == [] and result.phases_skipped == ["phase2", "phase3"]
    assert result.stopped_by == "time" and result.phase2_results == []
    assert result.final_solution.score == result.phase1.initial_score == 0.515 and result.submission_path


async def test_an_end_that_was_asked_for_is_said(quick: QuickRun, tmp_path: Path) -> None:
    async def ask(label: str, agent: str) -> None:
        if agent == "ablation":
            await ask_to_finish(tmp_path / "run")

    result = await quick(settings(T=2, L=1), agents=MindAgents(before=ask))
    assert (result.stopped_by, said(result, tmp_path / "run")) == ("request", "stopped by request")
    assert "(control file)" in result.warnings[0]


class Outage(MindAgents):
    """From the n-th call on nothing reaches the model."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    async def ask(self, config: AgentConfig, prompt: str, *, label: str, **more: Any) -> AgentReply:
        if self.left == 0:
            raise AgentError("the CLI died", agent=config.agent_type.value, reason="transport")
        self.left -= 1
        return await super().ask(config, prompt, label=label, **more)


async def test_when_the_cli_dies_over_and_over_the_best_so_far_is_handed_over(quick: QuickRun, tmp_path: Path) -> None:
    result = await quick(settings(M=4, T=3, K=3), agents=Outage(12))
    assert (result.stopped_by, said(result, tmp_path / "run")) == ("outage", "stopped by an outage")
    assert "the CLI died" in result.warnings[0] and "when the model can be reached again" in result.warnings[0]
    assert result.final_solution.score == result.phase1.initial_score and result.submission_path
    later = await quick(settings(M=4, T=3, K=3), resume=True)
    assert later.stopped_by is None and later.phases_completed == ["phase1", "phase2", "phase3", "finalization"]


async def test_when_the_cli_dies_before_there_is_a_solution_the_error_says_so(quick: QuickRun, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"stopped by an outage .*the CLI died.*`mle-star resume"):
        await quick(settings(M=4), agents=Outage(1))
    result = await quick(settings(M=4), resume=True)
    assert result.stopped_by is None and result.submission_path


async def test_a_retriever_out_of_reach_does_not_end_the_run_and_is_not_asked_again_on_resume(
    quick: QuickRun, tmp_path: Path
) -> None:
    class WithoutRetriever(Outage):
        async def ask(self, config: AgentConfig, prompt: str, *, label: str, **more: Any) -> AgentReply:
            if config.agent_type is AgentType.retriever:
                raise AgentError("no route", agent="retriever", reason="transport")
            return await super().ask(config, prompt, label=label, **more)

    first = await quick(settings(M=2), agents=WithoutRetriever(12))
    assert first.submission_path and first.stopped_by == "outage"
    assert "the retriever gave nothing usable" in events(tmp_path / "run", Notice)[0].message
    agents = MindAgents()
    later = await quick(settings(M=2), agents=agents, resume=True)
    assert later.stopped_by is None and later.phase1.retrieved_models == first.phase1.retrieved_models
    assert agents.calls and "retriever" not in [agent for _, agent in agents.calls]


# --- Phase 3 -----------------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-OR-014", "REQ-OR-023")
@in_its_own_time
async def test_paths_that_improved_alike_and_were_cut_off_are_ensembled(quick: QuickRun, tmp_path: Path) -> None:
    async def hang(label: str, agent: str) -> None:
        if agent == "planner":
            await asyncio.sleep(600)

    shares = PhaseTimeBudget(phase1=0.3, phase2=0.1, phase3=0.3, finalization=0.3)
    config = settings(time_limit_seconds=60, phase_time_budget=shares)
    result = await quick(config, agents=MindAgents(before=hang, paths_alike=True))
    assert all(path.best_score > result.phase1.initial_score for path in result.phase2_results)
    assert len({path.best_solution.content for path in result.phase2_results}) == 1
    assert result.phase3 is not None and "phase3" in result.phases_completed


# --- a leak that only the last check finds ------------------------------------------------------------------------


@pytest.mark.req("REQ-OR-043", "REQ-P2I-030")
@pytest.mark.parametrize(("first", "submitted"), [(0.4, 0.515), (0.6, 0.6)])
@in_its_own_time
async def test_a_leak_that_is_found_after_a_cut_gives_way_to_the_best_clean_script(
    quick: QuickRun, first: float, submitted: float
) -> None:
    """Of promising scripts the winner of a loop is checked, and the end comes before: the second attempt leaks."""
    coded = iter((first, 0.99))

    async def hang(label: str, agent: str) -> None:
        if agent == "planner" and agents.count("coder") == 2:
            await asyncio.sleep(6000)

    def detection(prompt: str) -> Answer:
        leaks = "level = 0.9900" in prompt
        status = "Yes Data Leakage" if leaks else "No Data Leakage"
        return {"answers": [{"leakage_status": status, "code_block": "level = 0.9900" if leaks else "level"}]}

    overrides = {"coder": lambda _: fenced(f"level = {next(coded):.4f}"), "leakage-detection": detection}
    cannot = {"leakage-correction": lambda _: "I cannot.", "leakage-rewrite": lambda _: "Nor can I."}
    agents = MindAgents(Mind(overrides={**overrides, **cannot}), before=hang)
    result = await quick(settings(L=1, K=3, leakage_checks="promising"), agents=agents)
    (path,) = result.phase2_results
    assert (path.partial, path.best_score) == (True, 0.99), "nobody has checked it when the path is cut off"
    assert result.final_solution.score == submitted and not result.final_solution.leaking
    assert f"level = {submitted:.4f}" in result.final_solution.content
    assert f",{submitted}" in Path(result.submission_path).read_text(encoding="utf-8")
    assert result.expected is not None and result.expected.score == submitted
    assert result.lineage["finalization"]["from_score"] == submitted
    assert [text for text in result.warnings if "data leakage" in text] == [LEAK_REPLACED]


# --- taken up again ----------------------------------------------------------------------------------------------


class Changed(MindAgents):
    """As if one agent's template, tools or model had been changed."""

    def __init__(self, agent: str, **options: Any) -> None:
        super().__init__(**options)
        self.agent = agent

    def fingerprint(self, config: AgentConfig) -> str:
        return super().fingerprint(config) + ("2" if config.agent_type.value == self.agent else "")


async def test_a_resumed_run_with_changed_inputs_can_be_asked_to_finish(quick: QuickRun, tmp_path: Path) -> None:
    config = settings(R=4)
    await quick(config)

    async def ask(label: str, agent: str) -> None:
        if agent == "ens_planner" and agents.count("ens_planner") == 1:
            await ask_to_finish(tmp_path / "run")

    agents = Changed("ens_planner", before=ask)
    result = await quick(config, agents=agents, resume=True)
    assert agents.count("ens_planner") == 1  # the rounds of the earlier process rest on a plan that is no more
    assert result.stopped_by == "request"


async def test_the_settings_of_the_last_resume_are_those_that_hold(quick: QuickRun, tmp_path: Path) -> None:
    for steps in (1, 2, 1):
        await quick(settings(L=1, T=steps), resume=(tmp_path / "run").exists())
        assert last_config(tmp_path / "run").outer_loop_steps == steps
    assert [event.config is None for event in events(tmp_path / "run", RunResumed)] == [False, False]
    await quick(settings(L=1, T=1), resume=True)
    assert events(tmp_path / "run", RunResumed)[-1].config is None


@pytest.mark.req("REQ-OR-038")
async def test_durations_are_those_of_all_processes(quick: QuickRun, tmp_path: Path) -> None:
    async def slow(label: str, agent: str) -> None:
        await asyncio.sleep(1.5 if agent == "ablation" else 0)

    first = (await quick(settings(L=1), agents=MindAgents(before=slow))).duration_breakdown
    spans = {
        begun.phase: (ended.at - begun.at).total_seconds()
        for begun in events(tmp_path / "run", PhaseStarted)
        for ended in events(tmp_path / "run", PhaseFinished)
        if begun.step == ended.step == begun.phase
    }
    for phase in ("phase1", "phase2", "finalization"):  # nothing is invented: the journal's own times say the same
        assert first[f"{phase}_duration_seconds"] == pytest.approx(spans[phase], abs=10)
    assert first["phase2_duration_seconds"] >= 1.5
    again = (await quick(settings(L=1), resume=True)).duration_breakdown
    assert again["phase2_duration_seconds"] > 1.4
    assert sum(seconds for name, seconds in again.items() if "total" not in name) <= again["total_duration_seconds"]


@in_its_own_time
async def test_a_completed_run_stays_one_when_a_resume_comes_to_nothing(
    quick: QuickRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, now = await quick(settings(L=1)), asyncio.get_running_loop().time
    agents, started = Changed("retriever", before=lambda label, agent: asyncio.sleep(600)), now()
    again = await quick(settings(L=1, time_limit_seconds=1), agents=agents, resume=True)
    assert now() - started < 300, "new work is cut off at the limit, however much is recorded"
    as_before = {"total_duration_seconds", "stopped_by", "warnings", "config", "total_cost_usd", "cost_breakdown"}
    assert again.model_dump(exclude=as_before) == first.model_dump(exclude=as_before)
    assert again.warnings[1:] == first.warnings
    assert Path(again.submission_path).read_text("utf-8") == story(first)["submitted"]
    why = again.warnings[0].removeprefix("the result from before stands: ")
    assert again.stopped_by == "time" and why.startswith("no solution: stopped by the time limit")
    assert f"nothing new: {why}; the result from before stands" in caplog.messages
    assert events(tmp_path / "run", RunFinished)[-1].state == "completed"
    assert again.total_duration_seconds > first.total_duration_seconds
    Path(again.submission_path).unlink()
    gone = await quick(settings(L=1, time_limit_seconds=1), agents=agents, resume=True)
    assert gone.submission_path == "" and gone.final_solution == first.final_solution
    later = await quick(settings(L=1), agents=Changed("retriever"), resume=True)
    assert later.stopped_by is None and later.final_solution.score == first.final_solution.score


async def test_resume_says_which_limit_to_raise(quick: QuickRun, tmp_path: Path) -> None:
    await quick(settings(L=1, max_budget_usd=0.1), agents=MindAgents(before=a_second))
    run = tmp_path / "run"
    assert _spent_limits(run, settings()) == []
    seconds, money = _spent_limits(run, settings(time_limit_seconds=1, max_budget_usd=0.1))
    assert "time limit is used up" in seconds and "raise it with --time-limit" in seconds
    assert "money limit is used up (0.1" in money and "raise it with --max-budget" in money


class Dead(BaseException):
    """The end of a process, as far as Python code can bring it about: nothing catches it."""


@pytest.mark.req("REQ-OR-022")
async def test_what_is_no_failure_of_a_path_ends_the_run(quick: QuickRun) -> None:
    async def die(label: str, agent: str) -> None:
        if (label, agent) == ("path-0", "ablation"):
            raise Dead

    with pytest.raises(Dead):
        await quick(agents=MindAgents(before=die))


@pytest.mark.req("REQ-OR-018", "REQ-OR-020")
async def test_paths_that_won_nothing_still_own_what_they_hand_over(quick: QuickRun) -> None:
    result = await quick(agents=MindAgents(failing={"coder": "out of order"}))
    first, second = (path.best_solution for path in result.phase2_results)
    initial = result.phase1.initial_solution
    assert first.content == second.content == initial.content
    first.content = "spoilt"
    assert second.content == initial.content != "spoilt"


@pytest.mark.req("REQ-OR-026")
@in_its_own_time
async def test_paths_that_take_turns_share_the_time_of_their_phase(quick: QuickRun) -> None:
    async def hang(label: str, agent: str) -> None:
        if (label, agent) == ("path-0", "coder"):
            await asyncio.sleep(600)

    shares = PhaseTimeBudget(phase1=0.3, phase2=0.4, phase3=0.1, finalization=0.2)
    config = settings(time_limit_seconds=40, max_concurrent_paths=1, phase_time_budget=shares)
    state = PipelineState()
    result = await quick(config, agents=MindAgents(before=hang), state=state)
    assert state.phase2_path_statuses == ["cancelled", "completed"]
    stuck, fine = (path.best_score for path in result.phase2_results)
    assert stuck == result.phase1.initial_score < fine


@pytest.mark.req("REQ-OR-004")
async def test_the_hardware_of_a_run_is_that_of_the_machine(
    quick: QuickRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200'\necho 'NVIDIA H200'\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    state = PipelineState()
    await quick(settings(L=1), state=state)
    assert state.hardware["gpu_count"] == 2 and state.hardware["gpu_names"] == ["NVIDIA H200"] * 2
    assert events(tmp_path / "run", RunStarted)[0].hardware == state.hardware


# --- what listeners hear -------------------------------------------------------------------------------------------


async def test_no_work_begins_after_the_end_was_told(quick: QuickRun) -> None:
    heard: list[AnyEvent] = []
    await quick(settings(L=1, max_budget_usd=0.12), listeners=[heard.append])
    begun = [index for index, event in enumerate(heard) if isinstance(event, AgentStarted)]
    assert isinstance(heard[-1], RunFinished) and begun[-1] < len(heard) - 1


async def test_a_run_in_which_every_candidate_fails_names_the_causes(quick: QuickRun) -> None:
    mind = Mind(overrides={name: lambda prompt: fenced(broken()) for name in ("init", "debugger")})
    with pytest.raises(PipelineError, match=r"no solution: .*\(model 0: RuntimeError: broken; model 1: RuntimeError"):
        await quick(agents=MindAgents(mind))
