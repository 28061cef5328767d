"""How much a script may leave on disk while it runs: looked at from outside, so that no way of writing gets past it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from mle_star.execution.child.tree import descendants, nameless_bytes
from mle_star.execution.limits import Limits
from mle_star.execution.workspace import entries_below

FIRST_LOOK_SECONDS = 0.25
MOST_PAUSE_SECONDS = 30.0
SHARE_OF_A_CORE = 0.05
RESERVE_BYTES = 1 << 29
"""What stays free for the run's own files, as long as the script did not begin with less than twice that."""


class Stoppable(Protocol):
    """A process that can be asked to end, with all below it."""

    @property
    def pid(self) -> int:
        """Its number."""

    async def stop(self, command: bytes, patience: float) -> None:
        """End it within `patience` seconds."""


class DiskQuota:
    """The folders that one script writes to, its own first, and the limits on what they hold, from before it starts.

    `breach` says why it was ended. The links by which the harness shows the data count for nothing, all others do.
    """

    def __init__(self, limits: Limits, folders: Sequence[Path]) -> None:
        self._limits, self._folders = limits, folders
        self._given = sum(entry.is_symlink() for folder in folders[:1] for entry in entries_below(folder / "input"))
        free = _free_bytes(folders[0])
        self._bytes = min(limits.disk_bytes, free // 2) if free else limits.disk_bytes
        self._elsewhere = {_device(folder): _free_bytes(folder) // 2 for folder in folders[1:]}
        self._elsewhere.pop(_device(folders[0]), None)
        self._reserve = RESERVE_BYTES if free > 2 * RESERVE_BYTES else 0
        self._locked = ""
        self.breach = ""

    @asynccontextmanager
    async def enforced(self, process: Stoppable) -> AsyncIterator[None]:
        """Look again and again while the script runs, for a small share of a core, and end it when it has too much."""
        watch = asyncio.create_task(self._watch(process))
        try:
            yield
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _watch(self, process: Stoppable) -> None:
        pause = FIRST_LOOK_SECONDS
        while True:
            await asyncio.sleep(pause)
            begun = time.monotonic()
            self.breach = await asyncio.to_thread(self.look, process.pid)
            if self.breach:
                await process.stop(b"c", self._limits.hurry_seconds + 1.0)
                return
            took = time.monotonic() - begun
            pause = min(MOST_PAUSE_SECONDS, max(2 * FIRST_LOOK_SECONDS, took / SHARE_OF_A_CORE))

    def look(self, pid: int) -> str:
        """Why the script below `pid` must end; empty as long as it may go on."""
        if self._reserve and _free_bytes(self._folders[0]) < self._reserve:
            return "the disk is full; write less"
        waiting = [str(folder) for folder in self._folders]
        held, files = nameless_bytes(descendants(pid), (*(f"{folder}/" for folder in waiting), "/tmp/")), 0
        locked, before, there = "", self._locked, dict.fromkeys(self._elsewhere, 0)
        while waiting:
            try:
                with os.scandir(folder := waiting.pop()) as entries:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            if status.st_dev in there:
                                there[status.st_dev] += _held_by(status)
                            else:
                                held += _held_by(status)
                        files += 1
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
            except PermissionError:
                locked = Path(folder).name
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    return "folders nested deeper than any path can be long"
            if most := self._exceeded(held, there):
                return f"more than {most / 1e9:.1f} GB on disk in its folder and /tmp"
            if files > self._limits.files + self._given:
                return f"more than {self._limits.files} files in its folder and /tmp"
        self._locked = locked
        if locked and before:  # twice: a script that is about to end has nothing to hide
            return f"a folder that the harness cannot look into ({locked}); leave folders readable"
        return ""

    def _exceeded(self, held: int, there: dict[int, int]) -> int:
        """The limit that is: of the folder's own disk, of another that /tmp lies on, or of both together; 0 if none."""
        limits = [(held, self._bytes), (held + sum(there.values()), self._limits.disk_bytes)]
        limits += [(there[device], most) for device, most in self._elsewhere.items() if most]
        return next((most for bytes_held, most in limits if bytes_held > most), 0)


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _device(folder: Path) -> int:
    try:
        return folder.stat().st_dev
    except OSError:
        return 0


def _held_by(status: os.stat_result) -> int:
    """What it takes on disk: a file may be long and hold nothing."""
    blocks: int | None = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else blocks * 512
