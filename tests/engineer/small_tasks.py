"""Small tasks of every kind that the engineer must cope with, written to a folder."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas
import pytest

Row = dict[str, Any]
LOWER = ("log loss", "logloss", "log_loss", "mae", "rmse", "rmsle", "smape")
"""The metrics here of which lower is better."""


def system_prompt(folder: Path, metric: str = "accuracy", direction: str = "maximize", task: str = "Predict.") -> str:
    """What an agent is told about a task."""
    packages = "catboost lightgbm numpy pandas scikit-learn scipy xgboost-cpu"
    lines = "\n".join(f"{name}==1.0" for name in packages.split())
    return (
        f"You are a grandmaster.\n\n# Task\n\n{task}\n\n# Metric\n\n`{metric}`, `{direction}`\n\n# Data\n\n"
        f"The data folder is `{folder.resolve()}`; scripts see it as `./input`.\n\n# Hardware\n\n- CPU cores: 2\n\n"
        f"# Python\n\nPython 3.11. Scripts may import these packages:\n\n{lines}"
    )


@dataclass(frozen=True)
class SmallTask:
    """A task on disk: what an agent is told about it, and what its submission must look like."""

    name: str
    system: str
    answer_columns: list[str]
    rows: int
    folder: Path
    labels: set[str] = field(default_factory=set)


MadeTask = Callable[[Path], SmallTask]


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
        _table(folder, "sample_submission", rows_of)
    direction = "minimize" if metric in LOWER else "maximize"
    system = system_prompt(folder, metric, direction, task or f"Predict {' and '.join(f'`{one}`' for one in targets)}.")
    labels = {str(row[targets[0]]) for row in train}
    return SmallTask(folder.parent.name, system, ["id", *columns], len(test), folder, labels)


def _table(folder: Path, name: str, rows: list[Row], form: str = "csv", separator: str = ",") -> None:
    if form in ("json", "jsonl"):
        text = json.dumps(rows) if form == "json" else "\n".join(map(json.dumps, rows))
        (folder / f"{name}.{form}").write_text(text, encoding="utf-8")
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


WORDS = {1: "win free prize call now cash urgent claim", 0: "see you at home later thanks for the lovely dinner mum"}


def _text(label: int, dice: random.Random) -> str:
    words = [dice.choice(WORDS[label if dice.random() < 0.8 else 1 - label].split()) for _ in range(12)]
    return " ".join(words) + ("!! 0800 123" if label and dice.random() < 0.5 else ".")


# --- tables with a signal --------------------------------------------------------------------------------


def simple(count: int, metric: str, made: dict[str, Callable[[Row], Any]], **options: Any) -> MadeTask:
    """A table of so many rows with columns made of its signal, which are to be predicted."""

    def make(folder: Path) -> SmallTask:
        rows = table(count, columns=options.get("columns", 4))
        for name, value in made.items():
            rows = _with(rows, name, value)
        return write(folder, rows, list(made), metric=metric, **{k: v for k, v in options.items() if k != "columns"})

    return make


def above(limit: float) -> Callable[[Row], int]:
    return lambda row: int(row["s"] > limit)


def rounded(digits: int = 3, scale: float = 1.0, start: float = 0.0) -> Callable[[Row], float]:
    return lambda row: round(start + scale * row["s"], digits)


def one_of(names: Sequence[Any], *limits: float) -> Callable[[Row], Any]:
    """The first where the signal lies below all limits, the last where it lies above."""
    return lambda row: names[sum(row["s"] > limit for limit in limits)]


SIMPLE: dict[str, MadeTask] = {
    "auc": simple(300, "roc_auc", {"y": above(0)}),
    "log_loss_wide": simple(
        300,
        "log loss",
        {"grade": one_of(("low", "mid", "high"), -0.7, 0.7)},
        answers=["grade_low", "grade_mid", "grade_high"],
    ),
    "quadratic_kappa": simple(300, "quadratic weighted kappa", {"quality": one_of(range(1, 6), -1.5, -0.5, 0.5, 1.5)}),
    "macro_f1": simple(300, "macro F1", {"y": one_of(("most", "some", "rare"), 0.5, 1.6)}),
    "balanced": simple(300, "balanced_accuracy", {"ok": lambda row: row["s"] > 1.2}),
    "r_squared": simple(300, "R2", {"y": rounded(3, 3, 10)}),
    "mean_absolute": simple(1800, "mae", {"price": lambda row: round(math.exp(5 + row["s"]), 2)}, separator=";"),
    "log_error": simple(300, "rmsle", {"count": lambda row: int(math.exp(2 + row["s"]))}, sample=False),
    "two_targets": simple(300, "rmse", {"a": rounded(3, 2), "b": lambda row: round(row["s"] ** 2, 3)}),
    "two_labels": simple(300, "auc", {"first": above(0), "second": lambda row: int(abs(row["s"]) > 1)}),
    "several_kinds": simple(200, "accuracy", {"a": above(0), "b": one_of("xyz", -0.5, 0.5)}),
    "label_sets": simple(
        240,
        "multilabel_f1_micro",
        {
            "red": above(0),
            "blue": lambda row: int(row["n0"] > 0.5),
            "green": lambda row: int(float(row["n1"] or 0) > 0),
        },
    ),
    "json_lines": simple(300, "rmse", {"y": rounded()}, form="jsonl"),
    "wide": simple(250, "accuracy", {"y": lambda row: int(row["n0"] > 0)}, columns=300),
    "very_wide": simple(60, "auc", {"y": lambda row: int(row["n0"] > 0)}, columns=1000),
    "one_class": simple(80, "accuracy", {"y": lambda row: "only"}),
    "few_rows": simple(24, "accuracy", {"y": above(0)}),
    "true_and_false": simple(150, "f1", {"y": one_of(("false", "true"), 0)}),
    "spelt_labels": simple(150, "accuracy", {"y": one_of(("02", "01"), 0)}),
    "rankings": simple(200, "map@3", {"y": one_of("abcdef", -2.5, -1.5, -0.5, 0.5, 1.5)}),
}


# --- further tasks ---------------------------------------------------------------------------------------


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
        folder, rows, "species", metric="logloss", answers=sorted(centres), test_share=0.15
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


def later_dates(folder: Path) -> SmallTask:
    start = datetime(2021, 1, 1)
    rows = []
    for number, row in enumerate(table(400)):
        when = start + timedelta(hours=7 * number)
        value = 20 + 5 * math.sin(when.hour / 24 * 6.28) + when.weekday() + row["s"]
        rows.append({**row, "when": when.strftime("%Y-%m-%d %H:%M:%S"), "y": round(value, 3)})
    return write(folder, rows, "y", metric="mae")


def mixed_dates(folder: Path) -> SmallTask:
    start, dice, rows = datetime(2021, 1, 1), random.Random(2), list[Row]()
    for number, row in enumerate(table(400)):
        when = start + timedelta(hours=number)
        rows.append({**row, "when": when.strftime("%d/%m/%Y %H:%M"), "y": round(math.exp(1 + math.sin(number / 9)), 3)})
    dice.shuffle(rows)
    return write(folder, rows, "y", metric="rmsle")


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
    return write(folder, rows, "stars", metric="rmse")


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
    return write(folder, rows, "y", metric="rmse")


def with_extra_table(folder: Path) -> SmallTask:
    dice, rows = random.Random(6), list[Row]()
    shops = {f"shop {k}": dice.gauss(0, 2) for k in range(30)}
    for row in table(400):
        shop = dice.choice(list(shops))
        rows.append({**row, "shop": shop, "y": round(row["n0"] + shops[shop], 3)})
    task = write(folder, rows, "y", metric="rmse")
    about = [{"shop": s, "size": round(v, 3), "type": "big" if v > 0 else "small"} for s, v in shops.items()]
    _table(folder, "shops", about)
    return task


def labels_apart(folder: Path) -> SmallTask:
    task = write(folder, _with(table(300), "y", lambda r: int(r["s"] > 0)), "y", metric="auc")
    with (folder / "train.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    (folder / "train.csv").unlink()
    _table(folder, "train_labels", [{"id": row["id"], "y": row["y"]} for row in rows])
    _table(folder, "train_features", [{k: v for k, v in row.items() if k != "y"} for row in rows])
    return task


def one_file(folder: Path) -> SmallTask:
    rows = _with(table(300), "y", lambda r: round(r["s"], 3))
    task = write(folder, rows, "y", metric="rmse", sample=False)
    (folder / "train.csv").unlink()
    (folder / "test.csv").unlink()
    blank = [{**row, "y": "" if number % 4 == 0 else row["y"]} for number, row in enumerate(rows)]
    _table(folder, "measurements", [{k: v for k, v in row.items() if k != "s"} for row in blank])
    return task


# --- odd ones --------------------------------------------------------------------------------------------


def no_id(folder: Path) -> SmallTask:
    """The submission repeats the test columns, semicolons and decimal commas included."""
    rows = [{k: v for k, v in row.items() if k not in ("id", "kind")} for row in table(300)]
    task = write(folder, [{"id": n, **r, "y": round(r["s"], 3)} for n, r in enumerate(rows)], "y", metric="R2")
    frame = pandas.DataFrame(rows).drop(columns="s")
    frame.loc[:, "n1"] = pandas.to_numeric(frame["n1"])
    frame["y"] = [round(row["s"], 3) for row in rows]
    train, test = frame.iloc[:200], frame.iloc[200:]
    train.to_csv(folder / "train.csv", sep=";", decimal=",", index=False)
    test.drop(columns="y").to_csv(folder / "test.csv", sep=";", decimal=",", index=False)
    test.assign(y=0).to_csv(folder / "sample_submission.csv", sep=";", decimal=",", index=False)
    return SmallTask(task.name, task.system, [*test.columns], len(test), folder)


def repeated_keys(folder: Path) -> SmallTask:
    rows = _with(table(240), "y", lambda r: round(r["s"], 3))
    return write(folder, [{**r, "id": f"k{n // 3}"} for n, r in enumerate(rows)], "y", metric="mae")


def many_rows_a_key(folder: Path) -> SmallTask:
    task = with_extra_table(folder)
    dice = random.Random(8)
    shops = (f"shop {dice.randrange(30)}" for _ in range(500))
    sales = [{"shop": shop, "amount": dice.gauss(5, 2), "day": dice.randint(1, 7)} for shop in shops]
    _table(folder, "sales", sales)
    return task


def nested_records(folder: Path) -> SmallTask:
    dice, rows = random.Random(5), list[Row]()
    for row in table(260):
        label = "high" if row["s"] > 0 else "low"
        words = ["salt", "pepper", "olive oil"] if label == "high" else ["sugar", "flour", "butter"]
        entries = [dice.choice(words) if dice.random() < 0.8 else "water" for _ in range(5)]
        more = {"deep": {"n": row["n0"]}, "flag": dice.random() < 0.5}
        rows.append({"id": row["id"], "parts": entries, "more": more, "y": label})
    return write(folder, rows, "y", metric="accuracy", form="json")


def grouped(folder: Path) -> SmallTask:
    rows = [{**row, "person": n // 10} for n, row in enumerate(table(360))]
    return write(folder, _with(rows, "y", lambda r: "abc"[min(2, max(0, round(r["s"] + 1)))]), "y", metric="macro F1")


def days_apart(folder: Path) -> SmallTask:
    days = [datetime(2021, 1, 1) + timedelta(days=number) for number in range(36)]
    random.Random(3).shuffle(days)
    rows = [{**row, "day": f"{days[n // 10]:%Y-%m-%d}"} for n, row in enumerate(table(360))]
    return write(folder, _with(rows, "y", lambda r: round(r["s"], 3)), "y", metric="r2")


def forecast(folder: Path) -> SmallTask:
    rows, start = list[Row](), datetime(2022, 1, 1)
    for day in range(120):
        for page in ("home", "news", "shop"):
            value = 100 + 20 * len(page) + 10 * math.sin(day / 7 * 6.28)
            date = f"{start + timedelta(days=day):%Y-%m-%d}"
            rows.append({"id": f"{page}-{day}", "page": page, "date": date, "y": round(value)})
    return write(folder, rows, "y", metric="smape", test_share=0.1)


def odd_dates(folder: Path) -> SmallTask:
    rows = []
    for n, row in enumerate(table(200)):
        when = datetime(2020, 1, 1) + timedelta(hours=17 * n)
        stamp = int((when - datetime(1970, 1, 1)).total_seconds())
        spellings = {"spoken": f"{when:%d %B %Y %H:%M}", "zoned": f"{when:%Y-%m-%dT%H:%M:%S}+02:00"}
        rows.append({**row, **spellings, "timestamp": stamp, "y": when.month + row["s"]})
    random.Random(1).shuffle(rows)
    return write(folder, rows, "y", metric="rmse")


def imbalanced(folder: Path) -> SmallTask:
    return write(
        folder, [{**r, "y": int(n % 60 == 0)} for n, r in enumerate(table(400))], "y", metric="average precision"
    )


def constant_and_missing(folder: Path) -> SmallTask:
    rows = [{**r, "same": 1, "nothing": "", "hardly": r["n0"] if n == 3 else ""} for n, r in enumerate(table(150))]
    return write(folder, _with(rows, "y", lambda r: int(r["s"] > 0)), "y", metric="log_loss")


def lone_classes(folder: Path) -> SmallTask:
    rows = [{**r, "y": f"lone {n}" if n < 12 else "ab"[n % 2]} for n, r in enumerate(table(200))]
    return write(folder, rows, "y", metric="log_loss")


def long_texts(folder: Path) -> SmallTask:
    dice = random.Random(4)
    rows = [{"id": n, "body": " ".join(_text(n % 2, dice) for _ in range(60)), "y": "ab"[n % 2]} for n in range(60)]
    return write(folder, rows, "y", metric="accuracy")


def other_scripts(folder: Path) -> SmallTask:
    dice, words = random.Random(4), {0: "добрый день мама 好的 谢谢 再见", 1: "купи сейчас деньги 免费 奖金 مجانا"}
    rows = [
        {"id": n, "text": " ".join(dice.choice(words[n % 2].split()) for _ in range(9)), "y": n % 2} for n in range(160)
    ]
    return write(folder, rows, "y", metric="f1")


def text_beside_numbers(folder: Path) -> SmallTask:
    dice = random.Random(5)
    rows = [
        {**r, "note": _text(int(r["s"] > 0), dice) if n % 9 else "", "y": round(r["s"], 2)}
        for n, r in enumerate(table(260))
    ]
    return write(folder, rows, "y", metric="rmse")


def empty_texts(folder: Path) -> SmallTask:
    text = "one two three four five six seven"
    rows = [{"id": n, "text": "" if n % 3 else f"{text} {('even', 'odd')[n % 2]}", "y": n % 2} for n in range(90)]
    return write(folder, rows, "y", metric="auc")


def unlabelled_rows(folder: Path) -> SmallTask:
    rows = [{**r, "y": "" if n % 7 == 0 else int(r["s"] > 0)} for n, r in enumerate(table(200))]
    return write(folder, rows, "y", metric="accuracy")


def amounts(folder: Path) -> SmallTask:
    rows = _with(table(150), "price", lambda r: f"${1000 + 10 * r['n0']:,.2f}")
    return write(folder, _with(rows, "y", lambda r: round(r["s"], 2)), "y", metric="mae")


def tabs_and_latin(folder: Path) -> SmallTask:
    task = write(folder, _with(table(150), "straße", lambda r: r["kind"]), "straße", metric="accuracy", separator="\t")
    for name in ("train.csv", "test.csv"):
        text = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_bytes(text.encode("latin-1"))
    return task


def shop(folder: Path) -> SmallTask:
    """Amounts in words, dates, and a second column that the test rows lack."""
    rows = [
        {
            **row,
            "price": f"${1000 + 7 * n:,}",
            "joined": f"20{10 + n % 12}-{1 + n % 12:02}-{1 + n % 28:02}",
            "late": n % 2,
        }
        for n, row in enumerate(table(240))
    ]
    rows = _with(rows, "bought", above(0))
    return write(folder, rows, ["bought", "late"], metric="accuracy", answers=["bought"], task="Predict who buys.")


def huge_numbers(folder: Path) -> SmallTask:
    rows = [
        {**r, "big": 1e300 if n == 5 else r["n0"] * 1e30, "odd": "inf" if n == 7 else r["n1"]}
        for n, r in enumerate(table(150))
    ]
    return write(folder, _with(rows, "y", lambda r: round(r["s"] * 1e9, 2)), "y", metric="rmse")


TASKS: dict[str, MadeTask] = SIMPLE | {
    task.__name__: task
    for task in (
        many_classes, as_json, as_parquet, later_dates, mixed_dates, text, text_value, odd_names, map_points,
        with_extra_table, labels_apart, one_file, no_id, repeated_keys, many_rows_a_key, nested_records, grouped,
        days_apart, forecast, odd_dates, imbalanced, constant_and_missing, lone_classes, long_texts, other_scripts,
        text_beside_numbers, empty_texts, unlabelled_rows, amounts, tabs_and_latin, huge_numbers,
    )
}  # fmt: skip
