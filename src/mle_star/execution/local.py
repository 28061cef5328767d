"""Runs scripts on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

from mle_star.context import ScriptRequest
from mle_star.models import ExecutionRawResult, PipelineConfig


class LocalExecutor:
    """Runs each script in a process of its own."""

    def __init__(self, config: PipelineConfig | None = None) -> None:
        self.config = config or PipelineConfig()

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Run to the end, to the timeout or to the cancellation; leave no process behind."""
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            self.config.python or sys.executable, request.script_path, cwd=request.working_dir, env=request.env,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        timed_out = False
        reading = asyncio.ensure_future(process.communicate())
        try:
            done, _ = await asyncio.wait({reading}, timeout=request.timeout_seconds)
            timed_out = not done
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        out, err = await reading
        return ExecutionRawResult(
            stdout=out.decode("utf-8", "replace"), stderr=err.decode("utf-8", "replace"),
            exit_code=-1 if timed_out else process.returncode or 0,
            duration_seconds=time.monotonic() - started, timed_out=timed_out,
        )  # fmt: skip
