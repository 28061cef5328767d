"""From a data folder to a task: target, kind, metric and direction, each with the reason for the guess."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mle_star.basics.texts import plural
from mle_star.data.columns import Column
from mle_star.data.metrics import Metric, check_direction, find_metric, known_metric, metric_in_prose
from mle_star.data.place import DataFolder
from mle_star.data.sanity import refuse_pointless
from mle_star.data.survey import Survey, find_data_folder, survey
from mle_star.data.targets import Target, given_target, guess_target, with_target
from mle_star.data.wording import task_in_words
from mle_star.errors import ConfigError
from mle_star.models import DataModality, MetricDirection, TaskDescription, TaskType


@dataclass(frozen=True)
class TaskGuess:
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
    found.notes += [
        f"a link leads out of the data folder, to {target}: a run wants a copy there, or allow_outside_links"
        for target in data.outside_targets()[:3]
    ]
    goal = given_target(found, target) if target is not None else guess_target(found)
    told = _told_metric(found, data_folder, metric, direction)
    refuse_pointless(found, goal, told[0] if told else None)
    modality, modality_reason = _modality(found, goal)
    task_type, type_reason = _task_type(found, goal, modality, told[0] if told else None)
    chosen, metric_reason = told or _guess_metric(found, goal, task_type, direction)
    task_name, name_reason = (name, "Given.") if name else _name_of(data_folder.resolve())
    reasons = {
        "competition_id": name_reason,
        "target": goal.reason,
        "task_type": type_reason,
        "data_modality": modality_reason,
        "evaluation_metric": metric_reason,
        "metric_direction": f"{'Larger' if chosen.direction == 'maximize' else 'Smaller'} values of {chosen.name} win.",
    }
    description = task_in_words(found, goal, chosen, wants_probabilities(found, goal))
    task = TaskDescription(
        competition_id=task_name,
        task_type=task_type,
        data_modality=modality,
        evaluation_metric=chosen.name,
        metric_direction=chosen.direction,
        description=with_target(found, description, goal.names),
        data_dir=str(folder.resolve()),
    )
    return TaskGuess(task, goal.names, reasons, tuple(dict.fromkeys(found.notes)))


# --- kind of task ----------------------------------------------------------------------------------------


def _features(found: Survey, goal: Target) -> list[Column]:
    train, test = found.train, found.test
    if train is None:
        return []
    alike = test is not None and test.form.has_header == train.form.has_header
    shared = test.columns if test is not None and alike else train.columns
    columns = [train.column(name) for name in train.columns if name in shared]
    return [column for column in columns if column.name not in goal.names and not column.names_rows]


def _modality(found: Survey, goal: Target) -> tuple[DataModality, str]:
    features = _features(found, goal)
    pictures = sum(len(names) for names in found.images.values())
    prose = [column.name for column in features if column.holds_prose]
    others = len(features) - len(prose)
    if pictures > 10 or found.audio > 10:
        kind, files = (
            (DataModality.image, "pictures") if pictures >= found.audio else (DataModality.audio, "sound files")
        )
        if others > 3 or prose:
            return DataModality.mixed, f"There are {files} and a table of {plural(len(features), 'feature')}."
        return kind, f"There are {files} in the folder."
    if prose and others <= 2 * len(prose):
        return DataModality.text, f"Rows hold sentences in {', '.join(prose[:3])}, and little else."
    if prose:
        return (
            DataModality.mixed,
            f"Rows hold sentences in {', '.join(prose[:3])} beside {plural(others, 'other column')}.",
        )
    return DataModality.tabular, f"A table of {plural(len(features), 'feature')}, none of them prose."


def _task_type(found: Survey, goal: Target, modality: DataModality, metric: Metric | None) -> tuple[TaskType, str]:
    by_modality = {
        DataModality.image: TaskType.image_classification,
        DataModality.audio: TaskType.audio_classification,
        DataModality.text: TaskType.text_classification,
    }
    if goal.table is None:
        if goal.pairs:
            return TaskType.image_to_image, "Pictures in, pictures out."
        return TaskType.image_classification, "A folder of pictures for each class."
    classification = by_modality.get(modality, TaskType.classification)
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


def _told_metric(
    found: Survey, folder: Path, given: str | None, direction: MetricDirection | None
) -> tuple[Metric, str] | None:
    """The metric that the caller or a text in the folder names."""
    if given is not None and given.strip():
        metric = known_metric(given, folder=folder, direction=direction)
        if direction is not None:
            check_direction(metric, direction)
        return metric, "Given."
    for file, text in found.prose:
        told = metric_in_prose(text)
        if told is not None and direction in (None, told[0].direction):
            return told[0], f"{file} says {told[1]!r}."
    return None


def wants_probabilities(found: Survey, goal: Target) -> bool:
    """Does the sample submission hold fractions where the target holds classes?"""
    if found.sample is None or goal.table is None:
        return False
    if goal.class_prefix is not None:
        return True
    name = next((name for name in goal.names if name in found.sample.columns), None)
    if name is None:
        return False
    column = found.sample.column(name)
    return column.numeric and not column.whole and column.low >= 0 and column.high <= 1


def _guess_metric(
    found: Survey, goal: Target, task_type: TaskType, direction: MetricDirection | None
) -> tuple[Metric, str]:
    """The usual metric for the kind of target, or the next one that goes in the given direction."""
    name, reason = _usual_metric(found, goal, task_type)
    fallback = "log_loss" if "classification" in task_type.value else "r2"
    for candidate, why in ((name, reason), (fallback, f"A usual one in that direction for {task_type.value}.")):
        metric = find_metric(candidate)
        if metric is not None and direction in (None, metric.direction):
            return metric, why
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
    if wants_probabilities(found, goal):
        sample = found.sample.name if found.sample else ""
        if first.distinct <= 2:
            return "roc_auc", f"{sample} holds probabilities of two classes."
        return "log_loss", f"{sample} holds probabilities."
    if first.distinct <= 2 and first.smallest_share < 0.25:
        return "f1", f"The rarer of two classes has {first.smallest_share:.0%} of the rows: accuracy would hide it."
    if first.distinct > 2 and first.smallest_share * first.distinct < 0.25:
        return (
            "f1_macro",
            f"The {first.distinct} classes are of very different size: accuracy would hide the rare ones.",
        )
    sizes = f"{plural(first.distinct, 'class')} of similar size"
    if first.smallest_share * first.distinct < 0.7:
        sizes = f"The usual one for classes (the rarest of {first.distinct} classes has {first.smallest_share:.0%})"
    return "accuracy", f"{sizes}, and nothing in the folder names another."


def _name_of(folder: Path) -> tuple[str, str]:
    general = folder.name.lower() in ("input", "data", "dataset", "")
    name = folder.parent.name if general and folder.parent.name else folder.name
    return name or "task", "The name of the folder."
