"""The texts of the prompts: one file per agent and variant, put together from shared pieces by Jinja."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

DEFAULT_VARIANTS = {"leakage": "detection"}
"""Which variant is meant where an agent has no plain template."""


@cache
def template_text(agent: str, variant: str | None = None) -> str:
    """The template of an agent, its slots still open."""
    variant = variant or DEFAULT_VARIANTS.get(agent)
    name = agent if variant is None else f"{agent}_{variant}"
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, autoescape=False)
    return environment.get_template(f"{name}.md.j2").render()


@cache
def _pieces() -> dict[str, str]:
    text = (Path(__file__).parent / "told.md").read_text(encoding="utf-8")
    found = re.findall(r"^=== (\w+)\n(.*?)(?=\n===|\Z)", text, re.DOTALL | re.MULTILINE)
    return {name: piece.rstrip("\n") for name, piece in found}


def told_piece(name: str, **slots: str) -> str:
    """A section that is told beyond the specification, its slots filled in one pass."""
    return re.sub(r"\{(\w+)\}", lambda match: slots[match[1]], _pieces()[name])
