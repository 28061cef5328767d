"""What lies in a data folder: which table is for training, which for testing, what a submission looks like."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mle_star.data.place import holds_runs
from mle_star.data.tables import TABLE_SUFFIXES, Table, read_table, table_form
from mle_star.errors import ConfigError

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
AUDIO_SUFFIXES = {".wav", ".mp3", ".flac", ".ogg", ".aif", ".aiff", ".m4a"}
MAX_ENTRIES = 5_000
"""Files looked at per folder: a folder of a million pictures is told by its first thousands."""
MAX_FOLDERS = 200
MAX_TABLES = 12
_SUBMISSION = r"\b(samplesub|submission|submit)"
_TEST = r"\b(test|eval|unlabel)|\b(holdout|unseen)\b"
_ROLES = (
    ("answers", r"\b(answers?|solutions?|truth|groundtruth)\b"),
    ("sample", _SUBMISSION),
    ("labels", rf"^(?!.*({_TEST})).*\b(labels?|targets?|y)\b"),
    ("train", r"\btrain|\b(learn|fit)\b"),
    ("test", _TEST),
    ("sample", r"\b(sample|example)\b"),
)
"""What the words in a file's name tell of its role, the first that is found."""


@dataclass
class Survey:
    """The roles that the files of a data folder play; `others` are the tables without one."""

    folder: Path
    train: Table | None = None
    test: Table | None = None
    sample: Table | None = None
    labels: Table | None = None
    others: list[Table] = field(default_factory=list)
    images: dict[str, set[str]] = field(default_factory=dict)  # folder, relative to the data: names of its pictures
    audio: int = 0
    prose: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def tables_of_labels(self) -> list[Table]:
        """The tables that may hold the target."""
        return [table for table in (self.labels, self.train) if table is not None]

    @property
    def tables(self) -> list[Table]:
        """All tables, training data first."""
        roles = (self.train, self.labels, self.test, self.sample)
        return [*(table for table in roles if table is not None), *self.others]


def find_data_folder(folder: Path) -> Path:
    """The folder that holds the data: its `input`, itself, or the only sub-folder with data files."""
    if not folder.exists():
        raise ConfigError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: a folder with data files is wanted; `mle-star run {folder}` takes one file as it is"
        )
    if _holds_data(folder / "input"):
        return folder / "input"
    if _holds_data(folder):
        return folder
    below = sorted(Path(entry.path) for entry in _entries(folder) if entry.is_dir())[:MAX_FOLDERS]
    with_data = [path for path in below if _holds_data(path)]
    return with_data[0] if len(with_data) == 1 else folder


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
        elif table_form(path) is not None:
            paths.append(path)
    _read_tables(found, paths)
    found.prose = list(_prose(folder))
    if not found.tables and not found.images and not found.audio:
        why = f" ({'; '.join(found.notes[:3])})" if found.notes else ""
        kinds = ", ".join(TABLE_SUFFIXES)
        raise ConfigError(f"{folder}: no data found{why}; wanted are tables ({kinds}), pictures or sound files")
    return found


def _read_tables(found: Survey, paths: list[Path]) -> None:
    """Read the telling tables, those at the top first, and of each role the largest."""
    names = {path: path.relative_to(found.folder).as_posix() for path in paths}
    roles = {path: _role(names[path]) for path in paths}
    by_size = sorted(paths, key=lambda path: (names[path].count("/"), -path.stat().st_size, path.name))
    seen = Counter[str]()
    turn: dict[Path, int] = {}
    for path in by_size:
        turn[path] = seen[roles[path]]
        seen[roles[path]] += 1
    ranked = sorted(by_size, key=lambda path: (names[path].count("/"), roles[path] == "other", turn[path]))
    tables: list[tuple[str, Table]] = []
    for path in ranked[:MAX_TABLES]:
        role = roles[path]
        if role == "answers":
            found.notes.append(f"{path.name} looks like the answers: keep it out of the data folder")
            continue
        table = read_table(path, names[path])
        if isinstance(table, str):
            found.notes.append(table)
        elif table.columns:
            tables.append((role, table))
            found.notes.extend(table.notes)
    if len(ranked) > MAX_TABLES:
        found.notes.append(f"{len(ranked)} tables: only the {MAX_TABLES} most telling ones were looked at")
    _give_roles(found, tables)
    if len(paths) == 1 and found.train is None:
        found.train, found.sample = found.sample, None


def _give_roles(found: Survey, tables: list[tuple[str, Table]]) -> None:
    by_role: defaultdict[str, list[Table]] = defaultdict(list)
    top = min((table.name.count("/") for _, table in tables), default=0)
    for role, table in tables:
        if table.name.count("/") == top:  # copies and extras lie in sub-folders
            by_role[role].append(table)
    by_role["sample"] = samples_among(by_role["sample"])
    found.sample, found.test, found.train, found.labels = (
        next(iter(by_role[role]), None) for role in ("sample", "test", "train", "labels")
    )
    others = by_role["other"]
    if found.train is None and others:
        found.train = _training_table(found, others)
    elif found.train is not None and found.test is None:
        found.test = next((table for table in others if _lacks_targets(table, found.train)), None)
    if found.train is None and found.labels is not None:
        found.train, found.labels = found.labels, None
    if found.train is None and found.sample is None and found.test is not None:
        found.train, found.test = found.test, None  # a lone table is what there is to learn from
    given = found.tables
    found.others = [table for _, table in tables if not any(table is other for other in given)]


def samples_among(tables: Iterable[Table]) -> list[Table]:
    """Those that may be the sample submission: all whose name says so, else all that are called a sample."""
    samples = [table for table in tables if _role(table.name) == "sample"]
    return [table for table in samples if re.search(_SUBMISSION, _words(table.name))] or samples


def _training_table(found: Survey, others: list[Table]) -> Table:
    """Of tables without a telling name: the one that has all columns of another and more, else the largest."""
    for table in others:
        for other in [found.test] if found.test else others:
            if table is not other and _lacks_targets(other, table):
                if found.test is None:
                    found.test = other
                return table
    return others[0]


def _lacks_targets(test: Table, train: Table) -> bool:
    """Has `train` every column of `test`, and a few more?"""
    extra = set(train.columns) - set(test.columns)
    return 0 < len(extra) <= 10 and set(test.columns) < set(train.columns)


def _role(name: str) -> str:
    """The role that a file's name tells."""
    return next((role for role, pattern in _ROLES if re.search(pattern, _words(name))), "other")


def _words(name: str) -> str:
    """The words in the name of a file and of its folders, without suffixes."""
    folders, _, file = name.lower().rpartition("/")
    return " ".join(re.findall(r"[a-z]+", f"{folders}/{file.split('.')[0]}"))


# --- files -------------------------------------------------------------------------------------------------------


def _walk(folder: Path, depth: int = 3) -> Iterator[Path]:
    """The regular files of a folder and of its sub-folders; beyond a limit per folder, tables only."""
    below: list[Path] = []
    for count, entry in enumerate(_entries(folder)):
        if count >= MAX_ENTRIES and table_form(Path(entry.name)) is None:
            continue
        if entry.is_dir():
            below.append(Path(entry.path))
        elif entry.is_file():  # no fifo, no device: opening one could wait for ever
            yield Path(entry.path)
    for path in sorted(below)[:MAX_FOLDERS] if depth > 1 else []:
        yield from _walk(path, depth - 1)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith(".") and not holds_runs(entry))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from None


def _holds_data(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    files = (Path(entry.name) for entry in _entries(folder) if entry.is_file())
    return any(table_form(file) or file.suffix.lower() in IMAGE_SUFFIXES | AUDIO_SUFFIXES for file in files)


def _prose(folder: Path) -> Iterator[tuple[str, str]]:
    """Texts that may speak of the metric: beside the data, or one folder up when the data is its `input`."""
    for place in (folder, folder.parent) if folder.name == "input" else (folder,):
        for entry in sorted(_entries(place), key=lambda entry: entry.name):
            path = Path(entry.path)
            telling = re.match(r"(description|readme|overview|evaluation|about|task)", path.stem, re.IGNORECASE)
            if entry.is_file() and telling and path.suffix.lower() in (".md", ".txt", ".rst"):
                with path.open("rb") as stream:
                    yield path.name, stream.read(200_000).decode("utf-8", "replace")
