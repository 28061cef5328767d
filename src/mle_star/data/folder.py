"""Task folders: `task.yaml`, read into a `TaskDescription` and written from a guess, and the scores that win a medal.

`leaderboard.csv` holds either a line for each medal (`medal,score`), or, as MLE-bench keeps it, a line for each team
with its `score`; then the places that win follow Kaggle's rules. Where the data lie in the task's own folder, the file
is called `.leaderboard.csv`, so that it is none of them.
"""

import math
import os
import textwrap
from enum import EnumMeta
from pathlib import Path
from typing import Any, Literal

import yaml

from mle_star.data.guess import TaskGuess
from mle_star.data.layout import survey, with_target
from mle_star.data.metrics import METRICS, find_metric, known_metric
from mle_star.data.place import read_mapping, read_text, refuse_place
from mle_star.data.tables import read_table
from mle_star.errors import ConfigError
from mle_star.models import Frozen, MetricDirection, TaskDescription, is_improvement_or_equal
from mle_star.models.texts import did_you_mean, printable

TASK_FILE, DESCRIPTION_FILE = "task.yaml", "description.md"
_ENUMS: dict[str, Any] = {
    n: f.annotation for n, f in TaskDescription.model_fields.items() if type(f.annotation) is EnumMeta
}
_REQUIRED = ("competition_id", "task_type", "data_modality", "evaluation_metric", "metric_direction")
_KNOWN = (*TaskDescription.model_fields, "target")

Medal = Literal["gold", "silver", "bronze"]
MEDALS: tuple[Medal, ...] = ("gold", "silver", "bronze")
LEADERBOARDS = (".leaderboard.csv", "leaderboard.csv")


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
    try:
        return TaskDescription(**_values(path.parent, content))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _values(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    for key in content:
        if key not in _KNOWN:
            raise ConfigError(f"unknown field {key!r}; {did_you_mean(key, _KNOWN)}")
    values = {name: _required(content, name) for name in _REQUIRED}
    known_metric(values["evaluation_metric"], folder=folder, direction=values["metric_direction"])
    description, data = _description(folder, content), _data_dir(folder, content)
    values.update(description=_with_target(content, description, data), data_dir=str(data))
    if "output_dir" in content:
        values["output_dir"] = str(_resolve(folder, _text("output_dir", content["output_dir"])))
    return values


def write_task(guess: TaskGuess, path: Path, *, force: bool = False) -> None:
    """Write a guess as a task file in which every line says why; an existing file is kept unless `force`."""
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
    values = {**task.model_dump(mode="json"), "target": targets[0] if len(targets) == 1 else targets}
    values["competition_id"] = printable(task.competition_id)
    lines = ["# Written by `mle-star init`: guesses, each with its reason. Correct what is wrong.", ""]
    for note in guess.notes:
        lines += _comment(f"Note: {note}")
    for name in (_REQUIRED[0], "target", *_REQUIRED[1:]):
        if name == "target" and not targets:
            lines += [*_comment(f"target: {guess.reasons[name]}"), ""]
            continue
        lines += _comment(guess.reasons[name])
        if name in _ENUMS:
            lines += _comment("One of: " + ", ".join(member.value for member in _ENUMS[name]))
        lines += [_entry(name, values[name]), ""]
    relative = os.path.relpath(task.data_dir, folder.resolve()).replace(os.sep, "/")
    lines += _comment("Relative to this file. Scripts see it as ./input, read-only.")
    lines += [_entry("data_dir", relative), ""]
    lines += _comment("What the agents read. The more they know of the data and of what matters, the better.")
    description = textwrap.indent(printable(task.description, keep="\n"), "  ").rstrip()
    return "\n".join([*lines, "description: |", description, ""])


def _entry(name: str, value: Any) -> str:
    """`name: value` in YAML; what cannot be printed is escaped, because PyYAML would fold some line breaks."""
    readable = "".join(value if isinstance(value, list) else [value]).isprintable()
    return yaml.safe_dump({name: value}, allow_unicode=readable, width=10_000).rstrip("\n")


def _comment(text: str) -> list[str]:
    flat = " ".join(printable(text, keep="\n").split())
    return textwrap.wrap(flat, 110, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _required(content: dict[str, Any], name: str) -> Any:
    choices, value = [member.value for member in _ENUMS.get(name, ())], content.get(name)
    wanted = f"one of {', '.join(choices)}" if choices else "a text"
    if value in (None, ""):
        raise ConfigError(f"{name} is missing; expected {wanted}{_hint(content, name)}")
    if not choices:
        return _text(name, value)
    if value not in choices:
        near = did_you_mean(str(value), choices)
        raise ConfigError(f"{name} is {value!r}; expected {wanted}{f'; {near}' if near.startswith('did') else ''}")
    return _ENUMS[name](value)


def _hint(content: dict[str, Any], name: str) -> str:
    metric = find_metric(str(content.get("evaluation_metric", "")))
    if name == "metric_direction" and metric is not None:
        return f" ({metric.name} is to {metric.direction.value})"
    return ", such as " + ", ".join(metric.name for metric in METRICS[:3]) if name == "evaluation_metric" else ""


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is {value!r}; expected a text (put it in quotes)")
    return value


def _description(folder: Path, content: dict[str, Any]) -> str:
    given = content.get("description")
    parts = [_text("description", given).strip() if given not in (None, "") else "", described_beside(folder)]
    if not any(parts):
        raise ConfigError(f"description is missing; say what is to be predicted, here or in {DESCRIPTION_FILE}")
    return "\n\n".join(filter(None, parts))


def described_beside(folder: Path) -> str:
    """What `description.md` of a folder says, if there is one."""
    path = folder / DESCRIPTION_FILE
    return read_text(path).strip() if path.is_file() else ""


def _with_target(content: dict[str, Any], description: str, data: Path) -> str:
    """The description, which names the given target. One that is in no table would be ignored: it is refused."""
    given = content.get("target")
    targets = [] if given is None else given if isinstance(given, list) else [given]
    if not all(isinstance(name, str) and name for name in targets):
        raise ConfigError(f"target is {given!r}; expected the name of a column, or a list of names")
    if not targets:
        return description
    try:
        found = survey(data)
    except ConfigError:
        found = None  # no tables: what the target means is for the description to say
    known = [column for table in (found.tables_of_labels if found else ()) for column in table.columns]
    unknown = next((name for name in targets if known and name not in known), None)
    if unknown is not None:
        raise ConfigError(f"target: no column {unknown!r} in the training table; {did_you_mean(unknown, known)}")
    return with_target(found, description, targets)


def _data_dir(folder: Path, content: dict[str, Any]) -> Path:
    given, place = content.get("data_dir"), _resolve(folder, "input")
    if given is not None:
        place = _resolve(folder, _text("data_dir", given))
    elif not place.is_dir():
        place = folder.resolve()
    if not place.is_dir():
        raise ConfigError(f"data_dir is {given!r}; there is no folder {place}")
    refuse_place(place)
    return place


def _resolve(folder: Path, text: str) -> Path:
    return (folder / Path(text).expanduser()).resolve()


# --- medals ----------------------------------------------------------------------------------------------------------


class Medals(Frozen):
    """The least score that wins each medal."""

    gold: float
    silver: float
    bronze: float

    def won(self, score: float | None, direction: MetricDirection) -> Medal | None:
        """The best medal that a score wins."""
        if score is None or not math.isfinite(score):
            return None
        return next((name for name in MEDALS if is_improvement_or_equal(score, getattr(self, name), direction)), None)


def load_medals(folder: Path | str, task: TaskDescription) -> Medals | None:
    """The medals of the task in a folder, where there is a file that says so."""
    place = Path(folder) if Path(folder).is_dir() else Path(folder).parent
    known = LEADERBOARDS[:1] if place.resolve() == Path(task.data_dir).resolve() else LEADERBOARDS
    path = next((place / name for name in known if (place / name).is_file()), None)
    return None if path is None else _read_medals(path, task.metric_direction)


def _read_medals(path: Path, direction: MetricDirection) -> Medals:
    from mle_star.data.rows import read_rows

    table = read_table(path)
    if isinstance(table, str) or "score" not in table.columns:
        raise ConfigError(f"{path}: expected a column `score`")
    try:
        rows = read_rows(table, path.parent)
        scores = [float(score) for score in rows.column("score") if score]
    except ValueError as error:
        raise ConfigError(f"{path}: expected a column `score` with numbers ({error})") from None
    if scores and "medal" not in table.columns:
        return _by_rank(sorted(scores, reverse=direction is MetricDirection.maximize))
    by_name = dict(zip(map(str.lower, rows.column("medal")), scores, strict=False)) if scores else {}
    if set(by_name) != set(MEDALS) or len(scores) != rows.count:
        raise ConfigError(f"{path}: expected one line each for gold, silver and bronze, or the scores of all teams")
    return Medals.model_validate(by_name)


def _by_rank(scores: list[float]) -> Medals:
    """Kaggle's rules for the number of teams: the score of the last place that wins."""
    teams = len(scores)
    gold = teams // 10 if teams < 100 else 10 if teams < 250 else 10 + teams // 500
    places = (gold, teams // 20, teams // 10)
    if teams < 1000:
        places = (gold, 50, 100) if teams >= 250 else (gold, teams // 5, teams * 2 // 5)
    return Medals(**{medal: scores[max(1, place) - 1] for medal, place in zip(MEDALS, places, strict=True)})
