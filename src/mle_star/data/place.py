"""The data of a task as files: what belongs to them, what has no place among them, and how a change is seen."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mle_star.errors import ConfigError

MARK = ".mle-star-run"
"""Marks a run's folder as ours: only what lies beside it may be overwritten, and it is nobody's data."""
RUNS = "runs"
"""The folder that runs are kept in unless the user names another."""
DIGESTED_BYTES, DIGESTED_FILES = 4 << 30, 50_000
"""How much of the data is read for a digest; of what lies beyond, size and time count, and of large files samples."""
SAMPLES, SAMPLE_BYTES = 64, 1 << 16
STAMPED_FILES = 2000

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_SPECIAL_PLACES = ("/proc", "/sys", "/dev")

Stamp = list[tuple[tuple[str, int, int, int], int, int]]


def records_of(run_dir: Path) -> Path:
    """Where a run's records lie: the folder of all runs, or the run's own where the user has named another."""
    return run_dir.parent if run_dir.parent.name == RUNS else run_dir


@dataclass(frozen=True)
class Sample:
    """A sample of the training table: where it lies, how many training rows it has, and of how many."""

    folder: Path
    rows: int
    of: int


class DataFolder:
    """A data folder without what is not data: folders of runs, `ours` (where this run works) and hidden entries."""

    def __init__(self, root: Path | str, ours: Path | str | None = None) -> None:
        self.root = Path(root).resolve()
        self._ours, place = "", None if ours is None else Path(ours).resolve()
        if place is not None and self.root in place.parents:
            kept = records_of(place)
            self._ours = str(place if kept == self.root else kept)

    def leaves_out(self, entry: os.DirEntry[str] | Path) -> bool:
        """Is this folder or file none of the data?"""
        path = os.fspath(entry)
        if path == self._ours or (entry.name.startswith(".") and Path(path).parent == self.root):
            return True
        return holds_runs(entry)

    def holds(self, path: Path) -> bool:
        """Does this path, which has no links left in it, lead to the data, and through nothing that is left out?"""
        if path != self.root and self.root not in path.parents:
            return False
        on_the_way = [place for place in (path, *path.parents) if self.root in place.parents]
        return not any(self.leaves_out(place) for place in on_the_way)

    def leads_to_ours(self, path: str) -> bool:
        """Does the place where this run works lie inside this folder?"""
        return self._ours.startswith(path + os.sep)

    @property
    def is_whole(self) -> bool:
        """Is all that lies in the folder data, so that it may be shown as it is?"""
        with os.scandir(self.root) as entries:
            return not self._ours and not any(self.leaves_out(entry) for entry in entries)

    # --- looking ----------------------------------------------------------------------------------------------

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """Everything but plain folders, in the order of names; links to folders come and are followed, once each."""
        seen, waiting = set[str](), [str(self.root)]
        while waiting:
            try:
                with os.scandir(waiting.pop()) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
            except OSError:
                continue
            below = []
            for entry in entries:
                if self.leaves_out(entry):
                    continue
                is_folder = _is_folder(entry)
                if not is_folder or entry.is_symlink():
                    yield entry
                if is_folder and (place := os.path.realpath(entry.path)) not in seen:
                    seen.add(place)
                    below.append(entry.path)
            waiting += reversed(below)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """The regular files with what the system knows of them, links followed."""
        for entry in self.entries():
            try:
                status = entry.stat()
            except OSError:
                continue  # a link to nothing
            if stat.S_ISREG(status.st_mode):
                yield entry.path, status

    def check(self, *, allow_outside_links: bool = False) -> None:
        """Refuse by name what could hang a reader, fill the memory or show scripts what is not data."""
        refuse_place(self.root)
        for entry in self.entries():
            if entry.is_file(follow_symlinks=False):
                continue
            name, kind = os.path.relpath(entry.path, self.root), None
            with suppress(OSError):
                kind = _KINDS.get(stat.S_IFMT(entry.stat().st_mode))
            if kind is not None:
                raise ConfigError(f"data_dir: {name!r} in {self.root} is {kind}, not data: remove it")
            if not allow_outside_links and (target := self.outside_target(entry)) is not None:
                raise ConfigError(
                    f"data_dir: {name!r} in {self.root} is a link to {target!r}, outside of that folder: put a copy "
                    "there, set data_dir to where the data really lie, or set allow_outside_links to true"
                )

    def outside_target(self, entry: os.DirEntry[str]) -> str | None:
        """Where a link leads that leaves the folder."""
        if not entry.is_symlink():
            return None
        target = os.path.realpath(entry.path)
        inside = Path(target) == self.root or self.root in Path(target).parents
        return None if inside or not os.path.lexists(target) else target

    def outside_targets(self) -> list[str]:
        """All places outside of the folder that its links lead to."""
        found = (self.outside_target(entry) for entry in self.entries() if entry.is_symlink())
        return sorted({target for target in found if target is not None})

    # --- changes ----------------------------------------------------------------------------------------------

    def stamp(self, most: int = STAMPED_FILES) -> Stamp:
        """What is cheap to know of the first files: enough to see that somebody changed or replaced one.

        A change sets the time of the last change, which no program can set back.
        """
        return [
            ((path, status.st_size, status.st_mtime_ns, status.st_ino), status.st_ctime_ns, status.st_nlink)
            for path, status in islice(self.files(), most)
        ]

    def changed_since(self, before: Stamp) -> bool:
        """Was a file changed or replaced? That another run links to one, or no longer does, changes nothing in it."""
        after = self.stamp()
        if [file for file, _, _ in after] != [file for file, _, _ in before]:
            return True
        pairs = zip(before, after, strict=True)
        return any(changed != then and links == linked for (_, then, linked), (_, changed, links) in pairs)

    def digest(self) -> str:
        """A digest of names and contents; beyond the limits of sizes, times and samples instead of contents."""
        hasher, left = hashlib.sha256(), DIGESTED_BYTES
        for number, (path, status) in enumerate(self.files()):
            size, name = status.st_size, os.path.relpath(path, self.root)
            is_read = size <= left and number < DIGESTED_FILES
            left -= size if is_read else 0
            hasher.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            if not is_read:
                hasher.update(str(status.st_mtime_ns).encode())
            try:
                if is_read or size > 16 * SAMPLES * SAMPLE_BYTES:
                    hasher.update(_content_digest(path, size, 1 if is_read else SAMPLES))
            except OSError as error:
                hasher.update(f"{name}: {error.errno}".encode())
        return hasher.hexdigest()


def refuse_place(folder: Path) -> None:
    """Refuse a folder that holds home directories, or nothing but the kernel's own files."""
    homes = {Path.home().resolve(), Path("/root"), Path("/home")}
    if any(folder == home or folder in home.parents for home in homes):
        raise ConfigError(f"data_dir: {folder} is no folder of data: scripts would see all that lies below it")
    for place in map(Path, _SPECIAL_PLACES):
        if place in (folder, *folder.parents) and Path("/dev/shm") not in (folder, *folder.parents):
            raise ConfigError(f"data_dir: {folder} belongs to the system: nothing in there is data")


def holds_runs(folder: os.DirEntry[str] | Path) -> bool:
    """Is it a run's folder, or the one that runs are kept in?"""
    if not _is_folder(folder):
        return False
    if os.path.lexists(os.path.join(folder, MARK)):  # noqa: PTH118
        return True
    with suppress(OSError):
        if folder.name == RUNS:
            with os.scandir(folder) as entries:
                return any(os.path.lexists(os.path.join(entry.path, MARK)) for entry in entries)  # noqa: PTH118
    return False


def _is_folder(entry: os.DirEntry[str] | Path) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False


def _open(path: str) -> int:
    """A descriptor for reading; what was a file a moment ago may be a pipe by now, and must not make anybody wait."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "no regular file")
    return handle


def _content_digest(path: str, size: int, samples: int) -> bytes:
    """Of the whole content, or of so many samples that span it."""
    hasher = hashlib.sha256()
    with os.fdopen(_open(path), "rb") as file:
        for number in range(samples):
            file.seek((size - SAMPLE_BYTES) * number // max(samples - 1, 1))
            left = size if samples == 1 else SAMPLE_BYTES
            while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                hasher.update(chunk)
                left -= len(chunk)
    return hasher.digest()
