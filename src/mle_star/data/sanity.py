"""What makes a task pointless: told before anything is run, in one line that says what to change."""

from __future__ import annotations

import re
from collections import Counter

from mle_star.data.columns import Column
from mle_star.data.metrics import Metric
from mle_star.data.survey import Survey
from mle_star.data.targets import Target
from mle_star.data.values import is_number
from mle_star.errors import ConfigError

_LABELS_IN_A_CELL = re.compile(r"[|;]")
_FOR_CLASSES = "accuracy, f1_macro, log_loss"
_FOR_NUMBERS = "rmse, mae, r2"


def refuse_pointless(found: Survey, goal: Target, metric: Metric | None) -> None:
    """`ConfigError` for a task that nobody could learn; what is only odd becomes a note of the survey."""
    train = goal.table
    if train is None:
        return
    if not any(train.sample[name] for name in goal.names):
        raise ConfigError(f"{train.name} has a header and no rows: there is nothing to learn from")
    for column in goal.columns:
        _refuse_target(train.name, column, whole=train.whole, found=found)
        _refuse_amounts(train.name, column, metric)
        if metric is not None:
            _refuse_metric(column, metric)
        _note_labels(found, column)
    _refuse_answers(found, goal)


def _refuse_target(table: str, column: Column, *, whole: bool, found: Survey) -> None:
    if column.kind == "list" or column.distinct > 1:
        return
    held = f"holds {column.shares[0][0]!r} in every row" if column.shares else "is empty in every row"
    if whole:
        raise ConfigError(f"the target {column.name} of {table} {held}: nothing can be learned; --target names another")
    found.notes.append(f"the target {column.name} {held} that was looked at")


def _refuse_amounts(table: str, column: Column, metric: Metric | None) -> None:
    """Amounts such as `$250,000` would each be a class of their own."""
    if column.kind != "messy number" or column.distinct <= 20 or (metric is not None and metric.scores == "classes"):
        return
    odd = [value for value, _ in column.shares if not is_number(value)]
    such = f", such as {odd[0]!r}" if odd else ""
    raise ConfigError(
        f"the target {column.name} of {table} holds cells that are no plain numbers{such}: write them as plain "
        "numbers, or leave them empty; where they are classes, --metric accuracy says so"
    )


def _refuse_metric(column: Column, metric: Metric) -> None:
    """A metric must be able to score what the target holds."""
    words = [value for value, _ in column.shares[:2]]
    if metric.scores == "numbers" and not column.numeric and column.kind not in ("messy number", "list"):
        shown = " and ".join(map(repr, words))
        raise ConfigError(
            f"{metric.name} scores numbers, and {column.name} holds words such as {shown}; for classes there are "
            f"{_FOR_CLASSES}"
        )
    if metric.scores == "classes" and column.numeric and not column.whole and column.unique_share > 0.5:
        raise ConfigError(
            f"{metric.name} scores classes, and {column.name} holds {column.distinct} different numbers in "
            f"{column.count} rows; for numbers there are {_FOR_NUMBERS}"
        )


def _note_labels(found: Survey, column: Column) -> None:
    """Several labels in one cell, such as `a|b`: counted as one class each, which is rarely what is meant."""
    if column.numeric or column.kind not in ("category", "text"):
        return
    cells = [value for value, _ in column.shares]
    parts = Counter(part for cell in cells for part in _LABELS_IN_A_CELL.split(cell))
    several = sum(bool(_LABELS_IN_A_CELL.search(cell)) for cell in cells)
    if several > 0.3 * len(cells) and len(parts) < len(cells) + several and max(parts.values()) > 1:
        example = next(cell for cell in cells if _LABELS_IN_A_CELL.search(cell))
        found.notes.append(
            f"{column.name} seems to hold several labels in a cell ({example!r}): each combination counts as a class "
            f"of its own; for a task of many labels give a column of 0 and 1 for each of the {len(parts)} labels"
        )


def _refuse_answers(found: Survey, goal: Target) -> None:
    """A test table with the targets in it: no test at all where it is the training table once more."""
    train, test = goal.table, found.test
    if train is None or test is None:
        return
    there = [name for name in goal.names if name in test.columns and any(map(str, test.sample[name]))]
    if not there:
        return
    if test.columns == train.columns and test.rows == train.rows and test.sample == train.sample:
        raise ConfigError(
            f"{test.name} holds the same rows as {train.name}, targets and all: leave it out (labelled rows are then "
            "held back for the test), or put the rows there that are to be predicted"
        )
    found.notes.append(f"{test.name} holds {', '.join(there)}, which is to be predicted: remove it from that file")
