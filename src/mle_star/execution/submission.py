"""Submissions: is there one, what is it like, and does it fit the sample that came with the data?"""

import csv
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mle_star.data.place import SPARE_ROWS, count_lines, read_pieces, submitted_rows
from mle_star.data.tables import sniff_separator
from mle_star.execution.workspace import open_plain
from mle_star.models.texts import some_of

DEFAULT_NAME = "submission.csv"
SUBMISSION = f"final/{DEFAULT_NAME}"
"""Where a script leaves its answers, below its working directory; a run has them at the same place."""
MAX_EXAMPLES = 5
MAX_PROBLEM = 2000
MAX_BYTES = 1 << 30
"""A larger file is nobody's submission: it would only keep the harness busy."""
MAX_CELLS = 20_000_000
"""Twice the sample's cells are always allowed."""
MAX_IDS = 5_000_000
"""Ids are kept in memory to be compared; of a larger table only the shape is."""
_SAMPLE = re.compile(r"submi|sample[^a-z]*subs?\.")  # a subsample is none


@contextmanager
def open_submission(working_dir: str, filename: str = DEFAULT_NAME) -> Iterator[BinaryIO | None]:
    """The submission, opened for reading, or None: nobody submits links, fifos, devices or files beyond all size."""
    final = Path(working_dir) / "final"
    with ExitStack() as stack:
        file: BinaryIO | None = None
        if not final.is_symlink() and Path(filename).name == filename:
            with suppress(OSError):
                file = stack.enter_context(open_plain(final / filename))
        yield file if file is not None and os.fstat(file.fileno()).st_size <= MAX_BYTES else None


def verify_submission(working_dir: str, expected_filename: str = DEFAULT_NAME) -> bool:
    """Is there a submission of more than 0 bytes?"""
    with open_submission(working_dir, expected_filename) as file:
        return file is not None and os.fstat(file.fileno()).st_size > 0


def get_submission_info(working_dir: str, expected_filename: str = DEFAULT_NAME) -> dict[str, Any]:
    """The facts about a submission; `row_count` leaves out the header and is None when there is no file."""
    path = os.path.abspath(Path(working_dir) / "final" / expected_filename)  # noqa: PTH100
    with open_submission(working_dir, expected_filename) as file:
        size, rows = (0, None) if file is None else (os.fstat(file.fileno()).st_size, count_rows(file))
        return {"exists": file is not None, "path": path, "size_bytes": size, "row_count": rows}


def count_rows(file: BinaryIO) -> int:
    """The lines of `file` without its header."""
    return max(count_lines(file) - 1, 0)


def find_sample_submission(working_dir: str) -> Path | None:
    """The sample submission among the data; of several none, since nobody can say which one counts."""
    files = [path for path in (Path(working_dir) / "input").glob("*") if path.suffix.lower() == ".csv"]
    samples = [path for path in files if "sample" in path.name.lower() and _SAMPLE.search(path.name.lower())]
    return samples[0] if len(samples) == 1 and samples[0].is_file() else None


def check_submission_format(
    working_dir: str, expected_filename: str = DEFAULT_NAME, *, sample: Path | None = None
) -> list[str]:
    """What is wrong with the submission, one sentence each, in words that a debugger can act on.

    `sample` is what it is compared with: by default the sample submission in the working directory's `input/`.
    """
    name, path = f"./final/{expected_filename}", Path(working_dir) / "final" / expected_filename
    with open_submission(working_dir, expected_filename) as file:
        if file is not None and os.fstat(file.fileno()).st_size > 0:
            return check_table(file, name, sample or find_sample_submission(working_dir))
    if path.is_file() and path.lstat().st_size > MAX_BYTES:
        return [f"{name} is larger than {MAX_BYTES >> 30} GiB: write one line for each row of the test data"]
    return [f"{name} is missing or empty"]


# --- what there is to know of a table -----------------------------------------------------------------------


@dataclass
class TableFacts:
    """The shape of a table; blank lines do not count."""

    header: list[str]
    rows: int = 0
    cells: int = 0
    ragged: int = 0  # how many rows have another length than the header ...
    first_ragged: int = 0  # ... and the first of their lines
    ids: list[str] = field(default_factory=list)  # the first column, unless it is too long to be kept
    blank: Counter[int] = field(default_factory=Counter)  # by column: how many cells are empty or `nan`


def read_facts(
    file: BinaryIO, separator: str = ",", *, most_cells: int = MAX_CELLS, most_rows: float = math.inf, most_ids: int = 0
) -> TableFacts:
    """Read a table once, one row beyond `most_rows`; `csv.Error` or `UnicodeDecodeError` when that cannot be done."""
    rows = submitted_rows(file, separator)
    header = [name.strip() for name in next(rows, [])]
    facts = TableFacts(header, cells=len(header))
    for row in rows:
        facts.cells += len(row)
        if facts.cells > most_cells:
            raise csv.Error("it holds far more values than a submission needs")
        facts.rows += 1
        if facts.rows > most_rows:
            break
        if len(row) != len(header):
            facts.ragged += 1
            facts.first_ragged = facts.first_ragged or facts.rows + 1
        if facts.rows <= most_ids:
            facts.ids.append(row[0])
        blank = (index for index, text in enumerate(row) if len(text) < 4 and text.strip().lower() in ("", "nan"))
        facts.blank.update(blank)
    if facts.rows > most_ids:
        facts.ids.clear()
    return facts


def check_table(file: BinaryIO, name: str, sample: Path | None) -> list[str]:
    """What is wrong with the table in `file`, by itself and beside the sample."""
    wanted, separator = (None, ",") if sample is None else _read_sample(sample)
    try:
        cells, rows = (0, math.inf) if wanted is None else (2 * wanted.cells, 2 * wanted.rows + SPARE_ROWS)
        most_ids = 0 if wanted is None else MAX_IDS
        table = read_facts(file, separator, most_cells=max(MAX_CELLS, cells), most_rows=rows, most_ids=most_ids)
    except (csv.Error, UnicodeDecodeError) as error:
        return [f"{name} is not a readable UTF-8 CSV file: {error}"]
    if not table.rows:
        return ["the submission has a header but no rows"]
    if table.ragged:
        where = f"{len(table.header)} columns (first at line {table.first_ragged})"
        return [f"{table.ragged} rows do not have the header's {where}"]
    if wanted is None or sample is None:
        return []
    return [problem[:MAX_PROBLEM] for problem in _differences(table, wanted, sample.name)]


def _read_sample(path: Path) -> tuple[TableFacts | None, str]:
    """The sample, and what parts its fields and so those of a submission; None where there is nothing to compare."""
    try:
        pieces = read_pieces(path)
        separator = "," if pieces is None else sniff_separator(path.name, pieces[0][0])
        with path.open("rb") as file:
            return read_facts(file, separator, most_cells=sys.maxsize, most_ids=MAX_IDS), separator
    except (OSError, csv.Error, UnicodeDecodeError):
        return None, ","


def _differences(table: TableFacts, wanted: TableFacts, name: str) -> Iterator[str]:
    header, expected = table.header, wanted.header
    if header != expected:
        absent, extra = ([one for one in a if one not in b] for a, b in ((expected, header), (header, expected)))
        found = [f"missing {absent}"] * bool(absent) + [f"not wanted {extra}"] * bool(extra)
        why = "; ".join(found) or ("wrong order" if len(header) == len(expected) else "repeated")
        yield f"the columns are {header}, but {name} has {expected} ({why})"
    if table.rows > 2 * wanted.rows + SPARE_ROWS:
        yield f"the submission has more than {table.rows - 1} rows, {name} has {wanted.rows}"
        return
    if table.rows != wanted.rows:
        yield f"the submission has {table.rows} rows, {name} has {wanted.rows}: predict every one"
    if header[:1] == expected[:1]:
        yield from _id_problems(expected[0], table.ids, wanted.ids, name)
        for index, column in enumerate(header):
            if table.blank[index] and not wanted.blank[index]:
                yield f"column {column!r} is empty in {table.blank[index]} rows: every row needs a prediction"


def _id_problems(column: str, ids: list[str], wanted: list[str], name: str) -> Iterator[str]:
    have, want = set(ids), set(wanted)
    missing, unknown = [one for one in wanted if one not in have], [one for one in ids if one not in want]
    if not ids or not wanted or len(want) != len(wanted):
        return  # too many to be kept, or the first column is no id
    if len(missing) == len(wanted):
        examples = f"for example {ids[0]!r} instead of {wanted[0]!r}"
        yield f"no value of column {column!r} matches {name} ({examples}): keep the ids exactly as they are given"
        return
    if missing:
        yield f"{len(missing)} ids of {name} are missing in column {column!r}: {_examples(missing)}"
    if unknown:
        yield f"{len(unknown)} values in column {column!r} are not ids of {name}: {_examples(unknown)}"
    if len(have) != len(ids):
        yield f"column {column!r} holds {len(ids) - len(have)} repeated ids; each must occur once"


def _examples(values: list[str]) -> str:
    return some_of(list(map(repr, values)), MAX_EXAMPLES)
