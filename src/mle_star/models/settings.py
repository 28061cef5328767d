"""All settings of a run: names, defaults, bounds and what they mean."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field, StrictBool, field_validator, model_validator

from mle_star.models.agents import AGENTS, AgentType
from mle_star.models.enums import Frozen, ToolProfile, Traits, traits_of
from mle_star.models.phases import PHASES


class PhaseTimeBudget(Frozen):
    """The share of the time limit that each phase may use."""

    phase1: float = Field(default=0.10, gt=0)
    phase2: float = Field(default=0.65, gt=0)
    phase3: float = Field(default=0.15, gt=0)
    finalization: float = Field(default=0.10, gt=0)

    @model_validator(mode="after")
    def _shares_add_up(self) -> PhaseTimeBudget:
        total = sum(getattr(self, phase.name) for phase in PHASES)
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
        if value is not None and traits_of(value).is_embedded:
            raise ValueError("`offline` is all agents or none: set `model` to it")
        return value

    @field_validator("thinking")
    @classmethod
    def _enough_to_think(cls, value: Thinking | int | None) -> Thinking | int | None:
        if isinstance(value, int) and value < 1024:
            raise ValueError("thinking takes at least 1024 tokens")
        return value


Briefing = Literal["data", "limits", "memory", "script", "best", "errors", "knowledge", "research", "refit", "model"]
"""What agents are told beyond the specification: the data brief, limits and times, what was tried, the whole script

around a block, the best so far, an error analysis, knowledge files, the retriever's notes, to refit on all rows, to
keep the final model."""
Diversity = Literal["families", "starts", "emphasis", "borrowing"]
Preset = Literal["quick", "good", "best", "letter"]


def _roles(preset: str) -> dict[str, dict[str, str]]:
    return {agent.value: dict(one.presets[preset]) for agent, one in AGENTS.items() if preset in one.presets}


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "num_retrieved_models": 2,
        "outer_loop_steps": 1,
        "inner_loop_steps": 2,
        "num_parallel_solutions": 1,
        "ensemble_rounds": 1,
        "max_debug_attempts": 2,
        "leakage_checks": "promising",
        "agents": _roles("quick"),
    },
    "good": {"leakage_checks": "promising", "agents": _roles("good")},
    "best": {
        "num_retrieved_models": 6,
        "outer_loop_steps": 6,
        "num_parallel_solutions": 3,
        "ensemble_rounds": 6,
        "agents": _roles("best"),
    },
    "letter": {
        "letter": True,
        "scoring": "self_reported",
        "sample_first": "off",
        "leakage_checks": "all",
        "use_cache": False,
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

    model: str = Field(
        default="sonnet", description="model name or alias; `offline`: built-in rules, no key, no internet"
    )
    base_url: str | None = Field(
        default=None, description="a server that speaks the Messages API: a gateway, or a model on this machine"
    )
    tool_use: Literal["auto", "none"] = Field(
        default="auto", description="`none`: JSON is asked for in the text, for servers without tools; auto finds out"
    )
    prices_file: str | None = Field(default=None, description="a YAML file with prices: `name: [input, output]`")
    preset: Preset | None = Field(
        default=None, description="sizes, roles and efforts under one name; `letter`: the specification"
    )
    agents: dict[AgentType, RoleSettings] = Field(
        default={}, description="model, effort and thinking by agent, where they differ"
    )
    permission_mode: Literal["bypassPermissions", "acceptEdits", "default", "dontAsk", "plan"] = Field(
        default="bypassPermissions", description="the SDK's permission mode for agents with tools"
    )
    tool_profile: ToolProfile = Field(default="minimal", description="`full` gives agents a shell and file tools")
    max_budget_usd: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="money limit of the whole run, in US dollars"
    )
    phase_time_budget: PhaseTimeBudget | None = Field(default=None, description="shares of the time limit")
    agent_timeout_seconds: int = Field(default=900, description="limit of one agent call")
    client_reuse: Literal["auto", "fresh", "clear"] = Field(
        default="auto", description="`fresh`: a client per call; `clear`: reused after /clear; `auto` by model"
    )
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
    executor: str = Field(
        default="local", description="where scripts run: `local`, `ray`, `ray://HOST:PORT`, or what a plugin brings"
    )
    script_cpus: int | None = Field(default=None, description="cores of one script on a cluster; none: an even share")
    script_gpus: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="GPUs of one script; none: one on a cluster, else a share"
    )
    shared_data: StrictBool = Field(
        default=False, description="the machines of the cluster see the data under the same path"
    )
    python: str | None = Field(default=None, description="interpreter for scripts; none: the one running mle-star")
    seed: int = Field(default=42, description="given to scripts as MLE_STAR_SEED")
    allow_network: StrictBool = Field(default=False, description="let scripts reach the network")
    allow_outside_links: StrictBool = Field(
        default=False, description="let links among the data lead out of the data folder"
    )
    require_sandbox: StrictBool = Field(
        default=False, description="refuse to run scripts without namespaces and a filter of system calls"
    )
    model_caches: tuple[str, ...] = Field(default=(), description="folders with weights that scripts may read")
    use_cache: StrictBool = Field(default=True, description="never run the same script twice within a run")
    scoring: Literal["auto", "self_reported"] = Field(
        default="auto",
        description="auto: the harness hides labelled rows and scores scripts by them; else scripts score themselves",
    )
    score_views: int | None = Field(
        default=None,
        le=5,
        description="how often a script runs, each time with other rows hidden; none: 1 to 5 times, by the rows",
    )
    equivalence_bound: float = Field(
        default=0.5, ge=0, le=1, description="how far the final answers must agree with those of the search (0 to 1)"
    )
    prefer_best_input: StrictBool = Field(
        default=True,
        description="finalize a path's solution when it beats every ensemble, where scores are self-reported",
    )
    sample_first: Literal["auto", "off"] = Field(
        default="auto",
        description="`auto`: where scripts take long, new ones are tried and repaired on a tenth of the rows",
    )
    leakage_checks: Literal["all", "promising"] = Field(
        default="all", description="`promising`: ask only for scripts that would be accepted, after they have run"
    )
    task_in_prompts: StrictBool = Field(
        default=False, description="repeat the description, which stands in the system prompt, in prompts that name it"
    )
    briefing: tuple[Briefing, ...] = Field(
        default=get_args(Briefing), description="what agents are told beyond the specification"
    )
    diversity: tuple[Diversity, ...] = Field(
        default=get_args(Diversity), description="how candidates and parallel paths are made to differ"
    )
    letter: StrictBool = Field(
        default=False, description="do what the specification says, also where something else works better"
    )
    knowledge: str | None = Field(default=None, description="folder of your own knowledge files (*.md) for the agents")
    reference_files: tuple[str, ...] = Field(
        default=(), description="texts of others that the final script must not copy"
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

    @property
    def traits(self) -> Traits:
        """What is special about its model."""
        return traits_of(self.model)

    def role(self, agent: AgentType) -> RoleSettings:
        """What is set for one agent; its model is always named."""
        chosen = self.agents.get(agent, RoleSettings())
        if self.traits.is_embedded or chosen.model is None:
            return chosen.model_copy(update={"model": self.model})
        return chosen
