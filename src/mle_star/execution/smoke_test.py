"""The smoke test: where scripts take long, a new one runs on a sample of the rows, and is repaired there."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from mle_star.data.rows import Unsupported
from mle_star.errors import ConfigError
from mle_star.execution.fingerprint import data_of
from mle_star.execution.outcome import HEADER
from mle_star.holdout.sample import Sample, write_sample
from mle_star.models import EvaluationResult
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
        if result.score is None and run.shared.holdout is None:
            problem = (
                f"ValueError: {result.score_problem or 'no line `Final Validation Performance: <score>` was printed'}"
            )
        limit, whole = limit_in_run(run), full_seconds(sample, result.duration_seconds, run.config.subsample_limit)
        logger.info(
            "%.1f s on %d of %d rows: about %.0f s on all", result.duration_seconds, sample.rows, sample.of, whole
        )
        if whole > FAR_TOO_SLOW * limit and not problem:
            problem = (
                f"TimeoutError: the script takes {result.duration_seconds:.0f} s on {sample.rows} of {sample.of} rows, "
                f"so about {whole:.0f} s on all of them; it is stopped after {limit:.0f} s"
            )
    if problem:
        result = result.model_copy(update={"is_error": True, "error_traceback": f"{HEADER}\n{problem}"})
    return result.model_copy(update={"score": None, "score_problem": ""})


def full_seconds(sample: Sample, seconds: float, cap: int) -> float:
    """How long a script may take on all rows, or on as many as scripts are told to learn from."""
    more = min(sample.of, max(cap, sample.rows)) / sample.rows
    return seconds if seconds <= START_SECONDS else START_SECONDS + (seconds - START_SECONDS) * more
