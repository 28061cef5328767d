"""Rows and bars for the sections of the report."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from markupsafe import Markup

from mle_star.method.scores import BASELINE
from mle_star.models import is_improvement
from mle_star.views import text
from mle_star.views.charts import Bar, bars
from mle_star.views.facts import PHASE_TITLES, SHORT_TITLES, Attempt, StepStory, Totals
from mle_star.views.story import RunStory


class AttemptRow(NamedTuple):
    """An attempt, the element of the page that tells more about it, what it changed and how long its scripts ran."""

    number: int
    attempt: Attempt
    link: str
    teaser: str
    change: float | None
    seconds: float
    basis: str = ""


class PhaseRow(NamedTuple):
    """What a phase took."""

    title: str
    totals: Totals
    wall_seconds: float


class AgentRow(NamedTuple):
    """What an agent's calls took."""

    agent: str
    totals: Totals


class Intervention(NamedTuple):
    """Something that a safety agent found or fixed."""

    at: datetime
    kind: str
    step: str
    done: bool
    words: str
    detail: str


class FailureRow(NamedTuple):
    """Something that went wrong, with all that is known about it."""

    at: datetime
    kind: str
    step: str
    words: str
    detail: str


# --- scores ----------------------------------------------------------------------------------------------


def attempt_rows(story: RunStory) -> list[AttemptRow]:
    """Every attempt with its number and link; what it changed is set against the best before it."""
    rows: list[AttemptRow] = []
    ran, bases = _seconds_by_attempt(story), {run.place: run.basis for run in story.scripts.values() if run.counts}
    best: float | None = None
    teasers = text.teasers([one.note for one in story.attempts], 110)
    for number, (one, teaser) in enumerate(zip(story.attempts, teasers, strict=True), 1):
        change = None if best is None or one.score is None else one.score - best
        rows.append(
            AttemptRow(number, one, link_of(one), teaser, change, ran.get(one.step, 0.0), bases.get(one.step, ""))
        )
        if one.score is not None and (best is None or is_improvement(one.score, best, story.direction)):
            best = one.score
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


def link_of(attempt: Attempt) -> str:
    """The id of the element about an attempt."""
    parts = attempt.step.split("/")
    numbers = [part.rpartition("-")[2] for part in parts]
    if attempt.kind == "refinement":
        return "try-" + "-".join(numbers[1:4])
    names = {"candidate": "candidate-", "merge": "merge-", "ensemble": "round-"}
    return names[attempt.kind] + numbers[-1] if attempt.kind in names else "data-use"


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
        if name.lower() == BASELINE:
            continue
        loss = is_improvement(baseline, value, story.direction)
        hint = "worse without it: it matters" if loss else "no worse without it"
        shown = f"{text.score(value)} ({text.signed(value - baseline)})"
        rows.append(Bar(name, value, shown, "loss" if loss else "gain", hint))
    if not rows:
        return None
    rows.sort(key=lambda row: row.value, reverse=story.direction.value == "minimize")
    return bars(
        f"ablation-{step.path}-{step.t}",
        "Score without each part",
        rows,
        origin=baseline,
        origin_name="baseline",
        unit=f"{text.one_line(story.metric, 40)} ({story.direction.better_word} is better)",
    )


# --- cost and time ---------------------------------------------------------------------------------------


def phase_rows(story: RunStory) -> list[PhaseRow]:
    """Cost and time by phase."""
    return [
        PhaseRow(PHASE_TITLES.get(phase, "Other"), totals, story.clock.by_phase.get(phase, 0.0))
        for phase, totals in story.totals_by_phase().items()
    ]


def agent_rows(story: RunStory) -> list[AgentRow]:
    """Cost and time by agent, the dearest first."""
    return [AgentRow(agent, totals) for agent, totals in story.totals_by_agent().items()]


def phase_chart(story: RunStory) -> Markup | None:
    """Dollars by phase; None when nothing was paid."""
    rows = [
        Bar(SHORT_TITLES.get(phase, "Other"), totals.cost_usd, text.money(totals.cost_usd))
        for phase, totals in story.totals_by_phase().items()
    ]
    if not any(row.value for row in rows):
        return None
    return bars("cost-phase", "Cost by phase", rows, unit="US dollars", show="money")


def agent_chart(story: RunStory) -> Markup | None:
    """Dollars by agent; None when nothing was paid."""
    agents = story.totals_by_agent().items()
    rows = [Bar(agent, totals.cost_usd, text.money(totals.cost_usd)) for agent, totals in agents]
    if not any(row.value for row in rows):
        return None
    return bars("cost-agent", "Cost by agent", rows, unit="US dollars", show="money")


def waiting_chart(story: RunStory) -> Markup | None:
    """How long each agent was waited for."""
    agents = story.totals_by_agent().items()
    rows = [Bar(agent, totals.call_seconds, text.duration(totals.call_seconds)) for agent, totals in agents]
    return bars("time-agent", "Time by agent", rows, unit="waiting for answers", show="duration") if rows else None


def time_chart(story: RunStory) -> Markup | None:
    """Wall-clock time by phase."""
    rows = [
        Bar(SHORT_TITLES[phase], story.clock.by_phase[phase], text.duration(story.clock.by_phase[phase]))
        for phase in SHORT_TITLES
        if story.clock.by_phase.get(phase)
    ]
    return bars("time-phase", "Time by phase", rows, unit="wall-clock time", show="duration") if rows else None


# --- what went wrong, and what was fixed ------------------------------------------------------------------


def interventions(story: RunStory) -> list[Intervention]:
    """Every repair and every leak, in order of time."""
    found = [
        Intervention(
            one.at, "debugger", step, one.accepted, one.error, "" if one.accepted else f"repair refused: {one.reason}"
        )
        for step, one in story.repairs.items()
    ]
    found += [
        Intervention(
            one.at,
            "leakage",
            step,
            one.fixed >= one.found,
            f"{text.plural(one.found, 'leaking block')} found, {one.fixed} fixed",
            "\n\n".join(one.blocks),
        )
        for step, one in story.leaks.items()
    ]
    return sorted(found, key=lambda one: one.at)


def failures(story: RunStory) -> list[FailureRow]:
    """Scripts, calls and phases that failed, in order of time."""
    found = [
        FailureRow(run.at, "script", run.step, text.last_line(run.error, "failed"), run.error)
        for run in story.scripts.values()
        if run.result.is_error
    ]
    found += [
        FailureRow(call.at, f"{call.agent} agent", call.step, f"{call.reason}: {call.failure}", call.failure)
        for call in story.calls.values()
        if call.failure
    ]
    found += [
        FailureRow(event.at, "phase", step, f"{event.outcome}: {event.detail}", event.detail)
        for step, event in story.phases.items()
        if event.kind == "phase_finished" and event.outcome in ("failed", "cancelled")
    ]
    return sorted(found, key=lambda one: one.at)


# --- settings --------------------------------------------------------------------------------------------


def settings_rows(story: RunStory) -> list[tuple[str, str, bool]]:
    """Every setting as name, value and whether it differs from the default."""
    defaults = type(story.config)()
    rows = []
    for name in type(story.config).model_fields:
        value = getattr(story.config, name)
        rows.append((name, text.one_line(str(value), 200), value != getattr(defaults, name)))
    return sorted(rows, key=lambda row: not row[2])
