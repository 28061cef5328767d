"""Submissions of a run: each is kept under its content's name, the best one where people look for it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from mle_star.context import RunContext
from mle_star.events import ScriptFinished, SubmissionKept
from mle_star.execution.submission import check_submission_format, get_submission_info, open_submission
from mle_star.execution.workspace import reset_working_directory
from mle_star.models import EvaluationResult, SolutionScript, is_improvement

logger = logging.getLogger("mle_star.execution")


def keep_submission(run: RunContext) -> str | None:
    """A copy of `final/submission.csv` under its content's name, relative to the run folder."""
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
            _write_whole(target, file)
    return relative


def _write_whole(target: Path, source: BinaryIO) -> None:
    temporary = target.with_suffix(f".{os.getpid()}.part")
    with temporary.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    temporary.replace(target)


def restore_submission(run: RunContext, event: ScriptFinished) -> bool:
    """Put a recorded submission back where its script left it; False when the copy is gone."""
    reset_working_directory(str(run.work_dir))
    if event.submission is None:
        return True
    kept = run.run_dir / event.submission
    if not kept.is_file():
        return False
    shutil.copyfile(kept, run.work_dir / "final" / "submission.csv")
    return True


async def take_note(run: RunContext, script: SolutionScript, result: EvaluationResult, event: ScriptFinished) -> None:
    """Tell the run about a score, and put the best submission aside."""
    if result.score is not None:
        run.note_score(result.score, script.content)
    if event.submission is None:
        return
    if not _is_best(run, result.score):
        return
    working_dir = str(run.work_dir)
    problems = await asyncio.to_thread(check_submission_format, working_dir)
    if problems:
        logger.info("submission not kept: %s", "; ".join(problems))
        return
    if not _is_best(run, result.score):  # a better one came while this one was looked at
        return
    run.shared.kept_submission = (result.score, event.submission)
    final = run.run_dir / "final"
    final.mkdir(parents=True, exist_ok=True)
    with (run.run_dir / event.submission).open("rb") as file:
        _write_whole(final / "best_submission.csv", file)
    (final / "best_solution.py").write_text(script.content, encoding="utf-8", newline="")
    rows = get_submission_info(working_dir)["row_count"]
    run.record(
        SubmissionKept(step=event.step, path="final/best_submission.csv", rows=int(rows or 0), score=result.score)
    )


def _is_best(run: RunContext, score: float | None) -> bool:
    """Does a submission with this score beat the one that is kept?"""
    if run.shared.kept_submission is None:
        return True
    kept = run.shared.kept_submission[0]
    if score is None or kept is None:
        return score is not None
    return is_improvement(score, kept, run.task.metric_direction)
