"""From a data folder to a task: target, kind, metric and direction, each with the reason for the guess."""

from pathlib import Path
from typing import Any, NamedTuple

from mle_star.data import layout
from mle_star.data.columns import EACH_CLASS, Column, is_number, named
from mle_star.data.layout import AUDIO_SUFFIXES, IMAGE_SUFFIXES, Survey, Target, guess_target, survey, with_target
from mle_star.data.metrics import Metric, find_metric, known_metric, metric_in_prose
from mle_star.data.place import DataFolder, holds_runs
from mle_star.data.tables import Table, table_form
from mle_star.errors import ConfigError
from mle_star.models import DataModality, MetricDirection, TaskDescription, TaskType
from mle_star.models.texts import did_you_mean, plural, printable

MAX_NAMES = 40
NO_TEST = "Where ./input/test.csv is there"
"""With these words begins what only the agents are told of a task without a test."""


class TaskGuess(NamedTuple):
    """A guessed task. `reasons` has a sentence for every guessed field, `notes` what deserves a look."""

    task: TaskDescription
    targets: tuple[str, ...]
    reasons: dict[str, str]
    notes: tuple[str, ...]


def guess_task(
    data_folder: Path,
    *,
    target: str | None = None,
    metric: str | None = None,
    direction: MetricDirection | None = None,
    name: str | None = None,
) -> TaskGuess:
    """The most likely task of a folder; what is given is taken as it is, and refused when it cannot be."""
    folder = find_data_folder(data_folder)
    data = DataFolder(folder)
    data.check(allow_outside_links=True)
    found = survey(folder)
    wanted = "a run wants a copy there, or allow_outside_links"
    found.notes += [f"a link leads out of the data folder, to {one}: {wanted}" for one in data.outside_targets()[:3]]
    goal = given_target(found, target) if target is not None else guess_target(found)
    named = _named_metric(found, data_folder, metric, direction)
    _refuse_pointless(found, goal, named[0] if named else None)
    modality = _modality(found, goal)
    task_type = _task_type(goal, modality[0], named[0] if named else None)
    chosen, metric_reason = named or _guess_metric(found, goal, task_type[0], direction)
    if found.sample is None and chosen.needs == "probabilities" and goal.table and len(goal.names) == 1:
        goal = goal._replace(class_prefix="" if goal.columns[0].distinct > 2 else None)
    better = "Larger" if chosen.higher_is_better else "Smaller"
    fields: dict[str, tuple[Any, str]] = {
        "competition_id": (name, "Given.") if name else (_name_of(data_folder.resolve()), "The name of the folder."),
        "task_type": task_type,
        "data_modality": modality,
        "evaluation_metric": (chosen.name, metric_reason),
        "metric_direction": (chosen.direction, f"{better} values of {chosen.name} win."),
    }
    description = _task_in_words(found, goal, chosen, wants_probabilities(found, goal))
    task = TaskDescription(
        **{field: value for field, (value, _) in fields.items()},
        description=with_target(found, description, goal.names),
        data_dir=str(folder.resolve()),
    )
    reasons = {"target": goal.reason, **{field: reason for field, (_, reason) in fields.items()}}
    return TaskGuess(task, goal.names, reasons, tuple(dict.fromkeys(found.notes)))


def find_data_folder(folder: Path) -> Path:
    """The folder that holds the data: its `input`, itself, or the only sub-folder with data files."""
    if not folder.exists():
        raise ConfigError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder with data files; `mle-star run {folder}` takes one file")
    try:
        if _holds_data(folder / "input"):
            return folder / "input"
        with_data = [] if _holds_data(folder) else list(filter(_holds_data, sorted(folder.iterdir())))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from None
    return with_data[0] if len(with_data) == 1 else folder


def _holds_data(folder: Path) -> bool:
    if folder.name.startswith(".") or not folder.is_dir() or holds_runs(folder):
        return False
    files = (path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file())
    return any(table_form(file) or file.suffix.lower() in IMAGE_SUFFIXES | AUDIO_SUFFIXES for file in files)


def given_target(found: Survey, given: str) -> Target:
    """The column, or the columns with commas between them, that the caller names."""
    tables = found.tables_of_labels[::-1]
    wanted = tuple(part.strip() for part in given.split(","))
    for table in tables:
        known_as = {**{column.strip(): column for column in table.columns}, **{c: c for c in table.columns}}
        for names in ((given,), wanted):
            if set(names) <= set(known_as):
                return Target(tuple(map(known_as.__getitem__, names)), table, "Given.")
    if not tables:
        raise ConfigError(f"{found.folder}: no training table that could hold the target {given!r}")
    known = [column for table in tables for column in table.columns]
    raise ConfigError(f"{tables[0].name}: no column {given!r} in the training table; {did_you_mean(given, known[:50])}")


# --- kind of task ----------------------------------------------------------------------------------------


def _modality(found: Survey, goal: Target) -> tuple[DataModality, str]:
    train, test, features = found.train, found.test, list[Column]()
    if train is not None:
        shared = (test if test and test.form.has_header == train.form.has_header else train).columns
        columns = [train.column(name) for name in train.columns if name in shared and name not in goal.names]
        features = [column for column in columns if not column.names_rows]
    # most rows hold a sentence of their own; names of people and places are shorter
    prose = [c.name for c in features if not c.numeric and c.words >= 6 and c.unique_share > 0.5]
    others = len(features) - len(prose)
    pictures = sum(map(len, found.images.values()))
    kind, files = (DataModality.image, "pictures") if pictures >= found.audio else (DataModality.audio, "sound files")
    if pictures > 10 or found.audio > 10:
        if others > 3 or prose:
            return DataModality.mixed, f"There are {files} and a table of {plural(len(features), 'feature')}."
        return kind, f"There are {files} in the folder."
    if not prose:
        return DataModality.tabular, f"A table of {plural(len(features), 'feature')}, none of them prose."
    sentences = f"Rows hold sentences in {', '.join(prose[:3])}"
    if others <= 2 * len(prose):
        return DataModality.text, f"{sentences}, and little else."
    return DataModality.mixed, f"{sentences} beside {plural(others, 'other column')}."


def _task_type(goal: Target, modality: DataModality, metric: Metric | None) -> tuple[TaskType, str]:
    if goal.table is None:
        if goal.pairs:
            return TaskType.image_to_image, "Pictures in, pictures out."
        return TaskType.image_classification, "A folder of pictures for each class."
    classification = TaskType.__members__.get(f"{modality.value}_classification", TaskType.classification)
    columns = goal.columns
    first = columns[0]
    values = f"{first.name} has {plural(first.distinct, 'different value')} in {plural(first.count, 'row')}"
    if metric is not None and metric.scores == "numbers" and all(column.numeric for column in columns):
        return TaskType.regression, f"{metric.name} scores numbers, and {values}."
    if metric is not None and metric.scores == "classes":
        return classification, f"{metric.name} scores classes, and {values}."
    if all(column.words > 5 and column.unique_share > 0.5 and not column.numeric for column in columns):
        return TaskType.sequence_to_sequence, f"{first.name} holds sentences: text in, text out."
    if all(column.holds_classes for column in columns):
        return classification, f"{values}."
    what = "whole numbers" if all(column.whole for column in columns) else "numbers"
    return TaskType.regression, f"{values}, all {what}."


# --- metric ----------------------------------------------------------------------------------------------


def _named_metric(
    found: Survey, folder: Path, given: str | None, direction: MetricDirection | None
) -> tuple[Metric, str] | None:
    """The metric that the caller or a text in the folder names."""
    if given is not None and given.strip():
        return known_metric(given, folder=folder, direction=direction), "Given."
    for file, text in found.prose:
        named = metric_in_prose(text)
        if named is not None and direction in (None, named[0].direction):
            return named[0], f"{file} says {named[1]!r}."
    return None


def wants_probabilities(found: Survey, goal: Target) -> bool:
    """Does the sample submission hold fractions where the target holds classes?"""
    if found.sample is None or goal.table is None:
        return False
    if goal.class_prefix is not None:
        return True
    columns = [found.sample.column(name) for name in goal.names if name in found.sample.columns]
    return any(column.numeric and not column.whole and 0 <= column.low <= column.high <= 1 for column in columns[:1])


def _guess_metric(
    found: Survey, goal: Target, task_type: TaskType, direction: MetricDirection | None
) -> tuple[Metric, str]:
    """The usual metric for the kind of target, or the next one that goes in the given direction."""
    fallback = "log_loss" if "classification" in task_type.value else "r2"
    other = fallback, f"A usual one in that direction for {task_type.value}."
    for name, reason in (_usual_metric(found, goal, task_type), other):
        metric = find_metric(name)
        if metric is not None and direction in (None, metric.direction):
            return metric, reason
    raise ConfigError("which metric? Name it with --metric")


def _usual_metric(found: Survey, goal: Target, task_type: TaskType) -> tuple[str, str]:
    if task_type is TaskType.image_to_image:
        return "rmse", "The usual one between two pictures."
    if task_type is TaskType.sequence_to_sequence:
        return "bleu", "The usual one between two texts."
    if task_type is TaskType.regression:
        lowest = min(column.low for column in goal.columns)
        rest = " If relative errors count, rmsle is the other choice." if lowest >= 0 else ""
        return "rmse", f"The usual one for numbers; nothing in the folder names another.{rest}"
    if goal.table is None:
        return "accuracy", "The usual one for classes; nothing in the folder names another."
    first = goal.columns[0]
    rarest = first.shares[-1][1] if first.shares else 0.0
    evenness = rarest * first.distinct
    if wants_probabilities(found, goal):
        what = f"{found.sample.name if found.sample else ''} holds probabilities"
        return ("roc_auc", f"{what} of two classes.") if first.distinct <= 2 else ("log_loss", f"{what}.")
    if first.distinct <= 2 and rarest < 0.25:
        return "f1", f"The rarer of two classes has {rarest:.0%} of the rows: accuracy would hide it."
    if evenness < 0.25:
        words = f"The {first.distinct} classes are of very different size"
        return "f1_macro", f"{words}: accuracy would hide the rare ones."
    sizes = f"{plural(first.distinct, 'class')} of similar size"
    if evenness < 0.7:
        sizes = f"The usual one for classes (the rarest of {first.distinct} classes has {rarest:.0%})"
    return "accuracy", f"{sizes}, and nothing in the folder names another."


def _name_of(folder: Path) -> str:
    general = folder.name.lower() in ("input", "data", "dataset", "")
    return (folder.parent.name if general else "") or folder.name or "task"


# --- what makes a task pointless: told before anything is run, in a line that says what to change ---------------------


def _refuse_pointless(found: Survey, goal: Target, metric: Metric | None) -> None:
    """`ConfigError` for a task that nobody could learn; what is only odd becomes a note of the survey."""
    train = goal.table
    if train is None:
        return
    if not any(train.sample[name] for name in goal.names):
        why = "; ".join(train.notes) or f"{train.name} has a header and no rows"
        raise ConfigError(f"{why}: there is nothing to learn from")
    for column in goal.columns:
        if column.kind != "list" and column.distinct <= 1:
            held = f"holds {column.shares[0][0]!r} in every row" if column.shares else "is empty in every row"
            if train.whole:
                what = f"the target {column.name} of {train.name} {held}"
                raise ConfigError(f"{what}: nothing can be learned; --target names another")
            found.notes.append(f"the target {column.name} {held} that was looked at")
        _refuse_metric(train, column, metric)
    _refuse_answers(found, train, goal)


def _refuse_metric(train: Table, column: Column, metric: Metric | None) -> None:
    """A metric must be able to score what the target holds; amounts such as `$250,000` would each be a class."""
    scored = None if metric is None else metric.scores
    if column.numeric and scored != "classes" and not column.holds_classes:
        layout.refuse_huge(column.name, train.sample[column.name])
    if column.kind == "messy number" and column.distinct > 20 and scored != "classes":
        odd = [value for value, _ in column.shares if not is_number(value)]
        such = f", such as {odd[0]!r}" if odd else ""
        what = f"the target {column.name} of {train.name} holds cells that are no plain numbers{such}"
        rest = "leave them empty; where they are classes, --metric accuracy says so"
        raise ConfigError(f"{what}: write them as plain numbers, or {rest}")
    if metric is None:
        return
    if scored == "numbers" and not column.numeric and column.kind not in ("messy number", "list"):
        shown = " and ".join(repr(value) for value, _ in column.shares[:2])
        what = f"{metric.name} scores numbers, and {column.name} holds words such as {shown}"
        raise ConfigError(f"{what}; for classes there are accuracy, f1_macro, log_loss")
    if scored == "classes" and column.numeric and not column.whole and column.unique_share > 0.5:
        many = f"{column.distinct} different numbers in {column.count} rows"
        raise ConfigError(
            f"{metric.name} scores classes, and {column.name} holds {many}; for numbers there are rmse, mae, r2"
        )


def _refuse_answers(found: Survey, train: Table, goal: Target) -> None:
    """A test table with the targets in it: no test at all where it is the training table once more."""
    test = found.test
    there = [name for name in goal.names if test is not None and any(map(str, test.sample.get(name, [])))]
    if test is None or not there:
        return
    if test.columns == train.columns and test.rows == train.rows and test.sample == train.sample:
        why = f"{test.name} holds the same rows as {train.name}, targets and all"
        rest = "(labelled rows are then held back for the test), or put the rows there that are to be predicted"
        raise ConfigError(f"{why}: leave it out {rest}")
    found.notes.append(f"{test.name} holds {', '.join(there)}, which is to be predicted: remove it from that file")


# --- the task in the words that the agents will read ------------------------------------------------------------------


def _task_in_words(found: Survey, target: Target, metric: Metric, probabilities: bool) -> str:
    """What to predict, from what, and what to submit."""
    what = named(target.names, MAX_NAMES) if target.names else "the target"
    where = f"for every row of {_path(found.test)}" if found.test else "for the test data"
    lines = [f"Predict {what} {where}."]
    if found.train is not None:
        rows = f" ({plural(found.train.rows, 'row')})" if found.train.whole else ""
        lines.append(f"{_path(found.train)}{rows} holds the columns {named(found.train.columns, MAX_NAMES)}.")
        if not found.train.form.has_header:
            lines.append("The file has no header line: column_1 is its first column.")
    if found.labels is not None:
        lines.append(f"{_path(found.labels)} holds {named(found.labels.columns, MAX_NAMES)}.")
    if found.images:
        folders = ", ".join(f"./input/{printable(name)}/" for name in sorted(found.images)[:10])
        lines.append(f"Pictures lie in {folders}.")
    lines.append(_submission(found, target, probabilities))
    lines.append(f"Metric: {metric.name} ({'larger' if metric.higher_is_better else 'smaller'} is better).")
    return "\n".join(lines)


def _submission(found: Survey, target: Target, probabilities: bool) -> str:
    if found.sample is not None:
        value = " with probabilities" if probabilities else ""
        value = value if target.class_prefix is None else " with a probability for each class"
        return f"Submit the columns of {_path(found.sample)}{value}: {named(found.sample.columns, MAX_NAMES)}."
    by_class = target.class_prefix is not None
    if found.test is not None:
        columns = named((found.test.columns[0], *(() if by_class else target.names)), MAX_NAMES)
        return f"Submit one row per test row, in the same order: {columns}{f' and {EACH_CLASS}' * by_class}."
    columns = f"the columns of ./input/sample_submission.csv{f' ({EACH_CLASS})' * by_class}"
    return (
        f"{NO_TEST}, submit a prediction for each of its rows, in {columns}; else predict the "
        "training rows, and validate on rows held out."
    )


def _path(table: Table | None) -> str:
    return f"./input/{printable(table.name)}" if table else ""
