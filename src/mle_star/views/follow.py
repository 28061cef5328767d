"""Following a journal that another process, or another thread, is writing."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path

from pydantic import ValidationError

from mle_star.errors import JournalError
from mle_star.run.events import EVENT_ADAPTER, Notice
from mle_star.run.folder import RunFolder, is_running
from mle_star.views.story import RunStory

CHECK_SECONDS = 2.0
"""How often to look whether a process holds the journal: looking takes hold of it for a moment."""


class Follower:
    """The story of a run as far as its journal goes; `refresh` reads what was added since."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = RunFolder(run_dir)
        self.story = RunStory()
        self.alive = False
        self._offset = 0
        self._line = 0
        self._checked = float("-inf")

    @property
    def working(self) -> bool:
        """Is the run going on, or about to begin?"""
        return self.story.finished is None and (self.alive or self.story.started is None)

    def refresh(self) -> bool:
        """Read on to the last whole line; did anything change?"""
        before = (self.story.heard, self.alive)
        self._read_on()
        grown = self.story.heard != before[0]
        if (grown and not self.alive) or time.monotonic() - self._checked > CHECK_SECONDS:
            self.alive = self.folder.journal.exists() and is_running(self.folder.root)
            self._checked = time.monotonic()
        return before != (self.story.heard, self.alive)

    def _read_on(self) -> None:
        try:
            with self.folder.journal.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._offset += len(line)
                    self._hear(line)
        except FileNotFoundError:
            pass  # the run has not begun yet

    def _hear(self, line: bytes) -> None:
        self._line += 1
        try:
            self.story.apply(EVENT_ADAPTER.validate_json(line))
        except ValidationError:
            # A reader of a live page is served better by the rest of the story than by none of it.
            damage = JournalError(f"{self.folder.journal.name}, line {self._line}: cannot be read")
            at = self.story.clock.last or datetime.now(timezone.utc)  # a clock that jumps would count all since then
            self.story.apply(Notice(at=at, level="error", message=str(damage)))
