"""Reading scores in the output of scripts."""

import re
import timeit
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.execution.outcome import scale_of
from mle_star.method.scores import parse_ablation_lines, parse_analysis, parse_score, read_score
from mle_star.models import SCORE_PATTERN, MetricDirection, TaskDescription
from tests.conftest import as_kept

TEXT = st.text(max_size=80).filter(lambda text: "Final Validation" not in text)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
LINE = "Final Validation Performance: "
LOSS, NO_COLON = "epoch 1: loss 0.693\n" * 50_000, "Final Validation Performance\n" * 35_000
FILLERS = (f"{LINE}nan\n", f"see {LINE}above\r", f"see {LINE}above ")
OUTPUTS = (
    "x\nL  -1e-3\ny|Training complete.\n||L.5|L+3.\r\n|L0.5\nL0.85.\n|L0.5\nL1-2\n|L0.5\nLnan\n|"
    "L0.5\nas said, Labove\n|50%\r100%\rL0.25\r\n|  Final Validation Performance:0.25  |"
    "final validation performance: 0.5|Lx|epoch 3"
)
ODD = ["85%", "1,234.56", "0,85", "1_000", "٣", "0.85 (std 0.01)", "", "\n0.85", "x", "nan", "inf", "-inf", "1e999"]
ODD_LINES = [*(f"{LINE}{text}" for text in ODD), f"epoch 3 {LINE}0.7", f"{LINE}0.5 {LINE}0.6", f"so: {LINE}0.25"]
ODD_LINES += ["epoch 3", *(f"{LINE}{'x' * length}" for length in (80, 81))]
FAR = """
accuracy maximize 85, AUC maximize 1.7, Area under the ROC curve maximize -0.5, r2 maximize 1.01, rmse minimize -0.2,
rmse minimize 1e308, profit maximize -1e308, accuracy maximize 1.0, roc_auc maximize 1.0000000000000002,
accuracy maximize 1.000001, rmse minimize -0.000001, r2 maximize -3e5, rmse minimize 123456.78, rmse maximize -0.2,
profit maximize -1e12, rmse minimize 1e30, rmse minimize 1.1e30
"""
"""Metric, direction and score; where less is better with its sign turned round, scores are negative."""


@pytest.mark.req("REQ-EX-011", "REQ-DM-027")
def test_the_last_score_line_decides_and_what_is_no_plain_or_no_possible_number_says_why(task: TaskDescription) -> None:
    """The specified function takes whatever the pattern hits, or else an earlier line; ours none before an odd one."""
    assert SCORE_PATTERN == r"Final Validation Performance:\s*([\d.eE+-]+)"
    texts = OUTPUTS.replace("L", LINE).split("|")
    lines = [f"{text!r}: {parse_score(text)}, {tuple(read_score(text))}" for text in texts]
    for line in ODD_LINES:
        for before in ("", f"{LINE}0.5\n"):
            text = f"{before}{line}\nended\n"
            lines.append(f"{text!r}: {parse_score(text)}, {tuple(read_score(text))}")
    for words in FAR.replace("\n", " ").strip().split(", "):
        metric, direction, score = words.rsplit(" ", 2)
        known = {"evaluation_metric": metric, "metric_direction": MetricDirection(direction)}
        reading = read_score(f"{LINE}{score}\n", scale_of(task.model_copy(update=known)))
        lines.append(f"{words}: {tuple(reading)}")
    as_kept("method/scores.txt", "\n".join(lines))


@pytest.mark.req("REQ-EX-011")
@given(score=st.floats(allow_nan=False, allow_infinity=False), before=TEXT, after=TEXT, earlier=st.lists(st.floats()))
def test_scores_survive_any_surrounding_text(score: float, before: str, after: str, earlier: list[float]) -> None:
    lines = "".join(f"{LINE}{number}\n" for number in earlier)
    stdout = f"{before}\n{lines}{before}\n{LINE}{score}\n{after}"
    assert parse_score(stdout) == read_score(stdout).score == score


@pytest.mark.req("REQ-EX-011", "REQ-DM-027")
@given(st.lists(st.sampled_from([LINE, "0.5", "1e5", "nan", "inf", "-", "e", ".", " ", "\n", "Final ", "0.85.", "%"])))
def test_every_score_stands_alone_on_a_line_and_is_a_hit_of_the_pattern(parts: list[str]) -> None:
    stdout = "".join(parts)
    score = read_score(stdout).score
    whole = [line.strip() for line in stdout.split("\n") if line.strip().startswith(LINE.strip())]
    assert score is None or score in [float(hit) for line in whole for hit in re.findall(f"^{SCORE_PATTERN}$", line)]


@pytest.mark.req("REQ-EX-011")
def test_a_megabyte_of_output_is_read_in_milliseconds_and_of_lines_that_are_none_in_proportion() -> None:
    for stdout in (f"{LOSS}{LINE}0.5\n", f"{LINE}0.5\n{LOSS}", NO_COLON, "no score here " * 71_000):
        seconds = timeit.repeat(lambda: parse_score(stdout), number=1, repeat=30, timer=thread_time)  # noqa: B023
        assert min(seconds) < 0.010
    for text in (filler * (1_000_000 // len(filler)) for filler in FILLERS):
        seconds = timeit.repeat(lambda: (parse_score(text), read_score(text)), number=1, repeat=5, timer=thread_time)  # noqa: B023
        assert min(seconds) < 4


def test_ablation_lines_are_read_in_order_and_those_that_say_where_the_solution_errs() -> None:
    stdout = (
        "Ablation baseline: 0.8196\nsome log: 3\n  Ablation no scaler: 0.8102\n"
        "Ablation model: depth 3: 8e-1\nAblation broken: nan\nAblation : 1\nAblation words: many\n"
        "The ablation is done: 1\nAblation baseline: 0.82\r\n"
    )
    scores = parse_ablation_lines(stdout)
    assert scores == {"baseline": 0.82, "no scaler": 0.8102, "model: depth 3": 0.8}
    assert list(scores) == ["baseline", "no scaler", "model: depth 3"]
    stdout = "Ablation baseline: 0.8\n  Analysis: rows of 2019 err most \r\nNo Analysis: here\nAnalysis:old ones too\n"
    assert parse_analysis(stdout) == "rows of 2019 err most\nold ones too"
    assert parse_analysis("Ablation baseline: 0.8\n") == ""


@given(st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False)), TEXT)
def test_every_printed_ablation_is_found_again(scores: dict[str, float], noise: str) -> None:
    noise = noise.replace("Ablation", "")
    stdout = "".join(f"{noise}\nAblation {name}: {score}\n" for name, score in scores.items())
    assert parse_ablation_lines(stdout) == scores
