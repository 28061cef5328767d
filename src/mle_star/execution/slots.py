"""What the scripts of a run wait for: slots, the queue of runs that share machines, directories, and each other."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mle_star.execution.gpu import detect_gpu_info, gpus_for_slot, script_slots, visible_gpus
from mle_star.models import Isolation
from mle_star.run.context import Executor, RunContext

T = TypeVar("T")


@dataclass(frozen=True)
class Announcement:
    """What an executor says of itself, by its method `announce`; scripts of one that has none run on this machine."""

    isolation: Isolation = field(default_factory=Isolation)
    missing: str = ""  # what scripts run without, in one line
    machines: dict[str, Any] | None = None  # what scripts find where they run; None where that is here
    slots: int = 0  # for how many scripts those machines have room ...
    queue: Callable[[str], AbstractAsyncContextManager[Any]] = nullcontext  # ... and how a run waits for one of them


def announced(executor: Executor) -> Announcement:
    """What an executor says of itself; the local one finds it out first."""
    announce: Callable[[], Announcement] = getattr(executor, "announce", Announcement)
    return announce()


async def surroundings_of(executor: Executor) -> tuple[Isolation, dict[str, Any]]:
    """What will confine scripts, as far as is known before one has run, and the hardware that they will find."""
    said = await asyncio.to_thread(announced, executor)
    here = said.machines is None
    return said.isolation, await asyncio.to_thread(detect_gpu_info) if here else dict(said.machines or {})


async def spare_slots(run: RunContext) -> int:
    """How many scripts of one step may run beside the first: as many as other machines have room for."""
    said = await asyncio.to_thread(announced, run.executor)
    return 0 if said.machines is None else (run.config.max_concurrent_scripts or said.slots) - 1


@asynccontextmanager
async def script_slot(run: RunContext) -> AsyncIterator[list[str] | None]:
    """Wait until one more script may run, and say which GPUs it gets; elsewhere than here, that is decided there."""
    said, scripts = await asyncio.to_thread(announced, run.executor), run.shared.scripts
    away = said.machines is not None
    if scripts.gpus is None:
        scripts.gpus = [] if away else visible_gpus((await asyncio.to_thread(detect_gpu_info))["gpu_count"])
    if scripts.slots is None:
        slots = await spare_slots(run) + 1 if away else script_slots(scripts.gpus, run.config)
        scripts.slots = asyncio.Semaphore(slots)
    async with scripts.slots, said.queue(str(run.run_dir)):
        taken = scripts.taken
        slot = next(number for number in itertools.count() if number not in taken)
        taken.add(slot)
        try:
            yield gpus_for_slot(scripts.gpus, slot, run.config)
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
    """Of steps that ask for the same work one goes first, so that the second finds what it left."""
    return run.shared.scripts.locks[digest]


class Queue:
    """So many slots for several runs; a free one goes to the run that has had fewest: it has most still to do."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._had: Counter[str] = Counter()
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def slot(self, run: str) -> AsyncIterator[None]:
        """Wait for a slot, and have it until the end of the block."""
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._had[run], next(self._order), slot))
        self._had[run] += 1
        self._give()
        try:
            await slot
        except asyncio.CancelledError:
            self._had[run] -= 1
            if slot.done() and not slot.cancelled():  # it came in the same moment
                self._free += 1
                self._give()
            raise
        try:
            yield
        finally:
            self._free += 1
            self._give()

    def _give(self) -> None:
        while self._free and self._waiting:
            slot = heapq.heappop(self._waiting)[-1]
            if not slot.done():  # who was cancelled waits no longer
                self._free -= 1
                slot.set_result(None)


async def concurrently(
    jobs: Sequence[Callable[[], Awaitable[T]]],
    ends: Callable[[T], bool],
    *,
    helpers: int,
    slot: Callable[[], AbstractAsyncContextManager[object]],
) -> list[T]:
    """The outcomes in the order of the jobs, up to the first that `ends` the work or raises.

    Whoever calls has a slot already and works through the jobs; each of the helpers takes part once it has a slot of
    its own. What comes after an end is stopped, and what comes before it is waited for: it may end earlier.
    """
    waiting = iter(enumerate(jobs))
    begun: dict[int, asyncio.Task[T]] = {}

    async def work() -> None:
        for number, job in waiting:
            begun[number] = task = asyncio.ensure_future(job())
            await asyncio.wait({task})
            if task.cancelled() or task.exception() is not None or ends(task.result()):
                for _ in waiting:
                    pass  # nothing further begins
                for later, other in begun.items():
                    if later > number:
                        other.cancel()

    async def help_out() -> None:
        async with slot():
            await work()

    hands = [asyncio.create_task(help_out()) for _ in range(min(helpers, len(jobs) - 1))]
    try:
        await work()
        if begun:
            await asyncio.wait(begun.values())
    finally:
        for one in (*hands, *begun.values()):
            one.cancel()
        await asyncio.gather(*hands, *begun.values(), return_exceptions=True)
    outcomes = list[T]()
    for number in sorted(begun):
        outcomes.append(begun[number].result())
        if ends(outcomes[-1]):
            break
    return outcomes
