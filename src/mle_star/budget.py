"""Time and money of a run as one ledger."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from mle_star.errors import BudgetExceeded
from mle_star.models import PipelineConfig

WARN_AT = 0.8


class Budget:
    """What may be spent, what was spent, and by whom. `clock` counts seconds; earlier processes' share is given."""

    def __init__(
        self,
        config: PipelineConfig,
        *,
        spent_seconds: float = 0.0,
        spent_usd: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.time_limit = float(config.time_limit_seconds)
        self.max_usd = config.max_budget_usd
        self.spent_usd = spent_usd
        self.cost_by_phase: dict[str, float] = defaultdict(float)
        self.cost_by_path: dict[str, float] = defaultdict(float)
        self.finish_requested = False
        self.active_calls = 0
        self._clock = clock
        self._started = clock() - spent_seconds
        self._phase_deadline: float | None = None

    def elapsed(self) -> float:
        """Seconds since the run began, earlier processes included."""
        return self._clock() - self._started

    def remaining_seconds(self) -> float:
        """Seconds until the running phase, or else the run, must end."""
        whole = self.time_limit - self.elapsed()
        if self._phase_deadline is None:
            return whole
        return min(whole, self._phase_deadline - self.elapsed())

    def set_phase_deadline(self, seconds_from_now: float | None) -> None:
        """Give the phase that begins now its share of the time."""
        self._phase_deadline = None if seconds_from_now is None else self.elapsed() + seconds_from_now

    def charge(self, usd: float, *, phase: str, path: str = "") -> None:
        """Add the cost of one call."""
        self.spent_usd += usd
        self.cost_by_phase[phase] += usd
        if path:
            self.cost_by_path[path] += usd

    def call_cap(self) -> float | None:
        """The most that one call may cost now: an even share of what is left."""
        if self.max_usd is None:
            return None
        return max(self.max_usd - self.spent_usd, 0.0) / max(self.active_calls, 1)

    @property
    def finalize_now(self) -> bool:
        """Should loops end after the iteration they are in?"""
        threshold = min(max(0.1 * self.time_limit, 300.0), 0.5 * self.time_limit)
        return self.finish_requested or self.time_limit - self.elapsed() < threshold

    def check(self) -> None:
        """Raise `BudgetExceeded` when no new work may be opened."""
        if self.max_usd is not None and self.spent_usd >= self.max_usd:
            raise BudgetExceeded(limit="money", used=self.spent_usd, allowed=self.max_usd)
        if self.remaining_seconds() <= 0:
            raise BudgetExceeded(limit="time", used=self.elapsed(), allowed=self.time_limit)
