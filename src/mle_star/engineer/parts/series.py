"""Steps for rows in time: what the target was before, and around."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows, Settings
from mle_star.engineer.parts.describe import Step


def learn_lags(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
    """What the target of a series was before: all lags reach back beyond the last row to be answered."""
    when, group, horizon = settings["date"], settings["group"], settings["horizon"]
    day = [part.frame[when].dt.normalize() for part in rows]
    name = [part.frame[group].astype(str) if group else pd.Series("all", index=part.frame.index) for part in rows]
    truth = y.astype(float) if job.numeric else (y == y.max()).astype(float)
    days = pd.date_range(day[0].min(), max(d.max() for d in day))
    table = pd.DataFrame({"day": day[0], "name": name[0], "y": truth})
    grid = table.pivot_table(index="day", columns="name", values="y").reindex(days)
    if horizon is None:
        horizon = max(1, min((max(d.max() for d in day[1:]) - day[0].max()).days, len(days) // 2))
    past = grid.shift(horizon)
    made: dict[str, pd.DataFrame] = {}
    for window in (7, 28, 91, 364):
        made[f"mean of {window} days"] = past.rolling(window, min_periods=1).mean()
    made["median of 28 days"] = past.rolling(28, min_periods=1).median()
    weeks = -(-horizon // 7) * 7
    same = [grid.shift(weeks + 7 * back) for back in range(4)]
    made["same weekday"] = pd.concat(same).groupby(level=0).median()
    if len(days) > 364 + horizon:
        year = -(-max(horizon, 350) // 364) * 364
        made["a year ago"] = grid.shift(year).rolling(7, center=True, min_periods=1).mean()
    stacked = {label: lag.stack() for label, lag in made.items()}
    answers = []
    for part, d, n in zip(rows, day, name, strict=True):
        keys = pd.MultiIndex.from_arrays([d, n])
        columns = {label: lag.reindex(keys).to_numpy() for label, lag in stacked.items()}
        answers.append(pd.DataFrame(columns, index=part.frame.index).astype("float32"))
    return answers


def learn_neighbours_in_time(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
    """The target of the training rows just before and after; a training row does not see itself."""
    truth = y.astype(float) if job.numeric else (y == y.max()).astype(float)
    stamps = [part.frame[settings["date"]].astype("int64").to_numpy() for part in rows]
    order = np.argsort(stamps[0], kind="stable")
    known, values = stamps[0][order], truth[order]
    answers = []
    for number, (part, stamp) in enumerate(zip(rows, stamps, strict=True)):
        own = number == 0
        columns: dict[str, np.ndarray] = {}
        place: Any = np.searchsorted(known, stamp)
        if own:
            place[order] = np.arange(len(order))
        for step in (1, 2, 3):
            before, after = place - step, place + (step if own else step - 1)
            columns[f"{step} before"] = np.where(before >= 0, values[np.clip(before, 0, None)], np.nan)
            inside = after < len(values)
            columns[f"{step} after"] = np.where(inside, values[np.clip(after, None, len(values) - 1)], np.nan)
        frame = pd.DataFrame(columns, index=part.frame.index)
        frame["around"] = frame.mean(axis=1)
        answers.append(frame.astype("float32"))
    return answers


STEPS = (
    Step(
        "Look back in time",
        "The test rows come later: what a series did before is the best guess of what it will do.",
        learn_lags,
        lambda p: 1.0 if p.later and p.kind == "regression" else 0.0,
        first=True,
        settings=lambda p: {"date": p.later, "group": p.series, "horizon": None},
    ),
    Step(
        "Look at the training rows just before and after",
        "Rows to predict lie between training rows in time, so the target of the nearest ones is a good first guess.",
        learn_neighbours_in_time,
        lambda p: 0.8 if p.mixed and p.kind == "regression" else 0.0,
        settings=lambda p: {"date": p.mixed},
    ),
)
