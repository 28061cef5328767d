"""The stages of a run: each begins and ends with a line in the journal and in the log, and works within its time.

Phase 2 as a whole is L refinement paths side by side, each with its own copy, directory, steps and failure.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any, Literal, TypeVar

from mle_star.errors import BudgetExceeded
from mle_star.method.scores import best_first
from mle_star.models import Phase1Result, Phase2Result, PipelineConfig, SolutionScript, TaskDescription
from mle_star.models.enums import ORDER, PHASES, PhaseName
from mle_star.models.texts import digest_of
from mle_star.run.context import RunContext, cancel_all, current_run, path_context, scope
from mle_star.run.events import PhaseFinished, PhaseStarted
from mle_star.run.reached import partial_path, score_of
from mle_star.run.timing import plan_time
from mle_star.safety import check_and_fix_leakage, checks_later
from mle_star.search.control import Stop, stop_of
from mle_star.search.setup import work_dir

logger = logging.getLogger("mle_star.orchestrator")

T = TypeVar("T")
Outcome = Literal["completed", "failed", "skipped", "cancelled"]

REPLAY_SECONDS = 60.0
"""What a stage gets to take over recorded results once its own time is used up."""
SUBMIT_SECONDS = 15.0
"""What finalization gets to check the submission of a script that ended in time, and to put it into final/."""


class Stage:
    """A phase that is under way, or one path of Phase 2.

    A path begins with the script `digest`, of `model` if that is not the initial solution.
    """

    def __init__(
        self, stages: "Stages", phase: PhaseName, path: int | None = None, model: str = "", digest: str = ""
    ) -> None:
        if path is None:
            plan_time(stages.context, phase)
        self._stages, self.phase, self.path = stages, phase, path
        self.step = phase if path is None else f"{phase}/path-{path}"
        self._began = stages.budget.elapsed() - stages.budget.spent.by_stage.get(self.step, 0.0)
        stages.context.journal.record(PhaseStarted(step=self.step, phase=phase, path=path, model=model, digest=digest))

    def ended_by(self, why: Exception | None, *, score: float | None = None) -> None:
        """Record that it was completed or, by a limit or an error, was not."""
        self.ended(*self._stages.end_by(why), score=score)

    def ended(self, outcome: Outcome, detail: str = "", *, score: float | None = None) -> None:
        """Record how it went."""
        if self.path is None and outcome in ("failed", "cancelled"):
            self._stages.warnings.append(f"{self.phase} {outcome}: {detail}")
        about: dict[str, Any] = {"step": self.step, "phase": self.phase, "path": self.path, "outcome": outcome}
        seconds = self._stages.budget.elapsed() - self._began
        self._stages.end(PhaseFinished(**about, score=score, seconds=seconds, detail=detail))


class Stages:
    """The stages of one run so far."""

    def __init__(self, context: RunContext) -> None:
        self.context, self.budget = context, context.budget
        self.ended: dict[str, PhaseFinished] = {}
        """The phases that are over, in their order."""
        self.warnings: list[str] = []
        self.stop: Stop | None = None

    def end(self, event: PhaseFinished) -> None:
        """Record that a stage is over."""
        if event.path is None:
            self.ended[event.phase] = event
        self.context.journal.record(event)

    def ended_as(self, outcome: Outcome) -> list[str]:
        """The phases that ended so, in their order."""
        return [phase for phase, event in self.ended.items() if event.outcome == outcome]

    def end_by(self, why: Exception | None) -> tuple[Outcome, str]:
        """How a stage has ended, and why. A search that fills its time is complete when that is over."""
        if not isinstance(why, BudgetExceeded):
            return ("completed", "") if why is None else ("failed", f"{type(why).__name__}: {why}")
        goes_on = self.context.config.fills_time and self.budget.phase in ("phase2", "phase3")
        return "completed" if goes_on and why.limit == "time" else "cancelled", str(why)

    def open(self, phase: PhaseName) -> float:
        """Begin the time of a phase; the seconds it has.

        None where an earlier process built on it: with a new share of the time it would come to something else, and
        all that rests on it would be paid for again.
        """
        journal, seconds = self.context.journal, self.budget.open_phase(phase)
        gone_on = any(journal.phase(later.name) for later in PHASES[ORDER[phase] + 1 :])
        if gone_on and journal.phase(phase) not in ("", "begun"):
            self.budget.set_phase_deadline(0.0)
            return 0.0
        return seconds

    def skip(self, phase: PhaseName, why: str) -> None:
        """Pass over a phase."""
        self.end(PhaseFinished(step=phase, phase=phase, outcome="skipped", detail=why))

    def reason_to_skip(self, phase: PhaseName) -> str | None:
        """Why no work of `phase` may begin, if so. What is recorded already is taken over in any case."""
        if self.cannot_write is not None:
            return self.cannot_write.words
        if self.context.journal.phase(phase):
            return None
        if self.budget.finish_requested:
            self.note_stop(Stop("request"))
            return "the run was asked to finish"
        if self.budget.money_is_gone:
            self.note_stop(Stop("money"))
            return "the money is spent"
        if self.budget.spare_seconds <= 0:
            self.note_stop(Stop("time"))
            return "the time is nearly used up"
        return None

    def note_stop(self, stop: Stop | None) -> None:
        """Remember what ended the run before its plan was done; the first one counts."""
        self.stop = self.stop or stop

    @property
    def cannot_write(self) -> Stop | None:
        """Why nothing new can be kept, if so: no work may begin any more, not even that of finalization."""
        if self.stop is not None and self.stop.reason == "disk":
            return self.stop
        failure = self.context.journal.failure
        if failure is None:
            return None
        return stop_of(failure.__cause__ or failure) or Stop("journal", str(failure))

    @property
    def limit_reached(self) -> bool:
        """Is the time or the money of the whole run used up, or can nothing be kept any more?"""
        spent = self.budget.money_is_gone or self.budget.elapsed() >= self.budget.time_limit
        return spent or self.cannot_write is not None

    async def attempt(
        self, seconds: float, work: Coroutine[Any, Any, T], *parts: str
    ) -> tuple[T | None, Exception | None]:
        """The result of `work` within so many seconds, or why there is none."""
        try:
            return await self.within(seconds, work, *parts), None
        except Exception as error:
            if not isinstance(error, BudgetExceeded):
                logger.exception("%s failed: the best so far is used", "/".join(parts))
            return None, error

    async def within(self, seconds: float, work: Coroutine[Any, Any, T], *parts: str) -> T:
        """The result of `work`, or `BudgetExceeded` when its seconds or the money are over; its steps are in `parts`.

        Work that only takes over recorded results when a limit is reached meets it by itself, at its first new step.
        A full disk is a limit, too: whatever ends the whole run leaves as `BudgetExceeded`, and is remembered.
        """
        task, spent = asyncio.create_task(work), asyncio.get_running_loop().create_future()
        journal = self.context.journal

        def stop() -> None:
            if not spent.done() and not journal.takes_over(parts):
                spent.set_result(None)

        async def wait(timeout: float) -> None:
            await asyncio.wait({task, spent}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

        try:
            with nullcontext() if parts[0] == "finalization" else self.budget.when_spent(stop):
                await wait(max(seconds, 0.0))
                if not task.done() and not spent.done() and not journal.in_progress(parts):
                    last = SUBMIT_SECONDS if parts[0] == "finalization" else 0.0
                    await wait(REPLAY_SECONDS if journal.takes_over(parts) else last)
        finally:
            await cancel_all([task])
        try:
            if task.cancelled() or not task.done():
                raise self.budget.over()
            return task.result()
        except (BudgetExceeded, OSError) as error:
            stopped = stop_of(error)
            self.note_stop(self.cannot_write or stopped)
            if stopped is None or isinstance(error, BudgetExceeded):
                raise
            raise BudgetExceeded(limit=stopped.reason, message=stopped.detail) from error


# --- the paths of Phase 2 ----------------------------------------------------------------------------------

Refine = Callable[[SolutionScript, float, TaskDescription, PipelineConfig], Coroutine[Any, Any, Phase2Result]]
"""Algorithm 2: the result of refining a solution, which has a score."""


class Paths:
    """The paths of one run. `states` belongs to the caller, who may look at it while they run."""

    def __init__(self, stages: Stages, phase1: Phase1Result, states: list[str], *, slots: int, refine: Refine) -> None:
        self._stages, self._phase1, self._statuses, self._refine = stages, phase1, states, refine
        self._context = stages.context
        self._count = self._context.config.num_parallel_solutions
        self._at_once = max(1, min(slots, self._count))
        self._slots = asyncio.Semaphore(self._at_once)
        self._tasks: list[asyncio.Task[Phase2Result]] = []

    async def run(self, seconds: float) -> list[Phase2Result]:
        """A result for every path, within `seconds` for all of them; paths that must wait share what is left."""
        if self._at_once < self._count:
            logger.warning("%d paths, but only %d at a time: the others wait", self._count, self._at_once)
        end, waves = self._stages.budget.elapsed() + seconds, math.ceil(self._count / self._at_once)
        turns = [waves - index // self._at_once for index in range(self._count)]
        self._statuses[:] = ["running"] * self._count
        with scope("phase2"):
            self._tasks = [asyncio.create_task(self._path(index, end, left)) for index, left in enumerate(turns)]
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # a path answers for its own failures: what is raised here is the journal's, or a stop
        return [task.result() for task in self._tasks]

    async def _path(self, index: int, last: float, turns: int) -> Phase2Result:
        """One path, with its share of the time until `last`, for so many turns; whatever ends it, there is a result."""
        label, place, context = f"path-{index}", f"phase2/path-{index}/", self._context
        outcome: Outcome = "completed"
        detail, stage, initial = "", None, self._phase1.initial_solution.model_copy(deep=True)
        try:
            async with self._slots:
                end = (now := self._stages.budget.elapsed()) + (last - now) / turns
                with path_context(index, work_dir(context.run_dir, context.task, label), end) as path:
                    initial = await self._stages.within(path.seconds_left, self._start(index), "phase2", label)
                    other = initial.content != self._phase1.initial_solution.content
                    model = (initial.source_model or "") if other else ""
                    stage = Stage(self._stages, "phase2", index, model, digest_of(initial.content))
                    work = self._refine(initial, score_of(initial), context.task, context.config)
                    result = await self._stages.within(path.seconds_left, work, "phase2", label)
        except BudgetExceeded as stop:
            outcome, detail = self._stages.end_by(stop)
            result = partial_path(place, initial)
            if self._stages.limit_reached:
                self._stop_the_others()
        except asyncio.CancelledError:
            if not self._stages.limit_reached:
                raise  # someone stopped the run
            outcome, detail = "cancelled", "a limit of the run was reached"
            result = partial_path(place, initial)
        except Exception as error:
            logger.exception("%s failed: the best it had is used", label)
            outcome, detail = self._stages.end_by(error)
            result = self._substitute(partial_path(place, initial), initial)
            self._stages.warnings.append(f"{label} failed: {detail}; the run continues with {result.best_score:g}")
        self._statuses[index] = outcome
        (stage or Stage(self._stages, "phase2", index)).ended(outcome, detail, score=result.best_score)
        return result

    async def _start(self, index: int) -> SolutionScript:
        """Where a path begins: the first with the initial solution, the others with the next best candidates.

        Where only promising scripts are checked, a candidate was not: one that leaks is nothing to begin with.
        """
        run, first = current_run(), self._phase1.initial_solution
        others: dict[str, SolutionScript] = {}
        if "starts" in run.config.diversity:
            scored = [one for one in self._phase1.candidate_solutions if one.score is not None]
            others = {one.content: one for one in scored if one.content != first.content and not run.leaks(one.content)}
        ranked = [first, *best_first(others.values(), lambda script: script.score, run.task.metric_direction)]
        start = ranked[index] if index < len(ranked) else first
        if start is not first and checks_later():
            checked = await check_and_fix_leakage(start)
            start = start if checked.content == start.content and not run.leaks(start.content) else first
        return start.model_copy(deep=True)

    def _stop_the_others(self) -> None:
        """A limit of the whole run is reached: what other paths have under way ends, too.

        A path that only takes over recorded results has nothing under way; it meets the limit by itself.
        """
        for index, task in enumerate(self._tasks):
            if task is asyncio.current_task() or task.done():
                continue
            if self._context.journal.in_progress(("phase2", f"path-{index}")):
                task.cancel()

    def _substitute(self, reached: Phase2Result, start: SolutionScript) -> Phase2Result:
        """What a path that failed submits: the best it had, or `s_0` where it won nothing; its last record says so.

        To the letter it is `s_0` in any case.
        """
        if self._context.config.letter or reached.best_solution.content == start.content:
            s_0, score = self._phase1.initial_solution.model_copy(deep=True), self._phase1.initial_score
            reached = reached.model_copy(update={"best_solution": s_0, "best_score": score})
        *before, last = reached.step_history
        return reached.model_copy(update={"step_history": [*before, {**last, "failed": True}]})
