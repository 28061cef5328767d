"""Phase 1, the initial solution: retrieve models, try each, merge the good ones into the best (Algorithm 1)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mle_star.codeblocks import extract_code_block, has_extractable_code
from mle_star.context import AgentReply, RunContext, current_run, enter_run, scope
from mle_star.errors import AgentError, Phase1Error
from mle_star.events import CandidateEvaluated, DataUsageChecked, MergeTried, ModelsRetrieved
from mle_star.execution import (
    evaluate_with_retry,
    get_subsample_instruction,
    prepare_path_directory,
    rank_solutions,
)
from mle_star.models import (
    AgentType,
    EvaluationResult,
    Phase1Result,
    PipelineConfig,
    RetrievedModel,
    RetrieverOutput,
    SolutionPhase,
    SolutionScript,
    TaskDescription,
    is_improvement,
    is_improvement_or_equal,
)
from mle_star.safety import (
    NO_CODE,
    ask_agent,
    check_and_fix_leakage,
    check_data_usage,
    exception_line,
    fall_back,
    make_debug_callback,
    try_agent,
    warn_unusable,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRIEVAL_TRIES = 2  # without models there is no run, so one bad reply is forgiven
QUOTED_CHARACTERS = 500
PROGRESS_NOTE = "phase 1 progress"
"""The note in `RunShared.notes` under which the state of the phase lies, should it be cut off."""


@dataclass(frozen=True)
class Trial:
    """A script that was evaluated: it carries its score, or `error` says why it has none."""

    script: SolutionScript
    result: EvaluationResult
    error: str = ""

    @property
    def outcome(self) -> str:
        """For log lines."""
        return "failed" if self.script.score is None else str(self.script.score)


@dataclass
class Phase1Progress:
    """What the phase has found so far, published as it grows. `initial` is s_0 once the candidates are ranked."""

    models: list[RetrievedModel] = field(default_factory=list)
    trials: dict[int, Trial] = field(default_factory=dict)
    initial: SolutionScript | None = None
    merges: list[MergeTried] = field(default_factory=list)
    data_usage_changed: bool = False

    @classmethod
    def of_run(cls) -> Phase1Progress:
        """The state of the phase in the current run, empty before it begins."""
        state = current_run().shared.notes.setdefault(PROGRESS_NOTE, cls())
        assert isinstance(state, cls)
        return state

    def result(self, initial: SolutionScript) -> Phase1Result:
        """The state as the phase's result."""
        scripts = [trial.script for _, trial in sorted(self.trials.items())]
        return Phase1Result(
            retrieved_models=self.models, candidate_solutions=scripts,
            candidate_scores=[script.score for script in scripts], initial_solution=initial,
            initial_score=_score(initial),
            merge_attempts=[
                {"source_model": m.reference_model, "score": m.score, "accepted": m.accepted, "reason": m.reason}
                for m in self.merges
            ],
            data_usage_changed=self.data_usage_changed,
        )  # fmt: skip


# --- Algorithm 1 -----------------------------------------------------------------------------------------


async def run_phase1(task: TaskDescription, config: PipelineConfig) -> Phase1Result:
    """Algorithm 1: retrieve M models, try each, merge them by rank into the best; then check data use and leakage."""
    started, state = time.monotonic(), Phase1Progress()
    current_run().shared.notes[PROGRESS_NOTE] = state
    with scope("phase1"):
        logger.info("phase start: %s, M %d", task.competition_id, config.num_retrieved_models)
        state.models = await retrieve_models(task, config)  # line 1
        trials = await _try_candidates(state.models, task, config)  # lines 2-5
        ranked = _rank(trials, task)  # line 6
        merged = await _merge_by_rank(ranked, state, task, config)  # lines 7-17
        state.initial = complete = await _use_all_data(merged, task, config)
        state.data_usage_changed = complete is not merged
        state.initial = await _remove_leakage(complete, task, config)
    initial, merges = state.initial, len(state.merges)
    logger.info("phase end: score %s, %.1f s, %d merges done", initial.score, time.monotonic() - started, merges)
    return state.result(initial)


def partial_phase1(task: TaskDescription) -> Phase1Result | None:
    """What the candidates and merges that were finished came to when the phase was cut off; None without a score."""
    state = Phase1Progress.of_run()
    scored = [trial for _, trial in sorted(state.trials.items()) if trial.script.score is not None]
    if not scored:
        return None
    return state.result(_rank(scored, task)[0] if state.initial is None else state.initial)


async def _merge_by_rank(
    ranked: list[SolutionScript], state: Phase1Progress, task: TaskDescription, config: PipelineConfig
) -> SolutionScript:
    """Lines 7-17: work each further candidate into s_0, best first, until one merge does not hold the score.

    Each merge starts from the s_0 that the one before left, so they run one after another.
    """
    run, s_0 = current_run(), ranked[0]
    state.initial = s_0
    for index, candidate in enumerate(ranked[1:], start=1):
        if run.should_stop:
            logger.info("merge break: index %d, the run is to finish", index)
            break
        run.check()
        with scope(f"merge-{index}"):
            merged, merge = await _try_merge(index, s_0, candidate, task, config)
        state.merges.append(merge)
        if not merge.accepted:
            logger.info("merge break: index %d, %s", index, merge.reason)
            break
        state.initial = s_0 = merged
    return s_0


async def _try_merge(
    index: int, s_0: SolutionScript, reference: SolutionScript, task: TaskDescription, config: PipelineConfig
) -> tuple[SolutionScript, MergeTried]:
    """Lines 9-13: one merge, evaluated and compared with h_best; a tie is accepted."""
    h_best, name = _score(s_0), reference.source_model or ""
    logger.info("merge start: index %d, base score %s, reference %s", index, h_best, name)
    trial = await _evaluate(await merge_solutions(s_0, reference, config), task, config)
    score = trial.script.score
    accepted = score is not None and is_improvement_or_equal(score, h_best, task.metric_direction)
    reason = "" if accepted else trial.error or f"{score} does not reach {h_best}"
    logger.info("merge result: index %d, score %s, %s", index, trial.outcome, "accepted" if accepted else "rejected")
    merge = MergeTried(
        index=index, base_score=h_best, reference_model=name, score=score, accepted=accepted, reason=reason
    )
    current_run().record(merge)
    return trial.script, merge


# --- line 1: retrieval -----------------------------------------------------------------------------------


async def retrieve_models(task: TaskDescription, config: PipelineConfig) -> list[RetrievedModel]:
    """Between one and M models from the web; a reply that cannot be used is asked for once more."""
    for tries_left in reversed(range(RETRIEVAL_TRIES)):
        try:
            models = await _retrieve_once(task, config)
            break
        except (AgentError, ValueError) as error:
            logger.warning("retrieval failed: %s", error)
            if not tries_left:
                raise
    names = [model.model_name for model in models]
    logger.info("retrieval done: %d models: %s", len(models), ", ".join(names))
    current_run().record(ModelsRetrieved(names=names))
    return models


async def _retrieve_once(task: TaskDescription, config: PipelineConfig) -> list[RetrievedModel]:
    wanted = config.num_retrieved_models
    reply = await ask_agent(AgentType.retriever, task_description=task.description, M=wanted)
    models = _usable(parse_retriever_output(reply.json_text).models)[:wanted]
    if not models:
        raise ValueError("A_retriever returned zero models")
    if len(models) < wanted:
        logger.warning("retrieval: %d models instead of %d", len(models), wanted)
    return models


def parse_retriever_output(response: str) -> RetrieverOutput:
    """The retriever's answer; a `ValueError` says what is wrong with it and quotes its beginning."""
    try:
        return RetrieverOutput.model_validate_json(response)
    except ValidationError as error:
        problem, head = error.errors()[0]["msg"], response[:QUOTED_CHARACTERS]
        raise ValueError(f"the retriever's reply cannot be used ({problem}): {head}") from error


def _usable(models: Iterable[RetrievedModel]) -> list[RetrievedModel]:
    """The models that have code, and a name that no other has."""
    usable: dict[str, RetrievedModel] = {}
    for model in models:
        name = model.model_name.strip().casefold()
        if not name or not model.example_code.strip():
            logger.warning("retrieval: a model without a name or without code is left out: %r", model.model_name)
        elif name in usable:
            logger.warning("retrieval: a model came twice, the second one is left out: %r", model.model_name)
        else:
            usable[name] = model
    return list(usable.values())


# --- lines 2-5: candidates -------------------------------------------------------------------------------


async def _try_candidates(models: list[RetrievedModel], task: TaskDescription, config: PipelineConfig) -> list[Trial]:
    """Lines 2-5: a script for each model, checked and evaluated, in the order of the models.

    Candidates are independent: all are generated at once and evaluated as the harness has room. What is recorded about
    each of them does not depend on who was first; only the running best is told as it becomes known.
    """
    total = len(models)
    trials = await _all(_try_candidate(i, total, model, task, config) for i, model in enumerate(models))
    errors: dict[str, str] = {}
    for index, (model, trial) in enumerate(zip(models, trials, strict=True)):
        name, score = model.model_name, trial.script.score
        with scope(f"candidate-{index}") as run:
            run.record(CandidateEvaluated(index=index, model_name=name, score=score, error=trial.error))
        if score is None:
            errors[name] = trial.error
            logger.warning("candidate skipped: %s: %s", name, trial.error)
    if len(errors) == total:
        logger.error("all %d candidates failed: %s", total, ", ".join(errors))
        raise Phase1Error(f"Phase 1 failed: all {total} candidates produced execution errors", errors=errors)
    return trials


async def _try_candidate(
    index: int, total: int, model: RetrievedModel, task: TaskDescription, config: PipelineConfig
) -> Trial:
    """Lines 3-4: one candidate, in a place and a directory of its own."""
    with _own_place(f"candidate-{index}") as run:
        run.check()
        logger.info("generation start: %d of %d, %s", index + 1, total, model.model_name)
        candidate = await generate_candidate(task, model, config)
        logger.info("generation done: %s, %d characters", model.model_name, len(candidate.content))
        trial = await _evaluate(candidate, task, config)
        logger.info("evaluation done: %s, %s, %.1f s", model.model_name, trial.outcome, trial.result.duration_seconds)
        Phase1Progress.of_run().trials[index] = trial
        return trial


async def generate_candidate(task: TaskDescription, model: RetrievedModel, config: PipelineConfig) -> SolutionScript:
    """A_init: a first script around one model; empty and not executable when no code came back."""
    reply = await try_agent(
        AgentType.init,
        task_description=task.description,
        model_name=model.model_name,
        example_code=model.example_code,
        metric=task.evaluation_metric,
        direction=task.metric_direction,
        subsample_instruction=get_subsample_instruction(config),
    )
    return _script_of(reply, AgentType.init, SolutionPhase.init, source_model=model.model_name)


async def merge_solutions(base: SolutionScript, reference: SolutionScript, config: PipelineConfig) -> SolutionScript:
    """A_merger: the reference worked into the base; empty and not executable when no code came back."""
    reply = await try_agent(
        AgentType.merger,
        base_code=base.content,
        reference_code=reference.content,
        subsample_instruction=get_subsample_instruction(config),
    )
    return _script_of(reply, AgentType.merger, SolutionPhase.merged)


def _script_of(
    reply: AgentReply | None, agent: AgentType, phase: SolutionPhase, source_model: str | None = None
) -> SolutionScript:
    content = ""
    if reply is not None and has_extractable_code(reply.text):
        content = extract_code_block(reply.text)
    elif reply is not None:
        warn_unusable(agent, reply.text)
    return SolutionScript(content=content, phase=phase, is_executable=bool(content), source_model=source_model)


# --- line 6: ranking -------------------------------------------------------------------------------------


def _rank(trials: list[Trial], task: TaskDescription) -> list[SolutionScript]:
    """Line 6: the candidates that have a score, best first."""
    scripts, results = [trial.script for trial in trials], [trial.result for trial in trials]
    ordered = rank_solutions(scripts, results, task.metric_direction)
    ranked = [script for script, _ in ordered if script.score is not None]
    logger.info("ranked: %s", ", ".join(f"{script.source_model} {script.score}" for script in ranked))
    return ranked


# --- after the merges ------------------------------------------------------------------------------------


async def _use_all_data(s_0: SolutionScript, task: TaskDescription, config: PipelineConfig) -> SolutionScript:
    """The one data-use check of a run: a revision that runs replaces s_0 even when it scores worse."""
    with scope("data-use") as run:
        logger.info("data check start: %d characters", len(s_0.content))
        revised = await check_data_usage(s_0, task)
        if revised.content != s_0.content:
            revised = await _evaluated_or(s_0, await check_and_fix_leakage(revised), task, config)
        changed = revised.content != s_0.content
        logger.info("data check result: modified: %s", "yes" if changed else "no")
        run.record(DataUsageChecked(changed=changed, score=revised.score))
        return revised if changed else s_0


async def _remove_leakage(s_0: SolutionScript, task: TaskDescription, config: PipelineConfig) -> SolutionScript:
    """The last leakage check; a correction replaces s_0 only when it runs."""
    with scope("leakage"):
        logger.info("leakage check start: %d characters", len(s_0.content))
        corrected = await check_and_fix_leakage(s_0)
        changed = corrected.content != s_0.content
        logger.info("leakage check result: found and corrected: %s", "yes" if changed else "no")
        return await _evaluated_or(s_0, corrected, task, config) if changed else s_0


async def _evaluated_or(
    s_0: SolutionScript, revised: SolutionScript, task: TaskDescription, config: PipelineConfig
) -> SolutionScript:
    """The revised script with its own score, or s_0 when it has none."""
    trial = await _evaluate_checked(revised, task, config)
    if trial.script.score is None:
        logger.warning("the revised script is dropped: %s", trial.error)
        return fall_back(trial.script, [s_0], attempts=config.max_debug_attempts)
    if is_improvement(_score(s_0), trial.script.score, task.metric_direction):
        logger.warning("the revised script scores worse: %s instead of %s", trial.script.score, s_0.score)
    return trial.script


# --- evaluation ------------------------------------------------------------------------------------------


async def _evaluate(solution: SolutionScript, task: TaskDescription, config: PipelineConfig) -> Trial:
    """Check for leakage, then run; a script that never came counts as one that failed."""
    if not solution.content:
        nothing = EvaluationResult(stdout="", stderr="", exit_code=-1, duration_seconds=0.0, is_error=True)
        return Trial(solution, nothing, NO_CODE)
    return await _evaluate_checked(await check_and_fix_leakage(solution), task, config)


async def _evaluate_checked(solution: SolutionScript, task: TaskDescription, config: PipelineConfig) -> Trial:
    """Run a checked script, repairs included; it comes back as it was really run."""
    script, result = await evaluate_with_retry(solution, task, config, make_debug_callback(task, config))
    score = None if result.is_error else result.score
    error = ""
    if result.is_error:
        error = exception_line(result.error_traceback or result.stderr) or f"exit code {result.exit_code}"
    elif score is None:
        error = "no score was printed"
    return Trial(script.model_copy(update={"score": score, "is_executable": score is not None}), result, error)


def _score(solution: SolutionScript) -> float:
    """The score of a script that has one."""
    if solution.score is None:
        raise ValueError("this script was never scored")
    return solution.score


@contextmanager
def _own_place(label: str) -> Iterator[RunContext]:
    """Steps named below `label`, scripts run in a directory of that name: a script's file name is always the same."""
    run = current_run()
    work_dir = Path(prepare_path_directory(run.run_dir / "work", label))
    with scope(label) as inner, enter_run(replace(inner, work_dir=work_dir)) as placed:
        yield placed


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; when one raises, the others are cancelled and waited for."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
