"""Phase 3: R plans to combine the solutions of the paths, each one implemented and scored (Algorithm 3)."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from mle_star import models
from mle_star.execution import verify_submission
from mle_star.execution.scoring import against, overlaps
from mle_star.method.scores import best_first, best_of
from mle_star.models import AgentType, EnsembleAttempt, Phase3Result, SolutionPhase, SolutionScript, TaskDescription
from mle_star.models.texts import digest_of
from mle_star.run.context import current_run, scope
from mle_star.run.events import SKIPPED, EnsembleTried
from mle_star.run.reached import phase3_result, rounds
from mle_star.run.request import ask_for_code, ask_for_text
from mle_star.run.timing import in_phase_time, stops_before
from mle_star.safety import check_and_evaluate, check_winner, checks_later, record_fixed, why_no_score

logger = logging.getLogger(__name__)

Best = tuple[str, float | None]
"""An ensemble and its score."""
ENS_PLANNER_FAILED = "[ens_planner failed]"
"""Stands in the history for a plan that never came."""

# --- Algorithm 3 -----------------------------------------------------------------------------------------


async def run_phase3(
    solutions: list[SolutionScript], task: TaskDescription, config: models.PipelineConfig
) -> Phase3Result:
    """Try R ensembles of the solutions; the best ensemble is the result, a later one on ties.

    There are exactly R attempts, failed ones included, unless the run is told to finish: then the rounds that were
    begun, and no more (to the letter the rest counts as skipped). Only when no ensemble has a score is the result one
    of the inputs.
    """
    if not solutions:
        raise ValueError("Phase 3 requires at least one solution")
    if len(solutions) == 1:
        logger.info("Phase 3 skipped: a single solution, score %s, %s", solutions[0].score, task.competition_id)
        return _result(solutions, [], None, task)
    logger.info("Phase 3 starts: L %d, R %d, %s", len(solutions), config.ensemble_rounds, task.competition_id)
    started = time.monotonic()
    with scope(task=task, config=config) as run:
        place = "".join(f"{part}/" for part in run.parts)
        alike = await overlaps([solution.content for solution in solutions])
        for r in range(config.ensemble_rounds):
            attempts = rounds(place)
            if len(attempts) < r or stops_before(run, calls=3):  # or the time was over within the round before
                break
            with scope(f"r-{r}"), in_phase_time(run):
                plans, scores = [attempt.plan for attempt in attempts], [attempt.score for attempt in attempts]
                first = _best_round(attempts, task.metric_direction)
                best = None if first is None else (attempts[first].solution.content, attempts[first].score)
                plan = await invoke_ens_planner(solutions, plans, scores, best=best, overlap=alike)  # e_r
                ensemble = await invoke_ensembler(plan, solutions, best=best) if plan else None  # s_ens^r
                evaluated = await _evaluate(plan, ensemble) if plan and ensemble else _missing()  # h(s_ens^r)
                await _record(attempts, plan or ENS_PLANNER_FAILED, evaluated, solutions)
        if checks_later():
            ran = {r: attempt.solution for r, attempt in enumerate(rounds(place)) if attempt.score is not None}
            scripts = dict(ran)
            with scope("check"):
                await check_winner(scripts)
            for r, script in scripts.items():
                if script.score is not None and script.content != ran[r].content:
                    record_fixed(ran[r], script)
        attempts = rounds(place)
    rest = config.ensemble_rounds - len(attempts) if config.letter else 0
    attempts += [EnsembleAttempt(plan=SKIPPED, score=None, solution=_missing())] * rest
    winner = _best_round(attempts, task.metric_direction)  # r*
    result = _result(solutions, attempts, winner, task)
    ended = result.best_ensemble_score, winner, time.monotonic() - started, len(attempts)
    logger.info("Phase 3 complete: best score %s, best round %s, %.1f s, %d rounds", *ended)
    return result


def _missing() -> SolutionScript:
    """Stands in the history for an ensemble that never came."""
    return SolutionScript(content="", phase=SolutionPhase.ensemble, is_executable=False)


async def _record(
    attempts: list[EnsembleAttempt], plan: str, ensemble: SolutionScript, solutions: list[SolutionScript]
) -> None:
    """Record the round, however it ended. It was to beat the best round before it, or the best of the inputs."""
    run, r = current_run(), len(attempts)
    first = _best_round(attempts, run.task.metric_direction)
    before = [attempts[first].solution] if first is not None else solutions
    change = await against(ensemble, best_of(before, lambda solution: solution.score, run.task.metric_direction))
    now = [*attempts, EnsembleAttempt(plan=plan, score=ensemble.score, solution=ensemble)]
    run.record(
        EnsembleTried(
            r=r,
            plan=plan,
            score=ensemble.score,
            change=change,
            best=_best_round(now, run.task.metric_direction) == r,
            parents=[digest_of(s.content) for s in solutions],
            digest=digest_of(ensemble.content) if ensemble.content else "",
        )
    )


def _best_round(attempts: list[EnsembleAttempt], direction: models.MetricDirection) -> int | None:
    """r*: the last of the rounds with the best score; None when no round has one."""
    return best_of(reversed(range(len(attempts))), lambda r: attempts[r].score, direction)


def _result(
    solutions: list[SolutionScript], attempts: list[EnsembleAttempt], best: int | None, task: TaskDescription
) -> Phase3Result:
    if best is None:
        clean = [solution for solution in solutions if not current_run().leaks(solution.content)] or solutions
        chosen = best_first(clean, lambda solution: solution.score, task.metric_direction)[0]  # the first one on ties
        if attempts:
            words = "Phase 3 ensemble: all %d attempts failed; falling back to best input solution (score %s)"
            logger.warning(words, len(attempts), chosen.score)
    else:
        chosen = attempts[best].solution
        successes = sum(attempt.score is not None for attempt in attempts)
        logger.info("Phase 3: best round %d, score %s, %d successful rounds", best, chosen.score, successes)
    return phase3_result(solutions, attempts, chosen)


async def _evaluate(plan: str, script: SolutionScript) -> SolutionScript:
    """The script that was really run, with its score; a missing submission is worth a warning, not the round."""
    run, (script, result) = current_run(), await check_and_evaluate(script)
    if result.is_error:
        logger.warning("%s: round failed: %s; plan %r", run.place, why_no_score(script, result), plan[:200])
    elif not verify_submission(str(run.work_dir)):
        logger.warning("%s: the ensemble left no final/submission.csv", run.place)
    return script


# --- the two agents --------------------------------------------------------------------------------------


def _known(solutions: list[SolutionScript], best: Best | None, **more: Any) -> dict[str, Any]:
    """What both are shown: the solutions with their scores, and the best ensemble so far."""
    scripts, scores = [solution.content for solution in solutions], [solution.score for solution in solutions]
    return {"L": len(scripts), "solutions": scripts, **more, "input_scores": scores, "best": best}


async def invoke_ens_planner(
    solutions: list[SolutionScript],
    plans: list[str],
    scores: list[float | None],
    *,
    best: Best | None = None,
    overlap: Sequence[tuple[int, int, str]] = (),
) -> str | None:
    """A_ens_planner: the next plan, in the light of all earlier ones, their scores and the best; None: none came.

    `overlap` says how far two of the solutions err alike.
    """
    if len(solutions) < 2:
        raise ValueError("A_ens_planner requires at least 2 solutions for ensembling")
    if len(plans) != len(scores):
        raise ValueError(f"A_ens_planner requires one score per plan, not {len(scores)} for {len(plans)}")
    known = _known(solutions, best, plans=plans, scores=scores, **({"overlap": overlap} if overlap else {}))
    return (await ask_for_text(AgentType.ens_planner, **known)).strip() or None


async def invoke_ensembler(
    plan: str, solutions: list[SolutionScript], *, best: Best | None = None
) -> SolutionScript | None:
    """A_ensembler: the plan as one script, or None when the reply holds no code."""
    if not plan.strip():
        raise ValueError("A_ensembler requires a non-empty ensemble plan")
    if len(solutions) < 2:
        raise ValueError("A_ensembler requires at least 2 solutions for ensembling")
    code = await ask_for_code(AgentType.ensembler, **_known(solutions, best, plan=plan))
    return SolutionScript(content=code, phase=SolutionPhase.ensemble) if code else None
