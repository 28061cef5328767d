"""The real SDK and the real CLI against the Messages API on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from mle_star.engineer.server import Brain, Charge, MessagesServer
from mle_star.models import PipelineConfig, TaskDescription
from mle_star.run.context import Agents
from mle_star.sdk import AgentClient, CallPolicy, EnvironmentFacts
from mle_star.sdk.connection import marked_processes
from mle_star.testing import ScriptedBrain

MODEL = "claude-sonnet-4-5"
USD_PER_INPUT_TOKEN, USD_PER_OUTPUT_TOKEN = 3e-6, 15e-6
"""What the CLI charges for MODEL."""

FACTS = EnvironmentFacts(
    gpu={"cuda_available": True, "gpu_count": 2, "gpu_names": ["NVIDIA H200", "NVIDIA H200"]},
    python_version="3.11.2",
    packages={"numpy": "1.26.4", "scikit-learn": "1.5.0", "pip": "24.0"},
    cpu_cores=8,
    memory_gb=31.6,
)
QUICK = CallPolicy(retry_delays=(0.01, 0.02, 0.03), busy_delays=(0.01, 0.02), cli_retries=0)
"""No CLI retries, no waits worth mentioning, no client connected ahead."""


@dataclass
class Bench:
    """A client at work, the server it talks to, and what it said to the owner of the run."""

    agents: AgentClient
    server: MessagesServer
    brain: ScriptedBrain
    notes: list[str] = field(default_factory=list)

    @property
    def processes(self) -> list[psutil.Process]:
        """The CLI processes that live now."""
        return [process for process in marked_processes(self.agents.marker) if is_cli(process)]

    @property
    def command_lines(self) -> dict[int, list[str]]:
        """Of each of them, by its number; one that ends meanwhile is left out."""
        lines: dict[int, list[str]] = {}
        for process in self.processes:
            with suppress(psutil.Error):
                lines[process.pid] = process.cmdline()
        return {number: words for number, words in lines.items() if words}

    async def settled(self) -> None:
        """Wait until every idle client is cleared."""
        for worker in list(self.agents._pool._idle):
            await worker.ready()


def is_cli(process: psutil.Process) -> bool:
    """Is it a CLI, and still there?"""
    try:
        return process.name() == "claude"
    except psutil.Error:
        return False


class OpenBench(Protocol):
    """Opens a client with settings of a test's choice."""

    def __call__(
        self,
        *,
        policy: CallPolicy = QUICK,
        brain: Brain | None = None,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Any: ...


@pytest.fixture
def scripted() -> ScriptedBrain:
    """A brain that says `fine` unless told otherwise."""
    return ScriptedBrain("fine")


@pytest.fixture
def open_bench(task: TaskDescription, tmp_path: Path, scripted: ScriptedBrain) -> OpenBench:
    """`async with open_bench(client_reuse="clear") as bench:`"""

    @asynccontextmanager
    async def opened(
        *,
        policy: CallPolicy = QUICK,
        brain: Brain | None = None,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Bench]:
        given = {"model": MODEL, "work_dir": str(tmp_path / "work"), "agent_timeout_seconds": 240, **settings}
        notes: list[str] = []
        extra = {"task": task, **(options or {})}
        async with (
            MessagesServer(brain or scripted) as server,
            AgentClient(
                config=PipelineConfig(**given),
                facts=FACTS,
                base_url=server.base_url,
                notify=notes.append,
                policy=policy,
                **extra,
            ) as agents,
        ):
            protocol: Agents = agents  # what the phases see of it
            assert protocol is agents
            yield Bench(agents, server, scripted, notes)
        assert marked_processes(agents.marker) == [], "a CLI process was left behind"

    return opened


def charged(charges: list[Charge]) -> float:
    """What a list of replies costs at the price of MODEL."""
    return sum(
        charge.input_tokens * USD_PER_INPUT_TOKEN + charge.output_tokens * USD_PER_OUTPUT_TOKEN for charge in charges
    )
