"""Which executor a run gets: ours by name, or one that a plugin brings (entry points of `mle_star.executors`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import EntryPoint, entry_points

from mle_star.errors import ConfigError
from mle_star.models import PipelineConfig
from mle_star.run.context import Executor

GROUP = "mle_star.executors"
"""Entry points: name = what `executor` begins with, value = a function of configuration and address."""

Opener = Callable[[PipelineConfig, str], AbstractAsyncContextManager[Executor]]
"""Gives an executor for as long as a run lasts. The address is the whole setting, and empty for a bare name."""

OURS = {"local": "mle_star.execution.local:open_executor", "ray": "mle_star.integrations.remote.cluster:open_executor"}


@asynccontextmanager
async def opened_executor(config: PipelineConfig, given: Executor | None = None) -> AsyncIterator[Executor]:
    """The executor of a run, for as long as it lasts: the given one, else the one that the configuration names."""
    if given is not None:
        yield given
        return
    opener, address = find_opener(config)
    async with opener(config, address) as executor:
        yield executor


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
