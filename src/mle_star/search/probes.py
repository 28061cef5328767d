"""What more runs of the chosen solution tell of it: does its own score hold, and which columns does it need?"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mle_star.data.layout import find_layout
from mle_star.data.place import DataFolder
from mle_star.data.rows import Unsupported
from mle_star.errors import BudgetExceeded, ConfigError
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.scoring import data_of, holdout_of
from mle_star.execution.submission import SUBMISSION, verify_submission
from mle_star.holdout.answers import Ungradable
from mle_star.holdout.explain import permuted_view
from mle_star.holdout.holdout import HoldOut, metric_of
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data
from mle_star.models import SolutionScript
from mle_star.models.texts import digest_of
from mle_star.run.context import RunContext, current_run, scope
from mle_star.run.events import Notice, SolutionExamined

logger = logging.getLogger(__name__)

PROBE_SHARE = 0.1
"""Of the time that is left, so much may go into probes."""
KEPT_SKILL = 0.5
"""A script that keeps so much of its lead over a dummy on shuffled labels has not learnt it from them."""
SAME = 1e-6
ENOUGH = 2.0
"""The importance of columns is measured where so many times what the solution took is left before finalization."""
STEP = "importance"


@contextmanager
def within(run: RunContext, seconds: float, place: str) -> Iterator[None]:
    """Runs at this place, until so many seconds are over; whatever goes wrong with them, the run continues."""
    run.budget.set_phase_deadline(max(seconds, 0.0))
    try:
        with scope(place):
            yield
    except (BudgetExceeded, asyncio.TimeoutError, Unsupported, Ungradable, ConfigError, OSError) as error:
        logger.info("%s: cut short: %s", place, str(error) or "its time is over")
    except Exception:
        logger.exception("%s: the run continues without it", place)
    finally:
        run.budget.set_phase_deadline()


# --- scores that are self-reported ------------------------------------------------------------------------------


async def probe(solution: SolutionScript) -> list[str]:
    """What is wrong with the score that a script prints of itself; nothing where the harness scores."""
    run, found = current_run(), list[str]()
    if run.shared.holdout is not None or run.config.scoring != "auto" or solution.score is None:
        return found
    left = PROBE_SHARE * (run.budget.time_limit - run.budget.elapsed())
    if run.budget.finish_requested or 2 * run.ledger.took(solution.content) > left:
        return found
    with within(run, left, "probes"):
        found += await _repeated(run, solution.score, solution)
        found += await _shuffled(run, solution.score, solution)
    for message in found:
        run.record(Notice(step="probes", level="warning", message=message))
    return found


async def _repeated(run: RunContext, known: float, solution: SolutionScript) -> list[str]:
    """The same script with the same seed prints the same."""
    new = (await execute_in_run(solution, purpose="probe", data=data_of(run))).score
    if new is None:
        return ["a second run of the same script prints no score"]
    is_same = abs(new - known) <= SAME * max(abs(known), 1.0)
    return [] if is_same else [f"the same script with the same seed prints {known:g} and {new:g}"]


async def _shuffled(run: RunContext, known: float, solution: SolutionScript) -> list[str]:
    """Where labels say nothing any more, a script must be no better than a dummy."""
    folder = run.run_dir / "views" / "shuffled"
    dummy = await asyncio.to_thread(_shuffle, run, folder)
    new = (await execute_in_run(solution, purpose="probe", data=DataFolder(folder))).score
    if new is None or dummy is None:
        return []
    lead, kept = known - dummy, new - dummy
    if lead * kept <= 0 or abs(kept) < KEPT_SKILL * abs(lead):
        return []
    return [f"on shuffled labels it prints {new:g}, where a dummy gets {dummy:g}: labels leak into its own validation"]


def _shuffle(run: RunContext, folder: Path) -> float | None:
    """Write the data with the labels of the training rows among each other; what a dummy gets."""
    source = Path(run.task.data_dir)
    data = Data.read(find_layout(source, run.task.description), source, check=False)
    order = list(data.labelled)
    random.Random(run.config.seed).shuffle(order)
    data.write_shuffled(folder, dict(zip(data.labelled, order, strict=True)))
    grade = Scorer(data, metric_of(run.task, source)).baseline(data.labelled)
    return None if grade is None else grade.score


# --- the importance of columns -----------------------------------------------------------------------------


async def examine_columns(solution: SolutionScript, weights: Mapping[str, float]) -> None:
    """Record how much worse the solution answers without each column; nothing where that is dear or cannot be known.

    Of a blend, it is the script with the largest of its `weights`.
    """
    run, digest = current_run(), digest_of(solution.content)
    known = [e for e in run.journal.events if isinstance(e, SolutionExamined) and e.digest == digest]
    holdout = holdout_of(run)
    if holdout is None or not known:
        return
    if len(weights) > 1:
        solution = solution.model_copy(update={"content": max(weights, key=weights.__getitem__)})
    found = next((event.importance for event in known if event.importance), [])  # by an earlier process of the run
    if not found and ENOUGH * run.ledger.took(solution.content) > run.budget.spare_seconds:
        _leave_out(run, "what is left of the time is for the submission")
    elif not found and not run.budget.finish_requested:
        with within(run, run.budget.spare_seconds, STEP):
            found = await _importance(run, holdout, solution)
    if found:
        run.record(known[-1].model_copy(update={"importance": found}))


async def _importance(run: RunContext, holdout: HoldOut, solution: SolutionScript) -> list[tuple[str, float]]:
    """One more run of the solution, on hidden rows with the values of each column mixed up in turn."""
    folder = run.run_dir / "views" / "permuted"
    made = await asyncio.to_thread(permuted_view, holdout.scorer, holdout.views[0].hidden, folder, seed=run.config.seed)
    result = await execute_in_run(solution, purpose="probe", data=DataFolder(folder))
    if result.is_error:
        _leave_out(run, "the time for it was too short" if result.timed_out else "the solution failed on it")
    elif verify_submission(str(run.work_dir)):
        return await asyncio.to_thread(made.importance, run.work_dir / SUBMISSION)
    return []


def _leave_out(run: RunContext, why: str) -> None:
    """Say why the columns are not measured."""
    run.record(Notice(step=STEP, level="info", message=f"which columns matter is not measured: {why}"))
