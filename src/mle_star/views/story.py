"""A run as a story, told by its events alone. Terminal, report, live page and commands all read this one model."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import singledispatchmethod
from typing import Any, TypeVar

from mle_star.basics.phases import ORDER, phase_of
from mle_star.models import (
    Isolation,
    MetricDirection,
    PipelineConfig,
    TaskDescription,
    is_improvement,
    is_improvement_or_equal,
)
from mle_star.run import events
from mle_star.run.ledger import Ledger, ScriptRun, SearchNode
from mle_star.views.facts import AgentCall, Attempt, PathStory, RunClock, StepStory, Totals, Work, path_of
from mle_star.views.headlines import Headline, headline

Beats = Callable[[float, float, MetricDirection], bool]
T = TypeVar("T")
E = TypeVar("E", bound=events.Event)

LAST_EVENTS = 60


class RunStory:
    """What a run has done so far. An event heard again changes nothing; a later one of a kind and step replaces it."""

    def __init__(self) -> None:
        self.started: events.RunStarted | None = None
        self.config = PipelineConfig()
        self.finished: events.RunFinished | None = None
        self.forecast: events.Forecast | None = None
        self.kept: events.SubmissionKept | None = None
        self.holdout: events.HoldOutPrepared | None = None
        self.shortlist: events.ShortlistScored | None = None
        self.examined: events.SolutionExamined | None = None
        self.models: list[str] = []
        self.ledger = Ledger()
        self.phases: dict[str, events.PhaseStarted | events.PhaseFinished] = {}
        self.repairs: dict[str, events.DebugAttempted] = {}
        self.leaks: dict[str, events.LeakageChecked] = {}
        self.calls: dict[tuple[str, str, datetime], AgentCall] = {}
        self.working: dict[str, Work] = {}
        self.warnings: dict[str, events.BudgetWarning] = {}
        self.requests: dict[datetime, events.FinishRequested] = {}
        self.notices: dict[str, events.Notice] = {}
        self.resumed: dict[datetime, events.RunResumed] = {}
        self.clock = RunClock()
        self.news: deque[Headline] = deque(maxlen=LAST_EVENTS)
        self.heard = 0
        self._paths: dict[int, PathStory] = {}
        self._known: dict[str, tuple[int, Any]] = {}

    @classmethod
    def from_events(cls, said: Iterable[events.AnyEvent]) -> RunStory:
        """The story that these events tell."""
        story = cls()
        for event in said:
            story.apply(event)
        return story

    def apply(self, event: events.AnyEvent) -> None:
        """Hear one more event; unknown kinds only move the clock."""
        self.heard += 1
        self.clock.hear(event)
        self.ledger.hear(event)
        self._hear(event)
        news = headline(event)
        if news is not None:
            self.news.append(news)

    @singledispatchmethod
    def _hear(self, event: events.Event) -> None:
        """What an event changes; of a kind that has no method of its own below, nothing."""

    # --- the run ---

    @_hear.register
    def _run_started(self, event: events.RunStarted) -> None:
        self.started = self.started or event
        self.config = event.config

    @_hear.register
    def _run_resumed(self, event: events.RunResumed) -> None:
        self.resumed[event.at] = event
        self.finished = None
        self.working.clear()
        self.config = event.config or self.config
        if self.config is not None and self.config.scoring == "self_reported":
            self.holdout = self.shortlist = self.examined = None

    @_hear.register
    def _run_finished(self, event: events.RunFinished) -> None:
        self.finished = event
        self.working.clear()

    @_hear.register
    def _phase_started(self, event: events.PhaseStarted) -> None:
        self.phases[event.step or event.phase] = event
        if event.path is not None:
            path = self._path(event.path)
            path.outcome, path.model = "", event.model

    @_hear.register
    def _phase_finished(self, event: events.PhaseFinished) -> None:
        step = event.step or event.phase
        self.phases[step] = event
        if event.path is not None:
            path = self._path(event.path)
            path.outcome, path.detail, path.score = event.outcome, event.detail, event.score
        for name in [name for name in self.working if name.startswith(step + "/")]:
            del self.working[name]  # cancelled work never says that it has ended

    # --- calls and scripts ---

    @_hear.register
    def _agent_started(self, event: events.AgentStarted) -> None:
        name = event.agent.value + (f" ({event.variant})" if event.variant else "")
        self.working[event.step] = Work(event.step, name, event.at)

    @_hear.register(events.AgentFinished)
    @_hear.register(events.AgentFailed)
    def _agent_ended(self, event: events.AgentFinished | events.AgentFailed) -> None:
        self.working.pop(event.step, None)
        self.calls[event.step, event.digest, event.at] = AgentCall.of(event)

    @_hear.register
    def _script_started(self, event: events.ScriptStarted) -> None:
        what = "script" if event.purpose == "solution" else f"{event.purpose} script"
        self.working[event.step] = Work(event.step, what, event.at, event.timeout_seconds)

    @_hear.register
    def _script_finished(self, event: events.ScriptFinished) -> None:
        self.working.pop(event.step, None)

    @_hear.register
    def _holdout_prepared(self, event: events.HoldOutPrepared) -> None:
        self.holdout = event

    @_hear.register
    def _shortlist_scored(self, event: events.ShortlistScored) -> None:
        self.shortlist = event

    @_hear.register
    def _solution_examined(self, event: events.SolutionExamined) -> None:
        self.examined = event

    # --- what the phases found ---

    @_hear.register
    def _models_retrieved(self, event: events.ModelsRetrieved) -> None:
        self.models = event.names

    @_hear.register
    def _leakage_checked(self, event: events.LeakageChecked) -> None:
        if event.found:
            self.leaks[event.step] = event

    @_hear.register
    def _debug_attempted(self, event: events.DebugAttempted) -> None:
        self.repairs[event.step] = event

    @_hear.register
    def _ablation_finished(self, event: events.AblationFinished) -> None:
        self._path(event.path).step(event.t).ablation = event

    @_hear.register
    def _block_chosen(self, event: events.BlockChosen) -> None:
        self._path(event.path).step(event.t).block = event

    # --- around them ---

    @_hear.register
    def _submission_kept(self, event: events.SubmissionKept) -> None:
        self.kept = event

    @_hear.register
    def _forecast(self, event: events.Forecast) -> None:
        self.forecast = event

    @_hear.register
    def _budget_warning(self, event: events.BudgetWarning) -> None:
        self.warnings[event.limit] = event

    @_hear.register
    def _finish_requested(self, event: events.FinishRequested) -> None:
        self.requests[event.at] = event

    @_hear.register
    def _notice(self, event: events.Notice) -> None:
        self.notices[f"{event.step} {event.message}"] = event

    # --- what readers ask ---

    @property
    def task(self) -> TaskDescription | None:
        """The task, once the first line was heard."""
        return self.started.task if self.started else None

    @property
    def direction(self) -> MetricDirection:
        """Which way the metric is better."""
        return self.started.task.metric_direction if self.started else MetricDirection.maximize

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
        """The phase that the run is in."""
        begun = [event.phase for event in self.phases.values() if isinstance(event, events.PhaseStarted)]
        return begun[-1] if begun else self.clock.phase

    @property
    def scripts(self) -> dict[tuple[str, str, datetime], ScriptRun]:
        """Every script that ran."""
        return self.ledger.runs

    @property
    def bests(self) -> list[ScriptRun]:
        """The scripts whose scores were the best when they came. Leaking ones only stand in where all leak."""
        return self._once("bests", self.ledger.bests)

    @property
    def best_script(self) -> str:
        """The script with the best score so far."""
        return self.ledger.text(self.bests[-1].script) if self.bests else ""

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
    def leaking(self) -> set[str]:
        """The digests of the scripts that leak."""
        return self._once("leaking", lambda: self.ledger.leaking)

    @property
    def nodes(self) -> list[SearchNode]:
        """Every attempt as the ledger has it."""
        return self._once("nodes", lambda: self.ledger.nodes)

    def _of(self, kind: type[E]) -> list[E]:
        """The attempts of one kind, in the light of the leaks that are known."""
        return [event for event in (node.scored for node in self.nodes) if isinstance(event, kind)]

    @property
    def candidates(self) -> dict[int, events.CandidateEvaluated]:
        """The candidates by number."""
        return {event.index: event for event in self._of(events.CandidateEvaluated)}

    @property
    def merges(self) -> dict[int, events.MergeTried]:
        """The merges by number."""
        return {event.index: event for event in self._of(events.MergeTried)}

    @property
    def data_use(self) -> events.DataUsageChecked | None:
        """The check of data use."""
        return next(iter(self._of(events.DataUsageChecked)), None)

    @property
    def ensembles(self) -> dict[int, events.EnsembleTried]:
        """The rounds by number."""
        return {event.r: event for event in self._of(events.EnsembleTried)}

    @property
    def paths(self) -> dict[int, PathStory]:
        """The refinement paths by number."""
        return self._once("paths", self._with_tries)

    def _with_tries(self) -> dict[int, PathStory]:
        for event in self._of(events.RefinementTried):
            self._path(event.path).step(event.t).tries[event.k] = event
        return self._paths

    @property
    def chosen_candidate(self) -> events.CandidateEvaluated | None:
        """The candidate that the method went on with: the best as it was scored, the first one on ties.

        One that was dropped for a leak stands in where all were.
        """
        nodes = [node for node in self.nodes if node.kind == "candidate"]
        chosen = self._best_of([node for node in nodes if node.leak != events.LEAKS] or nodes, is_improvement)
        return None if chosen is None else self.candidates[chosen.event.index]  # type: ignore[union-attr]

    @property
    def data_worked_in(self) -> bool:
        """Did the method go on with what the check of data use had changed?"""
        return any(node.kind == "data" and node.accepted for node in self.nodes)

    @property
    def best_ensemble(self) -> events.EnsembleTried | None:
        """The round that Phase 3 hands on: the one with the best score, the last one on ties."""
        nodes = [node for node in self.nodes if node.kind == "ensemble" and node.leak != events.LEAKS]
        best = self._best_of(nodes, is_improvement_or_equal)
        return None if best is None else self.ensembles[best.event.r]  # type: ignore[union-attr]

    def _best_of(
        self, nodes: list[SearchNode], beats: Callable[[float, float, MetricDirection], bool]
    ) -> SearchNode | None:
        """The best by the scores as they were scored; a later phase may have found a leak since then."""
        best: SearchNode | None = None
        order = sorted(nodes, key=lambda node: getattr(node.event, "index", getattr(node.event, "r", 0)))
        for node in order:
            score = node.event.score
            if score is not None and (best is None or beats(score, best.event.score or 0.0, self.direction)):
                best = node
        return best

    @property
    def final_script(self) -> str:
        """The script of the result, or the best so far."""
        if self.finished is not None and self.finished.result is not None:
            return self.finished.result.final_solution.content
        return self.best_script

    @property
    def totals(self) -> Totals:
        """Sums over the whole run."""
        return self._once("totals", lambda: self.totals_by(lambda step: "all").get("all", Totals()))

    def totals_by(self, group: Callable[[str], str]) -> dict[str, Totals]:
        """Sums by whatever `group` makes of a step."""
        sums: dict[str, Totals] = {}
        for call in self.calls.values():
            sums.setdefault(group(call.step), Totals()).add_call(call)
        for run in self.scripts.values():
            sums.setdefault(group(run.step), Totals()).add_script(run)
        return sums

    def totals_by_phase(self) -> dict[str, Totals]:
        """Sums by phase, in the order of the method."""
        sums = self.totals_by(lambda step: phase_of(step) or "other")
        return {phase: sums[phase] for phase in (*ORDER, "other") if phase in sums}

    def totals_by_agent(self) -> dict[str, Totals]:
        """Sums of the calls by agent, the dearest first, then the busiest."""
        sums: dict[str, Totals] = {}
        for call in self.calls.values():
            sums.setdefault(call.agent, Totals()).add_call(call)
        return dict(sorted(sums.items(), key=lambda item: (-item[1].cost_usd, -item[1].call_seconds)))

    @property
    def isolations(self) -> Counter[Isolation]:
        """What really confined the scripts, and how many."""
        return Counter(run.result.isolation for run in self.scripts.values() if not run.result.cached)

    @property
    def attempts(self) -> list[Attempt]:
        """Every script that was scored by its score, in the order in which that became known."""
        return self._once("attempts", self._attempts)

    def _attempts(self) -> list[Attempt]:
        chosen = self.chosen_candidate
        found = [
            Attempt(
                "candidate",
                one.step,
                f"candidate {one.index}: {one.model_name}",
                one.score,
                chosen is not None and one.index == chosen.index,
                one.at,
                note=one.error,
            )
            for one in self.candidates.values()
        ]
        found += [
            Attempt(
                "merge",
                one.step,
                f"merge {one.index}: {one.reference_model}",
                one.score,
                one.accepted,
                one.at,
                note=one.reason,
            )
            for one in self.merges.values()
        ]
        if self.data_use is not None and self.data_use.changed:
            use = self.data_use
            found.append(Attempt("data", use.step, "all data worked in", use.score, self.data_worked_in, use.at))
        found += [
            Attempt(
                "refinement",
                one.step,
                f"path {one.path}, step {one.t}, attempt {one.k}",
                one.score,
                one.accepted,
                one.at,
                path=one.path,
                note=one.plan,
            )
            for one in self.refinements
        ]
        found += [
            Attempt("ensemble", one.step, f"ensemble round {one.r}", one.score, one.best, one.at, note=one.plan)
            for one in self.ensembles.values()
        ]
        return sorted(found, key=lambda attempt: attempt.at)

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

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """A value that holds until the next event: a screen asks every second, events are rarer."""
        known = self._known.get(name)
        if known is None or known[0] != self.heard:
            known = self._known[name] = (self.heard, make())
        value: T = known[1]
        return value

    def _path(self, index: int) -> PathStory:
        return self._paths.setdefault(index, PathStory(index))
