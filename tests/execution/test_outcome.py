"""From output to a scored result: score, failure, and a traceback worth reading."""

from __future__ import annotations

import subprocess
import sys
import timeit
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mle_star.execution import (
    build_evaluation_result,
    debug_text,
    detect_error,
    exception_line,
    extract_traceback,
    parse_score,
    trim_traceback,
)
from mle_star.execution.outcome import HEADER, script_failed
from mle_star.models import EvaluationResult, ExecutionRawResult

TRACE = f'{HEADER}\n  File "a.py", line 1, in <module>\n    boom()\nValueError: boom'


def raw(stdout: str = "", stderr: str = "", exit_code: int = 0, timed_out: bool = False) -> ExecutionRawResult:
    return ExecutionRawResult(
        stdout=stdout, stderr=stderr, exit_code=exit_code, duration_seconds=1.5, timed_out=timed_out
    )


@pytest.mark.req("REQ-EX-008")
def test_a_raw_result_holds_five_facts_and_is_frozen() -> None:
    fields = {name: field.annotation for name, field in ExecutionRawResult.model_fields.items()}
    wanted = {"stdout": str, "stderr": str, "exit_code": int, "duration_seconds": float, "timed_out": bool}
    assert wanted.items() <= fields.items()
    with pytest.raises(ValidationError):
        raw().exit_code = 1  # type: ignore[misc]


@pytest.mark.req("REQ-EX-011")
@pytest.mark.parametrize(
    ("stdout", "score"),
    [
        ("Final Validation Performance: 0.8196\n", 0.8196),
        ("Training complete.\n", None),
        ("Final Validation Performance: 0.5\nFinal Validation Performance: 0.8196\n", 0.8196),
        ("Final Validation Performance: 0.5\nFinal Validation Performance: 0.85.\n", None),
        ("Final Validation Performance: 0.5\nFinal Validation Performance: 1-2\n", None),
        ("Final Validation Performance: 0.5\nFinal Validation Performance: nan\n", 0.5),
        ("Final Validation Performance: 1e999\n", None),
        ("Final Validation Performance: -1.5e-3\n", -0.0015),
    ],
)
def test_the_last_score_line_decides(stdout: str, score: float | None) -> None:
    assert parse_score(stdout) == score


@pytest.mark.req("REQ-EX-012")
@pytest.mark.parametrize(
    ("stderr", "found"),
    [
        ("just a warning\n", None),
        ("  File 'x.py', line 1\nSyntaxError: invalid syntax\n", None),
        (TRACE + "\n", TRACE),
        (f"{TRACE}\n\nDuring handling of the above exception, another exception occurred:\n\n"
         f"{TRACE.replace('boom', 'bang')}\nINFO done\n", TRACE.replace("boom", "bang")),
        (f"{TRACE}\n  and its second line\nlater log\n", f"{TRACE}\n  and its second line"),
        (f"ERROR:root:{TRACE}\n", TRACE),
        (f"{HEADER}\n", HEADER),
    ],
)  # fmt: skip
def test_the_last_traceback_is_cut_out(stderr: str, found: str | None) -> None:
    assert extract_traceback(stderr) == found


@pytest.mark.req("REQ-EX-013")
def test_exit_code_timeout_and_traceback_each_look_like_an_error() -> None:
    for code in (0, 1, -9):
        for late in (False, True):
            for text in ("", "a warning\n", f"log\n{TRACE}\nlog\n"):
                expected = code != 0 or late or HEADER in text
                assert detect_error(raw(stderr=text, exit_code=code, timed_out=late)) is expected


@pytest.mark.req("REQ-EX-014")
def test_a_clean_run_has_a_score_and_no_traceback() -> None:
    result = build_evaluation_result(raw("Final Validation Performance: 0.82\n", "a warning"))
    assert result == EvaluationResult(
        score=0.82,
        stdout="Final Validation Performance: 0.82\n",
        stderr="a warning",
        exit_code=0,
        duration_seconds=1.5,
        is_error=False,
        error_traceback=None,
    )


@pytest.mark.req("REQ-EX-014")
def test_a_crash_after_the_score_line_keeps_score_and_flag() -> None:
    result = build_evaluation_result(raw("Final Validation Performance: 0.82\n", TRACE, 1))
    assert (result.score, result.is_error, result.error_traceback) == (0.82, True, TRACE)
    late = build_evaluation_result(raw("Final Validation Performance: 0.82\n", exit_code=-1, timed_out=True))
    assert (late.score, late.is_error, late.timed_out, late.error_traceback) == (0.82, True, True, None)


def test_a_traceback_that_a_library_logs_is_no_failure_unless_an_ablation_ends_in_it() -> None:
    logged = raw("Final Validation Performance: 0.8", f"{TRACE}\nINFO went on\n")
    ended = raw("Final Validation Performance: 0.8", f"INFO begun\n{TRACE}\n")
    assert detect_error(logged) and not build_evaluation_result(logged).is_error
    assert not script_failed(logged, "ablation")
    assert not script_failed(ended, "solution") and script_failed(ended, "ablation")
    assert script_failed(raw(exit_code=1), "ablation") and script_failed(raw(timed_out=True), "solution")


def real_traceback(tmp_path: Path, code: str) -> str:
    path = tmp_path / "solution.py"
    path.write_text(code)
    said = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False).stderr
    return extract_traceback(said) or ""


def test_a_trimmed_traceback_keeps_the_script_s_frames_and_the_place_of_the_error(tmp_path: Path) -> None:
    found = real_traceback(tmp_path, "import json\ndef load():\n    return json.loads('{')\nload()\n")
    trimmed = trim_traceback(found)
    assert trimmed.startswith(HEADER)
    assert 'File "solution.py", line 4' in trimmed and 'File "solution.py", line 3, in load' in trimmed
    assert str(tmp_path) not in trimmed and sys.base_prefix not in trimmed
    assert "more frames" in trimmed and 'File "json/decoder.py"' in trimmed
    assert trimmed.splitlines()[-1].startswith("json.decoder.JSONDecodeError")
    assert len(trimmed) < len(found)


def test_a_deep_recursion_becomes_a_short_text(tmp_path: Path) -> None:
    found = real_traceback(tmp_path, "def f(n):\n    return g(n)\ndef g(n):\n    return f(n + 1)\nf(0)\n")
    trimmed = trim_traceback(found)
    assert len(trimmed.splitlines()) < 60
    assert "RecursionError" in trimmed.splitlines()[-1]


@pytest.mark.parametrize(
    "stack",
    [
        '  File "solution.py", line 1, in f\n' + f"    {'x' * 999}\n" * 4000,
        f'  File "solution.py", line 1, in {"f" * 4_000_000}\n',
        f'  File "/usr/{"lib" * 1_000_000}/a.py", line 1, in f\n',
    ],
    ids=["many lines in a frame", "a long name", "a long path"],
)
def test_a_traceback_of_megabytes_becomes_a_short_text(stack: str) -> None:
    trimmed = trim_traceback(f"{HEADER}\n{stack * 2}{TRACE.partition(chr(10))[2]}")
    assert trimmed.startswith(HEADER) and trimmed.endswith("ValueError: boom")
    assert len(trimmed) < 6000


def test_a_last_line_of_megabytes_is_not_all_told() -> None:
    text = debug_text(build_evaluation_result(raw(exit_code=3, stderr="x" * 4_000_000)))
    assert len(text) < 6000


@given(st.text(), st.text())
def test_trimming_never_fails_and_always_begins_with_the_header(stack: str, message: str) -> None:
    trimmed = trim_traceback(f"{HEADER}\n{stack}\nValueError: {message}")
    assert trimmed.startswith(HEADER)
    assert len(trimmed) < 20_000


@pytest.mark.req("REQ-EX-021")
@pytest.mark.parametrize(
    ("result", "ends"),
    [
        (raw(exit_code=-1, timed_out=True), "TimeoutError: the script was stopped at the time limit of 7 seconds"),
        (raw(exit_code=-1), "RuntimeError: the script was killed by SIGHUP"),
        (
            raw(exit_code=-1, timed_out=True, stderr=TRACE),
            "TimeoutError: the script was stopped at the time limit of 7",
        ),
        (raw(exit_code=-11, stderr=TRACE), "RuntimeError: the script was killed by SIGSEGV"),
        (raw(exit_code=3, stderr=f"{TRACE}\nwent on"), "RuntimeError: the script ended with exit code 3: went on"),
        (raw(exit_code=-9), "it probably used too much memory"),
        (raw(exit_code=-9, stderr="x\n[mle-star] killed: more than 60 processes"), "killed: more than 60 processes"),
        (raw(exit_code=2, stderr="usage: ..."), "RuntimeError: the script ended with exit code 2: usage: ..."),
        (raw(exit_code=1, stderr='  File "s.py", line 1\n    (\nSyntaxError: bad'), "SyntaxError: bad"),
        (raw(), "without printing its score line"),
    ],
)
def test_the_debugger_always_gets_a_text_with_a_header_and_a_cause(result: ExecutionRawResult, ends: str) -> None:
    text = debug_text(build_evaluation_result(result, timeout_seconds=7))
    assert text.startswith(HEADER)
    assert ends in text.splitlines()[-1] and exception_line(text) == text.splitlines()[-1]


def test_of_a_long_log_only_the_end_reaches_the_debugger() -> None:
    text = debug_text(build_evaluation_result(raw(exit_code=3, stderr="\n".join(f"line {i}" for i in range(10_000)))))
    assert "line 9950" in text and "line 9949" not in text


@pytest.mark.req("REQ-EX-036")
@pytest.mark.parametrize("filler", ["x" * 99 + "\n", "Final Validation\n", "epoch 1: Performance 0.5\n"])
def test_a_megabyte_is_searched_in_no_time(filler: str) -> None:
    text = "Final Validation Performance: 0.25\n" + filler * (1_000_000 // len(filler))
    assert min(timeit.repeat(lambda: parse_score(text), number=1, repeat=30)) < 0.010


@pytest.mark.req("REQ-EX-036")
def test_the_traceback_search_takes_time_in_proportion() -> None:
    long = f"{HEADER}\n" + '  File "a.py", line 1, in f\n    f()\n' * 25_000 + "ValueError: boom\n"
    for text in (f"{TRACE}\n" * 10_000, long):  # of a megabyte each
        assert min(timeit.repeat(lambda: extract_traceback(text), number=1, repeat=20)) < 0.1  # noqa: B023


GROUP_SCRIPT = """
def fit(number):
    raise ValueError(f"fold {number}")

def fit_all():
    errors = []
    for number in range(2):
        try:
            fit(number)
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup("folds failed", errors)

fit_all()
"""


@pytest.mark.req("REQ-EX-012")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")
def test_of_a_group_of_exceptions_the_whole_is_told_and_its_own_line_names_it(tmp_path: Path) -> None:
    script = tmp_path / "solution.py"
    script.write_text(GROUP_SCRIPT, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    whole = done.stderr.strip("\n")
    assert extract_traceback(f"{TRACE}\n{done.stderr}INFO: bye\n") == whole
    text = debug_text(build_evaluation_result(raw(exit_code=1, stderr=f"{TRACE}\n{done.stderr}")))
    assert exception_line(text) == "ExceptionGroup: folds failed (2 sub-exceptions)"
    assert "fold 0" in text and "fold 1" in text and str(tmp_path) not in text and 'File "solution.py", line 3' in text
    later = debug_text(build_evaluation_result(raw(exit_code=1, stderr=f"{done.stderr}{TRACE}\n")))
    assert exception_line(later) == "ValueError: boom" and "fold" not in later


@pytest.mark.parametrize(
    "said",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: out of memory",
        "xgboost.core.XGBoostError: bad_allocation: std::bad_alloc: cudaErrorMemoryAllocation: out of memory",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[9,9]",
    ],
)
def test_a_gpu_without_memory_is_named_to_the_debugger_as_such(said: str) -> None:
    stderr = f'{HEADER}\n  File "solution.py", line 3, in <module>\n    fit()\n{said}\n'
    text = debug_text(build_evaluation_result(raw(exit_code=1, stderr=stderr)))
    assert said in text and "the memory of the GPU ran out: use a smaller batch" in text.splitlines()[-1]
    assert exception_line(text) == said[:200]
    other = debug_text(build_evaluation_result(raw(exit_code=1, stderr=f"{HEADER}\nMemoryError: out of memory\n")))
    assert "GPU" not in other
