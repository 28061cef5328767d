"""The embedded engineer: what it sees of a task, and how it answers as each of the fourteen agents."""

import ast
import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star import models as m
from mle_star.data.columns import EPOCH
from mle_star.data.layout import find_layout
from mle_star.data.tables import TICK_NS, _looked_at
from mle_star.engineer import planning
from mle_star.engineer.brain import ALL_USED, NO_SUBSAMPLING, EngineerBrain, parts_of, serve
from mle_star.engineer.design import Design, assemble, fitting_families, recover, sections_of
from mle_star.engineer.moves import actions, named_in
from mle_star.engineer.parts.reading import read_data
from mle_star.engineer.parts.solving import write_submission
from mle_star.engineer.profile import Profile, look
from mle_star.engineer.server import BrainRequest
from mle_star.holdout.split import find_rule
from mle_star.method.codeblocks import extract_code_block
from mle_star.method.scores import parse_ablation_lines
from mle_star.prompts import facts_section, render
from tests.conftest import as_kept
from tests.engineer.conftest import Run, profile_of, question, quick
from tests.engineer.small_tasks import TASKS, SmallTask, system_prompt


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
        return next(text for title, text in sections_of(assemble(self.merged())).items() if title.startswith("model: "))


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
        values = {"model_name": f" {family.name} ", "example_code": "x = 1", "task_description": "x"}
        design = recover(await desk.code(m.AgentType.init, **values, subsample_limit=100))
        assert design is not None and list(design.models) == [family.name] and design.rows == 100
    base, reference = desk.first(0), desk.first(1)
    merged = recover(await desk.code(m.AgentType.merger, base_code=assemble(base), reference_code=assemble(reference)))
    assert merged is not None
    assert list(merged.models) == [*base.models, *reference.models] and merged.folds == base.folds


async def test_a_study_prints_its_variations_and_loads_no_test_rows(table_desk: Desk, run_script: Run) -> None:
    solution = quick(table_desk.profile, "linear", "extra_trees")
    code = await table_desk.code(m.AgentType.ablation, solution_script=assemble(solution), previous_ablations=[])
    study = recover(code)
    assert study is not None and len(study.variants) in (2, 3)
    assert "test.csv" not in code and "sample_submission.csv" not in code
    assert set(parse_ablation_lines(run_script(code))) == {"baseline", *study.variants}
    before = " ".join(f"`{name}`" for name in study.variants)
    values: dict[str, Any] = {"solution_script": assemble(solution), "previous_ablations": [before]}
    again = recover(await table_desk.code(m.AgentType.ablation, **values))
    assert again is not None and not set(again.variants) & set(study.variants)


STUDIES = """
Baseline: 0.8196, No StandardScaler: 0.8102, No OneHotEncoder: 0.7886, No Imputation: 0.8196; Baseline: 0.8;
Baseline: 0.8, scaler: 0.8; Baseline: 0.8, scaler: 0.81; Baseline: 0.8, a: 0.81, b: 0.9; a: 0.1, b: 0.2;
Baseline: 0.8, scaler: 0.799, encoder: 0.85; Baseline: 0.123456789012, a: 0.1; nothing
"""


@pytest.mark.req("REQ-P2O-011")
async def test_a_summary_names_the_most_and_the_least_important_part(table_desk: Desk) -> None:
    lines = list[str]()
    for printed in STUDIES.replace("\n", " ").strip().split("; "):
        text = str(await table_desk.ask(m.AgentType.summarize, ablation_code="x = 1", raw_result=printed))
        lines += [f"--- {printed}", text, f"--- read as {planning.findings_in(text)}"]
    as_kept("engineer/summaries.txt", "\n".join(lines))


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
        assert named[:-1] in ([first.title], [])[: 2 - (not step)]
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


async def test_a_script_is_clean_by_its_making_and_one_copied_from_a_discussion_is_named(table_desk: Desk) -> None:
    solution = assemble(table_desk.merged())
    for discussion, verdict in ((solution, "Same"), ("I would try boosting with folds.", "Novel")):
        values = {"reference_discussion": discussion, "final_solution": solution}
        reply = await table_desk.ask(m.AgentType.test, "contamination", **values)
        assert m.DataContaminationResult.model_validate(reply).verdict == verdict
    for code in (solution, "print(1)\n"):
        reply = await table_desk.ask(m.AgentType.leakage, "detection", code=code)
        (answer,) = m.LeakageDetectionOutput.model_validate(reply).answers
        assert answer.leakage_status == "No Data Leakage" and answer.code_block in code
        assert await table_desk.ask(m.AgentType.data, task_description="x", initial_solution=code) == ALL_USED


async def test_scripts_of_others_are_left_alone_and_it_says_what_it_is_for(table_desk: Desk, tmp_path: Path) -> None:
    code = 'import os\nprint("Final Validation Performance: 0.5")\n'
    assert await table_desk.code(m.AgentType.debugger, code=code, bug="KeyError: 'x'") == code.strip()
    ours, missing = assemble(quick(table_desk.profile, "lightgbm", "catboost")), "No module named 'catboost'"
    repaired = recover(await table_desk.code(m.AgentType.debugger, code=ours, bug=f"ImportError: {missing}"))
    assert repaired is not None and list(repaired.models) == ["LightGBM"]
    assert (await table_desk.blocks(code))[0][0] in code
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/picture.png").write_bytes(b"not a table")
    system = table_desk.task.system.replace(str(tmp_path / "input"), str(tmp_path / "pictures"))
    prompt = render(m.AgentType.retriever, task_description="x", M=2)
    reply = await EngineerBrain().reply(BrainRequest("retriever", None, system, prompt))
    assert reply.text is not None and "rules cannot do this task" in reply.text


def test_a_look_ahead_reads_what_is_looked_at_and_says_nothing_of_what_it_cannot_read(tmp_path: Path) -> None:
    request = question(TASKS["shop"](tmp_path / "input").system)
    for path in request.folder.iterdir():  # a file that has just changed is read anew each time
        os.utime(path)
    time.sleep(2 * TICK_NS / 1e9)
    serve.look_ahead(request.folder, request.description)
    before = _looked_at.cache_info().misses
    assert request.profile.rows and _looked_at.cache_info().misses == before
    serve.look_ahead(tmp_path / "nowhere", "")


def test_names_of_two_words_now_and_then_are_read_word_by_word(tmp_path: Path) -> None:
    for second, texts in ((3, ["name"]), (2, [])):  # 1.3 words on average are enough
        rows = (f"{i},{'Ann B' if i % 10 < second else 'Ann'}{i},{i % 2}" for i in range(200))
        assert seen_in(tmp_path / f"names-{second}", "id,name,y", rows).data["texts"] == texts


def seen_in(folder: Path, head: str, rows: Iterable[str], metric: str = "accuracy") -> Profile:
    """What is seen of a training table with the target `y`."""
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text("".join(f"{row}\n" for row in (head, *rows)))
    return look(metric, folder, "Predict `y`.", ("sklearn",))


def test_every_class_counts_the_one_looked_for_comes_last_and_gini_sorts_amounts_too(tmp_path: Path) -> None:
    seen = profile_of(TASKS["odd_names"](tmp_path / "input"))
    assert seen.targets[0]["classes"] == ["no", "yes"]
    rows = [f"{i},{i % 7},{1 + i % 2}" for i in range(40)]
    for metric, classes in (("roc_auc", ["1", "2"]), ("f1", ["2", "1"])):  # a probability is of the larger number
        assert seen_in(tmp_path, "id,x,y", rows, metric).targets[0]["classes"] == classes
    for count, kind in ((2, "binary"), (5, "regression")):
        cells = ["", "NA", "-", "?", "nan", *(i % count for i in range(195))]
        seen = seen_in(tmp_path, "id,w,x,y", (f"{i},{i % 7},{i % 3},{cell}" for i, cell in enumerate(cells)), "gini")
        found = (seen.recipe.metric.name, seen.kind, seen.data["unlabelled"])
        assert found == ("gini", kind, ["", "-", "?", "NA", "nan"])
        assert look("gini", tmp_path, "Predict `x` and `y`.", ("sklearn",)).recipe.kind == "number", "one is enough"
    rows = [f"{i},{i % 11},{'1234'[4 * i // 30_001]}" for i in range(30_001)]  # of such a table every other row is read
    seen = seen_in(tmp_path, "id,x,y", [*rows, "30001,1,rare"])
    assert seen.targets[0]["classes"] == ["1", "2", "3", "4", "rare"] and seen.rarest == 1


@given(st.text(alphabet="#`~ \nab-", max_size=200))
def test_any_prompt_can_be_taken_apart(text: str) -> None:
    assert len(parts_of(text)) >= 1


def test_headings_inside_a_description_do_not_hide_the_data_folder_and_failures_are_read(tmp_path: Path) -> None:
    task = "Predict `y`.\n\n# Data\n\nSee below.\n\n# Metric\n\nWhatever you like."
    request = question(system_prompt(tmp_path, "mae", "minimize", task))
    assert (request.metric, request.folder, request.description) == ("mae", tmp_path.resolve(), task)
    assert "lightgbm" in request.packages and "sklearn" in request.packages and "torch" not in request.packages
    facts = {"metric": "rmse", "scores": [0.5, None]}
    text = "# Tried\n\n## Plan: one\ntwo lines\n## Score: 0.5\n\n## Plan: other\n## Score: N/A (evaluation failed)\n"
    request = question("", f"{text}\n# Facts\n\n```json\n{json.dumps(facts)}\n```")
    assert request.metric == "rmse"
    assert [(plan.strip(), score) for plan, score in request.tried] == [("one\ntwo lines", 0.5), ("other", None)]


@pytest.mark.parametrize(
    "form",
    ["%d.%m.%Y %H:%M:%S", "%d-%m-%Y %H:%M", "%d/%m/%y", "%d.%m.%y", "%d/%m/%y %H:%M", "%d/%m/%Y %I:%M %p", "%m/%d/%y"],
)
def test_days_and_months_are_told_apart_by_the_whole_column(form: str, tmp_path: Path) -> None:
    days = [datetime(2021, 1 + i % 12, 1 + i % 28, i % 24, i % 60) for i in range(60)]
    seen = seen_in(tmp_path, "id,when,y", (f"{i},{day.strftime(form)},{i % 2}" for i, day in enumerate(days)))
    assert seen.data["dates"] == {"when": form}


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("spoken", lambda day: f"{day:%d %B %Y %H:%M}"), ("zoned", lambda day: f"{day:%Y-%m-%dT%H:%M}+02:00"),
        ("timestamp", lambda day: str(int((day - EPOCH).total_seconds()))),
        ("eventTime", lambda day: str(int((day - EPOCH).total_seconds()))), ("plain", lambda day: f"{day:%Y-%m-%d}"),
    ],
)  # fmt: skip
def test_engineer_and_hold_out_agree_on_time(name: str, spelled: Callable[[datetime], str], tmp_path: Path) -> None:
    days = [datetime(2021, 1, 1) + timedelta(hours=9 * i) for i in range(120)]
    cells = [spelled(day) if i % 30 != 7 else "unknown" for i, day in enumerate(days)]
    rows = [f"{i},{cell},{i % 5}" for i, cell in enumerate(cells)]
    (tmp_path / "test.csv").write_text(f"id,{name},x\n" + "".join(f"{row}\n" for row in rows[90:]))
    seen = seen_in(tmp_path, f"id,{name},x,y", (f"{row},{i % 2}" for i, row in enumerate(rows[:90])))
    rule = find_rule(find_layout(tmp_path), m.PipelineConfig())
    assert (seen.later, rule.kind, rule.column) == (name, "time", name)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `input` of the folder in which the test is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input").mkdir()
    return tmp_path / "input"


def test_one_gap_changes_no_key_and_no_day(inside: Path) -> None:
    """pandas makes numbers with a point of a column of whole numbers that has a gap."""
    (inside / "shops.csv").write_text("shop,size\n" + "".join(f"{i},{i * 10}\n" for i in range(5)))
    rows = (f"{i},{'' if i == 7 else 20210101 + i % 28},{'' if i == 9 else i % 5},{i % 2}" for i in range(60))
    seen = seen_in(inside, "id,day,shop,y", rows)
    assert seen.data["dates"] == {"day": "%Y%m%d"} and seen.data["lookups"]
    train, _ = read_data(seen.data, None, {"kind": "plain"}, 1)
    assert train["day"].isna().sum() == 1 and train["size"].isna().sum() == 1


def test_an_id_that_only_the_test_has_is_no_number_of_a_wide_table(inside: Path) -> None:
    names = [f"x{i}" for i in range(70)]
    rows = [",".join(str((i * n) % 17 / 4) for n in range(70)) for i in range(60)]
    keyed = "".join(f"r{i},{row}\n" for i, row in enumerate(rows))
    (inside / "test.csv").write_text(",".join(["id", *names]) + "\n" + keyed)
    answers = "".join(f"r{i},0\n" for i in reversed(range(60)))
    (inside / "sample_submission.csv").write_text(f"id,y\n{answers}")
    seen = seen_in(inside, ",".join([*names, "y"]), (f"{row},{i % 2}" for i, row in enumerate(rows)))
    _, test = read_data(seen.data, None, {"kind": "plain"}, 1)
    assert list(test["id"][:3]) == ["r0", "r1", "r2"]
    solution: Any = SimpleNamespace(data=seen.data, targets=seen.targets, metric={"answers": "label"})
    write_submission(solution, test, {"y": np.arange(60) % 2})
    assert (inside.parent / "final/submission.csv").read_text().splitlines()[1:3] == ["r59,1", "r58,0"]
