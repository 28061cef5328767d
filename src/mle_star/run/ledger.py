"""The ledger of the search: every script that ran, every attempt with its parents, and what is known of leaks.

It is built from events alone, so a run, a resumed run and a report read the same thing. An event that comes twice
changes nothing; a later one of the same kind and step replaces the earlier one.
"""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from typing import Any, Literal, cast

from mle_star.method.scores import best_first, best_of
from mle_star.models import MetricDirection, is_improvement
from mle_star.models.enums import phase_of
from mle_star.models.texts import digest_of
from mle_star.run import events
from mle_star.run.events import LEAKS, AnyAttempt, AnyEvent, ScriptFinished
from mle_star.run.journal import Journal, may_follow

AttemptKind = Literal["candidate", "merge", "data", "refinement", "ensemble"]
LeakState = Literal["clean", "leaking", "unanswered"]
FOUND_LATER = "data leakage was found in it after it had been scored"
ERROR_TEXT, PRINTED_TEXT = 16_000, 1000
"""Characters of a script's error, and of what it printed last, that the ledger keeps; the journal has all of it."""


class ScriptRun(ScriptFinished):
    """One run of a script, by the digest of its text; `digest` is that of the work, and `result` has little text."""

    script_id: str

    @property
    def place(self) -> str:
        """The step of the attempt that it belongs to."""
        return self.step.rpartition("/")[0]

    @property
    def score(self) -> float | None:
        """Its score, unless it failed."""
        return None if self.result.is_error else self.result.score

    @property
    def seconds(self) -> float:
        """How long it took on its first view."""
        return self.result.duration_seconds

    @property
    def printed_score(self) -> float | None:
        """The score that the script itself printed."""
        return self.score if self.result.measure is None else self.result.measure.printed

    @property
    def error(self) -> str:
        """What went wrong, for people; the last line says what ended it."""
        result = self.result
        if not result.is_error:
            return ""
        error = result.error_traceback or result.stderr.strip() or f"exit code {result.exit_code}, no output"
        return f"{error}\nstopped at its time limit after {self.seconds:.0f} s" if result.timed_out else error

    @classmethod
    def of(cls, event: ScriptFinished) -> "ScriptRun":
        """The run without most of its texts."""
        result, traceback = event.result, event.result.error_traceback
        texts = {
            "stdout": result.stdout[-PRINTED_TEXT:],
            "stderr": result.stderr[-ERROR_TEXT:] if result.is_error else "",
            "error_traceback": None if traceback is None else traceback[-ERROR_TEXT:],
        }
        return cls(**{**dict(event), "script": "", "script_id": digest_of(event.script)}).with_result(**texts)

    def with_result(self, **changes: Any) -> "ScriptRun":
        """The same with another result."""
        return self.model_copy(update={"result": self.result.model_copy(update=changes)})


@dataclass(frozen=True)
class SearchNode:
    """An attempt of the search. `event` says it as its phase did.

    `leak` tells why the score no longer counts: the phase left it out, or a later phase found the leak.
    """

    event: AnyAttempt
    leak: str = ""

    @property
    def step(self) -> str:
        """Where it was made."""
        return self.event.step

    @property
    def kind(self) -> AttemptKind:
        """What made it."""
        return cast(AttemptKind, self.event.kind.partition("_")[0])

    @property
    def event_accepted(self) -> bool:
        """Was it accepted by its phase?"""
        event = self.event
        if isinstance(event, events.CandidateEvaluated):
            return event.score is not None
        if isinstance(event, events.DataUsageChecked):
            return event.changed
        return event.best if isinstance(event, events.EnsembleTried) else event.accepted

    @property
    def score(self) -> float | None:
        """Its score, as far as that counts."""
        return None if self.leak else self.event.score

    @property
    def accepted(self) -> bool:
        """Did the method continue from it?"""
        return self.event_accepted and self.leak != LEAKS

    @property
    def scored(self) -> AnyAttempt:
        """The event in the light of the leaks that are known by now."""
        if not self.leak:
            return self.event
        known: dict[str, object] = {"score": None, "error": self.leak, "reason": self.leak}
        if self.leak == LEAKS:
            known |= {"accepted": False, "best": False}
        fields = type(self.event).model_fields
        return self.event.model_copy(update={name: value for name, value in known.items() if name in fields})


@dataclass
class Ledger:
    """All that the search has found so far, and the questions that are asked of it."""

    direction: MetricDirection = MetricDirection.maximize
    runs: dict[tuple[str, str, datetime], ScriptRun] = field(default_factory=dict)
    kept: events.SubmissionKept | None = None  # the best valid submission so far
    _events: dict[str, AnyAttempt] = field(default_factory=dict)  # by step
    _by_digest: dict[str, AnyAttempt] | None = field(default=None, compare=False)  # made when it is asked for
    _texts: dict[str, str | tuple[str, str]] = field(default_factory=dict)
    """By script its text, or step and digest of one of its runs, where the journal has it."""
    _checks: dict[str, dict[str, LeakState]] = field(default_factory=dict)  # by script, then by step
    _calls: dict[str, float] = field(default_factory=dict)  # by step, the seconds
    _origins: dict[str, str] = field(default_factory=dict)
    repaired: dict[str, events.DebugAttempted] = field(default_factory=dict)  # by step
    _starts: dict[str, str] = field(default_factory=dict)  # by place of a path, what it begins with
    retrieved: events.ModelsRetrieved | None = None
    studies: dict[str, events.AblationFinished] = field(default_factory=dict)  # by step
    blocks: dict[str, events.BlockChosen] = field(default_factory=dict)  # by step
    leaks_found: dict[str, events.LeakageChecked] = field(default_factory=dict)  # by step of the check, as it reported
    announced: events.BestImproved | None = None  # the last best score that was announced
    _surroundings: str = ""
    _journal: Journal | None = None  # where the texts of scripts are, which would fill the memory

    @classmethod
    def of(cls, recorded: Iterable[AnyEvent], direction: MetricDirection = MetricDirection.maximize) -> "Ledger":
        """The ledger that these events make."""
        ledger = cls(direction)
        for event in recorded:
            ledger.hear(event)
        return ledger

    def follow(self, journal: Journal, direction: MetricDirection, *, fresh: bool = False) -> None:
        """Take in what a run has done so far, and follow it from now on; `fresh`: without what earlier processes did.

        Such a ledger has what this process has come to: it may not get as far as an earlier one did.
        """
        if self._journal is None:
            self.direction, self._journal = direction, journal
            for event in () if fresh else journal.events:
                self.hear(event)
            journal.subscribe(self.hear)

    # --- from events ---

    def hear(self, event: AnyEvent) -> None:
        """Take in an event."""
        match event:
            case events.RunStarted():
                self.direction = event.task.metric_direction
            case ScriptFinished():
                self._hear_script(event)
            case events.AgentFinished():
                self._calls[event.step] = event.seconds
            case events.LeakageChecked():
                self._hear_check(event)
            case events.DebugAttempted():
                self.repaired[event.step] = event
                self._came_from(event.digest, event.parent)
            case events.SubmissionKept():
                self.kept = event
            case events.PhaseStarted() if event.path is not None:
                self._starts[event.step] = event.digest
            case events.AblationFinished():
                self.studies[event.step] = event
            case events.BlockChosen():
                self.blocks[event.step] = event
            case events.ModelsRetrieved():
                self.retrieved = event
            case events.BestImproved():
                self.announced = event
            case events.AttemptEvent():
                self._events[event.step] = event
                self._by_digest = None

    def _hear_script(self, event: ScriptFinished) -> None:
        key = event.step, event.digest, event.at
        if key in self.runs:
            return
        run = self.runs[key] = ScriptRun.of(event)
        if event.purpose == "solution":
            self._surroundings = event.surroundings
        if event.purpose in ("solution", "sample"):
            self._texts[run.script_id] = event.script if self._journal is None else (event.step, event.digest)

    def _hear_check(self, event: events.LeakageChecked) -> None:
        states: dict[str, LeakState] = {event.digest: "clean" if event.answered else "unanswered"}
        states |= dict.fromkeys(event.leaking, "leaking")
        if event.fixed_digest != event.digest:
            states[event.fixed_digest] = "clean"
        for digest in filter(None, states):
            self._checks.setdefault(digest, {})[event.step] = states[digest]
        if event.found:
            self.leaks_found[event.step] = event
        self._came_from(event.fixed_digest, event.digest)

    def _came_from(self, digest: str, origin: str) -> None:
        """A script was made from another by a repair or a correction."""
        if digest and digest != origin:
            self._origins.setdefault(digest, origin)

    # --- leaks ---

    def check_state(self, digest: str, place: str = "") -> LeakState | None:
        """What the checks of a script have found, None where there was none; at a `place`, those that it may rest on.

        It leaks where one found a leak and no later one that it is clean: checks that are made side by side do not
        overrule each other, whichever comes last. Else the last one counts.
        """
        checks, anywhere = self._checks.get(digest, {}), not phase_of(place)
        known = [(step, state) for step, state in checks.items() if anywhere or may_follow(place, step)]
        found = [(step, state) for step, state in known if state != "unanswered"]
        overruled = {old for (old, _), (new, _) in combinations(found, 2) if not phase_of(old) or may_follow(new, old)}
        leaking = any(state == "leaking" and step not in overruled for step, state in found)
        return "leaking" if leaking else next((state for _, state in reversed(known)), None)

    def leaks(self, digest: str, place: str = "") -> bool:
        """Is that `leaking`?"""
        return self.ever_leaked(digest) and self.check_state(digest, place) == "leaking"

    def ever_leaked(self, digest: str) -> bool:
        """Has any check found a leak in it?"""
        return "leaking" in self._checks.get(digest, {}).values()

    @property
    def leaking(self) -> set[str]:
        """The digests of the scripts that leak."""
        return {digest for digest in self._checks if self.leaks(digest)}

    # --- scripts ---

    def text(self, digest: str) -> str:
        """A solution script by its digest; empty when none such has run."""
        known = self._texts.get(digest, "")
        if isinstance(known, str) or self._journal is None:
            return str(known)
        found = self._journal.find(ScriptFinished, *known)
        return "" if found is None else found.script

    def solutions(self, place: str = "", *, clean: bool = False) -> list[ScriptRun]:
        """The runs below `place` whose scores count here and now; leaking ones where all leak, or none: `clean`."""
        found = [run for run in self.ran(place) if run.surroundings == self._surroundings and not run.result.is_error]
        return [run for run in found if not self.leaks(run.script_id)] or ([] if clean else found)

    def ran(self, place: str = "", *, studies: bool = False) -> list[ScriptRun]:
        """The runs of solutions below `place`, whatever came of them; or those of studies and samples."""
        here = (run for run in self.runs.values() if run.step.startswith(place))
        return [run for run in here if (run.purpose != "solution") == studies]

    def scored(self, surroundings: str | None = None) -> list[ScriptRun]:
        """The solutions whose answers were scored in these surroundings: scores on others are not comparable."""
        here = self._surroundings if surroundings is None else surroundings
        found = (run for run in self.ran() if run.surroundings == here)
        return [run for run in found if run.result.answers and not run.result.is_error]

    def answered(self, surroundings: str | None = None) -> list[ScriptRun]:
        """`scored`, with the answers on further views, too, where a script ran on them later.

        `scored` keeps the views of the search: they fix the rows that scripts are compared on.
        """
        found, most = self.scored(surroundings), dict[tuple[str, str], list[str]]()
        for run in (*found, *(run for run in self.ran(studies=True) if run.purpose == "views")):
            key, answers = (run.script_id, run.surroundings), run.result.answers
            most[key] = max(most.get(key, []), [] if run.result.is_error else answers, key=len)
        return [run.with_result(answers=most[run.script_id, run.surroundings]) for run in found]

    def bests(self, place: str = "") -> list[ScriptRun]:
        """The runs whose scores were the best when they came, of scripts that do not leak."""
        found: list[ScriptRun] = []
        for run in self.solutions(place, clean=True):
            before = found[-1].score if found else None
            if run.score is not None and (before is None or is_improvement(run.score, before, self.direction)):
                found.append(run)
        return found

    def best(self, place: str = "") -> ScriptRun | None:
        """The run with the best score; the first one on ties."""
        return next(reversed(self.bests(place)), None)

    def latest_run(self, digest: str, place: str = "") -> ScriptRun | None:
        """The last run of a script, if possible at steps below `place`."""
        runs = [run for run in self.runs.values() if run.script_id == digest]
        here = [run for run in runs if place and run.step.startswith(f"{place}/")]
        return next(reversed(here or runs), None)

    def took(self, script: str) -> float:
        """The longest that a script takes for a score, with an empty `./cache`; 0 where it has none."""
        digest = digest_of(script)
        scored = (run for run in self.ran() if run.script_id == digest and run.score is not None)
        return max(map(self.cold_seconds, scored), default=0.0)

    def cold_seconds(self, run: ScriptRun) -> float:
        """How long it may take at most with an empty `./cache`: it may owe its speed to the slowest."""
        cold = [one.seconds for one in self.ran() if one.score is not None and not one.result.warm]
        return max([run.seconds, *cold]) if run.result.warm else run.seconds

    @property
    def call_seconds(self) -> float:
        """How long a call takes, by the median."""
        return statistics.median(self._calls.values()) if self._calls else 0.0

    def seconds(self, label: str, place: str = "", *, cold: bool = False) -> float | None:
        """How long the best solution of a path takes, what it began with included; of `main`, the best of no path.

        With `place`, as far as it ran there: a fork knows what ran later in the run that it came from. Final scripts
        begin `cold`, without work that others left.
        """
        runs = [run for run in self.solutions() if not run.step.startswith("phase2/")]
        best = self._best_that_ran([run for run in runs if run.step.startswith(place)])
        if label != "main":
            start = self._starts.get(f"phase2/{label}", "")
            begun = self._best_that_ran([run for run in self.ran() if run.script_id == start])
            best = self._best_that_ran([*(begun or best), *self.solutions(f"phase2/{label}/")])
        return (self.cold_seconds(best[0]) if cold else best[0].seconds) if best else None

    def _best_that_ran(self, runs: list[ScriptRun]) -> list[ScriptRun]:
        """The best of some runs that really ran, the last one on ties; none, where none did."""
        ran = [run for run in reversed(runs) if run.score is not None and not run.result.cached]
        return best_first(ran, lambda run: run.score, self.direction)[:1]

    def best_seconds(self) -> list[float]:
        """How long the best solution of each path takes, and the best outside of paths, beginning with nothing."""
        labels = {run.step.split("/")[1] for run in self.runs.values() if run.step.startswith("phase2/")}
        known = (self.seconds(label, cold=True) for label in [*sorted(labels), "main"])
        return [seconds for seconds in known if seconds is not None]

    # --- attempts ---

    @property
    def nodes(self) -> list[SearchNode]:
        """Every attempt, in the order in which the run came to them."""
        return self.below("")

    def below(self, place: str) -> list[SearchNode]:
        """Those whose steps begin so."""
        return [self._node(event) for step, event in self._events.items() if step.startswith(place)]

    def analysis(self, path: int | None) -> str:
        """Where the solution of a path errs, as its last study printed it."""
        known = [study.analysis for study in self.studies.values() if study.path == path and study.analysis]
        return known[-1] if known else ""

    def _node(self, event: AnyAttempt) -> SearchNode:
        leak = LEAKS if self.leaks(event.digest, event.step) else FOUND_LATER
        return SearchNode(event, leak if self.leaks(event.digest) else "")

    def node_of(self, digest: str) -> SearchNode | None:
        """The attempt that a script came from: itself, or what it was before repairs and corrections."""
        if self._by_digest is None:
            # by whom it was made first: an attempt may come to the same text again
            self._by_digest = {event.digest: event for event in reversed(self._events.values()) if event.digest}
        seen: set[str] = set()
        while digest and digest not in self._by_digest and digest not in seen:
            seen.add(digest)
            digest = self._origins.get(digest, "")
        found = self._by_digest.get(digest)
        return None if found is None else self._node(found)

    def ancestors(self, *digests: str) -> Iterator[SearchNode]:
        """The attempts that scripts grew out of, themselves first, each once."""
        waiting, seen = [*digests], set[str]()
        while waiting:
            node = self.node_of(waiting.pop(0))
            if node is not None and node.step not in seen:
                seen.add(node.step)
                yield node
                waiting += node.event.parents

    def repairs(self, place: str) -> list[str]:
        """The errors that the debugger was asked about before at this place, in order."""
        return [event.error for step, event in self.repaired.items() if step.rpartition("/")[0] == place]


def best_score(scores: Iterable[float | None], direction: MetricDirection) -> float | None:
    """The best of some scores; None when there is none."""
    return best_of(scores, lambda score: score, direction)
