"""The agents: a folder each, with its declaration and its prompts. Every table of agents is made from these.

An agent's folder holds `AGENT` and one text per request: `prompt.md`, or `VARIANT.md`. Texts have `{slots}` for values
and for the shared texts in `pieces/`, whose names begin with an underscore there.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path

from mle_star.agents.declaration import Agent, AgentType, Request, Sizes

__all__ = ["AGENTS", "Agent", "AgentType", "Request", "Sizes", "piece", "section", "template_text"]

AGENTS: dict[AgentType, Agent] = {agent: import_module(f"{__name__}.{agent.value}").AGENT for agent in AgentType}
_HERE = Path(__file__).parent


@cache
def template_text(agent: AgentType, variant: str | None = None) -> str:
    """The template of a request with the shared pieces in it, its slots still open."""
    return _read(_HERE / agent.value / f"{variant or AGENTS[agent].usual or 'prompt'}.md")


def piece(name: str) -> str:
    """A text that several prompts share."""
    return _read(_HERE / "pieces" / f"{name}.md")


def _read(path: Path) -> str:
    text = path.read_text(encoding="utf-8").removesuffix("\n")
    return re.sub(r"\{_(\w+)\}", lambda match: piece(match[1]), text)


@cache
def _sections() -> dict[str, str]:
    found = re.findall(r"^=== (\w+)\n(.*?)(?=\n===|\Z)", piece("context"), re.DOTALL | re.MULTILINE)
    return {name: text.rstrip("\n") for name, text in found}


def section(name: str, **slots: str) -> str:
    """A section beyond the specification, its slots filled in one pass."""
    return re.sub(r"\{(\w+)\}", lambda match: slots[match[1]], _sections()[name])
