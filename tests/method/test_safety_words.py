"""What the safety agents say in the log and in the journal, to the word, and under which step."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mle_star.basics.texts import digest_of
from mle_star.errors import AgentError
from mle_star.models import AgentType, EvaluationResult, SolutionPhase
from mle_star.prompts import FACTS_HEADING, PromptRegistry, render
from mle_star.run.context import scope
from mle_star.run.events import LEAKS, AgentFinished, DebugAttempted, LeakageChecked, ScriptPurpose
from mle_star.run.request import ask_agent, try_agent, warn_unusable
from mle_star.run.search import Trial
from mle_star.safety import (
    FIXED_AT_LAST,
    SCORE_LINE,
    SCORE_TEXT,
    UNANSWERED,
    UNCHECKED,
    check_and_evaluate,
    check_and_fix_leakage,
    check_at_last,
    check_data_usage,
    debug_solution,
    fall_back,
    make_debug_callback,
    synthetic_traceback,
    with_score_line,
)
from tests.ledgers import check

from .conftest import NO_LEAKAGE, ScriptedRun, broken_script, fenced, leaky, script, settings, solution
from .loops import assert_says, log_of

TRACEBACK = "Traceback (most recent call last):\n  File 'x', line 1\nRuntimeError: broken"
UNSAID = "'Final Validation Performance'\nn = 1  # Final Validation Performance"
WARNING = logging.WARNING


@pytest.mark.req("REQ-SF-007")
@pytest.mark.parametrize(
    ("purpose", "name"),
    [("solution", "debugger"), ("ablation", "debugger-ablation"), ("submission", "debugger-submission")],
)
async def test_a_repair_is_an_event_of_the_call_that_made_it(
    purpose: ScriptPurpose, name: str, quick_run: ScriptedRun
) -> None:
    repair = make_debug_callback(quick_run.task, quick_run.config, purpose=purpose, leakage_check=False)
    with scope("here"):
        await repair(solution(broken_script()), TRACEBACK)
        await repair(solution(broken_script()), TRACEBACK)
    assert [call.step for call in quick_run.agents.log] == [f"here/{name}", f"here/{name}-2"]
    events = quick_run.events(DebugAttempted)
    assert [event.step for event in events] == [f"here/{name}", f"here/{name}-2"]
    assert [(event.error, event.accepted, event.reason) for event in events] == [
        ("RuntimeError: broken", True, ""), ("RuntimeError: broken", True, ""),
    ]  # fmt: skip


@pytest.mark.req("REQ-SF-006", "REQ-SF-008")
async def test_a_script_that_cannot_be_repaired_loses_its_score(quick_run: ScriptedRun) -> None:
    quick_run.agents.always("debugger", "I cannot.")
    failed, result = await debug_solution(
        solution(broken_script(), score=0.9), TRACEBACK, quick_run.task, settings(max_debug_attempts=2)
    )
    assert result.is_error and (failed.score, failed.is_executable) == (None, False)


@pytest.mark.req("REQ-SF-010")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("\nx = 1\n\n\n", f"\nx = 1\n{SCORE_LINE}\n"),
        ("x = 1\nif __name__ == 'x':\n    run()\n", f"x = 1\n{SCORE_LINE}\n\nif __name__ == 'x':\n    run()\n"),
        ("def f():\n    if __name__ == 'x':\n        run()\n",
         f"def f():\n    if __name__ == 'x':\n        run()\n{SCORE_LINE}\n"),
        ("def f():\n    if __name__:\n        pass\nif __name__ == 'x':\n    f()\n",
         f"def f():\n    if __name__:\n        pass\n{SCORE_LINE}\n\nif __name__ == 'x':\n    f()\n"),
        ("print('Final Validation Performance: 1')", None),
        ("say = 'Final Validation Performance'; n = 1; b = b'Final Validation Performance'", None),
        (UNSAID, f"{UNSAID}\n{SCORE_LINE}\n"),
        ("n = (  # Final Validation Performance\n", f"n = (  # Final Validation Performance\n{SCORE_LINE}\n"),
        ("n = (\nprint('Final Validation Performance: 1')", None),
    ],
)  # fmt: skip
def test_the_score_line_goes_to_the_end_or_before_the_main_part(
    code: str, expected: str | None, quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    assert with_score_line(code) == (expected or code)
    added = "WARNING main: the repaired script prints no score; a line that does is added"
    assert said(caplog) == ([added] if expected else [])


@pytest.mark.req("REQ-SF-020", "REQ-SF-021", "REQ-SF-041")
async def test_a_leakage_check_is_told_from_its_start_to_its_end(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    content = script(0.9)
    quick_run.agents.reply("leakage-detection", leaky("level = 0.9", "x" * 100, "level = 0.9"))
    quick_run.agents.reply("leakage-correction", fenced("level = 0.9 "), fenced("level = 0.75"))
    quick_run.agents.always("leakage-rewrite", fenced("level = ("))
    with scope("phase3", "r-1"):
        fixed = await check_and_fix_leakage(solution(content, phase=SolutionPhase.ensemble))
    assert (fixed.content, fixed.leaking) == (script(0.75), True)
    ledger = quick_run.context.ledger
    assert ledger.leaking == {digest_of(content), digest_of(script(0.75))}
    assert not any(map(ledger.is_checked, ledger.leaking))
    event = quick_run.events(LeakageChecked)[0]
    assert event.step == "phase3/r-1/leakage-detection"
    assert (event.found, event.fixed, event.blocks) == (3, 1, ["level = 0.9", "x" * 100, "level = 0.9"])
    assert_says(
        caplog,
        (WARNING, ("r=1: correction end: no other block came back, not replaced",)),
        (WARNING, ("r=1: replacement skipped: the leaking block is not in the script: '" + "x" * 80 + "'",)),
    )
    assert "parse failure" not in caplog.text  # every reply was a usable one


@pytest.mark.req("REQ-SF-019")
async def test_a_correction_that_cannot_be_used_is_told(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    original = solution(script(0.9))
    quick_run.agents.reply("leakage-detection", "What a question!", leaky("level = 0.9"), leaky("level = 0.9"))
    quick_run.agents.reply("leakage-correction", "No code.", fenced("level = ("))
    flagged = [(await check_and_fix_leakage(original)).leaking for _ in range(3)]
    assert flagged == [False, True, True]
    assert_says(
        caplog,
        (WARNING, ("main: parse failure: unusable reply of leakage: 'What a question!'",)),
        (WARNING, ("main: parse failure: unusable reply of leakage: 'No code.'",)),
        (WARNING, ("main: correction end: no other block came back, not replaced",)),
        (WARNING, ("main: correction end: the script would no longer compile, not replaced",)),
        (WARNING, ("leakage-detection-2: 1 of 1 leaks stay",)),
    )
    assert [(event.found, event.fixed) for event in quick_run.events(LeakageChecked) if event.found] == [(1, 0), (1, 0)]


@pytest.mark.req("REQ-SF-026", "REQ-SF-027", "REQ-SF-029", "REQ-SF-041")
async def test_the_data_check_says_whether_it_changed_the_script(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    original = solution("x = 1", phase=SolutionPhase.merged)
    quick_run.agents.reply("data", fenced("x = 2"), "All the provided information is used.")
    assert (await check_data_usage(original, quick_run.task)).content == "x = 2"
    assert await check_data_usage(original, quick_run.task) is original
    quick_run.agents.reply("data", "Perhaps.", AgentError("down", agent="data"))
    for _ in range(2):
        assert await check_data_usage(original, quick_run.task) is original
    quick_run.agents.reply("data", fenced("try:\n    x = 1\nexcept Exception:\n    pass"))
    await check_data_usage(original, quick_run.task)
    assert_says(caplog, (WARNING, ("main: the revised script may hide errors: ",)))
    assert await check_data_usage(solution(" "), quick_run.task)
    skipped = "main: the data-use check needs a script and a task description, skipped"
    assert_says(caplog, (WARNING, (skipped,)))


@pytest.mark.req("REQ-SF-033")
@pytest.mark.parametrize("remark", ["", "Mind the gap."])
async def test_a_prompt_is_its_template_and_the_journal_knows_which(remark: str, quick_run: ScriptedRun) -> None:
    more: dict[str, Any] = {"remark": remark} if remark else {}
    await ask_agent(AgentType.leakage, "correction", code="x = 1", **more)
    await try_agent(AgentType.leakage, "detection", code="x = 1", **more)
    asked = quick_run.events(AgentFinished)
    for event, variant in zip(asked, ("correction", "detection"), strict=True):
        template = render(AgentType.leakage, variant, code="x = 1")
        said = [f"# Note\n\n{words}" for words in more.values()]
        assert event.prompt.startswith("\n\n".join([template, *said, f"# {FACTS_HEADING}"]))
        assert event.template_hash == PromptRegistry().hash(AgentType.leakage, variant)
    assert asked[0].template_hash != asked[1].template_hash


async def test_a_call_that_fails_and_a_reply_that_is_no_use_are_told(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    quick_run.agents.faults[0] = "raises"
    with scope("phase2", "t-1"):
        assert await try_agent(AgentType.summarize, ablation_code="x", raw_result="y") is None
        warn_unusable(AgentType.summarize, "y" * 300)
    assert_says(
        caplog,
        (WARNING, ("phase2/t-1/summarize: no reply: summarize: scripted failure",)),
        (WARNING, ("t=1: parse failure: unusable reply of summarize: '" + "y" * 200 + "'",)),
    )


# --- everything that is said, in order ---------------------------------------------------------------------


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return log_of(caplog, "mle_star.safety")


async def test_an_evaluation_comes_to_a_script_a_score_and_an_error(quick_run: ScriptedRun) -> None:
    agents, config = quick_run.agents, settings(max_debug_attempts=1)
    agents.always("debugger", "No.")

    async def ends(content: str) -> tuple[object, ...]:
        trial = await check_and_evaluate(solution(content, score=0.1), quick_run.task, config)
        assert trial.script.leaking is (trial.error == LEAKS)
        return trial.script.content, trial.script.score, trial.script.is_executable, trial.error

    fine, leaks, fixed, odd = script(0.6), script(0.9), script(0.65), script("'1,5'")
    assert await ends(fine) == (fine, 0.6, True, "")
    agents.reply("leakage-detection", leaky("level = 0.9"), leaky("level = 0.9"))
    agents.reply("leakage-correction", "I cannot.", fenced("level = 0.65"))
    assert await ends(leaks) == (leaks, None, False, LEAKS)
    assert await ends(leaks) == (fixed, 0.65, True, "")
    broken, problem = broken_script(), "the line says '1,5': print a plain number"
    errors = []
    for content, error, known in (
        (broken, "broken", "RuntimeError: broken"),
        ("x = 1", f"the script ended without printing its score line '{SCORE_TEXT}: <number>'", "no score was printed"),
        (odd, f"the score line cannot be used: {problem}", problem),
    ):
        assert await ends(content) == (content, None, False, known)
        errors.append(f"RuntimeError: {error}")
    assert [event.error for event in quick_run.events(DebugAttempted)] == errors
    nothing = solution("")
    trial = await check_and_evaluate(nothing, quick_run.task, config)
    never_ran = EvaluationResult(stdout="", stderr="", exit_code=-1, duration_seconds=0.0, is_error=True)
    assert trial == Trial(nothing, never_ran, "no code in the reply")


@pytest.mark.parametrize(
    ("flagged", "reply", "becomes"),
    [
        ("nowhere", fenced(script(0.9)), script(0.9)),
        ("level = 0.9", fenced(script(0.9)), ""),
        ("level = 0.9", "No.", ""),
        ("level = 0.9", fenced("level = ("), ""),
        ("level = 0.9", fenced("level = 0.5"), f"level = 0.5\n{SCORE_LINE}\n"),
    ],
)
async def test_a_rewrite_that_cannot_be_used_leaves_the_leak(
    flagged: str, reply: str, becomes: str, quick_run: ScriptedRun
) -> None:
    """`becomes` is empty where the leak stays."""
    agents, ledger, before = quick_run.agents, quick_run.context.ledger, solution(script(0.9), score=0.9)
    check(quick_run.context, "another", leaking=True)
    agents.reply("leakage-detection", leaky(flagged))
    agents.always("leakage-correction", "I cannot.")
    agents.reply("leakage-rewrite", reply)
    checked = await check_and_fix_leakage(before)
    asked = agents.calls("leakage-rewrite")[-1].prompt
    assert flagged in asked and before.content in asked
    rewritten = bool(becomes) and becomes != before.content
    assert checked == before.model_copy(
        update={
            "content": becomes or before.content, "score": None if rewritten else 0.9, "leaking": not becomes,
        }
    )  # fmt: skip
    expected = ["another"] if becomes == before.content else ["another", before.content]
    assert ledger.leaking == set(map(digest_of, expected))
    assert ledger.is_checked(digest_of(becomes)) == bool(becomes)


async def test_a_script_that_does_not_compile_may_be_rewritten_to_one_that_does_not_either(
    quick_run: ScriptedRun,
) -> None:
    quick_run.agents.reply("leakage-detection", leaky("level = ((0.9"))
    quick_run.agents.reply("leakage-correction", "I cannot.")
    quick_run.agents.reply("leakage-rewrite", fenced("level = ("))
    checked = await check_and_fix_leakage(solution("level = ((0.9"))
    assert (checked.content, checked.leaking) == (f"level = (\n{SCORE_LINE}\n", False)


async def test_the_last_check_says_what_it_found(quick_run: ScriptedRun) -> None:
    agents, run = quick_run.agents, quick_run.context
    later, best = settings(leakage_checks="promising"), solution(script(0.9), score=0.9)
    leaking = best.model_copy(update={"leaking": True})
    assert await check_at_last(best, settings()) == (best, [])
    assert await check_at_last(leaking, later) == (leaking, [])
    assert await check_at_last(best, later, {script(0.9): 0.5}) == (best, [UNCHECKED])
    check(run, script(0.9), script(0.8))
    assert await check_at_last(best, later, {script(0.8): 0.5, script(0.9): 0.5}) == (best, [])
    assert await check_at_last(best, later, {script(0.8): 0.5, script(0.7): 0.5}) == (best, [UNCHECKED])
    assert await check_at_last(best, later) == (best, []) and agents.log == []
    best, leaking = (one.model_copy(update={"content": script(0.95)}) for one in (best, leaking))
    agents.reply("leakage-detection", NO_LEAKAGE, leaky("level = 0.96"), leaky("level = 0.97"))
    agents.always("leakage-correction", "I cannot.")
    agents.reply("leakage-rewrite", "Nor can I.", fenced(script(0.7)))
    assert await check_at_last(best, later) == (best, [])
    assert run.ledger.is_checked(digest_of(best.content)) and len(agents.log) == 1
    best, leaking = (one.model_copy(update={"content": script(0.96)}) for one in (best, leaking))
    assert await check_at_last(best, later) == (leaking, [])
    best, leaking = (one.model_copy(update={"content": script(0.97)}) for one in (best, leaking))
    fixed = best.model_copy(update={"content": script(0.7)})
    assert await check_at_last(best, later) == (fixed, [FIXED_AT_LAST])
    assert await check_at_last(best, settings()) == (leaking, []), "what was found once is known"
    best = best.model_copy(update={"content": script(0.98)})
    agents.reply("leakage-detection", "What a question!", "What a question!", NO_LEAKAGE)
    assert await check_at_last(best, later) == (best, [UNANSWERED])
    await check_and_fix_leakage(best)
    assert await check_at_last(best, settings()) == (best, [UNANSWERED])
    assert await check_at_last(best, settings(), {script(0.8): 0.5, script(0.7): 0.5}) == (best, [])
    await check_and_fix_leakage(best)
    assert await check_at_last(best, settings()) == (best, [])
    best = best.model_copy(update={"content": script(0.99)})
    asked = len(agents.log)
    quick_run.context.budget.time_limit = 0.0
    assert await check_at_last(best, later) == (best, [UNCHECKED])
    assert len(agents.log) == asked


@pytest.mark.req("REQ-SF-008")
def test_falling_back_is_told_to_the_word(quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    failed, working = solution("a = 3", score=0.9), solution("a = 2", score=0.6)
    with scope("phase1", "merge-1"):
        fall_back(failed, [working], attempts=3)
        fall_back(failed, [], attempts=2)
    assert said(caplog) == [
        "WARNING merge-1: debug fallback: 3 attempts used, back to the last working script, score 0.6",
        "WARNING merge-1: debug fallback: 2 attempts used, no script has ever worked",
    ]
    assert synthetic_traceback("KeyError: 'a'") == "Traceback (most recent call last):\nKeyError: 'a'"
