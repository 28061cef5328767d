"""Calls that go wrong, and clients that come and go: what is retried, what the error says, that nothing stays."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.responses import Response

from mle_star.engineer.server import BrainReply, BrainRequest, ToolCall
from mle_star.method.codeblocks import extract_code_block
from mle_star.models import AgentConfig, AgentType, TaskDescription, agent_config
from mle_star.sdk import CallPolicy
from mle_star.sdk.connection import Pool, marked_processes
from mle_star.search.control import OUTAGE_REASONS
from mle_star.serving import api_error
from tests.conftest import Patch, write_texts
from tests.execution.conftest import ROOT
from tests.faults import HANG, cut
from tests.sdk.conftest import CODER, EXTRACTOR, MODEL, PLANNER, PLANS, QUICK, Bench, OpenBench, charged, is_cli

pytestmark = pytest.mark.long

SERVER_ERROR, BUSY = api_error(500, "injected"), api_error(429, "injected")


def cut_short(text: str) -> BrainReply:
    """A reply that reaches the model's limit of tokens here."""
    return BrainReply(text=text, stop_reason="max_tokens")


def read_first(tokens: int, written: int = 0) -> BrainReply:
    """A reply at the price of so many tokens that asks for another turn."""
    return BrainReply(tool=ToolCall("Read", {"file_path": "none"}), input_tokens=tokens, output_tokens=written)


async def until_requested(bench: Bench, times: int) -> None:
    while len(bench.brain.requests) < times:
        await asyncio.sleep(0.02)


@pytest.mark.req("REQ-OR-052")
async def test_a_lost_connection_is_tried_again_three_times_on_a_fresh_client(open_bench: OpenBench) -> None:
    async with open_bench(client_reuse="clear") as bench:
        # A cut stream is asked for again without streaming by the CLI itself: two faults an attempt.
        bench.brain.reply_with("coder", SERVER_ERROR, cut, cut, SERVER_ERROR)
        assert (await bench.ask()).text == "fine"
        assert [note.rsplit(" in ", 1)[1] for note in bench.notes] == ["0.01 s", "0.02 s", "0.03 s"]
        assert len({request.headers["x-claude-code-session-id"] for request in bench.brain.requests}) == 4


@pytest.mark.req("REQ-OR-052")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])  # Ctrl-C in a terminal reaches the CLI, too
async def test_a_cli_that_dies_costs_a_retry_and_its_answers(open_bench: OpenBench, number: signal.Signals) -> None:
    async with open_bench() as bench:
        bench.brain.reply_with("extractor", read_first(100_000, 300), HANG, PLANS)
        call = asyncio.create_task(bench.ask(EXTRACTOR))
        await until_requested(bench, 2)
        bench.processes[0].send_signal(number)
        reply = await call
        assert sum("the connection failed" in note for note in bench.notes) == 1
        assert reply.cost_usd == bench.agents.state.total_cost_usd == pytest.approx(charged(bench.server.delivered))
        assert reply.cost_usd > 0.3045


@pytest.mark.req("REQ-OR-027")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_reply_that_the_cli_could_not_report_is_counted(open_bench: OpenBench, number: signal.Signals) -> None:
    """It dies while the answer is on its way, or stands still until it is killed for that."""
    async with open_bench() as bench:

        def answer(request: BrainRequest) -> BrainReply:
            bench.processes[0].send_signal(number)
            return BrainReply(text="x" * 700, input_tokens=100_000, output_tokens=300)

        bench.brain.reply_with("coder", answer)
        bench.brain.always("coder", HANG)
        late: list[float] = []
        call = asyncio.create_task(bench.agents.ask(CODER, "go", on_late_cost=late.append))
        while not bench.server.delivered:
            await asyncio.sleep(0.02)
        call.cancel()
        while not late:
            await asyncio.sleep(0.02)
        assert [bench.agents.state.total_cost_usd] == late == [pytest.approx(charged(bench.server.delivered))]
        assert late[0] > 0.3


@pytest.mark.req("REQ-OR-052")
@pytest.mark.parametrize(
    ("reply", "reason", "attempts"), [(SERVER_ERROR, "transport", 2), (BUSY, "rate_limit", 3)], ids=["500", "429"]
)
async def test_a_call_fails_after_delays(open_bench: OpenBench, reply: BrainReply, reason: str, attempts: int) -> None:
    assert CallPolicy() == CallPolicy((1.0, 2.0, 4.0), (15.0, 30.0, 60.0, 120.0, 240.0, 300.0, 300.0), 4, 6)
    async with open_bench(policy=replace(QUICK, retry_delays=(0.01,)), client_reuse="clear") as bench:
        bench.brain.always("coder", reply)
        error = await bench.fail()
        assert (error.reason, error.attempts, error.agent) == (reason, attempts, "coder")
        assert len(bench.brain.requests) == attempts


async def test_dead_clients_are_replaced_and_a_busy_service_is_visibly_waited_for(open_bench: OpenBench) -> None:
    async with open_bench(policy=replace(QUICK, cli_retries=1), client_reuse="clear") as bench:
        await asyncio.gather(bench.ask(), bench.ask())
        await bench.settled()
        for process in bench.processes:
            process.kill()
        while bench.processes:
            await asyncio.sleep(0.02)
        assert (await bench.ask()).text == "fine"
        bench.brain.reply_with("coder", BUSY, api_error(529, "injected"))
        assert (await bench.ask()).text == "fine"
        _, first, second = bench.notes  # the first of all is on the clients that had died while they waited
        assert "rate limited (429), waiting" in first and "(attempt 1 of 1)" in first
        assert "the service is busy" in second and len(bench.processes) <= 1


async def test_what_no_retry_can_fix_fails_at_once_with_its_reason(open_bench: OpenBench) -> None:
    faults: dict[BrainReply | Response, str] = {
        BrainReply(text="no", stop_reason="refusal"): "refusal",
        api_error(401, "injected"): "auth",
        api_error(400, "injected"): "other",
        BrainReply(text=""): "other",
        cut_short("```python\nx = 1\n"): "too_long",  # the CLI itself asks three times for the rest
    }
    async with open_bench(client_reuse="clear") as bench:  # the CLI outlives what the API refuses
        for reply, reason in faults.items():
            spent, before = charged(bench.server.delivered), len(bench.brain.requests)
            bench.brain.always("coder", reply)
            error = await bench.fail()
            assert (error.reason, error.attempts) == (reason, 1)
            assert error.cost_usd == pytest.approx(charged(bench.server.delivered) - spent)
            assert bench.notes == [] and len(bench.brain.requests) - before <= 4
            assert reason not in OUTAGE_REASONS or reason == "auth"
        bench.brain.reply_with("extractor", read_first(1000))
        assert (await bench.fail(EXTRACTOR.model_copy(update={"max_turns": 1}))).attempts == 1, "for an unknown reason"


@pytest.mark.req("REQ-SF-005")
async def test_a_reply_that_was_cut_at_the_limit_of_tokens_comes_back_whole(open_bench: OpenBench) -> None:
    async with open_bench(client_reuse="clear") as bench:
        for pieces in [
            ["```python\nx = 1\nif x:\n    y =", " 2\nprint(x, y)\n```\nDone."],
            ["```python\nx = 1\nif x:\n    y =", "```python\n 2\nprint(x, y)\n```"],
            ["Look:\n```python\nx = 1\nif x", ":\n    y", " = 2\nprint(x,", "```python\nprint(x, y)\n```"],
        ]:
            bench.brain.reply_with("coder", *map(cut_short, pieces[:-1]), pieces[-1])
            assert extract_code_block((await bench.ask()).text) == "x = 1\nif x:\n    y = 2\nprint(x, y)"
        bench.brain.reply_with("coder", cut_short("First scale, then "), "fit.")
        assert (await bench.ask()).text == "First scale, then fit."
        read = BrainReply(text="I read first.", tool=ToolCall("Read", {"file_path": "none"}))
        bench.brain.reply_with("init", read, cut_short("```python\nx ="), "1\n```")
        assert extract_code_block((await bench.ask(agent_config(AgentType.init))).text) == "x =1"


async def test_a_call_that_hangs_or_is_cancelled_ends_with_the_cost_of_what_was_answered(open_bench: OpenBench) -> None:
    async with open_bench(agent_timeout_seconds=6) as bench:
        bench.brain.reply_with("extractor", read_first(1000), HANG)
        error = await bench.fail(EXTRACTOR)
        assert error.reason == "timeout"  # on a loaded machine it may come before the tool was asked for
        assert error.cost_usd == bench.agents.state.total_cost_usd == pytest.approx(charged(bench.server.delivered))
    async with open_bench() as bench:
        bench.brain.reply_with("extractor", read_first(1000), HANG)
        late: list[float] = []
        call = asyncio.create_task(bench.agents.ask(EXTRACTOR, "go", on_late_cost=late.append))
        await until_requested(bench, 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while bench.processes:
            await asyncio.sleep(0.05)
        assert [bench.agents.state.total_cost_usd] == late == [pytest.approx(0.003)]
        starting = asyncio.create_task(bench.ask())
        while not bench.agents._pool._busy:
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled() and not bench.agents._pool._busy, "nobody waits for its client any more"


SCRIPT = """
import asyncio, sys
from mle_star.sdk import AgentClient, EnvironmentFacts
from mle_star.models import PipelineConfig, TaskDescription
from mle_star.testing import ScriptedBrain
from mle_star.engineer.server import MessagesServer
from tests.faults import HANG
from tests.sdk.conftest import CODER, PLANNER
async def main(task, work):
    brain = ScriptedBrain("fine")
    brain.always("coder", HANG)
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
def test_a_signal_in_a_call_leaves_nothing_back(number: signal.Signals, task: TaskDescription, tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, task.model_dump_json(), str(tmp_path / "work")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as child:
        try:
            assert child.stdout is not None
            home = Path(child.stdout.readline().strip())
            family = psutil.Process(child.pid).children(recursive=True)
            assert sum(map(is_cli, family)) == 2 and home.is_dir()
            child.send_signal(number)
            assert child.wait(timeout=120) == -number
            assert psutil.wait_procs(family, timeout=240)[1] == [] and not home.exists()
        finally:
            child.kill()


async def test_the_folder_of_a_run_that_was_killed_is_removed_by_the_next_one(open_bench: OpenBench) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    stale = Path(tempfile.gettempdir()) / f"mle-star-cli-{int(ended.stdout)}-abcdef"
    recent = stale.with_name(stale.name + "0")
    for folder in (stale, recent):
        folder.mkdir()
    os.utime(stale, (0, 0))
    async with open_bench() as bench:
        assert not stale.exists()
        recent.rmdir()  # left alone: its process may be one that is hidden from here
        home = bench.agents._keeper.home
        assert home.stat().st_mode & 0o777 == 0o700
    assert not home.exists()


@pytest.mark.req("REQ-OR-011")
@pytest.mark.parametrize("ending", [ZeroDivisionError, asyncio.CancelledError])
async def test_whatever_ends_a_run_leaves_no_process(open_bench: OpenBench, ending: Any, monkeypatch: Patch) -> None:
    benches: list[Bench] = []
    monkeypatch.setattr("mle_star.sdk.client.CLOSE_SECONDS", 3600.0)

    async def run() -> None:
        async with open_bench() as bench:
            bench.brain.always("coder", HANG)
            call = asyncio.create_task(bench.ask())
            await until_requested(bench, 1)
            assert bench.processes
            benches.append(bench)
            call.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to ask
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
        await asyncio.wait_for(task, 120)  # no call is waited for while its client lives
    assert marked_processes(benches[0].agents.marker) == []


@pytest.mark.req("REQ-OR-011")
async def test_closing_hides_neither_result_nor_error(open_bench: OpenBench, caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Pool):
        """A pool that cannot be closed."""

        async def close(self) -> None:
            await super().close()
            raise OSError("the pool is stuck")

    async with open_bench(client_reuse="clear") as bench:
        await asyncio.gather(bench.ask(), bench.ask(PLANNER))
        for process in bench.processes:
            os.kill(process.pid, signal.SIGKILL)
        late = asyncio.create_task(bench.ask(agent_config(AgentType.summarize)))
        await asyncio.sleep(0.01)  # this one is still connecting
    await asyncio.gather(late, return_exceptions=True)
    assert marked_processes(bench.agents.marker) == []
    async with open_bench() as bench:
        bench.agents._pool = Stuck(1)
    assert "closing the agents' clients failed" in caplog.messages
    with pytest.raises(ZeroDivisionError):
        async with open_bench() as bench:
            bench.agents._pool = Stuck(1)
            raise ZeroDivisionError
    assert marked_processes(bench.agents.marker) == []


def caps(processes: list[psutil.Process]) -> dict[int, str | None]:
    """The cap of each client by its process."""
    return {one.pid: dict(itertools.pairwise(one.cmdline())).get("--max-budget-usd") for one in processes}


async def clients(bench: Bench) -> dict[int, str | None]:
    """The caps, once those that are let go have gone."""
    await bench.settled()
    while bench.agents._pool._leaving:
        await asyncio.sleep(0.02)
    return caps(bench.processes)


async def test_a_client_waits_for_other_calls_only_if_asked_and_uncapped(open_bench: OpenBench, tmp_path: Path) -> None:
    prices = write_texts(tmp_path, {"prices.yaml": f"{MODEL}: [6, 30]\n"}) / "prices.yaml"
    seen: list[dict[int, str | None]] = []

    async def ask(bench: Bench, config: AgentConfig = CODER, cap: float | None = None) -> dict[int, str | None]:
        def reply(request: BrainRequest) -> str:
            seen.append(caps([process for process in bench.processes if request.agent in process.cmdline()]))
            return "fine"

        bench.brain.always(config.agent_type.value, reply)
        await bench.ask(config, cap=cap)
        return await clients(bench)

    async with open_bench(client_reuse="auto") as bench:
        assert await ask(bench) == await ask(bench) == {} and seen[0].keys() != seen[1].keys()
    async with open_bench(client_reuse="clear", policy=replace(QUICK, max_idle=1), prices_file=str(prices)) as bench:
        coder = await ask(bench)
        assert await ask(bench) == coder == seen[-1] == {**seen[-2]} and list(coder.values()) == [None]
        assert len({request.headers["x-claude-code-session-id"] for request in bench.brain.requests}) == 2
        planner = await ask(bench, PLANNER)
        assert len(planner) == 1 and planner.keys() != coder.keys() and await ask(bench, PLANNER, cap=1.0) == planner
        assert {float(cap) for cap in seen[-1].values() if cap is not None} == {0.5}, "as the CLI counts"


async def test_the_embedded_model_is_free_and_has_one_client_for_all_agents(open_bench: OpenBench) -> None:
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
