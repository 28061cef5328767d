"""How commands take the name of a run, and what a shell completes it to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run_named(ctx: typer.Context, name: Path) -> Path:
    """The folder of the run that a word on the command line means."""
    from mle_star.run.finding import find_run

    return name if ctx.resilient_parsing else find_run(name)


def complete_run(incomplete: str) -> list[str]:
    """Names of runs that begin like this, the latest first."""
    from mle_star.run.finding import LATEST, runs_folder, runs_in

    names = [LATEST, *(run.name for run in reversed(runs_in(runs_folder())))]
    return [name for name in names if name.startswith(incomplete)]


def complete_executor(incomplete: str) -> list[str]:
    """Executors that begin like this: ours, and those of plugins."""
    from mle_star.execution.choice import executor_names

    return [name for name in executor_names() if name.startswith(incomplete)]


def complete_step(ctx: typer.Context, incomplete: str) -> list[str]:
    """Steps of the run that was named before."""
    from mle_star.cli.browse import read_steps
    from mle_star.errors import MleStarError
    from mle_star.run.finding import find_run

    try:
        return [step for step in read_steps(find_run(ctx.params["run_folder"])) if step.startswith(incomplete)]
    except (MleStarError, OSError, KeyError):
        return []


HELP = "A run: its name in runs/ or the beginning of it, its folder, or `latest`."
Run = Annotated[
    Path, typer.Argument(metavar="RUN", help=HELP, callback=run_named, autocompletion=complete_run)
]  # fmt: skip
