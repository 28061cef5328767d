"""The truth on disk: one typed event a line, appended; what was paid for is synced. Resume is replay of these lines."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import ValidationError

from mle_star.errors import BudgetExceeded, JournalError
from mle_star.models import PipelineConfig
from mle_star.models.enums import ORDER, PHASES
from mle_star.run import events
from mle_star.run.events import AgentFailed, AgentFinished, AnyEvent, Decided, RunStarted, ScriptFinished
from mle_star.run.log_lines import log_event

logger = logging.getLogger(__name__)

E = TypeVar("E", AgentFinished, AgentFailed, ScriptFinished)
Key = tuple[str, str, str]

REDACTED = "[redacted]"
NOT_REPEATED = {"auth", "budget", "cancelled"}
"""Failures that a resumed run does not replay: their cause may be fixed by then."""

_TIMES: dict[str, Any] = {"at": True, "seconds": True, "result": {"duration_seconds"}}
"""What two events may differ in that say the same."""
_BEGINS = {"agent_started", "script_started"}
_ENDS = {"agent_finished", "agent_failed", "script_finished"}
_PAID = {*_ENDS, "submission_kept", "run_finished"}
"""What a power failure must not take: the money or the hours of it. The rest a resumed run says again."""
_EVERY_TIME = {"run_resumed", "run_finished", "agent_failed", "finish_requested", "submission_kept", "phase_finished"}
"""Said every time they happen, as what begins is, also when an earlier process said the same before."""
_BEFORE_THE_LAST = len(PHASES) - 1.5  # where places lie that are no phase: probes of the solution
_SIDE_BY_SIDE = ("candidate-", "path-")


def read_journal(path: Path) -> Iterator[AnyEvent]:
    """The events of a journal; a torn last line is passed over, earlier damage is an error with its line number."""
    return (event for _, _, event in _placed_events(path))


def _placed_events(path: Path) -> Iterator[tuple[int, int, AnyEvent]]:
    """Each event with the places in the file where its line begins and ends."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # the process died while writing, or is writing now
            if number == 1:
                _check_version(path, line)
            try:
                event = events.EVENT_ADAPTER.validate_json(line)
            except ValidationError as error:
                raise JournalError(f"{path}, line {number}: damaged ({error.errors()[0]['msg']})") from error
            yield offset, offset + len(line), event
            offset += len(line)


def _check_version(path: Path, line: bytes) -> None:
    """Refuse a journal of another version before any of its lines is misread; damage is named later, with its line."""
    with suppress(ValueError, AttributeError):
        first, ours = json.loads(line), events.SCHEMA_VERSION
        version = first.get("schema_version", "unknown")
        if first.get("kind") == "run_started" and version != ours:
            words = f"this program reads version {ours}; use the version of mle-star that wrote it"
            raise JournalError(f"{path}, line 1: journal version {version}, but {words}")


def _words(event: AnyEvent) -> tuple[str, str, int]:
    """What an event says, apart from when and how long."""
    return event.kind, event.step, hash(event.model_dump_json(exclude=_TIMES))


class Journal(AbstractContextManager["Journal"]):
    """Appends events, knows the recorded steps, tells its listeners. One writer per file.

    `secrets` are texts that must never reach the disk, such as the values of credentials; they are blotted out.

    A journal that cannot be written any more loses nothing that this process knows: `failure` says why, events are
    held in memory, and no new work may begin, since what it brings could not be kept.
    """

    def __init__(self, path: Path, *, secrets: Iterable[str] = ()) -> None:
        self.path = path
        self.failure: JournalError | None = None
        self.started: RunStarted | None = None
        """The first line, once it is written."""
        self.config = PipelineConfig()
        """The settings that the run had last."""
        self.interpreter: events.Interpreter | None = None
        """The Python of its scripts, as it was when the run first used it: by that, what is recorded counts."""
        self._results: dict[Key, int] = {}  # where they are; of calls that failed as well
        self._earlier: list[tuple[str, int]] = []  # the results of earlier processes, by step and place
        self._decisions: dict[str, Decided] = {}
        self._phases: dict[str, str] = {}  # by step, how a phase or a path has ended, or that it has begun
        self._written: set[tuple[str, str, int] | None] = set()
        self._begun: dict[str, bool] = {}  # by step, whether a call or a script of this process is still under way
        self._offsets: list[int] = []  # where the lines of all events begin; below zero, places in `_unwritten`
        self._unwritten: list[AnyEvent] = []
        self._held: list[bytes] = []  # lines that could not be written; tried again with every later one
        self._listeners: list[Callable[[AnyEvent], None]] = [log_event]
        forms = {form for secret in secrets if secret for form in (secret, json.dumps(secret)[1:-1])}
        self._secrets = sorted(forms, key=len, reverse=True)  # one may hold another
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(str(path) + ".lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise JournalError(f"{path} is being written by another process") from None
        try:
            self._load()
            self._file = path.open("ab", buffering=0)
        except BaseException:
            self._lock.release()
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        with suppress(OSError):  # a power failure would take the name of a new file with it
            os.fsync(folder)
        os.close(folder)
        self._syncs = ThreadPoolExecutor(1, "journal-sync")
        self._sync_error: OSError | None = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def subscribe(self, listener: Callable[[AnyEvent], None]) -> None:
        """Call `listener` with every event from now on, replayed results included."""
        self._listeners.append(listener)

    @property
    def events(self) -> Iterator[AnyEvent]:
        """Those so far. They stay on disk: a long run's prompts and scripts would fill the memory."""
        if self._unwritten:
            return map(self._read, list(self._offsets))
        return islice(read_journal(self.path), len(self._offsets))

    def _read(self, offset: int) -> AnyEvent:
        if offset < 0:
            return self._unwritten[-1 - offset]
        with self.path.open("rb") as file:
            file.seek(offset)
            return events.EVENT_ADAPTER.validate_json(file.readline())

    def record(self, event: AnyEvent) -> None:
        """Write an event once: what an earlier process recorded in the same words goes to the listeners only.

        Raises `BudgetExceeded` for work that is about to begin on a journal that cannot be written.
        """
        words = None if event.kind in _BEGINS | _EVERY_TIME else _words(event)
        if words is None or words not in self._written:
            self._remember(event, self._keep(event))
            self._written.add(words)
        if event.kind in _BEGINS:
            self._begun[event.step] = True
        elif event.kind in _ENDS and event.step in self._begun:
            self._begun[event.step] = False
        self.tell(event)

    def in_progress(self, parts: tuple[str, ...], leaf: str = "") -> bool:
        """Has this process begun a call or a script below `parts` that has not ended yet, or one named `leaf`?"""
        begin = "/".join((*parts, leaf))
        return any(step.startswith(begin) for step, is_open in self._begun.items() if is_open)

    def redact(self, text: str) -> str:
        """`text` with every secret blotted out, as it stands or as JSON spells it."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    def tell(self, event: AnyEvent) -> None:
        """Show an event to the listeners without writing it. One that fails is dropped: a view must not end a run."""
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("a listener failed on %s and gets no more events", event.kind)
                self._listeners.remove(listener)

    def find(self, kind: type[E], step: str, digest: str) -> E | None:
        """The recorded result of a step with exactly these inputs."""
        offset = self._results.get((str(kind.model_fields["kind"].default), step, digest))
        event = None if offset is None else self._read(offset)
        return event if isinstance(event, kind) else None

    def find_failure(self, step: str, digest: str) -> AgentFailed | None:
        """The recorded failure of a call from which an earlier process continued: all it did next rests on it.

        A failure that nothing followed is not given back, so that a resumed run asks again.
        """
        offset = self._results.get(("agent_failed", step, digest))
        if offset is None or not any(end > offset and may_follow(later, step) for later, end in self._earlier):
            return None
        event = self.find(AgentFailed, step, digest)
        return None if event is None or event.reason in NOT_REPEATED else event

    def decision(self, step: str) -> bool | None:
        """What was decided as this step; None where nothing was, or where it is open again."""
        decided = self._decisions.get(step)
        return None if decided is None else decided.value

    def refused(self, name: str) -> list[str]:
        """The steps where a decision of this name was a no."""
        return [step for step, decided in self._decisions.items() if decided.name == name and not decided.value]

    def phase(self, step: str) -> str:
        """How a phase, or a path, has ended; `begun` where an earlier process began it, else an empty text."""
        return self._phases.get(step, "")

    def takes_over(self, parts: tuple[str, ...]) -> bool:
        """Has this process, so far, only taken over recorded results below `parts`? They cost no time."""
        return bool(self._earlier) and not any(step.startswith("/".join(parts) + "/") for step in self._begun)

    def close(self) -> None:
        """Let go of the file, all of it on disk, and of its lock."""
        if not self._file.closed:
            self._syncs.shutdown()
            self._file.close()
        self._lock.release()

    def _keep(self, event: AnyEvent) -> int:
        """Where an event is from now on: in the file, or in memory when that cannot be written."""
        line = self.redact(event.model_dump_json()).encode() + b"\n"
        try:
            while self._held:
                self._append(self._held[0])
                del self._held[0]
            if self.failure is None or event.kind not in _BEGINS:
                return self._append(line, sync=event.kind in _PAID)
        except JournalError as error:
            if self.failure is None:
                logger.error("%s; the run ends with what it has", error)
            self.failure = self.failure or error
        if event.kind in _BEGINS:
            raise BudgetExceeded(limit="journal", message=str(self.failure))
        self._held.append(line)
        self._unwritten.append(event)
        return -len(self._unwritten)

    def _append(self, line: bytes, *, sync: bool = True) -> int:
        """Write a whole line or nothing; where it begins."""
        offset = self._file.seek(0, os.SEEK_END)
        try:
            if self._sync_error is not None:
                raise self._sync_error
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(offset)
            raise JournalError(f"{self.path} cannot be written: {error.strerror}") from error
        if sync:
            self._syncs.submit(self._sync, self._file.fileno())
        return offset

    def _sync(self, handle: int) -> None:
        """Put on disk what was written, in a thread of its own: no step should wait the milliseconds that it takes.

        A line is the system's the moment it is written and outlives our process; this is against a power failure.
        """
        try:
            os.fsync(handle)
        except OSError as error:
            self._sync_error = error

    def _load(self) -> None:
        if not self.path.exists():
            return
        whole = 0
        for start, end, event in _placed_events(self.path):
            self._remember(event, start)
            self._written.add(_words(event))
            whole = end
        self._earlier = [(step, at) for (kind, step, _), at in self._results.items() if kind != "agent_failed"]
        for step, _ in self._earlier:
            self._phases.setdefault(step.split("/")[0], "begun")
        os.truncate(self.path, whole)  # without the line that the last process died on

    def _remember(self, event: AnyEvent, offset: int) -> None:
        self._offsets.append(offset)
        if self.started is None and isinstance(event, RunStarted):
            self.started = event
        if isinstance(event, (RunStarted, events.RunResumed)):
            self.config, self.interpreter = event.config or self.config, event.interpreter or self.interpreter
        if isinstance(event, (AgentFinished, AgentFailed, ScriptFinished)):
            self._results[event.kind, event.step, event.digest] = offset
        elif isinstance(event, Decided):
            self._decisions[event.step] = event
        elif isinstance(event, events.PhaseFinished) and event.outcome != "skipped":
            self._phases[event.step] = event.outcome
        elif any(vars(event).get(name) is not None for name in ("result", "config")):
            # The run has ended with a result, or continues under other settings: what there was no time or money for
            # may be done from here on.
            self._decisions = {key: one for key, one in self._decisions.items() if one.value or not one.reopen}
            self._phases = dict.fromkeys(self._phases, "begun")


def may_follow(later: str, step: str) -> bool:
    """May `later` rest on `step`? All of the same phase and of those after it may, except for what runs beside it."""
    (phase, place, *_), (its_phase, its_place, *_) = (f"{name}/".split("/") for name in (later, step))
    if phase != its_phase:
        return ORDER.get(phase, _BEFORE_THE_LAST) > ORDER.get(its_phase, _BEFORE_THE_LAST)
    return place == its_place or not (place.startswith(_SIDE_BY_SIDE) and its_place.startswith(_SIDE_BY_SIDE))
