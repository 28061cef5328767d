"""The ledger of time and money: shares of the phases, limits of scripts, the reserve, and what was spent before."""

import asyncio
import math
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star import AgentType, BudgetExceeded, ConfigError, PhaseTimeBudget, PipelineConfig, TaskDescription
from mle_star.models.enums import PHASES, PhaseName
from mle_star.run.budget import LATE_SECONDS, Budget, Call, Price, Spent, price_of, read_prices, usage_cost
from mle_star.run.events import AgentFailed, AgentFinished, AnyEvent, Notice, RunResumed, RunStarted
from mle_star.run.folder import spent_by
from mle_star.run.timing import SHORTEST_LIMIT, ablation_limit, critical_steps, plan_seconds, script_limit
from tests.conftest import as_kept, script_finished
from tests.pipeline.clock import Clock, in_its_own_time


def ledger(spent_seconds: float = 0.0, phase: PhaseName | None = None, **settings: Any) -> tuple[Budget, Clock]:
    clock = Clock(1000.0)
    budget = Budget(PipelineConfig(**settings), spent=Spent(by_stage={"": spent_seconds}), clock=clock)
    if phase is not None:
        budget.open_phase(phase)
    return budget, clock


def facts(limit: Any) -> tuple[str, float, float]:
    return limit.limit, limit.used, limit.allowed


CHOSEN = PhaseTimeBudget(phase1=0.4, phase2=0.3, phase3=0.2, finalization=0.1)
FEW: dict[str, Any] = {"max_budget_usd": 16.0, "num_retrieved_models": 4, "num_parallel_solutions": 2}
POOR: dict[str, Any] = {"max_budget_usd": 1.0, "num_retrieved_models": 4}
TEN: dict[str, Any] = {"max_budget_usd": 10.0}
COURSES: list[tuple[dict[str, Any], str]] = [
    # what finalization needs is kept from Phase 1, whose loops wind down when its share is used
    ({"time_limit_seconds": 10_000}, "phase1 +999 +1 phase2 +500 phase3 +7499 +-7499 finalization"),
    ({"time_limit_seconds": 1000, "phase_time_budget": CHOSEN}, "phase1 +399 +1 phase2"),
    # time to run the solution again is kept, a third of it at most; Phase 2 has what Phase 3 cannot use
    ({"time_limit_seconds": 1000}, "+100 rerun=90 phase2 rerun=150 phase2 +600 phase3 +150 finalization rerun=5000"),
    ({"time_limit_seconds": 1000}, "ensemble=100 phase1 phase2 phase3"),
    # loops wind down before the end of the run
    ({"time_limit_seconds": 86400}, "+77760 +0.1"), ({"time_limit_seconds": 1800}, "+1500 +0.1"),
    ({"time_limit_seconds": 60}, "+30 +0.1"), ({"time_limit_seconds": 300}, "phase2 +170 +49.4"),
    ({"time_limit_seconds": 300, "preset": "letter"}, "phase1 +10 phase2 +160 phase3 finalization"),
    # work may begin until the last moment of the run and of its part
    ({"time_limit_seconds": 60}, "check +59.5 check +0.5 check"),
    ({"time_limit_seconds": 100}, "deadline=10 +11 check deadline"),
    # calls side by side share what is left
    (FEW, "phase1 alone"), (FEW, f"phase1 {'call ' * 4} {'settle=1 ' * 4} phase2 call call settle=2 settle=4 charge=3"),
    (FEW, "call"), (FEW, "phase3 call"), ({}, "call"),
    # near the end twice the usual cost; twice 0.3 is more than what is left, and what is free counts for nothing
    (POOR, f"phase1 {'charge=0.1 ' * 6} call call call"), (POOR, "phase1 charge=0.3 charge=0.3 charge=0 charge=0 call"),
    # without money finalization has two calls of five percent, and scripts; with money it is whole
    (TEN, "phase2 charge=9 script finalization call"),
    (TEN, "phase2 charge=10 script finalization script call settle=0.5 call settle=0.5 check call"),
    # each limit warns once at 80 percent, and what was cut off names the limit that was reached
    ({**TEN, "time_limit_seconds": 100},
     "deadline=70.26 charge=7.99 +79 charge=0.51 +1 charge=1 +0.26 over charge=1 over finalization over"),
]  # fmt: skip


def step(budget: Budget, clock: Clock, calls: list[Call], name: str, value: float) -> object:
    """What a step of a course comes to; the oldest call is settled first."""
    if name in ("call", "alone"):
        calls.append(budget.open_call(alone=name == "alone"))
        return calls[-1].cap_usd
    acts: dict[str, Callable[[], object]] = {
        "+": lambda: setattr(clock, "now", clock.now + value),
        "rerun": lambda: setattr(budget, "rerun_seconds", value),
        "ensemble": lambda: setattr(budget, "ensemble_limit", value),
        "deadline": lambda: budget.set_phase_deadline(value or math.inf),
        "charge": lambda: budget.charge(value, f"here, in {budget.phase}"),
        "settle": lambda: budget.settle(calls.pop(0), value, f"there, in {budget.phase}"),
        "script": budget.open_script, "check": budget.check, "over": lambda: facts(budget.over()),
    }  # fmt: skip
    return acts[name]() if name in acts else budget.open_phase(cast(PhaseName, name))


@pytest.mark.req("REQ-OR-024", "REQ-OR-025", "REQ-OR-029", "REQ-OR-030", "REQ-OR-034")
def test_time_and_money_are_shared_out_as_a_run_goes_on() -> None:
    lines = list[str]()
    for settings, course in COURSES:
        (budget, clock), calls = ledger(**settings), list[Call]()
        lines.append(f"--- {settings}")
        for words in course.split():
            name, _, value = words.replace("+", "+=").partition("=")
            try:
                came = step(budget, clock, calls, name, float(value or 0))
            except BudgetExceeded as error:
                came = f"{type(error).__name__}: {error}, {facts(error)}"
            came = f"{came:.6f}" if isinstance(came, float) else came
            left = f"{budget.deadline - budget.elapsed():.2f} of {budget.spare_seconds:.2f} s left"
            known = left, budget.finalize_now, f"{budget.free_usd:.6f} USD free", budget.degraded, budget.short_of_money
            news = [facts(one) for one in budget.new_warnings()], budget.spent.charges[-1:]
            lines.append(f"{words}: {came}; {' '.join(map(str, known))} {news}")
    as_kept("pipeline/shares.txt", "\n".join(lines))


LEFT = st.floats(0.001, 100_000)
TOOK = st.none() | st.floats(0, 50_000)


@given(LEFT, TOOK, st.floats(0, 100_000), st.none() | st.floats(0.5, 100_000))
def test_a_limit_leaves_a_part_of_its_phase(left: float, took: float | None, share: float, own: float | None) -> None:
    config = PipelineConfig(script_timeout_seconds=None)
    for limit in (
        script_limit(left=left, measured=took, even_share=share, explicit=own),
        ablation_limit(config, left=left, measured=took, explicit=own),
    ):
        assert 0 < limit <= left
        if own is not None:
            assert limit == min(own, left)
    limit = script_limit(left=left, measured=took, even_share=share)
    known, part = took or 0.0, 0.75 if took is None else 0.5
    assert limit <= max(left * part, 2 * known)
    assert limit >= min(2 * known, left), "what the solution takes twice is always allowed, as long as the phase lasts"
    assert limit >= min(max(10 * known, share, SHORTEST_LIMIT), left * part)
    if took is not None:
        longer = script_limit(left=left, measured=took + 1, even_share=share)
        assert longer >= limit, "a slower solution never means a shorter limit"


LIMITS: dict[str, list[tuple[float, float | None, float, float]]] = {
    "of a minute": [(54, None, 3, 40.5), (36, 4, 18, 18), (6, 4, 18, 6), (3, 4, 18, 3)],
    "of an hour": [(3_240, None, 180, 648)],
    "of a day": [(77_760, None, 4_320, 4_320), (77_760, None, 60, 1_800), (56_000, 5, 2_800, 2_800)],
    "of a day with a slow solution": [(56_000, 600, 2_800, 6_000)],
    "near its end": [(100, 5, 2_800, 50), (3_000, 5, 60, 120), (3_000, 30, 60, 300)],
}
"""By the run: what is left, what was measured, the even share; the limit."""


def test_limits_in_runs() -> None:
    for run, limits in LIMITS.items():
        for left, measured, share, limit in limits:
            assert script_limit(left=left, measured=measured, even_share=share) == limit, run
    budget, _ = ledger(time_limit_seconds=1000)
    assert budget.even_share(4) == 0, "nothing between phases"
    budget.open_phase("phase1")
    assert [budget.even_share(1), budget.even_share(5)] == pytest.approx([50, 20]), "half of the phase at most"
    config = PipelineConfig(time_limit_seconds=1200, outer_loop_steps=4)
    assert ablation_limit(config, left=1000.0, measured=1.0) == 150.0, "a study of a quick solution has half of one"
    size = {"num_retrieved_models": 4, "outer_loop_steps": 2, "inner_loop_steps": 3, "ensemble_rounds": 5}
    crowded = PipelineConfig(**size, num_parallel_solutions=3, max_concurrent_paths=2, max_concurrent_scripts=1)
    phases = {"phase1": (11, 7), "phase2": (44, 32), "phase3": (15, 5), "finalization": (4, 1)}
    assert critical_steps(crowded) == phases and plan_seconds(crowded, 10.0, 100.0) == 740 + 4500
    assert plan_seconds(crowded, 10.0, 100.0, left={"phase3": 0.5, "finalization": 1.0}, views=3) == 825 + 140
    roomy = {**phases, "phase1": (11, 5), "phase2": (22, 8)}
    assert critical_steps(PipelineConfig(**size, num_parallel_solutions=3)) == roomy
    alone = {"phase1": (11, 7), "phase2": (22, 8), "finalization": (4, 1)}
    assert critical_steps(PipelineConfig(**size, num_parallel_solutions=1)) == alone


@given(st.integers(10, 100_000), st.lists(st.tuples(TOOK, st.floats(0, 3)), min_size=3, max_size=3), st.integers(1, 20))
def test_limits_leave_finalization_a_share(total: int, phases: list[tuple[float | None, float]], scripts: int) -> None:
    budget, clock = ledger(time_limit_seconds=total)
    for phase, (measured, pause) in zip(PHASES, phases, strict=False):
        if budget.spare_seconds <= 0:
            break
        budget.open_phase(phase.name)
        for _ in range(scripts):
            left = budget.deadline - budget.elapsed()
            if left <= 1e-9:
                break
            clock.now += script_limit(left=left, measured=measured, even_share=budget.even_share(scripts))
            clock.now += min(pause, max((budget.deadline - budget.elapsed()), 0))
    assert total - budget.elapsed() >= 0.1 * total - 1e-6
    assert budget.open_phase("finalization") == pytest.approx(total - budget.elapsed())


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
def test_at_the_money_limit_no_call_is_opened_and_whoever_has_work_under_way_hears_of_it() -> None:
    budget, _ = ledger(max_budget_usd=1.0)
    heard: list[str] = []
    with budget.when_spent(lambda: heard.append("a")), budget.when_spent(lambda: heard.append("b")):
        budget.charge(0.99, "phase1")
        budget.after_call()
        assert heard == []
        budget.settle(budget.open_call(), 0.02, "phase1")
        budget.after_call()
    budget.after_call()  # nobody listens any more
    assert heard == ["a", "b"]
    with pytest.raises(BudgetExceeded, match=r"money spent: 1\.01 of 1"):
        budget.open_call()


@pytest.mark.req("REQ-OR-029")
@given(st.lists(st.tuples(st.sampled_from(["open", "settle", "cancel", "phase"]), st.floats(0, 1))), st.floats(0, 0.5))
def test_the_caps_of_calls_never_add_up_to_more_than_is_left(steps: list[tuple[str, float]], overshoot: float) -> None:
    """Settled at any part of their caps, or beyond by `overshoot`: a client looks at its cap after each reply only."""
    budget, _ = ledger(max_budget_usd=10.0)
    phases, beyond = [phase.name for phase in PHASES[:3]], 0.0
    under_way: list[Call] = []
    for step, part in steps:
        if step == "open" and not budget.money_is_gone:
            under_way.append(budget.open_call(alone=part < 0.2))
        elif step == "phase" and phases:
            budget.open_phase(phases.pop(0))
        elif under_way:
            call = under_way.pop(int(part * (len(under_way) - 1)))
            assert call.cap_usd is not None
            if step == "cancel":
                budget.give_up(call)
            beyond += overshoot if part > 0.5 else 0.0
            budget.settle(call, call.cap_usd * part + (overshoot if part > 0.5 else 0.0), "phase1")
        caps = sum(call.cap_usd or 0.0 for call in under_way)
        assert budget.spent.usd + caps <= 10.0 + beyond + 1e-9
        assert budget.free_usd <= max(10.0 - budget.spent.usd - caps, 0.0) + 1e-9


@in_its_own_time
async def test_a_call_waits_for_the_money_that_others_hold_until_they_give_it_back_or_were_given_up_long_ago() -> None:
    budget, _ = ledger(phase="phase2", max_budget_usd=4.0, num_parallel_solutions=2)
    budget.charge(1.0, "phase1")
    first, waiting = budget.open_call(), asyncio.create_task(budget.wait_for_money())
    await asyncio.sleep(1000)
    assert (first.cap_usd, budget.free_usd, waiting.done()) == (2.0, 1.0, False), "no more is free than a call costs"
    budget.settle(first, 0.5, "phase2")
    await asyncio.wait_for(waiting, 1)
    assert budget.open_call().cap_usd == 1.5
    budget.charge(2.5, "phase2")
    await asyncio.wait_for(budget.wait_for_money(), 1)  # nobody can give back what is gone
    clock = asyncio.get_running_loop().time
    budget = Budget(PipelineConfig(max_budget_usd=1.0, num_parallel_solutions=2), clock=clock)
    budget.open_phase("phase2")
    for _ in range(5):
        budget.charge(0.1, "phase1")
    old, new = budget.open_call(), budget.open_call()
    budget.give_up(old)
    given_up = clock()
    await asyncio.sleep(LATE_SECONDS - 0.5)
    budget.give_up(new)
    assert budget.free_usd == 0.0
    await asyncio.wait_for(budget.wait_for_money(), 100)
    assert clock() - given_up == pytest.approx(LATE_SECONDS, abs=0.01)
    assert budget.free_usd == pytest.approx(old.cap_usd) == pytest.approx(0.25)
    budget.settle(old, 0.05, "phase2")  # its cost became known after all
    assert budget.spent.usd == pytest.approx(0.55)


START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def call(after: float, seconds: float = 0.0, cost: float = 0.0, step: str = "s") -> AgentFinished:
    texts = {"step": step, "digest": str(after), "prompt": "", "text": ""}
    return AgentFinished(at=at(after), agent=AgentType.init, seconds=seconds, cost_usd=cost, **texts)


def begun(task: TaskDescription) -> RunStarted:
    return RunStarted(at=START, run_id="r", task=task, config=PipelineConfig(), model="m")


def test_time_counts_by_phase_and_path_and_neither_a_jump_of_the_clock_nor_what_lies_between_processes(
    task: TaskDescription,
) -> None:
    """Kept is what has been spent after each event: its second, its step, and how long it took by its own word."""
    path, texts = "phase2/path-", {"digest": "d", "script": "x"}
    steps = [(0, "phase1"), (10, "phase1/candidate-0/init"), (20, f"{path}0/t-0/k-0/coder"), (20, f"{path}1")]
    steps += [(25, f"{path}1"), (26, f"{path}0/t-0"), (24, f"{path}1"), (30, f"{path}1")]
    steps += [(31, "probes/a"), (631, "phase3")]
    back = [(2400, "phase3"), (3001, "phase3"), (3003, "phase3"), (2402, "phase3"), (2412, "phase3")]
    events: list[AnyEvent] = [call(-5, cost=1.0), begun(task), *(call(after, step=step) for after, step in steps)]
    events += [call(1232, step="phase3"), call(2000, 300, step="phase3"), call(3000, 300, step="phase3")]
    events += [*(call(after, step=step) for after, step in back), Notice(at=at(2413), step="phase3", message="")]
    events += [script_finished(seconds=500, at=at(3500), step="phase3", **texts), call(90_000, 60, 0.5, "phase3")]
    cause: dict[str, Any] = {"agent": AgentType.init, "reason": "timeout", "message": "", "cost_usd": 0.25}
    resumed = RunResumed(at=at(95_000), spent_cost_usd=0, spent_seconds=0)
    fork = call(-100, cost=1.0)  # copied from the run it was forked from
    events += [fork, resumed, AgentFailed(at=at(95_030), step="phase3", digest="f", **cause)]
    spent, lines = Spent(), list[str]()
    for event in [*events, events[-1]]:
        spent.hear(event)
        after, seconds = (event.at - START).total_seconds(), getattr(event, "seconds", "")
        lines.append(f"{after:g} {event.step} {seconds}: {dict(spent.by_stage)}, {spent.usd:g} USD")
    as_kept("pipeline/spent.txt", "\n".join(lines))
    assert (spent_by(events).seconds, spent_by(events).usd) == (spent.seconds, spent.usd)
    budget, clock = ledger(spent_seconds=77, time_limit_seconds=100)
    clock.now += 10
    assert budget.elapsed() == pytest.approx(87)


def test_every_kind_of_token_has_the_price_that_the_cli_was_seen_to_charge() -> None:
    longer = {"cache_creation_input_tokens": 10**6, "cache_creation": {"ephemeral_1h_input_tokens": 10**6}}
    usages: list[tuple[dict[str, Any], float]] = [
        ({"input_tokens": 1_000_000, "output_tokens": 100_000}, 3 + 1.5), ({"cache_read_input_tokens": 1_000_000}, 0.3),
        ({"cache_creation_input_tokens": 1_000_000}, 3.75), (longer, 6.0),
        ({"server_tool_use": {"web_search_requests": 3}, "input_tokens": None}, 0.03),
    ]  # fmt: skip
    for usage, usd in usages:
        assert usage_cost(usage, Price(3, 15)) == pytest.approx(usd, rel=1e-9)


def test_prices_of_a_file_are_two_numbers_for_each_name_or_refused(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("small: [0, 2.5]\nlarge: [3, 0]\n", encoding="utf-8")
    assert read_prices(prices) == {"small": Price(0.0, 2.5), "large": Price(3.0, 0.0)}
    for wrong in ("3", "[1, -2]", "[1, true]", "[.inf, 1]", "[1]", "{1: 2, 3: 4}", "'12'"):
        prices.write_text(f"m: {wrong}", encoding="utf-8")
        with pytest.raises(ConfigError) as refused:
            read_prices(prices)
        assert str(refused.value) == f"{prices}: m: expected [input, output], in US dollars per million tokens"
    assert [price_of(name) for name in ("offline", "Claude-Opus-4-6", "mystery")] == [Price(0, 0), Price(5, 25), None]
