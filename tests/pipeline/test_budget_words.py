"""The ledger's small print: who paid what, what a limit says, and what ends with a phase."""

from __future__ import annotations

import pytest

from mle_star.basics.phases import PhaseName
from mle_star.errors import BudgetExceeded
from mle_star.models import PipelineConfig
from mle_star.run.budget import LATE_SECONDS
from mle_star.run.clock import ablation_limit
from tests.pipeline.test_budget import ledger


def test_without_a_phase_the_deadline_is_the_runs() -> None:
    budget, _ = ledger(time_limit_seconds=100)
    budget.set_phase_deadline(10)
    assert budget.deadline == 10
    budget.set_phase_deadline(None)
    assert budget.deadline == 100


def test_work_may_begin_until_the_last_moment() -> None:
    budget, clock = ledger(time_limit_seconds=100)
    clock.now += 99.5
    budget.check()
    clock.now += 0.5
    with pytest.raises(BudgetExceeded):
        budget.check()


def test_a_study_of_a_quick_solution_has_half_of_an_even_share_of_the_run() -> None:
    config = PipelineConfig(time_limit_seconds=1200, outer_loop_steps=4)
    assert ablation_limit(config, left=1000.0, measured=1.0) == 150.0


def test_costs_add_up_by_phase_and_by_path() -> None:
    budget, _ = ledger()
    for phase, path, usd in (("phase1", "", 1.0), ("phase2", "path-0", 2.0), ("phase2", "path-0", 3.0)):
        budget.charge(usd, phase=phase, path=path)
    budget.settle(budget.open_call(), 4.0, phase="phase2", path="path-1")
    budget.settle(budget.open_call(), 5.0, phase="phase3")
    assert budget.spent_usd == 15.0
    assert dict(budget.cost_by_phase) == {"phase1": 1.0, "phase2": 9.0, "phase3": 5.0}
    assert dict(budget.cost_by_path) == {"path-0": 5.0, "path-1": 4.0}


def test_a_call_that_cost_nothing_does_not_make_calls_look_cheap() -> None:
    budget, _ = ledger(max_budget_usd=1.0, num_retrieved_models=4)
    budget.open_phase("phase1")
    for usd in (0.3, 0.3, 0.0, 0.0):
        budget.charge(usd, phase="phase1")
    assert budget.open_call().cap_usd == pytest.approx(0.4)  # twice the usual 0.3 is more than what is left


async def test_only_the_money_of_calls_that_were_given_up_long_ago_is_free_again() -> None:
    budget, clock = ledger(max_budget_usd=1.0, num_parallel_solutions=2)
    budget.open_phase("phase2")
    for _ in range(5):
        budget.charge(0.1, phase="phase1")
    old, new = budget.open_call(), budget.open_call()
    budget.give_up(old)
    clock.now += LATE_SECONDS
    budget.give_up(new)
    await budget.wait_for_money()
    assert budget.free_usd == pytest.approx(old.cap_usd) == pytest.approx(0.25)
    budget.settle(old, 0.05, phase="phase2")  # it told after all
    assert budget.spent_usd == pytest.approx(0.55)


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
@pytest.mark.parametrize(
    ("spent", "phase", "refused"), [(9.9, "phase2", False), (10, "phase2", True), (10, "finalization", False)]
)
def test_without_money_only_the_last_phase_runs_scripts(spent: float, phase: PhaseName, refused: bool) -> None:
    budget, _ = ledger(max_budget_usd=10.0)
    budget.open_phase(phase)
    budget.charge(spent, phase="phase2")
    if not refused:
        budget.open_script()
        return
    with pytest.raises(BudgetExceeded, match="money spent: 10 of 10"):
        budget.open_script()


def test_what_was_cut_off_names_the_limit_that_was_reached() -> None:
    budget, clock = ledger(max_budget_usd=10.0, time_limit_seconds=100)
    budget.set_phase_deadline(10.26)
    clock.now += 20.04
    assert (budget.over().limit, budget.over().used, budget.over().allowed) == ("time", 20.0, 10.3)
    budget.charge(10.5, phase="phase2")
    assert (budget.over().limit, budget.over().used, budget.over().allowed) == ("money", 10.5, 10.0)
    budget.open_finalization()
    assert budget.over().limit == "time"  # on the reserve, only time is left to run out


def test_a_warning_says_how_much_is_used_of_how_much() -> None:
    budget, clock = ledger(max_budget_usd=10.0, time_limit_seconds=100)
    budget.charge(8.5, phase="phase1")
    clock.now += 85
    assert [tuple(warning) for warning in budget.new_warnings()] == [("money", 8.5, 10.0), ("time", 85.0, 100.0)]


@pytest.mark.req("REQ-OR-034")
def test_in_a_short_run_loops_go_on_until_only_the_time_of_later_phases_is_left() -> None:
    budget, clock = ledger(time_limit_seconds=300)
    share = budget.open_phase("phase2")
    clock.now += 170  # less than half of the run is left, more than is kept for later
    assert share > 170 and not budget.finalize_now
    clock.now += share - 170
    assert budget.finalize_now


@pytest.mark.req("REQ-OR-024")
def test_at_the_very_deadline_no_work_is_opened() -> None:
    budget, clock = ledger(time_limit_seconds=60)
    clock.now += 60
    with pytest.raises(BudgetExceeded, match="time spent: 60 of 60"):
        budget.check()


@pytest.mark.req("REQ-OR-029", "REQ-OR-030")
def test_whoever_has_work_under_way_is_told_when_the_money_is_gone() -> None:
    budget, _ = ledger(max_budget_usd=1.0)
    told: list[str] = []
    with budget.when_spent(lambda: told.append("a")), budget.when_spent(lambda: told.append("b")):
        budget.after_call()
        assert told == []
        budget.charge(1.0, phase="phase2")
        budget.after_call()
    budget.after_call()  # nobody listens any more
    assert told == ["a", "b"]
