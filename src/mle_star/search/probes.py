"""What more runs of the best solutions tell: more answers to hidden rows, whether a score of its own holds, and which
columns are needed."""

import asyncio
import logging
import math
import random
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mle_star.data.layout import find_layout
from mle_star.data.place import DataFolder
from mle_star.data.tables import Unsupported
from mle_star.errors import BudgetExceeded, ConfigError
from mle_star.execution.executors import announced, script_slots
from mle_star.execution.outcome import debug_text, exception_line
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.scoring import answered_here, data_of, holdout_of
from mle_star.execution.submission import SUBMISSION, verify_submission
from mle_star.holdout.answers import Ungradable
from mle_star.holdout.holdout import HoldOut, metric_of
from mle_star.method.scores import best_first
from mle_star.models import Measure, SolutionScript
from mle_star.models.enums import kind_of_script
from mle_star.models.texts import digest_of
from mle_star.run.context import RunContext, current_run, scope
from mle_star.run.events import Notice, SolutionExamined
from mle_star.run.ledger import ScriptRun
from mle_star.run.timing import ALWAYS_ENOUGH, LEAST_CALLS, LEAST_SECONDS, RERUN, seconds_for

logger = logging.getLogger(__name__)

PROBE_SHARE = 0.1
"""Of the time that is left, so much may go into probes."""
KEPT_SKILL = 0.5
"""A script that keeps so much of its lead over a dummy on shuffled labels has not learnt it from them."""
SAME = 1e-6
ENOUGH = 2.0
"""A solution is probed, or its columns are measured, where so many times what it took is left."""
STEP = "importance"
UNMEASURED = "which columns matter is not measured"
MOST_RIVALS = 11
SHARE_OF_SEARCH = 0.25
"""Without a time limit of the user's, answering more views takes no longer than such a part of what the search took."""


@contextmanager
def within(run: RunContext, seconds: float, place: str) -> Iterator[None]:
    """Runs at this place, until so many seconds are over; whatever goes wrong with them, the run continues."""
    run.budget.set_phase_deadline(seconds)
    try:
        with scope(place):
            yield
    except (BudgetExceeded, asyncio.TimeoutError, Unsupported, Ungradable, ConfigError, OSError) as error:
        logger.info("%s: cut short: %s", place, str(error) or "its time is over")
    except Exception:
        logger.exception("%s: the run continues without it", place)
    finally:
        run.budget.set_phase_deadline()


# --- more views of the rows ---------------------------------------------------------------------------------------


async def answer_more_views(chosen: Collection[str] = ()) -> bool:
    """The best solution runs on the views that it lacks, then its closest rivals, each as far as there is time for it;
    once all else is done, only what was `chosen`. Was there any answer?

    The expected score then rests on more rows, and what comes close to the best is compared with it on more of them. To
    the letter, and where the run was asked to finish, nothing runs.
    """
    run, done = current_run(), False
    holdout, budget = holdout_of(run), run.budget
    if holdout is None or run.config.letter or budget.finish_requested or budget.money_is_gone:
        return done
    most = math.inf if run.config.has_own_limit else 0.0 if chosen else SHARE_OF_SEARCH * budget.elapsed()
    checked = 0.0 if chosen else seconds_for(run, calls=LEAST_CALLS)  # what is chosen may have to be
    with within(run, min(budget.spare_seconds - checked, most), "views"):
        known = {run.ledger.text(one.script_id): one for one in answered_here(run)}
        wanted = [known[script] for script in chosen if script in known] if chosen else _in_turn(run)
        for place, one in enumerate(wanted):
            took, others = run.ledger.took(run.ledger.text(one.script_id)), len(chosen) - 1 - place
            missing = RERUN * took * (len(holdout.views) - len(one.result.answers))
            kept = missing * others if chosen else ENOUGH * took if place else 0.0
            with scope(one.script_id[:8]) as here:  # by what it is: another process may come to it first
                done |= await _complete(here, holdout, one, kept, one_by_one=place == 0 and len(chosen) < 2)
    return done


def _in_turn(run: RunContext) -> list[ScriptRun]:
    """The best by the rows of the search, then its rivals: those whose interval overlaps with its own.

    What was behind on the first views, and ran on no others for that, is no rival.
    """
    clean = {one.script_id: one for one in answered_here(run) if not run.ledger.ever_leaked(one.script_id)}
    measured = [(one, one.result.measure) for one in clean.values() if one.result.measure is not None]
    measured.sort(key=lambda pair: pair[1].estimated)  # what an estimate rests on may have been found to leak
    ranked = best_first(measured, lambda pair: pair[1].score, run.task.metric_direction)
    return [one for one, measure in ranked if _is_close(measure, ranked[0][1])][: 1 + MOST_RIVALS]


def _is_close(measure: Measure, best: Measure) -> bool:
    """Could it be worth as much as the best?"""
    bounds = (measure.low, measure.high, best.low, best.high)
    if measure.estimated or None in bounds:
        return measure.score == best.score
    low, high, best_low, best_high = (bound or 0.0 for bound in bounds)
    return low <= best_high and best_low <= high


async def _complete(run: RunContext, holdout: HoldOut, one: ScriptRun, kept: float, *, one_by_one: bool) -> bool:
    """Run a script on the views that it lacks, on all of them or as many as there is time; has it answered any?

    So many seconds are `kept` for what follows: of a rival, for the columns of the best; of a blend, for its others.
    """
    script, answered = run.ledger.text(one.script_id), len(one.result.answers)
    takes, begun = RERUN * run.ledger.took(script), answered
    side_by_side = script_slots(run.shared.scripts.gpus or [], run.config) if announced(run.executor).is_here else 99
    while missing := range(answered, len(holdout.views)):
        numbers = missing[:side_by_side] if one_by_one else missing
        needed = takes * math.ceil(len(numbers) / side_by_side)
        if not _fits(run, "fits", needed + kept, run.seconds_left):
            break
        solution = SolutionScript(content=script, phase=kind_of_script(one.step))
        limit = ALWAYS_ENOUGH * needed + LEAST_SECONDS
        result = await execute_in_run(solution, purpose="views", timeout_seconds=limit, views=numbers)
        if result.is_error:
            logger.info("%s: no answers to further rows: %s", one.step, exception_line(debug_text(result)))
            break
        answered = numbers.stop
    return answered > begun


def _fits(run: RunContext, name: str, seconds: float, left: float) -> bool:
    """Is there time for it? Decided once: a resumed run that has less time keeps what was found."""
    return run.decide(name, lambda: not run.budget.finish_requested and seconds <= left, reopen=True)


def _check_fits(place: str, solution: SolutionScript, left: float) -> bool:
    """Is there time for this check of a solution, by what it is? Another process may choose another one."""
    with scope(place, digest_of(solution.content)[:8]) as run:
        return _fits(run, "check-fits", ENOUGH * run.ledger.took(solution.content), left)


# --- scores that are self-reported ------------------------------------------------------------------------------


async def probe(solution: SolutionScript) -> list[str]:
    """What is wrong with the score that a script prints of itself; nothing where the harness scores."""
    run, found = current_run(), list[str]()
    left = PROBE_SHARE * (run.budget.time_limit - run.budget.elapsed())
    self_reported = run.shared.holdout is None and run.config.scoring == "auto"
    if solution.score is None or not self_reported or not _check_fits("probes", solution, left):
        return found
    with within(run, left, "probes"):
        known, folder = solution.score, run.run_dir / "views" / "shuffled"
        new = (await execute_in_run(solution, purpose="probe", data=data_of(run))).score
        if new is None:
            found.append("a second run of the same script prints no score")
        elif abs(new - known) > SAME * max(abs(known), 1.0):
            found.append(f"the same script with the same seed prints {known:g} and {new:g}")
        dummy = await asyncio.to_thread(_shuffle, run, folder)
        new = (await execute_in_run(solution, purpose="probe", data=DataFolder(folder))).score
        # where labels say nothing any more, a script must be no better than a dummy
        if new is not None and dummy not in (None, known) and (new - dummy) / (known - dummy) >= KEPT_SKILL:
            words = f"on shuffled labels it prints {new:g}, where a dummy gets {dummy:g}"
            found.append(f"{words}: labels leak into its own validation")
    for message in found:
        run.record(Notice(step="probes", level="warning", message=message))
    return found


def _shuffle(run: RunContext, folder: Path) -> float | None:
    """Write the data with the labels of the training rows among each other; what a dummy gets."""
    from mle_star.holdout.scorer import Scorer
    from mle_star.holdout.views import Data

    source = Path(run.task.data_dir)
    data = Data.read(find_layout(source, run.task.description), check=False)
    order = random.Random(run.config.seed).sample(data.labelled, len(data.labelled))
    data.write_shuffled(folder, dict(zip(data.labelled, order, strict=True)))
    grade = Scorer(data, metric_of(run.task, source)).baseline(data.labelled)
    return None if grade is None else grade.score


# --- another split ----------------------------------------------------------------------------------------


async def measure_other_splits(solution: SolutionScript, weights: Mapping[str, float]) -> list[str]:
    """What the solution is worth if the rows are related after all as the data only hint at."""
    run, found, solution = current_run(), list[str](), _largest(solution, weights)
    holdout = holdout_of(run)
    for rule in () if holdout is None or run.config.letter else holdout.scorer.data.rule.unsure:
        if not _check_fits(place := f"split-by-{rule.kind}", solution, run.budget.spare_seconds):
            break
        with within(run, run.budget.spare_seconds, place):
            config = run.config.model_copy(update={rule.setting: rule.column})
            task = run.task.model_copy(update={"data_dir": run.shared.whole})
            other = await asyncio.to_thread(HoldOut.prepare, task, config, run.run_dir / "views" / rule.kind, write=1)
            result = await execute_in_run(solution, purpose="probe", data=DataFolder(other.seen))
            if not result.is_error and verify_submission(str(run.work_dir)):
                answers = other.read([run.work_dir / SUBMISSION], other.views)
                words = other.measure(answers, other.split.views[0], ahead=True).words
                what = f"the latest rows by {rule.column}" if rule.kind == "time" else f"whole groups of {rule.column}"
                who = "the script with the largest weight" if len(weights) > 1 else "the solution"
                found.append(f"with {what} hidden {who} scores {words}; {rule.option} makes this the split")
    return found


# --- the importance of columns -----------------------------------------------------------------------------


async def examine_columns(solution: SolutionScript, weights: Mapping[str, float]) -> None:
    """Record how much worse the solution answers without each column; nothing where that is dear or cannot be known."""
    run, digest = current_run(), digest_of(solution.content)
    if (holdout := holdout_of(run)) is None:
        return
    known = [e for e in run.journal.events if isinstance(e, SolutionExamined) and e.digest == digest]
    if not known:
        return
    solution = _largest(solution, weights)
    found = known[-1].importance  # by an earlier process of the run
    if not found and _check_fits(STEP, solution, run.budget.spare_seconds):
        with within(run, run.budget.spare_seconds, STEP):
            found = await _importance(run, holdout, solution)
    elif not found and not run.budget.finish_requested:
        run.record(Notice(step=STEP, message=f"{UNMEASURED}: too little time is left"))
    if found:
        run.record(known[-1].model_copy(update={"importance": found}))


def _largest(solution: SolutionScript, weights: Mapping[str, float]) -> SolutionScript:
    """Of a blend, the script with the largest weight."""
    return solution.model_copy(update={"content": max(weights, key=weights.__getitem__)}) if weights else solution


async def _importance(run: RunContext, holdout: HoldOut, solution: SolutionScript) -> list[tuple[str, float]]:
    """One more run of the solution, on hidden rows with the values of each column mixed up in turn."""
    from mle_star.holdout.explain import permuted_view

    folder = run.run_dir / "views" / "permuted"
    made = await asyncio.to_thread(permuted_view, holdout.scorer, holdout.views[0].hidden, folder, seed=run.config.seed)
    result = await execute_in_run(solution, purpose="probe", data=DataFolder(folder))
    if result.is_error:
        why = "the time for it was too short" if result.timed_out else "the solution failed on it"
        run.record(Notice(step=STEP, message=f"{UNMEASURED}: {why}"))
    elif verify_submission(str(run.work_dir)):
        return await asyncio.to_thread(made.importance, run.work_dir / SUBMISSION)
    return []
