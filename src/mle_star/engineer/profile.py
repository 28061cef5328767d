"""Looks at a task: which table is which, what is to be predicted, what the columns hold; and how scripts read it."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from mle_star.data import columns as known
from mle_star.data.columns import Column, is_number
from mle_star.data.layout import AUDIO_SUFFIXES, IMAGE_SUFFIXES, Layout, find_layout, labels_of, refuse_huge
from mle_star.data.place import DataFolder
from mle_star.data.rows import read_rows
from mle_star.data.tables import Table
from mle_star.engineer.parts.deciding import Recipe, recipe_for
from mle_star.errors import ConfigError

Kind = Literal["binary", "multiclass", "regression"]

FEW_ROWS = 1_500
MANY_LEVELS = 40
NAMED_COLUMNS = 60
MOST_CLASSES = 2_000
_COLUMNS = {"numbers": "number", "amounts": "messy number", "categories": "category", "texts": "text", "lists": "list"}
LIBRARIES = {"scikit-learn": "sklearn", "xgboost-cpu": "xgboost"}


@dataclass(frozen=True)
class Profile:
    """All that choices need to know about a task; `data` and `targets` are the settings of its scripts."""

    recipe: Recipe
    kind: Kind
    rows: int
    data: dict[str, Any]
    targets: list[dict[str, Any]]
    packages: tuple[str, ...]
    numbers: list[str] = field(default_factory=list)
    many_levels: list[str] = field(default_factory=list)
    reading: list[str] = field(default_factory=list)
    gappy: list[str] = field(default_factory=list)
    location: tuple[str, str] | None = None
    later: str = ""
    ahead: int = 0  # so many days after the training rows the test rows end
    mixed: str = ""
    groups: str = ""
    series: str = ""
    mostly_text: bool = False
    class_count: int = 0
    rarest: int = 0
    width: int = 1
    words: dict[str, Any] = field(default_factory=dict)
    positive: bool = True

    @property
    def small(self) -> bool:
        """Are there so few rows that simple models and many folds are in order?"""
        return self.rows < FEW_ROWS

    def suits_trees(self, many: float, *, small: float, classes: float) -> float:
        """A worth by size: with many rows, with few, with very many classes; less where texts are what matters."""
        worth = classes if self.class_count > 15 else small if self.small else many
        return worth * (0.55 if self.mostly_text else 1.0)


def refuse(metric: str, folder: Path, description: str = "") -> str:
    """Why the engineer cannot work on a task, in one line; an empty text when it can."""
    try:
        _, layout, _ = _understood(metric, folder, description)
        _check_columns(folder, layout, list(itertools.islice(_columns(layout), 2)))
    except ConfigError as error:
        count, what = media_in(folder)
        unreadable = "no training table" in str(error) or "no data found" in str(error)
        return f"they have no model for {what}" if unreadable and count else str(error)
    return ""


def look(metric: str, folder: Path, description: str, packages: tuple[str, ...]) -> Profile:
    """The profile of a task; looking twice costs nothing while the files stay the same."""
    return _look(metric, folder, description, packages, tuple(file for file, _, _ in DataFolder(folder).stamp()))


@lru_cache(maxsize=8)
def _look(metric: str, folder: Path, description: str, packages: tuple[str, ...], files: tuple[Any, ...]) -> Profile:
    recipe, layout, targets = _understood(metric, folder, description)
    columns = list(_columns(layout))
    _check_columns(folder, layout, columns)
    lookups, taken = lookups_of(layout), set(layout.train.columns)
    for table, lookup in lookups:
        columns += looked_up(table, lookup, taken)
    order = _order_in_time(layout, [c.name for c in columns if c.kind == "date"])
    apart = (c.name for c in columns if known.is_apart(c, *_sides(layout, c.name)))  # rows that belong together
    groups = "" if "later" in order else next(apart, "")
    kept = [c for c in columns if c.name != groups or c.kind == "date"]
    data = data_settings(layout, kept, targets, [lookup for _, lookup in lookups])
    rows, reading, texts = layout.train.rows, [*data["texts"], *data["lists"]], [c for c in columns if c.kind == "text"]
    classes = max((len(target.get("classes", [])) for target in targets), default=0)
    kind: Kind = "regression" if recipe.kind in ("number", "grade") else "binary" if classes <= 2 else "multiclass"
    characters = (sum(c.characters for c in texts) + 40.0 * len(data["lists"])) * min(rows, 40_000)
    return Profile(
        recipe=recipe,
        kind=kind,
        rows=rows,
        data=data,
        targets=targets,
        packages=packages or ("sklearn",),
        numbers=[c.name for c in kept if c.kind in ("number", "messy number")],
        many_levels=[c.name for c in kept if c.kind == "category" and c.distinct > MANY_LEVELS],
        reading=reading,
        gappy=[c.name for c in columns if c.missing > 0.02 and c.kind in ("number", "category")],
        location=_location(columns),
        groups=groups,
        series=_series(columns) if "later" in order else "",
        mostly_text=(bool(data["lists"]) or any(c.words >= 8 for c in texts)) and len(columns) - len(reading) <= 3,
        class_count=classes if kind != "regression" else 0,
        rarest=min((target["rarest"] for target in targets if "rarest" in target), default=0),
        width=max(1, len(columns)),
        words={"words": 2, "pieces": 4 if characters < 4e5 else 0, "bits": 18, "longest": 2000} if reading else {},
        positive=never_negative(layout, targets),
        **order,
    )


def _understood(metric: str, folder: Path, description: str) -> tuple[Recipe, Layout, list[dict[str, Any]]]:
    """The metric, which table is which, and the settings of every target."""
    recipe, layout = recipe_for(metric), find_layout(folder, description)
    amounts = any(len(set(labels_of(cells_of(layout, target)))) > 2 for target in layout.target.names)
    if recipe.metric.name == "gini" and amounts:
        recipe = replace(recipe, kind="number")
    return recipe, layout, [target_settings(folder, layout, target, recipe) for target in layout.target.names]


# --- the columns -----------------------------------------------------------------------------------------


def _columns(layout: Layout) -> Iterator[Column]:
    """The columns to learn from: those that the test rows have, too, and that say something."""
    test = layout.test
    for name in layout.train.columns:
        if name in layout.target.names or name == layout.key or (test is not None and name not in test.columns):
            continue
        column = layout.train.column(name)
        whole = column.kind == "number" and column.unique_share > 0.999 and column.counts_up
        named = known.is_id_name(name) and column.unique_share > 0.999 and column.kind in ("number", "category")
        if column.kind != "constant" and not whole and not (named and (column.whole or column.kind == "category")):
            yield _as_text(_as_date(column))


def _as_text(column: Column) -> Column:
    """Names and titles that hardly repeat are read word by word."""
    wordy = column.words >= 1.3 and column.distinct > 100 and column.unique_share > 0.5
    return replace(column, kind="text") if column.kind == "category" and wordy else column


def _as_date(column: Column) -> Column:
    """The column as one of dates where its values name moments, as texts or as seconds since 1970."""
    moments = {} if column.kind == "date" else known.moments_of(column, (value for value, _ in column.shares))
    if not moments:
        return column
    form = "seconds" if "number" in column.kind else "mixed"
    readable = form == "mixed" or 6e8 < float(next(iter(moments))) < 4e9  # thousandths and years stay numbers
    return replace(column, kind="date", date_format=form) if readable else column


def media_in(folder: Path) -> tuple[int, str]:
    """How many pictures or sounds lie in a folder, and what they are."""
    suffixes = Counter(path.suffix.lower() for path in itertools.islice(folder.rglob("*"), 20_000))
    pictures, sounds = (sum(suffixes[s] for s in known) for known in (IMAGE_SUFFIXES, AUDIO_SUFFIXES))
    return max((pictures, "pictures"), (sounds, "sound"))


def _check_columns(folder: Path, layout: Layout, columns: list[Column]) -> None:
    """Refuse tables with nothing to learn from, and those that only name pictures or sounds."""
    if not columns:
        raise ConfigError("no column to learn from: each is an id, constant or empty, or missing in the test table")
    count, what = media_in(folder)
    if len(columns) <= 1 and count >= 0.5 * layout.train.rows:
        raise ConfigError(f"they have no model for {what}")


# --- time, groups, places --------------------------------------------------------------------------------


def _order_in_time(layout: Layout, dates: list[str]) -> dict[str, Any]:
    """The date column by which every test row comes after training, with the days ahead, or by which both are mixed."""
    for name in dates if layout.test is not None else ():
        column, sides = layout.train.column(name), _sides(layout, name)
        old, new = known.moments_beside(column, *sides)
        if known.comes_later(column, *sides):
            return {"later": name, "ahead": (max(new).date() - max(old).date()).days}
        inside = sum(old[0] <= moment <= old[-1] for moment in new) if old else 0
        if inside > 0.9 * len(new) and len(set(old)) > 0.3 * len(old):
            return {"mixed": name}
    return {}


def _sides(layout: Layout, name: str) -> tuple[list[Any], list[Any]]:
    """The cells of a column in the training rows and in the test rows."""
    return layout.train.sample.get(name, []), layout.test.sample.get(name, []) if layout.test else []


def _series(columns: list[Column]) -> str:
    """The column that tells series of one date column apart: the category with most levels that keep repeating."""
    fitting = [c for c in columns if c.kind == "category" and 2 <= c.distinct <= 2000 and c.count >= 8 * c.distinct]
    return max(fitting, key=lambda c: c.distinct).name if fitting else ""


def _location(columns: list[Column]) -> tuple[str, str] | None:
    """The two columns that say where on Earth a row lies, if there are any."""
    numbers = [c for c in columns if c.kind == "number" and (not c.whole or c.distinct > 50)]
    north = [c.name for c in numbers if re.search(r"(^|_)lat", c.name.lower()) and c.low >= -90 and c.high <= 90]
    east = [c.name for c in numbers if re.search(r"(^|_)(lon|lng)", c.name.lower()) and abs(c.low) <= 180]
    return (north[0], east[0]) if north and east else None


# --- targets ---------------------------------------------------------------------------------------------


def _table_of(layout: Layout, name: str) -> Table:
    """The table that holds a target."""
    return layout.train if layout.labels is None or name in layout.train.columns else layout.labels


def cells_of(layout: Layout, name: str) -> list[Any]:
    """What a target holds, as far as its table was looked at."""
    return _table_of(layout, name).sample[name]


def _all_cells(folder: Path, layout: Layout, name: str) -> list[Any]:
    """The cells of every row, also of a long table: a class that a sample lacks could not be told from another."""
    table = _table_of(layout, name)
    spelt_alike = table.form.kind == "parquet" or (table.form.kind == "csv" and table.form.decimal == ".")
    with suppress(OSError, ValueError):
        if spelt_alike and not table.whole:
            return read_rows(table, folder, [name]).column(name)
    return table.sample[name]


def target_settings(folder: Path, layout: Layout, name: str, recipe: Recipe) -> dict[str, Any]:
    """The settings of one target: its kind, its classes in order (the one looked for last of two), its scale."""
    cells = cells_of(layout, name) if recipe.kind == "number" else _all_cells(folder, layout, name)
    if any(isinstance(cell, (list, dict)) for cell in cells):
        raise ConfigError(f"the target {name!r} holds lists: give each label a column of its own")
    if not (labels := labels_of(cells)):
        raise ConfigError(f"the target {name!r} has no values")
    if recipe.kind == "number":
        numbers = [float(label) for label in labels if is_number(label)]
        if len(numbers) < 0.9 * len(labels):
            raise ConfigError(f"the target {name!r} holds texts, and {recipe.metric.name} needs numbers")
        refuse_huge(name, cells)
        long = recipe.log or (recipe.loss == "absolute" and known.describe(name, labels).skew > 1)
        return {"name": name, "kind": "number", "scale": "log" if min(numbers) >= 0 and long else "plain"}
    if len(labels) > 50 and all(map(is_number, labels)) and len(set(labels)) > 0.5 * len(labels):
        raise ConfigError(f"the target {name!r} holds numbers, and {recipe.metric.name} needs classes")
    counts = Counter(labels)
    classes = sorted(counts, key=known.label_order)
    if len(classes) > MOST_CLASSES:
        raise ConfigError(f"the target {name!r} has more than {MOST_CLASSES} classes")
    if len(classes) == 1:
        classes = [*classes, "0" if classes[0] != "0" else "1"]
    looked_for = known.likely_label if recipe.kind == "chances" else known.positive_label
    if len(classes) == 2 and recipe.kind != "grade" and looked_for(classes) == classes[0]:
        classes.reverse()
    scale = layout.train.rows / max(len(cells), 1)
    kind = "grade" if recipe.kind == "grade" else "classes"
    return {"name": name, "kind": kind, "classes": classes, "rarest": int(scale * min(counts.values()))}


def never_negative(layout: Layout, targets: list[dict[str, Any]]) -> bool:
    """May the logarithm or the root of the targets be learned?"""
    names = [target["name"] for target in targets if target["kind"] == "number"]
    return not any(float(cell) < 0 for name in names for cell in labels_of(cells_of(layout, name)) if is_number(cell))


# --- tables and columns ----------------------------------------------------------------------------------


def data_settings(
    layout: Layout, columns: list[Column], targets: list[dict[str, Any]], lookups: list[dict[str, Any]]
) -> dict[str, Any]:
    """How scripts read the data, and what each column is."""
    spelt = [layout.key] if layout.key else []
    labels = [target["name"] for target in targets if target["kind"] != "number"]
    cells = [cells_of(layout, name) for name in layout.target.names]
    blank = {str(cell) for each in cells for cell in each} - {label for each in cells for label in labels_of(each)}
    data: dict[str, Any] = {
        "train": table_settings(layout.train, [*spelt, *labels]),
        "test": None if layout.test is None else table_settings(layout.test, spelt),
        "sample": None if layout.sample is None else table_settings(layout.sample, spelt),
        "id": layout.key,
        "targets": list(layout.target.names),
        "unlabelled": sorted(blank),
        "answers": _answers(layout, targets),
        **{key: [c.name for c in columns if c.kind == kind] for key, kind in _COLUMNS.items()},
        "dates": {c.name: c.date_format for c in columns if c.kind == "date"},
        "ignored": [],
    }
    if layout.labels is not None:
        data["labels"] = {"table": table_settings(layout.labels, [*spelt, *labels]), "on": layout.labels_key}
    if lookups:
        data["lookups"] = lookups
    if len(data["numbers"]) > NAMED_COLUMNS and not lookups:
        used = {*layout.target.names, *(c.name for c in columns)}
        data["ignored"] = [name for name in layout.train.columns if name not in used]
        data["numbers"] = None
    return data


def table_settings(table: Table, spelt: list[str] | None = None) -> dict[str, Any]:
    """How a script reads a file."""
    form = table.form
    missing = known.PANDAS_MISSING.union(form.odd_missing)
    letters = [n for n in spelt or [] if n in table.columns and known.is_misread(map(str, table.sample[n]), missing)]
    by_letters = {"spelt": letters} if letters else {}
    if form.kind != "csv":
        return {"file": table.name, "form": form.kind, **({"key": form.key} if form.key else {}), **by_letters}
    # dates such as 31.12.2024, which pandas would take for numbers
    others = (name for name in table.columns if form.thousands and not table.column(name).numeric)
    dotted = [name for name in others if any(form.thousands in str(cell) for cell in table.sample[name])]
    options = {
        "sep": form.separator if form.separator != "," else None,
        "decimal": form.decimal if form.decimal != "." else None,
        "thousands": form.thousands,
        "dtype": dict.fromkeys(dotted, "str"),
        "skipinitialspace": bool(form.blanks),
        "encoding": form.encoding if form.encoding != "utf-8" else None,
        "na_values": list(form.odd_missing),
        "names": [] if form.has_header else list(table.columns),
    }
    options = {name: value for name, value in options.items() if value}
    return {"file": table.name, **({"options": options} if options else {}), **by_letters}


def _answers(layout: Layout, targets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns of a submission: which target each answers, and for which class where there is one for each."""
    first, prefix = targets[0]["name"], layout.target.class_prefix
    if prefix is not None:
        classes = {known.letters_of(label): label for label in targets[0]["classes"]}
        found = []
        for name in layout.answers:
            label = name.removeprefix(prefix)
            if label not in targets[0]["classes"]:
                bare = known.letters_of(name).removeprefix(known.letters_of(first))
                label = classes.get(known.letters_of(label)) or classes.get(bare, label)
            found.append({"column": name, "target": first, "class": label})
        return found
    names = [target["name"] for target in targets]
    answers = names if layout.sample is None else layout.answers
    own = (name if name in names else names[min(place, len(names) - 1)] for place, name in enumerate(answers))
    return [{"column": name, "target": target} for name, target in zip(answers, own, strict=True)]


# --- other tables ----------------------------------------------------------------------------------------


def lookups_of(layout: Layout) -> list[tuple[Table, dict[str, Any]]]:
    """Tables that say more about a column of the training rows, and how scripts look them up by it."""
    found: list[tuple[Table, dict[str, Any]]] = []
    for table in layout.others:
        shared = [c for c in table.columns if c in layout.train.columns and c not in layout.target.names]
        shared = [c for c in shared if layout.test is None or c in layout.test.columns]
        for key in shared[:3]:
            theirs, ours = set(map(str, table.sample[key])), list(map(str, layout.train.sample[key]))
            if len(shared) < len(table.columns) and sum(cell in theirs for cell in ours) > 0.3 * len(ours):
                many = len(theirs) < 0.99 * len(table.sample[key])
                found.append((table, {"table": table_settings(table), "on": key, "many": many}))
                break
    return found[:5]


def looked_up(table: Table, lookup: dict[str, Any], taken: set[str]) -> list[Column]:
    """The columns that a table adds, as they are called in scripts; from then on their names are `taken`."""
    stem, found = Path(table.name).stem, list[Column]()
    for column in (table.column(name) for name in table.columns if name != lookup["on"]):
        if lookup["many"] and column.kind == "number":
            found += [replace(column, name=f"{stem} {column.name} {what}") for what in ("mean", "most")]
        elif column.kind in ("number", "category"):
            found.append(replace(column, name=f"{stem} {column.name}") if column.name in taken else column)
    found += [Column(f"{stem} rows", "number")] if lookup["many"] else []
    taken.update(table.columns, (column.name for column in found))
    return found
