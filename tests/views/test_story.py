"""The story of a run, told by its events alone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mle_star.basics.phases import phase_of
from mle_star.basics.texts import digest_of
from mle_star.models import AgentType, MetricDirection
from mle_star.run import events as ev
from mle_star.run.folder import spent_by
from mle_star.run.ledger import rescored
from mle_star.views import RunStory, text
from mle_star.views.charts import describe
from mle_star.views.lineage import lineage_of
from mle_star.views.verdict import Verdict
from tests.views.journals import Invented

DIRECTIONS = st.sampled_from(list(MetricDirection))


def counts(story: RunStory) -> tuple[object, ...]:
    """What must not change when an event is heard twice."""
    return (
        story.score, story.first_score, story.totals, story.progress, story.attempts, story.clock.seconds,
        story.clock.by_phase, story.bests, story.final_script, sorted(story.notices), story.state, lineage_of(story),
    )  # fmt: skip


def test_a_story_from_a_journal_agrees_with_the_ledger_and_counts_every_attempt(tmp_path: Path) -> None:
    events = Invented(M=4, T=3, K=3, L=2, R=3).write(tmp_path / "run")
    story, spent = RunStory.of(tmp_path / "run"), spent_by(events)
    assert story.totals.cost_usd == pytest.approx(spent.usd)
    assert story.clock.seconds == pytest.approx(spent.seconds, abs=1e-3)
    assert sum(story.clock.by_phase.values()) == pytest.approx(story.clock.seconds)
    tried = (ev.CandidateEvaluated, ev.MergeTried, ev.RefinementTried, ev.EnsembleTried)
    assert [attempt.step for attempt in story.attempts] == [e.step for e in events if isinstance(e, tried)]
    done = sum(isinstance(event, (ev.AgentFinished, ev.ScriptFinished)) for event in events)
    assert story.progress == (done, done)


def test_the_first_score_is_the_first_in_time_whatever_number_its_candidate_has() -> None:
    events = [
        event.model_copy(update={"index": 2 - event.index}) if isinstance(event, ev.CandidateEvaluated) else event
        for event in Invented(M=3, T=1).events()
    ]
    story = RunStory.from_events(events)
    first = next(event.score for event in events if isinstance(event, ev.CandidateEvaluated) and event.score)
    assert Verdict(story).stages[0].score == story.first_score == first != story.candidates[0].score
    assert f"is {text.score(first)}, the best" in describe(story)


@given(seed=st.integers(0, 10_000), at=st.integers(0, 200), direction=DIRECTIONS)
@settings(max_examples=15)
def test_hearing_what_an_earlier_process_said_once_more_changes_nothing_and_every_moment_can_be_read(
    seed: int, at: int, direction: MetricDirection
) -> None:
    events = list(Invented(seed=seed, T=2, K=2, direction=direction).events())
    again = RunStory.from_events([*events[: at + 1], *events[: at + 1]])
    counts(again)
    for event in events[at + 1 :]:
        again.apply(event)
    assert counts(again) == counts(RunStory.from_events(events))


@pytest.mark.parametrize("direction", list(MetricDirection))
def test_the_best_score_only_gets_better_and_submission_scripts_have_no_say(direction: MetricDirection) -> None:
    events = list(Invented(direction=direction).events())
    scores = [one.score for one in RunStory.from_events(events).bests if one.score is not None]
    assert scores == sorted(scores, reverse=direction is MetricDirection.minimize) and len(scores) > 2
    last = next(e for e in reversed(events) if isinstance(e, ev.ScriptFinished) and e.purpose == "submission")
    perfect = last.result.model_copy(update={"score": 2.0 if direction is MetricDirection.maximize else 0.0})
    assert RunStory.from_events([*events[:-1], last.model_copy(update={"result": perfect})]).score == scores[-1]


@given(seed=st.integers(0, 10_000), direction=DIRECTIONS)
@settings(max_examples=15)
def test_what_a_leaking_script_scored_counts_no_longer_and_a_fixed_one_has_its_new_score(
    seed: int, direction: MetricDirection
) -> None:
    events = list(Invented(seed=seed, direction=direction).events())[:-1]
    leader = RunStory.from_events(events).bests[-1]
    ran = next(event for event in events if isinstance(event, ev.ScriptFinished) and event.step == leader.step)
    check = f"{phase_of(leader.place)}/check"
    for fixed in (0, 1):
        found = ev.LeakageChecked(step=f"{check}/leakage-detection", found=1, fixed=fixed, leaking=[leader.script])
        story = RunStory.from_events([*events, found])
        dropped = next(one for one in story.attempts if one.step == leader.place)
        assert (dropped.score, dropped.accepted) == (None, False)
        others = [one.score for one in story.attempts if one.score is not None]
        assert story.score == (max(others) if direction is MetricDirection.maximize else min(others)) != leader.score
        assert story.best_script != ran.script
        assert leader.place not in [node.step for node in lineage_of(story).nodes if node.kind == "ensemble"]
        assert counts(RunStory.from_events([*events, found, *events, found])) == counts(story)
        forked = [*events[: events.index(ran) + 1], found, *events[events.index(ran) + 1 :]]
        assert RunStory.from_events(forked).attempts == story.attempts, "a fork says only later what was scored"
        story.apply(ran.model_copy(update={"step": f"{check}/script", "script": "print()", "digest": "d"}))
        if fixed:
            node = next(node for node in story.nodes if node.step == leader.place)
            story.apply(rescored(node, digest_of("print()"), leader.score))
        now = next(one for one in story.attempts if one.step == leader.place)
        assert (now.score, story.score) == (leader.score if fixed else None, leader.score), "what is fixed counts"


@pytest.mark.parametrize("kind", ["candidate", "merge", "refinement", "ensemble"])
def test_a_leak_that_is_found_in_a_later_phase_takes_a_score_but_not_what_the_run_went_on_from(kind: str) -> None:
    events = list(Invented(seed=3).events())
    whole = RunStory.from_events(events)
    before = lineage_of(whole)
    on_the_line = {node.step for node in before.nodes}
    taken = next(one for one in whole.attempts if one.kind == kind and one.step in on_the_line)
    ran = next(e for e in events if isinstance(e, ev.ScriptFinished) and e.step == f"{taken.step}/script")
    step = "shortlist/0c2f1b6e/leakage-detection"
    leak = ev.LeakageChecked(step=step, found=1, fixed=1, leaking=[digest_of(ran.script)])
    story = RunStory.from_events([*events, leak])
    (now,) = (one for one in story.attempts if one.step == taken.step)
    assert (now.score, now.accepted) == (None, True)
    after = lineage_of(story)
    assert after.submitted == before.submitted and {node.step for node in after.nodes} == on_the_line
    assert before.candidate and after.candidate and before.candidate.index == after.candidate.index


def test_a_later_event_of_the_same_step_takes_the_place_of_the_earlier() -> None:
    story = RunStory()
    for accepted in (False, True):
        story.apply(ev.DebugAttempted(step="phase1/candidate-0/debugger", error="a", accepted=accepted))
    story.apply(ev.Notice(message="waiting"))
    story.apply(ev.Notice(message="still waiting"))
    assert [repair.accepted for repair in story.repairs.values()] == [True]
    assert [message for _, message in story.notices] == ["waiting", "still waiting"]


def test_cancelled_work_is_no_longer_at_work_when_its_path_or_the_run_ends() -> None:
    story = RunStory()
    for path in (0, 1):
        story.apply(ev.PhaseStarted(step=f"phase2/path-{path}", phase="phase2", path=path))
        story.apply(ev.AgentStarted(step=f"phase2/path-{path}/t-0/ablation", agent=AgentType.ablation))
    assert [work.what for work in story.work_of(1)] == ["ablation"]
    story.apply(ev.PhaseFinished(step="phase2/path-1", phase="phase2", path=1, outcome="cancelled", detail="time"))
    assert (len(story.work_of(0)), len(story.work_of(1))) == (1, 0)
    story.apply(ev.RunFinished(state="interrupted", message="stopped"))
    assert not story.working
    story.apply(ev.RunResumed(spent_cost_usd=0, spent_seconds=1))
    assert story.state == "running"


def test_the_time_between_two_processes_does_not_count() -> None:
    events = list(Invented(seed=1).events())
    half = len(events) // 2
    later = [event.model_copy(update={"at": event.at + timedelta(days=29)}) for event in events[half:]]
    resumed = ev.RunResumed(at=later[0].at, spent_cost_usd=0, spent_seconds=0)
    story = RunStory.from_events([*events[:half], resumed, *later])
    assert story.clock.seconds == pytest.approx(RunStory.from_events(events).clock.seconds, abs=60)
    assert story.clock.seconds < 3600
