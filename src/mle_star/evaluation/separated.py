"""Files of separated values as bytes: where their records lie, some of their columns, and records put together anew."""

from __future__ import annotations

import csv
import io
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mle_star.data.dialect import long_cells
from mle_star.data.files import COMPRESSED, open_data
from mle_star.data.tables import Form, Table

SCANNED_BYTES = 1 << 20
"""Looked through at a time: what fits into the cache of a processor is scanned several times as fast."""
LONGEST_CELL = 1 << 30
LARGE_BYTES = 8 << 20
"""From this size on columns are read by pyarrow, where it is installed."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34


class Unsupported(ValueError):
    """A file whose rows cannot be moved; the message says why."""


@dataclass(frozen=True)
class Separated:
    """The bytes of a file; record i begins at `starts[i]` and ends before `starts[i + 1]`, line end included."""

    table: Table
    content: Any  # a memory map, or bytes
    starts: Any
    header: bytes
    is_quoted: bool = False

    @property
    def count(self) -> int:
        """How many records there are."""
        return max(len(self.starts) - 1, 0)

    @cached_property
    def bounds(self) -> list[int]:
        """The starts as plain numbers, which are quicker one by one."""
        bounds: list[int] = self.starts.tolist()
        return bounds

    def record(self, place: int) -> bytes:
        """The bytes of one record."""
        return bytes(self.content[self.bounds[place] : self.bounds[place + 1]])

    # --- reading ---

    def columns(self, names: Sequence[str]) -> list[list[str]]:
        """Some columns of all rows, as texts without blanks around them."""
        if len(self.content) >= LARGE_BYTES and (quick := self._columns_by_arrow(names)) is not None:
            return quick
        begin = int(self.starts[0])
        rows = self._parsed(bytes(self.content[begin:]).decode(self._encoding, "replace"), names, self.count)
        return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]

    def cells(self, names: Sequence[str], places: Sequence[int]) -> list[list[str]]:
        """These cells of some rows."""
        records = map(self.record, places)
        text = "".join(_ended(record).decode(self._encoding, "replace") for record in records)
        return self._parsed(text, names, len(places))

    def _parsed(self, text: str, names: Sequence[str], count: int) -> list[list[str]]:
        dialect, width = self.table.form.dialect, len(self.table.columns)
        indices = [self.table.columns.index(name) for name in names]
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=dialect.separator, skipinitialspace=dialect.blanks
        )  # fmt: skip
        with long_cells(LONGEST_CELL):
            found = [[row[index].strip() for index in indices] if len(row) == width else None for row in reader if row]
        if len(found) != count or None in found:
            raise Unsupported(f"{self.table.name} has rows of another number of fields")
        return [row for row in found if row is not None]

    def _columns_by_arrow(self, names: Sequence[str]) -> list[list[str]] | None:
        """As `columns`, of a large file and much quicker; None where that is not to be had."""
        form = self.table.form
        if self._encoding.replace("_", "-").lower() not in ("utf-8", "ascii") or form.dialect.blanks:
            return None
        try:
            import pyarrow
            from pyarrow import csv as arrow
        except ImportError:
            return None
        called = [str(number) for number in range(len(self.table.columns))]
        wanted = [called[self.table.columns.index(name)] for name in names]
        try:
            found = arrow.read_csv(
                pyarrow.BufferReader(pyarrow.py_buffer(memoryview(self.content)[int(self.starts[0]) :])),
                arrow.ReadOptions(column_names=called, block_size=16 << 20),
                arrow.ParseOptions(
                    delimiter=form.dialect.separator, newlines_in_values=self.is_quoted,
                    quote_char='"' if self.is_quoted else False,
                ),
                arrow.ConvertOptions(
                    include_columns=wanted, column_types=dict.fromkeys(wanted, pyarrow.string()),
                    strings_can_be_null=False,
                ),
            )  # fmt: skip
        except (pyarrow.ArrowException, UnicodeError):
            return None
        if found.num_rows != self.count:
            return None
        return [_texts(found[name]) for name in wanted]

    @property
    def _encoding(self) -> str:
        return plain_encoding(self.table.form)

    # --- writing ---

    def chosen(self, places: Any) -> list[Any]:
        """Many records in their order, at the speed of copying: neighbours are taken in one piece."""
        import numpy as np

        places = np.asarray(places, np.int64)
        if not len(places):
            return []
        breaks: Any = np.flatnonzero(np.diff(places) != 1) + 1
        firsts = places[np.concatenate([[0], breaks])]
        lasts = places[np.concatenate([breaks - 1, [len(places) - 1]])]
        whole = memoryview(self.content)
        begins, ends = self.starts[firsts].tolist(), self.starts[lasts + 1].tolist()
        pieces: list[Any] = [whole[begin:end] for begin, end in zip(begins, ends, strict=True)]
        return pieces if bytes(pieces[-1][-1:]) == b"\n" else [*pieces, b"\n"]

    def ended(self, places: Sequence[int]) -> list[Any]:
        """Records one by one, each with the line end that the file has."""
        end, bounds, whole = self.line_end, self.bounds, memoryview(self.content)
        if self._ends_alike:
            return [whole[bounds[place] : bounds[place + 1]] for place in places]
        return [self.record(place).rstrip(b"\r\n") + end for place in places]

    @property
    def line_end(self) -> bytes:
        """What ends the lines of the file."""
        return b"\r\n" if self.header.endswith(b"\r\n") else b"\n"

    @cached_property
    def _ends_alike(self) -> bool:
        """Does every record end with the line end, and with nothing else of that kind before it?"""
        import numpy as np

        data, ends, end = np.frombuffer(self.content, np.uint8), self.starts[1:], self.line_end
        if not len(ends) or int(np.diff(self.starts).min()) <= len(end):
            return False
        before = data[ends - len(end) - 1]
        alike = (data[ends - 1] == _NEWLINE).all() and not np.isin(before, (_NEWLINE, _RETURN)).any()
        return bool(alike and (len(end) == 1 or (data[ends - 2] == _RETURN).all()))

    def plain_cells(self, places: Sequence[int]) -> Iterator[list[str] | None]:
        """The cells of each record that is plainly written, without quotes and odd line ends; None for the others."""
        separator, width = self.table.form.dialect.separator, len(self.table.columns)
        for place in places:
            text = self.record(place).decode(self._encoding, "replace").removesuffix("\n").removesuffix("\r")
            if '"' in text or "\r" in text or "\n" in text or "\0" in text:
                yield None
                continue
            cells = text.split(separator)
            if len(cells) != width:
                yield None
            else:
                yield cells if text.split(None, 1) == [text] else [cell.strip() for cell in cells]


def read_separated(table: Table, path: Path) -> Separated:
    """Find the records of a file; `Unsupported` for one whose rows cannot be told apart."""
    if table.form.encoding.startswith("utf-16"):
        raise Unsupported(f"{table.name} is in UTF-16")
    content = _content(path)
    starts, is_quoted = _record_starts(content)
    starts = _without_blank_lines(table, content, starts)
    if content[:3] == BYTE_ORDER_MARK:
        starts[0] = 3
    header = b""
    if table.form.has_header and len(starts) > 1:
        header = bytes(content[int(starts[0]) : int(starts[1])])
        starts = starts[1:]
    return Separated(table, content, starts, header, is_quoted)


def no_records(table: Table, header: bytes = b"") -> Separated:
    """A file that has none yet."""
    import numpy as np

    return Separated(table, b"", np.zeros(1, np.int64), header)


def _content(path: Path) -> Any:
    if path.suffix.lower() in COMPRESSED:
        with open_data(path) as stream:
            return stream.read()
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _record_starts(content: Any) -> tuple[Any, bool]:
    """Where records begin, with the end of the file: behind line ends outside of quotes; and are there quotes?"""
    import numpy as np

    data = np.frombuffer(content, np.uint8)
    is_quoted = any((chunk == _QUOTE).any() for _, chunk in _chunks(data))
    ends = _places(data, _NEWLINE) + 1
    if is_quoted:  # a line end behind an odd number of quotes lies inside of a field
        ends = ends[np.searchsorted(_places(data, _QUOTE), ends) % 2 == 0]
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    return np.concatenate([np.zeros(1, np.int64), ends]), is_quoted


def _chunks(data: Any) -> Iterator[tuple[int, Any]]:
    return ((begin, data[begin : begin + SCANNED_BYTES]) for begin in range(0, len(data), SCANNED_BYTES))


def _places(data: Any, byte: int) -> Any:
    import numpy as np

    found: list[Any] = [np.flatnonzero(chunk == byte) + begin for begin, chunk in _chunks(data)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _without_blank_lines(table: Table, content: Any, starts: Any) -> Any:
    """Blank lines at the end are left out; others would shift the rows."""
    import numpy as np

    short = np.flatnonzero(np.diff(starts) <= 2)
    blank = {int(place) for place in short if not bytes(content[int(starts[place]) : int(starts[place + 1])]).strip()}
    while blank and len(starts) - 2 in blank:
        blank.discard(len(starts) - 2)
        starts = starts[:-1]
    if blank:
        raise Unsupported(f"{table.name} has blank lines among its rows")
    return starts


def _texts(column: Any) -> list[str]:
    """A column of arrow as texts; the same text is held once where few are different."""
    from pyarrow import compute

    few = len(compute.unique(column.slice(0, 10_000))) < 1_000
    if few and (coded := compute.dictionary_encode(column)).num_chunks:
        texts = list[str]()
        for chunk in coded.chunks:
            words = [word.strip() for word in chunk.dictionary.to_pylist()]
            texts += map(words.__getitem__, chunk.indices.to_numpy().tolist())
        return texts
    return [text.strip() for text in column.to_pylist()]


def plain_encoding(form: Form) -> str:
    """The encoding of everything behind a byte order mark."""
    return "utf-8" if form.encoding == "utf-8-sig" else form.encoding


def _ended(record: bytes) -> bytes:
    return record if record.endswith(b"\n") else record + b"\n"


def written(row: dict[str, Any], table: Table) -> bytes:
    """A row as a record of the file, without its line end."""
    line = io.StringIO()
    writer = csv.writer(line, delimiter=table.form.dialect.separator, lineterminator="\r\n")  # both are quoted in cells
    writer.writerow([row.get(column, "") for column in table.columns])
    return line.getvalue().removesuffix("\r\n").encode(plain_encoding(table.form), "replace")
