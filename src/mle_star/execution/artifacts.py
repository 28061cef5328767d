"""Submissions of a run: each is kept under its content's name, the best one where people look for it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil

from mle_star.execution.submission import check_table, count_rows, find_sample_submission, open_submission
from mle_star.method.scores import best_first
from mle_star.run.context import RunContext
from mle_star.run.events import BestImproved, ScriptFinished, SubmissionKept
from mle_star.run.folder import RunFolder, place_copy, write_whole
from mle_star.run.ledger import ScriptRun

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
    if event.result.submission is None:
        return True
    kept = run.run_dir / event.result.submission
    if not kept.is_file():
        return False
    shutil.copyfile(kept, run.work_dir / "final" / "submission.csv")
    return True


async def keep_best(run: RunContext) -> None:
    """Tell of the best score, and save the best valid submission, after a script has run or was found to leak.

    It is done whole, even if whoever wants it is stopped meanwhile.
    """
    await asyncio.shield(_keep_best(run))


async def _keep_best(run: RunContext) -> None:
    async with run.shared.scripts.locks["keeping"]:
        best, told = run.ledger.best(), run.shared.best
        if best is not None and best.score is not None and told != (best.score, best.script):
            run.shared.best = best.score, best.script
            run.record(BestImproved(step=best.place, score=best.score, digest=best.script))
        for found in _best_first(run):
            source, kept = found.result.submission or "", run.ledger.kept
            if kept is not None and (kept.step, kept.source) == (found.step, source):
                return
            problems, rows = await _checked(run, source)
            if problems:
                continue
            await asyncio.to_thread(_save, run, source, run.ledger.text(found.script))
            path = "final/best_submission.csv"
            run.record(SubmissionKept(step=found.step, path=path, source=source, rows=rows, score=found.score))
            return


def _best_first(run: RunContext) -> list[ScriptRun]:
    """The solutions that left a submission, the best first; of equal scores the first step's, whoever ended first."""
    made = [one for one in run.ledger.solutions() if one.result.submission]
    made = [one for one in made if (run.run_dir / (one.result.submission or "")).is_file()]
    made.sort(key=lambda one: in_order(one.step))
    return best_first(made, lambda one: one.score, run.task.metric_direction)


async def _checked(run: RunContext, submission: str) -> tuple[list[str], int]:
    """What is wrong with a saved submission, and its rows; looked at once."""
    known = run.shared.scripts.checked_files
    if submission not in known:
        known[submission] = await asyncio.to_thread(_examine, run, submission)
        if problems := known[submission][0]:
            logger.info("submission not kept: %s", "; ".join(problems))
    return known[submission]


def _examine(run: RunContext, submission: str) -> tuple[list[str], int]:
    """What is wrong with a kept submission, and its rows; the working directory may hold the next one by now."""
    holdout = run.shared.holdout
    sample = find_sample_submission(str(run.work_dir)) if holdout is None else holdout.sample
    with (run.run_dir / submission).open("rb") as file:
        problems = check_table(file, "./final/submission.csv", sample)
        file.seek(0)
        return problems, count_rows(file)


def _save(run: RunContext, submission: str, script: str) -> None:
    folder = RunFolder(run.run_dir)
    place_copy(run.run_dir / submission, folder.best_submission)
    write_whole(folder.best_solution, script)


def in_order(step: str) -> list[str | int]:
    """A key that sorts `script-2` before `script-10`."""
    return [int(word) if number % 2 else word for number, word in enumerate(re.split(r"(\d+)", step))]
