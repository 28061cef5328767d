"""A blend of what several scripts said, without training anything: the mean of numbers, the vote on labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mle_star.data.dialect import with_point
from mle_star.evaluation.grading import Answers, Judge, Ungradable

MOST_STEPS = 20
VOTERS = (3, 5, 7)
"""So many of the best scripts vote on labels."""


def can_blend(judge: Judge) -> bool:
    """Can answers be averaged, being numbers or probabilities, or be voted on, being labels?"""
    return judge.metric.needs in ("numbers", "probabilities", "labels")


def votes(judge: Judge) -> bool:
    """Do the members of a blend vote?"""
    return judge.metric.needs == "labels"


def best_voters(judge: Judge, bank: Mapping[str, Answers], rows: Sequence[int]) -> dict[str, float]:
    """How many of the members, which come in the order of their worth, say most together; each has one vote."""
    sign = 1 if judge.metric.higher_is_better else -1
    found: list[tuple[float, dict[str, float]]] = []
    for count in VOTERS:
        if count <= len(bank):
            weights = dict.fromkeys(list(bank)[:count], 1 / count)
            found.append((sign * judge.score(blended(bank, weights, vote=True).hidden, rows), weights))
    return max(found, key=lambda one: one[0])[1] if found else {}


def find_weights(judge: Judge, bank: Mapping[str, Answers], rows: Sequence[int]) -> dict[str, float]:
    """Weights by name (Caruana): the member that helps most is added again and again, repeats included.

    Only members that answer all of `rows` take part; the weights add up to one.
    """
    members = {name: a for name, a in bank.items() if all(row in a.hidden for row in rows)}
    if not members:
        return {}
    truths = [judge.data.truth[row] for row in rows]
    pairs = {name: judge.arrays(truths, [a.hidden[row] for row in rows]) for name, a in members.items()}
    truth = next(iter(pairs.values()))[0]
    arrays = {name: said for name, (_, said) in pairs.items()}
    sign = 1 if judge.metric.higher_is_better else -1
    chosen: list[str] = []
    total: Any = 0.0
    best = float("-inf")
    for step in range(1, MOST_STEPS + 1):
        scored = []
        for name, array in arrays.items():
            try:
                scored.append((sign * judge.metric.compute(truth, (total + array) / step), name))
            except ValueError:
                continue
        if not scored:
            break
        figure, name = max(scored)
        if figure <= best:
            break
        best, total = figure, total + arrays[name]
        chosen.append(name)
    counts = Counter(chosen)
    return {name: count / len(chosen) for name, count in counts.items()}


def blended(bank: Mapping[str, Answers], weights: Mapping[str, float], *, vote: bool = False) -> Answers:
    """The weighted mean of the members' answers, or what most of them say."""
    members = [(weight, bank[name]) for name, weight in weights.items()]
    rows = set.intersection(*(set(answers.hidden) for _, answers in members))

    def mean(cells: Sequence[tuple[float, tuple[str, ...]]]) -> tuple[str, ...]:
        width = len(cells[0][1])
        if vote:
            return tuple(_most_said([(weight, said[i]) for weight, said in cells]) for i in range(width))
        try:
            return tuple(repr(sum(weight * _number(said[i]) for weight, said in cells)) for i in range(width))
        except ValueError as error:
            raise Ungradable(f"an answer is no number: {error}") from None

    hidden = {row: mean([(weight, answers.hidden[row]) for weight, answers in members]) for row in rows}
    count = min(len(answers.real) for _, answers in members)
    real = tuple(mean([(weight, answers.real[i]) for weight, answers in members]) for i in range(count))
    return Answers(hidden, real)


def _most_said(cells: Sequence[tuple[float, str]]) -> str:
    """The answer with the most weight; of equal ones the first."""
    weights: dict[str, float] = {}
    for weight, cell in cells:
        weights[cell] = weights.get(cell, 0.0) + weight
    return max(weights, key=lambda cell: weights[cell])


def _number(text: str) -> float:
    """A number, with a decimal point or a decimal comma."""
    return float(with_point(text) if "," in text else text)
