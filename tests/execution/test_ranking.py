"""Order among scored scripts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.execution import is_better_solution, rank_solutions
from mle_star.models import EvaluationResult, MetricDirection, is_improvement
from tests.execution.conftest import script

MAX, MIN = MetricDirection.maximize, MetricDirection.minimize


def result(score: float | None, error: bool = False) -> EvaluationResult:
    return EvaluationResult(
        score=score, stdout="", stderr="", exit_code=int(error), duration_seconds=0.0, is_error=error
    )


@pytest.mark.req("REQ-EX-027")
@pytest.mark.parametrize(("direction", "order"), [(MAX, [0.9, 0.8]), (MIN, [0.8, 0.9])])
def test_scored_before_unscored_before_failed(direction: MetricDirection, order: list[float]) -> None:
    results = [result(None), result(0.99, error=True), result(0.8), result(0.9), result(None, error=True)]
    scripts = [script(f"x = {i}") for i in range(5)]
    ranked = rank_solutions(scripts, results, direction)
    assert [(entry.score, entry.is_error) for _, entry in ranked] == [
        (order[0], False), (order[1], False), (None, False), (0.99, True), (None, True),
    ]  # fmt: skip
    assert all(entry is results[scripts.index(solution)] for solution, entry in ranked)
    assert [one.content for one in scripts] == [f"x = {i}" for i in range(5)]
    with pytest.raises(ValueError, match="5 solutions but 0 results"):
        rank_solutions(scripts, [], direction)


@pytest.mark.req("REQ-EX-022", "REQ-EX-027")
@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(-3, 3).map(float)), st.booleans()), max_size=8),
    st.sampled_from([MAX, MIN]),
)
def test_no_script_stands_behind_one_it_beats_and_ties_keep_their_order(
    scored: list[tuple[float | None, bool]], direction: MetricDirection
) -> None:
    scripts = [script(str(number)) for number in range(len(scored))]
    ranked = rank_solutions(scripts, [result(*entry) for entry in scored], direction)
    good = [(int(one.content), entry.score) for one, entry in ranked if not entry.is_error and entry.score is not None]
    for (first, left), (second, right) in itertools.pairwise(good):
        assert left is not None and right is not None
        assert not is_improvement(right, left, direction)
        assert left != right or first < second


@pytest.mark.req("REQ-EX-023")
@pytest.mark.parametrize(
    ("new", "old", "direction", "better"),
    [
        *((result(new), old, MAX, new > old) for new in (0.8, 0.9) for old in (0.8, 0.9)),
        *((result(new), old, MIN, new < old) for new in (0.8, 0.9) for old in (0.8, 0.9)),
        (result(None), 0.1, MAX, False),
        (result(0.9, error=True), 0.1, MAX, False),
    ],
)
def test_better_is_strict_and_without_error(
    new: EvaluationResult, old: float, direction: MetricDirection, better: bool
) -> None:
    assert is_better_solution(new, old, direction) is better
