"""Sees to it that no CLI process and no folder of a run outlives it, whatever ends the run."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

from mle_star.sdk.credentials import MARKER

_PREFIX = "mle-star-cli-"
_SWEEP_AFTER_SECONDS = 2 * 86400


class ProcessKeeper:
    """Knows the processes of a run by a variable in their environment, and owns their home."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        # Short, because the path of a socket below it may have no more than about a hundred characters.
        self.home = Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getpid()}-{marker[:6]}"

    def watch(self) -> None:
        """Make the home; catch SIGTERM where nobody else does, for its default would leave the CLIs running."""
        _sweep()
        self.home.mkdir(parents=True, mode=0o700)  # transcripts are nobody else's business
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._die)

    def _die(self, number: int, frame: FrameType | None) -> None:
        self.end()
        os.kill(os.getpid(), number)

    def kill(self) -> None:
        """End every process now."""
        kill_marked(self.marker)

    def end(self) -> None:
        """End what is left, and clean up."""
        self.kill()
        if signal.getsignal(signal.SIGTERM) == self._die:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        shutil.rmtree(self.home, ignore_errors=True)


def _sweep() -> None:
    """Remove the homes of runs that were killed and could not do it themselves.

    Not at once: in a folder that containers share, the process may live where we cannot see it.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = folder.name[len(_PREFIX) :].partition("-")[0]
        with suppress(OSError):
            old = time.time() - folder.stat().st_mtime > _SWEEP_AFTER_SECONDS
            if old and owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)


def marked_processes(marker: str) -> list[psutil.Process]:
    """The CLI processes of a run (`marker`) or of one client (`marker.number`), with everything they started.

    All processes are looked at: what an agent's shell puts into the background is soon no child of ours.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mark = process.environ().get(MARKER, "")
            if mark == marker or mark.startswith(f"{marker}."):
                found.update((one.pid, one) for one in (*process.children(recursive=True), process))
    return list(found.values())


def kill_marked(marker: str) -> None:
    """End these processes now."""
    for process in marked_processes(marker):
        with suppress(psutil.Error):
            process.kill()
