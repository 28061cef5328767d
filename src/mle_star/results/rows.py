"""New rows for a model: read as texts, whatever holds them, and written as the file that its script reads."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from mle_star.data.dialect import comma_columns, with_point
from mle_star.data.tables import Form, Table, as_cell, json_rows, read_table, table_form, told_apart
from mle_star.data.values import is_gap, is_number
from mle_star.errors import ConfigError


def texts_of(frame: Any, like: Table) -> Any:
    """A data frame as the texts that a file would hold, a gap as an empty one; moments are written as in `like`."""
    import pandas

    if not hasattr(frame, "columns") or not hasattr(frame, "map"):
        raise ConfigError(f"a data frame or the path of a table is wanted, not {type(frame).__name__}")
    frame = frame.reset_index() if any(name is not None for name in frame.index.names) else frame.reset_index(drop=True)
    frame.columns = told_apart([str(name) for name in frame.columns])[0]
    for name in frame.columns:
        if pandas.api.types.is_datetime64_any_dtype(frame[name]):
            told = like.column(name).date_format if name in like.sample else ""
            has_time = any(":" in str(cell) for cell in like.sample.get(name, []))
            moments = frame[name] if frame[name].dt.tz is None else frame[name].dt.tz_localize(None)
            frame[name] = moments.dt.strftime(told or ("%Y-%m-%d %H:%M:%S" if has_time else "%Y-%m-%d"))
    lists = {name: list(map(_plain, frame[name])) for name in frame.columns if _holds_lists(frame[name])}
    written = io.StringIO(frame.to_csv(index=False))
    texts = pandas.read_csv(written, dtype=str, keep_default_na=False, skip_blank_lines=False)
    return texts.assign(**lists)


def _holds_lists(cells: Any) -> bool:
    return cells.dtype == object and any(isinstance(_plain(cell), (list, dict)) for cell in cells)


def _plain(cell: Any) -> Any:
    """What Parquet hands over as an array is a list."""
    return cell.tolist() if hasattr(cell, "tolist") else cell


def read_new(path: Path, like: Table) -> Any:
    """A table of new rows as texts, numbers with a decimal point."""
    import pandas

    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if table_form(path) is None:
        raise ConfigError(f"{path}: not a table; wanted are .csv, .tsv, .json, .parquet or .xlsx")
    table = read_table(path)
    if isinstance(table, str):
        raise ConfigError(table)
    kind, dialect = table.form.kind, table.form.dialect
    if kind == "csv":
        try:
            frame = pandas.read_csv(
                path, sep=dialect.separator, encoding=table.form.encoding, dtype=str, keep_default_na=False,
                skipinitialspace=dialect.blanks,
            )  # fmt: skip
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
        names = table.columns if table.form.has_header else tuple(map(str, frame.columns))
        if not table.form.has_header and not set(names) & set(like.columns):
            raise ConfigError(f"{path}: no header line; the columns must have the names of the training data")
        if not isinstance(frame.index, pandas.RangeIndex):
            raise ConfigError(f"{path}: the rows have more fields than the header line names")
        frame.columns = [name if name in like.columns else name.strip() for name in names]
        columns = [list(frame[name]) for name in frame.columns]
        for index in comma_columns(columns, dialect.separator):
            frame[frame.columns[index]] = list(map(with_point, columns[index]))
        return frame
    if kind == "parquet":
        return texts_of(pandas.read_parquet(path), like)
    if kind == "excel":
        sheets = pandas.read_excel(path, dtype=object, sheet_name=None).values()
        sheet = max(sheets, key=lambda one: len({*map(str, one.columns)} & {*like.columns}))
        return texts_of(sheet.infer_objects(), like)
    rows = json_rows(path)[1]
    return pandas.DataFrame({name: [as_cell(row.get(name)) for row in rows] for name in table.columns})


def write_new(frame: Any, path: Path, form: Form, like: Table | None = None, original: Path | None = None) -> None:
    """Rows of texts as a file that is written as `form` says, in the types of `original` where files have types.

    What lies there, perhaps as a second name of somebody's file, is replaced and never written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        _write(frame, path, form, like, original)
    except ValueError as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the new rows cannot be written in the form of the training data ({why})") from None


def _write(frame: Any, path: Path, form: Form, like: Table | None, original: Path | None) -> None:
    if form.kind == "csv" or original is None:
        numbers = [] if like is None else [c for c in like.columns if c in frame and like.column(c).numeric]
        if form.dialect.decimal == ",":
            frame = frame.assign(**{name: [cell.replace(".", ",") for cell in frame[name]] for name in numbers})
        frame.to_csv(
            path, sep=form.dialect.separator, encoding=form.encoding, index=False, header=form.has_header
        )  # fmt: skip
    elif form.kind == "parquet":
        _write_parquet(frame, path, original)
    elif form.kind == "excel":
        _write_excel(frame, path, original)
    else:
        known = json_rows(original)[1]
        cells = {name: _typed(list(frame[name]), [row.get(name) for row in known]) for name in frame.columns}
        rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
        path.write_text(_json_text(rows, cells, form), encoding="utf-8")


def _json_text(rows: list[dict[str, Any]], columns: dict[str, list[Any]], form: Form) -> str:
    if form.kind == "lines":
        return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    whole = columns if form.kind == "columns" else {form.key: rows} if form.key else rows
    return json.dumps(whole, ensure_ascii=False)


def _typed(cells: list[Any], examples: Iterable[Any]) -> list[Any]:
    """Texts as values of the types that the examples have: truths, numbers, moments, else as they are."""
    kinds = {type(value) for value in examples if value is not None and value == value}
    if kinds == {bool}:
        return [{"true": True, "false": False}.get(str(cell).lower()) for cell in cells]
    if kinds and kinds <= {int, float}:
        return [None if is_gap(cell) else int(cell) if cell.lstrip("+-").isdigit() else float(cell) for cell in cells]
    if kinds and all(issubclass(kind, datetime) for kind in kinds):
        return [None if is_gap(cell) else datetime.fromisoformat(cell) for cell in cells]
    return cells


def _write_excel(frame: Any, path: Path, original: Path) -> None:
    import pandas

    known = pandas.read_excel(original, dtype=object)
    cells = {name: _typed(list(frame[name]), known.get(name, ())) for name in frame.columns}
    pandas.DataFrame(cells, dtype=object).to_excel(path, index=False)


def _write_parquet(frame: Any, path: Path, original: Path) -> None:
    import pandas
    import pyarrow
    from pyarrow import parquet, types

    fields = [field for field in parquet.read_schema(original).remove_metadata() if field.name in frame]
    for field in fields:
        cells, kind = frame[field.name], field.type
        if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            frame = frame.assign(**{field.name: pandas.to_numeric(cells, errors="coerce")})
        elif types.is_timestamp(kind) or types.is_date(kind):
            frame = frame.assign(**{field.name: pandas.to_datetime(cells, errors="coerce")})
        elif types.is_boolean(kind):
            known = {"true": True, "1": True, "false": False, "0": False}
            frame = frame.assign(**{field.name: [known.get(str(cell).lower()) for cell in cells]})
        elif types.is_string(kind) or types.is_large_string(kind):
            frame = frame.assign(**{field.name: [cell if cell != "" else None for cell in cells]})
    parquet.write_table(
        pyarrow.Table.from_pandas(frame, pyarrow.schema(fields), preserve_index=False, safe=False), path
    )


def read_answers(path: Path, separator: str, key: str | None, labels: dict[str, list[Any]]) -> Any:
    """The answers of a script: numbers as numbers; keys, and classes by their `labels`, as they are written."""
    import pandas

    answers = pandas.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
    for name in answers.columns:
        cells, classes = answers[name], {str(label) for label in labels.get(name, [])} - {""}
        spelt = set(cells) <= classes and not all(map(is_number, classes))
        codes = any(label.startswith("0") and label[1:2].isdigit() for label in classes)
        if name != key and not spelt and not codes and all(is_gap(cell) or is_number(cell) for cell in cells):
            answers[name] = pandas.to_numeric(cells.where(~cells.map(is_gap), None))
    return answers
