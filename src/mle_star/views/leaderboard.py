"""Looking back: the scripts of runs by score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mle_star.errors import JournalError
from mle_star.models import MetricDirection
from mle_star.run.folder import first_line
from mle_star.views.lineage import lineage_of
from mle_star.views.story import RunStory


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
    ran = [run for run in story.scored if not run.result.cached]
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
