"""MLE-bench: its folders as a task, and its server's word on a submission."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mle_star.data.guess import TaskGuess, guess_task
from mle_star.errors import ConfigError
from mle_star.run.folder import RunFolder, place_copy

VALIDATE_URL = "http://localhost:5000/validate"
VALIDATE_SECONDS = 60.0


@dataclass(frozen=True)
class Bench:
    """Where the benchmark puts things and looks for them."""

    data: Path = Path("/home/data")
    instructions: Path = Path("/home/instructions.txt")
    submission: Path = Path("/home/submission")
    code: Path = Path("/home/code")
    logs: Path = Path("/home/logs")


def bench_task(bench: Bench, competition: str) -> TaskGuess:
    """The task of a competition: its data looked at, its own description in full, the benchmark's rules below."""
    if not bench.data.is_dir():
        raise ConfigError(f"{bench.data}: no such folder; MLE-bench mounts the data of a competition there")
    guess = guess_task(bench.data, name=competition)
    parts = [_text(bench.data / "description.md"), _text(bench.instructions), guess.task.description]
    task = guess.task.model_copy(update={"description": "\n\n".join(part for part in parts if part)})
    return TaskGuess(task, guess.targets, guess.reasons, guess.notes)


def hand_in(run_dir: Path, bench: Bench) -> Path | None:
    """Put submission, script and report where the benchmark looks for them; the submission's place, if there is one."""
    folder = RunFolder(run_dir)
    target = bench.submission / "submission.csv"
    for source, place in (
        (folder.submission, target),
        (folder.solution, bench.code / "solution.py"),
        (folder.report, bench.logs / "report.html"),
    ):
        if source.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            place_copy(source, place)
    return target if folder.submission.is_file() else None


def validate(submission: Path, url: str = VALIDATE_URL) -> str:
    """What the benchmark's server says of the form of a submission; it tells no score. Empty where there is none."""
    import httpx2

    try:
        with submission.open("rb") as file:
            reply = httpx2.post(url, files={"file": (submission.name, file)}, timeout=VALIDATE_SECONDS)
    except httpx2.HTTPError:
        return ""
    try:
        answer = reply.json()
    except ValueError:
        return reply.text.strip()
    return str(answer.get("result", answer)) if isinstance(answer, dict) else str(answer)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
