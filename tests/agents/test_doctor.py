"""`mle-star doctor` on this machine, with what it needs and without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mle_star.cli.app import main
from mle_star.cli.doctor import diagnose
from mle_star.models import PipelineConfig


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login of whoever runs the tests must not count."""
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_embedded_model_answers_a_call_at_no_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "offline", "--call"]) == 0
    shown = capsys.readouterr().out
    for topic in ("Claude Agent SDK", "its CLI", "script Python", "ML packages", "GPUs", "script sandbox", "disk"):
        assert topic in shown
    assert "offline answered in" in shown
    assert "$0.0000" in shown


def test_credentials_are_named_but_never_shown_and_a_dead_service_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-very-secret")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    assert main(["doctor", "--call"]) == 1
    shown = capsys.readouterr()
    assert "ANTHROPIC_API_KEY" in shown.out
    assert "very-secret" not in shown.out + shown.err
    assert "the service cannot be reached" in shown.out
    assert "Traceback" not in shown.err


def test_every_problem_comes_with_a_remedy(tmp_path: Path) -> None:
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n', encoding="utf-8")
    empty.chmod(0o755)
    findings = {finding.topic: finding for finding in diagnose(PipelineConfig(python=str(empty)))}
    assert findings["credentials"].state == "problem"
    assert "--model offline" in findings["credentials"].remedy
    assert findings["ML packages"].state == "problem"
    assert "missing: numpy, pandas, scikit-learn" in findings["ML packages"].text
    assert all(finding.remedy for finding in findings.values() if finding.state != "ok")


def test_an_interpreter_that_is_none_is_a_finding_not_a_crash() -> None:
    findings = list(diagnose(PipelineConfig(python="/bin/false", model="offline")))
    assert ("script Python", "problem") in [(finding.topic, finding.state) for finding in findings]
