"""Submissions: is there one, what is it like, and does it fit the sample that came with the data?"""

from __future__ import annotations

import csv
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

DEFAULT_NAME = "submission.csv"
MAX_EXAMPLES = 5


@contextmanager
def open_submission(working_dir: str, filename: str = DEFAULT_NAME) -> Iterator[BinaryIO | None]:
    """The submission, opened for reading, or None: links, fifos and devices in its place are nobody's submission."""
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
    if not stat.S_ISREG(os.fstat(handle).st_mode):
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
        return {"exists": True, "path": path, "size_bytes": size, "row_count": max(_count_lines(file) - 1, 0)}


def _count_lines(file: BinaryIO) -> int:
    count, last = 0, b"\n"
    while chunk := file.read(1 << 20):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last != b"\n")


def find_sample_submission(working_dir: str) -> Path | None:
    """The sample submission among the data, when there is one."""
    folder = Path(working_dir) / "input"
    if not folder.is_dir():
        return None
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix.lower() == ".csv" and entry.is_file())
    for name in names:
        words = name.lower().replace("-", "_").replace(" ", "_")
        if "sample" in words and "sub" in words:
            return folder / name
    return None


def check_submission_format(working_dir: str, expected_filename: str = DEFAULT_NAME) -> list[str]:
    """What is wrong with the submission, one sentence each, in words that a debugger can act on."""
    with open_submission(working_dir, expected_filename) as file:
        if file is None or os.fstat(file.fileno()).st_size == 0:
            return [f"./final/{expected_filename} is missing or empty"]
        try:
            table = list(csv.reader(_text_lines(file)))
        except (csv.Error, UnicodeDecodeError) as error:
            return [f"./final/{expected_filename} is not a readable UTF-8 CSV file: {error}"]
    header, rows = table[0], [row for row in table[1:] if row]
    problems = _shape_problems(header, rows)
    sample = find_sample_submission(working_dir)
    if sample is not None and not problems:
        problems += _sample_problems(header, rows, sample)
    return problems


def _text_lines(file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file):
        yield line.decode("utf-8-sig" if number == 0 else "utf-8")


def _shape_problems(header: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return ["the submission has a header but no rows"]
    ragged = [number for number, row in enumerate(rows, 2) if len(row) != len(header)]
    if ragged:
        shown = ", ".join(map(str, ragged[:MAX_EXAMPLES]))
        return [f"{len(ragged)} rows do not have the header's {len(header)} columns (first at line {shown})"]
    return []


def _sample_problems(header: list[str], rows: list[list[str]], sample: Path) -> list[str]:
    try:
        with sample.open("rb") as file:
            table = list(csv.reader(_text_lines(file)))
    except (OSError, csv.Error, UnicodeDecodeError):
        return []  # the sample cannot be read, so there is nothing to compare with
    if not table:
        return []
    wanted, sample_rows = table[0], [row for row in table[1:] if row]
    problems = []
    if header != wanted:
        problems.append(_column_problem(header, wanted, sample.name))
    if len(rows) != len(sample_rows):
        problems.append(f"the submission has {len(rows)} rows, {sample.name} has {len(sample_rows)}: predict every one")
    if header[:1] == wanted[:1]:
        problems += _id_problems(wanted[0], [row[0] for row in rows], [row[0] for row in sample_rows], sample.name)
        problems += _blank_problems(header, rows, sample_rows)
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


def _blank_problems(header: list[str], rows: list[list[str]], sample_rows: list[list[str]]) -> list[str]:
    problems = []
    for index, column in enumerate(header):
        if any(index >= len(row) or not row[index].strip() for row in sample_rows):
            continue  # the sample itself has blanks there
        blank = sum(row[index].strip().lower() in ("", "nan") for row in rows)
        if blank:
            problems.append(f"column {column!r} is empty in {blank} rows: every row needs a prediction")
    return problems


def _examples(values: list[str]) -> str:
    return ", ".join(repr(value) for value in values[:MAX_EXAMPLES]) + (" ..." if len(values) > MAX_EXAMPLES else "")
