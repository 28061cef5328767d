"""How values look inside a prompt: fences, histories, numbered solutions. Values themselves are never changed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mle_star.models import MetricDirection

FAILED_SCORE = "N/A (evaluation failed)"
BLOCK_NOT_FOUND = (
    "The previously extracted code block was not found in the solution. "
    "Please extract the code block exactly as it appears in the script."
)
"""What the extractor is told when its block was not part of the script; give it as `note`."""


def fenced(text: str, language: str = "python") -> str:
    """`text` as a Markdown code block; no run of backticks in it is as long as the fence, so that none can close it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st, ..."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def format_plan_history(
    plans: Sequence[str], scores: Sequence[float | None], title: str = "Improvement plans you have tried"
) -> str:
    """The plans tried so far with their scores, in order; empty when there are none."""
    if len(plans) != len(scores):
        raise ValueError(f"{len(plans)} plans with {len(scores)} scores")
    if not plans:
        return ""
    shown = [FAILED_SCORE if score is None else str(score) for score in scores]
    entries = [f"## Plan: {plan}\n## Score: {score}" for plan, score in zip(plans, shown, strict=True)]
    return "\n\n".join([f"# {title}", *entries])


def format_solutions(solutions: Sequence[str]) -> str:
    """The scripts to be ensembled, in full, each under its number."""
    return "\n\n".join(f"# {ordinal(n)} Python Solution\n\n{fenced(text)}" for n, text in enumerate(solutions, 1))


def format_summaries(summaries: Sequence[str]) -> str:
    """The ablation studies so far, numbered; blank ones are left out; empty when there are none."""
    return _numbered("Previous ablation studies", "Study", summaries, "text")


def format_previous_blocks(blocks: Sequence[str]) -> str:
    """The code blocks improved so far, numbered; blank ones are left out; empty when there are none."""
    return _numbered("Code blocks improved before", "Block", blocks)


def format_flagged_blocks(blocks: Sequence[str]) -> str:
    """The block that leaks, or several, numbered; blank ones are left out; empty when there are none."""
    shown = [text for text in blocks if text.strip()]
    if len(shown) == 1:
        return f"# Flagged block\n\n{fenced(shown[0])}"
    return _numbered("Flagged blocks", "Block", shown)


def format_metric(metric: str | None, direction: MetricDirection | str | None) -> str:
    """The metric to use, so that the scores of different scripts can be compared."""
    if not metric:
        return "# Metric\n\nUse the metric that the task names. If it names none, propose a sensible evaluation metric."
    lines = ["# Metric", "", f"- name: `{metric}`"]
    if direction:
        direction = MetricDirection(direction)
        lines.append(f"- direction: `{direction.value}` ({direction.better_word} is better)")
    rule = (
        "Use exactly this metric, so that the scores of different scripts can be compared. "
        "Propose a sensible evaluation metric of your own only for what it leaves open."
    )
    return "\n".join([*lines, "", rule])


def format_direction(direction: MetricDirection | str | None) -> str:
    """The comparative before "score"; both when the direction is not told."""
    return MetricDirection(direction).better_word if direction else "higher (or, for a metric to be minimized, lower)"


def format_subsampling(limit: int) -> str:
    """The sentence that caps the training rows."""
    return f"If there are more than {limit} training samples, you must subsample to {limit} for a faster run."


def _numbered(title: str, label: str, texts: Sequence[str], language: str = "python") -> str:
    shown = [text for text in texts if text.strip()]
    entries = [f"## {label} {number}\n\n{fenced(text, language)}" for number, text in enumerate(shown, 1)]
    return "\n\n".join([f"# {title}", *entries]) if shown else ""
