"""Stands between the harness and a script: confines it, outlives it, and leaves nothing of it behind.

It is the script's parent, so that a script which kills its parent does not reach the harness, and inherits all orphans.
Orders come by the descriptor that the first argument names, commands as bytes on stdin (`t`: end it politely, `c`: the
same in a hurry; end of file: the harness is gone, kill it). What happened goes to the descriptor `report`, one
`name<TAB>value` a line.

It starts before every script, so it imports only what starts quickly: `signal`, `json`, `typing` and `contextlib` would
take longer than all the rest.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the public module imports enum, functools and collections
import marshal
import os
import select
import sys
import time

from . import confine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Order = dict[str, Any]

WATCH_SECONDS = 0.02
GIVE_UP_SECONDS = 10.0
SIGSTOP = 19  # on Linux; only there is a tree of processes to be seen
MEMORY_FILES = ("/memfd:", "/dev/shm/")


def main() -> None:
    """Run one script to its end."""
    order = confine.given_order()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    confine.prctl(confine.SUBREAPER, 1)
    confine.prctl(confine.PARENT_DEATH_SIGNAL, signal.SIGUSR2)  # wakes the loop, should end of file on stdin not come
    confine.prctl(confine.DUMPABLE, 0)
    os.set_inheritable(order["report"], False)
    report: dict[str, str] = {}
    try:
        pid = _start(order, report)
        if pid > 0:
            order["watch"] = "cgroup" not in report["applied"].split()  # none was made, or it could not be joined
            if order["watch"] and os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110
                report["applied"] += " watch"
            status = _Watch(pid, order, report).until_the_end()
            _leave_nothing(pid, order)
            if status is not None:
                killed = os.WIFSIGNALED(status)
                report["signal" if killed else "exit"] = str(os.WTERMSIG(status) if killed else os.WEXITSTATUS(status))
    finally:
        os.write(order["report"], _lines(report))
        os._exit(0)  # taking the interpreter down in order would make the harness wait


def _lines(report: dict[str, str]) -> bytes:
    return "".join(f"{name}\t{' '.join(value.split())}\n" for name, value in report.items()).encode("utf-8", "replace")


# --- starting -----------------------------------------------------------------------------------------------


def _start(order: Order, report: dict[str, str]) -> int:
    """Fork and become the script; the child tells through a pipe what confines it, or why it could not start."""
    status_read, status_write = os.pipe()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(status_read)
            os.close(order["report"])  # what is said there is believed, so no script may say it
            _become_the_script(order, status_write, supervisor)
        except BaseException as error:
            os.write(status_write, _lines({"error": f"{type(error).__name__}: {error}"}))
        finally:
            os._exit(127)
    os.close(status_write)
    with open(status_read, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib starts slowly
        report.update(dict(line.rstrip("\n").split("\t", 1) for line in file))
    if "error" not in report and "inside" not in report:
        report["error"] = "the sandbox could not be set up"
    report["applied"] = f"{report.pop('applied', '')} {report.pop('inside', '')}"
    if "error" in report:
        os.waitpid(pid, 0)
        return -1
    return pid


def _become_the_script(order: Order, status_pipe: int, supervisor: int) -> None:
    os.setsid()
    confine.prctl(confine.DUMPABLE, 1)  # or this process could not write to its own /proc
    confine.prctl(confine.PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != supervisor:
        raise RuntimeError("the supervisor is gone")
    _try_to_write("/proc/self/oom_score_adj", "1000")  # when memory runs out, the script goes first
    joined = bool(order["cgroup"]) and _try_to_write(f"{order['cgroup']}/cgroup.procs", "0")
    applied = ["cgroup"] if joined else []
    limits = dict(order["limits"])
    if not joined and os.getuid() != 0 and os.path.isdir("/proc/self"):  # noqa: PTH112
        limits["NPROC"] = order["max_tasks"] + tasks_of_user(os.getuid())
    applied += confine.limit_resources(limits)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.write(status_pipe, _lines({"applied": " ".join(applied)}))
    inside = order["inside"]
    if order["bubblewrap"]:
        _enter_bubblewrap(order["bubblewrap"], inside, status_pipe)
    if order["namespaces"]:
        confine.enter_namespaces(**order["namespaces"], kept=[status_pipe])
        os.chdir(order["working_dir"])
    confine.become(inside, status_pipe, ["namespaces"] if order["namespaces"] else [])


def _enter_bubblewrap(command: list[str], inside: Order, status_pipe: int) -> None:
    """Bubblewrap gets its words by a descriptor: a script could read them in the process table."""
    given = _in_memory(b"".join(os.fsencode(word) + b"\0" for word in command[1:]))
    os.set_inheritable(status_pipe, True)
    # in a form that whichever Python the scripts have can read
    orders = _in_memory(marshal.dumps({**inside, "status_pipe": status_pipe}, 2))
    os.execv(command[0], [command[0], "--args", given, *inside["launcher"], orders])


def _in_memory(content: bytes) -> str:
    """The number of a descriptor from which the next program can read this."""
    number = os.memfd_create("given", 0)
    os.write(number, content)
    os.lseek(number, 0, os.SEEK_SET)
    return str(number)


def _try_to_write(path: str, text: str) -> bool:
    try:
        with open(path, "w") as file:  # noqa: PTH123 - pathlib starts slowly
            file.write(text)
    except OSError:
        return False
    return True


# --- watching -----------------------------------------------------------------------------------------------


class _Watch:
    """Waits for the script, listens to the harness, and counts what the kernel does not count."""

    def __init__(self, pid: int, order: Order, report: dict[str, str]) -> None:
        self.pid, self.order, self.report = pid, order, report
        self.status: int | None = None
        self.kill_at: float | None = None
        self.pause = WATCH_SECONDS

    def until_the_end(self) -> int | None:
        """The script's wait status, as soon as it has ended."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        listening = [0, wake_read]
        while not self._reap():
            ready, _, _ = select.select(listening, [], [], self._patience())
            if wake_read in ready:
                os.read(wake_read, 4096)
            if 0 in ready:
                command = os.read(0, 1)
                if not command:
                    listening = [wake_read]
                self._obey(command)
            elif os.getppid() != self.order["parent"]:
                self._obey(b"")
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self._kill()
            if self.order["watch"]:
                self._count()
        return self.status

    def _reap(self) -> bool:
        """Has the script ended? Its orphans are reaped on the way."""
        pid, status = -1, 0
        try:
            while pid not in (0, self.pid):
                pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        self.status = status if pid else None
        return pid != 0

    def _patience(self) -> float | None:
        times = [self.pause] if self.order["watch"] else []
        if self.kill_at is not None:
            times.append(max(self.kill_at - time.monotonic(), 0.0))
        return min(times, default=None)

    def _obey(self, command: bytes) -> None:
        if command in (b"t", b"c"):
            self.kill_at = time.monotonic() + self.order["grace" if command == b"t" else "hurry"]
            # the first processes of a sandbox would take the rest with them, without any grace
            first = ("bwrap", confine.NAME)
            found = [pid for pid in descendants(os.getpid()) if _read(f"/proc/{pid}/comm").strip() not in first]
            script, *others = found or [self.pid]
            send([script], signal.SIGABRT if command == b"t" and _says_where_it_is(script) else signal.SIGTERM)
            send(others, signal.SIGTERM)
        elif not command:
            self._kill()

    def _kill(self) -> None:
        kill_groups([self.pid])  # where there is no /proc, this group is all that is known
        _kill_all(self.order)
        self.kill_at = time.monotonic() + 0.1  # again, in case something slipped through

    def _count(self) -> None:
        """Kill what has too much; the next look is so much later that all looks take a small share of a core."""
        begun, most, most_tasks = time.monotonic(), self.order["max_memory"], self.order["max_tasks"]
        found = descendants(os.getpid(), most_tasks)
        tasks, memory = (len(found), 0) if len(found) > most_tasks else load_of(found)
        if tasks > most_tasks:
            self.report["reason"] = f"more than {most_tasks} processes and threads"
            kill_groups(found)  # at once: there may be hundreds more by the time that all are found
            self._kill()
        elif memory > most and load_of(found, exactly=True)[1] > most:
            self.report["reason"] = f"more than {most / 1e9:.1f} GB of memory"
            self._kill()
        self.pause = max(WATCH_SECONDS, 20 * (time.monotonic() - begun))


def _says_where_it_is(pid: int) -> bool:
    """Does a process print its stack at SIGABRT, as Python's faulthandler does, and nothing of its own at SIGTERM?"""
    lines = dict(line.split(":", 1) for line in _read(f"/proc/{pid}/status").splitlines() if line.startswith("Sig"))
    caught, ignored = (int(lines.get(name, "0"), 16) for name in ("SigCgt", "SigIgn"))
    return bool(caught & 1 << signal.SIGABRT - 1) and not (caught | ignored) & 1 << signal.SIGTERM - 1


# --- ending -------------------------------------------------------------------------------------------------


def _kill_all(order: Order) -> None:
    """One pass: group by group, then whatever is left is stopped, so that it cannot multiply meanwhile, and killed."""
    if order["cgroup"]:
        _try_to_write(f"{order['cgroup']}/pids.max", "0")
    seen: set[int] = set()
    for _ in range(20):
        found = [pid for pid in descendants(os.getpid()) if pid not in seen]
        if not found:
            break
        kill_groups(found)
        send(found, SIGSTOP)
        seen.update(found)
    send(seen, signal.SIGKILL)


def _leave_nothing(pid: int, order: Order) -> None:
    """Kill and reap until nothing is left: every orphan is a child of this process by now."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            break
        _kill_all(order)
        time.sleep(0.002)
    if sys.platform != "linux":  # there is no subreaper there, and the group may still have members
        attempt(os.killpg, pid, signal.SIGKILL)


# --- the processes below one process, read from /proc; without /proc there are none to see ------------------------


def attempt(function: Callable[..., Any], *words: Any) -> Any:
    """What a call gives, or None: the process that it is about may be gone, and the system may refuse."""
    try:
        return function(*words)
    except OSError:
        return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs start-up time here
            return file.read()
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """The direct children of `pid`."""
    found: list[int] = []
    for thread in attempt(os.listdir, f"/proc/{pid}/task") or ():
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
    """Sizes of open files that are in no folder any more, by where they were; each counts once."""
    found: dict[tuple[int, int], int] = {}
    files = (f"/proc/{pid}/fd/{number}" for pid in pids for number in attempt(os.listdir, f"/proc/{pid}/fd") or ())
    for path in files:
        was = attempt(os.readlink, path) or ""
        status = attempt(os.stat, path) if was.startswith(places) and was.endswith(" (deleted)") else None
        if status is not None:
            found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def tasks_of_user(uid: int) -> int:
    """Tasks of a user, everywhere: what the kernel counts against RLIMIT_NPROC."""
    owners = {int(entry): attempt(os.stat, f"/proc/{entry}") for entry in os.listdir("/proc") if entry.isdigit()}  # noqa: PTH208
    return load_of([pid for pid, status in owners.items() if status is not None and status.st_uid == uid])[0]


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each; one that is gone is no trouble."""
    for pid in pids:
        attempt(os.kill, pid, number)


def kill_groups(pids: list[int]) -> None:
    """Kill the process groups of these: each at one blow, in which none of its processes can multiply."""
    for group in {attempt(os.getpgid, pid) for pid in pids} - {os.getpgrp(), None}:
        attempt(os.killpg, group, signal.SIGKILL)
