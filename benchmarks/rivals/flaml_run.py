"""FLAML on one task folder: flaml_run.py TASK_FOLDER SUBMISSION SECONDS."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from common import expand_text, read_job, write_answer
from flaml import AutoML

METRICS = {"rmsle": "rmse", "f1": "f1", "roc_auc": "roc_auc", "log_loss": "log_loss"}


def main() -> None:
    """Fit for the given seconds, then answer."""
    folder, submission, seconds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    job = read_job(folder)
    expand_text(job)
    key = job.sample.columns[0]
    x, y = job.train.drop(columns=[job.target, key]), job.train[job.target]
    kind = "regression" if job.task_type == "regression" else "classification"
    automl = AutoML()
    automl.fit(
        x, np.log1p(y) if job.log_target else y, task=kind, metric=METRICS.get(job.metric, job.metric),
        time_budget=seconds, seed=int(sys.argv[4]), verbose=0, n_jobs=2,
    )  # fmt: skip
    asked = job.test[x.columns]
    write_answer(job, automl.predict_proba(asked)[:, 1] if job.wants_probability else automl.predict(asked), submission)


if __name__ == "__main__":
    main()
