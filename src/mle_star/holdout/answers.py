"""Answers: read from a submission row by row, whatever its order and spelling, and written as the sample has them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mle_star.data.columns import is_number
from mle_star.data.place import SPARE_ROWS, submitted_rows
from mle_star.models.texts import quoted

if TYPE_CHECKING:
    from mle_star.holdout.views import Data, View

_WHOLE = re.compile(r"(?:\+|(-))?0*([1-9][0-9]*)")


ByRow = dict[int, tuple[str, ...]]
"""The texts in the answer columns, by training row."""


class Ungradable(ValueError):
    """Answers that cannot be scored; the message is what a debugger can act on."""


class Answers(NamedTuple):
    """What a script says of rows: for each, the texts in the answer columns. `real` are the rows of the real test."""

    hidden: ByRow
    real: tuple[tuple[str, ...], ...]


def read_answers(data: Data, path: Path, view: View) -> Answers:
    """The answers of a submission that was made on `view`."""
    header, rows = _table(data, path, len(view.order))
    if missing := [name for name in _headings(data) if name not in header]:
        raise Ungradable(f"the submission lacks the columns {missing}")
    places = [header.index(name) for name in _headings(data)]
    ordered = _in_order(data, header, rows, view)
    cells = [[row[place].strip() for row in ordered] for place in places]
    hidden: ByRow = {}
    real: list[tuple[str, ...]] = [()] * data.test_rows
    for source, answer in zip(view.order, zip(*cells, strict=True), strict=True):
        if source < 0:
            hidden[-1 - source] = answer
        else:
            real[source] = answer
    return Answers(hidden, tuple(real))


def _table(data: Data, path: Path, count: int) -> tuple[list[str], list[list[str]]]:
    """Header and rows, as far as they hold answers and keys: whatever else was written does not fill the memory."""
    sample = data.layout.sample
    usual = sample.form.separator if sample is not None and sample.form.kind == "csv" else ","
    with path.open("rb") as file:
        try:
            first = next(submitted_rows(file, usual, "replace"), [])
            separator = usual if set(_headings(data)) <= set(map(str.strip, first)) else ","
            file.seek(0)
            return _cells(data, submitted_rows(file, separator, "replace"), count)
        except csv.Error as error:
            raise Ungradable(f"the submission cannot be read: {error}") from None


def _cells(data: Data, reader: Iterator[list[str]], count: int) -> tuple[list[str], list[list[str]]]:
    header = [name.strip() for name in next(reader, [])]
    wanted, width, most = {*_headings(data), _key(data)}, len(header), 2 * count + SPARE_ROWS
    uneven = Ungradable("the submission is empty or its rows differ in length")
    if not header:
        raise uneven
    places = [place for place, name in enumerate(header) if name in wanted]
    rows: list[list[str]] = []
    for row in islice(reader, most + 1):
        if len(row) != width:
            raise uneven
        rows.append([row[place] for place in places])
    if len(rows) > most:
        raise Ungradable(f"the submission has more than {most} rows, the test file {count}")
    return [header[place] for place in places], rows


def _in_order(data: Data, header: list[str], rows: list[list[str]], view: View) -> list[list[str]]:
    """The rows in the order of the view's test file: by key, else as they come."""
    if len(rows) != len(view.order):
        raise Ungradable(f"the submission has {len(rows)} rows, the test file {len(view.order)}: answer every one")
    key = _key(data)
    if key is None or key not in header or (data.test_rows and not data.test_keys):
        return rows
    place = header.index(key)
    by_key, keys = {row[place]: row for row in rows}, keys_of(data, view)
    if not by_key.keys() >= set(keys):  # written in another way, such as 17.0
        by_key, keys = {label_of(row[place]): row for row in rows}, list(map(label_of, keys))
    if absent := [text for text in keys if text not in by_key]:
        raise Ungradable(f"{len(absent)} values of {key} of the test file are missing, such as {quoted(absent[0])}")
    return [by_key[text] for text in keys]


def keys_of(data: Data, view: View) -> list[str]:
    """What the rows of a view's test file are called."""
    real, keys, names = list(data.test_keys), data.keys, view.names
    return [real[p] if p >= 0 else names[-1 - p] if -1 - p in names else keys[-1 - p] for p in view.order]


def write_answers(data: Data, answers: Answers, target: Path) -> None:
    """The part of a submission that answers the real test, in the sample's form and order, else in the test's."""
    sample, key, rows, separator = data.sample, data.layout.key, list(answers.real), ","
    if sample is None:
        columns = {key: data.test_keys} if key is not None and data.test_keys else {}
    else:
        form = sample.table.form
        columns, separator = {name: sample.column(name) for name in sample.table.columns}, form.separator
        if key is not None and data.test_keys:
            answer_of = dict(zip(data.test_keys, rows, strict=True))
            rows = [answer_of[name] for name in columns[key]]
        if form.decimal == ",":
            rows = [tuple(cell.replace(".", ",") if is_number(cell) else cell for cell in row) for row in rows]
    cells = zip(*rows, strict=True) if rows else ([] for _ in data.layout.answers)
    columns = {**columns, **dict(zip(data.layout.answers, cells, strict=True))}
    target.parent.mkdir(exist_ok=True)
    with target.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter=separator, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _headings(data: Data) -> list[str]:
    """The answer columns as they are looked for in a header, where blanks around a name mean nothing."""
    return [name.strip() for name in data.layout.answers]


def _key(data: Data) -> str | None:
    """The column that names a row, likewise."""
    return None if data.layout.key is None else data.layout.key.strip()


def label_of(text: str) -> str:
    """A label as it is compared: `1`, `1.0` and ` 1 ` are one."""
    text = str(text).strip()
    if (whole := _WHOLE.fullmatch(text)) is not None:  # it may have more digits than a float
        return (whole[1] or "") + whole[2]
    if is_number(text):
        number = float(text)
        return str(int(number)) if number.is_integer() else repr(number)
    return {"true": "1", "false": "0"}.get(text.lower(), text)
