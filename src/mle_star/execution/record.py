"""The recorded way to run a script: a step of the journal, replayed on resume, never run twice for nothing."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from mle_star.context import RunContext, ScriptRequest, current_run, digest_of
from mle_star.errors import BudgetExceeded
from mle_star.events import ScriptFinished, ScriptPurpose, ScriptStarted, SubmissionKept
from mle_star.execution.environment import script_environment
from mle_star.execution.gpu import detect_gpu_info, gpus_for_path, script_slots
from mle_star.execution.interpreter import inspect_interpreter
from mle_star.execution.judge import HEADER, build_evaluation_result, debug_text
from mle_star.execution.submission import check_submission_format, get_submission_info, open_submission
from mle_star.execution.workspace import link_input_data, reset_working_directory, write_script
from mle_star.models import EvaluationResult, ExecutionRawResult, SolutionScript, is_improvement

logger = logging.getLogger("mle_star.execution")

KEPT_TEXT = 64 * 1024
"""Characters of each stream that a step keeps: the journal and the prompts see no more."""

_LEAVES: dict[ScriptPurpose, str] = {
    "solution": "script",
    "ablation": "ablation-script",
    "submission": "submission-script",
}


async def execute_in_run(
    script: SolutionScript, *, purpose: ScriptPurpose = "solution", timeout_seconds: float | None = None
) -> EvaluationResult:
    """Run a script as a step of the current run. What a fresh run, a replay and a cache hit return is the same."""
    run = current_run()
    step = run.next_step(_LEAVES[purpose])
    digest = digest_of(purpose, script.content, await _surroundings(run))
    event = _recorded(run, step, digest)
    if event is not None:
        run.journal.tell(event)
    else:
        event = await _cached(run, step, digest) or await _run_and_record(
            run, script, purpose, step, digest, timeout_seconds
        )
    result = _result_of(event)
    if purpose == "solution" and not result.is_error:  # what a final script prints was not measured on unseen rows
        await _take_note(run, script, result, event)
    return result


def _recorded(run: RunContext, step: str, digest: str) -> ScriptFinished | None:
    event = run.journal.find(ScriptFinished, step, digest)
    if event is None or not _restore_submission(run, event):
        return None
    return event


async def _cached(run: RunContext, step: str, digest: str) -> ScriptFinished | None:
    """The same work under another step of this run, as this step's own record."""
    if not run.config.use_cache:
        return None
    cache = run.shared.evaluation_cache
    if "seeded" not in cache:
        cache["seeded"] = True
        for past in run.journal.events:
            if isinstance(past, ScriptFinished):
                _remember(run, past)
    earlier = cache.get(digest)
    if earlier is None or not _restore_submission(run, earlier):
        return None
    event: ScriptFinished = earlier.model_copy(update={"step": step, "cached": True, "seconds": 0.0})
    run.record(event)
    logger.info("not run again: the same script was already run at %s", earlier.step)
    return event


def _remember(run: RunContext, event: ScriptFinished) -> None:
    """Only what would come out the same again may answer for a later step: no timeout, no kill."""
    if not event.cached and not event.timed_out and event.exit_code >= 0:
        run.shared.evaluation_cache[event.digest] = event


async def _run_and_record(
    run: RunContext,
    script: SolutionScript,
    purpose: ScriptPurpose,
    step: str,
    digest: str,
    timeout_seconds: float | None,
) -> ScriptFinished:
    async with _directory_lock(run), await _slots(run):
        raw, result, submission = await _run(run, script, purpose, step, timeout_seconds)
    event = ScriptFinished(
        step=step, digest=digest, purpose=purpose, script=script.content, stdout=shorten(result.stdout),
        stderr=shorten(result.stderr), exit_code=result.exit_code, seconds=result.duration_seconds,
        timed_out=raw is not None and raw.timed_out, is_error=result.is_error, score=result.score,
        traceback=result.error_traceback, isolation=result.isolation, submission=submission,
    )  # fmt: skip
    run.record(event)
    _remember(run, event)
    return event


async def _run(
    run: RunContext, script: SolutionScript, purpose: ScriptPurpose, step: str, timeout_seconds: float | None
) -> tuple[ExecutionRawResult | None, EvaluationResult, str | None]:
    working_dir = str(run.work_dir)
    reset_working_directory(working_dir)
    data = Path(run.task.data_dir)
    if data.is_dir():
        link_input_data(str(data), working_dir)
    try:
        script_path = write_script(script, working_dir)
    except ValueError as error:
        return None, rejected(error), None
    limit = _limit(run, timeout_seconds)
    run.record(ScriptStarted(step=step, purpose=purpose, timeout_seconds=limit))
    request = ScriptRequest(
        script_path=script_path,
        working_dir=working_dir,
        timeout_seconds=limit,
        env=script_environment(run.config, gpus_for_path((await _gpus(run))["gpu_count"], run.path, run.config)),
        input_dir=str(data.resolve()) if data.is_dir() else None,
    )
    logger.info("run starts: %s in %s, at most %g s", script_path, working_dir, limit)
    raw = await run.executor.run(request)
    result = build_evaluation_result(raw, purpose)
    log_outcome(script_path, limit, raw, result)
    return raw, result, None if purpose == "ablation" else _keep_submission(run)


def _limit(run: RunContext, timeout_seconds: float | None) -> float:
    """The script's own limit or the time that is left, whichever is shorter."""
    left = run.budget.remaining_seconds()
    if left <= 0:
        raise BudgetExceeded(limit="time", used=run.budget.elapsed(), allowed=run.budget.time_limit)
    wanted = timeout_seconds or run.config.script_timeout_seconds
    return left if wanted is None else min(wanted, left)


def rejected(error: ValueError) -> EvaluationResult:
    """The result of a script that was refused before it ran, in a form that the debugger can work with."""
    text = f"{HEADER}\nValueError: {error}"
    return EvaluationResult(
        stdout="", stderr=text, exit_code=-1, duration_seconds=0.0, is_error=True, error_traceback=text
    )


def log_outcome(path: str, limit: float, raw: ExecutionRawResult, result: EvaluationResult) -> None:
    """Say how a run ended."""
    logger.info("run ended: exit code %d after %.2f s, score %s", raw.exit_code, raw.duration_seconds, result.score)
    if raw.timed_out:
        logger.warning("timeout: %s was stopped after %g s", path, limit)
    if result.is_error:
        lines = debug_text(result, limit).splitlines()
        logger.warning("error: exit code %d, %s %s", result.exit_code, lines[0], lines[-1][:300])


def shorten(text: str) -> str:
    """Head and tail of a long text, with a mark where the middle was."""
    if len(text) <= KEPT_TEXT:
        return text
    half = KEPT_TEXT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _result_of(event: ScriptFinished) -> EvaluationResult:
    return EvaluationResult(
        score=event.score, stdout=event.stdout, stderr=event.stderr, exit_code=event.exit_code,
        duration_seconds=event.seconds, is_error=event.is_error, error_traceback=event.traceback,
        isolation=event.isolation, cached=event.cached,
    )  # fmt: skip


# --- what surrounds a script --------------------------------------------------------------------------------


async def _surroundings(run: RunContext) -> str:
    """A digest of data, interpreter, packages and seed, taken once per run."""
    notes = run.shared.notes
    if "surroundings" not in notes:
        data = asyncio.ensure_future(asyncio.to_thread(data_digest, Path(run.task.data_dir)))
        info = await asyncio.to_thread(inspect_interpreter, run.config.python)
        notes["surroundings"] = digest_of(await data, info.fingerprint, str(run.config.seed))
    return str(notes["surroundings"])


def data_digest(folder: Path) -> str:
    """A digest of the data that is quick on large folders: contents of small files, ends of large ones."""
    hasher = hashlib.sha256()
    whole, count = 256 << 20, 0
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root) / name
            try:
                status = path.stat()
                hasher.update(f"{path.relative_to(folder)}\0{status.st_size}\0".encode("utf-8", "surrogateescape"))
                count += 1
                if count > 5000:
                    hasher.update(str(status.st_mtime_ns).encode())
                    continue
                with path.open("rb") as file:
                    if status.st_size <= min(16 << 20, whole):
                        hasher.update(file.read())
                        whole -= status.st_size
                    else:
                        hasher.update(file.read(1 << 16))
                        file.seek(-(1 << 16), os.SEEK_END)
                        hasher.update(file.read())
            except OSError as error:
                hasher.update(f"{name}: {error.errno}".encode())
    return hasher.hexdigest()


async def _gpus(run: RunContext) -> dict[str, Any]:
    notes = run.shared.notes
    if "gpus" not in notes:
        notes["gpus"] = await asyncio.to_thread(detect_gpu_info)
    found: dict[str, Any] = notes["gpus"]
    return found


async def _slots(run: RunContext) -> asyncio.Semaphore:
    if run.shared.script_slots is None:
        count = script_slots((await _gpus(run))["gpu_count"], run.config)
        if run.shared.script_slots is None:
            run.shared.script_slots = asyncio.Semaphore(count)
    return run.shared.script_slots


def _directory_lock(run: RunContext) -> asyncio.Lock:
    """Two scripts never share a directory at the same time."""
    lock: asyncio.Lock = run.shared.notes.setdefault(f"lock {run.work_dir}", asyncio.Lock())
    return lock


# --- submissions --------------------------------------------------------------------------------------------


def _keep_submission(run: RunContext) -> str | None:
    """A copy of `final/submission.csv` under its content's name, relative to the run folder."""
    with open_submission(str(run.work_dir)) as file:
        if file is None or os.fstat(file.fileno()).st_size == 0:
            return None
        hasher = hashlib.sha256()
        while chunk := file.read(1 << 20):
            hasher.update(chunk)
        relative = f"artifacts/submission-{hasher.hexdigest()[:16]}.csv"
        target = run.run_dir / relative
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            file.seek(0)
            _write_whole(target, file)
    return relative


def _write_whole(target: Path, source: Any) -> None:
    temporary = target.with_suffix(f".{os.getpid()}.part")
    with temporary.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    temporary.replace(target)


def _restore_submission(run: RunContext, event: ScriptFinished) -> bool:
    """Put a recorded submission back where its script left it; False when the copy is gone."""
    reset_working_directory(str(run.work_dir))
    if event.submission is None:
        return True
    kept = run.run_dir / event.submission
    if not kept.is_file():
        return False
    shutil.copyfile(kept, run.work_dir / "final" / "submission.csv")
    return True


async def _take_note(run: RunContext, script: SolutionScript, result: EvaluationResult, event: ScriptFinished) -> None:
    """Tell the run about a score, and put the best submission aside."""
    if result.score is not None:
        run.note_score(result.score, script.content)
    if event.submission is None:
        return
    if not _is_best(run, result.score):
        return
    working_dir = str(run.work_dir)
    problems = await asyncio.to_thread(check_submission_format, working_dir)
    if problems:
        logger.info("submission not kept: %s", "; ".join(problems))
        return
    if not _is_best(run, result.score):  # a better one came while this one was looked at
        return
    run.shared.kept_submission = (result.score, event.submission)
    final = run.run_dir / "final"
    final.mkdir(parents=True, exist_ok=True)
    with (run.run_dir / event.submission).open("rb") as file:
        _write_whole(final / "best_submission.csv", file)
    (final / "best_solution.py").write_text(script.content, encoding="utf-8", newline="")
    rows = get_submission_info(working_dir)["row_count"]
    run.record(
        SubmissionKept(step=event.step, path="final/best_submission.csv", rows=int(rows or 0), score=result.score)
    )


def _is_best(run: RunContext, score: float | None) -> bool:
    """Does a submission with this score beat the one that is kept?"""
    if run.shared.kept_submission is None:
        return True
    kept = run.shared.kept_submission[0]
    if score is None or kept is None:
        return score is not None
    return is_improvement(score, kept, run.task.metric_direction)
