"""The whole pipeline through the real SDK, the real CLI and the real harness, with the mind behind the loopback API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mle_star.events import AgentFinished, DebugAttempted, PhaseFinished, RunFinished, ScriptFinished
from mle_star.forecast import price_of
from mle_star.models import FinalResult, PipelineConfig, TaskDescription
from mle_star.offline.server import MessagesServer
from mle_star.orchestrator import PipelineState, run_pipeline
from tests.pipeline.conftest import events, settings
from tests.pipeline.mind import Mind, MindBrain, broken, fenced, levels, script

CANARIES = {
    "ANTHROPIC_API_KEY": "sk-ant-canary-0123456789",
    "AWS_SECRET_ACCESS_KEY": "aws/canary+0123456789",
    "MY_DATABASE_PASSWORD": 'canary"with\\odd-signs',
}


def small(paths: int, **changes: Any) -> PipelineConfig:
    """One of everything: what costs time here is starting the CLI."""
    return settings(M=1, T=1, K=1, R=1, L=paths, client_reuse="clear", model="sonnet", **changes)


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


async def through_the_cli(
    task: TaskDescription, config: PipelineConfig, brain: MindBrain, **options: Any
) -> FinalResult:
    async with MessagesServer(brain) as server:
        result = await run_pipeline(task, config, base_url=server.base_url, console=False, **options)
        assert server.errors == []
    return result


@pytest.mark.req("REQ-OR-001", "REQ-OR-015", "REQ-OR-018", "REQ-OR-036")
@pytest.mark.parametrize("paths", [1, 2, 3])
async def test_the_whole_pipeline_with_every_script_fine(task: TaskDescription, tmp_path: Path, paths: int) -> None:
    brain, state, config = MindBrain(), PipelineState(), small(paths)
    result = await through_the_cli(task, config, brain, run_dir=tmp_path / "run", state=state)
    assert result.phases_completed == ["phase1", "phase2", *(["phase3"] if paths > 1 else []), "finalization"]
    assert state.phase2_path_statuses == ["completed"] * paths
    assert result.final_solution.score == pytest.approx(0.51 if paths == 1 else 0.52)
    assert Path(result.submission_path).read_text(encoding="utf-8").startswith("id,label\n100,")
    paid = events(tmp_path / "run", AgentFinished)
    price, calls = price_of(config.model), sum(brain.calls.values())
    assert price is not None and len(paid) == calls == state.agent_call_count
    assert result.total_cost_usd == pytest.approx(calls * (1000 * price.input + 100 * price.output) / 1e6)
    assert {event.isolation for event in events(tmp_path / "run", ScriptFinished)}
    assert events(tmp_path / "run", RunFinished)[-1].state == "completed"
    assert leaks(tmp_path / "run") == []


@pytest.mark.req("REQ-OR-043")
@pytest.mark.parametrize("paths", [1, 2, 3])
async def test_the_whole_pipeline_with_trouble_at_every_turn(task: TaskDescription, tmp_path: Path, paths: int) -> None:
    brain = MindBrain(troubled())
    result = await through_the_cli(task, small(paths), brain, run_dir=tmp_path / "run")
    assert result.phases_completed == ["phase1", "phase2", *(["phase3"] if paths > 1 else []), "finalization"]
    assert Path(result.submission_path).is_file()
    assert brain.calls["debugger"] >= 2 and events(tmp_path / "run", DebugAttempted)
    assert brain.calls["extractor"] == 2 * paths
    assert result.phase1.initial_score == 0.4 and result.phase2_results[0].best_score == pytest.approx(0.41)
    assert all(event.outcome in ("completed", "skipped") for event in events(tmp_path / "run", PhaseFinished))
    assert any("PATH" in event.stdout for event in events(tmp_path / "run", ScriptFinished))  # the script did look
    assert leaks(tmp_path / "run") == []
