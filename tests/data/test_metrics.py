"""The metrics: by every name, with figures that are known; one of the user's own is code that runs confined."""

import functools
import math
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

import mle_star.execution  # noqa: F401  # it runs the functions of the user's own
from mle_star import ConfigError, MetricDirection
from mle_star.data import formulas
from mle_star.data.metrics import METRICS, Metric, find_metric, known_metric, metric_in_prose
from tests.conftest import as_kept

SPELLINGS = """
AUC, ROC-AUC, roc_auc, RMSE, root mean squared error, rmsle, MAE, logloss, Log Loss, f1, macro-F1, f1_macro, QWK, acc,
balanced accuracy, R2, R², MAPE, mcc, MAP@5, neg_log_loss, F0.5
"""


def test_there_are_many_known_by_their_usual_names_and_no_two_share_a_spelling() -> None:
    found = {spelling: known_metric(spelling).name for spelling in SPELLINGS.replace("\n", " ").strip().split(", ")}
    lines = [f"{one}, scores {one.scores}" for one in METRICS] + [f"{text}: {name}" for text, name in found.items()]
    as_kept("data/metrics.txt", "\n".join(lines))
    assert sum(metric.formula is not None for metric in METRICS) >= 45
    for metric in METRICS:
        assert {known_metric(alias).name for alias in (metric.name, *metric.aliases)} == {metric.name}


PROSE = """
Submissions are scored on the Root Mean Squared Logarithmic Error.
We recall that precision matters. The metric is the macro F1 score.
Minimise the mean absolute error of the price.
Recall the sunny days of old, and the precision of clocks.
"""


def test_a_metric_is_found_in_prose_and_an_unknown_one_is_refused_with_the_nearest_names() -> None:
    found = [metric_in_prose(text) for text in PROSE.splitlines()]
    lines = [f"{text}: {one and one[0].name}" for text, one in zip(PROSE.splitlines(), found, strict=True)]
    for unknown in ("rsme", "acuracy", "f1_makro", "profit"):
        assert find_metric(unknown) is None
        with pytest.raises(ConfigError) as refusal:
            known_metric(unknown)
        lines.append(re.sub(r"(?<=known are: ).*(?= \()", "…", str(refusal.value)))
    as_kept("data/metrics_named.txt", "\n".join(lines))


LABELS = np.array(["a", "a", "b", "b"]), np.array(["a", "b", "b", "b"])
YES = np.array(["no", "yes", "yes", "no"]), np.array(["no", "yes", "no", "no"])
CHANCES = np.array([0, 0, 1, 1]), np.array([[0.9, 0.1], [0.6, 0.4], [0.65, 0.35], [0.2, 0.8]])
THREE = np.array([0, 1, 2]), np.array([[0.5, 0.3, 0.2], [0.25, 0.5, 0.25], [0.6, 0.3, 0.1]])
NUMBERS = np.array([1.0, 2.0, 4.0]), np.array([1.0, 4.0, 2.0])


@pytest.mark.parametrize(
    ("name", "pair", "value"),
    [
        ("accuracy", LABELS, 0.75), ("error_rate", LABELS, 0.25), ("balanced_accuracy", LABELS, 0.75),
        ("f1", YES, 2 / 3), ("f0.5", YES, 5 / 6), ("roc_auc", CHANCES, 0.75),
        ("log_loss", CHANCES, -np.log([0.9, 0.6, 0.35, 0.8]).mean()),
        ("log_loss", THREE, -np.log([0.5, 0.5, 0.1]).mean()),
        ("brier_score", CHANCES, np.mean([0.01, 0.16, 0.65**2, 0.04])), ("top_3_accuracy", THREE, 1.0),
        ("rmse", NUMBERS, math.sqrt(8 / 3)), ("mse", NUMBERS, 8 / 3), ("mae", NUMBERS, 4 / 3),
        ("max_error", NUMBERS, 2.0), ("log_loss", (np.array([0]), np.array([[0.5, -1.5]])), 0.0),
        ("median_absolute_error", NUMBERS, 2.0), ("mape", NUMBERS, (1 + 0.5) / 3), ("wape", NUMBERS, 4 / 7),
        ("smape", NUMBERS, 200 * (2 / 6 + 2 / 6) / 3), ("smape", (np.zeros(2), np.array([0.0, 1.0])), 100.0),
        ("rmspe", NUMBERS, math.sqrt((1 + 0.25) / 3)), ("pinball_loss", NUMBERS, 2 / 3),
        ("rmsle", (np.array([0.0, math.e - 1]), np.array([0.0, 0.0])), math.sqrt(0.5)),
        ("msle", (np.array([0.0]), np.array([-5.0])), 0.0), ("r2", NUMBERS, 1 - 8 / (14 / 3)),
        ("spearman", NUMBERS, 0.5), ("kendall", NUMBERS, 1 / 3), ("pearson", (NUMBERS[0], 3 * NUMBERS[0]), 1.0),
        ("pearson", (NUMBERS[0], np.ones(3)), 0.0),
        ("gini", (np.array([0.0, 0, 1, 1]), CHANCES[1][:, 1]), 2 * 0.75 - 1), ("gini", (NUMBERS[0], NUMBERS[0]), 1.0),
        ("mcrmse", (np.array([[1.0, 0], [3, 0]]), np.array([[1.0, 2], [3, 2]])), 1.0),
        ("map@3", (np.array(["x", "y", "z"]), np.array(["x q", "q y y", "a b c z"])), 0.5),
        ("word_error_rate", (["the old cat"], ["the cat sat"]), 2 / 3),
        ("character_error_rate", (["abcd"], ["abd"]), 0.25),
        ("explained_variance", (NUMBERS[0], NUMBERS[0] + 5), 1.0),
        ("mean_poisson_deviance", (np.array([2.0]), np.array([2.0])), 0.0),
        ("mean_gamma_deviance", (np.array([2.0]), np.array([2.0])), 0.0),
        ("mean_poisson_deviance", (np.array([1.0]), np.array([2.0])), 2 - 2 * math.log(2)),
        ("mean_gamma_deviance", (np.array([1.0]), np.array([2.0])), 2 * math.log(2) - 1),
        ("top_5_accuracy", (np.array([4, 5]), -np.tile(np.arange(6.0), (2, 1))), 0.5),
        ("map@10", (np.array(["9", "10"]), np.array([" ".join(map(str, range(11)))] * 2)), 0.05),
    ],
)  # fmt: skip
def test_figures_are_those_worked_out_by_hand(name: str, pair: tuple[Any, Any], value: float) -> None:
    assert known_metric(name).compute(*pair) == pytest.approx(value)


@pytest.mark.parametrize("name", ["roc_auc", "average_precision"])
def test_rows_of_one_class_have_no_area(name: str) -> None:
    for label, classes in ((0, 2), (1, 2), (2, 3)) if name == "roc_auc" else ((0, 2), (2, 3)):
        with pytest.raises(ValueError, match="one class only"):
            known_metric(name).compute(np.full(4, label), np.full((4, classes), 1 / classes))


@pytest.mark.parametrize(
    ("name", "classes", "truth", "answer", "value"),
    [
        ("f1", "abc", "aabb", "abcb", (2 / 3 + 1 / 2) / 2), ("precision", "abc", "aabb", "abcb", (1 + 1 / 2) / 2),
        ("recall", "abc", "aabb", "abcb", 1 / 2), ("f1", "ab", "aabb", "abab", 1 / 2), ("f1", "01", "000", "000", 0.0),
        ("f2", "01", "000", "000", 0.0), ("f0.5", "01", "000", "001", 0.0), ("recall", "01", "000", "000", 0.0),
        ("f1", ["9", "10"], ["9", "10", "10"], ["10", "10", "10"], 0.8), ("accuracy", "abc", "aabb", "abcb", 1 / 2),
    ],
)  # fmt: skip
def test_the_classes_of_the_task_decide(name: str, classes: Any, truth: Any, answer: Any, value: float) -> None:
    pair = np.array(list(truth)), np.array(list(answer))
    assert known_metric(name).compute(*pair, [list(classes)]) == pytest.approx(value)
    first, second = (np.column_stack([column, column]) for column in pair)
    assert known_metric(name).compute(first, second, [list(classes)] * 2) == pytest.approx(value)


def test_the_order_of_rows_with_the_same_answer_says_nothing_about_them() -> None:
    truth, gini = np.array([1.0] * 30 + [0.0] * 70), known_metric("gini")
    halves = np.array([1.0] * 50 + [0.0] * 50)
    for ordered in (truth, truth[::-1]):
        assert gini.compute(ordered, np.zeros(100)) == pytest.approx(0.0)
        assert gini.compute(ordered, halves) == pytest.approx(2 * metrics.roc_auc_score(ordered, halves) - 1)


@pytest.mark.parametrize("name", ["word_error_rate", "character_error_rate"])
def test_texts_that_are_drawn_again_are_not_compared_again(name: str) -> None:
    formulas.text_edits.cache_clear()
    truth = np.array([f"{name} number {i}" for i in range(20)])
    answer = np.array([f"{name} numer {i} more" for i in range(20)])
    whole = known_metric(name).compute(truth, answer)
    for shift in range(1, 20):
        assert known_metric(name).compute(np.roll(truth, shift), np.roll(answer, shift)) == whole
    assert formulas.text_edits.cache_info().misses == 20


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40), st.sampled_from([2, 3, 4]))
def test_figures_from_counts_are_those_of_scikit_learn(rows: list[tuple[int, int]], kinds: int) -> None:
    truth, answer = (np.array(["abcde"[value % kinds] for value in column]) for column in zip(*rows, strict=True))
    known = sorted(set(truth))
    each: dict[str, Any] = {"labels": known, "zero_division": 0}
    looked_for = {**each, "average": "macro", "labels": known[-1:] if len(known) <= 2 else known}
    wanted = {f"f1_{mean}": metrics.f1_score(truth, answer, average=mean, **each) for mean in ("macro", "weighted")}
    wanted |= {
        name: getattr(metrics, f"{name}_score")(truth, answer, **looked_for) for name in ("f1", "precision", "recall")
    }
    wanted["f2"] = metrics.fbeta_score(truth, answer, beta=2.0, **looked_for)
    wanted["f1_micro"] = metrics.f1_score(truth, answer, average="micro")
    if len({*truth, *answer}) > 1:
        wanted["matthews_corrcoef"] = metrics.matthews_corrcoef(truth, answer)
        wanted["cohen_kappa"] = metrics.cohen_kappa_score(truth, answer)
        wanted["quadratic_weighted_kappa"] = metrics.cohen_kappa_score(truth, answer, weights="quadratic")
    numbers = [np.array(["abcde".index(label) for label in labels]) for labels in (truth, answer)]
    for name, value in wanted.items():
        assert known_metric(name).compute(truth, answer) == pytest.approx(value, abs=1e-12), name
        if len(known) > 2 or not known_metric(name).of_positive:
            assert known_metric(name).compute(*numbers) == pytest.approx(value, abs=1e-12), name
    for metric in (metric for metric in METRICS if metric.needs == "labels"):
        assert metric.low - 1e-6 <= metric.compute(truth, answer) <= metric.high + 1e-6, metric.name


@given(st.lists(st.tuples(*[st.booleans()] * 6), min_size=1, max_size=20))
def test_figures_of_label_sets_are_those_of_scikit_learn(rows: list[tuple[bool, ...]]) -> None:
    truth, answer = np.array(rows)[:, :3], np.array(rows)[:, 3:]
    for average in ("micro", "macro", "samples"):
        value = metrics.f1_score(truth, answer, average=average, zero_division=0)
        assert known_metric(f"multilabel_f1_{average}").compute(truth, answer) == pytest.approx(value), average
    assert known_metric("hamming_loss").compute(truth, answer) == pytest.approx(metrics.hamming_loss(truth, answer))


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 6), min_size=3, max_size=3)), min_size=2))
def test_areas_are_those_of_scikit_learn(rows: list[tuple[int, list[int]]]) -> None:
    truth, many = np.array([label for label, _ in rows]), np.array([chances for _, chances in rows]) / 6
    for name in ("roc_auc", "average_precision"):
        function, two = getattr(metrics, f"{name}_score"), (truth > 0).astype(int)
        if 0 < two.sum() < len(two):
            value = function(two, many[:, 1])
            assert known_metric(name).compute(two, many[:, :2]) == pytest.approx(value, abs=1e-12)
        if len(set(truth)) > 1 and (truth > 0).any():
            value = np.mean([function(truth == label, many[:, label]) for label in set(truth)])
            assert known_metric(name).compute(truth, many) == pytest.approx(value, abs=1e-12)


TRUTH = pandas.DataFrame({"y": [1.0, 2.0, 3.0]})
CODE = Path(__file__).with_name("own_metrics.py.txt").read_text(encoding="utf-8")


def own(folder: Path, name: str, port: int = 9) -> Metric:
    words = {"PORT": port, "SECRET": folder / "secret", "WRITTEN": folder / "written", "HARNESS": os.getpid()}
    text = functools.reduce(lambda text, word: text.replace(word[0], str(word[1])), words.items(), CODE)
    (folder / "score.py").write_text(text, encoding="utf-8")
    return known_metric(f"score.py:{name}", folder=folder, direction=MetricDirection.minimize)


def test_it_is_computed_elsewhere_and_finds_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-77")
    (tmp_path / "secret").write_text("sk-canary-77")
    server = socket.create_server(("127.0.0.1", 0))
    with server, pytest.raises(ConfigError) as refused:
        own(tmp_path, "spy", server.getsockname()[1]).compute(TRUTH, TRUTH)
    assert str(refused.value) == f"{tmp_path}/score.py:spy failed: ValueError: found []"
    assert not (tmp_path / "written").exists()


def test_one_process_serves_many_calls_and_another_one_after_a_pause(tmp_path: Path) -> None:
    metric = own(tmp_path, "calls")
    assert metric.needs == "frames"
    assert [metric.compute(TRUTH, TRUTH + 2**-20) for _ in range(200)] == [number + 2**-20 for number in range(1, 201)]
    time.sleep(4)
    assert metric.compute(TRUTH, TRUTH) == 1.0


def test_its_process_ends_with_the_program_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    file, deep = tmp_path / "score.py", tmp_path / ("temporary" * 15)  # longer than the path of a socket may be
    file.write_text("def half(truth, answer):\n    return 0.5\n", encoding="utf-8")
    deep.mkdir()
    program = (
        "from pathlib import Path\nfrom mle_star.execution.own_metric import OwnMetric\n"
        f"print(OwnMetric(Path({str(file)!r}), 'half')(1, 2))"
    )
    env = {**os.environ, "TMPDIR": str(deep)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0.5\n", "") and list(deep.iterdir()) == []


def test_a_wrong_function_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mle_star.execution.own_metric.END_SECONDS", 240.0)
    (tmp_path / "score.py").write_text(CODE, encoding="utf-8")
    lines = []
    names = "score.py:calls BLEU nothing.py:f score.py:broken score.py:absent score.py:ends score.py:lies"
    for name in names.split():
        direction = None if name in ("score.py:calls", "BLEU") else MetricDirection.minimize
        with pytest.raises(ConfigError) as refused:
            known_metric(name, folder=tmp_path, direction=direction).compute(TRUTH, TRUTH)
        # the harness closes first or its process writes first: which one is a matter of time
        lines.append(re.sub(r"\w+: \[Errno \d+\] [\w ]+", "an error of its connection", str(refused.value)))
        assert "\n" not in lines[-1] and len(lines[-1]) < 800
    as_kept("data/wrong_metrics.txt", "\n".join(lines).replace(str(tmp_path), "…"))
