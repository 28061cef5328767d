"""The folder of a run: its files, how another process asks it to end, how a new run grows out of an old one."""

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from mle_star.data.place import MARK, RUNS, share
from mle_star.errors import ConfigError, JournalError
from mle_star.models import PipelineConfig, TaskDescription
from mle_star.models.texts import did_you_mean
from mle_star.run import events
from mle_star.run.budget import Spent
from mle_star.run.journal import read_journal

Request = Literal["finish", "stop"]
_RESULTS = (events.AgentFinished, events.AgentFailed, events.ScriptFinished, events.Decided, events.LeakageChecked)
"""What a fork of a run takes over: what was paid for, and what the rest depends on."""
RESERVE_BYTES = 4 * 1024 * 1024
"""A result with its scripts, twice: in the journal and beside it."""


class RunFolder:
    """The files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = root / "journal.jsonl"
        """The record of the run: every event."""
        self.result = root / "result.json"
        """The `FinalResult`."""
        self.report = root / "report.html"
        """The page for people."""
        self.solution = root / "solution.py"
        """The final script."""
        self.data = root / "data"
        """The data of a run on one file, which took it in; others have theirs elsewhere."""
        self.input = root / "input"
        """A link to the data of the final script: `python solution.py` works in the run's folder."""
        self.model = root / "model"
        """What the final script has fitted, as it left it in `./model/`: `predict` shows it to the script."""
        self.model_note = root / "model.json"
        """Which script fitted it on which data."""
        self.control = root / "control"
        """Where another process asks the run to end."""
        self.final = root / "final"
        """What is submitted, and the best submission so far."""
        self.submission = self.final / "submission.csv"
        """The file to submit."""
        self.best_submission = self.final / "best_submission.csv"
        """The best submission that any script of the run left so far."""
        self.best_solution = self.final / "best_solution.py"
        """The script that made it."""
        self.artifacts = root / "artifacts"
        """Files that scripts left, by their digest."""
        self.reserve = root / ".reserve"
        """Room that is reserved during the run, so that its result can be written even to a full disk."""

    @contextmanager
    def holding_reserve(self) -> Iterator[None]:
        """Reserve room, where there is any, for the time of the run."""
        with suppress(OSError):
            write_whole(self.reserve, os.urandom(RESERVE_BYTES))  # no file system can make less of it
        try:
            yield
        finally:
            self.release_reserve()

    def release_reserve(self) -> None:
        """Give the room back: now the result is written."""
        with suppress(OSError):
            self.reserve.unlink()

    def show_input(self, data: Path) -> None:
        """Link the data where the final script looks for them; what someone else put there is kept."""
        root, data = self.root.resolve(), data.resolve()
        if self.input.is_symlink():
            self.input.unlink()
        if not self.input.exists():
            self.input.symlink_to(data.relative_to(root) if data.is_relative_to(root) else data)

    def create(self) -> "RunFolder":
        """Make the folder, or fail in one line when something else is there."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not (self.root / MARK).exists() and any(self.root.iterdir()):
                raise ConfigError(f"{self.root} is not empty and not a run of mle-star; choose another output folder")
            if self.journal.exists():
                raise ConfigError(f"{self.root} holds a run already; use `mle-star resume` or another output folder")
            (self.root / MARK).touch()
        except OSError as error:
            raise ConfigError(f"{self.root}: {error.strerror}; choose another output folder") from None
        return self

    def open(self) -> "RunFolder":
        """Check that a run is here to be resumed."""
        if not self.journal.is_file():
            raise ConfigError(f"{self.root} holds no run: there is no {self.journal.name} in it")
        return self


def new_run_folder(base: Path, name: str, now: datetime | None = None) -> Path:
    """A folder name below `base` that no run has yet: `titanic-20260131-140509`."""
    stem = f"{file_name(name)}-{now or datetime.now():%Y%m%d-%H%M%S}"
    candidates = [base / stem, *(base / f"{stem}-{number}" for number in range(2, 1000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def file_name(name: str) -> str:
    """A task's name as part of a file name."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip(".-")[:80] or "run"


def write_whole(path: Path, content: str | bytes | Iterable[str | bytes], *, sync: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new, never a part; with `sync`, also after a crash."""
    with _draft_of(path) as draft, draft.open("wb") as file:
        for piece in [content] if isinstance(content, (str, bytes)) else content:
            file.write(piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def place_copy(source: Path, target: Path) -> None:
    """A copy of a file, all of it or nothing; on a full disk a second name for it, which takes no room."""
    with _draft_of(target) as draft:
        try:
            shutil.copyfile(source, draft)
        except OSError:
            draft.unlink(missing_ok=True)
            os.link(source, draft)


@contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """A file that takes the place of `path` when it is done; half of one would only take the room that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink()


# --- asking a run to end -----------------------------------------------------------------------------------


def request_finish(run_dir: Path, now: bool = False) -> None:
    """Ask the run in `run_dir`, in whatever process, to finish with what it has; with `now`, to stop at once."""
    write_whole(RunFolder(Path(run_dir)).open().control, "stop\n" if now else "finish\n")


def take_request(run_dir: Path) -> Request | None:
    """What was asked of the run since the last time; the run itself calls this."""
    control = RunFolder(run_dir).control
    try:
        word = control.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    with suppress(OSError):
        control.unlink()
    return "stop" if word == "stop" else "finish" if word == "finish" else None


def is_running(run_dir: Path, *, patience: float = 0.0) -> bool:
    """Is a process writing this run's journal, still after so many seconds?"""
    lock = Path(str(RunFolder(Path(run_dir)).journal) + ".lock")
    if not lock.exists():
        return False
    with suppress(Timeout), FileLock(str(lock), timeout=patience):
        return False
    return True


# --- what earlier processes left ---------------------------------------------------------------------------


def spent_by(recorded: Iterable[events.AnyEvent]) -> Spent:
    """What the processes of a run have used up so far."""
    spent = Spent()
    for event in recorded:
        spent.hear(event)
    return spent


def first_line(run_dir: Path) -> events.RunStarted:
    """How the run in `run_dir` was started."""
    folder = RunFolder(run_dir).open()
    first = next(iter(read_journal(folder.journal)), None)
    if not isinstance(first, events.RunStarted):
        raise JournalError(f"{folder.journal}, line 1: a run's first event is missing")
    return first.model_copy(update={"task": with_own_data(folder, first.task)})


def with_own_data(folder: RunFolder, task: TaskDescription) -> TaskDescription:
    """The task with its data where they are: those that a run took in move with its folder."""
    if Path(task.data_dir).is_dir() or not folder.data.is_dir():
        return task
    parts = Path(task.data_dir).parts
    below = (parts[place + 1 :] for place, name in enumerate(parts) if name == folder.data.name)  # of an archive
    places = [place for tail in below if (place := folder.data.joinpath(*tail)).is_dir()]
    return task.model_copy(update={"data_dir": str((places or [folder.data])[0].resolve())})


def last_config(run_dir: Path) -> PipelineConfig:
    """The settings that the run in `run_dir` had last."""
    return config_of(read_journal(RunFolder(run_dir).open().journal))


def config_of(recorded: Iterable[events.AnyEvent]) -> PipelineConfig:
    """The settings that a run had last, by its events."""
    begun = (event for event in recorded if isinstance(event, (events.RunStarted, events.RunResumed)))
    return [PipelineConfig(), *(event.config for event in begun if event.config is not None)][-1]


def fork_run(parent: Path, folder: RunFolder, started: events.RunStarted) -> TaskDescription:
    """Begin a run whose journal holds the paid results of `parent`, so that only new steps are paid for; its task.

    It stands on its own: data that the parent took in are taken over, and its time begins now. Money that the parent
    paid counts.
    """
    source, task = RunFolder(parent).open(), started.task
    if Path(task.data_dir).is_relative_to(source.data.resolve()):
        shutil.copytree(source.data, folder.data, copy_function=share, dirs_exist_ok=True)
        place = folder.data.resolve() / Path(task.data_dir).relative_to(source.data.resolve())
        task = task.model_copy(update={"data_dir": str(place)})
    paid = spent_by(read_journal(source.journal)).usd
    first = started.model_copy(update={"task": task, "forked_from": str(parent.resolve()), "inherited_cost_usd": paid})
    for name, how in (("artifacts", share), ("answers", shutil.copy2)):  # answers are written over in place
        if (source.root / name).is_dir():
            shutil.copytree(source.root / name, folder.root / name, copy_function=how, dirs_exist_ok=True)
    paid_for = (event for event in read_journal(source.journal) if isinstance(event, _RESULTS))
    results = (event for event in paid_for if not (isinstance(event, events.Decided) and event.reopen))
    folder.create()  # while all this was looked at, another process may have begun here
    write_whole(folder.journal, (f"{event.model_dump_json()}\n" for event in chain([first], results)))
    return task


# --- finding a run -----------------------------------------------------------------------------------------

LATEST = "latest"
LISTED = 5


def runs_folder() -> Path:
    """Where runs are kept unless the user names another place."""
    return Path(os.environ.get("MLE_STAR_WORK_DIR") or ".") / RUNS


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder, the one that began last at the end."""
    if not folder.is_dir():
        return []
    return sorted((path.parent for path in folder.glob("*/journal.jsonl")), key=lambda run: (_begun(run), run.name))


def find_run(name: str | Path) -> Path:
    """The run that `name` means: a folder with a journal, a name among the runs, its beginning, or `latest`."""
    path, place = Path(name), runs_folder()
    if (path / "journal.jsonl").is_file():
        return path
    known = runs_in(place)
    if str(name) == LATEST:
        if not known:
            raise ConfigError(f"there are no runs in {place} yet")
        return known[-1]
    names = [run for run in known if run.name == str(name)] or [run for run in known if run.name.startswith(str(name))]
    if path.exists() and not names:
        raise ConfigError(f"{path} holds no run: there is no journal.jsonl in it")
    if len(names) > 1:
        some = ", ".join(run.name for run in names[-LISTED:])
        raise ConfigError(f"{str(name)!r} may be any of {len(names)} runs: {some}; give more of the name, or `latest`")
    if not names:
        nearest = f"; {did_you_mean(str(name), [run.name for run in known[-LISTED:]])}" if known else ""
        raise ConfigError(f"{name}: no such run{nearest}; `mle-star runs` lists those in {place}")
    return names[0]


def callable_name(run_dir: Path) -> str:
    """How a command calls a run from here: by its name, or by its folder where that lies elsewhere."""
    name = run_dir.name if run_dir.parent.resolve() == runs_folder().resolve() else os.path.relpath(run_dir)
    return str(run_dir) if name.startswith("..") else name


def _begun(run: Path) -> float:
    """When a run began, by its first line; by its file where that cannot be read."""
    journal = run / "journal.jsonl"
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError), journal.open("rb") as file:
        return datetime.fromisoformat(json.loads(file.readline())["at"].replace("Z", "+00:00")).timestamp()
    return journal.stat().st_mtime
