"""Words, phrases, pieces of words and entries of lists, counted once for all rows: hashing learns nothing."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd


def count_words(frame: pd.DataFrame, columns: list[str], settings: dict[str, Any]) -> Any:
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
