"""The embedded engineer as each of the fourteen agents, asked in the words of the real prompts."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest

from mle_star.engineer.brain import ALL_USED, NO_SUBSAMPLING, EngineerBrain
from mle_star.engineer.rules import ablation, ensemble, leakage, merging, models, moves, profile, script, sections
from mle_star.engineer.rules.planning import trained_models
from mle_star.engineer.rules.reading import read_setting
from mle_star.engineer.wire import BrainRequest
from mle_star.method.codeblocks import extract_code_block
from mle_star.models import (
    AgentType,
    DataContaminationResult,
    ExtractorOutput,
    LeakageDetectionOutput,
    RetrieverOutput,
    agent_config,
)
from mle_star.prompts import render
from tests.engineer.small_tasks import TASKS, SmallTask

ROWS = 30_000


class Desk:
    """The engineer at one task."""

    def __init__(self, task: SmallTask) -> None:
        self.task, self.brain = task, EngineerBrain()
        self.profile = profile.look(read_setting(task.system))

    async def ask(self, agent: AgentType, variant: str | None = None, **values: Any) -> Any:
        """The reply to an agent's prompt: its text, or its value when the agent answers in JSON."""
        prompt = render(agent, variant, **values)
        reply = await self.brain.reply(BrainRequest(agent.value, variant, self.task.system, prompt))
        assert (reply.structured is None) == (agent_config(agent, variant).output_schema is None)
        return reply.text if reply.structured is None else reply.structured

    def first(self, number: int = 0) -> sections.Script:
        """A first solution, around one of the models of the catalogue."""
        return script.first_script(self.profile, models.catalogue(self.profile)[number], ROWS)

    def merged(self) -> sections.Script:
        """A solution of two models."""
        return merging.merge(self.first(0), self.first(1))


@pytest.fixture(params=["auc", "mean_absolute", "text"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    return Desk(TASKS[request.param](tmp_path / "input"))


@pytest.fixture
def table_desk(tmp_path: Path) -> Desk:
    return Desk(TASKS["auc"](tmp_path / "input"))


# --- Phase 1 ---------------------------------------------------------------------------------------------


async def test_the_retriever_names_as_many_models_as_are_wanted_with_code_that_parses(desk: Desk) -> None:
    reply = RetrieverOutput.model_validate(await desk.ask(AgentType.retriever, task_description="x", M=3))
    assert len({model.model_name for model in reply.models}) == 3
    for model in reply.models:
        ast.parse(model.example_code)


async def test_a_first_script_is_built_around_the_model_that_is_named(desk: Desk) -> None:
    for model in models.catalogue(desk.profile)[:4]:
        values = {"model_name": model.name, "example_code": "x = 1", "task_description": "x"}
        code = extract_code_block(await desk.ask(AgentType.init, **values))
        parsed = sections.parse(code)
        assert parsed is not None
        assert trained_models(parsed) == [model.name]
        assert 'os.environ.get("MLE_STAR_SEED", "42")' in code
        assert "Final Validation Performance" in code and "./final/submission.csv" in code


async def test_rows_are_capped_only_where_there_are_more_than_allowed(table_desk: Desk) -> None:
    values = {"model_name": "LightGBM", "example_code": "x = 1", "task_description": "x"}
    few = await table_desk.ask(AgentType.init, **values, subsample_limit=100)
    many = await table_desk.ask(AgentType.init, **values, subsample_limit=30_000)
    assert "train.sample(n=100, random_state=SEED)" in few
    assert ".sample(" not in many


async def test_a_merge_trains_the_models_of_both_on_the_folds_of_the_base(desk: Desk) -> None:
    base, reference = desk.first(0), desk.first(1)
    code = await desk.ask(AgentType.merger, base_code=base.render(), reference_code=reference.render())
    merged = sections.parse(extract_code_block(code))
    assert merged is not None
    assert trained_models(merged) == [*trained_models(base), *trained_models(reference)]
    assert merged.sections["split"] == base.sections["split"]


# --- Phase 2 ---------------------------------------------------------------------------------------------


async def test_a_study_varies_two_or_three_parts_and_loads_no_test_rows(desk: Desk) -> None:
    code = extract_code_block(
        await desk.ask(AgentType.ablation, solution_script=desk.merged().render(), previous_ablations=[])
    )
    parsed = sections.parse(code)
    assert parsed is not None
    assert parsed.sections["study"].count('scores["') in (3, 4)
    assert "test.csv" not in code and "submission" not in code


async def test_a_second_study_looks_at_other_parts(table_desk: Desk) -> None:
    solution = table_desk.merged()
    parts = ablation.parts_of(solution)
    said = " ".join(f"`{part}`" for part in parts[:3])
    code = await table_desk.ask(AgentType.ablation, solution_script=solution.render(), previous_ablations=[said])
    assert not any(f'"{part}"' in code for part in parts[:3])
    assert f'"{parts[3]}"' in code


@pytest.mark.req("REQ-P2O-011")
async def test_a_summary_names_the_most_and_the_least_important_part(table_desk: Desk) -> None:
    printed = "Baseline: 0.8196, No StandardScaler: 0.8102, No OneHotEncoder: 0.7886, No Imputation: 0.8196"
    said = await table_desk.ask(AgentType.summarize, ablation_code="x = 1", raw_result=printed)
    most, least = said.split("has the most impact")[0], said.split("has the least impact")[0]
    assert most.rstrip().endswith("`No OneHotEncoder`")
    assert least.rstrip().endswith("`No Imputation`")


async def test_the_chosen_block_stands_in_the_script_and_other_askers_get_another(desk: Desk) -> None:
    """Three paths ask at once, each with a study of its own: none may be the twin of another."""
    solution = desk.merged().render()
    values: dict[str, Any] = {"solution_script": solution, "previous_code_blocks": []}
    studies = [f"`{part}` has the most impact" for part in ("features", "combine", "metric")]
    asked = [desk.ask(AgentType.extractor, **values, ablation_summary=study) for study in studies]
    answers = [ExtractorOutput.model_validate(reply) for reply in await asyncio.gather(*asked)]
    for answer in answers:
        assert all(solution.count(plan.code_block) == 1 for plan in answer.plans)
        assert moves.moves_in(answer.plans[0].plan)
    assert len({answer.plans[0].code_block for answer in answers}) == 3


async def test_a_block_that_was_refined_is_not_chosen_again_at_once(table_desk: Desk) -> None:
    solution = table_desk.merged()
    values = {"solution_script": solution.render(), "ablation_summary": "nothing"}
    refined: list[str] = []
    for _ in range(3):
        answer = ExtractorOutput.model_validate(
            await Desk(table_desk.task).ask(AgentType.extractor, **values, previous_code_blocks=refined)
        )
        assert answer.plans[0].code_block not in refined
        refined.append(answer.plans[0].code_block)


@pytest.mark.req("REQ-P2I-042")
async def test_plans_are_never_repeated_and_keep_what_helped(desk: Desk) -> None:
    solution = desk.merged()
    block = solution.block("features" if not desk.profile.of("text") else solution.names("model: ")[0])
    first = moves.options(block, desk.profile)[0].move
    plans, scores = [f"{first.title}. {first.why} The script scores 0.5 now. It trains LightGBM."], [0.9]
    direction = desk.profile.setting.direction
    for step in range(3):
        plan = await desk.ask(AgentType.planner, code_block=block, plans=plans, scores=scores, direction=direction)
        named = [move.title for move in moves.moves_in(plan)]
        assert named and named[-1] not in [move.title for old in plans for move in moves.moves_in(old)]
        if direction == "maximize" and step == 0:
            assert named[0] == first.title  # 0.9 beats the 0.5 that the script had
        plans.append(plan)
        scores.append(0.1 if direction == "maximize" else 0.95)


async def test_the_coder_carries_out_what_the_plan_names_and_nothing_else(desk: Desk) -> None:
    solution = desk.merged()
    for name in ("features", "combine", *solution.names("model: ")):
        block = solution.block(name)
        for option in moves.options(block, desk.profile):
            new = extract_code_block(await desk.ask(AgentType.coder, code_block=block, plan=f"{option.move.title}."))
            changed = solution.render().replace(block, new)
            ast.parse(changed)
            assert new != block
            assert leakage.find_leaks(changed) == []
        same = extract_code_block(await desk.ask(AgentType.coder, code_block=block, plan="Do something clever."))
        assert same == block


# --- Phase 3 and finalization ------------------------------------------------------------------------------


async def test_ensemble_plans_differ_and_each_becomes_a_script_of_all_models(desk: Desk) -> None:
    first, second = desk.merged(), desk.first(2)
    solutions, plans = [first.render(), second.render()], list[str]()
    for _ in range(4):
        plan = await desk.ask(AgentType.ens_planner, L=2, solutions=solutions, plans=plans, scores=[0.5] * len(plans))
        assert plan not in plans
        plans.append(plan)
        code = extract_code_block(await desk.ask(AgentType.ensembler, L=2, solutions=solutions, plan=plan))
        assert leakage.find_leaks(code) == []
        parsed = sections.parse(code)
        assert parsed is not None
        assert len(trained_models(parsed)) == 3
    assert len({ensemble.plan_in(plan, desk.profile).title for plan in plans}) == 4


async def test_the_final_script_trains_on_all_rows_and_keeps_the_models(desk: Desk) -> None:
    solution = desk.merged()
    code = extract_code_block(
        await desk.ask(AgentType.test, task_description="x", final_solution=solution.render())
    )  # fmt: skip
    parsed = sections.parse(code)
    assert parsed is not None
    assert "fit_all(y)" in code and "./final/submission.csv" in code
    assert trained_models(parsed) == trained_models(solution)
    assert parsed.sections["features"] == solution.sections["features"]
    assert leakage.find_leaks(code) == []


async def test_the_cap_on_rows_is_found_verbatim_and_taken_away(table_desk: Desk) -> None:
    capped = script.first_script(table_desk.profile, models.BY_KEY["linear"], 100).render()
    found = extract_code_block(await table_desk.ask(AgentType.test, "subsampling_extract", final_solution=capped))
    assert found in capped and "train.sample(n=100" in found
    left = await table_desk.ask(AgentType.test, "subsampling_remove", code_block_with_subsampling=found)
    assert ".sample(" not in left
    free = capped.replace(found, extract_code_block(left))
    ast.parse(free)
    assert await table_desk.ask(AgentType.test, "subsampling_extract", final_solution=free) == NO_SUBSAMPLING


async def test_a_copied_discussion_is_told_from_a_new_solution(table_desk: Desk) -> None:
    solution = table_desk.merged().render()
    for discussion, verdict in ((solution, "Same"), ("I would try boosting with folds.", "Novel")):
        values = {"reference_discussion": discussion, "final_solution": solution}
        reply = await table_desk.ask(AgentType.test, "contamination", **values)
        assert DataContaminationResult.model_validate(reply).verdict == verdict


# --- safety ----------------------------------------------------------------------------------------------


async def test_a_clean_script_is_confirmed_with_a_quotation(desk: Desk) -> None:
    solution = desk.merged().render()
    reply = LeakageDetectionOutput.model_validate(await desk.ask(AgentType.leakage, "detection", code=solution))
    (answer,) = reply.answers
    assert answer.leakage_status == "No Data Leakage"
    assert answer.code_block in solution


async def test_a_table_that_a_script_ignores_is_joined(tmp_path: Path) -> None:
    desk = Desk(TASKS["with_extra_table"](tmp_path / "input"))
    values = {"task_description": "x"}
    revised = await desk.ask(AgentType.data, **values, initial_solution=desk.merged().render())
    assert "shops.csv" in revised and '"size"' in revised
    again = await desk.ask(AgentType.data, **values, initial_solution=extract_code_block(revised))
    assert again == ALL_USED


async def test_a_script_that_uses_everything_is_left_alone(desk: Desk) -> None:
    solution = desk.merged().render()
    assert await desk.ask(AgentType.data, task_description="x", initial_solution=solution) == ALL_USED


async def test_without_a_table_it_says_what_it_is_for(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input/picture.png").write_bytes(b"not a table")
    system = TASKS["auc"](tmp_path / "elsewhere").system.replace("elsewhere", "input")
    prompt = render(AgentType.retriever, task_description="x", M=2)
    reply = await EngineerBrain().reply(BrainRequest("retriever", None, system, prompt))
    assert reply.text is not None and "works on tables and texts" in reply.text
