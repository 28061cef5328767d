"""A run in a notebook or a script: one line that moves, and nothing left of it at the end."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mle_star.run.events import AnyEvent
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES
from mle_star.views.story import RunStory


@contextmanager
def quiet_progress(*, shown: bool = True, console: Console | None = None) -> Iterator[Callable[[AnyEvent], None]]:
    """A listener that shows how far a run is and how good, where somebody can see it."""
    story, console = RunStory(), console or Console(stderr=True)
    if shown and console.is_jupyter:
        with _in_notebook(story) as hear_in_notebook:
            yield hear_in_notebook
        return
    if not shown or not console.is_terminal:
        yield story.apply
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[best]}"))
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        bar = progress.add_task("starting", total=None, best="")

        def hear(event: AnyEvent) -> None:
            story.apply(event)
            done, planned = story.progress
            progress.update(bar, description=_title(story), completed=done, total=planned or None, best=_best(story))

        yield hear


@contextmanager
def _in_notebook(story: RunStory) -> Iterator[Callable[[AnyEvent], None]]:
    """The same as a bar of the browser's, which needs no widgets; it is gone at the end."""
    notebook: Any = import_module("IPython.display")
    handle = notebook.display(notebook.HTML("starting"), display_id=True)

    def hear(event: AnyEvent) -> None:
        story.apply(event)
        done, planned = story.progress
        words = html.escape(f"{_title(story)} · {done}/{planned} steps · {_best(story)}".rstrip(" ·"))
        handle.update(notebook.HTML(f"<progress value='{done}' max='{max(planned, 1)}'></progress> {words}"))

    try:
        yield hear
    finally:
        handle.update(notebook.HTML(""))


def _title(story: RunStory) -> str:
    return PHASE_TITLES.get(story.phase, "starting")


def _best(story: RunStory) -> str:
    return "" if story.score is None else f"best {story.metric} {text.score(story.score)}"
