"""A folder of runs, each at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mle_star.errors import ConfigError, JournalError
from mle_star.run.events import EVENT_ADAPTER, AnyEvent, RunFinished, RunStarted
from mle_star.run.folder import RunFolder, is_running
from mle_star.run.journal import read_journal
from mle_star.views import text
from mle_star.views.story import RunStory

TAIL_BYTES = 1 << 16


class Glance(NamedTuple):
    """A run in one line."""

    name: str
    task: str
    model: str
    metric: str
    score: float | None
    cost_usd: float | None
    seconds: float | None
    state: str
    begun: str = ""
    path: str = ""
    stopped_by: str | None = None

    @property
    def title(self) -> str:
        """The state for people: a result that came before the plan was done is said to be so."""
        return "ended early" if self.state == "completed" and self.stopped_by else self.state


def find_runs(folder: Path) -> list[Path]:
    """The runs in a folder; the folder itself may be one."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name the one that holds your runs")
    if (folder / "journal.jsonl").is_file():
        return [folder]
    found = [path.parent for path in folder.glob("*/journal.jsonl")]
    if not found:
        raise ConfigError(f"there is no run in {folder}")
    return found


def glance(run_dir: Path) -> Glance:
    """What a list shows of a run. First and last line say it for one that ended; others are read as a whole."""
    return _look(run_dir)._replace(path=str(run_dir))


def _look(run_dir: Path) -> Glance:
    journal = RunFolder(run_dir).journal
    name = text.one_line(run_dir.name, 200)
    try:
        first, last = _ends(journal)
        if isinstance(first, RunStarted) and isinstance(last, RunFinished):
            seconds, cost = last.seconds, last.cost_usd
            return _glance(name, first, last.score, cost, seconds, last.state)._replace(stopped_by=_stopped_by(last))
        story = RunStory.from_events(read_journal(journal))
    except (JournalError, OSError, ValueError):  # `mle-star report` says what is wrong with it
        return Glance(name, "", "", "", None, None, None, "damaged")
    if story.started is None:
        return Glance(name, "", "", "", None, None, None, "empty")
    state = story.state if story.finished else "running" if is_running(run_dir) else "stopped"
    known = _glance(name, story.started, story.score, story.totals.cost_usd, story.clock.seconds, state)
    return known._replace(stopped_by=_stopped_by(story.finished))


def _stopped_by(last: RunFinished | None) -> str | None:
    return None if last is None or last.result is None else last.result.stopped_by


def _glance(name: str, first: RunStarted, score: float | None, cost: float, seconds: float, state: str) -> Glance:
    task = first.task
    return Glance(
        name,
        task.competition_id,
        first.model,
        task.evaluation_metric,
        score,
        cost,
        seconds,
        state,
        first.at.isoformat(),
    )


def _ends(journal: Path) -> tuple[AnyEvent | None, AnyEvent | None]:
    """The first event, and the last one when it can be had cheaply."""
    with journal.open("rb") as file:
        line = file.readline()
        first = EVENT_ADAPTER.validate_json(line) if line.endswith(b"\n") else None
        size = file.seek(0, 2)
        reach = TAIL_BYTES
        while True:
            file.seek(max(size - reach, 0))
            lines = file.read().splitlines(keepends=True)
            if len(lines) > 1 or reach >= size:
                break
            reach *= 8
    whole = [line for line in lines if line.endswith(b"\n")]
    try:
        last = EVENT_ADAPTER.validate_json(whole[-1]) if whole else None
    except ValueError:
        last = None  # half a line: the read began in the middle of it
    return first, last
