"""A campaign on paper: many runs on 1, 8 and 64 machines, how long it takes, and how well the slots are used.

`python benchmarks/campaign.py [--tasks 75] [--seeds 3] [--slots 2] [--from RUN ...]`; exit code 1: a target is missed.

Each run is the method's order of calls and scripts with the paper's numbers: calls take no slot, a script takes one,
paths run side by side, everything else waits for what comes before. Durations are drawn from those in the journals of
`--from`, else from a distribution with the medians below; each task has a scale of its own, so that some take ten times
as long as others. A free slot goes to the run that has had fewest scripts, as `execution/executors.py` has it.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mle_star.models import PipelineConfig
from mle_star.run.events import AgentFinished, ScriptFinished
from mle_star.run.folder import RunFolder
from mle_star.run.journal import read_journal

CONFIG = PipelineConfig()
CALL_SECONDS, SCRIPT_SECONDS = 20.0, 240.0
REPAIRS = 1 / 8
MACHINES = (1, 8, 64)
LEAST_USE, MOST_OVER_BOUND = 0.8, 1.25

Draw = Callable[[random.Random], float]


@dataclass(frozen=True)
class Step:
    """One thing to wait for: a call, or a script that needs a slot."""

    seconds: float
    is_script: bool


Chain = list[Step]
Stage = list[Chain]
"""Chains that run side by side; the next stage begins when all have ended."""


def drawn_from(seconds: list[float], median: float) -> Draw:
    """Measured durations as they are, or a distribution with a long tail."""
    if seconds:
        return lambda chance: chance.choice(seconds)
    return lambda chance: median * chance.lognormvariate(0.0, 0.5)


def stages_of(chance: random.Random, call: Draw, script: Draw, scale: float) -> list[Stage]:
    """A run, in the method's order (docs/architecture.md), with repairs where scripts fail."""
    m, t, k = CONFIG.num_retrieved_models, CONFIG.outer_loop_steps, CONFIG.inner_loop_steps

    def calls(count: int) -> Chain:
        return [Step(call(chance), False) for _ in range(count)]

    def tried() -> Chain:
        chain = [Step(scale * script(chance), True)]
        while chance.random() < REPAIRS:
            chain += [*calls(1), Step(scale * script(chance), True)]
        return chain

    def path() -> Chain:
        chain: Chain = []
        for _ in range(t):
            chain += [*calls(1), *tried(), *calls(2)]
            for attempt in range(k):
                chain += [*calls(1 if attempt == 0 else 2), *tried(), *calls(1)]
        return chain

    return [
        [calls(1)],
        [[*calls(2), *tried()] for _ in range(m)],
        [[step for _ in range(m - 1) for step in (*calls(2), *tried())] + calls(2)],
        [path() for _ in range(CONFIG.num_parallel_solutions)],
        [[step for _ in range(CONFIG.ensemble_rounds) for step in (*calls(2), *tried(), *calls(1))]],
        [[*calls(4), *tried()]],
    ]


def length(stages: list[Stage]) -> float:
    """The seconds that a run takes with every slot at its command."""
    return sum(max(sum(step.seconds for step in chain) for chain in stage) for stage in stages)


class Simulation:
    """The clock, the slots, and who waits for one."""

    def __init__(self, slots: int) -> None:
        self.free, self.now, self.busy = slots, 0.0, 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._waiting: list[tuple[int, int, Step, Callable[[], None]]] = []
        self._order: Iterator[int] = itertools.count()
        self._had: Counter[int] = Counter()

    def run(self, campaign: list[list[Stage]]) -> float:
        """The wall clock of all runs together."""
        for run, stages in enumerate(campaign):
            self._stage(run, stages, 0)
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()
            while self.free and self._waiting:
                _, _, step, then = heapq.heappop(self._waiting)
                self.free -= 1
                self.busy += step.seconds
                self._after(step.seconds, lambda then=then: self._release(then))  # type: ignore[misc]
        return self.now

    def _release(self, then: Callable[[], None]) -> None:
        self.free += 1
        then()

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), then))

    def _stage(self, run: int, stages: list[Stage], number: int) -> None:
        if number == len(stages):
            return
        open_chains = len(stages[number])

        def ended() -> None:
            nonlocal open_chains
            open_chains -= 1
            if not open_chains:
                self._stage(run, stages, number + 1)

        for chain in stages[number]:
            self._chain(run, chain, 0, ended)

    def _chain(self, run: int, chain: Chain, number: int, ended: Callable[[], None]) -> None:
        if number == len(chain):
            self._after(0.0, ended)
            return
        step = chain[number]

        def then() -> None:
            self._chain(run, chain, number + 1, ended)

        if step.is_script:
            heapq.heappush(self._waiting, (self._had[run], next(self._order), step, then))
            self._had[run] += 1
            self._after(0.0, lambda: None)
        else:
            self._after(step.seconds, then)


def measured(runs: list[Path]) -> tuple[list[float], list[float]]:
    """The seconds of calls and scripts in the journals of runs."""
    calls, scripts = [], []
    for run in runs:
        for event in read_journal(RunFolder(run).journal):
            if isinstance(event, AgentFinished):
                calls.append(event.seconds)
            elif isinstance(event, ScriptFinished) and not event.result.cached:
                scripts.append(event.result.duration_seconds)
    return calls, scripts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=75)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2, help="scripts that one machine runs at once")
    parser.add_argument("--from", dest="runs", type=Path, nargs="*", default=[], help="runs to draw durations from")
    words = parser.parse_args()
    calls, scripts = measured(words.runs)
    call, script = drawn_from(calls, CALL_SECONDS), drawn_from(scripts, SCRIPT_SECONDS)
    chance = random.Random(0)
    scales = [min(max(chance.lognormvariate(0.0, 0.6), 0.2), 3.0) for _ in range(words.tasks)]
    campaign = [stages_of(chance, call, script, scale) for scale in scales for _ in range(words.seeds)]
    steps = [step for stages in campaign for stage in stages for chain in stage for step in chain]
    scripted = [step.seconds for step in steps if step.is_script]
    print(f"{len(campaign)} runs: {len(steps) - len(scripted)} calls, {len(scripted)} scripts, median "
          f"{statistics.median(scripted):.0f} s, {sum(scripted) / 3600:.0f} slot hours; the longest run alone takes "
          f"{max(map(length, campaign)) / 3600:.1f} h")  # fmt: skip
    print(f"{'machines':>8} {'slots':>6} {'wall clock':>11} {'lower bound':>12} {'ratio':>6} {'use of slots':>13}")
    missed = False
    for machines in MACHINES:
        slots = machines * words.slots
        simulation = Simulation(slots)
        took = simulation.run(campaign)
        bound = max(sum(scripted) / slots, max(map(length, campaign)))
        ratio, use = took / bound, simulation.busy / (slots * took)
        met = ratio <= MOST_OVER_BOUND and use >= LEAST_USE
        missed |= not met
        print(f"{machines:>8} {slots:>6} {took / 3600:>9.1f} h {bound / 3600:>10.1f} h {ratio:>6.2f} {use:>12.0%} "
              f"{'ok' if met else 'MISSED'}")  # fmt: skip
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
