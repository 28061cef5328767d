"""Phase 1 when things go wrong: every single call and every single script, one after another, not a sample of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from mle_star.execution import evaluate_solution
from mle_star.models import Phase1Result
from mle_star.phase1 import run_phase1
from tests.method.conftest import (
    AGENT_FAULTS,
    GARBAGE,
    NO_LEAKAGE,
    Fault,
    Reply,
    ScriptedCall,
    ScriptedExecutor,
    ScriptedRun,
    broken_script,
    by_step,
    fenced,
    leaky,
    models,
    script,
    scripted_run,
    settings,
)

pytestmark = pytest.mark.modes("usual", "letter")

CONFIG = settings(M=2, max_debug_attempts=1, max_concurrent_scripts=1)


@dataclass(frozen=True)
class Expected:
    """What has to come out: the scores of both candidates, of the merge and of the initial solution."""

    candidates: tuple[float | None, float | None] = (0.5, 0.55)
    merge: float | None = 0.7
    merges: int = 1
    initial: float = 0.75


def flags(call: ScriptedCall) -> Reply:
    """Candidate 1 leaks as it was written, and so does the data revision, where only the last check finds it."""
    leaks = {"candidate-1": "level = 0.6", "leakage": "level = 0.8"}
    found = [line for place, line in leaks.items() if place in call.step.split("/") and f"{line}\n" in call.prompt]
    return leaky(*found) if found else NO_LEAKAGE


def stage(run: ScriptedRun) -> None:
    """One of everything: a repair, a leak, a merge that needs repair, a data revision, a leak in the final script."""
    agents = run.agents
    agents.always("retriever", models("m0", "m1"))
    agents.always("init", by_step(candidate_0=fenced(broken_script("m0")), candidate_1=fenced(script(0.6))))
    agents.always("debugger", by_step(candidate_0=fenced(script(0.5)), merge_1=fenced(script(0.7)), otherwise=GARBAGE))
    agents.always("leakage-detection", flags)
    agents.always("leakage-correction", by_step(candidate_1=fenced("level = 0.55"), leakage=fenced("level = 0.75")))
    agents.always("merger", fenced(broken_script("merge")))
    agents.always("data", fenced(script(0.8)))


# What a failure of each call costs; nothing else may change.
CALLS = {
    "phase1/retriever": Expected(),  # asked once more
    "phase1/candidate-0/init": Expected(candidates=(None, 0.55), merge=None, merges=0),
    "phase1/candidate-0/leakage-detection": Expected(),
    "phase1/candidate-0/debugger": Expected(candidates=(None, 0.55), merge=None, merges=0),
    "phase1/candidate-0/leakage-detection-2": Expected(),
    "phase1/candidate-1/init": Expected(candidates=(0.5, None), merge=None, merges=0),
    "phase1/candidate-1/leakage-detection": Expected(candidates=(0.5, 0.6)),
    "phase1/candidate-1/leakage-correction": Expected(candidates=(0.5, None), merge=None, merges=0),  # the leak stays
    "phase1/merge-1/merger": Expected(merge=None),
    "phase1/merge-1/leakage-detection": Expected(),
    "phase1/merge-1/debugger": Expected(merge=None),
    "phase1/merge-1/leakage-detection-2": Expected(),
    "phase1/data-use/data": Expected(initial=0.7),
    "phase1/data-use/leakage-detection": Expected(),
    "phase1/leakage/leakage-detection": Expected(initial=0.8),
    "phase1/leakage/leakage-correction": Expected(initial=0.7),  # back to what stood before the revision that leaks
}

# What a crash of each script costs, by a line that only this script has.
SCRIPTS = {
    "level = 0.5\n": Expected(candidates=(None, 0.55), merge=None, merges=0),
    "level = 0.55\n": Expected(candidates=(0.5, None), merge=None, merges=0),
    "level = 0.7\n": Expected(merge=None),
    "level = 0.8\n": Expected(initial=0.7),
    "level = 0.75\n": Expected(initial=0.7),  # the same
}


def check(result: Phase1Result, expected: Expected) -> None:
    assert result.candidate_scores == list(expected.candidates)
    assert [candidate.score for candidate in result.candidate_solutions] == result.candidate_scores
    assert [candidate.source_model for candidate in result.candidate_solutions] == ["m0", "m1"]
    assert len(result.retrieved_models) == 2
    assert [merge["score"] for merge in result.merge_attempts] == [expected.merge] * expected.merges
    assert result.initial_score == expected.initial == result.initial_solution.score
    assert f"level = {expected.initial}\n" in result.initial_solution.content and result.initial_solution.is_executable


async def test_without_a_failure_every_listed_step_happens(tmp_path: Path) -> None:
    with scripted_run(tmp_path, config=CONFIG) as run:
        stage(run)
        check(await run_phase1(run.task, run.config), Expected())
        assert sorted(call.step for call in run.agents.log) == sorted(CALLS)
        assert len(run.executor.scripts) == len(SCRIPTS) + 2, "two scripts are broken anyway"


@pytest.mark.modes("usual")
@pytest.mark.parametrize("fault", AGENT_FAULTS)
@pytest.mark.parametrize("step", CALLS)
async def test_a_failure_of_any_call_costs_no_more_than_it_must(quick_path: Path, step: str, fault: Fault) -> None:
    with scripted_run(quick_path, config=CONFIG, executor=ScriptedExecutor()) as run:
        stage(run)
        run.agents.faults = {step: fault}
        check(await run_phase1(run.task, run.config), CALLS[step])


@pytest.mark.modes("usual")
@pytest.mark.parametrize("line", SCRIPTS)
async def test_a_crash_of_any_script_costs_no_more_than_it_must(tmp_path: Path, line: str) -> None:
    with scripted_run(tmp_path, config=CONFIG) as run:
        stage(run)
        run.executor.faults = {line}
        result = await run_phase1(run.task, run.config)
        check(result, SCRIPTS[line])
        run.executor.faults.clear()
        again = await evaluate_solution(result.initial_solution, run.task, settings(use_cache=False))
        assert again.score == result.initial_score
