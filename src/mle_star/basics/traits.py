"""What is special about a model. The one place that knows what `offline` means: others ask for a trait."""

from __future__ import annotations

from typing import NamedTuple

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
    is_free: bool = False
    """No key, no price, no cap of money."""
    is_embedded: bool = False
    """It has a server of its own, for all agents or none."""
    reads_prose: bool = True
    """Else it reads facts and looks at the tables itself."""
    uses_tools: bool = True
    one_client: bool = False
    """It replies in less time than a client takes to start, and is sent no tools: one client serves all agents."""
    keeps_time: bool = False
    """Its scripts watch the clock and fail seldom: none is tried on a sample first."""
    unknown_data: tuple[str, ...] = ()
    """Kinds of data that it can do nothing with."""


_ENGINEER = Traits(
    title="offline (embedded engineer)",
    wire_name="mle-star-offline",
    kind="rules, no language model",
    author="rules",
    call_seconds=1.0,
    is_free=True,
    is_embedded=True,
    reads_prose=False,
    uses_tools=False,
    one_client=True,
    keeps_time=True,
    unknown_data=("image", "audio"),
)


def traits_of(model: str) -> Traits:
    """What is special about the model of this name."""
    return _ENGINEER if model in (OFFLINE, _ENGINEER.wire_name) else Traits(model, model)
