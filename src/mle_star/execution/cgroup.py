"""Control groups: the kernel counts memory and tasks of a whole tree of processes. Linux, where we may make them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from mle_star.execution.limits import Limits

logger = logging.getLogger("mle_star.execution")

PREFIX = "mle-star-"
_FILES = {
    2: {"tasks": "pids.max", "memory": "memory.max"},
    1: {"tasks": "pids.max", "memory": "memory.limit_in_bytes"},
}


@dataclass(frozen=True)
class CgroupHome:
    """Where groups can be made: one directory for version 2, one for each controller for version 1."""

    version: int
    parents: tuple[Path, ...]

    def create(self, limits: Limits) -> Cgroup | None:
        """A fresh group with limits, or None where the system refuses."""
        name = f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        group = Cgroup([parent / name for parent in self.parents], self.version)
        try:
            for folder in group.folders:
                folder.mkdir()
                group.set_limits(folder, limits)
        except OSError as error:
            logger.debug("no control group: %s", error)
            group.remove()
            return None
        return group


@dataclass
class Cgroup:
    """The group of one script."""

    folders: list[Path]
    version: int
    limited: set[str] = field(default_factory=set)

    def set_limits(self, folder: Path, limits: Limits) -> None:
        """Write what this folder's controllers can limit."""
        values = {"tasks": limits.tasks, "memory": limits.memory_bytes}
        for what, name in _FILES[self.version].items():
            if (folder / name).exists():
                (folder / name).write_text(str(values[what]))
                self.limited.add(what)
        for name, text in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with contextlib.suppress(OSError):
                if (folder / name).exists():
                    (folder / name).write_text(text)

    @property
    def members(self) -> list[str]:
        """The files through which a process joins."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    @property
    def fork_gates(self) -> list[str]:
        """The files that stop forks when 0 is written to them."""
        return [str(folder / "pids.max") for folder in self.folders if (folder / "pids.max").exists()]

    def memory_kills(self) -> int:
        """How often the kernel killed here because memory ran out."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError, ValueError):
                    for line in (folder / name).read_text().splitlines():
                        key, _, value = line.partition(" ")
                        if key == "oom_kill":
                            return int(value)
        return 0

    def refused_forks(self) -> int:
        """How often the kernel refused a new process or thread here."""
        for folder in self.folders:
            with contextlib.suppress(OSError, ValueError, IndexError):
                return int((folder / "pids.events").read_text().split()[1])
        return 0

    def kill(self) -> None:
        """Kill whatever is still inside."""
        for gate in self.fork_gates:
            with contextlib.suppress(OSError):
                Path(gate).write_text("0")
        for folder in self.folders:
            with contextlib.suppress(OSError):
                (folder / "cgroup.kill").write_text("1")
            with contextlib.suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(OSError):
                        os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Take the group away, with all that is in it."""
        for attempt in range(50):
            self.folders = [folder for folder in self.folders if not _removed(folder)]
            if not self.folders:
                return
            self.kill()
            time.sleep(0.001 * 2 ** min(attempt, 5))
        logger.warning("control group %s could not be removed", self.folders[0])


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def find_cgroup_home() -> CgroupHome | None:
    """Where this process may make groups that count memory and tasks, if anywhere."""
    try:
        own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except (OSError, ValueError):
        return None
    home = _version_2(own, mounts) or _version_1(own, mounts)
    if home is not None:
        _remove_stale(home)
    return home


def _version_2(own: list[list[str]], mounts: list[list[str]]) -> CgroupHome | None:
    root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    path = next((entry[2] for entry in own if entry[0] == "0"), None)
    if root is None or path is None:
        return None
    here = root / path.lstrip("/")
    for parent in dict.fromkeys((here, here.parent if here != root else root, root)):
        try:
            handed_down = (parent / "cgroup.subtree_control").read_text().split()
        except OSError:
            continue
        if {"memory", "pids"} <= set(handed_down) and os.access(parent, os.W_OK):
            return CgroupHome(2, (parent,))
    return None


def _version_1(own: list[list[str]], mounts: list[list[str]]) -> CgroupHome | None:
    parents = []
    for controller in ("pids", "memory"):
        root = next((m[1] for m in mounts if m[2] == "cgroup" and controller in m[3].split(",")), None)
        path = next((entry[2] for entry in own if controller in entry[1].split(",")), None)
        if root is None or path is None:
            continue
        folder = Path(root) / path.lstrip("/")
        folder = folder if folder.is_dir() else Path(root)  # inside a container the path is the host's
        if os.access(folder, os.W_OK):
            parents.append(folder)
    return CgroupHome(1, tuple(dict.fromkeys(parents))) if parents else None


def _remove_stale(home: CgroupHome) -> None:
    """Groups of processes that died hard: empty, and nobody's."""
    for parent in home.parents:
        for folder in parent.glob(f"{PREFIX}*"):
            owner = folder.name[len(PREFIX) :].split("-")[0]
            if owner.isdigit() and not Path(f"/proc/{owner}").exists():
                _removed(folder)
