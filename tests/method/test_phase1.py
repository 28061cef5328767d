"""Phase 1: retrieval, candidates, ranking, merges and the checks after them, with real scripts in the real harness."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import logging
from pathlib import Path
from typing import Any, get_args

import pytest

from mle_star import phase1
from mle_star.errors import AgentError, AgentFailure, BudgetExceeded, Phase1Error
from mle_star.execution import LocalExecutor, evaluate_solution
from mle_star.models import (
    AgentConfig,
    AgentType,
    ExecutionRawResult,
    MetricDirection,
    Phase1Result,
    PipelineConfig,
    RetrievedModel,
    RetrieverNotes,
    RetrieverOutput,
    SolutionPhase,
    TaskDescription,
    build_default_agent_configs,
)
from mle_star.phase1 import (
    find_models,
    generate_candidate,
    merge_solutions,
    parse_retriever_output,
    retrieve_models,
    run_phase1,
)
from mle_star.run.context import Executor, ScriptRequest
from mle_star.run.events import (
    CandidateEvaluated,
    DataUsageChecked,
    MergeTried,
    ModelsRetrieved,
    Notice,
    SubmissionKept,
)
from tests.ledgers import best_score
from tests.method.conftest import (
    GARBAGE,
    NO_LEAKAGE,
    ScriptedCall,
    ScriptedExecutor,
    ScriptedRun,
    broken_script,
    fenced,
    leaky,
    models,
    script,
    scripted_run,
    settings,
    solution,
)
from tests.method.loops import CheckedFirst, measured

pytestmark = pytest.mark.modes("usual", "letter")

MODEL = RetrievedModel(model_name="TabPFN v2", example_code="alpha({'depth': 3})")


def by_model(**codes: str) -> Any:
    """An init agent that writes the script of the model it is asked for; candidates are asked for side by side."""

    def reply(call: ScriptedCall) -> str:
        name = call.prompt.split("# Model\n\n")[1].split("\n")[0]
        return str(fenced(codes[name]))

    return reply


def scored(*scores: float) -> dict[str, str]:
    """One script for each of the models m0, m1, ..."""
    return {f"m{i}": script(score, note=f"m{i}") for i, score in enumerate(scores)}


def stage(run: ScriptedRun, *scores: float, merges: tuple[float, ...] = ()) -> PipelineConfig:
    """Candidates and merges with these scores; the configuration that asks for as many."""
    run.agents.always("retriever", models(*(f"m{i}" for i in range(len(scores)))))
    run.agents.always("init", by_model(**scored(*scores)))
    run.agents.reply("merger", *(fenced(script(score, note=f"merge {i}")) for i, score in enumerate(merges, 1)))
    return settings(M=len(scores))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


# --- retrieval -------------------------------------------------------------------------------------------


@pytest.mark.req("REQ-P1-003", "REQ-P1-007")
async def test_models_are_asked_for_with_web_tools_and_a_schema(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("retriever", models("alpha", "beta", "gamma"))
    found = await retrieve_models(quick_run.task, settings(M=3))
    assert [model.model_name for model in found] == ["alpha", "beta", "gamma"]
    [call] = quick_run.agents.log
    assert call.config.tools == ["WebSearch", "WebFetch"]
    schema = RetrieverNotes if "research" in quick_run.config.briefing else RetrieverOutput
    assert call.config.to_output_format() == {"type": "json_schema", "schema": schema.model_json_schema()}
    assert quick_run.task.description in call.prompt and "list 3 of them" in call.prompt
    assert [event.names for event in quick_run.events(ModelsRetrieved)] == [["alpha", "beta", "gamma"]]


@pytest.mark.modes("usual")
@pytest.mark.parametrize(
    "reply",
    [
        "I know no models.",
        {"models": [{"model_name": "", "example_code": "x"}]},
        *(AgentError("no", agent="retriever", reason=reason) for reason in get_args(AgentFailure) if reason != "auth"),
    ],
    ids=str,
)
async def test_a_retriever_that_gives_nothing_usable_is_replaced_by_what_everybody_knows(
    quick_run: ScriptedRun, reply: str | dict[str, Any] | AgentError
) -> None:
    quick_run.agents.always("retriever", reply)
    found = await find_models(quick_run.task, settings(M=2))
    assert len(found) == 2 and all("sklearn" in model.example_code for model in found)
    names = [model.model_name for model in found]
    assert [event.names for event in quick_run.events(ModelsRetrieved)] == [names]
    assert "the retriever gave nothing usable" in quick_run.events(Notice)[-1].message
    with pytest.raises((ValueError, AgentError)):
        await find_models(quick_run.task, settings(M=2, briefing=()))
    quick_run.agents.always("retriever", AgentError("refused", agent="retriever", reason="auth"))
    with pytest.raises(AgentError, match="refused"):
        await find_models(quick_run.task, settings(M=2))


@pytest.mark.req("REQ-P1-003", "REQ-P1-004")
def test_a_reply_is_parsed_as_an_object_or_as_a_bare_list() -> None:
    entries = models("alpha")["models"]
    assert parse_retriever_output(json.dumps({"models": entries})).models[0].model_name == "alpha"
    assert parse_retriever_output(json.dumps(entries)).models[0].example_code == "alpha()"


@pytest.mark.req("REQ-P1-004", "REQ-DM-015")
@pytest.mark.parametrize(
    ("notes", "text"),
    [
        ("a post", "a post"),
        (None, ""),
        (["a post", "a paper"], "a post\na paper"),
        ({"post": ["ratios"]}, '{"post": ["ratios"]}'),
        (7, "7"),
    ],
)
def test_notes_of_any_form_refuse_no_models(notes: object, text: str) -> None:
    answer = parse_retriever_output(json.dumps({**models("alpha"), "notes": notes}))
    assert (answer.notes, answer.models[0].model_name) == (text, "alpha")


@pytest.mark.req("REQ-P1-004")
@pytest.mark.parametrize("reply", ["{broken" + "x" * 2000, '{"models": [{"model_name": 1}]}', '{"models": []}', ""])
def test_a_reply_that_cannot_be_read_is_quoted(reply: str) -> None:
    with pytest.raises(ValueError, match="cannot be used") as caught:
        parse_retriever_output(reply)
    message = str(caught.value)
    assert message.endswith(reply[:500]) and len(message) < 700


@pytest.mark.req("REQ-P1-005")
async def test_fewer_models_than_wanted_are_enough(quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    quick_run.agents.reply("retriever", models("alpha", "beta", "gamma"))
    assert len(await retrieve_models(quick_run.task, settings(M=4))) == 3
    assert any("3 models instead of 4" in line for line in warnings_of(caplog))


@pytest.mark.req("REQ-P1-005")
async def test_more_models_than_wanted_are_cut(quick_run: ScriptedRun) -> None:
    quick_run.agents.reply("retriever", models(*"abcdef"))
    assert [model.model_name for model in await retrieve_models(quick_run.task, settings(M=4))] == list("abcd")


@pytest.mark.req("REQ-P1-006")
async def test_models_without_name_or_code_and_repeated_ones_are_left_out(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [("alpha", "a()"), (" ", "b()"), ("gamma", " \n"), ("ALPHA ", "c()"), ("delta", "d()")]
    reply = {"models": [{"model_name": name, "example_code": code} for name, code in entries]}
    quick_run.agents.reply("retriever", reply)
    found = await retrieve_models(quick_run.task, settings(M=2))
    assert [(model.model_name, model.example_code) for model in found] == [("alpha", "a()"), ("delta", "d()")]
    assert len(warnings_of(caplog)) == 3


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P1-005", "REQ-P1-006")
async def test_no_usable_model_at_all_is_an_error(quick_run: ScriptedRun) -> None:
    quick_run.agents.always("retriever", {"models": [{"model_name": "", "example_code": "x"}]})
    with pytest.raises(ValueError, match=r"^A_retriever returned zero models$"):
        await retrieve_models(quick_run.task, quick_run.config)
    assert quick_run.agents.names == ["retriever", "retriever"], "one bad reply is forgiven, two are not"


@pytest.mark.modes("usual")
@pytest.mark.parametrize("bad", [GARBAGE, "", {"models": []}, AgentError("down", agent="retriever")])
async def test_one_bad_reply_of_the_retriever_is_forgiven(quick_run: ScriptedRun, bad: object) -> None:
    quick_run.agents.reply("retriever", bad)
    result = await run_phase1(quick_run.task, quick_run.config)
    assert quick_run.agents.names[:3] == ["retriever", "retriever", "init"] and len(result.retrieved_models) == 2


# --- init and merger -------------------------------------------------------------------------------------


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P1-010", "REQ-P1-012")
async def test_a_candidate_carries_its_model(run: ScriptedRun) -> None:
    run.agents.reply("init", fenced(script(0.5)))
    candidate = await generate_candidate(run.task, MODEL, run.config)
    assert candidate.content == script(0.5) and "```" not in candidate.content
    assert (candidate.phase, candidate.source_model) == (SolutionPhase.init, "TabPFN v2")
    assert candidate.score is None and candidate.is_executable
    assert run.agents.log[0].config.tools == ["Read"]


@pytest.mark.req("REQ-P1-009", "REQ-P1-044")
async def test_the_init_prompt_names_task_model_metric_and_cap(run: ScriptedRun) -> None:
    await generate_candidate(run.task, MODEL, settings(subsample_limit=77))
    prompt = run.agents.log[0].prompt
    for words in (run.task.description, "TabPFN v2", MODEL.example_code, "`accuracy`", "`maximize`", "subsample to 77",
                  "fixed seed", "CUDA", "PyTorch", "./input/", "Final Validation Performance", "exit()", "grandmaster",
                  "single Markdown code block", "no ensembling", "No `try`/`except`", "evaluation metric"):  # fmt: skip
        assert words in prompt, words


@pytest.mark.req("REQ-P1-011", "REQ-P1-016")
async def test_the_longest_block_is_the_script_and_prose_is_none(run: ScriptedRun) -> None:
    two = f"{fenced('a = 1')}\nand\n{fenced(script(0.5))}"
    run.agents.reply("init", two, script(0.6), GARBAGE)
    contents = [(await generate_candidate(run.task, MODEL, run.config)) for _ in range(3)]
    assert [c.content for c in contents] == [script(0.5), script(0.6), ""]
    assert [c.is_executable for c in contents] == [True, True, False]
    run.agents.reply("merger", two, script(0.6), GARBAGE)
    merged = [await merge_solutions(contents[0], contents[1], run.config) for _ in range(3)]
    assert [m.content for m in merged] == [script(0.5), script(0.6), ""]


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P1-014", "REQ-P1-015", "REQ-P1-017", "REQ-P1-045")
async def test_a_merge_works_the_reference_into_the_base(run: ScriptedRun) -> None:
    base, reference = solution("base = {1}", score=0.5), solution("reference = {2}", score=0.4)
    merged = await merge_solutions(base, reference, settings(subsample_limit=77))
    await merge_solutions(reference, base, settings(subsample_limit=77))
    forth, back = (call.prompt for call in run.agents.log)
    assert forth != back and forth.index("base = {1}") < forth.index("reference = {2}")
    assert "subsample to 77" in forth and "grandmaster" in forth and "Ensemble the models" in forth
    assert (merged.phase, merged.score, merged.is_executable, merged.source_model) == ("merged", None, True, None)
    assert merged.content and run.agents.log[0].config.tools == ["Read"]


# --- Algorithm 1 -----------------------------------------------------------------------------------------


@pytest.mark.req("REQ-P1-018", "REQ-P1-019", "REQ-P1-032", "REQ-P1-041")
async def test_the_whole_phase_follows_algorithm_1(run: ScriptedRun) -> None:
    config = stage(run, 0.7, 0.9, 0.8, 0.6, merges=(0.91, 0.95, 0.92))
    result = await run_phase1(run.task, config)
    assert [model.model_name for model in result.retrieved_models] == ["m0", "m1", "m2", "m3"]
    assert result.candidate_scores == [0.7, 0.9, 0.8, 0.6] == [s.score for s in result.candidate_solutions]
    assert result.initial_score == 0.95 == result.initial_solution.score
    assert result.initial_solution.content == script(0.95, note="merge 2")
    assert result.merge_attempts == [
        {"source_model": "m2", "score": 0.91, "accepted": True, "reason": ""},
        {"source_model": "m0", "score": 0.95, "accepted": True, "reason": ""},
        {"source_model": "m3", "score": 0.92, "accepted": False, "reason": "0.92 does not reach 0.95"},
    ]
    assert run.agents.names[0] == "retriever" and run.agents.names.count("retriever") == 1
    assert run.agents.names[9:] == [*["merger", "leakage-detection"] * 3, "data", "leakage-detection"]
    assert [call.step for call in run.agents.log if call.step.startswith("phase1/candidate-1")] == [
        "phase1/candidate-1/init", "phase1/candidate-1/leakage-detection"
    ]  # fmt: skip
    assert sorted((e.index, e.model_name, e.score) for e in run.events(CandidateEvaluated)) == [
        (0, "m0", 0.7), (1, "m1", 0.9), (2, "m2", 0.8), (3, "m3", 0.6)
    ]  # fmt: skip


@pytest.mark.req("REQ-P1-020", "REQ-SF-007")
async def test_each_repair_of_a_candidate_starts_from_the_one_before(quick_run: ScriptedRun) -> None:
    config = stage(quick_run, 0.5)
    first, second = broken_script("as written"), broken_script("half repaired", note="first repair")
    quick_run.agents.always("init", fenced(first))
    quick_run.agents.reply("debugger", *fenced(second, script(0.6, note="second repair")))
    result = await run_phase1(quick_run.task, config)
    prompts = [call.prompt for call in quick_run.agents.calls("debugger")]
    assert [first in prompt for prompt in prompts] == [True, False]
    assert second in prompts[1] and "half repaired" in prompts[1].split("Traceback")[1]
    assert result.initial_solution.content == script(0.6, note="second repair")


@pytest.mark.req("REQ-P1-020")
async def test_each_candidate_is_written_checked_and_run_in_this_order(run: ScriptedRun) -> None:
    await run_phase1(run.task, stage(run, 0.5, 0.4))
    for index in range(2):
        place = f"phase1/candidate-{index}/"
        steps = [e.step.removeprefix(place) for e in run.journal.events if e.step.startswith(place)]
        order = [steps.index(name) for name in ("init", "leakage-detection", "script")]
        assert order == sorted(order)


@pytest.mark.req("REQ-P1-024", "REQ-P1-025", "REQ-P1-014")
async def test_merges_go_by_rank_from_the_best_until_one_loses(quick_run: ScriptedRun) -> None:
    config = stage(quick_run, 0.8, 0.9, 0.85, merges=(0.95, 0.92))
    result = await run_phase1(quick_run.task, config)
    first, second = (call.prompt for call in quick_run.agents.calls("merger"))
    assert first.index("level = 0.9\n") < first.index("level = 0.85"), "the best candidate is the base"
    assert second.index("level = 0.95") < second.index("level = 0.8\n"), "then what the first merge left"
    assert [m["accepted"] for m in result.merge_attempts] == [True, False], "0.92 beats the candidates, not the merge"
    assert result.initial_score == 0.95 == result.initial_solution.score
    assert [event.base_score for event in quick_run.events(MergeTried)] == [0.9, 0.95]


@pytest.mark.req("REQ-P1-026")
async def test_a_tie_is_accepted_and_the_loop_goes_on(quick_run: ScriptedRun) -> None:
    config = stage(quick_run, 0.85, 0.8, 0.7, merges=(0.85, 0.85))
    result = await run_phase1(quick_run.task, config)
    assert result.initial_solution.content == script(0.85, note="merge 2")
    assert len(quick_run.agents.calls("merger")) == 2


@pytest.mark.req("REQ-P1-027")
async def test_no_merge_follows_the_first_that_lost(quick_run: ScriptedRun) -> None:
    config = stage(quick_run, 0.9, 0.8, 0.7, 0.6, merges=(0.91, 0.5, 0.99))
    assert (await run_phase1(quick_run.task, config)).initial_score == 0.91
    assert len(quick_run.agents.calls("merger")) == 2


@pytest.mark.req("REQ-P1-028", "REQ-P1-030", "REQ-P1-031")
@pytest.mark.parametrize("reply", [fenced(broken_script("no merge")), fenced("a = 1"), GARBAGE])
async def test_a_merge_that_does_not_run_ends_the_loop(run: ScriptedRun, reply: str) -> None:
    config = stage(run, 0.9, 0.8, 0.7)
    run.agents.always("merger", reply)
    run.agents.always("debugger", GARBAGE)
    result = await run_phase1(run.task, config)
    assert result.initial_solution.content == script(0.9, note="m0") and result.initial_score == 0.9
    [merge] = run.events(MergeTried)
    assert (merge.accepted, merge.score, bool(merge.reason)) == (False, None, True)
    assert run.agents.names[-2:] == ["data", "leakage-detection"], "the last checks are made in any case"


@pytest.mark.req("REQ-P1-028", "REQ-P1-025")
async def test_a_merge_that_is_repaired_counts(run: ScriptedRun) -> None:
    config = stage(run, 0.9, 0.8)
    run.agents.reply("merger", fenced(broken_script()))
    run.agents.reply("debugger", fenced(script(0.95)))
    result = await run_phase1(run.task, config)
    assert result.initial_score == 0.95 and result.initial_solution.phase == SolutionPhase.merged


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P1-021", "REQ-P1-029", "REQ-P1-032")
async def test_failed_candidates_are_kept_in_place_but_never_merged(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    config = stage(run, 0.1, 0.7, 0.1, 0.1, 0.1)
    crash_after_score = "print('Final Validation Performance: 0.99')\nraise RuntimeError('late')"
    codes = {**scored(0, 0.7), "m0": broken_script("early"), "m2": crash_after_score, "m3": "print('no score')"}
    written = by_model(**codes)
    run.agents.always("init", lambda call: GARBAGE if "candidate-4" in call.step else written(call))
    run.agents.always("debugger", GARBAGE)
    result = await run_phase1(run.task, config)
    assert result.candidate_scores == [None, 0.7, None, None, None] and result.initial_score == 0.7
    assert [s.source_model for s in result.candidate_solutions] == ["m0", "m1", "m2", "m3", "m4"]
    assert [s.is_executable for s in result.candidate_solutions] == [False, True, False, False, False]
    assert [s.content for s in result.candidate_solutions] == [*(codes[f"m{n}"] for n in range(4)), ""]
    assert run.agents.calls("merger") == []
    skipped = [line for line in warnings_of(caplog) if "candidate skipped" in line]
    assert sorted(line.split("skipped: ")[1] for line in skipped) == [
        "m0: RuntimeError: early", "m2: RuntimeError: late", "m3: no score was printed",
        "m4: no code in the reply",
    ]  # fmt: skip
    assert {e.index: e.error for e in run.events(CandidateEvaluated)}[1] == ""


@pytest.mark.req("REQ-P1-021")
@pytest.mark.parametrize("late", ["raise RuntimeError('late')", "while True:\n    pass"])
async def test_two_of_four_candidates_are_enough_to_merge(quick_run: ScriptedRun, late: str) -> None:
    config = stage(quick_run, 0.1, 0.7, 0.1, 0.6, merges=(0.8,))
    too_late = f"{script(0.99)}\n{late}"  # its score was printed before the crash, or before the time limit
    quick_run.agents.always("init", by_model(**{**scored(0, 0.7, 0, 0.6), "m0": broken_script(), "m2": too_late}))
    quick_run.agents.always("debugger", GARBAGE)
    result = await run_phase1(quick_run.task, config)
    assert result.candidate_scores == [None, 0.7, None, 0.6] and result.initial_score == 0.8
    assert [one.is_executable for one in result.candidate_solutions] == [False, True, False, True]
    assert best_score(quick_run.context) == 0.8


@pytest.mark.req("REQ-P1-022", "REQ-P1-038")
async def test_when_every_candidate_fails_there_is_no_phase_1(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    stage(quick_run, 1, 2, 3)
    quick_run.agents.always("init", by_model(**{f"m{i}": broken_script(f"b{i}") for i in range(3)}))
    quick_run.agents.always("debugger", GARBAGE)
    with pytest.raises(RuntimeError, match=r"^Phase 1 failed: all 3 candidates produced execution errors$") as caught:
        await run_phase1(quick_run.task, settings(M=5))  # three were tried, whatever was wanted
    assert isinstance(caught.value, Phase1Error)
    assert caught.value.errors == {f"m{i}": f"RuntimeError: b{i}" for i in range(3)}
    [error] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "all 3 candidates" in error.getMessage() and "m0, m1, m2" in error.getMessage()


@pytest.mark.req("REQ-P1-023")
@pytest.mark.parametrize("direction", list(MetricDirection))
async def test_the_direction_of_the_metric_decides_the_order(quick_path: Path, direction: MetricDirection) -> None:
    with scripted_run(quick_path, executor=ScriptedExecutor(), metric_direction=direction) as run:
        config = stage(run, 0.7, 0.9, 0.8, 0.9)
        run.agents.always("merger", GARBAGE)
        result = await run_phase1(run.task, config)
    best = "m1" if direction is MetricDirection.maximize else "m0"  # of two equal ones the first
    assert result.initial_solution.source_model == best


@pytest.mark.req("REQ-P1-025", "REQ-P1-026")
async def test_with_a_metric_to_minimize_a_lower_merge_is_accepted(quick_path: Path) -> None:
    with scripted_run(quick_path, executor=ScriptedExecutor(), metric_direction=MetricDirection.minimize) as run:
        result = await run_phase1(run.task, stage(run, 0.7, 0.9, merges=(0.6,)))
    assert result.initial_score == 0.6


@pytest.mark.req("REQ-P1-029", "REQ-P1-030", "REQ-P1-031")
async def test_a_single_candidate_is_never_merged(quick_run: ScriptedRun) -> None:
    result = await run_phase1(quick_run.task, stage(quick_run, 0.5))
    assert quick_run.agents.names == ["retriever", "init", "leakage-detection", "data", "leakage-detection"]
    assert quick_run.agents.log[-1].step == "phase1/leakage/leakage-detection"
    assert result.initial_score == 0.5 and result.initial_solution.source_model == "m0"


# --- after the merges ------------------------------------------------------------------------------------


@pytest.mark.req("REQ-P1-030", "REQ-P1-033", "REQ-SF-030")
async def test_a_data_revision_counts_even_when_it_scores_worse(
    quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    config = stage(quick_run, 0.5)
    quick_run.agents.reply("data", fenced(script(0.3, note="uses all")))
    result = await run_phase1(quick_run.task, config)
    assert len(quick_run.agents.calls("data")) == 1
    assert result.initial_solution.content == script(0.3, note="uses all") and result.initial_score == 0.3
    assert result.data_usage_changed and [(e.changed, e.score) for e in quick_run.events(DataUsageChecked)] == [
        (True, 0.3)
    ]
    assert any("scores worse: 0.3 instead of 0.5" in line for line in warnings_of(caplog))
    checked = [call.prompt for call in quick_run.agents.calls("leakage-detection")]
    assert sum("uses all" in prompt for prompt in checked) == 2, "before its run and at the end"


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P1-030", "REQ-P1-033", "REQ-SF-008")
@pytest.mark.parametrize(
    ("revision", "why"),
    [
        (broken_script("no such file"), "RuntimeError: no such file"),
        ("print('all data is used')", "no score was printed"),
        (script("'1,5'"), "the line says 1,5: print a plain number"),
    ],
)
async def test_a_data_revision_that_never_has_a_score_is_given_up(
    run: ScriptedRun, caplog: pytest.LogCaptureFixture, revision: str, why: str
) -> None:
    config = stage(run, 0.5)
    run.agents.reply("data", fenced(revision))
    run.agents.always("debugger", GARBAGE)
    result = await run_phase1(run.task, config)
    assert result.initial_solution.content == script(0.5, note="m0") and result.initial_score == 0.5
    assert not result.data_usage_changed
    assert len(run.agents.calls("debugger")) == config.max_debug_attempts
    assert any(f"is dropped: {why}" in line for line in warnings_of(caplog))


@pytest.mark.req("REQ-P1-031", "REQ-P1-033", "REQ-SF-023")
async def test_a_leak_that_flattered_the_score_is_gone_at_the_end(run: ScriptedRun) -> None:
    config = stage(run, 0.95)
    run.agents.reply("leakage-detection", NO_LEAKAGE, leaky("level = 0.95"))  # found at the second look only
    run.agents.reply("leakage-correction", fenced("level = 0.8"))
    result = await run_phase1(run.task, config)
    assert result.candidate_scores == [0.95] and result.initial_score == 0.8 == result.initial_solution.score
    again = await evaluate_solution(result.initial_solution, run.task, settings(use_cache=False))
    assert again.score == result.initial_score


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P1-031")
async def test_a_leakage_fix_that_does_not_run_is_given_up(run: ScriptedRun, caplog: pytest.LogCaptureFixture) -> None:
    config = stage(run, 0.95)
    run.agents.reply("leakage-detection", NO_LEAKAGE, leaky("level = 0.95"))
    run.agents.reply("leakage-correction", fenced("level = undefined"))
    run.agents.always("debugger", GARBAGE)
    result = await run_phase1(run.task, config)
    assert result.initial_solution.content == script(0.95, note="m0") and result.initial_score == 0.95
    assert result.initial_solution.leaking, "it only stands in"
    assert any("is dropped: NameError" in line for line in warnings_of(caplog))


@pytest.mark.req("REQ-P1-042", "REQ-SF-022")
@pytest.mark.parametrize("checks", ["all", "promising"])
async def test_every_script_that_ran_was_checked_for_leakage_first(quick_run: ScriptedRun, checks: str) -> None:
    run = quick_run
    config = stage(run, 0.5, 0.6).model_copy(update={"leakage_checks": checks})
    run.executor.inner = witness = CheckedFirst(run.agents, run.executor.inner)
    run.agents.always("init", by_model(m0=broken_script("m0"), m1=script(0.6, note="m1")))
    repairs = {
        place: (broken_script("half", note=f"half {place}"), script(score, note=f"fixed {place}"))
        for place, score in (("candidate", 0.5), ("merge", 0.65), ("data", 0.7), ("leakage", 0.68))
    }
    run.agents.reply("debugger", *fenced(*(code for pair in repairs.values() for code in pair)))
    run.agents.reply("merger", fenced(broken_script("merge")))
    run.agents.reply("data", fenced(broken_script("all data")))
    leaks = leaky("level = 0.7")
    run.agents.always(
        "leakage-detection", lambda call: leaks if call.step == "phase1/leakage/leakage-detection" else NO_LEAKAGE
    )
    run.agents.reply("leakage-correction", fenced("raise RuntimeError('corrected')"))
    result = await run_phase1(run.task, config)
    assert result.initial_solution.content == script(0.68, note="fixed leakage"), "repaired after the correction"
    assert len(run.executor.scripts) == 13
    if checks == "all":
        corrected = script(0.7, note="fixed data").replace("level = 0.7", "raise RuntimeError('corrected')")
        assert witness.unchecked == [corrected], "a correction is what the check itself gave"
    last = [call.prompt for call in run.agents.calls("leakage-detection") if "phase1/leakage/" in call.step]
    seen = [next(note for note in ("fixed data", "half leakage", "fixed leakage") if note in prompt) for prompt in last]
    assert seen == ["fixed data", "half leakage", "fixed leakage"], "the final script, whoever wrote it"


# --- side by side ----------------------------------------------------------------------------------------


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P1-034")
async def test_candidates_are_written_side_by_side(quick_run: ScriptedRun) -> None:
    config, second_asked = stage(quick_run, 0.5, 0.6), asyncio.Event()
    write = quick_run.agents._standing["init"]

    async def wait_for_the_other(call: ScriptedCall) -> Any:
        if "candidate-1" in call.step:
            second_asked.set()
        await asyncio.wait_for(second_asked.wait(), 120)
        return write(call)

    quick_run.agents.always("init", wait_for_the_other)
    assert (await run_phase1(quick_run.task, config)).candidate_scores == [0.5, 0.6]
    assert "independent" in (inspect.getdoc(phase1._try_candidates) or "")


class _Together:
    """Lets no script run before `count` of them are there."""

    def __init__(self, inner: Executor, count: int) -> None:
        self.inner, self.count, self.here, self.all_here = inner, count, 0, asyncio.Event()

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        self.here += 1
        if self.here >= self.count:
            self.all_here.set()
        await asyncio.wait_for(self.all_here.wait(), 120)
        return await self.inner.run(request)


@pytest.mark.modes("usual")
@pytest.mark.req("REQ-P1-035")
async def test_candidates_run_side_by_side_as_the_harness_has_room(tmp_path: Path) -> None:
    config = settings(M=3, max_concurrent_scripts=2)
    with scripted_run(tmp_path, config=config, executor=_Together(LocalExecutor(config), 2)) as run:
        stage(run, 0.5, 0.6, 0.7)
        run.agents.always("merger", GARBAGE)
        result = await run_phase1(run.task, config)
        assert run.executor.most_at_once == 2, "two and never three"
        assert result.candidate_scores == [0.5, 0.6, 0.7]
        assert len({request.working_dir for request in run.executor.requests}) == 3


def _said(run: ScriptedRun) -> dict[str, list[str]]:
    """What the journal says about each place, in order, apart from times, shares of memory and the running best."""
    said: dict[str, list[str]] = {}
    for event in run.journal.events:
        if event.kind not in ("best_improved", "submission_kept", "script_started"):
            times = {"duration_seconds", "timeout_seconds", "isolation"}
            words = event.model_dump_json(exclude={"at": True, "seconds": True, "result": times})
            said.setdefault("/".join(event.step.split("/")[:2]), []).append(words)
    return said


@pytest.mark.req("REQ-P1-035", "REQ-P1-034")
async def test_side_by_side_and_one_after_another_give_the_same(tmp_path: Path) -> None:
    results, journals = [], []
    for slots, name in ((1, "one"), (3, "all")):
        config = settings(M=3, max_concurrent_scripts=slots, briefing=())
        with scripted_run(tmp_path / name, config=config) as run:
            stage(run, 0.5, 0.9, 0.7, merges=(0.9, 0.4))
            slow_first = script(0.5, note="m0").replace("level", "import time; time.sleep(0.3)\nlevel", 1)
            run.agents.always("init", by_model(**{**scored(0.5, 0.9, 0.7), "m0": slow_first}))
            results.append((await run_phase1(run.task, config)).model_dump(exclude=_times()))
            journals.append(_said(run))
            assert run.executor.most_at_once <= slots
            assert best_score(run.context) == 0.9
            assert run.events(SubmissionKept)[-1].score == 0.9
    assert results[0] == results[1] and journals[0] == journals[1]


def _times() -> dict[str, Any]:
    return {"candidate_solutions": {"__all__": {"created_at"}}, "initial_solution": {"created_at"}}


@pytest.mark.req("REQ-P1-036")
def test_the_merge_loop_starts_nothing_side_by_side() -> None:
    loop = ast.parse(inspect.getsource(phase1._merge_by_rank) + inspect.getsource(phase1._try_merge))
    names = {node.attr for node in ast.walk(loop) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(loop) if isinstance(node, ast.Name)}
    assert not names & {"gather", "create_task", "_all", "ensure_future", "wait"}


@pytest.mark.modes("usual")  # to the letter candidates come one after another
async def test_one_candidate_that_hits_the_limit_stops_the_others(quick_run: ScriptedRun) -> None:
    config, cancelled = stage(quick_run, 0.5, 0.6), asyncio.Event()

    async def first_waits_second_stops(call: ScriptedCall) -> str:
        if "candidate-1" in call.step:
            raise BudgetExceeded(limit="money", used=2, allowed=1)
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return ""

    quick_run.agents.always("init", first_waits_second_stops)
    with pytest.raises(BudgetExceeded):
        await run_phase1(quick_run.task, config)
    assert cancelled.is_set()


# --- limits, replay --------------------------------------------------------------------------------------


async def test_a_run_that_is_to_finish_merges_no_more(quick_run: ScriptedRun) -> None:
    config = stage(quick_run, 0.9, 0.8, 0.7, merges=(0.95, 0.99))
    merge = fenced(script(0.95, note="merge 1"))

    def finish(call: ScriptedCall) -> str:
        quick_run.context.budget.finish_requested = True
        return str(merge)

    quick_run.agents._queues["merger"] = [finish]
    result = await run_phase1(quick_run.task, config)
    assert len(quick_run.agents.calls("merger")) == 1 and result.initial_score == 0.95
    assert quick_run.agents.names[-2:] == ["data", "leakage-detection"], "what makes the result honest is still done"


async def test_a_second_time_everything_comes_from_the_journal(tmp_path: Path) -> None:
    results: list[Phase1Result] = []
    for _ in range(2):
        with scripted_run(tmp_path) as run:
            config = stage(run, 0.5, 0.4, merges=(0.6,))
            run.agents.reply("data", fenced(script(0.7, note="all data")))
            results.append(await run_phase1(run.task, config))
            calls, scripts = len(run.agents.log), len(run.executor.scripts)
    assert (calls, scripts) == (0, 0)
    assert results[0].model_dump(exclude=_times()) == results[1].model_dump(exclude=_times())


# --- the rest of the specification -----------------------------------------------------------------------


@pytest.mark.req("REQ-P1-001", "REQ-P1-008", "REQ-P1-013")
def test_the_agents_are_set_up_as_specified() -> None:
    configs = build_default_agent_configs()
    wanted = {
        AgentType.retriever: (["WebSearch", "WebFetch"], RetrieverOutput),
        AgentType.init: (["Read"], None),
        AgentType.merger: (["Read"], None),
    }
    for agent, (tools, schema) in wanted.items():
        config = configs[agent]
        assert (config.tools, config.output_schema, config.model) == (tools, schema, None)
        definition = config.to_agent_definition()
        assert set(definition) == {"description", "prompt", "tools", "model"} and definition["description"]
        by_type = AgentConfig(agent_type=agent).to_agent_definition()
        assert by_type["tools"] == definition["tools"] == tools  # no list would give it every tool


@pytest.mark.req("REQ-P1-002", "REQ-P1-043")
async def test_the_retriever_prompt_asks_for_m_models_with_code(run: ScriptedRun) -> None:
    run.agents.reply("retriever", models("alpha"))
    await retrieve_models(run.task, settings(M=7))
    prompt = run.agents.log[0].prompt
    for words in (run.task.description, "list 7 of them", "recent, effective models", "short and simple", "compulsory",
                  "does not count", "model_name", "example_code"):  # fmt: skip
        assert words in prompt, words


@pytest.mark.req("REQ-P1-037")
def test_the_phase_itself_takes_no_time(quick_run: ScriptedRun) -> None:
    config = stage(quick_run, *(0.9 - i / 100 for i in range(8)), merges=tuple(0.91 + i / 100 for i in range(7)))
    result, waited, worked = measured(run_phase1(quick_run.task, config))
    assert result.initial_score == 0.97 and waited == 0 and worked < 5


@pytest.mark.req("REQ-P1-040", "REQ-P1-012", "REQ-P1-017", "REQ-P1-018", "REQ-P1-007")
def test_everything_lives_in_one_module_with_the_specified_signatures() -> None:
    wanted = {
        "retrieve_models": ["task", "config"],
        "generate_candidate": ["task", "model", "config"],
        "merge_solutions": ["base", "reference", "config"],
        "run_phase1": ["task", "config"],
        "parse_retriever_output": ["response"],
    }
    for name, parameters in wanted.items():
        function = getattr(phase1, name)
        assert function.__module__ == "mle_star.phase1"
        assert list(inspect.signature(function).parameters) == parameters
    hints = inspect.get_annotations(run_phase1, eval_str=True)
    assert hints == {"task": TaskDescription, "config": PipelineConfig, "return": Phase1Result}
