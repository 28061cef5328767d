"""FLAML on one task folder: flaml_run.py TASK_FOLDER SUBMISSION SECONDS SEED."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from common import CORES, expand_text, read_job, write_answer
from flaml import AutoML

METRICS = {"rmsle": "rmse", "smape": "mae", "average_precision": "ap", "f1_macro": "macro_f1"}


def main() -> None:
    """Fit for the given seconds, less what it took to read, then answer."""
    started = time.monotonic()
    folder, submission, seconds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    job = read_job(folder)
    expand_text(job)
    x, y = job.train.drop(columns=[job.target]), job.train[job.target]
    kind = "regression" if job.task_type == "regression" else "classification"
    automl = AutoML()
    automl.fit(
        x, np.log1p(y) if job.log_target else y, task=kind, metric=METRICS.get(job.metric, job.metric),
        time_budget=seconds - (time.monotonic() - started), seed=int(sys.argv[4]), verbose=0, n_jobs=CORES,
    )  # fmt: skip
    test = job.test[x.columns]
    if job.wants_probability:
        write_answer(job, automl.predict_proba(test), list(automl.classes_), submission)
    else:
        write_answer(job, automl.predict(test), [], submission)


if __name__ == "__main__":
    main()
