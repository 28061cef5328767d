"""How a script scores itself: folds, cross-validation of several models within its time, a search for settings."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Clock, Job, Rows, Settings, few_rows
from mle_star.engineer.parts.encoding import build_features, without

Folds = list[tuple[np.ndarray, np.ndarray]]
Rounds = list[tuple[np.ndarray, Any]]
Fit = Callable[..., list[np.ndarray]]
Model = tuple[Fit, Settings, bool]

# --- folds -----------------------------------------------------------------------------------------------


def make_folds(frame: pd.DataFrame, y: np.ndarray, settings: Settings, seed: int) -> Folds:
    """Pairs of rows to learn from and rows to score by: by time, by groups, alike in the classes, or at random."""
    kind, count = settings["kind"], settings["count"]
    if kind == "time":
        order = np.argsort(frame[settings["column"]].to_numpy(), kind="stable")
        cut = int(len(order) * (1 - settings.get("share", 0.2)))
        return [(np.sort(order[:cut]), np.sort(order[cut:]))]
    if kind == "groups":
        names, group = np.unique(frame[settings["column"]].astype(str).to_numpy(), return_inverse=True)
        pairs = drawn(None, len(names), min(count, len(names)), seed)
        return [(np.flatnonzero(np.isin(group, fit)), np.flatnonzero(np.isin(group, held))) for fit, held in pairs]
    rows = y if kind == "classes" else None, len(y), count if count > 1 else 5
    pairs = [pair for number in range(settings.get("repeats", 1)) for pair in drawn(*rows, seed + number)]
    return pairs if count > 1 else pairs[:1]


def drawn(classes: np.ndarray | None, size: int, count: int, seed: int) -> Folds:
    """The folds of scikit-learn, at random or with every class in each, without the seconds that importing it takes."""
    dice = np.random.RandomState(seed)
    place: np.ndarray = np.zeros(size, dtype=int)
    if classes is None:
        place[dice.permutation(size)] = np.repeat(np.arange(count), [len(p) for p in np.array_split(place, count)])
    else:
        codes = pd.factorize(classes)[0]
        shares = np.array([np.bincount(np.sort(codes)[n::count], minlength=codes.max() + 1) for n in range(count)])
        for kind, counts in enumerate(shares.T):
            place[codes == kind] = dice.permutation(np.repeat(np.arange(count), counts))
    return [(np.flatnonzero(place != number), np.flatnonzero(place == number)) for number in range(count)]


def rounds_of(folds: Folds, size: int, refit: bool) -> tuple[Rounds, int]:
    """The folds and a round of all rows, with none held out: at the end, or without `refit` once every row is scored.

    And after how many rounds all rows that can be scored are: what follows has the time that is left over.
    """
    everything = (np.arange(size), None)
    scored = np.cumsum([len(held) for _, held in folds])
    once = min(int(np.searchsorted(scored, size)) + 1, len(folds) + refit)
    place = len(folds) if refit else once
    return [*folds[:place], everything, *folds[place:]], once


# --- cross-validation ------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What each model predicts, out of fold for the rows that were `scored`, and for the rows to answer."""

    known: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    scored: np.ndarray


@dataclass
class Course:
    """What models are cross-validated on, and what is known by now: their settings, rounds, and pace on 1000 rows."""

    rows: Rows
    y: np.ndarray
    test: Rows
    folds: Folds
    models: dict[str, Model]
    steps: dict[str, Any]
    features: Settings
    columns: dict[str, Any]
    job: Job
    clock: Clock
    scale: str = "plain"
    anchor: str = ""
    classes: int = 0
    found: dict[str, list[Settings]] = field(default_factory=dict)
    paces: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chosen = {name: own for name, (_, own, _) in self.models.items()}
        self.seconds = self.clock.left()


def cross_validate(course: Course) -> Outcome:
    """Fit every model in every fold, as many as the time allows; with one fold only models of all rows answer."""
    job, clock, y, folds = course.job, course.clock, course.y, course.folds
    shape = () if job.numeric else (course.classes,)
    known = {name: np.zeros((len(y), *shape)) for name in course.models}
    test = {name: np.zeros((len(course.test.frame), *shape)) for name in course.models}
    refit = len(folds) == 1
    rounds, once = rounds_of(folds, len(y), refit)
    times, bagged, pace = np.zeros(len(y)), 0, 0.0
    for number, (fit, held) in enumerate(rounds):
        begun = time.monotonic()
        answering = held is None or not refit
        needed = 0.0 if number == 0 or (held is None and not bagged) else 0.7 if answering else 1.4
        if job.memory.hold(bool, needed > 0 and clock.left() < needed * pace):
            continue
        weight = once if held is None and not refit else 1  # all rows count as much as all folds
        others = [*([] if held is None else [course.rows.take(held)]), *([course.test] if answering else [])]
        left = (once if number < once else len(rounds)) - number
        for name, answers in learn_round(course, number, fit, others, left, answering).items():
            if held is not None:
                known[name][held] += answers[0]
            if answering:
                test[name] += weight * answers[-1]
        if held is not None:
            times[held] += 1
        bagged += weight if answering else 0
        pace = time.monotonic() - begun
        late = number == 0 < len(folds) - 1 and any(each[0].get("late") for each in course.found.values())
        if job.memory.hold(bool, late and not refit):
            # too little time for many folds: after one, or two where they are small, learn from all rows
            once, refit, bagged = 2 if len(folds[0][1]) >= 500 else 3, True, 0
            rounds[1:] = [*folds[1 : once - 1], *[(np.arange(len(y)), None)] * 3]
            found = course.found
            course.chosen = {name: with_found(own, found.get(name, []), 1) for name, own in course.chosen.items()}
            test = {name: np.zeros_like(p) for name, p in test.items()}
    for name in course.models:
        known[name] /= np.maximum(times, 1).reshape(-1, *[1] * len(shape))
        test[name] /= max(bagged, 1)
    return Outcome(known, test, np.flatnonzero(times))


def learn_round(
    course: Course, number: int, fit: np.ndarray, others: list[Rows], left: int, answering: bool
) -> dict[str, list[np.ndarray]]:
    """What each model, fitted on the rows `fit`, predicts for the `others`; `left` rounds share the time left."""
    job, clock, count = replace(course.job, seed=course.job.seed + number), course.clock, len(course.models)
    seen, places = np.unique(course.y[fit], return_inverse=True)
    truth = scaled(course.y[fit], course.scale) if job.numeric else places
    part = course.rows.take(fit)
    built, origin = build_features(part, truth, others, course.columns, course.steps, course.features, job)
    base = [anchor_of(each, course.anchor, truth) for each in built]
    goal = truth - base[0] if job.numeric else truth
    predicted = {}
    for place, name in enumerate(course.models):
        seconds = max(0.3, min(clock.left(), course.seconds) * 0.9 / max(1.0, left * count - place))
        most = 0.8 * clock.room() / (count - place) / (1 if answering else 2)
        only = course.chosen[name].get("only")
        dropped = [c for step, names in origin.items() if only is not None and step not in only for c in names]
        given, *wanted = [without(each, dropped) for each in built]
        if len(seen) == 1 and not job.numeric:
            learned = [np.ones((len(each.frame), 1)) for each in wanted]
        else:
            learned = learn_model(course, name, given, goal, wanted, replace(job, seconds=seconds, most=most, found={}))
        pairs = zip(learned, base[1:], strict=True)
        predicted[name] = [spread(p, at, seen, course.classes, course.scale, job) for p, at in pairs]
    return predicted


def learn_model(course: Course, name: str, rows: Rows, y: np.ndarray, others: list[Rows], job: Job) -> list[np.ndarray]:
    """Fit one model; one that does not watch the clock gets as many rows as it has time for."""
    learn, _, timed = course.models[name]
    if "search" in course.chosen[name]:
        less = replace(job, seconds=job.seconds * 1.5, most=0.0)
        course.chosen[name] = job.memory.hold(search_settings, learn, rows, y, course.chosen[name], less)
    if not timed and len(y) > 3000:
        few = job.memory.hold(rows_in_time, course, name, rows, y, others, job)
        rows, y = rows.take(few), y[few]
    learned = learn(rows, y, others, course.chosen[name], job)
    course.found.setdefault(name, []).append(job.found)
    course.chosen[name] = with_found(course.chosen[name], course.found[name], min(2, len(course.folds)))
    return learned


def rows_in_time(course: Course, name: str, rows: Rows, y: np.ndarray, others: list[Rows], job: Job) -> np.ndarray:
    """The rows that there is time to learn from: a model is tried on 1000 first."""
    if name not in course.paces:
        few = few_rows(y, 1000, job)
        begun = time.monotonic()
        within = y[few] if job.numeric else np.unique(y[few], return_inverse=True)[1]
        some = [part.take(np.arange(min(1000, len(part.frame)))) for part in others]
        course.models[name][0](rows.take(few), within, some, course.chosen[name], job)
        course.paces[name] = time.monotonic() - begun
    wanted = int(1000 * (max(job.seconds, job.most) / max(course.paces[name], 1e-3)) ** 0.85)
    return np.arange(len(y)) if wanted >= len(y) else few_rows(y, max(wanted, 1500), job)


def with_found(settings: Settings, found: list[Settings], enough: int) -> Settings:
    """The settings with the rounds that models of the first folds stopped after: the others need no rows to stop by."""
    stopped = [each for each in found if each and not each["late"]]
    if len(stopped) < enough or not settings.get("patience"):
        return settings
    mean = {key: float(np.mean([each[key] for each in stopped])) for key in ("rounds", "rate")}
    return {**settings, "rounds": round(1.1 * mean["rounds"]), "rate": mean["rate"], "patience": 0}


def anchor_of(rows: Rows, anchor: str, truth: np.ndarray) -> Any:
    """The column against which the change is learned, filled where it is missing; nothing where there is none."""
    base = rows.frame.get(anchor, pd.Series(0.0, index=rows.frame.index))
    return base.fillna(float(truth.mean())).to_numpy(dtype=float)


def scaled(y: np.ndarray, scale: str) -> np.ndarray:
    """Numbers on the scale that models learn."""
    return np.log1p(y) if scale == "log" else np.sqrt(y) if scale == "root" else y


def unscaled(p: np.ndarray, scale: str) -> np.ndarray:
    """Predictions on the scale of the task."""
    return np.expm1(np.clip(p, -1, 60)) if scale == "log" else np.clip(p, 0, None) ** 2 if scale == "root" else p


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


# --- settings --------------------------------------------------------------------------------------------


def search_settings(fit: Fit, rows: Rows, y: np.ndarray, settings: Settings, job: Job) -> Settings:
    """The best settings found in `job.seconds`: a step in a random direction, else its opposite, else smaller steps."""
    settings, ends = dict(settings), time.monotonic() + job.seconds
    ranges = settings.pop("search")
    dice = np.random.default_rng(job.seed)
    some = dice.permutation(len(y))[:6000]
    learn, held = np.split(some, [int(0.75 * len(some))])
    seen, places = np.unique(y[learn], return_inverse=True)
    held = held[job.numeric | np.isin(y[held], seen)]
    truth = y[learn] if job.numeric else places

    def loss(tried: Settings, seconds: float) -> float:
        (p,) = fit(rows.take(learn), truth, [rows.take(held)], tried, replace(job, seconds=seconds))
        if job.numeric:
            return float(np.mean(np.abs(y[held] - p) ** (1 if job.loss == "absolute" else 2)))
        place = np.searchsorted(seen, y[held])
        return float(-np.mean(np.log(np.clip(p[np.arange(len(held)), place], 1e-6, 1))))

    begun = time.monotonic()
    best, lowest = settings, loss(settings, job.seconds)
    pace, size, failures = time.monotonic() - begun, 0.8, 0
    while time.monotonic() + pace < ends:
        step = dice.normal(size=len(ranges))
        for sign in (1, -1):
            if time.monotonic() + pace > ends:
                break
            tried = dict(best)
            for (name, (low, high)), move in zip(ranges.items(), step / np.linalg.norm(step), strict=True):
                value = min(high, max(low, best[name] * float(np.exp(sign * move * size * 1.6))))
                tried[name] = round(value) if isinstance(settings[name], int) else value
            if (found := loss(tried, 3 * pace)) < lowest:
                best, lowest, failures = tried, found, 0
                break
        else:
            failures += 1
            size = max(0.15, size * 0.8)
    return best
