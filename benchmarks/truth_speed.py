"""The costs part of `truth.py`: views of a large table against a copy, a grade of 100,000 rows, a run's overhead."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow
from benchmarks.truth_candidates import HONEST, Player, mind_of, write_table, write_world

from mle_star.data.layout import find_layout
from mle_star.data.metrics import known_metric
from mle_star.data.tables import _looked_at
from mle_star.holdout.answers import keys_of, read_answers
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data
from mle_star.models import DataModality, ExecutionRawResult, MetricDirection, PipelineConfig, TaskDescription, TaskType
from mle_star.orchestrator import run_pipeline
from mle_star.run.context import ScriptRequest

COLUMNS = 40
SCRIPT_SECONDS = 4.0
REPEATS = 3


def measure(gigabytes: float) -> int:
    """Print each figure with its bar; the exit code: 1 when one is missed."""
    logging.disable(logging.WARNING)
    pyarrow.set_cpu_count(os.cpu_count() or 1)  # the tests, from which the fixtures come, have one thread
    met = [views(gigabytes), grades(), asyncio.run(overhead())]
    return 0 if all(met) else 1


def is_met(what: str, value: float, bar: float, unit: str) -> bool:
    """One line."""
    print(f"{what:<60} {value:8.2f} {unit:<6} bar {bar:g} {'ok' if value <= bar else 'MISSED'}", flush=True)
    return value <= bar


def views(gigabytes: float) -> bool:
    """One view of a table of this size against a copy beside it: medians, both read from memory and down on the disk.

    The look at all tables comes before: every run makes it once, whether there are views or not.
    """
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as place:
        folder, copy, view = (Path(place) / name for name in ("data", "copy", "view"))
        rows = write_large(folder, gigabytes)
        size = (folder / "train.csv").stat().st_size / 2**30
        times: dict[str, list[float]] = {"copying": [], "looking": [], "making": []}
        for _ in range(REPEATS):
            with clock(times["copying"]):
                copy.mkdir()
                shutil.copyfile(folder / "train.csv", copy / "train.csv")
                flush(copy)
            shutil.rmtree(copy)
            _looked_at.cache_clear()
            with clock(times["looking"]):
                layout = find_layout(folder, "Predict `y`.")
            with clock(times["making"]):
                data = Data.read(layout)
                data.make_view("v", data.split(seed=1).views[0], view, seed=2)
                flush(view)
            shutil.rmtree(view)
    copying, looking, making = (statistics.median(times[name]) for name in ("copying", "looking", "making"))
    print(f"{size:.2f} GB, {rows:,} rows: copied in {copying:.1f} s, looked at in {looking:.1f} s")
    print(f"a view with the look before it: {(looking + making) / copying:.1f} times the copy")
    return is_met(f"a view ({making:.1f} s) against a copy", making / copying, 6.0, "times")


@contextmanager
def clock(times: list[float]) -> Iterator[None]:
    """Add the seconds that a block takes; whatever was to be written before is on the disk when it begins."""
    os.sync()
    started = time.monotonic()
    yield
    times.append(time.monotonic() - started)


def flush(folder: Path) -> None:
    """Wait until the files of a folder are on the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def write_large(folder: Path, gigabytes: float) -> int:
    """A table of random numbers, written in blocks that repeat."""
    folder.mkdir(parents=True)
    dice, block = np.random.default_rng(1), 20_000
    names = [f"x{i}" for i in range(COLUMNS)]
    lines = [",".join(f"{value:.6f}" for value in row) for row in dice.random((block, COLUMNS))]
    labels = dice.integers(0, 2, block)
    written = number = 0
    with (folder / "train.csv").open("w") as stream:
        stream.write(",".join(["id", *names, "y"]) + "\n")
        while written < gigabytes * 2**30:
            text = "".join(f"{number + i},{line},{labels[i]}\n" for i, line in enumerate(lines))
            stream.write(text)
            written += len(text)
            number += block
    with (folder / "test.csv").open("w") as stream:
        stream.write(",".join(["id", *names]) + "\n")
        stream.writelines(f"{number + i},{line}\n" for i, line in enumerate(lines))
    rows: list[dict[str, object]] = [{"id": number + i, "y": 0} for i in range(block)]
    write_table(folder / "sample_submission.csv", rows, ["id", "y"])
    return number


def grades() -> bool:
    """A submission of 100,000 rows: read, checked and graded with its interval."""
    with tempfile.TemporaryDirectory() as place:
        folder, count = Path(place) / "data", 100_000
        write_world(folder, 1, 150_000, count)
        data = Data.read(find_layout(folder, "Predict `y`."))
        scorer = Scorer(data, known_metric("accuracy"))
        split = data.split(seed=1)
        view = data.make_view("v", split.views[0], Path(place) / "view", seed=2)
        dice = np.random.default_rng(2)
        rows: list[dict[str, object]] = [
            {"id": key, "y": int(dice.integers(0, 2))} for key in keys_of(scorer.data, view)
        ]
        write_table(Path(place) / "s.csv", rows, ["id", "y"])
        scorer.problem(read_answers(data, Path(place) / "s.csv", view))  # what is found out once per run
        read_answers(data, Path(place) / "s.csv", view)
        started = time.process_time()  # of one thread, so that other work on the machine does not count
        answers = read_answers(data, Path(place) / "s.csv", view)
        assert not scorer.problem(answers)
        scorer.grade(answers.hidden, list(split.views[0]))
        seconds = time.process_time() - started
    return is_met(f"a grade of {len(rows):,} rows", seconds * 100_000 / len(rows), 1.0, "s")


class Slow(Player):
    """Takes its time, and counts its scripts."""

    count = 0

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """As a candidate, later."""
        self.count += 1
        await asyncio.sleep(SCRIPT_SECONDS)
        return (await super().run(request)).model_copy(update={"duration_seconds": SCRIPT_SECONDS})


async def overhead() -> bool:
    """The wall-clock time of a run with one view against the same run with printed scores, by script.

    Where rows are hidden, one more script runs: it measures which columns matter.
    """
    seconds, counts = dict[str, float](), dict[str, int]()
    for way in ("self_reported", "auto"):
        with tempfile.TemporaryDirectory() as place:
            world = write_world(Path(place) / "data", 1, 6000, 2000)
            task = TaskDescription(
                competition_id="known", task_type=TaskType.classification, data_modality=DataModality.tabular,
                evaluation_metric="accuracy", metric_direction=MetricDirection.maximize, description="Predict `y`.",
                data_dir=str(Path(place) / "data"),
            )  # fmt: skip
            config = PipelineConfig.model_validate(
                {"scoring": way, "num_retrieved_models": 3, "outer_loop_steps": 1, "inner_loop_steps": 1,
                 "num_parallel_solutions": 1, "ensemble_rounds": 1}
            )  # fmt: skip
            started, executor = time.monotonic(), Slow(world, HONEST)
            await run_pipeline(
                task, config, run_dir=Path(place) / "run", agents=mind_of(list(HONEST)), executor=executor,
                console=False,
            )  # fmt: skip
            seconds[way], counts[way] = time.monotonic() - started, executor.count
    for way, words in {"self_reported": "printed scores", "auto": "hidden rows"}.items():
        print(f"a run by {words}: {seconds[way]:.1f} s, {counts[way]} scripts")
    ratio = seconds["auto"] / counts["auto"] / (seconds["self_reported"] / counts["self_reported"])
    return is_met("overhead of a run with one view, by script", 100 * (ratio - 1), 3.0, "%")
