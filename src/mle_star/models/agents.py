"""Every agent by its type, and the texts of their prompts: all tables of agents are made from these."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

from mle_star.agents import Agent, AgentType

_FOLDER = Path(__file__).parents[1] / "agents"
AGENTS: dict[AgentType, Agent] = {agent: import_module(f"mle_star.agents.{agent.value}").AGENT for agent in AgentType}


@cache
def template_text(agent: AgentType, variant: str | None = None) -> str:
    """The template of a request with the shared pieces in it, its slots still open."""
    return _read(_FOLDER / agent.value / f"{variant or AGENTS[agent].usual or 'prompt'}.md")


def piece(name: str) -> str:
    """A text that several prompts share."""
    return _read(_FOLDER / "pieces" / f"{name}.md")


def _read(path: Path) -> str:
    return re.sub(r"\{_(\w+)\}", lambda match: piece(match[1]), path.read_text(encoding="utf-8").removesuffix("\n"))


@cache
def _sections() -> dict[str, str]:
    found = re.findall(r"^=== (\w+)\n(.*?)(?=\n===|\Z)", piece("context"), re.DOTALL | re.MULTILINE)
    return {name: text.rstrip("\n") for name, text in found}


def section(name: str, **slots: str) -> str:
    """A section beyond the specification, its slots filled in one pass."""
    return re.sub(r"\{(\w+)\}", lambda match: slots[match[1]], _sections()[name])
