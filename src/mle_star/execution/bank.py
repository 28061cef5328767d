"""The bank: what every script of a run said about hidden and test rows, read back from the run's folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from mle_star.basics.texts import digest_of
from mle_star.evaluation.answers import Answers, Ungradable, read_answers
from mle_star.evaluation.exam import Exam
from mle_star.models import Measure, SolutionScript
from mle_star.run.context import RunContext
from mle_star.run.events import AnyEvent, ScriptFinished


def blend_answers(run: RunContext, script: str) -> Path:
    """Where the answers of a blend to the real test lie, by the script that does again what it did."""
    return run.run_dir / "answers" / f"blend-{digest_of(script)[:12]}.real.csv"


def read_bank(run: RunContext, exam: Exam, only: Collection[str] | None = None) -> dict[str, Answers]:
    """The answers by the script that gave them, as far as they can be judged; of all scripts, or of a few only."""
    bank: dict[str, Answers] = {}
    for event in judged_here(run):
        wanted = event.script not in bank and (only is None or event.script in only)
        if wanted and (answers := _answers(run.run_dir, exam, event)) is not None:
            bank[event.script] = answers
    return bank


def fullest(exam: Exam, run_dir: Path, judged: Iterable[ScriptFinished]) -> Answers | None:
    """What the first of the scripts said that ran on the most views."""
    event = max(judged, key=lambda event: len(event.answers), default=None)
    return None if event is None else _answers(run_dir, exam, event)


def compared(
    exam: Exam,
    run_dir: Path,
    judged: Iterable[ScriptFinished],
    answers: Answers,
    views: int,
    printed: float | None = None,
) -> Measure:
    """The grade of answers to so many views on the rows of the first `judged` script, as all scores of a search.

    What answers to fewer views is set against that script; what answers to more has the others for the final pick.
    """
    first = next(iter(judged), None)
    common = views if first is None else len(first.answers)
    reference = None if first is None or views >= common else _answers(run_dir, exam, first)
    return exam.measure(answers, exam.compared_rows(common), printed=printed, reference=reference)


def judged_in(events: Iterable[AnyEvent], surroundings: str) -> Iterator[ScriptFinished]:
    """The solutions whose answers were judged in these surroundings: by other data or hidden rows they do not count."""
    for event in events:
        if not isinstance(event, ScriptFinished) or event.surroundings != surroundings:
            continue
        if event.purpose == "solution" and event.answers and not event.is_error:
            yield event


def judged_here(run: RunContext) -> Iterator[ScriptFinished]:
    """Those of this run."""
    return judged_in(run.journal.events, run.shared.scripts.surroundings)


def _answers(run_dir: Path, exam: Exam, event: ScriptFinished) -> Answers | None:
    try:
        return exam.read([run_dir / path for path in event.answers], exam.views)
    except (OSError, Ungradable):
        return None


def searched_submission(run: RunContext, judged: SolutionScript) -> Path | None:
    """What a judged script, or the blend, said of the real test in the search; None where scripts judge themselves."""
    if run.shared.exam is None:
        return None
    made = [event for event in judged_here(run) if event.script == judged.content]
    kept = [run.run_dir / event.submission for event in made if event.submission is not None]
    found = (kept if made else [blend_answers(run, judged.content)])[:1]
    return found[0] if found and found[0].is_file() else None


def disagreement(run: RunContext, judged: SolutionScript, submission: Path) -> str:
    """Why a submission does not hold the answers of the script that was judged, or an empty text."""
    exam = run.shared.exam
    bank = {} if exam is None else read_bank(run, exam, {judged.content})
    if exam is None or judged.content not in bank:
        return ""
    try:
        answers = read_answers(exam.judge.data, submission, exam.real_view())
        agreement = exam.judge.agreement(answers.real, bank[judged.content].real)
    except (OSError, Ungradable) as error:
        return str(error)
    if agreement >= run.config.equivalence_bound:
        return ""
    return f"its answers agree with those of the judged script by {agreement:.2f} only"
