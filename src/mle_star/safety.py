"""The agents that keep a solution honest: debugger, leakage checker, data-use checker.

All three take a script and give a script, never change the one they were given, and can be chained in any order.
"""

from __future__ import annotations

import ast
import logging
import re
import warnings
from collections.abc import Awaitable, Callable, Sequence

from mle_star.codeblocks import compiles, extract_code_block, has_extractable_code, replace_block_reindented
from mle_star.context import AgentReply, current_run
from mle_star.errors import AgentError
from mle_star.events import DebugAttempted, LeakageChecked, ScriptPurpose
from mle_star.execution import debug_text, evaluate_solution, exception_line, get_subsample_instruction
from mle_star.models import (
    AgentType,
    EvaluationResult,
    LeakageAnswer,
    LeakageDetectionOutput,
    PipelineConfig,
    SolutionPhase,
    SolutionScript,
    TaskDescription,
)
from mle_star.prompts import PromptRegistry, render

logger = logging.getLogger(__name__)

DebugCallback = Callable[[SolutionScript, str], Awaitable[SolutionScript]]

TRACEBACK_HEADER = "Traceback (most recent call last):"
SCORE_TEXT = "Final Validation Performance"
SCORE_LINE = 'print(f"Final Validation Performance: {final_validation_score}")'
ALL_USED = "All the provided information is used."

_TRAINING_CALLS = {
    "fit", "partial_fit", "fit_predict", "fit_generator", "fit_one_cycle", "train", "train_on_batch", "backward",
    "cross_val_score", "cross_val_predict", "cross_validate", "cv",
}  # fmt: skip
_PREDICTING_CALLS = {"predict", "predict_proba", "decision_function", "score"}
_TRANSFORMER = re.compile(r"(Scaler|Encoder|Imputer|Vectorizer|Transformer|Binarizer|Normalizer|Discretizer|PCA|SVD)$")
_LOADING_CALLS = {
    "read_csv", "read_parquet", "read_json", "read_excel", "read_feather", "read_pickle", "read_table", "read_hdf",
    "read_text", "read_bytes", "read_image", "scan_csv", "scan_parquet", "load", "load_dataset", "loadtxt",
    "genfromtxt", "open", "imread", "ImageFolder", "reader", "DictReader",
}  # fmt: skip
_INPUT_PATH = re.compile(r"""["'](?:\./)?input\b""")
_INPUT_WORD = re.compile(r"\binput\b(?!\s*\()")  # a repair may build the path in another way
_SMALLEST_SHARE = 1 / 3

NO_CODE = "no code in the reply"
NO_SCORE_LINE = "the score line is gone"
_REFUSED = """

# Note

Your last answer was refused: {reason}. Repair the error and leave the rest as it is: the script has to load the same \
data, train the same models and print the same lines as before.
"""


# --- A_debugger ------------------------------------------------------------------------------------------


async def debug_solution(
    solution: SolutionScript, traceback: str, task: TaskDescription, config: PipelineConfig
) -> tuple[SolutionScript, EvaluationResult]:
    """Repair and run a script until it works or `max_debug_attempts` are used up; the last pair is returned."""
    repair = make_debug_callback(task, config)
    for attempt in range(1, config.max_debug_attempts + 1):
        solution = await repair(solution, traceback)
        result = await evaluate_solution(solution, task, config)
        if not result.is_error:
            return solution.model_copy(update={"score": result.score, "is_executable": True}), result
        traceback = debug_text(result)
        logger.info("%s: attempt %d did not help: %s", current_run().place, attempt, exception_line(traceback))
    return solution.model_copy(update={"score": None, "is_executable": False}), result


def make_debug_callback(
    task: TaskDescription,
    config: PipelineConfig,
    *,
    purpose: ScriptPurpose = "solution",
    leakage_check: bool = True,
) -> DebugCallback:
    """One repair a call, leakage-checked, for `evaluate_with_retry`; ablation scripts need neither score nor check."""
    attempts = 0

    async def repair(solution: SolutionScript, traceback: str) -> SolutionScript:
        nonlocal attempts
        attempts += 1
        variant = None if purpose == "solution" else purpose
        if solution.phase is SolutionPhase.final:
            variant = "submission"
        repaired = await _repair(solution, traceback, config, attempt=attempts, variant=variant)
        if repaired is solution or not leakage_check or variant == "ablation":
            return repaired
        return await check_and_fix_leakage(repaired)

    return repair


def fall_back(failed: SolutionScript, history: Sequence[SolutionScript], *, attempts: int) -> SolutionScript:
    """The most recent script that ran and scored; without one, the failed script, marked as such."""
    for earlier in reversed(history):
        if earlier.is_executable and earlier.score is not None:
            logger.warning(
                "%s: debug fallback: %d attempts used, back to the last working script, score %s",
                current_run().place, attempts, earlier.score,
            )  # fmt: skip
            return earlier
    logger.warning("%s: debug fallback: %d attempts used, no script has ever worked", current_run().place, attempts)
    return failed.model_copy(update={"is_executable": False, "score": None})


def synthetic_traceback(exception: str) -> str:
    """A traceback for failures that left none; `exception` names the cause."""
    return f"{TRACEBACK_HEADER}\n{exception}"


async def _repair(
    solution: SolutionScript, traceback: str, config: PipelineConfig, *, attempt: int, variant: str | None
) -> SolutionScript:
    """Ask for a fix, once more when it guts the script; without a usable one the script itself comes back."""
    if not traceback:
        raise ValueError("No traceback provided for debugging")
    place, error = current_run().place, exception_line(traceback)
    if TRACEBACK_HEADER not in traceback:
        logger.warning("%s: the error for the debugger is no traceback: %s", place, error)
    logger.info("%s: debug start: phase %s, %s, attempt %d", place, solution.phase.value, error, attempt)
    needs_score, refusal = variant is None, ""
    for _ in range(2):
        code = await _ask_debugger(solution.content, traceback, config, variant, refusal)
        refusal = NO_CODE if code is None else gutted(solution.content, code, needs_score=needs_score)
        _record_repair(variant, error, refusal)
        if code is None or not refusal:
            break
    if code is None or refusal not in ("", NO_SCORE_LINE):
        logger.info("%s: debug end: not fixed: %s", place, refusal)
        return solution
    if needs_score:
        code = with_score_line(code)
    logger.info("%s: debug end: a fix to try, %+d characters", place, len(code) - len(solution.content))
    return solution.model_copy(update={"content": code, "score": None, "is_executable": True})


async def _ask_debugger(
    code: str, traceback: str, config: PipelineConfig, variant: str | None, refusal: str
) -> str | None:
    """The code of one reply; `refusal` says what was wrong with the one before."""
    values = {"code": code, "bug": traceback}
    if variant is None:
        values["subsample_instruction"] = get_subsample_instruction(config)
    remark = _REFUSED.format(reason=refusal) if refusal else ""
    reply = await try_agent(AgentType.debugger, variant, remark=remark, **values)
    if reply is None:
        return None
    if not has_extractable_code(reply.text):
        warn_unusable(AgentType.debugger, reply.text)
        return None
    return extract_code_block(reply.text)


def _record_repair(variant: str | None, error: str, refusal: str) -> None:
    run = current_run()
    if refusal:
        logger.warning("%s: repair refused: %s", run.place, refusal)
    step = run.latest_step("debugger" if variant is None else f"debugger-{variant}")
    run.record(DebugAttempted(step=step, error=error, accepted=not refusal, reason=refusal))


# --- what a repair must keep -----------------------------------------------------------------------------


def gutted(before: str, after: str, *, needs_score: bool = True) -> str:
    """Why a repair is no repair, or an empty text: it must keep the work that the script was written for."""
    had, has = _calls(before), _calls(after)
    if len(after.strip()) < len(before.strip()) * _SMALLEST_SHARE:
        return f"the script shrank from {len(before)} to {len(after)} characters"
    if had & _TRAINING_CALLS and not has & _TRAINING_CALLS:
        return "the model is no longer trained"
    if "fit_transform" in had and not has & {*_TRAINING_CALLS, "fit_transform"}:
        return "nothing is fitted any more"
    if had & _LOADING_CALLS and not has & _LOADING_CALLS:
        return "the data is no longer loaded"
    if _INPUT_PATH.search(before) and not _INPUT_WORD.search(after):
        return "nothing is read from ./input any more"
    if needs_score and _says_score(before) and not _says_score(after):
        return NO_SCORE_LINE
    return ""


def _parsed(code: str) -> ast.Module | None:
    """The syntax tree, or None: what does not parse is read as text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in generated code
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _calls(code: str) -> set[str]:
    """The names of all functions and methods that a script calls.

    To fit what only transforms trains no model: it counts as `fit_transform`.
    """
    tree = _parsed(code)
    if tree is None:
        return set(re.findall(r"(\w+)\s*\(", re.sub(r"#.*", "", code)))
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = [(ast.unparse(f.value), f.attr) for f in functions if isinstance(f, ast.Attribute)]
    predict = {owner for owner, name in methods if name in _PREDICTING_CALLS}
    transform = {owner for owner, name in methods if name == "transform"} - predict | _transformers(tree)
    names = {"fit_transform" if name == "fit" and owner in transform else name for owner, name in methods}
    return names | {f.id for f in functions if isinstance(f, ast.Name)}


def _transformers(tree: ast.Module) -> set[str]:
    """The names that stand for an object of a class like StandardScaler."""
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    return {
        target.id
        for node in made
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call)
        if _TRANSFORMER.search(ast.unparse(node.value.func))
    }


def _says_score(code: str) -> bool:
    """Does a text of the script, not only a comment or a docstring, hold the words before the score?"""
    tree = _parsed(code)
    if tree is None:
        return SCORE_TEXT in re.sub(r"#.*", "", code)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in bare]
    return any(isinstance(node.value, str) and SCORE_TEXT in node.value for node in texts)


def with_score_line(code: str) -> str:
    """The code with a line that prints the score; should its variable be unknown, that is the next thing to repair."""
    if _says_score(code):
        return code
    logger.warning("%s: the repaired script prints no score; a line that does is added", current_run().place)
    main = re.search(r"^if __name__\b", code, re.MULTILINE)
    if main is None:
        return f"{code.rstrip()}\n{SCORE_LINE}\n"
    return f"{code[: main.start()]}{SCORE_LINE}\n\n{code[main.start() :]}"


# --- A_leakage -------------------------------------------------------------------------------------------


async def check_and_fix_leakage(solution: SolutionScript) -> SolutionScript:
    """Look for leakage once and rewrite each block that leaks; a clean script comes back as it is."""
    if not solution.content.strip():
        return solution
    answers = await _detect_leakage(solution)
    leaks = [answer for answer in answers if answer.leakage_status == "Yes Data Leakage"]
    if not leaks:
        return solution
    step = current_run().latest_step("leakage-detection")
    current_run().shared.leaks.add(step)
    current, fixed = solution, 0
    for answer in leaks:
        corrected = await _correct_leakage(current, answer)
        if corrected is not None:
            current, fixed = corrected, fixed + 1
    blocks = [answer.code_block for answer in leaks]
    current_run().record(LeakageChecked(step=step, found=len(leaks), fixed=fixed, blocks=blocks))
    return current


async def _detect_leakage(solution: SolutionScript) -> list[LeakageAnswer]:
    """The checker's answers; none when the reply cannot be read, which counts as clean."""
    place = current_run().place
    logger.info("%s: detection start: phase %s, %d characters", place, solution.phase.value, len(solution.content))
    reply = await try_agent(AgentType.leakage, "detection", code=solution.content)
    if reply is None:
        return []
    try:
        answers = LeakageDetectionOutput.model_validate_json(reply.json_text).answers
    except ValueError:
        warn_unusable(AgentType.leakage, reply.json_text)
        return []
    found = sum(answer.leakage_status == "Yes Data Leakage" for answer in answers)
    logger.info("%s: detection end: %d answers, leakage found: %s", place, len(answers), "yes" if found else "no")
    return answers


async def _correct_leakage(solution: SolutionScript, answer: LeakageAnswer) -> SolutionScript | None:
    """The script with one leaking block rewritten, or None when that cannot be done."""
    place, block = current_run().place, answer.code_block
    if not block or block not in solution.content:
        logger.warning("%s: replacement skipped: the leaking block is not in the script: %r", place, block[:80])
        return None
    logger.info("%s: correction start: block of %d characters", place, len(block))
    reply = await try_agent(AgentType.leakage, "correction", code=solution.content, flagged_block=block)
    new = extract_code_block(reply.text) if reply is not None and has_extractable_code(reply.text) else ""
    if reply is not None and not new:
        warn_unusable(AgentType.leakage, reply.text)
    if not new or new.strip() == block.strip():
        logger.warning("%s: correction end: no other block came back, not replaced", place)
        return None
    content = replace_block_reindented(solution.content, block, new)
    if compiles(solution.content) and not compiles(content):
        logger.warning("%s: correction end: the script would no longer compile, not replaced", place)
        return None
    logger.info("%s: correction end: block of %d characters, replaced: yes", place, len(new))
    return solution.model_copy(update={"content": content})


# --- A_data ----------------------------------------------------------------------------------------------


async def check_data_usage(solution: SolutionScript, task: TaskDescription) -> SolutionScript:
    """Have ignored data sources worked in; Phase 1 asks this once a run, after merging."""
    place = current_run().place
    if not solution.content.strip() or not task.description.strip():
        logger.warning("%s: the data-use check needs a script and a task description, skipped", place)
        return solution
    logger.info("%s: data start: phase %s, %s", place, solution.phase.value, task.competition_id)
    reply = await try_agent(AgentType.data, initial_solution=solution.content, task_description=task.description)
    checked = solution if reply is None else parse_data_agent_response(reply.text, solution)
    logger.info("%s: data end: %s", place, "confirmed" if checked is solution else "modified")
    return checked


def parse_data_agent_response(response: str, original_solution: SolutionScript) -> SolutionScript:
    """The revised script, or the original object when all data is used already or no valid script came back."""
    if ALL_USED.lower() in response.lower():
        return original_solution
    code = extract_code_block(response)
    if not has_extractable_code(response) or not compiles(code):
        warn_unusable(AgentType.data, response)
        return original_solution
    return original_solution.model_copy(update={"content": code})


# --- asking ----------------------------------------------------------------------------------------------


async def ask_agent(agent: AgentType, variant: str | None = None, *, remark: str = "", **values: object) -> AgentReply:
    """An agent's reply to its template, with a remark below it."""
    prompt = render(agent, variant, **values) + remark
    template_hash = PromptRegistry().hash(agent, variant)
    return await current_run().ask(agent, prompt, variant=variant, template_hash=template_hash)


async def try_agent(
    agent: AgentType, variant: str | None = None, *, remark: str = "", **values: object
) -> AgentReply | None:
    """As `ask_agent`; a call that failed gives None and a warning."""
    try:
        return await ask_agent(agent, variant, remark=remark, **values)
    except AgentError as error:
        logger.warning("%s: no reply from %s: %s", current_run().place, agent.value, error)
        return None


def warn_unusable(agent: AgentType, reply: str) -> None:
    """Say that a reply cannot be used: its head as a warning, all of it for those who debug."""
    place = current_run().place
    logger.warning("%s: parse failure: unusable reply of %s: %r", place, agent.value, reply[:200])
    logger.debug("%s: the whole reply of %s: %r", place, agent.value, reply)
