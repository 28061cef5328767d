"""Words, phrases, pieces of words and entries of lists, counted once for all rows: hashing learns nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def count_words(frame: pd.DataFrame, columns: list[str], settings: dict[str, Any]) -> Any:
    """A sparse matrix of counts: `words` longest phrase in words, `pieces` longest piece in characters (0: none)."""
    from scipy import sparse
    from sklearn.feature_extraction.text import HashingVectorizer

    usual = {"alternate_sign": False, "norm": None, "dtype": np.float32, "n_features": 2 ** settings["bits"]}
    pattern = r"(?u)\b\w+\b|[^\w\s]"
    readers = [HashingVectorizer(ngram_range=(1, settings["words"]), token_pattern=pattern, **usual)]
    if settings["pieces"]:
        readers.append(HashingVectorizer(analyzer="char_wb", ngram_range=(2, settings["pieces"]), **usual))
    longest = settings["longest"]
    texts = [frame[name].str.slice(0, longest) for name in columns]
    return sparse.hstack([reader.transform(text) for text in texts for reader in readers]).tocsr()
