"""Everything that can happen in a run, as typed events. The journal holds them; display and report read them.

An event belongs to a step (`phase2/path-0/t-1/k-2/coder`). Replaying a run says the same things again: an event of
the same kind and step replaces the earlier one, and the last one counts.
"""

import json
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from mle_star import models
from mle_star.models import AgentType, EvaluationResult, FinalResult, Frozen, Isolation, Measure, PipelineConfig
from mle_star.models.enums import PhaseName

SCHEMA_VERSION = 5

ScriptPurpose = Literal["solution", "ablation", "submission", "probe", "sample", "views"]
RunState = Literal["completed", "interrupted", "failed"]


class Event(Frozen):
    """Something that happened at a step."""

    at: datetime = Field(default_factory=lambda: datetime.now(timezone.utc))
    step: str = ""


class Interpreter(Frozen):
    """The Python of a run's scripts: its version, and what it can import."""

    version: str
    packages: dict[str, str] = {}


class RunStarted(Event):
    """The first line of every journal."""

    kind: Literal["run_started"] = "run_started"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    task: models.TaskDescription
    config: PipelineConfig
    model: str
    versions: dict[str, str] = {}
    interpreter: Interpreter | None = None
    isolation: Isolation = Isolation()
    hardware: dict[str, Any] = {}
    forked_from: str | None = None
    inherited_cost_usd: float = 0.0


class RunResumed(Event):
    """A later process resumed the run; what was spent before counts."""

    kind: Literal["run_resumed"] = "run_resumed"
    spent_cost_usd: float
    spent_seconds: float
    config: PipelineConfig | None = None  # when it differs from the one that the run had last
    interpreter: Interpreter | None = None  # when the settings name another


class RunFinished(Event):
    """The run has ended, with a result or without."""

    kind: Literal["run_finished"] = "run_finished"
    state: RunState
    score: float | None = None
    submission_path: str = ""
    cost_usd: float = 0.0
    seconds: float = 0.0
    message: str = ""
    result: FinalResult | None = None


class PhaseEvent(Event):
    """Of a phase or, with `path`, of one refinement path of Phase 2."""

    phase: PhaseName
    path: int | None = None


class PhaseStarted(PhaseEvent):
    """A phase or, with `path`, one refinement path of Phase 2 begins.

    `model`: what a path begins with, where that is not the initial solution.
    """

    kind: Literal["phase_started"] = "phase_started"
    model: str = ""
    digest: str = ""  # of the script that a path begins with


class PhaseFinished(PhaseEvent):
    """A phase or a path has ended."""

    kind: Literal["phase_finished"] = "phase_finished"
    outcome: Literal["completed", "failed", "skipped", "cancelled"]
    score: float | None = None
    seconds: float = 0.0
    detail: str = ""


class CallEvent(Event):
    """Of a request to an agent."""

    agent: AgentType
    variant: str | None = None


class AgentStarted(CallEvent):
    """A request is on its way to the model."""

    kind: Literal["agent_started"] = "agent_started"
    about: str = ""  # what its prompt was filled with, in a few words


class AgentReply(Frozen):
    """What an agent answered, and what the answer cost."""

    text: str
    structured: Any = None
    cost_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    seconds: float = 0.0
    session_id: str = ""

    @property
    def json_text(self) -> str:
        """The structured value as JSON when there is one, else the text."""
        return self.text if self.structured is None else json.dumps(self.structured)


class AgentFinished(CallEvent, AgentReply):
    """A reply, as it came, and what it cost. A step and digest that stand here are never paid for again."""

    kind: Literal["agent_finished"] = "agent_finished"
    digest: str
    template_hash: str = ""
    model: str = ""
    prompt: str


class AgentFailed(CallEvent):
    """A call that gave nothing, also after its retries."""

    kind: Literal["agent_failed"] = "agent_failed"
    digest: str
    prompt: str = ""
    reason: str
    message: str
    cost_usd: float = 0.0
    seconds: float = 0.0


class ScriptStarted(Event):
    """A script begins to run in the harness."""

    kind: Literal["script_started"] = "script_started"
    purpose: ScriptPurpose = "solution"
    timeout_seconds: float | None = None
    path: str = ""
    characters: int = 0


class ScriptFinished(Event):
    """A script's run, scored. A step and digest that stand here are never run again."""

    kind: Literal["script_finished"] = "script_finished"
    digest: str
    surroundings: str = ""  # a digest of what it found: data, hidden rows, packages
    purpose: ScriptPurpose = "solution"
    script: str
    result: EvaluationResult  # its texts trimmed: head and tail


class ModelsRetrieved(Event):
    """What the retriever found and Phase 1 will try."""

    kind: Literal["models_retrieved"] = "models_retrieved"
    models: list[models.RetrievedModel]
    notes: str = ""

    @property
    def names(self) -> list[str]:
        """What they are called."""
        return [model.model_name for model in self.models]


class Decided(Event):
    """What was decided by the clock at a step, once: a later process of the run does the same.

    `reopen`: a no is decided again under other limits, and when a run that has ended is resumed.
    """

    kind: Literal["decided"] = "decided"
    name: str
    value: bool
    reopen: bool = False


class AttemptEvent(Event):
    """What a phase says of a script that it has scored. `parents`: the digests of those that it was made from.

    `change` is the script against the one that it was to beat, where the harness scores.
    """

    digest: str = ""
    parents: list[str] = []
    score: float | None
    change: models.ScoreChange | None = None


class CandidateEvaluated(AttemptEvent):
    """One candidate of Phase 1, after its repairs."""

    kind: Literal["candidate_evaluated"] = "candidate_evaluated"
    index: int
    model_name: str
    error: str = ""


class MergeTried(AttemptEvent):
    """One merge of Phase 1."""

    kind: Literal["merge_tried"] = "merge_tried"
    index: int
    base_score: float
    reference_model: str
    accepted: bool
    reason: str = ""


class DataUsageChecked(AttemptEvent):
    """The data-use check of Phase 1."""

    kind: Literal["data_usage_checked"] = "data_usage_checked"
    changed: bool


LEAKS = "data leakage was found and could not be fixed"
"""Why an attempt whose script leaks has no score."""


class LeakageChecked(Event):
    """A leakage check of the script `digest`. `fixed_digest` is the script without its leaks, where none is left."""

    kind: Literal["leakage_checked"] = "leakage_checked"
    digest: str = ""
    found: int = 0
    fixed: int = 0
    blocks: list[str] = []
    leaking: list[str] = []  # the digests of the scripts that leak, by this check
    fixed_digest: str = ""
    answered: bool = True  # else the checker gave no usable answer


class DebugAttempted(Event):
    """One repair by the debugger: of the script `parent`, into the script `digest`."""

    kind: Literal["debug_attempted"] = "debug_attempted"
    error: str
    accepted: bool
    reason: str = ""
    digest: str = ""
    parent: str = ""


class OuterStepEvent(Event):
    """Of the outer step `t` of a path."""

    path: int
    t: int


class AblationFinished(OuterStepEvent):
    """An ablation study: scores by component (`baseline` among them), its summary, and where the solution errs.

    One that was `skipped`, as there was too little time, has `failed`, too: nothing is known from it.
    """

    kind: Literal["ablation_finished"] = "ablation_finished"
    scores: dict[str, float] = {}
    solution_score: float
    comparable: bool = True
    failed: bool = False
    skipped: bool = False
    summary: str = ""
    analysis: str = ""


class BlockChosen(OuterStepEvent):
    """The block that an outer step will refine; empty when the step was skipped."""

    kind: Literal["block_chosen"] = "block_chosen"
    block: str
    plan: str = ""


OUT_OF_TIME = "Phase 1 ended before it had a score"
"""The error of a candidate that was passed over."""
PLANNER_FAILED = "[planner failed]"
"""Stands in the history for a plan that never came."""
SKIPPED = "[skipped]"
"""Stands in the history for a plan that was not asked for, because the run was told to finish."""


class RefinementTried(AttemptEvent, OuterStepEvent):
    """One attempt of an inner loop."""

    kind: Literal["refinement_tried"] = "refinement_tried"
    k: int
    plan: str
    before: str
    after: str
    best_score: float
    accepted: bool


class EnsembleTried(AttemptEvent):
    """One round of Phase 3."""

    kind: Literal["ensemble_tried"] = "ensemble_tried"
    r: int
    plan: str
    best: bool = False


class BestImproved(Event):
    """The run has a new best score."""

    kind: Literal["best_improved"] = "best_improved"
    score: float
    digest: str = ""


class HoldOutPrepared(Event):
    """How scripts are scored in this run: by hidden rows, or, for the reason in `why_not`, by what they print."""

    kind: Literal["holdout_prepared"] = "holdout_prepared"
    why_not: str = ""
    rule: str = ""
    views: int = 0
    search_rows: int = 0
    select_rows: int = 0
    train_rows: int = 0
    not_shown: list[str] = []  # files in which labels may be
    digest: str = ""
    baseline: Measure | None = None


class ShortlistScored(Event):
    """The final selection: the shortlist, each solution scored on rows that the search never used.

    `compared` is the score on all hidden rows that it answers, `change` the solution against the chosen one on those
    that both answer; `score` of the chosen one is its expected score.
    """

    kind: Literal["shortlist_scored"] = "shortlist_scored"
    shortlist: list[dict[str, Any]] = []
    chosen: str = ""


class SolutionExamined(Event):
    """The answers of the selected solution compared with the truth, on hidden rows."""

    kind: Literal["solution_examined"] = "solution_examined"
    digest: str = ""  # of the solution
    rows: int
    classes: list[str] = []
    confusion: list[list[int]] = []  # a row for each true class, a column for each said one
    importance: list[tuple[str, float]] = []  # columns, and how much worse the score is with their values mixed up


class SubmissionKept(Event):
    """A submission that passes the schema check was saved as the best so far."""

    kind: Literal["submission_kept"] = "submission_kept"
    path: str
    source: str = ""  # the copy under its content's name
    rows: int
    score: float | None


class Forecast(Event):
    """What the whole run is expected to take."""

    kind: Literal["forecast"] = "forecast"
    calls: int
    scripts: int
    cost_usd: float | None
    seconds: float | None
    basis: str = ""


class BudgetWarning(Event):
    """80 % of a limit is spent."""

    kind: Literal["budget_warning"] = "budget_warning"
    limit: Literal["time", "money"]
    used: float
    allowed: float


class FinishRequested(Event):
    """The run was asked to finish with what it has."""

    kind: Literal["finish_requested"] = "finish_requested"
    source: str
    now: bool = False


class Notice(Event):
    """Something the owner of the run should see: a wait, a fallback, a surprise."""

    kind: Literal["notice"] = "notice"
    level: Literal["info", "warning", "error"] = "info"
    message: str


AnyAttempt = CandidateEvaluated | MergeTried | DataUsageChecked | RefinementTried | EnsembleTried
_OfTheRun = RunStarted | RunResumed | RunFinished | PhaseStarted | PhaseFinished | FinishRequested | Notice
_OfLimits = Decided | Forecast | BudgetWarning
_OfWork = AgentStarted | AgentFinished | AgentFailed | ScriptStarted | ScriptFinished | LeakageChecked | DebugAttempted
_OfSearch = ModelsRetrieved | AnyAttempt | AblationFinished | BlockChosen | BestImproved | SubmissionKept
_OfScores = HoldOutPrepared | ShortlistScored | SolutionExamined
AnyEvent = Annotated[_OfTheRun | _OfLimits | _OfWork | _OfSearch | _OfScores, Field(discriminator="kind")]
EVENT_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
