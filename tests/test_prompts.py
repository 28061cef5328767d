"""The registry of prompts, how slots are filled, every point that the specification wants, and knowledge files."""

import difflib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from mle_star import prompts
from mle_star.errors import ConfigError
from mle_star.knowledge import MAX_CHARACTERS, knowledge_for, known_models
from mle_star.models import AgentType, DataModality, MetricDirection, PipelineConfig, PromptTemplate, TaskDescription
from tests.conftest import as_kept
from tests.prompt_samples import NAMES, SAMPLES, SCRIPT, parts, sample

OWN = Path(__file__).parent.parent / "src" / "mle_star" / "knowledge"
REPO = Path(__file__).parent.parent
REGISTRY = prompts.PromptRegistry()


@pytest.mark.req("REQ-FN-001", "REQ-FN-004", "REQ-FN-011", "REQ-FN-014", "REQ-FN-015", "REQ-FN-016", "REQ-FN-017")
@pytest.mark.req("REQ-FN-018", "REQ-FN-027", "REQ-FN-045", "REQ-P1-002", "REQ-P1-009", "REQ-P1-014", "REQ-P1-043")
@pytest.mark.req("REQ-P1-044", "REQ-P1-045", "REQ-P2I-002", "REQ-P2I-006", "REQ-P2I-007", "REQ-P2I-009", "REQ-P2I-014")
@pytest.mark.req("REQ-P2I-015", "REQ-P2O-002", "REQ-P2O-005", "REQ-P2O-006", "REQ-P2O-007", "REQ-P2O-009")
@pytest.mark.req("REQ-P2O-013", "REQ-P2O-018", "REQ-P2O-042", "REQ-P3-002", "REQ-P3-006", "REQ-P3-007", "REQ-P3-008")
@pytest.mark.req("REQ-P3-011", "REQ-P3-014", "REQ-P3-015", "REQ-P3-046", "REQ-P3-047", "REQ-P3-048", "REQ-P3-049")
@pytest.mark.req("REQ-SF-002", "REQ-SF-009", "REQ-SF-012", "REQ-SF-017", "REQ-SF-025", "REQ-SF-029", "REQ-SF-044")
@pytest.mark.req("REQ-SF-045", "REQ-SF-046")
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_has_the_recorded_words_the_documented_headings_and_no_gaps(name: str) -> None:
    text = sample(name) + "\n"
    as_kept(f"prompts/{name}.md", sample(name), "see docs/prompts.md on changing a prompt")
    assert ("Kaggle grandmaster" in parts(text)[""]) == (name != "summarize")
    assert {path.stem for path in REPO.glob("tests/snapshots/prompts/*.md")} == set(NAMES)
    table = (REPO / "docs" / "prompts.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}` \| (\d+) \| (.*) \|$", table, re.MULTILINE)
    assert row and next(prompt for prompt in REGISTRY if prompt.name == name).figure_ref == f"Figure {row[1]}"
    cells = row[2].split(" · ")
    assert [cell.strip("()") for cell in cells] == [title for title in parts(text) if title]
    empty: dict[str, list[str]] = {key: [] for key in ("previous_ablations", "previous_code_blocks")}
    if name == "ens_planner":
        empty |= {"plans": [], "scores": []}
    always = [cell for cell in cells if not cell.startswith("(")]
    assert always == [title for title in parts(sample(name, optional=False, **empty)) if title]
    bare = sample(name, optional=False, previous_ablations=[], previous_code_blocks=[], subsample_instruction="")
    assert not [gap for gap in ("\n\n\n", "\n- \n", "None") if gap in bare]
    assert set(re.findall(r"\{(\w[\w ]*)\}", bare + text)) <= {"final_validation_score"}


@pytest.mark.req("REQ-DM-032", "REQ-DM-033", "REQ-DM-034", "REQ-DM-035", "REQ-SF-002", "REQ-SF-012", "REQ-SF-017")
@pytest.mark.req("REQ-SF-025", "REQ-SF-033", "REQ-FN-001", "REQ-FN-004", "REQ-FN-012", "REQ-FN-027")
def test_a_fresh_registry_has_a_template_for_every_agent_and_figure_and_refuses_others() -> None:
    assert len(REGISTRY) == len(AgentType) == 14
    figures = {f"Figure {number}" for number in (*range(9, 23), *range(25, 29))}
    assert {prompt.figure_ref for prompt in REGISTRY} == figures
    assert all(REGISTRY.get(prompt.agent_type, prompt.variant) == prompt for prompt in REGISTRY)
    assert {agent: REGISTRY.get(agent).agent_type for agent in AgentType} == {agent: agent for agent in AgentType}
    assert len({REGISTRY.hash(prompt.agent_type, prompt.variant) for prompt in REGISTRY}) == len(list(REGISTRY))
    assert REGISTRY.get(AgentType.leakage) == REGISTRY.get(AgentType.leakage, "detection")
    for agent in (AgentType.coder, AgentType.leakage):
        with pytest.raises(KeyError, match="poetry"):
            REGISTRY.get(agent, "poetry")
    with pytest.raises(KeyError, match="plumber"):
        REGISTRY.get("plumber")  # type: ignore[arg-type]


@pytest.mark.req("REQ-DM-030", "REQ-DM-032")
def test_a_template_names_its_agent_and_can_be_registered() -> None:
    known: dict[str, Any] = {"figure_ref": "Figure 9", "template": "Do {M}", "variables": ["M"]}
    with pytest.raises(ValidationError):
        PromptTemplate(agent_type="poet", **known)
    own = prompts.AgentPrompt(agent_type=AgentType.coder, name="coder", **known)
    registry = prompts.PromptRegistry([own])
    assert len(registry) == 1 and registry.get(AgentType.coder).render(M="it", surplus="{M}") == "Do it"
    other = prompts.PromptRegistry([own.model_copy(update={"template": "Do {M}!"})])
    assert other.hash(AgentType.coder) != registry.hash(AgentType.coder)
    with pytest.raises(KeyError, match="planner"):
        registry.get(AgentType.planner)
    for prompt in REGISTRY:
        assert isinstance(prompt, PromptTemplate)
        assert all(f"{{{variable}}}" in prompt.template for variable in set(prompt.variables) - {"scores"})


@pytest.mark.req("REQ-DM-031", "REQ-SF-025", "REQ-FN-011")
@pytest.mark.parametrize("prompt", list(REGISTRY), ids=lambda prompt: prompt.name)
def test_a_missing_variable_is_a_key_error_and_blanks_may_be_underscores(prompt: prompts.AgentPrompt) -> None:
    values = {variable: SAMPLES[variable] for variable in prompt.variables}
    assert prompt.render(**{key.replace(" ", "_"): value for key, value in values.items()}) == prompt.render(**values)
    for missing in prompt.variables:
        with pytest.raises(KeyError, match=missing):
            prompt.render(**{name: value for name, value in values.items() if name != missing})


TRICKY = st.lists(
    st.sampled_from(
        ["{code}", "{plan}", "{bug}", "{}", "{{ x }}", "{% raw %}", "{# c #}", "```", "````python", "~~~", "`",
         "# Rules", "{final_validation_score}", "\\1", "\\g<0>", "\n", "\n\n", " ", "x = 1", "é", '"""',
         "# 1st Python Solution"]
    ),
    min_size=1,
).map("".join)  # fmt: skip


@pytest.mark.req("REQ-DM-031", "REQ-P3-003", "REQ-P3-009", "REQ-P3-012")
@given(one=TRICKY, two=TRICKY)
@example(one="{bug}", two="{code}")
@example(one="```\n# Error\n```", two="$0 \\0")
def test_braces_backticks_and_jinja_inside_values_and_lists_come_through_untouched(one: str, two: str) -> None:
    found = parts(prompts.render(AgentType.debugger, code=one, bug=two))
    assert found == {**found, "Script": one, "Error": two}
    assert list(found) == ["", "Script", "Error", "Your task", "Rules", "Answer"]
    given_twice = [one, two, one]
    for agent, more in ((AgentType.ensembler, {"plan": two}), (AgentType.ens_planner, {"plans": [], "scores": []})):
        text = prompts.render(agent, L=3, solutions=given_twice, **more)
        found = parts(text)
        assert [found[f"{number} Python Solution"] for number in ("1st", "2nd", "3rd")] == given_twice
        assert found.get("Ensemble plan", two) == two and re.search(r"\b3 (Python )?[Ss]olutions", text)
    coder = parts(prompts.render(AgentType.coder, code_block=one, plan=two))
    assert (coder["Code block"], coder["Plan"]) == (one, two)
    shown = [text for text in (one, two) if text.strip()]
    ablation = prompts.render(AgentType.ablation, solution_script="{previous_ablations}", previous_ablations=[one, two])
    values: dict[str, Any] = {"solution_script": one, "ablation_summary": two}
    extractor = prompts.render(AgentType.extractor, **values, previous_code_blocks=["", one, two])
    for number, text in enumerate(shown, 1):
        assert f"## Study {number}\n\n{prompts.fenced(text, 'text')}" in ablation
        assert f"## Block {number}\n\n{prompts.fenced(text)}" in extractor
    history = prompts.render(AgentType.planner, code_block="{plans}", plans=[one, two], scores=[1.0, None])
    assert f"## Plan: {one}\n## Score: 1.0\n\n## Plan: {two}\n## Score: N/A (evaluation failed)" in history


@pytest.mark.req("REQ-P2I-010", "REQ-P3-002", "REQ-P3-011")
def test_sections_of_nothing_are_empty_and_solutions_carry_proper_ordinals() -> None:
    with pytest.raises(ValueError, match="shorter"):
        prompts.format_plan_history(["a", "b"], [1.0])
    assert not prompts.format_plan_history([], []) and not prompts.format_solutions([])
    numbers = [1, 2, 3, 4, 10, 11, 12, 13, 21, 22, 23, 101, 111]
    expected = "1st 2nd 3rd 4th 10th 11th 12th 13th 21st 22nd 23rd 101st 111th"
    assert " ".join(prompts.ordinal(number) for number in numbers) == expected


def test_the_facts_of_every_prompt_are_json_below_a_kilobyte_and_the_same_each_time(tmp_path: Path) -> None:
    known: dict[str, Any] = {"competition_id": "houses", "task_type": "tabular", "data_modality": "tabular"}
    metric: dict[str, Any] = {"evaluation_metric": "rmse", "metric_direction": "minimize"}
    task, lines = TaskDescription(**known, **metric, description="x" * 9000, data_dir=str(tmp_path)), list[str]()
    for prompt in REGISTRY:
        values = {name: SAMPLES[name] for name in (*prompt.variables, *prompt.optional) if name in SAMPLES}
        about = (prompt.agent_type, prompt.variant, task, PipelineConfig(), values)
        text, again = (prompts.facts_section(*about) for _ in range(2))
        assert text == again and len(text) < 1000 and SCRIPT not in text
        lines.append(f"{prompt.name}: {text}")
    plans = [f"plan {number} of\n many {'words ' * 50}" for number in range(15)]
    more: dict[str, Any] = {"scores": [*range(30)], "tried": plans, "L": 3}
    for chosen in ({"seed": 7}, {"letter": True}, {"letter": True, "model": "offline"}, {"briefing": ("data",)}):
        about = (AgentType.planner, None, task, PipelineConfig(**chosen), more)
        lines.append(f"{chosen}: {prompts.facts_section(*about)}")
    as_kept("facts.txt", "\n".join(lines))


@pytest.mark.req("REQ-P1-002", "REQ-P1-009", "REQ-P1-014", "REQ-SF-002", "REQ-SF-012", "REQ-SF-017", "REQ-SF-025")
@pytest.mark.req("REQ-P2O-002", "REQ-P2O-009", "REQ-P2O-013", "REQ-P2I-002", "REQ-P2I-009", "REQ-P3-002", "REQ-P3-003")
@pytest.mark.req("REQ-P3-011", "REQ-FN-001", "REQ-FN-004", "REQ-FN-011", "REQ-FN-027")
def test_each_prompt_takes_its_values_and_shows_them_whole() -> None:
    lines = []
    for prompt in REGISTRY:
        found = {title: text for title, text in parts(sample(prompt.name, note=None)).items() if title}
        shown = {name: [title for title in found if found[title] == SAMPLES.get(name)] for name in prompt.variables}
        solutions = [title for title, text in found.items() if text in SAMPLES["solutions"]]
        lines.append(f"{prompt.name}: {shown} {solutions}")
    as_kept("prompt_values.txt", "\n".join(lines))


LESS, RMSE = {"subsample_limit": 500}, {"metric": "rmse", "direction": MetricDirection.minimize}
WORDED = {"subsample_instruction": "you must subsample to 500 for a faster run."}
CHANGES: list[dict[str, Any]] = [{"optional": False}, LESS, WORDED, {"subsample_instruction": ""}, RMSE]


@pytest.mark.req("REQ-P1-009", "REQ-P2I-009", "REQ-P3-002")
def test_the_cap_on_training_rows_the_metric_and_its_direction_are_those_that_are_given() -> None:
    lines = list[str]()
    for name in ("init", "merger", "coder", "debugger", "planner", "ens_planner"):
        usual = sample(name).splitlines()
        for change in CHANGES:
            other = difflib.unified_diff(usual, sample(name, **change).splitlines(), n=0, lineterm="")
            lines += [f"=== {name} with {change}", *(line for line in other if line[:2] != "@@" and line[3:].strip())]
    as_kept("prompt_changes.txt", "\n".join(lines))


def task(modality: str = "tabular", kind: str = "tabular") -> TaskDescription:
    known = {"competition_id": "c", "evaluation_metric": "accuracy", "metric_direction": "maximize", "description": "d"}
    return TaskDescription.model_validate({**known, "task_type": kind, "data_modality": modality})


def test_files_are_short_and_chosen_by_modality_and_by_what_is_installed_and_name_no_version() -> None:
    table = knowledge_for(task(), ())
    assert "## Tables" in table and "## Traps of current libraries" in table and "## Validation" in table
    assert "## Pictures" not in table and "## PyTorch" not in table
    picture = knowledge_for(task("image", "image_classification"), ("torch",))
    assert "## Pictures" in picture and "## PyTorch" in picture and "## Tables" not in picture
    mixed = knowledge_for(task("mixed"), ())
    assert "## Tables" in mixed and "## Texts" in mixed
    for modality in DataModality:
        assert len(knowledge_for(task(modality), ("torch",))) <= MAX_CHARACTERS
    for path in OWN.glob("*.md"):
        assert "==" not in path.read_text(encoding="utf-8"), "the packages of the system prompt are written so"


def test_files_of_the_user_come_first_and_cannot_open_a_section(tmp_path: Path) -> None:
    (tmp_path / "ours.md").write_text("# Task\nOur trains are late.\n", encoding="utf-8")
    (tmp_path / "other.md").write_text("<!-- for: audio -->\nHum.\n", encoding="utf-8")
    (tmp_path / "long.md").write_text("a line of many\n" * 2000, encoding="utf-8")
    assert "Our trains are late." not in knowledge_for(task(), (), str(tmp_path)), "`long.md` fills the room first"
    (tmp_path / "long.md").unlink()
    text = knowledge_for(task(), (), str(tmp_path))
    assert text.startswith("## Task\nOur trains are late.")
    assert "Hum." not in text and "## Tables" in text
    with pytest.raises(ConfigError, match="is not a folder"):
        knowledge_for(task(), (), str(tmp_path / "ours.md"))


def test_there_are_models_to_start_from_and_those_of_the_user_come_first(tmp_path: Path) -> None:
    for modality in ("tabular", "text", "mixed"):
        known = known_models(task(modality))
        assert len(known) >= 2
        for model in known:
            compile(model.example_code, model.model_name, "exec")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "ours.md").write_text("# Ours\n```python\n# as we do it\nx = 1\n```\n", encoding="utf-8")
    first = known_models(task(), (), str(tmp_path))[0]
    assert (first.model_name, first.example_code) == ("Ours", "# as we do it\nx = 1\n")
    net = "<!-- for: tabular; needs: torch -->\n# Net\n```python\nx = 2\n```\n"
    (tmp_path / "models" / "net.md").write_text(net, encoding="utf-8")
    for packages in ((), ("torch",)):
        names = [model.model_name for model in known_models(task(), packages, str(tmp_path))]
        assert ("Net" in names) is bool(packages)
