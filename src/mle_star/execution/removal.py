"""Removing what scripts leave behind: trees of any depth, with names of any length, and never through a link."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import time
from functools import lru_cache
from pathlib import Path

import psutil

from mle_star.basics.texts import digest_of
from mle_star.execution.probe import find_program, try_program

logger = logging.getLogger("mle_star.execution")

_REMOVE = 'PATH=/bin; "$2" "$1" -type d ! -perm -700 -execdir "$3" u+rwx {} \\; ; "$4" -rf "$1"'
_CHILD_SECONDS = 600.0
_ELSEWHERE_SECONDS = 2 * 86400  # no script runs so long; whether its process lives elsewhere cannot be seen from here


def remove_entry(path: Path) -> bool:
    """Remove a file or a tree: links are unlinked, never followed. Never raises.

    What is locked or too deep for this process goes by `find` and `rm`. False, and a warning, when something is left.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            path.unlink()
            return True
        with contextlib.suppress(OSError, RecursionError):
            shutil.rmtree(path)
            return True
        tools = [find_program(name) or name for name in ("find", "chmod", "rm")]
        said = try_program(["/bin/sh", "-c", _REMOVE, "sh", os.path.abspath(path), *tools], _CHILD_SECONDS)  # noqa: PTH100
        if os.path.lexists(path):
            raise OSError(said.stderr.decode("utf-8", "replace").strip()[-200:])
    except FileNotFoundError:
        return True
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("%s could not be removed (%s)", path, getattr(error, "strerror", None) or error)
        return False
    return True


def own_prefix(prefix: str) -> str:
    """How the name of a temporary folder begins that belongs to this process."""
    return f"{prefix}{_this_place()}-{os.getpid()}-"


def remove_left_behind(folder: Path, prefix: str, seconds: float) -> None:
    """Remove temporary folders of processes that died hard, unless they were changed less than `seconds` ago.

    Machines and containers may share a folder, and have processes with the same numbers: theirs go when they are old.
    """
    for path in folder.glob(f"{prefix}*-*-*"):
        place, owner, *_ = path.name[len(prefix) :].split("-")
        if len(place) != len(_this_place()) or not owner.isdigit():
            continue  # not one of ours
        with contextlib.suppress(OSError):
            age, here = time.time() - path.stat().st_mtime, place == _this_place()
            dead = age > seconds and not psutil.pid_exists(int(owner)) if here else age > _ELSEWHERE_SECONDS
            if dead and os.access(path, os.W_OK):
                remove_entry(path)


@lru_cache(maxsize=1)
def _this_place() -> str:
    """A short name of this machine, or of the container on it."""
    try:
        processes = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        processes = ""
    return digest_of(platform.node(), processes)[:8]
