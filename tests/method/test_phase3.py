"""Phase 3: which ensemble wins, what is recorded, and that no failure ends it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mle_star.models import Phase3Result, SolutionPhase, SolutionScript
from mle_star.phase3 import ENS_PLANNER_FAILED, run_phase3
from mle_star.run.context import scope
from mle_star.run.events import AgentFinished, EnsembleTried

from .conftest import ScriptedRun, quick, settings
from .loops import play_rounds, section
from .replies import NO_LEAKAGE, broken_script, fenced, leaky, script, solution

BOTH = pytest.mark.modes("delivered", "letter")


def inputs(*scores: float) -> list[SolutionScript]:
    """One refined solution per score."""
    return [
        solution(script(score, note=f"input {n}"), score=score, phase=SolutionPhase.refined)
        for n, score in enumerate(scores or (0.5, 0.6))
    ]


async def ensemble(run: ScriptedRun, r: int = 5, *, of: list[SolutionScript] | None = None) -> Phase3Result:
    """`r` rounds over the given solutions, by default two that score 0.5 and 0.6."""
    return await run_phase3(inputs() if of is None else of, run.task, settings(R=r))


@BOTH
@pytest.mark.req(
    "REQ-P3-015", "REQ-P3-017", "REQ-P3-019", "REQ-P3-020", "REQ-P3-021", "REQ-P3-022", "REQ-P3-023", "REQ-P3-024",
    "REQ-P3-030", "REQ-P3-031", "REQ-P3-032", "REQ-P3-033", "REQ-P3-034", "REQ-P3-042", "REQ-P3-043", "REQ-P3-044",
)  # fmt: skip
async def test_each_round_plans_with_the_whole_history_and_is_recorded_however_it_ends(run: ScriptedRun) -> None:
    given = inputs()
    play_rounds(run.agents, [0.7, "crash", "planner", "ensembler", 0.75, 0.72])
    with scope("phase3"):
        result = await ensemble(run, r=6, of=given)
    plans = ["plan 0", "plan 1", ENS_PLANNER_FAILED, "plan 3", "plan 4", "plan 5"]
    scores = [0.7, None, None, None, 0.75, 0.72]
    codes = [script(score, note=f"round {r}") if score else "" for r, score in enumerate(scores)]
    codes[1] = broken_script(note="round 1")
    names = ("ens_planner", "ensembler", "leakage-detection")
    asked = [names, names, names[:1], names[:2], names, names]
    steps = [f"phase3/r-{r}/{name}" for r, names in enumerate(asked) for name in names]
    assert [call.step for call in run.agents.log if call.name != "debugger"] == steps
    assert len(run.events(AgentFinished)) == len(run.agents.log)
    known = [(plan, "N/A (evaluation failed)" if s is None else str(s)) for plan, s in zip(plans, scores, strict=True)]
    for r, call in enumerate(run.agents.calls("ens_planner")):
        assert re.findall(r"## Plan: (.*)\n## Score: (.*)", call.prompt) == known[:r]
        assert ("Plan:" in call.prompt) == (r > 0)
    shown = [section(call.prompt, "Ensemble plan") for call in run.agents.calls("ensembler")]
    assert [plan in text for plan, text in zip([*plans[:2], *plans[3:]], shown, strict=True)] == [True] * 5
    ran = [code for code in codes if code]
    checked = [call.prompt for call in run.agents.calls("leakage-detection")]
    assert all(code in prompt for code, prompt in zip(ran, checked, strict=True))
    assert list(dict.fromkeys(run.executor.scripts)) == ran and run.executor.most_at_once == 1
    assert (result.ensemble_plans, result.ensemble_scores, result.input_solutions) == (plans, scores, given)
    attempts = [(a.plan, a.score, a.solution.content, a.solution.is_executable) for a in result.attempts]
    assert attempts == [(*both, code, both[1] is not None) for *both, code in zip(plans, scores, codes, strict=True)]
    assert {attempt.solution.phase for attempt in result.attempts} == {SolutionPhase.ensemble}
    assert result.best_ensemble == result.attempts[4].solution and result.best_ensemble.score == 0.75
    events = [(e.step, e.r, e.plan, e.score, e.best) for e in run.events(EnsembleTried)]
    assert events == [(f"phase3/r-{r}", r, plans[r], scores[r], r in (0, 4)) for r in range(6)]
    assert ENS_PLANNER_FAILED == "[ens_planner failed]" and (run.work_dir / "final" / "submission.csv").exists()


async def test_of_promising_ensembles_each_is_checked_that_would_win_until_one_stays_the_best(quick_path: Path) -> None:
    """The best is fixed and worse then, the second leaks for good, the third is clean; the fourth is never checked."""
    with quick(quick_path, R=4, leakage_checks="promising") as run, scope("phase3"):
        run.agents.reply("ensembler", *fenced(script(0.9), script(0.8), script(0.7), script(0.5)))
        run.agents.reply("leakage-detection", leaky("level = 0.9"), leaky("level = 0.8"), NO_LEAKAGE)
        run.agents.reply("leakage-correction", fenced("level = 0.6"), "no code")
        run.agents.reply("leakage-rewrite", "no code")
        result = await run_phase3(inputs(), run.task, run.config)
        assert run.agents.names.count("leakage-detection") == 3
    assert result.ensemble_scores == [0.6, None, 0.7, 0.5]
    assert (result.best_ensemble.content, result.best_ensemble_score) == (script(0.7), 0.7)
    assert result.attempts[0].solution.content == script(0.6) and result.attempts[1].solution.leaking


@BOTH
@pytest.mark.req("REQ-P3-015")
async def test_a_missing_submission_is_a_warning_and_the_round_counts(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    run.agents.reply("ensembler", *fenced(script(0.8), "print('Final Validation Performance: 0.9')"))
    result = await ensemble(run, r=2)
    assert result.best_ensemble_score == 0.9
    missing = [r.getMessage() for r in caplog.records if "left no final/submission.csv" in r.getMessage()]
    assert len(missing) == 1 and missing[0].startswith("r=1:")  # the file of the round before does not count


@pytest.mark.req("REQ-P3-018")
async def test_a_single_solution_is_the_result(quick_run: ScriptedRun) -> None:
    given = inputs(0.7)
    result = await ensemble(quick_run, of=given)
    assert result == Phase3Result(
        input_solutions=given, ensemble_plans=[], ensemble_scores=[], best_ensemble=given[0], best_ensemble_score=0.7
    )
    assert quick_run.agents.log == [] and quick_run.executor.scripts == []
