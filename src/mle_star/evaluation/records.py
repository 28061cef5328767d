"""The rows of a table file as they stand in it, so that some can be taken out and others put in, byte for byte."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mle_star.data.dialect import long_cells
from mle_star.data.files import COMPRESSED, open_data
from mle_star.data.tables import Form, Table

SCANNED_BYTES = 64 << 20
LONGEST_CELL = 1 << 30
LARGE_BYTES = 8 << 20
"""From this size on columns are read by pyarrow, where it is installed."""
_NEWLINE, _QUOTE = 10, 34


class Unsupported(ValueError):
    """A file whose rows cannot be moved; the message says why."""


@dataclass(frozen=True)
class FileRows:
    """The rows of one file. `take` gives some of them back as the file that they would be."""

    table: Table
    path: Path
    count: int
    _content: Any  # bytes and the place of each record, a list of objects, or an arrow table

    def values(self, columns: Sequence[str], places: Sequence[int] | None = None) -> list[list[str]]:
        """The cells of these columns as texts, for all rows or for those at `places`; one list per row."""
        if self.table.form.kind == "csv":
            return _csv_values(self, columns, range(self.count) if places is None else places)
        return [[_text(row.get(column)) for column in columns] for row in self.objects(places)]

    def objects(self, places: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Whole rows by column, in the values that the file has."""
        if self.table.form.kind == "csv":
            columns = self.table.columns
            return [dict(zip(columns, row, strict=True)) for row in self.values(columns, places)]
        if self.table.form.kind == "parquet":
            content = self._content if places is None else self._content.take(list(places))
            rows: list[dict[str, Any]] = content.to_pylist()
            return rows
        known: list[dict[str, Any]] = self._content
        return known if places is None else [known[place] for place in places]


def read_rows(table: Table, folder: Path) -> FileRows:
    """All rows of a table's file."""
    path, kind = folder / table.name, table.form.kind
    if kind == "csv":
        return _csv_rows(table, path)
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


def write_rows(
    target: Path, kept: FileRows, places: Sequence[int] | None, added: list[dict[str, Any]], order: Any
) -> None:
    """A file like that of `kept`: its rows at `places` (None: all) and `added` ones, all of them in `order`.

    `added` rows have values by column; a column that they lack is empty. `order` lists positions in kept + added.
    """
    chosen = range(kept.count) if places is None else places
    target.parent.mkdir(parents=True, exist_ok=True)
    if kept.table.form.kind == "csv":
        _write(target, _csv_pieces(kept, chosen, added, order))
    elif kept.table.form.kind == "parquet":
        _write_parquet(target, kept, chosen, added, order)
    else:
        rows = [*kept.objects(list(chosen)), *added]
        ordered = rows if order is None else [rows[place] for place in order]
        _write(target, [_json_bytes(ordered, kept.table.form)])


def _write(target: Path, pieces: Sequence[Any]) -> None:
    """The content, compressed as the name says; without compression, piece by piece."""
    suffix = target.suffix.lower()
    if suffix not in COMPRESSED:
        with target.open("wb", buffering=1 << 20) as stream:
            stream.writelines(pieces)
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


def _text(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=str)
    return "" if value is None or value != value else str(value)


# --- separated values ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Csv:
    """The bytes of a file; record i begins at `starts[i]` and ends before `starts[i + 1]`, line end included."""

    content: Any
    starts: Any
    header: bytes

    def record(self, place: int) -> bytes:
        start, end = int(self.starts[place]), int(self.starts[place + 1])
        return bytes(self.content[start:end])


def _csv_rows(table: Table, path: Path) -> FileRows:
    import numpy as np

    if table.form.encoding.startswith("utf-16"):
        raise Unsupported(f"{table.name} is in UTF-16")
    if path.suffix.lower() in COMPRESSED:
        with open_data(path) as stream:
            content = np.frombuffer(stream.read(), np.uint8)
    else:
        content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    ends = _record_ends(content)
    starts = np.concatenate([[0], ends])
    lengths = np.diff(starts)
    short = np.flatnonzero(lengths <= 2)
    blank = {int(place) for place in short if not bytes(content[starts[place] : starts[place + 1]]).strip()}
    while blank and len(starts) - 2 in blank:
        blank.discard(len(starts) - 2)
        starts = starts[:-1]
    if blank:
        raise Unsupported(f"{table.name} has blank lines among its rows")
    header = b""
    if table.form.has_header and len(starts) > 1:
        header = bytes(content[: int(starts[1])]).removeprefix(b"\xef\xbb\xbf")
        starts = starts[1:]
    return FileRows(table, path, max(len(starts) - 1, 0), _Csv(content, starts, header))


def _record_ends(content: Any) -> Any:
    """Where records end: at line ends outside of quotes, and at the end of the file."""
    import numpy as np

    found, quotes = list[Any](), list[Any]()
    for begin in range(0, len(content), SCANNED_BYTES):
        chunk = content[begin : begin + SCANNED_BYTES]
        found.append(np.flatnonzero(chunk == _NEWLINE) + begin + 1)
        quotes.append(np.flatnonzero(chunk == _QUOTE) + begin)
    ends = np.concatenate(found) if found else np.zeros(0, np.int64)
    marks = np.concatenate(quotes) if quotes else np.zeros(0, np.int64)
    if len(marks):  # a line end behind an odd number of quotes lies inside of a field
        ends = ends[np.searchsorted(marks, ends) % 2 == 0]
    if len(content) and (not len(ends) or ends[-1] != len(content)):
        ends = np.append(ends, len(content))
    return ends


def _csv_values(rows: FileRows, columns: Sequence[str], places: Sequence[int]) -> list[list[str]]:
    form, content = rows.table.form, rows._content
    indices = [rows.table.columns.index(column) for column in columns]
    if isinstance(places, range) and len(places) == rows.count:
        if len(content.content) >= LARGE_BYTES and (quick := _arrow_values(rows, columns)) is not None:
            return quick
        text = bytes(content.content[int(content.starts[0]) :]).decode(_plain_encoding(form), "replace")
    else:
        records = (content.record(place) for place in places)
        text = "".join(_ended(record).decode(_plain_encoding(form), "replace") for record in records)
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=form.dialect.separator, skipinitialspace=form.dialect.blanks
    )
    width = len(rows.table.columns)
    with long_cells(LONGEST_CELL):
        found = [[row[index].strip() for index in indices] if len(row) == width else None for row in reader if row]
    if len(found) != len(places) or None in found:
        raise Unsupported(f"{rows.table.name} has rows of another number of fields")
    return [row for row in found if row is not None]


def _arrow_values(rows: FileRows, columns: Sequence[str]) -> list[list[str]] | None:
    """As `_csv_values`, of a large file and much quicker; None where that is not to be had."""
    form = rows.table.form
    if _plain_encoding(form).replace("_", "-").lower() not in ("utf-8", "ascii") or form.dialect.blanks:
        return None
    try:
        import pyarrow
        from pyarrow import csv as arrow
    except ImportError:
        return None
    content = rows._content
    names = [str(number) for number in range(len(rows.table.columns))]
    wanted = [names[rows.table.columns.index(column)] for column in columns]
    try:
        table = arrow.read_csv(
            pyarrow.BufferReader(pyarrow.py_buffer(memoryview(content.content)[int(content.starts[0]) :])),
            arrow.ReadOptions(column_names=names, block_size=16 << 20),
            arrow.ParseOptions(delimiter=form.dialect.separator, newlines_in_values=True),
            arrow.ConvertOptions(
                include_columns=wanted, column_types=dict.fromkeys(wanted, pyarrow.string()), strings_can_be_null=False
            ),
        )
    except (pyarrow.ArrowException, UnicodeError):
        return None
    if table.num_rows != rows.count:
        return None
    return [[cell.strip() for cell in row] for row in zip(*(table[name].to_pylist() for name in wanted), strict=True)]


def _plain_encoding(form: Form) -> str:
    return "utf-8" if form.encoding == "utf-8-sig" else form.encoding


def _ended(record: bytes) -> bytes:
    return record if record.endswith(b"\n") else record + b"\n"


def _csv_pieces(kept: FileRows, chosen: Sequence[int], added: list[dict[str, Any]], order: Any) -> list[Any]:
    """The bytes of a file, in pieces."""
    import numpy as np

    content, form = kept._content, kept.table.form
    if order is None and not added:
        return [bytes(content.header), *_chosen_pieces(content, np.asarray(chosen, np.int64))]
    end = b"\r\n" if content.header.endswith(b"\r\n") else b"\n"
    new = [_csv_record(row, kept.table, end) for row in added]
    records = [content.record(place).rstrip(b"\r\n") + end for place in chosen] + new
    ordered = records if order is None else [records[place] for place in order]
    return [_bom(form), content.header, *ordered]


def _bom(form: Form) -> bytes:
    return b"\xef\xbb\xbf" if form.encoding == "utf-8-sig" else b""


def _chosen_pieces(content: _Csv, chosen: Any) -> list[Any]:
    """Many records in their order, at the speed of copying: neighbours are taken in one piece."""
    import numpy as np

    if not len(chosen):
        return []
    breaks: Any = np.flatnonzero(np.diff(chosen) != 1) + 1
    firsts = chosen[np.concatenate([[0], breaks])]
    lasts = chosen[np.concatenate([breaks - 1, [len(chosen) - 1]])]
    whole = memoryview(content.content)
    begins, ends = content.starts[firsts].tolist(), content.starts[lasts + 1].tolist()
    pieces: list[Any] = [whole[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return pieces if bytes(pieces[-1][-1:]) == b"\n" else [*pieces, b"\n"]


def _csv_record(row: dict[str, Any], table: Table, end: bytes) -> bytes:
    line, dialect = io.StringIO(), table.form.dialect
    writer = csv.writer(line, delimiter=dialect.separator, lineterminator="\r\n")  # so both are quoted inside a field
    writer.writerow([row.get(column, "") for column in table.columns])
    return line.getvalue().removesuffix("\r\n").encode(_plain_encoding(table.form), "replace") + end


# --- JSON and Parquet ----------------------------------------------------------------------------------------------


def _json_objects(text: str, form: Form) -> list[dict[str, Any]]:
    if form.kind == "lines":
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    if form.key:
        raise Unsupported("its records lie inside of another object")
    objects: list[dict[str, Any]] = json.loads(text)
    return objects


def _json_bytes(rows: list[dict[str, Any]], form: Form) -> bytes:
    if form.kind == "lines":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    return json.dumps(rows, ensure_ascii=False, indent=1).encode()


def _write_parquet(
    target: Path, kept: FileRows, chosen: Sequence[int], added: list[dict[str, Any]], order: Any
) -> None:
    import pyarrow
    from pyarrow import parquet

    content = kept._content.take(list(chosen))
    if added:
        names = content.schema.names
        new = pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in added], content.schema)
        content = pyarrow.concat_tables([content, new])
    parquet.write_table(content if order is None else content.take(list(order)), target)
