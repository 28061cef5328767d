"""The registry of prompts and how slots are filled."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from mle_star.models import AgentType, PipelineConfig, PromptTemplate, TaskDescription
from mle_star.prompts import (
    AgentPrompt,
    PromptRegistry,
    facts_section,
    fenced,
    format_plan_history,
    format_solutions,
    ordinal,
    render,
)
from tests.prompt_samples import NAMES, SAMPLES, SCRIPT, parts, sample

SNAPSHOTS = Path(__file__).parent / "snapshots" / "prompts"
REPO = Path(__file__).parent.parent
REGISTRY = PromptRegistry()


# --- wording ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_change_of_wording_is_a_visible_difference(name: str) -> None:
    snapshot = SNAPSHOTS / f"{name}.md"
    text = sample(name) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        snapshot.write_text(text, encoding="utf-8")
    assert text == snapshot.read_text(encoding="utf-8"), "see docs/prompts.md on changing a prompt"


def test_every_snapshot_belongs_to_a_template() -> None:
    assert sorted(path.stem for path in SNAPSHOTS.glob("*.md")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_documented_headings_are_the_headings(name: str) -> None:
    table = (REPO / "docs" / "prompts.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}` \| (\d+) \| (.*) \|$", table, re.MULTILINE)
    assert row
    prompt = next(prompt for prompt in REGISTRY if prompt.name == name)
    assert prompt.figure_ref == f"Figure {row[1]}"
    cells = row[2].split(" · ")
    assert [cell.strip("()") for cell in cells] == [title for title in parts(sample(name)) if title]
    empty: dict[str, list[str]] = {key: [] for key in ("previous_ablations", "previous_code_blocks")}
    if name == "ens_planner":
        empty |= {"plans": [], "scores": []}
    always = [cell for cell in cells if not cell.startswith("(")]
    assert always == [title for title in parts(sample(name, optional=False, **empty)) if title]


@pytest.mark.parametrize("name", NAMES)
def test_without_the_optional_values_no_gap_and_no_empty_item_remains(name: str) -> None:
    text = sample(name, optional=False, previous_ablations=[], previous_code_blocks=[], subsample_instruction="")
    assert not [gap for gap in ("\n\n\n", "\n- \n", "None") if gap in text]
    assert set(re.findall(r"\{(\w[\w ]*)\}", text + sample(name))) <= {"final_validation_score"}


# --- registry --------------------------------------------------------------------------------------------


FIGURES = {
    "retriever": 9, "init": 10, "merger": 11, "ablation": 12, "summarize": 13, "extractor": 14, "coder": 15,
    "planner": 16, "ens_planner": 17, "ensembler": 18, "debugger": 19, "leakage": 20, "leakage-detection": 20,
    "leakage-correction": 21, "data": 22, "test": 25, "test-subsampling_extract": 26, "test-subsampling_remove": 27,
    "test-contamination": 28,
}  # fmt: skip


@pytest.mark.req("REQ-DM-032", "REQ-DM-033", "REQ-DM-034", "REQ-DM-035", "REQ-SF-033")
def test_a_fresh_registry_has_a_template_for_every_agent_and_figure_and_refuses_others() -> None:
    assert len(REGISTRY) == len(AgentType) == 14
    assert {prompt.figure_ref for prompt in REGISTRY} == {f"Figure {figure}" for figure in FIGURES.values()}
    for name, figure in FIGURES.items():
        agent, _, variant = name.partition("-")
        found = REGISTRY.get(AgentType(agent), variant or None)
        assert (found.agent_type, found.figure_ref) == (AgentType(agent), f"Figure {figure}")
    assert len({REGISTRY.hash(prompt.agent_type, prompt.variant) for prompt in REGISTRY}) == len(list(REGISTRY))
    for agent in (AgentType.coder, AgentType.leakage):
        with pytest.raises(KeyError, match="poetry"):
            REGISTRY.get(agent, "poetry")


def test_a_template_of_ones_own_can_be_registered_and_its_hash_follows_its_wording() -> None:
    own = AgentPrompt(
        agent_type=AgentType.coder, name="coder", figure_ref="none", template="Do {plan}", variables=["plan"]
    )
    registry = PromptRegistry([own])
    assert len(registry) == 1 and registry.get(AgentType.coder).render(plan="it", surplus="{plan}") == "Do it"
    assert own.model_copy(update={"template": "Do {plan}!"}).hash != own.hash == registry.hash(AgentType.coder)
    with pytest.raises(KeyError, match="planner"):
        registry.get(AgentType.planner)


@pytest.mark.req("REQ-DM-030")
def test_a_template_names_its_agent_its_figure_and_its_variables() -> None:
    template = PromptTemplate(agent_type="coder", figure_ref="Figure 15", template="{plan}", variables=["plan"])
    assert template.agent_type is AgentType.coder
    with pytest.raises(ValidationError):
        PromptTemplate(agent_type="poet", figure_ref="Figure 1", template="", variables=[])
    for prompt in REGISTRY:
        assert isinstance(prompt, PromptTemplate)
        for variable in set(prompt.variables) - {"scores"}:
            assert f"{{{variable}}}" in prompt.template


# --- slots -----------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-DM-031")
def test_slots_are_filled_in_one_pass() -> None:
    template = PromptTemplate(
        agent_type=AgentType.retriever,
        figure_ref="Figure 9",
        template="List {M} models for {task_description}",
        variables=["M", "task_description"],
    )
    assert template.render(M=4, task_description="classify images") == "List 4 models for classify images"
    assert template.render(M=4, task_description="{M} {other}", surplus=1) == "List 4 models for {M} {other}"
    with pytest.raises(KeyError, match="M"):
        template.render(task_description="classify images")


@pytest.mark.req("REQ-DM-031")
@pytest.mark.parametrize("name", NAMES)
def test_every_missing_variable_is_a_key_error(name: str) -> None:
    prompt = next(prompt for prompt in REGISTRY if prompt.name == name)
    for missing in prompt.variables:
        values = {variable: SAMPLES[variable] for variable in prompt.variables if variable != missing}
        with pytest.raises(KeyError, match=missing):
            prompt.render(**values)


@pytest.mark.req("REQ-SF-025", "REQ-FN-011", "REQ-DM-031")
@pytest.mark.parametrize("name", [name for name in NAMES if name == "data" or name.startswith("test")])
def test_names_with_blanks_may_be_spelt_with_underscores(name: str) -> None:
    prompt = next(prompt for prompt in REGISTRY if prompt.name == name)
    values = {variable: SAMPLES[variable] for variable in prompt.variables}
    assert prompt.render(**{key.replace(" ", "_"): value for key, value in values.items()}) == prompt.render(**values)


TRICKY = st.lists(
    st.sampled_from(
        ["{code}", "{plan}", "{bug}", "{}", "{{ x }}", "{% raw %}", "{# c #}", "```", "````python", "~~~", "`",
         "# Rules", "{final_validation_score}", "\\1", "\\g<0>", "\n", "\n\n", " ", "x = 1", "é", '"""',
         "# 1st Python Solution"]
    ),
    min_size=1,
).map("".join)  # fmt: skip


@pytest.mark.req("REQ-DM-031")
@given(code=TRICKY, bug=TRICKY)
@example(code="{bug}", bug="{code}")
@example(code="```\n# Error\n```", bug="$0 \\0")
def test_braces_backticks_and_jinja_inside_values_come_through_untouched(code: str, bug: str) -> None:
    found = parts(render(AgentType.debugger, code=code, bug=bug))
    assert found["Script"] == code
    assert found["Error"] == bug
    assert list(found) == ["", "Script", "Error", "Your task", "Rules", "Answer"]


@pytest.mark.req("REQ-P3-003", "REQ-P3-012")
@given(first=TRICKY, second=TRICKY, plan=TRICKY)
def test_solutions_and_plans_come_through_untouched(first: str, second: str, plan: str) -> None:
    found = parts(render(AgentType.ensembler, L=2, solutions=[first, second], plan=plan))
    assert found["1st Python Solution"] == first
    assert found["2nd Python Solution"] == second
    assert found["Ensemble plan"] == plan


@given(TRICKY, TRICKY)
def test_summaries_blocks_and_plans_in_lists_come_through_untouched(one: str, two: str) -> None:
    shown = [text for text in (one, two) if text.strip()]
    ablation = render(AgentType.ablation, solution_script="{previous_ablations}", previous_ablations=[one, two])
    extractor = render(
        AgentType.extractor, solution_script=one, ablation_summary=two, previous_code_blocks=["", one, two]
    )
    for number, text in enumerate(shown, 1):
        assert f"## Study {number}\n\n{fenced(text, 'text')}" in ablation
        assert f"## Block {number}\n\n{fenced(text)}" in extractor
    history = render(AgentType.planner, code_block="{plans}", plans=[one, two], scores=[1.0, None])
    assert f"## Plan: {one}\n## Score: 1.0\n\n## Plan: {two}\n## Score: N/A (evaluation failed)" in history


# --- sections --------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-P2I-010")
def test_the_history_lists_plans_with_scores_in_order() -> None:
    history = format_plan_history(["plan A", "plan B"], [0.82, None])
    assert history == (
        "# Improvement plans you have tried\n\n"
        "## Plan: plan A\n## Score: 0.82\n\n"
        "## Plan: plan B\n## Score: N/A (evaluation failed)"
    )
    assert history in sample("planner")
    with pytest.raises(ValueError, match="2 plans with 1 scores"):
        format_plan_history(["a", "b"], [1.0])
    assert not format_plan_history([], []) and not format_solutions([])
    ablation = render(AgentType.ablation, solution_script="x", previous_ablations=["", " \n"])
    extractor = render(AgentType.extractor, solution_script="x", ablation_summary="s", previous_code_blocks=[])
    assert "Previous ablation studies" not in ablation and "Code blocks improved before" not in extractor


@pytest.mark.req("REQ-P3-002", "REQ-P3-011")
def test_solutions_carry_proper_ordinals() -> None:
    numbers = [1, 2, 3, 4, 10, 11, 12, 13, 21, 22, 23, 101, 111]
    expected = ["1st", "2nd", "3rd", "4th", "10th", "11th", "12th", "13th", "21st", "22nd", "23rd", "101st", "111th"]
    assert [ordinal(number) for number in numbers] == expected
    titles = re.findall(r"^# (\d+(?:st|nd|rd|th) Python Solution)$", format_solutions(["a", "b", "c"]), re.MULTILINE)
    assert titles == ["1st Python Solution", "2nd Python Solution", "3rd Python Solution"]


# --- facts -----------------------------------------------------------------------------------------------


def test_the_facts_of_every_prompt_are_json_below_a_kilobyte_and_the_same_each_time(tmp_path: Path) -> None:
    task = TaskDescription.model_validate(
        {
            "competition_id": "houses", "task_type": "tabular", "data_modality": "tabular", "description": "x" * 9000,
            "evaluation_metric": "rmse", "metric_direction": "minimize", "data_dir": str(tmp_path),
        }
    )  # fmt: skip
    for prompt in REGISTRY:
        values = {name: SAMPLES[name] for name in (*prompt.variables, *prompt.optional) if name in SAMPLES}
        text, again = (
            facts_section(prompt.agent_type, prompt.variant, task, PipelineConfig(), values) for _ in range(2)
        )
        assert text == again and len(text) < 1000
        facts = json.loads(text.splitlines()[3])
        assert (facts["agent"], facts["metric"], facts["direction"]) == (prompt.agent_type.value, "rmse", "minimize")
        assert facts["seed"] == 42 and facts["rows"] == 30000
        assert facts.get("scores") == values.get("scores")
        assert facts.get("count") == values.get("M", values.get("L")) and facts.get("model") == values.get("model_name")
        assert SCRIPT not in text
