"""The answer before the details: how good, compared with what, for how much, and which file to submit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mle_star.basics.traits import traits_of
from mle_star.models import is_improvement
from mle_star.run.folder import RunFolder
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES, SHORT_TITLES
from mle_star.views.lineage import lineage_of
from mle_star.views.reasons import expected_of, how_sure, is_single_model, measured_rows, single_model, why
from mle_star.views.story import RunStory

Level = Literal["good", "flat", "bad", "none"]
STATES = {
    "running": "Running",
    "completed": "Completed",
    "early": "Ended early",
    "interrupted": "Interrupted",
    "failed": "Failed",
    "stopped": "Stopped without an end",
}


class Milestone(NamedTuple):
    """A score on the way. `worse`: than that of the stage before; `apart`: on other rows, so neither."""

    name: str
    score: float
    what: str
    worse: bool = False
    apart: bool = False


class File(NamedTuple):
    """The file to submit, or why there is none. `level` says how far it can be relied on."""

    path: Path | None
    label: str
    note: str
    level: Literal["ready", "partial", "missing"]


@dataclass(frozen=True)
class Verdict:
    """What a reader wants to know within ten seconds."""

    state: str
    state_title: str
    detail: str
    score: float | None
    score_note: str
    measured: str
    checked: bool
    why: str
    sure: str
    gain: str
    gain_level: Level
    stages: list[Milestone]
    file: File
    cost: str
    cost_note: str
    time: str
    time_note: str
    model: str
    model_note: str
    isolation: str
    isolation_note: str
    warnings: list[str]

    @property
    def submission(self) -> Path | None:
        """The file to submit, or the best one so far."""
        return self.file.path

    @classmethod
    def of(cls, story: RunStory, run_dir: Path | None = None, *, alive: bool = True) -> Verdict:
        """The verdict as things stand. `alive`: a process is at work on the run."""
        state = _state(story, alive)
        gain, level = _gain(story)
        isolation, isolation_note = _isolation(story)
        cost_note, time_note = _limits(story)
        model = traits_of(story.started.model if story.started else "")
        return cls(
            state=state,
            state_title=STATES[state],
            detail=_detail(story, state),
            score=story.score,
            score_note={"running": "so far", "stopped": "so far", "failed": "before it failed"}.get(state, ""),
            measured=_measured(story),
            checked=story.holdout is not None and not story.holdout.why_not,
            why=why(story),
            sure=how_sure(story),
            gain=gain,
            gain_level=level,
            stages=_stages(story),
            file=_file(story, run_dir, state),
            cost=text.money(story.totals.cost_usd),
            cost_note=cost_note,
            time=text.duration(story.clock.seconds),
            time_note=time_note,
            model=model.title,
            model_note=model.kind,
            isolation=isolation,
            isolation_note=isolation_note,
            warnings=_warnings(story),
        )


def _state(story: RunStory, alive: bool) -> str:
    """The run's state; a result that a limit or a wish cut short is one of its own."""
    if story.finished is None:
        return "running" if alive else "stopped"
    result = story.finished.result
    return "early" if story.state == "completed" and result is not None and result.stopped_by else story.state


def _measured(story: RunStory) -> str:
    """Who measured the score, on what, how sure it is, and what a dummy would get; in one line."""
    holdout, expected = story.holdout, expected_of(story)
    if holdout is None or holdout.why_not:
        return "self-reported: as the script itself measured it"
    words = f"held-out rows ({measured_rows(story, holdout):,})"
    if expected is not None and expected.low is not None and expected.high is not None:
        words += f", between {text.score(expected.low)} and {text.score(expected.high)}"
    classes = story.task is not None and "classification" in story.task.task_type.value
    always = f"always guessing {'the commonest class' if classes else 'one value'}"
    return words + (f"; {always}: {text.score(holdout.baseline.score)}" if holdout.baseline is not None else "")


def _detail(story: RunStory, state: str) -> str:
    if state == "running":
        return PHASE_TITLES.get(story.phase, "starting")
    if state == "stopped":
        return "the process ended before the run did; `mle-star resume` continues from here"
    return "" if story.finished is None else story.finished.message


def _gain(story: RunStory) -> tuple[str, Level]:
    """The score against that of the best single model, in words: a weak first candidate flatters every run."""
    single, now = single_model(story), story.score
    if single is None or now is None or story.state == "failed":
        return "", "none"  # a failed run has gained nothing
    name, base = single
    against = f"the best single model ({name}, {text.score(base)})"
    if is_single_model(story):
        return "a single model: nothing that was built on it was surely better", "flat"
    if now == base:
        return f"no better than {against}", "flat"
    better = is_improvement(now, base, story.direction)
    percent = text.gain_percent(base, now, story.direction)
    amount = text.signed(now - base) if percent is None else f"{abs(percent):.1f} %"
    if percent is not None and abs(percent) < 0.05:
        amount = text.signed(now - base)
    words = f"{amount} {'better' if better else 'worse'} than {against}"
    expected = expected_of(story)
    if (
        expected is not None
        and expected.low is not None
        and expected.high is not None
        and expected.low <= base <= expected.high
    ):
        return f"{words}, which may be chance", "flat"
    return words, "good" if better else "bad"


def _stages(story: RunStory) -> list[Milestone]:
    """The score after each stage that has one."""
    found: list[Milestone] = []
    if story.first_score is not None:
        found.append(Milestone("First score", story.first_score, "where the run started"))
    merged = sum(merge.accepted for merge in story.merges.values())
    refined = any(one.accepted for one in story.refinements)
    what = {
        "phase1": f"{text.plural(merged, 'model')} merged in" if merged else "best candidate, nothing merged in",
        "phase2": "best refined path" if refined else "no attempt was better",
        "phase3": "best ensemble",
    }
    for phase, words in what.items():
        event = story.phases.get(phase)
        value = getattr(event, "score", None)
        if value is not None and getattr(event, "outcome", "") == "completed":
            found.append(Milestone(SHORT_TITLES[phase], value, words, _is_worse(story, found, value)))
    if story.finished is not None and story.finished.score is not None:
        value, expected = story.finished.score, expected_of(story)
        if lineage_of(story).promoted:
            words = "of the script promoted by hand"
            found.append(Milestone("Result", value, words, _is_worse(story, found, value)))
        elif expected is not None:
            found.append(Milestone("Result", value, "on rows kept for the end", apart=True))
        else:
            found.append(Milestone("Result", value, "of the final solution", _is_worse(story, found, value)))
    return found


def _is_worse(story: RunStory, before: list[Milestone], value: float) -> bool:
    return bool(before) and is_improvement(before[-1].score, value, story.direction)


def _file(story: RunStory, run_dir: Path | None, state: str) -> File:
    """The file to submit; before the end, or after a failure, the best one that was saved."""
    result = story.finished.result if story.finished else None
    if story.finished is not None and story.finished.submission_path:
        here = RunFolder(run_dir).submission if run_dir is not None else None
        # A run folder may have been moved since: the file beside the journal is the one.
        path = here if here is not None and here.is_file() else Path(story.finished.submission_path)
        facts = {} if result is None else result.lineage.get("finalization", {})
        note, sound = _file_note(story, facts)
        return File(path, "File to submit", note, "ready" if sound else "partial")
    if result is not None and not result.has_test:
        name = "RUN" if run_dir is None else run_dir.name
        return File(None, "Result", f"Model ready: `mle-star predict {name} NEW.csv`", "ready")
    if story.kept is not None:
        kept = story.kept
        note = f"{text.plural(kept.rows, 'row')}, score {text.score(kept.score)}"
        label = {"failed": "Best file before the run failed"}.get(state, "Best file so far")
        return File(run_dir / kept.path if run_dir is not None else Path(kept.path), label, note, "partial")
    there_is_none = "there is none" if story.finished is not None else "there is none yet"
    return File(None, "File to submit", there_is_none, "missing")


def _file_note(story: RunStory, facts: dict[str, Any]) -> tuple[str, bool]:
    """What was found in the file, and whether it is what was wanted."""
    rows, sample = facts.get("rows"), facts.get("sample")
    words = [] if rows is None else [text.plural(rows, "row")]
    if sample:
        words.append(f"columns match {text.one_line(str(sample), 60)}")
    if facts.get("fallback"):
        return ", ".join([*words, "kept from the search: the final script did not do"]), False
    return ", ".join(words) or "in its place", not facts.get("problems")


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
    name = weakest.sandbox.replace("+", " + ")
    words = ["no network" if weakest.network_blocked else "network open"]
    words += [text.plural(len(weakest.limits), "limit")] if weakest.limits else []
    every = len(counts) == 1
    words.append("all scripts" if every else f"{counts[weakest]} of {sum(counts.values())} scripts, the others more")
    return name, " · ".join(words)
