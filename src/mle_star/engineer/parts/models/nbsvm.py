"""NB-SVM: a linear model on words that are weighed by how much they speak for a class."""

from __future__ import annotations

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.features.encoding import fit_each_class


def fit_nbsvm(rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job) -> list[np.ndarray]:
    """For each class a logistic regression on the words, each weighed by the log-odds of the class among its rows."""
    from scipy import sparse

    kept = np.flatnonzero(np.bincount(rows.words.indices, minlength=rows.words.shape[1]) >= 2)
    matrices = [part.words[:, kept].sign() for part in (rows, *others)]

    def weighed(label: int) -> list[Any]:
        sides = (matrices[0][side] for side in (y == label, y != label))
        ours, rest = (settings["smooth"] + np.asarray(side.sum(axis=0)).ravel() for side in sides)
        weight = sparse.diags(np.log((ours / ours.sum()) / (rest / rest.sum())).astype("float32"))
        return [matrix @ weight for matrix in matrices]

    return fit_each_class(y, weighed, settings["strength"], 60, job)


FAMILY = Family(
    name="NB-SVM",
    package="sklearn",
    fit=fit_nbsvm,
    settings={
        "strength": Setting(1.0, 0.01, 30.0, "inverse of the penalty"),
        "smooth": Setting(1.0, 0.05, 5.0, "rows that every word is granted"),
    },
    worth=lambda p: 0.0 if p.kind == "regression" or not p.reading else 0.95 if p.mostly_text else 0.3,
    cheap={"strength": 0.5},
    ablations={"strength": {"strength": 0.02}},
    moves=(
        Move("Loosen NB-SVM", "A weaker penalty lets rare words speak.", {"strength": "*4"}, lambda p: 0.4),
        Move("Tighten NB-SVM", "A stronger penalty trusts no rare word.", {"strength": "*0.25"}, lambda p: 0.4),
    ),
    reads=True,
)
