"""Steps that take dates apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.describe import Step


def add_dates(frame: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """Parts of the calendar, and the days since a fixed day."""
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        when = frame[name].dt
        made[f"{name} year"], made[f"{name} month"], made[f"{name} day"] = when.year, when.month, when.day
        made[f"{name} weekday"], made[f"{name} day of year"] = when.day_of_week, when.day_of_year
        made[f"{name} hour"] = when.hour + when.minute / 60
        made[f"{name} age"] = (frame[name] - pd.Timestamp("2000-01-01")).dt.total_seconds() / 86400
    return pd.DataFrame(made, index=frame.index).astype("float32")


def add_calendar(frame: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
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


def add_spans(frame: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """The days between each two dates of a row."""
    names, made = settings["columns"][:6], {}
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            made[f"{first} to {second}"] = (frame[second] - frame[first]).dt.total_seconds() / 86400
    return pd.DataFrame(made, index=frame.index).astype("float32")


STEPS = (
    Step(
        "dates",
        "Take the dates apart",
        "Seasons, weekdays and the trend become visible.",
        add_dates,
        lambda p: 1.0 if p.dates else 0.0,
        first=True,
        settings=lambda p: {"columns": list(p.dates)},
    ),
    Step(
        "calendar",
        "Join the hours, weekdays and seasons",
        "Demand follows the hour of the week and the week of the year, not hour and weekday apart.",
        add_calendar,
        lambda p: 0.6 if p.dates else 0.0,
        settings=lambda p: {"columns": list(p.dates)},
    ),
    Step(
        "spans",
        "Measure the time between the dates",
        "How long something took often says more than when it was.",
        add_spans,
        lambda p: 0.7 if len(p.dates) > 1 else 0.0,
        first=True,
        settings=lambda p: {"columns": list(p.dates)},
    ),
)
