"""A test has the same name in every process, so that workers agree and a failure can be run again by its name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def collected(seed: int, temporary: Path) -> list[str]:
    """The names of all tests, as a process of its own finds them."""
    temporary.mkdir()
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    env = {**os.environ, "PYTHONHASHSEED": str(seed), "TMPDIR": str(temporary)}
    env.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.long
def test_the_names_of_tests_hold_neither_time_nor_hash_order_nor_address_nor_folder(tmp_path: Path) -> None:
    first = collected(1, tmp_path / "one")
    time.sleep(2)  # as long as it takes until every stamp of time is another
    second = collected(2, tmp_path / "two")
    assert len(first) > 4000 and len(set(first)) == len(first)
    assert [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]] == []
