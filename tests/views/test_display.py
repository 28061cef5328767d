"""The run on the terminal: rich, plain, quiet and JSON, and the commands that look at runs, as a user calls them."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions

from mle_star.cli.app import main
from mle_star.run.events import EVENT_ADAPTER, AnyEvent, Decided, RunResumed, ScriptFinished
from mle_star.run.journal import Journal, read_journal
from mle_star.views import RunStory
from mle_star.views.display import BLOCKS, choose_mode, make_display, screen, sparkline
from mle_star.views.headlines import headline
from mle_star.views.shelf import Comparison
from tests.conftest import Captured, Patch
from tests.views.journals import Invented, write_journal

STYLES = re.compile(r"\x1b\[[0-9;]*m")
ANSI = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[@-_])")
PLAYER = """
import os, signal, sys
os.open(os.ttyname(0), os.O_RDWR)  # the terminal of this session
signal.signal(signal.SIGINT, signal.SIG_IGN)
from pathlib import Path
from mle_star.views.display import make_display
from mle_star.run.journal import read_journal
run_dir = Path(sys.argv[1])
events = list(read_journal(run_dir / "journal.jsonl"))
with make_display("auto", run_dir=run_dir) as display:
    for number, event in enumerate(events[2:]):
        display(event)
        if number in (44, 89):
            sys.stdin.readline()
"""
"""Goes on when it is told to."""


def shown(story: RunStory, width: int, height: int) -> list[str]:
    """The screen as lines of text."""
    out = io.StringIO()
    console = Console(width=width, height=height, file=out, force_terminal=True, color_system=None)
    console.print(screen(story, ConsoleDimensions(width, height)))
    return STYLES.sub("", out.getvalue()).rstrip("\n").split("\n")


@pytest.mark.parametrize("words", ["", "[bold red]x[/] \x1b[2J\x1b]0;t\x07 \u202e evil\nline"])
def test_the_screen_fits_the_terminal_at_every_moment_and_no_name_styles_it_or_drives_the_terminal(words: str) -> None:
    story = RunStory()
    for number, event in enumerate(Invented(L=2, T=2, K=2, words=words).events()):
        story.apply(event)
        for width, height in ((80, 24), (60, 16), (120, 50), (40, 12)) if number % 9 == 0 else ():
            lines = shown(story, width, height)
            assert len(lines) <= height and all(cell_len(line) <= width for line in lines)
            assert words[:14] in "".join(lines) and not any(code in "".join(lines) for code in "\x1b\x07\u202e")


@given(scores=st.lists(st.floats(-1e6, 1e6), max_size=200), down=st.booleans(), width=st.integers(2, 40))
@settings(max_examples=60)
def test_a_sparkline_rises_with_the_best_score_and_never_falls(scores: list[float], down: bool, width: int) -> None:
    line = sparkline(sorted(scores, reverse=down), width)
    assert len(line) == min(len(scores), width)
    heights = [BLOCKS.index(letter) for letter in line]
    assert heights == sorted(heights)
    if line and len({*scores}) > 1 and heights[-1] != heights[0]:
        assert (heights[0], heights[-1]) == (0, len(BLOCKS) - 1)


def play(run_dir: Path, environ: dict[str, str]) -> str:
    """All that the display writes to a pseudo terminal, made smaller on the way, while somebody presses keys."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    process = subprocess.Popen(
        [sys.executable, "-c", PLAYER, str(run_dir)], stdin=slave, stdout=slave, stderr=slave, env=env,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    answered, written = 0, b""
    while True:
        try:
            written += os.read(master, 65536)
        except OSError:
            break  # the other end was closed
        text = written.decode("utf-8", "replace")
        if answered == 0 and "Ctrl-C" in text:  # the first screen is complete
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
        elif answered != 1 or not any(row.startswith("╭") for row in rows_in(text, 60)):
            continue  # it waits for the first screen, or for one of the new size
        answered += 1
        os.write(master, b"\x03\x03typed\n")
    assert termios.tcgetattr(master)[3] & termios.ECHO, "the terminal is left as it was"
    os.close(master)
    assert process.wait(240) == 0, written.decode("utf-8", "replace")
    return written.decode("utf-8", "replace")


def rows_in(written: str, width: int) -> list[str]:
    """The rows of just this width among all that was drawn."""
    rows = [row for line in ANSI.sub("", written).split("\n") for row in line.split("\r")]
    return [row for row in rows if cell_len(row) == width]


@pytest.mark.parametrize("plain", [{}, {"NO_COLOR": "1"}])
def test_a_terminal_gets_a_screen_that_resizes_and_then_the_summary(plain: dict[str, str], run_dir: Path) -> None:
    written = play(run_dir, plain)
    assert "\x1b[2K" in written or "\x1b[1A" in written  # the screen is drawn over itself
    assert "^C" not in written and "typed" not in written and written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")
    assert bool(re.search(r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|4[0-7]|9[0-7]|38|48)[;m]", written)) == (not plain)
    screens, _, end = ANSI.sub("", written).rpartition("spaceship-passengers: completed")
    assert max(map(cell_len, [row for line in screens.split("\n") for row in line.split("\r") if row.strip()])) == 80
    assert any(row.startswith("╭") for row in rows_in(screens, 60)) and "spaceship-passengers · sonnet" in screens
    assert "submission" in end and "built from" in end


def shown_by(mode: str, run_dir: Path) -> tuple[str, str, list[AnyEvent]]:
    """What a display writes to standard output and to standard error, and the events that it was told or found."""
    out, err, events = io.StringIO(), io.StringIO(), list(read_journal(run_dir / "journal.jsonl"))
    with make_display(mode, run_dir=run_dir, out=out, err=err) as display:
        for event in events[1:]:  # a listener is told from the second line on
            display(event)
    return out.getvalue(), err.getvalue(), events


def test_without_a_terminal_there_is_one_line_an_event_and_a_summary(run_dir: Path) -> None:
    end, err, events = shown_by("auto", run_dir)
    lines = [f"{one.at.astimezone():%H:%M:%S}  {one.place}: {one.words}\n" for one in map(headline, events) if one]
    assert err == "".join(lines) and "\x1b" not in err + end and not re.search(r"[ \t]$", end, re.MULTILINE)
    for name in ("final/submission.csv", "solution.py", "report.html", "journal.jsonl"):
        assert str(run_dir / name) in end  # a pipe breaks no path


def test_quiet_says_only_what_must_be_said_and_json_is_the_journal(run_dir: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(run_dir.parent)  # files are named as seen from here
    out, err, _ = shown_by("quiet", run_dir)
    assert "script failed" in err and "begins" not in err and f" {run_dir.name}/final/submission.csv\n" in out
    out, err, _ = shown_by("rich", run_dir)
    assert "spaceship-passengers: completed" in out and "spaceship-passengers: completed" not in err
    out, err, events = shown_by("json", run_dir)
    assert [EVENT_ADAPTER.validate_json(line) for line in out.splitlines()] == events and err == ""
    modes = {"auto": "plain", "rich": "rich", "json": "json"}
    assert {mode: choose_mode(mode, io.StringIO()) for mode in modes} == modes, "a pipe gets lines"


def test_a_resumed_run_is_shown_with_what_it_had_and_nothing_before_its_first_event(tmp_path: Path) -> None:
    run_dir, events = tmp_path / "run", Invented(seed=11).events()
    write_journal(run_dir, events[:150])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.suppress(RuntimeError), make_display("plain", run_dir=run_dir, out=out, err=err):
        raise RuntimeError("before the first event")
    assert out.getvalue() + err.getvalue() == ""
    with (
        Journal(run_dir / "journal.jsonl") as journal,
        make_display("json", run_dir=run_dir, out=out) as lines,
        make_display("plain", run_dir=run_dir, out=io.StringIO(), err=err) as plain,
    ):
        journal.record(RunResumed(spent_cost_usd=1, spent_seconds=60))
        journal.subscribe(lines)
        journal.subscribe(plain)
        for event in events[150:]:
            journal.record(event)
    kinds = [json.loads(line)["kind"] for line in out.getvalue().splitlines()]
    assert kinds[0] == "run_resumed" and len(kinds) == 1 + len(events) - 150
    assert "run: continues" in err.getvalue().split("\n")[0] and err.getvalue().count("completed, score") >= 3


def printed(capsys: Captured, *words: str | Path, code: int = 0) -> str:
    """What a command prints; an error is one line, never a traceback."""
    assert main([str(word) for word in words]) == code
    out, err = capsys.readouterr()
    assert "Traceback (most recent call last)" not in err
    if code:
        assert err.startswith("mle-star: error: ") and err.count("\n") == 1
    return err if code else out


def test_a_run_that_is_held_runs_the_latest_has_a_report(tmp_path: Path, capsys: Captured, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    long = "a-name-that-is-much-longer-than-a-terminal-would-like-it-to-be"
    Invented(seed=4, started_at=datetime(2030, 1, 1, tzinfo=timezone.utc)).write(tmp_path / "runs" / long)
    write_journal(going := tmp_path / "runs" / "going", Invented(seed=3).events()[:120])
    with Journal(going / "journal.jsonl"):
        running, last = json.loads(printed(capsys, "runs", "--json"))
        refused = printed(capsys, "predict", going, "new.csv", code=1)
    assert "is still running" in refused and "resume" not in refused
    assert (running["state"], last["state"], last["path"]) == ("running", "completed", f"runs/{long}")
    assert [line.split()[0] for line in printed(capsys, "runs").splitlines()[1:]] == ["going", long]
    path = Path(printed(capsys, "report", "latest").strip())
    assert path == going.parent / long / "report.html" and "Completed" in path.read_text(encoding="utf-8")


def test_steps_are_listed_without_decisions_and_no_script_drives_the_terminal(
    tmp_path: Path, capsys: Captured, monkeypatch: Patch
) -> None:
    events = Invented(T=1, K=1, R=1, words="\x1b[2J\x1b]0;x\x07 red \u202e").events()
    write_journal(tmp_path / "run", [*events, Decided(step="phase1/go-on", name="go-on", value=True)])
    listed = printed(capsys, "show", tmp_path / "run")
    assert "phase1/candidate-0/script" in listed and "go-on" not in listed
    shown = printed(capsys, "show", tmp_path / "run", "phase1/candidate-0/script")
    assert "\x1b" not in shown and "red [U+202E]" in shown
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = printed(capsys, "show", tmp_path / "run", "phase1/candidate-0/script")
    assert re.search(r"\x1b\[[\d;]+mimport\x1b", shown), "code has colours on a terminal"


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
    ahead = [Comparison.of(*pair).facts[1].better for pair in ((first, second), (second, first), (first, first))]
    assert ahead == ["second", "first", ""], "the second has the better score"
    cut = Comparison.of(first, RunStory.from_events([start, scripts[1]])).script
    assert len(cut) == 1501 and cut[0] == "--- A" and "more lines" in cut[-1], "what is wholly different"


def test_watch_serves_the_page_until_it_is_interrupted(run_dir: Path) -> None:
    command = [sys.executable, "-m", "mle_star.cli.app", "watch", str(run_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=120) as reply:
            assert "spaceship-passengers" in reply.read().decode("utf-8")
    finally:
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err.strip()) == (0, "no longer served")
