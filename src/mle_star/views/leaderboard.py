"""Looking back: the scripts of a run by score, and another one made the final solution."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from mle_star.errors import ConfigError, JournalError
from mle_star.execution import verify_submission
from mle_star.models import MetricDirection
from mle_star.results.model import Model, complete, read_result, script_of
from mle_star.run.folder import RunFolder, first_line, is_running, place_copy
from mle_star.run.journal import Journal
from mle_star.run.ledger import ScriptRun
from mle_star.search.final_result import write_result
from mle_star.views.lineage import lineage_of
from mle_star.views.story import RunStory

logger = logging.getLogger(__name__)
BY_HAND = "promoted by hand"


def leaderboards(runs: list[Path]) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The scripts of runs by task and metric, the best first, and what is wrong with runs that cannot be read."""
    boards: dict[str, list[dict[str, Any]]] = {}
    directions: dict[str, MetricDirection] = {}
    problems: list[str] = []
    for run in runs:
        try:
            task, rows = first_line(run).task, leaderboard_rows(run)
        except JournalError as error:
            problems.append(str(error))
            continue
        name = f"{task.competition_id} ({task.evaluation_metric}, {task.metric_direction.better_word} is better)"
        directions[name] = task.metric_direction
        named = {"task": task.competition_id, "metric": task.evaluation_metric}
        boards.setdefault(name, []).extend({**row, **named} for row in rows)
    return {name: _ranked(rows, directions[name]) for name, rows in boards.items()}, problems


def leaderboard_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The scored scripts of a run, the best first: step, score, interval, seconds; is it the final solution?

    Scores are those of the search; `final_score` is that of the result, which may be measured on other rows.

    Those that leak have no score that counts, and are left out; unless all leak, or somebody promoted one by hand.
    """
    story = RunStory.of(run_dir)
    ran = [run for run in _scored(story) if not run.result.cached]
    clean = [run for run in ran if not story.ledger.leaks(run.script) or run.step == lineage_of(story).named]
    found: dict[str, dict[str, Any]] = {}
    for run in clean or ran:
        measure = run.result.measure
        found[run.step] = {
            "run": run_dir.name,
            "step": run.step.removesuffix("/script"),
            "score": run.score,
            "low": None if measure is None else measure.low,
            "high": None if measure is None else measure.high,
            "seconds": round(run.seconds, 2),
            "chosen": False,
            "final_score": None,
            "final_rows": None,
        }
    if chosen := _final_step(story, list(found)):
        rows = None if story.expected is None else story.expected.rows
        found[chosen].update(chosen=True, final_score=story.score, final_rows=rows)
    return _ranked(list(found.values()), story.direction)


def _ranked(rows: list[dict[str, Any]], direction: MetricDirection) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: float(row["score"]), reverse=direction is MetricDirection.maximize)


def _scored(story: RunStory) -> list[ScriptRun]:
    return [run for run in story.scripts.values() if run.purpose == "solution" and run.score is not None]


def _final_step(story: RunStory, steps: list[str]) -> str:
    """The step of the final solution; of several scripts there the last, and none of a blend."""
    line = lineage_of(story)
    if line.named in steps:
        return line.named
    digest = next((node.digest for node in line.nodes if node.step == line.submitted), "")
    ran = story.ledger.latest_run(digest) if digest else None
    if ran is not None and ran.step in steps:
        return ran.step
    below = [step for step in steps if line.submitted and step.startswith(f"{line.submitted}/")]
    return below[-1] if below else ""


def promote(run_dir: Path, step: str, *, executor: Any = None) -> tuple[str, float | None]:
    """Make another script the final solution of a finished run: script, result and, where there is a test, submission.

    The step that it is of, and its score.
    """
    if is_running(run_dir):
        raise ConfigError(f"{run_dir.name} is still running; wait for its end")
    folder, result, story = RunFolder(run_dir), read_result(run_dir), RunStory.of(run_dir)
    chosen = _script_at(story, run_dir, step)
    code, submission = story.ledger.text(chosen.script), ""
    if result.has_test:
        if chosen.result.submission is not None and (run_dir / chosen.result.submission).is_file():
            place_copy(run_dir / chosen.result.submission, folder.submission)
        else:
            model = Model.of(run_dir, executor=executor)
            work = complete(model.execute(script_of(code), model.data_dir, "promote"))
            if not verify_submission(str(work)):
                raise ConfigError(f"the script of {chosen.step} writes no submission")
            shutil.copyfile(work / "final" / "submission.csv", folder.submission)
        submission = str(folder.submission)
    note = f"{BY_HAND}: the script of {chosen.step}"
    if story.ledger.leaks(chosen.script):
        note += "; data leakage was found in it: its score may be too good"
        logger.warning("%s", note)
    before = {phase: facts for phase, facts in result.lineage.items() if phase != "finalization"}
    changes = {
        "final_solution": script_of(code, chosen.score),
        "submission_path": submission,
        "expected": chosen.result.measure,
        "single_model": None,  # it was measured on rows that this script was not measured on
        "lineage": {**before, "promoted": chosen.step},
        "warnings": [note, *(words for words in result.warnings if not words.startswith(BY_HAND))],
    }
    with Journal(folder.journal) as journal:
        write_result(folder, journal, result.model_copy(update=changes))
    return chosen.step, chosen.score


def _script_at(story: RunStory, run_dir: Path, step: str) -> ScriptRun:
    """The last script that ran at a step, or below it, and has a score."""
    scripts, name = _scored(story), step.rstrip("/")
    chosen = [one for one in scripts if one.step in (name, f"{name}/script")]
    chosen = chosen or [one for one in scripts if one.step.startswith(f"{name}/")]
    if not chosen:
        some = ", ".join(one.step.removesuffix("/script") for one in scripts[:6])
        raise ConfigError(f"{run_dir.name}: no scored script at {step!r}; there are {some or 'none'}")
    return chosen[-1]
