"""What shapes the results of a run's scripts, in one digest: data, interpreter, packages and seed."""

from __future__ import annotations

import asyncio

from mle_star.basics.texts import digest_of
from mle_star.data.place import DataFolder
from mle_star.execution.programs import inspect_interpreter
from mle_star.run.context import RunContext


def data_of(run: RunContext) -> DataFolder:
    """The data of a run, which may lie around the run's own folder."""
    return DataFolder(run.task.data_dir, ours=run.run_dir)


def final_data_of(run: RunContext) -> DataFolder:
    """The data of its final scripts: where rows are hidden in the search, these see all of them."""
    holdout = run.shared.holdout
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
            holdout = run.shared.holdout.digest if run.shared.holdout is not None else ""
            scripts.surroundings = digest_of(data, scripts_have, str(run.config.seed), holdout)
    return scripts.surroundings
