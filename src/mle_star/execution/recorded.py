"""The recorded way to run a script: a step of the journal, and not run again where its result is known."""

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from mle_star.data.place import DataFolder, Stamp
from mle_star.execution import scoring
from mle_star.execution.artifacts import STATE, keep_best, keep_submission, restore_submission
from mle_star.execution.environment import script_environment
from mle_star.execution.executors import announced, script_slot
from mle_star.execution.kept_work import CACHE, lend, take_back
from mle_star.execution.limits import RESERVE_BYTES
from mle_star.execution.outcome import CHANGED_DATA, build_evaluation_result, debug_text, failed, rejected
from mle_star.execution.submission import SUBMISSION, verify_submission
from mle_star.execution.workspace import hidden_from, link_input_data, own_folder, reset_working_directory, write_script
from mle_star.holdout.answers import Ungradable, read_answers, write_answers
from mle_star.holdout.holdout import HoldOut, overclaims
from mle_star.models import EvaluationResult, SolutionScript
from mle_star.models.texts import digest_of, shorten, storable
from mle_star.run.context import RunContext, ScriptRequest, cancel_all, current_run
from mle_star.run.events import Notice, ScriptFinished, ScriptPurpose, ScriptStarted
from mle_star.run.timing import SHARE, affordable_views, fits, limit_in_run, suggested_seconds

KEPT_TEXT = 64 * 1024
"""Characters of each stream that a step keeps: the journal and the prompts see no more."""
KEPT_PROBLEM = 2000
"""Characters that are kept of why answers cannot be scored: a message may quote them."""


_NO_ROOM = re.compile(r"\[Errno 28\]|No space left on device|the disk is full")
"""How a script, a library or the quota says that there was no room."""


@dataclass(frozen=True)
class _Job:
    """A script as a step of a run: what it is for, how long it may take, and what it works with."""

    run: RunContext
    script: SolutionScript
    purpose: ScriptPurpose
    step: str
    digest: str
    timeout_seconds: float | None
    gpus: Sequence[int | str] | None  # None: those of its slot
    data: DataFolder | None  # of a probe, or the sample; None: as its purpose wants
    views: range = range(0)  # further ones, for a solution that is scored already
    part: str = ""  # what its log is named by, where several run at once
    has_slot: bool = False  # else each of its runs waits for one

    @property
    def name(self) -> str:
        """The step as part of a file's name."""
        return self.step.replace("/", ".")


async def execute_in_run(
    script: SolutionScript,
    *,
    purpose: ScriptPurpose = "solution",
    timeout_seconds: float | None = None,
    gpu_indices: Sequence[int] | None = None,
    data: DataFolder | None = None,
    views: range = range(0),
) -> EvaluationResult:
    """Run a script as a step of the current run. What a fresh run, a replay and a cache hit return is the same.

    `data` is what a probe, or a script on the sample, sees as its input; `views` are those that a scored solution
    lacks.
    """
    run = current_run()
    step = run.next_step("script" if purpose == "solution" else f"{purpose}-script")
    where = ([] if data is None else [data.root.name]) + [f"view-{number}" for number in views]
    digest = digest_of(purpose, script.content, await scoring.surroundings_digest(run), *where)
    job = _Job(run, script, purpose, step, digest, timeout_seconds, gpu_indices, data, views)
    event = await _recorded(run, step, digest)
    if event is not None:
        run.journal.tell(event)
    elif not run.config.use_cache:
        event = await _run_and_record(job)
    else:
        async with run.shared.scripts.locks[digest]:  # always taken before the directory and the slot
            event = await _cached(run, step, digest) or await _run_and_record(job)
    if purpose == "solution" and not event.result.is_error:
        await keep_best(run)
    return event.result


async def _recorded(run: RunContext, step: str, digest: str) -> ScriptFinished | None:
    """The record of a step, with its submission put back beside its data; None where either is missing."""
    event = run.journal.find(ScriptFinished, step, digest)
    if event is None:
        return None
    async with run.shared.scripts.locks[str(run.work_dir)]:
        await _make_anew(run, scoring.data_of(run))
        made = event.result.submission
        return event if made is None or await asyncio.to_thread(restore_submission, run, made) else None


async def _cached(run: RunContext, step: str, digest: str) -> ScriptFinished | None:
    """The same work under another step of this run, as this step's own record.

    Only what would come out the same again may answer for a later step: no timeout, no kill.
    """
    same = [one for one in run.ledger.runs.values() if one.digest == digest and not one.result.cached]
    repeatable = [one for one in same if not one.result.timed_out and one.result.exit_code >= 0]
    earlier = await _recorded(run, repeatable[-1].step, digest) if repeatable else None
    if earlier is None:
        return None
    result = earlier.result.model_copy(update={"cached": True, "duration_seconds": 0.0})
    event = earlier.model_copy(update={"step": step, "result": result, "at": datetime.now(timezone.utc)})
    run.record(event)
    return event


async def _run_and_record(job: _Job) -> ScriptFinished:
    run = job.run
    async with run.shared.scripts.locks[str(run.work_dir)]:
        if announced(run.executor).is_here and not job.views:
            async with script_slot(run) as gpus:  # for all its views: what has begun is scored before what waits
                result = await _examine(replace(job, gpus=gpus if job.gpus is None else job.gpus, has_slot=True))
        else:
            result = await _examine(job)
    async with run.shared.scripts.locks["grades"]:  # the first scored script fixes the rows to compare on
        result = result if job.views else await _scored(run, result)
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


# --- on which data -------------------------------------------------------------------------------------------


async def _examine(job: _Job) -> EvaluationResult:
    """Run a script: a solution on every view of the holdout that there is time for, anything else once."""
    run, holdout = job.run, scoring.holdout_of(job.run)
    if job.views and holdout is not None:
        script = digest_of(job.script.content)
        old = next(one.result for one in scoring.answered_here(run) if one.script_id == script)
        answered = old.model_copy(update={"answers": old.answers[: job.views.start], "score": None, "measure": None})
        return await _on_more_views(job, holdout, job.views, answered)
    if job.purpose == "solution" and not fits(run):
        raise run.budget.out_of_time()
    if job.purpose in ("ablation", "sample"):
        result = await _run(job, job.data or scoring.data_of(run))
        return scoring.on_sample(run, result) if job.purpose == "sample" else result
    if holdout is None or job.purpose != "solution":
        result = await _run(job, job.data or scoring.final_data_of(run))
        if job.purpose == "solution" and not run.shared.has_test:
            return result
        return result.model_copy(update={"submission": await asyncio.to_thread(keep_submission, run)})
    result = await _on_view(job, holdout, 0)
    if not run.config.more_steps or not scoring.scored_here(run):
        affordable = min(affordable_views(run, result.duration_seconds), holdout.search_views)
        result = await _on_more_views(job, holdout, range(1, affordable), result)
    if result.is_error:
        return result
    missing = await asyncio.to_thread(scoring.views_to_catch_up, run, holdout, result.answers)
    if len(missing) * result.duration_seconds <= limit_in_run(run):
        result = await _on_more_views(job, holdout, missing, result)
    return result


async def _on_more_views(job: _Job, holdout: HoldOut, numbers: range, result: EvaluationResult) -> EvaluationResult:
    """Run a script on further views: its result on the first one with all answers, or the first that is an error.

    Where scripts run elsewhere, or the search is over, side by side, each in a folder of its own; what comes after a
    failure is stopped.
    """
    if result.is_error:
        return result
    side_by_side = bool(job.views) or not announced(job.run.executor).is_here

    async def beside(number: int) -> EvaluationResult:
        with own_folder(job.run.work_dir, f"view-{number}") as folder:
            own = replace(job, run=replace(job.run, work_dir=folder), part=f".view-{number}")
            return await _on_view(own, holdout, number)

    begun = [asyncio.create_task(beside(number)) for number in numbers] if side_by_side else []
    try:
        for place, number in enumerate(numbers):
            more = await (begun[place] if side_by_side else _on_view(job, holdout, number))
            if more.is_error:
                return more
            result = result.model_copy(update={"answers": [*result.answers, *more.answers]})
    finally:
        await cancel_all(begun)
    return result


async def _on_view(job: _Job, holdout: HoldOut, number: int) -> EvaluationResult:
    """Run a script on one view, and save what it answers; on the first one, also its answers to the real test."""
    result = await _run(job, DataFolder(holdout.views[number].folder))
    if result.is_error:
        return result
    try:
        return await asyncio.to_thread(_with_answers, job, holdout, number, result)
    except Ungradable as error:
        return _unanswered(result, error)


def _with_answers(job: _Job, holdout: HoldOut, number: int, result: EvaluationResult) -> EvaluationResult:
    run, data = job.run, holdout.scorer.data
    if not verify_submission(str(run.work_dir)):
        raise Ungradable(f"./{SUBMISSION} is missing or empty: write an answer for every row of the test file there")
    answers = read_answers(data, run.work_dir / SUBMISSION, holdout.views[number])
    if problem := holdout.scorer.problem(answers):
        raise Ungradable(problem)
    name = f"{job.name}-{job.digest[:12]}"  # a step that is done again must not change what an earlier script said
    kept = holdout.keep(run.work_dir / SUBMISSION, name, number)
    real = None
    if number == 0 and data.test_rows:
        real = f"answers/{name}.real.csv"
        write_answers(data, answers, run.run_dir / real)
    return result.model_copy(update={"answers": [kept], "submission": real})


async def _scored(run: RunContext, result: EvaluationResult) -> EvaluationResult:
    """The result with the score of its answers, or with why they cannot be scored."""
    holdout = scoring.holdout_of(run)
    if holdout is None or not result.answers:
        return result
    scored, leaking = scoring.scored_here(run), run.ledger.leaking
    try:
        known = holdout, run.run_dir, scored, result.answers, result.score, leaking
        measure = await asyncio.to_thread(scoring.compared, *known)
    except Ungradable as error:
        return _unanswered(result, error)
    if overclaims(measure, run.task.metric_direction):  # a sign that labels leak into it
        message = f"a script prints {measure.printed:g} and is worth {measure.score:g}: its own validation leaks"
        run.record(Notice(level="warning", message=message))
    return result.model_copy(update={"score": measure.score, "measure": measure, "score_problem": ""})


def _unanswered(result: EvaluationResult, error: Ungradable) -> EvaluationResult:
    """A run whose answers cannot be scored, as a case for the debugger."""
    return failed(result, f"ValueError: {shorten(str(error), KEPT_PROBLEM)}", score=None, answers=[], submission=None)


# --- one run -------------------------------------------------------------------------------------------------


async def _run(job: _Job, data: DataFolder) -> EvaluationResult:
    """Run a script once, in an empty directory, when it has a slot."""
    run, config = job.run, job.run.config
    async with nullcontext(job.gpus) if job.has_slot else script_slot(run) as gpus:
        run.budget.open_script()
        try:
            before = await _make_anew(run, data)
            kept = _kept_work(job, data)
            warm = config.keep_work and await lend(kept, run.work_dir)
            if job.purpose == "submission" and "model" in config.briefing:
                (run.work_dir / STATE).mkdir(exist_ok=True)  # this folder tells the script to save its fitted model
            script_path = write_script(job.script, str(run.work_dir))
        except (ValueError, PermissionError) as error:
            return rejected(error)
        limit = limit_in_run(run, job.purpose, job.timeout_seconds)
        if limit <= 0:
            raise run.budget.out_of_time()
        size, step, purpose = len(job.script.content), job.step, job.purpose
        run.record(ScriptStarted(step=step, purpose=purpose, timeout_seconds=limit, path=script_path, characters=size))
        request = await _request(job, data, script_path, limit, gpus if job.gpus is None else job.gpus)
        raw = await run.executor.run(request)
    if raw.reruns:
        run.record(Notice(level="warning", message="a machine was lost while a script ran there: it ran again"))
    result = build_evaluation_result(raw, job.purpose, run.task, limit, letter=config.letter)
    if await asyncio.to_thread(data.changed_since, before):  # possible only where nothing confines it
        message = f"{CHANGED_DATA}; restore {run.task.data_dir} before you trust this run"
        run.record(Notice(level="error", message=message))
        result = failed(result, f"PermissionError: {CHANGED_DATA}")
    if result.is_error and _NO_ROOM.search(debug_text(result)):
        await _make_anew(run, scoring.data_of(run))
        free = await asyncio.to_thread(lambda: shutil.disk_usage(run.work_dir).free)
        if free < RESERVE_BYTES:  # even with its own files gone the disk is full: no debugger can help it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run.work_dir))
    if kept is not None and not result.is_error:
        async with run.shared.scripts.locks[str(kept)]:
            await take_back(run.work_dir, kept, config)
    return result.model_copy(update={"warm": warm})


def _kept_work(job: _Job, data: DataFolder) -> Path | None:
    """Where the work of earlier scripts on the same view lies; None where each begins with nothing.

    So do final scripts, those on a sample or on columns changed, and those that run elsewhere.
    """
    run = job.run
    searching = job.data is None and job.purpose != "submission"
    shared = run.config.keep_work and searching and announced(run.executor).is_here
    return run.run_dir / CACHE / data.root.name if shared else None


async def _request(
    job: _Job, data: DataFolder, script_path: str, limit: float, gpus: Sequence[int | str] | None
) -> ScriptRequest:
    run, holdout = job.run, scoring.holdout_of(job.run)
    views = 1 if holdout is None or job.purpose != "solution" else holdout.search_views
    wanted = run.ledger.took(job.script.content) if job.views else suggested_seconds(run, limit, views)
    log = run.run_dir / "logs" / f"{job.name}{job.part}.log"  # afresh, where a step is done again
    log.parent.mkdir(exist_ok=True)
    return ScriptRequest(
        script_path=script_path,
        working_dir=str(run.work_dir),
        timeout_seconds=limit,
        env={**script_environment(run.config, gpus), "MLE_STAR_SECONDS": f"{limit:.0f}", SHARE: f"{wanted:.1f}"},
        input_dir=str(data.root) if data.root.is_dir() and data.is_whole else None,
        readable=tuple(await asyncio.to_thread(data.outside_targets)) if run.config.allow_outside_links else (),
        hidden=hidden_from(run.run_dir, run.task.data_dir, data),
        output_file=str(log),
    )


async def _make_anew(run: RunContext, data: DataFolder) -> Stamp:
    """Empty the working directory, and show the data, with their stamp.

    What a script left may take long to remove, and ends no run.
    """

    def make() -> tuple[bool, Stamp]:
        emptied = reset_working_directory(str(run.work_dir))
        if data.root.is_dir():
            link_input_data(str(data.root), str(run.work_dir), ours=run.run_dir)
        return emptied, data.stamp()

    emptied, stamp = await asyncio.to_thread(make)
    if not emptied:
        message = f"{run.work_dir} cannot be emptied of what a script left: a fresh folder took its place"
        run.record(Notice(level="warning", message=message))
    return stamp
