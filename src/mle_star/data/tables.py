"""Tables in files: separated values, JSON, Parquet and Excel, looked at by a sample that spans the whole file."""

import csv
import io
import json
import operator
import re
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import dropwhile, islice, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mle_star.data.columns import Column, Values, describe, is_missing, is_number, odd_missing, without_missing
from mle_star.data.place import COMPRESSED, WHOLE_BYTES, count_lines, open_data, read_pieces

TEST_NAME = "test.csv"
MAX_ROWS = 20_000
MAX_CELLS = 400_000
"""A sample is no larger: more would cost seconds and tell nothing new."""
FEWEST_ROWS = 2_000
"""Of a larger file at least so many rows are looked at, however wide they are."""
MAX_KEPT = 12
"""So many tables are kept in mind: those of the data and of a view of them."""
TICK_NS = 100_000_000
"""Longer than the clocks of file systems stand still."""
JSON_BYTES = 400_000_000
"""Of a larger file of JSON lines the beginning is looked at."""
PARQUET_BYTES = 256 << 20
"""What is unfolded of a Parquet file at the most."""
FORMS: dict[str, tuple[str, ...]] = {
    "csv": (".csv", ".tsv", ".tab", ".txt"),
    "json": (".json", ".jsonl", ".ndjson"),
    "parquet": (".parquet", ".pq"),
    "excel": (".xlsx", ".xlsm"),
}
TABLE_SUFFIXES = tuple(suffix for suffixes in FORMS.values() for suffix in suffixes)
SNIFFED_CHARACTERS = 20_000
DELIMITERS = [",", "\t", ";", "|"]
_COMMA_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?(e[+-]?\d+)?", re.IGNORECASE)
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
"""What may as well be a whole number with commas between its thousands."""
_MISTAKES = (AssertionError, AttributeError, IndexError, NameError, TypeError)
"""Of our own code, not of a file, unless a library raises them."""
FormKind = Literal["csv", "lines", "records", "columns", "parquet", "excel"]


class Unsupported(ValueError):
    """A file whose rows cannot be moved; the message says why."""


class Form(NamedTuple):
    """How a file is written: all that another program must be told to read it alike.

    JSON comes as `lines` (an object each), `records` (a list of objects, at `key` where it lies inside another object)
    or `columns` (an object of columns).
    """

    kind: FormKind = "csv"
    encoding: str = "utf-8"
    separator: str = ","
    decimal: str = "."
    thousands: str = ""
    blanks: bool = False  # fields begin with blanks that mean nothing
    has_header: bool = True
    key: str = ""
    odd_missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A file with rows and columns. `sample` holds sampled cells by column: texts, an empty one for a gap, or lists.

    `rows` is how many the file has (near enough, where `whole` says that not all were read); `notes` is what a person
    should know about it.
    """

    name: str
    columns: tuple[str, ...]
    sample: dict[str, list[Any]] = field(repr=False)
    rows: int
    whole: bool = True
    form: Form = field(default_factory=Form)
    notes: tuple[str, ...] = ()
    _described: dict[tuple[str, Values], Column] = field(default_factory=dict, repr=False, compare=False)

    def column(self, name: str, there: Values = without_missing) -> Column:
        """What the sampled cells of a column show, as far as they are values, looked at once."""
        if (name, there) not in self._described:
            self._described[name, there] = describe(name, self.sample[name], there)
        return self._described[name, there]


def name_of_test(train: Table) -> str:
    """What the test file of a task without one is called: it is like a training table of JSON, or one with lists.

    Else it holds separated values, of which a list would be a text. An object in an object is a column there: no target
    is left in one.
    """
    suffixes, kind = "".join(Path(train.name).suffixes[-2:]), train.form.kind
    has_lists = kind == "parquet" and any(train.column(name).kind == "list" for name in train.columns)
    is_like_it = has_lists or (kind in ("records", "lines") and not train.form.key and not suffixes.endswith(".zip"))
    return f"test{suffixes}" if is_like_it and "." not in "".join(train.columns) else TEST_NAME


def table_form(path: Path) -> str | None:
    """What kind of table the suffix of a file says (`csv` for `x.tsv.gz`), or None for a file that is no table."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return next((form for form, known in FORMS.items() if suffixes and suffixes[-1] in known), None)


def read_table(path: Path, name: str = "") -> Table | str:
    """A look at a file, or one line that says why it is no table. `name` is how it is called, else its own name.

    A second look at a file that has not changed costs nothing: what it gives is shared and must stay as it is.
    """
    name = name or path.name
    with suppress(OSError):
        status = path.stat()
        if abs(time.time_ns() - status.st_ctime_ns) >= TICK_NS:  # sooner, the next change might leave the same stamp
            return _looked_at((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns), path, name)
    return _looked_at.__wrapped__((), path, name)


@lru_cache(maxsize=MAX_KEPT)
def _looked_at(stamp: tuple[int, ...], path: Path, name: str) -> Table | str:
    form = table_form(path)
    if form is None:
        return f"{name}: not a table"
    try:
        return {"csv": _read_csv, "json": _read_json, "parquet": _read_parquet, "excel": _read_excel}[form](path, name)
    except Exception as error:  # what readers raise of broken files and archives nobody has listed
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if isinstance(error, _MISTAKES) and frame.f_globals["__name__"].startswith("mle_star."):
            raise
        return f"{name}: cannot be read ({' '.join(str(error).split())[:200] or type(error).__name__})"


# --- separated values ------------------------------------------------------------------------------------------


def _read_csv(path: Path, name: str) -> Table | str:
    pieces = read_pieces(path)
    if pieces is None:
        return f"{name}: binary, not a text"
    texts, encoding, whole = pieces
    separator = sniff_separator(path.name, texts[0])
    rows, is_all = _sampled_rows(texts, separator, whole)
    if not rows:
        return f"{name}: empty"
    first, width = rows[0], len(rows[0])
    if ".txt" in name.lower() and (width == 1 or len(rows) == 1):
        return f"{name}: prose, not a table"
    body = [[cell.strip() for cell in row] for row in rows[1:] if len(row) == width]
    notes = []
    if not encoding.startswith("utf-8"):
        notes.append(f"{name} is not UTF-8: read it with encoding={encoding!r}")
    if ragged := len(rows) - 1 - len(body):
        notes.append(f"{name}: {ragged} of {len(rows) - 1} sampled rows have another number of fields")
    has_header = is_header(first, body)
    columns, renamed = unique_names(first) if has_header else ([f"column_{index + 1}" for index in range(width)], [])
    if renamed:
        notes.append(f"{name}: column names are repeated or empty; told apart as {', '.join(renamed[:5])}")
    if not has_header:
        body.insert(0, [cell.strip() for cell in first])
        notes.append(f"{name}: no header line; the columns are called column_1 to column_{width}")
    cells = [[row[place] for row in body] for place in range(width)]
    points = [list(pointed(column, separator)) for column in cells]
    commas = [column for column, plain in zip(cells, points, strict=True) if column != plain]
    decimal = "," if commas else "."
    thousands = "." if any("." in cell for column in commas for cell in column) else ""
    blanks = has_blanks(texts[0], separator)
    form = Form("csv", encoding, separator, decimal, thousands, blanks, has_header, odd_missing=odd_missing(points))
    count = len(body)
    if not is_all:
        with open_data(path) as stream:
            count = max(count_lines(stream) - has_header, count)
    sample = dict(zip(columns, points, strict=True))
    return Table(name, tuple(columns), sample, count, is_all and not ragged, form, tuple(notes))


def _sampled_rows(texts: list[str], separator: str, whole: bool) -> tuple[list[list[str]], bool]:
    """Rows from everywhere in a file, which may be sorted, the first one first; and whether these are all."""
    if whole:
        rows = list(rows_of(texts[0], separator))
        is_all = len(rows) <= MAX_ROWS
        rows = rows if is_all else [rows[0], *rows[1 :: len(rows) // MAX_ROWS + 1]]
    else:
        width, is_all = len(next(rows_of(texts[0], separator), [])), False
        most = min(MAX_ROWS, max(MAX_CELLS // max(width, 1), FEWEST_ROWS)) // len(texts) + 1
        found = (list(islice(rows_of(text, separator), most)) for text in texts)
        rows = [row for piece in found for row in piece[:-1]]  # the last row of a piece is usually cut
    return list(dropwhile(operator.not_, rows)), is_all


def unique_names(names: list[str]) -> tuple[list[str], list[str]]:
    """The names that pandas gives to columns (a second `x` is `x.1`), with those that it changed."""
    if all(names) and len(set(names)) == len(names):
        return names, []
    import pandas

    header = io.StringIO()
    csv.writer(header).writerow(names)
    given = list(pandas.read_csv(io.StringIO(header.getvalue()), nrows=0).columns)
    return given, [new for new, old in zip(given, names, strict=True) if new != old]


def sniff_separator(name: str, text: str) -> str:
    """What parts the fields of a text."""
    if re.search(r"\.(tsv|tab)\b", name.lower()):
        return "\t"
    head = text[:SNIFFED_CHARACTERS]
    if len(text) > SNIFFED_CHARACTERS and "\n" in head:
        head = head.rpartition("\n")[0]
    marks = [mark for mark in DELIMITERS if mark in head]
    if len(marks) == 1 and '"' not in head and len({line.count(marks[0]) for line in head.splitlines() if line}) == 1:
        return marks[0]
    import clevercsv

    with suppress(clevercsv.Error, ValueError, IndexError):
        found = clevercsv.Sniffer().sniff(head, delimiters=DELIMITERS)
        return str(found.delimiter) if found is not None and found.delimiter in DELIMITERS else ","
    return ","


def rows_of(text: str, separator: str) -> Iterator[list[str]]:
    """The rows of a text that hold anything; an empty one for a row that cannot be read."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    while True:
        try:
            yield from (row for row in reader if any(map(str.strip, row)))
            return
        except csv.Error:  # a field that never ends: an unbalanced quote, or megabytes in one cell
            yield []


def has_blanks(text: str, separator: str) -> bool:
    """Do names or cells begin with a blank, as in `a, b`?"""
    rows = csv.reader(io.StringIO(text[: 10 * SNIFFED_CHARACTERS], newline=""), delimiter=separator)
    with suppress(csv.Error):
        return any(cell.startswith(" ") for row in rows for cell in row)
    return False


def pointed(cells: Sequence[str], separator: str) -> Sequence[str]:
    """A column with decimal points, where its numbers are written with commas; else the column itself.

    `1,234` may be a thousand or a fraction: among commas as separators it counts as a thousand, in other files not.
    """
    values = without_missing(dict.fromkeys(cells))
    commas = [cell for cell in values if "," in cell]
    if not commas or not all(map(_COMMA_NUMBER.fullmatch, values)):
        return cells
    is_fraction = separator != "," or not all(map(_GROUPED.fullmatch, commas))
    return list(map(with_point, cells)) if is_fraction else cells


def with_point(cell: str) -> str:
    """A number with a decimal comma as every program reads it."""
    return cell if is_missing(cell) else cell.replace(".", "").replace(",", ".")


def is_header(first: list[str], body: list[list[str]]) -> bool:
    """Is the first row made of names? Numbers over number columns, or values that come again below, are none."""
    figures = [i for i, cell in enumerate(first) if is_number(cell) and any(map(str.isdigit, cell))]  # no `inf`, `nan`
    if not body:
        return not figures
    columns = [[row[i] for row in body[:1000]] for i in range(len(first))]
    numeric = [i for i, cells in enumerate(columns) if _share_of_numbers(filter(None, cells)) >= 0.9]
    named = (i for i in numeric if not is_number(first[i]) and not is_missing(first[i]))
    if any(_share_of_numbers(without_missing(columns[i])) == 1 for i in named):
        return True  # a word over nothing but numbers, beside columns that are named by years
    counting = [float(first[i]) for i in numeric if i in figures]
    repeated = sum(cell in cells for cell, cells in zip(first, columns, strict=True) if cell)
    if counting:  # pixels and the like are named 0, 1, 2, ..., wavelengths 400, 402, ... beside a word
        steps = [b - a for a, b in pairwise(counting)]
        go_up = len(steps) >= 4 and min(steps) > 0 and len(figures) < len(first) and not repeated
        return go_up or (len(steps) > 1 and set(steps) == {1})
    return bool(numeric) or 2 * repeated <= len(first)


def _share_of_numbers(cells: Iterable[str]) -> float:
    found = list(map(is_number, cells))
    return sum(found) / len(found) if found else 0.0


# --- records -----------------------------------------------------------------------------------------------------


def _read_json(path: Path, name: str) -> Table | str:
    form, records, whole = json_records(path)
    flat = list(map(flatten, records))
    keys = list(dict.fromkeys(column for row in flat for column in row))
    # JSON may hold half a surrogate pair, which no file of ours could.
    columns = unique_names([key.encode("utf-8", "replace").decode() for key in keys])[0]
    if not flat:
        return f"{name}: no JSON records"
    return _table_of(name, dict(zip(columns, keys, strict=True)), flat, form, whole)


def _table_of(name: str, keys: dict[str, Any], rows: list[dict[Any, Any]], form: Form, whole: bool) -> Table:
    """A look at some rows; `keys` are what the rows call each column."""
    stride = _stride(len(rows), len(keys))
    cells = {column: [as_cell(row.get(key)) for row in rows[::stride]] for column, key in keys.items()}
    return Table(name, tuple(keys), cells, len(rows), whole and stride == 1, form)


def _stride(rows: int, columns: int) -> int:
    """Every how many-th row is looked at."""
    return max(1, rows // MAX_ROWS, round(rows * columns / MAX_CELLS))


def json_records(path: Path) -> tuple[Form, list[dict[str, Any]], bool]:
    """How a file is written, its rows, and whether these are all.

    It is a list of objects, one object a line, an object of columns, or an object that holds a list of objects.
    """
    with open_data(path) as stream:
        data = stream.read(JSON_BYTES + 1)
    text, is_whole = data[:JSON_BYTES].decode("utf-8-sig", "replace").strip(), len(data) <= JSON_BYTES
    if "\0" in text[:WHOLE_BYTES]:
        raise ValueError("binary, not a text")
    try:
        kind, key, records = _records(json.loads(text))
    except ValueError:
        lines = text.split("\n") if is_whole else text.split("\n")[:-1]
        values = [json.loads(line) for line in lines if line.strip()]
        kind, key, records = "lines", "", [value for value in values if isinstance(value, dict)]
    return Form(kind, key=key), records, is_whole


def _records(value: Any) -> tuple[FormKind, str, list[dict[str, Any]]]:
    """How a value is written, where its records lie, and the records."""
    if not isinstance(value, dict):
        return "records", "", value if _is_records(value) else []
    inside = next((name for name, inner in value.items() if _is_records(inner)), None)
    if inside is not None:
        return "records", inside, value[inside]
    rows = _rows_of_columns(value)
    return ("columns", "", rows) if rows else ("lines", "", [value])


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _rows_of_columns(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an object whose values are columns, each a list or an object by row name."""
    columns = [list(inner.values()) if isinstance(inner, dict) else inner for inner in value.values()]
    if not all(isinstance(column, list) for column in columns) or len(set(map(len, columns))) != 1:
        return []
    return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]


def flatten(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as columns `outer.inner`, the way `pandas.json_normalize` names them."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def as_cell(value: Any) -> Any:
    """A value as the text that a CSV file would hold; lists stay lists, so that they can be told from texts."""
    if isinstance(value, (list, dict)):
        return value
    return "" if value is None or value != value else str(value).strip()


# --- Parquet and Excel ---------------------------------------------------------------------------------------------


def _read_parquet(path: Path, name: str) -> Table | str:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
        keys = [column for column in file.schema_arrow.names if column not in index]
        cells, rows = _parquet_cells(file, keys), file.metadata.num_rows
    columns = unique_names([str(key) for key in keys])[0]
    sample = dict(zip(columns, cells.values(), strict=True))
    return Table(name, tuple(columns), sample, rows, len(next(iter(sample.values()), [])) == rows, Form("parquet"))


def _parquet_cells(file: Any, keys: list[str]) -> dict[str, list[Any]]:
    """Every n-th row. A small file can hold one long text a million times: so only so much is unfolded at a time."""
    cells: dict[str, list[Any]] = {key: [] for key in keys}
    first = next(file.iter_batches(1, columns=keys), None)
    row_bytes = 1 if first is None else max(first.nbytes, 1)
    if row_bytes > PARQUET_BYTES // 16:
        raise ValueError(f"rows of {row_bytes >> 20} MB")
    stride = _stride(file.metadata.num_rows, len(keys))
    read = held = 0
    for batch in file.iter_batches(max(1, min(PARQUET_BYTES // 16 // row_bytes, 65_536)), columns=keys):
        for key in keys:
            cells[key] += map(as_cell, batch.column(key).to_pylist()[-read % stride :: stride])
        read += batch.num_rows
        held += batch.nbytes // stride
        if held > PARQUET_BYTES:
            raise ValueError("it is too large when unpacked")
    return cells


def _read_excel(path: Path, name: str) -> Table | str:
    """The first sheet, whose first row is the header."""
    frame = sheets(path, [0])[0]
    keys = {str(column): column for column in frame.columns}
    return _table_of(name, keys, frame.to_dict("records"), Form("excel"), True) if keys else f"{name}: empty"


def sheets(path: Path, only: list[int] | None = None) -> dict[Any, Any]:
    """The sheets of a workbook as data frames of the values that it holds: all by name, or some by their place."""
    import pandas

    return dict(pandas.read_excel(path, dtype=object, sheet_name=only))
