"""The folders show the architecture: few modules at the top level, and nothing of a test library in what ships."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mle_star

PLACED = """
__init__ __main__ api config errors finalization models orchestrator phase1 phase2_inner phase2_outer phase3 safety
"""


def test_every_module_but_the_api_and_those_that_the_specification_places_is_in_a_room() -> None:
    root = Path(mle_star.__file__).parent
    assert sorted(path.stem for path in root.glob("*.py")) == PLACED.split()
    rooms = [path for path in root.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert [room.name for room in rooms if not (room / "__init__.py").exists()] == []


def test_no_two_classes_have_the_same_name() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(mle_star.__file__).parent.rglob("*.py")]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


def test_the_minds_for_tests_are_there_without_a_test_library() -> None:
    code = "import sys; sys.modules['pytest'] = None; from mle_star.testing import *; ScriptedBrain, FaultyBrain"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_package_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "mle_star", "--help"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0
    assert "Usage: mle-star" in done.stdout
