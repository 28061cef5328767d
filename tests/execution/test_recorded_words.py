"""The recorded way to run a script, in its details: what is said, passed on, cut off and charged to a script."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from mle_star.execution import LocalExecutor, evaluate_solution
from mle_star.execution.recorded import KEPT_TEXT, shorten
from mle_star.models import EvaluationResult, ExecutionRawResult, Isolation, PipelineConfig
from mle_star.run.budget import Budget
from mle_star.run.context import ScriptRequest, scope
from mle_star.run.events import AnyEvent, Notice
from mle_star.run.limits import limit_in_run
from tests.execution.conftest import FixedExecutor, OpenRun, scored

CONFIG = PipelineConfig(time_limit_seconds=6000, num_parallel_solutions=2, outer_loop_steps=30)


@pytest.mark.parametrize("use_cache", [True, False])
async def test_gpus_are_passed_on_with_and_without_the_cache(use_cache: bool, open_run: OpenRun) -> None:
    config, executor = CONFIG.model_copy(update={"use_cache": use_cache}), FixedExecutor()
    with open_run(config, executor) as run:
        await evaluate_solution(scored(0.5), run.task, config, gpu_indices=[3, 1])
    assert executor.requests[0].env["CUDA_VISIBLE_DEVICES"] == "3,1"


async def test_what_is_not_run_again_is_said_with_the_step_that_did_it(
    open_run: OpenRun, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mle_star.execution")
    with open_run(CONFIG, FixedExecutor()) as run:
        for _ in range(2):
            await evaluate_solution(scored(0.5), run.task, CONFIG)
    assert "not run again: the same script was already run at script" in caplog.messages


async def test_a_machine_without_walls_is_told_of_once(open_run: OpenRun) -> None:
    heard: list[AnyEvent] = []
    with open_run(CONFIG, LocalExecutor(CONFIG, sandbox="none")) as run:
        run.journal.subscribe(heard.append)
        for score in (0.1, 0.2):
            await evaluate_solution(scored(score), run.task, CONFIG)
    told = [event for event in heard if isinstance(event, Notice)]
    assert [(notice.level, notice.step) for notice in told] == [("warning", "run")]
    assert told[0].message.startswith("scripts run without a sandbox: ")


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
        assert result.is_error and run.shared.best_score is None
    expected = "PermissionError: the script changed the files in ./input, which are read-only; "
    assert result.error_traceback is not None and expected in result.error_traceback
    assert told.level == "error" and f"restore {data} before you trust this run" in told.message


async def test_the_limit_of_a_study_follows_what_the_solution_takes(open_run: OpenRun) -> None:
    now = [0.0]
    with open_run(CONFIG, FixedExecutor(), budget=Budget(CONFIG, clock=lambda: now[0])) as run:
        run.budget.open_phase("phase2")
        with scope("phase2") as place:
            assert limit_in_run(place, "ablation") == pytest.approx(6000 / 60)
            place.note_runtime(0.5, 20)
            assert limit_in_run(place, "ablation") == pytest.approx(20 * 4 * 2)
            assert limit_in_run(place, "ablation", 7) == 7


def test_a_text_is_kept_whole_up_to_the_limit() -> None:
    whole = "x" * KEPT_TEXT
    assert shorten(whole) == whole
    half = "x" * (KEPT_TEXT // 2)
    assert shorten(whole + "x") == f"{half}\n[... 1 characters left out ...]\n{half}"
