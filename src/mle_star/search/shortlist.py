"""The final selection: the best of the shortlist, with its score on rows that the search never used."""

import asyncio
import logging
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mle_star import models
from mle_star.execution.scoring import blend_answers, holdout_of, read_predictions, scored_here
from mle_star.holdout.answers import Answers, Ungradable, write_answers
from mle_star.holdout.holdout import HoldOut, blend_script, blended, find_weights
from mle_star.holdout.intervals import shifted
from mle_star.method.scores import best_first, best_of
from mle_star.models.enums import kind_of_script
from mle_star.models.texts import digest_of
from mle_star.run.context import RunContext, current_run, scope
from mle_star.run.events import ShortlistScored, SolutionExamined
from mle_star.run.timing import RERUN
from mle_star.safety import check_and_fix_leakage, checks_later
from mle_star.search.probes import within

logger = logging.getLogger(__name__)

BLEND = "blend"
MOST_MEMBERS = 12
MOST_SHORTLISTED = 12
FEWEST_COMPARED = 50  # rows that the search never used; where both have answered fewer, all hidden rows are compared


class Found(NamedTuple):
    """What the phases of the search have come to."""

    phase1: models.Phase1Result
    phase2: list[models.Phase2Result]
    phase3: models.Phase3Result | None


@dataclass(frozen=True)
class Shortlisted:
    """Something that may be submitted, with its expected score. A blend has several scripts with weights.

    `change` is it against what was chosen; `leads` are it against a dummy and against the best model alone, on rows
    that the search never used, as far as these are enough.
    """

    name: str
    scripts: dict[str, float]
    solution: models.SolutionScript
    measure: models.Measure
    members: list[dict[str, Any]]
    """Its scripts by the step that ran them, each with its weight and its score in the search."""
    change: models.ScoreChange | None = None
    leads: tuple[models.ScoreChange | None, models.ScoreChange | None] = (None, None)

    @property
    def origin(self) -> dict[str, Any]:
        """What the lineage of a result says of it."""
        return {"name": self.name, "score": self.measure.score, "members": self.members}


@dataclass(frozen=True)
class Pick:
    """What is submitted, and what it was compared with."""

    chosen: Shortlisted
    others: list[Shortlisted]
    single_model: models.Yardstick | None
    dummy: models.Measure | None

    def stand_ins(self) -> list[models.SolutionScript]:
        """The other scripts, best first, for the case that the chosen one leaks."""
        ranked = sorted(self.others, key=lambda other: -other.change.difference if other.change else math.inf)
        return [other.solution for other in ranked if other.name != BLEND]

    def instead(self, solution: models.SolutionScript) -> "Pick | None":
        """The same with this script chosen; None where it is none of those that were compared."""
        chosen = next((other for other in self.others if other.solution.content == solution.content), None)
        others = [other for other in self.others if other is not chosen]
        return None if chosen is None else replace(self, chosen=chosen, others=others)


async def pick(found: Found, known: Pick | None = None) -> Pick | None:
    """The best of the shortlist by all hidden rows, with its score on those that the search never used.

    Everything is read from the predictions: no script runs again. None where the scores of the search decide. What is
    `known` to be chosen stays so, and is measured by all rows that it has answered since.
    """
    run = current_run()
    holdout = holdout_of(run)
    if holdout is None:
        return None
    try:
        most = MOST_MEMBERS if known else _members_in_time(run)
        selection = await asyncio.to_thread(_Selection, run, holdout, found, most, known)
        while known is None and selection.picked is not None and await _turns_out_leaking(run, selection.picked.chosen):
            selection = await asyncio.to_thread(_Selection, run, holdout, found, most)
    except Exception:
        logger.exception("the shortlist cannot be scored: what was known before decides")
        return known
    with scope("shortlist") as here:
        for event in selection.events:
            here.record(event)
    return selection.picked


async def _turns_out_leaking(run: RunContext, chosen: Shortlisted) -> bool:
    """Does a check find a leak in what is chosen? Where only promising scripts are checked, it may have had none."""
    budget, ledger = run.budget, run.ledger
    if not checks_later() or budget.money_is_gone or budget.spare_seconds <= 0:
        return False
    digests = {script: digest_of(script) for script in chosen.scripts}
    unchecked = {script: one for script, one in digests.items() if ledger.check_state(one) in (None, "unanswered")}
    with within(run, budget.spare_seconds, "shortlist"):
        for script, digest in unchecked.items():
            check = check_and_fix_leakage(models.SolutionScript(content=script, phase=chosen.solution.phase))
            with scope(digest[:8]):  # by what it is: another process may come to it first
                await asyncio.wait_for(check, budget.spare_seconds)
    return any(map(ledger.leaks, unchecked.values()))


def _members_in_time(run: RunContext) -> int:
    """How many scripts, even the slowest, can learn from all rows in what is left; one may try.

    A fitted model needs all members of a blend. Where there is a test, a member may answer as in the search.
    """
    if run.shared.has_test or run.config.letter:
        return MOST_MEMBERS
    took = sorted((one.seconds for one in scored_here(run)), reverse=True)[:MOST_MEMBERS]
    left = (run.budget.time_limit - run.budget.elapsed()) / RERUN
    with scope("shortlist") as here:
        while len(took) > 1 and not here.decide("blend-fits", lambda: sum(took) <= left, reopen=True):
            took.pop()
    return len(took)


class _Selection:
    """One final selection among what the search found: what came last into question, compared on hidden rows.

    `picked` is None where nothing of it can be scored; `events` are what the journal says of the comparison.
    """

    def __init__(
        self, run: RunContext, holdout: HoldOut, found: Found, most: int = MOST_MEMBERS, known: Pick | None = None
    ) -> None:
        self._most, self._known = most, None if known is None else known.chosen
        self.picked: Pick | None = None
        self.events: list[ShortlistScored | SolutionExamined] = []
        self._run, self._direction = run, holdout.scorer.metric.direction
        self._predictions = read_predictions(run, holdout)
        self._scores = {run.ledger.text(one.script_id): one.score for one in scored_here(run)}
        leaked = run.ledger.ever_leaked
        self._clean = {one: answers for one, answers in self._predictions.items() if not leaked(digest_of(one))}
        used = max((len(one.result.answers) for one in scored_here(run)), default=None)
        firsts = (self._clean.get(one.content) for one in found.phase1.candidate_solutions)
        self._holdout = replace(holdout, used=used, firsts=tuple(filter(None, firsts)))
        solutions = run.ledger.ran()
        self._steps = {run.ledger.text(one.script_id): one for one in solutions}
        self._latest = {one.step: one.script_id for one in solutions}
        with holdout.scorer.comparing():
            if entries := self._entries(found):
                self._select(entries, found.phase1)

    def _name(self, script: str) -> str:
        """What a script of the search is called: its step; what ran there before it was done again, with a digest."""
        one = self._steps[script]
        return one.step if self._latest[one.step] == one.script_id else f"{one.step} ({one.script_id[:8]})"

    def _entries(self, found: Found) -> dict[str, models.SolutionScript]:
        """The initial solution, the best of each path, every ensemble, and the best of what was left behind."""
        made = [("initial solution", found.phase1.initial_solution)]
        made += [(f"path {number}", result.best_solution) for number, result in enumerate(found.phase2)]
        rounds = [] if found.phase3 is None else found.phase3.attempts
        made += [(f"ensemble {number}", one.solution) for number, one in enumerate(rounds) if one.score is not None]
        entries: dict[str, models.SolutionScript] = {}
        for name, solution in made:
            if solution.content in self._predictions and solution.content not in {s.content for s in entries.values()}:
                entries[name] = solution
        clean = {name: s for name, s in entries.items() if s.content in self._clean}
        known = {solution.content for solution in clean.values()}
        scores = {script: self._scores[script] for script in self._clean if script not in known}
        for script in best_first(scores, scores.__getitem__, self._direction)[: max(MOST_SHORTLISTED - len(known), 0)]:
            name = self._name(script)
            clean[name] = models.SolutionScript(content=script, phase=kind_of_script(name))
        return clean or entries

    def _select(self, entries: dict[str, models.SolutionScript], phase1: models.Phase1Result) -> None:
        """Pick the best of these."""
        from mle_star.holdout.explain import confusion

        holdout = self._holdout
        field = Field(holdout, {name: self._predictions[s.content] for name, s in entries.items()})
        scripts = {name: {solution.content: 1.0} for name, solution in entries.items()}
        fixed = self._known is not None and self._known.name != BLEND  # then no blend takes part any more
        if weights := None if fixed else self._blend(field):
            scripts[BLEND], entries = weights, {**entries, BLEND: _blend_solution(holdout, weights)}
        new = holdout.select_rows  # that the search never used
        chosen = field.choose(new) if self._known is None else self._known.name
        measures = {name: holdout.measure(answers, new, ahead=True) for name, answers in field.answers.items()}
        measures[chosen] = field.expected(chosen, measures[chosen])
        single, shortlist, table = self._single_model(phase1), dict[str, Shortlisted](), list[dict[str, Any]]()
        dummy = Answers({}, ())
        with suppress(Ungradable):
            dummy = Answers(dict.fromkeys(new, holdout.scorer.usual_answer()), ())
        for name, solution in entries.items():
            known, measure = solution.model_copy(update={"score": measures[name].score}), measures[name]
            change, lead = field.against(name, chosen), None
            ahead = holdout.compare(field.answers[name], dummy, new)
            if single is not None and solution.content != single[0].content:
                theirs = self._clean[single[0].content]
                both = [row for row in new if row in theirs.hidden and row in field.answers[name].hidden]
                searched = [] if name == BLEND else holdout.hidden_rows  # by which the weights of a blend were found
                lead = holdout.compare(field.answers[name], theirs, new if len(both) >= FEWEST_COMPARED else searched)
            members = self._members(scripts[name])
            shortlist[name] = Shortlisted(name, scripts[name], known, measure, members, change, (ahead, lead))
            compared = holdout.figure(field.answers[name], holdout.hidden_rows)
            more = {"compared": compared, "change": change and change.model_dump()}
            table.append({"name": name, **measure.model_dump(), "members": len(scripts[name]), **more})
        best = shortlist.pop(chosen)
        alone = None if single is None else _single(*single)
        self.picked = Pick(best, list(shortlist.values()), alone, holdout.baseline(field.answers[chosen]))
        self.events.append(ShortlistScored(shortlist=table, chosen=chosen))
        examined = confusion(holdout.scorer, field.answers[chosen])
        digest, events = digest_of(best.solution.content), self._run.journal.events
        seen = [one.importance for one in events if isinstance(one, SolutionExamined) and one.digest == digest]
        examined["importance"] = next(filter(None, seen), [])
        self.events.append(SolutionExamined(digest=digest, **examined))

    def _blend(self, field: "Field") -> dict[str, float] | None:
        """The weights of the blend, by the rows of the search that all answer; None where one alone is as good.

        It then takes part in the comparison.
        """
        holdout, known = self._holdout, self._clean
        if holdout.scorer.metric.needs not in ("numbers", "probabilities") or len(known) < 2:
            return None
        try:
            common = set.intersection(*(set(answers.hidden) for answers in known.values()))
            rows = [row for row in holdout.search_rows if row in common]
            scores = {script: holdout.figure(answers, rows) for script, answers in known.items()}
            members = best_first(known, scores.__getitem__, self._direction)[: self._most]
            weights = find_weights(holdout.scorer, {script: known[script] for script in members}, rows)
            weights = self._known.scripts if self._known and self._known.name == BLEND else weights
            if len(weights) < 2:
                return None
            answers = blended(known, weights)
            if holdout.scorer.data.test_rows:
                script = _blend_solution(holdout, weights).content
                write_answers(holdout.scorer.data, answers, blend_answers(self._run, script))
        except (Ungradable, ValueError) as error:
            logger.info("no blend: %s", error)
            return None
        field.answers[BLEND] = answers
        return weights

    def _members(self, weights: dict[str, float]) -> list[dict[str, Any]]:
        found = ((self._name(script), weight, self._steps[script].score) for script, weight in weights.items())
        return [{"step": step, "weight": weight, "score": score} for step, weight, score in found]

    def _single_model(self, phase1: models.Phase1Result) -> tuple[models.SolutionScript, models.Measure] | None:
        """The best of the candidates, chosen by the rows of the search and measured on the others."""
        candidates = [one for one in phase1.candidate_solutions if one.content in self._clean]
        best = best_of(candidates, lambda one: one.score, self._direction)
        if best is None:
            return None
        return best, self._holdout.measure(self._clean[best.content], self._holdout.select_rows, ahead=True)


def _single(candidate: models.SolutionScript, measure: models.Measure) -> models.Yardstick:
    return models.Yardstick(name=candidate.source_model or "the best candidate", measure=measure)


def yardsticks(run: RunContext, phase1: models.Phase1Result, picked: Pick | None) -> dict[str, models.Yardstick | None]:
    """What the result is compared with: a dummy and the best model alone, as `FinalResult` names them."""
    holdout = holdout_of(run)
    if holdout is not None:
        dummy = holdout.baseline() if picked is None else picked.dummy
        ahead, lead = (None, None) if picked is None else picked.chosen.leads
        baseline = None if dummy is None else models.Yardstick(name="dummy", measure=dummy, change=ahead)
        single = None if picked is None else picked.single_model
        single = single and single.model_copy(update={"change": lead})
        return {"baseline": baseline, "single_model": single}
    clean = [one for one in phase1.candidate_solutions if not run.leaks(one.content)]
    best = best_of(clean, lambda one: one.score, run.task.metric_direction)
    known = None if best is None or best.score is None else _single(best, models.Measure(score=best.score))
    return {"baseline": None, "single_model": known}


def known_measure(run: RunContext, solution: models.SolutionScript, score: float | None) -> models.Measure | None:
    """What is known of a solution that no final selection scored: as the search measured it, or as it says itself."""
    digest = digest_of(solution.content)
    known = [one.result.measure for one in reversed(scored_here(run)) if one.script_id == digest]
    return next(filter(None, known), None if score is None else models.Measure(score=score))


@dataclass
class Field:
    """What each shortlisted solution, the blend included, answered, and the comparison between them."""

    holdout: HoldOut
    answers: dict[str, Answers]

    def choose(self, select: list[int]) -> str:
        """The best script by the rows of the search and `select` together; the blend, if it beats that one on `select`.

        Scripts are compared two by two, on the rows that both answer; no estimate takes part.
        The blend's weights were found on the rows of the search: there it has an advantage that means nothing.
        """
        rows = [*self.holdout.search_rows, *select]
        scripts = [name for name in self.answers if name != BLEND]
        best, *others = sorted(scripts, key=lambda name: -len(self.answers[name].hidden))
        for name in others:
            best = name if self._beats(name, best, rows) else best
        return BLEND if BLEND in self.answers and self._beats(BLEND, best, select) else best

    def _beats(self, new: str, old: str, rows: list[int]) -> bool:
        """Is one better than another on the rows that both answer? One that answers to fewer must surely be."""
        first, second = self.answers[new], self.answers[old]
        both = [row for row in rows if row in first.hidden and row in second.hidden]
        if not both:
            return False
        ahead, behind = (self.holdout.figure(answers, both) for answers in (first, second))
        if not models.is_improvement(ahead, behind, self.holdout.scorer.metric.direction):
            return False
        if len(first.hidden) >= len(second.hidden):
            return True
        change = self.holdout.compare(first, second, both)
        return change is not None and change.wins >= models.SURE

    def expected(self, chosen: str, measure: models.Measure) -> models.Measure:
        """The measure without what the choice itself adds: each half of the rows scores what the other half chooses."""
        gains, metric = [0.0], self.holdout.scorer.metric
        for part, other in self.holdout.select_halves():
            with suppress(Ungradable):  # one class only
                change = self.holdout.compare(self.answers[self.choose(part)], self.answers[chosen], other)
                gains.append(0.0 if change is None else change.difference)
        shift = sum(gains) / max(len(gains) - 1, 1) * (1 if metric.higher_is_better else -1)
        if not shift or measure.low is None or measure.high is None:
            return measure
        score, low, high = shifted(metric, measure.score, measure.low, measure.high, shift)
        return measure.model_copy(update={"score": score, "low": low, "high": high})

    def against(self, name: str, chosen: str) -> models.ScoreChange | None:
        """One solution against the chosen one, on the rows by which the choice between them was made."""
        rows = self.holdout.select_rows if BLEND in (name, chosen) else self.holdout.hidden_rows
        return None if name == chosen else self.holdout.compare(self.answers[name], self.answers[chosen], rows)


def _blend_solution(holdout: HoldOut, weights: dict[str, float]) -> models.SolutionScript:
    script = blend_script(list(weights.values()), holdout.scorer)
    return models.SolutionScript(content=script, phase=models.SolutionPhase.ensemble)
