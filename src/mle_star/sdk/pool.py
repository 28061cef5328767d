"""The connected clients of a run: handed to one call at a time, none left behind."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from mle_star.models import AgentConfig

if TYPE_CHECKING:
    from mle_star.sdk.connection import Worker

logger = logging.getLogger(__name__)

Make = Callable[[AgentConfig, str, "float | None"], "Worker"]
"""Starts a client for an agent, a label and a money cap."""


class Pool:
    """At most `max_warm` idle clients. With `reuse` a client comes back after its call, else it served for good."""

    def __init__(self, make: Make, key: Callable[[AgentConfig, str], str], *, max_warm: int, reuse: bool) -> None:
        self._make, self._key = make, key
        self._max_warm, self._reuse = max_warm, reuse
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._calls: Counter[str] = Counter()
        self.closed = False

    async def acquire(self, config: AgentConfig, label: str, cap_usd: float | None, *, whole: bool = False) -> Worker:
        """A connected client for one call, which must come back by `release` or `discard`.

        It may spend `cap_usd` at most, and, when `whole`, not less either.
        """
        if self.closed:
            raise RuntimeError("the clients are closed")
        key = self._key(config, label)
        self._calls[key] += 1
        idle = None if whole else self._take_idle(key, cap_usd)
        cap = _for_later(cap_usd) if self._reuse and not whole else cap_usd
        worker = idle or self._make(config, label, cap)
        self._busy.add(worker)
        try:
            await worker.ready()
        except BaseException:
            self.discard(worker)
            raise
        return worker

    def release(self, worker: Worker) -> None:
        """A call ended well: the client is cleared for the next one, or has done its work."""
        self._busy.discard(worker)
        if not self._reuse or self.closed or not worker.usable:
            self._leave(worker)
            return
        worker.clear()
        self._idle.append(worker)
        if len(self._idle) > self._max_warm:
            least = min(self._idle, key=lambda one: self._calls[one.key])
            self._idle.remove(least)
            self._leave(least)

    def distrust(self, worker: Worker) -> None:
        """A client broke: those that waited with it may have met the same fate, so the next one will be new."""
        self.discard(worker)
        for other in [one for one in self._idle if one.key == worker.key]:
            self._idle.remove(other)
            self._leave(other)

    def discard(self, worker: Worker, *, running: Callable[[Worker], object] | None = None) -> None:
        """A client is not to be used again; `running` gets it first when its call was not finished."""
        self._busy.discard(worker)
        self._leave(worker, running)

    async def close(self) -> None:
        """Let go of every client and wait until it is gone."""
        self.closed = True
        for worker in self._idle:
            self._leave(worker)
        for worker in self._busy:
            self._leave(worker, running=lambda one: one.abort())
        self._idle.clear()
        self._busy.clear()
        while self._leaving:
            await asyncio.wait(set(self._leaving))

    def _take_idle(self, key: str, cap_usd: float | None) -> Worker | None:
        """The best idle client for a call; those that broke or may spend more than it are let go."""
        for worker in [one for one in self._idle if one.key == key]:
            if not worker.usable or _too_generous(worker.cap_usd, cap_usd):
                self._idle.remove(worker)
                self._leave(worker)
        fit = sorted((one for one in self._idle if one.key == key), key=lambda one: not one.is_free)
        if not fit:
            return None
        self._idle.remove(fit[0])
        return fit[0]

    def _leave(self, worker: Worker, running: Callable[[Worker], object] | None = None) -> None:
        task = asyncio.create_task(self._see_off(worker, running), name="agent-client-close")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _see_off(self, worker: Worker, running: Callable[[Worker], object] | None) -> None:
        try:
            if running is not None:
                result = running(worker)
                if asyncio.iscoroutine(result):
                    await result
            await worker.close()
        except Exception:  # closing must not hide what went wrong before
            logger.warning("closing a client failed", exc_info=True)


def _too_generous(cap: float | None, wanted: float | None) -> bool:
    return wanted is not None and (cap is None or cap > wanted)


def _for_later(cap: float | None) -> float | None:
    """What a client may spend that serves calls to come: less than now, for their shares will be smaller."""
    return None if cap is None else cap / 2
