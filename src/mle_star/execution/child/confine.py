"""What a process gives up before it becomes a script: the namespaces of others, rights, limits, system calls.

The C library is called without `ctypes`, whose start takes half as long as an interpreter's.
"""

from __future__ import annotations

import _ctypes
import _signal as signal  # type: ignore[import-not-found]  # see the supervisor: the public module starts slowly
import marshal
import os
import resource
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Order = dict[str, Any]
    Mount = tuple[str, str, str]  # what, from where (or options), to where

PARENT_DEATH_SIGNAL, DUMPABLE, SUBREAPER, NO_NEW_PRIVILEGES = 1, 4, 36, 38
"""Options of `prctl`: which signal comes when the parent dies; may others of the same user read this one's memory and
descriptors, until the next program starts; does it inherit every orphan; no set-uid program raises rights any more."""
_SET_NAME, _SET_SECCOMP, _DROP_FROM_BOUND, _SET_AMBIENT = 15, 22, 24, 47
_SECCOMP_FILTER, _AMBIENT_CLEAR = 2, 4
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522

_NEW_MOUNT, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PID, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_NO_SUID, _NO_DEVICES, _NO_PROGRAMS = 2, 4, 8
_DETACH = 2
_MOUNT_SETATTR = 442  # the same number on every architecture
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_ONLY_READ, _NEVER_SUID, _NEVER_DEVICES = 1, 2, 4  # of `mount_setattr`
_SAFE = _NEVER_SUID | _NEVER_DEVICES
_BOUND = {"ro-bind": _ONLY_READ | _SAFE, "bind": _SAFE, "dev-bind": _NEVER_SUID}
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SIOCSIFFLAGS, _UP_AND_RUNNING = 0x8914, 0x41

NAME = "mle-star-init"
"""Of processes that wait for a script, in the process table: at most 15 letters."""


_C: dict[str, Any] = {kind: type(kind, (_ctypes._SimpleCData,), {"_type_": kind}) for kind in "iLc"}
"""Types of C by their letters, as `struct` has them: an `int`, a whole word, a byte."""


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _C["i"]


_LIBRARY = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program


def call(name: str, *words: int | bytes | None) -> int:
    """What a function of the C library answers, as an `int`; raises `OSError` where there is no such function."""
    function = _Function(_ctypes.dlsym(_LIBRARY, name))
    return int(function(*(_C["L"](word) if isinstance(word, int) else word for word in words)))


def prctl(option: int, value: int | bytes, *more: bytes | int) -> bool:
    """Call `prctl`; False where it is missing (elsewhere than on Linux) or refuses."""
    if sys.platform != "linux":
        return False
    return call("prctl", option, *(value, *more, 0, 0, 0)[:4]) == 0


def restrict_calls(program: bytes) -> bool:
    """Have the kernel check each system call of this process and its children by a filter program (Linux)."""
    kept = (_C["c"] * len(program)).from_buffer_copy(program)
    header = struct.pack("=HxxxxxxQ", len(program) // 8, _ctypes.addressof(kept))
    return prctl(NO_NEW_PRIVILEGES, 1) and prctl(_SET_SECCOMP, _SECCOMP_FILTER, header)


def drop_capabilities() -> bool:
    """Give up every special right permanently: no clock, no devices, no mounts, nobody else's files (Linux)."""
    for number in range(64):
        prctl(_DROP_FROM_BOUND, number)  # who may not do this has nothing to give
    prctl(_SET_AMBIENT, _AMBIENT_CLEAR)
    capset = _CAPSET.get(os.uname().machine) if sys.platform == "linux" else None
    return capset is not None and call("syscall", capset, struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)) == 0


def limit_resources(limits: dict[str, int]) -> list[str]:
    """Set each limit that the system knows, never above what is already in force; the names that were set."""
    applied = []
    for name, wanted in limits.items():
        try:
            kind = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(kind)[1]
            value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (value, value))
        except (AttributeError, OSError, ValueError):
            continue
        applied.append(name)
    return applied


# --- becoming the script ------------------------------------------------------------------------------------


def main() -> None:
    """Bubblewrap starts this as the first process of the namespaces that it has made."""
    order = given_order()
    status_pipe: int = order["status_pipe"]
    os.set_inheritable(status_pipe, False)
    os.closerange(3, status_pipe)
    os.closerange(status_pipe + 1, 64)
    fork_and_reap([status_pipe])
    become(order, status_pipe, ["bubblewrap"])


def given_order() -> Order:
    """The order in the file whose descriptor is the first argument; the file is closed, so that no script sees it."""
    with open(int(sys.argv[1]), "rb") as file:  # noqa: PTH123 - pathlib starts slowly
        order: Order = marshal.load(file)
    return order


def fork_and_reap(kept: list[int]) -> None:
    """Return in a child; this process reaps until the child has ended, and ends as it did. No script sees into it."""
    prctl(DUMPABLE, 0)
    child = os.fork()
    if child == 0:
        prctl(DUMPABLE, 1)
        prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        return
    prctl(_SET_NAME, NAME.encode())
    os.chdir("/")  # what is outside ends here, too, when the root changes
    for number in kept:
        os.close(number)
    pid, status = 0, 0
    while pid != child:
        pid, status = os.waitpid(-1, 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def become(order: Order, status_pipe: int, applied: list[str]) -> None:
    """Give up all that a script must not have, tell what confines it, and become it."""
    if drop_capabilities():
        applied.append("capabilities")
    if prctl(NO_NEW_PRIVILEGES, 1):
        applied.append("no-new-privileges")
    if order["seccomp"] and restrict_calls(order["seccomp"]):
        applied.append("seccomp")
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL and its like
    os.write(status_pipe, f"inside\t{' '.join(applied)}\n".encode())
    os.execv(order["command"][0], order["command"])


def trial_filter() -> None:
    """Does the kernel take the filter program that is the last argument?"""
    if not restrict_calls(bytes.fromhex(sys.argv[-1])):
        sys.exit("the kernel does not take it")


# --- namespaces made here, where there is no bubblewrap, and filled with the same mounts (Linux 5.12 or later) -----


def enter_namespaces(user: int, network: bool, root: str, mounts: list[Mount], kept: list[int]) -> None:
    """Return in a process that has namespaces of its own; those that wait for it let go of the `kept` descriptors."""
    _leave_the_others(user, network)
    for _ in range(2):  # the first one stays outside
        fork_and_reap(kept)
    _furnish(root, mounts)


def trial_namespaces() -> None:
    """Can they be made here? The last argument is an empty folder; `stderr` says why not."""
    mounts = [("ro-bind", "/usr", "/usr"), ("proc", "", "/proc"), ("dev", "", "/dev")]
    enter_namespaces(1000, False, sys.argv[-1], mounts, [])
    os._exit(0)


def _leave_the_others(number: int, network: bool) -> None:
    """Take this process into new namespaces, in which `number` is its user and group."""
    user, group = os.getuid(), os.getgid()
    if user == 0:
        os.setgroups([])
    flags = _NEW_USER | _NEW_MOUNT | _NEW_CGROUP | _NEW_UTS | _NEW_IPC | _NEW_PID | (0 if network else _NEW_NETWORK)
    _check(call("unshare", flags), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{number} {user} 1"), ("gid_map", f"{number} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib starts slowly
            file.write(text)
    if not network:
        _start_loopback()


def _furnish(root: str, mounts: list[Mount]) -> None:
    """Fill an empty root with `mounts`, in order, and make it the only one there is."""
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755,size=16m")
    for what, source, target in mounts:
        _place(what, source, root + target)
    os.chdir(root)
    _check(call("syscall", _PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(call("umount2", b".", _DETACH), "umount")
    _restrict("/", _ONLY_READ)


def _place(what: str, source: str, target: str) -> None:
    if what == "symlink":
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        os.symlink(source, target)  # noqa: PTH211
    elif what == "remount-ro":
        _restrict(target, _ONLY_READ)
    elif what == "dev":
        _place("tmpfs", "mode=755,size=64k", target)
        for name in ("null", "zero", "full", "random", "urandom"):
            _place("dev-bind", f"/dev/{name}", f"{target}/{name}")
        for name, place in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            os.symlink(f"/proc/self/fd{place}", f"{target}/{name}")  # noqa: PTH211
    elif what in ("proc", "tmpfs"):
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
        _mount(what, target, what, _NO_SUID | _NO_DEVICES | (_NO_PROGRAMS if what == "proc" else 0), source)
    else:
        _make_room(source, target)
        _mount(source, target, "", _BIND | _RECURSIVE)
        _restrict(target, _BOUND[what], _AT_RECURSIVE)


def _make_room(source: str, target: str) -> None:
    if os.path.isdir(source):  # noqa: PTH112
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _restrict(target: str, attributes: int, flags: int = 0) -> None:
    wanted = struct.pack("=QQQQ", attributes, 0, 0, 0)
    answer = call("syscall", _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, wanted, len(wanted))
    _check(answer, f"mount_setattr {target}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode() or None, flags, options.encode())
    _check(call("mount", *words), f"mount {target}")


def _start_loopback() -> None:
    """Servers and clients of the same script meet there."""
    import _socket
    import fcntl

    loop = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(loop.fileno(), _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
    loop.close()


def _check(answer: int, what: str) -> None:
    if answer != 0:
        number = _ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
