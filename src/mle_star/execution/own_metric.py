"""A metric that is a function in the user's task folder: run in a confined process, which has no credential.

The process is started for the first figure, serves many, and ends when none is wanted for a while. Requests and answers
go through a socket in its folder; an answer is a short text of JSON, and nothing else of the process is read.
"""

import concurrent.futures.thread  # its pools end after what is registered later, see below
import json
import os
import pickle
import socket
import struct
import tempfile
import threading
from contextlib import ExitStack, suppress
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from mle_star.data.metrics import run_own_metrics_by
from mle_star.errors import ConfigError
from mle_star.execution.environment import script_environment
from mle_star.execution.limits import PREFIX
from mle_star.execution.local import LocalExecutor
from mle_star.execution.workspace import own_prefix, remove_entry
from mle_star.models import PipelineConfig
from mle_star.models.texts import quoted
from mle_star.run.context import ScriptRequest

IDLE_SECONDS = 2.0
CALL_SECONDS = 120
END_SECONDS, LIFE_SECONDS = 1.0, 86_400.0
MOST_ANSWER = 4096
DOOR = "s"  # a path of a socket must be short

_SERVER = """
import importlib.util, json, pickle
from multiprocessing.connection import Client
function, harness = None, Client({door!r})
while harness.poll({idle}):
    given = harness.recv_bytes()
    try:
        if function is None:
            spec = importlib.util.spec_from_file_location({stem!r}, {path!r})
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            function = getattr(module, {name!r})
        answer = {{"value": float(function(*pickle.loads(given)))}}
    except BaseException as error:
        answer = {{"error": " ".join(f"{{type(error).__name__}}: {{error}}".split())[:300]}}
    harness.send_bytes(json.dumps(answer).encode())
"""


class _Process:
    """One life of the confined process, in a folder of its own."""

    def __init__(self, path: Path, name: str) -> None:
        work, self._held = Path(tempfile.mkdtemp(prefix=own_prefix(PREFIX))), ExitStack()
        self._held.callback(remove_entry, work)
        self._connection: Connection | None = None
        self._door = self._held.enter_context(socket.socket(socket.AF_UNIX))
        folder = os.open(work, os.O_RDONLY)
        short = Path(f"/proc/self/fd/{folder}")  # the path of a socket may have 107 bytes, that of a folder 4,095
        self._door.bind(str((short if short.exists() else work) / DOOR))
        os.close(folder)
        self._door.listen(1)
        self._door.settimeout(0.05)
        server = _SERVER.format(door=DOOR, idle=IDLE_SECONDS, stem=path.stem, path=str(path), name=name)
        script, env = work / "solution.py", script_environment(PipelineConfig())
        script.write_text(server, encoding="utf-8")
        request = ScriptRequest(
            script_path=str(script), working_dir=str(work), timeout_seconds=LIFE_SECONDS, env=env, readable=(str(path),)
        )
        portal = self._held.enter_context(start_blocking_portal(name="mle-star-metric"))
        self._end = portal.start_task_soon(LocalExecutor(PipelineConfig()).run, request)

    def ask(self, given: bytes) -> Any:
        """Its answer; None when it has ended before, or says what makes no sense."""
        try:
            self._connection = self._connection or self._connected()
            self._connection.send_bytes(given)
            return json.loads(self._connection.recv_bytes(MOST_ANSWER))
        except BlockingIOError:
            self.stop()
            return {"error": f"it took more than {CALL_SECONDS} s"}
        except (EOFError, OSError, ValueError):
            return None

    def _connected(self) -> Connection:
        while not self._end.done():
            with suppress(TimeoutError):
                made = self._door.accept()[0]
                for limit in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # nobody waits for ever
                    made.setsockopt(socket.SOL_SOCKET, limit, struct.pack("@ll", CALL_SECONDS, 0))
                return Connection(made.detach())
        raise EOFError

    def stop(self) -> str:
        """End it, if it does not end by itself, and release all that it had; why it failed, if it did."""
        if self._connection is not None:
            self._connection.close()  # then it ends by itself, unless it hangs
        concurrent.futures.wait([self._end], END_SECONDS)
        self._end.cancel()
        self._held.close()
        if self._end.cancelled():
            return "it was stopped"
        if (error := self._end.exception()) is not None:
            return str(error)
        raw = self._end.result()
        return (raw.stderr.strip().splitlines() or [f"exit code {raw.exit_code}"])[-1] if raw.exit_code else ""


class OwnMetric:
    """The function `name` of the file `path`, as a formula."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path.resolve(), name
        self._lock = threading.Lock()
        self._process: _Process | None = None
        # before the pools of threads are shut down, which it needs to end in order; `atexit` comes after that
        threading._register_atexit(self._stop)  # type: ignore[attr-defined]

    def __call__(self, truth: Any, answer: Any) -> float:
        """The figure; `ConfigError` says in one line why there is none."""
        with self._lock:
            figure = self._ask(pickle.dumps((truth, answer)))
        value = figure.get("value")
        if not isinstance(value, (int, float)):
            why = figure.get("error") or "it gave no number"
            raise ConfigError(f"{self._path}:{self._name} failed: {str(why)[:400]}")
        return float(value)

    def _ask(self, given: bytes) -> dict[str, Any]:
        end = ""
        for _ in range(2):  # it may end just now because nothing was asked
            self._process = self._process or _Process(self._path, self._name)
            answer = self._process.ask(given)
            if isinstance(answer, dict):
                return answer
            end = self._stop()
        return {"error": f"its process ended without an answer: {quoted(end)}"}

    def _stop(self) -> str:
        """End its process, if there is one: why that failed, if it did."""
        process, self._process = self._process, None
        return process.stop() if process is not None else ""


run_own_metrics_by(lru_cache(maxsize=16)(OwnMetric))
