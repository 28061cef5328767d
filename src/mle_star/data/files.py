"""Data files as bytes and texts: compressed or not, in any usual encoding, and how separated values are written."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from mle_star.data.columns import is_gap, is_number, without_gaps

WHOLE_BYTES = 4_000_000
"""A file up to this size is read whole; of a larger one, this much."""
MAX_LINE = 1 << 24
"""A mask in run lengths is one long cell; beyond this it is nobody's."""
MAX_BLANK_LINES = 100_000
MAX_SECONDS = 60.0
"""Of computing, not of waiting: a busy machine must not make a table unreadable."""
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSED = (*_OPENERS, ".zip")
SNIFFED_CHARACTERS = 20_000
DELIMITERS = [",", "\t", ";", "|"]
_COMMA_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?(e[+-]?\d+)?", re.IGNORECASE)
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
"""What may as well be a whole number with commas between its thousands."""
_LIMIT_LOCK = threading.Lock()


class Pieces(NamedTuple):
    """What was read of a text file: all of it, or its beginning and three pieces from further down."""

    texts: list[str]
    encoding: str
    whole: bool


@contextmanager
def open_data(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file; of an archive, that of its only member."""
    suffix = path.suffix.lower()
    if suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.namelist() if not member.endswith("/")]
            if len(members) != 1:
                raise ValueError(f"{len(members)} files in the archive, one is wanted")
            with archive.open(members[0]) as stream:
                yield stream
    else:
        with _OPENERS.get(suffix, open)(path, "rb") as stream:
            yield stream


@contextmanager
def create_data(path: Path) -> Iterator[IO[bytes]]:
    """A new file, compressed as its name says: the same content gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.suffix.lower()
    if suffix == ".zip":
        member = zipfile.ZipInfo(path.stem)
        member.compress_type = zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path, "w") as archive, archive.open(member, "w", force_zip64=True) as stream:
            yield stream
    else:
        made: Any = gzip.GzipFile(path, "wb", 1, mtime=0) if suffix == ".gz" else None
        with made or _OPENERS.get(suffix, open)(path, "wb") as stream:
            yield stream


def read_pieces(path: Path) -> Pieces | None:
    """As much of a text file as tells what it holds, or None for binary data. Rows may be sorted by the target."""
    compressed = path.suffix.lower() in COMPRESSED
    size = 0 if compressed else path.stat().st_size
    with open_data(path) as stream:
        if size <= WHOLE_BYTES:
            data = stream.read(WHOLE_BYTES + 1)
            chunks, whole = [data[:WHOLE_BYTES]], len(data) <= WHOLE_BYTES
        else:
            part = WHOLE_BYTES // 4
            chunks, whole = [stream.read(part)], False
            for share in (0.33, 0.66, 1.0):
                stream.seek(int((size - part) * share))
                chunks.append(stream.read(part).partition(b"\n")[2])
    decoded = _decode(chunks)
    return None if decoded is None else Pieces(*decoded, whole)


def _decode(chunks: list[bytes]) -> tuple[list[str], str] | None:
    """The chunks as texts, with the encoding's name. A last character that is cut is dropped."""
    head = chunks[0]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return [codecs.getincrementaldecoder("utf-16")("replace").decode(head)], "utf-16"
    start = head[:4096]
    if b"\0" in start or sum(byte < 32 and byte not in b"\t\n\r\f" for byte in start) > len(start) // 50:
        return None
    marked = head.startswith(codecs.BOM_UTF8)
    for encoding in ("utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            # Holes of a sparse file read as NUL.
            plain = [codecs.getincrementaldecoder(encoding)().decode(chunk).replace("\0", "") for chunk in chunks]
            return [plain[0].removeprefix("\ufeff"), *plain[1:]], "utf-8-sig" if marked else encoding
    return None


def count_lines(stream: IO[bytes]) -> int:
    """The lines of a file, counted without reading them as text."""
    count, last = 0, b"\n"
    while chunk := stream.read(1 << 20):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last != b"\n")


# --- separated values ----------------------------------------------------------------------------------------------


@contextmanager
def long_cells(most: int) -> Iterator[None]:
    """Let `csv` read cells of more than 131,072 characters; its limit is that of the process, so it is put back."""
    with _LIMIT_LOCK:
        before = csv.field_size_limit(most)
        try:
            yield
        finally:
            csv.field_size_limit(before)


def submitted_rows(file: BinaryIO, separator: str, errors: str = "strict") -> Iterator[list[str]]:
    """The rows of a table that a script wrote, blank lines aside; `csv.Error` where it goes beyond all bounds."""
    if file.read(3) != codecs.BOM_UTF8:
        file.seek(0)
    with long_cells(MAX_LINE):
        lines = (line.decode("utf-8", errors) for line in _bounded_lines(file))
        yield from filter(None, csv.reader(lines, delimiter=separator))


def _bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; `csv.Error` when they are too long, too blank or take too much time."""
    blank, begun = 0, time.thread_time()
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b"")):
        if len(line) > MAX_LINE:
            raise csv.Error("it has lines beyond all length")
        blank += len(line) < 3 and not line.strip()
        if blank > MAX_BLANK_LINES:
            raise csv.Error("it consists of blank lines")
        if number % 4096 == 0 and time.thread_time() - begun > MAX_SECONDS:
            raise csv.Error(f"it takes more than {MAX_SECONDS:.0f} s to read")
        yield line


@dataclass(frozen=True)
class Dialect:
    """The marks of a file. `blanks`: fields begin with blanks that mean nothing."""

    separator: str = ","
    decimal: str = "."
    thousands: str = ""
    blanks: bool = False


def sniff_separator(name: str, text: str) -> str:
    """What parts the fields of a text."""
    if re.search(r"\.(tsv|tab)\b", name.lower()):
        return "\t"
    head = text[:SNIFFED_CHARACTERS]
    if len(text) > SNIFFED_CHARACTERS and "\n" in head:
        head = head[: head.rfind("\n") + 1]
    marks = [mark for mark in DELIMITERS if mark in head]
    if len(marks) == 1 and '"' not in head and len({line.count(marks[0]) for line in head.splitlines() if line}) == 1:
        return marks[0]
    import clevercsv

    try:
        found = clevercsv.Sniffer().sniff(head, delimiters=DELIMITERS)
    except (clevercsv.Error, ValueError, IndexError):
        return ","
    return str(found.delimiter) if found is not None and found.delimiter in DELIMITERS else ","


def rows_of(text: str, separator: str) -> Iterator[list[str]]:
    """The rows of a text that hold anything; an empty one for a row that cannot be read."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error:  # a field that never ends: an unbalanced quote, or megabytes in one cell
            yield []
            continue
        if row is None:
            return
        if any(map(str.strip, row)):
            yield row


def has_blanks(text: str, separator: str) -> bool:
    """Do names or cells begin with a blank, as in `a, b`?"""
    rows = csv.reader(io.StringIO(text[: 10 * SNIFFED_CHARACTERS], newline=""), delimiter=separator)
    try:
        return any(cell.startswith(" ") for row in rows for cell in row)
    except csv.Error:
        return False


def comma_columns(columns: list[list[str]], separator: str) -> list[int]:
    """The columns whose numbers are written with a decimal comma.

    `1,234` may be a thousand or a fraction: among commas as separators it counts as a thousand, in other files not.
    """
    found = []
    for index, cells in enumerate(columns):
        if "," not in "\n".join(cells):
            continue
        values = without_gaps(cells)
        commas = [cell for cell in values if "," in cell]
        if not commas or not all(map(_COMMA_NUMBER.fullmatch, values)):
            continue
        if separator != "," or not all(_GROUPED.fullmatch(cell) for cell in commas):
            found.append(index)
    return found


def with_point(cell: str) -> str:
    """A number with a decimal comma as every program reads it."""
    return cell if is_gap(cell) else cell.replace(".", "").replace(",", ".")


def is_header(first: list[str], body: list[list[str]]) -> bool:
    """Is the first row made of names? Numbers over number columns, or values that come again below, are none."""
    figures = [i for i, cell in enumerate(first) if is_number(cell) and any(map(str.isdigit, cell))]  # no `inf`, `nan`
    if not body:
        return not figures
    columns = [[row[i] for row in body[:1000]] for i in range(len(first))]
    numeric = [i for i, cells in enumerate(columns) if _share_of_numbers(filter(None, cells)) >= 0.9]
    named = (i for i in numeric if not is_number(first[i]) and not is_gap(first[i]))
    if any(_share_of_numbers(without_gaps(columns[i])) == 1 for i in named):
        return True  # a word over nothing but numbers, beside columns that are named by years
    counting = [float(first[i]) for i in numeric if i in figures]
    if counting:  # pixels and the like are named 0, 1, 2, ...
        return len(counting) > 2 and all(b - a == 1 for a, b in pairwise(counting))
    repeated = sum(cell in cells for cell, cells in zip(first, columns, strict=True) if cell)
    return bool(numeric) or 2 * repeated <= len(first)


def _share_of_numbers(cells: Iterable[str]) -> float:
    found = list(map(is_number, cells))
    return sum(found) / len(found) if found else 0.0
