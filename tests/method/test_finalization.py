"""Finalization: subsampling, the test script, its submission, contamination; with real scripts in the real harness."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mle_star import finalization as fn
from mle_star import models as m
from mle_star.errors import AgentError, BudgetExceeded
from mle_star.execution import evaluate_solution
from mle_star.run.context import current_run, enter_run, scope
from mle_star.run.events import AgentReply, DebugAttempted, ScriptFinished, ScriptStarted, SubmissionKept
from mle_star.safety import FIXED_AT_LAST, UNCHECKED, clean_at_last
from mle_star.search.stages import Stages
from tests.conftest import Logs, best_score, check
from tests.method.conftest import ScriptedExecutor, ScriptedRun, account_as_kept, quick, scripted_run, settings
from tests.pipeline.clock import in_its_own_time

from .replies import BOTH, GARBAGE, NO_LEAKAGE, ScriptedCall, broken_script, fenced, leaky, phase1_of, script, solution

SAMPLED = "rows = list(range(9))\nrows = rows[:5]  # subsample\nlevel = len(rows)\n" + script(0.8)
BLOCK = "rows = rows[:5]  # subsample\nlevel = len(rows)"
FULL = SAMPLED.replace(BLOCK, "level = len(rows)")
OUT_OF_TIME = BudgetExceeded(limit="time", message="out of time")
BEST = solution(SAMPLED, score=0.8, phase=m.SolutionPhase.refined)
NO_FILE = "print('Final Validation Performance: 0.9')"


def writer(text: str, *, note: str = "") -> str:
    return f"# {note}\nfrom pathlib import Path\nPath('final/submission.csv').write_text({text!r})"


GOOD = writer("id,target\n1,0\n2,1\n", note="good")


async def finalize(run: ScriptedRun, best: m.SolutionScript = BEST, **more: Any) -> m.FinalResult:
    config, references = more.pop("config", run.config), more.pop("references", None)
    return await fn.run_finalization(best, run.task, config, phase1_of(best), [], None, references, **more)


@BOTH
@pytest.mark.req("REQ-FN-001", "REQ-FN-002", "REQ-FN-003", "REQ-FN-004", "REQ-FN-005", "REQ-FN-006", "REQ-FN-007")
@pytest.mark.req("REQ-FN-008", "REQ-FN-009", "REQ-FN-038", "REQ-FN-039")
@pytest.mark.parametrize(
    ("content", "found", "rewritten", "wanted"),
    [
        (SAMPLED, fenced(BLOCK), fenced("level = len(rows)"), FULL),
        ("A = 1\ndf = df.sample(3000)\nB = 2", fenced("df = df.sample(3000)\nB = 2"), fenced("B = 2"), "A = 1\nB = 2"),
        ("A = 1\ndf = df.sample(9)\nB = 2", fenced("df = df.sample(9)\n"), "```python\n```", "A = 1\n\nB = 2"),
        ("def f(d):\n    d = d.sample(9)\n    return d\n", fenced("    d = d.sample(9)"), fenced("d = d"),
         "def f(d):\n    d = d\n    return d\n"),
        ("A = 1\ndf = df[:9]  \nB = 2", fenced("df = df[:9]  \nB = 2"), fenced("B = 2"), "A = 1\nB = 2"),
        (SAMPLED, fenced(BLOCK), fenced("level = ("), None),  # it would no longer compile
        (SAMPLED, fenced(BLOCK), GARBAGE, None),
        # no block of the script: nobody is asked to rewrite it
        ("A = 1\ndf = df[:9]  \nB = 2", fenced("df = df[:9]\nB = 2"), "", None),
        *((SAMPLED, reply, "", None) for reply in (
            "There is no subsampling.", "The script does not subsample.", "None.", "```\n```", "", GARBAGE,
            fenced("rows  =  rows[:5]"), fenced("x" * 900), fenced(BLOCK.replace("\n", "  \n")), fenced(f"{BLOCK} "),
        )),
        ("", None, "", None), (" \n", None, "", None),  # nothing is asked of an empty script
    ],
)  # fmt: skip
async def test_the_block_that_cuts_rows_is_rewritten_where_the_script_holds_it(
    content: str, found: str | None, rewritten: str, wanted: str | None, quick_run: ScriptedRun,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    given = solution(content, score=0.8).model_copy(update={"source_model": "ridge", "is_executable": False})
    before, agents = given.model_dump(), quick_run.agents
    agents.reply("test-subsampling_extract", found)
    agents.reply("test-subsampling_remove", rewritten)
    full = await fn.remove_subsampling(given)
    assert (full is given) if wanted is None else (full == given.model_copy(update={"content": wanted}))
    assert agents.names == FIRST[: 0 if found is None else 2 if rewritten else 1] and given.model_dump() == before
    assert all(content in call.prompt for call in agents.log[:1])
    unusable = GARBAGE in (found, rewritten) or (bool(found) and not rewritten and "```python" in str(found))
    shown = [line for line in caplog.messages if "unusable reply of test" in line]
    assert bool(shown) == unusable and max(map(len, shown), default=0) < 300, "its head, also to the letter"
    if wanted == FULL:
        assert BLOCK in agents.log[1].prompt and "rows = list" not in agents.log[1].prompt


@BOTH
@pytest.mark.req("REQ-FN-015", "REQ-FN-030", "REQ-FN-032", "REQ-FN-034", "REQ-FN-035", "REQ-FN-036", "REQ-FN-042")
@pytest.mark.req("REQ-SF-022")
async def test_the_steps_follow_one_another_and_the_result_holds_everything(run: ScriptedRun, caplog: Logs) -> None:
    run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    run.agents.reply("test", fenced(GOOD))
    best: dict[str, Any] = {"best_solution": BEST, "best_score": 0.8}
    phase2 = [m.Phase2Result(ablation_summaries=["s"], refined_blocks=[], step_history=[], **best)]
    plans: dict[str, Any] = {"ensemble_plans": ["p"], "ensemble_scores": [0.8]}
    phase3 = m.Phase3Result(input_solutions=[BEST], best_ensemble=BEST, best_ensemble_score=0.8, **plans)
    phase1, began = phase1_of(BEST), time.monotonic() - 100
    known: dict[str, Any] = {"started_at": began, "total_cost_usd": 1.25}
    result = await fn.run_finalization(BEST, run.task, run.config, phase1, phase2, phase3, ["a post"], **known)
    _, _, test, checked, compared = (call.prompt for call in run.agents.log)
    assert FULL in test and GOOD in checked
    assert GOOD in compared and SAMPLED not in compared and FULL not in compared, "the script that is submitted"
    (event,) = run.events(ScriptFinished)
    assert (event.purpose, event.step, event.result.is_error) == ("submission", "finalization/submission-script", False)
    assert run.executor.scripts == [GOOD]
    path = Path(result.submission_path)
    assert path.is_absolute() and path == (run.run_dir / "final" / "submission.csv").absolute()
    assert path.read_text() == "id,target\n1,0\n2,1\n"
    final = result.final_solution
    assert (final.content, final.phase, final.score) == (GOOD, m.SolutionPhase.final, 0.8), "the score of the search"
    assert 100 <= result.total_duration_seconds < 340
    facts = {"subsampling_removed": True, "rows": 2, "problems": 0, "sample": "sample_submission.csv"}
    assert result == m.FinalResult(
        task=run.task, config=run.config, phase1=phase1, phase2_results=phase2, phase3=phase3, final_solution=final,
        submission_path=str(path), total_duration_seconds=result.total_duration_seconds, total_cost_usd=1.25,
        lineage={"finalization": facts}, contamination=m.DataContaminationResult(verdict="Novel"),
    )  # fmt: skip
    account_as_kept("finalization", run, caplog.records)


@BOTH
@pytest.mark.req("REQ-FN-020", "REQ-FN-023", "REQ-FN-024", "REQ-FN-025", "REQ-FN-036", "REQ-FN-040")
@pytest.mark.parametrize(("test", "limit", "runs"), [(fenced(NO_FILE), 1, 2), (fenced(NO_FILE), 4, 5), (GARBAGE, 2, 2)])
async def test_crashes_and_missing_files_share_one_limit(run: ScriptedRun, test: str, limit: int, runs: int) -> None:
    """Each runs at full length, in a folder without what an earlier script or process has left."""
    (run.run_dir / "final").mkdir()
    for folder in (run.work_dir, run.run_dir):
        (folder / "final" / "submission.csv").write_text("of an earlier script or process")
    run.agents.reply("test", test)
    run.agents.reply("debugger", *fenced(*(f"{NO_FILE} # {n}" if n % 2 else broken_script(f"{n}") for n in range(9))))
    more = {"script_timeout_seconds": 5}  # that one is for searching
    result = await finalize(run, config=settings(time_limit_seconds=1234, max_debug_attempts=limit, **more))
    steps = [call.step for call in run.agents.log if call.agent == "debugger"]
    assert len(steps) == limit == len(run.events(DebugAttempted))
    assert [(e.timeout_seconds, e.purpose) for e in run.events(ScriptStarted)] == [(1234, "submission")] * runs
    assert [request.timeout_seconds for request in run.executor.requests] == [1234] * runs
    assert result.final_solution == BEST and result.final_solution.phase == m.SolutionPhase.refined
    assert result.submission_path == "" and not (run.run_dir / "final" / "submission.csv").exists()
    last = "no submission was written" if limit % 2 == 0 else f"RuntimeError: {limit - 1}"
    assert result.warnings == [f"no submission by a script of its own: {last}"]
    assert (result.total_cost_usd, result.contamination) == (None, None) and result.total_duration_seconds < 240


MISSING = "FileNotFoundError: ./final/submission.csv missing or empty"
EXITS = ("quit()", "exit()", "import sys; sys.exit(0)", "import os; os._exit(0)")


@pytest.mark.req("REQ-FN-021", "REQ-FN-023", "REQ-FN-040", "REQ-FN-046")
@pytest.mark.parametrize(
    ("reply", "words", "runs"),
    [
        (fenced(writer("")), [writer(""), MISSING], 2),
        (fenced(NO_FILE), [NO_FILE, MISSING], 2),
        (fenced(broken_script("in the test script")), ["RuntimeError: in the test script"], 2),
        (fenced("while True print(1)"), ["while True print(1)", "SyntaxError"], 2),
        *((fenced(f"{GOOD}\n{call}"), [call, "which would end the run"], 1) for call in EXITS),
        *((reply, [FULL, MISSING], 1) for reply in (GARBAGE, "", AgentError("down", agent="test"))),
    ],
)
async def test_a_missing_submission_is_debugged(reply: object, words: list[str], runs: int, run: ScriptedRun) -> None:
    run.agents.reply("test-subsampling_extract", fenced(BLOCK))
    run.agents.reply("test-subsampling_remove", fenced("level = len(rows)"))
    run.agents.reply("test", reply)
    run.agents.reply("debugger", fenced(GOOD))
    result = await finalize(run)
    [call] = run.agents.calls("debugger-submission")
    assert [text for text in words if text not in call.prompt] == [] and "{final_validation_score}" not in call.prompt
    assert Path(result.submission_path).is_file() and result.final_solution.content == GOOD
    assert run.executor.scripts[-1] == GOOD and len(run.executor.scripts) == runs
    assert "exit()" in run.agents.calls("test")[0].prompt


@BOTH
@pytest.mark.req("REQ-FN-022", "REQ-FN-018", "REQ-FN-047")
@pytest.mark.parametrize(
    ("text", "warning"),
    [("id,target\n", "no rows"), ("id,target\n1,0\n", "1 rows"), ("key,target\n1,0\n2,1\n", "columns are")],
)
async def test_an_odd_file_is_a_warning_and_never_more(run: ScriptedRun, text: str, warning: str, caplog: Logs) -> None:
    run.agents.reply("test", fenced(f"{writer(text)}\ntry:\n    pass\nexcept:\n    pass"))  # that is odd as well
    result = await finalize(run)
    assert Path(result.submission_path).read_text() == text and run.agents.calls("debugger-submission") == []
    assert any(warning in line for line in result.warnings) and "the script may hide errors: line" in caplog.text
    facts = {"subsampling_removed": False, "rows": text.count("\n") - 1, "problems": len(result.warnings)}
    assert result.lineage == {"finalization": facts}


async def keep(run: ScriptedRun, content: str, *place: str) -> None:
    """Evaluate a script somewhere in the run; the harness keeps what it leaves."""
    with scope(*place):
        await evaluate_solution(solution(content), run.task, run.config)


async def test_what_test_scripts_print_is_no_score_and_a_kept_submission_is_used(quick_run: ScriptedRun) -> None:
    best = solution(script(0.7), score=0.7, phase=m.SolutionPhase.refined)
    await keep(quick_run, best.content, "phase2", "path-0")
    quick_run.agents.reply("test", fenced(script(0.999)), fenced(broken_script()))
    quick_run.agents.always("debugger", GARBAGE)
    first, second = await finalize(quick_run), await finalize(quick_run, best)
    assert best_score(quick_run.context) == 0.7 and first.final_solution.score == 0.8
    assert second.final_solution == best and Path(second.submission_path).is_file()
    assert second.lineage == {"finalization": {"subsampling_removed": False, "fallback": True}}
    assert second.warnings == [
        "no submission by a script of its own: RuntimeError: broken",
        "the submission is the best one kept on the way, by a script with score 0.7",
    ]


FIRST = ["test-subsampling_extract", "test-subsampling_remove"]


@pytest.mark.parametrize(
    ("limit", "spent", "cost", "cuts", "test", "names", "most"),
    [
        (10.0, 10.0, 0.0, False, GOOD, ["test"], 0.5),  # 5 % of the budget
        (10.0, 10.0, 0.4, False, broken_script(), ["test", "debugger-submission"], 0.5),  # then what was kept
        (1.0, 0.0, 0.6, True, GOOD, [*FIRST, "test"], 0.05),  # what was paid for is used
        (1.0, 0.0, 0.6, False, GOOD, [FIRST[0], "test"], 0.4),  # it is run, and not asked for again
    ],
)
async def test_with_the_money_gone_the_test_script_and_one_repair_are_all_that_is_asked_for(
    limit: float, spent: float, cost: float, cuts: bool, test: str, names: list[str], most: float, quick_path: Path
) -> None:
    with quick(quick_path, max_budget_usd=limit) as run:
        run.agents.cost_usd = cost
        await keep(run, script(0.7), "phase1", "candidate-0")
        run.context.budget.charge(spent, "phase2")
        run.agents.reply("test-subsampling_extract", fenced(BLOCK) if cuts else "There is no subsampling.")
        run.agents.reply("test-subsampling_remove", fenced("rows = everything"))
        run.agents.reply("test", fenced(test))
        run.agents.always("debugger", fenced(broken_script("again")))
        result, call = await finalize(run, references=["a post"]), run.agents.calls("test")[0]
        assert run.agents.names == names and call.max_cost_usd == pytest.approx(most)
        assert ("rows = everything" in call.prompt) == cuts == (BLOCK not in call.prompt)
        assert run.context.budget.spent.usd == pytest.approx(spent + cost * len(names))
    assert result.contamination is None and Path(result.submission_path).is_file()
    assert result.final_solution.content == (GOOD if test == GOOD else script(0.7))
    assert result.lineage["finalization"]["subsampling_removed"] is cuts


@BOTH
@pytest.mark.parametrize(("kept", "spent"), [(True, 0.0), (False, 0.0), (False, 10.0)])
async def test_after_the_deadline_only_what_was_kept_is_submitted(
    quick_path: Path, kept: bool, spent: float, caplog: pytest.LogCaptureFixture
) -> None:
    now, config = 0.0, settings(max_budget_usd=10.0)
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=config, clock=lambda: now) as run:
        if kept:
            await keep(run, script(0.7), "phase1", "candidate-0")
        now = 4000.0  # the limit is 3600
        run.context.budget.charge(spent, "phase2")
        result = await finalize(run, references=["a post"])
        assert run.agents.log == [] and result.contamination is None
    assert bool(result.submission_path) == kept and (kept or result.final_solution == BEST)
    assert not kept or Path(result.submission_path).is_file()
    assert result.warnings[0] == "no submission by a script of its own: time spent: 4000 of 3600 s"
    assert "finalization was cut short: time spent: 4000 of 3600 s" in caplog.messages


async def test_what_cannot_be_put_in_place_stays(quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    (quick_run.run_dir / "final").write_text("in the way")
    quick_run.agents.reply("test", fenced(GOOD))
    left = quick_run.work_dir / "final" / "submission.csv"
    assert (await finalize(quick_run)).submission_path == str(left)
    assert any(line.startswith(f"the submission stays in {left}: [Errno ") for line in caplog.messages)


async def test_a_run_that_is_cut_off_after_its_submission_keeps_it(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("test", fenced(GOOD))
    begun = asyncio.Event()

    async def hang(call: ScriptedCall) -> str:
        begun.set()
        await asyncio.sleep(60)
        return ""

    quick_run.agents.reply("test-contamination", {"verdict": "Same"})
    quick_run.agents.always("test-contamination", hang)
    work = asyncio.create_task(finalize(quick_run, references=["a post", "another"]))
    await asyncio.wait_for(begun.wait(), 120)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    submitted = await fn.use_kept_submission(BEST, reason="out of time")
    assert submitted.script.content == GOOD and Path(submitted.path).read_text() == "id,target\n1,0\n2,1\n"
    found: fn.PhaseResults = (phase1_of(BEST), [], None)
    result = await fn.result_of_the_search(BEST, found, OUT_OF_TIME, None)
    assert result.final_solution.content == GOOD and result.contamination == m.DataContaminationResult(verdict="Same")


async def test_a_large_kept_submission_is_copied_beside_the_event_loop(quick_run: ScriptedRun) -> None:
    run = current_run()
    with (run.run_dir / "large.csv").open("wb") as file:
        file.truncate(1 << 26)
    run.record(SubmissionKept(step="s", path="final/best_submission.csv", source="large.csv", rows=1, score=0.7))
    submitting, turns = asyncio.create_task(fn.use_kept_submission(BEST, reason="out of time")), 0
    while not submitting.done():
        await asyncio.sleep(0)
        turns += 1
    assert Path((await submitting).path).stat().st_size == 1 << 26
    assert turns > 20, "nothing else could happen meanwhile"


@in_its_own_time
async def test_what_the_last_script_has_left_is_submitted_beyond_the_limit(quick_run: ScriptedRun) -> None:
    async def late() -> str:
        await asyncio.sleep(3)
        return "done"

    stages = Stages(quick_run.context)
    assert await stages.within(1, late(), "finalization") == "done"
    with pytest.raises(BudgetExceeded):
        await stages.within(1, late(), "phase3")
    started = ScriptStarted(step="finalization/script", purpose="submission", timeout_seconds=1.0)
    quick_run.context.journal.record(started)
    with pytest.raises(BudgetExceeded):
        await stages.within(1, late(), "finalization")


THREE = ["one", "two", "three"]


@BOTH
@pytest.mark.req("REQ-FN-028", "REQ-FN-029", "REQ-FN-030", "REQ-FN-031", "REQ-FN-033", "REQ-FN-041")
@pytest.mark.parametrize(
    ("references", "verdicts", "cost", "overall"),
    [
        (["one"], ["Novel"], 0.0, "Novel"), (["one"], ["Same"], 0.0, "Same"), (["one"], ["Maybe"], 0.0, None),
        (THREE, ["Novel", "Same", "Novel"], 0.1, "Same"), (["one", "two"], ["Novel", "Novel"], 0.0, "Novel"),
        (["one", "two"], ["Novel", "Maybe"], 0.0, None), (["one", "two"], ["Maybe", "Same"], 0.0, "Same"),
        (["", "a post", " \n"], ["Novel"], 0.0, "Novel"), ([" "], [], 0.0, None), ([], [], 0.0, None),  # blank: skipped
        # as many are checked as can be paid; what was found before the money ended counts
        (THREE, ["Novel", "Same"], 0.5, "Same"), (THREE, ["Novel"], 1.0, None), (THREE, [], 9.0, None),
    ],
)  # fmt: skip
async def test_one_copy_is_enough_among_as_many_references_as_can_be_paid(
    quick_path: Path, references: list[str], verdicts: list[str], cost: float, overall: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with quick(quick_path, max_budget_usd=1.0) as run:
        run.agents.reply("test", fenced(GOOD))
        answers = [AgentReply(text="", structured={"verdict": verdict}, cost_usd=cost) for verdict in verdicts]
        run.agents.reply("test-contamination", *answers)
        if cost > 1:
            run.context.budget.charge(1.0, "phase2")
        result = await finalize(run, references=references)
        assert (None if result.contamination is None else result.contamination.verdict) == overall
        given = list(filter(str.strip, references))
        prompts = [call.prompt for call in run.agents.calls("test-contamination")]
        assert all(reference in prompt and GOOD in prompt for prompt, reference in zip(prompts, given, strict=False))
        assert ("contamination: blank references are skipped" in caplog.messages) == (given != references)
        assert ("contamination skipped: money spent: 1 of 1" in caplog.messages) == (cost in (0.5, 1.0))
        if verdicts:
            found = [None if verdict == "Maybe" else verdict for verdict in verdicts]
            words = ", ".join(map(str, found + [None] * (len(given) - len(found))))
            line = f"contamination result: {len(given)} references, {words}, overall {overall or 'inconclusive'}"
            assert line in caplog.messages
        for blank in ("", " \n"):
            assert await fn.check_contamination(solution(blank), ["a post"]) is None
        assert len(run.agents.calls("test-contamination")) == len(verdicts)


CLEAN = SAMPLED.replace(BLOCK, "level = 0")


@pytest.mark.parametrize(("fixed", "remarks"), [("", []), ("", [fn.LEAKING_SOLUTION]), (CLEAN, [FIXED_AT_LAST])])
async def test_an_unchecked_solution_is_checked_at_last(quick_run: ScriptedRun, fixed: str, remarks: list[str]) -> None:
    agents, config = quick_run.agents, settings(leakage_checks="promising")
    agents.reply("leakage-detection", leaky("not in it") if remarks else NO_LEAKAGE)
    agents.reply("leakage-rewrite", fenced(fixed) if fixed else "no")
    agents.reply("test", fenced(GOOD))
    result = await finalize(quick_run, config=config)
    assert [text for text in result.warnings if text in (fn.LEAKING_SOLUTION, FIXED_AT_LAST, UNCHECKED)] == remarks
    assert (fixed or SAMPLED) in agents.calls("test")[0].prompt and agents.names.count("leakage-detection") == 1
    if not remarks:
        again = await finalize(quick_run, config=config)  # what was found clean is not asked about again
        assert agents.names.count("leakage-detection") == 1 and not again.warnings


async def test_what_is_submitted_without_finalization_has_all_that_was_said_of_it(quick_run: ScriptedRun) -> None:
    run, config = current_run(), quick_run.config

    async def warnings_of(solution: m.SolutionScript) -> list[str]:
        found: fn.PhaseResults = (phase1_of(BEST), [], None)
        with enter_run(replace(run, config=config)):
            return (await fn.result_of_the_search(solution, found, OUT_OF_TIME, None)).warnings[:-1]

    assert await warnings_of(BEST) == []
    config = config.model_copy(update={"leakage_checks": "promising"})
    assert await warnings_of(BEST) == [UNCHECKED], "the end came before the last check"
    with enter_run(replace(run, config=config)):
        assert (await clean_at_last(BEST, [SAMPLED], []))[1] == [UNCHECKED], "members are not asked about any more"
    run.shared.ending.remarks = [FIXED_AT_LAST]
    assert await warnings_of(BEST) == [FIXED_AT_LAST]
    check(run, BEST.content, leaking=True)
    assert await warnings_of(BEST) == [fn.LEAKING_SOLUTION]
