"""What is left of the time after the search: the best solutions answer hidden rows that they have not answered yet.

The expected score then rests on more rows, and what comes close to the best is compared with it on more of them.
"""

from __future__ import annotations

import logging
import math
from functools import partial

from mle_star.execution.executors import announced, script_slots
from mle_star.execution.outcome import debug_text, exception_line
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.scoring import answered_here, holdout_of
from mle_star.holdout.holdout import HoldOut
from mle_star.method.scores import best_first
from mle_star.models import Measure, SolutionScript
from mle_star.models.enums import kind_of_script
from mle_star.run.context import RunContext, current_run, scope
from mle_star.run.ledger import ScriptRun
from mle_star.run.timing import ALWAYS_ENOUGH, LEAST_CALLS, LEAST_SECONDS, RERUN, seconds_for
from mle_star.search.probes import ENOUGH, within

logger = logging.getLogger(__name__)

STEP = "views"
MOST_RIVALS = 11
SHARE_OF_SEARCH = 0.25
"""Without a time limit of the user's, this takes no longer than such a part of what the search took."""


async def answer_more_views() -> None:
    """The best solution runs on the views that it lacks, then its closest rivals, each as far as there is time for it.

    To the letter, and where the run was asked to finish, nothing runs.
    """
    run = current_run()
    holdout, budget = holdout_of(run), run.budget
    if holdout is None or run.config.letter or budget.finish_requested or budget.money_is_gone:
        return
    most = math.inf if run.config.has_own_limit else SHARE_OF_SEARCH * budget.elapsed()
    spare = budget.spare_seconds - seconds_for(run, calls=LEAST_CALLS)  # the chosen one may have to be checked
    with within(run, min(spare, most), STEP):
        for place, one in enumerate(_in_turn(run)):
            script = run.ledger.text(one.script)
            with scope(one.script[:8]) as here:  # by what it is: another process may come to it first
                await _complete(here, holdout, one, script, is_best=place == 0)


def _in_turn(run: RunContext) -> list[ScriptRun]:
    """The best by the rows of the search, then its rivals: those whose interval overlaps with its own.

    What was behind on the first views, and ran on no others for that, is no rival.
    """
    clean = {one.script: one for one in answered_here(run) if not run.ledger.ever_leaked(one.script)}
    measured = [(one, one.result.measure) for one in clean.values() if one.result.measure is not None]
    measured.sort(key=lambda pair: pair[1].estimated)
    ranked = best_first(measured, lambda pair: pair[1].score, run.task.metric_direction)
    return [one for one, measure in ranked if _is_close(measure, ranked[0][1])][: 1 + MOST_RIVALS]


def _is_close(measure: Measure, best: Measure) -> bool:
    """Could it be worth as much as the best?"""
    bounds = (measure.low, measure.high, best.low, best.high)
    if measure.estimated or None in bounds:
        return measure.score == best.score
    low, high, best_low, best_high = (bound or 0.0 for bound in bounds)
    return low <= best_high and best_low <= high


async def _complete(run: RunContext, holdout: HoldOut, one: ScriptRun, script: str, *, is_best: bool) -> None:
    """Run a script on the views that it lacks: a rival on all of them or on none, the best on as many as there is time.

    Rivals leave the time in which the columns of the best are measured.
    """
    takes, answered = RERUN * run.ledger.took(script), len(one.result.answers)
    side_by_side = script_slots(run.shared.scripts.gpus or [], run.config) if announced(run.executor).is_here else 99
    kept = 0.0 if is_best else ENOUGH * run.ledger.took(script)
    while missing := range(answered, len(holdout.views)):
        numbers = missing[:side_by_side] if is_best else missing
        needed = takes * math.ceil(len(numbers) / side_by_side)
        if not run.decide("fits", partial(_fits, run, needed + kept), reopen=True):
            return
        solution = SolutionScript(content=script, phase=kind_of_script(one.step))
        result = await execute_in_run(
            solution, purpose="views", timeout_seconds=ALWAYS_ENOUGH * needed + LEAST_SECONDS, views=numbers
        )
        if result.is_error:
            logger.info("%s: no answers to further rows: %s", one.step, exception_line(debug_text(result)))
            return
        answered = numbers.stop


def _fits(run: RunContext, seconds: float) -> bool:
    return seconds <= run.seconds_left
