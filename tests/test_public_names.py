"""The public names of the package: pinned, complete, and there without the agents' SDK."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mle_star
from mle_star import errors, models

ROOT = Path(__file__).resolve().parents[1]
FIRST_PAGE = """
AgentError ConfigError CredentialError DataModality ExecutionError FinalResult Measure MetricDirection MleStarError
Model PipelineConfig PipelineError RoleSettings Run RunInterrupted SolutionScript TaskDescription TaskType __version__
fit load_config load_model load_task run_pipeline run_pipeline_sync
"""
OTHERS = "AgentType PhaseTimeBudget PipelineState PromptRegistry SCORE_PATTERN ToolProfile Frozen"


def public_names(module: object) -> set[str]:
    """What a module defines itself and does not hide."""
    name = getattr(module, "__name__", "")
    return {key for key, value in vars(module).items() if key[0] != "_" and getattr(value, "__module__", "") == name}


def test_the_first_page_has_what_most_people_need_and_the_reference_lists_it() -> None:
    assert mle_star.__all__ == dir(mle_star) == FIRST_PAGE.split()
    page = (
        (ROOT / "docs" / "reference.md").read_text(encoding="utf-8").partition("## Python\n")[2].partition("\n## ")[0]
    )
    assert re.findall(r"^\| `mle_star\.(\w+)", page, re.MULTILINE) == FIRST_PAGE.split()


@pytest.mark.req("REQ-DM-046")
def test_every_public_name_of_models_and_errors_is_an_attribute_of_the_package() -> None:
    for module in (models, errors):
        for name in public_names(module):
            assert getattr(mle_star, name) is getattr(module, name)
    assert {"PromptTemplate", "EnsembleAttempt"} <= public_names(models)
    assert [name for name in OTHERS.split() if not hasattr(mle_star, name)] == []


@pytest.mark.req("REQ-DM-046")
@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.modules['claude_agent_sdk'] = None; from mle_star import *; PipelineConfig(), run_pipeline",
        "import sys; sys.modules['pytest'] = None; from mle_star.testing import *; ScriptedBrain, FaultyBrain",
        "import sys, mle_star; assert not [n for n in sys.modules if n.startswith(('mle_star.', 'pydantic'))]",
    ],
    ids=["all names without the SDK", "minds for tests without a test library", "the package loads nothing else"],
)
def test_importing_needs_no_more_than_it_must(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'run_pipelin'"):
        _ = getattr(mle_star, "run_pipelin")  # noqa: B009
