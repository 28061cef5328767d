"""`mle-star sweep`: many tasks, several seeds each, as one campaign."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mle_star.cli.run import Assignments, ConfigFile, Executor, explicit_settings, seconds_of
from mle_star.errors import ConfigError

if TYPE_CHECKING:
    from mle_star.results.campaign import Entry


def sweep(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="TASK...", help="Task folders, or data as `run` takes them.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Runs of each task. [default: 1]")] = None,
    at_once: Annotated[int | None, typer.Option("--at-once", min=1, help="Runs side by side. [default: 1]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The campaign's folder.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the campaign in this folder.")] = None,
    executor: Executor = None,
    model: Annotated[str | None, typer.Option("--model", help="Model name or alias.")] = None,
    max_budget: Annotated[float | None, typer.Option("--max-budget", help="US dollars for all runs.")] = None,
    time_limit: Annotated[str | None, typer.Option("--time-limit", help="Begin no run after so long.")] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Run many tasks, each with several seeds, within one budget; `--resume` goes on after whatever stopped it.

    Each run is a normal run folder below the campaign's; results.html and results.csv there have a line for each. A
    `leaderboard.csv` beside a task says which scores win a medal. `--resume` goes on with the settings and the money
    of the campaign; what is given with it, or as a variable (MLE_STAR_*), replaces them.

    \b
    Examples:
      mle-star sweep titanic/ house-prices/ --seeds 3 --model offline --at-once 2
      mle-star sweep houses.csv cars.csv --seeds 3 --model offline
      mle-star sweep tasks/* --seeds 3 --executor ray --at-once 60 --max-budget 500 -o campaign/
      mle-star sweep --resume campaign/ --at-once 60 --executor ray://head.example:10001
    """
    import asyncio

    from mle_star.cli.task import prepared
    from mle_star.config import load_config
    from mle_star.data.medals import load_medals
    from mle_star.results.campaign import PAGE, Campaign

    seconds = seconds_of("--time-limit", time_limit)
    explicit = explicit_settings({"executor": executor, "model": model}, assignments)
    if resume is not None:
        if folders:
            raise ConfigError("--resume takes the tasks of the campaign: name none")
        if seeds is not None or output is not None:
            raise ConfigError(
                "--resume takes the seeds and the folder of the campaign: give no --seeds and no --output"
            )
        campaign = Campaign.open(resume)
        changes: dict[str, object] = {"at_once": at_once, "max_budget_usd": max_budget}
        changes = {name: value for name, value in changes.items() if value is not None}
        campaign.change(**changes, config=load_config(explicit, config, base=campaign.plan.config))
    else:
        if not folders:
            raise ConfigError("name task folders, or a campaign with --resume")
        place, settings = output or Path("campaign"), load_config(explicit, config)
        Campaign.refuse_begun(place)
        with ExitStack() as until_kept:  # what was taken in goes again when the campaign is refused
            guessed = (None, None, None)
            taken = [place / "tasks" / f"{number}-{folder.name}" for number, folder in enumerate(folders)]
            tasks = [
                until_kept.enter_context(prepared(source, guessed, settings, own, dry=False))[0]
                for source, own in zip(folders, taken, strict=True)
            ]
            thresholds = [load_medals(*both) for both in zip(folders, tasks, strict=True)]
            medals = {task.competition_id: one for task, one in zip(tasks, thresholds, strict=True) if one is not None}
            campaign = Campaign.create(
                place, tasks, seeds or 1, settings, medals, at_once=at_once or 1, max_budget_usd=max_budget
            )  # fmt: skip

    def tell(entry: Entry) -> None:
        score = "" if entry.score is None else f"  score {entry.score:.5g}"
        worth = "" if entry.promise is None else f"  promise {entry.promise:.5g}"
        medal = f"  {entry.medal}" if entry.medal else ""
        why = f"  ({entry.message})" if entry.message else ""
        typer.echo(f"{entry.folder}: {entry.state}{score}{worth}{medal}{why}")

    entries = asyncio.run(campaign.run(seconds=seconds, tell=tell))
    finished = [entry for entry in entries if entry.state == "finished"]
    spent = sum(entry.cost_usd or 0.0 for entry in entries)
    typer.echo(f"{len(finished)} of {len(entries)} runs finished, ${spent:.2f}; {campaign.folder / PAGE}")
    raise typer.Exit(0 if len(finished) == len(entries) else 3)
