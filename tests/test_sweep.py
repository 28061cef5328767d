"""A campaign on a real cluster whose process is killed hard: what it began goes on, and every run has a result."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mle_star.run.events import RunResumed, RunStarted
from mle_star.testing.executor import gone
from tests.execution.machines import two_machines
from tests.pipeline.conftest import events

TASKS, SEEDS, BEFORE = 12, 2, 4
SMALL = ("num_retrieved_models=1", "outer_loop_steps=1", "inner_loop_steps=1", "num_parallel_solutions=1",
         "ensemble_rounds=1", "script_cpus=1", "score_views=2")  # fmt: skip

pytestmark = pytest.mark.long


def made_tasks(folder: Path) -> list[str]:
    """Small tables to predict a class or a number from."""
    chance, found = random.Random(1), list[str]()
    for number in range(TASKS):
        place = folder / f"task{number:02}"
        place.mkdir()
        rows = []
        for _ in range(150):
            size, kind, age = chance.random(), chance.choice("abc"), chance.randint(1, 60)
            worth = 3 * size + (kind == "a") + age / 60 + chance.gauss(0, 0.3)
            rows.append(f"{size:.4f},{kind},{age},{f'{worth:.4f}' if number % 2 else 'yes' if worth > 2.3 else 'no'}\n")
        (place / "train.csv").write_text(f"size,kind,age,{'price' if number % 2 else 'label'}\n{''.join(rows)}")
        found.append(str(place))
    return found


def states(campaign: Path) -> dict[str, str]:
    try:
        with (campaign / "results.csv").open(newline="") as stream:
            return {row["folder"]: row["state"] for row in csv.DictReader(stream)}
    except FileNotFoundError:
        return {}


@pytest.mark.timeout(3600)
async def test_a_campaign_whose_process_is_killed_goes_on_to_the_end(tmp_path: Path) -> None:
    if not os.environ.get("MLE_STAR_SOAK"):
        pytest.skip("many runs on a cluster take a while: make soak")
    pytest.importorskip("ray")
    (tmp_path / "tasks").mkdir()
    campaign = tmp_path / "campaign"
    command = [sys.executable, "-m", "mle_star", "sweep"]
    begin = [*made_tasks(tmp_path / "tasks"), "--seeds", str(SEEDS), "--model", "offline", "--executor", "ray",
             "--at-once", "3", "-o", str(campaign), *(word for one in SMALL for word in ("--set", one))]  # fmt: skip
    with two_machines(str(tmp_path / name) for name in ("one", "two")) as made:
        env = {**os.environ, "RAY_ADDRESS": made["cluster"].address}
        with (tmp_path / "log").open("wb") as log:
            killed = subprocess.Popen([*command, *begin], env=env, stdout=log, stderr=log)
        while list(states(campaign).values()).count("finished") < BEFORE:
            assert killed.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.2)
        killed.kill()
        killed.wait()
        before = {name for name, state in states(campaign).items() if state == "finished"}
        again = subprocess.run([*command, "--resume", str(campaign)], env=env, capture_output=True, text=True)
        assert again.returncode == 0, again.stdout + again.stderr
        assert await gone(f"{campaign}/"), "nothing works on it any more"
    assert len(states(campaign)) == TASKS * SEEDS and set(states(campaign).values()) == {"finished"}
    resumed = set()
    for name in states(campaign):
        assert len(events(campaign / name, RunStarted)) == 1
        assert json.loads((campaign / name / "result.json").read_text())["expected"] is not None
        resumed |= {name} if events(campaign / name, RunResumed) else set()
    assert resumed and not resumed & before, "what was under way goes on, what was finished is left alone"
