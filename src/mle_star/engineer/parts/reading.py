"""Reads the files of a task as its settings say, and gives every column the type that it means."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Settings


def read_table(table: Settings) -> pd.DataFrame:
    """One file of `./input`. Columns under `spelt` are read letter by letter, as ids and labels must be."""
    path, options, form = Path("./input") / table["file"], table.get("options", {}), table.get("form", "csv")
    if form in ("lines", "records"):
        text = path.read_text(encoding="utf-8-sig")
        lines = [json.loads(line) for line in text.split("\n") if line.strip()] if form == "lines" else json.loads(text)
        return pd.json_normalize(lines[table["key"]] if "key" in table else lines)
    if form == "columns":
        return pd.read_json(path, encoding="utf-8-sig")
    letters = table.get("spelt", [])
    if form in ("parquet", "excel"):
        return pd.read_parquet(path) if form == "parquet" else pd.read_excel(path, dtype=dict.fromkeys(letters, str))
    frame = pd.read_csv(path, low_memory=False, **options)
    if spelt := [name for name in letters if name in frame]:
        plain = {name: value for name, value in options.items() if name != "na_values"}
        frame[spelt] = pd.read_csv(path, usecols=spelt, dtype=str, na_filter=False, **plain)[spelt]
    return frame


def read_data(data: Settings, most: int | None, folds: Settings, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows to learn from, `most` of them, and the rows to answer, with what other tables know about them."""
    train = read_table(data["train"])
    if data.get("labels"):
        train = train.merge(read_table(data["labels"]["table"]), on=data["labels"]["on"])
    truth = train[data["targets"]]
    known = ~(truth.isna() | truth.isin(data["unlabelled"])).any(axis=1)
    test = read_table(data["test"]) if data["test"] else train if known.all() else train[~known]
    train, test = train[known].reset_index(drop=True), test.reset_index(drop=True).copy()
    if folds["kind"] != "time":  # early, as every further step copies what there is
        train = sample_rows(train, most, folds, seed)
    for lookup in data.get("lookups", []):
        train, test = (look_up(frame, lookup) for frame in (train, test))
    return sample_rows(with_types(train, data), most, folds, seed), with_types(test, data)


def sample_rows(frame: pd.DataFrame, most: int | None, settings: Settings, seed: int) -> pd.DataFrame:
    """At most so many rows: the latest where the test rows come later, else at random."""
    if most is None or len(frame) <= most:
        return frame
    if settings["kind"] == "time":
        return frame.sort_values(settings["column"], kind="stable").tail(most).reset_index(drop=True)
    return frame.sample(n=most, random_state=seed).reset_index(drop=True)


def look_up(frame: pd.DataFrame, lookup: Settings) -> pd.DataFrame:
    """The frame with the columns of another table; where that has many rows for a key, with their statistics."""
    other, key = read_table(lookup["table"]), lookup["on"]
    other[key], keys = as_names(other[key]), as_names(frame[key])
    label = Path(lookup["table"]["file"]).stem
    if lookup.get("many"):
        groups = other.groupby(key)
        numbers = other.drop(columns=key).select_dtypes("number").columns
        parts = [groups.size().rename(f"{label} rows")]
        parts += [groups[name].mean().rename(f"{label} {name} mean") for name in numbers]
        parts += [groups[name].max().rename(f"{label} {name} most") for name in numbers]
        words = [name for name in other.drop(columns=key).columns if name not in numbers]
        parts += [groups[name].agg(lambda cells: cells.mode().iat[0] if len(cells.mode()) else None) for name in words]
        other = pd.concat(parts, axis=1)
    else:
        other = other.drop_duplicates(key).set_index(key)
    other = other.rename(columns={name: f"{label} {name}" for name in other.columns if name in frame})
    return pd.concat([frame, other.reindex(keys).set_axis(frame.index)], axis=1)


def as_names(cells: pd.Series) -> pd.Series:
    """Whole numbers as they are written: one gap in the column makes 7 a 7.0."""
    return cells.astype(str).str.replace(r"\.0$", "", regex=True)


def with_types(frame: pd.DataFrame, data: Settings) -> pd.DataFrame:
    """Dates as moments, amounts in words as numbers, lists and texts as texts; what is missing is left missing."""
    changed: dict[str, Any] = {}
    for name, form in data["dates"].items():
        cells = pd.to_numeric(frame[name], errors="coerce") if form == "seconds" else frame[name]
        cells = as_names(cells) if form == "%Y%m%d" else cells
        read: Settings = {"unit": "s"} if form == "seconds" else {"format": form or None, "utc": form == "mixed"}
        changed[name] = pd.to_datetime(cells, errors="coerce", **read).dt.tz_localize(None)
    for name in data["amounts"]:
        amount = frame[name].astype(str).str.replace(",", "").str.extract(r"([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)")[0]
        changed[name] = pd.to_numeric(amount, errors="coerce")
    for name in data["lists"]:
        changed[name] = frame[name].map(as_tokens)
    for name in data["texts"]:
        changed[name] = frame[name].fillna("").astype(str)
    for name in data["categories"]:
        changed[name] = frame[name].astype(str).where(frame[name].notna(), None)
    numbers = number_columns(frame, data)
    figures = frame[numbers].select_dtypes(["number"]).astype("float64").copy()  # one block, for wide tables
    for name in [name for name in numbers if name not in figures]:
        cells = frame[name].replace({"True": 1, "False": 0, True: 1, False: 0})
        figures[name] = pd.to_numeric(cells, errors="coerce").astype("float64")
    figures = figures[numbers].where(np.isfinite(figures)).clip(-1e15, 1e15)
    others = frame.drop(columns=[*numbers, *changed])
    return pd.concat([others, pd.DataFrame(changed, index=frame.index), figures], axis=1)


def number_columns(frame: pd.DataFrame, data: Settings) -> list[str]:
    """The columns of numbers: those named, or, where there are too many to name, all that are nothing else."""
    if data["numbers"] is not None:
        return [name for name in data["numbers"] if name in frame]
    others = {data["id"], *data["targets"], *data["ignored"], *data["dates"]}
    others |= {*data["amounts"], *data["lists"], *data["texts"], *data["categories"]}
    return [name for name in frame.columns if name not in others]


def as_tokens(cell: Any) -> str:
    """A list as a text of tokens: each entry as one word, then its words; a record by its keys and values."""
    if isinstance(cell, dict):
        cell = [f"{key}={value}" for key, value in cell.items()]
    if not isinstance(cell, (list, tuple, set, np.ndarray)):
        return "" if cell is None or cell != cell else str(cell)
    entries = [json.dumps(entry) if isinstance(entry, (dict, list)) else str(entry) for entry in cell]
    whole = ["_".join(entry.split()) for entry in entries]
    return " ".join([*whole, *(entry for entry, token in zip(entries, whole, strict=True) if entry != token)])


def as_classes(cells: pd.Series, classes: list[str]) -> np.ndarray:
    """Labels as numbers of their classes; numbers are compared as numbers, so that 1 and 1.0 are one."""
    plain = {label_key(label): number for number, label in enumerate(classes)}
    numbers: np.ndarray = np.array([plain.get(label_key(cell), 0) for cell in cells], dtype=int)
    return numbers


def label_key(label: Any) -> str:
    """A label as it is compared."""
    text = str(label).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else repr(number)
