"""The sentences about subsampling, and hints on hidden errors."""

from __future__ import annotations

import pytest

from mle_star.execution import (
    SUBSAMPLE_INSTRUCTION,
    detect_error_masking,
    get_subsample_instruction,
    request_subsample_extraction,
    request_subsample_removal,
)
from mle_star.models import PipelineConfig
from tests.execution.conftest import script

CODE = "limit = {'rows': 30000}  # ```\ntrain = train.sample(limit['rows'])"


@pytest.mark.req("REQ-EX-017")
def test_the_sentence_is_the_specified_one() -> None:
    assert SUBSAMPLE_INSTRUCTION == (
        "If there are more than {limit} training samples, you must subsample to {limit} for a faster run."
    )


@pytest.mark.req("REQ-EX-018")
def test_the_limit_stands_in_both_places_in_plain_digits() -> None:
    text = get_subsample_instruction(PipelineConfig())
    assert text.count("30000") == 2 and "{" not in text
    assert get_subsample_instruction(PipelineConfig(subsample_limit=5)).count(" 5 ") == 2
    assert "1234567" in get_subsample_instruction(PipelineConfig(subsample_limit=1234567))


@pytest.mark.req("REQ-EX-019")
def test_the_removal_prompt_holds_the_script_and_its_three_wishes() -> None:
    prompt = request_subsample_removal(script(CODE))
    assert CODE in prompt
    wishes = prompt.replace(CODE, "").lower()
    assert "subsampl" in wishes and "remove" in wishes and "whole changed script" in wishes


@pytest.mark.req("REQ-EX-020")
def test_the_extraction_prompt_holds_the_script_and_asks_for_one_block() -> None:
    prompt = request_subsample_extraction(script(CODE))
    assert CODE in prompt
    wishes = prompt.replace(CODE, "").lower()
    assert "subsampl" in wishes and "block" in wishes and "single markdown code block" in wishes


@pytest.mark.req("REQ-EX-045")
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("try:\n    f()\nexcept:\n    raise", ["line 3"]),
        ("try:\n    f()\nexcept Exception:\n    pass", ["line 3"]),
        ("try:\n    f()\nexcept BaseException as e:\n    ...", ["line 3"]),
        ("try:\n    f()\nexcept (ValueError, Exception):\n    pass", ["line 3"]),
        ("try:\n    f()\nexcept Exception as e:\n    log(e)", []),
        ("try:\n    f()\nexcept ValueError:\n    pass", []),
        ("try:\n    f()\nexcept:\n    g()\ntry:\n    h()\nexcept Exception:\n    pass", ["line 3", "line 7"]),
        ("def broken(:\ntry:\n    f()\nexcept:\n    g()", ["line 4"]),
        ("def broken(:\ntry:\n    f()\nexcept Exception as e:\n    pass\n", ["line 4"]),
        ("def broken(:\ntry:\n    f()\nexcept Exception as e:\n    log(e)\n", []),
        ("# except: pass", []),
        ("try:\n    f()\nexcept:\n    pass\n" * 5, [f"line {4 * number + 3}" for number in range(5)]),
        (
            "(\ntry:\n    f()\nexcept:\n    pass\n" + "try:\n    f()\nexcept:\n    pass\n" * 4,
            [f"line {4 * number + 4}" for number in range(5)],
        ),
        (f"x = {'-' * 20_000}1\ntry:\n    f()\nexcept:\n    pass\n", ["line 4"]),
        (f"x = {'(' * 20_000}1\ntry:\n    f()\nexcept:\n    pass\n", ["line 4"]),
    ],
    ids=range(15),
)
def test_handlers_that_hide_errors_are_named_with_their_lines(content: str, lines: list[str]) -> None:
    warnings = detect_error_masking(content)
    assert [warning.split(":")[0] for warning in warnings] == lines
