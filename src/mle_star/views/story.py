"""What a run has done, from its events alone. Terminal, report, live page and commands all read this one model."""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, cast

from mle_star.method.scores import best_of
from mle_star.models import FinalResult, Isolation, Measure, MetricDirection, PipelineConfig, TaskDescription
from mle_star.run import events
from mle_star.run.budget import Spent
from mle_star.run.folder import RunFolder
from mle_star.run.journal import read_journal
from mle_star.run.ledger import Ledger, ScriptRun, SearchNode, best_score
from mle_star.views.facts import LABELS, Call, PathStory, ScoredAttempt, StepStory, Totals, Work, name_of, path_of
from mle_star.views.headlines import Headline, headline

T = TypeVar("T")
E = TypeVar("E", bound=events.Event)
Remark = events.Notice | events.BudgetWarning | events.FinishRequested

LAST_EVENTS = 60
UNSHOWN = {"prompt": "", "text": "", "structured": None}
"""Of calls only the numbers are kept: their texts would fill the memory."""


class RunStory:
    """What a run has done so far. A second equal event changes nothing; a later one of a kind and step replaces it."""

    def __init__(self) -> None:
        self.started: events.RunStarted | None = None
        self.config = PipelineConfig()
        self.finished: events.RunFinished | None = None
        self.forecast: events.Forecast | None = None
        self.forecasts: list[events.Forecast] = []
        """Those of the process that was at work last: what is left out of a plan makes later ones smaller."""
        self.holdout: events.HoldOutPrepared | None = None
        self.shortlist: events.ShortlistScored | None = None
        self.examined: events.SolutionExamined | None = None
        self.ledger = Ledger()
        self.scripts = self.ledger.runs
        """Every script that ran."""
        self.phases: dict[str, events.PhaseStarted | events.PhaseFinished] = {}
        self.calls: dict[tuple[str, str, datetime], Call] = {}
        self.working: dict[str, Work] = {}
        self.notices: dict[tuple[str, str], Remark] = {}
        self.resumed: dict[datetime, events.RunResumed] = {}
        self.spent = Spent()
        """Its time and money, by phase and path."""
        self.news: deque[Headline] = deque(maxlen=LAST_EVENTS)
        self.heard = 0
        self._paths: dict[int, PathStory] = {}
        self._known: dict[str, Any] = {}

    @classmethod
    def from_events(cls, recorded: Iterable[events.AnyEvent]) -> "RunStory":
        """The story of these events."""
        story = cls()
        for event in recorded:
            story.apply(event)
        return story

    @classmethod
    def of(cls, run_dir: Path) -> "RunStory":
        """The story of a run, by its journal."""
        return cls.from_events(read_journal(RunFolder(run_dir).open().journal))

    def apply(self, event: events.AnyEvent) -> None:
        """Hear one more event."""
        self.heard += 1
        self._known.clear()
        self.spent.hear(event)
        self.ledger.hear(event)
        self._hear(event)
        if (news := headline(event)) is not None:
            self.news.append(news)

    def _hear(self, event: events.AnyEvent) -> None:
        """What an event changes here; the ledger takes scripts, attempts, studies, blocks and leaks."""
        match event:
            case events.RunStarted():
                self.started, self.config = self.started or event, event.config
            case events.RunResumed():
                self.resumed[event.at] = event
                self.config = event.config or self.config
                self._end(None)
                self.forecasts.clear()
                if self.config.scoring == "self_reported":
                    self.holdout = self.shortlist = self.examined = None
            case events.RunFinished():
                self._end(event)
            case events.HoldOutPrepared():
                self.holdout = event
            case events.ShortlistScored():
                self.shortlist = event
            case events.SolutionExamined():
                self.examined = event
            case events.Forecast():
                self.forecast = event
                self.forecasts.append(event)
            case events.PhaseStarted() | events.PhaseFinished():
                self._hear_phase(event)
            case events.AgentStarted():
                name = name_of(event.agent) + (f" ({event.variant})" if event.variant else "")
                self.working[event.step] = Work(event.step, name, event.at)
            case events.AgentFinished() | events.AgentFailed():
                self.working.pop(event.step, None)
                self.calls[event.step, event.digest, event.at] = event.model_copy(update=UNSHOWN)
            case events.ScriptStarted():
                what = "script" if event.purpose == "solution" else f"{event.purpose} script"
                self.working[event.step] = Work(event.step, what, event.at, event.timeout_seconds)
            case events.ScriptFinished():
                self.working.pop(event.step, None)
            case events.Notice():
                self.notices[event.step, event.message] = event
            case events.BudgetWarning():
                self.notices["limit", event.limit] = event
            case events.FinishRequested():
                self.notices["request", str(event.at)] = event

    def _end(self, end: events.RunFinished | None) -> None:
        self.finished = end
        self.working.clear()

    def _hear_phase(self, event: events.PhaseStarted | events.PhaseFinished) -> None:
        self.phases[event.step] = event
        if event.path is not None:
            path = self._path(event.path)
            path.model = getattr(event, "model", path.model)
            path.end = event if isinstance(event, events.PhaseFinished) else None
        if isinstance(event, events.PhaseFinished):  # cancelled work never says that it has ended
            self.working = {name: work for name, work in self.working.items() if not name.startswith(f"{event.step}/")}

    # --- what readers ask ---

    @property
    def task(self) -> TaskDescription | None:
        """The task, once the first event is there."""
        return self.started.task if self.started else None

    @property
    def direction(self) -> MetricDirection:
        """Which way the metric is better."""
        return self.ledger.direction

    @property
    def metric(self) -> str:
        """The metric's name."""
        return self.started.task.evaluation_metric if self.started else "score"

    @property
    def state(self) -> str:
        """`running`, `completed`, `interrupted` or `failed`, as far as the events say."""
        return self.finished.state if self.finished else "running"

    @property
    def phase(self) -> str:
        """The phase that the run is in, or was in last."""
        known = list(self.phases.values())
        running = [event for event in known if isinstance(event, events.PhaseStarted)]
        return (running or known)[-1].phase if known else ""

    @property
    def scored(self) -> list[ScriptRun]:
        """The solutions that have a score."""
        return [run for run in self.ledger.ran() if run.score is not None]

    @property
    def bests(self) -> list[ScriptRun]:
        """The scripts whose scores were the best when they came. Leaking ones only stand in where all leak."""
        return self.once("bests", self.ledger.bests)

    @property
    def best_script(self) -> str:
        """The script with the best score so far."""
        return self.ledger.text(self.bests[-1].script_id) if self.bests else ""

    @property
    def score(self) -> float | None:
        """The score of the result, or the best so far."""
        if self.finished is not None and self.finished.score is not None:
            return self.finished.score
        return self.bests[-1].score if self.bests else None

    @property
    def first_score(self) -> float | None:
        """The first score in order of time, as every list and chart of attempts has it."""
        return next((one.score for one in self.attempts if one.score is not None), None)

    @property
    def nodes(self) -> list[SearchNode]:
        """Every attempt as the ledger has it."""
        return self.once("nodes", lambda: self.ledger.nodes)

    def tried(self, kind: type[E], among: list[SearchNode] | None = None) -> list[E]:
        """The attempts of one kind, or those `among` some, in the light of the leaks that are known."""
        events = (node.scored for node in (self.nodes if among is None else among))
        return [event for event in events if isinstance(event, kind)]

    @property
    def paths(self) -> dict[int, PathStory]:
        """The refinement paths by number."""
        return self.once("paths", self._with_steps)

    def _with_steps(self) -> dict[int, PathStory]:
        """With what the ledger has of their steps now."""
        for step, study in self.ledger.studies.items():
            known = StepStory(study.path, study.t, study, self.ledger.blocks.get(step))
            self._path(study.path).steps[study.t] = known
        for event in self.tried(events.RefinementTried):
            self._path(event.path).step(event.t).tries[event.k] = event
        return self._paths

    @property
    def chosen_candidate(self) -> events.CandidateEvaluated | None:
        """The candidate with which the method continued: the best as it was scored, the first one on ties.

        One that was dropped for a leak stands in where all were.
        """
        nodes = sorted((node for node in self.nodes if node.kind == "candidate"), key=attrgetter("event.index"))
        clean = [node for node in nodes if node.leak != events.LEAKS]
        return self._best_of(clean, events.CandidateEvaluated) or self._best_of(nodes, events.CandidateEvaluated)

    @property
    def best_ensemble(self) -> events.EnsembleTried | None:
        """The round that Phase 3 passes on: the one with the best score, the last one on ties."""
        nodes = [node for node in self.nodes if node.kind == "ensemble" and node.leak != events.LEAKS]
        nodes.sort(key=attrgetter("event.r"), reverse=True)
        return self._best_of(nodes, events.EnsembleTried)

    def _best_of(self, nodes: list[SearchNode], kind: type[E]) -> E | None:
        """The best attempt by the scores as they were scored; a later phase may have found a leak since then."""
        best = best_of(nodes, lambda node: node.event.score, self.direction)
        return best.scored if best is not None and isinstance(best.scored, kind) else None

    @property
    def result(self) -> FinalResult | None:
        """What the run came to, once it has ended with a result."""
        return self.finished.result if self.finished else None

    @property
    def expected(self) -> Measure | None:
        """What the result should score on new rows, where the harness measured it."""
        expected = self.result.expected if self.result else None
        return expected if expected is not None and expected.measured == "harness" else None

    @property
    def final_script(self) -> str:
        """The script of the result, or the best so far."""
        return self.result.final_solution.content if self.result else self.best_script

    @property
    def totals(self) -> Totals:
        """Sums over the whole run."""
        return self.once("totals", lambda: self.totals_by(lambda one: "all").get("all", Totals()))

    def totals_by(self, group: Callable[[Call | ScriptRun], str]) -> dict[str, Totals]:
        """Sums by whatever `group` makes of a call or script; what it calls by no name is left out."""
        sums: dict[str, Totals] = {}
        for one in (*self.calls.values(), *self.scripts.values()):
            if name := group(one):
                sums.setdefault(name, Totals()).add(one)
        return sums

    @property
    def isolations(self) -> Counter[Isolation]:
        """What really confined the scripts, and how many."""
        return Counter(run.result.isolation for run in self.scripts.values() if not run.result.cached)

    @property
    def attempts(self) -> list[ScoredAttempt]:
        """Every script that was scored, in the order in which that became known."""
        return self.once("attempts", self._attempts)

    def _attempts(self) -> list[ScoredAttempt]:
        chosen = self.chosen_candidate
        best = "" if chosen is None else chosen.step
        found = []
        for node in (one for one in self.nodes if one.kind != "data" or one.event_accepted):
            if getattr(node.event, "error", "") == events.OUT_OF_TIME:
                continue  # it was not tried
            event, (label, note, _) = node.scored, LABELS[node.kind]  # in the light of the leaks that are known
            accepted = node.step == best if node.kind == "candidate" else node.accepted
            origins = (self.ledger.node_of(digest) for digest in node.event.parents)
            parents = dict.fromkeys(one.step for one in origins if one is not None and one.step != node.step)
            what = node.kind, node.step, label.format(event), event.score, accepted, event.at
            about = getattr(event, "path", None), getattr(event, note, ""), tuple(parents), event.change
            found.append(ScoredAttempt(*what, *about))
        return sorted(found, key=lambda attempt: attempt.at)

    @property
    def best_so_far(self) -> list[float | None]:
        """After each attempt, the best score of those up to it."""
        return list(accumulate([one.score for one in self.attempts], lambda *two: best_score(two, self.direction)))

    @property
    def refinements(self) -> list[events.RefinementTried]:
        """Every attempt of every path."""
        return [one for step in self.steps for _, one in sorted(step.tries.items())]

    @property
    def steps(self) -> list[StepStory]:
        """Every outer step, path by path."""
        return [step for _, path in sorted(self.paths.items()) for _, step in sorted(path.steps.items())]

    @property
    def progress(self) -> tuple[int, int]:
        """Calls and scripts done, and expected in all."""
        done = len(self.calls) + len(self.scripts)
        planned = self.forecast.calls + self.forecast.scripts if self.forecast else 0
        return done, done if self.finished else max(planned, done + len(self.working))

    def work_of(self, path: int | None) -> list[Work]:
        """Who is at work on a path, or on none of them."""
        return [work for work in self.working.values() if path_of(work.step) == path]

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value that holds until the next event: a screen asks every second, events are rarer."""
        if name not in self._known:
            self._known[name] = make()
        return cast(T, self._known[name])

    def _path(self, index: int) -> PathStory:
        return self._paths.setdefault(index, PathStory(index))
