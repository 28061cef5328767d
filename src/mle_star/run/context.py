"""What a running phase can reach: agents, executor, budget, journal, its directory and its place in the run.

The functions of the specification have no client parameter; they call `current_run()`. The orchestrator enters a
context, each refinement path its own (`path_context`), and every loop narrows the scope that steps are named by.
"""

import asyncio
import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mle_star import models
from mle_star.data.place import Sample
from mle_star.errors import MleStarError
from mle_star.models.texts import digest_of
from mle_star.run.budget import Budget
from mle_star.run.events import AgentReply, AnyEvent, Decided
from mle_star.run.journal import Journal
from mle_star.run.ledger import LeakState, Ledger

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 20.0
"""How long cancelled work may take to clean up after itself."""


class Agents(Protocol):
    """The only way to the model. Raises `AgentError` and nothing else of its own."""

    def fingerprint(self, config: models.AgentConfig) -> str:
        """A digest of all that shapes a reply besides the prompt: model, system prompt, tools, schema."""

    async def ask(
        self,
        config: models.AgentConfig,
        prompt: str,
        *,
        label: str,
        max_cost_usd: float | None,
        on_late_cost: Callable[[float], None],
    ) -> AgentReply:
        """Send `prompt`, verbatim, to the agent of `config` and wait for its answer.

        What a call has cost that was cancelled is known only later: `on_late_cost` is told, once, when it is over.
        """


@runtime_checkable
class LimitedAgents(Protocol):
    """Agents that keep no more than so many sessions open at once, where they have such a limit."""

    max_concurrent_sessions: int | None


class ScriptRequest(models.Frozen):
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

    async def run(self, request: ScriptRequest) -> models.ExecutionRawResult:
        """Run to the end, to the timeout or to the cancellation; leave no process behind."""


@dataclass
class Scripts:
    """What the scripts of a run share: slots, locks, what was done already and what is found out once."""

    slots: asyncio.Semaphore | None = None
    lanes: int = 0
    """How many may run at once; 0 before the first one."""
    taken: set[int] = field(default_factory=set)
    locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    gpus: list[str] | None = None
    surroundings: str = ""
    checked_files: dict[str, tuple[list[str], int]] = field(default_factory=dict)
    """By submission, what is wrong with it, and its rows."""
    warned: bool = False
    sample: Sample | None = None
    """The rows on which new scripts run first, where that pays."""
    sampled: bool = False
    """Was the sample looked for?"""


@dataclass(frozen=True)
class Submission:
    """What finalization submits: a script, the absolute path of its file or an empty text, and remarks."""

    script: models.SolutionScript
    path: str = ""
    warnings: list[str] = field(default_factory=list)
    subsampling_removed: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    """What was found in the file: `rows`, the `sample` whose columns it matches, `problems`, `fallback`."""


@dataclass
class Ending:
    """What finalization has come to, should it be cut off."""

    remarks: list[str] | None = None
    """What is to be said of the solution, once it was checked for the last time."""
    stand_in: models.SolutionScript | None = None
    """What is submitted in the place of a solution that leaks."""
    submission: Submission | None = None
    contamination: models.DataContaminationResult | None = None


@dataclass
class RunShared:
    """What all contexts of one run share and change."""

    step_counts: Counter[str] = field(default_factory=Counter)
    last_scripts: int = 1
    """How many scripts of finalization still share the time that is left."""
    wound_down: bool = False
    """Did a loop end before its plan was done?"""
    views: int = 1
    """How many views of the rows a solution can run on ..."""
    search_views: int = 1
    """... and on how many of them in the search."""
    views_at_once: bool = False
    """Does it run on them side by side?"""
    holdout: object | None = None
    """How scripts are scored by hidden rows (`execution.scoring.holdout_of`); None: by what they print."""
    has_test: bool = True
    """Does the task ask for answers? Else the rows to predict are only an `example`, in a folder with all the data."""
    example: Path | None = None
    whole: str = ""
    """The user's data, if no row is hidden."""
    ending: Ending = field(default_factory=Ending)
    scripts: Scripts = field(default_factory=Scripts)


@dataclass(frozen=True)
class RunContext:
    """One place in a run. Narrow it with `scope`; never change it."""

    task: models.TaskDescription
    config: models.PipelineConfig
    agents: Agents
    executor: Executor
    budget: Budget
    journal: Journal
    run_dir: Path
    work_dir: Path
    parts: tuple[str, ...] = ()
    label: str = "main"
    path: int | None = None
    until: float = math.inf
    """When the turn of a path ends, in seconds since the run began."""
    shared: RunShared = field(default_factory=RunShared)
    ledger: Ledger = field(default_factory=Ledger)
    """What the search has found so far, in all processes of the run."""
    reached: Ledger = field(default_factory=Ledger)
    """What this process has come to, done or taken over from the record."""

    def __post_init__(self) -> None:
        self.ledger.follow(self.journal, self.task.metric_direction)
        self.reached.follow(self.journal, self.task.metric_direction, fresh=True)

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

    def latest_step(self, leaf: str) -> str:
        """The name that `next_step` gave last to `leaf` here: the step that an event is about."""
        name = "/".join((*self.parts, leaf))
        count = self.shared.step_counts[name]
        return name if count <= 1 else f"{name}-{count}"

    def record(self, event: AnyEvent) -> None:
        """Write an event; one without a step gets this place's name."""
        self.journal.record(event if event.step else event.model_copy(update={"step": "/".join(self.parts)}))

    @property
    def solution_seconds(self) -> float | None:
        """How long the current solution takes, as measured: the path's, the run's, or for an ensemble all paths'."""
        labels, place = [self.label], "phase1/" if self.phase == "phase1" else ""
        if self.phase == "phase3":
            labels = [f"path-{index}" for index in range(self.config.num_parallel_solutions)]
        measured = [seconds for label in labels if (seconds := self.ledger.seconds(label, place)) is not None]
        return sum(measured) if measured else None

    @property
    def solution_views(self) -> int:
        """On how many views a solution runs before it may be the best: as many as the first one that was scored."""
        scored = self.ledger.scored()
        return len(scored[0].result.answers) if scored else 1

    @property
    def views_in_turn(self) -> int:
        """How many times as long as one run that takes: elsewhere, scripts run on all of them at once.

        With `more_steps` only what is ahead on the first view runs on the others, which is seldom.
        """
        return 1 if self.shared.views_at_once or self.config.more_steps else self.solution_views

    @property
    def seconds_left(self) -> float:
        """Seconds until the turn of this path, the running phase, or else the run must end."""
        return min(self.until, self.budget.deadline) - self.budget.elapsed()

    def check_state(self, script: str, place: str = "") -> LeakState | None:
        """What the leakage checks of a script have found, as far as that is known here, or at a `place`.

        What other paths and later phases find is not: else timing would decide, and a resumed run decide otherwise.
        """
        return self.reached.check_state(digest_of(script), place or "/".join(self.parts))

    def leaks(self, script: str, place: str = "") -> bool:
        """Does a script leak, by the same?"""
        return self.check_state(script, place) == "leaking"

    def decide(self, name: str, make: Callable[[], bool], *, reopen: bool = False) -> bool:
        """A decision that depends on the clock or on chance: made once, recorded, and replayed when the run is resumed.

        With `reopen`, a no is decided again under other limits, and when a run that has ended is resumed. Where
        this process has done anything new, what was decided there before counts no longer.
        """
        step = self.next_step(name)
        known = self.journal.decision(step) if self.journal.takes_over(self.parts) else None
        if known is None:
            known = make()
            self.journal.record(Decided(step=step, name=name, value=known, reopen=reopen))
        return known


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
def scope(*parts: str, **changes: Any) -> Iterator[RunContext]:
    """Narrow the current context: steps inside are named below `parts`; `changes` are other fields of it."""
    context = current_run()
    with enter_run(replace(context, parts=(*context.parts, *parts), **changes)) as inner:
        yield inner


@contextmanager
def path_context(index: int, work_dir: Path, until: float = math.inf) -> Iterator[RunContext]:
    """The context of refinement path `index`: own directory, own label, own steps, and until when it has its turn."""
    with scope(f"path-{index}", label=f"path-{index}", path=index, work_dir=work_dir, until=until) as inner:
        yield inner


# --- the end of work ---------------------------------------------------------------------------------------


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel and wait, but not for ever: a limit holds even when something does not let go.

    Nobody else looks at how they ended.
    """
    for task in (left := set(tasks)):
        task.cancel()
    if left and (await asyncio.wait(left, timeout=CANCEL_SECONDS))[1]:
        logger.error("cancelled work has not ended after %g s; the run continues without it", CANCEL_SECONDS)
    for task in left:
        if task.done() and not task.cancelled():
            task.exception()
