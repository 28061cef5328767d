"""What an agent is, which there are, their prompts, and what those answer that answer in JSON.

Every folder of `mle_star/agents` is an agent: `AGENT` in its `__init__.py`, and one text per request: `prompt.md`, or
`VARIANT.md`. Texts have `{slots}` for values and for the shared texts in `pieces/`, whose names begin with an
underscore there. Every table of agents is made from these.
"""

import json
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, model_validator

from mle_star.models.enums import Frozen, Sizes

_FOLDER = Path(__file__).parents[1] / "agents"
CAP = ("subsample_instruction", "subsample_limit")
"""What a prompt takes that limits the training rows."""
READ = ("Read",)
ACT = ("Bash", "Edit", "Write", "Read")


def _add_others(members: dict[str, Any]) -> None:
    for found in pkgutil.iter_modules([str(_FOLDER)]):
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


class RetrievedModel(Frozen):
    """A model worth trying, with code that shows how."""

    model_name: str
    example_code: str


def _as_text(value: Any) -> str:
    """A remark as text, whatever JSON it came as: nothing that is merely told to others refuses an answer."""
    if isinstance(value, list):
        return "\n".join(map(_as_text, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if value else ""


class RetrieverOutput(ListReply):
    """The retriever's answer."""

    models: list[RetrievedModel]


class RetrieverNotes(RetrieverOutput):
    """The retriever's answer with `notes`: what it found beyond the models."""

    notes: Annotated[str, BeforeValidator(_as_text)] = ""


class RefinePlan(Frozen):
    """A block and what to do with it."""

    code_block: str
    plan: str


class ExtractorOutput(ListReply):
    """The extractor's answer."""

    plans: list[RefinePlan]


class LeakageAnswer(Frozen):
    """One preprocessing block and whether it leaks."""

    leakage_status: Literal["Yes Data Leakage", "No Data Leakage"]
    code_block: str


class LeakageDetectionOutput(ListReply):
    """The leakage checker's answer."""

    answers: list[LeakageAnswer]


class DataContaminationResult(Frozen):
    """Is the solution its own work, or a copy of a discussion?"""

    verdict: Literal["Novel", "Same"]


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


AGENTS: dict[AgentType, Agent] = {agent: import_module(f"mle_star.agents.{agent.value}").AGENT for agent in AgentType}


@cache
def template_text(agent: AgentType, variant: str | None = None) -> str:
    """The template of a request with the shared pieces in it, its slots still open."""
    return _read(_FOLDER / agent.value / f"{variant or AGENTS[agent].usual or 'prompt'}.md")


def piece(name: str) -> str:
    """A text that several prompts share."""
    return _read(_FOLDER / "pieces" / f"{name}.md")


def _read(path: Path) -> str:
    return re.sub(r"\{_(\w+)\}", lambda match: piece(match[1]), path.read_text(encoding="utf-8").removesuffix("\n"))


@cache
def _sections() -> dict[str, str]:
    found = re.findall(r"^=== (\w+)\n(.*?)(?=\n===|\Z)", piece("context"), re.DOTALL | re.MULTILINE)
    return {name: text.rstrip("\n") for name, text in found}


def section(name: str, **slots: str) -> str:
    """A section beyond the specification, its slots filled in one pass."""
    return re.sub(r"\{(\w+)\}", lambda match: slots[match[1]], _sections()[name])
