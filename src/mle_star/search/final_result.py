"""The result of a run: costs, durations, lineage, how far it came; and its scores, computed once more later."""

import difflib
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mle_star.data.layout import find_layout
from mle_star.data.tables import Unsupported
from mle_star.errors import ConfigError
from mle_star.execution.artifacts import in_order
from mle_star.execution.scoring import compared
from mle_star.holdout.answers import Ungradable, read_answers
from mle_star.holdout.holdout import HoldOut, metric_of
from mle_star.method.scores import best_of
from mle_star.models import FinalResult, Measure, Phase2Result, SolutionScript, TaskDescription
from mle_star.models.enums import PHASES, phase_of
from mle_star.models.texts import digest_of, duration
from mle_star.run import events
from mle_star.run.budget import Spent
from mle_star.run.context import RunContext
from mle_star.run.folder import RunFolder, config_of, first_line, write_whole
from mle_star.run.journal import Journal, read_journal
from mle_star.run.ledger import Ledger, ScriptRun
from mle_star.search.control import Stop
from mle_star.search.shortlist import Shortlisted

if TYPE_CHECKING:  # a run that hides no rows does without numpy
    from mle_star.holdout.scorer import Scorer

logger = logging.getLogger("mle_star.orchestrator")

SUBMITTED = "final/submission.csv"
"""The step under which what was submitted is scored again."""
_OF_A_GAIN, _OF_A_ROUND = {"path", "t", "k", "score", "plan"}, {"r", "score", "plan", "parents"}
DECIDED_BY_TIME = ("in-time", "go-on", "study", "fits", "ensembles", "blend-fits", "run-again")
USED = 0.9
"""A run that was at work for so much of its time has used it."""


def best_path(run: RunContext, results: list[Phase2Result]) -> Phase2Result | None:
    """The path with the best score; a later one on ties. A leaking solution counts only where all leak."""
    counted = [result for result in results if not run.leaks(result.best_solution.content, "phase2")] or results
    return best_of(reversed(counted), lambda result: result.best_score, run.task.metric_direction)


def duration_breakdown(ended: dict[str, events.PhaseFinished], total: float) -> dict[str, float]:
    """Wall-clock seconds by phase."""
    by_phase = {f"{phase}_duration_seconds": event.seconds for phase, event in ended.items()}
    return {**by_phase, "total_duration_seconds": total}


def with_costs(result: FinalResult, spent: Spent) -> FinalResult:
    """The result with the US dollars of each phase and path: calls cut off are charged until the client has closed.

    Whatever follows Phase 3 is part of finalization.
    """
    costs: dict[str, Any] = {f"{phase.name}_cost_usd": 0.0 for phase in PHASES}
    for step, usd in spent.charges:
        costs[f"{phase_of(step) or PHASES[-1].name}_cost_usd"] += usd
    paths = [f"phase2/path-{index}/" for index in range(result.config.num_parallel_solutions)]
    costs["phase2_per_path_cost_usd"] = [sum(usd for step, usd in spent.charges if step.startswith(p)) for p in paths]
    costs["total_cost_usd"] = spent.usd
    return result.model_copy(update={"total_cost_usd": spent.usd, "cost_breakdown": costs})


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
        events.RunFinished(
            state="completed",
            score=result.final_solution.score,
            submission_path=result.submission_path,
            cost_usd=result.total_cost_usd or 0.0,
            seconds=result.total_duration_seconds,
            result=result,
            message=stop.words if stop else how_time_went(result, journal),
        )
    )
    return result


def how_time_went(result: FinalResult, journal: Journal) -> str:
    """How much of the time that was given a run that nothing stopped could use; nothing where none was given."""
    config, took = result.config, result.total_duration_seconds
    if result.used_time:
        return "used its time"
    if config.letter or not config.has_own_limit or "finalization" not in result.phases_completed:
        return ""
    limit = config.time_limit_seconds
    words = "ended: too little time for more" if any(map(journal.refused, DECIDED_BY_TIME)) else "nothing left to do"
    return "" if took >= USED * limit else f"{words} after {duration(took)} of {duration(limit)}"


def earlier_result(recorded: Iterable[events.AnyEvent]) -> FinalResult | None:
    """The result that an earlier process of the run submitted last."""
    ends = (event.result for event in reversed([*recorded]) if isinstance(event, events.RunFinished))
    return next(filter(None, ends), None)


def diagnostics_of(run: RunContext, error: Exception | None, *, reason: str) -> dict[str, Any]:
    """How far a run came that has nothing to submit, by its journal."""
    done = [e.step for e in run.journal.events if isinstance(e, (events.AgentFinished, events.ScriptFinished))]
    candidates = [node.event for node in run.ledger.nodes if isinstance(node.event, events.CandidateEvaluated)]
    best = run.ledger.best()
    content = best and run.ledger.text(best.script_id)
    return {
        "reason": reason,
        "error": f"{type(error).__name__}: {error}",
        "errors": getattr(error, "errors", {}),
        "elapsed_seconds": run.budget.elapsed(),
        "cost_usd": run.budget.spent.usd,
        "last_successful_step": done[-1] if done else None,
        "candidate_scores": {event.model_name: event.score for event in candidates},
        "best_candidate": best and {"step": best.step, "score": best.score, "content": content},
        "run_dir": str(run.run_dir),
    }


# --- lineage -----------------------------------------------------------------------------------------------


def lineage(
    run: RunContext, result: FinalResult, chosen: SolutionScript, picked: Shortlisted | None = None
) -> dict[str, Any]:
    """How the final solution came about, phase by phase: the attempts that it grew out of, by the ledger.

    `chosen` is what went into finalization, `picked` by the final selection: a blend grew out of each of its scripts.
    """
    scripts = [chosen.content] if picked is None else picked.scripts
    nodes = sorted(run.ledger.ancestors(*map(digest_of, scripts)), key=lambda node: in_order(node.step))
    origin, line = None if picked is None else picked.origin, [node.event for node in nodes]
    best, paths = best_path(run, result.phase2_results), result.phase2_results
    gains = [one.model_dump(include=_OF_A_GAIN) for one in line if isinstance(one, events.RefinementTried)]
    return {
        "phase1": {
            "retrieved_models": [model.model_name for model in result.phase1.retrieved_models],
            "candidates": {one.model_name: one.score for one in line if isinstance(one, events.CandidateEvaluated)},
            "merged": [one.reference_model for one in line if isinstance(one, events.MergeTried)],
            "data_usage_changed": any(isinstance(one, events.DataUsageChecked) for one in line),
            "initial_score": result.phase1.initial_score,
        },
        "phase2": {
            "best_path": next((index for index, path in enumerate(paths) if path is best), None),
            "best_score": best and best.best_score,
            "improvements": gains,
        },
        "phase3": [one.model_dump(include=_OF_A_ROUND) for one in line if isinstance(one, events.EnsembleTried)],
        "final_selection": origin,
        "finalization": _finalization(result, chosen, origin or {}),
    }


def _finalization(result: FinalResult, chosen: SolutionScript, selection: dict[str, Any]) -> dict[str, Any]:
    before, after = chosen.content.splitlines(), result.final_solution.content.splitlines()
    changed = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]  # without the two headings
    return {
        "from_phase": "blend" if len(selection.get("members", [])) > 1 else chosen.phase.value,
        "from_score": chosen.score,
        "from_script": digest_of(chosen.content),
        **result.lineage.get("finalization", {}),
        "own_submission_script": bool(result.submission_path) and result.final_solution.phase.value == "final",
        "lines_added": sum(line.startswith("+") for line in changed),
        "lines_removed": sum(line.startswith("-") for line in changed),
    }


# --- scores of a run's submissions, computed again ----------------------------------------------------------


@dataclass(frozen=True)
class Rescored:
    """One submission of a run: what its script printed, what the search and the other hidden rows say, the truth."""

    step: str
    printed: float | None
    search: Measure | None = None
    select: Measure | None = None
    truth: float | None = None
    problem: str = ""


def rescore(run_dir: Path, answers: Path | None = None) -> list[Rescored]:
    """Every submission of a run, in order; the one that was submitted comes last."""
    folder, task = RunFolder(run_dir), first_line(run_dir).task
    recorded = list(read_journal(folder.journal))
    holdout = _holdout(recorded, task, folder.root)
    if holdout is None and answers is None:
        raise ConfigError("the scores of this run are those that its scripts printed: --answers FILE checks them")
    ledger, found = Ledger.of(recorded), dict[str, Rescored]()
    truth = None if answers is None else _Truth(_scorer(task) if holdout is None else holdout.scorer, answers)
    for run in ledger.ran():
        if not run.result.is_error and (run.result.answers or run.result.submission):
            found[run.step] = _of_run(run, ledger.scored(), folder.root, holdout, truth)
    if folder.submission.is_file():
        result = earlier_result(recorded)
        worth, problem = (None, "") if truth is None else truth.of(folder.submission)
        expected = None if result is None else result.expected
        found[SUBMITTED] = Rescored(SUBMITTED, None, None, expected, worth, problem)
    return list(found.values())


def _holdout(recorded: list[events.AnyEvent], task: TaskDescription, run_dir: Path) -> HoldOut | None:
    prepared = next((event for event in reversed(recorded) if isinstance(event, events.HoldOutPrepared)), None)
    if prepared is None or prepared.why_not:
        return None
    try:
        holdout = HoldOut.prepare(task, config_of(recorded), run_dir, write=0)
    except (Unsupported, Ungradable, OSError) as error:
        raise ConfigError(f"the data in {task.data_dir} can no longer be split as the run did: {error}") from None
    if holdout.digest != prepared.digest:
        raise ConfigError(
            f"the hidden rows of the run cannot be drawn again: the data in {task.data_dir} have changed since, "
            "or another version of mle-star made the run"
        )
    return holdout


def _scorer(task: TaskDescription) -> "Scorer":
    from mle_star.holdout.scorer import Scorer
    from mle_star.holdout.views import Data

    folder = Path(task.data_dir)
    try:
        return Scorer(Data.read(find_layout(folder, task.description)), metric_of(task, folder))
    except Unsupported as error:
        raise ConfigError(f"submissions of this task cannot be scored here: {error}") from None


def _of_run(
    event: ScriptRun, scored: list[ScriptRun], root: Path, holdout: HoldOut | None, truth: "_Truth | None"
) -> Rescored:
    search = select = worth = None
    problem = ""
    if holdout is not None and event.result.answers and event not in scored:
        problem = "scored by other hidden rows, or with other packages"
    elif holdout is not None and event.result.answers:
        try:
            answers = holdout.read([root / path for path in event.result.answers], holdout.views)
            search = compared(holdout, root, scored[: scored.index(event)], event.result.answers)
            known = replace(holdout, used=max(len(one.result.answers) for one in scored))
            select = known.measure(answers, known.select_rows, ahead=True)
        except (OSError, Ungradable) as error:
            problem = str(error)
    if truth is not None and event.result.submission is not None:
        worth, why = truth.of(root / event.result.submission)
        problem = problem or why
    return Rescored(event.step, event.printed_score, search, select, worth, problem)


class _Truth:
    """The labels of the real test, in its order: by key, else as they stand; of a column for each class the largest."""

    def __init__(self, scorer: "Scorer", path: Path) -> None:
        self.scorer, sample = scorer, scorer.data.layout.sample
        separator = sample.form.separator if sample is not None and sample.form.kind == "csv" else ","
        try:
            columns = scorer.plain(list(zip(*self._read(path), strict=True)), separator)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {str(error).replace('the submission', 'it')}") from None
        self.labels = list(map(list, zip(*columns, strict=True)))

    def of(self, submission: Path) -> tuple[float | None, str]:
        """The score of a submission, or why it has none."""
        try:
            answers = read_answers(self.scorer.data, submission, self.scorer.data.real_view())
            return self.scorer.compute(*self.scorer.arrays(self.labels, list(answers.real))), ""
        except (OSError, ValueError, ConfigError) as error:
            return None, str(error)

    def _read(self, path: Path) -> Sequence[Sequence[str]]:
        """What a file says of the test, read as a submission of the target itself, or of a column for each class."""
        scorer, data, target = self.scorer, self.scorer.data, self.scorer.data.layout.target
        if (prefix := target.class_prefix) is not None:
            with suppress(Ungradable):
                rows = read_answers(data, path, data.real_view()).real
                return [[scorer.names[row.index(max(row, key=float))].removeprefix(prefix)] for row in rows]
        as_target = replace(data, layout=replace(data.layout, answers=target.names))
        return read_answers(as_target, path, data.real_view()).real
