"""Time that passes only while everybody waits, so that no limit is a matter of how fast the machine is."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class Clock:
    """A clock that the test moves."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class _Leaps(selectors.DefaultSelector):
    """Where nothing is ready and nobody is at work in a thread, the next moment comes at once."""

    loop: "PatientLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0.01 if self.loop.threads else 0)
        if not ready and not self.loop.threads:
            self.loop.now += timeout
        return ready


class PatientLoop(asyncio.SelectorEventLoop):
    """Work takes none of its time, and waits take none of ours. Not for real processes: nobody would wait for them."""

    def __init__(self) -> None:
        self.now, self.threads = 0.0, 0
        selector = _Leaps()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, future: asyncio.Future[Any]) -> None:
        self.threads -= 1


def in_its_own_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test on a `PatientLoop`: a minute of waiting is over at once, and a slow machine is as good as any."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        loop = PatientLoop()
        try:
            loop.run_until_complete(test(*args, **named))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    return run
