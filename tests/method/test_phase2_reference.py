"""Algorithms 2 and 3 against reference models of some ten lines each, on random scores, ties and failures."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mle_star.models import MetricDirection, SolutionPhase, TaskDescription
from mle_star.phase2_inner import run_phase2_inner_loop
from mle_star.phase2_outer import run_phase2_outer_loop
from mle_star.phase3 import ENS_PLANNER_FAILED, run_phase3
from mle_star.run.context import scope
from mle_star.run.events import PLANNER_FAILED

from .conftest import ScriptedExecutor, ScriptedRun, script, scripted_run, settings, solution
from .loops import (
    Outcome,
    Step,
    at_least_as_good,
    base_solution,
    block,
    part,
    play_attempts,
    play_rounds,
    play_steps,
    section,
)

pytestmark = pytest.mark.modes("delivered", "letter")

EXAMPLES = 100 if os.environ.get("MLE_STAR_SOAK") else 25
SCORES = st.sampled_from([0.1, 0.5, 0.5000001, 0.9]) | st.floats(-1e6, 1e6)  # few values, so that ties are common
DIRECTIONS = st.sampled_from(list(MetricDirection))
ATTEMPTS = st.lists(SCORES | st.sampled_from(["coder", "crash", "planner"]), min_size=1, max_size=5)
STEPS = st.lists(st.just("skip") | ATTEMPTS.filter(lambda step: len(step) < 4), min_size=1, max_size=4)
ROUNDS = st.lists(SCORES | st.sampled_from(["planner", "ensembler", "crash"]), min_size=1, max_size=6)

Won = tuple[float, str | None]
"""The best score, and the mark of the script that has it; None for the script from before."""


@contextmanager
def many_runs(root: Path) -> Iterator[ScriptedRun]:
    """One run for all examples: each gets a scope of its own and an empty script for the agents."""
    with scripted_run(root, executor=ScriptedExecutor(), evaluation_metric="profit") as run:
        yield run
        assert run.agents.log


def task_of(run: ScriptedRun, direction: MetricDirection) -> TaskDescription:
    run.agents.__init__()  # type: ignore[misc]  # a new script for the next example
    return run.task.model_copy(update={"metric_direction": direction})


# --- the models ------------------------------------------------------------------------------------------


def reference_inner(
    won: Won, outcomes: list[Outcome], direction: MetricDirection, mark: str = ""
) -> tuple[Won, list[tuple[float | None, bool]]]:
    """Algorithm 2, lines 9-25."""
    history: list[tuple[float | None, bool]] = []
    for k, outcome in enumerate(outcomes):
        score = outcome if isinstance(outcome, float) else None
        wins = score is not None and at_least_as_good(score, won[0], direction)
        if score is not None and wins:
            won = score, f"{mark}k{k}"
        history.append((score, wins))
    return won, history


def reference_outer(start: float, steps: list[Step], direction: MetricDirection) -> list[Won]:
    """Algorithm 2: what is best after each step."""
    won: Won = (start, None)
    bests = []
    for t, step in enumerate(steps):
        if not isinstance(step, str):
            won, _ = reference_inner(won, list(step), direction, f"t{t}")
        bests.append(won)
    return bests


def reference_phase3(
    inputs: list[float], outcomes: list[Outcome], direction: MetricDirection
) -> tuple[float, int | None]:
    """Algorithm 3: the best score and its round, None for an input."""
    sign = 1 if direction is MetricDirection.maximize else -1
    scored = [(sign * outcome, r) for r, outcome in enumerate(outcomes) if isinstance(outcome, float)]
    if not scored:
        return sign * max(sign * score for score in inputs), None
    value, r = max(scored)
    return sign * value, r


# --- the comparison --------------------------------------------------------------------------------------


@pytest.mark.req(
    "REQ-P2I-016",
    "REQ-P2I-024",
    "REQ-P2I-025",
    "REQ-P2I-026",
    "REQ-P2I-027",
    "REQ-P2I-037",
    "REQ-P2I-047",
    "REQ-P2I-048",
)
def test_the_inner_loop_agrees_with_its_reference_model(quick_path: Path) -> None:
    numbers = count()

    @examples(max_examples=EXAMPLES, derandomize=True)
    @given(start=SCORES, outcomes=ATTEMPTS, direction=DIRECTIONS)
    def compare(start: float, outcomes: list[Outcome], direction: MetricDirection) -> None:
        task = task_of(run, direction)
        play_attempts(run.agents, outcomes)
        original, config = base_solution(), settings(K=len(outcomes))
        with scope(f"example-{next(numbers)}"):
            result = asyncio.run(run_phase2_inner_loop(original, block(), "plan 0", start, task, config))
        (best, mark), history = reference_inner((start, None), outcomes, direction)
        assert [(attempt.score, attempt.was_improvement) for attempt in result.attempts] == history
        assert result.best_score == best
        assert (result.best_solution is original) is (mark is None)
        assert mark is None or f"# {mark}" in result.best_solution.content
        assert result.improved is (best != start)
        planned = sum(outcome != "planner" for outcome in outcomes[1:])
        assert [a.plan for a in result.attempts].count(PLANNER_FAILED) == len(outcomes) - 1 - planned
        assert run.agents.names.count("planner") == len(outcomes) - 1
        assert run.agents.names.count("coder") == 1 + planned

    with many_runs(quick_path) as run:
        compare()


@pytest.mark.req(
    "REQ-P2O-019", "REQ-P2O-024", "REQ-P2O-025", "REQ-P2O-027", "REQ-P2O-029", "REQ-P2O-030", "REQ-P2O-041"
)
def test_the_outer_loop_agrees_with_its_reference_model(quick_path: Path) -> None:
    numbers = count()

    @examples(max_examples=EXAMPLES, derandomize=True)
    @given(start=SCORES, steps=STEPS, direction=DIRECTIONS)
    def compare(start: float, steps: list[Step], direction: MetricDirection) -> None:
        task = task_of(run, direction)
        k = max((len(step) for step in steps if not isinstance(step, str)), default=1)
        steps = [step if isinstance(step, str) else [*step, *["coder"] * (k - len(step))] for step in steps]
        play_steps(run.agents, steps)
        original, config = base_solution(blocks=len(steps)), settings(T=len(steps), K=k)
        with scope(f"example-{next(numbers)}"):
            result = asyncio.run(run_phase2_outer_loop(original, start, task, config))
        bests = reference_outer(start, steps, direction)
        assert [record["best_score_after_step"] for record in result.step_history] == [best for best, _ in bests]
        assert [record["was_skipped"] for record in result.step_history] == [step == "skip" for step in steps]
        assert [b.content for b in result.refined_blocks] == [
            "" if step == "skip" else part(t) for t, step in enumerate(steps)
        ]
        assert result.ablation_summaries == ["" if step == "skip" else f"summary {t}" for t, step in enumerate(steps)]
        best, mark = bests[-1]
        assert result.best_score == best == result.best_solution.score
        expected = original.content if mark is None else f"# {mark}\n"
        assert expected in result.best_solution.content
        assert mark is None or result.best_solution.content.rindex("# t") == result.best_solution.content.index(
            expected
        )
        known: list[str | None] = [None, *(mark for _, mark in bests)]  # s_t: what the step before left
        for t, call in enumerate(run.agents.calls("ablation")):
            shown = [None, *re.findall(r"# (t\dk\d)", section(call.prompt, "Python solution"))]
            assert shown[-1] == known[t]
        attempts = [[a.score for a in record["inner_loop_attempts"]] for record in result.step_history]
        assert attempts == [
            [] if isinstance(step, str) else [o if isinstance(o, float) else None for o in step] for step in steps
        ]

    with many_runs(quick_path) as run:
        compare()


@pytest.mark.req("REQ-P3-025", "REQ-P3-026", "REQ-P3-034", "REQ-P3-035", "REQ-P3-042", "REQ-P3-044")
def test_phase_3_agrees_with_its_reference_model(quick_path: Path) -> None:
    numbers = count()

    @examples(max_examples=EXAMPLES, derandomize=True)
    @given(inputs=st.lists(SCORES, min_size=2, max_size=4), outcomes=ROUNDS, direction=DIRECTIONS)
    def compare(inputs: list[float], outcomes: list[Outcome], direction: MetricDirection) -> None:
        task = task_of(run, direction)
        play_rounds(run.agents, outcomes)
        solutions = [
            solution(script(s, note=f"input {n}"), score=s, phase=SolutionPhase.refined) for n, s in enumerate(inputs)
        ]
        with scope(f"example-{next(numbers)}"):
            result = asyncio.run(run_phase3(solutions, task, settings(R=len(outcomes))))
        best, winner = reference_phase3(inputs, outcomes, direction)
        assert result.ensemble_scores == [o if isinstance(o, float) else None for o in outcomes]
        assert result.ensemble_plans == [
            ENS_PLANNER_FAILED if outcome == "planner" else f"plan {r}" for r, outcome in enumerate(outcomes)
        ]
        assert result.best_ensemble_score == best == result.best_ensemble.score
        assert (f"# round {winner}\n" if winner is not None else "# input") in result.best_ensemble.content
        assert run.agents.names.count("ens_planner") == len(outcomes)
        assert run.agents.names.count("ensembler") == sum(outcome != "planner" for outcome in outcomes)

    with many_runs(quick_path) as run:
        compare()
