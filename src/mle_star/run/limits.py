"""How long a script may take if it began now: by the settings, by what was measured, and by what its phase has left."""

from __future__ import annotations

from collections.abc import Collection

from mle_star.run.budget import ablation_limit, script_limit
from mle_star.run.context import RunContext
from mle_star.run.events import ScriptFinished, ScriptPurpose
from mle_star.run.forecast import critical_steps

FIRST_SECONDS, FIRST_SHARE = 3.0, 0.02
"""What the first candidate should take for an answer, or this share of the run's time: better ones follow."""
AGAIN = 1.5
"""A judged script runs once more, on all rows, where so many times what it took is left."""


def limit_in_run(run: RunContext, purpose: ScriptPurpose = "solution", explicit: float | None = None) -> float:
    """Seconds that a script might take if it began now; `explicit` goes before the setting."""
    left, measured = run.budget.remaining_seconds(), run.solution_seconds
    explicit = explicit or run.config.script_timeout_seconds
    if purpose == "ablation":
        return ablation_limit(run.config, left=left, measured=measured, explicit=explicit)
    share = run.budget.even_share(_planned(run, measured=measured is not None))
    return script_limit(left=left, measured=measured, even_share=share, explicit=explicit)


def share_in_run(run: RunContext, limit: float, views: int = 1) -> float:
    """Seconds that a script should take, so that all that is planned for its phase has its turn: told, not enforced."""
    share = run.budget.even_share(_planned(run, measured=run.solution_seconds is not None))
    return min(limit, share if share > 0 else limit / 2) / max(views, 1)


def told_share(run: RunContext, limit: float, views: int = 1) -> float:
    """The share that a script is told: less for the first candidate, lest the run be long without any answer."""
    share, first = share_in_run(run, limit, views), max(FIRST_SECONDS, FIRST_SHARE * run.config.time_limit_seconds)
    if run.phase == "finalization":  # what is handed over has as long as what was judged
        return min(limit, max([share, *(seconds for _, seconds in run.shared.runtimes.values())]))
    return min(share, first) if "candidate-0" in run.parts else share


def too_late_for(run: RunContext, scripts: Collection[str]) -> str:
    """Why judged scripts have no time to run once more for as long as they ran, or an empty text.

    A script that watches the clock would hand over something worse than what was judged, and say nothing.
    """
    took = {
        event.script: event.seconds
        for event in run.journal.events
        if isinstance(event, ScriptFinished) and event.purpose == "solution" and event.script in scripts
    }
    left = run.budget.remaining_seconds()
    if run.replaying or AGAIN * sum(took.values()) <= left:
        return ""
    return f"{left:.0f} s are left, and the judged solution ran for {sum(took.values()):.0f} s"


def _planned(run: RunContext, *, measured: bool) -> float:
    """How many scripts the running phase has planned one after another; before anything is measured, candidates."""
    scripts = critical_steps(run.config).get(run.phase, (0.0, 1.0))[1]
    return scripts if measured else scripts - (run.config.num_retrieved_models - 1)
