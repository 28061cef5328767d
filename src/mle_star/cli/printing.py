"""How commands speak: notes, tables, addresses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mle_star.models import Measure
    from mle_star.serving.guarded import GuardedServer


def plain(text: str) -> str:
    """Names come from the data: keep them from driving the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def tell(words: str) -> None:
    """A line for people; standard output is for results."""
    typer.echo(plain(words), err=True)


def note(words: str) -> None:
    """What deserves a look."""
    tell(f"note: {words}")


def advise(*lines: str) -> None:
    """What to try next."""
    for line in lines:
        tell(f"next: {line}")


def console() -> Console:
    """Where tables go: whole lines in a pipe, folded ones on a terminal."""
    from rich.console import Console

    # A pipe has no width: what reads it wants whole lines.
    width = None if sys.stdout.isatty() else 1000
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)


def table(*names: str, numbers: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """A table without lines; columns of `numbers` are aligned at the right, `whole` ones are not folded."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        justify = "right" if name in numbers else "left"
        made.add_column(name, justify=justify, overflow="fold", no_wrap=name in whole)  # type: ignore[arg-type]
    return made


def in_words(measure: Measure | None) -> str:
    """A score with its interval."""
    from mle_star.views import text

    if measure is None or measure.low is None or measure.high is None:
        return "–" if measure is None else text.score(measure.score)
    return f"{text.score(measure.score)} ({text.score(measure.low)} to {text.score(measure.high)})"


def serve(server: GuardedServer, *, open_it: bool) -> None:
    """Say the address, and serve until Ctrl-C."""
    address = server.start()
    typer.echo(address)
    if open_it:
        typer.launch(address)
    try:
        server.wait()
    except KeyboardInterrupt:
        tell("no longer served")
    finally:
        server.stop()
