"""Short ways to say and to ask what the ledger of a run holds."""

import itertools
from typing import Any

from mle_star.models import EvaluationResult
from mle_star.models.texts import digest_of
from mle_star.run.context import RunContext
from mle_star.run.events import LeakageChecked, ScriptFinished

_NUMBERS = itertools.count()
_EVENT = ("at", "step", "digest", "surroundings", "purpose", "script")


def script_finished(seconds: float = 1.0, traceback: str | None = None, **fields: Any) -> ScriptFinished:
    """The end of a script; whatever is no field of the event is one of its result."""
    own = {name: fields.pop(name) for name in _EVENT if name in fields}
    plain: dict[str, Any] = {"stdout": "", "stderr": "", "exit_code": 0, "is_error": False}
    result = EvaluationResult(**{**plain, **fields}, duration_seconds=seconds, error_traceback=traceback)
    return ScriptFinished(**own, result=result)


def best_score(run: RunContext) -> float | None:
    """The best score of a run so far."""
    best = run.ledger.best()
    return None if best is None else best.score


def kept(run: RunContext) -> tuple[float | None, str] | None:
    """Score and file of the submission that is kept."""
    found = run.ledger.kept
    return None if found is None else (found.score, found.source)


def ran(run: RunContext, score: float | None, seconds: float = 1.0, script: str = "") -> None:
    """Record that a script ran at this place."""
    number, around = next(_NUMBERS), run.shared.scripts.surroundings
    step, text = "/".join((*run.parts, f"script-{number}")), script or f"# {number}"
    run.record(script_finished(seconds, step=step, digest=str(number), script=text, score=score, surroundings=around))


def leaks(run: RunContext, script: str) -> bool:
    """Is a script known to leak?"""
    return run.ledger.leaks(digest_of(script))


def check(run: RunContext, *scripts: str, leaking: bool = False) -> None:
    """Record what a leakage check said of scripts."""
    for script in scripts:
        digest = digest_of(script)
        found = {"found": 1, "leaking": [digest]} if leaking else {}
        run.record(LeakageChecked(step=f"check-{next(_NUMBERS)}", digest=digest, **found))
