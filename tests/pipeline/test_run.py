"""A run from task to result: order, paths, fallbacks, and what the result says. Without SDK and processes, so quick."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import os
import time
import tracemalloc
from collections.abc import Callable
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

import mle_star.orchestrator
from mle_star.config import effective_config
from mle_star.errors import ConfigError, CredentialError, PipelineError
from mle_star.models import (
    AgentConfig,
    FinalResult,
    Measure,
    MetricDirection,
    PhaseTimeBudget,
    PipelineConfig,
    SolutionPhase,
    TaskDescription,
)
from mle_star.orchestrator import PipelineState, run_pipeline, run_pipeline_sync
from mle_star.run.context import AgentReply
from mle_star.run.events import (
    AgentFinished,
    AgentStarted,
    AnyEvent,
    PhaseFinished,
    PhaseStarted,
    RunFinished,
    RunStarted,
    ScriptFinished,
    ScriptStarted,
)
from mle_star.search.result import best_of
from tests.method.loops import log_of, measured
from tests.pipeline.conftest import QuickRun, events, settings, story
from tests.pipeline.mind import Answer, LevelExecutor, Mind, MindAgents, broken, fenced, script

# --- the entry -----------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-OR-001", "REQ-OR-053")
async def test_a_task_alone_is_enough(task: TaskDescription, tmp_path: Path) -> None:
    parameters = inspect.signature(run_pipeline).parameters.values()
    positional = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert positional == ["task", "config"]
    assert inspect.iscoroutinefunction(run_pipeline)
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        result = await run_pipeline(task, agents=MindAgents(), executor=LevelExecutor(), console=False)
    finally:
        os.chdir(before)
    assert isinstance(result, FinalResult)
    assert (result.task, result.config) == (task, effective_config(PipelineConfig()))
    folder = Path(result.submission_path).parent.parent
    assert folder.parent == tmp_path / "runs" and folder.name.startswith("sizes-20")


@pytest.mark.req("REQ-OR-044")
async def test_the_defaults_are_the_papers_and_run(quick: QuickRun, tmp_path: Path) -> None:
    config = PipelineConfig()
    assert (config.num_retrieved_models, config.outer_loop_steps, config.inner_loop_steps) == (4, 4, 4)
    assert (config.num_parallel_solutions, config.ensemble_rounds, config.time_limit_seconds) == (2, 5, 86400)
    assert (config.max_budget_usd, config.max_debug_attempts, config.model) == (None, 3, "sonnet")
    assert (config.permission_mode, config.log_level) == ("bypassPermissions", "INFO")
    agents = MindAgents()
    result = await quick(config, agents=agents)
    assert result.phases_completed == ["phase1", "phase2", "phase3", "finalization"]
    assert agents.count("init") == 4 and agents.count("coder") == 2 * 4 * 4 and agents.count("ensembler") == 5


@pytest.mark.req("REQ-FN-030")
async def test_a_run_compares_its_script_with_the_texts_it_is_given(quick: QuickRun, tmp_path: Path) -> None:
    (tmp_path / "talk.md").write_text("use a forest of stumps", encoding="utf-8")
    agents = MindAgents()
    result = await quick(settings(L=1, reference_files=(str(tmp_path / "talk.md"),)), agents=agents)
    assert result.contamination is not None and result.contamination.verdict == "Novel"


@pytest.mark.req("REQ-OR-053")
def test_there_is_a_way_without_an_event_loop(task: TaskDescription, tmp_path: Path) -> None:
    config = settings(L=1, work_dir=str(tmp_path))
    result = run_pipeline_sync(task, config, agents=MindAgents(), executor=LevelExecutor(), console=False)
    assert result.submission_path and result.config.num_parallel_solutions == 1

    async def inside() -> None:
        run_pipeline_sync(task, config)

    with pytest.raises(RuntimeError, match="await run_pipeline"):
        asyncio.run(inside())


@pytest.mark.req("REQ-OR-002")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data_dir": "/nowhere"}, "data_dir: /nowhere is not a directory"),
        ({"data_dir": "EMPTY"}, "data_dir: there is no file"),
        ({"data_dir": "FOLDERS"}, "data_dir: there is no file"),
        ({"competition_id": "  "}, "competition_id"),
    ],
)
async def test_wrong_inputs_are_refused_before_anything_happens(
    task: TaskDescription, tmp_path: Path, change: dict[str, str], words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "folders" / "of" / "nothing").mkdir(parents=True)
    if (name := change.get("data_dir", "").lower()) in ("empty", "folders"):
        change = {"data_dir": str(tmp_path / name)}
    agents = MindAgents()
    with pytest.raises(ValueError, match=words):
        await run_pipeline(task.model_copy(update=change), settings(), agents=agents, run_dir=tmp_path / "run")
    assert agents.calls == []
    assert not (tmp_path / "run").exists()


@pytest.mark.req("REQ-OR-002")
async def test_something_that_is_no_task_or_no_config_is_refused(task: TaskDescription, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="TaskDescription"):
        await run_pipeline("titanic", run_dir=tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="PipelineConfig"):
        await run_pipeline(task, {"outer_loop_steps": 1}, run_dir=tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        PipelineConfig(outer_loop_steps=0)


async def test_inputs_are_looked_at_before_credentials(task: TaskDescription, tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match="ANTHROPIC_API_KEY"):
        await run_pipeline(task, settings(), run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="not a directory"):
        await run_pipeline(task.model_copy(update={"data_dir": "/nowhere"}), settings(), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="not empty"):  # an API of one's own may need no key
        await run_pipeline(task, settings(), run_dir=tmp_path / "own", base_url="http://127.0.0.1:9")


@pytest.mark.req("REQ-OR-003", "REQ-OR-020")
async def test_scripts_work_in_directories_of_their_own(quick: QuickRun, tmp_path: Path) -> None:
    executor = LevelExecutor()
    await quick(settings(use_cache=False), executor=executor)  # else equal scripts run once, on one path
    assert {"main", "path-0", "path-1"} <= executor.directories
    for name in ("main", "path-0", "path-1"):
        work = tmp_path / "run" / "work" / name
        assert (work / "final").is_dir() and (work / "input" / "train.csv").is_file()
    assert "run" not in executor.directories  # no script works where the journal lies


@pytest.mark.req("REQ-OR-004")
async def test_the_hardware_is_known_to_state_and_journal(quick: QuickRun, tmp_path: Path) -> None:
    state = PipelineState()
    await quick(state=state)
    assert set(state.hardware) >= {"cuda_available", "gpu_count", "gpu_names"}
    assert events(tmp_path / "run", RunStarted)[0].hardware == state.hardware


# --- order and paths -----------------------------------------------------------------------------------------


def _moments(run_dir: Path) -> list[tuple[str, datetime, datetime]]:
    """Every phase with when it began and ended."""
    begins = {event.phase: event.at for event in events(run_dir, PhaseStarted) if event.path is None}
    ends = {event.phase: event.at for event in events(run_dir, PhaseFinished) if event.path is None}
    return [(phase, begins[phase], ends[phase]) for phase in begins]


def _ends(run_dir: Path) -> list[tuple[str, str, str, float | None]]:
    """How every phase ended, with which words and which score."""
    ends = [event for event in events(run_dir, PhaseFinished) if event.path is None]
    return [(event.phase, event.outcome, event.detail, event.score) for event in ends]


@pytest.mark.req("REQ-OR-012", "REQ-OR-013", "REQ-OR-014", "REQ-OR-016", "REQ-OR-017")
async def test_the_phases_come_one_after_another(quick: QuickRun, tmp_path: Path) -> None:
    result = await quick()
    moments = _moments(tmp_path / "run")
    assert [phase for phase, _, _ in moments] == ["phase1", "phase2", "phase3", "finalization"]
    for (_, _, end), (_, begin, _) in pairwise(moments):
        assert end <= begin
    for event in events(tmp_path / "run", AgentStarted):
        begin, end = next((b, e) for phase, b, e in moments if phase == event.step.split("/")[0])
        assert begin <= event.at <= end
    assert result.phase1.initial_score == 0.515
    assert [path.best_score for path in result.phase2_results] == [0.525, 0.527]
    assert _ends(tmp_path / "run") == [
        ("phase1", "completed", "", 0.515),
        ("phase2", "completed", "completed, completed", 0.527),
        ("phase3", "completed", "", 0.547),
        ("finalization", "completed", "", 0.547),
    ]
    assert result.phase3 is not None and result.phase3.input_solutions[0].score == 0.525
    assert result.final_solution.phase is SolutionPhase.final
    assert result.final_solution.score == result.phase3.best_ensemble_score


@pytest.mark.req("REQ-OR-015")
async def test_one_path_needs_no_ensemble(quick: QuickRun, tmp_path: Path) -> None:
    agents = MindAgents()
    result = await quick(settings(L=1), agents=agents)
    assert result.phase3 is None
    assert (agents.count("ens_planner"), agents.count("ensembler")) == (0, 0)
    assert result.phases_skipped == ["phase3"]
    assert _ends(tmp_path / "run")[2] == ("phase3", "skipped", "there is one path only", None)
    assert result.final_solution.score == result.phase2_results[0].best_score


@pytest.mark.req("REQ-OR-018", "REQ-OR-019", "REQ-OR-021")
@pytest.mark.parametrize("paths", [2, 3])
async def test_paths_run_side_by_side_under_their_own_labels(quick: QuickRun, tmp_path: Path, paths: int) -> None:
    waiting: set[str] = set()
    together = asyncio.Event()

    async def meet(label: str, agent: str) -> None:
        if agent == "ablation":  # no path goes on before all of them are here
            waiting.add(label)
            if len(waiting) == paths:
                together.set()
            await asyncio.wait_for(together.wait(), 120)

    agents = MindAgents(before=meet)
    result = await quick(settings(L=paths), agents=agents)
    assert waiting == {f"path-{index}" for index in range(paths)}
    assert len(result.phase2_results) == paths
    assert agents.count("retriever") == 1  # Phase 1 runs once
    for event in events(tmp_path / "run", AgentStarted):
        phase, place = event.step.split("/")[:2]
        assert (phase == "phase2") == place.startswith("path-")


@pytest.mark.req("REQ-OR-019", "REQ-OR-020", "REQ-OR-026")
async def test_paths_that_may_not_run_at_once_wait_their_turn(
    quick: QuickRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mle_star"):
        await quick(settings(L=3, max_concurrent_paths=1), executor=(executor := LevelExecutor()))
    assert "only 1 at a time" in caplog.text
    assert executor.directories > {"main", "path-0", "path-1", "path-2"}, "each has its own all the same"
    begins = [event.at for event in events(tmp_path / "run", PhaseStarted) if event.path is not None]
    ends = [event.at for event in events(tmp_path / "run", PhaseFinished) if event.path is not None]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))


@pytest.mark.req("REQ-OR-020")
async def test_a_path_cannot_touch_what_another_works_on(quick: QuickRun) -> None:
    result = await quick()
    first, second = (path.best_solution for path in result.phase2_results)
    kept = second.content, result.phase1.initial_solution.content
    first.content = "spoilt"
    assert (second.content, result.phase1.initial_solution.content) == kept


class _BrokenPath(MindAgents):
    """One path, or all, meets an error that nobody expects."""

    def __init__(self, *labels: str, agent: str = "coder") -> None:
        super().__init__()
        self.labels, self.agent = labels, agent

    async def ask(
        self, config: AgentConfig, prompt: str, *, label: str, max_cost_usd: float | None, **more: Any
    ) -> AgentReply:
        if label in self.labels and config.agent_type.value == self.agent:
            raise RuntimeError("a bug")
        return await super().ask(config, prompt, label=label, max_cost_usd=max_cost_usd, **more)


@pytest.mark.req("REQ-OR-022", "REQ-OR-040")
async def test_a_path_that_fails_leaves_the_others_alone(
    quick: QuickRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = PipelineState()
    result = await quick(agents=_BrokenPath("path-0"), state=state)
    assert state.phase2_path_statuses == ["failed", "completed"]
    failed, fine = result.phase2_results
    assert failed.best_solution.content == result.phase1.initial_solution.content
    assert (failed.best_score, failed.step_history[-1]["failed"]) == (result.phase1.initial_score, True)
    assert failed.best_solution.score == result.phase1.initial_score
    assert fine.best_score > failed.best_score
    assert result.phase3 is not None and len(result.phase3.input_solutions) == 2
    assert "RuntimeError: a bug" in caplog.text
    assert any("path-0 failed" in warning for warning in result.warnings)


@pytest.mark.req("REQ-OR-040")
async def test_a_path_that_fails_before_it_begins_has_the_initial_solution_with_its_score(quick: QuickRun) -> None:
    """Its start is a candidate that is checked first, and the check fails."""
    config = settings(diversity=("starts",), leakage_checks="promising")
    result = await quick(config, agents=_BrokenPath("path-1", agent="leakage"))
    failed, initial = result.phase2_results[1], result.phase1.initial_solution
    assert (failed.best_solution.content, failed.best_solution.score) == (initial.content, initial.score)
    assert (failed.best_score, failed.partial) == (initial.score, True) and failed.step_history[-1]["failed"]


@pytest.mark.req("REQ-OR-042")
async def test_when_phase_1_fails_late_the_best_candidate_goes_on(
    quick: QuickRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = await quick(settings(L=1), agents=_BrokenPath("main", agent="merger"))
    assert result.phase1.initial_score == 0.51 and result.submission_path
    assert result.phase1.candidate_scores == [0.5, 0.51], "what it found out before goes on, too"
    assert _ends(tmp_path / "run")[:2] == [
        ("phase1", "failed", "a bug", 0.51), ("phase2", "completed", "completed", 0.52),
    ]  # fmt: skip
    assert result.phases_completed == ["phase2", "finalization"] and result.phases_skipped == ["phase3"]
    assert "Phase 1 failed: the best solution it had goes on" in caplog.messages
    assert "phase1 failed: a bug" in result.warnings


@pytest.mark.req("REQ-OR-014", "REQ-OR-040", "REQ-OR-043")
@pytest.mark.parametrize("diversity", [(), ("starts",)])
async def test_when_every_path_fails_the_ensemble_gets_copies_of_the_initial_solution(
    quick: QuickRun, tmp_path: Path, caplog: pytest.LogCaptureFixture, diversity: tuple[str, ...]
) -> None:
    agents = _BrokenPath("path-0", "path-1", agent="ablation")
    result = await quick(settings(diversity=diversity), agents=agents)
    assert result.phase3 is not None
    initial = result.phase1.initial_solution
    assert [script.content for script in result.phase3.input_solutions] == [initial.content] * 2
    assert [script.score for script in result.phase3.input_solutions] == [initial.score] * 2
    assert all(path.best_score == initial.score for path in result.phase2_results)
    assert all(path.step_history[-1]["failed"] for path in result.phase2_results)
    assert result.phases_completed == ["phase1", "phase3", "finalization"]
    assert result.submission_path
    assert _ends(tmp_path / "run")[1] == ("phase2", "failed", "failed, failed", initial.score)
    assert "all paths ended with the same script: an ensemble of it has little value" in caplog.messages


@pytest.mark.req("REQ-OR-041", "REQ-OR-043")
async def test_when_the_ensemble_fails_the_best_path_goes_on(
    quick: QuickRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agents = _BrokenPath("main", agent="ens_planner")
    agents.mind.overrides["coder"] = lambda prompt: fenced(f"level = {next(levels_in_turn):.4f}")
    levels_in_turn, agents.paths_alike = iter([0.7, 0.6, 0.6, 0.6]), True
    result = await quick(settings(K=1, max_concurrent_paths=1), agents=agents)
    assert result.phase3 is None
    assert [path.best_score for path in result.phase2_results] == [0.7, 0.6], "the first path is the best"
    assert result.final_solution.score == 0.7
    assert result.phases_completed == ["phase1", "phase2", "finalization"]
    assert result.warnings == ["phase3 failed: RuntimeError: a bug"]
    assert _ends(tmp_path / "run")[2] == ("phase3", "failed", "RuntimeError: a bug", None)
    assert "Phase 3 failed: the best solution of Phase 2 goes on" in caplog.messages


@pytest.mark.req("REQ-OR-043")
async def test_when_finalization_fails_the_best_solution_and_the_kept_submission_are_handed_over(
    quick: QuickRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = await quick(agents=_BrokenPath("main", agent="test"))
    assert result.phase3 is not None
    assert result.final_solution.content == result.phase3.best_ensemble.content
    assert Path(result.submission_path) == tmp_path / "run" / "final" / "submission.csv"
    assert str(result.phase3.best_ensemble_score) in Path(result.submission_path).read_text(encoding="utf-8")
    assert "finalization" not in result.phases_completed
    assert _ends(tmp_path / "run")[3] == ("finalization", "failed", "RuntimeError: a bug", None)
    assert "finalization failed" in caplog.messages
    assert result.warnings[:2] == [
        "finalization failed: RuntimeError: a bug",
        "no submission by a script of its own: RuntimeError: a bug",
    ]
    assert result.lineage["finalization"]["fallback"] and result.phase1.initial_score == 0.515


class _NoSubmission(LevelExecutor):
    """Scripts that score and leave no file."""

    async def run(self, request):  # type: ignore[no-untyped-def]
        raw = await super().run(request)
        Path(request.working_dir, "final", "submission.csv").unlink(missing_ok=True)
        return raw


@pytest.mark.req("REQ-OR-043")
async def test_without_any_submission_the_path_is_empty_and_the_solution_is_there(
    quick: QuickRun, tmp_path: Path
) -> None:
    result = await quick(settings(L=1), executor=_NoSubmission())
    assert result.submission_path == ""
    assert result.final_solution.score == result.phase2_results[0].best_score
    assert _ends(tmp_path / "run")[3] == ("finalization", "failed", "no submission", result.final_solution.score)
    assert result.phases_completed == ["phase1", "phase2"]


@pytest.mark.req("REQ-OR-042")
async def test_without_a_solution_the_error_says_how_far_the_run_came(
    quick: QuickRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mind = Mind(overrides={"init": lambda prompt: fenced(broken()), "debugger": lambda prompt: fenced(broken("again"))})
    with pytest.raises(PipelineError, match="all 2 candidates") as caught:
        await quick(agents=MindAgents(mind))
    found = caught.value.diagnostics
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert found["cost_usd"] > 0 and found["elapsed_seconds"] > 0
    assert found["last_successful_step"].startswith("phase1/")
    assert found["candidate_scores"] == {"model 0": None, "model 1": None}
    assert set(found["errors"]) == {"model 0", "model 1"}
    last = events(tmp_path / "run", RunFinished)[-1]
    assert last.state == "failed" and last.message == f"PipelineError: {caught.value}"
    assert last.cost_usd == found["cost_usd"] and last.seconds >= found["elapsed_seconds"]
    assert f"the run ends without a result: {last.message}" in caplog.messages
    assert (found["reason"], found["best_candidate"]) == ("phase1", None)


@pytest.mark.req("REQ-OR-016")
@pytest.mark.parametrize("direction", list(MetricDirection))
async def test_the_worse_of_two_solutions_is_handed_over_only_when_that_is_wanted(
    quick: QuickRun, task: TaskDescription, direction: MetricDirection
) -> None:
    worse = 0.2 if direction is MetricDirection.maximize else 0.9
    mind = Mind(overrides={"ensembler": lambda prompt: fenced(script(worse, note=str(len(prompt))))})
    metric = "accuracy" if direction is MetricDirection.maximize else "rmse"
    task = task.model_copy(update={"metric_direction": direction, "evaluation_metric": metric})
    result = await quick(task=task, agents=MindAgents(mind))
    assert result.phase3 is not None and result.phase3.best_ensemble_score == worse
    path = best_of(result.phase2_results, direction)
    assert path is not None and result.final_solution.score == path.best_score != worse
    words = f"the best path ({path.best_score:g}) beats every ensemble ({worse:g}): the "
    assert f"{words}path is handed over" in result.warnings
    literal = await quick(settings(prefer_best_input=False), task=task, agents=MindAgents(mind), name="literal")
    assert literal.final_solution.score == worse and f"{words}ensemble is handed over" in literal.warnings


# --- the result ----------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-OR-036", "REQ-OR-037", "REQ-OR-038")
async def test_the_result_says_what_everything_cost_and_took(
    quick: QuickRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agents = MindAgents(cost_usd=0.5)
    with caplog.at_level(logging.INFO, "mle_star"):
        result = await quick(agents=agents)
    assert result.total_cost_usd == pytest.approx(0.5 * len(agents.calls))
    costs, times = result.cost_breakdown, result.duration_breakdown
    phases = [costs[f"{phase}_cost_usd"] for phase in ("phase1", "phase2", "phase3", "finalization")]
    assert sum(phases) == pytest.approx(costs["total_cost_usd"]) == pytest.approx(result.total_cost_usd)
    assert sum(costs["phase2_per_path_cost_usd"]) == pytest.approx(costs["phase2_cost_usd"])
    assert costs["phase2_per_path_cost_usd"][0] == pytest.approx(8 * 0.5)
    spent = [times[f"{phase}_duration_seconds"] for phase in ("phase1", "phase2", "phase3", "finalization")]
    assert all(seconds > 0 for seconds in spent)
    assert sum(spent) <= times["total_duration_seconds"] == result.total_duration_seconds
    titles = ("Phase 1: Initial Solution Generation", "Phase 2: Refinement", "Phase 3: Ensemble")
    said = [line for line in log_of(caplog, "mle_star.orchestrator") if "===" in line or "ends" not in line]
    assert [line for line in said if "===" in line] == [
        f"INFO === {title} ===" for title in (*titles, "Finalization: Submission")
    ]
    duration, lineage, cost = said[-3:]
    assert (duration, cost) == (f"INFO duration: {json.dumps(times)}", f"INFO cost: {json.dumps(costs)}")
    told = json.loads(lineage.removeprefix("INFO lineage: "))
    assert {name: result.lineage[name] for name in told} == told and {"phase1", "phase2", "phase3"} < set(told)
    assert result.expected == Measure(score=result.final_solution.score)
    assert (result.stopped_by, result.warnings, result.phases_skipped) == (None, [], [])
    assert Path(result.submission_path).read_text(encoding="utf-8").startswith("id,label\n")
    whole = result.model_dump(mode="json")
    written = FinalResult.model_validate_json((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert written.model_dump(mode="json") == whole
    assert (tmp_path / "run" / "solution.py").read_text(encoding="utf-8") == result.final_solution.content
    last = events(tmp_path / "run", RunFinished)[-1].result
    assert last is not None and last.model_dump(mode="json") == whole
    assert (tmp_path / "run" / "input").resolve() == Path(result.task.data_dir).resolve()


@pytest.mark.req("REQ-OR-039")
async def test_the_lineage_leads_from_the_submission_back_to_the_model(quick: QuickRun) -> None:
    origin = (await quick(settings(M=3))).lineage
    assert origin["phase1"]["retrieved_models"] == ["model 0", "model 1", "model 2"]
    assert origin["phase1"]["selected_candidate"] == "model 2"
    assert origin["phase1"]["merged"] == ["model 1", "model 0"]
    assert origin["phase1"]["initial_score"] == 0.53
    best = origin["phase2"]["paths"][origin["phase2"]["best_path"]]
    assert origin["phase2"]["best_path"] == 1
    assert best["improvements"] == [{"t": 0, "k": 0, "score": 0.542, "plan": "raise the level, idea 0"}]
    assert origin["phase3"]["best_round"] == 1 and origin["phase3"]["inputs"] == [0.54, 0.542]
    assert origin["finalization"]["from_phase"] == "ensemble" and origin["finalization"]["own_submission_script"]
    assert origin["finalization"]["subsampling_removed"] is False
    json.dumps(origin)


@pytest.mark.req("REQ-OR-039")
async def test_the_lineage_of_losses_names_what_was_lowest(quick: QuickRun, task: TaskDescription) -> None:
    """The first candidate, the first path, the first try and the first round are the best ones."""
    rounds, tries = iter([0.1, 0.45]), iter([0.3, 0.4, 0.45, 0.35])
    mind = Mind(
        overrides={
            "merger": lambda _: fenced(script(0.9)), "ensembler": lambda _: fenced(script(next(rounds))),
            "coder": lambda _: fenced(f"level = {next(tries):.4f}"),
            "test": lambda _: fenced(script(0.1, note="the last\n# one")),
        }
    )  # fmt: skip
    lower = task.model_copy(update={"metric_direction": MetricDirection.minimize, "evaluation_metric": "rmse"})
    agents = MindAgents(mind, paths_alike=True)
    origin = (await quick(settings(M=3, max_concurrent_paths=1), task=lower, agents=agents)).lineage
    tried = [[{"t": 0, "k": 0, "score": 0.3}], [{"t": 0, "k": 0, "score": 0.45}, {"t": 0, "k": 1, "score": 0.35}]]
    plans = [f"raise the level, idea {number}" for number in range(2)]
    paths = [
        {"score": best, "partial": False, "improvements": [{**one, "plan": plans[int(one["k"])]} for one in gains]}
        for best, gains in zip((0.3, 0.35), tried, strict=True)
    ]
    assert origin["phase1"] == {
        "retrieved_models": ["model 0", "model 1", "model 2"], "selected_candidate": "model 0",
        "candidate_score": 0.5, "merged": [], "data_usage_changed": False, "initial_score": 0.5,
    }  # fmt: skip
    assert origin["phase2"] == {"best_path": 0, "best_score": 0.3, "paths": paths}
    assert origin["phase3"] == {
        "best_round": 0, "best_score": 0.1, "plan": "average them, idea 0", "inputs": [0.3, 0.35],
    }  # fmt: skip
    last, facts = origin["finalization"], ("from_phase", "from_score", "lines_added", "lines_removed")
    assert [last[name] for name in facts] == ["ensemble", 0.1, 2, 1] and origin["final_selection"] is None


@pytest.mark.req("REQ-OR-039")
@pytest.mark.parametrize("works", [True, False])
async def test_the_lineage_says_whether_subsampling_was_removed(quick: QuickRun, works: bool) -> None:
    asked: dict[str, Callable[[str], Answer]] = {
        "test-subsampling_extract": lambda prompt: fenced("from pathlib import Path"),
        "test-subsampling_remove": lambda prompt: fenced("from pathlib import Path  # all rows"),
    }
    if not works:  # then the script that is handed over is the one from before
        asked |= {name: lambda prompt: fenced(broken()) for name in ("test", "debugger")}
    result = await quick(settings(L=1), agents=MindAgents(Mind(overrides=asked)))
    assert result.lineage["finalization"]["own_submission_script"] is works
    assert result.lineage["finalization"]["subsampling_removed"] is works and result.submission_path


@pytest.mark.req("REQ-OR-045")
@pytest.mark.parametrize("steps", [1, 3])
async def test_every_number_can_be_chosen(quick: QuickRun, steps: int) -> None:
    result = await quick(settings(T=steps, K=1, L=1))
    assert len(result.phase2_results[0].step_history) == steps
    assert all(len(record["inner_loop_attempts"]) == 1 for record in result.phase2_results[0].step_history)


@pytest.mark.req("REQ-OR-028")
async def test_the_money_limit_is_a_setting_and_reaches_the_calls(quick: QuickRun) -> None:
    assert PipelineConfig().max_budget_usd is None
    with pytest.raises(ValueError):
        PipelineConfig(max_budget_usd=-1)
    agents = MindAgents()
    await quick(settings(L=1, max_budget_usd=50), agents=agents)
    assert agents.caps[0] == 50
    assert all(cap is not None and 0 < cap <= 50 for cap in agents.caps)


@pytest.mark.req("REQ-OR-050")
async def test_a_run_can_be_watched_while_it_goes_on(quick: QuickRun) -> None:
    state = PipelineState()
    assert (state.elapsed_seconds, state.accumulated_cost_usd, state.current_phase) == (0.0, 0.0, "phase1")
    seen: list[tuple[str, int, float, float | None, tuple[str, ...]]] = []

    async def look(label: str, agent: str) -> None:
        statuses = tuple(state.phase2_path_statuses)
        seen.append(
            (state.current_phase, state.agent_call_count, state.accumulated_cost_usd, state.best_score_so_far, statuses)
        )

    agents = MindAgents(before=look, failing={"summarize": "no idea"})
    result = await quick(agents=agents, state=state)
    assert {round(cost, 6) for _, _, cost, *_ in seen} == {round(0.01 * count, 6) for _, count, *_ in seen}
    assert state.best_score_so_far == result.final_solution.score and state.run_dir is not None
    assert list(dict.fromkeys(phase for phase, *_ in seen)) == ["phase1", "phase2", "phase3", "finalization"]
    assert [count for _, count, *_ in seen] == sorted(count for _, count, *_ in seen)
    assert ("running", "running") in {statuses for *_, statuses in seen}
    scores = [score for *_, score, _ in seen if score is not None]
    assert scores == sorted(scores)
    assert state.current_phase == "complete" and state.agent_call_count == len(agents.calls)
    assert state.accumulated_cost_usd == result.total_cost_usd
    assert state.phase2_path_statuses == ["completed", "completed"]
    assert state.elapsed_seconds >= result.total_duration_seconds


@pytest.mark.req("REQ-OR-051")
async def test_a_second_run_knows_nothing_of_the_first(quick: QuickRun, tmp_path: Path) -> None:
    mind = Mind(overrides={"init": lambda prompt: "no code today"})
    with pytest.raises(PipelineError):
        await quick(agents=MindAgents(mind), name="first")
    results = [await quick(name=name) for name in ("second", "third")]
    assert story(results[0]) == story(results[1])
    assert results[0].total_cost_usd == results[1].total_cost_usd
    state, seen = PipelineState(), list[tuple[object, ...]]()

    async def look(label: str, agent: str) -> None:
        if agent == "retriever":
            said = state.current_phase, state.agent_call_count, state.best_score_so_far, [*state.phase2_path_statuses]
            seen.append((*said, state.accumulated_cost_usd, state.elapsed_seconds < 60))

    for name in ("fourth", "fifth"):
        await quick(name=name, agents=MindAgents(before=look), state=state)
        assert seen[-1] == ("phase1", 0, None, [], 0.0, True), "nor does a window that was used before"
        assert state.run_dir == tmp_path / name
    assert Path(results[0].submission_path) != Path(results[1].submission_path)
    with pytest.raises(ValueError, match="holds a run already"):
        await quick(name="second")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="not empty"):
        await quick(name="own")
    assert (tmp_path / "own" / "thesis.txt").read_text(encoding="utf-8") == "mine"


# --- the log, the overhead, the module -------------------------------------------------------------------------


@pytest.mark.req("REQ-OR-047")
async def test_the_log_marks_phases_and_at_debug_level_holds_prompts_and_replies(
    quick: QuickRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "logs" / "run.log"
    await quick(settings(log_level="DEBUG", log_file=str(log)), console=True)
    text = log.read_text(encoding="utf-8")
    for title in ("Phase 1: Initial Solution Generation", "Phase 2: Refinement", "Phase 3: Ensemble", "Finalization"):
        assert f"=== {title}" in text
    assert "Implement the improvement plan on the code block" in text  # a prompt
    assert "The level matters most." in text  # a reply
    console = capsys.readouterr().err
    assert " INFO    mle_star.orchestrator: === Phase 1" in console
    await quick(settings(L=1), name="quiet")
    assert capsys.readouterr().err == ""
    assert log.read_text(encoding="utf-8") == text  # a later run does not write into an earlier one's log
    for name in ("mle_star", "claude_agent_sdk"):  # else Python prints their warnings into a display
        assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger(name).handlers)


@pytest.mark.req("REQ-OR-048")
def test_changing_the_phase_takes_no_time(quick: QuickRun) -> None:
    """Less than 100 ms, in the best of several runs: others are at work on the machine as well."""
    turns, waits = list[list[float]](), list[float]()
    for number in range(4):
        clock: list[float] = []

        def look(event: AnyEvent, clock: list[float] = clock) -> None:
            if isinstance(event, (PhaseStarted, PhaseFinished)) and event.path is None:
                clock.append(time.perf_counter())

        _, waited, _ = measured(quick(listeners=[look], name=f"run-{number}"), processes=True)
        waits.append(waited)
        assert len(clock) == 8
        turns.append([begin - end for end, begin in zip(clock[1::2], clock[2::2], strict=False)])
    assert min(waits) == 0, "agents and scripts answer at once: whatever waits is ours"
    assert all(min(of_one) < 0.1 for of_one in zip(*turns, strict=True)), turns


@pytest.mark.req("REQ-OR-049")
async def test_a_path_keeps_blocks_and_scores_not_scripts(quick: QuickRun, tmp_path: Path) -> None:
    alive: list[int] = []

    async def count(label: str, agent: str) -> None:
        if agent in ("retriever", "test"):
            gc.collect()
            alive.append(sum(isinstance(thing, (AgentFinished, ScriptFinished)) for thing in gc.get_objects()))

    result = await quick(settings(T=2, K=4, L=2), agents=MindAgents(before=count))
    assert len(events(tmp_path / "run", AgentFinished)) > 50
    before, *later = alive  # other tests of this process may keep some
    assert max(later) <= before + 2  # prompts, replies and scripts of the past are on disk, and nowhere else
    path = result.phase2_results[0]
    kept = json.dumps(path.model_dump(mode="json")["step_history"])
    assert "Final Validation Performance" not in kept
    assert "Final Validation Performance" in path.best_solution.content


@pytest.mark.req("REQ-OR-049")
async def test_scripts_of_the_past_take_no_memory(quick: QuickRun) -> None:
    size, traced = 200_000, dict[str, int]()

    async def look(label: str, agent: str) -> None:
        if agent in ("extractor", "ens_planner"):
            gc.collect()
            traced.setdefault(agent, tracemalloc.get_traced_memory()[0])

    mind = Mind(overrides={"data": lambda prompt: fenced(script(0.55, note="x" * size))})
    agents = MindAgents(mind, before=look)
    tracemalloc.start()
    try:
        await quick(settings(T=1, K=8, L=2, R=1), agents=agents)
    finally:
        tracemalloc.stop()
    assert agents.count("coder") == 16  # of which each path keeps its best, and the run the best of each
    assert traced["ens_planner"] - traced["extractor"] < 8 * size


@pytest.mark.req("REQ-OR-056")
@pytest.mark.parametrize("at_once", [None, 3])
async def test_a_client_with_fewer_sessions_than_paths_gets_one_path_after_another(
    quick: QuickRun, at_once: int | None
) -> None:
    class Narrow(MindAgents):
        max_concurrent_sessions = 1

    agents = Narrow(delay=0.01)
    result = await quick(settings(L=3, T=1, K=1, max_concurrent_paths=at_once), agents=agents)
    order = [label for label, _ in groupby(label for label, _ in agents.calls)]
    assert order == ["main", "path-0", "path-1", "path-2", "main"]
    assert not any(path.partial for path in result.phase2_results)


@pytest.mark.req("REQ-OR-055")
def test_the_flow_of_the_pipeline_is_one_module() -> None:
    source = inspect.getsource(mle_star.orchestrator)
    for function in ("run_phase1(", "Paths(", "run_phase3(", "run_finalization("):
        assert function in source
    assert mle_star.orchestrator.PhaseTimeBudget is PhaseTimeBudget
    assert len(source.splitlines()) < 450


async def test_listeners_hear_everything_in_order(quick: QuickRun, tmp_path: Path) -> None:
    heard: list[AnyEvent] = []
    await quick(listeners=[heard.append])
    kinds = [event.kind for event in heard]
    assert (kinds[0], kinds[-1]) == ("run_started", "run_finished") and "agent_finished" in kinds
    assert len([k for k in kinds if k == "script_started"]) == len(events(tmp_path / "run", ScriptStarted))
    assert {event.step for event in heard if isinstance(event, AgentFinished)} == {
        event.step for event in events(tmp_path / "run", AgentFinished)
    }
