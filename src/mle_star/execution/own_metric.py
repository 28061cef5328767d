"""A metric that is a function in the user's task folder: run in a confined process, which has no credential.

The process is started for the first figure, serves many, and ends when none is wanted for a while. Requests lie in
files of its folder and are named on a pipe; what it answers is one line of JSON, and nothing else of it is read.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import select
import tempfile
import threading
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from mle_star.data.metrics import run_own_metrics_by
from mle_star.errors import ConfigError, MleStarError
from mle_star.execution.environment import script_environment
from mle_star.execution.limits import PREFIX
from mle_star.execution.local import LocalExecutor
from mle_star.execution.workspace import own_prefix, prepare_path_directory, remove_entry
from mle_star.models import PipelineConfig
from mle_star.models.texts import quoted
from mle_star.run.context import ScriptRequest

IDLE_SECONDS = 2.0
CALL_SECONDS = 120.0
MOST_ANSWER = 4096  # what goes through a pipe in one piece

_SERVER = """
import importlib.util, json, os, pickle, select
requests, answers = os.open("requests", os.O_RDONLY), os.open("answers", os.O_WRONLY)
function = None
while select.select([requests], [], [], {idle})[0]:
    name = os.read(requests, 4096).decode().split()[-1]
    try:
        if function is None:
            spec = importlib.util.spec_from_file_location({stem!r}, {path!r})
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            function = getattr(module, {name!r})
        with open(name, "rb") as file:
            answer = {{"value": float(function(*pickle.load(file)))}}
    except BaseException as error:
        answer = {{"error": " ".join(f"{{type(error).__name__}}: {{error}}".split())[:300]}}
    os.write(answers, json.dumps({{"of": name, **answer}}).encode() + b"\\n")
"""


class _Process:
    """One life of the confined process, in a folder of its own; `end` says why it failed, once it has."""

    def __init__(self, path: Path, name: str) -> None:
        self._place, self.end = Path(tempfile.mkdtemp(prefix=own_prefix(PREFIX))), ""
        self._work = Path(prepare_path_directory(self._place, "metric"))
        for pipe in ("requests", "answers"):
            os.mkfifo(self._work / pipe)
        both_ways = os.O_RDWR | os.O_NONBLOCK  # no side waits for the other
        self._requests, self._answers = (os.open(self._work / pipe, both_ways) for pipe in ("requests", "answers"))
        server = _SERVER.format(idle=IDLE_SECONDS, stem=path.stem, path=str(path), name=name)
        (self._work / "solution.py").write_text(server, encoding="utf-8")
        request = ScriptRequest(
            script_path=str(self._work / "solution.py"),
            working_dir=str(self._work),
            timeout_seconds=86400.0,
            env=script_environment(PipelineConfig()),
            readable=(str(path),),
        )
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(LocalExecutor(PipelineConfig()).run(request))
        self._thread = threading.Thread(target=self._serve, name="mle-star-metric")
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            raw = self._loop.run_until_complete(self._task)
            self.end = (raw.stderr.strip().splitlines() or [f"exit code {raw.exit_code}"])[-1] if raw.exit_code else ""
        except (MleStarError, OSError, asyncio.CancelledError) as error:
            self.end = str(error)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            remove_entry(self._place)

    @property
    def lives(self) -> bool:
        """Does it still serve?"""
        return self._thread.is_alive()

    def ask(self, given: bytes) -> dict[str, Any] | None:
        """Its answer; None when it has ended before."""
        try:
            number, path = tempfile.mkstemp(dir=self._work)  # never by a name that was there before
            with os.fdopen(number, "wb") as file:
                file.write(given)
            os.write(self._requests, f"{Path(path).name}\n".encode())
        except OSError:
            return None
        output, deadline = b"", time.monotonic() + CALL_SECONDS
        while not output.endswith(b"\n") and len(output) <= MOST_ANSWER:
            if select.select([self._answers], [], [], 0.05)[0]:
                output += os.read(self._answers, MOST_ANSWER)
            elif not self.lives:
                return None
            elif time.monotonic() > deadline:
                self.stop()
                return {"error": f"it took more than {CALL_SECONDS:g} s"}
        Path(path).unlink(missing_ok=True)
        with suppress(ValueError):
            answer = json.loads(output)
            if isinstance(answer, dict) and answer.get("of") == Path(path).name:
                return answer
        self.stop()  # it says more than it is asked, and may wait for somebody to read it
        return {}

    def stop(self) -> None:
        """End it now."""
        with suppress(RuntimeError):  # it has just ended by itself
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def close(self) -> None:
        """Let go of its pipes, once it has ended."""
        self._thread.join()
        os.close(self._requests)
        os.close(self._answers)


class OwnMetric:
    """The function `name` of the file `path`, as a formula."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path.resolve(), name
        self._lock = threading.Lock()
        self._process: _Process | None = None

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
        process = self._process
        for _ in range(2):  # it may end just now because nothing was asked
            if process is None or not process.lives:
                if process is not None:
                    process.close()
                self._process = process = _Process(self._path, self._name)
            if (answer := process.ask(given)) is not None:
                return answer
        return {"error": f"its process ended without an answer: {quoted(process.end if process else '')}"}


run_own_metrics_by(lru_cache(maxsize=16)(OwnMetric))
