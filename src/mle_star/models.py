"""Every data model of the specification. Nothing here touches disk or network."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from enum import Enum
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    field_serializer,
    field_validator,
    model_validator,
)

_T = TypeVar("_T")

SCORE_PATTERN = r"Final Validation Performance:\s*([\d.eE+-]+)"
"""The score line that every solution prints; group 1 is the number."""


# --- enums -----------------------------------------------------------------------------------------------


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


class AgentType(str, Enum):
    """The fourteen agents."""

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


ToolProfile = Literal["minimal", "full"]


class Frozen(BaseModel):
    """Base of every model but `SolutionScript`: change a copy, `model_copy(update=...)`."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())


# --- configuration and task ------------------------------------------------------------------------------


class PhaseTimeBudget(Frozen):
    """The share of the time limit that each phase may use."""

    phase1: float = Field(default=0.10, gt=0)
    phase2: float = Field(default=0.65, gt=0)
    phase3: float = Field(default=0.15, gt=0)
    finalization: float = Field(default=0.10, gt=0)

    @model_validator(mode="after")
    def _shares_add_up(self) -> PhaseTimeBudget:
        total = self.phase1 + self.phase2 + self.phase3 + self.finalization
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(f"the four shares must add up to 1, not {total:g}")
        return self


Effort = Literal["low", "medium", "high", "xhigh", "max"]
Thinking = Literal["adaptive", "disabled"]


class RoleSettings(Frozen):
    """What one agent does otherwise than the rest: its model, how hard it tries, whether it thinks first."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str | None = Field(default=None, min_length=1)
    effort: Effort | None = None
    thinking: Thinking | int | None = Field(default=None, description="`adaptive`, `disabled`, or so many tokens")

    @field_validator("model")
    @classmethod
    def _reached_like_the_others(cls, value: str | None) -> str | None:
        if value == "offline":
            raise ValueError("the embedded engineer plays all agents or none: set `model` to it")
        return value

    @field_validator("thinking")
    @classmethod
    def _enough_to_think(cls, value: Thinking | int | None) -> Thinking | int | None:
        if isinstance(value, int) and value < 1024:
            raise ValueError("thinking takes at least 1024 tokens")
        return value


Briefing = Literal["data", "limits", "memory", "script", "best", "errors", "knowledge", "research", "refit"]
"""What agents are told beyond the specification: the data brief, limits and times, what was tried, the whole script

around a block, the best so far, an error analysis, knowledge files, the retriever's notes, to refit on all rows."""
Diversity = Literal["families", "starts", "emphasis", "borrowing"]
Preset = Literal["quick", "good", "best"]

_HARD: dict[str, dict[str, str]] = {name: {"effort": "high"} for name in ("planner", "extractor", "ens_planner")}
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "num_retrieved_models": 2, "outer_loop_steps": 1, "inner_loop_steps": 2, "num_parallel_solutions": 1,
        "ensemble_rounds": 1, "max_debug_attempts": 2, "leakage_checks": "promising",
        "agents": {name: {"effort": "low"} for name in ("summarize", "leakage", "data", "test")},
    },
    "good": {"leakage_checks": "promising", "agents": {**_HARD, "summarize": {"effort": "low"}}},
    "best": {
        "num_retrieved_models": 6, "outer_loop_steps": 6, "num_parallel_solutions": 3, "ensemble_rounds": 6,
        "agents": {
            **{name: {"model": "opus", "effort": "high"} for name in (*_HARD, "retriever", "coder", "ensembler")},
            "summarize": {"effort": "low"},
        },
    },
}  # fmt: skip
"""Sizes, roles and efforts under one name; every setting that is given goes before its preset."""


class PipelineConfig(Frozen):
    """All settings of a run. `PipelineConfig()` is complete and carries the paper's numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    num_retrieved_models: int = Field(default=4, description="M: models to look up in Phase 1")
    outer_loop_steps: int = Field(default=4, description="T: rounds of ablation and block choice per path")
    inner_loop_steps: int = Field(default=4, description="K: attempts on each block")
    num_parallel_solutions: int = Field(default=2, description="L: refinement paths, side by side")
    ensemble_rounds: int = Field(default=5, description="R: ensemble plans to try")
    time_limit_seconds: int = Field(default=86400, description="wall-clock limit of the whole run")
    subsample_limit: int = Field(default=30000, description="training rows used while refining")
    max_debug_attempts: int = Field(default=3, description="repairs of a failing script before giving up")

    model: str = Field(default="sonnet", description="model name or alias; `offline` is the embedded engineer")
    base_url: str | None = Field(
        default=None, description="a server that speaks the Messages API; none: ANTHROPIC_BASE_URL, else Anthropic's"
    )
    tool_use: Literal["auto", "none"] = Field(
        default="auto", description="`none`: JSON is asked for in the text, for servers without tools; auto finds out"
    )
    prices_file: str | None = Field(default=None, description="a YAML file with prices: `name: [input, output]`")
    preset: Preset | None = Field(default=None, description="sizes, roles and efforts under one name")
    agents: dict[AgentType, RoleSettings] = Field(
        default={}, description="model, effort and thinking by agent, where they differ"
    )
    permission_mode: Literal["bypassPermissions", "acceptEdits", "default", "dontAsk", "plan"] = Field(
        default="bypassPermissions", description="the SDK's permission mode for agents with tools"
    )
    tool_profile: ToolProfile = Field(default="minimal", description="`full` gives agents a shell and file tools")
    max_budget_usd: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="money limit of the whole run"
    )
    phase_time_budget: PhaseTimeBudget | None = Field(default=None, description="shares of the time limit")
    agent_timeout_seconds: int = Field(default=900, description="limit of one agent call")
    client_reuse: Literal["auto", "fresh", "clear"] = Field(
        default="auto",
        description="`fresh`: a client per call; `clear`: reused after /clear; `auto` by model",
    )
    max_warm_clients: int = Field(default=6, description="idle connected clients kept ready")
    max_concurrent_paths: int | None = Field(default=None, description="paths at a time; none: all")

    script_timeout_seconds: int | None = Field(
        default=None, description="limit of one script; none: by what was measured"
    )
    max_concurrent_scripts: int | None = Field(default=None, description="scripts at a time; none: L")
    script_memory_gb: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="memory of one script; none: by machine"
    )
    script_disk_gb: float = Field(
        default=50.0, gt=0, allow_inf_nan=False, description="what a script may write; never over half the free space"
    )
    script_files: int = Field(default=500_000, description="files that a script may make")
    python: str | None = Field(default=None, description="interpreter for scripts; none: the one running mle-star")
    seed: int = Field(default=42, description="handed to scripts as MLE_STAR_SEED")
    allow_network: StrictBool = Field(default=False, description="let scripts reach the network")
    allow_outside_links: StrictBool = Field(
        default=False, description="let links among the data lead out of the data folder"
    )
    require_sandbox: StrictBool = Field(
        default=False, description="refuse to run scripts that have no world of their own"
    )
    model_caches: tuple[str, ...] = Field(default=(), description="folders with weights that scripts may read")
    use_cache: StrictBool = Field(default=True, description="never run the same script twice within a run")
    scoring: Literal["auto", "self_reported"] = Field(
        default="self_reported",
        description="auto: the harness hides labelled rows and scores scripts by them; else scripts score themselves",
    )
    equivalence_bound: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="how far the final answers must agree with those of the search (0 to 1)",
    )
    prefer_best_input: StrictBool = Field(
        default=True, description="finalize a path's solution when it beats every ensemble"
    )
    leakage_checks: Literal["all", "promising"] = Field(
        default="all", description="`promising`: ask only for scripts that would be accepted, after they have run"
    )
    briefing: tuple[Briefing, ...] = Field(
        default=get_args(Briefing), description="what agents are told beyond the specification"
    )
    diversity: tuple[Diversity, ...] = Field(
        default=get_args(Diversity), description="how candidates and paths are kept from being twins"
    )
    knowledge: str | None = Field(default=None, description="folder of your own knowledge files (*.md) for the agents")
    reference_files: tuple[str, ...] = Field(
        default=(), description="texts of others that the final script is compared with: is it a copy?"
    )
    blocked_commands: tuple[str, ...] = Field(default=(), description="more shell patterns that agents may not run")

    work_dir: str = Field(default=".", description="where the run's working directories are made")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        default="INFO", description="how much the log says"
    )
    log_file: str | None = Field(default=None, description="append the log to this file, too")

    @model_validator(mode="before")
    @classmethod
    def _under_the_preset(cls, data: Any) -> Any:
        preset = PRESETS.get(str(data.get("preset"))) if isinstance(data, dict) else None
        if preset is None:
            return data
        given = data.get("agents")
        agents = {**preset["agents"], **given} if isinstance(given, dict) else preset["agents"]
        return {**preset, **data, "agents": given if given is not None and agents is preset["agents"] else agents}

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: Any, info: Any) -> Any:
        annotation = str(cls.model_fields[info.field_name].annotation)
        if isinstance(value, bool) and ("int" in annotation or "float" in annotation):
            raise ValueError("a number is wanted, not true or false")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _integers_are_positive(cls, value: Any, info: Any) -> Any:
        least = 0 if info.field_name == "seed" else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            raise ValueError(f"must be at least {least}, not {value}")
        return value

    def role(self, agent: AgentType) -> RoleSettings:
        """What is set for one agent; its model is always told."""
        chosen = self.agents.get(agent, RoleSettings())
        if self.model == "offline" or chosen.model is None:
            return chosen.model_copy(update={"model": self.model})
        return chosen


class TaskDescription(Frozen):
    """What is to be predicted, from which data, judged by which metric."""

    competition_id: str
    task_type: TaskType
    data_modality: DataModality
    evaluation_metric: str
    metric_direction: MetricDirection
    description: str
    data_dir: str = "./input"
    output_dir: str = "./final"


# --- scripts and blocks ----------------------------------------------------------------------------------


class SolutionScript(BaseModel):
    """A program that trains, validates and prints its score. The only mutable model: callers write the score."""

    model_config = ConfigDict(frozen=False, protected_namespaces=())

    content: str
    phase: SolutionPhase
    score: float | None = None
    is_executable: bool = True
    source_model: str | None = None
    leaking: bool = False
    created_at: datetime = Field(default_factory=lambda: datetime.now(timezone.utc))

    def replace_block(self, old: str, new: str) -> SolutionScript:
        """A copy in which the first `old` became `new`; everything else is carried over."""
        if not old:
            raise ValueError("cannot replace an empty block")
        if old not in self.content:
            raise ValueError(f"block not found in the script: {old[:80]!r}")
        return self.model_copy(update={"content": self.content.replace(old, new, 1)})


class CodeBlock(Frozen):
    """A verbatim slice of a script."""

    content: str
    category: CodeBlockCategory | None = None
    outer_step: int | None = None

    @property
    def is_placeholder(self) -> bool:
        """Does this stand for a step that was skipped?"""
        return not self.content


# --- structured replies ----------------------------------------------------------------------------------


class RetrievedModel(Frozen):
    """A model worth trying, with code that shows how."""

    model_name: str
    example_code: str


class RefinePlan(Frozen):
    """A block and what to do with it."""

    code_block: str
    plan: str


class LeakageAnswer(Frozen):
    """One preprocessing block and whether it leaks."""

    leakage_status: Literal["Yes Data Leakage", "No Data Leakage"]
    code_block: str


def _refuse_empty(value: list[_T]) -> list[_T]:
    if not value:
        raise ValueError("at least one entry is needed")
    return value


class _ListAnswer(Frozen):
    """An answer of one list that is not empty; a bare JSON list is accepted, too."""

    @model_validator(mode="before")
    @classmethod
    def _wrap(cls, value: Any) -> Any:
        (name,) = cls.model_fields
        return {name: value} if isinstance(value, list) else value


class RetrieverOutput(_ListAnswer):
    """The retriever's answer."""

    models: Annotated[list[RetrievedModel], AfterValidator(_refuse_empty)]


class ExtractorOutput(_ListAnswer):
    """The extractor's answer."""

    plans: Annotated[list[RefinePlan], AfterValidator(_refuse_empty)]


class LeakageDetectionOutput(_ListAnswer):
    """The leakage checker's answer."""

    answers: Annotated[list[LeakageAnswer], AfterValidator(_refuse_empty)]


class DataContaminationResult(Frozen):
    """Is the solution its own work, or a copy of a discussion?"""

    verdict: Literal["Novel", "Same"]


# --- results ---------------------------------------------------------------------------------------------


class Isolation(Frozen):
    """What really confined a script, not what was asked for."""

    sandbox: str = Field(default="none", description="walls joined by `+`: bubblewrap or namespaces, landlock, seccomp")
    network_blocked: bool = False
    limits: tuple[str, ...] = ()

    @property
    def strength(self) -> int:
        """To compare: nothing, filters on an open machine, a world of its own, and that with filters."""
        walls = set(self.sandbox.split("+")) - {"none"}
        return len(walls) + 2 * bool(walls & {"bubblewrap", "namespaces"})


class ExecutionRawResult(Frozen):
    """What a script left behind, before anybody judged it. `timed_out` comes with `exit_code == -1`."""

    stdout: str
    stderr: str
    exit_code: int
    duration_seconds: float
    timed_out: bool
    isolation: Isolation = Isolation()


class Measure(Frozen):
    """How a score was measured: by the harness on hidden rows, with an interval of 95 %, or by the script itself.

    `printed` is what the script said of itself, where the harness measured.
    """

    score: float
    low: float | None = None
    high: float | None = None
    rows: int | None = None
    measured: Literal["harness", "self-reported"] = "self-reported"
    printed: float | None = None


class EvaluationResult(Frozen):
    """A judged run of a script. Look at `is_error` before `score`.

    `score_problem` says why a score line was none; `refused`: the script was not even run.
    """

    score: float | None = None
    stdout: str
    stderr: str
    exit_code: int
    duration_seconds: float
    is_error: bool
    error_traceback: str | None = None
    score_problem: str = ""
    timed_out: bool = False
    timeout_seconds: float | None = None
    refused: bool = False
    isolation: Isolation = Isolation()
    cached: bool = False
    measure: Measure | None = None


class RefinementAttempt(Frozen):
    """One try at a block in the inner loop."""

    plan: str
    score: float | None
    code_block: str
    was_improvement: bool


class InnerLoopResult(Frozen):
    """What the inner loop hands back to the outer one."""

    best_solution: SolutionScript
    best_score: float
    attempts: list[RefinementAttempt]
    improved: bool


class EnsembleAttempt(Frozen):
    """One round of Phase 3."""

    plan: str
    score: float | None
    solution: SolutionScript


class Phase1Result(Frozen):
    """The initial solution and where it came from."""

    retrieved_models: list[RetrievedModel]
    candidate_solutions: list[SolutionScript]
    candidate_scores: list[float | None]
    initial_solution: SolutionScript
    initial_score: float
    merge_attempts: list[dict[str, Any]] = []
    data_usage_changed: bool = False


class Phase2Result(Frozen):
    """What one refinement path achieved. `partial`: it was stopped on the way."""

    ablation_summaries: list[str]
    refined_blocks: list[CodeBlock]
    best_solution: SolutionScript
    best_score: float
    step_history: list[dict[str, Any]]
    partial: bool = False


class Phase3Result(Frozen):
    """What the ensemble rounds achieved."""

    input_solutions: list[SolutionScript]
    ensemble_plans: list[str]
    ensemble_scores: list[float | None]
    best_ensemble: SolutionScript
    best_ensemble_score: float | None
    attempts: list[EnsembleAttempt] = []


StopReason = Literal["time", "money", "disk", "journal", "outage", "request"]
"""What can end a run before its plan is done: a limit, a disk or journal that takes no more, or somebody's wish."""


class FinalResult(Frozen):
    """Everything a run hands over. `submission_path` is empty when there is no submission.

    `stopped_by` is set when the run ended before its plan was done; the first of `warnings` then says what to raise.
    """

    task: TaskDescription
    config: PipelineConfig
    phase1: Phase1Result
    phase2_results: list[Phase2Result]
    phase3: Phase3Result | None
    final_solution: SolutionScript
    submission_path: str
    total_duration_seconds: float
    total_cost_usd: float | None
    phases_completed: list[str] = []
    phases_skipped: list[str] = []
    cost_breakdown: dict[str, Any] = {}
    duration_breakdown: dict[str, float] = {}
    lineage: dict[str, Any] = {}
    contamination: DataContaminationResult | None = None
    stopped_by: StopReason | None = None
    promise: Measure | None = None
    has_test: bool = True  # False: the task asks for no answers, so there is no submission
    warnings: list[str] = []


# --- scoring ---------------------------------------------------------------------------------------------


@runtime_checkable
class ScoreFunction(Protocol):
    """Runs a script and judges it."""

    def __call__(self, solution: SolutionScript, task: TaskDescription) -> EvaluationResult:
        """The judged run of `solution`."""


def is_improvement(new_score: float, old_score: float, direction: MetricDirection) -> bool:
    """Is `new_score` strictly better? NaN is never better."""
    if direction is MetricDirection.maximize:
        return new_score > old_score
    return new_score < old_score


def is_improvement_or_equal(new_score: float, old_score: float, direction: MetricDirection) -> bool:
    """Is `new_score` at least as good? A tie replaces the current best in Algorithms 1 and 2."""
    if direction is MetricDirection.maximize:
        return new_score >= old_score
    return new_score <= old_score


# --- prompts ---------------------------------------------------------------------------------------------


class PromptTemplate(Frozen):
    """A prompt with `{variable}` slots. Names may contain blanks; the underscore spelling is accepted, too."""

    agent_type: AgentType
    figure_ref: str
    template: str
    variables: list[str]

    def render(self, **kwargs: Any) -> str:
        """The template with every declared slot filled, in one pass: braces inside values survive."""
        values: dict[str, str] = {}
        for name in self.variables:
            given = next((key for key in (name, name.replace(" ", "_")) if key in kwargs), None)
            if given is None:
                raise KeyError(f"the {self.agent_type.value} prompt needs {name!r}")
            values[name] = str(kwargs[given])
        if not values:
            return self.template
        slot = re.compile("{(" + "|".join(re.escape(name) for name in values) + ")}")
        return slot.sub(lambda match: values[match.group(1)], self.template)


# --- agents ----------------------------------------------------------------------------------------------

_DUTIES: dict[AgentType, str] = {
    AgentType.retriever: "Searches the web for strong models that fit the task.",
    AgentType.init: "Writes a first solution script around one given model.",
    AgentType.merger: "Works a second script into the base script and ensembles the two.",
    AgentType.ablation: "Writes an ablation study of a solution script.",
    AgentType.summarize: "Summarises the output of an ablation study.",
    AgentType.extractor: "Picks the code block that matters most and plans its refinement.",
    AgentType.coder: "Rewrites one code block according to a plan.",
    AgentType.planner: "Proposes the next refinement plan from the history of plans and scores.",
    AgentType.ens_planner: "Proposes how to combine several solutions.",
    AgentType.ensembler: "Implements an ensemble plan as one script.",
    AgentType.debugger: "Repairs scripts that crash.",
    AgentType.leakage: "Looks for data leakage in preprocessing, and removes it.",
    AgentType.data: "Makes sure that no supplied data source is ignored.",
    AgentType.test: "Turns the validated script into one that writes a submission.",
}


class AgentConfig(Frozen):
    """How one agent is set up. `tools=None` means no tools; `system_prompt=None` means its template."""

    agent_type: AgentType
    variant: str | None = None
    description: str = ""
    system_prompt: str | None = None
    tools: list[str] | None = None
    model: Literal["sonnet", "opus", "haiku", "inherit"] | None = None
    output_schema: type[BaseModel] | None = None
    max_turns: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_description(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("description") and "agent_type" in data:
            try:
                duty = _DUTIES[AgentType(data["agent_type"])]
            except ValueError:
                return data  # the field's own validation names the bad value
            return {**data, "description": duty}
        return data

    @field_serializer("output_schema")
    def _schema_by_name(self, schema: type[BaseModel] | None) -> str | None:
        return None if schema is None else schema.__name__

    def to_agent_definition(self) -> dict[str, Any]:
        """A value for `ClaudeAgentOptions.agents`; the SDK adapter makes it the SDK's own dataclass.

        To the SDK no list of tools means every tool: without one of its own an agent has those of its kind.
        """
        prompt = self.system_prompt
        if prompt is None:
            from mle_star.templates import template_text

            prompt = template_text(self.agent_type.value)
        tools = _MINIMAL_TOOLS.get(self.agent_type) if self.tools is None else self.tools
        return {"description": self.description, "prompt": prompt, "tools": list(tools or ()), "model": self.model}

    def to_output_format(self) -> dict[str, Any]:
        """The SDK's envelope around the reply's JSON schema."""
        if self.output_schema is None:
            raise ValueError(f"the {self.agent_type.value} agent has no output schema")
        return {"type": "json_schema", "schema": self.output_schema.model_json_schema()}


_MINIMAL_TOOLS: dict[AgentType, list[str] | None] = {
    AgentType.retriever: ["WebSearch", "WebFetch"],
    AgentType.extractor: ["Read"],
    AgentType.leakage: ["Read"],
    AgentType.debugger: ["Read", "Bash"],
    AgentType.init: ["Read"],
    AgentType.merger: ["Read"],
    AgentType.ablation: ["Read"],
    AgentType.ensembler: ["Read"],
    AgentType.data: ["Read"],
    AgentType.test: ["Read"],
}
_WRITERS = {"init", "merger", "ablation", "coder", "ensembler", "debugger", "test"}
_FULL_TOOLS: dict[AgentType, list[str] | None] = {
    agent: ["Bash", "Edit", "Write", "Read"] if agent.value in _WRITERS else ["Read"] for agent in AgentType
}
_FULL_TOOLS[AgentType.retriever] = ["WebSearch", "WebFetch"]
_SCHEMAS: dict[AgentType, type[BaseModel]] = {
    AgentType.retriever: RetrieverOutput,
    AgentType.extractor: ExtractorOutput,
    AgentType.leakage: LeakageDetectionOutput,
}


def build_default_agent_configs(tool_profile: ToolProfile = "minimal") -> dict[AgentType, AgentConfig]:
    """The fourteen agents: leakage stands for detection, test for the submission script."""
    tools = _FULL_TOOLS if tool_profile == "full" else _MINIMAL_TOOLS
    return {
        agent: AgentConfig(agent_type=agent, tools=tools.get(agent), output_schema=_SCHEMAS.get(agent))
        for agent in AgentType
    }


def agent_config(agent: AgentType, variant: str | None = None, tool_profile: ToolProfile = "minimal") -> AgentConfig:
    """The settings for one kind of call: a variant may drop the schema or the tools of its agent."""
    config = build_default_agent_configs(tool_profile)[agent].model_copy(update={"variant": variant})
    if (agent, variant) == (AgentType.leakage, "correction"):
        return config.model_copy(update={"output_schema": None, "description": "Removes data leakage from a script."})
    if (agent, variant) == (AgentType.test, "contamination"):
        return config.model_copy(update={"output_schema": DataContaminationResult, "tools": None})
    return config
