"""A blend of what several scripts said: weights found by greedy forward selection, without training anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mle_star.data.dialect import with_point
from mle_star.holdout.answers import Answers, Ungradable
from mle_star.holdout.scorer import Scorer

MOST_STEPS = 20


def can_blend(scorer: Scorer) -> bool:
    """Can answers be averaged: numbers or probabilities?"""
    return scorer.metric.needs in ("numbers", "probabilities")


def find_weights(scorer: Scorer, predictions: Mapping[str, Answers], rows: Sequence[int]) -> dict[str, float]:
    """Weights by name (Caruana): the member that helps most is added again and again, repeats included.

    Only members that answer all of `rows` take part; the weights add up to one.
    """
    members = {name: a for name, a in predictions.items() if all(row in a.hidden for row in rows)}
    if not members:
        return {}
    pairs = {name: scorer.pair(a.hidden, rows) for name, a in members.items()}
    truth = next(iter(pairs.values()))[0]
    arrays = {name: said for name, (_, said) in pairs.items()}
    sign = 1 if scorer.metric.higher_is_better else -1
    chosen: list[str] = []
    total: Any = 0.0
    best = float("-inf")
    for step in range(1, MOST_STEPS + 1):
        scored = []
        for name, array in arrays.items():
            try:
                scored.append((sign * scorer.metric.compute(truth, (total + array) / step), name))
            except ValueError:
                continue
        if not scored:
            break
        figure, name = max(scored, key=lambda pair: pair[0])  # the first of equals, not the last by its text
        if figure <= best:
            break
        best, total = figure, total + arrays[name]
        chosen.append(name)
    counts = Counter(chosen)
    return {name: count / len(chosen) for name, count in counts.items()}


def blended(predictions: Mapping[str, Answers], weights: Mapping[str, float]) -> Answers:
    """The weighted mean of the members' answers."""
    members = [(weight, predictions[name]) for name, weight in weights.items()]
    rows = set.intersection(*(set(answers.hidden) for _, answers in members))

    def mean(cells: Sequence[tuple[float, tuple[str, ...]]]) -> tuple[str, ...]:
        width = len(cells[0][1])
        try:
            return tuple(repr(sum(weight * _number(said[i]) for weight, said in cells)) for i in range(width))
        except ValueError as error:
            raise Ungradable(f"an answer is no number: {error}") from None

    hidden = {row: mean([(weight, answers.hidden[row]) for weight, answers in members]) for row in rows}
    count = min(len(answers.real) for _, answers in members)
    real = tuple(mean([(weight, answers.real[i]) for weight, answers in members]) for i in range(count))
    return Answers(hidden, real)


def _number(text: str) -> float:
    """A number, with a decimal point or a decimal comma."""
    return float(with_point(text) if "," in text else text)
