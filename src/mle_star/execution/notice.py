"""The user's own command at the end of a run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

SECONDS = 30.0


def call_command(command: str, told: Mapping[str, str]) -> str:
    """Run a command of the user's in a shell, with what is told as variables; what went wrong, or nothing."""
    try:
        done = subprocess.run(
            command, shell=True, env={**os.environ, **told}, capture_output=True, text=True, timeout=SECONDS
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    said = done.stderr.strip().splitlines() or [""]
    return "" if done.returncode == 0 else f"{command!r} ended with {done.returncode} {said[-1]}".strip()
