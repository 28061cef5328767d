"""Looks at a task: which table is which, what is to be predicted, what the other columns hold."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from mle_star.offline.rules.columns import Column, Kind, describe
from mle_star.offline.rules.metrics import Metric, find_metric
from mle_star.offline.rules.reading import Setting
from mle_star.offline.rules.tables import GAPS, Table, is_misread, is_number, is_parquet_unreadable, read_tables

TaskKind = Literal["binary", "multiclass", "regression", "ordinal"]

FEW_ROWS = 1_500
_SAMPLE_NAME = re.compile(r"sample|submission|submit|example", re.IGNORECASE)
_TEST_NAME = re.compile(r"test|eval|holdout|predict|unlabel", re.IGNORECASE)
_TRAIN_NAME = re.compile(r"train|label|learn|fit", re.IGNORECASE)
_ID_NAME = re.compile(r"(^|[_\W])(id|uuid|guid|key|index)$|[a-z]I[dD]$|^id[_\W]|^(row|unnamed)", re.IGNORECASE)
_QUOTED = re.compile(r"[`'\"]([^`'\"\n]+)[`'\"]")
_LIST = r"((?:[`'\"][^`'\"\n]+[`'\"](?:\s*(?:,|&|\band\b)\s*)*)+)"
_TARGETS = re.compile(rf"\btargets?\b(?: columns?| variables?)?(?: is| are|:)\s*{_LIST}", re.IGNORECASE)
_PREDICT = re.compile(rf"\bpredict\w*\b[^`'\".\n]{{0,60}}{_LIST}", re.IGNORECASE)


class NoTableError(ValueError):
    """The folder holds no table that could be learned from."""


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
        return sorted(set(map(str, cells)) - set(told(cells)))

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
    tables = read_tables(Path(setting.data_folder))
    try:
        train, test, sample = _roles(tables)
    except NoTableError:
        if is_parquet_unreadable(Path(setting.data_folder)):
            raise NoTableError("reading the Parquet files needs pyarrow (pip install pyarrow)") from None
        raise
    extras = tuple(t for t in tables if t is not train and t is not test and t is not sample)
    train, extras = _with_labels(train, test, extras)
    id_column = _find_id(train, test, sample)
    answers = _answer_columns(sample, id_column)
    targets, wide_prefix = _find_targets(setting.description, train, test, answers, id_column)
    metric, kind, classes, rarest = _judge_targets(setting, train, targets)
    if kind != "regression":
        train = _with_labels_as_spelt(train, targets)
    if id_column is not None and _are_misread(id_column, [train, test, sample]):
        train, test, sample = train.as_spelt(id_column), _spelt(test, id_column), _spelt(sample, id_column)
        extras = tuple(table.as_spelt(id_column) for table in extras)
    features = _features(train, test, targets, id_column)
    if not features:
        raise NoTableError("the training table has no column that the test table shares and that says something")
    values = [number for name in targets for cell in train.sample[name] if (number := _float(cell)) is not None]
    dates = [column for column in features if column.kind == "date"]
    later, mixed = _date_order(train, test, dates)
    return Profile(
        setting=setting, train=train, test=test, sample=sample, extras=extras, targets=targets, id=id_column,
        answer_columns=answers or targets, wide_prefix=wide_prefix, kind=kind, target_classes=classes,
        rarest_class=rarest, positive_target=bool(values) and min(values) >= 0,
        target_skew=min(describe(name, train.sample[name]).skew for name in targets),
        metric=metric, columns=features, later_test=later, mixed_dates=mixed,
        ids_match_rows=_same_ids(test, sample, id_column),
    )  # fmt: skip


# --- which table is which --------------------------------------------------------------------------------


def _roles(tables: list[Table]) -> tuple[Table, Table | None, Table | None]:
    """Training table, test table and sample submission, by name first and by columns where names say nothing."""
    if not tables:
        raise NoTableError("no table was found in the data folder")
    sample = _best([t for t in tables if _SAMPLE_NAME.search(_stem(t)) and len(t.columns) > 1], prefer_wide=False)
    rest = [t for t in tables if t is not sample]
    named = [t for t in rest if _TRAIN_NAME.search(_stem(t)) and not _TEST_NAME.search(_stem(t))]
    if not rest:
        raise NoTableError("no training table was found in the data folder")
    train = _best(named or [t for t in rest if not _TEST_NAME.search(_stem(t))] or rest)
    assert train is not None
    others = [t for t in rest if t is not train]
    alike = [t for t in others if _TEST_NAME.search(_stem(t)) and len(set(t.columns) & set(train.columns)) >= 1]
    test = _best(alike) or _best(
        [
            t
            for t in others
            if 0 < len(set(train.columns) - set(t.columns)) < len(train.columns) / 2
            and set(t.columns) <= set(train.columns)
        ]
    )
    return train, test, sample


def _with_labels(train: Table, test: Table | None, extras: tuple[Table, ...]) -> tuple[Table, tuple[Table, ...]]:
    """The training table with its labels, should they lie in a table of their own."""
    if test is None or set(train.columns) - set(test.columns):
        return train, extras
    for table in extras:
        shared = [c for c in table.columns if c in train.columns]
        if len(shared) == 1 and set(table.columns) - set(test.columns) and _TRAIN_NAME.search(_stem(table)):
            known = set(map(str, table.sample[shared[0]]))
            if sum(str(cell) in known for cell in train.sample[shared[0]]) > 0.5 * len(train.sample[shared[0]]):
                return train.join(table, shared[0]), tuple(t for t in extras if t is not table)
    return train, extras


def _stem(table: Table) -> str:
    return table.name.rsplit("/", 1)[-1].split(".")[0]


def _best(tables: list[Table], *, prefer_wide: bool = True) -> Table | None:
    """The largest of several candidates; nested copies lose against files at the top."""
    if not tables:
        return None
    return max(tables, key=lambda t: (-t.name.count("/"), len(t.columns) * (1 if prefer_wide else 0), t.rows))


# --- what is to be predicted -----------------------------------------------------------------------------


def _find_id(train: Table, test: Table | None, sample: Table | None) -> str | None:
    """The column that names a row: the sample's first, else one that looks like it and never repeats."""
    if sample is not None and test is not None:
        for column in sample.columns:
            if column in test.columns and len(set(test.sample[column])) == len(test.sample[column]):
                return column
        if sample.columns[0] in test.columns:
            return sample.columns[0]
    for column in train.columns:
        cells = train.sample[column]
        if _ID_NAME.search(column) and not _has_lists(cells) and len(set(cells)) == len(cells):
            return column
    return None


def _answer_columns(sample: Table | None, id_column: str | None) -> tuple[str, ...]:
    if sample is None:
        return ()
    return tuple(c for c in sample.columns if c != id_column and not (c == sample.columns[0] and _ID_NAME.search(c)))


def _find_targets(
    description: str, train: Table, test: Table | None, answers: tuple[str, ...], id_column: str | None
) -> tuple[tuple[str, ...], str | None]:
    """The columns to predict; with them, for one answer column per class, what those names begin with."""
    known = tuple(column for column in answers if column in train.columns)
    if known and len(known) == len(answers):
        return known, None
    absent = [c for c in train.columns if c != id_column and (test is None or c not in test.columns)]
    if len(answers) > 1:
        for column in absent or list(train.columns):
            prefix = _prefix_of_classes(answers, train.sample[column])
            if prefix is not None:
                return (column,), prefix
    candidates = [c for c in absent if not _has_lists(train.sample[c])] or list(train.columns)
    quoted = [c for c in _QUOTED.findall(description) if c in candidates and c != id_column]
    if known:
        return known, None
    asked = _asked(description, [c for c in candidates if c != id_column])
    if asked:
        return asked[: len(answers) or None], None
    if quoted and (test is None or len(candidates) > 1):
        return (quoted[-1] if test is None else quoted[0],), None
    usual = [c for c in candidates if re.fullmatch(r"(target|label|class|y|outcome|response)s?", c, re.IGNORECASE)]
    return ((usual or candidates[-1:])[0],), None


def _asked(description: str, columns: list[str]) -> tuple[str, ...]:
    """The columns that a description says are to be predicted: names in quotes, one beside the other."""
    for names in (*reversed(_TARGETS.findall(description)), *_PREDICT.findall(description)):
        found = [name for name in _QUOTED.findall(names) if name in columns]
        if found:
            return tuple(dict.fromkeys(found))
    return ()


def _prefix_of_classes(answers: tuple[str, ...], cells: list[object]) -> str | None:
    """What stands before the class in each answer column (`class_a` for `a`), or None when they are no classes."""
    if _has_lists(cells):
        return None
    values = set(told(cells))
    for prefix in ("", *sorted({answers[0][:i] for i in range(1, len(answers[0]))}, key=len, reverse=True)):
        named = {answer.removeprefix(prefix) for answer in answers if answer.startswith(prefix)}
        if len(named) == len(answers) and len(named & values) >= 0.9 * len(values) and values:
            return prefix
    return None


def told(cells: list[object]) -> list[str]:
    """The cells of a target without its gaps. Among labels only an empty cell is a gap: `none` may be one of them."""
    filled = [str(cell) for cell in cells if str(cell)]
    known = [cell for cell in filled if cell.lower() not in GAPS]
    return known if known and all(map(is_number, known)) else filled


def _with_labels_as_spelt(train: Table, targets: tuple[str, ...]) -> Table:
    """The training table, read letter by letter where pandas would change a label."""
    for name in targets:
        labels = told(train.sample[name])
        if is_misread([*labels, *([] if len(labels) == len(train.sample[name]) else [""])], train.gap_words):
            train = train.as_spelt(name)
    return train


def _are_misread(id_column: str, tables: list[Table | None]) -> bool:
    """Would pandas change an id?"""
    having = [table for table in tables if table is not None and id_column in table.columns]
    return any(is_misread(map(str, table.sample[id_column]), table.gap_words) for table in having)


def _spelt(table: Table | None, name: str) -> Table | None:
    return None if table is None else table.as_spelt(name)


def _judge_targets(
    setting: Setting, train: Table, targets: tuple[str, ...]
) -> tuple[Metric, TaskKind, tuple[tuple[str, ...], ...], int]:
    """The metric, the kind of task, each target's classes and the size of the smallest, scaled up from the sample."""
    columns = [told(train.sample[name]) for name in targets]
    numeric = all(map(_is_measured, columns))
    metric = find_metric(setting.metric, setting.direction, numeric_target=numeric)
    if metric.kind == "number":
        return metric, "regression", tuple(() for _ in targets), 0
    classes = tuple(tuple(sorted(set(cells), key=_by_number)) for cells in columns)
    scale = train.rows / max(len(train.sample[targets[0]]), 1)
    rarest = int(scale * min((count for cells in columns for count in Counter(cells).values()), default=0))
    if metric.kind == "ordinal":
        return metric, "ordinal", classes, rarest
    return metric, "binary" if max(map(len, classes)) <= 2 else "multiclass", classes, rarest


def _is_measured(cells: list[str]) -> bool:
    """Are these numbers that differ too much to be names of classes?"""
    return all(map(is_number, cells)) and len(set(cells)) > max(20, 0.02 * len(cells))


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
        counts_rows = column.kind == "number" and column.unique_share > 0.999 and column.sorted_like_rows
        names_rows = (
            _ID_NAME.search(name)
            and column.unique_share > 0.999
            and column.kind in ("number", "category")
            and column.whole
        )
        if column.kind != "constant" and not counts_rows and not names_rows:
            found.append(column)
    return tuple(found)


def _date_order(train: Table, test: Table | None, dates: list[Column]) -> tuple[str, str]:
    """The date column by which every test row comes after training, and the one by which the two are mixed."""
    from datetime import datetime

    if test is None:
        return "", ""
    for column in dates:
        parsed: list[list[datetime]] = []
        for table in (train, test):
            moments = []
            for cell in table.sample.get(column.name, [])[:5000]:
                try:
                    moments.append(datetime.strptime(str(cell), column.date_format))
                except ValueError:
                    continue
            parsed.append(sorted(moments))
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


def _has_lists(cells: list[object]) -> bool:
    return any(isinstance(cell, (list, dict)) for cell in cells[:50])


def _float(cell: object) -> float | None:
    try:
        return float(str(cell))
    except ValueError:
        return None
