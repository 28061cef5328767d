"""Two runs or two scripts side by side: what they came to, and what was different."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mle_star.models import is_improvement
from mle_star.views import text
from mle_star.views.story import RunStory
from mle_star.views.verdict import Verdict

MOST_LINES = 1500
COMPARED_LINES = 2000
Opcode = tuple[str, int, int, int, int]
Side = Literal["first", "second", ""]


def opcodes(before: str, after: str) -> list[Opcode]:
    """How the lines of one text become those of the other; very long texts are compared as a whole."""
    old, new = before.split("\n"), after.split("\n")
    if max(len(old), len(new)) > COMPARED_LINES and before != after:
        return [("replace", 0, len(old), 0, len(new))]
    return list(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes())


def unified(before: str, after: str, old_name: str, new_name: str) -> Iterator[str]:
    """The lines of a unified diff, without line ends. The whole texts are compared; only what is shown is cut."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), old_name, new_name, lineterm="")
    return map(text.clean, lines)


class Pair(NamedTuple):
    """One fact of both runs; `better` is the one that is ahead in it."""

    name: str
    first: str
    second: str
    better: Side = ""


@dataclass(frozen=True)
class Comparison:
    """What differs. `why_not` says why the scores cannot be compared."""

    facts: list[Pair]
    settings: list[Pair]
    script: list[str]
    why_not: str = ""

    @classmethod
    def of(cls, first: RunStory, second: RunStory, names: tuple[str, str] = ("A", "B")) -> Comparison:
        """Both as far as they have come."""
        why_not = _not_comparable(first, second)
        lines = list(unified(first.final_script, second.final_script, *names))
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = [f"[… {len(lines) - MOST_LINES:,} more lines …]"]
        return cls(_facts(first, second, bool(why_not)), _settings(first, second), lines, why_not)


def _not_comparable(first: RunStory, second: RunStory) -> str:
    if first.metric != second.metric:
        return f"one is scored by {text.one_line(first.metric, 40)}, the other by {text.one_line(second.metric, 40)}"
    if first.task is not None and second.task is not None and first.task.competition_id != second.task.competition_id:
        return "they are about different tasks"
    if first.score is None or second.score is None:
        return ""  # there is nothing to compare
    if Verdict(first).checked != Verdict(second).checked:
        return "one was measured on held-out rows, the other by its own script"
    if (first.expected is None) != (second.expected is None):
        return "one was measured on rows kept for the end, the other on those of its search"
    return ""


def _facts(first: RunStory, second: RunStory, apart: bool) -> list[Pair]:
    a, b = Verdict(first, alive=False), Verdict(second, alive=False)
    ahead: Side = ""
    if not apart and a.score is not None and b.score is not None and a.score != b.score:
        ahead = "first" if is_improvement(a.score, b.score, first.direction) else "second"
    found = [
        Pair("Task", f"{a.task}, {a.metric}", f"{b.task}, {b.metric}"),
        Pair("Score", text.score(a.score), text.score(b.score), ahead),
        Pair("Measured", a.sure, b.sure),
        Pair("State", a.state_title, b.state_title),
        Pair("Model", a.model, b.model),
        Pair("Cost", a.cost, b.cost, _less(first.totals.cost_usd, second.totals.cost_usd)),
        Pair("Time", a.time, b.time, _less(first.clock.seconds, second.clock.seconds)),
        Pair("Attempts", str(len(first.attempts)), str(len(second.attempts))),
        Pair("Why", a.why or "–", b.why or "–"),
    ]
    return [Pair(one.name, text.one_line(one.first, 400), text.one_line(one.second, 400), one.better) for one in found]


def _less(first: float, second: float) -> Side:
    return "" if first == second else "first" if first < second else "second"


def _settings(first: RunStory, second: RunStory) -> list[Pair]:
    """The settings that differ."""
    one, other = first.config.model_dump(), second.config.model_dump()
    return [
        Pair(name, text.one_line(str(one[name]), 200), text.one_line(str(other[name]), 200))
        for name in one
        if one[name] != other[name]
    ]
