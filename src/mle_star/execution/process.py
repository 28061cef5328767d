"""One supervised process, as the event loop sees it, and what is kept of its output."""

import asyncio
import marshal
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from mle_star.execution.sandbox import child_program
from mle_star.models import Frozen

NOTE = "[mle-star]"
"""Begins every line that the harness adds to a script's output."""
DRAIN_SECONDS = 1.0
SIGKILL = 9


class LogFile:
    """The file that both streams go to, in the order of arrival; what exceeds the limit is counted, not written."""

    def __init__(self, path: str | None, limit: int) -> None:
        self._file = Path(path or os.devnull).open("wb")  # noqa: SIM115
        self._room, self._dropped = limit, 0

    def write(self, data: bytes) -> None:
        """Append as much as there is room for."""
        if self._room:
            self._file.write(data[: self._room])
            self._file.flush()  # others read along
        self._dropped += max(len(data) - self._room, 0)
        self._room = max(self._room - len(data), 0)

    def close(self) -> None:
        """Say how much is missing, if anything is."""
        if self._dropped:
            self._file.write(f"\n{NOTE} {self._dropped} more bytes were not stored\n".encode())
        self._file.close()


class Keeper:
    """Head and tail of one stream, in bounded memory, however much comes."""

    def __init__(self, head_bytes: int, tail_bytes: int, log: LogFile) -> None:
        self._head_bytes, self._tail_bytes, self._log = head_bytes, tail_bytes, log
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Take in what the script wrote."""
        self.total += len(data)
        room = max(self._head_bytes - len(self._head), 0)
        self._head += data[:room]
        self._tail += data[room:][-self._tail_bytes :]
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes]
        self._log.write(data)  # at the end: a disk that is full for a moment must not cost the score

    def text(self) -> str:
        """What was kept, as text; a cut is marked where it was made, and said again at the end."""
        tail = self._tail[-self._tail_bytes :]
        dropped = self.total - len(self._head) - len(tail)
        if not dropped:
            return (self._head + tail).decode("utf-8", "replace")
        mark = f"\n{NOTE} ... {dropped} bytes of output left out ...\n"
        warning = f"\n{NOTE} warning: the output was cut, {dropped} of {self.total} bytes are missing above\n"
        return self._head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace") + warning


class Report(Frozen, extra="forbid"):
    """What the supervisor said at the end: how the script ended, or why there was none to run."""

    exit: int | None = None
    signal: int | None = None
    error: str = ""
    reason: str = ""  # why it killed the script, when it did
    applied: frozenset[str] = frozenset()  # what really confined the script


class ScriptProcess(asyncio.SubprocessProtocol):
    """A supervisor with its script. `report` is what the supervisor said at the end; None when it could not.

    Output is taken in as it comes, so that neither side ever waits for the other.
    """

    def __init__(self, keepers: Sequence[Keeper]) -> None:
        self._keepers, self._open = keepers, {1, 2}
        self._exited, self._drained = asyncio.Event(), asyncio.Event()
        self.report: Report | None = None

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._keepers[fd - 1].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self._drained.set()

    def process_exited(self) -> None:
        self._exited.set()

    async def start(self, order: dict[str, Any], working_dir: str, env: dict[str, str]) -> None:
        """Start the supervisor, which starts the script; its orders are in a file, for no argument may be long."""
        self._report_fd, write_end = os.pipe()
        os.set_blocking(self._report_fd, False)
        try:
            with tempfile.TemporaryFile() as orders:
                orders.write(marshal.dumps({**order, "report": write_end}))
                orders.seek(0)
                self._transport, _ = await asyncio.get_running_loop().subprocess_exec(
                    lambda: self,
                    *child_program(sys.executable, "supervisor"),
                    str(orders.fileno()),
                    cwd=working_dir,
                    env=env,
                    pass_fds=(write_end, orders.fileno()),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._report_fd)
            raise
        finally:
            os.close(write_end)
        self.pid = self._transport.get_pid()

    async def wait(self, seconds: float) -> bool:
        """Wait for the end of script and output; False when time ran out first."""
        try:
            await asyncio.wait_for(self._exited.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._drained.wait(), DRAIN_SECONDS)
        text = b""
        with suppress(OSError):
            while chunk := os.read(self._report_fd, 65536):
                text += chunk
        self.report = parse_report(text) if text else self.report
        return True

    async def stop(self, command: bytes, patience: float) -> None:
        """Have the supervisor end the script; kill the supervisor when that takes too long."""
        cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0)).write(command)
        if not await self.wait(patience):
            with suppress(ProcessLookupError):
                self._transport.kill()
            await self.wait(DRAIN_SECONDS)

    def close(self) -> None:
        """Let go of everything; a supervisor that still runs is killed."""
        self._transport.close()
        os.close(self._report_fd)
        self._report_fd = -1  # a wait that outlives this must not read what the number stands for next


def parse_report(text: bytes) -> Report | None:
    """What the supervisor said, or None when it makes no sense: then nothing of it is believed."""
    lines = [line.partition("\t") for line in text.decode("utf-8", "replace").splitlines()]
    fields: dict[str, Any] = {name: value for name, _, value in lines}
    try:
        report = Report.model_validate({**fields, "applied": fields.get("applied", "").split()})
    except ValueError:
        return None
    ends = (report.exit is not None) + (report.signal is not None) + bool(report.error)
    return report if len(fields) == len(lines) and ends == 1 else None
