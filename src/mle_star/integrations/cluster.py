"""Scripts as tasks of a Ray cluster, each with our supervisor and sandbox around it: Ray counts resources, no more."""

import asyncio
import contextlib
import logging
import os
import tempfile
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import psutil
import ray
from ray import exceptions
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mle_star.errors import ConfigError, ExecutionError
from mle_star.execution.environment import concurrent_scripts, detect_gpu_info, thread_counts
from mle_star.execution.limits import Limits, machine_memory
from mle_star.execution.local import LocalExecutor
from mle_star.integrations.node import Node, default_folder
from mle_star.integrations.remote import Delivery, MachineLost, Parcel, RemoteExecutor
from mle_star.models import PipelineConfig

logger = logging.getLogger("mle_star.execution")
T = TypeVar("T")

remote: Any = ray  # its types know neither all options nor actors made from plain classes

OUTPUT_SECONDS, LAST_OUTPUT_SECONDS, MADE_HERE = 0.5, 10.0, {"include_dashboard": False}
PATIENCE_SECONDS = 8.0
"""How long a cancelled task may take to end its script, before its process is killed."""
ASKING_SECONDS = 60.0
"""How long the machines have to say what they are."""
_GONE = (exceptions.NodeDiedError, exceptions.LocalRayletDiedError, exceptions.ActorDiedError)
_LOST = (*_GONE, exceptions.WorkerCrashedError, exceptions.ObjectLostError, exceptions.OutOfMemoryError)


@asynccontextmanager
async def open_executor(config: PipelineConfig, address: str) -> AsyncIterator[RemoteExecutor]:
    """An executor on the cluster at `address`; without one on the cluster of this machine, made for it if need be."""
    ours = not ray.is_initialized()
    if ours:
        await asyncio.to_thread(_connect, address)
    try:
        with contextlib.closing(RayCarrier(await asyncio.to_thread(Shares.of, config))) as carrier:
            yield RemoteExecutor(config, carrier)
    finally:
        if ours:
            await asyncio.to_thread(ray.shutdown)


def _connect(address: str) -> None:
    known: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False, "namespace": "mle-star"}
    # The file in which Ray notes a cluster may outlive it, and waiting for that one takes long.
    running = any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))
    made = {} if address or os.environ.get("RAY_ADDRESS") or running else MADE_HERE
    try:
        ray.init(address=address or ("local" if made else "auto"), **made, **known)
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        raise ConfigError(f"executor: no Ray cluster at {address or 'this machine'}: {error}") from None


class Shares:
    """What one script takes of the cluster, and how many that leaves room for."""

    def __init__(self, cpus: int, gpus: float, memory: int, slots: int) -> None:
        self.cpus, self.gpus, self.memory, self.slots = cpus, gpus, memory, slots
        count = max(1, int(gpus)) if gpus else 0
        self.hardware: dict[str, Any] = {
            "cuda_available": gpus > 0,
            "gpu_count": count,
            "gpu_names": ["GPU"] * count,
            "script_cores": cpus,
        }

    def learn(self, machines: list[dict[str, Any]]) -> None:
        """Tell scripts what they find on the least of these machines: any of them may be theirs."""
        for name in ("cpu_cores", "memory_gb", "script_memory_gb") if machines else ():
            self.hardware[name] = min(machine[name] for machine in machines)
        cards = [card for machine in machines for card in machine["cards"]]
        if cards and (count := self.hardware["gpu_count"]):
            kind, size = min(cards, key=lambda card: float(card[1].split()[0]))
            self.hardware |= {"gpu_names": [kind] * count, "gpu_memory": [size] * count}

    @classmethod
    def of(cls, config: PipelineConfig) -> "Shares":
        """By the settings and by what the machines that are there say of themselves, unless they take too long."""
        living = living_machines()
        shares = cls.among(config, list(living.values()))
        able = [name for name, has in living.items() if has.get("CPU", 0) >= 1 and has.get("GPU", 0) >= shares.gpus]
        shares.learn(list(ask_nodes(describe_machine, able, config, shares.cpus).values()))
        return shares

    @classmethod
    def among(cls, config: PipelineConfig, machines: list[dict[str, float]]) -> "Shares":
        """What these machines have room for; refuses what none of them could ever run."""
        workers = [machine for machine in machines if machine.get("CPU", 0) >= 1]
        if not workers:
            raise ConfigError("executor: the Ray cluster has no machine with a core to spare")
        gpus = config.script_gpus
        if gpus is None:
            gpus = 1.0 if any(machine.get("GPU", 0) >= 1 for machine in workers) else 0.0
        able = [machine for machine in workers if machine.get("GPU", 0) >= gpus]
        per_machine = -(-concurrent_scripts(config) // max(1, len(able)))
        smallest = min((int(machine["CPU"]) for machine in able), default=1)
        cpus = config.script_cpus or max(1, smallest // per_machine)
        memory = int((config.script_memory_gb or 0) * 1e9)
        wanted = {name: most for name, most in (("CPU", cpus), ("GPU", gpus), ("memory", memory)) if most}
        slots = sum(int(min(has.get(name, 0) // most for name, most in wanted.items())) for has in able)
        if not slots:
            words = f"{cpus} cores, {gpus:g} GPUs and {memory / 1e9:g} GB of memory"
            raise ConfigError(
                f"executor: no machine of the Ray cluster has {words} for a script; "
                "set script_cpus, script_gpus or script_memory_gb lower"
            )
        return cls(cpus, gpus, memory, slots)


def living_machines() -> dict[str, dict[str, float]]:
    """All machines of the cluster by Ray's names, with what they have."""
    return {node["NodeID"]: node["Resources"] for node in remote.nodes() if node["Alive"]}


def ask_nodes(question: Callable[..., T], nodes: Iterable[str], *facts: object) -> dict[str, T]:
    """What machines answer to a question, by Ray's names; who fails or takes too long gives no answer."""
    ask = remote.remote(num_cpus=0, max_retries=0)(question)
    requests = {ask.options(scheduling_strategy=on(node)).remote(*facts): node for node in nodes}
    answered = ray.wait(list(requests), num_returns=len(requests), timeout=ASKING_SECONDS)[0] if requests else []
    found: dict[str, T] = {}
    for answer in answered:
        with contextlib.suppress(RayError):
            found[requests[answer]] = cast(T, ray.get(answer))
    return found


class RayCarrier:
    """Carries parcels as arguments of tasks; large files go piece by piece and never stay in the object store."""

    def __init__(self, shares: Shares) -> None:
        self.shares, self._sender = shares, uuid.uuid4().hex[:8]
        self.slots, self.hardware = shares.slots, shares.hardware
        self._mailbox = remote.remote(num_cpus=0, max_restarts=-1, max_concurrency=1000)(Mailbox).remote()
        self._run = remote.remote(max_retries=0)(run_parcel)
        self._store = remote.remote(max_retries=3, num_cpus=0)(store_chunk)

    async def run(self, parcel: Parcel, hear: Callable[[bytes], None], machine: str | None) -> Delivery:
        """Have a parcel run as a task, on `machine` if it is still there."""
        shares, number = self.shares, uuid.uuid4().hex
        place = on(machine, soft=True) if machine else "SPREAD"
        room = {"memory": shares.memory} if shares.memory else {}
        run = self._run.options(scheduling_strategy=place, num_cpus=shares.cpus, num_gpus=shares.gpus, **room)
        task = run.remote(parcel, self._mailbox, number, shares.cpus, shares.gpus)
        listening = asyncio.create_task(self._listen(number, hear))
        try:
            delivery = cast(Delivery, await answer_of(task))
            await asyncio.wait({listening}, timeout=LAST_OUTPUT_SECONDS)
        except asyncio.CancelledError:
            await asyncio.shield(_end(task))
            raise
        except _LOST as error:
            raise MachineLost(first_line(error)) from None
        except RayError as error:
            if isinstance(error, RayTaskError) and isinstance(error.cause, ExecutionError):
                raise error.cause from None
            raise ExecutionError(f"the cluster could not run the script: {first_line(error)}") from None
        finally:
            listening.cancel()
            with contextlib.suppress(RayError):
                self._mailbox.close.remote(number)
        return delivery

    async def store(self, machine: str, digest: str, offset: int, chunk: bytes, last: bool) -> None:
        """Put a piece of a file into a machine's store."""
        task = self._store.options(scheduling_strategy=on(machine)).remote(digest, self._sender, offset, chunk, last)
        try:
            await answer_of(task)
        except RayTaskError as error:
            raise ExecutionError(f"{machine}: the data could not be stored: {first_line(error)}") from None
        except RayError as error:
            raise MachineLost(first_line(error)) from None

    async def _listen(self, number: str, hear: Callable[[bytes], None]) -> None:
        """Take the output from the mailbox until the task has closed it; a lost mailbox loses output only."""
        with contextlib.suppress(RayError):
            while True:
                chunks, closed = await answer_of(self._mailbox.take.remote(number))
                for chunk in chunks:
                    hear(chunk)
                if closed:
                    return

    def close(self) -> None:
        """Let the mailbox go."""
        with contextlib.suppress(RayError):
            ray.kill(self._mailbox)


async def answer_of(task: Any) -> Any:
    """What a task returns, without blocking the loop, whether connected directly or as a client."""
    return await asyncio.shield(asyncio.wrap_future(task.future()))


async def _end(task: Any) -> None:
    """Have a task end its script; after a while, kill its process: the supervisor sees that and ends the script."""
    for force in (False, True):
        if await ended(task, PATIENCE_SECONDS, force=force):
            return


async def ended(task: Any, seconds: float, **how: bool) -> bool:
    """Cancel what a task or an actor does; has it ended within so many seconds?"""
    with contextlib.suppress(RayError, ValueError):
        ray.cancel(task, **how)
    return bool((await asyncio.wait({asyncio.gather(answer_of(task), return_exceptions=True)}, timeout=seconds))[0])


def on(machine: str, *, soft: bool = False) -> NodeAffinitySchedulingStrategy:
    """Has something done on one machine; with `soft` on another one where that is gone."""
    return NodeAffinitySchedulingStrategy(machine.rpartition("/")[2], soft=soft)


def first_line(error: BaseException) -> str:
    """What an error of Ray says, without its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if isinstance(error, RayTaskError) else lines[0])[:300] if lines else type(error).__name__


# --- on the machines of the cluster --------------------------------------------------------------------------


class Mailbox:
    """An actor through which output comes back while scripts run."""

    def __init__(self) -> None:
        self._boxes, self._closed = defaultdict[str, asyncio.Queue[bytes | None]](asyncio.Queue), set[str]()

    async def put(self, number: str, chunk: bytes | None) -> None:
        """Take in a piece of a script's output; None after the last. Nobody would fetch it once its box is closed."""
        if number not in self._closed:
            self._boxes[number].put_nowait(chunk)

    async def take(self, number: str) -> tuple[list[bytes], bool]:
        """Wait for output, and give it away; and whether that was all."""
        box = self._boxes[number]
        found = [await box.get()]
        while not box.empty():
            found.append(box.get_nowait())
        return [piece for piece in found if piece is not None], None in found

    async def close(self, number: str) -> None:
        """Forget a script, and stop waiting for its output."""
        self._closed.add(number)
        self._boxes.pop(number, asyncio.Queue()).put_nowait(None)


@lru_cache(maxsize=1)
def _node() -> Node:
    """This machine, by its own name and what Ray calls it."""
    return Node(default_folder(), f"{os.uname().nodename}/{ray.get_runtime_context().get_node_id()}")


@lru_cache(maxsize=4)
def _executor(settings: str) -> LocalExecutor:
    """One for each configuration: what a machine offers is found out once."""
    return LocalExecutor(PipelineConfig.model_validate_json(settings))


def store_chunk(digest: str, sender: str, offset: int, chunk: bytes, last: bool) -> None:
    """Put a piece of a file into the store of this machine."""
    _node().store(digest, sender, offset, chunk, last)


def run_parcel(parcel: Parcel, mailbox: Any, number: str, cpus: int, gpus: float) -> Delivery:
    """Run a script here, or say which data it lacks. Ray cancels a task as Ctrl-C ends a program."""
    node = _node()
    if missing := node.missing(parcel):
        ray.get(mailbox.put.remote(number, None))
        return Delivery(node.machine, missing=missing)
    config = _shared_out(parcel.config, cpus)
    cards = ray.get_runtime_context().get_accelerator_ids().get("GPU", []) if gpus else []
    env = {**parcel.request.env, **thread_counts(cpus), "CUDA_VISIBLE_DEVICES": ",".join(cards)}
    parcel = replace(parcel, request=parcel.request.model_copy(update={"env": env}))
    executor = _executor(config.model_dump_json())

    async def work(log: Path, output: BinaryIO) -> Delivery:
        with sent_meanwhile(output, lambda piece: mailbox.put.remote(number, piece)):
            return await node.run(parcel, executor, log)

    with tempfile.NamedTemporaryFile(prefix="mle-star-log-") as output:
        return asyncio.run(work(Path(output.name), cast(BinaryIO, output)))


@contextlib.contextmanager
def sent_meanwhile(output: BinaryIO, send: Callable[[bytes | None], Any]) -> Iterator[None]:
    """Send what is written to a file meanwhile, piece by piece, and None after the last."""

    def send_new() -> None:
        while chunk := output.read(1 << 20):
            send(chunk)

    async def send_on() -> None:
        while True:
            send_new()
            await asyncio.sleep(OUTPUT_SECONDS)

    sending = asyncio.create_task(send_on())
    try:
        yield
    finally:
        sending.cancel()
        send_new()
        with contextlib.suppress(RayError):
            ray.get(send(None), timeout=30)


def describe_machine(config: PipelineConfig, cpus: int) -> dict[str, Any]:
    """This machine, and what is left of its memory for one script."""
    gpu, script = detect_gpu_info(), Limits.of(_shared_out(config, cpus)).memory_bytes
    cards = list(zip(gpu["gpu_names"], gpu.get("gpu_memory", []), strict=False))
    memory = {"memory_gb": machine_memory() / 2**30, "script_memory_gb": script / 1e9}
    return {"cpu_cores": _own_cores(), **memory, "cards": cards}


def _shared_out(config: PipelineConfig, cpus: int) -> PipelineConfig:
    """The configuration for a machine on which as many scripts run side by side as its cores allow."""
    return config.model_copy(update={"max_concurrent_scripts": max(1, _own_cores() // cpus)})


def _own_cores() -> int:
    """The cores of this machine that the cluster gives out: in a container fewer than the host has."""
    own = living_machines().get(ray.get_runtime_context().get_node_id(), {})
    return int(own.get("CPU", 0)) or os.cpu_count() or 1
