"""Every point that the specification wants in a prompt, looked up in the rendered text."""

from __future__ import annotations

import pytest

from mle_star.method.scores import parse_ablation_lines
from mle_star.models import AgentType, MetricDirection
from mle_star.prompts import BLOCK_NOT_FOUND, PromptRegistry, render
from tests.prompt_samples import NAMES, SAMPLES, SCRIPT, TRACEBACK, parts, sample, says

PERSONA = "Kaggle grandmaster"
SCORE_LINE = r"print[^.]*`Final Validation Performance: \{final_validation_score\}`"
ONE_BLOCK = r"single Markdown code block"
NOTHING_ELSE = r"No headings and no text around it"
NO_EXIT = r"Never call `exit\(\)`"
NO_MASKING = r"No `try`/`except` that hides an error"
INPUT = r"data is ready in `\./input/`"
CAP = r"more than 30000 training samples, you must subsample to 30000"


def variables(agent: AgentType, variant: str | None = None) -> list[str]:
    return PromptRegistry().get(agent, variant).variables


# --- Phase 1 ---------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-P1-002", "REQ-P1-043")
def test_the_retriever_is_asked_for_models_with_code() -> None:
    assert variables(AgentType.retriever) == ["task_description", "M"]
    text = sample("retriever", M=7)
    assert parts(text)["Task description"] == SAMPLES["task_description"]
    says(text, r"recent, effective models", r"list 7 of them", r"short and simple", r"code is compulsory")
    says(text, r"link to a repository or to a paper does not count")
    says(parts(text)["Answer"], r"JSON", r'"models"', r'"model_name"', r'"example_code"', r"7 entries")


@pytest.mark.req("REQ-P1-009", "REQ-P1-044")
def test_init_is_asked_for_a_simple_script_around_one_model() -> None:
    assert variables(AgentType.init) == ["task_description", "model_name", "example_code"]
    text = sample("init")
    found = parts(text)
    assert found["Task description"] == SAMPLES["task_description"]
    assert found["Model"] == "LightGBM"
    assert found["Example code"] == SAMPLES["example_code"]
    says(text, PERSONA, r"built on the given model", r"no ensembling", r"no hyperparameter search", INPUT)
    says(text, r"PyTorch rather than TensorFlow", r"CUDA", CAP, SCORE_LINE, ONE_BLOCK, NO_EXIT, NO_MASKING)


@pytest.mark.req("REQ-P1-009")
def test_init_names_the_metric_its_direction_and_a_fixed_hold_out() -> None:
    text = sample("init", metric="rmse", direction=MetricDirection.minimize)
    says(parts(text)["Metric"], r"- name: `rmse`", r"- direction: `minimize` \(lower is better\)", r"Use exactly this")
    says(text, r"sensible evaluation metric", r"80/20 split with a fixed seed", r"`\./final/submission\.csv`")
    bare = sample("init", optional=False)
    says(parts(bare)["Metric"], r"metric that the task names", r"propose a sensible evaluation metric")


@pytest.mark.req("REQ-P1-009")
@pytest.mark.parametrize("name", ["init", "merger", "coder", "debugger"])
def test_the_cap_on_training_rows_is_the_configured_one(name: str) -> None:
    says(sample(name, optional=False), CAP)
    for change in ({"subsample_limit": 500}, {"subsample_instruction": "you must subsample to 500 for a faster run."}):
        text = sample(name, **change)
        says(text, r"subsample to 500 for a faster run")
        assert "30000" not in text
    assert "must subsample" not in sample(name, subsample_instruction="")


@pytest.mark.req("REQ-P1-014", "REQ-P1-045")
def test_the_merger_integrates_the_reference_into_the_base() -> None:
    assert variables(AgentType.merger) == ["base_code", "reference_code"]
    text = sample("merger")
    assert parts(text)["Base solution"] == "base = 1"
    assert parts(text)["Reference solution"] == "reference = 2"
    says(text, PERSONA, r"integrate the reference solution into it", r"base solution remains the code base")
    says(
        text, r"additionally train the reference solution's model", r"group like functionality", r"ensemble the models"
    )
    says(text, r"design simple", SCORE_LINE, ONE_BLOCK, INPUT, CAP, NO_EXIT, NO_MASKING)
    says(text, r"`\./final/submission\.csv`")


# --- safety ----------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-SF-002")
def test_the_debugger_repairs_and_returns_the_whole_script() -> None:
    assert variables(AgentType.debugger) == ["code", "bug"]
    text = sample("debugger")
    assert parts(text)["Script"] == SCRIPT
    assert parts(text)["Error"] == TRACEBACK
    says(text, r"fix the error", r"subsampling", r"one self-contained Python file", NOTHING_ELSE, INPUT, SCORE_LINE)
    says(text, ONE_BLOCK, NO_EXIT, CAP)


@pytest.mark.req("REQ-SF-009")
def test_the_debugger_keeps_subsampling() -> None:
    assert "Do not remove subsampling if exists." in sample("debugger")


@pytest.mark.req("REQ-SF-044")
@pytest.mark.parametrize("name", ["debugger", "debugger_submission", "debugger_ablation"])
def test_the_debugger_adds_nothing(name: str) -> None:
    text = sample(name)
    assert "revise the code to fix the error" in text
    says(text, r"add no models, no features and no steps")


def test_scripts_without_a_validation_score_are_repaired_without_asking_for_one() -> None:
    for name in ("debugger_submission", "debugger_ablation"):
        assert "Final Validation Performance" not in sample(name)
        assert "must subsample" not in sample(name)
    says(sample("debugger_submission"), r"`\./final/submission\.csv`", r"without dropping a row")
    says(sample("debugger_ablation"), r"`Ablation <name>: <score>`", r"no test data")


@pytest.mark.req("REQ-SF-012")
def test_leakage_detection_wants_the_block_and_a_verdict() -> None:
    assert variables(AgentType.leakage, "detection") == ["code"]
    text = sample("leakage_detection")
    assert parts(text)["Script"] == SCRIPT
    says(text, r"preprocesses the data.* quote it verbatim", r"fitted on training samples only")
    says(
        text, r"validation samples influence training .* before the score is printed", r"whether there is data leakage"
    )
    says(parts(text)["Answer"], r"JSON", r'"leakage_status"', r'"code_block"', r"Yes Data Leakage", r"No Data Leakage")


@pytest.mark.req("REQ-SF-017")
def test_leakage_correction_sees_the_whole_script_and_rewrites_a_block() -> None:
    assert variables(AgentType.leakage, "correction") == ["code"]
    text = sample("leakage_correction")
    assert parts(text)["Script"] == SCRIPT
    assert parts(text)["Flagged block"] == SAMPLES["flagged_block"]
    assert "Flagged block" not in sample("leakage_correction", flagged_block=None)
    says(text, r"train on training samples only", r"validation samples out of training until the score is printed")
    says(
        text, r"rewrite the leaking block", r"no data leakage", ONE_BLOCK, r"variables .* exist already, defined above"
    )


@pytest.mark.req("REQ-SF-045")
def test_leakage_correction_touches_only_its_block() -> None:
    text = sample("leakage_correction")
    assert "Just modify it with the above code" in text
    says(text, r"leave the rest of the script alone", r"corrected block alone")


@pytest.mark.req("REQ-SF-025")
def test_the_data_agent_looks_for_what_is_ignored() -> None:
    assert variables(AgentType.data) == ["initial solution", "task description"]
    text = sample("data")
    assert parts(text)["Python solution"] == SCRIPT
    assert parts(text)["Task description"] == SAMPLES["task description"]
    says(text, r"supplied but that the script ignores", r"use it", r"hints on how the files are to be parsed")
    says(text, r"no detour", SCORE_LINE, ONE_BLOCK)
    assert "All the provided information is used." in parts(text)["Answer"]


@pytest.mark.req("REQ-SF-029", "REQ-SF-046")
def test_the_data_agent_hides_no_errors() -> None:
    text = sample("data")
    assert "DO NOT USE TRY AND EXCEPT; just occur error so we can debug it!" in text
    says(text, r"no fallback, no made-up values")


# --- Phase 2 ---------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-P2O-002")
def test_the_ablation_agent_sees_the_solution_and_what_was_studied() -> None:
    assert variables(AgentType.ablation) == ["solution_script", "previous_ablations"]
    text = sample("ablation")
    assert parts(text)["Python solution"] == SCRIPT
    says(text, PERSONA, r"## Study 1 ```text The scaler hardly matters\.", r"## Study 2 ```text The encoder")
    says(text, r"print the performance of each run", r"print which part contributes most", NOTHING_ELSE)
    says(parts(text)["Answer"], ONE_BLOCK, r"printing statements included")
    first = sample("ablation", previous_ablations=[])
    assert "Previous ablation studies" not in first
    assert "Study 1" not in first


@pytest.mark.req("REQ-P2O-005")
def test_the_ablation_varies_two_or_three_parts() -> None:
    says(sample("ablation"), r"variations of it in which 2-3 parts are modified or disabled")


@pytest.mark.req("REQ-P2O-006")
def test_the_ablation_turns_to_parts_not_yet_considered() -> None:
    says(sample("ablation"), r"concentrate on parts that no previous study has considered")


@pytest.mark.req("REQ-P2O-007", "REQ-P2O-042")
def test_the_ablation_stays_on_validation_data_and_on_its_own() -> None:
    says(sample("ablation"), r"evaluates on the validation set only", r"must not load test data", r"self-contained")
    says(sample("ablation"), r"import nothing from it")


def test_the_ablation_prints_lines_that_we_can_read() -> None:
    says(sample("ablation"), r"`Ablation <name>: <score>`, the baseline first and called `baseline`")
    form = "Ablation <name>: <score>".replace("<name>", "baseline").replace("<score>", "0.5")
    assert parse_ablation_lines(form) == {"baseline": 0.5}


@pytest.mark.req("REQ-P2O-009")
def test_the_summary_is_made_from_code_and_output() -> None:
    assert variables(AgentType.summarize) == ["ablation_code", "raw_result"]
    text = sample("summarize")
    assert parts(text)["Ablation code"] == SAMPLES["ablation_code"]
    assert parts(text)["Printed output"] == SAMPLES["raw_result"]
    says(text, r"from the code and from what it printed, summarize", r"most impact", r"least")


@pytest.mark.req("REQ-P2O-013")
def test_the_extractor_chooses_a_block_and_plans() -> None:
    assert variables(AgentType.extractor) == ["solution_script", "ablation_summary", "previous_code_blocks"]
    text = sample("extractor", note=None)
    found = parts(text)
    assert found["Python solution"] == SCRIPT
    assert found["Ablation summary"] == SAMPLES["ablation_summary"]
    says(text, PERSONA, r"extract .* code block", r"better performance", r"## Block 1 ```python scaler = Standard")
    says(text, r"effective plan to improve it, in 3-5 sentences", r"avoid plans .*hyperparameter search over a large")
    says(text, r"not improved before", r"exactly as it stands in the Python script")
    says(found["Answer"], r"list\[Refine_Plan\]", r"Refine_Plan = \{'code_block': str, 'plan': str\}", r'\{"plans": \[')
    first = sample("extractor", previous_code_blocks=[], note=None)
    assert "Code blocks improved before" not in first
    assert "# Note" not in first


@pytest.mark.req("REQ-P2O-018")
def test_the_extractor_is_told_when_its_block_was_not_found() -> None:
    assert parts(sample("extractor", note=BLOCK_NOT_FOUND))["Note"] == (
        "The previously extracted code block was not found in the solution. "
        "Please extract the code block exactly as it appears in the script."
    )


@pytest.mark.req("REQ-P2I-002")
def test_the_coder_implements_the_plan_on_the_block() -> None:
    assert variables(AgentType.coder) == ["code_block", "plan"]
    text = sample("coder")
    assert parts(text)["Code block"] == SAMPLES["code_block"]
    assert parts(text)["Plan"] == SAMPLES["plan"]
    says(text, PERSONA, r"refine the code block .* for better performance", r"implement the improvement plan")
    says(parts(text)["Answer"], ONE_BLOCK, r"the improved code block", NOTHING_ELSE)


@pytest.mark.req("REQ-P2I-006")
def test_the_coder_keeps_subsampling() -> None:
    assert "Do not remove subsampling if exists." in sample("coder")


@pytest.mark.req("REQ-P2I-007")
def test_the_coder_invents_no_variables() -> None:
    says(sample("coder"), r"every variable it uses, the real data included, is defined earlier", r"dummy variables")


@pytest.mark.req("REQ-P2I-009")
def test_the_planner_learns_from_what_was_tried() -> None:
    assert variables(AgentType.planner) == ["code_block", "plans", "scores"]
    text = sample("planner")
    assert parts(text)["Code block"] == SAMPLES["code_block"]
    says(text, PERSONA, r"improved, for better performance", r"## Plan: plan A ## Score: 0.82 ## Plan: plan B")
    says(text, r"better than those tried, novel and effective", r"receive a higher score")
    says(parts(text)["Answer"], r"brief outline .* natural language \(3-5 sentences\)", r"no headings")


@pytest.mark.req("REQ-P2I-014")
def test_the_planner_must_be_novel() -> None:
    says(sample("planner"), r"novel", r"must differ from all previous plans")


@pytest.mark.req("REQ-P2I-015")
def test_the_planner_avoids_long_runs() -> None:
    says(
        sample("planner"),
        r"avoid plans that make the script run much longer, such as a hyperparameter search over a very",
    )


@pytest.mark.req("REQ-P2I-009", "REQ-P3-002")
@pytest.mark.parametrize("name", ["planner", "ens_planner"])
def test_a_better_score_follows_the_direction_of_the_metric(name: str) -> None:
    assert "a higher score" in sample(name, direction=MetricDirection.maximize)
    assert "a lower score" in sample(name, direction=MetricDirection.minimize)
    says(sample(name, optional=False), r"higher \(or, .*lower\) score")


# --- Phase 3 ---------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-P3-002", "REQ-P3-046", "REQ-P3-003")
def test_the_ensemble_planner_sees_everything_and_plans_the_merging() -> None:
    assert variables(AgentType.ens_planner) == ["L", "solutions", "plans", "scores"]
    text = sample("ens_planner")
    found = parts(text)
    assert found["1st Python Solution"] == SAMPLES["solutions"][0]
    assert found["2nd Python Solution"] == SAMPLES["solutions"][1]
    says(text, PERSONA, r"2 Python Solutions below are to be ensembled, for better performance")
    says(text, r"easy to implement, novel and effective", r"receive a higher score")
    says(text, r"leaves the original solutions largely as they are", r"execution error")
    says(found["Answer"], r"outline .* natural language", r"no headings")


@pytest.mark.req("REQ-P3-004")
def test_the_first_ensemble_plan_has_no_history() -> None:
    text = sample("ens_planner", plans=[], scores=[])
    assert "Ensemble plans you have tried" not in text
    assert "Plan:" not in text
    assert "Score:" not in text


@pytest.mark.req("REQ-P3-005")
def test_later_ensemble_plans_see_the_whole_history() -> None:
    text = render(AgentType.ens_planner, L=2, solutions=["a", "b"], plans=["e0", "e1"], scores=[0.9, None])
    history = "# Ensemble plans you have tried\n\n## Plan: e0\n## Score: 0.9\n\n## Plan: e1\n"
    assert f"{history}## Score: N/A (evaluation failed)\n" in text


@pytest.mark.req("REQ-P3-007")
def test_ensemble_plans_differ() -> None:
    says(sample("ens_planner"), r"must differ from all previous plans")


@pytest.mark.req("REQ-P3-008")
def test_ensemble_plans_are_about_merging() -> None:
    says(sample("ens_planner"), r"concentrate on the merging", r"hyperparameters, are not the point")


@pytest.mark.req("REQ-P3-006")
def test_an_ensemble_plan_is_wanted_as_an_outline() -> None:
    says(parts(sample("ens_planner"))["Answer"], r"outline of the plan in natural language", r"no code")


@pytest.mark.req("REQ-P3-011", "REQ-P3-047", "REQ-P3-048")
def test_the_ensembler_writes_one_full_program() -> None:
    assert variables(AgentType.ensembler) == ["L", "solutions", "plan"]
    text = sample("ensembler")
    found = parts(text)
    assert found["1st Python Solution"] == SAMPLES["solutions"][0]
    assert found["2nd Python Solution"] == SAMPLES["solutions"][1]
    assert found["Ensemble plan"] == SAMPLES["plan"]
    says(text, PERSONA, r"ensemble the 2 Python Solutions .* better performance, following the ensemble plan")
    says(
        text, r"implement the ensemble plan", r"original solutions largely as they are, except where the ensemble plan"
    )
    says(text, INPUT, r"unzip nothing", r"do not load submissions", r"hold-out validation set")
    says(found["Answer"], ONE_BLOCK, r"self-contained Python file that runs as it is", NOTHING_ELSE)


@pytest.mark.req("REQ-P3-014")
def test_the_ensembler_does_not_subsample() -> None:
    text = sample("ensembler")
    says(text, r"full new solution", r"do not subsample", r"do not introduce dummy variables")
    assert "must subsample" not in text


@pytest.mark.req("REQ-P3-015")
def test_the_ensembler_writes_a_submission() -> None:
    says(sample("ensembler"), r"must also write `\./final/submission\.csv`", r"every test sample")


@pytest.mark.req("REQ-P3-049")
@pytest.mark.parametrize("name", ["init", "merger", "ensembler", "debugger", "data"])
def test_scripts_are_asked_for_the_score_line(name: str) -> None:
    says(sample(name), SCORE_LINE, r"bare number")


# --- finalization ----------------------------------------------------------------------------------------


@pytest.mark.req("REQ-FN-001")
def test_the_subsampling_block_is_to_be_quoted() -> None:
    assert variables(AgentType.test, "subsampling_extract") == ["final solution"]
    text = sample("test_subsampling_extract")
    assert parts(text)["Python solution"] == SCRIPT
    says(text, r"block that subsamples the training rows", r"exactly as it stands in the script", ONE_BLOCK)
    says(text, r"does not subsample, reply with the sentence")


@pytest.mark.req("REQ-FN-004")
def test_subsampling_is_to_be_dropped_from_the_block() -> None:
    assert variables(AgentType.test, "subsampling_remove") == ["code block with subsampling"]
    text = sample("test_subsampling_remove")
    assert parts(text)["Code block"] == SAMPLES["code block with subsampling"]
    says(text, r"drop the subsampling", r"all training rows", r"dummy variables: the real ones are defined earlier")
    says(text, ONE_BLOCK)


@pytest.mark.req("REQ-FN-011")
def test_the_test_agent_gets_all_eleven_points() -> None:
    assert variables(AgentType.test) == ["task description", "final solution"]
    text = sample("test")
    assert parts(text)["Task description"] == SAMPLES["task description"]
    assert parts(text)["Python solution"] == SCRIPT
    says(text, r"one self-contained Python file", NOTHING_ELSE, ONE_BLOCK, NO_EXIT)
    says(text, r"no `try:`/`except:` and no `if`/`else` that covers up unexpected behaviour")


@pytest.mark.req("REQ-FN-014")
def test_the_test_script_changes_as_little_as_possible() -> None:
    says(sample("test"), r"change the script as little as possible")


@pytest.mark.req("REQ-FN-015")
def test_the_test_script_may_train_on_everything() -> None:
    text = sample("test")
    assert "you can even use the full training set" in text
    says(text, r"test samples take the place of the validation samples")


@pytest.mark.req("REQ-FN-016")
def test_the_test_data_is_in_the_input_folder() -> None:
    says(sample("test"), r"read the test samples", r"test samples included, is in `\./input/` and already unpacked")


@pytest.mark.req("REQ-FN-017", "REQ-FN-045")
def test_the_path_of_the_submission_is_fixed_and_repeated() -> None:
    text = sample("test")
    says(text, r"`submission\.csv` in the folder `\./final/`", r"only if `\./final/submission\.csv` is there")


@pytest.mark.req("REQ-FN-018")
def test_every_test_sample_gets_a_prediction() -> None:
    says(sample("test"), r"every test sample gets a prediction; none is dropped")


@pytest.mark.req("REQ-FN-027")
def test_contamination_is_scored_in_one_word() -> None:
    assert variables(AgentType.test, "contamination") == ["reference discussion", "final solution"]
    text = sample("test_contamination")
    assert parts(text)["Reference discussion"] == SAMPLES["reference discussion"]
    assert parts(text)["Python solution"] == SCRIPT
    says(text, r"merely a copy", r"clearly different and new: .*`Novel`", r"too close .*`Same`")
    says(parts(text)["Answer"], r"nothing but one of these two words")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "summarize"])
def test_the_persona_is_in_every_prompt_that_wants_it(name: str) -> None:
    assert PERSONA in parts(sample(name))[""]
