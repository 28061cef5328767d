"""Kill the whole process tree or fill the disk at any moment: nothing is lost, and the run goes on as it would have."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from mle_star.models import FinalResult
from mle_star.run.events import AgentFinished, AgentStarted, RunResumed, ScriptFinished
from tests.conftest import write_small_data
from tests.pipeline.conftest import events, story

ROOT = Path(__file__).parent.parent
SOAK = bool(os.environ.get("MLE_STAR_SOAK"))
MOMENTS = [(seed, seed % 3 == 0) for seed in range(20)] if SOAK else [(seed, False) for seed in (2, 4)]
"""Seeds; in the soak every third run goes through SDK and CLI, the others ask the mind by the agents' protocol."""
MOST_CALLS_REPEATED = 2
"""One under way on each path: what was asked and not yet answered is asked again."""

pytestmark = pytest.mark.long


def start(run_dir: Path, data: Path, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.pipeline.driver", str(run_dir), str(data), *flags]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()[-3000:]


def result_of(run_dir: Path) -> FinalResult:
    return FinalResult.model_validate_json((run_dir / "result.json").read_bytes())


def calls_of(run_dir: Path) -> Counter[str]:
    return Counter((run_dir.parent / "calls.log").read_text(encoding="utf-8").split())


def lines_of(run_dir: Path) -> int:
    journal = run_dir / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the process and everything it started, all at once, and see that they are gone."""
    root = psutil.Process(process.pid)
    root.suspend()  # so that nothing new is born while we look
    tree = [root, *root.children(recursive=True)]
    for member in tree:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.communicate()
    deadline = time.monotonic() + 120
    while any(lives(member) for member in tree):
        assert time.monotonic() < deadline, "something outlived SIGKILL"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody killed, by the agents' protocol, beside its data."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(start(run_dir, write_small_data(run_dir.parent / "data")))
    return run_dir


@pytest.mark.req("REQ-OR-030", "REQ-OR-051")
@pytest.mark.parametrize(("seed", "real"), MOMENTS)
def test_a_killed_run_ends_as_if_nothing_had_happened(undisturbed: Path, tmp_path: Path, seed: int, real: bool) -> None:
    data, flags, dice = undisturbed.parent / "data", ["--real"] if real else [], random.Random(seed)
    moment, later = dice.randrange(1, lines_of(undisturbed) - 1), dice.random() * 0.1
    for attempt in range(10):  # where others are at work, it may be over before it can be killed
        run_dir = tmp_path / str(attempt) / "run"
        process = start(run_dir, data, *flags)
        while lines_of(run_dir) < moment and process.poll() is None:
            time.sleep(0.002)
        time.sleep(later)
        if process.poll() is None:
            break
        finish(process)
    kill_tree(process)
    begun = {event.step for event in events(run_dir, AgentStarted)}
    paid = {event.step for event in events(run_dir, AgentFinished)}
    finish(start(run_dir, data, "--resume", *flags))
    result, expected = result_of(run_dir), result_of(undisturbed)
    assert story(result) == story(expected)
    assert result.total_cost_usd == pytest.approx(expected.total_cost_usd)
    assert len(events(run_dir, RunResumed)) == 1
    results: list[AgentFinished | ScriptFinished] = [*events(run_dir, AgentFinished), *events(run_dir, ScriptFinished)]
    assert set(Counter((event.kind, event.step, event.digest) for event in results).values()) == {1}
    twice = calls_of(run_dir) - calls_of(undisturbed)
    assert sum(twice.values()) <= min(len(begun - paid), MOST_CALLS_REPEATED)
    assert not calls_of(undisturbed) - calls_of(run_dir)


ROOM = 16 * 1024 * 1024
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
    words = [warning for outcome in outcomes for warning in outcome.get("warnings", ())]
    no_room = f"stopped by a full disk ([Errno 28] No space left on device: '{folder}/run/work/main'); "
    assert mode != "script" or any(warning.startswith(no_room) for warning in words), "it names the script's folder"
