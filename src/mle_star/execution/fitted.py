"""What a script has fitted: the folder `./model/` of its last run, kept beside the run for the predictions to come.

Its files are copied and never opened: whatever a script has put there is read by the same script alone, in the sandbox.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path

from mle_star.data.place import DataFolder
from mle_star.errors import ExecutionError
from mle_star.execution.workspace import copy_plain, entries_below, remove_entry
from mle_star.run.context import RunContext
from mle_star.run.folder import RunFolder

logger = logging.getLogger("mle_star.execution")

STATE = "model"
"""The folder of a working directory in which a script may keep what it has fitted."""
MOST_BYTES = 2 << 30

Listing = dict[str, tuple[int, int]]


def fitted_digest(script: str, data: DataFolder) -> str:
    """What a fitted state depends on: the script, and the data as far as sizes and times tell."""
    known = [(os.path.relpath(path, data.root), s.st_size, s.st_mtime_ns) for path, s in data.files()]
    return hashlib.sha256(f"{script}\0{json.dumps(known)}".encode()).hexdigest()


def restore_fitted(run_dir: Path, work: Path, digest: str) -> Listing:
    """Make `./model/` for a script, with what it fitted before unless script or data have changed; what is in it."""
    kept, note = RunFolder(run_dir).model, RunFolder(run_dir).model_note
    (work / STATE).mkdir(exist_ok=True)
    try:
        fits = json.loads(note.read_text(encoding="utf-8")) == {"digest": digest} and kept.is_dir()
    except (OSError, ValueError):
        fits = False
    if fits:
        copy_plain(kept, work / STATE)
    return listing(work / STATE)


def forget_fitted(run_dir: Path) -> None:
    """Keep nothing any more."""
    with contextlib.suppress(OSError):
        RunFolder(run_dir).model_note.unlink()
    remove_entry(RunFolder(run_dir).model)


def add_fitted(run_dir: Path, made: Path, *, most: int = MOST_BYTES) -> None:
    """Keep what a script left in `made`, beside what others of the same solution left; what is too much, in no part.

    Whatever goes wrong here costs the time of fitting again, and never a result.
    """
    kept = RunFolder(run_dir).model
    try:
        ours, theirs = listing(kept), listing(made)
        if not theirs:
            return
        size = sum(size for size, _ in [*ours.values(), *theirs.values()])
        if size > min(most, shutil.disk_usage(run_dir).free // 2):
            raise ExecutionError(f"{size / 1e9:.1f} GB are too much")
        if {*ours} & {*theirs}:
            raise ExecutionError("two scripts use the same names")
        copy_plain(made, kept)
    except (OSError, ExecutionError) as why:
        logger.warning("what the solution has fitted is not kept (%s): `predict` fits anew", why)
        forget_fitted(run_dir)


def keep_fitted(run: RunContext, *, first: bool) -> bool:
    """Keep what a script of the solution has just fitted; False where it was not run anew."""
    if not (run.work_dir / STATE).is_dir():
        return False
    if first:
        forget_fitted(run.run_dir)
    add_fitted(run.run_dir, run.work_dir / STATE)
    return True


def note_fitted(run_dir: Path, digest: str) -> None:
    """What is kept belongs to this script and these data."""
    if listing(RunFolder(run_dir).model):
        with contextlib.suppress(OSError):
            RunFolder(run_dir).model_note.write_text(json.dumps({"digest": digest}), encoding="utf-8")


def listing(place: Path) -> Listing:
    """Size and time of the plain files below a folder, by name; links are not followed."""
    found = [entry for entry in entries_below(place) if entry.is_file(follow_symlinks=False)]
    status = {os.path.relpath(entry.path, place): entry.stat(follow_symlinks=False) for entry in found}
    return {name: (s.st_size, s.st_mtime_ns) for name, s in status.items()}
