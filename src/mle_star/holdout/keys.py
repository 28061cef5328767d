"""What could tell the labels of hidden rows: their names, the files that bear these, files that hold a table."""

import os
import random
import re
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from mle_star.data.layout import AUDIO_SUFFIXES, IMAGE_SUFFIXES, Layout
from mle_star.data.place import COMPRESSED, DataFolder
from mle_star.data.rows import TableRows, as_text, read_rows
from mle_star.data.tables import Table, Unsupported, read_table, table_form

_NUMBERED = re.compile(r"(\D*)(\d+)(\D*)")
FILES_SHARE = 0.5
"""So many of the keys must have a file for the files to count as named by key."""
_TABLES = (
    ".pkl .pickle .joblib .db .db3 .sqlite .sqlite3 .feather .arrow .orc .rds .rda .rdata .dta .sav .sas7bdat .xls"
)
_UNREAD = frozenset(f"{_TABLES} .arff .ods .bak .old .orig .tmp .swp .7z .rar".split())
"""Tables that nobody here looks into, what editors and people leave of older ones, and archives that stay shut."""
_ARRAYS = frozenset((".npy", ".npz", ".h5", ".hdf5", ".mat", ".pt"))
_LABELS = re.compile(r"(^|[\W_])(labels?|targets?|answers?|solutions?|y)([\W_]|$)", re.IGNORECASE)
MOST_MEMBERS, MOST_TABLES = 1000, 200
COMPARED_FIRST = 1000


def fresh_keys(
    old: "Numbers | None", test: Sequence[str], hidden: Sequence[int], *, seed: int, nameless: bool = False
) -> dict[int, str]:
    """New keys for the hidden rows, at random, where the test's lie apart from those of the training rows.

    There rows may be numbered in the order of their labels, which says nothing about the real test. None are given
    where both are mixed, or where keys are not numbered. Rows that are `nameless` among the test's need new ones.
    """
    new = numbers_of(test) if test else None
    like = new or old
    if like is None or (test and new is None) or (old is None and not nameless):
        return {}
    if new is not None and old is not None and new.pattern == old.pattern and not old.lies_apart(new) and not nameless:
        return {}
    first = max(like.high, old.high if old is not None and like.pattern == old.pattern else 0) + 1
    numbers = list(range(first, first + len(hidden)))
    random.Random(seed).shuffle(numbers)
    before, behind = like.pattern
    return dict(zip(hidden, [f"{before}{str(number).zfill(like.width)}{behind}" for number in numbers], strict=True))


@dataclass(frozen=True)
class Numbers:
    """Keys that are numbered: what stands around the number, its range, and the digits of the first."""

    pattern: tuple[str, str]
    low: int
    high: int
    width: int
    goes_up: bool  # each is larger than the one before, so that none comes twice
    count: int = 0

    @property
    def counts_rows(self) -> bool:
        """Are they the numbers of rows, one after another?"""
        return self.goes_up and self.high - self.low + 1 == self.count

    def lies_apart(self, other: "Numbers") -> bool:
        """Are all of these smaller than all of the others, or larger?"""
        return self.high < other.low or other.high < self.low


def numbers_of(keys: Sequence[str]) -> Numbers | None:
    """How the keys are numbered; None where they are not."""
    first = _NUMBERED.fullmatch(keys[0]) if keys else None
    if first is None:
        return None
    before, _, behind = first.groups()
    if before or behind:
        if not all(key.startswith(before) and key.endswith(behind) for key in keys):
            return None
        keys = [key[len(before) : len(key) - len(behind)] for key in keys]
    if not all(map(str.isdecimal, keys)):
        return None
    numbers = list(map(int, keys))
    goes_up = all(number < following for number, following in pairwise(numbers))
    return Numbers((before, behind), min(numbers), max(numbers), len(keys[0]), goes_up, len(keys))


class KeyFiles(NamedTuple):
    """The files that are named by the key of a row (`train/17.png`): by key, below the data folder."""

    by_key: Mapping[str, Sequence[Path]]
    test_folder: Path | None
    """Where the files of the test rows lie, if not among those of the training rows."""
    suffixes: frozenset[str] = frozenset()
    """The kinds of files that test rows have: others, such as annotations, may tell the label."""

    def moved(self, file: Path, key: str, name: str) -> Path | None:
        """Where the file of a hidden row goes, by the name that the row has in the view; None: no test row has such.

        A name that is a path leads nowhere else: it is a cell of a table that anybody may have written.
        """
        if self.suffixes and file.suffix.lower() not in self.suffixes:
            return None
        return (self.test_folder or file.parent) / f"{Path(name).name}{file.name[len(key) :]}"


def find_key_files(root: Path, train: Sequence[str], test: Sequence[str], tables: Collection[str]) -> KeyFiles:
    """The files named by the keys of both kinds of rows; none where most training rows have none."""
    others = [Path(place, name).relative_to(root) for place, _, names in os.walk(root) for name in names]
    others = [file for file in others if file.as_posix() not in tables]
    wanted = {*train, *test}
    found: dict[str, list[Path]] = defaultdict(list)
    for file in others:
        stem = file.name if file.name in wanted else file.name.split(".")[0]
        if stem in wanted:
            found[stem].append(file)
    if not train or sum(key in found for key in train) < FILES_SHARE * len(train):
        return KeyFiles({}, None)
    ours, theirs = ([file for key in keys for file in found.get(key, ())] for keys in (train, test))
    apart = {file.parent for file in theirs} - {file.parent for file in ours}
    is_apart = len(apart) == 1 and apart == {file.parent for file in theirs}
    kinds = {file.suffix.lower() for file in theirs or ours}
    shown = kinds if theirs else kinds & (IMAGE_SUFFIXES | AUDIO_SUFFIXES) or kinds
    return KeyFiles(found, min(apart) if is_apart else None, frozenset(shown))


# --- files that may hold labels: copies, archives, databases; no view shows them -------------------------------------


def label_files(layout: Layout) -> frozenset[str]:
    """The files, by their path below the folder, whose content may tell labels that a view hides."""
    folder, roles = layout.folder, {table.name for table in layout.roles}
    seen = {table.name for table in layout.others}
    found = {other.name for other in layout.others if _repeats_target(layout, other)}
    unseen: list[str] = []
    for name in (name for name, _ in DataFolder(folder).files() if name not in roles):
        if any(part.startswith(".") for part in name.split("/")) or _may_hold_a_table(folder / name):
            found.add(name)
        elif name not in seen and table_form(Path(name)) is not None:
            unseen.append(name)
    found.update(name for name in unseen[:MOST_TABLES] if _may_hold_target(folder / name, layout.target.names))
    return frozenset(found)


def _repeats_target(layout: Layout, other: Table) -> bool:
    """Does a table of as many rows hold the labels under another name?"""
    train = layout.target.table
    if train is None or abs(other.rows - train.rows) > (0 if other.whole and train.whole else 0.05 * train.rows):
        return False
    if other.whole and train.whole:
        return any(cells == train.sample[name] for cells in other.sample.values() for name in layout.target.names)
    with suppress(Unsupported):
        ours, theirs = (read_rows(table, layout.folder) for table in (train, other))
        return ours.count == theirs.count and _agree(ours, layout.target.names, theirs, other.columns)
    return True  # nobody here can tell


def _agree(ours: TableRows, names: Sequence[str], theirs: TableRows, columns: Sequence[str]) -> bool:
    """Is one of these columns the same as one of ours?"""
    head = range(min(COMPARED_FIRST, ours.count))
    known, others = (
        [[as_text(cell).strip() for cell in cells] for cells in rows.values(some, head)]
        for rows, some in ((ours, names), (theirs, columns))
    )
    alike = [name for name, cells in zip(columns, others, strict=True) if cells in known]
    return any(theirs.column(column) == ours.column(name) for column in alike for name in names)


def _may_hold_a_table(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix in _UNREAD or path.name.endswith("~"):
        return True
    if suffix in _ARRAYS:
        return _LABELS.search(path.stem) is not None
    if table_form(path) is not None:
        return False
    with suppress(OSError, EOFError, RuntimeError, zipfile.BadZipFile, tarfile.TarError):
        return any(table_form(Path(name)) or Path(name).suffix.lower() in _UNREAD for name in _packed(path))
    return True  # an archive that cannot be looked into


def _packed(path: Path) -> list[str]:
    """The names of what is in an archive; nothing for any other file."""
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as zipped:
            return zipped.namelist()
    if path.suffix.lower() in (".tar", ".tgz", ".tbz2", ".txz") or ".tar" in path.suffixes:
        with tarfile.open(path) as packed:
            return [member.name for member in islice(packed, MOST_MEMBERS)]
    return []


def _may_hold_target(path: Path, targets: Iterable[str]) -> bool:
    """Has a table that the survey has not seen a column of the target's name, or can it not be unpacked?"""
    table = read_table(path)
    if isinstance(table, str):
        return path.suffix.lower() in COMPRESSED and "cannot be read" in table
    return not set(targets).isdisjoint(table.columns)
