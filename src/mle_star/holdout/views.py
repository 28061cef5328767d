"""Views: what scripts see as `./input`. The files of the task, with some labelled rows moved into the test file.

Whatever a script submits then holds answers for rows whose labels only the harness has; the other rows are the real
test, in the sample's order once they are cut out.
"""

import random
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mle_star.data.layout import Layout, labels_of
from mle_star.data.place import DataFolder, share
from mle_star.data.rows import TableRows, no_rows, read_rows
from mle_star.data.tables import TEST_NAME, Form, Unsupported, name_of_test
from mle_star.holdout.keys import KeyFiles, Numbers, find_key_files, fresh_keys, label_files, numbers_of
from mle_star.holdout.related import Known, Rule, moments_in, wanted_columns
from mle_star.holdout.split import FEWEST_ROWS, Split, find_rule, split_rows
from mle_star.models import PipelineConfig

SAMPLE_NAME = "sample_submission.csv"
AS_USUAL = PipelineConfig()
EXAMPLES = 5
"""Rows to predict that stand in for a test that a task does not have."""


Columns = tuple[Sequence[str], ...]
"""Cells of all rows, by column."""


class View(NamedTuple):
    """One view. `order` says which row each row of its test file is."""

    name: str
    folder: Path
    hidden: tuple[int, ...]
    order: tuple[int, ...]  # a row of the real test from 0 on, or a training row as -1 - place
    names: Mapping[int, str] = {}  # the keys of hidden rows, where they have other ones here


@dataclass(frozen=True)
class Data:
    """The tables of a task in full, as far as views are made from them."""

    layout: Layout
    train: TableRows
    test: TableRows | None
    sample: TableRows | None
    labels: TableRows | None
    truth: Columns  # the targets of every training row, as they stand in the file
    keys: Sequence[str]  # of every training row; empty where rows have none
    labelled: Sequence[int]  # the rows that have a label
    rule: Rule

    @classmethod
    def read(cls, layout: Layout, config: PipelineConfig = AS_USUAL, *, check: bool = True) -> "Data":
        """All of it; `Unsupported` says what stands in the way. Without `check`: also what cannot be split."""
        _refuse(layout)
        needed = {layout.key, layout.labels_key, *layout.target.names, *(wanted_columns(layout) if check else ())}
        train, test, sample, labels = (
            None
            if table is None
            else read_rows(table, layout.folder, [c for c in table.columns if c in needed or table is layout.sample])
            for table in (layout.train, layout.test, layout.sample, layout.labels)
        )
        assert train is not None
        rule = find_rule(layout, config, Known(layout, train, test) if check else None)
        truth = _truth(layout, train, labels)
        labelled = _labelled(truth)
        if check and len(labelled) < FEWEST_ROWS:
            raise Unsupported(f"{len(labelled)} labelled rows are too few to hide any of them")
        keys = train.column(layout.key) if layout.key in layout.train.columns else []
        data = cls(layout, train, test, sample, labels, truth, keys, labelled, rule)
        if check:
            data._check_keys()
        return data

    def _check_keys(self) -> None:
        """Hidden rows go among the test rows: their keys must not be taken."""
        key, sample, test = self.layout.key, self.sample, self.test
        if key is None and test is None and sample is not None:
            raise Unsupported(f"nothing tells which rows {sample.table.name} asks for")
        if sample is not None and test is not None and sample.count != test.count:
            raise Unsupported(f"{sample.table.name} does not ask for the rows of {test.table.name}")
        if key is None:
            return
        if self.nameless and (why := self._why_no_new_names()):
            raise Unsupported(why)
        if len(set(self.test_keys)) < len(self.test_keys):
            raise Unsupported(f"values of {key} occur more than once in the test")
        if sample is not None and key not in sample.table.columns:
            raise Unsupported(f"{sample.table.name} has no {key}")
        if sample is not None and test is not None and sorted(sample.column(key)) != sorted(self.test_keys):
            raise Unsupported(f"{sample.table.name} does not ask for the rows of {test.table.name}")

    @cached_property
    def nameless(self) -> bool:
        """Have the training rows no key that they could bear among the test rows?"""
        if not self.keys:
            return self.layout.key is not None
        return len(set(self.keys)) < len(self.keys) or not set(self.test_keys).isdisjoint(self.keys)

    def _why_no_new_names(self) -> str:
        """Why nameless rows cannot go among the test rows under new keys: something may hang on the old ones."""
        key, own, others = self.layout.key, self.key_numbers, numbers_of(self.test_keys)
        if self.keys:
            both = own is not None and others is not None and own.counts_rows and others.counts_rows
            alone = not self._key_elsewhere and not self.files.by_key
            return "" if both and alone else f"values of {key} occur more than once"
        plain = self.train.table.form.kind == "csv" and others is not None
        return "" if plain and not self._key_elsewhere else f"the training rows have no {key}"

    @property
    def _key_elsewhere(self) -> bool:
        return any(self.layout.key in other.columns for other in self.layout.others)

    @cached_property
    def key_numbers(self) -> Numbers | None:
        """How the training rows are numbered."""
        return numbers_of(self.keys)

    @cached_property
    def test_keys(self) -> Sequence[str]:
        """The keys of the real test's rows: of its table, else of those that the sample submission asks for."""
        key = self.layout.key
        source = self.test or self.sample
        return [] if key is None or source is None or key not in source.table.columns else source.column(key)

    @property
    def test_rows(self) -> int:
        """How many rows the real test has."""
        return self.test.count if self.test is not None else len(self.test_keys)

    @cached_property
    def files(self) -> KeyFiles:
        """The files that are named by the rows' keys."""
        layout = self.layout
        tables = {table.name for table in (*layout.roles, *layout.others)}
        files = find_key_files(layout.folder, self.keys, self.test_keys, tables)
        if files.by_key and files.test_folder is None and self._labelled_by_folders(files):
            raise Unsupported("the folders in which files of training rows lie tell their labels")
        return files

    def _labelled_by_folders(self, files: KeyFiles) -> bool:
        """Do the rows whose files lie in one folder mostly have one label, far more than all rows have it?"""
        labels, folders = self.truth[0], dict[tuple[Path, ...], Counter[str]]()
        for place in self.labelled:
            where = tuple(sorted({file.parent for file in files.by_key.get(self.keys[place], ())}))
            folders.setdefault(where, Counter())[labels[place]] += 1
        usual = sum(folders.values(), Counter[str]()).most_common(1)[0][1] / len(self.labelled)
        guessed = sum(counts.most_common(1)[0][1] for counts in folders.values()) / len(self.labelled)
        return len(folders) > 1 and guessed > usual + 0.5 * (1 - usual)

    @cached_property
    def label_files(self) -> frozenset[str]:
        """The files that no view shows, since labels may be in them."""
        return label_files(self.layout)

    def split(self, *, seed: int, folds: int | None = None) -> Split:
        """The hidden rows of the views, as places among all training rows."""
        rule, column = self.rule, self.rule.column
        names = self.layout.target.names
        whole: Sequence[str] = rule.sets or [""] * self.train.count
        if column:
            whole = self.truth[names.index(column)] if column in names else self.train.column(column)
        values = [whole[place] for place in self.labelled]
        chosen = split_rows(rule, values, seed=seed, folds=folds, ahead=self._test_values())
        *views, select = (tuple(self.labelled[i] for i in rows) for rows in (*chosen.views, chosen.select))
        return Split(tuple(views), select)

    def _test_values(self) -> Sequence[str]:
        """What the test rows have in the column that the split goes by; empty where it is no date and no group."""
        if self.test is None or not self.rule.is_grouped or self.rule.column not in self.test.table.columns:
            return []
        return self.test.column(self.rule.column)

    @cached_property
    def units(self) -> Sequence[str] | None:
        """What each training row belongs to, where rows of a group or of a moment are no separate observations.

        Moments are written so that they sort as they follow each other.
        """
        if not self.rule.is_grouped:
            return None
        values = self.rule.sets or self.train.column(self.rule.column)
        if self.rule.kind != "time":
            return values
        written = {value: moment.isoformat() for value, moment in moments_in(self.rule.column, values).items()}
        return [written.get(value, "") for value in values]  # without a moment: before all others

    @cached_property
    def test_units(self) -> int:
        """How many separate observations the test holds."""
        return len(set(self._test_values())) or self.test_rows

    def real_view(self) -> View:
        """The untouched data as a view that hides nothing."""
        return View("real", self.layout.folder, (), tuple(range(self.test_rows)))

    def make_view(self, name: str, hidden: Sequence[int], target: Path, *, seed: int) -> View:
        """Write the files of a view into `target`; what it does not change is linked."""
        view = self.plan_view(name, hidden, target, seed=seed)
        self._link(view)
        self.train.write(target / self.layout.train.name, self.stays(hidden))
        self._write_labels(view)
        self.write_test_files(view)
        return view

    def stays(self, hidden: Sequence[int]) -> Any:
        """The places of the rows that a view leaves with their labels; of a series, none that come after the hidden."""
        places, units = all_but(hidden, self.train.count), self.units
        if self.rule.kind != "time" or units is None:
            return places
        last = max(units[place] for place in hidden)
        return [place for place in places if units[place] <= last]

    def share_left(self, hidden: Sequence[int]) -> float:
        """The share of the labelled rows that a view leaves."""
        return float(np.isin(self.labelled, self.stays(hidden)).mean())

    def plan_view(self, name: str, hidden: Sequence[int], target: Path, *, seed: int) -> View:
        """A view as it would be: the order and the names of its rows."""
        layout = self.layout
        is_earlier = len(hidden) + len(self.stays(hidden)) < self.train.count  # the real test lies too far ahead of it
        order = [*range(0 if is_earlier else self.test_rows), *(-1 - place for place in hidden)]
        if self.rule.kind != "time":
            random.Random(seed).shuffle(order)
        names: dict[int, str] = {}
        is_date = self.rule.kind == "time" and self.rule.column == layout.key
        if layout.key is not None and not self._key_elsewhere and not is_date:
            names = fresh_keys(self.key_numbers, self.test_keys, hidden, seed=seed, nameless=self.nameless)
        return View(name, target, tuple(hidden), tuple(order), names)

    def _write_labels(self, view: View) -> None:
        labels, key = self.labels, self.layout.labels_key
        if labels is not None and key is not None:
            named = self.train.column(key)
            gone = {*named} - {named[place] for place in self.stays(view.hidden)}
            stays = [place for place, name in enumerate(labels.column(key)) if name not in gone]
            labels.write(view.folder / labels.table.name, stays)

    def write_example(self, target: Path) -> None:
        """Write all files of a task without a test into `target`, and a few training rows as the rows to predict."""
        link_rest(self.layout.folder, target, ())
        rows = tuple(self.labelled[:EXAMPLES])
        self.write_test_files(View("example", target, rows, tuple(-1 - row for row in rows)))

    def write_shuffled(self, target: Path, source_of: Mapping[int, int]) -> None:
        """Write all files into `target`, each row with the label of another one."""
        if self.labels is not None:
            raise Unsupported("the labels lie in a table of their own")
        train, names, places = self.train, self.layout.target.names, range(self.train.count)
        labels = train.values(names, [source_of.get(place, place) for place in places])
        mixed = train.edited(places, train, changes=dict(zip(names, labels, strict=True)))
        link_rest(self.layout.folder, target, {self.layout.train.name, *self.label_files})
        train.holding(mixed).write(target / self.layout.train.name, places)

    def _link(self, view: View) -> None:
        """The files that stay as they are; those of hidden rows go to where the test rows have theirs."""
        files, hidden = self.files, [(place, self.keys[place]) for place in view.hidden if self.keys]
        own = [(file, place, key) for place, key in hidden for file in files.by_key.get(key, ())]
        left_out = {table.name for table in self.layout.roles} | {file.as_posix() for file, _, _ in own}
        link_rest(self.layout.folder, view.folder, left_out | self.label_files)
        for file, place, key in own:
            if moved := files.moved(file, key, view.names.get(place, key)):
                share(self.layout.folder / file, view.folder / moved)

    def write_test_files(self, view: View) -> None:
        """Write what a view asks for: the test file, and the sample submission."""
        self._write_test(view)
        self._write_sample(view)

    def _write_test(self, view: View) -> None:
        if self.test is None and self.test_rows:
            return  # the sample submission says which rows are asked for
        key, gone = self.layout.key, self.layout.target.names
        made, called = self.test, dict[str, list[Any]]()
        if key is not None and view.names:
            called = {key: (made or self.train).typed(key, self._called(view))}
        if made is None:
            table, columns = self.train.table, tuple(c for c in self.train.table.columns if c not in gone)
            name = name_of_test(table)
            made = no_rows(name, columns, table.form) if name == TEST_NAME else self.train.empty(name, columns)
        rows = self.train.edited(view.hidden, made, gone, called)
        made.holding(rows, behind_own=True).write(view.folder / made.table.name, self._positions(view))

    def _positions(self, view: View) -> list[int]:
        """Each row of the view's test file by its place among the real test's rows and behind them the hidden ones."""
        behind = {-1 - place: self.test_rows + number for number, place in enumerate(view.hidden)}
        return [behind.get(place, place) for place in view.order]

    def _called(self, view: View) -> list[str]:
        """What the hidden rows are called in the view."""
        return [view.names.get(row) or (self.keys[row] if self.keys else "") for row in view.hidden]

    def _write_sample(self, view: View) -> None:
        key, names, sample, hidden = self.layout.key, self.layout.target.names, self.sample, view.hidden
        like: tuple[TableRows, Sequence[int]] = self.train, hidden
        if sample is None:
            if self.test is not None:
                return  # the task has none: scripts are told in words what to submit
            answers = self.layout.answers
            sample = no_rows(SAMPLE_NAME, (*((key,) if key else ()), *answers), Form())
            usual = {name: Counter(c).most_common(1)[0][0] for name, c in zip(names, self.truth, strict=True)}
            cells = {name: [usual.get(name, f"{1 / len(answers):.4f}")] * len(hidden) for name in answers}
        else:
            shared = [c for c in sample.table.columns if c in self.train.table.columns and c not in (*names, key)]
            cells = dict(zip(shared, self.train.values(shared, hidden), strict=True))
            like = sample, [0] * len(hidden)
        if key is not None and key in sample.table.columns:
            cells[key] = sample.typed(key, self._called(view))
        rows = like[0].edited(like[1], sample, changes=cells)
        place_of: dict[int, int] = {}
        if key is not None and self.test is not None:
            where = {name: i for i, name in enumerate(sample.column(key))}
            place_of = {i: where[name] for i, name in enumerate(self.test_keys)}
        positions = [place_of.get(place, place) for place in self._positions(view)]
        sample.holding(rows, behind_own=True).write(view.folder / sample.table.name, positions)


def all_but(hidden: Sequence[int], count: int) -> Any:
    """The places of all other rows."""
    return np.delete(np.arange(count), np.asarray(hidden, np.int64))


def _truth(layout: Layout, train: TableRows, labels: TableRows | None) -> Columns:
    names = layout.target.names
    if labels is None or layout.labels_key is None:
        return tuple(map(train.column, names))
    place = {key: number for number, key in enumerate(labels.column(layout.labels_key))}
    if len(place) < labels.count:
        raise Unsupported(f"values of {layout.labels_key} occur more than once in {labels.table.name}")
    places = [place.get(key) for key in train.column(layout.labels_key)]
    return tuple(["" if p is None else cells[p] for p in places] for cells in map(labels.column, names))


def _labelled(columns: Columns) -> Sequence[int]:
    """The rows that have all of their targets."""
    rows: Sequence[int] = range(len(columns[0]))
    for column in columns:
        known = set(labels_of(list(different := set(column))))
        if len(known) < len(different):
            rows = [row for row in rows if column[row] in known]
    return rows


def _refuse(layout: Layout) -> None:
    """What views do not know how to make."""
    if not layout.target.names:
        raise Unsupported("the target is not a column")
    others = {t.form.kind for t in (layout.test, layout.labels) if t is not None and layout.labels is None}
    if others - {layout.train.form.kind}:
        raise Unsupported("training and test table are files of different kinds")
    for table in layout.roles:
        if table.form.kind in ("columns", "excel") or table.form.key:
            raise Unsupported(f"rows of {table.name} cannot be moved")
        if not table.rows:
            raise Unsupported(f"{table.name} has a header and no rows: write the rows to predict into it, or remove it")
    for other in layout.others:
        if set(layout.target.names) & set(other.columns):
            raise Unsupported(f"{other.name} holds the target, too")


def link_rest(source: Path, target: Path, changed: Collection[str]) -> None:
    """The data that stay as they are, linked by name; folders are made, so that a view holds nothing but files."""
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for name, _ in DataFolder(source).files():
        if name not in changed:
            share(source / name, target / name)
