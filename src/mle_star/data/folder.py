"""Task folders: `task.yaml`, read into a `TaskDescription` and written from a guess."""

from __future__ import annotations

import os
import textwrap
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from mle_star.basics.texts import did_you_mean, read_mapping
from mle_star.data.guess import TaskGuess
from mle_star.data.metrics import METRICS, check_direction, find_metric, known_metric
from mle_star.data.place import refuse_place
from mle_star.data.survey import survey
from mle_star.data.targets import tables_of_labels, with_target
from mle_star.errors import ConfigError
from mle_star.models import DataModality, MetricDirection, TaskDescription, TaskType

TASK_FILE, DESCRIPTION_FILE = "task.yaml", "description.md"
_ENUMS: dict[str, type[Enum]] = {
    "task_type": TaskType,
    "data_modality": DataModality,
    "metric_direction": MetricDirection,
}
_REQUIRED = ("competition_id", "task_type", "data_modality", "evaluation_metric", "metric_direction")
_KNOWN = (*TaskDescription.model_fields, "target")


def load_task(folder: Path | str) -> TaskDescription:
    """The task of a folder: `task.yaml`, with `description.md` beside it when there is one."""
    place = Path(folder)
    if not place.exists():
        raise ConfigError(f"{place}: no such folder")
    path = place / TASK_FILE if place.is_dir() else place
    if not path.exists():
        raise ConfigError(f"{path}: no such file; `mle-star init {place}` writes one")
    if not path.is_file():
        raise ConfigError(f"{path}: not a file")  # a named pipe would make the reader wait for ever
    content = read_mapping(path)
    for key in content:
        if key not in _KNOWN:
            raise ConfigError(f"{path}: unknown field {key!r}; {did_you_mean(key, _KNOWN)}")
    values = {name: _required(path, content, name) for name in _REQUIRED}
    _check_metric(path, values)
    description, values["data_dir"] = _description(path, content), _data_dir(path, content)
    values["description"] = _with_target(path, content, description, Path(values["data_dir"]))
    if "output_dir" in content:
        values["output_dir"] = str(_resolve(path, _text(path, "output_dir", content["output_dir"])))
    return TaskDescription(**values)


def write_task(guess: TaskGuess, path: Path, *, force: bool = False) -> None:
    """Write a guess as a task file in which every line says why; an existing file stays unless `force`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(task_text(guess, path.parent))
    except FileExistsError:
        raise ConfigError(f"{path}: exists already; --force overwrites it") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); --output names another place") from None


def task_text(guess: TaskGuess, folder: Path) -> str:
    """The text of a task file that lies in `folder`."""
    task, targets = guess.task, list(guess.targets)
    values: dict[str, Any] = {
        "competition_id": _printable(task.competition_id),
        "target": targets[0] if len(targets) == 1 else targets,
        "task_type": task.task_type.value,
        "data_modality": task.data_modality.value,
        "evaluation_metric": task.evaluation_metric,
        "metric_direction": task.metric_direction.value,
    }
    lines = ["# Written by `mle-star init`: guesses, each with its reason. Correct what is wrong.", ""]
    for note in guess.notes:
        lines += _comment(f"Note: {note}")
    for name, value in values.items():
        if name == "target" and not targets:
            lines += [*_comment(f"target: {guess.reasons[name]}"), ""]
            continue
        lines += _comment(guess.reasons[name])
        if name in _ENUMS:
            lines += _comment("One of: " + ", ".join(member.value for member in _ENUMS[name]))
        lines += [_entry(name, value), ""]
    relative = os.path.relpath(task.data_dir, folder.resolve()).replace(os.sep, "/")
    lines += _comment("Relative to this file. Scripts see it as ./input, read-only.")
    lines += [_entry("data_dir", relative), ""]
    lines += _comment("What the agents read. The more they know of the data and of what matters, the better.")
    return "\n".join([*lines, "description: |", textwrap.indent(_printable(task.description), "  ").rstrip(), ""])


def _entry(name: str, value: Any) -> str:
    """`name: value` in YAML; what cannot be printed is escaped, because PyYAML would fold some line breaks."""
    readable = "".join(value if isinstance(value, list) else [value]).isprintable()
    return yaml.safe_dump({name: value}, allow_unicode=readable, width=10_000).rstrip("\n")


def _comment(text: str) -> list[str]:
    flat = " ".join(_printable(text).split())
    return textwrap.wrap(flat, 110, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _printable(text: str) -> str:
    """Column names come from outside: a control character in one would break the YAML."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def _required(path: Path, content: dict[str, Any], name: str) -> Any:
    allowed = _ENUMS.get(name)
    wanted = "one of " + ", ".join(member.value for member in allowed) if allowed else "a text"
    if content.get(name) in (None, ""):
        raise ConfigError(f"{path}: {name} is missing; wanted is {wanted}{_hint(content, name)}")
    value = content[name]
    if allowed is None:
        return _text(path, name, value)
    try:
        return allowed(value)
    except ValueError:
        choices = [member.value for member in allowed]
        near = did_you_mean(str(value), choices)
        more = f"; {near}" if near.startswith("did") else ""
        raise ConfigError(f"{path}: {name} is {value!r}; wanted is {wanted}{more}") from None


def _hint(content: dict[str, Any], name: str) -> str:
    metric = find_metric(str(content.get("evaluation_metric", "")))
    if name == "metric_direction" and metric is not None:
        return f" ({metric.name} is to {metric.direction.value})"
    if name == "evaluation_metric":
        return ", such as " + ", ".join(metric.name for metric in METRICS[:3])
    return ""


def _check_metric(path: Path, values: dict[str, Any]) -> None:
    """An unknown metric cannot be computed; a known one must not be turned upside down."""
    name, direction = values["evaluation_metric"], values["metric_direction"]
    try:
        check_direction(known_metric(name, folder=path.parent, direction=direction), direction)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _text(path: Path, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{path}: {name} is {value!r}; a text is wanted (put it in quotes)")
    return value


def _description(path: Path, content: dict[str, Any]) -> str:
    parts: list[str] = []
    if content.get("description") not in (None, ""):
        parts.append(_text(path, "description", content["description"]).strip())
    parts.append(described_beside(path.parent))
    if not any(parts):
        raise ConfigError(f"{path}: description is missing; say what is to be predicted, here or in {DESCRIPTION_FILE}")
    return "\n\n".join(part for part in parts if part)


def described_beside(folder: Path) -> str:
    """What `description.md` of a folder says, if there is one."""
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        return ""
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _with_target(path: Path, content: dict[str, Any], description: str, data: Path) -> str:
    """The description, which names the given target. One that is in no table would be ignored: it is refused."""
    given = content.get("target")
    targets = [] if given is None else given if isinstance(given, list) else [given]
    if not all(isinstance(name, str) and name for name in targets):
        raise ConfigError(f"{path}: target is {given!r}; wanted is the name of a column, or a list of names")
    try:
        found = survey(data) if targets else None
    except ConfigError:
        found = None  # no tables: what the target means is for the description to say
    known = [] if found is None else [column for table in tables_of_labels(found) for column in table.columns]
    for name in targets if known else ():
        if name not in known:
            raise ConfigError(f"{path}: target: no column {name!r} in the training table; {did_you_mean(name, known)}")
    try:
        return with_target(found, description, targets) if targets else description
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _data_dir(path: Path, content: dict[str, Any]) -> str:
    if content.get("data_dir") is not None:
        folder = _resolve(path, _text(path, "data_dir", content["data_dir"]))
    else:
        folder = _resolve(path, "input")
        folder = folder if folder.is_dir() else path.parent.resolve()
    if not folder.is_dir():
        raise ConfigError(f"{path}: data_dir is {content.get('data_dir')!r}; there is no folder {folder}")
    refuse_place(folder)
    return str(folder)


def _resolve(path: Path, text: str) -> Path:
    return (path.parent / Path(text).expanduser()).resolve()
