"""All settings of a run: names, defaults, bounds and what they mean."""

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from mle_star.agents import AgentType, Frozen, Sizes
from mle_star.models.agents import AGENTS
from mle_star.models.enums import PHASES, ToolProfile, Traits, traits_of


class PhaseTimeBudget(Frozen):
    """The share of the time limit that each phase may use."""

    phase1: float = Field(default=0.10, gt=0)
    phase2: float = Field(default=0.65, gt=0)
    phase3: float = Field(default=0.15, gt=0)
    finalization: float = Field(default=0.10, gt=0)

    @model_validator(mode="after")
    def _shares_add_up(self) -> "PhaseTimeBudget":
        total = sum(getattr(self, phase.name) for phase in PHASES)
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(f"the four shares must add up to 1, not {total:g}")
        return self


class RoleSettings(Frozen):
    """What one agent does otherwise than the rest: its model, how hard it tries, whether it thinks first."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(default=None, min_length=1)
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    thinking: Literal["adaptive", "disabled"] | Annotated[int, Field(ge=1024)] | None = None  # or so many tokens

    @field_validator("model")
    @classmethod
    def _reached_like_the_others(cls, value: str | None) -> str | None:
        if value is not None and traits_of(value).is_embedded:
            raise ValueError("`offline` is all agents or none: set `model` to it")
        return value


Briefing = Literal["data", "limits", "memory", "script", "best", "errors", "knowledge", "research", "refit", "model"]
"""What agents are told beyond the specification: the data brief, limits and times, what was tried, the whole script

around a block, the best so far, an error analysis, knowledge files, the retriever's notes, to refit on all rows, to
keep the final model."""
Diversity = Literal["families", "starts", "emphasis", "borrowing"]


def _roles(preset: str) -> dict[str, dict[str, str]]:
    return {agent.value: dict(one.presets[preset]) for agent, one in AGENTS.items() if preset in one.presets}


SIZES = ("num_retrieved_models", "outer_loop_steps", "inner_loop_steps", "num_parallel_solutions", "ensemble_rounds")
"""The settings that the paper calls M, T, K, L and R."""


def sized(*numbers: int | None) -> dict[str, Any]:
    """The settings of these sizes; None leaves one as it is."""
    return {name: number for name, number in zip(SIZES, numbers, strict=True) if number is not None}


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        **sized(2, 1, 2, 1, 1),
        "max_debug_attempts": 2,
        "leakage_checks": "promising",
        "agents": _roles("quick"),
    },
    "good": {"leakage_checks": "promising", "agents": _roles("good")},
    "best": {**sized(6, 6, None, 3, 6), "agents": _roles("best")},
    "letter": {
        "letter": True,
        "scoring": "self_reported",
        "sample_first": "off",
        "leakage_checks": "all",
        "more_steps": False,
        "use_cache": False,
        "keep_work": False,
        "task_in_prompts": True,
        "briefing": (),
        "diversity": (),
        "tool_profile": "full",
        "prefer_best_input": False,
        "agents": {},
    },
}
"""Settings under one name; every setting that is given goes before its preset. `letter` is the specification as
written: docs/deviations.md says what it restores, and what it cannot."""


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


_NO_BOOL = BeforeValidator(_refuse_bool)
TIME_LIMIT = 86_400
Count = Annotated[int, Field(ge=1), _NO_BOOL]
CountOrNone = Annotated[int | None, Field(ge=1), _NO_BOOL]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False), _NO_BOOL]
AmountOrNone = Annotated[float | None, Field(gt=0, allow_inf_nan=False), _NO_BOOL]


OPEN = ("auto", "none")
"""What `time_column` and `group` say where they name no column: look at the data, or do not."""


class PipelineConfig(Frozen):
    """All settings of a run. `PipelineConfig()` is complete and carries the paper's numbers.

    The text below a setting is its description: help and reference show it.
    """

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    num_retrieved_models: Count = 4
    """M: models to look up in Phase 1"""
    outer_loop_steps: Count = 4
    """T: rounds of ablation and block choice per path"""
    more_steps: bool = False
    """take more steps than T until the time is up; on where a time limit is given and T is not"""
    inner_loop_steps: Count = 4
    """K: attempts on each block"""
    num_parallel_solutions: Count = 2
    """L: refinement paths, side by side"""
    ensemble_rounds: Count = 5
    """R: ensemble plans to try"""
    time_limit_seconds: Count = TIME_LIMIT
    """wall-clock limit of the whole run"""
    subsample_limit: Count = 30000
    """training rows used while refining"""
    max_debug_attempts: Count = 3
    """repairs of a failing script before giving up"""

    model: str = "sonnet"
    """model name or alias; `offline`: built-in rules, no key, no internet"""
    base_url: str | None = None
    """a server that speaks the Messages API: a gateway, or a model on this machine"""
    tool_use: Literal["auto", "none"] = "auto"
    """`none`: JSON is asked for in the text, for servers without tools; auto finds out"""
    prices_file: str | None = None
    """a YAML file with prices: `name: [input, output]`"""
    preset: Literal["quick", "good", "best", "letter"] | None = None
    """a set of sizes, models and efforts; `letter`: as the specification has it"""
    agents: dict[AgentType, RoleSettings] = {}
    """model, effort and thinking by agent, where they differ"""
    permission_mode: Literal["bypassPermissions", "acceptEdits", "default", "dontAsk", "plan"] = "bypassPermissions"
    """the SDK's permission mode for agents with tools"""
    tool_profile: ToolProfile = "minimal"
    """`full` gives agents a shell and file tools"""
    max_budget_usd: AmountOrNone = None
    """money limit of the whole run, in US dollars"""
    phase_time_budget: PhaseTimeBudget | None = None
    """shares of the time limit"""
    agent_timeout_seconds: Count = 900
    """limit of one agent call"""
    client_reuse: Literal["auto", "fresh", "clear"] = "auto"
    """`fresh`: a client per call; `clear`: reused after /clear; `auto` by model"""
    max_concurrent_paths: CountOrNone = None
    """paths at a time; none: all"""

    script_timeout_seconds: CountOrNone = None
    """limit of one script; none: set from what scripts took so far"""
    max_concurrent_scripts: CountOrNone = None
    """scripts at a time; none: L"""
    script_memory_gb: AmountOrNone = None
    """memory of one script; none: by machine"""
    script_disk_gb: Amount = 50.0
    """what a script may write; never over half the free space"""
    script_files: Count = 500_000
    """files that a script may make"""
    executor: str = "local"
    """where scripts run: `local`, `ray`, `ray://HOST:PORT`, or what a plugin brings"""
    script_cpus: CountOrNone = None
    """cores of one script on a cluster; none: an even share"""
    script_gpus: Annotated[float | None, Field(ge=0, allow_inf_nan=False), _NO_BOOL] = None
    """GPUs of one script; none: one on a cluster, else a share"""
    shared_data: bool = False
    """the machines of the cluster see the data under the same path"""
    python: str | None = None
    """interpreter for scripts; none: the one running mle-star"""
    seed: Annotated[int, Field(ge=0), _NO_BOOL] = 42
    """given to scripts as MLE_STAR_SEED"""
    allow_network: bool = False
    """let scripts reach the network"""
    allow_outside_links: bool = False
    """let links among the data lead out of the data folder"""
    require_sandbox: bool = False
    """refuse to run scripts without namespaces and a filter of system calls"""
    model_caches: tuple[str, ...] = ()
    """folders with weights that scripts may read"""
    use_cache: bool = True
    """never run the same script twice within a run"""
    keep_work: bool = True
    """keep what scripts of the search leave in `./cache` for later scripts on the same rows"""
    scoring: Literal["auto", "self_reported"] = "auto"
    """auto: scripts are scored on labelled rows that they do not see; self_reported: by the score that they print"""
    score_views: Annotated[int | None, Field(ge=1, le=5), _NO_BOOL] = None
    """how often a script runs, each time with other rows hidden; none: 1 to 5 times, by the rows"""
    split: Literal["auto", "random", "time", "group"] = "auto"
    """which rows are hidden to score by: chosen from the data, at random, the latest, or whole groups"""
    time_column: str = Field(default="auto", min_length=1)
    """column with dates or times: the latest rows are hidden; `none`: there is no such column; auto: look for one"""
    group: str = Field(default="auto", min_length=1)
    """column of groups (a patient, a shop), hidden as wholes; `none`: there is no such column; auto: look for one"""
    equivalence_bound: Annotated[float, Field(ge=0, le=1), _NO_BOOL] = 0.5
    """how far the final answers must agree with those of the search (0 to 1)"""
    prefer_best_input: bool = True
    """finalize a path's solution when it beats every ensemble, where scores are self-reported"""
    sample_first: Literal["auto", "off"] = "auto"
    """`auto`: where scripts take long, new ones are tried and repaired on a tenth of the rows"""
    leakage_checks: Literal["all", "promising"] = "all"
    """`promising`: ask only for scripts that would be accepted, after they have run"""
    task_in_prompts: bool = False
    """repeat the description, which stands in the system prompt, in prompts that name it"""
    briefing: tuple[Briefing, ...] = get_args(Briefing)
    """what agents are told in addition to the specification"""
    diversity: tuple[Diversity, ...] = get_args(Diversity)
    """how candidates and parallel paths are made to differ"""
    letter: bool = False
    """do what the specification says, also where something else works better"""
    knowledge: str | None = None
    """folder of your own knowledge files (*.md) for the agents"""
    reference_files: tuple[str, ...] = ()
    """texts of others that the final script must not copy"""
    blocked_commands: tuple[str, ...] = ()
    """more shell patterns that agents may not run"""

    work_dir: str = "."
    """where the run's working directories are made"""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    """how much is logged"""
    log_file: str | None = None
    """also append the log to this file"""

    @model_validator(mode="before")
    @classmethod
    def _under_the_preset(cls, data: Any) -> Any:
        preset = PRESETS.get(str(data.get("preset"))) if isinstance(data, dict) else None
        if preset is None:
            return data
        agents = data.get("agents")
        if agents is None or isinstance(agents, dict):
            agents = {**preset["agents"], **(agents or {})}
        return {**preset, **data, "agents": agents}

    @model_validator(mode="after")
    def _one_split(self) -> "PipelineConfig":
        named = [name for name in ("time_column", "group") if getattr(self, name) not in OPEN]
        if len(named) > 1 or any(self.split not in ("auto", name.partition("_")[0]) for name in named):
            raise ValueError("rows are hidden in one way: give `time_column`, or `group`, or `split: random`")
        if self.scoring == "self_reported" and (named or self.split != "auto"):
            raise ValueError(
                "`split`, `time_column` and `group` say which rows are hidden, and `self_reported` hides none"
            )
        return self

    @property
    def sizes(self) -> Sizes:
        """Its numbers, as the paper calls them."""
        return Sizes(*(getattr(self, name) for name in SIZES))

    @property
    def fills_time(self) -> bool:
        """Is the end of its time the end of a search, whatever its T? So it is where nobody asked for T steps."""
        return not self.letter and (self.more_steps or self.traits.is_embedded)

    @property
    def has_own_limit(self) -> bool:
        """Is the time limit another than the usual one?"""
        return self.time_limit_seconds != TIME_LIMIT

    @property
    def traits(self) -> Traits:
        """What is special about its model."""
        return traits_of(self.model)

    def role(self, agent: AgentType) -> RoleSettings:
        """What is set for one agent; its model is always named."""
        chosen = self.agents.get(agent, RoleSettings())
        is_named = chosen.model is not None and not self.traits.is_embedded
        return chosen if is_named else chosen.model_copy(update={"model": self.model})
