"""What the tests of Phase 2 and Phase 3 share: scripts with blocks, replies by rule, and how to read a log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mle_star.models import CodeBlock, MetricDirection, SolutionPhase, SolutionScript

from .conftest import ScriptedAgents, ScriptedCall, fenced

BLOCK = "level = 0.5"
FAILURES = ("coder", "crash", "planner")
"""The ways in which an attempt can fail, beside a score."""

Outcome = float | str


def base_script(level: float = 0.5, blocks: int = 0) -> str:
    """A real script that scores `level`, with `blocks` lines that later blocks can replace."""
    lines = [
        "from pathlib import Path",
        f"level = {level}",
        *(f"part_{t} = 0" for t in range(blocks)),
        "Path('final').mkdir(exist_ok=True)",
        "Path('final/submission.csv').write_text('id,target\\n1,0\\n2,1\\n')",
        "print(f'Final Validation Performance: {level}')",
    ]
    return "\n".join(lines) + "\n"


def base_solution(level: float = 0.5, blocks: int = 0) -> SolutionScript:
    """The script that a loop starts from."""
    return SolutionScript(content=base_script(level, blocks), phase=SolutionPhase.merged, score=level)


def block(content: str = BLOCK, t: int | None = 0) -> CodeBlock:
    """The block that an outer step chose."""
    return CodeBlock(content=content, outer_step=t)


def at_least_as_good(new: float, old: float, direction: MetricDirection) -> bool:
    """The comparison of the reference models, written down once more."""
    return new >= old if direction is MetricDirection.maximize else new <= old


def code_for(outcome: Outcome, mark: str, before: str = "") -> str:
    """What the coder writes for an outcome: a level to score, or a line that crashes; `mark` tells blocks apart."""
    if outcome == "crash":
        return f"{before}raise RuntimeError('{mark}')"
    return f"{before}level = {outcome}  # {mark}"


def play_attempts(agents: ScriptedAgents, attempts: Sequence[Outcome], mark: str = "", before: str = "") -> None:
    """Queue the planner's and the coder's replies for one inner loop; nobody can repair a crash."""
    agents.always("debugger", "I cannot repair this.")
    for k, outcome in enumerate(attempts):
        if k > 0:
            agents.reply("planner", "" if outcome == "planner" else f"plan {mark}{k}")
        if k > 0 and outcome == "planner":
            continue
        failed = outcome in ("coder", "planner")  # the first attempt has no planner to fail
        agents.reply("coder", "No code today." if failed else fenced(code_for(outcome, f"{mark}k{k}", before)))


def section(prompt: str, heading: str) -> str:
    """The text below one `# Heading` of a prompt, up to the next one."""
    parts = re.split(r"^# (.+)$", prompt, flags=re.MULTILINE)
    return next(text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name.strip() == heading)


def says(caplog: pytest.LogCaptureFixture, level: int, *fragments: str) -> bool:
    """Is there a log record of this level with all these fragments?"""
    return any(
        record.levelno == level and all(fragment in record.getMessage() for fragment in fragments)
        for record in caplog.records
    )


def assert_says(caplog: pytest.LogCaptureFixture, *expected: tuple[int, tuple[str, ...]]) -> None:
    """Every expected record is there; the message lists what is."""
    said = "\n".join(f"{logging.getLevelName(r.levelno)} {r.getMessage()}" for r in caplog.records)
    for level, fragments in expected:
        assert says(caplog, level, *fragments), f"{logging.getLevelName(level)} {fragments} is not in:\n{said}"


def then(*steps: Callable[[ScriptedCall], None], reply: Any) -> Callable[[ScriptedCall], Any]:
    """A reply that does something first."""

    def answer(call: ScriptedCall) -> Any:
        for step in steps:
            step(call)
        return reply

    return answer
