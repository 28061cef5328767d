"""The page of a campaign: what it came to, task by task and run by run, in the style of the report."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from mle_star.data.folder import MEDALS
from mle_star.models import MetricDirection, TaskDescription, is_improvement
from mle_star.run.folder import RunFolder
from mle_star.views.page import render_page

if TYPE_CHECKING:
    from mle_star.integrations.campaign import Campaign, Entry


class TaskRow(NamedTuple):
    """All seeds of one task."""

    name: str
    metric: str
    better: str
    finished: int
    runs: int
    best: float | None
    mean: float | None
    spread: float | None
    medals: str
    cost_usd: float


class RunRow(NamedTuple):
    """One run, with its task's words and where its report is."""

    entry: Entry
    metric: str
    link: str


def campaign_html(campaign: Campaign) -> str:
    """The whole page; links lead to the reports that are there."""
    tasks = {task.competition_id: task for task in campaign.plan.tasks}
    entries = campaign.entries
    by_task = [_task_row(task, [one for one in entries if one.task == name]) for name, task in tasks.items()]
    runs = [RunRow(one, tasks[one.task].evaluation_metric, _link(campaign.folder, one)) for one in entries]
    states = Counter(one.state for one in entries)
    return render_page(
        "campaign.html.j2",
        ["report.js"],
        title=campaign.folder.resolve().name,
        tasks=by_task,
        runs=runs,
        several=len(campaign.plan.seeds) > 1,
        states=states,
        done=not states["waiting"] and not states["running"],
        model=campaign.plan.config.model,
        cost_usd=sum(one.cost_usd or 0.0 for one in entries),
        seconds=sum(one.seconds or 0.0 for one in entries),
        medals=_medals(entries),
        known=bool(campaign.plan.medals),
        scored=len(campaign.plan.medals),
    )


def _task_row(task: TaskDescription, entries: list[Entry]) -> TaskRow:
    expected = [one.expected if one.expected is not None else one.score for one in entries]
    scores = [score for score in expected if score is not None]
    direction = task.metric_direction
    return TaskRow(
        task.competition_id,
        task.evaluation_metric,
        direction.better_word,
        sum(one.state == "finished" for one in entries),
        len(entries),
        _best(scores, direction),
        statistics.fmean(scores) if scores else None,
        statistics.stdev(scores) if len(scores) > 1 else None,
        _medals(entries),
        sum(one.cost_usd or 0.0 for one in entries),
    )


def _best(scores: list[float], direction: MetricDirection) -> float | None:
    best: float | None = None
    for score in scores:
        best = score if best is None or is_improvement(score, best, direction) else best
    return best


def _medals(entries: list[Entry]) -> str:
    won = Counter(one.medal for one in entries)
    return ", ".join(f"{won[medal]} {medal}" for medal in MEDALS if won[medal])


def _link(folder: Path, entry: Entry) -> str:
    return f"{quote(entry.folder)}/report.html" if RunFolder(folder / entry.folder).report.is_file() else ""
