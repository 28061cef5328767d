"""The public names of the package: pinned, complete, and there without the agents' SDK."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mle_star
from mle_star import errors, models

PUBLIC = """
AgentConfig AgentError AgentType BudgetExceeded CodeBlock CodeBlockCategory ConfigError CredentialError
DataContaminationResult DataModality EnsembleAttempt EvaluationResult ExecutionError ExecutionRawResult ExtractorOutput
FinalResult Frozen InnerLoopResult Isolation JournalError LeakageAnswer LeakageDetectionOutput Measure MetricDirection
MleStarError Model Phase1Error Phase1Result Phase2Result Phase3Result PhaseTimeBudget PipelineConfig PipelineError
PipelineState PipelineTimeoutError PromptRegistry PromptTemplate RefinePlan RefinementAttempt RetrievedModel
RetrieverNotes RetrieverOutput RoleSettings Run RunInterrupted SCORE_PATTERN ScoreFunction SolutionPhase SolutionScript
TaskDescription TaskType ToolProfile Yardstick __version__ agent_config build_default_agent_configs fit is_improvement
is_improvement_or_equal load_config load_model load_task run_pipeline run_pipeline_sync
"""


def public_names(module: object) -> set[str]:
    """What a module defines itself and does not hide."""
    name = getattr(module, "__name__", "")
    return {key for key, value in vars(module).items() if key[0] != "_" and getattr(value, "__module__", "") == name}


def test_the_public_names_are_these() -> None:
    assert sorted(mle_star.__all__) == sorted(PUBLIC.split())


@pytest.mark.req("REQ-DM-046")
def test_every_public_name_of_models_and_errors_is_offered_by_the_package() -> None:
    for module in (models, errors):
        for name in public_names(module):
            assert getattr(mle_star, name) is getattr(module, name)
    assert public_names(models) | public_names(errors) <= set(mle_star.__all__)
    assert set(mle_star.__all__) <= set(dir(mle_star))


@pytest.mark.req("REQ-DM-046")
def test_the_package_and_all_its_names_can_be_imported_without_the_sdk() -> None:
    code = "import sys; sys.modules['claude_agent_sdk'] = None; from mle_star import *; PipelineConfig(), run_pipeline"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, mle_star; print([name for name in sys.modules if name.startswith(('mle_star.', 'pydantic'))])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'run_pipelin'"):
        _ = mle_star.run_pipelin
