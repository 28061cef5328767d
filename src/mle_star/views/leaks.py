"""What checks for data leakage have found in scripts that were judged before: their scores count no longer."""

from __future__ import annotations

from dataclasses import dataclass

from mle_star.run.events import (
    LEAKS,
    CandidateEvaluated,
    DataUsageChecked,
    EnsembleTried,
    LeakageChecked,
    MergeTried,
    RefinementTried,
)
from mle_star.views.facts import ScriptRun, phase_of

Judged = CandidateEvaluated | MergeTried | DataUsageChecked | RefinementTried | EnsembleTried
"""What the method says of a script that it has judged."""
FOUND_LATER = "data leakage was found in it after it had been judged"


@dataclass
class Leak:
    """A script that leaks: the step of the check, and the step and score of the mended script that took its place."""

    check: str
    step: str = ""
    score: float | None = None

    def drops(self, one: Judged) -> bool:
        """Did the method go on without what it says it has judged? What earlier phases went on from stays so."""
        return phase_of(self.check) == phase_of(one.step)


class Leaks:
    """The leaking scripts of a run, by their digests; it does not matter when an attempt says that it was judged."""

    def __init__(self) -> None:
        self.known: dict[str, Leak] = {}
        self._mending: dict[str, list[Leak]] = {}

    def hear_check(self, event: LeakageChecked) -> None:
        """A check has found leaks; where all were mended, the script that runs next at its place is without them."""
        found = [self.known.setdefault(digest, Leak(event.step)) for digest in event.leaking]
        if event.fixed == event.found:
            self._mending[event.step.rpartition("/")[0]] = found

    def hear_script(self, run: ScriptRun) -> bool:
        """A script has run. Was it a mended one?"""
        if not run.counts or run.script in self.known:
            return False
        waiting = self._mending.pop(run.place, [])
        for leak in waiting:
            leak.step, leak.score = run.step, run.score
        return bool(waiting)


def without_score(one: Judged, *, dropped: bool) -> Judged:
    """The same without a score; `dropped`: the method went on without it."""
    why = LEAKS if dropped else FOUND_LATER
    told: dict[str, object] = {"score": None, "error": why, "reason": why}
    return _with(one, told | ({"accepted": False, "best": False} if dropped else {}))


def with_score(one: Judged, score: float) -> Judged:
    """The same with the score that its script has without the leak."""
    return _with(one, {"score": score, "best_score": score})


def _with(one: Judged, told: dict[str, object]) -> Judged:
    return one.model_copy(update={name: value for name, value in told.items() if name in type(one).model_fields})
