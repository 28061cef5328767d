"""All rows of a table's file: columns as texts, rows moved into another file of the task, and files rewritten.

A row stays what its file holds: a line of separated values as it is written, with quotes, blanks and decimal commas,
or an object of values. So rows that are written back are the same data. pyarrow is loaded where it is used: a run that
hides no rows does without its 40 MB.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from mle_star.data.columns import is_gap
from mle_star.data.place import DataFolder, create_data, long_cells, make_room, open_data
from mle_star.data.tables import Form, Table, as_cell, flatten, json_records, read_table
from mle_star.errors import ConfigError
from mle_star.models.texts import did_you_mean

LONGEST_CELL = 1 << 30
NO_CHANGES: Mapping[str, Sequence[Any]] = {}
KEEP_BYTES = "surrogateescape"
"""Bytes that are no text in a file's encoding are written back as they were."""

Record = Any
"""A row as its file holds it: values by column, or a line of separated values with its line end."""
Changes = Mapping[str, Sequence[Any]]


class Unsupported(ValueError):
    """A file whose rows cannot be moved; the message says why."""


def read_rows(table: Table, folder: Path, names: Iterable[str] = ()) -> TableRows:
    """All rows of a table's file; the columns `names` are read at once."""
    path, kind = folder / table.name, table.form.kind
    if kind == "csv":
        return Separated(table, _content(path, table.form.encoding), names)
    if kind == "parquet":
        from pyarrow import parquet

        return Parquet(table, parquet.read_table(path))
    if kind == "excel":
        import pandas

        return TableRows(table, pandas.read_excel(path, dtype=object).to_dict("records"))
    _, records, is_whole = json_records(path)
    if not is_whole:
        raise Unsupported(f"{table.name} cannot be read to its end")
    return TableRows(table, records)


def no_rows(name: str, columns: tuple[str, ...], form: Form) -> TableRows:
    """A table that is still to be made: no rows, under its header; of separated values, whatever `form` it is like."""
    form = form._replace(has_header=True) if form.kind == "csv" else Form()
    header = io.StringIO()
    csv.writer(header, delimiter=form.separator, lineterminator="\n").writerow(columns)
    content = header.getvalue().encode(_held_in(form.encoding.removesuffix("-sig")), "replace")
    return Separated(Table(name, columns, {}, 0, True, form), content)


def drop_columns(folder: Path, names: Collection[str]) -> None:
    """Write every table of a folder that has such columns anew, without them; `ConfigError` where none has one."""
    tables = [(path, read_table(path)) for path in sorted(Path(one) for one, _ in DataFolder(folder).files())]
    known = {name for _, table in tables if isinstance(table, Table) for name in table.columns}
    for name in names:
        if name not in known:
            raise ConfigError(f"--drop {name}: there is no such column; {did_you_mean(name, sorted(known))}")
    for path, table in tables:
        if isinstance(table, str) or {*names}.isdisjoint(table.columns):
            continue
        rows, left = read_rows(table, path.parent), tuple(name for name in table.columns if name not in names)
        if isinstance(rows, Parquet):
            rows = rows.without(names)
        else:
            to = TableRows(replace(table, columns=left), [])
            to = no_rows(table.name, left, table.form) if table.form.kind == "csv" else to
            rows = to.holding(rows.edited(range(rows.count), to, names))
        rows.write(path, range(rows.count))


class TableRows:
    """All rows of one file: here those of JSON and Excel, each an object of values by column."""

    def __init__(self, table: Table, objects: list[dict[str, Any]]) -> None:
        self.table, self.count, self._objects = table, len(objects), objects
        self._known: dict[str, list[str]] = {}

    def column(self, name: str) -> list[str]:
        """The cells of a column as texts without blanks around them; a gap is an empty one."""
        if name not in self._known:
            (self._known[name],) = self._columns([name])
        return self._known[name]

    def values(self, names: Sequence[str], places: Sequence[int]) -> list[list[Any]]:
        """Some columns of the rows at some places, in the values that the file has."""
        rows = self._at(places)
        return [[row.get(name) for row in rows] for name in names]

    def typed(self, name: str, texts: Sequence[Any]) -> list[Any]:
        """Texts as truths, numbers or moments, where a column holds such, else as they are."""
        known = [flatten(row).get(name) for row in self._at(range(self.count))] if "." in name else self._all(name)
        kinds = {type(value) for value in known if value is not None and value == value}
        if kinds == {bool}:
            return [{"true": True, "1": True, "false": False, "0": False}.get(str(cell).lower()) for cell in texts]
        if kinds and kinds <= {int, float}:
            return [None if is_gap(c) else int(c) if c.lstrip("+-").isdigit() else float(c) for c in texts]
        if kinds and all(issubclass(kind, datetime) for kind in kinds):
            return [None if is_gap(cell) else datetime.fromisoformat(cell) for cell in texts]
        return list(texts)

    def edited(
        self, places: Sequence[int], to: TableRows, gone: Collection[str] = (), changes: Changes = NO_CHANGES
    ) -> list[Record]:
        """The rows at these places as rows of `to`: without the columns in `gone`, with the cells in `changes`."""
        shown = to._names - {*gone}
        rows = [{name: value for name, value in row.items() if name in shown} for row in self._at(places)]
        for name in shown.intersection(changes):
            for row, cell in zip(rows, changes[name], strict=True):
                row[name] = cell
        return to._records_of(rows)

    def holding(self, records: Sequence[Record], *, behind_own: bool = False) -> TableRows:
        """The table with other rows, as `edited` gives them, or with these behind its own."""
        return TableRows(self.table, [*(self._objects if behind_own else ()), *records])

    def write(self, target: Path, places: Sequence[int]) -> None:
        """A file like this one that holds the rows at these places; those of a file as it was read go up."""
        rows, form = self._at(places), self.table.form
        if form.kind == "excel":
            import pandas

            make_room(target)
            pandas.DataFrame(rows, columns=list(self.table.columns), dtype=object).to_excel(target, index=False)
            return
        if form.kind == "lines":
            text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        else:
            columns = {name: [row.get(name) for row in rows] for name in self.table.columns}
            whole = columns if form.kind == "columns" else {form.key: rows} if form.key else rows
            text = json.dumps(whole, ensure_ascii=False, indent=1)
        with create_data(target) as stream:
            stream.write(text.encode())

    def _columns(self, names: Sequence[str]) -> list[list[str]]:
        return [list(map(as_text, self._all(name))) for name in names]

    def _all(self, name: str) -> list[Any]:
        """A column of all rows."""
        return [row.get(name) for row in self._objects]

    def _at(self, places: Sequence[int]) -> list[Any]:
        """The rows at some places."""
        return [self._objects[place] for place in places]

    @property
    def _names(self) -> set[str]:
        """The names of a row's values: those of columns, and of the objects that hold them (`a.b` and `a`)."""
        return {".".join(part) for name in self.table.columns for part in accumulate([p] for p in name.split("."))}

    def _records_of(self, rows: list[dict[str, Any]]) -> list[Record]:
        return rows


class Parquet(TableRows):
    """The rows of a Parquet file, held by column: as objects, a large table does not fit into memory."""

    def __init__(self, table: Table, content: Any) -> None:
        super().__init__(table, [])
        self._content, self.count = content, content.num_rows

    def holding(self, records: Sequence[Record], *, behind_own: bool = False) -> TableRows:
        """Rows of the same types; `Unsupported` where a value does not fit into them."""
        import pyarrow

        schema = self._content.schema
        whole = [field.name for field in schema if pyarrow.types.is_integer(field.type)]
        cut = [name for name in whole if any(isinstance(v := row.get(name), float) and v % 1 for row in records)]
        if cut:
            raise Unsupported(f"{cut[0]} holds whole numbers in {self.table.name} only")
        try:
            new = pyarrow.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in records], schema)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
            raise Unsupported(f"rows do not fit into {self.table.name}: {error}") from None
        return Parquet(self.table, pyarrow.concat_tables([self._content, new]) if behind_own else new)

    def without(self, names: Collection[str]) -> Parquet:
        """The table without some columns."""
        return Parquet(
            self.table, self._content.select([one for one in self._content.column_names if one not in names])
        )

    def write(self, target: Path, places: Sequence[int]) -> None:
        """A file of the same types."""
        from pyarrow import parquet

        make_room(target)
        parquet.write_table(self._taken(places), target)

    def _all(self, name: str) -> list[Any]:
        there = name in self._content.column_names
        return list(self._content.column(name).to_pylist()) if there else [None] * self.count

    def _at(self, places: Sequence[int]) -> list[Any]:
        return list(self._taken(places).to_pylist())

    def _taken(self, places: Sequence[int]) -> Any:
        return self._content.take(np.asarray(places, np.int64))

    @property
    def _names(self) -> set[str]:
        return set(self._content.column_names)  # an index is one of them


class Separated(TableRows):
    """The rows of a file of separated values: records as the bytes that the file holds."""

    def __init__(self, table: Table, content: bytes, names: Iterable[str] = ()) -> None:
        super().__init__(table, [])
        form = table.form
        self._encoding = form.encoding.removesuffix("-sig")
        self._held_in = _held_in(self._encoding)
        self._separator, self._blanks = form.separator, form.blanks
        self._marks = self._encoding, self._separator, self._blanks  # two files with the same ones write cells alike
        mark, blanks = re.escape(self._separator), " *" if self._blanks else ""
        self._cell = re.compile(rf'(?:\A|{mark})({blanks}"[^"]*(?:""[^"]*)*"[^{mark}]*|[^{mark}]*)')
        self._odd = re.compile(rf'[{mark}"\r\n]')  # what a cell must be quoted for
        content = content.removeprefix(BOM_UTF8) if form.encoding == "utf-8-sig" else content
        self._line_end = b"\r\n" if content[: content.find(b"\n") + 1].endswith(b"\r\n") else b"\n"
        self._records, self._header = self._read(content, list(names)), b""
        if form.has_header and self._records:
            self._header = self._records.pop(0).rstrip(b"\r\n") + self._line_end
            self._known = {name: cells[1:] for name, cells in self._known.items()}
        self.count = len(self._records)

    def values(self, names: Sequence[str], places: Sequence[int]) -> list[list[Any]]:
        """Some columns of some rows, with the blanks around cells that mean something."""
        with long_cells(LONGEST_CELL):
            rows = list(self._reader(self._at(places)))
        return [[row[place] for row in rows] for place in map(self.table.columns.index, names)]

    def typed(self, name: str, texts: Sequence[Any]) -> list[Any]:
        """Separated values are texts."""
        return list(texts)

    def edited(
        self, places: Sequence[int], to: TableRows, gone: Collection[str] = (), changes: Changes = NO_CHANGES
    ) -> list[Record]:
        """Rows as `to` holds them: cells that stay are taken over as they are written."""
        stay = [name for name in self.table.columns if name in to.table.columns and name not in {*gone, *changes}]
        if not isinstance(to, Separated) or self._marks != to._marks:
            read = {**changes, **dict(zip(stay, self.values(stay, places), strict=True))}
            return to._records_of([dict(zip(read, row, strict=True)) for row in zip(*read.values(), strict=True)])
        cells = [*self.table.columns, *changes]  # and behind them an empty one; of two with one name the second counts
        known = {name: place for place, name in enumerate(cells) if name in {*stay, *changes}}
        order = [known.get(name, -1) for name in to.table.columns]
        written = [to._spelt(name, texts) for name, texts in changes.items()]
        rows = ([*raw, *new, ""] for raw, *new in zip(map(self._raw, self._at(places)), *written, strict=True))
        return [to._joined([row[place] for place in order]) for row in rows]

    def holding(self, records: Sequence[Record], *, behind_own: bool = False) -> TableRows:
        """Rows that end all in one way."""
        made = copy.copy(self)
        made._records = [line.rstrip(b"\r\n") + self._line_end for line in (self._records if behind_own else ())]
        made._records += (record.encode(self._held_in, KEEP_BYTES) for record in records)
        made._known, made.count = {}, len(made._records)
        return made

    def write(self, target: Path, places: Sequence[int]) -> None:
        """A file with the header of this one, and lines as they are."""
        pieces: Iterable[bytes] = chain([self._header], map(self._records.__getitem__, places))
        if self._held_in != self._encoding:
            pieces = [b"".join(pieces).decode(self._held_in).encode(self._encoding)]
        with create_data(target) as stream:
            stream.writelines(chain([BOM_UTF8] if self.table.form.encoding == "utf-8-sig" else [], pieces))

    # --- reading ---

    def _read(self, content: bytes, names: Sequence[str]) -> list[bytes]:
        """The record of each row, the header among them; the columns `names` become known."""
        width, places = len(self.table.columns), [self.table.columns.index(name) for name in names]
        last = len(content.rstrip(b" \r\n"))  # blank lines at the end mean nothing
        lines = content[: content.find(b"\n", last) + 1 or None].splitlines(keepends=True)
        reader = self._reader(line.decode(self._held_in, "replace") for line in lines)
        records, cells, first = list[bytes](), list[list[str]](), 0
        try:
            with long_cells(LONGEST_CELL):
                for row in reader:
                    if len(row) != width:
                        what = "rows of another number of fields" if any(map(str.strip, row)) else "blank lines"
                        raise Unsupported(f"{self.table.name} has {what} among its rows")
                    records.append(b"".join(lines[first : reader.line_num]))
                    cells.append([row[place].strip() for place in places])
                    first = reader.line_num
        except csv.Error as error:
            raise Unsupported(f"the rows of {self.table.name} cannot be told apart: {error}") from None
        self._known.update(
            zip(names, map(list, zip(*cells, strict=True)) if cells else ([] for _ in names), strict=True)
        )
        return records

    def _at(self, places: Sequence[int]) -> list[Any]:
        return [self._records[place].decode(self._held_in, KEEP_BYTES) for place in places]

    def _columns(self, names: Sequence[str]) -> list[list[str]]:
        with long_cells(LONGEST_CELL):
            rows = list(self._reader(record.decode(self._held_in, "replace") for record in self._records))
        return [[row[place].strip() for row in rows] for place in map(self.table.columns.index, names)]

    def _reader(self, lines: Iterable[str]) -> Any:
        return csv.reader(lines, delimiter=self._separator, skipinitialspace=self._blanks)

    def _raw(self, record: str) -> list[str]:
        """The cells of a row as they are written, with their quotes."""
        line = record.rstrip("\r\n")
        return self._cell.findall(line) if '"' in line else line.split(self._separator)

    # --- writing ---

    @cached_property
    def _quoted(self) -> set[str]:
        """The columns whose cells have quotes that they do not need, by the first row."""
        first = [cell.strip() for record in self._at(range(min(self.count, 1))) for cell in self._raw(record)]
        cells = zip(self.table.columns, first, strict=False)
        return {name for name, cell in cells if cell[:1] == '"' and not self._odd.search(cell[1:-1])}

    def _spelt(self, name: str, cells: Iterable[Any]) -> list[str]:
        """Values as this file writes them in a column."""
        texts = [as_text(cell) for cell in cells]
        texts = [t if t.isascii() else t.encode(self._encoding, "replace").decode(self._encoding) for t in texts]
        always = name in self._quoted
        return ['"' + text.replace('"', '""') + '"' if always or self._odd.search(text) else text for text in texts]

    def _joined(self, cells: Iterable[str]) -> str:
        """Cells as they are written as a row."""
        return (self._separator.join(cells) or '""') + self._line_end.decode()

    def _records_of(self, rows: list[dict[str, Any]]) -> list[Record]:
        flat = list(map(flatten, rows))
        columns = [self._spelt(name, [row.get(name) for row in flat]) for name in self.table.columns]
        return list(map(self._joined, zip(*columns, strict=True)))


def _held_in(encoding: str) -> str:
    """The encoding in which bytes of a file are held: those of UTF-16 have no lines."""
    return "utf-8" if encoding.startswith("utf-16") else encoding


def _content(path: Path, encoding: str) -> bytes:
    with open_data(path) as stream:
        content = stream.read()
    return content if _held_in(encoding) == encoding else content.decode(encoding, "replace").encode()


def as_text(value: Any) -> str:
    """A value as the text of a cell."""
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=str)
    return value if isinstance(value, str) else str(as_cell(value))
