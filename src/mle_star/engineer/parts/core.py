"""What all parts share: the rows that models learn from, the job they are given, the clock, and what is kept."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Settings = dict[str, Any]
Score = Callable[[np.ndarray, np.ndarray], float]


class Memory:
    """What is fitted, one thing after another, a file each in a folder below `./model/`.

    It is kept where `./model/` is, and recalled where the same script has kept it of the same training data, scored by
    the same `folds`.
    """

    def __init__(self, data: Settings | None = None, folds: Settings | None = None) -> None:
        place = Path("./model")
        self.open = data is not None and place.is_dir()
        self.folder = place / fingerprint(data, folds) if data is not None and self.open else place
        self.draft = self.folder.with_suffix(".draft")
        self.full = self.open and self.folder.is_dir()
        self.count, self.room = 0, min(2**29, shutil.disk_usage(".").free // 8)
        if self.open:
            shutil.rmtree(self.draft, ignore_errors=True)  # of a script that was stopped

    def hold(self, make: Callable[..., Any], *given: Any) -> Any:
        """What `make` makes of what is given, or has made before; what is held on the way is a part of it."""
        if not self.open:
            return make(*given)
        self.count += 1
        if self.full:
            return pickle.loads((self.folder / f"{self.count}.pickle").read_bytes())
        self.open = False
        made = make(*given)
        self.open = self.write(made)
        return made

    def write(self, made: Any) -> bool:
        """Keep one thing; where that fails or there is no room for it, the script goes on and keeps nothing at all."""
        try:
            kept = pickle.dumps(made)
            self.room -= len(kept)
            if self.room < 0:
                raise OSError("it is too large")
            self.draft.mkdir(exist_ok=True)
            (self.draft / f"{self.count}.pickle").write_bytes(kept)
        except Exception as reason:
            print(f"What is fitted is not kept: {reason}")
            shutil.rmtree(self.draft, ignore_errors=True)
            return False
        return True

    def close(self) -> None:
        """All is fitted: what was kept of it is complete."""
        if self.open and not self.full and self.count:
            self.draft.replace(self.folder)

    def forget(self) -> None:
        """Begin again."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.full, self.count = False, 0


def fingerprint(data: Settings, folds: Settings | None) -> str:
    """This script, its folds and the tables that it learns from, as one number."""
    tables = [data["train"], *(other["table"] for other in (data.get("labels"), *data.get("lookups", [])) if other)]
    digest = hashlib.sha256(repr(folds).encode())
    for path in (Path(__file__), *(Path("./input") / table["file"] for table in tables)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


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
    found: Settings = field(default_factory=dict)
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

    def __init__(self, settings: Settings, job: Job, rows: int, answering: float = 0.0) -> None:
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

    def after_iteration(self, info: Any) -> bool:
        """Does CatBoost go on after a round?"""
        self.tick()
        return not self.late


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
        return np.sort(order), order[:0]
    size = min(len(y) // 10, 20000)
    stop, fit = order[:size], order[size:]
    if not job.numeric:
        lone = ~np.isin(y[stop], y[fit])
        fit, stop = np.append(fit, stop[lone]), stop[~lone]
    return np.sort(fit), np.sort(stop)


def grow(
    x: pd.DataFrame, y: np.ndarray, train: Callable[..., Any], settings: Settings, job: Job, wait: float = 0.0
) -> Any:
    """Trees, as many as the time allows, that stop by a part of the rows where `patience` is set.

    `train` gives the model, its rounds, and whether it was cut off. Each round adds `wait` seconds to the answers.
    """
    pace = Pace(settings, job, len(y), wait)
    fit, stop = inner_split(y, settings["patience"], job)
    held = [(x.iloc[stop], y[stop])] if len(stop) else []
    model, rounds, late = train(x.iloc[fit], y[fit], held, settings, pace, job)
    if pace.enough < len(y):
        some = few_rows(y, pace.enough, job)
        return grow(x.iloc[some], y[some], train, settings, job, wait)
    if held:
        job.found.update(rounds=max(10, rounds), rate=pace.rate, late=late)
    return model


def rounds_in_time(model: Any, x: Any, y: np.ndarray, few: int, job: Job) -> float:
    """For how many rounds there is time, by a `few` that the model is fitted with first."""
    started = time.monotonic()
    model.fit(x, y)
    each = max((time.monotonic() - started) / few, 1e-4)
    return max(job.seconds, min(job.most, 100 * each)) / each


def options_in(settings: Settings) -> Settings:
    """The settings of trees that are parameters of their library."""
    ours = ("rounds", "rate", "patience", "absolute", "trees", "search", "only")
    return {name: value for name, value in settings.items() if name not in ours}


def fit_predict(fit: Callable[..., Any], tables: list[Any], y: np.ndarray, job: Job, *more: Any) -> list[np.ndarray]:
    """Numbers, or chances of classes, for all tables but the first, by the model that `fit` makes of that one."""
    first, *others = tables
    model = job.memory.hold(fit, first, y, *more)
    return [model.predict(other) if job.numeric else model.predict_proba(other) for other in others]
