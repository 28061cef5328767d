"""The debugger, the leakage checker and the data-use checker, with real scripts in the real harness."""

from __future__ import annotations

import ast
import inspect
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from mle_star import safety
from mle_star.basics.texts import digest_of
from mle_star.errors import AgentError, BudgetExceeded
from mle_star.execution import evaluate_with_retry
from mle_star.method.codeblocks import extract_code_block
from mle_star.models import (
    AgentType,
    DataContaminationResult,
    EvaluationResult,
    LeakageDetectionOutput,
    PipelineConfig,
    SolutionPhase,
    SolutionScript,
    TaskDescription,
    agent_config,
    build_default_agent_configs,
)
from mle_star.prompts import PromptRegistry
from mle_star.run.events import DebugAttempted, LeakageChecked
from mle_star.safety import (
    ALL_USED,
    SCORE_LINE,
    check_and_fix_leakage,
    check_data_usage,
    debug_solution,
    fall_back,
    make_debug_callback,
    parse_data_agent_response,
    with_score_line,
)
from tests.method.conftest import (
    AGENT_FAULTS,
    GARBAGE,
    NO_LEAKAGE,
    Fault,
    ScriptedCall,
    ScriptedRun,
    broken_script,
    fenced,
    leaky,
    script,
    settings,
    solution,
)
from tests.method.loops import measured

pytestmark = pytest.mark.modes("usual", "letter")

TRACEBACK = 'Traceback (most recent call last):\n  File "solution.py", line 2\nRuntimeError: broken'

HONEST = "model.fit(pandas.read_csv('./input/train.csv'))\nprint(f'Final Validation Performance: {s}')"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


# --- the debugger ----------------------------------------------------------------------------------------


@pytest.mark.req("REQ-SF-006")
async def test_a_first_fix_that_works_takes_one_debugger_call(run: ScriptedRun) -> None:
    run.agents.reply("debugger", fenced(script(0.7)))
    fixed, result = await debug_solution(solution(broken_script()), TRACEBACK, run.task, run.config)
    assert len(run.agents.calls("debugger")) == 1 and len(run.executor.scripts) == 1
    assert (fixed.content, fixed.score, fixed.is_executable) == (script(0.7), 0.7, True)
    assert not result.is_error and result.score == 0.7


async def test_a_fix_that_runs_and_prints_no_score_is_left_to_whoever_asked(run: ScriptedRun) -> None:
    run.agents.reply(
        "debugger", fenced(f"if False:\n    {script(0.7).splitlines()[-1]}\nprint('done')"), fenced(script(0.7))
    )
    fixed, result = await debug_solution(solution(broken_script()), TRACEBACK, run.task, run.config)
    assert (result.is_error, fixed.score, result.stdout) == (False, None, "done\n")
    assert len(run.agents.calls("debugger")) == 1


@pytest.mark.req("REQ-SF-006", "REQ-SF-008")
async def test_the_loop_ends_after_max_debug_attempts_and_marks_the_script(run: ScriptedRun) -> None:
    run.agents.reply("debugger", *fenced(*(broken_script(f"still {n}") for n in range(9))))
    failed, result = await debug_solution(
        solution(broken_script()), TRACEBACK, run.task, settings(max_debug_attempts=3)
    )
    prompts = [call.prompt for call in run.agents.calls("debugger")]
    assert len(prompts) == 3
    assert "still 0" in prompts[1] and "still 1" in prompts[2], "each attempt works on the newest script and traceback"
    assert result.is_error and (failed.score, failed.is_executable) == (None, False)
    assert "still 2" in failed.content


@pytest.mark.req("REQ-SF-003")
@pytest.mark.parametrize("traceback", ["", None])
async def test_without_a_traceback_the_debugger_is_not_asked(run: ScriptedRun, traceback: str) -> None:
    with pytest.raises(ValueError, match=r"^No traceback provided for debugging$"):
        await debug_solution(solution(broken_script()), traceback, run.task, run.config)
    assert run.agents.log == []


@pytest.mark.req("REQ-SF-003")
async def test_an_error_without_a_traceback_header_is_accepted_with_a_warning(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    await make_debug_callback(run.task, run.config)(solution(broken_script()), "it was killed")
    assert "it was killed" in run.agents.calls("debugger")[0].prompt
    assert any("no traceback" in line for line in warnings_of(caplog))


@pytest.mark.req("REQ-SF-004", "REQ-SF-035")
async def test_a_fix_keeps_phase_and_model_and_leaves_the_input_alone(run: ScriptedRun) -> None:
    run.agents.reply("debugger", fenced(script(0.7)))
    broken = solution(broken_script(), score=0.2, phase=SolutionPhase.merged).model_copy(
        update={"source_model": "alpha", "is_executable": False}
    )
    before = broken.model_dump()
    fixed = await make_debug_callback(run.task, run.config)(broken, TRACEBACK)
    assert broken.model_dump() == before and fixed is not broken
    assert fixed.content == script(0.7) and "```" not in fixed.content
    assert (fixed.phase, fixed.source_model, fixed.score, fixed.is_executable) == ("merged", "alpha", None, True)


@pytest.mark.req("REQ-SF-007")
async def test_each_callback_is_one_debugger_call_and_the_harness_loops(run: ScriptedRun) -> None:
    run.agents.reply("debugger", *fenced(broken_script("second"), script(0.7)))
    fixed, result = await evaluate_with_retry(
        solution(broken_script("first")), run.task, run.config, make_debug_callback(run.task, run.config)
    )
    assert len(run.agents.calls("debugger")) == 2
    assert fixed.content == script(0.7) and result.score == 0.7
    assert [(e.step, e.error, e.accepted) for e in run.events(DebugAttempted)] == [
        ("debugger", "RuntimeError: first", True), ("debugger-2", "RuntimeError: second", True)
    ]  # fmt: skip


@pytest.mark.req("REQ-SF-007", "REQ-SF-022")
async def test_what_the_debugger_sends_is_checked_for_leakage_before_it_runs(run: ScriptedRun) -> None:
    run.agents.reply("debugger", fenced(script(0.99)))
    run.agents.reply("leakage-detection", leaky("level = 0.99"))
    run.agents.reply("leakage-correction", fenced("level = 0.61"))
    fixed, result = await debug_solution(solution(broken_script()), TRACEBACK, run.task, run.config)
    assert run.agents.names == ["debugger", "leakage-detection", "leakage-correction"]
    assert run.executor.scripts == [script(0.61)] == [fixed.content] and result.score == 0.61


@pytest.mark.req("REQ-SF-008")
def test_the_last_script_that_worked_comes_back(run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    first, working = solution("a = 1", score=0.5), solution("a = 2", score=0.6)
    broken = solution("a = 3", score=0.9).model_copy(update={"is_executable": False})
    assert fall_back(broken, [first, working, broken], attempts=3) is working
    assert any("debug fallback: 3 attempts used" in line for line in warnings_of(caplog))
    alone = fall_back(solution("a = 3", score=0.9), [broken, solution("a = 4")], attempts=3)
    assert (alone.content, alone.is_executable, alone.score) == ("a = 3", False, None)


@pytest.mark.req("REQ-SF-010")
async def test_a_missing_score_line_is_put_back(run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    run.agents.reply("debugger", fenced("x = 1\ny = 2"))
    fixed = await make_debug_callback(run.task, run.config)(solution("x = 1 / 0"), TRACEBACK)
    assert fixed.content == f"x = 1\ny = 2\n{SCORE_LINE}\n"
    assert any("prints no score" in line for line in warnings_of(caplog))


@pytest.mark.req("REQ-SF-010")
def test_the_score_line_stands_before_the_main_block(run: ScriptedRun) -> None:
    code = "def main():\n    pass\n\nif __name__ == '__main__':\n    main()\n"
    assert with_score_line(code) == code.replace("if __name__", f"{SCORE_LINE}\n\nif __name__")
    assert with_score_line(script(0.5)) == script(0.5)


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-SF-010")
@pytest.mark.parametrize("purpose", ["submission", "ablation"])
async def test_scripts_that_need_no_score_get_no_line(run: ScriptedRun, purpose: str) -> None:
    phase = SolutionPhase.final if purpose == "submission" else SolutionPhase.refined
    run.agents.reply("debugger", fenced("y = 2"))
    callback = make_debug_callback(run.task, run.config, purpose="ablation" if purpose == "ablation" else "solution")
    fixed = await callback(solution("x = 1 / 0", phase=phase), TRACEBACK)
    assert fixed.content == "y = 2"
    assert run.agents.names[0] == f"debugger-{purpose}"
    assert ("leakage-detection" in run.agents.names) == (purpose == "submission"), "ablations are run, not evaluated"


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-SF-040", "REQ-SF-005")
@pytest.mark.parametrize("reply", [GARBAGE, "Run this:\n```bash\npip install lightgbm\n```\nand try once more."])
async def test_a_reply_without_code_uses_up_an_attempt(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture, reply: str
) -> None:
    run.agents.always("debugger", reply)
    broken = solution(broken_script())
    failed, result = await debug_solution(broken, TRACEBACK, run.task, settings(max_debug_attempts=3))
    assert len(run.agents.calls("debugger")) == 3 and run.agents.calls("leakage-detection") == []
    assert failed.content == broken.content and result.is_error
    assert any(repr(reply)[1:40] in line for line in warnings_of(caplog))


async def test_a_debugger_that_cannot_be_reached_leaves_the_script_as_it_was(run: ScriptedRun) -> None:
    run.agents.always("debugger", AgentError("down", agent="debugger", reason="transport"))
    broken = solution(broken_script())
    assert await make_debug_callback(run.task, run.config)(broken, TRACEBACK) is broken
    assert [(e.accepted, e.reason) for e in run.events(DebugAttempted)] == [(False, "no code in the reply")]


async def test_a_spent_budget_passes_through_the_debugger(run: ScriptedRun) -> None:
    run.context.budget.time_limit = 0.0
    with pytest.raises(BudgetExceeded):
        await make_debug_callback(run.task, run.config)(solution(broken_script()), TRACEBACK)


@pytest.mark.req("REQ-SF-006", "REQ-SF-007")
@pytest.mark.parametrize("fix", [HONEST.replace("read_csv", "read_fwf"), HONEST.replace("fit", "fine_tune"), "x = 1"])
async def test_a_repair_is_one_call_and_scored_by_running_alone(quick_run: ScriptedRun, fix: str) -> None:
    quick_run.agents.reply("debugger", fenced(fix))
    fixed = await make_debug_callback(quick_run.task, quick_run.config)(solution(HONEST), TRACEBACK)
    assert fixed.content == with_score_line(fix)
    assert quick_run.agents.names == ["debugger", "leakage-detection"]


@pytest.mark.req("REQ-SF-006", "REQ-SF-003")
async def test_each_attempt_gets_the_newest_script_and_the_newest_error(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("debugger", *fenced(broken_script("second", note="v2"), script(0.7)))
    await debug_solution(solution(broken_script("first", note="v1")), TRACEBACK, quick_run.task, quick_run.config)
    first, second = [call.prompt for call in quick_run.agents.calls("debugger")]
    assert "# v1" in first and TRACEBACK in first
    assert "# v2" in second and "RuntimeError: second" in second.split("# Error")[1]
    assert "# v1" not in second and TRACEBACK not in second


# --- leakage ---------------------------------------------------------------------------------------------

LEAKY = "a = 1\nlevel = 0.9\nb = 2\nscaled = 3\nprint(f'Final Validation Performance: {level}')"


@pytest.mark.req("REQ-SF-013")
@pytest.mark.parametrize("content", ["", "  \n"])
async def test_a_blank_script_is_not_checked(run: ScriptedRun, content: str) -> None:
    blank = solution(content)
    assert await check_and_fix_leakage(blank) is blank
    assert run.agents.log == []


@pytest.mark.req("REQ-SF-018", "REQ-SF-020", "REQ-SF-037")
async def test_a_clean_script_comes_back_after_one_call(run: ScriptedRun) -> None:
    clean = solution(script(0.5))
    assert await check_and_fix_leakage(clean) is clean
    assert run.agents.names == ["leakage-detection"] and [event.found for event in run.events(LeakageChecked)] == [0]


@pytest.mark.req("REQ-SF-014", "REQ-SF-017", "REQ-SF-035", "REQ-SF-037", "REQ-SF-045")
async def test_a_leaking_block_is_rewritten_and_nothing_else(run: ScriptedRun) -> None:
    run.agents.reply("leakage-detection", leaky("level = 0.9"))
    run.agents.reply("leakage-correction", fenced("level = 0.7"))
    leaking = solution(LEAKY, score=0.9)
    before = leaking.model_dump()
    fixed = await check_and_fix_leakage(leaking)
    assert fixed.content == LEAKY.replace("level = 0.9", "level = 0.7") and leaking.model_dump() == before
    detection, correction = run.agents.log
    assert LEAKY in detection.prompt and LEAKY in correction.prompt, "the whole script, not the block"
    assert "Just modify it with the above code" in correction.prompt
    assert run.agents.names == ["leakage-detection", "leakage-correction"]
    assert [(e.found, e.fixed, e.blocks) for e in run.events(LeakageChecked)] == [(1, 1, ["level = 0.9"])]


@pytest.mark.req("REQ-SF-020")
async def test_each_leak_is_fixed_in_turn_on_the_current_script(run: ScriptedRun) -> None:
    run.agents.reply("leakage-detection", leaky("level = 0.9", "scaled = 3"))
    run.agents.reply("leakage-correction", *fenced("level = 0.7", "scaled = 4"))
    fixed = await check_and_fix_leakage(solution(LEAKY))
    assert "level = 0.7" in fixed.content and "scaled = 4" in fixed.content
    assert "level = 0.7" in run.agents.calls("leakage-correction")[1].prompt
    assert len(run.agents.calls("leakage-detection")) == 1, "there is no second round"


@pytest.mark.req("REQ-SF-018", "REQ-SF-020")
async def test_only_answers_that_say_yes_are_corrected(run: ScriptedRun) -> None:
    answers = [*NO_LEAKAGE["answers"], *leaky("scaled = 3")["answers"]]
    run.agents.reply("leakage-detection", answers)  # a bare list is an answer, too
    run.agents.reply("leakage-correction", fenced("scaled = 4"))
    fixed = await check_and_fix_leakage(solution(LEAKY))
    assert fixed.content == LEAKY.replace("scaled = 3", "scaled = 4")


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-SF-021")
async def test_a_block_that_is_not_in_the_script_is_skipped(run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    run.agents.reply("leakage-detection", leaky("level  =  0.9", "", "scaled = 3"))
    run.agents.reply("leakage-correction", fenced("scaled = 4"))
    fixed = await check_and_fix_leakage(solution(LEAKY))
    assert fixed.content == LEAKY.replace("scaled = 3", "scaled = 4")
    assert sum("replacement skipped" in line for line in warnings_of(caplog)) == 2
    assert [(e.found, e.fixed) for e in run.events(LeakageChecked)] == [(3, 1)]


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-SF-019")
@pytest.mark.parametrize("reply", [fenced("level = 0.9"), fenced(" level = 0.9 "), GARBAGE, "", "```python\n\n```"])
async def test_a_correction_that_changes_nothing_is_skipped(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture, reply: str
) -> None:
    run.agents.reply("leakage-detection", leaky("level = 0.9"))
    run.agents.reply("leakage-correction", reply)
    leaking = solution(LEAKY)
    checked = await check_and_fix_leakage(leaking)
    assert checked == leaking.model_copy(update={"leaking": True}) and not leaking.leaking
    assert any("not replaced" in line for line in warnings_of(caplog))


@pytest.mark.req("REQ-SF-020")
async def test_a_correction_that_breaks_the_script_is_dropped(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    run.agents.reply("leakage-detection", leaky("level = 0.9", "scaled = 3"))
    run.agents.reply("leakage-correction", *fenced("level = (", "scaled = 4"))
    fixed = await check_and_fix_leakage(solution(LEAKY))
    assert fixed.content == LEAKY.replace("scaled = 3", "scaled = 4")
    assert any("no longer compile" in line for line in warnings_of(caplog))


async def test_a_correction_that_lost_its_indentation_is_moved_back_in(run: ScriptedRun) -> None:
    run.agents.reply("leakage-detection", leaky("    level = 0.9\n    x = 1"))
    run.agents.reply("leakage-correction", fenced("level = 0.7\nx = 2"))
    fixed = await check_and_fix_leakage(solution("def f():\n    level = 0.9\n    x = 1\n    return level\n"))
    assert fixed.content == "def f():\n    level = 0.7\n    x = 2\n    return level\n"


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-SF-021")
@pytest.mark.parametrize("block", ["level = 0.9 ", "a = 1  \nlevel = 0.9", "```python\nlevel = 0.9\n```"])
async def test_a_leak_is_found_although_blanks_differ(run: ScriptedRun, block: str) -> None:
    run.agents.reply("leakage-detection", leaky(block))
    run.agents.reply("leakage-correction", fenced("level = 0.7"))
    fixed = await check_and_fix_leakage(solution(LEAKY))
    assert "level = 0.7" in fixed.content and "0.9" not in fixed.content and not fixed.leaking


@pytest.mark.modes("usual")
async def test_a_script_whose_leak_stays_has_no_score_and_is_no_best(run: ScriptedRun) -> None:
    run.agents.reply("leakage-detection", leaky("level = 0.99"), NO_LEAKAGE)
    run.agents.reply("leakage-correction", "I cannot.")
    leaking = await check_and_fix_leakage(solution(script(0.99)))
    assert leaking.leaking
    scored, result = await evaluate_with_retry(leaking, run.task, run.config, make_debug_callback(run.task, run.config))
    assert (scored.score, result.score, scored.is_executable) == (None, 0.99, True)
    assert (run.context.ledger.best(), run.context.ledger.kept) == (None, None)
    assert not (await check_and_fix_leakage(scored)).leaking, "a later check that finds nothing clears it"


@pytest.mark.req("REQ-SF-038")
@pytest.mark.parametrize("reply", ["{oops", "", GARBAGE, {"answers": []}, {"answers": [{"leakage_status": "Maybe"}]}])
async def test_an_unreadable_verdict_counts_as_clean(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture, reply: object
) -> None:
    caplog.set_level(logging.DEBUG, "mle_star")
    run.agents.reply("leakage-detection", reply)
    checked = solution(LEAKY)
    assert await check_and_fix_leakage(checked) is checked
    assert run.agents.names == ["leakage-detection"], "it is not asked again"
    assert not run.context.ledger.is_checked(digest_of(LEAKY)), "nobody has looked at it"
    assert any("parse failure" in line and "leakage" in line for line in warnings_of(caplog))


@pytest.mark.modes("usual")
async def test_a_check_that_failed_clears_no_script_that_leaks(run: ScriptedRun) -> None:
    run.agents.reply("leakage-detection", leaky("level = 0.9"), GARBAGE)
    run.agents.always("leakage-correction", GARBAGE)
    leaking = await check_and_fix_leakage(solution(LEAKY))
    assert leaking.leaking and (await check_and_fix_leakage(leaking)).leaking
    assert run.context.ledger.leaks(digest_of(LEAKY))


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-SF-010")
async def test_a_final_script_that_is_rewritten_needs_no_score(run: ScriptedRun) -> None:
    run.agents.always("leakage-detection", leaky("not in it"))
    run.agents.always("leakage-rewrite", fenced("fixed = 1"))
    final = await check_and_fix_leakage(solution(LEAKY, phase=SolutionPhase.final))
    assert final.content == "fixed = 1"
    searched = await check_and_fix_leakage(solution(LEAKY))
    assert "Final Validation Performance" in searched.content
    asked = [call.prompt.replace(LEAKY, "") for call in run.agents.calls("leakage-rewrite")]
    assert ["Final Validation Performance" in prompt for prompt in asked] == [False, True]


@pytest.mark.req("REQ-SF-014")
def test_a_third_status_is_no_status() -> None:
    LeakageDetectionOutput.model_validate(leaky("x"))
    with pytest.raises(ValueError, match="leakage_status"):
        LeakageDetectionOutput.model_validate({"answers": [{"leakage_status": "Maybe", "code_block": "x"}]})


@pytest.mark.req("REQ-SF-015")
async def test_detection_asks_for_json_by_schema_and_reads_text_as_well(run: ScriptedRun) -> None:
    run.agents.reply("leakage-detection", LeakageDetectionOutput.model_validate(leaky("scaled = 3")).model_dump_json())
    run.agents.reply("leakage-correction", fenced("scaled = 4"))
    fixed = await check_and_fix_leakage(solution(LEAKY))
    assert "scaled = 4" in fixed.content
    detection, correction = run.agents.log
    assert detection.config.to_output_format() == {
        "type": "json_schema", "schema": LeakageDetectionOutput.model_json_schema(),
    }  # fmt: skip
    assert correction.config.output_schema is None


@pytest.mark.parametrize("fault", AGENT_FAULTS)
@pytest.mark.parametrize("position", [0, 1, 2])
async def test_leakage_survives_a_failure_of_any_call(run: ScriptedRun, position: int, fault: Fault) -> None:
    run.agents.faults = {position: fault}
    run.agents.reply("leakage-detection", leaky("level = 0.9", "scaled = 3"))
    run.agents.always(
        "leakage-correction", lambda call: fenced("level = 0.7" if _flags(call, "level") else "scaled = 4")
    )
    fixed = await check_and_fix_leakage(solution(LEAKY))
    done = ["level = 0.7" in fixed.content, "scaled = 4" in fixed.content]
    assert done == [[False, False], [False, True], [True, False]][position]


def _flags(call: ScriptedCall, word: str) -> bool:
    return word in call.prompt.split("# Flagged block")[1]


# --- data use --------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-SF-027", "REQ-SF-030")
async def test_a_script_that_uses_everything_is_confirmed(run: ScriptedRun) -> None:
    used = solution(script(0.5))
    assert await check_data_usage(used, run.task) is used
    [call] = run.agents.log
    assert used.content in call.prompt and run.task.description in call.prompt


@pytest.mark.req("REQ-SF-027", "REQ-SF-031", "REQ-SF-035")
async def test_a_revision_that_uses_a_forgotten_file_becomes_the_script(run: ScriptedRun) -> None:
    revised = "geometry = open('./input/1.xyz').read()\nprint('Final Validation Performance: 0.8')"
    run.agents.reply("data", fenced(revised))
    original = solution(script(0.5), score=0.5, phase=SolutionPhase.merged)
    before = original.model_dump()
    changed = await check_data_usage(original, run.task)
    assert changed.content == revised and changed.phase == SolutionPhase.merged
    assert original.model_dump() == before


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-SF-028")
def test_the_sentence_wins_over_code_in_any_case(run: ScriptedRun) -> None:
    original = solution("a = 1", score=0.5, phase=SolutionPhase.merged).model_copy(
        update={"source_model": "TabPFN v2", "is_executable": False, "leaking": True}
    )
    assert parse_data_agent_response(ALL_USED, original) is original
    assert parse_data_agent_response(f"{ALL_USED.upper()}\n{fenced('b = 1')}", original) is original
    denied = parse_data_agent_response(f"Not {ALL_USED.lower()} Here it is:\n{fenced('b = 1')}", original)
    assert denied.content == "b = 1"
    revised = parse_data_agent_response(fenced("import pandas as pd"), original)
    assert revised == original.model_copy(update={"content": "import pandas as pd"}), "all but the content stays"


@pytest.mark.req("REQ-SF-026")
@pytest.mark.parametrize(("content", "description"), [(" ", "Predict."), ("a = 1", " ")])
async def test_the_data_check_needs_a_script_and_a_description(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture, content: str, description: str
) -> None:
    given = solution(content)
    assert await check_data_usage(given, run.task.model_copy(update={"description": description})) is given
    assert run.agents.log == [] and len(warnings_of(caplog)) == 1


@pytest.mark.req("REQ-SF-039")
@pytest.mark.parametrize("reply", ["I am not sure", "", fenced("def f(:\n  pass"), GARBAGE])
async def test_a_revision_that_is_no_script_is_dropped(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture, reply: str
) -> None:
    run.agents.reply("data", reply)
    original = solution(script(0.5))
    assert await check_data_usage(original, run.task) is original
    assert any("parse failure" in line and "data" in line for line in warnings_of(caplog))


@pytest.mark.req("REQ-SF-046", "REQ-SF-029")
async def test_an_error_in_a_data_revision_reaches_the_debugger(run: ScriptedRun) -> None:
    run.agents.reply("data", fenced("open('./input/nowhere.xyz')\nprint('Final Validation Performance: 0.8')"))
    revised = await check_data_usage(solution(script(0.5)), run.task)
    assert "DO NOT USE TRY AND EXCEPT; just occur error so we can debug it!" in run.agents.log[0].prompt
    await evaluate_with_retry(revised, run.task, run.config, make_debug_callback(run.task, run.config))
    assert "nowhere.xyz" in run.agents.calls("debugger")[0].prompt
    assert "FileNotFoundError" in run.agents.calls("debugger")[0].prompt


# --- across all three ------------------------------------------------------------------------------------


@pytest.mark.req("REQ-SF-001", "REQ-SF-011", "REQ-SF-016", "REQ-SF-024", "REQ-SF-032")
def test_the_agents_are_set_up_as_specified() -> None:
    configs = build_default_agent_configs()
    wanted = {
        AgentType.debugger: (["Read", "Bash"], None),
        AgentType.leakage: (["Read"], LeakageDetectionOutput),
        AgentType.data: (["Read"], None),
    }
    for agent, (tools, schema) in wanted.items():
        config = configs[agent]
        assert (config.agent_type, config.tools, config.output_schema, config.model) == (agent, tools, schema, None)
        definition = config.to_agent_definition()
        assert set(definition) == {"description", "prompt", "tools", "model"} and definition["description"]
    correction = agent_config(AgentType.leakage, "correction")
    assert correction.output_schema is None and correction.tools == ["Read"] and correction.model is None
    assert build_default_agent_configs()[AgentType.leakage].output_schema is LeakageDetectionOutput


@pytest.mark.req("REQ-SF-002", "REQ-SF-009", "REQ-SF-044")
async def test_the_debugger_prompt_says_what_to_keep(run: ScriptedRun) -> None:
    code = "d = {'a': {}}\n" + broken_script()
    await make_debug_callback(run.task, settings(subsample_limit=77))(solution(code), TRACEBACK)
    prompt = run.agents.calls("debugger")[0].prompt
    for words in (
        code, TRACEBACK, "revise the code to fix the error", "Do not remove subsampling if exists.", "./input/",
        "Final Validation Performance", "single Markdown code block", "exit()", "subsample to 77", "No headings",
    ):  # fmt: skip
        assert words in prompt


@pytest.mark.req("REQ-SF-012", "REQ-SF-025", "REQ-SF-033")
def test_the_templates_come_from_the_registry() -> None:
    registry = PromptRegistry()
    figures = {
        (AgentType.debugger, None): "19", (AgentType.leakage, "detection"): "20",
        (AgentType.leakage, "correction"): "21", (AgentType.data, None): "22",
    }  # fmt: skip
    for (agent, variant), figure in figures.items():
        assert registry.get(agent, variant).figure_ref.endswith(figure)
    detection = registry.get(AgentType.leakage, "detection").render(code="x = {1}")
    assert all(words in detection for words in ("x = {1}", "leakage_status", "code_block"))
    data = registry.get(AgentType.data)
    blanks = data.render(**{"initial solution": "a = 1", "task description": "Predict."})
    assert blanks == data.render(initial_solution="a = 1", task_description="Predict.")


@pytest.mark.req("REQ-SF-034")
def test_all_three_take_and_give_scripts() -> None:
    functions: list[Callable[..., object]] = [debug_solution, check_and_fix_leakage, check_data_usage]
    debugger, leakage, data = (inspect.get_annotations(function, eval_str=True) for function in functions)
    script_and_task = {"solution": SolutionScript, "task": TaskDescription}
    assert debugger == {
        **script_and_task, "traceback": str, "config": PipelineConfig, "return": tuple[SolutionScript, EvaluationResult]
    }  # fmt: skip
    assert leakage == {"solution": SolutionScript, "return": SolutionScript}
    assert data == {**script_and_task, "return": SolutionScript}


@pytest.mark.req("REQ-SF-036")
def test_the_debugger_itself_takes_no_time(quick_run: ScriptedRun) -> None:
    long = "\n".join(f"value_{n} = {n}" for n in range(1000)) + "\n" + broken_script()
    quick_run.agents.always("debugger", fenced(long.replace("raise", "print")))
    callback = make_debug_callback(quick_run.task, quick_run.config, leakage_check=False)
    fixed, waited, worked = zip(*(measured(callback(solution(long), TRACEBACK)) for _ in range(3)), strict=True)
    assert len(fixed[0].content) > 15_000 and max(waited) == 0 and min(worked) < 0.5


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-SF-038", "REQ-SF-039", "REQ-SF-040", "REQ-SF-041")
async def test_a_warning_shows_the_head_of_a_reply_and_debug_all_of_it(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mle_star")
    run.agents.reply("data", "no" + "x" * 5000)
    await check_data_usage(solution(script(0.5)), run.task)
    lengths = {r.levelname: len(r.getMessage()) for r in caplog.records if "xxx" in r.getMessage()}
    assert 200 < lengths["WARNING"] < 300 and lengths["DEBUG"] > 5000


METHOD = Path(safety.__file__).parent
METHOD_MODULES = ["safety", "phase1", "phase2_outer", "phase2_inner", "phase3", "finalization"]
FORBIDDEN = {
    "requests", "httpx", "aiohttp", "urllib", "http", "socket", "anthropic", "claude_agent_sdk", "subprocess",
}  # fmt: skip


@pytest.mark.req("REQ-SF-042", "REQ-P1-039", "REQ-FN-043")
@pytest.mark.parametrize("name", METHOD_MODULES)
def test_a_phase_knows_neither_the_sdk_nor_processes_nor_the_network(name: str) -> None:
    tree = ast.parse((METHOD / f"{name}.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {module.split(".")[0] for module in imported} & FORBIDDEN
    assert not {module for module in imported if module.startswith("mle_star.sdk")}, "only through the run context"


@pytest.mark.parametrize("name", METHOD_MODULES)
def test_no_function_is_longer_than_sixty_lines(name: str) -> None:
    tree = ast.parse((METHOD / f"{name}.py").read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert max((node.end_lineno or 0) - node.lineno + 1 for node in functions) <= 60


@pytest.mark.req("REQ-SF-043", "REQ-SF-005")
def test_everything_lives_in_one_module() -> None:
    for name in ("debug_solution", "make_debug_callback", "check_and_fix_leakage", "check_data_usage",
                 "parse_data_agent_response"):  # fmt: skip
        assert getattr(safety, name).__module__ == "mle_star.safety"
    assert extract_code_block("```python\nprint('hello')\n```") == "print('hello')"


def test_contamination_leaves_the_test_agent_alone() -> None:
    assert agent_config(AgentType.test, "contamination").output_schema is DataContaminationResult
    assert agent_config(AgentType.test).output_schema is None
