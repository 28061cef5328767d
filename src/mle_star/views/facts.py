"""The nouns of a run's story: calls, script runs, attempts, steps and paths, who is at work, and the clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from mle_star.basics.phases import PHASES, phase_of
from mle_star.run.events import (
    AblationFinished,
    AgentFailed,
    AgentFinished,
    AnyEvent,
    BlockChosen,
    RefinementTried,
    RunResumed,
    RunStarted,
)
from mle_star.run.ledger import AttemptKind, ScriptRun

PHASE_TITLES: dict[str, str] = {phase.name: phase.heading for phase in PHASES}
SHORT_TITLES: dict[str, str] = {phase.name: phase.short for phase in PHASES}
_PATH = re.compile(r"(?:^|/)path-(\d+)(?:/|$)")


def path_of(step: str) -> int | None:
    """The refinement path that a step belongs to."""
    found = _PATH.search(step)
    return int(found[1]) if found else None


def place_of(step: str, attempt: str = "attempt", between: str = ", ") -> str:
    """`phase2/path-0/t-1/k-2` as `path 0, step 1, attempt 2`; empty where it names none of these."""
    words = {"path": "path", "t": "step", "k": attempt, "r": "round", "candidate": "candidate", "merge": "merge"}
    parts = (part.partition("-") for part in step.split("/"))
    return between.join(f"{words[name]} {number}" for name, _, number in parts if name in words and number.isdigit())


@dataclass(frozen=True)
class AgentCall:
    """One call of an agent, answered or not. `failure` says why there is no answer."""

    step: str
    agent: str
    variant: str
    cost_usd: float
    seconds: float
    input_tokens: int
    output_tokens: int
    at: datetime
    reason: str = ""
    failure: str = ""

    @classmethod
    def of(cls, event: AgentFinished | AgentFailed) -> AgentCall:
        """The call without its texts."""
        common = (event.step, event.agent.value, event.variant or "", event.cost_usd, event.seconds)
        if isinstance(event, AgentFailed):
            return cls(*common, 0, 0, event.at, event.reason, event.message)
        sent = event.input_tokens + event.cache_read_tokens + event.cache_write_tokens
        return cls(*common, sent, event.output_tokens, event.at)


@dataclass(frozen=True)
class Attempt:
    """One script that was scored by its score, whatever made it. `accepted`: it became the one to go on from."""

    kind: AttemptKind
    step: str
    label: str
    score: float | None
    accepted: bool
    at: datetime
    path: int | None = None
    note: str = ""

    @property
    def phase(self) -> str:
        """Where in the method it was made."""
        return {"refinement": "phase2", "ensemble": "phase3"}.get(self.kind, "phase1")


@dataclass
class StepStory:
    """One outer step of a path: what the ablation showed, the block that was chosen, what was tried on it."""

    path: int
    t: int
    ablation: AblationFinished | None = None
    block: BlockChosen | None = None
    tries: dict[int, RefinementTried] = field(default_factory=dict)

    @property
    def kept(self) -> RefinementTried | None:
        """The attempt that the path went on from: of those accepted, the last."""
        return next((one for _, one in sorted(self.tries.items(), reverse=True) if one.accepted), None)


@dataclass
class PathStory:
    """One refinement path. `model`: what it began with, where that is not the initial solution."""

    index: int
    model: str = ""
    steps: dict[int, StepStory] = field(default_factory=dict)
    outcome: str = ""
    detail: str = ""
    score: float | None = None

    @property
    def best_score(self) -> float | None:
        """The score that it has reached, or started from; None before anybody said."""
        if self.score is not None:
            return self.score
        for _, step in sorted(self.steps.items(), reverse=True):
            if step.kept is not None:
                return step.kept.best_score
            if step.ablation is not None:
                return step.ablation.solution_score
        return None

    def step(self, t: int) -> StepStory:
        """The outer step `t`, begun if it was not."""
        return self.steps.setdefault(t, StepStory(self.index, t))


@dataclass(frozen=True)
class Work:
    """Somebody at work: an agent waiting for its answer, or a script."""

    step: str
    what: str
    since: datetime
    limit_seconds: float | None = None


@dataclass
class Totals:
    """Sums over calls and scripts."""

    calls: int = 0
    cost_usd: float = 0.0
    call_seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    failed_calls: int = 0
    scripts: int = 0
    script_seconds: float = 0.0

    def add_call(self, call: AgentCall) -> None:
        """One more call."""
        self.calls += 1
        self.cost_usd += call.cost_usd
        self.call_seconds += call.seconds
        self.input_tokens += call.input_tokens
        self.output_tokens += call.output_tokens
        self.failed_calls += bool(call.failure)

    def add_script(self, run: ScriptRun) -> None:
        """One more script run."""
        self.scripts += 1
        self.script_seconds += run.seconds


@dataclass
class RunClock:
    """Wall-clock time at work, in all and by phase: what lies between two processes of a run does not count."""

    seconds: float = 0.0
    by_phase: dict[str, float] = field(default_factory=dict)
    phase: str = ""
    last: datetime | None = None

    def hear(self, event: AnyEvent) -> None:
        """Count the time up to this event to the phase that it ended in."""
        if (isinstance(event, RunStarted) and self.last is None) or (
            isinstance(event, RunResumed) and (self.last is None or event.at > self.last)
        ):
            self.last = event.at
        elif self.last is None or event.at <= self.last:
            return  # told again: it has been counted
        else:
            self.phase = phase_of(event.step) or self.phase
            passed = (event.at - self.last).total_seconds()
            self.seconds += passed
            self.by_phase[self.phase] = self.by_phase.get(self.phase, 0.0) + passed
            self.last = event.at
