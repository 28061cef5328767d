"""What the tests of the method share: scripted agents, executors, and a run around them."""

import asyncio
import inspect
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

import pytest
from pydantic import BaseModel

from mle_star import models as m
from mle_star.errors import AgentError
from mle_star.execution import LocalExecutor, link_input_data, setup_working_directory
from mle_star.models.settings import sized
from mle_star.run.budget import Budget
from mle_star.run.context import Executor, RunContext, RunShared, ScriptRequest, Scripts, current_run, enter_run
from mle_star.run.events import AgentReply, AgentStarted, Event
from mle_star.run.journal import Journal
from tests.conftest import LETTERS, as_kept, mode_settings, small_task, write_split
from tests.pipeline.clock import PatientLoop
from tests.pipeline.mind import Answers, LevelExecutor, crash
from tests.prompt_samples import sections

from .replies import GARBAGE, NO_LEAKAGE, Reply, ScriptedCall, broken_script, fenced, models, part, plans, script

E = TypeVar("E", bound=Event)
T = TypeVar("T")
Fault = Literal["empty", "garbage", "raises"]
AGENT_FAULTS: tuple[Fault, ...] = ("empty", "garbage", "raises")
ScriptFault = Literal["crash", "timeout"]
SCRIPT_FAULTS: tuple[ScriptFault, ...] = ("crash", "timeout")


def _calm_replies() -> dict[str, Reply]:
    """What every agent says unless told otherwise: nothing to repair, nothing to find, a script where one is due."""
    return {
        "retriever": models("alpha", "beta"), "init": fenced(script(0.5)), "merger": fenced(script(0.6)),
        "debugger": fenced(script(0.4)), "data": "All the provided information is used.",
        "leakage-detection": NO_LEAKAGE, "leakage-correction": fenced("level = 0.45"),
        "leakage-rewrite": "This cannot be fixed.", "summarize": "The level matters most.",
        "ablation": fenced("print('Ablation baseline: 0.5')\nprint('Ablation no level: 0.1')"),
        "extractor": {"plans": [{"code_block": "level = 0.5", "plan": "raise the level"}]},
        "planner": "raise the level more", "coder": fenced("level = 0.7"),
        "ens_planner": "average the two", "ensembler": fenced(script(0.8)), "test": fenced(script(0.9)),
        "test-subsampling_extract": "There is no subsampling in this script.",
        "test-subsampling_remove": fenced("pass"), "test-contamination": {"verdict": "Novel"},
    }  # fmt: skip


class ScriptedAgents:
    """The `Agents` protocol by script: a queue of replies per agent, then its standing reply; every call is kept."""

    def __init__(self) -> None:
        self.log: list[ScriptedCall] = []
        self.cost_usd = 0.0
        self.faults: dict[int | str, Fault | BaseException | Callable[[], None]] = {}
        """By position or by step name; what can be called is called, and the reply comes all the same."""
        self.change: Callable[[ScriptedCall, AgentReply], AgentReply] = lambda call, reply: reply
        self._queues: dict[str, list[Reply]] = defaultdict(list)
        self._standing = _calm_replies()

    def reply(self, agent: str, *replies: Reply) -> None:
        """Queue replies for an agent (`coder`, `leakage-correction`); an unknown variant answers as its agent does."""
        self._queues[agent].extend(replies)

    def always(self, agent: str, reply: Reply) -> None:
        """What the agent says when its queue is empty."""
        self._standing[agent] = reply

    def calls(self, agent: str | None = None) -> list[ScriptedCall]:
        return [call for call in self.log if agent is None or call.name == agent]

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.log]

    def fingerprint(self, config: m.AgentConfig) -> str:
        return f"{config.agent_type.value}:{config.tools}:{config.output_schema}"

    async def ask(self, config: m.AgentConfig, prompt: str, *, max_cost_usd: float | None, **more: Any) -> AgentReply:
        started = _announced()
        call = ScriptedCall(config.agent_type, started.variant, started.step, config, prompt, max_cost_usd)
        self.log.append(call)
        await asyncio.sleep(0)  # as the real one, this lets others run
        fault = self.faults.get(len(self.log) - 1) or self.faults.get(call.step)
        if callable(fault):
            fault()
        elif fault == "raises":
            raise AgentError("scripted failure", agent=call.agent.value, cost_usd=self.cost_usd)
        elif fault is not None:
            return self._as_reply({"empty": "", "garbage": GARBAGE}[fault] if isinstance(fault, str) else fault)
        name = call.name if call.name in self._queues or call.name in self._standing else call.agent.value
        queue = self._queues[name]
        reply = queue.pop(0) if queue else self._standing[name]
        while callable(reply):
            reply = reply(call)
            if inspect.isawaitable(reply):
                reply = await reply
        return self.change(call, self._as_reply(reply))

    def _as_reply(self, reply: Reply) -> AgentReply:
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, AgentReply):
            return reply
        if isinstance(reply, str):
            return AgentReply(text=reply, cost_usd=self.cost_usd)
        value = reply.model_dump(mode="json") if isinstance(reply, BaseModel) else reply
        return AgentReply(text="", structured=value, cost_usd=self.cost_usd)


def _announced() -> AgentStarted:
    """The step that the run context has just announced: the protocol itself knows neither steps nor variants."""
    event = list(current_run().journal.events)[-1]
    assert isinstance(event, AgentStarted), "agents are called through the run context"
    return event


@dataclass
class RecordingExecutor:
    """Passes scripts on to `inner` and keeps them; `faults` names those that fail, by words in them."""

    inner: Executor
    requests: list[ScriptRequest] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)
    fault: ScriptFault | BaseException = "crash"
    running: int = 0
    most_at_once: int = 0

    async def run(self, request: ScriptRequest) -> m.ExecutionRawResult:
        self.requests.append(request)
        self.scripts.append(Path(request.script_path).read_text(encoding="utf-8"))
        if any(words in self.scripts[-1] for words in self.faults):
            if isinstance(self.fault, BaseException):
                raise self.fault
            timed_out, raw = self.fault == "timeout", crash("RuntimeError: scripted crash")
            return raw.model_copy(update={"stderr": "", "exit_code": -9, "timed_out": True}) if timed_out else raw
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            return await self.inner.run(request)
        finally:
            self.running -= 1


@dataclass
class ScriptedExecutor(LevelExecutor):
    """Quick scripts, scored by their words, that answer the two rows of `make_task`."""

    seconds: float | None = 0.0
    answers: Answers = lambda text, rows: [("1", 0), ("2", 1)]


def settings(**changes: Any) -> m.PipelineConfig:
    """Small numbers, so that each loop shows what it does; fields by name or by the paper's letter (`K=3`)."""
    values = {**sized(2, 1, 2, 2, 2), "time_limit_seconds": 3600, "max_debug_attempts": 2, **mode_settings()}
    return m.PipelineConfig(**{**values, **{LETTERS.get(name, name): value for name, value in changes.items()}})


class ScriptedRun:
    """A run with scripted agents, entered for the whole test."""

    def __init__(self, context: RunContext, agents: ScriptedAgents, executor: RecordingExecutor) -> None:
        self.context, self.agents, self.executor = context, agents, executor
        self.task, self.config, self.journal = context.task, context.config, context.journal
        self.run_dir, self.work_dir, self.prefix = context.run_dir, context.work_dir, ""

    def given(self, solution: m.SolutionScript) -> m.SolutionScript:
        """A solution to begin with; all begin with the same words."""
        return solution.model_copy(update={"content": self.prefix + solution.content})

    def events(self, kind: type[E]) -> list[E]:
        return [event for event in self.journal.events if isinstance(event, kind)]


def make_task(data_dir: Path | str, **changes: Any) -> m.TaskDescription:
    """A small task on two rows of test data."""
    own = {"competition_id": "tiny-task", "description": "Predict the target of each sample in test.csv."}
    return small_task(Path(data_dir)).model_copy(update={**own, **changes})


def write_data(folder: Path) -> Path:
    """The data of `make_task`."""
    rows = [(1, 0.5, 0), (2, 0.7, 1), (3, 0.1, 0), (1, 0.4, None), (2, 0.9, None)]
    return write_split(folder, "id,a,target", rows, 3)


@contextmanager
def scripted_run(
    root: Path,
    *,
    config: m.PipelineConfig | None = None,
    executor: Executor | None = None,
    clock: Callable[[], float] | None = None,
    **task: Any,
) -> Iterator[ScriptedRun]:
    """Enter a run below `root`; the same `root` again resumes from its journal."""
    config = config or settings()
    data, run_dir = write_data(root / "data"), root / "run"
    work_dir = Path(setup_working_directory(str(run_dir / "work" / "main")))
    link_input_data(str(data), str(work_dir))
    recording, agents = RecordingExecutor(executor or LocalExecutor(config)), ScriptedAgents()
    budget = Budget(config) if clock is None else Budget(config, clock=clock)
    slots = asyncio.Semaphore(config.max_concurrent_scripts or config.num_parallel_solutions)
    shared = RunShared(scripts=Scripts(slots=slots))
    with Journal(run_dir / "journal.jsonl") as journal:
        context = RunContext(
            task=make_task(data, **task), config=config, agents=agents, executor=recording, budget=budget,
            journal=journal, run_dir=run_dir, work_dir=work_dir, parts=(), shared=shared,
        )  # fmt: skip
        if executor is not None:
            context.shared.scripts.surroundings = "scripted"  # no interpreter will run, so none is asked what it has
        with enter_run(context):
            yield ScriptedRun(context, agents, recording)


def quick(root: Path, task: dict[str, Any] | None = None, **config: Any) -> AbstractContextManager[ScriptedRun]:
    """A run whose scripts are scored by their words, with these settings."""
    return scripted_run(root, executor=ScriptedExecutor(), config=settings(**config), **(task or {}))


@pytest.fixture(autouse=True)
def every_log_line_is_written(caplog: pytest.LogCaptureFixture) -> None:
    """A log call with too few arguments fails the test that comes by, whatever level the test looks at."""
    caplog.set_level(logging.INFO, "mle_star")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    with scripted_run(tmp_path) as entered:
        yield entered


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a journal syncs every line, and that is most of what a quick run does."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="mle-star-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def quick_run(quick_path: Path) -> Iterator[ScriptedRun]:
    """As `run`, with scripts scored by their words."""
    with scripted_run(quick_path, executor=ScriptedExecutor()) as entered:
        yield entered


Outcome = float | str


def section(prompt: str, heading: str) -> str:
    """The text below one `# Heading` of a prompt, up to the next one; lines inside code fences are no headings."""
    return sections(prompt)[heading]


def account_as_kept(name: str, run: ScriptedRun, log: Sequence[logging.LogRecord]) -> None:
    """Is all that phases record and log what is kept, apart from times? Calls and scripts have tests of their own."""
    events = [event for event in run.journal.events if not event.kind.startswith(("agent_", "script_"))]
    lines = [f"{event.kind} {event.model_dump_json(exclude={'at'}, exclude_defaults=True)}" for event in events]
    names = tuple(f"mle_star.{name}" for name in ("phase", "run", "safety", "finalization"))
    lines += [f"{one.levelname} {one.getMessage()}" for one in log if one.name.startswith(names)]
    text = "\n".join(lines).replace(str(run.run_dir), "…")
    as_kept(f"method/{name}.txt", re.sub(r"\b\d{1,3}(\.\d+)? s\b|(?<=bug of )\d+", "…", text))


def play_attempts(agents: ScriptedAgents, attempts: Sequence[Outcome], mark: str = "", before: str = "") -> None:
    """Queue the replies for one inner loop: each attempt leaves its mark, and nobody can repair a crash."""
    agents.always("debugger", "I cannot repair this.")
    for k, outcome in enumerate(attempts):
        if k > 0:
            agents.reply("planner", "" if outcome == "planner" else f"plan {mark}{k}")
        crashes, scores = f"raise RuntimeError('{mark}k{k}')", f"level = {outcome}  # {mark}k{k}"
        if outcome in ("coder", "planner"):  # the first attempt has no planner to fail
            agents.reply("coder", *["No code today."] * (k == 0 or outcome == "coder"))
        else:
            agents.reply("coder", fenced(before + (crashes if outcome == "crash" else scores)))


Step = Sequence[Outcome] | str
"""What happens in one outer step: the outcomes of its attempts, or `skip` when no block is found."""


def play_steps(agents: ScriptedAgents, steps: Sequence[Step]) -> None:
    """Queue the replies for a path: step `t` refines `part_{t}`, attempt `k` leaves the mark `t{t}k{k}`."""
    for t, step in enumerate(steps):
        agents.reply("summarize", f"summary {t}")
        if isinstance(step, str):
            agents.reply("extractor", "no JSON", "still no JSON")
            continue
        agents.reply("extractor", plans((part(t), f"plan t{t}k0")))
        play_attempts(agents, step, mark=f"t{t}", before=f"part_{t} = 1\n")


def play_rounds(agents: ScriptedAgents, outcomes: Sequence[Outcome]) -> None:
    """Queue the replies for the rounds of Phase 3; round `r` leaves its mark, and nobody can repair a crash."""
    agents.always("debugger", "I cannot repair this.")
    for r, outcome in enumerate(outcomes):
        agents.reply("ens_planner", "" if outcome == "planner" else f"plan {r}")
        failures = {"ensembler": "No code today.", "crash": fenced(broken_script(note=f"round {r}"))}
        if outcome != "planner":
            agents.reply("ensembler", failures.get(str(outcome)) or fenced(script(outcome, note=f"round {r}")))


def measured(work: Awaitable[T]) -> tuple[T, float, float]:
    """The result, the seconds that were waited for nothing, each sleep of ours a second more, and those of work."""
    loop, sleeps, started = PatientLoop(), list[FrameType](), time.process_time()

    def look(frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call" and what is time.sleep and frame.f_globals["__name__"].startswith("mle_star"):
            sleeps.append(frame)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        result = loop.run_until_complete(work)
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        loop.close()
    return result, loop.now + len(sleeps), time.process_time() - started
