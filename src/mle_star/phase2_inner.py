"""Phase 2, the inner loop: K plans for one block, each tried on the same script (Algorithm 2, lines 9-25)."""

from __future__ import annotations

import logging
from typing import Any

from mle_star.method.codeblocks import block_in, replacement
from mle_star.method.scores import best_first
from mle_star.models import (
    AgentType,
    CodeBlock,
    InnerLoopResult,
    PipelineConfig,
    RefinementAttempt,
    SolutionPhase,
    SolutionScript,
    TaskDescription,
    is_improvement,
    is_improvement_or_equal,
)
from mle_star.models.texts import digest_of
from mle_star.run.context import current_run, scope
from mle_star.run.events import PLANNER_FAILED, RefinementTried
from mle_star.run.log_lines import yes_no
from mle_star.run.progress import BlockProgress, score_of
from mle_star.run.request import ask_for_code, ask_for_text
from mle_star.safety import check_and_evaluate, check_and_fix_leakage, checks_later, evaluate_checked

logger = logging.getLogger(__name__)

SKIPPED = "[skipped]"
"""Stands in the history for a plan that was not asked for, because the run was told to finish."""


# --- Algorithm 2, lines 9-25 -----------------------------------------------------------------------------


async def run_phase2_inner_loop(
    solution: SolutionScript,
    code_block: CodeBlock,
    initial_plan: str,
    best_score: float,
    task: TaskDescription,
    config: PipelineConfig,
) -> InnerLoopResult:
    """Try K plans on one block; the best script wins, a later one on ties.

    There are exactly K attempts, failed ones included, unless the run is told to finish: then the attempts that were
    begun, and no more. To the letter the rest is in the history as skipped.
    """
    run, state = current_run(), BlockProgress(code_block, solution, best_score)
    run.shared.progress.blocks[run.label] = state
    logger.info(
        "%s: inner loop starts: block of %d characters, plan %r, h_best %s, K %d",
        run.place,
        len(code_block.content),
        initial_plan[:200],
        best_score,
        config.inner_loop_steps,
    )
    for k in range(config.inner_loop_steps):
        if run.should_stop:
            break
        with scope(f"k-{k}"):
            plan, new_block, candidate = await _write(state, initial_plan if k == 0 else None)
            evaluated = candidate and (await check_and_evaluate(candidate, task, config)).script  # h(s_t^k)
            _finish_attempt(state, k, plan, new_block, evaluated, task)  # h_best, s_final, history
    if checks_later(config):
        with scope("check"):
            winner = await _check_winner(state, solution, best_score, task, config)
        if winner is not None:
            with scope(f"k-{winner}"):
                _accept_late(state, winner)
    fixed = solution.leaking and not state.best_solution.leaking
    improved = fixed or is_improvement(state.best_score, best_score, task.metric_direction)
    logger.info(
        "%s: inner loop complete: %d attempts, %d evaluated, best score %s, improved: %s",
        run.place,
        len(state.attempts),
        sum(s is not None for s in state.scores),
        state.best_score,
        yes_no(improved),
    )
    while config.letter and len(state.attempts) < config.inner_loop_steps:
        plan = SKIPPED if state.attempts else initial_plan
        state.attempts.append(RefinementAttempt(plan=plan, score=None, code_block="", was_improvement=False))
    return InnerLoopResult(
        best_solution=state.best_solution, best_score=state.best_score, attempts=state.attempts, improved=improved
    )


def _finish_attempt(
    state: BlockProgress,
    k: int,
    plan: str | None,
    new_block: str | None,
    evaluated: SolutionScript | None,
    task: TaskDescription,
) -> None:
    """Record the attempt, however it ended, and keep its script when it is at least as good as the best."""
    run = current_run()
    score = None if evaluated is None else evaluated.score
    accepted = False
    if evaluated is not None and score is not None:
        better = is_improvement_or_equal(score, state.best_score, task.metric_direction)
        accepted = better or state.best_solution.leaking  # a score that leaks is none to compare with
        if accepted:
            logger.info("%s: best score updated: %s, before %s", run.place, score, state.best_score)
            state.best_solution, state.best_score = evaluated, score
            state.best_block = block_in(evaluated.content, state.start.content, state.block.content), score
        if checks_later(run.config):
            state.unchecked[k] = evaluated
    attempt = RefinementAttempt(
        plan=PLANNER_FAILED if plan is None else plan, score=score, code_block=new_block or "", was_improvement=accepted
    )
    state.attempts.append(attempt)
    state.digests.append("" if evaluated is None else digest_of(evaluated.content))
    _record(state, k, score)


def _accept_late(state: BlockProgress, k: int) -> None:
    """The path goes on from attempt `k` after all, because those ahead of it leak, or without a leak of its own."""
    digest = digest_of(state.best_solution.content)
    if state.attempts[k].was_improvement and state.digests[k] == digest:
        return
    if not state.attempts[k].was_improvement:
        logger.info("%s: best score updated: %s, the attempts ahead of it leak", current_run().place, state.best_score)
        found = {"was_improvement": True, "score": state.best_score}
        state.attempts[k] = state.attempts[k].model_copy(update=found)
    state.digests[k] = digest
    _record(state, k, state.best_score)


def _record(state: BlockProgress, k: int, score: float | None) -> None:
    run, attempt = current_run(), state.attempts[k]
    run.record(
        RefinementTried(
            path=run.path or 0,
            t=state.block.outer_step or 0,
            k=k,
            plan=attempt.plan,
            before=state.block.content,
            after=attempt.code_block,
            score=score,
            best_score=state.best_score,
            accepted=attempt.was_improvement,
            digest=state.digests[k],
            parents=[digest_of(state.start.content)],
        )
    )


# --- the parts of an attempt -------------------------------------------------------------------------------


async def _write(state: BlockProgress, first_plan: str | None) -> tuple[str | None, str | None, SolutionScript | None]:
    """Plan, new block and script of an attempt; None from the part on that failed."""
    block, plan, new_block = state.block.content, first_plan, None
    try:
        if plan is None:
            plan = await invoke_planner(block, state.plans, state.scores)  # p_k
        if plan is not None:
            new_block = await invoke_coder(block, plan)  # c_t^k
        if new_block is not None:
            return plan, new_block, _replaced(state.start, block, new_block)  # s_t^k, always from s_t
    except ValueError as error:  # an extractor may choose a blank block, one without a plan, or one that is not there
        logger.warning("%s: attempt failed: %s", current_run().place, error)
    return plan, new_block, None


def _replaced(solution: SolutionScript, old: str, new: str) -> SolutionScript:
    texts = replacement(solution.content, old, new, first=current_run().config.letter)
    unchecked = {"phase": SolutionPhase.refined, "leaking": False}  # no check has seen it yet
    return solution.replace_block(*texts).model_copy(update=unchecked)


async def _check_winner(
    state: BlockProgress, start: SolutionScript, start_score: float, task: TaskDescription, config: PipelineConfig
) -> int | None:
    """Check what would be accepted, and that alone: the best attempt, and where it leaks the next best.

    A script that was fixed competes with its new score. Gives the attempt that wins; None: the start stays the best.
    """
    direction, checked = task.metric_direction, set[int]()
    waiting = {  # a score that leaks is none to compare with
        k: script
        for k, script in state.unchecked.items()
        if start.leaking or is_improvement(score_of(script), start_score, direction)
    }
    while waiting:
        k = best_first(sorted(waiting, reverse=True), lambda k: waiting[k].score, direction)[0]
        if k in checked:
            state.best_solution, state.best_score = waiting[k], score_of(waiting[k])
            return k
        checked.add(k)
        script = await check_and_fix_leakage(waiting[k])
        if not script.leaking and script.content == waiting[k].content:
            continue
        del waiting[k]
        state.best_solution, state.best_score = start, start_score  # should the end come now
        if not script.leaking:
            script = (await evaluate_checked(script, task, config)).script
        if script.leaking or script.score is None:
            continue
        if start.leaking or is_improvement_or_equal(script.score, start_score, direction):
            waiting[k] = script
    state.best_solution, state.best_score = start, start_score
    return None


# --- the two agents --------------------------------------------------------------------------------------


async def invoke_coder(code_block: str, plan: str) -> str | None:
    """A_coder: the block rewritten by the plan, or None when the reply holds no code."""
    if not code_block.strip():
        raise ValueError("A_coder requires a non-empty code block")
    if not plan.strip():
        raise ValueError("A_coder requires a non-empty plan")
    return await ask_for_code(AgentType.coder, code_block=code_block, plan=plan, **_surroundings(code_block)) or None


async def invoke_planner(code_block: str, plans: list[str], scores: list[float | None]) -> str | None:
    """A_planner: the next plan, in the light of all earlier ones and their scores; None when none came."""
    if not code_block.strip():
        raise ValueError("A_planner requires a non-empty code block")
    if not plans:
        raise ValueError("At least one previous plan is required for A_planner")
    if len(plans) != len(scores):
        raise ValueError(f"A_planner requires one score per plan, not {len(scores)} for {len(plans)}")
    known = {"code_block": code_block, "plans": plans, "scores": scores, **_surroundings(code_block)}
    known["tried"] = plans_before()
    return (await ask_for_text(AgentType.planner, **known)).strip() or None


def plans_before() -> list[str]:
    """What earlier steps of this path have tried; of other paths nothing, for what they have done by now is chance."""
    run = current_run()
    path = run.shared.progress.paths.get(run.label)
    return [] if path is None else path.plans


def _surroundings(code_block: str) -> dict[str, Any]:
    """The script that the block stands in, and the best block so far with its score, where a loop is at work on it."""
    run = current_run()
    state = run.shared.progress.blocks.get(run.label)
    if state is None or state.block.content != code_block:
        return {}
    return {"around": state.start.content, "best": state.best_block}
