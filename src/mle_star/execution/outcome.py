"""From what a script left behind to a scored result: score, error or not, and a traceback worth reading."""

import re
import signal
from itertools import pairwise, takewhile
from typing import Any

from mle_star.data.metrics import find_metric
from mle_star.execution.process import NOTE
from mle_star.method.scores import Scale, ScoreReading, parse_score, read_score
from mle_star.models import EvaluationResult, ExecutionRawResult, TaskDescription
from mle_star.models.texts import TRACEBACK_HEADER, shorten
from mle_star.run.events import ScriptPurpose

HEADER = TRACEBACK_HEADER
CHANGED_DATA = "the script changed the files in ./input, which are read-only; write to ./final or the current folder"
GROUP_HEADER = f"  + Exception Group {HEADER}"
SCRIPT_NAME = "solution.py"
MAX_MESSAGE = 4000
KEPT_FRAMES = 6
"""So many of the script's own, from both ends of the stack."""
MAX_FRAME_LINES = 5
MAX_LINE = 400
MAX_TRACEBACK = 16 * 1024
MAX_CONTEXT = 50
UNCAUGHT = (0, 1)
"""With these exit codes a traceback is the cause; with others a script continued after it had logged one."""

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt)\b")
_ABOVE_PACKAGE = re.compile(r".*[\\/](?:(?:site|dist)-packages|lib[\\/]python3\.\d+)[\\/]")
_GPU_MEMORY = re.compile(
    r"CUDA (?:error: )?out of memory|cuda\.OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory|RESOURCE_EXHAUSTED.*(?:GPU|memory)|OOM when allocating tensor",
    re.IGNORECASE,
)
_GPU_ADVICE = (
    "[the memory of the GPU ran out: use a smaller batch, mixed precision or a smaller model there, free what is no "
    "longer needed, or do this part on the CPU]"
)
_FRAME = re.compile(r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
_FATAL = "Fatal Python error: "
_CURRENT_STACK = re.compile(r"^Current thread.*\n((?:  .*\n?)*)", re.MULTILINE)
_FRAME_IN_GROUP = re.compile(rf"^[ |]*{_FRAME.pattern[1:]}")


def extract_traceback(stderr: str) -> str | None:
    """The last traceback, from its header to its exception's message; log lines after it are cut."""
    start = _last_header(stderr)
    if start < 0:
        return None
    lines = stderr[start:].splitlines()
    kept = lines[:1]
    raised = lines[0] == GROUP_HEADER  # all of a group is indented
    for line in lines[1:]:
        indented = line[:1] in (" ", "\t")
        if raised and not indented:
            break
        if not indented and line.strip():
            raised = True
        kept.append(line)
    return "\n".join(kept).rstrip()


def _last_header(text: str) -> int:
    """Where the last traceback begins, a group with all that it holds; -1 without one."""
    group, alone = (f"\n{text}".rfind(f"\n{header}") for header in (GROUP_HEADER, HEADER))
    return group if group > alone else text.rfind(HEADER)


def detect_error(raw: ExecutionRawResult) -> bool:
    """Does anything look like an error: the exit code, a timeout, or a traceback anywhere on stderr?"""
    return raw.exit_code != 0 or raw.timed_out or HEADER in raw.stderr


def script_failed(raw: ExecutionRawResult, purpose: ScriptPurpose) -> bool:
    """Did the script fail? A traceback that a library merely logged is no failure; an ablation must not end in one."""
    own = _without_notes(raw.stderr)
    ends_with = extract_traceback(own) if purpose == "ablation" else None
    return raw.exit_code != 0 or raw.timed_out or (ends_with is not None and own.endswith(ends_with))


def _without_notes(stderr: str) -> str:
    return "\n".join(line for line in stderr.splitlines() if not line.startswith(NOTE)).rstrip()


def build_evaluation_result(
    raw: ExecutionRawResult,
    purpose: ScriptPurpose = "solution",
    task: TaskDescription | None = None,
    timeout_seconds: float | None = None,
    *,
    letter: bool = False,
) -> EvaluationResult:
    """Score a run. A score that was printed before a crash stays visible beside `is_error`.

    To the `letter`, the score is what the pattern hits, and the traceback is not trimmed.
    """
    is_error = script_failed(raw, purpose)
    scale = None if task is None else scale_of(task)
    reading = ScoreReading(parse_score(raw.stdout)) if letter else read_score(raw.stdout, scale)
    last_words = extract_traceback if letter else _last_words
    return EvaluationResult(
        **dict(raw),
        score=reading.score,
        score_problem=reading.problem,
        timeout_seconds=timeout_seconds,
        is_error=is_error,
        error_traceback=last_words(raw.stderr) if is_error else None,
    )


def failed(result: EvaluationResult, problem: str, **more: Any) -> EvaluationResult:
    """The same result as a failure, by a problem that the debugger can work on as it does on an exception."""
    return result.model_copy(update={"is_error": True, "error_traceback": f"{HEADER}\n{problem}", **more})


def rejected(error: ValueError | PermissionError) -> EvaluationResult:
    """The result of a script that could not run, or was refused before, in a form that the debugger can work with."""
    text = f"{HEADER}\n{type(error).__name__}: {error}"
    return EvaluationResult(
        stdout="", stderr=text, exit_code=-1, duration_seconds=0.0, is_error=True, error_traceback=text, refused=True
    )


def scale_of(task: TaskDescription) -> Scale:
    """The values that the task's metric can take; all, where its name is not known or its sign was turned round."""
    metric = find_metric(task.evaluation_metric)
    if metric is None or metric.direction is not task.metric_direction:
        return Scale(task.evaluation_metric)
    return Scale(task.evaluation_metric, metric.low, metric.high)


def _last_words(stderr: str) -> str | None:
    """The last traceback, trimmed, with all that was said after it: a message may have many lines."""
    start = _last_header(stderr)
    return None if start < 0 else trim_traceback(_without_notes(stderr[start:]))


def trim_traceback(traceback: str) -> str:
    """Keep the script's own frames, the place where it was raised and the message; libraries become one line."""
    header, *lines = traceback.splitlines()
    stack = list(takewhile(lambda line: line.startswith(" "), lines))
    starts = [place for place, line in enumerate(stack) if _FRAME.match(line)]
    if starts[:1] != [0]:  # as in a group, all of which is indented
        stack, starts = [], []
    frames = [stack[start:end] for start, end in pairwise([*starts, len(stack)])]
    own = [index for index, frame in enumerate(frames) if _is_own(frame[0])]
    kept = sorted({*own[:KEPT_FRAMES], *own[-KEPT_FRAMES:], *range(len(frames))[-1:]})
    text = [header]
    for last, index in pairwise([-1, *kept]):
        if index - last > 1:
            text.append(f"  ... {index - last - 1} more frames ...")
        text += [line[:MAX_LINE] for line in [_short_path(frames[index][0]), *frames[index][1:MAX_FRAME_LINES]]]
    message = shorten("\n".join(map(_short_path, lines[len(stack) :])), MAX_MESSAGE)
    return shorten("\n".join([*text, message]), MAX_TRACEBACK)


def _is_own(frame: str) -> bool:
    found = _FRAME_IN_GROUP.match(frame)
    return found is not None and re.split(r"[\\/]", found["file"])[-1] == SCRIPT_NAME


def _short_path(frame: str) -> str:
    """The script by its bare name, a library from its package on: no path of this machine reaches a prompt."""
    found = _FRAME_IN_GROUP.match(frame)
    if found is None:
        return frame
    path = found["file"]
    above = _ABOVE_PACKAGE.match(path)
    short = SCRIPT_NAME if _is_own(frame) else path[above.end() if above else 0 :]
    return frame.replace(path, short, 1)


def debug_text(result: EvaluationResult, *, letter: bool = False) -> str:
    """What the debugger is told: the traceback that ended the script, else the last lines of its log and the cause.

    Of a script that was stopped at its time limit also what it had printed, and where it was: so far it came.
    A GPU whose memory ran out is named as the cause, which tracebacks say in many ways. To the `letter` it is told the
    last traceback wherever there is one, and no more.
    """
    traceback, uncaught = result.error_traceback, result.exit_code in UNCAUGHT and not result.timed_out
    if traceback and letter:
        return traceback
    text = traceback if traceback and (result.refused or uncaught) else ""
    if not text:
        log, _, stacks = result.stderr.partition(_FATAL)
        text = f"{HEADER}\n{_last_lines(log)}{_cause(result)}{_where(stacks)}"
        if result.timed_out and not letter and result.stdout.strip():
            text += f"\n\nIt had printed by then:\n{_last_lines(result.stdout)}".rstrip("\n")
    return f"{text}\n{_GPU_ADVICE}" if result.is_error and _GPU_MEMORY.search(text) else text


def _where(stacks: str) -> str:
    """Where a script was when it was stopped or died, as Python's faulthandler printed it: its own calls."""
    found = _CURRENT_STACK.search(stacks)
    frames = found[1].splitlines() if found else []
    kept = [frame for number, frame in enumerate(frames) if number == 0 or _is_own(frame)][: 2 * KEPT_FRAMES]
    return "\n".join(["\n\nIt was here, the innermost call first:", *map(_short_path, kept)]) if kept else ""


def _last_lines(text: str) -> str:
    return "".join(f"  {line[:500]}\n" for line in text.splitlines()[-MAX_CONTEXT:])


def exception_line(traceback: str) -> str:
    """The line that names the exception: the first one below the stack, else the last that says something."""
    header, *below = traceback[max(_last_header(traceback), 0) :].splitlines() or [""]
    if header == GROUP_HEADER:
        below = [line[len("  | ") :] for line in below if line.startswith("  | ")]
    named = next((line for line in below if line.strip() and not line.startswith(" ")), "")
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    return (named.strip() if HEADER in traceback and named else lines[-1] if lines else "")[:200]


def _cause(result: EvaluationResult) -> str:
    if result.timed_out:
        limit = result.duration_seconds if result.timeout_seconds is None else result.timeout_seconds
        return (
            f"TimeoutError: the script was stopped at the time limit of {limit:.0f} seconds; "
            "make it faster, as far as the rules allow"
        )
    lines = [line.strip()[:MAX_MESSAGE] for line in result.stderr.splitlines() if line.strip()]
    if result.exit_code < 0:
        return _killed(result, [line[len(NOTE) :].strip() for line in lines if line.startswith(NOTE)])
    if not result.is_error:
        missing = "the script ended without printing its score line 'Final Validation Performance: <number>'"
        problem = result.score_problem
        return f"RuntimeError: {f'the score line cannot be used: {problem}' if problem else missing}"
    if result.exit_code == 1 and lines and _EXCEPTION.match(lines[-1]):
        return lines[-1]  # a syntax error has no traceback
    return f"RuntimeError: the script ended with exit code {result.exit_code}" + (f": {lines[-1]}" if lines else "")


def _killed(result: EvaluationResult, notes: list[str]) -> str:
    """Which signal, and why, as far as is known: a sandbox tells a signal only as an exit code of 128 and more."""
    number = -result.exit_code
    why = notes[-1] if notes else "it probably used too much memory" if number == 9 else ""
    name = {one.value: one.name for one in signal.Signals}.get(number, f"signal {number}")
    text = f"RuntimeError: the script was killed by {name}" + (f" ({why})" if why else "")
    if not notes and {"bubblewrap", "namespaces"} & set(result.isolation.sandbox.split("+")):
        text += f", unless it ended itself with exit code {128 + number}"
    return text
