"""The preset `letter`: in what it differs from the settings as people get them, call by call and rule by rule."""

import re
from pathlib import Path
from typing import Any

import pytest

from mle_star import FinalResult, PipelineConfig, PipelineTimeoutError, SolutionPhase, run_pipeline
from mle_star.models.settings import sized
from mle_star.safety import check_and_evaluate
from tests.conftest import as_kept
from tests.method.conftest import ScriptedAgents, ScriptedExecutor, ScriptedRun, make_task, write_data

from .replies import BOTH, NO_LEAKAGE, ScriptedCall, broken_script, by_step, fenced, leaky, script, solution

SMALL = {**sized(2, 1, 2, 2, 1), "max_debug_attempts": 1, "subsample_limit": 777}


def chosen(call: ScriptedCall) -> dict[str, Any]:
    """The extractor's reply: the level of the solution that it is shown."""
    found = re.search(r"^level = \S+$", call.prompt, re.MULTILINE)
    assert found is not None
    return {"plans": [{"code_block": found[0], "plan": "raise the level"}]}


async def played(root: Path, preset: str | None) -> tuple[dict[str, ScriptedCall], FinalResult]:
    """All calls of a run by their step, and its result; a crash, a leak no block holds, a study and a test fail."""
    agents, task = ScriptedAgents(), make_task(write_data(root / "data"))
    agents.always("init", by_step(candidate_0=fenced(broken_script()), otherwise=fenced(script(0.5, note="beta"))))
    agents.always("ablation", fenced("raise RuntimeError('study')"))
    agents.always("leakage-detection", by_step(candidate_1=leaky("nowhere = 1"), otherwise=NO_LEAKAGE))
    agents.always("debugger", by_step(finalization="I cannot.", otherwise=fenced(script(0.4))))
    agents.always("extractor", chosen)
    agents.always("test", fenced("print('no file')"))
    config = PipelineConfig(**SMALL, preset=preset, work_dir=str(root))
    options: dict[str, Any] = {"executor": ScriptedExecutor(), "console": False, "run_dir": root / "run"}
    result = await run_pipeline(task, config, agents=agents, **options)
    return {call.step: call for call in agents.log}, result


def headings(calls: dict[str, ScriptedCall]) -> set[str]:
    """What stands above the sections of all prompts; fenced scripts are left out."""
    texts = (re.sub(r"^(`{3,})\w*\n.*?^\1$", "", call.prompt, flags=re.M | re.S) for call in calls.values())
    return {found for text in texts for found in re.findall(r"^# (.+)$", text, re.MULTILINE)}


@pytest.mark.req("REQ-OR-008", "REQ-OR-036", "REQ-OR-043", "REQ-SF-002", "REQ-SF-021")
@pytest.mark.req("REQ-P1-002", "REQ-P1-003", "REQ-DM-015", "REQ-DM-030", "REQ-FN-025")
async def test_the_presets_side_by_side_differ_in_these_calls_and_no_others(tmp_path: Path) -> None:
    (usual, other), (letter, result) = [await played(tmp_path / str(name), name) for name in (None, "letter")]
    assert result.config.letter and len(usual) > 20
    assert other.submission_path and not result.submission_path, "no test script has worked"
    assert SolutionPhase.final not in (other.final_solution.phase, result.final_solution.phase)
    lines = [f"- {step}" for step in sorted({*usual} - {*letter})]
    lines += [f"+ {step}" for step in sorted({*letter} - {*usual})]
    both, only = headings(usual) - {"Better on another path"}, headings(letter)  # that one where the other is ahead
    lines += [f"- # {title}" for title in sorted(both - only)] + [f"+ # {title}" for title in sorted(only - both)]
    as_kept("method/letter.txt", "\n".join(lines))  # who leaks counts, so there is a merge
    description = result.task.description
    shown = [sum(description in call.prompt for call in run.values()) for run in (usual, letter)]
    assert shown[0] == 0 < shown[1]
    capped = [c for run in (usual, letter) for c in run.values() if c.name in ("init", "merger", "coder", "debugger")]
    assert all("more than 777 training samples" in call.prompt for call in capped)
    tools = {call.agent.value: set(call.config.tools or ()) for call in letter.values()}
    (retriever,) = (call.config for call in letter.values() if call.name == "retriever")
    assert retriever.output_schema is not None and list(retriever.output_schema.model_fields) == ["models"]
    assert tools["coder"] == tools["test"] == {"Bash", "Edit", "Write", "Read"} and tools["planner"] == {"Read"}


@BOTH
@pytest.mark.req("REQ-EX-021")
async def test_an_unchanged_script_runs_again_to_the_letter(quick_run: ScriptedRun) -> None:
    broken, config = broken_script(), quick_run.config
    quick_run.agents.always("debugger", fenced(broken))
    await check_and_evaluate(solution(broken))
    assert quick_run.executor.scripts.count(broken) == (1 + config.max_debug_attempts if config.letter else 1)


@pytest.mark.modes("letter")
@pytest.mark.req("REQ-OR-014", "REQ-OR-040", "REQ-OR-030", "REQ-OR-042")
async def test_a_failed_path_gives_the_initial_solution_and_phase_1_ends_or_raises(tmp_path: Path) -> None:
    task = make_task(write_data(tmp_path / "data"))
    options: dict[str, Any] = {"executor": ScriptedExecutor(), "console": False}
    config, agents = PipelineConfig(**SMALL, work_dir=str(tmp_path)), ScriptedAgents()
    agents.always("extractor", chosen)
    agents.always("planner", RuntimeError("a bug"))
    result = await run_pipeline(task, config, agents=agents, run_dir=tmp_path / "late", **options)
    assert [path.best_score for path in result.phase2_results] == [result.phase1.initial_score] * 2
    assert all(path.step_history[-1]["failed"] for path in result.phase2_results)
    assert result.phase3 is not None and len(result.phase3.input_solutions) == 2
    agents = ScriptedAgents()
    agents.cost_usd = 0.01
    poor = config.model_copy(update={"max_budget_usd": 0.06})
    with pytest.raises(PipelineTimeoutError) as caught:
        await run_pipeline(task, poor, agents=agents, run_dir=tmp_path / "poor", **options)
    assert caught.value.diagnostics["reason"] == "money"
