"""Phase 2 as a whole: L refinement paths side by side, each with its own copy, directory, steps and failure."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any

from mle_star.errors import BudgetExceeded
from mle_star.models import MetricDirection, Phase1Result, Phase2Result, PipelineConfig, SolutionScript, TaskDescription
from mle_star.models.texts import digest_of
from mle_star.run.context import path_context, scope
from mle_star.run.reached import partial_path
from mle_star.safety import check_and_fix_leakage, checks_later
from mle_star.search.setup import work_dir
from mle_star.search.stages import Outcome, Stages

logger = logging.getLogger("mle_star.orchestrator")


Refine = Callable[[SolutionScript, float, TaskDescription, PipelineConfig], Coroutine[Any, Any, Phase2Result]]
"""Algorithm 2: the result of refining a solution, which has a score."""


class Paths:
    """The paths of one run. `statuses` belongs to the caller, who may look at it while they run."""

    def __init__(
        self, stages: Stages, phase1: Phase1Result, statuses: list[str], *, at_once: int, refine: Refine
    ) -> None:
        self._stages, self._phase1, self._statuses, self._refine_solution = stages, phase1, statuses, refine
        self._context = stages.context
        self._count = self._context.config.num_parallel_solutions
        self._at_once = max(1, min(at_once, self._count))
        self._slots = asyncio.Semaphore(self._at_once)
        self._tasks: list[asyncio.Task[Phase2Result]] = []

    async def run(self, seconds: float) -> list[Phase2Result]:
        """A result for every path, within `seconds` for all of them; paths that must wait share the time."""
        if self._at_once < self._count:
            logger.warning("%d paths, but only %d at a time: the others wait", self._count, self._at_once)
        each = seconds / math.ceil(self._count / self._at_once)
        self._statuses[:] = ["running"] * self._count
        with scope("phase2"):
            self._tasks = [asyncio.create_task(self._path(index, each)) for index in range(self._count)]
            ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in ended:
            if isinstance(result, BaseException):
                raise result  # a path answers for its own failures: this is the journal's, or a stop
        return [result for result in ended if isinstance(result, Phase2Result)]

    async def _path(self, index: int, seconds: float) -> Phase2Result:
        """One path; whatever ends it, there is a result to go on with."""
        label = f"path-{index}"
        outcome: Outcome = "completed"
        detail, stage, initial = "", None, self._phase1.initial_solution.model_copy(deep=True)
        try:
            async with self._slots:
                now = asyncio.get_running_loop().time
                end = now() + seconds
                initial = await self._checked(self._start(index), index, label, seconds)
                other = initial.content != self._phase1.initial_solution.content
                model = (initial.source_model or "") if other else ""
                stage = self._stages.begin("phase2", index, model, digest_of(initial.content))
                result = await self._refine(initial, index, label, end - now())
        except BudgetExceeded as stop:
            outcome, detail = "cancelled", str(stop)
            result = self._reached(label, initial)
            if self._stages.limit_reached:
                self._stop_the_others()
        except asyncio.CancelledError:
            if not self._stages.limit_reached:
                raise  # somebody stopped the run
            outcome, detail = "cancelled", "a limit of the run was reached"
            result = self._reached(label, initial)
        except Exception as error:
            logger.exception("%s failed: the best it had goes on", label)
            outcome, detail = "failed", f"{type(error).__name__}: {error}"
            result = self._substitute(self._reached(label, initial), initial)
            self._stages.warnings.append(f"{label} failed: {detail}; it goes on with {result.best_score:g}")
        self._statuses[index] = outcome
        (stage or self._stages.begin("phase2", index)).ended(outcome, detail, score=result.best_score)
        return result

    async def _refine(self, initial: SolutionScript, index: int, label: str, seconds: float) -> Phase2Result:
        context = self._context
        directory = work_dir(context.run_dir, context.task, label)
        with path_context(index, directory):
            work = self._refine_solution(initial, self._score(initial), context.task, context.config)
            return await self._stages.within(seconds, work, "phase2", label)

    def _start(self, index: int) -> SolutionScript:
        """Where a path begins: the first with the initial solution, the others with the next best candidates."""
        first, direction = self._phase1.initial_solution, self._context.task.metric_direction
        if index == 0 or "starts" not in self._context.config.diversity:
            return first.model_copy(deep=True)
        others = {s.content: s for s in self._phase1.candidate_solutions if s.score is not None and not s.leaking}
        others.pop(first.content, None)
        sign = -1 if direction is MetricDirection.maximize else 1
        ranked = sorted(others.values(), key=lambda script: sign * (script.score or 0.0))
        return (ranked[index - 1] if index <= len(ranked) else first).model_copy(deep=True)

    async def _checked(self, start: SolutionScript, index: int, label: str, seconds: float) -> SolutionScript:
        """Where only promising scripts are checked, a candidate was not: one that leaks is nothing to begin with."""
        first, context = self._phase1.initial_solution, self._context
        if start.content == first.content or not checks_later(context.config):
            return start
        with path_context(index, work_dir(context.run_dir, context.task, label)):
            checked = await self._stages.within(seconds, check_and_fix_leakage(start), "phase2", label)
        clean = checked.content == start.content and not checked.leaking
        return start if clean else first.model_copy(deep=True)

    def _stop_the_others(self) -> None:
        """A limit of the whole run is reached: what other paths have under way ends, too.

        A path that only takes over recorded results has nothing under way; it meets the limit by itself.
        """
        for index, task in enumerate(self._tasks):
            if task is asyncio.current_task() or task.done():
                continue
            if self._context.journal.in_progress(("phase2", f"path-{index}")):
                task.cancel()

    def _score(self, initial: SolutionScript) -> float:
        return self._phase1.initial_score if initial.score is None else initial.score

    def _reached(self, label: str, initial: SolutionScript) -> Phase2Result:
        """What a path that began with `initial` had when it was cut off."""
        return partial_path(f"phase2/{label}/", initial.model_copy(update={"score": self._score(initial)}))

    def _substitute(self, reached: Phase2Result, start: SolutionScript) -> Phase2Result:
        """What a path that failed submits: the best it had, or `s_0` where it won nothing; its last record says so.

        To the letter it is `s_0` in any case.
        """
        if self._context.config.letter or reached.best_solution.content == start.content:
            s_0, score = self._phase1.initial_solution.model_copy(deep=True), self._phase1.initial_score
            reached = reached.model_copy(update={"best_solution": s_0, "best_score": score})
        *before, last = reached.step_history
        return reached.model_copy(update={"step_history": [*before, {**last, "failed": True}]})
