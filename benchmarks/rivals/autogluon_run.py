"""AutoGluon on one task folder: autogluon_run.py TASK_FOLDER SUBMISSION SECONDS."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from autogluon.tabular import TabularPredictor
from common import read_job, write_answer

METRICS = {"rmse": "root_mean_squared_error", "rmsle": "root_mean_squared_error", "mae": "mean_absolute_error"}


def main() -> None:
    """Fit with the preset `medium_quality` for the given seconds, then answer."""
    folder, submission, seconds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    job = read_job(folder)
    key = job.sample.columns[0]
    train = job.train.drop(columns=[key])
    if job.log_target:
        train[job.target] = np.log1p(train[job.target])
    with tempfile.TemporaryDirectory() as place:
        predictor = TabularPredictor(
            label=job.target, eval_metric=METRICS.get(job.metric, job.metric), path=place, verbosity=0
        ).fit(train, time_limit=seconds, presets="medium_quality", num_cpus=2)
        likely = predictor.predict_proba(job.test).iloc[:, 1] if job.wants_probability else None
        answer = predictor.predict(job.test) if likely is None else likely
        write_answer(job, np.asarray(answer), submission)


if __name__ == "__main__":
    main()
