"""Where scripts run and what they wait for: executors by name, slots, GPUs, the queue of runs on shared machines."""

import asyncio
import itertools
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from mle_star.errors import ConfigError
from mle_star.execution.environment import concurrent_scripts, detect_gpu_info, usable_cores
from mle_star.models import Isolation, PipelineConfig
from mle_star.run.context import Executor, RunContext
from mle_star.run.events import Notice

GROUP = "mle_star.executors"
"""Entry points: name = what `executor` begins with, value = a function of configuration and address."""

Opener = Callable[[PipelineConfig, str], AbstractAsyncContextManager[Executor]]
"""Gives an executor for as long as a run lasts. The address is the whole setting, and empty for a bare name."""

OURS = {"local": "mle_star.execution.local:open_executor", "ray": "mle_star.integrations.cluster:open_executor"}


# --- which executor a run gets ------------------------------------------------------------------------------


def opened_executor(config: PipelineConfig, given: Executor | None = None) -> AbstractAsyncContextManager[Executor]:
    """The executor of a run, for as long as it lasts: the given one, else the one that the configuration names."""
    if given is not None:
        return nullcontext(given)
    opener, address = find_opener(config)
    return opener(config, address)


def find_opener(config: PipelineConfig) -> tuple[Opener, str]:
    """What opens the executor that the configuration names, and its address."""
    name, colon, _ = config.executor.partition(":")
    point = None if config.executor.startswith("local:") else _known().get(name)
    if point is None:
        raise ConfigError(f"executor={config.executor!r} is not known; there are {', '.join(executor_names())}")
    try:
        opener: Opener = point.load()
    except ModuleNotFoundError as error:
        if error.name != name or name not in OURS:
            raise
        raise ConfigError(f"executor: {name} is not installed; pip install 'mle-star[{name}]'") from None
    return opener, config.executor if colon else ""


def executor_names() -> list[str]:
    """What `executor` may be: ours first, then what plugins bring."""
    return [*OURS, "ray://HOST:PORT", *sorted(_known().keys() - OURS)]


def _known() -> dict[str, EntryPoint]:
    """By name; a module is imported when it is wanted."""
    brought = {point.name: point for point in entry_points(group=GROUP)}
    return {**brought, **{name: EntryPoint(name, place, GROUP) for name, place in OURS.items()}}


@dataclass(frozen=True)
class Announcement:
    """What an executor says of itself, by its method `announce`; scripts of one that has none run on this machine."""

    isolation: Isolation = field(default_factory=Isolation)
    missing: str = ""  # what scripts run without, in one line
    machines: dict[str, Any] | None = None  # what scripts find where they run; None where that is here
    slots: int = 0  # for how many scripts those machines have room ...
    queue: Callable[[str], AbstractAsyncContextManager[Any]] = nullcontext  # ... and how a run waits for one of them

    @property
    def is_here(self) -> bool:
        """Do scripts run on this machine?"""
        return self.machines is None


def announced(executor: Executor) -> Announcement:
    """What an executor says of itself; the local one finds it out the first time, which takes a while."""
    return cast(Announcement, getattr(executor, "announce", Announcement)())


async def surroundings_of(executor: Executor) -> tuple[Isolation, dict[str, Any]]:
    """What will confine scripts, as far as is known before one has run, and the hardware that they will find."""
    about = await asyncio.to_thread(announced, executor)
    return about.isolation, await asyncio.to_thread(detect_gpu_info) if about.machines is None else about.machines


# --- slots --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def script_slot(run: RunContext) -> AsyncIterator[list[str] | None]:
    """Wait until one more script may run, and say which GPUs it gets; elsewhere than here, that is decided there."""
    about, scripts = announced(run.executor), run.shared.scripts
    if about.missing and not scripts.warned:  # the owner of a run should see what does not confine its scripts
        scripts.warned = True
        run.record(Notice(level="warning", step="run", message=f"scripts run {about.missing}"))
    if scripts.gpus is None:
        scripts.gpus = visible_gpus((await asyncio.to_thread(detect_gpu_info))["gpu_count"]) if about.is_here else []
    if scripts.slots is None:
        there = run.config.max_concurrent_scripts or about.slots
        scripts.lanes = script_slots(scripts.gpus, run.config) if about.is_here else there
        scripts.slots = asyncio.Semaphore(scripts.lanes)
    async with scripts.slots, about.queue(str(run.run_dir)):
        taken = scripts.taken
        slot = next(number for number in itertools.count() if number not in taken)
        taken.add(slot)
        try:
            yield gpus_for_slot(scripts.gpus, slot, run.config)
        finally:
            taken.discard(slot)


def visible_gpus(gpu_count: int) -> list[str]:
    """The GPUs that this process was given: all, or those that its own CUDA_VISIBLE_DEVICES names, in its own words.

    A word is an index, or the id of a GPU or of a slice of one; as CUDA has it, a word that is neither ends the list.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [str(index) for index in range(gpu_count)]

    def is_gpu(word: str) -> bool:
        return int(word) < gpu_count if word.isdecimal() else gpu_count > 0 and word.startswith(("GPU-", "MIG-"))

    return list(itertools.takewhile(is_gpu, (word.strip() for word in given.split(","))))


def gpus_for_slot(gpus: list[str], slot: int, config: PipelineConfig) -> list[str] | None:
    """A slot's own GPUs: as many as `script_gpus` says, a fraction being a share of one, else an even share.

    Where there are too few for that, one script runs at a time, and None leaves every GPU visible to it.
    """
    share = config.script_gpus
    if share is not None and gpus:
        width = max(1, int(share))
        first = int(slot * share) % len(gpus) // width * width
        return gpus[first : first + width] if share else []
    sharers = concurrent_scripts(config)
    if sharers < 2 or len(gpus) < sharers:
        return None
    return gpus[slot % sharers :: sharers]


def script_slots(gpus: list[str], config: PipelineConfig) -> int:
    """How many scripts may really run at once: as many as the cores and GPUs have room for."""
    wanted, share = concurrent_scripts(config), config.script_gpus
    if config.max_concurrent_scripts is None:
        wanted = min(wanted, usable_cores())
    if share is not None and gpus:
        return max(1, min(wanted, int(len(gpus) / share))) if share else wanted
    return 1 if 0 < len(gpus) < wanted else wanted


class Queue:
    """So many slots for several runs; a free one goes to the run that has had fewest: it has most still to do."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._had: Counter[str] = Counter()
        self._order = itertools.count()
        self._tickets: dict[str, tuple[int, int, str, asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, run: str) -> AsyncIterator[None]:
        """Wait for a slot, and have it until the end of the block."""
        ticket = uuid.uuid4().hex
        try:
            await self.take(run, ticket)
            yield
        finally:
            await self.give(ticket)

    async def take(self, run: str, ticket: str) -> None:
        """Wait for a slot; it is the ticket's until it is given back, or its run leaves."""
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tickets[ticket] = self._had[run], next(self._order), run, slot
        self._had[run] += 1
        self._hand_out()
        await asyncio.wait({slot})

    async def give(self, ticket: str) -> None:
        """Take back the slot of a ticket, or the request for one."""
        if ticket in self._tickets:
            _, _, run, slot = self._tickets.pop(ticket)
            if slot.cancel():
                self._had[run] -= 1
            else:
                self._free += 1
                self._hand_out()

    async def leave(self, run: str) -> None:
        """Take back whatever a run has that is no more."""
        for ticket in [ticket for ticket, (_, _, owner, _) in self._tickets.items() if owner == run]:
            await self.give(ticket)

    def _hand_out(self) -> None:
        waiting = sorted(one for one in self._tickets.values() if not one[-1].done())
        for *_, slot in waiting[: self._free]:
            self._free -= 1
            slot.set_result(None)
