"""Removing what scripts leave behind: trees of any depth, with names of any length, and never through a link."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shutil
import stat
import time
import uuid
from functools import lru_cache
from itertools import islice
from pathlib import Path

import psutil

from mle_star.basics.texts import digest_of

logger = logging.getLogger("mle_star.execution")

_BY_DESCRIPTOR = (
    os.scandir in os.supports_fd and {os.open, os.unlink, os.rmdir, os.stat, os.rename} <= os.supports_dir_fd
)
_AT_ONCE = 10_000
_ELSEWHERE_SECONDS = 2 * 86400  # no script runs so long; whether its process lives elsewhere cannot be seen from here
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def remove_entry(path: Path) -> bool:
    """Remove a file or a tree: links are unlinked, never followed, locked folders are opened first. Never raises.

    False, and a warning, when something is left.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            path.unlink()
        elif _BY_DESCRIPTOR:
            _remove_tree(path)
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return True
    except (OSError, RecursionError) as error:
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


def _remove_tree(path: Path) -> None:
    """Without recursion and with three open descriptors: whatever lies deeper is moved up to the top before it goes."""
    parent = os.open(path.parent, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))
    try:
        top = _open_folder(path.name, parent)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path.name, dir_fd=parent)
    finally:
        os.close(parent)


def _empty(top: int) -> None:
    prefix, count = f".{uuid.uuid4().hex}-", 0
    while entries := _some_entries(top):
        went = 0
        for name, is_folder in entries:
            try:
                if not is_folder:
                    os.unlink(name, dir_fd=top)
                else:
                    folder = _open_folder(name, top)
                    try:
                        count = _move_up(folder, top, prefix, count)
                    finally:
                        os.close(folder)
                    os.rmdir(name, dir_fd=top)
                went += 1
            except FileNotFoundError:
                went += 1
            except OSError as error:
                trouble = error
        if not went:
            raise trouble


def _move_up(folder: int, top: int, prefix: str, count: int) -> int:
    """Unlink the files of `folder` and move its folders to the top, under names that nothing there has."""
    while entries := _some_entries(folder):
        for name, is_folder in entries:
            if is_folder:
                os.close(_open_folder(name, folder))  # a locked folder cannot be moved
                count += 1
                os.rename(name, f"{prefix}{count}", src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(name, dir_fd=folder)
    return count


def _some_entries(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, _AT_ONCE)]


def _open_folder(name: str, parent: int) -> int:
    """A descriptor of the folder, which its owner may read and change from now on; a link is refused."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        _unlock(name, parent)
        folder = os.open(name, _FOLDER, dir_fd=parent)
    with contextlib.suppress(OSError):  # it may belong to somebody else
        if os.fstat(folder).st_mode & 0o700 != 0o700:
            os.fchmod(folder, 0o700)
    return folder


def _unlock(name: str, parent: int) -> None:
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        return
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101 - Linux changes no mode by name without following links
    finally:
        os.close(place)
