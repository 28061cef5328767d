"""What a run's story consists of: attempts, steps and paths, who is at work, and sums."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from mle_star.models import AgentType, ScoreChange
from mle_star.models.enums import PHASES
from mle_star.run import events
from mle_star.run.ledger import AttemptKind, ScriptRun

PHASE_TITLES: dict[str, str] = {phase.name: phase.heading for phase in PHASES}
SHORT_TITLES: dict[str, str] = {phase.name: phase.short for phase in PHASES}
LABELS: dict[AttemptKind, tuple[str, str, str]] = {
    "candidate": ("candidate {0.index} ({0.model_name})", "error", "chosen"),
    "merge": ("merge {0.index} ({0.reference_model})", "reason", "merged in"),
    "data": ("all data used", "", "used"),
    "refinement": ("path {0.path}, step {0.t}, attempt {0.k}", "plan", "best of its path so far"),
    "ensemble": ("ensemble round {0.r}", "plan", "best ensemble so far"),
}
"""What an attempt is called, the field of its event that tells more about it, and what it is once it is accepted."""

Call = events.AgentFinished | events.AgentFailed


def path_of(step: str) -> int | None:
    """The refinement path that a step belongs to."""
    found = re.search(r"(?:^|/)path-(\d+)(?:/|$)", step)
    return int(found[1]) if found else None


def place_of(step: str, attempt: str = "attempt", between: str = ", ") -> str:
    """`phase2/path-0/t-1/k-2` as `path 0, step 1, attempt 2`; empty where it names none of these."""
    words = {"path": "path", "t": "step", "k": attempt, "r": "round", "candidate": "candidate", "merge": "merge"}
    parts = (part.partition("-") for part in step.split("/"))
    return between.join(f"{words[name]} {number}" for name, _, number in parts if name in words and number.isdigit())


def name_of(agent: AgentType) -> str:
    """What an agent is called."""
    return agent.value.replace("ens_", "ensemble ")


class ScoredAttempt(NamedTuple):
    """One script that was scored, whatever made it.

    `accepted`: it became the one to continue from, on its own path or in its own phase. `parents` are the steps of the
    attempts that it grew out of.
    """

    kind: AttemptKind
    step: str
    label: str
    score: float | None
    accepted: bool
    at: datetime
    path: int | None
    note: str
    parents: tuple[str, ...]
    change: ScoreChange | None = None

    @property
    def outcome(self) -> str:
        """What came of it, in a few words."""
        return "failed" if self.score is None else LABELS[self.kind][2] if self.accepted else "not better"

    @property
    def link(self) -> str:
        """The id of the element about it in the report."""
        return self.step.replace("/", "-")

    @property
    def colour(self) -> str:
        """The class that colours it: by its path."""
        return "c-main" if self.path is None else f"c{self.path % 8}"


@dataclass
class StepStory:
    """One outer step of a path: what the ablation showed, the block that was chosen, what was tried on it."""

    path: int
    t: int
    ablation: events.AblationFinished | None = None
    block: events.BlockChosen | None = None
    tries: dict[int, events.RefinementTried] = field(default_factory=dict)

    @property
    def kept(self) -> events.RefinementTried | None:
        """The attempt from which the path continued: of those accepted, the last."""
        return next((one for _, one in sorted(self.tries.items(), reverse=True) if one.accepted), None)


@dataclass
class PathStory:
    """One refinement path. `model`: what it began with, where that is not the initial solution."""

    index: int
    model: str = ""
    steps: dict[int, StepStory] = field(default_factory=dict)
    end: events.PhaseFinished | None = None

    @property
    def best_score(self) -> float | None:
        """The score that it has reached, or started from; None before anybody said."""
        if self.end is not None and self.end.score is not None:
            return self.end.score
        for _, step in sorted(self.steps.items(), reverse=True):
            if step.kept is not None:
                return step.kept.best_score
            if step.ablation is not None:
                return step.ablation.solution_score
        return None

    def step(self, t: int) -> StepStory:
        """The outer step `t`, begun if it was not."""
        return self.steps.setdefault(t, StepStory(self.index, t))


class Work(NamedTuple):
    """Who is at work: an agent waiting for its answer, or a script."""

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

    def add(self, one: Call | ScriptRun) -> None:
        """One more call or script."""
        if isinstance(one, ScriptRun):
            self.scripts += 1
            self.script_seconds += one.seconds
            return
        self.calls += 1
        self.cost_usd += one.cost_usd
        self.call_seconds += one.seconds
        if isinstance(one, events.AgentFailed):
            self.failed_calls += 1
        else:
            self.input_tokens += one.input_tokens + one.cache_read_tokens + one.cache_write_tokens
            self.output_tokens += one.output_tokens
