"""Which rows are scored: folds as the test rows differ from the training rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

Folds = list[tuple[np.ndarray, np.ndarray]]


def make_folds(frame: pd.DataFrame, y: np.ndarray, settings: dict[str, Any], seed: int) -> Folds:
    """Pairs of rows to learn from and rows to score by: by time, by groups, alike in the classes, or at random."""
    from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold, train_test_split

    kind, count = settings["kind"], settings["count"]
    everything = np.arange(len(frame))
    if kind == "time":
        order = np.argsort(frame[settings["column"]].to_numpy(), kind="stable")
        cut = int(len(order) * (1 - settings.get("share", 0.2)))
        return [(np.sort(order[:cut]), np.sort(order[cut:]))]
    if kind == "groups":
        groups = frame[settings["column"]].astype(str).to_numpy()
        count = min(count, len(np.unique(groups)))
        return list(GroupKFold(count, shuffle=True, random_state=seed).split(everything, groups=groups))
    smallest = int(np.bincount(y).min()) if kind == "classes" else 0
    if count == 1:
        fit, held = train_test_split(everything, test_size=0.2, random_state=seed, stratify=y if smallest > 1 else None)
        return [(fit, held)]
    folds: Folds = []
    for again in range(settings.get("repeats", 1)):
        if kind == "classes":
            folds += StratifiedKFold(count, shuffle=True, random_state=seed + again).split(everything, y)
        else:
            folds += KFold(count, shuffle=True, random_state=seed + again).split(everything)
    return folds


def sample_rows(frame: pd.DataFrame, most: int | None, settings: dict[str, Any], seed: int) -> pd.DataFrame:
    """At most so many rows: the latest where the test rows come later, else at random."""
    if most is None or len(frame) <= most:
        return frame
    if settings["kind"] == "time":
        return frame.sort_values(settings["column"], kind="stable").tail(most).reset_index(drop=True)
    return frame.sample(n=most, random_state=seed).reset_index(drop=True)
