"""Evaluation as the pipeline has it: how long a script may take, and what the debugger is told when it fails."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mle_star.errors import BudgetExceeded
from mle_star.execution import (
    debug_text,
    evaluate_batch,
    evaluate_solution,
    evaluate_with_retry,
    exception_line,
    execute_in_run,
)
from mle_star.execution.outcome import HEADER
from mle_star.models import ExecutionRawResult, Isolation, PipelineConfig, SolutionPhase
from mle_star.models.phases import PhaseName
from mle_star.run.budget import Budget
from mle_star.run.context import ScriptRequest, path_context, scope
from mle_star.run.timing import FIRST_SECONDS, keep_time_to_run_again, limit_in_run, share_in_run, suggested_seconds
from tests.execution.conftest import FixedExecutor, OpenRun, Repairs, finished, scored, script
from tests.ledgers import best_score, ran, script_finished

CONFIG = PipelineConfig(time_limit_seconds=600, num_parallel_solutions=2, max_debug_attempts=2)
TRACE = f'{HEADER}\n  File "/w/solution.py", line 1, in <module>\n    boom()\nValueError: boom'
HANDLED = "import logging\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.exception('went on')\n"


class Turns(FixedExecutor):
    """Gives one raw result after the other."""

    def __init__(self, *raws: dict[str, Any]) -> None:
        super().__init__()
        self.raws = [FixedExecutor(**raw).raw for raw in raws]

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        self.requests.append(request)
        return self.raws[len(self.requests) - 1]


# --- time ---------------------------------------------------------------------------------------------------


async def test_a_limit_is_never_longer_than_the_time_that_is_left(open_run: OpenRun) -> None:
    executor = FixedExecutor()
    now = [0.0]
    config = CONFIG.model_copy(update={"time_limit_seconds": 100, "script_timeout_seconds": 40, "use_cache": False})
    with open_run(config, executor, budget=Budget(config, clock=lambda: now[0])):
        await execute_in_run(scored(0.1))
        await execute_in_run(scored(0.1), timeout_seconds=20)
        now[0] = 90.0
        await execute_in_run(scored(0.1), timeout_seconds=20)
        assert [request.timeout_seconds for request in executor.requests] == [40, 20, 10]
        now[0] = 101.0
        with pytest.raises(BudgetExceeded):
            await execute_in_run(scored(0.1))
    with open_run(config, executor, budget=Budget(config, clock=lambda: 200.0, spent_seconds=150)):
        await execute_in_run(scored(0.1))  # replaying costs no time
    assert len(executor.requests) == 3


async def test_limits_follow_what_was_measured_on_the_path(open_run: OpenRun) -> None:
    executor, now = FixedExecutor(), [0.0]
    config = PipelineConfig(time_limit_seconds=10_000, use_cache=False)
    with open_run(config, executor, budget=Budget(config, clock=lambda: now[0])) as run:
        with scope("phase1") as place:
            run.budget.open_phase("phase1")
            assert limit_in_run(place) == pytest.approx(1000 / 2)  # two rounds of candidates, nothing is known of them
            ran(place, 0.5, 4)
            ran(place, 0.4, 300)  # a worse one
            assert limit_in_run(place) == pytest.approx(1000 / 5)  # two rounds and three merges
            assert share_in_run(place, 500) == pytest.approx(1000 / 5)  # what it is told to take, at most its limit
            assert share_in_run(place, 100) == 100 and share_in_run(place, 500, views=4) == pytest.approx(1000 / 20)
            ran(place, 0.5, 30)
            assert limit_in_run(place) == 300
        run.budget.open_phase("phase2")
        with scope("phase2"), path_context(1, run.work_dir) as path:
            ran(path, 0.45, 1)  # worse than what the path began with
            assert limit_in_run(path) == pytest.approx(9_000 * 0.65 / 0.8 / 20)
            ran(path, 0.6, 60)
            assert limit_in_run(path) == 600
        now[0] = 7000
        run.budget.open_phase("phase3")
        with scope("phase3") as ensemble:
            assert ensemble.solution_seconds == 30 + 60  # one path never got beyond the initial solution
            assert limit_in_run(ensemble) == 900


async def test_the_limit_of_a_study_follows_what_the_solution_takes(open_run: OpenRun) -> None:
    config = PipelineConfig(time_limit_seconds=6000, num_parallel_solutions=2, outer_loop_steps=30)
    with open_run(config, FixedExecutor(), budget=Budget(config, clock=lambda: 0.0)) as run:
        run.budget.open_phase("phase2")
        with scope("phase2") as place:
            assert limit_in_run(place, "ablation") == pytest.approx(6000 / 60)
            ran(run, 0.5, 20)
            assert limit_in_run(place, "ablation") == pytest.approx(20 * 4 * 2)
            assert limit_in_run(place, "ablation", 7) == 7


@pytest.mark.parametrize(("limit", "told"), [(100, FIRST_SECONDS), (1000, 20.0)])
def test_the_first_candidate_is_told_a_short_share_and_the_others_their_own(
    open_run: OpenRun, limit: int, told: float
) -> None:
    config = PipelineConfig(time_limit_seconds=limit, num_retrieved_models=2)
    with open_run(config, FixedExecutor(), budget=Budget(config, clock=lambda: 0.0)):
        with scope("phase1", "candidate-0") as first:
            assert suggested_seconds(first, 600.0) == told < share_in_run(first, 600.0)
            assert suggested_seconds(first, 2.0) == share_in_run(first, 2.0)
        with scope("phase1", "candidate-1") as second:
            assert suggested_seconds(second, 600.0) == share_in_run(second, 600.0)
        with scope("finalization") as last:  # what is submitted has as long as what was scored, and what is left
            assert suggested_seconds(last, 1000.0) == 800.0
            last.shared.last_scripts = 2
            assert suggested_seconds(last, 1000.0) == 400.0, "and the other as much"
            last.shared.last_scripts = 1
            with scope("phase2", "path-0") as path:
                ran(path, 0.5, 900.0)
            assert [suggested_seconds(last, limit) for limit in (1000.0, 500.0)] == [900.0, 500.0]


@pytest.mark.parametrize(("seconds", "told"), [(100, 5.0), (400, 10.0)])
def test_a_script_is_told_more_than_its_even_share_where_it_would_mostly_start_up(
    open_run: OpenRun, seconds: int, told: float
) -> None:
    config = PipelineConfig(time_limit_seconds=seconds, inner_loop_steps=50)
    now = [0.0]
    budget = Budget(config, clock=lambda: now[0])
    with open_run(config, FixedExecutor(), budget=budget):
        phases: list[tuple[PhaseName, float]] = [("phase2", told), ("phase3", 2 * told)]
        for phase, least in phases:
            now[0] = 0.75 * seconds if phase == "phase3" else 0.0
            with scope(phase) as place:
                budget.open_phase(phase)
                assert share_in_run(place, 600.0, 9) < suggested_seconds(place, 600.0, 9) == least
                assert suggested_seconds(place, 4.0, 9) == 2.0, "half of its limit at most"


@pytest.mark.parametrize(("script", "kept"), [("print(1)", 1.5 * 7), ('os.environ["MLE_STAR_SHARE"]', 240.0)])
def test_scripts_that_take_the_time_they_are_told_leave_more_of_it_for_the_last(
    open_run: OpenRun, script: str, kept: float
) -> None:
    with open_run(CONFIG, FixedExecutor()) as run:
        run.shared.holdout = cast(Any, object())
        run.record(
            script_finished(step="phase1/a", digest="", script=script, seconds=7.0, score=0.5, isolation=Isolation())
        )
        keep_time_to_run_again(run, "phase3")
        assert run.budget.again_seconds == kept


# --- what a run is scored by --------------------------------------------------------------------------------


@pytest.mark.req("REQ-EX-016")
@pytest.mark.parametrize("fields", [{}, {"exit_code": 1, "stderr": TRACE}, {"exit_code": -1, "timed_out": True}])
@pytest.mark.parametrize("known", [{"score": 0.25, "is_executable": True}, {"score": None, "is_executable": False}])
async def test_the_given_script_is_left_as_it_is(
    fields: dict[str, Any], known: dict[str, Any], open_run: OpenRun
) -> None:
    given = scored(0.5).model_copy(update=known)
    before, works = given.model_copy(deep=True), not fields
    with open_run(CONFIG, FixedExecutor(**fields)) as run:
        result = await evaluate_solution(given, run.task, CONFIG)
        await evaluate_batch([given], run.task, CONFIG)
        returned, _ = await evaluate_with_retry(given, run.task, CONFIG, Repairs(), 0)
    assert (result.score, result.is_error, given) == (0.5, not works, before)
    assert returned is not given and (returned.score, returned.is_executable) == (0.5 if works else None, works)


@pytest.mark.req("REQ-EX-021")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Final Validation Performance: 85%", "the line says 85%: print a plain number"),
        ("Final Validation Performance: 0,85", "the line says 0,85: print a plain number"),
        ("Final Validation Performance: 1,234.56", "the line says 1,234.56: print a plain number"),
        ("Final Validation Performance:", "the line holds no number: print it on the same line"),
        ("Final Validation Performance:\n100", "the line holds no number: print it on the same line"),
        ("Final Validation Performance: 85", "the line says 85, but accuracy is at least 0 and at most 1"),
        ("Final Validation Performance: 1e308", "the line says 1e308, but accuracy is at least 0 and at most 1"),
        ("done", "without printing its score line"),
    ],
)
async def test_a_score_line_that_cannot_be_used_goes_to_the_debugger_with_the_reason(
    line: str, said: str, open_run: OpenRun
) -> None:
    # the reason must survive the journal, which keeps only the ends of a long output
    far = "x" * 100_000
    odd = {"stdout": f"{far}\n{line}\n{far}\n"}
    repairs, final = Repairs(scored(0.5)), script("last").model_copy(update={"phase": SolutionPhase.final})
    with open_run(CONFIG, Turns(odd, {}, odd)) as run:
        fixed, _ = await evaluate_with_retry(script("first"), run.task, CONFIG, repairs)
        assert fixed.score == 0.5 and best_score(run) == 0.5
        assert finished(run)[0].result.score is None
        await evaluate_with_retry(final, run.task, CONFIG, repairs)
    assert said in exception_line(repairs.told[0])
    assert len(repairs.told) == 1, "a final script need not print any"


# --- what the debugger is told ------------------------------------------------------------------------------


@pytest.mark.req("REQ-EX-021", "REQ-SF-003")
async def test_after_a_handled_exception_the_debugger_is_told_what_really_ended_the_script(open_run: OpenRun) -> None:
    with open_run(CONFIG) as run:
        repairs = Repairs(scored(0.5))
        aborts = script(f"{HANDLED}import os, signal\nos.kill(os.getpid(), signal.SIGABRT)")
        fixed, _ = await evaluate_with_retry(aborts, run.task, CONFIG, repairs)
        quits = await evaluate_solution(script(f"{HANDLED}raise SystemExit(3)"), run.task, CONFIG)
        for seconds in (3, 100):  # the second where three are too few to log anything in
            slow = script(f"{HANDLED}import time\ntime.sleep(600)")
            late = await evaluate_solution(slow, run.task, CONFIG, seconds)
            if late.stderr:
                break
    assert fixed.score == 0.5
    repairs.told.append(debug_text(late))
    killed, stopped = map(exception_line, repairs.told)
    assert killed.startswith("RuntimeError: the script was killed by SIGABRT")
    assert stopped.startswith(f"TimeoutError: the script was stopped at the time limit of {seconds} seconds")
    assert "exit code 3" in exception_line(debug_text(quits))
    assert all("ZeroDivisionError" in told for told in repairs.told), "as context it may stay"


@pytest.mark.req("REQ-EX-009")
@pytest.mark.parametrize(
    ("end", "said"),
    [("os.kill(os.getpid(), signal.SIGHUP)", "killed by SIGHUP"), ("raise SystemExit(137)", "exit code 137")],
)
async def test_a_hangup_is_no_time_limit_and_137_not_lack_of_memory_alone(
    end: str, said: str, open_run: OpenRun
) -> None:
    with open_run(CONFIG) as run:
        result = await evaluate_solution(script(f"import os, signal\n{end}"), run.task, CONFIG)
        assert (result.is_error, result.timed_out, finished(run)[0].result.timed_out) == (True, False, False)
    assert said in exception_line(debug_text(result)) and "time limit" not in debug_text(result)


async def test_a_timeout_is_told_with_its_limit_also_when_it_is_replayed(open_run: OpenRun) -> None:
    config = CONFIG.model_copy(update={"script_timeout_seconds": 1, "max_debug_attempts": 1})
    repairs, executor = Repairs(None), FixedExecutor("", exit_code=-1, timed_out=True)
    for again in (config, config.model_copy(update={"script_timeout_seconds": 50})):
        with open_run(again, executor) as run:
            _, result = await evaluate_with_retry(script("slow"), run.task, again, repairs)
            assert (result.timeout_seconds, result.is_error) == (1, True)
    assert "time limit of 1 seconds" in repairs.told[0] and repairs.told[0] == repairs.told[1]
    assert len(executor.requests) == 1


@pytest.mark.req("REQ-EX-021")
async def test_a_message_of_many_lines_reaches_the_debugger_whole_but_bounded(open_run: OpenRun) -> None:
    message = "first line\\n\\nsecond paragraph, and its advice: use dropna()"
    with open_run(CONFIG) as run:
        short = await evaluate_solution(script(f'raise ValueError("{message}")'), run.task, CONFIG)
        many = await evaluate_solution(script("raise ValueError('\\n'.join(map(str, range(9999))))"), run.task, CONFIG)
    told = debug_text(short)
    assert told.endswith("ValueError: first line\n\nsecond paragraph, and its advice: use dropna()")
    assert exception_line(told) == "ValueError: first line"
    assert len(debug_text(many)) < 6000 and "\n9998" in debug_text(many)
