"""Phase 1, the initial solution: retrieve models, try each, merge the good ones into the best (Algorithm 1)."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mle_star import models, safety
from mle_star.errors import AgentError, Phase1Error
from mle_star.execution import prepare_path_directory
from mle_star.execution.scoring import against, overlaps
from mle_star.knowledge import known_models
from mle_star.method.codeblocks import built_in, family_of
from mle_star.method.scores import rank_solutions
from mle_star.models import AgentType, PipelineConfig, RetrievedModel, RetrieverNotes, SolutionScript, TaskDescription
from mle_star.models.texts import digest_of
from mle_star.run.budget import PhaseTimeExceeded
from mle_star.run.context import RunContext, cancel_all, current_run, scope
from mle_star.run.events import OUT_OF_TIME, CandidateEvaluated, DataUsageChecked, MergeTried, ModelsRetrieved, Notice
from mle_star.run.reached import phase1_result, score_of
from mle_star.run.request import ask_agent, ask_for_code
from mle_star.run.timing import fits
from mle_star.safety import Evaluated, why_no_score

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
PAUSE = 0.5
"""How often to look, once the time is up, whether work may be left: recorded results are taken over first."""


# --- Algorithm 1 -----------------------------------------------------------------------------------------


async def run_phase1(task: TaskDescription, config: PipelineConfig) -> models.Phase1Result:
    """Algorithm 1: retrieve M models, try each, merge them by rank into the best; then check data use and leakage.

    When the phase's share of the time is used up and some candidate has a score, what is under way is cancelled and
    the method continues with what is there; the two checks at the end may take as long again, and no longer.
    """
    started = time.monotonic()
    with scope("phase1", task=task, config=config) as run:
        latest = run.budget.deadline
        logger.info("phase start: %s, M %d", task.competition_id, config.num_retrieved_models)
        retrieved = await find_models(task, config)  # line 1
        ranked = _ranked(await _try_candidates(retrieved))  # lines 2-6
        logger.info("ranked: %s", ", ".join(f"{script.source_model} {script.score}" for script in ranked))
        if run.leaks(ranked[0].content):
            _warn_of_leak("every candidate leaks; the best of them stands in until a clean script has a score")
        merged = await _merge_by_rank(ranked)  # lines 7-17
        end = min(max(run.budget.share_end, run.budget.elapsed()) + run.budget.share_seconds, latest)
        run.budget.set_phase_deadline(end - run.budget.elapsed())
        s_0 = await _in_time("data-use", lambda: _use_all_data(merged), end) or merged
        others = ranked if s_0 is merged else [merged, *ranked]
        clean = await _in_time("leakage", lambda: _remove_leakage(s_0, others), end)
        result, seconds = phase1_result(clean or s_0), time.monotonic() - started
    merges = len(result.merge_attempts)
    logger.info("phase end: score %s, %.1f s, %d merges done", result.initial_score, seconds, merges)
    return result


def _ranked(evaluated: Iterable[Evaluated]) -> list[SolutionScript]:
    """Line 6: the candidates that have a score, best first; leaking ones stand in where there are no others."""
    ran = [(script, one) for script, one in evaluated if not one.is_error and one.score is not None]
    ran = [pair for pair in ran if pair[0].score is not None] or ran
    scripts, results = [script for script, _ in ran], [result for _, result in ran]
    ordered = rank_solutions(scripts, results, current_run().task.metric_direction)
    return [script.model_copy(update={"score": one.score, "is_executable": True}) for script, one in ordered]


async def _merge_by_rank(ranked: list[SolutionScript]) -> SolutionScript:
    """Lines 7-17: work each further candidate into s_0, best first, until one merge does not hold the score.

    Each merge starts from the s_0 that the one before left, so they run one after another.
    """
    run, s_0 = current_run(), ranked[0]
    for index, reference in enumerate(ranked[1:], start=1):
        if not run.decide("go-on", lambda: not run.budget.finish_requested and fits(run, calls=2), reopen=True):
            break
        merged = await _in_time(f"merge-{index}", partial(_try_merge, index, s_0, reference), run.budget.share_end)
        if merged is None:
            break
        s_0 = merged
    return s_0


async def _try_merge(index: int, s_0: SolutionScript, reference: SolutionScript) -> SolutionScript | None:
    """Lines 9-13: one merge, evaluated and compared with h_best; a tie is accepted. None: it was not."""
    run, h_best, name = current_run(), score_of(s_0), reference.source_model or ""
    logger.info("merge start: index %d, base score %s, reference %s", index, h_best, name)
    merged, result = await safety.check_and_evaluate(await merge_solutions(s_0, reference, run.config), s_0)
    score, direction = merged.score, run.task.metric_direction
    leaks = run.leaks(s_0.content)  # a leaking score cannot be compared with
    accepted = score is not None and (leaks or models.is_improvement_or_equal(score, h_best, direction))
    run.record(
        MergeTried(
            index=index,
            base_score=h_best,
            reference_model=name,
            score=score,
            accepted=accepted,
            reason="" if accepted else why_no_score(merged, result) or f"{score:.4g} does not reach {h_best:.4g}",
            digest=digest_of(merged.content),
            parents=[digest_of(s_0.content)],
            change=await against(merged, s_0),
        )
    )
    return merged if accepted else None


# --- the phase's time ------------------------------------------------------------------------------------


async def _in_time(
    unit: str, work: Callable[[], Awaitable[T]], end: float, can_do_without: Callable[[], bool] = lambda: True
) -> T | None:
    """What `work` gives, as the steps below `unit`; None when the time is up first and the phase `can_do_without`.

    `end` counts from the beginning of the run. What an earlier process left out is not done now, either.
    """
    with scope(unit) as run:
        if run.journal.decision("/".join((*run.parts, IN_TIME))) is False:
            return None
        task = asyncio.ensure_future(work())
        try:
            while not task.done() and not (can_do_without() and _is_late(run, end)):
                await asyncio.wait({task}, timeout=max(end - run.budget.elapsed(), PAUSE))
            ended = task.done()
        finally:
            await cancel_all([task])
        if (ended or (task.done() and not task.cancelled())) and not (can_do_without() and _has_no_time(task)):
            return task.result()  # or what ended it, a cancellation from within included
        run.decide(IN_TIME, lambda: False)
        return None


def _is_late(run: RunContext, end: float) -> bool:
    """Is the time up for new work? What is recorded is taken over in any case; a script that runs, or has, may end."""
    if run.budget.elapsed() < end or run.journal.takes_over(run.parts):
        return False
    has_run = run.journal.in_progress(run.parts, "script") or run.ledger.solutions("/".join((*run.parts, "")))
    return run.config.letter or not has_run


def _has_no_time(work: asyncio.Future[Any]) -> bool:
    """Did it end because what was left of the phase would not have done for its next call or script?"""
    return not work.cancelled() and isinstance(work.exception(), PhaseTimeExceeded)


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
        retrieved = known_models(task, packages, config.knowledge)[: config.num_retrieved_models] if goes_on else []
        if not retrieved or "knowledge" not in config.briefing:
            raise
        names = [model.model_name for model in retrieved]
        words = f"the retriever gave nothing usable ({error}); the run starts from common models"
        current_run().record(Notice(level="warning", message=f"{words}: {', '.join(names)}"))
        current_run().record(ModelsRetrieved(models=retrieved))
        return retrieved


async def retrieve_models(task: TaskDescription, config: PipelineConfig) -> list[RetrievedModel]:
    """Between one and M models from the web; a reply that cannot be used is asked for once more."""
    wanted = config.num_retrieved_models
    for tries_left in reversed(range(1 if config.letter else RETRIEVAL_TRIES)):
        try:
            reply = await ask_agent(AgentType.retriever, task_description=task.description, M=wanted)
            answer = parse_retriever_output(reply.json_text)
            if retrieved := _usable(answer.models[: wanted if config.letter else None])[:wanted]:
                break
            raise ValueError("A_retriever returned zero models")
        except (AgentError, ValueError) as error:
            logger.warning("retrieval failed: %s", error)
            if not tries_left:
                raise
    if len(retrieved) < wanted:
        logger.warning("retrieval: %d models instead of %d", len(retrieved), wanted)
    current_run().record(ModelsRetrieved(models=retrieved, notes=answer.notes.strip()))
    return retrieved


def parse_retriever_output(response: str) -> RetrieverNotes:
    """The retriever's answer; a `ValueError` says what is wrong with it and quotes its beginning."""
    try:
        return RetrieverNotes.model_validate_json(response)
    except ValidationError as error:
        problem, head = error.errors()[0]["msg"], response[:QUOTED_CHARACTERS]
        raise ValueError(f"the retriever's reply cannot be used ({problem}): {head}") from error


def _usable(retrieved: Iterable[RetrievedModel]) -> list[RetrievedModel]:
    """The models that have code, and a name that no other has."""
    usable: dict[str, RetrievedModel] = {}
    for model in retrieved:
        name = model.model_name.strip().casefold()
        if name and model.example_code.strip() and name not in usable:
            usable[name] = model
        else:
            logger.warning("retrieval: without name or code, or seen before, and left out: %r", model.model_name)
    return list(usable.values())


# --- lines 2-5: candidates -------------------------------------------------------------------------------


async def _try_candidates(retrieved: list[RetrievedModel]) -> list[Evaluated]:
    """Lines 2-5: a script for each model, checked and evaluated.

    Candidates are independent: all are generated at once and evaluated as the harness has room, the first one written
    first; a repair waits behind the others. To the letter they come one after another. When the time is up, those still
    under way are cancelled, unless no candidate has a score yet: then the phase goes on until one has.
    """
    run, trials = current_run(), dict[int, Evaluated]()
    turns = asyncio.Semaphore(1 if run.config.letter else len(retrieved))

    def is_scored() -> bool:
        return bool(_ranked(trials.values()))

    async def in_turn(index: int) -> None:
        async with turns:
            trials[index] = await _try_candidate(index, retrieved[index])

    tasks = [
        asyncio.create_task(_in_time(f"candidate-{index}", partial(in_turn, index), run.budget.share_end, is_scored))
        for index in range(len(retrieved))
    ]
    try:
        await asyncio.gather(*tasks)  # a limit that stops one stops all
    finally:
        await cancel_all(tasks)
    for index, model in enumerate(retrieved):
        if index not in trials:
            with scope(f"candidate-{index}") as place:
                missing = CandidateEvaluated(index=index, model_name=model.model_name, score=None, error=OUT_OF_TIME)
                place.record(missing)
    for number in range(0 if run.config.letter else LAST_TRIES):
        if is_scored():
            break
        index = sorted(trials)[number % len(trials)]
        with scope(f"candidate-{index}"):
            trials[index] = await _try_candidate(index, retrieved[index], failed=why_no_score(*trials[index]))
    found = {index: trials[index] for index in sorted(trials)}
    if not is_scored():
        errors = {retrieved[index].model_name: why_no_score(*trial) for index, trial in found.items()}
        logger.error("all %d candidates failed: %s", len(errors), ", ".join(errors))
        raise Phase1Error(f"Phase 1 failed: all {len(errors)} candidates produced execution errors", errors=errors)
    return list(found.values())


async def _try_candidate(index: int, model: RetrievedModel, *, failed: str = "") -> Evaluated:
    """Lines 3-4: one candidate, in a directory of its own; it counts from the moment it is recorded.

    `failed` is how an earlier script around this model has ended. A script's file name is always the same, hence the
    directory.
    """
    work_dir = Path(prepare_path_directory(current_run().run_dir / "work", f"candidate-{index}"))
    with scope(work_dir=work_dir) as run:
        remark = SIMPLER.format(failed) if failed else ""
        written = generate_candidate(run.task, model, run.config, remark=remark)
        script, result = await safety.check_and_evaluate(await written)
        outcome = {"digest": digest_of(script.content), "score": script.score, "error": why_no_score(script, result)}
        run.record(CandidateEvaluated(index=index, model_name=model.model_name, **outcome))
    if script.score is not None and not run.config.letter:  # there is something to go on with
        run.budget.set_phase_deadline(run.budget.share_end - run.budget.elapsed())
    return script, result


async def generate_candidate(
    task: TaskDescription, model: RetrievedModel, config: PipelineConfig, *, remark: str = ""
) -> SolutionScript:
    """A_init: a first script around one model; empty and not executable when no code came back."""
    values = {"task_description": task.description, "other_models": _others(model), **model.model_dump()}
    code = await ask_for_code(AgentType.init, **values, remark=remark, subsample_limit=config.subsample_limit)
    source = model.model_name
    return SolutionScript(content=code, phase=models.SolutionPhase.init, is_executable=bool(code), source_model=source)


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
    return SolutionScript(content=code, phase=models.SolutionPhase.merged, is_executable=bool(code))


# --- after the merges ------------------------------------------------------------------------------------


async def _use_all_data(s_0: SolutionScript) -> SolutionScript:
    """The one data-use check of a run: a revision that runs replaces s_0 even when it scores worse."""
    revised = await safety.check_data_usage(s_0, current_run().task)
    if revised.content != s_0.content:
        revised = await _evaluated_or(s_0, await safety.check_before_running(revised, s_0))
    changed = revised.content != s_0.content
    parents = [digest_of(s_0.content)] if changed else []
    digest = digest_of(revised.content) if changed else ""
    current_run().record(DataUsageChecked(changed=changed, score=revised.score, digest=digest, parents=parents))
    return revised if changed else s_0


async def _remove_leakage(s_0: SolutionScript, others: list[SolutionScript]) -> SolutionScript:
    """The last leakage check; a script that leaks gives way to its correction or, if that does not run, to another."""
    corrected = await safety.check_and_fix_leakage(s_0)
    leaks = current_run().leaks(corrected.content)
    if corrected.content == s_0.content and not leaks:
        return corrected  # found clean, whatever an earlier check has said of it
    fixed = s_0 if leaks else await _evaluated_or(s_0, corrected)
    if fixed is s_0 and not current_run().config.letter:
        return await _instead_of(s_0, others)
    safety.record_fixed(s_0, fixed)
    return fixed


async def _instead_of(s_0: SolutionScript, others: list[SolutionScript]) -> SolutionScript:
    """What goes on in the place of an initial solution that leaks: the next clean script, else s_0."""
    for script in others:
        if script.content != s_0.content and await _is_clean(script):
            _warn_of_leak("the initial solution leaks; the next best takes its place")
            return script
    _warn_of_leak("the initial solution leaks; it stands in until a clean script has a score")
    return s_0


async def _is_clean(script: SolutionScript) -> bool:
    """May it take the place of a leaking one? It is checked for that, unless it was before it ran."""
    run, checked = current_run(), script
    if safety.checks_later() and not run.leaks(script.content):
        checked = await safety.check_and_fix_leakage(script)
    return checked.content == script.content and not run.leaks(script.content)


def _warn_of_leak(message: str) -> None:
    current_run().record(Notice(level="warning", message=f"data leakage that could not be fixed: {message}"))


async def _evaluated_or(s_0: SolutionScript, revised: SolutionScript) -> SolutionScript:
    """The revised script with its own score, or s_0 when it has none."""
    run, (script, result) = current_run(), await safety.evaluate_checked(revised)
    if script.score is None:
        logger.warning("the revised script is dropped: %s", why_no_score(script, result))
        return safety.fall_back(script, [s_0], attempts=run.config.max_debug_attempts)
    if models.is_improvement(score_of(s_0), script.score, run.task.metric_direction):
        logger.warning("the revised script scores worse: %s instead of %s", script.score, s_0.score)
    return script
