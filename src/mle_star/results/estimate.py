"""How long a run will take on this machine, before it starts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mle_star.data.place import DataFolder
from mle_star.errors import JournalError
from mle_star.execution.environment import usable_cores
from mle_star.models import PipelineConfig
from mle_star.run.clock import plan_seconds
from mle_star.run.events import AgentFinished, RunStarted, ScriptFinished
from mle_star.run.folder import runs_in
from mle_star.run.journal import read_journal

SCRIPT_SECONDS, SECONDS_PER_MB = 4.0, 12.0
"""What a script takes before one was measured here: libraries to load, and work that grows with the data."""
VIEWS = ((5_000, 1), (1_500, 3), (0, 5))
"""From so many rows on, so many views: each script runs once on each."""
LOOKED_AT = 5


class Estimate(NamedTuple):
    """Seconds that a run may take. `measured`: scripts ran on these data before; else it is a guess by their size."""

    seconds: float
    measured: bool


def estimate(config: PipelineConfig, data_dir: Path, rows: int, runs: Path) -> Estimate:
    """By what the last runs on this machine took, else by the size of the data."""
    size = sum(status.st_size for _, status in DataFolder(data_dir).files()) / 1e6
    calls, scripts = _measured(runs_in(runs)[-LOOKED_AT:], config.model, str(data_dir.resolve()))
    call = calls if calls is not None else config.traits.call_seconds
    share = min(1.0, config.subsample_limit / max(rows, 1))
    script = scripts if scripts is not None else SCRIPT_SECONDS + SECONDS_PER_MB * size * share * 2 / usable_cores()
    usual = config.score_views or next(count for least, count in VIEWS if rows >= least)
    views = usual if config.scoring == "auto" else 1
    crowd = max(1.0, config.num_parallel_solutions / usable_cores())
    whole, once = (plan_seconds(config, call * crowd, script * crowd * times) for times in (views, 1))
    total = sum(whole.values()) - whole["finalization"] + once["finalization"]
    return Estimate(min(total, float(config.time_limit_seconds)), scripts is not None)


def _measured(runs: Iterable[Path], model: str, data_dir: str) -> tuple[float | None, float | None]:
    """The median call of this model and the median script on these data, of runs on this machine."""
    calls: list[float] = []
    scripts: list[float] = []
    for run in runs:
        same_model = same_data = False
        try:
            for event in read_journal(run / "journal.jsonl"):
                if isinstance(event, RunStarted):
                    same_model, same_data = event.model == model, event.task.data_dir == data_dir
                elif isinstance(event, AgentFinished) and same_model:
                    calls.append(event.seconds)
                elif isinstance(event, ScriptFinished) and same_data and not event.result.cached:
                    scripts += [] if event.result.is_error else [event.result.duration_seconds]
        except (OSError, JournalError, ValueError):
            continue
    return _median(calls), _median(scripts)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def in_words(estimate: Estimate, limit: float) -> str:
    """An estimate as no more than it is: what was measured here, or a guess below the limit of the run."""
    if estimate.measured:
        return f"about {_rough(estimate.seconds)}, as earlier runs on these data took here; at most {_rough(limit)}"
    if estimate.seconds >= limit:
        return f"up to the limit of {_rough(limit)}"
    return f"perhaps {_rough(estimate.seconds)}, a guess until the first script has run; at most {_rough(limit)}"


def _rough(seconds: float) -> str:
    """`4 minutes`, `3 hours`: no more digits than an estimate has."""
    if seconds < 50:
        return "a minute"
    if seconds < 5400:
        minutes = max(1, round(seconds / 60))
        return f"{minutes} minute{'s' if minutes > 1 else ''}"
    return f"{round(seconds / 3600)} hours" if seconds < 48 * 3600 else f"{round(seconds / 86400)} days"
