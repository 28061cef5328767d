"""Phase 1: retrieval, candidates, ranking, merges and the checks after them, with real scripts in the real harness."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any, get_args

import pytest

from mle_star import phase1
from mle_star.errors import AgentError, AgentFailure, BudgetExceeded, Phase1Error
from mle_star.execution import LocalExecutor, evaluate_solution
from mle_star.models import ExecutionRawResult, PipelineConfig, RetrievedModel
from mle_star.phase1 import find_models, retrieve_models, run_phase1
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
    ScriptedRun,
    broken_script,
    fenced,
    leaky,
    models,
    script,
    scripted_run,
    settings,
)
from tests.method.loops import CheckedFirst

pytestmark = pytest.mark.modes("delivered", "letter")

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


@pytest.mark.modes("delivered")
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


@pytest.mark.req("REQ-P1-003", "REQ-P1-005", "REQ-P1-006", "REQ-P1-007")
@pytest.mark.parametrize(
    ("entries", "wanted", "found"),
    [
        ("alpha beta gamma", 4, "alpha beta gamma"),
        ("a b c d e f", 4, "a b c d"),
        ("alpha _ gamma_ ALPHA delta", 2, "alpha delta"),  # without a name, without code, the same again
    ],
)
async def test_of_the_models_those_with_name_and_code_are_taken_as_many_as_wanted(
    entries: str, wanted: int, found: str, quick_run: ScriptedRun
) -> None:
    reply = [{"model_name": n.strip("_"), "example_code": "\n" if n.endswith("_") else "x()"} for n in entries.split()]
    quick_run.agents.reply("retriever", {"models": reply})
    models = await retrieve_models(quick_run.task, settings(M=wanted))
    assert [model.model_name for model in models] == found.split()
    assert [event.names for event in quick_run.events(ModelsRetrieved)] == [found.split()]
    assert f"list {wanted} of them" in quick_run.agents.log[0].prompt


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-P1-005", "REQ-P1-006")
@pytest.mark.parametrize("bad", [GARBAGE, "", {"models": []}, AgentError("down", agent="retriever")])
async def test_one_bad_reply_of_the_retriever_is_forgiven_two_are_not(quick_run: ScriptedRun, bad: object) -> None:
    quick_run.agents.reply("retriever", bad)
    result = await run_phase1(quick_run.task, quick_run.config)
    assert quick_run.agents.names[:3] == ["retriever", "retriever", "init"] and len(result.retrieved_models) == 2
    quick_run.agents.always("retriever", {"models": [{"model_name": "", "example_code": "x"}]})
    with pytest.raises(ValueError, match=r"^A_retriever returned zero models$"):
        await retrieve_models(quick_run.task, quick_run.config)


@pytest.mark.req("REQ-P1-018", "REQ-P1-019", "REQ-P1-020", "REQ-P1-032", "REQ-P1-041")
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
    place = "phase1/candidate-1/"
    steps = [e.step.removeprefix(place) for e in run.journal.events if e.step.startswith(place)]
    order = [steps.index(name) for name in ("init", "leakage-detection", "script")]
    assert order == sorted(order)
    assert sorted((e.index, e.model_name, e.score) for e in run.events(CandidateEvaluated)) == [
        (0, "m0", 0.7), (1, "m1", 0.9), (2, "m2", 0.8), (3, "m3", 0.6)
    ]  # fmt: skip


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


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-P1-021", "REQ-P1-029", "REQ-P1-032")
async def test_failed_candidates_are_kept_in_place_but_never_merged(run: ScriptedRun) -> None:
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
    assert {e.index: e.error for e in run.events(CandidateEvaluated)} == {
        0: "RuntimeError: early", 1: "", 2: "RuntimeError: late", 3: "no score was printed", 4: "no code in the reply",
    }  # fmt: skip


@pytest.mark.req("REQ-P1-022")
async def test_when_every_candidate_fails_there_is_no_phase_1(quick_run: ScriptedRun) -> None:
    stage(quick_run, 1, 2, 3)
    quick_run.agents.always("init", by_model(**{f"m{i}": broken_script(f"b{i}") for i in range(3)}))
    quick_run.agents.always("debugger", GARBAGE)
    with pytest.raises(RuntimeError, match=r"^Phase 1 failed: all 3 candidates produced execution errors$") as caught:
        await run_phase1(quick_run.task, settings(M=5))  # three were tried, whatever was wanted
    assert isinstance(caught.value, Phase1Error)
    assert caught.value.errors == {f"m{i}": f"RuntimeError: b{i}" for i in range(3)}


@pytest.mark.req("REQ-P1-029", "REQ-P1-030", "REQ-P1-031")
async def test_a_single_candidate_is_never_merged(quick_run: ScriptedRun) -> None:
    result = await run_phase1(quick_run.task, stage(quick_run, 0.5))
    assert quick_run.agents.names == ["retriever", "init", "leakage-detection", "data", "leakage-detection"]
    assert quick_run.agents.log[-1].step == "phase1/leakage/leakage-detection"
    assert result.initial_score == 0.5 and result.initial_solution.source_model == "m0"


@pytest.mark.req("REQ-P1-030", "REQ-P1-033", "REQ-SF-030")
async def test_a_data_revision_counts_even_when_it_scores_worse(quick_run: ScriptedRun) -> None:
    config = stage(quick_run, 0.5)
    quick_run.agents.reply("data", fenced(script(0.3, note="uses all")))
    result = await run_phase1(quick_run.task, config)
    assert len(quick_run.agents.calls("data")) == 1
    assert result.initial_solution.content == script(0.3, note="uses all") and result.initial_score == 0.3
    assert result.data_usage_changed and [(e.changed, e.score) for e in quick_run.events(DataUsageChecked)] == [
        (True, 0.3)
    ]
    checked = [call.prompt for call in quick_run.agents.calls("leakage-detection")]
    assert sum("uses all" in prompt for prompt in checked) == 2, "before its run and at the end"


@pytest.mark.modes("delivered")
@pytest.mark.req("REQ-P1-030", "REQ-P1-033", "REQ-SF-008")
@pytest.mark.parametrize("revision", [broken_script("no such file"), "print('all data is used')", script("'1,5'")])
async def test_a_data_revision_that_never_has_a_score_is_given_up(run: ScriptedRun, revision: str) -> None:
    config = stage(run, 0.5)
    run.agents.reply("data", fenced(revision))
    run.agents.always("debugger", GARBAGE)
    result = await run_phase1(run.task, config)
    assert result.initial_solution.content == script(0.5, note="m0") and result.initial_score == 0.5
    assert not result.data_usage_changed
    assert len(run.agents.calls("debugger")) == config.max_debug_attempts


@pytest.mark.req("REQ-P1-031", "REQ-P1-033", "REQ-SF-023")
async def test_a_leak_that_flattered_the_score_is_gone_at_the_end(run: ScriptedRun) -> None:
    config = stage(run, 0.95)
    run.agents.reply("leakage-detection", NO_LEAKAGE, leaky("level = 0.95"))  # found at the second look only
    run.agents.reply("leakage-correction", fenced("level = 0.8"))
    result = await run_phase1(run.task, config)
    assert result.candidate_scores == [0.95] and result.initial_score == 0.8 == result.initial_solution.score
    again = await evaluate_solution(result.initial_solution, run.task, settings(use_cache=False))
    assert again.score == result.initial_score


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


@pytest.mark.modes("delivered")
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


@pytest.mark.modes("delivered")
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


@pytest.mark.modes("delivered")  # to the letter candidates come one after another
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
