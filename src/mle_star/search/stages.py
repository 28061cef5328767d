"""The stages of a run: each begins and ends with a line in the journal and in the log, and works within its time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import nullcontext
from typing import Any, Literal, TypeVar

from mle_star.errors import BudgetExceeded
from mle_star.models.phases import PHASES, PhaseName, phases_after
from mle_star.run.budget import Budget
from mle_star.run.context import RunContext
from mle_star.run.events import PhaseFinished, PhaseStarted
from mle_star.run.limits import keep_time_to_run_again
from mle_star.search.control import Stop, stop_of

logger = logging.getLogger("mle_star.orchestrator")

T = TypeVar("T")
Outcome = Literal["completed", "failed", "skipped", "cancelled"]

REPLAY_SECONDS = 60.0
"""What a stage gets to take over recorded results once its own time is used up."""
HAND_OVER_SECONDS = 15.0
"""What finalization gets to check and put in its place the submission of a script that ended in time."""
CANCEL_SECONDS = 20.0
"""How long cancelled work may take to clean up after itself."""


class Stage:
    """A phase that is under way, or one path of Phase 2."""

    def __init__(self, stages: Stages, phase: PhaseName, path: int | None, model: str, digest: str) -> None:
        self._stages, self.phase, self.path = stages, phase, path
        self.step = phase if path is None else f"{phase}/path-{path}"
        self._began = stages.context.budget.elapsed() - stages.earlier.get(self.step, 0.0)
        stages.context.journal.record(PhaseStarted(step=self.step, phase=phase, path=path, model=model, digest=digest))

    def ended_by(self, why: Exception | None, *, score: float | None = None) -> None:
        """Record that it was completed or, by a limit or an error, was not."""
        if why is None:
            self.ended("completed", score=score)
        elif isinstance(why, BudgetExceeded):
            self.ended("cancelled", str(why), score=score)
        else:
            self.ended("failed", f"{type(why).__name__}: {why}", score=score)

    def ended(self, outcome: Outcome, detail: str = "", *, score: float | None = None) -> None:
        """Record how it went."""
        seconds = self._stages.context.budget.elapsed() - self._began
        if self.path is None:
            self._stages.outcomes[self.phase] = outcome
            self._stages.seconds[self.phase] = seconds
            if outcome in ("failed", "cancelled"):
                self._stages.warnings.append(f"{self.phase} {outcome}: {detail}")
        self._stages.context.journal.record(
            PhaseFinished(
                step=self.step,
                phase=self.phase,
                path=self.path,
                outcome=outcome,
                score=score,
                seconds=seconds,
                detail=detail,
            )
        )


class Stages:
    """The stages of one run so far. `earlier`: the seconds that earlier processes were at work in each."""

    def __init__(self, context: RunContext, earlier: Mapping[str, float]) -> None:
        self.context, self.earlier = context, earlier
        self.outcomes: dict[PhaseName, Outcome] = {}
        self.seconds: dict[str, float] = {}
        self.warnings: list[str] = []
        self.stop: Stop | None = None

    @property
    def budget(self) -> Budget:
        """The run's ledger."""
        return self.context.budget

    def begin(self, phase: PhaseName, path: int | None = None, model: str = "", digest: str = "") -> Stage:
        """Open a stage; a path begins with the script `digest`, of `model` if that is not the initial solution."""
        if path is None:
            keep_time_to_run_again(self.context, phase)
        return Stage(self, phase, path, model, digest)

    def ended_as(self, outcome: Outcome) -> list[str]:
        """The phases that ended so, in their order."""
        return [phase.name for phase in PHASES if self.outcomes.get(phase.name) == outcome]

    def open(self, phase: PhaseName) -> float:
        """Begin the time of a phase; the seconds it has.

        None where an earlier process went on from it: with a new share of the time it would come to something else, and
        all that rests on it would be paid for again.
        """
        journal, seconds = self.context.journal, self.budget.open_phase(phase)
        gone_on = any(journal.phase(later.name) for later in phases_after(phase))
        if gone_on and journal.phase(phase) not in ("", "begun"):
            self.budget.set_phase_deadline(0.0)
            return 0.0
        return seconds

    def skip(self, phase: PhaseName, why: str) -> None:
        """Pass over a phase."""
        self.outcomes[phase] = "skipped"
        self.context.journal.record(PhaseFinished(step=phase, phase=phase, outcome="skipped", detail=why))

    def reason_to_skip(self, phase: PhaseName) -> str:
        """Why no work of `phase` may begin, or an empty text. What is recorded already is taken over in any case."""
        if self.cannot_write is not None:
            return self.cannot_write.words
        if self.context.journal.phase(phase):
            return ""
        if self.budget.finish_requested:
            self.note_stop(Stop("request"))
            return "the run was asked to finish"
        if self.budget.money_is_gone:
            self.note_stop(Stop("money"))
            return "the money is spent"
        if self.budget.only_finalization_left:
            self.note_stop(Stop("time"))
            return "the time is nearly used up"
        return ""

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
        if self.cannot_write is not None:
            return True
        return self.budget.money_is_gone or self.budget.elapsed() >= self.budget.time_limit

    async def attempt(
        self, seconds: float, work: Coroutine[Any, Any, T], *parts: str
    ) -> tuple[T | None, Exception | None]:
        """The result of `work` within so many seconds, or why there is none."""
        try:
            return await self.within(seconds, work, *parts), None
        except Exception as error:
            if not isinstance(error, BudgetExceeded):
                logger.exception("%s failed: the best there is goes on", "/".join(parts))
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
                    last = HAND_OVER_SECONDS if parts[0] == "finalization" else 0.0
                    await wait(REPLAY_SECONDS if journal.takes_over(parts) else last)
        except asyncio.CancelledError:
            await _cancel(task)
            raise
        if not task.done():
            await _cancel(task)
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


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel and wait, but not for ever: a limit holds even when something does not let go."""
    task.cancel()
    _, stuck = await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    if stuck:
        logger.error("cancelled work has not ended after %g s; going on without it", CANCEL_SECONDS)
