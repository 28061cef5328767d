"""Looking back: the scripts of a run by score, and another script submitted."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from mle_star.basics.texts import digest_of
from mle_star.errors import ConfigError, JournalError
from mle_star.execution import verify_submission
from mle_star.models import MetricDirection
from mle_star.results.model import Model, complete, read_result, script_of
from mle_star.run.events import ScriptFinished
from mle_star.run.folder import RunFolder, first_line, is_running, place_copy
from mle_star.run.journal import Journal, read_journal
from mle_star.search.final_result import hand_over
from mle_star.views.lineage import handed_over, lineage_of
from mle_star.views.reasons import expected_of
from mle_star.views.story import RunStory

logger = logging.getLogger(__name__)


def leaderboards(runs: list[Path]) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The scripts of runs by task and metric, the best first, and what is wrong with runs that cannot be read."""
    boards: dict[str, list[dict[str, Any]]] = {}
    ways: dict[str, int] = {}
    problems: list[str] = []
    for run in runs:
        try:
            task, rows = first_line(run).task, leaderboard_rows(run)
        except JournalError as error:
            problems.append(str(error))
            continue
        name = f"{task.competition_id} ({task.evaluation_metric}, {task.metric_direction.better_word} is better)"
        ways[name] = -1 if task.metric_direction is MetricDirection.maximize else 1
        named = {"task": task.competition_id, "metric": task.evaluation_metric}
        boards.setdefault(name, []).extend({**row, **named} for row in rows)
    return {name: sorted(rows, key=lambda row: ways[name] * row["score"]) for name, rows in boards.items()}, problems


def leaderboard_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The scored scripts of a run, the best first: step, score, interval, seconds; is it the final solution?

    Scores are those of the search; `final_score` is that of the result, which may be measured on other rows.

    Those that leak have no score that counts, and are left out; unless all leak, or somebody handed one over by hand.
    """
    task, events = first_line(run_dir).task, list(read_journal(RunFolder(run_dir).journal))
    story = RunStory.from_events(events)
    line = lineage_of(story)
    ran = [e for e in events if isinstance(e, ScriptFinished) and e.purpose == "solution" and not e.result.cached]
    scored = [event for event in ran if event.result.score is not None and not event.result.is_error]
    clean = [e for e in scored if digest_of(e.script) not in story.leaking or e.step == line.promoted]
    found: dict[str, dict[str, Any]] = {}
    for event in clean or scored:
        measure = event.result.measure
        found[event.step] = {
            "run": run_dir.name,
            "step": event.step.removesuffix("/script"),
            "score": event.result.score,
            "low": None if measure is None else measure.low,
            "high": None if measure is None else measure.high,
            "seconds": round(event.result.duration_seconds, 2),
            "chosen": False,
            "final_score": None,
            "final_rows": None,
        }
    attempt, named = handed_over(story, line), line.promoted or line.other
    digest = next((node.digest for node in story.nodes if node.step == attempt), "")
    last = story.ledger.latest_run(digest) if digest and not named else None
    scripts = [step for step in found if step == named or (last is not None and step == last.step)]
    scripts = scripts or [step for step in found if attempt and step.startswith(f"{attempt}/")]
    for step in scripts[-1:]:  # earlier ones were repaired; a blend of several has none
        expected = expected_of(story)
        found[step].update(chosen=True, final_score=story.score, final_rows=None if expected is None else expected.rows)
    sign = -1 if task.metric_direction is MetricDirection.maximize else 1
    return sorted(found.values(), key=lambda row: sign * row["score"])


def promote(run_dir: Path, step: str, *, executor: Any = None) -> tuple[str, float | None]:
    """Submit another script of a finished run: script, result and, where there is a test, its submission.

    The step that it is of, and its score.
    """
    if is_running(run_dir):
        raise ConfigError(f"{run_dir.name} is still running; wait for its end")
    folder, result = RunFolder(run_dir), read_result(run_dir)
    chosen = _script_at(run_dir, step)
    submission = ""
    if result.has_test:
        if chosen.result.submission is not None and (run_dir / chosen.result.submission).is_file():
            place_copy(run_dir / chosen.result.submission, folder.submission)
        else:
            model = Model.of(run_dir, executor=executor)
            work = complete(model.execute(script_of(chosen.script), model.data_dir, "promote"))
            if not verify_submission(str(work)):
                raise ConfigError(f"the script of {chosen.step} writes no submission")
            shutil.copyfile(work / "final" / "submission.csv", folder.submission)
        submission = str(folder.submission)
    before = {phase: told for phase, told in result.lineage.items() if phase != "finalization"}
    note = f"promoted by hand: the script of {chosen.step}"
    if digest_of(chosen.script) in RunStory.from_events(read_journal(folder.journal)).leaking:
        note += "; data leakage was found in it: its score may be too good"
        logger.warning("%s", note)
    with Journal(folder.journal) as journal:
        hand_over(
            folder,
            journal,
            result.model_copy(
                update={
                    "final_solution": script_of(chosen.script, chosen.result.score),
                    "submission_path": submission,
                    "expected": chosen.result.measure,
                    "single_model": None,  # it was measured on rows that this script was not measured on
                    "lineage": {**before, "promoted": chosen.step},
                    "warnings": [note, *(w for w in result.warnings if not w.startswith("promoted by hand"))],
                }
            ),
        )
    return chosen.step, chosen.result.score


def _script_at(run_dir: Path, step: str) -> ScriptFinished:
    """The last script that ran at a step, or below it, and has a score."""
    scripts = [
        event
        for event in read_journal(RunFolder(run_dir).journal)
        if isinstance(event, ScriptFinished) and event.purpose == "solution" and event.result.score is not None
    ]
    name = step.rstrip("/")
    chosen = [s for s in scripts if s.step in (name, f"{name}/script")]
    chosen = chosen or [s for s in scripts if s.step.startswith(f"{name}/")]
    if not chosen:
        some = ", ".join(s.step.removesuffix("/script") for s in scripts[:6])
        raise ConfigError(f"{run_dir.name}: no scored script at {step!r}; there are {some or 'none'}")
    return chosen[-1]
