"""What all parts share: the rows that models learn from, the job they are given, the clock."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.keeping import Memory


@dataclass(frozen=True)
class Rows:
    """A table of features; `words` are counts of words and of list entries, a sparse matrix of the same rows."""

    frame: pd.DataFrame
    words: Any = None

    def take(self, index: np.ndarray) -> Rows:
        """Some of the rows."""
        return Rows(self.frame.iloc[index], None if self.words is None else self.words[index])


@dataclass(frozen=True)
class Job:
    """What a model is to do: `kind` is binary, multiclass or regression.

    `seconds` is the time it should take, `most` what it may take where less would not do; what it finds out about its
    own settings it leaves in `found`, and what it fits it holds in `memory`.
    """

    kind: str
    loss: str
    seed: int
    threads: int
    seconds: float
    most: float = 0.0
    found: dict[str, Any] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def numeric(self) -> bool:
        """Are numbers to be predicted, rather than the probabilities of classes?"""
        return self.kind == "regression"


class Clock:
    """The time of a script. The harness says how long the script may take, and what its even share would be."""

    def __init__(self, wanted: float) -> None:
        self.started = time.monotonic()
        limit = float(os.environ.get("MLE_STAR_SECONDS") or 600.0)
        share = float(os.environ.get("MLE_STAR_SHARE") or wanted)
        self.seconds = max(2.0, min(wanted, share, 0.8 * limit))
        self.most = max(self.seconds, 0.35 * limit)

    def left(self) -> float:
        """Seconds left of what the script should take."""
        return self.started + self.seconds - time.monotonic()

    def room(self) -> float:
        """Seconds left of what it may take where its share is too short for a sound answer."""
        return self.started + self.most - time.monotonic()

    def part(self, count: int) -> Clock:
        """A clock for the next of so many equal parts of what is left."""
        clock = Clock(self.seconds)
        clock.seconds, clock.most = max(1.0, self.left() / count), max(1.0, self.room() / count)
        return clock


class Pace:
    """The pace of a model that learns in rounds: after a few of them it is known what the time allows.

    Where there is time for few rounds only, their steps are larger; where there is time for too few, it takes longer
    than it should; and where even that would not do, it begins again with fewer rows (`enough`).
    `answering`: the seconds that each round adds to the time in which the model answers.
    """

    def __init__(self, settings: dict[str, Any], job: Job, rows: int, answering: float = 0.0) -> None:
        self.settings, self.job, self.rows, self.enough, self.answering = settings, job, rows, rows, answering
        self.times: list[float] = []
        self.seconds, self.rate = max(job.seconds, job.most), settings["rate"]

    def tick(self) -> bool:
        """A round is done; is it the one after which the pace is known?"""
        self.times.append(time.monotonic())
        if len(self.times) != 6:
            return False
        fewest, each = min(100, self.settings["rounds"]), max(self.spent / 5, 1e-5)
        self.seconds = max(self.job.seconds, min(self.job.most, fewest * each))
        wanted = min(30.0, self.settings["rounds"] * self.settings["rate"])
        self.rate = float(min(0.2, max(self.settings["rate"], wanted * each / self.seconds)))
        able = self.seconds / each / fewest
        if able < 0.5 and self.rows > 4000:
            self.enough = max(2000, int(able * self.rows))
        return True

    @property
    def spent(self) -> float:
        """Seconds that the rounds so far take, for learning and for answering."""
        return self.times[-1] - self.times[0] + (len(self.times) - 1) * self.answering

    @property
    def late(self) -> bool:
        """Is its time over? A few rounds it has in any case."""
        return len(self.times) >= 20 and self.spent > self.seconds

    @property
    def over(self) -> bool:
        """Must the model end now?"""
        return self.late or self.enough < self.rows


def few_rows(y: np.ndarray, count: int, job: Job) -> np.ndarray:
    """Some rows at random, one of every class among them."""
    some = np.random.default_rng(job.seed).permutation(len(y))[:count]
    lone = np.zeros(0, dtype=int) if job.numeric else np.unique(y, return_index=True)[1]
    chosen: np.ndarray = np.unique(np.append(some, lone))
    return chosen


def inner_split(y: np.ndarray, patience: float, job: Job) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from and rows to stop by, a tenth at most; a class that would be lost from the first stays."""
    order = np.random.default_rng(job.seed).permutation(len(y))
    if patience <= 0 or len(y) < 200:
        return order, order[:0]
    size = min(len(y) // 10, 20000)
    stop, fit = order[:size], order[size:]
    if not job.numeric:
        lone = ~np.isin(y[stop], y[fit])
        fit, stop = np.append(fit, stop[lone]), stop[~lone]
    return np.sort(fit), np.sort(stop)
