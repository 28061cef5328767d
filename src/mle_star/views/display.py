"""A run on the terminal. One protocol, several renderers: `rich`, `plain`, `quiet` and `json`.

A display is a listener of the journal: make one, hand it to `run_pipeline`, and it ends with the summary.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, TextIO

from rich.console import Console, RenderableType
from rich.live import Live

from mle_star.basics.texts import did_you_mean
from mle_star.errors import ConfigError, JournalError
from mle_star.run.events import AnyEvent, RunResumed, RunStarted
from mle_star.run.journal import read_journal
from mle_star.views.headlines import headline
from mle_star.views.screen import screen
from mle_star.views.story import RunStory
from mle_star.views.summary import summary

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


def make_display(
    mode: str = "auto", *, run_dir: Path | None = None, out: TextIO | None = None, err: TextIO | None = None
) -> AbstractContextManager[Display]:
    """A display to hand to `run_pipeline` as a listener, within `with`.

    Progress goes to `err`, the summary and JSON lines to `out`. What the journal in `run_dir` already held when the
    display heard its first event is part of the picture.
    """
    out, err = out or sys.stdout, err or sys.stderr
    kind = choose_mode(mode, err)
    display: Display
    if kind == "json":
        display = JsonDisplay(out, run_dir)
    elif kind == "rich":
        display = RichDisplay(Console(file=err), Console(file=out), run_dir)
    elif kind in ("plain", "quiet"):
        width = None if out.isatty() else UNBROKEN  # a pipe wants whole paths
        display = PlainDisplay(err, Console(file=out, width=width), run_dir, quiet=kind == "quiet")
    else:
        display = _plugin(kind)(run_dir)
    return _ended(display)


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


@contextmanager
def _ended(display: Display) -> Iterator[Display]:
    try:
        yield display
    finally:
        display.end()


# --- what earlier lines of the journal say --------------------------------------------------------------------


def earlier_events(run_dir: Path | None, until: AnyEvent) -> list[AnyEvent]:
    """What the journal held before `until`: listeners do not hear how a run began."""
    if run_dir is None:
        return []
    found: list[AnyEvent] = []
    try:
        for event in read_journal(run_dir / "journal.jsonl"):
            if event == until:
                break
            found.append(event)
    except (OSError, JournalError):
        return []
    return found


def of_this_process(events: list[AnyEvent]) -> list[AnyEvent]:
    """The events since the run was started or last taken up again."""
    starts = [index for index, event in enumerate(events) if isinstance(event, (RunStarted, RunResumed))]
    return events[starts[-1] :] if starts else []


# --- renderers -------------------------------------------------------------------------------------------------


class JsonDisplay:
    """One event a line, as the journal has it, for programs."""

    def __init__(self, out: TextIO, run_dir: Path | None) -> None:
        self._out, self._run_dir = out, run_dir
        self._begun = False

    def __call__(self, event: AnyEvent) -> None:
        """Write the event; before the first one, what it rests on."""
        events = [event]
        if not self._begun:
            self._begun = True
            events = [*of_this_process(earlier_events(self._run_dir, event)), event]
        self._out.write("".join(f"{one.model_dump_json()}\n" for one in events))
        self._out.flush()

    def end(self) -> None:
        """The last event said it all."""


class PlainDisplay:
    """One line for each event worth one: for logs, pipes and terminals that cannot move their cursor."""

    def __init__(self, err: TextIO, console: Console, run_dir: Path | None, *, quiet: bool = False) -> None:
        self._err, self._console, self._run_dir = err, console, run_dir
        self._levels = ("warning", "error") if quiet else ("info", "good", "warning", "error")
        self._story: RunStory | None = None

    def __call__(self, event: AnyEvent) -> None:
        """Write the event's line."""
        if self._story is None:
            past = earlier_events(self._run_dir, event)
            self._story = RunStory.from_events(past)
            for one in of_this_process(past):
                self._write(one)
        self._story.apply(event)
        self._write(event)

    def _write(self, event: AnyEvent) -> None:
        said = headline(event)
        if said is not None and said.level in self._levels:
            self._err.write(f"{said.at.astimezone():%H:%M:%S}  {said.place}: {said.words}\n")
            self._err.flush()

    def end(self) -> None:
        """The summary."""
        if self._story is not None:
            self._console.print(summary(self._story, self._run_dir))


class RichDisplay:
    """A screen that is drawn anew every second, and a summary in its place at the end."""

    def __init__(self, console: Console, summary_console: Console, run_dir: Path | None) -> None:
        self._console, self._summary_console, self._run_dir = console, summary_console, run_dir
        self._lock = RLock()  # events come from the run's thread, the screen is drawn in another
        self._story: RunStory | None = None
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

    def __call__(self, event: AnyEvent) -> None:
        """Take the event in; the next drawing shows it."""
        with self._lock:
            if self._story is None:
                self._story = RunStory.from_events(earlier_events(self._run_dir, event))
            self._story.apply(event)

    def _draw(self) -> RenderableType:
        with self._lock:
            return screen(self._story or RunStory(), self._console.size)

    def end(self) -> None:
        """Clear the screen and leave the summary."""
        self._live.stop()
        _set_keys(self._loud)
        if self._story is not None:
            self._summary_console.print(summary(self._story, self._run_dir))


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
