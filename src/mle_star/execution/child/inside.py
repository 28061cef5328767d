"""The last steps of a process before it becomes a script. Bubblewrap starts it here, else the supervisor calls it."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # see the supervisor: the public module starts slowly
import marshal
import os
import sys

from . import confine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Order = dict[str, Any]

_NEEDED_OF_ROOT = 1 << 0 | 1 << 1 | 1 << 6 | 1 << 7  # to own, read, and become somebody else


def main() -> None:
    """Bubblewrap starts this in the world that it has made."""
    order = given_order()
    told: int = order["told"]
    os.set_inheritable(told, False)
    os.closerange(3, told)
    os.closerange(told + 1, 64)
    become(order, told, order["around"])


def given_order() -> Order:
    """The order in the file whose descriptor is the first argument; the file is closed, so that no script sees it."""
    with open(int(sys.argv[1]), "rb") as file:  # noqa: PTH123 - pathlib starts slowly
        order: Order = marshal.load(file)
    return order


def become(order: Order, told: int, applied: list[str]) -> None:
    """Give up all that a script must not have, tell what confines it, and become it."""
    if order["nobody"] is not None and _become_nobody(order["nobody"], order):
        applied.append("nobody")
        confine.signal_at_parents_death(signal.SIGKILL)  # a new user has to ask again
    if confine.drop_capabilities():
        applied.append("capabilities")
    if confine.give_up_new_privileges():
        applied.append("no-new-privileges")
    rules = order["landlock"]
    if rules and confine.restrict_files(**rules):
        applied.append("landlock")
    if order["seccomp"] and confine.restrict_calls(order["seccomp"]):
        applied.append("seccomp")
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # SIGKILL and its like
    os.write(told, f"inside\t{' '.join(applied)}\n".encode())
    os.execv(order["command"][0], order["command"])


def _become_nobody(number: int, order: Order) -> bool:
    """As root without a user namespace: become nobody, if that user can reach all that the script needs."""
    if os.getuid() != 0 or _rights() & _NEEDED_OF_ROOT != _NEEDED_OF_ROOT:
        return False
    try:
        os.setegid(number)
        os.seteuid(number)
        reached = all(os.access(path, os.R_OK, effective_ids=True) for path in order["needed"])
    except OSError:  # in a container that has no such user
        reached = False
    finally:
        os.seteuid(0)
        os.setegid(0)
    if not reached:
        return False
    for path in order["owned"]:
        os.chown(path, number, number, follow_symlinks=False)
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    return True


def _rights() -> int:
    with open("/proc/self/status") as file:  # noqa: PTH123 - pathlib starts slowly
        for line in file:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0
