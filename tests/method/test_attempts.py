"""The attempts of the inner loop and the rounds of Phase 3: which wins, what is recorded, and no failure ends it."""

import re
from pathlib import Path
from typing import Any

import pytest

from mle_star.method.codeblocks import replacement
from mle_star.models import InnerLoopResult, SolutionPhase
from mle_star.phase2_inner import invoke_coder, run_phase2_inner_loop
from mle_star.phase3 import ENS_PLANNER_FAILED, run_phase3
from mle_star.run.context import path_context, scope
from mle_star.run.events import PLANNER_FAILED
from mle_star.run.prompt_context import MARK
from tests.conftest import Logs, leaks

from .conftest import ScriptedRun, account_as_kept, play_attempts, play_rounds, quick, section, settings
from .replies import BLOCK, BOTH, INPUTS, NO_LEAKAGE, base_solution, block, broken_script, fenced, leaky, script

LONG = "plan 0, " * 30
FAILED, NO_FILE = "N/A (evaluation failed)", "print('Final Validation Performance: 0.72')"


async def refine(run: ScriptedRun, k: int, **changes: Any) -> InnerLoopResult:
    """One inner loop of `k` attempts at the base script, which scores 0.5."""
    given: dict[str, Any] = {
        "solution": base_solution(), "code_block": block(), "initial_plan": "plan 0", "best_score": 0.5,
        "task": run.task, "config": settings(K=k),
    }  # fmt: skip
    return await run_phase2_inner_loop(**{**given, **changes})


def tried(prompt: str) -> list[tuple[str, str]]:
    return re.findall(r"## Plan: (.*)\n## Score: (.*)", section(prompt, "Improvement plans you have tried"))


@BOTH
@pytest.mark.req("REQ-P2I-016", "REQ-P2I-017", "REQ-P2I-018", "REQ-P2I-019", "REQ-P2I-020", "REQ-P2I-021")
@pytest.mark.req("REQ-P2I-022", "REQ-P2I-023", "REQ-P2I-027", "REQ-P2I-028", "REQ-P2I-029", "REQ-P2I-032")
@pytest.mark.req("REQ-P2I-034", "REQ-P2I-035", "REQ-P2I-036", "REQ-P2I-043", "REQ-P2I-044", "REQ-P2I-046")
@pytest.mark.req("REQ-P2I-049", "REQ-P2I-050")
async def test_each_attempt_rewrites_the_original_block_by_a_plan_that_knows_all_earlier_ones(
    run: ScriptedRun, caplog: Logs
) -> None:
    """The block stands in the script twice: the first one counts. Failed attempts are recorded as well."""
    solution, target = base_solution(), block(t=1)
    solution.content += f"{BLOCK}\n"
    before = solution.model_copy(deep=True)
    attempts: list[tuple[str, str, float | None, bool]] = [  # plan, block, score, is it accepted?
        ("plan 0", f"{BLOCK}\nlevel = 0.6", 0.6, True),  # it holds the original block
        ("plan 1", "", None, False), ("plan 2", "raise RuntimeError('k2')", None, False),
        (PLANNER_FAILED, "", None, False), ("plan 4", "level = 0.4", 0.4, False), ("plan 5", "level = 0.7", 0.7, True),
        ("plan 6", "level = 0.1", 0.1, False),
    ]  # fmt: skip
    codes = [code for _, code, _, _ in attempts if code]
    run.agents.reply("coder", fenced(codes[0]), "No code today.", *fenced(*codes[1:]))
    run.agents.reply("planner", "plan 1", "plan 2", "", "plan 4", "plan 5", "plan 6")
    run.agents.always("debugger", "I cannot repair this.")
    with scope("phase2"), path_context(2, run.work_dir), scope("t-1"):
        result = await refine(run, k=7, solution=solution, code_block=target, tried=["an earlier plan"])
    known = [(plan, FAILED if score is None else str(score)) for plan, _, score, _ in attempts]
    for k, call in enumerate(run.agents.calls("planner"), 1):
        assert tried(call.prompt) == known[:k] and "a higher score" in section(call.prompt, "Your task")
        assert ('"tried": ["an earlier plan"]' in call.prompt) == (not run.config.letter)
    for call in [*run.agents.calls("coder"), *run.agents.calls("planner")]:
        assert section(call.prompt, "Code block").strip() == f"```python\n{BLOCK}\n```"
    plans = [plan for plan, _ in known if plan != PLANNER_FAILED]
    assert all(p in section(c.prompt, "Plan") for p, c in zip(plans, run.agents.calls("coder"), strict=True))
    ran = list(dict.fromkeys(run.executor.scripts))
    assert ran == [before.content.replace(BLOCK, code, 1) for code in codes]
    assert run.executor.most_at_once == 1 and solution == before and target == block(t=1)
    assert [(a.plan, a.code_block, a.score, a.was_improvement) for a in result.attempts] == attempts
    best = result.best_solution
    assert (best.content, best.score, result.best_score) == (ran[3], 0.7, 0.7)
    assert best.phase is SolutionPhase.refined and best.is_executable and result.improved
    assert PLANNER_FAILED == "[planner failed]"
    account_as_kept("attempts", run, caplog.records)


@pytest.mark.req("REQ-P2I-033", "REQ-P2I-038")
@pytest.mark.parametrize(
    ("name", "change", "calls", "attempts"),
    [
        ("foreign-block", {"code_block": block("level = 0.123", t=None), "initial_plan": LONG}, "coder planner coder",
         [(LONG, None, "level = 0.6  # k0"), ("plan 1", None, "level = 0.7  # k1")]),
        ("blank-block", {"code_block": block(" \n")}, "", [("plan 0", None, ""), (PLANNER_FAILED, None, "")]),
        ("no-plan", {"initial_plan": ""}, "planner coder leakage-detection",
         [("", None, ""), ("plan 1", 0.6, "level = 0.6  # k0")]),
    ],
)  # fmt: skip
async def test_a_block_or_a_plan_that_cannot_be_used_fails_an_attempt_but_not_the_loop(
    name: str, change: dict[str, Any], calls: str, attempts: list[tuple[str, float | None, str]],
    quick_run: ScriptedRun, caplog: Logs,
) -> None:  # fmt: skip
    play_attempts(quick_run.agents, [0.6, 0.7])
    result = await refine(quick_run, k=2, **change)
    assert [(a.plan, a.score, a.code_block) for a in result.attempts] == attempts
    assert quick_run.agents.names == calls.split() and result.improved == (attempts[1][1] is not None)
    account_as_kept(name, quick_run, caplog.records)


BEST = "Best block so far"


async def test_planner_and_coder_are_told_the_script_and_the_best_block_as_scored(quick_run: ScriptedRun) -> None:
    """Repaired and without its leak, not as the coder wrote it."""
    start, repaired = base_solution(), "level = 0.9\n# without what took too long"
    codes = ["level = 0.3", "raise TimeoutError('too long')", "", "level = 0.99", "level = 0.1"]
    quick_run.agents.reply("coder", *(fenced(code) if code else "No code." for code in codes))
    quick_run.agents.reply("debugger", fenced(f"import os\n\n{start.content.replace(BLOCK, repaired)}"))
    quick_run.agents.reply("leakage-detection", *[NO_LEAKAGE] * 3, leaky("level = 0.99"))
    quick_run.agents.reply("leakage-correction", fenced("level = 0.95  # corrected"))
    result = await refine(quick_run, k=5, solution=start)
    assert [attempt.code_block for attempt in result.attempts] == codes
    calls = [call for call in quick_run.agents.log if call.name in ("coder", "planner")]
    around = start.content.replace(BLOCK, MARK)
    assert all(around in section(call.prompt, "Around the block") for call in calls)
    expected = [(0.9, repaired)] * 4 + [(0.95, "level = 0.95  # corrected")] * 2
    assert [f"# {BEST}" in call.prompt for call in calls] == [False] * 3 + [True] * 6
    for call, (score, code) in zip(calls[3:], expected, strict=True):
        shown = section(call.prompt, BEST)
        assert f"the script scores {score}. " in shown and f"```python\n{code}\n```" in shown
        assert "TimeoutError" not in shown and "level = 0.99" not in shown
    await invoke_coder("another = 1", "plan")
    assert "# Around the block" not in quick_run.agents.log[-1].prompt and BEST not in quick_run.agents.log[-1].prompt


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


@BOTH
@pytest.mark.req("REQ-P3-004", "REQ-P3-005", "REQ-P3-015", "REQ-P3-017", "REQ-P3-019", "REQ-P3-020", "REQ-P3-021")
@pytest.mark.req("REQ-P3-022", "REQ-P3-023", "REQ-P3-024", "REQ-P3-030", "REQ-P3-031", "REQ-P3-032", "REQ-P3-033")
@pytest.mark.req("REQ-P3-034", "REQ-P3-042", "REQ-P3-043", "REQ-P3-044")
async def test_rounds_see_all_the_history_and_are_recorded(run: ScriptedRun, caplog: Logs) -> None:
    """The fifth round leaves no submission: that is a warning, and the round counts."""
    play_rounds(run.agents, [0.7, "crash", "planner", "ensembler"])
    run.agents.reply("ens_planner", "plan 4", "plan 5")
    run.agents.reply("ensembler", *fenced(NO_FILE, script(0.75, note="round 5")))
    with scope("phase3"):
        result = await run_phase3(INPUTS, run.task, settings(R=6))
    plans = ["plan 0", "plan 1", ENS_PLANNER_FAILED, "plan 3", "plan 4", "plan 5"]
    scores = [0.7, None, None, None, 0.72, 0.75]
    codes = [script(0.7, note="round 0"), broken_script(note="round 1"), "", "", NO_FILE, script(0.75, note="round 5")]
    known = [(plan, FAILED if score is None else str(score)) for plan, score in zip(plans, scores, strict=True)]
    for r, call in enumerate(run.agents.calls("ens_planner")):
        assert re.findall(r"## Plan: (.*)\n## Score: (.*)", call.prompt) == known[:r]
        assert ("Plan:" in call.prompt) == ("Score:" in call.prompt) == (r > 0)
        assert ("# Ensemble plans you have tried" in call.prompt) == (r > 0)
        assert "a higher score" in section(call.prompt, "Your task")
    for call in [*run.agents.calls("ens_planner")[1:], *run.agents.calls("ensembler")[1:]] * (not run.config.letter):
        score, code = (0.72, NO_FILE) if "/r-5/" in call.step else (0.7, codes[0])
        shown_best = section(call.prompt, "Best ensemble so far")
        assert f"It scores {score}. " in shown_best and f"```python\n{code}\n```" in shown_best
    shown = [section(call.prompt, "Ensemble plan") for call in run.agents.calls("ensembler")]
    assert [plan in text for plan, text in zip([*plans[:2], *plans[3:]], shown, strict=True)] == [True] * 5
    ran = [code for code in codes if code]
    checked = [call.prompt for call in run.agents.calls("leakage-detection")]
    assert all(code in prompt for code, prompt in zip(ran, checked, strict=True))
    assert list(dict.fromkeys(run.executor.scripts)) == ran and run.executor.most_at_once == 1
    assert (result.ensemble_plans, result.ensemble_scores, result.input_solutions) == (plans, scores, INPUTS)
    attempts = [(a.plan, a.score, a.solution.content, a.solution.is_executable) for a in result.attempts]
    assert attempts == [(*both, code, both[1] is not None) for *both, code in zip(plans, scores, codes, strict=True)]
    assert {attempt.solution.phase for attempt in result.attempts} == {SolutionPhase.ensemble}
    assert result.best_ensemble == result.attempts[5].solution and result.best_ensemble_score == 0.75
    assert ENS_PLANNER_FAILED == "[ens_planner failed]" and (run.work_dir / "final" / "submission.csv").exists()
    assert (await run_phase3(INPUTS[:1], run.task, settings(R=6))).attempts == []
    account_as_kept("rounds", run, caplog.records)


async def test_of_promising_ensembles_the_best_are_checked_until_one_stays_so(quick_path: Path, caplog: Logs) -> None:
    """The best is fixed and worse then, the second leaks for good, the third is clean; the fourth is never checked."""
    with quick(quick_path, R=4, leakage_checks="promising") as run, scope("phase3"):
        run.agents.reply("ensembler", *fenced(script(0.9), script(0.8), script(0.7), script(0.5)))
        run.agents.reply("leakage-detection", leaky("level = 0.9"), leaky("level = 0.8"), NO_LEAKAGE)
        run.agents.reply("leakage-correction", fenced("level = 0.6"), "no code")
        run.agents.reply("leakage-rewrite", "no code")
        result = await run_phase3(INPUTS, run.task, run.config)
        account_as_kept("promising-rounds", run, caplog.records)
    assert result.ensemble_scores == [0.6, None, 0.7, 0.5]
    assert (result.best_ensemble.content, result.best_ensemble_score) == (script(0.7), 0.7)
    assert result.attempts[0].solution.content == script(0.6) and leaks(run.context, result.attempts[1].solution)
