"""Clients come and go: never too many, none left behind. Checked by real processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mle_star.engineer.server import BrainReply, BrainRequest, Fault
from mle_star.models import AgentConfig, AgentType, TaskDescription, agent_config
from mle_star.sdk.connection import Pool, marked_processes
from tests.sdk.conftest import CODER, PLANNER, QUICK, Bench, OpenBench, is_cli

pytestmark = pytest.mark.long
REPO = Path(__file__).parents[2]

SCRIPT = """
import asyncio, sys
from mle_star.sdk import AgentClient, EnvironmentFacts
from mle_star.models import PipelineConfig, TaskDescription
from mle_star.testing import ScriptedBrain
from mle_star.engineer.server import BrainReply, Fault, MessagesServer
from tests.sdk.conftest import CODER, PLANNER

async def main(task, work):
    brain = ScriptedBrain("fine")
    brain.always("coder", BrainReply(fault=Fault("hang")))
    config = PipelineConfig(model="claude-sonnet-4-5", work_dir=work, client_reuse="clear")
    async with MessagesServer(brain) as server:
        task = TaskDescription.model_validate_json(task)
        async with AgentClient(task, config, EnvironmentFacts(), base_url=server.base_url) as agents:
            await agents.ask(PLANNER, "go")
            call = asyncio.create_task(agents.ask(CODER, "go"))
            while not brain.calls("coder"):
                await asyncio.sleep(0.02)
            print(agents._keeper.home, flush=True)
            await call

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.req("REQ-OR-011")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_in_the_middle_of_a_call_leaves_no_process_and_no_folder(
    number: signal.Signals, task: TaskDescription, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", SCRIPT, task.model_dump_json(), str(tmp_path / "work")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=REPO) as child:
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
@pytest.mark.parametrize("ending", [ZeroDivisionError, asyncio.CancelledError])
async def test_whatever_ends_a_run_in_the_middle_of_a_call_passes_and_leaves_no_process(
    open_bench: OpenBench, ending: type[BaseException]
) -> None:
    benches: list[Bench] = []

    async def run() -> None:
        async with open_bench() as bench:
            bench.brain.always("coder", BrainReply(fault=Fault("hang")))
            call = asyncio.create_task(bench.ask())
            while not bench.brain.requests:
                await asyncio.sleep(0.02)
            assert bench.processes
            benches.append(bench)
            if ending is ZeroDivisionError:
                raise ending
            await call

    task = asyncio.create_task(run())
    while not benches and not task.done():
        await asyncio.sleep(0.01)
    for _ in range(3 if ending is asyncio.CancelledError else 0):  # also while it closes
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(ending):
        await task
    assert marked_processes(benches[0].agents.marker) == []


@pytest.mark.req("REQ-OR-011")
async def test_trouble_while_closing_does_not_reach_the_run(open_bench: OpenBench) -> None:
    async with open_bench(client_reuse="clear") as bench:
        await asyncio.gather(bench.ask(), bench.ask(PLANNER))
        for process in bench.processes:
            os.kill(process.pid, signal.SIGKILL)
        late = asyncio.create_task(bench.ask(agent_config(AgentType.summarize)))
        await asyncio.sleep(0.01)  # this one is still connecting
    await asyncio.gather(late, return_exceptions=True)
    assert marked_processes(bench.agents.marker) == []


@pytest.mark.req("REQ-OR-011")
async def test_an_error_while_closing_hides_neither_the_result_nor_the_error_of_a_run(
    open_bench: OpenBench, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Pool):
        """A pool that cannot be closed."""

        async def close(self) -> None:
            await super().close()
            raise OSError("the pool is stuck")

    async with open_bench() as bench:
        bench.agents._pool = Stuck(1)
    assert "closing the agents' clients failed" in caplog.messages
    with pytest.raises(ZeroDivisionError):
        async with open_bench() as bench:
            bench.agents._pool = Stuck(1)
            raise ZeroDivisionError
    assert marked_processes(bench.agents.marker) == []


async def clients(bench: Bench) -> dict[int, str | None]:
    """The cap of each client by its process, once those that are let go have gone."""
    await bench.settled()
    while bench.agents._pool._leaving:
        await asyncio.sleep(0.02)
    words = {process.pid: dict(itertools.pairwise(process.cmdline())) for process in bench.processes}
    return {pid: pairs.get("--max-budget-usd") for pid, pairs in words.items()}


async def test_a_client_waits_for_another_call_only_when_asked_to_without_a_cap_and_with_few_others(
    open_bench: OpenBench,
) -> None:
    seen: list[dict[int, str | None]] = []

    async def ask(bench: Bench, config: AgentConfig = CODER, cap: float | None = None) -> dict[int, str | None]:
        def reply(request: BrainRequest) -> str:
            own = [process for process in bench.processes if request.agent in process.cmdline()]
            seen.append({one.pid: dict(itertools.pairwise(one.cmdline())).get("--max-budget-usd") for one in own})
            return "fine"

        bench.brain.always(config.agent_type.value, reply)
        await bench.ask(config, cap=cap)
        return await clients(bench)

    async with open_bench(client_reuse="auto") as bench:
        assert await ask(bench) == await ask(bench) == {}
        assert seen[0].keys() != seen[1].keys()
    async with open_bench(client_reuse="clear", policy=replace(QUICK, max_idle=1)) as bench:
        coder = await ask(bench)
        assert await ask(bench) == coder == seen[-1] == {**seen[-2]} and list(coder.values()) == [None]
        assert len({request.headers["x-claude-code-session-id"] for request in bench.brain.requests}) == 2
        planner = await ask(bench, PLANNER)
        assert len(planner) == 1 and planner.keys() != coder.keys()
        assert await ask(bench, PLANNER, cap=1.0) == planner
        assert {float(cap) for cap in seen[-1].values() if cap is not None} == {1.0}


async def test_the_embedded_model_is_free_and_has_one_client_for_all_agents_which_the_api_still_tells_apart(
    open_bench: OpenBench,
) -> None:
    async with open_bench(model="offline") as bench:
        replies = await asyncio.gather(*(bench.ask(prompt=f"go {share}", cap=share) for share in (1.0, 0.1, 0.0)))
        assert {reply.cost_usd for reply in replies} == {bench.agents.state.total_cost_usd} == {0.0}
        assert replies[0].input_tokens > 0 and bench.brain.requests[0].model == "mle-star-offline"
        seen = await clients(bench)
        assert list(seen.values()) == [None]  # one process served all
        for config in (CODER, agent_config(AgentType.leakage, "correction"), PLANNER):
            await bench.ask(config, label="path-0", cap=0.0)
        assert await clients(bench) == seen
        named = [(request.agent, request.variant) for request in bench.brain.requests[3:]]
        assert named == [("coder", None), ("leakage", "correction"), ("planner", None)]
        assert all(not request.tools for request in bench.brain.requests)
