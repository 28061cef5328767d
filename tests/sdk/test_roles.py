"""Model, effort and thinking by role, as they reach the API."""

from __future__ import annotations

import json
from typing import Any

from mle_star.models import AgentType, PipelineConfig, TaskDescription, agent_config
from mle_star.run.forecast import Forecaster
from mle_star.sdk.hooks import CallSite
from tests.sdk.conftest import MODEL, OpenBench


async def test_each_role_goes_out_with_its_own_model_effort_and_thinking(open_bench: OpenBench) -> None:
    roles: dict[str, Any] = {
        "planner": {"model": "claude-opus-4-6", "effort": "high"},
        "summarize": {"thinking": "disabled"},
        "data": {"thinking": "adaptive"},
        "init": {"thinking": 2048},
    }
    async with open_bench(agents=roles) as bench:
        planner, coder = agent_config(AgentType.planner), agent_config(AgentType.coder)
        await bench.agents.ask(planner, "plan", label="main", max_cost_usd=None)
        await bench.agents.ask(coder, "code", label="main", max_cost_usd=None)
        sent = {name: json.loads(bench.brain.calls(name)[-1].body) for name in ("planner", "coder")}
        assert (sent["planner"]["model"], sent["coder"]["model"]) == ("claude-opus-4-6", MODEL)
        assert "high" in json.dumps(sent["planner"].get("output_config", {}))
        assert bench.agents.fingerprint(planner) != bench.agents.fingerprint(coder)
        kinds = (AgentType.coder, AgentType.summarize, AgentType.data, AgentType.init)
        made = [bench.agents._launcher.options(agent_config(kind), CallSite(""), None).thinking for kind in kinds]
        enabled = {"type": "enabled", "budget_tokens": 2048}
        assert made == [None, {"type": "disabled"}, {"type": "adaptive"}, enabled]


def test_the_forecast_knows_the_roles(task: TaskDescription) -> None:
    def cost(**changes: Any) -> float:
        found = Forecaster(task, PipelineConfig(model="sonnet", **changes)).forecast().cost_usd
        assert found is not None
        return found

    plain = cost()
    assert cost(agents={"coder": {"model": "opus"}}) > plain
    assert cost(agents={"coder": {"effort": "max"}}) > cost(agents={"coder": {"effort": "high"}}) > plain
    assert cost(agents={"summarize": {"model": "haiku"}}) < plain
    assert cost(leakage_checks="promising") < plain
    assert cost(preset="quick") < cost(preset="good") < cost(preset="best")
