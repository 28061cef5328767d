"""What is kept of a script's output: everything on disk up to a limit, head and tail in memory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import BinaryIO

NOTE = "[mle-star]"
"""Begins every line that the harness adds to a script's output."""


class LogFile:
    """The file that both streams go to, in the order of arrival; what exceeds the limit is counted, not written."""

    def __init__(self, path: str | None, limit: int) -> None:
        self._file: BinaryIO | None = Path(path).open("wb") if path else None  # noqa: SIM115
        self._room = limit
        self._dropped = 0

    def write(self, data: bytes) -> None:
        """Append as much as there is room for."""
        if self._file is None:
            return
        if self._room:
            self._file.write(data[: self._room])
            self._file.flush()  # others read along
        self._dropped += max(len(data) - self._room, 0)
        self._room = max(self._room - len(data), 0)

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._file is not None:
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
        if len(data) > room:
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
