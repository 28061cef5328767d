"""What Phase 1 says in the log, to the word, and what a run that is stopped in it can show."""

from __future__ import annotations

import logging

import pytest

from mle_star.phase1 import run_phase1

from .conftest import NO_LEAKAGE, ScriptedRun, broken_script, by_step, fenced, leaky, models, script, settings
from .loops import assert_says

INFO, WARNING = logging.INFO, logging.WARNING


@pytest.mark.req("REQ-P1-038")
async def test_phase_1_is_told_from_its_start_to_its_end(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    agents = quick_run.agents
    agents.always("debugger", "I cannot.")
    agents.reply("retriever", "no JSON", models("alpha", "beta", "alpha", " ", "gamma"))
    agents.always(
        "init",
        by_step(candidate_0=fenced(script(0.5)), candidate_1=fenced(broken_script()), otherwise=fenced(script(0.4))),
    )
    agents.reply("merger", fenced(script(0.6, note="merged")))
    agents.reply("data", fenced(script(0.55, note="more data")))
    agents.always("leakage-detection", by_step(leakage=leaky("level = 0.55"), otherwise=NO_LEAKAGE))
    agents.reply("leakage-correction", fenced("level = 0.52"))
    await run_phase1(quick_run.task, settings(M=4))
    assert_says(
        caplog,
        (INFO, ("phase start: tiny-task, M 4",)),
        (WARNING, ("retrieval failed: the retriever's reply cannot be used (", "no JSON")),
        (WARNING, ("retrieval: a model came twice, the second one is left out: 'alpha'",)),
        (WARNING, ("retrieval: a model without a name or without code is left out: ' '",)),
        (WARNING, ("retrieval: 3 models instead of 4",)),
        (INFO, ("retrieval done: 3 models: alpha, beta, gamma",)),
        (INFO, ("generation start: 1 of 3, alpha",)),
        (INFO, (f"generation done: alpha, {len(script(0.5))} characters",)),
        (INFO, ("evaluation done: alpha, 0.5, ", " s")),
        (WARNING, ("candidate skipped: beta: Traceback (most recent call last): RuntimeError: broken",)),
        (INFO, ("ranked: alpha 0.5, gamma 0.4",)),
        (INFO, ("merge start: index 1, base score 0.5, reference gamma",)),
        (INFO, ("merge result: index 1, score 0.6, accepted",)),
        (INFO, (f"data check start: {len(script(0.6, note='merged'))} characters",)),
        (WARNING, ("the revised script scores worse: 0.55 instead of 0.6",)),
        (INFO, ("data check result: modified: yes",)),
        (INFO, (f"leakage check start: {len(script(0.55, note='more data'))} characters",)),
        (INFO, ("leakage check result: found and corrected: yes",)),
        (INFO, ("phase end: score 0.52, ", " s, 1 merges done")),
    )
