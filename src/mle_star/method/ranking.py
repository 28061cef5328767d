"""Order among scored scripts. Only `is_improvement` knows which score is better."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cmp_to_key
from typing import TypeVar

from mle_star.models import EvaluationResult, MetricDirection, SolutionScript, is_improvement

T = TypeVar("T")


def is_better_solution(new_result: EvaluationResult, old_score: float, direction: MetricDirection) -> bool:
    """Does a run without error beat a known score, strictly?"""
    if new_result.is_error or new_result.score is None:
        return False
    return is_improvement(new_result.score, old_score, direction)


def best_first(items: Iterable[T], score: Callable[[T], float | None], direction: MetricDirection) -> list[T]:
    """The items by their scores; those without one come last, ties keep their order."""

    def compare(left: T, right: T) -> int:
        first, second = score(left), score(right)
        if first is None or second is None:
            return (first is None) - (second is None)
        if is_improvement(first, second, direction):
            return -1
        return 1 if is_improvement(second, first, direction) else 0

    return sorted(items, key=cmp_to_key(compare))


def rank_solutions(
    solutions: list[SolutionScript], results: list[EvaluationResult], direction: MetricDirection
) -> list[tuple[SolutionScript, EvaluationResult]]:
    """Best first: scored ones, then those without a score, then all that failed; ties keep their order."""
    if len(solutions) != len(results):
        raise ValueError(f"{len(solutions)} solutions but {len(results)} results")
    scored = list(zip(solutions, results, strict=True))
    ran, failed = ([pair for pair in scored if pair[1].is_error is error] for error in (False, True))
    return [*best_first(ran, lambda pair: pair[1].score, direction), *failed]
