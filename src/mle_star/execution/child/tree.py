"""The processes below one process, read from /proc. Without /proc there are none to see.

Written for a quick start, like all that runs before a script: no import that takes longer than its use.
"""

from __future__ import annotations

import os

SIGKILL = 9
SIGSTOP = 19  # on Linux; only there is a tree to be seen
MEMORY_FILES = ("/memfd:", "/dev/shm/")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs start-up time here
            return file.read()
    except OSError:
        return ""


def is_visible() -> bool:
    """Can the processes below this one be seen here?"""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110


def children(pid: int) -> list[int]:
    """The direct children of `pid`."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return found
    for thread in threads:
        found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def descendants(pid: int, most: int = 1 << 22) -> list[int]:
    """All processes below `pid`, parents before children; once there are more than `most`, no further ones."""
    found, queue = dict[int, None](), children(pid)
    while queue and len(found) <= most:
        child = queue.pop(0)
        if child not in found:
            found[child] = None
            queue += children(child)
    return list(found)


def name_of(pid: int) -> str:
    """The process's own short name."""
    return _read(f"/proc/{pid}/comm").strip()


def _figures(path: str, *names: str) -> list[int]:
    """What lines of a file of /proc say, by their names; nothing where they are missing."""
    lines = dict(line.split(":", 1) for line in _read(path).splitlines() if ":" in line)
    return [int(lines[name].split()[0]) for name in names if name in lines]


def load_of(pids: list[int], *, exactly: bool = False) -> tuple[int, int]:
    """Tasks (threads counted) of these processes together, and bytes of memory, at most: shared ones count for each.

    `exactly`: what several share counts once, by a closer look, which takes longer; a process that forbids looks inside
    counts whole. Shared memory may be held by nothing but a descriptor.
    """
    tasks = private = shared = 0
    for pid in pids:
        threads, anonymous, mapped = (*_figures(f"/proc/{pid}/status", "Threads", "RssAnon", "RssShmem"), 0, 0, 0)[:3]
        if exactly:
            inside = _figures(f"/proc/{pid}/smaps_rollup", "Pss_Anon", "Pss_Shmem")
            anonymous, mapped = (*inside, anonymous, mapped)[:2]
        tasks, private, shared = tasks + threads, private + anonymous, shared + mapped
    return tasks, private * 1024 + max(shared * 1024, nameless_bytes(pids, MEMORY_FILES))


def nameless_bytes(pids: list[int], places: tuple[str, ...]) -> int:
    """What open files take that are in no folder any more, by where they were; each once, whoever has it open."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
        except OSError:
            continue
        for number in numbers:
            try:
                was = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115
                if was.startswith(places) and was.endswith(" (deleted)"):
                    status = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116
                    found[status.st_dev, status.st_ino] = status.st_blocks * 512
            except OSError:
                continue
    return sum(found.values())


def tasks_of_user(uid: int) -> int:
    """Tasks of a user, everywhere: what the kernel counts against RLIMIT_NPROC."""
    mine = []
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            try:
                if os.stat(f"/proc/{entry}").st_uid == uid:  # noqa: PTH116
                    mine.append(int(entry))
            except OSError:
                continue
    return load_of(mine)[0]


def send(pids: list[int], number: int) -> None:
    """Send a signal to each; one that is gone is no trouble."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def kill_groups(pids: list[int]) -> None:
    """Kill the process groups of these: each at one blow, in which none of its processes can multiply."""
    groups = {os.getpgrp()}
    for pid in pids:
        try:
            group = os.getpgid(pid)
            if group not in groups:
                groups.add(group)
                os.killpg(group, SIGKILL)
        except OSError:
            continue


def kill_all_below(pid: int) -> None:
    """One pass: group by group, then whatever is left is stopped, so that it cannot multiply meanwhile, and killed."""
    seen: set[int] = set()
    for _ in range(20):
        found = [entry for entry in descendants(pid) if entry not in seen]
        if not found:
            break
        kill_groups(found)
        send(found, SIGSTOP)
        seen.update(found)
    send(list(seen), SIGKILL)
