"""`mle-star kaggle`: from a competition to a task folder, from a run to the leaderboard."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mle_star.errors import ConfigError

if TYPE_CHECKING:
    from mle_star.run.folder import RunFolder


class KaggleAction(str, Enum):
    """What to do with Kaggle."""

    get = "get"
    submit = "submit"
    status = "status"


def kaggle(
    action: Annotated[KaggleAction, typer.Argument(help="get a competition, submit a run, or ask for scores.")],
    what: Annotated[str, typer.Argument(metavar="COMPETITION|RUN", help="get: a competition; else: a run.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="get: the task folder to make.")] = None,
    competition: Annotated[str, typer.Option(help="submit: where to; else the competition of the run's task.")] = "",
    message: Annotated[str, typer.Option("--message", "-m", help="submit: what to say of it.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="submit: do not ask before sending.")] = False,
) -> None:
    """Get a competition of Kaggle as a task folder, submit a run, see its public score beside our promise.

    Needs `pip install 'mle-star[kaggle]'` and a credential of Kaggle; the rules of a competition must be accepted on
    its page first.

    \b
    Examples:
      mle-star kaggle get spaceship-titanic
      mle-star kaggle submit spaceship-titanic-20260131
      mle-star kaggle status spaceship-titanic-20260131
    """
    from mle_star.run.finding import find_run

    if action is KaggleAction.get:
        _get(what, output or Path(what))
    elif action is KaggleAction.submit:
        _submit(find_run(what), competition, message, yes=yes)
    else:
        _status(find_run(what))


def _get(competition: str, folder: Path) -> None:
    from mle_star.integrations.kaggle import get_competition

    guess = get_competition(competition, folder)
    for note in guess.notes:
        typer.echo(f"note: {note}", err=True)
    task = guess.task
    typer.echo(
        f"{folder / 'task.yaml'}: {task.task_type.value}, {task.metric_direction.value} {task.evaluation_metric}, "
        f"target {', '.join(guess.targets) or '-'}"
    )
    typer.echo(f"look at it, then: mle-star run {folder}")


def _submit(run_dir: Path, competition: str, message: str, *, yes: bool) -> None:
    from mle_star.integrations.kaggle import refresh, submit
    from mle_star.run.folder import RunFolder, first_line

    folder = RunFolder(run_dir)
    if not folder.journal.is_file():
        raise ConfigError(f"{run_dir} holds no run")
    if not folder.submission.is_file():
        raise ConfigError(f"{run_dir}: there is no submission to send")
    name = competition or first_line(run_dir).task.competition_id
    said, promise = message or f"mle-star {run_dir.resolve().name}", _promise(folder)
    if not yes and not typer.confirm(f"send {folder.submission} to {name}, with the promise {promise}?"):
        typer.echo("nothing was sent")
        return
    sent = submit(run_dir, name, said, promise)
    typer.echo(f"sent to {name} as {sent.ref}")
    refresh(run_dir, wait_seconds=60)
    _status(run_dir)


def _status(run_dir: Path) -> None:
    from mle_star.integrations.kaggle import refresh

    known = refresh(run_dir)
    if not known:
        raise ConfigError(f"{run_dir}: nothing was sent from it; `mle-star kaggle submit {run_dir}` does it")
    for one in known:
        score = "no score yet" if one.score is None else f"public score {one.score:g}"
        problem = f" ({one.problem})" if one.problem else ""
        typer.echo(f"{one.competition} {one.ref}: {one.status.lower()}, {score}, promised {one.promise}{problem}")


def _promise(folder: RunFolder) -> str:
    from mle_star.models import FinalResult

    try:
        result = FinalResult.model_validate_json(folder.result.read_bytes())
    except (OSError, ValueError):
        return "unknown"
    promise = result.promise
    if promise is None:
        return "unknown"
    between = "" if promise.low is None else f" ({promise.low:.5g} to {promise.high:.5g})"
    return f"{promise.score:.5g}{between}, {promise.measured}"
