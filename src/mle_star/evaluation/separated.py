"""Files of separated values as bytes: where their records lie, some of their columns, and records put together anew."""

from __future__ import annotations

import csv
import io
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

from mle_star.data.dialect import long_cells
from mle_star.data.files import COMPRESSED, open_data
from mle_star.data.tables import Form, Table
from mle_star.evaluation.cells import FEW, SAMPLED, Coded, cut_column
from mle_star.evaluation.scan import scan

LONGEST_CELL = 1 << 30
POPULATED_BYTES = 4 << 30
"""Up to this size a file is mapped whole before it is looked at: page by page that takes several times as long."""
LARGE_BYTES = 1 << 18
"""From this size on columns are cut out of the bytes or read by pyarrow."""
MOST_STEPS = 3
"""A column is near an end of the rows behind so few separators."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWLINE, _RETURN = 10, 13

Record = dict[str, Any] | bytes
"""A row to be added: its values by column, or the record as it will stand in the file."""


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

    def record(self, place: int) -> bytes:
        """The bytes of one record."""
        return bytes(self.content[int(self.starts[place]) : int(self.starts[place + 1])])

    def records(self, places: Sequence[int]) -> list[Any]:
        """The bytes of some records, as they lie in the file."""
        import numpy as np

        chosen, whole = np.asarray(places, np.int64), memoryview(self.content)
        bounds = zip(self.starts[chosen].tolist(), self.starts[chosen + 1].tolist(), strict=True)
        return [whole[begin:end] for begin, end in bounds]

    # --- reading ---

    def columns(self, names: Sequence[str]) -> list[Sequence[str]]:
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

    def cells(self, names: Sequence[str], places: Sequence[int], *, bare: bool = True) -> list[list[str]]:
        """These cells of some rows, `bare` of the blanks around them."""
        records = map(bytes, self.records(places))
        text = "".join(_ended(record).decode(self._encoding, "replace") for record in records)
        return self._parsed(text, names, len(places), bare=bare)

    def _parsed(self, text: str, names: Sequence[str], count: int, *, bare: bool = True) -> list[list[str]]:
        dialect, width = self.table.form.dialect, len(self.table.columns)
        indices = [self.table.columns.index(name) for name in names]
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=dialect.separator, skipinitialspace=dialect.blanks
        )  # fmt: skip
        with long_cells(LONGEST_CELL):
            found = [[row[index] for index in indices] if len(row) == width else None for row in reader if row]
        if len(found) != count or None in found:
            raise Unsupported(f"{self.table.name} has rows of another number of fields")
        return [[cell.strip() for cell in row] if bare else row for row in found if row is not None]

    def column_near_an_end(self, name: str) -> Sequence[str] | None:
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
        return cut_column(data, begins, ends, mark, steps, from_left=steps == index, encoding=self._encoding)

    def _columns_by_arrow(self, names: Sequence[str]) -> list[Sequence[str]] | None:
        """As `columns`, of a large file and much quicker; None where that is not to be had."""
        form = self.table.form
        if self._encoding.replace("_", "-").lower() not in ("utf-8", "ascii") or form.dialect.blanks:
            return None
        import pyarrow
        from pyarrow import csv as arrow

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
        records = self.records(places)
        return records if self._ends_alike else [bytes(record).rstrip(b"\r\n") + self.line_end for record in records]

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

    def plain_cells(self, places: Sequence[int], first: int, last: int) -> Iterator[list[str] | None]:
        """So many of the first and of the last cells of each record, with all that lies between them in one piece.

        None for a record that is not plainly written, without quotes and odd line ends.
        """
        separator, width, encoding = self.table.form.dialect.separator, len(self.table.columns), self._encoding
        records = self.records(places)
        whole = str(b"\n".join(records), encoding, "replace")
        texts = whole.split()
        are_bare = len(texts) == len(records) and '"' not in whole and "\0" not in whole
        if not are_bare:
            texts = [str(record, encoding, "replace").removesuffix("\n").removesuffix("\r") for record in records]
        for text in texts:
            if text.count(separator) != width - 1 or not (are_bare or all(mark not in text for mark in '"\r\n\0')):
                yield None
                continue
            cells = text.split(separator, first)
            cells += cells.pop().rsplit(separator, last)
            yield cells


def read_separated(table: Table, path: Path) -> Separated:
    """Find the records of a file; `Unsupported` for one whose rows cannot be told apart."""
    if table.form.encoding.startswith("utf-16"):
        raise Unsupported(f"{table.name} is in UTF-16")
    content = _content(path)
    found = scan(content, table.form.dialect.separator)
    starts = _without_blank_lines(table, content, found.starts)
    is_plain = found.is_plain and found.separators == (len(starts) - 1) * (len(table.columns) - 1)
    if content[:3] == BYTE_ORDER_MARK:
        starts[0] = 3
    header = b""
    if table.form.has_header and len(starts) > 1:
        header = bytes(content[int(starts[0]) : int(starts[1])])
        starts = starts[1:]
    return Separated(table, content, starts, header, found.is_quoted, is_plain)


def no_records(table: Table, header: bytes = b"") -> Separated:
    """A file that has none yet."""
    import numpy as np

    return Separated(table, b"", np.zeros(1, np.int64), header)


def _content(path: Path) -> Any:
    if path.suffix.lower() in COMPRESSED:
        with open_data(path) as stream:
            return stream.read()
    size = path.stat().st_size
    if not size:
        return b""
    with path.open("rb") as file:
        at_once = getattr(mmap, "MAP_POPULATE", 0) if size <= POPULATED_BYTES else 0
        return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | at_once, prot=mmap.PROT_READ)


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


def _texts(column: Any) -> Sequence[str]:
    """A column of arrow as texts; the same text is held once where few are different."""
    import numpy as np
    from pyarrow import compute

    if len(compute.unique(column.slice(0, SAMPLED))) < FEW:
        coded = compute.dictionary_encode(column).unify_dictionaries()
        if coded.num_chunks:
            words = [word.strip() for word in coded.chunk(0).dictionary.to_pylist()]
            number = {word: place for place, word in enumerate(dict.fromkeys(words))}
            again = np.array([number[word] for word in words], np.int64)
            return Coded(list(number), again[np.concatenate([chunk.indices.to_numpy() for chunk in coded.chunks])])
    return [text.strip() for text in column.to_pylist()]


def plain_encoding(form: Form) -> str:
    """The encoding of everything behind a byte order mark."""
    return "utf-8" if form.encoding == "utf-8-sig" else form.encoding


def _ended(record: bytes) -> bytes:
    return record if record.endswith(b"\n") else record + b"\n"


def alike(example: Mapping[str, Any], others: Mapping[str, Sequence[str]], table: Table, count: int) -> list[Record]:
    """So many rows of `table` like an example, but for what they have in some columns; records where that is plain."""
    same = [example.get(column, "") for column in table.columns if column not in others]
    form, encoding, cells = table.form, plain_encoding(table.form), [same, *others.values()]
    if form.kind == "csv" and len(table.columns) > 1 and all(isinstance(cell, str) for cell in same):
        text = "\n".join("\n".join(column) for column in cells if column)
        is_plain = not any(mark in text for mark in (form.dialect.separator, '"', "\r"))
        if is_plain and text.count("\n") == sum(map(len, cells)) - 1:
            filled = [others.get(name) or repeat(example.get(name, ""), count) for name in table.columns]
            joined = map(form.dialect.separator.join, zip(*filled, strict=True))
            return [record.encode(encoding, "replace") for record in joined]
    whole = {name for name in others if isinstance(example.get(name), int)}
    return [
        {**example, **{name: int(column[place]) if name in whole else column[place] for name, column in others.items()}}
        for place in range(count)
    ]


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
