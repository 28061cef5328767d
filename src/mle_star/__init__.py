"""MLE-STAR: give it a task and a folder of data, get back a checked submission, a script and a report.

    import mle_star

    run = mle_star.fit("houses.csv", target="price", model="offline")
    run.score, run.predict("new.csv")

Names are loaded when they are first used: importing the package is quick, and needs no agent SDK. `__init__.pyi` says
the same to type checkers.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "api": "Model Run fit load_model",
    "config": "load_config",
    "data.folder": "load_task",
    "errors": "AgentError ConfigError CredentialError ExecutionError MleStarError PipelineError RunInterrupted",
    "models": "DataModality FinalResult Measure MetricDirection PipelineConfig RoleSettings SolutionScript "
    "TaskDescription TaskType",
    "orchestrator": "run_pipeline run_pipeline_sync",
}
"""What most people need, by the module it lives in. All other records and errors are attributes of the package, too."""
_OTHERS = {"models": "SCORE_PATTERN ToolProfile", "orchestrator": "PipelineState", "prompts": "PromptRegistry"}
__all__ = sorted(["__version__", *" ".join(_HOMES.values()).split()])


def __getattr__(name: str) -> Any:
    """A public name, from the module it lives in: one of the tables, or whatever models and errors define or offer."""
    if name == "__version__":
        return import_module("importlib.metadata").version("mle-star")
    for home, names in (*_HOMES.items(), *_OTHERS.items()):
        if name in names.split():
            return getattr(import_module(f"{__name__}.{home}"), name)
    for home in () if name.startswith("_") else ("models", "errors"):
        found = vars(import_module(f"{__name__}.{home}")).get(name)
        if getattr(found, "__module__", "").startswith(f"{__name__}."):
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What most people need, for completion."""
    return __all__
