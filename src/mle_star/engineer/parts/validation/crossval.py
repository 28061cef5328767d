"""Cross-validation of several models within the time of the script."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Clock, Job, Rows, few_rows
from mle_star.engineer.parts.features.encoding import build_features, without
from mle_star.engineer.parts.validation.folds import Folds
from mle_star.engineer.parts.validation.search import search_settings

Model = tuple[Callable[..., list[np.ndarray]], dict[str, Any], bool]


@dataclass
class Said:
    """What each model says: out of fold for the rows that were scored, and for the rows to answer."""

    known: dict[str, np.ndarray] = field(default_factory=dict)
    asked: dict[str, np.ndarray] = field(default_factory=dict)
    scored: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))


def scaled(y: np.ndarray, scale: str) -> np.ndarray:
    """Numbers on the scale that models learn."""
    return np.log1p(y) if scale == "log" else np.sqrt(y) if scale == "root" else y


def unscaled(p: np.ndarray, scale: str) -> np.ndarray:
    """Predictions on the scale of the task."""
    return np.expm1(np.clip(p, -1, 60)) if scale == "log" else np.clip(p, 0, None) ** 2 if scale == "root" else p


@dataclass
class FoldPlan:
    """Rounds: the rows to learn from, and the rows held out to be scored by, None where all are learned from.

    After `once` rounds all rows that can be scored are; what follows has the time that is left over.
    With `refit` only models of all rows answer.
    """

    rounds: list[tuple[np.ndarray, np.ndarray | None]]
    once: int
    refit: bool

    def shorten(self, folds: Folds) -> None:
        """Too little time for many folds: after one, or two where they are small, learn from all rows."""
        self.once, self.refit = 2 if len(folds[0][1]) >= 500 else 3, True
        everything = [each for each in self.rounds if each[1] is None]
        self.rounds[1:] = [*folds[1 : self.once - 1], *everything * 3]


def plan_of(folds: Folds, size: int, refit: bool) -> FoldPlan:
    """The folds, and a round of all rows: at the end, or without `refit` as soon as every row is scored."""
    everything = (np.arange(size), None)
    scored = np.cumsum([len(held) for _, held in folds])
    once = min(int(np.searchsorted(scored, size)) + 1, len(folds) + refit)
    place = len(folds) if refit else once
    return FoldPlan([*folds[:place], everything, *folds[place:]], once, refit)


def cross_validate(
    rows: Rows,
    y: np.ndarray,
    test: Rows,
    folds: Folds,
    models: dict[str, Model],
    steps: dict[str, Any],
    settings: dict[str, Any],
    columns: dict[str, Any],
    job: Job,
    clock: Clock,
    *,
    scale: str = "plain",
    anchor: str = "",
    classes: int = 0,
    refit: bool = False,
) -> Said:
    """Fit every model in every fold, for as many folds as the time allows; with `refit`, once more on all rows."""
    size = (len(y),) if job.numeric else (len(y), classes)
    said, times = Said(), np.zeros(len(y))
    said.known = {name: np.zeros(size) for name in models}
    said.asked = {name: np.zeros((len(test.frame), *size[1:])) for name in models}
    paces: dict[str, float] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    plan = plan_of(folds, len(y), refit)
    chosen = {name: settings_of for name, (_, settings_of, _) in models.items()}
    seconds, bagged = clock.left(), 0
    for number, (fit, held) in enumerate(plan.rounds):
        begun = time.monotonic()
        answering = held is None or not plan.refit
        needed = 0.0 if number == 0 or (held is None and not bagged) else 0.7 if answering else 1.4
        if job.memory.hold(bool, needed > 0 and clock.left() < needed * paces["round"]):
            continue
        weight = plan.once if held is None and not plan.refit else 1  # all rows count as much as all folds
        others = [rows.take(held)] if held is not None else []
        others += [test] if answering else []
        truth = scaled(y[fit], scale) if job.numeric else y[fit]
        seen = np.arange(classes)
        if not job.numeric:
            seen, truth = np.unique(truth, return_inverse=True)
        this = replace(job, seed=job.seed + number)
        part, *asked = [rows.take(fit), *others]
        built, origin = build_features(part, truth, asked, columns, steps, settings, this)
        base = [anchor_of(each, anchor, truth) for each in built]
        goal = truth - base[0] if job.numeric else truth
        for place, (name, (learn, _, timed)) in enumerate(models.items()):
            jobs = max(1.0, ((plan.once if number < plan.once else len(plan.rounds)) - number) * len(models) - place)
            most = 0.8 * clock.room() / (len(models) - place) / (1 if answering else 2)
            share = replace(this, seconds=max(0.3, min(clock.left(), seconds) * 0.9 / jobs), most=most, found={})
            only = chosen[name].get("only")
            dropped = [c for step, names in origin.items() if only is not None and step not in only for c in names]
            given, *wanted = [without(each, dropped) for each in built]
            if "search" in chosen[name] and not number and len(seen) != 1:
                less = replace(share, seconds=share.seconds * 1.5, most=0.0)
                chosen[name] = job.memory.hold(search_settings, learn, given, goal, chosen[name], less)
            if len(seen) == 1 and not job.numeric:
                learned = [np.ones((len(each.frame), 1)) for each in wanted]
            else:
                learned = fit_in_time(learn, given, goal, wanted, chosen[name], share, paces, name, timed)
                found.setdefault(name, []).append(share.found)
                chosen[name] = with_found(chosen[name], found[name], min(2, len(folds)))
            pairs = zip(learned, base[1:], strict=True)
            answers = [spread(p, at, seen, classes, scale, job) for p, at in pairs]
            if held is not None:
                said.known[name][held] += answers[0]
            if answering:
                said.asked[name] += weight * answers[-1]
        if held is not None:
            times[held] += 1
        bagged += weight if answering else 0
        paces["round"] = time.monotonic() - begun
        late = number == 0 < len(folds) - 1 and any(each[0].get("late") for each in found.values())
        if job.memory.hold(bool, late and not plan.refit):
            plan.shorten(folds)
            bagged = 0
            chosen = {name: with_found(own, found.get(name, []), 1) for name, own in chosen.items()}
            said.asked = {name: np.zeros_like(p) for name, p in said.asked.items()}
    said.scored = np.flatnonzero(times)
    for name in models:
        said.known[name] /= np.maximum(times, 1).reshape(-1, *[1] * (len(size) - 1))
        said.asked[name] /= max(bagged, 1)
    return said


def anchor_of(rows: Rows, anchor: str, truth: np.ndarray) -> np.ndarray:
    """The column against which the change is learned, filled where it is missing; nothing where there is none."""
    if anchor not in rows.frame:
        return np.zeros(len(rows.frame))
    base: np.ndarray = rows.frame[anchor].fillna(float(truth.mean())).to_numpy(dtype=float)
    return base


def spread(p: np.ndarray, base: np.ndarray, seen: np.ndarray, classes: int, scale: str, job: Job) -> np.ndarray:
    """A model's predictions on the scale, or for all the classes, of the task.

    No chance is certain: log loss never forgives a certain answer that is wrong.
    """
    if job.numeric:
        numbers: np.ndarray = np.nan_to_num(unscaled(np.asarray(p, dtype=float).ravel() + base, scale))
        return numbers
    full: np.ndarray = np.full((len(p), classes), 1e-6)
    full[:, seen] = np.clip(np.nan_to_num(p), 1e-6, 1 - 1e-6)
    return full


def with_found(settings: dict[str, Any], found: list[dict[str, Any]], enough: int) -> dict[str, Any]:
    """The settings with the rounds that models of the first folds stopped after: the others need no rows to stop by."""
    told = [each for each in found if each and not each["late"]]
    if len(told) < enough or not settings.get("patience"):
        return settings
    mean = {key: float(np.mean([each[key] for each in told])) for key in ("rounds", "rate")}
    return {**settings, "rounds": round(1.1 * mean["rounds"]), "rate": mean["rate"], "patience": 0}


def fit_in_time(
    learn: Callable[..., list[np.ndarray]],
    rows: Rows,
    y: np.ndarray,
    others: list[Rows],
    settings: dict[str, Any],
    job: Job,
    paces: dict[str, float],
    name: str,
    timed: bool,
) -> list[np.ndarray]:
    """Fit; a model that does not watch the clock is tried on 1000 rows first and gets as many as it has time for."""
    if timed or len(y) <= 3000:
        return learn(rows, y, others, settings, job)
    few = job.memory.hold(rows_in_time, learn, rows, y, others, settings, job, paces, name)
    return learn(rows.take(few), y[few], others, settings, job)


def rows_in_time(
    learn: Callable[..., list[np.ndarray]],
    rows: Rows,
    y: np.ndarray,
    others: list[Rows],
    settings: dict[str, Any],
    job: Job,
    paces: dict[str, float],
    name: str,
) -> np.ndarray:
    """The rows that there is time to learn from."""
    if name not in paces:
        few = few_rows(y, 1000, job)
        begun = time.monotonic()
        within = y[few] if job.numeric else np.unique(y[few], return_inverse=True)[1]
        learn(
            rows.take(few), within, [part.take(np.arange(min(1000, len(part.frame)))) for part in others], settings, job
        )
        paces[name] = time.monotonic() - begun
    wanted = int(1000 * (max(job.seconds, job.most) / max(paces[name], 1e-3)) ** 0.85)
    return np.arange(len(y)) if wanted >= len(y) else few_rows(y, max(wanted, 1500), job)
