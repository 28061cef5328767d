"""Commands of the integrations: `sweep`, `kaggle`, `mlebench`, `mlflow`."""

import asyncio
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from mle_star.cli import EXIT_FAILED, EXIT_NO_SUBMISSION, note, tell
from mle_star.cli.options import NO_SETTINGS, Given, Run, Shown, seconds_of
from mle_star.data.folder import load_medals
from mle_star.errors import ConfigError
from mle_star.run.folder import RunFolder, find_run, first_line

if TYPE_CHECKING:
    from mle_star.integrations.campaign import Campaign, Entry


def sweep(
    folders: Annotated[list[Path] | None, Argument(metavar="TASK...", help="Task folders or what `run` takes.")] = None,
    seeds: Annotated[int | None, Option("--seeds", min=1, help="Runs of each task. [default: 1]")] = None,
    at_once: Annotated[int | None, Option("--at-once", min=1, help="Runs side by side. [default: 1]")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="The campaign's folder.")] = None,
    resume: Annotated[Path | None, Option("--resume", help="Continue the campaign in this folder.")] = None,
    max_budget: Annotated[float | None, Option("--max-budget", help="US dollars for all runs.")] = None,
    time_limit: Annotated[str | None, Option("--time-limit", help="Start no run after this time.")] = None,
    given: Annotated[Given, "executor", "model"] = NO_SETTINGS,
) -> None:
    """Run many tasks, each with several seeds, within one budget; `--resume` continues later.

    Each run is a normal run folder below the campaign's; results.html and results.csv there have a line for each. A
    `leaderboard.csv` beside a task says which scores win a medal. `--resume` continues with the settings and the money
    of the campaign; what is given with it, or as a variable (MLE_STAR_*), replaces them.

    \b
    Examples:
      mle-star sweep titanic/ house-prices/ --seeds 3 --model offline --at-once 2
      mle-star sweep houses.csv cars.csv --seeds 3 --model offline
      mle-star sweep tasks/* --seeds 3 --executor ray --at-once 60 --max-budget 500 -o campaign/
      mle-star sweep --resume campaign/ --at-once 60 --executor ray://head.example:10001
    """
    from mle_star.integrations.campaign import PAGE, Campaign
    from mle_star.orchestrator import run_pipeline

    seconds = None if time_limit is None else seconds_of("--time-limit", time_limit)
    options = {"at_once": at_once, "max_budget_usd": max_budget}
    limits: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if resume is not None:
        if folders or seeds is not None or output is not None:
            raise ConfigError("--resume takes tasks, seeds and folder of the campaign: give none of them")
        campaign = Campaign.open(resume)
        campaign.change(**limits, config=given.load(campaign.plan.config))
    else:
        campaign = _new_campaign(folders or [], output or Path("campaign"), seeds or 1, given, limits)
    entries = asyncio.run(campaign.run(run_pipeline, seconds=seconds, tell=_show_entry))
    finished = [entry for entry in entries if entry.state == "finished"]
    spent = sum(entry.cost_usd or 0.0 for entry in entries)
    typer.echo(f"{len(finished)} of {len(entries)} runs finished, ${spent:.2f}; {campaign.folder / PAGE}")
    raise typer.Exit(0 if len(finished) == len(entries) else EXIT_FAILED)


def _new_campaign(folders: list[Path], place: Path, seeds: int, given: Given, limits: dict[str, Any]) -> "Campaign":
    from mle_star.cli.run import announced_task
    from mle_star.integrations.campaign import Campaign

    if not folders:
        raise ConfigError("name task folders, or a campaign with --resume")
    settings = given.load()
    Campaign.refuse_begun(place)
    with ExitStack() as until_saved:  # what was copied is removed when the campaign is refused
        tasks = [
            until_saved.enter_context(announced_task(source, settings, place / "tasks" / f"{number}-{source.name}"))[0]
            for number, source in enumerate(folders)
        ]
        pairs = [(task.competition_id, load_medals(folder, task)) for folder, task in zip(folders, tasks, strict=True)]
        medals = {name: thresholds for name, thresholds in pairs if thresholds is not None}
        return Campaign.create(place, tasks, seeds, settings, medals=medals, **limits)


def _show_entry(entry: "Entry") -> None:
    numbers = {"score": entry.score, "expected": entry.expected}
    words = [f"{name} {value:.4g}" for name, value in numbers.items() if value is not None]
    words += [entry.medal or "", f"({entry.message})" if entry.message else ""]
    typer.echo("  ".join([f"{entry.folder}: {entry.state}", *filter(None, words)]))


class KaggleAction(str, Enum):
    """What to do with Kaggle."""

    get = "get"
    submit = "submit"
    status = "status"


def kaggle(
    action: Annotated[KaggleAction, Argument(help="get a competition, submit a run, or ask for scores.")],
    what: Annotated[str, Argument(metavar="COMPETITION|RUN", help="get: a competition; else: a run.")],
    output: Annotated[Path | None, Option("--output", "-o", help="get: the task folder to make.")] = None,
    competition: Annotated[str, Option(help="submit: the competition; the run's own if not given.")] = "",
    message: Annotated[str, Option("--message", "-m", help="submit: a comment.")] = "",
    yes: Annotated[bool, Option("--yes", "-y", help="submit: do not ask before sending.")] = False,
) -> None:
    """Download a Kaggle competition as a task folder, submit a run, compare its public score with the expected one.

    Needs `pip install 'mle-star[kaggle]'` and a credential of Kaggle; the rules of a competition must be accepted on
    its page first.

    \b
    Examples:
      mle-star kaggle get spaceship-titanic
      mle-star kaggle submit spaceship-titanic-20260131
      mle-star kaggle status spaceship-titanic-20260131
    """
    from mle_star.integrations.competitions import get_competition, refresh

    if action is KaggleAction.get:
        folder = output or Path(what)
        guess = get_competition(what, folder)
        for words in guess.notes:
            note(words)
        kind, metric = guess.task.task_type.value, guess.task.evaluation_metric
        wanted = f"{guess.task.metric_direction.value} {metric}, target {', '.join(guess.targets) or '-'}"
        typer.echo(f"{folder / 'task.yaml'}: {kind}, {wanted}\ncheck it, then: mle-star run {folder}")
        return
    run_dir = find_run(what)
    if action is KaggleAction.submit and not _submit(run_dir, competition, message, yes=yes):
        return
    known = refresh(run_dir)
    if not known:
        raise ConfigError(f"{run_dir}: nothing was sent from it; `mle-star kaggle submit {run_dir}` does it")
    for one in known:
        score = "no score yet" if one.score is None else f"public score {one.score:g}"
        problem = f" ({one.problem})" if one.problem else ""
        typer.echo(f"{one.competition} {one.ref}: {one.status.lower()}, {score}, expected {one.expected}{problem}")


def _submit(run_dir: Path, competition: str, message: str, *, yes: bool) -> bool:
    from mle_star.integrations.competitions import refresh, submit
    from mle_star.results import read_result

    folder = RunFolder(run_dir)
    if not folder.submission.is_file():
        raise ConfigError(f"{run_dir}: there is no submission to send")
    name = competition or first_line(run_dir).task.competition_id
    expected = "unknown"
    with suppress(ConfigError):
        if measure := read_result(run_dir).expected:
            expected = f"{measure}, {measure.measured}"
    if not yes and not typer.confirm(f"send {folder.submission} to {name}, with the expected score {expected}?"):
        typer.echo("nothing was sent")
        return False
    sent = submit(run_dir, name, message or f"mle-star {run_dir.resolve().name}", expected)
    typer.echo(f"sent to {name} as {sent.ref}")
    refresh(run_dir, wait_seconds=60)
    return True


def mlebench(
    data_dir: Annotated[Path, Argument(metavar="DATA_DIR", help="The competition's data.")] = Path("/home/data"),
    competition: Annotated[str, Option(envvar="COMPETITION_ID", help="Its id; else the folder's name.")] = "",
    home: Annotated[Path, Option(help="With instructions.txt, submission/, code/, logs/.")] = Path("/home"),
    given: Annotated[Given, "time_limit_seconds", "model", "max_budget_usd"] = NO_SETTINGS,
) -> None:
    """Solve a competition of MLE-bench, inside its image.

    The run's folder is logs/mle-star; a run that was stopped there is resumed.

    \b
    Examples:
      mle-star mlebench /home/data --time-limit 24h
      mle-star mlebench data/spaceship-titanic --home out --model offline --time-limit 10m
    """
    from mle_star.cli.run import start_run
    from mle_star.integrations.competitions import bench_task, hand_in

    guess = bench_task(data_dir, home, competition or data_dir.resolve().name)
    for words in guess.notes:
        note(words)
    run_dir = home / "logs" / "mle-star"
    begun = (run_dir / "journal.jsonl").exists()
    try:
        start_run(guess.task, given.load(), run_dir, Shown(display="plain"), resume=begun, advice=False)
    finally:  # whatever there is of a run without a submission is copied, too
        place = hand_in(run_dir, home)
    if place is None:
        tell("no submission; script and report are in place")
        raise typer.Exit(EXIT_NO_SUBMISSION)
    typer.echo(f"submission: {place}")


def mlflow(
    run_folder: Run,
    uri: Annotated[str, Argument(metavar="URI", help="A server, or a database such as sqlite:///mlflow.db.")],
) -> None:
    """Send a run to an MLflow server. What the server already has is not sent again.

    What was sent is kept in the run's folder: nothing is sent twice. `mle-star run --mlflow URI` does the same during
    the run.

    \b
    Examples:
      mle-star mlflow titanic-20260131 http://127.0.0.1:5000
      mle-star mlflow titanic-20260131 sqlite:///mlflow.db
    """
    from mle_star.integrations.mlflow import MlflowMirror, one_line, without_password

    mirror, place = MlflowMirror(RunFolder(run_folder).open().root, uri), without_password(uri)
    try:
        sent = mirror.catch_up()
    except Exception as error:
        raise ConfigError(f"{place}: {type(error).__name__}: {one_line(error)[:300]}") from None
    typer.echo(f"{sent} events sent to {place}" if sent else f"nothing new for {place}")
