"""Files of separated values as bytes: where their records lie, some of their columns, and records put together anew."""

from __future__ import annotations

import csv
import io
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from mle_star.data.dialect import long_cells
from mle_star.data.files import COMPRESSED, open_data
from mle_star.data.tables import Form, Table
from mle_star.data.values import is_tight

SCANNED_BYTES = 1 << 20
"""Looked through at a time: what fits into the cache of a processor is scanned several times as fast."""
LONGEST_CELL = 1 << 30
LARGE_BYTES = 8 << 20
"""From this size on columns are read by pyarrow, where it is installed."""
MOST_STEPS, LOOK, LOOK_FAR = 3, 24, 64
"""A column is near an end of the rows behind so few separators, its cells within so many bytes."""
ROWS_AT_ONCE = 1 << 15
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
    is_plain: bool = False  # no quotes, no odd line ends, and as many separators as all rows together must have

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
        if len(self.content) >= LARGE_BYTES:
            near = [self.column_near_an_end(name) for name in names]
            far = [name for name, column in zip(names, near, strict=True) if column is None]
            found = self._columns_by_arrow(far) if far else []
            if found is not None:
                rest = iter(found)
                return [next(rest) if column is None else column for column in near]
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

    def column_near_an_end(self, name: str) -> list[str] | None:
        """One of the first or of the last columns, cut out of the rows of a plain file without a look at the others.

        None where a cell of it lies further inside of its row than is looked at.
        """
        import numpy as np

        index, width = self.table.columns.index(name), len(self.table.columns)
        steps = min(index, width - 1 - index)
        if not self.is_plain or steps > MOST_STEPS or width < 2 or not self.count:
            return None
        data, mark = np.frombuffer(self.content, np.uint8), ord(self.table.form.dialect.separator)
        begins, ends = self.starts[:-1], self.starts[1:] - len(self.line_end)
        if data[self.starts[-1] - 1] != _NEWLINE:
            ends = np.append(ends[:-1], self.starts[-1])
        pieces = []
        for first in range(0, self.count, ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            piece = _cut_out(data, begins[some], ends[some], mark, steps, from_left=steps == index)
            if piece is None:
                return None
            pieces.append(piece)
        text = b"".join(pieces).decode(self._encoding, "replace")
        cells = text.removesuffix("\n").split("\n")
        return cells if is_tight(text) else [cell.strip() for cell in cells]

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
    scan = _scan(content, table.form.dialect.separator)
    starts = _without_blank_lines(table, content, scan.starts)
    is_plain = scan.is_plain and scan.separators == (len(starts) - 1) * (len(table.columns) - 1)
    if content[:3] == BYTE_ORDER_MARK:
        starts[0] = 3
    header = b""
    if table.form.has_header and len(starts) > 1:
        header = bytes(content[int(starts[0]) : int(starts[1])])
        starts = starts[1:]
    return Separated(table, content, starts, header, scan.is_quoted, is_plain)


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


class _Scan(NamedTuple):
    """What one look at every byte tells: where records begin, with the end of the file, and how they are written."""

    starts: Any
    is_quoted: bool
    is_plain: bool  # no quotes, and returns nowhere or at the end of every line
    separators: int


def _scan(content: Any, separator: str) -> _Scan:
    import numpy as np

    data, mark = np.frombuffer(content, np.uint8), ord(separator)
    found: list[Any] = [np.zeros(0, np.int64)]
    is_quoted, returns, separators = False, 0, 0
    for begin, chunk in _chunks(data):
        found.append(np.flatnonzero(chunk == _NEWLINE) + begin + 1)
        is_quoted = is_quoted or bool((chunk == _QUOTE).any())
        if not is_quoted:
            returns += np.count_nonzero(chunk == _RETURN)
            separators += np.count_nonzero(chunk == mark)
    ends = np.concatenate(found)
    is_plain = not is_quoted and (not returns or (returns == len(ends) and bool((data[ends - 2] == _RETURN).all())))
    if is_quoted:  # a line end behind an odd number of quotes lies inside of a field
        ends = ends[np.searchsorted(_places(data, _QUOTE), ends) % 2 == 0]
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    return _Scan(np.concatenate([np.zeros(1, np.int64), ends]), is_quoted, is_plain, separators)


def _chunks(data: Any) -> Iterator[tuple[int, Any]]:
    return ((begin, data[begin : begin + SCANNED_BYTES]) for begin in range(0, len(data), SCANNED_BYTES))


def _places(data: Any, byte: int) -> Any:
    import numpy as np

    found: list[Any] = [np.flatnonzero(chunk == byte) + begin for begin, chunk in _chunks(data)]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _cut_out(data: Any, begins: Any, ends: Any, mark: int, steps: int, *, from_left: bool) -> bytes | None:
    """The cells that lie so many separators inside of their rows, each with a line end behind it.

    None where a cell is not seen whole: so far from the end of its row it is only looked for within some bytes.
    """
    import numpy as np

    width = LOOK_FAR if steps else LOOK
    seen = _windows(data, begins if from_left else ends - width, width)
    marks = seen == mark if from_left else (seen == mark)[:, ::-1]
    rows, stop = np.arange(len(seen)), np.full(len(seen), -1)
    for _ in range(steps + 1):
        before, stop = stop, marks.argmax(axis=1)
        if not marks[rows, stop].all():
            return None
        marks[rows, stop] = False
    if (stop >= ends - begins).any():
        return None
    places = np.arange(width)
    inside: Any = np.ones((len(seen), width + 1), bool)
    inside[:, :width] = (places > before[:, None]) & (places < stop[:, None])
    if not from_left:
        inside[:, :width] = inside[:, width - 1 :: -1].copy()
    with_ends: Any = np.full((len(seen), width + 1), _NEWLINE, np.uint8)
    with_ends[:, :width] = seen
    cut: bytes = with_ends[inside].tobytes()
    return cut


def _windows(data: Any, places: Any, width: int) -> Any:
    """So many bytes from each place on, with zeros beyond both ends of the file."""
    import numpy as np

    inside = (places >= 0) & (places + width <= len(data))
    if inside.all():
        return np.lib.stride_tricks.sliding_window_view(data, width)[places]
    seen: Any = np.zeros((len(places), width), np.uint8)
    if inside.any():
        seen[inside] = np.lib.stride_tricks.sliding_window_view(data, width)[places[inside]]
    for row in np.flatnonzero(~inside).tolist():
        place = int(places[row])
        low, high = max(place, 0), min(place + width, len(data))
        seen[row, low - place : high - place] = data[low:high]
    return seen


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
    separator, cells = table.form.dialect.separator, [row.get(column, "") for column in table.columns]
    if all(isinstance(cell, str) for cell in cells):
        text = separator.join(cells)
        if text and text.count(separator) == len(cells) - 1 and not any(mark in text for mark in '"\r\n'):
            return text.encode(plain_encoding(table.form), "replace")
    line = io.StringIO()
    csv.writer(line, delimiter=separator, lineterminator="\r\n").writerow(cells)  # so both are quoted inside of cells
    return line.getvalue().removesuffix("\r\n").encode(plain_encoding(table.form), "replace")
