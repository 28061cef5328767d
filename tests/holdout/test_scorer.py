"""The scorer's reading of truth and answers: labels, numbers, lists and headers, however files spell them."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mle_star.data.layout import find_layout
from mle_star.data.metrics import known_metric
from mle_star.data.tables import Unsupported
from mle_star.execution.submission import check_table
from mle_star.holdout.answers import Answers, ByRow, Ungradable, read_answers
from mle_star.holdout.explain import MOST_CLASSES, OTHER, confusion, overlap
from mle_star.holdout.holdout import HoldOut
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data
from mle_star.models import MetricDirection, PipelineConfig
from mle_star.search.final_result import _Truth
from tests.conftest import as_kept
from tests.method.conftest import make_task

ROWS, TEST = 120, 20


def write(folder: Path, targets: Sequence[str], sample: str, *, names: str = "y", mark: str = ",") -> Path:
    """A task whose training rows have these targets, and whose sample says the same of every row."""
    folder.mkdir(parents=True, exist_ok=True)
    keys, columns = [str(9000 + number) for number in range(TEST)], names.split(",")
    files = {
        "train": [["id", "x", *columns], *([f"{i}", f"{i * 37 % 101}", *y.split("/")] for i, y in enumerate(targets))],
        "test": [["id", "x"], *([key, f"{int(key) * 37 % 101}"] for key in keys)],
        "sample_submission": [["id", *columns], *([key, *sample.split("/")] for key in keys)],
    }
    for name, rows in files.items():
        (folder / f"{name}.csv").write_text("".join(mark.join(row) + "\n" for row in rows))
    return folder


def scorer_of(folder: Path, metric: str) -> Scorer:
    own = known_metric(metric, folder=folder.parent, direction=MetricDirection.minimize) if ".py" in metric else None
    return Scorer(Data.read(find_layout(folder, "")), own or known_metric(metric))


def spread(*values: str) -> list[str]:
    """These values, one after the other, for all training rows."""
    return [values[i % len(values)] for i in range(ROWS)]


def by_row(answers: Sequence[str]) -> ByRow:
    return {row: tuple(cell.split("/")) for row, cell in enumerate(answers)}


def prepared(folder: Path, metric: str, run_dir: Path) -> HoldOut:
    known = {"evaluation_metric": metric, "metric_direction": known_metric(metric).direction}
    return HoldOut.prepare(make_task(folder, description="Predict `y`.", **known), PipelineConfig(), run_dir, write=0)


LISTS = ("cat", "dog", "cow"), ("a b", "b c", "a", "c"), ("7", "1 2", "01")
LARGE = str(2**53), str(2**53 + 1), str(-(2**53) - 1), str(-(2**53))


@pytest.mark.parametrize(
    ("metric", "targets", "answers", "score"),
    [
        *((f"multilabel_f1_{mean}", some, some, 1.0) for mean in ("micro", "macro", "samples") for some in LISTS),
        *((f"multilabel_f1_{mean}", LISTS[1], ["zebra"], 0.0) for mean in ("micro", "macro", "samples")),
        ("multilabel_f1_micro", LISTS[1], [" ".join(reversed(cell.split())) for cell in LISTS[1]], 1.0),
        ("hamming_loss", ["0/1", "1.0/1"], ["0/1", "1/0"], 0.25),  # targets of 0 and 1 are a label each
        ("hamming_loss", ["a b", "c"], ["a b", ""], 1 / 6), ("hamming_loss", ["a b", "c"], ["a d", "c"], 2 / 8),
        *(("map@3", [truth, "3"], [f"{guess} 8.0 009", "08 3.0"], (1 + 0.5) / 2)
          for truth, guess in (("007", "007"), ("007", "7"), ("1.0", "1.0"), ("1.0", "1"), ("x", "x"))),
        ("qwk", ["0/a", "1/b", "2/c"], ["0/a", "1/b", "2/c"], 1.0), ("qwk", ["0/a", "1/b"], ["0/a", "1/a"], 0.5),
        *(("accuracy", pair, [pair[0]], 0.5) for pair in (LARGE[:2], LARGE[2:])),
        *(("accuracy", pair, [f" {pair[0]}", f"{pair[1]} "], 1.0) for pair in (LARGE[:2], LARGE[2:])),
        ("recall", ("9", "10"), ["10"], 1.0), ("recall", ("-2", "-10"), ["-2"], 1.0),
        ("recall", ("no", "yes"), ["yes"], 1.0), ("accuracy", ("True", "false"), ["1", "0"], 1.0),
    ],
)  # fmt: skip
def test_answers_are_spelled_as_freely_as_the_truth(
    tmp_path: Path, metric: str, targets: Sequence[str], answers: Sequence[str], score: float
) -> None:
    names = "y,z" if "/" in targets[0] else "y"
    scorer = scorer_of(write(tmp_path / "data", spread(*targets), targets[0], names=names), metric)
    assert scorer.score(by_row(spread(*answers)), range(ROWS)) == pytest.approx(score)


HELD: dict[str, tuple[list[str], str]] = {
    "classes": (spread("a", "b", "c"), "accuracy f1_macro qwk"),
    "spellings": ([f"{i % 3 + 1}" + (".0" if i < 50 else "") for i in range(ROWS)], "qwk"),
    "two": (spread("0", "1", "1"), "roc_auc log_loss f1 average_precision brier"),
    "lopsided": (spread(*"0" * 19, "1"), "roc_auc accuracy"),
    "numbers": ([str(10 + i * 7 % 50) for i in range(ROWS)], "rmse mae r2 spearman rmsle"),
    "mixed": (spread("1", "2", "x"), "qwk"),
    "grades": (spread("1", "2", "5", "2"), "qwk map@3"),
    "sets": (spread("a b", "b c", "a", "c"), "multilabel_f1_micro"),
}
"""Targets, and the metrics that score them."""


def test_what_is_held_against_answers_and_how_sure_a_score_is(tmp_path: Path) -> None:
    lines = list[str]()
    for name, (truth, metrics) in HELD.items():
        folder = write(tmp_path / name, truth, truth[0])
        odd = {"right": truth, "next": [*truth[1:], truth[0]], "blank": ["", *truth[1:]], "word": ["zebra", *truth[1:]]}
        odd |= {"one": truth[:1] * ROWS, "most": [*truth[:6], *truth[:1] * 114], "more": [*truth[:7], *truth[:1] * 113]}
        edges = {"far": "1000", "below": "-39.5", "near": "108", "beyond": "108.5"}
        odd |= {what: [cell, *truth[1:]] for what, cell in edges.items()}
        for metric in metrics.split():
            scorer = scorer_of(folder, metric)
            for what, cells in odd.items():
                figures = list[float]()
                try:
                    if not (found := scorer.problem(Answers(by_row(cells), ()))):
                        graded = scorer.grade(by_row(cells), range(ROWS), parts=what == "next")
                        figures = [float(f"{one:.5g}") + 0.0 for one in graded]
                except Ungradable as error:
                    found = str(error)
                lines.append(f"{name}, {metric}, {what}: {figures} {found}")
            change = scorer.compare(by_row(truth), by_row(odd["next"]), range(ROWS))
            dummy = scorer.baseline(range(ROWS))
            figures = [float(f"{one:.4g}") for one in (change.difference, change.error, change.wins)]
            same = scorer.agreement(*([(cell,) for cell in cells] for cells in (truth, odd["next"])))
            lines.append(f"{name}, {metric}: {figures} {dummy} {scorer.usual_answer()} {same:.4g}")
    as_kept("holdout/held.txt", "\n".join(lines))


@pytest.mark.parametrize(("targets", "names"), [("a,b", "y"), ("a|b", "y"), ("cat/2", "y,z")])
def test_sets_that_cannot_be_told_are_refused(tmp_path: Path, targets: str, names: str) -> None:
    truth, mark = spread(targets, targets.upper()), ";" if "," in targets else ","
    scorer = scorer_of(write(tmp_path / "data", truth, targets, names=names, mark=mark), "multilabel_f1_micro")
    with pytest.raises(Ungradable, match="needs targets of 0 and 1, or one that lists labels between blanks"):
        scorer.score(by_row(truth), range(ROWS))
    if names == "y,z":
        with pytest.raises(Ungradable, match="needs 2 columns, one for each target, not 1"):
            scorer_of(tmp_path / "data", "qwk").score(by_row(["cat"] * ROWS), range(ROWS))


@pytest.mark.parametrize("metric", ["log_loss", "qwk"])
def test_a_label_that_training_never_had_is_named(tmp_path: Path, metric: str) -> None:
    folder = write(tmp_path / "data", spread("a", "b", "c"), "a")
    if metric == "log_loss":
        rows = "".join(f"{9000 + number},0.3,0.3,0.4\n" for number in range(TEST))
        (folder / "sample_submission.csv").write_text("id,a,b,c\n" + rows)
    scorer, answers = scorer_of(folder, metric), tmp_path / "answers.csv"
    answers.write_text("id,y\n" + "".join(f"{9000 + number},{'abcd'[number % 4]}\n" for number in range(TEST)))
    found = _Truth(scorer, answers).of(folder / "sample_submission.csv")
    assert found == (None, "'d' is none of the classes ['a', 'b', 'c'] of the training rows")


def test_what_f1_looks_at_is_decided_by_all_rows_of_the_task(tmp_path: Path) -> None:
    truth = spread("0", "0", "0", "1")
    scorer = scorer_of(write(tmp_path / "two", truth, "0"), "f1")
    zeros = [row for row in range(ROWS) if truth[row] == "0"]
    assert scorer.score(by_row(["0"] * ROWS), zeros) == 0.0, "no positive row was found"
    three = spread("a", "b", "c")
    scorer = scorer_of(write(tmp_path / "three", three, "a"), "f1")
    some = [row for row in range(ROWS) if three[row] != "c"]
    answers = by_row(spread("a", "b", "c", "b", "b", "c"))
    assert scorer.score(answers, some) == pytest.approx((2 / 3 + 0.8) / 2), "the mean of both, not one of them"


def test_draws_without_a_positive_row_say_no_better_of_a_model_that_finds_none(tmp_path: Path) -> None:
    truth = ["1" if row % 40 == 7 else "0" for row in range(ROWS)]
    scorer = scorer_of(write(tmp_path / "data", truth, "0"), "f1")
    nothing, all_wrong = by_row(["0"] * ROWS), by_row(["1" if cell == "0" else "0" for cell in truth])
    assert scorer.compare(nothing, all_wrong, range(ROWS)).wins == 0.5
    score, _, high = scorer.grade(nothing, range(ROWS))
    assert score == 0.0 and high < 0.9


@pytest.mark.parametrize(
    ("metric", "right"),
    [("roc_auc", 1.0), ("average_precision", 1.0), ("log_loss", -math.log(0.9)), ("brier_score", 0.01), ("rmse", 0.1)],
)
def test_several_targets_are_measured_like_one(tmp_path: Path, metric: str, right: float) -> None:
    """The mean over seven columns of marks; one that has a single class among the rows says nothing of the order."""
    names, dice = "abcdefg", random.Random(1)
    cells = [[str(int(dice.random() < 0.3)) for _ in names] for _ in range(ROWS)]
    folder = write(tmp_path / "data", ["/".join(row) for row in cells], "/".join("0" * 7), names=",".join(names))
    scorer = scorer_of(folder, metric)
    answers = {row: tuple("0.9" if cell == "1" else "0.1" for cell in cells[row]) for row in range(ROWS)}
    assert scorer.score(answers, range(ROWS)) == pytest.approx(right)
    _, low, high = scorer.grade(answers, range(ROWS))
    assert low <= high and math.isfinite(high) and scorer.baseline(range(ROWS)) is not None
    assert len(scorer.usual_answer()) == 7 and scorer.problem(Answers(answers, ())) == ""
    assert scorer.score(answers, [row for row in range(ROWS) if cells[row][2] == "0"]) == pytest.approx(right)
    if scorer.metric.needs == "probabilities":
        with pytest.raises(Ungradable, match="needs a probability"):
            scorer.score({row: answer[:3] for row, answer in answers.items()}, range(ROWS))


GERMAN = {"1.234": 1234.0, "987,5": 987.5, "2.500": 2500.0, "350": 350.0, "1.100,25": 1100.25}


@pytest.mark.parametrize("metric", ["rmse", "score.py:error"])
def test_points_between_thousands_are_no_decimal_points(tmp_path: Path, metric: str) -> None:
    (tmp_path / "score.py").write_text("def error(truth, answer):\n    return abs(truth['y'] - answer['y']).max()\n")
    truth = spread(*GERMAN)
    scorer = scorer_of(write(tmp_path / "data", truth, "1,5", mark=";"), metric)
    assert scorer.score(by_row([str(GERMAN[cell]) for cell in truth]), range(ROWS)) == 0.0
    assert scorer.score(by_row([str(GERMAN[cell]).replace(".", ",") for cell in truth]), range(ROWS)) == 0.0
    if metric == "rmse":
        assert scorer.ranges == [(350.0, 2500.0)] and float(scorer.usual_answer()[0]) == 1100.25
    cells = spread(*GERMAN)[:TEST]
    (tmp_path / "answers.csv").write_text("id;y\n" + "".join(f"{9000 + i};{c}\n" for i, c in enumerate(cells)))
    (tmp_path / "s.csv").write_text("id;y\n" + "".join(f"{9000 + i};{GERMAN[c]}\n" for i, c in enumerate(cells)))
    assert _Truth(scorer, tmp_path / "answers.csv").of(tmp_path / "s.csv") == (0.0, "")
    (tmp_path / "answers.csv").write_text((tmp_path / "s.csv").read_text())
    assert _Truth(scorer, tmp_path / "answers.csv").of(tmp_path / "s.csv") == (0.0, ""), "points, among commas"


def test_a_metric_of_the_users_own_gets_numbers_where_there_are_some(tmp_path: Path) -> None:
    error = "float((abs(truth['y'] - answer['y']) + (truth['z'] != answer['z'])).mean())"
    (tmp_path / "score.py").write_text(f"def error(truth, answer):\n    return {error}\n")
    truth = [f"{i % 7 / 4}/{'ab'[i % 2]}" for i in range(ROWS)]
    scorer = scorer_of(write(tmp_path / "data", truth, "0.5/a", names="y,z"), "score.py:error")
    score, low, high = scorer.grade(by_row([f"{i % 7 / 4 + 1}/a" for i in range(ROWS)]), range(ROWS))
    assert score == pytest.approx(1.5) and 1.3 < low < score < high < 1.7


@pytest.mark.parametrize("metric", ["gini", "spearman", "kendall", "pearson", "roc_auc", "rmse"])
def test_margins_are_answers_where_only_their_order_counts(tmp_path: Path, metric: str) -> None:
    scorer = scorer_of(write(tmp_path / "data", spread("0", "1"), "0.5"), metric)
    problem = scorer.problem(Answers(by_row([str(i * 37 % 101 - 50) for i in range(ROWS)]), ()))
    assert ("far outside" in problem) is bool(problem) is (metric == "rmse")


@pytest.mark.parametrize("sample_header", ["id, y", "id,y "])
@pytest.mark.parametrize("header", ["id, y", "id,y", " id ,y "])
def test_blanks_around_the_names_of_columns_mean_nothing(tmp_path: Path, header: str, sample_header: str) -> None:
    folder = write(tmp_path / "data", spread("p", "q"), "p")
    sample = folder / "sample_submission.csv"
    sample.write_text(sample.read_text().replace("id,y", sample_header))
    if sample_header.endswith(" "):
        train = folder / "train.csv"
        train.write_text(train.read_text().replace("x,y", "x,y "))
    scorer, text = scorer_of(folder, "accuracy"), sample.read_text().replace(sample_header, header)
    for more in (b" ,\xe9\n", b" \n"):  # a column in letters of its own is not looked at
        (tmp_path / "s.csv").write_bytes(b"".join(line + more for line in text.encode().splitlines()))
        assert read_answers(scorer.data, tmp_path / "s.csv", scorer.data.real_view()).real == (("p",),) * TEST
    with (tmp_path / "s.csv").open("rb") as file:
        assert check_table(file, "s.csv", sample) == []


@pytest.mark.parametrize(
    ("metric", "targets"),
    [("mae", ("1.5", "2.5", "9")), ("mae", ("1/5", "2/7")), ("roc_auc", ("0", "1")), ("f1", ("a", "b"))],
)
@pytest.mark.parametrize("blank", ["", "nan"])
def test_a_sample_may_be_without_answers(tmp_path: Path, metric: str, targets: tuple[str, ...], blank: str) -> None:
    more = targets[0].count("/")
    folder = write(tmp_path / "data", spread(*targets), blank + "/6" * more, names="y,z"[: 1 + 2 * more])
    assert prepared(folder, metric, tmp_path / "run").views


@pytest.mark.parametrize("odd", ["#DIV/0!", "inf", "n.a."])
def test_one_target_that_is_no_number_is_not_held_against_every_script(tmp_path: Path, odd: str) -> None:
    """It may lie outside of the rows that the search looks at."""
    truth = [str(n % 97 + 0.5) for n in range(6000)]
    for place in (0, len(truth) // 2, len(truth)):
        folder = write(tmp_path / f"data-{place}", [*truth[:place], odd, *truth[place:]], "1.5")
        with pytest.raises((Unsupported, Ungradable), match="number"):
            prepared(folder, "rmse", tmp_path / f"run-{place}")


def test_answers_agree_as_the_metric_reads_them(tmp_path: Path) -> None:
    """Of 99 classes the same one is likely in every row; how the rest is shared out is noise."""
    dice, classes = random.Random(3), [f"c{i:02}" for i in range(99)]
    columns, sample = ",".join(classes), "/".join(["0.1"] * 99)
    folder = write(tmp_path / "data", spread(*classes), sample)
    rows = (folder / "test.csv").read_text().splitlines()[1:]
    table = [f"id,{columns}\n", *(f"{row.split(',')[0]},{sample.replace('/', ',')}\n" for row in rows)]
    (folder / "sample_submission.csv").write_text("".join(table))

    def noisy(sure: float) -> list[tuple[str, ...]]:
        rest = [[dice.random() for _ in classes] for _ in range(TEST)]
        return [
            tuple(repr(sure if i == row % 99 else (1 - sure) * c / sum(cells)) for i, c in enumerate(cells))
            for row, cells in enumerate(rest)
        ]

    one, same, unsure = noisy(0.9), noisy(0.85), noisy(0.02)
    other = [*one[1:], one[0]]
    for metric, weak in (("log_loss", unsure), ("brier_score", unsure), ("top_3_accuracy", other), ("roc_auc", other)):
        scorer = scorer_of(folder, metric)
        assert scorer.agreement(one, one) == 1.0 and scorer.agreement(one, same) > (0.3 if "top" in metric else 0.95)
        assert scorer.agreement(one, other) < 0.2 and scorer.agreement(one, weak) < 0.5, metric
    (folder / "sample_submission.csv").write_text("".join(line.rpartition(",")[0] + "\n" for line in table))
    with pytest.raises(Ungradable, match="there is no column for the class 'c98'"):
        scorer_of(folder, "log_loss").score(by_row(["/".join(["0.1"] * 98)] * ROWS), range(ROWS))


@pytest.mark.parametrize(
    ("metric", "scaled", "shifted"), [("roc_auc", 1.0, 1.0), ("gini", 1.0, 1.0), ("rmse", 0.1, 0.1), ("mae", 0.1, 0.1)]
)
def test_the_order_is_enough_only_where_it_counts(tmp_path: Path, metric: str, scaled: float, shifted: float) -> None:
    scorer = scorer_of(write(tmp_path / "data", spread("0", "1"), "0.5"), metric)
    chances = [0.9 * row / TEST + 0.01 for row in range(TEST)]
    nearly = [chance + 0.001 * (chance > 0.5) for chance in chances]
    changed = chances, nearly, [chance / 10 for chance in chances], [chance + 5 for chance in chances]
    one, close, tenth, moved = ([(repr(value),) for value in some] for some in changed)
    assert scorer.agreement(one, close) > 0.99 and scorer.agreement(one, one[::-1]) < 0
    assert scorer.agreement(one, tenth) == pytest.approx(scaled, abs=0.15)
    assert scorer.agreement(one, moved) == pytest.approx(shifted, abs=0.15)
    labels = scorer_of(tmp_path / "data", "accuracy")
    assert labels.agreement([("0",), ("1",), ("1",), ("0",)], [("0",), ("1.0",), ("0",), ("0",)]) == 0.75


def confused(folder: Path, metric: str, truth: list[str], answers: list[str]) -> dict[str, Any]:
    return confusion(scorer_of(write(folder, truth, truth[0]), metric), Answers(by_row(answers), ()))


def test_labels_are_counted_by_truth_and_answer_and_rare_classes_together(tmp_path: Path) -> None:
    truth = ["cat", "dog", "owl"] * 40
    found = confused(tmp_path / "few", "accuracy", truth, [*truth[:110], *["cat"] * 10])
    assert found == {"rows": 120, "classes": ["cat", "dog", "owl"], "confusion": [[40, 0, 0], [3, 37, 0], [4, 0, 36]]}
    many = [f"class{number % 20:02}" for number in range(600)]
    found = confused(tmp_path / "many", "accuracy", many, many)
    assert (len(found["classes"]), found["classes"][-1]) == (MOST_CLASSES, OTHER)
    assert found["confusion"][-1][-1] == 600 - 30 * (MOST_CLASSES - 1)


def test_chances_are_confused_at_a_half_and_of_ranks_and_numbers_the_rows_alone_are_told(tmp_path: Path) -> None:
    truth = [str(int(number % 4 == 0)) for number in range(200)]  # a quarter is 1
    found = confused(tmp_path / "data", "log_loss", truth, ["0.25"] * 160 + ["0.75"] * 40)
    assert found == {"rows": 200, "classes": ["0", "1"], "confusion": [[120, 30], [40, 10]]}
    assert confused(tmp_path / "data", "roc_auc", truth, ["17.5"] * 200) == {"rows": 200}
    assert confused(tmp_path / "numbers", "rmse", truth, truth) == {"rows": 200}


ALONE = "of 120 answers 20 are right in the first alone, 30 in the second alone, 10 in neither"


@pytest.mark.parametrize(
    ("metric", "answers", "words"),
    [
        ("accuracy", {"1": "0", "0": "1"}, f"errors correlate by 0.00; {ALONE}"),
        ("log_loss", {"0.9": "0.1", "0.1": "0.9"}, f"errors correlate by 0.00; {ALONE}"),
        ("rmse", {"1": "9", "0": "8"}, "the first is nearer to the truth on 20, the second on 30"),
        ("map@3", {"1": "0", "0": "1"}, ""),
        ("multilabel_f1_micro", {"1": "0 rare", "0": "1"}, ""),
    ],
)
def test_how_far_two_scripts_err_alike(tmp_path: Path, metric: str, answers: dict[str, str], words: str) -> None:
    """Of 120 answers 40 and 30 are wrong, 10 of them in both: as many as by chance."""
    scorer, right = scorer_of(write(tmp_path / "data", spread("1", "0"), "1"), metric), spread(*answers)
    cells = ([answers[one] if row % every == 0 else one for row, one in enumerate(right)] for every in (3, 4))
    first, second = (Answers(by_row(some), ()) for some in cells)
    text = overlap(scorer, first, second, range(ROWS))
    assert text.endswith(words) and bool(text) is bool(words)
    assert overlap(scorer, Answers({}, ()), second, range(ROWS)) == ""
