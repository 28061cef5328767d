"""Texts and lists: their words and pieces, counted once for all rows, and steps that make numbers of them."""

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from mle_star.engineer.parts.core import Job, Rows, Settings
from mle_star.engineer.parts.describe import Step
from mle_star.engineer.parts.encoding import cross_fitted, weigh_words

# --- words: hashing learns nothing -----------------------------------------------------------------------


def count_words(frame: pd.DataFrame, columns: list[str], settings: Settings) -> Any:
    """A sparse matrix of counts: `words` longest phrase in words, `pieces` longest piece in characters (0: none)."""
    from scipy import sparse

    counted, size = [], 2 ** settings["bits"]
    for name in columns:
        texts = list(frame[name].str.slice(0, settings["longest"]).str.lower())
        counted.append(count_phrases(texts, settings["words"], size))
        counted += [count_pieces(texts, settings["pieces"], size)] if settings["pieces"] else []
    return sparse.hstack(counted).tocsr()


def count_phrases(texts: list[str], longest: int, size: int) -> Any:
    """Counts of words, of signs, and of phrases of up to so many of them."""
    row, word, distinct = words_in(texts, re.compile(r"\b\w+\b|[^\w\s]").findall)
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

    row, word, distinct = words_in(texts, str.split)
    padded = [f" {text} " for text in distinct]
    places = [[(k, k + n) for n in range(2, longest + 1) for k in range(len(text) - n + 1)] for text in padded]
    keys = [zlib.crc32(text[a:b].encode()) for text, spans in zip(padded, places, strict=True) for a, b in spans]
    inside: np.ndarray = np.repeat(np.arange(len(distinct)), [len(spans) for spans in places])
    held = sparse.csr_matrix((np.ones(len(word), dtype="float32"), (row, word)), (len(texts), len(distinct)))
    return held @ counts_of(inside, np.array(keys, dtype="uint64"), len(distinct), size)


def words_in(texts: list[str], split: Callable[[str], list[str]]) -> tuple[np.ndarray, np.ndarray, list[str]]:
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
    """Measure how long the texts are. The length of a text or a list is a number that every model can use."""
    made: dict[str, Any] = {}
    for name in settings["columns"]:
        made[f"{name} characters"] = frame[name].str.len()
        made[f"{name} words"] = frame[name].str.count(" ") + 1
    return pd.DataFrame(made, index=frame.index).astype("float32")


def add_style(frame: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """Measure how the texts are written. Digits, capitals, punctuation and word length tell kinds of texts apart
    without reading them.

    The counts of each text, and their shares of its length.
    """
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


def learn_topics(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Compress the texts into topics. The main directions of the weighted words are numbers that any model can use."""
    from sklearn.decomposition import TruncatedSVD

    weighted = weigh_words(rows[0].words, [part.words for part in rows[1:]])
    size = max(1, min(settings["count"], weighted[0].shape[1] - 1, len(y) - 1))
    if weighted[0].shape[1] <= size:
        return [matrix.toarray() for matrix in weighted]
    topics = job.memory.hold(TruncatedSVD(size, n_iter=3, random_state=job.seed).fit, weighted[0])
    return [topics.transform(matrix) for matrix in weighted]


def learn_reading(rows: list[Rows], y: np.ndarray, settings: Settings, job: Job) -> list[Any]:
    """Let a linear reader score the texts first. Its cross-fitted reading of the words is the one column that trees
    need from a text.

    No training row is read by a model that knew it.
    """
    from sklearn.linear_model import Ridge

    weighted = weigh_words(rows[0].words, [part.words for part in rows[1:]])
    truth = y.astype(float) if job.numeric else np.eye(int(y.max()) + 1)[y]
    reader = Ridge(alpha=settings["alpha"], solver="sparse_cg", tol=1e-2, max_iter=30)
    return [np.reshape(p, (len(p), -1)) for p in cross_fitted(reader, weighted, truth, 4, job)]


STEPS = (
    Step(add_text_sizes, lambda p: p.reading[:10], 0.5, first=True),
    Step(
        learn_reading,
        lambda p: p.reading,
        lambda p: 0.9 if p.class_count <= 30 else 0.0,
        first=True,
        more=lambda p: {"alpha": 2.0},
    ),
    Step(learn_topics, lambda p: p.reading, 0.8, more=lambda p: {"count": 30}),
    Step(add_style, lambda p: p.data["texts"][:5], 0.75),
)
