"""The recorded way to run a script: a step of the journal, replayed on resume, never run twice for nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from mle_star.data.place import DataFolder
from mle_star.execution.artifacts import STATE, keep_best, keep_submission, restore_submission
from mle_star.execution.environment import script_environment
from mle_star.execution.executors import announced, concurrently, script_slot, spare_slots
from mle_star.execution.inputs import data_of, final_data_of, holdout_of, on_sample, surroundings_digest
from mle_star.execution.limits import RESERVE_BYTES
from mle_star.execution.outcome import HEADER, build_evaluation_result, debug_text, failed
from mle_star.execution.predictions import compared, scored_here, views_to_catch_up
from mle_star.execution.submission import SUBMISSION, verify_submission
from mle_star.execution.workspace import hidden_from, link_input_data, own_folder, reset_working_directory, write_script
from mle_star.holdout.answers import Ungradable, read_answers, write_answers
from mle_star.holdout.holdout import HoldOut, overclaims
from mle_star.holdout.views import View
from mle_star.models import EvaluationResult, Measure, SolutionScript
from mle_star.models.texts import digest_of, shorten, storable
from mle_star.run.context import RunContext, ScriptRequest, current_run
from mle_star.run.events import SCRIPT_LEAVES, Notice, ScriptFinished, ScriptPurpose, ScriptStarted
from mle_star.run.limits import SHARE, limit_in_run, share_in_run, suggested_seconds

KEPT_TEXT = 64 * 1024
"""Characters of each stream that a step keeps: the journal and the prompts see no more."""
KEPT_PROBLEM = 2000
"""Characters that are kept of why answers cannot be scored: a message may quote them."""

_NO_ROOM = re.compile(r"\[Errno 28\]|No space left on device|the disk is full")
"""How a script, a library or the quota says that there was no room."""


async def execute_in_run(
    script: SolutionScript,
    *,
    purpose: ScriptPurpose = "solution",
    timeout_seconds: float | None = None,
    gpu_indices: Sequence[int] | None = None,
    data: DataFolder | None = None,
) -> EvaluationResult:
    """Run a script as a step of the current run. What a fresh run, a replay and a cache hit return is the same.

    `data` is what a probe, or a script on the sample, sees as its input.
    """
    run = current_run()
    step = run.next_step(SCRIPT_LEAVES[purpose])
    where = () if data is None else (data.root.name,)
    digest = digest_of(purpose, script.content, await surroundings_digest(run), *where)
    job = _Job(script, purpose, step, digest, timeout_seconds, gpu_indices)
    event = await _recorded(run, step, digest)
    if event is not None:
        run.journal.tell(event)
    elif not run.config.use_cache:
        event = await _run_and_record(run, job, data)
    else:
        async with run.shared.scripts.locks[digest]:  # always taken before the directory and the slot
            event = await _cached(run, step, digest) or await _run_and_record(run, job, data)
    result = event.result
    run.shared.reached.add(step)
    if purpose == "solution" and not result.is_error:
        await keep_best(run)
    return result


async def _recorded(run: RunContext, step: str, digest: str) -> ScriptFinished | None:
    """The record of a step, with its submission put back beside its data; None where either is missing."""
    event = run.journal.find(ScriptFinished, step, digest)
    if event is None:
        return None
    async with run.shared.scripts.locks[str(run.work_dir)]:
        await _sweep(run)
        if (data := data_of(run).root).is_dir():
            await asyncio.to_thread(link_input_data, str(data), str(run.work_dir), ours=run.run_dir)
        return event if await asyncio.to_thread(restore_submission, run, event) else None


async def _sweep(run: RunContext) -> None:
    """Empty the working directory; what a script left there may take long to remove, and never ends a run."""
    if not await asyncio.to_thread(reset_working_directory, str(run.work_dir)):
        message = f"{run.work_dir} cannot be emptied of what a script left: a fresh folder took its place"
        run.record(Notice(level="warning", message=message))


async def _cached(run: RunContext, step: str, digest: str) -> ScriptFinished | None:
    """The same work under another step of this run, as this step's own record."""
    same = [one for one in run.ledger.runs.values() if one.digest == digest and _comes_out_again(one.result)]
    earlier = await _recorded(run, same[-1].step, digest) if same else None
    if earlier is None:
        return None
    result = earlier.result.model_copy(update={"cached": True, "duration_seconds": 0.0})
    event = earlier.model_copy(update={"step": step, "result": result, "at": datetime.now(timezone.utc)})
    run.record(event)
    return event


def _comes_out_again(result: EvaluationResult) -> bool:
    """Only what would come out the same again may answer for a later step: no timeout, no kill."""
    return not result.cached and not result.timed_out and result.exit_code >= 0


@dataclass(frozen=True)
class _Job:
    """A script as a step of a run: what it is for, how long it may take, and which GPUs it has; None: all."""

    script: SolutionScript
    purpose: ScriptPurpose
    step: str
    digest: str
    timeout_seconds: float | None
    gpus: Sequence[int | str] | None = None

    @property
    def predictions_file(self) -> str:
        """What its answers are kept by: a step that is done anew must not change what an earlier script said there."""
        return f"{self.step.replace('/', '.')}-{self.digest[:12]}"


async def _run_and_record(run: RunContext, job: _Job, data: DataFolder | None) -> ScriptFinished:
    async with run.shared.scripts.locks[str(run.work_dir)], script_slot(run) as gpus:
        run.budget.open_script()
        job = job if job.gpus is not None else replace(job, gpus=gpus)
        if data is not None:
            result = await _run(run, job, data)
            result = on_sample(run, result) if job.purpose == "sample" else result
        else:
            result = await _examine(run, job)
    async with run.shared.scripts.locks["grades"]:  # which script was scored first decides on what rows all are
        return _record(run, job, await _scored(run, result))


def _record(run: RunContext, job: _Job, result: EvaluationResult) -> ScriptFinished:
    texts = {"stdout": shorten(result.stdout, KEPT_TEXT), "stderr": shorten(result.stderr, KEPT_TEXT)}
    event = ScriptFinished(
        step=job.step,
        digest=job.digest,
        surroundings=run.shared.scripts.surroundings,
        purpose=job.purpose,
        script=storable(job.script.content),  # also where it was refused because it is no text
        result=result.model_copy(update=texts),
    )
    run.record(event)
    return event


async def _examine(run: RunContext, job: _Job) -> EvaluationResult:
    """Run a script: a solution on every view of the holdout that there is time for, anything else once."""
    holdout = holdout_of(run)
    if holdout is None or job.purpose == "submission":
        result = await _run(run, job, final_data_of(run))
        if job.purpose == "ablation":
            return result
        return result.model_copy(update={"submission": await asyncio.to_thread(keep_submission, run)})
    if job.purpose == "ablation":
        return await _run(run, job, data_of(run))
    first = await _on_view(run, holdout, job, 0)
    if first.is_error:
        return first
    limit = limit_in_run(run)
    affordable = int(share_in_run(run, limit) / max(first.duration_seconds, 0.1))
    more = range(1, min(affordable, len(holdout.views)))
    seen = [first, *await _on_more_views(run, holdout, job, more)]
    missing = await asyncio.to_thread(views_to_catch_up, run, holdout, _answers_in(seen))
    if not seen[-1].is_error and len(missing) * first.duration_seconds <= limit_in_run(run):
        seen += await _on_more_views(run, holdout, job, missing)
    return seen[-1] if seen[-1].is_error else first.model_copy(update={"answers": _answers_in(seen)})


async def _on_more_views(run: RunContext, holdout: HoldOut, job: _Job, numbers: range) -> list[EvaluationResult]:
    """Run a script that has answered to the first view on others, until one fails.

    Where scripts run elsewhere and there is room, side by side, each in a folder of its own.
    """
    helpers = await spare_slots(run)

    async def on(number: int) -> EvaluationResult:
        if not helpers:
            return await _on_view(run, holdout, job, number)
        with own_folder(run.work_dir, f"view-{number}") as folder:
            own = replace(run, work_dir=folder)
            return await _on_view(own, holdout, job, number, f"/view-{number}")

    jobs = [partial(on, number) for number in numbers]
    return await concurrently(jobs, lambda seen: seen.is_error, helpers=helpers, slot=lambda: script_slot(run))


async def _on_view(run: RunContext, holdout: HoldOut, job: _Job, number: int, part: str = "") -> EvaluationResult:
    """Run a script on one view, and keep what it answers."""
    view = holdout.views[number]
    result = await _run(run, job, DataFolder(view.folder), part)
    if result.is_error:
        return result
    try:
        kept = await asyncio.to_thread(_keep_answers, run, holdout, view, job.predictions_file, number)
    except Ungradable as error:
        return _unanswered(result, str(error))
    return result.model_copy(update=kept)


async def _scored(run: RunContext, result: EvaluationResult) -> EvaluationResult:
    """The result with the grade of its answers, or with why they cannot be graded."""
    holdout = holdout_of(run)
    if holdout is None or not result.answers:
        return result
    try:
        measure = await asyncio.to_thread(_measure, run, holdout, result)
    except Ungradable as error:
        return _unanswered(result, str(error))
    if overclaims(measure, run.task.metric_direction):  # a sign that labels leak into it
        message = f"a script prints {measure.printed:g} and is worth {measure.score:g}: its own validation leaks"
        run.record(Notice(level="warning", message=message))
    return result.model_copy(update={"score": measure.score, "measure": measure, "score_problem": ""})


def _measure(run: RunContext, holdout: HoldOut, result: EvaluationResult) -> Measure:
    answers = holdout.read([run.run_dir / path for path in result.answers], holdout.views)
    return compared(
        holdout, run.run_dir, scored_here(run), answers, len(result.answers), result.score, run.ledger.leaking
    )


def _keep_answers(run: RunContext, holdout: HoldOut, view: View, name: str, number: int) -> dict[str, Any]:
    """Save the answers on a view, and those about the real test as a submission: where, as fields of a result."""
    if not verify_submission(str(run.work_dir)):
        raise Ungradable(f"./{SUBMISSION} is missing or empty: write an answer for every row of the test file there")
    submission = run.work_dir / SUBMISSION
    answers = read_answers(holdout.scorer.data, submission, view)
    if problem := holdout.scorer.problem(answers):
        raise Ungradable(problem)
    kept = holdout.keep(submission, name, number)
    if number or not holdout.scorer.data.asked:
        return {"answers": [kept]}
    part = run.run_dir / "answers" / f"{name}.real.csv"
    write_answers(holdout.scorer.data, answers, part)
    return {"answers": [kept], "submission": part.relative_to(run.run_dir).as_posix()}


def _answers_in(seen: Sequence[EvaluationResult]) -> list[str]:
    return [answers for one in seen for answers in one.answers]


def _unanswered(result: EvaluationResult, problem: str) -> EvaluationResult:
    """A run whose answers cannot be scored, as a case for the debugger."""
    return failed(result, f"ValueError: {shorten(problem, KEPT_PROBLEM)}", score=None, answers=[], submission=None)


async def _run(run: RunContext, job: _Job, data: DataFolder, part: str = "") -> EvaluationResult:
    working_dir = str(run.work_dir)
    log = run.run_dir / "logs" / f"{(job.step + part).replace('/', '.')}.log"  # afresh, where a step is done anew
    try:
        await _sweep(run)
        if data.root.is_dir():
            await asyncio.to_thread(link_input_data, str(data.root), working_dir, ours=run.run_dir)
        if job.purpose == "submission" and "model" in run.config.briefing:
            (run.work_dir / STATE).mkdir(exist_ok=True)  # where this folder is, what is fitted is worth keeping
        script_path = write_script(job.script, working_dir)
    except (ValueError, PermissionError) as error:
        return rejected(error)
    limit = limit_in_run(run, job.purpose, job.timeout_seconds)
    if limit <= 0:
        raise run.budget.out_of_time()
    holdout = holdout_of(run)
    views = 1 if holdout is None or job.purpose != "solution" else len(holdout.views)
    size = len(job.script.content)
    run.record(
        ScriptStarted(step=job.step, purpose=job.purpose, timeout_seconds=limit, path=script_path, characters=size)
    )
    request = ScriptRequest(
        script_path=script_path,
        working_dir=working_dir,
        timeout_seconds=limit,
        env={
            **script_environment(run.config, job.gpus),
            "MLE_STAR_SECONDS": f"{limit:.0f}",
            SHARE: f"{suggested_seconds(run, limit, views):.1f}",
        },
        input_dir=str(data.root) if data.root.is_dir() and data.is_whole else None,
        readable=tuple(await asyncio.to_thread(data.outside_targets)) if run.config.allow_outside_links else (),
        hidden=hidden_from(run.run_dir, run.task.data_dir, data),
        output_file=str(log),
    )
    log.parent.mkdir(parents=True, exist_ok=True)
    before = await asyncio.to_thread(data.stamp)
    raw = await run.executor.run(request)
    await _warn_once(run)
    if raw.reruns:
        run.record(Notice(level="warning", message="a machine was lost while a script ran there: it ran again"))
    result = build_evaluation_result(raw, job.purpose, run.task, limit, letter=run.config.letter)
    if await asyncio.to_thread(data.changed_since, before):
        result = _spoiled(run, result)
    if result.is_error and _NO_ROOM.search(debug_text(result)):
        await _raise_if_full(run)
    return result


async def _raise_if_full(run: RunContext) -> None:
    """A script found no room. If there is none without what it wrote itself either, no debugger can help it."""
    await _sweep(run)
    free = await asyncio.to_thread(lambda: shutil.disk_usage(run.work_dir).free)
    if free < RESERVE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run.work_dir))


async def _warn_once(run: RunContext) -> None:
    """The owner of a run should see what does not confine its scripts."""
    if not run.shared.scripts.warned:
        run.shared.scripts.warned = True
        if missing := (await announced(run.executor)).missing:
            run.record(Notice(level="warning", step="run", message=f"scripts run {missing}"))


def _spoiled(run: RunContext, result: EvaluationResult) -> EvaluationResult:
    """A script that got at the data (possible only where nothing confines it) must not count."""
    message = "the script changed the files in ./input, which are read-only; write to ./final or the current directory"
    run.record(Notice(level="error", message=f"{message}; restore {run.task.data_dir} before you trust this run"))
    return failed(result, f"PermissionError: {message}")


def rejected(error: ValueError | PermissionError) -> EvaluationResult:
    """The result of a script that could not run, or was refused before, in a form that the debugger can work with."""
    text = f"{HEADER}\n{type(error).__name__}: {error}"
    return EvaluationResult(
        stdout="", stderr=text, exit_code=-1, duration_seconds=0.0, is_error=True, error_traceback=text, refused=True
    )
