"""How scripts read a task: the settings of its tables, columns, targets and answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from mle_star.data import columns as known
from mle_star.data import tables as files
from mle_star.data.columns import Column, is_number
from mle_star.data.layout import Layout, labels_of
from mle_star.data.rows import read_rows
from mle_star.engineer.parts.deciding import Recipe
from mle_star.errors import ConfigError

NAMED_COLUMNS = 60
MOST_CLASSES = 2_000

# --- targets ---------------------------------------------------------------------------------------------


def _table_of(layout: Layout, name: str) -> files.Table:
    """The table that holds a target."""
    table = layout.train if name in layout.train.columns else layout.labels
    assert table is not None
    return table


def cells_of(layout: Layout, name: str) -> list[Any]:
    """What a target holds, as far as its table was looked at."""
    return _table_of(layout, name).sample[name]


def _all_cells(folder: Path, layout: Layout, name: str) -> list[Any]:
    """The cells of every row, also of a long table: a class that a sample lacks could not be told from another."""
    table = _table_of(layout, name)
    spelt_alike = table.form.kind == "parquet" or (table.form.kind == "csv" and table.form.decimal == ".")
    if table.whole or not spelt_alike:
        return table.sample[name]
    try:
        return read_rows(table, folder, [name]).column(name)
    except (OSError, ValueError):
        return table.sample[name]


def target_settings(folder: Path, layout: Layout, name: str, recipe: Recipe) -> dict[str, Any]:
    """The settings of one target: its kind, its classes in order (the one looked for last of two), its scale."""
    cells = cells_of(layout, name) if recipe.kind == "number" else _all_cells(folder, layout, name)
    if any(isinstance(cell, (list, dict)) for cell in cells):
        raise ConfigError(f"the target {name!r} holds lists: give each label a column of its own")
    labels = labels_of(cells)
    if not labels:
        raise ConfigError(f"the target {name!r} has no values")
    if recipe.kind == "number":
        numbers = [float(label) for label in labels if is_number(label)]
        if len(numbers) < 0.9 * len(labels):
            raise ConfigError(f"the target {name!r} holds texts, and {recipe.metric.name} needs numbers")
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
    kinds = ("number", "messy number", "category", "text", "list")
    names = {kind: [c.name for c in columns if c.kind == kind] for kind in kinds}
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
        data["lookups"] = lookups
    if len(names["number"]) > NAMED_COLUMNS and not lookups:
        used = {*layout.target.names, *(c.name for c in columns)}
        data["ignored"] = [name for name in layout.train.columns if name not in used]
        data["numbers"] = None
    return data


def table_settings(table: files.Table, spelt: list[str] | None = None) -> dict[str, Any]:
    """How a script reads a file."""
    form = table.form
    if form.kind != "csv":
        return {"file": table.name, "form": form.kind, **({"key": form.key} if form.key else {})}
    dotted = list[str]()
    if form.thousands:  # dates such as 31.12.2024, which pandas would take for numbers
        others = (name for name in table.columns if not table.column(name).numeric)
        dotted = [name for name in others if any(form.thousands in str(cell) for cell in table.sample[name])]
    options = {
        "sep": form.separator if form.separator != "," else None,
        "decimal": form.decimal if form.decimal != "." else None,
        "thousands": form.thousands,
        "dtype": dict.fromkeys(dotted, "str"),
        "skipinitialspace": bool(form.blanks),
        "encoding": form.encoding if form.encoding != "utf-8" else None,
        "na_values": list(form.odd_gaps),
        "names": [] if form.has_header else list(table.columns),
    }
    options = {name: value for name, value in options.items() if value}
    gaps = known.PANDAS_GAPS.union(form.odd_gaps)
    letters = [n for n in spelt or [] if n in table.columns and known.is_misread(map(str, table.sample[n]), gaps)]
    return {"file": table.name, **({"options": options} if options else {}), **({"spelt": letters} if letters else {})}


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


def lookups_of(layout: Layout) -> list[tuple[files.Table, dict[str, Any]]]:
    """Tables that say more about a column of the training rows, and how scripts look them up by it."""
    found: list[tuple[files.Table, dict[str, Any]]] = []
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


def looked_up(table: files.Table, lookup: dict[str, Any], taken: set[str]) -> list[Column]:
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
