"""What there is to know of a CSV table, read row by row: bounded in bytes, lines, cells and time, whatever it holds."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from typing import BinaryIO

from mle_star.data.dialect import submitted_rows

MAX_CELLS = 20_000_000
"""Twice the sample's cells are always allowed."""
MAX_IDS = 5_000_000
"""Ids are kept in memory to be compared; of a larger table only the shape is."""


@dataclass
class TableFacts:
    """The shape of a table; blank lines do not count."""

    header: list[str]
    rows: int = 0
    ragged: int = 0
    first_ragged: list[int] = field(default_factory=list)
    ids: list[str] | None = field(default_factory=list)
    """The first column; None when it is too long to be kept."""
    empty: list[int] = field(default_factory=list)
    """Of each column: how many cells are empty or missing."""
    undefined: list[int] = field(default_factory=list)
    """Of each column: how many cells are empty or `nan`."""
    cells: int = 0
    cut: bool = False
    """There are more rows than anybody wanted to know of."""


def read_facts(
    file: BinaryIO,
    *,
    most_cells: int = MAX_CELLS,
    most_rows: int | None = None,
    keep_ids: bool = True,
    separator: str = ",",
) -> TableFacts:
    """Read a table once; raises `csv.Error` or `UnicodeDecodeError` when it cannot be read within the limits."""
    rows = submitted_rows(file, separator)
    header = next(rows, [])
    facts = TableFacts(header, empty=[0] * len(header), undefined=[0] * len(header), cells=len(header))
    facts.ids = [] if keep_ids else None
    for row in rows:
        facts.cells += len(row)
        if facts.cells > most_cells:
            raise csv.Error("it holds far more values than a submission needs")
        facts.rows += 1
        if most_rows is not None and facts.rows > most_rows:
            facts.cut = True
            break
        _take_in(facts, row)
    return facts


def _take_in(facts: TableFacts, row: list[str]) -> None:
    width = len(facts.header)
    if len(row) != width:
        facts.ragged += 1
        if len(facts.first_ragged) < 5:
            facts.first_ragged.append(facts.rows + 1)
    if facts.ids is not None:
        facts.ids.append(row[0])
        if len(facts.ids) > MAX_IDS:
            facts.ids = None
    for index in range(width):
        text = row[index].strip() if index < len(row) else ""
        if not text:
            facts.empty[index] += 1
            facts.undefined[index] += 1
        elif len(text) == 3 and text.lower() == "nan":
            facts.undefined[index] += 1
