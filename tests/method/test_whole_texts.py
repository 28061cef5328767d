"""No prompt is cut: scripts of 20,000 characters, long texts, long errors and late repairs reach every agent whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mle_star.models import SolutionPhase
from mle_star.phase1 import run_phase1
from mle_star.phase2_outer import run_phase2_outer_loop
from mle_star.phase3 import run_phase3
from mle_star.prompts import PromptRegistry

from .conftest import ScriptedRun, scripted_run, settings
from .replies import NO_LEAKAGE, by_step, fenced, leaky, plans, script, solution
from .test_finalization import finalize

LINES = 667
PLAIN = ("task", "output", "summary", "plan-0", "plan-1", "ensemble-plan", "other-plan", "post")
"""Texts that are no scripts."""


def lines(name: str) -> str:
    """So many lines, each unlike any other: what holds all of them in a row was not cut."""
    mark = "" if name in PLAIN else "# "
    return "\n".join(f"{mark}[{name}] line {n} of a long text" for n in range(LINES))


def long(name: str, code: str = "") -> str:
    """A long script: many lines first, what it does last."""
    return f"{lines(name)}\n{code}"


def failing(name: str) -> str:
    """A long script that fails with a long error, in words that do not stand in the script itself."""
    return long(name, f"raise RuntimeError('\\n'.join(f'[{name}-error] detail {{n}}' for n in range(100)))")


def shown(prompt: str) -> str:
    """The texts that a prompt holds, each of them whole."""
    found = sorted(set(re.findall(r"\[([\w-]+)\] (?:line|detail) \d", prompt)))
    for name in found:
        detail = "\n".join(f"[{name}] detail {n}" for n in range(100))
        assert (detail if name.endswith("-error") else lines(name)) in prompt, f"{name} was cut"
    return " ".join(found)


def shown_to(run: ScriptedRun) -> dict[str, list[str]]:
    """What each call of each agent was shown; candidates are asked side by side."""
    agents = sorted(set(run.agents.names))
    return {name: [shown(call.prompt) for call in run.agents.calls(name)] for name in agents}


async def phase_1_cuts_nothing(run: ScriptedRun) -> None:
    agents, rewrite = run.agents, long("rewrite", script(0.8))
    examples = [{"model_name": f"m{n}", "example_code": lines(f"example-{n}")} for n in range(2)]
    agents.reply("retriever", {"models": examples})
    inits = fenced(failing("init-0")), fenced(long("init-1", script(0.7)))
    agents.always("init", by_step(candidate_0=inits[0], candidate_1=inits[1]))
    agents.reply("debugger", *fenced(failing("repair-1"), long("repair-2", script(0.9))))
    agents.always("leakage-detection", lambda call: leaky("level = 0.9") if "[repair-2]" in call.prompt else NO_LEAKAGE)
    agents.reply("leakage-correction", "I cannot.")
    agents.reply("leakage-rewrite", fenced(rewrite))
    agents.reply("merger", fenced(long("merge", script(0.85))))
    agents.reply("data", fenced(long("revision", script(0.9))))
    result = await run_phase1(run.task, run.config)
    assert result.candidate_solutions[0].content == rewrite and "[revision]" in result.initial_solution.content
    told = shown_to(run)
    checked = " ".join(sorted(told.pop("leakage-detection")))
    assert checked == "init-0 init-1 merge repair-1 repair-2 revision revision"
    assert told == {
        "retriever": ["task"], "init": ["example-0 task", "example-1 task"], "leakage-correction": ["repair-2"],
        "debugger": ["init-0 init-0-error", "repair-1 repair-1-error"], "leakage-rewrite": ["repair-2"],
        "merger": ["init-1 rewrite"], "data": ["merge task"],
    }  # fmt: skip


async def phase_2_cuts_nothing(run: ScriptedRun) -> None:
    agents, block = run.agents, long("block", "level = 0.5")
    study = f"for n in range({LINES}):\n    print(f'[output] line {{n}} of a long text')"
    agents.always("ablation", fenced(failing("study")))
    agents.always("debugger-ablation", fenced(long("fixed-study", study)))
    agents.always("summarize", lines("summary"))
    codes = [long("code-0", "level = 0.6"), long("code-1", "level = 0.7"), long("last-code", "level = 0.8")]
    agents.reply("extractor", plans((block, lines("plan-0"))), plans((codes[1], lines("plan-0"))))
    agents.always("planner", lines("plan-1"))
    agents.reply("coder", *fenced(*codes))
    agents.always("coder", fenced(codes[-1]))
    start = long("start", script(0.5).replace("level = 0.5", block))
    best = await run_phase2_outer_loop(solution(start, score=0.5), 0.5, run.task, run.config)
    assert best.best_solution.content == start.replace(block, codes[-1])
    told = shown_to(run)
    assert told.pop("leakage-detection")[:3] == ["code-0 start", "code-1 start", "last-code start"]
    assert told == {
        "ablation": ["block start", "code-1 start summary"], "debugger-ablation": ["study study-error"] * 2,
        "extractor": ["block start summary", "block code-1 start summary"], "summarize": ["fixed-study output"] * 2,
        "planner": ["block plan-0", "code-1 plan-0"],
        "coder": ["block plan-0", "block plan-1", "code-1 plan-0", "code-1 plan-1"],
    }  # fmt: skip


async def phase_3_cuts_nothing(run: ScriptedRun) -> None:
    given = [solution(long(name, script(0.5, note=name)), score=0.5) for name in ("first", "second")]
    run.agents.reply("ens_planner", lines("ensemble-plan"), lines("other-plan"))
    run.agents.always("ensembler", fenced(long("ensemble", script(0.8))))
    await run_phase3(given, run.task, run.config)
    assert shown_to(run) == {
        "ens_planner": ["first second", "ensemble-plan first second"], "leakage-detection": ["ensemble"] * 2,
        "ensembler": ["ensemble-plan first second", "first other-plan second"],
    }  # fmt: skip


async def finalization_cuts_nothing(run: ScriptedRun) -> None:
    block = long("cut", "rows = rows[:5]")
    best = solution(long("best", f"rows = list(range(9))\n{block}\n{script(0.8)}"), score=0.8)
    run.agents.reply("test-subsampling_extract", fenced(block))
    run.agents.reply("test-subsampling_remove", fenced("pass"))
    run.agents.reply("test", fenced(failing("final")))
    run.agents.reply("debugger", fenced(long("fixed-final", script(0.9))))
    result = await finalize(run, best, references=[lines("post")])
    assert result.final_solution.content == long("fixed-final", script(0.9))
    assert result.final_solution.phase is SolutionPhase.final
    assert shown_to(run) == {
        "test-subsampling_extract": ["best cut"], "test-subsampling_remove": ["cut"], "test": ["best task"],
        "leakage-detection": ["final", "fixed-final"], "debugger-submission": ["final final-error"],
        "test-contamination": ["fixed-final post"],
    }  # fmt: skip


@pytest.mark.req("REQ-SF-003", "REQ-SF-013", "REQ-P1-017", "REQ-P2O-011", "REQ-P2I-010", "REQ-P3-009", "REQ-FN-028")
async def test_no_prompt_is_cut(tmp_path: Path) -> None:
    """The prompts are the specification's, with a long description of the task."""
    asked, config = set(), settings(briefing=(), T=2, task_in_prompts=True)
    with scripted_run(tmp_path, config=config, description=lines("task")) as run:
        for phase in (phase_1_cuts_nothing, phase_2_cuts_nothing, phase_3_cuts_nothing, finalization_cuts_nothing):
            await phase(run)
            asked |= set(run.agents.names)
            run.agents.log.clear()
    assert {name.replace("-", "_") for name in asked} == {prompt.name for prompt in PromptRegistry()}, "every prompt"
