"""What the run has tried so far: one typed table, made from the journal's events, so that a resumed run has it, too."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from mle_star.basics.texts import digest_of
from mle_star.models import Frozen, Measure, MetricDirection, is_improvement
from mle_star.run.events import (
    LEAKS,
    AblationFinished,
    AnyEvent,
    CandidateEvaluated,
    DataUsageChecked,
    DebugAttempted,
    EnsembleTried,
    LeakageChecked,
    MergeTried,
    RefinementTried,
    ScriptFinished,
)
from mle_star.run.journal import Journal

MAX_CHARACTERS = 4000
MAX_PLAN = 220
MAX_ERROR = 160
MAX_REPAIRS = 8
MAX_PRINTED = 1000

Outcome = Literal["accepted", "rejected", "failed"]


class Tried(Frozen):
    """One thing that was tried. `change` is against the best before it, positive when it is better."""

    where: str
    plan: str
    outcome: Outcome
    score: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str = ""
    change: float | None = None
    seconds: float | None = None
    error: str = ""
    path: int | None = None
    t: int | None = None

    def line(self) -> str:
        """The entry as prompts show it: one line, whatever a plan or an error holds."""
        plan, error = _one_line(self.plan, MAX_PLAN), _one_line(self.error, MAX_ERROR)
        if self.score is None:
            result = "failed" + (f": {error}" if error else "")
        else:
            interval = "" if self.low is None or self.high is None else f" ({self.low:.6g} to {self.high:.6g})"
            outcome = "" if self.where == "candidate" else f", {self.outcome}"
            basis = f", {self.basis}" if self.basis else ""
            result = f"{self.score:.6g}{interval}{basis}{_change(self.change)}{outcome}"
        seconds = "" if self.seconds is None else f", {self.seconds:.0f} s"
        return f"- {self.where}: {plan} -> {result}{seconds}"


class Ran(NamedTuple):
    """What is kept of a script that ran: its score, its time, the end of what it printed."""

    score: float | None
    seconds: float
    printed: str


class _End(NamedTuple):
    """How a script ended."""

    score: float | None
    measure: Measure | None
    seconds: float
    error: str
    script: str  # its digest


class RunMemory:
    """Listens to a run and remembers what was tried, where, and what came of it."""

    def __init__(self, direction: MetricDirection) -> None:
        self._direction = direction
        self._tried: dict[str, Tried] = {}
        self._scripts: dict[str, _End] = {}  # by place: how the last script ended that ran there
        self._repairs: dict[str, dict[str, str]] = {}  # by place and step: the errors that repairs were asked for
        self._best: dict[int, float] = {}  # by path
        self._starts: dict[int, float] = {}  # by path, what its last study began with
        self._ran: dict[str, Ran] = {}  # by script

    @classmethod
    def of(cls, journal: Journal, direction: MetricDirection) -> RunMemory:
        """The memory of a run so far, which follows it from now on."""
        memory = cls(direction)
        for event in journal.events:
            memory.hear(event)
        journal.subscribe(memory.hear)
        return memory

    @property
    def entries(self) -> list[Tried]:
        """All that was tried, in the order of the run."""
        return list(self._tried.values())

    def hear(self, event: AnyEvent) -> None:
        """Learn from an event; one that a replay says again replaces itself."""
        if isinstance(event, ScriptFinished) and event.purpose in ("solution", "ablation"):
            script, error = digest_of(event.script), _last_line(event)
            self._scripts[_place(event.step)] = _End(event.score, event.measure, event.seconds, error, script)
            if not event.is_error and not event.cached:
                self._ran[script] = Ran(event.score, event.seconds, event.stdout[-MAX_PRINTED:])
        elif isinstance(event, DebugAttempted):
            self._repairs.setdefault(_place(event.step), {})[event.step] = event.error
        elif isinstance(event, CandidateEvaluated):
            self._note(event.step, "candidate", event.model_name, event.score, error=event.error, accepted=True)
        elif isinstance(event, MergeTried):
            self._note(
                event.step, "merge", f"work {event.reference_model} into the best so far", event.score,
                before=event.base_score, error="" if event.score is not None else event.reason, accepted=event.accepted,
            )  # fmt: skip
        elif isinstance(event, DataUsageChecked) and event.changed:
            self._note(event.step, "data check", "use data that was ignored before", event.score, accepted=True)
        elif isinstance(event, AblationFinished):
            self._best.setdefault(event.path, event.solution_score)
            self._starts[event.path] = event.solution_score
        elif isinstance(event, RefinementTried):
            known = self._tried.get(event.step)
            before = self._best.get(event.path) if known is None else None
            if known is not None and known.outcome == "rejected" and event.accepted:  # those ahead of it leak
                self._tried[event.step] = known.model_copy(update={"score": None})
                before = self._starts.get(event.path)
            self._note(
                event.step, f"path {event.path + 1}, step {event.t + 1}, try {event.k + 1}", event.plan, event.score,
                before=before, accepted=event.accepted, path=event.path, t=event.t,
            )  # fmt: skip
            self._best[event.path] = event.best_score
        elif isinstance(event, LeakageChecked):
            for place in [place for place, end in self._scripts.items() if end.script in event.leaking]:
                self._take_back(place)
        elif isinstance(event, EnsembleTried):
            before = max_of((e.score for e in self.entries if e.where.startswith("ensemble")), self._direction)
            self._note(
                event.step, f"ensemble {event.r + 1}", event.plan, event.score, before=before, accepted=event.best
            )

    def _take_back(self, place: str) -> None:
        """What was tried at a place was found to leak: nobody shall build on its score."""
        if (known := self._tried.get(place)) is not None:
            nothing = {
                "score": None,
                "low": None,
                "high": None,
                "basis": "",
                "change": None,
                "outcome": "failed",
                "error": LEAKS,
            }
            self._tried[place] = known.model_copy(update=nothing)
            if known.path is not None:
                self._best.pop(known.path, None)  # the next study says what the path has
            for other, one in self._tried.items():
                if one.path is not None and (one.path, one.t) == (known.path, known.t):
                    self._tried[other] = one.model_copy(update={"change": None})  # it may be against the leak

    def _note(
        self,
        place: str,
        where: str,
        plan: str,
        score: float | None,
        *,
        before: float | None = None,
        error: str = "",
        accepted: bool,
        path: int | None = None,
        t: int | None = None,
    ) -> None:
        script, known = self._scripts.get(place), self._tried.get(place)
        measure = None if script is None or score is None or script.score != score else script.measure
        change = None
        if score is not None and before is not None:
            change = score - before if self._direction is MetricDirection.maximize else before - score
        if known is not None and known.score == score:
            change = known.change  # said again by a replay
        if score is None and not error and script is not None:
            error = script.error
        outcome: Outcome = "failed" if score is None else "accepted" if accepted else "rejected"
        self._tried[place] = Tried(
            where=where, plan=plan, outcome=outcome, score=score, change=change, error=error, path=path, t=t,
            low=None if measure is None else measure.low, high=None if measure is None else measure.high,
            basis="" if measure is None else measure.basis,
            seconds=None if script is None else script.seconds,
        )  # fmt: skip

    # --- as prompts show it ---

    def table(self, *, path: int | None = None, t: int | None = None, most: int = MAX_CHARACTERS) -> str:
        """Everything that was tried, the telling ones first: of this step, then gains, failures, and the rest."""
        ranked = sorted(self.entries, key=lambda entry: _rank(entry, path, t))
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

    def repairs(self, place: str) -> list[str]:
        """The errors that were repaired before at this place, in order."""
        return list(self._repairs.get(place, {}).values())[-MAX_REPAIRS:]

    def ran(self, script: str) -> Ran | None:
        """What is known of a script that ran to its end."""
        return self._ran.get(digest_of(script))

    def steps_without_gain(self, path: int) -> int:
        """How many steps of a path in a row, up to now, have accepted nothing better than what they began with."""
        gains: dict[int, bool] = {}
        for entry in self.entries:
            if entry.path == path and entry.t is not None:
                better = entry.outcome == "accepted" and (entry.change or 0.0) > 0
                gains[entry.t] = gains.get(entry.t, False) or better
        count = 0
        for t in sorted(gains, reverse=True):
            if gains[t]:
                break
            count += 1
        return count


def max_of(scores: Iterable[float | None], direction: MetricDirection) -> float | None:
    """The best of some scores; None when there is none."""
    best: float | None = None
    for score in scores:
        if score is not None and (best is None or is_improvement(score, best, direction)):
            best = score
    return best


def _rank(entry: Tried, path: int | None, t: int | None) -> tuple[int, float]:
    if path is not None and (entry.path, entry.t) == (path, t):
        return 0, 0.0
    change = 0.0 if entry.change is None or math.isnan(entry.change) else entry.change
    if entry.outcome == "accepted" and change > 0:
        return 1, -change
    if entry.outcome == "failed":
        return 2, 0.0
    return 3, change  # the clearest losses first: they say what not to do


def _place(step: str) -> str:
    return step.rpartition("/")[0]


def _last_line(script: ScriptFinished) -> str:
    """What ended a script, in its own words."""
    if script.timed_out:
        return f"stopped at its limit of {script.timeout_seconds or script.seconds:.0f} s"
    text = script.traceback or script.score_problem
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no score was printed" if script.score is None else ""


def _change(change: float | None) -> str:
    if change is None:
        return ""
    if change == 0:
        return ", no change"
    return f", {'better' if change > 0 else 'worse'} by {abs(change):.3g}"


def _one_line(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[:most]}..."
