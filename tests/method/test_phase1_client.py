"""The main way through Phase 1 and finalization by the real SDK client and CLI, against a server on loopback."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mle_star.engineer.server import BrainRequest, MessagesServer
from mle_star.finalization import run_finalization
from mle_star.models import DataContaminationResult, RetrieverOutput, SolutionPhase
from mle_star.phase1 import run_phase1
from mle_star.run.context import enter_run
from mle_star.run.events import AgentFinished, DebugAttempted, LeakageChecked
from mle_star.sdk import AgentClient, CallPolicy, EnvironmentFacts
from mle_star.testing import ScriptedBrain
from tests.method.conftest import NO_LEAKAGE, broken_script, fenced, leaky, models, script, scripted_run, settings

CONFIG = settings(M=2, model="claude-sonnet-4-5", client_reuse="clear", agent_timeout_seconds=120)
FACTS = EnvironmentFacts(
    gpu={"cuda_available": False, "gpu_count": 0, "gpu_names": []}, python_version="3.11", packages={}
)
QUICK = CallPolicy(retry_delays=(0.01,), busy_delays=(0.01,), cli_retries=0)


def brain() -> ScriptedBrain:
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
@pytest.mark.skipif(not os.environ.get("MLE_STAR_SOAK"), reason="the real CLI of each agent; `make soak`")
async def test_phase_1_and_finalization_through_the_real_client(tmp_path: Path) -> None:
    mind = brain()
    with scripted_run(tmp_path, config=CONFIG) as run:
        async with (
            MessagesServer(mind) as server,
            AgentClient(run.task, CONFIG, FACTS, base_url=server.base_url, policy=QUICK) as client,
        ):
            with enter_run(replace(run.context, agents=client)):
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
