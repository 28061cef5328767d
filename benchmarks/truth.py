"""Do runs keep what they expected? Every folder of real data, scored by hidden rows and by printed scores.

Each folder holds `task.yaml`, `input/` and `answers.csv`; beside the folders lies `score.py`. No run sees the answers.
One JSON line per run is kept in `.bench/truth.jsonl`; what stands there is not measured again.

    python benchmarks/truth.py --seconds 60              # the folders, both ways, then the table
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mle_star.data.folder import load_task
from mle_star.data.formulas import spearman
from mle_star.engineer.brain import EngineerBrain
from mle_star.engineer.server import BrainRequest
from mle_star.execution.environment import InterpreterInfo, inspect_interpreter
from mle_star.models import AgentConfig, PipelineConfig
from mle_star.orchestrator import run_pipeline
from mle_star.run.context import current_run
from mle_star.run.events import AgentReply
from mle_star.sdk.definitions import EnvironmentFacts, build_system_prompt

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".bench" / "truth.jsonl"
PLAN = {
    "num_retrieved_models": 3, "outer_loop_steps": 1, "inner_loop_steps": 3, "num_parallel_solutions": 2,
    "ensemble_rounds": 2,
}  # fmt: skip
"""Small enough for the time of a run on a machine with other work."""
WAYS = ("auto", "self_reported")
GRACE = 120  # seconds past its budget after which a run is ended
FEWEST_RANKED = 4


@dataclass
class Row:
    """One run. `regret`: how much better the best of its submissions is than the final one, by the truth."""

    task: str
    scoring: str
    seconds: int
    commit: str
    metric: str
    direction: str
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    rows: int | None = None
    measured: str = ""
    truth: float | None = None
    best_truth: float | None = None
    regret: float | None = None
    rank_correlation: float | None = None
    scripts: int = 0
    ranked: int = 0
    chosen: str = ""
    wall: float = 0.0
    scoring_seconds: float = 0.0
    note: str = ""

    @property
    def kept(self) -> bool | None:
        """Does the truth lie in the interval that was expected?"""
        if self.truth is None or self.low is None or self.high is None:
            return None
        return self.low <= self.truth <= self.high


def main() -> None:
    """Measure what was not measured yet, and print the table."""
    arguments = read_arguments()
    sys.path.insert(0, str(ROOT))
    if arguments.one is not None:
        asyncio.run(run_engineer(arguments.one, arguments.scoring, arguments.seconds))
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
    if not arguments.table:
        known = {(row.task, row.scoring, row.seconds) for row in read_rows()}
        for folder, scoring in planned(arguments):
            if (folder.name, scoring, arguments.seconds) not in known:
                row = run_one(folder, scoring, arguments.seconds, arguments.tasks / "score.py", arguments.cores)
                keep(row)
                print(line_of(row), flush=True)
    print_table([row for row in read_rows() if row.seconds == arguments.seconds])


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=Path, default=ROOT.parent / "shared" / "data", help="a folder of task folders")
    parser.add_argument("--seconds", type=int, default=60, help="wall clock of each run")
    parser.add_argument("--cores", type=int, default=1, help="cores of each run")
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


def planned(arguments: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    """The runs, all folders scored by hidden rows first."""
    chosen = set(filter(None, arguments.only.split(",")))
    folders = [path.parent for path in sorted(arguments.tasks.glob("*/task.yaml"))]
    for scoring in filter(None, arguments.scoring.split(",")):
        for folder in folders:
            if not chosen or folder.name in chosen:
                yield folder, scoring


# --- one run -------------------------------------------------------------------------------------------------------


def run_one(folder: Path, scoring: str, seconds: int, scorer: Path, cores: int) -> Row:
    """The embedded engineer on a copy of the folder that lacks the answers; then the truth about all it wrote."""
    task = yaml.safe_load((folder / "task.yaml").read_text())
    row = Row(folder.name, scoring, seconds, commit(), task["evaluation_metric"], task["metric_direction"])
    with tempfile.TemporaryDirectory() as place:
        given = Path(place) / folder.name
        run = given / "run"
        given.mkdir()
        (given / "task.yaml").write_text((folder / "task.yaml").read_text())
        (given / "input").symlink_to((folder / "input").resolve())
        command = [sys.executable, __file__, "--one", str(given), "--scoring", scoring, "--seconds", str(seconds)]
        started = time.monotonic()
        try:
            done = subprocess.run(
                command, timeout=seconds + GRACE, capture_output=True, text=True, check=False,
                preexec_fn=lambda: pin(cores),
            )  # fmt: skip
            row.note = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:160]
        except subprocess.TimeoutExpired:
            row.note = "did not end"
        row.wall = round(time.monotonic() - started, 1)
        if (run / "result.json").exists():
            take_result(row, run, truth_of(scorer, folder))
    return row


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


async def run_engineer(folder: Path, scoring: str, seconds: int) -> None:
    """One run in this process."""
    loaded = load_task(folder)
    config = PipelineConfig.model_validate({**PLAN, "scoring": scoring, "time_limit_seconds": seconds})
    agents = EngineerInProcess(EngineerBrain(), await asyncio.to_thread(inspect_interpreter, None))
    await run_pipeline(loaded, config, run_dir=folder / "run", agents=agents, console=False)


def pin(cores: int) -> None:
    """Let this process have so many cores, another choice for each run."""
    available = sorted(os.sched_getaffinity(0))
    if cores < len(available):
        first = os.getpid() % len(available)
        os.sched_setaffinity(0, {available[(first + i) % len(available)] for i in range(cores)})


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


def take_result(row: Row, run: Path, truth: Callable[[Path], float | None]) -> None:
    """What the run expected, what that is worth, and what all its submissions are worth."""
    result = json.loads((run / "result.json").read_text())
    expected = result["expected"] or {}
    row.expected, row.low, row.high = expected.get("score"), expected.get("low"), expected.get("high")
    row.rows, row.measured = expected.get("rows"), expected.get("measured", "")
    row.truth = truth(run / "final" / "submission.csv")
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
    if values:
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


def keep(row: Row) -> None:
    """Append a line."""
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def read_rows() -> list[Row]:
    """Everything that was measured; of a run that was repeated, the last."""
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    rows = [Row(**json.loads(line)) for line in lines if line.strip()]
    return list({(row.task, row.scoring, row.seconds): row for row in rows}.values())


def print_table(rows: list[Row]) -> None:
    """A Markdown table and the sums."""
    print("\n| folder | metric | scoring | expected | interval | truth | kept | regret | ranks | scripts | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in sorted(rows, key=lambda row: (row.task, row.scoring)):
        print(line_of(row))
    by_way = {way: {row.task: row for row in rows if row.scoring == way} for way in WAYS}
    scored = [row for row in by_way["auto"].values() if row.kept is not None]
    print(f"\nexpected scores kept: {sum(bool(row.kept) for row in scored)} of {len(by_way['auto'])}")
    both = [task for task in by_way["auto"] if task in by_way["self_reported"]]
    no_worse, gains = [], list[float]()
    for task in both:
        ours, theirs = by_way["auto"][task].regret, by_way["self_reported"][task].regret
        scale = abs(by_way["self_reported"][task].truth or 1.0)
        if ours is not None and theirs is not None:
            gains.append((theirs - ours) / scale)
            if ours <= theirs + 1e-12:
                no_worse.append(task)
    if gains:
        words = f"in the mean smaller by {np.mean(gains):.2%} of the score"
        print(f"regret no worse on {len(no_worse)} of {len(both)}, {words}")
    for way in WAYS:
        ranks = [row.rank_correlation for row in by_way[way].values() if row.rank_correlation is not None]
        errors = [abs(r.expected - r.truth) / max(abs(r.truth), 1e-9) for r in by_way[way].values()
                  if r.expected is not None and r.truth is not None]  # fmt: skip
        if ranks and errors:
            words = (
                f"rank correlation {np.mean(ranks):.2f} over {len(ranks)} runs; expected off by {np.median(errors):.1%}"
            )
            print(f"{way}: {words} in the median; {np.mean([r.wall for r in by_way[way].values()]):.0f} s a run")


def line_of(row: Row) -> str:
    """One row of the table."""
    interval = "–" if row.low is None or row.high is None else f"{row.low:.4g} to {row.high:.4g}"
    kept = {True: "yes", False: "**no**", None: "–"}[row.kept]
    cells = [row.task, row.metric, row.scoring, _short(row.expected), interval, _short(row.truth), kept,
             _short(row.regret), _short(row.rank_correlation), f"{row.scripts}", f"{row.wall:.0f}"]  # fmt: skip
    return f"| {' | '.join(cells)} |{f' {row.note}' if row.note else ''}"


def _short(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.4g}"


if __name__ == "__main__":
    main()
