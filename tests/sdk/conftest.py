"""The real SDK and the real CLI against the Messages API on loopback."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from mle_star import AgentConfig, AgentError, AgentType, PipelineConfig, TaskDescription, agent_config
from mle_star.engineer.server import Brain, MessagesServer
from mle_star.run.events import AgentReply
from mle_star.sdk import AgentClient, CallPolicy, EnvironmentFacts
from mle_star.sdk.connection import marked_processes
from mle_star.testing import ScriptedBrain
from tests.conftest import Logs

MODEL = "claude-sonnet-4-5"
USD_PER_INPUT_TOKEN, USD_PER_OUTPUT_TOKEN = 3e-6, 15e-6
"""What the CLI charges for MODEL."""

CODER, PLANNER, EXTRACTOR = map(agent_config, (AgentType.coder, AgentType.planner, AgentType.extractor))
PLANS = {"plans": [{"code_block": "x = 1", "plan": "y"}]}
FACTS = EnvironmentFacts(
    gpu={"cuda_available": True, "gpu_count": 2, "gpu_names": ["NVIDIA H200", "NVIDIA H200"]},
    python_version="3.11.2",
    packages={"numpy": "1.26.4", "scikit-learn": "1.5.0", "pip": "24.0"},
    cpu_cores=8,
    memory_gb=31.6,
)
QUICK = CallPolicy(retry_delays=(0.01, 0.02, 0.03), busy_delays=(0.01, 0.02), cli_retries=0)
"""No CLI retries, no waits worth mentioning."""


@dataclass
class Bench:
    """A client at work, the server it talks to, and what it said to the owner of the run."""

    agents: AgentClient
    server: MessagesServer
    brain: ScriptedBrain
    notes: list[str] = field(default_factory=list)

    async def ask(
        self, config: AgentConfig = CODER, prompt: str = "go", *, label: str = "main", cap: float | None = None
    ) -> AgentReply:
        """One call."""
        return await self.agents.ask(config, prompt, label=label, max_cost_usd=cap)

    async def fail(self, config: AgentConfig = CODER, *, cap: float | None = None) -> AgentError:
        """One call that must fail."""
        with pytest.raises(AgentError) as caught:
            await self.ask(config, cap=cap)
        return caught.value

    @property
    def processes(self) -> list[psutil.Process]:
        """The CLI processes that live now."""
        return [process for process in marked_processes(self.agents.marker) if is_cli(process)]

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


OpenBench = Callable[..., AbstractAsyncContextManager[Bench]]
"""Opens a client with settings of a test's choice."""


@pytest.fixture
def open_bench(task: TaskDescription, tmp_path: Path) -> OpenBench:
    """`async with open_bench(client_reuse="clear") as bench:`; its brain says `fine` unless told otherwise."""

    @asynccontextmanager
    async def opened(
        *,
        policy: CallPolicy = QUICK,
        brain: Brain | None = None,
        options: dict[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Bench]:
        given = {"model": MODEL, "work_dir": str(tmp_path / "work"), "agent_timeout_seconds": 240, **settings}
        scripted, notes = ScriptedBrain("fine"), list[str]()
        extra = {"task": task, "config": PipelineConfig(**given), "facts": FACTS, "policy": policy, **(options or {})}
        async with (
            MessagesServer(brain or scripted) as server,
            AgentClient(base_url=server.base_url, notify=notes.append, **extra) as agents,
        ):
            yield Bench(agents, server, scripted, notes)
        assert marked_processes(agents.marker) == [], "a CLI process was left behind"

    return opened


def charged(delivered: list[dict[str, Any]]) -> float:
    """What a list of replies costs at the price of MODEL."""
    used: list[dict[str, int]] = [one["usage"] for one in delivered]
    return sum(u["input_tokens"] * USD_PER_INPUT_TOKEN + u["output_tokens"] * USD_PER_OUTPUT_TOKEN for u in used)


def logged(caplog: Logs, event: str) -> list[dict[str, Any]]:
    """What was logged of an event."""
    entries = [json.loads(record.message) for record in caplog.records if record.message.startswith("{")]
    return [entry for entry in entries if entry["event"] == event]
