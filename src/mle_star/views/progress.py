"""A run in a notebook or a script: one line that moves, and nothing left of it at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
    if not shown or not (console.is_terminal or console.is_jupyter):
        yield story.apply
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[best]}"))
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        bar = progress.add_task("starting", total=None, best="")

        def hear(event: AnyEvent) -> None:
            story.apply(event)
            done, planned = story.progress
            best = "" if story.score is None else f"best {story.metric} {text.score(story.score)}"
            title = PHASE_TITLES.get(story.phase, "starting")
            progress.update(bar, description=title, completed=done, total=planned or None, best=best)

        yield hear
