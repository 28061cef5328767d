"""Reading scores in the output of scripts."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.models import SCORE_PATTERN, MetricDirection
from mle_star.scoring import ablation_impacts, direction_word, parse_ablation_lines, parse_score

LINE = "Final Validation Performance: "


@pytest.mark.req("REQ-EX-011", "REQ-DM-027")
@pytest.mark.parametrize(
    ("stdout", "score"),
    [
        (f"{LINE}0.8196\n", 0.8196),
        ("Training complete.\n", None),
        ("", None),
        (f"{LINE}0.5\nmore\n{LINE}0.8196\n", 0.8196),
        (f"{LINE}0.5\n{LINE}0.85.\n", None),
        (f"{LINE}0.5\n{LINE}1-2\n", None),
        (f"{LINE}0.5\n{LINE}nan\n", 0.5),
        (f"{LINE}nan\n", None),
        (f"{LINE}inf\n", None),
        (f"{LINE}-inf\n", None),
        (f"{LINE}1e999\n", None),
        (f"{LINE}1e-5", 1e-5),
        (f"{LINE}-1e-3 (lower is better)", -1e-3),
        (f"epoch 3 {LINE}7", 7.0),
        ("Final Validation Performance:0.25", 0.25),
        ("Final Validation Performance:\n  0.25", 0.25),
    ],
)
def test_the_last_score_line_decides(stdout: str, score: float | None) -> None:
    assert parse_score(stdout) == score


TEXT = st.text(max_size=80).filter(lambda text: "Final Validation" not in text)


@pytest.mark.req("REQ-EX-011")
@given(score=st.floats(allow_nan=False, allow_infinity=False), before=TEXT, after=TEXT, earlier=st.lists(st.floats()))
def test_scores_survive_any_surrounding_text(score: float, before: str, after: str, earlier: list[float]) -> None:
    lines = "".join(f"{LINE}{number}\n" for number in earlier)
    assert parse_score(f"{before}\n{lines}{before}\n{LINE}{score}\n{after}") == score


@pytest.mark.req("REQ-EX-011", "REQ-DM-027")
@given(st.lists(st.sampled_from([LINE, "0.5", "1e5", "nan", "inf", "-", "e", ".", " ", "\n", "Final ", "0.85."])))
def test_reading_from_the_end_gives_the_last_hit_of_the_pattern(parts: list[str]) -> None:
    stdout = "".join(parts)
    hits = re.findall(SCORE_PATTERN, stdout)
    try:
        expected = float(hits[-1]) if hits else None
    except ValueError:
        expected = None
    assert parse_score(stdout) == expected


@pytest.mark.req("REQ-EX-011")
@pytest.mark.parametrize(
    "stdout",
    [
        "epoch 1: loss 0.693\n" * 50_000 + f"{LINE}0.5\n",
        f"{LINE}0.5\n" + "epoch 1: loss 0.693\n" * 50_000,
        "Final Validation Performance\n" * 35_000,
        "no score here " * 71_000,
    ],
    ids=["at the end", "at the start", "without a colon", "none"],
)
def test_a_megabyte_of_output_is_read_in_milliseconds(stdout: str) -> None:
    best = min(_seconds(stdout) for _ in range(5))
    assert best < 0.010


def _seconds(stdout: str) -> float:
    started = time.perf_counter()
    parse_score(stdout)
    return time.perf_counter() - started


def test_ablation_lines_are_read_in_order() -> None:
    stdout = (
        "Ablation baseline: 0.8196\nsome log: 3\n  Ablation no scaler: 0.8102\n"
        "Ablation model: depth 3: 8e-1\nAblation broken: nan\nAblation : 1\nAblation words: many\n"
        "The ablation is done: 1\nAblation baseline: 0.82\r\n"
    )
    scores = parse_ablation_lines(stdout)
    assert scores == {"baseline": 0.82, "no scaler": 0.8102, "model: depth 3": 0.8}
    assert list(scores) == ["baseline", "no scaler", "model: depth 3"]


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@given(st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False)), TEXT)
def test_every_printed_ablation_is_found_again(scores: dict[str, float], noise: str) -> None:
    noise = noise.replace("Ablation", "")
    stdout = "".join(f"{noise}\nAblation {name}: {score}\n" for name, score in scores.items())
    assert parse_ablation_lines(stdout) == scores


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        (MetricDirection.maximize, ["encoder", "scaler", "tuning"]),
        (MetricDirection.minimize, ["tuning", "scaler", "encoder"]),
    ],
)
def test_impacts_put_the_most_harmful_ablation_first(direction: MetricDirection, expected: list[str]) -> None:
    scores = {"Baseline": 0.8, "scaler": 0.75, "encoder": 0.5, "tuning": 0.875}
    impacts = ablation_impacts(scores, direction)
    assert list(impacts) == expected
    assert impacts["encoder"] == pytest.approx(0.3 if direction is MetricDirection.maximize else -0.3)
    assert ablation_impacts({"scaler": 0.5}, direction) == {}


def test_a_better_score_is_higher_or_lower() -> None:
    assert direction_word(MetricDirection.maximize) == "higher"
    assert direction_word(MetricDirection.minimize) == "lower"
