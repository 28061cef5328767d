"""The ledger of a run is what its journal says, and the memory for prompts what was tried, the telling ones first."""

from typing import Any

from mle_star.models import Measure, MetricDirection
from mle_star.models.texts import digest_of
from mle_star.run import events as ev
from mle_star.run.context import active_run
from mle_star.run.journal import Journal, read_journal
from mle_star.run.ledger import Ledger
from mle_star.run.tried import MAX_CHARACTERS, steps_without_gain, tried, tried_table
from tests.ledgers import script_finished
from tests.pipeline.conftest import QuickRun, settings


def facts(ledger: Ledger) -> dict[str, Any]:
    return {
        "runs": ledger.runs,
        "nodes": ledger.nodes,
        "kept": ledger.kept,
        "leaking": ledger.leaking,
        "checked": {run.script: ledger.is_checked(run.script) for run in ledger.runs.values()},
        "bests": ledger.bests(),
        "tried": tried(ledger),
        "ancestors": [[one.step for one in ledger.ancestors(node.digest)] for node in ledger.nodes],
        "seconds": [ledger.seconds(label) for label in ("main", "path-0", "path-1")],
    }


async def test_the_live_ledger_is_that_of_the_journal_at_every_event(quick: QuickRun) -> None:
    heard: list[ev.AnyEvent] = []
    compared: list[bool] = []

    def compare(event: ev.AnyEvent) -> None:
        run = active_run()
        early = isinstance(event, (ev.Forecast, ev.BudgetWarning))  # before the ledger has heard what caused them
        if run is not None and not early:
            compared.append(facts(run.ledger) == facts(Ledger.of(heard)))
        heard.append(event)

    await quick(settings(M=2, T=2, K=2, L=2, R=2), listeners=[compare])
    assert len(compared) > 50 and all(compared)
    journal = quick.dir / "journal.jsonl"
    assert facts(Ledger.of(read_journal(journal))) == facts(Ledger.of(heard))
    with Journal(journal) as opened:
        resumed, anew = Ledger(), Ledger()
        resumed.follow(opened, MetricDirection.maximize)
        anew.follow(opened, MetricDirection.maximize, fresh=True)
        assert facts(resumed) == facts(Ledger.of(heard)) and not anew.runs
        best = resumed.best()
        assert best is not None and "level" in resumed.text(best.script)
    tries = [entry.where for entry in tried(resumed) if entry.step and entry.step[0] == 0]
    assert tries == [f"path 1, step {step}, try {number}" for step in (1, 2) for number in (1, 2)], "it remembers"
    assert {node.kind for node in resumed.nodes} == {"candidate", "merge", "data", "refinement", "ensemble"}
    for node in resumed.nodes:  # every attempt leads back to a candidate
        line = list(resumed.ancestors(node.digest)) if node.digest else []
        assert not line or any(one.kind == "candidate" for one in line), node.step
    assert any(isinstance(event, ev.LeakageChecked) for event in heard)
    assert any(isinstance(event, ev.SubmissionKept) for event in heard)


def script(step: str, score: float | None, *, seconds: float = 3.0, traceback: str | None = None) -> ev.ScriptFinished:
    measure = None if score is None else Measure(score=score, low=score - 0.1, high=score + 0.1, measured="harness")
    words = {"step": step, "digest": "d", "script": step}
    return script_finished(seconds, traceback, **words, is_error=score is None, score=score, measure=measure)


def attempt(path: int, t: int, k: int, plan: str, score: float | None, best: float, *, ok: bool) -> ev.RefinementTried:
    return ev.RefinementTried(
        step=f"phase2/path-{path}/t-{t}/k-{k}", path=path, t=t, k=k, plan=plan, before="a", after="b", score=score,
        best_score=best, accepted=ok, digest=digest_of(f"phase2/path-{path}/t-{t}/k-{k}/script"),
    )  # fmt: skip


def story() -> list[ev.AnyEvent]:
    ridge = "phase1/candidate-0/script"
    return [
        script(ridge, 0.5),
        ev.CandidateEvaluated(step=ridge[:-7], index=0, model_name="Ridge", score=0.5, digest=digest_of(ridge)),
        ev.MergeTried(step="phase1/m-1", index=1, base_score=0.5, reference_model="LightGBM", score=0.6, accepted=True),
        ev.AblationFinished(step="phase2/path-0/t-0", path=0, t=0, solution_score=0.6),
        script("phase2/path-0/t-0/k-0/script", None, traceback="Traceback ...\nKeyError: 'Age'"),
        ev.DebugAttempted(step="phase2/path-0/t-0/k-0/debugger", error="KeyError: 'Age'", accepted=True),
        ev.DebugAttempted(step="phase2/path-0/t-0/k-0/debugger-2", error="ValueError: no", accepted=True),
        attempt(0, 0, 0, "drop the\nouter rows", None, 0.6, ok=False),
        script("phase2/path-0/t-0/k-1/script", 0.65, seconds=12),
        attempt(0, 0, 1, "bin the ages", 0.65, 0.65, ok=True),
        ev.AblationFinished(step="phase2/path-1/t-0", path=1, t=0, solution_score=0.6),
        attempt(1, 0, 0, "fewer trees", 0.55, 0.6, ok=False),
        attempt(1, 1, 0, "more trees", 0.6, 0.6, ok=True),
        ev.EnsembleTried(step="phase3/r-0", r=0, plan="average", score=0.7),
        ev.EnsembleTried(step="phase3/r-1", r=1, plan="stack", score=0.68),
    ]


def ledger_of(*events: ev.AnyEvent) -> Ledger:
    return Ledger.of(events, MetricDirection.maximize)


def test_everything_that_was_tried_stands_in_one_bounded_table_the_telling_ones_first() -> None:
    table = tried_table(ledger_of(*story())).splitlines()
    assert table[:3] == [
        "- merge: work LightGBM into the best so far -> 0.6, better by 0.1, accepted",
        "- path 1, step 1, try 2: bin the ages -> 0.65, better by 0.05, accepted, 12 s",
        "- path 1, step 1, try 1: drop the outer rows -> failed: KeyError: 'Age', 3 s",
    ]
    assert {
        "- path 2, step 1, try 1: fewer trees -> 0.55, worse by 0.05, rejected",
        "- path 2, step 2, try 1: more trees -> 0.6, no change, accepted",
        "- ensemble 2: stack -> 0.68, worse by 0.02, rejected",
        "- candidate: Ridge -> 0.5, 3 s",
    } <= {*table}
    assert tried_table(ledger_of(*story()), path=1, t=0).startswith("- path 2, step 1, try 1: fewer trees")
    assert "fewer trees -> 0.55, better by 0.05" in tried_table(Ledger.of(story(), MetricDirection.minimize))
    many = [attempt(0, t, k, "words and words " * 40, 0.1, 0.5, ok=False) for t in range(20) for k in range(4)]
    bounded = tried_table(ledger_of(*many))
    assert len(bounded) <= MAX_CHARACTERS and bounded.splitlines()[-1].startswith("- and ")


def test_what_the_clock_cut_off_is_no_verdict_on_an_idea() -> None:
    slow = script("phase2/path-0/t-0/k-0/script", None, seconds=120)
    slow = slow.model_copy(update={"result": slow.result.model_copy(update={"timed_out": True})})
    missing = {"index": 1, "model_name": "kNN", "score": None, "error": ev.OUT_OF_TIME}
    knn = ev.CandidateEvaluated(step="phase1/candidate-1", **missing)
    assert tried_table(ledger_of(slow, attempt(0, 0, 0, "twice the folds", None, 0.6, ok=False), knn)).splitlines() == [
        "- path 1, step 1, try 1: twice the folds -> not scored: stopped at its time limit, which says nothing of the "
        "idea, 120 s",
        "- candidate: kNN -> not scored: Phase 1's share of the time is used up, which says nothing of the idea",
    ]


def test_a_replay_changes_nothing_and_steps_without_gain_are_counted_from_the_last() -> None:
    once, twice = ledger_of(*story()), ledger_of(*story(), *story())
    assert tried(twice) == tried(once)
    assert twice.repairs("phase2/path-0/t-0/k-0") == ["KeyError: 'Age'", "ValueError: no"]
    assert [steps_without_gain(once, path) for path in (0, 1, 7)] == [0, 2, 0], "a tie is no gain"


def test_nobody_is_told_to_build_on_a_score_that_leaks() -> None:
    leaking, check = [digest_of("phase2/path-0/t-0/k-1/script")], "phase2/path-0/t-0/check/leakage-detection"
    leaks = ev.LeakageChecked(step=check, found=1, fixed=0, leaking=leaking)
    for times in (1, 2):
        ledger = ledger_of(*[*story(), leaks] * times)
        (line,) = [line for line in tried_table(ledger).splitlines() if "bin the ages" in line]
        assert line == (
            "- path 1, step 1, try 2: bin the ages -> failed: data leakage was found and could not be fixed, 12 s"
        )
        assert steps_without_gain(ledger, 0) == 1


def test_what_wins_after_a_leak_is_compared_with_what_its_step_began_with() -> None:
    leak = script("phase2/path-0/t-0/k-0/script", 0.99)
    check = "phase2/path-0/t-0/check/leakage"
    found = ev.LeakageChecked(step=check, found=1, fixed=0, leaking=[digest_of(leak.script)])
    events: list[ev.AnyEvent] = [
        ev.AblationFinished(step="phase2/path-0/t-0", path=0, t=0, solution_score=0.5),
        leak,
        attempt(0, 0, 0, "peek", 0.99, 0.99, ok=True),
        attempt(0, 0, 1, "bin", 0.6, 0.99, ok=False),
        attempt(0, 0, 2, "scale", 0.65, 0.99, ok=False),
        found,
        attempt(0, 0, 2, "scale", 0.65, 0.65, ok=True),
    ]
    for times in (1, 2):  # a resumed run says them again
        ledger = ledger_of(*events * times)
        outcomes = [(e.outcome, e.score, e.change and round(e.change, 3)) for e in tried(ledger)]
        assert outcomes == [("failed", None, None), ("rejected", 0.6, 0.1), ("accepted", 0.65, 0.15)]
        assert steps_without_gain(ledger, 0) == 0
