"""The final selection: the best of the shortlist, with its score on rows that the search never used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from mle_star.basics.phases import kind_of_script
from mle_star.basics.texts import digest_of
from mle_star.errors import BudgetExceeded
from mle_star.execution.predictions import answers_of, blend_answers, incumbent, read_predictions, scored_here
from mle_star.holdout.answers import Answers, Ungradable, write_answers
from mle_star.holdout.blend import blended, can_blend, find_weights
from mle_star.holdout.holdout import HoldOut
from mle_star.holdout.intervals import moved, shifted
from mle_star.holdout.portrait import portrait
from mle_star.models import (
    Measure,
    MetricDirection,
    Phase1Result,
    Phase2Result,
    Phase3Result,
    SolutionPhase,
    SolutionScript,
    Yardstick,
)
from mle_star.run.context import RunContext, current_run, scope
from mle_star.run.events import ShortlistScored, SolutionExamined
from mle_star.safety import check_and_fix_leakage, checks_later
from mle_star.search.blend_script import blend_script

logger = logging.getLogger(__name__)

BLEND = "blend"
MOST_MEMBERS = 12
MOST_FINALISTS = 12
SURE = 0.95
"""What answers to fewer rows is chosen only where it wins in so many draws of the rows that both answer."""


class Found(NamedTuple):
    """What the phases of the search have come to."""

    phase1: Phase1Result
    phase2: list[Phase2Result]
    phase3: Phase3Result | None


@dataclass(frozen=True)
class Shortlisted:
    """Something that may be submitted. A blend has several scripts with weights."""

    name: str
    scripts: dict[str, float]
    solution: SolutionScript
    measure: Measure
    members: list[dict[str, Any]] = field(default_factory=list)
    """Its scripts by the step that ran them, each with its weight and its score in the search."""


@dataclass(frozen=True)
class Pick:
    """What is submitted, and its expected score."""

    chosen: Shortlisted
    others: list[Shortlisted] = field(default_factory=list)
    single_model: Yardstick | None = None

    @property
    def solution(self) -> SolutionScript:
        """What is submitted, with its expected score."""
        return self.chosen.solution.model_copy(update={"score": self.chosen.measure.score})

    @property
    def origin(self) -> dict[str, Any]:
        """What the lineage of a result says of it."""
        return {"name": self.chosen.name, "score": self.chosen.measure.score, "members": self.chosen.members}

    @property
    def is_blend(self) -> bool:
        """Do several scripts answer together?"""
        return self.chosen.name == BLEND

    def stand_ins(self, direction: MetricDirection) -> list[SolutionScript]:
        """The other scripts, best first, for the case that the chosen one leaks."""
        sign = -1 if direction is MetricDirection.maximize else 1
        ranked = sorted(self.others, key=lambda other: (other.measure.estimated, sign * other.measure.score))
        return [replace(self, chosen=other).solution for other in ranked if other.name != BLEND]

    def instead(self, solution: SolutionScript) -> Pick | None:
        """The same with this script chosen; None where it is none of those that were compared."""
        chosen = next((other for other in self.others if other.solution.content == solution.content), None)
        others = [other for other in self.others if other is not chosen]
        return None if chosen is None else replace(self, chosen=chosen, others=others)


async def pick(found: Found) -> Pick | None:
    """The best of the shortlist by all hidden rows, with what it is worth on those that the search never used.

    Everything is read from the predictions: no script runs again. None where the scores of the search decide.
    """
    run = current_run()
    if run.shared.holdout is None:
        return None
    try:
        scored = await asyncio.to_thread(_scorer, run, run.shared.holdout, found)
        while scored is not None and await _turns_out_leaking(run, scored[0].chosen):
            scored = await asyncio.to_thread(_scorer, run, run.shared.holdout, found)
        if scored is not None:
            picked, *events = scored
            with scope("shortlist") as here:
                for event in events:
                    if event is not None:
                        here.record(event)
            return picked
    except Exception:
        logger.exception("the shortlist cannot be scored: the scores of the search decide")
    return None


async def _turns_out_leaking(run: RunContext, chosen: Shortlisted) -> bool:
    """Does a check find a leak in what is chosen? Where only promising scripts are checked, it may have had none."""
    budget, phase = run.budget, chosen.solution.phase
    if not checks_later(run.config) or budget.money_is_gone or budget.only_finalization_left:
        return False
    ledger = run.ledger
    unchecked = [s for s in chosen.scripts if not ledger.leaks(digest_of(s)) and not ledger.is_checked(digest_of(s))]

    async def check() -> None:
        for script in unchecked:
            with scope("shortlist", digest_of(script)[:8]):  # by what it is: another process may come to it first
                await check_and_fix_leakage(SolutionScript(content=script, phase=phase))

    budget.set_phase_deadline(budget.spare_seconds)
    try:
        await asyncio.wait_for(check(), budget.spare_seconds)
    except (BudgetExceeded, asyncio.TimeoutError) as stop:
        logger.info("not all that is chosen was checked for leakage: %s", str(stop) or "no time is left for it")
    finally:
        budget.set_phase_deadline(None)
    return any(ledger.leaks(digest_of(script)) for script in unchecked)


def _scorer(
    run: RunContext, holdout: HoldOut, found: Found
) -> tuple[Pick, ShortlistScored, SolutionExamined | None] | None:
    predictions, scored = read_predictions(run, holdout), scored_here(run)
    best = incumbent(holdout, [one for one in scored if not run.ledger.ever_leaked(one.script)] or scored)
    reference = None if best is None else answers_of(holdout, run.run_dir, best)
    with holdout.scorer.comparing():
        return _compare(run, holdout, predictions, reference, found)


def _compare(
    run: RunContext, holdout: HoldOut, predictions: dict[str, Answers], reference: Answers | None, search: Found
) -> tuple[Pick, ShortlistScored, SolutionExamined | None] | None:
    clean = {
        script: answers for script, answers in predictions.items() if not run.ledger.ever_leaked(digest_of(script))
    }
    found = {name: s for name, s in _entries(search) if s.content in predictions}
    entries = {name: s for name, s in found.items() if s.content in clean and not s.leaking}
    entries |= _runners_up(run, holdout, clean, reference, {solution.content for solution in entries.values()})
    entries = entries or found
    if not entries:
        return None
    field = Field(holdout, {name: predictions[solution.content] for name, solution in entries.items()}, reference)
    weights = _blend_weights(holdout, clean)
    try:
        field.blend = blended(predictions, weights) if weights else None
        if field.blend is not None and holdout.scorer.data.asked:
            write_answers(
                holdout.scorer.data, field.blend, blend_answers(run, _blend_solution(holdout, weights).content)
            )
    except Ungradable as error:
        logger.info("no blend: %s", error)
        weights, field.blend = {}, None
    chosen = field.choose(holdout.select_rows)
    measures = field.measures()
    measures[chosen] = field.expected(chosen, measures[chosen])
    table = [
        {
            "name": name,
            **m.model_dump(),
            "members": len(weights) if name == BLEND else 1,
            "compared": holdout.figure(field.everyone[name], holdout.hidden_rows, reference),
        }
        for name, m in measures.items()
    ]
    blend = {BLEND: _blend_solution(holdout, weights)} if weights else {}
    scripts = {name: {s.content: 1.0} for name, s in entries.items()} | {BLEND: weights}
    shortlist = {
        name: Shortlisted(name, scripts[name], s, measures[name], _members(run, scripts[name]))
        for name, s in {**entries, **blend}.items()
    }
    picked = Pick(
        shortlist.pop(chosen), list(shortlist.values()), _single_model(holdout, search.phase1, clean, reference)
    )
    digest = digest_of(picked.chosen.solution.content)
    return picked, ShortlistScored(shortlist=table, chosen=chosen), _examined(holdout, field.everyone[chosen], digest)


def _runners_up(
    run: RunContext, holdout: HoldOut, predictions: dict[str, Answers], reference: Answers | None, known: set[str]
) -> dict[str, SolutionScript]:
    """The best scripts of the search that it did not go on with: what was ahead of them by little may be worse."""
    names = _names_by_step(run)
    sign = 1 if holdout.scorer.metric.higher_is_better else -1
    scores = {
        script: holdout.figure(answers, holdout.search_rows, reference)
        for script, answers in predictions.items()
        if script not in known
    }
    best = sorted(scores, key=lambda script: -sign * scores[script])[: max(MOST_FINALISTS - len(known), 0)]
    return {
        names[script]: SolutionScript(content=script, phase=kind_of_script(names[script]), score=scores[script])
        for script in best
    }


def _names_by_step(run: RunContext) -> dict[str, str]:
    """What each script of the search is called: its step; what ran there before it was done anew, with a digest."""
    steps, latest = dict[str, str](), dict[str, str]()
    for one in run.ledger.runs.values():
        if one.purpose == "solution":
            script = run.ledger.text(one.script)
            steps[script], latest[one.step] = one.step, script
    return {
        script: step if latest[step] == script else f"{step} ({digest_of(script)[:8]})"
        for script, step in steps.items()
    }


def _members(run: RunContext, weights: dict[str, float]) -> list[dict[str, Any]]:
    names = _names_by_step(run)
    scores = {run.ledger.text(one.script): one.score for one in run.ledger.runs.values() if one.purpose == "solution"}
    return [{"step": names[script], "weight": weight, "score": scores[script]} for script, weight in weights.items()]


def _single_model(
    holdout: HoldOut, phase1: Phase1Result, predictions: dict[str, Answers], reference: Answers | None
) -> Yardstick | None:
    """The best of the candidates, chosen by the rows of the search and measured on the others."""
    sign = 1 if holdout.scorer.metric.higher_is_better else -1
    found = [
        script for script in phase1.candidate_solutions if script.content in predictions and script.score is not None
    ]
    if not found:
        return None
    best = max(found, key=lambda script: sign * (script.score or 0.0))
    measure = holdout.measure(predictions[best.content], holdout.select_rows, reference=reference, ahead=True)
    return Yardstick(name=best.source_model or "the best candidate", measure=measure)


def yardsticks(run: RunContext, phase1: Phase1Result, picked: Pick | None) -> dict[str, Yardstick | None]:
    """What the result is compared with: a dummy and the best model alone, as `FinalResult` names them."""
    holdout = run.shared.holdout
    dummy = None if holdout is None else holdout.baseline()
    single = None if picked is None else picked.single_model
    if holdout is None:
        scored = [script for script in phase1.candidate_solutions if script.score is not None and not script.leaking]
        sign = 1 if run.task.metric_direction is MetricDirection.maximize else -1
        best = max(scored, key=lambda script: sign * (script.score or 0.0), default=None)
        if best is not None and best.score is not None:
            single = Yardstick(name=best.source_model or "the best candidate", measure=Measure(score=best.score))
    return {"baseline": None if dummy is None else Yardstick(name="dummy", measure=dummy), "single_model": single}


def said_by(run: RunContext, solution: SolutionScript, score: float | None) -> Measure | None:
    """What is known of a solution that no final selection scored: as the search measured it, or as it says itself."""
    for event in reversed(list(scored_here(run))):
        if event.script == digest_of(solution.content) and event.result.measure is not None:
            return event.result.measure
    return None if score is None else Measure(score=score)


@dataclass
class Field:
    """What each shortlisted solution said, and the comparison between them."""

    holdout: HoldOut
    singles: dict[str, Answers]
    reference: Answers | None
    blend: Answers | None = None

    def choose(self, select: list[int]) -> str:
        """The best script by the rows of the search and `select` together; the blend, if it beats that one on `select`.

        Scripts are compared two by two, on the rows that both answer; no estimate takes part.
        The blend's weights were found on the rows of the search: there it has an advantage that means nothing.
        """
        rows = sorted({*self.holdout.search_rows, *select})
        best = ""
        for name in sorted(self.singles, key=lambda name: -len(self.singles[name].hidden)):
            if not best or self._beats(name, best, rows):
                best = name
        return BLEND if self.blend is not None and self._beats(BLEND, best, select) else best

    def _beats(self, new: str, old: str, rows: list[int]) -> bool:
        """Is one better than another on the rows that both answer? One that answers to fewer must surely be."""
        first, second = self.everyone[new], self.everyone[old]
        both = [row for row in rows if row in first.hidden and row in second.hidden]
        lead = self._lead(first, second, both) if both else 0.0
        fewer = len(first.hidden) < len(second.hidden)
        return lead > 0 and (not fewer or self.holdout.scorer.better(first.hidden, second.hidden, both) >= SURE)

    def _lead(self, first: Answers, second: Answers, rows: list[int]) -> float:
        sign = 1 if self.holdout.scorer.metric.higher_is_better else -1
        return sign * (self.holdout.figure(first, rows) - self.holdout.figure(second, rows))

    def measures(self) -> dict[str, Measure]:
        """Each solution of the shortlist on rows that the search never used, with an interval for the test."""
        rows, everyone = self.holdout.select_rows, self.everyone
        return {
            name: self.holdout.measure(answers, rows, reference=self.reference, ahead=True)
            for name, answers in everyone.items()
        }

    def expected(self, chosen: str, measure: Measure) -> Measure:
        """The measure without what the choice itself adds: each half of the rows scores what the other half chooses."""
        everyone, shifts = self.everyone, list[float]()
        first, second = self.holdout.select_halves()
        for part, other in ((first, second), (second, first)):
            try:
                there = self.choose(part)
                both = [row for row in other if all(row in everyone[name].hidden for name in (there, chosen))]
                if there != chosen and both:
                    before, after = (self.holdout.figure(everyone[name], both) for name in (chosen, there))
                    shifts.append(moved(self.holdout.scorer.metric, measure.score, before, after))
            except Ungradable:  # one class only
                continue
        shift = sum(shifts) / 2
        if not shift or measure.low is None or measure.high is None:
            return measure
        score, low, high = shifted(self.holdout.scorer.metric, measure.score, measure.low, measure.high, shift)
        return measure.model_copy(update={"score": score, "low": low, "high": high})

    @property
    def everyone(self) -> dict[str, Answers]:
        """All of them by name, the blend included."""
        return self.singles if self.blend is None else {**self.singles, BLEND: self.blend}


def _examined(holdout: HoldOut, answers: Answers, digest: str) -> SolutionExamined | None:
    """What answers look like beside the truth, where a chart can say so."""
    found = portrait(holdout.scorer, answers, sorted(answers.hidden))
    return None if found is None else SolutionExamined(digest=digest, **asdict(found))


def _entries(search: Found) -> Iterable[tuple[str, SolutionScript]]:
    """The initial solution, the best of each path, every ensemble by number; a script that comes twice, once."""
    found = [("initial solution", search.phase1.initial_solution)]
    found += [(f"path {number}", result.best_solution) for number, result in enumerate(search.phase2)]
    if search.phase3 is not None:
        rounds = [(number, one.solution) for number, one in enumerate(search.phase3.attempts) if one.score is not None]
        found += [(f"ensemble {number}", solution) for number, solution in rounds]
    seen: set[str] = set()
    for name, solution in found:
        if solution.content and solution.content not in seen:
            seen.add(solution.content)
            yield name, solution


def _blend_weights(holdout: HoldOut, predictions: dict[str, Answers]) -> dict[str, float]:
    """How the best scripts are blended, by the rows of the search that all answer; empty where one alone is as good."""
    if not can_blend(holdout.scorer) or len(predictions) < 2:
        return {}
    common = set.intersection(*(set(answers.hidden) for answers in predictions.values()))
    rows = [row for row in holdout.search_rows if row in common]
    try:
        sign = -1 if holdout.scorer.metric.higher_is_better else 1
        scores = {script: holdout.figure(answers, rows) for script, answers in predictions.items()}
        members = sorted(predictions, key=lambda script: sign * scores[script])[:MOST_MEMBERS]
        weights = find_weights(holdout.scorer, {script: predictions[script] for script in members}, rows)
    except (Ungradable, ValueError) as error:
        logger.info("no blend: %s", error)
        return {}
    return weights if len(weights) > 1 else {}


def _blend_solution(holdout: HoldOut, weights: dict[str, float]) -> SolutionScript:
    return SolutionScript(content=blend_script(list(weights.values()), holdout.scorer), phase=SolutionPhase.ensemble)
