"""Looks at a task: which table is which, what is to be predicted, what the other columns hold."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from mle_star.data import metrics as known_metrics
from mle_star.data import tables as files
from mle_star.data.columns import Column, comes_later, describe, is_apart, is_id_name, moments_beside, moments_of
from mle_star.data.layout import Layout, find_layout
from mle_star.data.rows import read_rows
from mle_star.data.survey import AUDIO_SUFFIXES, IMAGE_SUFFIXES
from mle_star.data.targets import labels_of
from mle_star.data.values import (
    PANDAS_GAPS,
    is_misread,
    is_number,
    label_order,
    letters_of,
    likely_label,
    positive_label,
)
from mle_star.engineer.recipes import RECIPES, Recipe
from mle_star.errors import ConfigError

Kind = Literal["binary", "multiclass", "regression"]

FEW_ROWS = 1_500
MANY_LEVELS = 40
NAMED_COLUMNS = 60
MOST_CLASSES = 2_000
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
    categories: list[str] = field(default_factory=list)
    many_levels: list[str] = field(default_factory=list)
    dates: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    reading: list[str] = field(default_factory=list)
    gappy: list[str] = field(default_factory=list)
    location: tuple[str, str] | None = None
    later: str = ""
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
    def metric(self) -> str:
        """The name of the metric."""
        return self.recipe.metric.name

    @property
    def small(self) -> bool:
        """Are there so few rows that simple models and many folds are in order?"""
        return self.rows < FEW_ROWS

    @property
    def few_levels(self) -> list[str]:
        """The categories of few levels."""
        return [name for name in self.categories if name not in self.many_levels]

    def suits_trees(self, many: float, *, small: float, classes: float) -> float:
        """A worth by size: with many rows, with few, with very many classes; less where texts are what matters."""
        worth = classes if self.class_count > 15 else small if self.small else many
        return worth * (0.55 if self.mostly_text else 1.0)


def recipe_for(words: str) -> Recipe:
    """The metric that a task's words mean; one that scripts here cannot compute is refused, never replaced."""
    found = known_metrics.find_metric(words)
    told = None if found is not None else known_metrics.metric_in_prose(f"Metric: {words}")
    metric = found or (told[0] if told else None) or known_metrics.known_metric(words)
    if metric.name not in RECIPES:
        raise ConfigError(f"it cannot compute {metric.name}; it knows {', '.join(RECIPES)}")
    return RECIPES[metric.name]


def refuse(metric: str, folder: Path, description: str = "") -> str:
    """Why the engineer cannot work on a task, in one line; an empty text when it can."""
    try:
        _, layout, _ = _understood(metric, folder, description)
        _check_columns(folder, layout, list(itertools.islice(_columns(layout), 2)))
    except ConfigError as error:
        count, what = media_in(folder)
        unreadable = "no training table" in str(error) or "no data found" in str(error)
        return f"it has no model for {what}" if unreadable and count else str(error)
    return ""


def look(metric: str, folder: Path, description: str, packages: tuple[str, ...]) -> Profile:
    """The profile of a task; looking twice costs nothing while the files stay the same."""
    stamps = tuple(
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )
    return _look(metric, folder, description, packages, stamps)


@lru_cache(maxsize=8)
def _look(
    metric: str, folder: Path, description: str, packages: tuple[str, ...], stamps: tuple[tuple[str, int, int], ...]
) -> Profile:
    recipe, layout, targets = _understood(metric, folder, description)
    columns = list(_columns(layout))
    _check_columns(folder, layout, columns)
    lookups = _lookups(layout)
    taken = set(layout.train.columns)
    for lookup in lookups:
        columns += _looked_up(lookup, taken)
    data = _settings(layout, columns, targets, lookups)
    later, mixed = _order_in_time(layout, data["dates"])
    numbers = [c.name for c in columns if c.kind in ("number", "messy number")]
    categories = [c.name for c in columns if c.kind == "category"]
    texts = [c for c in columns if c.kind == "text"]
    reading = [*data["texts"], *data["lists"]]
    classes = max((len(target.get("classes", [])) for target in targets), default=0)
    kind: Kind = "regression" if recipe.kind in ("number", "grade") else "binary" if classes <= 2 else "multiclass"
    long = [c for c in texts if c.words >= 8] or data["lists"]
    rows, groups = layout.train.rows, "" if later else _groups(layout, columns)
    for column in [groups] if groups and groups not in data["dates"] else []:
        categories, numbers = ([name for name in names if name != column] for names in (categories, numbers))
        data["categories"] = categories
        data["numbers"] = None if data["numbers"] is None else [n for n in data["numbers"] if n != column]
        data["ignored"].append(column)
    characters = sum(c.characters for c in texts) + 40.0 * len(data["lists"])
    words: dict[str, Any] = {}
    if reading:
        total = characters * min(rows, 40_000)
        words = {"words": 2, "pieces": 4 if total < 4e5 else 0, "bits": 18, "longest": 2000}
    return Profile(
        recipe=recipe,
        kind=kind,
        rows=rows,
        data=data,
        targets=targets,
        packages=packages or ("sklearn",),
        numbers=numbers,
        categories=categories,
        many_levels=[c.name for c in columns if c.name in categories and c.distinct > MANY_LEVELS],
        dates=data["dates"],
        texts=[c.name for c in texts],
        reading=reading,
        gappy=[c.name for c in columns if c.gaps > 0.02 and c.kind in ("number", "category")],
        location=_location(columns),
        later=later,
        mixed=mixed,
        groups=groups,
        series=_series(layout, columns) if later else "",
        mostly_text=bool(long) and len(columns) - len(reading) <= 3,
        class_count=classes if kind != "regression" else 0,
        rarest=min((target["rarest"] for target in targets if "rarest" in target), default=0),
        width=max(1, len(columns)),
        words=words,
        positive=_never_negative(layout, targets),
    )


# --- what is to be predicted -----------------------------------------------------------------------------


def _understood(metric: str, folder: Path, description: str) -> tuple[Recipe, Layout, list[dict[str, Any]]]:
    """The metric, which table is which, and the settings of every target."""
    recipe, layout = recipe_for(metric), find_layout(folder, description)
    amounts = any(len(set(labels_of(_cells(layout, target)))) > 2 for target in layout.target.names)
    if recipe.metric.name == "gini" and amounts:
        recipe = replace(recipe, kind="number")
    return recipe, layout, [_target(folder, layout, target, recipe) for target in layout.target.names]


def _table_of(layout: Layout, name: str) -> files.Table:
    """The table that holds a target."""
    table = layout.train if name in layout.train.columns else layout.labels
    assert table is not None
    return table


def _cells(layout: Layout, name: str) -> list[Any]:
    return _table_of(layout, name).sample[name]


def _all_cells(folder: Path, layout: Layout, name: str) -> list[Any]:
    """The cells of every row, also of a long table: a class that a sample lacks could not be told from another."""
    table = _table_of(layout, name)
    spelt_alike = table.form.kind == "parquet" or (table.form.kind == "csv" and table.form.dialect.decimal == ".")
    if table.whole or not spelt_alike:
        return table.sample[name]
    try:
        return read_rows(table, folder, [name]).column(name)
    except (OSError, ValueError):
        return table.sample[name]


def _target(folder: Path, layout: Layout, name: str, recipe: Recipe) -> dict[str, Any]:
    """The settings of one target: its kind, its classes in order (the one looked for last of two), its scale."""
    cells = _cells(layout, name) if recipe.kind == "number" else _all_cells(folder, layout, name)
    if any(isinstance(cell, (list, dict)) for cell in cells):
        raise ConfigError(f"the target {name!r} holds lists: give each label a column of its own")
    labels = labels_of(cells)
    if not labels:
        raise ConfigError(f"the target {name!r} has no values")
    if recipe.kind == "number":
        numbers = [float(label) for label in labels if is_number(label)]
        if len(numbers) < 0.9 * len(labels):
            raise ConfigError(f"the target {name!r} holds texts, and {recipe.metric.name} needs numbers")
        low = min(numbers)
        log = low > -1 and (recipe.log or (recipe.loss == "absolute" and low >= 0 and describe(name, labels).skew > 1))
        return {"name": name, "kind": "number", "scale": "log" if log and low >= 0 else "plain"}
    if len(labels) > 50 and all(map(is_number, labels)) and len(set(labels)) > 0.5 * len(labels):
        raise ConfigError(f"the target {name!r} holds numbers, and {recipe.metric.name} needs classes")
    counts = Counter(labels)
    classes = sorted(counts, key=label_order)
    if len(classes) > MOST_CLASSES:
        raise ConfigError(f"the target {name!r} has more than {MOST_CLASSES} classes")
    if len(classes) == 1:
        classes = [*classes, "0" if classes[0] != "0" else "1"]
    looked_for = likely_label if recipe.kind == "chances" else positive_label
    if len(classes) == 2 and recipe.kind != "grade" and looked_for(classes) == classes[0]:
        classes.reverse()
    scale = layout.train.rows / max(len(cells), 1)
    kind = "grade" if recipe.kind == "grade" else "classes"
    found: dict[str, Any] = {"name": name, "kind": kind, "classes": classes}
    return {**found, "rarest": int(scale * min(counts.values()))}


def _never_negative(layout: Layout, targets: list[dict[str, Any]]) -> bool:
    """May the logarithm or the root of the targets be learned?"""
    names = [target["name"] for target in targets if target["kind"] == "number"]
    return not any(float(cell) < 0 for name in names for cell in labels_of(_cells(layout, name)) if is_number(cell))


# --- the other columns -----------------------------------------------------------------------------------


def _columns(layout: Layout) -> Iterator[Column]:
    """The columns to learn from: those that the test rows have, too, and that say something."""
    test = layout.test
    for name in layout.train.columns:
        if name in layout.target.names or name == layout.key or (test is not None and name not in test.columns):
            continue
        column = layout.train.column(name)
        whole = column.kind == "number" and column.unique_share > 0.999 and column.counts_up
        named = is_id_name(name) and column.unique_share > 0.999 and column.kind in ("number", "category")
        if column.kind != "constant" and not whole and not (named and (column.whole or column.kind == "category")):
            yield _as_text(_as_date(column))


def _as_text(column: Column) -> Column:
    """Names and titles that hardly repeat are read word by word."""
    wordy = column.words >= 1.3 and column.distinct > 100 and column.unique_share > 0.5
    return replace(column, kind="text") if column.kind == "category" and wordy else column


def _as_date(column: Column) -> Column:
    """The column as one of dates where its values name moments, as texts or as seconds since 1970."""
    moments = {} if column.kind == "date" else moments_of(column, (value for value, _ in column.shares))
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
        raise ConfigError("the training table has no column that the test table shares and that says something")
    count, what = media_in(folder)
    if len(columns) <= 1 and count >= 0.5 * layout.train.rows:
        raise ConfigError(f"it has no model for {what}")


def _settings(
    layout: Layout, columns: list[Column], targets: list[dict[str, Any]], lookups: list[dict[str, Any]]
) -> dict[str, Any]:
    """How scripts read the data, and what each column is."""
    names = {
        kind: [c.name for c in columns if c.kind == kind]
        for kind in ("number", "messy number", "category", "text", "list")
    }
    spelt = [layout.key] if layout.key else []
    labels = [target["name"] for target in targets if target["kind"] != "number"]
    blank = sorted(
        {str(cell) for name in layout.target.names for cell in _cells(layout, name)}
        - {label for name in layout.target.names for label in labels_of(_cells(layout, name))}
    )
    data: dict[str, Any] = {
        "train": table_settings(layout.train, [*spelt, *labels]),
        "test": None if layout.test is None else table_settings(layout.test, spelt),
        "sample": None if layout.sample is None else table_settings(layout.sample, spelt),
        "id": layout.key,
        "targets": list(layout.target.names),
        "unlabelled": blank,
        "answers": _answers(layout, targets),
        "numbers": names["number"],
        "amounts": names["messy number"],
        "categories": names["category"],
        "dates": {c.name: c.date_format for c in columns if c.kind == "date"},
        "texts": names["text"],
        "lists": names["list"],
        "ignored": [],
    }
    if layout.labels is not None:
        data["labels"] = {"table": table_settings(layout.labels, [*spelt, *labels]), "on": layout.labels_key}
    if lookups:
        data["lookups"] = [{key: lookup[key] for key in ("table", "on", "many")} for lookup in lookups]
    if len(names["number"]) > NAMED_COLUMNS and not lookups:
        told = {*names["number"], *(c.name for c in columns)}
        data["ignored"] = [
            name for name in layout.train.columns if name not in told and name not in layout.target.names
        ]
        data["numbers"] = None
    return data


def table_settings(table: files.Table, spelt: list[str] | None = None) -> dict[str, Any]:
    """How a script reads a file."""
    form, options = table.form, dict[str, Any]()
    if form.kind != "csv":
        return {"file": table.name, "form": form.kind, **({"key": form.key} if form.key else {})}
    dialect = form.dialect
    if dialect.separator != ",":
        options["sep"] = dialect.separator
    if dialect.decimal != ".":
        options["decimal"] = dialect.decimal
    if dialect.thousands:
        options["thousands"] = dialect.thousands
        others = (name for name in table.columns if not table.column(name).numeric)
        dotted = [name for name in others if any(dialect.thousands in str(cell) for cell in table.sample[name])]
        if dotted:  # dates such as 31.12.2024, which pandas would take for numbers
            options["dtype"] = dict.fromkeys(dotted, "str")
    if dialect.blanks:
        options["skipinitialspace"] = True
    if form.encoding != "utf-8":
        options["encoding"] = form.encoding
    if form.odd_gaps:
        options["na_values"] = list(form.odd_gaps)
    if not form.has_header:
        options["names"] = list(table.columns)
    gaps = PANDAS_GAPS.union(form.odd_gaps)
    letters = [n for n in spelt or [] if n in table.columns and is_misread(map(str, table.sample[n]), gaps)]
    return {"file": table.name, **({"options": options} if options else {}), **({"spelt": letters} if letters else {})}


def _answers(layout: Layout, targets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns of a submission: which target each answers, and for which class where there is one for each."""
    first, prefix = targets[0]["name"], layout.target.class_prefix
    if prefix is not None:
        classes = {letters_of(label): label for label in targets[0]["classes"]}
        found = []
        for name in layout.answers:
            label = name.removeprefix(prefix)
            fitting = (
                label
                if label in targets[0]["classes"]
                else classes.get(letters_of(label))
                or classes.get(letters_of(name).removeprefix(letters_of(first)), label)
            )
            found.append({"column": name, "target": first, "class": fitting})
        return found
    names = [target["name"] for target in targets]
    if layout.sample is None:
        return [{"column": name, "target": name} for name in names]
    return [
        {"column": name, "target": name if name in names else names[min(place, len(names) - 1)]}
        for place, name in enumerate(layout.answers)
    ]


# --- other tables ----------------------------------------------------------------------------------------


def _lookups(layout: Layout) -> list[dict[str, Any]]:
    """Tables that say more about a column of the training rows, each with that column."""
    found: list[dict[str, Any]] = []
    for table in layout.others:
        shared = [c for c in table.columns if c in layout.train.columns and c not in layout.target.names]
        shared = [c for c in shared if layout.test is None or c in layout.test.columns]
        for key in shared[:3]:
            theirs, ours = set(map(str, table.sample[key])), list(map(str, layout.train.sample[key]))
            if len(shared) < len(table.columns) and sum(cell in theirs for cell in ours) > 0.3 * len(ours):
                many = len(theirs) < 0.99 * len(table.sample[key])
                found.append({"table": table_settings(table), "on": key, "many": many, "source": table})
                break
    return found[:5]


def _looked_up(lookup: dict[str, Any], taken: set[str]) -> list[Column]:
    """The columns that a table adds, as they are called in scripts; from then on their names are `taken`."""
    table, key, stem = lookup["source"], lookup["on"], Path(lookup["source"].name).stem
    found = list[Column]()
    for name in table.columns:
        if name == key:
            continue
        column = table.column(name)
        if lookup["many"] and column.kind == "number":
            found += [replace(column, name=f"{stem} {name} {what}") for what in ("mean", "most")]
        elif column.kind in ("number", "category"):
            found.append(replace(column, name=f"{stem} {name}" if name in taken else name))
    found += [Column(f"{stem} rows", "number")] if lookup["many"] else []
    taken.update(table.columns, (column.name for column in found))
    return found


# --- time, groups, places --------------------------------------------------------------------------------


def _order_in_time(layout: Layout, dates: dict[str, str]) -> tuple[str, str]:
    """The date column by which every test row comes after training, and the one by which the two are mixed."""
    for name in dates if layout.test is not None else ():
        column, sides = layout.train.column(name), _sides(layout, name)
        if comes_later(column, *sides):
            return name, ""
        old, new = moments_beside(column, *sides)
        inside = sum(old[0] <= moment <= old[-1] for moment in new) if old else 0
        if inside > 0.9 * len(new) and len(set(old)) > 0.3 * len(old):
            return "", name
    return "", ""


def _sides(layout: Layout, name: str) -> tuple[list[Any], list[Any]]:
    """The cells of a column in the training rows and in the test rows."""
    return layout.train.sample.get(name, []), layout.test.sample.get(name, []) if layout.test else []


def _groups(layout: Layout, columns: list[Column]) -> str:
    """The column whose values repeat among the training rows and never occur in the test: rows that belong together."""
    return next((column.name for column in columns if is_apart(column, *_sides(layout, column.name))), "")


def _series(layout: Layout, columns: list[Column]) -> str:
    """The column that tells series of one date column apart: the category with most levels that keep repeating."""
    fitting = [c for c in columns if c.kind == "category" and 2 <= c.distinct <= 2000 and c.count >= 8 * c.distinct]
    return max(fitting, key=lambda c: c.distinct).name if fitting else ""


def _location(columns: list[Column]) -> tuple[str, str] | None:
    """The two columns that say where on Earth a row lies, if there are any."""
    numbers = [c for c in columns if c.kind == "number" and (not c.whole or c.distinct > 50)]
    north = [c.name for c in numbers if re.search(r"(^|_)lat", c.name.lower()) and c.low >= -90 and c.high <= 90]
    east = [c.name for c in numbers if re.search(r"(^|_)(lon|lng)", c.name.lower()) and abs(c.low) <= 180]
    return (north[0], east[0]) if north and east else None
