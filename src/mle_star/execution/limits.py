"""How much of the machine one script may use: numbers, control groups (version 2), and a watch on the disk."""

import asyncio
import errno
import logging
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from mle_star.execution.child.supervisor import descendants, nameless_bytes
from mle_star.execution.environment import concurrent_scripts, usable_cores
from mle_star.execution.process import ScriptProcess
from mle_star.execution.workspace import entries_below
from mle_star.models import PipelineConfig

logger = logging.getLogger("mle_star.execution")

PREFIX = "mle-star-"
"""Begins the names of groups and of temporary folders."""
MAX_OUTPUT_BYTES = 100 * 1024 * 1024
"""What is kept on disk of each stream."""


@dataclass(frozen=True)
class Limits:
    """The limits of one script besides its time. Output beyond `output_bytes` is dropped, not a reason to stop."""

    memory_bytes: int
    tasks: int = 1024
    file_bytes: int = 8 << 30
    open_files: int = 4096
    disk_bytes: int = 50 * 10**9
    files: int = 500_000
    output_bytes: int = MAX_OUTPUT_BYTES
    head_bytes: int = 4 * 1024 * 1024
    tail_bytes: int = 1024 * 1024
    grace_seconds: float = 5.0
    hurry_seconds: float = 0.5

    @classmethod
    def of(cls, config: PipelineConfig) -> "Limits":
        """The limits that a configuration and this machine ask for."""
        given, share = config.script_memory_gb, 0.9 * machine_memory() / concurrent_scripts(config)
        return cls(
            memory_bytes=int(share if given is None else given * 1e9),
            tasks=max(1024, 64 * usable_cores()),
            disk_bytes=int(config.script_disk_gb * 1e9),
            files=config.script_files,
        )


def own_groups(process: Path = Path("/proc/self")) -> list[Path]:
    """The control groups (version 2) that a process is in: the innermost first, up to where they are mounted."""
    try:
        mounts = [line.split() for line in (process / "mounts").read_text().splitlines()]
        inner = [line[4:] for line in (process / "cgroup").read_text().splitlines() if line.startswith("0::/")]
    except (OSError, ValueError):
        return []
    root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    if root is None or not inner or ".." in inner[0]:
        return []
    own = root / inner[0]
    return [place for place in (own, *own.parents) if place.is_relative_to(root)]


def machine_memory(groups: Sequence[Path] | None = None) -> int:
    """The memory of this machine, or of the container or the job that this process lives in."""
    total = int(psutil.virtual_memory().total)
    for group in own_groups() if groups is None else groups:
        with suppress(OSError, ValueError):
            total = min(total, int((group / "memory.max").read_text()))
    return total


def find_cgroup_parent(groups: Sequence[Path] | None = None) -> Path | None:
    """Where this process may make groups that count memory and tasks, if anywhere; groups of dead processes go."""
    for parent in own_groups() if groups is None else groups:
        with suppress(OSError):
            handed_down = (parent / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(handed_down) and os.access(parent, os.W_OK):
                for folder in parent.glob(f"{PREFIX}*"):
                    owner = folder.name[len(PREFIX) :].split("-")[0]
                    if owner.isdigit() and not psutil.pid_exists(int(owner)):
                        Cgroup(folder).is_gone()
                return parent
    return None


@dataclass(frozen=True)
class Cgroup:
    """The group of one script."""

    folder: Path

    @classmethod
    def create(cls, parent: Path, limits: Limits) -> "Cgroup | None":
        """A fresh group with limits, or None where the system refuses."""
        group = cls(parent / f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}")
        try:
            group.folder.mkdir()
            group._write("pids.max", limits.tasks)
            group._write("memory.max", limits.memory_bytes)
        except OSError as error:
            logger.debug("no control group: %s", error)
            group.remove()
            return None
        group._try_to_write({"memory.swap.max": 0, "memory.oom.group": 1})
        return group

    def _write(self, name: str, value: int) -> None:
        with (self.folder / name).open("r+") as file:  # never made, where the kernel has no such file
            file.write(str(value))

    def _try_to_write(self, values: dict[str, int]) -> None:
        for name, value in values.items():
            with suppress(OSError):
                self._write(name, value)

    def events(self, name: str, event: str) -> int:
        """How often something happened here, by the kernel's count."""
        with suppress(OSError, ValueError):
            lines = (line.split() for line in (self.folder / name).read_text().splitlines())
            return next((int(count) for key, count in lines if key == event), 0)
        return 0

    def kill(self) -> None:
        """Kill whatever is still inside (Linux 5.14 or later)."""
        self._try_to_write({"pids.max": 0, "cgroup.kill": 1})

    def is_gone(self) -> bool:
        """Take the group away if it is empty."""
        with suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()

    def remove(self) -> None:
        """Take the group away, with all that is in it."""
        for _ in range(150):
            if self.is_gone():
                return
            self.kill()
            time.sleep(0.01)
        logger.warning("control group %s could not be removed", self.folder)


FIRST_LOOK_SECONDS = 0.25
MOST_PAUSE_SECONDS = 30.0
SHARE_OF_A_CORE = 0.05
RESERVE_BYTES = 1 << 29
"""What stays free for the run's own files, as long as the script did not begin with less than twice that."""


class DiskQuota:
    """The folders that one script writes to, its own first, and the limits on what they hold, from before it starts.

    Of each disk it has at most half of what is free. `breach` says why it was ended. The links by which the harness
    shows the data count for nothing, all others do.
    """

    def __init__(self, limits: Limits, folders: Sequence[Path]) -> None:
        self._limits, self._folders = limits, folders
        self._given = sum(entry.is_symlink() for entry in entries_below(folders[0] / "input"))
        free = {folder.stat().st_dev: shutil.disk_usage(folder).free for folder in folders}
        self._device = folders[0].stat().st_dev
        self._allowed = {device: left // 2 for device, left in free.items() if left}  # some disks do not tell
        self._reserve = RESERVE_BYTES if free[self._device] > 2 * RESERVE_BYTES else 0
        self._locked = ""
        self.breach = ""

    @asynccontextmanager
    async def enforced(self, process: ScriptProcess) -> AsyncIterator[None]:
        """Look again and again while the script runs, for a small share of a core, and end it when it has too much."""
        watch = asyncio.create_task(self._watch(process))
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _watch(self, process: ScriptProcess) -> None:
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
        """Why the script below `pid` must end; empty as long as it may run."""
        with suppress(OSError):  # a script that nothing confines may have removed its folder
            if shutil.disk_usage(self._folders[0]).free < self._reserve:
                return "the disk is full; write less"
        waiting = [str(folder) for folder in self._folders]
        held, files = Counter[int](), 0
        held[self._device] = nameless_bytes(descendants(pid), (*(f"{one}/" for one in waiting), "/tmp/"))
        locked, before = "", self._locked
        while waiting:
            try:
                with os.scandir(folder := waiting.pop()) as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            held[status.st_dev] += status.st_blocks * 512  # a file may be long and hold nothing
                        files += 1
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
            except PermissionError:
                locked = Path(folder).name
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    return "folders nested deeper than any path can be long"
            limits = [(held.total(), self._limits.disk_bytes)]
            limits += [(held[device], most) for device, most in self._allowed.items()]
            if most := next((most for size, most in limits if size > most), 0):
                return f"more than {most / 1e9:.1f} GB on disk in its folder and /tmp"
            if files > self._limits.files + self._given:
                return f"more than {self._limits.files} files in its folder and /tmp"
        self._locked = locked
        if locked and before:  # twice: a script that is about to end has nothing to hide
            return f"a folder that the harness cannot look into ({locked}); leave folders readable"
        return ""
