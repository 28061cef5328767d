"""The attempts of the inner loop and the rounds of Phase 3: which wins, what is recorded, and no failure ends it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mle_star.method.codeblocks import replacement
from mle_star.models import InnerLoopResult, Phase3Result, RefinementAttempt, SolutionPhase, SolutionScript
from mle_star.phase2_inner import invoke_coder, run_phase2_inner_loop
from mle_star.phase3 import ENS_PLANNER_FAILED, run_phase3
from mle_star.run.context import path_context, scope
from mle_star.run.events import PLANNER_FAILED, AgentFinished, EnsembleTried, RefinementTried, ScriptFinished
from mle_star.run.prompt_context import MARK

from .conftest import ScriptedRun, quick, settings
from .loops import measured, play_attempts, play_rounds, section
from .replies import BLOCK, BOTH, NO_LEAKAGE, base_solution, block, broken_script, fenced, leaky, script, solution

FAILED = "N/A (evaluation failed)"


async def refine(run: ScriptedRun, k: int = 4, **changes: Any) -> InnerLoopResult:
    """One inner loop of `k` attempts at the base script, which scores 0.5."""
    given: dict[str, Any] = {
        "solution": base_solution(), "code_block": block(), "initial_plan": "plan 0", "best_score": 0.5,
        "task": run.task, "config": settings(K=k),
    }  # fmt: skip
    return await run_phase2_inner_loop(**{**given, **changes})


def tried(prompt: str) -> list[tuple[str, str]]:
    """Plans and scores in a planner's prompt."""
    return re.findall(r"## Plan: (.*)\n## Score: (.*)", section(prompt, "Improvement plans you have tried"))


@BOTH
@pytest.mark.req(
    "REQ-P2I-016", "REQ-P2I-017", "REQ-P2I-018", "REQ-P2I-019", "REQ-P2I-020", "REQ-P2I-021", "REQ-P2I-022",
    "REQ-P2I-023", "REQ-P2I-028", "REQ-P2I-029", "REQ-P2I-036", "REQ-P2I-044", "REQ-P2I-046", "REQ-P2I-049",
    "REQ-P2I-050",
)  # fmt: skip
async def test_each_attempt_rewrites_the_original_block_by_a_plan_that_knows_all_earlier_ones(run: ScriptedRun) -> None:
    """The block stands in the script twice: the first one counts."""
    solution, target = base_solution(), block(t=1)
    solution.content += f"{BLOCK}\n"
    before, place = solution.model_copy(deep=True), "phase2/path-2/t-1"
    blocks = [f"{BLOCK}\nlevel = 0.6", "level = 0.4", "level = 0.7", "level = 0.1"]  # the first holds the original one
    plans, scores, wins = [f"plan {k}" for k in range(4)], [0.6, 0.4, 0.7, 0.1], [True, False, True, False]
    run.agents.reply("coder", *fenced(*blocks))
    run.agents.reply("planner", *plans[1:])
    with scope("phase2"), path_context(2, run.work_dir), scope("t-1"):
        result = await refine(run, solution=solution, code_block=target)
    steps = [f"{place}/k-{k}/{name}" for k in range(4) for name in ("planner", "coder", "leakage-detection")][1:]
    assert [call.step for call in run.agents.log] == steps == [event.step for event in run.events(AgentFinished)]
    assert all(event.step.startswith(place) for event in run.events(ScriptFinished))
    for k, call in enumerate(run.agents.calls("planner"), 1):
        assert tried(call.prompt) == list(zip(plans, map(str, scores), strict=True))[:k]
    for call in [*run.agents.calls("coder"), *run.agents.calls("planner")]:
        assert section(call.prompt, "Code block").strip() == f"```python\n{BLOCK}\n```"
    assert all(p in section(c.prompt, "Plan") for p, c in zip(plans, run.agents.calls("coder"), strict=True))
    assert run.executor.scripts == [before.content.replace(BLOCK, code, 1) for code in blocks]
    assert run.executor.most_at_once == 1 and solution == before and target == block(t=1)
    assert result.attempts == [
        RefinementAttempt(plan=plan, score=score, code_block=code, was_improvement=won)
        for plan, score, code, won in zip(plans, scores, blocks, wins, strict=True)
    ]
    best = result.best_solution
    assert (best.content, best.score, result.best_score) == (run.executor.scripts[2], 0.7, 0.7)
    assert best.phase is SolutionPhase.refined and best.is_executable and result.improved
    bests = [0.6, 0.6, 0.7, 0.7]
    events = [
        (e.step, e.path, e.t, e.k, e.plan, e.before, e.after, e.score, e.best_score, e.accepted)
        for e in run.events(RefinementTried)
    ]
    assert events == [
        (f"{place}/k-{k}", 2, 1, k, plans[k], BLOCK, blocks[k], scores[k], bests[k], wins[k]) for k in range(4)
    ]


@pytest.mark.req("REQ-P2I-033", "REQ-P2I-038")
@pytest.mark.parametrize(
    ("change", "asked", "attempts"),
    [
        ({"code_block": block("level = 0.123", t=None)}, "coder planner coder",
         [("plan 0", None, "level = 0.6  # k0"), ("plan 1", None, "level = 0.7  # k1")]),
        ({"code_block": block(" \n")}, "", [("plan 0", None, ""), (PLANNER_FAILED, None, "")]),
        ({"initial_plan": ""}, "planner coder leakage-detection",
         [("", None, ""), ("plan 1", 0.6, "level = 0.6  # k0")]),
    ],
)  # fmt: skip
async def test_a_block_or_a_plan_that_cannot_be_used_fails_an_attempt_but_not_the_loop(
    change: dict[str, Any], asked: str, attempts: list[tuple[str, float | None, str]], quick_run: ScriptedRun
) -> None:
    play_attempts(quick_run.agents, [0.6, 0.7])
    result = await refine(quick_run, k=2, **change)
    assert [(a.plan, a.score, a.code_block) for a in result.attempts] == attempts
    assert quick_run.agents.names == asked.split() and result.improved == (attempts[1][1] is not None)
    assert [(event.path, event.t) for event in quick_run.events(RefinementTried)] == [(0, 0)] * 2


@BOTH
@pytest.mark.req("REQ-P2I-027", "REQ-P2I-032", "REQ-P2I-034", "REQ-P2I-035")
async def test_failed_attempts_are_recorded_and_the_planner_learns_of_them(quick_run: ScriptedRun) -> None:
    play_attempts(quick_run.agents, [0.6, "coder", "crash", "planner", 0.7])
    quick_run.agents.reply("planner", "plan 5")
    result = await refine(quick_run, k=6)
    attempts = [
        ("plan 0", 0.6, "level = 0.6  # k0", True), ("plan 1", None, "", False),
        ("plan 2", None, "raise RuntimeError('k2')", False), (PLANNER_FAILED, None, "", False),
        ("plan 4", 0.7, "level = 0.7  # k4", True),
    ]  # fmt: skip
    assert [(a.plan, a.score, a.code_block, a.was_improvement) for a in result.attempts[:5]] == attempts
    assert PLANNER_FAILED == "[planner failed]" and len(set(quick_run.executor.scripts)) == 4
    last = quick_run.agents.calls("planner")[-1].prompt
    assert tried(last) == [(plan, FAILED if score is None else str(score)) for plan, score, *_ in attempts]


BEST = "Best block so far"


async def test_planner_and_coder_are_told_the_script_and_the_best_block_as_it_was_scored(
    quick_run: ScriptedRun,
) -> None:
    """Repaired and without its leak, not as the coder wrote it."""
    start, repaired = base_solution(), "level = 0.9\n# without what took too long"
    codes = ["level = 0.3", "raise TimeoutError('too long')", "", "level = 0.99", "level = 0.1"]
    quick_run.agents.reply("coder", *(fenced(code) if code else "No code." for code in codes))
    quick_run.agents.reply("debugger", fenced(f"import os\n\n{start.content.replace(BLOCK, repaired)}"))
    quick_run.agents.reply("leakage-detection", *[NO_LEAKAGE] * 3, leaky("level = 0.99"))
    quick_run.agents.reply("leakage-correction", fenced("level = 0.95  # corrected"))
    result = await refine(quick_run, k=5, solution=start)
    assert [attempt.code_block for attempt in result.attempts] == codes
    asked = [call for call in quick_run.agents.log if call.name in ("coder", "planner")]
    assert all(start.content.replace(BLOCK, MARK) in section(call.prompt, "Whole script") for call in asked)
    expected = [(0.9, repaired)] * 4 + [(0.95, "level = 0.95  # corrected")] * 2
    assert [f"# {BEST}" in call.prompt for call in asked] == [False] * 3 + [True] * 6
    for call, (score, code) in zip(asked[3:], expected, strict=True):
        told = section(call.prompt, BEST)
        assert f"the script scores {score}. " in told and f"```python\n{code}\n```" in told
        assert "TimeoutError" not in told and "level = 0.99" not in told
    await invoke_coder("another = 1", "plan")
    assert "# Whole script" not in quick_run.agents.log[-1].prompt and BEST not in quick_run.agents.log[-1].prompt


@pytest.mark.req("REQ-P2I-039", "REQ-P2I-040")
def test_the_loop_itself_takes_next_to_no_time_with_the_largest_scripts(quick_run: ScriptedRun) -> None:
    solution, padding = base_solution(), "\n".join(f"value_{n} = {n}" for n in range(2500))  # some 50 KB
    solution.content = f"{padding}\n{solution.content}"
    result, waited, worked = measured(refine(quick_run, k=4, solution=solution))
    calls = len(quick_run.agents.log)
    assert len(result.attempts) == 4 and calls == 4 + 3 + 4
    assert waited == 0 and worked / calls < 0.5


@BOTH
@pytest.mark.req("REQ-P2I-022", "REQ-DM-010")
async def test_the_first_hit_is_replaced_to_the_letter(quick_run: ScriptedRun) -> None:
    start = base_solution()
    start.content = f"max_{BLOCK}\n{start.content}"
    quick_run.agents.reply("coder", fenced("level = 0.9"))
    await refine(quick_run, k=1, solution=start)
    hit = BLOCK if quick_run.config.letter else f"\n{BLOCK}"
    assert quick_run.executor.scripts == [start.content.replace(hit, hit.replace("0.5", "0.9"), 1)]
    with pytest.raises(ValueError, match="not found"):
        replacement(start.content, "level = 7", "x", first=True)
    lost = "if True:\n    a = 1\n    b = 2\n"  # C-53: what does not compile as it is, is moved in
    assert replacement(lost, "    a = 1\n    b = 2", "c = 3\nd = 4", first=True)[1] == "    c = 3\n    d = 4"


def inputs(*scores: float) -> list[SolutionScript]:
    """One refined solution per score."""
    return [
        solution(script(score, note=f"input {n}"), score=score, phase=SolutionPhase.refined)
        for n, score in enumerate(scores or (0.5, 0.6))
    ]


async def ensemble(run: ScriptedRun, r: int = 5, *, of: list[SolutionScript] | None = None) -> Phase3Result:
    """`r` rounds over the given solutions, by default two that score 0.5 and 0.6."""
    return await run_phase3(inputs() if of is None else of, run.task, settings(R=r))


@BOTH
@pytest.mark.req(
    "REQ-P3-015", "REQ-P3-017", "REQ-P3-019", "REQ-P3-020", "REQ-P3-021", "REQ-P3-022", "REQ-P3-023", "REQ-P3-024",
    "REQ-P3-030", "REQ-P3-031", "REQ-P3-032", "REQ-P3-033", "REQ-P3-034", "REQ-P3-042", "REQ-P3-043", "REQ-P3-044",
)  # fmt: skip
async def test_each_round_plans_with_the_whole_history_and_is_recorded_however_it_ends(run: ScriptedRun) -> None:
    given = inputs()
    play_rounds(run.agents, [0.7, "crash", "planner", "ensembler", 0.75, 0.72])
    with scope("phase3"):
        result = await ensemble(run, r=6, of=given)
    plans = ["plan 0", "plan 1", ENS_PLANNER_FAILED, "plan 3", "plan 4", "plan 5"]
    scores = [0.7, None, None, None, 0.75, 0.72]
    codes = [script(score, note=f"round {r}") if score else "" for r, score in enumerate(scores)]
    codes[1] = broken_script(note="round 1")
    names = ("ens_planner", "ensembler", "leakage-detection")
    asked = [names, names, names[:1], names[:2], names, names]
    steps = [f"phase3/r-{r}/{name}" for r, names in enumerate(asked) for name in names]
    assert [call.step for call in run.agents.log if call.name != "debugger"] == steps
    assert len(run.events(AgentFinished)) == len(run.agents.log)
    known = [(plan, "N/A (evaluation failed)" if s is None else str(s)) for plan, s in zip(plans, scores, strict=True)]
    for r, call in enumerate(run.agents.calls("ens_planner")):
        assert re.findall(r"## Plan: (.*)\n## Score: (.*)", call.prompt) == known[:r]
        assert ("Plan:" in call.prompt) == (r > 0)
    shown = [section(call.prompt, "Ensemble plan") for call in run.agents.calls("ensembler")]
    assert [plan in text for plan, text in zip([*plans[:2], *plans[3:]], shown, strict=True)] == [True] * 5
    ran = [code for code in codes if code]
    checked = [call.prompt for call in run.agents.calls("leakage-detection")]
    assert all(code in prompt for code, prompt in zip(ran, checked, strict=True))
    assert list(dict.fromkeys(run.executor.scripts)) == ran and run.executor.most_at_once == 1
    assert (result.ensemble_plans, result.ensemble_scores, result.input_solutions) == (plans, scores, given)
    attempts = [(a.plan, a.score, a.solution.content, a.solution.is_executable) for a in result.attempts]
    assert attempts == [(*both, code, both[1] is not None) for *both, code in zip(plans, scores, codes, strict=True)]
    assert {attempt.solution.phase for attempt in result.attempts} == {SolutionPhase.ensemble}
    assert result.best_ensemble == result.attempts[4].solution and result.best_ensemble.score == 0.75
    events = [(e.step, e.r, e.plan, e.score, e.best) for e in run.events(EnsembleTried)]
    assert events == [(f"phase3/r-{r}", r, plans[r], scores[r], r in (0, 4)) for r in range(6)]
    assert ENS_PLANNER_FAILED == "[ens_planner failed]" and (run.work_dir / "final" / "submission.csv").exists()


async def test_of_promising_ensembles_each_is_checked_that_would_win_until_one_stays_the_best(quick_path: Path) -> None:
    """The best is fixed and worse then, the second leaks for good, the third is clean; the fourth is never checked."""
    with quick(quick_path, R=4, leakage_checks="promising") as run, scope("phase3"):
        run.agents.reply("ensembler", *fenced(script(0.9), script(0.8), script(0.7), script(0.5)))
        run.agents.reply("leakage-detection", leaky("level = 0.9"), leaky("level = 0.8"), NO_LEAKAGE)
        run.agents.reply("leakage-correction", fenced("level = 0.6"), "no code")
        run.agents.reply("leakage-rewrite", "no code")
        result = await run_phase3(inputs(), run.task, run.config)
        assert run.agents.names.count("leakage-detection") == 3
    assert result.ensemble_scores == [0.6, None, 0.7, 0.5]
    assert (result.best_ensemble.content, result.best_ensemble_score) == (script(0.7), 0.7)
    assert result.attempts[0].solution.content == script(0.6) and result.attempts[1].solution.leaking


@BOTH
@pytest.mark.req("REQ-P3-015")
async def test_a_missing_submission_is_a_warning_and_the_round_counts(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    run.agents.reply("ensembler", *fenced(script(0.8), "print('Final Validation Performance: 0.9')"))
    result = await ensemble(run, r=2)
    assert result.best_ensemble_score == 0.9
    missing = [r.getMessage() for r in caplog.records if "left no final/submission.csv" in r.getMessage()]
    assert len(missing) == 1 and missing[0].startswith("r=1:")  # the file of the round before does not count


@pytest.mark.req("REQ-P3-018")
async def test_a_single_solution_is_the_result(quick_run: ScriptedRun) -> None:
    given = inputs(0.7)
    result = await ensemble(quick_run, of=given)
    assert result == Phase3Result(
        input_solutions=given, ensemble_plans=[], ensemble_scores=[], best_ensemble=given[0], best_ensemble_score=0.7
    )
    assert quick_run.agents.log == [] and quick_run.executor.scripts == []
