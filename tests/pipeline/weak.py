"""A weak model: one reply in three can be used, drawn by seed; the others are what small models write as well."""

import asyncio
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from claude_agent_sdk import ResultMessage

from mle_star import AgentConfig, AgentError, ExecutionRawResult
from mle_star.engineer.server import BrainReply, BrainRequest
from mle_star.method.codeblocks import compiles
from mle_star.run.context import ScriptRequest
from mle_star.run.events import AgentReply
from mle_star.sdk.replies import Turn, outcome_of
from tests.pipeline.mind import Mind, MindAgents, crash

PROSE = "Certainly! A model of this kind should do well here. First look at the data, then validate with five folds."
OTHER = "library(data.table)\ntrain <- fread('input/train.csv')\nfor (i in 1:5) {\n  print(train[i]$label)\n}\n" * 3
DRAFT = "```python\nimport pandas as pd\nprint(pd.read_csv('input/test.csv').head())\n```"


@dataclass
class WeakMind:
    """Another mind's answers, two in three of them spoilt; `kinds` says how."""

    seed: int
    mind: Mind = field(default_factory=Mind)
    kinds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def write(self, agent: str, variant: str | None, prompt: str) -> tuple[str, bool]:
        """A reply, and whether it was cut."""
        answer, usable = self.mind.answer(agent, variant, prompt), self._random.random() < 1 / 3
        if isinstance(answer, dict):
            whole = json.dumps(answer)
            good = [f"Here is my answer:\n```json\n{whole}\n```\nI hope it helps.", _triple_quoted(answer)]
            bad = {"prose": PROSE, "other keys": '{"answer": "yes", "notes": []}', "cut": whole[: len(whole) // 2]}
        else:
            good = [f"{PROSE}\n\n{answer}\n\nThis should work."]
            good += [f"First a look:\n\n{DRAFT}\n\nAnd all of it:\n\n{answer}"]
            bad = {"prose": PROSE, "other language": f"```r\n{OTHER}```", "untagged": f"```\n{OTHER}```"}
            bad["cut"] = answer[: len(answer) // 2]
            bad["wrong file"] = answer.replace("input/test.csv", "data/testing.csv")
        kind = "usable" if usable else self._random.choice(list(bad))
        self.kinds.append(kind)
        return self._random.choice(good) if usable else bad[kind], kind == "cut"


def _triple_quoted(answer: dict[str, Any]) -> str:
    """JSON as small models write it: code in the quotes of Python, with its line ends as they are."""
    return re.sub(r'"((?:[^"\\]|\\.)*\\n(?:[^"\\]|\\.)*)"', lambda m: f'"""{json.loads(m[0])}"""', json.dumps(answer))


@dataclass
class WeakBrain:
    """The weak mind behind the Messages API."""

    weak: WeakMind

    async def reply(self, request: BrainRequest) -> BrainReply:
        """A reply as a server without tools gives it."""
        text, cut = self.weak.write(request.agent, request.variant, request.prompt)
        return BrainReply(text=text, stop_reason="max_tokens" if cut else None, input_tokens=100, output_tokens=10)


@dataclass
class WeakAgents(MindAgents):
    """The weak mind behind the agents' protocol; its replies are read as those of the CLI are."""

    weak: WeakMind = field(default_factory=lambda: WeakMind(0))

    async def ask(
        self, config: AgentConfig, prompt: str, *, label: str, max_cost_usd: float | None, **more: Any
    ) -> AgentReply:
        """As the client does it: JSON that cannot be read is asked for once more."""
        for left in (1, 0):
            text, _ = self.weak.write(config.agent_type.value, config.variant, prompt)
            outcome = outcome_of(config, Turn(ResultMessage("success", 1, 1, False, 1, "session", result=text)))
            if isinstance(outcome, AgentReply):
                return outcome
            if not left:
                raise AgentError(outcome.message, agent=config.agent_type.value, reason=outcome.reason, attempts=2)
        raise AssertionError


async def as_python_would(request: ScriptRequest) -> ExecutionRawResult | None:
    """How a script ends that is no Python, or looks for a file that is not there; None: it runs."""
    text = await asyncio.to_thread(Path(request.script_path).read_text, encoding="utf-8")
    if not compiles(text):
        return crash("SyntaxError: invalid syntax")
    return crash("FileNotFoundError: data/testing.csv") if "data/testing.csv" in text else None
