"""The ledger: shares of the time, the money limit and its reserve, warnings, and what earlier processes spent."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.basics.phases import PHASES
from mle_star.errors import BudgetExceeded
from mle_star.models import AgentType, PhaseTimeBudget, PipelineConfig, TaskDescription
from mle_star.run.budget import LATE_SECONDS, Budget, Call
from mle_star.run.clock import SHORTEST_LIMIT, ablation_limit, script_limit
from mle_star.run.events import AgentFailed, AgentFinished, AnyEvent, RunResumed, RunStarted
from mle_star.run.folder import spent_by


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def ledger(clock: Clock | None = None, **settings: Any) -> tuple[Budget, Clock]:
    clock = clock or Clock()
    return Budget(PipelineConfig(**settings), clock=clock), clock


@pytest.mark.req("REQ-OR-024")
def test_no_new_work_after_the_time_limit() -> None:
    budget, clock = ledger(time_limit_seconds=60)
    budget.check()
    clock.now += 60.1
    with pytest.raises(BudgetExceeded) as caught:
        budget.check()
    assert (caught.value.limit, caught.value.used, caught.value.allowed) == ("time", 60.1, 60.0)
    budget, clock = ledger(time_limit_seconds=100)
    budget.set_phase_deadline(10)
    clock.now += 11
    with pytest.raises(BudgetExceeded, match="time spent: 11 of 100 s; this part had until 10 s"):
        budget.check()


@pytest.mark.req("REQ-OR-025")
def test_phases_get_their_shares_and_what_one_leaves_over_goes_to_the_rest() -> None:
    budget, clock = ledger(time_limit_seconds=10_000)
    budget.open_phase("phase1")
    winding_down = [budget.finalize_now]
    for seconds in (999, 1):
        clock.now += seconds
        winding_down.append(budget.finalize_now)
    assert winding_down == [False, False, True]  # 10 % are used: the loops of Phase 1 wind down
    assert budget.remaining_seconds() == pytest.approx(8000)  # but finalization's share is all that is kept from it
    assert budget.open_phase("phase2") == pytest.approx(9000 * 0.65 / 0.90)
    assert not budget.finalize_now
    clock.now += 500
    assert budget.open_phase("phase3") == pytest.approx(8500 - 1000), "all but what finalization needs"
    clock.now += 7499
    assert not budget.finalize_now and budget.remaining_seconds() == pytest.approx(1)
    clock.now -= 7499
    assert budget.open_phase("finalization") == pytest.approx(8500)


@pytest.mark.req("REQ-OR-025")
def test_the_shares_can_be_chosen() -> None:
    shares = PhaseTimeBudget(phase1=0.4, phase2=0.3, phase3=0.2, finalization=0.1)
    budget, clock = ledger(time_limit_seconds=1000, phase_time_budget=shares)
    budget.open_phase("phase1")
    clock.now += 399
    assert not budget.finalize_now
    clock.now += 1
    assert budget.open_phase("phase2") == pytest.approx(600 * 0.3 / 0.6)


def test_time_to_run_the_solution_again_is_kept_from_all_phases_before() -> None:
    budget, clock = ledger(time_limit_seconds=1000)
    clock.now += 100
    budget.again_seconds = 90.0  # finalization's share is more
    assert budget.open_phase("phase2") == pytest.approx(900 * 0.65 / 0.9)
    budget.again_seconds = 150.0
    assert budget.open_phase("phase2") == pytest.approx(750 * 0.65 / 0.8)
    assert budget.spare_seconds == pytest.approx(750)
    clock.now += 600
    assert budget.open_phase("phase3") == pytest.approx(150)
    clock.now += 150
    assert budget.open_phase("finalization") == pytest.approx(150)
    budget.again_seconds = 5000.0
    assert budget.spare_seconds == pytest.approx(1000 * 2 / 3 - 850), "a third of the time at most"


@given(st.lists(st.floats(0, 2000), min_size=4, max_size=4), st.integers(1, 100_000))
def test_whatever_the_phases_use_the_shares_never_exceed_the_limit(used: list[float], limit: int) -> None:
    budget, clock = ledger(time_limit_seconds=limit)
    for phase, seconds in zip(PHASES, used, strict=True):
        share = budget.open_phase(phase.name)
        assert 0 <= share <= max(limit - budget.elapsed(), 0) + 1e-6
        assert budget.remaining_seconds() <= limit - budget.elapsed() + 1e-6
        clock.now += seconds


# --- limits of scripts ---------------------------------------------------------------------------------------

LEFT = st.floats(0.001, 100_000)
MEASURED = st.none() | st.floats(0, 50_000)


@given(LEFT, MEASURED, st.floats(0, 100_000), st.none() | st.floats(0.5, 100_000))
def test_a_limit_is_never_nothing_and_never_beyond_the_phase_and_an_explicit_one_wins(
    left: float, measured: float | None, share: float, explicit: float | None
) -> None:
    config = PipelineConfig(script_timeout_seconds=None)
    for limit in (
        script_limit(left=left, measured=measured, even_share=share, explicit=explicit),
        ablation_limit(config, left=left, measured=measured, explicit=explicit),
    ):
        assert 0 < limit <= left
        if explicit is not None:
            assert limit == min(explicit, left)


@given(LEFT, MEASURED, st.floats(0, 100_000))
def test_a_script_leaves_a_part_of_its_phase_unless_the_solution_itself_takes_so_long(
    left: float, measured: float | None, share: float
) -> None:
    limit = script_limit(left=left, measured=measured, even_share=share)
    known, part = measured or 0.0, 0.75 if measured is None else 0.5
    assert limit <= max(left * part, 2 * known)
    assert limit >= min(2 * known, left), "what the solution takes twice is always allowed, as long as the phase lasts"
    assert limit >= min(max(10 * known, share, SHORTEST_LIMIT), left * part)
    if measured is not None:
        longer = script_limit(left=left, measured=measured + 1, even_share=share)
        assert longer >= limit, "a slower solution never means a shorter limit"


@pytest.mark.parametrize(
    ("left", "measured", "share", "limit"),
    [
        (54, None, 3, 40.5), (36, 4, 18, 18), (6, 4, 18, 6), (3, 4, 18, 3),  # --time-limit 60
        (77_760, None, 4_320, 4_320), (56_000, 5, 2_800, 2_800), (56_000, 600, 2_800, 6_000), (100, 5, 2_800, 50),
        (3_000, 5, 60, 120), (3_000, 30, 60, 300),
    ],
)  # fmt: skip
def test_limits_in_a_short_and_in_a_long_run(left: float, measured: float | None, share: float, limit: float) -> None:
    assert script_limit(left=left, measured=measured, even_share=share) == limit


@given(
    st.integers(10, 100_000), st.lists(st.tuples(MEASURED, st.floats(0, 3)), min_size=3, max_size=3), st.integers(1, 20)
)
def test_scripts_that_all_run_into_their_limits_leave_finalization_its_share(
    time_limit: int, phases: list[tuple[float | None, float]], scripts: int
) -> None:
    budget, clock = ledger(time_limit_seconds=time_limit)
    for phase, (measured, pause) in zip(PHASES, phases, strict=False):
        if budget.only_finalization_left:
            break
        budget.open_phase(phase.name)
        for _ in range(scripts):
            left = budget.remaining_seconds()
            if left <= 1e-9:
                break
            clock.now += script_limit(left=left, measured=measured, even_share=budget.even_share(scripts))
            clock.now += min(pause, max(budget.remaining_seconds(), 0))
    assert time_limit - budget.elapsed() >= 0.1 * time_limit - 1e-6
    assert budget.open_phase("finalization") == pytest.approx(time_limit - budget.elapsed())


def test_an_even_share_is_half_of_the_phase_at_most_and_nothing_between_phases() -> None:
    budget, _ = ledger(time_limit_seconds=1000)
    assert budget.even_share(4) == 0
    budget.open_phase("phase1")
    assert [budget.even_share(1), budget.even_share(5)] == pytest.approx([50, 20])


@pytest.mark.req("REQ-OR-034")
@pytest.mark.parametrize(("limit", "threshold"), [(86400, 8640), (1800, 300), (60, 30)])
def test_loops_wind_down_before_the_end(limit: int, threshold: float) -> None:
    budget, clock = ledger(time_limit_seconds=limit)
    clock.now += limit - threshold
    assert not budget.finalize_now
    clock.now += 0.1
    assert budget.finalize_now


@pytest.mark.req("REQ-OR-029")
def test_at_the_money_limit_no_call_is_opened() -> None:
    budget, _ = ledger(max_budget_usd=1.0)
    budget.charge(0.99, phase="phase1")
    budget.settle(budget.open_call(), 0.02, phase="phase1")
    with pytest.raises(BudgetExceeded) as caught:
        budget.open_call()
    assert (caught.value.limit, round(caught.value.used, 2), caught.value.allowed) == ("money", 1.01, 1.0)


def test_calls_side_by_side_share_what_is_left() -> None:
    budget, _ = ledger(max_budget_usd=16.0, num_retrieved_models=4, num_parallel_solutions=2)
    budget.open_phase("phase1")
    assert budget.open_call(alone=True).cap_usd == 16.0
    budget, _ = ledger(max_budget_usd=16.0, num_retrieved_models=4, num_parallel_solutions=2)
    budget.open_phase("phase1")
    calls = [budget.open_call() for _ in range(4)]
    assert [call.cap_usd for call in calls] == [4.0, 4.0, 4.0, 4.0] and budget.free_usd == 0
    for call in calls:
        budget.settle(call, 1.0, phase="phase1")
    budget.open_phase("phase2")
    assert [budget.open_call().cap_usd for _ in range(2)] == [6.0, 6.0]
    assert ledger()[0].open_call().cap_usd is None


def test_near_the_end_a_call_gets_twice_the_usual_cost_rather_than_an_even_share() -> None:
    budget, _ = ledger(max_budget_usd=1.0, num_retrieved_models=4)
    budget.open_phase("phase1")
    for _ in range(6):
        budget.charge(0.1, phase="phase1")
    assert [round(budget.open_call().cap_usd or 0.0, 6) for _ in range(3)] == [0.2, 0.2, 0.0]


@pytest.mark.req("REQ-OR-029")
@given(
    st.lists(st.tuples(st.sampled_from(["open", "settle", "cancel", "phase"]), st.floats(0, 1)), max_size=40),
    st.floats(0, 0.5),
)
def test_the_caps_of_calls_under_way_never_add_up_to_more_than_what_is_left(
    steps: list[tuple[str, float]], overshoot: float
) -> None:
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
            budget.settle(call, call.cap_usd * part + (overshoot if part > 0.5 else 0.0), phase="phase1")
        caps = sum(call.cap_usd or 0.0 for call in under_way)
        assert budget.spent_usd + caps <= 10.0 + beyond + 1e-9
        assert budget.free_usd <= max(10.0 - budget.spent_usd - caps, 0.0) + 1e-9


async def test_a_call_waits_while_others_hold_the_rest_of_the_money_and_goes_on_with_what_they_give_back() -> None:
    budget, _ = ledger(max_budget_usd=1.0, num_parallel_solutions=2)
    budget.open_phase("phase2")
    budget.charge(0.5, phase="phase1")
    first = budget.open_call()
    waiting = asyncio.create_task(budget.wait_for_money())
    await asyncio.sleep(0)
    assert first.cap_usd == 0.5 and not waiting.done()
    budget.settle(first, 0.1, phase="phase2")
    await waiting
    assert budget.open_call().cap_usd == pytest.approx(0.4)


async def test_money_kept_for_a_cancelled_call_that_never_tells_its_cost_is_free_after_a_while() -> None:
    budget, clock = ledger(max_budget_usd=1.0)
    budget.charge(0.5, phase="phase1")
    budget.give_up(budget.open_call())
    clock.now += LATE_SECONDS - 0.01
    assert budget.free_usd == 0.0
    clock.now += 0.01
    await budget.wait_for_money()
    assert budget.free_usd == 0.5


@pytest.mark.req("REQ-OR-029")
def test_each_limit_warns_once_at_80_percent() -> None:
    budget, clock = ledger(max_budget_usd=10.0, time_limit_seconds=100)
    budget.charge(7.99, phase="phase1")
    clock.now += 79
    assert budget.new_warnings() == []
    budget.charge(0.01, phase="phase1")
    assert [tuple(warning) for warning in budget.new_warnings()] == [("money", 8.0, 10.0)]
    clock.now += 1
    assert [warning.limit for warning in budget.new_warnings()] == ["time"]
    budget.charge(1.0, phase="phase1")
    assert budget.new_warnings() == []


def test_without_money_finalization_has_two_calls_of_five_percent_and_free_work_goes_on() -> None:
    budget, _ = ledger(max_budget_usd=10.0)
    budget.charge(10.0, phase="phase2")
    budget.open_finalization()
    assert budget.degraded
    for _ in range(2):
        call = budget.open_call()
        assert call.cap_usd == 0.5
        budget.settle(call, 0.5, phase="finalization")
    budget.check()  # a script may still run
    with pytest.raises(BudgetExceeded):
        budget.open_call()


def test_with_money_finalization_is_whole() -> None:
    budget, _ = ledger(max_budget_usd=10.0)
    budget.charge(9.0, phase="phase2")
    budget.open_finalization()
    assert not budget.degraded
    assert budget.open_call().cap_usd == 1.0


@pytest.mark.parametrize("crashes_there", [True, False])
def test_a_jump_of_the_clock_is_not_time_spent(crashes_there: bool, task: TaskDescription) -> None:
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def said(after: float, seconds: float = 0.0) -> AgentFinished:
        return AgentFinished(
            at=start + timedelta(seconds=after), step="s", digest=str(after), agent=AgentType.init, prompt="", text="",
            seconds=seconds,
        )  # fmt: skip

    events: list[AnyEvent] = [
        RunStarted(at=start, run_id="r", task=task, config=PipelineConfig(), model="m"),
        said(60),
        said(7260, seconds=7190),  # two hours of work, as measured
        said(7320 + 86400, seconds=60),  # on this one the clock was a day ahead
    ]
    if not crashes_there:
        events += [said(7380), said(7400)]
    assert spent_by(events).seconds == pytest.approx(7340, abs=120)


def test_the_time_of_earlier_processes_counts_and_the_time_between_them_does_not(task: TaskDescription) -> None:
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def at(seconds: float) -> datetime:
        return start + timedelta(seconds=seconds)

    def call(seconds: float, cost: float) -> AgentFinished:
        return AgentFinished(
            at=at(seconds), step="s", digest=str(seconds), agent=AgentType.init, prompt="", text="", cost_usd=cost
        )

    failed = AgentFailed(
        at=at(5030), step="s", digest="f", agent=AgentType.init, reason="timeout", message="", cost_usd=0.25
    )
    events: list[AnyEvent] = [
        RunStarted(at=at(0), run_id="r", task=task, config=PipelineConfig(), model="m"),
        call(-100, 1.0),  # copied from the run it was forked from
        call(40, 1.0),
        RunResumed(at=at(5000), spent_cost_usd=0, spent_seconds=0),
        failed,
        RunResumed(at=at(9000), spent_cost_usd=0, spent_seconds=0),
    ]
    spent = spent_by(events)
    assert spent.seconds == pytest.approx(40 + 30) and spent.usd == pytest.approx(2.25)
    assert (spent_by([]).seconds, spent_by([]).usd) == (0, 0)
    clock = Clock()
    budget = Budget(PipelineConfig(time_limit_seconds=100), spent_seconds=77, clock=clock)
    clock.now += 10
    assert budget.elapsed() == pytest.approx(87)
