"""The texts of the prompts: one file per agent and variant, with `{slots}` for values and shared pieces."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

DEFAULT_VARIANTS = {"leakage": "detection"}
"""Which variant is meant where an agent has no plain template."""


@cache
def template_text(agent: str, variant: str | None = None) -> str:
    """The template of an agent with the shared pieces in it, its slots still open."""
    variant = variant or DEFAULT_VARIANTS.get(agent)
    return _read(agent if variant is None else f"{agent}_{variant}")


def _read(name: str) -> str:
    """A file; a slot whose name begins with an underscore is another one, put in its place."""
    text = (Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8").removesuffix("\n")
    return re.sub(r"\{(_\w+)\}", lambda match: _read(match[1]), text)


@cache
def _pieces() -> dict[str, str]:
    text = (Path(__file__).parent / "told.md").read_text(encoding="utf-8")
    found = re.findall(r"^=== (\w+)\n(.*?)(?=\n===|\Z)", text, re.DOTALL | re.MULTILINE)
    return {name: piece.rstrip("\n") for name, piece in found}


def told_piece(name: str, **slots: str) -> str:
    """A section that is told beyond the specification, its slots filled in one pass."""
    return re.sub(r"\{(\w+)\}", lambda match: slots[match[1]], _pieces()[name])
