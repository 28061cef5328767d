"""What the log says of a run: one listener turns its events into lines. A line names the step that it is about."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from mle_star.models import EvaluationResult
from mle_star.models.enums import ORDER, PHASES
from mle_star.models.texts import TRACEBACK_HEADER
from mle_star.run import events

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

_RUN, _SCRIPTS = logging.getLogger("mle_star.run"), logging.getLogger("mle_star.execution")
QUOTED_CHARACTERS = 200
_SHORT = 40


def log_event(event: events.AnyEvent) -> None:
    """Write the lines of an event; those of scripts are the harness's."""
    logger = _SCRIPTS if event.kind.startswith("script") else _RUN
    for known, text in LINES.get(event.kind, ()):
        level = known if isinstance(known, int) else known(event)
        if logger.isEnabledFor(level) and (line := text(event)):
            logger.log(level, "%s: %s", event.step or "run", line)


def gist(values: Mapping[str, Any]) -> str:
    """Values in a few words: numbers and short texts as they are, the head of a plan, else lengths and counts."""
    parts = []
    for name, value in values.items():
        if isinstance(value, str):
            quoted = name == "plan" or len(value) <= _SHORT
            parts.append(f"{name} {_head(value)}" if quoted else f"{name} of {len(value)} characters")
        elif isinstance(value, (list, tuple)):
            parts.append(f"{len(value)} {name}")
        elif isinstance(value, (int, float)):
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def yes_no(value: object) -> str:
    """As log lines say it."""
    return "yes" if value else "no"


def _head(text: str) -> str:
    return repr(text[:QUOTED_CHARACTERS])


def _score(score: float | None) -> str:
    return "failed" if score is None else str(score)


def _reply(event: events.AgentFinished) -> str:
    if isinstance(event.structured, dict):
        return gist(event.structured)
    code = event.text.partition("```")[2].partition("\n")[2].rpartition("```")[0].strip()
    if code:  # between the first fence and the last: taking it out as the phases do costs more than a line is worth
        return f"code of {len(code)} characters"
    return f"{len(event.text)} characters: {_head(event.text)}"


def _outcome(result: EvaluationResult) -> str:
    ran = "the same script ran before" if result.cached else f"after {result.duration_seconds:.2f} s"
    score = "failed" if result.is_error else result.score
    outcome = f"score {score}, is_error: {yes_no(result.is_error)}, output of {len(result.stdout)} characters"
    return f"exit code {result.exit_code} {ran}, {outcome}, file written: {yes_no(result.submission)}"


def _error(result: EvaluationResult) -> str:
    lines = (result.error_traceback or result.stderr).strip().splitlines() or [""]
    header = f"{TRACEBACK_HEADER} " if result.error_traceback else ""
    return f"error: exit code {result.exit_code}, {header}{lines[-1].strip()[:QUOTED_CHARACTERS]}"


def _ended(event: events.PhaseFinished) -> str:
    return f"{event.outcome} after {event.seconds:.1f} s, score {event.score} {event.detail}".rstrip()


def _merge(event: events.MergeTried) -> str:
    merge = f"index {event.index}, base score {event.base_score}, reference {event.reference_model}"
    how = "accepted" if event.accepted else f"rejected: {event.reason}"
    return f"merge result: {merge}, score {_score(event.score)}, {how}"


def _skipped(event: events.RefinementTried) -> str:
    if event.digest:
        return ""
    no_plan = {events.PLANNER_FAILED: "planner failed", events.SKIPPED: "the run was told to finish"}
    return f"attempt skipped: {'replacement failed' if event.after else no_plan.get(event.plan, 'coder failed')}"


LINES: dict[str, list[tuple[int | Callable[[Any], int], Callable[[Any], str]]]] = {
    "phase_started": [(INFO, lambda e: f"=== {PHASES[ORDER[e.phase]].heading.title()} ===" if e.path is None else "")],
    "phase_finished": [(lambda e: INFO if e.outcome in ("completed", "skipped") else WARNING, _ended)],
    "agent_started": [(INFO, lambda e: f"starts: {e.about}")],
    "agent_finished": [
        (DEBUG, lambda e: f"was asked:\n{e.prompt}"),
        (DEBUG, lambda e: f"replied:\n{e.json_text}"),
        (INFO, lambda e: f"complete: {_reply(e)}, {e.seconds:.1f} s, {e.cost_usd:.4f} USD"),
        (WARNING, lambda e: "" if e.json_text.strip() else "empty reply"),
    ],
    "agent_failed": [(WARNING, lambda e: f"no reply: {e.message}")],
    "script_started": [
        (INFO, lambda e: f"run starts: {e.path}, {e.characters} characters, at most {e.timeout_seconds:.0f} s")
    ],
    "script_finished": [
        (INFO, lambda e: f"run ended: {_outcome(e.result)}"),
        (WARNING, lambda e: f"timeout after {e.result.timeout_seconds:.0f} s" if e.result.timed_out else ""),
        (WARNING, lambda e: _error(e.result) if e.result.is_error and not e.result.timed_out else ""),
    ],
    "models_retrieved": [(INFO, lambda e: f"retrieval done: {len(e.names)} models: {', '.join(e.names)}")],
    "candidate_evaluated": [
        (INFO, lambda e: f"evaluation done: {e.model_name}, {_score(e.score)}"),
        (WARNING, lambda e: f"candidate skipped: {e.model_name}: {e.error}" if e.score is None else ""),
    ],
    "decided": [(INFO, lambda e: "" if e.value else f"no time or money for: {e.name}")],
    "merge_tried": [(INFO, _merge)],
    "data_usage_checked": [(INFO, lambda e: f"data check result: modified: {yes_no(e.changed)}, score {e.score}")],
    "leakage_checked": [
        (INFO, lambda e: f"leakage check complete: found: {yes_no(e.found)}, corrected: {e.fixed} of {e.found}"),
        (WARNING, lambda e: f"{e.found - e.fixed} of {e.found} leaks remain" if e.found > e.fixed else ""),
    ],
    "debug_attempted": [(INFO, lambda e: f"debug end: {e.error}: {'a fix to try' if e.accepted else e.reason}")],
    "ablation_finished": [
        (WARNING, lambda e: "ablation study failed" if e.failed and not e.skipped else ""),
        (INFO, lambda e: f"ablation study: {gist(e.scores)}, summary of {len(e.summary)} characters"),
    ],
    "block_chosen": [
        (INFO, lambda e: f"inner loop handoff: block of {len(e.block)} characters, plan {_head(e.plan)}"),
        (WARNING, lambda e: "" if e.block else f"outer step {e.t} skipped: no code block was extracted"),
    ],
    "refinement_tried": [
        (DEBUG, lambda e: f"code block: {len(e.before)} characters became {len(e.after)}"),
        (WARNING, _skipped),
        (INFO, lambda e: f"attempt {e.k}: score {_score(e.score)}, accepted: {yes_no(e.accepted)}"),
    ],
    "ensemble_tried": [(INFO, lambda e: f"round {e.r}: score {_score(e.score)}, plan {_head(e.plan)}")],
    "shortlist_scored": [(INFO, lambda e: f"final selection: {e.chosen}, of {len(e.shortlist)}")],
    "holdout_prepared": [(WARNING, lambda e: f"scores are those that scripts print: {e.why_not}" if e.why_not else "")],
    "budget_warning": [(WARNING, lambda e: f"80 % of the {e.limit} limit is spent: {e.used:.2f} of {e.allowed:.2f}")],
    "finish_requested": [(WARNING, lambda e: f"asked to {'stop at once' if e.now else 'finish'} by {e.source}")],
    "notice": [(lambda e: getattr(logging, e.level.upper()), lambda e: e.message)],
    "run_finished": [
        (ERROR, lambda e: f"the run ends without a result: {e.message}" if e.result is None else ""),
        (WARNING, lambda e: "; ".join(e.result.warnings) if e.result else ""),
        (INFO, lambda e: f"duration: {json.dumps(e.result.duration_breakdown)}" if e.result else ""),
        (INFO, lambda e: f"lineage: {json.dumps(e.result.lineage)}" if e.result else ""),
        (INFO, lambda e: f"cost: {json.dumps(e.result.cost_breakdown)}" if e.result else ""),
    ],
}
"""By kind of event: the level of each line, or what says it, and its words; an empty text is not written."""
