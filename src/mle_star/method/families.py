"""What kind of model a script is built on, and what it puts to use: told to those who are to do something else."""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST_NAMES = 8
_FAMILIES = {
    "boosting": r"boost|lgbm|lightgbm|xgb|gbm|gbdt",
    "trees": r"forest|extra ?trees|decision ?tree|bagging",
    "neighbours": r"neighbou?r|knn",
    "linear": r"ridge|lasso|linear|logistic|elastic|bayes|tf-?idf",
    "kernels": r"\bsv[mcr]\b|support vector|gaussian process|kernel",
    "networks": r"net|mlp|perceptron|transformer|bert|gpt|cnn|vit\b|lstm|gru|tabpfn|torch|keras|neural",
}
_BUILT = re.compile(r"\b([A-Z][a-z]\w*|[A-Z]{2,}\w*[a-z]\w*|[A-Z]{2,4})\(")


def family_of(name: str, used: Sequence[str] = ()) -> str:
    """The family of a model, by its name, else by the classes that its code makes use of; empty when neither tells."""
    for text in (name, " ".join(used)):
        for family, words in _FAMILIES.items():
            if re.search(words, text, re.IGNORECASE):
                return family
    return ""


def built_in(code: str, most: int = MOST_NAMES) -> list[str]:
    """The classes that a script makes objects of (models, encoders, splitters), in order, each once."""
    return list(dict.fromkeys(_BUILT.findall(re.sub(r"#.*", "", code))))[:most]
