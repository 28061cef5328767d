"""Scripts scored by labels that they never see: what a run expects is what its answers are worth."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mle_star.errors import ConfigError
from mle_star.holdout.holdout import HoldOut
from mle_star.models import (
    AgentConfig,
    AgentType,
    ExecutionRawResult,
    FinalResult,
    Measure,
    MetricDirection,
    TaskDescription,
    TaskType,
)
from mle_star.orchestrator import run_pipeline
from mle_star.run.context import ScriptRequest, current_run
from mle_star.run.events import (
    AgentFinished,
    AnyEvent,
    HoldOutPrepared,
    Notice,
    ScriptFinished,
    ShortlistScored,
    SolutionExamined,
    SubmissionKept,
)
from mle_star.sdk import build_system_prompt
from mle_star.search.rescore import rescore
from mle_star.search.setup import gather_facts
from mle_star.views import write_report
from mle_star.views.leaderboard import leaderboard_rows
from tests.method.conftest import crash
from tests.pipeline.conftest import QuickRun, events, settings, story
from tests.pipeline.mind import Mind, MindAgents, fenced, levels

CLASSES = 10


def solution(noise: float, claim: float, note: str = "") -> str:
    """A script that is wrong on a share of the rows and says of itself what it likes."""
    return f"# {note}\nnoise = {noise:.3f}\nlevel = {claim:.4f}\nwrite('submission.csv')\n"


def is_wrong(row: str, noise: float) -> bool:
    return int(row) * 7919 % 1000 < 1000 * noise


@dataclass
class AnsweringExecutor:
    """Answers the test file by a rule that it knows, wrong on a share of the rows; sees what scripts see."""

    seen: list[str] = field(default_factory=list)
    views: set[str] = field(default_factory=set)
    spoil: str = ""
    spoilt: Callable[[int, int], int] | None = None  # another answer, by key and answer; without it a row is missing
    seconds: float = 0.01

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """What the script would have done."""
        folder, text = Path(request.working_dir), Path(request.script_path).read_text(encoding="utf-8")
        out = "".join(f"{line}\n" for line in re.findall(r"^print\('(Ablation .*)'\)$", text, re.MULTILINE))
        self.views.add(str(request.input_dir))
        if "submission.csv" in text:
            noise = float(re.findall(r"noise = ([\d.]+)", text)[0])
            with (folder / "input" / "test.csv").open(newline="") as stream:
                rows = list(csv.DictReader(stream))
            self.seen.append((folder / "input" / "train.csv").read_text())
            answers = [(int(row["id"]), int((int(row["size"]) > 25) ^ is_wrong(row["id"], noise))) for row in rows]
            if self.spoil and self.spoil in text:
                change = self.spoilt
                answers = answers[1:] if change is None else [(key, change(key, answer)) for key, answer in answers]
            body = "".join(f"{key},{answer}\n" for key, answer in answers)
            (folder / "final" / "submission.csv").write_text(f"id,label\n{body}", encoding="utf-8")
            out += f"Final Validation Performance: {levels(text)[-1]}\n"
        return ExecutionRawResult(stdout=out, stderr="", exit_code=0, duration_seconds=self.seconds, timed_out=False)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """400 labelled rows, few enough for folds; the label follows from the size."""
    return write_task(tmp_path / "data", 400)


def write_task(folder: Path, count: int) -> Path:
    folder.mkdir()
    rows = [(i, i * 7 % 50, int(i * 7 % 50 > 25)) for i in range(count + 40)]
    (folder / "train.csv").write_text("id,size,label\n" + "".join(f"{i},{s},{y}\n" for i, s, y in rows[:count]))
    (folder / "test.csv").write_text("id,size\n" + "".join(f"{i},{s}\n" for i, s, _ in rows[count:]))
    (folder / "sample_submission.csv").write_text("id,label\n" + "".join(f"{i},0\n" for i, *_ in rows[count:]))
    return folder


def liars(**overrides: Any) -> MindAgents:
    """Two candidates: a good one that is modest and a bad one that boasts; the ensemble boasts most."""
    candidates = {"model 0": solution(0.05, 0.6, "modest"), "model 1": solution(0.3, 0.99, "boasting")}

    def init(prompt: str) -> str:
        return fenced(next(code for name, code in candidates.items() if re.search(rf"^{name}$", prompt, re.MULTILINE)))

    def echo(prompt: str) -> str:
        found = re.findall(r"noise = ([\d.]+)\nlevel = ([\d.]+)", prompt)
        return fenced(solution(float(found[0][0]), float(found[0][1]), "the same"))

    mind = Mind(
        overrides={
            "init": init, "merger": lambda _: fenced(solution(0.4, 0.995, "merged")), "test": echo, "debugger": echo,
            "ensembler": lambda _: fenced(solution(0.45, 0.9999, "ensemble")),
            "test-subsampling_extract": lambda _: "There is no subsampling in this script.",
            "test-contamination": lambda _: {"verdict": "Novel"}, **overrides,
        }
    )  # fmt: skip
    return MindAgents(mind)


def noise_of(result: FinalResult) -> float:
    return float(re.findall(r"noise = ([\d.]+)", result.final_solution.content)[0])


async def test_the_better_answers_win_over_the_better_claims(quick: QuickRun, tmp_path: Path) -> None:
    executor = AnsweringExecutor()
    honest = await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=executor)
    assert noise_of(honest) == 0.05
    assert honest.expected is not None and honest.expected.measured == "harness"
    low, high = honest.expected.low or 1, honest.expected.high or 0
    assert low <= 0.95 <= high and honest.final_solution.score == honest.expected.score
    submitted = Path(honest.submission_path).read_text().splitlines()
    assert [line.split(",")[0] for line in submitted[1:]] == [str(i) for i in range(400, 440)]
    told = await quick(
        settings(scoring="self_reported", K=1, R=1), agents=liars(), executor=AnsweringExecutor(), name="b"
    )
    assert noise_of(told) == 0.45
    assert told.expected is not None and (told.expected.score, told.expected.measured) == (0.9999, "self-reported")
    holdout = events(tmp_path / "run", HoldOutPrepared)[0]
    assert (holdout.views, holdout.search_rows, holdout.select_rows, holdout.why_not) == (5, 265, 135, "")
    assert holdout.baseline is not None and holdout.baseline.score == pytest.approx(0.52, abs=0.03)


async def test_no_script_sees_a_label_that_it_is_scored_by(quick: QuickRun, tmp_path: Path) -> None:
    executor = AnsweringExecutor()
    await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=executor)
    scored = [event for event in events(tmp_path / "run", ScriptFinished) if event.result.answers]
    assert scored
    searched = [text for text in executor.seen if text.count("\n") == 1 + 320]
    assert len(searched) >= 5 * 3  # every script on five views, each without another fifth of the labels
    final = [text for text in executor.seen if text.count("\n") == 1 + 400]
    assert len(final) == 1, "only the script of finalization sees all labels"
    assert len(set(executor.seen)) == 6  # five views and the whole: nothing runs again for the final pick


@pytest.mark.parametrize(("seconds", "changes", "count"), [(0.01, {"score_views": 2}, 2), (100.0, {}, 1)])
async def test_a_script_runs_on_as_many_views_as_are_asked_for_and_as_its_share_of_the_time_allows(
    quick: QuickRun, tmp_path: Path, seconds: float, changes: dict[str, int], count: int
) -> None:
    """An hour, of which Phase 1 has six minutes for at least two scripts one after the other."""
    executor = AnsweringExecutor(seconds=seconds)
    result = await quick(settings(scoring="auto", K=1, R=1, **changes), agents=liars(), executor=executor)
    scored = [e for e in events(tmp_path / "run", ScriptFinished) if e.step.startswith("phase1") and e.result.measure]
    assert scored and {len(event.result.answers) for event in scored} == {count}
    expected = result.expected
    assert expected is not None and expected.measured == "harness" and expected.low is not None and expected.high


async def test_scores_are_compared_on_the_same_rows_when_later_scripts_have_time_for_more(
    quick: QuickRun, tmp_path: Path
) -> None:
    """Phase 1 has time for one view a script, Phase 2 for more: what answers alike has the same score throughout."""
    executor = AnsweringExecutor(seconds=100.0)
    await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=executor)
    scored = [(e, e.result.measure) for e in events(tmp_path / "run", ScriptFinished) if e.result.measure is not None]
    assert {len(event.result.answers) for event, _ in scored if event.step.startswith("phase1")} == {1}
    assert max(len(event.result.answers) for event, _ in scored) > 1
    assert len({measure.rows for _, measure in scored}) == 1
    scores: dict[str, set[float]] = {}
    for event, measure in scored:
        scores.setdefault(re.findall(r"noise = [\d.]+", event.script)[0], set()).add(measure.score)
    assert len(scored) > len(scores) and all(len(alike) == 1 for alike in scores.values()), scores
    anew = {row.step: row.search for row in rescore(tmp_path / "run") if row.search is not None}
    assert {step: search.score for step, search in anew.items()} == {e.step: m.score for e, m in scored}
    told = [event.message for event in events(tmp_path / "run", Notice) if event.step == "importance"]
    assert told == [
        "which columns matter is not measured: one more run of the solution takes more than 5% of the time so far"
    ]


class Talkative(AnsweringExecutor):
    """Its scripts print every label that they can see, and answer with numbers."""

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """What such a script would have done."""
        folder, text = Path(request.working_dir), Path(request.script_path).read_text(encoding="utf-8")
        labels = re.findall(r",(\d{9})$", (folder / "input" / "train.csv").read_text(), re.MULTILINE)
        self.seen.append(str(request.input_dir))
        out = f"Ablation baseline: 0.5\nAnalysis: {labels[-1]}\n{' '.join(labels)}\n"
        if "submission.csv" in text:
            with (folder / "input" / "test.csv").open(newline="") as stream:
                rows = [int(row["id"]) for row in csv.DictReader(stream)]
            body = "".join(f"{row},{500_000_000 + row * 7919 % 1000}\n" for row in rows)
            (folder / "final" / "submission.csv").write_text(f"id,y\n{body}", encoding="utf-8")
            out += f"Final Validation Performance: {levels(text)[-1]}\n"
        return ExecutionRawResult(stdout=out, stderr="", exit_code=0, duration_seconds=0.01, timed_out=False)


async def test_no_prompt_holds_a_hidden_label_or_a_place_outside_the_view(
    quick: QuickRun, task: TaskDescription, tmp_path: Path
) -> None:
    folder = tmp_path / "numbers"
    folder.mkdir()
    labels = [100_000_000 + i * 7_654_321 % 900_000_000 for i in range(400)]
    (folder / "train.csv").write_text("id,x,y\n" + "".join(f"{i},{i % 7},{y}\n" for i, y in enumerate(labels)))
    (folder / "test.csv").write_text("id,x\n" + "".join(f"{i},{i % 7}\n" for i in range(400, 440)))
    (folder / "sample_submission.csv").write_text("id,y\n" + "".join(f"{i},0\n" for i in range(400, 440)))
    kind = {"task_type": TaskType.regression, "evaluation_metric": "rmse", "metric_direction": MetricDirection.minimize}
    task = task.model_copy(update={"data_dir": str(folder), "description": "Predict `y`.", **kind})
    executor, config = Talkative(), settings(scoring="auto", score_views=1, K=2, R=2)
    await quick(config, agents=liars(), executor=executor, task=task)
    (view,) = (tmp_path / "run" / "views").glob("view-*")
    shown = set(re.findall(r",(\d{9})$", (view / "train.csv").read_text(), re.MULTILINE))
    hidden = set(map(str, labels)) - shown
    assert hidden and str(folder) in executor.seen, "the last script saw all labels, and printed them"
    seen = task.model_copy(update={"data_dir": str(view)})
    prompts = [event.prompt for event in events(tmp_path / "run", AgentFinished)]
    prompts.append(build_system_prompt(seen, gather_facts(seen, config, {}, scored_by_answers=True)))
    assert any(shown & set(re.findall(r"\d{9}", prompt)) for prompt in prompts), "what scripts print is told"
    for prompt in prompts:
        assert not hidden & set(re.findall(r"\d{9}", prompt)), prompt
        assert str(folder) not in prompt and "answers/" not in prompt
    assert {event.agent for event in events(tmp_path / "run", AgentFinished)} >= set(AgentType) - {AgentType.debugger}


@pytest.mark.req("REQ-OR-016")
async def test_every_ensemble_may_be_selected(quick: QuickRun, tmp_path: Path) -> None:
    """The first round is the best one, and no path comes near it."""
    rounds = iter([0.01, 0.45])
    agents = liars(ensembler=lambda _: fenced(solution(next(rounds), 0.9)))
    result = await quick(settings(scoring="auto", K=1, R=2), agents=agents, executor=AnsweringExecutor())
    (scored,) = events(tmp_path / "run", ShortlistScored)
    assert scored.chosen == "ensemble 0" and noise_of(result) == 0.01
    assert {"ensemble 0", "ensemble 1"} <= {one["name"] for one in scored.shortlist}


async def test_a_leak_is_told_by_the_gap_between_claim_and_worth(quick: QuickRun, tmp_path: Path) -> None:
    await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=AnsweringExecutor())
    told = [event.message for event in events(tmp_path / "run", Notice) if "leaks" in event.message]
    assert any(re.search(r"prints 0.99 and is worth 0\.(6[5-9]|7)", message) for message in told)
    assert not any("prints 0.6 " in message for message in told)


async def test_answers_that_are_missing_are_a_case_for_the_debugger(quick: QuickRun, tmp_path: Path) -> None:
    result = await quick(
        settings(scoring="auto", K=1, R=1), agents=liars(), executor=AnsweringExecutor(spoil="boasting")
    )
    failed = [e for e in events(tmp_path / "run", ScriptFinished) if e.result.is_error]
    assert failed and "119 rows, the test file 120: answer every one" in (failed[0].result.error_traceback or "")
    assert noise_of(result) == 0.05


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        (lambda key, answer: 1, "120 of 120 answers in the column label are '1'"),
        (lambda key, answer: answer or 7 * (key % 2), "holds '7', which is none of the labels"),
    ],
)
async def test_answers_that_cannot_be_meant_are_a_case_for_the_debugger(
    quick: QuickRun, tmp_path: Path, spoilt: Callable[[int, int], int], words: str
) -> None:
    executor = AnsweringExecutor(spoil="boasting", spoilt=spoilt)
    await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=executor)
    failed = [e for e in events(tmp_path / "run", ScriptFinished) if e.result.is_error]
    assert failed and words in (failed[0].result.error_traceback or "")


async def test_whoever_compares_scores_is_told_how_sure_they_are(quick: QuickRun, tmp_path: Path) -> None:
    await quick(settings(scoring="auto", K=2, R=2), agents=liars(), executor=AnsweringExecutor())
    asked = {event.agent.value: event.prompt for event in events(tmp_path / "run", AgentFinished)}
    for agent in ("planner", "extractor", "ens_planner"):
        assert "measured on 265 rows whose labels no script sees" in asked[agent], agent
        assert ("Intervals of the plans' scores above, in their order: 0." in asked[agent]) is (agent != "extractor")
    assert "no script sees" not in asked["coder"]


class SlowWhenWrong(AnsweringExecutor):
    """Its worst scripts take so long that there is time for one view only."""

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        done = await super().run(request)
        (noise,) = re.findall(r"noise = ([\d.]+)", Path(request.script_path).read_text(encoding="utf-8"))[:1] or ["0"]
        return done.model_copy(update={"duration_seconds": {"0.400": 100.0, "0.450": 750.0}.get(noise, 0.01)})


async def test_agents_and_report_are_told_what_an_estimated_score_rests_on(quick: QuickRun, tmp_path: Path) -> None:
    config = settings(scoring="auto", K=2, R=2, briefing=("memory",))
    await quick(config, agents=liars(), executor=SlowWhenWrong())
    merged = next(event for event in events(tmp_path / "run", ScriptFinished) if "/merge-" in event.step)
    assert merged.result.measure is not None and (merged.result.measure.estimated, merged.result.measure.views) == (
        True,
        1,
    )
    basis = f"estimated from {merged.result.measure.rows} rows, 1 view"
    asked = {event.agent.value: event.prompt for event in events(tmp_path / "run", AgentFinished)}
    assert re.search(
        rf"^- merge: .* -> {merged.result.score:.6g} \(.*\), {basis}, worse by", asked["planner"], re.MULTILINE
    )
    assert (
        " (estimated from 106 rows, 2 views)."
        in asked["ens_planner"].split("Intervals of the plans' scores above")[1].splitlines()[0]
    )
    assert "no script sees, in 5 runs of each script. " in asked["ens_planner"]
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert f"<small>{basis}</small>" in page
    anew = {row.step: row.search for row in rescore(tmp_path / "run")}
    assert anew[merged.step] is not None and anew[merged.step] == merged.result.measure.model_copy(
        update={"printed": None}
    )


async def test_the_submissions_of_a_run_are_scored_anew(quick: QuickRun, tmp_path: Path, data_dir: Path) -> None:
    result = await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=AnsweringExecutor())
    answers = tmp_path / "answers.csv"
    answers.write_text("id,label\n" + "".join(f"{i},{int(i * 7 % 50 > 25)}\n" for i in range(400, 440)))
    before = sorted(path for path in (tmp_path / "run").rglob("*"))
    rows = {row.step: row for row in rescore(tmp_path / "run", answers)}
    assert sorted(path for path in (tmp_path / "run").rglob("*")) == before
    final = rows["final/submission.csv"]
    assert final.select == result.expected and (final.truth or 0) >= 0.85
    scored = {e.step: e for e in events(tmp_path / "run", ScriptFinished) if e.result.measure is not None}
    assert {step: row.search.score for step, row in rows.items() if row.search} == {
        step: event.result.measure.score for step, event in scored.items() if event.result.measure
    }
    boasting = next(row for row in rows.values() if row.printed == 0.99)
    assert boasting.search is not None and boasting.truth == pytest.approx(boasting.search.score, abs=0.2)
    (data_dir / "train.csv").write_text((data_dir / "train.csv").read_text() + "999,3,0\n")
    with pytest.raises(ConfigError, match="have changed since, or another version"):
        rescore(tmp_path / "run")


async def test_what_stays_self_reported_is_probed(quick: QuickRun, data_dir: Path) -> None:
    train = data_dir / "train.csv"
    train.write_text(train.read_text() + "0,1,0\n")  # a key that occurs twice: nothing can be hidden
    result = await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=AnsweringExecutor())
    assert any("on shuffled labels it prints 0.9999, where a dummy gets 0.5" in text for text in result.warnings)
    assert not any("same seed" in text for text in result.warnings)


@dataclass
class Odd(AnsweringExecutor):
    """Fails in a way that nobody has thought of, on the data of one kind of extra run."""

    extra: str = ""
    failed: int = 0

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        if Path(str(request.input_dir)).name == self.extra:
            self.failed += 1
            raise RuntimeError("odd")
        return await super().run(request)


@pytest.mark.parametrize("extra", ["permuted", "shuffled"])
async def test_an_extra_run_that_fails_in_an_odd_way_ends_no_run(quick: QuickRun, data_dir: Path, extra: str) -> None:
    if extra == "shuffled":  # nothing can be hidden: what scripts print is probed
        train = data_dir / "train.csv"
        train.write_text(train.read_text() + "0,1,0\n")
    executor = Odd(extra=extra)
    result = await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=executor)
    assert executor.failed == 1
    assert "finalization" in result.phases_completed and Path(result.submission_path).is_file()


class FailsOnAll(AnsweringExecutor):
    """Its scripts answer on every view, and fail on the untouched data."""

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        if "views" in Path(str(request.input_dir)).parts:
            return await super().run(request)
        return crash("KeyError: no such column")


async def test_without_a_sample_the_answers_of_the_search_are_kept_as_well(
    quick: QuickRun, data_dir: Path, tmp_path: Path
) -> None:
    (data_dir / "sample_submission.csv").unlink()
    result = await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=FailsOnAll())
    assert events(tmp_path / "run", HoldOutPrepared)[0].why_not == "" and events(tmp_path / "run", SubmissionKept)
    assert "the submission is what the scored script itself said in the search" in result.warnings
    with Path(result.submission_path).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == [str(i) for i in range(400, 440)]
    right = [int(int(row["id"]) * 7 % 50 > 25) == int(row["label"]) for row in rows]
    assert sum(right) >= 0.85 * len(right)


async def test_many_rows_are_scored_on_one_view_and_picked_on_rows_apart(
    quick: QuickRun, task: TaskDescription, tmp_path: Path
) -> None:
    folder = write_task(tmp_path / "many", 5000)
    task = task.model_copy(update={"data_dir": str(folder)})
    result = await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=AnsweringExecutor(), task=task)
    scored = events(tmp_path / "run", ShortlistScored)[0]
    assert {one["rows"] for one in scored.shortlist} == {500}
    assert {one["name"] for one in scored.shortlist} >= {"initial solution", "path 0", "ensemble 0"}
    compared = {one["name"]: one["compared"] for one in scored.shortlist if one["name"] != "blend"}
    assert compared[scored.chosen] == max(compared.values()) > min(compared.values())
    assert result.expected is not None and result.expected.rows == 500 and noise_of(result) == 0.05
    assert result.task.data_dir == str(folder)
    portrait = events(tmp_path / "run", SolutionExamined)[-1]  # of what was picked, on every hidden row
    right, wrong = (
        portrait.confusion[0][0] + portrait.confusion[1][1],
        portrait.confusion[0][1] + portrait.confusion[1][0],
    )
    assert (right + wrong, portrait.classes) == (1000, ["0", "1"])
    assert wrong / portrait.rows == pytest.approx(0.05, abs=0.02)
    [(column, worse)] = portrait.importance  # the label follows from the size: half of the answers are wrong without it
    assert column == "size" and worse == pytest.approx(0.45, abs=0.1)


async def test_the_sample_of_a_large_table_holds_no_label_that_a_script_is_scored_by(
    quick: QuickRun, task: TaskDescription, tmp_path: Path
) -> None:
    task = task.model_copy(update={"data_dir": str(write_task(tmp_path / "many", 70_000))})
    config = settings(scoring="auto", M=1, L=1, T=1, K=1)
    await quick(config, agents=liars(), executor=AnsweringExecutor(), task=task)
    assert {run.purpose for run in events(tmp_path / "run", ScriptFinished)} >= {"sample", "solution"}
    (sample,) = (tmp_path / "run" / "views").glob("sample-*")
    (view,) = (tmp_path / "run" / "views").glob("view-*")
    shown = set((view / "train.csv").read_text().splitlines())
    met = set((sample / "train.csv").read_text().splitlines())
    assert met < shown and len(shown) < 70_000 and len(met) == len(shown) // 10 + 1
    assert (sample / "test.csv").read_bytes() == (view / "test.csv").read_bytes()


@pytest.mark.parametrize("seconds", [2800.0, 3000.0])  # of one hour: 1.25 times as much is left, or is not
async def test_without_time_to_run_as_long_as_it_was_scored_the_solution_is_not_run_again(
    quick: QuickRun, tmp_path: Path, seconds: float
) -> None:
    executor = AnsweringExecutor(seconds=seconds)
    result = await quick(settings(scoring="auto", M=1, L=1, T=1, K=1, R=1), agents=liars(), executor=executor)
    again = [run for run in events(tmp_path / "run", ScriptFinished) if run.purpose == "submission"]
    late = [warning for warning in result.warnings if "s are left, and the scored solution ran for" in warning]
    assert (bool(again), bool(late)) == ((True, False) if seconds < 2900 else (False, True))
    assert Path(result.submission_path).read_text().startswith("id,label")
    assert ("the submission is what the scored script itself said in the search" in result.warnings) == bool(late)


@dataclass
class FailingAtLast(AnsweringExecutor):
    """The run on all rows takes much of the time that is left, and fails."""

    kept: float = 0.0

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        if "views" in Path(str(request.input_dir)).parts:
            return await super().run(request)
        budget = current_run().budget
        self.kept, budget.time_limit = budget.again_seconds, budget.time_limit - 2000
        return ExecutionRawResult(
            stdout="", stderr="Traceback (most recent call last):\nOSError: odd\n", exit_code=1,
            duration_seconds=2000.0, timed_out=False,
        )  # fmt: skip


async def test_a_final_script_is_not_repaired_when_it_would_have_less_time_than_it_was_scored_by(
    quick: QuickRun, tmp_path: Path
) -> None:
    executor = FailingAtLast(seconds=1500.0)
    result = await quick(settings(scoring="auto", M=1, L=1, T=1, K=1, R=1), agents=liars(), executor=executor)
    again = [run.result.is_error for run in events(tmp_path / "run", ScriptFinished) if run.purpose == "submission"]
    assert executor.kept == 1.5 * 1500, "the phases before leave as much, as far as they can"
    assert again == [True], "a second run would be told to be quicker, and be worse than what was expected"
    assert any("s are left, and the scored solution ran for 1500 s" in warning for warning in result.warnings)
    assert "the submission is what the scored script itself said in the search" in result.warnings


async def test_a_final_script_that_answers_otherwise_is_not_handed_over(quick: QuickRun, tmp_path: Path) -> None:
    agents = liars(test=lambda _: fenced(solution(0.9, 0.9, "another one")))
    result = await quick(settings(scoring="auto", K=1, R=1), agents=agents, executor=AnsweringExecutor())
    assert any("agree with those of the scored script by" in warning for warning in result.warnings)
    assert "the submission is what the scored script itself said in the search" in result.warnings
    with Path(result.submission_path).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    right = [int(int(row["id"]) * 7 % 50 > 25) == int(row["label"]) for row in rows]
    assert sum(right) >= 0.85 * len(right)


@pytest.mark.parametrize(
    ("limit", "note", "asked"), [(30_000, "", False), (300, "", True), (30_000, "rows = rows[:99]", True)]
)
async def test_the_question_about_subsampling_is_asked_only_where_rows_may_have_been_cut(
    quick: QuickRun, tmp_path: Path, limit: int, note: str, asked: bool
) -> None:
    agents = liars(init=lambda _: fenced(solution(0.05, 0.6, note)), merger=lambda _: fenced(solution(0.3, 0.6)))
    config = settings(scoring="auto", K=1, R=1, M=1, L=1, subsample_limit=limit)
    result = await quick(config, agents=agents, executor=AnsweringExecutor())
    assert result.submission_path
    asks = [event for event in events(tmp_path / "run", AgentFinished) if event.variant == "subsampling_extract"]
    assert bool(asks) is asked


async def test_a_resumed_run_scores_as_before(quick: QuickRun, task: TaskDescription, tmp_path: Path) -> None:
    config = settings(scoring="auto", K=1, R=1)
    first = await quick(config, agents=liars(), executor=AnsweringExecutor())
    executor = AnsweringExecutor()
    again = await run_pipeline(
        task, config, run_dir=tmp_path / "run", resume=True, agents=liars(), executor=executor, console=False
    )
    assert executor.seen == [] and story(again) == story(first)
    forked = await run_pipeline(
        task, config, run_dir=tmp_path / "fork", fork_from=tmp_path / "run", agents=liars(), executor=executor,
        console=False,
    )  # fmt: skip
    assert executor.seen == [] and forked.expected == first.expected
    alone = await run_pipeline(
        task, config.model_copy(update={"scoring": "self_reported"}), run_dir=tmp_path / "alone",
        fork_from=tmp_path / "run", agents=liars(), executor=executor, console=False,
    )  # fmt: skip
    assert alone.expected == Measure(score=alone.final_solution.score or 0.0), "nothing was measured in this one"


async def test_another_run_on_the_same_data_is_no_script_that_changed_them(
    quick: QuickRun, task: TaskDescription, data_dir: Path, tmp_path: Path
) -> None:
    """Views link to what they do not change: a second run adds a link while a script of the first is at work."""

    class Interrupted(AnsweringExecutor):
        async def run(self, request: ScriptRequest) -> ExecutionRawResult:
            if not (tmp_path / "second").exists():
                (tmp_path / "second").mkdir()
                HoldOut.prepare(task, settings(scoring="auto"), tmp_path / "second")
            return await super().run(request)

    (data_dir / "stores.csv").write_text("store,size\n" + "".join(f"{i},{i * 3}\n" for i in range(9)))
    await quick(settings(scoring="auto", K=1, R=1), agents=(agents := liars()), executor=Interrupted())
    assert (tmp_path / "second" / "views" / "view-0" / "stores.csv").stat().st_nlink > 2
    assert agents.count("debugger") == 0
    assert not [event for event in events(tmp_path / "run", Notice) if event.level == "error"]


async def test_one_table_alone_ends_with_a_promise_and_no_submission(
    quick: QuickRun, task: TaskDescription, data_dir: Path, tmp_path: Path
) -> None:
    for name in ("test.csv", "sample_submission.csv"):
        (data_dir / name).unlink()
    result = await quick(settings(scoring="auto", K=1, R=1), agents=liars(), executor=AnsweringExecutor())
    assert (result.submission_path, result.has_test) == ("", False)
    view = (tmp_path / "run" / "input").resolve()  # rows held back stand in for the test
    assert view.parent == tmp_path / "run" / "views" and (view / "test.csv").is_file()
    assert result.expected is not None and result.expected.measured == "harness" and noise_of(result) == 0.05
    assert "finalization" in result.phases_completed


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: "id,size,label\n1,2,0\n2,30,1\n", "2 labelled rows are too few"),
        (lambda text: text + "0,1,0\n", "more than once"),
    ],
)  # fmt: skip
async def test_what_cannot_be_scored_so_runs_as_before_and_says_so(
    quick: QuickRun, data_dir: Path, tmp_path: Path, change: Any, why: str
) -> None:
    train = data_dir / "train.csv"
    train.write_text(change(train.read_text()))
    heard: list[AnyEvent] = []
    result = await quick(
        settings(scoring="auto", K=1, R=1), agents=liars(), executor=AnsweringExecutor(), listeners=[heard.append]
    )
    assert why in events(tmp_path / "run", HoldOutPrepared)[0].why_not
    assert result.expected is not None and result.expected.measured == "self-reported"


# --- what an earlier process has left --------------------------------------------------------------------


class AnotherModel(MindAgents):
    """Nothing that was asked of the first model answers for this one."""

    def fingerprint(self, config: AgentConfig) -> str:
        """Enough to tell the agents apart."""
        return f"another {config.agent_type.value}"


def erring(*noises: float, **overrides: Any) -> Mind:
    """Candidates that are wrong on these shares of the rows."""

    def init(prompt: str) -> str:
        number = int(re.findall(r"^model (\d)$", prompt, re.MULTILINE)[0])
        return fenced(solution(noises[number], 0.6, f"candidate {number}"))

    return liars(init=init, coder=lambda _: "No idea.", **overrides).mind


async def test_a_script_of_an_earlier_process_stays_in_question_when_its_step_is_done_anew(
    quick: QuickRun, tmp_path: Path
) -> None:
    config = settings(scoring="auto", L=1, K=1)
    await quick(config, agents=MindAgents(erring(0.3, 0.02)), executor=AnsweringExecutor())
    agents = AnotherModel(erring(0.2, 0.25))
    result = await quick(config, agents=agents, executor=AnsweringExecutor(), resume=True)
    assert noise_of(result) == 0.02
    scored = events(tmp_path / "run", ShortlistScored)[-1]
    assert re.fullmatch(r"phase1/candidate-1/script \([0-9a-f]{8}\)", scored.chosen)
    assert "phase1/candidate-1/script" in {one["name"] for one in scored.shortlist}, "what is there now has its name"
    assert not any(row["chosen"] for row in leaderboard_rows(tmp_path / "run")), "nor is it taken for the chosen one"


@pytest.mark.parametrize("way", ["resume", "fork"])
async def test_a_script_that_an_earlier_process_found_leaking_is_never_picked(
    quick: QuickRun, tmp_path: Path, way: str
) -> None:
    """The later process asks another model for one candidate only: it never comes to the script that leaks."""

    def detection(prompt: str) -> dict[str, Any]:
        status = "Yes Data Leakage" if "noise = 0.010" in prompt else "No Data Leakage"
        return {"answers": [{"leakage_status": status, "code_block": "write('submission.csv')"}]}

    no = {"leakage-correction": lambda _: "I cannot.", "leakage-rewrite": lambda _: "Nor can I."}
    config = settings(scoring="auto", L=1, K=1)
    first = MindAgents(erring(0.05, 0.01, **{"leakage-detection": detection}, **no))
    assert noise_of(await quick(config, agents=first, executor=AnsweringExecutor())) == 0.05
    options: dict[str, Any] = {"resume": True} if way == "resume" else {"name": "fork", "fork_from": tmp_path / "run"}
    alone = config.model_copy(update={"num_retrieved_models": 1})
    later = await quick(alone, agents=AnotherModel(erring(0.2)), executor=AnsweringExecutor(), **options)
    assert noise_of(later) == 0.05


async def test_each_solution_has_its_own_importance_of_columns(quick: QuickRun, tmp_path: Path) -> None:
    config, executor = settings(scoring="auto", L=1, K=1), AnsweringExecutor(seconds=0.0)
    await quick(config, agents=MindAgents(erring(0.3, 0.3)), executor=executor)
    await quick(config, agents=AnotherModel(erring(0.0, 0.02)), executor=executor, resume=True)
    found = {event.digest: event.importance for event in events(tmp_path / "run", SolutionExamined) if event.importance}
    (before, now) = [dict(columns)["size"] for columns in found.values()]
    assert now == pytest.approx(0.5, abs=0.1) and before < now
    again = await quick(config, agents=AnotherModel(erring(0.0, 0.02)), executor=executor, resume=True)
    probes = [event for event in events(tmp_path / "run", ScriptFinished) if event.purpose == "probe"]
    assert again.submission_path and len(probes) == 2, "what was measured is not measured again"
