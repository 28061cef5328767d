"""The `ui` command: one page with all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ui(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Where the runs are; runs/ if not given.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="A fixed port instead of a free one.")] = 0,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Serve one page with all runs: live ones on top, searchable, two of them compared; end with Ctrl-C.

    Each run opens its report, which follows the run while it goes on. The page is for this machine only, and its
    address holds a token: who has it may also end runs.

    \b
    Examples:
      mle-star ui --open
      mle-star ui experiments/
    """
    from mle_star.cli.runs import serve
    from mle_star.errors import ConfigError
    from mle_star.run.finding import runs_folder
    from mle_star.views.index import IndexServer

    place = runs_folder() if folder is None else folder
    if not place.is_dir():
        raise ConfigError(f"{place} is no folder; name the one that holds your runs")
    serve(IndexServer(place, port=port), open_it=open_it)
