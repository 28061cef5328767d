"""The whole pipeline through the real SDK, the real CLI and the real harness, with the mind behind the loopback API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import PermissionResultDeny
from pydantic import BaseModel

from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer, ToolCall
from mle_star.models import ExtractorOutput, FinalResult, LeakageDetectionOutput, RetrieverNotes, TaskDescription
from mle_star.orchestrator import PipelineState, run_pipeline
from mle_star.run.budget import price_of
from mle_star.run.events import AgentFinished, DebugAttempted, PhaseFinished, RunFinished, RunStarted, ScriptFinished
from tests.pipeline.conftest import clients_left, events, settings
from tests.pipeline.mind import Mind, MindBrain, broken, extracted, fenced, levels, script

CANARIES = {
    "ANTHROPIC_API_KEY": "sk-ant-canary-0123456789",
    "AWS_SECRET_ACCESS_KEY": "aws/canary+0123456789",
    "MY_DATABASE_PASSWORD": 'canary"with\\odd-signs',
}
"""Secrets that must not show up in any run folder."""
SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
RUNS = [(paths, calm) for paths in (3, 2, 1) for calm in (True, False)] if SOAK else [(2, False)]
"""Numbers of paths, and whether all goes well."""
AT_A_TIME = None if SOAK else 1
"""Paths that go one after the other use the same clients, and none is connected in vain."""


def troubled() -> Mind:
    """Nothing goes well at first: scripts snoop and crash, blocks are misquoted, replies tell secrets or nothing."""
    snoop = "import os\nprint(dict(os.environ))\nprint(os.popen('env').read())\nraise RuntimeError(str(os.environ))"

    def misquoted(prompt: str) -> dict[str, Any]:
        right = f"level = {levels(prompt)[0]:.4f}" if "was not found in the solution" in prompt else "not in the script"
        return extracted(right, "raise it, idea 0")

    return Mind(
        overrides={
            "init": fenced(f"{script(0.4)}{snoop}"),
            "extractor": misquoted,
            "summarize": f"By the way, I found {CANARIES['AWS_SECRET_ACCESS_KEY']} somewhere.",
            "ensembler": fenced(broken("first ensemble")),
            "test": "Let me think about that.",
        }
    )


class Curious(MindBrain):
    """Its A_init would like to read a file and to write one first. Keeps each agent's first request."""

    def __init__(self, mind: Mind, file: Path) -> None:
        super().__init__(mind)
        self.first: dict[str, BrainRequest] = {}
        self.wishes = [("Read", {"file_path": str(file)}), ("Write", {"file_path": "notes.txt", "content": "hello"})]

    async def reply(self, request: BrainRequest) -> BrainReply:
        """Ask for the tools, then answer."""
        self.first.setdefault("/".join(filter(None, (request.agent, request.variant))), request)
        if request.agent == "init" and len(request.tool_results) < 2:
            wish = ToolCall(*self.wishes[len(request.tool_results)])
            return BrainReply(tool=wish, input_tokens=1000, output_tokens=100)
        return await super().reply(request)


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
@pytest.mark.req("REQ-OR-001", "REQ-OR-009", "REQ-OR-015", "REQ-OR-018", "REQ-OR-036", "REQ-OR-043", "REQ-SF-015")
@pytest.mark.req("REQ-P1-001", "REQ-P1-003", "REQ-P1-007", "REQ-P1-008")
@pytest.mark.req("REQ-P2O-014", "REQ-P2O-038", "REQ-P2I-044", "REQ-P3-040")
@pytest.mark.parametrize(("paths", "calm"), RUNS)
async def test_the_whole_pipeline_with_one_and_several_paths_in_calm_and_in_trouble(
    task: TaskDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: int, calm: bool
) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    asked: list[tuple[str, str]] = []

    async def refuse(tool: str, arguments: dict[str, Any], context: object) -> PermissionResultDeny:
        asked.append((tool, Path(arguments["file_path"]).name))
        return PermissionResultDeny(message="the owner says no")

    brain = Curious(Mind() if calm else troubled(), Path(task.data_dir) / "train.csv")
    run_dir, state = tmp_path / "run", PipelineState()
    config = settings(
        M=1, T=1, K=1, R=1, L=paths, client_reuse="clear", model="sonnet", max_concurrent_paths=AT_A_TIME,
        tool_profile="full", permission_mode="default",
    )  # fmt: skip
    async with MessagesServer(brain) as server:
        result = await run_pipeline(
            task, config, base_url=server.base_url, run_dir=run_dir, state=state, console=False, can_use_tool=refuse
        )
        assert server.errors == []
    assert asked == [("Read", "train.csv"), ("Write", "notes.txt")] and not list(run_dir.rglob("notes.txt"))
    assert leaks(run_dir) == [] and clients_left() == [], "the clients of a run go with it"
    check_requests(brain)
    assert result.phases_completed == ["phase1", "phase2", *(["phase3"] if paths > 1 else []), "finalization"]
    assert state.phase2_path_statuses == ["completed"] * paths
    assert Path(result.submission_path).read_text(encoding="utf-8").startswith("id,label\n100,")
    calls = sum(brain.calls.values())
    assert len(events(run_dir, AgentFinished)) == calls == state.agent_call_count
    price, turns = price_of(result.config.model), calls + len(asked)
    assert price is not None
    assert result.total_cost_usd == pytest.approx(turns * (1000 * price.input + 100 * price.output) / 1e6)
    assert events(run_dir, RunFinished)[-1].state == "completed"
    before, after = events(run_dir, RunStarted)[0], events(run_dir, ScriptFinished)[0]
    assert before.isolation.sandbox == after.result.isolation.sandbox
    if calm:
        assert result.final_solution.score == pytest.approx(0.51 if paths == 1 else 0.52)
        assert brain.calls["debugger"] == 0
    else:
        check_troubled(result, run_dir, paths, brain)


def check_requests(brain: Curious) -> None:
    """What each agent was sent: its tools, and the form of its reply."""
    schemas = {agent: set(request.schema["properties"]) for agent, request in brain.first.items() if request.schema}
    wanted: dict[str, type[BaseModel]] = {
        "retriever": RetrieverNotes,
        "extractor": ExtractorOutput,
        "leakage/detection": LeakageDetectionOutput,
    }
    assert schemas == {agent: set(model.model_json_schema()["properties"]) for agent, model in wanted.items()}
    assert {"models", "notes"} == schemas["retriever"]
    assert {"WebSearch", "WebFetch"} <= set(brain.first["retriever"].tools)
    assert {"Read", "Write", "Bash"} <= set(brain.first["init"].tools)
    assert {"ablation", "summarize", "coder", "test", "data"} <= set(brain.first)


def check_troubled(result: FinalResult, run_dir: Path, paths: int, brain: MindBrain) -> None:
    assert brain.calls["debugger"] >= 2 and events(run_dir, DebugAttempted)
    assert brain.calls["extractor"] == 2 * paths
    assert result.phase1.initial_score == 0.4 and result.phase2_results[0].best_score == pytest.approx(0.41)
    assert all(event.outcome in ("completed", "skipped") for event in events(run_dir, PhaseFinished))
    assert any("PATH" in event.result.stdout for event in events(run_dir, ScriptFinished))  # the script did look
