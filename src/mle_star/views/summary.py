"""The end of a run on the terminal: scores by phase, what improved it, cost, and where the files are."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mle_star.models import is_improvement
from mle_star.run.folder import RunFolder
from mle_star.views import text
from mle_star.views.facts import Attempt
from mle_star.views.lineage import lineage_of, steps_of
from mle_star.views.story import RunStory
from mle_star.views.verdict import Milestone, Verdict

MOST_GAINS = 8


def summary(story: RunStory, run_dir: Path | None = None) -> RenderableType:
    """What a run came to, as a table of plain texts."""
    verdict = Verdict.of(story, run_dir, alive=False)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if verdict.detail:
        table.add_row("", Text(text.one_line(verdict.detail, 400)))
    table.add_row("score", _score(story, verdict))
    if story.score is not None:
        table.add_row("measured by", Text(verdict.measured))
    if verdict.why:
        table.add_row("why", Text(text.one_line(verdict.why, 400)))
    if len(verdict.stages) > 1:
        table.add_row("by phase", Text(" → ".join(map(_stage, verdict.stages))))
    for index, (attempt, gain) in enumerate(gains(story)):
        table.add_row("improved by" if not index else "", _gain(attempt, gain))
    table.add_row("cost", Text(f"{verdict.cost} ({verdict.cost_note})"))
    table.add_row("time", Text(f"{verdict.time} ({verdict.time_note})"))
    table.add_row("model", Text(f"{text.one_line(verdict.model, 60)} ({verdict.model_note})"))
    table.add_row("isolation", Text(f"{verdict.isolation} ({verdict.isolation_note})"))
    file = verdict.file
    table.add_row("submission", Text(file.note if file.path is None else str(file.path), style="bold"))
    if file.path is not None:
        lead = "" if file.label == "File to submit" else f"{file.label.lower()}: "
        table.add_row("", Text(lead + file.note, style="" if file.level == "ready" else "yellow"))
    for name, path in files(run_dir):
        table.add_row(name, Text(str(path)))
    for warning in verdict.warnings:
        table.add_row(Text("warning", style="yellow"), Text(text.one_line(warning, 400)))
    name = text.one_line(story.task.competition_id, 60) if story.task else "run"
    head = Text(f"{name}: {verdict.state_title.lower()}", style="bold")
    return Group(head, table)


def gains(story: RunStory) -> list[tuple[Attempt, float | None]]:
    """The attempts that raised the best score, with what each added; of many, the largest, in order of time.

    At the end of a run only those that are part of its result.
    """
    found: list[tuple[Attempt, float | None]] = []
    best: float | None = None
    steps = None if story.finished is None else steps_of(story, lineage_of(story))
    for attempt in story.attempts:
        if steps is not None and attempt.step not in steps:
            continue
        if attempt.score is None or (best is not None and not is_improvement(attempt.score, best, story.direction)):
            continue
        found.append((attempt, None if best is None else attempt.score - best))
        best = attempt.score
    if len(found) <= MOST_GAINS:
        return found
    largest = sorted(found[1:], key=lambda pair: -abs(pair[1] or 0))[: MOST_GAINS - 1]
    return [pair for pair in found if pair is found[0] or pair in largest]


def files(run_dir: Path | None) -> list[tuple[str, Path]]:
    """The files of a run that a person wants, as far as they are there."""
    if run_dir is None:
        return []
    folder = RunFolder(run_dir)
    wanted = {"script": folder.solution, "report": folder.report, "result": folder.result, "journal": folder.journal}
    return [(name, path) for name, path in wanted.items() if path.exists()]


def _stage(one: Milestone) -> str:
    return f"{one.name} {text.score(one.score)}" + (f" ({one.what})" if one.apart else "")


def _score(story: RunStory, verdict: Verdict) -> Text:
    metric = f"{text.one_line(story.metric, 40)}, {story.direction.better_word} is better"
    words = Text(text.score(story.score), style="bold").append(f" ({metric})", style="not bold")
    if verdict.gain:
        style = {"good": "green", "bad": "yellow"}.get(verdict.gain_level, "")
        words.append(f"; {verdict.gain}", style=f"not bold {style}")
    return words


def _gain(attempt: Attempt, gain: float | None) -> Text:
    words = Text(text.score(attempt.score)).append(f" {'' if gain is None else text.signed(gain)}", style="green")
    note = f": {text.one_line(attempt.note, 90)}" if attempt.note else ""
    return words.append(f"  {text.one_line(attempt.label, 70)}{note}")
