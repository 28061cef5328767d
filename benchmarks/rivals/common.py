"""What both rivals are given: the task, its tables, and features that they would not make themselves."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

TEXT_LENGTH = 30  # characters on average, from which a column with many values counts as text
TEXT_WORDS = 1000
CORES = len(os.sched_getaffinity(0))


@dataclass
class Job:
    """One task, read: what to learn from, what to answer, and in which shape."""

    train: Any
    test: Any
    sample: Any
    target: str
    answers: list[str]
    metric: str
    task_type: str
    form: dict[str, str]

    @property
    def log_target(self) -> bool:
        """Does the metric count errors in proportion?"""
        return self.metric in ("rmsle", "smape")

    @property
    def wants_probability(self) -> bool:
        """Does the metric scorer probabilities?"""
        return self.metric in ("roc_auc", "log_loss", "average_precision")


def read_job(folder: Path) -> Job:
    """The job of a task folder; dates become their parts, lists become texts, for both train and test alike."""
    task = yaml.safe_load((folder / "task.yaml").read_text())
    train, test, sample = (_read(folder / "input", name) for name in ("train", "test", "sample_submission"))
    answers = [column for column in sample.columns if column not in test.columns]
    target = answers[0] if answers[0] in train else next(c for c in train.columns if c not in test.columns)
    if len(sample.columns) - len(answers) == 1:  # its id
        key = next(column for column in sample.columns if column not in answers)
        train, test = train.drop(columns=key), test.drop(columns=key)
    shared = list(test.columns)
    for frame in (train, test):
        for column in shared:
            if frame[column].map(lambda cell: isinstance(cell, list)).any():
                frame[column] = frame[column].map(lambda cell: " ".join("_".join(str(c).split()) for c in cell))
            _take_apart(frame, column)
    for column in list(test.columns):
        apart = not set(test[column].map(str)) & set(train[column].map(str))
        if apart and train[column].nunique() < len(train) / 2:  # of other groups than the training rows
            train, test = train.drop(columns=column), test.drop(columns=column)
    form = {"sep": ";", "decimal": ","} if _is_european(folder / "input" / "sample_submission.csv") else {}
    return Job(train, test, sample, target, answers, task["evaluation_metric"], task["task_type"], form)


def _read(folder: Path, name: str) -> Any:
    if (folder / f"{name}.json").exists():
        return pd.DataFrame(json.loads((folder / f"{name}.json").read_text()))
    path = folder / f"{name}.csv"
    european = {"sep": ";", "decimal": ","} if _is_european(path) else {}
    return pd.read_csv(path, **({} if name == "sample_submission" else {"na_values": ["?"]}), **european)


def _is_european(path: Path) -> bool:
    header = path.open(encoding="utf-8").readline()
    return ";" in header and "," not in header


def _take_apart(frame: Any, column: str) -> None:
    """A date as its parts, a time of day as its hour; anything else stays."""
    if frame[column].dtype != object and str(frame[column].dtype) not in ("str", "string"):
        return
    head = frame[column].dropna().astype(str).head(50)
    if not len(head):
        return
    if head.str.fullmatch(r"\d{2}[.:]\d{2}[.:]\d{2}").all():
        frame[column] = frame[column].str.slice(0, 2).astype(float)
    elif (european := head.str.match(r"\d{2}/\d{2}/\d{4}").all()) or head.str.match(r"\d{4}-\d{2}-\d{2}").all():
        moment = pd.to_datetime(frame[column], dayfirst=bool(european))
        for part in ("year", "month", "day", "hour", "dayofweek"):
            frame[f"{column} {part}"] = getattr(moment.dt, part)
        del frame[column]


def expand_text(job: Job) -> None:
    """Replace text columns by TF-IDF columns, for a rival that cannot read."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    for column in list(job.test.columns):
        values = job.train[column]
        if values.dtype != object and str(values.dtype) not in ("str", "string"):
            continue
        texts = values.fillna("").astype(str)
        if texts.str.len().mean() < TEXT_LENGTH or texts.nunique() < len(texts) / 2:
            continue
        words = TfidfVectorizer(max_features=TEXT_WORDS, sublinear_tf=True).fit(texts)
        for name in ("train", "test"):
            frame = getattr(job, name)
            matrix = words.transform(frame[column].fillna("").astype(str)).toarray()
            names = [f"{column} word {number}" for number in range(matrix.shape[1])]
            more = pd.DataFrame(matrix, columns=names, index=frame.index)
            setattr(job, name, pd.concat([frame.drop(columns=column), more], axis=1))


def write_answer(job: Job, answer: Any, classes: list[Any], path: Path) -> None:
    """The submission, in the sample's shape; `answer` has a column for each of `classes` where there are any."""
    if classes and len(job.answers) > 1:
        for column in job.answers:
            job.sample[column] = answer[:, [str(label) for label in classes].index(column)]
    else:
        values = answer[:, 1] if classes else answer
        job.sample[job.answers[0]] = np.expm1(values) if job.log_target else values
    path.parent.mkdir(parents=True, exist_ok=True)
    job.sample.to_csv(path, index=False, **job.form)
