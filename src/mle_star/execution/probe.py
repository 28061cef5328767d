"""Questions to other programs: asked from an empty folder, without any credential."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

from mle_star.execution.environment import script_environment
from mle_star.models import PipelineConfig


def find_program(name: str) -> str | None:
    """The absolute path of a program; a bare name is never found in the current folder, whatever PATH says."""
    if os.path.dirname(name):  # noqa: PTH120 - `./x` and `x` differ here, and are the same to pathlib
        return os.path.abspath(name) if shutil.which(name) else None  # noqa: PTH100
    places = [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]  # noqa: PTH117
    found = shutil.which(name, path=os.pathsep.join(places)) if places else None
    return found if found and os.path.isabs(found) else None  # noqa: PTH117 - Windows looks in the current folder first


def try_program(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, whatever that is; raises `OSError` or `SubprocessError` when that is not to be had."""
    with tempfile.TemporaryDirectory(prefix="mle-star-probe-") as neutral:
        return subprocess.run(
            command,
            cwd=neutral,
            env=script_environment(PipelineConfig()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )


def ask_program(command: Sequence[str], seconds: float) -> bytes:
    """What a program prints; raises `OSError` or `SubprocessError` when it cannot be run, fails or takes too long."""
    answer = try_program(command, seconds)
    answer.check_returncode()
    return answer.stdout
