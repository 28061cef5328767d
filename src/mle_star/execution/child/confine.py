"""What a process gives up before it becomes a script: rights, limits, system calls. Linux only where said."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # see the supervisor: the public module starts slowly
import marshal
import os
import resource
import struct
import sys

from . import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Order = dict[str, Any]

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_SECCOMP, _SECCOMP_FILTER = 22, 2
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _AMBIENT_CLEAR = 47, 4

NAME = "mle-star-init"
"""Of processes that wait for a script."""

_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522


def prctl(option: int, value: int | bytes, *more: bytes | int) -> bool:
    """Call `prctl`; False where it is missing or refuses."""
    if sys.platform != "linux":
        return False
    words = (value, *more, 0, 0, 0)[:4]
    try:
        return libc.call("prctl", option, *words) == 0
    except OSError:
        return False


def become_subreaper() -> bool:
    """Inherit every orphan of the script, so that none can get away (Linux)."""
    return prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_at_parents_death(signal_number: int) -> bool:
    """Have the kernel send a signal when the parent dies (Linux)."""
    return prctl(_PR_SET_PDEATHSIG, signal_number)


def give_up_new_privileges() -> bool:
    """From now on no set-uid program raises rights, sudo included (Linux)."""
    return prctl(_PR_SET_NO_NEW_PRIVS, 1)


def let_others_look_inside(allowed: bool) -> bool:
    """May processes of the same user read this one's memory and descriptors? The next program starts anew (Linux)."""
    return prctl(_PR_SET_DUMPABLE, int(allowed))


def take_name(name: str) -> bool:
    """Be known to the process table by this name, of at most 15 letters (Linux)."""
    return prctl(_PR_SET_NAME, name.encode())


def restrict_calls(program: bytes) -> bool:
    """Have the kernel scorer each system call of this process and its children by a filter program (Linux)."""
    kept = libc.Buffer(program)
    header = struct.pack("=HxxxxxxQ", len(program) // 8, kept.address)
    return give_up_new_privileges() and prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, header)


def drop_capabilities() -> bool:
    """Give up every special right for good: no clock, no devices, no mounts, nobody else's files (Linux)."""
    for number in range(_last_capability() + 1):
        prctl(_PR_CAPBSET_DROP, number)  # who may not do this has nothing to give
    prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR)
    call = _CAPSET.get(os.uname().machine) if sys.platform == "linux" else None
    if call is None:
        return False
    return libc.call("syscall", call, struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)) == 0


def _last_capability() -> int:
    try:
        with open("/proc/sys/kernel/cap_last_cap") as file:  # noqa: PTH123 - pathlib costs start-up time here
            return int(file.read())
    except (OSError, ValueError):
        return 40


def limit_resources(limits: dict[str, int]) -> list[str]:
    """Set each limit that the system knows, never above what is already in force; the names that were set."""
    applied = []
    for name, wanted in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError):
            continue
        applied.append(name)
    return applied


# --- becoming the script ------------------------------------------------------------------------------------


def main() -> None:
    """Bubblewrap starts this as the first process of the namespaces that it has made."""
    order = given_order()
    told: int = order["told"]
    os.set_inheritable(told, False)
    os.closerange(3, told)
    os.closerange(told + 1, 64)
    fork_and_reap([told])
    become(order, told, ["bubblewrap"])


def given_order() -> Order:
    """The order in the file whose descriptor is the first argument; the file is closed, so that no script sees it."""
    with open(int(sys.argv[1]), "rb") as file:  # noqa: PTH123 - pathlib starts slowly
        order: Order = marshal.load(file)
    return order


def fork_and_reap(kept: list[int]) -> None:
    """Return in a child; this process reaps until the child has ended, and ends as it did. No script sees into it."""
    let_others_look_inside(False)
    child = os.fork()
    if child == 0:
        let_others_look_inside(True)
        signal_at_parents_death(signal.SIGKILL)
        return
    take_name(NAME)
    os.chdir("/")  # what is outside ends here, too, when the root changes
    for number in kept:
        os.close(number)
    pid, status = 0, 0
    while pid != child:
        pid, status = os.waitpid(-1, 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def become(order: Order, told: int, applied: list[str]) -> None:
    """Give up all that a script must not have, tell what confines it, and become it."""
    if drop_capabilities():
        applied.append("capabilities")
    if give_up_new_privileges():
        applied.append("no-new-privileges")
    if order["seccomp"] and restrict_calls(order["seccomp"]):
        applied.append("seccomp")
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL and its like
    os.write(told, f"inside\t{' '.join(applied)}\n".encode())
    os.execv(order["command"][0], order["command"])


def trial() -> None:
    """Does the kernel take the filter program that is the last argument?"""
    if not restrict_calls(bytes.fromhex(sys.argv[-1])):
        sys.exit("the kernel does not take it")
