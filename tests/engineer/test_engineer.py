"""The embedded engineer as each of the fourteen agents, asked in the words of the real prompts."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mle_star import models as m
from mle_star.engineer import planning
from mle_star.engineer.brain import ALL_USED, NO_SUBSAMPLING, EngineerBrain
from mle_star.engineer.design import Design, assemble, fitting_families, recover, sections_of
from mle_star.engineer.moves import actions, named_in
from mle_star.engineer.server import BrainRequest
from mle_star.method.codeblocks import extract_code_block
from mle_star.method.scores import parse_ablation_lines
from mle_star.prompts import facts_section, render
from tests.engineer.conftest import Run, profile_of, quick
from tests.engineer.small_tasks import TASKS, SmallTask


class Desk:
    """The engineer at one task."""

    def __init__(self, task: SmallTask) -> None:
        self.task, self.brain, self.profile = task, EngineerBrain(), profile_of(task)
        self.given = m.TaskDescription.model_validate(
            {
                "competition_id": "small", "task_type": "tabular", "data_modality": "tabular", "description": "small",
                "evaluation_metric": self.profile.recipe.metric.name, "data_dir": str(task.folder),
                "metric_direction": "maximize" if self.profile.recipe.metric.higher_is_better else "minimize",
            }
        )  # fmt: skip

    async def ask(self, agent: m.AgentType, variant: str | None = None, **values: Any) -> Any:
        """The reply to an agent's prompt: its text, or its value when the agent answers in JSON."""
        config = m.PipelineConfig(subsample_limit=values.get("subsample_limit", 30_000))
        prompt = f"{render(agent, variant, **values)}\n\n{facts_section(agent, variant, self.given, config, values)}"
        reply = await self.brain.reply(BrainRequest(agent.value, variant, self.task.system, prompt))
        assert (reply.structured is None) == (m.agent_config(agent, variant).output_schema is None)
        return reply.text if reply.structured is None else reply.structured

    async def code(self, agent: m.AgentType, variant: str | None = None, **values: Any) -> str:
        return extract_code_block(await self.ask(agent, variant, **values))

    async def blocks(self, script: str, summary: str = "x", refined: Sequence[str] = ()) -> list[tuple[str, str]]:
        """The blocks that the extractor chooses, with their plans."""
        values = {"solution_script": script, "ablation_summary": summary}
        reply = await self.ask(m.AgentType.extractor, None, **values, previous_code_blocks=list(refined))
        return [(one.code_block, one.plan) for one in m.ExtractorOutput.model_validate(reply).plans]

    def first(self, number: int = 0) -> Design:
        return planning.first_design(self.profile, fitting_families(self.profile)[number], 30_000)

    def merged(self) -> Design:
        return planning.united([self.first(0), self.first(1)], "mean")

    def model_block(self) -> str:
        sections = sections_of(assemble(self.merged()))
        return next(text for title, text in sections.items() if title.startswith("model: "))


@pytest.fixture(params=["auc", "mean_absolute", "text"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    return Desk(TASKS[request.param](tmp_path / "input"))


@pytest.fixture
def table_desk(tmp_path: Path) -> Desk:
    return Desk(TASKS["auc"](tmp_path / "input"))


async def test_first_scripts_have_the_models_that_are_named_and_merge_on_the_folds_of_the_base(desk: Desk) -> None:
    reply = m.RetrieverOutput.model_validate(await desk.ask(m.AgentType.retriever, task_description="x", M=3))
    assert len({model.model_name for model in reply.models}) == 3
    for model in reply.models:
        ast.parse(model.example_code)
    for family in fitting_families(desk.profile)[:4]:
        values = {"model_name": family.name, "example_code": "x = 1", "task_description": "x"}
        design = recover(await desk.code(m.AgentType.init, **values, subsample_limit=100))
        assert design is not None and list(design.models) == [family.name]
        assert design.rows == 100
    base, reference = desk.first(0), desk.first(1)
    code = await desk.code(m.AgentType.merger, base_code=assemble(base), reference_code=assemble(reference))
    merged = recover(code)
    assert merged is not None
    assert list(merged.models) == [*base.models, *reference.models] and merged.folds == base.folds


async def test_a_study_prints_its_variations_and_loads_no_test_rows(table_desk: Desk, run_script: Run) -> None:
    solution = quick(table_desk.profile, "linear", "extra_trees")
    code = await table_desk.code(m.AgentType.ablation, solution_script=assemble(solution), previous_ablations=[])
    study = recover(code)
    assert study is not None and len(study.variants) in (2, 3)
    assert "test.csv" not in code and "sample_submission.csv" not in code
    printed = run_script(code)
    assert set(parse_ablation_lines(printed)) == {"baseline", *study.variants}
    before = " ".join(f"`{name}`" for name in study.variants)
    values: dict[str, Any] = {"solution_script": assemble(solution), "previous_ablations": [before]}
    again = recover(await table_desk.code(m.AgentType.ablation, **values))
    assert again is not None and not set(again.variants) & set(study.variants)


@pytest.mark.req("REQ-P2O-011")
async def test_a_summary_names_the_most_and_the_least_important_part(table_desk: Desk) -> None:
    async def summary(printed: str) -> str:
        return str(await table_desk.ask(m.AgentType.summarize, ablation_code="x = 1", raw_result=printed))

    text = await summary("Baseline: 0.8196, No StandardScaler: 0.8102, No OneHotEncoder: 0.7886, No Imputation: 0.8196")
    most, least = text.split("has the most impact")[0], text.split("has the least impact")[0]
    assert most.rstrip().endswith("`No OneHotEncoder`") and least.rstrip().endswith("`No Imputation`")
    baseline, losses = planning.findings_in(text)
    assert baseline == 0.8196 and losses["No OneHotEncoder"] == pytest.approx(0.031)
    for printed in ("Baseline: 0.8, scaler: 0.8", "Baseline: 0.8, scaler: 0.81", "Baseline: 0.8, a: 0.81, b: 0.9"):
        text = await summary(printed)
        assert "impact" not in text and "leaving any of them out costs nothing" in text
    text = await summary("Baseline: 0.8, scaler: 0.799, encoder: 0.85")
    assert "`scaler` has the most impact" in text and "`encoder` has the least impact" not in text
    assert text.count("`scaler` has") == 1
    text = await summary("Baseline: 0.123456789012, a: 0.1")
    assert "scores 0.12346 " in text and planning.findings_in(text)[0] == 0.123456789012
    for printed in ("", "Baseline: 0.8", "a: 0.1, b: 0.2"):
        text = await summary(printed)
        assert "no baseline with a part to compare" in text and text.count(" scores ") == printed.count(":")


async def test_the_chosen_block_stands_in_the_script_and_other_askers_get_another(desk: Desk) -> None:
    """Three paths ask at once, each with a study of its own: no two may be the same."""
    solution = assemble(desk.merged())
    answers = await asyncio.gather(*(desk.blocks(solution, f"study {number}") for number in range(3)))
    for answer in answers:
        assert all(solution.count(block) == 1 for block, _ in answer)
        assert named_in(answer[0][1], answer[0][0], desk.profile)
    assert len({answer[0][0] for answer in answers}) == 3
    refined: list[str] = []
    for _ in range(3):
        (block, _), *_ = await Desk(desk.task).blocks(solution, "nothing", refined)
        assert block not in refined, "not at once again"
        refined.append(block)


@pytest.mark.req("REQ-P2I-042")
async def test_plans_are_never_repeated_and_keep_what_helped(desk: Desk) -> None:
    block = desk.model_block()
    first = actions(block, desk.profile)[0]
    better, worse = (0.9, 0.1) if desk.profile.recipe.metric.higher_is_better else (0.1, 0.9)
    plans, scores = [first.plan], [better]
    for step in range(3):
        plan = await desk.ask(m.AgentType.planner, code_block=block, plans=plans, scores=scores)
        named = [action.title for action in named_in(plan, block, desk.profile)]
        assert named and named[-1] not in [a.title for old in plans for a in named_in(old, block, desk.profile)]
        assert step or named[0] == first.title
        plans.append(plan)
        scores.append(worse)


async def test_no_plan_adds_a_model_that_the_script_trains_already(table_desk: Desk) -> None:
    """It would only run the same once more, or put the usual settings in the place of tuned ones."""
    desk = table_desk
    design = planning.united([desk.first(number) for number in range(3)], "careful")
    answers = [await desk.blocks(assemble(design)) for _ in range(4)]
    blocks = {block for answer in answers for block, _ in answer if "model: " in block}
    assert blocks
    for block in blocks:
        tried, scores = ["nothing that it knows"], list[float | None]([None])
        for _ in range(8):
            plan = await desk.ask(m.AgentType.planner, code_block=block, plans=tried, scores=scores)
            assert not any(f"Train {name} beside" in plan for name in design.models), plan
            tried, scores = [*tried, plan], [*scores, 0.7]


async def test_what_an_earlier_step_tried_is_not_planned_again_and_the_coder_does_what_is(table_desk: Desk) -> None:
    desk, block = table_desk, table_desk.model_block()
    known: dict[str, Any] = {"code_block": block, "plans": ["nothing that it knows"], "scores": [None]}
    plan = await desk.ask(m.AgentType.planner, **known)
    (first,) = named_in(plan, block, desk.profile)
    other = await desk.ask(m.AgentType.planner, **known, tried=[plan])
    assert [a.title for a in named_in(other, block, desk.profile)] != [first.title]
    everything = [f"{action.title}." for action in actions(block, desk.profile)]
    assert await desk.ask(m.AgentType.planner, **known, tried=everything) == plan
    design = desk.merged()
    block = sections_of(assemble(design))["features"]
    first = actions(block, desk.profile)[0]
    code = await desk.code(m.AgentType.coder, code_block=block, plan=first.plan)
    assert recover(assemble(design).replace(block, code)) == design.changed(features=first.change(design.features))


async def test_ensemble_plans_differ_and_each_becomes_a_script_of_all_models(desk: Desk) -> None:
    solutions, plans, blends = [assemble(desk.merged()), assemble(desk.first(2))], list[str](), set[str]()
    for _ in range(3):
        plan = await desk.ask(m.AgentType.ens_planner, L=2, solutions=solutions, plans=plans, scores=[0.5] * len(plans))
        assert plan not in plans
        plans.append(plan)
        pooled = recover(await desk.code(m.AgentType.ensembler, L=2, solutions=solutions, plan=plan))
        assert pooled is not None and len(pooled.models) == 3 and pooled.rows is None
        blends.add(pooled.blend)
    assert len(blends) == 3


def test_models_of_an_ensemble_see_the_features_of_their_own_solution(table_desk: Desk, run_script: Run) -> None:
    one, two = quick(table_desk.profile, "linear"), quick(table_desk.profile, "linear", "extra_trees")
    two = two.changed(features={"counts": {"columns": ["kind"]}})
    pooled = planning.united([one, two], "weights")
    assert pooled.models["Regularised linear model"]["only"] == [] and "only" not in pooled.models["ExtraTrees"]
    assert list(pooled.models) == ["Regularised linear model", "Regularised linear model 2", "ExtraTrees"]
    assert "Final Validation Performance" in run_script(assemble(pooled))


async def test_the_final_script_keeps_the_models_and_its_cap_on_rows_is_taken_away(table_desk: Desk) -> None:
    solution = table_desk.merged().changed(rows=100)
    capped = assemble(solution)
    final = recover(await table_desk.code(m.AgentType.test, task_description="x", final_solution=capped))
    assert final is not None and final.models == solution.models and final.rows is None
    found = await table_desk.code(m.AgentType.test, "subsampling_extract", final_solution=capped)
    assert found == "ROWS = 100" and capped.count(found) == 1
    left = await table_desk.code(m.AgentType.test, "subsampling_remove", code_block_with_subsampling=found)
    free = capped.replace(found, left)
    assert recover(free) == solution.changed(rows=None)
    assert await table_desk.ask(m.AgentType.test, "subsampling_extract", final_solution=free) == NO_SUBSAMPLING


async def test_a_script_of_ours_is_clean_and_one_copied_or_fitted_before_the_split_is_not(table_desk: Desk) -> None:
    solution = assemble(table_desk.merged())
    for discussion, verdict in ((solution, "Same"), ("I would try boosting with folds.", "Novel")):
        values = {"reference_discussion": discussion, "final_solution": solution}
        reply = await table_desk.ask(m.AgentType.test, "contamination", **values)
        assert m.DataContaminationResult.model_validate(reply).verdict == verdict
    leaky = "scaler = StandardScaler()\nX = scaler.fit_transform(X)\nX_a, X_b = train_test_split(X)\nprint(X_a)\n"
    for code, status in ((solution, "No Data Leakage"), (leaky, "Yes Data Leakage")):
        reply = m.LeakageDetectionOutput.model_validate(
            await table_desk.ask(m.AgentType.leakage, "detection", code=code)
        )
        assert reply.answers[0].leakage_status == status and reply.answers[0].code_block in code
        assert await table_desk.ask(m.AgentType.data, task_description="x", initial_solution=code) == ALL_USED


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("TimeoutError: the script was stopped after 60 s", ["LightGBM", "CatBoost"]),
        ("MemoryError: Unable to allocate 9 GiB", ["LightGBM", "CatBoost"]),
        ("ModuleNotFoundError: No module named 'catboost'", ["LightGBM"]),
        ('File "solution.py", line 9, in fit_lightgbm\nValueError: odd', ["CatBoost"]),
        ("ValueError: quite unforeseen", ["Regularised linear model"]),
    ],
)
async def test_a_repair_takes_away_what_failed(error: str, kept: list[str], table_desk: Desk) -> None:
    solution = quick(table_desk.profile, "lightgbm", "catboost")
    repaired = recover(await table_desk.code(m.AgentType.debugger, code=assemble(solution), bug=error))
    assert repaired is not None and list(repaired.models) == kept and repaired != solution


async def test_scripts_of_others_are_left_alone_and_it_says_what_it_is_for(table_desk: Desk, tmp_path: Path) -> None:
    code = 'import os\nprint("Final Validation Performance: 0.5")\n'
    assert await table_desk.code(m.AgentType.debugger, code=code, bug="KeyError: 'x'") == code.strip()
    assert (await table_desk.blocks(code))[0][0] in code
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/picture.png").write_bytes(b"not a table")
    system = table_desk.task.system.replace(str(tmp_path / "input"), str(tmp_path / "pictures"))
    prompt = render(m.AgentType.retriever, task_description="x", M=2)
    reply = await EngineerBrain().reply(BrainRequest("retriever", None, system, prompt))
    assert reply.text is not None and "works on tables and texts" in reply.text
