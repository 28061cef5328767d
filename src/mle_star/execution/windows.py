"""Windows: a job object holds the script and all its descendants, limits them, and ends them together."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence

from mle_star.execution.limits import Limits
from mle_star.execution.output import Keeper
from mle_star.execution.process import DRAIN_SECONDS, Report, Streams

if sys.platform == "win32":
    import ctypes
    import subprocess
    from ctypes import wintypes

    _EXTENDED_LIMITS = 9
    _ACTIVE_PROCESS, _JOB_MEMORY, _KILL_ON_CLOSE = 0x8, 0x200, 0x2000
    _SET_QUOTA_AND_TERMINATE = 0x0100 | 0x0001

    class _BasicLimits(ctypes.Structure):
        _fields_ = [
            ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
            ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        ]

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = [
            ("BasicLimitInformation", _BasicLimits),
            ("IoInfo", ctypes.c_ulonglong * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        ]

    class JobProcess:
        """A script in its job. `report` is filled in when it has ended."""

        def __init__(self, transport: asyncio.SubprocessTransport, streams: Streams, job: int, limited: bool) -> None:
            self._transport, self._streams, self._job = transport, streams, job
            self._applied = frozenset(["job"] if limited else [])
            self.report: Report | None = None

        @classmethod
        async def start(
            cls, command: list[str], working_dir: str, env: dict[str, str], keepers: Sequence[Keeper], limits: Limits
        ) -> JobProcess:
            """Start the script and put it into a job before it can start anything itself."""
            transport, streams = await asyncio.get_running_loop().subprocess_exec(
                lambda: Streams(keepers), *command, stdin=subprocess.DEVNULL, cwd=working_dir, env=env,
                creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW,
            )  # fmt: skip
            kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            kernel.CreateJobObjectW.restype = kernel.OpenProcess.restype = wintypes.HANDLE
            job = kernel.CreateJobObjectW(None, None)
            wanted = _ExtendedLimits()
            wanted.BasicLimitInformation.LimitFlags = _ACTIVE_PROCESS | _JOB_MEMORY | _KILL_ON_CLOSE
            wanted.BasicLimitInformation.ActiveProcessLimit = limits.tasks
            wanted.JobMemoryLimit = limits.memory_bytes
            kernel.SetInformationJobObject(
                wintypes.HANDLE(job), _EXTENDED_LIMITS, ctypes.byref(wanted), ctypes.sizeof(wanted)
            )
            process = kernel.OpenProcess(_SET_QUOTA_AND_TERMINATE, False, transport.get_pid())
            limited = bool(kernel.AssignProcessToJobObject(wintypes.HANDLE(job), wintypes.HANDLE(process)))
            kernel.CloseHandle(wintypes.HANDLE(process))
            return cls(transport, streams, job, limited)

        async def wait(self, seconds: float) -> bool:
            """Wait for the end of script and output; False when time ran out first."""
            done, _ = await asyncio.wait({self._streams.exited}, timeout=seconds)
            if not done:
                return False
            self._end_job()  # whatever the script left running
            await asyncio.wait({self._streams.drained}, timeout=DRAIN_SECONDS)
            self.report = Report(exit_code=self._transport.get_returncode(), applied=self._applied)
            return True

        async def stop(self, command: bytes, patience: float) -> None:
            """End the job; Windows knows no polite way for a process without a console."""
            self._end_job()
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()
            await self.wait(DRAIN_SECONDS)

        def close(self) -> None:
            """Let go of everything; what still runs ends with its job."""
            self._end_job()
            self._transport.close()
            ctypes.WinDLL("kernel32").CloseHandle(wintypes.HANDLE(self._job))

        def _end_job(self) -> None:
            ctypes.WinDLL("kernel32").TerminateJobObject(wintypes.HANDLE(self._job), 1)
