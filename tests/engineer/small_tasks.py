"""Small tasks of every kind that the engineer must cope with, written to a folder."""

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

Row = dict[str, Any]
LOG_ERROR = "Root Mean Squared Logarithmic Error"
LOWER = ("log loss", "logloss", "log_loss", "mae", "rmse", "rmsle", "smape", LOG_ERROR)
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
    target: str | list[str] = "y",
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
        _table(folder, "sample_submission", [{"id": row["id"], **dict.fromkeys(columns, 0)} for row in test])
    direction = "minimize" if metric in LOWER else "maximize"
    system = system_prompt(folder, metric, direction, task or f"Predict {' and '.join(f'`{one}`' for one in targets)}.")
    return SmallTask(system, ["id", *columns], len(test), folder, {str(row[targets[0]]) for row in train})


def _table(folder: Path, name: str, rows: list[Row], form: str = "csv", separator: str = ",") -> None:
    if form in ("json", "jsonl"):
        text = json.dumps(rows) if form == "json" else "\n".join(map(json.dumps, rows))
        (folder / f"{name}.{form}").write_text(text, encoding="utf-8")
    elif form == "parquet":
        pandas.DataFrame(rows).convert_dtypes().to_parquet(folder / f"{name}.parquet")
    else:
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
            writer.writeheader()
            writer.writerows(rows)


def made(
    count: int,
    metric: str,
    more: Callable[[int, Row], Row],
    target: str | list[str] = "y",
    *,
    bare: bool = False,
    columns: int = 4,
    shuffled: bool = False,
    **options: Any,
) -> MadeTask:
    """A table of so many rows with a signal, or with an id alone, and what each row has `more`: the target, too."""

    def make(folder: Path) -> SmallTask:
        rows = [{"id": n} for n in range(count)] if bare else table(count, columns=columns)
        rows = [{**row, **more(n, row)} for n, row in enumerate(rows)]
        if shuffled:
            random.Random(2).shuffle(rows)
        return write(folder, rows, target, metric=metric, **options)

    return make


def one_of(names: Sequence[Any], row: Row, *limits: float) -> Any:
    """The first where the signal lies below all limits, the last where it lies above."""
    return names[sum(row["s"] > limit for limit in limits)]


WORDS = ("see you at home later thanks for the lovely dinner mum", "win free prize call now cash urgent claim")
OTHER_WORDS = ("добрый день мама 好的 谢谢 再见", "купи сейчас деньги 免费 奖金 مجانا")
FOODS = (["sugar", "flour", "butter"], ["salt", "pepper", "olive oil"])
SEVEN = "one two three four five six seven"


def words(label: int, seed: int, count: int = 12, from_words: tuple[str, str] = WORDS) -> str:
    """A text whose words tell its label, mostly."""
    dice = random.Random(seed)
    chosen = [dice.choice(from_words[label if dice.random() < 0.8 else 1 - label].split()) for _ in range(count)]
    return " ".join(chosen) + ("!! 0800 123" if label and dice.random() < 0.5 else ".")


def after(start: str, **step: float) -> datetime:
    """A moment so long after another one."""
    return datetime.fromisoformat(start) + timedelta(**step)


def label(row: Row) -> int:
    return int(row["s"] > 0)


def value(row: Row, scale: float = 1.0, start: float = 0.0) -> float:
    return float(round(start + scale * row["s"], 3))


CENTRES = {f"species {k}": [random.Random(12 * k + i).gauss(0, 1) for i in range(12)] for k in range(99)}
SHOPS = {f"shop {k}": random.Random(k).gauss(0, 2) for k in range(30)}


def species(n: int, row: Row) -> Row:
    name, dice = f"species {n % 99}", random.Random(n)
    return {**{f"n{i}": round(c + dice.gauss(0, 0.25), 4) for i, c in enumerate(CENTRES[name])}, "species": name}


def grade(n: int, row: Row) -> Row:
    return {"grade": one_of(("low", "mid", "high"), row, -0.7, 0.7)}


def colours(n: int, row: Row) -> Row:
    return {"red": label(row), "blue": int(row["n0"] > 0.5), "green": int(float(row["n1"] or 0) > 0)}


def json_row(n: int, row: Row) -> Row:
    tags = ["x", "y", "z"][n % 2 : n % 2 + 2]
    return {"about": words(label(row), n), "tags": tags, "deep": {"level": row["n0"]}, "y": bool(label(row))}


def dated(form: str) -> Callable[[int, Row], Row]:
    wave = [round(math.exp(1 + math.sin(n / 9)), 3) for n in range(400)]
    return lambda n, row: {"when": after("2021-01-01", hours=n).strftime(form), "y": wave[n]}


def odd_names(n: int, row: Row) -> Row:
    return {"n0 [x]": row["n0"], '"n1"': row["n1"], "y": ("no", "yes")[label(row)]}


def huge_row(n: int, row: Row) -> Row:
    big, odd = 1e300 if n == 5 else row["n0"] * 1e30, "inf" if n == 7 else row["n1"]
    return {"big": big, "odd": odd, "y": value(row, 1e9)}


def parquet_row(n: int, row: Row) -> Row:
    when = after("2021-01-01", hours=5 * (n * 37 % 999))
    own = {"id": n, "n1": None if row["n1"] == "" else row["n1"], "when": when, "day": when.date()}
    return {**own, "tags": ["x", "y", "z"][n % 2 : n % 2 + 2], "y": None if n % 50 == 0 else label(row)}


def nested_row(n: int, row: Row) -> Row:
    dice = random.Random(n)
    entries = [dice.choice(FOODS[label(row)]) if dice.random() < 0.8 else "water" for _ in range(5)]
    more = {"deep": {"n": row["n0"]}, "flag": dice.random() < 0.5}
    return {"parts": entries, "more": more, "y": ("low", "high")[label(row)]}


def place(n: int, row: Row) -> Row:
    lat, lon = random.Random(n).uniform(40, 50), random.Random(-n).uniform(0, 10)
    return {"lat": round(lat, 4), "lon": round(lon, 4), "y": round(lat * 3 + math.sin(lon) * 5, 3)}


def page_view(n: int, row: Row) -> Row:
    day, page = n // 3, ("home", "news", "shop")[n % 3]
    level = round(100 + 20 * len(page) + 10 * math.sin(day / 7 * 6.28))
    return {"id": f"{page}-{day}", "page": page, "date": f"{after('2022-01-01', days=day):%Y-%m-%d}", "y": level}


def odd_date(n: int, row: Row) -> Row:
    when = after("2020-01-01", hours=17 * n)
    spellings = {"spoken": f"{when:%d %B %Y %H:%M}", "zoned": f"{when:%Y-%m-%dT%H:%M:%S}+02:00"}
    return {**spellings, "timestamp": int((when - datetime(1970, 1, 1)).total_seconds()), "y": when.month + row["s"]}


def customer(n: int, row: Row) -> Row:
    """Amounts in words, dates, and a second column that the test rows lack."""
    joined = f"20{10 + n % 12}-{1 + n % 12:02}-{1 + n % 28:02}"
    return {"price": f"${1000 + 7.5 * n:,.2f}", "joined": joined, "late": n % 2, "bought": label(row)}


TASKS: dict[str, MadeTask] = {
    "auc": made(300, "Area under the ROC curve (AUC)", lambda n, r: {"y": label(r)}),
    "log_loss_wide": made(300, "log loss", grade, "grade", answers=["grade_low", "grade_mid", "grade_high"]),
    "quadratic_kappa": made(
        300, "Quadratic Weighted Kappa (QWK)", lambda n, r: {"y": one_of(range(1, 6), r, -1.5, -0.5, 0.5, 1.5)}
    ),
    "macro_f1": made(300, "macro-averaged F1", lambda n, r: {"y": one_of(("most", "some", "rare"), r, 0.5, 1.6)}),
    "balanced": made(300, "balanced_accuracy", lambda n, r: {"ok": r["s"] > 1.2}, "ok"),
    "r_squared": made(300, "R2", lambda n, r: {"y": value(r, 3, 10)}),
    "mean_absolute": made(1800, "mae", lambda n, r: {"price": round(math.exp(5 + r["s"]), 2)}, "price", separator=";"),
    "log_error": made(300, LOG_ERROR, lambda n, r: {"y": int(math.exp(2 + r["s"]))}, sample=False),
    "two_targets": made(300, "rmse", lambda n, r: {"a": value(r, 2), "b": round(r["s"] ** 2, 3)}, ["a", "b"]),
    "two_labels": made(300, "auc", lambda n, r: {"a": label(r), "b": int(abs(r["s"]) > 1)}, ["a", "b"]),
    "several_kinds": made(200, "accuracy", lambda n, r: {"a": label(r), "b": one_of("xyz", r, -0.5, 0.5)}, ["a", "b"]),
    "label_sets": made(240, "multilabel_f1_micro", colours, ["red", "blue", "green"]),
    "json_lines": made(300, "rmse", lambda n, r: {"y": value(r)}, form="jsonl"),
    "wide": made(250, "accuracy", lambda n, r: {"y": int(r["n0"] > 0)}, columns=300),
    "very_wide": made(60, "auc", lambda n, r: {"y": int(r["n0"] > 0)}, columns=1000),
    "one_class": made(80, "accuracy", lambda n, r: {"y": "only"}),
    "few_rows": made(24, "accuracy", lambda n, r: {"y": label(r)}),
    "true_and_false": made(150, "f1", lambda n, r: {"y": ("false", "true")[label(r)]}),
    "spelt_labels": made(150, "accuracy", lambda n, r: {"id": f"{n:04}", "y": ("02", "01")[label(r)]}),
    "rankings": made(200, "map@3", lambda n, r: {"y": one_of("abcdef", r, -2.5, -1.5, -0.5, 0.5, 1.5)}),
    "many_classes": made(
        99 * 6, "logloss", species, "species", bare=True, shuffled=True, answers=sorted(CENTRES), test_share=0.15
    ),
    "as_json": made(300, "auc", json_row, form="json"),
    "as_parquet": made(300, "accuracy", parquet_row, form="parquet"),
    "later_dates": made(400, "mae", dated("%Y-%m-%d %H:%M:%S")),
    "mixed_dates": made(400, "rmsle", dated("%d/%m/%Y %H:%M"), shuffled=True),
    "text": made(
        320, "F1 of the class 1", lambda n, r: {"message": words(n % 3 // 2, n), "spam": n % 3 // 2}, "spam", bare=True
    ),
    "text_value": made(
        300, "rmse", lambda n, r: {"review": words(n % 2, n), "stars": 1 + 3 * (n % 2) + n % 5 / 5}, "stars", bare=True
    ),
    "odd_names": made(300, "accuracy", odd_names, answers=["prediction"]),
    "map_points": made(500, "rmse", place),
    "repeated_keys": made(240, "mae", lambda n, r: {"id": f"k{n // 3}", "y": value(r)}),
    "nested_records": made(260, "accuracy", nested_row, form="json"),
    "grouped": made(360, "macro F1", lambda n, r: {"person": n // 10, "y": "abc"[min(2, max(0, round(r["s"] + 1)))]}),
    "days_apart": made(
        360, "r2", lambda n, r: {"day": f"{after('2021-01-01', days=n // 10 * 7 % 36):%Y-%m-%d}", "y": value(r)}
    ),
    "forecast": made(360, "smape", page_view, bare=True, test_share=0.1),
    "odd_dates": made(200, "rmse", odd_date, shuffled=True),
    "imbalanced": made(400, "average precision", lambda n, r: {"y": int(n % 60 == 0)}),
    "constant_and_missing": made(
        150, "log_loss", lambda n, r: {"same": 1, "nothing": "", "hardly": r["n0"] if n == 3 else "", "y": label(r)}
    ),
    "lone_classes": made(200, "log_loss", lambda n, r: {"y": f"lone {n}" if n < 12 else "ab"[n % 2]}),
    "long_texts": made(60, "accuracy", lambda n, r: {"body": words(n % 2, n, 720), "y": "ab"[n % 2]}, bare=True),
    "other_scripts": made(160, "f1", lambda n, r: {"text": words(n % 2, n, 9, OTHER_WORDS), "y": n % 2}, bare=True),
    "text_beside_numbers": made(260, "rmse", lambda n, r: {"note": words(label(r), n) if n % 9 else "", "y": value(r)}),
    "empty_texts": made(
        90, "auc", lambda n, r: {"text": "" if n % 3 else f"{SEVEN} {['even', 'odd'][n % 2]}", "y": n % 2}, bare=True
    ),
    "unlabelled_rows": made(200, "accuracy", lambda n, r: {"y": "" if n % 7 == 0 else label(r)}),
    "huge_numbers": made(150, "rmse", huge_row),
    "shop": made(240, "accuracy", customer, ["bought", "late"], answers=["bought"], task="Predict who buys."),
}


def kept(task: MadeTask) -> MadeTask:
    """A task among the others, by the name of its function."""
    TASKS[task.__name__] = task
    return task


@kept
def with_extra_table(folder: Path) -> SmallTask:
    names = [f"shop {random.Random(n).randrange(30)}" for n in range(400)]
    rows = [{**r, "shop": s, "y": round(r["n0"] + SHOPS[s], 3)} for r, s in zip(table(400), names, strict=True)]
    about = [{"shop": s, "size": round(v, 3), "type": "big" if v > 0 else "small"} for s, v in SHOPS.items()]
    task = write(folder, rows, metric="rmse")
    _table(folder, "shops", about)
    return task


@kept
def many_rows_a_key(folder: Path) -> SmallTask:
    task, dice = with_extra_table(folder), random.Random(8)
    shops = (f"shop {dice.randrange(30)}" for _ in range(500))
    _table(folder, "sales", [{"shop": s, "amount": dice.gauss(5, 2), "way": dice.choice("abc")} for s in shops])
    return task


@kept
def labels_apart(folder: Path) -> SmallTask:
    task = TASKS["auc"](folder)
    with (folder / "train.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    (folder / "train.csv").unlink()
    _table(folder, "train_labels", [{"id": row["id"], "y": row["y"]} for row in rows])
    _table(folder, "train_features", [{k: v for k, v in row.items() if k != "y"} for row in rows])
    return task


@kept
def one_file(folder: Path) -> SmallTask:
    rows = [{**row, "y": "" if n % 4 == 0 else value(row)} for n, row in enumerate(table(300))]
    task = write(folder, rows, metric="rmse", sample=False)
    (folder / "train.csv").unlink()
    (folder / "test.csv").unlink()
    _table(folder, "measurements", [{k: v for k, v in row.items() if k != "s"} for row in rows])
    return task


@kept
def no_id(folder: Path) -> SmallTask:
    """The submission repeats the test columns, semicolons and decimal commas included."""
    task, frame = TASKS["r_squared"](folder), pandas.DataFrame(table(300)).drop(columns=["id", "kind"])
    frame["n1"] = pandas.to_numeric(frame["n1"])
    frame = frame.rename(columns={"s": "y"}).round(3)
    train, test = frame.iloc[:200], frame.iloc[200:]
    for name, part in (("train", train), ("test", test.drop(columns="y")), ("sample_submission", test.assign(y=0))):
        part.to_csv(folder / f"{name}.csv", sep=";", decimal=",", index=False)
    return SmallTask(task.system, [*test.columns], len(test), folder)


@kept
def tabs_and_latin(folder: Path) -> SmallTask:
    task = made(150, "accuracy", lambda n, r: {"straße": r["kind"]}, "straße", separator="\t")(folder)
    for name in ("train.csv", "test.csv"):
        (folder / name).write_bytes((folder / name).read_text(encoding="utf-8").encode("latin-1"))
    return task
