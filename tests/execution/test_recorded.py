"""Scripts as steps of a run: recorded, replayed, never run twice for nothing, their best submission saved."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

from mle_star import execution as ex
from mle_star import models as m
from mle_star.data.place import DataFolder
from mle_star.errors import BudgetExceeded
from mle_star.execution.artifacts import STATE, in_order
from mle_star.execution.environment import script_environment
from mle_star.execution.outcome import HEADER
from mle_star.execution.recorded import KEPT_TEXT, execute_in_run
from mle_star.execution.scoring import surroundings_digest
from mle_star.models.enums import PhaseName
from mle_star.models.texts import digest_of
from mle_star.run import events as ev
from mle_star.run.budget import Budget, Spent
from mle_star.run.context import RunContext, ScriptRequest, enter_run, path_context, scope
from mle_star.run.timing import FIRST_SECONDS, limit_in_run, plan_time, share_in_run, suggested_seconds
from tests.conftest import Patch, best_score, ran, script_finished
from tests.conftest import kept as kept_submission
from tests.execution.conftest import FixedExecutor, OpenRun, Repairs, finished, scored, script
from tests.pipeline.clock import in_its_own_time

GOOD = "id,label\n" + "".join(f"{number},1\n" for number in range(100, 120))
CONFIG = m.PipelineConfig(time_limit_seconds=600, num_parallel_solutions=2, max_debug_attempts=2)
BOXED = m.Isolation(sandbox="bubblewrap+seccomp", network_blocked=True, limits=("memory",))


def submitting(score: float, table: str = GOOD) -> m.SolutionScript:
    """What `Submitting` takes for a script that prints this score and writes this submission."""
    return script(f"# {score} #{table}")


class Submitting(FixedExecutor):
    """Does what its scripts say of themselves."""

    async def run(self, request: ScriptRequest) -> m.ExecutionRawResult:
        self.requests.append(request)
        _, score, table = Path(request.script_path).read_text(encoding="utf-8").split("#", 2)
        Path(request.working_dir, "final", "submission.csv").write_text(table, encoding="utf-8")
        return self.raw.model_copy(update={"stdout": f"Final Validation Performance: {score}\n"})


def notices(run: RunContext) -> list[tuple[str, str, str]]:
    return [(event.step, event.level, event.message) for event in run.journal.events if isinstance(event, ev.Notice)]


@pytest.mark.parametrize("linked", [False, True])
async def test_a_script_is_told_whole(linked: bool, open_run: OpenRun, task: m.TaskDescription, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"allow_outside_links": linked, "briefing": () if linked else CONFIG.briefing})
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "more.csv").write_text("id\n1\n", encoding="utf-8")
    if linked:
        (Path(task.data_dir) / "more").symlink_to(outside)
        (Path(task.data_dir) / ".hidden").write_text("no data", encoding="utf-8")  # so it cannot be shown as it is
    isolation = m.Isolation(sandbox="namespaces")
    executor = FixedExecutor(stderr="odd\n", duration_seconds=2.5, machine="node-7", isolation=isolation)
    content = scored(0.5).content
    with open_run(config, executor, budget=Budget(config, clock=lambda: 0.0)) as run, scope("phase1", "candidate-0"):
        work, path = run.work_dir, str(run.work_dir / "solution.py")
        share = share_in_run(run, 7.0)
        leaves: dict[ev.ScriptPurpose, str] = {
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
                ev.ScriptStarted(step=step, purpose=purpose, timeout_seconds=7.0, path=path, characters=len(content)),
                script_finished(
                    step=step, digest=digest, surroundings=await surroundings_digest(run), purpose=purpose,
                    script=content, stdout=FixedExecutor().raw.stdout,
                    stderr="odd\n", exit_code=0, seconds=2.5, timeout_seconds=7.0, is_error=False,
                    score=0.5, isolation=isolation, machine="node-7",
                ),
            ]  # fmt: skip
        found = [event for event in run.journal.events if isinstance(event, (ev.ScriptStarted, ev.ScriptFinished))]
        seen, wanted = ([one.model_dump(exclude={"at"}) for one in some] for some in (found, expected))
        assert seen == wanted
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


HALF, LINE = KEPT_TEXT // 2, "Final Validation Performance: 0.5\n"
WHOLE = f"{'x' * (KEPT_TEXT - len(LINE) - 1)}\n{LINE}"
TRACE = f'{HEADER}\n  File "x", line 1, in <module>\nValueError: boom'
CUT = f"{WHOLE[:HALF]}\n[... 1 characters left out ...]\n{WHOLE[HALF:]}"
LOST = "a machine was lost while a script ran there: it ran again"


@pytest.mark.parametrize(
    ("fields", "stdout"),
    [
        ({"stdout": WHOLE}, WHOLE),
        (dict.fromkeys(("stdout", "stderr"), f"x{WHOLE}"), CUT),
        ({"stdout": "", "exit_code": -1, "timed_out": True, "duration_seconds": 8.25}, ""),
        ({"stdout": "", "exit_code": 3, "stderr": TRACE}, ""),
        ({"stderr": "took long\n", "duration_seconds": 7.5, "machine": "m-7", "reruns": 1, "isolation": BOXED}, LINE),
    ],
    ids=["whole", "cut", "late", "crashed", "lost"],
)
async def test_a_replay_returns_what_the_fresh_run_did(fields: dict[str, Any], stdout: str, open_run: OpenRun) -> None:
    executor, results = FixedExecutor(**fields), list[m.EvaluationResult]()
    for seconds in (1, 50):  # the second time it is only read back, with its own limit
        with open_run(CONFIG.model_copy(update={"script_timeout_seconds": seconds}), executor) as run:
            results.append(await execute_in_run(scored(0.5)))
            (event,) = finished(run)
            assert event.result == results[-1] and (event.result.submission, event.result.answers) == (None, [])
            assert notices(run) == ([("", "warning", LOST)] if "reruns" in fields else [])
    fresh, replayed = results
    assert fresh == replayed and len(executor.requests) == 1
    assert (fresh.stdout, fresh.score, fresh.timeout_seconds) == (stdout, 0.5 if stdout else None, 1)
    kept = {"stdout": stdout, **({"stderr": CUT} if stdout == CUT else {})}
    assert {name: getattr(fresh, name) for name in {**fields, **kept}} == {**fields, **kept}
    assert (fresh.is_error, fresh.error_traceback) == (not stdout, fields.get("stderr") if not stdout else None)
    assert fresh.timed_out == ("time limit of 1 seconds" in ex.debug_text(replayed))


async def test_a_script_that_is_refused_does_not_run_and_is_told_whole(open_run: OpenRun) -> None:
    executor = FixedExecutor()
    with open_run(CONFIG, executor) as run:
        refused = await execute_in_run(script("exit()"))
        assert finished(run)[0].result == refused
    text = f"{HEADER}\nValueError: {refused.stderr.partition('ValueError: ')[2]}"
    fields: dict[str, Any] = {"stdout": "", "stderr": text, "error_traceback": text, "is_error": True, "refused": True}
    assert refused == m.EvaluationResult(**fields, exit_code=-1, duration_seconds=0.0)
    assert not executor.requests and "exit()" in text


async def test_a_replayed_script_s_submission_lies_where_it_was_left(open_run: OpenRun) -> None:
    executor, seen = Submitting(), list[object]()
    for _ in range(2):
        with open_run(CONFIG, executor) as run:
            (run.work_dir / "final" / "submission.csv").unlink(missing_ok=True)
            await execute_in_run(submitting(0.5))
            assert ex.verify_submission(str(run.work_dir)) and len(executor.requests) == 1
            seen.append([best_score(run), kept_submission(run), len(list(run.journal.events))])
    kept = run.ledger.kept
    assert seen[0] == seen[1] and kept is not None and (run.run_dir / kept.source).read_text() == GOOD
    with open_run(CONFIG, executor) as run:
        await execute_in_run(submitting(0.5))
        await execute_in_run(submitting(0.4, ""))
        assert not ex.verify_submission(str(run.work_dir))
        for file in (run.run_dir / "artifacts").iterdir():
            file.unlink()
    with open_run(CONFIG, executor) as run:  # what was lost is made again
        await execute_in_run(submitting(0.5))
        assert len(executor.requests) == 3 and ex.verify_submission(str(run.work_dir))


async def test_changed_data_packages_seed_or_purpose_is_other_work(open_run: OpenRun, task: m.TaskDescription) -> None:
    executor = FixedExecutor()
    with open_run(CONFIG, executor):
        await execute_in_run(scored(0.5))
        await execute_in_run(scored(0.5), purpose="ablation")
    assert len(executor.requests) == 2
    with open_run(CONFIG.model_copy(update={"seed": 7}), executor):
        await execute_in_run(scored(0.5))
    assert len(executor.requests) == 3
    for version, runs in (("1.26", 4), ("1.26", 4), ("2.0", 5)):
        with open_run(CONFIG, executor) as run:
            python = ev.Interpreter(version="3.11.2", packages={"numpy": version})
            run.journal.record(ev.RunResumed(spent_cost_usd=0, spent_seconds=0, interpreter=python))
            await execute_in_run(scored(0.5))
        assert len(executor.requests) == runs
    (Path(task.data_dir) / "train.csv").write_text("other data")
    with open_run(CONFIG, executor):
        await execute_in_run(scored(0.5))
    assert len(executor.requests) == 6


async def test_the_same_work_is_not_done_twice_and_a_hit_is_visible(open_run: OpenRun) -> None:
    executor = Submitting()
    with open_run(CONFIG, executor) as run:
        first = await execute_in_run(submitting(0.5))
        await execute_in_run(submitting(0.4, ""))
        second = await execute_in_run(submitting(0.5))
        assert len(executor.requests) == 2 and (first.cached, second.cached) == (False, True)
        assert (second.score, second.stdout, second.duration_seconds) == (0.5, first.stdout, 0.0)
        assert ex.verify_submission(str(run.work_dir))
        assert [event.result.cached for event in finished(run)] == [False, False, True]
        assert sorted(finished(run), key=lambda event: event.at) == finished(run)  # taken over now, not back then
    with open_run(CONFIG, executor):  # an earlier process's work counts, too
        with scope("elsewhere"):
            assert (await execute_in_run(submitting(0.4, ""))).cached
        assert len(executor.requests) == 2


async def on_paths(run: RunContext, *scripts: m.SolutionScript) -> list[m.EvaluationResult]:
    """Run each script on a path of its own, all at once."""

    async def on_path(index: int) -> m.EvaluationResult:
        with path_context(index, Path(ex.prepare_path_directory(run.run_dir / "work", f"path-{index}"))):
            return await execute_in_run(scripts[index])

    return await asyncio.gather(*map(on_path, range(len(scripts))))


async def test_the_same_work_asked_for_at_once_is_done_once_and_other_work_waits_for_a_slot(open_run: OpenRun) -> None:
    executor = FixedExecutor(seconds=0.05, together=True)
    with open_run(CONFIG.model_copy(update={"max_concurrent_scripts": 2}), executor) as run:
        results = await on_paths(run, scored(0.5), scored(0.5), scored(0.4), scored(0.5))
        assert [result.cached for result in results] == [False, True, False, True]
        assert (len(executor.requests), executor.most) == (2, 2)
        await on_paths(run, *(scored(level, f"# {n}") for level in range(3) for n in range(2)))
    assert (len(executor.requests), executor.most) == (8, 2)


@in_its_own_time
async def test_who_waits_for_the_same_work_does_it_when_the_first_is_cancelled(open_run: OpenRun) -> None:
    executor = FixedExecutor(seconds=0.2)
    with open_run(CONFIG, executor) as run:
        first, second, third = (asyncio.create_task(execute_in_run(scored(0.5))) for _ in range(3))
        while not executor.requests:
            await asyncio.sleep(0.01)
        first.cancel()
        second.cancel()
        assert not (await asyncio.wait_for(third, 120)).cached
        assert len(finished(run)) == 1, "what was cancelled leaves no record, and its slot is free"
    assert first.cancelled() and second.cancelled() and len(executor.requests) == 2


async def test_a_hit_leaves_a_directory_alone_while_a_script_runs_there(open_run: OpenRun) -> None:
    class Slow(Submitting):
        async def run(self, request: ScriptRequest) -> m.ExecutionRawResult:
            mine = Path(request.working_dir) / "mine"
            mine.touch()
            await asyncio.sleep(0.3)
            assert mine.exists()
            return await super().run(request)

    with open_run(CONFIG, Slow()) as run:
        await execute_in_run(submitting(0.5))
        running = asyncio.create_task(execute_in_run(submitting(0.6)))
        while not (run.work_dir / "mine").exists():
            await asyncio.sleep(0.01)
        assert (await execute_in_run(submitting(0.5))).cached
        assert (await running).score == 0.6 and ex.verify_submission(str(run.work_dir))


@pytest.mark.req("REQ-EX-042")
@pytest.mark.parametrize("fields", [{}, {"timed_out": True, "exit_code": -1}, {"exit_code": -9}])
async def test_without_the_cache_or_after_a_kill_work_is_done_again(fields: dict[str, Any], open_run: OpenRun) -> None:
    executor = FixedExecutor(**fields)
    with open_run(CONFIG.model_copy(update={"use_cache": bool(fields)}), executor):
        assert not any([(await execute_in_run(scored(0.5))).cached for _ in range(3)])
    assert len(executor.requests) == 3


def test_the_data_digest_sees_names_and_contents_also_in_the_middle_of_large_files(tmp_path: Path) -> None:
    data, file = DataFolder(tmp_path / "data"), tmp_path / "data" / "sub" / "a"
    seen = [data.digest()]
    file.parent.mkdir(parents=True)
    for text in (b"1", b"2", bytes(17 << 20), bytes(9 << 20) + b"x" + bytes((8 << 20) - 1)):
        file.write_bytes(text)
        seen += [data.digest()] * (data.digest() == data.digest())
    file.rename(file.with_name("b"))
    assert len({*seen, data.digest()}) == 6


@pytest.mark.parametrize(("direction", "kept"), [(m.MetricDirection.maximize, 0.7), (m.MetricDirection.minimize, 0.3)])
async def test_the_best_valid_submission_is_saved(direction: m.MetricDirection, kept: float, open_run: OpenRun) -> None:
    with open_run(CONFIG, Submitting()) as opened:
        run = dataclasses.replace(opened, task=opened.task.model_copy(update={"metric_direction": direction}))
        run.ledger.direction = direction  # which the event of a run's start tells it
        with enter_run(run):
            for score in (0.5, 0.7, 0.3, 0.6):
                await execute_in_run(submitting(score))
        final = run.run_dir / "final"
        assert (final / "best_solution.py").read_text() == submitting(kept).content
        assert (final / "best_submission.csv").read_text() == GOOD
        events = [event for event in run.journal.events if isinstance(event, ev.SubmissionKept)]
        assert [event.score for event in events] == [0.5, kept]
        assert (events[-1].rows, events[-1].path) == (20, "final/best_submission.csv")
        best = [event.score for event in run.journal.events if isinstance(event, ev.BestImproved)]
        assert best == [0.5, kept] and best_score(run) == kept


@pytest.mark.parametrize("slow", [0, 1])
async def test_of_equal_submissions_the_first_path_s_is_saved_whoever_ends_first(slow: int, open_run: OpenRun) -> None:
    class Unequal(Submitting):
        async def run(self, request: ScriptRequest) -> m.ExecutionRawResult:
            if request.working_dir.endswith(f"path-{slow}"):
                while not finished(run):
                    await asyncio.sleep(0.01)
            return await super().run(request)

    tables = [GOOD, GOOD.replace(",1", ",0")]
    with open_run(CONFIG, Unequal()) as run:
        await on_paths(run, *(submitting(0.5, table) for table in tables))
        assert (run.run_dir / "final" / "best_solution.py").read_text() == submitting(0.5).content
        assert (run.run_dir / "final" / "best_submission.csv").read_text() == GOOD
    assert sorted(["k-10/b", "k-2", "k-10/a", "k-1"], key=in_order) == ["k-1", "k-2", "k-10/a", "k-10/b"]


async def test_a_submission_that_does_not_fit_the_sample_or_was_not_scored_is_not_saved(open_run: OpenRun) -> None:
    """A final script may train on everything: what it prints was not measured on unseen rows."""
    failing = Submitting(exit_code=1)
    with open_run(CONFIG, Submitting()) as run:
        await execute_in_run(submitting(0.8, ""))
        assert finished(run)[-1].result.submission is None, "it is empty"
        await execute_in_run(submitting(0.9, "id,wrong\n1,1\n"))
        assert (best_score(run), kept_submission(run)) == (0.9, None)
        await execute_in_run(submitting(0.5))
        kept: tuple[float | None, str] | None = kept_submission(run)
        assert kept is not None and kept[0] == 0.5
        with enter_run(dataclasses.replace(run, executor=failing)):
            await execute_in_run(submitting(0.95))
        await execute_in_run(submitting(0.99), purpose="ablation")
        assert finished(run)[-1].result.submission is None, "a study submits nothing"
        final = submitting(0.99).model_copy(update={"phase": m.SolutionPhase.final})
        assert (await ex.evaluate_solution(final, run.task, CONFIG)).score == 0.99
        assert ex.verify_submission(str(run.work_dir)) and finished(run)[-1].purpose == "submission"
        assert (best_score(run), kept_submission(run)) == (0.9, kept)


@pytest.mark.req("REQ-EX-004", "REQ-EX-015")
async def test_scripts_see_their_gpus_and_no_credential(open_run: OpenRun, monkeypatch: Patch, tmp_path: Path) -> None:
    for name in ("NVIDIA_API_KEY", "DB_PASSWORD", "CUDA_TOKEN"):
        monkeypatch.setenv(name, "hush")
    executor, alone = FixedExecutor(together=True), FixedExecutor(seconds=0.05)
    with open_run(CONFIG, executor) as run:
        run.shared.scripts.gpus = ["0", "1", "GPU-2", "GPU-3"]
        await on_paths(run, scored(0), scored(1))
        assert {request.env["CUDA_VISIBLE_DEVICES"] for request in executor.requests} == {"0,GPU-2", "1,GPU-3"}
        assert all("hush" not in request.env.values() for request in executor.requests)
        request = executor.requests[0]
        assert (request.input_dir, request.env["MLE_STAR_SEED"]) == (str(Path(run.task.data_dir).resolve()), "42")
        await ex.evaluate_solution(scored(2), run.task, CONFIG, gpu_indices=[3, 1])
        assert executor.requests[-1].env["CUDA_VISIBLE_DEVICES"] == "3,1", "the chosen ones"
        asks, own = script("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])"), str(tmp_path / "own")
        result = await ex.evaluate_solution(asks, run.task, CONFIG, working_dir=own, gpu_indices=[2, 0])
        assert result.stdout == "2,0\n", result.stderr
    with open_run(CONFIG, alone) as run:  # with too few GPUs scripts take turns
        run.shared.scripts.gpus = ["0"]
        await on_paths(run, scored(3), scored(4))
    assert alone.most == 1 and "CUDA_VISIBLE_DEVICES" not in alone.requests[0].env


async def test_a_machine_without_a_sandbox_is_told_of_once(open_run: OpenRun) -> None:
    with open_run(CONFIG, ex.LocalExecutor(CONFIG, sandbox="none")) as run:
        for score in (0.1, 0.2):
            await execute_in_run(scored(score))
        ((step, level, message),) = notices(run)
    assert (step, level) == ("run", "warning") and message.startswith("scripts run unconfined, without namespaces: ")


async def test_a_script_that_changed_the_data_does_not_count(open_run: OpenRun) -> None:
    with open_run(CONFIG, FixedExecutor(first=lambda _: (data / "train.csv").write_text("spoilt"))) as run:
        data = Path(run.task.data_dir)
        result = await execute_in_run(scored(0.5))
        ((_, level, message),) = notices(run)
        assert result.is_error and best_score(run) is None
    words = "the script changed the files in ./input, which are read-only; write to ./final or the current folder"
    assert result.error_traceback == f"{HEADER}\nPermissionError: {words}"
    assert (level, message) == ("error", f"{words}; restore {data} before you trust this run")


async def test_a_limit_is_never_longer_than_the_time_that_is_left(open_run: OpenRun) -> None:
    executor, now = FixedExecutor(), [0.0]
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
    with open_run(config, executor, budget=Budget(config, clock=lambda: 200.0, spent=Spent(by_stage={"": 150}))):
        await execute_in_run(scored(0.1))  # replaying costs no time
    assert len(executor.requests) == 3


async def test_limits_follow_what_was_measured_on_the_path(open_run: OpenRun) -> None:
    executor, now = FixedExecutor(), [0.0]
    config = m.PipelineConfig(time_limit_seconds=10_000, use_cache=False)
    with open_run(config, executor, budget=Budget(config, clock=lambda: now[0])) as run:
        with scope("phase1") as place:
            run.budget.open_phase("phase1")
            assert limit_in_run(place) == 1800  # nothing is known of candidates
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
            assert limit_in_run(path, "ablation") == 600
            ran(path, 0.6, 90)
            assert [limit_in_run(path), *(limit_in_run(path, "ablation", own) for own in (None, 7))] == [900, 720, 7]
        now[0] = 6000
        run.budget.open_phase("phase3")
        with scope("phase3") as ensemble:
            assert ensemble.solution_seconds == 30 + 90  # one path never got beyond the initial solution
            assert limit_in_run(ensemble) == 1200


@pytest.mark.parametrize(("limit", "share"), [(100, FIRST_SECONDS), (1000, 20.0)])
def test_the_first_candidate_gets_a_short_share_others_their_own(open_run: OpenRun, limit: int, share: float) -> None:
    config = m.PipelineConfig(time_limit_seconds=limit, num_retrieved_models=2)
    with open_run(config, FixedExecutor(), budget=Budget(config, clock=lambda: 0.0)):
        with scope("phase1", "candidate-0") as first:
            assert suggested_seconds(first, 600.0) == share < share_in_run(first, 600.0)
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


@pytest.mark.parametrize(("seconds", "share"), [(100, 5.0), (400, 10.0)])
def test_a_script_is_told_more_where_it_would_mostly_start_up(open_run: OpenRun, seconds: int, share: float) -> None:
    config, now = m.PipelineConfig(time_limit_seconds=seconds, inner_loop_steps=50), [0.0]
    budget = Budget(config, clock=lambda: now[0])
    with open_run(config, FixedExecutor(), budget=budget):
        phases: list[tuple[PhaseName, float]] = [("phase2", share), ("phase3", 2 * share)]
        for phase, least in phases:
            now[0] = 0.75 * seconds if phase == "phase3" else 0.0
            with scope(phase) as place:
                budget.open_phase(phase)
                assert share_in_run(place, 600.0, 9) < suggested_seconds(place, 600.0, 9) == least
                assert suggested_seconds(place, 4.0, 9) == 2.0, "half of its limit at most"


@pytest.mark.parametrize(("script", "kept"), [("print(1)", 1.5 * 0.5), ('os.environ["MLE_STAR_SHARE"]', 240.0)])
def test_scripts_that_watch_the_clock_leave_more_for_the_last(open_run: OpenRun, script: str, kept: float) -> None:
    with open_run(CONFIG, FixedExecutor()) as run:
        run.shared.holdout = cast(Any, object())
        plan_time(run, "phase1")
        assert run.budget.rerun_seconds == 0.0, "nothing has run"
        run.record(
            script_finished(step="phase1/a", digest="", script=script, seconds=0.5, score=0.5, isolation=m.Isolation())
        )
        plan_time(run, "phase3")
        assert run.budget.rerun_seconds == kept


@pytest.mark.req("REQ-EX-016")
@pytest.mark.parametrize("fields", [{}, {"exit_code": 1, "stderr": TRACE}, {"exit_code": -1, "timed_out": True}])
@pytest.mark.parametrize("known", [{"score": 0.25, "is_executable": True}, {"score": None, "is_executable": False}])
async def test_the_given_script_is_unchanged(fields: dict[str, Any], known: dict[str, Any], open_run: OpenRun) -> None:
    given = scored(0.5).model_copy(update=known)
    before, works = given.model_copy(deep=True), not fields
    with open_run(CONFIG, FixedExecutor(**fields)) as run:
        result = await ex.evaluate_solution(given, run.task, CONFIG)
        await ex.evaluate_batch([given], run.task, CONFIG)
        returned, _ = await ex.evaluate_with_retry(given, run.task, CONFIG, Repairs(), 0)
    assert (result.score, result.is_error, given) == (0.5, not works, before)
    assert returned is not given and (returned.score, returned.is_executable) == (0.5 if works else None, works)


@pytest.mark.req("REQ-EX-021")
@pytest.mark.parametrize(
    ("line", "problem"),
    [("Final Validation Performance: 85%", "the line says 85%"), ("done", "without printing its score line")],
)
async def test_an_unusable_score_line_goes_to_the_debugger(line: str, problem: str, open_run: OpenRun) -> None:
    far = "x" * 100_000  # the reason must survive the journal, which keeps only the ends of a long output
    odd, fine = FixedExecutor(f"{far}\n{line}\n{far}\n").raw, FixedExecutor().raw
    raws = [odd, fine, odd]

    def answer(request: ScriptRequest) -> None:
        executor.raw = raws.pop(0)

    executor = FixedExecutor(first=answer)
    repairs, final = Repairs(scored(0.5)), script("last", m.SolutionPhase.final)
    with open_run(CONFIG, executor) as run:
        fixed, _ = await ex.evaluate_with_retry(script("first"), run.task, CONFIG, repairs)
        assert fixed.score == 0.5 and best_score(run) == 0.5 and finished(run)[0].result.score is None
        await ex.evaluate_with_retry(final, run.task, CONFIG, repairs)
    with open_run(CONFIG.model_copy(update={"letter": True}), FixedExecutor(line)):
        assert (await execute_in_run(script("x"))).score == (85.0 if "85" in line else None)
    assert problem in ex.exception_line(repairs.errors[0])
    assert len(repairs.errors) == 1, "a final script need not print any"
