"""`mle-star sweep`: many tasks, several seeds each, as one campaign."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mle_star.cli.run import Assignments, ConfigFile, seconds_of
from mle_star.errors import ConfigError

if TYPE_CHECKING:
    from mle_star.results.campaign import Entry


def sweep(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="TASK...", help="Task folders, or data.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each task.")] = 1,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Runs side by side.")] = 1,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The campaign's folder.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the campaign in this folder.")] = None,
    executor: Annotated[str | None, typer.Option("--executor", help="local, ray, ray://HOST:PORT.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model name or alias.")] = None,
    max_budget: Annotated[float | None, typer.Option("--max-budget", help="US dollars for all runs.")] = None,
    time_limit: Annotated[str | None, typer.Option("--time-limit", help="Begin no run after so long.")] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Run many tasks, each with several seeds, within one budget; `--resume` goes on after whatever stopped it.

    Each run is a normal run folder below the campaign's; results.csv there has one line for each.

    \b
    Examples:
      mle-star sweep titanic/ house-prices/ --seeds 3 --model offline --at-once 2
      mle-star sweep tasks/* --seeds 3 --executor ray --at-once 60 --max-budget 500 -o campaign/
      mle-star sweep --resume campaign/ --at-once 60
    """
    import asyncio

    from mle_star.config import load_config, parse_assignments
    from mle_star.data import load_task
    from mle_star.results.campaign import Campaign

    seconds = seconds_of("--time-limit", time_limit)
    if resume is not None:
        if folders:
            raise ConfigError("--resume takes the tasks of the campaign: name none")
        campaign = Campaign.open(resume)
    else:
        if not folders:
            raise ConfigError("name task folders, or a campaign with --resume")
        given = {"executor": executor, "model": model}
        explicit = {name: value for name, value in given.items() if value is not None}
        settings = load_config({**explicit, **parse_assignments(assignments or [])}, config)
        tasks = [load_task(folder) for folder in folders]
        campaign = Campaign.create(output or Path("campaign"), tasks, seeds, settings)

    def tell(entry: Entry) -> None:
        score = "" if entry.score is None else f"  score {entry.score:.5g}"
        worth = "" if entry.promise is None else f"  promise {entry.promise:.5g}"
        typer.echo(f"{entry.folder}: {entry.state}{score}{worth}{f'  ({entry.message})' if entry.message else ''}")

    entries = asyncio.run(
        campaign.run(at_once=at_once, max_budget_usd=max_budget, seconds=seconds, tell=tell)
    )  # fmt: skip
    finished = [entry for entry in entries if entry.state == "finished"]
    spent = sum(entry.cost_usd or 0.0 for entry in entries)
    typer.echo(f"{len(finished)} of {len(entries)} runs finished, ${spent:.2f}; {campaign.folder / 'results.csv'}")
    raise typer.Exit(0 if len(finished) == len(entries) else 3)
