"""What is kept of a run's scripts: submissions by their content's name, the best one where people look for it, and what
a script has fitted (the folder `./model/` of its last run, for the predictions to come).

Fitted files are copied and never opened: they are read by the same script alone, in the sandbox.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from mle_star.data.place import DataFolder
from mle_star.errors import ExecutionError
from mle_star.execution.scoring import holdout_of
from mle_star.execution.submission import check_table, count_rows, find_sample_submission, open_submission
from mle_star.execution.workspace import copy_plain, entries_below, remove_entry
from mle_star.method.scores import best_first
from mle_star.run.context import RunContext
from mle_star.run.events import BestImproved, SubmissionKept
from mle_star.run.folder import RunFolder, place_copy, write_whole

logger = logging.getLogger("mle_star.execution")

STATE = "model"
"""The folder of a working directory in which a script may keep what it has fitted."""
MOST_BYTES = 2 << 30

Listing = dict[str, tuple[int, int]]


def keep_submission(run: RunContext) -> str | None:
    """A copy of `final/submission.csv` under its content's name, relative to the run folder."""
    with open_submission(str(run.work_dir)) as file:
        if file is None or os.fstat(file.fileno()).st_size == 0:
            return None
        hasher = hashlib.sha256()
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
        relative = f"artifacts/submission-{hasher.hexdigest()[:16]}.csv"
        if not (run.run_dir / relative).exists():
            file.seek(0)
            write_whole(run.run_dir / relative, iter(lambda: file.read(1 << 20), b""))
    return relative


def restore_submission(run: RunContext, submission: str) -> bool:
    """Put a recorded submission back into the swept directory of its script; False when the copy is gone."""
    with suppress(FileNotFoundError):
        shutil.copyfile(run.run_dir / submission, run.work_dir / "final" / "submission.csv")
        return True
    return False


async def keep_best(run: RunContext) -> None:
    """Tell of the best score, and save the best valid submission, after a script has run or was found to leak.

    It is finished even if the task that asked for it is stopped meanwhile.
    """
    await asyncio.shield(_keep_best(run))


async def _keep_best(run: RunContext) -> None:
    async with run.shared.scripts.locks["keeping"]:
        best, shown = run.ledger.best(), run.reached.announced
        new = best is not None and (shown is None or (shown.score, shown.digest) != (best.score, best.script_id))
        if best is not None and best.score is not None and new:
            run.record(BestImproved(step=best.place, score=best.score, digest=best.script_id))
        made = [one for one in run.ledger.solutions(clean=True) if one.result.submission]
        made.sort(key=lambda one: in_order(one.step))  # of equal scores the first step's counts, whichever ended first
        for found in best_first(made, lambda one: one.score, run.task.metric_direction):
            source, kept = found.result.submission or "", run.ledger.kept
            if kept is not None and (kept.step, kept.source) == (found.step, source):
                return
            rows = await asyncio.to_thread(_placed, run, source, run.ledger.text(found.script_id))
            if rows is not None:
                path = "final/best_submission.csv"
                run.record(SubmissionKept(step=found.step, path=path, source=source, rows=rows, score=found.score))
                return


def _placed(run: RunContext, submission: str, script: str) -> int | None:
    """Put a saved submission and its script where people look for the best; its rows, None where it cannot be used.

    It is checked once. The working directory may hold the next one by now.
    """
    known, holdout, folder = run.shared.scripts.checked_files, holdout_of(run), RunFolder(run.run_dir)
    if not (run.run_dir / submission).is_file():
        return None
    if submission not in known:
        sample = find_sample_submission(str(run.work_dir)) if holdout is None else holdout.sample
        with (run.run_dir / submission).open("rb") as file:
            problems = check_table(file, "./final/submission.csv", sample)
            file.seek(0)
            known[submission] = problems, count_rows(file)
        if problems:
            logger.info("submission not kept: %s", "; ".join(problems))
    if known[submission][0]:
        return None
    place_copy(run.run_dir / submission, folder.best_submission)
    write_whole(folder.best_solution, script, sync=False)  # the journal has it
    return known[submission][1]


@lru_cache(maxsize=1024)
def in_order(step: str) -> tuple[str | int, ...]:
    """A key that sorts `script-2` before `script-10`."""
    return tuple(int(word) if number % 2 else word for number, word in enumerate(re.split(r"(\d+)", step)))


# --- what was fitted ------------------------------------------------------------------------------------------


def fitted_digest(script: str, data: DataFolder) -> str:
    """What a fitted state depends on: the script, and the data as far as sizes and times tell."""
    known = [(name, s.st_size, s.st_mtime_ns) for name, s in data.files()]
    return hashlib.sha256(f"{script}\0{json.dumps(known)}".encode()).hexdigest()


def restore_fitted(run_dir: Path, work: Path, digest: str) -> Listing:
    """Make `./model/` for a script, with what it fitted before unless script or data have changed; what is in it."""
    folder = RunFolder(run_dir)
    (work / STATE).mkdir(exist_ok=True)
    with suppress(OSError, ValueError):  # nothing is kept
        if json.loads(folder.model_note.read_bytes()) == {"digest": digest}:
            copy_plain(folder.model, work / STATE)
    return listing(work / STATE)


def forget_fitted(run_dir: Path) -> None:
    """Keep nothing any more."""
    with suppress(OSError):
        RunFolder(run_dir).model_note.unlink()
    remove_entry(RunFolder(run_dir).model)


def save_fitted(run_dir: Path, made: Path, digest: str = "", *, beside: bool = False) -> bool:
    """Keep what a script left in `made`, in place of what is kept or `beside` it; what is too much, in no part.

    With its `digest`, a solution's is complete. False where nothing was kept, or the script was not run again.
    Whatever goes wrong here costs the time of fitting again, and never a result.
    """
    folder = RunFolder(run_dir)
    if not made.is_dir():
        return False
    if not beside:
        forget_fitted(run_dir)
    try:
        ours, theirs = listing(folder.model), listing(made)
        size = sum(size for size, _ in [*ours.values(), *theirs.values()])
        if size > min(MOST_BYTES, shutil.disk_usage(run_dir).free // 2):
            raise ExecutionError(f"{size / 1e9:.1f} GB are too much")
        if {*ours} & {*theirs}:
            raise ExecutionError("two scripts use the same names")
        if theirs:
            copy_plain(made, folder.model)
        if digest and (ours or theirs):
            folder.model_note.write_text(json.dumps({"digest": digest}), encoding="utf-8")
    except (OSError, ExecutionError) as why:
        logger.warning("what the solution has fitted is not kept (%s): `predict` fits again", why)
        forget_fitted(run_dir)
        return False
    return True


def listing(place: Path) -> Listing:
    """Size and time of the plain files below a folder, by name; links are not followed."""
    found = [entry for entry in entries_below(place) if entry.is_file(follow_symlinks=False)]
    status = {os.path.relpath(entry.path, place): entry.stat(follow_symlinks=False) for entry in found}
    return {name: (s.st_size, s.st_mtime_ns) for name, s in status.items()}
