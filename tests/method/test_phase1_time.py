"""Phase 1 in the time it has: what is there when its share is used up counts, and a resumed run decides the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mle_star.models import ExecutionRawResult, Phase1Result, PhaseTimeBudget
from mle_star.phase1 import IN_TIME, partial_phase1, run_phase1
from mle_star.run.context import ScriptRequest
from mle_star.run.events import CandidateEvaluated, Decided
from tests.method.conftest import (
    ScriptedCall,
    ScriptedExecutor,
    ScriptedRun,
    broken_script,
    fenced,
    models,
    script,
    scripted_run,
    settings,
)

CONFIG = settings(M=3, time_limit_seconds=1000)
SHARE = 100.0  # of Phase 1; finalization's begins at 900


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Late(ScriptedExecutor):
    """The share is used up when a script ends here."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Let everybody see what ended before, move the clock, and scorer."""
        for _ in range(20):
            await asyncio.sleep(0)
        self.clock.now = SHARE + 1
        return await super().run(request)


@contextmanager
def phase1_run(root: Path, clock: Clock | None = None, shares: PhaseTimeBudget | None = None) -> Iterator[ScriptedRun]:
    """A run of three models that has just opened Phase 1."""
    config = CONFIG.model_copy(update={"phase_time_budget": shares})
    with scripted_run(root, config=config, executor=ScriptedExecutor(), clock=clock or Clock()) as run:
        run.agents.always("retriever", models("m0", "m1", "m2"))
        run.context.budget.open_phase("phase1")
        yield run


async def evaluated(run: ScriptedRun, count: int) -> None:
    """Wait until so many candidates are recorded."""
    while len(run.events(CandidateEvaluated)) < count:
        await asyncio.sleep(0.001)


def candidates(run: ScriptedRun, **codes: Any) -> None:
    """What the init agent does by candidate: a script, or a coroutine function that gives one."""

    async def write(call: ScriptedCall) -> str:
        code = codes[f"m{call.step.split('candidate-')[1][0]}"]
        return str(fenced(code if isinstance(code, str) else await code()))

    run.agents.always("init", write)


async def never() -> str:
    """An answer that does not come."""
    await asyncio.sleep(3600)
    raise AssertionError("nobody cancelled this")


def passed(run: ScriptedRun) -> list[str]:
    """The units that the journal says were passed over."""
    return [e.step.removesuffix(f"/{IN_TIME}") for e in run.events(Decided) if e.name == IN_TIME and not e.value]


async def cut_after_two(run: ScriptedRun, clock: Clock) -> Phase1Result:
    """Two candidates score, then the share is used up while the third is still being written."""

    async def second() -> str:
        await evaluated(run, 1)
        run.executor.inner = Late(clock)
        return script(0.6, note="m1")

    candidates(run, m0=script(0.5, note="m0"), m1=second, m2=never)
    return await run_phase1(run.task, CONFIG)


@pytest.mark.req("REQ-OR-025")
async def test_when_the_share_is_used_up_the_method_goes_on_with_the_candidates_that_are_there(
    quick_path: Path,
) -> None:
    clock = Clock()
    with phase1_run(quick_path, clock) as run:
        result = await cut_after_two(run, clock)
        assert result.candidate_scores == [0.5, 0.6, None] and result.initial_score == 0.6
        assert [script.source_model for script in result.candidate_solutions] == ["m0", "m1", "m2"]
        assert passed(run) == ["phase1/candidate-2", "phase1/merge-1"]
        assert {e.index: e.error for e in run.events(CandidateEvaluated)}[2].startswith("Phase 1's share")
        assert run.agents.calls("merger") == []
        assert run.agents.names[-2:] == ["data", "leakage-detection"], "the checks have one more share"


async def test_as_long_as_no_candidate_has_a_score_phase_1_goes_on(quick_path: Path) -> None:
    clock = Clock()
    with phase1_run(quick_path, clock) as run:

        async def much_later() -> str:
            await evaluated(run, 1)
            clock.now = 5 * SHARE
            return script(0.4, note="m1")

        candidates(run, m0=broken_script(note="m0"), m1=much_later, m2=never)
        run.agents.always("debugger", "no idea")
        result = await run_phase1(run.task, CONFIG)
        assert result.candidate_scores == [None, 0.4, None] and result.initial_score == 0.4


async def test_a_resumed_run_passes_over_what_its_results_rest_on(quick_path: Path) -> None:
    """It has time again, but what was paid for later was built on two candidates and no merge."""
    clock = Clock()
    with phase1_run(quick_path, clock) as run:
        first = await cut_after_two(run, clock)
    with phase1_run(quick_path) as run:
        again = await run_phase1(run.task, CONFIG)
        assert run.agents.log == [] and run.executor.scripts == []
    times: dict[str, Any] = {"candidate_solutions": {"__all__": {"created_at"}}, "initial_solution": {"created_at"}}
    assert again.model_dump(exclude=times) == first.model_dump(exclude=times)


@pytest.mark.parametrize(
    ("agent", "unit"), [("merger", "merge-1"), ("data", "data-use"), ("leakage-detection", "leakage")]
)
async def test_what_is_under_way_after_the_candidates_is_cut_off_with_s_0_as_it_was(
    quick_path: Path, agent: str, unit: str
) -> None:
    """The share is a tenth of a second, since the wait for its end is real; by the clock it ends in that call."""
    clock, shares = Clock(), PhaseTimeBudget(phase1=0.0001, phase2=0.5, phase3=0.3, finalization=0.1999)
    with phase1_run(quick_path, clock, shares) as run:
        candidates(run, m0=script(0.5, note="m0"), m1=script(0.6, note="m1"), m2=script(0.4, note="m2"))
        run.agents.always("merger", fenced(script(0.1)))
        before = run.agents._standing[agent]

        async def hang(call: ScriptedCall) -> Any:
            if f"/{unit}/" not in call.step:
                return before
            clock.now = 500
            return await never()

        run.agents.always(agent, hang)
        result = await asyncio.wait_for(run_phase1(run.task, CONFIG), 240)
        assert result.initial_score == 0.6 and len(result.merge_attempts) == (unit != "merge-1")
        assert passed(run)[0] == f"phase1/{unit}"


async def test_cancelled_from_outside_no_finished_candidate_is_lost(quick_path: Path) -> None:
    with phase1_run(quick_path) as run:
        assert partial_phase1() is None
        candidates(run, m0=script(0.5, note="m0"), m1=script(0.6, note="m1"), m2=never)
        phase = asyncio.create_task(run_phase1(run.task, CONFIG))
        await evaluated(run, 2)
        phase.cancel()
        with pytest.raises(asyncio.CancelledError):
            await phase
        assert sorted((e.index, e.score) for e in run.events(CandidateEvaluated)) == [(0, 0.5), (1, 0.6)]
        found = partial_phase1()
        assert found is not None and found.candidate_scores == [0.5, 0.6, None]
        assert found.initial_score == 0.6 and found.initial_solution.source_model == "m1"
