"""The predictions: what every script of a run said about hidden and test rows, read back from the run's folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from mle_star.execution.inputs import holdout_of
from mle_star.holdout.answers import Answers, Ungradable, read_answers
from mle_star.holdout.blend import agreement
from mle_star.holdout.holdout import HoldOut
from mle_star.method.scores import best_first
from mle_star.models import Measure, SolutionScript, is_improvement
from mle_star.models.texts import digest_of
from mle_star.run.context import RunContext
from mle_star.run.ledger import ScriptRun


def blend_answers(run: RunContext, script: str) -> Path:
    """Where the answers of a blend to the real test lie, by the script that does again what it did."""
    return run.run_dir / "answers" / f"blend-{digest_of(script)[:12]}.real.csv"


def read_predictions(run: RunContext, holdout: HoldOut, only: Collection[str] | None = None) -> dict[str, Answers]:
    """The answers by the script that gave them, as far as they can be scored; of all scripts, or of a few only."""
    predictions: dict[str, Answers] = {}
    for one in scored_here(run):
        script = run.ledger.text(one.script)
        wanted = script not in predictions and (only is None or script in only)
        if wanted and (answers := answers_of(holdout, run.run_dir, one)) is not None:
            predictions[script] = answers
    return predictions


def incumbent(holdout: HoldOut, scored: Iterable[ScriptRun], views: int | None = None) -> ScriptRun | None:
    """The best script that ran on at least so many views; by default on as many as any."""
    scripts = [event for event in scored if event.score is not None]
    enough = max((len(event.result.answers) for event in scripts), default=0) if views is None else views
    able = [event for event in scripts if len(event.result.answers) >= enough]
    return next(iter(best_first(able, lambda event: event.score, holdout.scorer.metric.direction)), None)


def compared(
    holdout: HoldOut,
    run_dir: Path,
    scored: Sequence[ScriptRun],
    answers: Answers,
    views: int,
    printed: float | None = None,
    leaking: Collection[str] = (),
) -> Measure:
    """The grade of answers to so many views on the rows of the first `scored` script, as all scores of a search.

    What answers to fewer views is set against the best clean script that answers to all, on the rows that both have;
    that estimate is at most as good as what was measured. What answers to more has the others for the final selection.
    """
    common = len(scored[0].result.answers) if scored else views
    rows = holdout.compared_rows(common)
    if views >= common:
        return holdout.measure(answers, rows, printed=printed)
    best = incumbent(holdout, (event for event in scored if event.script not in leaking), common)
    reference = None if best is None else answers_of(holdout, run_dir, best)
    measure = holdout.measure(answers, rows, printed=printed, reference=reference)
    known = None if best is None else best.score
    is_better = known is not None and is_improvement(measure.score, known, holdout.scorer.metric.direction)
    return measure.model_copy(update={"score": known if is_better else measure.score, "estimated": True})


def views_to_catch_up(run: RunContext, holdout: HoldOut, answers: Sequence[str]) -> range:
    """The views that a script still has to run on before it may be the best, if it is ahead on the rows that it has."""
    scored = scored_here(run)
    common = len(scored[0].result.answers) if scored else 0
    best = incumbent(holdout, (one for one in scored if not run.ledger.leaks(one.script)), common)
    reference = None if best is None or len(answers) >= common else answers_of(holdout, run.run_dir, best)
    if reference is None:
        return range(0)
    try:
        ours = holdout.read([run.run_dir / path for path in answers], holdout.views)
        rows = holdout.compared_rows(len(answers))
        lead = holdout.figure(ours, rows) - holdout.figure(reference, rows)
    except (OSError, Ungradable):
        return range(0)
    is_ahead = lead > 0 if holdout.scorer.metric.higher_is_better else lead < 0
    return range(len(answers), common) if is_ahead else range(0)


def scored_here(run: RunContext) -> list[ScriptRun]:
    """The solutions of this run whose answers were scored, on the data and with the packages of now."""
    return run.ledger.scored(run.shared.scripts.surroundings)


def answers_of(holdout: HoldOut, run_dir: Path, event: ScriptRun) -> Answers | None:
    """What a script said on all of its views; None where that is gone."""
    try:
        return holdout.read([run_dir / path for path in event.result.answers], holdout.views)
    except (OSError, Ungradable):
        return None


def searched_submission(run: RunContext, scored: SolutionScript) -> Path | None:
    """What a scored script, or the blend, said of the real test in the search; None where scripts scorer themselves."""
    if run.shared.holdout is None:
        return None
    digest = digest_of(scored.content)
    made = [one for one in scored_here(run) if one.script == digest]
    kept = [run.run_dir / event.result.submission for event in made if event.result.submission is not None]
    found = (kept if made else [blend_answers(run, scored.content)])[:1]
    return found[0] if found and found[0].is_file() else None


def disagreement(run: RunContext, scored: SolutionScript, submission: Path) -> str:
    """Why a submission does not hold the answers of the script that was scored, or an empty text."""
    holdout = holdout_of(run)
    predictions = {} if holdout is None else read_predictions(run, holdout, {scored.content})
    if holdout is None or scored.content not in predictions:
        return ""
    try:
        answers = read_answers(holdout.scorer.data, submission, holdout.real_view())
        agreed = agreement(holdout.scorer, answers.real, predictions[scored.content].real)
    except (OSError, Ungradable) as error:
        return str(error)
    if agreed >= run.config.equivalence_bound:
        return ""
    return f"its answers agree with those of the scored script by {agreed:.2f} only"
