"""Which executor a run gets: ours by name, or one that a plugin brings (entry points of `mle_star.executors`)."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mle_star.errors import ConfigError
from mle_star.execution.gpu import detect_gpu_info
from mle_star.execution.local import LocalExecutor
from mle_star.execution.remote import RemoteExecutor
from mle_star.models import Isolation, PipelineConfig
from mle_star.run.context import Executor

GROUP = "mle_star.executors"
"""Entry points: name = what `executor` begins with, value = a function of configuration and address."""

Opener = Callable[[PipelineConfig, str], AbstractAsyncContextManager[Executor]]
"""Gives an executor for as long as a run lasts. The address is the whole setting, and empty for a bare name."""


@asynccontextmanager
async def open_local(config: PipelineConfig, address: str) -> AsyncIterator[LocalExecutor]:
    """Processes of this machine."""
    yield LocalExecutor(config)


@asynccontextmanager
async def opened_executor(config: PipelineConfig, given: Executor | None = None) -> AsyncIterator[Executor]:
    """The executor of a run, for as long as it lasts: the given one, else the one that the configuration names."""
    if given is not None:
        yield given
        return
    opener, address = find_opener(config)
    async with opener(config, address) as executor:
        yield executor


async def surroundings_of(executor: Executor) -> tuple[Isolation, dict[str, Any]]:
    """What will confine scripts, as far as is known before one has run, and the GPUs that they will find."""
    if isinstance(executor, RemoteExecutor):
        return Isolation(), executor.hardware
    isolation = await asyncio.to_thread(executor.isolation) if isinstance(executor, LocalExecutor) else Isolation()
    return isolation, await asyncio.to_thread(detect_gpu_info)


def find_opener(config: PipelineConfig) -> tuple[Opener, str]:
    """What opens the executor that the configuration names, and its address."""
    name, colon, _ = config.executor.partition(":")
    address = config.executor if colon else ""
    if config.executor == "local":
        return open_local, address
    if name == "ray":
        return _ray(), address
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in points:
        raise ConfigError(f"executor={config.executor!r} is not known; there are {', '.join(executor_names())}")
    opener: Opener = points[name].load()
    return opener, address


def executor_names() -> list[str]:
    """What `executor` may be: ours first, then what plugins bring."""
    brought = {point.name for point in importlib.metadata.entry_points(group=GROUP)}
    return ["local", "ray", "ray://HOST:PORT", *sorted(brought)]


def _ray() -> Opener:
    try:
        from mle_star.execution.cluster import open_executor
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("executor: ray is not installed; pip install 'mle-star[ray]'") from None
    return open_executor
