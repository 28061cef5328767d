"""What a process can give up before it becomes a script: rights, limits, places to write to. Linux only where said."""

from __future__ import annotations

import os
import resource
import stat
import struct
import sys

from . import libc

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_SECCOMP, _SECCOMP_FILTER = 22, 2
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _AMBIENT_CLEAR = 47, 4

_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LIST = 1 << 3
_READ = 1 << 0 | 1 << 2 | _LIST  # execute, read files, list directories
_MAKE_DEVICES = 1 << 6 | 1 << 11
_TRUNCATE, _DEVICE_CONTROL = 1 << 14, 1 << 15
_FILE_BITS = 1 << 0 | 1 << 1 | 1 << 2 | _TRUNCATE | _DEVICE_CONTROL  # those that a rule on a plain file may name
_TCP = 1 << 0 | 1 << 1
_SCOPE_SIGNAL_AND_SOCKETS = 1 << 0 | 1 << 1


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
    """Have the kernel judge each system call of this process and its children by a filter program (Linux)."""
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


def landlock_version() -> int:
    """The version of Landlock that the kernel offers; 0 when there is none."""
    if sys.platform != "linux":
        return 0
    try:
        return max(libc.call("syscall", _LANDLOCK_CREATE, None, 0, 1), 0)
    except OSError:
        return 0


def restrict_files(read: list[str], write: list[str], listed: list[str], *, close_tcp: bool = False) -> bool:
    """Let this process and its children read below `read` and write below `write` only (Linux, Landlock).

    Below `listed` they may look up names. Where the kernel knows them, signals and abstract sockets stay among
    themselves, and TCP can be closed.
    """
    version = landlock_version()
    if version < 2:
        return False  # the first version forbids moving files between folders altogether
    handled = (1 << 14) - 1
    if version >= 3:
        handled |= _TRUNCATE
    if version >= 5:
        handled |= _DEVICE_CONTROL
    network = _TCP if close_tcp and version >= 4 else 0
    attributes = struct.pack("=QQQ", handled, network, _SCOPE_SIGNAL_AND_SOCKETS if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = libc.call("syscall", _LANDLOCK_CREATE, attributes[:size], size, 0)
    if ruleset < 0:
        return False
    try:
        for access, paths in ((_READ, read), (_LIST, listed), (handled & ~_MAKE_DEVICES, write)):
            for path in paths:
                _allow(ruleset, path, access)
        return give_up_new_privileges() and libc.call("syscall", _LANDLOCK_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not there: nothing to allow
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            access &= _FILE_BITS
        libc.call("syscall", _LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", access, place), 0)
    finally:
        os.close(place)
