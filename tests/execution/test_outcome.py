"""From output to a scored result: score, failure, a traceback worth reading, and the order of results."""

import itertools
import subprocess
import sys
import timeit
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mle_star import execution as ex
from mle_star import models as m
from mle_star.execution.outcome import HEADER, MAX_MESSAGE, failed, script_failed, trim_traceback
from mle_star.method.scores import best_of
from tests.conftest import as_kept
from tests.execution.conftest import script

TRACE = f'{HEADER}\n  File "a.py", line 1, in <module>\n    boom()\nValueError: boom'


def raw(stdout: str = "", stderr: str = "", exit_code: int = 0, **more: Any) -> m.ExecutionRawResult:
    facts: dict[str, Any] = {"duration_seconds": 1.5, "timed_out": False, **more}
    return m.ExecutionRawResult(stdout=stdout, stderr=stderr, exit_code=exit_code, **facts)


def debugged(**facts: Any) -> str:
    """What the debugger is told of a script that ended so."""
    return ex.debug_text(ex.build_evaluation_result(raw(**facts)))


@pytest.mark.req("REQ-EX-013")
def test_exit_code_timeout_and_traceback_each_look_like_an_error() -> None:
    texts = ("", "a warning\n", f"log\n{TRACE}\nlog\n")
    for code, late, text in itertools.product((0, 1, -9), (False, True), texts):
        expected = code != 0 or late or HEADER in text
        assert ex.detect_error(raw(stderr=text, exit_code=code, timed_out=late)) is expected


@pytest.mark.req("REQ-EX-011", "REQ-EX-014")
def test_a_clean_run_has_a_score_and_a_crash_after_the_score_line_keeps_it(task: m.TaskDescription) -> None:
    line = "Final Validation Performance: 0.82\n"
    clean = raw(line, "a warning")
    assert ex.build_evaluation_result(clean) == m.EvaluationResult(**dict(clean), score=0.82, is_error=False)
    kept = m.EvaluationResult(**dict(clean), score=0.5, is_error=True, error_traceback=f"{HEADER}\nValueError: odd")
    assert failed(ex.build_evaluation_result(clean), "ValueError: odd", score=0.5) == kept
    result = ex.build_evaluation_result(raw(line, TRACE, 1))
    assert (result.score, result.is_error, result.error_traceback) == (0.82, True, TRACE)
    odd = ex.build_evaluation_result(raw("Final Validation Performance: 1.5"), task=task, timeout_seconds=7)
    assert (odd.score, odd.timeout_seconds) == (None, 7)
    assert odd.score_problem == "the line says 1.5, but accuracy is at least 0 and at most 1"
    assert ex.build_evaluation_result(raw("Final Validation Performance: 1.5")).score == 1.5, "nobody knows its range"
    late = ex.build_evaluation_result(raw(line, exit_code=-1, timed_out=True))
    assert (late.score, late.is_error, late.timed_out, late.error_traceback) == (0.82, True, True, None)


def test_a_traceback_that_a_library_logs_is_no_failure_unless_an_ablation_ends_in_it() -> None:
    logged = raw("Final Validation Performance: 0.8", f"{TRACE}\nINFO went on\n")
    ended = raw("Final Validation Performance: 0.8", f"INFO begun\n{TRACE}\n")
    assert ex.detect_error(logged) and not ex.build_evaluation_result(logged).is_error
    assert not script_failed(logged, "ablation")
    assert not script_failed(ended, "solution") and script_failed(ended, "ablation")
    assert script_failed(raw(exit_code=1), "ablation") and script_failed(raw(timed_out=True), "solution")


def written_to_stderr(code: str, tmp_path: Path) -> str:
    (tmp_path / "solution.py").write_text(code, encoding="utf-8")
    words = [sys.executable, str(tmp_path / "solution.py")]
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr


def test_of_an_endless_recursion_a_few_frames_are_told(tmp_path: Path) -> None:
    endless = trim_traceback(written_to_stderr("def f(n):\n    return f(n + 1)\nf(0)\n", tmp_path).strip())
    assert len(endless.splitlines()) < 60 and "RecursionError" in endless.splitlines()[-1]


@given(st.text(), st.text())
def test_trimming_never_fails_and_always_begins_with_the_header(stack: str, message: str) -> None:
    trimmed = trim_traceback(f"{HEADER}\n{stack}\nValueError: {message}")
    assert trimmed.startswith(HEADER) and len(trimmed) < 20_000


def test_of_a_long_traceback_or_log_only_a_short_text_reaches_the_debugger() -> None:
    line = '  File "solution.py", line 1, in '
    long = [f"{line}{'f' * 4_000_000}\n", f'  File "/usr/{"lib" * 1_000_000}/a.py", line 1, in f\n']
    for stack in (f"{line}f\n" + f"    {'x' * 999}\n" * 4000, *long):
        trimmed = trim_traceback(f"{HEADER}\n{stack * 2}{TRACE.partition(chr(10))[2]}")
        assert trimmed.startswith(HEADER) and trimmed.endswith("ValueError: boom") and len(trimmed) < 6000
    assert len(debugged(exit_code=3, stderr="x" * 4_000_000)) < 6000
    text = debugged(exit_code=3, stderr="\n".join(f"line {i}" for i in range(10_000)))
    assert "line 9950" in text and "line 9949" not in text


@pytest.mark.req("REQ-EX-036")
def test_the_traceback_search_takes_time_in_proportion() -> None:
    long = f"{HEADER}\n" + '  File "a.py", line 1, in f\n    f()\n' * 25_000 + "ValueError: boom\n"
    for text in (f"{TRACE}\n" * 10_000, long):  # of a megabyte each
        seconds = timeit.repeat(lambda: ex.extract_traceback(text), number=1, repeat=20, timer=thread_time)  # noqa: B023
        assert min(seconds) < 0.1


GROUP_SCRIPT = """
def fit(number):
    try:
        raise ValueError(f"fold {number}")
    except ValueError as error:
        return error

raise ExceptionGroup("folds failed", [fit(0), fit(1)])
"""


@pytest.mark.req("REQ-EX-012")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")
def test_of_a_group_of_exceptions_the_whole_is_told_and_its_own_line_names_it(tmp_path: Path) -> None:
    stderr = written_to_stderr(GROUP_SCRIPT, tmp_path)
    assert ex.extract_traceback(f"{stderr}{TRACE}\n{stderr}INFO: bye\n") == stderr.strip("\n")
    text = debugged(exit_code=1, stderr=f"{TRACE}\n{stderr}")
    assert ex.exception_line(text) == "ExceptionGroup: folds failed (2 sub-exceptions)"
    assert "fold 0" in text and "fold 1" in text and str(tmp_path) not in text and 'File "solution.py", line 4' in text
    later = debugged(exit_code=1, stderr=f"{stderr}{TRACE}\n")
    assert ex.exception_line(later) == "ValueError: boom" and "fold" not in later


@pytest.mark.parametrize(
    "error",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: out of memory",
        "xgboost.core.XGBoostError: bad_allocation: std::bad_alloc: cudaErrorMemoryAllocation: out of memory",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[9,9]",
    ],
)
def test_a_gpu_without_memory_is_named_to_the_debugger_as_such(error: str) -> None:
    text = debugged(exit_code=1, stderr=f'{HEADER}\n  File "solution.py", line 3, in <module>\n    fit()\n{error}\n')
    assert error in text and "the memory of the GPU ran out: use a smaller batch" in text.splitlines()[-1]
    assert ex.exception_line(text) == error[:200]
    assert "GPU" not in debugged(exit_code=1, stderr=f"{HEADER}\nMemoryError: out of memory\n")


def frame(path: str, name: str) -> str:
    return f'  File "{path}", line 7, in {name}\n    {name}()'


STACK = [
    frame("/usr/lib/python3.11/runpy.py", "start"),
    frame("/tmp/run/solution.py", "main"),
    frame("/v/lib/python3.11/site-packages/pandas/a.py", "one"),
    frame("/v/lib/python3.11/site-packages/pandas/b.py", "two"),
    frame("/v/lib/python3.11/site-packages/pandas/c.py", "three"),
]


def test_of_the_last_stack_the_script_and_the_place_of_the_error_are_kept_and_of_a_long_message_both_ends() -> None:
    own = [frame("/a/solution.py", "first"), frame("/a/solution.py", "second")]
    stacks = ("\n".join([HEADER, *stack]) for stack in ([*STACK, "KeyError: 'a'"], [*own, "E: x"]))
    as_kept("execution/trimmed.txt", "\n".join(map(trim_traceback, stacks)))
    half = MAX_MESSAGE // 2
    message = trim_traceback(f"{HEADER}\n{STACK[1]}\n{'a' * 3000}{'b' * 3000}").partition("main()\n")[2]
    left_out = 6000 - MAX_MESSAGE
    assert message == f"{'a' * half}\n[... {left_out} characters left out ...]\n{'b' * half}"
    last = TRACE.replace("boom", "bang")
    stderr = f"{TRACE}\n\nDuring handling of the above exception, another exception occurred:\n\n{last}\nsee the log\n"
    result = ex.build_evaluation_result(raw(stderr=stderr, exit_code=1))
    for ending in ({"exit_code": 1}, {"exit_code": 0}, {"exit_code": -1, "refused": True}):
        assert ex.debug_text(result.model_copy(update=ending)) == result.error_traceback == f"{last}\nsee the log"


BANG = TRACE.replace("boom", "bang")
TEXTS = [
    "just a warning\n", "  File 'x.py', line 1\nSyntaxError: invalid syntax\n", f"{TRACE}\n", f"ERROR:root:{TRACE}\n",
    f"{TRACE}\n\nDuring handling of the above exception, another exception occurred:\n\n{BANG}\nINFO done\n",
    f"{TRACE}\n  and its second line\nlater log\n", f"{HEADER}\n", f"{TRACE}\n{BANG}\nmore", f"{HEADER}\n{STACK[1]}",
    f"{HEADER}\n{STACK[1]}\nXGBoostError: no gpu\nfirst\nsecond", f"{HEADER}\n x\nE", "  one\n  two  \n\n",
    f"{HEADER}\nE: {'x' * 300}", "",
]  # fmt: skip


@pytest.mark.req("REQ-EX-012")
def test_the_last_traceback_is_cut_out_and_the_exception_is_the_first_line_below_its_stack_or_the_last_line() -> None:
    lines = [f"{text!r}\n    {ex.extract_traceback(text)!r}\n    {ex.exception_line(text)!r}" for text in TEXTS]
    as_kept("execution/tracebacks.txt", "\n".join(lines))


ENDS: list[dict[str, Any]] = [
    *({"exit_code": code} for code in (-1, -9, -99, 2)), {}, {"stdout": "Final Validation Performance: 85%"},
    *({"exit_code": -1, "timed_out": True, "stderr": text} for text in ("", TRACE)),
    {"exit_code": -9, "stderr": "x\n[mle-star] a\n[mle-star] b\n[mle-star] more than 60 processes\n"},
    {"exit_code": -9, "isolation": m.Isolation(sandbox="bubblewrap")}, {"exit_code": -11, "stderr": TRACE},
    {"exit_code": 3, "stderr": f"{TRACE}\nwent on"}, {"exit_code": 2, "stderr": "a\nusage: b\n"},
    {"exit_code": 1, "stderr": '  File "s.py", line 1\n    (\nSyntaxError: bad'},
    {"exit_code": 1, "stderr": "ValueError: logged\nthen it said no"},
]  # fmt: skip


@pytest.mark.req("REQ-EX-021")
def test_the_cause_is_told_in_one_line() -> None:
    causes = []
    for facts in ENDS:
        text = ex.debug_text(ex.build_evaluation_result(raw(**facts), timeout_seconds=7))
        log = "".join(f"  {line}\n" for line in facts.get("stderr", "").splitlines())
        causes.append(text.removeprefix(f"{HEADER}\n{log}"))
        assert ex.exception_line(text) == causes[-1][:200]
    as_kept("execution/causes.txt", "\n".join(causes))


def test_of_a_script_that_was_stopped_the_debugger_sees_how_far_it_came() -> None:
    printed = "\n".join(f"fold {number}: 3 s" for number in range(80))
    stopped = ex.build_evaluation_result(raw(exit_code=-9, timed_out=True, stdout=printed), timeout_seconds=7)
    text = ex.debug_text(stopped)
    assert "It had printed by then:\n  fold 30: 3 s\n" in text and text.endswith("\n  fold 79: 3 s")
    assert ex.exception_line(text).startswith("TimeoutError: the script was stopped at the time limit of 7 seconds")
    assert "fold" not in ex.debug_text(stopped, letter=True)
    assert "fold" not in debugged(exit_code=-9, stdout=printed), "it was not the clock"
    assert "limit of 2 seconds" in debugged(timed_out=True, duration_seconds=2), "where none is known, what it took"


MAX, MIN = m.MetricDirection.maximize, m.MetricDirection.minimize


def ended(score: float | None, bad: bool = False) -> m.EvaluationResult:
    return m.EvaluationResult(score=score, stdout="", stderr="", exit_code=int(bad), duration_seconds=0.0, is_error=bad)


Ended = tuple[float | None, bool]


@pytest.mark.req("REQ-EX-022", "REQ-EX-027")
@given(
    st.lists(st.tuples(st.none() | st.integers(-3, 3).map(float), st.booleans()), max_size=8),
    st.sampled_from([MAX, MIN]),
)
@example([(None, False), (0.99, True), (0.8, False), (0.9, False), (None, True), (1.0, True), (0.8, False)], MAX)
def test_better_ones_lead_then_unscored_then_failed_and_ties_stay(ends: list[Ended], way: m.MetricDirection) -> None:
    scripts, results = [script(f"x = {i}") for i in range(len(ends))], [ended(*end) for end in ends]
    sign = -1 if way is MAX else 1
    works = sorted((end[0] is None, sign * (end[0] or 0.0), i) for i, end in enumerate(ends) if not end[1])
    order = [*(i for _, _, i in works), *(i for i, end in enumerate(ends) if end[1])]
    ranked = ex.rank_solutions(scripts, results, way)
    assert ranked == [(scripts[i], results[i]) for i in order]
    scored = [(sign * score, i) for i, (score, _) in enumerate(ends) if score is not None]
    assert best_of(range(len(ends)), lambda i: ends[i][0], way) == (min(scored)[1] if scored else None)
    assert [one.content for one in scripts] == [f"x = {i}" for i in range(len(ends))]
    with pytest.raises(ValueError, match=f"{len(ends)} solutions but {len(ends) + 1} results"):
        ex.rank_solutions(scripts, [*results, ended(None)], way)


@pytest.mark.req("REQ-EX-023")
def test_better_is_strict_and_without_error() -> None:
    for new, old in itertools.product((0.8, 0.9), repeat=2):
        assert ex.is_better_solution(ended(new), old, MAX) is (new > old)
        assert ex.is_better_solution(ended(new), old, MIN) is (new < old)
    for result in (ended(None), ended(0.9, bad=True)):
        assert not ex.is_better_solution(result, 0.1, MAX)
