"""What a running phase can reach: agents, executor, budget, journal, its directory and its place in the run.

The functions of the specification have no client parameter; they call `current_run()`. The orchestrator enters a
context, each refinement path its own (`path_context`), and every loop narrows the scope that steps are named by.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mle_star.basics.texts import digest_of
from mle_star.errors import MleStarError
from mle_star.evaluation.exam import Exam
from mle_star.evaluation.sample import Sample
from mle_star.models import (
    AgentConfig,
    ExecutionRawResult,
    Frozen,
    PipelineConfig,
    TaskDescription,
    is_improvement,
    is_improvement_or_equal,
)
from mle_star.run.budget import Budget
from mle_star.run.events import AnyEvent, BestImproved, ScriptFinished
from mle_star.run.journal import Journal
from mle_star.run.search import Search

if TYPE_CHECKING:
    from mle_star.run.memory import RunMemory

logger = logging.getLogger(__name__)


class AgentReply(Frozen):
    """What an agent answered, and what the answer cost."""

    text: str
    structured: Any = None
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    seconds: float = 0.0
    session_id: str = ""

    @property
    def json_text(self) -> str:
        """The structured value as JSON when there is one, else the text."""
        return self.text if self.structured is None else json.dumps(self.structured)


class Agents(Protocol):
    """The one door to the model. Raises `AgentError` and nothing else of its own."""

    def fingerprint(self, config: AgentConfig) -> str:
        """A digest of all that shapes a reply besides the prompt: model, system prompt, tools, schema."""

    async def ask(
        self,
        config: AgentConfig,
        prompt: str,
        *,
        label: str,
        max_cost_usd: float | None,
        on_late_cost: Callable[[float], None],
    ) -> AgentReply:
        """Send `prompt`, verbatim, to the agent of `config` and wait for its answer.

        What a call has cost that was cancelled is known only later: `on_late_cost` is told, once, when it is over.
        """


class ScriptRequest(Frozen):
    """One script to run. `env` is complete: nothing is inherited."""

    script_path: str
    working_dir: str
    timeout_seconds: float
    env: dict[str, str]
    input_dir: str | None = None  # the real data, bound read-only as ./input
    readable: tuple[str, ...] = ()  # other places that links among the data lead to
    hidden: tuple[str, ...] = ()  # what no script may see, should something around it be shown
    output_file: str | None = None  # where the whole output is streamed


class Executor(Protocol):
    """Runs scripts: here, or on another machine."""

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Run to the end, to the timeout or to the cancellation; leave no process behind."""


@dataclass
class Scripts:
    """What the scripts of a run share: slots, locks, what was done already and what is found out once."""

    slots: asyncio.Semaphore | None = None
    taken: set[int] = field(default_factory=set)
    locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    done: dict[str, str] = field(default_factory=dict)
    """By digest, the step that did this work."""
    seeded: bool = False
    """Is what earlier processes did in `done`?"""
    gpus: list[str] | None = None
    surroundings: str = ""
    linked_places: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    """Where links lead, by the folder of the data that hold them."""
    kept_step: str = ""
    """The step that made the kept submission."""
    noted: dict[tuple[str, str], RunContext] = field(default_factory=dict)
    """By step and digest, the solutions whose scores the run was told of, and where."""
    warned: bool = False
    sample: Sample | None = None
    """The rows that new scripts meet first, where that pays."""
    sampled: bool = False
    """Was the sample looked for?"""


@dataclass
class RunShared:
    """What all contexts of one run share and change."""

    step_counts: Counter[str] = field(default_factory=Counter)
    best_score: float | None = None
    runtimes: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By label, the score of its best solution and the seconds that it took."""
    starts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By label, the score of what a path starts from and the seconds that it took."""
    kept_submission: tuple[float | None, str] | None = None
    scored: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The best score of each place of the running phase (`phase2/path-0`), and its script."""
    leaking: set[str] = field(default_factory=set)
    """The scripts that leak, by the last check of each: none of them may be the best."""
    checked: set[str] = field(default_factory=set)
    """The scripts that a leakage check found clean, or left so, by digest."""
    unanswered: set[str] = field(default_factory=set)
    """The scripts whose last leakage check gave no answer, by digest."""
    passed_over: list[str] = field(default_factory=list)
    """What Phase 1 went on without for want of time."""
    last_scripts: int = 1
    """How many scripts of finalization still share the time that is left."""
    wound_down: bool = False
    """Did a loop end before its plan was done?"""
    exam: Exam | None = None
    """How scripts are judged by hidden rows; None: by what they print."""
    has_test: bool = True
    """Without an exam: does the task ask for answers? Else the rows to predict are only an example."""
    search: Search = field(default_factory=Search)
    memory: RunMemory | None = None
    """What was tried so far, once somebody has asked for it."""
    scripts: Scripts = field(default_factory=Scripts)


@dataclass(frozen=True)
class RunContext:
    """One place in a run. Narrow it with `scope`; never change it."""

    task: TaskDescription
    config: PipelineConfig
    agents: Agents
    executor: Executor
    budget: Budget
    journal: Journal
    run_dir: Path
    work_dir: Path
    parts: tuple[str, ...] = ()
    label: str = "main"
    path: int | None = None
    shared: RunShared = field(default_factory=RunShared)

    @property
    def phase(self) -> str:
        """The first part of the step names here."""
        return self.parts[0] if self.parts else "run"

    @property
    def place(self) -> str:
        """This place as log lines name it: `path-0 t=1 k=2`."""
        parts = [part for part in self.parts if not part.startswith("phase")]
        return " ".join(re.sub(r"^([a-z])-(\d+)$", r"\1=\2", part) for part in parts) or self.label

    def next_step(self, leaf: str) -> str:
        """The name of the next step called `leaf` here; a repeated one is numbered from 2."""
        self.shared.step_counts["/".join((*self.parts, leaf))] += 1
        return self.latest_step(leaf)

    def upcoming_step(self, leaf: str) -> str:
        """The name that `next_step` will give to `leaf` here."""
        return self._numbered(leaf, 1)

    def latest_step(self, leaf: str) -> str:
        """The name that `next_step` gave last to `leaf` here: the step that an event is about."""
        return self._numbered(leaf, 0)

    def _numbered(self, leaf: str, further: int) -> str:
        name = "/".join((*self.parts, leaf))
        count = self.shared.step_counts[name] + further
        return name if count <= 1 else f"{name}-{count}"

    def record(self, event: AnyEvent) -> None:
        """Write an event; one without a step gets this place's name."""
        self.journal.record(event if event.step else event.model_copy(update={"step": "/".join(self.parts)}))

    def note_score(self, score: float, script: str) -> None:
        """Tell the run about a score; a new best becomes an event."""
        place, direction = "/".join(self.parts[:2]), self.task.metric_direction
        if place not in self.shared.scored or is_improvement(score, self.shared.scored[place][0], direction):
            self.shared.scored[place] = score, script
        best = self.shared.best_score
        if best is None or is_improvement(score, best, self.task.metric_direction):
            self.shared.best_score = score
            self.record(BestImproved(score=score, digest=digest_of(script)))

    def note_start(self, score: float, script: str) -> None:
        """Remember how long the solution takes that this path starts from: it may be slower than the best of all."""
        runs = [e for e in self.journal.events if isinstance(e, ScriptFinished) and e.script == script]
        took = [e.seconds for e in runs if e.purpose == "solution" and not e.cached and not e.is_error]
        if took:
            self.shared.starts[self.label] = (score, took[-1])

    def note_runtime(self, score: float, seconds: float) -> None:
        """Remember how long the best solution takes, on a path the best of that path."""
        known = self._measured(self.label)
        if known is None or is_improvement_or_equal(score, known[0], self.task.metric_direction):
            self.shared.runtimes[self.label] = (score, seconds)

    @property
    def solution_seconds(self) -> float | None:
        """How long the current solution takes, as measured: the path's, the run's, or for an ensemble all paths'."""
        labels = [self.label]
        if self.phase == "phase3":
            labels = [f"path-{index}" for index in range(self.config.num_parallel_solutions)]
        measured = [entry[1] for entry in map(self._measured, labels) if entry is not None]
        return sum(measured) if measured else None

    def _measured(self, label: str) -> tuple[float, float] | None:
        """Score and seconds of the best of a path, of what it started from, or of the run's best."""
        shared = self.shared
        return shared.runtimes.get(label) or shared.starts.get(label) or shared.runtimes.get("main")

    @property
    def replaying(self) -> bool:
        """Does the journal hold results of an earlier process for this place? They cost nothing: take them first."""
        return self.journal.pending(self.parts)

    def check(self) -> None:
        """Raise `BudgetExceeded` when no new work may be opened."""
        if not self.replaying:
            self.budget.check()

    @property
    def should_stop(self) -> bool:
        """Should the loop end after this iteration? Asked only where there is more to do."""
        if not self.budget.finalize_now or self.replaying:
            return False
        self.shared.wound_down = True
        return True


_current: ContextVar[RunContext] = ContextVar("mle_star_run")


def current_run() -> RunContext:
    """The context of the run that this code is part of."""
    try:
        return _current.get()
    except LookupError:
        raise MleStarError("no run is active here: call this inside `with enter_run(context):`") from None


def active_run() -> RunContext | None:
    """The context of the run, or None outside one."""
    return _current.get(None)


@contextmanager
def enter_run(context: RunContext) -> Iterator[RunContext]:
    """Make `context` the current one."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


@contextmanager
def scope(*parts: str) -> Iterator[RunContext]:
    """Narrow the current context: steps inside are named below `parts`."""
    context = current_run()
    with enter_run(replace(context, parts=(*context.parts, *parts))) as inner:
        yield inner


@contextmanager
def path_context(index: int, work_dir: Path) -> Iterator[RunContext]:
    """The context of refinement path `index`: own directory, own label, own steps."""
    context = current_run()
    label = f"path-{index}"
    with enter_run(
        replace(context, parts=(*context.parts, label), label=label, path=index, work_dir=work_dir)
    ) as inner:
        yield inner
