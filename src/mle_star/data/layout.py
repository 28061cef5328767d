"""The layout of a task's data: which columns are to be predicted, what names a row, what an answer holds."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from mle_star.data.columns import Column, is_gap, is_id_name, is_number, letters_of
from mle_star.data.survey import Survey, survey
from mle_star.data.tables import Table
from mle_star.errors import ConfigError
from mle_star.models.texts import did_you_mean, printable

TARGET_NAMES = ("target", "label", "labels", "class", "y", "outcome", "response", "output")
PAIR_NAMES = re.compile(
    r"(?i)(^|[/_-])(train|input|output|source|target|mask|label|clean|cleaned|noisy|dirty|image|low|high|before|after)s?\b"
)
"""Folders of pictures that belong together one by one; other names are classes."""
_QUOTED = re.compile(r"[`'\"]([^`'\"\n]+)[`'\"]")
_LIST = r"((?:[`'\"][^`'\"\n]+[`'\"](?:\s*(?:,|&|\band\b)\s*)*)+)"
_TARGETS = re.compile(rf"\btargets?\b(?: columns?| variables?)?(?: is| are|:)\s*{_LIST}", re.IGNORECASE)
_TOLD = re.compile(r"^The target is (`.+`)\.$", re.MULTILINE)
_PREDICT = re.compile(rf"\bpredict\w*\b[^`'\".\n]{{0,60}}{_LIST}", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """What is to be predicted: columns of `table`, or the names of folders when there is no table.

    `class_prefix`: the submission has a column for each class, named by the class behind this prefix.
    """

    names: tuple[str, ...]
    table: Table | None
    reason: str
    class_prefix: str | None = None
    pairs: bool = False  # pictures become pictures

    @property
    def columns(self) -> list[Column]:
        """The figures of the target columns."""
        return [self.table.column(name) for name in self.names] if self.table else []


@dataclass(kw_only=True)
class Layout(Survey):
    """Where everything of a tabular task is. `key` names a row (None: its position does).

    `answers` are the columns of a submission that hold predictions: the targets, or one for each class. Labels that lie
    in a table of their own (`labels`) belong to the training rows by `labels_key`.
    """

    train: Table
    target: Target
    labels_key: str | None
    key: str | None
    answers: tuple[str, ...]

    @property
    def roles(self) -> list[Table]:
        """The tables that rows to learn from and to predict lie in: all but the others."""
        return [table for table in (self.train, self.test, self.sample, self.labels) if table is not None]


def find_layout(folder: Path, description: str = "") -> Layout:
    """The layout of the tables in `folder`; `ConfigError` when there is none to learn from."""
    return layout_of(survey(folder), description)


def layout_of(found: Survey, description: str = "") -> Layout:
    """The layout of the tables that a survey found; `ConfigError` when there is none to learn from."""
    if found.train is None:
        why = f" ({'; '.join(found.notes[:3])})" if found.notes else ""
        raise ConfigError(f"{found.folder}: no training table was found{why}")
    labels_key = _labels_key(found.train, found)
    if labels_key is None and found.labels is not None:
        found.others, found.labels = [found.labels, *found.others], None
    target = guess_target(found, description)
    key = _key(found.train, found, target)
    return Layout(
        **vars(found), labels_key=labels_key, target=target, key=key, answers=_answers(found.sample, target, key)
    )


def _labels_key(train: Table, found: Survey) -> str | None:
    """The column by which the table of labels belongs to the training rows; None where it does not.

    Labels that belong to them by their place alone are read by nobody here, and must not be passed over.
    """
    labels, test = found.labels, found.test
    if labels is None or (test is not None and set(train.columns) - set(test.columns)):
        return None  # the training table has its target
    shared = [column for column in labels.columns if column in train.columns]
    if len(shared) == 1:
        known, cells = set(map(str, labels.sample[shared[0]])), train.sample[shared[0]]
        if sum(str(cell) in known for cell in cells) > 0.5 * len(cells):
            return shared[0]
    if not shared and labels.rows == train.rows:
        raise ConfigError(
            f"{labels.name} holds the labels of {train.name} and shares no key with it: put both into one table, "
            "or give both an id"
        )
    return None


def _key(train: Table, found: Survey, target: Target) -> str | None:
    """The column that names a row: one that sample and test share and that never repeats, else one called so."""
    test, sample = found.test, found.sample
    if sample is not None and test is not None:
        shared = [column for column in sample.columns if column in test.columns]
        if len(shared) > 1 and len(shared) == len(test.columns):
            return None  # the submission repeats the whole test table: rows are told by their position
        unique = [c for c in shared if len(set(map(str, test.sample[c]))) == len(test.sample[c])]
        if unique:
            return unique[0]
        if sample.columns[0] in shared:
            return sample.columns[0]
    named = (train.column(name) for name in train.columns if is_id_name(name) and name not in target.names)
    return next((c.name for c in named if c.kind != "list" and c.distinct == len(train.sample[c.name])), None)


def _answers(sample: Table | None, target: Target, key: str | None) -> tuple[str, ...]:
    if sample is None or set(target.names) <= set(sample.columns):
        return target.names
    first = sample.columns[0]
    return tuple(c for c in sample.columns if c != key and not (c == first and is_id_name(c)))


# --- what is to be predicted -------------------------------------------------------------------------------------


def labels_of(cells: list[Any]) -> list[str]:
    """The cells of a target without its gaps. Among labels only an empty cell is a gap: `none` may be one of them."""
    filled = [str(cell) for cell in cells if str(cell)]
    known = [cell for cell in filled if not is_gap(cell)]
    return known if known and all(map(is_number, known)) else filled


def given_target(found: Survey, given: str) -> Target:
    """The column, or the columns with commas between them, that the caller names."""
    tables = found.tables_of_labels[::-1]
    wanted = tuple(part.strip() for part in given.split(","))
    for table in tables:
        for names in ((given,), wanted):
            if set(names) <= set(table.columns):
                return Target(names, table, "Given.")
    if not tables:
        raise ConfigError(f"{found.folder}: no training table that could hold the target {given!r}")
    known = [column for table in tables for column in table.columns]
    raise ConfigError(f"{tables[0].name}: no column {given!r} in the training table; {did_you_mean(given, known[:50])}")


def with_target(found: Survey | None, description: str, names: Collection[str]) -> str:
    """The description; where it does not name the target, or leads to another, with the sentence that settles it."""
    tables = [] if found is None else found.tables_of_labels
    if found is not None and tables and set(guess_target(found, description).names) != set(names):
        asked = next((target for table in tables if (target := _target_in_sample(found, table))), None)
        if asked is not None and found.sample is not None:
            raise ConfigError(
                f"the target is to be {_listed(names)}, but {found.sample.name} asks for {_listed(asked.names)}: "
                f"correct the target, or remove {found.sample.name}"
            )
    elif all(_listed([name]) in description for name in names):
        return description
    return f"{description}\n\nThe target is {_listed(names)}."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{printable(name)}`" for name in names)


def guess_target(found: Survey, description: str = "") -> Target:
    """What the description settles, else the likeliest: by sample submission, by prose, by what test lacks, by name."""
    if found.train is None:
        return _target_of_folders(found)
    tables = found.tables_of_labels
    guesses = chain(
        (_target_as_told(found, table, description) for table in tables),
        (_target_in_sample(found, table) for table in tables),
        (_target_as_class_columns(found, table) for table in tables),
        (_target_in_prose(found, t, description) or _target_missing_in_test(found, t) for t in tables),
    )
    return next(filter(None, guesses), None) or _target_by_name(tables[0])


def _target_as_told(found: Survey, table: Table, description: str) -> Target | None:
    """The columns in the last sentence that says nothing but what the target is."""
    said = (_TOLD.findall(description) or [""])[-1]
    places = {column: said.find(_listed([column])) for column in table.columns}
    names = sorted((column for column in table.columns if places[column] >= 0), key=lambda column: places[column])
    if not names or _listed(names) != said:
        return None
    one_for_each_class = _target_as_class_columns(found, table, names) if len(names) == 1 else None
    return one_for_each_class or Target(tuple(names), table, "The description says so.")


def _target_in_sample(found: Survey, table: Table) -> Target | None:
    """The columns that a submission has and the test data lack."""
    if found.sample is None:
        return None
    features = set(found.test.columns) if found.test else {found.sample.columns[0]}
    names = tuple(c for c in found.sample.columns if c in table.columns and c not in features)
    first = found.sample.columns[0]
    if len(names) > 1 and first in names and is_id_name(first) and table.column(first).unique_share > 0.999:
        names = tuple(name for name in names if name != first)  # an id that the test rows go without
    if not names:
        return None
    where = f"; {found.test.name} lacks {'it' if len(names) == 1 else 'them'}" if found.test else ""
    return Target(names, table, f"In {found.sample.name} and in {table.name}{where}.")


def _target_as_class_columns(found: Survey, table: Table, among: Sequence[str] = ()) -> Target | None:
    """A submission with one column per class: the training column (`among` these) that holds those names as values."""
    if found.sample is None or len(found.sample.columns) < 3:
        return None
    answers = found.sample.columns[1:]
    absent = [c for c in table.columns if found.test is None or c not in found.test.columns]
    for column in among or [*absent, *(c for c in table.columns if c not in absent)]:
        prefix = _prefix_of_classes(answers, table.sample[column], column)
        if prefix is not None:
            reason = f"Its values in {table.name} are the columns of {found.sample.name}: a probability for each class."
            return Target((column,), table, reason, class_prefix=prefix)
    return None


def _prefix_of_classes(answers: tuple[str, ...], cells: list[Any], column: str) -> str | None:
    """What stands before the class in each answer column (`class_a` for `a`), or None when they are no classes."""
    if any(isinstance(cell, (list, dict)) for cell in cells):
        return None
    values = set(labels_of(cells))
    if len(values) < 2:
        return None
    for prefix in ("", *sorted({answers[0][:i] for i in range(1, len(answers[0]))}, key=len, reverse=True)):
        named = {answer.removeprefix(prefix) for answer in answers if answer.startswith(prefix)}
        if len(named) == len(answers) and len(named & values) >= 0.9 * len(values):
            return prefix
    plain = {letters_of(answer) for answer in answers}
    loosely = {letters_of(value) for value in values}
    return "" if loosely <= plain or {f"{letters_of(column)}{value}" for value in loosely} <= plain else None


def _target_in_prose(found: Survey, table: Table, description: str) -> Target | None:
    """The columns that a description says are to be predicted: names in quotes, one beside the other."""
    test = found.test.columns if found.test else ()
    columns = [c for c in table.columns if c not in test and not table.column(c).names_rows]
    for names in (*reversed(_TARGETS.findall(description)), *_PREDICT.findall(description)):
        asked = tuple(dict.fromkeys(name for name in _QUOTED.findall(names) if name in columns))
        if asked:
            return Target(asked, table, "The description asks for it.")
    quoted = [name for name in _QUOTED.findall(description) if name in columns]
    if quoted and (found.test is None or len(columns) > 1):
        return Target((quoted[-1] if found.test is None else quoted[0],), table, "The description names it.")
    return None


def _target_missing_in_test(found: Survey, table: Table) -> Target | None:
    if found.test is None or found.test.form.has_header != table.form.has_header:
        return None
    missing = [column for column in table.columns if column not in found.test.columns]
    if not missing or len(missing) == len(table.columns):
        return None
    if len(missing) == 1:
        return Target((missing[0],), table, f"The only column of {table.name} that {found.test.name} lacks.")
    plain = [c for c in missing if table.column(c).kind != "list"] or missing
    best = next((c for c in missing if letters_of(c) in TARGET_NAMES), plain[-1])
    listed = ", ".join(missing[:8])
    reason = f"{found.test.name} lacks {len(missing)} columns of {table.name}: {listed}. Look at this."
    return Target((best,), table, reason)


def _target_by_name(table: Table) -> Target:
    candidates = [c for c in table.columns if not table.column(c).names_rows] or list(table.columns)
    for column in candidates:
        if letters_of(column) in TARGET_NAMES or re.search(r"(?i)^(target|label)[_ ]|[_ ](target|label)$", column):
            return Target((column,), table, f"The name of a column of {table.name} says so.")
    reason = f"The last column of {table.name}, no clearer hint found. Look at this."
    return Target((candidates[-1],), table, reason)


def _target_of_folders(found: Survey) -> Target:
    """Without a training table: pictures sorted into a folder per class, or pairs of pictures."""
    folders = sorted(folder for folder in found.images if not re.search(r"(?i)\btest", folder))
    classes = [folder for folder in folders if "/" in folder and re.match(r"(?i)train", folder)]
    for first, second in () if len(classes) >= 2 else combinations(folders, 2):
        shared = found.images[first] & found.images[second]
        by_role = any(PAIR_NAMES.search(folder) for folder in (first, second))
        if by_role and len(shared) * 2 > min(len(found.images[first]), len(found.images[second])):
            reason = f"Pictures of the same names lie in {first}/ and {second}/: one becomes the other."
            return Target((), None, reason, pairs=True)
    classes = classes if len(classes) >= 2 else [folder for folder in folders if folder != "."]
    if len(classes) >= 2:
        names = ", ".join(folder.rpartition("/")[2] for folder in classes[:5])
        return Target((), None, f"The folder that a picture lies in ({names}).")
    raise ConfigError(
        f"{found.folder}: no training table found, so the target cannot be told; "
        "add a table of the targets (such as train.csv with the columns id and label)"
    )
