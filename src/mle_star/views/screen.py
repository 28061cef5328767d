"""What the terminal shows: the screen of a running run, and the summary at its end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mle_star.run.folder import RunFolder
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES, PathStory, Work, place_of
from mle_star.views.lineage import Gain, gains_of
from mle_star.views.story import RunStory
from mle_star.views.verdict import Milestone, Verdict

BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24
NEWS_LINES = 8
MOST_GAINS = 8
COLOURS = {"good": "green", "warning": "yellow", "error": "red", "info": "", "bad": "yellow", "flat": "", "none": ""}


# --- while it runs --------------------------------------------------------------------------------------------


def screen(story: RunStory, size: ConsoleDimensions, now: datetime | None = None) -> Panel:
    """The whole picture, in `size`; made of texts only, so nothing in a plan or name can style it."""
    now = now or datetime.now(timezone.utc)
    verdict, workers = Verdict(story), _workers(story, now, size.width)
    room = size.height - 9 - workers.row_count
    parts: list[RenderableType] = [_progress(story), _facts(story, verdict, now)]
    parts += [workers] if workers.row_count else []
    if room >= NEWS_LINES + 3:
        parts = [piece for part in parts for piece in (part, "")]
    parts.append(_news(story, max(1, min(NEWS_LINES, room)), size.width))
    title = Text(f"{text.one_line(verdict.task, 34)} · {text.one_line(verdict.model, 28)}", style="bold")
    return Panel(
        Group(*parts),
        title=title if story.started else "mle-star",
        subtitle="Ctrl-C: finish with the best so far · twice: stop",
        title_align="left",
        subtitle_align="left",
        padding=(0, 1),
    )


def sparkline(best: list[float], width: int = SPARK_WIDTH) -> str:
    """The best score after each attempt; up is better, whichever way the metric goes."""
    if len(best) > width:
        best = [best[round(index * (len(best) - 1) / (width - 1))] for index in range(width)]
    if not best or best[0] == best[-1]:
        return BLOCKS[0] * len(best)
    return "".join(BLOCKS[round((value - best[0]) / (best[-1] - best[0]) * (len(BLOCKS) - 1))] for value in best)


def _progress(story: RunStory) -> Table:
    """Phase, bar and count on one line."""
    done, planned = story.progress
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(total=planned or 1, completed=done, complete_style="magenta", finished_style="magenta")
    line.add_row(Text(PHASE_TITLES.get(story.phase, "starting"), style="bold"), bar, Text(f"{done}/{planned} steps"))
    return line


def _facts(story: RunStory, verdict: Verdict, now: datetime) -> Text:
    """Best score, money and time, each with what it is measured against."""
    since = (now - story.clock.last).total_seconds() if story.clock.last is not None and not story.finished else 0.0
    elapsed = story.clock.seconds + max(since, 0.0)
    line = sparkline([best for best in story.best_so_far if best is not None])
    gain, level = verdict.gain
    facts = Text(no_wrap=True, overflow="ellipsis")
    facts.append("best   ", style="dim").append(text.score(story.score), style="bold")
    facts.append(f"  {gain}\n", style=COLOURS[level])
    facts.append("       ").append(f"{line}  " if line else "", style="cyan").append(verdict.metric)
    facts.append("\nmoney  ", style="dim").append(verdict.cost, style="bold").append(f" · {verdict.cost_note}")
    facts.append("\ntime   ", style="dim").append(text.clock(elapsed), style="bold").append(f" · {verdict.time_note}")
    if story.finished is None and story.forecast is not None and story.forecast.seconds is not None:
        left = max(min(story.forecast.seconds, story.config.time_limit_seconds) - elapsed, 0.0)
        facts.append(f" · ends about {(now + timedelta(seconds=left)).astimezone():%H:%M}")
    return facts


def _workers(story: RunStory, now: datetime, width: int) -> Table:
    """Per path, and for all that is on none, who is at work and for how long."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(20, width - 44))
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, justify="right", style="dim")
    for work in story.work_of(None):
        grid.add_row(*map(Text, _work_cells(work, now)))
    if story.phase == "phase2":
        for _, path in sorted(story.paths.items()):
            for cells in _path_rows(story, path, now):
                grid.add_row(*map(Text, cells), Text(text.score(path.best_score)))
    return grid


def _path_rows(story: RunStory, path: PathStory, now: datetime) -> Iterator[tuple[str, str, str]]:
    works = story.work_of(path.index)
    if path.end is not None or not works:
        yield f"path {path.index}", path.end.outcome if path.end else "waiting", ""
    for work in works:
        yield _work_cells(work, now)


def _work_cells(work: Work, now: datetime) -> tuple[str, str, str]:
    """`path 0 step 1 try 2`, who, and for how long of how long."""
    limit = "" if work.limit_seconds is None else f" of {text.clock(work.limit_seconds)}"
    return place_of(work.step, "try", " "), work.what, text.clock((now - work.since).total_seconds()) + limit


def _news(story: RunStory, lines: int, width: int) -> Text:
    shown = Text(no_wrap=True, overflow="ellipsis")
    for index, news in enumerate([news for news in story.news if not news.minor][-lines:]):
        line = text.one_line(f"{news.at.astimezone():%H:%M:%S} {news.place}: {news.words}", max(width - 6, 20))
        shown.append(("\n" if index else "") + line, style=COLOURS[news.level])
    return shown


# --- at its end -----------------------------------------------------------------------------------------------


def summary(story: RunStory, run_dir: Path | None = None) -> RenderableType:
    """What a run came to, as a table of plain texts: scores, what improved them, cost, and where the files are."""
    verdict = Verdict(story, run_dir, alive=False)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    gain, level = verdict.gain
    score = Text(text.score(story.score), style="bold").append(f" {verdict.metric}", style="not bold")
    rows: list[tuple[str, Text | str]] = [("", verdict.detail)]
    rows.append(("score", score.append(f"; {gain}" if gain else "", style=f"not bold {COLOURS[level]}")))
    rows.append(("measured", verdict.sure if story.score is not None else ""))
    rows.append(("why", text.one_line(verdict.why, 400)))
    rows.append(("by phase", " → ".join(map(_stage, verdict.stages)) if len(verdict.stages) > 1 else ""))
    rows += [("" if index else "improved by", _gain(gain)) for index, gain in enumerate(_largest(gains_of(story)))]
    rows.append(("cost", f"{verdict.cost} ({verdict.cost_note})"))
    rows.append(("time", f"{verdict.time} ({verdict.time_note})"))
    rows.append(("model", f"{verdict.model} ({verdict.model_note})"))
    rows.append(("isolation", "{} ({})".format(*verdict.isolation)))
    file = verdict.file
    rows.append(("submission", Text(file.note if file.path is None else str(file.path), style="bold")))
    if file.path is not None:
        lead = "" if file.label == "File to submit" else f"{file.label.lower()}: "
        rows.append(("", Text(lead + file.note, style="" if file.level == "ready" else "yellow")))
    rows += files(run_dir)
    rows += [("warning", Text(text.one_line(warning, 400), style="yellow")) for warning in verdict.warnings]
    for name, words in rows:
        if words:
            table.add_row(name, words if isinstance(words, Text) else Text(words))
    return Group(Text(f"{verdict.task}: {verdict.state_title.lower()}", style="bold"), table)


def files(run_dir: Path | None) -> list[tuple[str, Text | str]]:
    """The files of a run that a person wants, as far as they are there."""
    if run_dir is None:
        return []
    folder = RunFolder(run_dir)
    wanted = {"script": folder.solution, "report": folder.report, "result": folder.result, "journal": folder.journal}
    return [(name, str(path)) for name, path in wanted.items() if path.exists()]


def _largest(gains: list[Gain]) -> list[Gain]:
    """Of many gains the largest, in order of time."""
    largest = sorted(gains, key=lambda gain: -abs(gain.amount or 0.0))[:MOST_GAINS]
    return [gain for gain in gains if gain in largest]


def _stage(one: Milestone) -> str:
    return f"{one.name} {text.score(one.score)}" + (f" ({one.what})" if one.apart else "")


def _gain(gain: Gain) -> Text:
    attempt, amount = gain
    better = "" if amount is None else f" ({text.signed(amount)[1:]} {'worse' if amount < 0 else 'better'})"
    words = Text(text.score(attempt.score)).append(better, style="green")
    note = f": {text.one_line(attempt.note, 90)}" if attempt.note else ""
    return words.append(f"  {text.one_line(attempt.label, 70)}{note}")
