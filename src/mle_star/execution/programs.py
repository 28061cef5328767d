"""Other programs, asked from an empty folder without a credential: the scripts' Python, `nvidia-smi`, the user's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mle_star.errors import ConfigError
from mle_star.execution.environment import script_environment
from mle_star.models import PipelineConfig
from mle_star.run.events import Interpreter


def find_program(name: str) -> str | None:
    """The absolute path of a program; a bare name is never found in the current folder, whatever PATH says."""
    if os.path.dirname(name):  # noqa: PTH120 - `./x` and `x` differ here, and are the same to pathlib
        return os.path.abspath(name) if shutil.which(name) else None  # noqa: PTH100
    places = [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]  # noqa: PTH117
    found = shutil.which(name, path=os.pathsep.join(places)) if places else None
    return found if found and os.path.isabs(found) else None  # noqa: PTH117 - Windows looks in the current folder first


def try_program(command: Sequence[str], seconds: float, *, check: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end; raises `OSError` or `SubprocessError` when that is not to be had, or `check` fails."""
    with tempfile.TemporaryDirectory(prefix="mle-star-probe-") as neutral:
        return subprocess.run(
            command,
            cwd=neutral,
            env=script_environment(PipelineConfig()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=check,
        )


GPU_SECONDS = 5


def detect_gpu_info() -> dict[str, Any]:
    """Ask `nvidia-smi`; any trouble means that there is no GPU. Never raises."""
    nothing: dict[str, Any] = {"cuda_available": False, "gpu_count": 0, "gpu_names": []}
    program = find_program("nvidia-smi") or ""
    try:
        query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        answer = try_program(query, GPU_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return nothing
    lines = [line.partition(",")[::2] for line in answer.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return nothing
    memory = [size.strip() for _, size in lines if size.strip()]
    found = {"cuda_available": True, "gpu_count": len(lines), "gpu_names": [name.strip() for name, _ in lines]}
    return {**found, "gpu_memory": memory} if memory else found


detect_gpu = detect_gpu_info


_PLACES = """
import site
site.check_enableusersite = lambda: True  # -I alone would leave out the user's own packages, which scripts have
site.main()
import json, sys
user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
answer = {
    "path": sys.executable,
    "version": ".".join(map(str, sys.version_info[:3])),
    "roots": sorted({sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *filter(None, sys.path)}),
    "user_base": site.getuserbase() if user in sys.path else None,
}
"""
_PACKAGES = """
import importlib.metadata
packages = {}
for found in importlib.metadata.distributions():
    # the first lines of the file are enough, and parsing the rest takes most of the time
    text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    head = dict(line.split(": ", 1) for line in text.split("\\n\\n", 1)[0].splitlines()[:10] if ": " in line)
    if "Name" in head and "Version" in head:
        packages.setdefault(head["Name"], head["Version"])
answer["packages"] = dict(sorted(packages.items(), key=lambda item: item[0].lower()))
"""
_ANSWER = "print(json.dumps(answer))"
QUESTION_SECONDS = 60


class InterpreterInfo(Interpreter):
    """An interpreter as it describes itself; `roots` are the folders it must be able to read."""

    path: str
    roots: tuple[str, ...] = ()
    user_base: str | None = None


def inspect_interpreter(python: str | None = None) -> InterpreterInfo:
    """Ask an interpreter about itself, in the environment that scripts get; None means the running one.

    Listing the packages takes longest, so that is asked again only when one of its folders has changed.
    """
    folders = (Path(root) for root in locate_interpreter(python).roots)
    return _inspect(python, tuple((str(folder), folder.stat().st_mtime_ns) for folder in folders if folder.is_dir()))


@lru_cache(maxsize=8)
def _inspect(python: str | None, stamps: tuple[tuple[str, int], ...]) -> InterpreterInfo:
    return _ask(python, _PLACES + _PACKAGES + _ANSWER)


def locate_interpreter(python: str | None = None) -> InterpreterInfo:
    """The same without the packages, which take ten times as long to list."""
    return _ask(python, _PLACES + _ANSWER)


def _ask(python: str | None, question: str) -> InterpreterInfo:
    wanted = python or sys.executable
    chosen = find_program(wanted) or wanted
    try:
        # -S, because the question goes through `site` in its own way
        known: dict[str, Any] = json.loads(
            try_program([chosen, "-I", "-S", "-c", question], QUESTION_SECONDS, check=True).stdout
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        output = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error).encode()
        lines = output.decode("utf-8", "replace").strip().splitlines() or ["no answer"]
        raise ConfigError(f"python={chosen!r} is no usable Python interpreter: {lines[-1]}") from None
    return InterpreterInfo.model_validate(known)


COMMAND_SECONDS = 30.0


def call_command(command: str, variables: Mapping[str, str]) -> str:
    """Run a command of the user's in a shell, with these variables; what went wrong, or nothing."""
    env = {**os.environ, **variables}
    try:
        done = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    errors = done.stderr.strip().splitlines() or [""]
    return "" if done.returncode == 0 else f"{command!r} ended with {done.returncode} {errors[-1]}".strip()
