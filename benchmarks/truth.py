"""Do runs keep what they expected? Every folder of real data, scored by hidden rows and by printed scores.

Each folder holds `task.yaml`, `input/` and `answers.csv`; beside the folders lies `score.py`. No run sees the answers.
One JSON line per run is kept in `.bench/truth.jsonl`; what stands there is not measured again.

    python benchmarks/truth.py --seconds 60              # the folders, both ways, then the table
    python benchmarks/truth.py --scoring auto --one-table --seeds 1,2 --side-by-side 15    # training tables alone
    python benchmarks/truth.py --candidates              # a scripted mind with candidates of known quality, and leaks
    python benchmarks/truth.py --speed                   # what views and grades cost
    python benchmarks/truth.py --coverage                # how often intervals hold the truth, on invented data
    python benchmarks/truth.py --planted                 # are time order, groups, copies and leaks found?
    python benchmarks/truth.py --table                   # the table of what was measured so far
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import yaml

from mle_star.config import load_config
from mle_star.data.folder import load_task
from mle_star.data.formulas import spearman
from mle_star.data.layout import find_layout
from mle_star.engineer.brain import EngineerBrain
from mle_star.engineer.server import BrainRequest
from mle_star.execution.artifacts import listing
from mle_star.execution.environment import InterpreterInfo, inspect_interpreter
from mle_star.models import AgentConfig
from mle_star.orchestrator import run_pipeline
from mle_star.results import load_model
from mle_star.results.source import prepared
from mle_star.run.context import current_run
from mle_star.run.events import AgentReply
from mle_star.run.folder import RunFolder
from mle_star.sdk.definitions import EnvironmentFacts, build_system_prompt

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".bench" / "truth.jsonl"
PLAN = {
    "num_retrieved_models": 3, "outer_loop_steps": 1, "inner_loop_steps": 3, "num_parallel_solutions": 2,
    "ensemble_rounds": 2,
}  # fmt: skip
"""Small enough for the time of a run on a machine with other work. One table alone has the plan that a user gets."""
WAYS = ("auto", "self_reported")
GRACE = 120  # seconds past its budget after which a run is ended
FEWEST_RANKED = 4
T = TypeVar("T")


@dataclass
class Row:
    """One run. `regret`: how much better the best of its submissions is than the final one, by the truth.

    `used` are the seconds that it took itself. `fitted`: did the first `predict` fit anything? `rank_correlation` is
    that of the truth with the scores of the search, `rank_all` with those on all hidden rows that the same scripts
    answered, `rank_most` with those on as many rows of the real test: more no hold-out of that size can reach.
    """

    task: str
    scoring: str
    seconds: int
    commit: str
    metric: str
    direction: str
    seed: int = 42
    one_table: bool = False
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    rows: int | None = None
    measured: str = ""
    truth: float | None = None
    best_truth: float | None = None
    regret: float | None = None
    rank_correlation: float | None = None
    rank_all: float | None = None
    rank_most: float | None = None
    scripts: int = 0
    ranked: int = 0
    chosen: str = ""
    took: float = 0.0
    used: float | None = None
    predict_seconds: float | None = None
    fitted: bool | None = None
    note: str = ""

    @property
    def key(self) -> tuple[str, str, int, int, bool]:
        """What tells it from all other runs."""
        return self.task, self.scoring, self.seconds, self.seed, self.one_table

    @property
    def kept(self) -> bool | None:
        """Does the truth lie in the interval that was expected?"""
        if self.truth is None or self.low is None or self.high is None:
            return None
        return self.low <= self.truth <= self.high

    @property
    def width(self) -> float | None:
        """The interval, as a part of the truth."""
        if self.truth is None or self.low is None or self.high is None:
            return None
        return (self.high - self.low) / max(abs(self.truth), 1e-9)

    @property
    def error(self) -> float | None:
        """How far off the best guess is, as a part of the truth."""
        if self.truth is None or self.expected is None:
            return None
        return abs(self.expected - self.truth) / max(abs(self.truth), 1e-9)


def main() -> None:
    """Measure what was not measured yet, and print the table."""
    arguments = read_arguments()
    sys.path.insert(0, str(ROOT))
    if arguments.one is not None:
        row = Row(arguments.one.name, arguments.scoring, arguments.seconds, "", "", "", int(arguments.seeds))
        asyncio.run(run_engineer(arguments.one, row, one_table=arguments.one_table))
        return
    if arguments.candidates:
        from benchmarks.truth_candidates import compare

        sys.exit(0 if compare(arguments.repeats) else 1)
    if arguments.speed:
        from benchmarks.truth_speed import measure

        sys.exit(measure(arguments.gigabytes))
    if arguments.coverage:
        from benchmarks.truth_coverage import measure as cover

        sys.exit(cover(arguments.repeats))
    if arguments.planted:
        from benchmarks.truth_planted import measure as find_planted

        sys.exit(find_planted(arguments.tasks))
    wanted = list(planned(arguments))
    if not arguments.table:
        known = {row.key for row in read_rows(arguments.kept)}
        keeping = threading.Lock()

        def measure_one(row: Row, cores: set[int]) -> None:
            run_one(row, arguments.tasks / row.task, arguments.tasks / "score.py", cores)
            with keeping:
                keep(row, arguments.kept)
                print(line_of(row), flush=True)

        in_lanes(measure_one, [row for row in wanted if row.key not in known], arguments.side_by_side, arguments.cores)
    keys = {row.key for row in wanted}
    print_table([row for row in read_rows(arguments.kept) if row.key in keys])


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=Path, default=ROOT.parent / "shared" / "data", help="a folder of task folders")
    parser.add_argument("--seconds", type=int, default=60, help="wall clock of each run")
    parser.add_argument("--cores", type=int, default=1, help="cores of each run")
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at once, each on cores of its own")
    parser.add_argument("--seeds", default="42", help="seeds, with commas between them")
    parser.add_argument("--one-table", action="store_true", help="give runs the training table alone, then predict")
    parser.add_argument("--kept", type=Path, default=KEPT, help="where lines are kept")
    parser.add_argument("--only", default="", help="names of folders, separated by commas")
    parser.add_argument("--scoring", default=",".join(WAYS), help="auto, self_reported or both")
    parser.add_argument("--one", type=Path, help="a folder with `task.yaml`: only run there, into its `run/`")
    parser.add_argument("--table", action="store_true", help="run nothing: the table of what is known")
    parser.add_argument("--candidates", action="store_true", help="the scripted part")
    parser.add_argument("--repeats", type=int, default=40, help="of the scripted part, and of --coverage")
    parser.add_argument("--coverage", action="store_true", help="how often intervals hold the truth")
    parser.add_argument("--planted", action="store_true", help="what relates rows, and leaks, in planted tables")
    parser.add_argument("--speed", action="store_true", help="what views and grades cost")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the table for --speed")
    return parser.parse_args()


def planned(arguments: argparse.Namespace) -> Iterator[Row]:
    """The runs, still without figures, all folders scored by hidden rows first."""
    chosen = set(filter(None, arguments.only.split(",")))
    folders = [path.parent for path in sorted(arguments.tasks.glob("*/task.yaml"))]
    for scoring in filter(None, arguments.scoring.split(",")):
        for seed in map(int, arguments.seeds.split(",")):
            for folder in folders:
                if not chosen or folder.name in chosen:
                    task = yaml.safe_load((folder / "task.yaml").read_text())
                    scored_by = task["evaluation_metric"], task["metric_direction"]
                    known = (folder.name, scoring, arguments.seconds, commit(), *scored_by)
                    yield Row(*known, seed=seed, one_table=arguments.one_table)


def in_lanes(work: Callable[[T, set[int]], None], items: Iterable[T], lanes: int, cores: int) -> None:
    """Do the work for each item, so many at once, each on so many cores of its own."""
    available = sorted(os.sched_getaffinity(0))
    if lanes * cores > len(available):
        sys.exit(f"{lanes} runs at once of {cores} cores each: there are {len(available)} cores")
    free: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    for lane in range(lanes):
        free.put(set(available[lane * cores : (lane + 1) * cores]))

    def one(item: T) -> None:
        lane = free.get()
        try:
            work(item, lane)
        finally:
            free.put(lane)

    with ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(one, item) for item in items]:
            done.result()


def pinned(command: list[str], cores: set[int]) -> list[str]:
    """The command on these cores only."""
    code = f"import os, sys; os.sched_setaffinity(0, {cores}); os.execvp(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", code, *command]


# --- one run -------------------------------------------------------------------------------------------------------


def run_one(row: Row, folder: Path, scorer: Path, cores: set[int]) -> None:
    """The embedded engineer on a copy of the folder that lacks the answers; then the truth about all it wrote."""
    with tempfile.TemporaryDirectory() as place:
        given = Path(place) / folder.name
        given.mkdir()
        (given / "task.yaml").write_text((folder / "task.yaml").read_text())
        (given / "input").symlink_to((folder / "input").resolve())
        command = [sys.executable, __file__, "--one", str(given), "--scoring", row.scoring]
        command += ["--seconds", str(row.seconds), "--seeds", str(row.seed), *["--one-table"] * row.one_table]
        most = row.seconds * (1 + row.one_table) + GRACE  # the first `predict` may have to fit
        started = time.monotonic()
        try:
            done = subprocess.run(pinned(command, cores), timeout=most, capture_output=True, text=True, check=False)
            row.note = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:160]
        except subprocess.TimeoutExpired:
            row.note = "did not end"
        row.took = round(time.monotonic() - started, 1)
        if (given / "run" / "result.json").exists():
            take_result(row, given, truth_of(scorer, folder))
            if row.ranked >= FEWEST_RANKED:
                from benchmarks.truth_ranks import ranks

                row.rank_all, row.rank_most = ranks(given / "run", folder / "answers.csv")


@dataclass
class EngineerInProcess:
    """The embedded engineer without a server and a CLI before it, so that a loaded machine measures scripts."""

    brain: EngineerBrain
    python: InterpreterInfo

    def fingerprint(self, config: AgentConfig) -> str:
        """Enough to tell the agents apart."""
        return config.agent_type.value

    async def ask(self, config: AgentConfig, prompt: str, *, label: str, **_: Any) -> AgentReply:
        """The engineer's answer, by the same words that it would be sent."""
        run, started = current_run(), time.monotonic()
        facts = EnvironmentFacts(
            python_version=self.python.version, packages=self.python.packages,
            scored_by_answers=run.shared.holdout is not None,
        )  # fmt: skip
        request = BrainRequest(config.agent_type.value, config.variant, build_system_prompt(run.task, facts), prompt)
        reply = await self.brain.reply(request)
        seconds = time.monotonic() - started
        return AgentReply(text=reply.text or "", structured=reply.structured, seconds=seconds)


async def run_engineer(folder: Path, row: Row, *, one_table: bool) -> None:
    """One run in this process; on one table, the predictions for the real test rows, too."""
    given = {"scoring": row.scoring, "time_limit_seconds": row.seconds, "seed": row.seed}
    agents = EngineerInProcess(EngineerBrain(), await asyncio.to_thread(inspect_interpreter, None))
    loaded, run = load_task(folder), folder / "run"
    how: dict[str, Any] = {"run_dir": run, "agents": agents, "console": False}
    if not one_table:
        await run_pipeline(loaded, load_config({**PLAN, **given}), **how)
        return
    config = load_config({"model": "offline", **given})
    layout = find_layout(Path(loaded.data_dir), loaded.description)
    table, maximize = Path(loaded.data_dir) / layout.train.name, loaded.metric_direction.value == "maximize"
    target, metric = ",".join(layout.target.names), loaded.evaluation_metric
    with prepared(table, config, run, target=target, metric=metric, maximize=maximize) as (task, _, _):
        await run_pipeline(task, config, **how)
    await asyncio.to_thread(predict, run, Path(loaded.data_dir), folder)


def predict(run: Path, data: Path, place: Path) -> None:
    """The fitted model's answers to the real test rows as a submission, and whether it had to fit for them."""
    test, sample = next(data.glob("test.*")), data / "sample_submission.csv"
    before, started = listing(RunFolder(run).model), time.monotonic()
    answers = load_model(run, settings=load_config({})).predict(test)
    seconds = time.monotonic() - started
    fitted = not before or listing(RunFolder(run).model) != before
    with sample.open(encoding="utf-8") as stream:
        is_european = ";" in stream.readline()
    form: dict[str, Any] = {"sep": ";", "decimal": ","} if is_european else {}
    blank = pd.read_csv(sample, **form)
    rows = pd.read_json(test) if test.suffix == ".json" else pd.read_csv(test, **form)
    columns = {name: (rows if name in rows else answers)[name].to_numpy() for name in blank.columns}
    pd.DataFrame(columns).to_csv(place / "predicted.csv", index=False, **form)
    (place / "predicted.json").write_text(json.dumps({"predict_seconds": round(seconds, 1), "fitted": fitted}))


def truth_of(scorer: Path, folder: Path) -> Callable[[Path], float | None]:
    """The metric of a submission on the hidden answers; None when it is missing or refused."""
    spec = importlib.util.spec_from_file_location("scorer", scorer)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def truth(submission: Path) -> float | None:
        if not submission.is_file():
            return None
        try:
            return float(module.score(folder, submission)[1])
        except (SystemExit, ValueError, KeyError):
            return None

    return truth


def take_result(row: Row, given: Path, truth: Callable[[Path], float | None]) -> None:
    """What the run expected, what that is worth, and what all its submissions are worth."""
    run, predicted = given / "run", given / "predicted.json"
    result = json.loads((run / "result.json").read_text())
    expected = result["expected"] or {}
    row.expected, row.low, row.high = expected.get("score"), expected.get("low"), expected.get("high")
    row.rows, row.measured = expected.get("rows"), expected.get("measured", "")
    row.used = round(result["total_duration_seconds"], 1)
    row.truth = truth(given / "predicted.csv" if row.one_table else run / "final" / "submission.csv")
    if predicted.exists():
        found = json.loads(predicted.read_text())
        row.predict_seconds, row.fitted = found["predict_seconds"], found["fitted"]
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    scores: dict[str, float] = {}
    for event in events:
        if event["kind"] == "script_finished":
            row.scripts += 1
            done = event["result"]
            if event["purpose"] == "solution" and done["submission"] and done["score"] is not None:
                scores.setdefault(done["submission"], done["score"])
        elif event["kind"] == "shortlist_scored":
            row.chosen = event["chosen"]
        elif event["kind"] == "holdout_prepared" and event["why_not"]:
            row.note = row.note or event["why_not"][:160]
    worth = {path: value for path in scores if (value := truth(run / path)) is not None}
    row.ranked = len(worth)
    values = [*worth.values(), *([row.truth] if row.truth is not None else [])]
    if worth:
        row.best_truth = max(values) if row.direction == "maximize" else min(values)
    if row.truth is not None and row.best_truth is not None:
        row.regret = abs(row.best_truth - row.truth)
    if len(worth) >= FEWEST_RANKED:
        figure = spearman(np.array([scores[path] for path in worth]), np.array(list(worth.values())))
        row.rank_correlation = None if np.isnan(figure) else round(float(figure), 3)


def commit() -> str:
    """What was measured."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


# --- what is kept ----------------------------------------------------------------------------------------------------


def keep(row: Row, path: Path) -> None:
    """Append a line."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({**asdict(row), "kept": row.kept, "width": row.width, "error": row.error}) + "\n")


def read_rows(path: Path) -> list[Row]:
    """Everything that was measured; of a run that was repeated, the last."""
    lines = path.read_text().splitlines() if path.exists() else []
    names = {field.name for field in fields(Row)}
    known = [{n: v for n, v in json.loads(line).items() if n in names} for line in lines if line.strip()]
    return list({row.key: row for row in (Row(**line) for line in known)}.values())


def print_table(rows: list[Row]) -> None:
    """A Markdown table and the sums."""
    titles = ["folder", "seed", "metric", "scoring", "expected", "interval", "truth", "kept", "regret", "ranks"]
    titles += ["scripts", "used", "first predict"]
    print(f"\n| {' | '.join(titles)} |\n|{' --- |' * len(titles)}")
    for row in sorted(rows, key=lambda row: (row.task, row.seed, row.scoring)):
        print(line_of(row))
    print()
    by_way = {way: {(row.task, row.seed): row for row in rows if row.scoring == way} for way in WAYS}
    for way, ran in by_way.items():
        if ran:
            print(f"{way}: {in_sum([*ran.values()])}")
    both = [key for key in by_way["auto"] if key in by_way["self_reported"]]
    no_worse, gains = [], list[float]()
    for key in both:
        ours, theirs = by_way["auto"][key].regret, by_way["self_reported"][key].regret
        scale = abs(by_way["self_reported"][key].truth or 1.0)
        if ours is not None and theirs is not None:
            gains.append((theirs - ours) / scale)
            if ours <= theirs + 1e-12:
                no_worse.append(key)
    if gains:
        words = f"in the mean smaller by {np.mean(gains):.2%} of the score"
        print(f"regret by hidden rows no worse on {len(no_worse)} of {len(both)}, {words}")


def in_sum(rows: list[Row]) -> str:
    """A line about all of these runs; width, error and regret are parts of the truth."""
    regrets = [row.regret / max(abs(row.truth), 1e-9) for row in rows if row.regret is not None and row.truth]
    words = [f"expected scores kept: {sum(bool(row.kept) for row in rows)} of {len(rows)}"]
    for name, figures, middle in (
        ("median width", [row.width for row in rows if row.width is not None], np.median),
        ("median error", [row.error for row in rows if row.error is not None], np.median),
        ("mean regret", regrets, np.mean),
        ("time used", [row.used / row.seconds for row in rows if row.used is not None], np.median),
    ):
        words += [f"{name} {middle(figures):.1%}"] if figures else []
    for name, figures in (
        ("rank correlation", [row.rank_correlation for row in rows if row.rank_correlation is not None]),
        ("by all hidden rows", [row.rank_all for row in rows if row.rank_all is not None]),
        ("with as many rows of the test", [row.rank_most for row in rows if row.rank_most is not None]),
    ):
        words += [f"{name} {np.nanmean(figures):.2f} over {len(figures)} runs"] if figures else []
    fitted = [row.fitted for row in rows if row.fitted is not None]
    words += [f"a first predict that fitted: {sum(fitted)} of {len(fitted)}"] if fitted else []
    return "; ".join(words)


def line_of(row: Row) -> str:
    """One row of the table."""
    interval = "–" if row.low is None or row.high is None else f"{row.low:.4g} to {row.high:.4g}"
    kept = {True: "yes", False: "**no**", None: "–"}[row.kept]
    first = "–" if row.fitted is None else f"{'fitted, ' * row.fitted}{row.predict_seconds:.0f} s"
    cells = [row.task, f"{row.seed}", row.metric, row.scoring, _short(row.expected), interval, _short(row.truth), kept]
    cells += [_short(row.regret), _short(row.rank_correlation), f"{row.scripts}", f"{_short(row.used)} s", first]
    return f"| {' | '.join(cells)} |{f' {row.note}' if row.note else ''}"


def _short(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.4g}"


if __name__ == "__main__":
    main()
