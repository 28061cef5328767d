"""Are time order, groups, copies and leaks found? Ten invented tables, four made of real ones, and the real ones alone.

Nothing runs: only what a run would say and do at its start is looked at.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mle_star.data.folder import load_task
from mle_star.data.layout import find_layout
from mle_star.data.leaks import leaks_in
from mle_star.holdout.views import Data

BAR, FALSE_ALARMS = 13, 1
ROWS = 600
RIGHT = {"page-views": "time", "phone-activity": "groups", "air-quality": "time"}
"""What the real tables hold themselves; the others are to be split at random."""


def measure(folders: Path) -> int:
    """Print what was found of each table; 1 where a bar is missed."""
    found = 0
    print("| table | planted | found | right |\n| --- | --- | --- | --- |")
    for name, table, target, planted in [*invented(), *derived(folders)]:
        rule, column, apart, leaks = looked_at(table, target)
        right = planted in leaks if planted.startswith("`") else f"{rule} {column}".strip() == planted and apart
        found += right
        words = leaks.partition(":")[0] if planted.startswith("`") else f"{rule} {column}"
        print(f"| {name} | {planted} | {words} | {'yes' if right else '**no**'} |")
    alarms = []
    for folder in sorted(folders.glob("*/task.yaml")):
        task = load_task(folder.parent)
        whole = find_layout(Path(task.data_dir), task.description)
        words = ", ".join(f"`{name}`" for name in whole.target.names)
        rule, column, _, _ = split_of(Path(task.data_dir) / whole.train.name, f"The target is {words}.")
        expected = RIGHT.get(folder.parent.name, "at random")
        is_right = rule == expected
        alarms += [] if is_right else [folder.parent.name]
        words = f"{rule}, {column}" if column else rule
        print(f"| {folder.parent.name} | – | {words} | {'yes' if is_right else '**no**'} |")
    print(f"\nfound and split right: {found} of 14 (bar {BAR}); false alarms: {len(alarms)} of 12 (bar {FALSE_ALARMS})")
    return 0 if found >= BAR and len(alarms) <= FALSE_ALARMS else 1


def looked_at(table: pd.DataFrame, target: str) -> tuple[str, str, bool, str]:
    """The rule for one table, its column, whether what belongs together stays so, and the leaks."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "train.csv"
        table.to_csv(path, index=False)
        return split_of(path, f"The target is `{target}`.")


def split_of(path: Path, description: str) -> tuple[str, str, bool, str]:
    """The same of a file alone."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "input"
        folder.mkdir()
        shutil.copy(path, folder)
        layout = find_layout(folder, description)
        data = Data.read(layout)
        split, units = data.split(seed=1), data.units
        stays = {view: set(data.stays(view)) for view in split.views}
        kind = data.rule.kind if data.rule.is_grouped else "at random"
        apart = units is None or all(
            min(units[r] for r in view) >= max(units[r] for r in stays[view])
            if kind == "time"
            else not {units[r] for r in view} & {units[r] for r in stays[view]}
            for view in split.views
        )
        return kind, data.rule.column if data.rule.is_grouped else "", apart, "; ".join(leaks_in(folder, description))


def features(dice: np.random.Generator, count: int) -> dict[str, Any]:
    """A few columns that mean nothing."""
    return {
        "a": dice.normal(size=count).round(4),
        "b": dice.normal(size=count).round(4),
        "c": dice.integers(0, 5, count),
    }


def wandering(dice: np.random.Generator, count: int) -> Any:
    """A series in which one value follows from the one before."""
    return np.cumsum(dice.normal(size=count)) + dice.normal(size=count) * 0.5


def invented() -> Iterator[tuple[str, pd.DataFrame, str, str]]:
    """Tables with something planted: a name, the rows, the target, and what is to be found."""
    dice = np.random.default_rng(3)
    days = pd.date_range("2023-01-01", periods=ROWS).strftime("%Y-%m-%d")
    series = pd.DataFrame({"day": days, **features(dice, ROWS), "sales": wandering(dice, ROWS)})
    yield "a daily series", series, "sales", "time day"
    yield "the same, shuffled", series.sample(frac=1, random_state=1), "sales", "time day"
    stores = [pd.DataFrame({"date": days[:120], "store": f"S{i}", "y": wandering(dice, 120) + 9 * i}) for i in range(8)]
    yield "eight stores day by day", pd.concat(stores).sort_values("date", kind="stable"), "y", "time date"
    who: Any = np.repeat(np.arange(60), 10)
    ill = dice.integers(0, 2, 60)[who]
    body = dice.normal(size=(60, 3))[who] + dice.normal(size=(600, 3)) * 0.3
    patients = pd.DataFrame({"patient_id": who + 1000, "p": body[:, 0], "q": body[:, 1], "r": body[:, 2], "ill": ill})
    yield "sixty patients", patients.sample(frac=1, random_state=2), "ill", "groups patient_id"
    of = dice.integers(0, 90, ROWS)
    worth = dice.normal(size=90)[of] * 3 + dice.normal(size=ROWS)
    yield "ninety shops", pd.DataFrame({"shop": of, **features(dice, ROWS), "worth": worth}), "worth", "groups shop"
    uneven = dice.zipf(1.6, ROWS) % 80
    codes = [f"usr-{u:03d}" for u in uneven]
    pays = pd.DataFrame({"who": codes, "x": dice.normal(size=80)[uneven] + dice.normal(size=ROWS) * 0.2})
    pays["z"], pays["pays"] = uneven * 7 % 13, dice.normal(size=80)[uneven] * 4 + dice.normal(size=ROWS)
    yield "codes of users, of uneven number", pays, "pays", "groups who"
    plain = pd.DataFrame({**features(dice, 200), "y": dice.normal(size=200)})
    yield "each row three times", pd.concat([plain] * 3).sample(frac=1, random_state=3), "y", "copies"
    near = pd.concat([plain, plain[:80] + dice.normal(size=(80, 4)) * 1e-4]).assign(c=lambda t: t["c"].round())
    yield "rows once more, a little changed", near.sample(frac=1, random_state=4), "y", "copies"
    price = dice.lognormal(10, 1, ROWS)
    leak = pd.DataFrame({**features(dice, ROWS), "net": price * 0.9 + dice.normal(size=ROWS) * 100, "price": price})
    yield "nine tenths of the target", leak, "price", "`net`"
    label = dice.choice(["red", "green", "blue"], ROWS)
    named = pd.DataFrame(
        {**features(dice, ROWS), "code": pd.Series(label).map({"red": 3, "green": 1, "blue": 7}), "y": label}
    )
    yield "a code of the class", named, "y", "`code`"


def derived(folders: Path) -> Iterator[tuple[str, pd.DataFrame, str, str]]:
    """The same of real tables: copies are read, nothing is written."""
    views = pd.read_csv(folders / "page-views/input/train.csv")
    yield "page views of one page", views[views["page"] == "Beyonce"].drop(columns="page"), "views", "time date"
    walks = pd.read_csv(folders / "phone-activity/input/train.csv").sample(frac=1, random_state=5)
    yield "walks of persons, shuffled", walks, "activity", "groups user"
    ship = pd.read_csv(folders / "titanic/input/train.csv").drop(columns="PassengerId")
    yield "titanic, a third twice", pd.concat([ship, ship[:208]]).sample(frac=1, random_state=6), "Survived", "copies"
    stones = pd.read_csv(folders / "diamonds/input/train.csv")[:3000]
    yield "diamonds with a price in euros", stones.assign(euros=(stones["price"] * 0.92).round()), "price", "`euros`"
