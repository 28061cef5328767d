"""ExtraTrees: many deep trees with random cuts, averaged."""

from __future__ import annotations

from typing import Any

import numpy as np

from mle_star.engineer.parts.core import Job, Rows
from mle_star.engineer.parts.describe import Family, Move, Setting
from mle_star.engineer.parts.features.encoding import as_codes, as_ranks


def fit_extra_trees(
    rows: Rows, y: np.ndarray, others: list[Rows], settings: dict[str, Any], job: Job
) -> list[np.ndarray]:
    """Many deep trees with random cuts, averaged, as many as the time allows: a few are timed first."""
    x, *asked = as_ranks([as_codes(part.frame) for part in (rows, *others)])
    model = job.memory.hold(grow_extra_trees, x, y, settings, job)
    return [(model.predict if job.numeric else model.predict_proba)(part) for part in asked]


def grow_extra_trees(x: np.ndarray, y: np.ndarray, settings: dict[str, Any], job: Job) -> Any:
    """The trees, as many as the time allows."""
    import time

    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    kind = ExtraTreesRegressor if job.numeric else ExtraTreesClassifier
    few = 20
    model = kind(
        few,
        min_samples_leaf=int(settings["leaf_rows"]),
        max_features=settings["column_share"],
        warm_start=True,
        random_state=job.seed,
        n_jobs=job.threads,
    )
    started = time.monotonic()
    model.fit(x, y)
    pace = max((time.monotonic() - started) / few, 1e-4)
    able = max(job.seconds, min(job.most, 100 * pace)) / pace
    model.set_params(n_estimators=int(max(few, min(settings["trees"], able))))
    return model.fit(x, y)


FAMILY = Family(
    name="ExtraTrees",
    package="sklearn",
    fit=fit_extra_trees,
    settings={
        "trees": Setting(300, 20, 1500, "most trees"),
        "leaf_rows": Setting(2, 1, 50, "fewest rows of a leaf"),
        "column_share": Setting(0.5, 0.02, 1.0, "share of columns that are tried for a cut"),
    },
    worth=lambda p: p.suits_trees(0.6, small=0.8, classes=0.92),
    start=lambda p: {
        "trees": 150 if p.rows > 6000 else 300,
        "leaf_rows": 1 if p.class_count > 15 else 2 if p.rows < 20_000 else 3,
        "column_share": round(min(0.5, max(0.02, p.width**-0.5)), 3) if p.kind != "regression" or p.width > 60 else 0.5,
    },
    cheap={"trees": 60, "leaf_rows": 3},
    ablations={"depth": {"leaf_rows": 20}},
    moves=(
        Move(
            "Give ExtraTrees finer leaves",
            "Leaves of one row see what is particular.",
            {"leaf_rows": "*0.5", "trees": "*1.5"},
            lambda p: 0.3,
        ),
        Move(
            "Give ExtraTrees coarser leaves", "Leaves of more rows are steadier.", {"leaf_rows": "*3"}, lambda p: 0.35
        ),
        Move(
            "Let ExtraTrees try more columns",
            "With many weak columns, more must be tried for a good cut.",
            {"column_share": "*2"},
            lambda p: 0.35,
        ),
    ),
    timed=True,
)
