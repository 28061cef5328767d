"""Which columns the picked solution leans on: one more run of it, on hidden rows with each column mixed up in turn."""

from __future__ import annotations

import asyncio
import logging

from mle_star.basics.texts import digest_of
from mle_star.data.place import DataFolder
from mle_star.data.rows import Unsupported
from mle_star.errors import BudgetExceeded
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.submission import SUBMISSION, verify_submission
from mle_star.holdout.answers import Ungradable
from mle_star.holdout.importance import permuted_view
from mle_star.models import SolutionScript
from mle_star.run.context import RunContext, current_run, scope
from mle_star.run.events import Notice, SolutionExamined

logger = logging.getLogger(__name__)

SHARE = 0.05
"""Of the time that the run has taken so far, so much may go into this."""
ENOUGH = 2.0
"""It is begun when so many times what the solution took is left before finalization's time."""
STEP = "importance"


async def examine_columns(solution: SolutionScript) -> None:
    """Record how much worse the solution answers without each column; nothing where that is dear or cannot be known."""
    run, digest = current_run(), digest_of(solution.content)
    told = [e for e in run.journal.events if isinstance(e, SolutionExamined) and e.digest == digest]
    if run.shared.holdout is None or not told:
        return
    known = next((event.importance for event in told if event.importance), [])  # by an earlier process of the run
    try:
        found = known or await _measured(run, solution)
    except BudgetExceeded:
        found = _left_out(run, "what is left of the time is for the submission")
    except (Unsupported, Ungradable, OSError) as error:
        logger.info("no importance of columns: %s", error)
        return
    except Exception:
        logger.exception("no importance of columns: the run goes on without it")
        return
    if found:
        run.record(told[-1].model_copy(update={"importance": found}))


async def _measured(run: RunContext, solution: SolutionScript) -> list[tuple[str, float]]:
    digest = digest_of(solution.content)
    took = [one.seconds for one in run.ledger.runs.values() if one.script == digest]
    holdout, budget = run.shared.holdout, run.budget
    assert holdout is not None
    if not took or budget.finish_requested:
        return []
    if max(took) > SHARE * budget.elapsed():
        return _left_out(run, f"one more run of the solution takes more than {SHARE:.0%} of the time so far")
    if ENOUGH * max(took) > budget.spare_seconds:
        return _left_out(run, "what is left of the time is for the submission")
    folder = run.run_dir / "views" / "permuted"
    made = await asyncio.to_thread(permuted_view, holdout.scorer, holdout.views[0].hidden, folder, seed=run.config.seed)
    budget.set_phase_deadline(max(budget.spare_seconds, 0.0))
    try:
        with scope(STEP):
            result = await execute_in_run(solution, purpose="probe", data=DataFolder(folder))
    finally:
        budget.set_phase_deadline(None)
    if result.is_error:
        return _left_out(run, "the time for it was too short" if result.timed_out else "the solution failed on it")
    if not verify_submission(str(run.work_dir)):
        return []
    return await asyncio.to_thread(made.importance, run.work_dir / SUBMISSION)


def _left_out(run: RunContext, why: str) -> list[tuple[str, float]]:
    """Nothing, with a line that says why; once, however often the run is taken up again."""
    if not any(isinstance(event, Notice) and event.step == STEP for event in run.journal.events):
        run.record(Notice(step=STEP, level="info", message=f"which columns matter is not measured: {why}"))
    return []
