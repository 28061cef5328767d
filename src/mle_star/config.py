"""Where settings come from: defaults < environment (`MLE_STAR_*`) < an earlier run < file < explicit arguments."""

import logging
import os
import sys
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TextIO, Union, get_args, get_origin

import yaml
from pydantic import ValidationError

from mle_star.data.place import StrictLoader, read_mapping
from mle_star.errors import ConfigError
from mle_star.models import PRESETS, PhaseTimeBudget, PipelineConfig
from mle_star.models.enums import traits_of
from mle_star.models.texts import did_you_mean, printable

PREFIX = "MLE_STAR_"
SHORT_NAMES = {"MLE_STAR_MAX_BUDGET": "max_budget_usd", "MLE_STAR_TIME_LIMIT": "time_limit_seconds"}
"""The variables of the specification that are not simply the field's name; they win over the long spelling."""
RESERVED = {"MLE_STAR_SOAK", "MLE_STAR_NODE_DIR"}
"""Variables with our prefix that are no settings."""
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

Layer = dict[str, tuple[str, Any]]
"""What one place says: for each setting where it stands, and its value."""


def load_config(
    explicit: Mapping[str, Any] | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    base: PipelineConfig | None = None,
) -> PipelineConfig:
    """The settings of a run. `explicit` holds only what was really given: a None in it is a value, too.

    `base` holds those of a run that this one continues: they stand unless something else is given.
    """
    given = {_known(name, where="settings"): (name, value) for name, value in (explicit or {}).items()}
    written = {} if file is None else read_mapping(file)
    in_file = {_known(name, where=str(file)): (f"{file}: {name}", value) for name, value in written.items()}
    inherited = {} if base is None else _inherited(base, (given, in_file))
    variables = _from_environment(environ)
    return _settled(given, in_file, inherited, variables, _while_time_lasts((variables, in_file, given), inherited))


def effective_config(config: PipelineConfig, environ: Mapping[str, str] | None = None) -> PipelineConfig:
    """A copy in which the environment has replaced defaults, and nothing that the caller chose."""
    chosen = {name: (name, getattr(config, name)) for name in config.model_fields_set}
    return _settled(chosen, _from_environment(environ))


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`["outer_loop_steps=6"]` as explicit settings; the last one of a name counts."""
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} is not a setting: write NAME=VALUE, such as outer_loop_steps=6")
        head, *below = key.strip().split(".")
        name = _known(head, where="--set")
        value = text.strip() if below else _from_text(name, text.strip())
        for part in reversed(below):
            value = {part: value}
        settings[name] = _merged(settings.get(name), value) if below else value
    return settings


def _merged(below: Any, above: Any) -> Any:
    """A setting of parts: those given replace those of lower layers, the others are kept."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}


def setup_logging(config: PipelineConfig, *, console: bool = True, stream: TextIO | None = None) -> None:
    """Send the log of this run to the console and to `log_file`; handlers of an earlier run go first."""
    close_logging()
    logger = logging.getLogger("mle_star")
    logger.setLevel(config.log_level)
    handlers: list[logging.Handler] = []
    if console:
        handlers.append(logging.StreamHandler(stream or sys.stderr))
    if config.log_file is not None:
        path = Path(config.log_file)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handlers.append(_LogFile(path, encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"log_file={config.log_file!r}: cannot be written ({error.strerror})") from None
    for handler in handlers:
        handler.setFormatter(_PlainFormatter(LOG_FORMAT))
        logger.addHandler(handler)


class _LogFile(logging.FileHandler):
    """A log that silently loses lines where there is no room for them: the run itself says what is wrong."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):  # what is still held back may find no room either
            super().close()


class _PlainFormatter(logging.Formatter):
    """Spells out escape codes: what scripts and models say must not drive the terminal that shows the log."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")


def close_logging() -> None:
    """Take away the handlers that `setup_logging` added, and no others."""
    logger = logging.getLogger("mle_star")
    for handler in [one for one in logger.handlers if isinstance(one.formatter, _PlainFormatter)]:
        logger.removeHandler(handler)
        handler.close()


def _known(name: str, *, where: str) -> str:
    if name not in PipelineConfig.model_fields:
        raise ConfigError(f"{where}: unknown setting {name!r}; {did_you_mean(name, PipelineConfig.model_fields)}")
    return name


def _from_environment(environ: Mapping[str, str] | None) -> Layer:
    """What the variables say; an empty one counts as absent."""
    variables = {**{PREFIX + name.upper(): name for name in PipelineConfig.model_fields}, **SHORT_NAMES}
    found: Layer = {}
    for variable, text in (os.environ if environ is None else environ).items():
        if not variable.startswith(PREFIX) or variable in RESERVED or not text.strip():
            continue
        if variable not in variables:
            raise ConfigError(f"environment: unknown variable {variable}; {did_you_mean(variable, variables)}")
        name = variables[variable]
        if name not in found or variable in SHORT_NAMES:
            found[name] = (variable, _from_text(name, text.strip()))
    return found


def _inherited(base: PipelineConfig, above: Iterable[Layer]) -> Layer:
    """Its model and what an earlier run had set beyond its preset; another preset takes the place of its sizes."""
    usual = PipelineConfig(preset=base.preset).model_dump(mode="json", exclude_none=True)
    had = base.model_dump(mode="json", exclude_none=True)
    own = {name: value for name, value in had.items() if value != usual.get(name)}
    own["agents"] = {name: role for name, role in had["agents"].items() if role != usual["agents"].get(name)}
    own |= {"preset": base.preset, "model": base.model}
    if any("outer_loop_steps" in layer for layer in above):
        own.pop("more_steps", None)
    new = next((layer["preset"][1] for layer in above if "preset" in layer), base.preset)
    if new != base.preset:
        sizes = {name for key, preset in PRESETS.items() if key in ("quick", "good", "best", new) for name in preset}
        own = {name: value for name, value in own.items() if name not in sizes - {"agents"}}
    return {name: (f"the earlier run: {name}", value) for name, value in own.items()}


def _while_time_lasts(layers: Iterable[Layer], inherited: Layer) -> Layer:
    """What follows where a time limit is given again, and nothing of T: the search goes on until then.

    Not without a key, as the embedded engineer's ideas end; nor with a preset that is small, or the specification's.
    """
    new = {name: value for layer in layers for name, (_, value) in layer.items()}
    known = {**{name: value for name, (_, value) in inherited.items()}, **new}
    is_fixed = {"outer_loop_steps", "more_steps"} & {*known} or known.get("preset") in ("quick", "letter")
    if "time_limit_seconds" not in new or is_fixed or traits_of(str(known.get("model"))).is_embedded:
        return {}
    values = {"more_steps": True, "leakage_checks": "promising"}
    return {name: (f"time_limit_seconds: {name}", value) for name, value in values.items()}


def _from_text(name: str, text: str) -> Any:
    """A value as the field wants it; what cannot be read stays text, and validation refuses it by name."""
    kinds = kinds_of(name)
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    if {tuple, dict, PhaseTimeBudget} & set(kinds):
        try:
            return yaml.load(text, Loader=StrictLoader)
        except yaml.YAMLError:
            return text
    return text.upper() if name == "log_level" else text


def kinds_of(name: str) -> tuple[Any, ...]:
    """The plain types that a field takes: `int | None` gives int and NoneType, a literal gives its values."""
    annotation = PipelineConfig.model_fields[name].annotation
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    kinds = (get_args(part) if get_origin(part) is Literal else (get_origin(part) or part,) for part in parts)
    return tuple(chain.from_iterable(kinds))


def _settled(*layers: Layer) -> PipelineConfig:
    """The settings of all layers, or one line on what is wrong; the first that knows a name counts.

    It names each bad setting, its value and what would be right.
    """
    values: dict[str, Any] = {}
    for layer in reversed(layers):
        values = _merged(values, {name: value for name, (_, value) in layer.items()})
    try:
        return PipelineConfig(**values)
    except ValidationError as error:
        problems = [("".join(map(str, one["loc"][:1])), one["msg"]) for one in error.errors()]
    found = []
    for name, message in problems:
        where = next((f"{place}={value!r}: " for place, value in (one[name] for one in layers if name in one)), "")
        found.append(where + message.removeprefix("Value error, ").replace("Input should be", "must be"))
    raise ConfigError("; ".join(dict.fromkeys(found)))
