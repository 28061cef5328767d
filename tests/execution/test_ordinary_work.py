"""Nothing that a training script does every day is refused, in any kind of confinement, to any user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.execution.users import NAMED, driver, unprivileged_python

DRIVER = Path(__file__).parent.parent / "scripts" / "harness_as_user.py"
SOAK = bool(os.environ.get("MLE_STAR_SOAK"))


@pytest.mark.parametrize(
    ("sandbox", "user", "parts"),
    [
        ("auto", "root", ["MODELS", "LOOPBACK"]),
        ("auto", "ordinary", ["LOOPBACK", "MODELS"] if SOAK else ["LOOPBACK"]),
        ("namespaces", "root", ["LOOPBACK", "MODELS"] if SOAK else ["LOOPBACK"]),
        ("namespaces", "ordinary", ["MODELS", "LOOPBACK"] if SOAK else ["LOOPBACK"]),
        ("none", "root", ["MODELS"] if SOAK else []),
        ("none", "ordinary", ["MODELS"] if SOAK else []),
    ],
)
def test_what_scripts_do_every_day_works(sandbox: str, user: str, parts: list[str], open_folder: Path) -> None:
    if user == "root" and os.getuid() != 0:
        pytest.skip("only root can try what root's scripts can do")
    python, who = (sys.executable, {}) if user == "root" else unprivileged_python(NAMED)  # scripts ask who they are
    words = [str(DRIVER), "work", sandbox, str(open_folder), ",".join(parts) or "NOTHING"]
    process = driver(python, *words, stderr=subprocess.PIPE, **who)
    said, errors = process.communicate(timeout=600)
    seen = json.loads(said or b"{}")
    assert seen and seen["failed"] == {}, (seen, errors.decode())
    assert (seen["uid"] == 0) is (user == "root")
    assert ("trees" in seen["done"]) is ("MODELS" in parts) and "managers" in seen["done"]
    assert seen["left"] == ["submission.csv", *(["curve.png"] if "MODELS" in parts else [])]
