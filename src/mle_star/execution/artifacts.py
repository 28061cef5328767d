"""Submissions of a run: each is kept under its content's name, the best one where people look for it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil

from mle_star.execution.submission import check_table, count_rows, find_sample_submission, open_submission
from mle_star.models import is_improvement
from mle_star.run.context import RunContext
from mle_star.run.events import ScriptFinished, SubmissionKept
from mle_star.run.folder import RunFolder, place_copy, write_whole

logger = logging.getLogger("mle_star.execution")


def keep_submission(run: RunContext) -> str | None:
    """A copy of `final/submission.csv` under its content's name, relative to the run folder."""
    if not run.shared.has_test:
        return None
    with open_submission(str(run.work_dir)) as file:
        if file is None or os.fstat(file.fileno()).st_size == 0:
            return None
        hasher = hashlib.sha256()
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
        relative = f"artifacts/submission-{hasher.hexdigest()[:16]}.csv"
        target = run.run_dir / relative
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            file.seek(0)
            write_whole(target, iter(lambda: file.read(1 << 20), b""))
    return relative


def restore_submission(run: RunContext, event: ScriptFinished) -> bool:
    """Put a recorded submission back into the swept directory of its script; False when the copy is gone."""
    if event.submission is None:
        return True
    kept = run.run_dir / event.submission
    if not kept.is_file():
        return False
    shutil.copyfile(kept, run.work_dir / "final" / "submission.csv")
    return True


async def keep_clean_ones(run: RunContext) -> None:
    """A script turned out to leak after it had run: best score and kept submission are those of clean ones again.

    Where all leak, the best of them stands in. It is done whole, even if whoever wants it is stopped meanwhile.
    """
    await asyncio.shield(_keep_clean_ones(run))


async def _keep_clean_ones(run: RunContext) -> None:
    shared = run.shared
    async with shared.scripts.locks["cleaning"]:
        noted, places = {**shared.scripts.noted}, set(shared.scored)
        told = [(there, run.journal.find(ScriptFinished, *key)) for key, there in noted.items()]
        clean = [(there, event) for there, event in told if event is not None and event.script not in shared.leaking]
        if not clean or len(clean) == len(noted):
            return
        shared.best_score = shared.kept_submission = None
        run.journal.take_back("best_improved", "submission_kept")
        for known in (shared.scripts.noted, shared.scored, shared.runtimes):
            known.clear()
        for there, event in clean:  # nothing waits in here: what a path scores meanwhile comes before or after
            _note(there, event)
        for place in set(shared.scored) - places:  # of a phase that is over
            del shared.scored[place]
        for there, event in clean:
            await _keep_if_best(there, event)


async def take_note(run: RunContext, event: ScriptFinished) -> None:
    """Tell the run about a score, and save the best submission."""
    _note(run, event)
    await _keep_if_best(run, event)


def _note(run: RunContext, event: ScriptFinished) -> None:
    run.shared.scripts.noted[event.step, event.digest] = run
    if event.score is not None:
        run.note_score(event.score, event.script)
        if not event.cached:
            run.note_runtime(event.score, event.seconds)


async def _keep_if_best(run: RunContext, event: ScriptFinished) -> None:
    if event.submission is None:
        return
    async with run.shared.scripts.locks["keeping"]:
        if not _is_best(run, event.score, event.step):
            return
        problems, rows = await asyncio.to_thread(_examine, run, event.submission)
        if problems:
            logger.info("submission not kept: %s", "; ".join(problems))
            return
        run.shared.kept_submission = (event.score, event.submission)
        run.shared.scripts.kept_step = event.step
        await asyncio.to_thread(_put_aside, run, event.submission, event.script)
        run.record(SubmissionKept(step=event.step, path="final/best_submission.csv", rows=rows, score=event.score))


def _examine(run: RunContext, submission: str) -> tuple[list[str], int]:
    """What is wrong with a kept submission, and its rows; the working directory may hold the next one by now."""
    exam = run.shared.exam
    sample = find_sample_submission(str(run.work_dir)) if exam is None else exam.sample
    with (run.run_dir / submission).open("rb") as file:
        problems = check_table(file, "./final/submission.csv", sample)
        file.seek(0)
        return problems, count_rows(file)


def _put_aside(run: RunContext, submission: str, script: str) -> None:
    folder = RunFolder(run.run_dir)
    place_copy(run.run_dir / submission, folder.best_submission)
    write_whole(folder.best_solution, script)


def _is_best(run: RunContext, score: float | None, step: str) -> bool:
    """Does it beat the submission that is kept? Of equal scores the first step's counts, whoever ends first."""
    if run.shared.kept_submission is None:
        return True
    kept = run.shared.kept_submission[0]
    if score == kept:
        return _in_order(step) < _in_order(run.shared.scripts.kept_step)
    if score is None or kept is None:
        return score is not None
    return is_improvement(score, kept, run.task.metric_direction)


def _in_order(step: str) -> list[str | int]:
    """A key that sorts `script-2` before `script-10`."""
    return [int(word) if number % 2 else word for number, word in enumerate(re.split(r"(\d+)", step))]
