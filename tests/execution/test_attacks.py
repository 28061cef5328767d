"""Attacks and everyday work, in each kind of confinement, for root and for an ordinary user: held, and not refused."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.execution.users import NAMED, driver, unprivileged_python

SCRIPTS = Path(__file__).parent.parent / "scripts"
ATTACKS: dict[str, Any] = runpy.run_path(str(SCRIPTS / "attacks.py"))["ATTACKS"]
SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
KINDS = {"auto": "bubblewrap+seccomp", "namespaces": "namespaces+seccomp"}


def attacked(python: str, sandbox: str, folder: Path, **who: Any) -> dict[str, Any]:
    """What each attempt came to, with a harness of this interpreter and user."""
    script, canary = str(SCRIPTS / "attack_driver.py"), f"canary-{uuid.uuid4().hex[:12]}"
    process = driver(python, script, sandbox, str(folder), canary, stderr=subprocess.PIPE, **who)
    said, errors = process.communicate(timeout=600)
    assert said, errors.decode()
    seen: dict[str, Any] = json.loads(said)
    return seen


@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("sandbox", KINDS)
def test_nothing_gets_through(sandbox: str, user: str, open_folder: Path) -> None:
    if user == "root" and os.getuid() != 0:
        pytest.skip("only root can try what root's scripts can do")
    python, who = (sys.executable, {}) if user == "root" else unprivileged_python()
    seen = attacked(python, sandbox, open_folder, **who)
    assert (seen["exit"], seen["sandbox"], seen["planted"], seen["missing"]) == (0, KINDS[sandbox], 1, ""), seen
    assert (seen["uid"] == 0) is (user == "root") and "no root" in seen["limits"]
    # that one is told apart from an attempt that broke down on its way
    assert seen["results"]["find a label that is hidden from it, in any file within reach"] == "held: nothing found"
    assert {title: outcome for title, outcome in seen["results"].items() if not outcome.startswith("held")} == {}
    assert set(seen["results"]) == set(ATTACKS)


def test_there_are_enough_attacks() -> None:
    assert len(ATTACKS) >= 105


def test_the_list_in_the_docs_is_current() -> None:
    tool = runpy.run_path(str(SCRIPTS.parent.parent / "tools" / "attacks.py"))
    assert tool["page"]() == tool["PAGE"].read_text(encoding="utf-8"), "python tools/attacks.py --write"


# --- nothing that a training script does every day is refused ----------------------------------------------------


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
    words = [str(SCRIPTS / "harness_as_user.py"), "work", sandbox, str(open_folder), ",".join(parts) or "NOTHING"]
    process = driver(python, *words, stderr=subprocess.PIPE, **who)
    said, errors = process.communicate(timeout=600)
    seen = json.loads(said or b"{}")
    assert seen and seen["failed"] == {}, (seen, errors.decode())
    assert (seen["uid"] == 0) is (user == "root")
    assert ("trees" in seen["done"]) is ("MODELS" in parts) and "managers" in seen["done"]
    assert seen["left"] == ["submission.csv", *(["curve.png"] if "MODELS" in parts else [])]
