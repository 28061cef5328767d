"""The outer loop of Phase 2: ablation, summary, choice of the block, and what a path keeps."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from mle_star.method.codeblocks import replacement
from mle_star.models import (
    AgentType,
    CodeBlock,
    ExtractorOutput,
    Phase2Result,
    PipelineConfig,
    RefinementAttempt,
    SolutionPhase,
    SolutionScript,
    agent_config,
)
from mle_star.phase2_outer import (
    ABLATION_FAILED,
    AUTO_SUMMARY,
    choose_block,
    execute_ablation,
    invoke_extractor,
    invoke_summarize,
    run_phase2_outer_loop,
    validate_code_block,
)
from mle_star.prompts import BLOCK_NOT_FOUND
from mle_star.run.clock import ablation_limit
from mle_star.run.context import current_run, path_context, scope
from mle_star.run.events import (
    AblationFinished,
    AgentFinished,
    BestImproved,
    BlockChosen,
    RefinementTried,
    ScriptFinished,
    ScriptStarted,
)
from mle_star.safety import evaluate_checked
from tests.ledgers import ran

from .conftest import Fault, ScriptedExecutor, ScriptedRun, fenced, scripted_run, settings
from .loops import BLOCK, base_solution, part, plans, play_steps, section

pytestmark = pytest.mark.modes("delivered", "letter")

STUDY = "print('Ablation baseline: 0.5')\nprint('Ablation no level: 0.1')\n"
BROKEN_STUDY = "print('Ablation baseline: 0.5')\nlevel = 1 / 0\n"
STEP_FIELDS = {
    "outer_step", "ablation_summary", "code_block", "plan", "inner_loop_attempts", "best_score_after_step",
    "was_skipped", "failed",
}  # fmt: skip


async def follow(run: ScriptedRun, t: int, k: int = 1, **changes: Any) -> Phase2Result:
    """A path of `t` steps with `k` attempts each, from the base script, which scores 0.5."""
    given: dict[str, Any] = {
        "initial_solution": base_solution(blocks=t), "initial_score": 0.5, "task": run.task,
        "config": settings(T=t, K=k),
    }  # fmt: skip
    return await run_phase2_outer_loop(**{**given, **changes})


def study(content: str = STUDY) -> SolutionScript:
    return SolutionScript(content=content, phase=SolutionPhase.refined)


def assert_aligned(result: Phase2Result, steps: int) -> None:
    """One summary, one block and one record per step, each with its index."""
    assert len(result.ablation_summaries) == len(result.refined_blocks) == len(result.step_history) == steps
    assert [block.outer_step for block in result.refined_blocks] == list(range(steps))
    assert [record["outer_step"] for record in result.step_history] == list(range(steps))
    for block, record in zip(result.refined_blocks, result.step_history, strict=True):
        assert set(record) == STEP_FIELDS
        assert record["code_block"] == block.content
        assert record["was_skipped"] is block.is_placeholder


SUMMARY = (
    "\nOneHotEncoder has the most impact.\n```\n1\n```\n" + "Imputation has the least. " * 900 + "So much for it.\n"
)


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-P2O-011", "REQ-P2O-016")
async def test_a_summary_is_kept_and_passed_on_word_by_word(quick_run: ScriptedRun) -> None:
    play_steps(quick_run.agents, [[0.6], [0.7]])
    quick_run.agents._queues["summarize"][0] = SUMMARY
    result = await follow(quick_run, t=2)
    assert result.ablation_summaries == [SUMMARY, "summary 1"]
    assert SUMMARY.strip() in quick_run.agents.calls("extractor")[0].prompt
    assert SUMMARY.strip() in quick_run.agents.calls("ablation")[1].prompt
    first, second = (call.prompt.rpartition("# Facts")[2] for call in quick_run.agents.calls("extractor"))
    (attempt,) = result.step_history[0]["inner_loop_attempts"]
    assert '"tried"' not in first and f'"tried": ["{attempt.plan}"]' in second


@pytest.mark.req("REQ-P2O-036")
@pytest.mark.parametrize("fault", ["empty", "raises"])
@pytest.mark.parametrize("length", [0, 2000, 5000])
async def test_without_a_summary_the_end_of_the_output_stands_in(
    length: int, fault: Fault, quick_run: ScriptedRun
) -> None:
    output = "".join(chr(97 + n % 26) for n in range(length))
    quick_run.agents.faults[0] = fault
    assert await invoke_summarize("print()", output) == "[Auto-summary from raw output] " + output[-2000:]


@pytest.mark.req("REQ-P2O-014", "REQ-P2O-015")
@pytest.mark.parametrize("as_text", [False, True])
async def test_the_extractor_answers_by_its_schema_and_its_first_plan_counts(
    as_text: bool, quick_run: ScriptedRun
) -> None:
    assert agent_config(AgentType.extractor).to_output_format() == {
        "type": "json_schema", "schema": ExtractorOutput.model_json_schema(),
    }  # fmt: skip
    answer = ExtractorOutput.model_validate(plans((BLOCK, "first"), ("from pathlib import Path", "second")))
    quick_run.agents.always("extractor", answer.model_dump_json() if as_text else answer)
    assert await invoke_extractor("summary", base_solution(), []) == answer
    chosen = await choose_block("summary", base_solution(), [])
    assert chosen == answer.plans[0] and chosen.code_block in base_solution().content


@pytest.mark.req("REQ-P2O-017")
@pytest.mark.parametrize(
    ("block", "valid"),
    [
        ("scaler = StandardScaler()\nX_train = scaler.fit_transform(X_train)", True),
        ("caler = StandardScaler()", True),
        ("scaler = StandardScaler() \nX_train = scaler.fit_transform(X_train)", False),
        ("scaler  = StandardScaler()", False),
        ("\nscaler = StandardScaler()\n", True),
        (" scaler = StandardScaler()", False),
        ("scaler = StandardScaler() ", False),
        ("\n\nprint(1)", False),
        ("print(1)\n\n", False),
        ("Scaler = StandardScaler()", False),
    ],
)
def test_a_block_is_valid_when_every_character_agrees(block: str, valid: bool) -> None:
    content = "import x\nscaler = StandardScaler()\nX_train = scaler.fit_transform(X_train)\nprint(1)\n"
    assert validate_code_block(block, base_solution().model_copy(update={"content": content})) is valid


@pytest.mark.req("REQ-P2O-018")
async def test_blanks_at_line_ends_and_fences_do_not_hide_a_block(quick_run: ScriptedRun) -> None:
    solution = base_solution().model_copy(update={"content": "a = 1\nif a:   \n    b = 2\t\nc = 3\n"})
    quick_run.agents.reply("extractor", plans(("if a:\n    b = 2  ", "p")))
    quick_run.agents.reply("extractor", plans(("```python\nc = 3\n```", "q")))
    chosen = await choose_block("summary", solution, [])
    assert chosen is not None and chosen.plan == "p"
    assert chosen.code_block.rstrip() == "if a:   \n    b = 2" and validate_code_block(chosen.code_block, solution)
    again = await choose_block("summary", solution, [])
    assert again is not None and (again.code_block, again.plan) == ("c = 3", "q")
    assert len(quick_run.agents.log) == 2


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-P2O-018")
async def test_a_block_is_taken_as_it_can_be_replaced(quick_run: ScriptedRun) -> None:
    """Part of a number is no block, and the line end before a block belongs to the comment that it ends."""
    solution = base_solution().model_copy(update={"content": "# the level\nlevel = 0.5100\nprint(level)\n"})
    quick_run.agents.reply("extractor", plans(("level = 0.5", "p")), plans(("\nlevel = 0.5100\n", "q")))
    chosen = await choose_block("summary", solution, [])
    assert chosen is not None and (chosen.code_block, chosen.plan) == ("level = 0.5100", "q")
    replaced = solution.replace_block(*replacement(solution.content, chosen.code_block, "level = 0.9"))
    assert replaced.content == "# the level\nlevel = 0.9\nprint(level)\n"


@pytest.mark.req("REQ-P2O-018")
@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_a_block_that_is_not_in_the_solution_is_asked_for_twice_more(bad: int, quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("extractor", *[plans((f"level = {n}9", "p")) for n in range(bad)])
    quick_run.agents.reply("extractor", plans((BLOCK, "good")))
    chosen = await choose_block("summary", base_solution(), ["old"])
    assert chosen is not None and (chosen.code_block, chosen.plan) == (BLOCK, "good")
    calls = quick_run.agents.calls("extractor")
    assert [BLOCK_NOT_FOUND in call.prompt for call in calls] == [False, *[True] * bad]
    assert all("old" in section(call.prompt, "Code blocks improved before") for call in calls)  # same inputs


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-P2O-018")
async def test_after_three_wrong_blocks_any_other_plan_of_the_newest_answer_will_do(quick_run: ScriptedRun) -> None:
    wrong, right = ("not there", "p"), "from pathlib import Path"
    quick_run.agents.reply("extractor", plans(wrong, (BLOCK, "old")), plans(wrong, (right, "newer")), plans(wrong))
    chosen = await choose_block("summary", base_solution(), [])
    assert chosen is not None and (chosen.code_block, chosen.plan) == (right, "newer")
    assert len(quick_run.agents.log) == 3
    quick_run.agents.reply("extractor", plans(wrong), plans(("\n", "p")), plans((" ", "q"), ("", "p")))  # blanks
    assert await choose_block("summary", base_solution(), []) is None


@pytest.mark.req("REQ-P2O-034", "REQ-P2O-018")
@pytest.mark.parametrize(
    ("answers", "asked", "found"),
    [
        (["bad", "ok"], 2, True),
        (["bad", "bad", "ok"], 2, False),
        (["wrong", "bad", "wrong", "ok"], 4, True),  # the two counters are apart: four calls at most
        (["bad", "wrong", "wrong", "ok"], 4, True),
        (["bad", "wrong", "wrong", "wrong", "ok"], 4, False),
        (["wrong", "bad", "bad", "ok"], 3, False),
        (["wrong", "wrong", "wrong", "ok"], 3, False),
    ],
)
async def test_unreadable_answers_and_wrong_blocks_are_counted_apart(
    answers: list[str], asked: int, found: bool, quick_run: ScriptedRun
) -> None:
    replies = {"bad": '{"plans": "oops"}', "wrong": plans(("not there", "p")), "ok": plans((BLOCK, "good"))}
    quick_run.agents.reply("extractor", *(replies[name] for name in answers))
    assert (await choose_block("summary", base_solution(), []) is not None) is found
    assert len(quick_run.agents.log) == asked


@pytest.mark.req("REQ-P2O-020")
async def test_the_study_runs_in_the_paths_directory_and_its_output_is_summarised(
    run: ScriptedRun, tmp_path: Path
) -> None:
    content = "import os\nprint(sorted(os.listdir('input')))\nprint('Final Validation Performance: 0.99')"
    content += "\nprint('Ablation baseline: 0.5')"
    run.agents.reply("ablation", fenced(content))
    play_steps(run.agents, [[0.6]])
    work_dir = tmp_path / "run" / "work" / "path-3"
    work_dir.mkdir(parents=True)
    with scope("phase2"), path_context(3, work_dir):
        await follow(run, t=1)
    prompt = run.agents.calls("summarize")[0].prompt
    assert content in section(prompt, "Ablation code")
    assert "['sample_submission.csv', 'test.csv', 'train.csv']" in section(prompt, "Printed output")
    assert run.executor.requests[0].working_dir == str(work_dir)
    ran = run.events(ScriptFinished)
    assert [(event.step, event.purpose) for event in ran] == [
        ("phase2/path-3/t-0/ablation-script", "ablation"), ("phase2/path-3/t-0/k-0/script", "solution"),
    ]  # fmt: skip
    assert [event.score for event in run.events(BestImproved)] == [0.6]  # a study has no score of its own
    assert run.events(AblationFinished)[0].path == 3


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-P2O-010", "REQ-P2O-020", "REQ-P2O-021")
@pytest.mark.parametrize("crashes", [0, 3])
@pytest.mark.parametrize("words", ["without the encoder 0.79 instead of 0.82", ""])
async def test_a_study_in_its_own_words_is_summarised_as_it_is(words: str, crashes: int, run: ScriptedRun) -> None:
    """The lines that charts can read are welcome, but nothing is repaired for want of them."""
    own = f"print({words!r}, end='')"
    broken = [f"{BROKEN_STUDY}print({n})" for n in range(crashes)]
    first, *repairs = fenced(*broken, own, "print('one too many')")
    run.agents.reply("ablation", first)
    run.agents.reply("debugger-ablation", *repairs)
    play_steps(run.agents, [[0.6]])
    result = await follow(run, t=1, config=settings(T=1, K=1, max_debug_attempts=3))
    assert len(run.agents.calls("debugger-ablation")) == crashes
    (asked,) = run.agents.calls("summarize")
    assert own in section(asked.prompt, "Ablation code") and words in section(asked.prompt, "Printed output")
    (told,) = run.events(AblationFinished)
    assert (told.failed, told.scores, told.summary, told.comparable) == (False, {}, "summary 0", True)
    assert result.ablation_summaries == ["summary 0"]


@pytest.mark.req("REQ-P2O-021")
async def test_a_study_that_nobody_can_repair_leaves_an_empty_summary(run: ScriptedRun) -> None:
    debugger = [fenced(f"{BROKEN_STUDY}print({n})") for n in range(9)]
    run.agents.reply("ablation", fenced(STUDY), fenced(BROKEN_STUDY))
    play_steps(run.agents, [[0.4], [0.6]])
    run.agents.reply("debugger", *debugger)
    run.agents.reply("debugger-ablation", *debugger)
    result = await follow(run, t=2, config=settings(T=2, K=1, max_debug_attempts=2))
    asked = [call.prompt for call in run.agents.log if "debug" in call.name]
    assert len(asked) == 2 and ["print(0)" in prompt for prompt in asked] == [False, True]  # repairs are kept
    assert len([e for e in run.events(ScriptFinished) if e.purpose == "ablation"]) == 1 + 3
    assert result.ablation_summaries == ["summary 0", ""] and result.best_score == 0.6
    assert run.agents.names.count("summarize") == 1
    told = section(run.agents.calls("extractor")[1].prompt, "Ablation summary")
    assert ABLATION_FAILED == "Ablation study failed for this step"
    assert re.search(rf"{ABLATION_FAILED}.*summary 0", told, re.DOTALL)
    failed = run.events(AblationFinished)[1]
    assert (failed.failed, failed.scores, failed.summary) == (True, {}, "")


@pytest.mark.modes("delivered")
async def test_where_the_time_left_would_not_do_for_the_baseline_there_is_no_study_and_no_repair_of_one(
    quick_path: Path,
) -> None:
    endless = (0.5, 1e6)  # score and seconds of the solution
    with scripted_run(quick_path, executor=ScriptedExecutor()) as short:
        ran(short.context, *endless)
        await run_phase2_outer_loop(base_solution(), 0.5, short.task, settings(T=1, K=1))
        assert "ablation" not in short.agents.names and short.agents.names[0] == "extractor"
        assert ABLATION_FAILED in short.agents.calls("extractor")[0].prompt
        ran(short.context, 0.99, 1e6)  # the loop has measured it anew
        await execute_ablation(study("raise RuntimeError('x')"), short.task, settings())
        assert not short.agents.calls("debugger-ablation")
    with scripted_run(quick_path / "long", executor=ScriptedExecutor()) as long:
        await run_phase2_outer_loop(base_solution(), 0.5, long.task, settings(T=1, K=1))
        assert long.agents.names[0] == "ablation"
    with scripted_run(quick_path / "long", executor=ScriptedExecutor()) as again:
        ran(again.context, *endless)
        await run_phase2_outer_loop(base_solution(), 0.5, again.task, settings(T=1, K=1))
        assert again.agents.names == []  # the study that was made before counts, however little time is left


@pytest.mark.req("REQ-P2O-035")
@pytest.mark.parametrize(
    ("limit", "steps", "timeout"),
    [(86400, 4, 600.0), (4800, 4, 600.0), (2400, 4, 300.0), (600, 2, 150.0), (60, 1, 30.0)],
)
def test_a_study_may_take_half_a_share_and_ten_minutes_at_most(limit: int, steps: int, timeout: float) -> None:
    config = PipelineConfig(time_limit_seconds=limit, outer_loop_steps=steps)
    assert ablation_limit(config, left=limit) == timeout


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-P2O-035")
async def test_the_timeout_is_what_the_study_runs_under(quick_path: Path) -> None:
    now = [0.0]
    config = settings(T=1, K=1, time_limit_seconds=1000)
    with scripted_run(quick_path, config=config, executor=ScriptedExecutor(), clock=lambda: now[0]) as run:
        await execute_ablation(study(), run.task, config)
        now[0] = 800.0
        await execute_ablation(study("print('Ablation baseline: 2')"), run.task, config)
        started = run.events(ScriptStarted)
    assert [event.timeout_seconds for event in started] == [500.0, 100.0]  # never longer than half of what is left
    assert [request.timeout_seconds for request in run.executor.requests] == [500.0, 100.0]


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-P2O-035")
async def test_a_study_of_a_slow_solution_may_take_its_variants_at_that_pace(quick_path: Path) -> None:
    config = settings(T=4, time_limit_seconds=86400)
    with scripted_run(quick_path, config=config, executor=ScriptedExecutor()) as run:
        ran(run.context, 0.5, 900)
        await execute_ablation(study(), run.task, config)
        with path_context(0, run.work_dir):
            ran(current_run(), 0.6, 1200)
            await execute_ablation(study("print('Ablation baseline: 2')"), run.task, config)
        [main, path] = run.events(ScriptStarted)
    assert (main.timeout_seconds, path.timeout_seconds) == (2 * 4 * 900, 2 * 4 * 1200)
    config = settings(T=4, time_limit_seconds=86400, script_timeout_seconds=50)
    with scripted_run(quick_path / "explicit", config=config, executor=ScriptedExecutor()) as run:
        ran(run.context, 0.5, 900)
        await execute_ablation(study(), run.task, config)
        assert run.events(ScriptStarted)[0].timeout_seconds == 50


@pytest.mark.modes("delivered")
@pytest.mark.parametrize(
    ("baseline", "score", "comparable"),
    [
        ("0.5", 0.5, True), ("0.505", 0.5, True), ("0.495", 0.5, True), ("0.51", 0.5, False), ("0.494", 0.5, False),
        ("-0.5", -0.5, True), ("-0.6", -0.5, False), ("0.0", 0.0, True), ("0.001", 0.0, False), (None, 0.5, True),
    ],
)  # fmt: skip
async def test_a_baseline_off_by_more_than_one_percent_is_not_comparable(
    baseline: str | None, score: float, comparable: bool, quick_run: ScriptedRun
) -> None:
    lines = ["print('Ablation no level: 0.1')", *([f"print('Ablation Baseline: {baseline}')"] if baseline else [])]
    quick_run.agents.reply("ablation", fenced("\n".join(lines)))
    quick_run.agents.always("extractor", "no JSON")
    await follow(quick_run, t=1, initial_score=score)
    event = quick_run.events(AblationFinished)[0]
    assert (event.comparable, event.solution_score, event.scores["no level"]) == (comparable, score, 0.1)
    assert event.scores.get("Baseline") == (float(baseline) if baseline else None)
    assert event.summary == "The level matters most."
    prompt = quick_run.agents.calls("summarize")[0].prompt
    assert ("not comparable" in prompt) is not comparable
    assert (f"itself printed, {score:g}" in prompt) is not comparable


@pytest.mark.modes("delivered")
async def test_a_baseline_is_compared_with_what_the_solution_itself_printed(quick_run: ScriptedRun) -> None:
    """By hidden rows the score of a solution is not what it says: a study can only repeat the latter."""
    hidden, printed = 0.42, 0.5
    await evaluate_checked(base_solution(printed, blocks=1), quick_run.task, settings())
    for baseline in (printed, hidden):
        quick_run.agents.reply("ablation", fenced(f"print('Ablation baseline: {baseline}')"))
        play_steps(quick_run.agents, ["skip"])
        await follow(quick_run, t=1, initial_score=hidden)
    same, other = quick_run.events(AblationFinished)
    assert (same.comparable, other.comparable, same.solution_score) == (True, False, hidden)
    first, second = (call.prompt for call in quick_run.agents.calls("summarize"))
    assert "not comparable" not in first and f"itself printed, {printed:g}" in second and f"{hidden:g}:" not in second


@pytest.mark.req("REQ-P2O-019", "REQ-P2O-025", "REQ-P2O-026", "REQ-P2O-040", "REQ-P2O-038")
async def test_two_steps_are_two_rounds_of_study_choice_and_refinement(run: ScriptedRun) -> None:
    play_steps(run.agents, [[0.6, 0.55], [0.7, 0.8]])
    with scope("phase2", "path-0"):
        result = await follow(run, t=2, k=2)
    attempts = ["coder", "leakage-detection", "planner", "coder", "leakage-detection"]
    assert run.agents.names == ["ablation", "summarize", "extractor", *attempts] * 2
    assert run.executor.most_at_once == 1 and len(run.events(ScriptFinished)) == 2 * 3
    assert [call.step for call in run.agents.calls("coder")] == [
        f"phase2/path-0/t-{t}/k-{k}/coder" for t in range(2) for k in range(2)
    ]
    assert len(run.events(AgentFinished)) == len(run.agents.log)  # no other way to a model
    for t, call in enumerate(run.agents.calls("coder")[::2]):  # the handoff: block and plan of this step
        assert part(t) in section(call.prompt, "Code block") and f"plan t{t}k0" in section(call.prompt, "Plan")
    assert [(e.t, e.block, e.plan) for e in run.events(BlockChosen)] == [
        (t, part(t), f"plan t{t}k0") for t in range(2)
    ]  # fmt: skip
    assert result.best_score == 0.8 and not result.partial
    second = run.agents.calls("ablation")[1].prompt
    assert "level = 0.6  # t0k0" in section(second, "Python solution")  # s_t is the best so far


@pytest.mark.req("REQ-P2O-022", "REQ-P2O-023", "REQ-P2O-028", "REQ-P2O-030", "REQ-P2O-044")
async def test_summaries_blocks_and_history_grow_by_one_a_step(quick_run: ScriptedRun) -> None:
    play_steps(quick_run.agents, [[0.6], [0.4], [0.7]])
    result = await follow(quick_run, t=3)
    assert_aligned(result, 3)
    assert result.ablation_summaries == ["summary 0", "summary 1", "summary 2"]
    assert result.refined_blocks == [CodeBlock(content=part(t), outer_step=t) for t in range(3)]
    assert result.step_history[1] == {
        "outer_step": 1, "ablation_summary": "summary 1", "code_block": part(1), "plan": "plan t1k0",
        "inner_loop_attempts": [
            RefinementAttempt(
                plan="plan t1k0", score=0.4, code_block="part_1 = 1\nlevel = 0.4  # t1k0", was_improvement=False
            )
        ],
        "best_score_after_step": 0.6, "was_skipped": False, "failed": False,
    }  # fmt: skip
    assert [record["best_score_after_step"] for record in result.step_history] == [0.6, 0.6, 0.7]
    for t in range(3):
        ablation, extractor = (quick_run.agents.calls(name)[t].prompt for name in ("ablation", "extractor"))
        assert re.findall(r"summary \d", ablation) == [f"summary {n}" for n in range(t)]
        if t:
            shown = section(extractor, "Code blocks improved before")
            assert re.findall(r"part_\d = 0", shown) == [part(n) for n in range(t)]


@pytest.mark.req("REQ-P2O-016", "REQ-P2O-018", "REQ-P2O-024")
async def test_a_block_must_stand_in_the_best_so_far_not_in_the_initial_script(quick_run: ScriptedRun) -> None:
    new = "level = 0.6  # t0k0"  # what the first step wrote in the place of its block
    play_steps(quick_run.agents, [[0.6], [0.7]])
    quick_run.agents._queues["extractor"][1:] = [plans((part(0), "gone by now")), plans((new, "refine it again"))]
    result = await follow(quick_run, t=2)
    assert [block.content for block in result.refined_blocks] == [part(0), new]
    assert [event.plan for event in quick_run.events(BlockChosen)] == ["plan t0k0", "refine it again"]
    assert BLOCK_NOT_FOUND in quick_run.agents.calls("extractor")[2].prompt


@pytest.mark.req("REQ-P2O-029", "REQ-P2O-043", "REQ-P2O-028")
async def test_without_an_improvement_the_initial_solution_comes_back(quick_run: ScriptedRun) -> None:
    solution = base_solution(blocks=4)
    solution.score = None
    before = solution.model_copy(deep=True)
    play_steps(quick_run.agents, [[0.1, "crash"], ["coder", 0.2], [0.3, 0.4], "skip"])
    result = await follow(quick_run, t=4, k=2, initial_solution=solution)
    assert solution == before  # not touched, not even its score
    assert result.best_solution.content == before.content and result.best_score == 0.5
    assert result.best_solution.score == 0.5
    assert_aligned(result, 4)


@pytest.mark.req("REQ-P2O-025", "REQ-P2O-034", "REQ-P2O-018")
async def test_a_skipped_step_leaves_placeholders_that_no_prompt_shows(quick_run: ScriptedRun) -> None:
    play_steps(quick_run.agents, [[0.6], "skip", [0.7]])
    result = await follow(quick_run, t=3)
    assert_aligned(result, 3)
    assert result.ablation_summaries == ["summary 0", "", "summary 2"]
    assert [block.content for block in result.refined_blocks] == [part(0), "", part(2)]
    skipped = result.step_history[1]
    assert skipped["was_skipped"] and not skipped["failed"] and skipped["plan"] == ""
    assert skipped["ablation_summary"] == "summary 1"  # the true one
    assert skipped["inner_loop_attempts"] == [] and skipped["best_score_after_step"] == 0.6
    last = quick_run.agents.calls("ablation")[2].prompt
    assert "summary 0" in last and "summary 1" not in last
    shown = section(quick_run.agents.calls("extractor")[-1].prompt, "Code blocks improved before")
    assert re.findall(r"^## .*$", shown, re.MULTILINE) == ["## Block 1"]
    assert [event.block for event in quick_run.events(BlockChosen)] == [part(0), "", part(2)]


async def test_a_path_that_is_cut_off_keeps_the_best_attempt_of_the_step_it_was_in(quick_run: ScriptedRun) -> None:
    forever = asyncio.Event()

    async def hang(_: Any) -> str:
        await forever.wait()
        return ""

    play_steps(quick_run.agents, [[0.4], [0.8, 0.7]])
    quick_run.agents.reply("planner", hang)
    with scope("phase2"), path_context(0, quick_run.work_dir):
        assert current_run().shared.progress.path_result("path-0") is None  # not begun yet
        path = asyncio.create_task(follow(quick_run, t=2, k=3, config=settings(T=2, K=3)))
    quick_run.agents._queues["planner"][:] = ["p", "p", "p", hang]
    quick_run.agents._queues["coder"][:] = [
        fenced(f"level = {level}") for level in (0.4, 0.3, 0.2, 0.8, 0.7)
    ]  # fmt: skip
    while len(quick_run.agents.calls("planner")) < 4:
        await asyncio.sleep(0.01)
    path.cancel()
    with pytest.raises(asyncio.CancelledError):
        await path
    partial = current_run().shared.progress.path_result("path-0")
    assert partial is not None and partial.partial
    assert_aligned(partial, 2)
    assert partial.best_score == 0.8 == partial.best_solution.score and "level = 0.8" in partial.best_solution.content
    assert [len(record["inner_loop_attempts"]) for record in partial.step_history] == [3, 2]
    last = partial.step_history[1]
    assert (last["best_score_after_step"], last["was_skipped"], last["failed"]) == (0.8, False, False)
    assert current_run().shared.progress.path_result("path-0") == partial  # asking changes nothing


async def test_a_path_that_ended_has_its_whole_result(quick_run: ScriptedRun) -> None:
    play_steps(quick_run.agents, [[0.6]])
    result = await follow(quick_run, t=1)
    assert current_run().shared.progress.path_result("main") == result and not result.partial
    assert current_run().shared.progress.path_result("path-7") is None


@pytest.mark.modes("delivered")
async def test_a_run_that_is_told_to_finish_ends_the_path_after_the_step(quick_run: ScriptedRun) -> None:
    def finish(_: Any) -> Any:
        quick_run.context.budget.finish_requested = True
        return plans((part(1), "last plan"))

    quick_run.agents.reply("extractor", plans((part(0), "p0")), finish)
    quick_run.agents.always("coder", fenced("level = 0.6"))
    result = await follow(quick_run, t=4, k=2)
    assert_aligned(result, 2)
    assert [len(record["inner_loop_attempts"]) for record in result.step_history] == [2, 0]
    assert result.best_score == 0.6 and not result.partial and result.step_history[1]["plan"] == "last plan"
    assert len(quick_run.events(RefinementTried)) == 2
    assert AUTO_SUMMARY not in "".join(result.ablation_summaries)
