"""The progress of the search: what each phase has found so far, in one place that can be read while it grows.

A phase that is cut off leaves its state here; whoever goes on takes it from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from mle_star.method.scores import rank_solutions
from mle_star.models import (
    CodeBlock,
    DataContaminationResult,
    EnsembleAttempt,
    EvaluationResult,
    Frozen,
    Phase1Result,
    Phase2Result,
    RefinementAttempt,
    RetrievedModel,
    SolutionPhase,
    SolutionScript,
    TaskDescription,
    is_improvement_or_equal,
)
from mle_star.models.texts import TRACEBACK_HEADER
from mle_star.run.events import MergeTried


@dataclass
class Progress:
    """All that the phases have found. `paths` and `blocks` go by the label of a path: `path-0`."""

    phase1: Phase1Progress | None = None
    paths: dict[str, PathProgress] = field(default_factory=dict)
    blocks: dict[str, BlockProgress] = field(default_factory=dict)
    rounds: list[EnsembleAttempt] = field(default_factory=list)
    research: str = ""
    """What the retriever found beyond the models."""
    analyses: dict[str, str] = field(default_factory=dict)
    """By label, where the solution errs, as its last study printed it."""
    remarks: list[str] | None = None
    """What is to be said of the solution that is submitted, once it was checked for the last time."""
    stand_in: SolutionScript | None = None
    """What is submitted in the place of a solution that leaks."""
    submission: Submission | None = None
    contamination: DataContaminationResult | None = None

    def path_result(self, label: str) -> Phase2Result | None:
        """What the path with this label had reached when it was stopped, or None when it had not begun."""
        path = self.paths.get(label)
        return None if path is None else path.cut_off(self.blocks.get(label))


# --- Phase 1 ---------------------------------------------------------------------------------------------


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

    @property
    def summary(self) -> str:
        """The error for log lines: the first line of its traceback, and the one that names the exception."""
        return f"{TRACEBACK_HEADER} {self.error}" if self.result.is_error and self.script.content else self.error


@dataclass
class Phase1Progress:
    """What the phase has found, published as it grows: `s_0` is there from the ranking on.

    `written` says what the candidates' scripts make use of; `unrevised` is what `s_0` was before the data check.
    """

    models: list[RetrievedModel]
    task: TaskDescription
    written: dict[int, list[str]] = field(default_factory=dict)
    trials: dict[int, Trial] = field(default_factory=dict)
    s_0: SolutionScript | None = None
    unrevised: SolutionScript | None = None
    merges: list[MergeTried] = field(default_factory=list)
    data_usage_changed: bool = False

    def ranked(self) -> list[SolutionScript]:
        """Line 6: the candidates that have a score, best first; leaking ones stand in where there are no others."""
        trials = [self.trials[index] for index in sorted(self.trials)]
        scripts, results = [trial.script for trial in trials], [trial.result for trial in trials]
        ordered = rank_solutions(scripts, results, self.task.metric_direction)
        clean = [script for script, _ in ordered if script.score is not None]
        return clean or [
            script.model_copy(update={"score": result.score, "is_executable": True})
            for script, result in ordered
            if script.leaking and not result.is_error and result.score is not None
        ]

    @property
    def solution(self) -> SolutionScript | None:
        """The best there is: s_0, or before the ranking the best candidate so far."""
        return self.s_0 or next(iter(self.ranked()), None)

    def best(self) -> SolutionScript:
        """The best there is, where there must be one."""
        if self.solution is None:
            raise ValueError("no candidate has a score")
        return self.solution

    def result(self) -> Phase1Result:
        """The state as the phase's result; a candidate that never ended stands in it without code and score."""
        initial = self.best()
        candidates = [
            self.trials[index].script if index in self.trials else _unwritten(model)
            for index, model in enumerate(self.models)
        ]
        return Phase1Result(
            retrieved_models=self.models,
            candidate_solutions=candidates,
            candidate_scores=[script.score for script in candidates],
            initial_solution=initial,
            initial_score=score_of(initial),
            merge_attempts=[
                {"source_model": m.reference_model, "score": m.score, "accepted": m.accepted, "reason": m.reason}
                for m in self.merges
            ],
            data_usage_changed=self.data_usage_changed,
        )


def _unwritten(model: RetrievedModel) -> SolutionScript:
    """Stands for a candidate that never ended."""
    return SolutionScript(content="", phase=SolutionPhase.init, is_executable=False, source_model=model.model_name)


def score_of(solution: SolutionScript) -> float:
    """The score of a script that has one."""
    if solution.score is None:
        raise ValueError("this script was never scored")
    return solution.score


# --- Phase 2 ---------------------------------------------------------------------------------------------


@dataclass
class BlockProgress:
    """The state of one inner loop, published as it grows: a path that is cut off keeps what it had reached."""

    block: CodeBlock
    best_solution: SolutionScript
    best_score: float
    attempts: list[RefinementAttempt] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    """Of each attempt, the script that was scored."""
    unchecked: dict[int, SolutionScript] = field(default_factory=dict)
    """By attempt, the scripts with a score, where they are checked for leakage only in the end."""
    best_block: tuple[str, float] | None = None
    start: SolutionScript = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.best_solution

    @property
    def plans(self) -> list[str]:
        """What was tried, failures included."""
        return [attempt.plan for attempt in self.attempts]

    @property
    def scores(self) -> list[float | None]:
        """What each plan reached; None where it failed."""
        return [attempt.score for attempt in self.attempts]


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


@dataclass
class StepProgress:
    """The outer step that is under way."""

    t: int
    summary: str = ""
    block: CodeBlock | None = None
    plan: str = ""
    attempts: list[RefinementAttempt] = field(default_factory=list)


@dataclass
class PathProgress:
    """s_final, h_best, T_abl, C and the history of a path, published as they grow.

    Every step, skipped or not, appends one summary, one block and one record, so the three lists are always of one
    length; empty summaries and placeholder blocks stay out of prompts.
    """

    best_solution: SolutionScript
    best_score: float
    task: TaskDescription
    summaries: list[str] = field(default_factory=list)
    blocks: list[CodeBlock] = field(default_factory=list)
    history: list[OuterStepRecord] = field(default_factory=list)
    replaced: bool = False
    step: StepProgress | None = None

    @property
    def known_summaries(self) -> list[str]:
        """T_abl as prompts show it."""
        return [summary for summary in self.summaries if summary]

    @property
    def known_blocks(self) -> list[str]:
        """C as prompts show it."""
        return [block.content for block in self.blocks if not block.is_placeholder]

    @property
    def plans(self) -> list[str]:
        """What the steps that are over have tried, failures included."""
        return [attempt.plan for record in self.history for attempt in record.inner_loop_attempts]

    def accept(self, solution: SolutionScript, score: float) -> None:
        """Take over what the inner loop found, if it is at least as good (lines 12-14)."""
        fixed = self.best_solution.leaking and not solution.leaking
        if fixed or is_improvement_or_equal(score, self.best_score, self.task.metric_direction):
            self.replaced = self.replaced or solution is not self.best_solution
            self.best_solution, self.best_score = solution, score

    def finish(self, step: StepProgress, *, failed: bool = False) -> None:
        """Append what the step leaves behind (lines 26-27); a step without a block was skipped."""
        skipped = step.block is None
        self.summaries.append("" if skipped else step.summary)
        self.blocks.append(step.block or CodeBlock(content="", outer_step=step.t))
        self.history.append(
            OuterStepRecord(
                outer_step=step.t,
                ablation_summary=step.summary,
                code_block=self.blocks[-1].content,
                plan=step.plan,
                inner_loop_attempts=step.attempts,
                best_score_after_step=self.best_score,
                was_skipped=skipped,
                failed=failed,
            )
        )
        self.step = None

    def cut_off(self, inner: BlockProgress | None) -> Phase2Result:
        """What the path comes to if it ends here.

        The step it is in counts as one more step: its attempts so far are kept, and when no script has taken the place
        of the initial one, its record says `failed`.
        """
        path = replace(self, summaries=[*self.summaries], blocks=[*self.blocks], history=[*self.history])
        step = path.step
        if step is None:
            return path.result()
        if inner is not None and inner.block is step.block:
            path.accept(inner.best_solution, inner.best_score)
            step = replace(step, attempts=[*inner.attempts])
        path.finish(step, failed=not path.replaced)
        return path.result(partial=True)

    def result(self, *, partial: bool = False) -> Phase2Result:
        """The state as the phase's result."""
        history: list[dict[str, Any]] = [dict(record) for record in self.history]
        return Phase2Result(
            ablation_summaries=self.summaries,
            refined_blocks=self.blocks,
            best_solution=self.best_solution,
            best_score=self.best_score,
            step_history=history,
            partial=partial,
        )


# --- finalization ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submission:
    """What finalization submits: a script, the absolute path of its file or an empty text, and remarks."""

    script: SolutionScript
    path: str = ""
    warnings: list[str] = field(default_factory=list)
    subsampling_removed: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    """What was found in the file: `rows`, the `sample` whose columns it matches, `problems`, `fallback`."""

    @property
    def origin(self) -> dict[str, Any]:
        """What the lineage of a result says of it."""
        return {"finalization": {"subsampling_removed": self.subsampling_removed, **self.facts}}
