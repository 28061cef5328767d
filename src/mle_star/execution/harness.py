"""Evaluating scripts: one, with repairs, or several in turn; as part of a run or alone."""

import ast
import asyncio
import logging
import os
import re
import shlex
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from anyio.from_thread import start_blocking_portal
from filelock import FileLock, Timeout

from mle_star import models
from mle_star.data.place import DataFolder, Sample
from mle_star.errors import AgentError, ExecutionError
from mle_star.execution import workspace
from mle_star.execution.artifacts import STATE, fitted_digest, forget_fitted, save_fitted
from mle_star.execution.environment import script_environment
from mle_star.execution.local import LocalExecutor
from mle_star.execution.outcome import HEADER, build_evaluation_result, debug_text, exception_line, rejected
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.scoring import holdout_of, read_predictions, sample_for, whole_data
from mle_star.execution.submission import SUBMISSION, verify_submission
from mle_star.holdout.answers import Answers, Ungradable, read_answers, write_answers
from mle_star.holdout.holdout import HoldOut, blended
from mle_star.method.codeblocks import parsed
from mle_star.prompts import SUBSAMPLE_INSTRUCTION, fenced, render
from mle_star.run.context import RunContext, ScriptRequest, active_run, scope
from mle_star.run.events import ScriptFinished, ScriptPurpose, ScriptStarted
from mle_star.run.log_lines import log_event
from mle_star.run.timing import too_late_for

logger = logging.getLogger("mle_star.execution")

T = TypeVar("T")
SDK_BASH_MAX_MS = 600_000
NOT_FITTED = "the model is not fitted on all rows yet"
OWN_DIRECTORY = "evaluation"
"""Where scripts work outside a run, below `config.work_dir`."""
DebugCallback = Callable[[models.SolutionScript, str], Awaitable[models.SolutionScript | None]]
BashTool = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Takes `{"command": str, "timeout": int}`, gives `{"output": str, "exitCode": int}`."""


class ExecutorStrategy(str, Enum):
    """Who starts the process."""

    subprocess = "subprocess"
    sdk_bash = "sdk_bash"


async def execute_script(
    script_path: str, working_dir: str, timeout_seconds: int, env: dict[str, str] | None = None
) -> models.ExecutionRawResult:
    """Run a script in a process of its own. A failing script is data, never an exception."""
    script, folder = map(os.path.abspath, (script_path, working_dir))
    env = dict(os.environ) if env is None else env
    request = ScriptRequest(script_path=script, working_dir=folder, timeout_seconds=timeout_seconds, env=env)
    return await LocalExecutor().run(request)


async def execute_script_via_sdk(
    script_path: str, working_dir: str, timeout_ms: int, *, bash_tool: BashTool | None = None
) -> models.ExecutionRawResult:
    """Run a script through the SDK's Bash tool, which host code must pass in; both streams come as one text."""
    if bash_tool is None:
        raise RuntimeError("the SDK offers no tool call to host code: pass `bash_tool`")
    command = f"cd {shlex.quote(working_dir)} && python {shlex.quote(script_path)}"
    started = asyncio.get_running_loop().time()
    answer = await bash_tool({"command": command, "timeout": min(timeout_ms, SDK_BASH_MAX_MS)})
    output = str(answer.get("output", ""))
    start = output.find(HEADER)
    return models.ExecutionRawResult(
        stdout=output,
        stderr=output[start:] if start >= 0 else "",
        exit_code=int(answer.get("exitCode", 1)),
        duration_seconds=asyncio.get_running_loop().time() - started,
        timed_out=False,
    )


async def evaluate_solution(
    solution: models.SolutionScript,
    task: models.TaskDescription,
    config: models.PipelineConfig,
    timeout_override: int | None = None,
    strategy: ExecutorStrategy = ExecutorStrategy.subprocess,
    *,
    working_dir: str | None = None,
    gpu_indices: list[int] | None = None,
    bash_tool: BashTool | None = None,
    purpose: ScriptPurpose | None = None,
) -> models.EvaluationResult:
    """Run a script and score it; inside a run as a recorded step, in that run's directory.

    Outside a run it works in `evaluation` below `config.work_dir`, unless `working_dir` says otherwise; while another
    evaluation works there, in a directory beside it that is removed afterwards.
    """
    if active_run() is not None and strategy is ExecutorStrategy.subprocess and working_dir is None:
        role = purpose or ("submission" if solution.phase is models.SolutionPhase.final else "solution")
        return await execute_in_run(solution, purpose=role, timeout_seconds=timeout_override, gpu_indices=gpu_indices)
    default = min(config.time_limit_seconds, config.script_timeout_seconds or config.time_limit_seconds)
    limit = default if timeout_override is None else timeout_override
    if strategy is ExecutorStrategy.sdk_bash and limit * 1000 > SDK_BASH_MAX_MS:
        logger.info("%g s are more than the Bash tool allows: using a subprocess", limit)
        strategy = ExecutorStrategy.subprocess
    with _working_directory(task, config, working_dir) as base:
        try:
            path = workspace.write_script(solution, base)
        except ValueError as error:
            return rejected(error)
        log_event(ScriptStarted(path=path, characters=len(solution.content), timeout_seconds=limit))
        if strategy is ExecutorStrategy.sdk_bash:
            raw = await execute_script_via_sdk(path, base, int(limit * 1000), bash_tool=bash_tool)
        else:
            data, env = DataFolder(task.data_dir, ours=base), script_environment(config, gpu_indices)
            shown = str(data.root) if working_dir is None and data.is_whole else None  # else links show the data
            request = ScriptRequest(script_path=path, working_dir=base, timeout_seconds=limit, env=env, input_dir=shown)
            raw = await LocalExecutor(config).run(request)
    result = build_evaluation_result(raw, task=task, timeout_seconds=limit, letter=config.letter)
    log_event(ScriptFinished(digest="", script="", result=result))
    return result


@contextmanager
def _working_directory(task: models.TaskDescription, config: models.PipelineConfig, given: str | None) -> Iterator[str]:
    """The given directory with an empty `final/`, or one of ours, which only one evaluation has at a time."""
    if given is not None:
        base = workspace.setup_working_directory(given)
        workspace.clean_output_directory(base)
        yield base
        return
    folder = Path(config.work_dir) / OWN_DIRECTORY
    with ExitStack() as held:
        try:
            held.enter_context(FileLock(folder.with_name(f".{OWN_DIRECTORY}.lock")).acquire(timeout=0))
        except Timeout:  # another evaluation works there
            base = str(held.enter_context(workspace.own_folder(folder, uuid.uuid4().hex)))
        else:
            is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
            if not is_free and not workspace.is_ours(str(folder)):
                raise ExecutionError(f"{folder} was not made by mle-star: move it away, or pass `working_dir`")
            base = workspace.prepare_path_directory(folder.parent, folder.name)
            workspace.reset_working_directory(base)
        workspace.link_input_data(task.data_dir, base)
        yield base


async def evaluate_with_retry(
    solution: models.SolutionScript,
    task: models.TaskDescription,
    config: models.PipelineConfig,
    debug_callback: DebugCallback,
    max_retries: int | None = None,
    *,
    timeout_override: int | None = None,
    require_score: bool | None = None,
    purpose: ScriptPurpose | None = None,
) -> tuple[models.SolutionScript, models.EvaluationResult]:
    """Evaluate, and let the debugger repair what fails; the last script comes back with its score, if that may count.

    Where scripts take long a sample of the rows is their smoke test, on which they are repaired (`sample_first`).
    `require_score` makes a clean run without a score line a case for the debugger; it is on inside a run, except for
    final scripts and ablation studies.
    """
    retries = config.max_debug_attempts if max_retries is None else max_retries
    tested = purpose is None and solution.phase is not models.SolutionPhase.final
    if require_score is None:
        require_score = tested and active_run() is not None
    evaluate = partial(evaluate_solution, task=task, config=config, timeout_override=timeout_override, purpose=purpose)
    sample = await _failed_on_sample(solution) if tested and retries else None
    result = sample[1] if sample else await evaluate(solution)
    for number in range(1, retries + 1):
        if not (result.is_error or (require_score and result.score is None)):
            break
        logger.info("retry %d of %d", number, retries)
        error = debug_text(result, letter=config.letter)
        if sample:
            error = f"On a sample of {sample[0].rows} of the {sample[0].of} training rows:\n\n{error}"
        try:
            repaired = await debug_callback(solution, error)
        except AgentError as failure:
            logger.warning("the debugger failed: %s", failure)
            continue
        if repaired is None or (repaired.content == solution.content and not config.letter):
            continue  # it would only fail again, at full length
        solution = repaired
        sample = await _failed_on_sample(solution) if tested and number < retries else None
        result = sample[1] if sample else await evaluate(solution)
    if sample:  # no repair is left: it may yet work on all rows
        result = await evaluate(solution)
    run = active_run()
    leaks = run is not None and run.leaks(solution.content)
    score = None if result.is_error or leaks else result.score
    return solution.model_copy(update={"score": score, "is_executable": not result.is_error}), result


async def _failed_on_sample(script: models.SolutionScript) -> tuple[Sample, models.EvaluationResult] | None:
    """How a script failed on the sample of the rows; None when it works there, or where there is no smoke test."""
    run = active_run()
    sample = None if run is None else await sample_for(run, script.content)
    if sample is None:
        return None
    result = await execute_in_run(script, purpose="sample", data=DataFolder(sample.folder))
    return (sample, result) if result.is_error else None


async def evaluate_batch(
    solutions: list[models.SolutionScript], task: models.TaskDescription, config: models.PipelineConfig
) -> list[models.EvaluationResult]:
    """Evaluate one after the other, never two at a time; a failure does not stop the rest."""
    return [await evaluate_solution(solution, task, config) for solution in solutions]


def make_score_function(config: models.PipelineConfig, **options: Any) -> models.ScoreFunction:
    """`evaluate_solution` as a plain function, outside of any run: the locks of one belong to another event loop."""

    def score(solution: models.SolutionScript, task: models.TaskDescription) -> models.EvaluationResult:
        return Context().run(complete, evaluate_solution(solution, task, config, **options))

    return score


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine, also where an event loop is running, as in a notebook.

    When a cell is interrupted nothing of it continues, or is paid for.
    """
    with start_blocking_portal() as thread:
        outcome: T = thread.call(lambda: work)
        return outcome


# --- the members of a blend, run once more on the untouched data ----------------------------------------------


async def answer_together(run: RunContext, blend: str, members: dict[str, float]) -> list[str]:
    """Run the members, the largest weight first, write the submission, and say why members did not answer again.

    One that fails, or for which it is too late, answers with what it said in the search. What they have fitted is
    kept for the `blend`, the script that does the same again: of all members, or of none. Without rows to predict,
    that is all they run for.
    """
    holdout = holdout_of(run) if run.shared.has_test else None
    predictions = {} if holdout is None else await asyncio.to_thread(read_predictions, run, holdout, members)
    digest = await asyncio.to_thread(fitted_digest, blend, whole_data(run))
    answers, fitted, warnings = dict[str, Answers](), 0, list[str]()
    for number, script in sorted(enumerate(members, 1), key=lambda one: -members[one[1]]):
        run.shared.last_scripts = len(members) - len(answers)
        try:
            with scope(f"member-{number}"):
                answers[script] = await _answers_anew(run, holdout, script)
            whole = digest if fitted == len(members) - 1 else ""
            fitted += await asyncio.to_thread(save_fitted, run.run_dir, run.work_dir / STATE, whole, beside=fitted > 0)
        except (OSError, Ungradable) as error:
            as_before = f"member {number} of the blend answers as in the search: {error}"
            warnings.append(not_fitted(str(error)) if holdout is None else as_before)
            answers[script] = Answers({}, predictions[script].real if predictions else ())
    if holdout is not None:
        # else a link that the last member left there would be written to
        await asyncio.to_thread(workspace.clean_output_directory, str(run.work_dir))
        write_answers(holdout.scorer.data, blended(answers, members), run.work_dir / SUBMISSION)
    if 0 < fitted < len(members):
        await asyncio.to_thread(forget_fitted, run.run_dir)
    return warnings


def keep_members(run: RunContext, members: Iterable[str]) -> None:
    """Put the scripts of a blend where the blend script looks for them."""
    folder = run.run_dir / "solution"
    folder.mkdir(exist_ok=True)
    for number, script in enumerate(members, 1):
        (folder / f"member_{number}.py").write_text(script, encoding="utf-8", newline="")


def not_fitted(why: str) -> str:
    """What is said where no model is kept."""
    return f"{NOT_FITTED}; the first `predict` does that: {why}"


async def _answers_anew(run: RunContext, holdout: HoldOut | None, script: str) -> Answers:
    """What a script says after learning from all rows; `Ungradable` says why it says nothing."""
    if late := too_late_for(run, script):
        raise Ungradable(late)
    member = models.SolutionScript(content=script, phase=models.SolutionPhase.final)
    result = await execute_in_run(member, purpose="submission", timeout_seconds=run.config.time_limit_seconds)
    if result.is_error:
        raise Ungradable(exception_line(result.error_traceback or "it failed"))
    if not verify_submission(str(run.work_dir)):
        raise Ungradable("it wrote no submission")
    if holdout is None:
        return Answers({}, ())
    return read_answers(holdout.scorer.data, run.work_dir / SUBMISSION, holdout.scorer.data.real_view())


# --- subsampling, and errors that a script hides --------------------------------------------------------------


def get_subsample_instruction(config: models.PipelineConfig) -> str:
    """The sentence with the configured limit in it."""
    return SUBSAMPLE_INSTRUCTION.replace("{limit}", str(config.subsample_limit))


def request_subsample_removal(solution: models.SolutionScript) -> str:
    """The prompt that asks for the whole script without its subsampling."""
    return (
        "The script below limits its training data for the sake of speed. It is to train on all of them now.\n\n"
        "1. Find every place where subsampling happens.\n"
        "2. Remove the subsampling and leave the rest working as before.\n"
        "3. Answer with the whole changed script in one fenced Python block, and nothing else.\n\n"
        f"# Script\n\n{fenced(solution.content)}\n"
    )


def request_subsample_extraction(solution: models.SolutionScript) -> str:
    """The prompt that asks for the block of the script that subsamples."""
    return render(models.AgentType.test, "subsampling_extract", final_solution=solution.content)


_MASKING = re.compile(
    r"""^[ \t]*except(?:
        [ \t]*:
      | [ \t]+\(?(?P<name>Exception|BaseException)\)?(?:[ \t]+as[ \t]+\w+)?[ \t]*:\s*(?:pass|\.\.\.)[ \t]*$
    )""",
    re.MULTILINE | re.VERBOSE,
)


def detect_error_masking(content: str) -> list[str]:
    """One warning for each handler that would hide an error: a bare `except:`, or a broad one that only passes."""
    tree = parsed(content)
    if tree is None:
        found = [(content.count("\n", 0, one.start()) + 1, one["name"] or "") for one in _MASKING.finditer(content)]
    else:
        handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
        found = [(node.lineno, name) for node in handlers if (name := _masking_name(node)) is not None]
    what = {line: f"`except {name}:` that only passes" if name else "a bare `except:`" for line, name in found}
    return [f"line {line}: {text} hides every error" for line, text in sorted(what.items())]


def _masking_name(handler: ast.ExceptHandler) -> str | None:
    """The broad exception that a handler passes over, empty for a bare `except:`; None where it hides nothing."""
    if handler.type is None:
        return ""
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    broad = [node.id for node in types if isinstance(node, ast.Name) and node.id in ("Exception", "BaseException")]
    only_passes = all(ast.unparse(node) in ("pass", "...") for node in handler.body)
    return broad[0] if broad and only_passes else None
