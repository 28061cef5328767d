"""The sentences about subsampling, and hints on hidden errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mle_star.execution import (
    SUBSAMPLE_INSTRUCTION,
    detect_error_masking,
    get_subsample_instruction,
    request_subsample_extraction,
    request_subsample_removal,
)
from mle_star.models import PipelineConfig, SolutionScript
from tests.execution.conftest import script

CODE = "limit = {'rows': 30000}  # ```\ntrain = train.sample(limit['rows'])"


@pytest.mark.req("REQ-EX-017", "REQ-EX-018")
def test_the_sentence_is_the_specified_one_with_the_limit_in_both_places_in_plain_digits() -> None:
    sentence = "If there are more than {limit} training samples, you must subsample to {limit} for a faster run."
    assert sentence == SUBSAMPLE_INSTRUCTION
    assert get_subsample_instruction(PipelineConfig()) == sentence.replace("{limit}", "30000")
    for limit in (5, 1234567):
        told = get_subsample_instruction(PipelineConfig(subsample_limit=limit))
        assert told == sentence.replace("{limit}", str(limit))


@pytest.mark.req("REQ-EX-019", "REQ-EX-020")
@pytest.mark.parametrize(
    ("request_for", "words"),
    [
        (request_subsample_removal, ["remove", "whole changed script"]),
        (request_subsample_extraction, ["block", "single markdown code block"]),
    ],
)
def test_a_prompt_holds_the_script_and_its_wishes(
    request_for: Callable[[SolutionScript], str], words: list[str]
) -> None:
    prompt = request_for(script(CODE))
    assert CODE in prompt
    wishes = prompt.replace(CODE, "").lower()
    assert all(word in wishes for word in ("subsampl", *words))


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
