"""`mle-star init`: from a data folder to a task file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mle_star.cli.task import plain


def init(
    data_folder: Annotated[
        Path, typer.Argument(metavar="DATA_FOLDER", help="The folder with the data, or the one whose `input` holds it.")
    ],
    target: Annotated[str | None, typer.Option(help="The column to predict; several with commas between them.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="Such as auc, rmse, logloss, macro-f1, or score.py:function.")
    ] = None,
    maximize: Annotated[
        bool | None, typer.Option("--maximize/--minimize", help="Which way the metric is better.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The task's name; the folder's name if not given.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write; DATA_FOLDER/task.yaml if not given.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a task file that is there.")] = False,
) -> None:
    """Look at a data folder and write its task.yaml, every guess explained.

    Reads the first rows of the tables only, never a large file whole. Nothing is overwritten without --force.

    \b
    Examples:
      mle-star init data/
      mle-star init data/ --target price --metric mae
      mle-star init data/ --metric score.py:profit --maximize --output tasks/profit.yaml
    """
    from rich.console import Console
    from rich.markup import escape

    from mle_star.data import TASK_FILE, guess_task, write_task
    from mle_star.models import MetricDirection

    direction = None if maximize is None else MetricDirection.maximize if maximize else MetricDirection.minimize
    guess = guess_task(data_folder, target=target, metric=metric, direction=direction, name=name)
    path = data_folder if output is None else output
    path = path / TASK_FILE if path.is_dir() else path
    write_task(guess, path, force=force)

    console = Console(highlight=False, soft_wrap=True)
    values = {**guess.task.model_dump(mode="json"), "target": ", ".join(guess.targets) or "-"}
    for field, reason in guess.reasons.items():
        console.print(f"{field:18} [bold]{escape(plain(values[field]))}[/bold]  [dim]{escape(plain(reason))}[/dim]")
    for note in guess.notes:
        console.print(f"[yellow]note[/yellow]  {escape(plain(note))}")
    place = data_folder if output is None else path
    console.print(f"Wrote {escape(str(path))}. Look it over, then: mle-star run {escape(str(place))}{_model_words()}")


def _model_words() -> str:
    """What to add so that the run works with what this machine has."""
    from mle_star.config import load_config
    from mle_star.pipeline.setup import served_model
    from mle_star.sdk.credentials import find_credentials

    if served_model(load_config().model) is not None or find_credentials():
        return ""
    return " --model offline  (no key for a language model was found; `mle-star doctor` says more)"
