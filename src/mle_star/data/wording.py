"""The text of a guessed task, in the words that the agents will read."""

from __future__ import annotations

from collections.abc import Sequence

from mle_star.basics.texts import plural, printable
from mle_star.data.metrics import Metric
from mle_star.data.survey import Survey
from mle_star.data.tables import Table
from mle_star.data.targets import Target
from mle_star.models import MetricDirection

MAX_NAMES = 40


def task_in_words(found: Survey, target: Target, metric: Metric, probabilities: bool) -> str:
    """What to predict, from what, and what to hand in."""
    what = _join(target.names) if target.names else "the target"
    where = f"for every row of {_path(found.test)}" if found.test else "for the test data"
    lines = [f"Predict {what} {where}."]
    if found.train is not None:
        rows = f" ({plural(found.train.rows, 'row')})" if found.train.whole else ""
        lines.append(f"{_path(found.train)}{rows} holds the columns {_join(found.train.columns)}.")
        if not found.train.form.has_header:
            lines.append("The file has no header line: column_1 is its first column.")
    if found.labels is not None:
        lines.append(f"{_path(found.labels)} holds {_join(found.labels.columns)}.")
    if found.images:
        lines.append(
            "Pictures lie in " + ", ".join(f"./input/{printable(name)}/" for name in sorted(found.images)[:10]) + "."
        )
    lines.append(_submission(found, target, probabilities))
    better = "larger" if metric.direction is MetricDirection.maximize else "smaller"
    lines.append(f"Metric: {metric.name} ({better} is better).")
    return "\n".join(lines)


def _submission(found: Survey, target: Target, probabilities: bool) -> str:
    if found.sample is not None:
        value = " with probabilities" if probabilities else ""
        value = value if target.class_prefix is None else " with a probability for each class"
        return f"Submit the columns of {_path(found.sample)}{value}: {_join(found.sample.columns)}."
    if found.test is not None:
        key = found.test.columns[0]
        return f"Submit one row per test row, in the same order: {_join((key, *target.names))}."
    return (
        "Where ./input/test.csv is there, submit a prediction for each of its rows, in the columns of "
        "./input/sample_submission.csv; else predict the training rows, and validate on rows held out."
    )


def some_of(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _path(table: Table | None) -> str:
    return f"./input/{printable(table.name)}" if table else ""


def _join(names: tuple[str, ...] | list[str]) -> str:
    shown = ", ".join(f"`{printable(name)}`" for name in names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown
