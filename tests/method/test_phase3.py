"""Phase 3: which ensemble wins, what is recorded, and that no failure ends it."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from mle_star import phase3
from mle_star.errors import BudgetExceeded
from mle_star.models import (
    AgentConfig,
    AgentType,
    EnsembleAttempt,
    MetricDirection,
    Phase3Result,
    SolutionPhase,
    SolutionScript,
    agent_config,
)
from mle_star.phase3 import ENS_PLANNER_FAILED, invoke_ens_planner, invoke_ensembler, partial_phase3, run_phase3
from mle_star.run.context import scope
from mle_star.run.events import AgentFinished, EnsembleTried, ScriptFinished

from .conftest import (
    AGENT_FAULTS,
    NO_LEAKAGE,
    Fault,
    ScriptedAgents,
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
from .loops import LONG_PLAN, Outcome, assert_says, measured, play_rounds, section

pytestmark = pytest.mark.modes("usual", "letter")


def inputs(*scores: float | None) -> list[SolutionScript]:
    """One refined solution per score."""
    return [
        solution(script(score or 0, note=f"input {n}"), score=score, phase=SolutionPhase.refined)
        for n, score in enumerate(scores or (0.5, 0.6))
    ]


async def ensemble(run: ScriptedRun, r: int = 5, *, of: list[SolutionScript] | None = None) -> Phase3Result:
    """`r` rounds over the given solutions, by default two that score 0.5 and 0.6."""
    return await run_phase3(inputs() if of is None else of, run.task, settings(R=r))


# --- the two agents --------------------------------------------------------------------------------------


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P3-001", "REQ-P3-010")
@pytest.mark.parametrize(("agent", "tools"), [(AgentType.ens_planner, None), (AgentType.ensembler, ["Read"])])
async def test_the_two_agents_are_set_up_as_specified(
    agent: AgentType, tools: list[str] | None, quick_run: ScriptedRun
) -> None:
    definition = AgentConfig(agent_type=agent).to_agent_definition()
    assert set(definition) == {"description", "prompt", "tools", "model"}
    assert definition["description"] and definition["prompt"]
    config = agent_config(agent)
    assert (config.agent_type, config.tools, config.output_schema, config.model) == (agent, tools, None, None)
    await ensemble(quick_run, r=1)
    assert [call.config for call in quick_run.agents.calls(agent.value)] == [config]


@pytest.mark.req("REQ-P3-002", "REQ-P3-003", "REQ-P3-007", "REQ-P3-008", "REQ-P3-046")
@pytest.mark.parametrize("direction", list(MetricDirection))
async def test_the_planners_prompt_holds_all_solutions_and_rules(direction: MetricDirection, quick_path: Path) -> None:
    given = inputs(0.5, 0.6, 0.7)
    with scripted_run(quick_path, executor=ScriptedExecutor(), metric_direction=direction) as run:
        await invoke_ens_planner(given, ["plan A", "plan B"], [0.82, None])
        prompt = run.agents.calls("ens_planner")[0].prompt
    assert "Kaggle grandmaster" in prompt and "better performance" in prompt
    assert re.search(r"\b3 (Python )?[Ss]olutions", prompt)
    for ordinal, one in zip(("1st", "2nd", "3rd"), given, strict=True):
        assert one.content in section(prompt, f"{ordinal} Python Solution")
    rules = section(prompt, "Your task").lower()
    assert "concentrate on" in rules and "merg" in rules and "hyperparameters" in rules
    assert "easy to implement" in rules and "novel" in rules and "effective" in rules and "differ" in rules
    assert f"{'higher' if direction is MetricDirection.maximize else 'lower'} score" in rules
    assert "original solutions" in rules and "execution error" in rules
    answer = section(prompt, "Answer")
    assert "outline" in answer and "natural language" in answer and "No headings" in answer


@pytest.mark.req("REQ-P3-004", "REQ-P3-005", "REQ-P3-009")
async def test_the_planner_sees_a_history_once_there_is_one(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("ens_planner", "  average them \n")
    assert await invoke_ens_planner(inputs(), [], []) == "average them"
    assert await invoke_ens_planner(inputs(), ["plan A", "plan B"], [0.85, None]) == "average the two"
    first, second = (call.prompt for call in quick_run.agents.calls("ens_planner"))
    assert "Plan:" not in first and "Score:" not in first
    assert (
        "# Ensemble plans you have tried\n\n## Plan: plan A\n## Score: 0.85\n\n"
        "## Plan: plan B\n## Score: N/A (evaluation failed)\n" in second
    )


@pytest.mark.req("REQ-P3-003", "REQ-P3-009", "REQ-P3-012")
async def test_equal_solutions_are_shown_as_often_as_they_are_given(quick_run: ScriptedRun) -> None:
    one, other = inputs()
    await invoke_ens_planner([one, other, one], [], [])
    await invoke_ensembler("average", [one, other, one])
    for call in quick_run.agents.log:
        for ordinal, given in (("1st", one), ("2nd", other), ("3rd", one)):
            assert given.content in section(call.prompt, f"{ordinal} Python Solution"), call.name
    result = await ensemble(quick_run, r=1, of=[one, one])
    assert result.input_solutions == [one, one] and result.ensemble_scores == [0.8]


@pytest.mark.req("REQ-P3-003", "REQ-P3-009")
async def test_the_planner_is_not_asked_for_fewer_than_two_solutions_or_a_lame_history(quick_run: ScriptedRun) -> None:
    with pytest.raises(ValueError, match=r"^A_ens_planner requires at least 2 solutions for ensembling$"):
        await invoke_ens_planner(inputs(0.5), [], [])
    for count in (0, 2):
        with pytest.raises(ValueError, match=rf"^A_ens_planner requires one score per plan, not {count} for 1$"):
            await invoke_ens_planner(inputs(), ["a"], [0.1] * count)
    assert quick_run.agents.log == []


@pytest.mark.req("REQ-P3-006", "REQ-P3-009")
@pytest.mark.parametrize(
    ("reply", "plan"), [(" \n stack\n```\nx\n```\n", "stack\n```\nx\n```"), (" \n", None), ("", None)]
)
async def test_the_plan_is_the_whole_reply_stripped(reply: str, plan: str | None, quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("ens_planner", reply)
    assert await invoke_ens_planner(inputs(), [], []) == plan


@pytest.mark.req("REQ-P3-011", "REQ-P3-014", "REQ-P3-015", "REQ-P3-047", "REQ-P3-048", "REQ-P3-049")
async def test_the_ensemblers_prompt_holds_plan_solutions_and_rules(quick_run: ScriptedRun) -> None:
    given = inputs()
    await invoke_ensembler("average {plan} and {solutions}", given)
    prompt = quick_run.agents.calls("ensembler")[0].prompt
    assert "Kaggle grandmaster" in prompt and "better performance" in prompt
    assert re.search(r"\b2 (Python )?[Ss]olutions", prompt)
    for ordinal, one in zip(("1st", "2nd"), given, strict=True):
        assert one.content in section(prompt, f"{ordinal} Python Solution")
    assert "average {plan} and {solutions}" in section(prompt, "Ensemble plan")
    text = " ".join(prompt.split()).lower()
    for rule in (
        "implement the ensemble plan", "the original solutions", "`./input/`", "unzip nothing",
        "do not load submissions", "hold-out validation set", "single markdown code block", "no headings",
        "do not subsample", "dummy variables", "`./final/submission.csv`",
        "final validation performance: {final_validation_score}", "self-contained", "full new solution",
    ):  # fmt: skip
        assert rule in text, rule


@pytest.mark.req("REQ-P3-012", "REQ-P3-016")
async def test_the_ensembler_is_not_asked_without_a_plan_and_two_solutions(quick_run: ScriptedRun) -> None:
    with pytest.raises(ValueError, match=r"^A_ensembler requires a non-empty ensemble plan$"):
        await invoke_ensembler(" ", inputs())
    with pytest.raises(ValueError, match=r"^A_ensembler requires at least 2 solutions for ensembling$"):
        await invoke_ensembler("average", inputs(0.5))
    assert quick_run.agents.log == []


@pytest.mark.req("REQ-P3-013", "REQ-P3-016")
async def test_the_ensemble_is_the_code_of_the_reply(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("ensembler", f"Here:\n```python\n{script(0.8)}\n```\nEnjoy.", "Not today.", "")
    made = await invoke_ensembler("average", [one.model_copy(update={"source_model": "Ridge"}) for one in inputs()])
    assert made is not None and made.content == script(0.8)
    assert (made.phase, made.score, made.is_executable, made.source_model) == (SolutionPhase.ensemble, None, True, None)
    assert await invoke_ensembler("average", inputs()) is None
    assert await invoke_ensembler("average", inputs()) is None


# --- the rounds ------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-P3-018")
async def test_a_single_solution_is_handed_through(quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mle_star.phase3")
    given = inputs(0.7)
    result = await ensemble(quick_run, of=given)
    assert (result.input_solutions, result.ensemble_plans, result.ensemble_scores) == (given, [], [])
    assert result.best_ensemble == given[0] and result.best_ensemble_score == 0.7 and result.attempts == []
    assert quick_run.agents.log == [] and quick_run.executor.scripts == []
    assert_says(caplog, (logging.INFO, ("Phase 3 skipped", "0.7", "tiny-task")))


async def test_there_must_be_a_solution(quick_run: ScriptedRun) -> None:
    with pytest.raises(ValueError, match=r"^Phase 3 requires at least one solution$"):
        await ensemble(quick_run, of=[])


@pytest.mark.req("REQ-P3-017", "REQ-P3-019", "REQ-P3-020", "REQ-P3-021", "REQ-P3-042", "REQ-P3-015", "REQ-P3-032")
async def test_the_first_round_plans_without_history_implements_checks_and_runs(run: ScriptedRun) -> None:
    given = inputs()
    run.agents.reply("ens_planner", "stack them")
    run.agents.reply("ensembler", fenced(script(0.8)))
    with scope("phase3"):
        result = await ensemble(run, r=1, of=given)
    assert run.agents.names == ["ens_planner", "ensembler", "leakage-detection"]
    assert [call.step for call in run.agents.log] == [
        "phase3/r-0/ens_planner", "phase3/r-0/ensembler", "phase3/r-0/leakage-detection",
    ]  # fmt: skip
    assert "Plan:" not in run.agents.calls("ens_planner")[0].prompt
    assert "stack them" in section(run.agents.calls("ensembler")[0].prompt, "Ensemble plan")
    assert script(0.8) in run.agents.calls("leakage-detection")[0].prompt
    assert run.executor.scripts == [script(0.8)]
    assert (result.best_ensemble.content, result.best_ensemble_score) == (script(0.8), 0.8)
    assert result.best_ensemble.score == 0.8 and result.best_ensemble.phase is SolutionPhase.ensemble
    assert result.attempts == [EnsembleAttempt(plan="stack them", score=0.8, solution=result.best_ensemble)]
    assert result.input_solutions == given
    assert (run.work_dir / "final" / "submission.csv").exists()


@pytest.mark.req("REQ-P3-022", "REQ-P3-023", "REQ-P3-024", "REQ-P3-033", "REQ-P3-034", "REQ-P3-043", "REQ-P3-044")
async def test_every_later_round_plans_with_the_whole_history(run: ScriptedRun) -> None:
    play_rounds(run.agents, [0.7, "crash", 0.75, "ensembler", 0.72])
    result = await ensemble(run, r=5)
    first = ["ens_planner", "ensembler", "leakage-detection"]
    assert [name for name in run.agents.names if name != "debugger"] == [*first * 3, *first[:2], *first]
    assert result.ensemble_plans == [f"plan {r}" for r in range(5)]
    assert result.ensemble_scores == [0.7, None, 0.75, None, 0.72]
    for r, call in enumerate(run.agents.calls("ens_planner")):
        tried = re.findall(r"## Plan: (.*)\n## Score: (.*)", call.prompt)
        known = ["N/A (evaluation failed)" if s is None else str(s) for s in result.ensemble_scores]
        assert tried == [(f"plan {j}", known[j]) for j in range(r)]
    assert [attempt.plan for attempt in result.attempts] == result.ensemble_plans
    assert [attempt.score for attempt in result.attempts] == result.ensemble_scores
    assert len(result.attempts) == 5 and run.executor.most_at_once == 1
    assert [(e.r, e.plan, e.score, e.best) for e in run.events(EnsembleTried)] == [
        (0, "plan 0", 0.7, True), (1, "plan 1", None, False), (2, "plan 2", 0.75, True),
        (3, "plan 3", None, False), (4, "plan 4", 0.72, False),
    ]  # fmt: skip
    assert [event.step for event in run.events(EnsembleTried)] == [f"r-{r}" for r in range(5)]
    assert len(run.events(AgentFinished)) == len(run.agents.log)


@pytest.mark.req("REQ-P3-025", "REQ-P3-035", "REQ-P3-042")
@pytest.mark.parametrize(
    ("direction", "outcomes", "best"),
    [
        (MetricDirection.maximize, [0.85, 0.88, "crash", 0.87, 0.88], 4),
        (MetricDirection.maximize, [0.85, 0.84], 0),
        (MetricDirection.minimize, [0.85, 0.88, "planner", 0.85, 0.87], 3),
        (MetricDirection.minimize, ["ensembler", 0.3, 0.4], 1),
        (MetricDirection.maximize, [0.1, 0.2], 1),  # worse than every input, and yet the best ensemble
    ],
)
async def test_the_last_of_the_best_rounds_wins(
    direction: MetricDirection, outcomes: list[Outcome], best: int, quick_path: Path
) -> None:
    with scripted_run(quick_path, executor=ScriptedExecutor(), metric_direction=direction) as run:
        play_rounds(run.agents, outcomes)
        result = await ensemble(run, r=len(outcomes))
    assert f"# round {best}" in result.best_ensemble.content
    assert result.best_ensemble == result.attempts[best].solution
    assert result.best_ensemble_score == result.ensemble_scores[best] == result.best_ensemble.score == outcomes[best]


@pytest.mark.req("REQ-P3-026", "REQ-P3-035", "REQ-P3-038", "REQ-P3-029")
@pytest.mark.parametrize(
    ("direction", "scores", "best"),
    [
        (MetricDirection.maximize, [0.5, 0.7, 0.6], 1),
        (MetricDirection.minimize, [0.5, 0.7, 0.4], 2),
        (MetricDirection.maximize, [None, 0.2, None, 0.1], 1),
        (MetricDirection.minimize, [0.3, 0.3], 0),
    ],
)
async def test_when_all_rounds_fail_the_best_input_comes_back(
    direction: MetricDirection,
    scores: list[float | None],
    best: int,
    quick_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = inputs(*scores)
    with scripted_run(quick_path, executor=ScriptedExecutor(), metric_direction=direction) as run:
        play_rounds(run.agents, ["crash", "planner", "ensembler", "crash", "planner"])
        result = await ensemble(run, r=5, of=given)
    assert result.best_ensemble == given[best] and result.best_ensemble_score == scores[best]
    assert result.ensemble_scores == [None] * 5 and len(result.attempts) == 5
    message = "Phase 3 ensemble: all 5 attempts failed; falling back to best input solution"
    assert_says(caplog, (logging.WARNING, (message, str(scores[best]))))


@pytest.mark.req("REQ-P3-027", "REQ-P3-045")
async def test_every_ensemble_is_checked_for_leakage_before_it_runs(run: ScriptedRun) -> None:
    run.agents.reply("ensembler", *fenced(script(0.99), script(0.7)))
    run.agents.reply("leakage-detection", leaky("level = 0.99"))
    run.agents.reply("leakage-correction", fenced("level = 0.8"))
    result = await ensemble(run, r=2)
    assert run.agents.names.count("leakage-detection") == 2
    assert run.executor.scripts == [script(0.8), script(0.7)]
    assert result.ensemble_scores == [0.8, 0.7] and result.best_ensemble.content == script(0.8)


@pytest.mark.modes("usual")
async def test_of_promising_ensembles_each_is_checked_that_would_win_until_one_stays_the_best(quick_path: Path) -> None:
    """The best is fixed and worse then, the second leaks for good, the third is clean; the fourth is never checked."""
    config = settings(R=4, leakage_checks="promising")
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=config) as run, scope("phase3"):
        run.agents.reply("ensembler", *fenced(script(0.9), script(0.8), script(0.7), script(0.5)))
        run.agents.reply("leakage-detection", leaky("level = 0.9"), leaky("level = 0.8"), NO_LEAKAGE)
        run.agents.reply("leakage-correction", fenced("level = 0.6"), "no code")
        run.agents.reply("leakage-rewrite", "no code")
        result = await run_phase3(inputs(), run.task, config)
        checks = run.agents.names.count("leakage-detection")
    assert result.ensemble_scores == [0.6, None, 0.7, 0.5] and checks == 3
    assert (result.best_ensemble.content, result.best_ensemble_score) == (script(0.7), 0.7)
    assert result.attempts[0].solution.content == script(0.6) and result.attempts[1].solution.leaking


@pytest.mark.req("REQ-P3-028")
async def test_an_ensemble_that_crashes_is_repaired(run: ScriptedRun) -> None:
    run.agents.reply("ensembler", fenced(broken_script()))
    run.agents.reply("debugger", fenced(script(0.9)))
    result = await ensemble(run, r=1)
    assert run.agents.names == ["ens_planner", "ensembler", "leakage-detection", "debugger", "leakage-detection"]
    assert "RuntimeError: broken" in run.agents.calls("debugger")[0].prompt
    assert result.ensemble_scores == [0.9] and result.best_ensemble.content == script(0.9)


@pytest.mark.req("REQ-P3-028", "REQ-P3-029")
async def test_repairs_end_after_max_debug_attempts_and_the_rounds_go_on(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    run.agents.reply("ens_planner", "x" * 300)
    run.agents.reply("ensembler", fenced(broken_script("first")), fenced(script(0.8)))
    for n in range(9):
        run.agents.reply("debugger", fenced(broken_script(f"still {n}")))
    result = await run_phase3(inputs(), run.task, settings(R=2, max_debug_attempts=2))
    assert run.agents.names.count("debugger") == 2
    assert result.ensemble_scores == [None, 0.8] and result.best_ensemble_score == 0.8
    failed = result.attempts[0].solution
    assert "still 1" in failed.content and failed.score is None and not failed.is_executable
    expected = (logging.WARNING, ("r=0: round failed", "RuntimeError: still 1", "'" + "x" * 200 + "'"))
    assert_says(caplog, expected)


@pytest.mark.req("REQ-P3-029", "REQ-P3-044")
async def test_failed_rounds_count_and_the_best_of_the_others_wins(quick_run: ScriptedRun) -> None:
    play_rounds(quick_run.agents, ["crash", 0.7, "crash", 0.9, 0.8])
    result = await ensemble(quick_run, r=5)
    assert result.ensemble_scores == [None, 0.7, None, 0.9, 0.8] and result.best_ensemble_score == 0.9


@pytest.mark.req("REQ-P3-030", "REQ-P3-032")
async def test_a_reply_without_code_is_a_round_with_an_empty_script(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    play_rounds(quick_run.agents, ["ensembler", 0.7])
    result = await ensemble(quick_run, r=2)
    attempt = result.attempts[0]
    assert (attempt.plan, attempt.score, attempt.solution.content) == ("plan 0", None, "")
    assert attempt.solution.phase is SolutionPhase.ensemble and not attempt.solution.is_executable
    assert result.best_ensemble_score == 0.7 and len(quick_run.executor.scripts) == 1
    assert_says(caplog, (logging.WARNING, ("r=0: parse failure", "No code today.")))


@pytest.mark.req("REQ-P3-031", "REQ-P3-022")
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("fault", ["empty", "raises"])
async def test_an_empty_plan_is_recorded_and_the_next_round_knows(
    fault: Fault, failing: int, quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    play_rounds(quick_run.agents, [0.7, 0.8])
    quick_run.agents.reply("ens_planner", "plan 2")
    quick_run.agents.faults[3 * failing] = fault
    result = await ensemble(quick_run, r=3)
    attempt = result.attempts[failing]
    assert ENS_PLANNER_FAILED == "[ens_planner failed]"
    assert (attempt.plan, attempt.score, attempt.solution.content) == (ENS_PLANNER_FAILED, None, "")
    assert quick_run.agents.names.count("ensembler") == 2
    history = quick_run.agents.calls("ens_planner")[failing + 1].prompt
    assert f"## Plan: {ENS_PLANNER_FAILED}\n## Score: N/A (evaluation failed)" in history
    assert_says(caplog, (logging.WARNING, (f"r-{failing}/ens_planner: ",)))


@pytest.mark.req("REQ-P3-015")
async def test_a_missing_submission_is_a_warning_and_the_round_counts(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    without = "print('Final Validation Performance: 0.9')"
    run.agents.reply("ensembler", fenced(script(0.8)), fenced(without))
    result = await ensemble(run, r=2)
    assert result.best_ensemble_score == 0.9
    missing = [r.getMessage() for r in caplog.records if "left no final/submission.csv" in r.getMessage()]
    assert len(missing) == 1 and missing[0].startswith("r=1:")  # the file of the round before does not count


# --- records, logs, time ---------------------------------------------------------------------------------


@pytest.mark.req("REQ-P3-040", "REQ-P3-041")
def test_phase_3_is_one_module_that_knows_no_client() -> None:
    names = ("run_phase3", "invoke_ens_planner", "invoke_ensembler")
    assert {getattr(phase3, name).__module__ for name in names} == {"mle_star.phase3"}
    source = Path(phase3.__file__).read_text(encoding="utf-8")
    assert not re.search(r"claude_agent_sdk|anthropic|subprocess|httpx|urllib|requests", source)


@pytest.mark.req("REQ-P3-012", "REQ-P3-020", "REQ-P3-023")
async def test_plans_reach_the_ensembler_the_next_planner_and_the_result_whole(quick_run: ScriptedRun) -> None:
    given = [f"{LONG_PLAN} Idea {r}." for r in range(2)]
    quick_run.agents.reply("ens_planner", *given)
    quick_run.agents.reply("ensembler", *fenced(script(0.8), script(0.7)))
    result = await ensemble(quick_run, r=2)
    told = [call.prompt for call in quick_run.agents.calls("ensembler")]
    assert [[plan in prompt for plan in given] for prompt in told] == [[True, False], [False, True]]
    assert given[0] in quick_run.agents.calls("ens_planner")[1].prompt
    assert result.ensemble_plans == given == [attempt.plan for attempt in result.attempts]


@pytest.mark.req("REQ-P3-036", "REQ-P3-037")
def test_the_rounds_themselves_take_next_to_no_time(quick_run: ScriptedRun) -> None:
    padding = "\n".join(f"value_{n} = {n}" for n in range(2500))  # some 50 KB, as the largest scripts
    given = [one.model_copy(update={"content": f"{padding}\n{one.content}"}) for one in inputs()]
    quick_run.agents.always("ensembler", lambda call: fenced(f"{padding}\n{script(0.8, note=call.step)}"))
    result, waited, worked = measured(ensemble(quick_run, r=5, of=given))
    assert len(result.attempts) == 5 and len(quick_run.agents.log) == 5 * 3
    assert waited == 0 and worked < 5


# --- failures and endings --------------------------------------------------------------------------------


def eventful(agents: ScriptedAgents) -> None:
    """Two rounds that call every agent: the first crashes and is repaired, the second leaks and is corrected."""
    agents.reply("ens_planner", "plan 0", "plan 1")
    agents.reply("ensembler", fenced(broken_script()), fenced(script(0.9)))
    agents.reply("debugger", fenced(script(0.7)))
    agents.always("debugger", "I cannot repair this.")
    agents.reply("leakage-detection", *[{"answers": [{"leakage_status": "No Data Leakage", "code_block": ""}]}] * 2)
    agents.reply("leakage-detection", leaky("level = 0.9"))
    agents.reply("leakage-correction", fenced("level = 0.8"))


EVENTFUL = ["ens_planner", "ensembler", "leakage-detection", "debugger", "leakage-detection",
            "ens_planner", "ensembler", "leakage-detection", "leakage-correction"]  # fmt: skip
EVENTFUL_SCRIPTS = 3


def assert_valid(result: Phase3Result, rounds: int) -> None:
    """A result that finalization can work with."""
    assert len(result.ensemble_plans) == len(result.ensemble_scores) == len(result.attempts) == rounds
    assert all(result.ensemble_plans)
    assert result.best_ensemble.score == result.best_ensemble_score and result.best_ensemble.content
    reached = [score for score in result.ensemble_scores if score is not None]
    assert result.best_ensemble_score == (max(reached) if reached else 0.6)
    assert Phase3Result.model_validate_json(result.model_dump_json()) == result


async def test_the_eventful_phase_calls_every_agent(quick_run: ScriptedRun) -> None:
    eventful(quick_run.agents)
    result = await ensemble(quick_run, r=2)
    assert quick_run.agents.names == EVENTFUL and len(quick_run.events(ScriptFinished)) == EVENTFUL_SCRIPTS
    assert result.ensemble_scores == [0.7, 0.8]


@pytest.mark.req("REQ-P3-038")
@pytest.mark.parametrize("fault", AGENT_FAULTS)
@pytest.mark.parametrize("position", range(len(EVENTFUL)))
async def test_no_agent_failure_anywhere_ends_the_phase(position: int, fault: Fault, quick_run: ScriptedRun) -> None:
    eventful(quick_run.agents)
    quick_run.agents.faults[position] = fault
    assert_valid(await ensemble(quick_run, r=2), rounds=2)
    assert quick_run.agents.log[position].name == EVENTFUL[position]


@pytest.mark.req("REQ-P3-038", "REQ-P3-029")
@pytest.mark.parametrize("position", range(EVENTFUL_SCRIPTS))
async def test_no_script_failure_anywhere_ends_the_phase(position: int, quick_run: ScriptedRun) -> None:
    eventful(quick_run.agents)
    quick_run.executor.faults.add(position)
    assert_valid(await ensemble(quick_run, r=2), rounds=2)


@pytest.mark.req("REQ-P3-038", "REQ-P3-026")
@pytest.mark.parametrize("fault", AGENT_FAULTS)
async def test_when_everything_fails_there_is_still_a_result(fault: Fault, quick_run: ScriptedRun) -> None:
    quick_run.agents.faults.update(dict.fromkeys(range(99), fault))
    result = await ensemble(quick_run, r=5)
    assert_valid(result, rounds=5)
    assert result.best_ensemble.content == inputs()[1].content


@pytest.mark.parametrize("position", range(len(EVENTFUL)))
@pytest.mark.parametrize("signal", [BudgetExceeded(limit="money", used=2, allowed=1), asyncio.CancelledError()])
async def test_the_signals_to_stop_pass_through(signal: BaseException, position: int, quick_run: ScriptedRun) -> None:
    eventful(quick_run.agents)
    quick_run.agents._queues[EVENTFUL[position]].insert(EVENTFUL[:position].count(EVENTFUL[position]), signal)
    with pytest.raises(type(signal)):
        await ensemble(quick_run, r=2)
    assert len(quick_run.agents.log) == position + 1


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P3-039")
async def test_a_run_that_is_told_to_finish_ends_the_phase_after_the_round(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    def finish(_: Any) -> Any:
        quick_run.context.budget.finish_requested = True
        return fenced(script(0.65, note="last"))

    quick_run.agents.reply("ensembler", fenced(script(0.7)), finish)
    result = await ensemble(quick_run, r=5)
    assert result.ensemble_scores == [0.7, 0.65] and result.best_ensemble_score == 0.7
    assert_valid(result, rounds=2)
    assert_says(caplog, (logging.INFO, ("Phase 3 complete: best score 0.7, best round 0, ", " s, 2 rounds")))
    caplog.clear()
    again = await ensemble(quick_run, r=5)  # told to finish before the first round
    assert_valid(again, rounds=0)
    assert_says(caplog, (logging.INFO, ("Phase 3 complete: best score 0.6, best round None, ", " s, 0 rounds")))
    assert again.best_ensemble_score == 0.6


async def test_a_resumed_phase_comes_to_the_same_end_and_asks_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted_run(tmp_path) as first:
        eventful(first.agents)
        before = await ensemble(first, r=2)
        said = len(first.journal.events)
    caplog.clear()
    with scripted_run(tmp_path) as second:
        after = await ensemble(second, r=2)
        assert second.agents.log == [] and second.executor.scripts == []
        assert len(second.journal.events) == said  # every event in the same words
    assert after.ensemble_scores == before.ensemble_scores == [0.7, 0.8]
    assert after.best_ensemble.content == before.best_ensemble.content
    assert "submission" not in caplog.text  # the kept file is back in its place


async def test_whenever_it_is_cut_off_the_finished_rounds_are_what_it_came_to(quick_run: ScriptedRun) -> None:
    of = inputs()
    assert partial_phase3(of, quick_run.task) is None
    play_rounds(quick_run.agents, [0.7, "crash", 0.65])
    whole = await ensemble(quick_run, 3, of=of)
    assert whole.ensemble_scores == [0.7, None, 0.65] and whole.best_ensemble_score == 0.7
    assert partial_phase3(of, quick_run.task) == whole
