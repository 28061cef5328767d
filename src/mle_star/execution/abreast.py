"""Work that is done side by side where there is room, with the outcome of doing one piece after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

T = TypeVar("T")


async def abreast(
    jobs: Sequence[Callable[[], Awaitable[T]]],
    ends: Callable[[T], bool],
    *,
    helpers: int,
    place: Callable[[], AbstractAsyncContextManager[object]],
) -> list[T]:
    """The outcomes in the order of the jobs, up to the first that `ends` the work or raises.

    Whoever calls has a place already and works through the jobs; each of the helpers takes part once it has a place of
    its own. What comes after an end is stopped, and what comes before it is waited for: it may end earlier.
    """
    waiting = iter(enumerate(jobs))
    begun: dict[int, asyncio.Task[T]] = {}

    async def work() -> None:
        for number, job in waiting:
            begun[number] = task = asyncio.create_task(_as_coroutine(job))
            await asyncio.wait({task})
            if task.cancelled() or task.exception() is not None or ends(task.result()):
                for _ in waiting:
                    pass  # nothing further begins
                for later, other in begun.items():
                    if later > number:
                        other.cancel()

    async def help_out() -> None:
        async with place():
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


async def _as_coroutine(job: Callable[[], Awaitable[T]]) -> T:
    return await job()
