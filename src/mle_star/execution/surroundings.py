"""What surrounds the scripts of a run: a digest of all that shapes their results, and the slots they wait for."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mle_star.context import RunContext, digest_of
from mle_star.execution.gpu import detect_gpu_info, gpus_for_slot, script_slots, visible_gpus
from mle_star.execution.interpreter import inspect_interpreter


async def surroundings_digest(run: RunContext) -> str:
    """A digest of data, interpreter, packages and seed, taken once per run."""
    notes = run.shared.notes
    async with notes.setdefault("surroundings lock", asyncio.Lock()):
        if "surroundings" not in notes:
            data = await asyncio.to_thread(data_digest, Path(run.task.data_dir))
            info = await asyncio.to_thread(inspect_interpreter, run.config.python)
            notes["surroundings"] = digest_of(data, info.fingerprint, str(run.config.seed))
    return str(notes["surroundings"])


def data_digest(folder: Path) -> str:
    """A digest of the data that is quick on large folders: contents of small files, ends of large ones."""
    hasher = hashlib.sha256()
    whole, count = 256 << 20, 0
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root) / name
            try:
                status = path.stat()
                hasher.update(f"{path.relative_to(folder)}\0{status.st_size}\0".encode("utf-8", "surrogateescape"))
                count += 1
                if count > 5000:
                    hasher.update(str(status.st_mtime_ns).encode())
                    continue
                with path.open("rb") as file:
                    if status.st_size <= min(16 << 20, whole):
                        hasher.update(file.read())
                        whole -= status.st_size
                    else:
                        hasher.update(file.read(1 << 16))
                        file.seek(-(1 << 16), os.SEEK_END)
                        hasher.update(file.read())
            except OSError as error:
                hasher.update(f"{name}: {error.errno}".encode())
    return hasher.hexdigest()


def data_stamp(folder: Path, most: int = 2000) -> list[tuple[str, int, int]]:
    """Names, sizes and times of the first files of the data: enough to see that somebody wrote to them."""
    stamp = []
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)  # noqa: PTH118 - thousands of them, before and after each script
            with contextlib.suppress(OSError):
                status = os.stat(path)  # noqa: PTH116
                stamp.append((path, status.st_size, status.st_mtime_ns))
            if len(stamp) >= most:
                return stamp
    return stamp


async def _gpus(run: RunContext) -> list[str]:
    notes = run.shared.notes
    if "gpus" not in notes:
        notes["gpus"] = visible_gpus((await asyncio.to_thread(detect_gpu_info))["gpu_count"])
    found: list[str] = notes["gpus"]
    return found


@asynccontextmanager
async def script_slot(run: RunContext) -> AsyncIterator[list[str] | None]:
    """Wait until one more script may run, and say which GPUs it gets."""
    gpus = await _gpus(run)
    if run.shared.script_slots is None:
        run.shared.script_slots = asyncio.Semaphore(script_slots(gpus, run.config))
    async with run.shared.script_slots:
        taken: set[int] = run.shared.notes.setdefault("slots taken", set())
        slot = next(number for number in itertools.count() if number not in taken)
        taken.add(slot)
        try:
            yield gpus_for_slot(gpus, slot, run.config)
        finally:
            taken.discard(slot)


def log_file(run: RunContext, step: str) -> str:
    """Where a step's whole output goes; a step that is done anew starts it afresh."""
    folder = run.run_dir / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / f"{step.replace('/', '.')}.log")


def directory_lock(run: RunContext) -> asyncio.Lock:
    """Two scripts never share a directory at the same time."""
    lock: asyncio.Lock = run.shared.notes.setdefault(f"lock {run.work_dir}", asyncio.Lock())
    return lock


def digest_lock(run: RunContext, digest: str) -> asyncio.Lock:
    """Steps that ask for the same work take turns, so that the second finds what the first one left."""
    lock: asyncio.Lock = run.shared.notes.setdefault(f"lock {digest}", asyncio.Lock())
    return lock
