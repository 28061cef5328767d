"""The harness in processes of its own, as root, as an ordinary user, or alone as in a container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SITE = next(path for path in sys.path if path.endswith("site-packages"))
SCRIPT = str(ROOT / "tests" / "scripts" / "harness_as_user.py")
NAMED = 65534
ALONE = ["unshare", "--map-root-user", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]
"""As in a container without privileges: root is the only user there, and nobody can make namespaces."""


def driver(*words: str, **options: object) -> subprocess.Popen[bytes]:
    """Start a program that can import this package."""
    more = {"MLE_STAR_SECRET": words[-1], "PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT / 'src'}:{SITE}"}
    return subprocess.Popen([*words], env=more, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def harness(*words: str, user: str = "ordinary", number: int | None = None) -> dict[str, Any]:
    """What came of a mode of `SCRIPT`, by its words, with a harness of that user."""
    if user == "root" and os.getuid() != 0:
        pytest.skip("only root can try what root's scripts can do")
    python, who = unprivileged_python(number) if user == "ordinary" else (sys.executable, {})
    program = [*(ALONE if user == "alone" else ()), python, SCRIPT]
    output, errors = driver(*program, *words, stderr=subprocess.PIPE, **who).communicate(timeout=900)
    assert output, errors.decode()
    seen: dict[str, Any] = json.loads(output)
    assert (seen["uid"] == 0) is (user != "ordinary")
    return seen


def printed_by_user(code: str, *words: str) -> list[str]:
    """The lines that a program prints when an ordinary user runs it: root passes every lock."""
    python, who = unprivileged_python()
    return driver(python, "-c", code, *words, **who).communicate(timeout=240)[0].decode().splitlines()


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
