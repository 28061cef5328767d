"""From what stands on the command line to the task of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mle_star.errors import ConfigError

if TYPE_CHECKING:
    from mle_star.models import PipelineConfig, TaskDescription


@contextmanager
def prepared(
    source: Path,
    guess_words: tuple[str | None, str | None, bool | None],
    settings: PipelineConfig,
    output: Path | None,
    *,
    dry: bool,
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
            with taken_in(source, folder, target=guess_words[0], note=_note) as data:
                if any(data.glob(TASK_FILE)) or any(data.glob(f"*/{TASK_FILE}")):
                    words = (
                        f"{source}: an archive is data, and its {TASK_FILE} is not used; unpack it and name its folder"
                    )
                    _note(words)
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
    from mle_star.pipeline.setup import check_credentials
    from mle_star.run.folder import new_run_folder

    check_credentials(settings, None)
    if output is not None:
        return output.absolute()
    return new_run_folder(Path(settings.work_dir).absolute() / RUNS, source.name.partition(".")[0])


def _guessed(
    data: Path,
    run_dir: Path | None,
    guess_words: tuple[str | None, str | None, bool | None],
    settings: PipelineConfig,
    source: Path | None,
) -> TaskDescription:
    """The task that `init` would write, told in two lines with what deserves a look.

    `source` is the one file that the data were taken from.
    """
    from mle_star.models import MetricDirection
    from mle_star.results.source import in_their_words, make_task, told

    target, metric, maximize = guess_words
    direction = None if maximize is None else MetricDirection.maximize if maximize else MetricDirection.minimize
    name = None if source is None else source.name.partition(".")[0]
    guess = make_task(data, run_dir, name=name, target=target, metric=metric, direction=direction)
    for note in guess.notes:
        _note(note if source is None else in_their_words(note, source))
    for line in told(guess, hides_rows=settings.scoring == "auto"):
        typer.echo(plain(line if source is None else in_their_words(line, source)), err=True)
    return guess.task


def _note(words: str) -> None:
    typer.echo(plain(f"note: {words}"), err=True)


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
        typer.echo(plain(f"note: the data lie outside of {folder}: {data}"), err=True)


def plain(text: str) -> str:
    """Names come from the data: keep them from driving the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
