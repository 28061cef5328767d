"""A run as it goes by: on the terminal by `rich`, `plain`, `quiet` or `json`; in a notebook as one line that moves.

A display is a listener of the journal: make one, give it to `run_pipeline`, and it ends with the summary.
"""

from __future__ import annotations

import html
import importlib.metadata
import os
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mle_star.errors import ConfigError, JournalError
from mle_star.models.texts import did_you_mean
from mle_star.run.events import AnyEvent, RunResumed, RunStarted
from mle_star.run.journal import read_journal
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES
from mle_star.views.headlines import headline
from mle_star.views.screen import screen, summary
from mle_star.views.story import RunStory

UNBROKEN = 1000
MODES = ("auto", "rich", "plain", "quiet", "json")
VIEW_GROUP = "mle_star.views"
"""Entry points: name = what `--display` is given, value = a function of the run's folder that gives a display."""
REFRESH_PER_SECOND = 1.0
"""Enough for a clock that counts seconds; more would only cost."""


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
    display heard its first event is part of the picture.
    """
    out, err = out or sys.stdout, err or sys.stderr
    kind = choose_mode(mode, err)
    display: Display
    if kind == "json":
        display = JsonDisplay(Console(file=out), run_dir)
    elif kind == "rich":
        display = RichDisplay(Console(file=err), Console(file=out), run_dir)
    elif kind in ("plain", "quiet"):
        width = None if out.isatty() else UNBROKEN  # a pipe wants whole paths
        display = PlainDisplay(err, Console(file=out, width=width), run_dir, quiet=kind == "quiet")
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
    make: Callable[[Path | None], Display] = points[name].load()
    return make


def choose_mode(mode: str, stream: TextIO) -> str:
    """`auto` is `rich` on a terminal that can move its cursor, else `plain`."""
    if mode != "auto":
        return mode
    return "rich" if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" else "plain"


# --- renderers -------------------------------------------------------------------------------------------------


class _Listener:
    """What every display does: take in what the journal held before the first event, then show one after the other."""

    def __init__(self, out: Console, run_dir: Path | None) -> None:
        self._out, self._run_dir = out, run_dir
        self._lock = RLock()  # events come from the run's thread, a screen is drawn in another
        self._story: RunStory | None = None

    def __call__(self, event: AnyEvent) -> None:
        """Take the event in, and show it."""
        with self._lock:
            new = [event]
            if self._story is None:
                past = self._earlier(event)
                self._story = RunStory.from_events(past)
                starts = [index for index, one in enumerate(past) if isinstance(one, (RunStarted, RunResumed))]
                new = [*past[starts[-1] :], event] if starts else [event]
            self._story.apply(event)
        for one in new:
            self._show(one)

    def _earlier(self, until: AnyEvent) -> list[AnyEvent]:
        """What the journal held before an event: listeners do not hear how a run began."""
        found: list[AnyEvent] = []
        with suppress(OSError, JournalError):
            for event in read_journal(self._run_dir / "journal.jsonl") if self._run_dir is not None else ():
                if event == until:
                    break
                found.append(event)
            return found
        return []

    def _show(self, event: AnyEvent) -> None:
        """Show an event of this process."""

    def end(self) -> None:
        """The summary."""
        if self._story is not None:
            self._out.print(summary(self._story, self._run_dir))


class JsonDisplay(_Listener):
    """One event a line, as the journal has it, for programs."""

    def _show(self, event: AnyEvent) -> None:
        self._out.file.write(f"{event.model_dump_json()}\n")
        self._out.file.flush()

    def end(self) -> None:
        """The last event said it all."""


class PlainDisplay(_Listener):
    """One line for each event worth one: for logs, pipes and terminals that cannot move their cursor."""

    def __init__(self, err: TextIO, out: Console, run_dir: Path | None, *, quiet: bool = False) -> None:
        super().__init__(out, run_dir)
        self._err, self._levels = err, ("warning", "error") if quiet else ("info", "good", "warning", "error")

    def _show(self, event: AnyEvent) -> None:
        line = headline(event)
        if line is not None and line.level in self._levels:
            self._err.write(f"{line.at.astimezone():%H:%M:%S}  {line.place}: {line.words}\n")
            self._err.flush()


class RichDisplay(_Listener):
    """A screen that is drawn anew every second, and a summary in its place at the end."""

    def __init__(self, console: Console, out: Console, run_dir: Path | None) -> None:
        super().__init__(out, run_dir)
        self._console = console
        self._live = Live(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=True,
            redirect_stderr=True,
        )
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
    """A listener that shows how far a run is and how good, where somebody can see it; nothing is left at the end."""
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
