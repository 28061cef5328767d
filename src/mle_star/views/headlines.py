"""Events in one line each, for people who watch a run go by."""

from __future__ import annotations

from datetime import datetime
from functools import singledispatch
from typing import Literal, NamedTuple

from mle_star.data.wording import some_of
from mle_star.method.scores import BASELINE
from mle_star.run import events
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES, SHORT_TITLES, place_of

Level = Literal["info", "good", "warning", "error"]
Said = tuple[Level, str]


_MINOR = {"submission_kept", "forecast"}


class Headline(NamedTuple):
    """When, how serious, where and what; plain text throughout. A `minor` one goes first when there is little room."""

    at: datetime
    level: Level
    place: str
    words: str
    minor: bool = False


def headline(event: events.AnyEvent) -> Headline | None:
    """The event in one line, or None when it is not worth one."""
    said = _said(event)
    if said is None:
        return None
    return Headline(
        event.at,
        said[0],
        place_of(event.step) or SHORT_TITLES.get(event.step.partition("/")[0], "run"),
        text.one_line(said[1], 240),
        event.kind in _MINOR,
    )


@singledispatch
def _said(event: events.Event) -> Said | None:
    """How serious it is, and the words; what has no words of its own below is not worth a line."""
    return None


@_said.register
def _run_started(event: events.RunStarted) -> Said:
    return "info", f"run {event.run_id} starts: {event.task.competition_id}, {event.model}"


@_said.register
def _run_resumed(event: events.RunResumed) -> Said:
    spent = f"{text.duration(event.spent_seconds)} and {text.money(event.spent_cost_usd)}"
    return "info", f"the run goes on; {spent} were spent before"


@_said.register
def _run_finished(event: events.RunFinished) -> Said:
    if event.state == "completed":
        how = f"ended early, {event.message}" if event.message else "completed"
        return "good", f"{how}, score {text.score(event.score)}"
    return "error", f"{event.state}: {event.message}"


@_said.register
def _phase_started(event: events.PhaseStarted) -> Said | None:
    return ("info", f"{PHASE_TITLES[event.phase].partition(': ')[2]} begins") if event.path is None else None


@_said.register
def _phase_finished(event: events.PhaseFinished) -> Said | None:
    score = "" if event.score is None else f", score {text.score(event.score)}"
    level: Level = "warning" if event.outcome in ("failed", "cancelled") else "info"
    detail = f": {event.detail}" if event.detail and event.outcome != "completed" else ""
    return level, f"{event.outcome}{score}{detail}"


@_said.register
def _agent_failed(event: events.AgentFailed) -> Said:
    return "error", f"{event.agent.value} gave no answer ({event.reason}): {event.message}"


@_said.register
def _script_finished(event: events.ScriptFinished) -> Said | None:
    if not event.result.is_error:
        return None
    result = event.result
    why = "time limit reached" if result.timed_out else text.last_line(result.error_traceback or result.stderr)
    return "warning", f"script failed: {why or f'exit code {result.exit_code}'}"


@_said.register
def _holdout_prepared(event: events.HoldOutPrepared) -> Said:
    if event.why_not:
        return "warning", f"scores are what scripts print (self-reported): {event.why_not}"
    views = f" in {event.views} views, each hiding others" if event.views > 1 else ""
    hidden = f"scripts are scored by {text.plural(event.search_rows, 'hidden row')}{views} ({event.rule})"
    if not event.not_shown:
        return "info", hidden
    return "warning", f"{hidden}; {unseen(event)}"


def unseen(event: events.HoldOutPrepared) -> str:
    """The files that no script was shown."""
    return f"{some_of(event.not_shown)}: not shown to scripts, as labels may be in it"


@_said.register
def _shortlist_scored(event: events.ShortlistScored) -> Said:
    chosen = next((one for one in event.shortlist if one["name"] == event.chosen), {"score": None, "rows": 0})
    of = text.plural(len(event.shortlist), "shortlisted solution")
    known = "estimated from" if chosen.get("estimated") else "on"
    return (
        "info",
        f"final selection: {event.chosen} of {of}, {text.score(chosen['score'])} {known} {chosen['rows']} rows",
    )


@_said.register
def _models_retrieved(event: events.ModelsRetrieved) -> Said:
    return "info", f"{text.plural(len(event.names), 'model')} found: {', '.join(event.names)}"


@_said.register
def _candidate_evaluated(event: events.CandidateEvaluated) -> Said:
    if event.score is None:
        return "warning", f"{event.model_name} failed: {event.error}"
    return "info", f"{event.model_name} scores {text.score(event.score)}"


@_said.register
def _decided(event: events.Decided) -> Said | None:
    if event.value or event.name != "in-time" or "/candidate-" in event.step:
        return None
    return "warning", f"{event.step.split('/')[1]} passed over: the phase's share of the time is used up"


@_said.register
def _merge_tried(event: events.MergeTried) -> Said:
    if event.accepted:
        return "good", f"{event.reference_model} merged in: {text.score(event.score)}"
    return "info", f"{event.reference_model} not merged in: {event.reason or text.score(event.score)}"


@_said.register
def _data_usage_checked(event: events.DataUsageChecked) -> Said | None:
    if not event.changed:
        return None
    return "info", f"data that was not used yet is worked in: {text.score(event.score)}"


@_said.register
def _leakage_checked(event: events.LeakageChecked) -> Said | None:
    if not event.found:
        return None
    return "warning", f"data leakage found in {text.plural(event.found, 'place')}, {event.fixed} fixed"


@_said.register
def _debug_attempted(event: events.DebugAttempted) -> Said:
    if event.accepted:
        return "info", f"repaired: {event.error}"
    return "warning", f"repair refused ({event.reason}): {event.error}"


@_said.register
def _ablation_finished(event: events.AblationFinished) -> Said:
    if event.failed:
        return "warning", "the ablation study failed"
    parts = sum(name.lower() != BASELINE for name in event.scores)
    what = f" of {text.plural(parts, 'part')}" if parts else ""
    return "info", f"ablation study{what}: {text.prose(event.summary)}"


@_said.register
def _block_chosen(event: events.BlockChosen) -> Said:
    if not event.block:
        return "warning", "no block to refine, step skipped"
    return "info", f"a block of {text.plural(event.block.count(chr(10)) + 1, 'line')} is chosen: {event.plan}"


@_said.register
def _refinement_tried(event: events.RefinementTried) -> Said:
    if event.score is None:
        return "warning", f"attempt failed: {event.plan}"
    if event.accepted:
        return "good", f"accepted, {text.score(event.score)}: {event.plan}"
    return "info", f"not better, {text.score(event.score)}: {event.plan}"


@_said.register
def _ensemble_tried(event: events.EnsembleTried) -> Said:
    if event.score is None:
        return "warning", f"ensemble failed: {event.plan}"
    return ("good" if event.best else "info"), f"ensemble scores {text.score(event.score)}: {event.plan}"


@_said.register
def _best_improved(event: events.BestImproved) -> Said:
    return "good", f"new best score {text.score(event.score)}"


@_said.register
def _submission_kept(event: events.SubmissionKept) -> Said:
    return "info", f"submission with {text.plural(event.rows, 'row')} saved, score {text.score(event.score)}"


@_said.register
def _forecast(event: events.Forecast) -> Said | None:
    if event.cost_usd is None and event.seconds is None:
        return None
    return "info", f"forecast: {text.money(event.cost_usd)}, {text.duration(event.seconds)} ({event.basis})"


@_said.register
def _budget_warning(event: events.BudgetWarning) -> Said:
    show = text.duration if event.limit == "time" else text.money
    return "warning", f"80 % of the {event.limit} limit is spent: {show(event.used)} of {show(event.allowed)}"


@_said.register
def _finish_requested(event: events.FinishRequested) -> Said:
    what = "stop at once" if event.now else "finish with the best so far"
    return "warning", f"asked to {what} ({event.source})"


@_said.register
def _notice(event: events.Notice) -> Said:
    return event.level, event.message
