"""`mle-star doctor` on this machine, with what it needs and without."""

from __future__ import annotations

import venv
from pathlib import Path
from typing import get_args

import pytest

from mle_star.cli.app import main
from mle_star.cli.doctor import _REMEDIES, _calls, diagnose
from mle_star.engineer.server import BrainReply, Fault, MessagesServer
from mle_star.errors import AgentFailure
from mle_star.models import PipelineConfig
from mle_star.testing import ScriptedBrain


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login of whoever runs the tests must not count."""
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_model_of_a_settings_file_answers_at_no_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("model: offline\n", encoding="utf-8")
    assert main(["doctor", "--config", str(settings), "--call"]) == 0
    shown = capsys.readouterr().out
    for topic in ("Claude Agent SDK", "its CLI", "script Python", "ML packages", "GPUs", "script sandbox", "disk"):
        assert topic in shown
    assert "not needed for the model offline" in shown
    assert "offline answered in" in shown
    assert "$0.0000" in shown


def test_credentials_are_never_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-very-secret")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    assert main(["doctor", "--call"]) == 1
    shown = capsys.readouterr()
    assert "ANTHROPIC_API_KEY" in shown.out
    assert "very-secret" not in shown.out + shown.err
    assert "the service cannot be reached" in shown.out
    assert "Traceback" not in shown.err


def test_every_problem_comes_with_a_remedy(tmp_path: Path) -> None:
    venv.create(tmp_path / "empty")
    empty = tmp_path / "empty" / "bin" / "python"
    findings = {finding.topic: finding for finding in diagnose(PipelineConfig(python=str(empty)))}
    assert findings["credentials"].state == "problem"
    assert "--model offline" in findings["credentials"].remedy
    assert findings["ML packages"].state == "problem"
    assert "missing: numpy, pandas, scikit-learn" in findings["ML packages"].text
    assert " -m pip install numpy pandas scikit-learn, or" in findings["ML packages"].remedy
    assert all(finding.remedy for finding in findings.values() if finding.state != "ok")
    none = list(diagnose(PipelineConfig(python="/bin/false", model="offline")))  # a finding, not a crash
    assert ("script Python", "problem") in [(finding.topic, finding.state) for finding in none]


async def test_a_server_that_knows_less_is_no_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("small-model: [1000, 2000]\n", encoding="utf-8")
    brain = ScriptedBrain(BrainReply(text='[{"code_block": "x", "plan": "y"}]', input_tokens=1000, output_tokens=500))
    async with MessagesServer(brain) as server:
        config = PipelineConfig(model="small-model", base_url=server.base_url, prices_file=str(prices))
        text, structured, tools = await _calls(config)
    assert (text.state, structured.state, tools.state) == ("ok", "ok", "note")
    assert "1000 + 500 tokens, $2.0000" in text.text, "by the prices of the file"
    assert "overlooks the one for structured replies" in tools.text and "tool_use=none" in tools.remedy
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    async with MessagesServer(ScriptedBrain(BrainReply(text="no", fault=Fault("refusal")))) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url)
        (finding,) = await _calls(PipelineConfig())
    assert finding.remedy == "the model declined a harmless question: choose another one with --model"
    assert set(_REMEDIES) == set(get_args(AgentFailure))
