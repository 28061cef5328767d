"""One run from task to result: environment, client, the phases in order, L paths side by side, and an end in any case.

A phase has two exits: its result, or a limit. A limit never loses what was found: the phases that are left are skipped
and finalization submits the best so far. Only a run that has no solution at all ends in an error.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mle_star.config import effective_config, setup_logging
from mle_star.errors import BudgetExceeded, MleStarError, PipelineError, PipelineTimeoutError, RunInterrupted
from mle_star.execution.executors import announced, find_opener, opened_executor, surroundings_of
from mle_star.execution.kept_work import CACHE
from mle_star.execution.scoring import surroundings_digest
from mle_star.execution.workspace import remove_entry
from mle_star.finalization import result_of_the_search, run_finalization
from mle_star.models import (
    FinalResult,
    Phase1Result,
    Phase2Result,
    Phase3Result,
    PhaseTimeBudget,
    PipelineConfig,
    SolutionScript,
    TaskDescription,
    is_improvement,
)
from mle_star.phase1 import IN_TIME, run_phase1
from mle_star.phase2_outer import run_phase2_outer_loop
from mle_star.phase3 import run_phase3
from mle_star.run import events
from mle_star.run.budget import Budget
from mle_star.run.context import Agents, Executor, LimitedAgents, RunContext, RunShared, enter_run, scope
from mle_star.run.folder import RunFolder, callable_name, fork_run
from mle_star.run.forecast import Forecaster
from mle_star.run.journal import Journal
from mle_star.run.reached import partial_phase1, partial_phase3
from mle_star.run.timing import fitting_sizes
from mle_star.search import final_result, setup
from mle_star.search.control import PipelineState, RunControl, Stop
from mle_star.search.probes import answer_more_views, examine_columns, measure_other_splits, probe
from mle_star.search.shortlist import Found, Pick, known_measure, pick, yardsticks
from mle_star.search.stages import Outcome, Paths, Stage, Stages

if TYPE_CHECKING:
    from mle_star.sdk import CanUseTool

__all__ = ["PhaseTimeBudget", "PipelineState", "run_pipeline", "run_pipeline_sync"]

logger = logging.getLogger(__name__)
logging.getLogger("mle_star").addHandler(logging.NullHandler())  # without any, Python would print into a display
TELLING = ("agent_failed", "script_finished", "phase_finished")
"""Events after which the rest of a run may take longer or less long than was said; one of them follows each call."""


# --- the entry -----------------------------------------------------------------------------------------------


async def run_pipeline(
    task: TaskDescription,
    config: PipelineConfig | None = None,
    *,
    state: PipelineState | None = None,
    run_dir: Path | str | None = None,
    resume: bool = False,
    fork_from: Path | str | None = None,
    listeners: Iterable[Callable[[events.AnyEvent], None]] = (),
    agents: Agents | None = None,
    executor: Executor | None = None,
    base_url: str | None = None,
    can_use_tool: "CanUseTool | None" = None,
    signals: bool = False,
    console: bool = True,
) -> FinalResult:
    """Run the whole method on `task`. Everything it does is written to `run_dir` (default: a new folder in `runs/`).

    With `resume` the run in `run_dir` continues; with `fork_from` a new run starts from the paid results of
    another. `agents` and `executor` replace the SDK client and the local processes; `base_url` is where the model's API
    listens; `can_use_tool` is asked for every tool that the permission mode does not settle; `signals` makes Ctrl-C
    finish the run gracefully, and a second one stop it.
    """
    config = PipelineConfig() if config is None else config
    setup.check_inputs(task, config)
    config = effective_config(config)
    if executor is None:
        find_opener(config)
    if agents is None:
        setup.check_credentials(config, base_url)
        await asyncio.to_thread(setup.check_model, task, config, base_url)
    folder = setup.choose_folder(task, config, run_dir)
    folder = folder.open() if resume else folder.create()
    setup_logging(config, console=console)
    async with opened_executor(config, executor) as used:
        isolation, hardware = await surroundings_of(used)
        first = await asyncio.to_thread(setup.first_event, task, config, hardware, isolation)
        state = state or PipelineState()
        if fork_from is not None:
            task = fork_run(Path(fork_from), folder, first)
        with Journal(folder.journal, secrets=setup.secret_values(os.environ)) as journal, folder.holding_reserve():
            for listener in (*listeners, state.hear):
                journal.subscribe(listener)
            budget = setup.open_budget(journal, first, resume=resume)
            state.watch(budget, folder.root, hardware)
            control = RunControl(budget, journal, folder.root)
            journal.subscribe(control.hear)
            _tell_forecasts(journal, budget, control, Forecaster(task, config))
            with control.watching(signals=signals), _closing_line(journal, budget, control):
                holdout = await asyncio.to_thread(setup.prepare_holdout, task, config, folder.root, journal)
                example = await asyncio.to_thread(setup.example_data, task, folder.root, holdout)
                shared = RunShared(holdout=holdout, example=example, whole=task.data_dir, has_test=example is None)
                shared.views_at_once = not announced(used).is_here
                if holdout is not None:
                    shared.views, shared.search_views = len(holdout.views), holdout.search_views
                    shared.has_test = holdout.scorer.data.test_rows > 0
                seen = task.model_copy(update={"data_dir": str(holdout.seen if holdout else example or task.data_dir)})
                served = setup.connected(seen, config, journal, budget, hardware, base_url, can_use_tool, shared)
                async with served if agents is None else nullcontext(agents) as client:
                    context = RunContext(
                        task=seen,
                        config=config,
                        agents=client,
                        executor=used,
                        budget=budget,
                        journal=journal,
                        run_dir=folder.root,
                        work_dir=setup.work_dir(folder.root, seen, "main"),
                        shared=shared,
                    )
                    with enter_run(context):
                        result = await _Pipeline(context, state, control).run()
                await asyncio.to_thread(remove_entry, folder.root / CACHE)  # final scripts do without
                result = result.model_copy(update={"task": task, "config": config})  # as they were given
                result = final_result.with_costs(result, budget.spent)
                return final_result.write_result(folder, journal, result, example or Path(task.data_dir))


def run_pipeline_sync(task: TaskDescription, config: PipelineConfig | None = None, **options: Any) -> FinalResult:
    """`run_pipeline` for callers without an event loop; `options` are its keywords."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run_pipeline(task, config, **options))
    raise RuntimeError("an event loop is running here: use `await run_pipeline(...)` instead of run_pipeline_sync")


@contextmanager
def _closing_line(journal: Journal, budget: Budget, control: RunControl) -> Iterator[None]:
    """Whatever ends a run without a result is the last line of its journal."""
    folder = RunFolder(journal.path.parent)

    def close(state: events.RunState, message: str) -> None:
        folder.release_reserve()
        spent = {"cost_usd": budget.spent.usd, "seconds": budget.elapsed()}
        journal.record(events.RunFinished(state=state, message=message, **spent))

    try:
        yield
    except asyncio.CancelledError:
        close("interrupted", f"stopped by {control.stopped_by or 'the caller'}")
        if control.stopped_by is None:
            raise
        kept = folder.best_submission if folder.best_submission.is_file() else None
        spent = {"elapsed_seconds": budget.elapsed(), "cost_usd": budget.spent.usd, "submission": kept and str(kept)}
        so_far, name = f"the best submission so far is {kept}; " if kept else "", callable_name(folder.root)
        words = f"stopped by {control.stopped_by}; {so_far}`mle-star resume {name}` continues from here"
        raise RunInterrupted(words, diagnostics=spent) from None
    except Exception as error:
        close("failed", str(error) if isinstance(error, MleStarError) else f"{type(error).__name__}: {error}")
        raise


def _tell_forecasts(journal: Journal, budget: Budget, control: RunControl, forecaster: Forecaster) -> None:
    """Say what the whole run will take now, and again whenever that has changed; warn when a limit comes near."""

    def hear(event: events.AnyEvent) -> None:
        forecaster.hear(event)
        if event.at >= begun and event.kind in ("agent_finished", *TELLING):  # what is only taken over changes nothing
            control.warn()
            if event.kind in TELLING and (news := forecaster.news(**now())) is not None:
                journal.record(news)

    def now() -> dict[str, float]:
        return {"spent_usd": budget.spent.usd, "elapsed": budget.elapsed()}

    begun, first = datetime.now(timezone.utc), forecaster.news(**now())
    if first is not None and not journal.takes_over(()):
        journal.record(first)
    journal.subscribe(hear)


# --- the phases ----------------------------------------------------------------------------------------------


class _Pipeline:
    """The phases in order, each with its time and its fallback."""

    def __init__(self, context: RunContext, state: PipelineState, control: RunControl) -> None:
        self.context, self.state, self.control = context, state, control
        self.task, self.config, self.budget = context.task, context.config, context.budget
        self.stages, self.references = Stages(context), setup.read_references(self.config)

    async def run(self) -> FinalResult:
        """Phase 1, the paths, the ensemble, the submission: strictly one after another."""
        ahead = asyncio.create_task(surroundings_digest(self.context))  # scripts wait for it: begin while agents think
        # the script that needs it sees the error
        ahead.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            phase1 = await self._phase1()
        except PipelineError as error:
            earlier = final_result.earlier_result(self.context.journal.events)
            if earlier is None:
                raise
            return self._as_before(earlier, error)
        with scope(config=self.config.model_copy(update=fitting_sizes(self.context))) as self.context:
            self.config, self.stages.context = self.context.config, self.context
            return await self._after_phase1(phase1)

    async def _after_phase1(self, phase1: Phase1Result) -> FinalResult:
        phase2 = await self._phase2(phase1)
        found = Found(phase1, phase2, await self._phase3(phase1, [result.best_solution for result in phase2]))
        stage = Stage(self.stages, "finalization")  # what selects the solution is part of it
        await answer_more_views()
        picked = await pick(found)
        solution = self._choose(found) if picked is None else picked.chosen.solution
        self.stages.warnings += await probe(solution)
        result = await self._finalize(stage, solution, found, picked)
        if (other := self.context.shared.ending.stand_in) is not None:
            solution, picked = other, picked and picked.instead(other)
        elif self.stages.cannot_write is None:
            picked = await self._look_again(solution, found, picked)
        return self._complete(result, solution, picked)

    async def _look_again(self, solution: SolutionScript, found: Found, picked: Pick | None) -> Pick | None:
        """With the submission on disk: which columns matter, and what is chosen on the views that it lacks.

        Who stops the run in here has its result all the same.
        """
        # nothing is kept for later any more: what was not needed is free
        self.budget.final_limit = self.budget.rerun_seconds = self.budget.views_seconds = 0.0
        try:
            weights = {} if picked is None else picked.chosen.scripts
            await examine_columns(solution, weights)
            self.stages.warnings += await measure_other_splits(solution, weights)
            if picked is not None and await answer_more_views(picked.chosen.scripts):
                picked = await pick(found, picked)
        except asyncio.CancelledError:
            if self.control.stopped_by is None:
                raise
            self.stages.warnings.append(f"stopped by {self.control.stopped_by} after the submission was made")
        return picked

    async def _phase1(self) -> Phase1Result:
        stage, seconds = Stage(self.stages, "phase1"), self.budget.open_phase("phase1")
        result, why = await self.stages.attempt(seconds, run_phase1(self.task, self.config), "phase1")
        if not self.config.letter:  # to the letter a run whose Phase 1 did not end is over
            result = result or partial_phase1()
        stage.ended_by(why, score=None if result is None else result.initial_score)
        if result is not None:
            return result
        limit = why.limit if isinstance(why, BudgetExceeded) else None
        diagnostics = final_result.diagnostics_of(self.context, why, reason=limit or "phase1")
        if limit is not None:
            raise PipelineTimeoutError(self._without_solution(), diagnostics=diagnostics) from why
        causes = "; ".join(f"{name}: {line}" for name, line in getattr(why, "errors", {}).items())
        reason = f"{why} ({causes[:400]})" if causes else str(why)
        raise PipelineError(self._without_solution(reason), diagnostics=diagnostics) from why

    async def _phase2(self, phase1: Phase1Result) -> list[Phase2Result]:
        if why := self.stages.reason_to_skip("phase2"):
            self.stages.skip("phase2", why)
            return []
        stage, statuses = Stage(self.stages, "phase2"), self.state.phase2_path_statuses
        seconds = self.stages.open("phase2")
        agents = self.context.agents
        sessions = agents.max_concurrent_sessions if isinstance(agents, LimitedAgents) else None
        limits = (self.config.max_concurrent_paths, sessions)
        at_once = min([limit for limit in limits if limit is not None], default=self.config.num_parallel_solutions)
        results = await Paths(self.stages, phase1, statuses, slots=at_once, refine=run_phase2_outer_loop).run(seconds)
        ends: tuple[Outcome, ...] = ("completed", "cancelled")
        outcome: Outcome = next((end for end in ends if end in statuses), "failed")
        best = final_result.best_path(self.context, results)
        stage.ended(outcome, ", ".join(statuses), score=None if best is None else best.best_score)
        return results

    async def _phase3(self, phase1: Phase1Result, solutions: list[SolutionScript]) -> Phase3Result | None:
        skip = "there is one path only" if self.config.num_parallel_solutions == 1 else ""
        scripts = {solution.content for solution in solutions}
        if scripts == {phase1.initial_solution.content} and not self.config.letter and self.stages.stop is not None:
            skip = skip or "no path got beyond the initial solution in its time"
        if skip := skip or self.stages.reason_to_skip("phase3") or ("" if solutions else "Phase 2 was skipped"):
            self.stages.skip("phase3", skip)
            return None
        if len(scripts) == 1:
            logger.warning("all paths ended with the same script: an ensemble of it has little value")
        stage, seconds = Stage(self.stages, "phase3"), self.stages.open("phase3")
        with scope("phase3"):
            result, why = await self.stages.attempt(seconds, run_phase3(solutions, self.task, self.config), "phase3")
        if isinstance(why, BudgetExceeded):
            result = partial_phase3("phase3/", solutions)
        outcome, detail = self.stages.end_by(why)
        if outcome == "completed" and result is not None and not result.attempts:
            stage.ended("skipped", "no ensemble was made in its time")
        else:
            stage.ended(outcome, detail, score=None if result is None else result.best_ensemble_score)
        return result

    def _choose(self, found: Found) -> SolutionScript:
        """What goes into finalization: the ensemble, else the best path, else the initial solution."""
        best, phase3 = final_result.best_path(self.context, found.phase2), found.phase3
        single = found.phase1.initial_solution if best is None else best.best_solution
        if phase3 is None:
            return single
        score, ensemble = None if self.context.leaks(single.content) else single.score, phase3.best_ensemble_score
        if score is None or ensemble is None or not is_improvement(score, ensemble, self.task.metric_direction):
            return phase3.best_ensemble  # with a score, where a clean path has one: the inputs count
        kept = self.config.prefer_best_input
        words = f"the best path ({score:g}) beats every ensemble ({ensemble:g})"
        self.stages.warnings.append(f"{words}: the {'path' if kept else 'ensemble'} is submitted")
        return single if kept else phase3.best_ensemble

    async def _finalize(self, stage: Stage, solution: SolutionScript, found: Found, picked: Pick | None) -> FinalResult:
        seconds = self.budget.open_phase("finalization")
        members = picked.chosen.scripts if picked is not None and len(picked.chosen.scripts) > 1 else None
        others = None if picked is None else picked.stand_ins()
        result, why, nothing = None, None, self.stages.cannot_write
        if nothing is None:
            known = (*found, self.references)
            work = run_finalization(solution, self.task, self.config, *known, members=members, others=others)
            result, why = await self.stages.attempt(seconds, work, "finalization")
        else:  # the result takes the room set aside
            RunFolder(self.context.run_dir).release_reserve()
            why = BudgetExceeded(limit=nothing.reason, message=nothing.detail)
        if result is None:
            stage.ended_by(why)
            return await result_of_the_search(self.context.shared.ending.stand_in or solution, found, why, members)
        written = bool(result.submission_path) or not result.has_test
        stage.ended("completed" if written else "failed", "" if written else "no submission", score=solution.score)
        return result

    def _complete(self, result: FinalResult, chosen: SolutionScript, picked: Pick | None) -> FinalResult:
        """Add what only the orchestrator knows."""
        elapsed, stop, completed = self.budget.elapsed(), self._stop(), self.stages.ended_as("completed")
        is_usual = self.config.fills_time and {"phase2", "finalization"} <= {*completed}
        used_time = False
        if is_usual and stop is not None and stop.reason == "time":
            used_time = self.config.more_steps or elapsed >= final_result.USED * self.budget.time_limit
            stop = None
        warnings = [stop.explain(self.context.run_dir)] if stop else []
        if passed := [step.split("/")[1].replace("-", " ") for step in self.context.journal.refused(IN_TIME)]:
            warnings.append(f"Phase 1 ended without {', '.join(passed)}")
        known = known_measure(self.context, chosen, result.final_solution.score)
        final = result.final_solution
        if picked is not None and final.score == chosen.score:  # it may have answered more rows since
            chosen = picked.chosen.solution
            final = final.model_copy(update={"score": chosen.score})
        return result.model_copy(
            update={
                "final_solution": final,
                "expected": picked.chosen.measure if picked is not None else known,
                **yardsticks(self.context, result.phase1, picked),
                "total_duration_seconds": elapsed,
                "phases_completed": completed,
                "phases_skipped": self.stages.ended_as("skipped"),
                "duration_breakdown": final_result.duration_breakdown(self.stages.ended, elapsed),
                "lineage": final_result.lineage(self.context, result, chosen, picked.chosen if picked else None),
                "stopped_by": None if stop is None else stop.reason,
                "used_time": used_time,
                "warnings": [*warnings, *self.stages.warnings, *result.warnings],
            }
        )

    def _as_before(self, earlier: FinalResult, error: PipelineError) -> FinalResult:
        """The result that an earlier process had, when this one has found nothing."""
        logger.error("nothing new: %s; the earlier result is kept", error)
        stop, still_there = self._stop(), Path(earlier.submission_path).is_file()
        return earlier.model_copy(
            update={
                "total_duration_seconds": self.budget.elapsed(),
                "submission_path": earlier.submission_path if still_there else "",
                "stopped_by": None if stop is None else stop.reason,
                "warnings": [f"the earlier result is kept: {error}", *earlier.warnings],
            }
        )

    def _stop(self) -> Stop | None:
        """What ended the run before its plan was done."""
        stop = self.stages.cannot_write or self.stages.stop
        if (stop is None and self.context.shared.wound_down) or (stop is not None and stop.reason == "request"):
            stop = self.control.request or Stop("time")
        return stop or (Stop("money") if self.budget.degraded or self.budget.short_of_money else None)

    def _without_solution(self, *reasons: str) -> str:
        """Why there is nothing to submit, and how the run continues."""
        why = self._stop() or self.control.cut_off
        how = [] if why is None else [why.explain(self.context.run_dir)]
        return f"no solution: {'; '.join([*reasons, *how])}"
