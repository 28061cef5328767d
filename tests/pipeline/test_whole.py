"""The whole pipeline through the real SDK, the real CLI and the real harness, with the mind behind the loopback API."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import PermissionResultDeny

from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer, ToolCall
from mle_star.models import (
    ExtractorOutput,
    FinalResult,
    LeakageDetectionOutput,
    PipelineConfig,
    RetrieverNotes,
    TaskDescription,
)
from mle_star.orchestrator import PipelineState, run_pipeline
from mle_star.run.budget import price_of
from mle_star.run.events import AgentFinished, DebugAttempted, PhaseFinished, RunFinished, RunStarted, ScriptFinished
from mle_star.run.folder import request_finish
from mle_star.sdk import AgentClient, EnvironmentFacts
from tests.pipeline.conftest import clients_left, events, settings
from tests.pipeline.mind import Mind, MindBrain, broken, fenced, levels, script

CANARIES = {
    "ANTHROPIC_API_KEY": "sk-ant-canary-0123456789",
    "AWS_SECRET_ACCESS_KEY": "aws/canary+0123456789",
    "MY_DATABASE_PASSWORD": 'canary"with\\odd-signs',
}

SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
RUNS = [(paths, calm) for paths in (3, 2, 1) for calm in (True, False)] if SOAK else [(2, False)]
"""Numbers of paths, and whether all goes well."""
AT_A_TIME = None if SOAK else 1
"""Paths that go one after the other use the same clients, and none is connected in vain."""


def small(paths: int, **changes: Any) -> PipelineConfig:
    """One of everything: what costs time here is starting the CLI."""
    return settings(
        M=1, T=1, K=1, R=1, L=paths, client_reuse="clear", model="sonnet", max_concurrent_paths=AT_A_TIME, **changes
    )  # fmt: skip


def troubled() -> Mind:
    """Nothing goes well at first: scripts snoop and crash, blocks are misquoted, replies tell secrets or nothing."""
    snoop = "import os\nprint(dict(os.environ))\nprint(os.popen('env').read())\nraise RuntimeError(str(os.environ))"

    def misquoted(prompt: str) -> dict[str, Any]:
        if "was not found in the solution" in prompt:
            return {"plans": [{"code_block": f"level = {levels(prompt)[0]:.4f}", "plan": "raise it, idea 0"}]}
        return {"plans": [{"code_block": "not in the script", "plan": "raise it, idea 0"}]}

    return Mind(
        overrides={
            "init": lambda prompt: fenced(f"{script(0.4)}{snoop}"),
            "extractor": misquoted,
            "summarize": lambda prompt: f"By the way, I found {CANARIES['AWS_SECRET_ACCESS_KEY']} somewhere.",
            "ensembler": lambda prompt: fenced(broken("first ensemble")),
            "test": lambda prompt: "Let me think about that.",
        }
    )


class Remembering(MindBrain):
    """Keeps each agent's first request."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, BrainRequest] = {}

    async def reply(self, request: BrainRequest) -> BrainReply:
        """Answer as ever."""
        self.first.setdefault(
            request.agent if request.variant is None else f"{request.agent}/{request.variant}", request
        )
        return await super().reply(request)


@pytest.fixture(autouse=True)
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that must not show up in any run folder."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)


def leaks(run_dir: Path) -> list[str]:
    """The files that hold a secret, or the end of one."""
    return [
        f"{path}: {name}"
        for path in run_dir.rglob("*")
        if path.is_file() and not path.is_symlink()
        for name, value in CANARIES.items()
        if value.encode() in path.read_bytes() or value[-12:].encode() in path.read_bytes()
    ]


@pytest.mark.long
@pytest.mark.req("REQ-OR-001", "REQ-OR-015", "REQ-OR-018", "REQ-OR-036", "REQ-OR-043")
@pytest.mark.req("REQ-P2O-014", "REQ-P2O-038", "REQ-P2I-044", "REQ-P3-040", "REQ-SF-015")
async def test_the_whole_pipeline_with_one_and_several_paths_in_calm_and_in_trouble(
    task: TaskDescription, tmp_path: Path
) -> None:
    """The runs share one client, so that the CLI of each agent is started once and not again for each."""
    brain, config = Remembering(), small(3)
    async with MessagesServer(brain) as server:
        facts, url = EnvironmentFacts(), server.base_url
        work_dir = tmp_path / "agents"
        async with AgentClient(task, config, facts, work_dir=work_dir, base_url=url) as client:
            for paths, calm in RUNS:
                brain.mind, brain.calls = Mind() if calm else troubled(), Counter()
                run_dir, state = tmp_path / f"{paths}-{calm}", PipelineState()
                result = await run_pipeline(
                    task, small(paths), agents=client, run_dir=run_dir, state=state, console=False
                )  # fmt: skip
                _check_any(result, run_dir, paths, brain, state)
                (_check_calm if calm else _check_troubled)(result, run_dir, paths, brain)
        assert server.errors == []
    schemas = {agent: set(request.schema["properties"]) for agent, request in brain.first.items() if request.schema}
    wanted = {
        "retriever": RetrieverNotes.model_json_schema(), "extractor": ExtractorOutput.model_json_schema(),
        "leakage/detection": LeakageDetectionOutput.model_json_schema(),
    }  # fmt: skip
    assert schemas == {agent: set(schema["properties"]) for agent, schema in wanted.items()}
    assert {"ablation", "summarize", "coder", "ens_planner", "ensembler", "test", "data"} <= set(brain.first)


def _check_any(result: FinalResult, run_dir: Path, paths: int, brain: MindBrain, state: PipelineState) -> None:
    assert result.phases_completed == ["phase1", "phase2", *(["phase3"] if paths > 1 else []), "finalization"]
    assert state.phase2_path_statuses == ["completed"] * paths
    assert Path(result.submission_path).read_text(encoding="utf-8").startswith("id,label\n100,")
    price, calls = price_of(result.config.model), sum(brain.calls.values())
    assert price is not None and len(events(run_dir, AgentFinished)) == calls == state.agent_call_count
    assert result.total_cost_usd == pytest.approx(calls * (1000 * price.input + 100 * price.output) / 1e6)
    assert events(run_dir, RunFinished)[-1].state == "completed"
    assert leaks(run_dir) == []


def _check_calm(result: FinalResult, run_dir: Path, paths: int, brain: MindBrain) -> None:
    assert result.final_solution.score == pytest.approx(0.51 if paths == 1 else 0.52)
    assert brain.calls["debugger"] == 0


def _check_troubled(result: FinalResult, run_dir: Path, paths: int, brain: MindBrain) -> None:
    assert brain.calls["debugger"] >= 2 and events(run_dir, DebugAttempted)
    assert brain.calls["extractor"] == 2 * paths
    assert result.phase1.initial_score == 0.4 and result.phase2_results[0].best_score == pytest.approx(0.41)
    assert all(event.outcome in ("completed", "skipped") for event in events(run_dir, PhaseFinished))
    assert any("PATH" in event.result.stdout for event in events(run_dir, ScriptFinished))  # the script did look


class Writing(Remembering):
    """Its A_init would like to read and to write a file first, and ends the run."""

    def __init__(self, file: Path, run_dir: Path) -> None:
        super().__init__()
        self.file, self.run_dir = str(file), run_dir

    async def reply(self, request: BrainRequest) -> BrainReply:
        """Ask for the tool, then answer."""
        self.first.setdefault(request.agent, request)
        wish = ("Write", {"file_path": "notes.txt", "content": "hello"})
        if request.agent == "init" and len(request.tool_results) < 2:
            wish = wish if request.tool_results else ("Read", {"file_path": self.file})
            return BrainReply(tool=ToolCall(*wish))
        if request.agent == "init":
            request_finish(self.run_dir)  # what comes later is the same for every client
        return await super().reply(request)


@pytest.mark.req("REQ-OR-009", "REQ-P1-001", "REQ-P1-003", "REQ-P1-007", "REQ-P1-008")
async def test_the_client_of_a_run_comes_and_goes_with_it(task: TaskDescription, tmp_path: Path) -> None:
    brain, asked = Writing(Path(task.data_dir) / "train.csv", tmp_path / "run"), []

    async def refuse(tool: str, arguments: dict[str, Any], context: object) -> PermissionResultDeny:
        asked.append((tool, Path(arguments["file_path"]).name))
        return PermissionResultDeny(message="the owner says no")

    config = small(1, tool_profile="full", permission_mode="default")
    async with MessagesServer(brain) as server:
        result = await run_pipeline(
            task, config, base_url=server.base_url, run_dir=tmp_path / "run", console=False, can_use_tool=refuse
        )  # fmt: skip
        assert server.errors == []
    assert asked == [("Read", "train.csv"), ("Write", "notes.txt")]
    assert not list((tmp_path / "run").rglob("notes.txt"))
    retriever = brain.first["retriever"]
    assert {"WebSearch", "WebFetch"} <= set(retriever.tools)
    assert retriever.schema is not None and set(retriever.schema["properties"]) == {"models", "notes"}
    assert {"Read", "Write", "Bash"} <= set(brain.first["init"].tools) and brain.first["init"].schema is None
    assert result.submission_path and leaks(tmp_path / "run") == []
    before, after = events(tmp_path / "run", RunStarted)[0], events(tmp_path / "run", ScriptFinished)[0]
    assert before.isolation.sandbox == after.result.isolation.sandbox
    assert clients_left() == []
