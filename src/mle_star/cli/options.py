"""Options and arguments that commands share; those of settings are made from the fields of `PipelineConfig`."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_type_hints

import typer
from typer import Argument, Option

from mle_star.errors import ConfigError

if TYPE_CHECKING:
    from mle_star.models import PipelineConfig

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
    "split": "--split",
    "time_column": "--time-column",
    "group": "--group",
    "use_cache": "--cache/--no-cache",
    "knowledge": "--knowledge",
    "reference_files": "--reference",
}
"""Settings with an option of their own, in the order of the help. Types and help come from the fields."""
PANELS = {
    "Data": "target metric maximize drop parent split time_column group",
    "Model": "model base_url knowledge",
    "Limits and size": "time_limit_seconds script_timeout_seconds max_budget_usd use_cache preset num_retrieved_models "
    "outer_loop_steps inner_loop_steps num_parallel_solutions ensemble_rounds",
    "Safety and where scripts run": "python executor reference_files",
    "Output": "output quiet as_json display serve mlflow notify dry_run",
}
"""What options are about, as the help of a command with many of them shows it."""
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
FILES = ("knowledge", "reference_files")
"""Settings that name files: a resumed run finds them from any folder."""
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


# --- parameters that stand for several options ----------------------------------------------------------------------


class Given(NamedTuple):
    """The settings that stand on a command line."""

    explicit: dict[str, Any] = {}
    file: Path | None = None

    @classmethod
    def of(cls, config: Path | None, assignments: list[str] | None, **options: Any) -> "Given":
        """What `--config`, `--set` and the options of settings say."""
        from mle_star.config import parse_assignments

        found = {name: _value(name, value) for name, value in options.items() if value not in (None, [])}
        return cls(found | parse_assignments(assignments or []), config)

    def load(self, base: "PipelineConfig | None" = None) -> "PipelineConfig":
        """All settings, with those of the environment, and of the run in `base` that this one continues."""
        from mle_star.config import load_config

        return load_config(self.explicit, self.file, base=base)


class Wanted(NamedTuple):
    """What the user says of the task."""

    target: Annotated[str | None, Option(help="The column to predict, or several: a,b.")] = None
    metric: Annotated[str | None, Option(help="Such as auc, rmse, logloss, or score.py:function.")] = None
    maximize: Annotated[bool | None, Option("--maximize/--minimize", help="The better way of the metric.")] = None


class Shown(NamedTuple):
    """How a run is shown while it runs, and who is notified."""

    quiet: Annotated[bool, Option("--quiet", "-q", help="Show only warnings, errors and the summary.")] = False
    as_json: Annotated[bool, Option("--json", help="Print events as JSON, one a line, on standard output.")] = False
    display: Annotated[str, Option(help="auto, rich (a live screen), plain (lines), or a plugin's.")] = "auto"
    serve: Annotated[bool, Option("--serve", help="Serve a live page of the run on this machine.")] = False
    mlflow: Annotated[str | None, Option(metavar="URI", help="Send the run to an MLflow server, too.")] = None
    notify: Annotated[str | None, Option(metavar="CMD", help="Command to run at the end, or bell.")] = None

    @property
    def mode(self) -> str:
        """The renderer's name."""
        return "json" if self.as_json else "quiet" if self.quiet else self.display

    @property
    def talks(self) -> bool:
        """Is there room for advice to a person?"""
        return self.mode not in ("json", "quiet")


NO_SETTINGS, NOTHING_WANTED, AS_USUAL = Given(), Wanted(), Shown()


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """The function that typer calls: `Given`, `Wanted` and `Shown` are replaced by their options.

    `Annotated[Given, "model"]` has an option for this setting, a bare `Given` for all, and both `--config` and `--set`.
    """
    bundles: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind, *names = get_args(parameter.annotation) or (parameter.annotation,)
        if kind not in (Given, Wanted, Shown):
            parameters.append(parameter)
            continue
        options = _settings_of(names or FLAGS) if kind is Given else get_type_hints(kind, include_extras=True)
        bundles[name] = (Given.of if kind is Given else kind, list(options))
        parameters += [
            parameter.replace(name=option, annotation=hint, default=kind._field_defaults.get(option))
            for option, hint in options.items()
        ]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, (make, options) in bundles.items():
            values[name] = make(**{option: values.pop(option) for option in options})
        function(**values)

    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _settings_of(names: Iterable[str]) -> dict[str, Any]:
    """The options that a command has for these settings."""
    return {
        **{name: _option(name) for name in names},
        "config": Annotated[Path | None, Option("--config", help="A YAML file with settings.")],
        "assignments": Annotated[
            list[str] | None, Option("--set", metavar="NAME=VALUE", help="Any setting; repeatable.")
        ],
    }


def _option(name: str) -> Any:
    """The option of a setting, as its field describes it."""
    from mle_star.config import kinds_of
    from mle_star.models import PipelineConfig

    kinds, is_time = kinds_of(name), name.endswith("_seconds")
    kind = next((one for one in (bool, int, float) if one in kinds), Path if name in FILES else str)
    words = PipelineConfig.model_fields[name].description or ""
    choices = ["seconds", "90m", "12h", "1d"] if is_time else [one for one in kinds if isinstance(one, str)]
    words = f"{words} ({', '.join(choices)})" if choices else words
    info = Option(*FLAGS[name].split(), help=f"{words[:1].upper()}{words[1:]}.", metavar="TIME" if is_time else None)
    kind = str if is_time else kind
    return Annotated[list[kind] | None if tuple in kinds else kind | None, info]  # type: ignore[valid-type]


def _value(name: str, value: Any) -> Any:
    """What an option gave as the setting wants it."""
    if name.endswith("_seconds"):
        return seconds_of(FLAGS[name], value)
    if isinstance(value, list):
        return [_value(name, one) for one in value]
    return str(value.absolute()) if isinstance(value, Path) else value


def seconds_of(option: str, text: str) -> int:
    """`90`, `90s`, `15m`, `12h`, `1d` as seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip().lower())
    seconds = round(float(found.group(1)) * _UNITS[found.group(2)]) if found else 0
    if seconds < 1:
        raise ConfigError(f"{option} {text!r}: write seconds, or a number with s, m, h or d, such as 90m")
    return seconds


def run_named(ctx: typer.Context, name: Path | None) -> Path | None:
    """The folder of the run that a word on the command line means."""
    from mle_star.run.folder import find_run

    return name if name is None or ctx.resilient_parsing else find_run(name)


# --- arguments and options of several commands -------------------------------------------------------------------


RUN_HELP = "A run: its name in runs/ or the beginning of it, its folder, or `latest`."
NAMED: dict[str, Any] = {"callback": run_named}
Run = Annotated[Path, Argument(metavar="RUN", help=RUN_HELP, **NAMED)]
Output = Annotated[Path | None, Option("--output", "-o", help="The run's folder; runs/NAME-TIME if not given.")]
Force = Annotated[bool, Option("--force", help="Overwrite an existing file.")]
Open = Annotated[bool, Option("--open", help="Show it in the browser.")]
Port = Annotated[int, Option(min=0, max=65535, help="A fixed port instead of a free one.")]
AsList = Annotated[bool, Option("--json", help="A list of objects, for programs.")]
