"""A test has the same name in every process, so that workers agree and a failure can be run again by its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import mutate

ROOT = Path(__file__).parents[1]


@pytest.mark.long
def test_the_names_of_tests_hold_neither_time_nor_hash_order_nor_address_nor_folder(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A process of its own finds them later, elsewhere and with other hashes than this one."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    env = {**os.environ, "PYTHONHASHSEED": "1", "TMPDIR": str(tmp_path)}
    env.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(names) > 3000 and len(set(names)) == len(names)
    named = [name for tests in mutate.TESTS.values() for name in tests]
    assert [name for name in named if not any(known.startswith(name) for known in names)] == []
    assert not {item.nodeid for item in request.session.items} - set(names)
