"""The one model of time: what is left of the run and of a phase, what a script may take, how long the plan takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from mle_star.errors import BudgetExceeded
from mle_star.models import PhaseTimeBudget, PipelineConfig
from mle_star.models.phases import ORDER, PHASES, PhaseName

SHORTEST_LIMIT = 120.0
"""A script may take two minutes, however quick the solution is, if its phase has the time."""
TIMES_MEASURED = 10.0
"""A new script may take ten times as long as the solution it starts from."""
SHARE_OF_LEFT = 0.5
"""No script may take more than half of what is left of its phase ..."""
SHARE_OF_FIRST = 0.75
"""... three quarters before anything was measured: then there is nothing to fall back on ..."""
ALWAYS_ENOUGH = 2.0
"""... but twice what the solution takes, as long as the phase lasts."""
ABLATION_RUNS = 4
"""A study runs the solution and up to three variants of it."""
ABLATION_SECONDS = 600.0
"""A study may take ten minutes in a long run, however quick the solution is."""
MOST_AGAIN = 1 / 3
"""Running the solution once more at the end takes no more than this share of the time from the search."""


# --- scripts -----------------------------------------------------------------------------------------------


def script_limit(
    *, left: float, measured: float | None = None, even_share: float = 0.0, explicit: float | None = None
) -> float:
    """Seconds that a script may take when its phase has `left` of them, by what the current solution was `measured` at.

    `even_share` is what the script would have if all that is planned for its phase took equally long; an `explicit`
    limit wins over everything but the end of the phase.
    """
    if explicit is not None:
        return min(explicit, left)
    if measured is None:
        return min(max(SHORTEST_LIMIT, even_share), left * SHARE_OF_FIRST)
    wanted = max(SHORTEST_LIMIT, even_share, TIMES_MEASURED * measured)
    return min(wanted, max(left * SHARE_OF_LEFT, ALWAYS_ENOUGH * measured), left)


def ablation_limit(
    config: PipelineConfig, *, left: float, measured: float | None = None, explicit: float | None = None
) -> float:
    """Seconds that an ablation study may take: its variants at the solution's `measured` pace, with time to spare.

    A solution that is quick, or was not measured, has what the specification says: half of an even share per step, ten
    minutes at most. To the letter every solution has that, as far as the time goes.
    """
    specified = min(config.time_limit_seconds / (config.outer_loop_steps * 2), ABLATION_SECONDS)
    if config.letter:
        return min(specified, left)
    if explicit is not None:
        return min(explicit, left)
    return min(max(specified, ALWAYS_ENOUGH * ABLATION_RUNS * (measured or 0.0)), left * SHARE_OF_LEFT)


# --- the plan ----------------------------------------------------------------------------------------------


def critical_steps(config: PipelineConfig) -> dict[str, tuple[float, float]]:
    """By phase, the calls and script runs that come one after another; what runs side by side counts once."""
    m, t, k = config.num_retrieved_models, config.outer_loop_steps, config.inner_loop_steps
    paths = config.num_parallel_solutions
    slots = config.max_concurrent_scripts or paths
    at_once = min(config.max_concurrent_paths or paths, paths)
    waves = math.ceil(paths / at_once)
    crowding = max(1.0, at_once / slots)
    critical: dict[str, tuple[float, float]] = {
        "phase1": (3 + 2 * (m - 1) + 2, math.ceil(m / slots) + (m - 1)),
        "phase2": (waves * t * (3 + 3 * k - 1), waves * crowding * t * (1 + k)),
        "phase3": (3 * config.ensemble_rounds, config.ensemble_rounds),
        "finalization": (4, 1),
    }
    if paths == 1:
        del critical["phase3"]
    return critical


def plan_seconds(
    config: PipelineConfig, call: float, script: float, *, left: Mapping[str, float] | None = None
) -> dict[str, float]:
    """By phase, the seconds of what comes one after another; `left` is the share of each that is still to come."""
    return {
        phase: (1.0 if left is None else left.get(phase, 0.0)) * (calls * call + scripts * script)
        for phase, (calls, scripts) in critical_steps(config).items()
    }


# --- the run -----------------------------------------------------------------------------------------------


class PhaseClock:
    """The time of a run and of its phases. `clock` counts seconds; those of earlier processes are given."""

    def __init__(
        self, config: PipelineConfig, *, spent_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.time_limit = float(config.time_limit_seconds)
        self.finish_requested = False
        self.share_end, self.share_seconds = math.inf, math.inf
        self.again_seconds = 0.0
        self.phase: PhaseName | None = None
        self._letter, self._shares = config.letter, config.phase_time_budget or PhaseTimeBudget()
        self._clock, self._started = clock, clock() - spent_seconds
        self._phase_deadline: float | None = None
        self._kept_for_later = 0.0

    def elapsed(self) -> float:
        """Seconds since the run began, earlier processes included."""
        return self._clock() - self._started

    @property
    def deadline(self) -> float:
        """When the running phase, or else the run, must end, in seconds since the run began."""
        return self.time_limit if self._phase_deadline is None else min(self.time_limit, self._phase_deadline)

    def remaining_seconds(self) -> float:
        """Seconds until the running phase, or else the run, must end."""
        return self.deadline - self.elapsed()

    def set_phase_deadline(self, seconds_from_now: float | None) -> None:
        """Give the phase that begins now its share of the time."""
        self._phase_deadline = None if seconds_from_now is None else self.elapsed() + seconds_from_now

    def open_phase(self, phase: PhaseName) -> float:
        """Begin `phase`: set its deadline from the shares of the search phases still to come; the seconds it has.

        Whatever the phases before used, finalization keeps its share of the whole time, and what running the solution
        again takes beyond that; time that they left over is for the search, and finalization gains nothing by it.
        Phase 1 has nothing to fall back on: at `share_end` it goes on with the candidates that have a score, but as
        long as there is none it is cut off only where finalization's share begins.
        """
        left = max(self.time_limit - self.elapsed(), 0.0)
        shares = [float(getattr(self._shares, one.name)) for one in PHASES[ORDER[phase] : -1]]
        free = left if phase == "finalization" else max(self.spare_seconds, 0.0)
        seconds = free * shares[0] / sum(shares) if shares else free
        self.phase = phase
        self.share_end, self.share_seconds = self.elapsed() + seconds, seconds
        if phase == "phase1":
            seconds = free
        self.set_phase_deadline(seconds)
        self._kept_for_later = left - seconds
        return seconds

    def even_share(self, scripts: float) -> float:
        """What each of so many scripts has of the running phase's share, half of it at most; 0 between phases."""
        return 0.0 if math.isinf(self.share_seconds) else self.share_seconds / max(scripts, 2.0)

    @property
    def finalize_now(self) -> bool:
        """Should loops end after the iteration they are in? (Money that is gone ends them at the next call.)"""
        if self.finish_requested:
            return True
        if self.elapsed() >= self.share_end:
            return True
        threshold = min(max(0.1 * self.time_limit, 300.0), 0.5 * self.time_limit)
        if (
            self._kept_for_later and not self._letter
        ):  # deadlines keep the time of later phases, so a short run need not stop half way
            threshold = min(threshold, self._kept_for_later)
        return self.time_limit - self.elapsed() < threshold

    @property
    def only_finalization_left(self) -> bool:
        """Is there no time for anything but finalization?"""
        return self.spare_seconds <= 0

    @property
    def spare_seconds(self) -> float:
        """Seconds until finalization's share of the whole time begins."""
        return self.time_limit * (1 - self._shares.finalization) - self._extra_seconds - self.elapsed()

    @property
    def _extra_seconds(self) -> float:
        """What running the solution again (`again_seconds`) takes beyond finalization's share of the time."""
        wanted = min(self.again_seconds, MOST_AGAIN * self.time_limit)
        return max(wanted - self._shares.finalization * self.time_limit, 0.0)

    def out_of_time(self) -> BudgetExceeded:
        """What to raise when the deadline has passed."""
        used, allowed = round(self.elapsed(), 1), round(self.deadline, 1)
        share = "" if allowed >= self.time_limit else f"; {self.phase or 'this part'} had until {allowed:g} s"
        words = f"time spent: {used:g} of {self.time_limit:g} s{share}"
        return BudgetExceeded(limit="time", used=used, allowed=allowed, message=words)
