"""AutoGluon on one task folder: autogluon_run.py TASK_FOLDER SUBMISSION SECONDS SEED."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from autogluon.tabular import TabularPredictor
from common import CORES, read_job, write_answer

METRICS = {
    "rmse": "root_mean_squared_error", "rmsle": "root_mean_squared_error", "mae": "mean_absolute_error",
    "smape": "mean_absolute_error",
}  # fmt: skip


def main() -> None:
    """Fit with the preset `medium_quality` for the given seconds, less what it took to read, then answer."""
    started = time.monotonic()
    folder, submission, seconds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    job = read_job(folder)
    train = job.train
    if job.log_target:
        train[job.target] = np.log1p(train[job.target])
    with tempfile.TemporaryDirectory() as place:
        predictor = TabularPredictor(
            label=job.target, eval_metric=METRICS.get(job.metric, job.metric), path=place, verbosity=0,
            problem_type="regression" if job.task_type == "regression" else None,
        ).fit(
            train, time_limit=seconds - (time.monotonic() - started), presets="medium_quality", num_cpus=CORES
        )  # fmt: skip
        if job.wants_probability:
            chances = predictor.predict_proba(job.test)
            write_answer(job, chances.to_numpy(), list(chances.columns), submission)
        else:
            write_answer(job, np.asarray(predictor.predict(job.test)), [], submission)


if __name__ == "__main__":
    main()
