"""Steps on columns: categories as numbers, dates taken apart, numbers combined, what the target was before and around.

What they learn is of training rows. One that learns gives for each part of the rows a table, or an array without names.
"""

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows, Settings
from mle_star.engineer.parts.describe import Step
from mle_star.engineer.parts.encoding import cross_fitted


def pairs_of(names: list[str]) -> list[tuple[str, str]]:
    """Each name with each that follows it."""
    return [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]


# --- categories ------------------------------------------------------------------------------------------


def learn_counts(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Add how often each category occurs. How common a level is often says as much as the level itself."""
    counts = {name: rows[0].frame[name].value_counts() for name in settings["columns"]}
    seen = [{name: part.frame[name].map(often).astype(float) for name, often in counts.items()} for part in rows]
    return [{f"{name} count": np.log1p(often.fillna(0)) for name, often in table.items()} for table in seen]


def learn_target_means(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Encode categories by the target's mean. Smoothed and cross-fitted inside the training rows, the mean says in one
    number what many levels hide.

    By level and by pairs of levels; no row sees its own target.
    """
    from sklearn.preprocessing import TargetEncoder

    names = settings["columns"]
    levels = [part.frame[names].astype(str) for part in rows]
    small = [name for name in names if levels[0][name].nunique() <= 60][: settings["pairs"]]
    for level in levels:
        for a, b in pairs_of(small):
            level[f"{a} & {b}"] = level[a] + " & " + level[b]
    kind = "continuous" if job.numeric else "binary" if y.max() == 1 else "multiclass"
    encoder = TargetEncoder(target_type=kind, random_state=job.seed, cv=3 if len(y) < 100 else 5)
    return [encoder.fit_transform(levels[0], y), *(encoder.transform(level) for level in levels[1:])]


def learn_deviations(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Compare each number with its group. What counts is often not the value but its distance from the usual value of
    the same category.

    The usual value is the mean among the training rows.
    """
    from itertools import product

    made: list[dict[str, Any]] = [{} for _ in rows]
    for name, number in product(settings["columns"], settings["numbers"]):
        means = rows[0].frame.groupby(name)[number].mean()
        for table, part in zip(made, rows, strict=True):
            table[f"{number} against {name}"] = part.frame[number] - part.frame[name].map(means).astype(float)
    return made


def add_code_parts(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Take codes with many levels apart. A code that hardly repeats still tells by its first letter, its number and its
    pieces what it belongs to."""
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
    """Take the dates apart. Seasons, weekdays and the trend become visible.

    The trend is the days since a fixed day.
    """
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        when = frame[name].dt
        made[f"{name} year"], made[f"{name} month"], made[f"{name} day"] = when.year, when.month, when.day
        made[f"{name} weekday"], made[f"{name} day of year"] = when.day_of_week, when.day_of_year
        made[f"{name} hour"] = when.hour + when.minute / 60
        made[f"{name} age"] = (frame[name] - pd.Timestamp("2000-01-01")).dt.total_seconds() / 86400
    return pd.DataFrame(made, index=frame.index).astype("float32")


def add_calendar(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Join the hours, weekdays and seasons. Demand follows the hour of the week and the week of the year, not hour and
    weekday apart.

    Day, week and year are circles.
    """
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
    """Measure the time between the dates. How long something took often says more than when it was."""
    pairs = pairs_of(settings["columns"][:6])
    made = {f"{a} to {b}": (frame[b] - frame[a]).dt.total_seconds() / 86400 for a, b in pairs}
    return pd.DataFrame(made, index=frame.index).astype("float32")


# --- numbers ---------------------------------------------------------------------------------------------


def strongest_numbers(frame: pd.DataFrame, y: np.ndarray, names: list[str], count: int) -> list[str]:
    """The numbers whose order agrees best with that of the target, in the order of the table."""
    some = np.random.default_rng(0).permutation(len(y))[:5000]
    ranks = frame[names].iloc[some].rank()
    truth = pd.Series(y[some], index=ranks.index).rank()
    chosen = set(ranks.corrwith(truth).abs().fillna(0).nlargest(count).index)
    return [name for name in names if name in chosen]


def learn_ratios(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Add ratios and products of the numbers. Trees cut one column at a time; a quotient of two columns is a boundary
    that they cannot draw by themselves.

    Of the numbers that move with the target most.
    """
    names = strongest_numbers(rows[0].frame, y, settings["columns"], settings["count"])
    made = []
    for part in rows:
        table: dict[str, Any] = {}
        for a, b in pairs_of(names):
            first, second = part.frame[a], part.frame[b]
            table[f"{a} / {b}"] = first / second.where(second != 0)
            table[f"{a} * {b}"], table[f"{a} + {b}"] = first * second, first + second
        made.append(pd.DataFrame(table).replace([np.inf, -np.inf], np.nan).clip(-1e12, 1e12))
    return made


def learn_components(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Add the main directions of the numbers. Many correlated columns share a few directions, which single columns show
    only in part."""
    from sklearn.decomposition import PCA
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    names = settings["columns"]
    size = min(settings["count"], len(names) - 1, len(y) - 1)
    steps = (SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler())
    directions = make_pipeline(*steps, PCA(size, svd_solver="randomized", random_state=job.seed))
    directions.fit(rows[0].frame[names].iloc[:20000])
    return [directions.transform(part.frame[names]) for part in rows]


def add_gaps(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Flag the gaps. That a value is missing can say more than the value would."""
    gaps = frame[settings["columns"]].isna()
    return gaps.add_suffix(" missing").assign(gaps=gaps.sum(axis=1)).astype("float32")


def learn_places(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Look at the rows around each place. Neighbours on the map share what the columns do not say.

    The target's mean over near and less near rows, cross-fitted; and turned axes.
    """
    from sklearn.neighbors import KNeighborsRegressor

    names = settings["columns"]
    truth = y.astype(float) if job.numeric else (y == y.max()).astype(float)
    places = [part.frame[names].fillna(rows[0].frame[names].median()).to_numpy() for part in rows]
    made: list[dict[str, Any]] = [{} for _ in rows]
    for count in (5, 20):
        near = KNeighborsRegressor(min(count, max(1, len(y) // 4)), weights="distance")
        for table, mean in zip(made, cross_fitted(near, places, truth, 5, job), strict=True):
            table[f"mean of {count} around"] = mean
    for table, place in zip(made, places, strict=True):
        for angle in (15, 30, 45, 60, 75):
            turn = np.deg2rad(angle)
            table[f"turned by {angle}"] = place[:, 0] * np.cos(turn) + place[:, 1] * np.sin(turn)
    return made


# --- rows in time ----------------------------------------------------------------------------------------


def learn_lags(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Look back in time. The test rows come later: what a series did before is the best guess of what it will do.

    All lags reach back beyond the last row to be answered.
    """
    (when,), group, horizon = settings["columns"], settings["group"], settings["horizon"]
    day = [part.frame[when].dt.normalize() for part in rows]
    name = [part.frame[group].astype(str) if group else pd.Series("all", index=part.frame.index) for part in rows]
    days = pd.date_range(day[0].min(), max(d.max() for d in day))
    table = pd.DataFrame({"day": day[0], "name": name[0], "y": y})
    grid = table.pivot_table(index="day", columns="name", values="y").reindex(days)
    past = grid.shift(horizon)
    lags = {f"mean of {size} days": past.rolling(size, min_periods=1).mean() for size in (7, 28, 91, 364)}
    lags["median of 28 days"] = past.rolling(28, min_periods=1).median()
    weeks = -(-horizon // 7) * 7
    same = [grid.shift(weeks + 7 * back) for back in range(4)]
    lags["same weekday"] = pd.concat(same).groupby(level=0).median()
    if len(days) > 364 + horizon:
        year = -(-max(horizon, 350) // 364) * 364
        lags["a year ago"] = grid.shift(year).rolling(7, center=True, min_periods=1).mean()
    stacked = {label: lag.stack() for label, lag in lags.items()}
    keys = [pd.MultiIndex.from_arrays([d, n]) for d, n in zip(day, name, strict=True)]
    return [{label: lag.reindex(key).to_numpy("float32") for label, lag in stacked.items()} for key in keys]


def learn_neighbours_in_time(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Look at the training rows just before and after. Rows to predict lie between training rows in time, so the target
    of the nearest ones is a good first guess.

    A training row does not see itself.
    """
    stamps = [part.frame[settings["columns"][0]].astype("int64").to_numpy() for part in rows]
    order = np.argsort(stamps[0], kind="stable")
    known = stamps[0][order]
    values: np.ndarray = np.append(y[order], np.nan)
    made = []
    for number, stamp in enumerate(stamps):
        own = number == 0
        place: Any = np.searchsorted(known, stamp)
        if own:
            place[order] = np.arange(len(order))
        table = pd.DataFrame()
        for step in (1, 2, 3):
            before, after = place - step, place + (step if own else step - 1)
            table[f"{step} before"] = values[np.where(before >= 0, before, len(known))]
            table[f"{step} after"] = values[np.minimum(after, len(known))]
        made.append(table.assign(around=table.mean(axis=1)).astype("float32"))
    return made


STEPS = (
    Step(learn_counts, lambda p: p.data["categories"][:40], lambda p: 0.6 if p.many_levels else 0.3),
    Step(
        learn_target_means,
        lambda p: p.data["categories"][:40],
        lambda p: 0.0 if p.kind == "multiclass" and p.class_count > 8 else 0.85 if p.many_levels else 0.55,
        more=lambda p: {"pairs": 5},
    ),
    Step(
        learn_deviations,
        lambda p: [name for name in p.data["categories"] if name not in p.many_levels][:3],
        lambda p: 0.35 if p.numbers else 0.0,
        more=lambda p: {"numbers": p.numbers[:8]},
    ),
    Step(add_code_parts, lambda p: p.many_levels[:10], 0.8),
    Step(add_dates, lambda p: p.data["dates"], 1.0, first=True),
    Step(add_calendar, lambda p: p.data["dates"], 0.6),
    Step(add_spans, lambda p: p.data["dates"], lambda p: 0.7 if len(p.data["dates"]) > 1 else 0.0, first=True),
    Step(
        learn_ratios,
        lambda p: p.numbers[:200],
        lambda p: 0.0 if len(p.numbers) < 2 else 0.7 if p.kind != "multiclass" else 0.35,
        more=lambda p: {"count": 6},
    ),
    Step(learn_places, lambda p: p.location or (), lambda p: 0.95 if p.kind != "multiclass" else 0.0),
    Step(add_gaps, lambda p: p.gappy[:30], 0.4),
    Step(
        learn_components,
        lambda p: p.numbers,
        lambda p: 0.45 if p.width >= 15 and len(p.numbers) >= 10 else 0.0,
        more=lambda p: {"count": 12},
    ),
    Step(
        learn_lags,
        lambda p: [p.later] if p.later else [],
        lambda p: 1.0 if p.kind == "regression" else 0.0,
        first=True,
        more=lambda p: {"group": p.series, "horizon": None},
    ),
    Step(learn_neighbours_in_time, lambda p: [p.mixed] if p.mixed else [], lambda p: 0.8 * (p.kind == "regression")),
)
