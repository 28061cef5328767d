"""The same faults for every phase: each single call and each single script fails once, and costs no more than it must.

A `Play` is one eventful way through a phase: something to repair, a leak to correct, every agent asked. Its tables say
what is left of its outcome when a reply is lost or a script fails; nothing else may change.
"""

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mle_star.errors import AgentError, BudgetExceeded, Phase1Error
from mle_star.execution import evaluate_solution
from mle_star.finalization import run_finalization
from mle_star.models import ExecutionRawResult, Phase2Result, Phase3Result, SolutionPhase, agent_config
from mle_star.models.texts import digest_of
from mle_star.phase1 import run_phase1
from mle_star.phase2_inner import run_phase2_inner_loop
from mle_star.phase2_outer import run_phase2_outer_loop
from mle_star.phase3 import run_phase3
from mle_star.prompts import PromptRegistry
from mle_star.run.context import ScriptRequest, scope
from mle_star.run.events import SKIPPED, AgentFinished, AgentReply, LeakageChecked, ScriptFinished
from mle_star.run.reached import best_reached, partial_path, partial_phase1, partial_phase3
from tests.conftest import as_kept
from tests.prompt_samples import NAMES

from . import replies as rp
from .conftest import AGENT_FAULTS, SCRIPT_FAULTS, ScriptedExecutor, ScriptedRun, measured, scripted_run, settings

SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
Outcome = Any
"""What came out, in a form that can be compared at a glance."""


@dataclass(frozen=True)
class Play:
    """A way through a phase, and what it comes to: as it is, without one reply, without one rp.script, without any, and
    when a limit ends it at a call whose step begins so."""

    stage: dict[str, rp.Reply]
    run: Callable[[ScriptedRun], Awaitable[Outcome]]
    outcome: Outcome
    calls: dict[str, Outcome]
    scripts: dict[str, Outcome]
    nothing: Outcome
    cut: dict[str, Outcome]
    partial: Callable[[], Outcome] = lambda: None


def each(outcome: Outcome, names: str, below: str = "") -> dict[str, Outcome]:
    return {f"{below}{name}": outcome for name in names.split()}


def leaks_of_phase1(call: rp.ScriptedCall) -> Any:
    leaks = {"candidate-1": "level = 0.6", "leakage": "level = 0.8"}
    found = [line for place, line in leaks.items() if place in call.step.split("/") and f"{line}\n" in call.prompt]
    return rp.leaky(*found) if found else rp.NO_LEAKAGE


async def play_phase1(run: ScriptedRun) -> Outcome:
    try:
        result = await run_phase1(run.task, run.config)
    except (Phase1Error, AgentError, ValueError) as error:
        return len(error.errors) if isinstance(error, Phase1Error) else "no models"
    best = result.initial_solution
    assert [candidate.score for candidate in result.candidate_solutions] == result.candidate_scores
    assert [candidate.source_model for candidate in result.candidate_solutions] == ["m0", "m1"]
    assert result.initial_score == best.score and best.is_executable and f"level = {best.score}\n" in best.content
    return (*result.candidate_scores, [merge["score"] for merge in result.merge_attempts], result.initial_score)


WHOLE = (0.5, 0.55, [0.7], 0.75)
ONE: Outcome = (None, 0.55, [], 0.75)
OTHER: Outcome = (0.5, None, [], 0.75)
UNMERGED = (0.5, 0.55, [None], 0.75)
PHASE1 = Play(
    {  # one of everything: a repair, a leak, a merge that needs repair, a data revision, a leak in the final script
        "retriever": rp.models("m0", "m1"),
        "init": rp.by_step(candidate_0=rp.fenced(rp.broken_script("m0")), candidate_1=rp.fenced(rp.script(0.6))),
        "debugger": rp.by_step(
            candidate_0=rp.fenced(rp.script(0.5)), merge_1=rp.fenced(rp.script(0.7)), otherwise=rp.GARBAGE
        ),
        "leakage-detection": leaks_of_phase1,
        "leakage-correction": rp.by_step(candidate_1=rp.fenced("level = 0.55"), leakage=rp.fenced("level = 0.75")),
        "merger": rp.fenced(rp.broken_script("merge")),
        "data": rp.fenced(rp.script(0.8)),
    },
    play_phase1,
    WHOLE,
    each(WHOLE, "retriever merge-1/leakage-detection merge-1/leakage-detection-2 data-use/leakage-detection", "phase1/")
    | each(WHOLE, "leakage-detection leakage-detection-2", "phase1/candidate-0/")
    | each(ONE, "init debugger", "phase1/candidate-0/")
    | each(OTHER, "init leakage-correction", "phase1/candidate-1/")  # there the leak stays
    | each(UNMERGED, "merger debugger", "phase1/merge-1/")
    | {
        "phase1/candidate-1/leakage-detection": (0.5, 0.6, [0.7], 0.75),
        "phase1/data-use/data": (0.5, 0.55, [0.7], 0.7),
        "phase1/leakage/leakage-detection": (0.5, 0.55, [0.7], 0.8),
        "phase1/leakage/leakage-correction": (0.5, 0.55, [0.7], 0.7),  # as it stood before the revision that leaks
    },
    {
        "level = 0.5\n": ONE,
        "level = 0.55\n": OTHER,
        "level = 0.7\n": UNMERGED,
        "level = 0.8\n": (0.5, 0.55, [0.7], 0.7),
        "level = 0.75\n": (0.5, 0.55, [0.7], 0.7),
        "raise RuntimeError('m0')": WHOLE,  # it crashes anyway
        "raise RuntimeError('merge')": WHOLE,
    },
    2,  # candidates that failed
    {
        "phase1/retriever": None,
        "phase1/merge": (0.5, 0.55, 0.55),
        "phase1/data-use": (0.5, 0.55, 0.7),
        "phase1/leakage/leakage-correction": (0.5, 0.55, 0.7),  # what leaks gives way to what is clean
        "phase1/leakage": (0.5, 0.55, 0.8),
    },
    lambda: (found := partial_phase1()) and (*found.candidate_scores, found.initial_score),
)


CRASHES, REPAIRED, LEAKS = (
    rp.fenced("raise RuntimeError('first')"), rp.fenced(rp.base_solution(0.6, blocks=2).content),
    rp.fenced("level = 0.9"),
)  # fmt: skip
CHECKS: dict[str, rp.Reply] = {
    "leakage-detection": lambda call: rp.leaky("level = 0.9") if "= 0.9" in call.prompt else rp.NO_LEAKAGE,
    "leakage-correction": rp.fenced("level = 0.8"),
}


async def play_inner(run: ScriptedRun) -> Outcome:
    start = run.given(rp.base_solution(blocks=2))
    result = await run_phase2_inner_loop(start, rp.block(), f"{run.prefix}plan 0", 0.5, run.task, run.config)
    assert result.best_solution.score == result.best_score >= 0.5 and all(attempt.plan for attempt in result.attempts)
    assert result.improved == (result.best_score > 0.5) and result.improved == (result.best_solution is not start)
    assert not any(attempt.was_improvement and attempt.score is None for attempt in result.attempts)
    return [SKIPPED if attempt.plan == SKIPPED else attempt.score for attempt in result.attempts]


INNER = Play(
    {  # two attempts that call every agent: the first crashes and is repaired, the second leaks and is corrected
        "coder": rp.by_step(k_0=CRASHES, k_1=LEAKS),
        "debugger": rp.by_step(k_0=REPAIRED, otherwise="I cannot."),
        **CHECKS,
    },
    play_inner,
    [0.6, 0.8],
    each([0.6, 0.8], "leakage-detection leakage-detection-2", "k-0/")
    | each([None, 0.8], "coder debugger", "k-0/")
    | each([0.6, None], "planner coder leakage-correction", "k-1/")  # there the leak stays
    | {"k-1/leakage-detection": [0.6, 0.9]},
    {"raise RuntimeError('first')": [0.6, 0.8], "level = 0.6\n": [None, 0.8], "level = 0.8\n": [0.6, None]},
    [None, None],
    {"k-0": 0.5, "k-1": 0.6},
    lambda: (best := best_reached("", rp.base_solution(blocks=2))) and best.score,
)


async def play_outer(run: ScriptedRun) -> Outcome:
    config = run.config.model_copy(update={"inner_loop_steps": 1})
    result = await run_phase2_outer_loop(run.given(rp.base_solution(blocks=2)), 0.5, run.task, config)
    bests = [0.5, *(record["best_score_after_step"] for record in result.step_history)]
    assert result.best_solution.score == result.best_score == bests[-1] and not result.partial
    return outcome_of_path(result)


def outcome_of_path(result: Phase2Result) -> Outcome:
    """What is best after each step, with a mark where it was skipped, or failed."""
    assert len(result.ablation_summaries) == len(result.refined_blocks) == len(result.step_history)
    assert [record["outer_step"] for record in result.step_history] == list(range(len(result.step_history)))
    assert [b.is_placeholder for b in result.refined_blocks] == [r["was_skipped"] for r in result.step_history]
    assert Phase2Result.model_validate_json(result.model_dump_json()).best_score == result.best_score
    marks = [" skipped" * r["was_skipped"] + " failed" * r["failed"] for r in result.step_history]
    return [f"{r['best_score_after_step']}{mark}" for r, mark in zip(result.step_history, marks, strict=True)]


def cut_outer() -> Outcome:
    path = partial_path("", rp.base_solution(blocks=2))
    assert path.partial and path.best_score == path.best_solution.score
    return outcome_of_path(path)


WRONG, RIGHT, LATER = rp.plans(("not there", "p")), rp.plans((rp.part(0), "p0")), rp.plans((rp.part(1), "p1"))
OUTER = Play(
    {  # two steps: a study to repair, a wrong block; then as in the inner loop, an attempt each
        "ablation": rp.by_step(t_0=rp.fenced("raise RuntimeError('study')"), otherwise=rp.fenced("print('1')")),
        "debugger-ablation": rp.fenced("print('Ablation baseline: 0.5')"),
        "extractor": rp.by_step(t_1=LATER, extractor=WRONG, otherwise=RIGHT),
        "coder": rp.by_step(t_0=CRASHES, t_1=LEAKS),
        "debugger": rp.by_step(t_0=REPAIRED, otherwise="I cannot."),
        **CHECKS,
    },
    play_outer,
    ["0.6", "0.8"],
    each(["0.6", "0.8"], "ablation debugger-ablation summarize extractor extractor-2", "t-0/")  # asked again
    | each(["0.6", "0.8"], "leakage-detection leakage-detection-2", "t-0/k-0/")
    | each(["0.6", "0.8"], "ablation summarize extractor", "t-1/")
    | each(["0.5", "0.8"], "coder debugger", "t-0/k-0/")
    | each(["0.6", "0.6"], "coder leakage-correction", "t-1/k-0/")
    | {"t-1/k-0/leakage-detection": ["0.6", "0.9"]},
    {
        "raise RuntimeError('study')": ["0.6", "0.8"],
        "print('Ablation baseline: 0.5')": ["0.6", "0.8"],
        "raise RuntimeError('first')": ["0.6", "0.8"],
        "part_0 = 0\npart_1 = 0\n": ["0.5", "0.8"],
        "print('1')": ["0.6", "0.8"],
        "level = 0.8\n": ["0.6", "0.6"],
    },
    ["0.5 skipped", "0.5 skipped"],
    {
        "t-0/k-0": ["0.5 failed"],
        "t-0": ["0.5 skipped failed"],
        "t-1/k-0": ["0.6", "0.6"],
        "t-1/extractor": ["0.6", "0.6 skipped"],
        "t-1": ["0.6"],  # a step counts from its study on
    },
    cut_outer,
)


async def play_phase3(run: ScriptedRun) -> Outcome:
    result = await run_phase3([run.given(one) for one in rp.INPUTS], run.task, run.config)
    assert len(result.ensemble_plans) == len(result.ensemble_scores) == len(result.attempts)
    assert all(result.ensemble_plans)
    assert result.best_ensemble.score == result.best_ensemble_score and result.best_ensemble.content
    assert result.best_ensemble_score == max((s for s in result.ensemble_scores if s is not None), default=0.6)
    assert Phase3Result.model_validate_json(result.model_dump_json()) == result
    cut = partial_phase3("", rp.INPUTS)
    assert (cut is not None) == any(result.ensemble_scores)
    if cut is not None:
        begun = [plan for plan in result.ensemble_plans if plan != SKIPPED]
        assert (cut.ensemble_plans, cut.ensemble_scores) == (begun, result.ensemble_scores[: len(begun)])
        assert cut.best_ensemble.content == result.best_ensemble.content
        assert cut.best_ensemble.score == cut.best_ensemble_score == result.best_ensemble_score
    return [SKIPPED if attempt.plan == SKIPPED else attempt.score for attempt in result.attempts]


PHASE3 = Play(
    {  # two rounds that call every agent: the first crashes and is repaired, the second leaks and is corrected
        "ensembler": rp.by_step(r_0=rp.fenced(rp.broken_script()), r_1=rp.fenced(rp.script(0.9))),
        "debugger": rp.by_step(r_0=rp.fenced(rp.script(0.7)), otherwise="I cannot."),
        **CHECKS,
    },
    play_phase3,
    [0.7, 0.8],
    each([0.7, 0.8], "leakage-detection leakage-detection-2", "r-0/")
    | each([None, 0.8], "ens_planner ensembler debugger", "r-0/")
    | each([0.7, None], "ens_planner ensembler leakage-correction", "r-1/")
    | {"r-1/leakage-detection": [0.7, 0.9]},
    {"raise RuntimeError('broken')": [0.7, 0.8], "level = 0.7\n": [None, 0.8], "level = 0.8\n": [0.7, None]},
    [None, None],
    {"r-0": None, "r-1": [0.7]},
    lambda: (found := partial_phase3("", rp.INPUTS)) and found.ensemble_scores,
)

CUT = "rows = list(range(9))\nrows = rows[:5]\nlevel = 0.7\nprint(f'Final Validation Performance: {level}')"
BEST = rp.solution(CUT, score=0.7, phase=SolutionPhase.refined)
FIXED = "scale = 2\n" + rp.script(0.9)


async def play_finalization(run: ScriptedRun) -> Outcome:
    best = run.given(BEST)
    with scope("phase1", "candidate-0"):  # a submission was kept on the way
        await evaluate_solution(rp.solution(rp.script(0.6)), run.task, run.config)
    result = await run_finalization(best, run.task, run.config, rp.phase1_of(best), [], None, [f"{run.prefix}a post"])
    verdict = None if result.contamination is None else result.contamination.verdict
    if not result.submission_path:
        assert result.final_solution == best and result.warnings
        return None, verdict
    assert Path(result.submission_path).read_text() == "id,target\n1,0\n2,1\n"
    made = result.final_solution.phase is SolutionPhase.final
    assert not made or (result.final_solution.content.endswith(FIXED) and result.warnings == [])
    assert made or result.final_solution.content == rp.script(0.6)
    return result.final_solution.score, verdict


FINALIZATION = Play(
    {  # one of everything: subsampling, a leak in the test rp.script, a crash of it, a repair, a reference
        "test-subsampling_extract": rp.fenced("rows = rows[:5]"),
        "test-subsampling_remove": rp.fenced("rows = rows[:]"),
        "test": rp.fenced("scale = 1\nlevel = 0.8\nraise ValueError('no such column')"),
        "leakage-detection": lambda call: rp.leaky("scale = 1") if "scale = 1\n" in call.prompt else rp.NO_LEAKAGE,
        "leakage-correction": rp.fenced("scale = 3"),
        "debugger": rp.fenced(FIXED),
    },
    play_finalization,
    (0.7, "Novel"),
    each((0.7, "Novel"), "test-subsampling_extract test-subsampling_remove test leakage-detection", "finalization/")
    | each((0.7, "Novel"), "leakage-correction leakage-detection-2", "finalization/")
    | {"finalization/debugger-submission": (0.6, "Novel"), "finalization/test-contamination": (0.7, None)},
    {"scale = 3": (0.7, "Novel"), "scale = 2": (0.6, "Novel"), "level = 0.6\n": (0.7, "Novel")},
    (0.6, None),
    {"finalization/test-contamination": (0.7, None), "finalization": (0.6, "Novel")},
)

PLAYS = {
    "Phase 1": PHASE1, "inner loop": INNER, "outer loop": OUTER, "Phase 3": PHASE3, "finalization": FINALIZATION,
}  # fmt: skip
TEXTS = ("planner", "ens_planner", "summarize")
"""Whatever these agents say is a plan or a summary."""
TO_THE_LETTER: dict[str, Outcome] = {
    "phase1/retriever": "no models",
    "phase1/candidate-1/leakage-correction": (0.5, 0.6, [0.7], 0.75),
    "phase1/leakage/leakage-correction": (0.5, 0.55, [0.7], 0.8),
    "k-1/leakage-correction": [0.6, 0.9],
    "t-1/k-0/leakage-correction": ["0.6", "0.9"],
    "r-1/leakage-correction": [0.7, 0.9],
    "finalization/debugger-submission": (None, "Novel"),
    "finalization": (None, None),
}
"""A leak that stays counts there; the retriever has one try, the debugger one prompt, and what was kept is nothing."""
CALLS = [(name, step) for name, play in PLAYS.items() for step in play.calls]
FAULTY = [(*call, fault) for i, call in enumerate(CALLS) for fault in (AGENT_FAULTS if SOAK else [AGENT_FAULTS[i % 3]])]
SCRIPTS = [(name, words) for name, play in PLAYS.items() for words in play.scripts]


@contextmanager
def staged(root: Path, name: str, *, briefed: bool = True, **task: Any) -> Iterator[tuple[Play, ScriptedRun]]:
    config = settings(M=2, T=2, K=2, R=2, max_debug_attempts=1, max_concurrent_scripts=1)
    if not briefed:
        config = config.model_copy(update={"briefing": (), "task_in_prompts": True})
    with scripted_run(root, config=config, executor=ScriptedExecutor(), **task) as run:
        for agent, reply in PLAYS[name].stage.items():
            run.agents.always(agent, reply)
        yield PLAYS[name], run


@pytest.mark.req("REQ-P1-007", "REQ-P1-042", "REQ-P2O-001", "REQ-P2O-008", "REQ-P2O-012", "REQ-P2O-038", "REQ-P2I-001")
@pytest.mark.req("REQ-P2I-008", "REQ-P2I-030", "REQ-P2I-031", "REQ-P2I-044", "REQ-P3-001", "REQ-P3-010", "REQ-P3-027")
@pytest.mark.req("REQ-P3-040", "REQ-P3-045", "REQ-FN-035", "REQ-SF-022", "REQ-P1-037", "REQ-P2O-031", "REQ-P2O-033")
@pytest.mark.req("REQ-P2I-039", "REQ-P3-036", "REQ-P3-037", "REQ-FN-037", "REQ-SF-033", "REQ-SF-036")
@pytest.mark.parametrize("name", PLAYS)
def test_without_a_fault_every_listed_call_and_script_happens_in_next_to_no_time(name: str, quick_path: Path) -> None:
    with staged(quick_path, name) as (play, run):
        outcome, waited, worked = measured(play.run(run))
        assert (outcome, waited) == (play.outcome, 0) and worked < 2
        assert sorted(call.step for call in run.agents.log) == sorted(play.calls)
        for call in run.agents.log:
            profile, briefing = run.config.tool_profile, run.config.briefing
            assert call.config == agent_config(call.agent, call.variant, profile, briefing), call.step
        calls = run.events(AgentFinished)
        assert len(calls) == len(run.agents.log), "no other way to a model"
        assert all(event.template_hash == PromptRegistry().hash(event.agent, event.variant) for event in calls)
        assert [text for text in run.executor.scripts if not any(words in text for words in play.scripts)] == []
        # what the check itself wrote, studies, and what was kept
        corrected = {"Phase 1": ["= 0.55\n", "= 0.75\n"], "inner loop": ["= 0.8\n"], "Phase 3": ["= 0.8\n"]}
        corrected |= {"outer loop": ["'study'", "Ablation", "print('1')", "= 0.8\n"]}
        corrected |= {"finalization": ["= 0.6\n", "scale = 3"]}
        checked, unchecked = set(), []
        for event in run.journal.events:
            if isinstance(event, LeakageChecked):
                checked.add(event.digest)
            elif isinstance(event, ScriptFinished) and digest_of(event.script) not in checked:
                unchecked.append(event.script)
        assert all(words in text for words, text in zip(corrected[name], unchecked, strict=True))


def lines(name: str) -> str:
    """Many comments, each unlike any other: what holds all of them in a row was not cut."""
    return "".join(f"# [{name}] line {n} of a text\n" for n in range(100 if name == "error" else 667))


def in_many_words(call: rp.ScriptedCall, reply: AgentReply) -> AgentReply:
    """The same reply with a long rp.script, plan, summary or example; blocks are quoted as they stand."""
    if call.name == "extractor":
        reply.structured["plans"][0]["plan"] += f"\n{lines(call.step)}"
    elif call.name == "retriever":
        for model in reply.structured["models"]:
            model["example_code"] = lines(f"example {model['model_name']}")
    elif call.name in TEXTS:
        return reply.model_copy(update={"text": f"{reply.text}\n{lines(call.step)}"})
    elif call.name != "test-subsampling_extract":
        return reply.model_copy(update={"text": reply.text.replace("```python\n", f"```python\n{lines(call.step)}", 1)})
    return reply


def talkative(request: ScriptRequest, raw: ExecutionRawResult) -> ExecutionRawResult:
    """Scripts that print many lines, also in their errors."""
    error = raw.stderr and f"{raw.stderr}{lines('error')}"
    return raw.model_copy(update={"stdout": lines("output") + raw.stdout, "stderr": error})


@pytest.mark.req("REQ-SF-003", "REQ-SF-013", "REQ-P1-017", "REQ-P2O-011", "REQ-P2I-010", "REQ-P2I-040", "REQ-P3-009")
@pytest.mark.req("REQ-FN-028", "REQ-P2O-031", "REQ-P2I-039")
def test_no_prompt_is_cut_and_the_largest_scripts_take_next_to_no_time(quick_path: Path) -> None:
    """Scripts of 20,000 characters, long texts, errors and outputs reach every agent whole that is shown any of it."""
    shown: dict[str, set[str]] = defaultdict(set)
    for name in PLAYS:
        with staged(quick_path / name, name, briefed=False, description=lines("task")) as (play, run):
            run.prefix, run.agents.change = lines("given"), in_many_words
            run.executor.inner = ScriptedExecutor(after=talkative)
            if name == "Phase 3":
                run.agents.always("leakage-correction", "I cannot.")
            if name == "finalization":
                run.agents.always("test-subsampling_extract", rp.fenced(run.prefix + CUT.partition("level")[0]))
            _, waited, worked = measured(play.run(run))
            assert waited == 0 and worked / len(run.agents.log) < 0.5
            for call in run.agents.log:
                found = set(re.findall(r"\[(.+?)\] line \d", call.prompt))
                assert all(lines(text).strip() in call.prompt for text in found), f"{call.step}: {found}"
                shown[call.name.replace("-", "_")] |= {re.sub(r".*/|-\d$", "", text) for text in found}
    assert set(shown) == set(NAMES)  # whose words each agent is shown; `given` is what a phase begins with
    as_kept("method/shown.txt", "\n".join(f"{name}: {' '.join(sorted(shown[name]))}" for name in sorted(shown)))


@rp.BOTH
@pytest.mark.parametrize("name", PLAYS)
async def test_a_second_time_everything_comes_from_the_journal(name: str, quick_path: Path) -> None:
    with staged(quick_path, name) as (play, first):
        before, count = await play.run(first), len(list(first.journal.events))
    with staged(quick_path, name) as (play, again):
        assert await play.run(again) == before and again.agents.log == [] and again.executor.scripts == []
        assert len(list(again.journal.events)) == count, "every event in the same words"


@rp.BOTH
@pytest.mark.req("REQ-P1-021", "REQ-P1-028", "REQ-P1-030", "REQ-P1-031", "REQ-P2O-021", "REQ-P2O-025", "REQ-P2O-034")
@pytest.mark.req("REQ-P2O-036", "REQ-P2I-041", "REQ-P3-029", "REQ-P3-030", "REQ-P3-031", "REQ-P3-038", "REQ-FN-006")
@pytest.mark.req("REQ-FN-040", "REQ-FN-041", "REQ-SF-019", "REQ-SF-020", "REQ-SF-040")
@pytest.mark.parametrize(("name", "step", "fault"), FAULTY)
async def test_a_lost_reply_costs_no_more_than_it_must(name: str, step: str, fault: Any, quick_path: Path) -> None:
    with staged(quick_path, name) as (play, run):
        place, expected = step, play.calls[step]
        if run.config.letter:
            place, expected = re.sub(r"debugger-\w+", "debugger", step), TO_THE_LETTER.get(step, expected)
        run.agents.faults[place] = fault
        outcome = await play.run(run)
        (lost,) = [call for call in run.agents.log if call.step == place]
    assert outcome == (play.outcome if fault == "garbage" and lost.name in TEXTS else expected)


@pytest.mark.req("REQ-P1-028", "REQ-P2O-021", "REQ-P2O-025", "REQ-P2I-027", "REQ-P2I-041", "REQ-P3-029", "REQ-P3-038",
                 "REQ-FN-025")  # fmt: skip
@pytest.mark.parametrize("fault", SCRIPT_FAULTS)
@pytest.mark.parametrize(("name", "words"), SCRIPTS)
async def test_a_failing_script_costs_no_more_than_it_must(name: str, words: str, fault: Any, quick_path: Path) -> None:
    with staged(quick_path, name) as (play, run):
        run.executor.faults, run.executor.fault = {words}, fault
        assert await play.run(run) == play.scripts[words] and any(words in text for text in run.executor.scripts)


@rp.BOTH
@pytest.mark.req("REQ-P2O-025", "REQ-P2O-029", "REQ-P2I-041", "REQ-P3-026", "REQ-P3-038", "REQ-FN-025")
@pytest.mark.parametrize("fault", AGENT_FAULTS)
@pytest.mark.parametrize("name", [name for name in PLAYS if name != "Phase 1"])
async def test_when_everything_fails_there_is_still_a_result(name: str, fault: Any, quick_path: Path) -> None:
    with staged(quick_path, name) as (play, run):
        run.agents.faults.update(dict.fromkeys(range(99), fault))
        assert await play.run(run) == (TO_THE_LETTER.get(name, play.nothing) if run.config.letter else play.nothing)


LIMIT = BudgetExceeded(limit="time", used=2, allowed=1)
ENDS: list[tuple[str, str, BaseException]] = [(*call, LIMIT) for call in CALLS]
ENDS += [(*call, asyncio.CancelledError()) for call in CALLS if "/candidate-" not in call[1]]


@pytest.mark.req("REQ-P2I-041", "REQ-OR-043")
@pytest.mark.parametrize(("name", "step", "end"), ENDS, ids=repr)
async def test_the_end_is_at_once_and_keeps_results(name: str, step: str, end: BaseException, quick_path: Path) -> None:
    with staged(quick_path, name) as (play, run):
        run.agents.faults[step] = end
        if end is LIMIT and step.startswith("finalization"):
            outcome = await play.run(run)  # it always has a result
        else:
            with pytest.raises(type(end)):
                await play.run(run)
            outcome = play.partial()
            assert run.agents.log[-1].step == step or name == "Phase 1", "nobody else is asked"
        reached = [reached for begins, reached in play.cut.items() if step.startswith(begins)]
        chance = "/candidate-" in step  # which candidate is ready by then
        assert outcome in reached[:1] or chance or (outcome is None and step.startswith("finalization"))


@rp.BOTH
@pytest.mark.req("REQ-OR-034", "REQ-P2I-029", "REQ-P2O-030", "REQ-P3-033")
@pytest.mark.parametrize(
    ("name", "step", "done", "rest"),
    [
        ("Phase 1", "phase1/candidate-1/leakage-correction", (0.5, 0.55, [], 0.75), ()),  # what makes it honest is done
        ("inner loop", "k-0/coder", [0.6], [SKIPPED]), ("outer loop", "t-0/k-0/coder", ["0.6"], ["0.6 skipped"]),
        ("outer loop", "t-0/extractor-2", ["0.5"], ["0.5 skipped"]), ("Phase 3", "r-0/ensembler", [0.7], [SKIPPED]),
        ("inner loop", "", [], [None, SKIPPED]), ("outer loop", "", [], ["0.5 skipped"] * 2),
        ("Phase 3", "", [], [SKIPPED] * 2),
    ],
)  # fmt: skip
async def test_finishing_begins_nothing(name: str, step: str, done: Outcome, rest: Outcome, quick_path: Path) -> None:
    """To the letter the rest is in the history as skipped."""
    with staged(quick_path, name) as (play, run):
        run.agents.faults[step] = lambda: setattr(run.context.budget, "finish_requested", True)
        run.context.budget.finish_requested = not step
        assert await play.run(run) == (done + rest if run.config.letter else done) and (step or run.agents.log == [])
