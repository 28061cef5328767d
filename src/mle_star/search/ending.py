"""Why a run ended before its plan was done: said the same way everywhere, with what to raise before it continues."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple

from mle_star.errors import BudgetExceeded
from mle_star.models import StopReason

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_WORDS: dict[StopReason, str] = {
    "time": "the time limit",
    "money": "the money limit",
    "disk": "a full disk",
    "journal": "a journal that cannot be written",
    "outage": "an outage",
    "request": "request",
}
_ADVICE: dict[StopReason, str] = {
    "time": "`mle-star resume {run} --time-limit LIMIT` continues with more time",
    "money": "`mle-star resume {run} --max-budget USD` continues with more money",
    "disk": "free some space, then `mle-star resume {run}` continues",
    "journal": "make {run} writable again, then `mle-star resume {run}` continues",
    "outage": "when the model can be reached again, `mle-star resume {run}` continues",
    "request": "`mle-star resume {run}` continues",
}


class Stop(NamedTuple):
    """What ended a run before its plan was done."""

    reason: StopReason
    detail: str = ""

    @property
    def words(self) -> str:
        """`stopped by the time limit`."""
        return f"stopped by {_WORDS[self.reason]}"

    def explain(self, run_dir: Path) -> str:
        """The words, the detail, and how the run continues."""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.words}{detail}; {_ADVICE[self.reason].format(run=run_dir)}"


def stop_of(error: BaseException) -> Stop | None:
    """What an error that left a phase means for the whole run; None when it is that phase's own."""
    if isinstance(error, BudgetExceeded):
        reasons: dict[str, StopReason] = {"time": "time", "money": "money", "disk": "disk", "journal": "journal"}
        return Stop(reasons[error.limit], str(error)) if error.limit in reasons else None
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return Stop("disk", str(error))
    return None
