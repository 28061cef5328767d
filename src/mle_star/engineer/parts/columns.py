"""Steps on columns: categories as numbers, dates taken apart, numbers combined. What they learn is of training rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows, Settings
from mle_star.engineer.parts.describe import Step

# --- categories ------------------------------------------------------------------------------------------


def learn_counts(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
    """How often each level occurs among the training rows."""
    made = [pd.DataFrame(index=part.frame.index) for part in rows]
    for name in settings["columns"]:
        counts = rows[0].frame[name].value_counts()
        for frame, part in zip(made, rows, strict=True):
            frame[f"{name} count"] = np.log1p(part.frame[name].map(counts).astype(float).fillna(0))
    return made


def learn_target_means(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
    """The target's mean by level and by pairs of levels, smoothed; cross-fitted, so that no row sees its own target."""
    from sklearn.preprocessing import TargetEncoder

    names = settings["columns"]
    levels = [part.frame[names].astype(str) for part in rows]
    small = [name for name in names if levels[0][name].nunique() <= 60][: settings["pairs"]]
    pairs = [(a, b) for place, a in enumerate(small) for b in small[place + 1 :]]
    for level in levels:
        for a, b in pairs:
            level[f"{a} & {b}"] = level[a] + " & " + level[b]
    kind = "continuous" if job.numeric else "binary" if y.max() == 1 else "multiclass"
    encoder = TargetEncoder(target_type=kind, random_state=job.seed, cv=3 if len(y) < 100 else 5)
    means = [encoder.fit_transform(levels[0], y), *(encoder.transform(level) for level in levels[1:])]
    columns = [f"target mean {number}" for number in range(means[0].shape[1])]
    return [pd.DataFrame(mean, part.frame.index, columns) for mean, part in zip(means, rows, strict=True)]


def learn_deviations(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
    """Numbers against their mean among the training rows of the same category."""
    made = [pd.DataFrame(index=part.frame.index) for part in rows]
    for name in settings["columns"]:
        for number in settings["numbers"]:
            means = rows[0].frame.groupby(name)[number].mean()
            for frame, part in zip(made, rows, strict=True):
                frame[f"{number} against {name}"] = part.frame[number] - part.frame[name].map(means).astype(float)
    return made


def add_code_parts(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """First letter, number, length and pieces of codes that hardly repeat."""
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        text = frame[name].fillna("").astype(str)
        made[f"{name} head"] = text.str[:1].map(lambda head: float(ord(head)) if head else -1.0)
        made[f"{name} number"] = pd.to_numeric(text.str.extract(r"(\d+)", expand=False), errors="coerce")
        made[f"{name} length"] = text.str.len()
        made[f"{name} pieces"] = text.str.count(r"\S+")
    return pd.DataFrame(made, index=frame.index).astype("float32")


# --- dates -----------------------------------------------------------------------------------------------


def add_dates(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Parts of the calendar, and the days since a fixed day."""
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        when = frame[name].dt
        made[f"{name} year"], made[f"{name} month"], made[f"{name} day"] = when.year, when.month, when.day
        made[f"{name} weekday"], made[f"{name} day of year"] = when.day_of_week, when.day_of_year
        made[f"{name} hour"] = when.hour + when.minute / 60
        made[f"{name} age"] = (frame[name] - pd.Timestamp("2000-01-01")).dt.total_seconds() / 86400
    return pd.DataFrame(made, index=frame.index).astype("float32")


def add_calendar(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """The hour of the week, the weekend, and day, week and year as circles."""
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        when = frame[name].dt
        hour = when.hour + when.minute / 60
        week = when.day_of_week * 24 + hour
        made[f"{name} hour of week"], made[f"{name} weekend"] = week, (when.day_of_week >= 5).astype(int)
        for circle, part, whole in (("day", hour, 24), ("week", week, 168), ("year", when.day_of_year, 365.25)):
            made[f"{name} {circle} sin"] = np.sin(2 * np.pi * part / whole)
            made[f"{name} {circle} cos"] = np.cos(2 * np.pi * part / whole)
    return pd.DataFrame(made, index=frame.index).astype("float32")


def add_spans(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """The days between each two dates of a row."""
    names, made = settings["columns"][:6], {}
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            made[f"{first} to {second}"] = (frame[second] - frame[first]).dt.total_seconds() / 86400
    return pd.DataFrame(made, index=frame.index).astype("float32")


# --- numbers ---------------------------------------------------------------------------------------------


def strongest_numbers(frame: pd.DataFrame, y: np.ndarray, names: list[str], count: int) -> list[str]:
    """The numbers whose order agrees best with that of the target, in the order of the table."""
    some = np.random.default_rng(0).permutation(len(y))[:5000]
    ranks = frame[names].iloc[some].rank()
    truth = pd.Series(y[some], index=ranks.index).rank()
    strength = ranks.corrwith(truth).abs().fillna(0)
    chosen = set(strength.nlargest(count).index)
    return [name for name in names if name in chosen]


def learn_ratios(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
    """Quotients and products of the numbers that move with the target most."""
    names = strongest_numbers(rows[0].frame, y, settings["columns"], settings["count"])
    made: list[dict[str, Any]] = [{} for _ in rows]
    for place, a in enumerate(names):
        for b in names[place + 1 :]:
            for columns, part in zip(made, rows, strict=True):
                first, second = part.frame[a], part.frame[b]
                columns[f"{a} / {b}"] = first / second.where(second != 0)
                if settings["products"]:
                    columns[f"{a} * {b}"], columns[f"{a} + {b}"] = first * second, first + second
    frames = [pd.DataFrame(columns, index=part.frame.index) for columns, part in zip(made, rows, strict=True)]
    return [frame.replace([np.inf, -np.inf], np.nan).clip(-1e12, 1e12) for frame in frames]


def learn_components(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
    """The main directions of the scaled numbers."""
    from sklearn.decomposition import PCA
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    names = settings["columns"] or list(rows[0].frame.select_dtypes("number"))
    size = min(settings["count"], len(names) - 1, len(y) - 1)
    steps = (SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    directions = make_pipeline(*steps, PCA(size, svd_solver="randomized", random_state=job.seed))
    directions.fit(rows[0].frame[names].iloc[:20000])
    columns = [f"component {number}" for number in range(size)]
    return [pd.DataFrame(directions.transform(part.frame[names]), part.frame.index, columns) for part in rows]


def add_gaps(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Which values are missing, and how many."""
    made = {f"{name} missing": frame[name].isna().astype("float32") for name in settings["columns"]}
    gaps = frame[settings["columns"]].isna().sum(axis=1).astype("float32")
    return pd.DataFrame({**made, "gaps": gaps}, index=frame.index)


def learn_places(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
    """The target's mean around each place: smoothed over cells of a grid, finer and coarser, cross-fitted."""
    from sklearn.model_selection import KFold
    from sklearn.neighbors import KNeighborsRegressor

    names = settings["columns"]
    truth = y.astype(float) if job.numeric else (y == y.max()).astype(float)
    places = [part.frame[names].fillna(rows[0].frame[names].median()).to_numpy() for part in rows]
    made = [pd.DataFrame(index=part.frame.index) for part in rows]
    for count in (5, 20):
        near = KNeighborsRegressor(min(count, max(1, len(y) // 4)), weights="distance")
        own = np.zeros(len(y))
        for fit, held in KFold(5, shuffle=True, random_state=job.seed).split(places[0]):
            own[held] = near.fit(places[0][fit], truth[fit]).predict(places[0][held])
        near.fit(places[0], truth)
        given = [own, *(near.predict(place) for place in places[1:])]
        for frame, values in zip(made, given, strict=True):
            frame[f"mean of {count} around"] = values
    for frame, place in zip(made, places, strict=True):
        for angle in (15, 30, 45, 60, 75):
            turn = np.deg2rad(angle)
            frame[f"turned by {angle}"] = place[:, 0] * np.cos(turn) + place[:, 1] * np.sin(turn)
    return made


STEPS = (
    Step(
        "Add how often each category occurs",
        "How common a level is often says as much as the level itself.",
        learn_counts,
        lambda p: 0.6 if p.many_levels else 0.3 if p.categories else 0.0,
        settings=lambda p: {"columns": p.categories[:40]},
    ),
    Step(
        "Encode categories by the target's mean",
        "Smoothed and cross-fitted inside the training rows, the mean says in one number what many levels hide.",
        learn_target_means,
        lambda p: (
            0.0
            if not p.categories or (p.kind == "multiclass" and p.class_count > 8)
            else 0.85
            if p.many_levels
            else 0.55
        ),
        settings=lambda p: {"columns": p.categories[:40], "pairs": 5},
    ),
    Step(
        "Compare each number with its group",
        "What counts is often not the value but its distance from the usual value of the same category.",
        learn_deviations,
        lambda p: 0.35 if p.few_levels and p.numbers else 0.0,
        settings=lambda p: {"columns": p.few_levels[:3], "numbers": p.numbers[:8]},
    ),
    Step(
        "Take codes with many levels apart",
        "A code that hardly repeats still tells by its first letter, its number and its pieces what it belongs to.",
        add_code_parts,
        lambda p: 0.8 if p.many_levels else 0.0,
        settings=lambda p: {"columns": p.many_levels[:10]},
    ),
    Step(
        "Take the dates apart",
        "Seasons, weekdays and the trend become visible.",
        add_dates,
        lambda p: 1.0 if p.dates else 0.0,
        first=True,
        settings=lambda p: {"columns": list(p.dates)},
    ),
    Step(
        "Join the hours, weekdays and seasons",
        "Demand follows the hour of the week and the week of the year, not hour and weekday apart.",
        add_calendar,
        lambda p: 0.6 if p.dates else 0.0,
        settings=lambda p: {"columns": list(p.dates)},
    ),
    Step(
        "Measure the time between the dates",
        "How long something took often says more than when it was.",
        add_spans,
        lambda p: 0.7 if len(p.dates) > 1 else 0.0,
        first=True,
        settings=lambda p: {"columns": list(p.dates)},
    ),
    Step(
        "Add ratios and products of the numbers",
        "Trees cut one column at a time; a quotient of two columns is a boundary that they cannot draw by themselves.",
        learn_ratios,
        lambda p: 0.0 if len(p.numbers) < 2 else 0.7 if p.kind != "multiclass" else 0.35,
        settings=lambda p: {"columns": p.numbers[:200], "count": 6, "products": True},
    ),
    Step(
        "Look at the rows around each place",
        "Neighbours on the map share what the columns do not say.",
        learn_places,
        lambda p: 0.95 if p.location and p.kind != "multiclass" else 0.0,
        settings=lambda p: {"columns": list(p.location or ())},
    ),
    Step(
        "Flag the gaps",
        "That a value is missing can say more than the value would.",
        add_gaps,
        lambda p: 0.4 if p.gappy else 0.0,
        settings=lambda p: {"columns": p.gappy[:30]},
    ),
    Step(
        "Add the main directions of the numbers",
        "Many correlated columns share a few directions, which single columns show only in part.",
        learn_components,
        lambda p: 0.45 if p.width >= 15 and len(p.numbers) >= 10 else 0.0,
        settings=lambda p: {"columns": p.numbers if len(p.numbers) <= 60 else [], "count": 12},
    ),
)
