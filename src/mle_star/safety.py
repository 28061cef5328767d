"""The agents that keep a solution honest: debugger, leakage checker, data-use checker.

All three take a script and give a script, never change the one they were given, and can be chained in any order.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from mle_star import models
from mle_star.errors import BudgetExceeded
from mle_star.execution import debug_text, detect_error_masking, evaluate_with_retry, exception_line
from mle_star.execution.artifacts import keep_best
from mle_star.method.codeblocks import compiles, locate_block, replacement
from mle_star.method.excerpts import changed_lines, excerpt
from mle_star.method.scores import best_first, says_score
from mle_star.models import AgentType, EvaluationResult, LeakageAnswer, PipelineConfig, SolutionScript, TaskDescription
from mle_star.models.agents import piece
from mle_star.models.texts import TRACEBACK_HEADER, digest_of
from mle_star.run.context import current_run
from mle_star.run.events import LEAKS, DebugAttempted, LeakageChecked, ScriptPurpose
from mle_star.run.request import ask_for, ask_for_code, code_of, try_agent, warn_unusable
from mle_star.run.timing import repair_fits

logger = logging.getLogger(__name__)

DebugCallback = Callable[[SolutionScript, str], Awaitable[SolutionScript]]

SCORE_LINE = 'print(f"Final Validation Performance: {final_validation_score}")'
ALL_USED = "All the provided information is used."
_CONFIRMS = re.compile(rf"(?<!not ){re.escape(ALL_USED)}", re.IGNORECASE)

NO_CODE = "no code in the reply"
UNCHECKED = "the solution was not checked for data leakage: the run ended before"
UNANSWERED = "the solution was not checked for data leakage: the checker gave no usable answer"
FIXED_AT_LAST = "data leakage was fixed in the solution at the very end: its score is that of the leaking script"
LEAK_REPLACED = "data leakage in the best solution could not be fixed: the next best one is submitted in its place"
MOST_CHECKS = 3
"""So many further solutions are checked for leakage where the best one leaks; of the rest, those checked before."""


# --- evaluation ------------------------------------------------------------------------------------------


Evaluated = tuple[SolutionScript, EvaluationResult]
"""A script as it was really run, with its score if it has one, and the result of its run."""


async def check_and_evaluate(candidate: SolutionScript, origin: SolutionScript | None = None) -> Evaluated:
    """Check for leakage, run, repair, score: how every phase evaluates; one that never came counts as failed."""
    if not candidate.content:
        return candidate, EvaluationResult(stdout="", stderr="", exit_code=-1, duration_seconds=0.0, is_error=True)
    return await evaluate_checked(await check_before_running(candidate, origin))


async def evaluate_checked(script: SolutionScript) -> Evaluated:
    """Run a checked script, repairs included."""
    known = current_run().task, current_run().config
    script, result = await evaluate_with_retry(script, *known, make_debug_callback(*known))
    return script.model_copy(update={"is_executable": script.score is not None}), result


def why_no_score(script: SolutionScript, result: EvaluationResult) -> str:
    """Why a script that was evaluated has no score; empty where it has one."""
    if result.is_error:
        return exception_line(debug_text(result)) if script.content else NO_CODE
    if current_run().leaks(script.content):
        return LEAKS
    return "" if script.score is not None else result.score_problem or "no score was printed"


# --- A_debugger ------------------------------------------------------------------------------------------


async def debug_solution(
    solution: SolutionScript, traceback: str, task: TaskDescription, config: PipelineConfig
) -> tuple[SolutionScript, EvaluationResult]:
    """Repair and run a script until it works or `max_debug_attempts` are used up; the last pair is returned."""
    repair = make_debug_callback(task, config)
    repaired = await repair(solution, traceback)
    return await evaluate_with_retry(repaired, task, config, repair, config.max_debug_attempts - 1, require_score=False)


def make_debug_callback(
    task: TaskDescription, config: PipelineConfig, *, purpose: ScriptPurpose = "solution", leakage_check: bool = True
) -> DebugCallback:
    """One repair a call, leakage-checked, for `evaluate_with_retry`; ablation scripts need neither score nor check.

    Where scripts are checked later, so are their repairs, but for those of a script that was checked before it ran.
    """

    in_time = True

    async def repair(solution: SolutionScript, traceback: str) -> SolutionScript:
        nonlocal in_time  # what was refused once is not asked for again
        run, kind = current_run(), "submission" if solution.phase is models.SolutionPhase.final else purpose
        in_time = in_time and run.decide("repair", partial(repair_fits, run, kind), reopen=True)
        if not in_time:
            return solution
        repaired = await _repair(solution, traceback, kind)
        if repaired is solution or not leakage_check or kind == "ablation":
            return repaired
        if checks_later() and run.check_state(solution.content) != "clean":
            return repaired
        return await check_and_fix_leakage(repaired, origin=solution)

    return repair


def fall_back(failed: SolutionScript, history: Sequence[SolutionScript], *, attempts: int) -> SolutionScript:
    """The most recent script that ran and scored; without one, the failed script, marked as such."""
    worked = [script for script in history if script.is_executable and script.score is not None]
    back = f"back to the last working script, score {worked[-1].score}" if worked else "no script has ever worked"
    logger.warning("%s: debug fallback: %d attempts used, %s", current_run().place, attempts, back)
    return worked[-1] if worked else failed.model_copy(update={"is_executable": False, "score": None})


async def _repair(solution: SolutionScript, error: str, kind: ScriptPurpose) -> SolutionScript:
    """Ask once for a fix; without a usable one the script itself comes back. To the letter there is one prompt."""
    if not error:
        raise ValueError("No traceback provided for debugging")
    run = current_run()
    if TRACEBACK_HEADER not in error:
        logger.warning("%s: the error for the debugger is no traceback", run.place)
    variant = None if kind == "solution" or run.config.letter else kind
    code = await ask_for_code(AgentType.debugger, variant, code=solution.content, bug=error)
    if code and kind == "solution":
        code = with_score_line(code)
    run.record(
        DebugAttempted(
            step=run.latest_step("debugger" if variant is None else f"debugger-{variant}"),
            error=exception_line(error),
            accepted=bool(code),
            reason="" if code else NO_CODE,
            parent=digest_of(solution.content),
            digest=digest_of(code) if code else "",
        )
    )
    return solution.model_copy(update={"content": code, "score": None, "is_executable": True}) if code else solution


# --- the score line -------------------------------------------------------------------------------------


def with_score_line(code: str) -> str:
    """The code with a line that prints the score; should its variable be unknown, that is the next thing to repair."""
    if says_score(code):
        return code
    logger.warning("%s: the repaired script prints no score; a line that does is added", current_run().place)
    main = re.search(r"^if __name__\b", code, re.MULTILINE)
    if main is None:
        return f"{code.rstrip()}\n{SCORE_LINE}\n"
    return f"{code[: main.start()]}{SCORE_LINE}\n\n{code[main.start() :]}"


# --- A_leakage -------------------------------------------------------------------------------------------


def checks_later() -> bool:
    """Are scripts run first, and only those checked that would be accepted?"""
    return current_run().config.leakage_checks == "promising"


async def check_before_running(solution: SolutionScript, origin: SolutionScript | None = None) -> SolutionScript:
    """The leakage check of a script that is still to run; none where only promising ones are checked."""
    return solution if checks_later() else await check_and_fix_leakage(solution, origin=origin)


async def check_and_fix_leakage(solution: SolutionScript, *, origin: SolutionScript | None = None) -> SolutionScript:
    """Look for leakage once and rewrite each block that leaks; a clean script comes back as it is.

    Of a script whose `origin` was found clean the checker sees what has to do with its changes; to the letter all.
    The score of a script with a leak that remains does not count, it never becomes the best. Without an answer the
    script comes back as it was, and counts as one that was not checked.
    """
    if not solution.content.strip():
        return solution
    run, digest = current_run(), digest_of(solution.content)
    shown = solution.content
    if origin is not None and not run.config.letter and run.check_state(origin.content) == "clean":
        shown = excerpt(shown, changed_lines(origin.content, shown))
    remark = "" if shown == solution.content else piece("excerpt")
    output = await ask_for(models.LeakageDetectionOutput, AgentType.leakage, "detection", code=shown, remark=remark)
    step = run.latest_step("leakage-detection")
    if output is None:
        run.record(LeakageChecked(step=step, digest=digest, answered=False))
        return solution
    leaks = [answer for answer in output.answers if answer.leakage_status == "Yes Data Leakage"]
    if not leaks:
        run.record(LeakageChecked(step=step, digest=digest))
        return solution
    try:
        current, left = await _without_leaks(solution, leaks)
    except (BudgetExceeded, asyncio.CancelledError):  # the end comes before it is fixed: it leaks all the same
        await _record_leaks(step, leaks, len(leaks), solution, solution)
        raise
    await _record_leaks(step, leaks, left, solution, current)
    return current


async def _without_leaks(solution: SolutionScript, leaks: list[LeakageAnswer]) -> tuple[SolutionScript, int]:
    """The script with each block fixed in turn, and as a whole what no block can fix; and how many leaks remain."""
    left: list[LeakageAnswer] = []
    for answer in leaks:
        corrected = await _correct_leakage(solution, answer)
        if corrected is None:
            left.append(answer)
        solution = corrected or solution
    if current_run().config.letter:
        return solution, len(left)
    rewritten = await _rewrite_leaking(solution, left) if left else solution
    return (solution, len(left)) if rewritten is None else (rewritten, 0)


async def _record_leaks(
    step: str, leaks: list[LeakageAnswer], left: int, before: SolutionScript, after: SolutionScript
) -> None:
    """None of the scripts that leak may be the best: nothing that is kept rests on what they said.

    To the letter they count as any other.
    """
    run, digest, fixed = current_run(), digest_of(before.content), digest_of(after.content)
    # one that came back as it was has never leaked
    leaking = set[str]() if run.config.letter else {digest, fixed} if left else {digest} - {fixed}
    run.record(
        LeakageChecked(
            step=step,
            digest=digest,
            found=len(leaks),
            fixed=len(leaks) - left,
            leaking=sorted(leaking),
            blocks=[answer.code_block for answer in leaks],
            fixed_digest="" if fixed in leaking else fixed,
        )
    )
    if leaking:
        await keep_best(run)


def record_fixed(before: SolutionScript, after: SolutionScript) -> None:
    """Say of the attempt that a leaking script came from that another one, with its own score, took its place."""
    node = current_run().ledger.node_of(digest_of(before.content))
    if node is not None:
        now = {"digest": digest_of(after.content), "score": after.score, "change": None}
        current_run().record(node.event.model_copy(update=now))


async def check_winner(
    scripts: dict[int, SolutionScript], floor: float | None = None, origin: SolutionScript | None = None
) -> int | None:
    """Check what would be accepted, and that alone: the best script, a later one on ties, and where it leaks the next.

    A script that was fixed takes the place of its own in `scripts`, and competes with its new score. Gives the number
    of the winner; None where none is clean and reaches the `floor`.
    """
    checked, direction = set[int](), current_run().task.metric_direction
    while counted := [k for k in sorted(scripts, reverse=True) if _counts(scripts[k], floor, direction)]:
        k = best_first(counted, lambda k: scripts[k].score, direction)[0]
        if k in checked:
            return k
        checked.add(k)
        found = await check_and_fix_leakage(scripts[k], origin=origin)
        if current_run().leaks(found.content):
            found = found.model_copy(update={"score": None})
        elif found.content != scripts[k].content:
            found, _ = await evaluate_checked(found)
        scripts[k] = found
    return None


def _counts(one: SolutionScript, floor: float | None, direction: models.MetricDirection) -> bool:
    return one.score is not None and (floor is None or models.is_improvement_or_equal(one.score, floor, direction))


async def check_at_last(
    solution: SolutionScript, members: Iterable[str] | None = None
) -> tuple[SolutionScript, list[str]]:
    """What is submitted, checked where the end came before its check; and what is to be said of it."""
    run, digest = current_run(), digest_of(solution.content)
    remarks = remarks_of([solution.content] if members is None else members)
    if checks_later() and remarks and not run.leaks(solution.content):
        remarks = [UNCHECKED]
        with suppress(BudgetExceeded):
            if not run.budget.money_is_gone and members is None:
                checked = await check_and_fix_leakage(solution)
                if not run.leaks(checked.content) and run.check_state(solution.content) != "unanswered":
                    fixed = checked.content != solution.content
                    return checked.model_copy(update={"score": solution.score}), [FIXED_AT_LAST] if fixed else []
                remarks = [UNANSWERED]
    return solution, [] if run.ledger.leaks(digest) else remarks  # of one that leaks there is nothing more to say


def remarks_of(contents: Iterable[str]) -> list[str]:
    """What is to be said of scripts whose last check had no answer, or never came although one was due."""
    states = {current_run().ledger.check_state(digest_of(content)) for content in contents}
    if "unanswered" in states:
        return [UNANSWERED]
    return [UNCHECKED] if checks_later() and states - {"clean"} else []


async def clean_at_last(
    solution: SolutionScript, members: Iterable[str] | None, others: Sequence[SolutionScript]
) -> tuple[SolutionScript, list[str]]:
    """As `check_at_last`; where the solution leaks, the first of `others` that does not takes its place."""
    run, leaks, checks = current_run(), current_run().ledger.leaks, 0
    checked, remarks = await check_at_last(solution, members)
    for other in others if leaks(digest_of(checked.content)) else ():
        digest = digest_of(other.content)
        if leaks(digest):
            continue
        checks += checks_later() and run.ledger.check_state(digest) != "clean"
        if checks > MOST_CHECKS:
            continue
        run.shared.ending.stand_in = other  # should the end come now
        found, warnings = await check_at_last(other)
        if not leaks(digest_of(found.content)):
            run.shared.ending.stand_in = found
            logger.warning("%s, score %s", LEAK_REPLACED, found.score)
            return found, [LEAK_REPLACED, *warnings]
    run.shared.ending.stand_in = None
    return checked, remarks


async def _correct_leakage(solution: SolutionScript, answer: LeakageAnswer) -> SolutionScript | None:
    """The script with one leaking block rewritten, or None when that cannot be done."""
    run = current_run()
    block = answer.code_block if run.config.letter else locate_block(answer.code_block, solution.content)
    if block is None:
        about = run.place, answer.code_block[:80]
        logger.warning("%s: replacement skipped: the leaking block is not in the script: %r", *about)
        return None
    new = await ask_for_code(AgentType.leakage, "correction", code=solution.content, flagged_block=block)
    if not new or new.strip() == block.strip():
        logger.warning("%s: correction end: no other block came back, not replaced", run.place)
        return None
    return with_block(solution, block, new)


def with_block(solution: SolutionScript, block: str, new: str) -> SolutionScript | None:
    """The script with a block rewritten; None when the block is not in it, or it would no longer compile."""
    run = current_run()
    try:
        replaced = solution.replace_block(*replacement(solution.content, block, new, first=run.config.letter))
        if compiles(solution.content) and not compiles(replaced.content):
            raise ValueError("the script would no longer compile")
    except ValueError as error:
        logger.warning("%s: replacement skipped: %s", run.place, error)
        return None
    logger.info("%s: replacement done: %+d characters", run.place, len(replaced.content) - len(solution.content))
    return replaced


async def _rewrite_leaking(solution: SolutionScript, answers: list[LeakageAnswer]) -> SolutionScript | None:
    """The whole script without the leaks that no block could fix, asked for once; None when that fails, too.

    A script that comes back as it was, after blocks were quoted that it does not hold, was never leaking.
    """
    blocks = [answer.code_block for answer in answers]
    final = solution.phase is models.SolutionPhase.final
    values = {"code": solution.content, "flagged_block": blocks, "final_script": final}
    code = await ask_for_code(AgentType.leakage, "rewrite", **values)
    if code.strip() == solution.content.strip() and code:
        return solution if all(locate_block(block, solution.content) is None for block in blocks) else None
    if not code or (compiles(solution.content) and not compiles(code)):
        return None
    return solution.model_copy(update={"content": code if final else with_score_line(code), "score": None})


# --- A_data ----------------------------------------------------------------------------------------------


async def check_data_usage(solution: SolutionScript, task: TaskDescription) -> SolutionScript:
    """Have ignored data sources worked in; Phase 1 asks this once a run, after merging."""
    if not solution.content.strip() or not task.description.strip():
        logger.warning("%s: the data-use check needs a script and a task description", current_run().place)
        return solution
    reply = await try_agent(AgentType.data, initial_solution=solution.content, task_description=task.description)
    if reply is None:
        return solution
    checked = parse_data_agent_response(reply.text, solution)
    if checked is not solution:
        warn_of_masking(checked)
    return checked


def warn_of_masking(script: SolutionScript) -> None:
    """Say where a script may hide its errors; it runs all the same."""
    for finding in detect_error_masking(script.content):
        logger.warning("%s: the script may hide errors: %s", current_run().place, finding)


def parse_data_agent_response(response: str, original_solution: SolutionScript) -> SolutionScript:
    """The revised script, or the original object when all data is used already or no valid script came back.

    To the letter all data is used wherever the reply holds the sentence.
    """
    holds = ALL_USED.lower() in response.lower()
    if holds if current_run().config.letter else _CONFIRMS.search(response):
        return original_solution
    code = code_of(response)
    if not code or not compiles(code):
        warn_unusable(AgentType.data, response)
        return original_solution
    return original_solution.model_copy(update={"content": code})
