"""A small neural network."""

from __future__ import annotations

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.features.encoding import as_matrix


def fit_network(rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job) -> list[np.ndarray]:
    """Two layers on scaled numbers and levels, as many rounds as the time allows: the first is timed."""
    matrix, *asked = as_matrix(rows, others, words=not rows.frame.shape[1])
    matrix, *asked = (part.astype("float32") for part in (matrix, *asked))
    middle, spread = (float(np.mean(y)), float(np.std(y)) or 1.0) if job.numeric else (0.0, 1.0)
    model = job.memory.hold(train_network, matrix, (y - middle) / spread if job.numeric else y, settings, job)
    if job.numeric:
        return [np.clip(model.predict(part) * spread + middle, y.min(), y.max()) for part in asked]
    return [model.predict_proba(part) for part in asked]


def train_network(matrix: Any, y: np.ndarray, settings: dict[str, Any], job: Job) -> Any:
    """The network after as many rounds as the time allows."""
    import time

    from sklearn.neural_network import MLPClassifier, MLPRegressor

    width = int(settings["width"])
    shape = {"hidden_layer_sizes": (width, width // 2), "alpha": settings["decay"], "random_state": job.seed}
    kind = MLPRegressor if job.numeric else MLPClassifier
    model = kind(**shape, learning_rate_init=settings["rate"], batch_size=min(256, max(16, len(y) // 20)))
    started, pace = time.monotonic(), 0.0
    for number in range(int(settings["rounds"])):
        model.partial_fit(matrix, y, **({} if job.numeric or number else {"classes": np.unique(y)}))
        pace = (time.monotonic() - started) / (number + 1)
        if time.monotonic() - started + pace > job.seconds:
            break
    return model


FAMILY = Family(
    name="Neural network",
    package="sklearn",
    fit=fit_network,
    settings={
        "width": Setting(96, 16, 512, "units of the first layer"),
        "rounds": Setting(25, 3, 200, "most rounds over the rows"),
        "rate": Setting(0.002, 0.0001, 0.02, "size of a step"),
        "decay": Setting(0.001, 1e-6, 1.0, "penalty on large weights"),
    },
    worth=lambda p: 0.0 if p.mostly_text else p.suits_trees(0.4, small=0.35, classes=0.7),
    cheap={"width": 32, "rounds": 6},
    ablations={"rounds": {"rounds": 2}},
    moves=(
        Move(
            "Train the network for longer", "More rounds follow the rows more closely.", {"rounds": "*2"}, lambda p: 0.4
        ),
        Move("Give the network a stronger penalty", "Smaller weights are smoother.", {"decay": "*30"}, lambda p: 0.4),
    ),
    timed=True,
)
