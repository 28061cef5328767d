"""Phase 2, the inner loop: K plans for one block, each tried on the same script (Algorithm 2, lines 9-25)."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mle_star import models
from mle_star.execution.scoring import against
from mle_star.method.codeblocks import block_in, replacement
from mle_star.models.texts import digest_of
from mle_star.prompts import RUNNING
from mle_star.run.context import RunContext, cancel_all, current_run, enter_run, scope
from mle_star.run.events import PLANNER_FAILED, SKIPPED, RefinementTried
from mle_star.run.log_lines import yes_no
from mle_star.run.reached import attempt_of, refinements, score_of, tried_scripts
from mle_star.run.request import ask_for_code, ask_for_text
from mle_star.run.timing import calls_take_long, in_phase_time, stops_before
from mle_star.safety import check_and_evaluate, check_winner, checks_later

logger = logging.getLogger(__name__)

# --- Algorithm 2, lines 9-25 -----------------------------------------------------------------------------


async def run_phase2_inner_loop(
    solution: models.SolutionScript,
    code_block: models.CodeBlock,
    initial_plan: str,
    best_score: float,
    task: models.TaskDescription,
    config: models.PipelineConfig,
    *,
    tried: Sequence[str] = (),
) -> models.InnerLoopResult:
    """Try K plans on one block; the best script wins, a later one on ties. `tried`: the plans of earlier steps.

    There are K attempts, failed ones included; fewer when time ends or the run is told to finish. To the letter the
    others are recorded as skipped.
    """
    with scope(task=task, config=config) as run:
        loop = _Loop("".join(f"{part}/" for part in run.parts), code_block, solution, tried, solution, best_score)
        words = len(code_block.content), initial_plan[:200], best_score, config.inner_loop_steps
        logger.info("%s: inner loop starts: block of %d characters, plan %r, h_best %s, K %d", run.place, *words)
        try:
            for k in range(config.inner_loop_steps):
                if len(loop.attempts) < k or stops_before(run, calls=2 if k == 0 else 3):
                    break  # in the first case the time of the phase was over within the attempt before
                with scope(f"k-{k}"), in_phase_time(run):
                    plan = initial_plan if k == 0 else await (loop.ahead or _plan(loop))  # p_k
                    loop.ahead = _plan_ahead(run, loop, plan, k + 1)
                    new_block, candidate = await _write(loop, plan)
                    checked = candidate and await check_and_evaluate(candidate, solution)  # h(s_t^k)
                    await _keep_if_best(loop, plan, new_block, checked and checked[0])  # h_best, history
        finally:
            await cancel_all([loop.ahead] if loop.ahead else [])
        if checks_later():
            floor = None if run.leaks(solution.content) else best_score  # a leaking score cannot be compared with
            scripts = tried_scripts(loop.place)
            with scope("check"):
                winner = await check_winner(scripts, floor, solution)
            loop.best, loop.score = solution, best_score
            if winner is not None:
                loop.best, loop.score = scripts[winner], score_of(scripts[winner])
                with scope(f"k-{winner}"):
                    _accept_late(loop, winner)
        fixed = run.leaks(solution.content) and not run.leaks(loop.best.content)
        improved = fixed or models.is_improvement(loop.score, best_score, task.metric_direction)
        scored = [attempt for attempt in loop.attempts if attempt.score is not None]
        ended = run.place, len(loop.attempts), len(scored), loop.score, yes_no(improved)
        logger.info("%s: inner loop complete: %d attempts, %d evaluated, best score %s, improved: %s", *ended)
        for k in range(len(loop.attempts), config.inner_loop_steps if config.letter else 0):
            with scope(f"k-{k}"):
                _record(loop, k, plan=SKIPPED if k else initial_plan)
    attempts = [attempt_of(attempt) for attempt in loop.attempts]
    return models.InnerLoopResult(best_solution=loop.best, best_score=loop.score, attempts=attempts, improved=improved)


@dataclass
class _Loop:
    """One inner loop at work: what it began with, what it has tried, and the best so far."""

    place: str
    block: models.CodeBlock
    start: models.SolutionScript
    tried: Sequence[str]
    best: models.SolutionScript
    score: float
    ahead: asyncio.Task[str | None] | None = None
    """The next plan, where it is made while the attempt before it runs."""

    @property
    def attempts(self) -> list[RefinementTried]:
        """All so far, in order."""
        return refinements(self.place)

    @property
    def surroundings(self) -> dict[str, Any]:
        """The script that the block stands in, and the best block so far with its score."""
        best = None
        if self.best is not self.start:
            best = block_in(self.best.content, self.start.content, self.block.content), self.score
        return {"around": self.start.content, "best": best}


async def _keep_if_best(
    loop: _Loop, plan: str | None, new_block: str | None, evaluated: models.SolutionScript | None
) -> None:
    """Record the attempt, however it ended, and keep its script when it is at least as good as the best."""
    run, k = current_run(), len(loop.attempts)
    tried: dict[str, Any] = {"plan": PLANNER_FAILED if plan is None else plan, "after": new_block or ""}
    if evaluated is not None:
        outcome = {"score": evaluated.score, "digest": digest_of(evaluated.content)}
        tried |= {**outcome, "change": await against(evaluated, loop.best)}
    if evaluated is not None and evaluated.score is not None:
        better = models.is_improvement_or_equal(evaluated.score, loop.score, run.task.metric_direction)
        if better or run.leaks(loop.best.content):  # a leaking score cannot be compared with
            logger.info("%s: best score updated: %s, before %s", run.place, evaluated.score, loop.score)
            loop.best, loop.score, tried["accepted"] = evaluated, evaluated.score, True
    _record(loop, k, **tried)


def _accept_late(loop: _Loop, k: int) -> None:
    """Record attempt `k` as accepted after the check: those ahead leak, or its leak was fixed and it ran again."""
    known, digest = loop.attempts[k], digest_of(loop.best.content)
    if known.accepted and known.digest == digest:
        return
    if not known.accepted:
        logger.info("%s: best score updated: %s, the attempts ahead of it leak", current_run().place, loop.score)
    change = known.change if known.digest == digest else None
    _record(loop, k, plan=known.plan, after=known.after, score=loop.score, accepted=True, digest=digest, change=change)


def _record(loop: _Loop, k: int, **outcome: Any) -> None:
    run = current_run()
    known = {"after": "", "score": None, "accepted": False, "before": loop.block.content, "best_score": loop.score}
    place = {"path": run.path or 0, "t": loop.block.outer_step or 0, "parents": [digest_of(loop.start.content)]}
    run.record(RefinementTried(k=k, **{**known, **place, **outcome}))


# --- the parts of an attempt -------------------------------------------------------------------------------


async def _plan(loop: _Loop, running: str | None = None) -> str | None:
    """The next plan, in the light of all attempts, and of the plan that is `running`; None when none came."""
    before = loop.attempts
    plans, scores = [attempt.plan for attempt in before], [attempt.score for attempt in before]
    if running is not None:
        plans, scores = [*plans, running], [*scores, RUNNING]
    try:
        return await invoke_planner(loop.block.content, plans, scores, tried=loop.tried, **loop.surroundings)
    except ValueError as error:  # an extractor may choose a blank block
        logger.warning("%s: attempt failed: %s", current_run().place, error)
        return None


def _plan_ahead(run: RunContext, loop: _Loop, plan: str | None, k: int) -> asyncio.Task[str | None] | None:
    """Plan attempt `k` while the one before it is written and runs, where calls take long and the time is limited."""
    wanted = plan is not None and k < run.config.inner_loop_steps and run.config.more_steps
    if not wanted or not run.decide("plan-ahead", lambda: calls_take_long(run)):
        return None

    async def planned() -> str | None:
        with enter_run(run), scope(f"k-{k}"):
            return await _plan(loop, running=plan)

    return asyncio.create_task(planned())


async def _write(loop: _Loop, plan: str | None) -> tuple[str | None, models.SolutionScript | None]:
    """New block and script of an attempt; None from the part on that failed."""
    block, new_block = loop.block.content, None
    try:
        if plan is not None:
            new_block = await invoke_coder(block, plan, **loop.surroundings)  # c_t^k
        if new_block is not None:
            texts = replacement(loop.start.content, block, new_block, first=current_run().config.letter)
            refined = {"phase": models.SolutionPhase.refined}
            return new_block, loop.start.replace_block(*texts).model_copy(update=refined)  # s_t^k, from s_t
    except ValueError as error:  # an extractor may choose a blank block, one without a plan, or one that is not there
        logger.warning("%s: attempt failed: %s", current_run().place, error)
    return new_block, None


# --- the two agents --------------------------------------------------------------------------------------


async def invoke_coder(code_block: str, plan: str, **known: Any) -> str | None:
    """A_coder: the block rewritten by the plan, or None when the reply holds no code.

    `known` may hold the script `around` the block and the `best` block so far with its score.
    """
    if not code_block.strip():
        raise ValueError("A_coder requires a non-empty code block")
    if not plan.strip():
        raise ValueError("A_coder requires a non-empty plan")
    return await ask_for_code(models.AgentType.coder, code_block=code_block, plan=plan, **known) or None


async def invoke_planner(
    code_block: str, plans: list[str], scores: list[float | None], *, tried: Sequence[str] = (), **known: Any
) -> str | None:
    """A_planner: the next plan, in the light of all earlier ones and their scores; None when none came.

    `tried` is what earlier steps of this path have tried. Other paths are left out: their timing is not reproducible.
    """
    if not code_block.strip():
        raise ValueError("A_planner requires a non-empty code block")
    if not plans:
        raise ValueError("At least one previous plan is required for A_planner")
    if len(plans) != len(scores):
        raise ValueError(f"A_planner requires one score per plan, not {len(scores)} for {len(plans)}")
    values = {"code_block": code_block, "plans": plans, "scores": scores, "tried": tried, **known}
    return (await ask_for_text(models.AgentType.planner, **values)).strip() or None
