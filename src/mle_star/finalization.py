"""Finalization: from the best solution to a submission that lies on disk, whatever is left of time and money."""

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mle_star import execution, models, safety
from mle_star.errors import BudgetExceeded
from mle_star.execution.artifacts import STATE, fitted_digest, save_fitted
from mle_star.execution.harness import answer_together, keep_members, not_fitted
from mle_star.execution.scoring import disagreement, holdout_of, searched_submission, whole_data
from mle_star.execution.submission import SUBMISSION
from mle_star.method.codeblocks import has_code_fence
from mle_star.method.scores import best_first
from mle_star.models import AgentType, DataContaminationResult, FinalResult, Phase1Result, SolutionPhase, SolutionScript
from mle_star.models.texts import TRACEBACK_HEADER, digest_of
from mle_star.run.context import Ending, RunContext, Submission, current_run, scope
from mle_star.run.folder import place_copy
from mle_star.run.log_lines import yes_no
from mle_star.run.reached import script_of
from mle_star.run.request import ask_for, ask_for_code, code_of, try_agent, warn_unusable
from mle_star.run.timing import too_late_for

logger = logging.getLogger(__name__)

PhaseResults = tuple[Phase1Result, list[models.Phase2Result], models.Phase3Result | None]

REFIT = "final/refit.csv"
"""What the final script wrote where its answers are not submitted."""
NO_SUBMISSION = f"{TRACEBACK_HEADER}\nFileNotFoundError: ./final/submission.csv missing or empty"
UNCHECKED_SUBMISSION = "the submitted script was not checked for data leakage: the money was spent"
LEAKING_SOLUTION = "data leakage was found in the solution and could not be fixed: its score may be too good"
_CUTS_ROWS = re.compile(
    r"subsampl(?!e\s*=)|\.sample\(|resample\(|train_size|nrows|\.head\(|\.tail\(|\bchoice\(|permutation\(|\[\s*:\s*\w",
    re.IGNORECASE,
)
"""What a script may cut its rows with, and much that only looks so: then the question is worth its price."""
_SAYS_NONE = re.compile(r"^\W*$|^\W*none\W*$|\b(?:no|not|never|without)\b[^.]*\bsubsampl", re.IGNORECASE)


async def run_finalization(
    solution: SolutionScript,
    task: models.TaskDescription,
    config: models.PipelineConfig,
    phase1_result: Phase1Result,
    phase2_results: list[models.Phase2Result],
    phase3_result: models.Phase3Result | None,
    reference_discussions: list[str] | None = None,
    *,
    started_at: float | None = None,
    total_cost_usd: float | None = None,
    members: dict[str, float] | None = None,
    others: Sequence[SolutionScript] | None = None,
) -> FinalResult:
    """Turn the best solution into a submission and put the result together; it always returns one.

    This is where a run goes when a limit is reached, so a limit that is reached in here ends in the best submission
    that was kept on the way. Where the solution leaks, the first clean one of `others` takes its place; by default
    these are all solutions of the search, best first.
    """
    started = time.monotonic() if started_at is None else started_at
    with scope("finalization", task=task, config=config) as run:
        run.shared.ending = ending = Ending()
        about = solution.phase.value, len(solution.content), task.competition_id
        logger.info("finalization start: phase %s, %d characters, %s", *about)
        others = _solutions_of_the_search(run) if others is None else others
        solution, remarks = await safety.clean_at_last(solution, members, others)
        ending.remarks = remarks = [LEAKING_SOLUTION] if run.ledger.leaks(digest_of(solution.content)) else remarks
        if members is not None:
            await asyncio.to_thread(keep_members, run, members)
        if not run.shared.has_test:
            submission = await _fit(solution, members or {solution.content: 1.0})
        elif members is not None:
            submission = await submit_blend(solution, members)
        elif late := _too_late_for(solution):
            submission = await use_kept_submission(solution, reason=late)
        else:
            submission = await _best_submission(solution)
        if not run.budget.degraded:  # else the money is gone
            await check_contamination(submission.script, reference_discussions or [])
        result = _result(submission, remarks, (phase1_result, phase2_results, phase3_result))
    seconds = time.monotonic() - started
    built = submission.script.phase.value, submission.path, seconds
    logger.info("result built: phase %s, path %r, %.1f s in total", *built)
    return result.model_copy(update={"total_duration_seconds": seconds, "total_cost_usd": total_cost_usd})


def _solutions_of_the_search(run: RunContext) -> list[SolutionScript]:
    """All solutions with a score, best first."""
    latest = {one.script_id: script_of(one) for one in run.ledger.ran() if one.score is not None}
    return best_first(latest.values(), lambda script: script.score, run.task.metric_direction)


async def result_of_the_search(
    solution: SolutionScript, found: PhaseResults, why: Exception | None, members: Iterable[str] | None
) -> FinalResult:
    """What is submitted when finalization was cut off or failed: the best that there is, with all that was said."""
    run, failed = current_run(), not isinstance(why, BudgetExceeded)
    reason = f"{type(why).__name__}: {why}" if failed else str(why)
    if run.shared.has_test:
        submission = await use_kept_submission(solution, reason=reason, failed=failed)
    else:
        submission = Submission(solution, warnings=[not_fitted(reason)])
    script, remarks = submission.script, run.shared.ending.remarks
    if run.ledger.leaks(digest_of(script.content)):
        remarks = [LEAKING_SOLUTION]
    elif script.phase is not SolutionPhase.final and script.content != solution.content:
        remarks = []  # another one stands in
    elif remarks is None:
        remarks = safety.remarks_of(members or [solution.content])
    return _result(submission, remarks, found)


def _result(submission: Submission, remarks: list[str], found: PhaseResults) -> FinalResult:
    """What is submitted, as far as it is known here."""
    run = current_run()
    return FinalResult(
        task=run.task,
        config=run.config,
        phase1=found[0],
        phase2_results=found[1],
        phase3=found[2],
        final_solution=submission.script,
        submission_path=submission.path,
        total_duration_seconds=0.0,
        total_cost_usd=None,
        lineage={"finalization": {"subsampling_removed": submission.subsampling_removed, **submission.facts}},
        has_test=run.shared.has_test,
        contamination=run.shared.ending.contamination,
        warnings=[*remarks, *submission.warnings],
    )


def _too_late_for(solution: SolutionScript) -> str:
    """Why a solution that has answered in the search does not run again, or an empty text."""
    run = current_run()
    return too_late_for(run, solution.content) if searched_submission(run, solution) is not None else ""


@dataclass
class _Draft:
    """What finalization has of a solution so far: trained on all rows, and the test script that was made of that."""

    solution: SolutionScript
    full: SolutionScript
    test_script: SolutionScript | None = None


async def _best_submission(solution: SolutionScript) -> Submission:
    """All steps; with the money gone only the cheapest ones; with the time gone only what was kept."""
    budget, draft = current_run().budget, _Draft(solution, solution)
    if budget.money_is_gone and not budget.degraded:
        budget.open_phase("finalization")
    while True:
        try:
            return await _submit(draft)
        except BudgetExceeded as stop:
            logger.warning("finalization was cut short: %s", stop)
            if budget.degraded or not budget.money_is_gone:
                return await use_kept_submission(solution, reason=str(stop))
            budget.open_phase("finalization")


async def _submit(draft: _Draft) -> Submission:
    """Steps 1 to 6. With the money gone: one call for the test script, unless it is there, and one for a repair."""
    run = current_run()
    poor = run.budget.degraded
    if not poor:
        draft.full = await remove_subsampling(draft.solution)
    if draft.test_script is None or not draft.test_script.content:
        draft.test_script = await generate_test_submission(run.task, draft.full)
    if not poor:
        draft.test_script = await safety.check_before_running(draft.test_script)
    callback = safety.make_debug_callback(run.task, run.config, leakage_check=not poor)
    repair = _Repairs(callback, 1 if poor else run.config.max_debug_attempts, draft.solution)
    submission = await _run_and_verify(draft.test_script, draft, repair)
    made = submission.script.phase is SolutionPhase.final
    checked = safety.checks_later() or run.ledger.check_state(digest_of(submission.script.content)) == "clean"
    if poor and made and not checked:
        submission = replace(submission, warnings=[*submission.warnings, UNCHECKED_SUBMISSION])
    return submission


# --- steps 4 to 6: run, verify, repair, fall back --------------------------------------------------------


class _Repairs:
    """A debug callback that counts: crashes and missing files share one limit. What repairs cost in time is gone."""

    def __init__(self, callback: safety.DebugCallback, limit: int, scored: SolutionScript) -> None:
        self.callback, self.limit, self.left, self.scored = callback, limit, limit, scored

    async def __call__(self, script: SolutionScript, traceback: str) -> SolutionScript:
        if late := _too_late_for(self.scored):
            raise BudgetExceeded(limit="time", message=late)
        self.left -= 1
        attempt = self.limit - self.left
        logger.warning("repair: attempt %d of %d, %s", attempt, self.limit, execution.exception_line(traceback))
        repaired = await self.callback(script, traceback)
        if repaired.content != script.content:
            safety.warn_of_masking(repaired)
        return repaired


async def _run_and_verify(script: SolutionScript, draft: _Draft, repair: _Repairs) -> Submission:
    """Steps 4 to 6: run the test script, repaired as often as allowed, until its file is there; else fall back."""
    run, validated = current_run(), draft.solution
    safety.warn_of_masking(script)
    if not script.content:  # the debugger gets the script that was to be turned into one
        script = await repair(draft.full.model_copy(update={"phase": SolutionPhase.final}), NO_SUBMISSION)
    while True:
        known = run.task, run.config, repair, repair.left
        seconds = run.config.time_limit_seconds
        script, result = await execution.evaluate_with_retry(script, *known, timeout_override=seconds)
        if not result.is_error and execution.verify_submission(str(run.work_dir)):
            break
        if repair.left <= 0:
            error = execution.exception_line(execution.debug_text(result))
            reason = error if result.is_error else "no submission was written"
            return await use_kept_submission(validated, reason=reason, failed=True)
        script = await repair(script, NO_SUBMISSION)
    digest = await asyncio.to_thread(fitted_digest, script.content, whole_data(run))
    await asyncio.to_thread(save_fitted, run.run_dir, run.work_dir / STATE, digest)
    return await _submit_file(script, validated, subsampling_removed=draft.full.content != validated.content)


async def _submit_file(script: SolutionScript, validated: SolutionScript, *, subsampling_removed: bool) -> Submission:
    """Step 5: look at the file, warn of what looks odd, and put it where the owner of the run looks for it.

    The score stays the validated one: a test script trains on all labelled rows and can no longer be scored by them.
    """
    run = current_run()
    if reason := await asyncio.to_thread(disagreement, run, validated, run.work_dir / SUBMISSION):
        with suppress(OSError):  # both are kept
            await asyncio.to_thread(place_copy, run.work_dir / SUBMISSION, run.run_dir / REFIT)
            reason += f"; what it wrote is in {REFIT}"
        return await use_kept_submission(validated, reason=reason)
    info = await asyncio.to_thread(execution.get_submission_info, str(run.work_dir))
    logger.info("verification: exists %s, %d bytes, %s rows", info["exists"], info["size_bytes"], info["row_count"])
    holdout = holdout_of(run)
    sample = None if holdout is None else holdout.sample
    warnings = await asyncio.to_thread(execution.check_submission_format, str(run.work_dir), sample=sample)
    final = script.model_copy(update={"score": validated.score, "is_executable": True})
    path = await asyncio.to_thread(_publish, run.work_dir / SUBMISSION)
    beside = sample or await asyncio.to_thread(execution.find_sample_submission, str(run.work_dir))
    facts = {"rows": info["row_count"], "problems": len(warnings)}
    if beside is not None and not warnings:
        facts["sample"] = beside.name
    submission = Submission(final, path, warnings, subsampling_removed, facts)
    run.shared.ending.submission = submission
    return submission


async def _fit(solution: SolutionScript, scripts: dict[str, float]) -> Submission:
    """Without rows to predict, the scripts of a solution learn from all rows: what they fit is for new rows to come."""
    run = current_run()
    if run.config.letter:
        return Submission(solution)
    try:
        return Submission(solution, warnings=await answer_together(run, solution.content, scripts))
    except BudgetExceeded as stop:
        return Submission(solution, warnings=[not_fitted(str(stop))])


async def submit_blend(solution: SolutionScript, members: dict[str, float]) -> Submission:
    """Run the members of a blend on the untouched data and submit what they say together."""
    warnings = await answer_together(current_run(), solution.content, members)
    done = await _submit_file(solution, solution, subsampling_removed=False)
    return replace(done, warnings=[*warnings, *done.warnings])


async def use_kept_submission(solution: SolutionScript, *, reason: str, failed: bool = False) -> Submission:
    """Step 6: the best submission that was kept on the way and the script that made it, else the validated script.

    Where scripts are scored by their answers, it is what the scored script itself said of the test rows in the search.
    A run that was cut off after it had a submission keeps that one. To the letter, what `failed`, and was
    not ended by a limit, leaves no submission.
    """
    run = current_run()
    if run.shared.ending.submission is not None:
        return run.shared.ending.submission
    warnings, kept = [f"no submission by a script of its own: {reason}"], run.ledger.kept
    score, source = (None, "") if kept is None else (kept.score, kept.source)
    if failed and run.config.letter and not run.budget.degraded:
        source = ""
    if (searched := searched_submission(run, solution)) is not None:
        path = await asyncio.to_thread(_publish, searched)
        warnings.append("the submission is what the scored script answered in the search")
    elif source and (run.run_dir / source).is_file():
        solution = _maker_of(source, score, solution)
        path = await asyncio.to_thread(_publish, run.run_dir / source)
        warnings.append(f"the submission is the best one kept on the way, by a script with score {score}")
    else:
        path = ""
        with suppress(OSError):
            (run.run_dir / SUBMISSION).unlink()  # one of an earlier process is not this result's
    logger.warning("fallback: %s; phase %s, score %s", "; ".join(warnings), solution.phase.value, solution.score)
    return Submission(solution, path, warnings, facts={"fallback": True} if path else {})


def _maker_of(source: str, score: float | None, solution: SolutionScript) -> SolutionScript:
    """The script that left a kept submission: `solution` itself where that may be, else as the ledger has it."""
    ledger, digest = current_run().ledger, digest_of(solution.content)
    made = [run for run in ledger.runs.values() if (run.result.submission, run.score) == (source, score)]
    return solution if not made or any(run.script_id == digest for run in made) else script_of(made[0])


def _publish(source: Path) -> str:
    """Put a submission where the owner of the run looks for it; its absolute path, there or, at worst, where it is."""
    target = (current_run().run_dir / SUBMISSION).absolute()
    try:
        place_copy(source, target)
    except OSError as error:
        logger.error("the submission stays in %s: %s", source, error)
        return str(source.absolute())
    return str(target)


# --- steps 1 and 2: all rows, and the test script --------------------------------------------------------


async def remove_subsampling(solution: SolutionScript) -> SolutionScript:
    """The script trained on all rows: the block that cuts them is found, rewritten and put back."""
    if not solution.content.strip():
        return solution
    block = await _find_subsampling(solution)
    logger.info("extraction result: found: %s", yes_no(block))
    reply = await try_agent(AgentType.test, "subsampling_remove", code_block_with_subsampling=block) if block else None
    if reply is None:
        return solution
    code = code_of(reply.text)  # empty when nothing of the block is needed
    if not code and not has_code_fence(reply.text):
        warn_unusable(AgentType.test, reply.text)
        return solution
    return safety.with_block(solution, block, code) or solution


async def _find_subsampling(solution: SolutionScript) -> str:
    """The block that subsamples, word for word; empty when there is none.

    Nobody is asked where no script of the run was told to cut the rows and nothing in this one looks like it.
    """
    holdout, most = holdout_of(current_run()), current_run().config.subsample_limit
    few = holdout is not None and holdout.scorer.data.train.count <= most
    if few and not _CUTS_ROWS.search(solution.content):
        return ""
    reply = await try_agent(AgentType.test, "subsampling_extract", final_solution=solution.content)
    block = "" if reply is None else code_of(reply.text)
    if block and block in solution.content:
        return block
    if reply is not None and (block or not (has_code_fence(reply.text) or _SAYS_NONE.search(reply.text))):
        warn_unusable(AgentType.test, reply.text)
    return ""


async def generate_test_submission(task: models.TaskDescription, solution: SolutionScript) -> SolutionScript:
    """A_test: the script that predicts the test samples; empty when no code came back."""
    code = await ask_for_code(AgentType.test, task_description=task.description, final_solution=solution.content)
    return SolutionScript(content=code, phase=SolutionPhase.final, source_model=solution.source_model)


async def check_contamination(
    solution: SolutionScript, reference_discussions: list[str]
) -> DataContaminationResult | None:
    """Is the solution a copy of one of the discussions? None when nothing was given or the answers do not say.

    A limit that is reached on the way leaves the other discussions without an answer.
    """
    references = [reference for reference in reference_discussions if reference.strip()]
    if len(references) < len(reference_discussions):
        logger.warning("contamination: blank references are skipped")
    if not references or not solution.content.strip():
        logger.info("contamination skipped: no references")
        return None
    logger.info("contamination start: %d references", len(references))
    verdicts: list[str | None] = []
    overall: DataContaminationResult | None = None
    try:
        for reference in references:
            values = {"reference_discussion": reference, "final_solution": solution.content}
            answer = await ask_for(DataContaminationResult, AgentType.test, "contamination", **values)
            verdicts.append(None if answer is None else answer.verdict)
            if verdicts[-1] == "Same":  # it counts although a limit, or the end of the run, may follow
                current_run().shared.ending.contamination = overall = answer
    except BudgetExceeded as stop:
        logger.warning("contamination skipped: %s", stop)
        verdicts += [None] * (len(references) - len(verdicts))
    if overall is None and None not in verdicts:
        current_run().shared.ending.contamination = overall = DataContaminationResult(verdict="Novel")
    words = ", ".join(map(str, verdicts)), "inconclusive" if overall is None else overall.verdict
    logger.info("contamination result: %d references, %s, overall %s", len(references), *words)
    return overall
