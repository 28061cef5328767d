"""The truth on disk: one typed event a line, appended, flushed and synced. Resume is replay of these lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from filelock import FileLock, Timeout
from pydantic import ValidationError

from mle_star.errors import JournalError
from mle_star.events import EVENT_ADAPTER, AgentFinished, AnyEvent, RunStarted, ScriptFinished

E = TypeVar("E", AgentFinished, ScriptFinished)

# Said every time they happen, also when an earlier process said the same before.
_ALWAYS = {
    "run_resumed",
    "run_finished",
    "agent_started",
    "script_started",
    "agent_failed",
    "finish_requested",
}


def read_journal(path: Path) -> Iterator[AnyEvent]:
    """The events of a journal; a torn last line is passed over, earlier damage is an error with its line number."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # the process died while writing
            try:
                yield EVENT_ADAPTER.validate_json(line)
            except ValidationError as error:
                raise JournalError(f"{path}, line {number}: {error.errors()[0]['msg']}") from error


def _words(event: AnyEvent) -> tuple[str, str, int]:
    """What an event says, apart from when and how long."""
    return event.kind, event.step, hash(event.model_dump_json(exclude={"at", "seconds"}))


class Journal:
    """Appends events, knows the recorded steps, tells its listeners. One writer per file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[AnyEvent] = []
        self._results: dict[tuple[str, str, str], AnyEvent] = {}
        self._said: set[tuple[str, str, int]] = set()
        self._listeners: list[Callable[[AnyEvent], None]] = []
        self._lock = FileLock(str(path) + ".lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise JournalError(f"{path} is being written by another process") from None
        if path.exists():
            for event in read_journal(path):
                self._remember(event)
            self._drop_torn_line()
        self._file = path.open("ab")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def started(self) -> RunStarted | None:
        """The first line, once it is written."""
        return next((event for event in self.events if isinstance(event, RunStarted)), None)

    def subscribe(self, listener: Callable[[AnyEvent], None]) -> None:
        """Call `listener` with every event from now on, replayed results included."""
        self._listeners.append(listener)

    def record(self, event: AnyEvent) -> None:
        """Write an event once: what an earlier process said in the same words is told to the listeners only."""
        if event.kind in _ALWAYS or _words(event) not in self._said:
            self._file.write(event.model_dump_json().encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._remember(event)
        self.tell(event)

    def tell(self, event: AnyEvent) -> None:
        """Show an event to the listeners without writing it."""
        for listener in self._listeners:
            listener(event)

    def find(self, kind: type[E], step: str, digest: str) -> E | None:
        """The recorded result of a step with exactly these inputs."""
        event = self._results.get((kind.model_fields["kind"].default, step, digest))
        return event if isinstance(event, kind) else None

    def close(self) -> None:
        """Let go of the file and its lock."""
        if not self._file.closed:
            self._file.close()
        self._lock.release()

    def _remember(self, event: AnyEvent) -> None:
        self.events.append(event)
        self._said.add(_words(event))
        if isinstance(event, (AgentFinished, ScriptFinished)):
            self._results[event.kind, event.step, event.digest] = event

    def _drop_torn_line(self) -> None:
        with self.path.open("rb+") as file:
            text = file.read()
            if text and not text.endswith(b"\n"):
                file.truncate(text.rfind(b"\n") + 1)
