"""How far two sets of answers about the same rows agree: is the final script the one that was scored?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mle_star.data.formulas import spearman
from mle_star.holdout.answers import label_of
from mle_star.holdout.intervals import PROPER
from mle_star.holdout.scorer import WITHOUT_SCALE, Scorer

_TOP = re.compile(r"top_(\d+)_accuracy$")


def agreement(scorer: Scorer, first: Sequence[tuple[str, ...]], second: Sequence[tuple[str, ...]]) -> float:
    """1: wholly. Answers are read as the metric reads them.

    Probabilities and values are compared as such, the order where only that counts, else labels.
    """
    import numpy as np

    name, needs = scorer.metric.name, scorer.metric.needs
    if needs not in ("numbers", "probabilities"):
        pairs = [pair for rows in zip(first, second, strict=True) for pair in zip(*rows, strict=True)]
        return float(np.mean([label_of(one) == label_of(other) for one, other in pairs]))
    a, b = scorer.numbers(first), scorer.numbers(second)
    if found := _TOP.match(name):
        likely = [np.argsort(-chances, axis=1)[:, : int(found[1])] for chances in (a, b)]
        return float(np.mean([np.isin(*pair).mean() for pair in zip(*likely, strict=True)]))
    if name in PROPER:
        return _concordance(a, b)
    by_order = needs == "probabilities" or name in WITHOUT_SCALE
    columns = [i for i in range(a.shape[1]) if len(np.unique(a[:, i])) > 1]
    agree = [spearman(a[:, i], b[:, i]) if by_order else _concordance(a[:, [i]], b[:, [i]]) for i in columns]
    return float(np.mean(agree)) if columns else float(np.array_equal(a, b))


def _concordance(a: Any, b: Any) -> float:
    """One less the squared distance of two sets of rows, by that of rows which have nothing to do with each other."""
    import numpy as np

    by_chance = (a.var(axis=0) + b.var(axis=0) + (a.mean(axis=0) - b.mean(axis=0)) ** 2).sum()
    return float(1 - ((a - b) ** 2).sum(axis=1).mean() / by_chance) if by_chance else float(np.array_equal(a, b))
