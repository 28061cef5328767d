"""What travels to and from a machine that shares no disk with the run: in full, by content, and within bounds.

Out: a script, its environment and limits, the folders beside it, and its data by name, size and digest. Back: the
outcome, its output as it comes, `final/`, where a script puts all that it gives back, and what it has fitted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from mle_star.basics.texts import digest_of
from mle_star.data.place import DataFolder
from mle_star.errors import ExecutionError
from mle_star.execution.artifacts import STATE
from mle_star.execution.workspace import clean_output_directory, entries_below, linked_places, remove_entry
from mle_star.models import ExecutionRawResult, PipelineConfig
from mle_star.run.context import ScriptRequest

CHUNK_BYTES = 16 << 20
RETURNED_BYTES, RETURNED_FILES = 1 << 30, 1000
"""How much of `final/` comes back; what exceeds it stays behind, and the output says so."""

Files = dict[str, bytes]
"""What is in plain files, by their names below a folder, with slashes."""


class MachineLost(Exception):
    """The machine that ran a script is gone, or the process on it that looked after the script."""


@dataclass(frozen=True)
class DataFile:
    """One file of the data: where it belongs, and what is in it."""

    path: str  # below `input/`, with slashes
    size: int
    digest: str


@dataclass(frozen=True)
class Parcel:
    """A script as it is sent out."""

    name: str
    code: bytes
    env: dict[str, str]
    timeout_seconds: float
    config: PipelineConfig
    data: tuple[DataFile, ...]
    data_dir: str  # where the data lie at the sender's, and perhaps at the receiver's, too
    folders: dict[str, Files] = field(default_factory=dict)  # what lies beside the script: members, a fitted state
    hidden: tuple[str, ...] = ()  # what no script may see, where machines share a disk ...
    readable: tuple[str, ...] = ()  # ... and where links among the data lead there

    @property
    def data_digest(self) -> str:
        """Names the data as a whole."""
        return digest_of(*(f"{file.path}\0{file.digest}" for file in self.data))


@dataclass(frozen=True)
class Delivery:
    """What comes back: the outcome, or the digests of the data that the machine has not got yet."""

    machine: str
    raw: ExecutionRawResult | None = None
    files: Files = field(default_factory=dict)
    fitted: Files | None = None  # the folder `model/`, where the script had one
    missing: tuple[str, ...] = ()


class Packer:
    """Makes parcels; what is in a file is read once, as long as nobody changes the file."""

    def __init__(self) -> None:
        self._digests: dict[tuple[str, int, int, int, int], str] = {}

    def pack(self, request: ScriptRequest, config: PipelineConfig) -> Parcel:
        """A parcel for a request whose paths mean something here only."""
        folder = DataFolder(request.input_dir or Path(request.working_dir) / "input")
        data = []
        for path, status in folder.files():
            key = (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            if key not in self._digests:
                self._digests[key] = digest_of_file(Path(path))
            name = Path(path).relative_to(folder.root).as_posix()
            data.append(DataFile(name, status.st_size, self._digests[key]))
        script, shown = Path(request.script_path), Path(request.working_dir) / "input"
        linked = linked_places(shown) if request.input_dir is None and shown.is_dir() else []
        return Parcel(
            name=script.name,
            code=script.read_bytes(),
            env=request.env,
            timeout_seconds=request.timeout_seconds,
            config=config,
            data=tuple(data),
            data_dir=str(folder.root),
            folders=_beside(Path(request.working_dir)),
            hidden=request.hidden,
            readable=(*request.readable, *linked),
        )


def _beside(work: Path) -> dict[str, Files]:
    """The folders that a script finds beside it; of one that is too large nothing, since a part serves nobody."""
    with os.scandir(work) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return {name: whole(work / name) or {} for name in names if name not in ("input", "final")}


def digest_of_file(path: Path) -> str:
    """What is in a file, in one name."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
    return hasher.hexdigest()


def chunks_of(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """A file piece by piece: where each begins, what is in it, and whether it is the last."""
    size, offset = path.stat().st_size, 0
    with path.open("rb") as file:
        while True:
            chunk = file.read(CHUNK_BYTES)
            offset += len(chunk)
            last = offset >= size or not chunk
            yield offset - len(chunk), chunk, last
            if last:
                return


def collect(final: Path) -> tuple[Files, list[str]]:
    """The plain files below a folder by name, links never followed, and the names of those that were too much."""
    found: Files = {}
    left: list[str] = []
    room = RETURNED_BYTES
    for entry in entries_below(final):
        if not entry.is_file(follow_symlinks=False):
            continue
        shown = Path(entry.path).relative_to(final).as_posix()
        if entry.stat(follow_symlinks=False).st_size > room or len(found) >= RETURNED_FILES:
            left.append(shown)
            continue
        handle = os.open(entry.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(handle, "rb") as file:
            found[shown] = file.read(room)
        room -= len(found[shown])
    return found, left


def whole(folder: Path) -> Files | None:
    """All plain files below a folder, or None where they are too much."""
    found, left = collect(folder)
    return None if left else found


def unpack(delivery: Delivery, working_dir: str) -> None:
    """Put what came back where the script of a local run would have left it."""
    clean_output_directory(working_dir)
    put(delivery.files, Path(working_dir) / "final", delivery.machine)
    if delivery.fitted is not None:
        remove_entry(Path(working_dir) / STATE)
        put(delivery.fitted, Path(working_dir) / STATE, delivery.machine)


def put(files: Files, folder: Path, sender: str) -> None:
    """Write files that came from elsewhere into a folder, and nowhere else."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        parts = PurePosixPath(name).parts
        if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
            raise ExecutionError(f"{sender} sent a file named {name!r}")
        place = folder
        for part in parts[:-1]:  # one by one: making all at once goes as deep into the stack as the name is long
            place /= part
            place.mkdir(exist_ok=True)
        (place / parts[-1]).write_bytes(content)
