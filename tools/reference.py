"""Every option, setting, variable, event and file, read from the code and written to docs/reference.md.

python tools/reference.py            print it
python tools/reference.py --write    write docs/reference.md
python tools/reference.py --check    exit code 1 when the file is not current
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.models import ArgumentInfo, OptionInfo

import mle_star
from mle_star.config import PREFIX, SHORT_NAMES
from mle_star.models import PRESETS, PhaseTimeBudget, PipelineConfig
from mle_star.run.events import AnyEvent, Event
from mle_star.run.folder import RunFolder

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "reference.md"
HEAD = """# Reference

Made from the code by `python tools/reference.py --write`; a test keeps it current. Do not edit it by hand.

[Commands](#commands) · [Python](#python) · [Settings](#settings) · [Environment](#environment) ·
[Files of a run](#files-of-a-run) · [Events](#events)
"""
OTHER_VARIABLES = {
    "NO_COLOR": "any value: no colours on the terminal",
    "TERM": "`dumb`: lines instead of a moving screen",
    "ANTHROPIC_API_KEY": "and the other credentials of the Claude CLI: see [models](models.md)",
}


def reference() -> str:
    """The whole page."""
    return "\n".join(
        line
        for part in (_commands(), _python(), _settings(), _environment(), _files(), _events())
        for line in (*part, "")
    )


# --- commands ----------------------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield HEAD
    yield "## Commands"
    yield ""
    yield "`mle-star [--version] [--debug] COMMAND ...`; `--debug` shows the traceback of an error and works anywhere."
    yield "Exit codes: 0 a result (and a submission, where there is a test file), 1 wrong input,"
    yield "2 a test file but no submission, 3 the pipeline failed, 130 interrupted."
    cli, options = import_module("mle_star.cli.app"), import_module("mle_star.cli.options")
    for command in cli.COMMANDS:
        function = options.with_settings(cli.load(command))
        parameters = list(_parameters(function))
        arguments = " ".join(one.words for one in parameters if not one.options)
        yield ""
        yield f"### mle-star {command} {arguments}".rstrip()
        yield (inspect.getdoc(function) or "").partition("\n")[0]
        if any(one.options for one in parameters):
            yield ""
            yield "| option | value | meaning |"
            yield "| --- | --- | --- |"
        for one in (one for one in parameters if one.options):
            yield f"| {one.words} | {one.value} | {_cell(one.help)} |"


class Parameter(NamedTuple):
    """An option, or an argument when it has no `options`."""

    options: tuple[str, ...]
    words: str
    value: str
    help: str


def _parameters(function: Callable[..., None]) -> Iterator[Parameter]:
    """What a command takes, by its function's own signature."""
    hints = get_type_hints(function, include_extras=True)
    for key, parameter in inspect.signature(function).parameters.items():
        annotation, info = get_args(hints[key])[:2]
        if isinstance(info, ArgumentInfo):
            metavar = str(info.metavar or key.upper()).replace("[", "").replace("]", "")
            required = parameter.default is inspect.Parameter.empty
            yield Parameter((), metavar if required else f"[{metavar}]", "", info.help or "")
        elif isinstance(info, OptionInfo):
            flag = annotation in (bool, bool | None)
            # Inside Annotated, typer keeps the first name of an option where its default would be.
            first = [info.default] if isinstance(info.default, str) and info.default.startswith("-") else []
            given = [*first, *(info.param_decls or ())] or [f"--{key.replace('_', '-')}"]
            options = tuple(option for text in given for option in text.split("/"))
            words = ", ".join(f"`{option}`" for option in options)
            yield Parameter(
                options, words, "" if flag else _value(info, annotation, parameter.default), info.help or ""
            )


def _value(info: OptionInfo, annotation: Any, default: Any) -> str:
    """What an option takes, and its default."""
    kind = next(one for one in (*get_args(annotation), annotation) if one is not type(None))
    words = {int: "integer", float: "number", str: "text", Path: "path"}.get(kind, "")
    if isinstance(kind, type) and issubclass(kind, Enum):
        words = " or ".join(f"`{choice.value}`" for choice in kind)
    words = info.metavar or words
    shown = getattr(default, "value", default)
    return f"{words}; default {shown}" if shown is not None else words


# --- names -------------------------------------------------------------------------------------------------------


def _python() -> Iterator[str]:
    yield "## Python"
    yield ""
    yield "`import mle_star`. All other records and errors are attributes of the package as well."
    yield ""
    yield "| name | what it is |"
    yield "| --- | --- |"
    for name in mle_star.__all__:
        found = getattr(mle_star, name)
        takes = ", ".join(inspect.signature(found).parameters) if inspect.isfunction(found) else None
        words = "The version of the package." if isinstance(found, str) else inspect.getdoc(found) or ""
        shown = name if takes is None else f"{name}({takes})"
        yield f"| `mle_star.{shown}` | {_cell(words.partition(chr(10) * 2)[0])} |"


# --- settings ----------------------------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    yield "## Settings"
    yield ""
    yield "Fields of `PipelineConfig`. Each can be given by `--set NAME=VALUE`, in the file of `--config`, or as the"
    yield f"variable `{PREFIX}` + NAME in capitals; defaults < environment < file < command line. The settings of the"
    yield "run that `resume`, `run --from` or `sweep --resume` continues stand between environment and file."
    yield ""
    yield "| setting | takes | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for name, field in PipelineConfig.model_fields.items():
        yield f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {_cell(field.description or '')} |"
    yield ""
    shares = ", ".join(f"`{name}` {field.default:g}" for name, field in PhaseTimeBudget.model_fields.items())
    yield f"`phase_time_budget` holds the shares {shares} (the defaults), which add up to 1."
    yield ""
    yield "| preset | sets | and of agents |"
    yield "| --- | --- | --- |"
    for name, preset in PRESETS.items():
        given = ", ".join(f"`{key}={_plain(value)}`" for key, value in preset.items() if key != "agents")
        roles = "; ".join(f"{one} {', '.join(map('='.join, role.items()))}" for one, role in preset["agents"].items())
        yield f"| `{name}` | {given} | {roles} |"


def _environment() -> Iterator[str]:
    yield "## Environment"
    yield ""
    yield "| variable | meaning |"
    yield "| --- | --- |"
    for variable, name in SHORT_NAMES.items():
        yield f"| `{variable}` | short for `{PREFIX}{name.upper()}` |"
    yield f"| `{PREFIX}NAME` | the setting of that name; an unknown one is refused |"
    for variable, meaning in OTHER_VARIABLES.items():
        yield f"| `{variable}` | {meaning} |"


# --- files and events --------------------------------------------------------------------------------------------


def _files() -> Iterator[str]:
    yield "## Files of a run"
    yield ""
    yield "| file | what it is |"
    yield "| --- | --- |"
    folder, source = RunFolder(Path("RUN")), inspect.getsource(RunFolder.__init__)
    for name, meaning in re.findall(r'self\.(\w+) = .*\n +"""(.+)"""', source):
        yield f"| `{getattr(folder, name).relative_to('RUN').as_posix()}` | {_cell(meaning)} |"


def _events() -> Iterator[str]:
    yield "## Events"
    yield ""
    yield "One a line in `journal.jsonl` and with `--json`. Every event has `kind`, `at` (time, UTC) and `step` (such"
    yield "as `phase2/path-0/t-1/k-2/coder`); an event of the same kind and step replaces an earlier one."
    union = get_args(AnyEvent)[0]
    for event in get_args(union):
        yield ""
        yield f"### {event.model_fields['kind'].default}"
        yield (inspect.getdoc(event) or "").replace("\n", " ")
        fields = [
            (name, field) for name, field in event.model_fields.items() if name not in ("kind", *Event.model_fields)
        ]
        if fields:
            yield ""
            yield "| field | holds | default |"
            yield "| --- | --- | --- |"
        for name, field in fields:
            yield f"| `{name}` | {_type(field.annotation)} | {_default(field)} |"


# --- words -------------------------------------------------------------------------------------------------------


def _type(annotation: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(one) for one in inner)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (list, tuple):
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"{_type(inner[0])} to {_type(inner[1])}"
    names = {int: "integer", float: "number", str: "text", bool: "yes or no", type(None): "none", Any: "anything"}
    if annotation in names:
        return names[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"`{annotation.__name__}`"
    return str(getattr(annotation, "__name__", annotation)).replace("StrictBool", "yes or no")


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "" if field.default_factory is None else "made"
    value = field.default
    if value is None:
        return "none"
    if isinstance(value, BaseModel) or value in ("", (), [], {}):
        return "empty"
    return f"`{value}`" if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else "none" if value == () else str(value)


def _cell(words: str) -> str:
    """A text that can stand in a table."""
    return " ".join(words.split()).replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Print, write or check; the exit code."""
    page = reference().rstrip() + "\n"
    if "--write" in arguments:
        TARGET.write_text(page, encoding="utf-8")
    elif "--check" in arguments:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        if current != page:
            print("docs/reference.md is not current: python tools/reference.py --write")
            return 1
    else:
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
