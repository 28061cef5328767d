"""Finalization when things go wrong: every single call and every single script, with a kept submission and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from mle_star.execution import evaluate_solution
from mle_star.finalization import run_finalization
from mle_star.models import FinalResult, Phase1Result, SolutionPhase
from mle_star.run.context import scope
from tests.method.conftest import (
    AGENT_FAULTS,
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

pytestmark = pytest.mark.modes("usual", "letter")

CONFIG = settings(max_debug_attempts=1)
CUT = "rows = list(range(9))\nrows = rows[:5]\nlevel = 0.7\nprint(f'Final Validation Performance: {level}')"
BEST = solution(CUT, score=0.7, phase=SolutionPhase.refined)
TEST = "scale = 1\nlevel = 0.8\nraise ValueError('no such column')"
FIXED = "scale = 2\n" + script(0.9)


def stage(run: ScriptedRun) -> None:
    """One of everything: subsampling, a leak in the test script, a crash of it, a repair, a reference."""
    run.agents.always("test-subsampling_extract", fenced("rows = rows[:5]"))
    run.agents.always("test-subsampling_remove", fenced("rows = rows[:]"))
    run.agents.always("test", fenced(TEST))
    run.agents.reply("leakage-detection", leaky("scale = 1"))
    run.agents.always("leakage-detection", NO_LEAKAGE)
    run.agents.always("leakage-correction", fenced("scale = 3"))
    run.agents.always("debugger", fenced(FIXED))


STEPS = [
    "finalization/test-subsampling_extract",
    "finalization/test-subsampling_remove",
    "finalization/test",
    "finalization/leakage-detection",
    "finalization/leakage-correction",
    "finalization/debugger-submission",
    "finalization/leakage-detection-2",
    "finalization/test-contamination",
]
FATAL = {"finalization/debugger-submission"}  # the one repair that is allowed


async def finalize(run: ScriptedRun, *, kept: bool) -> FinalResult:
    if kept:
        with scope("phase1", "candidate-0"):
            await evaluate_solution(solution(script(0.6)), run.task, run.config)
    phase1 = Phase1Result(
        retrieved_models=[],
        candidate_solutions=[BEST],
        candidate_scores=[0.7],
        initial_solution=BEST,
        initial_score=0.7,
    )
    return await run_finalization(BEST, run.task, run.config, phase1, [], None, ["a post"])


def check(result: FinalResult, *, submitted: bool, kept: bool) -> None:
    if submitted:
        assert result.final_solution.content == FIXED and result.final_solution.phase == SolutionPhase.final
        assert result.warnings == []
    elif kept:
        assert (result.final_solution.content, result.final_solution.score) == (script(0.6), 0.6)
    else:
        assert result.final_solution == BEST and result.submission_path == ""
    if submitted or kept:
        assert Path(result.submission_path).read_text() == "id,target\n1,0\n2,1\n"


@pytest.mark.modes("usual")
async def test_without_a_failure_every_listed_step_happens(tmp_path: Path) -> None:
    with scripted_run(tmp_path, config=CONFIG) as run:
        stage(run)
        check(await finalize(run, kept=False), submitted=True, kept=False)
        assert [call.step for call in run.agents.log] == STEPS


@pytest.mark.modes("usual")
@pytest.mark.parametrize("fault", AGENT_FAULTS)
@pytest.mark.parametrize("step", STEPS)
async def test_a_failure_of_any_call_still_gives_a_result(quick_path: Path, step: str, fault: Fault) -> None:
    for kept in (False, True):
        with scripted_run(quick_path / str(kept), config=CONFIG, executor=ScriptedExecutor()) as run:
            stage(run)
            run.agents.faults = {step: fault}
            result = await finalize(run, kept=kept)
            check(result, submitted=step not in FATAL, kept=kept)
            assert (result.contamination is None) == (step == "finalization/test-contamination")


@pytest.mark.modes("usual")
@pytest.mark.parametrize("kept", [False, True])
async def test_a_crash_of_every_test_script_still_gives_a_result(tmp_path: Path, kept: bool) -> None:
    with scripted_run(tmp_path, config=CONFIG) as run:
        stage(run)
        run.executor.faults = {"scale = 2"}
        check(await finalize(run, kept=kept), submitted=False, kept=kept)
        assert len(run.executor.scripts) == 2 + kept
