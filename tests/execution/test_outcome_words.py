"""What the scorer says, word by word: the debugger acts on nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from mle_star.execution import build_evaluation_result, debug_text, exception_line, trim_traceback
from mle_star.execution.outcome import HEADER, MAX_MESSAGE
from mle_star.models import DataModality, Isolation, MetricDirection, TaskDescription, TaskType
from tests.execution.test_outcome import TRACE, raw


def frame(path: str, name: str) -> str:
    return f'  File "{path}", line 7, in {name}\n    {name}()'


STACK = [
    frame("/usr/lib/python3.11/runpy.py", "start"),
    frame("/tmp/run/solution.py", "main"),
    frame("/v/lib/python3.11/site-packages/pandas/a.py", "one"),
    frame("/v/lib/python3.11/site-packages/pandas/b.py", "two"),
    frame("/v/lib/python3.11/site-packages/pandas/c.py", "three"),
]


def test_of_a_stack_the_script_and_the_place_of_the_error_are_kept_and_the_rest_is_counted() -> None:
    assert trim_traceback("\n".join([HEADER, *STACK, "KeyError: 'a'"])) == "\n".join(
        [
            HEADER,
            "  ... 1 more frames ...",
            frame("solution.py", "main"),
            "  ... 2 more frames ...",
            frame("pandas/c.py", "three"),
            "KeyError: 'a'",
        ]
    )
    own = [frame("/a/solution.py", "first"), frame("/a/solution.py", "second")]
    assert trim_traceback("\n".join([HEADER, *own, "E: x"])) == "\n".join(
        [HEADER, frame("solution.py", "first"), frame("solution.py", "second"), "E: x"]
    )


def test_of_a_long_message_both_ends_are_kept() -> None:
    half = MAX_MESSAGE // 2
    said = trim_traceback(f"{HEADER}\n{STACK[1]}\n{'a' * 3000}{'b' * 3000}").partition("main()\n")[2]
    left_out = 6000 - MAX_MESSAGE
    assert said == f"{'a' * half}\n[... {left_out} characters left out ...]\n{'b' * half}"


def test_only_the_last_traceback_of_a_failed_script_is_told_with_all_that_follows_it() -> None:
    last = TRACE.replace("boom", "bang")
    stderr = f"{TRACE}\n\nDuring handling of the above exception, another exception occurred:\n\n{last}\nsee the log\n"
    assert build_evaluation_result(raw(stderr=stderr, exit_code=1)).error_traceback == f"{last}\nsee the log"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{TRACE}\n{TRACE.replace('boom', 'bang')}\nmore", "ValueError: bang"),
        (f"{HEADER}\n{STACK[1]}\nXGBoostError: no gpu\nfirst\nsecond", "XGBoostError: no gpu"),
        (f"{HEADER}\n{STACK[1]}", "main()"),
        ("  one\n  two  \n\n", "two"),
        (f"{HEADER}\nE: {'x' * 300}", f"E: {'x' * 197}"),
        ("", ""),
    ],
)
def test_the_exception_is_the_first_line_below_the_last_stack_or_else_the_last_line(text: str, line: str) -> None:
    assert exception_line(text) == line


@pytest.mark.req("REQ-EX-021")
@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"exit_code": -1, "timed_out": True},
         "TimeoutError: the script was stopped at the time limit of 7 seconds; "
         "make it faster, as far as the rules allow"),
        ({"exit_code": -1}, "RuntimeError: the script was killed by SIGHUP"),
        ({"exit_code": -9}, "RuntimeError: the script was killed by SIGKILL (it probably used too much memory)"),
        ({"exit_code": -9, "stderr": "x\n[mle-star] first\n[mle-star] more than 60 processes\n"},
         "RuntimeError: the script was killed by SIGKILL (more than 60 processes)"),
        ({"exit_code": -99}, "RuntimeError: the script was killed by signal 99"),
        ({"exit_code": 2}, "RuntimeError: the script ended with exit code 2"),
        ({"exit_code": 2, "stderr": "a\nusage: b\n"}, "RuntimeError: the script ended with exit code 2: usage: b"),
        ({"exit_code": 1, "stderr": '  File "s.py", line 1\n    (\nSyntaxError: bad'}, "SyntaxError: bad"),
        ({"exit_code": 1, "stderr": "ValueError: logged\nthen it said no"},
         "RuntimeError: the script ended with exit code 1: then it said no"),
        ({}, "RuntimeError: the script ended without printing its score line 'Final Validation Performance: <number>'"),
        ({"stdout": "Final Validation Performance: 85%"},
         "RuntimeError: the score line cannot be used: the line says 85%: print a plain number"),
    ],
)  # fmt: skip
def test_the_cause_is_told_in_one_line(facts: dict[str, Any], cause: str) -> None:
    text = debug_text(build_evaluation_result(raw(**facts), timeout_seconds=7))
    log = "".join(f"  {line}\n" for line in facts.get("stderr", "").splitlines())
    assert text == f"{HEADER}\n{log}{cause}"


@pytest.mark.parametrize("ending", [{"exit_code": 1}, {"exit_code": 0}, {"exit_code": -1, "refused": True}])
def test_a_traceback_that_ended_the_script_is_all_that_is_told(ending: dict[str, Any]) -> None:
    result = build_evaluation_result(raw(exit_code=1, stderr=f"a log\n{TRACE}")).model_copy(update=ending)
    assert debug_text(result) == result.error_traceback and HEADER in debug_text(result)


def test_in_a_sandbox_a_signal_may_have_been_an_exit_code() -> None:
    killed = raw(exit_code=-9).model_copy(update={"isolation": Isolation(sandbox="bubblewrap")})
    assert debug_text(build_evaluation_result(killed)).endswith(
        "killed by SIGKILL (it probably used too much memory), unless it ended itself with exit code 137"
    )


@pytest.mark.req("REQ-EX-011", "REQ-EX-014")
@pytest.mark.parametrize(
    ("metric", "direction", "score", "problem"),
    [
        ("accuracy", MetricDirection.maximize, None, "the line says 1.5, but accuracy is at least 0 and at most 1"),
        ("accuracy", MetricDirection.minimize, 1.5, ""),  # turned round: nobody knows its range
        ("points of our own", MetricDirection.maximize, 1.5, ""),
        ("rmse", MetricDirection.minimize, 1.5, ""),
    ],
)
def test_a_score_that_the_metric_cannot_take_is_none(
    metric: str, direction: MetricDirection, score: float | None, problem: str
) -> None:
    task = TaskDescription(
        competition_id="c", task_type=TaskType.classification, data_modality=DataModality.tabular,
        evaluation_metric=metric, metric_direction=direction, description="d",
    )  # fmt: skip
    result = build_evaluation_result(raw("Final Validation Performance: 1.5\n"), task=task)
    assert (result.score, result.score_problem) == (score, problem)
    assert build_evaluation_result(raw("Final Validation Performance: 1.5\n")).score == 1.5
