"""The expected score of a run, with an interval that holds, and which columns the answers rest on."""

import csv
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mle_star.data.layout import find_layout
from mle_star.data.metrics import known_metric
from mle_star.data.tables import Unsupported
from mle_star.execution.scoring import compared
from mle_star.holdout.answers import Answers, ByRow, keys_of
from mle_star.holdout.explain import permuted_view
from mle_star.holdout.holdout import HoldOut
from mle_star.holdout.intervals import after_more_rows, drawn_figures, interval, shifted, telling_rows
from mle_star.holdout.scorer import Rows, Scorer
from mle_star.holdout.views import Columns, Data
from mle_star.models import Measure, PipelineConfig, is_improvement
from mle_star.search.shortlist import BLEND, Field
from tests.conftest import as_kept, write_split
from tests.method.conftest import make_task

from .coverage import World, coverage


def write_rows(folder: Path, count: int, test: int, groups: int = 0) -> Path:
    """Coins: no feature says anything, so that scripts differ by chance only."""
    die = random.Random(5)
    coins = [(i, die.random(), die.randint(0, 1)) for i in range(count + test)]
    if not groups:
        return write_split(folder, "id,x,y", coins, count)
    rows = [(i, x, f"w{i % groups}" if i < count else f"t{i % 7}", y) for i, x, y in coins]
    return write_split(folder, "id,x,who,y", rows, count)


def holdout_on(folder: Path, tmp_path: Path) -> HoldOut:
    return HoldOut.prepare(make_task(folder, description="Predict `y`."), PipelineConfig(), tmp_path / "run")


def scorer_on(folder: Path, metric: str = "accuracy") -> Scorer:
    return Scorer(Data.read(find_layout(folder, "Predict `y`.")), known_metric(metric))


def answers_of(truth: Columns, rows: Iterable[int], is_right: Callable[[int], bool]) -> ByRow:
    """The truth of these coins, or the other side."""
    return {row: (truth[0][row] if is_right(row) else str(1 - int(truth[0][row])),) for row in rows}


@pytest.fixture(scope="module")
def holdout(tmp_path_factory: pytest.TempPathFactory) -> HoldOut:
    """One for all that only ask about answers."""
    place = tmp_path_factory.mktemp("coins")
    return holdout_on(write_rows(place / "data", 300, 100), place)


def guesses(holdout: HoldOut, seed: int, skill: float = 0.0) -> Answers:
    """Right by chance, and a share of the time by skill."""
    dice, truth = random.Random(f"guess {seed}"), holdout.scorer.data.truth[0]
    guess = {row: truth[row] if dice.random() < skill else str(dice.randint(0, 1)) for row in holdout.hidden_rows}
    return Answers({row: (answer,) for row, answer in guess.items()}, ())


@lru_cache
def five_views(place: Path, metric: str) -> HoldOut:
    """The same for all examples of a test."""
    folder = place / "data"
    task = make_task(folder if folder.exists() else write_rows(folder, 60, 20), description="Predict `y`.")
    named = {"evaluation_metric": metric, "metric_direction": known_metric(metric).direction}
    return HoldOut.prepare(task.model_copy(update=named), PipelineConfig(score_views=5), place / metric)


def scripts_on_views(holdout: HoldOut, place: Path, skills: Sequence[tuple[float, float, int]]) -> list[Any]:
    """Scripts scored in turn, each as skilful on the first view and on the others as told; the first answers to all."""
    metric, truth, scripts = holdout.scorer.metric.name, holdout.scorer.data.truth, list[Any]()
    for number, (first, others, views) in enumerate(skills):
        dice, paths = random.Random(number), list[str]()
        for view in range(views if number else 5):
            lines, keys = ["id,y"], keys_of(holdout.scorer.data, holdout.views[view])
            for key, source in zip(keys, holdout.views[view].order, strict=True):
                label = int(truth[0][-1 - source]) if source < 0 else 0
                answer = label if dice.random() < (others if view else first) else 1 - label
                lines.append(f"{key},{answer if metric == 'accuracy' else 0.1 + 0.8 * answer}")
            paths.append(f"{number}-{view}.csv")
            (place / paths[-1]).write_text("\n".join(lines) + "\n")
        score, result = compared(holdout, place, scripts, paths).score, SimpleNamespace(answers=paths)
        answers = holdout.read(map(place.joinpath, paths), holdout.views)
        scripts.append(SimpleNamespace(script_id=str(number), score=score, result=result, answers=answers))
    return scripts


def test_the_best_of_many_lucky_scripts_is_expected_to_be_worth_no_more_than_it_is(holdout: HoldOut) -> None:
    boasts, measures, expected = [], [], []
    for repeat in range(10):
        predictions = [guesses(holdout, 100 * repeat + i) for i in range(20)]
        ranked = sorted(predictions, key=lambda answers: -holdout.figure(answers, holdout.search_rows))[:5]
        field = Field(holdout, {f"path {i}": answers for i, answers in enumerate(ranked)})
        chosen = field.choose(holdout.select_rows)
        boasts.append(holdout.figure(field.answers[chosen], holdout.search_rows))
        measures.append(holdout.measure(field.answers[chosen], holdout.select_rows))
        expected.append(field.expected(chosen, measures[-1]).score)
    assert sum(boasts) / 10 > 0.54, "the search's own score is that of the luckiest"
    assert sum(m.score for m in measures) / 10 > 0.53, "and so is that of the luckiest shortlisted solution"
    assert sum(expected) / 10 < 0.515, "the choice among the shortlist adds nothing to the expected score"


def test_scripts_that_no_score_has_chosen_tell_how_hard_the_kept_rows_are(holdout: HoldOut) -> None:
    truth, kept = holdout.scorer.data.truth, {*holdout.select_rows}

    def says(seed: int, rows: Sequence[int]) -> Answers:
        """Half of the kept rows are hard for every script, of the others a fifth."""
        dice = random.Random(seed)
        wrong = {row for row in rows if (row % (2 if row in kept else 5) == 0) != (dice.random() < 0.05)}
        return Answers(answers_of(truth, rows, lambda row: row not in wrong), ())

    rows, some = holdout.hidden_rows, [row for row in holdout.hidden_rows if row != holdout.search_rows[0]]
    known: list[tuple[Answers, ...]] = [(), (says(2, rows), says(3, rows)), (says(2, some),)]
    alone, beside, partly = (
        replace(holdout, firsts=firsts).measure(says(1, rows), holdout.select_rows, ahead=True) for firsts in known
    )
    assert partly == alone and alone.score < 0.55 < 0.6 < beside.score < 0.75 and beside.rows == alone.rows == 100
    assert (beside.high or 0) - (beside.low or 0) < (alone.high or 0) - (alone.low or 0)


@pytest.mark.parametrize("test", [25, 0])
def test_an_expected_score_comes_with_the_noise_of_new_rows_and_a_measure_without(tmp_path: Path, test: int) -> None:
    folder = write_rows(tmp_path / "data", 300, test)
    for name in () if test else ("test.csv", "sample_submission.csv"):
        (folder / name).unlink()
    holdout = holdout_on(folder, tmp_path)
    answers, rows = guesses(holdout, 1), holdout.select_rows
    measure, ahead = (holdout.measure(answers, rows, ahead=ahead) for ahead in (False, True))
    width = (measure.high or 0) - (measure.low or 0)
    odds = [math.log((m.low or 0) / (1 - (m.low or 0))) for m in (measure, ahead)]
    middle = math.log(measure.score / (1 - measure.score))
    assert str(ahead).endswith("from 100 rows" if test else "from 100 rows, for as many new rows")
    noise = (1 + len(rows) / (test or len(rows))) ** 0.5
    assert (odds[1] - middle) / (odds[0] - middle) == pytest.approx(noise, rel=0.01)
    best = (1 + math.exp(odds[1] - 2 * middle)) ** -1  # as far to the other side, before more rows are learned from
    more = (1 - ahead.score) * (1 - 0.8**0.5)
    assert (ahead.high or 0) - ahead.score == pytest.approx(math.hypot(best - ahead.score, more), rel=0.01)
    assert width == pytest.approx(2 * 1.98 * 0.5 / len(rows) ** 0.5, rel=0.15)


def test_rows_of_one_group_are_one_observation(tmp_path: Path) -> None:
    scorer = scorer_on(write_rows(tmp_path / "data", 600, 70, groups=12))
    assert scorer.data.rule.kind == "groups" and scorer.data.test_units == 7
    assert Data.read(scorer.data.layout, PipelineConfig(time_column="none")).rule == scorer.data.rule
    # right for whole groups, wrong for others: as uncertain as twelve throws of a coin
    _, low, high = scorer.grade(answers_of(scorer.data.truth, range(600), lambda row: row % 12 < 6), range(600))
    assert high - low > 0.5


@dataclass(frozen=True)
class CountingScorer(Scorer):
    """A scorer that notes how many rows it reads each time."""

    reads: list[int] = field(default_factory=list)

    def arrays(self, truth: Rows, answers: Rows) -> Any:
        """As the scorer does."""
        self.reads.append(len(answers))
        return super().arrays(truth, answers)


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc", "log_loss", "rmse", "f1"])
def test_answers_read_once_are_worth_the_same_on_every_choice_of_rows(tmp_path: Path, metric: str) -> None:
    dice, plainly = random.Random(3), scorer_on(write_rows(tmp_path / "data", 300, 50), metric)
    scorer, places = CountingScorer(plainly.data, plainly.metric), dice.sample(range(300), 200)
    # as a script writes them, in any order, some rows without an answer
    chance = metric in ("roc_auc", "log_loss", "rmse")
    cells = [[str(round(dice.random(), 2) if chance else dice.randint(0, 1)) for _ in places] for _ in "ab"]
    predictions: list[ByRow] = [dict(zip(places, zip(some, strict=True), strict=True)) for some in cells]
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
    days = [(i, f"{start + timedelta(days=i // 5):%d.%m.%Y}", dice.randint(0, 1)) for i in range(5 * 480)]
    scorer, rows = scorer_on(write_split(tmp_path / "data", "id,day,y", days, known)), range(known - 400, known)
    assert scorer.data.rule.kind == "time" and scorer.data.test_units == 80

    def width(run: int, rows: range = rows) -> float:
        """Right on so many days in a row, then wrong on as many."""
        _, low, high = scorer.grade(answers_of(scorer.data.truth, rows, lambda row: bool(row // 5 // run % 2)), rows)
        return high - low

    assert width(run=20) > 0.6, "twenty days in a row count as one, whatever the spelling of dates sorts like"
    assert width(run=1) < 0.15, "days that differ each for itself even each other out"
    assert width(1, rows[-15:]) > 0.15, "three days are no more than stretches"


def test_the_next_stretch_of_a_series_without_a_test_is_as_unsure_as_earlier_ones_differ(tmp_path: Path) -> None:
    days = [(i, date(2020, 1, 1) + timedelta(days=i), 50.0) for i in range(900)]
    write_split(tmp_path / "data", "id,day,y", days, 900)
    for name in ("test.csv", "sample_submission.csv"):
        (tmp_path / "data" / name).unlink()
    rmse = {"evaluation_metric": "rmse", "metric_direction": "minimize"}
    task = make_task(tmp_path / "data", description="Predict `y`.", **rmse)
    holdout = HoldOut.prepare(task, PipelineConfig(time_column="day"), tmp_path / "run", write=0)

    def measured(levels: Sequence[float], dice: Any) -> Measure:
        errors = {row: level * dice.normal() for level, v in zip(levels, holdout.split.views, strict=True) for row in v}
        answers = Answers({row: (f"{50 + error}",) for row, error in errors.items()}, ())
        return holdout.measure(answers, holdout.select_rows, ahead=True)

    kept = 0
    for repeat in range(40):
        dice = np.random.default_rng(repeat)
        *levels, ahead = np.exp(0.3 * dice.normal(size=6))
        measure = measured(levels, dice)
        kept += (measure.low or 0) <= ahead * np.sqrt((dice.normal(size=60) ** 2).mean()) <= (measure.high or 0)
    assert str(measure).endswith("from 150 rows, for the next 60 days")
    assert 36 <= kept < 40, "they would hold 19 of 40 without the noise of the next one"
    turns = measured((1, 3, 1, 3, 1), dice)
    assert (turns.high or 0) > 8, "what is drawn are the stretches themselves, and no pieces that lie across them"


@given(
    skills=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 5)), min_size=2, max_size=7),
    metric=st.sampled_from(["accuracy", "log_loss"]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_to_fewer_views_never_win_by_a_number_that_was_not_measured(
    skills: list[tuple[float, float, int]], metric: str, tmp_path: Path
) -> None:
    """Ahead of another is only what beats it on the rows that both answer; the best answers to all views."""
    holdout = five_views(tmp_path, metric)
    scripts, direction = scripts_on_views(holdout, tmp_path, skills), holdout.scorer.metric.direction
    for place, one in enumerate(scripts):
        views = len(one.result.answers)
        for rival in scripts[:place] if views < 5 else ():
            if views <= len(rival.result.answers):
                change = holdout.compare(one.answers, rival.answers, holdout.search_rows)
                assert change and (change.difference > 0 or is_improvement(rival.score, one.score, direction))
        before = [script.score for script in scripts[:place] if len(script.result.answers) == 5]
        assert views == 5 or not before or any(is_improvement(score, one.score, direction) for score in before)


def test_a_blend_must_win_on_other_rows_and_of_equal_scripts_more_rows_decide(holdout: HoldOut) -> None:
    truth, search = holdout.scorer.data.truth, set(holdout.search_rows)
    learnt = answers_of(truth, holdout.hidden_rows, lambda row: row in search)
    field = Field(holdout, {"path 1": guesses(holdout, 3, 0.5), BLEND: Answers(learnt, ())})
    assert field.choose(holdout.select_rows) == "path 1"
    right = answers_of(truth, holdout.hidden_rows, lambda row: True)
    field.answers[BLEND] = Answers(right, ())
    assert field.choose(holdout.select_rows) == BLEND
    some = Answers({row: right[row] for row in holdout.split.views[0]}, ())
    field = Field(holdout, {"on one view": some, "on all": Answers(right, ()), BLEND: Answers(right, ())})
    assert field.choose(holdout.select_rows) == "on all", "and one script rather than a blend that is no better"


def test_answers_to_fewer_rows_are_picked_only_where_they_are_surely_better(holdout: HoldOut) -> None:
    """Luck on one view is no reason; a lead that every draw of the rows shows is one."""
    truth, view = holdout.scorer.data.truth, holdout.split.views[0]

    def says(wrong_every: int, rows: Sequence[int]) -> Answers:
        return Answers(answers_of(truth, rows, lambda row: bool(rows.index(row) % wrong_every)), ())

    whole, weak = says(6, holdout.hidden_rows), says(2, holdout.hidden_rows)
    lucky = Answers({row: whole.hidden[row] for row in view}, ())
    wrong = next(row for row in view if whole.hidden[row][0] != truth[0][row])
    lucky.hidden[wrong] = (truth[0][wrong],)  # one row more is right
    assert Field(holdout, {"lucky": lucky, "on all": whole}).choose(holdout.select_rows) == "on all"
    good = says(20, view)
    field = Field(holdout, {"weak": weak, "on one view": good})
    assert field.choose(holdout.select_rows) == "on one view"
    measure = holdout.measure(good, holdout.select_rows, ahead=True)
    assert measure.rows == len([row for row in holdout.select_rows if row in good.hidden])
    assert measure.score == holdout.figure(good, holdout.select_rows), "on the rows that it has, and nothing is moved"
    change = field.against("weak", "on one view")
    assert change is not None and change.rows == len(view) and change.difference < -3 * change.error < 0


def write_task(folder: Path, key: str) -> Path:
    """The target is the sum of `strong` and a little of `weak`; `noise` is what it is called."""
    dice, rows = random.Random(2), list[tuple[str, ...]]()
    for number in (*range(400), *range(1000, 1060)):
        strong, weak, noise = dice.random(), dice.random(), dice.random()
        rows.append((f"{key}{number}", *(f"{cell:.4f}" for cell in (strong, weak, noise, strong + 0.2 * weak))))
    return write_split(folder, "id,strong,weak,noise,y", rows, 400)


@pytest.mark.parametrize("key", ["", "row-", "none for training", "and a column for the label"])
def test_a_column_that_answers_lean_on_matters_and_noise_does_not(key: str, tmp_path: Path) -> None:
    nameless, labelled = key == "none for training", key == "and a column for the label"
    folder = write_task(tmp_path / "data", "" if nameless or labelled else key)
    if labelled:  # it is empty, and stays so
        pandas.read_csv(folder / "test.csv").assign(y="").to_csv(folder / "test.csv", index=False)
    if nameless:
        pandas.read_csv(folder / "train.csv").drop(columns="id").to_csv(folder / "train.csv", index=False)
    data = Data.read(find_layout(folder, "Predict `y`."))
    made = permuted_view(Scorer(data, known_metric("rmse")), list(range(0, 400, 4)), tmp_path / "permuted", seed=1)
    assert (made.columns, made.count) == (("strong", "weak", "noise"), 100)
    files = ((tmp_path / "permuted" / name).open(newline="") for name in ("test.csv", "train.csv"))
    rows, known = (list(csv.DictReader(stream)) for stream in files)
    assert (len(rows), len(known)) == (400, 300) and {row.get("y") for row in rows} == {"" if labelled else None}
    assert len({row["id"] for row in (rows if nameless else (*rows, *known))}) == (400 if nameless else 700)
    for block, column in enumerate(made.columns, 1):
        copies = rows[100 * block : 100 * (block + 1)]
        assert sorted(row[column] for row in copies) == sorted(row[column] for row in rows[:100])
        assert [row[column] for row in copies] != [row[column] for row in rows[:100]]
        for other in {*made.columns} - {column}:
            assert [row[other] for row in copies] == [row[other] for row in rows[:100]]
    submission = tmp_path / "submission.csv"
    body = "".join(f"{row['id']},{float(row['strong']) + 0.2 * float(row['weak'])}\n" for row in reversed(rows))
    submission.write_text("id,y\n" + body)
    found = made.importance(submission)
    assert [column for column, _ in found] == ["strong", "weak", "noise"]
    worse = dict(found)
    assert worse["strong"] > 5 * worse["weak"] / 2 > 0 and worse["noise"] == pytest.approx(0.0, abs=1e-9)


def test_copies_have_keys_in_the_type_of_the_file(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "data", "")
    for name in ("train", "test"):
        pandas.read_csv(folder / f"{name}.csv").to_parquet(folder / f"{name}.parquet", index=False)
        (folder / f"{name}.csv").unlink()
    scorer = Scorer(Data.read(find_layout(folder, "")), known_metric("rmse"))
    with pytest.raises(Unsupported, match="too few hidden rows"):
        permuted_view(scorer, range(20), tmp_path / "permuted", seed=1)
    _, made = (permuted_view(scorer, range(0, 400, 4), tmp_path / name, seed=1) for name in ("first", "permuted"))
    first, rows = (pandas.read_parquet(tmp_path / name / "test.parquet") for name in ("first", "permuted"))
    assert rows.equals(first) and rows["id"].dtype == "int64" and not set(rows["id"]) & set(range(1060))
    rows.assign(y=rows["strong"] + 0.2 * rows["weak"])[["id", "y"]].to_csv(tmp_path / "submission.csv", index=False)
    assert [column for column, _ in made.importance(tmp_path / "submission.csv")] == ["strong", "weak", "noise"]
    (folder / "sample_submission.csv").unlink()
    with pytest.raises(Unsupported, match="only where there are a test file and a sample"):
        permuted_view(Scorer(Data.read(find_layout(folder)), scorer.metric), range(99), tmp_path / "alone", seed=1)


@pytest.mark.parametrize(
    ("world", "count", "shortlist"),
    [
        (World("roc_auc", rare=True), 40, 1), (World("f1", rare=True), 100, 1), (World("accuracy", easy=True), 40, 1),
        (World("log_loss", rare=True), 40, 1), (World("rmse"), 100, 20), (World("quadratic_weighted_kappa"), 40, 6),
    ],
)  # fmt: skip
def test_nineteen_of_twenty_intervals_hold_the_truth(world: World, count: int, shortlist: int) -> None:
    test, repeats = 400 if shortlist > 1 else 0, 40 if shortlist == 6 else 100
    assert coverage(world, count, shortlist, test=test, repeats=repeats, search=shortlist > 6)[0] >= 0.92


def around(middle: float, spread: float, draws: int = 200) -> list[float]:
    return [middle + spread * (-1) ** i for i in range(draws)]


ENDS: list[tuple[str, float, list[float], int]] = [
    ("accuracy", 0.9, around(0.9, 0.005), 4000),  # many rows make it narrow
    *(("accuracy", score, [score] * 200, 40) for score in (0.0, 1.0)),  # half a row and twenty throws of a coin
    *((name, 0.1, [0.1] * 200, 40) for name in ("brier_score", "log_loss", "pearson", "rmse")),  # no coins
    ("accuracy", 0.5, around(0.5, 0.2), 40),  # a coin takes nothing from what the rows say
    ("r2", 0.9, around(0.9, 0.01), 1000),  # on the scale of the distance to the only end
    *(("accuracy", 0.9, around(0.9, 0.01, draws), rows) for draws, rows in ((200, 1), (1, 40))),  # too few say nothing
    ("rmse", 2.0, around(2.0, 0.1), 2),  # but two say something
    *((name, 0.9, around(0.9, 0.08), 30) for name in ("rmse", "r2", "accuracy", "pearson")),
    ("rmse", 1.0, around(1.0, 1e6), 40),  # noise beyond all measure leaves one
]
WIDER = ((1000, 200, 0.0), (1000, 10, 0.0), (1000, 200, 3.0), (4, 200, 0.0))
"""Few rows, few draws and noise beside them widen an interval."""
MOVED = (0.6, 0.5, 0.8, 0.0), (0.6, 0.5, 0.8, -0.1), (0.9, 0.8, 0.95, 0.2)
LEARNED = (
    ("rmse", 2.5, 2.2, 3.0, 0.64), ("accuracy", 0.8, 0.7, 0.83, 0.64), ("accuracy", 0.5, 0.1, 1.0, 0.64),
    ("r2", 0.5, 0.4, 0.75, 0.64), ("rmse", 2.5, 2.0, 3.0, 1.0), ("error_rate", 0.2, 0.1, 0.35, 0.64),
)  # fmt: skip
RARE = ("f1", 10), ("roc_auc", 50), ("f1", 0), ("accuracy", 10), ("error_rate", 0), ("rmse", 1)


def test_ends_of_intervals_are_what_they_were_and_lie_where_the_metric_can_be() -> None:
    """What was moved far is less sure; what learns from more rows may be better than what was scored, but not worse."""

    def shown(*words: object, ends: tuple[float, ...]) -> str:
        return f"{' '.join(map(str, words))}: {' '.join(f'{end:.4g}' for end in ends)}"

    lines = list[str]()
    for name, score, figures, rows in ENDS:
        metric = known_metric(name)
        low, high = interval(metric, score, figures, telling=rows, units=rows)
        assert metric.low <= low <= score <= high <= metric.high and high < math.inf
        lines.append(shown(name, score, rows, ends=(low, high)))
    for rows, draws, beside in WIDER:
        for telling, units in ((rows, rows), (rows, 100), (100, rows)):
            known: dict[str, Any] = {"telling": telling, "units": units, "beside": beside}
            ends = interval(known_metric("rmse"), 1.0, around(1.0, 0.01, draws), **known)
            lines.append(shown(telling, units, draws, beside, ends=ends))
    for units in (4000, 8):  # rows of few groups are few observations, but no coins
        ends = interval(known_metric("accuracy"), 0.9, around(0.9, 0.01), telling=4000, units=units)
        lines.append(shown(units, "groups", ends=ends))
    lines += [shown("moved", *one, ends=shifted(known_metric("accuracy"), *one)) for one in MOVED]
    lines += [shown(name, *one, ends=after_more_rows(known_metric(name), *one)) for name, *one in LEARNED]
    rare = {(name, count): np.array([0] * (100 - count) + [1] * count) for name, count in RARE}
    lines += [shown(*one, "rare", ends=(telling_rows(known_metric(one[0]), rows),)) for one, rows in rare.items()]
    as_kept("holdout/intervals.txt", "\n".join(lines))


@pytest.mark.parametrize("name", ["gini", "wape"])
def test_draws_without_a_figure_do_not_count(name: str) -> None:
    """Of three rows that are not zero many draws hold none: there is nothing to divide by."""
    truth, metric = np.array([1.0] * 3 + [0.0] * 57), known_metric(name)
    answers = truth * 0.5 + np.linspace(0.1, 0.4, 60)
    with np.errstate(all="ignore"):
        drawn = drawn_figures(metric, (truth, answers), None, 0)
    figures = drawn[np.isfinite(drawn)]
    assert 0 < len(figures) < 200
    low, high = interval(metric, metric.compute(truth, answers), figures, telling=60, units=60)
    assert math.isfinite(low) and low < high
