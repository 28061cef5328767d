"""What the run has tried so far, as prompts show it: one table of the ledger's attempts."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from mle_star.models import Measure, MetricDirection
from mle_star.run.events import CandidateEvaluated, DataUsageChecked, EnsembleTried, MergeTried, RefinementTried
from mle_star.run.ledger import AttemptEvent, Ledger, SearchNode

MAX_CHARACTERS = 4000
MAX_PLAN = 220
MAX_ERROR = 160

Outcome = Literal["accepted", "rejected", "failed"]


class Tried(NamedTuple):
    """One thing that was tried. `change` is against the best before it, positive when it is better."""

    where: str
    plan: str
    outcome: Outcome
    score: float | None
    change: float | None
    seconds: float | None
    error: str
    measure: Measure | None
    step: tuple[int, int] | None
    """The path and its outer step."""

    def line(self) -> str:
        """The entry as prompts show it: one line, whatever a plan or an error holds."""
        plan, error, sure = _one_line(self.plan, MAX_PLAN), _one_line(self.error, MAX_ERROR), self.measure
        if self.score is None:
            result = "failed" + (f": {error}" if error else "")
        else:
            bounded = sure is not None and sure.low is not None and sure.high is not None
            interval = f" ({sure.low:.6g} to {sure.high:.6g})" if sure is not None and bounded else ""
            basis = f", {sure.basis}" if sure is not None and sure.basis else ""
            outcome = "" if self.where == "candidate" else f", {self.outcome}"
            result = f"{self.score:.6g}{interval}{basis}{_change(self.change)}{outcome}"
        seconds = "" if self.seconds is None else f", {self.seconds:.0f} s"
        return f"- {self.where}: {plan} -> {result}{seconds}"


def tried(ledger: Ledger) -> list[Tried]:
    """All that was tried, in the order of the run."""
    return [_tried(ledger, node) for node in ledger.nodes if node.kind != "data" or node.event_accepted]


def _tried(ledger: Ledger, node: SearchNode) -> Tried:
    event, score, run = node.event, node.score, ledger.latest_run(node.digest, node.step)
    measure = None if run is None or score is None or run.score != score else run.result.measure
    change = None
    if score is not None and (before := ledger.before(node)) is not None:
        change = score - before if ledger.direction is MetricDirection.maximize else before - score
    error = ""
    if score is None:
        reason = getattr(event, "error", "") or getattr(event, "reason", "")
        error = node.leak or reason or ("" if run is None else run.last_line)
    step = (event.path, event.t) if isinstance(event, RefinementTried) else None
    outcome: Outcome = "failed" if score is None else "accepted" if node.accepted else "rejected"
    seconds = None if run is None else run.seconds
    return Tried(*_words(event), outcome, score, change, seconds, error, measure, step)


def _words(event: AttemptEvent) -> tuple[str, str]:
    """Where something was tried, and what."""
    if isinstance(event, CandidateEvaluated):
        return "candidate", event.model_name
    if isinstance(event, MergeTried):
        return "merge", f"work {event.reference_model} into the best so far"
    if isinstance(event, DataUsageChecked):
        return "data check", "use data that was ignored before"
    if isinstance(event, EnsembleTried):
        return f"ensemble {event.r + 1}", event.plan
    return f"path {event.path + 1}, step {event.t + 1}, try {event.k + 1}", event.plan


def tried_table(ledger: Ledger, *, path: int | None = None, t: int | None = None, most: int = MAX_CHARACTERS) -> str:
    """Everything that was tried, the telling ones first: of this step, then gains, failures, and the rest."""
    ranked = sorted(tried(ledger), key=lambda entry: _rank(entry, path, t))
    lines: list[str] = []
    size = 0
    for number, entry in enumerate(ranked):
        line = entry.line()
        left = f"- and {len(ranked) - number} more"
        if size + len(line) + len(left) + 2 > most:
            lines.append(left)
            break
        lines.append(line)
        size += len(line) + 1
    return "\n".join(lines)


def steps_without_gain(ledger: Ledger, path: int) -> int:
    """How many steps of a path in a row, up to now, have accepted nothing better than what they began with."""
    gains: dict[int, bool] = {}
    for entry in tried(ledger):
        if entry.step is not None and entry.step[0] == path:
            better = entry.outcome == "accepted" and (entry.change or 0.0) > 0
            gains[entry.step[1]] = gains.get(entry.step[1], False) or better
    count = 0
    for t in sorted(gains, reverse=True):
        if gains[t]:
            break
        count += 1
    return count


def _rank(entry: Tried, path: int | None, t: int | None) -> tuple[int, float]:
    if path is not None and entry.step == (path, t):
        return 0, 0.0
    change = 0.0 if entry.change is None or math.isnan(entry.change) else entry.change
    if entry.outcome == "accepted" and change > 0:
        return 1, -change
    if entry.outcome == "failed":
        return 2, 0.0
    return 3, change  # the clearest losses first: they say what not to do


def _change(change: float | None) -> str:
    if change is None:
        return ""
    if change == 0:
        return ", no change"
    return f", {'better' if change > 0 else 'worse'} by {abs(change):.3g}"


def _one_line(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[:most]}..."
