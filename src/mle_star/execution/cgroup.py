"""Control groups (version 2): the kernel counts memory and tasks of a tree of processes, where we may make groups."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from mle_star.execution.limits import Limits

logger = logging.getLogger("mle_star.execution")

PREFIX = "mle-star-"


@dataclass(frozen=True)
class Cgroup:
    """The group of one script."""

    folder: Path

    @classmethod
    def create(cls, parent: Path, limits: Limits) -> Cgroup | None:
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
        for name, value in (("memory.swap.max", 0), ("memory.oom.group", 1)):
            with contextlib.suppress(OSError):
                group._write(name, value)
        return group

    def _write(self, name: str, value: int) -> None:
        with (self.folder / name).open("r+") as file:  # never made, where the kernel has no such file
            file.write(str(value))

    def events(self, name: str, event: str) -> int:
        """How often something happened here, by the kernel's count: `max` in `pids.events` is a refused fork."""
        with contextlib.suppress(OSError, ValueError):
            lines = (line.split() for line in (self.folder / name).read_text().splitlines())
            return next((int(count) for key, count in lines if key == event), 0)
        return 0

    def kill(self) -> None:
        """Kill whatever is still inside."""
        for name, value in (("pids.max", 0), ("cgroup.kill", 1)):
            with contextlib.suppress(OSError):
                self._write(name, value)
        with contextlib.suppress(OSError):  # before Linux 5.14 there is no cgroup.kill
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Take the group away, with all that is in it."""
        for attempt in range(50):
            if _removed(self.folder):
                return
            self.kill()
            time.sleep(0.001 * 2 ** min(attempt, 5))
        logger.warning("control group %s could not be removed", self.folder)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def find_cgroup_parent(process: Path = Path("/proc/self")) -> Path | None:
    """Where this process may make groups that count memory and tasks, if anywhere; groups of dead processes go."""
    try:
        own = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (process / "mounts").read_text().splitlines()]
    except (OSError, ValueError):
        return None
    root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    path = next((entry[2] for entry in own if entry[0] == "0"), None)
    if root is None or path is None:
        return None
    here = root / path.lstrip("/")
    for parent in dict.fromkeys((here, here.parent if here != root else root, root)):
        with contextlib.suppress(OSError):
            handed_down = (parent / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(handed_down) and os.access(parent, os.W_OK):
                _remove_stale(parent)
                return parent
    return None


def _remove_stale(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        owner = folder.name[len(PREFIX) :].split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _removed(folder)
