"""Finalization: subsampling, the test script, its submission, contamination; with real scripts in the real harness."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

from mle_star import finalization
from mle_star.errors import AgentError
from mle_star.execution import evaluate_solution
from mle_star.execution.submission import SUBMISSION
from mle_star.finalization import (
    LEAKING_SOLUTION,
    check_contamination,
    generate_test_submission,
    remove_subsampling,
    result_of_the_search,
    run_finalization,
    use_kept_submission,
)
from mle_star.models import (
    AgentType,
    DataContaminationResult,
    FinalResult,
    Phase1Result,
    Phase2Result,
    Phase3Result,
    PipelineConfig,
    RetrievedModel,
    SolutionPhase,
    SolutionScript,
    TaskDescription,
    agent_config,
    build_default_agent_configs,
)
from mle_star.prompts import PromptRegistry
from mle_star.run.context import AgentReply, current_run, scope
from mle_star.run.events import AgentFinished, DebugAttempted, ScriptFinished, ScriptStarted, SubmissionKept
from mle_star.safety import FIXED_AT_LAST, UNCHECKED, check_at_last
from tests.ledgers import best_score, check
from tests.ledgers import kept as kept_submission
from tests.method.conftest import (
    GARBAGE,
    ScriptedCall,
    ScriptedExecutor,
    ScriptedRun,
    broken_script,
    fenced,
    leaky,
    script,
    scripted_run,
    settings,
    solution,
)
from tests.method.loops import measured

pytestmark = pytest.mark.modes("usual", "letter")

SAMPLED = "rows = list(range(9))\nrows = rows[:5]  # subsample\nlevel = len(rows)\n" + script(0.8)
BLOCK = "rows = rows[:5]  # subsample\nlevel = len(rows)"
FULL = SAMPLED.replace(BLOCK, "level = len(rows)")
BEST = solution(SAMPLED, score=0.8, phase=SolutionPhase.refined)
NO_FILE = "print('Final Validation Performance: 0.9')"


def writer(text: str, *, note: str = "") -> str:
    """A test script that writes `text` as its submission."""
    return f"# {note}\nfrom pathlib import Path\nPath('final/submission.csv').write_text({text!r})"


GOOD = writer("id,target\n1,0\n2,1\n", note="good")


def phase1_of(best: SolutionScript) -> Phase1Result:
    return Phase1Result(
        retrieved_models=[RetrievedModel(model_name="m", example_code="m()")], candidate_solutions=[best],
        candidate_scores=[best.score], initial_solution=best, initial_score=best.score or 0.0,
    )  # fmt: skip


async def finalize(run: ScriptedRun, best: SolutionScript = BEST, **more: Any) -> FinalResult:
    config = more.pop("config", run.config)
    references = more.pop("references", None)
    return await run_finalization(best, run.task, config, phase1_of(best), [], None, references, **more)


def lines_of(caplog: pytest.LogCaptureFixture, level: str, name: str = "mle_star.finalization") -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == name and r.levelname == level]


# --- subsampling -----------------------------------------------------------------------------------------


@pytest.mark.req("REQ-FN-002")
@pytest.mark.parametrize("content", ["", " \n"])
async def test_a_blank_script_is_not_searched(run: ScriptedRun, content: str) -> None:
    blank = solution(content)
    assert await remove_subsampling(blank) is blank
    assert run.agents.log == []


@pytest.mark.req("REQ-FN-001", "REQ-FN-003", "REQ-FN-004", "REQ-FN-005", "REQ-FN-007", "REQ-FN-009", "REQ-FN-038")
async def test_the_block_that_cuts_rows_is_found_and_rewritten(run: ScriptedRun) -> None:
    run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    best = BEST.model_copy(update={"source_model": "ridge", "is_executable": False, "leaking": True})
    before = best.model_dump()
    full = await remove_subsampling(best)
    assert full == best.model_copy(update={"content": FULL}) and best.model_dump() == before
    extract, remove = run.agents.log
    assert SAMPLED in extract.prompt and BLOCK in remove.prompt and "rows = list" not in remove.prompt


@pytest.mark.req("REQ-FN-003", "REQ-FN-006", "REQ-FN-007", "REQ-FN-009")
@pytest.mark.parametrize(
    ("content", "block", "reply", "wanted"),
    [
        ("A = 1\ndf = df.sample(30000)\nB = 2", "df = df.sample(30000)\nB = 2", fenced("B = 2"), "A = 1\nB = 2"),
        ("A = 1\ndf = df.sample(9)\nB = 2", "df = df.sample(9)\n", "```python\n```", None),
        ("def f(d):\n    d = d.sample(9)\n    return d\n", "    d = d.sample(9)", fenced("d = d"),
         "def f(d):\n    d = d\n    return d\n"),
        ("A = 1\ndf = df[:9]  \nB = 2", "df = df[:9]  \nB = 2", fenced("B = 2"), "A = 1\nB = 2"),
        ("A = 1\ndf = df[:9]  \nB = 2", "df = df[:9]\nB = 2", fenced("B = 2"), "A = 1\ndf = df[:9]  \nB = 2"),
    ],
)  # fmt: skip
async def test_the_new_block_takes_the_place_of_the_old_one(
    run: ScriptedRun, content: str, block: str, reply: str, wanted: str | None
) -> None:
    run.agents.reply("test-subsampling_extract", fenced(block))
    run.agents.reply("test-subsampling_remove", reply)
    full = await remove_subsampling(solution(content))
    assert full.content == (content.replace(block.rstrip("\n"), "") if wanted is None else wanted)


@pytest.mark.req("REQ-FN-007")
async def test_a_new_block_that_breaks_the_script_is_dropped(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    run.agents.reply("test-subsampling_remove", fenced("level = ("))
    assert await remove_subsampling(BEST) is BEST
    assert any("no longer compile" in line for line in lines_of(caplog, "WARNING"))
    assert len(run.agents.log) == 2, "it is not asked again"


@pytest.mark.req("REQ-FN-008", "REQ-FN-038", "REQ-FN-005")
@pytest.mark.parametrize(
    "reply", ["There is no subsampling.", "The script does not subsample.", "None.", "```\n```", ""]
)
async def test_without_subsampling_nothing_is_removed(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture, reply: str
) -> None:
    caplog.set_level(logging.INFO, "mle_star")
    run.agents.reply("test-subsampling_extract", reply)
    assert await remove_subsampling(BEST) is BEST
    assert run.agents.names == ["test-subsampling_extract"]
    assert any("found: no" in line for line in lines_of(caplog, "INFO"))
    assert "parse failure" not in caplog.text


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-FN-003", "REQ-FN-008", "REQ-FN-039")
@pytest.mark.parametrize(
    "reply",
    [fenced("rows  =  rows[:5]"), fenced("x" * 900), GARBAGE, fenced(BLOCK.replace("\n", "  \n")), fenced(f"{BLOCK} ")],
)
async def test_a_foreign_block_is_no_block(run: ScriptedRun, caplog: pytest.LogCaptureFixture, reply: str) -> None:
    caplog.set_level(logging.INFO, "mle_star")
    run.agents.reply("test-subsampling_extract", reply)
    assert await remove_subsampling(BEST) is BEST
    assert run.agents.names == ["test-subsampling_extract"]
    [warning] = lines_of(caplog, "WARNING", "mle_star.run.request")
    assert warning.endswith(repr(reply[:200]))
    assert any("found: no" in line for line in lines_of(caplog, "INFO"))


@pytest.mark.req("REQ-FN-006", "REQ-FN-038")
@pytest.mark.parametrize("reply", [GARBAGE, "", AgentError("down", agent="test")])
async def test_a_removal_without_code_keeps_the_script(run: ScriptedRun, reply: object) -> None:
    run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    run.agents.reply("test-subsampling_remove", reply)
    assert await remove_subsampling(BEST) is BEST
    assert run.agents.names == ["test-subsampling_extract", "test-subsampling_remove"]


# --- the test script -------------------------------------------------------------------------------------


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-FN-011", "REQ-FN-012", "REQ-FN-014", "REQ-FN-015", "REQ-FN-016", "REQ-FN-017", "REQ-FN-047")
async def test_the_prompt_asks_for_a_complete_submission_with_small_changes(run: ScriptedRun) -> None:
    await generate_test_submission(run.task, BEST)
    [call] = run.agents.log
    for words in (
        run.task.description, SAMPLED, "Read the test samples", "./input/", "already unpacked", "`submission.csv`",
        "Every test sample gets a prediction", "you can even use the full training set", "as little as possible",
        "self-contained Python file", "single Markdown code block", "exit()", "covers up unexpected behaviour",
    ):  # fmt: skip
        assert words in call.prompt, words
    assert call.prompt.count("./final/") >= 2 and "./final/submission.csv" in call.prompt
    assert call.config.tools == ["Read"] and call.config.output_schema is None


@pytest.mark.req("REQ-FN-013", "REQ-FN-019")
async def test_a_test_script_is_a_final_one_without_a_score(run: ScriptedRun) -> None:
    run.agents.reply("test", fenced(GOOD))
    best = BEST.model_copy(update={"source_model": "ridge", "is_executable": False})
    final = await generate_test_submission(run.task, best)
    assert final.content == GOOD and "```" not in final.content and final.source_model == "ridge"
    assert (final.phase, final.score, final.is_executable) == (SolutionPhase.final, None, True)
    assert list(inspect.signature(generate_test_submission).parameters) == ["task", "solution"]


# --- the whole of it -------------------------------------------------------------------------------------


@pytest.mark.req("REQ-FN-035", "REQ-FN-015", "REQ-FN-036", "REQ-SF-022")
async def test_the_steps_follow_one_another_and_end_in_a_submission(run: ScriptedRun) -> None:
    run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    run.agents.reply("test", fenced(GOOD))
    result = await finalize(run, references=["a post"])
    assert run.agents.names == [
        "test-subsampling_extract", "test-subsampling_remove", "test", "leakage-detection", "test-contamination"
    ]  # fmt: skip
    assert FULL in run.agents.calls("test")[0].prompt and GOOD in run.agents.calls("leakage-detection")[0].prompt
    scored = run.agents.calls("test-contamination")[0].prompt
    assert GOOD in scored and SAMPLED not in scored and FULL not in scored, "the script that is submitted"
    assert all(event.step.startswith("finalization/") for event in run.events(AgentFinished))
    steps = [e.step for e in run.journal.events]
    assert steps.index("finalization/leakage-detection") < steps.index("finalization/submission-script")
    assert run.executor.scripts == [GOOD]
    path = Path(result.submission_path)
    assert path.is_absolute() and path == (run.run_dir / "final" / "submission.csv").absolute()
    assert path.read_text() == "id,target\n1,0\n2,1\n"


@pytest.mark.req("REQ-FN-036", "REQ-FN-034")
async def test_the_result_holds_everything_that_went_in(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("test", fenced(GOOD))
    phase1 = phase1_of(BEST)
    phase2 = [
        Phase2Result(ablation_summaries=["s"], refined_blocks=[], best_solution=BEST, best_score=0.8, step_history=[])
    ]
    phase3 = Phase3Result(
        input_solutions=[BEST], ensemble_plans=["p"], ensemble_scores=[0.8], best_ensemble=BEST, best_ensemble_score=0.8
    )
    result = await run_finalization(
        BEST,
        quick_run.task,
        quick_run.config,
        phase1,
        phase2,
        phase3,
        started_at=time.monotonic() - 100,
        total_cost_usd=1.25,
    )
    assert (result.task, result.config, result.phase1) == (quick_run.task, quick_run.config, phase1)
    assert (result.phase2_results, result.phase3) == (phase2, phase3)
    assert (result.final_solution.content, result.final_solution.phase) == (GOOD, SolutionPhase.final)
    assert result.final_solution.score == 0.8, "the score that was validated"
    assert 100 <= result.total_duration_seconds < 340 and result.total_cost_usd == 1.25
    assert result.contamination is None and result.warnings == []


@pytest.mark.req("REQ-FN-034")
def test_the_signature_is_the_specified_one() -> None:
    parameters = inspect.signature(run_finalization, eval_str=True).parameters
    positional = {n: p.annotation for n, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY}
    assert positional == {
        "solution": SolutionScript, "task": TaskDescription, "config": PipelineConfig, "phase1_result": Phase1Result,
        "phase2_results": list[Phase2Result], "phase3_result": Phase3Result | None,
        "reference_discussions": list[str] | None,
    }  # fmt: skip
    assert parameters["reference_discussions"].default is None
    assert inspect.get_annotations(run_finalization, eval_str=True)["return"] is FinalResult


@pytest.mark.req("REQ-FN-036")
async def test_without_a_start_the_duration_counts_from_the_entry(quick_run: ScriptedRun) -> None:
    result = await finalize(quick_run)
    assert result.total_duration_seconds < 240 and result.total_cost_usd is None


@pytest.mark.req("REQ-FN-035", "REQ-SF-022")
async def test_a_leak_in_the_test_script_is_fixed_before_it_runs(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("test", fenced("level = 1\n" + GOOD))
    quick_run.agents.reply("leakage-detection", leaky("level = 1"))
    quick_run.agents.reply("leakage-correction", fenced("level = 2"))
    result = await finalize(quick_run)
    assert quick_run.executor.scripts == ["level = 2\n" + GOOD] == [result.final_solution.content]


# --- running and verifying -------------------------------------------------------------------------------


@pytest.mark.req("REQ-FN-020")
async def test_the_test_script_runs_at_full_length_in_an_empty_output_folder(run: ScriptedRun) -> None:
    (run.work_dir / "final" / "submission.csv").write_text("stale")
    run.agents.reply("test", fenced(NO_FILE))
    run.agents.always("debugger", GARBAGE)
    run.agents.reply("debugger", *fenced(broken_script(), NO_FILE + " # again"))
    config = settings(time_limit_seconds=1234, script_timeout_seconds=5)  # that one is for searching
    result = await finalize(run, config=config)
    assert result.submission_path == "", "a stale file is no submission"
    assert [event.timeout_seconds for event in run.events(ScriptStarted)] == [1234] * 3
    assert [request.timeout_seconds for request in run.executor.requests] == [1234] * 3, "the repaired ones as well"
    assert {event.purpose for event in run.events(ScriptStarted)} == {"submission"}


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-FN-021", "REQ-FN-023")
@pytest.mark.parametrize("first", [writer(""), NO_FILE, broken_script("in the test script"), "while True print(1)"])
async def test_a_test_script_that_leaves_no_file_is_repaired(run: ScriptedRun, first: str) -> None:
    run.agents.reply("test", fenced(first))
    run.agents.reply("debugger", fenced(GOOD))
    result = await finalize(run)
    assert Path(result.submission_path).is_file() and result.final_solution.content == GOOD
    [call] = run.agents.calls("debugger-submission")
    assert first in call.prompt and "{final_validation_score}" not in call.prompt
    if first in (writer(""), NO_FILE):
        assert "FileNotFoundError: ./final/submission.csv missing or empty" in call.prompt
    assert run.executor.scripts[-1] == GOOD


@pytest.mark.req("REQ-FN-021")
async def test_a_missing_score_line_does_not_matter(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("test", fenced(GOOD))
    assert Path((await finalize(quick_run)).submission_path).is_file()
    assert quick_run.agents.calls("debugger-submission") == []


@pytest.mark.req("REQ-FN-022", "REQ-FN-018")
@pytest.mark.parametrize(
    ("text", "warning"),
    [("id,target\n", "no rows"), ("id,target\n1,0\n", "1 rows"), ("key,target\n1,0\n2,1\n", "columns are")],
)
async def test_an_odd_file_is_a_warning_and_never_more(run: ScriptedRun, text: str, warning: str) -> None:
    run.agents.reply("test", fenced(writer(text)))
    result = await finalize(run)
    assert Path(result.submission_path).read_text() == text
    assert run.agents.calls("debugger-submission") == []
    assert any(warning in line for line in result.warnings)


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-FN-023", "REQ-FN-024")
@pytest.mark.parametrize("limit", [1, 2, 4])
async def test_crashes_and_missing_files_share_one_limit(run: ScriptedRun, limit: int) -> None:
    run.agents.reply("test", fenced(NO_FILE))
    replies = [fenced(broken_script(f"{n}") if n % 2 == 0 else f"{NO_FILE} # {n}") for n in range(limit)]
    run.agents.reply("debugger", *replies)
    result = await finalize(run, config=settings(max_debug_attempts=limit))
    assert len(run.agents.calls("debugger-submission")) == limit == len(run.events(DebugAttempted))
    assert result.submission_path == "" and result.final_solution == BEST


@pytest.mark.req("REQ-FN-025", "REQ-FN-036")
async def test_when_nothing_helps_the_validated_script_comes_back(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    run.agents.reply("test", fenced(broken_script("hopeless")))
    run.agents.always("debugger", fenced(broken_script("still hopeless")))
    (run.run_dir / "final").mkdir()
    (run.run_dir / "final" / "submission.csv").write_text("of an earlier process")
    result = await finalize(run)
    assert result.final_solution == BEST and result.final_solution.phase == SolutionPhase.refined
    assert result.submission_path == "" and not (run.run_dir / "final" / "submission.csv").exists()
    [warning] = [line for line in lines_of(caplog, "WARNING") if line.startswith("fallback")]
    assert "RuntimeError: still hopeless" in warning and "phase refined, score 0.8" in warning
    assert result.warnings


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-FN-040")
@pytest.mark.parametrize("reply", [GARBAGE, "", AgentError("down", agent="test")])
async def test_without_a_test_script_the_debugger_makes_one(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture, reply: object
) -> None:
    quick_run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    quick_run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    quick_run.agents.reply("test", reply)
    quick_run.agents.reply("debugger", fenced(GOOD + "\nprint(open('input/test.csv').read())"))
    result = await finalize(quick_run)
    [call] = quick_run.agents.calls("debugger-submission")
    assert FULL in call.prompt and "submission.csv missing or empty" in call.prompt
    assert result.final_solution.content.startswith(GOOD) and Path(result.submission_path).is_file()
    if reply == GARBAGE:
        assert any(GARBAGE[:50] in line for line in lines_of(caplog, "WARNING", "mle_star.run.request"))


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-FN-040")
async def test_a_missing_test_script_uses_up_one_attempt(quick_run: ScriptedRun) -> None:
    best = solution(NO_FILE, score=0.8)
    quick_run.agents.reply("test", GARBAGE)
    quick_run.agents.always("debugger", GARBAGE)
    result = await finalize(quick_run, best, config=settings(max_debug_attempts=2))
    assert len(quick_run.agents.calls("debugger-submission")) == 2
    assert result.submission_path == "" and result.final_solution == best


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-FN-046")
@pytest.mark.parametrize("call", ["quit()", "exit()", "import sys; sys.exit(0)", "import os; os._exit(0)"])
async def test_a_script_that_ends_itself_goes_to_the_debugger(run: ScriptedRun, call: str) -> None:
    run.agents.reply("test", fenced(f"{GOOD}\n{call}"))
    run.agents.reply("debugger", fenced(GOOD))
    result = await finalize(run)
    assert Path(result.submission_path).is_file() and run.executor.scripts == [GOOD]
    assert "which would end the run" in run.agents.calls("debugger-submission")[0].prompt
    assert "exit()" in run.agents.calls("test")[0].prompt


@pytest.mark.req("REQ-FN-047")
@pytest.mark.parametrize("first", ["", GARBAGE, fenced(broken_script()), fenced(NO_FILE)])
async def test_a_script_that_may_hide_errors_runs_with_a_warning(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    """Also one that only a repair made so: of no reply with code, of a crash, of a run that left no file."""
    hiding = f"try:\n    1 / 0\nexcept:\n    pass\n{GOOD}"
    run.agents.reply("test", first or fenced(hiding))
    run.agents.reply("debugger", fenced(hiding))
    result = await finalize(run)
    assert result.final_solution.content == hiding and result.submission_path
    assert sum("may hide errors" in line for line in lines_of(caplog, "WARNING")) == 1


@pytest.mark.req("REQ-FN-045")
def test_prompt_and_verifier_mean_the_same_file() -> None:
    assert "./final/submission.csv" in PromptRegistry().get(AgentType.test).template
    assert SUBMISSION == "final/submission.csv"


# --- the submission that was kept on the way -------------------------------------------------------------


async def keep(run: ScriptedRun, content: str, *place: str) -> None:
    """Evaluate a script somewhere in the run; the harness keeps what it leaves."""
    with scope(*place):
        await evaluate_solution(solution(content), run.task, run.config)


@pytest.mark.modes("usual")
async def test_when_nothing_helps_the_kept_submission_is_handed_over_with_its_script(run: ScriptedRun) -> None:
    await keep(run, script(0.7, note="kept"), "phase1", "candidate-1")
    run.agents.always("test", GARBAGE)
    run.agents.always("debugger", fenced(broken_script()))
    result = await finalize(run, solution(NO_FILE, score=0.8, phase=SolutionPhase.ensemble))
    assert Path(result.submission_path) == (run.run_dir / "final" / "submission.csv").absolute()
    assert Path(result.submission_path).read_text() == "id,target\n1,0\n2,1\n"
    final = result.final_solution
    assert (final.content, final.phase, final.score) == (script(0.7, note="kept"), SolutionPhase.init, 0.7)
    assert any("kept on the way" in line for line in result.warnings) and result.lineage["finalization"]["fallback"]


@pytest.mark.modes("usual")
async def test_a_kept_submission_of_the_solution_itself_leaves_the_solution(run: ScriptedRun) -> None:
    best = solution(script(0.7), score=0.7, phase=SolutionPhase.refined)
    await keep(run, best.content, "phase2", "path-0")
    run.agents.always("test", fenced(broken_script()))
    run.agents.always("debugger", GARBAGE)
    result = await finalize(run, best)
    assert result.final_solution == best and Path(result.submission_path).is_file()


async def test_what_a_test_script_prints_is_no_score_of_the_run(run: ScriptedRun) -> None:
    await keep(run, script(0.7), "phase2")
    run.agents.reply("test", fenced(script(0.999)))
    result = await finalize(run)
    assert best_score(run.context) == 0.7 and result.final_solution.score == 0.8


# --- limits ----------------------------------------------------------------------------------------------


@pytest.fixture
def poor(quick_path: Path) -> Any:
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=settings(max_budget_usd=10.0)) as entered:
        entered.context.budget.charge(10.0, phase="phase2")
        yield entered


async def test_with_the_money_gone_the_test_script_is_all_that_is_asked_for(poor: ScriptedRun) -> None:
    poor.agents.reply("test", fenced(GOOD))
    result = await finalize(poor, references=["a post"])
    assert poor.agents.names == ["test"] and Path(result.submission_path).is_file()
    assert poor.agents.log[0].max_cost_usd == pytest.approx(0.5), "5 % of the budget"
    assert result.contamination is None


@pytest.mark.modes("usual")
async def test_with_the_money_gone_one_repair_is_all_there_is(quick_path: Path) -> None:
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=settings(max_budget_usd=10.0)) as run:
        run.agents.cost_usd = 0.4
        await keep(run, script(0.7), "phase1", "candidate-0")
        run.context.budget.charge(10.0, phase="phase2")
        run.agents.reply("test", fenced(broken_script()))
        run.agents.always("debugger", fenced(broken_script("again")))
        result = await finalize(run)
        assert run.agents.names == ["test", "debugger-submission"]
        assert Path(result.submission_path).is_file(), "then what was kept"
        assert run.context.budget.spent_usd == pytest.approx(10.8)


@pytest.mark.modes("usual")
async def test_with_the_money_gone_a_refused_repair_is_not_asked_for_again(poor: ScriptedRun) -> None:
    trains = "model.fit(x)\nprint('Final Validation Performance: 1')"
    poor.agents.reply("test", fenced(trains))
    poor.agents.always("debugger", fenced("print('gutted, and long enough not to look shrunk at all')"))
    result = await finalize(poor)
    assert poor.agents.names == ["test", "debugger-submission"] and result.submission_path == ""


async def test_with_money_and_time_gone_nothing_is_asked_for_and_the_reason_is_said(poor: ScriptedRun) -> None:
    poor.context.budget.time_limit = 0.0
    result = await finalize(poor)
    assert poor.agents.log == [] and (result.submission_path, result.final_solution) == ("", BEST)
    assert [warning.partition("time spent: ")[0] for warning in result.warnings] == [
        "no submission by a script of its own: "
    ]


async def test_money_that_ends_on_the_way_leads_to_the_two_last_calls(quick_path: Path) -> None:
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=settings(max_budget_usd=1.0)) as run:
        run.agents.cost_usd = 0.6
        run.agents.reply("test-subsampling_extract", fenced(BLOCK))  # this and the next call use it up
        run.agents.reply("test-subsampling_remove", fenced("rows = everything"))
        run.agents.reply("test", fenced(GOOD))
        result = await finalize(run)
        assert run.agents.names == ["test-subsampling_extract", "test-subsampling_remove", "test"]
        asked = run.agents.calls("test")[0].prompt
        assert "rows = everything" in asked and BLOCK not in asked, "what was paid for is used"
    assert Path(result.submission_path).is_file()
    assert result.lineage["finalization"]["subsampling_removed"] is True


async def test_a_test_script_that_took_the_last_of_the_money_is_run(quick_path: Path) -> None:
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=settings(max_budget_usd=1.0)) as run:
        run.agents.cost_usd = 0.6
        run.agents.reply("test-subsampling_extract", "There is no subsampling.")
        run.agents.reply("test", fenced(GOOD))
        result = await finalize(run)
        assert run.agents.names == ["test-subsampling_extract", "test"], "it is not asked for again"
    assert result.final_solution.content == GOOD and Path(result.submission_path).is_file()


@pytest.mark.parametrize("kept", [True, False])
async def test_after_the_deadline_only_what_was_kept_is_handed_over(
    quick_path: Path, caplog: pytest.LogCaptureFixture, kept: bool
) -> None:
    now = 0.0
    with scripted_run(quick_path, executor=ScriptedExecutor(), clock=lambda: now) as run:
        if kept:
            await keep(run, script(0.7), "phase1", "candidate-0")
        now = 4000.0  # the limit is 3600
        result = await finalize(run, references=["a post"])
        assert run.agents.log == [] and result.contamination is None
    assert Path(result.submission_path).is_file() if kept else result.submission_path == ""
    assert result.warnings[0] == "no submission by a script of its own: time spent: 4000 of 3600 s"
    cut, *_, skipped = lines_of(caplog, "WARNING")
    assert cut == "finalization was cut short: time spent: 4000 of 3600 s"
    assert skipped == "contamination skipped: time spent: 4000 of 3600 s"


async def test_a_deadline_during_the_test_script_leads_to_what_was_kept_submission(quick_path: Path) -> None:
    now = 0.0

    def late(call: Any) -> str:
        nonlocal now
        now = 4000.0
        return str(fenced(GOOD))

    with scripted_run(quick_path, executor=ScriptedExecutor(), clock=lambda: now) as run:
        await keep(run, script(0.7), "phase1", "candidate-0")
        run.agents.reply("test", late)
        result = await finalize(run)
        assert len(run.executor.scripts) == 1, "the test script never ran"
    assert Path(result.submission_path).is_file() and result.final_solution.score == 0.7


async def test_a_run_that_is_cut_off_after_its_submission_keeps_it(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("test", fenced(GOOD))
    asked = asyncio.Event()

    async def hang(call: ScriptedCall) -> str:
        asked.set()
        await asyncio.sleep(60)
        return ""

    quick_run.agents.reply("test-contamination", {"verdict": "Same"})
    quick_run.agents.always("test-contamination", hang)
    work = asyncio.create_task(finalize(quick_run, references=["a post", "another"]))
    await asyncio.wait_for(asked.wait(), 120)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    handed_over = await use_kept_submission(BEST, reason="out of time")
    assert handed_over.script.content == GOOD and Path(handed_over.path).read_text() == "id,target\n1,0\n2,1\n"
    result = await result_of_the_search(
        BEST, quick_run.task, quick_run.config, phase1_of(BEST), [], None, reason="out of time"
    )
    assert result.final_solution.content == GOOD and result.contamination == DataContaminationResult(verdict="Same")


async def test_a_large_kept_submission_is_copied_beside_the_event_loop(quick_run: ScriptedRun) -> None:
    run = current_run()
    with (run.run_dir / "large.csv").open("wb") as file:
        file.truncate(1 << 26)
    run.record(SubmissionKept(step="s", path="final/best_submission.csv", source="large.csv", rows=1, score=0.7))
    handing_over = asyncio.create_task(use_kept_submission(BEST, reason="out of time"))
    turns = 0
    while not handing_over.done():
        await asyncio.sleep(0)
        turns += 1
    assert Path((await handing_over).path).stat().st_size == 1 << 26
    assert turns > 20, "nothing else could happen meanwhile"


async def test_a_second_time_everything_comes_from_the_journal(tmp_path: Path) -> None:
    for _ in range(2):
        with scripted_run(tmp_path) as run:
            run.agents.reply("test", fenced(GOOD))
            result = await finalize(run, references=["a post"])
            calls, scripts = len(run.agents.log), len(run.executor.scripts)
            Path(result.submission_path).unlink()
    assert (calls, scripts) == (0, 0) and result.final_solution.content == GOOD
    assert result.contamination == DataContaminationResult(verdict="Novel")


# --- contamination ---------------------------------------------------------------------------------------


@pytest.mark.req("REQ-FN-030", "REQ-FN-033")
@pytest.mark.parametrize("references", [None, []])
async def test_without_references_nothing_is_checked(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture, references: list[str] | None
) -> None:
    caplog.set_level(logging.INFO, "mle_star.finalization")
    quick_run.agents.reply("test", fenced(GOOD))
    result = await finalize(quick_run, references=references)
    assert result.contamination is None and quick_run.agents.calls("test-contamination") == []
    assert await check_contamination(BEST, references or []) is None
    assert any("contamination skipped" in line for line in lines_of(caplog, "INFO"))


@pytest.mark.req("REQ-FN-030", "REQ-FN-041")
@pytest.mark.parametrize(
    ("cost", "asked", "overall"), [(0.1, 3, "Same"), (0.5, 2, "Same"), (1.0, 1, None), (0.1, 0, None)]
)
async def test_with_a_money_limit_as_many_references_are_checked_as_can_be_paid(
    quick_path: Path, caplog: pytest.LogCaptureFixture, cost: float, asked: int, overall: str | None
) -> None:
    """The second reference is copied: what was found before the money ended counts."""
    config = settings(max_budget_usd=1.0)
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=config) as run:
        run.agents.reply("test", fenced(GOOD))
        verdicts = [AgentReply(text="", structured={"verdict": v}, cost_usd=cost) for v in ("Novel", "Same", "Novel")]
        run.agents.reply("test-contamination", *verdicts)
        if asked == 0:
            run.context.budget.charge(1.0, phase="phase2")
        result = await finalize(run, references=["one", "two", "three"])
        assert len(run.agents.calls("test-contamination")) == asked
    assert (result.contamination.verdict if result.contamination else None) == overall
    skipped = [line for line in lines_of(caplog, "WARNING") if line.startswith("contamination")]
    assert len(skipped) == (0 < asked < 3)


@pytest.mark.req("REQ-FN-029", "REQ-FN-031", "REQ-FN-033", "REQ-FN-041")
@pytest.mark.parametrize(
    ("verdicts", "overall"),
    [
        (["Novel"], "Novel"),
        (["Same"], "Same"),
        (["Novel", "Same", "Novel"], "Same"),
        (["Novel", "Novel"], "Novel"),
        (["Maybe"], None),
        (["Novel", "Maybe"], None),
        (["Maybe", "Same"], "Same"),
    ],
)
async def test_one_copy_is_enough(run: ScriptedRun, verdicts: list[str], overall: str | None) -> None:
    run.agents.reply("test-contamination", *({"verdict": verdict} for verdict in verdicts))
    references = [f"post {n}" for n in range(len(verdicts))]
    found = await check_contamination(BEST, references)
    assert (None if found is None else found.verdict) == overall
    prompts = [call.prompt for call in run.agents.calls("test-contamination")]
    assert len(prompts) == len(references)
    assert all(ref in prompt and SAMPLED in prompt for ref, prompt in zip(references, prompts, strict=True))


@pytest.mark.req("REQ-FN-026", "REQ-FN-027", "REQ-FN-029")
async def test_a_scorer_has_no_tools_and_two_words(run: ScriptedRun) -> None:
    await check_contamination(BEST, ["a post with {braces}"])
    [call] = run.agents.log
    assert call.agent is AgentType.test and call.config.tools is None
    assert call.config.to_output_format() == {
        "type": "json_schema", "schema": DataContaminationResult.model_json_schema()
    }  # fmt: skip
    assert all(words in call.prompt for words in ("a post with {braces}", SAMPLED, "`Novel`", "`Same`"))


@pytest.mark.req("REQ-FN-028")
async def test_blank_references_are_skipped(run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    found = await check_contamination(BEST, ["", "a post", " \n"])
    assert found is not None and found.verdict == "Novel" and len(run.agents.log) == 1
    assert any("blank references" in line for line in lines_of(caplog, "WARNING"))
    assert await check_contamination(BEST, [" "]) is None and len(run.agents.log) == 1
    for blank in ("", " \n"):
        assert await check_contamination(solution(blank), ["a post"]) is None and len(run.agents.log) == 1


@pytest.mark.req("REQ-FN-041")
@pytest.mark.parametrize("reply", ["{oops", "", "Novel, I think", AgentError("down", agent="test")])
async def test_an_unreadable_verdict_is_no_verdict(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture, reply: object
) -> None:
    quick_run.agents.reply("test", fenced(GOOD))
    quick_run.agents.reply("test-contamination", reply)
    result = await finalize(quick_run, references=["a post"])
    assert result.contamination is None and Path(result.submission_path).is_file()
    assert any(record.levelname == "WARNING" for record in caplog.records)


@pytest.mark.req("REQ-FN-032", "REQ-FN-036")
async def test_the_verdicts_are_logged_and_kept(quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mle_star.finalization")
    quick_run.agents.reply("test", fenced(GOOD))
    quick_run.agents.reply("test-contamination", {"verdict": "Novel"}, {"verdict": "Same"})
    result = await finalize(quick_run, references=["one", "two"])
    assert result.contamination == DataContaminationResult(verdict="Same")
    assert "contamination result: 2 references, Novel, Same, overall Same" in lines_of(caplog, "INFO")


# --- the rest of the specification -----------------------------------------------------------------------


@pytest.mark.req("REQ-FN-010", "REQ-FN-026", "REQ-FN-048")
def test_the_test_agent_is_set_up_as_specified() -> None:
    config = build_default_agent_configs()[AgentType.test]
    assert (config.tools, config.output_schema, config.model) == (["Read"], None, None)
    assert config.to_agent_definition()["description"]
    contamination = agent_config(AgentType.test, "contamination")
    assert (contamination.tools, contamination.output_schema) == (None, DataContaminationResult)
    assert agent_config(AgentType.test, "subsampling_extract").output_schema is None
    assert build_default_agent_configs()[AgentType.test] == config


@pytest.mark.req("REQ-FN-001", "REQ-FN-004", "REQ-FN-027")
def test_the_variants_have_their_figures() -> None:
    figures = {None: "25", "subsampling_extract": "26", "subsampling_remove": "27", "contamination": "28"}
    for variant, figure in figures.items():
        assert PromptRegistry().get(AgentType.test, variant).figure_ref.endswith(figure)


@pytest.mark.req("REQ-FN-037")
def test_finalization_itself_takes_no_time(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    quick_run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    result, waited, worked = measured(finalize(quick_run, references=["a post"] * 5))
    assert result.submission_path and waited == 0 and worked < 5


def story_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All that finalization has logged since the last time, without the seconds."""
    lines = [f"{r.levelname} {r.getMessage()}" for r in caplog.records if r.name == "mle_star.finalization"]
    caplog.clear()
    return [re.sub(r"[0-9.]+ s( in total)?", "_ s", line) for line in lines]


@pytest.mark.req("REQ-FN-042")
async def test_the_log_tells_a_submission_step_by_step(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    hiding = "try:\n    pass\nexcept:\n    pass\n" + GOOD
    quick_run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    quick_run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    quick_run.agents.reply("test", fenced(hiding))
    quick_run.agents.reply("test-contamination", {"verdict": "Novel"}, {"verdict": "Maybe"})
    result = await finalize(quick_run, references=["a post", "another", " "])
    assert story_of(caplog) == [
        f"INFO finalization start: phase refined, {len(SAMPLED)} characters, tiny-task",
        f"INFO extraction result: found: yes, block of {len(BLOCK)} characters",
        f"INFO removal result: {len(BLOCK)} characters became 17",
        f"INFO replacement result: done: yes, -{len(BLOCK) - 17} characters",
        "WARNING the test script may hide errors: line 3: a bare `except:` hides every error",
        "INFO verification: exists True, 18 bytes, 2 rows",
        "WARNING contamination: blank references are skipped",
        "INFO contamination start: 2 references",
        "INFO contamination result: 2 references, Novel, None, overall inconclusive",
        f"INFO result built: phase final, path {result.submission_path!r}, _ s",
    ]


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-FN-042")
async def test_the_log_tells_a_fall_back_step_by_step(quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    await keep(quick_run, script(0.7), "phase1", "candidate-0")
    in_the_way = quick_run.run_dir / "final" / "submission.csv"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir(parents=True)
    cuts_a_name = BLOCK[1:]
    quick_run.agents.reply("test-subsampling_extract", fenced(cuts_a_name))
    quick_run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    quick_run.agents.reply("test", fenced(broken_script("oh")))
    quick_run.agents.always("debugger", GARBAGE)
    result = await finalize(quick_run)
    kept = kept_submission(quick_run.context)
    assert kept is not None and result.submission_path == str(quick_run.run_dir / kept[1])
    story = story_of(caplog)
    assert story[2:4] == [
        f"INFO removal result: {len(cuts_a_name)} characters became 17",
        f"WARNING replacement result: done: no, block not found in the script: {cuts_a_name!r}",
    ]
    stays = next(line for line in story if line.startswith(f"ERROR the submission stays in {result.submission_path}: "))
    assert "Is a directory" in stays
    assert [line for line in story[4:] if line != stays] == [
        "WARNING repair: attempt 1 of 2, RuntimeError: oh",
        "WARNING repair: attempt 2 of 2, RuntimeError: oh",
        "WARNING fallback: no submission by a script of its own: RuntimeError: oh; "
        "the submission is the best one kept on the way, by a script with score 0.7; phase init, score 0.7",
        "INFO contamination skipped: no references",
        f"INFO result built: phase init, path {result.submission_path!r}, _ s",
    ]


@pytest.mark.req("REQ-FN-042")
async def test_the_log_tells_what_the_end_of_the_money_leaves(
    poor: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    poor.agents.reply("test", fenced(NO_FILE))
    poor.agents.always("debugger", fenced("x = 1"))
    result = await finalize(poor)
    assert result.warnings == ["no submission by a script of its own: no submission was written"]
    assert story_of(caplog) == [
        f"INFO finalization start: phase refined, {len(SAMPLED)} characters, tiny-task",
        "WARNING the money is gone: finalization makes two calls at most",
        "WARNING repair: attempt 1 of 1, FileNotFoundError: ./final/submission.csv missing or empty",
        "WARNING fallback: no submission by a script of its own: no submission was written; phase refined, score 0.8",
        "INFO contamination skipped: the money is gone",
        "INFO result built: phase refined, path '', _ s",
    ]


@pytest.mark.req("REQ-FN-044", "REQ-FN-009", "REQ-FN-019", "REQ-FN-033")
def test_everything_lives_in_one_module() -> None:
    wanted = {
        "remove_subsampling": ["solution"],
        "generate_test_submission": ["task", "solution"],
        "check_contamination": ["solution", "reference_discussions"],
    }
    for name, parameters in wanted.items():
        function = getattr(finalization, name)
        assert function.__module__ == "mle_star.finalization"
        assert list(inspect.signature(function).parameters) == parameters


async def test_the_submission_script_is_recorded_for_what_it_is(run: ScriptedRun) -> None:
    run.agents.reply("test", fenced(GOOD))
    await finalize(run)
    [event] = run.events(ScriptFinished)
    assert (event.purpose, event.step, event.result.is_error) == ("submission", "finalization/submission-script", False)


@pytest.mark.modes("usual")
@pytest.mark.parametrize(
    ("reply", "fixed", "said"),
    [
        ("No Data Leakage", "", []),
        ("Yes Data Leakage", "", [LEAKING_SOLUTION]),
        ("Yes Data Leakage", SAMPLED.replace(BLOCK, "level = 0"), [FIXED_AT_LAST]),
    ],
)
async def test_a_solution_that_the_end_came_upon_unchecked_is_checked_before_it_is_handed_over(
    run: ScriptedRun, reply: str, fixed: str, said: list[str]
) -> None:
    run.agents.reply("leakage-detection", {"answers": [{"leakage_status": reply, "code_block": "not in it"}]})
    run.agents.reply("leakage-rewrite", fenced(fixed) if fixed else "no")
    run.agents.reply("test-subsampling_extract", "There is no subsampling.")
    run.agents.reply("test", fenced(GOOD))
    config = settings(leakage_checks="promising")
    result = await finalize(run, config=config)
    assert [text for text in result.warnings if text in (LEAKING_SOLUTION, FIXED_AT_LAST, UNCHECKED)] == said
    asked = [call for call in run.agents.log if call.name == "test"]
    assert (fixed or SAMPLED) in asked[0].prompt
    detections = sum(call.name == "leakage-detection" for call in run.agents.log)
    again = await finalize(run, config=config)  # what was found clean is not asked about again
    assert detections == 1
    if not said:
        assert sum(call.name == "leakage-detection" for call in run.agents.log) == 1 and not again.warnings


async def test_a_solution_that_cannot_be_checked_any_more_is_handed_over_with_a_warning(run: ScriptedRun) -> None:
    with scope("phase2"):
        checked = await check_at_last(BEST, settings(leakage_checks="promising"), {BEST.content: 1.0})
    assert checked == (BEST, [UNCHECKED]) and run.agents.log == []
    assert await check_at_last(BEST, settings()) == (BEST, [])


async def test_what_is_handed_over_without_finalization_comes_with_all_that_was_said_of_it(
    quick_run: ScriptedRun,
) -> None:
    run, task, config = current_run(), quick_run.task, quick_run.config

    async def said_of(solution: SolutionScript) -> list[str]:
        result = await result_of_the_search(solution, task, config, phase1_of(BEST), [], None, reason="out of time")
        return result.warnings[:-1]

    assert await said_of(BEST) == []
    assert await said_of(BEST.model_copy(update={"leaking": True})) == [LEAKING_SOLUTION]
    config = config.model_copy(update={"leakage_checks": "promising"})
    assert await said_of(BEST) == [UNCHECKED], "the end came before the last check"
    run.shared.search.remarks = [FIXED_AT_LAST]
    assert await said_of(BEST) == [FIXED_AT_LAST]
    check(run, BEST.content, leaking=True)
    assert await said_of(BEST) == [LEAKING_SOLUTION]
