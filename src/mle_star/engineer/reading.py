"""Reads what the engineer is sent: the headed parts of a prompt, its fenced blocks, its facts, the system prompt."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mle_star.engineer.profile import LIBRARIES

_HEADING = re.compile(r"^(#{1,4})[ \t]+(.+?)[ \t]*$")
_FENCE = re.compile(r"^(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*$")
_FOLDER = "The data folder is `"


@dataclass(frozen=True)
class Part:
    """What stands under one heading: its text without fenced blocks, and those blocks."""

    heading: str
    text: str
    blocks: tuple[str, ...]


def parts_of(prompt: str) -> list[Part]:
    """The parts of a prompt in order; headings inside fenced blocks do not count. Text above the first has none."""
    parts: list[Part] = []
    heading, text, blocks = "", list[str](), list[str]()
    lines = iter(prompt.splitlines())
    for line in lines:
        fence, title = _FENCE.match(line), _HEADING.match(line)
        if fence:
            inside = []
            while (inner := next(lines, fence[1])).strip() != fence[1]:
                inside.append(inner)
            blocks.append("\n".join(inside))
        elif title:
            parts.append(Part(heading, "\n".join(text).strip(), tuple(blocks)))
            heading, text, blocks = title[2], [], []
        else:
            text.append(line)
    return [*parts, Part(heading, "\n".join(text).strip(), tuple(blocks))]


@dataclass(frozen=True)
class Question:
    """A request taken apart."""

    agent: str
    variant: str
    system: str
    parts: list[Part]
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, agent: str, variant: str | None, system: str, prompt: str) -> Question:
        """The question behind a prompt; without a section of facts there are none."""
        parts = parts_of(prompt)
        facts = [block for part in parts if part.heading == "Facts" for block in part.blocks]
        return cls(agent, variant or "", system, parts, json.loads(facts[-1]) if facts else {})

    def block(self, *headings: str) -> str:
        """The first fenced block, or else the text, under the first heading that begins so."""
        part = next((part for part in self.parts if part.heading.startswith(headings)), None)
        return "" if part is None else part.blocks[0] if part.blocks else part.text

    def blocks(self, ending: str) -> list[str]:
        """Every block under headings that end so, or begin so."""
        wanted = (part for part in self.parts if part.heading.endswith(ending) or part.heading.startswith(ending))
        return [block for part in wanted for block in part.blocks]

    @property
    def tried(self) -> list[tuple[str, float | None]]:
        """The plans that were tried, with their scores; None for one that did not run."""
        parts = (part for part in self.parts if part.heading.startswith("Plan:"))
        plans = [part.heading.removeprefix("Plan:") + "\n" + part.text for part in parts]
        scores = self.facts.get("scores") or [None] * len(plans)
        return list(zip(plans[-len(scores) :], scores, strict=False))

    @property
    def before(self) -> list[str]:
        """How the plans begin that earlier steps of the path have tried."""
        return [str(plan) for plan in self.facts.get("tried") or ()]

    # --- the system prompt ---

    @property
    def metric(self) -> str:
        """The metric as the task names it."""
        if "metric" in self.facts:
            return str(self.facts["metric"])
        return self._section("Metric").partition("`")[2].partition("`")[0]

    @property
    def folder(self) -> Path:
        """Where the data lies."""
        return Path(self.system.rpartition(_FOLDER)[2].partition("`")[0] if _FOLDER in self.system else "./input")

    @property
    def description(self) -> str:
        """What the task's author wrote: from the first heading of that name to the last of the next."""
        _, found, rest = f"\n{self.system}".partition("\n# Task\n")
        return rest.rpartition("\n# Metric\n")[0].strip() if found else ""

    @property
    def packages(self) -> tuple[str, ...]:
        """What scripts may import, by the names that they import."""
        lines = [line for line in self._section("Python").splitlines() if "==" in line]
        names = [line.partition("==")[0].strip("- ").lower() for line in lines]
        return tuple(sorted({LIBRARIES.get(name, name.replace("-", "_")) for name in names}))

    def _section(self, title: str) -> str:
        return f"\n{self.system}".rpartition(f"\n# {title}\n")[2].partition("\n# ")[0]


def fenced(code: str) -> str:
    """Code as the one block of a reply, in a fence that nothing inside can close."""
    longest = max((len(run) for run in re.findall("`{3,}", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{code.rstrip()}\n{fence}"
