"""How long a script may take if it began now: by the settings, by what was measured, and by what its phase has left."""

from __future__ import annotations

from mle_star.models.phases import PhaseName
from mle_star.models.texts import digest_of
from mle_star.run.clock import ablation_limit, critical_steps, script_limit
from mle_star.run.context import RunContext
from mle_star.run.events import ScriptPurpose

FIRST_SECONDS, FIRST_SHARE = 3.0, 0.02
"""What the first candidate should take for an answer, or this share of the run's time: better ones follow."""
AGAIN = 1.25
"""A scored script runs once more where so many times what it took is left: it learns from a quarter more rows."""
KEPT = 1.5
"""So many times what a script took is kept for that: before it, the shortlist are scored."""
GROWTH = 2.0
"""So many times as long as the candidates may what is refined of them take."""
LEAST_SHARE, LEAST_SECONDS = 0.05, 10.0
"""A script is told this share of the run's time at least, up to so many seconds: in less it would mostly start up.
An ensemble, which trains all models of several scripts, has twice that."""
LAST_SECONDS = 240.0
"""Where scripts take the time that they are told, the last one has as much as may be kept for it, up to this ..."""
TOLD = 0.8
"""... and of its limit it is told so much."""
SHARE = "MLE_STAR_SHARE"
"""The variable that tells it."""


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


def suggested_seconds(run: RunContext, limit: float, views: int = 1) -> float:
    """The share that a script is told: less for the first candidate, so that the run is not long without any answer."""
    share, first = share_in_run(run, limit, views), max(FIRST_SECONDS, FIRST_SHARE * run.config.time_limit_seconds)
    if run.phase == "finalization":  # what is submitted has as long as what was scored, and all that is left
        rest = TOLD * limit / run.shared.last_scripts
        return min(limit, max([rest, *run.ledger.best_seconds()]))
    least = min(LEAST_SHARE * run.config.time_limit_seconds, LEAST_SECONDS) * (2 if run.phase == "phase3" else 1)
    return min(share, first) if "candidate-0" in run.parts else max(share, min(least, limit / 2))


def too_late_for(run: RunContext, script: str) -> str:
    """Why a script scored by hidden rows has no time to run once more for as long as it ran, or an empty text.

    A script that watches the clock would submit something worse than what was scored, and say nothing.
    """
    digest = digest_of(script)
    took = max(
        (one.seconds for one in run.ledger.runs.values() if one.script == digest and one.result.answers), default=0.0
    )
    left = run.budget.remaining_seconds()
    if run.decide("run-again", lambda: AGAIN * took <= left, reopen=True):
        return ""
    return f"{left:.0f} s are left, and the scored solution ran for {took:.0f} s"


def keep_time_to_run_again(run: RunContext, phase: PhaseName) -> None:
    """Where scores come from hidden rows, what is submitted learns from all rows in the end: leave time for it."""
    if run.shared.holdout is not None:
        solutions = [one for one in run.ledger.runs.values() if one.purpose == "solution"]
        slowest = max((one.seconds for one in solutions), default=0.0)
        last = LAST_SECONDS if any(SHARE in run.ledger.text(one.script) for one in solutions) else 0.0
        run.budget.again_seconds = max(KEPT * slowest * (GROWTH if phase == "phase2" else 1.0), last)


def _planned(run: RunContext, *, measured: bool) -> float:
    """How many scripts the running phase has planned one after another; before anything is measured, candidates."""
    scripts = critical_steps(run.config).get(run.phase, (0.0, 1.0))[1]
    return scripts if measured else scripts - (run.config.num_retrieved_models - 1)
