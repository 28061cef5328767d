"""Steps that make numbers of texts, for models that do not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Step
from mle_star.engineer.parts.features.encoding import weigh_words


def add_text_sizes(frame: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """How long texts and lists are."""
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        made[f"{name} characters"] = frame[name].str.len()
        made[f"{name} words"] = frame[name].str.count(" ") + 1
    return pd.DataFrame(made, index=frame.index).astype("float32")


def add_style(frame: pd.DataFrame, settings: dict[str, Any]) -> pd.DataFrame:
    """How the texts are written: digits, capitals, signs, links, and their shares."""
    patterns = {
        "digits": r"\d",
        "capitals": r"[A-Z]",
        "marks": r"[!?]",
        "signs": r"[^\w\s]",
        "money": r"[$£€]",
        "shouted": r"\b[A-Z]{2,}\b",
        "links": r"https?:|www\.|@",
    }
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        text = frame[name].str.slice(0, 2000)
        length = text.str.len().clip(lower=1)
        for label, pattern in patterns.items():
            count = text.str.count(pattern)
            made[f"{name} {label}"], made[f"{name} {label} share"] = count, count / length
    return pd.DataFrame(made, index=frame.index).astype("float32")


def learn_topics(rows: list[Rows], y: np.ndarray, settings: dict[str, Any], job: Job) -> list[pd.DataFrame]:
    """The main directions of the weighted words."""
    from sklearn.decomposition import TruncatedSVD

    weighted = weigh_words(rows[0].words, [part.words for part in rows[1:]])
    size = max(1, min(settings["count"], weighted[0].shape[1] - 1, len(y) - 1))
    columns = [f"topic {number}" for number in range(size)]
    if weighted[0].shape[1] <= size:
        return [pd.DataFrame(matrix.toarray(), part.frame.index) for matrix, part in zip(weighted, rows, strict=True)]
    topics = job.memory.hold(TruncatedSVD(size, n_iter=3, random_state=job.seed).fit, weighted[0])
    pairs = zip(weighted, rows, strict=True)
    return [pd.DataFrame(topics.transform(matrix), part.frame.index, columns) for matrix, part in pairs]


def learn_reading(rows: list[Rows], y: np.ndarray, settings: dict[str, Any], job: Job) -> list[pd.DataFrame]:
    """What a quick linear model makes of the words, cross-fitted so that no training row is scored by itself."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import KFold

    weighted = weigh_words(rows[0].words, [part.words for part in rows[1:]])
    truth = y.astype(float) if job.numeric else np.eye(int(y.max()) + 1)[y]
    reader = Ridge(alpha=settings["alpha"], solver="sparse_cg", tol=1e-2, max_iter=30)
    own = np.zeros(truth.shape)
    for fit, held in KFold(4, shuffle=True, random_state=job.seed).split(weighted[0]):
        own[held] = job.memory.hold(reader.fit, weighted[0][fit], truth[fit]).predict(weighted[0][held])
    reader = job.memory.hold(reader.fit, weighted[0], truth)
    scored = [own, *(reader.predict(matrix) for matrix in weighted[1:])]
    tables: list[Any] = [np.reshape(values, (len(values), -1)) for values in scored]
    columns = [f"reading {number}" for number in range(tables[0].shape[1])]
    return [pd.DataFrame(table, part.frame.index, columns) for table, part in zip(tables, rows, strict=True)]


STEPS = (
    Step(
        "text_sizes",
        "Measure how long the texts are",
        "The length of a text or a list is a number that every model can use.",
        add_text_sizes,
        lambda p: 0.5 if p.reading else 0.0,
        first=True,
        settings=lambda p: {"columns": p.reading[:10]},
    ),
    Step(
        "reading",
        "Let a linear reader score the texts first",
        "Its cross-fitted reading of the words is the one column that trees need from a text.",
        learn_reading,
        lambda p: 0.9 if p.reading and p.class_count <= 30 else 0.0,
        first=True,
        settings=lambda p: {"alpha": 2.0},
    ),
    Step(
        "topics",
        "Compress the texts into topics",
        "The main directions of the weighted words are numbers that every model can use.",
        learn_topics,
        lambda p: 0.8 if p.reading else 0.0,
        settings=lambda p: {"count": 30},
    ),
    Step(
        "style",
        "Measure how the texts are written",
        "Digits, capitals, punctuation and word length tell kinds of texts apart without reading them.",
        add_style,
        lambda p: 0.75 if p.texts else 0.0,
        settings=lambda p: {"columns": p.texts[:5]},
    ),
)
