"""Runs of a campaign as actors of a Ray cluster, on machines that see the campaign's folder and have a credential.

A run writes its folder in place: a machine has to see it, and the data, under the same path. Credentials go nowhere: a
machine has to have one of its own. Where no machine has all that, runs stay in the process that was started.
"""

import asyncio
import contextlib
import logging
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from mle_star.config import effective_config
from mle_star.errors import MleStarError, PipelineError
from mle_star.execution.executors import Queue
from mle_star.integrations import cluster
from mle_star.integrations.cluster import RayCarrier, Shares
from mle_star.integrations.remote import MachineLost, RemoteExecutor
from mle_star.models import FinalResult, PipelineConfig, TaskDescription
from mle_star.run.folder import RunFolder, is_running
from mle_star.search.setup import check_credentials

logger = logging.getLogger(__name__)

Work = Callable[..., Awaitable[FinalResult]]
Find = Callable[[Iterable[str]], list[str]]
LOSSES = 2
"""How often a run whose machine was lost continues on another one."""
ENDING_SECONDS = 60.0
PATIENCE_SECONDS = 120.0
"""How long an actor may take to end whose campaign has died, before its run is started again."""


@asynccontextmanager
async def hosted(
    work: Work, executor: RemoteExecutor, config: PipelineConfig, folder: Path, data: Iterable[str]
) -> AsyncIterator[Work]:
    """Does `work` in actors, for as long as a campaign lasts; in this process where no machine can have a run."""
    assert isinstance(executor.carrier, RayCarrier)
    actor = cluster.remote.remote(num_cpus=0, max_restarts=-1, max_concurrency=10_000)(Queue)
    queue = actor.remote(executor.carrier.slots)
    hosts = Hosts(work, partial(find_hosts, config, folder, tuple(data)), executor.carrier.shares, queue)
    try:
        if await hosts.look_around():
            yield hosts.run
            return
        logger.warning("no machine of the cluster sees %s and can reach the model: runs stay in this process", folder)
        yield work
    finally:
        with contextlib.suppress(RayError):
            ray.kill(queue)


def find_hosts(config: PipelineConfig, folder: Path, data: tuple[str, ...], among: Iterable[str]) -> list[str]:
    """The machines that can have runs, by Ray's names; who takes too long to answer has none."""
    with tempfile.NamedTemporaryFile(prefix=".sign-", dir=folder.absolute()) as sign:
        answers = cluster.ask_nodes(can_host, sorted(among), config, sign.name, data)
    return [node for node, can in answers.items() if can]


class Hosts:
    """Places each run on the machine that has fewest, and again on another one when that is lost.

    `find` says which machines can have runs among those that it is given.
    """

    def __init__(self, work: Work, find: Find, shares: Shares, queue: Any) -> None:
        self._work, self._find, self._shares, self._queue = work, find, shares, queue
        self._known, self._runs = set[str](), Counter[str]()
        self._asking = asyncio.Lock()
        self._host = cluster.remote.remote(num_cpus=0, max_restarts=0)(RunHost)

    async def run(
        self, task: TaskDescription, config: PipelineConfig, *, run_dir: Path, resume: bool, **options: Any
    ) -> FinalResult:
        """Do a run in an actor, to its end; the executor of this process is not used."""
        folder = RunFolder(run_dir.absolute())
        config = PipelineConfig(**effective_config(config).model_dump())  # no setting is left to variables over there
        for _ in range(LOSSES + 1):
            await asyncio.to_thread(is_running, folder.root, patience=PATIENCE_SECONDS)
            await self.look_around()
            machine = min(self._runs, key=lambda name: self._runs[name], default=None)
            if machine is None:
                break
            self._runs[machine] += 1
            try:
                begun = folder.journal.is_file() and folder.journal.stat().st_size > 0
                how = {"run_dir": folder.root, "resume": resume or begun, "console": False}
                return await self._placed(machine, partial(self._work, task, config, **how), config)
            except MachineLost as error:
                logger.warning("%s: the machine of this run was lost: %s", folder.root.name, error)
                if machine not in await asyncio.to_thread(cluster.living_machines):
                    del self._runs[machine]
            finally:
                if machine in self._runs:
                    self._runs[machine] -= 1
                with contextlib.suppress(RayError):
                    self._queue.leave.remote(str(folder.root))
        raise PipelineError("each machine of this run was lost; continue with `--resume`")

    async def look_around(self) -> list[str]:
        """Ask machines that joined since: a cluster grows, and a lost machine comes back under a new name."""
        async with self._asking:
            new = set(await asyncio.to_thread(cluster.living_machines)) - self._known
            able = await asyncio.to_thread(self._find, new) if new else []
            self._known |= new
            self._runs.update(dict.fromkeys(able, 0))
            return able

    async def _placed(self, machine: str, work: Work, config: PipelineConfig) -> FinalResult:
        host = self._host.options(scheduling_strategy=cluster.on(machine)).remote(str(Path.cwd()))
        running = host.run.remote(work, config, self._shares, self._queue)
        try:
            outcome = await cluster.answer_of(running)
        except asyncio.CancelledError:
            await asyncio.shield(cluster.ended(running, ENDING_SECONDS))
            raise
        except RayTaskError as error:
            raise PipelineError(f"the run failed: {error.cause!r}") from None
        except RayError as error:
            raise MachineLost(cluster.first_line(error)) from None
        finally:
            with contextlib.suppress(RayError):
                ray.kill(host)
        if not isinstance(outcome, FinalResult):
            raise PipelineError(outcome)
        return outcome


# --- the queue for slots, in which all runs of a campaign wait: an actor -------------------------------------


class SharedQueue(Queue):
    """The queue of an actor; if that is lost, scripts run in the order in which Ray takes them."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def take(self, run: str, ticket: str) -> None:
        """Wait for a slot."""
        try:
            await cluster.answer_of(self._actor.take.remote(run, ticket))
        except RayError as error:
            logger.warning("the queue of the campaign is lost: %s", error)

    async def give(self, ticket: str) -> None:
        """Give a slot back."""
        with contextlib.suppress(RayError):
            self._actor.give.remote(ticket)


# --- on the machines of the cluster --------------------------------------------------------------------------


def can_host(config: PipelineConfig, sign: str, data: tuple[str, ...]) -> bool:
    """Does this machine see the campaign and its data, and can it reach the model?"""
    with contextlib.suppress(MleStarError):
        check_credentials(config, None)
        return Path(sign).is_file() and os.access(Path(sign).parent, os.W_OK) and all(map(os.path.isdir, data))
    return False


class RunHost:
    """An actor for one run."""

    def __init__(self, folder: str) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)  # files that the settings name are named from there

    async def run(self, work: Work, config: PipelineConfig, shares: Shares, queue: Any) -> FinalResult | str:
        """The result of a run, or why there is none."""
        try:
            with contextlib.closing(RayCarrier(shares)) as carrier:  # it shares the cluster with other runs
                return await work(executor=RemoteExecutor(config, carrier, SharedQueue(queue).slot))
        except MleStarError as error:
            return str(error)
