"""A small shop's data with everything that trips scripts up: gaps, categories, dates, amounts in words, encodings."""

from __future__ import annotations

import csv
import random
from pathlib import Path

CITIES = ["Ulm", "Bonn", "Kiel", "Jena"]


def write_shop(folder: Path, rows: int = 240, metric: str = "accuracy") -> str:
    """Write the tables; the system prompt of an agent that is to look at them."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(7)
    people = [_person(number, dice) for number in range(rows)]
    columns = [*people[0]]
    train, test = people[: rows * 3 // 4], people[rows * 3 // 4 :]
    test[0]["city"] = "Atlantis"
    for index in (3, 50, 100, 170):
        if index < len(train):
            train[index]["city"] = f"Hamlet {index}"
    _write(folder / "train.csv", columns, train)
    features = [c for c in columns if not c.startswith("bought")]
    _write(folder / "test.csv", features, test)
    _write(folder / "sample_submission.csv", ["id", "bought"], [{"id": p["id"], "bought": 0} for p in test])
    with (folder / "towns.csv").open("w", encoding="latin-1", newline="") as stream:
        stream.write("city;region\nKöln;Süd\nUlm;Süd\nBonn;Westfälisch\n")
    return system_prompt(folder, metric)


def system_prompt(folder: Path, metric: str = "accuracy", direction: str = "maximize", task: str = "") -> str:
    """What an agent is told about a task."""
    about = task or "Predict who buys. Submit `id` and `bought`."
    packages = "catboost lightgbm numpy pandas scikit-learn scipy xgboost-cpu"
    lines = "\n".join(f"{name}==1.0" for name in packages.split())
    return (
        f"You are a grandmaster.\n\n# Task\n\n{about}\n\n# Metric\n\n`{metric}`, `{direction}`\n\n# Data\n\n"
        f"The data folder is `{folder.resolve()}`; scripts see it as `./input`.\n\n# Hardware\n\n- CPU cores: 2\n\n"
        f"# Python\n\nPython 3.11. Scripts may import these packages:\n\n{lines}"
    )


def _person(number: int, dice: random.Random) -> dict[str, object]:
    age, income, visits = dice.randint(18, 80), dice.gauss(3000, 800), dice.randint(0, 9)
    bought = int(age / 80 + visits / 9 + dice.gauss(0, 0.3) > 1)
    return {
        "id": number,
        "age": "" if dice.random() < 0.15 else age,
        "city": dice.choice(CITIES),
        "income": round(income, 2),
        "visits": visits,
        "price": f"${dice.randint(1000, 9000):,}",
        "joined": f"20{dice.randint(10, 22)}-{dice.randint(1, 12):02d}-{dice.randint(1, 28):02d}",
        "note": dice.choice(["likes tea", "likes coffee", "", "asks for the manager every time"]),
        "bought": bought,
        "bought_late": "" if dice.random() < 0.1 else bought,
    }


def _write(path: Path, columns: list[str], rows: list[dict[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
