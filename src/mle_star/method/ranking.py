"""Order among judged scripts. Only `is_improvement` knows which score is better."""

from __future__ import annotations

from functools import cmp_to_key

from mle_star.models import EvaluationResult, MetricDirection, SolutionScript, is_improvement

Judged = tuple[SolutionScript, EvaluationResult]


def is_better_solution(new_result: EvaluationResult, old_score: float, direction: MetricDirection) -> bool:
    """Does a run without error beat a known score, strictly?"""
    if new_result.is_error or new_result.score is None:
        return False
    return is_improvement(new_result.score, old_score, direction)


def rank_solutions(
    solutions: list[SolutionScript], results: list[EvaluationResult], direction: MetricDirection
) -> list[tuple[SolutionScript, EvaluationResult]]:
    """Best first: scored ones, then those without a score, then all that failed; ties keep their order."""
    if len(solutions) != len(results):
        raise ValueError(f"{len(solutions)} solutions but {len(results)} results")

    def compare(left: Judged, right: Judged) -> int:
        tiers = _tier(left[1]) - _tier(right[1])
        if tiers or _tier(left[1]) > 0:
            return tiers
        first, second = left[1].score, right[1].score
        if first is None or second is None:
            return 0
        if is_improvement(first, second, direction):
            return -1
        return 1 if is_improvement(second, first, direction) else 0

    return sorted(zip(solutions, results, strict=True), key=cmp_to_key(compare))


def _tier(result: EvaluationResult) -> int:
    if result.is_error:
        return 2
    return 1 if result.score is None else 0
