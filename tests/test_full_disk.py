"""The disk is full after any event of a run: it ends with the best it has, without a traceback, and goes on later."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOM = 16 * 1024 * 1024
SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
EVERY = 11 if SOAK else 29
"""Each such event is the last one before the disk is full ..."""
FIRST = range(1, EVERY + 1) if SOAK else [1]
"""... counted from these on: the soak comes to every event."""


def small_disk(folder: Path) -> list[str]:
    """How to run a command that finds a small file system of its own at `folder`."""
    bubblewrap = shutil.which("bwrap")
    command = [bubblewrap or "bwrap", "--dev-bind", "/", "/", "--size", str(ROOM), "--tmpfs", str(folder)]
    if bubblewrap is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("bubblewrap cannot make a small file system here")
    return command


def drive(prefix: list[str], folder: Path, data: Path, mode: str, first: int) -> list[dict[str, Any]]:
    """What became of an undisturbed run and of each other."""
    words = [sys.executable, "-m", "tests.pipeline.full_disk", str(folder), str(data), mode, str(first), str(EVERY)]
    done = subprocess.run([*prefix, *words], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.req("REQ-OR-043", "REQ-OR-042")
@pytest.mark.long
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("mode", ["disk", "script", "journal"])
def test_wherever_the_disk_becomes_full_nothing_is_lost(tmp_path: Path, data_dir: Path, mode: str, first: int) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    prefix = small_disk(folder) if mode != "journal" else []
    undisturbed, *outcomes = drive(prefix, folder, data_dir, mode, first)
    assert [outcome["number"] for outcome in outcomes] == list(range(first, undisturbed["events"] + 1, EVERY))
    for outcome in outcomes:
        assert outcome["debugged"] == 0, "nobody can fix a full disk"
        if mode != "journal":  # room was set aside for the last line
            assert outcome["last"] == ("completed" if outcome["error"] is None else "failed")
        assert "journal.jsonl" in outcome["files"] and not any(name.endswith(".part") for name in outcome["files"])
        if outcome["error"] is not None:
            assert not outcome["kept_before"], outcome
            assert "stopped by a full disk" in outcome["error"]
        else:
            assert {"result.json", "solution.py"} <= set(outcome["files"]) or mode == "journal"
            assert outcome["submission"].startswith("id,label\n") or not outcome["kept_before"], outcome
            assert outcome["stopped_by"] in ("disk", None)
            if outcome["stopped_by"] is None:
                assert outcome["score"] == undisturbed["score"]
        assert outcome["later"] == {name: undisturbed[name] for name in outcome["later"]}, outcome
    assert {outcome["stopped_by"] for outcome in outcomes if outcome["error"] is None} >= {"disk"}
    assert any(outcome["error"] for outcome in outcomes)
