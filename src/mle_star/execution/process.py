"""One supervised process, as the event loop sees it."""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from mle_star.execution.output import Keeper
from mle_star.execution.sandbox import child_program

DRAIN_SECONDS = 1.0
SIGKILL = 9  # `signal` does not know it on Windows


@dataclass(frozen=True)
class Report:
    """What the supervisor said at the end."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""  # why it killed the script, when it did
    error: str = ""  # why there was no script to run
    applied: frozenset[str] = frozenset()  # what really confined the script

    @property
    def killed(self) -> bool:
        """Did the script end by SIGKILL, directly or as its sandbox tells it?"""
        return self.signal == SIGKILL or self.exit_code == 128 + SIGKILL


class Streams(asyncio.SubprocessProtocol):
    """Takes in output as it comes, so that neither side ever waits for the other."""

    def __init__(self, keepers: Sequence[Keeper]) -> None:
        self._keepers = keepers
        self._open = {1, 2}
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._keepers[fd - 1].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open and not self.drained.done():
            self.drained.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)


class ScriptProcess:
    """A supervisor with its script. `report` is what the supervisor said at the end; None when it could not."""

    def __init__(self, transport: asyncio.SubprocessTransport, streams: Streams, report_fd: int) -> None:
        self._transport, self._streams, self._report_fd = transport, streams, report_fd
        self.report: Report | None = None

    @classmethod
    async def start(
        cls, order: dict[str, Any], working_dir: str, env: dict[str, str], keepers: Sequence[Keeper]
    ) -> ScriptProcess:
        """Start the supervisor, which starts the script; its orders are in a file, for no argument may be long."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        try:
            with tempfile.TemporaryFile() as orders:
                orders.write(marshal.dumps({**order, "report": write_end}))
                orders.seek(0)
                transport, streams = await asyncio.get_running_loop().subprocess_exec(
                    lambda: Streams(keepers),
                    *child_program(sys.executable, "supervisor"),
                    str(orders.fileno()),
                    cwd=working_dir,
                    env=env,
                    pass_fds=(write_end, orders.fileno()),
                    start_new_session=True,
                )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        return cls(transport, streams, read_end)

    @property
    def pid(self) -> int:
        """The supervisor's number."""
        return self._transport.get_pid()

    async def wait(self, seconds: float) -> bool:
        """Wait for the end of script and output; False when time ran out first."""
        done, _ = await asyncio.wait({self._streams.exited}, timeout=seconds)
        if not done:
            return False
        await asyncio.wait({self._streams.drained}, timeout=DRAIN_SECONDS)
        self._read_report()
        return True

    async def stop(self, command: bytes, patience: float) -> None:
        """Have the supervisor end the script; kill the supervisor when that takes too long."""
        control = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        control.write(command)
        if not await self.wait(patience):
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()
            await self.wait(DRAIN_SECONDS)

    def close(self) -> None:
        """Let go of everything; a supervisor that still runs is killed."""
        self._transport.close()
        os.close(self._report_fd)
        self._report_fd = -1  # a wait that outlives this must not read what the number stands for next

    def _read_report(self) -> None:
        chunks = []
        with contextlib.suppress(OSError):
            while chunk := os.read(self._report_fd, 65536):
                chunks.append(chunk)
        if chunks:
            self.report = parse_report(b"".join(chunks))


def parse_report(text: bytes) -> Report | None:
    """What the supervisor said, or None when it makes no sense: then nothing of it is believed."""
    said: dict[str, str] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        name, tab, value = line.partition("\t")
        if not tab or name in said or name not in ("exit", "signal", "reason", "error", "applied"):
            return None
        said[name] = value
    ends = [name for name in ("exit", "signal", "error") if said.get(name)]
    exit_code, signal = _number(said.get("exit")), _number(said.get("signal"))
    if len(ends) != 1 or (ends != ["error"] and exit_code is None and signal is None):
        return None
    applied = frozenset(said.get("applied", "").split())
    return Report(exit_code, signal, said.get("reason", ""), said.get("error", ""), applied)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
