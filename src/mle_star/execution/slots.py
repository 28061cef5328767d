"""The slots that the scripts of a run wait for: cores and GPUs, directories, logs, and work that another one does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

from mle_star.execution.gpu import detect_gpu_info, gpus_for_slot, script_slots, visible_gpus
from mle_star.execution.remote import RemoteExecutor
from mle_star.run.context import RunContext


async def _gpus(run: RunContext) -> list[str]:
    scripts = run.shared.scripts
    if scripts.gpus is None:
        scripts.gpus = visible_gpus((await asyncio.to_thread(detect_gpu_info))["gpu_count"])
    return scripts.gpus


def places(run: RunContext, gpus: Sequence[str] = ()) -> int:
    """How many scripts of a run may run at once: as many as there is room for, and no more than the settings allow."""
    if isinstance(run.executor, RemoteExecutor):
        return run.config.max_concurrent_scripts or run.executor.slots
    return script_slots(list(gpus), run.config)


@asynccontextmanager
async def script_slot(run: RunContext) -> AsyncIterator[list[str] | None]:
    """Wait until one more script may run, and say which GPUs it gets; elsewhere than here, that is decided there."""
    away = run.executor if isinstance(run.executor, RemoteExecutor) else None
    gpus, scripts = [] if away else await _gpus(run), run.shared.scripts
    if scripts.slots is None:
        scripts.slots = asyncio.Semaphore(places(run, gpus))
    turn = away.turns.turn(str(run.run_dir)) if away else nullcontext()
    async with scripts.slots, turn:
        taken = scripts.taken
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
    return run.shared.scripts.locks[str(run.work_dir)]


def digest_lock(run: RunContext, digest: str) -> asyncio.Lock:
    """Steps that ask for the same work take turns, so that the second finds what the first one left."""
    return run.shared.scripts.locks[digest]
