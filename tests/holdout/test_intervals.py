"""Intervals of 95 % hold what they say, on invented data whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mle_star.data.metrics import known_metric
from mle_star.holdout.intervals import after_more_rows, drawn_figures, interval, shifted, telling_rows

from .coverage import World, coverage


@pytest.mark.parametrize(
    ("world", "count", "shortlist"),
    [
        (World("roc_auc", rare=True), 40, 1), (World("f1", rare=True), 100, 1), (World("accuracy", easy=True), 40, 1),
        (World("log_loss", rare=True), 40, 1), (World("rmse"), 100, 6), (World("quadratic_weighted_kappa"), 40, 6),
    ],
)  # fmt: skip
def test_nineteen_of_twenty_intervals_hold_the_truth(world: World, count: int, shortlist: int) -> None:
    assert coverage(world, count, shortlist=shortlist, test=400 if shortlist > 1 else 0, repeats=100) >= 0.92


def around(middle: float, spread: float, draws: int = 200) -> list[float]:
    return [middle + spread * (-1) ** i for i in range(draws)]


@pytest.mark.parametrize(
    ("name", "score", "figures", "rows", "ends"),
    [
        ("accuracy", 0.9, around(0.9, 0.005), 4000, (0.8897, 0.9094)),  # many rows make it narrow
        ("accuracy", 1.0, [1.0] * 200, 40, (1 - 0.0644, 1.0)),  # half a row and twenty throws of a coin
        ("accuracy", 0.0, [0.0] * 200, 40, (0.0, 0.0644)),
        *((name, 0.1, [0.1] * 200, 40, (0.1, 0.1)) for name in ("brier_score", "log_loss", "pearson", "rmse")),  # none
        ("accuracy", 0.5, around(0.5, 0.2), 40, (0.1612, 0.8388)),  # a coin takes nothing from what the rows say
        ("r2", 0.9, around(0.9, 0.01), 1000, (0.8782, 0.9179)),  # on the scale of the distance to the only end
        ("accuracy", 0.9, [0.9], 1, (0.0, 1.0)),  # too few rows say nothing
    ],
)
def test_ends_of_intervals(name: str, score: float, figures: list[float], rows: int, ends: tuple[float, float]) -> None:
    assert interval(known_metric(name), score, figures, telling=rows, units=rows) == pytest.approx(ends, abs=4e-4)


@pytest.mark.parametrize(
    ("telling", "units", "draws", "beside", "times"),
    [
        (1000, 1000, 200, 0.0, 1.975), (1000, 1000, 10, 0.0, 2.26), (1000, 1000, 200, 3.0, 2 * 1.975),
        (4, 4, 200, 0.0, 3.56), (4, 100, 200, 0.0, 3.56), (100, 4, 200, 0.0, 3.56),
    ],
)  # fmt: skip
def test_few_rows_or_draws_or_noise_widen_it(telling: int, units: int, draws: int, beside: float, times: float) -> None:
    low, up = interval(known_metric("rmse"), 1.0, around(1.0, 0.01, draws), telling=telling, units=units, beside=beside)
    assert math.log(up) == pytest.approx(-math.log(low)) == pytest.approx(times * 0.01, rel=0.01)


def test_noise_beyond_all_measure_leaves_an_interval() -> None:
    low, high = interval(known_metric("rmse"), 1.0, around(1.0, 1e6), telling=40, units=40)
    assert 0 <= low < 1e-100 and 1e100 < high < math.inf


@pytest.mark.parametrize(
    ("name", "rare", "telling"),
    [
        ("f1", 10, 20), ("roc_auc", 50, 100), ("f1", 0, 2), ("accuracy", 10, 100), ("error_rate", 0, 100),
        ("rmse", 1, 100),
    ],
)  # fmt: skip
def test_the_rarer_classes_say_how_many_rows_speak(name: str, rare: int, telling: int) -> None:
    assert telling_rows(known_metric(name), np.array([0] * (100 - rare) + [1] * rare)) == telling


@pytest.mark.parametrize("name", ["rmse", "r2", "accuracy", "pearson"])
def test_an_interval_lies_where_the_metric_can_be_and_reaches_further_where_there_is_more_room(name: str) -> None:
    metric = known_metric(name)
    low, high = interval(metric, 0.9, around(0.9, 0.08), telling=30, units=30)
    assert metric.low <= low < 0.9 < high <= metric.high
    assert (high - 0.9 > 0.9 - low) == math.isinf(metric.high)


@pytest.mark.parametrize("name", ["gini", "wape"])
def test_draws_without_a_figure_do_not_count(name: str) -> None:
    """Of three rows that are not zero many draws hold none: there is nothing to divide by."""
    truth, metric = np.array([1.0] * 3 + [0.0] * 57), known_metric(name)
    answers = truth * 0.5 + np.linspace(0.1, 0.4, 60)
    with np.errstate(all="ignore"):
        figures = drawn_figures(metric, truth, answers, None, 0)
    assert len(figures) < 200 and all(map(math.isfinite, figures))
    low, high = interval(metric, metric.compute(truth, answers), figures, telling=60, units=60)
    assert math.isfinite(low) and low < high


def test_draws_without_a_positive_row_find_none() -> None:
    truth, answers = np.array(["1"] * 2 + ["0"] * 58), np.array(["0"] * 60)
    assert drawn_figures(known_metric("f1"), truth, answers, None, 0, [["0", "1"]]) == [0.0] * 200


def test_rows_of_few_groups_are_few_observations_but_no_coins() -> None:
    each, grouped = (
        interval(known_metric("accuracy"), 0.9, around(0.9, 0.01), telling=4000, units=units) for units in (4000, 8)
    )
    assert 1.15 < (grouped[1] - grouped[0]) / (each[1] - each[0]) < 1.4, "by Student's t for eight, not for eight rows"


def test_a_score_that_was_moved_far_is_less_sure() -> None:
    metric = known_metric("accuracy")
    assert shifted(metric, 0.6, 0.5, 0.8, 0.0) == pytest.approx((0.6, 0.5, 0.8))
    ends = 0.5 - math.hypot(0.1, 0.2), 0.5 + math.hypot(0.2, 0.2)
    assert shifted(metric, 0.6, 0.5, 0.8, -0.1) == pytest.approx((0.5, *ends))
    assert shifted(metric, 0.9, 0.8, 0.95, 0.2) == pytest.approx((1.0, 1.1 - math.hypot(0.1, 0.4), 1.0))


def test_what_learns_from_more_rows_may_be_better_than_what_was_scored_but_not_worse() -> None:
    assert after_more_rows(known_metric("rmse"), 2.0, 3.0, 0.64) == pytest.approx((1.6, 3.0))
    assert after_more_rows(known_metric("accuracy"), 0.8, 0.9, 0.64) == pytest.approx((0.8, 0.92))
    assert after_more_rows(known_metric("r2"), 0.5, 0.75, 0.64) == pytest.approx((0.5, 0.8))
    assert after_more_rows(known_metric("rmse"), 2.0, 3.0, 1.0) == (2.0, 3.0)
