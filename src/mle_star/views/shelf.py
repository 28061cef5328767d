"""Several runs: each at a glance, their scripts by score, and two of them side by side."""

import difflib
from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mle_star.errors import ConfigError, JournalError
from mle_star.method.scores import best_first
from mle_star.models import is_improvement
from mle_star.run.events import EVENT_ADAPTER, AnyEvent, RunFinished, RunStarted
from mle_star.run.folder import RunFolder, first_line, is_running, runs_in
from mle_star.run.journal import read_journal
from mle_star.views import text
from mle_star.views.lineage import lineage_of
from mle_star.views.story import RunStory
from mle_star.views.verdict import Verdict

MOST_LINES = 1500
Side = Literal["first", "second", ""]


# --- a folder of runs ------------------------------------------------------------------------------------


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
    end: str = ""

    @property
    def title(self) -> str:
        """The state for people: a result that came before the plan was done, or when time was up, is said to be so."""
        early = "ended early" if self.stopped_by else self.end
        return early or self.state if self.state == "completed" else self.state


def find_runs(folder: Path) -> list[Path]:
    """The runs in a folder; the folder itself may be one."""
    if not folder.is_dir():
        raise ConfigError(f"there are no runs yet: no folder {folder}")
    found = [folder] if RunFolder(folder).journal.is_file() else runs_in(folder)
    if not found:
        raise ConfigError(f"there are no runs in {folder}")
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
    end = story.finished
    return known._replace(
        task=story.started.task.competition_id,
        model=story.started.model,
        metric=story.metric,
        score=story.score,
        cost_usd=end.cost_usd if end else story.totals.cost_usd,
        seconds=end.seconds if end else story.spent.seconds,
        state=end.state if end else "running" if is_running(run_dir) else "stopped",
        begun=story.started.at.isoformat(),
        stopped_by=story.result.stopped_by if story.result else None,
        end=end.message if end else "",
    )


def _ends(journal: Path) -> list[AnyEvent]:
    """The first event and the last one, as far as their lines are whole."""
    with journal.open("rb") as file:
        lines = [file.readline(), *deque(file, maxlen=1)]
    return [EVENT_ADAPTER.validate_json(line) for line in lines if line.endswith(b"\n")]


# --- scripts by score ------------------------------------------------------------------------------------


def leaderboards(runs: list[Path]) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The scripts of runs by task and metric, the best first, and what is wrong with runs that cannot be read."""
    boards: dict[str, list[dict[str, Any]]] = {}
    problems: list[str] = []
    for run in runs:
        try:
            task, rows = first_line(run).task, leaderboard_rows(run)
        except JournalError as error:
            problems.append(str(error))
            continue
        name = f"{task.competition_id} ({task.evaluation_metric}, {task.metric_direction.better_word} is better)"
        named = {"task": task.competition_id, "metric": task.evaluation_metric}
        board = [*boards.get(name, []), *({**row, **named} for row in rows)]
        boards[name] = best_first(board, itemgetter("score"), task.metric_direction)
    return boards, problems


def leaderboard_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The scored scripts of a run, the best first: step, score, interval, seconds; is it the final solution?

    Scores are those of the search; `final_score` is that of the result, which may be measured on other rows.

    Those that leak have no score that counts, and are left out; unless all leak, or one was promoted by hand.
    """
    story = RunStory.of(run_dir)
    ran = [run for run in story.scored if not run.result.cached]
    clean = [run for run in ran if not story.ledger.leaks(run.script_id) or run.step == lineage_of(story).named]
    final, expected = _final_step(story, [run.step for run in clean or ran]), story.expected
    found: dict[str, dict[str, Any]] = {}
    for run in clean or ran:
        measure, chosen = run.result.measure, run.step == final
        found[run.step] = {
            "run": run_dir.name,
            "step": run.step.removesuffix("/script"),
            "score": run.score,
            "low": measure and measure.low,
            "high": measure and measure.high,
            "seconds": round(run.seconds, 2),
            "chosen": chosen,
            "final_score": story.score if chosen else None,
            "final_rows": expected.rows if chosen and expected else None,
            "expected": expected.words if chosen and expected else None,
        }
    return best_first(found.values(), itemgetter("score"), story.direction)


def _final_step(story: RunStory, steps: list[str]) -> str:
    """The step of the final solution; of several scripts there the last, and none of a blend."""
    line = lineage_of(story)
    ran = story.ledger.latest_run(line.script) if line.submitted else None
    exact = [step for step in (line.named, "" if ran is None else ran.step) if step in steps]
    below = [step for step in steps if line.submitted and step.startswith(f"{line.submitted}/")]
    return next(iter([*exact, *reversed(below)]), "")


# --- two runs side by side -------------------------------------------------------------------------------


def unified(before: str, after: str, old_name: str, new_name: str) -> Iterator[str]:
    """The lines of a unified diff, without line ends. The whole texts are compared; only what is shown is cut."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), old_name, new_name, lineterm="")
    return map(text.clean, lines)


class Pair(NamedTuple):
    """One fact of both runs; `better` is the one that is ahead in it."""

    name: str
    first: str
    second: str
    better: Side = ""


class Comparison(NamedTuple):
    """What differs. `why_not` says why the scores cannot be compared."""

    facts: list[Pair]
    settings: list[Pair]
    script: list[str]
    why_not: str = ""

    @classmethod
    def of(cls, first: RunStory, second: RunStory, names: tuple[str, str] = ("A", "B")) -> "Comparison":
        """Both as far as they have come."""
        why_not = _not_comparable(first, second)
        lines = list(unified(first.final_script, second.final_script, *names))
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = [f"[… {len(lines) - MOST_LINES:,} more lines …]"]
        one, other = first.config.model_dump(), second.config.model_dump()
        settings = [Pair(name, str(one[name]), str(other[name])) for name in one if one[name] != other[name]]
        return cls(_facts(first, second, bool(why_not)), settings, lines, why_not)


def _not_comparable(first: RunStory, second: RunStory) -> str:
    if first.metric != second.metric:
        return f"one is scored by {text.one_line(first.metric, 40)}, the other by {text.one_line(second.metric, 40)}"
    if first.task is not None and second.task is not None and first.task.competition_id != second.task.competition_id:
        return "they are about different tasks"
    if first.score is None or second.score is None:
        return ""  # there is nothing to compare
    if Verdict(first).checked != Verdict(second).checked:
        return "one was measured on held-out rows, the other by its own script"
    if (first.expected is None) != (second.expected is None):
        return "one was measured on rows kept for the end, the other on those of its search"
    return ""


def _facts(first: RunStory, second: RunStory, apart: bool) -> list[Pair]:
    a, b = Verdict(first, alive=False), Verdict(second, alive=False)
    ahead: Side = ""
    if not apart and a.score is not None and b.score is not None and a.score != b.score:
        ahead = "first" if is_improvement(a.score, b.score, first.direction) else "second"
    return [
        Pair("Task", f"{a.task}, {a.metric}", f"{b.task}, {b.metric}"),
        Pair("Score", text.score(a.score), text.score(b.score), ahead),
        Pair("Measured", a.sure, b.sure),
        Pair("State", a.state_title, b.state_title),
        Pair("Model", a.model, b.model),
        Pair("Cost", a.cost, b.cost, _less(first.totals.cost_usd, second.totals.cost_usd)),
        Pair("Time", a.time, b.time, _less(first.spent.seconds, second.spent.seconds)),
        Pair("Attempts", str(len(first.attempts)), str(len(second.attempts))),
        Pair("Why", a.why or "–", b.why or "–"),
    ]


def _less(first: float, second: float) -> Side:
    return "" if first == second else "first" if first < second else "second"
