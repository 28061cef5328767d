"""The data models of the specification: every REQ-DM has a test here that names it."""

import ast
import inspect
import json
import math
import os
import runpy
import subprocess
import sys
import timeit
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from time import thread_time
from typing import Any, get_type_hints

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

import mle_star
from mle_star import models as m
from mle_star.models import enums, texts
from mle_star.prompts import PromptRegistry
from tests.conftest import as_kept

SOURCE = Path(m.__file__)
ROOT = SOURCE.parents[3]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
REPLIES = {f"mle_star.agents{part}" for part in ("", ".retriever", ".extractor", ".leakage", ".test")}
HOMES = {f"mle_star.models{part}" for part in ("", ".enums", ".settings")} | REPLIES
PAPER = {
    **dict.fromkeys(("num_retrieved_models", "outer_loop_steps", "inner_loop_steps"), 4),
    "num_parallel_solutions": 2,
    "ensemble_rounds": 5,
    "max_debug_attempts": 3,
    "time_limit_seconds": 86400,
    "subsample_limit": 30000,
}
ENUMS: list[type[Enum]] = [
    m.TaskType, m.DataModality, m.MetricDirection, m.SolutionPhase, m.CodeBlockCategory, m.AgentType,
]  # fmt: skip
VERSIONS = ["3.10", "3.11", "3.12", "3.13"]
SCHEMAS: list[type[BaseModel]] = [
    m.RetrievedModel, m.RetrieverOutput, m.RefinePlan, m.ExtractorOutput, m.LeakageAnswer, m.LeakageDetectionOutput,
    m.DataContaminationResult,
]  # fmt: skip


@pytest.mark.req("REQ-DM-001", "REQ-DM-043")
def test_the_default_settings_carry_the_papers_numbers_and_shares_of_time_add_up() -> None:
    assert {name: getattr(m.PipelineConfig(), name) for name in PAPER} == PAPER
    for wrong, words in (({"phase1": 0.5}, "add up to 1"), ({"phase1": 0.0, "phase2": 0.75}, "greater than 0")):
        with pytest.raises(ValidationError, match=words):
            m.PhaseTimeBudget(**wrong)


INTEGERS = [name for name, field in m.PipelineConfig.model_fields.items() if "int" in str(field.annotation)]
WRONG: dict[str, list[Any]] = {
    **{name: [0, -1, True, 1.5, "two"] for name in INTEGERS},
    "seed": [-1, True, 1.5, "two"],
    "max_budget_usd": [0, -0.5, float("nan"), float("inf"), True],
    "outer_steps": [3],
}


@pytest.mark.req("REQ-DM-002")
@pytest.mark.parametrize("name", WRONG)
def test_a_setting_that_is_no_positive_number_or_not_known_is_refused_by_name(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(ValidationError) as refusal:
            m.PipelineConfig(**{name: value})
        assert [error["loc"] for error in refusal.value.errors()] == [(name,)], value
    assert set(PAPER) < set(INTEGERS)
    assert m.PipelineConfig(max_budget_usd=None, script_timeout_seconds=None, seed=0).max_budget_usd is None
    assert m.PipelineConfig(seed=42).model_fields_set == {"seed"}


@pytest.mark.req("REQ-DM-004", "REQ-DM-005", "REQ-DM-006", "REQ-DM-008", "REQ-DM-011", "REQ-DM-013")
@pytest.mark.parametrize("enum", ENUMS)
def test_an_enum_has_exactly_its_members_and_each_equals_its_text(enum: type[Enum]) -> None:
    as_kept(f"models/{enum.__name__}.txt", "\n".join(str(member.value) for member in enum))
    assert all(member.name == member.value == member for member in enum) and issubclass(enum, str)
    with pytest.raises(ValueError, match="initial"):
        enum("initial")


SCRIPT = {"content": "", "phase": "init"}
WORDS = {
    "task_type": "classification", "data_modality": "tabular", "metric_direction": "maximize", "phase": "init",
    "leakage_status": "Yes Data Leakage", "verdict": "Novel", "agent_type": "coder",
}  # fmt: skip
"""Fields that hold one word of a few, and such a word."""
VALUES: dict[str, Any] = {
    **WORDS,
    "step_history": [{"step": 0}],
    "refined_blocks": [{"content": "x", "outer_step": 0}],
    "candidate_scores": [0.7, None],
    "retrieved_models": [{"model_name": "m", "example_code": "c"}],
    "config": {},
    **dict.fromkeys(("exit_code", "duration_seconds", "is_error", "was_improvement", "improved"), 0),
    **dict.fromkeys(("initial_score", "best_score", "total_duration_seconds"), 0.5),
    **dict.fromkeys(("score", "best_ensemble_score", "phase3", "total_cost_usd")),
    **dict.fromkeys(("solution", "initial_solution", "best_solution", "best_ensemble", "final_solution"), SCRIPT),
    **{key: [SCRIPT, SCRIPT] for key in ("candidate_solutions", "input_solutions")},
    **{key: ["x"] for key in ("ablation_summaries", "ensemble_plans", "variables")},
    **{key: [] for key in ("attempts", "ensemble_scores")},
}
"""What a field may hold that takes no text."""


def filled(model: type[BaseModel]) -> dict[str, Any]:
    return {name: VALUES.get(name, "x") for name, field in model.model_fields.items() if field.is_required()}


VALUES |= {"task": filled(m.TaskDescription), "phase1": filled(m.Phase1Result)}
VALUES["phase2_results"] = [filled(m.Phase2Result)]
RECORDS: list[type[BaseModel]] = [
    m.TaskDescription, m.SolutionScript, m.CodeBlock, m.RetrievedModel, m.RefinePlan, m.LeakageAnswer, m.Phase1Result,
    m.DataContaminationResult, m.EvaluationResult, m.Phase2Result, m.Phase3Result, m.PromptTemplate, m.AgentConfig,
    m.RefinementAttempt, m.EnsembleAttempt, m.InnerLoopResult, m.FinalResult,
]  # fmt: skip


@pytest.mark.req("REQ-DM-007", "REQ-DM-009", "REQ-DM-012", "REQ-DM-014", "REQ-DM-016", "REQ-DM-018", "REQ-DM-020")
@pytest.mark.req("REQ-DM-021", "REQ-DM-022", "REQ-DM-023", "REQ-DM-024", "REQ-DM-025", "REQ-DM-030", "REQ-DM-036")
@pytest.mark.req("REQ-DM-042", "REQ-DM-043")
@pytest.mark.parametrize("model", RECORDS)
def test_records_need_fields_and_survive_json(model: type[BaseModel]) -> None:
    complete = filled(model)
    made = model(**complete)
    optional = made.model_dump(mode="json", exclude={*complete, "created_at"})
    lines = [f"{name} is needed" for name in complete] + [f"{name}: {value!r}" for name, value in optional.items()]
    as_kept(f"models/{model.__name__}.txt", "\n".join(lines))
    assert model.model_validate_json(made.model_dump_json()) == made
    for name in complete:
        with pytest.raises(ValidationError) as refusal:
            model(**{key: value for key, value in complete.items() if key != name})
        assert refusal.value.errors()[0]["loc"] == (name,)
        for word in (complete[name].swapcase(), "", "maybe") if name in WORDS else ():
            with pytest.raises(ValidationError, match="should be"):
                model(**{**complete, name: word})


@pytest.mark.req("REQ-DM-009", "REQ-DM-010", "REQ-DM-012")
def test_a_script_is_dated_and_scored_later_and_the_first_occurrence_of_a_block_is_replaced_in_a_copy() -> None:
    before = datetime.now(timezone.utc)
    known: dict[str, Any] = {"phase": "merged", "source_model": "m", "is_executable": False}
    old = m.SolutionScript(content="a b a", **known)
    assert before <= old.created_at <= datetime.now(timezone.utc)
    old.score = 0.4
    new = old.replace_block("a", "c")
    assert (new.content, old.content) == ("c b a", "a b a")
    assert new.model_dump(exclude={"content"}) == old.model_dump(exclude={"content"})
    for missing in ("z", ""):
        with pytest.raises(ValueError, match="block"):
            old.replace_block(missing, "c")
    assert m.CodeBlock(content="").is_placeholder
    assert m.CodeBlock.model_validate({"content": "x", "category": "other"}).category is m.CodeBlockCategory.other


LISTS: list[tuple[type[BaseModel], str, dict[str, str]]] = [
    (m.RetrieverOutput, "models", {"model_name": "m", "example_code": "c"}),
    (m.ExtractorOutput, "plans", {"code_block": "b", "plan": "p"}),
    (m.LeakageDetectionOutput, "answers", {"leakage_status": "No Data Leakage", "code_block": "b"}),
]


@pytest.mark.req("REQ-DM-015", "REQ-DM-017", "REQ-DM-019")
@pytest.mark.parametrize(("model", "field", "entry"), LISTS)
def test_a_list_reply_has_one_field_and_is_not_empty(model: type[BaseModel], field: str, entry: dict[str, str]) -> None:
    assert [name for name in model.model_fields if name != "notes"] == [field]
    for empty, words in (({field: []}, "at least one"), ([], "at least one"), ({}, "required")):
        with pytest.raises(ValidationError, match=words):
            model.model_validate(empty)
    other = {**entry, list(entry)[-1]: "second"}
    wrapped = model.model_validate_json(json.dumps({field: [entry, other]}))
    assert wrapped == model.model_validate_json(json.dumps([entry, other]))
    assert wrapped.model_dump()[field] == [entry, other]
    ignored = model.model_validate({field: [{**entry, "more": 1}], "why": "because"})
    assert ignored.model_dump(exclude={"notes"}) == {field: [entry]}
    jsonschema.validate({field: [entry]}, model.model_json_schema())


@pytest.mark.req("REQ-DM-026")
def test_a_score_function_takes_a_script_and_a_task_at_once(task: m.TaskDescription) -> None:
    def named(solution: m.SolutionScript, task: m.TaskDescription) -> m.EvaluationResult:
        text = f"{solution.content} for {task.competition_id}"
        return m.EvaluationResult(stdout=text, stderr="", exit_code=0, duration_seconds=0, is_error=False)

    scorer: m.ScoreFunction = named
    assert isinstance(scorer, m.ScoreFunction) and not isinstance("no scorer", m.ScoreFunction)
    assert scorer(m.SolutionScript(content="a", phase=m.SolutionPhase.init), task).stdout == "a for sizes"
    assert not inspect.iscoroutinefunction(m.ScoreFunction.__call__)
    assert get_type_hints(m.ScoreFunction.__call__)["return"] is m.EvaluationResult


@pytest.mark.req("REQ-DM-028", "REQ-DM-029")
@pytest.mark.parametrize(("large", "small"), [(0.9, 0.8), (-1.0, -2.0), (1e-9, 0.0)])
def test_better_depends_on_the_direction_and_a_tie_is_only_as_good(large: float, small: float) -> None:
    for direction, new, old in ((m.MetricDirection.maximize, large, small), (m.MetricDirection.minimize, small, large)):
        for better in (m.is_improvement, m.is_improvement_or_equal):
            assert better(new, old, direction) and not better(old, new, direction)
            assert not better(float("nan"), old, direction)
        assert not m.is_improvement(new, new, direction)
        assert m.is_improvement_or_equal(new_score=new, old_score=new, direction=direction)


@pytest.mark.req("REQ-DM-031")
@given(st.text())
def test_a_template_is_filled_in_one_pass_with_what_was_declared_untouched(value: str) -> None:
    known: dict[str, Any] = {"agent_type": "init", "figure_ref": "Figure 10", "variables": ["x", "two words"]}
    template = m.PromptTemplate(**known, template="<{x}|{two words}|{not_declared} {{x}}>")
    for name in ("two words", "two_words"):
        text = template.render(x=value, **{name: "{x}"}, not_declared=1)
        assert text == f"<{value}|{{x}}|{{not_declared}} {{{value}}}>"
    with pytest.raises(KeyError, match="x"):
        template.render(two_words="x")


NUMBERS = (0.0, 1e-9, 0.123456, 9.995, 9.5, 59.6, 60.0, 119.6, 3599.7, 3600.0, 7384.0, 9999.6, 10_000.0, 1e12, 2e15)
STEPS = "phase1/candidate-0 phase1/merge-1 phase1 phase2 phase3 finalization views"
CALLS: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    (texts.score, [(None,), (math.nan,), (-math.inf,), (-12_345.6,), *((number,) for number in NUMBERS)]),
    (texts.duration, [(None,), (-1.0,), *((number,) for number in NUMBERS)]),
    (texts.figure, [(number,) for number in (-1e4, -9999.4, *NUMBERS)]),
    (texts.within, [(0.5, 0.4, 0.6), (5e4, 1e4, 2e5), (0.5, 0.5, 0.5), (0, -1e-3, 2e-3), (1, 0, math.inf)]),
    (texts.plural, [(0, "row"), (1, "class"), (2, "class"), (1000, "script")]),
    (texts.some_of, [([*"abc"],), ([*"abcde"],), ([*"ab"], 1)]),
    (texts.quoted, [("x" * 80,), ("x" * 81,)]),
    (texts.shorten, [("abcdef", 6), ("abcdefg", 6), ("abcdefgh", 5)]),
    (texts.printable, [("é",), ("a\n\tb\x1b\ud800",)]),
    (texts.storable, [({"\ud800": ["\ud83d", 1, None, {"a": "é"}]},)]),
    (texts.did_you_mean, [("Sed", ["seed", "model"]), ("xyz", ["seed", "model"])]),
    (texts.digest_of, [(), ("ab",), ("a", "b")]),
    (enums.phase_of, [("phase2/path-0",), ("probes/a",), ("",)]),
    (enums.kind_of_script, [(f"{step}/x",) for step in STEPS.split()]),
    (m.MetricDirection.of, [(None,), (True,), (False,)]),
]


def test_texts_and_numbers_are_shown_so() -> None:
    lines = [texts.printable("a\n\tb\r", keep="\n")]
    for function, calls in CALLS:
        lines += [f"{function.__qualname__}{given!r}: {function(*given)!r}" for given in calls]
    for change in (0.0, 0.0040449, -12_345.6):
        lines.append(m.ScoreChange(difference=change, error=0.00199, wins=0.5, rows=180).words)
    some, guess = {"low": 0.72, "high": 0.861}, {"rows": 2, "estimated": True}
    known: tuple[dict[str, Any], ...] = ({}, some, {**some, "rows": 1}, guess, {**guess, "views": 1})
    for more in known:
        measure = m.Measure(score=0.789, **more)
        lines.append(f"{more}: {measure} ({measure.basis})")
    for sandbox in ("none", "seccomp", "bubblewrap", "namespaces+seccomp"):
        lines.append(f"{sandbox}: {m.Isolation(sandbox=sandbox).strength}")
    as_kept("models/texts.txt", "\n".join(lines))


@pytest.mark.req("REQ-DM-036", "REQ-DM-037", "REQ-DM-038", "REQ-DM-040", "REQ-DM-049", "REQ-OR-006", "REQ-P1-001")
@pytest.mark.req("REQ-P1-003", "REQ-P1-008", "REQ-P1-013", "REQ-P2O-001", "REQ-P2O-008", "REQ-P2O-012", "REQ-P2O-014")
@pytest.mark.req("REQ-P2I-001", "REQ-P2I-008", "REQ-P3-001", "REQ-P3-010", "REQ-SF-001", "REQ-SF-011", "REQ-SF-015")
@pytest.mark.req("REQ-SF-016", "REQ-SF-024", "REQ-SF-032", "REQ-FN-010", "REQ-FN-026", "REQ-FN-029", "REQ-FN-048")
def test_agents_have_the_tools_and_schemas_of_their_duties_as_the_sdk_takes_them() -> None:
    lines, full = list[str](), m.build_default_agent_configs("full")
    for prompt in PromptRegistry():
        agent = m.AgentType(prompt.agent_type)
        config = m.agent_config(agent, prompt.variant)
        schema: Any = config.output_schema
        assert (config.agent_type, config.model) == (agent, None)
        kept = f"{config.tools}, in full {full[agent].tools}, {schema and schema.__name__}: {config.description}"
        lines.append(f"{prompt.name}: {kept}")
        if schema is None:
            with pytest.raises(ValueError, match=agent.value):
                config.to_output_format()
        else:
            assert config.to_output_format() == {"type": "json_schema", "schema": schema.model_json_schema()}
            assert json.loads(config.model_dump_json())["output_schema"] == schema.__name__
    as_kept("models/agents.txt", "\n".join(lines))
    given: dict[str, Any] = {"system_prompt": "mine", "tools": ["Read"], "model": "opus", "description": "so"}
    for agent, config in m.build_default_agent_configs().items():
        assert m.agent_config(agent) == config, "no variant has changed it"
        known = {"prompt": PromptRegistry().get(agent).template, "model": None}
        default = m.AgentConfig(agent_type=agent).to_agent_definition()
        assert default == {**known, "tools": config.tools or [], "description": config.description}
        own = m.AgentConfig(agent_type=agent, **given).to_agent_definition()
        assert own == {"description": "so", "prompt": "mine", "tools": ["Read"], "model": "opus"}
        for odd in (None, 3, agent.value, {}, *({"agent_type": one} for one in (None, [agent], "poet"))):
            with pytest.raises(ValidationError, match=r"should be|required"):
                m.AgentConfig.model_validate(odd)
        with pytest.raises(ValidationError, match="should be"):
            m.AgentConfig(agent_type=agent, model="gpt")


@pytest.mark.req("REQ-DM-039", "REQ-DM-045", "REQ-DM-048")
def test_every_type_is_in_one_module_of_pydantic_2_and_frozen_but_for_the_script(task: m.TaskDescription) -> None:
    offered = [getattr(mle_star, name) for name in {*mle_star.__all__, *vars(m)} if hasattr(mle_star, name)]
    kinds = [kind for kind in offered if isinstance(kind, type) and issubclass(kind, BaseModel | Enum)]
    assert len(kinds) > 30 and {kind.__module__ for kind in kinds} == HOMES
    assert all(getattr(m, kind.__name__) is kind for kind in kinds) and int(pydantic.VERSION.split(".")[0]) >= 2
    classes = {kind for kind in vars(m).values() if isinstance(kind, type) and kind.__module__ in HOMES}
    models = {kind for kind in classes if issubclass(kind, BaseModel)}
    assert {kind for kind in classes - models if not issubclass(kind, Enum)} == {m.ScoreFunction}
    assert {model for model in models if not model.model_config.get("frozen")} == {m.SolutionScript}
    with pytest.raises(ValidationError, match="frozen"):
        task.description = "other"  # type: ignore[misc]
    assert task.model_copy(update={"description": "other"}).description == "other"


@pytest.mark.req("REQ-DM-041")
def test_reply_schemas_are_valid_and_of_the_form_the_sdk_wants() -> None:
    schemas = [model.model_json_schema() for model in SCHEMAS]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
    as_kept("models/schemas.txt", "\n".join(map(json.dumps, schemas)))


@pytest.mark.req("REQ-DM-044")
def test_models_with_large_texts_build_in_less_than_a_millisecond() -> None:
    code, plan = "x = 1\n" * 8500, "p" * 2000
    large: dict[str, Any] = {"content": code, "code_block": code, "example_code": code, "stdout": code, "plan": plan}
    known = {model: {**filled(model), **large} for model in RECORDS}
    known[m.FinalResult] = {
        **dict(m.FinalResult(**filled(m.FinalResult))),
        "final_solution": {**SCRIPT, "content": code},
    }
    known |= {m.RetrieverOutput: {"models": [known[m.RetrievedModel]]}, m.PipelineConfig: {}}
    for model, values in known.items():  # by a clock that sees waits; of many, one is left alone by a busy machine
        seconds = timeit.repeat(lambda: model(**values), number=1, repeat=200, timer=thread_time)  # noqa: B023
        assert min(seconds) < 0.001


@pytest.mark.req("REQ-DM-047")
def test_the_sources_keep_to_what_python_3_10_has() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):  # `make lint` looks for newer names, too
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.10"' in declared and "vermin --quiet --violations --target=3.10-" in MAKEFILE
    assert all(f"Python :: {version}" in declared for version in VERSIONS)


@pytest.mark.req("REQ-DM-047")
@pytest.mark.parametrize("version", VERSIONS if os.environ.get("MLE_STAR_SOAK") else [VERSIONS[0], VERSIONS[-1]])
def test_the_models_pass_the_type_check_of_every_supported_python(version: str, tmp_path: Path) -> None:
    # What differs between versions is the standard library; following Pydantic's imports would cost ten seconds each.
    options = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", "--python-version", version, *options, str(SOURCE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.req("REQ-DM-014", "REQ-DM-050")
def test_the_module_imports_the_standard_library_and_pydantic_only_and_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(SOURCE), run_name="models_again")
    for home in HOMES:
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[home]))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            others = [name for name in names if not name.startswith(("mle_star.models", "mle_star.agents"))]
            assert {name.split(".")[0] for name in others} <= {*sys.stdlib_module_names, "pydantic"}
