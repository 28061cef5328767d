"""Attacks and everyday work, in each kind of confinement, for root and for an ordinary user: held, and not refused."""

from __future__ import annotations

import os
import runpy
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.execution.users import NAMED, ROOT, harness

ATTACKS: dict[str, Any] = runpy.run_path(str(ROOT / "tests" / "scripts" / "attacks.py"))["ATTACKS"]
SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
KINDS = {"auto": "bubblewrap+seccomp", "namespaces": "namespaces+seccomp"}


@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("sandbox", KINDS)
def test_nothing_gets_through(sandbox: str, user: str, open_folder: Path) -> None:
    seen = harness("attacks", sandbox, str(open_folder), f"canary-{uuid.uuid4().hex[:12]}", user=user)
    assert (seen["exit"], seen["sandbox"], seen["planted"], seen["missing"]) == (0, KINDS[sandbox], 1, ""), seen
    assert "no root" in seen["limits"]
    # that one is told apart from an attempt that broke down on its way
    assert seen["results"]["find a label that is hidden from it, in any file within reach"] == "held: nothing found"
    assert {title: outcome for title, outcome in seen["results"].items() if not outcome.startswith("held")} == {}
    assert set(seen["results"]) == set(ATTACKS) and len(ATTACKS) >= 105


def test_the_list_in_the_docs_is_current() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "attacks.py"))
    assert tool["page"]() == tool["PAGE"].read_text(encoding="utf-8"), "python tools/attacks.py --write"


@pytest.mark.parametrize("user", ["root", "ordinary"])
@pytest.mark.parametrize("sandbox", [*KINDS, "none"])
def test_what_scripts_do_every_day_works(sandbox: str, user: str, open_folder: Path) -> None:
    """Nothing that a training script does is refused; outside of the soak models are trained in one sandbox only."""
    models = ["MODELS"] if SOAK or (sandbox, user) == ("auto", "root") else []
    parts = [*models, *(["LOOPBACK"] if sandbox in KINDS else [])] or ["NOTHING"]
    seen = harness("work", sandbox, str(open_folder), ",".join(parts), user=user, number=NAMED)  # they ask who they are
    assert seen["failed"] == {}, seen
    assert ("trees" in seen["done"]) is bool(models) and "managers" in seen["done"]
    assert seen["left"] == ["submission.csv", *(["curve.png"] if models else [])]
