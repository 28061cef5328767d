"""The commands that look at runs, as a user calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

import pytest

from mle_star.cli.app import main
from mle_star.run.events import ScriptFinished
from mle_star.run.journal import Journal
from mle_star.views import RunStory
from mle_star.views.shelf import Comparison
from tests.conftest import Captured, Patch, write_texts
from tests.views.journals import Invented, write_journal

LONG = "zz-a-name-that-is-much-longer-than-a-terminal-would-like-it-to-be"


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: one that ended, one that failed, one that broke off, and things that are no runs."""
    folder = tmp_path_factory.mktemp("commands") / "runs"
    Invented(seed=11).write(folder / "good")
    Invented(seed=2, outcome="failed").write(folder / "bad")
    Invented(seed=4, started_at=datetime(2030, 1, 1, tzinfo=timezone.utc)).write(folder / LONG)
    write_journal(folder / "broken-off", Invented(seed=3).events()[:120])
    with (folder / "broken-off" / "journal.jsonl").open("a") as journal:
        journal.write('{"torn')
    (folder / "no-run").mkdir()
    return write_texts(folder, {"damaged/journal.jsonl": '{"kind": "nonsense"}\n{"kind": "more"}\n'})


def printed(capsys: Captured, *words: str | Path, code: int = 0) -> str:
    """What a command prints; an error is one line, never a traceback."""
    assert main([str(word) for word in words]) == code
    out, err = capsys.readouterr()
    assert "Traceback (most recent call last)" not in err
    if code:
        assert err.startswith("mle-star: error: ") and err.count("\n") == 1
    return err if code else out


def test_runs_lists_every_run_also_for_programs(runs_dir: Path, capsys: Captured, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = {line.split()[0]: line for line in printed(capsys, "runs", runs_dir).splitlines()[1:]}
    states = {"good": "completed", "bad": "failed", "broken-off": "stopped", "damaged": "damaged", LONG: "completed"}
    assert set(lines) == set(states) and all(state in lines[name] for name, state in states.items())
    with Journal(runs_dir / "broken-off" / "journal.jsonl"):
        (line,) = [line for line in printed(capsys, "runs", runs_dir).splitlines() if "broken-off" in line]
        assert "running" in line
        going = printed(capsys, "predict", runs_dir / "broken-off", "new.csv", code=1)
        assert "is still running" in going and "resume" not in going
    monkeypatch.chdir(runs_dir.parent)
    *_, last = json.loads(printed(capsys, "runs", "--json"))
    assert (last["path"], last["state"]) == (f"runs/{LONG}", "completed") and isinstance(last["score"], float)


def test_show_lists_steps_and_no_script_drives_the_terminal(runs_dir: Path, tmp_path: Path, capsys: Captured) -> None:
    run_dir = runs_dir / "good"
    many = printed(capsys, "show", run_dir, "phase2")
    assert "phase2/path-1/t-2/k-2/coder" in many and "phase1/" not in many and "prompt ──" not in many
    Invented(T=1, K=1, R=1, words="\x1b[2J\x1b]0;x\x07 red \u202e").write(tmp_path / "run")
    shown = printed(capsys, "show", tmp_path / "run", "phase1/candidate-0/script")
    assert "\x1b" not in shown and "red [U+202E]" in shown


def test_diff_compares_two_scripts_by_step_or_name(runs_dir: Path, capsys: Captured) -> None:
    run_dir = runs_dir / "good"
    assert "are the same" in printed(capsys, "diff", run_dir, "final", "best")
    assert "candidate-3/script-2" in printed(capsys, "diff", run_dir, "phase1/candidate-3", "final")  # after its repair
    assert "no script ran at 'phase9'" in printed(capsys, "diff", run_dir, "phase9", "final", code=1)
    assert "holds no run" in printed(capsys, "diff", runs_dir / "no-run", "a", "b", code=1)


def test_scripts_are_compared_whole_however_long_they_are(tmp_path: Path, capsys: Captured) -> None:
    def long(middle: int) -> str:
        lines = [f"value_{number} = {number} * {number}" for number in range(4000)]
        return "\n".join([*lines[:2000], f"depth = {middle}", *lines[2000:], f"note = '{'x' * 3000}{middle}'"])

    start, *rest = Invented(seed=11).events()
    scripts = [event for event in rest if isinstance(event, ScriptFinished)][:2]
    changed = [one.model_copy(update={"script": long(number)}) for number, one in enumerate(scripts)]
    write_journal(tmp_path / "run", [start, *changed])
    shown = printed(capsys, "diff", tmp_path / "run", "phase1/candidate-0", "phase1/candidate-1").splitlines()
    first, second = (RunStory.from_events([start, one]) for one in changed)
    for lines in (shown, Comparison.of(first, second).script):
        assert "-depth = 0" in lines and "+depth = 1" in lines
        assert sum(line.startswith(("-note", "+note")) for line in lines) == 2 and max(map(len, lines)) < 2100


def test_watch_serves_the_page_until_it_is_interrupted(runs_dir: Path) -> None:
    command = [sys.executable, "-m", "mle_star.cli.app", "watch", str(runs_dir / "good")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=120) as reply:
            assert "spaceship-passengers" in reply.read().decode("utf-8")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address.partition("?")[0], timeout=120)
    finally:
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err.strip()) == (0, "no longer served")


def test_a_run_is_found_by_name_beginning_or_as_latest(runs_dir: Path, capsys: Captured, monkeypatch: Patch) -> None:
    path = Path(printed(capsys, "report", runs_dir / "bad").strip())
    assert path == (runs_dir / "bad" / "report.html").absolute() and "Failed" in path.read_text(encoding="utf-8")
    assert "line 1" in printed(capsys, "report", runs_dir / "damaged", code=1)
    assert "holds no run" in printed(capsys, "report", runs_dir / "no-run", code=1)
    monkeypatch.chdir(runs_dir.parent)
    by_folder = printed(capsys, "show", runs_dir / "good")
    assert printed(capsys, "show", "good") == printed(capsys, "show", "goo") == by_folder
    assert printed(capsys, "report", "latest").strip() == str(runs_dir / LONG / "report.html")
    assert "may be any of 2 runs: bad, broken-off" in printed(capsys, "show", "b", code=1)
