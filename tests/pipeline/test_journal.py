"""The journal: whole lines, one writer, damage named, secrets blotted out, and what a later process takes over."""

import errno
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mle_star import AgentType, BudgetExceeded, FinalResult, JournalError, PipelineConfig, TaskDescription
from mle_star.run import events as ev
from mle_star.run.journal import REDACTED, Journal, read_journal
from tests.conftest import script_finished


def started(task: TaskDescription) -> ev.RunStarted:
    python = ev.Interpreter(version="3.11.2")
    return ev.RunStarted(run_id="r", task=task, config=PipelineConfig(), model="offline", interpreter=python)


def reply(step: str, text: str = "yes", digest: str = "d", cost: float = 0.5) -> ev.AgentFinished:
    return ev.AgentFinished(step=step, digest=digest, agent=AgentType.coder, prompt="p", text=text, cost_usd=cost)


def failure(step: str, reason: str = "timeout", digest: str = "d") -> ev.AgentFailed:
    return ev.AgentFailed(step=step, digest=digest, agent=AgentType.coder, reason=reason, message="coder: no answer")


def ran(step: str, digest: str = "d") -> ev.ScriptFinished:
    return script_finished(step=step, digest=digest, script="x", score=0.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def write(path: Path, *events: ev.AnyEvent) -> None:
    with Journal(path) as journal:
        for event in events:
            journal.record(event)


def test_what_was_recorded_is_read_back_by_a_later_process(tmp_path: Path, task: TaskDescription) -> None:
    path = tmp_path / "new" / "folder" / "journal.jsonl"
    first, second, third = started(task), reply("phase1/coder", "größer 🎲\n```"), reply("phase1/merger")
    before = set(threading.enumerate())
    with Journal(path) as journal:
        assert (journal.started, journal.interpreter, journal.failure) == (None, None, None)
        written: list[ev.AnyEvent] = [first, second, third]
        for number, event in enumerate(written):
            journal.record(event)
            assert len(list(read_journal(path))) == number + 1, "nothing waits in a buffer"
        assert [thread.name for thread in set(threading.enumerate()) - before] == ["journal-sync_0"]
    assert not set(threading.enumerate()) - before
    journal.close()  # a second time
    with pytest.raises(ValueError, match="closed file"):
        journal.record(ev.PhaseStarted(step="phase1", phase="phase1"))
    assert list(read_journal(path)) == [first, second, third]
    with Journal(path) as journal:
        assert journal.started == first and len(list(journal.events)) == 3
        reading = iter(journal.events)
        seen = [next(reading)]
        journal.record(reply("phase1/data"))
        assert [*seen, *reading] == [first, second, third], "what is written meanwhile is left to the next reader"
        assert len(list(journal.events)) == 4


@given(text=st.text(max_size=200), cut=st.integers(1, 5000))
@hypothesis_settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_torn_last_line_is_dropped_and_writing_goes_on(tmp_path: Path, text: str, cut: int) -> None:
    path = tmp_path / f"{time.monotonic_ns()}.jsonl"
    whole, torn = ev.Notice(message="whole"), ev.Notice(message=text)
    write(path, whole, torn)
    content = path.read_bytes()
    path.write_bytes(content[: -min(cut, len(content.splitlines(keepends=True)[-1]))])
    assert list(read_journal(path)) == [whole]
    write(path, torn)
    assert list(read_journal(path)) == [whole, torn]
    path.write_bytes(b"{")  # a first line that was hardly begun
    write(path, whole)
    assert list(read_journal(path)) == [whole]


def test_a_damaged_line_and_another_version_are_named_with_their_numbers(path: Path, task: TaskDescription) -> None:
    write(path, *(ev.Notice(message=word) for word in ("one", "two", "three")))
    whole = path.read_bytes()
    first, _, last = whole.splitlines(keepends=True)
    line = json.loads(started(task).model_dump_json())
    assert line.pop("schema_version") == 5
    version = "journal version {}, but this program reads version 5; use the version of mle-star that wrote it"
    lines = (b"{oops\n", b"\x00\xff\x00\n", b'{"kind": "unknown"}\n', b"\n", b"[1]\n")
    begins = {n: json.dumps({**line, "schema_version": n}) for n in (99, 4)} | {"unknown": json.dumps(line)}
    wrong = [(one.encode() + b'\n{"kind": "odd"}\n', f"line 1: {version.format(n)}$") for n, one in begins.items()]
    for number, head in enumerate((b"", first), 1):
        wrong += [(head + damage + last, rf"line {number}: damaged \(") for damage in lines]
    for content, words in wrong:
        path.write_bytes(content)
        with pytest.raises(JournalError, match=f"^{re.escape(str(path))}, {words}"):
            list(read_journal(path))
        with pytest.raises(JournalError, match=words):
            Journal(path)
        path.write_bytes(whole)
        Journal(path).close()  # the failed attempt has let go of the lock


def test_a_second_writer_is_refused_also_from_another_process(path: Path) -> None:
    with Journal(path):
        with pytest.raises(JournalError, match="written by another process"):
            Journal(path)
        code = f"from pathlib import Path; from mle_star.run.journal import Journal; Journal(Path({str(path)!r}))"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert other.returncode == 1 and "written by another process" in other.stderr
    Journal(path).close()


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A file of this process may not grow beyond `size`, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_on_a_full_disk_events_are_held_until_there_is_room(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[ev.AnyEvent] = []
    first, late = ev.Notice(message="fits"), reply("phase1/merger", "late")
    large, begins = reply("phase1/init", "x" * 1_000_000), ev.ScriptStarted(step="phase1/script")
    with Journal(path) as journal:
        journal.subscribe(heard.append)
        journal.record(first)
        with no_file_above(500_000):
            journal.record(large)
            assert str(journal.failure) == f"{path} cannot be written: File too large"
            assert list(read_journal(path)) == [first] and path.read_bytes().endswith(b"\n")  # whole lines only
            journal.record(late)
            assert journal.find(ev.AgentFinished, "phase1/init", "d") == large
            assert list(journal.events) == [first, large, late]
            with pytest.raises(BudgetExceeded, match="cannot be written: File too large") as stop:
                journal.record(begins)
            assert stop.value.limit == "journal"
        with pytest.raises(BudgetExceeded):  # the run is ending: work that begins now might be lost again
            journal.record(begins)
        journal.record(ev.Notice(message="last"))
        assert heard == list(read_journal(path)) == list(journal.events) and len(heard) == 4
    errors = [record.getMessage() for record in caplog.records if record.name == "mle_star.run.journal"]
    assert errors == [f"{path} cannot be written: File too large; the run ends with what it has"]


def test_the_same_words_are_written_once_and_told_every_time(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard, by_the_other = list[ev.AnyEvent](), list[ev.AnyEvent]()

    def fails(event: ev.AnyEvent) -> None:
        by_the_other.append(event)
        raise KeyError("a bug in a view")

    first, better = ev.BestImproved(step="phase1", score=0.5), ev.BestImproved(step="phase1", score=0.6)
    calls = [reply("phase1/init").model_copy(update={"seconds": seconds}) for seconds in (1.0, 2.0)]
    ends = [ev.PhaseFinished(phase="phase1", outcome="completed")] * 2  # every process says which phases it had
    later: list[ev.AnyEvent] = [better, *[ev.RunFinished(state="failed")] * 2, *calls, *ends]
    for happened in ([first, first, better], later):
        with Journal(path) as journal:
            journal.subscribe(fails)
            journal.subscribe(heard.append)
            for event in happened:
                journal.record(event)
            journal.tell(first)
    assert heard == [first, first, better, first, *later, first], "the very events"
    kinds = [event.kind for event in read_journal(path)]  # how long a call took this time is no news
    always = ["run_finished", "run_finished", "agent_finished", "phase_finished", "phase_finished"]
    assert kinds == ["best_improved", "best_improved", *always]
    assert by_the_other == [first, better], "a listener that fails hears no more"
    named = [record.getMessage() for record in caplog.records if record.name == "mle_star.run.journal"]
    kinds = ["best_improved", "best_improved"]
    assert named == [f"a listener failed on {kind} and gets no more events" for kind in kinds]


def test_secrets_never_reach_the_disk_and_one_that_holds_another_is_blotted_out_whole(path: Path) -> None:
    secret = 'sk-"quoted\\and-slashed"-0123'
    longer = ["".join(f"part-{number:02}" for number in range(count)) for count in range(1, 31)]
    longer += [f"a{longer[0]}", f"z{longer[0]}"]
    with Journal(path, secrets=[secret, *longer]) as journal:
        journal.record(ev.Notice(message=f"the key is {secret}, again {secret}"))
        journal.record(reply("s", text=secret))
        assert {journal.redact(f"<{one}>") for one in longer} == {f"<{REDACTED}>"} == {"<[redacted]>"}
    text = path.read_text(encoding="utf-8")
    assert "0123" not in text and 'the key is [redacted], again [redacted]"' in text and text.count(REDACTED) == 3


def test_a_decision_is_replayed_and_a_no_is_open_again_under_other_limits(path: Path, task: TaskDescription) -> None:
    first = started(task)
    decided: list[ev.AnyEvent] = [
        ev.Decided(step="phase1/merge-1/in-time", name="in-time", value=False),
        ev.Decided(step="phase2/path-0/go-on", name="go-on", value=True, reopen=True),
        ev.Decided(step="phase2/path-0/go-on-2", name="go-on", value=False, reopen=True),
        ev.PhaseFinished(step="phase2", phase="phase2", outcome="cancelled"),
        ev.PhaseFinished(step="phase3", phase="phase3", outcome="skipped"),
    ]
    write(path, first, reply("phase1/retriever"), reply("phase2/path-0/t-0/coder"), *decided)
    with Journal(path) as journal:
        assert [journal.decision(event.step) for event in decided[:3]] == [False, True, False]
        assert journal.refused("in-time") == ["phase1/merge-1/in-time"] and journal.decision("phase3/go-on") is None
        assert [journal.phase(name) for name in ("phase1", "phase2", "phase3")] == ["begun", "cancelled", ""]
        journal.record(ev.RunResumed(spent_cost_usd=0, spent_seconds=0))
        assert journal.decision("phase2/path-0/go-on-2") is False, "under the same limits the clock says the same"
        assert journal.interpreter == first.interpreter
        python = ev.Interpreter(version="3.12.1")
        journal.record(ev.RunResumed(spent_cost_usd=0, spent_seconds=0, config=first.config, interpreter=python))
        assert journal.interpreter == python
        assert [journal.decision(event.step) for event in decided[:3]] == [False, True, None]
        assert journal.phase("phase2") == "begun"
        journal.record(ev.Decided(step="phase3/go-on", name="go-on", value=False, reopen=True))
        for result, value in ((None, False), (FinalResult.model_construct(**dict[str, Any](warnings=[])), None)):
            journal.record(ev.RunFinished(state="completed", result=result))
            assert journal.decision("phase3/go-on") is value, "after a result there may be time"


def test_a_step_is_found_by_its_name_and_inputs_and_only_a_later_process_takes_over(path: Path) -> None:
    with Journal(path) as journal:
        journal.record(reply("phase2/path-0/coder", "old"))
        journal.record(reply("phase2/path-0/coder", "other", digest="e"))
        journal.record(ran("phase2/path-0/coder"))
        journal.record(failure("phase1/init"))
        assert journal.find_failure("phase1/init", "d") is None and journal.started is None
        assert not journal.takes_over(("phase2",))
    with Journal(path) as journal:
        found = journal.find(ev.AgentFinished, "phase2/path-0/coder", "d")
        assert found is not None and found.text == "old"
        assert journal.find(ev.AgentFinished, "phase2/path-0/coder", "changed") is None
        assert journal.find(ev.AgentFinished, "phase2/path-1/coder", "d") is None
        assert isinstance(journal.find(ev.ScriptFinished, "phase2/path-0/coder", "d"), ev.ScriptFinished)
        assert journal.takes_over(("phase2",))
        journal.record(ev.AgentStarted(step="phase2/path-0/coder-2", agent=AgentType.coder))
        assert not journal.takes_over(("phase2", "path-0")) and journal.takes_over(("phase2", "path-1"))
    with Journal(path) as journal:
        assert not journal.in_progress(("phase2", "path-0"))  # whatever an earlier process began is over
        journal.record(ev.AgentStarted(step="phase2/path-0/coder", agent=AgentType.coder))
        journal.record(ev.ScriptStarted(step="phase2/path-1/script"))
        journal.record(ev.Notice(step="phase2/path-0/coder", message="not its end"))
        journal.record(reply("phase3/coder"))
        assert journal.takes_over(("phase3",)), "a reply that was taken over was not begun"
        assert journal.in_progress(("phase2", "path-0")) and journal.in_progress(("phase2", "path-1"))
        journal.record(reply("phase2/path-0/coder"))
        journal.record(ran("phase2/path-1/script"))
        assert not journal.in_progress(("phase2",))


def test_a_failure_is_taken_over_if_what_may_rest_on_it_followed(path: Path) -> None:
    """Neither what ran beside it follows it, nor is taken over what its owner fixes."""
    owners = [failure(f"phase1/{reason}", reason=reason) for reason in ("auth", "budget", "cancelled")]
    early, init, planner = (failure(f"phase{step}") for step in ("1/candidate-0/a", "1/candidate-0/init", "2/path-0/b"))
    last = [failure(place) for place in ("phase3/a", "phase3/c", "finalization/test", "probes/a", "columns/a")]
    for written, taken_over in (
        ([*owners, early, init, ran("phase1/candidate-1/script")], []),  # nor a failure after a failure
        ([ran("phase1/merge-1/script")], [early, init]),
        ([last[0], planner, ran("phase2/path-1/script")], [early, init]),
        ([reply("phase3/b"), last[1]], [early, init, planner, last[0]]),
        # probes come before the last phase
        ([*last[2:], ran("probes/script")], [early, init, planner, *last[:2], last[3]]),
        ([ran("finalization/submission-script")], [early, init, planner, *last]),
    ):
        write(path, *written)
        with Journal(path) as journal:
            failed = (*owners, early, init, planner, *last)
            assert [one for one in failed if journal.find_failure(one.step, one.digest)] == taken_over
    with Journal(path) as journal:
        assert journal.find_failure(init.step, "changed") is None
        journal.record(failure("phase3/d"))
        journal.record(reply("phase3/e"))
        assert journal.find_failure("phase3/d", "d") is None, "only what an earlier process left is replayed"


def test_a_sync_that_fails_ends_the_journal(path: Path) -> None:
    reader, writer = os.pipe()  # a pipe cannot be synced
    try:
        with Journal(path) as journal:
            journal._sync(writer)
            journal.record(failure("phase1/a"))
            assert journal.failure is not None and os.strerror(errno.EINVAL) in str(journal.failure)
    finally:
        os.close(reader)
        os.close(writer)
