"""Scores in the output of scripts. Pure functions of text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from mle_star.models import SCORE_PATTERN, MetricDirection

_PHRASE = "Final Validation Performance:"
_SCORE = re.compile(SCORE_PATTERN)
_ABLATION = "Ablation "
BASELINE = "baseline"
"""The name under which an ablation study prints the score of the unchanged solution."""


def parse_score(stdout: str) -> float | None:
    """The number of the last score line, or None when there is none, or none that is a finite number.

    A line with `nan` or `inf` is no score line; after a last hit that is no number (`0.85.`) no earlier one counts.
    """
    end = len(stdout)
    while (start := stdout.rfind(_PHRASE, 0, end)) >= 0:  # from the end: megabytes of log come before the score
        hit = _SCORE.match(stdout, start)
        if hit is not None:
            return _finite(hit[1])
        end = start
    return None


def parse_ablation_lines(stdout: str) -> dict[str, float]:
    """The scores that a study printed as `Ablation <name>: <score>`, in order; of a repeated name the last counts."""
    scores: dict[str, float] = {}
    for line in stdout.split("\n"):
        line = line.strip()
        if not line.startswith(_ABLATION):
            continue
        name, _, number = line[len(_ABLATION) :].rpartition(":")
        score = _finite(number)
        if name.strip() and score is not None:
            scores[name.strip()] = score
    return scores


def ablation_impacts(scores: Mapping[str, float], direction: MetricDirection) -> dict[str, float]:
    """How much worse than the baseline each variation scored, most harmful first; empty without a baseline."""
    baseline = next((score for name, score in scores.items() if name.lower() == BASELINE), None)
    if baseline is None:
        return {}
    sign = 1.0 if direction is MetricDirection.maximize else -1.0
    losses = {name: sign * (baseline - score) for name, score in scores.items() if name.lower() != BASELINE}
    return dict(sorted(losses.items(), key=lambda item: -item[1]))


def direction_word(direction: MetricDirection) -> str:
    """What a better score is: `higher` or `lower`."""
    return direction.better_word


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
