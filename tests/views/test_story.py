"""The story of a run, told by its events alone: where the result came from, why it won, beside what and how sure."""

import io
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from mle_star.models import AgentType, Measure, MetricDirection, PipelineConfig, Yardstick
from mle_star.models import ScoreChange as Paired
from mle_star.models.enums import ORDER, phase_of
from mle_star.models.texts import digest_of
from mle_star.run import events as ev
from mle_star.run.events import AnyEvent
from mle_star.run.folder import spent_by
from mle_star.run.journal import Journal
from mle_star.run.ledger import best_score
from mle_star.views import RunStory, text
from mle_star.views.charts import describe
from mle_star.views.display import summary
from mle_star.views.lineage import gains_of, lineage_of, why
from mle_star.views.page import Page
from mle_star.views.shelf import Comparison, leaderboard_rows
from mle_star.views.tables import attempt_rows
from mle_star.views.verdict import Verdict
from tests.conftest import as_kept
from tests.views.journals import EXPECTED, HOLDOUT, Invented, picked, write_journal

E = TypeVar("E", bound=ev.Event)
DIRECTIONS = st.sampled_from(list(MetricDirection))


def story_of(events: list[AnyEvent], holdout: ev.HoldOutPrepared | None = None, chosen: str = "") -> RunStory:
    """The story of a run whose rows were hidden, and which ended with a final selection."""
    events = picked(events, chosen) if chosen else events
    return RunStory.from_events([events[0], *([holdout] if holdout else []), *events[1:]])


def changed(events: Iterable[AnyEvent], kind: type[E], update: Callable[[E], dict[str, Any]]) -> list[AnyEvent]:
    """The events, those of one kind with other fields."""
    return [one.model_copy(update=update(one)) if isinstance(one, kind) else one for one in events]


def summary_of(story: RunStory) -> list[str]:
    """The lines at the end of a run."""
    out = io.StringIO()
    Console(file=out, width=300).print(summary(story))
    return [line.strip() for line in out.getvalue().splitlines()]


def counts(story: RunStory) -> tuple[object, ...]:
    """What must not change when an event is heard twice."""
    return (
        story.score, story.first_score, story.totals, story.progress, story.attempts, story.spent.seconds,
        story.spent.by_stage, story.bests, story.final_script, sorted(story.notices), story.state, lineage_of(story),
    )  # fmt: skip


def test_a_story_of_a_journal_agrees_with_the_ledger_and_counts_attempts_in_order_of_time(tmp_path: Path) -> None:
    events = Invented(M=4, T=3, K=3, L=2, R=3).events()
    with Journal(tmp_path / "run" / "journal.jsonl") as journal:
        for event in events:
            journal.record(event)
    story, spent = RunStory.of(tmp_path / "run"), spent_by(events)
    assert story.totals.cost_usd == pytest.approx(spent.usd) and story.spent.by_stage == spent.by_stage
    assert 0.9 * spent.seconds < sum(spent.by_stage[phase] for phase in ORDER) <= spent.seconds
    tried = (ev.CandidateEvaluated, ev.MergeTried, ev.RefinementTried, ev.EnsembleTried)
    assert [attempt.step for attempt in story.attempts] == [e.step for e in events if isinstance(e, tried)]
    done = sum(isinstance(event, (ev.AgentFinished, ev.ScriptFinished)) for event in events)
    assert story.progress == (done, done)
    half = len(events) // 2  # The time between two processes does not count, not even where it could be time at work.
    later = changed(events[half:], ev.Event, lambda one: {"at": one.at + timedelta(minutes=5)})
    resumed = ev.RunResumed(at=later[0].at, spent_cost_usd=0, spent_seconds=0)
    resumed_story = RunStory.from_events([*events[:half], resumed, *later])
    assert resumed_story.spent.seconds == pytest.approx(story.spent.seconds, abs=60)
    # The first score is the first in time, whatever number its candidate has.
    events = changed(Invented(M=3, T=1).events(), ev.CandidateEvaluated, lambda one: {"index": 2 - one.index})
    story = RunStory.from_events(events)
    first = next(event.score for event in events if isinstance(event, ev.CandidateEvaluated) and event.score)
    zero = next(one for one in story.tried(ev.CandidateEvaluated) if one.index == 0)
    assert Verdict(story).stages[0].score == story.first_score == first != zero.score
    assert f"is {text.score(first)}, the best" in describe(story)


@given(seed=st.integers(0, 10_000), at=st.integers(0, 200), direction=DIRECTIONS)
@settings(max_examples=15)
def test_events_heard_twice_change_nothing_at_any_moment(seed: int, at: int, direction: MetricDirection) -> None:
    events = Invented(seed=seed, T=2, K=2, direction=direction).events()
    again = RunStory.from_events([*events[: at + 1], *events[: at + 1]])
    counts(again)
    for event in events[at + 1 :]:
        again.apply(event)
    assert counts(again) == counts(RunStory.from_events(events))


@pytest.mark.parametrize("direction", list(MetricDirection))
def test_the_best_score_only_gets_better_and_submission_scripts_have_no_say(direction: MetricDirection) -> None:
    events = Invented(direction=direction).events()
    story, pick = RunStory.from_events(events), max if direction is MetricDirection.maximize else min
    bests, known = ([one.score for one in some if one.score is not None] for some in (story.bests, story.attempts))
    assert bests == sorted(bests, reverse=pick is min) and len(bests) > 2
    found = [best for best, one in zip(story.best_so_far, story.attempts, strict=True) if one.score is not None]
    assert found == [pick(known[: count + 1]) for count in range(len(known))]
    last = next(e for e in reversed(events) if isinstance(e, ev.ScriptFinished) and e.purpose == "submission")
    perfect = last.result.model_copy(update={"score": pick(2.0, 0.0)})
    assert RunStory.from_events([*events[:-1], last.model_copy(update={"result": perfect})]).score == bests[-1]


@given(seed=st.integers(0, 10_000), direction=DIRECTIONS)
@settings(max_examples=15)
def test_a_leaking_script_loses_its_score_and_a_fixed_one_has_a_new(seed: int, direction: MetricDirection) -> None:
    events, known = Invented(seed=seed, direction=direction).events(), {"measure": Measure(score=0.5, estimated=True)}
    events = changed(events[:-1], ev.ScriptFinished, lambda one: {"result": one.result.model_copy(update=known)})
    leader = RunStory.from_events(events).bests[-1]
    ran = next(event for event in events if isinstance(event, ev.ScriptFinished) and event.step == leader.step)
    check = f"{phase_of(leader.place)}/check"
    for fixed in (0, 1):
        found = ev.LeakageChecked(step=f"{check}/leakage-detection", found=1, fixed=fixed, leaking=[leader.script_id])
        story = RunStory.from_events([*events, found])
        dropped = next(one for one in story.attempts if one.step == leader.place)
        assert (dropped.score, dropped.accepted) == (None, False)
        assert all(bool(row.basis) == (row.attempt.score is not None) for row in attempt_rows(story))
        others = [one.score for one in story.attempts if one.score is not None]
        assert story.score == best_score(others, direction) != leader.score and story.best_script != ran.script
        assert leader.place not in [node.step for node in lineage_of(story).nodes if node.kind == "ensemble"]
        assert counts(RunStory.from_events([*events, found, *events, found])) == counts(story)
        forked = [*events[: events.index(ran) + 1], found, *events[events.index(ran) + 1 :]]
        assert RunStory.from_events(forked).attempts == story.attempts, "a fork says only later what was scored"
        story.apply(ran.model_copy(update={"step": f"{check}/script", "script": "print()", "digest": "d"}))
        if fixed:
            node = next(node for node in story.nodes if node.step == leader.place)
            story.apply(node.event.model_copy(update={"digest": digest_of("print()"), "score": leader.score}))
        now = next(one for one in story.attempts if one.step == leader.place)
        assert (now.score, story.score) == (leader.score if fixed else None, leader.score), "what is fixed counts"


@pytest.mark.parametrize("kind", ["candidate", "merge", "refinement", "ensemble"])
def test_a_leak_that_is_found_in_a_later_phase_takes_a_score_but_not_what_the_run_went_on_from(kind: str) -> None:
    events = Invented(seed=3).ended()
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


def test_a_later_event_takes_the_place_of_the_earlier_and_cancelled_work_ends_with_its_path_or_the_run() -> None:
    story = RunStory.from_events(ev.Notice(message=message) for message in ("waiting", "still waiting"))
    for accepted in (False, True):
        story.apply(ev.DebugAttempted(step="phase1/candidate-0/debugger", error="a", accepted=accepted))
    assert [repair.accepted for repair in story.ledger.repaired.values()] == [True]
    assert [message for _, message in story.notices] == ["waiting", "still waiting"]
    for path in (0, 1):
        story.apply(ev.PhaseStarted(step=f"phase2/path-{path}", phase="phase2", path=path))
        story.apply(ev.AgentStarted(step=f"phase2/path-{path}/t-0/ablation", agent=AgentType.ablation))
    assert [work.what for work in story.work_of(1)] == ["ablation"]
    story.apply(ev.AblationFinished(step="phase2/path-0/t-0", path=0, t=0, solution_score=0.5))
    assert (story.paths[0].best_score, story.paths[1].best_score) == (0.5, None)
    story.apply(ev.PhaseFinished(step="phase2/path-1", phase="phase2", path=1, outcome="cancelled", detail="time"))
    assert (len(story.work_of(0)), len(story.work_of(1))) == (1, 0)
    story.apply(ev.RunFinished(state="interrupted", message="stopped"))
    assert not story.working
    story.apply(ev.RunResumed(spent_cost_usd=0, spent_seconds=1))
    assert story.state == "running"


@pytest.mark.parametrize("seed", [0, 1, 11])
def test_every_attempt_hangs_on_the_one_that_it_grew_out_of_and_the_one_that_brought_most_is_named(seed: int) -> None:
    story = RunStory.from_events(Invented(seed=seed, L=3).ended())
    line, accepted = lineage_of(story), set[str]()
    for one in story.attempts:
        assert accepted.issuperset(one.parents) and bool(one.parents) == (one.kind != "candidate")
        accepted |= {one.step} if one.accepted else set()
    assert line.ensemble is not None and line.ensemble == story.best_ensemble
    assert (line.source, line.submitted) == ("ensemble", line.ensemble.step)
    assert line.candidate is not None and story.ledger.retrieved is not None
    assert line.candidate.model_name in story.ledger.retrieved.names and list(line.paths) == [0, 1, 2]
    for gains in line.paths.values():
        assert all(gain.accepted for gain in gains) and len({gain.t for gain in gains}) == len(gains)
    solutions = sum(run.seconds for run in story.scripts.values() if run.purpose == "solution")
    assert sum(row.seconds for row in attempt_rows(story)) == pytest.approx(solutions)
    brought = [one for one in gains_of(story) if one.amount is not None]
    assert {one.attempt.kind for one in brought} == {"merge", "refinement", "ensemble"}
    most = max(brought, key=lambda one: one.amount or 0.0)
    assert why(story).startswith("An ensemble of 3 refined paths won")
    assert f"is {text.signed(most.amount or 0.0)[1:]}: {most.what}" in why(story)


def choices(events: list[AnyEvent]) -> list[str]:
    """What the final selection may choose, a rejected script among them."""
    story = RunStory.from_events(events)
    rejected, rounds = next(one for one in story.refinements if not one.accepted), story.tried(ev.EnsembleTried)
    rest = (f"{rejected.step}/script", *(f"ensemble {one.r}" for one in rounds), "blend")
    return ["path 0", "path 1", "initial solution", *rest]


def test_the_list_of_scripts_marks_what_the_final_selection_chose_and_of_a_blend_none(tmp_path: Path) -> None:
    events = Invented(seed=11, L=2, T=3).ended(lineage={"finalization": {"from_phase": "ensemble"}})
    for chosen in choices(events):
        write_journal(tmp_path, picked(events, chosen))
        rows, submitted = leaderboard_rows(tmp_path), lineage_of(story_of(events, chosen=chosen)).submitted
        assert len(rows) > 6 and [row["score"] for row in rows] == sorted((r["score"] for r in rows), reverse=True)
        assert [row["step"] for row in rows if row["chosen"]] == [submitted] * (chosen != "blend")
    write_journal(tmp_path, Invented(seed=1).ended("blend", lineage={"promoted": "phase1/candidate-0/script"}))
    assert [row["step"] for row in leaderboard_rows(tmp_path) if row["chosen"]] == ["phase1/candidate-0"]


def test_a_candidate_that_there_was_no_time_for_was_left_out_and_did_not_fail() -> None:
    late = {"score": None, "error": ev.OUT_OF_TIME}
    story = story_of(changed(Invented(seed=11).events(), ev.CandidateEvaluated, lambda one: late if one.index else {}))
    assert [one.step for one in story.attempts if one.kind == "candidate"] == ["phase1/candidate-0"]
    assert 'chip bad">left out' in Page(Path("run")).html(story)


def held(**known: Any) -> RunStory:
    """A run whose expected score is on hidden rows."""
    return story_of(Invented(seed=11).ended(**{"expected": EXPECTED, **known}), HOLDOUT)


def beside(name: str, score: float, difference: float, wins: float) -> Yardstick:
    """What the result is compared with, row by row."""
    change = Paired(difference=difference, error=0.002, wins=wins, rows=180)
    return Yardstick(name=name, measure=Measure(score=score, measured="harness"), change=change)


def explained() -> Iterator[tuple[str, RunStory]]:
    """Runs whose results rest on different things."""
    yield "on rows kept for the end", held()
    events = Invented(seed=11).ended(expected=EXPECTED)
    cut = {"nobody checked it": events, "no end, nobody checked it": events[:-1]}
    yield from ((name, story_of(some)) for name, some in cut.items())
    yield from ((f"{count} events", story_of(events[:count], HOLDOUT)) for count in (-1, 1))
    yield "single on the same rows", held(single_model=Yardstick(name="Ridge", measure=Measure(score=0.84)))
    yield "wide", held(expected=EXPECTED.model_copy(update={"low": 0.7, "high": 0.95}))
    for difference, wins in ((0.004, 0.98), (0.001, 0.7), (-0.01, 0.0)):
        yield f"better by {difference}", held(single_model=beside("Ridge", 0.86, difference, wins))
    better = beside("Ridge", 0.8, 0.05, 1.0)
    yield "below a dummy", held(baseline=beside("dummy", 0.86, -0.01, 0.0), single_model=better)
    yield "hardly above a dummy", held(baseline=beside("dummy", 0.84, 0.01, 0.7))
    yield "no ensemble", story_of(changed(events, ev.EnsembleTried, lambda one: {"score": None}), HOLDOUT)
    one_view = {"measure": Measure(score=0.9, rows=180, measured="harness")}
    ran = changed(events, ev.ScriptFinished, lambda one: {"result": one.result.model_copy(update=one_view)})
    yield "on rows of the views that were run", (story := story_of(ran[:-1], HOLDOUT))
    yield "told once", held(expected=EXPECTED.model_copy(update={"score": story.score}))
    for field in ("competition_id", "evaluation_metric", "description"):
        elsewhere = changed(events, ev.RunStarted, lambda one: {"task": one.task.model_copy(update={field: "x"})})  # noqa: B023
        yield f"another {field}", story_of(elsewhere, HOLDOUT)
    config = PipelineConfig(scoring="self_reported")
    resumed = ev.RunResumed(step="run", spent_cost_usd=0, spent_seconds=0, config=config)
    yield "resumed without hidden rows", story_of([*ran[:-1], resumed], HOLDOUT)
    for limit in ("stopped by the time limit", "too little time for more", "stopped by the money limit", "asked"):
        limited = changed(events, ev.RunFinished, lambda one: {"message": limit})  # noqa: B023
        yield limit, story_of(changed(limited, ev.Forecast, lambda one: {"seconds": 9000.0}))
    single = Yardstick(name="ExtraTrees", measure=EXPECTED.model_copy(update={"score": 0.95}))
    unmerged = Invented(seed=11).ended(expected=EXPECTED, single_model=single)
    unmerged = changed(unmerged, ev.MergeTried, lambda one: {"accepted": False})
    for chosen in ("initial solution", "path 1", "blend"):
        yield f"unmerged, {chosen}", story_of(unmerged, HOLDOUT, chosen)
    for chosen in choices(events):
        yield chosen, story_of(events, chosen=chosen)
    many = RunStory.from_events(long := Invented(seed=16, L=2, T=6, K=6).ended())
    last = [one for one in many.refinements if not one.accepted][-1]
    yield "a loss after many gains", story_of(long, chosen=f"{last.step}/script")
    plain = RunStory.from_events(events)
    best = plain.chosen_candidate
    other = next(one for one in plain.tried(ev.CandidateEvaluated) if one != best and one.digest)
    begun, grown = {"model": other.model_name, "digest": other.digest}, {"parents": [other.digest]}
    events = changed(events, ev.PhaseStarted, lambda one: begun if one.path == 1 else {})
    events = changed(events, ev.RefinementTried, lambda one: grown if (one.path, one.t) == (1, 0) else {})
    for chosen in ("path 1", "path 0", "ensemble 0", f"{best.step if best else ''}/script"):
        yield f"path 1 began with another candidate, {chosen}", story_of(events, chosen=chosen)


def test_results_are_compared_and_explained_by_what_they_rest_on() -> None:
    """No result is compared with itself or with one on other rows, and no step is listed that it lacks."""
    lines, first = list[str](), held()
    for name, story in explained():
        verdict, grown = Verdict(story), [one for one in story.attempts if one.step.endswith("t-0/k-0")]
        lines += [f"--- {name}: {lineage_of(story).submitted} {verdict.gain[1]} {verdict.checked} {verdict.detail}"]
        lines += [f"{verdict.isolation[0]} {describe(story)}"]
        lines += [f"{one.kind} {text.score(one.score)}" for one in verdict.yardsticks] + [verdict.split]
        lines += [f"{one.name}: {one.what}" for one in verdict.stages] + [f"{one.step} {one.parents}" for one in grown]
        lines += [*summary_of(story)[:-6], Comparison.of(first, story).why_not]
    figures = (0.79123, 0.7234, 0.8612, 62), (14.04, 7.61, 20.2, 1), (0.00041, 0, 0.0015, 6), (182345, 171e3, 195500, 9)
    for score, low, high, rows in figures:
        lines.append(Measure(score=score, low=low, high=high, rows=rows, measured="harness").words)
    as_kept("views/explained.txt", "\n".join(lines))
