"""Which agents there are, what they know and which tools they get."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from claude_agent_sdk import AgentDefinition

from mle_star.execution import inspect_interpreter
from mle_star.models import AgentType, MetricDirection, TaskDescription, agent_config, build_default_agent_configs
from mle_star.sdk.credentials import MINIMUM_VERSION, check_sdk_version, installed_sdk_version, require_sdk
from mle_star.sdk.definitions import (
    MCP_TOOLS,
    PERSONA,
    EnvironmentFacts,
    ScriptShare,
    build_definitions,
    build_system_prompt,
    build_tool_server,
    effective_tools,
)
from tests.sdk.conftest import FACTS

WRITERS = {"init", "merger", "ablation", "coder", "ensembler", "debugger", "test"}


@pytest.mark.req("REQ-OR-006", "REQ-OR-008", "REQ-OR-010", "REQ-OR-057")
def test_all_fourteen_agents_are_registered_with_their_tools_under_the_names_of_the_enum(tmp_path: Path) -> None:
    coder, server = agent_config(AgentType.coder), build_tool_server(tmp_path)
    definitions = build_definitions(coder, "the system prompt", "minimal", server)
    assert sorted(definitions) == sorted(agent.value for agent in AgentType)
    assert len(definitions) == 14
    assert all(isinstance(definition, AgentDefinition) for definition in definitions.values())
    assert definitions["coder"].prompt == "the system prompt"
    assert all(definition.description and definition.prompt for definition in definitions.values())
    tools = {name: definition.tools or [] for name, definition in definitions.items()}
    assert {name for name in tools if "StructuredOutput" in tools[name]} == {"retriever", "extractor", "leakage"}
    having = {agent.value for agent, config in build_default_agent_configs("minimal").items() if config.tools}
    assert {name for name in tools if set(MCP_TOOLS) <= set(tools[name])} == having
    assert definitions["planner"].tools == definitions["summarize"].tools == []  # a missing list would mean all
    without = build_definitions(agent_config(AgentType.coder), "", "minimal")
    assert not any(set(MCP_TOOLS) & set(definition.tools or []) for definition in without.values())


@pytest.mark.req("REQ-OR-008")
def test_the_full_profile_gives_the_tools_of_the_table_and_the_minimal_one_none_that_acts() -> None:
    for agent, config in build_default_agent_configs("full").items():
        reads = ["WebSearch", "WebFetch"] if agent is AgentType.retriever else ["Read"]
        expected = ["Bash", "Edit", "Write", "Read"] if agent.value in WRITERS else reads
        assert effective_tools(config, "full") == expected, agent
        minimal = build_default_agent_configs("minimal")[agent]
        assert not {"Bash", "Edit", "Write"} & set(effective_tools(minimal, "minimal")), agent
    assert effective_tools(agent_config(AgentType.debugger), "minimal") == ["Read"]


@pytest.mark.req("REQ-OR-007")
def test_the_system_prompt_says_who_what_and_on_which_machine(task: TaskDescription) -> None:
    task = task.model_copy(update={"description": "Every word counts. " * 2000 + "The end."})
    prompt = build_system_prompt(task, FACTS)
    assert prompt.startswith(PERSONA) and " ".join(PERSONA.split()) == (
        "You are a Kaggle grandmaster with expert-level skills in machine learning, data science, and competitive data "
        "analysis. You approach every task methodically, writing clean, efficient, and well-tested code. You always "
        "validate your solutions against the training data before submission."
    )
    assert headings(prompt) == ["# Task", "# Metric", "# Data", "# Hardware", "# Python"]
    assert task.description in prompt
    assert "`accuracy`, `maximize`" in prompt
    assert f"The data folder is `{Path(task.data_dir).resolve()}`; scripts see it as `./input`." in prompt
    assert "- `sample_submission.csv` (" in prompt
    assert "2 (NVIDIA H200, NVIDIA H200), CUDA available" in prompt
    assert "\nnumpy==1.26.4\nscikit-learn==1.5.0" in prompt
    assert "pip==" not in prompt  # nothing that a solution would import
    other = task.model_copy(update={"metric_direction": MetricDirection.minimize, "evaluation_metric": "rmse"})
    poor = build_system_prompt(other, EnvironmentFacts(gpu={"cuda_available": False, "gpu_count": 0, "gpu_names": []}))
    assert "`rmse`, `minimize`" in poor and "- GPUs: none" in poor
    share = ScriptShare(cores=1, memory_gb=3.5, network=False)
    gpu = {**FACTS.gpu, "gpu_memory": ["143771 MiB", "143771 MiB"]}
    facts = dataclasses.replace(FACTS, brief="- `x`: numbers 1 to 2", knowledge="## Traps", share=share, gpu=gpu)
    rich = build_system_prompt(task, facts)
    more = ["# Knowledge", "# Task", "# Metric", "# Data", "# Data brief", "# Hardware", "# Python"]
    assert headings(rich) == more
    for line in (
        "- One script has 1 core and 3.5 GB of memory",
        "- GPU memory: 143771 MiB, 143771 MiB",
        "none, so nothing can be downloaded",
        "weights at hand: none: `pretrained=True` and",
    ):
        assert line in rich
    known = dataclasses.replace(share, weights=("org/name", "/models/a.pth"))
    with_weights = build_system_prompt(task, dataclasses.replace(FACTS, share=known))
    assert "weights at hand, and no others: `org/name`, `/models/a.pth`" in with_weights
    plain = [line for line in prompt.splitlines() if line]
    assert [line for line in rich.splitlines() if line in plain] == plain, "what is added stands in lines of its own"


def headings(prompt: str) -> list[str]:
    return [line for line in prompt.splitlines() if line.startswith("# ")]


@pytest.mark.req("REQ-OR-007")
def test_packages_are_announced_however_they_are_spelt_and_noise_is_not(task: TaskDescription) -> None:
    wanted = ("category_encoders", "huggingface_hub", "lifelines", "my_own.models", "openpyxl", "Scikit_Learn")
    noise = ("claude-agent-sdk", "mypy_extensions", "pip", "pydantic_core", "pyseccomp", "pytest-xdist")
    facts = EnvironmentFacts(packages=dict.fromkeys((*wanted, *noise), "1.0"))
    assert build_system_prompt(task, facts).endswith("\n".join(f"{name}==1.0" for name in wanted))
    ours = EnvironmentFacts(packages=inspect_interpreter().packages)
    assert len(ours.packages) > 60
    assert {"numpy", "scikit-learn", "lightgbm"} <= {name for name, _ in ours.script_packages}
    assert sum(len(name) + len(version) + 3 for name, version in ours.script_packages) < 800


@pytest.mark.req("REQ-OR-054")
def test_an_old_sdk_is_refused_by_name_and_a_missing_one_only_when_needed() -> None:
    for old in ("0.1.38", "0.2.9", "0.2.181"):
        with pytest.raises(ImportError, match=f"{old} is too old, {MINIMUM_VERSION} or later is needed"):
            check_sdk_version(old)
    for fine in (MINIMUM_VERSION, "0.2.182.post1", "0.3.0", "1.0", None):
        check_sdk_version(fine)
    assert installed_sdk_version() is not None
    require_sdk()


@pytest.mark.req("REQ-OR-054")
def test_the_orchestrator_cannot_be_imported_beside_an_old_sdk(tmp_path: Path) -> None:
    info = tmp_path / "claude_agent_sdk-0.1.38.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: claude-agent-sdk\nVersion: 0.1.38\n", encoding="utf-8")
    command = [sys.executable, "-c", "import mle_star.models; print('models'); import mle_star.orchestrator"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1
    assert ended.stdout == "models\n"
    assert "ImportError: claude-agent-sdk 0.1.38 is too old" in ended.stderr
