"""Scripts scored by labels that they never see: what a run expects is what its answers are worth."""

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mle_star import AgentType, ConfigError, ExecutionRawResult, FinalResult, Measure, TaskDescription, load_model
from mle_star.holdout.holdout import HoldOut
from mle_star.run import events as ev
from mle_star.run.context import ScriptRequest, current_run
from mle_star.sdk.definitions import build_system_prompt
from mle_star.search.final_result import rescore
from mle_star.search.setup import gather_facts
from mle_star.views import write_report
from mle_star.views.shelf import leaderboard_rows
from tests.conftest import task as task
from tests.conftest import write_split
from tests.execution.conftest import write_sizes
from tests.pipeline.conftest import LOSS, QuickRun, answers_of, settings, story, submitted
from tests.pipeline.mind import Answers, LevelExecutor, Mind, MindAgents, Rule, crash, fenced, leaking, levels, model_of

SEARCHED = "the submission is what the scored script answered in the search"


def solution(noise: float, claim: float, note: str = "") -> str:
    """A script that is wrong on a share of the rows and says of itself what it likes."""
    return f"# {note}\nnoise = {noise:.3f}\nlevel = {claim:.4f}\nwrite('submission.csv')\n"


def noises(text: str) -> list[float]:
    return [float(noise) for noise in re.findall(r"noise = ([\d.]+)", text)]


def right_but_for_noise(text: str, rows: list[dict[str, str]]) -> list[tuple[str, Any]]:
    wrong = 1000 * noises(text)[0]
    return [(row["id"], int((int(row["size"]) > 25) ^ (int(row["id"]) * 7919 % 1000 < wrong))) for row in rows]


def answering(answers: Answers = right_but_for_noise, seconds: float = 0.01, **hooks: Any) -> LevelExecutor:
    """Answers the test file by a rule that it knows, wrong on a share of the rows."""
    return LevelExecutor(answers=answers, seconds=seconds, **hooks)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """400 labelled rows, few enough for folds; the label follows from the size."""
    return write_sizes(tmp_path / "data")


def repeat_a_key(data_dir: Path) -> None:
    """Then nothing can be hidden."""
    with (data_dir / "train.csv").open("a") as stream:
        stream.write("0,1,0\n")


def liars(*, changed: str = "", **overrides: Rule) -> MindAgents:
    """Two candidates: a good one that is modest and a bad one that boasts; the ensemble boasts most."""
    candidates = [solution(0.05, 0.6, "modest"), solution(0.3, 0.99, "boasting")]
    plain: dict[str, Rule] = {
        "init": lambda prompt: fenced(candidates[model_of(prompt)]),
        "merger": fenced(solution(0.4, 0.995, "merged")),
        "ensembler": fenced(solution(0.45, 0.9999, "ensemble")),
        "test": lambda prompt: fenced(solution(noises(prompt)[0], levels(prompt)[0], "the same")),
    }
    return MindAgents(Mind(overrides={**plain, "debugger": plain["test"], **overrides}), changed=changed)


def erring(*noises: float, changed: str = "", **overrides: Rule) -> MindAgents:
    scripts = [fenced(solution(noise, 0.6, f"candidate {number}")) for number, noise in enumerate(noises)]
    return liars(changed=changed, init=lambda prompt: scripts[model_of(prompt)], coder="No idea.", **overrides)


async def scored(
    quick: QuickRun, executor: LevelExecutor | None = None, agents: MindAgents | None = None, **options: Any
) -> FinalResult:
    """A run whose scripts are scored; capital letters and settings are its own, all else options of `quick`."""
    changes = {name: options.pop(name) for name in list(options) if name.isupper() or name in SETTINGS}
    config = settings(**{"scoring": "auto", "K": 1, "R": 1, **changes})
    return await quick(config, agents=agents or liars(), executor=executor or answering(), **options)


SETTINGS = {*settings().model_dump()}
ONE: dict[str, Any] = {"M": 1, "L": 1}


def noise_of(result: FinalResult) -> float:
    return noises(result.final_solution.content)[0]


def right_answers(result: FinalResult) -> float:
    """The share of right answers in a submission for the rows of the test file, in their order."""
    rows = answers_of(result)
    assert list(rows) == list(range(400, 440))
    return sum(answer == (key * 7 % 50 > 25) for key, answer in rows.items()) / len(rows)


async def test_better_answers_win_over_better_claims_on_hidden_labels(quick: QuickRun, data_dir: Path) -> None:
    seen: list[str] = []

    def look(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        if "submission.csv" in Path(request.script_path).read_text(encoding="utf-8"):
            seen.append(Path(request.working_dir, "input", "train.csv").read_text())
        return done

    honest = await scored(quick, answering(after=look), K=2, R=2)
    assert noise_of(honest) == 0.05 and right_answers(honest) >= 0.85
    assert honest.expected is not None and honest.expected.measured == "harness"
    low, high = honest.expected.low or 1, honest.expected.high or 0
    assert low <= 0.95 <= high and honest.final_solution.score == honest.expected.score
    holdout = quick.events(ev.HoldOutPrepared)[0]
    assert (holdout.views, holdout.search_rows, holdout.select_rows, holdout.why_not) == (5, 265, 135, "")
    assert holdout.baseline is not None and holdout.baseline.score == pytest.approx(0.52, abs=0.03)
    searched = [text for text in seen if text.count("\n") == 1 + 320]
    assert len(searched) >= 5 * 3  # every script on five views, each without another fifth of the labels
    final = [text for text in seen if text.count("\n") == 1 + 400]
    assert len(final) == 1, "only the script of finalization sees all labels"
    assert len(set(seen)) == 6  # five views and the whole: nothing runs again for the final selection
    leaks = [event.message for event in quick.events(ev.Notice) if "leaks" in event.message]
    assert any(re.search(r"prints 0.99 and is worth 0\.(6[5-9]|7)", message) for message in leaks)
    assert not any("prints 0.6 " in message for message in leaks)
    for agent in ("planner", "extractor", "ens_planner"):  # whoever compares scores is told how sure they are
        last = quick.prompts(agent)[-1]
        assert "measured on 265 rows whose labels no script sees" in last, agent
        assert ("each against what it was to beat, in their order: " in last) is (agent != "extractor")
    assert "no script sees" not in quick.prompts("coder")[-1]
    claimed = await scored(quick, scoring="self_reported", name="b")
    assert noise_of(claimed) == 0.45 and claimed.expected == Measure(score=0.9999, measured="self-reported")
    answers = data_dir.parent / "answers.csv"
    answers.write_text("id,label\n" + "".join(f"{i},{int(i * 7 % 50 > 25)}\n" for i in range(400, 440)))
    before, rows = sorted(quick.dir.rglob("*")), {row.step: row for row in rescore(quick.dir, answers)}
    assert sorted(quick.dir.rglob("*")) == before
    last_row = rows["final/submission.csv"]
    assert last_row.select == honest.expected and (last_row.truth or 0) >= 0.85
    measures = {event.step: event.result.measure for event in quick.events(ev.ScriptFinished) if event.result.measure}
    assert measures and all(event.result.answers for event in quick.events(ev.ScriptFinished) if event.result.measure)
    anew = {step: row.search.score for step, row in rows.items() if row.search}
    assert anew == {step: measure.score for step, measure in measures.items()}
    boasting = next(row for row in rows.values() if row.printed == 0.99)
    assert boasting.search is not None and boasting.truth == pytest.approx(boasting.search.score, abs=0.2)
    (data_dir / "train.csv").write_text((data_dir / "train.csv").read_text() + "999,3,0\n")
    with pytest.raises(ConfigError, match="have changed since, or another version"):
        rescore(quick.dir)


async def test_a_resumed_a_moved_and_a_forked_run_score_as_before(quick: QuickRun, tmp_path: Path) -> None:
    first, executor = await scored(quick, **ONE), answering()
    again = await scored(quick, executor, resume=True, **ONE)
    assert executor.ran == [] and story(again) == story(first)
    moved = quick.dir.rename(tmp_path / "moved")
    await scored(quick, executor, name="moved", resume=True, **ONE)
    forked = await scored(quick, executor, name="fork", fork_from=moved, **ONE)
    assert executor.ran == [] and forked.expected == first.expected
    alone = await scored(quick, executor, scoring="self_reported", name="alone", fork_from=moved, **ONE)
    assert alone.expected == Measure(score=alone.final_solution.score or 0.0), "nothing was measured in this one"


async def test_scores_are_compared_on_the_same_rows_when_later_scripts_have_time_for_more(quick: QuickRun) -> None:
    """Of an hour, Phase 1 has time for one view a script, Phase 2 for more: equal answers have equal scores."""
    result = await scored(quick, answering(seconds=100.0))
    assert result.expected is not None and result.expected.measured == "harness" and result.expected.high
    finished = [(e, e.result.measure) for e in quick.events(ev.ScriptFinished) if e.result.measure is not None]
    assert {len(event.result.answers) for event, _ in finished if event.step.startswith("phase1")} == {1}
    assert max(len(event.result.answers) for event, _ in finished) > 1
    assert len({measure.rows for _, measure in finished}) == 1
    scores: dict[float, set[float]] = {}
    for event, measure in finished:
        scores.setdefault(noises(event.script)[0], set()).add(measure.score)
    assert len(finished) > len(scores) and all(len(alike) == 1 for alike in scores.values()), scores
    anew = {row.step: row.search for row in rescore(quick.dir) if row.search is not None}
    assert {step: search.score for step, search in anew.items()} == {e.step: m.score for e, m in finished}
    assert quick.events(ev.SolutionExamined)[-1].importance


async def test_where_time_is_short_a_script_that_is_behind_on_the_first_view_runs_on_no_other(quick: QuickRun) -> None:
    result = await scored(quick, agents=erring(0.3, 0.05, 0.2, changed="init"), M=3, more_steps=True, L=1)
    finished = [e.result for e in quick.events(ev.ScriptFinished) if e.result.measure is not None]
    views = {len(one.answers): one.measure for one in finished}
    assert noise_of(result) == 0.05 and len(views) == 2 and {*views} == {1, 5}
    assert views[1] is not None and views[1].estimated and views[5] is not None and not views[5].estimated


def spends(seconds: float, phase: str, *, once: bool = False) -> Callable[[ScriptRequest], Awaitable[None]]:
    """So much time passes with each script of a phase, or has passed once one ran there."""

    async def pass_time(request: ScriptRequest) -> None:
        budget = current_run().budget
        if current_run().phase == phase:
            budget._started -= max(seconds - budget.elapsed(), 0.0) if once else seconds

    return pass_time


async def test_time_that_is_left_goes_to_views_of_the_best_then_of_its_rivals(quick: QuickRun) -> None:
    """Of an hour, a script of 100 s has time for one view in the search; the third candidate is no rival.

    One of 650 s runs on the last view when all is done, which makes its expected score rest on more rows.
    """
    for seconds, answered in {100.0: (5, 5, 1), 300.0: (5, 1, 1), 650.0: (5,)}.items():
        executor, name = answering(seconds=seconds, before=spends(seconds, "views")), f"{seconds:g}"
        options: dict[str, Any] = {"agents": erring(0.05, 0.1, 0.45), "M": len(answered), "L": 1, "name": name}
        result = await scored(quick, executor, **options)
        most, used = dict.fromkeys(("0.050", "0.100", "0.450"), 0), 0
        for event in quick.events(ev.ScriptFinished, name):
            noise = "".join(re.findall(r"noise = ([\d.]+)", event.script))
            if noise in most and event.purpose in ("solution", "views"):
                most[noise] = max(most[noise], len(event.result.answers))
            used = max(used, len(event.result.answers) * (event.purpose == "solution"))
        assert tuple(most.values())[: len(answered)] == answered, name
        assert (
            result.expected is not None
            and result.expected.rows == 80 * answered[0] - 53 * used
            and noise_of(result) == 0.05
        )
        assert seconds == 300.0 or quick.events(ev.SolutionExamined, name)[-1].importance, "known before, and after"
        if seconds != 300.0:
            ran = len(executor.ran)
            again = await scored(quick, executor, resume=True, **options)
            assert story(again) == story(result) and len(executor.ran) == ran, "nothing runs again"
    await scored(quick, answering(seconds=100.0), name="letter", letter=True)
    assert not any(event.step.startswith("views") for event in quick.events(ev.ScriptFinished, "letter"))


async def test_a_run_whose_ideas_end_says_how_much_of_its_time_it_could_use(quick: QuickRun) -> None:
    words = {0.0: "nothing left to do after .* s of 1 h", 3300.0: "used its time"}
    words |= {2800.0: "nothing left to do after 46 min .* of 1 h"}
    for seconds, message in words.items():
        name, executor = f"{seconds:g}", answering(before=spends(seconds, "phase2", once=True))
        result = await scored(quick, executor, name=name, model="offline", T=2, **ONE)
        end = quick.events(ev.RunFinished, name)[-1]
        assert re.fullmatch(message, end.message), end.message
        assert (result.stopped_by, result.used_time) == (None, seconds == 3300.0)
        assert not any("stopped by" in warning for warning in result.warnings)


async def test_no_prompt_holds_a_hidden_label_or_its_place(quick: QuickRun, task: TaskDescription) -> None:
    def tell_labels(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        labels = re.findall(r",(\d{9})$", Path(request.working_dir, "input", "train.csv").read_text(), re.MULTILINE)
        output = f"Ablation baseline: 0.5\nAnalysis: {labels[-1]}\n{' '.join(labels)}\n{done.stdout}"
        return done.model_copy(update={"stdout": output})

    def numbers(text: str, rows: list[dict[str, str]]) -> list[tuple[str, Any]]:
        return [(row["id"], 500_000_000 + int(row["id"]) * 7919 % 1000) for row in rows]

    labels = [100_000_000 + i * 7_654_321 % 900_000_000 for i in range(400)]
    rows = [(i, i % 7, label) for i, label in enumerate([*labels, *[0] * 40])]
    folder = write_split(quick.dir.with_name("numbers"), "id,size,label", rows, 400)
    task = task.model_copy(update={"data_dir": str(folder), **LOSS})
    executor = answering(numbers, after=tell_labels)
    await scored(quick, executor, score_views=1, K=2, R=2, task=task)
    (view,) = (quick.dir / "views").glob("view-*")
    shown = set(re.findall(r",(\d{9})$", (view / "train.csv").read_text(), re.MULTILINE))
    hidden = set(map(str, labels)) - shown
    assert hidden and str(folder) in dict(executor.ran), "the last script saw all labels, and printed them"
    seen, calls = task.model_copy(update={"data_dir": str(view)}), quick.events(ev.AgentFinished)
    system = build_system_prompt(seen, gather_facts(seen, settings(scoring="auto"), {}, scored_by_answers=True))
    prompts = [system, *(call.prompt for call in calls)]
    assert any(shown & set(re.findall(r"\d{9}", prompt)) for prompt in prompts), "what scripts print is told"
    for prompt in prompts:
        assert not hidden & set(re.findall(r"\d{9}", prompt)), prompt
        assert str(folder) not in prompt and "answers/" not in prompt
    assert {call.agent for call in calls} >= set(AgentType) - {AgentType.debugger}


@pytest.mark.req("REQ-OR-016")
async def test_every_ensemble_may_be_selected_and_scripts_run_on_as_many_views_as_are_wanted(quick: QuickRun) -> None:
    """The first round is the best one, and no path comes near it."""
    rounds = iter([0.01, 0.45])
    agents = liars(ensembler=lambda _: fenced(solution(next(rounds), 0.9)))
    result = await scored(quick, agents=agents, R=2, score_views=2)
    (final,) = quick.events(ev.ShortlistScored)
    assert final.chosen == "ensemble 0" and noise_of(result) == 0.01
    assert {"ensemble 0", "ensemble 1"} <= {one["name"] for one in final.shortlist}
    assert {len(event.result.answers) for event in quick.events(ev.ScriptFinished) if event.result.measure} == {2}
    assert result.expected is not None and result.expected.measured == "harness" and result.expected.low is not None
    assert result.single_model is not None and result.single_model.measure.score is not None


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        (None, "119 rows, the test file 120: answer every one"),
        (lambda key, answer: 1, "120 of 120 answers in the column label are '1'"),
        (lambda key, answer: answer or 7 * (int(key) % 2), "holds '7', which is none of the labels"),
    ],
)
async def test_answers_that_are_missing_or_cannot_be_meant_are_a_case_for_the_debugger(
    quick: QuickRun, spoilt: Callable[[str, int], int] | None, words: str
) -> None:
    def spoil(text: str, rows: list[dict[str, str]]) -> list[tuple[str, Any]]:
        right = right_but_for_noise(text, rows)
        if "boasting" not in text:
            return right
        return right[1:] if spoilt is None else [(key, spoilt(key, answer)) for key, answer in right]

    result = await scored(quick, answering(spoil))
    failed = [event.result for event in quick.events(ev.ScriptFinished) if event.result.is_error]
    assert failed and words in (failed[0].error_traceback or "") and noise_of(result) == 0.05


async def test_agents_and_report_are_told_what_an_estimated_score_rests_on(quick: QuickRun) -> None:
    def slow_when_wrong(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        noise = (noises(Path(request.script_path).read_text(encoding="utf-8")) or [0.0])[0]
        return done.model_copy(update={"duration_seconds": {0.4: 100.0, 0.45: 750.0}.get(noise, 0.01)})

    await scored(quick, answering(after=slow_when_wrong), K=2, R=2, briefing=("memory",))
    merged = next(event for event in quick.events(ev.ScriptFinished) if "/merge-" in event.step)
    measure = merged.result.measure
    assert measure is not None and (measure.estimated, measure.views) == (True, 1), "there was time for one view only"
    basis = f"estimated from {measure.rows} rows, 1 view"
    behind = rf"worse by \S+ ± \S+ on the same {measure.rows} rows, rejected"
    line = rf"^- merge: .* -> {merged.result.score:.4g}, {basis}, {behind}"
    assert re.search(line, quick.prompts("planner")[-1], re.MULTILINE)
    ensemble = quick.prompts("ens_planner")[-1]
    changes = ensemble.split("each against what it was to beat, in their order: ")[1].splitlines()[0]
    assert re.fullmatch(r"worse by \S+ ± \S+ on the same \d+ rows, estimated from \d+ rows, \d views?\.", changes)
    assert "no script sees, in 5 runs of each script. " in ensemble
    assert f"<small>{basis}</small>" in write_report(quick.dir).read_text(encoding="utf-8")
    anew = {row.step: row.search for row in rescore(quick.dir)}
    assert anew[merged.step] == measure.model_copy(update={"printed": None})


@pytest.mark.parametrize("extra", ["permuted", "shuffled"])
async def test_an_extra_run_that_fails_in_an_odd_way_ends_no_run(quick: QuickRun, data_dir: Path, extra: str) -> None:
    if extra == "shuffled":  # what scripts print is probed
        repeat_a_key(data_dir)
    failed: list[str] = []

    async def odd(request: ScriptRequest) -> None:
        if Path(str(request.input_dir)).name == extra:
            failed.append(extra)
            raise RuntimeError("odd")

    result = await scored(quick, answering(before=odd), **ONE)
    assert failed == [extra] and "finalization" in result.phases_completed and submitted(result)


def on_all(act: Callable[[], ExecutionRawResult]) -> Callable[[ScriptRequest], Awaitable[ExecutionRawResult | None]]:
    async def before(request: ScriptRequest) -> ExecutionRawResult | None:
        return None if "views" in Path(str(request.input_dir)).parts else act()

    return before


async def test_where_the_final_script_fails_the_answers_of_the_search_count(quick: QuickRun, data_dir: Path) -> None:
    result = await scored(quick, agents=liars(test=fenced(solution(0.9, 0.9, "another one"))))
    assert any("agree with those of the scored script by" in warning for warning in result.warnings)
    assert SEARCHED in result.warnings and right_answers(result) >= 0.85
    assert any("what it wrote is in final/refit.csv" in warning for warning in result.warnings)
    assert (quick.dir / "final" / "refit.csv").is_file(), "both are kept"
    (data_dir / "sample_submission.csv").unlink()
    result = await scored(quick, answering(before=on_all(lambda: crash("KeyError: no such column"))), name="no sample")
    assert quick.events(ev.HoldOutPrepared, "no sample")[0].why_not == ""
    assert quick.events(ev.SubmissionKept, "no sample")
    assert SEARCHED in result.warnings and right_answers(result) >= 0.85


async def test_without_as_much_time_as_before_the_solution_is_neither_run_again_nor_repaired(quick: QuickRun) -> None:
    """A second run would be told to be quicker, and be worse than what was expected."""
    kept: list[float] = []

    def fail_late() -> ExecutionRawResult:
        budget = current_run().budget
        kept.append(budget.rerun_seconds)
        budget.time_limit -= 2000
        return crash("OSError: odd").model_copy(update={"duration_seconds": 2000.0})

    runs = {  # of one hour: 1.25 times as much is left, or is not
        "in time": (answering(seconds=2800.0), [False]),
        "late": (answering(seconds=3000.0), []),
        "too late for a repair": (answering(seconds=1500.0, before=on_all(fail_late)), [True]),
    }
    for name, (executor, errors) in runs.items():
        result = await scored(quick, executor, name=name, **ONE)
        again = [run.result.is_error for run in quick.events(ev.ScriptFinished, name) if run.purpose == "submission"]
        reason = f"s are left, and the scored solution ran for {executor.seconds:g} s"
        warned, late = any(reason in warning for warning in result.warnings), name != "in time"
        assert (again, warned, SEARCHED in result.warnings) == (errors, late, late), name
        assert submitted(result).startswith("id,label")
    assert kept[-1] == 1.5 * 1500, "the phases before leave as much, as far as they can"


async def test_the_question_about_subsampling_is_asked_only_where_rows_may_have_been_cut(quick: QuickRun) -> None:
    cases = {"all": (30_000, ""), "limit": (300, ""), "cut": (30_000, "rows = rows[:99]")}
    for name, (limit, note) in cases.items():
        agents = liars(init=fenced(solution(0.05, 0.6, note)))
        result = await scored(quick, agents=agents, subsample_limit=limit, name=name, **ONE)
        variants = {event.variant for event in quick.events(ev.AgentFinished, name)}
        assert result.submission_path and ("subsampling_extract" in variants) is (name != "all"), name


async def test_a_second_run_on_the_data_is_no_change(quick: QuickRun, task: TaskDescription, data_dir: Path) -> None:
    """Views link to what they do not change: a second run adds a link while a script of the first is at work."""
    second = data_dir.with_name("second")

    async def begin_another(request: ScriptRequest) -> None:
        if not second.exists():
            second.mkdir()
            HoldOut.prepare(task, settings(scoring="auto"), second)

    (data_dir / "stores.csv").write_text("store,size\n" + "".join(f"{i},{i * 3}\n" for i in range(9)))
    await scored(quick, answering(before=begin_another), agents := liars())
    assert (second / "views" / "view-0" / "stores.csv").stat().st_nlink > 2 and agents.count("debugger") == 0
    assert not [event for event in quick.events(ev.Notice) if event.level == "error"]


async def test_who_stops_a_run_that_has_its_submission_has_its_result(quick: QuickRun) -> None:
    async def stop(request: ScriptRequest) -> None:
        if current_run().phase == "importance":
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(600)

    result = await scored(quick, answering(before=stop), signals=True, **ONE)
    assert result.warnings == ["stopped by SIGTERM after the submission was made"]
    kept = FinalResult.model_validate_json((quick.dir / "result.json").read_text())
    assert (quick.last.state, story(kept)) == ("completed", story(result))
    assert submitted(result) and result.phases_completed == ["phase1", "phase2", "finalization"]


async def test_many_rows_have_one_view_in_search_and_others_in_the_end(quick: QuickRun, task: TaskDescription) -> None:
    folder = str(write_sizes(quick.dir.with_name("many"), 5000))
    result = await scored(quick, task=task.model_copy(update={"data_dir": folder}))
    final = quick.events(ev.ShortlistScored)[0]
    assert {one["rows"] for one in final.shortlist} == {500, 4500}, "rivals answer as many as the best, or the first"
    searched = [e.result for e in quick.events(ev.ScriptFinished) if e.purpose == "solution" and e.result.measure]
    assert {(len(one.answers), one.measure and one.measure.rows) for one in searched} == {(1, 500)}
    assert {one["name"] for one in final.shortlist} >= {"initial solution", "path 0", "ensemble 0"}
    compared = {one["name"]: one["compared"] for one in final.shortlist if one["name"] != "blend"}
    assert compared[final.chosen] == max(compared.values()) > min(compared.values())
    assert result.expected is not None and result.expected.rows == 4500 and noise_of(result) == 0.05
    assert result.task.data_dir == folder
    portrait = quick.events(ev.SolutionExamined)[-1]  # of what was picked, on every hidden row
    (true_no, false_yes), (false_no, true_yes) = portrait.confusion
    assert (true_no + true_yes + false_no + false_yes, portrait.classes) == (5000, ["0", "1"])
    assert (false_yes + false_no) / portrait.rows == pytest.approx(0.05, abs=0.02)
    [(column, worse)] = portrait.importance  # the label follows from the size: half of the answers are wrong without it
    assert column == "size" and worse == pytest.approx(0.45, abs=0.1)


async def test_the_sample_holds_no_label_that_is_scored(quick: QuickRun, task: TaskDescription, tmp_path: Path) -> None:
    await scored(quick, task=task.model_copy(update={"data_dir": str(write_sizes(tmp_path / "many", 70_000))}), **ONE)
    assert {run.purpose for run in quick.events(ev.ScriptFinished)} >= {"sample", "solution"}
    (sample,), view = (quick.dir / "views").glob("sample-*"), quick.dir / "views" / "view-0"
    met, shown = (set((folder / "train.csv").read_text().splitlines()) for folder in (sample, view))
    assert met < shown and len(shown) < 70_000 and len(met) == len(shown) // 10 + 1
    assert (sample / "test.csv").read_bytes() == (view / "test.csv").read_bytes()


async def test_one_table_alone_ends_with_an_expected_score_and_no_submission(quick: QuickRun, data_dir: Path) -> None:
    for name in ("test.csv", "sample_submission.csv"):
        (data_dir / name).unlink()
    met: list[tuple[int, bool]] = []  # labelled rows, and is what was fitted there?

    def fit(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        kept = Path(request.working_dir, "model", "weights")
        met.append((Path(request.working_dir, "input", "train.csv").read_text().count("\n") - 1, kept.exists()))
        if kept.parent.is_dir():
            kept.write_text("1 2 3")
        return done

    executor = answering(after=fit)
    result = await scored(quick, executor, briefing=("model",))
    assert (result.submission_path, result.has_test) == ("", False) and "finalization" in result.phases_completed
    assert met[-1] == (400, False) and not any(rows == 400 for rows, _ in met[:-1]) and not result.warnings
    assert len(load_model(quick.dir, executor=executor).predict(data_dir / "train.csv")) == 400
    assert met[-1] == (400, True), "the first prediction finds the model that the run has fitted on all rows"
    view = (quick.dir / "input").resolve()  # rows held back stand in for the test
    assert view.parent == quick.dir / "views" and (view / "test.csv").is_file()
    assert result.expected is not None and result.expected.measured == "harness" and noise_of(result) == 0.05


async def test_where_the_data_only_hint_at_groups_both_splits_are_measured(quick: QuickRun, data_dir: Path) -> None:
    for name in ("test.csv", "sample_submission.csv"):
        (data_dir / name).unlink()
    head, *rows = (data_dir / "train.csv").read_text().splitlines()
    body = "".join(f"{i % 23},{row}\n" for i, row in enumerate(rows))
    (data_dir / "train.csv").write_text(f"shop_id,{head}\n{body}")
    shown = list[set[str]]()

    def look(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        if current_run().phase == "split-by-groups":
            tables = [Path(request.working_dir, "input", f"{name}.csv").read_text() for name in ("train", "test")]
            shown.extend({line.split(",")[0] for line in table.splitlines()[1:]} for table in tables)
        return done

    result = await scored(quick, answering(after=look), **ONE)
    (hint,) = [event.message for event in quick.events(ev.Notice) if "shop_id" in event.message]
    assert hint.endswith("rows are hidden at random, `--group shop_id` if that is wrong")
    known, hidden = shown
    assert known | hidden == {str(shop) for shop in range(23)} and not known & hidden, "no shop is on both sides"
    begin, end = "with whole groups of shop_id hidden the solution scores", "`--group shop_id` makes this the split"
    words = "0.68 to 0.99 (95 % interval), best guess 0.94, from 87 rows, for as many new rows"
    assert result.warnings == [f"{begin} {words}; {end}"]
    again = await scored(quick, (executor := answering()), resume=True, time_limit_seconds=1, **ONE)
    assert again.warnings == result.warnings and executor.ran == [], "with less time it is taken over"


@pytest.mark.parametrize("why", ["2 labelled rows are too few", "more than once"])
async def test_what_cannot_be_scored_is_self_reported_and_probed(quick: QuickRun, data_dir: Path, why: str) -> None:
    def look(request: ScriptRequest, done: ExecutionRawResult) -> ExecutionRawResult:
        unsteady = why != "more than once" and current_run().phase == "probes"
        return done.model_copy(update={"stdout": done.stdout.replace("0.9999", "0.5")}) if unsteady else done

    if why == "more than once":
        repeat_a_key(data_dir)
    else:
        (data_dir / "train.csv").write_text("id,size,label\n1,2,0\n2,30,1\n")
    result = await scored(quick, answering(after=look))
    assert why in quick.events(ev.HoldOutPrepared)[0].why_not
    assert result.expected is not None and result.expected.measured == "self-reported"
    probed = [text for text in result.warnings if "on shuffled labels it prints 0.9999, where a dummy gets 0.5" in text]
    assert probed or why != "more than once"
    again = [text for text in result.warnings if "same seed" in text or "second run" in text]
    assert again == ["the same script with the same seed prints 0.9999 and 0.5"] * (why != "more than once")
    later = await scored(quick, (executor := answering()), resume=True, time_limit_seconds=1)
    assert later.warnings == result.warnings and executor.ran == [], "with less time it is taken over"


async def test_a_script_of_an_earlier_process_stays_in_question_when_its_step_is_done_anew(quick: QuickRun) -> None:
    await scored(quick, agents=erring(0.3, 0.02), L=1)
    result = await scored(quick, agents=erring(0.2, 0.25, changed="all"), L=1, resume=True)
    assert noise_of(result) == 0.02
    final = quick.events(ev.ShortlistScored)[-1]
    assert re.fullmatch(r"phase1/candidate-1/script \([0-9a-f]{8}\)", final.chosen)
    assert "phase1/candidate-1/script" in {one["name"] for one in final.shortlist}, "what is there now has its name"
    assert not any(row["chosen"] for row in leaderboard_rows(quick.dir)), "nor is it taken for the chosen one"


async def test_a_script_that_an_earlier_process_found_leaking_is_never_picked(quick: QuickRun) -> None:
    """The later process asks another model for one candidate only: it never comes to the script that leaks."""
    assert noise_of(await scored(quick, agents=erring(0.05, 0.01, **leaking("noise = 0.010")), L=1)) == 0.05
    ways: list[dict[str, Any]] = [{"name": "fork", "fork_from": quick.dir}, {"resume": True}]
    for way in ways:
        assert noise_of(await scored(quick, agents=erring(0.2, changed="all"), **ONE, **way)) == 0.05, way


async def test_each_solution_has_its_own_importance_of_columns(quick: QuickRun) -> None:
    executor = answering(seconds=0.0)
    await scored(quick, executor, erring(0.3, 0.3), L=1)
    await scored(quick, executor, erring(0.0, 0.02, changed="all"), L=1, resume=True)
    found = {event.digest: event.importance for event in quick.events(ev.SolutionExamined) if event.importance}
    (before, now) = [dict(columns)["size"] for columns in found.values()]
    assert now == pytest.approx(0.5, abs=0.1) and before < now
    again = await scored(quick, executor, erring(0.0, 0.02, changed="all"), L=1, resume=True)
    probes = [event for event in quick.events(ev.ScriptFinished) if event.purpose == "probe"]
    assert again.submission_path and len(probes) == 2, "what was measured is not measured again"
