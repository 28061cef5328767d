"""Scripts as steps of a run: recorded, replayed, never run twice for nothing, their best submission saved."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from mle_star.data.place import DataFolder
from mle_star.errors import BudgetExceeded
from mle_star.execution import (
    LocalExecutor,
    evaluate_solution,
    evaluate_with_retry,
    execute_in_run,
    prepare_path_directory,
    verify_submission,
)
from mle_star.models import (
    EvaluationResult,
    ExecutionRawResult,
    Isolation,
    MetricDirection,
    PipelineConfig,
    SolutionPhase,
    SolutionScript,
    TaskDescription,
)
from mle_star.run.budget import Budget
from mle_star.run.context import RunContext, ScriptRequest, enter_run, path_context, scope
from mle_star.run.events import BestImproved, ScriptStarted, SubmissionKept
from mle_star.run.limits import limit_in_run, share_in_run
from tests.execution.conftest import FixedExecutor, OpenRun, finished, scored, script
from tests.ledgers import best_score, ran
from tests.ledgers import kept as kept_submission
from tests.pipeline.clock import in_its_own_time

GOOD = "id,label\\n" + "".join(f"{number},1\\n" for number in range(100, 120))
CONFIG = PipelineConfig(time_limit_seconds=600, num_parallel_solutions=2)


def submitting(score: float, table: str = GOOD) -> SolutionScript:
    return scored(score, f"open('final/submission.csv', 'w').write('{table}')")


class CountingExecutor:
    """The real executor, with a list of what it was asked to run."""

    def __init__(self, inner: LocalExecutor | None = None) -> None:
        self.inner, self.requests = inner or LocalExecutor(CONFIG), list[ScriptRequest]()

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        self.requests.append(request)
        return await self.inner.run(request)


# --- recording and replay -----------------------------------------------------------------------------------


async def test_a_script_is_recorded_with_all_that_matters(open_run: OpenRun) -> None:
    with open_run(CONFIG) as run, scope("phase1"):
        result = await evaluate_solution(submitting(0.5), run.task, CONFIG, 200)
        (event,) = finished(run)
        started = [entry for entry in run.journal.events if isinstance(entry, ScriptStarted)]
        assert [entry.step for entry in started] == ["phase1/script"] == [event.step]
        assert started[0].timeout_seconds == 200
        assert (event.result.score, event.result.exit_code) == (0.5, 0)
        assert not event.result.is_error and not event.result.cached
        assert event.script == submitting(0.5).content
        assert event.result.isolation == result.isolation != Isolation()
        assert event.result.submission is not None and (run.run_dir / event.result.submission).is_file()
        assert (run.run_dir / "logs" / "phase1.script.log").read_text() == result.stdout


async def test_a_resumed_run_replays_instead_of_running(open_run: OpenRun) -> None:
    async def work(executor: CountingExecutor) -> list[object]:
        with open_run(CONFIG, executor) as run, scope("phase1"):
            results = [await execute_in_run(submitting(0.5)), await execute_in_run(script("1 / 0"))]
            results.append(await execute_in_run(script("print('Ablation a: 1')"), purpose="ablation"))
            return [*results, best_score(run), kept_submission(run), len(run.journal.events)]

    first, second = CountingExecutor(), CountingExecutor()
    seen = await work(first)
    assert len(first.requests) == 3
    assert await work(second) == seen
    assert second.requests == []


async def test_a_replayed_script_s_submission_lies_where_it_was_left(open_run: OpenRun) -> None:
    with open_run(CONFIG) as run:
        await execute_in_run(submitting(0.5))
    executor = CountingExecutor()
    with open_run(CONFIG, executor) as run:
        (run.work_dir / "final" / "submission.csv").unlink()
        await execute_in_run(submitting(0.5))
        assert verify_submission(str(run.work_dir)) and not executor.requests
        await execute_in_run(scored(0.4))
        assert not verify_submission(str(run.work_dir))
        for kept in (run.run_dir / "artifacts").iterdir():
            kept.unlink()
    executor = CountingExecutor()
    with open_run(CONFIG, executor) as run:  # what was lost is made again
        await execute_in_run(submitting(0.5))
        assert len(executor.requests) == 1 and verify_submission(str(run.work_dir))


async def test_changed_text_data_seed_or_purpose_is_other_work(open_run: OpenRun, task: TaskDescription) -> None:
    executor = FixedExecutor()
    with open_run(CONFIG, executor):
        await execute_in_run(scored(0.5))
        await execute_in_run(scored(0.5), purpose="ablation")
    assert len(executor.requests) == 2
    with open_run(CONFIG.model_copy(update={"seed": 7}), executor):
        await execute_in_run(scored(0.5))
    assert len(executor.requests) == 3
    (Path(task.data_dir) / "train.csv").write_text("other data")
    with open_run(CONFIG, executor):
        await execute_in_run(scored(0.5))
    assert len(executor.requests) == 4


async def test_output_is_trimmed_alike_for_fresh_and_replayed_results(open_run: OpenRun) -> None:
    executor = FixedExecutor("x" * 10**6 + "\nFinal Validation Performance: 0.5\n")
    with open_run(CONFIG, executor):
        fresh = await execute_in_run(scored(0.5))
    with open_run(CONFIG, executor):
        replayed = await execute_in_run(scored(0.5))
    assert fresh == replayed and fresh.score == 0.5
    assert len(fresh.stdout) < 70_000 and "characters left out" in fresh.stdout


# --- the cache ----------------------------------------------------------------------------------------------


async def test_the_same_work_is_not_done_twice_and_a_hit_is_visible(open_run: OpenRun) -> None:
    executor = CountingExecutor()
    with open_run(CONFIG, executor) as run:
        first = await execute_in_run(submitting(0.5))
        await execute_in_run(scored(0.4))
        second = await execute_in_run(submitting(0.5))
        assert len(executor.requests) == 2
        assert (first.cached, second.cached) == (False, True)
        assert (second.score, second.stdout, second.duration_seconds) == (0.5, first.stdout, 0.0)
        assert verify_submission(str(run.work_dir))
        assert [event.result.cached for event in finished(run)] == [False, False, True]
        assert sorted(finished(run), key=lambda event: event.at) == finished(run)  # taken over now, not back then
    with open_run(CONFIG, executor):  # an earlier process's work counts, too
        with scope("elsewhere"):
            assert (await execute_in_run(scored(0.4))).cached
        assert len(executor.requests) == 2


async def on_paths(run: RunContext, *scripts: SolutionScript) -> list[EvaluationResult]:
    """Run each script on a path of its own, all at once."""

    async def on_path(index: int) -> EvaluationResult:
        with path_context(index, Path(prepare_path_directory(run.run_dir / "work", f"path-{index}"))):
            return await execute_in_run(scripts[index])

    return await asyncio.gather(*map(on_path, range(len(scripts))))


async def test_the_same_work_asked_for_at_once_is_done_once(open_run: OpenRun) -> None:
    executor = FixedExecutor(together=True)
    with open_run(CONFIG.model_copy(update={"max_concurrent_scripts": 3}), executor) as run:
        results = await on_paths(run, scored(0.5), scored(0.5), scored(0.4), scored(0.5))
    assert [result.cached for result in results] == [False, True, False, True]
    assert len(executor.requests) == 2 and executor.most == 2


@in_its_own_time
async def test_who_waits_for_the_same_work_does_it_when_the_first_is_cancelled(open_run: OpenRun) -> None:
    executor = FixedExecutor(seconds=0.2)
    with open_run(CONFIG, executor):
        first, second, third = (asyncio.create_task(execute_in_run(scored(0.5))) for _ in range(3))
        while not executor.requests:
            await asyncio.sleep(0.01)
        first.cancel()
        second.cancel()
        assert not (await asyncio.wait_for(third, 120)).cached
    assert first.cancelled() and second.cancelled() and len(executor.requests) == 2


async def test_a_hit_leaves_a_directory_alone_while_a_script_runs_there(open_run: OpenRun) -> None:
    executor = CountingExecutor()
    with open_run(CONFIG, executor) as run:
        await execute_in_run(submitting(0.5))
        slow = scored(0.6, "import time", "open('mine', 'w').close()", "time.sleep(1)", "open('mine').close()")
        running = asyncio.create_task(execute_in_run(slow))
        while not (run.work_dir / "mine").exists():
            await asyncio.sleep(0.01)
        assert (await execute_in_run(submitting(0.5))).cached
        assert (await running).score == 0.6 and verify_submission(str(run.work_dir))


@pytest.mark.parametrize("fields", [{"timed_out": True, "exit_code": -1}, {"exit_code": -9}])
async def test_a_timeout_or_a_kill_is_tried_again(fields: dict[str, Any], open_run: OpenRun) -> None:
    executor = FixedExecutor(**fields)
    with open_run(CONFIG, executor):
        for _ in range(2):
            await execute_in_run(scored(0.5))
    assert len(executor.requests) == 2


def test_the_data_digest_sees_names_and_contents_also_in_the_middle_of_large_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("1")
    seen = {DataFolder(tmp_path).digest()}
    assert DataFolder(tmp_path).digest() in seen
    (tmp_path / "sub" / "a").write_text("2")
    seen.add(DataFolder(tmp_path).digest())
    (tmp_path / "sub" / "a").rename(tmp_path / "sub" / "b")
    seen.add(DataFolder(tmp_path).digest())
    with (tmp_path / "large").open("wb") as file:
        file.truncate(17 << 20)
    seen.add(DataFolder(tmp_path).digest())
    with (tmp_path / "large").open("r+b") as file:
        file.seek(9 << 20)
        file.write(b"x")
    seen.add(DataFolder(tmp_path).digest())
    assert len(seen) == 5
    assert DataFolder(tmp_path / "nowhere").digest()


# --- the best submission ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("direction", "kept"), [(MetricDirection.maximize, 0.7), (MetricDirection.minimize, 0.3)])
async def test_the_best_valid_submission_is_put_aside(
    direction: MetricDirection, kept: float, open_run: OpenRun
) -> None:
    with open_run(CONFIG) as opened:
        run = dataclasses.replace(opened, task=opened.task.model_copy(update={"metric_direction": direction}))
        with enter_run(run):
            for score in (0.5, 0.7, 0.3, 0.6):
                await execute_in_run(submitting(score))
        final = run.run_dir / "final"
        assert (final / "best_solution.py").read_text() == submitting(kept).content
        assert (final / "best_submission.csv").read_text() == GOOD.replace("\\n", "\n")
        events = [event for event in run.journal.events if isinstance(event, SubmissionKept)]
        assert [event.score for event in events] == [0.5, kept]
        assert (events[-1].rows, events[-1].path) == (20, "final/best_submission.csv")
        best = [event.score for event in run.journal.events if isinstance(event, BestImproved)]
        assert best == [0.5, kept] and best_score(run) == kept


@pytest.mark.parametrize("waits", [(0.0, 0.5), (0.5, 0.0)])
async def test_of_equal_submissions_the_first_path_s_is_put_aside_whoever_ends_first(
    waits: tuple[float, float], open_run: OpenRun
) -> None:
    tables = [GOOD, GOOD.replace(",1", ",0")]
    scripts = [
        scored(0.5, f"import time\ntime.sleep({wait})", f"open('final/submission.csv', 'w').write('{table}')")
        for wait, table in zip(waits, tables, strict=True)
    ]
    with open_run(CONFIG) as run:
        await on_paths(run, *scripts)
        assert (run.run_dir / "final" / "best_solution.py").read_text() == scripts[0].content
        assert (run.run_dir / "final" / "best_submission.csv").read_text() == tables[0].replace("\\n", "\n")


async def test_a_submission_that_does_not_fit_the_sample_is_not_put_aside(open_run: OpenRun) -> None:
    with open_run(CONFIG) as run:
        await execute_in_run(submitting(0.9, "id,wrong\\n1,1\\n"))
        assert (best_score(run), kept_submission(run)) == (0.9, None)
        await execute_in_run(submitting(0.5))
        kept: tuple[float | None, str] | None = kept_submission(run)
        assert kept is not None and kept[0] == 0.5
        await execute_in_run(script(submitting(0.95).content + "\n1 / 0"))
        await execute_in_run(submitting(0.99), purpose="ablation")
        assert (best_score(run), kept_submission(run)) == (0.9, kept)
        assert finished(run)[-1].result.submission is None, "a study hands nothing over"


async def test_a_final_script_is_no_candidate_for_the_best(open_run: OpenRun) -> None:
    """It may train on everything: what it prints was not measured on unseen rows."""
    with open_run(CONFIG) as run:
        final = submitting(0.9).model_copy(update={"phase": SolutionPhase.final})
        result = await evaluate_solution(final, run.task, CONFIG)
        assert result.score == 0.9 and verify_submission(str(run.work_dir))
        assert (kept_submission(run), best_score(run)) == (None, None)
        assert [event.purpose for event in finished(run)] == ["submission"]


# --- limits, slots, places ----------------------------------------------------------------------------------


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
            assert share_in_run(place, 500) == pytest.approx(
                1000 / 5
            )  # what a script is told to take, at most its limit
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


async def test_a_timeout_is_told_with_its_limit_also_when_it_is_replayed(open_run: OpenRun) -> None:
    told: list[str] = []

    async def repair(solution: SolutionScript, text: str) -> None:
        told.append(text)

    config = CONFIG.model_copy(update={"script_timeout_seconds": 1, "max_debug_attempts": 1})
    for again in (config, config.model_copy(update={"script_timeout_seconds": 50})):
        with open_run(again) as run:
            _, result = await evaluate_with_retry(script("import time\ntime.sleep(30)"), run.task, again, repair)
            assert (result.timeout_seconds, result.is_error) == (1, True)
    assert "time limit of 1 seconds" in told[0] and told[0] == told[1]


async def test_scripts_wait_for_a_slot_and_never_share_a_directory(open_run: OpenRun) -> None:
    executor = FixedExecutor(seconds=0.05, together=True)

    async def on_path(index: int, run: RunContext) -> None:
        with path_context(index, Path(prepare_path_directory(run.run_dir / "work", f"path-{index}"))):
            await asyncio.gather(*(execute_in_run(scored(index, f"# {number}")) for number in range(2)))

    with open_run(CONFIG.model_copy(update={"max_concurrent_scripts": 2}), executor) as run:
        await asyncio.gather(*(on_path(index, run) for index in range(3)))
    assert len(executor.requests) == 6 and executor.most == 2


@pytest.mark.req("REQ-EX-004", "REQ-EX-015")
async def test_a_script_sees_its_own_gpus_seed_and_data_and_no_credential(
    open_run: OpenRun, task: TaskDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NVIDIA_API_KEY", "DB_PASSWORD", "CUDA_TOKEN"):
        monkeypatch.setenv(name, "hush")
    executor = FixedExecutor(together=True)
    with open_run(CONFIG, executor) as run:
        run.shared.scripts.gpus = ["0", "1", "GPU-2", "GPU-3"]
        await on_paths(run, scored(0), scored(1))
    seen = {request.env["CUDA_VISIBLE_DEVICES"] for request in executor.requests}
    assert seen == {"0,GPU-2", "1,GPU-3"}
    assert all("hush" not in request.env.values() for request in executor.requests)
    request = executor.requests[0]
    assert (request.input_dir, request.env["MLE_STAR_SEED"]) == (str(Path(task.data_dir).resolve()), "42")


async def test_with_too_few_gpus_scripts_take_turns(open_run: OpenRun) -> None:
    executor = FixedExecutor(seconds=0.05)
    with open_run(CONFIG, executor) as run:
        run.shared.scripts.gpus = ["0"]
        await on_paths(run, scored(0), scored(1))
    assert executor.most == 1 and "CUDA_VISIBLE_DEVICES" not in executor.requests[0].env


async def test_inside_a_run_a_missing_score_line_goes_to_the_debugger(open_run: OpenRun) -> None:
    told: list[str] = []

    async def repair(solution: SolutionScript, text: str) -> SolutionScript:
        told.append(text)
        return scored(0.5)

    with open_run(CONFIG) as run:
        fixed, _ = await evaluate_with_retry(script("print('done')"), run.task, CONFIG, repair)
        assert fixed.score == 0.5 and "without printing its score line" in told[0]
        await evaluate_with_retry(
            scored("85%").model_copy(update={"phase": SolutionPhase.final}), run.task, CONFIG, repair
        )
        assert len(told) == 1


async def test_a_refused_script_is_recorded_without_being_run(open_run: OpenRun) -> None:
    executor = FixedExecutor()
    with open_run(CONFIG, executor) as run:
        result = await execute_in_run(script("exit()"))
        assert result.is_error and result.refused and result.exit_code == -1 and not executor.requests
        assert finished(run)[0].result.error_traceback == result.error_traceback == result.stderr


async def test_a_cancelled_script_leaves_no_record_and_frees_its_slot(open_run: OpenRun) -> None:
    with open_run(CONFIG) as run:
        task = asyncio.create_task(execute_in_run(script("import time\ntime.sleep(600)"), timeout_seconds=600))
        while not any(isinstance(event, ScriptStarted) for event in run.journal.events):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 240
        assert finished(run) == []
        assert (await execute_in_run(scored(0.5))).score == 0.5
