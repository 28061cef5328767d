"""Records, enums and settings of the specification. Nothing here touches disk or network."""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from mle_star.agents import AgentType as AgentType
from mle_star.agents import Frozen as Frozen
from mle_star.agents.extractor import ExtractorOutput as ExtractorOutput
from mle_star.agents.extractor import RefinePlan as RefinePlan
from mle_star.agents.leakage import LeakageAnswer as LeakageAnswer
from mle_star.agents.leakage import LeakageDetectionOutput as LeakageDetectionOutput
from mle_star.agents.retriever import RetrievedModel as RetrievedModel
from mle_star.agents.retriever import RetrieverNotes as RetrieverNotes
from mle_star.agents.retriever import RetrieverOutput as RetrieverOutput
from mle_star.agents.test import DataContaminationResult as DataContaminationResult
from mle_star.models.agents import AGENTS, template_text
from mle_star.models.enums import CodeBlockCategory as CodeBlockCategory
from mle_star.models.enums import DataModality as DataModality
from mle_star.models.enums import MetricDirection as MetricDirection
from mle_star.models.enums import SolutionPhase as SolutionPhase
from mle_star.models.enums import TaskType as TaskType
from mle_star.models.enums import ToolProfile as ToolProfile
from mle_star.models.settings import PRESETS as PRESETS
from mle_star.models.settings import PhaseTimeBudget as PhaseTimeBudget
from mle_star.models.settings import PipelineConfig as PipelineConfig
from mle_star.models.settings import RoleSettings as RoleSettings
from mle_star.models.texts import plural, within
from mle_star.models.texts import score as score_text

SCORE_PATTERN = r"Final Validation Performance:\s*([\d.eE+-]+)"
"""The score line that every solution prints; group 1 is the number."""


# --- the task --------------------------------------------------------------------------------------------


class TaskDescription(Frozen):
    """What is to be predicted, from which data, scored by which metric."""

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
    created_at: datetime = Field(default_factory=lambda: datetime.now(timezone.utc))

    def replace_block(self, old: str, new: str) -> "SolutionScript":
        """A copy in which the first `old` became `new`; everything else is carried over."""
        if not old or old not in self.content:
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


# --- results ---------------------------------------------------------------------------------------------


class Isolation(Frozen):
    """What really confined a script, not what was asked for."""

    sandbox: str = Field(default="none", description="bubblewrap or namespaces, and seccomp, joined by `+`")
    network_blocked: bool = False
    limits: tuple[str, ...] = ()

    @property
    def strength(self) -> int:
        """To compare: nothing, a filter of system calls, namespaces, and both."""
        parts = set(self.sandbox.split("+"))
        return ("seccomp" in parts) + 2 * bool(parts & {"bubblewrap", "namespaces"})


class ExecutionRawResult(Frozen):
    """What a script left behind, before anybody scored it. `timed_out` comes with `exit_code == -1`.

    `machine` names where it ran, unless that was here, and `reruns` how many machines were lost under it before.
    """

    stdout: str
    stderr: str
    exit_code: int
    duration_seconds: float
    timed_out: bool
    isolation: Isolation = Isolation()
    machine: str = ""
    reruns: int = 0


SURE = 0.95
"""In such a share of the draws of its rows a script must win to be surely better."""


class ScoreChange(Frozen):
    """One script against another, row by row on the rows that both answer.

    `difference` says by how much it is better, below 0 by how much it is worse; `error` is the standard error of that,
    `wins` the share of draws of the rows in which it is better.
    """

    difference: float
    error: float
    wins: float
    rows: int

    @property
    def words(self) -> str:
        """`better by 0.0040 ± 0.0020 on the same 180 rows`."""
        if not self.difference:
            return f"no change on the same {self.rows} rows"
        amount, error = (f"{float(f'{one:.2g}'):,.15g}" for one in (abs(self.difference), self.error))
        return f"{'better' if self.difference > 0 else 'worse'} by {amount} ± {error} on the same {self.rows} rows"


class Measure(Frozen):
    """How a score was measured: by the harness on hidden rows, with a 95 % interval, or by the script itself.

    `printed` is what the script said of itself, where the harness measured. The interval of an expected score is that
    of the score on the real test, or else on what `ahead` says: new rows have noise of their own. A script that ran on
    too few `views` was measured on some of the rows only: its score is `estimated` from how far it is behind the best.
    """

    score: float
    low: float | None = None
    high: float | None = None
    rows: int | None = None
    measured: Literal["harness", "self-reported"] = "self-reported"
    printed: float | None = None
    views: int | None = None
    estimated: bool = False
    ahead: str = ""

    def __str__(self) -> str:
        return self.words

    @property
    def figure(self) -> str:
        """`0.72 to 0.86 (95 % interval), best guess 0.79`: the interval first, with the digits that it carries."""
        if self.low is None or self.high is None:
            return score_text(self.score)
        return "{1} to {2} (95 % interval), best guess {0}".format(*within(self.score, self.low, self.high))

    @property
    def words(self) -> str:
        """The figure, from how many rows it is and for which: as every reader meets it."""
        rows = "" if self.rows is None else f", from {plural(self.rows, 'row')}"
        return f"{self.figure}{rows}" + (f", for {self.ahead}" if self.ahead else "")

    @property
    def basis(self) -> str:
        """How much an estimated score rests on, in words; empty where all rows were measured."""
        views = "" if self.views is None else f", {self.views} view{'' if self.views == 1 else 's'}"
        return f"estimated from {self.rows} rows{views}" if self.estimated else ""


class Yardstick(Frozen):
    """Something to compare an expected score with: a dummy, or the best model alone.

    `change` is the result against it, on rows that the search never used.
    """

    name: str
    measure: Measure
    change: ScoreChange | None = None


class EvaluationResult(ExecutionRawResult):
    """A scored run of a script. Look at `is_error` before `score`.

    `score_problem` says why a score line was none; `refused`: the script was not even run. `submission` is the copy of
    its file that is kept, `answers` what it said on each view, both relative to the run folder. `warm`: earlier scripts
    had left work in `./cache`, so its time is not that of a script that begins with nothing.
    """

    score: float | None = None
    is_error: bool
    error_traceback: str | None = None
    score_problem: str = ""
    timed_out: bool = False
    timeout_seconds: float | None = None
    refused: bool = False
    cached: bool = False
    warm: bool = False
    measure: Measure | None = None
    submission: str | None = None
    answers: list[str] = []


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
"""What can end a run before its plan is done: a limit, a disk or journal that takes no more, or the user's request."""


class FinalResult(Frozen):
    """The result of a run. `submission_path` is empty when there is no submission.

    `stopped_by` is set when the run ended before its plan was done; the first of `warnings` then says what to raise.
    `used_time`: its plan was to refine while the time lasts (`more_steps`), and that is what it did.
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
    used_time: bool = False
    expected: Measure | None = None
    baseline: Yardstick | None = None  # a dummy that knows nothing but the labels' frequencies
    single_model: Yardstick | None = None  # the best of Phase 1's candidates, each one model alone
    has_test: bool = True  # False: the task asks for no answers, so there is no submission
    warnings: list[str] = []


# --- scoring ---------------------------------------------------------------------------------------------


@runtime_checkable
class ScoreFunction(Protocol):
    """Runs a script and scores it."""

    def __call__(self, solution: SolutionScript, task: TaskDescription) -> EvaluationResult:
        """The scored run of `solution`."""


def is_improvement(new_score: float, old_score: float, direction: MetricDirection) -> bool:
    """Is `new_score` strictly better? NaN is never better."""
    return new_score > old_score if direction is MetricDirection.maximize else new_score < old_score


def is_improvement_or_equal(new_score: float, old_score: float, direction: MetricDirection) -> bool:
    """Is `new_score` at least as good? A tie replaces the current best in Algorithms 1 and 2."""
    return new_score >= old_score if direction is MetricDirection.maximize else new_score <= old_score


# --- prompts ---------------------------------------------------------------------------------------------


class PromptTemplate(Frozen):
    """A prompt with `{variable}` slots. Names may contain blanks; the underscore spelling is accepted, too."""

    agent_type: AgentType
    figure_ref: str
    template: str
    variables: list[str]

    def render(self, **kwargs: Any) -> str:
        """The template with every declared slot filled, in one pass: braces inside values survive."""
        values = self.given(self.variables, kwargs)
        return re.sub(r"{([^{}]*)}", lambda match: str(values.get(match[1], match[0])), self.template)

    def given(self, names: Iterable[str], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the values that have these names; `KeyError` where one is missing that is declared."""
        found = {name: kwargs[key] for name in names for key in {name, name.replace(" ", "_")} & set(kwargs)}
        for name in sorted(set(self.variables) - set(found)):
            raise KeyError(f"the {self.agent_type.value} prompt needs {name!r}")
        return found


# --- agents ----------------------------------------------------------------------------------------------


class AgentConfig(Frozen):
    """How one agent is set up. `tools=None` means no tools; `system_prompt=None` means its template."""

    agent_type: AgentType
    variant: str | None = None
    description: str = Field(default_factory=lambda known: AGENTS[known["agent_type"]].duty if known else "")
    system_prompt: str | None = None
    tools: list[str] | None = None
    model: Literal["sonnet", "opus", "haiku", "inherit"] | None = None
    output_schema: type[BaseModel] | None = None
    max_turns: int | None = None

    @field_serializer("output_schema")
    def _schema_by_name(self, schema: type[BaseModel] | None) -> str | None:
        return None if schema is None else schema.__name__

    def to_agent_definition(self) -> dict[str, Any]:
        """A value for `ClaudeAgentOptions.agents`; the SDK adapter makes it the SDK's own dataclass.

        To the SDK no list of tools means every tool: without one of its own an agent has those of its kind.
        """
        prompt = template_text(self.agent_type) if self.system_prompt is None else self.system_prompt
        tools = AGENTS[self.agent_type].tools if self.tools is None else self.tools
        return {"description": self.description, "prompt": prompt, "tools": list(tools), "model": self.model}

    def to_output_format(self) -> dict[str, Any]:
        """The SDK's envelope around the reply's JSON schema."""
        if self.output_schema is None:
            raise ValueError(f"the {self.agent_type.value} agent has no output schema")
        return {"type": "json_schema", "schema": self.output_schema.model_json_schema()}


def build_default_agent_configs(tool_profile: ToolProfile = "minimal") -> dict[AgentType, AgentConfig]:
    """The fourteen agents: leakage stands for detection, test for the submission script."""
    return {agent: agent_config(agent, tool_profile=tool_profile) for agent in AgentType}


def agent_config(
    agent: AgentType, variant: str | None = None, tool_profile: ToolProfile = "minimal", briefing: Collection[str] = ()
) -> AgentConfig:
    """The settings for one kind of request, as declared in `agents`; some schemas depend on the briefing."""
    declared = AGENTS[agent]
    request = declared.request(variant)
    tools = declared.full_tools if tool_profile == "full" else declared.tools
    richer = (schema for part, schema in request.schemas.items() if part in briefing)
    return AgentConfig(
        agent_type=agent,
        variant=variant,
        description=request.duty or declared.duty,
        tools=list(tools) if tools and not request.without_tools else None,
        output_schema=next(richer, request.schema),
    )
