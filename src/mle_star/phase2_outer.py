"""Phase 2, the outer loop: an ablation study finds the block that matters, the inner loop refines it (Algorithm 2)."""

import logging
import time
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from mle_star import models
from mle_star.execution import evaluate_with_retry
from mle_star.method.codeblocks import locate_block
from mle_star.method.scores import BASELINE, parse_ablation_lines, parse_analysis
from mle_star.models import AgentType, CodeBlock, EvaluationResult, ExtractorOutput, RefinePlan, SolutionScript
from mle_star.models.agents import section
from mle_star.models.texts import digest_of
from mle_star.phase2_inner import run_phase2_inner_loop
from mle_star.prompts import BLOCK_NOT_FOUND
from mle_star.run.context import current_run, scope
from mle_star.run.events import AblationFinished, BlockChosen
from mle_star.run.reached import OuterStepRecord, path_history, path_result, score_of
from mle_star.run.request import ask_for, ask_for_code, ask_for_text
from mle_star.run.timing import stops_before, study_fits
from mle_star.safety import make_debug_callback

logger = logging.getLogger(__name__)

ABLATION_FAILED = "Ablation study failed for this step"
AUTO_SUMMARY = "[Auto-summary from raw output] "
AUTO_SUMMARY_CHARACTERS = 2000
MAX_BLOCK_RETRIES = 2  # REQ-P2O-018
MAX_PARSE_RETRIES = 1  # REQ-P2O-034
COMPARABLE_WITHIN, ROUNDING = 0.01, 1e-9


# --- Algorithm 2 -----------------------------------------------------------------------------------------


async def run_phase2_outer_loop(
    initial_solution: SolutionScript, initial_score: float, task: models.TaskDescription, config: models.PipelineConfig
) -> models.Phase2Result:
    """Refine a solution in T steps, each on the block that an ablation study points at.

    There are exactly T steps, skipped ones included, unless the run is told to finish: then the steps that were begun,
    and no more. To the letter the rest is in the history as skipped. With `more_steps` others follow while the time
    lasts, as long as they bring scripts that are new.
    """
    started = time.monotonic()
    with scope(task=task, config=config) as run:
        place = "".join(f"{part}/" for part in run.parts)
        best = initial_solution.model_copy(update={"score": initial_score})
        for t in count() if config.more_steps else range(config.outer_loop_steps):
            if stops_before(run, calls=3):
                break
            before = run.reached.ran(f"{place}t-{t - 1}/")
            is_new = any(one.score is not None and not one.result.cached for one in before)
            if t >= config.outer_loop_steps and not is_new:
                break
            with scope(f"t-{t}"):
                best = await _outer_step(t, best, path_history(place))
        history = path_history(place)
    for t in range(len(history), config.outer_loop_steps if config.letter else 0):
        history.append(OuterStepRecord(outer_step=t, best_score_after_step=score_of(best), was_skipped=True))
    words = run.place, len(history), best.score, time.monotonic() - started
    logger.info("%s: outer loop complete: %d steps, h_best %s, %.1f s", *words)
    return path_result(best, history)


async def _outer_step(t: int, best: SolutionScript, history: list[OuterStepRecord]) -> SolutionScript:
    """One step of the path, after those of `history`; the solution that the next one begins with."""
    run, h_best, started = current_run(), score_of(best), time.monotonic()
    summaries = [record.ablation_summary for record in history if record.ablation_summary and not record.was_skipped]
    blocks = [record.code_block for record in history if record.code_block]
    tried = [attempt.plan for record in history for attempt in record.inner_loop_attempts]
    logger.info("%s: outer step %d starts: h_best %s, %d summaries", run.place, t, h_best, len(summaries))
    summary = await study_components(t, best, h_best, summaries)  # T_abl^t
    chosen = await choose_block(summary or "\n\n".join([ABLATION_FAILED, *summaries]), best, blocks, tried)  # c_t, p_0
    found = {} if chosen is None else {"block": chosen.code_block, "plan": chosen.plan}
    run.record(BlockChosen(path=run.path or 0, t=t, **{"block": "", **found}))
    if chosen is not None:
        block = CodeBlock(content=chosen.code_block, outer_step=t)
        inner = await run_phase2_inner_loop(best, block, chosen.plan, h_best, run.task, run.config, tried=tried)
        best = inner.best_solution.model_copy(update={"score": inner.best_score})
    words = run.place, t, best.score, time.monotonic() - started
    logger.info("%s: outer step %d complete: h_best %s, %.1f s", *words)
    return best


# --- the ablation study ----------------------------------------------------------------------------------


async def study_components(t: int, solution: SolutionScript, score: float, previous_summaries: list[str]) -> str:
    """a_t, r_t and T_abl^t: have a study of `solution` written, run, repaired when it crashes, and summarized.

    Empty where there is none: it failed, or time was too short. The journal keeps its numbers.
    """
    run = current_run()
    fits = run.decide("study", partial(study_fits, run))
    found: dict[str, Any] = {"failed": True, "skipped": not fits}
    if not fits:
        logger.warning("%s: no ablation study: it would take more time than studies may", run.place)
    elif (script := await invoke_ablation(solution, previous_summaries)) is not None:
        script, result = await execute_ablation(script)
        if not result.is_error:
            found = await _findings(script.content, result.stdout, solution, score)
    run.record(study := AblationFinished(path=run.path or 0, t=t, solution_score=score, **found))
    return study.summary


async def execute_ablation(script: SolutionScript) -> tuple[SolutionScript, EvaluationResult]:
    """Run an ablation script, repaired up to `max_debug_attempts` times; the last version and its result."""
    known = current_run().task, current_run().config
    repair = make_debug_callback(*known, purpose="ablation")
    return await evaluate_with_retry(script, *known, repair, purpose="ablation")


async def _findings(code: str, output: str, solution: SolutionScript, score: float) -> dict[str, Any]:
    """What a study has found: its numbers by component, where it printed them as lines `Ablation <name>: <score>`, and
    its summary."""
    run, scores = current_run(), parse_ablation_lines(output)
    last = run.ledger.latest_run(digest_of(solution.content))
    printed = score if last is None else last.printed_score  # `score` may come from hidden rows instead
    comparable = _is_comparable(scores, printed)
    note = "" if comparable or run.config.letter else section("not_comparable", printed=f"{printed:g}")
    summary = await invoke_summarize(code, output, note=note)
    return {"scores": scores, "comparable": comparable, "summary": summary, "analysis": parse_analysis(output)}


def _is_comparable(scores: dict[str, float], printed: float | None) -> bool:
    """Does the baseline of a study repeat what the solution itself printed, as far as both are known?"""
    baseline = next((value for name, value in scores.items() if name.lower() == BASELINE), None)
    if baseline is None or printed is None:
        return True
    return abs(baseline - printed) <= COMPARABLE_WITHIN * abs(printed) + ROUNDING


# --- the block to refine ---------------------------------------------------------------------------------


async def choose_block(
    summary: str, solution: SolutionScript, previous_blocks: list[str], tried: Sequence[str] = ()
) -> RefinePlan | None:
    """c_t and p_0: a block that stands in the solution, and its plan; None when no answer named one.

    Asks again once after an answer that cannot be read, and twice after a block that is not in the solution.
    """
    answers: list[ExtractorOutput] = []
    unreadable = 0
    while unreadable <= MAX_PARSE_RETRIES and len(answers) <= MAX_BLOCK_RETRIES:
        answer = await invoke_extractor(summary, solution, previous_blocks, retry=bool(answers), tried=tried)
        if answer is None:
            unreadable += 1
            continue
        answers.append(answer)
        found = _find_block(answer.plans[0], solution)
        if found is not None:
            return found
        words = current_run().place, len(answers), answer.plans[0].code_block[:100]
        logger.warning("%s: code block not in the solution, attempt %d: %r", *words)
    candidates = (plan for answer in reversed(answers) for plan in answer.plans)
    return next((found for plan in candidates if (found := _find_block(plan, solution)) is not None), None)


def _find_block(plan: RefinePlan, solution: SolutionScript) -> RefinePlan | None:
    """The plan with its block as it stands in the solution: as given, else apart from blanks at its borders and line
    ends. A block that only cuts a word in two is none: it could not be replaced."""
    place = current_run().place
    exact = current_run().config.letter and plan.code_block.strip() and validate_code_block(plan.code_block, solution)
    located = plan.code_block if exact else locate_block(plan.code_block, solution.content)
    if not located:
        logger.info("%s: code block validation failed", place)
        return None
    how = "exact" if validate_code_block(plan.code_block, solution) else "whitespace-normalized"
    logger.info("%s: code block validation passed: %s", place, how)
    return plan.model_copy(update={"code_block": located})


def validate_code_block(code_block: str, solution: SolutionScript) -> bool:
    """Does the block stand in the solution, character by character?"""
    return code_block in solution.content


# --- the three agents ------------------------------------------------------------------------------------


async def invoke_ablation(solution: SolutionScript, previous_summaries: list[str]) -> SolutionScript | None:
    """A_abl: a script that studies parts of the solution not studied before, or None when the reply holds no code."""
    if not solution.content.strip() or not solution.is_executable:
        raise ValueError("A_abl requires a solution that is not empty and can be run")
    known: dict[str, Any] = {"solution_script": solution.content, "previous_ablations": previous_summaries}
    code = await ask_for_code(AgentType.ablation, **known)
    return SolutionScript(content=code, phase=models.SolutionPhase.refined) if code else None


async def invoke_summarize(ablation_code: str, raw_output: str, *, note: str = "") -> str:
    """A_summarize: what the study showed, in words; without a reply, the end of the output itself."""
    if not ablation_code.strip():
        raise ValueError("A_summarize requires the code of the ablation study")
    values = {"ablation_code": ablation_code, "raw_result": raw_output}
    summary = await ask_for_text(AgentType.summarize, remark=note, **values)
    return summary or AUTO_SUMMARY + raw_output[-AUTO_SUMMARY_CHARACTERS:]


async def invoke_extractor(
    summary: str,
    solution: SolutionScript,
    previous_blocks: list[str],
    *,
    retry: bool = False,
    tried: Sequence[str] = (),
) -> ExtractorOutput | None:
    """A_extractor: blocks of the solution worth refining, with plans; None when the reply cannot be read."""
    if not summary.strip() or not solution.content.strip():
        raise ValueError("A_extractor requires a summary and a solution that are not empty")
    return await ask_for(
        ExtractorOutput,
        AgentType.extractor,
        note=BLOCK_NOT_FOUND if retry else None,
        solution_script=solution.content,
        ablation_summary=summary,
        previous_code_blocks=previous_blocks,
        tried=tried,
    )
