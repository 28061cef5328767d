"""How good are the submissions? The embedded engineer beside FLAML and AutoGluon, on hidden answers.

Every contender gets the same data, the same seconds of wall clock and the same cores, one after another. A folder holds
`task.yaml`, `input/` and `answers.csv`; beside the folders lies `score.py`, which prints the metric. No contender sees
the answers.

    python benchmarks/quality.py --tasks DIR --seconds 60,150,300 --seeds 1,2,3 --rivals flaml,autogluon
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from mle_star.execution import LocalExecutor, link_input_data, script_environment, setup_working_directory
from mle_star.models import PipelineConfig
from mle_star.run.context import ScriptRequest

ROOT = Path(__file__).parent.parent
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
    promised: float | None = None
    candidate: float | None = None
    candidate_promised: float | None = None
    seconds: float = 0.0
    scripts: int = 0
    wins: bool = False
    note: str = ""


def main() -> None:
    """Run every contender on every task; print the table, write it as CSV and as a picture."""
    arguments = read_arguments()
    folders = [path.parent for path in sorted(arguments.tasks.glob("*/task.yaml"))]
    chosen = arguments.only.split(",") if arguments.only else [folder.name for folder in folders]
    rivals = [name for name in arguments.rivals.split(",") if name]
    rows: list[Row] = []
    for folder in (folder for folder in folders if folder.name in chosen):
        task = yaml.safe_load((folder / "task.yaml").read_text())
        for seconds, seed in itertools.product(numbers(arguments.seconds), numbers(arguments.seeds)):
            these: list[Row] = []
            for contender in ("mle-star", *rivals):
                metric, direction = task["evaluation_metric"], task["metric_direction"]
                row = Row(folder.name, contender, metric, direction, None, seconds, seed)
                compete(row, folder, seconds, arguments.tasks / "score.py")
                rows.append(row)
                these.append(row)
                print(line_of(row), flush=True)
                write_csv(rows, BENCH / "quality.csv")  # after each: a long run that is stopped keeps what it has
            mark_winner(these)
    write_csv(rows, BENCH / "quality.csv")
    print_medians(rows)
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
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    """Whole numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def print_medians(rows: list[Row]) -> None:
    """The median score over the seeds, for each task, limit and contender."""
    groups: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        if row.score is not None:
            groups.setdefault((row.task, row.limit, row.contender), []).append(row.score)
    for (task, limit, contender), scores in groups.items():
        print(f"{task:20} {limit:5} s  {contender:12} median {statistics.median(scores):.6g} of {len(scores)}")


def compete(row: Row, folder: Path, seconds: int, scorer: Path) -> None:
    """Run one contender on a copy of the folder that lacks the answers, then score what it wrote."""
    with tempfile.TemporaryDirectory() as place:
        given = Path(place) / folder.name
        given.mkdir()
        (given / "task.yaml").write_text((folder / "task.yaml").read_text())
        (given / "input").symlink_to((folder / "input").resolve())
        run = Path(place) / "run"
        submission = run / "final" / "submission.csv"
        if row.contender == "mle-star":
            command = [sys.executable, "-m", "mle_star.cli.app", "run", str(given), "--model", "offline", "--quiet"]
            command += ["--time-limit", str(seconds), "--output", str(run), "--set", f"seed={row.seed}"]
        else:
            script = ROOT / "benchmarks" / "rivals" / f"{row.contender}_run.py"
            command = [str(interpreter(row.contender)), str(script), str(given), str(submission), str(seconds)]
            command += [str(row.seed)]
        started = time.monotonic()
        try:
            done = subprocess.run(command, timeout=seconds + GRACE, capture_output=True, text=True, check=False)
            row.note = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1][:100]
        except subprocess.TimeoutExpired:
            row.note = "did not end"
        row.seconds = time.monotonic() - started
        row.score = score_of(scorer, folder, submission)
        if (run / "result.json").exists():
            candidate = take_promises(row, run)
            answer = asyncio.run(answer_of(candidate, given, Path(place) / "candidate"))
            row.candidate = score_of(scorer, folder, answer)


def take_promises(row: Row, run: Path) -> str:
    """What our own run said about itself; the script of its best single candidate."""
    result = json.loads((run / "result.json").read_text())
    row.promised = result["final_solution"]["score"]
    candidates = [c for c in result["phase1"]["candidate_solutions"] if c["score"] is not None]
    best = (max if row.direction == "maximize" else min)(candidates, key=lambda candidate: float(candidate["score"]))
    row.candidate_promised = best["score"]
    row.scripts = (run / "journal.jsonl").read_text().count('"kind":"script_finished"')
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
        if row.wins and others:
            print(f"{row.task:20} best: {row.contender}", flush=True)


def line_of(row: Row) -> str:
    """One row of the table."""
    words = [f"{row.task:20} {row.contender:10} {row.metric:9} {_short(row.score):>9} {row.seconds:6.0f} s "]
    if row.promised is not None:
        candidate = f"best candidate {_short(row.candidate)} (promised {_short(row.candidate_promised)})"
        words += [f"promised {_short(row.promised)}; {candidate}; {row.scripts} scripts"]
    return " ".join([*words, row.note])


def _short(score: float | None) -> str:
    return "none" if score is None else f"{score:.5g}"


def print_wins(rows: list[Row], rivals: list[str]) -> None:
    """Against each rival: on how many of the tasks are we ahead?"""
    mine = {(row.task, row.limit, row.seed): row for row in rows if row.contender == "mle-star"}
    ours = {f"{task} {limit} s, seed {seed}": row for (task, limit, seed), row in mine.items()}
    for rival in rivals:
        theirs = [row for row in rows if row.contender == rival]
        won = [r.task for r in theirs if better(mine[r.task, r.limit, r.seed].score, r.score, r.direction)]
        print(f"ahead of {rival} on {len(won)} of {len(theirs)}: {', '.join(won)}")
    seen = [task for task, row in ours.items() if better(row.score, row.candidate, row.direction)]
    said = [task for task, row in ours.items() if not better(row.candidate_promised, row.promised, row.direction)]
    print(f"better than the best single candidate on {len(seen)} of {len(ours)}: {', '.join(seen)}")
    print(f"on validation no worse than it on {len(said)} of {len(ours)}: {', '.join(said)}")


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
