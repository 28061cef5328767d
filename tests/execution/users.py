"""The harness in processes of its own, as root or as an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent.parent.parent / "src"
SITE = next(path for path in sys.path if path.endswith("site-packages"))


def driver(*words: str, **options: object) -> subprocess.Popen[bytes]:
    """Start a script of `tests/scripts` that can import this package."""
    more = {"MLE_STAR_SECRET": words[-1], "PATH": os.environ["PATH"], "PYTHONPATH": f"{SOURCES}{os.pathsep}{SITE}"}
    return subprocess.Popen([*words], env=more, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def unprivileged_python() -> tuple[str, dict[str, int]]:
    """An interpreter of this version that an ordinary user can start, and how to become one."""
    if os.getuid() != 0:
        return sys.executable, {}
    nobody = {"user": 65534, "group": 65534}
    for python in (sys.executable, "/usr/bin/python{}.{}".format(*sys.version_info[:2])):
        try:
            subprocess.run([python, "-c", "pass"], check=True, capture_output=True, **nobody)  # type: ignore[call-overload]
        except (OSError, subprocess.SubprocessError):
            continue
        return python, nobody
    raise AssertionError("an ordinary user can start no interpreter here")
