"""How a run is asked to end, by a signal, another process or its clock; why it ended early; how it can be watched."""

import asyncio
import errno
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

from mle_star.errors import BudgetExceeded
from mle_star.models import StopReason
from mle_star.run import events
from mle_star.run.budget import Budget
from mle_star.run.folder import callable_name, take_request
from mle_star.run.journal import Journal

POLL_SECONDS = 0.5
OUTAGE_CALLS = 5
"""So many calls in a row that did not reach the model, and the run finishes with what it has."""
OUTAGE_REASONS = {"transport", "auth", "rate_limit"}


class RunControl:
    """Stop handling of one run. `finish` lets loops end after their iteration; `stop` cancels the run's task."""

    def __init__(self, budget: Budget, journal: Journal, run_dir: Path) -> None:
        self._budget, self._journal, self._run_dir = budget, journal, run_dir
        self._task: asyncio.Task[Any] | None = None
        self._unreachable, self._last_failure, self._since = 0, "", datetime.now(timezone.utc)
        self.stopped_by: str | None = None
        self.request: Stop | None = None
        """Who asked the run to finish."""
        take_request(run_dir)  # what was asked of an earlier process is past

    def finish(self, source: str, reason: StopReason = "request") -> None:
        """Finish with the best so far; asked again, stop."""
        if self._budget.finish_requested:
            self.stop(source)
            return
        self._budget.finish_requested = True
        self.request = Stop(reason, source.removeprefix("an outage: "))
        self._journal.record(events.FinishRequested(source=source))

    def stop(self, source: str) -> None:
        """Stop at once; the journal keeps all that was done."""
        if self.stopped_by is not None:
            return
        self.stopped_by = source
        self._journal.record(events.FinishRequested(source=source, now=True))
        if self._task is not None:
            self._task.cancel()

    def hear(self, event: events.AnyEvent) -> None:
        """Notice when the model cannot be reached any more: further calls would only wait."""
        if isinstance(event, events.AgentFinished):
            self._unreachable = 0
        elif isinstance(event, events.AgentFailed) and event.at >= self._since:  # what is only replayed is past
            self._unreachable = self._unreachable + 1 if event.reason in OUTAGE_REASONS else 0
            self._last_failure = event.message
            if self._unreachable >= OUTAGE_CALLS and not self._budget.finish_requested:
                self.finish(f"an outage: {event.message}", "outage")

    @property
    def cut_off(self) -> "Stop | None":
        """Did the last call not reach the model?"""
        return Stop("outage", self._last_failure) if self._unreachable else None

    def warn(self) -> None:
        """Say so when 80 % of a limit is spent."""
        for warning in self._budget.new_warnings():
            self._journal.record(warning)

    @contextmanager
    def watching(self, *, signals: bool) -> Iterator[None]:
        """Heed the clock, the control file and, when wanted, the signals while the current task runs the pipeline."""
        self._task = asyncio.current_task()
        watcher = asyncio.create_task(self._watch(), name="run-control")
        before = self._listen_to_signals() if signals else {}
        try:
            yield
        finally:
            watcher.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _watch(self) -> None:
        while True:
            self.warn()
            request = take_request(self._run_dir)
            if request == "finish" and not self._budget.finish_requested:
                self.finish("control file")
            elif request == "stop":
                self.stop("control file")
            await asyncio.sleep(POLL_SECONDS)

    def _listen_to_signals(self) -> dict[signal.Signals, Any]:
        """Handlers for the main thread, where elsewhere the caller's own stand; those that were there before."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        loop = asyncio.get_running_loop()
        acts: dict[signal.Signals, Callable[[], None]] = {signal.SIGINT: self._interrupted}
        acts[signal.SIGTERM] = lambda: self.stop("SIGTERM")
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # not under nohup
            acts[signal.SIGHUP] = lambda: self.stop("the end of its terminal")

        def handle(number: int, frame: FrameType | None) -> None:
            """Leave the work to the event loop: the journal may be in the middle of a line."""
            loop.call_soon_threadsafe(acts[signal.Signals(number)])

        return {number: signal.signal(number, handle) for number in acts}

    def _interrupted(self) -> None:
        self.finish("Ctrl-C")
        if self.stopped_by is not None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third one ends the process, whatever it is doing


# --- why a run ended early ---------------------------------------------------------------------------------

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_STOPS: dict[str, tuple[str, str]] = {
    "time": ("the time limit", "`mle-star resume {run} --time-limit LIMIT` continues with more time"),
    "money": ("the money limit", "`mle-star resume {run} --max-budget USD` continues with more money"),
    "disk": ("a full disk", "free some space, then `mle-star resume {run}` continues"),
    "journal": ("a journal that cannot be written", "make {run} writable, then `mle-star resume {run}` continues"),
    "outage": ("an outage", "when the model can be reached again, `mle-star resume {run}` continues"),
    "request": ("request", "`mle-star resume {run}` continues"),
}
"""By reason, what stopped a run, and what to do before it continues."""


class Stop(NamedTuple):
    """What ended a run before its plan was done."""

    reason: StopReason
    detail: str = ""

    @property
    def words(self) -> str:
        """`stopped by the time limit`."""
        return f"stopped by {_STOPS[self.reason][0]}"

    def explain(self, run_dir: Path) -> str:
        """The words, the detail, and how the run continues."""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.words}{detail}; {_STOPS[self.reason][1].format(run=callable_name(run_dir))}"


def stop_of(error: BaseException) -> Stop | None:
    """What an error that left a phase means for the whole run; None when it is that phase's own."""
    if isinstance(error, BudgetExceeded) and error.limit in _STOPS:
        return Stop(cast(StopReason, error.limit), str(error))
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return Stop("disk", str(error))
    return None


# --- the state of a run, read from outside ----------------------------------------------------------------


@dataclass
class PipelineState:
    """The state of a run, to be read from outside: make one, pass it to `run_pipeline`, read it at any time."""

    current_phase: str = "phase1"
    phase2_path_statuses: list[str] = field(default_factory=list)
    best_score_so_far: float | None = None
    agent_call_count: int = 0
    hardware: dict[str, Any] = field(default_factory=dict)
    run_dir: Path | None = None
    _budget: Budget | None = field(default=None, repr=False)

    @property
    def elapsed_seconds(self) -> float:
        """Wall-clock time of the run so far, earlier processes included."""
        return 0.0 if self._budget is None else self._budget.elapsed()

    @property
    def accumulated_cost_usd(self) -> float:
        """Money spent so far."""
        return 0.0 if self._budget is None else self._budget.spent.usd

    def watch(self, budget: Budget, run_dir: Path, hardware: dict[str, Any]) -> None:
        """Start with this run."""
        self.current_phase, self.best_score_so_far, self.agent_call_count = "phase1", None, 0
        self.phase2_path_statuses = []
        self.hardware, self.run_dir, self._budget = hardware, run_dir, budget

    def hear(self, event: events.AnyEvent) -> None:
        """Follow the run."""
        if isinstance(event, events.PhaseStarted) and event.path is None:
            self.current_phase = event.phase
        elif isinstance(event, (events.AgentFinished, events.AgentFailed)):
            self.agent_call_count += 1
        elif isinstance(event, events.BestImproved):
            self.best_score_so_far = event.score
        elif isinstance(event, events.RunFinished):
            self.current_phase = "complete"
