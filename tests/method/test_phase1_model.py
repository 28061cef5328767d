"""Phase 1 against a small model of Algorithm 1: random scores, failures, ties and directions."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mle_star.errors import Phase1Error
from mle_star.models import MetricDirection
from mle_star.phase1 import run_phase1
from mle_star.run.events import MergeTried
from tests.method.conftest import (
    GARBAGE,
    NO_LEAKAGE,
    ScriptedExecutor,
    broken_script,
    by_step,
    fenced,
    leaky,
    models,
    script,
    scripted_run,
    settings,
)

Outcome = float | None
"""What a script scores; None: it fails for good."""


def reference(
    candidates: list[Outcome], merges: list[Outcome], data: Outcome, leak: Outcome, direction: MetricDirection
) -> tuple[float, list[int], list[bool]] | None:
    """Algorithm 1 in ten lines: the final score, which candidates were merged, and which merges were accepted."""
    sign = 1 if direction is MetricDirection.maximize else -1
    ranked = sorted(
        (i for i, s in enumerate(candidates) if s is not None), key=lambda i: -sign * (candidates[i] or 0.0)
    )
    if not ranked:
        return None
    best, accepted = candidates[ranked[0]], []
    for merged in merges[: len(ranked) - 1]:
        accepted.append(merged is not None and sign * merged >= sign * (best or 0.0))
        if not accepted[-1]:
            break
        best = merged
    best = best if data is None else data
    best = best if leak is None else leak
    return best or 0.0, ranked[1 : len(accepted) + 1], accepted


def code(outcome: Outcome, note: str) -> str:
    return str(fenced(broken_script(note) if outcome is None else script(outcome, note=note)))


async def algorithm(
    root: Path,
    candidates: list[Outcome],
    merges: list[Outcome],
    data: Outcome,
    leak: Outcome,
    direction: MetricDirection,
) -> tuple[float, list[int], list[bool]] | None:
    """The same by the real phase, with agents that write scripts of these outcomes."""
    config = settings(M=len(candidates), max_debug_attempts=1)
    words: dict[str, Any] = {"metric_direction": direction, "evaluation_metric": "profit"}
    with scripted_run(root, config=config, executor=ScriptedExecutor(), **words) as run:
        run.agents.always("retriever", models(*(f"m{i}" for i in range(len(candidates)))))
        places: dict[str, Any] = {f"candidate_{i}": code(s, f"m{i}") for i, s in enumerate(candidates)}
        run.agents.always("init", by_step(**places))
        run.agents.reply("merger", *(code(s, f"merge {i}") for i, s in enumerate(merges)))
        run.agents.always("debugger", GARBAGE)
        if data is not None:
            run.agents.always("data", code(data, "all data"))
        found = NO_LEAKAGE if leak is None else leaky("print(f'Final Validation Performance: {level}')")
        run.agents.always("leakage-detection", by_step(leakage=found, otherwise=NO_LEAKAGE))
        fix = f"level = {leak}\nprint(f'Final Validation Performance: {{level}}')"
        run.agents.always("leakage-correction", fenced(fix))
        try:
            result = await run_phase1(run.task, config)
        except Phase1Error:
            assert all(score is None for score in candidates) and run.agents.calls("merger") == []
            return None
        assert result.candidate_scores == candidates
        assert result.initial_solution.score == result.initial_score
        assert len(run.agents.calls("data")) == len(run.agents.calls("retriever")) == 1
        tried = run.events(MergeTried)
        assert len(run.agents.calls("merger")) == len(tried)
        return result.initial_score, [int(m.reference_model[1:]) for m in tried], [m.accepted for m in tried]


few = st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1e-07])  # so that ties are common
scores = st.one_of(few, few, st.floats(-1e6, 1e6, allow_subnormal=False))
outcomes = st.one_of(scores, scores, st.none())


@pytest.mark.req("REQ-P1-023", "REQ-P1-025", "REQ-P1-026", "REQ-P1-027", "REQ-P1-028", "REQ-P1-041")
@given(
    candidates=st.lists(outcomes, min_size=1, max_size=4),
    merges=st.lists(outcomes, min_size=3, max_size=3),
    data=outcomes,
    leak=outcomes,
    direction=st.sampled_from(list(MetricDirection)),
)
@example([0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.5], None, None, MetricDirection.maximize)
@example([0.5, None, 0.25], [0.25, 0.25, 0.0], 0.9, 0.1, MetricDirection.minimize)
@hypothesis_settings(max_examples=50)
def test_the_phase_does_what_the_model_says(
    candidates: list[Outcome], merges: list[Outcome], data: Outcome, leak: Outcome, direction: MetricDirection
) -> None:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        got = asyncio.run(algorithm(Path(folder), candidates, merges, data, leak, direction))
    assert got == reference(candidates, merges, data, leak, direction)
