"""The phases of a run, in their order. Whoever needs their names, titles or kinds of scripts looks here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from mle_star.models.agents import Sizes
from mle_star.models.enums import SolutionPhase

PhaseName = Literal["phase1", "phase2", "phase3", "finalization"]


class Phase(NamedTuple):
    """One phase. Its share of the time is the setting of its name in `PhaseTimeBudget`."""

    name: PhaseName
    short: str
    title: str
    makes: SolutionPhase  # what its scripts are
    scripts: Callable[[Sizes], int]  # how many run when all goes well

    @property
    def heading(self) -> str:
        """Its full title."""
        return f"{self.short}: {self.title}"


PHASES = (
    Phase("phase1", "Phase 1", "initial solution generation", SolutionPhase.merged, lambda n: 2 * n.M - 1),
    Phase("phase2", "Phase 2", "refinement", SolutionPhase.refined, lambda n: n.L * n.T * (1 + n.K)),
    Phase("phase3", "Phase 3", "ensemble", SolutionPhase.ensemble, lambda n: n.R),
    Phase("finalization", "Finalization", "submission", SolutionPhase.final, lambda n: 1),
)
ORDER: dict[str, int] = {phase.name: number for number, phase in enumerate(PHASES)}


def phase_of(step: str) -> str:
    """The name of the phase that a step belongs to; empty for the run as a whole."""
    name = step.partition("/")[0]
    return name if name in ORDER else ""


def phases_after(name: PhaseName) -> tuple[Phase, ...]:
    """The phases that follow one."""
    return PHASES[ORDER[name] + 1 :]


def kind_of_script(step: str) -> SolutionPhase:
    """What a script is, by the step that it ran in."""
    if step.startswith("phase1/candidate"):
        return SolutionPhase.init
    return PHASES[ORDER.get(phase_of(step), -1)].makes
