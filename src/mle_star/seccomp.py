"""Filters of system calls that the rest of a sandbox does not stop: for scripts, and for the agents' shell.

libseccomp knows their numbers and writes a filter, once in each process of ours; the confined process only installs it.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from errno import EAFNOSUPPORT, ENETUNREACH, ENOSYS, ENOTSUP, EPERM
from functools import lru_cache, partial
from itertools import product
from typing import Any

LIBRARY = "libseccomp.so.2"
INSTALL_HINT = (
    "install libseccomp (Debian, Ubuntu: apt install libseccomp2; Fedora: dnf install libseccomp; "
    "Arch: pacman -S libseccomp)"
)

_MACHINES = {"x86_64": "X86_64", "aarch64": "AARCH64"}
_REFUSED = (
    *("add_key", "keyctl", "request_key"),  # the keyring
    *("create_module", "delete_module", "finit_module", "init_module", "kexec_file_load", "kexec_load"),  # the kernel
    *("acct", "bpf", "lookup_dcookie", "nfsservctl", "perf_event_open", "syslog", "uselib", "userfaultfd", "ustat"),
    *("chroot", "mount", "mount_setattr", "move_mount", "pivot_root", "sysfs", "umount2"),  # mounts, in old ways
    *("fsconfig", "fsmount", "fsopen", "fspick", "listmount", "open_tree", "open_tree_attr", "statmount"),  # and new
    *("fanotify_init", "name_to_handle_at", "open_by_handle_at"),  # files past all paths
    *("kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace", "setns"),  # others
    *("clock_adjtime", "clock_settime", "setdomainname", "sethostname", "settimeofday"),  # clock and names
    *("ioperm", "iopl", "modify_ldt", "quotactl", "quotactl_fd", "reboot", "swapoff", "swapon", "vhangup"),  # devices
)
_UNSEEN = ("io_uring_enter", "io_uring_register", "io_uring_setup", "openat2")
"""A mode given to these, which may be set-uid, lies where no filter can look."""
_ABSENT = (
    *("clone3", "memfd_secret"),
    # what these make outlives a script, in no folder, for the next one to find; /dev/shm needs none of them
    *("mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd"),
    *("semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmget"),
)
"""Programs look for another way when these and `_UNSEEN` do not exist."""
_ATTRIBUTES = (
    *("setxattr", "fsetxattr", "lsetxattr", "setxattrat"),
    *("removexattr", "fremovexattr", "lremovexattr", "removexattrat"),
)
"""Attributes and access lists of files: as on a file system that has none. A later script could read them."""
_MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
"""Which argument is a mode."""
_NEW_MODES = {"creat": 1, "mknod": 1, "mknodat": 2}
_OPENS = {"open": (1, 2), "openat": (2, 3)}
"""Which argument holds flags, and which a mode if one of `_CREATES` is among the flags."""
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE
_SET_UID, _SET_GID = 0o4000, 0o2000
_YOUNG = {
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "fchmodat2": 452,
    "statmount": 457,
    "listmount": 458,
    "setxattrat": 463,
    "removexattrat": 466,
    "open_tree_attr": 467,
}
"""Calls that not every libseccomp knows by name; at their age, all architectures have one number for a call."""
_UNKNOWN = -1
_NEW_NAMESPACES = 0x7E020000  # user, mount, pid, network, ipc, uts, cgroup
_NEW_TIME = 0x80
_TERMINAL_TRICKS = (0x5412, 0x541C)  # TIOCSTI types for the user, TIOCLINUX pastes
_UNIX, _INTERNET, _NETLINK = 1, (2, 10), 16
_FAMILIES = 64  # more than the kernel has
_INT = 0xFFFFFFFF  # the kernel looks at no more of an argument that is an `int`, so the filter must not, either
_EXPORT_LEVEL = 3  # of libseccomp's interface: the first that knows `KILL_PROCESS`

_Rule = tuple[int, str, tuple[Any, ...]]
"""What is refused: by which error, which call, and with which arguments, all of them at once."""


@lru_cache(maxsize=4)
def filter_program(internet: bool, machine: str | None = None) -> bytes:
    """For scripts: refuses what no training needs, and sockets of the internet unless they are allowed."""
    return _written(lambda binding: (*_set_ids(binding), *_rest(binding, internet)), machine)


def shell_filter(machine: str | None = None) -> bytes:
    """For the agents' shell, whose sandbox makes namespaces of its own: refuses only to make set-uid programs."""
    return _written(_set_ids, machine)


def _written(rules: Callable[[Any], Iterable[_Rule]], machine: str | None) -> bytes:
    """A filter in the kernel's own form; `OSError` says why there is none.

    A call by another architecture ends the process.
    """
    home = os.uname().machine if sys.platform == "linux" and sys.maxsize > 1 << 32 else ""
    wanted = machine or home
    if wanted not in _MACHINES:
        raise OSError("the calls of this machine are not known, only those of x86-64 and arm64")
    binding = _binding()
    try:
        binding.set_api(_EXPORT_LEVEL)  # without asking the kernel, which is tried with the whole filter later
        program = binding.SyscallFilter(binding.ALLOW)
        if wanted != home:
            program.add_arch(getattr(binding.Arch, _MACHINES[wanted]))
            program.remove_arch(binding.Arch.NATIVE)
        program.set_attr(binding.Attr.ACT_BADARCH, binding.KILL_PROCESS)
        for error, name, arguments in rules(binding):
            known = binding.resolve_syscall(binding.Arch.NATIVE, name) != _UNKNOWN
            if known or wanted == home:  # numbers without a name are not translated
                program.add_rule(binding.ERRNO(error), name if known else _YOUNG[name], *arguments)
        with tempfile.TemporaryFile() as file:
            program.export_bpf(file)
            file.seek(0)
            return file.read()
    except (NotImplementedError, OSError) as error:
        raise OSError(f"{LIBRARY} cannot write the filter ({error or 'too old'}): {INSTALL_HINT}") from None


def _bits(binding: Any, index: int, mask: int) -> Iterator[Any]:
    """One comparison for each bit, which holds when that bit is set."""
    ones = (1 << place for place in range(32) if mask >> place & 1)
    return (binding.Arg(index, binding.MASKED_EQ, one, one) for one in ones)


def _set_ids(binding: Any) -> Iterator[_Rule]:
    """Nobody gets rights by a program that was made here, be it by its owner, its group or its attributes."""
    yield from ((ENOSYS, name, ()) for name in _UNSEEN)
    yield from ((ENOTSUP, name, ()) for name in _ATTRIBUTES)
    both = _SET_UID | _SET_GID
    for name, mode in _MODES.items():
        yield from ((EPERM, name, (bit,)) for bit in _bits(binding, mode, _SET_UID))
        # done without a word, and without effect: a copied folder of a shared group has this bit, and does no harm
        yield from ((0, name, (bit,)) for bit in _bits(binding, mode, _SET_GID))
    for name, mode in _NEW_MODES.items():
        yield from ((EPERM, name, (bit,)) for bit in _bits(binding, mode, both))
    for name, (flags, mode) in _OPENS.items():
        pairs = product(_bits(binding, flags, _CREATES), _bits(binding, mode, both))
        yield from ((EPERM, name, pair) for pair in pairs)


def _rest(binding: Any, internet: bool) -> Iterator[_Rule]:
    """What else scripts are refused."""
    bits = partial(_bits, binding)

    def equal(index: int, value: int) -> Any:
        return binding.Arg(index, binding.MASKED_EQ, _INT, value)

    yield from ((EPERM, name, ()) for name in _REFUSED)
    yield from ((ENOSYS, name, ()) for name in _ABSENT)
    yield from ((EPERM, "clone", (bit,)) for bit in bits(0, _NEW_NAMESPACES))
    yield from ((EPERM, "unshare", (bit,)) for bit in bits(0, _NEW_NAMESPACES | _NEW_TIME))
    yield from ((EPERM, "ioctl", (equal(1, request),)) for request in _TERMINAL_TRICKS)
    # of another process, and not only asking
    yield from ((EPERM, "prlimit64", (bit, binding.Arg(2, binding.NE, 0))) for bit in bits(0, _INT))
    if not internet:
        yield from ((ENETUNREACH, "socket", (equal(0, family),)) for family in _INTERNET)
    others = {*range(_FAMILIES)} - {_UNIX, *_INTERNET, _NETLINK}
    yield from ((EAFNOSUPPORT, "socket", (equal(0, family),)) for family in sorted(others))
    yield from ((EAFNOSUPPORT, "socket", (bit,)) for bit in bits(0, _INT - _FAMILIES + 1))
    # of netlink only the routing family: it lists interfaces
    yield from ((EAFNOSUPPORT, "socket", (equal(0, _NETLINK), bit)) for bit in bits(2, _INT))


def _binding() -> Any:
    """pyseccomp, which looks for libseccomp as it is imported."""
    import ctypes

    before = os.environ.get("PATH", os.defpath)
    # where the loader has no list of libraries, a compiler looks for them: never one of the current folder
    os.environ["PATH"] = os.pathsep.join(place for place in before.split(os.pathsep) if os.path.isabs(place))  # noqa: PTH117
    try:
        ctypes.CDLL(LIBRARY)
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:
        raise OSError(f"{LIBRARY} is missing ({error}): {INSTALL_HINT}") from None
    finally:
        os.environ["PATH"] = before
    return pyseccomp
