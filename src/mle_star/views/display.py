"""A run while it runs: on the terminal by `rich`, `plain`, `quiet` or `json`; in a notebook as one line that moves.

A display is a listener of the journal: make one, give it to `run_pipeline`, and it ends with the summary.
"""

import html
import importlib.metadata
import os
import re
import sys
import termios
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, TextIO, cast

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from mle_star.errors import ConfigError, JournalError
from mle_star.models.texts import did_you_mean
from mle_star.run.events import AnyEvent, RunResumed, RunStarted
from mle_star.run.folder import RunFolder
from mle_star.run.journal import read_journal
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES, Work, place_of
from mle_star.views.headlines import headline
from mle_star.views.lineage import Gain, gains_of
from mle_star.views.story import RunStory
from mle_star.views.verdict import Verdict

UNBROKEN = 1000
MODES = ("auto", "rich", "plain", "quiet", "json")
VIEW_GROUP = "mle_star.views"
"""Entry points: name = what `--display` is given, value = a function of the run's folder that gives a display."""
BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 24
NEWS_LINES = 8
MOST_GAINS = 8
COLOURS = {"good": "green", "warning": "yellow", "error": "red", "info": "", "bad": "yellow", "flat": "", "none": ""}


class Display(Protocol):
    """Shows a run as its events arrive."""

    def __call__(self, event: AnyEvent) -> None:
        """Hear an event."""

    def end(self) -> None:
        """The run is over, one way or another: show the summary and let go of the terminal."""


@contextmanager
def make_display(
    mode: str = "auto", *, run_dir: Path | None = None, out: TextIO | None = None, err: TextIO | None = None
) -> Iterator[Display]:
    """A display to give to `run_pipeline` as a listener, within `with`.

    Progress goes to `err`, the summary and JSON lines to `out`. What the journal in `run_dir` already held when the
    display got its first event is part of the picture.
    """
    out, err = out or sys.stdout, err or sys.stderr
    kind = choose_mode(mode, err)
    display: Display
    if kind == "json":
        display = LineDisplay(out, lambda event: event.model_dump_json(), None, run_dir)  # the last event says it all
    elif kind == "rich":
        display = RichDisplay(Console(file=err), Console(file=out), run_dir)
    elif kind in ("plain", "quiet"):
        width = None if out.isatty() else UNBROKEN  # a pipe wants whole paths
        levels = ("warning", "error") if kind == "quiet" else ("info", "good", "warning", "error")
        display = LineDisplay(err, partial(_headline, levels=levels), Console(file=out, width=width), run_dir)
    else:
        display = _plugin(kind)(run_dir)
    try:
        yield display
    finally:
        display.end()


def _plugin(name: str) -> Callable[[Path | None], Display]:
    """What makes the display of this name, from a package that offers it."""
    points = {point.name: point for point in importlib.metadata.entry_points(group=VIEW_GROUP)}
    if name not in points:
        raise ConfigError(f"unknown display {name!r}; {did_you_mean(name, [*MODES, *sorted(points)])}")
    return cast(Callable[[Path | None], Display], points[name].load())


def choose_mode(mode: str, stream: TextIO) -> str:
    """`auto` is `rich` on a terminal that can move its cursor, else `plain`."""
    if mode != "auto":
        return mode
    return "rich" if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" else "plain"


# --- renderers -------------------------------------------------------------------------------------------------


class _Listener:
    """What every display does: take in what the journal held before the first event, then show one after the other."""

    def __init__(self, out: Console | None, run_dir: Path | None) -> None:
        self._out, here = out, Path.cwd()  # in the summary, files below this folder are named as seen from it
        self._run_dir = run_dir.relative_to(here) if run_dir and run_dir.is_relative_to(here) else run_dir
        self._lock = RLock()  # events come from the run's thread, a screen is drawn in another
        self._story: RunStory | None = None

    def __call__(self, event: AnyEvent) -> None:
        """Take the event in, and show it."""
        with self._lock:
            new = [event]
            if self._story is None:  # listeners do not hear how a run began
                past: list[AnyEvent] = []
                with suppress(OSError, JournalError):
                    known = read_journal(RunFolder(self._run_dir).journal) if self._run_dir is not None else ()
                    past = list(takewhile(lambda one: one != event, known))
                self._story = RunStory.from_events(past)
                starts = [index for index, one in enumerate(past) if isinstance(one, (RunStarted, RunResumed))]
                new = [*past[starts[-1] :], event] if starts else [event]
            self._story.apply(event)
        for one in new:
            self._show(one)

    def _show(self, event: AnyEvent) -> None:
        """Show an event of this process."""

    def end(self) -> None:
        """The summary, where there is a place for one."""
        if self._story is not None and self._out is not None:
            with self._out.capture() as shown:
                self._out.print(summary(self._story, self._run_dir))
            self._out.file.write(re.sub(r" +$", "", shown.get(), flags=re.MULTILINE))  # a table pads its cells


class LineDisplay(_Listener):
    """One line for each event worth one: for logs, pipes, programs and terminals that cannot move their cursor."""

    def __init__(self, stream: TextIO, write: Callable[[Any], str], out: Console | None, run_dir: Path | None) -> None:
        super().__init__(out, run_dir)
        self._stream, self._write = stream, write

    def _show(self, event: AnyEvent) -> None:
        if line := self._write(event):
            self._stream.write(f"{line}\n")
            self._stream.flush()


def _headline(event: AnyEvent, levels: Collection[str]) -> str:
    """An event in a line, where it is of one of these levels."""
    line = headline(event)
    return f"{line.at.astimezone():%H:%M:%S}  {line.place}: {line.words}" if line and line.level in levels else ""


class RichDisplay(_Listener):
    """A screen that is drawn every second, and a summary in its place at the end."""

    def __init__(self, console: Console, out: Console, run_dir: Path | None) -> None:
        super().__init__(out, run_dir)
        self._console = console
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=1, transient=True)
        self._loud = _silence_keys()
        self._live.start()

    def _draw(self) -> RenderableType:
        with self._lock:
            return screen(self._story or RunStory(), self._console.size)

    def end(self) -> None:
        """Clear the screen and leave the summary."""
        self._live.stop()
        _set_keys(self._loud)
        super().end()


def _silence_keys() -> list[Any] | None:
    """Keep the terminal from writing keys such as `^C` into the screen, which would lose its place; how it was."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):
        return None  # no terminal
    _set_keys([*before[:3], before[3] & ~termios.ECHO, *before[4:]])
    return before


def _set_keys(attributes: list[Any] | None) -> None:
    """Tell the terminal, unless it is another's now: the kernel stops processes of the background that try."""
    with suppress(OSError, ValueError, termios.error):
        if attributes is not None and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, attributes)


# --- in a notebook or a script ---------------------------------------------------------------------------------


@contextmanager
def quiet_progress(*, shown: bool = True, console: Console | None = None) -> Iterator[Callable[[AnyEvent], None]]:
    """A listener that shows how far a run is and how good, where a person can see it; nothing is left at the end."""
    story, console = RunStory(), console or Console(stderr=True)
    if not shown or not (console.is_jupyter or console.is_terminal):
        yield story.apply
        return
    with _in_notebook() if console.is_jupyter else _on_terminal(console) as move:

        def hear(event: AnyEvent) -> None:
            story.apply(event)
            best = "" if story.score is None else f"best {story.metric} {text.score(story.score)}"
            move(PHASE_TITLES.get(story.phase, "starting"), *story.progress, best)

        yield hear


@contextmanager
def _on_terminal(console: Console) -> Iterator[Callable[[str, int, int, str], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[best]}"))
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        bar = progress.add_task("starting", total=None, best="")
        yield lambda phase, done, planned, best: progress.update(
            bar, description=phase, completed=done, total=planned or None, best=best
        )


@contextmanager
def _in_notebook() -> Iterator[Callable[[str, int, int, str], None]]:
    """The browser's own bar, which needs no widgets."""
    notebook: Any = import_module("IPython.display")
    handle = notebook.display(notebook.HTML("starting"), display_id=True)

    def move(phase: str, done: int, planned: int, best: str) -> None:
        words = html.escape(f"{phase} · {done}/{planned} steps · {best}".rstrip(" ·"))
        handle.update(notebook.HTML(f"<progress value='{done}' max='{max(planned, 1)}'></progress> {words}"))

    try:
        yield move
    finally:
        handle.update(notebook.HTML(""))


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
    run = Text(f"{text.one_line(verdict.task, 34)} · {text.one_line(verdict.model, 28)}", style="bold")
    title, keys = run if story.started else "mle-star", "Ctrl-C: finish with the best so far · twice: stop"
    return Panel(Group(*parts), title=title, subtitle=keys, title_align="left", subtitle_align="left", padding=(0, 1))


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
    columns = Column(no_wrap=True), Column(ratio=1), Column(no_wrap=True, justify="right")
    line = Table.grid(*columns, padding=(0, 2, 0, 0), expand=True)
    bar = ProgressBar(total=planned or 1, completed=done, complete_style="magenta", finished_style="magenta")
    line.add_row(Text(PHASE_TITLES.get(story.phase, "starting"), style="bold"), bar, Text(f"{done}/{planned} steps"))
    return line


def _facts(story: RunStory, verdict: Verdict, now: datetime) -> Text:
    """Best score, money and time, each with what it is measured against."""
    since = (now - story.spent.last.get("", now)).total_seconds() if not story.finished else 0.0
    elapsed = story.spent.seconds + max(since, 0.0)
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
    what = Column(no_wrap=True, overflow="ellipsis", max_width=max(20, width - 44))
    passed, best = Column(no_wrap=True, justify="right"), Column(no_wrap=True, justify="right", style="dim")
    grid = Table.grid(Column(no_wrap=True), what, passed, best, padding=(0, 2, 0, 0))
    for work in story.work_of(None):
        grid.add_row(*map(Text, _work_cells(work, now)))
    if story.phase == "phase2":
        for index, path in sorted(story.paths.items()):
            idle = f"path {index}", path.end.outcome if path.end else "waiting", ""
            for cells in [_work_cells(work, now) for work in story.work_of(index)] or [idle]:
                grid.add_row(*map(Text, cells), Text(text.score(path.best_score)))
    return grid


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
    columns = Column(style="dim", no_wrap=True), Column(overflow="fold")
    table = Table(*columns, show_header=False, box=None, padding=(0, 2, 0, 0))
    gain, level = verdict.gain
    score = Text(verdict.figure, style="bold").append(f" {verdict.metric}", style="not bold")
    rows: list[tuple[str, Text | str]] = [("", verdict.detail)]
    sure = verdict.sure if story.score is not None else ""
    score.append(f"; {gain}" if gain else "", style=f"not bold {COLOURS[level]}")
    rows += [("score", score if sure else ""), ("trust", sure), ("why", text.one_line(verdict.why, 400))]
    search = [f"{one.name} {text.score(one.score)}" for one in verdict.stages if one.name != "Result"]
    rows.append(("by phase", " → ".join(search) if len(search) > 1 else ""))
    rows += [("" if index else "built from", _gain(gain)) for index, gain in enumerate(_largest(gains_of(story)))]
    rows.append(("cost", f"{verdict.cost} ({verdict.cost_note})"))
    rows.append(("time", f"{verdict.time} ({verdict.time_note})"))
    rows.append(("model", f"{verdict.model} ({verdict.model_note})"))
    rows.append(("sandbox", "{} ({})".format(*verdict.isolation) if story.isolations else ""))
    file = verdict.file
    label = "new rows" if file.label == "Model" else "submission"
    rows.append((label, Text(file.note if file.path is None else str(file.path), style="bold")))
    if file.path is not None:
        lead = "" if file.label == "File to submit" else f"{file.label.lower()}: "
        rows.append(("", Text(lead + file.note, style="" if file.level == "ready" else "yellow")))
    if run_dir is not None:  # of its files those that a person wants, as far as they are there
        here = RunFolder(run_dir)
        wanted = {"script": here.solution, "report": here.report, "result": here.result, "journal": here.journal}
        rows += [(name, str(path)) for name, path in wanted.items() if path.exists()]
    rows += [("warning", Text(text.one_line(warning, 400), style="yellow")) for warning in verdict.warnings]
    for name, words in rows:
        if words:
            table.add_row(name, words if isinstance(words, Text) else Text(words))
    return Group(Text(f"{verdict.task}: {verdict.state_title.lower()}", style="bold"), table)


def _largest(gains: list[Gain]) -> list[Gain]:
    """Of many gains the largest, in order of time."""
    largest = sorted(gains, key=lambda gain: -abs(gain.amount or 0.0))[:MOST_GAINS]
    return [gain for gain in gains if gain in largest]


def _gain(gain: Gain) -> Text:
    attempt, amount = gain
    way = "better" if amount is None or amount >= 0 else "worse than the best before"
    better = "" if amount is None else f" ({text.signed(amount)[1:]} {way})"
    words = Text(text.score(attempt.score)).append(better, style="green")
    note = f": {text.one_line(attempt.note, 90)}" if attempt.note else ""
    return words.append(f"  {text.one_line(attempt.label, 70)}{note}")
