"""What a run does beyond the specification: checks of promising scripts, paths that differ, limits that are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from mle_star.models import ExecutionRawResult
from mle_star.run import events as ev
from mle_star.run.context import ScriptRequest
from tests.pipeline.conftest import QuickRun, settings
from tests.pipeline.mind import Answer, LevelExecutor, Mind, MindAgents, fenced, leaking, levels


async def test_checking_only_what_is_promising_saves_a_quarter_of_the_calls(quick: QuickRun) -> None:
    def plateau(prompt: str) -> Answer:
        return fenced(f"level = {min(levels(prompt)[0] + 0.01, 0.57):.4f}")

    calls = {}
    for checks in ("all", "promising"):
        agents = MindAgents(Mind(overrides={"coder": plateau}))
        config = settings(M=4, T=4, K=4, L=1, leakage_checks=checks, use_cache=False)
        assert (await quick(config, name=checks, agents=agents)).submission_path
        assert agents.count("leakage") >= 3
        calls[checks] = len(agents.calls)
    assert calls["promising"] <= 0.75 * calls["all"], calls


async def test_each_path_starts_from_another_script_unless_the_specification_is_wanted(quick: QuickRun) -> None:
    starts, models = {}, {}
    for name, diversity in (("differ", ("starts",)), ("twins", ())):
        await quick(settings(M=3, L=3, T=1, K=1, diversity=diversity), name=name)
        studies = quick.events(ev.AblationFinished, name)
        starts[name] = [study.solution_score for study in sorted(studies, key=lambda study: study.path)]
        scores = {one.model_name: one.score for one in quick.events(ev.CandidateEvaluated, name)}
        models[name] = [scores.get(e.model) for e in quick.events(ev.PhaseStarted, name) if e.path is not None]
    assert len(set(starts["twins"])) == 1
    assert starts["differ"] == [starts["twins"][0], 0.52, 0.51]  # the initial solution, then the best candidates
    assert models == {"differ": [None, 0.52, 0.51], "twins": [None] * 3}, "the journal names what a path began with"


async def test_no_path_starts_from_a_candidate_that_leaks_whatever_is_checked(quick: QuickRun) -> None:
    """Of the candidates only the best was checked, and no change of a path's start is ever checked for what it had."""

    mind = Mind(overrides={**leaking("level = 0.5100"), "merger": "No idea."})
    config = settings(M=3, L=3, T=1, K=1, diversity=("starts",), leakage_checks="promising")
    await quick(config, agents=MindAgents(mind))
    found = [event.step for event in quick.events(ev.LeakageChecked) if event.found]
    assert found == ["phase2/path-1/leakage-detection"]
    scores = {one.model_name: one.score for one in quick.events(ev.CandidateEvaluated)}
    begun = {e.path: scores.get(e.model) for e in quick.events(ev.PhaseStarted) if e.path is not None}
    assert begun == {0: None, 1: None, 2: 0.5} and {*scores.values()} == {0.5, 0.51, 0.52}


def slow_on_model_0(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
    """What stems from model 0 takes three minutes, all else five seconds; it is stopped where it takes too long."""
    seconds = 170.0 if "# model 0" in Path(request.script_path).read_text(encoding="utf-8") else 5.0
    if seconds > request.timeout_seconds:
        stopped = {"stdout": "", "exit_code": -1, "duration_seconds": request.timeout_seconds, "timed_out": True}
        return done.model_copy(update=stopped)
    return done.model_copy(update={"duration_seconds": seconds})


async def test_a_path_has_time_for_its_slow_start_and_the_last_script_knows_its_limit(quick: QuickRun) -> None:
    agents = MindAgents(Mind(overrides={"merger": lambda _: "No idea.", "debugger": lambda _: "No idea."}))
    config = settings(L=2, T=4, K=4, R=1, diversity=("starts",))
    await quick(config, agents=agents, executor=LevelExecutor(after=slow_on_model_0))
    tried = [event.score for event in quick.events(ev.RefinementTried) if event.path == 1]
    assert len(tried) == 16 and None not in tried
    prompts = {event.step: event.prompt for event in quick.events(ev.AgentFinished)}
    assert "The current solution takes 3 min." in prompts["phase2/path-1/t-0/k-0/coder"]
    limited = settings(L=1, T=1, K=1, script_timeout_seconds=400)
    await quick(limited, executor=LevelExecutor(after=slow_on_model_0), name="limited")
    prompts = {event.step: event.prompt for event in quick.events(ev.AgentFinished, "limited")}
    last = prompts["finalization/test"]
    assert "A script is stopped after 60 min." in last and "The current solution takes" not in last
    (started,) = [e for e in quick.events(ev.ScriptStarted, "limited") if e.purpose == "submission"]
    assert started.timeout_seconds == pytest.approx(3600, abs=60)
