"""NB-SVM: a linear model on words that are weighed by how much they speak for a class."""

from __future__ import annotations

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Family, Move, Setting


def fit_nbsvm(rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job) -> list[np.ndarray]:
    """For each class a logistic regression on the words, each weighed by the log-odds of the class among its rows."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    kept = np.flatnonzero(np.bincount(rows.words.indices, minlength=rows.words.shape[1]) >= 2)
    matrices = [part.words[:, kept].sign() for part in (rows, *others)]
    count = int(y.max()) + 1
    answers = [np.zeros((matrix.shape[0], count)) for matrix in matrices[1:]]
    for label in [1] if count == 2 else range(count):
        ours = y == label
        share = [(settings["smooth"] + np.asarray(matrices[0][side].sum(axis=0)).ravel()) for side in (ours, ~ours)]
        odds = np.log((share[0] / share[0].sum()) / (share[1] / share[1].sum())).astype("float32")
        weight = sparse.diags(odds)
        model = LogisticRegression(
            C=settings["strength"], solver="liblinear", dual=True, max_iter=60, tol=0.01, random_state=0
        )
        model = job.memory.hold(model.fit, matrices[0] @ weight, ours)
        for answer, matrix in zip(answers, matrices[1:], strict=True):
            answer[:, label] = model.predict_proba(matrix @ weight)[:, 1]
    for answer in answers:
        if count == 2:
            answer[:, 0] = 1 - answer[:, 1]
        answer /= np.maximum(answer.sum(axis=1, keepdims=True), 1e-9)
    return answers


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
