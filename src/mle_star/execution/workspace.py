"""Working directories: `./input` (the data), `./final` (what a script submits), the script; how they are removed."""

import contextlib
import logging
import os
import platform
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import psutil

from mle_star.data.place import DataFolder, records_of
from mle_star.errors import ExecutionError
from mle_star.execution.environment import find_program, try_program
from mle_star.models import SolutionScript
from mle_star.models.texts import digest_of
from mle_star.run.folder import write_whole

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
        _, why = try_program(["/bin/sh", "-c", _REMOVE, "sh", os.path.abspath(path), *tools], _CHILD_SECONDS)  # noqa: PTH100
    except FileNotFoundError:
        return True
    except OSError as error:
        why = str(error)
    if left := os.path.lexists(path):
        logger.warning("%s could not be removed (%s)", path, why)
    return not left


def own_prefix(prefix: str) -> str:
    """How the name of a temporary folder begins that belongs to this process."""
    return f"{prefix}{_this_place()}-{os.getpid()}-"


def remove_left_behind(folder: Path, prefix: str, seconds: float) -> None:
    """Remove temporary folders of processes that were killed, unless they were changed less than `seconds` ago.

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
    processes = Path("/proc/self/ns/pid")
    return digest_of(platform.node(), str(processes.readlink()) if processes.is_symlink() else "")[:8]


MARKER = ".mle-star-work"
"""Ends the name of a file beside each directory that this package made for scripts; only those are ever emptied.

It lies outside because a script may remove whatever is inside.
"""

_ENDS = re.compile(r"\b(sys\.exit|os\._exit|exit|quit)\s*\(")


def setup_working_directory(base_path: str) -> str:
    """Make sure that `input/` and `final/` exist below `base_path`, and return its absolute form."""
    base = Path(os.path.abspath(base_path))  # noqa: PTH100 - resolve() would follow links
    if base.is_symlink() and is_ours(str(base)):
        base.unlink()  # what a link in place of a directory of ours leads to is someone else's
    for name in ("input", "final"):
        (base / name).mkdir(parents=True, exist_ok=True)
    return str(base)


def clean_output_directory(base_path: str) -> None:
    """Empty `final/`, so that no old submission is taken for a new one."""
    _make_anew(Path(base_path) / "final")


def _make_anew(folder: Path) -> bool:
    """An empty folder in this place, whatever was there. What cannot be removed is moved out of the way: then False."""
    clean = remove_entry(folder)
    if not clean:
        left = folder.rename(folder.with_name(f".left-{uuid.uuid4().hex}"))  # nothing of ours looks at such a name
        logger.warning("%s cannot be emptied: what is left lies in %s", folder, left)
    folder.mkdir(parents=True)
    return clean


def entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """All but folders below a folder, however deep; no link is followed, not even one in the folder's own place."""
    waiting = [] if folder.is_symlink() else [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue  # gone, locked, or deeper than any path can be long
        yield from (entry for entry in entries if not entry.is_dir(follow_symlinks=False))
        waiting += reversed([entry.path for entry in entries if entry.is_dir(follow_symlinks=False)])


def open_plain(path: str | Path) -> BinaryIO:
    """Open a plain file: no link is followed, no writer of a pipe waited for. `OSError` where it is anything else."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(f"{path} is no plain file")


def copy_plain(source: Path, target: Path) -> None:
    """Copy the plain files below `source`, however deep; links, pipes and devices that a script made stay behind."""
    waiting = [(str(source), str(target))]
    while waiting:
        here, there = waiting.pop()
        os.makedirs(there, exist_ok=True)  # noqa: PTH103
        with os.scandir(here) as entries:
            for entry in entries:
                place = os.path.join(there, entry.name)  # noqa: PTH118
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, place))
                elif entry.is_file(follow_symlinks=False):
                    shutil.copyfile(entry.path, place, follow_symlinks=False)


def prepare_path_directory(root: str | Path, label: str) -> str:
    """A working directory of its own for `label` below `root`, marked as ours."""
    if not label or Path(label).name != label or label in (".", ".."):
        raise ValueError(f"a label is one plain name, not {label!r}")
    working_dir = setup_working_directory(str(Path(root) / label))
    _marker(working_dir).touch()
    return working_dir


@contextlib.contextmanager
def own_folder(beside: Path, name: str) -> Iterator[Path]:
    """A working directory beside another one, for as long as it is needed."""
    folder = Path(prepare_path_directory(beside.parent, f"{beside.name}-{name}"))
    try:
        yield folder
    finally:
        remove_entry(folder)
        remove_entry(_marker(str(folder)))


def _marker(working_dir: str) -> Path:
    base = Path(os.path.abspath(working_dir))  # noqa: PTH100
    return base.with_name(f".{base.name}{MARKER}")


def is_ours(working_dir: str) -> bool:
    """Did this package make the directory, so that whatever is in it may be removed?"""
    return _marker(working_dir).exists()


def link_input_data(data_dir: str, working_dir: str, *, ours: Path | None = None) -> None:
    """Show the data as `./input`: one link per top-level entry, a copy only where links are impossible.

    In a directory of ours nothing else stays there: a script may have put something in its place. Folders of runs are
    not shown; `ours` is the one of this run, the working directory unless it is given.
    """
    source, target = DataFolder(data_dir, ours or working_dir), Path(working_dir) / "input"
    if not source.root.is_dir():
        raise ExecutionError(f"{data_dir}: the data folder is gone")
    if target.is_symlink() or not target.is_dir() or (is_ours(working_dir) and any(target.iterdir())):
        _make_anew(target)
    if source.root != target.resolve():
        _show_folder(source, source.root, target)


def hidden_from(run_dir: Path, whole: str | Path, shown: DataFolder) -> tuple[str, ...]:
    """What a script must not see, wherever it lies: the records of runs, and the whole data where a part is shown."""
    labels = [] if shown.root == Path(whole).resolve() else [str(whole)]
    return (str(records_of(run_dir.resolve())), *labels)


def linked_places(shown: Path) -> list[str]:
    """Where the links below a folder lead that shows the data."""
    return [os.path.realpath(entry.path) for entry in entries_below(shown) if entry.is_symlink()]


def _show_folder(source: DataFolder, folder: Path, target: Path) -> None:
    for original in folder.iterdir():
        shown = target / original.name
        if shown.is_symlink():
            shown.unlink()  # it may show too much, or the data have moved
        if source.leaves_out(original):
            continue
        if source.leads_to_ours(str(original)):
            shown.mkdir(exist_ok=True)
            _show_folder(source, original, shown)
        elif not shown.exists():
            try:
                shown.symlink_to(original)
            except OSError:
                logger.warning("cannot link %s into %s: copying it", original, target)
                shutil.copytree(original, shown) if original.is_dir() else shutil.copy2(original, shown)


def reset_working_directory(working_dir: str) -> bool:
    """Before each script: a fresh folder in place of the last one, where it is ours; else only `final/` is emptied.

    What a script set on the old folder (attributes, access lists, modes, times) goes with it. False when something of
    the old one could not be removed: it lies beside, under a name that nothing of ours looks at.
    """
    if is_ours(working_dir):
        clean = _make_anew(Path(working_dir))
        setup_working_directory(working_dir)
        return clean
    clean_output_directory(setup_working_directory(working_dir))
    return True


def make_harmless(working_dir: str, *, set_ids: bool) -> None:
    """After each script: its owner, who reads what it leaves, can look into its folders again.

    And where no filter has refused `set_ids`, no program of it makes others run as its owner or group.
    """
    for folder in (Path(working_dir), Path(working_dir) / "final"):
        with contextlib.suppress(OSError):
            mode = folder.lstat().st_mode
            if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                folder.chmod(mode & 0o777 | 0o700)
    for entry in entries_below(Path(working_dir)) if set_ids else ():
        with contextlib.suppress(OSError):
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISREG(mode) and mode & 0o6000:
                os.chmod(entry.path, mode & 0o1777)  # noqa: PTH101


def write_script(solution: SolutionScript, working_dir: str, filename: str = "solution.py") -> str:
    """Store a script byte by byte; one that is empty or would end itself early is refused with `ValueError`."""
    content = solution.content
    if not content.strip():
        raise ValueError("the script is empty")
    if found := _ENDS.search(content):
        line = content.count("\n", 0, found.start()) + 1
        raise ValueError(f"line {line} calls {found[1]}(), which would end the run before the score line; remove it")
    path = Path(os.path.abspath(working_dir)) / filename  # noqa: PTH100
    data = content.encode("utf-8")  # no script is half a pair of surrogates
    if path.is_dir() and not path.is_symlink():
        remove_entry(path)
    write_whole(path, data, sync=False)  # the journal has it: no run waits for the disk
    logger.debug("script written: %s, %d characters", path, len(content))
    return str(path)
