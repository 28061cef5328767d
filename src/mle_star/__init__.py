"""MLE-STAR: hand over a task and a folder of data, get back a validated submission, a script and a report.

    import mle_star

    run = mle_star.fit("houses.csv", target="price", model="offline")
    run.score, run.predict("new.csv")

Names are loaded when they are first used: importing the package is quick, and needs no agent SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mle_star.config import load_config as load_config
    from mle_star.data import load_task as load_task
    from mle_star.errors import *  # noqa: F403
    from mle_star.models import *  # noqa: F403
    from mle_star.orchestrator import PipelineState as PipelineState
    from mle_star.orchestrator import run_pipeline as run_pipeline
    from mle_star.orchestrator import run_pipeline_sync as run_pipeline_sync
    from mle_star.prompts import PromptRegistry as PromptRegistry
    from mle_star.results.api import Run as Run
    from mle_star.results.api import fit as fit
    from mle_star.results.model import Model as Model
    from mle_star.results.model import load_model as load_model

    __all__: list[str]
    __version__: str

_SINGLE = {
    "Model": "results.model",
    "PipelineState": "orchestrator",
    "PromptRegistry": "prompts",
    "Run": "results.api",
    "SCORE_PATTERN": "models",
    "ToolProfile": "models",
    "fit": "results.api",
    "load_config": "config",
    "load_model": "results.model",
    "load_task": "data",
    "run_pipeline": "orchestrator",
    "run_pipeline_sync": "orchestrator",
}


def _is_offered(value: object, home: str) -> bool:
    """Is it defined in `home`, or a type that `home` offers for others?"""
    module = getattr(value, "__module__", None) or ""
    others = isinstance(value, type) and module.startswith((f"{__name__}.basics.", f"{__name__}.agents."))
    return others or module == home


def __getattr__(name: str) -> Any:
    """A public name, from the module it lives in: one of `_SINGLE`, or whatever models and errors define."""
    if name == "__version__":
        return import_module("importlib.metadata").version("mle-star")
    if name in _SINGLE:
        return getattr(import_module(f"{__name__}.{_SINGLE[name]}"), name)
    if name != "__all__" and name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = [import_module(f"{__name__}.{home}") for home in ("models", "errors")]
    found = {n: v for home in homes for n, v in vars(home).items() if _is_offered(v, home.__name__)}
    public = {n: v for n, v in found.items() if not n.startswith("_")}
    if name == "__all__":
        return sorted({*_SINGLE, *public, "__version__"})
    if name not in public:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, public[name])


def __dir__() -> list[str]:
    """What is public, for completion."""
    return sorted({*globals(), *__getattr__("__all__")})
