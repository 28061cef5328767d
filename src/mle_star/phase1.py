"""Phase 1, the initial solution: retrieve models, try each, merge the good ones into the best (Algorithm 1)."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mle_star import safety
from mle_star.errors import AgentError, Phase1Error
from mle_star.execution import prepare_path_directory
from mle_star.execution.scoring import against, overlaps
from mle_star.knowledge import known_models
from mle_star.method.codeblocks import built_in, family_of
from mle_star.method.scores import rank_solutions
from mle_star.models import (
    AgentType,
    Phase1Result,
    PipelineConfig,
    RetrievedModel,
    RetrieverNotes,
    SolutionPhase,
    SolutionScript,
    TaskDescription,
    is_improvement,
    is_improvement_or_equal,
)
from mle_star.models.texts import digest_of
from mle_star.run.budget import PhaseTimeExceeded
from mle_star.run.context import RunContext, cancel_all, current_run, scope
from mle_star.run.events import OUT_OF_TIME, CandidateEvaluated, DataUsageChecked, MergeTried, ModelsRetrieved, Notice
from mle_star.run.reached import phase1_result, score_of
from mle_star.run.request import ask_agent, ask_for_code
from mle_star.run.timing import fits
from mle_star.safety import Trial

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRIEVAL_TRIES = 2  # without models there is no run, so one bad reply is forgiven
QUOTED_CHARACTERS = 500
MAX_OUTCOME = 160
SIMPLER = "An earlier script for this task failed: {}. Write a short and simple one that works."
IN_TIME = "in-time"
"""The decision whether a part of the phase was done in its time."""
LAST_TRIES = 6
"""How many more scripts are written, one by one, where no candidate has a score: a weak model needs more tries."""
REPLAY_PAUSE = 0.5
"""How often to look whether recorded results are still being taken over."""


# --- Algorithm 1 -----------------------------------------------------------------------------------------


async def run_phase1(task: TaskDescription, config: PipelineConfig) -> Phase1Result:
    """Algorithm 1: retrieve M models, try each, merge them by rank into the best; then check data use and leakage.

    When the phase's share of the time is used up and some candidate has a score, what is under way is cancelled and
    the method continues with what is there; the two checks at the end may take as long again, and no longer.
    """
    started = time.monotonic()
    with scope("phase1") as run:
        latest = run.budget.deadline
        logger.info("phase start: %s, M %d", task.competition_id, config.num_retrieved_models)
        models = await find_models(task, config)  # line 1
        ranked = _ranked(await _try_candidates(models, task, config), task)  # lines 2-6
        logger.info("ranked: %s", ", ".join(f"{script.source_model} {script.score}" for script in ranked))
        if ranked[0].leaking:
            _warn_of_leak("every candidate leaks; the best of them stands in until a clean script has a score")
        merged = await _merge_by_rank(ranked, task, config)  # lines 7-17
        end = min(max(run.budget.share_end, run.budget.elapsed()) + run.budget.share_seconds, latest)
        run.budget.set_phase_deadline(end - run.budget.elapsed())
        s_0 = await _in_time("data-use", lambda: _use_all_data(merged, task, config), end) or merged
        others = ranked if s_0 is merged else [merged, *ranked]
        clean = await _in_time("leakage", lambda: _remove_leakage(s_0, others, task, config), end)
        result, seconds = phase1_result(clean or s_0), time.monotonic() - started
    merges = len(result.merge_attempts)
    logger.info("phase end: score %s, %.1f s, %d merges done", result.initial_score, seconds, merges)
    return result


def _ranked(trials: Iterable[Trial], task: TaskDescription) -> list[SolutionScript]:
    """Line 6: the candidates that have a score, best first; leaking ones stand in where there are no others."""
    trials = list(trials)
    scripts, results = [trial.script for trial in trials], [trial.result for trial in trials]
    ordered = rank_solutions(scripts, results, task.metric_direction)
    return [script for script, _ in ordered if script.score is not None] or [
        script.model_copy(update={"score": result.score, "is_executable": True})
        for script, result in ordered
        if script.leaking and not result.is_error and result.score is not None
    ]


async def _merge_by_rank(ranked: list[SolutionScript], task: TaskDescription, config: PipelineConfig) -> SolutionScript:
    """Lines 7-17: work each further candidate into s_0, best first, until one merge does not hold the score.

    Each merge starts from the s_0 that the one before left, so they run one after another.
    """
    run, s_0 = current_run(), ranked[0]
    for index, reference in enumerate(ranked[1:], start=1):
        if not run.decide("go-on", lambda: not run.budget.finish_requested and fits(run, calls=2), reopen=True):
            break
        work = partial(_try_merge, index, s_0, reference, task, config)
        merged = await _in_time(f"merge-{index}", work, run.budget.share_end)
        if merged is None:
            break
        s_0 = merged
    return s_0


async def _try_merge(
    index: int, s_0: SolutionScript, reference: SolutionScript, task: TaskDescription, config: PipelineConfig
) -> SolutionScript | None:
    """Lines 9-13: one merge, evaluated and compared with h_best; a tie is accepted. None: it was not."""
    h_best, name = score_of(s_0), reference.source_model or ""
    logger.info("merge start: index %d, base score %s, reference %s", index, h_best, name)
    trial = await safety.check_and_evaluate(await merge_solutions(s_0, reference, config), task, config, s_0)
    score = trial.script.score
    accepted = score is not None and (s_0.leaking or is_improvement_or_equal(score, h_best, task.metric_direction))
    current_run().record(
        MergeTried(
            index=index,
            base_score=h_best,
            reference_model=name,
            score=score,
            accepted=accepted,
            reason="" if accepted else trial.error or f"{score:.4g} does not reach {h_best:.4g}",
            digest=digest_of(trial.script.content),
            parents=[digest_of(s_0.content)],
            change=await against(trial.script, s_0),
        )
    )
    return trial.script if accepted else None


# --- the phase's time ------------------------------------------------------------------------------------


async def _in_time(unit: str, work: Callable[[], Awaitable[T]], end: float) -> T | None:
    """What `work` gives, as the steps below `unit`; None when the time is up first.

    `end` counts from the beginning of the run. What an earlier process left out is not done now, either.
    """
    with scope(unit) as run:
        if _was_passed_over(run):
            return None
        task = asyncio.ensure_future(work())
        try:
            while not task.done() and not _is_late(run, end):
                await asyncio.wait({task}, timeout=_patience(run, end))
            ended = task.done()
        finally:
            await cancel_all([task])
        if (ended or (task.done() and not task.cancelled())) and not _has_no_time(task):
            return task.result()  # or what ended it, a cancellation from within included
        run.decide(IN_TIME, lambda: False)
        return None


def _was_passed_over(place: RunContext) -> bool:
    """Did an earlier process go on without the work of this place?"""
    return place.journal.decision("/".join((*place.parts, IN_TIME))) is False


def _is_late(run: RunContext, end: float) -> bool:
    """Is the time up for new work? What is recorded is taken over in any case; a script that runs, or has, may end."""
    if run.budget.elapsed() < end or run.journal.takes_over(run.parts):
        return False
    has_run = run.journal.in_progress(run.parts, "script") or run.ledger.solutions("/".join((*run.parts, "")))
    return run.config.letter or not has_run


def _has_no_time(work: asyncio.Future[Any]) -> bool:
    """Did it end because what was left of the phase would not have done for its next call or script?"""
    return not work.cancelled() and isinstance(work.exception(), PhaseTimeExceeded)


def _patience(run: RunContext, end: float) -> float | None:
    """Seconds to wait until `end`; after it, while recorded results are taken over, a moment."""
    left = max(end - run.budget.elapsed(), REPLAY_PAUSE)
    return None if math.isinf(left) else left


# --- line 1: retrieval -----------------------------------------------------------------------------------


async def find_models(task: TaskDescription, config: PipelineConfig) -> list[RetrievedModel]:
    """The retriever's models; where it gives none, those of the knowledge files, unless they are off.

    Without a credential that is accepted no other agent would answer either.
    """
    try:
        return await retrieve_models(task, config)
    except (AgentError, ValueError) as error:
        goes_on = isinstance(error, ValueError) or error.reason != "auth"
        interpreter = current_run().journal.interpreter
        packages = () if interpreter is None else tuple(interpreter.packages)
        models = known_models(task, packages, config.knowledge)[: config.num_retrieved_models] if goes_on else []
        if not models or "knowledge" not in config.briefing:
            raise
        names = [model.model_name for model in models]
        words = f"the retriever gave nothing usable ({error}); the run starts from common models"
        current_run().record(Notice(level="warning", message=f"{words}: {', '.join(names)}"))
        current_run().record(ModelsRetrieved(models=models))
        return models


async def retrieve_models(task: TaskDescription, config: PipelineConfig) -> list[RetrievedModel]:
    """Between one and M models from the web; a reply that cannot be used is asked for once more."""
    for tries_left in reversed(range(1 if config.letter else RETRIEVAL_TRIES)):
        try:
            models, notes = await _retrieve_once(task, config)
            break
        except (AgentError, ValueError) as error:
            logger.warning("retrieval failed: %s", error)
            if not tries_left:
                raise
    current_run().record(ModelsRetrieved(models=models, notes=notes))
    return models


async def _retrieve_once(task: TaskDescription, config: PipelineConfig) -> tuple[list[RetrievedModel], str]:
    wanted = config.num_retrieved_models
    reply = await ask_agent(AgentType.retriever, task_description=task.description, M=wanted)
    answer = parse_retriever_output(reply.json_text)
    models = _usable(answer.models)[:wanted]
    if not models:
        raise ValueError("A_retriever returned zero models")
    if len(models) < wanted:
        logger.warning("retrieval: %d models instead of %d", len(models), wanted)
    return models, answer.notes.strip()


def parse_retriever_output(response: str) -> RetrieverNotes:
    """The retriever's answer; a `ValueError` says what is wrong with it and quotes its beginning."""
    try:
        return RetrieverNotes.model_validate_json(response)
    except ValidationError as error:
        problem, head = error.errors()[0]["msg"], response[:QUOTED_CHARACTERS]
        raise ValueError(f"the retriever's reply cannot be used ({problem}): {head}") from error


def _usable(models: Iterable[RetrievedModel]) -> list[RetrievedModel]:
    """The models that have code, and a name that no other has."""
    usable: dict[str, RetrievedModel] = {}
    for model in models:
        name = model.model_name.strip().casefold()
        if name and model.example_code.strip() and name not in usable:
            usable[name] = model
        else:
            logger.warning("retrieval: without name or code, or seen before, and left out: %r", model.model_name)
    return list(usable.values())


# --- lines 2-5: candidates -------------------------------------------------------------------------------


async def _try_candidates(models: list[RetrievedModel], task: TaskDescription, config: PipelineConfig) -> list[Trial]:
    """Lines 2-5: a script for each model, checked and evaluated.

    Candidates are independent: all are generated at once and evaluated as the harness has room, the first one written
    first; a repair waits behind the others. To the letter they come one after another. When the
    time is up, those still under way are cancelled, unless no candidate has a score yet: then the phase goes on until
    one has.
    """
    run, trials = current_run(), dict[int, Trial]()
    end, turns = run.budget.share_end, asyncio.Semaphore(1 if config.letter else len(models))

    async def in_turn(index: int) -> None:
        async with turns:
            trials[index] = await _try_candidate(index, models[index], task, config)

    places = [replace(run, parts=(*run.parts, f"candidate-{index}")) for index in range(len(models))]
    left = [index for index, place in enumerate(places) if not _was_passed_over(place)]
    tasks = {asyncio.create_task(in_turn(index)): places[index] for index in left}
    try:
        while waiting := [task for task in tasks if not task.done()]:
            scored = bool(_ranked(trials.values(), task))
            if scored and all(_is_late(tasks[task], end) for task in waiting):
                break
            timeout = _patience(run, end) if scored else None
            done, _ = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                if not (_ranked(trials.values(), task) and _has_no_time(one)):
                    one.result()  # a limit that stops one stops all
    finally:
        await cancel_all(tasks)
    for index, model in enumerate(models):
        if index not in trials:
            with scope(f"candidate-{index}") as place:
                place.decide(IN_TIME, lambda: False)
                missing = {"model_name": model.model_name, "score": None, "error": OUT_OF_TIME}
                place.record(CandidateEvaluated(index=index, **missing))
    for number in range(0 if config.letter else LAST_TRIES):
        if _ranked(trials.values(), task):
            break
        index = sorted(trials)[number % len(trials)]
        trials[index] = await _try_candidate(index, models[index], task, config, failed=trials[index].error)
    found = [trials[index] for index in sorted(trials)]
    if not _ranked(found, task):
        errors = {models[index].model_name: trials[index].error for index in sorted(trials)}
        logger.error("all %d candidates failed: %s", len(errors), ", ".join(errors))
        raise Phase1Error(f"Phase 1 failed: all {len(errors)} candidates produced execution errors", errors=errors)
    return found


async def _try_candidate(
    index: int, model: RetrievedModel, task: TaskDescription, config: PipelineConfig, *, failed: str = ""
) -> Trial:
    """Lines 3-4: one candidate, in a place and a directory of its own; it counts from the moment it is recorded.

    `failed` is how an earlier script around this model has ended.

    A script's file name is always the same, hence the directory.
    """
    place = f"candidate-{index}"
    work_dir = Path(prepare_path_directory(current_run().run_dir / "work", place))
    with scope(place, work_dir=work_dir) as run:
        script = await generate_candidate(task, model, config, remark=SIMPLER.format(failed) if failed else "")
        trial = await safety.check_and_evaluate(script, task, config)
        outcome = {"digest": digest_of(trial.script.content), "score": trial.script.score, "error": trial.error}
        run.record(CandidateEvaluated(index=index, model_name=model.model_name, **outcome))
    if trial.script.score is not None and not config.letter:  # there is something to go on with
        run.budget.set_phase_deadline(run.budget.share_end - run.budget.elapsed())
    return trial


async def generate_candidate(
    task: TaskDescription, model: RetrievedModel, config: PipelineConfig, *, remark: str = ""
) -> SolutionScript:
    """A_init: a first script around one model; empty and not executable when no code came back."""
    values = {"task_description": task.description, "other_models": _others(model), **model.model_dump()}
    code = await ask_for_code(AgentType.init, **values, remark=remark, subsample_limit=config.subsample_limit)
    source = model.model_name
    return SolutionScript(content=code, phase=SolutionPhase.init, is_executable=bool(code), source_model=source)


def _others(model: RetrievedModel) -> list[str]:
    """The other candidates, a line each: family, what the script makes use of, and its score, as far as known by now.

    All are written at once, so an outcome is seen by those that come later: when fewer run at a time, or on resume.
    """
    ledger, lines = current_run().ledger, []
    known = {node.event.index: node.event for node in ledger.nodes if isinstance(node.event, CandidateEvaluated)}
    for index, other in enumerate([] if ledger.retrieved is None else ledger.retrieved.models):
        if other == model:
            continue
        tried = known.get(index)
        used = (built_in(ledger.text(tried.digest)) if tried else []) or built_in(other.example_code)
        line = f"`{' '.join(other.model_name.split())}`"
        if family := family_of(other.model_name, used):
            line += f" ({family})"
        if used:
            line += f": {', '.join(used)}"
        if tried is not None:
            line += f"; {tried.error}"[:MAX_OUTCOME] if tried.error else f"; scores {tried.score}"
        lines.append(line)
    return lines


async def merge_solutions(base: SolutionScript, reference: SolutionScript, config: PipelineConfig) -> SolutionScript:
    """A_merger: the reference worked into the base; empty and not executable when no code came back."""
    texts, scores = [base.content, reference.content], [base.score, reference.score]
    known: dict[str, Any] = {"input_scores": scores, "overlap": await overlaps(texts)}
    known |= {"base_code": texts[0], "reference_code": texts[1], "subsample_limit": config.subsample_limit}
    code = await ask_for_code(AgentType.merger, **known)
    return SolutionScript(content=code, phase=SolutionPhase.merged, is_executable=bool(code))


# --- after the merges ------------------------------------------------------------------------------------


async def _use_all_data(s_0: SolutionScript, task: TaskDescription, config: PipelineConfig) -> SolutionScript:
    """The one data-use check of a run: a revision that runs replaces s_0 even when it scores worse."""
    revised = await safety.check_data_usage(s_0, task)
    if revised.content != s_0.content:
        revised = await _evaluated_or(s_0, await safety.check_before_running(revised, config, s_0), task, config)
    changed = revised.content != s_0.content
    parents = [digest_of(s_0.content)] if changed else []
    digest = digest_of(revised.content) if changed else ""
    current_run().record(DataUsageChecked(changed=changed, score=revised.score, digest=digest, parents=parents))
    return revised if changed else s_0


async def _remove_leakage(
    s_0: SolutionScript, others: list[SolutionScript], task: TaskDescription, config: PipelineConfig
) -> SolutionScript:
    """The last leakage check; a script that leaks gives way to its correction or, if that does not run, to another."""
    corrected = await safety.check_and_fix_leakage(s_0)
    if corrected.content == s_0.content and not corrected.leaking:
        return corrected  # found clean, whatever an earlier check has said of it
    fixed = s_0 if corrected.leaking else await _evaluated_or(s_0, corrected, task, config)
    if fixed is s_0 and not config.letter:
        return await _instead_of(s_0, others, config)
    safety.record_fixed(s_0, fixed)
    return fixed


async def _instead_of(s_0: SolutionScript, others: list[SolutionScript], config: PipelineConfig) -> SolutionScript:
    """What goes on in the place of an initial solution that leaks: the next clean script, else s_0, marked as such."""
    ledger = current_run().ledger
    clean = await _still_clean(
        [
            script
            for script in others
            if script.content != s_0.content and not ledger.leaks(digest_of(script.content), "phase1")
        ],
        config,
    )
    instead = "the next best takes its place" if clean else "it stands in until a clean script has a score"
    _warn_of_leak(f"the initial solution leaks; {instead}")
    return clean[0] if clean else s_0.model_copy(update={"leaking": True})


async def _still_clean(scripts: list[SolutionScript], config: PipelineConfig) -> list[SolutionScript]:
    """Those that may take the place of a leaking one; where nothing was checked before, the first that is clean."""
    if not safety.checks_later(config):
        return scripts
    for script in scripts:
        checked = await safety.check_and_fix_leakage(script)
        if not checked.leaking and checked.content == script.content:
            return [script]
    return []


def _warn_of_leak(message: str) -> None:
    current_run().record(Notice(level="warning", message=f"data leakage that could not be fixed: {message}"))


async def _evaluated_or(
    s_0: SolutionScript, revised: SolutionScript, task: TaskDescription, config: PipelineConfig
) -> SolutionScript:
    """The revised script with its own score, or s_0 when it has none."""
    trial = await safety.evaluate_checked(revised, task, config)
    if trial.script.score is None:
        logger.warning("the revised script is dropped: %s", trial.error)
        return safety.fall_back(trial.script, [s_0], attempts=config.max_debug_attempts)
    if is_improvement(score_of(s_0), trial.script.score, task.metric_direction):
        logger.warning("the revised script scores worse: %s instead of %s", trial.script.score, s_0.score)
    return trial.script
