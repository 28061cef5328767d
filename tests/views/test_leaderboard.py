"""The scripts of a run by score: the final solution is marked, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from mle_star.cli.app import main
from mle_star.models import FinalResult, Measure, Phase1Result, SolutionPhase, SolutionScript
from mle_star.run.events import AnyEvent, RunFinished, ShortlistScored
from mle_star.views.leaderboard import leaderboard_rows
from mle_star.views.lineage import lineage_of
from mle_star.views.story import RunStory
from tests.views.journals import Invented

Captured = pytest.CaptureFixture[str]


def picked(chosen: str, promoted: str = "") -> list[AnyEvent]:
    """A run that ended with this final pick; its final script is one that no step of the search ran."""
    run = Invented(seed=11, M=2, T=2, K=2, L=2, R=2)
    *before, end = run.events()
    assert isinstance(end, RunFinished)
    script = SolutionScript(content="a last script of its own", phase=SolutionPhase.final, score=end.score)
    first = Phase1Result(
        retrieved_models=[], candidate_solutions=[], candidate_scores=[], initial_solution=script, initial_score=0.5
    )
    result = FinalResult(
        task=run.task, config=run.config, phase1=first, phase2_results=[], phase3=None, final_solution=script,
        submission_path="", total_duration_seconds=3.0, total_cost_usd=1.0,
        lineage={"promoted": promoted} if promoted else {},
    )  # fmt: skip
    return [*before, ShortlistScored(chosen=chosen), end.model_copy(update={"result": result})]


def marked(events: list[AnyEvent], run_dir: Path) -> list[str]:
    lines = (f"{event.model_dump_json()}\n" for event in events)
    (run_dir / "journal.jsonl").write_text("".join(lines), encoding="utf-8")
    rows = leaderboard_rows(run_dir)
    assert len(rows) > 6 and [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    return [row["step"] for row in rows if row["chosen"]]


@pytest.mark.parametrize("chosen", ["path 0", "path 1", "ensemble 0", "ensemble 1", "phase1/candidate-0/script"])
def test_the_script_that_the_report_calls_the_result_is_marked(tmp_path: Path, chosen: str) -> None:
    events = picked(chosen)
    story = RunStory.from_events(events)
    (step,) = marked(events, tmp_path)
    assert step == lineage_of(story).submitted


def test_a_script_that_was_promoted_by_hand_is_marked(tmp_path: Path) -> None:
    assert marked(picked("blend", promoted="phase1/candidate-0/script"), tmp_path) == ["phase1/candidate-0"]


def test_of_a_blend_no_single_script_is_marked(tmp_path: Path) -> None:
    assert marked(picked("blend"), tmp_path) == []


def test_a_leaderboard_and_the_summary_give_one_script_the_same_score(tmp_path: Path, capsys: Captured) -> None:
    """The list ranks by the rows of the search; of the final solution it also tells the score of the summary."""
    *before, end = picked("phase1/candidate-0/script")
    assert isinstance(end, RunFinished) and end.result is not None
    expected = Measure(score=0.6125, low=0.5, high=0.7, rows=41, measured="harness")
    end = end.model_copy(update={"score": 0.6125, "result": end.result.model_copy(update={"expected": expected})})
    assert marked([*before, end], tmp_path) == ["phase1/candidate-0"]
    assert [row["final_score"] for row in leaderboard_rows(tmp_path) if row["chosen"]] == [0.6125]
    assert main(["leaderboard", str(tmp_path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "candidate-0" in line]
    assert line.rstrip().endswith("final solution: 0.61250 on 41 rows kept for the end")
