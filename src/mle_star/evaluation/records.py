"""The rows of a table file as they stand in it, so that some can be taken out and others put in, byte for byte."""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

from mle_star.data.files import COMPRESSED, open_data
from mle_star.data.tables import Form, Table
from mle_star.evaluation.cells import taken
from mle_star.evaluation.separated import (
    BYTE_ORDER_MARK,
    Record,
    Separated,
    Unsupported,
    plain_encoding,
    read_separated,
    written,
)

AT_ONCE = 64
"""So many pieces are handed to the system in one call: it copies some megabytes faster than many."""
SETTLED_EVERY = 0.05
"""Seconds between two times that what is written so far is sent to the disk."""


@dataclass(frozen=True)
class FileRows:
    """The rows of one file. `take` gives some of them back as the file that they would be."""

    table: Table
    path: Path
    count: int
    _content: Any  # separated values, a list of objects, or an arrow table
    _known: dict[str, Sequence[str]] = field(default_factory=dict, repr=False, compare=False)

    def remember(self, names: Iterable[str]) -> None:
        """Read these columns at once and keep them: a large file is gone through once instead of once for each."""
        new = [name for name in dict.fromkeys(names) if name not in self._known]
        if not new:
            return
        if isinstance(self._content, Separated):
            columns = self._content.columns(new)
        elif self.table.form.kind == "parquet":  # by column: as objects, a large table does not fit into memory
            there = self._content.column_names
            gaps = [None] * self.count
            cells = [self._content.column(name).to_pylist() if name in there else gaps for name in new]
            columns = [list(map(_text, column)) for column in cells]
        else:
            columns = [[_text(row.get(name)) for row in self.objects()] for name in new]
        self._known.update(zip(new, columns, strict=True))

    def column(self, name: str) -> Sequence[str]:
        """The cells of a column as texts."""
        self.remember([name])
        return self._known[name]

    def values(self, columns: Sequence[str], places: Sequence[int] | None = None) -> list[list[str]]:
        """The cells of these columns as texts, for all rows or for those at `places`; one list per row."""
        if all(name in self._known for name in columns):
            known = [self._known[name] for name in columns]
            some = known if places is None else [taken(column, places) for column in known]
            return list(map(list, zip(*some, strict=True)))
        if not isinstance(self._content, Separated):
            return [[_text(row.get(column)) for column in columns] for row in self.objects(places)]
        if places is None:
            return [list(row) for row in zip(*self._content.columns(columns), strict=True)]
        return self._content.cells(columns, places)

    def objects(self, places: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Whole rows by column, in the values that the file has."""
        if isinstance(self._content, Separated):
            columns = self.table.columns
            return [dict(zip(columns, row, strict=True)) for row in self.values(columns, places)]
        if self.table.form.kind == "parquet":
            content = self._content if places is None else self._content.take(list(places))
            rows: list[dict[str, Any]] = content.to_pylist()
            return rows
        known: list[dict[str, Any]] = self._content
        return known if places is None else [known[place] for place in places]

    def _as_written(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """Whole rows; cells of separated values with the blanks around them, which the rows beside them keep, too."""
        if not isinstance(self._content, Separated):
            return self.objects(places)
        columns = self.table.columns
        return [dict(zip(columns, row, strict=True)) for row in self._content.cells(columns, places, bare=False)]

    def moved(
        self, places: Sequence[int], table: Table, gone: Collection[str], key: str | None, names: Mapping[int, str]
    ) -> list[Record]:
        """These rows as `table` would hold them, without the columns in `gone`, some under the key that `names` gives.

        What is plainly written is not read cell by cell and written anew: there may be millions of cells.
        """
        quick: list[bytes | None] = [None] * len(places)
        ours, theirs = self.table.form.dialect, table.form.dialect
        alike = ours.separator == theirs.separator and ours.blanks == theirs.blanks
        if isinstance(self._content, Separated) and alike:
            quick = self._plainly_moved(self._content, places, table, gone, key, names)
        slow = [place for place, record in zip(places, quick, strict=True) if record is None]
        objects = iter(self._as_written(slow) if slow else [])
        by_schema = self.table.form.kind == "parquet"  # which has an index, too
        shown = {name for column in table.columns for name in _with_those_around(column)} - {*gone}
        return [
            named(
                {k: v for k, v in next(objects).items() if k in shown or (by_schema and k not in gone)},
                key, names.get(place),
            )
            if record is None else record
            for place, record in zip(places, quick, strict=True)
        ]  # fmt: skip

    def _plainly_moved(
        self,
        source: Separated,
        places: Sequence[int],
        table: Table,
        gone: Collection[str],
        key: str | None,
        names: Mapping[int, str],
    ) -> list[bytes | None]:
        """Their records, cut at the separators; None for each that this is not enough for."""
        separator, encoding = table.form.dialect.separator, plain_encoding(table.form)
        marks = (separator, '"', "\r", "\n")
        own = {name: index for index, name in enumerate(self.table.columns) if name not in gone}
        columns = [own.get(name, -1) for name in table.columns]
        cut = [index for index in range(len(self.table.columns)) if index not in columns]
        renamed = own.get(key or "", -1) if names else -1
        added = table.columns.index(key) if names and key in table.columns and key not in own else -1
        width, is_cut = len(self.table.columns), sorted(columns) == columns and -1 not in columns
        first, last = _ends({*cut, renamed} - {-1}, width) if is_cut else (width - 1, 0)
        # what lies between the first and the last cells is one piece
        at = [index if index < first else max(first, index - (width - first - last - 1)) for index in range(width)]
        found: list[bytes | None] = []
        odd = {place for place, name in names.items() if not name.isalnum() and any(mark in name for mark in marks)}
        for place, cells in zip(places, source.plain_cells(places, first, last), strict=True):
            name = names.get(place)
            if cells is None or place in odd:
                found.append(None)
                continue
            if name is not None and renamed >= 0:
                cells[at[renamed]] = name
            if is_cut:
                for index in reversed(cut):
                    del cells[at[index]]
            else:
                cells = [cells[index] if index >= 0 else "" for index in columns]
                if name is not None and added >= 0:
                    cells[added] = name
            record = separator.join(cells)
            found.append(record.encode(encoding, "replace") if record else None)
        return found


def _with_those_around(column: str) -> list[str]:
    """The name of a column and of all objects that it may lie in: `a.b.c`, `a.b` and `a`."""
    parts = column.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _ends(touched: Collection[int], width: int) -> tuple[int, int]:
    """How many cells are to be cut off at the beginning and at the end of a row, so that all of these are among them.

    As few as can be; at least one cell lies between them.
    """
    places = sorted(touched)
    ways = [(first + 1, width - last) for first, last in pairwise([-1, *places, width])]
    return min((way for way in ways if sum(way) < width), key=sum, default=(width - 1, 0))


def read_rows(table: Table, folder: Path) -> FileRows:
    """All rows of a table's file."""
    path, kind = folder / table.name, table.form.kind
    if kind == "csv":
        content: Any = read_separated(table, path)
        return FileRows(table, path, content.count, content)
    if kind in ("records", "lines"):
        with open_data(path) as stream:
            text = stream.read().decode("utf-8-sig")
        objects = _json_objects(text, table.form)
        return FileRows(table, path, len(objects), objects)
    if kind == "parquet":
        from pyarrow import parquet

        content = parquet.read_table(path)
        return FileRows(table, path, content.num_rows, content)
    raise Unsupported(f"rows of {table.name} cannot be moved")


def write_rows(target: Path, kept: FileRows, places: Any, added: Sequence[Record], order: Any) -> None:
    """A file like that of `kept`: its rows at `places` (None: all) and `added` ones, all of them in `order`.

    `added` rows may lack columns, which are empty then. `order` lists positions in kept + added.
    """
    chosen = range(kept.count) if places is None else places
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(kept._content, Separated):
        _write(target, _separated_pieces(kept._content, chosen, added, order))
        return
    objects = [row for row in added if isinstance(row, dict)]
    if kept.table.form.kind == "parquet":
        _write_parquet(target, kept, chosen, objects, order)
    else:
        rows = [*kept.objects(list(chosen)), *objects]
        ordered = rows if order is None else [rows[place] for place in order]
        _write(target, [_json_bytes(ordered, kept.table.form)])


def _write(target: Path, pieces: Sequence[Any]) -> None:
    """The content, compressed as the name says; without compression, piece by piece."""
    suffix = target.suffix.lower()
    if suffix not in COMPRESSED:
        is_written = Event()
        with target.open("wb", buffering=0) as stream:
            Thread(target=_settle, args=(os.dup(stream.fileno()), is_written), daemon=True).start()
            try:
                for first in range(0, len(pieces), AT_ONCE):
                    _write_all(stream.fileno(), pieces[first : first + AT_ONCE])
            finally:
                is_written.set()
        return
    content = b"".join(pieces)
    if suffix == ".gz":
        content = gzip.compress(content, 1, mtime=0)
    elif suffix == ".zip":
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(target.stem), content)
        content = whole.getvalue()
    else:
        raise Unsupported(f"{target.name} cannot be written anew")
    target.write_bytes(content)


def _settle(file: int, is_written: Event) -> None:
    """Let the system bring a long file to the disk while it is written: otherwise that begins when all is done."""
    with suppress(OSError):
        while not is_written.wait(SETTLED_EVERY):
            os.fsync(file)
    os.close(file)


def _write_all(file: int, pieces: Sequence[Any]) -> None:
    """Hand the pieces to the system as they lie; it may take some at a time."""
    done = os.writev(file, pieces)
    if done < sum(map(len, pieces)):
        rest = memoryview(b"".join(pieces))[done:]
        while rest:
            rest = rest[os.write(file, rest) :]


def _separated_pieces(kept: Separated, chosen: Sequence[int], added: Sequence[Record], order: Any) -> list[Any]:
    """The bytes of a file, in pieces."""
    mark = BYTE_ORDER_MARK if kept.table.form.encoding == "utf-8-sig" else b""
    end = kept.line_end
    if order is None and not added:
        return [mark, kept.header, *kept.chosen(chosen)]
    new = [(row if isinstance(row, bytes) else written(row, kept.table)) + end for row in added]
    records = [*kept.ended(chosen), *new]
    ordered = records if order is None else [records[place] for place in order]
    return [mark, kept.header, *ordered]


def named(row: dict[str, Any], key: str | None, name: str | None) -> dict[str, Any]:
    """A row under another key, in the key's own type."""
    if key is None or name is None:
        return row
    return {**row, key: int(name) if isinstance(row.get(key), int) else name}


def _text(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=str)
    return "" if value is None or value != value else str(value)


# --- JSON and Parquet ----------------------------------------------------------------------------------------------


def _json_objects(text: str, form: Form) -> list[dict[str, Any]]:
    if form.kind == "lines":
        return [json.loads(line) for line in text.split("\n") if line.strip()]  # other ends of lines may be in texts
    if form.key:
        raise Unsupported("its records lie inside of another object")
    objects: list[dict[str, Any]] = json.loads(text)
    return objects


def _json_bytes(rows: list[dict[str, Any]], form: Form) -> bytes:
    if form.kind == "lines":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    return json.dumps(rows, ensure_ascii=False, indent=1).encode()


def _has_fractions(rows: list[dict[str, Any]], name: str) -> bool:
    return any(isinstance(value := row.get(name), float) and value % 1 for row in rows)


def _write_parquet(
    target: Path, kept: FileRows, chosen: Sequence[int], added: list[dict[str, Any]], order: Any
) -> None:
    import numpy as np
    import pyarrow
    from pyarrow import parquet

    content = kept._content.take(np.asarray(chosen, np.int64))
    if added:
        names = content.schema.names
        try:
            new = pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in added], content.schema)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
            raise Unsupported(f"rows do not fit into {kept.table.name}: {error}") from None
        cut = [f.name for f in content.schema if pyarrow.types.is_integer(f.type) and _has_fractions(added, f.name)]
        if cut:
            raise Unsupported(f"{cut[0]} holds whole numbers in {kept.table.name} only")
        content = pyarrow.concat_tables([content, new])
    parquet.write_table(content if order is None else content.take(np.asarray(order)), target)
