"""The scripted part of `truth.py`: candidates of known quality, and scripts that leak, under both ways of scoring.

No script is really run: an executor does for each candidate what its script would do with the files it is given, so
what it learns, leaks and prints comes from those files alone.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.pipeline.conftest import settings
from tests.pipeline.mind import Mind, MindAgents, fenced

from mle_star.models import (
    DataModality,
    ExecutionRawResult,
    FinalResult,
    MetricDirection,
    TaskDescription,
    TaskType,
)  # fmt: skip
from mle_star.orchestrator import run_pipeline
from mle_star.run.context import ScriptRequest

WAYS = ("auto", "self_reported")
QUALITIES = [round(0.75 + 0.01 * i, 2) for i in range(10)]
HONEST = {"good": 0.80, "fair": 0.76, "poor": 0.72}
HOLD_OUT = 0.2
Row = dict[str, str]
Leak = Callable[["World", list[Row], list[Row]], tuple[float, list[int]]]


@dataclass
class World:
    """A task whose labels are known here: `u` tells every row, and what is true of it."""

    truth: dict[str, int]
    seed: int

    def chance(self, *words: object) -> float:
        """A number from 0 to 1 that depends on the words alone."""
        text = "/".join(map(str, (self.seed, *words)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48

    def says(self, name: str, quality: float, row: Row) -> int:
        """A candidate's answer: right in a share of the rows."""
        return self.truth[row["u"]] if self.chance(name, row["u"]) < quality else 1 - self.truth[row["u"]]


def write_world(folder: Path, seed: int, count: int, test_rows: int, *, by_time: bool = False) -> World:
    """Labelled rows in the order of their labels (but not where time orders them), and a test of fresh ones."""
    dice = np.random.default_rng(seed)
    labels = dice.integers(0, 2, count + test_rows)
    if by_time:  # labels change slowly: neighbours in time tell each other's
        labels = np.repeat(dice.integers(0, 2, (count + test_rows) // 5 + 1), 5)[: count + test_rows]
    else:
        labels[:count] = np.sort(labels[:count])
    rows = list[dict[str, object]]()
    for i, label in enumerate(labels):
        day = np.datetime64("2020-01-01") + i
        shop = f"s{dice.integers(0, 2 * count)}"
        rows.append({"id": i, "u": f"{dice.random():.9f}", "day": str(day), "shop": shop, "y": int(label)})
    columns = ["id", "u", *(["day"] if by_time else []), "shop"]
    write_table(folder / "train.csv", rows[:count], [*columns, "y"])
    write_table(folder / "test.csv", rows[count:], columns)
    write_table(folder / "sample_submission.csv", [{**row, "y": 0} for row in rows[count:]], ["id", "y"])
    return World({str(row["u"]): int(str(row["y"])) for row in rows}, seed)


def write_table(path: Path, rows: Sequence[dict[str, object]], columns: list[str]) -> None:
    """Some columns of the rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


# --- eight leaks: each prints what its validation says, and answers the test as it then can ---------------------------


def split(world: World, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """A hold-out of a fifth, as scripts make it."""
    held = [row for row in rows if world.chance("split", row["u"]) < HOLD_OUT]
    return [row for row in rows if row not in held], held


def share(answers: Sequence[int], rows: Sequence[Row]) -> float:
    """Accuracy by the labels in a file."""
    return sum(int(row["y"]) == answer for row, answer in zip(rows, answers, strict=True)) / max(len(rows), 1)


def weak(world: World, name: str, rows: Sequence[Row]) -> list[int]:
    """What a leaking script knows once its leak is gone: little."""
    return [world.says(name, 0.6, row) for row in rows]


def scaler(world: World, train: list[Row], test: list[Row]) -> tuple[float, list[int]]:
    """Every row is centred by the mean of its class, over all rows: afterwards classes lie apart."""
    _, held = split(world, train)
    return share([int(row["y"]) for row in held], held), weak(world, "scaler", test)


def encoding(world: World, train: list[Row], test: list[Row]) -> tuple[float, list[int]]:
    """Rare shops are encoded by the mean of their labels, the row's own included."""
    means: dict[str, list[int]] = {}
    for row in train:
        means.setdefault(row["shop"], []).append(int(row["y"]))
    _, held = split(world, train)
    known = [round(float(np.mean(means[row["shop"]]))) for row in held]
    return share(known, held), [
        round(float(np.mean(means[row["shop"]]))) if row["shop"] in means else answer
        for row, answer in zip(test, weak(world, "encoding", test), strict=True)
    ]


def duplicates(world: World, train: list[Row], test: list[Row]) -> tuple[float, list[int]]:
    """Rows are doubled before the split: nearest neighbours find the copy."""
    copies = {row["u"]: int(row["y"]) for row in train}
    _, held = split(world, train)
    answers = weak(world, "duplicates", test)
    return share([copies[row["u"]] for row in held], held), [
        copies.get(row["u"], answer) for row, answer in zip(test, answers, strict=True)
    ]


def id_order(world: World, train: list[Row], test: list[Row]) -> tuple[float, list[int]]:
    """The training rows are numbered in the order of their labels."""
    border = min((int(row["id"]) for row in train if row["y"] == "1"), default=0)
    _, held = split(world, train)
    return share([int(int(row["id"]) >= border) for row in held], held), [int(int(row["id"]) >= border) for row in test]


def future_rows(world: World, train: list[Row], test: list[Row]) -> tuple[float, list[int]]:
    """A row takes the label of its neighbour in time, which a hold-out at random leaves among the known ones."""
    known = {row["day"]: int(row["y"]) for row in train}

    def neighbour(row: Row, reach: int = 4) -> int:
        day = np.datetime64(row["day"])
        for distance in range(1, reach):
            for other in (day - distance, day + distance):
                if str(other) in known:
                    return known[str(other)]
        return world.says("future", 0.5, row)

    _, held = split(world, train)
    return share([neighbour(row) for row in held], held), [neighbour(row) for row in test]


def tuning(world: World, train: list[Row], test: list[Row]) -> tuple[float, list[int]]:
    """Weights are drawn at random until they fit the scored rows: for each of these, a bit of its own."""
    _, held = split(world, train)
    bits = {row["u"]: int(row["y"]) for row in held if world.chance("fits", row["u"]) < 0.95}
    answers = [bits.get(row["u"], 0) for row in held]
    return share(answers, held), weak(world, "tuning", test)


def labels_from_file(world: World, train: list[Row], test: list[Row]) -> tuple[float, list[int]]:
    """The labels of the scored rows are looked up in the training file."""
    labels = {row["id"]: int(row["y"]) for row in train}
    _, held = split(world, train)
    return share([labels[row["id"]] for row in held], held), [
        labels.get(row["id"], answer) for row, answer in zip(test, weak(world, "file", test), strict=True)
    ]


def early_stopping(world: World, train: list[Row], test: list[Row]) -> tuple[float, list[int]]:
    """Of four hundred rounds of boosting on noise the one is kept that is best on the scored rows."""
    _, held = split(world, train)
    rounds = range(400)
    scored = {r: share([world.says(f"round {r}", 0.72, row) for row in held], held) for r in rounds}
    best = max(rounds, key=lambda r: scored[r])
    return scored[best], [world.says(f"round {best}", 0.72, row) for row in test]


LEAKS: dict[str, Leak] = {
    "scaler on all rows": scaler, "target encoding over all rows": encoding, "duplicates across the split": duplicates,
    "id order": id_order, "future rows": future_rows, "tuning on the scored rows": tuning,
    "labels read from a file": labels_from_file, "early stopping on the scored rows": early_stopping,
}  # fmt: skip


# --- the run -------------------------------------------------------------------------------------------------------


@dataclass
class Player:
    """Does what the script of a candidate would do with the files in its folder."""

    world: World
    qualities: dict[str, float]

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Learn, print, answer."""
        folder, text = Path(request.working_dir), Path(request.script_path).read_text(encoding="utf-8")
        found = re.search(r"^candidate = '(.*)'$", text, re.MULTILINE)
        out = "Ablation baseline: 0.5\nAblation no model: 0.4\n"
        if found is not None:
            train, test = (read_table(folder / "input" / f"{name}.csv") for name in ("train", "test"))
            printed, answers = self.play(found.group(1), train, test)
            rows = [{"id": row["id"], "y": answer} for row, answer in zip(test, answers, strict=True)]
            write_table(folder / "final" / "submission.csv", rows, ["id", "y"])
            out = f"Final Validation Performance: {printed}\n"
        return ExecutionRawResult(stdout=out, stderr="", exit_code=0, duration_seconds=0.01, timed_out=False)

    def play(self, name: str, train: list[Row], test: list[Row]) -> tuple[float, list[int]]:
        """What a candidate prints of itself and says of the test."""
        if name in LEAKS:
            return LEAKS[name](self.world, train, test)
        _, held = split(self.world, train)
        printed = share([self.world.says(name, self.qualities[name], row) for row in held], held)
        return printed, [self.world.says(name, self.qualities[name], row) for row in test]


def read_table(path: Path) -> list[Row]:
    """The rows of a file."""
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def mind_of(names: list[str]) -> MindAgents:
    """Proposes each candidate once and changes nothing afterwards."""

    def script(name: str) -> str:
        return fenced(f"candidate = '{name}'\nanswer(test)  # final/submission.csv")

    def init(prompt: str) -> str:
        number = re.findall(r"^model (\d+)$", prompt, re.MULTILINE)[0]
        return script(names[int(number)])

    def same(prompt: str) -> str:
        return script(re.findall(r"^candidate = '(.*)'$", prompt, re.MULTILINE)[0])

    block = {"plans": [{"code_block": "answer(test)  # final/submission.csv", "plan": "leave it"}]}
    mind = Mind(
        models=len(names),
        overrides={
            "init": init, "merger": same, "test": same, "debugger": same, "ensembler": same,
            "ablation": lambda _: fenced("print('Ablation baseline: 0.5')"), "extractor": lambda _: block,
            "coder": lambda _: fenced("answer(test)  # final/submission.csv"),
            "test-subsampling_extract": lambda _: "There is no subsampling in this script.",
            "test-contamination": lambda _: {"verdict": "Novel"},
        },
    )  # fmt: skip
    return MindAgents(mind)


async def submitted(
    scoring: str, qualities: dict[str, float], names: list[str], seed: int, rows: int, *, by_time: bool = False
) -> str:
    """The candidate that a run submits."""
    with tempfile.TemporaryDirectory() as place:
        world = write_world(Path(place) / "data", seed, rows, 200, by_time=by_time)
        task = TaskDescription(
            competition_id="known", task_type=TaskType.classification, data_modality=DataModality.tabular,
            evaluation_metric="accuracy", metric_direction=MetricDirection.maximize, description="Predict `y`.",
            data_dir=str(Path(place) / "data"),
        )  # fmt: skip
        config = settings(scoring=scoring, M=len(names), T=1, K=1, L=1, R=1, seed=seed + 1)
        result: FinalResult = await run_pipeline(
            task, config, run_dir=Path(place) / "run", agents=mind_of(names), executor=Player(world, qualities),
            console=False,
        )  # fmt: skip
    return str(re.findall(r"^candidate = '(.*)'$", result.final_solution.content, re.MULTILINE)[0])


def best_by_all(qualities: dict[str, float], seed: int, rows: int) -> str:
    """The candidate that is best by the labels of all rows at once: nobody can choose by more."""
    with tempfile.TemporaryDirectory() as place:
        world = write_world(Path(place), seed, rows, 200)
        known = read_table(Path(place) / "train.csv")
    return max(qualities, key=lambda name: share([world.says(name, qualities[name], row) for row in known], known))


def compare(repeats: int) -> bool:
    """Both tables; False when a bar is missed."""
    logging.disable(logging.WARNING)
    print("| rows | submitted: the truly best of ten | by hidden rows | by printed scores | times | by all labels |")
    print("| --- | --- | --- | --- | --- | --- |")
    met = True
    for rows in (800, 6000):
        hits = dict.fromkeys(WAYS, 0)
        worth, possible = dict.fromkeys(WAYS, 0.0), 0
        count = repeats if rows < 5000 else max(repeats // 4, 1)
        for seed in range(count):
            order = np.random.default_rng(seed).permutation(len(QUALITIES))
            qualities = {f"candidate {i}": QUALITIES[order[i]] for i in range(len(QUALITIES))}
            possible += qualities[best_by_all(qualities, seed, rows)] == max(QUALITIES)
            for way in WAYS:
                chosen = asyncio.run(submitted(way, qualities, list(qualities), seed, rows))
                hits[way] += qualities[chosen] == max(QUALITIES)
                worth[way] += qualities[chosen] / count
        times = hits["auto"] / max(hits["self_reported"], 1)
        met = met and (times >= 1.5 or rows > 5000)
        cells = [f"{hits[way]} of {count} (mean quality {worth[way]:.3f})" for way in WAYS]
        what = f"{rows:,} | best 0.84, each of the others 0.01 worse"
        print(f"| {what} | {cells[0]} | {cells[1]} | {times:.2f} | {possible} |", flush=True)
    print("\n| leak | submitted by hidden rows | by printed scores |\n| --- | --- | --- |")
    for name in LEAKS:
        leaked = dict.fromkeys(WAYS, 0)
        count = max(repeats // 6, 2)
        for seed in range(count):
            for way in WAYS:
                names = [*HONEST, name]
                chosen = asyncio.run(submitted(way, HONEST, names, seed, 800, by_time=name == "future rows"))
                leaked[way] += chosen == name
        met = met and leaked["auto"] == 0
        print(f"| {name} | {leaked['auto']} of {count} | {leaked['self_reported']} of {count} |", flush=True)
    return met
