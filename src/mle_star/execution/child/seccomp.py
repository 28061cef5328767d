"""System calls that no training script needs and that reach past every other wall: refused by the kernel (seccomp).

The filter is put together here and not by libseccomp, which is missing on many machines and would have to be found and
loaded before every script; all it takes is a list of numbers and six kinds of instruction.
"""

from __future__ import annotations

import os
import struct
import sys

from . import confine, libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    Instruction = tuple[int, int, int, int]

_EPERM, _EAFNOSUPPORT, _ENETUNREACH, _ENOSYS = 1, 97, 101, 38
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _RETURN, _EQUAL, _AT_LEAST, _ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
_NUMBER, _MACHINE = 0, 4  # where the kernel puts the call's number and its architecture
_X32 = 0x40000000

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {  # name: (number on x86-64, number on arm64)
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "create_module": (174, None), "delete_module": (176, 106),
    "fanotify_init": (300, 262), "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105), "ioperm": (173, None), "iopl": (172, None),
    "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "listmount": (458, 458), "lookup_dcookie": (212, 18), "modify_ldt": (154, None), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "name_to_handle_at": (303, 264), "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pivot_root": (155, 41), "process_madvise": (440, 440),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "reboot": (169, 142), "request_key": (249, 218), "setdomainname": (171, 162),
    "sethostname": (170, 161), "setns": (308, 268), "settimeofday": (164, 170), "statmount": (457, 457),
    "swapoff": (168, 225), "swapon": (167, 224), "sysfs": (139, None), "syslog": (103, 116), "umount2": (166, 39),
    "uselib": (134, None), "userfaultfd": (323, 282), "ustat": (136, None), "vhangup": (153, 58),
}  # fmt: skip
_ABSENT = {  # programs look for another way when these do not exist
    "clone3": (435, 435), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425),
    "memfd_secret": (447, 447),
}  # fmt: skip
_CHECKED = {
    "clone": (56, 220), "unshare": (272, 97), "ioctl": (16, 29), "prlimit64": (302, 261), "socket": (41, 198),
}  # fmt: skip
_NEW_NAMESPACES = 0x7E020000  # user, mount, pid, network, ipc, uts, cgroup
_NEW_TIME = 0x80
_TERMINAL_TRICKS = (0x5412, 0x541C)  # TIOCSTI types for the user, TIOCLINUX pastes
_UNIX, _INTERNET, _NETLINK = 1, (2, 10), 16


def restrict_calls(internet: bool) -> bool:
    """Refuse dangerous system calls to this process and its children; sockets of the internet, too, unless wanted."""
    machine = os.uname().machine if sys.platform == "linux" else ""
    if machine not in _MACHINES or sys.maxsize < 1 << 32:
        return False
    code = b"".join(struct.pack("=HBBI", *line) for line in program(machine, internet))
    kept = libc.Buffer(code)
    header = struct.pack("=HxxxxxxQ", len(code) // 8, kept.address)
    return confine.give_up_new_privileges() and confine.install_filter(header)


def program(machine: str, internet: bool) -> list[Instruction]:
    """The filter for one architecture; whatever comes by another one ends the process."""
    column = list(_MACHINES).index(machine)
    lines = [_load(_MACHINE), (_EQUAL, 1, 0, _MACHINES[machine]), _answer(_KILL), _load(_NUMBER)]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, _X32), _answer(_KILL)]
    for table, error in ((_REFUSED, _EPERM), (_ABSENT, _ENOSYS)):
        for numbers in table.values():
            number = numbers[column]
            if number is not None:
                lines += [(_EQUAL, 0, 1, number), _answer(_ERRNO | error)]
    for name, block in _checks(internet).items():
        lines += [(_EQUAL, 0, len(block), _CHECKED[name][column]), *block]
    return [*lines, _answer(_ALLOW)]


def _checks(internet: bool) -> dict[str, list[Instruction]]:
    """For calls that depend on their arguments: what to look at, each block with an answer at its end."""
    families = [_UNIX, *(_INTERNET if internet else ())]
    socket = [_argument(0)]
    for family in families:
        socket += [(_EQUAL, 0, 1, family), _answer(_ALLOW)]
    for family in _INTERNET:
        socket += [(_EQUAL, 0, 1, family), _answer(_ERRNO | _ENETUNREACH)]
    # of netlink only the routing family: it lists interfaces
    socket += [(_EQUAL, 0, 3, _NETLINK), _argument(2), (_EQUAL, 0, 1, 0), _answer(_ALLOW)]
    socket.append(_answer(_ERRNO | _EAFNOSUPPORT))
    ioctl = [_argument(1)]
    for request in _TERMINAL_TRICKS:
        ioctl += [(_EQUAL, 0, 1, request), _answer(_ERRNO | _EPERM)]
    return {
        "clone": [_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _answer(_ERRNO | _EPERM), _answer(_ALLOW)],
        "unshare": [
            _argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES | _NEW_TIME), _answer(_ERRNO | _EPERM), _answer(_ALLOW),
        ],
        "ioctl": [*ioctl, _answer(_ALLOW)],
        "prlimit64": [  # of this very process, or only asking
            _argument(0), (_EQUAL, 0, 1, 0), _answer(_ALLOW),
            _argument(2), (_EQUAL, 0, 3, 0), _argument(2, high=True), (_EQUAL, 0, 1, 0), _answer(_ALLOW),
            _answer(_ERRNO | _EPERM),
        ],
        "socket": socket,
    }  # fmt: skip


def _load(offset: int) -> Instruction:
    return (_LOAD, 0, 0, offset)


def _argument(index: int, high: bool = False) -> Instruction:
    return _load(16 + 8 * index + (4 if high else 0))  # both architectures are little-endian


def _answer(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)
