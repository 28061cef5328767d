"""Phase 2, the outer loop: an ablation study finds the block that matters, the inner loop refines it (Algorithm 2)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from mle_star.execution import evaluate_with_retry
from mle_star.method.codeblocks import locate_block
from mle_star.method.scores import BASELINE, parse_ablation_lines, parse_analysis
from mle_star.models import (
    AgentType,
    CodeBlock,
    EvaluationResult,
    ExtractorOutput,
    Phase2Result,
    PipelineConfig,
    RefinePlan,
    SolutionPhase,
    SolutionScript,
    TaskDescription,
)
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
    initial_solution: SolutionScript, initial_score: float, task: TaskDescription, config: PipelineConfig
) -> Phase2Result:
    """Refine a solution in T steps, each on the block that an ablation study points at.

    There are exactly T steps, skipped ones included, unless the run is told to finish: then the steps that were begun,
    and no more. To the letter the rest is in the history as skipped. With `more_steps` others follow while the time
    lasts, as long as they bring scripts that are new.
    """
    run, started = current_run(), time.monotonic()
    place = "".join(f"{part}/" for part in run.parts)
    best = initial_solution.model_copy(update={"score": initial_score})
    for t in count() if config.more_steps else range(config.outer_loop_steps):
        if stops_before(run, calls=3):
            break
        new = [one for one in run.reached.ran(f"{place}t-{t - 1}/") if one.score is not None and not one.result.cached]
        if t >= config.outer_loop_steps and not new:
            break
        with scope(f"t-{t}"):
            best = await _outer_step(t, best, path_history(place), task, config)
    history = path_history(place)
    for t in range(len(history), config.outer_loop_steps if config.letter else 0):
        history.append(OuterStepRecord(outer_step=t, best_score_after_step=score_of(best), was_skipped=True))
    words = run.place, len(history), best.score, time.monotonic() - started
    logger.info("%s: outer loop complete: %d steps, h_best %s, %.1f s", *words)
    return path_result(best, history)


async def _outer_step(
    t: int, best: SolutionScript, history: list[OuterStepRecord], task: TaskDescription, config: PipelineConfig
) -> SolutionScript:
    """One step of the path, after those of `history`; the solution that the next one begins with."""
    run, h_best, started = current_run(), score_of(best), time.monotonic()
    summaries = [record.ablation_summary for record in history if record.ablation_summary and not record.was_skipped]
    blocks = [record.code_block for record in history if record.code_block]
    tried = [attempt.plan for record in history for attempt in record.inner_loop_attempts]
    logger.info("%s: outer step %d starts: h_best %s, %d summaries", run.place, t, h_best, len(summaries))
    study = await study_components(best, h_best, summaries, task, config)  # a_t, r_t
    summary = await _summarize(study, t, h_best)  # T_abl^t
    chosen = await choose_block(summary or "\n\n".join([ABLATION_FAILED, *summaries]), best, blocks, tried)  # c_t, p_0
    found = {} if chosen is None else {"block": chosen.code_block, "plan": chosen.plan}
    run.record(BlockChosen(path=run.path or 0, t=t, **{"block": "", **found}))
    if chosen is not None:
        block = CodeBlock(content=chosen.code_block, outer_step=t)
        inner = await run_phase2_inner_loop(best, block, chosen.plan, h_best, task, config, tried=tried)
        best = inner.best_solution.model_copy(update={"score": inner.best_score})  # at least as good as h_best
    seconds = time.monotonic() - started
    logger.info("%s: outer step %d complete: h_best %s, %.1f s", run.place, t, best.score, seconds)
    return best


# --- the ablation study ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AblationStudy:
    """a_t and r_t: the script as it ran and what it printed. `scores` are its numbers by component, where it printed
    them as lines `Ablation <name>: <score>`; `printed` is what the solution itself says of its score, where known."""

    code: str = ""
    output: str = ""
    failed: bool = True
    skipped: bool = False
    scores: dict[str, float] = field(default_factory=dict)
    printed: float | None = None

    @property
    def comparable(self) -> bool:
        """Does the baseline of the study repeat what the solution itself printed, as far as both are known?"""
        baseline = next((value for name, value in self.scores.items() if name.lower() == BASELINE), None)
        if baseline is None or self.printed is None:
            return True
        return abs(baseline - self.printed) <= COMPARABLE_WITHIN * abs(self.printed) + ROUNDING


async def study_components(
    solution: SolutionScript, score: float, previous_summaries: list[str], task: TaskDescription, config: PipelineConfig
) -> AblationStudy:
    """Have an ablation study of `solution` written, run and repaired when it crashes; none where time is too short."""
    run = current_run()
    if not run.decide("study", partial(study_fits, run)):
        logger.warning("%s: no ablation study: it would take more time than studies may", run.place)
        return AblationStudy(skipped=True)
    script = await invoke_ablation(solution, previous_summaries)
    if script is None:
        return AblationStudy()
    script, result = await execute_ablation(script, task, config)
    if result.is_error:
        return AblationStudy()
    scores = parse_ablation_lines(result.stdout)
    return AblationStudy(
        script.content, result.stdout, failed=False, scores=scores, printed=_printed_score(solution, score)
    )


def _printed_score(solution: SolutionScript, score: float) -> float | None:
    """What the solution printed as its score when it ran last; `score` may come from hidden rows instead."""
    last = current_run().ledger.latest_run(digest_of(solution.content))
    return score if last is None else last.printed_score


async def execute_ablation(
    script: SolutionScript, task: TaskDescription, config: PipelineConfig
) -> tuple[SolutionScript, EvaluationResult]:
    """Run an ablation script, repaired up to `max_debug_attempts` times; the last version and its result."""
    repair = make_debug_callback(task, config, purpose="ablation")
    return await evaluate_with_retry(script, task, config, repair, purpose="ablation")


async def _summarize(study: AblationStudy, t: int, solution_score: float) -> str:
    """The summary of a study, empty for one that failed; the journal keeps its numbers."""
    run, summary = current_run(), ""
    if not study.failed:
        note = "" if study.comparable or study.printed is None or run.config.letter else _not_comparable(study.printed)
        summary = await invoke_summarize(study.code, study.output, note=note)
    run.record(
        AblationFinished(
            path=run.path or 0,
            t=t,
            scores=study.scores,
            solution_score=solution_score,
            comparable=study.comparable,
            failed=study.failed,
            skipped=study.skipped,
            summary=summary,
            analysis=parse_analysis(study.output),
        )
    )
    return summary


def _not_comparable(printed: float) -> str:
    return (
        f"The baseline of this study differs by more than 1 % from what the solution itself printed, {printed:g}: "
        "the numbers of the study are not comparable with that score. Compare them with each other only, and say so."
    )


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
    code = await ask_for_code(
        AgentType.ablation, solution_script=solution.content, previous_ablations=previous_summaries
    )
    return SolutionScript(content=code, phase=SolutionPhase.refined) if code else None


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
