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

from mle_star.data.columns import Column, comes_later, is_apart, is_id_name, moments_beside, moments_of
from mle_star.data.layout import AUDIO_SUFFIXES, IMAGE_SUFFIXES, Layout, find_layout, labels_of
from mle_star.engineer.parts.deciding import Recipe, recipe_for
from mle_star.engineer.settings import cells_of, data_settings, looked_up, lookups_of, never_negative, target_settings
from mle_star.errors import ConfigError

Kind = Literal["binary", "multiclass", "regression"]

FEW_ROWS = 1_500
MANY_LEVELS = 40
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
    lookups, taken = lookups_of(layout), set(layout.train.columns)
    for table, lookup in lookups:
        columns += looked_up(table, lookup, taken)
    later, mixed = _order_in_time(layout, [c.name for c in columns if c.kind == "date"])
    groups = "" if later else _groups(layout, columns)
    kept = [c for c in columns if c.name != groups or c.kind == "date"]
    data = data_settings(layout, kept, targets, [lookup for _, lookup in lookups])
    rows, reading, texts = layout.train.rows, [*data["texts"], *data["lists"]], [c for c in columns if c.kind == "text"]
    classes = max((len(target.get("classes", [])) for target in targets), default=0)
    kind: Kind = "regression" if recipe.kind in ("number", "grade") else "binary" if classes <= 2 else "multiclass"
    characters = (sum(c.characters for c in texts) + 40.0 * len(data["lists"])) * min(rows, 40_000)
    words = {"words": 2, "pieces": 4 if characters < 4e5 else 0, "bits": 18, "longest": 2000} if reading else {}
    return Profile(
        recipe=recipe,
        kind=kind,
        rows=rows,
        data=data,
        targets=targets,
        packages=packages or ("sklearn",),
        numbers=[c.name for c in kept if c.kind in ("number", "messy number")],
        categories=data["categories"],
        many_levels=[c.name for c in kept if c.kind == "category" and c.distinct > MANY_LEVELS],
        dates=data["dates"],
        texts=data["texts"],
        reading=reading,
        gappy=[c.name for c in columns if c.gaps > 0.02 and c.kind in ("number", "category")],
        location=_location(columns),
        later=later,
        mixed=mixed,
        groups=groups,
        series=_series(columns) if later else "",
        mostly_text=(bool(data["lists"]) or any(c.words >= 8 for c in texts)) and len(columns) - len(reading) <= 3,
        class_count=classes if kind != "regression" else 0,
        rarest=min((target["rarest"] for target in targets if "rarest" in target), default=0),
        width=max(1, len(columns)),
        words=words,
        positive=never_negative(layout, targets),
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


# --- time, groups, places --------------------------------------------------------------------------------


def _order_in_time(layout: Layout, dates: list[str]) -> tuple[str, str]:
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
