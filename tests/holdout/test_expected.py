"""The expected score of a run: from rows that the search never used, with an interval that holds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pandas
import pytest

from mle_star.data.layout import find_layout
from mle_star.data.metrics import known_metric
from mle_star.holdout.answers import Answers
from mle_star.holdout.holdout import HoldOut
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data, Truth
from mle_star.models import PipelineConfig
from mle_star.search.shortlist import BLEND, Field
from tests.method.conftest import make_task


def write_rows(folder: Path, count: int, test: int, groups: int = 0) -> Path:
    """Coins: no feature says anything, so that scripts differ by chance only."""
    die = random.Random(5)
    rows: list[dict[str, object]] = [{"id": i, "x": die.random(), "y": die.randint(0, 1)} for i in range(count + test)]
    if groups:
        for i, row in enumerate(rows):
            row["who"] = f"w{i % groups}" if i < count else f"t{i % 7}"
    return write_frame(folder, pandas.DataFrame(rows), count)


def write_frame(folder: Path, frame: pandas.DataFrame, known: int) -> Path:
    """The first rows are those to learn from."""
    folder.mkdir(parents=True)
    frame[:known].to_csv(folder / "train.csv", index=False)
    frame[known:].drop(columns="y").to_csv(folder / "test.csv", index=False)
    frame[known:][["id"]].assign(y=0).to_csv(folder / "sample_submission.csv", index=False)
    return folder


def holdout_on(folder: Path, tmp_path: Path) -> HoldOut:
    return HoldOut.prepare(make_task(folder, description="Predict `y`."), PipelineConfig(), tmp_path / "run")


def scorer_on(folder: Path, metric: str = "accuracy") -> Scorer:
    return Scorer(Data.read(find_layout(folder, "Predict `y`."), folder), known_metric(metric))


def answers_of(truth: Truth, rows: Iterable[int], is_right: Callable[[int], bool]) -> dict[int, tuple[str, ...]]:
    """The truth of these coins, or the other side."""
    return {row: (truth[row][0] if is_right(row) else str(1 - int(truth[row][0])),) for row in rows}


@pytest.fixture(scope="module")
def holdout(tmp_path_factory: pytest.TempPathFactory) -> HoldOut:
    """One for all that only ask about answers."""
    place = tmp_path_factory.mktemp("coins")
    return holdout_on(write_rows(place / "data", 300, 100), place)


def guesses(holdout: HoldOut, seed: int, skill: float = 0.0, rows: list[int] | None = None) -> Answers:
    """Right by chance, and a share of the time by skill."""
    dice, truth = random.Random(f"guess {seed}"), holdout.scorer.data.truth
    answers = dict[int, tuple[str, ...]]()
    for row in holdout.hidden_rows:
        answer = truth[row][0] if dice.random() < skill else str(dice.randint(0, 1))
        if rows is None or row in set(rows):
            answers[row] = (answer,)
    return Answers(answers, ())


def test_the_best_of_many_lucky_scripts_is_expected_to_be_worth_no_more_than_it_is(holdout: HoldOut) -> None:
    boasts, measures, expected = [], [], []
    for repeat in range(10):
        predictions = [guesses(holdout, 100 * repeat + i) for i in range(20)]
        ranked = sorted(predictions, key=lambda answers: -holdout.figure(answers, holdout.search_rows))[:5]
        field = Field(holdout, {f"path {i}": answers for i, answers in enumerate(ranked)}, predictions[0])
        chosen = field.choose(holdout.select_rows)
        boasts.append(holdout.figure(field.answers[chosen], holdout.search_rows))
        measures.append(holdout.measure(field.answers[chosen], holdout.select_rows))
        expected.append(field.expected(chosen, measures[-1]).score)
    assert sum(boasts) / 10 > 0.54, "the search's own score is that of the luckiest"
    assert sum(m.score for m in measures) / 10 > 0.53, "and so is that of the luckiest shortlisted solution"
    assert sum(expected) / 10 < 0.515, "the choice among the shortlist adds nothing to the expected score"


def test_an_expected_score_comes_with_the_noise_of_the_test_and_a_measure_without(tmp_path: Path) -> None:
    holdout = holdout_on(write_rows(tmp_path / "data", 300, 25), tmp_path)
    answers = guesses(holdout, 1)
    measure = holdout.measure(answers, holdout.select_rows)
    ahead = holdout.measure(answers, holdout.select_rows, ahead=True)
    width = (measure.high or 0) - (measure.low or 0)
    odds = [math.log((m.low or 0) / (1 - (m.low or 0))) for m in (measure, ahead)]
    middle = math.log(measure.score / (1 - measure.score))
    noise = (1 + len(holdout.select_rows) / 25) ** 0.5
    assert (odds[1] - middle) / (odds[0] - middle) == pytest.approx(noise, rel=0.01)
    best = (1 + math.exp(odds[1] - 2 * middle)) ** -1  # as far to the other side, before more rows are learned from
    assert 1 - (ahead.high or 0) == pytest.approx((1 - best) * 0.8**0.5, rel=0.01)
    assert width == pytest.approx(2 * 1.98 * 0.5 / len(holdout.select_rows) ** 0.5, rel=0.15)


def test_rows_of_one_group_are_one_observation(tmp_path: Path) -> None:
    scorer = scorer_on(write_rows(tmp_path / "data", 600, 70, groups=12))
    assert scorer.data.rule.kind == "groups" and scorer.data.test_units == 7
    # right for whole groups, wrong for others: as uncertain as twelve throws of a coin
    answers = answers_of(scorer.data.truth, range(600), lambda row: row % 12 < 6)
    _, low, high = scorer.grade(answers, range(600))
    assert high - low > 0.5


@dataclass(frozen=True)
class CountingScorer(Scorer):
    """A scorer that notes how many rows it reads each time."""

    reads: list[int] = field(default_factory=list)

    def arrays(self, truth: list[list[str]], answers: list[tuple[str, ...]]) -> Any:
        """As the scorer does."""
        self.reads.append(len(answers))
        return super().arrays(truth, answers)


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc", "log_loss", "rmse", "f1"])
def test_answers_read_once_are_worth_the_same_on_every_choice_of_rows(tmp_path: Path, metric: str) -> None:
    dice, plainly = random.Random(3), scorer_on(write_rows(tmp_path / "data", 300, 50), metric)
    scorer, places = CountingScorer(plainly.data, plainly.metric), dice.sample(range(300), 200)
    # as a script writes them, in any order, some rows without an answer
    chance = metric in ("roc_auc", "log_loss", "rmse")
    predictions: list[dict[int, tuple[str, ...]]] = [
        {row: (str(round(dice.random(), 2) if chance else dice.randint(0, 1)),) for row in places} for _ in "ab"
    ]
    choices = [dice.sample(places, size) for size in (30, 120, 200)]
    plain = [[scorer.score(answers, rows) for answers in predictions] for rows in choices]
    scorer.reads.clear()
    with scorer.comparing():
        assert [[scorer.score(answers, rows) for answers in predictions] for rows in choices] == plain
        assert scorer.reads == [200, 200], "once for each"
        assert scorer.grade(predictions[0], choices[1])[0] == plain[1][0]
    assert scorer.score(predictions[0], choices[0]) == plain[0][0] and len(scorer.reads) == 3, "nothing is held now"


def test_days_that_follow_each_other_are_no_separate_observations(tmp_path: Path) -> None:
    start, dice, known = date(2023, 1, 1), random.Random(5), 5 * 400
    days = [start + timedelta(days=i // 5) for i in range(5 * 480)]
    frame = pandas.DataFrame({"id": range(len(days)), "day": [f"{d:%d.%m.%Y}" for d in days]})
    frame["y"] = [dice.randint(0, 1) for _ in days]
    scorer, rows = scorer_on(write_frame(tmp_path / "data", frame, known)), range(known - 400, known)
    assert scorer.data.rule.kind == "time" and scorer.data.test_units == 80

    def width(run: int) -> float:
        """Right on so many days in a row, then wrong on as many."""
        _, low, high = scorer.grade(answers_of(scorer.data.truth, rows, lambda row: bool(row // 5 // run % 2)), rows)
        return high - low

    assert width(run=20) > 0.6, "twenty days in a row count as one, whatever the spelling of dates sorts like"
    assert width(run=1) < 0.15, "days that differ each for itself even each other out"


def test_a_score_on_fewer_views_is_set_against_one_on_all(holdout: HoldOut) -> None:
    easy = set(holdout.views[0].hidden)
    answers = answers_of(holdout.scorer.data.truth, holdout.hidden_rows, lambda row: row in easy or row % 2 == 0)
    whole, part = Answers(answers, ()), Answers({row: answers[row] for row in easy}, ())
    assert holdout.measure(part).score == 1.0, "on the easy rows alone"
    measured = holdout.measure(part, reference=whole)
    assert measured.score == pytest.approx(holdout.measure(whole).score)


def test_a_blend_must_win_where_its_weights_were_not_found(holdout: HoldOut) -> None:
    truth, search = holdout.scorer.data.truth, set(holdout.search_rows)
    learnt = answers_of(truth, holdout.hidden_rows, lambda row: row in search)
    field = Field(holdout, {"path 1": guesses(holdout, 3, 0.5), BLEND: Answers(learnt, ())}, None)
    assert field.choose(holdout.select_rows) == "path 1"
    field.answers[BLEND] = Answers(answers_of(truth, holdout.hidden_rows, lambda row: True), ())
    assert field.choose(holdout.select_rows) == BLEND


def test_of_equal_scripts_that_is_picked_of_which_more_rows_say_so(holdout: HoldOut) -> None:
    right = answers_of(holdout.scorer.data.truth, holdout.hidden_rows, lambda row: True)
    some = Answers({row: right[row] for row in holdout.split.views[0]}, ())
    field = Field(holdout, {"on one view": some, "on all": Answers(right, ()), BLEND: Answers(right, ())}, None)
    assert field.choose(holdout.select_rows) == "on all", "and one script rather than a blend that is no better"


def test_answers_to_fewer_rows_are_picked_only_where_they_are_surely_better(holdout: HoldOut) -> None:
    """Luck on one view is no reason; a lead that every draw of the rows shows is one."""
    truth, view = holdout.scorer.data.truth, holdout.split.views[0]

    def says(wrong_every: int, rows: Sequence[int]) -> Answers:
        return Answers(answers_of(truth, rows, lambda row: bool(rows.index(row) % wrong_every)), ())

    whole, weak = says(6, holdout.hidden_rows), says(2, holdout.hidden_rows)
    lucky = Answers({row: whole.hidden[row] for row in view}, ())
    wrong = next(row for row in view if whole.hidden[row][0] != truth[row][0])
    lucky.hidden[wrong] = (truth[wrong][0],)  # one row more is right
    assert Field(holdout, {"lucky": lucky, "on all": whole}, whole).choose(holdout.select_rows) == "on all"
    good = says(20, view)
    field = Field(holdout, {"weak": weak, "on one view": good}, weak)
    assert field.choose(holdout.select_rows) == "on one view"
    measure = field.measures()["on one view"]
    assert measure.estimated and measure.rows == len([row for row in holdout.select_rows if row in good.hidden])
    assert 0.8 < measure.score < 1.0, "by the share that is wrong, not by the difference"
