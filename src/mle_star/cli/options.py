"""Options and arguments that commands share; those of settings are made from the fields of `PipelineConfig`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from mle_star.errors import ConfigError, MleStarError

if TYPE_CHECKING:
    from mle_star.models import PipelineConfig

EXIT_WRONG_INPUT, EXIT_NO_SUBMISSION, EXIT_FAILED, EXIT_INTERRUPTED = 1, 2, 3, 130
Function = TypeVar("Function", bound=Callable[..., None])
FLAGS = {
    "model": "--model",
    "base_url": "--base-url",
    "preset": "--preset",
    "num_retrieved_models": "-M --models",
    "outer_loop_steps": "-T --outer-steps",
    "inner_loop_steps": "-K --inner-steps",
    "num_parallel_solutions": "-L --paths",
    "ensemble_rounds": "-R --rounds",
    "time_limit_seconds": "--time-limit",
    "script_timeout_seconds": "--script-timeout",
    "max_budget_usd": "--max-budget",
    "python": "--python",
    "executor": "--executor",
    "use_cache": "--cache/--no-cache",
    "knowledge": "--knowledge",
    "reference_files": "--reference",
}
"""Settings with an option of their own, in the order of the help. Types and help come from the fields."""
FILES = ("knowledge", "reference_files")
"""Settings that name files: a resumed run finds them from any folder."""
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Given(NamedTuple):
    """The settings that stand on a command line."""

    explicit: dict[str, Any]
    file: Path | None

    def load(self, base: PipelineConfig | None = None) -> PipelineConfig:
        """All settings, with those of the environment, and of the run in `base` that this one continues."""
        from mle_star.config import load_config

        return load_config(self.explicit, self.file, base=base)


NOTHING = Given({}, None)


def takes_settings(*names: str) -> Callable[[Function], Function]:
    """A command with an option for each of these settings, and `--config` and `--set`; it gets them as `given`."""

    def marked(function: Function) -> Function:
        function.__dict__["settings"] = names
        return function

    return marked


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """The function that typer calls: `given` is replaced by options. Only a command that is called needs them."""
    names = function.__dict__.get("settings")
    if names is None:
        return function
    options = [inspect.Parameter(name, _KIND, default=None, annotation=_option(name)) for name in names]
    options += [inspect.Parameter(name, _KIND, default=None, annotation=kind) for name, kind in _GENERAL.items()]
    parameters = [
        one
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        for one in (options if parameter.name == "given" else [parameter])
    ]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        from mle_star.config import parse_assignments

        found = {name: _value(name, values.pop(name)) for name in names}
        explicit = {name: value for name, value in found.items() if value is not None}
        explicit |= parse_assignments(values.pop("assignments") or [])
        given = Given(explicit, values.pop("config"))
        function(**values, given=given)

    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _option(name: str) -> Any:
    """The option of a setting, as its field describes it."""
    from mle_star.config import kinds_of
    from mle_star.models import PipelineConfig

    kinds = kinds_of(name)
    kind = next((one for one in (bool, int, float) if one in kinds), Path if name in FILES else str)
    words = PipelineConfig.model_fields[name].description or ""
    choices = [one for one in kinds if isinstance(one, str)]
    if name.endswith("_seconds"):
        kind, choices = str, ["seconds", "90m", "12h", "1d"]
    words = f"{words} ({', '.join(choices)})" if choices else words
    info = typer.Option(
        *FLAGS[name].split(),
        help=f"{words[:1].upper()}{words[1:]}.",
        metavar="TIME" if name.endswith("_seconds") else None,
        autocompletion=complete_executor if name == "executor" else None,
    )
    return Annotated[list[kind] | None if tuple in kinds else kind | None, info]  # type: ignore[valid-type]


def _value(name: str, value: Any) -> Any:
    """What an option gave as the setting wants it; None: not given."""
    if value is None or value == []:
        return None
    if name.endswith("_seconds"):
        return seconds_of(FLAGS[name], value)
    if isinstance(value, list):
        return [_value(name, one) for one in value]
    return str(value.absolute()) if isinstance(value, Path) else value


def seconds_of(option: str, text: str | None) -> int | None:
    """`90`, `90s`, `15m`, `12h`, `1d` as seconds."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip().lower())
    seconds = round(float(found.group(1)) * _UNITS[found.group(2)]) if found else 0
    if seconds < 1:
        raise ConfigError(f"{option} {text!r}: write seconds, or a number with s, m, h or d, such as 90m")
    return seconds


# --- what a shell completes --------------------------------------------------------------------------------------


def run_named(ctx: typer.Context, name: Path) -> Path:
    """The folder of the run that a word on the command line means."""
    from mle_star.run.finding import find_run

    return name if ctx.resilient_parsing else find_run(name)


def complete_run(incomplete: str) -> list[str]:
    """Names of runs that begin like this, the latest first."""
    from mle_star.run.finding import LATEST, runs_folder, runs_in

    names = [LATEST, *(run.name for run in reversed(runs_in(runs_folder())))]
    return [name for name in names if name.startswith(incomplete)]


def complete_executor(incomplete: str) -> list[str]:
    """Executors that begin like this: ours, and those of plugins."""
    from mle_star.execution.executors import executor_names

    return [name for name in executor_names() if name.startswith(incomplete)]


def complete_step(ctx: typer.Context, incomplete: str) -> list[str]:
    """Steps of the run that was named before."""
    from mle_star.cli.browse import read_steps
    from mle_star.run.finding import find_run

    try:
        return [step for step in read_steps(find_run(ctx.params["run_folder"])) if step.startswith(incomplete)]
    except (MleStarError, OSError, KeyError):
        return []


# --- arguments and options of several commands -------------------------------------------------------------------


RUN_HELP = "A run: its name in runs/ or the beginning of it, its folder, or `latest`."
Run = Annotated[Path, typer.Argument(metavar="RUN", help=RUN_HELP, callback=run_named, autocompletion=complete_run)]
Target = Annotated[str | None, typer.Option(help="The column to predict, or several: a,b.")]
Metric = Annotated[str | None, typer.Option(help="Such as auc, rmse, logloss, macro-f1, or score.py:function.")]
Maximize = Annotated[bool | None, typer.Option("--maximize/--minimize", help="Which way the metric is better.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The run's folder; runs/NAME-TIME if not given.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")]
Open = Annotated[bool, typer.Option("--open", help="Show it in the browser.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="A fixed port instead of a free one.")]
AsList = Annotated[bool, typer.Option("--json", help="A list of objects, for programs.")]
Serve = Annotated[bool, typer.Option("--serve", help="Serve a live page of the run to this machine's browsers.")]

_KIND = inspect.Parameter.POSITIONAL_OR_KEYWORD
_GENERAL: dict[str, Any] = {
    "config": Annotated[Path | None, typer.Option("--config", help="A YAML file with settings.")],
    "assignments": Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting; repeatable.")
    ],
}
