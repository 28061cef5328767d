"""No prompt is cut: scripts of 20,000 characters, long texts, long errors and late repairs reach every agent whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mle_star.models import SolutionPhase
from mle_star.phase1 import run_phase1
from mle_star.phase2_outer import run_phase2_outer_loop
from mle_star.phase3 import run_phase3
from mle_star.prompts import PromptRegistry

from .conftest import (
    NO_LEAKAGE,
    ScriptedCall,
    ScriptedRun,
    by_step,
    fenced,
    leaky,
    script,
    scripted_run,
    settings,
    solution,
)  # fmt: skip
from .loops import plans
from .test_finalization import finalize

LONG = 20_000
NAMES = (
    "task", "example 0", "example 1", "init 0", "init 1", "repair 1", "repair 2", "rewrite", "merge", "revision",
    "start", "block", "study", "fixed study", "output", "summary", "plan 0", "plan 1", "code 0", "code 1", "last code",
    "first", "second", "ensemble plan", "other plan", "ensemble", "best", "cut", "final", "fixed final", "post",
)  # fmt: skip
PLAIN = ("task", "output", "summary", "plan 0", "plan 1", "ensemble plan", "other plan", "post")


def lines(name: str) -> str:
    """So many lines, each unlike any other: what holds all of them in a row was not cut."""
    mark = "" if name in PLAIN else "# "
    return "\n".join(f"{mark}[{name}] line {n} of a long text" for n in range(LONG // 30))


def long(name: str, code: str = "") -> str:
    """A long script: many lines first, what it does last."""
    return f"{lines(name)}\n{code}"


def error(name: str) -> str:
    """What a script raises: words that do not stand in the script itself."""
    return "\n".join(f"[{name}] detail {n}" for n in range(100))


def failing(name: str) -> str:
    """A long script that fails with a long error."""
    return long(name, f"raise RuntimeError('\\n'.join(f'[{name} error] detail {{n}}' for n in range(100)))")


def shown(call: ScriptedCall) -> set[str]:
    """The texts that a prompt holds, each of them whole."""
    known = {name: lines(name) for name in NAMES} | {f"{name} error": error(f"{name} error") for name in NAMES}
    found = {name for name in known if re.search(rf"\[{name}\] (?:line|detail) \d", call.prompt)}
    assert [name for name in sorted(found) if known[name] not in call.prompt] == [], f"cut for {call.step}"
    return found


def told(run: ScriptedRun, agent: str) -> list[set[str]]:
    """What each call of an agent was shown."""
    return [shown(call) for call in run.agents.calls(agent)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ScriptedRun]:
    """A run whose prompts are the specification's, with a long description of its task."""
    config = settings(briefing=(), T=2, task_in_prompts=True)
    with scripted_run(tmp_path, config=config, description=lines("task")) as entered:
        yield entered


async def phase_1_cuts_nothing(run: ScriptedRun) -> None:
    agents, rewrite = run.agents, long("rewrite", script(0.8))
    examples = [{"model_name": f"m{n}", "example_code": lines(f"example {n}")} for n in range(2)]
    agents.reply("retriever", {"models": examples})
    agents.always(
        "init", by_step(candidate_0=fenced(failing("init 0")), candidate_1=fenced(long("init 1", script(0.7))))
    )
    agents.reply("debugger", *fenced(failing("repair 1"), long("repair 2", script(0.9))))
    agents.always("leakage-detection", lambda call: leaky("level = 0.9") if "[repair 2]" in call.prompt else NO_LEAKAGE)
    agents.reply("leakage-correction", "I cannot.")
    agents.reply("leakage-rewrite", fenced(rewrite))
    agents.reply("merger", fenced(long("merge", script(0.85))))
    agents.reply("data", fenced(long("revision", script(0.9))))
    result = await run_phase1(run.task, run.config)
    assert result.candidate_solutions[0].content == rewrite and "[revision]" in result.initial_solution.content
    assert told(run, "retriever") == [{"task"}]
    assert told(run, "init") == [{"task", "example 0"}, {"task", "example 1"}]
    assert told(run, "debugger") == [{"init 0", "init 0 error"}, {"repair 1", "repair 1 error"}]
    assert sorted(map(sorted, told(run, "leakage-detection"))) == [
        ["init 0"], ["init 1"], ["merge"], ["repair 1"], ["repair 2"], ["revision"], ["revision"],
    ]  # fmt: skip
    assert told(run, "leakage-correction") == told(run, "leakage-rewrite") == [{"repair 2"}]
    assert told(run, "merger") == [{"rewrite", "init 1"}]
    assert told(run, "data") == [{"task", "merge"}]


async def phase_2_cuts_nothing(run: ScriptedRun) -> None:
    agents, block = run.agents, long("block", "level = 0.5")
    study = "print('Ablation baseline: 0.5')\nprint('Ablation no level: 0.1')"
    study += f"\nfor n in range({LONG // 30}):\n    print(f'[output] line {{n}} of a long text')"
    agents.always("ablation", fenced(failing("study")))
    agents.always("debugger-ablation", fenced(long("fixed study", study)))
    agents.always("summarize", lines("summary"))
    agents.reply("extractor", plans((block, lines("plan 0"))))
    agents.reply("extractor", plans((long("code 1", "level = 0.7"), lines("plan 0"))))
    agents.always("planner", lines("plan 1"))
    codes = [long("code 0", "level = 0.6"), long("code 1", "level = 0.7"), long("last code", "level = 0.8")]
    agents.reply("coder", *fenced(*codes))
    agents.always("coder", fenced(codes[-1]))
    start = long("start", script(0.5).replace("level = 0.5", block))
    best = await run_phase2_outer_loop(solution(start, score=0.5), 0.5, run.task, run.config)
    assert best.best_solution.content == start.replace(block, codes[-1])
    first, second = {"start", "block"}, {"start", "code 1"}
    assert told(run, "ablation") == [first, second | {"summary"}]
    assert told(run, "debugger-ablation") == [{"study", "study error"}] * 2
    assert told(run, "extractor") == [first | {"summary"}, second | {"summary", "block"}]
    assert told(run, "planner") == [{"block", "plan 0"}, {"code 1", "plan 0"}]
    assert told(run, "coder") == [
        {"block", "plan 0"}, {"block", "plan 1"}, {"code 1", "plan 0"}, {"code 1", "plan 1"},
    ]  # fmt: skip
    assert told(run, "leakage-detection")[:3] == [{"start", "code 0"}, {"start", "code 1"}, {"start", "last code"}]
    assert told(run, "summarize") == [{"fixed study", "output"}] * 2


async def phase_3_cuts_nothing(run: ScriptedRun) -> None:
    given = [solution(long(name, script(0.5, note=name)), score=0.5) for name in ("first", "second")]
    run.agents.reply("ens_planner", lines("ensemble plan"), lines("other plan"))
    run.agents.always("ensembler", fenced(long("ensemble", script(0.8))))
    await run_phase3(given, run.task, run.config)
    both = {"first", "second"}
    assert told(run, "ens_planner") == [both, both | {"ensemble plan"}]
    assert told(run, "ensembler") == [both | {"ensemble plan"}, both | {"other plan"}]
    assert told(run, "leakage-detection")[0] == {"ensemble"}


async def finalization_cuts_nothing(run: ScriptedRun) -> None:
    block = long("cut", "rows = rows[:5]")
    best = solution(long("best", f"rows = list(range(9))\n{block}\n{script(0.8)}"), score=0.8)
    run.agents.reply("test-subsampling_extract", fenced(block))
    run.agents.reply("test-subsampling_remove", fenced("pass"))
    run.agents.reply("test", fenced(failing("final")))
    run.agents.reply("debugger", fenced(long("fixed final", script(0.9))))
    result = await finalize(run, best, references=[lines("post")])
    assert result.final_solution.content == long("fixed final", script(0.9))
    assert result.final_solution.phase is SolutionPhase.final
    assert told(run, "test-subsampling_extract") == [{"best", "cut"}]
    assert told(run, "test-subsampling_remove") == [{"cut"}]
    assert told(run, "test") == [{"task", "best"}]
    assert told(run, "leakage-detection") == [{"final"}, {"fixed final"}]
    assert told(run, "debugger-submission") == [{"final", "final error"}]
    assert told(run, "test-contamination") == [{"post", "fixed final"}]


@pytest.mark.req(
    "REQ-SF-002", "REQ-SF-003", "REQ-SF-012", "REQ-SF-013", "REQ-SF-017", "REQ-SF-025", "REQ-P1-002", "REQ-P1-009",
    "REQ-P1-012", "REQ-P1-014", "REQ-P1-017", "REQ-P2O-002", "REQ-P2O-009", "REQ-P2O-011", "REQ-P2O-013",
    "REQ-P2I-002", "REQ-P2I-010", "REQ-P3-002", "REQ-P3-009", "REQ-FN-001", "REQ-FN-004", "REQ-FN-012", "REQ-FN-028",
    "REQ-FN-035",
)  # fmt: skip
async def test_no_prompt_is_cut(run: ScriptedRun) -> None:
    asked = set()
    for phase in (phase_1_cuts_nothing, phase_2_cuts_nothing, phase_3_cuts_nothing, finalization_cuts_nothing):
        await phase(run)
        asked |= set(run.agents.names)
        run.agents.log.clear()
    assert {name.replace("-", "_") for name in asked} == {prompt.name for prompt in PromptRegistry()}, "every prompt"
