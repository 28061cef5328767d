"""The agents: a folder each, with its declaration, what it answers where that is JSON, and its prompts.

Every folder here is an agent: `AGENT` in its `__init__.py`, and one text per request: `prompt.md`, or `VARIANT.md`.
Texts have `{slots}` for values and for the shared texts in `pieces/`, whose names begin with an underscore there. What
an agent is stands here; the tables that are made of them stand in `models/agents.py`, above.
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

CAP = ("subsample_instruction", "subsample_limit")
"""What a prompt takes that limits the training rows."""
READ = ("Read",)
ACT = ("Bash", "Edit", "Write", "Read")


def _add_others(members: dict[str, Any]) -> None:
    for found in pkgutil.iter_modules(__path__):
        if found.ispkg and found.name not in members:
            members[found.name] = found.name


class AgentType(str, Enum):
    """The fourteen agents of the specification, and any other that has a folder here."""

    retriever = "retriever"
    init = "init"
    merger = "merger"
    ablation = "ablation"
    summarize = "summarize"
    extractor = "extractor"
    coder = "coder"
    planner = "planner"
    ens_planner = "ens_planner"
    ensembler = "ensembler"
    debugger = "debugger"
    leakage = "leakage"
    data = "data"
    test = "test"
    _add_others(vars())


class Frozen(BaseModel):
    """Base of every model but `SolutionScript`: change a copy, `model_copy(update=...)`."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())


class ListReply(Frozen):
    """A list that is not empty; a bare JSON list is accepted, too."""

    @model_validator(mode="before")
    @classmethod
    def _some_entries(cls, value: Any) -> Any:
        name = next(iter(cls.model_fields))
        value = {name: value} if isinstance(value, list) else value
        if isinstance(value, dict) and not value.get(name, True):
            raise ValueError("at least one entry is needed")
        return value


class Sizes(NamedTuple):
    """The numbers of the paper: retrieved models, outer and inner steps, paths, ensemble rounds."""

    M: int
    T: int
    K: int
    L: int
    R: int


@dataclass(frozen=True, kw_only=True)
class Request:
    """One kind of request to an agent. Its prompt is the file beside the declaration that is named like its variant."""

    duty: str = ""  # of a variant: where it differs from its agent's
    figure: int = 0  # of the paper
    needs: tuple[str, ...] = ()  # values that its prompt must be given
    takes: tuple[str, ...] = ()  # values that have a default
    context: tuple[str, ...] = ()  # sections of `run.prompt_context` that it gets where the run has something to say
    schema: type[BaseModel] | None = None
    schemas: Mapping[str, type[BaseModel]] = field(default_factory=dict)  # instead, by parts of the briefing
    without_tools: bool = False  # whatever its agent has
    study: bool = False  # about a script that runs the solution several times
    history: str = "Improvement plans you have tried"  # heading of the plans so far


@dataclass(frozen=True, kw_only=True)
class Agent(Request):
    """An agent with its usual request: what the SDK, prompts, forecast, presets and budget know of it."""

    usual: str | None = None  # the variant that is meant where none is named; None: `prompt.md`
    variants: Mapping[str | None, Request] = field(default_factory=dict)
    tools: tuple[str, ...] = READ
    full_tools: tuple[str, ...] = READ  # with the tool profile `full`
    plans: bool = False  # decides by scores, and is told how sure they are
    alone: bool = False  # no other call runs beside it: what is left of the money is its own
    presets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # model and effort by preset
    planned: Mapping[str, Callable[[Sizes], int]] = field(default_factory=dict)  # calls by phase, without repairs
    scripts_read: float | None = 1.0  # for the forecast: scripts in its prompt; None: that of every path
    scripts_written: float = 0.25  # and in its reply

    @property
    def requests(self) -> dict[str | None, Request]:
        """All its requests by variant."""
        return {self.usual: self, **self.variants}

    def request(self, variant: str | None = None) -> Request:
        """What is declared of a variant; without one of the usual request."""
        return self.requests[variant or self.usual]
