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


WORDS = {1: "win free prize call now cash urgent claim", 0: "see you at home later thanks for the lovely dinner mum"}


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
    return write(
        folder, [{**r, "id": f"k{n // 3}"} for n, r in enumerate(rows)], "y", metric="mae", direction="minimize"
    )


def many_rows_a_key(folder: Path) -> SmallTask:
    task = with_extra_table(folder)
    dice = random.Random(8)
    sales = [
        {"shop": f"shop {dice.randrange(30)}", "amount": dice.gauss(5, 2), "day": dice.randint(1, 7)}
        for _ in range(500)
    ]
    _table(folder, "sales", sales, "csv", ",")
    return task


def nested_records(folder: Path) -> SmallTask:
    dice, rows = random.Random(5), list[Row]()
    for row in table(260):
        label = "high" if row["s"] > 0 else "low"
        words = ["salt", "pepper", "olive oil"] if label == "high" else ["sugar", "flour", "butter"]
        entries = [dice.choice(words) if dice.random() < 0.8 else "water" for _ in range(5)]
        rows.append(
            {
                "id": row["id"],
                "parts": entries,
                "more": {"deep": {"n": row["n0"]}, "flag": dice.random() < 0.5},
                "y": label,
            }
        )
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
            rows.append(
                {
                    "id": f"{page}-{day}",
                    "page": page,
                    "date": f"{start + timedelta(days=day):%Y-%m-%d}",
                    "y": round(value),
                }
            )
    return write(folder, rows, "y", metric="smape", direction="minimize", test_share=0.1)


def odd_dates(folder: Path) -> SmallTask:
    rows = []
    for n, row in enumerate(table(200)):
        when = datetime(2020, 1, 1) + timedelta(hours=17 * n)
        stamp = int((when - datetime(1970, 1, 1)).total_seconds())
        rows.append(
            {
                **row,
                "spoken": f"{when:%d %B %Y %H:%M}",
                "zoned": f"{when:%Y-%m-%dT%H:%M:%S}+02:00",
                "timestamp": stamp,
                "y": when.month + row["s"],
            }
        )
    random.Random(1).shuffle(rows)
    return write(folder, rows, "y", metric="rmse", direction="minimize")


def several_kinds(folder: Path) -> SmallTask:
    rows = _with(
        _with(table(200), "a", lambda r: int(r["s"] > 0)), "b", lambda r: "xyz"[min(2, max(0, round(r["s"] + 1)))]
    )
    return write(folder, rows, ["a", "b"], metric="accuracy", task="Predict `a` and `b`.")


def label_sets(folder: Path) -> SmallTask:
    rows = _with(_with(table(240), "red", lambda r: int(r["s"] > 0)), "blue", lambda r: int(r["n0"] > 0.5))
    rows = _with(rows, "green", lambda r: int(r["n1"] != "" and float(r["n1"] or 0) > 0))
    names = ["red", "blue", "green"]
    return write(folder, rows, names, metric="multilabel_f1_micro", task="Predict `red`, `blue`, `green`.")


def imbalanced(folder: Path) -> SmallTask:
    return write(
        folder, [{**r, "y": int(n % 60 == 0)} for n, r in enumerate(table(400))], "y", metric="average precision"
    )


def one_class(folder: Path) -> SmallTask:
    return write(folder, _with(table(80), "y", lambda r: "only"), "y", metric="accuracy")


def constant_and_missing(folder: Path) -> SmallTask:
    rows = [{**r, "same": 1, "nothing": "", "hardly": r["n0"] if n == 3 else ""} for n, r in enumerate(table(150))]
    return write(folder, _with(rows, "y", lambda r: int(r["s"] > 0)), "y", metric="log_loss", direction="minimize")


def very_wide(folder: Path) -> SmallTask:
    return write(folder, _with(table(60, columns=1000), "y", lambda r: int(r["n0"] > 0)), "y", metric="auc")


def few_rows(folder: Path) -> SmallTask:
    return write(folder, _with(table(24), "y", lambda r: int(r["s"] > 0)), "y", metric="accuracy")


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
    return write(folder, rows, "y", metric="rmse", direction="minimize")


def empty_texts(folder: Path) -> SmallTask:
    rows = [
        {
            "id": n,
            "text": "" if n % 3 else f"one two three four five six seven {'odd' if n % 2 else 'even'}",
            "y": n % 2,
        }
        for n in range(90)
    ]
    return write(folder, rows, "y", metric="auc")


def true_and_false(folder: Path) -> SmallTask:
    return write(folder, _with(table(150), "y", lambda r: "true" if r["s"] > 0 else "false"), "y", metric="f1")


def spelt_labels(folder: Path) -> SmallTask:
    return write(folder, _with(table(150), "y", lambda r: "01" if r["s"] > 0 else "02"), "y", metric="accuracy")


def unlabelled_rows(folder: Path) -> SmallTask:
    rows = [{**r, "y": "" if n % 7 == 0 else int(r["s"] > 0)} for n, r in enumerate(table(200))]
    return write(folder, rows, "y", metric="accuracy")


def amounts(folder: Path) -> SmallTask:
    rows = _with(table(150), "price", lambda r: f"${1000 + 10 * r['n0']:,.2f}")
    return write(folder, _with(rows, "y", lambda r: round(r["s"], 2)), "y", metric="mae", direction="minimize")


def tabs_and_latin(folder: Path) -> SmallTask:
    task = write(folder, _with(table(150), "straße", lambda r: r["kind"]), "straße", metric="accuracy", separator="\t")
    for name in ("train.csv", "test.csv"):
        text = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_bytes(text.encode("latin-1"))
    return task


def rankings(folder: Path) -> SmallTask:
    return write(
        folder, _with(table(200), "y", lambda r: "abcdef"[min(5, max(0, round(r["s"] + 3)))]), "y", metric="map@3"
    )


def huge_numbers(folder: Path) -> SmallTask:
    rows = [
        {**r, "big": 1e300 if n == 5 else r["n0"] * 1e30, "odd": "inf" if n == 7 else r["n1"]}
        for n, r in enumerate(table(150))
    ]
    return write(folder, _with(rows, "y", lambda r: round(r["s"] * 1e9, 2)), "y", metric="rmse", direction="minimize")


TASKS: dict[str, Callable[[Path], SmallTask]] = {
    task.__name__: task
    for task in (
        auc, log_loss_wide, quadratic_kappa, macro_f1, balanced, r_squared, mean_absolute, log_error, two_targets,
        two_labels, many_classes, as_json, as_parquet, json_lines, later_dates, mixed_dates, wide, text, text_value,
        odd_names, map_points, with_extra_table, labels_apart, one_file, no_id, repeated_keys, many_rows_a_key,
        nested_records, grouped, days_apart, forecast, odd_dates, several_kinds, label_sets, imbalanced, one_class,
        constant_and_missing, very_wide, few_rows, lone_classes, long_texts, other_scripts, text_beside_numbers,
        empty_texts, true_and_false, spelt_labels, unlabelled_rows, amounts, tabs_and_latin, rankings, huge_numbers,
    )
}  # fmt: skip
