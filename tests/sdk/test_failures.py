"""Calls that go wrong: what is retried, what is waited for, what the error says, and that nothing hangs."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from dataclasses import replace

import pytest

from mle_star.engineer.server import BrainReply, BrainRequest, Fault, ToolCall
from mle_star.errors import AgentError
from mle_star.method.codeblocks import extract_code_block
from mle_star.models import AgentType, agent_config
from mle_star.sdk import CallPolicy
from mle_star.search.control import OUTAGE_REASONS
from mle_star.testing import FAULT_NAMES, FaultyBrain, ScriptedBrain
from tests.sdk.conftest import CODER, EXTRACTOR, PLANS, QUICK, Bench, OpenBench, charged

pytestmark = pytest.mark.long

SERVER_ERROR = BrainReply(fault=Fault("status", status=500))
BUSY = BrainReply(fault=Fault("status", status=429))
HANG = BrainReply(fault=Fault("hang"))


def cut(text: str) -> BrainReply:
    """A reply that reaches the model's limit of tokens here."""
    return BrainReply(text=text, fault=Fault("max_tokens"))


def read_first(tokens: int, written: int = 0) -> BrainReply:
    """A reply at the price of so many tokens that asks for another turn."""
    return BrainReply(tool=ToolCall("Read", {"file_path": "none"}), input_tokens=tokens, output_tokens=written)


async def until_asked(bench: Bench, times: int) -> None:
    while len(bench.brain.requests) < times:
        await asyncio.sleep(0.02)


@pytest.mark.req("REQ-OR-052")
async def test_a_lost_connection_is_tried_again_three_times_on_a_fresh_client(open_bench: OpenBench) -> None:
    async with open_bench(client_reuse="clear") as bench:
        half = BrainReply(text="half", fault=Fault("cut"))
        # A cut stream is asked for again without streaming by the CLI itself: two faults an attempt.
        bench.brain.reply_with("coder", SERVER_ERROR, half, half, SERVER_ERROR)
        assert (await bench.ask()).text == "fine"
        waits = [note.rsplit(" in ", 1)[1] for note in bench.notes]
        assert waits == ["0.01 s", "0.02 s", "0.03 s"]
        sessions = [request.headers["x-claude-code-session-id"] for request in bench.brain.requests]
        assert len(set(sessions)) == 4


@pytest.mark.req("REQ-OR-052")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])  # Ctrl-C in a terminal reaches the CLI, too
async def test_a_cli_that_dies_in_the_middle_of_a_call_costs_a_retry_and_what_was_answered_before(
    open_bench: OpenBench, number: signal.Signals
) -> None:
    async with open_bench() as bench:
        bench.brain.reply_with("extractor", read_first(100_000, 300), HANG, PLANS)
        call = asyncio.create_task(bench.ask(EXTRACTOR))
        await until_asked(bench, 2)
        bench.processes[0].send_signal(number)
        reply = await call
        assert sum("the connection failed" in note for note in bench.notes) == 1
        assert reply.cost_usd == bench.agents.state.total_cost_usd == pytest.approx(charged(bench.server.charges))
        assert reply.cost_usd > 0.3045


@pytest.mark.req("REQ-OR-027")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_reply_that_the_cli_could_not_tell_of_any_more_is_counted(
    open_bench: OpenBench, number: signal.Signals
) -> None:
    """It dies while the answer is on its way, or stands still until it is killed for that."""
    async with open_bench() as bench:

        def answer(request: BrainRequest) -> BrainReply:
            bench.processes[0].send_signal(number)
            return BrainReply(text="x" * 700, input_tokens=100_000, output_tokens=300)

        bench.brain.reply_with("coder", answer)
        bench.brain.always("coder", HANG)
        late: list[float] = []
        call = asyncio.create_task(bench.agents.ask(CODER, "go", on_late_cost=late.append))
        while not bench.server.charges:
            await asyncio.sleep(0.02)
        call.cancel()
        while not late:
            await asyncio.sleep(0.02)
        assert [bench.agents.state.total_cost_usd] == late == [pytest.approx(charged(bench.server.charges))]
        assert late[0] > 0.3


@pytest.mark.req("REQ-OR-052")
@pytest.mark.parametrize(
    ("reply", "reason", "attempts"), [(SERVER_ERROR, "transport", 2), (BUSY, "rate_limit", 3)], ids=["500", "429"]
)
async def test_after_the_last_of_its_delays_a_call_fails(
    open_bench: OpenBench, reply: BrainReply, reason: str, attempts: int
) -> None:
    assert CallPolicy().retry_delays == (1.0, 2.0, 4.0)
    async with open_bench(policy=replace(QUICK, retry_delays=(0.01,)), client_reuse="clear") as bench:
        bench.brain.always("coder", reply)
        error = await bench.fail()
        assert (error.reason, error.attempts, error.agent) == (reason, attempts, "coder")
        assert len(bench.brain.requests) == attempts


async def test_clients_that_died_while_they_waited_are_replaced(open_bench: OpenBench) -> None:
    async with open_bench(client_reuse="clear") as bench:
        await asyncio.gather(bench.ask(), bench.ask())
        await bench.settled()
        for process in bench.processes:
            process.kill()
        while bench.processes:
            await asyncio.sleep(0.02)
        assert (await bench.ask()).text == "fine"
        assert len(bench.notes) == 1


async def test_a_busy_service_is_waited_for_where_the_owner_of_the_run_can_see_it(open_bench: OpenBench) -> None:
    async with open_bench(policy=replace(QUICK, cli_retries=1)) as bench:
        bench.brain.reply_with("coder", BUSY, BrainReply(fault=Fault("status", status=529)))
        assert (await bench.ask()).text == "fine"
        assert "rate limited (429), waiting" in bench.notes[0] and "(attempt 1 of 1)" in bench.notes[0]
        assert "the service is busy" in bench.notes[1]
        assert len(bench.processes) <= 1


async def test_what_no_retry_can_fix_fails_at_once_with_its_reason(open_bench: OpenBench) -> None:
    faults = {
        BrainReply(text="no", fault=Fault("refusal")): "refusal",
        BrainReply(fault=Fault("status", status=401)): "auth",
        BrainReply(fault=Fault("status", status=400)): "other",
        BrainReply(fault=Fault("empty")): "other",
        cut("```python\nx = 1\n"): "too_long",  # the CLI itself asks three times for the rest
    }
    async with open_bench(client_reuse="clear") as bench:  # the CLI outlives what the API refuses
        for reply, reason in faults.items():
            spent, asked = charged(bench.server.charges), len(bench.brain.requests)
            bench.brain.always("coder", reply)
            error = await bench.fail()
            assert (error.reason, error.attempts) == (reason, 1)
            assert error.cost_usd == pytest.approx(charged(bench.server.charges) - spent)
            assert bench.notes == [] and len(bench.brain.requests) - asked <= 4
            assert reason not in OUTAGE_REASONS or reason == "auth"


SCRIPT = "x = 1\nif x:\n    y = 2\nprint(x, y)"


@pytest.mark.req("REQ-SF-005")
async def test_a_reply_that_was_cut_at_the_limit_of_tokens_comes_back_whole(open_bench: OpenBench) -> None:
    async with open_bench(client_reuse="clear") as bench:
        for pieces in [
            ["```python\nx = 1\nif x:\n    y =", " 2\nprint(x, y)\n```\nDone."],
            ["```python\nx = 1\nif x:\n    y =", "```python\n 2\nprint(x, y)\n```"],
            ["Look:\n```python\nx = 1\nif x", ":\n    y", " = 2\nprint(x,", "```python\nprint(x, y)\n```"],
        ]:
            bench.brain.reply_with("coder", *map(cut, pieces[:-1]), pieces[-1])
            assert extract_code_block((await bench.ask()).text) == SCRIPT
        bench.brain.reply_with("coder", cut("First scale, then "), "fit.")
        assert (await bench.ask()).text == "First scale, then fit."
        read = BrainReply(text="I read first.", tool=ToolCall("Read", {"file_path": "none"}))
        bench.brain.reply_with("init", read, cut("```python\nx ="), "1\n```")
        assert extract_code_block((await bench.ask(agent_config(AgentType.init))).text) == "x =1"


async def test_a_call_that_hangs_or_is_cancelled_ends_with_the_cost_of_what_was_answered(open_bench: OpenBench) -> None:
    async with open_bench(agent_timeout_seconds=6) as bench:
        bench.brain.reply_with("extractor", read_first(1000), HANG)
        error = await bench.fail(EXTRACTOR)
        assert error.reason == "timeout"  # on a loaded machine it may come before the tool was asked for
        assert error.cost_usd == bench.agents.state.total_cost_usd == pytest.approx(charged(bench.server.charges))
    async with open_bench() as bench:
        bench.brain.reply_with("extractor", read_first(1000), HANG)
        late: list[float] = []
        call = asyncio.create_task(bench.agents.ask(EXTRACTOR, "go", on_late_cost=late.append))
        await until_asked(bench, 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while bench.processes:
            await asyncio.sleep(0.05)
        assert [bench.agents.state.total_cost_usd] == late == [pytest.approx(0.003)]


async def test_sixteen_calls_with_two_fifths_of_the_replies_spoilt(
    open_bench: OpenBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    inner = ScriptedBrain("fine")
    inner.always("extractor", PLANS)
    kinds = tuple(name for name in FAULT_NAMES if name != "hang")  # see above: it takes the whole timeout
    brain = FaultyBrain(inner, rate=0.4, seed=3915, kinds=kinds)  # its first 12 replies meet every fault
    outcomes: Counter[str] = Counter()
    spent = 0.0
    async with open_bench(brain=brain, client_reuse="clear") as bench:
        for number in range(16):
            try:
                spent += (await bench.ask(EXTRACTOR if number % 4 == 0 else CODER, f"call {number}")).cost_usd
                outcomes["returned"] += 1
            except AgentError as error:
                outcomes[error.reason] += 1
                spent += error.cost_usd
        assert sum(outcomes.values()) == 16 and outcomes["timeout"] == 0
        assert outcomes["returned"] >= 8
        assert {fault.name for fault in brain.injected} == set(kinds), "every way to fail was met"
        assert spent == pytest.approx(charged(bench.server.charges), abs=1e-9)
        assert bench.agents.state.total_cost_usd == pytest.approx(spent, abs=1e-9)
