"""MLE-STAR: hand over a task and a folder of data, get back a validated submission, a script and a report.

    from mle_star import PipelineConfig, load_task, run_pipeline_sync

    result = run_pipeline_sync(load_task("my-task"), PipelineConfig(model="offline", num_parallel_solutions=1))

Names are loaded when they are first used: importing the package is quick, and needs no agent SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mle_star.config import (
        load_config,
    )
    from mle_star.data import (
        load_task,
    )
    from mle_star.errors import (
        AgentError,
        BudgetExceeded,
        ConfigError,
        CredentialError,
        ExecutionError,
        JournalError,
        MleStarError,
        Phase1Error,
        PipelineError,
        PipelineTimeoutError,
        RunInterrupted,
    )
    from mle_star.models import (
        SCORE_PATTERN,
        AgentConfig,
        AgentType,
        CodeBlock,
        CodeBlockCategory,
        DataContaminationResult,
        DataModality,
        EnsembleAttempt,
        EvaluationResult,
        ExecutionRawResult,
        ExtractorOutput,
        FinalResult,
        Frozen,
        InnerLoopResult,
        Isolation,
        LeakageAnswer,
        LeakageDetectionOutput,
        MetricDirection,
        Phase1Result,
        Phase2Result,
        Phase3Result,
        PhaseTimeBudget,
        PipelineConfig,
        PromptTemplate,
        RefinementAttempt,
        RefinePlan,
        RetrievedModel,
        RetrieverOutput,
        ScoreFunction,
        SolutionPhase,
        SolutionScript,
        TaskDescription,
        TaskType,
        ToolProfile,
        agent_config,
        build_default_agent_configs,
        is_improvement,
        is_improvement_or_equal,
    )
    from mle_star.orchestrator import (
        PipelineState,
        run_pipeline,
        run_pipeline_sync,
    )
    from mle_star.prompts import (
        PromptRegistry,
    )

    __version__: str

__all__ = [
    "SCORE_PATTERN",
    "AgentConfig",
    "AgentError",
    "AgentType",
    "BudgetExceeded",
    "CodeBlock",
    "CodeBlockCategory",
    "ConfigError",
    "CredentialError",
    "DataContaminationResult",
    "DataModality",
    "EnsembleAttempt",
    "EvaluationResult",
    "ExecutionError",
    "ExecutionRawResult",
    "ExtractorOutput",
    "FinalResult",
    "Frozen",
    "InnerLoopResult",
    "Isolation",
    "JournalError",
    "LeakageAnswer",
    "LeakageDetectionOutput",
    "MetricDirection",
    "MleStarError",
    "Phase1Error",
    "Phase1Result",
    "Phase2Result",
    "Phase3Result",
    "PhaseTimeBudget",
    "PipelineConfig",
    "PipelineError",
    "PipelineState",
    "PipelineTimeoutError",
    "PromptRegistry",
    "PromptTemplate",
    "RefinePlan",
    "RefinementAttempt",
    "RetrievedModel",
    "RetrieverOutput",
    "RunInterrupted",
    "ScoreFunction",
    "SolutionPhase",
    "SolutionScript",
    "TaskDescription",
    "TaskType",
    "ToolProfile",
    "__version__",
    "agent_config",
    "build_default_agent_configs",
    "is_improvement",
    "is_improvement_or_equal",
    "load_config",
    "load_task",
    "run_pipeline",
    "run_pipeline_sync",
]

_HOMES = {
    "PromptRegistry": "mle_star.prompts",
    "load_config": "mle_star.config",
    "load_task": "mle_star.data",
    "PipelineState": "mle_star.orchestrator",
    "run_pipeline": "mle_star.orchestrator",
    "run_pipeline_sync": "mle_star.orchestrator",
}


def __getattr__(name: str) -> Any:
    """A public name, from the module it lives in."""
    if name == "__version__":
        from importlib.metadata import version

        return version("mle-star")
    if name in __all__:
        for home in [_HOMES[name]] if name in _HOMES else ["mle_star.models", "mle_star.errors"]:
            module = import_module(home)
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, for completion."""
    return sorted({*globals(), *__all__})
