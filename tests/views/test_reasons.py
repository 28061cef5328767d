"""What the pages say of a result: where it came from, why it won, beside what, how sure, and what it is not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mle_star.cli.app import main
from mle_star.models import Measure, MetricDirection, PipelineConfig, Yardstick
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
from mle_star.views.leaderboard import leaderboard_rows
from mle_star.views.lineage import gains_of, lineage_of, why
from mle_star.views.page import Page
from mle_star.views.plots import nodes_of
from mle_star.views.screen import summary
from mle_star.views.shelf import glance
from mle_star.views.tables import attempt_rows
from mle_star.views.verdict import Verdict
from tests.views.journals import Invented, write_journal

EXPECTED = Measure(score=0.85, low=0.83, high=0.87, rows=1200, measured="harness")
HOLDOUT = HoldOutPrepared(
    step="run", rule="time: date of the test rows lies after that of the training rows", views=1, search_rows=900,
    select_rows=1200, baseline=Measure(score=0.6, measured="harness"), not_shown=["a.zip", "b.pkl", "c.bak", "d.db"],
)  # fmt: skip


def story_of(events: list[AnyEvent], holdout: HoldOutPrepared | None = None, chosen: str = "") -> RunStory:
    """The story of a run whose rows were hidden, and which ended with a final selection."""
    pick = [ShortlistScored(at=events[-1].at, step="shortlist", chosen=chosen)] if chosen else []
    return RunStory.from_events([events[0], *([holdout] if holdout else []), *events[1:-1], *pick, events[-1]])


def summary_of(story: RunStory) -> list[str]:
    """The lines at the end of a run."""
    out = io.StringIO()
    Console(file=out, width=300).print(summary(story))
    return [line.strip() for line in out.getvalue().splitlines()]


# --- where it came from -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_lineage_leads_from_the_ensemble_back_to_a_retrieved_model(seed: int) -> None:
    story = RunStory.from_events(Invented(seed=seed, L=3).events())
    line = lineage_of(story)
    assert line.source == "ensemble" and line.ensemble == story.best_ensemble
    assert line.candidate is not None and line.candidate.model_name in story.models
    assert [path.index for path in line.paths] == [0, 1, 2]
    for path in line.paths:
        assert all(gain.accepted for gain in path.gains)
        assert len({gain.t for gain in path.gains}) == len(path.gains)


def test_every_attempt_hangs_on_the_one_that_it_grew_out_of() -> None:
    story = RunStory.from_events(Invented(seed=11, L=2, T=3).events())
    nodes = nodes_of(story)
    assert [node.attempt for node in nodes] == story.attempts
    for index, node in enumerate(nodes):
        assert all(parent < index and nodes[parent].attempt.accepted for parent in node.parents)
        assert bool(node.parents) == (node.attempt.kind != "candidate")
        assert node.attempt.kind != "ensemble" or len(node.parents) == 2
    assert story.best_ensemble is not None and lineage_of(story).submitted == story.best_ensemble.step
    solutions = sum(run.seconds for run in story.scripts.values() if run.purpose == "solution")
    assert sum(row.seconds for row in attempt_rows(story)) == pytest.approx(solutions)


def test_the_story_is_that_of_what_the_final_selection_chose_whatever_the_search_held_for_best(tmp_path: Path) -> None:
    """The list of scripts marks the same one, and no other; of a blend, none."""
    invented = Invented(seed=11, L=2, T=3)
    events = invented.ended(lineage={"finalization": {"from_phase": "ensemble"}})
    story = RunStory.from_events(events)
    rejected = next(one for one in story.refinements if not one.accepted)
    for chosen, words, step in [
        ("path 0", "refined on path 0 by", "phase2/path-0/"),
        ("path 1", "refined on path 1 by", "phase2/path-1/"),
        ("initial solution", "won unchanged", "phase1/merge"),
        (f"{rejected.step}/script", f"The script of {rejected.step} won the final selection", rejected.step),
        *((f"ensemble {r}", "An ensemble of 2 refined paths won", one.step) for r, one in story.ensembles.items()),
        ("blend", "A blend of several scripts won", ""),
    ]:
        told = story_of(events, chosen=chosen)
        assert words in why(told), chosen
        submitted = lineage_of(told).submitted
        assert submitted.startswith(step) and bool(submitted) == bool(step)
        pick = ShortlistScored(at=events[-1].at, step="shortlist", chosen=chosen)
        write_journal(tmp_path, [*events[:-1], pick, events[-1]])
        rows = leaderboard_rows(tmp_path)
        assert len(rows) > 6 and [row["score"] for row in rows] == sorted((r["score"] for r in rows), reverse=True)
        assert [row["step"] for row in rows if row["chosen"]] == [submitted] * bool(step)
    write_journal(tmp_path, invented.ended("blend", lineage={"promoted": "phase1/candidate-0/script"}))
    assert [row["step"] for row in leaderboard_rows(tmp_path) if row["chosen"]] == ["phase1/candidate-0"]


def test_a_leaderboard_and_the_summary_give_one_script_the_same_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list ranks by the rows of the search; of the final solution it also tells the score of the summary."""
    expected = Measure(score=0.6125, low=0.5, high=0.7, rows=41, measured="harness")
    *before, end = Invented(seed=11, M=2, T=2, K=2).ended("phase1/candidate-0/script", expected=expected)
    write_journal(tmp_path, [*before, end.model_copy(update={"score": 0.6125})])
    assert [row["final_score"] for row in leaderboard_rows(tmp_path) if row["chosen"]] == [0.6125]
    assert main(["leaderboard", str(tmp_path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "candidate-0" in line]
    assert line.rstrip().endswith("final solution: 0.61250 on 41 rows kept for the end")


def test_a_path_that_began_with_another_candidate_is_told_from_there() -> None:
    events = Invented(seed=11, L=2, T=3).ended()
    plain = RunStory.from_events(events)
    best = plain.chosen_candidate
    other = next(one for one in plain.candidates.values() if one != best and one.digest)
    assert best is not None and lineage_of(plain).merges

    def began_elsewhere(event: AnyEvent) -> AnyEvent:
        if isinstance(event, PhaseStarted) and event.path == 1:
            return event.model_copy(update={"model": other.model_name, "digest": other.digest})
        if isinstance(event, RefinementTried) and event.path == 1 and event.t == 0:
            return event.model_copy(update={"parents": [other.digest]})
        return event

    events = [began_elsewhere(event) for event in events]
    line = lineage_of(story_of(events, chosen="path 1"))
    assert line.candidate == other and not line.merges and not line.data_use
    assert why(story_of(events, chosen="path 1")).startswith(f"{other.model_name} won, refined on path 1")
    assert why(story_of(events, chosen="path 0")).startswith(best.model_name)
    assert f" and {other.model_name}." in why(story_of(events, chosen="ensemble 0"))
    alone = Verdict(story_of(events, chosen=f"{best.step}/script"))
    assert alone.gain[0] == "a single model: nothing that was built on it was surely better"
    assert "single" not in [row.kind for row in alone.yardsticks], "it would be compared with itself"
    nodes = nodes_of(story_of(events, chosen="path 1"))
    for path in (0, 1):
        first = next(node for node in nodes if node.attempt.path == path)
        assert ([nodes[place].attempt.step for place in first.parents] == [other.step]) == (path == 1)


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
    story = RunStory.from_events(Invented().ended(lineage=lineage))
    (last,) = [run for run in story.scripts.values() if run.purpose == "submission"]
    assert lineage_of(story).last == words.format(seconds=text.duration(last.seconds))


# --- why it won, beside what, how sure --------------------------------------------------------------------------


def test_the_sentence_names_what_won_and_the_change_that_brought_most() -> None:
    story = RunStory.from_events(Invented(seed=11).events())
    gains = {gain.what: gain for gain in gains_of(story) if gain.amount is not None}
    assert {gain.attempt.kind for gain in gains.values()} == {"merge", "refinement", "ensemble"}
    most = max(gains, key=lambda what: gains[what].amount or 0.0)
    assert why(story).startswith("An ensemble of 2 refined paths won")
    assert f"by {most}: {text.signed(gains[most].amount or 0.0)[1:]}" in why(story)


@pytest.mark.parametrize("direction", list(MetricDirection))
def test_what_brought_nothing_is_said_and_no_weak_first_candidate_flatters(direction: MetricDirection) -> None:
    story = RunStory.from_events(
        event.model_copy(update={"accepted": False}) if isinstance(event, (RefinementTried, MergeTried)) else event
        for event in Invented(seed=11, direction=direction, R=1).events()
        if not isinstance(event, (EnsembleTried, RunFinished))  # so far: at its end a candidate would be the result
    )
    assert "Refinement brought nothing: none of 18 attempts was better." in why(story)
    verdict, single = Verdict(story), story.chosen_candidate
    assert single is not None
    assert f"the best single model ({single.model_name}, {text.score(single.score)})" in verdict.gain[0]
    assert [stage.what for stage in verdict.stages[1:3]] == [
        "best candidate, nothing merged in", "no attempt was better",
    ]  # fmt: skip


def test_dummy_best_single_model_and_result_stand_on_one_scale_with_the_interval() -> None:
    events = Invented(seed=11).ended(expected=EXPECTED)
    story = story_of(events, HOLDOUT)
    verdict = Verdict(story)
    assert [row.kind for row in verdict.yardsticks] == ["dummy", "single", "result"]
    assert verdict.yardsticks[-1][3:] == (0.83, 0.87)
    assert verdict.checked and verdict.gain[1] == "good"
    assert verdict.sure == (
        "Measured on 1,200 rows that no script saw the answers of: on new rows expect 0.83000 to 0.87000 (95 %)."
    )
    assert verdict.split == (
        "Hidden: the latest rows (because date of the test rows lies after that of the training rows), 900 in all; "
        "1,200 more were kept for the final selection. "
        "a.zip, b.pkl, c.bak and 1 more: not shown to scripts, as labels may be in it."
    )
    (line,) = (line for line in summary_of(story) if line.startswith("by phase"))
    assert line.count(" → ") >= 3 and line.count("on rows kept for the end") == 1
    assert line.endswith(f"Result {text.score(story.score)} (on rows kept for the end)")
    same_rows = Yardstick(name="LightGBM", measure=Measure(score=0.84, measured="harness"))
    beside = Verdict(story_of(Invented(seed=11).ended(expected=EXPECTED, single_model=same_rows), HOLDOUT))
    assert beside.yardsticks[1].score == 0.84, "on the rows of the expected score, not of the search"
    assert "than the best single model (LightGBM, 0.84000)" in beside.gain[0]
    wide = EXPECTED.model_copy(update={"low": 0.7, "high": 0.95})
    unsure = Verdict(story_of(Invented(seed=11).ended(expected=wide), HOLDOUT)).gain
    assert unsure[0].endswith("which may be chance") and unsure[1] == "flat"
    alone = Verdict(story_of(events))
    assert [row.kind for row in alone.yardsticks] == ["single", "result"]
    assert not alone.checked and "nobody checked it" in alone.sure


def test_the_rows_behind_a_score_are_those_that_were_really_used() -> None:
    one_view = {"measure": Measure(score=0.9, rows=180, measured="harness")}
    *events, _ = (
        event.model_copy(update={"result": event.result.model_copy(update=one_view)})
        if isinstance(event, ScriptFinished)
        else event
        for event in Invented(seed=11).events()
    )
    story = story_of(events, HOLDOUT)
    assert Verdict(story).sure.startswith("Measured on 180 rows"), "not on those of views that were never run"
    config = PipelineConfig(scoring="self_reported")
    story.apply(RunResumed(step="run", spent_cost_usd=0, spent_seconds=0, config=config))
    assert not Verdict(story).checked and Verdict(story).split == ""


def test_scores_are_said_to_be_apart_only_where_they_are() -> None:
    events = Invented(seed=11).ended(expected=EXPECTED)
    whole, cut, claimed = story_of(events, HOLDOUT), story_of(events[:-1], HOLDOUT), story_of(events[:-1])
    nothing = RunStory.from_events([events[0], HOLDOUT])
    assert nothing.score is None and Comparison.of(whole, nothing).why_not == Comparison.of(whole, whole).why_not == ""
    assert "rows kept for the end" in Comparison.of(whole, cut).why_not
    assert "by its own script" in Comparison.of(whole, claimed).why_not


# --- how it ended -----------------------------------------------------------------------------------------------


def test_a_failed_run_boasts_of_nothing_and_a_cut_one_says_so(tmp_path: Path) -> None:
    failed = Verdict(RunStory.from_events(Invented(seed=11, outcome="failed").events()), tmp_path)
    assert (failed.state_title, failed.gain[0], failed.score_note) == ("Failed", "", "before it failed")
    assert (failed.file.label, failed.file.level) == ("Best file before the run failed", "partial")
    cut = Verdict(RunStory.from_events(Invented(seed=11).ended(stopped_by="time")), tmp_path)
    assert (cut.state, cut.state_title) == ("early", "Ended early")
    alone = Verdict(RunStory.from_events(Invented(seed=11, outcome="failed").ended(has_test=False)), tmp_path)
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
    events = Invented(seed=11).ended(lineage={"finalization": {"from_phase": "ensemble", **facts}})
    file = Verdict(RunStory.from_events(events), tmp_path).file
    assert (file.note, file.level) == (note, level)


def test_the_end_of_a_run_is_told_without_contradictions(tmp_path: Path) -> None:
    """A candidate that wins unchanged is not compared with itself, and no step is listed that it lacks."""
    single = Yardstick(name="ExtraTrees", measure=EXPECTED.model_copy(update={"score": 0.95}))
    events = [
        event.model_copy(update={"accepted": False}) if isinstance(event, MergeTried) else event
        for event in Invented(seed=11).ended(expected=EXPECTED, single_model=single, stopped_by="time")
    ]
    events[-1] = events[-1].model_copy(update={"message": "stopped by the time limit"})

    def improved(story: RunStory) -> list[str]:
        lines = summary_of(story)
        first = next((place for place, line in enumerate(lines) if line.startswith("improved by")), None)
        return [] if first is None else lines[first : next(i for i, line in enumerate(lines) if line[:4] == "cost")]

    alone, path, blend = (story_of(events, HOLDOUT, one) for one in ("initial solution", "path 1", "blend"))
    assert "won" in why(alone) and "a single model" in Verdict(alone).gain[0]
    assert "single" not in [row.kind for row in Verdict(alone).yardsticks]
    assert len(improved(alone)) == 1 and "candidate" in improved(alone)[0]
    assert lineage_of(path).paths[0].gains and "path 1" in improved(path)[-1]
    assert not any("path 0" in line for line in improved(path))
    assert improved(blend) == [] and lineage_of(blend).paths == []
    page = Page(tmp_path).html(blend)
    assert "Merged in" not in page and "Refined on" not in page
    assert alone.news[-1].words.startswith("ended early, stopped by the time limit")
    write_journal(tmp_path, events)
    assert (glance(tmp_path).state, glance(tmp_path).title) == ("completed", "ended early")


def test_teasers_begin_where_texts_differ() -> None:
    same = "Pool the models of all solutions and weigh them by what they said of rows that were held out "
    first, second, third = text.teasers([same + "with ranks.", same + "with logits.", "Another idea."], 60)
    assert first.startswith("Pool the models")
    assert (second, third) == ("… logits.", "Another idea.")
