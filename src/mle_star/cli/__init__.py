"""The `mle-star` command. `app` is the frame, each other module holds the commands of one subject; here is how they
speak: notes, advice, tables, scores. Larger than planned: each of its commands also says what to do next.
"""

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

EXIT_WRONG_INPUT, EXIT_NO_SUBMISSION, EXIT_FAILED, EXIT_INTERRUPTED = 1, 2, 3, 130


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


def console() -> "Console":
    """Where tables go: whole lines in a pipe, which has no width, folded ones on a terminal."""
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else 1000)


def table(*columns: str, whole: tuple[str, ...] = ()) -> "Table":
    """A table without lines; a column `name>` is aligned at the right, and cells of `whole` ones are not folded."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        justify = "right" if name.endswith(">") else "left"
        made.add_column(name.rstrip(">"), justify=justify, overflow="fold", no_wrap=name in whole)  # type: ignore[arg-type]
    return made
