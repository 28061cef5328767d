"""From whatever people have (a table, a workbook, an archive, a data frame) to a task in the run's folder, and how long
the run may take on this machine.
"""

import difflib
import logging
import lzma
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mle_star.data import tables
from mle_star.data.folder import TASK_FILE, described_beside, load_task, write_task
from mle_star.data.guess import TaskGuess, guess_task
from mle_star.data.layout import survey, with_target
from mle_star.data.place import RUNS, DataFolder
from mle_star.data.rows import drop_columns
from mle_star.data.tables import TABLE_SUFFIXES, table_form
from mle_star.errors import ConfigError
from mle_star.execution.environment import usable_cores
from mle_star.execution.workspace import remove_entry
from mle_star.holdout.split import FEWEST_ROWS, usual_views
from mle_star.models import MetricDirection, PipelineConfig, TaskDescription
from mle_star.models.texts import duration, plural, some_of
from mle_star.results.rows import LINE_END, check_frame, has_index
from mle_star.run.folder import RunFolder, new_run_folder
from mle_star.run.timing import plan_seconds

logger = logging.getLogger(__name__)
Note = Callable[[str], None]
"""Tells people something that does not end the run."""
SCRIPT_SECONDS, SECONDS_PER_MB = 4.0, 12.0
"""What a script takes before one was measured: libraries to load, and work that grows with the data."""


def is_data_file(path: Path) -> bool:
    """Is it a file that holds data itself, rather than a task file?"""
    return path.is_file() and (table_form(path) is not None or path.suffix.lower() == ".zip")


@contextmanager
def taken_in(
    source: Any, run_dir: Path, *, target: str | None = None, note: Note = logger.warning, drop: Sequence[str] = ()
) -> Iterator[Path]:
    """The data in the run's folder. An error on the way takes all of it away again, and calls them as the user does.

    Of a workbook, the sheet that has the `target`; `note` names the others. The columns in `drop` are left out.
    """
    if run_dir.exists() and any(run_dir.iterdir()):
        RunFolder(run_dir).create()  # says what is wrong with the place
        raise ConfigError(f"{run_dir} is not empty; choose another output folder")
    existed, made = run_dir.exists(), [folder for folder in run_dir.parents if not folder.exists()]
    data = RunFolder(run_dir).create().data
    data.mkdir()  # not below: where another run was quicker, nothing of it is removed
    try:
        _take_in(source, data, target, note)
        drop_columns(data, drop)
        yield data
    except BaseException as error:
        if not RunFolder(run_dir).journal.exists():  # what a run has begun stays
            for path in [*run_dir.iterdir()] if existed else [run_dir]:  # it may be a link, or where the user is
                remove_entry(path)
            for folder in made:  # the nearest first
                with suppress(OSError):
                    folder.rmdir()
        if type(error) is ConfigError:
            raise ConfigError(in_their_words(str(error), source)) from None
        raise


def in_their_words(words: str, source: Any) -> str:
    """A message about the training table, with the name that the user knows it by."""
    if isinstance(source, Path) and not is_data_file(source):
        return words
    name = source.name if isinstance(source, Path) else "the data frame"
    return re.sub(r"(?<![\w.-])(?:[^\s:]*/)?train(?:\.\w+)+", lambda _: name, words)


def _take_in(source: Any, folder: Path, target: str | None, note: Note) -> None:
    if not isinstance(source, Path):
        _write_frame(source, folder / "train.csv")
    elif table_form(source) is None or (source.suffix.lower() == ".zip" and len(_members(source)) != 1):
        _unpack(source, folder)
    elif table_form(source) == "excel":
        _write_frame(_sheet(source, target, note), folder / "train.csv")
    else:
        shutil.copyfile(source, folder / f"train{''.join(source.suffixes[-2:])}")


def _write_frame(frame: Any, path: Path) -> None:
    """A data frame as the table that scripts read; an index with a name is a column, too."""
    check_frame(frame)
    if not len(frame):
        raise ConfigError("the data frame has no rows: there is nothing to learn from")
    frame.to_csv(path, index=has_index(frame), lineterminator=LINE_END, errors="replace")


def _sheet(path: Path, target: str | None, note: Note) -> Any:
    """The sheet with the target; without one, the first that is a table: notes have one column."""
    try:
        sheets = tables.sheets(path)
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from None
    has = {name: target is None or target in map(str, sheet.columns) for name, sheet in sheets.items()}
    chosen = max(sheets, key=lambda name: (has[name], len(sheets[name].columns) > 1 and len(sheets[name]) > 0))
    if not has[chosen] and len(sheets) > 1:
        there = "; ".join(f"{name!r} ({some_of([*map(str, sheet.columns)], 8)})" for name, sheet in sheets.items())
        raise ConfigError(f"{path}: no sheet has a column {target!r}; there are {there}")
    if others := [name for name in sheets if name != chosen]:
        note(f"{path.name}: sheet {chosen!r} is read; not read: {', '.join(map(repr, others))}")
    return sheets[chosen].infer_objects()


def _members(path: Path) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [member for member in archive.infolist() if not member.is_dir()]
    except (zipfile.BadZipFile, OSError) as error:
        raise ConfigError(f"{path}: no archive that can be read ({error})") from None


def _unpack(path: Path, folder: Path) -> None:
    """The files of an archive, none of them outside of `folder`, and no more than the disk has room for."""
    members = _members(path)
    size, free = sum(member.file_size for member in members), shutil.disk_usage(folder).free
    if size > free // 2:
        raise ConfigError(f"{path}: unpacked it would take {size >> 20} MB, and the disk has {free >> 20} MB left")
    for member in members:
        if folder.resolve() not in (folder / member.filename).resolve().parents:
            raise ConfigError(f"{path}: it holds {member.filename!r}, which lies outside of the archive")
    if not any(table_form(Path(member.filename)) for member in members):
        raise ConfigError(f"{path}: no table in it; tables are {', '.join(TABLE_SUFFIXES)}")
    with zipfile.ZipFile(path) as archive:
        try:
            archive.extractall(folder)
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, OSError) as error:
            raise ConfigError(f"{path}: cannot be unpacked ({error})") from None


def make_task(data: Path, run_dir: Path | None, *, maximize: bool | None = None, **wanted: str | None) -> TaskGuess:
    """The task that `init` would guess for these data, written down in the run's folder where there is one.

    `wanted`: name, target, metric.
    """
    guess = guess_task(data, direction=MetricDirection.of(maximize), **wanted)
    if beside := described_beside(data):
        words = with_target(survey(Path(guess.task.data_dir)), f"{guess.task.description}\n\n{beside}", guess.targets)
        guess = guess._replace(task=guess.task.model_copy(update={"description": words}))
    if run_dir is not None:
        write_task(guess, run_dir / TASK_FILE, force=True)
    return guess


@contextmanager
def prepared(
    source: Any,
    config: PipelineConfig,
    run_dir: Path | None,
    *,
    dry: bool = False,
    note: Note = logger.warning,
    drop: Sequence[str] = (),
    **wanted: Any,
) -> Iterator[tuple[TaskDescription, Path | None, TaskGuess | None]]:
    """The task, the run's folder as far as it is known, and what was guessed; `wanted`: target, metric, maximize.

    A folder with a task file says all that by itself, unless something is `wanted`. One file of data, or a data frame,
    is taken into the run's folder, which is removed when the run cannot start, or when it is `dry`.
    """
    is_path = isinstance(source, Path)
    if not is_path or is_data_file(source):
        name = source.name.partition(".")[0] if is_path else "data"
        with tempfile.TemporaryDirectory() as scratch:
            new = run_dir.absolute() if run_dir else new_run_folder(Path(config.work_dir).absolute() / RUNS, name)
            folder = Path(scratch) / name if dry else new
            with taken_in(source, folder, target=wanted.get("target"), note=note, drop=drop) as data:
                if any(data.glob(TASK_FILE)) or any(data.glob(f"*/{TASK_FILE}")):
                    note(f"{source}: the {TASK_FILE} of an archive is not used; unpack it and name its folder")
                guess = make_task(data, folder, name=name, **wanted)
                yield guess.task, run_dir if dry else folder, guess
        return
    if drop:
        raise ConfigError(f"--drop is for one file or data frame: take {', '.join(drop)} out of the tables in {source}")
    if not source.exists():
        beside = [path.name for path in source.parent.iterdir()] if source.parent.is_dir() else []
        near = difflib.get_close_matches(source.name, beside, n=1)
        raise ConfigError(f"{source}: no such folder or file{f'; did you mean {near[0]}?' if near else ''}")
    if source.is_file() and source.suffix.lower() not in (".yaml", ".yml"):
        kinds = ", ".join(TABLE_SUFFIXES)
        raise ConfigError(f"{source}: neither data nor a task file; give a table ({kinds}), a zip, or task.yaml")
    has_file = source.is_file() or (source / TASK_FILE).exists()
    if has_file and not any(value is not None for value in wanted.values()):
        yield load_task(source), run_dir, None
    else:
        guess = make_task(source, None, **wanted)
        yield guess.task, run_dir, guess


def guess_lines(guess: TaskGuess, source: Any, *, hides_rows: bool) -> list[str]:
    """What was guessed, in two lines after what deserves a look; `hides_rows`: labels are kept to score by."""
    task, table = guess.task, survey(Path(guess.task.data_dir))
    train = table.train
    rows = f": {plural(train.rows, 'row')} of {plural(len(train.columns), 'column')}" if train else ""
    files = ", ".join(one.name for one in (*table.roles, *table.others)) or "files"
    is_alone = train is not None and table.test is None and train.rows >= FEWEST_ROWS
    held = "; no test file: rows are held back to score by" if is_alone and hides_rows else ""
    scored = f"scored by {task.evaluation_metric} ({task.metric_direction.better_word} is better)"
    lines = [
        *(f"note: {words}" for words in guess.notes),
        f"data: {files}{rows}{held}",
        f"task: predict {', '.join(guess.targets) or 'the target'} ({task.task_type.value}), {scored}; change with "
        "--target / --metric",
    ]
    return [in_their_words(line, source) for line in lines]


# --- how long it may take -----------------------------------------------------------------------------------------


def time_in_words(config: PipelineConfig, data_dir: Path) -> str:
    """How long a run may take before a script has shown more: a guess by the plan and the size of the data."""
    rows, size = 0, sum(status.st_size for _, status in DataFolder(data_dir).files()) / 1e6
    with suppress(ConfigError):
        rows = getattr(survey(data_dir).train, "rows", 0)
    share, cores = min(1.0, config.subsample_limit / max(rows, 1)), usable_cores()
    script = SCRIPT_SECONDS + SECONDS_PER_MB * size * share * 2 / cores
    crowd = max(1.0, config.num_parallel_solutions / cores)
    views = config.score_views or usual_views(rows) if config.scoring == "auto" else 1
    takes = plan_seconds(config, config.traits.call_seconds * crowd, script * crowd, views=views)
    limit = float(config.time_limit_seconds)
    if takes >= limit:
        return f"up to the limit of {duration(limit)}"
    unit, noun = (60, "minute") if takes < 5400 else (3600, "hour") if takes < 48 * 3600 else (86400, "day")
    guess = plural(max(round(takes / unit), 1), noun)  # no more digits than a guess has
    return f"perhaps {guess}, a guess until the first script has run; at most {duration(limit)}"
