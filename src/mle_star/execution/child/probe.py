"""Tries out what the kernel would do for a script, in processes that end with the trial."""

from __future__ import annotations

import os
import sys

from . import confine, namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Print the version of Landlock and the names of all that works, then why namespaces do not."""
    root, program = sys.argv[1], bytes.fromhex(sys.argv[2])
    trials = {"landlock": _landlock, "seccomp": lambda: _seccomp(program), "namespaces": lambda: _namespaces(root)}
    found, reasons = [], {}
    for name, trial in trials.items():
        reasons[name] = _fails(trial)
        if not reasons[name]:
            found.append(name)
    sys.stdout.write(f"{' '.join([str(confine.landlock_version()), *found])}\n{reasons['namespaces']}\n")


def _fails(trial: Callable[[], None]) -> str:
    """Why a trial fails in a process of its own; nothing when it does not."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            trial()
            os.write(write, b"+")
        except BaseException as error:
            os.write(write, str(error).encode("utf-8", "replace") or b"unknown")
        finally:
            os._exit(0)
    os.close(write)
    said = b""
    while chunk := os.read(read, 4096):
        said += chunk
    os.close(read)
    os.waitpid(pid, 0)
    return "" if said == b"+" else said.decode("utf-8", "replace") or "it died of it"


def _landlock() -> None:
    if not confine.restrict_files(["/usr"], [], []):
        raise OSError("no Landlock")


def _seccomp(program: bytes) -> None:
    if not program or not confine.restrict_calls(program):
        raise OSError("no seccomp")


def _namespaces(root: str) -> None:
    namespaces.leave_the_others(1000, network=False)
    namespaces.become_first([])
    mounts = [("ro", "/usr", "/usr"), ("proc", "", "/proc"), ("devices", "", "/dev")]
    namespaces.furnish(root, mounts)
