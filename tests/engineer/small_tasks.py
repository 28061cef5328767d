"""Small tasks of every kind that the engineer must cope with, written to a folder."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas
import pytest

from tests.engineer.shop import system_prompt

Row = dict[str, Any]


@dataclass(frozen=True)
class SmallTask:
    """A task on disk: what an agent is told about it, and what its submission must look like."""

    name: str
    system: str
    answer_columns: list[str]
    rows: int
    folder: Path
    labels: set[str] = field(default_factory=set)


def table(rows: int, seed: int = 1, columns: int = 4) -> list[Row]:
    """Numbers, a category with rare levels, gaps, and a signal `s` between about -3 and 3."""
    dice = random.Random(seed)
    made = []
    for number in range(rows):
        values = [dice.gauss(0, 1) for _ in range(columns)]
        kind = dice.choice("aaabbbccd") if dice.random() > 0.02 else f"rare {number}"
        signal = values[0] + 0.5 * values[1 % columns] * values[0] + {"a": 0, "b": 1, "c": -1}.get(kind, 0.5)
        row: Row = {"id": f"r{number}", **{f"n{i}": round(v, 4) for i, v in enumerate(values)}, "kind": kind}
        if dice.random() < 0.1:
            row["n1"] = ""
        made.append({**row, "s": signal + dice.gauss(0, 0.3)})
    return made


def write(
    folder: Path,
    rows: list[Row],
    target: str | list[str],
    *,
    metric: str,
    direction: str = "maximize",
    answers: list[str] | None = None,
    sample: bool = True,
    form: str = "csv",
    task: str = "",
    separator: str = ",",
    test_share: float = 0.25,
) -> SmallTask:
    """Split the rows into tables and write them."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = [target] if isinstance(target, str) else target
    clean = [{k: v for k, v in row.items() if k != "s"} for row in rows]
    cut = int(len(clean) * (1 - test_share))
    train, test = clean[:cut], [{k: v for k, v in row.items() if k not in targets} for row in clean[cut:]]
    _table(folder, "train", train, form, separator)
    _table(folder, "test", test, form, separator)
    columns = answers or targets
    if sample:
        rows_of = [{"id": row["id"], **dict.fromkeys(columns, 0)} for row in test]
        _table(folder, "sample_submission", rows_of, "csv", ",")
    system = system_prompt(folder, metric, direction, task or f"Predict `{targets[0]}`.")
    labels = {str(row[targets[0]]) for row in train}
    return SmallTask(folder.parent.name, system, ["id", *columns], len(test), folder, labels)


def _table(folder: Path, name: str, rows: list[Row], form: str, separator: str) -> None:
    if form == "json":
        (folder / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
        return
    if form == "jsonl":
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        return
    if form == "parquet":
        pandas.DataFrame(rows).convert_dtypes().to_parquet(folder / f"{name}.parquet")
        return
    with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)


def _with(rows: list[Row], name: str, value: Callable[[Row], Any]) -> list[Row]:
    return [{**row, name: value(row)} for row in rows]


WORDS = {
    1: "win free prize call now cash urgent claim",
    0: "see you at home later thanks for the lovely dinner mum",
}


def _text(label: int, dice: random.Random) -> str:
    words = [dice.choice(WORDS[label if dice.random() < 0.8 else 1 - label].split()) for _ in range(12)]
    return " ".join(words) + ("!! 0800 123" if label and dice.random() < 0.5 else ".")


# --- the tasks -------------------------------------------------------------------------------------------


def auc(folder: Path) -> SmallTask:
    return write(folder, _with(table(300), "y", lambda r: int(r["s"] > 0)), "y", metric="roc_auc")


def log_loss_wide(folder: Path) -> SmallTask:
    rows = _with(table(300), "grade", lambda r: "low" if r["s"] < -0.7 else "mid" if r["s"] < 0.7 else "high")
    answers = ["grade_low", "grade_mid", "grade_high"]
    return write(folder, rows, "grade", metric="log loss", direction="minimize", answers=answers)


def quadratic_kappa(folder: Path) -> SmallTask:
    rows = _with(table(300), "quality", lambda r: 3 + max(-2, min(2, round(r["s"]))))
    return write(folder, rows, "quality", metric="quadratic weighted kappa")


def macro_f1(folder: Path) -> SmallTask:
    rows = _with(table(300), "y", lambda r: "rare" if r["s"] > 1.6 else "some" if r["s"] > 0.5 else "most")
    return write(folder, rows, "y", metric="macro F1")


def balanced(folder: Path) -> SmallTask:
    return write(folder, _with(table(300), "ok", lambda r: r["s"] > 1.2), "ok", metric="balanced_accuracy")


def r_squared(folder: Path) -> SmallTask:
    return write(folder, _with(table(300), "y", lambda r: round(10 + 3 * r["s"], 3)), "y", metric="R2")


def mean_absolute(folder: Path) -> SmallTask:
    rows = _with(table(1800), "price", lambda r: round(math.exp(5 + r["s"]), 2))
    return write(folder, rows, "price", metric="mae", direction="minimize", separator=";")


def log_error(folder: Path) -> SmallTask:
    rows = _with(table(300), "count", lambda r: int(math.exp(2 + r["s"])))
    return write(folder, rows, "count", metric="rmsle", direction="minimize", sample=False)


def two_targets(folder: Path) -> SmallTask:
    rows = _with(_with(table(300), "a", lambda r: round(r["s"] * 2, 3)), "b", lambda r: round(r["s"] ** 2, 3))
    return write(folder, rows, ["a", "b"], metric="rmse", direction="minimize", task="Predict `a` and `b`.")


def two_labels(folder: Path) -> SmallTask:
    rows = _with(_with(table(300), "first", lambda r: int(r["s"] > 0)), "second", lambda r: int(abs(r["s"]) > 1))
    return write(folder, rows, ["first", "second"], metric="auc", task="Predict `first` and `second`.")


def two_kinds(folder: Path) -> SmallTask:
    rows = _with(table(300), "wide", lambda r: "no" if r["s"] < -0.7 else "none" if r["s"] < 0.7 else "yes")
    answers, task = ["high", "wide_no", "wide_none", "wide_yes"], "All is new. The target is `high`, `wide`."
    rows = _with(rows, "high", lambda r: int(r["s"] > 0))
    return write(folder, rows, ["high", "wide"], metric="auc", answers=answers, sample=False, task=task)


def many_classes(folder: Path) -> SmallTask:
    dice = random.Random(3)
    centres = {f"species {k}": [dice.gauss(0, 1) for _ in range(12)] for k in range(99)}
    rows: list[Row] = []
    for number in range(99 * 6):
        name = list(centres)[number % 99]
        values = {f"n{i}": round(c + dice.gauss(0, 0.25), 4) for i, c in enumerate(centres[name])}
        rows.append({"id": number, **values, "species": name})
    dice.shuffle(rows)
    return write(
        folder, rows, "species", metric="logloss", direction="minimize", answers=sorted(centres), test_share=0.15
    )  # fmt: skip


def as_json(folder: Path) -> SmallTask:
    dice = random.Random(5)
    rows = []
    for row in table(300):
        label = int(row["s"] > 0)
        extra = {"about": _text(label, dice), "tags": dice.sample(["x", "y", "z"], 2), "deep": {"level": row["n0"]}}
        rows.append({**row, **extra, "y": bool(label)})
    return write(folder, rows, "y", metric="auc", form="json")


def as_parquet(folder: Path) -> SmallTask:
    pytest.importorskip("pyarrow")
    dice, rows = random.Random(5), list[Row]()
    for number, row in enumerate(table(300)):
        when = datetime(2021, 1, 1) + timedelta(hours=5 * dice.randint(0, 999))
        label = None if number % 50 == 0 else int(row["s"] > 0)
        extra = {"n1": None if row["n1"] == "" else row["n1"], "when": when, "day": when.date()}
        rows.append({**row, **extra, "id": number, "tags": dice.sample(["x", "y", "z"], 2), "y": label})
    return write(folder, rows, "y", metric="accuracy", form="parquet")


def json_lines(folder: Path) -> SmallTask:
    rows = _with(table(300), "y", lambda r: round(r["s"], 3))
    return write(folder, rows, "y", metric="rmse", direction="minimize", form="jsonl")


def later_dates(folder: Path) -> SmallTask:
    start = datetime(2021, 1, 1)
    rows = []
    for number, row in enumerate(table(400)):
        when = start + timedelta(hours=7 * number)
        value = 20 + 5 * math.sin(when.hour / 24 * 6.28) + when.weekday() + row["s"]
        rows.append({**row, "when": when.strftime("%Y-%m-%d %H:%M:%S"), "y": round(value, 3)})
    return write(folder, rows, "y", metric="mae", direction="minimize")


def mixed_dates(folder: Path) -> SmallTask:
    start, dice, rows = datetime(2021, 1, 1), random.Random(2), list[Row]()
    for number, row in enumerate(table(400)):
        when = start + timedelta(hours=number)
        rows.append({**row, "when": when.strftime("%d/%m/%Y %H:%M"), "y": round(math.exp(1 + math.sin(number / 9)), 3)})
    dice.shuffle(rows)
    return write(folder, rows, "y", metric="rmsle", direction="minimize")


def wide(folder: Path) -> SmallTask:
    return write(folder, _with(table(250, columns=300), "y", lambda r: int(r["n0"] > 0)), "y", metric="accuracy")


def text(folder: Path) -> SmallTask:
    dice = random.Random(4)
    rows = []
    for n in range(320):
        label = int(dice.random() < 0.3)
        rows.append({"id": n, "message": _text(label, dice), "spam": label})
    return write(folder, rows, "spam", metric="f1")


def text_value(folder: Path) -> SmallTask:
    dice = random.Random(4)
    rows = []
    for n in range(300):
        label = int(dice.random() < 0.5)
        rows.append({"id": n, "review": _text(label, dice), "stars": round(1 + 3 * label + dice.random(), 2)})
    return write(folder, rows, "stars", metric="rmse", direction="minimize")


def odd_names(folder: Path) -> SmallTask:
    rows = [
        {**{f"{k} [x]" if k.startswith("n") else k: v for k, v in row.items()}, "y": "yes" if row["s"] > 0 else "no"}
        for row in table(300)
    ]
    return write(folder, rows, "y", metric="accuracy", answers=["prediction"])


def map_points(folder: Path) -> SmallTask:
    dice, rows = random.Random(6), list[Row]()
    for row in table(500):
        lat, lon = dice.uniform(40, 50), dice.uniform(0, 10)
        rows.append({**row, "lat": round(lat, 4), "lon": round(lon, 4), "y": round(lat * 3 + math.sin(lon) * 5, 3)})
    return write(folder, rows, "y", metric="rmse", direction="minimize")


def with_extra_table(folder: Path) -> SmallTask:
    dice, rows = random.Random(6), list[Row]()
    shops = {f"shop {k}": dice.gauss(0, 2) for k in range(30)}
    for row in table(400):
        shop = dice.choice(list(shops))
        rows.append({**row, "shop": shop, "y": round(row["n0"] + shops[shop], 3)})
    task = write(folder, rows, "y", metric="rmse", direction="minimize")
    _table(
        folder,
        "shops",
        [{"shop": s, "size": round(v, 3), "type": "big" if v > 0 else "small"} for s, v in shops.items()],
        "csv",
        ",",
    )
    return task


def labels_apart(folder: Path) -> SmallTask:
    task = write(folder, _with(table(300), "y", lambda r: int(r["s"] > 0)), "y", metric="auc")
    with (folder / "train.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    (folder / "train.csv").unlink()
    _table(folder, "train_labels", [{"id": row["id"], "y": row["y"]} for row in rows], "csv", ",")
    _table(folder, "train_features", [{k: v for k, v in row.items() if k != "y"} for row in rows], "csv", ",")
    return task


def one_file(folder: Path) -> SmallTask:
    rows = _with(table(300), "y", lambda r: round(r["s"], 3))
    task = write(folder, rows, "y", metric="rmse", direction="minimize", sample=False)
    (folder / "train.csv").unlink()
    (folder / "test.csv").unlink()
    blank = [{**row, "y": "" if number % 4 == 0 else row["y"]} for number, row in enumerate(rows)]
    _table(folder, "measurements", [{k: v for k, v in row.items() if k != "s"} for row in blank], "csv", ",")
    return task


TASKS: dict[str, Callable[[Path], SmallTask]] = {
    task.__name__: task
    for task in (
        auc, log_loss_wide, quadratic_kappa, macro_f1, balanced, r_squared, mean_absolute, log_error, two_targets,
        two_labels, two_kinds, many_classes, as_json, as_parquet, json_lines, later_dates, mixed_dates, wide,
        text, text_value, odd_names, map_points, with_extra_table, labels_apart, one_file,
    )
}  # fmt: skip
