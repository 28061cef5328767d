"""Steps that combine numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Step


def strongest_numbers(frame: pd.DataFrame, y: np.ndarray, names: list[str], count: int) -> list[str]:
    """The numbers whose order agrees best with that of the target, in the order of the table."""
    some = np.random.default_rng(0).permutation(len(y))[:5000]
    ranks = frame[names].iloc[some].rank()
    truth = pd.Series(y[some], index=ranks.index).rank()
    strength = ranks.corrwith(truth).abs().fillna(0)
    chosen = set(strength.nlargest(count).index)
    return [name for name in names if name in chosen]


def learn_ratios(rows: list[Rows], y: np.ndarray, settings: dict[str, Any], job: Job) -> list[pd.DataFrame]:
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


def learn_components(rows: list[Rows], y: np.ndarray, settings: dict[str, Any], job: Job) -> list[pd.DataFrame]:
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


def add_gaps(frame: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """Which values are missing, and how many."""
    made = {f"{name} missing": frame[name].isna().astype("float32") for name in settings["columns"]}
    gaps = frame[settings["columns"]].isna().sum(axis=1).astype("float32")
    return pd.DataFrame({**made, "gaps": gaps}, index=frame.index)


def learn_clusters(rows: list[Rows], y: np.ndarray, settings: dict[str, Any], job: Job) -> list[pd.DataFrame]:
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
        "ratios",
        "Add ratios and products of the numbers",
        "Trees cut one column at a time; a quotient of two columns is a boundary that they cannot draw by themselves.",
        learn_ratios,
        lambda p: 0.0 if len(p.numbers) < 2 else 0.7 if p.kind != "multiclass" else 0.35,
        settings=lambda p: {"columns": p.numbers[:200], "count": 6, "products": True},
    ),
    Step(
        "places",
        "Look at the rows around each place",
        "Neighbours on the map share what the columns do not say.",
        learn_clusters,
        lambda p: 0.95 if p.location and p.kind != "multiclass" else 0.0,
        settings=lambda p: {"columns": list(p.location or ())},
    ),
    Step(
        "gaps",
        "Flag the gaps",
        "That a value is missing can say more than the value would.",
        add_gaps,
        lambda p: 0.4 if p.gappy else 0.0,
        settings=lambda p: {"columns": p.gappy[:30]},
    ),
    Step(
        "components",
        "Add the main directions of the numbers",
        "Many correlated columns share a few directions, which single columns show only in part.",
        learn_components,
        lambda p: 0.45 if p.width >= 15 and len(p.numbers) >= 10 else 0.0,
        settings=lambda p: {"columns": p.numbers if len(p.numbers) <= 60 else [], "count": 12},
    ),
)
