"""The layout of a task's data: the tables by their roles, what is predicted, what names a row, what an answer holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mle_star.data.columns import is_id_name
from mle_star.data.survey import Survey, survey
from mle_star.data.tables import Table
from mle_star.data.targets import Target, guess_target
from mle_star.errors import ConfigError


@dataclass(frozen=True)
class Layout:
    """Where everything of a tabular task is. `key` names a row (None: its position does).

    `answers` are the columns of a submission that hold predictions: the targets, or one for each class. Labels that lie
    in a table of their own (`labels`) belong to the training rows by `labels_key`.
    """

    train: Table
    test: Table | None
    sample: Table | None
    labels: Table | None
    labels_key: str | None
    others: tuple[Table, ...]
    target: Target
    key: str | None
    answers: tuple[str, ...]


def find_layout(folder: Path, description: str = "") -> Layout:
    """The layout of the tables in `folder`; `ConfigError` when there is none to learn from."""
    return layout_of(survey(folder), description)


def layout_of(found: Survey, description: str = "") -> Layout:
    """The layout of the tables that a survey found; `ConfigError` when there is none to learn from."""
    if found.train is None:
        why = f" ({'; '.join(found.notes[:3])})" if found.notes else ""
        raise ConfigError(f"{found.folder}: no training table was found{why}")
    labels, labels_key = _labels(found)
    if labels is None and found.labels is not None:
        _refuse_labels_without_key(found.train, found.labels, found.test)
        found.others, found.labels = [found.labels, *found.others], None
    target = guess_target(found, description)
    key = _key(found, target)
    return Layout(
        train=found.train,
        test=found.test,
        sample=found.sample,
        labels=labels,
        labels_key=labels_key,
        others=tuple(found.others),
        target=target,
        key=key,
        answers=_answers(found, target, key),
    )


def _labels(found: Survey) -> tuple[Table | None, str | None]:
    """The table of labels that belongs to the training rows, with the column that both share."""
    train, labels = found.train, found.labels
    if train is None or labels is None:
        return None, None
    if found.test is not None and set(train.columns) - set(found.test.columns):
        return None, None  # the training table has its target
    shared = [column for column in labels.columns if column in train.columns]
    if len(shared) != 1:
        return None, None
    known = set(map(str, labels.sample[shared[0]]))
    cells = train.sample[shared[0]]
    matching = sum(str(cell) in known for cell in cells)
    return (labels, shared[0]) if matching > 0.5 * len(cells) else (None, None)


def _refuse_labels_without_key(train: Table, labels: Table, test: Table | None) -> None:
    """Labels that belong to the training rows by their place are read by nobody here, and must not be passed over."""
    has_target = test is not None and set(train.columns) - set(test.columns)
    if labels.rows == train.rows and not has_target and not set(labels.columns) & set(train.columns):
        raise ConfigError(
            f"{labels.name} holds the labels of {train.name} and shares no key with it: put both into one table, "
            "or give both an id"
        )


def _key(found: Survey, target: Target) -> str | None:
    """The column that names a row: one that sample and test share and that never repeats, else one called so."""
    train, test, sample = found.train, found.test, found.sample
    if sample is not None and test is not None:
        shared = [column for column in sample.columns if column in test.columns]
        if len(shared) > 1 and len(shared) == len(test.columns):
            return None  # the submission repeats the whole test table: rows are told by their position
        unique = [c for c in shared if len(set(map(str, test.sample[c]))) == len(test.sample[c])]
        if unique:
            return unique[0]
        if sample.columns[0] in shared:
            return sample.columns[0]
    if train is None:
        return None
    for column in train.columns:
        if not is_id_name(column) or column in target.names:
            continue
        told = train.column(column)
        if told.kind != "list" and told.distinct == len(train.sample[column]):
            return column
    return None


def _answers(found: Survey, target: Target, key: str | None) -> tuple[str, ...]:
    if found.sample is None:
        return target.names
    if set(target.names) <= set(found.sample.columns):
        return target.names
    first = found.sample.columns[0]
    return tuple(c for c in found.sample.columns if c != key and not (c == first and is_id_name(c)))
