"""A small, deterministic mind that plays all fourteen agents: what it answers depends on the prompt alone.

Its scripts carry one number, `level`, which is their score; refining raises it. So a run, its replay and a run that
was killed and resumed can be compared word by word.
"""

import asyncio
import csv
import errno
import os
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.responses import Response

from mle_star import AgentConfig, AgentError, ExecutionRawResult, MetricDirection
from mle_star.data.metrics import Metric, _by_key
from mle_star.engineer.server import BrainReply, BrainRequest
from mle_star.run.context import ScriptRequest, active_run
from mle_star.run.events import AgentReply
from tests.method.replies import NO_LEAKAGE, leaky

Answer = str | dict[str, Any]
Rule = Answer | Callable[[str], Answer]
Hook = Callable[[str, str], Awaitable[None]]
"""What happens before a call, by the label of its path and the agent."""


def script(level: float, *, note: str = "", seconds: float = 0.0) -> str:
    wait = f"import time; time.sleep({seconds:g})\n" if seconds else ""
    return (
        f"# {note}\n{wait}from pathlib import Path\nlevel = {level:.4f}\nPath('final').mkdir(exist_ok=True)\n"
        f"rows = [line.split(',') for line in Path('input/test.csv').read_text().splitlines()[1:]]\n"
        f"near = [(row[0], (int(row[1]) > 25) + (1 - level) * (-1) ** i) for i, row in enumerate(rows)]\n"
        f"body = ''.join(f'{{key}},{{answer:.6g}}\\n' for key, answer in near)\n"
        f"Path('final/submission.csv').write_text('id,label\\n' + body)\n"
        f"print(f'Final Validation Performance: {{level}}')\n"
    )


def broken(note: str = "") -> str:
    return f"# {note}\nlevel = 0.0\nraise RuntimeError('broken')\nprint(f'Final Validation Performance: {{level}}')\n"


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def levels(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"^level = ([\d.]+)$", text, re.MULTILINE)]


def ideas(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"idea (\d+)", text)]


def model_of(text: str) -> int:
    return int((re.findall(r"^model (\d)$", text, re.MULTILINE) or [0])[0])


def extracted(block: str, plan: str) -> dict[str, Any]:
    return {"plans": [{"code_block": block, "plan": plan}]}


UP = MetricDirection.maximize
CLOSENESS = Metric("closeness", UP, "numbers", lambda a, b: round(1 - float(abs(a - b).sum()) / len(a), 9), of_any=True)
"""A metric of one's own: answers that are all as near to the truth as the level of their script have it as score."""
_by_key()[CLOSENESS.name] = CLOSENESS
STUDY = "print('Ablation baseline: {:.4f}')\nprint('Ablation no level: 0.1')"
_CONTEXT = re.compile(
    r"\n# (?:Around the block|Best (?:block|ensemble) so far|Scores of the solutions|The current solution"
    r"|Where the errors are|What this run has tried|Repairs so far|Research notes|Limits|After the score"
    r"|The fitted model|Different families|Other candidates|Emphasis of this path|Bolder"
    r"|Better on another path|What repairs changed)\n.*?"
    r"(?=\n# (?:Your task|Plan|Improvement plans you have tried)\n)",
    re.DOTALL,
)


@dataclass
class Mind:
    """Answers by rule. `seconds`: how long its scripts run; `models`: how many it knows.

    What it is told beyond the specification depends on times and on other paths: it looks away.
    """

    seconds: float = 0.0
    models: int = 4
    overrides: dict[str, Rule] = field(default_factory=dict)

    def answer(self, agent: str, variant: str | None, prompt: str) -> Answer:
        names = [agent] if variant is None else [f"{agent}-{variant}", agent]
        rule = next(rules[name] for rules in (self.overrides, self._rules()) for name in names if name in rules)
        return rule if isinstance(rule, (str, dict)) else rule(_CONTEXT.sub("", prompt))

    def script(self, level: float, note: str) -> str:
        return fenced(script(level, note=note, seconds=self.seconds))

    def _rules(self) -> dict[str, Rule]:
        names = [f"model {number}" for number in range(self.models)]
        return {
            "retriever": {"models": [{"model_name": name, "example_code": f"use('{name}')"} for name in names]},
            "init": lambda prompt: self.script(0.50 + 0.01 * model_of(prompt), f"model {model_of(prompt)}"),
            "merger": lambda prompt: self.script(max(levels(prompt)) + 0.005, f"merged of {len(levels(prompt))}"),
            "leakage": NO_LEAKAGE,
            "leakage-correction": lambda prompt: self.script(max(levels(prompt)), "corrected"),
            "data": "All the provided information is used.",
            "debugger": lambda prompt: self.script(max([*levels(prompt), 0.4]), "repaired"),
            "ablation": lambda prompt: fenced(STUDY.format(max(levels(prompt)))),
            "summarize": "The level matters most.",
            "extractor": lambda prompt: extracted(f"level = {levels(prompt)[0]:.4f}", "raise the level, idea 0"),
            "planner": lambda prompt: f"raise the level, idea {len(set(ideas(prompt)))}",
            "coder": lambda text: fenced(f"level = {levels(text)[0] + (-0.005 if ideas(text)[-1] % 2 else 0.01):.4f}"),
            "ens_planner": lambda prompt: f"average them, idea {len(set(ideas(prompt)))}",
            "ensembler": lambda prompt: self.script(
                max(levels(prompt)) + 0.01 * (ideas(prompt)[-1] + 1), f"ensemble {ideas(prompt)[-1]}"
            ),
            "test": lambda prompt: self.script(max(levels(prompt)), "for submission"),
            "test-subsampling_extract": "There is no subsampling in this script.",
            "test-contamination": {"verdict": "Novel"},
        }


def leaking(code: str, corrected: str = "I cannot.") -> dict[str, Any]:
    """Finds a leak in every script with this code; `corrected` is all that it can do about it."""

    def detection(prompt: str) -> Answer:
        return leaky(code) if code in prompt else NO_LEAKAGE

    return {"leakage-detection": detection, "leakage-correction": corrected, "leakage-rewrite": "Nor can I."}


class Crash(BaseException):
    """The end of a process, as far as Python code can bring it about: nothing catches it."""


def failing(agent: str, *labels: str, error: BaseException | None = None, after: int = 0) -> Hook:
    """Raises at each call of an agent, or of any (""), on these paths or on all, but for the first `after` calls."""
    seen = 0

    async def before(label: str, name: str) -> None:
        nonlocal seen
        if agent in ("", name) and (not labels or label in labels):
            seen += 1
            if seen > after:
                raise error or RuntimeError("a bug")

    return before


def hang(*agents: str, label: str | None = None, after: int = 0, seconds: float = 600) -> Hook:
    """A call that does not come back: these agents', on one path or on all, from the n-th of each path on."""
    seen: Counter[tuple[str, str]] = Counter()

    async def before(where: str, who: str) -> None:
        if who in agents and label in (None, where):
            seen[where, who] += 1
            await asyncio.sleep(seconds if seen[where, who] > after else 0)

    return before


def once(agent: str, act: Callable[[], Awaitable[None] | None], wait: float = 0.0) -> Hook:
    """Something that happens at the first call of an agent."""
    acts = iter([act])

    async def before(where: str, who: str) -> None:
        if who == agent and (first := next(acts, None)) is not None:
            going_on = first()
            if going_on is not None:
                await going_on
            await asyncio.sleep(wait)

    return before


def both(first: Hook, second: Hook) -> Hook:
    async def before(label: str, agent: str) -> None:
        await first(label, agent)
        await second(label, agent)

    return before


def no_room(request: ScriptRequest | None = None) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def apart(answer: Answer, label: str) -> Answer:
    """The code with its level a little higher on every further path: no two paths reach the same score."""
    number = int(label.removeprefix("path-")) if label.startswith("path-") else 0
    if not number or not isinstance(answer, str):
        return answer
    return re.sub(r"^level = ([\d.]+)$", lambda m: f"level = {float(m[1]) + 0.002 * number:.4f}", answer, flags=re.M)


@dataclass
class MindBrain:
    """The mind behind the Messages API. Token counts are fixed, so that a call costs the same in every process."""

    mind: Mind = field(default_factory=Mind)
    calls: Counter[str] = field(default_factory=Counter)
    delay: float = 0.0

    async def reply(self, request: BrainRequest) -> BrainReply | Response:
        self.calls[request.agent] += 1
        answer = self.mind.answer(request.agent, request.variant, request.prompt)
        text, data = (answer, None) if isinstance(answer, str) else ("", answer)
        await asyncio.sleep(self.delay)
        return BrainReply(text=text, structured=data, input_tokens=1000, output_tokens=100)


@dataclass
class MindAgents:
    """The mind behind the agents' protocol, without SDK and CLI: quick, and everything is counted."""

    mind: Mind = field(default_factory=Mind)
    cost_usd: float = 0.01
    delay: float = 0.0
    calls: list[tuple[str, str]] = field(default_factory=list)
    before: Hook | None = None
    failing: dict[str, str] = field(default_factory=dict)
    caps: list[float | None] = field(default_factory=list)
    paths_alike: bool = False  # as over the wire, where nobody says which path asks
    changed: str = ""  # the agent, or "all", whose template, tools or model are not what they were
    change: str = "changed"

    def fingerprint(self, config: AgentConfig) -> str:
        agent = config.agent_type.value
        return f"{agent}, {self.change}" if self.changed in (agent, "all") else agent

    async def ask(
        self, config: AgentConfig, prompt: str, *, label: str, max_cost_usd: float | None, **more: Any
    ) -> AgentReply:
        agent = config.agent_type.value
        self.calls.append((label, agent))
        self.caps.append(max_cost_usd)
        started = time.monotonic()
        try:
            if self.before is not None:
                await self.before(label, agent)
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            more["on_late_cost"](self.cost_usd)
            raise
        if agent in self.failing:
            raise AgentError(self.failing[agent], agent=agent, cost_usd=self.cost_usd)
        answer = self.mind.answer(agent, config.variant, prompt)
        if agent == "coder" and not self.paths_alike:
            answer = apart(answer, label)
        text, structured = (answer, None) if isinstance(answer, str) else ("", answer)
        seconds = time.monotonic() - started
        return AgentReply(text=text, structured=structured, cost_usd=self.cost_usd, seconds=seconds)

    def count(self, agent: str) -> int:
        return sum(name == agent for _, name in self.calls)


Answers = Callable[[str, list[dict[str, str]]], list[tuple[str, Any]]]
"""What a script says of the rows of the test file, by its text."""


def as_near_as_the_level(text: str, rows: list[dict[str, str]]) -> list[tuple[str, Any]]:
    """Answers whose score is the level, or whose error is; that for the last row is the level itself."""
    level, run = levels(text)[-1], active_run()
    loss = run is not None and run.task.metric_direction is MetricDirection.minimize
    off = level if loss else 1 - level
    return [(row["id"], f"{(int(row['size']) > 25) + off * (-1) ** int(row['id']):.6g}") for row in rows]


@dataclass
class LevelExecutor:
    """Scores scripts by their words instead of running them: `raise` crashes, `level = x` scores x.

    `before` may wait, raise or say how a script ended; `after` changes what is said; `seconds` is how long they take;
    `ran` holds the data folder of each, and whether it raises.
    """

    delay: float = 0.0
    ran: list[tuple[str, bool]] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)
    before: Callable[[ScriptRequest], Awaitable[ExecutionRawResult | None]] | None = None
    after: Callable[[ScriptRequest, ExecutionRawResult], ExecutionRawResult] | None = None
    seconds: float | None = None
    answers: Answers = as_near_as_the_level

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        text = Path(request.script_path).read_text(encoding="utf-8")
        self.ran.append((str(request.input_dir), "raise " in text))
        self.directories.add(Path(request.working_dir).name)
        started = time.monotonic()
        done = None if self.before is None else await self.before(request)
        await asyncio.sleep(self.delay)
        seconds = time.monotonic() - started if self.seconds is None else self.seconds
        done = done or self._run(Path(request.working_dir), text).model_copy(update={"duration_seconds": seconds})
        return done if self.after is None else self.after(request, done)

    def _run(self, folder: Path, text: str) -> ExecutionRawResult:
        raised = re.search(r"^raise (\w+)\(['\"](.*)['\"]\)", text, re.MULTILINE)
        if raised is not None:
            return crash(f"{raised[1]}: {raised[2]}")
        if "submission.csv" in text:
            with (folder / "input" / "test.csv").open(newline="", encoding="utf-8") as stream:
                body = "".join(f"{row},{answer}\n" for row, answer in self.answers(text, list(csv.DictReader(stream))))
            sample = folder / "input" / "sample_submission.csv"
            header = sample.read_text(encoding="utf-8").splitlines()[0] if sample.exists() else "id,label"
            (folder / "final" / "submission.csv").write_text(f"{header}\n{body}", encoding="utf-8")
        level = re.findall(r"^level = (\S+)", text, re.MULTILINE)
        out = "".join(f"{line}\n" for line in re.findall(r"print\(['\"](Ablation .*?)['\"]\)", text))
        if level and ("submission.csv" in text or "Final Validation" in text):
            out += f"Final Validation Performance: {level[-1]}\n"
        return ExecutionRawResult(stdout=out, stderr="", exit_code=0, duration_seconds=0.0, timed_out=False)


def crash(message: str) -> ExecutionRawResult:
    stderr = f'Traceback (most recent call last):\n  File "solution.py", line 2, in <module>\n{message}\n'
    return ExecutionRawResult(stdout="", stderr=stderr, exit_code=1, duration_seconds=0.0, timed_out=False)
