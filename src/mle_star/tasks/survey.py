"""What lies in a data folder: which table is for training, which for testing, what a submission looks like."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mle_star.data_files import holds_runs
from mle_star.errors import ConfigError
from mle_star.tasks.tables import TABLE_SUFFIXES, Table, read_table, table_suffix

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
AUDIO_SUFFIXES = {".wav", ".mp3", ".flac", ".ogg", ".aif", ".aiff", ".m4a"}
MAX_ENTRIES = 5_000
"""Files looked at per folder: a folder of a million pictures is told by its first thousands."""
MAX_TABLES = 12


@dataclass
class Survey:
    """The roles that the files of a data folder play."""

    folder: Path
    train: Table | None = None
    test: Table | None = None
    sample: Table | None = None
    labels: Table | None = None
    images: dict[str, set[str]] = field(default_factory=dict)  # folder, relative to the data: names of its pictures
    audio: int = 0
    prose: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def tables(self) -> list[Table]:
        """The tables that have a role, training data first."""
        return [table for table in (self.train, self.labels, self.test, self.sample) if table is not None]


def find_data_folder(folder: Path) -> Path:
    """The folder that holds the data: its `input`, itself, or the only sub-folder with data files."""
    if not folder.exists():
        raise ConfigError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: a folder with data files is wanted, not a file")
    if _holds_data(folder / "input"):
        return folder / "input"
    if _holds_data(folder):
        return folder
    below = [path for path in _folders(folder) if _holds_data(path)]
    return below[0] if len(below) == 1 else folder


def survey(folder: Path) -> Survey:
    """Look at the files of a data folder and tell their roles."""
    found = Survey(folder)
    paths: list[Path] = []
    for path in _walk(folder):
        suffix = path.suffix.lower()
        if suffix in IMAGE_SUFFIXES:
            found.images.setdefault(path.parent.relative_to(folder).as_posix(), set()).add(path.name)
        elif suffix in AUDIO_SUFFIXES:
            found.audio += 1
        elif table_suffix(path) is not None:
            paths.append(path)
    top = [path for path in paths if path.parent == folder]
    _read_tables(found, top or paths)
    found.prose = list(_prose(folder))
    if not found.tables and not found.images and not found.audio:
        why = f" ({'; '.join(found.notes[:3])})" if found.notes else ""
        kinds = ", ".join(TABLE_SUFFIXES)
        raise ConfigError(f"{folder}: no data found{why}; wanted are tables ({kinds}), pictures or sound files")
    return found


def _read_tables(found: Survey, paths: list[Path]) -> None:
    ranked = sorted(paths, key=lambda path: (_role(path, found.folder) == "other", -path.stat().st_size, path.name))
    tables: list[tuple[str, Table]] = []
    for path in ranked[:MAX_TABLES]:
        role = _role(path, found.folder)
        if role == "answers":
            found.notes.append(f"{path.name} looks like the answers: keep it out of the data folder")
            continue
        table = read_table(path)
        if isinstance(table, str):
            found.notes.append(table)
        elif table.columns:
            tables.append((role, table._replace(name=path.relative_to(found.folder).as_posix())))
            found.notes.extend(table.notes)
    if len(ranked) > MAX_TABLES:
        found.notes.append(f"{len(ranked)} tables: only the {MAX_TABLES} most telling ones were looked at")
    _give_roles(found, tables)


def _give_roles(found: Survey, tables: list[tuple[str, Table]]) -> None:
    by_role: dict[str, list[Table]] = {}
    for role, table in tables:
        by_role.setdefault(role, []).append(table)
    found.sample = next(iter(by_role.get("sample", [])), None)
    found.test = next(iter(by_role.get("test", [])), None)
    found.train = next(iter(by_role.get("train", [])), None)
    found.labels = next(iter(by_role.get("labels", [])), None)
    others = by_role.get("other", [])
    if found.train is None and others:
        found.train = _training_table(found, others)
    if found.train is None and found.labels is not None:
        found.train, found.labels = found.labels, None
    if found.train is None and found.sample is None and found.test is not None:
        found.train, found.test = found.test, None  # a lone table is what there is to learn from


def _training_table(found: Survey, others: list[Table]) -> Table:
    """Of tables without a telling name: the one that has all columns of another and more, else the largest."""
    for table in others:
        for other in [found.test] if found.test else others:
            extra = set(table.columns) - set(other.columns)
            if table is not other and extra and len(extra) <= 10 and set(other.columns) < set(table.columns):
                if found.test is None:
                    found.test = other
                return table
    return others[0]


def _role(path: Path, folder: Path) -> str:
    """The role that a file's name tells."""
    stem = path.relative_to(folder).as_posix().lower()
    words = re.findall(r"[a-z]+", stem.removesuffix("".join(path.suffixes).lower()))
    if any(word in ("answer", "answers", "solution", "solutions", "truth", "groundtruth") for word in words):
        return "answers"
    if any(word.startswith(("samplesub", "submission", "submit")) or word == "sample" for word in words):
        return "sample"
    if any(word in ("label", "labels", "target", "targets", "y") for word in words) and not _is_test(words):
        return "labels"
    if any(word.startswith("train") for word in words):
        return "train"
    return "test" if _is_test(words) else "other"


def _is_test(words: list[str]) -> bool:
    return any(word.startswith("test") or word in ("holdout", "unseen") for word in words)


def _walk(folder: Path, depth: int = 3) -> Iterator[Path]:
    """The regular files of a folder and of its sub-folders; beyond a limit per folder, tables only."""
    below: list[Path] = []
    for count, entry in enumerate(_entries(folder)):
        if count >= MAX_ENTRIES and table_suffix(Path(entry.name)) is None:
            continue
        if entry.is_dir():
            below.append(Path(entry.path))
        elif entry.is_file():  # no fifo, no device: opening one could wait for ever
            yield Path(entry.path)
    for path in sorted(below)[:200] if depth > 1 else []:
        yield from _walk(path, depth - 1)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith(".") and not holds_runs(entry))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from None


def _folders(folder: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry in _entries(folder) if entry.is_dir())[:200]


def _holds_data(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    return any(
        entry.is_file()
        and (
            table_suffix(Path(entry.name)) is not None
            or Path(entry.name).suffix.lower() in IMAGE_SUFFIXES | AUDIO_SUFFIXES
        )
        for entry in _entries(folder)
    )


def _prose(folder: Path) -> Iterator[tuple[str, str]]:
    """Texts that may speak of the metric: beside the data, or one folder up when the data is its `input`."""
    for place in (folder, folder.parent) if folder.name == "input" else (folder,):
        for entry in sorted(_entries(place), key=lambda entry: entry.name):
            path = Path(entry.path)
            telling = re.match(r"(description|readme|overview|evaluation|about|task)", path.stem, re.IGNORECASE)
            if entry.is_file() and telling and path.suffix.lower() in (".md", ".txt", ".rst"):
                with path.open("rb") as stream:
                    yield path.name, stream.read(200_000).decode("utf-8", "replace")
