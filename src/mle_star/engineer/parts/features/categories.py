"""Steps that turn categories into numbers; what they learn, they learn from training rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Step


def learn_counts(rows: list[Rows], y: np.ndarray, settings: dict[str, Any], job: Job) -> list[pd.DataFrame]:
    """How often each level occurs among the training rows."""
    made = [pd.DataFrame(index=part.frame.index) for part in rows]
    for name in settings["columns"]:
        counts = rows[0].frame[name].value_counts()
        for frame, part in zip(made, rows, strict=True):
            frame[f"{name} count"] = np.log1p(part.frame[name].map(counts).astype(float).fillna(0))
    return made


def learn_target_means(rows: list[Rows], y: np.ndarray, settings: dict[str, Any], job: Job) -> list[pd.DataFrame]:
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


def learn_deviations(rows: list[Rows], y: np.ndarray, settings: dict[str, Any], job: Job) -> list[pd.DataFrame]:
    """Numbers against their mean among the training rows of the same category."""
    made = [pd.DataFrame(index=part.frame.index) for part in rows]
    for name in settings["columns"]:
        for number in settings["numbers"]:
            means = rows[0].frame.groupby(name)[number].mean()
            for frame, part in zip(made, rows, strict=True):
                frame[f"{number} against {name}"] = part.frame[number] - part.frame[name].map(means).astype(float)
    return made


def add_code_parts(frame: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """First letter, number, length and pieces of codes that hardly repeat."""
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        text = frame[name].fillna("").astype(str)
        made[f"{name} head"] = text.str[:1].map(lambda head: float(ord(head)) if head else -1.0)
        made[f"{name} number"] = pd.to_numeric(text.str.extract(r"(\d+)", expand=False), errors="coerce")
        made[f"{name} length"] = text.str.len()
        made[f"{name} pieces"] = text.str.count(r"\S+")
    return pd.DataFrame(made, index=frame.index).astype("float32")


STEPS = (
    Step(
        "counts",
        "Add how often each category occurs",
        "How common a level is often says as much as the level itself.",
        learn_counts,
        lambda p: 0.6 if p.many_levels else 0.3 if p.categories else 0.0,
        settings=lambda p: {"columns": p.categories[:40]},
    ),
    Step(
        "target_means",
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
        "deviations",
        "Compare each number with its group",
        "What counts is often not the value but its distance from the usual value of the same category.",
        learn_deviations,
        lambda p: 0.35 if p.few_levels and p.numbers else 0.0,
        settings=lambda p: {"columns": p.few_levels[:3], "numbers": p.numbers[:8]},
    ),
    Step(
        "code_parts",
        "Take codes with many levels apart",
        "A code that hardly repeats still tells by its first letter, its number and its pieces what it belongs to.",
        add_code_parts,
        lambda p: 0.8 if p.many_levels else 0.0,
        settings=lambda p: {"columns": p.many_levels[:10]},
    ),
)
