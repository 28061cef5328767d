"""The final pick: finalists are judged on rows that the search never used, and the best is handed over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from mle_star.errors import BudgetExceeded
from mle_star.evaluation.blend import blended, can_blend, find_weights
from mle_star.evaluation.exam import Exam
from mle_star.evaluation.grading import Answers, Ungradable
from mle_star.evaluation.portrait import portrait
from mle_star.execution.bank import read_bank
from mle_star.execution.recorded import execute_in_run
from mle_star.models import (
    Measure,
    Phase1Result,
    Phase2Result,
    Phase3Result,
    SolutionPhase,
    SolutionScript,
    is_improvement,
)
from mle_star.run.context import RunContext, current_run, scope
from mle_star.run.events import FinalistsJudged, ScriptFinished, SolutionExamined

logger = logging.getLogger(__name__)

BLEND = "blend"
MOST_MEMBERS = 12
MOST_REGRADED = 4
REGRADE_SHARE = 0.3
"""Of the time that is left, so much may go into judging finalists anew."""


@dataclass(frozen=True)
class Finalist:
    """Something that may be handed over. A blend has several scripts with weights."""

    name: str
    scripts: dict[str, float]
    solution: SolutionScript
    measure: Measure


@dataclass(frozen=True)
class Pick:
    """What is handed over, and what it promises."""

    chosen: Finalist
    others: list[Finalist] = field(default_factory=list)

    @property
    def solution(self) -> SolutionScript:
        """What is handed over, with the score that it promises."""
        return self.chosen.solution.model_copy(update={"score": self.chosen.measure.score})

    @property
    def is_blend(self) -> bool:
        """Do several scripts answer together?"""
        return self.chosen.name == BLEND


async def pick(phase1: Phase1Result, phase2: list[Phase2Result], phase3: Phase3Result | None) -> Pick | None:
    """The finalist that is best on rows that the search never used; None where the scores of the search decide."""
    run = current_run()
    if run.shared.exam is None:
        return None
    run.budget.set_phase_deadline(REGRADE_SHARE * max(run.budget.time_limit - run.budget.elapsed(), 0.0))
    try:
        return await _judge(run, run.shared.exam, phase1, phase2, phase3)
    except BudgetExceeded as stop:
        logger.warning("the finalists are not judged anew: %s", stop)
    except Exception:
        logger.exception("the finalists cannot be judged: the scores of the search decide")
    return None


async def _judge(
    run: RunContext, exam: Exam, phase1: Phase1Result, phase2: list[Phase2Result], phase3: Phase3Result | None
) -> Pick | None:
    with scope("finalists"):
        bank = await asyncio.to_thread(read_bank, run, exam)
        entries = {name: s for name, s in _entries(phase1, phase2, phase3) if s.content in bank}
        if exam.has_select_rows:
            finalists = await asyncio.to_thread(_by_select_rows, exam, entries, bank)
        else:
            finalists = await _anew(run, exam, entries, bank)
        if not finalists:
            return None
        best = finalists[0]
        for finalist in finalists[1:]:
            if is_improvement(finalist.measure.score, best.measure.score, run.task.metric_direction):
                best = finalist
        table = [{"name": f.name, **f.measure.model_dump(), "members": len(f.scripts)} for f in finalists]
        run.record(FinalistsJudged(finalists=table, chosen=best.name))
        await asyncio.to_thread(_examine, run, exam, bank, best.scripts)
        logger.info("final pick: %s, %s on %s rows", best.name, best.measure.score, best.measure.rows)
        return Pick(best, [finalist for finalist in finalists if finalist is not best])


def _examine(run: RunContext, exam: Exam, bank: dict[str, Answers], scripts: dict[str, float]) -> None:
    """Record what the answers of these scripts look like beside the truth, where a chart can say so."""
    said = {script: bank[script] for script in scripts if script in bank}
    if said:
        answers = next(iter(said.values())) if len(said) == 1 else blended(said, scripts)
        found = portrait(exam.judge, answers, sorted(answers.hidden))
        if found is not None:
            run.record(SolutionExamined(**asdict(found)))


def _entries(
    phase1: Phase1Result, phase2: list[Phase2Result], phase3: Phase3Result | None
) -> Iterable[tuple[str, SolutionScript]]:
    """The initial solution, the best of each path, every ensemble; a script that comes twice, once."""
    found = [("initial solution", phase1.initial_solution)]
    found += [(f"path {number}", result.best_solution) for number, result in enumerate(phase2, 1)]
    if phase3 is not None:
        rounds = [attempt.solution for attempt in phase3.attempts if attempt.score is not None]
        found += [(f"ensemble {number}", solution) for number, solution in enumerate(rounds, 1)]
    seen: set[str] = set()
    for name, solution in found:
        if solution.content and solution.content not in seen:
            seen.add(solution.content)
            yield name, solution


def _by_select_rows(exam: Exam, entries: dict[str, SolutionScript], bank: dict[str, Answers]) -> list[Finalist]:
    rows = list(exam.split.select)
    found = [
        Finalist(name, {solution.content: 1.0}, solution, exam.measure(bank[solution.content], rows))
        for name, solution in entries.items()
    ]
    blend = _blend(exam, bank, bank, rows)
    return [*found, blend] if blend is not None else found


def _blend(exam: Exam, bank: dict[str, Answers], judged: dict[str, Answers], rows: list[int]) -> Finalist | None:
    """A blend of the best scripts, its weights found on the rows of the search and judged on `rows`."""
    if not can_blend(exam.judge) or len(bank) < 2:
        return None
    try:
        scores = {script: exam.measure(answers).score for script, answers in bank.items()}
        sign = -1 if exam.judge.metric.higher_is_better else 1
        members = sorted(bank, key=lambda script: sign * scores[script])[:MOST_MEMBERS]
        weights = find_weights(exam.judge, {script: bank[script] for script in members}, exam.search_rows)
        if len(weights) < 2:
            return None
        measure = exam.measure(blended({script: judged[script] for script in weights}, weights), rows)
    except (Ungradable, ValueError) as error:
        logger.info("no blend: %s", error)
        return None
    solution = SolutionScript(content=blend_script(list(weights.values())), phase=SolutionPhase.ensemble)
    return Finalist(BLEND, weights, solution.model_copy(update={"score": measure.score}), measure)


async def _anew(
    run: RunContext, exam: Exam, entries: dict[str, SolutionScript], bank: dict[str, Answers]
) -> list[Finalist]:
    """Few rows: each of the best is run again on views that hide other parts, if the time allows it."""
    sign = -1 if exam.judge.metric.higher_is_better else 1
    searched = {name: exam.measure(bank[solution.content]) for name, solution in entries.items()}
    ranked = sorted(entries, key=lambda name: sign * searched[name].score)[:MOST_REGRADED]
    seconds = len(exam.views) * sum(_seconds(run, entries[name].content) for name in ranked)
    if seconds > REGRADE_SHARE * (run.budget.time_limit - run.budget.elapsed()) or run.budget.finish_requested:
        logger.warning("no time to judge the finalists anew: the scores of the search decide")
        return [Finalist(name, {entries[name].content: 1.0}, entries[name], searched[name]) for name in ranked]
    judged: dict[str, Answers] = {}
    views = await asyncio.to_thread(exam.views_again)
    for name in ranked:
        result = await execute_in_run(entries[name], purpose="regrade")
        event = next(e for e in reversed(list(run.journal.events)) if isinstance(e, ScriptFinished))
        if not result.is_error and event.purpose == "regrade" and len(event.answers) == len(views):
            paths = [run.run_dir / path for path in event.answers]
            judged[entries[name].content] = await asyncio.to_thread(exam.read, paths, views)
    if not judged:
        return [Finalist(name, {entries[name].content: 1.0}, entries[name], searched[name]) for name in ranked]
    rows = sorted({row for view in views for row in view.hidden})
    found = [
        Finalist(name, {s.content: 1.0}, s, exam.measure(judged[s.content], rows))
        for name, s in entries.items()
        if s.content in judged
    ]
    blend = _blend(exam, {script: bank[script] for script in judged}, judged, rows)
    return [*found, blend] if blend is not None else found


def _seconds(run: RunContext, script: str) -> float:
    known = [e.seconds for e in run.journal.events if isinstance(e, ScriptFinished) and e.script == script]
    return max(known, default=0.0)


_BLEND_SCRIPT = '''"""Run the scripts of `solution/` in turn and blend their answers by weights found on hidden rows."""

import csv
import subprocess
import sys
from pathlib import Path

WEIGHTS = {weights}

answers = []
for number, weight in enumerate(WEIGHTS, 1):
    subprocess.run([sys.executable, f"solution/member_{{number}}.py"], check=True)
    with Path("final/submission.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    answers.append((weight, rows))

names = list(answers[0][1][0])
first = answers[0][1]
ANSWERS = [n for n in names if any(rows[i][n] != first[i][n] for _, rows in answers for i in range(len(first)))]
for i, row in enumerate(first):
    for name in ANSWERS:
        row[name] = sum(weight * float(rows[i][name]) for weight, rows in answers)
with Path("final/submission.csv").open("w", newline="") as stream:
    writer = csv.DictWriter(stream, names)
    writer.writeheader()
    writer.writerows(first)
'''


def blend_script(weights: list[float]) -> str:
    """The program that does again what a blend did: its members lie beside it in `solution/`."""
    return _BLEND_SCRIPT.format(weights=[round(weight, 6) for weight in weights])
