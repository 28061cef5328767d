"""How a file of separated values is written: what parts its fields, its decimals and its thousands, and its header."""

from __future__ import annotations

import csv
import io
import re
import threading
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import BinaryIO

from mle_star.data.files import MAX_LINE, bounded_lines
from mle_star.data.values import are_numbers, is_gap, is_number

SNIFFED_CHARACTERS = 20_000
DELIMITERS = [",", "\t", ";", "|"]
_COMMA_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?(e[+-]?\d+)?", re.IGNORECASE)
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
"""What may as well be a whole number with commas between its thousands."""


_LIMIT_LOCK = threading.Lock()


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
    if file.read(3) != BOM_UTF8:
        file.seek(0)
    with long_cells(MAX_LINE):
        lines = (line.decode("utf-8", errors) for line in bounded_lines(file.readline))
        yield from filter(None, csv.reader(lines, delimiter=separator))


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


def rows_of(text: str, separator: str, limit: int) -> Iterator[list[str]]:
    """The rows of a text that hold anything; an empty one for a row that cannot be read."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    while limit > 0:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:  # a field that never ends: an unbalanced quote, or megabytes in one cell
            limit -= 1
            yield []
            continue
        if (row and row[0] and not row[0].isspace()) or any(map(str.strip, row)):
            limit -= 1
            yield row


def has_blanks(text: str, separator: str) -> bool:
    """Do names or cells begin with a blank, as in `a, b`?"""
    head = text[: 10 * SNIFFED_CHARACTERS]
    if re.search(rf'(^|[{re.escape(separator)}"\r\n]) ', head) is None:
        return False
    rows = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
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
        told = [cell for cell in cells if not is_gap(cell)]
        commas = [cell for cell in told if "," in cell]
        if not commas or not all(_COMMA_NUMBER.fullmatch(cell) for cell in told):
            continue
        if separator != "," or not all(_GROUPED.fullmatch(cell) for cell in commas):
            found.append(index)
    return found


def with_point(cell: str) -> str:
    """A number with a decimal comma as every program reads it."""
    return cell if is_gap(cell) else cell.replace(".", "").replace(",", ".")


def is_header(first: list[str], body: list[list[str]]) -> bool:
    """Is the first row made of names? Numbers over number columns, or values that come again below, are none."""
    sample = body[:1000]
    if not sample:
        return not any(_is_figure(cell) for cell in first)
    columns = [[row[i] for row in sample] for i in range(len(first))]
    numeric = [i for i, cells in enumerate(columns) if _mostly_numbers(cells)]
    numbers = [i for i in numeric if _is_figure(first[i])]
    if any(not is_number(first[i]) and not is_gap(first[i]) and _all_numbers(columns[i]) for i in numeric):
        return True  # a word over nothing but numbers, beside columns that are named by years
    if numbers:
        counting = [float(first[i]) for i in numbers]
        # Pixels and the like are named 0, 1, 2, ...
        return len(counting) > 2 and all(b - a == 1 for a, b in pairwise(counting))
    if numeric:
        return True
    return sum(first[i] in set(columns[i]) for i in range(len(first)) if first[i]) * 2 <= len(first)


def _is_figure(cell: str) -> bool:
    """Is it a number that no column is called by? `inf` and `nan` may be names."""
    return is_number(cell) and any(map(str.isdigit, cell))


def _all_numbers(cells: list[str]) -> bool:
    told = [cell for cell in cells if not is_gap(cell)]
    return bool(told) and are_numbers(told)


def _mostly_numbers(cells: list[str]) -> bool:
    told = [cell for cell in cells if cell]
    return bool(told) and (are_numbers(told) or sum(map(is_number, told)) >= 0.9 * len(told))
