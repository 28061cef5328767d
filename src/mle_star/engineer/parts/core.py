"""What all parts share: the rows that models learn from, the job they are given, the clock."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


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
    """What a model is to do: `kind` is binary, multiclass or regression; `seconds` is the time it should take."""

    kind: str
    loss: str
    seed: int
    threads: int
    seconds: float

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
        self.seconds = max(2.0, min(wanted, share, 0.6 * limit))

    def left(self) -> float:
        """Seconds left of what the script should take."""
        return self.started + self.seconds - time.monotonic()

    def part(self, count: int) -> Clock:
        """A clock for the next of so many equal parts of what is left."""
        clock = Clock(self.seconds)
        clock.seconds = max(1.0, self.left() / count)
        return clock


def hurried_rate(settings: dict[str, Any], pace: float, seconds: float) -> float:
    """The learning rate that uses the time: larger steps where there is time for few of them only."""
    steps = max(10.0, seconds / max(pace, 1e-5))
    wanted = min(30.0, settings["rounds"] * settings["rate"])
    return float(min(0.2, max(settings["rate"], wanted / steps)))


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
