"""The inner loop of Phase 2: which attempt wins, what is recorded, and that no failure ends it."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from mle_star import phase2_inner
from mle_star.errors import BudgetExceeded
from mle_star.models import (
    AgentConfig,
    AgentType,
    InnerLoopResult,
    MetricDirection,
    RefinementAttempt,
    SolutionPhase,
    agent_config,
)
from mle_star.phase2_inner import invoke_coder, invoke_planner, run_phase2_inner_loop
from mle_star.run.context import path_context, scope
from mle_star.run.events import PLANNER_FAILED, AgentFinished, RefinementTried, ScriptFinished
from mle_star.run.prompt_context import MARK
from mle_star.run.search import PathProgress, StepProgress

from .conftest import (
    AGENT_FAULTS,
    NO_LEAKAGE,
    Fault,
    ScriptedAgents,
    ScriptedExecutor,
    ScriptedRun,
    fenced,
    leaky,
    scripted_run,
    settings,
)
from .loops import (
    BLOCK,
    LONG_PLAN,
    CheckedFirst,
    Outcome,
    assert_says,
    base_solution,
    block,
    log_of,
    measured,
    play_attempts,
    section,
)

pytestmark = pytest.mark.modes("usual", "letter")


async def refine(run: ScriptedRun, k: int = 4, **changes: Any) -> InnerLoopResult:
    """One inner loop of `k` attempts at the base script, which scores 0.5."""
    given: dict[str, Any] = {
        "solution": base_solution(), "code_block": block(), "initial_plan": "plan 0", "best_score": 0.5,
        "task": run.task, "config": settings(K=k),
    }  # fmt: skip
    return await run_phase2_inner_loop(**{**given, **changes})


def scores(result: InnerLoopResult) -> list[float | None]:
    return [attempt.score for attempt in result.attempts]


def accepted(result: InnerLoopResult) -> list[bool]:
    return [attempt.was_improvement for attempt in result.attempts]


# --- the two agents --------------------------------------------------------------------------------------


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P2I-001", "REQ-P2I-008")
@pytest.mark.parametrize("agent", [AgentType.coder, AgentType.planner])
async def test_coder_and_planner_have_no_tools_and_no_schema(agent: AgentType, quick_run: ScriptedRun) -> None:
    definition = AgentConfig(agent_type=agent).to_agent_definition()
    assert set(definition) == {"description", "prompt", "tools", "model"}
    assert definition["description"] and definition["prompt"]
    config = agent_config(agent)
    assert (config.agent_type, config.tools, config.output_schema, config.model) == (agent, None, None, None)
    await refine(quick_run, k=2)
    assert {call.config for call in quick_run.agents.calls(agent.value)} == {config}


@pytest.mark.req("REQ-P2I-002", "REQ-P2I-006", "REQ-P2I-007")
async def test_the_coders_prompt_holds_block_plan_and_rules(quick_run: ScriptedRun) -> None:
    code = "x = {1: 'a'}\nfor i in range(3):\n    x[i] = '{plan}'"
    await invoke_coder(code, "use {code_block} twice")
    prompt = quick_run.agents.calls("coder")[0].prompt
    assert "Kaggle grandmaster" in prompt
    assert "better performance" in prompt and "improvement plan" in prompt
    assert code in section(prompt, "Code block")
    assert "use {code_block} twice" in section(prompt, "Plan")
    assert "mplement the improvement plan" in section(prompt, "Your task")
    assert "do not remove subsampling if exists." in prompt.lower()
    assert "defined earlier" in prompt and "not introduce dummy variables" in prompt
    assert "single markdown code block" in prompt.lower() and "no headings" in prompt.lower()


async def test_the_coder_is_told_how_many_rows_to_train_on(quick_path: Path) -> None:
    config = settings(subsample_limit=1234)
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=config) as run:
        await invoke_coder(BLOCK, "a plan")
        assert "more than 1234 training samples" in run.agents.calls("coder")[0].prompt


@pytest.mark.req("REQ-P2I-003")
@pytest.mark.parametrize(("code", "plan", "missing"), [("", "a plan", "code block"), (BLOCK, " \n", "plan")])
async def test_the_coder_is_not_asked_without_a_block_and_a_plan(
    code: str, plan: str, missing: str, quick_run: ScriptedRun
) -> None:
    with pytest.raises(ValueError, match=f"^A_coder requires a non-empty {missing}$"):
        await invoke_coder(code, plan)
    assert quick_run.agents.log == []


@pytest.mark.req("REQ-P2I-004", "REQ-P2I-005")
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("```python\nlevel = 0.9\n```", "level = 0.9"),
        ("Sure!\n```\n    level = 0.9\n```\nDone.", "    level = 0.9"),
        ("level = compute(0.9)", "level = compute(0.9)"),
        ("I would rather not.", None),
        ("```python\n```", None),
        ("", None),
    ],
)
async def test_the_coder_returns_the_code_in_the_reply_and_nothing_else(
    reply: str, expected: str | None, quick_run: ScriptedRun
) -> None:
    quick_run.agents.reply("coder", reply)
    assert await invoke_coder(BLOCK, "raise the level") == expected


@pytest.mark.req("REQ-P2I-009", "REQ-P2I-010", "REQ-P2I-014", "REQ-P2I-015")
@pytest.mark.parametrize("direction", list(MetricDirection))
async def test_the_planners_prompt_holds_block_history_and_rules(direction: MetricDirection, quick_path: Path) -> None:
    with scripted_run(quick_path, executor=ScriptedExecutor(), metric_direction=direction) as run:
        await invoke_planner(BLOCK, ["plan A", "plan B"], [0.82, None])
        prompt = run.agents.calls("planner")[0].prompt
    assert "Kaggle grandmaster" in prompt and "better performance" in prompt
    assert BLOCK in section(prompt, "Code block")
    assert (
        "# Improvement plans you have tried\n\n## Plan: plan A\n## Score: 0.82\n\n"
        "## Plan: plan B\n## Score: N/A (evaluation failed)\n" in prompt
    )
    rules = section(prompt, "Your task")
    assert "novel" in rules and "effective" in rules and "differ" in rules
    assert "longer" in rules and "hyperparameter" in rules
    assert f"{'higher' if direction is MetricDirection.maximize else 'lower'} score" in rules
    assert "3-5 sentences" in section(prompt, "Answer") and "No headings" in section(prompt, "Answer")


@pytest.mark.req("REQ-P2I-011", "REQ-P2I-013")
@pytest.mark.parametrize(
    ("code", "plans", "points", "message"),
    [
        (BLOCK, [], [], "^At least one previous plan is required for A_planner$"),
        (BLOCK, ["a"], [0.1, 0.2], "^A_planner requires one score per plan, not 2 for 1$"),
        (BLOCK, ["a", "b"], [0.1], "^A_planner requires one score per plan, not 1 for 2$"),
        (" ", ["a"], [0.1], "^A_planner requires a non-empty code block$"),
    ],
)
async def test_the_planner_is_not_asked_without_a_history_that_fits(
    code: str, plans: list[str], points: list[float | None], message: str, quick_run: ScriptedRun
) -> None:
    with pytest.raises(ValueError, match=message):
        await invoke_planner(code, plans, points)
    assert quick_run.agents.log == []


@pytest.mark.req("REQ-P2I-012", "REQ-P2I-013")
@pytest.mark.parametrize(
    ("reply", "expected"),
    [("\n  Use `x`.\n```python\nx = 1\n```  \n", "Use `x`.\n```python\nx = 1\n```"), (" \n\t", None), ("", None)],
)
async def test_the_plan_is_the_whole_reply_stripped(reply: str, expected: str | None, quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("planner", reply)
    assert await invoke_planner(BLOCK, ["a"], [0.1]) == expected


# --- the loop --------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-P2I-017", "REQ-P2I-018", "REQ-P2I-028")
async def test_the_first_attempt_carries_out_the_extractors_plan(run: ScriptedRun) -> None:
    run.agents.reply("coder", fenced("level = 0.8"))
    result = await refine(run, k=1)
    assert run.agents.names == ["coder", "leakage-detection"]  # no planner
    assert "plan 0" in section(run.agents.calls("coder")[0].prompt, "Plan")
    assert result.attempts == [
        RefinementAttempt(plan="plan 0", score=0.8, code_block="level = 0.8", was_improvement=True)
    ]
    assert (result.best_score, result.best_solution.score) == (0.8, 0.8)
    assert result.best_solution.content == base_solution().content.replace(BLOCK, "level = 0.8")
    assert result.best_solution.phase is SolutionPhase.refined and result.best_solution.is_executable
    assert run.executor.scripts == [result.best_solution.content]


@pytest.mark.req("REQ-P2I-002", "REQ-P2I-009", "REQ-P2I-012", "REQ-P2I-017", "REQ-P2I-019")
async def test_plans_reach_coder_planner_and_history_whole(quick_run: ScriptedRun) -> None:
    given = [f"{LONG_PLAN} Idea {k}." for k in range(3)]
    quick_run.agents.reply("coder", *fenced("level = 0.6", "level = 0.4", "level = 0.7"))
    quick_run.agents.reply("planner", *given[1:])
    result = await refine(quick_run, k=3, initial_plan=given[0])
    told = [section(call.prompt, "Plan") for call in quick_run.agents.calls("coder")]
    assert [[plan in text for plan in given] for text in told] == [[k == j for j in range(3)] for k in range(3)]
    last = section(quick_run.agents.calls("planner")[-1].prompt, "Improvement plans you have tried")
    assert f"## Plan: {given[0]}\n## Score: 0.6\n\n## Plan: {given[1]}\n## Score: 0.4\n" in last
    assert [attempt.plan for attempt in result.attempts] == given
    assert [event.plan for event in quick_run.events(RefinementTried)] == given


@pytest.mark.req("REQ-P2I-016", "REQ-P2I-019", "REQ-P2I-020", "REQ-P2I-029", "REQ-P2I-046")
async def test_every_later_attempt_asks_the_planner_with_the_whole_history(run: ScriptedRun) -> None:
    run.agents.reply("coder", *fenced("level = 0.6", "level = 0.4", "level = 0.7", "level = 0.1"))
    run.agents.reply("planner", "plan 1", "plan 2", "plan 3")
    result = await refine(run, k=4)
    first, later = ["coder", "leakage-detection"], ["planner", "coder", "leakage-detection"]
    assert run.agents.names == [*first, *later, *later, *later]  # one after another
    assert [attempt.plan for attempt in result.attempts] == ["plan 0", "plan 1", "plan 2", "plan 3"]
    assert scores(result) == [0.6, 0.4, 0.7, 0.1]
    histories = [section(call.prompt, "Improvement plans you have tried") for call in run.agents.calls("planner")]
    for k, history in enumerate(histories, start=1):
        tried = re.findall(r"## Plan: (.*)\n## Score: (.*)", history)
        assert tried == [(f"plan {j}", str(scores(result)[j])) for j in range(k)]
    assert [call.prompt.count("plan") > 0 for call in run.agents.calls("coder")] == [True] * 4
    assert run.executor.most_at_once == 1


@pytest.mark.req("REQ-P2I-021", "REQ-P2I-022", "REQ-P2I-023", "REQ-P2I-049", "REQ-P2I-050")
async def test_every_attempt_starts_from_the_original_block_and_script(quick_run: ScriptedRun) -> None:
    solution, target = base_solution(), block()
    before = solution.model_copy(deep=True)
    blocks = (f"{BLOCK}\nlevel = 0.6", "level = 0.7", "level = 0.8")  # the first still holds the original one
    quick_run.agents.reply("coder", *fenced(*blocks))
    await refine(quick_run, k=3, solution=solution, code_block=target)
    for call in [*quick_run.agents.calls("coder"), *quick_run.agents.calls("planner")]:
        assert section(call.prompt, "Code block").strip() == f"```python\n{BLOCK}\n```"
    assert quick_run.executor.scripts == [before.content.replace(BLOCK, code, 1) for code in blocks]
    assert solution == before and target == block()


async def test_only_the_first_of_two_equal_blocks_is_replaced(quick_run: ScriptedRun) -> None:
    solution = base_solution().model_copy(update={"content": f"{BLOCK}\nother = 1\n{base_solution().content}"})
    quick_run.agents.reply("coder", fenced("other = 2"))
    await refine(quick_run, k=1, solution=solution)
    assert quick_run.executor.scripts == [f"other = 2\nother = 1\n{base_solution().content}"]


async def test_a_block_that_comes_back_dedented_is_put_back_in_its_place(run: ScriptedRun) -> None:
    content = "def level():\n    a = 0.25\n    return a\n\nprint(f'Final Validation Performance: {level()}')\n"
    solution = base_solution().model_copy(update={"content": content})
    run.agents.reply("coder", fenced("a = 0.25\na = a * 3"))
    result = await refine(run, k=1, solution=solution, code_block=block("    a = 0.25"))
    assert result.best_score == 0.75
    assert "    a = 0.25\n    a = a * 3\n    return a" in result.best_solution.content
    assert result.attempts[0].code_block == "a = 0.25\na = a * 3"  # as the coder wrote it


@pytest.mark.req("REQ-P2I-024", "REQ-P2I-025", "REQ-P2I-026", "REQ-P2I-047")
@pytest.mark.parametrize(
    ("direction", "start", "attempts", "best", "winners"),
    [
        (MetricDirection.maximize, 0.5, [0.82, 0.85], 0.85, [True, True]),
        (MetricDirection.maximize, 0.5, [0.85, 0.82], 0.85, [True, False]),
        (MetricDirection.maximize, 0.82, [0.82, 0.81, 0.82], 0.82, [True, False, True]),
        (MetricDirection.maximize, 0.9, [0.8, 0.89], 0.9, [False, False]),
        (MetricDirection.minimize, 0.5, [0.4, 0.45, 0.4], 0.4, [True, False, True]),
        (MetricDirection.minimize, 0.5, [0.5, 0.6], 0.5, [True, False]),
        (MetricDirection.minimize, 0.3, [0.4, 0.5], 0.3, [False, False]),
    ],
)
async def test_an_attempt_wins_when_it_is_at_least_as_good(
    direction: MetricDirection,
    start: float,
    attempts: list[Outcome],
    best: float,
    winners: list[bool],
    quick_path: Path,
) -> None:
    with scripted_run(quick_path, executor=ScriptedExecutor(), metric_direction=direction) as run:
        play_attempts(run.agents, attempts)
        result = await refine(run, k=len(attempts), best_score=start)
        events = run.events(RefinementTried)
    assert (result.best_score, accepted(result)) == (best, winners)
    if True in winners:
        winner = len(winners) - 1 - winners[::-1].index(True)
        assert f"# k{winner}" in result.best_solution.content
    bests = [start, *(event.best_score for event in events)]
    assert bests == sorted(bests, reverse=direction is MetricDirection.minimize)


@pytest.mark.req("REQ-P2I-027", "REQ-P2I-033", "REQ-P2I-036", "REQ-P2I-037", "REQ-P2I-038", "REQ-P2I-048")
async def test_without_a_better_attempt_the_input_comes_back(quick_run: ScriptedRun) -> None:
    solution = base_solution()
    play_attempts(quick_run.agents, [0.1, "crash", "coder", 0.4])
    result = await refine(quick_run, k=4, solution=solution)
    assert result.best_solution == solution and result.best_score == 0.5 and not result.improved
    assert len(result.attempts) == 4
    assert scores(result) == [0.1, None, None, 0.4] and accepted(result) == [False] * 4


@pytest.mark.req("REQ-P2I-036", "REQ-P2I-037")
@pytest.mark.parametrize(("score", "improved"), [(0.5, False), (0.6, True)])
async def test_improved_means_strictly_better(score: float, improved: bool, quick_run: ScriptedRun) -> None:
    play_attempts(quick_run.agents, [score])
    result = await refine(quick_run, k=1)
    assert accepted(result) == [True] and result.best_score == score
    assert result.improved is improved


@pytest.mark.req("REQ-P2I-032", "REQ-P2I-035")
async def test_a_reply_without_code_is_an_attempt_with_no_block(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    play_attempts(quick_run.agents, [0.6, "coder", 0.7])
    result = await refine(quick_run, k=3)
    assert result.attempts[1] == RefinementAttempt(plan="plan 1", score=None, code_block="", was_improvement=False)
    assert scores(result) == [0.6, None, 0.7]
    assert len(quick_run.executor.scripts) == 2  # nothing was replaced or run for it
    history = section(quick_run.agents.calls("planner")[1].prompt, "Improvement plans you have tried")
    assert "## Plan: plan 1\n## Score: N/A (evaluation failed)" in history
    assert_says(caplog, (logging.WARNING, ("k=1: parse failure", "No code today.")))


@pytest.mark.req("REQ-P2I-033")
async def test_a_block_that_is_not_in_the_script_fails_the_attempt_but_not_the_loop(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    play_attempts(quick_run.agents, [0.6, 0.7])
    result = await refine(quick_run, k=2, code_block=block("level = 0.123"))
    assert [(a.score, a.code_block, a.was_improvement) for a in result.attempts] == [
        (None, "level = 0.6  # k0", False), (None, "level = 0.7  # k1", False),
    ]  # fmt: skip
    assert quick_run.agents.names == ["coder", "planner", "coder"] and quick_run.executor.scripts == []
    assert_says(
        caplog,
        (logging.WARNING, ("k=0: code block replacement failed",)),
        (logging.WARNING, ("k=1: code", "not found")),
    )


@pytest.mark.req("REQ-P2I-034")
@pytest.mark.parametrize("fault", ["empty", "raises"])
async def test_an_empty_plan_is_recorded_and_the_loop_goes_on(
    fault: Fault, quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    play_attempts(quick_run.agents, [0.6, 0.7])
    quick_run.agents.reply("planner", "plan 2")
    quick_run.agents.faults[2] = fault
    result = await refine(quick_run, k=3)
    assert result.attempts[1] == RefinementAttempt(
        plan=PLANNER_FAILED, score=None, code_block="", was_improvement=False
    )
    assert PLANNER_FAILED == "[planner failed]" and result.best_score == 0.7
    assert quick_run.agents.names.count("coder") == 2
    history = section(quick_run.agents.calls("planner")[1].prompt, "Improvement plans you have tried")
    assert "## Plan: [planner failed]\n## Score: N/A (evaluation failed)" in history
    assert_says(caplog, (logging.WARNING, ("k-1/planner: ",)))


@pytest.mark.req("REQ-P2I-035", "REQ-P2I-027")
async def test_the_planner_learns_of_plans_whose_script_crashed(quick_run: ScriptedRun) -> None:
    play_attempts(quick_run.agents, [0.6, "crash", 0.7])
    result = await refine(quick_run, k=3)
    assert result.attempts[1].score is None and result.attempts[1].code_block == "raise RuntimeError('k1')"
    history = section(quick_run.agents.calls("planner")[1].prompt, "Improvement plans you have tried")
    assert "## Plan: plan 0\n## Score: 0.6\n\n## Plan: plan 1\n## Score: N/A (evaluation failed)" in history


async def test_a_script_that_prints_no_score_is_a_failed_attempt(run: ScriptedRun) -> None:
    run.agents.reply("coder", fenced("level = 'unknown'"))
    run.agents.always("debugger", "I cannot repair this.")
    result = await refine(run, k=1)
    assert (scores(result), accepted(result)) == ([None], [False])


async def test_a_plan_that_the_extractor_left_empty_fails_only_the_first_attempt(quick_run: ScriptedRun) -> None:
    play_attempts(quick_run.agents, ["planner", 0.6])  # the coder is asked once, for the second attempt
    quick_run.agents._queues["coder"].pop(0)
    result = await refine(quick_run, k=2, initial_plan="")
    assert [attempt.plan for attempt in result.attempts] == ["", "plan 1"]
    assert scores(result) == [None, 0.6]


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P2I-030", "REQ-P2I-031", "REQ-SF-022")
async def test_every_script_that_runs_was_checked_first_repairs_included(quick_run: ScriptedRun) -> None:
    quick_run.executor.inner = witness = CheckedFirst(quick_run.agents, quick_run.executor.inner)
    quick_run.agents.reply("coder", *fenced("level = 0.6", "raise RuntimeError('one')", "raise RuntimeError('two')"))
    repairs = ("level = 0.7", "raise RuntimeError('still')", "raise RuntimeError('again')", "level = 0.99")
    quick_run.agents.reply("debugger", *fenced(*(base_solution().content.replace(BLOCK, code) for code in repairs)))
    leaks = "level = 0.99"  # only the third repair of the third attempt does
    quick_run.agents.always("leakage-detection", lambda call: leaky(leaks) if leaks in call.prompt else NO_LEAKAGE)
    quick_run.agents.always("leakage-correction", fenced("level = 0.8"))
    result = await refine(quick_run, k=3, config=settings(K=3, max_debug_attempts=3))
    assert scores(result) == [0.6, 0.7, 0.8] and len(quick_run.executor.scripts) == 7
    (corrected,) = witness.unchecked
    assert "level = 0.8" in corrected, "what the checker itself wrote"


@pytest.mark.req("REQ-P2I-030")
async def test_what_is_run_has_been_checked_for_leakage_and_corrected(run: ScriptedRun) -> None:
    run.agents.reply("coder", *fenced("level = 0.99", "level = 0.6"))
    run.agents.reply("leakage-detection", leaky("level = 0.99"))
    run.agents.reply("leakage-correction", fenced("level = 0.7"))
    result = await refine(run, k=2)
    assert [call.name for call in run.agents.log if call.name != "planner"] == [
        "coder", "leakage-detection", "leakage-correction", "coder", "leakage-detection",
    ]  # fmt: skip
    assert "level = 0.99" in run.agents.calls("leakage-detection")[0].prompt
    assert scores(result) == [0.7, 0.6] and "level = 0.7" in result.best_solution.content
    assert "level = 0.99" not in "".join(run.executor.scripts)
    assert result.attempts[0].code_block == "level = 0.99"  # the coder's block is what is recorded


@pytest.mark.req("REQ-P2I-031")
async def test_a_crash_is_repaired_and_the_repaired_script_counts(run: ScriptedRun) -> None:
    run.agents.reply("coder", fenced("level = 1 / 0"))
    run.agents.reply("debugger", fenced(base_solution().content.replace(BLOCK, "level = 0.9")))
    result = await refine(run, k=1)
    assert run.agents.names == ["coder", "leakage-detection", "debugger", "leakage-detection"]
    assert "ZeroDivisionError" in run.agents.calls("debugger")[0].prompt
    assert (scores(result), accepted(result), result.best_score) == ([0.9], [True], 0.9)
    assert "level = 0.9" in result.best_solution.content and result.attempts[0].code_block == "level = 1 / 0"


@pytest.mark.req("REQ-P2I-031")
async def test_repairs_end_after_max_debug_attempts(run: ScriptedRun) -> None:
    run.agents.reply("coder", fenced("level = 1 / 0"))
    for n in range(9):
        run.agents.reply("debugger", fenced(base_solution().content.replace(BLOCK, f"level = {n} / 0")))
    result = await refine(run, k=1, config=settings(K=1, max_debug_attempts=2))
    assert run.agents.names.count("debugger") == 2 and len(run.executor.scripts) == 3
    shown = [section(call.prompt, "Script") for call in run.agents.calls("debugger")]
    assert ["level = 1 / 0" in text for text in shown] == [True, False]
    assert "level = 0 / 0" in shown[1]  # the second repair starts from the first
    assert (scores(result), accepted(result), result.best_score) == ([None], [False], 0.5)


# --- records, steps, logs --------------------------------------------------------------------------------


@pytest.mark.req("REQ-P2I-028", "REQ-P2I-044")
async def test_every_call_run_and_attempt_is_a_named_step_of_the_journal(quick_run: ScriptedRun) -> None:
    play_attempts(quick_run.agents, [0.6, 0.4])
    with scope("phase2", "path-0", "t-1"):
        await refine(quick_run, k=2, code_block=block(t=1))
    place = "phase2/path-0/t-1"
    assert [event.step for event in quick_run.events(AgentFinished)] == [
        f"{place}/k-0/coder", f"{place}/k-0/leakage-detection",
        f"{place}/k-1/planner", f"{place}/k-1/coder", f"{place}/k-1/leakage-detection",
    ]  # fmt: skip
    assert all(event.step.startswith(place) for event in quick_run.events(ScriptFinished))
    tried = quick_run.events(RefinementTried)
    assert [(e.step, e.t, e.k, e.plan, e.before, e.after, e.score, e.best_score, e.accepted) for e in tried] == [
        (f"{place}/k-0", 1, 0, "plan 0", BLOCK, "level = 0.6  # k0", 0.6, 0.6, True),
        (f"{place}/k-1", 1, 1, "plan 1", BLOCK, "level = 0.4  # k1", 0.4, 0.6, False),
    ]
    assert len(quick_run.events(AgentFinished)) == len(quick_run.agents.log)  # no other way to a model


@pytest.mark.req("REQ-P2I-044", "REQ-P2I-045")
def test_the_inner_loop_is_one_module_that_knows_no_client() -> None:
    names = ("run_phase2_inner_loop", "invoke_coder", "invoke_planner")
    assert {getattr(phase2_inner, name).__module__ for name in names} == {"mle_star.phase2_inner"}
    source = Path(phase2_inner.__file__).read_text(encoding="utf-8")
    assert not re.search(r"claude_agent_sdk|anthropic|subprocess|httpx|urllib|requests", source)


@pytest.mark.req("REQ-P2I-043", "REQ-P2I-033")
async def test_the_log_tells_of_crashes_and_of_what_cannot_be_asked_or_replaced(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    play_attempts(quick_run.agents, ["crash", 0.6])
    await refine(quick_run, k=1)
    await refine(quick_run, k=1, code_block=block("not there"))
    await refine(quick_run, k=2, code_block=block(" "), initial_plan="")
    await refine(quick_run, k=1, initial_plan=" ")
    over = "INFO main: inner loop complete: 1 attempts, 0 evaluated, best score 0.5, improved: no"
    assert [line for line in log_of(caplog, "mle_star.phase2_inner") if "starts" not in line] == [
        over,
        "WARNING k=0: code block replacement failed: block not found in the script: 'not there'",
        over,
        "WARNING k=0: the coder cannot be asked: A_coder requires a non-empty code block",
        "WARNING k=1: the planner cannot be asked: A_planner requires a non-empty code block",
        over.replace("1 attempts", "2 attempts"),
        "WARNING k=0: the coder cannot be asked: A_coder requires a non-empty plan",
        over,
    ]


BEST = "Best block so far"


@pytest.mark.modes("usual")
async def test_planner_and_coder_are_told_the_script_around_the_block_and_the_best_block_so_far(
    quick_run: ScriptedRun,
) -> None:
    start = base_solution()
    play_attempts(quick_run.agents, [0.3, 0.6, 0.4, "planner"])
    quick_run.context.shared.search.paths["main"] = path = PathProgress(start, 0.5, quick_run.task)
    old = RefinementAttempt(plan="an old plan", score=0.2, code_block="x", was_improvement=False)
    path.finish(StepProgress(0, attempts=[old]))
    await refine(quick_run, k=4, solution=start)
    asked = [call for call in quick_run.agents.log if call.name in ("coder", "planner")]
    assert [call.name for call in asked] == ["coder", "planner", "coder", "planner", "coder", "planner"]
    for call in asked:
        assert start.content.replace(BLOCK, MARK) in section(call.prompt, "Whole script")
        assert ("an old plan" in call.prompt) == (call.name == "planner")
    assert [f"# {BEST}" in call.prompt for call in asked] == [False] * 3 + [True] * 3
    for call in asked[3:]:
        told = section(call.prompt, BEST)
        assert "the script scores 0.6. " in told and "```python\nlevel = 0.6  # k1\n```" in told
    await invoke_coder("another = 1", "plan")
    assert "# Whole script" not in quick_run.agents.log[-1].prompt and BEST not in quick_run.agents.log[-1].prompt


@pytest.mark.modes("usual")
async def test_the_best_block_is_the_one_that_was_scored_not_the_one_before_its_repair(quick_run: ScriptedRun) -> None:
    start, repaired = base_solution(), "level = 0.9\n# without what took too long"
    quick_run.agents.reply("coder", fenced("raise TimeoutError('too long')"), "No code.", fenced("level = 0.99"))
    quick_run.agents.reply("debugger", fenced(f"import os\n\n{start.content.replace(BLOCK, repaired)}"))
    quick_run.agents.reply("leakage-detection", NO_LEAKAGE, NO_LEAKAGE, leaky("level = 0.99"))
    quick_run.agents.reply("leakage-correction", fenced("level = 0.95  # corrected"))
    await refine(quick_run, k=4, solution=start)
    told = [section(call.prompt, BEST) for call in quick_run.agents.calls("planner")]
    expected = [(0.9, repaired)] * 2 + [(0.95, "level = 0.95  # corrected")]
    for text, (score, code) in zip(told, expected, strict=True):
        assert f"the script scores {score}. " in text and f"```python\n{code}\n```" in text
        assert "TimeoutError" not in text and "level = 0.99" not in text


@pytest.mark.req("REQ-P2I-039", "REQ-P2I-040")
def test_the_loop_itself_takes_next_to_no_time(quick_run: ScriptedRun) -> None:
    padding = "\n".join(f"value_{n} = {n}" for n in range(2500))  # some 50 KB, as the largest scripts
    solution = base_solution()
    solution.content = f"{padding}\n{solution.content}"
    result, waited, worked = measured(refine(quick_run, k=4, solution=solution))
    calls = len(quick_run.agents.log)
    assert len(result.attempts) == 4 and calls == 4 + 3 + 4
    assert waited == 0 and worked / calls < 0.5


# --- failures and endings --------------------------------------------------------------------------------


def eventful(agents: ScriptedAgents) -> None:
    """Two attempts that call every agent: the first crashes and is repaired, the second leaks and is corrected."""
    agents.reply("coder", fenced("raise RuntimeError('first')"), fenced("level = 0.9"))
    agents.reply("debugger", fenced(base_solution().content.replace(BLOCK, "level = 0.6")))
    agents.always("debugger", "I cannot repair this.")
    agents.reply("leakage-detection", *[{"answers": [{"leakage_status": "No Data Leakage", "code_block": ""}]}] * 2)
    agents.reply("leakage-detection", leaky("level = 0.9"))
    agents.reply("leakage-correction", fenced("level = 0.8"))


EVENTFUL = ["coder", "leakage-detection", "debugger", "leakage-detection",
            "planner", "coder", "leakage-detection", "leakage-correction"]  # fmt: skip


@pytest.mark.parametrize(("place", "expected"), [((), (0, 0)), ((2, 3), (2, 3))])
async def test_an_attempt_knows_its_path_and_step(
    place: tuple[int, ...], expected: tuple[int, int], quick_run: ScriptedRun
) -> None:
    if place:
        with path_context(place[0], quick_run.work_dir):
            await refine(quick_run, k=1, code_block=block(t=place[1]))
    else:
        await refine(quick_run, k=1, code_block=block(t=None))
    assert [(event.path, event.t) for event in quick_run.events(RefinementTried)] == [expected]


async def test_the_state_of_a_loop_can_be_seen_from_outside_while_it_runs(quick_run: ScriptedRun) -> None:
    seen: list[tuple[float, list[str]]] = []

    def look(_: Any) -> str:
        state = quick_run.context.shared.search.blocks.get("main")
        assert state is not None
        seen.append((state.best_score, state.plans))
        return "next plan"

    assert quick_run.context.shared.search.blocks.get("main") is None
    play_attempts(quick_run.agents, [0.6, 0.7])
    quick_run.agents._queues["planner"][:] = [look]
    await refine(quick_run, k=2)
    assert seen == [(0.6, ["plan 0"])]
    assert quick_run.context.shared.search.blocks.get("path-0") is None


def assert_valid(result: InnerLoopResult, k: int) -> None:
    """A result that the outer loop can work with."""
    assert len(result.attempts) == k
    assert result.best_score >= 0.5 and result.best_solution.score == result.best_score
    for attempt in result.attempts:
        assert not (attempt.was_improvement and attempt.score is None)
        assert attempt.plan
    if not any(accepted(result)):
        assert result.best_solution == base_solution().model_copy(
            update={"created_at": result.best_solution.created_at}
        )


@pytest.mark.req("REQ-P2I-041")
async def test_the_eventful_loop_calls_every_agent(quick_run: ScriptedRun) -> None:
    eventful(quick_run.agents)
    result = await refine(quick_run, k=2)
    assert quick_run.agents.names == EVENTFUL and len(quick_run.executor.scripts) == 3
    assert scores(result) == [0.6, 0.8]


@pytest.mark.req("REQ-P2I-041")
@pytest.mark.parametrize("fault", AGENT_FAULTS)
@pytest.mark.parametrize("position", range(len(EVENTFUL)))
async def test_no_agent_failure_anywhere_ends_the_loop(position: int, fault: Fault, quick_run: ScriptedRun) -> None:
    eventful(quick_run.agents)
    quick_run.agents.faults[position] = fault
    assert_valid(await refine(quick_run, k=2), k=2)
    assert quick_run.agents.log[position].name == EVENTFUL[position]


@pytest.mark.req("REQ-P2I-041", "REQ-P2I-027")
@pytest.mark.parametrize("position", range(3))
async def test_no_script_failure_anywhere_ends_the_loop(position: int, quick_run: ScriptedRun) -> None:
    eventful(quick_run.agents)
    quick_run.executor.faults.add(position)
    assert_valid(await refine(quick_run, k=2), k=2)


@pytest.mark.req("REQ-P2I-041")
@pytest.mark.parametrize("fault", AGENT_FAULTS)
async def test_when_everything_fails_there_are_still_k_attempts(fault: Fault, quick_run: ScriptedRun) -> None:
    quick_run.agents.faults.update(dict.fromkeys(range(99), fault))
    result = await refine(quick_run, k=4)
    assert_valid(result, k=4)
    assert not result.improved and scores(result) == [None] * 4


@pytest.mark.req("REQ-P2I-041")
@pytest.mark.parametrize("position", range(len(EVENTFUL)))
@pytest.mark.parametrize("signal", [BudgetExceeded(limit="time", used=2, allowed=1), asyncio.CancelledError()])
async def test_the_signals_to_stop_pass_through(signal: BaseException, position: int, quick_run: ScriptedRun) -> None:
    eventful(quick_run.agents)
    name = EVENTFUL[position]
    earlier = EVENTFUL[:position].count(name)
    quick_run.agents._queues[name].insert(earlier, signal)
    if len(quick_run.agents._queues[name]) <= earlier:  # pragma: no cover - a mistake of this test
        raise AssertionError(name)
    with pytest.raises(type(signal)):
        await refine(quick_run, k=2)
    assert len(quick_run.agents.log) == position + 1


@pytest.mark.modes("usual")
async def test_a_run_that_is_told_to_finish_ends_the_loop_after_the_attempt(quick_run: ScriptedRun) -> None:
    def finish(_: Any) -> Any:
        quick_run.context.budget.finish_requested = True
        return fenced("level = 0.9")

    quick_run.agents.reply("coder", fenced("level = 0.6"), finish)
    result = await refine(quick_run, k=4)
    assert scores(result) == [0.6, 0.9] and result.best_score == 0.9 and result.improved
    again = await refine(quick_run, k=4)
    assert again.attempts == [] and again.best_score == 0.5 and not again.improved
