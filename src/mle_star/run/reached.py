"""What the phases have reached, asked of the ledger: results are made of it, and a phase that is cut off leaves it."""

from mle_star.method.scores import best_of
from mle_star.models import (
    CodeBlock,
    EnsembleAttempt,
    Frozen,
    Phase1Result,
    Phase2Result,
    Phase3Result,
    RefinementAttempt,
    RetrievedModel,
    SolutionPhase,
    SolutionScript,
    is_improvement,
)
from mle_star.models.enums import kind_of_script
from mle_star.models.texts import digest_of
from mle_star.run.context import current_run
from mle_star.run.events import LEAKS, CandidateEvaluated, DataUsageChecked, EnsembleTried, MergeTried, RefinementTried
from mle_star.run.ledger import ScriptRun, SearchNode


def best_reached(place: str, known: SolutionScript | None = None) -> SolutionScript | None:
    """The better of `known` and the best script that was scored below `place`, accepted by its phase or not.

    Any clean script beats one that leaks; one that leaks is given where nothing is known.
    """
    ledger, direction = current_run().reached, current_run().task.metric_direction
    scored = [run for run in ledger.ran(place) if run.score is not None]
    here = place.rpartition("/")[0]  # what a later phase finds is its own
    clean = [run for run in scored if not ledger.leaks(run.script_id, here)]
    best = best_of(clean or scored, lambda run: run.score, direction)
    if best is None or best.score is None:
        return known
    floor = None if known is None or ledger.leaks(digest_of(known.content), here) else known.score
    if known is not None and (not clean or (floor is not None and not is_improvement(best.score, floor, direction))):
        return known
    node = ledger.node_of(best.script_id)
    return script_of(best, node.event.model_name if node and isinstance(node.event, CandidateEvaluated) else None)


def script_of(run: ScriptRun, model: str | None = None) -> SolutionScript:
    """The script that ran, with its score."""
    content, kind = current_run().ledger.text(run.script_id), kind_of_script(run.step)
    return SolutionScript(content=content, phase=kind, score=run.score, source_model=model)


def score_of(solution: SolutionScript) -> float:
    """The score of a script that has one."""
    if solution.score is None:
        raise ValueError("this script was never scored")
    return solution.score


def _accepted(nodes: list[SearchNode]) -> SolutionScript | None:
    """The script that was accepted last, and is not known to leak."""
    taken = [node for node in nodes if node.accepted and node.event.score is not None]
    return _script(taken[-1]) if taken else None


def _script(node: SearchNode, **more: object) -> SolutionScript:
    """The script of an attempt as its phase knew it: a leak that a later phase found is that one's to tell."""
    content, score = current_run().reached.text(node.event.digest), None if node.leak == LEAKS else node.event.score
    known = {"content": content, "score": score, "is_executable": score is not None}
    return SolutionScript.model_validate({"phase": kind_of_script(node.step), **known, **more})


# --- Phase 1 ---------------------------------------------------------------------------------------------


def partial_phase1() -> Phase1Result | None:
    """What Phase 1 had found when it was cut off; None when no candidate has a score."""
    later = [node for node in current_run().reached.below("phase1/") if node.kind != "candidate"]
    s_0 = _accepted(later) or best_reached("phase1/candidate-")
    return None if s_0 is None else phase1_result(s_0)


def phase1_result(s_0: SolutionScript) -> Phase1Result:
    """The phase's result; a candidate that never ended stands in it without code and score."""
    ledger = current_run().reached
    nodes = ledger.below("phase1/")
    tried = {node.event.index: node for node in nodes if isinstance(node.event, CandidateEvaluated)}
    merges = [node.event for node in nodes if isinstance(node.event, MergeTried)]
    models = [] if ledger.retrieved is None else ledger.retrieved.models
    candidates = [_candidate(model, tried.get(index)) for index, model in enumerate(models)]
    return Phase1Result(
        retrieved_models=models,
        candidate_solutions=candidates,
        candidate_scores=[script.score for script in candidates],
        initial_solution=s_0,
        initial_score=score_of(s_0),
        merge_attempts=[
            {"source_model": m.reference_model, "score": m.score, "accepted": m.accepted, "reason": m.reason}
            for m in merges
        ],
        data_usage_changed=any(isinstance(node.event, DataUsageChecked) and node.event.changed for node in nodes),
    )


def _candidate(model: RetrievedModel, node: SearchNode | None) -> SolutionScript:
    """A candidate as it was evaluated; where a leak in it was not fixed, what it scored counts no longer."""
    name = model.model_name
    if node is None:
        return SolutionScript(content="", phase=SolutionPhase.init, is_executable=False, source_model=name)
    own = current_run().reached.ran(f"{node.step}/")
    if not own or own[-1].script_id == node.event.digest:
        return _script(node, source_model=name)
    return script_of(own[-1], name)


# --- Phase 2 ---------------------------------------------------------------------------------------------


class OuterStepRecord(Frozen):
    """What one outer step leaves in `Phase2Result.step_history`. `failed`: the path ended in it with nothing won."""

    outer_step: int
    ablation_summary: str = ""
    code_block: str = ""
    plan: str = ""
    inner_loop_attempts: list[RefinementAttempt] = []
    best_score_after_step: float
    was_skipped: bool = False
    failed: bool = False


def path_history(place: str) -> list[OuterStepRecord]:
    """What each outer step of the path at `place` has left so far; a step without a block was skipped."""
    ledger, history = current_run().reached, []
    for step, study in ledger.studies.items():
        if not step.startswith(place):
            continue
        chosen, best = ledger.blocks.get(step), _accepted(ledger.below(f"{step}/"))
        block, plan = ("", "") if chosen is None else (chosen.block, chosen.plan)
        history.append(
            OuterStepRecord(
                outer_step=study.t,
                ablation_summary=study.summary,
                code_block=block,
                plan=plan,
                inner_loop_attempts=[attempt_of(event) for event in refinements(f"{step}/")],
                best_score_after_step=study.solution_score if best is None else score_of(best),
                was_skipped=not block,
            )
        )
    return history


def refinements(place: str) -> list[RefinementTried]:
    """The attempts of the inner loop at `place` so far."""
    return [node.event for node in current_run().reached.below(place) if isinstance(node.event, RefinementTried)]


def tried_scripts(place: str) -> dict[int, SolutionScript]:
    """The scripts of these attempts that have a score, by attempt."""
    nodes = [node for node in current_run().reached.below(place) if node.event.score is not None]
    return {node.event.k: _script(node) for node in nodes if isinstance(node.event, RefinementTried)}


def attempt_of(event: RefinementTried) -> RefinementAttempt:
    """An attempt as the results of Phase 2 hold it."""
    return RefinementAttempt(plan=event.plan, score=event.score, code_block=event.after, was_improvement=event.accepted)


def path_result(best: SolutionScript, history: list[OuterStepRecord], *, partial: bool = False) -> Phase2Result:
    """The result of a path: summaries, blocks and records of its steps are always of one number."""
    return Phase2Result(
        ablation_summaries=["" if record.was_skipped else record.ablation_summary for record in history],
        refined_blocks=[CodeBlock(content=record.code_block, outer_step=record.outer_step) for record in history],
        best_solution=best,
        best_score=score_of(best),
        step_history=[dict(record) for record in history],
        partial=partial,
    )


def partial_path(place: str, start: SolutionScript) -> Phase2Result:
    """What the path at `place` comes to if it ends here; `start` has a score.

    The step that it is in counts as one more step: its attempts so far are kept, and when no script has taken the place
    of `start`, its record says `failed`.
    """
    best = best_reached(place, _accepted(current_run().reached.below(place)) or start) or start
    nothing = OuterStepRecord(outer_step=0, best_score_after_step=score_of(start), was_skipped=True)
    history = path_history(place) or [nothing]
    found = {"best_score_after_step": score_of(best), "failed": best is start}
    return path_result(best, [*history[:-1], history[-1].model_copy(update=found)], partial=True)


# --- Phase 3 ---------------------------------------------------------------------------------------------


def rounds(place: str) -> list[EnsembleAttempt]:
    """The rounds at `place` so far; what was found to leak and not fixed has no score."""
    return [
        EnsembleAttempt(plan=node.event.plan, score=node.score, solution=_script(node, phase=SolutionPhase.ensemble))
        for node in current_run().reached.below(place)
        if isinstance(node.event, EnsembleTried)
    ]


def partial_phase3(place: str, inputs: list[SolutionScript]) -> Phase3Result | None:
    """What the rounds at `place` came to when the phase was cut off; None when no ensemble has a score that counts."""
    attempts = rounds(place)
    last = best_of(reversed(attempts), lambda attempt: attempt.score, current_run().task.metric_direction)
    best = best_reached(place, None if last is None else last.solution)
    return None if best is None or current_run().leaks(best.content) else phase3_result(inputs, attempts, best)


def phase3_result(inputs: list[SolutionScript], attempts: list[EnsembleAttempt], best: SolutionScript) -> Phase3Result:
    """The phase's result."""
    return Phase3Result(
        input_solutions=inputs,
        ensemble_plans=[attempt.plan for attempt in attempts],
        ensemble_scores=[attempt.score for attempt in attempts],
        best_ensemble=best,
        best_ensemble_score=best.score,
        attempts=attempts,
    )
