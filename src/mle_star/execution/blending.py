"""The members of a blend, run once more on the untouched data: what they say together is the submission."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mle_star.execution.artifacts import forget_fitted, keep_fitted
from mle_star.execution.inputs import holdout_of
from mle_star.execution.outcome import exception_line
from mle_star.execution.predictions import read_predictions
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.submission import SUBMISSION, verify_submission
from mle_star.execution.workspace import clean_output_directory
from mle_star.holdout.answers import Answers, Ungradable, read_answers, write_answers
from mle_star.holdout.blend import blended
from mle_star.models import SolutionPhase, SolutionScript
from mle_star.run.context import RunContext, scope
from mle_star.run.limits import too_late_for


async def answer_together(run: RunContext, members: dict[str, float]) -> tuple[list[str], bool]:
    """Run the members, the weightiest first, and write the submission.

    Gives why members did not answer anew, and whether all that they fitted is kept. One that fails, or for which it
    is too late, answers with what it said in the search.
    """
    holdout = holdout_of(run)
    assert holdout is not None
    predictions = await asyncio.to_thread(read_predictions, run, holdout, members)
    answers, kept, warnings = dict[str, Answers](), list[bool](), list[str]()
    for number, script in sorted(enumerate(members, 1), key=lambda one: -members[one[1]]):
        run.shared.last_scripts = len(members) - len(kept)
        kept.append(False)
        try:
            with scope(f"member-{number}"):
                answers[script] = await _answers_anew(run, script)
                kept[-1] = await asyncio.to_thread(keep_fitted, run, first=not any(kept))
        except (OSError, Ungradable) as error:
            warnings.append(f"member {number} of the blend answers as in the search: {error}")
            answers[script] = Answers({}, predictions[script].real)
    await asyncio.to_thread(clean_output_directory, str(run.work_dir))  # or a link of the last member is written to
    write_answers(holdout.scorer.data, blended(answers, members), run.work_dir / SUBMISSION)
    if any(kept) and not all(kept):
        await asyncio.to_thread(forget_fitted, run.run_dir)
    return warnings, all(kept)


def keep_members(run: RunContext, members: Iterable[str]) -> None:
    """Put the scripts of a blend where the program looks for them that runs them again."""
    folder = run.run_dir / "solution"
    folder.mkdir(exist_ok=True)
    for number, script in enumerate(members, 1):
        (folder / f"member_{number}.py").write_text(script, encoding="utf-8", newline="")


async def _answers_anew(run: RunContext, script: str) -> Answers:
    """What a script says after learning from all rows; `Ungradable` says why it says nothing."""
    holdout = holdout_of(run)
    assert holdout is not None
    if late := too_late_for(run, script):
        raise Ungradable(late)
    member = SolutionScript(content=script, phase=SolutionPhase.final)
    result = await execute_in_run(member, purpose="submission", timeout_seconds=run.config.time_limit_seconds)
    if result.is_error:
        raise Ungradable(exception_line(result.error_traceback or "it failed"))
    if not verify_submission(str(run.work_dir)):
        raise Ungradable("it wrote no submission")
    return read_answers(holdout.scorer.data, run.work_dir / SUBMISSION, holdout.real_view())
