"""The enums of the specification, and the base of its models."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import BaseModel, ConfigDict


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
    def of(cls, maximize: bool | None) -> MetricDirection | None:
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


class Frozen(BaseModel):
    """Base of every model but `SolutionScript`: change a copy, `model_copy(update=...)`."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())
