"""Runs scripts on machines that share no disk with this one, by whatever carries parcels there and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from mle_star.errors import ExecutionError
from mle_star.execution.executors import Announcement, Queue
from mle_star.execution.limits import MAX_OUTPUT_BYTES
from mle_star.execution.process import NOTE, SIGKILL, LogFile
from mle_star.integrations.remote.parcel import Delivery, MachineLost, Packer, Parcel, chunks_of, unpack
from mle_star.models import ExecutionRawResult, PipelineConfig
from mle_star.run.context import ScriptRequest

logger = logging.getLogger("mle_star.execution")

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
        self._packer = Packer()
        self._sending: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._arrived: dict[tuple[str, str], int] = {}  # which of the arrivals was the last of this file there
        self._arrivals = 0

    def announce(self) -> Announcement:
        """What scripts find on those machines; what confines them there is known when they have run."""
        return Announcement(machines=self.carrier.hardware, slots=self.carrier.slots, queue=self._queue)

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Run to the end, to the timeout or to the cancellation; leave no process behind, wherever that is."""
        parcel = await asyncio.to_thread(self._packer.pack, request, self.config)
        with LogFile(request.output_file, 2 * MAX_OUTPUT_BYTES) as log:
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
        machine: str | None = None
        trouble = ""
        for _ in range(_ROUNDS):
            seen = self._arrivals
            delivery = await self.carrier.run(parcel, hear, machine)
            if not delivery.missing:
                return delivery
            machine = delivery.machine
            trouble = f"{machine}: the data do not stay there; its disk is full, or somebody empties its store"
            try:
                for digest in delivery.missing:
                    if self._arrived.get((machine, digest), 0) <= seen:  # else it came after it was missed
                        await self._sent(machine, parcel, digest)
            except MachineLost as error:  # the script has not begun: it is not to blame, and another machine takes it
                trouble, machine = f"{machine}: the machine was lost while data were sent to it ({error})", None
                logger.warning("%s", trouble)
        raise ExecutionError(trouble)

    async def _sent(self, machine: str, parcel: Parcel, digest: str) -> None:
        """Have a file sent once, however many scripts wait for it; whoever gives up waiting does not stop it."""
        key = (machine, digest)
        if key not in self._sending:
            self._sending[key] = asyncio.create_task(self._send(machine, parcel, digest))
            self._sending[key].add_done_callback(lambda _: self._sending.pop(key))
        await asyncio.shield(self._sending[key])

    async def _send(self, machine: str, parcel: Parcel, digest: str) -> None:
        source = Path(parcel.data_dir) / next(file.path for file in parcel.data if file.digest == digest)
        pieces = chunks_of(source)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await self.carrier.store(machine, digest, *piece)
        self._arrivals += 1
        self._arrived[machine, digest] = self._arrivals
