"""Looks at a task: which table is which, what is to be predicted, what the other columns hold."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

from mle_star.data import tables as files
from mle_star.data.columns import Column, Kind, as_date, describe, is_id_name
from mle_star.data.layout import Layout, find_layout
from mle_star.data.targets import labels_of
from mle_star.data.values import is_misread, is_number
from mle_star.engineer.rules.metrics import Metric, find_metric
from mle_star.engineer.rules.reading import Setting
from mle_star.engineer.rules.tables import Table
from mle_star.errors import ConfigError

TaskKind = Literal["binary", "multiclass", "regression", "ordinal"]

FEW_ROWS = 1_500


@dataclass(frozen=True)
class Profile:
    """All that scripts, plans and checks need to know about a task's data."""

    setting: Setting
    train: Table
    test: Table | None
    sample: Table | None
    extras: tuple[Table, ...]
    targets: tuple[str, ...]
    id: str | None
    answer_columns: tuple[str, ...]
    wide_prefix: str | None
    kind: TaskKind
    target_classes: tuple[tuple[str, ...], ...]
    rarest_class: int
    positive_target: bool
    target_skew: float
    metric: Metric
    columns: tuple[Column, ...]
    later_test: str
    mixed_dates: str
    ids_match_rows: bool

    def of(self, *kinds: Kind) -> list[Column]:
        """The feature columns of these kinds."""
        return [column for column in self.columns if column.kind in kinds]

    def names(self, *kinds: Kind) -> list[str]:
        """Their names."""
        return [column.name for column in self.of(*kinds)]

    def gaps(self, target: str) -> list[str]:
        """How the training table spells that a row has no answer."""
        cells = self.train.sample[target]
        return sorted(set(map(str, cells)) - set(labels_of(cells)))

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the target; of several targets, of the one that has most."""
        return max(self.target_classes, key=len)

    @property
    def mixed_classes(self) -> bool:
        """Have some targets two classes and others more?"""
        return len(self.classes) > 2 >= min(map(len, self.target_classes))

    @property
    def numeric(self) -> bool:
        """Do the models predict numbers rather than class probabilities?"""
        return self.kind in ("regression", "ordinal")

    @property
    def rows(self) -> int:
        """Training rows, before any cap."""
        return self.train.rows

    @property
    def small(self) -> bool:
        """Are there so few rows that simple models and many folds are in order?"""
        return self.rows < FEW_ROWS

    @property
    def text_characters(self) -> float:
        """Characters of free text in a row."""
        return sum(column.characters for column in self.of("text")) + 60.0 * len(self.of("list"))

    @property
    def mostly_text(self) -> bool:
        """Is free text what there is to learn from?"""
        texts = self.of("text", "list")
        long = [c for c in texts if c.words >= 8 or c.kind == "list"]
        return bool(long) and len(self.columns) - len(texts) <= 3

    @property
    def width(self) -> int:
        """Feature columns."""
        return max(len(self.columns), 1)

    @property
    def location(self) -> tuple[str, str] | None:
        """The two columns that say where on Earth a row lies, if there are any."""
        numbers = [c for c in self.of("number") if not c.whole or c.distinct > 50]
        north = [c.name for c in numbers if re.search(r"(^|_)lat", c.name.lower()) and c.low >= -90 and c.high <= 90]
        east = [c.name for c in numbers if re.search(r"(^|_)(lon|lng)", c.name.lower()) and abs(c.low) <= 180]
        return (north[0], east[0]) if north and east else None


def look(setting: Setting) -> Profile:
    """The profile of the task in `setting`; looking twice costs nothing while the files stay the same."""
    stamps = tuple(
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(Path(setting.data_folder).rglob("*"))
        if path.is_file()
    )
    return _look(setting, stamps)


@lru_cache(maxsize=8)
def _look(setting: Setting, stamps: tuple[tuple[str, int, int], ...]) -> Profile:
    layout = find_layout(Path(setting.data_folder), setting.description)
    train, test, sample = _training(layout), _table(layout.test), _table(layout.sample)
    extras = tuple(map(Table, layout.others))
    id_column, targets, answers = layout.key, layout.target.names, layout.answers
    metric, kind, classes, rarest = _judge_targets(setting, train, targets)
    if kind != "regression":
        train = _with_labels_as_spelt(train, targets)
    if id_column is not None and _are_misread(id_column, [train, test, sample]):
        train, test, sample = train.as_spelt(id_column), _spelt(test, id_column), _spelt(sample, id_column)
        extras = tuple(table.as_spelt(id_column) for table in extras)
    features = _features(train, test, targets, id_column)
    if not features:
        raise ConfigError("the training table has no column that the test table shares and that says something")
    values = [number for name in targets for cell in train.sample[name] if (number := _float(cell)) is not None]
    dates = [column for column in features if column.kind == "date"]
    later, mixed = _date_order(train, test, dates)
    return Profile(
        setting=setting, train=train, test=test, sample=sample, extras=extras, targets=targets, id=id_column,
        answer_columns=answers, wide_prefix=layout.target.class_prefix, kind=kind, target_classes=classes,
        rarest_class=rarest, positive_target=bool(values) and min(values) >= 0,
        target_skew=min(describe(name, train.sample[name]).skew for name in targets),
        metric=metric, columns=features, later_test=later, mixed_dates=mixed,
        ids_match_rows=_same_ids(test, sample, id_column),
    )  # fmt: skip


# --- what is to be predicted -----------------------------------------------------------------------------


def _with_labels_as_spelt(train: Table, targets: tuple[str, ...]) -> Table:
    """The training table, read letter by letter where pandas would change a label."""
    for name in targets:
        labels = labels_of(train.sample[name])
        if is_misread([*labels, *([] if len(labels) == len(train.sample[name]) else [""])], train.gap_words):
            train = train.as_spelt(name)
    return train


def _are_misread(id_column: str, tables: list[Table | None]) -> bool:
    """Would pandas change an id?"""
    having = [table for table in tables if table is not None and id_column in table.columns]
    return any(is_misread(map(str, table.sample[id_column]), table.gap_words) for table in having)


def _training(layout: Layout) -> Table:
    """The training table, its labels beside it should they lie in a table of their own."""
    train = Table(layout.train)
    if layout.labels is None or layout.labels_key is None:
        return train
    return train.join(Table(layout.labels), layout.labels_key)


def _table(file: files.Table | None) -> Table | None:
    return None if file is None else Table(file)


def _spelt(table: Table | None, name: str) -> Table | None:
    return None if table is None else table.as_spelt(name)


def _judge_targets(
    setting: Setting, train: Table, targets: tuple[str, ...]
) -> tuple[Metric, TaskKind, tuple[tuple[str, ...], ...], int]:
    """The metric, the kind of task, each target's classes and the size of the smallest, scaled up from the sample."""
    columns = [labels_of(train.sample[name]) for name in targets]
    metric = find_metric(setting.metric)
    if metric.kind == "number":
        return metric, "regression", tuple(() for _ in targets), 0
    classes = tuple(tuple(sorted(set(cells), key=_by_number)) for cells in columns)
    scale = train.rows / max(len(train.sample[targets[0]]), 1)
    rarest = int(scale * min((count for cells in columns for count in Counter(cells).values()), default=0))
    if metric.kind == "ordinal":
        return metric, "ordinal", classes, rarest
    return metric, "binary" if max(map(len, classes)) <= 2 else "multiclass", classes, rarest


def _by_number(label: str) -> tuple[bool, float, str]:
    return not is_number(label), _float(label) or 0.0, label


# --- the other columns -----------------------------------------------------------------------------------


def _features(train: Table, test: Table | None, targets: tuple[str, ...], id_column: str | None) -> tuple[Column, ...]:
    """The columns to learn from: those that the test rows have, too, and that say something."""
    found = []
    for name in train.columns:
        if name in targets or name == id_column or (test is not None and name not in test.columns):
            continue
        column = describe(name, train.sample[name])
        counts_rows = column.kind == "number" and column.unique_share > 0.999 and column.counts_up
        names_rows = (
            is_id_name(name) and column.unique_share > 0.999 and column.kind in ("number", "category") and column.whole
        )
        if column.kind != "constant" and not counts_rows and not names_rows:
            found.append(column)
    return tuple(found)


def _date_order(train: Table, test: Table | None, dates: list[Column]) -> tuple[str, str]:
    """The date column by which every test row comes after training, and the one by which the two are mixed."""
    if test is None:
        return "", ""
    for column in dates:
        parsed: list[list[datetime]] = []
        for table in (train, test):
            cells = table.sample.get(column.name, [])[:5000]
            moments = [as_date(str(cell), column.date_format) for cell in cells]
            parsed.append(sorted(moment for moment in moments if moment is not None))
        old, new = parsed
        if not old or not new:
            continue
        if new[len(new) // 50] >= old[-1 - len(old) // 50]:
            return column.name, ""
        inside = sum(old[0] <= moment <= old[-1] for moment in new) / len(new)
        if inside > 0.9 and len(set(old)) > 0.3 * len(old):
            return "", column.name
    return "", ""


def _same_ids(test: Table | None, sample: Table | None, id_column: str | None) -> bool:
    """Do the sample's ids name the test rows?"""
    if test is None or sample is None or id_column is None or id_column not in sample.columns:
        return False
    if id_column not in test.columns:
        return False
    ids = set(test.sample[id_column])
    seen = sample.sample[id_column]
    return test.rows == sample.rows and (len(seen) != len(ids) or set(seen) == ids)


def _float(cell: object) -> float | None:
    try:
        return float(str(cell))
    except ValueError:
        return None
