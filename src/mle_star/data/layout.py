"""What lies in a data folder: the role of each table, the columns to predict, what names a row, what answers hold."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, count
from pathlib import Path
from typing import Any, NamedTuple

from mle_star.data.columns import EACH_CLASS, Column, is_id_name, is_missing, is_number, label_order, letters_of, named
from mle_star.data.place import DataFolder
from mle_star.data.tables import TABLE_SUFFIXES, TEST_NAME, Form, Table, name_of_test, read_table, table_form
from mle_star.errors import ConfigError

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
AUDIO_SUFFIXES = {".wav", ".mp3", ".flac", ".ogg", ".aif", ".aiff", ".m4a"}
MAX_DEPTH = 3
MAX_TABLES = 12
LARGEST = 1e30
"""Of the numbers of a target; larger ones are no measurements, and models fail on them."""
_SUBMISSION = r"\b(samplesub|submission|submit)"
_TEST = r"\b(test|eval|unlabel)|\b(holdout|unseen)\b"
_ROLES = (
    ("answers", r"\b(answers?|solutions?|truth|groundtruth)\b"),
    ("sample", _SUBMISSION),
    ("labels", rf"^(?!.*({_TEST})).*\b(labels?|targets?|y)\b"),
    ("train", r"\btrain|\b(learn|fit)\b"),
    ("test", _TEST),
    ("sample", r"\b(sample|example)\b"),
)
"""What the words in a file's name tell of its role, the first that is found."""
TARGET_NAMES = ("target", "label", "labels", "class", "y", "outcome", "response", "output")
PAIR_NAMES = re.compile(
    r"(?i)(^|[/_-])(train|input|output|source|target|mask|label|clean|cleaned|noisy|dirty|image|low|high|before|after)s?\b"
)
"""Folders of pictures that belong together one by one; other names are classes."""
_QUOTED = re.compile(r"[`'\"]([^`'\"\n]+)[`'\"]")
_LIST = r"((?:[`'\"][^`'\"\n]+[`'\"](?:\s*(?:,|&|\band\b)\s*)*)+)"
_TARGETS = re.compile(rf"\btargets?\b(?: columns?| variables?)?(?: is| are|:)\s*{_LIST}", re.IGNORECASE)
_SETTLED = re.compile(r"^The target is (`.+`)\.$", re.MULTILINE)
_PREDICT = re.compile(rf"\bpredict\w*\b[^`'\".\n]{{0,60}}{_LIST}", re.IGNORECASE)


@dataclass
class Survey:
    """The roles that the files of a data folder play; `others` are the tables without one."""

    folder: Path
    train: Table | None = None
    test: Table | None = None
    sample: Table | None = None
    labels: Table | None = None
    others: list[Table] = field(default_factory=list)
    images: dict[str, set[str]] = field(default_factory=dict)  # folder, relative to the data: names of its pictures
    audio: int = 0
    prose: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def tables_of_labels(self) -> list[Table]:
        """The tables that may hold the target."""
        return [table for table in (self.labels, self.train) if table is not None]

    @property
    def features(self) -> set[str]:
        """The columns of the test that hold anything: one that is empty there may be what is to be predicted."""
        test = self.test
        return {c for c in test.columns if not test.rows or any(map(str, test.sample[c]))} if test else set()

    @property
    def roles(self) -> list[Table]:
        """The tables that rows to learn from and to predict lie in."""
        return [table for table in (self.train, self.labels, self.test, self.sample) if table is not None]


class Target(NamedTuple):
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
        return [self.table.column(name, labels_of) for name in self.names] if self.table else []


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
    def test_file(self) -> tuple[str, Form]:
        """What the test file is called and how it is written; where there is none, as views make one."""
        if self.test is not None:
            return self.test.name, self.test.form
        name = name_of_test(self.train)
        return name, self.train.form if self.train.form.kind == "csv" or name != TEST_NAME else Form()


def survey(folder: Path) -> Survey:
    """Look at the files of a data folder and tell their roles."""
    found, tables = Survey(folder), dict[str, int]()
    for file, status in DataFolder(folder).files():
        name = Path(file)
        suffix = name.suffix.lower()
        if len(name.parts) > MAX_DEPTH or any(part.startswith(".") for part in name.parts):
            continue
        if suffix in IMAGE_SUFFIXES:
            found.images.setdefault(name.parent.as_posix(), set()).add(name.name)
        elif suffix in AUDIO_SUFFIXES:
            found.audio += 1
        elif table_form(name) is not None:
            tables[file] = status.st_size
    _read_tables(found, tables)
    found.prose = list(_prose(folder))
    if not found.roles and not found.others and not found.images and not found.audio:
        why = "; ".join(found.notes[:3])
        what = f"no data found that can be read: {why}" if why else f"{folder}: no data found"
        raise ConfigError(f"{what}; data are tables ({', '.join(TABLE_SUFFIXES)}), images or audio files")
    return found


def _prose(folder: Path) -> Iterator[tuple[str, str]]:
    """Texts that may name the metric: beside the data, or one folder up when the data is its `input`."""
    for place in (folder, folder.parent) if folder.name == "input" else (folder,):
        for path in sorted(place.iterdir()):
            telling = re.match(r"(description|readme|overview|evaluation|about|task)", path.stem, re.IGNORECASE)
            if telling and path.suffix.lower() in (".md", ".txt", ".rst") and path.is_file():
                with path.open("rb") as stream:
                    yield path.name, stream.read(200_000).decode("utf-8", "replace")


# --- roles -------------------------------------------------------------------------------------------------------


def _read_tables(found: Survey, sizes: dict[str, int]) -> None:
    """Read the telling tables, those at the top first, and of each role the largest."""
    by_size = sorted(sizes, key=lambda name: (name.count("/"), -sizes[name], Path(name).name))
    turns: defaultdict[str, count[int]] = defaultdict(count)
    turn = {name: next(turns[_role(name)]) for name in by_size}
    ranked = sorted(by_size, key=lambda name: (name.count("/"), _role(name) == "other", turn[name]))
    tables: list[tuple[str, Table]] = []
    for name in ranked[:MAX_TABLES]:
        if _role(name) == "answers":
            found.notes.append(f"{Path(name).name} looks like the answers: keep it out of the data folder")
            continue
        table = read_table(found.folder / name, name)
        if isinstance(table, str):
            found.notes.append(table)
        elif table.columns:
            tables.append((_role(name), table))
    known = {column for _, table in tables if table.form.has_header for column in table.columns}
    tables = [(role, _with_header(table, known)) for role, table in tables]
    found.notes += [note for _, table in tables for note in table.notes]
    if len(ranked) > MAX_TABLES:
        found.notes.append(f"{len(ranked)} tables: only the {MAX_TABLES} most telling ones were looked at")
    _give_roles(found, tables, is_named=any(_role(name) == "train" for name in sizes))
    if len(sizes) == 1 and found.train is None:
        found.train, found.sample = found.sample, None


def _with_header(table: Table, known: Collection[str]) -> Table:
    """The table; its first row is the header where all of it names columns of others, which may be numbers."""
    first = tuple(str(cells[0]) for cells in table.sample.values() if cells)
    if table.form.has_header or not first or not {*first} <= {*known}:
        return table
    sample = {name: cells[1:] for name, cells in zip(first, table.sample.values(), strict=True)}
    form, rows = table.form._replace(has_header=True), table.rows - 1
    return replace(table, columns=first, sample=sample, form=form, rows=rows, notes=table.notes[:-1], _described={})


def _give_roles(found: Survey, tables: list[tuple[str, Table]], *, is_named: bool) -> None:
    """`is_named`: a file is called a training table, even if it cannot be read."""
    by_role: defaultdict[str, list[Table]] = defaultdict(list)
    top = min((table.name.count("/") for _, table in tables), default=0)
    for role, table in tables:
        if table.name.count("/") == top:  # copies and extras lie in sub-folders
            by_role[role].append(table)
    by_role["sample"] = samples_among(by_role["sample"])
    found.sample, found.test, found.train, found.labels = (
        next(iter(by_role[role]), None) for role in ("sample", "test", "train", "labels")
    )
    others = by_role["other"]
    if found.train is None and others:
        found.train = _training_table(found, others)
    elif found.train is not None and found.test is None:
        found.test = next((table for table in others if _lacks_targets(table, found.train)), None)
    if found.train is None and found.labels is not None:
        found.train, found.labels = found.labels, None
    if found.train is None and found.sample is None and found.test is not None and not is_named:
        found.train, found.test = found.test, None  # a lone table is what there is to learn from
    found.others = [table for _, table in tables if not any(table is other for other in found.roles)]


def samples_among(tables: Iterable[Table]) -> list[Table]:
    """Those that may be the sample submission: all whose name says so, else all that are called a sample."""
    samples = [table for table in tables if _role(table.name) == "sample"]
    return [table for table in samples if re.search(_SUBMISSION, _words(table.name))] or samples


def _training_table(found: Survey, others: list[Table]) -> Table:
    """Of tables without a telling name: the one that has all columns of another and more, else the largest."""
    for table in others:
        for other in [found.test] if found.test else others:
            if table is not other and _lacks_targets(other, table):
                if found.test is None:
                    found.test = other
                return table
    return others[0]


def _lacks_targets(test: Table, train: Table) -> bool:
    """Has `train` every column of `test`, and a few more?"""
    return set(test.columns) < set(train.columns) and len(train.columns) <= len(test.columns) + 10


def _role(name: str) -> str:
    """The role that a file's name tells."""
    return next((role for role, pattern in _ROLES if re.search(pattern, _words(name))), "other")


def _words(name: str) -> str:
    """The words in the name of a file and of its folders, without suffixes."""
    folders, _, file = name.lower().rpartition("/")
    return " ".join(re.findall(r"[a-z]+", f"{folders}/{file.split('.')[0]}"))


# --- the layout --------------------------------------------------------------------------------------------------


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
    is_column = len(target.names) != 1 or (found.sample is not None and target.names[0] in found.sample.columns)
    if EACH_CLASS in description and not is_column:
        target = target._replace(class_prefix=target.class_prefix or "")
    key = _key(found.train, found, target)
    answers = _answers(found.sample, target, key)
    return Layout(**vars(found), labels_key=labels_key, target=target, key=key, answers=answers)


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
        what = f"{labels.name} holds the labels of {train.name} and shares no key with it"
        raise ConfigError(f"{what}: put both into one table, or give both an id")
    return None


def _key(train: Table, found: Survey, target: Target) -> str | None:
    """The column that names a row: one that sample and test share and that never repeats, else one called so."""
    test, sample = found.test, found.sample
    if sample is not None and test is not None:
        shared = [column for column in sample.columns if column in test.columns]
        if len(shared) > 1 and len(shared) == len(test.columns):
            return None  # the submission repeats the whole test table: rows are told by their position
        if unique := [c for c in shared if len(set(map(str, test.sample[c]))) == len(test.sample[c])]:
            return unique[0]
        if sample.columns[0] in shared:
            return sample.columns[0]
    named = (train.column(name) for name in train.columns if is_id_name(name) and name not in target.names)
    return next((c.name for c in named if c.kind != "list" and c.distinct == len(train.sample[c.name])), None)


def _answers(sample: Table | None, target: Target, key: str | None) -> tuple[str, ...]:
    if sample is None and target.class_prefix is not None and target.table is not None:
        return tuple(sorted({*labels_of(target.table.sample[target.names[0]])}, key=label_order))
    if sample is None or set(target.names) <= set(sample.columns):
        return target.names
    return tuple(c for n, c in enumerate(sample.columns) if c != key and not (n == 0 and is_id_name(c)))


# --- what is to be predicted -------------------------------------------------------------------------------------


def labels_of(cells: list[Any]) -> list[str]:
    """The cells of a target without its gaps. Among labels only an empty cell is a gap: `none` may be one of them."""
    filled = [str(cell) for cell in cells if str(cell)]
    known = [cell for cell in filled if not is_missing(cell)]
    return known if known and all(map(is_number, known)) else filled


def refuse_huge(name: str, cells: list[Any]) -> None:
    """`ConfigError` where a number is too large to be learned, or infinite: its errors could not be squared."""
    huge = next((cell for cell in labels_of(cells) if is_number(cell) and not abs(float(cell)) <= LARGEST), None)
    if huge is not None:
        rest = "write its true value, or leave it empty: rows without a target are left out"
        raise ConfigError(f"the target {name!r} holds {huge}, which is too large a number to be learned; {rest}")


def with_target(found: Survey | None, description: str, names: Collection[str]) -> str:
    """The description; where it does not name the target, or leads to another, with the sentence that settles it."""
    tables = [] if found is None else found.tables_of_labels
    if found is not None and tables and set(guess_target(found, description).names) != set(names):
        in_sample = next((target for table in tables if (target := _target_in_sample(found, table))), None)
        if in_sample is not None and found.sample is not None:
            sample, others = found.sample.name, named(in_sample.names)
            what = f"the target is to be {named(names)}, but {sample} asks for {others}"
            raise ConfigError(f"{what}: correct the target, or remove {sample}")
    elif all(named([name]) in description for name in names):
        return description
    return f"{description}\n\nThe target is {named(names)}."


def guess_target(found: Survey, description: str = "") -> Target:
    """What the description settles, else the likeliest: by sample submission, by prose, by what test lacks, by name."""
    if found.train is None:
        return _target_of_folders(found)
    tables = found.tables_of_labels
    guesses = chain(
        (_target_as_settled(found, table, description) for table in tables),
        (_target_in_sample(found, table) for table in tables),
        (_target_as_class_columns(found, table) for table in tables),
        (_target_in_prose(found, t, description) or _target_missing_in_test(found, t) for t in tables),
    )
    return next(filter(None, guesses), None) or _target_by_name(tables[0])


def _target_as_settled(found: Survey, table: Table, description: str) -> Target | None:
    """The columns in the last sentence that says nothing but what the target is."""
    listed = (_SETTLED.findall(description) or [""])[-1]
    places = {column: listed.find(named([column])) for column in table.columns}
    names = sorted((column for column in table.columns if places[column] >= 0), key=lambda column: places[column])
    if not names or named(names) != listed:
        return None
    one_for_each_class = _target_as_class_columns(found, table, names) if len(names) == 1 else None
    return one_for_each_class or Target(tuple(names), table, "The description says so.")


def _target_in_sample(found: Survey, table: Table) -> Target | None:
    """The columns that a submission has and the test data lack."""
    if found.sample is None:
        return None
    features = found.features if found.test else {found.sample.columns[0]}
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
    absent = [c for c in table.columns if found.test is None or c not in found.test.columns]
    for column in among or [*absent, *(c for c in table.columns if c not in absent)]:
        answers = found.sample.columns[found.sample.columns[0] not in table.sample[column] :]  # the key is no class
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
    named = [c for c in table.columns if c not in found.features and not table.column(c).names_rows]
    for names in (*reversed(_TARGETS.findall(description)), *_PREDICT.findall(description)):
        quoted_names = tuple(dict.fromkeys(name for name in _QUOTED.findall(names) if name in named))
        if quoted_names:
            return Target(quoted_names, table, "The description asks for it.")
    columns = [c for c in named if found.test is None or c not in found.test.columns]
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
    known = f"{len(missing)} columns of {table.name}: {', '.join(missing[:8])}"
    return Target((best,), table, f"{found.test.name} lacks {known}. Look at this.")


def _target_by_name(table: Table) -> Target:
    candidates = [c for c in table.columns if not table.column(c).names_rows] or list(table.columns)
    for column in candidates:
        if letters_of(column) in TARGET_NAMES or re.search(r"(?i)^(target|label)[_ ]|[_ ](target|label)$", column):
            return Target((column,), table, f"The name of a column of {table.name} says so.")
    return Target((candidates[-1],), table, f"The last column of {table.name}, no clearer hint found. Look at this.")


def _target_of_folders(found: Survey) -> Target:
    """Without a training table: pictures sorted into a folder per class, or pairs of pictures."""
    folders = [folder for folder in found.images if not re.search(r"(?i)\btest", folder)]
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
    what = "add a table of the targets (such as train.csv with the columns id and label)"
    why = f" ({'; '.join(found.notes[:3])})" if found.notes else ""
    raise ConfigError(f"{found.folder}: no training table found{why}, so the target is unknown; {what}")
