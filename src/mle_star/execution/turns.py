"""Whose script is next where several runs share the same machines."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol


class TurnTaking(Protocol):
    """Whoever says when the next script of a run may begin."""

    def turn(self, run: str) -> AbstractAsyncContextManager[None]:
        """Wait for a place, and have it until the end of the block."""


class Turns:
    """So many scripts at once; a free place goes to the run that has had fewest: it has most of its way still to go."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._had: Counter[str] = Counter()
        self._order = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, run: str) -> AsyncIterator[None]:
        """Wait for a place, and have it until the end of the block."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._had[run], next(self._order), place))
        self._had[run] += 1
        self._give()
        try:
            await place
        except asyncio.CancelledError:
            self._had[run] -= 1
            if place.done() and not place.cancelled():  # it came in the same moment
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
            place = heapq.heappop(self._waiting)[-1]
            if not place.done():  # who was cancelled waits no longer
                self._free -= 1
                place.set_result(None)
