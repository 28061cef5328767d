"""Phase 3: which ensemble wins, what is recorded, and that no failure ends it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mle_star.models import EnsembleAttempt, MetricDirection, Phase3Result, SolutionPhase, SolutionScript
from mle_star.phase3 import ENS_PLANNER_FAILED, partial_phase3, run_phase3
from mle_star.run.context import scope
from mle_star.run.events import AgentFinished, EnsembleTried

from .conftest import (
    NO_LEAKAGE,
    Fault,
    ScriptedExecutor,
    ScriptedRun,
    fenced,
    leaky,
    script,
    scripted_run,
    settings,
    solution,
)
from .loops import play_rounds, section

pytestmark = pytest.mark.modes("delivered", "letter")


def inputs(*scores: float | None) -> list[SolutionScript]:
    """One refined solution per score."""
    return [
        solution(script(score or 0, note=f"input {n}"), score=score, phase=SolutionPhase.refined)
        for n, score in enumerate(scores or (0.5, 0.6))
    ]


async def ensemble(run: ScriptedRun, r: int = 5, *, of: list[SolutionScript] | None = None) -> Phase3Result:
    """`r` rounds over the given solutions, by default two that score 0.5 and 0.6."""
    return await run_phase3(inputs() if of is None else of, run.task, settings(R=r))


@pytest.mark.req("REQ-P3-017", "REQ-P3-019", "REQ-P3-020", "REQ-P3-021", "REQ-P3-042", "REQ-P3-015", "REQ-P3-032")
async def test_the_first_round_plans_without_history_implements_checks_and_runs(run: ScriptedRun) -> None:
    given = inputs()
    run.agents.reply("ens_planner", "stack them")
    run.agents.reply("ensembler", fenced(script(0.8)))
    with scope("phase3"):
        result = await ensemble(run, r=1, of=given)
    assert run.agents.names == ["ens_planner", "ensembler", "leakage-detection"]
    assert [call.step for call in run.agents.log] == [
        "phase3/r-0/ens_planner", "phase3/r-0/ensembler", "phase3/r-0/leakage-detection",
    ]  # fmt: skip
    assert "Plan:" not in run.agents.calls("ens_planner")[0].prompt
    assert "stack them" in section(run.agents.calls("ensembler")[0].prompt, "Ensemble plan")
    assert script(0.8) in run.agents.calls("leakage-detection")[0].prompt
    assert run.executor.scripts == [script(0.8)]
    assert (result.best_ensemble.content, result.best_ensemble_score) == (script(0.8), 0.8)
    assert result.best_ensemble.score == 0.8 and result.best_ensemble.phase is SolutionPhase.ensemble
    assert result.attempts == [EnsembleAttempt(plan="stack them", score=0.8, solution=result.best_ensemble)]
    assert result.input_solutions == given
    assert (run.work_dir / "final" / "submission.csv").exists()


@pytest.mark.req("REQ-P3-022", "REQ-P3-023", "REQ-P3-024", "REQ-P3-033", "REQ-P3-034", "REQ-P3-043", "REQ-P3-044")
async def test_every_later_round_plans_with_the_whole_history(run: ScriptedRun) -> None:
    play_rounds(run.agents, [0.7, "crash", 0.75, "ensembler", 0.72])
    result = await ensemble(run, r=5)
    first = ["ens_planner", "ensembler", "leakage-detection"]
    assert [name for name in run.agents.names if name != "debugger"] == [*first * 3, *first[:2], *first]
    assert result.ensemble_plans == [f"plan {r}" for r in range(5)]
    assert result.ensemble_scores == [0.7, None, 0.75, None, 0.72]
    for r, call in enumerate(run.agents.calls("ens_planner")):
        tried = re.findall(r"## Plan: (.*)\n## Score: (.*)", call.prompt)
        known = ["N/A (evaluation failed)" if s is None else str(s) for s in result.ensemble_scores]
        assert tried == [(f"plan {j}", known[j]) for j in range(r)]
    assert [attempt.plan for attempt in result.attempts] == result.ensemble_plans
    assert [attempt.score for attempt in result.attempts] == result.ensemble_scores
    assert len(result.attempts) == 5 and run.executor.most_at_once == 1
    assert [(e.r, e.plan, e.score, e.best) for e in run.events(EnsembleTried)] == [
        (0, "plan 0", 0.7, True), (1, "plan 1", None, False), (2, "plan 2", 0.75, True),
        (3, "plan 3", None, False), (4, "plan 4", 0.72, False),
    ]  # fmt: skip
    assert [event.step for event in run.events(EnsembleTried)] == [f"r-{r}" for r in range(5)]
    assert len(run.events(AgentFinished)) == len(run.agents.log)


@pytest.mark.modes("delivered")
async def test_of_promising_ensembles_each_is_checked_that_would_win_until_one_stays_the_best(quick_path: Path) -> None:
    """The best is mended and worse then, the second leaks for good, the third is clean; the fourth is never checked."""
    config = settings(R=4, leakage_checks="promising")
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=config) as run, scope("phase3"):
        run.agents.reply("ensembler", *fenced(script(0.9), script(0.8), script(0.7), script(0.5)))
        run.agents.reply("leakage-detection", leaky("level = 0.9"), leaky("level = 0.8"), NO_LEAKAGE)
        run.agents.reply("leakage-correction", fenced("level = 0.6"), "no code")
        run.agents.reply("leakage-rewrite", "no code")
        result = await run_phase3(inputs(), run.task, config)
        checks = run.agents.names.count("leakage-detection")
    assert result.ensemble_scores == [0.6, None, 0.7, 0.5] and checks == 3
    assert (result.best_ensemble.content, result.best_ensemble_score) == (script(0.7), 0.7)
    assert result.attempts[0].solution.content == script(0.6) and result.attempts[1].solution.leaking


@pytest.mark.req("REQ-P3-015")
async def test_a_missing_submission_is_a_warning_and_the_round_counts(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    without = "print('Final Validation Performance: 0.9')"
    run.agents.reply("ensembler", fenced(script(0.8)), fenced(without))
    result = await ensemble(run, r=2)
    assert result.best_ensemble_score == 0.9
    missing = [r.getMessage() for r in caplog.records if "left no final/submission.csv" in r.getMessage()]
    assert len(missing) == 1 and missing[0].startswith("r=1:")  # the file of the round before does not count


async def test_whenever_it_is_cut_off_the_finished_rounds_are_what_it_came_to(quick_run: ScriptedRun) -> None:
    of = inputs()
    assert partial_phase3(of, quick_run.task) is None
    play_rounds(quick_run.agents, [0.7, "crash", 0.65])
    whole = await ensemble(quick_run, 3, of=of)
    assert whole.ensemble_scores == [0.7, None, 0.65] and whole.best_ensemble_score == 0.7
    assert partial_phase3(of, quick_run.task) == whole


@pytest.mark.req("REQ-P3-018")
async def test_a_single_solution_is_the_result(quick_run: ScriptedRun) -> None:
    given = inputs(0.7)
    result = await ensemble(quick_run, of=given)
    assert (result.input_solutions, result.ensemble_plans, result.ensemble_scores) == (given, [], [])
    assert result.best_ensemble == given[0] and result.best_ensemble_score == 0.7 and result.attempts == []
    assert quick_run.agents.log == [] and quick_run.executor.scripts == []


@pytest.mark.req("REQ-P3-026", "REQ-P3-035", "REQ-P3-038", "REQ-P3-029")
@pytest.mark.parametrize(
    ("direction", "scores", "best"),
    [
        (MetricDirection.minimize, [0.5, 0.7, 0.4], 2),
        (MetricDirection.maximize, [None, 0.2, None, 0.1], 1),
        (MetricDirection.minimize, [0.3, 0.3], 0),
        (MetricDirection.maximize, [None, None], 0),
    ],
)
async def test_when_all_rounds_fail_the_best_input_comes_back(
    direction: MetricDirection, scores: list[float | None], best: int, quick_path: Path
) -> None:
    given = inputs(*scores)
    with scripted_run(quick_path, executor=ScriptedExecutor(), metric_direction=direction) as run:
        play_rounds(run.agents, ["crash", "planner", "ensembler"])
        result = await ensemble(run, r=3, of=given)
    assert result.best_ensemble == given[best] and result.best_ensemble_score == scores[best]
    assert result.ensemble_scores == [None] * 3 and len(result.attempts) == 3


@pytest.mark.req("REQ-P3-022", "REQ-P3-030", "REQ-P3-031", "REQ-P3-032")
@pytest.mark.parametrize("fault", ["empty", "raises"])
async def test_a_round_without_plan_or_code_is_recorded_and_the_next_one_knows(
    fault: Fault, quick_run: ScriptedRun
) -> None:
    play_rounds(quick_run.agents, ["ensembler", 0.7, 0.8])
    quick_run.agents.reply("ens_planner", "plan 3")
    quick_run.agents.faults["r-1/ens_planner"] = fault
    result = await ensemble(quick_run, r=4)
    assert result.ensemble_plans == ["plan 0", ENS_PLANNER_FAILED, "plan 1", "plan 2"]
    assert result.ensemble_scores == [None, None, 0.7, 0.8] and ENS_PLANNER_FAILED == "[ens_planner failed]"
    for attempt in result.attempts[:2]:
        assert (attempt.solution.content, attempt.solution.is_executable) == ("", False)
        assert attempt.solution.phase is SolutionPhase.ensemble
    history = quick_run.agents.calls("ens_planner")[-1].prompt
    assert history.count("## Score: N/A (evaluation failed)") == 2 and f"## Plan: {ENS_PLANNER_FAILED}\n" in history


@pytest.mark.modes("delivered")
async def test_a_run_that_is_told_to_finish_ends_the_phase_after_the_round(quick_run: ScriptedRun) -> None:
    def finish(_: Any) -> Any:
        quick_run.context.budget.finish_requested = True
        return fenced(script(0.65, note="last"))

    quick_run.agents.reply("ensembler", fenced(script(0.7)), finish)
    result = await ensemble(quick_run, r=5)
    assert result.ensemble_scores == [0.7, 0.65] and result.best_ensemble_score == 0.7
    again = await ensemble(quick_run, r=5)  # told to finish before the first round
    assert again.attempts == [] and again.best_ensemble_score == 0.6
