"""Competitions as tasks, and what a run has to submit: Kaggle, by its own client, and the folders of MLE-bench."""

import html
import re
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mle_star.data.folder import TASK_FILE, write_task
from mle_star.data.guess import TaskGuess, guess_task
from mle_star.errors import ConfigError
from mle_star.execution.workspace import entries_below
from mle_star.models import Frozen
from mle_star.run.folder import RunFolder, place_copy, write_whole

KEPT_FILE = "kaggle.json"
_PAGES = ("description", "evaluation", "data-description")
"""What of a competition's pages says what is wanted, in this order."""

# --- Kaggle ----------------------------------------------------------------------------------------------


class Sent(Frozen):
    """A submission on Kaggle: the score that its run expected then, and its public score, once there is one."""

    competition: str
    ref: int
    message: str
    expected: str = "unknown"
    status: str = "PENDING"
    score: float | None = None
    problem: str = ""


_SENT = TypeAdapter(list[Sent])


def get_competition(competition: str, folder: Path) -> TaskGuess:
    """Download a competition's data and pages into a task folder; the task is guessed from both."""
    if any(entry.name != f"{competition}.zip" for entry in entries_below(folder.resolve())):  # of a broken download
        raise ConfigError(f"{folder} is not empty; choose another folder with --output")
    data = folder / "input"
    data.mkdir(parents=True, exist_ok=True)
    with _service() as api:
        pages = {page.name.lower(): page.content for page in api.competition_list_pages(competition)}
        api.competition_download_files(competition, path=str(data), quiet=True)
    if zipfile.is_zipfile(archive := data / f"{competition}.zip"):  # everything comes in one file
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(data)
        archive.unlink()
    sections = [f"# {name}\n\n{_plain(pages[name])}" for name in _PAGES if pages.get(name)]
    write_whole(folder / "description.md", "\n\n".join([f"Kaggle competition {competition}", *sections]) + "\n")
    guess = guess_task(folder, name=competition)
    write_task(guess, folder / TASK_FILE)
    return guess


def submit(run_dir: Path, competition: str, message: str, expected: str) -> Sent:
    """Send a run's submission; what was sent, and with which expected score, is kept in the run's folder."""
    with _service() as api:
        reply = api.competition_submit(str(RunFolder(run_dir).submission), message, competition, quiet=True)
    if not reply.ref:
        raise ConfigError(f"Kaggle did not take the submission: {reply.message or 'no reason given'}")
    sent = Sent(competition=competition, ref=int(reply.ref), message=message, expected=expected)
    _keep(run_dir, [*kept(run_dir), sent])
    return sent


def refresh(run_dir: Path, *, wait_seconds: float = 0.0) -> list[Sent]:
    """What was sent from a run, with the scores that Kaggle tells by now; waits for those that are still open."""
    known, deadline = kept(run_dir), time.monotonic() + wait_seconds
    while any(one.status == "PENDING" for one in known):
        sent_before: dict[int, Any] = {}
        with _service() as api:
            for competition in {one.competition for one in known}:
                sent_before |= {one.ref: one for one in api.competition_submissions(competition) or [] if one}
        known = [_updated(one, sent_before.get(one.ref)) for one in known]
        _keep(run_dir, known)
        if time.monotonic() >= deadline:
            break
        time.sleep(min(5.0, wait_seconds))
    return known


def kept(run_dir: Path) -> list[Sent]:
    """What was sent from a run, as far as it is known here."""
    with suppress(OSError, ValueError):
        return _SENT.validate_json((run_dir / KEPT_FILE).read_bytes())
    return []


def _keep(run_dir: Path, sent: list[Sent]) -> None:
    write_whole(run_dir / KEPT_FILE, _SENT.dump_json(sent, indent=2))


def _updated(one: Sent, found: Any) -> Sent:
    if found is None:
        return one
    score = None
    with suppress(TypeError, ValueError):
        score = float(found.public_score)
    news = {"status": found.status.name, "score": score, "problem": found.error_description or ""}
    return one.model_copy(update=news)


@contextmanager
def _service() -> Iterator[Any]:
    """The official client, logged in; what goes wrong in it is one line."""
    try:
        from kaggle.api.kaggle_api_extended import KaggleApi

        api = KaggleApi()
        api.authenticate()
    except ImportError:
        raise ConfigError("the Kaggle client is not installed: pip install 'mle-star[kaggle]'") from None
    except SystemExit:  # how the client says that there is no credential
        raise ConfigError(
            "no credential for Kaggle: set KAGGLE_API_TOKEN, or KAGGLE_USERNAME and KAGGLE_KEY, or put kaggle.json "
            "into ~/.kaggle (kaggle.com, Settings, API)"
        ) from None
    try:
        yield api
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"Kaggle: {' '.join(str(error).split())[:300] or type(error).__name__}") from None


def _plain(page: str) -> str:
    """A page as text: pages come as HTML, and what is told is in their words."""
    text = re.sub(r"<(?:br|/p|/li|/h\d|/tr)[^>]*>", "\n", page, flags=re.IGNORECASE)
    text = html.unescape(re.sub(r"<[^>]+>", "", text))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


# --- MLE-bench -------------------------------------------------------------------------------------------


def bench_task(data: Path, home: Path, competition: str) -> TaskGuess:
    """The task of a competition: its data looked at, its own description in full, the benchmark's rules below."""
    if not data.is_dir():
        raise ConfigError(f"{data}: no such folder; MLE-bench mounts the data of a competition there")
    guess, parts = guess_task(data, name=competition), []
    for path in (data / "description.md", home / "instructions.txt"):
        with suppress(OSError):
            parts.append(path.read_text(encoding="utf-8", errors="replace").strip())
    text = "\n\n".join(filter(None, [*parts, guess.task.description]))
    return guess._replace(task=guess.task.model_copy(update={"description": text}))


def hand_in(run_dir: Path, home: Path) -> Path | None:
    """Put submission, script and report where the benchmark looks for them; the submission's place, if there is one."""
    folder = RunFolder(run_dir)
    places = {
        folder.submission: home / "submission" / "submission.csv",
        folder.solution: home / "code" / "solution.py",
        folder.report: home / "logs" / "report.html",
    }
    for source, place in places.items():
        if source.is_file():
            place_copy(source, place)
    return places[folder.submission] if folder.submission.is_file() else None
