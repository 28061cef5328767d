"""Data files as bytes and texts: compressed or not, in any usual encoding, and never more of them than is needed."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import lzma
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr, NamedTuple

WHOLE_BYTES = 4_000_000
"""A file up to this size is read whole; of a larger one, this much."""
MAX_LINE = 1 << 24
"""A mask in run lengths is one long cell; beyond this it is nobody's."""
MAX_BLANK_LINES = 100_000
MAX_SECONDS = 60.0
"""Of computing, not of waiting: a busy machine must not make a table unreadable."""
_LINES_BETWEEN_LOOKS = 4096
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSED = (*_OPENERS, ".zip")


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


def count_lines(path: Path) -> int:
    """The lines of a file, counted without reading them as text."""
    count, last = 0, b"\n"
    with open_data(path) as stream:
        for chunk in iter(lambda: stream.read(1 << 20), b""):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return count + (last != b"\n")


def bounded_lines(readline: Callable[[int], AnyStr]) -> Iterator[AnyStr]:
    """The lines of a table that a script wrote; `csv.Error` when they are too long, too blank or take too much time."""
    blank, begun = 0, time.thread_time()
    while time.thread_time() - begun <= MAX_SECONDS:
        for _ in range(_LINES_BETWEEN_LOOKS):
            line = readline(MAX_LINE + 1)
            if not line:
                return
            if len(line) > MAX_LINE:
                raise csv.Error("it has lines beyond all length")
            if len(line) < 3:
                blank += not line.strip()
                if blank > MAX_BLANK_LINES:
                    raise csv.Error("it consists of blank lines")
            yield line
    raise csv.Error(f"it takes more than {MAX_SECONDS:.0f} s to read")


def _decode(chunks: list[bytes]) -> tuple[list[str], str] | None:
    """The chunks as texts, with the encoding's name. A last character that is cut is dropped."""
    head = chunks[0]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return [codecs.getincrementaldecoder("utf-16")("replace").decode(head)], "utf-16"
    start = head[:4096]
    if b"\0" in start or sum(byte < 32 and byte not in b"\t\n\r\f" for byte in start) > len(start) // 50:
        return None
    marked = head.startswith(codecs.BOM_UTF8)
    for encoding in ("utf-8", "cp1252"):
        try:
            # Holes of a sparse file read as NUL.
            plain = [codecs.getincrementaldecoder(encoding)().decode(chunk).replace("\0", "") for chunk in chunks]
        except UnicodeDecodeError:
            continue
        return [plain[0].removeprefix("\ufeff"), *plain[1:]], "utf-8-sig" if marked else encoding
    return [chunk.decode("latin-1").replace("\0", "") for chunk in chunks], "latin-1"
