"""The outer loop of Phase 2: ablation, summary, choice of the block, and what a path keeps."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mle_star import phase2_outer as outer
from mle_star.errors import AgentError, BudgetExceeded
from mle_star.models import CodeBlock, Phase2Result, PipelineConfig, RefinementAttempt, SolutionPhase, SolutionScript
from mle_star.prompts import BLOCK_NOT_FOUND
from mle_star.run import events as ev
from mle_star.run.context import current_run, path_context, scope
from mle_star.run.reached import partial_path
from mle_star.run.timing import ablation_limit
from mle_star.safety import evaluate_checked
from tests.conftest import ran

from .conftest import ScriptedExecutor, ScriptedRun, account_as_kept, play_steps, quick, scripted_run, section, settings
from .replies import BOTH, LETTER, base_solution, fenced, part, plans, solution


async def follow(run: ScriptedRun, t: int, k: int = 1, **changes: Any) -> Phase2Result:
    """A path of `t` steps with `k` attempts each, from the base script, which scores 0.5."""
    given: dict[str, Any] = {
        "initial_solution": base_solution(blocks=t), "initial_score": 0.5, "task": run.task,
        "config": settings(T=t, K=k),
    }  # fmt: skip
    return await outer.run_phase2_outer_loop(**{**given, **changes})


@BOTH
@pytest.mark.req("REQ-P2O-016", "REQ-P2O-018", "REQ-P2O-019", "REQ-P2O-022", "REQ-P2O-023", "REQ-P2O-024")
@pytest.mark.req("REQ-P2O-025", "REQ-P2O-026", "REQ-P2O-028", "REQ-P2O-030", "REQ-P2O-034", "REQ-P2O-037")
@pytest.mark.req("REQ-P2O-038", "REQ-P2O-040", "REQ-P2O-044")
async def test_each_step_is_a_study_a_choice_and_a_refinement_and_leaves_one_record(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    """In the second step the extractor first names a block that is gone by then; in the third it names none."""
    play_steps(run.agents, [[0.6, 0.55], [0.4, 0.3], "skip", [0.7, 0.8]])
    run.agents._queues["extractor"].insert(1, plans((part(0), "gone by now")))
    with scope("phase2", "path-0"):
        result = await follow(run, t=4, k=2)
    agents = run.agents
    assert run.executor.most_at_once == 1 and len(run.events(ev.ScriptFinished)) == 3 * 3 + 1
    refined, coders = (0, 1, 3), agents.calls("coder")
    for t, call in zip(refined, coders[::2], strict=True):  # the handoff: block and plan of this step
        assert part(t) in section(call.prompt, "Code block") and f"plan t{t}k0" in section(call.prompt, "Plan")
    blocks = [part(0), part(1), "", part(3)]
    extractors = (agents.calls("extractor")[n].prompt for n in (0, 1, 3, 5))
    summaries = [re.findall(r"summary \d", call.prompt) for call in agents.calls("ablation")]
    previous = [re.findall(r"## Block \d\n\n```python\n(.*)\n```", prompt) for prompt in extractors]
    assert summaries == [[], ["summary 0"], *[["summary 0", "summary 1"]] * 2], "that of a skipped step is not shown"
    assert previous == [[], [part(0)], *[[part(0), part(1)]] * 2]
    facts = '"tried": ["plan t0k0", "plan t01"]'
    steps = [call.step for call in agents.log if facts in call.prompt.rpartition("# Facts")[2]]
    names = ["extractor", "extractor-2", "k-1/planner"]
    assert steps == ([] if run.config.letter else [f"phase2/path-0/t-1/{name}" for name in names])
    assert result.ablation_summaries == ["summary 0", "summary 1", "", "summary 3"]
    assert result.refined_blocks == [CodeBlock(content=content, outer_step=t) for t, content in enumerate(blocks)]
    tried = [("plan t1k0", 0.4, "t1k0"), ("plan t11", 0.3, "t1k1")]
    codes = [f"part_1 = 1\nlevel = {score}  # {mark}" for _, score, mark in tried]
    known = [{"plan": plan, "score": score, "was_improvement": False} for plan, score, _ in tried]
    tries = [RefinementAttempt(code_block=code, **one) for code, one in zip(codes, known, strict=True)]
    common = {"best_score_after_step": 0.6, "failed": False}
    assert result.step_history[1:3] == [
        {"outer_step": 1, "ablation_summary": "summary 1", "code_block": part(1), "plan": "plan t1k0",
         "inner_loop_attempts": tries, "was_skipped": False, **common},
        {"outer_step": 2, "ablation_summary": "summary 2", "code_block": "", "plan": "",
         "inner_loop_attempts": [], "was_skipped": True, **common},
    ]  # fmt: skip
    assert [record["best_score_after_step"] for record in result.step_history] == [0.6, 0.6, 0.6, 0.8]
    assert result.best_score == 0.8 and not result.partial
    account_as_kept("steps", run, caplog.records)


async def test_a_path_that_is_cut_off_keeps_the_best_attempt_of_the_step_it_was_in(quick_run: ScriptedRun) -> None:
    play_steps(quick_run.agents, [[0.4, 0.3, 0.2], [0.8, 0.7]])
    quick_run.agents.faults["t-1/k-2/planner"] = BudgetExceeded(limit="money", used=2, allowed=1)
    with pytest.raises(BudgetExceeded):
        await follow(quick_run, t=2, k=3)
    start = base_solution(blocks=2)
    partial = partial_path("", start)
    assert partial.partial and partial_path("phase2/path-7/", start).best_solution is start
    assert partial.best_score == 0.8 == partial.best_solution.score and "level = 0.8" in partial.best_solution.content
    assert [len(record["inner_loop_attempts"]) for record in partial.step_history] == [3, 2]
    last = partial.step_history[1]
    assert (last["best_score_after_step"], last["was_skipped"], last["failed"]) == (0.8, False, False)


@pytest.mark.req("REQ-P2O-036")
@pytest.mark.parametrize("reply", ["", AgentError("down", agent="summarize")])
async def test_without_a_summary_the_end_of_the_output_stands_in(reply: Any, quick_run: ScriptedRun) -> None:
    quick_run.agents.always("summarize", reply)
    for length in (0, 2000, 5000):
        output = "".join(chr(97 + n % 26) for n in range(length))
        assert await outer.invoke_summarize("print()", output) == "[Auto-summary from raw output] " + output[-2000:]


@pytest.mark.req("REQ-P2O-017")
def test_a_block_is_valid_when_every_character_agrees() -> None:
    script = solution("import x\nscaler = StandardScaler()\nX_train = scaler.fit_transform(X_train)\nprint(1)\n")
    valid = "scaler = StandardScaler()\nX_train = scaler.fit_transform(X_train)"
    assert all(outer.validate_code_block(block, script) for block in (valid, valid[1:], f"\n{valid}\n"))
    changed = [("\n", " \n"), (" ", "  "), ("s", "S")]
    wrong = [f" {valid}", f"{valid} ", f"\n\n{valid}", *(valid.replace(old, new) for old, new in changed)]
    assert not any(outer.validate_code_block(block, script) for block in wrong)


SCRIPT = "# the level\nlevel = 0.5100\nif level:   \n    b = 2\t\nc = 3\n"
WRONG, RIGHT, LATER = ("not there", "p"), ("c = 3", "good"), ("# the level", "newer")
Answer = list[tuple[str, str]]
BAD: Answer = []  # stands for an answer that cannot be read


@pytest.mark.req("REQ-P2O-014", "REQ-P2O-015", "REQ-P2O-018", "REQ-P2O-034")
@pytest.mark.parametrize(
    ("answers", "calls", "found"),
    [
        ([[RIGHT, LATER]], 1, RIGHT),  # its first plan counts
        ([[("if level:\n    b = 2  ", "p")]], 1, ("if level:   \n    b = 2", "p")),  # blanks at line ends hide no block
        ([[("```python\nc = 3\n```", "q")]], 1, ("c = 3", "q")),  # nor do fences
        # part of a number is no block, and the line end before a block belongs to the comment that it ends
        ([[("level = 0.5", "p")], [("\nlevel = 0.5100\n", "q")]], 2, ("level = 0.5100", "q")),
        pytest.param([BAD, [("level = 0.5", "p")]], 2, ("level = 0.5", "p"), marks=LETTER),
        ([[WRONG], [RIGHT]], 2, RIGHT), ([[WRONG], [WRONG], [RIGHT]], 3, RIGHT),
        ([[WRONG], [WRONG], [WRONG], [RIGHT]], 3, None),
        # after three wrong blocks any other plan of the newest answer will do
        ([[WRONG, RIGHT], [WRONG, LATER], [WRONG]], 3, LATER),
        ([[WRONG], [("\n", "p")], [(" ", "q"), ("", "p")]], 3, None),
        # unreadable answers and wrong blocks are counted apart: four calls at most
        ([BAD, [RIGHT]], 2, RIGHT), ([BAD, BAD, [RIGHT]], 2, None), ([[WRONG], BAD, BAD, [RIGHT]], 3, None),
        ([[WRONG], BAD, [WRONG], [RIGHT]], 4, RIGHT), ([BAD, [WRONG], [WRONG], [RIGHT]], 4, RIGHT),
        ([BAD, [WRONG], [WRONG], [WRONG], [RIGHT]], 4, None),
    ],
)  # fmt: skip
async def test_a_block_that_is_not_in_the_solution_is_asked_for_again(
    answers: list[Answer], calls: int, found: tuple[str, str] | None, quick_run: ScriptedRun,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for number, answer in enumerate(answers):
        reply = plans(*answer) if answer else {"plans": "oops" * 100}
        quick_run.agents.reply("extractor", json.dumps(reply) if number % 2 else reply)  # by its schema or in a text
    chosen = await outer.choose_block("summary", solution(SCRIPT), ["old"])
    assert ("oops" * 100 in caplog.text) == (quick_run.config.letter and BAD in answers), "the raw reply, or its head"
    assert (chosen and (chosen.code_block.rstrip(), chosen.plan)) == found
    if found:
        given = {plan: block for answer in answers for block, plan in answer}[found[1]]
        how = "exact" if given in SCRIPT else "whitespace-normalized"
        assert caplog.messages[-1] == f"main: code block validation passed: {how}"
    prompts = [call.prompt for call in quick_run.agents.log]
    assert [BLOCK_NOT_FOUND in prompt for prompt in prompts] == [any(answers[:n]) for n in range(calls)]
    assert all("old" in section(prompt, "Code blocks improved before") for prompt in prompts), "the same inputs"


STUDY = SolutionScript(content="print('Ablation baseline: 0.5')", phase=SolutionPhase.refined)


@pytest.mark.req("REQ-P2O-010", "REQ-P2O-020", "REQ-P2O-021")
@pytest.mark.parametrize(("words", "crashes"), [("without the encoder 0.79 instead of 0.82", 0), ("", 3)])
async def test_a_study_in_its_path_is_summarised(words: str, crashes: int, run: ScriptedRun, tmp_path: Path) -> None:
    """The lines that charts can read are welcome, but nothing is repaired because they are missing."""
    own = f"import os\nprint(sorted(os.listdir('input')), {words!r}, 'Final Validation Performance: 1\\nAnalysis: x')"
    first, *repairs = fenced(*(f"level = 1 / 0\nprint({n})" for n in range(crashes)), own, "print('one too many')")
    run.agents.reply("ablation", first)
    run.agents.reply("debugger-ablation", *repairs)
    play_steps(run.agents, [[0.6]])
    work_dir = tmp_path / "run" / "work" / "path-3"
    work_dir.mkdir(parents=True)
    with scope("phase2"), path_context(3, work_dir):
        result = await follow(run, t=1, config=settings(T=1, K=1, max_debug_attempts=3))
    assert len(run.agents.calls("debugger-ablation")) == crashes
    (call,) = run.agents.calls("summarize")
    printed = section(call.prompt, "Printed output")
    assert own in section(call.prompt, "Ablation code")
    assert f"['sample_submission.csv', 'test.csv', 'train.csv'] {words}" in printed
    assert {request.working_dir for request in run.executor.requests} == {str(work_dir)}
    ran = [(event.step, event.purpose) for event in run.events(ev.ScriptFinished)]
    assert (ran[0], ran[-1], len(ran)) == (
        ("phase2/path-3/t-0/ablation-script", "ablation"), ("phase2/path-3/t-0/k-0/script", "solution"), crashes + 2,
    )  # fmt: skip
    assert [event.score for event in run.events(ev.BestImproved)] == [0.6], "a study has no score of its own"
    (study,) = run.events(ev.AblationFinished)
    facts: dict[str, Any] = {"failed": False, "scores": {}, "solution_score": 0.5, "comparable": True, "analysis": "x"}
    place = {"at": study.at, "step": "phase2/path-3/t-0", "path": 3, "t": 0}
    assert study == ev.AblationFinished(**place, **facts, summary="summary 0")
    assert result.ablation_summaries == ["summary 0"]


@BOTH
@pytest.mark.req("REQ-P2O-021")
async def test_a_study_that_nobody_can_repair_leaves_an_empty_summary(quick_run: ScriptedRun) -> None:
    agents, broken = quick_run.agents, [fenced(f"raise RuntimeError('study')\nprint({n})") for n in range(9)]
    play_steps(agents, [[0.4], [0.6]])
    agents.reply("ablation", fenced(STUDY.content), broken.pop())
    agents.reply("debugger", *broken)
    agents.reply("debugger-ablation", *broken)
    result = await follow(quick_run, t=2, config=settings(T=2, K=1, max_debug_attempts=2))
    prompts = [call.prompt for call in agents.log if "debug" in call.name]
    assert len(prompts) == 2 and ["print(0)" in prompt for prompt in prompts] == [False, True], "repairs are kept"
    assert len([e for e in quick_run.events(ev.ScriptFinished) if e.purpose == "ablation"]) == 1 + 3
    assert result.ablation_summaries == ["summary 0", ""] and result.best_score == 0.6
    assert agents.names.count("summarize") == 1 and outer.ABLATION_FAILED == "Ablation study failed for this step"
    assert f"{outer.ABLATION_FAILED}\n\nsummary 0" in section(agents.calls("extractor")[1].prompt, "Ablation summary")
    failed = quick_run.events(ev.AblationFinished)[1]
    assert (failed.failed, failed.scores, failed.summary) == (True, {}, "")


async def test_with_too_little_time_there_is_no_study(quick_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    endless, config = (0.5, 1e6), settings(T=1, K=1)  # score and seconds of the solution
    with quick(quick_path) as short:
        ran(short.context, 0.5, 1000.0)
        await outer.run_phase2_outer_loop(base_solution(), 0.5, short.task, config)
        assert "ablation" not in short.agents.names and short.agents.names[0] == "extractor"
        assert outer.ABLATION_FAILED in short.agents.calls("extractor")[0].prompt
        assert "t=0: no ablation study: it would take more time than studies may" in caplog.messages
    with quick(quick_path / "long") as long:
        await outer.run_phase2_outer_loop(base_solution(), 0.5, long.task, config)
        assert long.agents.names[0] == "ablation"
    with quick(quick_path / "long") as again:
        ran(again.context, *endless)
        await outer.run_phase2_outer_loop(base_solution(), 0.5, again.task, config)
        assert again.agents.names == [], "the study that was made before counts, however little time is left"


@pytest.mark.req("REQ-P2O-035")
@pytest.mark.parametrize(
    ("limit", "steps", "known", "timeout"),
    [
        # half a share, and ten minutes at most
        (86400, 4, {}, 600.0), (4800, 4, {}, 600.0), (2400, 4, {}, 300.0), (600, 2, {}, 150.0), (60, 1, {}, 30.0),
        # never longer than half of what is left; a slow solution's variants at its pace; what was set
        (1000, 1, {"left": 200}, 100.0), (86400, 4, {"measured": 900}, 7200.0), (86400, 4, {"explicit": 50}, 50.0),
        (86400, 4, {"measured": 900, "explicit": 50, "left": 40}, 40.0),
        (86400, 4, {"left": 50_000, "measured": 500, "explicit": 9, "letter": True}, 600.0),  # to the letter
        (3600, 4, {"left": 50_000, "letter": True}, 450.0), (3600, 4, {"left": 100, "letter": True}, 100.0),
    ],
)  # fmt: skip
def test_the_time_of_a_study(limit: int, steps: int, known: dict[str, Any], timeout: float) -> None:
    given = {"left": limit, **known}
    config = PipelineConfig(time_limit_seconds=limit, outer_loop_steps=steps, letter=given.pop("letter", False))
    assert ablation_limit(config, **given) == timeout


@pytest.mark.req("REQ-P2O-035")
@pytest.mark.parametrize(("explicit", "seconds"), [(None, [7200, 9600, 200]), (50, [50, 50, 50])])
async def test_a_study_runs_under_its_limit(explicit: int | None, seconds: list[float], quick_path: Path) -> None:
    now, config = 0.0, settings(T=4, time_limit_seconds=86400, script_timeout_seconds=explicit)
    with scripted_run(quick_path, config=config, executor=ScriptedExecutor(), clock=lambda: now) as run:
        ran(run.context, 0.5, 900)
        await outer.execute_ablation(STUDY)
        with path_context(0, run.work_dir):
            ran(current_run(), 0.6, 1200)
            await outer.execute_ablation(solution("print('Ablation baseline: 2')"))
        now = 86000.0
        await outer.execute_ablation(solution("print('Ablation baseline: 3')"))
        assert [event.timeout_seconds for event in run.events(ev.ScriptStarted)] == seconds
        assert [request.timeout_seconds for request in run.executor.requests] == seconds


@pytest.mark.parametrize(
    ("baseline", "printed", "comparable", "hidden"),
    [
        *((*row, None) for row in (
            ("0.5", 0.5, True), ("0.505", 0.5, True), ("0.495", 0.5, True), ("0.51", 0.5, False), ("0.494", 0.5, False),
            ("-0.5", -0.5, True), ("-0.6", -0.5, False), ("0.0", 0.0, True), ("0.001", 0.0, False), (None, 0.5, True),
        )),
        # by hidden rows the score of a solution is not what it says: a study can only repeat the latter
        ("0.5", 0.5, True, 0.42), ("0.42", 0.5, False, 0.42),
    ],
)  # fmt: skip
async def test_a_baseline_off_by_more_than_one_percent_of_what_the_solution_printed_is_not_comparable(
    baseline: str | None, printed: float, comparable: bool, hidden: float | None, quick_run: ScriptedRun
) -> None:
    score = printed if hidden is None else hidden
    if hidden is not None:
        await evaluate_checked(base_solution(printed, blocks=1))
    lines = ["print('Ablation no level: 0.1')", *([f"print('Ablation Baseline: {baseline}')"] if baseline else [])]
    quick_run.agents.reply("ablation", fenced("\n".join(lines)))
    quick_run.agents.always("extractor", "no JSON")
    await follow(quick_run, t=1, initial_solution=base_solution(printed, blocks=1), initial_score=score)
    event = quick_run.events(ev.AblationFinished)[0]
    assert (event.comparable, event.solution_score, event.scores["no level"]) == (comparable, score, 0.1)
    assert event.scores.get("Baseline") == (float(baseline) if baseline else None)
    assert event.summary == "The level matters most."
    prompt = quick_run.agents.calls("summarize")[0].prompt
    assert ("not comparable" in prompt) is ("# Note" in prompt) is not comparable
    assert (f"itself printed, {printed:g}:" in prompt) is not comparable
