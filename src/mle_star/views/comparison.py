"""Two runs side by side: what they came to, and what was different."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from mle_star.models import is_improvement
from mle_star.views import text
from mle_star.views.diffs import unified
from mle_star.views.reasons import expected_of
from mle_star.views.story import RunStory
from mle_star.views.verdict import Verdict

MOST_LINES = 1500


class Pair(NamedTuple):
    """One fact of both runs; `better` is the one that is ahead in it."""

    name: str
    first: str
    second: str
    better: Literal["first", "second", ""] = ""


@dataclass(frozen=True)
class Comparison:
    """What differs. `why_not` says why the scores cannot be set against each other."""

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
        return ""  # there is nothing to set against anything
    if _is_scored(first) != _is_scored(second):
        return "one was measured on held-out rows, the other by its own script"
    if (expected_of(first) is None) != (expected_of(second) is None):
        return "one was measured on rows kept for the end, the other on those of its search"
    return ""


def _is_scored(story: RunStory) -> bool:
    return story.holdout is not None and not story.holdout.why_not


def _facts(first: RunStory, second: RunStory, apart: bool) -> list[Pair]:
    a, b = Verdict.of(first, alive=False), Verdict.of(second, alive=False)
    direction = first.direction
    ahead: Literal["first", "second", ""] = ""
    if not apart and a.score is not None and b.score is not None and a.score != b.score:
        ahead = "first" if is_improvement(a.score, b.score, direction) else "second"
    found = [
        Pair("Task", _task(first), _task(second)),
        Pair("Score", text.score(a.score), text.score(b.score), ahead),
        Pair("Measured by", a.measured, b.measured),
        Pair("State", a.state_title, b.state_title),
        Pair("Model", a.model, b.model),
        Pair("Cost", a.cost, b.cost, _less(first.totals.cost_usd, second.totals.cost_usd)),
        Pair("Time", a.time, b.time, _less(first.clock.seconds, second.clock.seconds)),
        Pair("Attempts", str(len(first.attempts)), str(len(second.attempts))),
        Pair("Why", a.why or "–", b.why or "–"),
    ]
    return [Pair(one.name, text.one_line(one.first, 400), text.one_line(one.second, 400), one.better) for one in found]


def _less(first: float, second: float) -> Literal["first", "second", ""]:
    return "" if first == second else "first" if first < second else "second"


def _task(story: RunStory) -> str:
    return (
        f"{story.task.competition_id} ({story.metric}, {story.direction.better_word} is better)" if story.task else "–"
    )


def _settings(first: RunStory, second: RunStory) -> list[Pair]:
    """The settings that differ."""
    one, other = first.config, second.config
    names = [name for name in type(one).model_fields if getattr(one, name) != getattr(other, name)]
    return [
        Pair(name, text.one_line(str(getattr(one, name)), 200), text.one_line(str(getattr(other, name)), 200))
        for name in names
    ]
