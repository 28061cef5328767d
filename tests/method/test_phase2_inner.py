"""The inner loop of Phase 2: which attempt wins, what is recorded, and that no failure ends it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mle_star.models import InnerLoopResult, RefinementAttempt, SolutionPhase
from mle_star.phase2_inner import invoke_coder, run_phase2_inner_loop
from mle_star.run.context import path_context, scope
from mle_star.run.events import PLANNER_FAILED, AgentFinished, RefinementTried, ScriptFinished
from mle_star.run.progress import PathProgress, StepProgress
from mle_star.run.prompt_context import MARK

from .conftest import NO_LEAKAGE, Fault, ScriptedRun, fenced, leaky, settings
from .loops import BLOCK, base_solution, block, measured, play_attempts, section

pytestmark = pytest.mark.modes("delivered", "letter")


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


@pytest.mark.req("REQ-P2I-027", "REQ-P2I-033", "REQ-P2I-036", "REQ-P2I-037", "REQ-P2I-038", "REQ-P2I-048")
async def test_without_a_better_attempt_the_input_comes_back(quick_run: ScriptedRun) -> None:
    solution = base_solution()
    play_attempts(quick_run.agents, [0.1, "crash", "coder", 0.4])
    result = await refine(quick_run, k=4, solution=solution)
    assert result.best_solution == solution and result.best_score == 0.5 and not result.improved
    assert len(result.attempts) == 4
    assert scores(result) == [0.1, None, None, 0.4] and accepted(result) == [False] * 4


@pytest.mark.req("REQ-P2I-033")
async def test_a_block_that_is_not_in_the_script_fails_the_attempt_but_not_the_loop(quick_run: ScriptedRun) -> None:
    play_attempts(quick_run.agents, [0.6, 0.7])
    result = await refine(quick_run, k=2, code_block=block("level = 0.123"))
    assert [(a.score, a.code_block, a.was_improvement) for a in result.attempts] == [
        (None, "level = 0.6  # k0", False), (None, "level = 0.7  # k1", False),
    ]  # fmt: skip
    assert quick_run.agents.names == ["coder", "planner", "coder"] and quick_run.executor.scripts == []


async def test_a_plan_that_the_extractor_left_empty_fails_only_the_first_attempt(quick_run: ScriptedRun) -> None:
    play_attempts(quick_run.agents, ["planner", 0.6])  # the coder is asked once, for the second attempt
    quick_run.agents._queues["coder"].pop(0)
    result = await refine(quick_run, k=2, initial_plan="")
    assert [attempt.plan for attempt in result.attempts] == ["", "plan 1"]
    assert scores(result) == [None, 0.6]
    blank = await refine(quick_run, k=3, code_block=block(" \n"))
    assert scores(blank) == [None] * 3 and not blank.improved


@pytest.mark.req("REQ-P2I-031")
async def test_a_crash_is_repaired_and_the_repaired_script_counts(run: ScriptedRun) -> None:
    run.agents.reply("coder", fenced("level = 1 / 0"))
    run.agents.reply("debugger", fenced(base_solution().content.replace(BLOCK, "level = 0.9")))
    result = await refine(run, k=1)
    assert run.agents.names == ["coder", "leakage-detection", "debugger", "leakage-detection"]
    assert "ZeroDivisionError" in run.agents.calls("debugger")[0].prompt
    assert (scores(result), accepted(result), result.best_score) == ([0.9], [True], 0.9)
    assert "level = 0.9" in result.best_solution.content and result.attempts[0].code_block == "level = 1 / 0"


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


BEST = "Best block so far"


@pytest.mark.modes("delivered")
async def test_planner_and_coder_are_told_the_script_around_the_block_and_the_best_block_so_far(
    quick_run: ScriptedRun,
) -> None:
    start = base_solution()
    play_attempts(quick_run.agents, [0.3, 0.6, 0.4, "planner"])
    quick_run.context.shared.progress.paths["main"] = path = PathProgress(start, 0.5, quick_run.task)
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


@pytest.mark.modes("delivered")
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
        state = quick_run.context.shared.progress.blocks.get("main")
        assert state is not None
        seen.append((state.best_score, state.plans))
        return "next plan"

    assert quick_run.context.shared.progress.blocks.get("main") is None
    play_attempts(quick_run.agents, [0.6, 0.7])
    quick_run.agents._queues["planner"][:] = [look]
    await refine(quick_run, k=2)
    assert seen == [(0.6, ["plan 0"])]
    assert quick_run.context.shared.progress.blocks.get("path-0") is None


@pytest.mark.modes("delivered")
async def test_a_run_that_is_told_to_finish_ends_the_loop_after_the_attempt(quick_run: ScriptedRun) -> None:
    def finish(_: Any) -> Any:
        quick_run.context.budget.finish_requested = True
        return fenced("level = 0.9")

    quick_run.agents.reply("coder", fenced("level = 0.6"), finish)
    result = await refine(quick_run, k=4)
    assert scores(result) == [0.6, 0.9] and result.best_score == 0.9 and result.improved
    again = await refine(quick_run, k=4)
    assert again.attempts == [] and again.best_score == 0.5 and not again.improved


@pytest.mark.req("REQ-P2I-027", "REQ-P2I-032", "REQ-P2I-034", "REQ-P2I-035")
@pytest.mark.parametrize("fault", ["empty", "raises"])
async def test_failed_attempts_are_recorded_and_the_planner_learns_of_them(
    fault: Fault, quick_run: ScriptedRun
) -> None:
    play_attempts(quick_run.agents, [0.6, "coder", "crash", 0.7])
    quick_run.agents.reply("planner", "plan 4")
    quick_run.agents.faults["k-3/planner"] = fault
    result = await refine(quick_run, k=5)
    assert [(a.plan, a.score, a.code_block, a.was_improvement) for a in result.attempts] == [
        ("plan 0", 0.6, "level = 0.6  # k0", True),
        ("plan 1", None, "", False),
        ("plan 2", None, "raise RuntimeError('k2')", False),
        (PLANNER_FAILED, None, "", False),
        ("plan 3", 0.7, "level = 0.7  # k3", True),
    ]
    assert PLANNER_FAILED == "[planner failed]" and len(set(quick_run.executor.scripts)) == 3
    history = section(quick_run.agents.calls("planner")[-1].prompt, "Improvement plans you have tried")
    tried = re.findall(r"## Plan: (.*)\n## Score: (.*)", history)
    failed = "N/A (evaluation failed)"
    assert tried == [("plan 0", "0.6"), ("plan 1", failed), ("plan 2", failed), (PLANNER_FAILED, failed)]
