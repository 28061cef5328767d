"""Intervals of 95 % hold what they say, on invented data whose truth is known."""

from __future__ import annotations

import math

import pytest

from mle_star.data.metrics import known_metric
from mle_star.evaluation.intervals import interval, widened

from .coverage import World, coverage


@pytest.mark.parametrize(
    ("world", "count", "finalists"),
    [
        (World("roc_auc", rare=True), 40, 1), (World("f1", rare=True), 100, 1), (World("accuracy", easy=True), 40, 1),
        (World("log_loss", rare=True), 40, 1), (World("rmse"), 100, 6), (World("quadratic_weighted_kappa"), 40, 6),
    ],
)  # fmt: skip
def test_nineteen_of_twenty_promises_are_kept_however_few_rows_there_are(
    world: World, count: int, finalists: int
) -> None:
    assert coverage(world, count, finalists=finalists, asked=400 if finalists > 1 else 0, repeats=100) >= 0.92


def test_more_rows_make_a_narrow_interval() -> None:
    metric = known_metric("accuracy")
    figures = [0.9 + 0.005 * (-1) ** i for i in range(200)]
    low, high = interval(metric, 0.9, figures, telling=4000, units=4000)
    assert high - low == pytest.approx(2 * 1.97 * 0.005, rel=0.03)


@pytest.mark.parametrize(("score", "side"), [(1.0, "low"), (0.0, "high")])
def test_no_score_on_a_few_rows_is_beyond_doubt(score: float, side: str) -> None:
    low, high = interval(known_metric("accuracy"), score, [score] * 200, telling=40, units=40)
    assert (low, high)[side == "low"] == score and high - low > 0.05


@pytest.mark.parametrize("name", ["rmse", "r2", "accuracy", "pearson"])
def test_an_interval_lies_where_the_metric_can_be_and_reaches_further_where_there_is_more_room(name: str) -> None:
    metric = known_metric(name)
    figures = [0.9 + 0.08 * (-1) ** i for i in range(200)]
    low, high = interval(metric, 0.9, figures, telling=30, units=30)
    assert metric.low <= low < 0.9 < high <= metric.high
    assert (high - 0.9 > 0.9 - low) == math.isinf(metric.high)


def test_too_few_rows_say_nothing() -> None:
    assert interval(known_metric("accuracy"), 0.9, [0.9], telling=1, units=1) == (0.0, 1.0)


def test_rows_of_few_groups_are_few_observations_but_no_coins() -> None:
    figures = [0.9 + 0.01 * (-1) ** i for i in range(200)]
    alone, grouped = (
        interval(known_metric("accuracy"), 0.9, figures, telling=4000, units=units) for units in (4000, 8)
    )
    assert 1.15 < (grouped[1] - grouped[0]) / (alone[1] - alone[0]) < 1.4, (
        "by Student's t for eight, not for eight rows"
    )


def test_a_score_that_was_moved_far_is_less_sure() -> None:
    assert widened(0.5, 0.6, 0.8, 0.0) == pytest.approx((0.5, 0.8))
    assert widened(0.5, 0.6, 0.8, -0.1) == pytest.approx((0.6 - math.hypot(0.1, 0.2), 0.6 + math.hypot(0.2, 0.2)))
