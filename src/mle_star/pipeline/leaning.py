"""Which columns the picked solution leans on: one more run of it, on hidden rows with each column mixed up in turn."""

from __future__ import annotations

import asyncio
import logging

from mle_star.data.place import DataFolder
from mle_star.errors import BudgetExceeded
from mle_star.evaluation.grading import Ungradable
from mle_star.evaluation.importance import permuted_view
from mle_star.evaluation.separated import Unsupported
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.submission import verify_submission
from mle_star.models import SolutionScript
from mle_star.run.context import RunContext, current_run, scope
from mle_star.run.events import ScriptFinished, SolutionExamined

logger = logging.getLogger(__name__)

SHARE = 0.05
"""Of the time that the run has taken so far, so much may go into this."""
SUBMISSION = "final/submission.csv"


async def examine_columns(solution: SolutionScript) -> None:
    """Record how much worse the solution answers without each column; nothing where that is dear or cannot be known."""
    run = current_run()
    told = [event for event in run.journal.events if isinstance(event, SolutionExamined)]
    if run.shared.exam is None or not told:
        return
    known = next((event.importance for event in told if event.importance), [])  # by an earlier process of the run
    try:
        found = known or await _measured(run, solution)
    except (BudgetExceeded, Unsupported, Ungradable, OSError) as error:
        logger.info("no importance of columns: %s", error)
        return
    if found:
        run.record(told[-1].model_copy(update={"importance": found}))


async def _measured(run: RunContext, solution: SolutionScript) -> list[tuple[str, float]]:
    took = [e.seconds for e in run.journal.events if isinstance(e, ScriptFinished) and e.script == solution.content]
    exam = run.shared.exam
    assert exam is not None
    if not took or run.budget.finish_requested or max(took) > SHARE * run.budget.elapsed():
        return []
    folder = run.run_dir / "views" / "permuted"
    made = await asyncio.to_thread(permuted_view, exam.judge, exam.views[0].hidden, folder, seed=run.config.seed)
    with scope("importance"):
        result = await execute_in_run(solution, purpose="probe", data=DataFolder(folder))
    if result.is_error or not verify_submission(str(run.work_dir)):
        return []
    return await asyncio.to_thread(made.importance, run.work_dir / SUBMISSION)
