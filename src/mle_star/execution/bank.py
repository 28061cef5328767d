"""The bank: what every script of a run said about hidden and test rows, read back from the run's folder."""

from __future__ import annotations

from pathlib import Path

from mle_star.evaluation.exam import Exam
from mle_star.evaluation.grading import Answers, Ungradable
from mle_star.models import SolutionScript
from mle_star.run.context import RunContext
from mle_star.run.events import ScriptFinished


def read_bank(run: RunContext, exam: Exam) -> dict[str, Answers]:
    """The answers by the script that gave them, as far as they can be judged."""
    bank: dict[str, Answers] = {}
    for event in run.journal.events:
        if not isinstance(event, ScriptFinished) or event.purpose != "solution" or not event.answers:
            continue
        if event.is_error or event.script in bank:
            continue
        try:
            bank[event.script] = exam.read([run.run_dir / path for path in event.answers], exam.views)
        except (OSError, Ungradable):
            continue
    return bank


def disagreement(run: RunContext, judged: SolutionScript, submission: Path) -> str:
    """Why a submission does not hold the answers of the script that was judged, or an empty text."""
    exam = run.shared.exam
    bank = {} if exam is None else read_bank(run, exam)
    if exam is None or judged.content not in bank:
        return ""
    try:
        answers = exam.judge.read(submission, exam.real_view())
        agreement = exam.judge.agreement(answers.real, bank[judged.content].real)
    except (OSError, Ungradable) as error:
        return str(error)
    if agreement >= run.config.equivalence_bound:
        return ""
    return f"its answers agree with those of the judged script by {agreement:.2f} only"
