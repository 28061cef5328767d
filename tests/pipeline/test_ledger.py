"""The ledger of a run is what its journal says, and the memory for prompts what was tried, the telling ones first."""

from typing import Any

from mle_star.models import Measure, MetricDirection
from mle_star.models.texts import digest_of
from mle_star.run import events as ev
from mle_star.run.context import active_run
from mle_star.run.journal import Journal, read_journal
from mle_star.run.ledger import Ledger
from mle_star.run.prompt_context import MAX_CHARACTERS, steps_without_gain, tried, tried_table
from tests.conftest import as_kept
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


LEAK = script("phase2/path-0/t-0/k-0/script", 0.99)


def telling() -> dict[str, list[ev.AnyEvent]]:
    """Runs with a leak, with a leak after which another try wins, and with what the clock cut off."""
    check, slow = "phase2/path-0/t-0/check/leakage-detection", script("phase2/path-0/t-0/k-0/script", None, seconds=120)
    leaks = ev.LeakageChecked(step=check, found=1, fixed=0, leaking=[digest_of("phase2/path-0/t-0/k-1/script")])
    slow = slow.model_copy(update={"result": slow.result.model_copy(update={"timed_out": True})})
    missing = {"index": 1, "model_name": "kNN", "score": None, "error": ev.OUT_OF_TIME}
    beaten: list[ev.AnyEvent] = [
        ev.AblationFinished(step="phase2/path-0/t-0", path=0, t=0, solution_score=0.5),
        LEAK,
        attempt(0, 0, 0, "peek", 0.99, 0.99, ok=True),
        attempt(0, 0, 1, "bin", 0.6, 0.99, ok=False),
        attempt(0, 0, 2, "scale", 0.65, 0.99, ok=False),
        leaks.model_copy(update={"leaking": [digest_of(LEAK.script)]}),
        attempt(0, 0, 2, "scale", 0.65, 0.65, ok=True),
    ]
    late: list[ev.AnyEvent] = [slow, attempt(0, 0, 0, "twice the folds", None, 0.6, ok=False)]
    knn = ev.CandidateEvaluated(step="phase1/candidate-1", **missing)
    return {"all": story(), "a leak": [*story(), leaks], "beaten": beaten, "late": [*late, knn]}


def test_what_was_tried_stands_in_one_bounded_table_the_telling_ones_first_and_a_replay_changes_nothing() -> None:
    lines = list[str]()
    for name, events in telling().items():
        once, twice = ledger_of(*events), ledger_of(*events, *events)
        gains = [steps_without_gain(once, path) for path in (0, 1, 7)]  # a tie is no gain
        assert tried(twice) == tried(once) and [steps_without_gain(twice, path) for path in (0, 1, 7)] == gains
        lines += [f"--- {name}: {gains}", tried_table(once)]
    once = ledger_of(*story())
    lines += [tried_table(once, path=1, t=0), tried_table(Ledger.of(story(), MetricDirection.minimize))]
    as_kept("pipeline/tried.txt", "\n".join([*lines, *once.repairs("phase2/path-0/t-0/k-0")]))
    many = [attempt(0, t, k, "words and words " * 40, 0.1, 0.5, ok=False) for t in range(20) for k in range(4)]
    bounded = tried_table(ledger_of(*many))
    assert len(bounded) <= MAX_CHARACTERS and bounded.splitlines()[-1].startswith("- and ")
