"""What the pages say of a result: why it won, beside what, how sure, and what it is not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mle_star.models import (
    FinalResult,
    Measure,
    MetricDirection,
    Phase1Result,
    PipelineConfig,
    SolutionPhase,
    SolutionScript,
    Yardstick,
)
from mle_star.run.events import (
    AnyEvent,
    EnsembleTried,
    HoldOutPrepared,
    MergeTried,
    PhaseStarted,
    RefinementTried,
    RunFinished,
    RunResumed,
    ScriptFinished,
    ShortlistScored,
)
from mle_star.views import RunStory, text
from mle_star.views.comparison import Comparison
from mle_star.views.lineage import gains_of, lineage_of, why
from mle_star.views.page import Page
from mle_star.views.plots import nodes_of
from mle_star.views.screen import summary
from mle_star.views.shelf import glance
from mle_star.views.tables import attempt_rows
from mle_star.views.verdict import Verdict
from tests.views.journals import Invented


def ended(invented: Invented, **facts: object) -> list[AnyEvent]:
    """The run with a whole result in its last line."""
    events = list(invented.events())
    last = events[-1]
    assert isinstance(last, RunFinished)
    script = SolutionScript(content="print(1)", phase=SolutionPhase.final, score=last.score)
    phase1 = Phase1Result(
        retrieved_models=[], candidate_solutions=[], candidate_scores=[], initial_solution=script, initial_score=0.5
    )
    result = FinalResult(
        task=invented.task, config=invented.config, phase1=phase1, phase2_results=[], phase3=None,
        final_solution=script, submission_path=last.submission_path, total_duration_seconds=1.0, total_cost_usd=0.0,
    ).model_copy(update=facts)  # fmt: skip
    return [*events[:-1], last.model_copy(update={"result": result})]


def test_the_sentence_names_what_won_and_the_change_that_brought_most() -> None:
    story = RunStory.from_events(Invented(seed=11).events())
    gains = [gain for gain in gains_of(story) if gain.amount is not None]
    most = max(gains, key=lambda gain: gain.amount or 0.0)
    assert {gain.attempt.kind for gain in gains} == {"merge", "refinement", "ensemble"}
    said = why(story)
    assert said.startswith("An ensemble of 2 refined paths won")
    assert f"by {most.what}: {text.signed(most.amount or 0.0)[1:]}" in said


def test_the_story_is_that_of_what_the_final_pick_chose_whatever_the_search_held_for_best() -> None:
    invented = Invented(seed=11, L=2, T=3)
    events = ended(invented, lineage={"finalization": {"from_phase": "ensemble"}})
    story = RunStory.from_events(events)
    rejected = next(one for one in story.refinements if not one.accepted)
    for chosen, words in [
        ("path 0", "refined on path 0 by"),
        ("path 1", "refined on path 1 by"),
        ("initial solution", "won unchanged"),
        (f"{rejected.step}/script", f"The script of {rejected.step} won the final selection"),
        *((f"ensemble {r}", "An ensemble of 2 refined paths won") for r in story.ensembles),
    ]:
        pick = ShortlistScored(at=events[-1].at, step="shortlist", shortlist=[], chosen=chosen)
        told = RunStory.from_events([*events[:-1], pick, events[-1]])
        assert words in why(told), chosen
        handed = lineage_of(told).submitted
        if chosen.startswith("path"):
            assert handed.startswith(f"phase2/path-{chosen[-1]}/")
        elif chosen.startswith("ensemble"):
            assert handed == story.ensembles[int(chosen[-1])].step
        elif "/" in chosen:
            assert handed == rejected.step


@pytest.mark.parametrize(
    ("lineage", "words"),
    [
        ({}, "trained on all rows for {seconds}"),
        ({"finalization": {"fallback": True}}, "as it was in the search"),
        ({"promoted": "phase1/candidate-1"}, ""),
    ],
)
def test_the_lineage_says_how_long_the_last_training_was_and_when_there_was_none(
    lineage: dict[str, Any], words: str
) -> None:
    story = RunStory.from_events(ended(Invented(), lineage=lineage))
    (last,) = [run for run in story.scripts.values() if run.purpose == "submission"]
    assert lineage_of(story).last == words.format(seconds=text.duration(last.seconds))


def test_a_path_that_began_with_another_candidate_is_told_from_there() -> None:
    invented = Invented(seed=11, L=2, T=3)
    events = ended(invented, lineage={})
    plain = RunStory.from_events(events)
    best = plain.chosen_candidate
    other = next(one for one in plain.candidates.values() if one is not best and one.digest)
    assert best is not None and lineage_of(plain).merges

    def began_elsewhere(event: AnyEvent) -> AnyEvent:
        if isinstance(event, PhaseStarted) and event.path == 1:
            return event.model_copy(update={"model": other.model_name, "digest": other.digest})
        if isinstance(event, RefinementTried) and event.path == 1 and event.t == 0:
            return event.model_copy(update={"parents": [other.digest]})
        return event

    events = [began_elsewhere(event) for event in events]

    def told(chosen: str) -> RunStory:
        pick = ShortlistScored(at=events[-1].at, step="shortlist", shortlist=[], chosen=chosen)
        return RunStory.from_events([*events[:-1], pick, events[-1]])

    line = lineage_of(told("path 1"))
    assert line.candidate == other and not line.merges and not line.data_use
    assert why(told("path 1")).startswith(f"{other.model_name} won, refined on path 1")
    assert why(told("path 0")).startswith(best.model_name)
    assert f" and {other.model_name}." in why(told("ensemble 0"))
    alone = told(f"{best.step}/script")
    assert Verdict(alone).gain[0] == "a single model: nothing that was built on it was surely better"
    assert "single" not in [row.kind for row in Verdict(alone).yardsticks], "it would be compared with itself"
    nodes = nodes_of(told("path 1"))
    first = next(node for node in nodes if node.attempt.path == 1)
    assert [nodes[place].attempt.step for place in first.parents] == [other.step]
    first = next(node for node in nodes if node.attempt.path == 0)
    assert [nodes[place].attempt.step for place in first.parents] != [other.step]


@pytest.mark.parametrize("direction", list(MetricDirection))
def test_what_brought_nothing_is_said_and_no_weak_first_candidate_flatters(direction: MetricDirection) -> None:
    events = [
        event.model_copy(update={"accepted": False}) if isinstance(event, (RefinementTried, MergeTried)) else event
        for event in Invented(seed=11, direction=direction, R=1).events()
        if not isinstance(event, (EnsembleTried, RunFinished))  # so far: at its end a candidate would be the result
    ]
    story = RunStory.from_events(events)
    assert "Refinement brought nothing: none of 18 attempts was better." in why(story)
    verdict = Verdict(story)
    single = story.chosen_candidate
    assert single is not None
    assert f"the best single model ({single.model_name}, {text.score(single.score)})" in verdict.gain[0]
    assert verdict.stages[1].what == "best candidate, nothing merged in"
    assert verdict.stages[2].what == "no attempt was better"


def test_dummy_best_single_model_and_result_stand_on_one_scale_with_the_interval() -> None:
    expected = Measure(score=0.85, low=0.83, high=0.87, rows=1200, measured="harness")
    holdout = HoldOutPrepared(
        step="run", rule="time: date of the test rows lies after that of the training rows", views=1, search_rows=900,
        select_rows=1200, baseline=Measure(score=0.6, measured="harness"),
        not_shown=["a.zip", "b.pkl", "c.bak", "d.db"],
    )  # fmt: skip
    events = ended(Invented(seed=11), expected=expected)
    story = RunStory.from_events([events[0], holdout, *events[1:]])
    rows = Verdict(story).yardsticks
    assert [row.kind for row in rows] == ["dummy", "single", "result"]
    assert (rows[-1].low, rows[-1].high) == (0.83, 0.87)
    assert Verdict(story).sure == (
        "Measured on 1,200 rows that no script saw the answers of: on new rows expect 0.83000 to 0.87000 (95 %)."
    )
    assert Verdict(story).split == (
        "Hidden: the latest rows (because date of the test rows lies after that of the training rows), 900 in all; "
        "1,200 more were kept for the final selection. "
        "a.zip, b.pkl, c.bak and 1 more: not shown to scripts, as labels may be in it."
    )
    assert Verdict(story).checked
    one_view = Measure(score=0.9, rows=180, measured="harness")
    begun = RunStory.from_events([events[0], holdout, *(
        event.model_copy(update={"result": event.result.model_copy(update={"measure": one_view})})
        if isinstance(event, ScriptFinished)
        else event
        for event in events[1:-1]
    )])  # fmt: skip
    assert Verdict(begun).sure.startswith("Measured on 180 rows"), "not on those of views that were never run"
    printed = PipelineConfig(scoring="self_reported")
    begun.apply(RunResumed(step="run", spent_cost_usd=0, spent_seconds=0, config=printed))
    assert not Verdict(begun).checked and Verdict(begun).split == ""
    assert Verdict(story).gain[1] == "good"
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(summary(story))
    (line,) = (line for line in console.export_text().splitlines() if "by phase" in line)
    assert line.count(" → ") >= 3 and line.count("on rows kept for the end") == 1
    assert line.rstrip().endswith(f"Result {text.score(story.score)} (on rows kept for the end)")
    alone_there = Yardstick(name="LightGBM", measure=Measure(score=0.84, measured="harness"))
    same_rows = ended(Invented(seed=11), expected=expected, single_model=alone_there)
    beside = RunStory.from_events(
        [same_rows[0], holdout, *same_rows[1:]]
    )  # on the rows of the expected score, not of the search
    assert Verdict(beside).yardsticks[1].score == 0.84
    assert "than the best single model (LightGBM, 0.84000)" in Verdict(beside).gain[0]
    wide = ended(Invented(seed=11), expected=expected.model_copy(update={"low": 0.7, "high": 0.95}))
    unsure = Verdict(RunStory.from_events([wide[0], holdout, *wide[1:]]))
    assert unsure.gain[0].endswith("which may be chance") and unsure.gain[1] == "flat"
    alone = RunStory.from_events(events)
    assert [row.kind for row in Verdict(alone).yardsticks] == ["single", "result"]
    assert not Verdict(alone).checked
    assert "nobody checked it" in Verdict(alone).sure


def test_scores_are_said_to_be_apart_only_where_they_are() -> None:
    holdout = HoldOutPrepared(step="run", rule="by chance", views=1, search_rows=900, select_rows=100)
    expected = Measure(score=0.85, low=0.83, high=0.87, rows=100, measured="harness")
    events = ended(Invented(seed=11), expected=expected)
    whole = RunStory.from_events([events[0], holdout, *events[1:]])
    nothing = RunStory.from_events([events[0], holdout])
    cut = RunStory.from_events([events[0], holdout, *events[1:-1]])
    claimed = RunStory.from_events(events[:-1])
    assert nothing.score is None and Comparison.of(whole, nothing).why_not == ""
    assert "rows kept for the end" in Comparison.of(whole, cut).why_not
    assert "by its own script" in Comparison.of(whole, claimed).why_not
    assert Comparison.of(whole, whole).why_not == ""


def test_a_failed_run_boasts_of_nothing_and_a_cut_one_says_so(tmp_path: Path) -> None:
    failed = Verdict(RunStory.from_events(Invented(seed=11, outcome="failed").events()), tmp_path)
    assert (failed.state_title, failed.gain[0], failed.score_note) == ("Failed", "", "before it failed")
    assert (failed.file.label, failed.file.level) == ("Best file before the run failed", "partial")
    cut = Verdict(RunStory.from_events(ended(Invented(seed=11), stopped_by="time")), tmp_path)
    assert (cut.state, cut.state_title) == ("early", "Ended early")
    alone = Verdict(RunStory.from_events(ended(Invented(seed=11, outcome="failed"), has_test=False)), tmp_path)
    assert alone.file.path is None


@pytest.mark.parametrize(
    ("facts", "note", "level"),
    [
        ({"rows": 171, "sample": "sample.csv"}, "171 rows, columns match sample.csv", "ready"),
        ({"rows": 171, "problems": 2}, "171 rows", "partial"),
        ({"fallback": True}, "kept from the search: the final script failed", "partial"),
    ],
)
def test_the_file_to_submit_is_described_by_what_was_found_in_it(
    facts: dict[str, object], note: str, level: str, tmp_path: Path
) -> None:
    events = ended(Invented(seed=11), lineage={"finalization": {"from_phase": "ensemble", **facts}})
    file = Verdict(RunStory.from_events(events), tmp_path).file
    assert (file.note, file.level) == (note, level)


def test_every_attempt_hangs_on_the_one_that_it_grew_out_of() -> None:
    story = RunStory.from_events(Invented(seed=11, L=2, T=3).events())
    nodes = nodes_of(story)
    assert [node.attempt for node in nodes] == story.attempts
    for index, node in enumerate(nodes):
        assert all(parent < index for parent in node.parents)
        assert bool(node.parents) == (node.attempt.kind != "candidate")
        assert all(nodes[parent].attempt.accepted for parent in node.parents)
        if node.attempt.kind == "ensemble":
            assert len(node.parents) == 2
    result = lineage_of(story).submitted
    assert story.best_ensemble is not None
    assert result == story.best_ensemble.step
    rows = attempt_rows(story)
    assert sum(row.seconds for row in rows) == pytest.approx(
        sum(run.seconds for run in story.scripts.values() if run.purpose == "solution")
    )


def test_teasers_begin_where_texts_differ() -> None:
    same = "Pool the models of all solutions and weigh them by what they said of rows that were held out "
    first, second, third = text.teasers([same + "with ranks.", same + "with logits.", "Another idea."], 60)
    assert first.startswith("Pool the models")
    assert second == "… logits."
    assert third == "Another idea."


def test_the_end_of_a_run_is_told_without_contradictions(tmp_path: Path) -> None:
    """A candidate that wins unchanged is not set against itself, and no step is listed that it lacks."""
    expected = Measure(score=0.85, low=0.7, high=0.95, rows=41, measured="harness")
    single = Yardstick(name="ExtraTrees", measure=expected.model_copy(update={"score": 0.95}))
    events = ended(Invented(seed=11), expected=expected, single_model=single, stopped_by="time")
    holdout = HoldOutPrepared(step="run", rule="by chance", views=1, search_rows=900, select_rows=41)
    stopped = events[-1].model_copy(update={"message": "stopped by the time limit"})
    events = [
        event.model_copy(update={"accepted": False}) if isinstance(event, MergeTried) else event
        for event in [events[0], holdout, *events[1:-1], stopped]
    ]

    def told(chosen: str) -> RunStory:
        pick = ShortlistScored(at=events[-1].at, step="shortlist", shortlist=[], chosen=chosen)
        return RunStory.from_events([*events[:-1], pick, events[-1]])

    def improved(story: RunStory) -> list[str]:
        out = io.StringIO()
        Console(file=out, width=300).print(summary(story))
        lines = [line.strip() for line in out.getvalue().splitlines()]
        first = next((place for place, line in enumerate(lines) if line.startswith("improved by")), None)
        last = next(place for place, line in enumerate(lines) if line.startswith("cost"))
        return [] if first is None else lines[first:last]

    alone = told("initial solution")
    assert "won" in why(alone) and "worse" not in Verdict(alone).gain[0] and "a single model" in Verdict(alone).gain[0]
    assert [row.kind for row in Verdict(alone).yardsticks] == []
    assert len(improved(alone)) == 1 and "candidate" in improved(alone)[0]
    path = told("path 1")
    steps = [gain.step for gain in lineage_of(path).paths[0].gains]
    assert steps and "path 1" in improved(path)[-1] and not any("path 0" in line for line in improved(path))
    assert improved(told("blend")) == [] and lineage_of(told("blend")).paths == []
    page = Page(tmp_path).html(told("blend"))
    assert "Merged in" not in page and "Refined on" not in page
    said = alone.news[-1]
    assert "completed" not in said.words and said.words.startswith("ended early, stopped by the time limit")
    (tmp_path / "journal.jsonl").write_text("".join(f"{event.model_dump_json()}\n" for event in events))
    seen = glance(tmp_path)
    assert (seen.state, seen.title) == ("completed", "ended early")
