"""The harness in processes of its own, as root or as an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent.parent.parent / "src"
SITE = next(path for path in sys.path if path.endswith("site-packages"))


def driver(*words: str, **options: object) -> subprocess.Popen[bytes]:
    """Start a script of `tests/scripts` that can import this package."""
    more = {"MLE_STAR_SECRET": words[-1], "PATH": os.environ["PATH"], "PYTHONPATH": f"{SOURCES}{os.pathsep}{SITE}"}
    return subprocess.Popen([*words], env=more, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


NAMED = 65534


def unprivileged_python(number: int | None = None) -> tuple[str, dict[str, Any]]:
    """An interpreter of this version that an ordinary user can start, and how to become one.

    Unless a number is given, the user is made for the test: in the range that services have for users as short-lived as
    they are. The kernel counts a user's processes, and `nobody` has some in other tests.
    """
    if os.getuid() != 0:
        return sys.executable, {}
    own = number or 61184 + os.getpid() % 4096
    somebody: dict[str, Any] = {"user": own, "group": own, "extra_groups": []}
    for python in (sys.executable, "/usr/bin/python{}.{}".format(*sys.version_info[:2])):
        try:
            subprocess.run([python, "-c", "pass"], check=True, capture_output=True, **somebody)
        except (OSError, subprocess.SubprocessError):
            continue
        return python, somebody
    raise AssertionError("an ordinary user can start no interpreter here")
