"""A folder of runs, each at a glance."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import NamedTuple

from mle_star.errors import ConfigError, JournalError
from mle_star.run.events import EVENT_ADAPTER, AnyEvent, RunFinished, RunStarted
from mle_star.run.folder import RunFolder, is_running, runs_in
from mle_star.run.journal import read_journal
from mle_star.views import text
from mle_star.views.story import RunStory


class Glance(NamedTuple):
    """A run in one line."""

    name: str
    task: str = ""
    model: str = ""
    metric: str = ""
    score: float | None = None
    cost_usd: float | None = None
    seconds: float | None = None
    state: str = "empty"
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
    found = [folder] if RunFolder(folder).journal.is_file() else runs_in(folder)
    if not found:
        raise ConfigError(f"there is no run in {folder}")
    return found


def glance(run_dir: Path) -> Glance:
    """What a list shows of a run. First and last line say it for one that ended; others are read as a whole."""
    journal = RunFolder(run_dir).journal
    known = Glance(text.one_line(run_dir.name, 200), path=str(run_dir))
    try:
        ends = _ends(journal)
        ended = len(ends) > 1 and isinstance(ends[0], RunStarted) and isinstance(ends[-1], RunFinished)
        story = RunStory.from_events(ends if ended else read_journal(journal))
    except (JournalError, OSError, ValueError):  # `mle-star report` says what is wrong with it
        return known._replace(state="damaged")
    if story.started is None:
        return known
    task, end = story.started.task, story.finished
    return known._replace(
        task=task.competition_id,
        model=story.started.model,
        metric=task.evaluation_metric,
        score=story.score,
        cost_usd=end.cost_usd if end else story.totals.cost_usd,
        seconds=end.seconds if end else story.clock.seconds,
        state=end.state if end else "running" if is_running(run_dir) else "stopped",
        begun=story.started.at.isoformat(),
        stopped_by=story.result.stopped_by if story.result else None,
    )


def _ends(journal: Path) -> list[AnyEvent]:
    """The first event and the last one, as far as their lines are whole."""
    with journal.open("rb") as file:
        lines = [file.readline(), *deque(file, maxlen=1)]
    return [EVENT_ADAPTER.validate_json(line) for line in lines if line.endswith(b"\n")]
