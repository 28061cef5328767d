"""What the harness costs: time against a bare subprocess, memory under 5 GB of output, seconds to end a tree.

`python benchmarks/harness.py [--quick]`; exit code 1 when a target is missed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Literal

import psutil

from mle_star.execution import LocalExecutor
from mle_star.execution.environment import script_environment
from mle_star.models import PipelineConfig
from mle_star.run.context import ScriptRequest

CONFIG = PipelineConfig(num_parallel_solutions=1)
HALF_A_SECOND = (
    "import time\nend = time.perf_counter() + 0.45\nn = 0\n"
    "while time.perf_counter() < end:\n    n += 1\nprint('Final Validation Performance: 0.5')\n"
)
FIVE_GIGABYTES = (
    "import sys\nblock = (b'x' * 127 + b'\\n') * 8192\nfor _ in range({blocks}):\n    sys.stdout.buffer.write(block)\n"
    "print('Final Validation Performance: 0.5')\n"
)
TREE = (
    "import os, pathlib, subprocess, sys, time\n"
    "sleeper = [sys.executable, '-c', 'import time; time.sleep(600)', '{token}']\n"
    "for _ in range(3):\n    subprocess.Popen(sleeper)\n"
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.execv(sys.executable, sleeper)\n"
    "    os.kill(os.getpid(), 9)\npathlib.Path('ready').touch()\ntime.sleep(600)\n"
)


class Table:
    """Figures with their targets."""

    def __init__(self) -> None:
        self.missed = False

    def row(self, name: str, value: float, target: float, unit: str) -> None:
        met = value <= target
        self.missed |= not met
        print(f"{name:<56} {value:>8.2f} {unit:<3} target {target:g} {unit} {'ok' if met else 'MISSED'}")


def request_for(folder: Path, code: str, timeout: float = 300.0) -> ScriptRequest:
    path = folder / "solution.py"
    path.write_text(code)
    return ScriptRequest(
        script_path=str(path), working_dir=str(folder), timeout_seconds=timeout, env=script_environment(CONFIG)
    )


async def overhead(folder: Path, rounds: int, table: Table) -> None:
    """The same script bare and in each kind of confinement, in turns so that the machine's moods hit all."""
    request = request_for(folder, HALF_A_SECOND)
    executors = {
        "bubblewrap": LocalExecutor(CONFIG),
        "namespaces": LocalExecutor(CONFIG, sandbox="namespaces"),
        "filters alone": LocalExecutor(CONFIG, sandbox="none"),
    }
    times: dict[str, list[float]] = {"bare": [], **{name: [] for name in executors}}
    for executor in executors.values():
        await executor.run(request)  # the probe happens once per run
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run(  # noqa: ASYNC221 - this is what the harness is measured against
            [sys.executable, request.script_path], cwd=folder, env=request.env, capture_output=True, check=True
        )
        times["bare"].append(time.perf_counter() - started)
        for name, executor in executors.items():
            started = time.perf_counter()
            raw = await executor.run(request)
            times[name].append(time.perf_counter() - started)
            assert raw.exit_code == 0, raw.stderr
            assert raw.isolation.sandbox == executor.means.sandbox.name, raw.isolation
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    print(f"a script of half a second, median of {rounds}: "
          + ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in medians.items()))  # fmt: skip
    for name in executors:
        allowed = 1.3 * medians["bare"] + 0.06
        table.row(f"{executors[name].means.sandbox.name}, against bare", medians[name] * 1000, allowed * 1000, "ms")


class Peak:
    """The highest resident memory of this process while the block runs."""

    def __enter__(self) -> Peak:
        gc.collect()
        self._process, self._stop = psutil.Process(), threading.Event()
        self.before = self.highest = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.highest = max(self.highest, self._process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def rise(self) -> float:
        return (self.highest - self.before) / 1e6


async def memory(folder: Path, gigabytes: float, table: Table) -> None:
    """A flood of output must not fill the harness."""
    executor = LocalExecutor(CONFIG)
    await executor.run(request_for(folder, "print(1)"))
    request = request_for(folder, FIVE_GIGABYTES.format(blocks=int(gigabytes * 1e9 / (128 * 8192)) + 1))
    request = request.model_copy(update={"output_file": str(folder / "out.log")})
    started = time.perf_counter()
    with Peak() as peak:
        raw = await executor.run(request)
    seconds = time.perf_counter() - started
    assert raw.exit_code == 0 and "Final Validation Performance: 0.5" in raw.stdout, raw.stderr
    print(f"{gigabytes:g} GB of output in {seconds:.1f} s ({gigabytes / seconds:.1f} GB/s)")
    table.row(f"rise of memory under {gigabytes:g} GB of output", peak.rise, 50, "MB")


def tokens_alive(token: str) -> int:
    count = 0
    for process in psutil.process_iter():
        try:
            count += token in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
    return count


async def cancellation(folder: Path, sandbox: Literal["auto", "namespaces", "none"], table: Table) -> None:
    """From `cancel()` until nothing of the tree is left."""
    token = uuid.uuid4().hex
    executor = LocalExecutor(CONFIG, sandbox=sandbox)
    (folder / "ready").unlink(missing_ok=True)
    task = asyncio.create_task(executor.run(request_for(folder, TREE.replace("{token}", token))))
    while not (folder / "ready").exists() or tokens_alive(token) < 4:  # noqa: ASYNC110 - processes send no events
        await asyncio.sleep(0.05)
    started = time.perf_counter()
    task.cancel()
    await asyncio.wait({task})
    while tokens_alive(token):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    table.row(f"a cancelled tree is gone ({executor.means.sandbox.name})", time.perf_counter() - started, 2.0, "s")


async def main() -> int:
    quick = "--quick" in sys.argv
    table = Table()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("input", "final"):
            (folder / part).mkdir()
        await overhead(folder, 3 if quick else 15, table)
        await memory(folder, 0.5 if quick else 5.0, table)
        for sandbox in ("auto", "namespaces", "none"):
            await cancellation(folder, sandbox, table)
    return int(table.missed)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
