"""The answer before the details: how good, compared with what, for how much, and which file to submit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from mle_star.models import is_improvement
from mle_star.run.folder import RunFolder
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES, SHORT_TITLES
from mle_star.views.story import RunStory

Level = Literal["good", "flat", "bad", "none"]
OFFLINE = "offline"
STATES = {
    "running": "Running",
    "completed": "Completed",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "stopped": "Stopped without an end",
}


class Stage(NamedTuple):
    """A score on the way."""

    name: str
    score: float
    what: str


@dataclass(frozen=True)
class Verdict:
    """What a reader wants to know within ten seconds."""

    state: str
    state_title: str
    detail: str
    score: float | None
    measured: str
    gain: str
    gain_level: Level
    stages: list[Stage]
    submission: Path | None
    submission_note: str
    cost: str
    cost_note: str
    time: str
    time_note: str
    model: str
    model_note: str
    isolation: str
    isolation_note: str
    warnings: list[str]

    @classmethod
    def of(cls, story: RunStory, run_dir: Path | None = None, *, alive: bool = True) -> Verdict:
        """The verdict as things stand. `alive`: a process is at work on the run."""
        state = story.state if alive or story.finished else "stopped"
        gain, level = _gain(story)
        file, note = _submission(story, run_dir)
        isolation, isolation_note = _isolation(story)
        cost_note, time_note = _limits(story)
        return cls(
            state=state, state_title=STATES[state], detail=_detail(story, state), score=story.score,
            measured=_measured(story), gain=gain,
            gain_level=level, stages=_stages(story), submission=file, submission_note=note,
            cost=text.money(story.totals.cost_usd), cost_note=cost_note,
            time=text.duration(story.clock.seconds), time_note=time_note,
            model="offline (embedded engineer)" if _is_offline(story) else story.started.model if story.started else "",
            model_note="rules, no language model" if _is_offline(story) else "language model",
            isolation=isolation, isolation_note=isolation_note, warnings=_warnings(story),
        )  # fmt: skip


def _measured(story: RunStory) -> str:
    """Who measured the score, on what, how sure it is, and what a dummy would get."""
    exam = story.exam
    if exam is None or exam.why_not:
        return "self-reported: as the script itself measured it"
    promise = story.finished.result.promise if story.finished and story.finished.result else None
    rows = exam.search_rows if promise is None or promise.rows is None else promise.rows
    words = f"harness, {rows:,} hidden rows"
    if promise is not None and promise.low is not None and promise.high is not None:
        words += f", between {text.score(promise.low)} and {text.score(promise.high)}"
    return words + (f"; a dummy gets {text.score(exam.baseline.score)}" if exam.baseline is not None else "")


def _is_offline(story: RunStory) -> bool:
    return story.started is not None and story.started.model == OFFLINE


def _detail(story: RunStory, state: str) -> str:
    if state == "running":
        return PHASE_TITLES.get(story.phase, "starting")
    if state == "stopped":
        return "the process ended before the run did; `mle-star resume` goes on from here"
    return "" if story.finished is None else story.finished.message


def _gain(story: RunStory) -> tuple[str, Level]:
    """The score against the first candidate's, in words."""
    first, now = story.first_score, story.score
    if first is None or now is None:
        return "", "none"
    against = f"the first candidate ({text.score(first)})"
    if now == first:
        return f"no better than {against}", "flat"
    better = is_improvement(now, first, story.direction)
    percent = text.gain_percent(first, now, story.direction)
    amount = text.signed(now - first) if percent is None else f"{abs(percent):.1f} %"
    if percent is not None and abs(percent) < 0.05:
        amount = text.signed(now - first)
    return f"{amount} {'better' if better else 'worse'} than {against}", "good" if better else "bad"


def _stages(story: RunStory) -> list[Stage]:
    """The score after each stage that has one."""
    found: list[Stage] = []
    if story.first_score is not None:
        found.append(Stage("First candidate", story.first_score, "where the run started"))
    what = {"phase1": "candidates merged", "phase2": "best refined path", "phase3": "best ensemble"}
    for phase, words in what.items():
        event = story.phases.get(phase)
        value = getattr(event, "score", None)
        if value is not None and getattr(event, "outcome", "") == "completed":
            found.append(Stage(SHORT_TITLES[phase], value, words))
    if story.finished is not None and story.finished.score is not None:
        found.append(Stage("Result", story.finished.score, "validated score"))
    return found


def _submission(story: RunStory, run_dir: Path | None) -> tuple[Path | None, str]:
    """The file to submit; before the end, the best one that was put aside."""
    if story.finished is not None and story.finished.submission_path:
        here = RunFolder(run_dir).submission if run_dir is not None else None
        # A run folder may have been moved since: the file beside the journal is the one.
        path = here if here is not None and here.is_file() else Path(story.finished.submission_path)
        return path, "checked and ready"
    if story.kept is not None:
        kept = story.kept
        note = f"the best so far: {text.plural(kept.rows, 'row')}, score {text.score(kept.score)}"
        return (run_dir / kept.path if run_dir is not None else Path(kept.path)), note
    return None, "there is none" if story.finished is not None else "there is none yet"


def _limits(story: RunStory) -> tuple[str, str]:
    totals, config = story.totals, story.config
    cost = [text.plural(totals.calls, "call")]
    time = [text.plural(totals.scripts, "script")]
    if config.max_budget_usd is not None:
        cost.append(f"limit {text.money(config.max_budget_usd)}")
    time.append(f"limit {text.duration(config.time_limit_seconds)}")
    if story.finished is None and story.forecast is not None:
        if story.forecast.cost_usd is not None:
            cost.append(f"forecast {text.money(story.forecast.cost_usd)}")
        if story.forecast.seconds is not None:
            time.append(f"forecast {text.duration(story.forecast.seconds)}")
    return " · ".join(cost), " · ".join(time)


def _warnings(story: RunStory) -> list[str]:
    """What the owner of the result should know: the run's own remarks, and limits that come near while it goes on."""
    found = list(story.finished.result.warnings) if story.finished and story.finished.result else []
    if story.finished is None:
        for one in story.warnings.values():
            show = text.duration if one.limit == "time" else text.money
            found.append(f"80 % of the {one.limit} limit is spent: {show(one.used)} of {show(one.allowed)}")
    return found


def _isolation(story: RunStory) -> tuple[str, str]:
    """What really confined the scripts; the weakest one counts when they differ."""
    counts = story.isolations
    if not counts:
        return "–", "no script has run yet"
    weakest = min(counts, key=lambda one: (one.strength, one.network_blocked, len(one.limits)))
    name = weakest.sandbox
    words = ["no network" if weakest.network_blocked else "network open"]
    words += [text.plural(len(weakest.limits), "limit")] if weakest.limits else []
    every = len(counts) == 1
    words.append("all scripts" if every else f"{counts[weakest]} of {sum(counts.values())} scripts, the others more")
    return name, " · ".join(words)
