"""Scripts on machines that share no disk with the run, by whatever carries parcels there and back.

What travels does so in full, by content, and within bounds. Out: a script, its environment and limits, the folders
beside it, and its data by name, size and digest. Back: the outcome, its output as it comes, `final/`, where a script
puts all that it gives back, and what it has fitted.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from mle_star.data.place import DataFolder, content_digest
from mle_star.errors import ExecutionError
from mle_star.execution.artifacts import STATE
from mle_star.execution.executors import Announcement, Queue
from mle_star.execution.limits import MAX_OUTPUT_BYTES
from mle_star.execution.process import NOTE, SIGKILL, LogFile
from mle_star.execution.workspace import clean_output_directory, entries_below, linked_places, open_plain, remove_entry
from mle_star.models import ExecutionRawResult, PipelineConfig
from mle_star.run.context import ScriptRequest

logger = logging.getLogger("mle_star.execution")

CHUNK_BYTES = 16 << 20
RETURNED_BYTES, RETURNED_FILES = 1 << 30, 1000
"""How much of `final/` comes back; what exceeds it stays behind, and the output says so."""

Files = dict[str, bytes]
"""What is in plain files, by their names below a folder, with slashes."""


class MachineLost(Exception):
    """The machine that had a script or a run is gone, or the process on it that looked after them."""


@dataclass(frozen=True)
class Parcel:
    """A script as it is sent out. The paths of its request mean something where machines share a disk, and else here.

    `input_dir` says where the data lie, `readable` where links among them lead.
    """

    request: ScriptRequest
    code: bytes
    config: PipelineConfig
    data: dict[str, str]  # the digest of each file, by its name below `input/`, with slashes
    folders: dict[str, Files] = field(default_factory=dict)  # what lies beside the script: members, a fitted state


@dataclass(frozen=True)
class Delivery:
    """What comes back: the outcome, or the digests of the data that the machine has not got yet."""

    machine: str
    raw: ExecutionRawResult | None = None
    files: Files = field(default_factory=dict)
    fitted: Files | None = None  # the folder `model/`, where the script had one
    missing: tuple[str, ...] = ()


def pack(request: ScriptRequest, config: PipelineConfig) -> Parcel:
    """A parcel for a request."""
    work, script = Path(request.working_dir), Path(request.script_path)
    folder = DataFolder(request.input_dir or work / "input")
    stamps = {name: (s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in folder.files()}
    data = {name: _known_digest(folder.root / name, *stamp) for name, stamp in stamps.items()}
    beside = sorted(path.name for path in work.iterdir() if path.is_dir() and not path.is_symlink())
    folders = {name: whole(work / name) for name in beside if name not in ("input", "final")}
    for name in (name for name, files in folders.items() if files is None):
        logger.warning("%s: %s/ is too large to be sent: the script finds it empty", script, name)
    linked = linked_places(work / "input") if request.input_dir is None else []
    shown = {"input_dir": str(folder.root), "readable": (*request.readable, *linked)}
    sent = {name: files or {} for name, files in folders.items()}
    return Parcel(request.model_copy(update=shown), script.read_bytes(), config, data, sent)


def digest_of_file(path: Path) -> str:
    """What is in a file, in one name."""
    return content_digest(path, path.stat().st_size).hex()


_known_digest = lru_cache(maxsize=10_000)(lambda path, *stamp: digest_of_file(path))
"""What is in a file, read once as long as nobody changes it."""


def collect(final: Path) -> tuple[Files, list[str]]:
    """The plain files below a folder by name, links never followed, and the names of those that were too much."""
    found, left, room = Files(), list[str](), RETURNED_BYTES
    for entry in entries_below(final):
        if not entry.is_file(follow_symlinks=False):
            continue
        shown = Path(entry.path).relative_to(final).as_posix()
        if entry.stat(follow_symlinks=False).st_size > room or len(found) >= RETURNED_FILES:
            left.append(shown)
            continue
        with open_plain(entry.path) as file:
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


# --- the executor --------------------------------------------------------------------------------------------

QueuePlace = Callable[[str], AbstractAsyncContextManager[None]]
"""Where a run, by its folder, waits for a slot."""
RERUNS = 1
"""How often a script runs again whose machine was lost."""
_ROUNDS = 3  # data may be thrown away between sending and running, but not for ever


class Carrier(Protocol):
    """Carries parcels to machines, of which so many can run at once; `hardware` is what a script finds there."""

    slots: int
    hardware: dict[str, Any]

    async def run(self, parcel: Parcel, hear: Callable[[bytes], None], machine: str | None) -> Delivery:
        """Have a parcel run, on `machine` if it is named and can; `hear` gets the output as it comes.

        Raises `MachineLost`. When cancelled, ends the script first.
        """

    async def store(self, machine: str, digest: str, offset: int, chunk: bytes, last: bool) -> None:
        """Put a piece of a file into a machine's store."""


class RemoteExecutor:
    """An executor whose scripts run elsewhere: data go to each machine once, `final/` comes back."""

    def __init__(self, config: PipelineConfig, carrier: Carrier, queue: QueuePlace | None = None) -> None:
        self.config, self.carrier = config, carrier
        self._queue: QueuePlace = queue or Queue(carrier.slots).slot
        self._sending: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._arrived: dict[tuple[str, str], int] = {}  # which of the arrivals was the last of this file there
        self._arrivals = 0

    def announce(self) -> Announcement:
        """What scripts find on those machines; what confines them there is known when they have run."""
        return Announcement(machines=self.carrier.hardware, slots=self.carrier.slots, queue=self._queue)

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Run to the end, to the timeout or to the cancellation; leave no process behind, wherever that is."""
        parcel = await asyncio.to_thread(pack, request, self.config)
        with closing(LogFile(request.output_file, 2 * MAX_OUTPUT_BYTES)) as log:
            for lost in range(RERUNS + 1):
                try:
                    delivery = await self._delivered(parcel, log.write)
                except MachineLost as error:
                    logger.warning("%s: the machine was lost while it ran (%s)", request.script_path, error)
                    log.write(f"\n{NOTE} the machine was lost: {error}\n".encode())
                    continue
                assert delivery.raw is not None
                await asyncio.to_thread(unpack, delivery, request.working_dir)
                return delivery.raw.model_copy(update={"reruns": lost})
        return ExecutionRawResult(
            stdout="",
            stderr=f"{NOTE} killed: the machine was lost each time while it ran; use less memory",
            exit_code=-SIGKILL,
            duration_seconds=0.0,
            timed_out=False,
            reruns=RERUNS,
        )

    async def _delivered(self, parcel: Parcel, hear: Callable[[bytes], None]) -> Delivery:
        machine, trouble = None, ""
        for _ in range(_ROUNDS):
            seen = self._arrivals
            delivery = await self.carrier.run(parcel, hear, machine)
            if not delivery.missing:
                return delivery
            machine = delivery.machine
            trouble = f"{machine}: the data do not stay there; its disk is full, or someone empties its store"
            try:
                for digest in delivery.missing:
                    if self._arrived.get((machine, digest), 0) <= seen:  # else it came after it was missed
                        await self._sent(machine, parcel, digest)
            except MachineLost as error:  # the script has not begun: it is not to blame, and another machine takes it
                trouble, machine = f"{machine}: the machine was lost while data were sent to it ({error})", None
                logger.warning("%s", trouble)
        raise ExecutionError(trouble)

    async def _sent(self, machine: str, parcel: Parcel, digest: str) -> None:
        """Have a file sent once, however many scripts wait for it; it is sent even if one of them stops waiting."""
        key = (machine, digest)
        if key not in self._sending:
            self._sending[key] = asyncio.create_task(self._send(machine, parcel, digest))
            self._sending[key].add_done_callback(lambda _: self._sending.pop(key))
        await asyncio.shield(self._sending[key])

    async def _send(self, machine: str, parcel: Parcel, digest: str) -> None:
        name = next(name for name, known in parcel.data.items() if known == digest)
        source = Path(parcel.request.input_dir or "") / name
        size = source.stat().st_size
        with source.open("rb") as file:
            for offset in range(0, max(size, 1), CHUNK_BYTES):
                chunk = await asyncio.to_thread(file.read, CHUNK_BYTES)
                await self.carrier.store(machine, digest, offset, chunk, offset + CHUNK_BYTES >= size)
        self._arrivals += 1
        self._arrived[machine, digest] = self._arrivals
