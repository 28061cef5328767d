"""The portrait of answers: what is confused, how far off, how sure, counted by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mle_star.data.layout import find_layout
from mle_star.data.metrics import known_metric
from mle_star.holdout.answers import Answers
from mle_star.holdout.portrait import MOST_CLASSES, OTHER, Portrait, portrait
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data


def scorer_of(folder: Path, metric: str, targets: list[str]) -> Scorer:
    """A scorer of a task whose training rows have these targets."""
    dice = random.Random(1)
    rows = [f"{number},{dice.random():.3f}" for number in range(len(targets))]
    train = "".join(f"{row},{target}\n" for row, target in zip(rows, targets, strict=True))
    (folder / "train.csv").write_text("id,x,y\n" + train)
    (folder / "test.csv").write_text("id,x\n" + "".join(f"{9000 + n},0.{n}\n" for n in range(10, 60)))
    (folder / "sample_submission.csv").write_text(
        "id,y\n" + "".join(f"{9000 + n},{targets[0]}\n" for n in range(10, 60))
    )
    return Scorer(Data.read(find_layout(folder, ""), folder), known_metric(metric))


def examined(scorer: Scorer, said: list[str]) -> Portrait | None:
    return portrait(scorer, Answers({row: (one,) for row, one in enumerate(said)}, ()), range(len(said)))


def test_labels_are_counted_by_truth_and_answer(tmp_path: Path) -> None:
    truth = ["cat", "dog", "owl"] * 40
    said = [*truth[:110], *["cat"] * 10]
    found = examined(scorer_of(tmp_path, "accuracy", truth), said)
    assert found is not None
    assert found.classes == ["cat", "dog", "owl"]
    wrong = sum(one != "cat" for one in truth[110:])
    assert sum(found.confusion[i][i] for i in range(3)) == 120 - wrong
    assert [sum(row) for row in found.confusion] == [40, 40, 40]
    assert found.confusion[1][0] + found.confusion[2][0] == wrong
    assert not found.calibration
    assert not found.points


def test_chances_are_confused_at_a_half_and_calibrated_by_tenths(tmp_path: Path) -> None:
    truth = [str(int(number % 4 == 0)) for number in range(200)]  # a quarter is 1
    found = examined(scorer_of(tmp_path, "log_loss", truth), ["0.25"] * 160 + ["0.75"] * 40)
    assert found is not None
    assert found.confusion == [[120, 30], [40, 10]]
    low, high = found.calibration
    assert low == pytest.approx((0.25, 0.25, 160))
    assert high == pytest.approx((0.75, 0.25, 40))


def test_answers_that_only_rank_have_no_portrait(tmp_path: Path) -> None:
    truth = [str(number % 2) for number in range(200)]
    assert examined(scorer_of(tmp_path, "roc_auc", truth), ["17.5"] * 200) is None


def test_numbers_are_shown_from_the_smallest_to_the_largest(tmp_path: Path) -> None:
    truth = [f"{number * 1.5}" for number in range(1000)]
    found = examined(scorer_of(tmp_path, "rmse", truth), [f"{float(one) + 1}" for one in truth])
    assert found is not None
    assert (found.rows, found.points[0], found.points[-1]) == (1000, (0.0, 1.0), (1498.5, 1499.5))
    assert len(found.points) == 300


def test_rare_classes_are_counted_together(tmp_path: Path) -> None:
    truth = [f"class{number % 20:02}" for number in range(600)]
    found = examined(scorer_of(tmp_path, "accuracy", truth), truth)
    assert found is not None
    assert len(found.classes) == MOST_CLASSES
    assert found.classes[-1] == OTHER
    assert found.confusion[-1][-1] == 600 - 30 * (MOST_CLASSES - 1)
