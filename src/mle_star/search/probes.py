"""Probes for what stays self-reported: does a script print the same twice, and nothing special on shuffled labels?"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

from mle_star.basics.texts import digest_of
from mle_star.data.layout import find_layout
from mle_star.data.place import DataFolder
from mle_star.data.rows import Unsupported
from mle_star.errors import BudgetExceeded, ConfigError
from mle_star.execution.fingerprint import data_of
from mle_star.execution.recorded import execute_in_run
from mle_star.holdout.answers import Ungradable
from mle_star.holdout.holdout import metric_of
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data
from mle_star.models import SolutionScript
from mle_star.run.context import RunContext, current_run, scope
from mle_star.run.events import Notice

logger = logging.getLogger(__name__)

PROBE_SHARE = 0.1
"""Of the time that is left, so much may go into probes."""
KEPT_SKILL = 0.5
"""A script that keeps so much of its lead over a dummy on shuffled labels has not learnt it from them."""
SAME = 1e-6


async def probe(solution: SolutionScript) -> list[str]:
    """What speaks against the score that a script prints of itself; nothing where the harness scores."""
    run = current_run()
    if run.shared.holdout is not None or run.config.scoring != "auto" or solution.score is None:
        return []
    left = run.budget.time_limit - run.budget.elapsed()
    if run.budget.finish_requested or 2 * _seconds(run, solution) > PROBE_SHARE * left:
        logger.info("no time for probes of the solution")
        return []
    run.budget.set_phase_deadline(PROBE_SHARE * left)
    found: list[str] = []
    try:
        with scope("probes"):
            found += await _again(solution)
            found += await _shuffled(run, solution)
            for message in found:
                run.record(Notice(level="warning", message=message))
    except (BudgetExceeded, OSError) as stop:
        logger.info("the probes were cut short: %s", stop)
    except Exception:
        logger.exception("the probes failed: the run goes on without them")
    finally:
        run.budget.set_phase_deadline(None)
    return found


async def _again(solution: SolutionScript) -> list[str]:
    """The same script with the same seed prints the same."""
    run = current_run()
    result = await execute_in_run(solution, purpose="probe", data=data_of(run))
    known, new = solution.score or 0.0, result.score
    if new is None:
        return ["a second run of the same script prints no score"]
    if abs(new - known) <= SAME * max(abs(known), 1.0):
        return []
    return [f"the same script with the same seed prints {known:g} and {new:g}"]


async def _shuffled(run: RunContext, solution: SolutionScript) -> list[str]:
    """Where labels say nothing any more, a script must be no better than a dummy."""
    folder = run.run_dir / "views" / "shuffled"
    try:
        dummy = await asyncio.to_thread(_shuffle, run, folder)
    except (Unsupported, Ungradable, ConfigError, OSError) as error:
        logger.info("labels cannot be shuffled: %s", error)
        return []
    result = await execute_in_run(solution, purpose="probe", data=DataFolder(folder))
    if result.score is None or dummy is None or solution.score is None:
        return []
    lead, kept = solution.score - dummy, result.score - dummy
    if lead * kept <= 0 or abs(kept) < KEPT_SKILL * abs(lead):
        return []
    said = f"on shuffled labels it prints {result.score:g}, where a dummy gets {dummy:g}"
    return [f"{said}: labels leak into its own validation"]


def _shuffle(run: RunContext, folder: Path) -> float | None:
    """Write the data with the labels of the training rows among each other; what a dummy gets."""
    source = Path(run.task.data_dir)
    data = Data.read(find_layout(source, run.task.description), source, check=False)
    order = list(data.labelled)
    random.Random(run.config.seed).shuffle(order)
    data.write_shuffled(folder, dict(zip(data.labelled, order, strict=True)))
    grade = Scorer(data, metric_of(run.task, source)).baseline(data.labelled)
    return None if grade is None else grade.score


def _seconds(run: RunContext, solution: SolutionScript) -> float:
    digest = digest_of(solution.content)
    known = [one.seconds for one in run.ledger.runs.values() if one.script == digest]
    return max(known, default=0.0)
