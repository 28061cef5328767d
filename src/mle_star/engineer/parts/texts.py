"""Texts and lists: their words and pieces, counted once for all rows, and steps that make numbers of them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows, Settings
from mle_star.engineer.parts.describe import Step
from mle_star.engineer.parts.encoding import weigh_words

# --- words: hashing learns nothing -----------------------------------------------------------------------


def count_words(frame: pd.DataFrame, columns: list[str], settings: Settings) -> Any:
    """A sparse matrix of counts: `words` longest phrase in words, `pieces` longest piece in characters (0: none)."""
    from scipy import sparse

    counted = []
    for name in columns:
        texts = list(frame[name].str.slice(0, settings["longest"]).str.lower())
        counted.append(count_phrases(texts, settings["words"], 2 ** settings["bits"]))
        if settings["pieces"]:
            counted.append(count_pieces(texts, settings["pieces"], 2 ** settings["bits"]))
    return sparse.hstack(counted).tocsr()


def count_phrases(texts: list[str], longest: int, size: int) -> Any:
    """Counts of words, of signs, and of phrases of up to so many of them."""
    row, word, distinct = told_apart(texts, re.compile(r"\b\w+\b|[^\w\s]").findall)
    single = np.array([zlib.crc32(text.encode()) for text in distinct], dtype="uint64")[word]
    keys, rows, phrase = [single], [row], single
    for more in range(1, longest):
        phrase = phrase[:-1] * np.uint64(0x9E3779B1) + single[more:]
        whole = row[more:] == row[: len(row) - more]
        keys.append(phrase[whole])
        rows.append(row[more:][whole])
    return counts_of(np.concatenate(rows), np.concatenate(keys), len(texts), size)


def count_pieces(texts: list[str], longest: int, size: int) -> Any:
    """Counts of the pieces that words consist of, two to so many characters: each word is taken apart once."""
    from scipy import sparse

    row, word, distinct = told_apart(texts, str.split)
    padded = [f" {text} " for text in distinct]
    places = [[(k, k + n) for n in range(2, longest + 1) for k in range(len(text) - n + 1)] for text in padded]
    keys = [zlib.crc32(text[a:b].encode()) for text, spans in zip(padded, places, strict=True) for a, b in spans]
    inside: np.ndarray = np.repeat(np.arange(len(distinct)), [len(spans) for spans in places])
    held = sparse.csr_matrix((np.ones(len(word), dtype="float32"), (row, word)), (len(texts), len(distinct)))
    return held @ counts_of(inside, np.array(keys, dtype="uint64"), len(distinct), size)


def told_apart(texts: list[str], split: Callable[[str], list[str]]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """All words of the texts in order: the text that each stands in, its number, and the word of each number."""
    found = [split(text) for text in texts]
    row: np.ndarray = np.repeat(np.arange(len(found)), [len(words) for words in found])
    number, distinct = pd.factorize(np.array([word for words in found for word in words], dtype=object))
    return row, number, list(distinct)


def counts_of(rows: np.ndarray, keys: np.ndarray, height: int, size: int) -> Any:
    """How often each key, hashed to one of `size` columns, occurs in each row."""
    from scipy import sparse

    columns = ((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) % np.uint64(size)
    ones: np.ndarray = np.ones(len(rows), dtype="float32")
    return sparse.csr_matrix((ones, (rows, columns.astype("int64"))), (height, size))


# --- steps, for models that do not read ------------------------------------------------------------------


def add_text_sizes(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """How long texts and lists are."""
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        made[f"{name} characters"] = frame[name].str.len()
        made[f"{name} words"] = frame[name].str.count(" ") + 1
    return pd.DataFrame(made, index=frame.index).astype("float32")


def add_style(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
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


def learn_topics(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
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


def learn_reading(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[pd.DataFrame]:
    """What a quick linear model makes of the words, cross-fitted: no training row is read by a model that knew it."""
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
        "Measure how long the texts are",
        "The length of a text or a list is a number that every model can use.",
        add_text_sizes,
        lambda p: 0.5 if p.reading else 0.0,
        first=True,
        settings=lambda p: {"columns": p.reading[:10]},
    ),
    Step(
        "Let a linear reader score the texts first",
        "Its cross-fitted reading of the words is the one column that trees need from a text.",
        learn_reading,
        lambda p: 0.9 if p.reading and p.class_count <= 30 else 0.0,
        first=True,
        settings=lambda p: {"alpha": 2.0},
    ),
    Step(
        "Compress the texts into topics",
        "The main directions of the weighted words are numbers that every model can use.",
        learn_topics,
        lambda p: 0.8 if p.reading else 0.0,
        settings=lambda p: {"count": 30},
    ),
    Step(
        "Measure how the texts are written",
        "Digits, capitals, punctuation and word length tell kinds of texts apart without reading them.",
        add_style,
        lambda p: 0.75 if p.texts else 0.0,
        settings=lambda p: {"columns": p.texts[:5]},
    ),
)
