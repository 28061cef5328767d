"""Files beside the tables that may hold labels: copies, archives, databases. No view shows them."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from mle_star.data.files import COMPRESSED
from mle_star.data.layout import Layout
from mle_star.data.place import DataFolder
from mle_star.data.rows import TableRows, Unsupported, as_text, read_rows
from mle_star.data.tables import Table, read_table, table_form

_UNREAD = frozenset(
    (
        ".pkl",
        ".pickle",
        ".joblib",
        ".db",
        ".db3",
        ".sqlite",
        ".sqlite3",
        ".feather",
        ".arrow",
        ".orc",
        ".rds",
        ".rda",
        ".rdata",
        ".dta",
        ".sav",
        ".sas7bdat",
        ".arff",
        ".ods",
        ".xls",
        ".bak",
        ".old",
        ".orig",
        ".tmp",
        ".swp",
        ".7z",
        ".rar",
    )
)
"""Tables that nobody here looks into, what editors and people leave of older ones, and archives that stay shut."""
_ARRAYS = frozenset((".npy", ".npz", ".h5", ".hdf5", ".mat", ".pt"))
_LABELS = re.compile(r"(^|[\W_])(labels?|targets?|answers?|solutions?|y)([\W_]|$)", re.IGNORECASE)
MOST_MEMBERS, MOST_TABLES = 1000, 200
COMPARED_FIRST = 1000


def label_files(layout: Layout, folder: Path) -> frozenset[str]:
    """The files, by their path below the folder, whose content may tell labels that a view hides."""
    roles = {t.name for t in (layout.train, layout.test, layout.sample, layout.labels) if t is not None}
    seen = {table.name for table in layout.others}
    found = {other.name for other in layout.others if _repeats_target(layout, other, folder)}
    unseen: list[str] = []
    data = DataFolder(folder)
    for path, _ in data.files():
        name = os.path.relpath(path, data.root).replace(os.sep, "/")
        if name in roles:
            continue
        if any(part.startswith(".") for part in name.split("/")) or _may_hold_a_table(Path(path)):
            found.add(name)
        elif name not in seen and table_form(Path(path)) is not None:
            unseen.append(name)
    return frozenset(found.union(_with_target(folder, unseen[:MOST_TABLES], layout.target.names)))


def _repeats_target(layout: Layout, other: Table, folder: Path) -> bool:
    """Does a table of as many rows hold the labels under another name?"""
    train = layout.target.table
    if train is None or abs(other.rows - train.rows) > (0 if other.whole and train.whole else 0.05 * train.rows):
        return False
    if other.whole and train.whole:
        return any(cells == train.sample[name] for cells in other.sample.values() for name in layout.target.names)
    try:
        ours, theirs = read_rows(train, folder), read_rows(other, folder)
        return ours.count == theirs.count and _agree(ours, layout.target.names, theirs, other.columns)
    except Unsupported:
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
    try:
        return any(map(_is_table, _packed(path)))
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, tarfile.TarError):
        return True  # an archive that cannot be looked into


def _is_table(name: str) -> bool:
    return table_form(Path(name)) is not None or Path(name).suffix.lower() in _UNREAD


def _packed(path: Path) -> list[str]:
    """The names of what is in an archive; nothing for any other file."""
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as zipped:
            return zipped.namelist()
    if path.suffix.lower() in (".tar", ".tgz", ".tbz2", ".txz") or ".tar" in path.suffixes:
        with tarfile.open(path) as packed:
            return [member.name for member in islice(packed, MOST_MEMBERS)]
    return []


def _with_target(folder: Path, names: Iterable[str], targets: Iterable[str]) -> Iterator[str]:
    """Tables that the survey has not seen and that have a column of the target's name, or cannot be unpacked."""
    for name in names:
        table = read_table(folder / name)
        if isinstance(table, str):
            shown = Path(name).suffix.lower() not in COMPRESSED or "cannot be read" not in table
        else:
            shown = set(targets).isdisjoint(table.columns)
        if not shown:
            yield name
