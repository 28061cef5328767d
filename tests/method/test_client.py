"""The main way through all phases by the real SDK client and CLI, against a server on loopback."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mle_star.engineer.server import BrainRequest, MessagesServer
from mle_star.finalization import run_finalization
from mle_star.models import (
    DataContaminationResult,
    ExtractorOutput,
    LeakageDetectionOutput,
    RetrieverOutput,
    SolutionPhase,
)
from mle_star.phase1 import run_phase1
from mle_star.phase2_outer import run_phase2_outer_loop
from mle_star.phase3 import run_phase3
from mle_star.run.context import enter_run
from mle_star.run.events import AblationFinished, AgentFinished, BlockChosen, DebugAttempted, LeakageChecked
from mle_star.sdk import AgentClient, CallPolicy, EnvironmentFacts
from mle_star.testing import ScriptedBrain

from .conftest import ScriptedRun, scripted_run, settings
from .loops import section
from .replies import NO_LEAKAGE, base_solution, broken_script, fenced, leaky, models, part, plans, script

pytestmark = pytest.mark.skipif(not os.environ.get("MLE_STAR_SOAK"), reason="the real CLI of each agent; `make soak`")

CONFIG = settings(M=2, T=1, K=2, R=1, model="claude-sonnet-4-5", client_reuse="clear", agent_timeout_seconds=120)
FACTS = EnvironmentFacts(
    gpu={"cuda_available": False, "gpu_count": 0, "gpu_names": []}, python_version="3.11", packages={}
)
QUICK = CallPolicy(retry_delays=(0.01,), busy_delays=(0.01,), cli_retries=0)


@asynccontextmanager
async def answered_by(mind: ScriptedBrain, run: ScriptedRun) -> AsyncIterator[None]:
    """Agents by the real client, which asks this mind."""
    async with (
        MessagesServer(mind) as server,
        AgentClient(run.task, CONFIG, FACTS, base_url=server.base_url, policy=QUICK) as client,
    ):
        with enter_run(replace(run.context, agents=client)):
            yield


def first_brain() -> ScriptedBrain:
    """Two candidates, one of them broken, the other leaky; a merge; a revision for more data; a test script."""

    def write(request: BrainRequest) -> str:
        return str(fenced(broken_script("m0") if "# Model\n\nm0\n" in request.prompt else script(0.6)))

    def scorer(request: BrainRequest) -> dict[str, Any]:
        return leaky("level = 0.6") if "level = 0.6\n" in request.prompt else NO_LEAKAGE

    mind = ScriptedBrain()
    mind.always("retriever", models("m0", "m1"))
    mind.always("init", write)
    mind.always("leakage/detection", scorer)
    mind.always("leakage/correction", fenced("level = 0.55"))
    mind.always("debugger", fenced(script(0.5)))
    mind.always("merger", fenced(script(0.7)))
    mind.always("data", fenced(script(0.8, note="all data")))
    mind.always("test/subsampling_extract", "There is no subsampling.")
    mind.always("test", fenced(script(0.9, note="test script")))
    mind.always("test/contamination", {"verdict": "Novel"})
    return mind


@pytest.mark.req("REQ-P1-001", "REQ-P1-003", "REQ-P1-007", "REQ-P1-008", "REQ-P1-013")
async def test_phase_1_and_finalization_through_the_real_client(tmp_path: Path) -> None:
    mind = first_brain()
    with scripted_run(tmp_path, config=CONFIG) as run:
        async with answered_by(mind, run):
            phase1 = await run_phase1(run.task, CONFIG)
            final = await run_finalization(
                phase1.initial_solution, run.task, CONFIG, phase1, [], None, ["a post"]
            )  # fmt: skip
        assert phase1.candidate_scores == [0.5, 0.55] and phase1.initial_score == 0.8
        assert [merge["score"] for merge in phase1.merge_attempts] == [0.7]
        assert [event.accepted for event in run.events(DebugAttempted)] == [True]
        assert [(event.found, event.fixed) for event in run.events(LeakageChecked)] == [(1, 1)]
        finished = run.events(AgentFinished)
        assert len(finished) == len(mind.requests) and all(event.cost_usd > 0 for event in finished)
        assert run.context.budget.spent_usd > 0
    assert (final.final_solution.phase, final.final_solution.content) == (
        SolutionPhase.final, script(0.9, note="test script")
    )  # fmt: skip
    assert Path(final.submission_path).read_text() == "id,target\n1,0\n2,1\n"
    assert final.contamination == DataContaminationResult(verdict="Novel")
    asked = [(request.agent, request.variant) for request in mind.requests]
    assert asked.count(("leakage", "detection")) == 7 and asked.count(("init", None)) == 2
    assert ("test", "contamination") in asked and ("test", None) in asked
    [retriever] = mind.calls("retriever")
    assert {"WebSearch", "WebFetch"} <= set(retriever.tools) and retriever.schema is not None
    assert set(retriever.schema["properties"]) == set(RetrieverOutput.model_json_schema()["properties"])
    for request in [*mind.calls("init"), *mind.calls("merger")]:
        assert "Read" in request.tools and "WebFetch" not in request.tools and request.schema is None


def second_brain() -> ScriptedBrain:
    """A study to repair, a wrong block before the right one, a leak to correct, and an ensemble."""
    mind = ScriptedBrain()
    mind.always("ablation", fenced("print('Ablation baseline: 0.5')\nscore = 1 / 0"))
    mind.always("debugger/ablation", fenced("print('Ablation baseline: 0.5')\nprint('Ablation no part: 0.2')"))
    mind.always("summarize", "The part matters most.")
    mind.reply_with("extractor", plans(("not there", "p")), plans((part(0), "raise it")))
    mind.reply_with("coder", fenced("level = 0.9"), fenced("level = 0.7"))
    mind.reply_with("leakage/detection", leaky("level = 0.9"))
    mind.always("leakage/detection", NO_LEAKAGE)
    mind.always("leakage/correction", fenced("level = 0.6"))
    mind.always("planner", "raise it more")
    mind.always("ens_planner", "average the two")
    mind.always("ensembler", fenced(script(0.8)))
    return mind


@pytest.mark.req("REQ-P2O-014", "REQ-P2O-038", "REQ-P2I-044", "REQ-P3-040", "REQ-SF-015")
async def test_phase_2_and_phase_3_through_the_real_client(tmp_path: Path) -> None:
    mind, solution = second_brain(), base_solution(blocks=1)
    with scripted_run(tmp_path, config=CONFIG) as run:
        async with answered_by(mind, run):
            path = await run_phase2_outer_loop(solution, 0.5, run.task, CONFIG)
            final = await run_phase3([solution, path.best_solution], run.task, CONFIG)
        finished = run.events(AgentFinished)
        study, chosen = run.events(AblationFinished)[0], run.events(BlockChosen)[0]
    assert [attempt.score for attempt in path.step_history[0]["inner_loop_attempts"]] == [0.6, 0.7]
    assert path.best_score == 0.7 and path.ablation_summaries == ["The part matters most."]
    assert study.scores == {"baseline": 0.5, "no part": 0.2} and study.comparable and not study.failed
    assert (chosen.block, chosen.plan) == (part(0), "raise it")
    assert (final.ensemble_scores, final.best_ensemble.content) == ([0.8], script(0.8))
    assert len(finished) == len(mind.requests) == 14 and all(event.cost_usd > 0 for event in finished)
    for request in mind.calls("extractor"):
        assert request.schema is not None
        assert set(request.schema["properties"]) == set(ExtractorOutput.model_json_schema()["properties"])
    for request in mind.calls("leakage"):
        assert (request.schema is not None) is (request.variant == "detection")
        assert request.schema is None or set(request.schema["properties"]) == set(
            LeakageDetectionOutput.model_json_schema()["properties"]
        )
    for agent in ("coder", "planner", "ablation", "summarize", "ens_planner", "ensembler"):
        assert all(request.schema is None for request in mind.calls(agent)), agent
    (planned,) = mind.calls("planner")
    best = section(planned.prompt, "Best block so far")
    assert "```python\nlevel = 0.6\n```" in best and "scores 0.6." in best, "as it was scored, without the leak"
    assert "level = 0.7" in section(mind.calls("ens_planner")[0].prompt, "2nd Python Solution")
