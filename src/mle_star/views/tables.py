"""Rows and bars for the sections of the report."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from markupsafe import Markup

from mle_star.method.scores import BASELINE
from mle_star.models import MetricDirection, is_improvement
from mle_star.models.enums import ORDER, phase_of
from mle_star.models.texts import plural
from mle_star.run.events import AgentFailed, PhaseFinished
from mle_star.run.ledger import ScriptRun
from mle_star.views import text
from mle_star.views.charts import Bar, bars
from mle_star.views.facts import SHORT_TITLES, ScoredAttempt, StepStory, Totals, name_of
from mle_star.views.story import RunStory


class AttemptRow(NamedTuple):
    """An attempt, what it changed, how long its scripts ran, and what an estimated score rests on."""

    attempt: ScoredAttempt
    change: float | None
    seconds: float
    basis: str = ""


class Incident(NamedTuple):
    """Something that failed, or that a safety agent found or fixed, with all that is known about it."""

    at: datetime
    kind: str
    step: str
    words: str
    detail: str
    fixed: bool = False


# --- scores ----------------------------------------------------------------------------------------------


def attempt_rows(story: RunStory) -> list[AttemptRow]:
    """Every attempt; what it changed is measured against what it was to beat, else the best before."""
    ran, runs = _seconds_by_attempt(story), story.scripts.values()
    bases = {run.place: run.result.measure.basis for run in runs if run.result.measure is not None}
    rows: list[AttemptRow] = []
    for one, best in zip(story.attempts, [None, *story.best_so_far], strict=False):
        change = None if best is None or one.score is None else one.score - best
        if one.change is not None and one.score is not None:
            change = one.change.difference * (1 if story.direction is MetricDirection.maximize else -1)
        rows.append(AttemptRow(one, change, ran[one.step], "" if one.score is None else bases.get(one.step, "")))
    return rows


def _seconds_by_attempt(story: RunStory) -> dict[str, float]:
    """How long the scripts of each attempt ran, repairs included."""
    found = dict.fromkeys((one.step for one in story.attempts), 0.0)
    for run in story.scripts.values():
        step = run.step
        while step and step not in found:
            step = step.rpartition("/")[0]
        if step:
            found[step] += run.seconds
    return found


def baseline_of(step: StepStory) -> float | None:
    """What the scores of a step's ablation study are compared with."""
    study = step.ablation
    if study is None:
        return None
    return next((value for name, value in study.scores.items() if name.lower() == BASELINE), study.solution_score)


def ablation_chart(story: RunStory, step: StepStory) -> Markup | None:
    """What each part is worth: bars from the baseline to the score without it, the dearest part first."""
    study, baseline = step.ablation, baseline_of(step)
    if study is None or baseline is None:
        return None
    rows = []
    for name, value in study.scores.items():
        if name.lower() != BASELINE:
            loss = is_improvement(baseline, value, story.direction)
            hint = "worse without it: it matters" if loss else "no worse without it"
            shown = f"{text.score(value)} ({text.signed(value - baseline)})"
            rows.append(Bar(name, value, shown, "loss" if loss else "gain", hint))
    rows.sort(key=lambda row: row.value, reverse=story.direction.value == "minimize")
    unit = f"{text.one_line(story.metric, 40)} ({story.direction.better_word} is better)"
    key = f"ablation-{step.path}-{step.t}"
    return bars(key, "Score without each part", rows, unit, baseline=baseline) if rows else None


# --- cost and time ---------------------------------------------------------------------------------------


def by_phase(story: RunStory) -> dict[str, Totals]:
    """Sums by phase, in the order of the method."""
    sums = story.totals_by(lambda one: phase_of(one.step) or "other")
    return {phase: sums[phase] for phase in (*ORDER, "other") if phase in sums}


def by_agent(story: RunStory) -> dict[str, Totals]:
    """Sums of the calls by agent, the dearest first, then the busiest."""
    sums = story.totals_by(lambda one: "" if isinstance(one, ScriptRun) else name_of(one.agent))
    return dict(sorted(sums.items(), key=lambda item: (-item[1].cost_usd, -item[1].call_seconds)))


def spending_charts(story: RunStory) -> dict[str, Markup]:
    """Dollars and time by phase and by agent, where any were spent, by their titles."""
    phases, agents, seconds = by_phase(story), by_agent(story), story.spent.by_stage
    spent: dict[str, tuple[dict[str, float], str, Callable[[float], str]]] = {
        "Cost by phase": ({name: one.cost_usd for name, one in phases.items()}, "US dollars", text.money),
        "Time by phase": ({name: seconds[name] for name in seconds if name in ORDER}, "wall-clock time", text.duration),
        "Cost by agent": ({name: one.cost_usd for name, one in agents.items()}, "US dollars", text.money),
        "Time by agent": ({name: one.call_seconds for name, one in agents.items()}, "waiting time", text.duration),
    }
    found, names = {}, {**SHORT_TITLES, "other": "Other"}
    for title, (values, unit, write) in spent.items():
        rows = [Bar(names.get(name, name), value, write(value)) for name, value in values.items()]
        if any(row.value for row in rows):
            found[title] = bars(title.lower().replace(" ", "-"), title, rows, unit, write=write)
    return found


# --- what failed, and what was fixed -----------------------------------------------------------------------


def interventions(story: RunStory) -> list[Incident]:
    """Every repair and every leak, in order of time."""
    found = []
    for step, one in story.ledger.repaired.items():
        refused = "" if one.accepted else f"repair refused: {one.reason}"
        found.append(Incident(one.at, "debugger", step, one.error, refused, one.accepted))
    for step, leak in story.ledger.leaks_found.items():
        words = f"{plural(leak.found, 'leaking block')} found, {leak.fixed} fixed"
        found.append(Incident(leak.at, "leakage", step, words, "\n\n".join(leak.blocks), leak.fixed >= leak.found))
    return sorted(found)


def failures(story: RunStory) -> list[Incident]:
    """Scripts, calls and phases that failed, in order of time."""
    found = []
    for run in story.scripts.values():
        if run.result.is_error:
            found.append(Incident(run.at, "script", run.step, text.last_line(run.error, "failed"), run.error))
    for call in story.calls.values():
        if isinstance(call, AgentFailed):
            words = f"{call.reason}: {call.message}"
            found.append(Incident(call.at, f"{name_of(call.agent)} agent", call.step, words, call.message))
    for step, event in story.phases.items():
        if isinstance(event, PhaseFinished) and event.outcome in ("failed", "cancelled"):
            found.append(Incident(event.at, "phase", step, f"{event.outcome}: {event.detail}", event.detail))
    return sorted(found)


def settings_rows(story: RunStory) -> list[tuple[str, str, bool]]:
    """Every setting as name, value and whether it differs from the default; those that do, first."""
    defaults, values = type(story.config)().model_dump(), story.config.model_dump()
    rows = [(name, text.one_line(str(value), 200), value != defaults[name]) for name, value in values.items()]
    return sorted(rows, key=lambda row: not row[2])
