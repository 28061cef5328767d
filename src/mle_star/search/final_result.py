"""The last page of a run: what it cost, how long it took, where its solution came from, how far it came without one."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mle_star.method.scores import best_first
from mle_star.models import FinalResult, MetricDirection, Phase1Result, Phase2Result, Phase3Result, SolutionScript
from mle_star.models.phases import PHASES, phase_of
from mle_star.run.budget import Budget
from mle_star.run.context import RunContext
from mle_star.run.events import AgentFinished, AnyEvent, CandidateEvaluated, RunFinished, ScriptFinished
from mle_star.run.folder import RunFolder, write_whole
from mle_star.run.journal import Journal
from mle_star.search.control import Stop

logger = logging.getLogger("mle_star.orchestrator")


def best_of(results: list[Phase2Result], direction: MetricDirection) -> Phase2Result | None:
    """The path with the best score; a later one on ties. A leaking solution counts only where all leak."""
    counted = [result for result in results if not result.best_solution.leaking] or results
    return next(iter(best_first(reversed(counted), lambda result: result.best_score, direction)), None)


def cost_breakdown(budget: Budget, paths: int) -> dict[str, Any]:
    """US dollars by phase and by path; whatever follows Phase 3 is part of finalization."""
    by_phase = {f"{phase.name}_cost_usd": 0.0 for phase in PHASES}
    for place, usd in budget.cost_by_phase.items():
        by_phase[f"{phase_of(place) or PHASES[-1].name}_cost_usd"] += usd
    per_path = [budget.cost_by_path.get(f"path-{index}", 0.0) for index in range(paths)]
    return {**by_phase, "phase2_per_path_cost_usd": per_path, "total_cost_usd": budget.spent_usd}


def duration_breakdown(seconds: dict[str, float], total: float) -> dict[str, float]:
    """Wall-clock seconds by phase."""
    by_phase = {f"{phase.name}_duration_seconds": seconds.get(phase.name, 0.0) for phase in PHASES}
    return {**by_phase, "total_duration_seconds": total}


def with_costs(result: FinalResult, budget: Budget) -> FinalResult:
    """The result with all that was paid: calls that were cut off are charged until the client has closed."""
    costs = cost_breakdown(budget, result.config.num_parallel_solutions)
    return result.model_copy(update={"total_cost_usd": budget.spent_usd, "cost_breakdown": costs})


def write_result(folder: RunFolder, journal: Journal, result: FinalResult, data: Path | None = None) -> FinalResult:
    """Write the files that a person looks for, then the journal's last line; what cannot be written is a warning.

    `data` is what the final script is to see as `./input`.
    """
    folder.release_reserve()
    if data is not None:
        with suppress(OSError):
            folder.show_input(data)
    warnings = list(result.warnings)
    for path in (folder.solution, folder.result):
        result = result.model_copy(update={"warnings": warnings})
        text = result.final_solution.content if path == folder.solution else result.model_dump_json(indent=2)
        try:
            write_whole(path, journal.redact(text))
        except OSError as error:
            logger.error("%s cannot be written: %s", path, error)
            warnings.append(f"{path.name} could not be written: {error.strerror}")
    result = result.model_copy(update={"warnings": warnings})
    stop = None if result.stopped_by is None else Stop(result.stopped_by)
    journal.record(
        RunFinished(
            state="completed",
            score=result.final_solution.score,
            submission_path=result.submission_path,
            cost_usd=result.total_cost_usd or 0.0,
            seconds=result.total_duration_seconds,
            result=result,
            message=stop.words if stop else "",
        )
    )
    return result


def earlier_result(events: Iterable[AnyEvent]) -> FinalResult | None:
    """The result that an earlier process of the run submitted last."""
    results = [event.result for event in events if isinstance(event, RunFinished) and event.result is not None]
    return results[-1] if results else None


def diagnostics_of(run: RunContext, error: Exception | None, *, reason: str) -> dict[str, Any]:
    """How far a run came that has nothing to submit, by its journal."""
    done = [event.step for event in run.journal.events if isinstance(event, (AgentFinished, ScriptFinished))]
    candidates = [node.event for node in run.ledger.nodes if isinstance(node.event, CandidateEvaluated)]
    best = run.ledger.best()
    return {
        "reason": reason,
        "error": f"{type(error).__name__}: {error}",
        "errors": getattr(error, "errors", {}),
        "elapsed_seconds": run.budget.elapsed(),
        "cost_usd": run.budget.spent_usd,
        "last_successful_step": done[-1] if done else None,
        "candidate_scores": {event.model_name: event.score for event in candidates},
        "best_candidate": best and {"step": best.step, "score": best.score, "content": run.ledger.text(best.script)},
        "run_dir": str(run.run_dir),
    }


# --- lineage -----------------------------------------------------------------------------------------------


def lineage(result: FinalResult, chosen: SolutionScript, selection: dict[str, Any] | None = None) -> dict[str, Any]:
    """How the final solution came about, phase by phase. `chosen` is what went into finalization, by `selection`."""
    direction = result.task.metric_direction
    return {
        "phase1": _phase1(result.phase1, direction),
        "phase2": _phase2(result.phase2_results, direction),
        "phase3": None if result.phase3 is None else _phase3(result.phase3),
        "final_selection": selection,
        "finalization": _finalization(result, chosen, selection or {}),
    }


def _phase1(phase1: Phase1Result, direction: MetricDirection) -> dict[str, Any]:
    scored = [script for script in phase1.candidate_solutions if script.score is not None]
    best = next(iter(best_first(scored, lambda script: script.score, direction)), None)
    return {
        "retrieved_models": [model.model_name for model in phase1.retrieved_models],
        "selected_candidate": best.source_model if best else None,
        "candidate_score": best.score if best else None,
        "merged": [merge["source_model"] for merge in phase1.merge_attempts if merge.get("accepted")],
        "data_usage_changed": phase1.data_usage_changed,
        "initial_score": phase1.initial_score,
    }


def _phase2(results: list[Phase2Result], direction: MetricDirection) -> dict[str, Any]:
    best = best_of(results, direction)
    return {
        "best_path": None if best is None else next(i for i, result in enumerate(results) if result is best),
        "best_score": None if best is None else best.best_score,
        "paths": [
            {"score": result.best_score, "partial": result.partial, "improvements": _improvements(result)}
            for result in results
        ],
    }


def _improvements(result: Phase2Result) -> list[dict[str, Any]]:
    """The attempts whose script replaced the best one of its path."""
    return [
        {"t": record["outer_step"], "k": k, "score": attempt.score, "plan": attempt.plan}
        for record in result.step_history
        for k, attempt in enumerate(record.get("inner_loop_attempts", []))
        if attempt.was_improvement
    ]


def _phase3(phase3: Phase3Result) -> dict[str, Any]:
    best = None
    for r, attempt in enumerate(phase3.attempts):
        if attempt.solution.content == phase3.best_ensemble.content and attempt.score == phase3.best_ensemble_score:
            best = r
    return {
        "best_round": best,
        "best_score": phase3.best_ensemble_score,
        "plan": None if best is None else phase3.ensemble_plans[best],
        "inputs": [script.score for script in phase3.input_solutions],
    }


def _finalization(result: FinalResult, chosen: SolutionScript, selection: dict[str, Any]) -> dict[str, Any]:
    before, after = chosen.content.splitlines(), result.final_solution.content.splitlines()
    changed = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]  # without the two headings
    return {
        "from_phase": "blend" if len(selection.get("members", [])) > 1 else chosen.phase.value,
        "from_score": chosen.score,
        **result.lineage.get("finalization", {}),
        "own_submission_script": bool(result.submission_path) and result.final_solution.phase.value == "final",
        "lines_added": sum(line.startswith("+") for line in changed),
        "lines_removed": sum(line.startswith("-") for line in changed),
    }
