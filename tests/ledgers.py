"""Short ways to say and to ask what the ledger of a run holds."""

from __future__ import annotations

import itertools

from mle_star.basics.texts import digest_of
from mle_star.models import Isolation
from mle_star.run.context import RunContext
from mle_star.run.events import LeakageChecked, ScriptFinished

_NUMBERS = itertools.count()


def best_score(run: RunContext) -> float | None:
    """The best score of a run so far."""
    best = run.ledger.best()
    return None if best is None else best.score


def kept(run: RunContext) -> tuple[float | None, str] | None:
    """Score and file of the submission that is kept."""
    found = run.ledger.kept
    return None if found is None else (found.score, found.source)


def ran(run: RunContext, score: float, seconds: float = 1.0, script: str = "") -> None:
    """Record that a script ran at this place."""
    number = next(_NUMBERS)
    run.shared.reached.add("/".join((*run.parts, f"script-{number}")))
    run.record(
        ScriptFinished(
            step="/".join((*run.parts, f"script-{number}")), digest=str(number), script=script or f"# {number}",
            stdout="", stderr="", exit_code=0, seconds=seconds, is_error=False, score=score, isolation=Isolation(),
            surroundings=run.shared.scripts.surroundings,
        )
    )  # fmt: skip


def leaks(run: RunContext, script: str) -> bool:
    """Is a script known to leak?"""
    return run.ledger.leaks(digest_of(script))


def check(run: RunContext, *scripts: str, leaking: bool = False) -> None:
    """Record what a leakage check said of scripts."""
    for script in scripts:
        digest = digest_of(script)
        found = {"found": 1, "leaking": [digest]} if leaking else {}
        run.record(LeakageChecked(step=f"check-{next(_NUMBERS)}", digest=digest, **found))
