"""What both rivals are given: the task, its tables, and features that they would not make themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

TEXT_LENGTH = 30  # characters on average, from which a column with many values counts as text
TEXT_WORDS = 1000


@dataclass
class Job:
    """One task, read: what to learn from, what to answer, and in which shape."""

    train: Any
    test: Any
    sample: Any
    target: str
    metric: str
    direction: str
    task_type: str

    @property
    def log_target(self) -> bool:
        """Is the metric on the log scale?"""
        return self.metric == "rmsle"

    @property
    def wants_probability(self) -> bool:
        """Does the metric judge probabilities?"""
        return self.metric in ("roc_auc", "log_loss")


def read_job(folder: Path) -> Job:
    """The job of a task folder; dates become their parts, for both train and test alike."""
    task = yaml.safe_load((folder / "task.yaml").read_text())
    tables = [pd.read_csv(folder / "input" / f"{name}.csv") for name in ("train", "test", "sample_submission")]
    train, test, sample = tables
    target = next(column for column in train.columns if column not in test.columns)
    for frame in (train, test):
        for column in [name for name in frame.columns if _is_date(frame[name])]:
            moment = pd.to_datetime(frame[column])
            for part in ("year", "month", "day", "hour", "dayofweek"):
                frame[f"{column} {part}"] = getattr(moment.dt, part)
            del frame[column]
    return Job(
        train, test, sample, target, task["evaluation_metric"], task["metric_direction"], task["task_type"]
    )  # fmt: skip


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


def write_answer(job: Job, answer: Any, path: Path) -> None:
    """The submission, in the sample's shape."""
    values = np.expm1(answer) if job.log_target else answer
    job.sample[job.sample.columns[-1]] = values
    path.parent.mkdir(parents=True, exist_ok=True)
    job.sample.to_csv(path, index=False)


def _is_date(column: Any) -> bool:
    if column.dtype != object and str(column.dtype) not in ("str", "string"):
        return False
    head = column.dropna().astype(str).head(50)
    return bool(len(head)) and bool(head.str.match(r"\d{4}-\d{2}-\d{2}").all())
