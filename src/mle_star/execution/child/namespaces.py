"""Namespaces made here, where there is no bubblewrap, and filled with the same mounts (Linux 5.12 or later)."""

from __future__ import annotations

import _ctypes
import os
import struct
import sys

from . import confine

TYPE_CHECKING = False
if TYPE_CHECKING:
    Mount = tuple[str, str, str]  # what, from where (or options), to where

_NEW_MOUNT, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PID, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_NO_SUID, _NO_DEVICES, _NO_PROGRAMS = 2, 4, 8
_DETACH = 2
_MOUNT_SETATTR = 442  # the same number on every architecture
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_ONLY_READ, _NEVER_SUID, _NEVER_DEVICES = 1, 2, 4  # of `mount_setattr`
_BOUND = {"ro": _ONLY_READ | _NEVER_SUID | _NEVER_DEVICES, "rw": _NEVER_SUID | _NEVER_DEVICES, "dev": _NEVER_SUID}
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SIOCSIFFLAGS, _UP_AND_RUNNING = 0x8914, 0x41


def trial() -> None:
    """Can they be made here? The last argument is an empty folder; `stderr` says why not."""
    leave_the_others(1000, network=False)
    for _ in range(2):  # the first one stays outside
        confine.fork_and_reap([])
    furnish(sys.argv[-1], [("ro", "/usr", "/usr"), ("proc", "", "/proc"), ("devices", "", "/dev")])
    os._exit(0)


def leave_the_others(number: int, network: bool) -> None:
    """Take this process into new namespaces, in which `number` is its user and group."""
    user, group = os.getuid(), os.getgid()
    if user == 0:
        os.setgroups([])
    flags = _NEW_USER | _NEW_MOUNT | _NEW_CGROUP | _NEW_UTS | _NEW_IPC | _NEW_PID | (0 if network else _NEW_NETWORK)
    _check(confine.call("unshare", flags), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{number} {user} 1"), ("gid_map", f"{number} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib starts slowly
            file.write(text)
    if not network:
        _start_loopback()


def furnish(root: str, mounts: list[Mount]) -> None:
    """Fill an empty root with `mounts`, in order, and make it the only one there is."""
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755,size=16m")
    for what, source, target in mounts:
        _place(what, source, root + target)
    os.chdir(root)
    number = _PIVOT_ROOT[os.uname().machine]
    _check(confine.call("syscall", number, b".", b"."), "pivot_root")
    _check(confine.call("umount2", b".", _DETACH), "umount")
    _restrict("/", _ONLY_READ)


def _place(what: str, source: str, target: str) -> None:
    if what == "symlink":
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
        os.symlink(source, target)  # noqa: PTH211
    elif what == "read-only":
        _restrict(target, _ONLY_READ)
    elif what == "devices":
        _place("tmpfs", "mode=755,size=64k", target)
        for name in ("null", "zero", "full", "random", "urandom"):
            _place("dev", f"/dev/{name}", f"{target}/{name}")
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
    answer = confine.call("syscall", _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, wanted, len(wanted))
    _check(answer, f"mount_setattr {target}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode() or None, flags, options.encode())
    _check(confine.call("mount", *words), f"mount {target}")


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
