"""What may be spent in a run: its time, the one model of it, and its money; and what tokens cost."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mle_star.data.place import read_mapping
from mle_star.errors import BudgetExceeded, ConfigError
from mle_star.models import PhaseTimeBudget, PipelineConfig
from mle_star.models.enums import ORDER, PHASES, PhaseName, phase_of, traits_of
from mle_star.run import events
from mle_star.run.events import BudgetWarning

CLOCK_SLACK = 600.0
"""Seconds between two events that need no explanation; a longer gap must be as long as the work that ended it."""
MOST_RERUN = 1 / 3
"""Running the solution once more at the end takes no more than this share of the time from the search."""
WARN_AT = 0.8
RESERVE_CALLS = 2
"""The calls that finalization may still make when the money is gone ..."""
RESERVE_SHARE = 0.05
"""... and the share of the money limit that each of them may cost."""
LATE_SECONDS = 15.0
"""How long a cancelled call may take to tell its cost before the money kept for it is free again."""
USUAL_CALLS = 2.0
"""A call may cost so many times what calls cost on average, even when its even share of the rest is less."""


class PhaseTimeExceeded(BudgetExceeded):
    """The time of a phase is used up, or too short for what would come next; that of the run is not."""


@dataclass(eq=False)
class Call:
    """A call that is being paid for. What it may cost is kept for it until it is settled."""

    cap_usd: float | None
    given_up_at: float = math.inf  # cancelled: its cost is still to come


# --- what was spent ----------------------------------------------------------------------------------------


@dataclass
class Spent:
    """Time and money of a run by its events; neither the time between its processes nor a jump of the clock counts.

    An event that comes twice changes nothing.
    """

    charges: list[tuple[str, float]] = field(default_factory=list)
    """Step and US dollars of every call."""
    by_stage: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds at work in each phase (`phase2`), each path (`phase2/path-0`), and, without a name, in the run."""
    last: dict[str, datetime] = field(default_factory=dict)
    """When each of them was last heard of in this process of the run."""
    _begun: datetime | None = None
    _heard: set[tuple[str, str, datetime]] = field(default_factory=set)

    def hear(self, event: events.AnyEvent) -> None:
        """Count the time up to an event, and its cost."""
        if (key := (event.kind, event.step, event.at)) in self._heard:
            return
        self._heard.add(key)
        if isinstance(event, (events.RunStarted, events.RunResumed)):
            self._begun, self.last = event.at, {"": event.at}
        elif self._begun is not None and event.at >= self._begun:  # earlier ones come from the run it grew out of
            for stage in _stages_of(event):
                gap = (event.at - self.last.setdefault(stage, event.at)).total_seconds()
                self.by_stage[stage] += _believable(gap, event)
                self.last[stage] = event.at if gap > 0 or gap < -CLOCK_SLACK else self.last[stage]
        if isinstance(event, (events.AgentFinished, events.AgentFailed)):
            self.charges.append((event.step, event.cost_usd))

    @property
    def seconds(self) -> float:
        """At work in all."""
        return self.by_stage.get("", 0.0)

    @property
    def usd(self) -> float:
        """The cost of all calls."""
        return sum(usd for _, usd in self.charges)


def _believable(gap: float, event: events.AnyEvent) -> float:
    """How much of the time since the event before was really spent: a clock can be set, a measured duration cannot."""
    script = event.result.duration_seconds if isinstance(event, events.ScriptFinished) else 0.0
    measured = script or vars(event).get("seconds") or 0.0
    return max(gap, 0.0) if gap <= measured + CLOCK_SLACK else measured


def _stages_of(event: events.AnyEvent) -> list[str]:
    """The run itself, the phase and the path that an event belongs to."""
    parts = event.step.split("/")
    stages = ["", parts[0]] if phase_of(parts[0]) else [""]
    return [*stages, "/".join(parts[:2])] if len(parts) > 1 and parts[1].startswith("path-") else stages


# --- what may be spent -------------------------------------------------------------------------------------


class Budget:
    """What may be spent, and what was. `clock` counts seconds; what earlier processes have `spent` is given."""

    def __init__(
        self, config: PipelineConfig, *, spent: Spent | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.spent = spent or Spent()
        self.time_limit = float(config.time_limit_seconds)
        self.finish_requested = False
        self.share_end = self.share_seconds = self.ensemble_limit = self.final_limit = self._phase_deadline = math.inf
        self.rerun_seconds = self.views_seconds = self._kept_for_later = 0.0
        self.phase: PhaseName | None = None
        self.shares = config.phase_time_budget or PhaseTimeBudget()
        self._letter = config.letter
        self._clock, self._started = clock, clock() - self.spent.seconds
        self.max_usd = config.max_budget_usd
        self.degraded = False
        self.short_of_money = False
        """Was something not begun, or ended, because the money was gone?"""
        self._reserve_calls = RESERVE_CALLS
        self._calls: list[Call] = []
        self._calls_ended = asyncio.Event()
        self._side_by_side: dict[PhaseName | None, int] = {
            "phase1": config.num_retrieved_models,
            "phase2": min(config.max_concurrent_paths or config.num_parallel_solutions, config.num_parallel_solutions),
        }
        self._warned = {"time"} if config.fills_time else set[str]()  # time that is there to be used
        self._when_spent: list[Callable[[], None]] = []

    # --- time ---

    def elapsed(self) -> float:
        """Seconds since the run began, earlier processes included."""
        return self._clock() - self._started

    @property
    def deadline(self) -> float:
        """When the running phase, or else the run, must end, in seconds since the run began."""
        return min(self.time_limit, self._phase_deadline)

    def set_phase_deadline(self, seconds_from_now: float = math.inf) -> None:
        """Give the phase that begins now its share of the time; without any, what is left of the run."""
        self._phase_deadline = self.elapsed() + seconds_from_now

    def open_phase(self, phase: PhaseName) -> float:
        """Begin `phase`: set its deadline from the shares of the search phases still to come; the seconds it has.

        Finalization begins on the reserve when the money is gone.
        Whatever the phases before used, finalization keeps its share of the whole time, and what running the solution
        again takes beyond that; time that they left over is for the search, and finalization gains nothing by it. To
        the letter all that is left is divided by the shares of all phases still to come, finalization's as well.
        Phase 1 has nothing to fall back on: at `share_end` it continues with the candidates that have a score, but as
        long as there is none it is cut off only where finalization's share begins. Phase 2 has what Phase 3 cannot use
        of its share (`ensemble_limit`).
        """
        left = max(self.time_limit - self.elapsed(), 0.0)
        shares = [float(getattr(self.shares, one.name)) for one in PHASES[ORDER[phase] : None if self._letter else -1]]
        free = left if self._letter or phase == "finalization" else max(self.spare_seconds, 0.0)
        seconds = free * shares[0] / sum(shares) if shares else free
        if phase == "phase2":
            seconds = max(seconds, free - self.ensemble_limit)
        self.phase, self.degraded = phase, phase == "finalization" and self.money_is_gone
        self.share_end, self.share_seconds = self.elapsed() + seconds, seconds
        if phase == "phase1":
            seconds = max(self.spare_seconds, 0.0)
        self.set_phase_deadline(seconds)
        self._kept_for_later = left - seconds
        return seconds

    def even_share(self, scripts: float) -> float:
        """What each of so many scripts has of the running phase's share, half of it at most; 0 between phases."""
        return 0.0 if math.isinf(self.share_seconds) else self.share_seconds / max(scripts, 2.0)

    @property
    def finalize_now(self) -> bool:
        """Should loops end after the iteration they are in? (Money that is gone ends them at the next call.)"""
        if self.finish_requested or self.elapsed() >= self.share_end:
            return True
        threshold = min(max(0.1 * self.time_limit, 300.0), 0.5 * self.time_limit)
        if self._kept_for_later and not self._letter:  # deadlines keep the time of later phases: none stops half way
            threshold = min(threshold, self._kept_for_later)
        return self.time_limit - self.elapsed() < threshold

    @property
    def spare_seconds(self) -> float:
        """Seconds until finalization's share of the whole time begins: when none are left, nothing else may begin."""
        rerun = min(self.rerun_seconds, MOST_RERUN * self.time_limit)  # which may take more than that share
        share = min(self.shares.finalization * self.time_limit, self.final_limit)
        return self.time_limit - max(share, rerun) - self.views_seconds - self.elapsed()

    def out_of_time(self) -> BudgetExceeded:
        """What to raise when the deadline has passed."""
        used, allowed = round(self.elapsed(), 1), round(self.deadline, 1)
        share = "" if allowed >= self.time_limit else f"; {self.phase or 'this part'} had until {allowed:g} s"
        words = f"time spent: {used:g} of {self.time_limit:g} s{share}"
        over = BudgetExceeded if used >= self.time_limit else PhaseTimeExceeded
        return over(limit="time", used=used, allowed=allowed, message=words)

    # --- money ---

    def charge(self, usd: float, step: str) -> None:
        """Add the cost of one call."""
        self.spent.charges.append((step, usd))

    @property
    def free_usd(self) -> float:
        """What is neither spent nor kept for a call under way."""
        if self.max_usd is None:
            return math.inf
        return max(self.max_usd - self.spent.usd - sum(call.cap_usd or 0.0 for call in self._calls), 0.0)

    @property
    def _usual_usd(self) -> float:
        return self.spent.usd / max(sum(usd > 0 for _, usd in self.spent.charges), 1)

    def _cap(self, *, alone: bool) -> float | None:
        """What a call may cost that begins now: an even share for each that may be under way beside it.

        Caps are taken from what is free, so those of all calls under way never add up to more than what is left.
        """
        if self.max_usd is None:
            return None
        if self.degraded:
            return RESERVE_SHARE * self.max_usd
        at_once = 1 if alone else self._side_by_side.get(self.phase, 1)
        share = self.free_usd / max(at_once - len(self._calls), 1)
        return min(max(share, USUAL_CALLS * self._usual_usd), self.free_usd)

    @property
    def money_is_gone(self) -> bool:
        """Is the money limit reached?"""
        return self.max_usd is not None and self.spent.usd >= self.max_usd

    @contextmanager
    def when_spent(self, act: Callable[[], None]) -> Iterator[None]:
        """Call `act` whenever a call ends, inside this block, and the money is gone."""
        self._when_spent.append(act)
        try:
            yield
        finally:
            self._when_spent.remove(act)

    def after_call(self) -> None:
        """A call was charged and recorded: when the money is gone, stop the work under way."""
        if self.money_is_gone:
            for act in tuple(self._when_spent):
                act()

    # --- limits ---

    async def wait_for_money(self) -> None:
        """Wait while calls under way hold so much that one more could not be paid: most give some of it back."""
        while self._calls and not (self.degraded or self.money_is_gone) and self.free_usd <= self._usual_usd:
            self._calls_ended.clear()
            rest = min(call.given_up_at for call in self._calls) + LATE_SECONDS - self._clock()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._calls_ended.wait(), None if math.isinf(rest) else max(rest, 0.0))
            self._calls = [call for call in self._calls if self._clock() - call.given_up_at < LATE_SECONDS]

    def open_call(self, *, alone: bool = False) -> Call:
        """A call is about to be paid for: raise `BudgetExceeded`, or keep money for it; all, when it runs `alone`."""
        self.check()
        if self.degraded:
            if self._reserve_calls <= 0:
                raise self._no_money()
            self._reserve_calls -= 1
        call = Call(self._cap(alone=alone))
        self._calls.append(call)
        return call

    def open_script(self) -> None:
        """A script is about to run: raise `BudgetExceeded` when the money is gone and this is not the last phase."""
        if self.money_is_gone and self.phase != "finalization":
            raise self._no_money()

    def settle(self, call: Call, usd: float, step: str) -> None:
        """The call of a step is over and has cost `usd`."""
        if call in self._calls:
            self._calls.remove(call)
        self.charge(usd, step)
        self._calls_ended.set()

    def give_up(self, call: Call) -> None:
        """The call was cancelled; what it has cost is settled as soon as it is known."""
        if call in self._calls:
            call.given_up_at = self._clock()
            self._calls_ended.set()

    def check(self) -> None:
        """Raise `BudgetExceeded` when no new work may be opened. On the reserve, work that costs nothing continues."""
        if (self.money_is_gone and not self.degraded) or self.elapsed() >= self.deadline:
            raise self.over()

    def over(self) -> BudgetExceeded:
        """What to raise when work was cut off by a limit."""
        return self._no_money() if self.money_is_gone and not self.degraded else self.out_of_time()

    def _no_money(self) -> BudgetExceeded:
        self.short_of_money = True
        return BudgetExceeded(limit="money", used=self.spent.usd, allowed=self.max_usd or 0.0)

    def new_warnings(self) -> list[BudgetWarning]:
        """The limits of which 80 % is spent since the last time this was asked."""
        spent = [BudgetWarning(limit="time", used=self.elapsed(), allowed=self.time_limit)]
        if self.max_usd is not None:
            spent.append(BudgetWarning(limit="money", used=self.spent.usd, allowed=self.max_usd))
        due = [one for one in spent if one.used >= WARN_AT * one.allowed and one.limit not in self._warned]
        self._warned.update(one.limit for one in due)
        return due


# --- prices ------------------------------------------------------------------------------------------------

CHARACTERS_PER_TOKEN = 3.5
SEARCH_USD = 0.01
CACHE_READ, CACHE_WRITE, CACHE_WRITE_HOUR = 0.1, 1.25, 2.0
"""Tokens from the cache and into it, as parts of the price of input; what is kept for an hour costs more."""


class Price(NamedTuple):
    """US dollars for a million tokens."""

    input: float
    output: float


UNKNOWN = Price(4, 20)
"""What the CLI charges for a name that it does not know."""


def price_of(model: str) -> Price | None:
    """The list price of a model, or None when the name says nothing."""
    if traits_of(model).is_embedded:
        return Price(0, 0)
    known = _read_once(Path(__file__).with_name("prices.yaml"))  # by a part of the model's name
    return next((price for part, price in known.items() if part in model.lower()), None)


def read_prices(path: Path) -> dict[str, Price]:
    """The user's prices: a YAML file of `name: [input, output]`, US dollars for a million tokens."""
    prices = {}
    for name, pair in read_mapping(path).items():
        good = isinstance(pair, list) and len(pair) == 2
        if not good or not all(type(one) in (int, float) and 0 <= one < math.inf for one in pair):
            raise ConfigError(f"{path}: {name}: expected [input, output], in US dollars per million tokens")
        prices[name] = Price(*(float(one) for one in pair))
    return prices


_read_once = cache(read_prices)
"""List prices serve the forecast, and calls that end without saying what they have cost."""


def usage_cost(usage: Mapping[str, Any], price: Price) -> float:
    """US dollars for the usage of one message, as the Messages API counts it."""
    kinds = ("input", "cache_read_input", "cache_creation_input", "output")
    new, read, written, output = (_number(usage, f"{kind}_tokens") for kind in kinds)
    hour = min(_number(usage, "cache_creation", "ephemeral_1h_input_tokens"), written)
    sent = new + CACHE_READ * read + CACHE_WRITE * (written - hour) + CACHE_WRITE_HOUR * hour
    searches = SEARCH_USD * _number(usage, "server_tool_use", "web_search_requests")
    return (sent * price.input + output * price.output) / 1e6 + searches


def _number(usage: Any, *path: str) -> float:
    """A number that may stand some levels down; 0 where there is none."""
    for name in path:
        usage = usage.get(name) if isinstance(usage, Mapping) else None
    return float(usage or 0)
