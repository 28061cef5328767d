"""What agents are told beyond the specification: each fact where it is known, nothing where it is switched off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mle_star.method.codeblocks import built_in, family_of
from mle_star.models import (
    AgentType,
    EvaluationResult,
    Isolation,
    Measure,
    PipelineConfig,
    RetrievedModel,
    SolutionPhase,
    SolutionScript,
)
from mle_star.phase1 import generate_candidate, retrieve_models
from mle_star.prompts import Prompt
from mle_star.run.context import RunContext, path_context, scope
from mle_star.run.events import AgentFinished, DebugAttempted, RefinementTried, ScriptFinished
from mle_star.run.progress import Phase1Progress, Trial
from mle_star.run.prompt_context import MARK, around, prompt_context, whole_script
from mle_star.run.request import ask_agent
from tests.ledgers import script_finished
from tests.method.conftest import ScriptedExecutor, ScriptedRun, scripted_run, settings

SCRIPT = "import x\n\ndef f():\n    model = Ridge()\n    return model\n\nprint(f())\n"
BLOCK = "    model = Ridge()"
VALUES: dict[str, dict[str, Any]] = {
    "retriever": {},
    "init": {
        "other_models": ["`Ridge` (linear): Ridge, StandardScaler", "`LightGBM` (boosting): LGBMRegressor; scores 0.7"]
    },
    "merger": {},
    "ablation": {"solution_script": SCRIPT},
    "summarize": {"raw_result": "Ablation baseline: 0.5\nAnalysis: class 1 0.9"},
    "extractor": {"solution_script": SCRIPT},
    "coder": {"code_block": BLOCK, "around": SCRIPT, "best": ("    model = Lasso()", 0.7)},
    "planner": {"code_block": BLOCK, "around": SCRIPT, "best": ("    model = Lasso()", 0.7)},
    "ens_planner": {"input_scores": [0.7, None], "best": ("blend = 1", 0.75)},
    "ensembler": {"input_scores": [0.7, None], "best": ("blend = 1", 0.75)},
    "debugger": {"bug": "Traceback (most recent call last):\nTimeoutError: stopped"},
    "leakage": {},
    "data": {},
    "test": {"final_solution": SCRIPT},
}


def tell(run: RunContext, name: str) -> str:
    """All that an agent is told, in order."""
    agent, values = AgentType(name), VALUES[name]
    return "\n\n".join(
        text for text in (whole_script(run, agent, None, values), prompt_context(run, agent, None, values)) if text
    )


def ran(step: str, script: str, score: float | None, seconds: float) -> ScriptFinished:
    measure = None if score is None else Measure(score=score, low=0.6, high=0.8, measured="harness")
    return script_finished(
        step=step, digest="d", script=script, stdout="fold 1: 0.69\n", stderr="", exit_code=0, seconds=seconds,
        is_error=False, score=score, isolation=Isolation(), measure=measure,
    )  # fmt: skip


def enrich(run: ScriptedRun) -> None:
    """A run that knows much: it is in its third step, two of which gained nothing."""
    shared, record = run.context.shared, run.journal.record
    record(ran("phase2/path-0/script", "the_other = True", 0.8, 1.0))
    shared.progress.analyses["path-1"] = "class 1: 0.9 of the error"
    shared.progress.research = "Winners of a similar task took ratios of areas (a post of 2019)."
    record(ran("phase1/candidate-0/script", SCRIPT, 0.7, 12.0))
    for t, plan in ((0, "scale the areas"), (1, "bin the areas")):
        step = f"phase2/path-1/t-{t}/k-0"
        record(RefinementTried(
            step=step, path=1, t=t, k=0, plan=plan, before="a", after="b", score=0.6, best_score=0.7, accepted=False
        ))  # fmt: skip
    record(DebugAttempted(step="phase2/path-1/t-2/debugger", error="KeyError: 'area'", accepted=True))


@pytest.fixture
def rich(quick_path: Path) -> Iterator[ScriptedRun]:
    seconds = iter(range(10**6))
    with scripted_run(
        quick_path,
        executor=ScriptedExecutor(),
        config=settings(L=2, diversity=PipelineConfig().diversity),
        clock=lambda: float(next(seconds) * 0),
    ) as run:
        enrich(run)
        with scope("phase2"), path_context(1, run.work_dir), scope("t-2"):
            yield run


FACTS: dict[str, tuple[str, ...]] = {
    "script": ("coder", "planner"),
    "best": ("coder", "planner", "ens_planner", "ensembler", "extractor", "test"),
    "errors": ("ablation", "summarize", "extractor", "planner"),
    "memory": ("planner", "extractor", "ens_planner", "debugger"),
    "research": ("retriever", "planner", "ens_planner"),
    "limits": ("init", "merger", "ablation", "coder", "ensembler", "debugger", "data", "test", "planner", "extractor"),
    "refit": ("init", "merger", "ensembler", "data"),
    "model": ("test",),
}


@pytest.mark.parametrize("part", FACTS)
def test_each_part_reaches_those_who_need_it_and_can_be_switched_off(part: str, rich: ScriptedRun) -> None:
    import dataclasses

    from mle_star.run.context import current_run, enter_run

    def with_(briefing: tuple[str, ...]) -> dict[str, str]:
        config = PipelineConfig(**{**rich.config.model_dump(), "briefing": briefing, "diversity": ()})
        with enter_run(dataclasses.replace(current_run(), config=config)) as run:
            return {name: tell(run, name) for name in VALUES}

    only = with_((part,))
    assert {name for name, text in only.items() if text} >= set(FACTS[part])
    assert not any(with_(()).values())


async def test_what_the_retriever_found_beyond_the_models_reaches_those_who_plan(quick_path: Path) -> None:
    from mle_star.run.context import current_run

    with scripted_run(quick_path, executor=ScriptedExecutor()) as run:
        found = {"models": [{"model_name": "Ridge", "example_code": "x = 1"}], "notes": "Winners took ratios (a post)."}
        run.agents.reply("retriever", found)
        await retrieve_models(run.task, settings(M=1))
        assert "a further field `notes`" in run.agents.calls()[0].prompt
        for name in ("planner", "ens_planner"):
            _, _, notes = tell(current_run(), name).partition("# Research notes\n\n")
            assert notes.partition("\n\n")[2].startswith("```text\nWinners took ratios (a post).\n```")
        assert "Winners took ratios" not in tell(current_run(), "coder")


def test_the_script_around_a_block_holds_a_mark_in_its_place() -> None:
    assert around(SCRIPT, BLOCK) == SCRIPT.replace(BLOCK, f"    {MARK}")
    assert around(SCRIPT, "import x\n") == SCRIPT.replace("import x\n", f"{MARK}\n")
    assert around(SCRIPT, "no such block") == SCRIPT
    assert around(SCRIPT, " ") == SCRIPT


async def test_what_is_told_does_not_decide_whether_a_reply_is_taken_over(quick_path: Path) -> None:
    values: dict[str, Any] = {"code_block": BLOCK, "plan": "a plan"}
    with scripted_run(quick_path, executor=ScriptedExecutor()) as first:
        await ask_agent(AgentType.coder, around=SCRIPT, **values)
        (sent,) = first.events(AgentFinished)
        assert MARK in sent.prompt and "# Limits" in sent.prompt
        assert sent.prompt.index("# Whole script") < sent.prompt.index("# Your task")
    with scripted_run(quick_path, executor=ScriptedExecutor()) as second:
        second.journal.record(ran("phase1/script", SCRIPT, 0.5, 99.0))
        await ask_agent(AgentType.coder, around="another = 1", **values)
        assert second.agents.calls() == []


async def test_what_a_step_repeats_comes_first_and_the_description_stands_in_the_system_prompt(
    quick_path: Path,
) -> None:
    with scripted_run(quick_path, executor=ScriptedExecutor()) as run:
        heads = []
        for plan in ("a plan", "another plan"):
            await ask_agent(AgentType.coder, code_block=BLOCK, around=SCRIPT, plan=plan)
            prompt = run.agents.calls()[-1].prompt
            assert isinstance(prompt, Prompt)
            heads.append(prompt[: prompt.steady])
            assert prompt[prompt.steady :].startswith(f"# Plan\n\n```text\n{plan}\n")
        assert heads[0] == heads[1] and BLOCK in heads[0] and MARK in heads[0]
    for repeat, expected in ((False, 0), (True, 1)):
        config = settings(task_in_prompts=repeat)
        with scripted_run(quick_path / str(repeat), executor=ScriptedExecutor(), config=config) as run:
            await ask_agent(AgentType.init, task_description=run.task.description, model_name="Ridge", example_code="x")
            (sent,) = run.events(AgentFinished)
            assert sent.prompt.count(run.task.description) == expected


@pytest.mark.parametrize(
    ("name", "code", "family", "built"),
    [
        ("LightGBM", "", "boosting", []),
        ("A strong baseline", "m = make()\nx = RandomForestClassifier(9)  # SVC()\nSimpleImputer()", "trees",
         ["RandomForestClassifier", "SimpleImputer"]),
        ("ResNet", "SVC(1); SVC(2); KNeighborsRegressor()", "networks", ["SVC", "KNeighborsRegressor"]),
        ("something", "x = 1", "", []),
    ],
)  # fmt: skip
def test_a_candidate_is_known_by_its_family_and_by_what_it_makes_use_of(
    name: str, code: str, family: str, built: list[str]
) -> None:
    assert (family_of(name, built_in(code)), built_in(code)) == (family, built)


async def test_a_candidate_sees_what_is_known_of_the_others_when_it_is_written(quick_path: Path) -> None:
    models = [
        RetrievedModel(model_name=name, example_code=code)
        for name, code in (("Ridge", "Ridge()"), ("Forest", "ExtraTreesClassifier()"), ("kNN", "x"), ("odd", "y"))
    ]
    config = settings(diversity=("families",))
    with scripted_run(quick_path, executor=ScriptedExecutor(), config=config) as run:
        progress = run.context.shared.progress.phase1 = Phase1Progress(models, run.task)
        progress.written[0] = ["RidgeClassifier"]
        done = SolutionScript(content="x", phase=SolutionPhase.init, score=0.81)
        result = EvaluationResult(stdout="", stderr="", exit_code=0, duration_seconds=1, is_error=False)
        progress.trials[0], progress.trials[3] = Trial(done, result), Trial(done, result, error="E" * 999)
        await generate_candidate(run.task, models[2], config)
        (call,) = run.agents.calls()
    assert "- `Ridge` (linear): RidgeClassifier; scores 0.81\n- `Forest` (trees): ExtraTreesClassifier\n" in call.prompt
    assert f"- `odd`; {'E' * 158}\n" in call.prompt and "`kNN`" not in call.prompt
