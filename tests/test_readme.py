"""The README says only what is so: its commands and options exist, its figures are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mle_star.cli.app import COMMANDS, main
from mle_star.models import PipelineConfig
from mle_star.run.forecast import planned_steps

ROOT = Path(__file__).resolve().parents[1]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
CALLS = re.findall(r"mle-star ([a-z]+)([^`#\n]*)", "\n".join(path.read_text(encoding="utf-8") for path in TEXTS))


def test_every_command_that_is_shown_exists() -> None:
    assert {command for command, _ in CALLS} <= set(COMMANDS)
    assert len(CALLS) > 10


@pytest.mark.parametrize("command", sorted({command for command, rest in CALLS if "-" in rest}))
def test_every_option_that_is_shown_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    offered = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", capsys.readouterr().out))
    shown = {word for name, rest in CALLS if name == command for word in re.findall(r"(?<!\S)--?[A-Za-z][\w-]*", rest)}
    assert shown <= offered


def test_every_target_that_is_shown_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for path in TEXTS:
        assert set(re.findall(r"\bmake ([a-z-]+)", path.read_text(encoding="utf-8"))) - {"are"} <= targets


def test_every_file_that_is_linked_exists() -> None:
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r"`(docs/[\w./-]+\.\w+)`", text)
        assert [link for link in links if "NNNN" not in link and not (ROOT / link).exists()] == []


def test_the_calls_and_scripts_of_a_run_are_counted_as_the_forecast_counts_them() -> None:
    steps = planned_steps(PipelineConfig())
    scripts = sum(count for (_, name), count in steps.items() if name == "script")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{sum(steps.values()) - scripts} agent calls and {scripts} script runs" in text
