"""Reads what the engineer is sent: the headed parts of a prompt, its fenced blocks, the facts in the system prompt."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADING = re.compile(r"^(#{1,4})[ \t]+(.+?)[ \t]*$")
_FENCE = re.compile(r"^(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*$")
_ROW_LIMIT = re.compile(r"more than (\d[\d,_]*) training samples")


@dataclass(frozen=True)
class Part:
    """What stands under one heading: its text without fenced blocks, and those blocks."""

    heading: str
    text: str
    blocks: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """What the system prompt says about the task and the machine."""

    description: str
    metric: str
    direction: str
    data_folder: str
    packages: tuple[str, ...]

    def has(self, package: str) -> bool:
        """Can scripts import this package?"""
        return package in self.packages or (not self.packages and package == "sklearn")


def parts_of(prompt: str) -> list[Part]:
    """The parts of a prompt in order; headings inside fenced blocks do not count. Text above the first has none."""
    parts: list[Part] = []
    heading, text, blocks = "", list[str](), list[str]()
    lines = prompt.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        fence = _FENCE.match(line)
        if fence:
            end = _closing(lines, number, fence[1])
            blocks.append("\n".join(lines[number + 1 : end]))
            number = end + 1
            continue
        title = _HEADING.match(line)
        if title:
            parts.append(Part(heading, "\n".join(text).strip(), tuple(blocks)))
            heading, text, blocks = title[2], [], []
        else:
            text.append(line)
        number += 1
    parts.append(Part(heading, "\n".join(text).strip(), tuple(blocks)))
    return parts


def _closing(lines: list[str], start: int, fence: str) -> int:
    """The line that closes the fence opened at `start`: the last bare one before the next heading outside a fence."""
    for number in range(start + 1, len(lines)):
        if lines[number].strip() == fence:
            return number
    return len(lines)


def find(parts: list[Part], pattern: str) -> Part | None:
    """The first part whose heading matches."""
    return next((part for part in parts if re.search(pattern, part.heading, re.IGNORECASE)), None)


def block_under(parts: list[Part], pattern: str) -> str:
    """The first fenced block under a heading that matches, or its text, or nothing."""
    part = find(parts, pattern)
    if part is None:
        return ""
    return part.blocks[0] if part.blocks else part.text


def blocks_of(parts: list[Part]) -> list[str]:
    """Every fenced block of a prompt."""
    return [block for part in parts for block in part.blocks]


def row_limit(prompt: str, default: int = 30_000) -> int:
    """The number of training rows that the prompt allows."""
    found = _ROW_LIMIT.search(prompt)
    return int(re.sub(r"[,_]", "", found[1])) if found else default


def tried_plans(prompt: str) -> list[tuple[str, float | None]]:
    """The plans that a prompt lists as tried, with their scores; None for one that did not run."""
    pattern = re.compile(r"^## Plan:[ \t]*(.*?)\n## Score:[ \t]*([^\n]*)", re.DOTALL | re.MULTILINE)
    tried: list[tuple[str, float | None]] = []
    for plan, score in pattern.findall(prompt):
        try:
            tried.append((plan.strip(), float(score)))
        except ValueError:
            tried.append((plan.strip(), None))
    return tried


def read_setting(system: str) -> Setting:
    """The facts of the system prompt. Its headings are looked for from the end: a description may hold the same."""
    texts, end = dict[str, str](), len(system)
    for title in ("Python", "Hardware", "Data", "Metric", "Task"):
        found = list(re.finditer(rf"^# {title}[ \t]*$", system[:end], re.MULTILINE))
        if found:
            place = found[0] if title == "Task" else found[-1]
            texts[title] = system[place.end() : end].strip()
            end = place.start()
    words = texts.get("Metric", "")
    folder = re.search(r"data folder is `([^`\n]+)`", texts.get("Data", system))
    packages = {
        _import_name(name) for name in re.findall(r"^[-*\s]*([\w.-]+)==", texts.get("Python", ""), re.MULTILINE)
    }
    return Setting(
        description=texts.get("Task", ""),
        metric=_metric_name(words),
        direction="minimize" if re.search(r"\bminimi[sz]", words, re.IGNORECASE) else "maximize",
        data_folder=folder[1] if folder else "./input",
        packages=tuple(sorted(packages)),
    )


def _metric_name(words: str) -> str:
    quoted = re.search(r"`([^`]+)`", words)
    if quoted and not re.fullmatch(r"(maxi|mini)mi[sz]e", quoted[1]):
        return quoted[1]
    return re.sub(r"\b(maximize|minimize)\b.*", "", words, flags=re.IGNORECASE | re.DOTALL).strip(" ,.:;()\n")


def _import_name(name: str) -> str:
    known = {"scikit-learn": "sklearn", "xgboost-cpu": "xgboost", "pytorch": "torch"}
    return known.get(name.lower(), name.lower().replace("-", "_"))
