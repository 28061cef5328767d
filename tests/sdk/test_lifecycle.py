"""Clients come and go: connected ahead, never too many, none left behind. Scored by real processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from mle_star.engineer.server import BrainReply, BrainRequest, Fault
from mle_star.models import AgentType, agent_config
from mle_star.sdk.connection import MAX_IDLE, marked_processes
from tests.sdk.conftest import Bench, OpenBench, is_cli

pytestmark = pytest.mark.long

CODER = agent_config(AgentType.coder)

SCRIPT = """
import asyncio, sys
from mle_star.sdk import AgentClient, EnvironmentFacts
from mle_star.models import AgentType, PipelineConfig, TaskDescription, agent_config
from mle_star.testing import ScriptedBrain
from mle_star.engineer.server import BrainReply, Fault, MessagesServer

async def main(data, work):
    task = TaskDescription(competition_id="x", task_type="tabular", data_modality="tabular", evaluation_metric="rmse",
                           metric_direction="minimize", description="d", data_dir=data)
    brain = ScriptedBrain("fine")
    brain.always("coder", BrainReply(fault=Fault("hang")))
    async with MessagesServer(brain) as server:
        config = PipelineConfig(model="claude-sonnet-4-5", work_dir=work, client_reuse="clear")
        async with AgentClient(task, config, EnvironmentFacts(), base_url=server.base_url) as agents:
            await agents.ask(agent_config(AgentType.planner), "go", label="main", max_cost_usd=None)
            call = asyncio.create_task(agents.ask(agent_config(AgentType.coder), "go", label="main", max_cost_usd=None))
            while not brain.calls("coder"):
                await asyncio.sleep(0.02)
            print(agents._keeper.home, flush=True)
            await call

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.req("REQ-OR-011")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_in_the_middle_of_a_call_leaves_no_process_and_no_folder(
    number: signal.Signals, data_dir: Path, tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT, encoding="utf-8")
    child = subprocess.Popen(
        [sys.executable, str(script), str(data_dir), str(tmp_path / "work")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert child.stdout is not None
        home = Path(child.stdout.readline().strip())
        family = psutil.Process(child.pid).children(recursive=True)
        assert sum(map(is_cli, family)) == 2
        assert home.is_dir()
        child.send_signal(number)
        assert child.wait(timeout=120) != 0
        _, alive = psutil.wait_procs(family, timeout=240)
        assert alive == []
        assert not home.exists()
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


async def test_the_folder_of_a_run_that_was_killed_is_removed_by_the_next_one(open_bench: OpenBench) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    stale = Path(tempfile.gettempdir()) / f"mle-star-cli-{int(ended.stdout)}-abcdef"
    stale.mkdir()
    recent = stale.with_name(stale.name + "0")
    recent.mkdir()
    os.utime(stale, (0, 0))
    async with open_bench() as bench:
        assert not stale.exists()
        assert recent.exists()  # its process may be one that is hidden from here
        recent.rmdir()
        home = bench.agents._keeper.home
        assert home.stat().st_mode & 0o777 == 0o700
    assert not home.exists()


@pytest.mark.req("REQ-OR-011")
async def test_an_exception_in_the_block_passes_and_leaves_no_process(open_bench: OpenBench) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_bench() as bench:
            bench.brain.always("coder", BrainReply(fault=Fault("hang")))
            call = asyncio.create_task(bench.agents.ask(CODER, "go", label="main", max_cost_usd=None))
            while not bench.brain.requests:
                await asyncio.sleep(0.02)
            assert bench.processes
            raise ZeroDivisionError
    assert marked_processes(bench.agents.marker) == []
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


@pytest.mark.req("REQ-OR-011")
async def test_trouble_while_closing_does_not_reach_the_run(open_bench: OpenBench) -> None:
    async with open_bench(client_reuse="clear") as bench:
        for agent in (AgentType.coder, AgentType.planner):
            await bench.agents.ask(agent_config(agent), "go", label="main", max_cost_usd=None)
        for process in bench.processes:
            os.kill(process.pid, signal.SIGKILL)
        call = bench.agents.ask(agent_config(AgentType.summarize), "go", label="main", max_cost_usd=None)
        late = asyncio.create_task(call)
        await asyncio.sleep(0.01)  # this one is still connecting
    await asyncio.gather(late, return_exceptions=True)
    assert marked_processes(bench.agents.marker) == []


@pytest.mark.req("REQ-OR-011")
async def test_an_error_while_closing_hides_neither_the_result_nor_the_error_of_a_run(
    open_bench: OpenBench, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck:
        """What is left of a pool that cannot be closed."""

        async def close(self) -> None:
            raise OSError("the pool is stuck")

    async with open_bench() as bench:
        await bench.agents._pool.close()
        bench.agents._pool = Stuck()
    assert "closing the agents' clients failed" in caplog.messages
    with pytest.raises(ZeroDivisionError):
        async with open_bench() as bench:
            await bench.agents._pool.close()
            bench.agents._pool = Stuck()
            raise ZeroDivisionError
    assert marked_processes(bench.agents.marker) == []


@pytest.mark.req("REQ-OR-011")
async def test_a_run_that_is_cancelled_while_it_closes_still_leaves_nothing(open_bench: OpenBench) -> None:
    entered = asyncio.Event()
    marker = ""

    async def run() -> None:
        nonlocal marker
        async with open_bench() as bench:
            marker = bench.agents.marker
            bench.brain.always("coder", BrainReply(fault=Fault("hang")))
            call = asyncio.create_task(bench.agents.ask(CODER, "go", label="main", max_cost_usd=None))
            while not bench.brain.requests:
                await asyncio.sleep(0.02)
            entered.set()
            await call

    task = asyncio.create_task(run())
    await entered.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert marked_processes(marker) == []


async def test_a_reused_client_is_one_process_and_a_fresh_one_serves_once(open_bench: OpenBench) -> None:
    seen: dict[str, set[int]] = {}
    for reuse in ("fresh", "clear"):
        async with open_bench(client_reuse=reuse) as bench:
            pids = seen.setdefault(reuse, set())

            def reply(request: BrainRequest, bench: Bench = bench, pids: set[int] = pids) -> str:
                pids.update(process.pid for process in bench.processes)
                return "fine"

            bench.brain.always("coder", reply)
            for _ in range(2):
                await bench.agents.ask(CODER, "go", label="main", max_cost_usd=None)
                await clients(bench)
            sessions = {request.headers["x-claude-code-session-id"] for request in bench.brain.requests[-2:]}
            assert len(sessions) == 2
    assert len(seen["clear"]) == 1
    assert len(seen["fresh"]) == 2


async def clients(bench: Bench) -> list[tuple[int, float | None]]:
    """Process and cap of each client, once those that are let go have gone."""
    await bench.settled()
    while bench.agents._pool._leaving:
        await asyncio.sleep(0.02)
    caps = [
        (pid, dict(itertools.pairwise(words)).get("--max-budget-usd")) for pid, words in bench.command_lines.items()
    ]
    return [(pid, None if cap is None else float(cap)) for pid, cap in caps]


async def test_the_embedded_model_has_no_cap_and_one_client_for_all_agents_which_the_api_still_tells_apart(
    open_bench: OpenBench,
) -> None:
    async with open_bench(model="offline") as bench:
        calls = [bench.agents.ask(CODER, f"go {share}", label="main", max_cost_usd=share) for share in (1.0, 0.1, 0.0)]
        await asyncio.gather(*calls)
        seen = await clients(bench)
        assert [cap for _, cap in seen] == [None]  # one process served all
        asked = [CODER, agent_config(AgentType.leakage, "correction"), agent_config(AgentType.planner)]
        for config in asked:
            await bench.agents.ask(config, "go", label="path-0", max_cost_usd=0.0)
        assert await clients(bench) == seen
        named = [(request.agent, request.variant) for request in bench.brain.requests[3:]]
        assert named == [("coder", None), ("leakage", "correction"), ("planner", None)]
        assert all(not request.tools for request in bench.brain.requests)


@pytest.mark.parametrize(("reuse", "cap", "left"), [("auto", None, 0), ("clear", 1.0, 0), ("clear", None, MAX_IDLE)])
async def test_a_client_waits_for_another_call_only_when_asked_to_and_without_a_cap(
    reuse: str, cap: float | None, left: int, open_bench: OpenBench
) -> None:
    async with open_bench(client_reuse=reuse) as bench:
        kinds = ["coder", "planner", "summarize", "ablation", "merger", "init", "debugger"] if left else ["coder"]
        for agent in map(AgentType, kinds):
            await bench.agents.ask(agent_config(agent), "go", label="main", max_cost_usd=cap)
        assert [cap for _, cap in await clients(bench)] == [None] * left
