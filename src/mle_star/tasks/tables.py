"""A look at a data file: its columns and a sample of its rows, without ever reading a large file whole."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

from mle_star.tasks.parquet import sample_parquet

WHOLE_BYTES = 4_000_000
"""A text file up to this size is read whole; of a larger one, this much."""
MAX_ROWS = 20_000
TABLE_SUFFIXES = (".csv", ".tsv", ".tab", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".pq")
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_UNREADABLE = (
    OSError, EOFError, ValueError, csv.Error, zipfile.BadZipFile, lzma.LZMAError, RecursionError, MemoryError,
)  # fmt: skip
_DELIMITERS = ",\t;|"


class Table(NamedTuple):
    """A sample of a file. `rows` hold texts, an empty one for a gap; `whole`: the sample is all there is."""

    name: str
    columns: list[str]
    rows: list[list[str]]
    whole: bool = True
    has_header: bool = True
    notes: tuple[str, ...] = ()

    def values(self, column: str) -> list[str]:
        """The sampled values of a column."""
        index = self.columns.index(column)
        return [row[index] for row in self.rows]


def table_suffix(path: Path) -> str | None:
    """The suffix that says how to read a file (`.csv` for `x.csv.gz`), or None for a file that is no table."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (*_OPENERS, ".zip"):
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in TABLE_SUFFIXES else None


def read_table(path: Path) -> Table | str:
    """The sample of a file, or one line that says why there is none."""
    suffix = table_suffix(path)
    try:
        if suffix is None:
            return f"{path.name}: not a table"
        if suffix in (".parquet", ".pq"):
            return _read_parquet(path)
        chunks, whole = _read_chunks(path)
        text, encoding = _decode(chunks)
        if text is None:
            return f"{path.name}: binary, not a {suffix} file"
        notes = () if encoding == "utf-8" else (f"{path.name} is not UTF-8: read it with encoding={encoding!r}",)
        if suffix in (".json", ".jsonl", ".ndjson"):
            return _from_records(path.name, _json_records(text[0]), whole, notes)
        return _from_csv(path.name, text, whole, notes)
    except _UNREADABLE as error:
        return f"{path.name}: cannot be read ({' '.join(str(error).split())[:200] or type(error).__name__})"


def _read_chunks(path: Path) -> tuple[list[bytes], bool]:
    """The file, or its head and three pieces from further down: rows may be sorted by the target."""
    suffix = path.suffix.lower()
    if suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.namelist() if not member.endswith("/")]
            if len(members) != 1:
                raise ValueError(f"{len(members)} files in the archive, one is wanted")
            with archive.open(members[0]) as stream:
                return _head(stream)
    if suffix in _OPENERS:
        with _OPENERS[suffix](path, "rb") as stream:
            return _head(stream)
    size = path.stat().st_size
    with path.open("rb") as stream:
        if size <= WHOLE_BYTES:
            return _head(stream)
        chunks = [stream.read(WHOLE_BYTES // 4)]
        for share in (0.33, 0.66, 1.0):
            stream.seek(int((size - WHOLE_BYTES // 4) * share))
            chunks.append(stream.read(WHOLE_BYTES // 4).partition(b"\n")[2])
        return chunks, False


def _head(stream: IO[bytes]) -> tuple[list[bytes], bool]:
    data = stream.read(WHOLE_BYTES + 1)
    return [data[:WHOLE_BYTES]], len(data) <= WHOLE_BYTES


def _decode(chunks: list[bytes]) -> tuple[list[str] | None, str]:
    """The chunks as text with the encoding's name, or None for binary data. A cut last character is dropped."""
    head = chunks[0]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return [codecs.getincrementaldecoder("utf-16")("replace").decode(head)], "utf-16"
    start = head[:4096]
    if b"\0" in start or sum(byte < 32 and byte not in b"\t\n\r\f" for byte in start) > len(start) // 50:
        return None, ""
    for encoding in ("utf-8", "cp1252"):
        try:
            # Holes of a sparse file read as NUL.
            plain = [codecs.getincrementaldecoder(encoding)().decode(chunk).replace("\0", "") for chunk in chunks]
        except UnicodeDecodeError:
            continue
        return [plain[0].removeprefix("\ufeff"), *plain[1:]], encoding
    return [chunk.decode("latin-1").replace("\0", "") for chunk in chunks], "latin-1"


def _from_csv(name: str, pieces: list[str], whole: bool, notes: tuple[str, ...]) -> Table | str:
    delimiter = _guess_delimiter(name, pieces[0])
    rows: list[list[str]] = []
    for piece in pieces:
        found = list(_csv_rows(piece, delimiter, MAX_ROWS // len(pieces) + 1))
        # The last row of a piece of a larger file is usually cut.
        rows.extend(found if whole else found[:-1])
    while rows and not rows[0]:
        rows.pop(0)
    if not rows:
        return f"{name}: empty"
    whole = whole and len(rows) <= MAX_ROWS
    first, width = rows[0], len(rows[0])
    if ".txt" in name.lower() and (width == 1 or len(rows) == 1):
        return f"{name}: prose, not a table"
    body = [row for row in rows[1:] if len(row) == width]
    if len(body) < len(rows) - 1:
        whole = False
        notes += (f"{name}: {len(rows) - 1 - len(body)} of {len(rows) - 1} sampled rows have another number of fields",)
    if _is_header(first, body):
        columns, renamed = _unique(first)
        if renamed:
            notes += (f"{name}: column names are repeated or empty; told apart as {', '.join(renamed[:5])}",)
        return Table(name, columns, body, whole, True, notes)
    columns = [f"column_{index + 1}" for index in range(width)]
    notes += (f"{name}: no header line; the columns are called column_1 to column_{width}",)
    return Table(name, columns, [first, *body], whole, False, notes)


def _csv_rows(text: str, delimiter: str, limit: int) -> Iterator[list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    while limit > 0:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:  # a field that never ends: an unbalanced quote, or megabytes in one cell
            limit -= 1
            yield []
            continue
        if any(cell.strip() for cell in row):
            limit -= 1
            yield [cell.strip() for cell in row]


def _guess_delimiter(name: str, text: str) -> str:
    """The delimiter that cuts the first lines into the most regular rows of more than one field."""
    if ".tsv" in name.lower() or ".tab" in name.lower():
        return "\t"
    best, best_score = ",", 0.0
    for delimiter in _DELIMITERS:
        widths = Counter(max(1, len(row)) for row in _csv_rows(text[:100_000], delimiter, 50))
        width, count = widths.most_common(1)[0] if widths else (1, 0)
        score = count / max(1, sum(widths.values())) if width > 1 else 0.0
        if score > best_score + 0.01:
            best, best_score = delimiter, score
    return best


def _is_header(first: list[str], body: list[list[str]]) -> bool:
    """Is the first row made of names? Numbers over number columns, or values that come again below, are none."""
    sample = body[:1000]
    if not sample:
        return not any(is_number(cell) for cell in first)
    numeric = [i for i in range(len(first)) if _mostly([row[i] for row in sample], is_number)]
    numbers = [i for i in numeric if is_number(first[i])]
    if numbers:
        counting = [float(first[i]) for i in numbers]
        # Pixels and the like are named 0, 1, 2, ...
        return len(counting) > 2 and all(b - a == 1 for a, b in pairwise(counting))
    if numeric:
        return True
    return sum(first[i] in {row[i] for row in sample} for i in range(len(first)) if first[i]) * 2 <= len(first)


def _mostly(values: list[str], test: Callable[[str], bool]) -> bool:
    present = [value for value in values if value]
    return bool(present) and sum(map(test, present)) >= 0.9 * len(present)


def is_number(text: str) -> bool:
    """Does a cell hold a number?"""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _unique(names: list[str]) -> tuple[list[str], list[str]]:
    """Names told apart as pandas does it (`x`, `x.1`), with those that were changed."""
    seen: Counter[str] = Counter()
    result, renamed = [], []
    for index, name in enumerate(names):
        base = name or f"Unnamed: {index}"
        new = base if not seen[base] else f"{base}.{seen[base]}"
        seen[base] += 1
        result.append(new)
        if new != name:
            renamed.append(new)
    return result, renamed


def _json_records(text: str) -> list[dict[str, Any]]:
    """The records at the beginning of a JSON text: an array, one object a line, or columns."""
    decoder = json.JSONDecoder()
    position = len(text) - len(text.lstrip())
    if text[position : position + 1] == "[":
        position += 1
    records: list[dict[str, Any]] = []
    while len(records) < MAX_ROWS:
        while text[position : position + 1] in (",", " ", "\n", "\r", "\t"):
            position += 1
            if position >= len(text):
                return records
        try:
            value, position = decoder.raw_decode(text, position)
        except ValueError:
            break  # the end of the array, or of what was read
        if isinstance(value, dict):
            records.append(value)
    if len(records) == 1:
        return _records_inside(records[0])
    return records


def _records_inside(value: dict[str, Any]) -> list[dict[str, Any]]:
    """A lone object may hold the records: `{"data": [...]}`, or columns: `{"a": [...], "b": {...}}`."""
    for inner in value.values():
        if isinstance(inner, list) and inner and all(isinstance(entry, dict) for entry in inner):
            return inner[:MAX_ROWS]
    columns = {
        key: list(inner.values()) if isinstance(inner, dict) else inner
        for key, inner in value.items()
        if isinstance(inner, list | dict)
    }
    if columns and len(columns) == len(value) and len({len(inner) for inner in columns.values()}) == 1:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)][:MAX_ROWS]
    return [value]


def _from_records(name: str, records: list[dict[str, Any]], whole: bool, notes: tuple[str, ...]) -> Table | str:
    if not records:
        return f"{name}: no JSON records"
    keys = list(dict.fromkeys(key for record in records[:1000] for key in record))
    rows = [[_cell(record.get(key)) for key in keys] for record in records]
    # JSON may hold half a surrogate pair, which no file of ours could.
    columns, _ = _unique([key.encode("utf-8", "replace").decode() for key in keys])
    return Table(name, columns, rows, whole and len(records) < MAX_ROWS, True, notes)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, default=str)
    return str(value).strip()


def _read_parquet(path: Path) -> Table | str:
    found = sample_parquet(path, MAX_ROWS)
    if "problem" in found:
        return f"{path.name}: {found['problem']}"
    names, _ = _unique([name.encode("utf-8", "replace").decode() for name in found["names"]])
    return Table(path.name, names, found["rows"], found["whole"])
