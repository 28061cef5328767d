"""What it costs to watch a run: the display's share of a run's CPU time, and the report of a thousand attempts.

    python benchmarks/display.py [--quick]

The run is a real one: the embedded engineer, the agents' CLI, scripts in the sandbox. The display draws on a pseudo
terminal that somebody reads. `--quick` leaves the run out. Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import pty
import random
import resource
import struct
import sys
import tempfile
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.views.journals import Invented  # noqa: E402

from mle_star.data.guess import guess_task  # noqa: E402
from mle_star.models import PipelineConfig  # noqa: E402
from mle_star.orchestrator import run_pipeline  # noqa: E402
from mle_star.run.events import AnyEvent  # noqa: E402
from mle_star.run.journal import read_journal  # noqa: E402
from mle_star.views import RunStory, write_report  # noqa: E402
from mle_star.views.display import RichDisplay, screen  # noqa: E402

MAX_SHARE = 0.01
MAX_BYTES, MAX_PAINT_MS = 5_000_000, 1000
CHROMIUM = "/usr/bin/chromium"


# --- the share of a run's CPU time ---------------------------------------------------------------------------------


class Metered:
    """A display whose CPU time is counted: in the run's thread and in its own."""

    def __init__(self, display: RichDisplay) -> None:
        self.display, self.hearing = display, 0.0
        thread = display._live._refresh_thread
        assert thread is not None
        assert thread.ident is not None
        self._clock = time.pthread_getcpuclockid(thread.ident)

    def __call__(self, event: AnyEvent) -> None:
        """Hear an event, by the clock."""
        begun = time.thread_time()
        self.display(event)
        self.hearing += time.thread_time() - begun

    @property
    def drawing(self) -> float:
        """CPU seconds of the thread that draws, while it lives."""
        return time.clock_gettime(self._clock)


def terminal() -> int:
    """A pseudo terminal that a thread reads from, as a terminal does."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def read() -> None:
        with suppress(OSError):  # the other end was closed
            while os.read(master, 65536):
                pass

    threading.Thread(target=read, daemon=True).start()
    return slave


def write_data(folder: Path, rows: int = 1500) -> Path:
    """A table with something to find in it."""
    numbers = random.Random(1)
    folder.mkdir()
    lines = ["id,size,weight,kind,label"]
    for row in range(rows):
        size, weight, kind = numbers.random(), numbers.gauss(0, 1), numbers.choice("abc")
        chance = 0.8 if (size > 0.5) != (kind == "a") else 0.2
        lines.append(f"{row},{size:.4f},{weight:.4f},{kind},{int(numbers.random() < chance)}")
    (folder / "train.csv").write_text("\n".join(lines[: rows - 300]) + "\n")
    test = [lines[0], *lines[rows - 300 :]]
    (folder / "test.csv").write_text("\n".join(line.rpartition(",")[0] for line in test) + "\n")
    return folder


def cpu_seconds() -> float:
    """CPU time of this process and of all that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure_run(folder: Path) -> bool:
    """A whole run with the display on; is its share small enough?"""
    task = guess_task(write_data(folder / "data"), target="label").task
    config = PipelineConfig(
        model="offline", num_retrieved_models=2, outer_loop_steps=1, inner_loop_steps=2, num_parallel_solutions=2,
        ensemble_rounds=1,
    )  # fmt: skip
    slave = terminal()
    with os.fdopen(slave, "w") as stream:
        console = Console(file=stream, force_terminal=True, width=120, height=40)
        display = RichDisplay(console, console, folder / "run")
        metered = Metered(display)
        before, begun = cpu_seconds(), time.monotonic()
        asyncio.run(run_pipeline(task, config, run_dir=folder / "run", listeners=[metered], console=False))
        took, drawing = time.monotonic() - begun, metered.drawing
        spent = cpu_seconds() - before
        display.end()
    share = (metered.hearing + drawing) / (spent - metered.hearing - drawing)
    print(f"run: {took:.0f} s, {spent:.1f} s of CPU time")
    print(
        f"display: {metered.hearing:.3f} s hearing events, {drawing:.3f} s drawing: {share:.2%} (limit {MAX_SHARE:.0%})"
    )
    begun_cpu = time.process_time()
    report = write_report(folder / "run")
    print(f"report: {time.process_time() - begun_cpu:.2f} s of CPU time, {report.stat().st_size / 1e3:.0f} kB")
    return share < MAX_SHARE


# --- a thousand attempts -------------------------------------------------------------------------------------------


def measure_large(folder: Path) -> bool:
    """The display and the report of a run with 1,000 attempts; small and quick enough?"""
    Invented(seed=3, L=4, T=25, K=10, R=5, block_lines=60).write(folder / "large")
    events = list(read_journal(folder / "large" / "journal.jsonl"))
    begun = time.process_time()
    story = RunStory.from_events(events)
    hear = (time.process_time() - begun) / len(events)
    console = Console(file=Path(os.devnull).open("w"), force_terminal=True, width=120, height=40)  # noqa: SIM115
    begun = time.process_time()
    for _ in range(20):
        console.print(screen(story, console.size))
    draw = (time.process_time() - begun) / 20
    begun = time.process_time()
    report = write_report(folder / "large")
    wrote, size = time.process_time() - begun, report.stat().st_size
    print(f"1,000 attempts: {hear * 1e6:.0f} µs an event, {draw * 1e3:.1f} ms a drawing, report in {wrote:.2f} s")
    paint = first_paint(report)
    print(
        f"1,000 attempts: report of {size / 1e6:.2f} MB (limit {MAX_BYTES / 1e6:.0f}), first paint after {paint:.0f} ms"
    )
    return size < MAX_BYTES and paint < MAX_PAINT_MS


def first_paint(report: Path) -> float:
    """Milliseconds until a browser shows the page; the best of three, since a busy machine only adds to it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        times = []
        for _ in range(3):
            page = browser.new_page()
            page.goto(report.as_uri())
            found = page.evaluate("JSON.stringify(performance.getEntriesByName('first-contentful-paint'))")
            times.append(float(json.loads(found)[0]["startTime"]))
            page.close()
        browser.close()
    return min(times)


def main(*, quick: bool) -> int:
    """Run everything; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        large = measure_large(Path(folder))
        small = quick or measure_run(Path(folder))
    return 0 if large and small else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave the real run out")
    sys.exit(main(quick=parser.parse_args().quick))
