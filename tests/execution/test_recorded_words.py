"""The recorded way to run a script, in its details: what is said, passed on, cut off and charged to a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from mle_star.execution import LocalExecutor, evaluate_solution, execute_in_run
from mle_star.execution.artifacts import STATE
from mle_star.execution.environment import script_environment
from mle_star.execution.inputs import surroundings_digest
from mle_star.execution.outcome import HEADER
from mle_star.execution.recorded import KEPT_TEXT
from mle_star.models import EvaluationResult, ExecutionRawResult, Isolation, PipelineConfig, TaskDescription
from mle_star.models.phases import PhaseName
from mle_star.models.texts import digest_of, shorten
from mle_star.run.budget import Budget
from mle_star.run.context import ScriptRequest, scope
from mle_star.run.events import (
    AnyEvent,
    Event,
    Interpreter,
    Notice,
    RunResumed,
    ScriptFinished,
    ScriptPurpose,
    ScriptStarted,
)
from mle_star.run.limits import FIRST_SECONDS, keep_time_to_run_again, limit_in_run, share_in_run, suggested_seconds
from tests.execution.conftest import FixedExecutor, OpenRun, finished, scored, script
from tests.ledgers import best_score, ran, script_finished

CONFIG = PipelineConfig(time_limit_seconds=6000, num_parallel_solutions=2, outer_loop_steps=30)


async def test_the_same_script_runs_again_where_it_finds_other_packages(open_run: OpenRun) -> None:
    executor = FixedExecutor()
    for version in ("1.26", "1.26", "2.0"):
        with open_run(CONFIG, executor) as run:
            python = Interpreter(version="3.11.2", packages={"numpy": version})
            run.journal.record(RunResumed(spent_cost_usd=0, spent_seconds=0, interpreter=python))
            await evaluate_solution(scored(0.5), run.task, CONFIG)
    assert len(executor.requests) == 2


async def test_a_machine_without_a_sandbox_is_told_of_once(open_run: OpenRun) -> None:
    heard: list[AnyEvent] = []
    with open_run(CONFIG, LocalExecutor(CONFIG, sandbox="none")) as run:
        run.journal.subscribe(heard.append)
        for score in (0.1, 0.2):
            await evaluate_solution(scored(score), run.task, CONFIG)
    told = [event for event in heard if isinstance(event, Notice)]
    assert [(notice.level, notice.step) for notice in told] == [("warning", "run")]
    assert told[0].message.startswith("scripts run unconfined, without namespaces: ")


async def test_a_script_whose_machine_was_lost_is_told_of_and_remembered_with_where_it_ran(open_run: OpenRun) -> None:
    more: dict[str, Any] = {"stderr": "took long\n", "duration_seconds": 7.5, "machine": "node-7", "reruns": 1}
    isolation = Isolation(sandbox="bubblewrap+seccomp", network_blocked=True, limits=("memory",))
    executor, results = FixedExecutor(**more, isolation=isolation), list[EvaluationResult]()
    for _ in range(2):  # the second time it is only read back
        with open_run(CONFIG, executor) as run:
            results.append(await evaluate_solution(scored(0.5), run.task, CONFIG))
            told = [(event.level, event.message) for event in run.journal.events if isinstance(event, Notice)]
    assert told == [("warning", "a machine was lost while a script ran there: it ran again")]
    assert results[0] == results[1] and len(executor.requests) == 1
    seen = results[1].model_dump()
    assert {name: seen[name] for name in more} == more and results[1].isolation == isolation
    assert (results[1].score, results[1].stdout) == (0.5, "Final Validation Performance: 0.5\n")


async def test_a_script_that_changed_the_data_does_not_count(open_run: OpenRun) -> None:
    class Spoiler(FixedExecutor):
        async def run(self, request: ScriptRequest) -> ExecutionRawResult:
            (data / "train.csv").write_text("spoilt", encoding="utf-8")
            return await super().run(request)

    with open_run(CONFIG, Spoiler()) as run:
        data = Path(run.task.data_dir)
        result = await evaluate_solution(scored(0.5), run.task, CONFIG)
        (told,) = [event for event in run.journal.events if isinstance(event, Notice)]
        assert result.is_error and best_score(run) is None
    words = "the script changed the files in ./input, which are read-only; write to ./final or the current directory"
    assert result.error_traceback == f"{HEADER}\nPermissionError: {words}"
    assert (told.level, told.message) == ("error", f"{words}; restore {data} before you trust this run")


async def test_the_limit_of_a_study_follows_what_the_solution_takes(open_run: OpenRun) -> None:
    now = [0.0]
    with open_run(CONFIG, FixedExecutor(), budget=Budget(CONFIG, clock=lambda: now[0])) as run:
        run.budget.open_phase("phase2")
        with scope("phase2") as place:
            assert limit_in_run(place, "ablation") == pytest.approx(6000 / 60)
            ran(run, 0.5, 20)
            assert limit_in_run(place, "ablation") == pytest.approx(20 * 4 * 2)
            assert limit_in_run(place, "ablation", 7) == 7


def test_a_text_is_kept_whole_up_to_the_limit() -> None:
    whole = "x" * KEPT_TEXT
    assert shorten(whole, KEPT_TEXT) == whole
    half = "x" * (KEPT_TEXT // 2)
    assert shorten(whole + "x", KEPT_TEXT) == f"{half}\n[... 1 characters left out ...]\n{half}"


# --- whole: what an executor is asked for, what is recorded, what is said --------------------------------------


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
            script_finished(
                step="phase1/a", digest="", script=script, stdout="", stderr="", exit_code=0, seconds=7.0,
                is_error=False, score=0.5, isolation=Isolation(),
            )
        )  # fmt: skip
        keep_time_to_run_again(run, "phase3")
        assert run.budget.again_seconds == kept


@pytest.mark.parametrize("linked", [False, True])
async def test_a_run_of_a_script_is_asked_for_recorded_and_told_whole(
    linked: bool, open_run: OpenRun, task: TaskDescription, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"allow_outside_links": linked, "briefing": () if linked else CONFIG.briefing})
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "more.csv").write_text("id\n1\n", encoding="utf-8")
    if linked:
        (Path(task.data_dir) / "more").symlink_to(outside)
        (Path(task.data_dir) / ".hidden").write_text("no data", encoding="utf-8")  # so it cannot be shown as it is
    raw: dict[str, Any] = {"stderr": "odd\n", "duration_seconds": 2.5, "machine": "node-7"}
    isolation = Isolation(sandbox="namespaces")
    executor = FixedExecutor(**raw, isolation=isolation)
    content = scored(0.5).content
    with open_run(config, executor, budget=Budget(config, clock=lambda: 0.0)) as run, scope("phase1", "candidate-0"):
        work, path = run.work_dir, str(run.work_dir / "solution.py")
        share = share_in_run(run, 7.0)
        leaves: dict[ScriptPurpose, str] = {
            "solution": "script", "ablation": "ablation-script", "submission": "submission-script",
        }  # fmt: skip
        for purpose in leaves:
            await execute_in_run(scored(0.5), purpose=purpose, timeout_seconds=7)
            assert (work / STATE).is_dir() == (purpose == "submission" and not linked), "where fitted models are kept"
        expected = []
        for purpose, leaf in leaves.items():
            step = f"phase1/candidate-0/{leaf}"
            digest = digest_of(purpose, content, await surroundings_digest(run))
            expected += [
                ScriptStarted(
                    step=step, purpose=purpose, timeout_seconds=7.0, path=path, characters=len(content)
                ),
                script_finished(
                    step=step, digest=digest, surroundings=await surroundings_digest(run), purpose=purpose,
                    script=content, stdout=FixedExecutor().raw.stdout,
                    stderr="odd\n", exit_code=0, seconds=2.5, timeout_seconds=7.0, is_error=False,
                    score=0.5, isolation=isolation, machine="node-7",
                ),
            ]  # fmt: skip
        told = [event for event in run.journal.events if isinstance(event, (ScriptStarted, ScriptFinished))]
        assert [_timeless(event) for event in told] == [_timeless(event) for event in expected]
    assert executor.requests == [
        ScriptRequest(
            script_path=path, working_dir=str(work), timeout_seconds=7.0,
            env={**script_environment(config, None), "MLE_STAR_SECONDS": "7", "MLE_STAR_SHARE": f"{share:.1f}"},
            input_dir=None if linked else task.data_dir, readable=(str(outside),) if linked else (),
            hidden=(str((tmp_path / "run").resolve()),),
            output_file=str(tmp_path / "run" / "logs" / f"phase1.candidate-0.{leaf}.log"),
        )
        for leaf in leaves.values()
    ]  # fmt: skip


def _timeless(event: Event) -> dict[str, Any]:
    return event.model_dump(exclude={"at"})


async def test_a_timeout_a_crash_and_a_refusal_are_returned_whole(open_run: OpenRun) -> None:
    trace = f'{HEADER}\n  File "x", line 1, in <module>\nValueError: boom'
    results = []
    for executor, content in (
        (FixedExecutor("", timed_out=True, exit_code=-1, duration_seconds=8.25), "first"),
        (FixedExecutor("", exit_code=3, stderr=trace), "second"),
        (FixedExecutor(), "exit()"),
    ):
        with open_run(CONFIG, executor) as run:
            results.append(await execute_in_run(script(content), timeout_seconds=8))
            (event,) = [event for event in finished(run) if event.script == content]
            assert event.result.is_error and event.result.score is None
            assert (event.result.submission, event.result.answers) == (None, [])
    late, crashed, refused = results
    assert (late.timed_out, late.timeout_seconds, late.exit_code, late.score) == (True, 8.0, -1, None)
    assert (crashed.error_traceback, crashed.exit_code, crashed.duration_seconds) == (trace, 3, 1.0)
    reason = refused.stderr.partition("ValueError: ")[2]
    text = f"{HEADER}\nValueError: {reason}"
    assert reason and refused == EvaluationResult(
        stdout="", stderr=text, exit_code=-1, duration_seconds=0.0, is_error=True, error_traceback=text, refused=True
    )
