"""Reads enough of a data folder's tables to judge them, with the standard library alone (Parquet: with pyarrow).

Big files are read sparsely: every n-th row, so that a sample spans the whole file and stays within seconds.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from mle_star.offline.rules.literals import quoted

MAX_CELLS = 400_000
"""Cells that a sample may hold: more would cost seconds and tell nothing new."""
MAX_FILE_BYTES = 400_000_000
"""Of a larger file only the beginning is read."""
SNIFFED_BYTES = 1_000_000
BLANKS_SOUGHT_IN_ROWS = 1_000
GAPS = {"", "na", "n/a", "nan", "null", "none", "?", "-", "<na>", "#n/a", "nil", "missing", "unknown"}
"""How files spell that there is no value, in small letters; what pandas does not know is told to it where it occurs."""
PANDAS_GAPS = {
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
}  # fmt: skip
PARQUET_SUFFIXES = (".parquet", ".pq")
PARQUET_BATCH, PARQUET_BYTES = 64 << 20, 1 << 30
"""What is unfolded at a time, and held at most: a small file can hold one long text a million times."""
TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".json", ".jsonl", ".ndjson", *PARQUET_SUFFIXES)


@dataclass(frozen=True)
class Table:
    """A file with rows and columns. `sample` holds the sampled cells by column, `name` is relative to the folder.

    `blanks`: cells begin with blanks that mean nothing. `spelt`: columns that scripts read letter by letter, without
    gaps. `joined`: tables whose columns are beside those of the file, each with the column that both share.
    """

    name: str
    columns: tuple[str, ...]
    rows: int
    sample: dict[str, list[Any]] = field(repr=False)
    form: str = "csv"
    separator: str = ","
    encoding: str = "utf-8"
    blanks: bool = False
    odd_gaps: tuple[str, ...] = ()
    key: str = ""
    spelt: tuple[str, ...] = ()
    joined: tuple[tuple[Table, str], ...] = ()

    @property
    def reader(self) -> str:
        """The expression with which a script reads this table."""
        joined = (f".merge({other.reader}, on={quoted(column)})" for other, column in self.joined)
        return "".join([self._own_reader, *joined])

    @property
    def gap_words(self) -> set[str]:
        """What scripts take for a gap in this table."""
        return PANDAS_GAPS.union(self.odd_gaps, *(other.gap_words for other, _ in self.joined))

    def as_spelt(self, name: str) -> Table:
        """This table with a column that scripts read letter by letter."""
        joined = tuple((other.as_spelt(name), column) for other, column in self.joined)
        elsewhere = any(name in other.columns and name != column for other, column in joined)
        own = name in self.columns and self.form == "csv" and not elsewhere
        return replace(self, spelt=(*self.spelt, name) if own else self.spelt, joined=joined)

    def join(self, other: Table, column: str) -> Table:
        """This table with the columns of another one that shares a column, row by row."""
        rows = dict(zip(map(str, other.sample[column]), zip(*other.sample.values(), strict=True), strict=True))
        blank = tuple("" for _ in other.columns)
        found = [rows.get(str(cell), blank) for cell in self.sample[column]]
        new = [c for c in other.columns if c not in self.columns]
        cells = {c: [row[other.columns.index(c)] for row in found] for c in new}
        return replace(
            self, columns=(*self.columns, *new), sample={**self.sample, **cells},
            joined=(*self.joined, (other, column)),
        )  # fmt: skip

    @property
    def _own_reader(self) -> str:
        path = quoted(f"./input/{self.name}")
        text = f'Path({path}).read_text(encoding="utf-8")'
        if self.form == "lines":
            return f"pd.json_normalize([json.loads(line) for line in {text}.splitlines() if line])"
        if self.form == "records":
            return f"pd.json_normalize(json.loads({text}){self.key})"
        if self.form == "columns":
            return f"pd.read_json({path})"
        if self.form == "parquet":
            return f"pd.read_parquet({path})"
        options = [path]
        if self.separator != ",":
            options.append(f"sep={self.separator!r}".replace("'", '"'))
        if self.blanks:
            options.append("skipinitialspace=True")
        if self.encoding != "utf-8":
            options.append(f'encoding="{self.encoding}"')
        if self.odd_gaps:
            options.append("na_values=[" + ", ".join(map(quoted, self.odd_gaps)) + "]")
        reader = f"pd.read_csv({', '.join(options)})"
        if not self.spelt:
            return reader
        options = [option for option in options if not option.startswith("na_values=")]
        options += [f"usecols=[{', '.join(map(quoted, self.spelt))}]", "dtype=str", "na_filter=False"]
        return f"{reader}.assign(**pd.read_csv({', '.join(options)}))"


def read_tables(folder: Path) -> list[Table]:
    """Every table below `folder`, in the order of their names; what cannot be read as a table is left out."""
    tables = []
    for path in sorted(folder.rglob("*")):
        if path.name.startswith(".") or not path.is_file() or not path.name.lower().endswith(TABLE_SUFFIXES):
            continue
        table = read_table(path, path.relative_to(folder).as_posix())
        if table is not None:
            tables.append(table)
    return tables


def read_table(path: Path, name: str) -> Table | None:
    """One file as a table, or None when it is none."""
    try:
        if path.name.lower().endswith((".json", ".jsonl", ".ndjson")):
            return _read_json(path, name)
        if path.name.lower().endswith(PARQUET_SUFFIXES):
            return _read_parquet(path, name)
        return _read_csv(path, name)
    except (OSError, ValueError, ImportError, NotImplementedError, csv.Error):
        return None


# --- separated values ------------------------------------------------------------------------------------


def _read_csv(path: Path, name: str) -> Table | None:
    with _open(path) as stream:
        head = stream.read(SNIFFED_BYTES)
    if not head.strip():
        return None
    encoding = _encoding(head)
    text = head.decode(encoding, "replace")
    form = _Form(encoding, separator := _separator(text), _has_blanks(text, separator))
    header = _as_pandas_names(next(filter(None, form.reader(io.StringIO(text)))))
    stride = _stride(path, head, len(header))
    if len(header) < 2 and not path.name.lower().endswith((".csv", ".csv.gz")):
        return None  # a text file, not a table
    cells: dict[str, list[Any]] = {column: [] for column in header}
    rows = 0
    for row in _rows(path, form):
        if rows % stride == 0 and len(row) == len(header):
            for column, cell in zip(header, row, strict=True):
                cells[column].append(cell.strip())
        rows += 1
    return Table(
        name, tuple(header), rows, cells, "csv", separator, encoding, form.blanks, odd_gaps=_odd_gaps(cells.values())
    )  # fmt: skip


@dataclass(frozen=True)
class _Form:
    """How a file of separated values is written."""

    encoding: str
    separator: str
    blanks: bool

    def reader(self, text: Iterable[str]) -> Iterator[list[str]]:
        """The rows of a text in this form."""
        return csv.reader(text, delimiter=self.separator, skipinitialspace=self.blanks)


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb")


def _rows(path: Path, form: _Form) -> Iterator[list[str]]:
    """The rows below the header; of a huge file, those near its beginning."""
    with _open(path) as stream:
        reader = form.reader(io.TextIOWrapper(stream, encoding=form.encoding, errors="replace", newline=""))
        next(filter(None, reader), None)
        read = 0
        while read <= MAX_FILE_BYTES:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:
                continue  # a cell beyond the module's limit; the limit is everybody's, so it stays
            if row:
                yield row
            read += sum(map(len, row))


def _encoding(head: bytes) -> str:
    if head.startswith(b"\xef\xbb\xbf"):
        return "utf-8-sig"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        head[: head.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _separator(head: str) -> str:
    """The separator that cuts the first lines into the most, and equally many, pieces."""
    best, best_width = ",", 1
    for candidate in (",", "\t", ";", "|"):
        rows = csv.reader(io.StringIO(head[:20_000]), delimiter=candidate, skipinitialspace=True)
        widths = [len(row) for row in rows][:20]
        complete = widths[:-1] or widths
        if complete and len(set(complete)) == 1 and complete[0] > best_width:
            best, best_width = candidate, complete[0]
    return best


def _has_blanks(head: str, separator: str) -> bool:
    """Do names or cells begin with a blank, as in `a, b`?"""
    rows = itertools.islice(csv.reader(io.StringIO(head), delimiter=separator), BLANKS_SOUGHT_IN_ROWS)
    return any(cell.startswith(" ") for row in rows for cell in row)


def _as_pandas_names(header: list[str]) -> list[str]:
    """The names that pandas gives to the columns: a number to those without a name, and to the second of two alike."""
    names = [column or f"Unnamed: {number}" for number, column in enumerate(header)]
    used: Counter[str] = Counter()
    for number in sorted(range(len(names)), key=lambda n: header[n] == ""):
        name = names[number]
        while used[name]:
            again = f"{names[number]}.{used[names[number]]}"
            used[names[number]] += 1
            name = names[number] if again in names else again
        names[number] = name
        used[name] += 1
    return names


def _stride(path: Path, head: bytes, columns: int) -> int:
    """Of how many rows one is kept."""
    bytes_a_row = max(len(head) / max(head.count(b"\n"), 1), 1)
    size = path.stat().st_size * (4 if path.suffix == ".gz" else 1)
    return max(1, round(size / bytes_a_row * columns / MAX_CELLS))


def _odd_gaps(columns: Any) -> tuple[str, ...]:
    """Spellings of a gap that pandas does not know by itself and that stand among numbers."""
    found = set()
    for cells in columns:
        odd = {cell for cell in set(cells) if cell.lower() in GAPS and cell not in PANDAS_GAPS}
        if odd:
            others = [cell for cell in cells if cell.lower() not in GAPS][:200]
            numbers = sum(is_number(cell) for cell in others)
            found |= {cell for cell in odd if cell in {"?", "-"} or (others and numbers > 0.9 * len(others))}
    return tuple(sorted(found))


def is_misread(cells: Iterable[str], gap_words: Collection[str]) -> bool:
    """Would pandas spell values of a column in another way than the file does, or take one for a gap?"""
    found = set(cells)
    values = found - {""}
    if values.intersection(gap_words):
        return True
    if {value.lower() for value in values} <= {"true", "false"}:
        return not values <= {"True", "False"}
    if not all(map(is_number, values)):
        return False
    whole = "" not in found and all(re.fullmatch(r"[+-]?\d+", value) for value in values)
    return any(str(int(value) if whole else float(value)) != value for value in values)


def is_number(cell: str) -> bool:
    """Is this a number in words that Python knows?"""
    try:
        float(cell)
    except ValueError:
        return False
    return True


# --- JSON ------------------------------------------------------------------------------------------------


def _read_json(path: Path, name: str) -> Table | None:
    """A list of objects, one object a line, an object of columns, or an object that holds a list of objects."""
    if path.stat().st_size > MAX_FILE_BYTES:
        return None
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    form, key = "records", ""
    try:
        value = json.loads(text)
    except ValueError:
        form, value = "lines", [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(value, dict):
        lists = [name for name, inner in value.items() if _is_rows(inner)]
        if lists:
            key, value = f"[{quoted(lists[0])}]", value[lists[0]]
        else:
            form, value = "columns", _rows_of_columns(value)
    if not _is_rows(value):
        return None
    flat = [_flatten(row) for row in value]
    columns = tuple(dict.fromkeys(column for row in flat for column in row))
    stride = max(1, round(len(flat) * len(columns) / MAX_CELLS))
    cells = {column: [_cell(row.get(column)) for row in flat[::stride]] for column in columns}
    return Table(name, columns, len(flat), cells, form, key=key)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _rows_of_columns(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an object whose values are columns, each a list or an object by row name."""
    columns = {name: list(c.values()) if isinstance(c, dict) else c for name, c in value.items()}
    if not all(isinstance(column, list) for column in columns.values()):
        return []
    if len({len(column) for column in columns.values()}) != 1:
        return []
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _flatten(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as columns `outer.inner`, the way `pandas.json_normalize` names them."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _cell(value: Any) -> Any:
    """Scalars as the text a CSV file would hold; lists stay lists, so that they can be told from texts."""
    if value is None:
        return ""
    if isinstance(value, (list, dict)):
        return value
    return str(value).strip()


# --- Parquet ---------------------------------------------------------------------------------------------


def _read_parquet(path: Path, name: str) -> Table:
    """Read with pyarrow, which is no dependency of ours: where it is missing, Parquet files are no tables."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            rows, index = file.metadata.num_rows, (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
            columns = tuple(column for column in file.schema_arrow.names if column not in index)
            stride = max(1, round(rows * len(columns) / MAX_CELLS))
            cells: dict[str, list[Any]] = {column: [] for column in columns}
            read = held = 0
            first = next(file.iter_batches(16, columns=list(columns)), None)
            a_row = max(1, first.nbytes // first.num_rows) if first is not None and first.num_rows else 1
            if a_row > PARQUET_BATCH // 4:
                raise ValueError(f"{name} unfolds to more than it is worth holding")
            at_once = max(1, min(65_536, PARQUET_BATCH // a_row))
            for batch in file.iter_batches(at_once, columns=list(columns)):
                held += batch.nbytes // stride
                if max(batch.nbytes, held) > PARQUET_BYTES:
                    raise ValueError(f"{name} unfolds to more than it is worth holding")
                for column in columns:
                    cells[column] += map(_cell, batch.column(column).to_pylist()[-read % stride :: stride])
                read += batch.num_rows
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from None
    return Table(name, columns, rows, cells, "parquet")


def is_parquet_unreadable(folder: Path) -> bool:
    """Does the folder hold Parquet files that cannot be read here, for want of pyarrow?"""
    found = any(path.name.lower().endswith(PARQUET_SUFFIXES) for path in folder.rglob("*"))
    return found and find_spec("pyarrow") is None
