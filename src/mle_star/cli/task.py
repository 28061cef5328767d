"""`mle-star init`, and the task of a run from what stands on the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mle_star.cli.options import Force, Maximize, Metric, Target
from mle_star.cli.printing import note, plain, tell
from mle_star.errors import ConfigError

if TYPE_CHECKING:
    from mle_star.models import MetricDirection, PipelineConfig, TaskDescription

Words = tuple[str | None, str | None, bool | None]
"""Target, metric, and whether more of it is better, as far as they are given."""


def init(
    data_folder: Annotated[
        Path, typer.Argument(metavar="DATA_FOLDER", help="The folder with the data, or the one whose `input` holds it.")
    ],
    target: Target = None,
    metric: Metric = None,
    maximize: Maximize = None,
    name: Annotated[str | None, typer.Option(help="The task's name; the folder's name if not given.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write; DATA_FOLDER/task.yaml if not given.")
    ] = None,
    force: Force = False,
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

    guess = guess_task(data_folder, target=target, metric=metric, direction=_direction(maximize), name=name)
    path = data_folder if output is None else output
    path = path / TASK_FILE if path.is_dir() else path
    write_task(guess, path, force=force)

    console = Console(highlight=False, soft_wrap=True)
    values = {**guess.task.model_dump(mode="json"), "target": ", ".join(guess.targets) or "-"}
    for field, reason in guess.reasons.items():
        console.print(f"{field:18} [bold]{escape(plain(values[field]))}[/bold]  [dim]{escape(plain(reason))}[/dim]")
    for words in guess.notes:
        console.print(f"[yellow]note[/yellow]  {escape(plain(words))}")
    place = data_folder if output is None else path
    console.print(f"Wrote {escape(str(path))}. Check it, then: mle-star run {escape(str(place))}{_model_words()}")


def _direction(maximize: bool | None) -> MetricDirection | None:
    from mle_star.models import MetricDirection

    return None if maximize is None else MetricDirection.maximize if maximize else MetricDirection.minimize


def _model_words() -> str:
    """What to add so that the run works with what this machine has."""
    from mle_star.config import load_config
    from mle_star.sdk.credentials import find_credentials
    from mle_star.search.setup import served_model

    if served_model(load_config().model) is not None or find_credentials():
        return ""
    return " --model offline  (no key for a language model was found; `mle-star doctor` says more)"


@contextmanager
def prepared(
    source: Path, guess_words: Words, settings: PipelineConfig, output: Path | None, *, dry: bool
) -> Iterator[tuple[TaskDescription, Path | None]]:
    """The task and the run's folder: as the task file says, else guessed from the data.

    One file of data is taken into the run's folder, which is gone again when nothing comes of it.
    """
    from mle_star.data import TASK_FILE, load_task
    from mle_star.data.tables import TABLE_SUFFIXES
    from mle_star.results.source import is_data_file, taken_in

    if is_data_file(source):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / source.stem if dry else _folder_for(source, settings, output)
            with taken_in(source, folder, target=guess_words[0], note=note) as data:
                if any(data.glob(TASK_FILE)) or any(data.glob(f"*/{TASK_FILE}")):
                    note(f"{source}: the {TASK_FILE} of an archive is not used; unpack it and name its folder")
                task = _guessed(data, None if dry else folder, guess_words, settings, source)
                yield task, output if dry else folder
        return
    if not source.exists():
        raise ConfigError(f"{source}: no such folder or file")
    if source.is_file() and source.suffix.lower() not in (".yaml", ".yml"):
        kinds = ", ".join(TABLE_SUFFIXES)
        raise ConfigError(f"{source}: neither data nor a task file; wanted is a table ({kinds}), a zip, or task.yaml")
    has_file = source.is_file() or (source / TASK_FILE).exists()
    if has_file and guess_words == (None, None, None):
        task = load_task(source)
        _say_where_the_data_lie(task, source if source.is_dir() else source.parent)
    else:
        task = _guessed(source, None, guess_words, settings, None)
        _say_where_the_data_lie(task, source)
    yield task, output


def _folder_for(source: Path, settings: PipelineConfig, output: Path | None) -> Path:
    """Where a run on one file will be; nothing is copied for a model that cannot be asked."""
    from mle_star.data.place import RUNS
    from mle_star.run.folder import new_run_folder
    from mle_star.search.setup import check_credentials

    check_credentials(settings, None)
    if output is not None:
        return output.absolute()
    return new_run_folder(Path(settings.work_dir).absolute() / RUNS, source.name.partition(".")[0])


def _guessed(
    data: Path, run_dir: Path | None, guess_words: Words, settings: PipelineConfig, source: Path | None
) -> TaskDescription:
    """The task that `init` would write, told in two lines with what deserves a look.

    `source` is the one file that the data were taken from.
    """
    from mle_star.results.source import in_their_words, make_task, told

    target, metric, maximize = guess_words
    name = None if source is None else source.name.partition(".")[0]
    guess = make_task(data, run_dir, name=name, target=target, metric=metric, direction=_direction(maximize))
    lines = [*(f"note: {words}" for words in guess.notes), *told(guess, hides_rows=settings.scoring == "auto")]
    for line in lines:
        tell(line if source is None else in_their_words(line, source))
    return guess.task


def time_in_words(task: TaskDescription, settings: PipelineConfig) -> str:
    """How long it may take, before it starts."""
    from mle_star.data.survey import survey
    from mle_star.results.estimate import estimate, in_words
    from mle_star.run.finding import runs_folder

    try:
        table = survey(Path(task.data_dir)).train
    except ConfigError:
        table = None
    told = estimate(settings, Path(task.data_dir), table.rows if table else 0, runs_folder())
    return in_words(told, settings.time_limit_seconds)


def _say_where_the_data_lie(task: TaskDescription, folder: Path) -> None:
    """Scripts see what lies there: nobody should learn later that it is another folder than the one that was named."""
    data = Path(task.data_dir).resolve()
    if folder.resolve() not in (data, *data.parents):
        note(f"the data lie outside of {folder}: {data}")
