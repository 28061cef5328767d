"""Which data the scripts of a run see: all, or, where they take long, a sample first; what shapes their results."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import cast

from mle_star.data.place import DataFolder, Sample
from mle_star.data.rows import Unsupported
from mle_star.errors import ConfigError
from mle_star.execution.environment import inspect_interpreter
from mle_star.execution.outcome import failed
from mle_star.holdout.holdout import HoldOut
from mle_star.holdout.views import write_sample
from mle_star.models import EvaluationResult
from mle_star.models.texts import digest_of
from mle_star.run.context import RunContext
from mle_star.run.limits import limit_in_run

logger = logging.getLogger("mle_star.execution")

LARGE_ROWS = 50_000
"""From so many rows on, scripts are taken to be slow before any was measured."""
QUICK_SECONDS, SLOW_SECONDS = 20.0, 60.0
"""What a solution takes where a sample cannot pay, and where it pays for any table that is not small."""
START_SECONDS = 3.0
"""About what a script takes before it looks at a row."""
FAR_TOO_SLOW = 2.0


def holdout_of(run: RunContext) -> HoldOut | None:
    """How the scripts of a run are scored by hidden rows; None: by what they print."""
    return cast("HoldOut | None", run.shared.holdout)


def data_of(run: RunContext) -> DataFolder:
    """The data of a run, which may lie around the run's own folder."""
    return DataFolder(run.task.data_dir, ours=run.run_dir)


def final_data_of(run: RunContext) -> DataFolder:
    """The data of its final scripts: where rows are hidden in the search, these see all of them."""
    holdout = holdout_of(run)
    return data_of(run) if holdout is None else DataFolder(holdout.scorer.data.folder, ours=run.run_dir)


async def surroundings_digest(run: RunContext) -> str:
    """A digest of data, rows hidden in them, interpreter, packages and seed, taken once per run."""
    scripts = run.shared.scripts
    async with scripts.locks["surroundings"]:
        if not scripts.surroundings:
            data = await asyncio.to_thread(final_data_of(run).digest)
            begun, here = run.journal.interpreter, run.config.python
            python = await asyncio.to_thread(inspect_interpreter, here) if begun is None else begun
            scripts_have = python.model_dump_json(include={"version", "packages"})
            holdout = holdout_of(run)
            hidden = "" if holdout is None else holdout.digest
            scripts.surroundings = digest_of(data, scripts_have, str(run.config.seed), hidden)
    return scripts.surroundings


# --- the smoke test ------------------------------------------------------------------------------------------


async def sample_for(run: RunContext) -> Sample | None:
    """The sample, where a new script should run on it first; made once a run.

    Scripts of the embedded engineer watch the clock and fail seldom: with them the first whole answer comes first.
    """
    if run.config.sample_first == "off" or run.config.traits.keeps_time:
        return None
    scripts = run.shared.scripts
    async with scripts.locks["sample"]:
        if not scripts.sampled:
            scripts.sampled = True
            try:
                scripts.sample = await asyncio.to_thread(
                    write_sample, data_of(run), run.run_dir / "views", run.task.description, run.config.seed
                )
            except (Unsupported, ConfigError, OSError, ValueError) as error:
                logger.info("no sample of the rows can be made: %s", error)
    sample = scripts.sample
    return sample if sample is not None and run.decide("sample", partial(_pays, run, sample)) else None


def _pays(run: RunContext, sample: Sample) -> bool:
    """By what the current solution takes; for candidates, which run side by side, by the table alone.

    Where scripts are stopped early in any case, the first whole answer comes first.
    """
    if limit_in_run(run) < SLOW_SECONDS:
        return False
    first = run.phase == "phase1" and any(part.startswith("candidate-") for part in run.parts)
    seconds = None if first else run.solution_seconds
    if seconds is None:
        return sample.of >= LARGE_ROWS
    return seconds >= (QUICK_SECONDS if sample.of >= LARGE_ROWS else SLOW_SECONDS)


def on_sample(run: RunContext, result: EvaluationResult) -> EvaluationResult:
    """What a run on the sample says of a script: whether it works. It says nothing of its score.

    No score line, where scripts score themselves, and a time that would exceed the limit by far count as failures.
    """
    sample, problem = run.shared.scripts.sample, ""
    if sample is not None and not result.is_error:
        limit, took = limit_in_run(run), result.duration_seconds
        whole = full_seconds(sample, took, run.config.subsample_limit)
        logger.info("%.1f s on %d of %d rows: about %.0f s on all", took, sample.rows, sample.of, whole)
        if result.score is None and run.shared.holdout is None:
            missing = "no line `Final Validation Performance: <score>` was printed"
            problem = f"ValueError: {result.score_problem or missing}"
        elif whole > FAR_TOO_SLOW * limit:
            problem = (
                f"TimeoutError: the script takes {took:.0f} s on {sample.rows} of {sample.of} rows, "
                f"so about {whole:.0f} s on all of them; it is stopped after {limit:.0f} s"
            )
    result = failed(result, problem) if problem else result
    return result.model_copy(update={"score": None, "score_problem": ""})


def full_seconds(sample: Sample, seconds: float, cap: int) -> float:
    """How long a script may take on all rows, or on as many as scripts are told to learn from."""
    more = min(sample.of, max(cap, sample.rows)) / sample.rows
    return seconds if seconds <= START_SECONDS else START_SECONDS + (seconds - START_SECONDS) * more
