"""The enums of the specification, its phases, and what is special about a language model."""

from collections.abc import Callable
from enum import Enum
from typing import Literal, NamedTuple

from mle_star.agents import Sizes


class TaskType(str, Enum):
    """What kind of prediction a task asks for."""

    classification = "classification"
    regression = "regression"
    image_classification = "image_classification"
    image_to_image = "image_to_image"
    text_classification = "text_classification"
    audio_classification = "audio_classification"
    sequence_to_sequence = "sequence_to_sequence"
    tabular = "tabular"


class DataModality(str, Enum):
    """What kind of data a task comes with."""

    tabular = "tabular"
    image = "image"
    text = "text"
    audio = "audio"
    mixed = "mixed"


class MetricDirection(str, Enum):
    """Whether large or small values of the metric win."""

    maximize = "maximize"
    minimize = "minimize"

    @classmethod
    def of(cls, maximize: bool | None) -> "MetricDirection | None":
        """The direction, where one is given."""
        return None if maximize is None else cls.maximize if maximize else cls.minimize

    @property
    def better_word(self) -> str:
        """What a better score is, for texts: `higher` or `lower`."""
        return "higher" if self is MetricDirection.maximize else "lower"


class SolutionPhase(str, Enum):
    """The stage that produced a script."""

    init = "init"
    merged = "merged"
    refined = "refined"
    ensemble = "ensemble"
    final = "final"


class CodeBlockCategory(str, Enum):
    """What a block of a script is about."""

    preprocessing = "preprocessing"
    feature_engineering = "feature_engineering"
    model_selection = "model_selection"
    training = "training"
    hyperparameter_tuning = "hyperparameter_tuning"
    ensemble = "ensemble"
    postprocessing = "postprocessing"
    other = "other"


ToolProfile = Literal["minimal", "full"]


# --- the phases of a run, in their order, with names, titles and kinds of scripts ---------------------------------


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


def kind_of_script(step: str) -> SolutionPhase:
    """What a script is, by the step that it ran in."""
    is_first = step.startswith("phase1/candidate")
    return SolutionPhase.init if is_first else PHASES[ORDER.get(phase_of(step), -1)].makes


# --- models: the one place that knows what `offline` means, others ask for a trait ---------------------------------

OFFLINE = "offline"
"""The embedded engineer: built-in rules instead of a language model."""


class Traits(NamedTuple):
    """How a model is reached, what it is told and what it costs."""

    title: str
    wire_name: str
    """What requests call it."""
    kind: str = "language model"
    author: str = "a language model"
    call_seconds: float = 25.0
    """What a call takes before one was measured."""
    is_embedded: bool = False
    """It has a server of its own, for all agents or none: no key, no price, no cap of money.

    It reads facts instead of prose, looks at the tables itself, and is sent no tools. It replies in less time than a
    client takes to start: one client serves all agents. Its scripts watch the clock and fail seldom: none is tried on a
    sample first.
    """
    unknown_data: tuple[str, ...] = ()
    """Kinds of data that it can do nothing with."""


_ENGINEER = Traits(
    title=OFFLINE,
    wire_name="mle-star-offline",
    kind="built-in rules, no language model",
    author="rules",
    call_seconds=1.0,
    is_embedded=True,
    unknown_data=("image", "audio"),
)


def traits_of(model: str) -> Traits:
    """What is special about the model of this name."""
    return _ENGINEER if model in (OFFLINE, _ENGINEER.wire_name) else Traits(model, model)
