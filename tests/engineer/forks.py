"""An interpreter that has loaded its libraries and forks for each script: `python -m tests.engineer.forks`.

It reads one JSON line for each script and answers with one when the script is over.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, TracebackType

from mle_star.models import ExecutionRawResult
from mle_star.run.context import ScriptRequest

LIBRARIES = (
    "pandas", "lightgbm", "xgboost", "scipy.stats", "sklearn.ensemble", "sklearn.linear_model", "sklearn.svm",
    "sklearn.neighbors", "sklearn.discriminant_analysis", "sklearn.feature_extraction.text", "sklearn.impute",
    "sklearn.compose", "sklearn.pipeline", "sklearn.model_selection",
)  # fmt: skip
MEMORY = 16 << 30


class ForkingExecutor:
    """Runs scripts one after another, unconfined, without the second that each would need to import its libraries."""

    def __init__(self, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], env=env, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Run to the end, or to the timeout."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(request.model_dump_json(include={"script_path", "working_dir", "timeout_seconds"}))
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        over = json.loads(self._process.stdout.readline())
        timed_out = over["exit_code"] == -signal.SIGALRM
        return ExecutionRawResult(**over, timed_out=timed_out)

    def close(self) -> None:
        """End the interpreter."""
        self._process.communicate()


def serve() -> None:
    """Fork for each line."""
    for library in LIBRARIES:
        importlib.import_module(library)
    with TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("out", "err")]
        for line in sys.stdin:
            request, started = json.loads(line), time.monotonic()
            child = os.fork()
            if child == 0:
                become(request["script_path"], request["working_dir"], request["timeout_seconds"], outputs)
            _, status = os.waitpid(child, 0)
            stdout, stderr = (output.read_text(encoding="utf-8") for output in outputs)
            code, seconds = os.waitstatus_to_exitcode(status), time.monotonic() - started
            over = {"stdout": stdout, "stderr": stderr, "exit_code": code, "duration_seconds": seconds}
            sys.stdout.write(json.dumps(over) + "\n")
            sys.stdout.flush()


def become(script: str, folder: str, seconds: float, outputs: list[Path]) -> None:
    """Be the script, to its end."""
    for number, name in enumerate(outputs, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.alarm(int(seconds))
    code = 0
    try:
        main = ModuleType("__main__")
        sys.modules["__main__"], sys.argv, sys.path[0] = main, [script], str(Path(script).parent)
        program = compile(Path(script).read_text(encoding="utf-8"), script, "exec")
        exec(program, main.__dict__)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exception(type(error), error, _own(error.__traceback__))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _own(trace: TracebackType | None) -> TracebackType | None:
    """The frames of the script, without ours."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    serve()
