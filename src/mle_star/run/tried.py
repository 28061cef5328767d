"""What a run has tried, a line each, as prompts show it."""

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple

from mle_star.models import MetricDirection
from mle_star.models.texts import figure
from mle_star.run import events
from mle_star.run.ledger import Ledger, SearchNode, best_score

MAX_CHARACTERS = 4000
MAX_PLAN = 220
MAX_ERROR = 160

Outcome = Literal["accepted", "rejected", "failed", "cut"]
"""What came of a try; the clock cut off what might have been good."""


class Tried(NamedTuple):
    """One thing that was tried. `change` is against the best before it, positive when it is better."""

    where: str
    plan: str
    outcome: Outcome
    score: float | None
    change: float | None
    seconds: float | None
    error: str
    basis: str
    """What an estimated score rests on."""
    step: tuple[int, int] | None
    """The path and its outer step."""
    paired: str = ""
    """The same change, row by row, in words."""

    def line(self, above: Sequence[str] = ()) -> str:
        """The entry as prompts show it: one line, whatever a plan or an error holds; no plan that stands `above`."""
        plan, error = one_line(self.plan, MAX_PLAN), one_line(self.error, MAX_ERROR)
        plan = f"plan {above.index(self.plan) + 1} above" if self.plan in above else plan
        if self.outcome == "cut":
            result = f"not scored: {error}, which says nothing of the idea"
        elif self.score is None:
            result = "failed" + (f": {error}" if error else "")
        else:
            outcome = "" if self.where == "candidate" else self.outcome
            parts = (figure(self.score), self.basis, self.paired or _change(self.change), outcome)
            result = ", ".join(filter(None, parts))
        seconds = "" if self.seconds is None else f", {self.seconds:.0f} s"
        return f"- {self.where}: {plan} -> {result}{seconds}"


def tried(ledger: Ledger) -> list[Tried]:
    """All that was tried, in the order of the run."""
    nodes = ledger.nodes
    return [_tried(ledger, node, nodes) for node in nodes if node.kind != "data" or node.event_accepted]


def _tried(ledger: Ledger, node: SearchNode, nodes: list[SearchNode]) -> Tried:
    event, score, run = node.event, node.score, ledger.latest_run(node.event.digest, node.step)
    measure = None if run is None or score is None or run.score != score else run.result.measure
    basis = "" if measure is None else measure.basis
    change = None
    if score is not None and (before := _before(ledger, node, nodes)) is not None:
        change = score - before if ledger.direction is MetricDirection.maximize else before - score
    error = ""
    if score is None:
        reason = getattr(event, "error", "") or getattr(event, "reason", "")
        failed = None if run is None or run.score is not None else run.error or run.result.score_problem
        ended = "" if failed is None else failed.strip().rpartition("\n")[2].strip() or "no score was printed"
        error = node.leak or reason or ended
    step = (event.path, event.t) if isinstance(event, events.RefinementTried) else None
    outcome: Outcome = "failed" if score is None else "accepted" if node.accepted else "rejected"
    if outcome == "failed" and not node.leak and run is not None and run.result.timed_out:
        outcome, error = "cut", "stopped at its time limit"
    elif error == events.OUT_OF_TIME:
        outcome = "cut"
    seconds = None if run is None else run.seconds
    paired = event.change.words if score is not None and event.change is not None else ""
    return Tried(*_words(event), outcome, score, change, seconds, error, basis, step, paired)


def _before(ledger: Ledger, node: SearchNode, nodes: list[SearchNode]) -> float | None:
    """The score that an attempt was to beat: that of the clean one that was accepted before it."""
    event = node.event
    if isinstance(event, events.MergeTried):
        return event.base_score
    if isinstance(event, events.EnsembleTried):
        rounds = (one.score for one in nodes if isinstance(one.event, events.EnsembleTried) and one.event.r < event.r)
        return best_score(rounds, ledger.direction)
    if not isinstance(event, events.RefinementTried):
        return None
    place = event.step.rpartition("/")[0]
    own = [one for one in nodes if one.step.rpartition("/")[0] == place and one.accepted and one.score is not None]
    accepted = {one.event.k: one.score for one in own if isinstance(one.event, events.RefinementTried)}
    if earlier := [k for k in accepted if k < event.k]:
        return accepted[max(earlier)]
    studies = [study for study in ledger.studies.values() if study.path == event.path and study.t <= event.t]
    return max(studies, key=lambda study: study.t).solution_score if studies else None


def _words(event: events.AnyAttempt) -> tuple[str, str]:
    """Where something was tried, and what."""
    if isinstance(event, events.CandidateEvaluated):
        return "candidate", event.model_name
    if isinstance(event, events.MergeTried):
        return "merge", f"work {event.reference_model} into the best so far"
    if isinstance(event, events.DataUsageChecked):
        return "data check", "use data that was ignored before"
    if isinstance(event, events.EnsembleTried):
        return f"ensemble {event.r + 1}", event.plan
    return f"path {event.path + 1}, step {event.t + 1}, try {event.k + 1}", event.plan


def tried_table(ledger: Ledger, *, path: int | None = None, t: int | None = None, above: Sequence[str] = ()) -> str:
    """Everything that was tried, the telling ones first: of this step, then gains, failures, and the rest.

    Plans that stand `above` are named by their number there.
    """
    ranked = sorted(tried(ledger), key=lambda entry: _rank(entry, path, t))
    lines: list[str] = []
    size = 0
    for number, entry in enumerate(ranked):
        line = entry.line(above)
        left = f"- and {len(ranked) - number} more"
        if size + len(line) + len(left) + 2 > MAX_CHARACTERS:
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
    return len(list(takewhile(lambda t: not gains[t], sorted(gains, reverse=True))))


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
    if not change:
        return "" if change is None else "no change"
    return f"{'better' if change > 0 else 'worse'} by {abs(change):.3g}"


def one_line(text: str, most: int) -> str:
    """A text without line ends, cut where it is longer."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[:most]}..."
