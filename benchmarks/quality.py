"""How good are the submissions? The embedded engineer beside FLAML and AutoGluon, on hidden answers.

Every contender gets the same data, the same seconds of wall clock and the same number of cores. A folder holds
`task.yaml`, `input/` and `answers.csv`; beside the folders lies `score.py`, which prints the metric. No contender sees
the answers. One JSON line per contender is kept in `.bench/quality.jsonl`; what stands there is not measured again.
What `docs/benchmarks.md` tells stands in `benchmarks/quality.jsonl`; with `--kept` the measuring goes on there.

    python benchmarks/quality.py --tasks DIR --seconds 60,150,300 --seeds 1,2,3 --rivals flaml,autogluon
    python benchmarks/quality.py --cores 1 --side-by-side 2      # two contenders at once, a core each
    python benchmarks/quality.py --table                         # the table of what was measured so far
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import yaml

from mle_star.execution import LocalExecutor, link_input_data, setup_working_directory
from mle_star.execution.environment import script_environment
from mle_star.models import PipelineConfig
from mle_star.run.context import ScriptRequest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.truth import commit, in_lanes, pinned  # noqa: E402

BENCH = ROOT / ".bench"
RIVALS = {
    "flaml": ["flaml[automl]==2.7.0", "pandas", "scikit-learn", "pyyaml"],
    "autogluon": ["autogluon.tabular[catboost,lightgbm,xgboost]==1.6.3", "pyyaml"],
}
GRACE = 120  # seconds past its budget after which a contender is ended


@dataclass
class Row:
    """One contender on one task."""

    task: str
    contender: str
    metric: str
    direction: str
    score: float | None
    limit: int = 0
    seed: int = 0
    cores: int = 0
    commit: str = ""
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    candidate: float | None = None
    candidate_expected: float | None = None
    seconds: float = 0.0
    first: float | None = None
    scripts: int = 0
    wins: bool = False
    note: str = ""

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """What tells it from all other rows."""
        return self.task, self.contender, self.limit, self.seed, self.cores

    @property
    def held(self) -> bool | None:
        """Does the score lie in the interval that was expected?"""
        if self.score is None or self.low is None or self.high is None:
            return None
        return self.low <= self.score <= self.high


def main() -> None:
    """Measure what was not measured yet; print the table, write it as CSV and as a picture."""
    arguments = read_arguments()
    rivals = [name for name in arguments.rivals.split(",") if name]
    wanted = planned(arguments, ["mle-star", *rivals])
    known = {row.key: row for row in read_rows(arguments.kept)}
    if not arguments.table:
        for rival in rivals:
            interpreter(rival)
        measure([row for row in wanted if row.key not in known], arguments)
        known = {row.key: row for row in read_rows(arguments.kept)}
    rows = [known[row.key] for row in wanted if row.key in known]
    for _, same in itertools.groupby(rows, lambda row: (row.task, row.limit, row.seed)):
        mark_winner(list(same))
    write_csv(rows, BENCH / "quality.csv")
    print_wins(rows, rivals)
    draw(rows, BENCH / "quality.png")


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=Path, default=ROOT.parent / "shared" / "data", help="a folder of task folders")
    parser.add_argument(
        "--seconds", default="300", help="wall clock for each contender; several with commas between them"
    )
    parser.add_argument("--seeds", default="42", help="seeds, with commas between them")
    parser.add_argument("--rivals", default="flaml", help="of: flaml, autogluon; empty for none")
    parser.add_argument("--only", default="", help="names of folders, separated by commas")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="cores of each contender")
    parser.add_argument("--side-by-side", type=int, default=1, help="contenders at once, each on cores of its own")
    parser.add_argument(
        "--candidates", action="store_true", help="score our best single candidate, too, beside the clock"
    )
    parser.add_argument("--kept", type=Path, default=BENCH / "quality.jsonl", help="where rows are kept")
    parser.add_argument("--table", action="store_true", help="run nothing: the table of what is known")
    return parser.parse_args()


def planned(arguments: argparse.Namespace, contenders: list[str]) -> list[Row]:
    """All rows of the table, still without a score, the contenders of a task beside each other."""
    folders = [path.parent for path in sorted(arguments.tasks.glob("*/task.yaml"))]
    chosen = arguments.only.split(",") if arguments.only else [folder.name for folder in folders]
    rows = []
    for seconds, seed in itertools.product(numbers(arguments.seconds), numbers(arguments.seeds)):
        for folder in (folder for folder in folders if folder.name in chosen):
            task = yaml.safe_load((folder / "task.yaml").read_text())
            scored_by = task["evaluation_metric"], task["metric_direction"]
            rows += [Row(folder.name, name, *scored_by, None, seconds, seed, arguments.cores) for name in contenders]
    return rows


def measure(rows: list[Row], arguments: argparse.Namespace) -> None:
    """Measure rows and keep each as it is done, so that a long measurement can be stopped and go on."""
    keeping = threading.Lock()

    def one(row: Row, cores: set[int]) -> None:
        compete(row, arguments.tasks / row.task, arguments.tasks / "score.py", cores, alone=arguments.candidates)
        with keeping, arguments.kept.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
            print(line_of(row), flush=True)

    arguments.kept.parent.mkdir(exist_ok=True)
    in_lanes(one, rows, arguments.side_by_side, arguments.cores)


def read_rows(path: Path) -> list[Row]:
    """What was measured so far."""
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def numbers(text: str) -> list[int]:
    """Whole numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def medians_of(rows: list[Row]) -> dict[tuple[str, int, str], float | None]:
    """The median score over the seeds by task, limit and contender; a run without a submission counts as the worst."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task, row.limit, row.contender), []).append(row)
    medians: dict[tuple[str, int, str], float | None] = {}
    for key, same in groups.items():
        sign = -1 if same[0].direction == "maximize" else 1
        middle = statistics.median(math.inf if row.score is None else sign * row.score for row in same)
        medians[key] = sign * middle if math.isfinite(middle) else None
    return medians


def compete(row: Row, folder: Path, scorer: Path, cores: set[int], *, alone: bool) -> None:
    """Run one contender on a copy of the folder that lacks the answers, then score what it wrote."""
    with tempfile.TemporaryDirectory() as place:
        given = Path(place) / folder.name
        given.mkdir()
        (given / "task.yaml").write_text((folder / "task.yaml").read_text())
        (given / "input").symlink_to((folder / "input").resolve())
        run = Path(place) / "run"
        submission = run / "final" / "submission.csv"
        if row.contender == "mle-star":
            row.commit = commit()
            command = [sys.executable, "-m", "mle_star.cli.app", "run", str(given), "--model", "offline", "--quiet"]
            command += ["--time-limit", str(row.limit), "--output", str(run), "--set", f"seed={row.seed}"]
        else:
            script = ROOT / "benchmarks" / "rivals" / f"{row.contender}_run.py"
            command = [str(interpreter(row.contender)), str(script), str(given), str(submission), str(row.limit)]
            command += [str(row.seed)]
        started, at = time.monotonic(), datetime.now(timezone.utc)
        try:
            done = subprocess.run(
                pinned(command, cores), timeout=row.limit + GRACE, capture_output=True, text=True, check=False,
                cwd=place,
            )  # fmt: skip
            row.note = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:100]
        except subprocess.TimeoutExpired:
            row.note = "did not end"
        row.seconds = time.monotonic() - started
        row.score = score_of(scorer, folder, submission)
        take_events(row, run / "journal.jsonl", at)
        if (run / "result.json").exists():
            candidate = take_scores(row, run)
            if alone and candidate:
                answer = asyncio.run(answer_of(candidate, given, Path(place) / "candidate"))
                row.candidate = score_of(scorer, folder, answer)


def take_events(row: Row, journal: Path, started: datetime) -> None:
    """How many scripts our own run has tried, and after how many seconds it had its first valid submission."""
    events = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    scripts = [event for event in events if event["kind"] == "script_finished"]
    row.scripts = len(scripts)
    valid = [e for e in scripts if e["result"]["submission"] and e["result"]["score"] is not None]
    if valid:
        row.first = (datetime.fromisoformat(valid[0]["at"].replace("Z", "+00:00")) - started).total_seconds()


def take_scores(row: Row, run: Path) -> str:
    """What our own run said about itself; the script of its best single candidate, an empty text without one."""
    result = json.loads((run / "result.json").read_text())
    expected = result["expected"] or {}
    row.expected, row.low, row.high = expected.get("score"), expected.get("low"), expected.get("high")
    candidates = [c for c in (result["phase1"] or {}).get("candidate_solutions", []) if c["score"] is not None]
    if not candidates:
        return ""
    best = (max if row.direction == "maximize" else min)(candidates, key=lambda candidate: float(candidate["score"]))
    row.candidate_expected = best["score"]
    return str(best["content"])


async def answer_of(script: str, folder: Path, place: Path) -> Path:
    """The submission that a script writes when it runs once more, in the harness and beside the clock."""
    home = Path(setup_working_directory(str(place)))
    link_input_data(str(folder / "input"), str(home))
    (home / "solution.py").write_text(script)
    request = ScriptRequest(
        script_path=str(home / "solution.py"), working_dir=str(home), timeout_seconds=600,
        env=script_environment(PipelineConfig()),
    )  # fmt: skip
    await LocalExecutor().run(request)
    return home / "final" / "submission.csv"


def score_of(scorer: Path, folder: Path, submission: Path) -> float | None:
    """The metric on the hidden answers; None when the submission is missing or invalid."""
    if not submission.exists():
        return None
    command = [sys.executable, str(scorer), str(folder), str(submission)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def interpreter(rival: str) -> Path:
    """The rival's own environment, made on first use."""
    home = BENCH / rival
    python = home / "bin" / "python"
    if not (home / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *RIVALS[rival]], check=True)
        (home / ".installed").touch()
    return python


def better(a: float | None, b: float | None, direction: str) -> bool:
    """Is `a` strictly better than `b`? No score loses against any."""
    if a is None or b is None:
        return a is not None
    return a > b if direction == "maximize" else a < b


def mark_winner(rows: list[Row]) -> None:
    """Say who has the best score of a task."""
    for row in rows:
        others = [other for other in rows if other is not row]
        row.wins = all(better(row.score, other.score, row.direction) for other in others)


def line_of(row: Row) -> str:
    """One row of the table."""
    words = [f"{row.task:20} {row.contender:10} {row.metric:9} {_short(row.score):>9} {row.seconds:6.0f} s "]
    if row.scripts:
        first = "never" if row.first is None else f"after {row.first:.0f} s"
        words.append(f"expected {_short(row.expected)}; {row.scripts} scripts, the first submission {first}")
    if row.candidate is not None:
        words.append(f"best candidate {_short(row.candidate)} (expected {_short(row.candidate_expected)})")
    return " ".join([*words, row.note])


def _short(score: float | None) -> str:
    return "none" if score is None else f"{score:.5g}"


def print_wins(rows: list[Row], rivals: list[str]) -> None:
    """The medians over the seeds; and against each rival: on how many of the tasks are we ahead?"""
    medians, directions = medians_of(rows), {row.task: row.direction for row in rows}
    for limit in sorted({row.limit for row in rows}):
        print_medians([row for row in rows if row.limit == limit], ["mle-star", *rivals])
    for rival, limit in itertools.product(rivals, sorted({row.limit for row in rows})):
        both = [task for task in directions if {(task, limit, "mle-star"), (task, limit, rival)} <= set(medians)]
        won = [
            task for task in both
            if better(medians[task, limit, "mle-star"], medians[task, limit, rival], directions[task])
        ]  # fmt: skip
        print(f"{limit} s: ahead of {rival} on {len(won)} of {len(both)}: {', '.join(won)}")
    ours = [row for row in rows if row.contender == "mle-star"]
    print(f"a submission in {sum(row.score is not None for row in ours)} of {len(ours)} runs")
    held = [row.held for row in ours if row.held is not None]
    print(f"the score lies in the interval that was expected in {sum(held)} of {len(held)} runs")
    alone = [row for row in ours if row.candidate is not None]
    seen = [row.task for row in alone if better(row.score, row.candidate, row.direction)]
    if alone:
        print(f"better than the best single candidate on {len(seen)} of {len(alone)}: {', '.join(seen)}")


def print_medians(rows: list[Row], contenders: list[str]) -> None:
    """A table in Markdown of the medians at one limit of time, and how many seeds each contender has."""
    medians, limit = medians_of(rows), rows[0].limit
    seeds = [len({row.seed for row in rows if row.contender == name}) for name in contenders]
    titles = [f"{name} (seeds: {count})" for name, count in zip(contenders, seeds, strict=True)]
    print(f"\n{limit} s\n\n| folder | metric | {' | '.join(titles)} |\n| --- | --- |{' --- |' * len(titles)}")
    for task, metric in dict.fromkeys((row.task, row.metric) for row in rows):
        cells = [_short(medians.get((task, limit, name))) for name in contenders]
        print(f"| {task} | {metric} | {' | '.join(cells)} |")
    print()


def write_csv(rows: list[Row], path: Path) -> None:
    """The table as a file."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])) if rows else [])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def draw(rows: list[Row], path: Path) -> None:
    """One small chart per task: each contender's score on the hidden answers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row.task for row in rows))
    if not tasks:
        return
    figure, axes = plt.subplots(1, len(tasks), figsize=(3 * len(tasks), 3), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        shown = [row for row in rows if row.task == task and row.score is not None]
        for row in shown:
            axis.plot(row.contender, row.score, "o", color="#2f55d4" if row.wins else "#9aa4b8")
            axis.annotate(
                _short(row.score), (row.contender, row.score), (0, 7), textcoords="offset points", ha="center"
            )
        axis.set_title(f"{task}\n{shown[0].metric} ({shown[0].direction})" if shown else task, fontsize=9)
        axis.margins(x=0.3, y=0.3)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"wrote {path} and {path.with_suffix('.csv')}")


if __name__ == "__main__":
    main()
