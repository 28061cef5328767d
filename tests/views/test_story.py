"""The story of a run, told by its events alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mle_star.basics.phases import phase_of
from mle_star.basics.texts import digest_of
from mle_star.models import AgentType, MetricDirection
from mle_star.run.events import (
    AgentStarted,
    AnyEvent,
    CandidateEvaluated,
    DebugAttempted,
    LeakageChecked,
    Notice,
    PhaseFinished,
    PhaseStarted,
    RunFinished,
    RunResumed,
    ScriptFinished,
)
from mle_star.run.folder import spent_by
from mle_star.run.journal import read_journal
from mle_star.run.ledger import rescored
from mle_star.views import RunStory, text
from mle_star.views.charts import describe
from mle_star.views.lineage import lineage_of
from mle_star.views.verdict import Verdict
from tests.views.journals import Invented


def counts(story: RunStory) -> tuple[object, ...]:
    """What must not change when an event is heard twice."""
    return (
        story.score, story.first_score, story.totals, story.progress, story.attempts, story.clock.seconds,
        story.clock.by_phase, story.bests, story.final_script, sorted(story.notices), story.state, lineage_of(story),
    )  # fmt: skip


def test_a_story_from_a_journal_agrees_with_the_ledger_and_counts_every_attempt(tmp_path: Path) -> None:
    invented = Invented(M=4, T=3, K=3, L=2, R=3)
    invented.write(tmp_path / "run")
    events = list(read_journal(tmp_path / "run" / "journal.jsonl"))
    story = RunStory.from_events(events)
    assert story.totals.cost_usd == pytest.approx(spent_by(events).usd)
    assert story.clock.seconds == pytest.approx(spent_by(events).seconds, abs=1e-3)
    assert sum(story.clock.by_phase.values()) == pytest.approx(story.clock.seconds)
    said = [e for e in events if e.kind in ("candidate_evaluated", "merge_tried", "refinement_tried", "ensemble_tried")]
    assert [attempt.step for attempt in story.attempts] == [event.step for event in said]
    assert (
        story.progress[0] == story.progress[1] == sum(e.kind in ("agent_finished", "script_finished") for e in events)
    )


def test_the_first_score_is_the_first_in_time_whatever_number_its_candidate_has(tmp_path: Path) -> None:
    events = list(Invented(M=3, T=1).events())
    late_number = [
        event.model_copy(update={"index": 2 - event.index}) if isinstance(event, CandidateEvaluated) else event
        for event in events
    ]
    story = RunStory.from_events(late_number)
    first = next(event.score for event in late_number if isinstance(event, CandidateEvaluated) and event.score)
    assert story.first_score == first != story.candidates[0].score
    assert f"is {text.score(first)}, the best" in describe(story)
    assert Verdict(story, tmp_path).stages[0].score == first


@given(seed=st.integers(0, 10_000), at=st.integers(0, 200), direction=st.sampled_from(list(MetricDirection)))
@settings(max_examples=15)
def test_hearing_what_an_earlier_process_said_once_more_changes_nothing(
    seed: int, at: int, direction: MetricDirection
) -> None:
    events = list(Invented(seed=seed, T=2, K=2, direction=direction).events())
    once = RunStory.from_events(events)
    again = RunStory.from_events(events[: at + 1])
    for event in events[: at + 1]:
        again.apply(event)
    for event in events[at + 1 :]:
        again.apply(event)
    assert counts(again) == counts(once)


@pytest.mark.parametrize("direction", list(MetricDirection))
def test_the_best_score_only_gets_better_and_submission_scripts_have_no_say(direction: MetricDirection) -> None:
    events = list(Invented(direction=direction).events())
    best = RunStory.from_events(events).bests
    scores = [one.score for one in best if one.score is not None]
    assert scores == sorted(scores, reverse=direction is MetricDirection.minimize)
    assert len(scores) > 2
    last = next(e for e in reversed(events) if isinstance(e, ScriptFinished) and e.purpose == "submission")
    perfect = 2.0 if direction is MetricDirection.maximize else 0.0
    story = RunStory.from_events(
        [*events[:-1], last.model_copy(update={"result": last.result.model_copy(update={"score": perfect})})]
    )
    assert story.score == scores[-1]


@given(seed=st.integers(0, 10_000), direction=st.sampled_from(list(MetricDirection)))
@settings(max_examples=15)
def test_what_a_leaking_script_scored_counts_no_longer_and_a_mended_one_has_its_new_score(
    seed: int, direction: MetricDirection
) -> None:
    events = list(Invented(seed=seed, direction=direction).events())[:-1]
    leader = RunStory.from_events(events).bests[-1]
    place = leader.step.rpartition("/")[0]
    ran = next(event for event in events if isinstance(event, ScriptFinished) and event.step == leader.step)
    check = f"{phase_of(place)}/check"
    for fixed in (0, 1):
        found = LeakageChecked(step=f"{check}/leakage-detection", found=1, fixed=fixed, leaking=[leader.script])
        story = RunStory.from_events([*events, found])
        dropped = next(one for one in story.attempts if one.step == place)
        assert (dropped.score, dropped.accepted) == (None, False)
        others = [one.score for one in story.attempts if one.score is not None]
        assert story.score == (max(others) if direction is MetricDirection.maximize else min(others)) != leader.score
        assert story.best_script != ran.script and lineage_of(story).submitted != place
        assert counts(RunStory.from_events([*events, found, *events, found])) == counts(story)
        forked = [*events[: events.index(ran) + 1], found, *events[events.index(ran) + 1 :]]
        assert RunStory.from_events(forked).attempts == story.attempts, "a fork says only later what was scored"
        story.apply(ran.model_copy(update={"step": f"{check}/script", "script": "print()", "digest": "d"}))
        if fixed:
            node = next(node for node in story.nodes if node.step == place)
            story.apply(rescored(node, digest_of("print()"), leader.score))
        now = next(one for one in story.attempts if one.step == place)
        assert (now.score, story.score) == (leader.score if fixed else None, leader.score), "what is fixed counts"


@pytest.mark.parametrize("kind", ["candidate", "merge", "refinement", "ensemble"])
def test_a_leak_that_is_found_in_a_later_phase_takes_a_score_but_not_what_the_run_went_on_from(kind: str) -> None:
    events = list(Invented(seed=3).events())
    whole = RunStory.from_events(events)
    last = whole.best_ensemble  # of ensembles the one that is submitted: it is what the run went on from
    accepted = [one for one in whole.attempts if one.kind == kind and one.accepted]
    taken = next(one for one in accepted if kind != "ensemble" or (last is not None and one.step == last.step))
    ran = next(event for event in events if isinstance(event, ScriptFinished) and event.step == f"{taken.step}/script")
    digests = [digest_of(ran.script)]
    step = "shortlist/0c2f1b6e/leakage-detection"
    story = RunStory.from_events([*events, LeakageChecked(step=step, found=1, fixed=1, leaking=digests)])
    (now,) = (one for one in story.attempts if one.step == taken.step)
    assert (now.score, now.accepted) == (None, True)
    before, after = lineage_of(whole), lineage_of(story)
    assert after.submitted == before.submitted
    assert (before.candidate is None) == (after.candidate is None)
    assert before.candidate and after.candidate and before.candidate.index == after.candidate.index


def test_a_later_event_of_the_same_step_takes_the_place_of_the_earlier() -> None:
    story = RunStory()
    story.apply(DebugAttempted(step="phase1/candidate-0/debugger", error="a", accepted=False, reason="no code"))
    story.apply(DebugAttempted(step="phase1/candidate-0/debugger", error="a", accepted=True))
    story.apply(Notice(message="waiting"))
    story.apply(Notice(message="still waiting"))
    assert [repair.accepted for repair in story.repairs.values()] == [True]
    assert [message for _, message in story.notices] == ["waiting", "still waiting"]


def test_cancelled_work_is_no_longer_at_work_when_its_path_or_the_run_ends() -> None:
    story = RunStory()
    for path in (0, 1):
        story.apply(PhaseStarted(step=f"phase2/path-{path}", phase="phase2", path=path))
        story.apply(AgentStarted(step=f"phase2/path-{path}/t-0/ablation", agent=AgentType.ablation))
    assert [work.what for work in story.work_of(1)] == ["ablation"]
    story.apply(PhaseFinished(step="phase2/path-1", phase="phase2", path=1, outcome="cancelled", detail="time"))
    assert story.work_of(1) == []
    assert len(story.work_of(0)) == 1
    story.apply(RunFinished(state="interrupted", message="stopped"))
    assert not story.working
    story.apply(RunResumed(spent_cost_usd=0, spent_seconds=1))
    assert story.state == "running"


def test_the_time_between_two_processes_does_not_count() -> None:
    first = list(Invented(seed=1).events())
    half = len(first) // 2
    begun = RunStory.from_events(first[:half])
    gap = Invented(seed=1)
    shifted: list[AnyEvent] = [
        event.model_copy(update={"at": event.at + (gap.started_at.replace(day=1, month=3) - gap.started_at)})
        for event in first[half:]
    ]
    resumed = RunResumed(at=shifted[0].at, spent_cost_usd=0, spent_seconds=begun.clock.seconds)
    story = RunStory.from_events([*first[:half], resumed, *shifted])
    whole = RunStory.from_events(first)
    assert story.clock.seconds == pytest.approx(whole.clock.seconds, abs=60)
    assert story.clock.seconds < 3600


@pytest.mark.parametrize("seed", range(3))
def test_the_lineage_leads_from_the_ensemble_back_to_a_retrieved_model(seed: int) -> None:
    story = RunStory.from_events(Invented(seed=seed, L=3).events())
    line = lineage_of(story)
    assert line.source == "ensemble"
    assert line.ensemble == story.best_ensemble
    assert line.candidate is not None
    assert line.candidate.model_name in story.models
    assert [path.index for path in line.paths] == [0, 1, 2]
    for path in line.paths:
        assert all(gain.accepted for gain in path.gains)
        assert len({gain.t for gain in path.gains}) == len(path.gains)


def test_a_story_can_be_read_at_every_moment() -> None:
    story = RunStory()
    events = list(Invented(seed=random.Random(3).randrange(99), T=1, K=2, R=1).events())
    for event in events:
        counts(story)
        story.apply(event)
    assert story.state == "completed"
