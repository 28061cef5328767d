"""All rows of a table's file: columns as texts, rows moved into another file of the task, and files rewritten.

A row stays what its file holds: a line of separated values as it is written, with quotes, blanks and decimal commas,
or an object of values. So rows that are written back are the same data. pyarrow is loaded where it is used: a run that
hides no rows does without its 40 MB.
"""

import copy
import csv
import io
import json
import mmap
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from mle_star.data.columns import is_missing
from mle_star.data.place import COMPRESSED, DataFolder, create_data, long_cells, make_room, open_data
from mle_star.data.tables import Form, Table, Unsupported, as_cell, flatten, json_records, read_table, sheets
from mle_star.errors import ConfigError
from mle_star.models.texts import did_you_mean

LONGEST_CELL = 1 << 30
BLOCK_BYTES = 1 << 20
NO_CHANGES: Mapping[str, Sequence[Any]] = {}
KEEP_BYTES = "surrogateescape"
"""Bytes that are no text in a file's encoding are written back as they were."""

Record = Any
"""A row as its file holds it: values by column, or a line of separated values with its line end."""
Changes = Mapping[str, Sequence[Any]]


def read_rows(table: Table, folder: Path, names: Iterable[str] = ()) -> "TableRows":
    """All rows of a table's file; the columns `names` are read at once."""
    path, kind = folder / table.name, table.form.kind
    if kind == "csv":
        content = _content(path, table.form.encoding)
        if content.find(b"\n") < 0:  # as lines once ended on a Mac
            content = content[:].replace(b"\r", b"\n")
        return Separated(table, content, names)
    if kind == "parquet":
        from pyarrow import parquet

        return Parquet(table, parquet.read_table(path))
    if kind == "excel":
        return TableRows(table, sheets(path, [0])[0].to_dict("records"))
    _, records, is_whole = json_records(path)
    if not is_whole:
        raise Unsupported(f"{table.name} cannot be read to its end")
    return TableRows(table, records)


def no_rows(name: str, columns: tuple[str, ...], form: Form) -> "TableRows":
    """A table that is still to be made: no rows, under its header; of separated values, whatever `form` it is like."""
    form = form._replace(has_header=True) if form.kind == "csv" else Form()
    header = io.StringIO()
    csv.writer(header, delimiter=form.separator, lineterminator="\n").writerow(columns)
    content = header.getvalue().encode(_held_in(form.encoding.removesuffix("-sig")), "replace")
    return Separated(Table(name, columns, {}, 0, True, form), content)


def drop_columns(folder: Path, names: Collection[str]) -> None:
    """Write every table of a folder that has such columns again, without them; `ConfigError` where none has one."""
    tables = [(folder / name, read_table(folder / name)) for name, _ in DataFolder(folder).files()]
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
            to = no_rows(table.name, left, table.form) if table.form.kind == "csv" else rows.empty(table.name, left)
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
        rows = [row if row.keys() >= {*names} else flatten(row) for row in self._at(places)]
        return [[row.get(name) for row in rows] for name in names]

    def frame(self) -> Any:
        """A data frame of the values that the file has."""
        import pandas

        return pandas.DataFrame(list(map(flatten, self._objects)), dtype=object)

    def typed(self, name: str, texts: Sequence[Any]) -> list[Any]:
        """Texts as truths, numbers or moments, where a column holds such, else as they are."""
        kinds = {type(value) for value in self._all(name) if value is not None and value == value}
        if kinds == {bool}:
            return [{"true": True, "1": True, "false": False, "0": False}.get(str(cell).lower()) for cell in texts]
        if kinds and kinds <= {int, float}:
            return [None if is_missing(c) else int(c) if c.lstrip("+-").isdigit() else float(c) for c in texts]
        if kinds and all(issubclass(kind, datetime) for kind in kinds):
            return [None if is_missing(cell) else datetime.fromisoformat(cell) for cell in texts]
        return list(texts)

    def edited(
        self, places: Sequence[int], to: "TableRows", gone: Collection[str] = (), changes: Changes = NO_CHANGES
    ) -> list[Record]:
        """The rows at these places as rows of `to`: without the columns in `gone`, with the cells in `changes`."""
        shown = to._names - {*gone}
        if inner := [n for n in (*gone, *changes) if n.partition(".")[0] in shown - {n} and type(to) is TableRows]:
            raise Unsupported(f"{inner[0]} lies inside of objects of {to.table.name}")
        objects = {name.rpartition(".")[0] for name in shown}
        rows = [_within(row, shown, objects) for row in self._at(places)]
        for name in shown.intersection(changes):
            for row, cell in zip(rows, changes[name], strict=True):
                row[name] = cell
        return to._records_of(rows)

    def holding(self, records: Sequence[Record], *, behind_own: bool = False) -> "TableRows":
        """The table with other rows, as `edited` gives them, or with these behind its own."""
        return TableRows(self.table, [*(self._objects if behind_own else ()), *records])

    def empty(self, name: str, columns: tuple[str, ...]) -> "TableRows":
        """A table like this one that is still to be made: some of the columns, and no rows."""
        return TableRows(replace(self.table, name=name, columns=columns, rows=0), [])

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
        """A column of all rows; `a.b` may lie in an object `a`."""
        return [row.get(name) for row in (self._flat if "." in name else self._objects)]

    @cached_property
    def _flat(self) -> list[dict[str, Any]]:
        return list(map(flatten, self._objects))

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

    def frame(self) -> Any:
        """A data frame of the same types."""
        return self._content.to_pandas()

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

    def empty(self, name: str, columns: tuple[str, ...]) -> TableRows:
        """A table of the same types."""
        made = replace(self.table, name=name, columns=columns, rows=0)
        return Parquet(made, self._content.slice(0, 0).select(columns))

    def without(self, names: Collection[str]) -> "Parquet":
        """The table without some columns."""
        return Parquet(self.table, self._content.drop_columns([*{*names} & {*self.table.columns}]))

    def write(self, target: Path, places: Sequence[int]) -> None:
        """A file of the same types."""
        from pyarrow import parquet

        make_room(target)
        parquet.write_table(_taken(self._content, places), target)

    def _all(self, name: str) -> list[Any]:
        there = name in self._content.column_names
        return list(self._content.column(name).to_pylist()) if there else [None] * self.count

    def _at(self, places: Sequence[int]) -> list[Any]:
        return list(_taken(self._content, places).to_pylist())

    @property
    def _names(self) -> set[str]:
        return set(self._content.column_names)  # an index is one of them


class Separated(TableRows):
    """The rows of a file of separated values: lines, as the bytes that the file holds."""

    def __init__(self, table: Table, content: Any, names: Iterable[str] = ()) -> None:
        super().__init__(table, [])
        self._encoding = table.form.encoding.removesuffix("-sig")
        self._held_in = _held_in(self._encoding)
        self._separator, self._blanks = table.form.separator, table.form.blanks
        self._marks = self._encoding, self._separator, self._blanks  # two files with the same ones write cells alike
        mark, blanks = re.escape(self._separator), " *" if self._blanks else ""
        self._cell = re.compile(rf'(?:\A|{mark})({blanks}"[^"]*(?:""[^"]*)*"[^{mark}]*|[^{mark}]*)')
        self._odd = re.compile(rf'[{mark}"\r\n]')  # what a cell must be quoted for
        quotes = _places(content, b'"')
        self._quote, starts = '"' if len(quotes) else False, self._line_starts(content, quotes)
        first = bytes(content[starts[0] : starts[1]]) if len(starts) > 1 else b""
        self._line_end, self._header = "\r\n" if first.endswith(b"\r\n") else "\n", b""
        if table.form.has_header and first:
            self._header, starts = first.rstrip(b"\r\n") + self._line_end.encode(), starts[1:]
        self.count = len(starts) - 1
        self._content, self._lines = memoryview(content)[starts[0] : starts[-1]], _lines(content, starts)
        names = list(names)
        self._known.update(zip(names, self._columns(names), strict=True))

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
        left = {*to.table.columns} - {*gone, *changes}
        stay = [name for name in self.table.columns if name in left]
        if not isinstance(to, Separated) or self._marks != to._marks:
            read = {**changes, **dict(zip(stay, self.values(stay, places), strict=True))}
            return to._records_of([dict(zip(read, row, strict=True)) for row in zip(*read.values(), strict=True)])
        cells = [*self.table.columns, *changes]  # and behind them an empty one; of two with one name the second counts
        known = {name: place for place, name in enumerate(cells) if name in left or name in changes}
        order = [known.get(name, -1) for name in to.table.columns]
        written = [to._spelt(name, texts) for name, texts in changes.items()]
        rows = ([*raw, *new, ""] for raw, *new in zip(map(self._raw, self._at(places)), *written, strict=True))
        return [to._joined([row[place] for place in order]) for row in rows]

    def holding(self, records: Sequence[Record], *, behind_own: bool = False) -> TableRows:
        """Rows that end all in one way."""
        import pyarrow

        own, end = self._lines.to_pylist() if behind_own else [], self._line_end.encode()
        ended = (line.rstrip(b"\r\n") + end for line in own)
        new = (record.encode(self._held_in, KEEP_BYTES) for record in records)
        made, lines = copy.copy(self), [*ended, *new]  # their text alone could not tell rows with odd quotes apart
        made._lines, made._known, made.count = pyarrow.array(lines, pyarrow.large_binary()), {}, len(lines)
        made._content = memoryview(b"".join(lines))
        made._quote = '"' if b'"' in bytes(made._content) else False
        return made

    def write(self, target: Path, places: Sequence[int]) -> None:
        """A file with the header of this one, and lines as they are."""
        lines = self._lines
        step = max(1, len(lines) * BLOCK_BYTES // max(lines.nbytes, 1))
        blocks = (_taken(lines, places[at : at + step]).buffers()[2] for at in range(0, len(places), step))
        pieces: Iterable[Any] = chain([self._header], blocks)
        if self._held_in != self._encoding:
            pieces = [b"".join(pieces).decode(self._held_in).encode(self._encoding)]
        with create_data(target) as stream:
            stream.writelines(chain([BOM_UTF8] if self.table.form.encoding == "utf-8-sig" else [], pieces))

    # --- reading ---

    def _line_starts(self, content: Any, quotes: Any) -> Any:
        """Where each row begins, the header among them, and where the last one ends."""
        size = len(content)
        ends = _places(content, b"\n") + 1
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]  # others lie inside of quotes
        is_marked = self.table.form.encoding == "utf-8-sig" and content[:3] == BOM_UTF8
        first, last = [len(BOM_UTF8) * is_marked], [] if size in ends[-1:] else [size]
        starts: Any = np.concatenate([first, ends, last]).astype(np.int64) if size else np.zeros(1, np.int64)
        short = np.flatnonzero(np.diff(starts) < 3).tolist()
        blank = [place for place in short if not content[starts[place] : starts[place + 1]].strip(b" \r\n")]
        while blank and blank[-1] == len(starts) - 2:  # at the end they mean nothing
            starts = starts[: blank.pop() + 1]
        if blank:
            raise Unsupported(f"{self.table.name} has blank lines among its rows")
        return starts

    def _at(self, places: Sequence[int]) -> list[Any]:
        return [line.decode(self._held_in, KEEP_BYTES) for line in _taken(self._lines, places).to_pylist()]

    def _columns(self, names: Sequence[str]) -> list[list[str]]:
        """Columns of all rows: by pyarrow where it knows how to read them, else row by row as everybody reads them."""
        found = None if self._blanks or not self.count else self._by_arrow(names)
        if found is not None:
            return found
        places, width = [self.table.columns.index(name) for name in names], len(self.table.columns)
        text = bytes(self._content).decode(self._held_in, "replace")
        try:
            with long_cells(LONGEST_CELL):
                rows = [row for row in self._reader(io.StringIO(text, newline="")) if row]
        except csv.Error as error:
            raise Unsupported(f"the rows of {self.table.name} cannot be told apart: {error}") from None
        if len(rows) != self.count or any(len(row) != width for row in rows):
            raise Unsupported(f"{self.table.name} has rows of another number of fields")
        return [[row[place].strip() for row in rows] for place in places]

    def _by_arrow(self, names: Sequence[str]) -> list[list[str]] | None:
        import pyarrow
        from pyarrow import csv as arrow

        called, quote = [str(number) for number in range(len(self.table.columns))], self._quote
        wanted = [called[self.table.columns.index(name)] for name in names]
        texts = dict.fromkeys(called, pyarrow.string())
        try:
            found = arrow.read_csv(
                pyarrow.BufferReader(self._content),
                arrow.ReadOptions(column_names=called, block_size=BLOCK_BYTES, encoding=self._held_in),
                arrow.ParseOptions(delimiter=self._separator, quote_char=quote, newlines_in_values=bool(quote)),
                arrow.ConvertOptions(include_columns=wanted or called[:1], column_types=texts),
            )
        except (pyarrow.ArrowException, UnicodeError):
            return None
        return [list(map(str.strip, found[n].to_pylist())) for n in wanted] if found.num_rows == self.count else None

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
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
        return (self._separator.join(cells) or '""') + self._line_end

    def _records_of(self, rows: list[dict[str, Any]]) -> list[Record]:
        flat = list(map(flatten, rows))
        columns = [self._spelt(name, [row.get(name) for row in flat]) for name in self.table.columns]
        return list(map(self._joined, zip(*columns, strict=True)))


def _within(row: dict[str, Any], shown: Collection[str], objects: Collection[str], prefix: str = "") -> dict[str, Any]:
    """The values of these names, also those inside of objects."""
    kept = {name: value for name, value in row.items() if f"{prefix}{name}" in shown}
    inner = [name for name, value in kept.items() if isinstance(value, dict) and f"{prefix}{name}" in objects]
    return kept | {name: _within(kept[name], shown, objects, f"{prefix}{name}.") for name in inner}


def _held_in(encoding: str) -> str:
    """The encoding in which bytes of a file are held: those of UTF-16 have no lines."""
    return "utf-8" if encoding.startswith("utf-16") else encoding


def _content(path: Path, encoding: str) -> Any:
    """The bytes of a file, which the system reads where they are needed."""
    if path.suffix.lower() not in COMPRESSED and _held_in(encoding) == encoding:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    with open_data(path) as stream:
        content = stream.read()
    return content if _held_in(encoding) == encoding else content.decode(encoding, "replace").encode()


def _places(content: Any, mark: bytes) -> Any:
    """Where a byte stands."""
    data, blocks = np.frombuffer(content, np.uint8), range(0, len(content), BLOCK_BYTES)
    found: list[Any] = [np.flatnonzero(data[at : at + BLOCK_BYTES] == mark[0]) + at for at in blocks]
    return np.concatenate([np.zeros(0, np.int64), *found])


def _lines(content: Any, starts: Any) -> Any:
    """The lines of a text, each ending where the next one starts, as an array of pyarrow that copies nothing."""
    import pyarrow

    buffers = [None, pyarrow.py_buffer(starts), pyarrow.py_buffer(content)]
    return pyarrow.Array.from_buffers(pyarrow.large_binary(), len(starts) - 1, buffers)


def _taken(rows: Any, places: Sequence[int]) -> Any:
    """The rows of an array or a table at these places; `take` itself loads pandas to look at a list."""
    import pyarrow

    numbers = np.asarray(places, np.int64)
    return rows.take(pyarrow.Array.from_buffers(pyarrow.int64(), len(numbers), [None, pyarrow.py_buffer(numbers)]))


def as_text(value: Any) -> str:
    """A value as the text of a cell."""
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=str)
    return value if isinstance(value, str) else str(as_cell(value))
