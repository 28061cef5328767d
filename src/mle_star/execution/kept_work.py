"""Work that stays from script to script of one view: copied into `./cache` before, new files taken out after it."""

import asyncio
import os
import shutil
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path

from mle_star.execution.limits import RESERVE_BYTES
from mle_star.execution.workspace import entries_below, open_plain, remove_entry
from mle_star.models import PipelineConfig
from mle_star.run.folder import write_whole

CACHE = "cache"
"""Its folder in a working directory, and what is kept of all views in the folder of the run."""
SHARE = 0.02
"""Of what a script may write, in bytes and in files: so much is kept of each view."""


async def lend(kept: Path | None, work_dir: Path) -> bool:
    """Give a script a `./cache` of its own, with copies of what was kept: it cannot change what others read.

    Was there anything? Copies are made elsewhere and moved: who is cancelled meanwhile writes to no later script.
    """
    if kept is None:
        (work_dir / CACHE).mkdir(exist_ok=True)
        return False
    folder = _apart(kept)
    folder.mkdir(parents=True)
    copies = await asyncio.to_thread(lambda: sum(_copy(entry, kept, folder) for entry in entries_below(kept)))
    folder.rename(work_dir / CACHE)
    return copies > 0


async def take_back(work_dir: Path, kept: Path, config: PipelineConfig) -> None:
    """Keep what a script has added to its `./cache`; the folder itself goes, with all that was set on it."""
    folder = _apart(kept)
    try:
        (work_dir / CACHE).rename(folder)
    except OSError:  # removed or locked by the script
        return
    await asyncio.to_thread(_keep, folder, kept, config)


def _apart(kept: Path) -> Path:
    return kept.with_name(f".{uuid.uuid4().hex}")


def _keep(folder: Path, kept: Path, config: PipelineConfig) -> None:
    """Copy what is new in a folder to what is kept, and remove the folder; where it is too much the oldest files go.

    Plain files alone, and of each its content alone: no attribute, mode, time or link of a script outlives it.
    A file that is there already stays as it is.
    """
    most_bytes, most_files = int(SHARE * config.script_disk_gb * 1e9), int(SHARE * config.script_files)
    has_room = shutil.disk_usage(kept.parent).free > RESERVE_BYTES + most_bytes
    room, count = (most_bytes, most_files) if has_room else (0, 0)
    for entry in entries_below(folder):
        with suppress(OSError):
            size = entry.stat(follow_symlinks=False).st_size
            if count > 0 and size <= room and _copy(entry, folder, kept):
                room, count = room - size, count - 1
    files = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries_below(kept)]
    files.sort(key=lambda one: one[0].st_mtime_ns, reverse=True)
    total = 0
    for number, (info, path) in enumerate(files, 1):  # the newest first
        total += info.st_size
        if total > most_bytes or number > most_files:
            os.unlink(path)  # noqa: PTH108
    remove_entry(folder)


def _copy(entry: os.DirEntry[str], source: Path, target: Path) -> bool:
    """Copy a plain file to the same place below `target`, whole or not at all, unless one is there."""
    place, new = target / Path(entry.path).relative_to(source), _apart(target)
    with suppress(OSError):  # locked, too deep, gone, or no room: nobody may count on it
        if entry.is_file(follow_symlinks=False) and not os.path.lexists(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            with open_plain(entry.path) as file:  # elsewhere, as others copy meanwhile what is kept
                write_whole(new, iter(partial(file.read, 1 << 20), b""), sync=False)
            new.rename(place)
            return True
    return False
