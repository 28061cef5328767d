"""The journal's small print: what is told, what is waited for, and how a sync that fails is noticed."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from mle_star.run.events import AnyEvent
from mle_star.run.journal import Journal, _Syncer
from tests.pipeline.test_journal import failure, reply, write


def test_listeners_get_the_very_events_in_order_and_a_failing_one_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[AnyEvent] = []

    def fail(event: AnyEvent) -> None:
        raise ValueError("no room")

    first, second = reply("a/x"), reply("a/y")
    with Journal(tmp_path / "new" / "folder" / "journal.jsonl") as journal:
        journal.subscribe(fail)
        journal.subscribe(heard.append)
        journal.record(first)
        journal.record(second)
        journal.tell(first)
    assert heard == [first, second, first]
    assert [record.getMessage() for record in caplog.records if record.name == "mle_star.run.journal"] == [
        "a listener failed on agent_finished and will hear no more"
    ]


def test_a_journal_that_is_closed_leaves_no_thread_and_may_be_closed_again(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert [thread.name for thread in set(threading.enumerate()) - before] == ["journal-sync"]
    assert not set(threading.enumerate()) - before
    journal.close()
    write(tmp_path / "journal.jsonl", reply("a/x"))


def test_what_is_written_while_events_are_read_is_left_to_the_next_reader(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.record(reply("a/x"))
        reading = iter(journal.events)
        first = next(reading)
        journal.record(reply("a/y"))
        assert [event.step for event in (first, *reading)] == ["a/x"]
        assert [event.step for event in journal.events] == ["a/x", "a/y"]


def test_a_first_line_that_was_hardly_begun_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"{")
    write(path, reply("a/x"))
    with Journal(path) as journal:
        assert [event.step for event in journal.events] == ["a/x"]


def test_a_failure_that_nothing_followed_is_asked_again_be_it_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, failure("p/a/x"))
    with Journal(path) as journal:
        assert journal.find_failure("p/a/x", "d") is None
        assert journal.find_failure("p/a/y", "d") is None


def test_a_sync_that_fails_is_kept_and_its_thread_holds_up_no_exit() -> None:
    reader, writer = os.pipe()  # a pipe cannot be synced
    try:
        syncer = _Syncer(writer)
        assert syncer._thread.daemon
        syncer.wake()
        syncer._thread.join(60)
        assert syncer.error is not None and syncer.error.errno == errno.EINVAL
        syncer.stop()
    finally:
        os.close(reader)
        os.close(writer)
