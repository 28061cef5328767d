"""The turns of scripts whose runs live in several processes of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ray.exceptions import RayError

from mle_star.execution.cluster import RayCarrier, Shares, answer_of
from mle_star.execution.remote import RemoteExecutor
from mle_star.execution.turns import Turns
from mle_star.models import PipelineConfig

logger = logging.getLogger("mle_star.execution")


class Places:
    """An actor that knows who has a place, and gives the next one to the run that has had fewest."""

    def __init__(self, count: int) -> None:
        self._turns = Turns(count)
        self._tickets: dict[str, tuple[str, asyncio.Future[None], AsyncExitStack]] = {}

    async def take(self, run: str, ticket: str) -> None:
        """Wait for a place; it is the ticket's until it is given back, or its run leaves."""
        stack = AsyncExitStack()
        entering = asyncio.ensure_future(stack.enter_async_context(self._turns.turn(run)))
        self._tickets[ticket] = run, entering, stack
        await asyncio.wait({entering})

    async def give(self, ticket: str) -> None:
        """Take back the place of a ticket, or the request for one."""
        _, entering, stack = self._tickets.pop(ticket, ("", None, None))
        if entering is not None and stack is not None:
            entering.cancel()
            await asyncio.wait({entering})
            await stack.aclose()

    async def leave(self, run: str) -> None:
        """Take back whatever a run has that is no more."""
        for ticket in [ticket for ticket, (owner, *_) in self._tickets.items() if owner == run]:
            await self.give(ticket)


class CommonTurns:
    """Turns that an actor gives; if it is lost, scripts go on by the order in which Ray takes them."""

    def __init__(self, places: Any) -> None:
        self._places = places

    @asynccontextmanager
    async def turn(self, run: str) -> AsyncIterator[None]:
        """Wait for a place, and have it until the end of the block."""
        ticket = uuid.uuid4().hex
        try:
            try:
                await answer_of(self._places.take.remote(run, ticket))
            except RayError as error:
                logger.warning("nobody says whose turn it is: %s", error)
            yield
        finally:
            with contextlib.suppress(RayError):
                self._places.give.remote(ticket)


@asynccontextmanager
async def joined_executor(config: PipelineConfig, shares: Shares, places: Any) -> AsyncIterator[RemoteExecutor]:
    """An executor for a run that shares the cluster with others, inside a process of that cluster."""
    carrier = RayCarrier(config, shares)
    try:
        yield RemoteExecutor(config, carrier, CommonTurns(places))
    finally:
        carrier.close()
