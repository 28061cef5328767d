"""What the safety agents say in the log and in the journal, to the word, and under which step."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mle_star.errors import AgentError
from mle_star.models import AgentType, SolutionPhase
from mle_star.prompts import FACTS_HEADING, PromptRegistry, render
from mle_star.run.asking import ask_agent, try_agent, warn_unusable
from mle_star.run.context import scope
from mle_star.run.events import AgentFinished, DebugAttempted, LeakageChecked, ScriptPurpose
from mle_star.safety import (
    SCORE_LINE,
    check_and_fix_leakage,
    check_data_usage,
    debug_solution,
    make_debug_callback,
    with_score_line,
)

from .conftest import ScriptedRun, broken_script, fenced, leaky, script, settings, solution
from .loops import assert_says

TRACEBACK = "Traceback (most recent call last):\n  File 'x', line 1\nRuntimeError: broken"
INFO, WARNING, DEBUG = logging.INFO, logging.WARNING, logging.DEBUG


def unsaid(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return not any(words in record.getMessage() for record in caplog.records)


@pytest.mark.req("REQ-SF-041")
async def test_a_repair_is_told_from_its_start_to_its_end(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    before, fixed = solution(broken_script(), phase=SolutionPhase.merged), script(0.4)
    quick_run.agents.reply("debugger", fenced(fixed), "n" * 300, "No.")
    repair = make_debug_callback(quick_run.task, quick_run.config)
    with scope("phase1", "candidate-1"):
        assert (await repair(before, TRACEBACK)).content == fixed
        assert await repair(before, "Segmentation fault") is before
        assert await repair(before, TRACEBACK) is before
    grown = f"{len(fixed) - len(before.content):+d} characters"
    assert_says(
        caplog,
        (INFO, ("candidate-1: debug start: phase merged, RuntimeError: broken, attempt 1",)),
        (INFO, (f"candidate-1: debug end: a fix to try, {grown}",)),
        (WARNING, ("candidate-1: the error for the debugger is no traceback: Segmentation fault",)),
        (INFO, ("candidate-1: debug start: phase merged, Segmentation fault, attempt 2",)),
        (WARNING, ("candidate-1: parse failure: unusable reply of debugger: '" + "n" * 200 + "'",)),
        (WARNING, ("candidate-1: repair refused: no code in the reply",)),
        (INFO, ("candidate-1: debug end: not fixed: no code in the reply",)),
    )


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
async def test_a_script_that_cannot_be_repaired_loses_its_score(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    quick_run.agents.always("debugger", "I cannot.")
    failed, result = await debug_solution(
        solution(broken_script(), score=0.9), TRACEBACK, quick_run.task, settings(max_debug_attempts=2)
    )
    assert result.is_error and (failed.score, failed.is_executable) == (None, False)
    assert_says(
        caplog,
        (INFO, ("main: debug start: phase init, RuntimeError: broken, attempt 2",)),
        (INFO, ("main: debug end: not fixed: no code in the reply",)),
    )


@pytest.mark.req("REQ-SF-010")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("\nx = 1\n\n\n", f"\nx = 1\n{SCORE_LINE}\n"),
        ("x = 1\nif __name__ == 'x':\n    run()\n", f"x = 1\n{SCORE_LINE}\n\nif __name__ == 'x':\n    run()\n"),
        ("print('Final Validation Performance: 1')", "print('Final Validation Performance: 1')"),
    ],
)  # fmt: skip
def test_the_score_line_goes_to_the_end_or_before_the_main_part(code: str, expected: str, run: ScriptedRun) -> None:
    assert with_score_line(code) == expected


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
    assert fixed.content == script(0.75)
    event = quick_run.events(LeakageChecked)[0]
    assert event.step == "phase3/r-1/leakage-detection"
    assert (event.found, event.fixed, event.blocks) == (3, 1, ["level = 0.9", "x" * 100, "level = 0.9"])
    assert_says(
        caplog,
        (INFO, (f"r=1: detection start: phase ensemble, {len(content)} characters",)),
        (INFO, ("r=1: detection end: 3 answers, leakage found: yes",)),
        (INFO, ("r=1: correction start: block of 11 characters",)),
        (WARNING, ("r=1: correction end: no other block came back, not replaced",)),
        (WARNING, ("r=1: replacement skipped: the leaking block is not in the script: '" + "x" * 80 + "'",)),
        (INFO, ("r=1: correction end: block of 12 characters, replaced: yes",)),
    )
    assert unsaid(caplog, "parse failure")  # every reply was a usable one


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
        (WARNING, ("main: 1 of 1 leaks stay: the score of this script will not count",)),
    )
    assert [(event.found, event.fixed) for event in quick_run.events(LeakageChecked)] == [(1, 0), (1, 0)]


@pytest.mark.req("REQ-SF-026", "REQ-SF-027", "REQ-SF-029", "REQ-SF-041")
async def test_the_data_check_says_whether_it_changed_the_script(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    original = solution("x = 1", phase=SolutionPhase.merged)
    quick_run.agents.reply("data", fenced("x = 2"), "All the provided information is used.")
    assert (await check_data_usage(original, quick_run.task)).content == "x = 2"
    assert_says(
        caplog,
        (INFO, ("main: data start: phase merged, tiny-task",)),
        (INFO, ("main: data end: modified",)),
    )
    assert unsaid(caplog, "data end: confirmed")
    assert await check_data_usage(original, quick_run.task) is original
    assert_says(caplog, (INFO, ("main: data end: confirmed",)))
    quick_run.agents.reply("data", "Perhaps.", AgentError("down", agent="data"))
    for _ in range(2):
        assert await check_data_usage(original, quick_run.task) is original
    assert_says(
        caplog,
        (INFO, ("main: data end: unchanged",)),
        (INFO, ("main: data end: no reply, the script stays as it is",)),
    )
    assert sum("data end: confirmed" in record.getMessage() for record in caplog.records) == 1
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
    caplog.set_level(DEBUG, logger="mle_star.run.asking")
    quick_run.agents.faults[0] = "raises"
    with scope("phase2", "t-1"):
        assert await try_agent(AgentType.summarize, ablation_code="x", raw_result="y") is None
        warn_unusable(AgentType.summarize, "y" * 300)
    assert_says(
        caplog,
        (WARNING, ("t=1: no reply from summarize: summarize: scripted failure",)),
        (WARNING, ("t=1: parse failure: unusable reply of summarize: '" + "y" * 200 + "'",)),
        (DEBUG, ("t=1: the whole reply of summarize: '" + "y" * 300 + "'",)),
    )
