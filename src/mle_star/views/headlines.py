"""Events in one line each, for people who watch a run go by."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, NamedTuple

from mle_star.method.scores import BASELINE
from mle_star.run.events import (
    AblationFinished,
    AgentFailed,
    AnyEvent,
    BestImproved,
    BlockChosen,
    BudgetWarning,
    CandidateEvaluated,
    DataUsageChecked,
    DebugAttempted,
    EnsembleTried,
    ExamPrepared,
    FinalistsJudged,
    FinishRequested,
    Forecast,
    LeakageChecked,
    MergeTried,
    ModelsRetrieved,
    Notice,
    PassedOver,
    PhaseFinished,
    PhaseStarted,
    RefinementTried,
    RunFinished,
    RunResumed,
    RunStarted,
    ScriptFinished,
    SubmissionKept,
)
from mle_star.views import text
from mle_star.views.facts import PHASE_TITLES, SHORT_TITLES

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


def headline(event: AnyEvent) -> Headline | None:
    """The event in one line, or None when it is not worth one."""
    writer = _WRITERS.get(event.kind)
    said = writer(event) if writer is not None else None
    if said is None:
        return None
    return Headline(event.at, said[0], _place(event.step), text.one_line(said[1], 240), event.kind in _MINOR)


def _place(step: str) -> str:
    """`phase2/path-0/t-1/k-2` as `path 0, step 1, attempt 2`."""
    words = {"path": "path", "t": "step", "k": "attempt", "r": "round", "candidate": "candidate", "merge": "merge"}
    found = []
    for part in step.split("/"):
        name, _, number = part.partition("-")
        if name in words and number.isdigit():
            found.append(f"{words[name]} {number}")
    return ", ".join(found) or SHORT_TITLES.get(step.partition("/")[0], "run")


def _run_started(event: RunStarted) -> Said:
    return "info", f"run {event.run_id} starts: {event.task.competition_id}, {event.model}"


def _run_resumed(event: RunResumed) -> Said:
    spent = f"{text.duration(event.spent_seconds)} and {text.money(event.spent_cost_usd)}"
    return "info", f"the run goes on; {spent} were spent before"


def _run_finished(event: RunFinished) -> Said:
    if event.state == "completed":
        return "good", f"completed, score {text.score(event.score)}"
    return "error", f"{event.state}: {event.message}"


def _phase_started(event: PhaseStarted) -> Said | None:
    return ("info", f"{PHASE_TITLES[event.phase].partition(': ')[2]} begins") if event.path is None else None


def _phase_finished(event: PhaseFinished) -> Said | None:
    score = "" if event.score is None else f", score {text.score(event.score)}"
    level: Level = "warning" if event.outcome in ("failed", "cancelled") else "info"
    detail = f": {event.detail}" if event.detail and event.outcome != "completed" else ""
    return level, f"{event.outcome}{score}{detail}"


def _agent_failed(event: AgentFailed) -> Said:
    return "error", f"{event.agent.value} gave no answer ({event.reason}): {event.message}"


def _script_finished(event: ScriptFinished) -> Said | None:
    if not event.is_error:
        return None
    why = "time limit reached" if event.timed_out else _last_line(event.traceback or event.stderr)
    return "warning", f"script failed: {why or f'exit code {event.exit_code}'}"


def _exam_prepared(event: ExamPrepared) -> Said:
    if event.why_not:
        return "warning", f"scores are what scripts print (self-reported): {event.why_not}"
    views = f" on each of {event.views} views" if event.views > 1 else ""
    return "info", f"scripts are judged by {text.plural(event.search_rows, 'hidden row')}{views} ({event.rule})"


def _finalists_judged(event: FinalistsJudged) -> Said:
    chosen = next((one for one in event.finalists if one["name"] == event.chosen), {"score": None, "rows": 0})
    of = text.plural(len(event.finalists), "finalist")
    return "info", f"final pick: {event.chosen} of {of}, {text.score(chosen['score'])} on {chosen['rows']} rows"


def _models_retrieved(event: ModelsRetrieved) -> Said:
    return "info", f"{text.plural(len(event.names), 'model')} found: {', '.join(event.names)}"


def _candidate_evaluated(event: CandidateEvaluated) -> Said:
    if event.score is None:
        return "warning", f"{event.model_name} failed: {event.error}"
    return "info", f"{event.model_name} scores {text.score(event.score)}"


def _passed_over(event: PassedOver) -> Said | None:
    unit = event.step.rpartition("/")[2]
    return None if unit.startswith("candidate") else ("warning", f"{unit} passed over: {event.reason}")


def _merge_tried(event: MergeTried) -> Said:
    if event.accepted:
        return "good", f"{event.reference_model} merged in: {text.score(event.score)}"
    return "info", f"{event.reference_model} not merged in: {event.reason or text.score(event.score)}"


def _data_usage_checked(event: DataUsageChecked) -> Said | None:
    if not event.changed:
        return None
    return "info", f"data that was not used yet is worked in: {text.score(event.score)}"


def _leakage_checked(event: LeakageChecked) -> Said:
    return "warning", f"data leakage found in {text.plural(event.found, 'place')}, {event.fixed} mended"


def _debug_attempted(event: DebugAttempted) -> Said:
    if event.accepted:
        return "info", f"repaired: {event.error}"
    return "warning", f"repair refused ({event.reason}): {event.error}"


def _ablation_finished(event: AblationFinished) -> Said:
    if event.failed:
        return "warning", "the ablation study failed"
    parts = sum(name.lower() != BASELINE for name in event.scores)
    return "info", f"ablation study of {text.plural(parts, 'part')}: {event.summary}"


def _block_chosen(event: BlockChosen) -> Said:
    if not event.block:
        return "warning", "no block to refine, step skipped"
    return "info", f"a block of {text.plural(event.block.count(chr(10)) + 1, 'line')} is chosen: {event.plan}"


def _refinement_tried(event: RefinementTried) -> Said:
    if event.score is None:
        return "warning", f"attempt failed: {event.plan}"
    if event.accepted:
        return "good", f"accepted, {text.score(event.score)}: {event.plan}"
    return "info", f"not better, {text.score(event.score)}: {event.plan}"


def _ensemble_tried(event: EnsembleTried) -> Said:
    if event.score is None:
        return "warning", f"ensemble failed: {event.plan}"
    return ("good" if event.best else "info"), f"ensemble scores {text.score(event.score)}: {event.plan}"


def _best_improved(event: BestImproved) -> Said:
    return "good", f"new best score {text.score(event.score)}"


def _submission_kept(event: SubmissionKept) -> Said:
    return "info", f"submission with {text.plural(event.rows, 'row')} put aside, score {text.score(event.score)}"


def _forecast(event: Forecast) -> Said | None:
    if event.cost_usd is None and event.seconds is None:
        return None
    return "info", f"forecast: {text.money(event.cost_usd)}, {text.duration(event.seconds)} ({event.basis})"


def _budget_warning(event: BudgetWarning) -> Said:
    show = text.duration if event.limit == "time" else text.money
    return "warning", f"80 % of the {event.limit} limit is spent: {show(event.used)} of {show(event.allowed)}"


def _finish_requested(event: FinishRequested) -> Said:
    what = "stop at once" if event.now else "finish with the best so far"
    return "warning", f"asked to {what} ({event.source})"


def _notice(event: Notice) -> Said:
    return event.level, event.message


def _last_line(error: str) -> str:
    return next((line.strip() for line in reversed(error.splitlines()) if line.strip()), "")


_WRITERS: dict[str, Callable[[Any], Said | None]] = {
    "run_started": _run_started,
    "run_resumed": _run_resumed,
    "run_finished": _run_finished,
    "phase_started": _phase_started,
    "phase_finished": _phase_finished,
    "agent_failed": _agent_failed,
    "script_finished": _script_finished,
    "exam_prepared": _exam_prepared,
    "finalists_judged": _finalists_judged,
    "models_retrieved": _models_retrieved,
    "candidate_evaluated": _candidate_evaluated,
    "passed_over": _passed_over,
    "merge_tried": _merge_tried,
    "data_usage_checked": _data_usage_checked,
    "leakage_checked": _leakage_checked,
    "debug_attempted": _debug_attempted,
    "ablation_finished": _ablation_finished,
    "block_chosen": _block_chosen,
    "refinement_tried": _refinement_tried,
    "ensemble_tried": _ensemble_tried,
    "best_improved": _best_improved,
    "submission_kept": _submission_kept,
    "forecast": _forecast,
    "budget_warning": _budget_warning,
    "finish_requested": _finish_requested,
    "notice": _notice,
}
