"""The ledger of a run is what its journal says, at every event, in a resumed run, too."""

from __future__ import annotations

from typing import Any

from mle_star.models import MetricDirection
from mle_star.run.context import active_run
from mle_star.run.events import AnyEvent, BudgetWarning, Forecast, LeakageChecked, SubmissionKept
from mle_star.run.journal import Journal, read_journal
from mle_star.run.ledger import Ledger
from mle_star.run.prompt_context import tried
from tests.pipeline.conftest import QuickRun, settings


def facts(ledger: Ledger) -> dict[str, Any]:
    """All that can be asked of it."""
    return {
        "runs": ledger.runs,
        "nodes": ledger.nodes,
        "kept": ledger.kept,
        "leaking": ledger.leaking,
        "checked": {run.script: ledger.is_checked(run.script) for run in ledger.runs.values()},
        "bests": ledger.bests(),
        "before": [ledger.before(node) for node in ledger.nodes],
        "ancestors": [[one.step for one in ledger.ancestors(node.digest)] for node in ledger.nodes],
        "seconds": [ledger.seconds(label) for label in ("main", "path-0", "path-1")],
    }


async def test_the_live_ledger_is_that_of_the_journal_at_every_event(quick: QuickRun) -> None:
    heard: list[AnyEvent] = []
    compared: list[bool] = []

    def compare(event: AnyEvent) -> None:
        run = active_run()
        from_a_listener = isinstance(event, (Forecast, BudgetWarning))  # before the ledger has heard what caused it
        if run is not None and run.shared.ledger is not None and not from_a_listener:
            compared.append(facts(run.ledger) == facts(Ledger.of(heard)))
        heard.append(event)

    await quick(settings(M=2, T=2, K=2, L=2, R=2), listeners=[compare])
    assert len(compared) > 50 and all(compared)
    journal = quick.dir / "journal.jsonl"
    assert facts(Ledger.of(read_journal(journal))) == facts(Ledger.of(heard))
    with Journal(journal) as opened:
        resumed = Ledger.following(opened, MetricDirection.maximize)
        assert facts(resumed) == facts(Ledger.of(heard))
        best = resumed.best()
        assert best is not None and "level" in resumed.text(best.script)
    tries = [entry.where for entry in tried(resumed) if entry.step and entry.step[0] == 0]
    assert tries == [f"path 1, step {step}, try {number}" for step in (1, 2) for number in (1, 2)], "it remembers"
    assert {node.kind for node in resumed.nodes} == {"candidate", "merge", "data", "refinement", "ensemble"}
    for node in resumed.nodes:  # every attempt leads back to a candidate
        line = list(resumed.ancestors(node.digest)) if node.digest else []
        assert not line or any(one.kind == "candidate" for one in line), node.step
    assert any(isinstance(event, LeakageChecked) for event in heard)
    assert any(isinstance(event, SubmissionKept) for event in heard)
