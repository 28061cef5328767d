"""How a part tells of itself: what it is, its settings and their ranges, when it is worth trying, what may be tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mle_star.engineer.profile import Profile

Worth = Callable[["Profile"], float]


@dataclass(frozen=True)
class Setting:
    """A number that can be chosen: its usual value, its range, what it means; and its value where rows are few."""

    usual: float
    low: float
    high: float
    meaning: str
    small: float | None = None


@dataclass(frozen=True)
class Choice:
    """Something that can be done, as a plan says it: the first sentence names it, the next ones say why."""

    plan: str

    @property
    def title(self) -> str:
        """The sentence that names it."""
        return self.plan.partition(". ")[0]


@dataclass(frozen=True)
class Move(Choice):
    """A change of settings worth trying: a text `*2` multiplies, anything else replaces; `{}` is the model's name.

    `small` is its worth where rows are few, if that differs from `usual`; where `when` says no, it is worth nothing.
    """

    changes: Mapping[str, Any]
    usual: float
    small: float | None = None
    when: Callable[[Profile], Any] = lambda profile: True

    def worth(self, profile: Profile) -> float:
        """Its worth for a task."""
        worth = self.small if self.small is not None and profile.small else self.usual
        return worth if self.when(profile) else 0.0


@dataclass(frozen=True)
class Described:
    """A function of scripts that tells of itself: the first paragraph of its docstring is what a plan says of it."""

    function: Callable[..., Any]

    @property
    def key(self) -> str:
        """Its name in scripts."""
        return self.function.__name__.partition("_")[2]

    @property
    def choice(self) -> Choice:
        """It, as a plan says it."""
        return Choice(" ".join((inspect.getdoc(self.function) or "").partition("\n\n")[0].split()))


@dataclass(frozen=True)
class Step(Described):
    """A step that adds columns. It gets one frame, or, where it learns, the training rows with their truth.

    `on` gives the columns that it is for: where there are none, it is worth nothing.
    """

    on: Callable[[Profile], Iterable[str]]
    usual: float | Worth
    first: bool = False
    more: Callable[[Profile], dict[str, Any]] = lambda profile: {}

    @property
    def learns(self) -> bool:
        """Does it learn from training rows, so that it belongs inside the folds?"""
        return self.function.__name__.startswith("learn_")

    def worth(self, profile: Profile) -> float:
        """Its worth for a task."""
        usual = self.usual(profile) if callable(self.usual) else self.usual
        return usual if self.on(profile) else 0.0

    def settings(self, profile: Profile) -> dict[str, Any]:
        """Its settings for a task."""
        return {"columns": list(self.on(profile)), **self.more(profile)}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models. `start` gives settings for a task that differ from the usual; `search` those worth tuning.

    `reads`: it learns from words, too; `timed`: it watches the clock by itself.
    """

    name: str
    package: str = "sklearn"
    fit: Callable[..., Any]
    settings: Mapping[str, Setting]
    worth: Worth
    cheap: Mapping[str, Any] = field(default_factory=dict)
    ablations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    start: Callable[[Profile], dict[str, Any]] = lambda profile: {}
    search: tuple[str, ...] = ()
    reads: bool = False
    timed: bool = False

    @property
    def key(self) -> str:
        """Its name in scripts."""
        return self.fit.__name__.removeprefix("fit_")

    def usual(self, profile: Profile) -> dict[str, Any]:
        """The settings for a task."""
        usual = {name: setting.usual for name, setting in self.settings.items()}
        small = {name: setting.small for name, setting in self.settings.items() if setting.small is not None}
        return {**usual, **self.start(profile), **(small if profile.small else {})}


@dataclass(frozen=True)
class Blend(Described):
    """A way to make one prediction of several."""

    worth: Worth
