"""Finalization: subsampling, the test script, its submission, contamination; with real scripts in the real harness."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from mle_star.errors import AgentError
from mle_star.execution import evaluate_solution
from mle_star.finalization import (
    LEAKING_SOLUTION,
    PhaseResults,
    check_contamination,
    remove_subsampling,
    result_of_the_search,
    run_finalization,
    use_kept_submission,
)
from mle_star.models import (
    DataContaminationResult,
    FinalResult,
    Phase1Result,
    Phase2Result,
    Phase3Result,
    RetrievedModel,
    SolutionPhase,
    SolutionScript,
)
from mle_star.run.context import current_run, scope
from mle_star.run.events import AgentFinished, AgentReply, DebugAttempted, ScriptFinished, ScriptStarted, SubmissionKept
from mle_star.safety import FIXED_AT_LAST, UNCHECKED
from tests.ledgers import best_score, check
from tests.method.conftest import (
    GARBAGE,
    ScriptedCall,
    ScriptedExecutor,
    ScriptedRun,
    broken_script,
    fenced,
    script,
    scripted_run,
    settings,
    solution,
)

pytestmark = pytest.mark.modes("delivered", "letter")

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


@pytest.mark.req("REQ-FN-001", "REQ-FN-003", "REQ-FN-004", "REQ-FN-005", "REQ-FN-007", "REQ-FN-009", "REQ-FN-038")
async def test_the_block_that_cuts_rows_is_found_and_rewritten(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    quick_run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    best = BEST.model_copy(update={"source_model": "ridge", "is_executable": False, "leaking": True})
    before = best.model_dump()
    full = await remove_subsampling(best)
    assert full == best.model_copy(update={"content": FULL}) and best.model_dump() == before
    extract, remove = quick_run.agents.log
    assert SAMPLED in extract.prompt and BLOCK in remove.prompt and "rows = list" not in remove.prompt


@pytest.mark.req("REQ-FN-002", "REQ-FN-003", "REQ-FN-005", "REQ-FN-008", "REQ-FN-038", "REQ-FN-039")
@pytest.mark.parametrize(
    "reply",
    [
        "There is no subsampling.", "The script does not subsample.", "None.", "```\n```", "", GARBAGE,
        fenced("rows  =  rows[:5]"), fenced("x" * 900), fenced(BLOCK.replace("\n", "  \n")), fenced(f"{BLOCK} "),
    ],
)  # fmt: skip
async def test_without_a_block_of_the_script_nothing_is_removed(quick_run: ScriptedRun, reply: str) -> None:
    for content in ("", " \n"):
        blank = solution(content)
        assert await remove_subsampling(blank) is blank and quick_run.agents.log == []
    quick_run.agents.reply("test-subsampling_extract", reply)
    assert await remove_subsampling(BEST) is BEST
    assert quick_run.agents.names == ["test-subsampling_extract"]


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
        (SAMPLED, BLOCK, fenced("level = ("), SAMPLED),  # it would no longer compile
    ],
)  # fmt: skip
async def test_the_new_block_takes_the_place_of_the_old_one(
    quick_run: ScriptedRun, content: str, block: str, reply: str, wanted: str | None
) -> None:
    quick_run.agents.reply("test-subsampling_extract", fenced(block))
    quick_run.agents.reply("test-subsampling_remove", reply)
    full = await remove_subsampling(solution(content))
    assert full.content == (content.replace(block.rstrip("\n"), "") if wanted is None else wanted)


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
    assert result.total_duration_seconds < 240 and result.total_cost_usd is None
    (event,) = run.events(ScriptFinished)
    assert (event.purpose, event.step, event.result.is_error) == ("submission", "finalization/submission-script", False)
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
    began, task, config = time.monotonic() - 100, quick_run.task, quick_run.config
    result = await run_finalization(BEST, task, config, phase1, phase2, phase3, started_at=began, total_cost_usd=1.25)
    assert (result.task, result.config, result.phase1) == (quick_run.task, quick_run.config, phase1)
    assert (result.phase2_results, result.phase3) == (phase2, phase3)
    assert (result.final_solution.content, result.final_solution.phase) == (GOOD, SolutionPhase.final)
    assert result.final_solution.score == 0.8, "the score that was validated"
    assert 100 <= result.total_duration_seconds < 340 and result.total_cost_usd == 1.25
    assert result.contamination is None and result.warnings == []


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


@pytest.mark.modes("delivered")
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


@pytest.mark.modes("delivered")
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
async def test_when_nothing_helps_the_validated_script_comes_back(run: ScriptedRun) -> None:
    run.agents.reply("test", fenced(broken_script("hopeless")))
    run.agents.always("debugger", fenced(broken_script("still hopeless")))
    (run.run_dir / "final").mkdir()
    (run.run_dir / "final" / "submission.csv").write_text("of an earlier process")
    result = await finalize(run)
    assert result.final_solution == BEST and result.final_solution.phase == SolutionPhase.refined
    assert result.submission_path == "" and not (run.run_dir / "final" / "submission.csv").exists()
    assert result.warnings == ["no submission by a script of its own: RuntimeError: still hopeless"]


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-FN-040")
@pytest.mark.parametrize("reply", [GARBAGE, "", AgentError("down", agent="test")])
async def test_without_a_test_script_the_debugger_makes_one(quick_run: ScriptedRun, reply: object) -> None:
    quick_run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    quick_run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    quick_run.agents.reply("test", reply)
    quick_run.agents.reply("debugger", fenced(GOOD + "\nprint(open('input/test.csv').read())"))
    result = await finalize(quick_run)
    [call] = quick_run.agents.calls("debugger-submission")
    assert FULL in call.prompt and "submission.csv missing or empty" in call.prompt
    assert result.final_solution.content.startswith(GOOD) and Path(result.submission_path).is_file()
    quick_run.agents.reply("test", reply)
    quick_run.agents.always("debugger", GARBAGE)
    result = await finalize(quick_run, solution(NO_FILE, score=0.8), config=settings(max_debug_attempts=2))
    assert len(quick_run.agents.calls("debugger-submission")) == 1 + 2, "it uses up one attempt"
    assert result.submission_path == "" and result.final_solution.content == NO_FILE


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-FN-046")
@pytest.mark.parametrize("call", ["quit()", "exit()", "import sys; sys.exit(0)", "import os; os._exit(0)"])
async def test_a_script_that_ends_itself_goes_to_the_debugger(run: ScriptedRun, call: str) -> None:
    run.agents.reply("test", fenced(f"{GOOD}\n{call}"))
    run.agents.reply("debugger", fenced(GOOD))
    result = await finalize(run)
    assert Path(result.submission_path).is_file() and run.executor.scripts == [GOOD]
    assert "which would end the run" in run.agents.calls("debugger-submission")[0].prompt
    assert "exit()" in run.agents.calls("test")[0].prompt


async def keep(run: ScriptedRun, content: str, *place: str) -> None:
    """Evaluate a script somewhere in the run; the harness keeps what it leaves."""
    with scope(*place):
        await evaluate_solution(solution(content), run.task, run.config)


@pytest.mark.modes("delivered")
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


@pytest.mark.modes("delivered")
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
async def test_after_the_deadline_only_what_was_kept_is_submitted(quick_path: Path, kept: bool) -> None:
    now = 0.0
    with scripted_run(quick_path, executor=ScriptedExecutor(), clock=lambda: now) as run:
        if kept:
            await keep(run, script(0.7), "phase1", "candidate-0")
        now = 4000.0  # the limit is 3600
        result = await finalize(run, references=["a post"])
        assert run.agents.log == [] and result.contamination is None
    assert Path(result.submission_path).is_file() if kept else result.submission_path == ""
    assert result.warnings[0] == "no submission by a script of its own: time spent: 4000 of 3600 s"


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
    found: PhaseResults = (phase1_of(BEST), [], None)
    result = await result_of_the_search(BEST, quick_run.task, quick_run.config, found, reason="out of time")
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


@pytest.mark.req("REQ-FN-030", "REQ-FN-033")
@pytest.mark.parametrize("references", [None, []])
async def test_without_references_nothing_is_checked(quick_run: ScriptedRun, references: list[str] | None) -> None:
    quick_run.agents.reply("test", fenced(GOOD))
    result = await finalize(quick_run, references=references)
    assert result.contamination is None and quick_run.agents.calls("test-contamination") == []
    assert await check_contamination(BEST, references or []) is None


@pytest.mark.req("REQ-FN-030", "REQ-FN-041")
@pytest.mark.parametrize(
    ("cost", "asked", "overall"), [(0.1, 3, "Same"), (0.5, 2, "Same"), (1.0, 1, None), (0.1, 0, None)]
)
async def test_with_a_money_limit_as_many_references_are_checked_as_can_be_paid(
    quick_path: Path, cost: float, asked: int, overall: str | None
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
async def test_one_copy_is_enough(quick_run: ScriptedRun, verdicts: list[str], overall: str | None) -> None:
    quick_run.agents.reply("test-contamination", *({"verdict": verdict} for verdict in verdicts))
    references = [f"post {n}" for n in range(len(verdicts))]
    found = await check_contamination(BEST, references)
    assert (None if found is None else found.verdict) == overall
    prompts = [call.prompt for call in quick_run.agents.calls("test-contamination")]
    assert len(prompts) == len(references)
    assert all(ref in prompt and SAMPLED in prompt for ref, prompt in zip(references, prompts, strict=True))


@pytest.mark.req("REQ-FN-028")
async def test_blank_references_are_skipped(quick_run: ScriptedRun) -> None:
    found = await check_contamination(BEST, ["", "a post", " \n"])
    assert found is not None and found.verdict == "Novel" and len(quick_run.agents.log) == 1
    assert await check_contamination(BEST, [" "]) is None and len(quick_run.agents.log) == 1
    for blank in ("", " \n"):
        assert await check_contamination(solution(blank), ["a post"]) is None and len(quick_run.agents.log) == 1


@pytest.mark.modes("delivered")
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


async def test_what_is_handed_over_without_finalization_comes_with_all_that_was_said_of_it(
    quick_run: ScriptedRun,
) -> None:
    run, task, config = current_run(), quick_run.task, quick_run.config

    async def said_of(solution: SolutionScript) -> list[str]:
        found: PhaseResults = (phase1_of(BEST), [], None)
        result = await result_of_the_search(solution, task, config, found, reason="out of time")
        return result.warnings[:-1]

    assert await said_of(BEST) == []
    assert await said_of(BEST.model_copy(update={"leaking": True})) == [LEAKING_SOLUTION]
    config = config.model_copy(update={"leakage_checks": "promising"})
    assert await said_of(BEST) == [UNCHECKED], "the end came before the last check"
    run.shared.progress.remarks = [FIXED_AT_LAST]
    assert await said_of(BEST) == [FIXED_AT_LAST]
    check(run, BEST.content, leaking=True)
    assert await said_of(BEST) == [LEAKING_SOLUTION]
