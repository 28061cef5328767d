"""What scripted agents write and answer: tiny real scripts, and replies with models, leaks, plans or nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mle_star.models import AgentConfig, AgentType, CodeBlock, Phase1Result, SolutionPhase, SolutionScript

BOTH, LETTER = pytest.mark.modes("delivered", "letter"), pytest.mark.modes("letter")
BLOCK = "level = 0.5"
GARBAGE = "I am not sure about this one: {oops, and no code either."
Reply = Any
"""Text, a structured value (dict, list, model), an `AgentReply`, an exception to raise, or a callable of the call
(`ScriptedCall`) that gives one of these."""


def fenced(*codes: str) -> Any:
    """Code as an agent sends it; several codes give a tuple of replies."""
    replies = tuple(f"Here it is.\n\n```python\n{code}\n```\n" for code in codes)
    return replies[0] if len(replies) == 1 else replies


def script(score: float | str, *, note: str = "") -> str:
    """A tiny real script that prints `score` and leaves a submission; `note` tells two of them apart."""
    lines = [
        "from pathlib import Path",
        f"level = {score}",
        "Path('final').mkdir(exist_ok=True)",
        "Path('final/submission.csv').write_text('id,target\\n1,0\\n2,1\\n')",
        "print(f'Final Validation Performance: {level}')",
    ]
    return "\n".join([f"# {note}", *lines] if note else lines)


def broken_script(message: str = "broken", *, note: str = "") -> str:
    lines = ["level = 0.0", f"raise RuntimeError({message!r})", "print(f'Final Validation Performance: {level}')"]
    return "\n".join([f"# {note}", *lines] if note else lines)


def solution(content: str, *, score: float | None = None, phase: SolutionPhase = SolutionPhase.init) -> SolutionScript:
    return SolutionScript(content=content, phase=phase, score=score)


NOTES = {"a": 0.5, "b": 0.6}
INPUTS = [solution(script(NOTES[n], note=n), score=NOTES[n], phase=SolutionPhase.refined) for n in NOTES]
"""What paths hand to Phase 3."""


def phase1_of(best: SolutionScript) -> Phase1Result:
    found: dict[str, Any] = {"candidate_solutions": [best], "candidate_scores": [best.score]}
    return Phase1Result(retrieved_models=[], initial_solution=best, initial_score=best.score or 0.0, **found)


def base_solution(level: float = 0.5, blocks: int = 0) -> SolutionScript:
    """The script that a loop starts from, with `blocks` lines that later blocks can replace."""
    first = f"level = {level}\n"
    content = script(level).replace(first, first + "".join(f"{part(t)}\n" for t in range(blocks)))
    return solution(f"{content}\n", score=level, phase=SolutionPhase.merged)


def part(t: int) -> str:
    return f"part_{t} = 0"


def block(content: str = BLOCK, t: int | None = 0) -> CodeBlock:
    return CodeBlock(content=content, outer_step=t)


@dataclass(frozen=True)
class ScriptedCall:
    """One call as the agents' protocol saw it."""

    agent: AgentType
    variant: str | None
    step: str
    config: AgentConfig
    prompt: str
    max_cost_usd: float | None

    @property
    def name(self) -> str:
        """`leakage-correction`, as in step names."""
        return self.agent.value if self.variant is None else f"{self.agent.value}-{self.variant}"


def by_step(**replies: Reply) -> Callable[[ScriptedCall], Reply]:
    """A reply by the place that asks: `by_step(candidate_0=..., merge_1=..., otherwise=...)`."""

    def choose(call: ScriptedCall) -> Reply:
        places = [place for place in replies if place.replace("_", "-") in call.step.split("/")]
        return replies[places[0] if places else "otherwise"]

    return choose


NO_LEAKAGE = {"answers": [{"leakage_status": "No Data Leakage", "code_block": "x = 1"}]}


def leaky(*blocks: str) -> dict[str, Any]:
    return {"answers": [{"leakage_status": "Yes Data Leakage", "code_block": block} for block in blocks]}


def models(*names: str) -> dict[str, Any]:
    return {"models": [{"model_name": name, "example_code": f"{name}()"} for name in names]}


def plans(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"plans": [{"code_block": code, "plan": plan} for code, plan in pairs]}
