"""New rows for a model: read as texts, whatever holds them, and written as the file that its script reads."""

import io
import re
from pathlib import Path
from typing import Any, BinaryIO

from mle_star.data import tables
from mle_star.data.columns import is_missing, is_number
from mle_star.data.place import make_room, submitted_rows
from mle_star.data.rows import TableRows, read_rows
from mle_star.data.tables import Form, Table, Unsupported
from mle_star.errors import ConfigError

LINE_END = "\r\n"
"""pandas puts quotes around a cell with such a mark only where lines end so."""
_OFFSET = re.compile(r":\d\d[+-]\d\d:?\d\d$")


def has_index(frame: Any) -> bool:
    """Does the index of a data frame have a name, and stand in no column?"""
    return any(name is not None and name not in frame.columns for name in frame.index.names)


def check_frame(frame: Any) -> None:
    """`ConfigError` for what is no data frame, or one whose columns have no plain names."""
    if not hasattr(frame, "to_csv") or not hasattr(frame, "columns"):
        raise ConfigError(f"expected a data frame or the path of data, not {type(frame).__name__}")
    if getattr(frame.columns, "nlevels", 1) > 1:
        raise ConfigError("the columns of the data frame have several levels: give each column one name first")


def texts_of(frame: Any, like: Table) -> Any:
    """A data frame as the texts that a file would hold, a gap as an empty one; moments are written as in `like`."""
    import pandas

    check_frame(frame)
    frame = frame.reset_index(drop=not has_index(frame))
    frame.columns = tables.unique_names([str(name) for name in frame.columns])[0]
    for name, moments in frame.items():
        known = [str(cell) for cell in like.sample.get(name, [])]
        if moments.dtype.kind == "M" and not (moments.dt.tz and any(map(_OFFSET.search, known))):
            date_format = like.column(name).date_format if known else ""
            in_utc = moments.dt.tz is not None and date_format.endswith("Z")
            moments = (moments.dt.tz_convert("UTC") if in_utc else moments).dt.tz_localize(None)
            usual = "%Y-%m-%d %H:%M:%S" if any(":" in cell for cell in known) else "%Y-%m-%d"
            frame[name] = moments.dt.strftime(date_format or usual)
    cells = ((name, frame[name]) for name in frame.columns if frame[name].dtype == object)  # some hold lists as arrays
    objects = {name: [cell.tolist() if hasattr(cell, "tolist") else cell for cell in column] for name, column in cells}
    lists = {name: cells for name, cells in objects.items() if not {list, dict}.isdisjoint(map(type, cells))}
    written = io.BytesIO(frame.to_csv(index=False, lineterminator=LINE_END).encode("utf-8", "replace"))
    return pandas.read_csv(written, dtype=str, keep_default_na=False, skip_blank_lines=False).assign(**lists)


def read_new(path: Path, like: Table) -> Any:
    """A table of new rows as texts, numbers with a decimal point."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if tables.table_form(path) is None:
        raise ConfigError(f"{path}: not a table; tables are .csv, .tsv, .json, .parquet or .xlsx")
    table = tables.read_table(path)
    if isinstance(table, str):
        raise ConfigError(table)
    if table.form.kind == "excel":
        best = max(tables.sheets(path).values(), key=lambda one: len({*map(str, one.columns)} & {*like.columns}))
        return texts_of(best.infer_objects(), like)
    try:
        rows = read_rows(table, path.parent)
    except Unsupported as error:
        raise ConfigError(str(error)) from None
    return _cells_of(rows, table, path, like) if table.form.kind == "csv" else texts_of(rows.frame(), like)


def _cells_of(rows: TableRows, table: Table, path: Path, like: Table) -> Any:
    """The cells of separated values as they are written, which a data frame of numbers would not keep."""
    import pandas

    names, has_header = list(table.columns), table.form.has_header
    if not has_header:  # the names of the training data may look like numbers
        names = tables.unique_names([cell for (cell,) in rows.values(table.columns, [0])])[0]
        if not {*names} & {*like.columns}:
            raise ConfigError(f"{path}: no header line; the columns must have the names of the training data")
    cells = rows.values(table.columns, range(not has_header, rows.count))
    cells = [list(tables.pointed(column, table.form.separator)) for column in cells]
    return pandas.DataFrame(dict(zip((n if n in like.columns else n.strip() for n in names), cells, strict=True)))


def write_new(frame: Any, path: Path, form: Form, like: Table, folder: Path) -> None:
    """Rows of texts as a file that is written as `form` says, in the types that `like` has in its `folder`.

    What lies there, perhaps as a second name of someone's file, is replaced and never written to.
    """
    make_room(path)
    try:
        if form.kind != "csv":
            rows = read_rows(like, folder)
            made = rows if path.name == Path(like.name).name else rows.empty(path.name, tuple(frame.columns))
            cells = {name: rows.typed(name, list(frame[name])) for name in frame.columns}
            new = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
            made.holding(new).write(path, range(len(new)))
            return
        if form.decimal == ",":
            numbers = [name for name in like.columns if name in frame and like.column(name).numeric]
            frame = frame.assign(**{name: [cell.replace(".", ",") for cell in frame[name]] for name in numbers})
        how = {"sep": form.separator, "encoding": form.encoding, "header": form.has_header}
        frame.to_csv(path, index=False, lineterminator=LINE_END, **how)
    except ValueError as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the new rows cannot be written in the form of the training data ({why})") from None


def read_answers(file: BinaryIO, separator: str, key: str | None, labels: dict[str, list[Any]]) -> Any:
    """The answers of a script: numbers as numbers; keys, and classes by their `labels`, as they are written."""
    import pandas

    header, *rows = [*submitted_rows(file, separator)] or [[]]
    answers = pandas.DataFrame(rows, columns=tables.unique_names(header)[0])
    for name in answers.columns:
        cells, classes = answers[name], {str(label) for label in labels.get(name, [])} - {""}
        spelt = set(cells) <= classes and not all(map(is_number, classes))
        codes = any(label.startswith("0") and label[1:2].isdigit() for label in classes)
        if name != key and not spelt and not codes and all(is_missing(cell) or is_number(cell) for cell in cells):
            answers[name] = pandas.to_numeric(cells.where(~cells.map(is_missing), None))
    return answers
