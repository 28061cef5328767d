"""The bank: what every script of a run said about hidden and test rows, read back from the run's folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from mle_star.basics.texts import digest_of
from mle_star.evaluation.agreement import agreement
from mle_star.evaluation.answers import Answers, Ungradable, read_answers
from mle_star.evaluation.exam import Exam
from mle_star.models import Measure, SolutionScript, is_improvement
from mle_star.run.context import RunContext
from mle_star.run.ledger import ScriptRun


def blend_answers(run: RunContext, script: str) -> Path:
    """Where the answers of a blend to the real test lie, by the script that does again what it did."""
    return run.run_dir / "answers" / f"blend-{digest_of(script)[:12]}.real.csv"


def read_bank(run: RunContext, exam: Exam, only: Collection[str] | None = None) -> dict[str, Answers]:
    """The answers by the script that gave them, as far as they can be judged; of all scripts, or of a few only."""
    bank: dict[str, Answers] = {}
    for one in judged_here(run):
        script = run.ledger.text(one.script)
        wanted = script not in bank and (only is None or script in only)
        if wanted and (answers := answers_of(exam, run.run_dir, one)) is not None:
            bank[script] = answers
    return bank


def incumbent(exam: Exam, judged: Iterable[ScriptRun], views: int | None = None) -> ScriptRun | None:
    """The best script that ran on at least so many views; by default on as many as any."""
    scripts = [event for event in judged if event.score is not None]
    enough = max((len(event.result.answers) for event in scripts), default=0) if views is None else views
    best: tuple[float, ScriptRun] | None = None
    for event in scripts:
        if event.score is None or len(event.result.answers) < enough:
            continue
        if best is None or is_improvement(event.score, best[0], exam.judge.metric.direction):
            best = event.score, event
    return best[1] if best else None


def compared(
    exam: Exam,
    run_dir: Path,
    judged: Sequence[ScriptRun],
    answers: Answers,
    views: int,
    printed: float | None = None,
    leaking: Collection[str] = (),
) -> Measure:
    """The grade of answers to so many views on the rows of the first `judged` script, as all scores of a search.

    What answers to fewer views is set against the best clean script that answers to all, on the rows that both have;
    that estimate is at most as good as what was measured. What answers to more has the others for the final pick.
    """
    common = len(judged[0].result.answers) if judged else views
    rows = exam.compared_rows(common)
    if views >= common:
        return exam.measure(answers, rows, printed=printed)
    best = incumbent(exam, (event for event in judged if event.script not in leaking), common)
    reference = None if best is None else answers_of(exam, run_dir, best)
    measure = exam.measure(answers, rows, printed=printed, reference=reference)
    score = measure.score
    if best is not None and best.score is not None and is_improvement(score, best.score, exam.judge.metric.direction):
        score = best.score
    return measure.model_copy(update={"score": score, "estimated": True})


def views_to_catch_up(run: RunContext, exam: Exam, said: Sequence[str]) -> range:
    """The views that a script still has to run on before it may be the best, if it is ahead on the rows that it has."""
    judged = judged_here(run)
    common = len(judged[0].result.answers) if judged else 0
    best = incumbent(exam, (one for one in judged if not run.ledger.leaks(one.script)), common)
    reference = None if best is None or len(said) >= common else answers_of(exam, run.run_dir, best)
    if reference is None:
        return range(0)
    try:
        ours, rows = exam.read([run.run_dir / path for path in said], exam.views), exam.compared_rows(len(said))
        lead = exam.figure(ours, rows) - exam.figure(reference, rows)
    except (OSError, Ungradable):
        return range(0)
    is_ahead = lead > 0 if exam.judge.metric.higher_is_better else lead < 0
    return range(len(said), common) if is_ahead else range(0)


def judged_here(run: RunContext) -> list[ScriptRun]:
    """The solutions of this run whose answers were judged, on the data and with the packages of now."""
    return run.ledger.judged(run.shared.scripts.surroundings)


def answers_of(exam: Exam, run_dir: Path, event: ScriptRun) -> Answers | None:
    """What a script said on all of its views; None where that is gone."""
    try:
        return exam.read([run_dir / path for path in event.result.answers], exam.views)
    except (OSError, Ungradable):
        return None


def searched_submission(run: RunContext, judged: SolutionScript) -> Path | None:
    """What a judged script, or the blend, said of the real test in the search; None where scripts judge themselves."""
    if run.shared.exam is None:
        return None
    digest = digest_of(judged.content)
    made = [one for one in judged_here(run) if one.script == digest]
    kept = [run.run_dir / event.result.submission for event in made if event.result.submission is not None]
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
        agreed = agreement(exam.judge, answers.real, bank[judged.content].real)
    except (OSError, Ungradable) as error:
        return str(error)
    if agreed >= run.config.equivalence_bound:
        return ""
    return f"its answers agree with those of the judged script by {agreed:.2f} only"
