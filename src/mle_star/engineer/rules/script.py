"""Composes solution scripts: load, target, split, features, model, combine, metric, validate, submit.

All scripts for one task share split and metric, so that their scores compare. Sections work on each other through few
names only: `train`, `test`, `y`, `folds`, `build_features`, `MODELS`, `combine`, `decide`, `score`.
"""

from __future__ import annotations

from mle_star.data.values import is_number
from mle_star.engineer.rules import features, models, validation
from mle_star.engineer.rules.literals import docstring, name_list, one_line, quoted
from mle_star.engineer.rules.metrics import Metric
from mle_star.engineer.rules.profile import Profile
from mle_star.engineer.rules.sections import Script

MANY_FOLDS_UP_TO = 10_000
REPEATED_UP_TO = 1_000
SKEWED = 1.0
NUMBER = r"([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)"
"""A number inside a text, with or without a currency and a unit."""

BASE_IMPORTS = (
    "import os",
    "import warnings",
    "from pathlib import Path",
    "import numpy as np",
    "import pandas as pd",
)


def first_script(profile: Profile, model: models.Model, row_limit: int) -> Script:
    """A simple solution around one model."""
    better = "higher" if profile.metric.higher else "lower"
    what = " and ".join(f"`{one_line(target)}`" for target in profile.targets)
    doc = (
        f"Predict {what} with {model.name}, judged by {one_line(profile.setting.metric) or profile.metric.name} "
        f"({better} is better).\n\nWhatever is learned from data is learned inside each fold, from its training rows "
        f"alone.\n"
    )
    sections = {
        "load": load(profile, row_limit),
        "target": target(profile, log=starts_with_log(profile)),
        "split": split(profile, row_limit),
        "features": feature_section(profile),
        f"model: {model.name}": models.section(model, profile),
        "combine": MEAN,
        "metric": metric_section(profile),
        "validate": validation.section(profile),
        "submit": submit(profile),
    }
    imports = (*BASE_IMPORTS, *SECTION_IMPORTS, *models.imports(model, profile), *metric_imports(profile.metric))
    return Script(doc, imports, settings(profile), sections)


SECTION_IMPORTS = (
    "import json",
    "from concurrent.futures import ThreadPoolExecutor",
    "from sklearn.model_selection import KFold, RepeatedKFold, RepeatedStratifiedKFold, StratifiedKFold",
    "from sklearn.model_selection import train_test_split",
)
"""What sections may need; a script keeps those that it uses."""


def settings(profile: Profile) -> str:
    """Seed, threads and the names that everything refers to."""
    names = (
        f"TARGET = {quoted(profile.targets[0])}"
        if len(profile.targets) == 1
        else f"TARGETS = {name_list(list(profile.targets))}"
    )
    lines = [
        'warnings.simplefilter("ignore")  # notices of libraries about their own future',
        'SEED = int(os.environ.get("MLE_STAR_SEED", "42"))',
        'THREADS = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)',
        names,
    ]
    if profile.id is not None:
        lines.append(f"ID = {quoted(profile.id)}")
    return "\n".join([*lines, "MODELS = {}"])


# --- load ------------------------------------------------------------------------------------------------


def load(profile: Profile, row_limit: int) -> str:
    """Read the tables, give columns the types they mean, and cap the training rows where the task has more."""
    lines = [f"train = {profile.train.reader}", *_blanked_gaps(profile)]
    wanted = "[TARGET]" if len(profile.targets) == 1 else "TARGETS"
    if profile.test is not None:
        lines.append(f"test = {profile.test.reader}")
    elif _target_has_gaps(profile):
        lines.append(f"test = train[train[{wanted}].isna().any(axis=1)].copy()  # the rows without an answer")
    else:
        lines.append("test = train.copy()  # there are no rows to answer: these are answered instead")
    if _target_has_gaps(profile):
        lines.append(f"train = train.dropna(subset={wanted})")
    if profile.rows > row_limit:
        lines.append(f"if len(train) > {row_limit}:  # a sample of the rows is enough to compare solutions")
        lines.append(f"    train = train.sample(n={row_limit}, random_state=SEED)")
    lines.append("train = train.reset_index(drop=True)")
    types = _typing(profile)
    if types:
        lines += ["for frame in (train, test):", *(f"    {line}" for line in types)]
    return "\n".join(lines)


def _target_has_gaps(profile: Profile) -> bool:
    return any(profile.gaps(name) for name in profile.targets)


def _blanked_gaps(profile: Profile) -> list[str]:
    """Gaps of labels that are read letter by letter."""
    names = [name for name in profile.targets if is_spelt(profile, name) and profile.gaps(name)]
    labels = [f"train[{quoted(name)}]" for name in names]
    return [
        f"{label} = {label}.mask({label}.isin({name_list(profile.gaps(name))}))"
        for name, label in zip(names, labels, strict=True)
    ]


def is_spelt(profile: Profile, name: str) -> bool:
    """Is this column of the training table read letter by letter?"""
    tables = [profile.train, *(other for other, _ in profile.train.joined)]
    return any(name in table.spelt for table in tables)


def _typing(profile: Profile) -> list[str]:
    """Row-wise conversions: dates, numbers in words, lists as texts, gaps in texts."""
    lines = []
    for column in profile.of("date"):
        lines.append(
            f"frame[{quoted(column.name)}] = pd.to_datetime("
            f'frame[{quoted(column.name)}], format="{column.date_format}", errors="coerce")'
            if column.date_format != "%Y%m%d"
            else f"frame[{quoted(column.name)}] = pd.to_datetime("
            f'frame[{quoted(column.name)}].astype(str), format="%Y%m%d", errors="coerce")'
        )
    for column in profile.of("messy number"):
        name = quoted(column.name)
        lines.append(f'number = frame[{name}].astype(str).str.replace(",", "").str.extract(r"{NUMBER}", expand=False)')
        lines.append(f'frame[{name}] = pd.to_numeric(number, errors="coerce")')
    numbers = profile.names("number")
    if profile.train.form != "csv" and numbers:  # a gap may be an empty text there
        lines.append(f"for column in {name_list(numbers)}:")
        lines.append('    frame[column] = pd.to_numeric(frame[column], errors="coerce")')
    for column in profile.of("list"):
        name = quoted(column.name)
        lists = "(list, np.ndarray)" if profile.train.form == "parquet" else "list"
        lines.append(
            f"frame[{name}] = frame[{name}].map("
            f'lambda items: " ".join(map(str, items)) if isinstance(items, {lists}) else "")'
        )
    for column in profile.of("text"):
        lines.append(f'frame[{quoted(column.name)}] = frame[{quoted(column.name)}].fillna("").astype(str)')
    return lines


# --- target and split ------------------------------------------------------------------------------------


def starts_with_log(profile: Profile) -> bool:
    """Is the logarithm the scale to learn on from the start?"""
    if profile.kind != "regression" or not profile.positive_target:
        return False
    return profile.metric.log_target or (profile.metric.loss == "absolute" and profile.target_skew > SKEWED)


def target(profile: Profile, *, log: bool) -> str:
    """The truth, and the scale on which numbers are learned."""
    labels = "classes, y = np.unique(train[TARGET], return_inverse=True)"
    if is_spelt(profile, profile.targets[0]) and all(map(is_number, profile.classes)):
        labels = NUMBERED_LABELS
    elif _are_floats(profile):
        labels = labels.replace("train[TARGET]", "train[TARGET].astype(int)")
    if not profile.numeric:
        return labels if len(profile.targets) == 1 else several(labels)
    lines = labels if profile.kind == "ordinal" else "y = train[TARGET].to_numpy(dtype=float)"
    return f"{lines if len(profile.targets) == 1 else several(lines)}\n\n\n{LOG_SCALE if log else PLAIN_SCALE}"


def _are_floats(profile: Profile) -> bool:
    """Are whole numbers read as floats, because some are missing from a file without text?"""
    whole = all(label.lstrip("-").isdecimal() and str(int(label)) == label for label in profile.classes)
    return profile.train.form != "csv" and _target_has_gaps(profile) and whole


def several(lines: str) -> str:
    """The same for a task with several targets: the truth of one of them at a time."""
    if lines.startswith("classes"):
        return '''def truth(target):
    """The classes of a target, and the class number of every row."""
    return np.unique(train[target], return_inverse=True)'''
    return '''def truth(target):
    """The values of a target."""
    return (), train[target].to_numpy(dtype=float)'''


NUMBERED_LABELS = """classes = np.array(sorted(train[TARGET].unique(), key=float))  # numbers, as they are spelt
y = train[TARGET].map({label: number for number, label in enumerate(classes)}).to_numpy()"""
PLAIN_SCALE = '''def to_model(values):
    """The target on the scale that models learn."""
    return values.astype(float)


def to_task(values):
    """Predictions on the scale of the task."""
    return values'''
LOG_SCALE = '''def to_model(values):
    """The target on the scale that models learn: its logarithm, as errors count in proportion."""
    return np.log1p(values)


def to_task(values):
    """Predictions on the scale of the task."""
    return np.expm1(values)'''


def split(profile: Profile, row_limit: int) -> str:
    """The folds: stratified for classes, by time when the test rows come later, fewer when there are many rows."""
    if profile.later_test:
        name = quoted(profile.later_test)
        return (
            f'order = train[{name}].argsort(kind="stable").to_numpy()  # the test rows come later, so do these\n'
            "folds = [(order[: int(0.8 * len(order))], order[int(0.8 * len(order)) :])]"
        )
    stratified = not profile.numeric and len(profile.targets) == 1
    kind = "StratifiedKFold" if stratified else "KFold"
    truth = "y" if stratified and not validation.has_rare_classes(profile) else "None"
    arguments = "train, y" if stratified else "train"
    rows = min(profile.rows, row_limit)
    if rows <= REPEATED_UP_TO and len(profile.classes) <= 15 and profile.width <= 60:
        return f"folds = list(Repeated{kind}(n_splits=5, n_repeats=2, random_state=SEED).split({arguments}))"
    wide = max(profile.width / 25, 1.0)
    count = 5 if rows * wide <= MANY_FOLDS_UP_TO else 3
    folds = f"list({kind}({count}, shuffle=True, random_state=SEED).split({arguments}))"
    most = validation.HOLD_OUT_ABOVE_CELLS // profile.width // 500 * 500
    if profile.rows <= most:
        return f"folds = {folds}"
    hold_out = f"[train_test_split(np.arange(len(train)), test_size=0.2, random_state=SEED, stratify={truth})]"
    if rows > most:
        return f"folds = {hold_out}"
    return (
        f"if len(train) <= {most}:\n    folds = {folds}\n"
        f"else:  # so many rows that one hold-out set is sure enough\n    folds = {hold_out}"
    )


# --- features, combination, metric -----------------------------------------------------------------------


def feature_section(profile: Profile) -> str:
    """`build_features` with the first steps that apply."""
    steps = [features.written_for(step, profile) for step in features.FIRST_STEPS if step.worth(profile)]
    has_numbers = bool(profile.of("number", "messy number"))
    start = "frame[NUMBERS].astype(float)" if has_numbers else "pd.DataFrame(index=frame.index)"
    paragraphs = [f"    frames = [fit, *others]\n    built = [{start} for frame in frames]", *steps]
    constants = "\n".join(features.constants(profile))
    body = "\n\n".join(paragraphs)
    return (
        f"{constants}\n\n\ndef build_features(fit, fit_y, others):\n"
        '    """The columns for the models: first those of `fit`, then of `others`; learned from `fit` alone."""\n'
        f"{body}\n\n    return built"
    )


MEAN = '''def combine(y, known, others):
    """The mean of the models' predictions."""
    return [np.mean(list(other.values()), axis=0) for other in others]'''


def metric_imports(metric: Metric) -> list[str]:
    """The imports of the score."""
    lines = []
    for name in metric.imports:
        module, _, function = name.rpartition(":")
        lines.append(f"from {module or 'sklearn.metrics'} import {function}")
    return lines


def metric_section(profile: Profile) -> str:
    """The score, and how predictions become answers."""
    count = len(profile.classes)
    asked, used = profile.setting.metric, profile.metric
    better = "higher" if used.higher else "lower"
    name = asked or used.name
    note = docstring(f"{one_line(name)}, {better} is better.")
    body = f"def score(y, p):\n    {note}\n"
    if profile.mixed_classes and used.expression(2) != used.expression(count):
        body += f"    if len(classes) == 2:\n        return {used.expression(2)}\n"
    body += f"    return {used.expression(count)}"
    decision = used.decision(count)
    return f"{body}\n\n\n{decision}" if decision else body


# --- submit ---------------------------------------------------------------------------------


def submit(profile: Profile) -> str:
    """Write the answers for the test rows in the shape of the sample."""
    lines = []
    if len(profile.targets) == 1:
        lines += [
            "scored = np.unique(np.concatenate([held for _, held in folds]))",
            "answer = answers(y[scored], pick(known, scored), [asked])[0]",
        ]
    lines += _table(profile)
    lines += [
        'Path("./final").mkdir(exist_ok=True)',
        f'submission.to_csv("./final/submission.csv", index=False{_as_written(profile)})',
    ]
    return "\n".join(lines)


def _as_written(profile: Profile) -> str:
    """What `to_csv` must be told to write as the sample is written."""
    if profile.sample is None or profile.sample.form != "csv":
        return ""
    dialect = profile.sample.file.form.dialect
    separator = f', sep="{repr(dialect.separator)[1:-1]}"' if dialect.separator != "," else ""
    return separator + (f', decimal="{dialect.decimal}"' if dialect.decimal != "." else "")


def _table(profile: Profile) -> list[str]:
    """The submission as a frame."""
    if profile.sample is not None:
        lines = [f"submission = {profile.sample.reader}"]
    elif profile.id is not None and profile.id in (profile.test or profile.train).columns:
        lines = ["submission = test[[ID]].copy()"]
    else:
        lines = ["submission = pd.DataFrame(index=test.index)"]
    if profile.wide_prefix is not None:
        return [*lines, *_one_column_a_class(profile, profile.wide_prefix, "classes", "answer")]
    for index, name in enumerate(profile.answer_columns):
        place = profile.targets.index(name) if name in profile.targets else min(index, len(profile.targets) - 1)
        target, count = quoted(profile.targets[place]), len(profile.target_classes[place])
        classes, answer = (
            ("classes", "answer") if len(profile.targets) == 1 else (f"truth({target})[0]", f"given[{target}]")
        )
        if profile.sample is None and profile.metric.kind == "probability" and count > 2:
            lines += _one_column_a_class(profile, f"{name}_", classes, answer)
        else:
            values = _answer_values(profile, count, classes, answer)
            lines.append(f"submission[{quoted(name)}] = {_by_row(profile, values)}")
    return lines


def _by_row(profile: Profile, values: str) -> str:
    """Values of the test rows in the order of the submission's rows."""
    if profile.test is None or profile.sample is None or not profile.ids_match_rows:
        return values
    if profile.test.form != profile.sample.form:  # a number in one of them may be a text in the other
        return f"submission[ID].astype(str).map(pd.Series({values}, index=test[ID].astype(str)))"
    return f"submission[ID].map(pd.Series({values}, index=test[ID]))"


def _one_column_a_class(profile: Profile, prefix: str, classes: str, answer: str) -> list[str]:
    """A column with the probability of each class; where there is a sample, of each that the sample asks for."""
    name = f"{quoted(prefix)} + str(label)" if prefix else "str(label)"
    column = f"submission[{name}] = {_by_row(profile, f'{answer}[:, k]')}"
    loop = f"for k, label in enumerate({classes}):"
    if profile.sample is None or {f"{prefix}{label}" for label in profile.classes} <= set(profile.answer_columns):
        return [loop, f"    {column}"]
    return [loop, f"    if {name} in submission:", f"        {column}"]


def _answer_values(profile: Profile, count: int, classes: str, answer: str) -> str:
    """What is written for a row: the probability of the second class, a label, or a number."""
    if profile.metric.kind == "number":
        return answer
    if profile.metric.kind == "probability":
        return f"{answer}[:, 1]" if count == 2 else f"{classes}[{answer}.argmax(axis=1)]"
    return f"{classes}[{answer}]"
