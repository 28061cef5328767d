"""Submissions: is there one, what is it like, and does it fit the sample that came with the data?"""

from __future__ import annotations

import csv
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from mle_star.data.dialect import sniff_separator
from mle_star.data.files import read_pieces
from mle_star.execution.table_facts import MAX_CELLS, TableFacts, read_facts

DEFAULT_NAME = "submission.csv"
SUBMISSION = f"final/{DEFAULT_NAME}"
"""Where a script leaves its answers, below its working directory; a run has them at the same place."""
MAX_EXAMPLES = 5
MAX_PROBLEM = 2000
MAX_BYTES = 1 << 30
"""A larger file is nobody's submission: it would only keep the harness busy."""
SPARE_ROWS = 1000
"""Twice the sample's rows and these are read: enough to say what is wrong with them."""


@contextmanager
def open_submission(working_dir: str, filename: str = DEFAULT_NAME) -> Iterator[BinaryIO | None]:
    """The submission, opened for reading, or None: nobody submits links, fifos, devices or files beyond all size."""
    handle = _open_regular(Path(working_dir) / "final", filename)
    if handle is None:
        yield None
        return
    with os.fdopen(handle, "rb") as file:
        yield file


def _open_regular(final: Path, filename: str) -> int | None:
    if final.is_symlink() or Path(filename).name != filename:
        return None
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    path = final / filename
    if path.is_symlink():
        return None
    try:
        handle = os.open(path, flags)
    except OSError:
        return None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        os.close(handle)
        return None
    return handle


def verify_submission(working_dir: str, expected_filename: str = DEFAULT_NAME) -> bool:
    """Is there a submission of more than 0 bytes?"""
    with open_submission(working_dir, expected_filename) as file:
        return file is not None and os.fstat(file.fileno()).st_size > 0


def get_submission_info(working_dir: str, expected_filename: str = DEFAULT_NAME) -> dict[str, Any]:
    """The facts about a submission; `row_count` leaves out the header and is None when there is no file."""
    path = os.path.abspath(Path(working_dir) / "final" / expected_filename)  # noqa: PTH100
    with open_submission(working_dir, expected_filename) as file:
        if file is None:
            return {"exists": False, "path": path, "size_bytes": 0, "row_count": None}
        size = os.fstat(file.fileno()).st_size
        return {"exists": True, "path": path, "size_bytes": size, "row_count": count_rows(file)}


def count_rows(file: BinaryIO) -> int:
    """The lines of `file` without its header."""
    count, last = 0, b"\n"
    while chunk := file.read(1 << 20):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return max(count + (last != b"\n") - 1, 0)


_SUBMISSION = re.compile(r"submi|sample[^a-z]*subs?\.")  # a subsample is none


def find_sample_submission(working_dir: str) -> Path | None:
    """The sample submission among the data; of several none, since nobody can say which one counts."""
    folder = Path(working_dir) / "input"
    if not folder.is_dir():
        return None
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix.lower() == ".csv" and entry.is_file())
    samples = [name for name in names if "sample" in name.lower() and _SUBMISSION.search(name.lower())]
    return folder / samples[0] if len(samples) == 1 else None


def check_submission_format(
    working_dir: str, expected_filename: str = DEFAULT_NAME, *, sample: Path | None = None
) -> list[str]:
    """What is wrong with the submission, one sentence each, in words that a debugger can act on.

    `sample` is what it is compared with: by default the sample submission in the working directory's `input/`.
    """
    with open_submission(working_dir, expected_filename) as file:
        if file is None or os.fstat(file.fileno()).st_size == 0:
            return [_absence(working_dir, expected_filename)]
        return check_table(file, f"./final/{expected_filename}", sample or find_sample_submission(working_dir))


def _absence(working_dir: str, filename: str) -> str:
    path = Path(working_dir) / "final" / filename
    if path.is_file() and path.lstat().st_size > MAX_BYTES:
        return f"./final/{filename} is larger than {MAX_BYTES >> 30} GiB: write one line for each row of the test data"
    return f"./final/{filename} is missing or empty"


def check_table(file: BinaryIO, name: str, sample: Path | None) -> list[str]:
    """What is wrong with the table in `file`, by itself and beside the sample."""
    separator = "," if sample is None else _separator(sample)
    wanted = None if sample is None else _read_sample(sample, separator)
    try:
        if wanted is None:
            table = read_facts(file, keep_ids=False)
        else:
            most_cells, most_rows = max(MAX_CELLS, 2 * wanted.cells), 2 * wanted.rows + SPARE_ROWS
            table = read_facts(file, most_cells=most_cells, most_rows=most_rows, separator=separator)
    except (csv.Error, UnicodeDecodeError) as error:
        return [f"{name} is not a readable UTF-8 CSV file: {error}"]
    problems = _shape_problems(table)
    if sample is not None and wanted is not None and not problems:
        problems += _sample_problems(table, wanted, sample.name)
    return [problem[:MAX_PROBLEM] for problem in problems]


def _separator(sample: Path) -> str:
    """What parts the fields of the sample, and so those of a submission."""
    try:
        pieces = read_pieces(sample)
    except OSError:
        return ","
    return "," if pieces is None else sniff_separator(sample.name, pieces.texts[0])


def _read_sample(path: Path, separator: str) -> TableFacts | None:
    try:
        with path.open("rb") as file:
            return read_facts(file, most_cells=sys.maxsize, separator=separator)
    except (OSError, csv.Error, UnicodeDecodeError):
        return None  # it cannot be read, so there is nothing to compare with


def _shape_problems(table: TableFacts) -> list[str]:
    if not table.rows:
        return ["the submission has a header but no rows"]
    if table.ragged:
        shown = ", ".join(map(str, table.first_ragged))
        return [f"{table.ragged} rows do not have the header's {len(table.header)} columns (first at line {shown})"]
    return []


def _sample_problems(table: TableFacts, wanted: TableFacts, name: str) -> list[str]:
    problems = []
    header, asked = ([column.strip() for column in facts.header] for facts in (table, wanted))
    if header != asked:
        problems.append(_column_problem(header, asked, name))
    if table.cut:
        return [*problems, f"the submission has more than {table.rows - 1} rows, {name} has {wanted.rows}"]
    if table.rows != wanted.rows:
        problems.append(f"the submission has {table.rows} rows, {name} has {wanted.rows}: predict every one")
    if header[:1] == asked[:1]:
        if table.ids is not None and wanted.ids is not None:
            problems += _id_problems(asked[0], table.ids, wanted.ids, name)
        problems += _blank_problems(table, wanted)
    return problems


def _column_problem(header: list[str], wanted: list[str], name: str) -> str:
    if sorted(header) == sorted(wanted):
        return f"the columns are in the wrong order: {header}, but {name} has {wanted}"
    missing = [column for column in wanted if column not in header]
    extra = [column for column in header if column not in wanted]
    details = [f"missing {missing}"] if missing else []
    details += [f"not wanted {extra}"] if extra else []
    return f"the columns are {header}, but {name} has {wanted}" + (f" ({'; '.join(details)})" if details else "")


def _id_problems(column: str, ids: list[str], wanted: list[str], name: str) -> list[str]:
    if len(set(wanted)) != len(wanted):
        return []  # the first column is no id
    problems = []
    have, want = set(ids), set(wanted)
    missing = [value for value in wanted if value not in have]
    unknown = [value for value in ids if value not in want]
    if missing and len(missing) == len(wanted):
        examples = f"for example {ids[0]!r} instead of {wanted[0]!r}"
        return [f"no value of column {column!r} matches {name} ({examples}): keep the ids exactly as they are given"]
    if missing:
        problems.append(f"{len(missing)} ids of {name} are missing in column {column!r}: {_examples(missing)}")
    if unknown:
        problems.append(f"{len(unknown)} values in column {column!r} are not ids of {name}: {_examples(unknown)}")
    if len(have) != len(ids):
        problems.append(f"column {column!r} holds {len(ids) - len(have)} repeated ids; each must occur once")
    return problems


def _blank_problems(table: TableFacts, wanted: TableFacts) -> list[str]:
    problems = []
    for index, column in enumerate(table.header):
        if index < len(wanted.empty) and wanted.empty[index]:
            continue  # the sample itself has blanks there
        if table.undefined[index]:
            problems.append(
                f"column {column!r} is empty in {table.undefined[index]} rows: every row needs a prediction"
            )
    return problems


def _examples(values: list[str]) -> str:
    return ", ".join(repr(value) for value in values[:MAX_EXAMPLES]) + (" ..." if len(values) > MAX_EXAMPLES else "")
