"""Phase 1: retrieval, candidates, ranking, merges and the checks after them."""

import asyncio
import inspect
from pathlib import Path
from typing import Any, get_args

import pytest

from mle_star import PipelineConfig, phase1
from mle_star.errors import AgentError, AgentFailure
from mle_star.models.texts import digest_of
from mle_star.phase1 import find_models, retrieve_models, run_phase1
from mle_star.run import events as ev
from mle_star.run.context import ScriptRequest
from tests.conftest import Logs, best_score, write_texts

from .conftest import ScriptedExecutor, ScriptedRun, account_as_kept, scripted_run, settings
from .replies import BOTH, GARBAGE, LETTER, ScriptedCall, broken_script, fenced, leaky, models, script

TIMES: dict[str, Any] = {"candidate_solutions": {"__all__": {"created_at"}}, "initial_solution": {"created_at"}}


def candidates(run: ScriptedRun, *scripts: Any) -> PipelineConfig:
    """Models m0, m1, ... with these scripts, or coroutine functions that give one; settings that ask for as many."""
    run.agents.always("retriever", models(*(f"m{i}" for i in range(len(scripts)))))

    async def write(call: ScriptedCall) -> str:
        code = scripts[int(call.prompt.split("# Model\n\n")[1].split("\n")[0][1:])]
        return str(fenced(code if isinstance(code, str) else await code()))

    run.agents.always("init", write)
    return settings(M=len(scripts))


def stage(run: ScriptedRun, *scores: float, merges: tuple[float, ...] = ()) -> PipelineConfig:
    """Candidates and merges with these scores; the configuration that asks for as many."""
    run.agents.reply("merger", *(fenced(script(score, note=f"merge {i}")) for i, score in enumerate(merges, 1)))
    return candidates(run, *(script(score, note=f"m{i}") for i, score in enumerate(scores)))


NAMELESS = {"models": [{"model_name": "", "example_code": "x"}]}
LEFT_OUT = "without name or code, or seen before, and left out: '{}'"


@pytest.mark.req("REQ-P1-005", "REQ-P1-006")
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("I know no models.", "cannot be used"), (NAMELESS, r"^A_retriever returned zero models$"),
        *((AgentError("no", agent="retriever", reason=why), "no") for why in get_args(AgentFailure) if why != "auth"),
    ],
    ids=str,
)  # fmt: skip
async def test_a_poor_retriever_is_replaced(quick_run: ScriptedRun, reply: Any, message: str, caplog: Logs) -> None:
    quick_run.agents.always("retriever", reply)
    found = await find_models(quick_run.task, settings(M=2))
    assert len(found) == 2 == len(quick_run.agents.log) and all("sklearn" in model.example_code for model in found)
    names = [model.model_name for model in found]
    assert [event.models for event in quick_run.events(ev.ModelsRetrieved)] == [found]
    (notice,) = quick_run.events(ev.Notice)
    error, _, rest = notice.message.removeprefix("the retriever gave nothing usable (").rpartition("); ")
    assert rest == f"the run starts from common models: {', '.join(names)}" and notice.level == "warning"
    assert [line for line in caplog.messages if "failed" in line] == [f"retrieval failed: {error}"] * 2
    write_texts(quick_run.run_dir, {"models/own.md": "<!-- needs: own -->\n# Own\n```python\nfit()\n```\n"})
    own = settings(M=2, knowledge=str(quick_run.run_dir))
    assert await find_models(quick_run.task, own) == found, "what it needs is not installed"
    quick_run.journal.interpreter = ev.Interpreter(version="3", packages={"own": "1"})
    mine, first = await find_models(quick_run.task, own)
    assert (mine.model_name, mine.example_code, first) == ("Own", "fit()\n", found[0])
    with pytest.raises((ValueError, AgentError), match=message):
        await find_models(quick_run.task, settings(M=2, briefing=()))
    quick_run.agents.always("retriever", AgentError("refused", agent="retriever", reason="auth"))
    with pytest.raises(AgentError, match="refused"):
        await find_models(quick_run.task, settings(M=2))


@BOTH
@pytest.mark.req("REQ-P1-003", "REQ-P1-005", "REQ-P1-006", "REQ-P1-007")
@pytest.mark.parametrize(
    ("entries", "wanted", "found", "warnings"),
    [
        ("alpha beta gamma", 4, "alpha beta gamma", ["3 models instead of 4"]),
        ("a b c d e f", 4, "a b c d", []),
        ("alpha _ gamma_ ALPHA delta", 2, "alpha delta", [LEFT_OUT.format(name) for name in ("", "gamma", "ALPHA")]),
    ],
)  # fmt: skip
async def test_wanted_models_have_name_and_code(
    entries: str, wanted: int, found: str, warnings: list[str], quick_run: ScriptedRun, caplog: pytest.LogCaptureFixture
) -> None:
    if "_" in entries and quick_run.config.letter:  # the first M, and of these the usable ones
        found, warnings = "alpha", [LEFT_OUT.format(""), "1 models instead of 2"]
    reply = [{"model_name": n.strip("_"), "example_code": "\n" if n.endswith("_") else "x()"} for n in entries.split()]
    quick_run.agents.reply("retriever", {"models": reply, "notes": " Winners took ratios (a post).\n"})
    models = await retrieve_models(quick_run.task, settings(M=wanted))
    assert [model.model_name for model in models] == found.split()
    retrieved = [(e.names, e.notes) for e in quick_run.events(ev.ModelsRetrieved)]
    assert retrieved == [(found.split(), "Winners took ratios (a post).")]
    assert f"list {wanted} of them" in quick_run.agents.log[0].prompt
    logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert logged == [f"retrieval: {words}" for words in warnings]


@BOTH
@pytest.mark.req("REQ-P1-014", "REQ-P1-018", "REQ-P1-019", "REQ-P1-020", "REQ-P1-024", "REQ-P1-025", "REQ-P1-032")
@pytest.mark.req("REQ-P1-041")
async def test_the_whole_phase_follows_algorithm_1(run: ScriptedRun, caplog: Logs) -> None:
    scores = [0.7, 0.9, 0.8, 0.6, 0.5]
    config = stage(run, *scores, merges=(0.91, 0.95, 0.923456))  # the last beats the candidates, not the merge before
    result = await run_phase1(run.task, config)
    assert [model.model_name for model in result.retrieved_models] == ["m0", "m1", "m2", "m3", "m4"]
    assert result.candidate_scores == scores == [s.score for s in result.candidate_solutions]
    assert result.initial_score == 0.95 == result.initial_solution.score
    assert result.initial_solution.content == script(0.95, note="merge 2")
    assert result.merge_attempts == [
        {"source_model": "m2", "score": 0.91, "accepted": True, "reason": ""},
        {"source_model": "m0", "score": 0.95, "accepted": True, "reason": ""},
        {"source_model": "m3", "score": 0.923456, "accepted": False, "reason": "0.9235 does not reach 0.95"},
    ]
    merged = [("m1", "m2"), ("merge 1", "m0"), ("merge 2", "m3")]  # what is best so far, and the next by rank
    for (base, reference), call in zip(merged, run.agents.calls("merger"), strict=True):
        assert 0 < call.prompt.find(f"# {base}\n") < call.prompt.find(f"# {reference}\n")
    assert run.agents.names[0] == "retriever" and run.agents.names.count("retriever") == 1
    assert run.agents.names[11:] == [*["merger", "leakage-detection"] * 3, "data", "leakage-detection"]
    if config.letter:  # else candidates are written side by side, and which of them comes first is chance
        account_as_kept("phase1", run, caplog.records)


@pytest.mark.req("REQ-P1-029", "REQ-P1-030", "REQ-P1-031", "REQ-P1-033", "REQ-SF-008", "REQ-SF-029", "REQ-SF-030")
@pytest.mark.req("REQ-SF-046")
@pytest.mark.parametrize(
    ("revision", "score", "warning"),
    [
        ("", None, ""), (script(0.3, note="uses all"), 0.3, "scores worse: 0.3 instead of 0.5"),
        (broken_script("no such file"), None, "is dropped: RuntimeError: no such file"),
        (script(0.5, note="all"), 0.5, ""), ("print('all data')", None, "is dropped: no score was printed"),
        (script("'1,5'"), None, "is dropped: the line says '1,5': print a plain number"),
        pytest.param(script(0.3, note="uses all"), 0.3, "scores worse: 0.3 instead of 0.5", marks=LETTER),
    ],
)  # fmt: skip
async def test_a_data_revision_counts_if_it_has_a_score(
    quick_run: ScriptedRun, revision: str, score: float | None, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    run, config = quick_run, stage(quick_run, 0.5)
    if revision:
        run.agents.reply("data", fenced(revision))
    run.agents.always("debugger", GARBAGE)
    result = await run_phase1(run.task, config)
    checked = ["leakage-detection", *["debugger"] * (config.max_debug_attempts if score is None else 0)]
    names = ["retriever", "init", "leakage-detection", "data", *(checked if revision else []), "leakage-detection"]
    assert run.agents.names == names
    assert "no such file" not in revision or "Error: no such file" in run.agents.calls("debugger")[0].prompt
    assert run.agents.log[-1].step == "phase1/leakage/leakage-detection", "at the end, whoever wrote it"
    best = result.initial_solution
    assert (best.content, best.score) == ((revision, score) if score else (script(0.5, note="m0"), 0.5))
    assert (best.source_model, result.initial_score) == ("m0", best.score)
    (event,) = run.events(ev.DataUsageChecked)
    assert (event.changed, event.score) == (result.data_usage_changed, best.score) == (score is not None, best.score)
    origin = [digest_of(script(0.5, note="m0"))], digest_of(revision)
    assert (event.parents, event.digest) == (origin if score else ([], ""))
    logged = [r.getMessage() for r in caplog.records if r.name == "mle_star.phase1" and r.levelname == "WARNING"]
    assert logged == ([f"the revised script {warning}"] if warning else [])


@BOTH
@pytest.mark.req("REQ-P1-042", "REQ-SF-022")
async def test_where_only_promising_scripts_are_checked_the_final_one_and_repairs_are(quick_run: ScriptedRun) -> None:
    run, config = quick_run, stage(quick_run, 0.7).model_copy(update={"leakage_checks": "promising"})
    run.agents.reply("leakage-detection", leaky("level = 0.7"))
    run.agents.reply("leakage-correction", fenced("raise RuntimeError('corrected')"))
    run.agents.reply("debugger", *fenced(broken_script("half"), script(0.68, note="fixed")))
    result = await run_phase1(run.task, config)
    assert result.initial_solution.content == script(0.68, note="fixed"), "repaired after the correction"
    checked = [(call.step, call.prompt) for call in run.agents.calls("leakage-detection")]
    steps = [f"phase1/leakage/leakage-detection{number}" for number in ("", "-2", "-3")]
    assert [step for step, _ in checked] == steps
    assert all(note in text for note, (_, text) in zip(("# m0", "'half'", "# fixed"), checked, strict=True))


def together(count: int) -> ScriptedExecutor:
    """Lets no script run before `count` of them are there, and the second end first."""
    all_here = asyncio.Event()

    async def wait(request: ScriptRequest) -> None:
        if len(executor.ran) >= count:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 120)
        await asyncio.sleep(0.1 if "candidate-0" in request.working_dir else 0)

    executor = ScriptedExecutor(before=wait)
    return executor


@BOTH
@pytest.mark.req("REQ-P1-034", "REQ-P1-035")
async def test_side_by_side_as_the_harness_has_room_and_one_after_another_give_the_same(quick_path: Path) -> None:
    """To the letter candidates are also written one after another."""
    results, journals = [], []
    for slots in (1, 2, 3):
        config = settings(M=3, max_concurrent_scripts=slots, briefing=())
        at_once = 1 if config.letter else slots
        with scripted_run(quick_path / str(slots), config=config, executor=together(at_once)) as run:
            stage(run, 0.5, 0.9, 0.7, merges=(0.9, 0.4))
            results.append((await run_phase1(run.task, config)).model_dump(exclude=TIMES))
            journals.append(_recorded(run))
            assert run.executor.most_at_once == at_once and best_score(run.context) == 0.9
            assert run.events(ev.SubmissionKept)[-1].score == 0.9
            assert len({request.working_dir for request in run.executor.requests[:3]}) == 3
            written = [call.name for call in run.agents.log[1:4]]
            assert written == (["init", "leakage-detection", "init"] if config.letter else ["init"] * 3)
    assert results[0] == results[1] == results[2] and journals[0] == journals[1] == journals[2]
    assert "independent" in (inspect.getdoc(phase1._try_candidates) or "")


def _recorded(run: ScriptedRun) -> dict[str, list[str]]:
    """What the journal says about each place, in order, apart from times, shares of memory and the running best."""
    recorded: dict[str, list[str]] = {}
    for event in run.journal.events:
        if event.kind not in ("best_improved", "submission_kept", "script_started"):
            times = {"duration_seconds", "timeout_seconds", "isolation"}
            words = event.model_dump_json(exclude={"at": True, "seconds": True, "result": times})
            recorded.setdefault("/".join(event.step.split("/")[:2]), []).append(words)
    return recorded
