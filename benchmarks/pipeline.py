"""What the orchestrator costs: wall-clock time against the critical path, phase changes, replay of a run, memory.

    python benchmarks/pipeline.py [--quick]

Agents and scripts are simulated with fixed latencies, so that everything beyond them is ours; one small run goes
through the real SDK, CLI and harness, for the memory. `--quick` shortens the latencies and leaves that run out. Exit
code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.conftest import small_task  # noqa: E402
from tests.pipeline.conftest import events, settings  # noqa: E402
from tests.pipeline.mind import LevelExecutor, Mind, MindAgents, MindBrain, fenced, script  # noqa: E402

from mle_star.engineer.server import MessagesServer  # noqa: E402
from mle_star.models import PipelineConfig  # noqa: E402
from mle_star.orchestrator import run_pipeline  # noqa: E402
from mle_star.run.events import AgentFinished, PhaseFinished, PhaseStarted, ScriptFinished  # noqa: E402
from mle_star.run.journal import read_journal  # noqa: E402

FILLER = "# a line as long as the lines of a script usually are, so that sizes are realistic\n" * 70
PRINTED: dict[str, Any] = {"scoring": "self_reported"}  # the scripts of the mind answer nothing


class Table:
    """Figures with their targets."""

    def __init__(self) -> None:
        self.missed = False

    def row(self, name: str, value: float, target: float, unit: str) -> None:
        """Print a figure; it must not exceed its target."""
        met = value <= target
        self.missed |= not met
        print(f"{name:<58} {value:>9.3f} {unit:<3} target {target:g} {unit} {'ok' if met else 'MISSED'}")


class Wordy(Mind):
    """Writes scripts of some six kilobytes."""

    def script(self, level: float, note: str) -> str:
        """A script in a fence, with filler."""
        return fenced(script(level, note=note) + FILLER)


def write_data(folder: Path) -> Path:
    """A task small enough to cost nothing."""
    folder.mkdir()
    (folder / "train.csv").write_text("id,size,label\n1,2,0\n2,3,1\n", encoding="utf-8")
    (folder / "test.csv").write_text("id,size\n3,1\n4,2\n", encoding="utf-8")
    (folder / "sample_submission.csv").write_text("id,label\n3,0\n4,0\n", encoding="utf-8")
    return folder


def critical_path(run_dir: Path) -> float:
    """Seconds of the chain of steps that decided when the run ended: from the last one back, each time to the step
    that ended last before the one at hand began."""
    done = [
        event for event in read_journal(run_dir / "journal.jsonl") if isinstance(event, AgentFinished | ScriptFinished)
    ]
    took = [event.seconds if isinstance(event, AgentFinished) else event.result.duration_seconds for event in done]
    steps = sorted((event.at.timestamp(), seconds) for event, seconds in zip(done, took, strict=True) if seconds > 0)
    total, limit = 0.0, float("inf")
    for end, seconds in reversed(steps):
        if end <= limit + 0.002:
            total += seconds
            limit = end - seconds
    return total


def slowest_change(run_dir: Path) -> float:
    """The longest time between the end of one phase and the beginning of the next."""
    begins = [event.at for event in events(run_dir, PhaseStarted) if event.path is None]
    ends = [event.at for event in events(run_dir, PhaseFinished) if event.path is None]
    return max((begin - end).total_seconds() for end, begin in zip(ends, begins[1:], strict=False))


async def simulated(root: Path, data: Path, table: Table, scale: float) -> None:
    """M=4 T=2 K=2 L=2 R=2 with agents of 0.4 s and scripts of 0.8 s."""
    config = settings(M=4, T=2, K=2, L=2, R=2, use_cache=False, **PRINTED)
    agents, executor = MindAgents(Wordy(), delay=0.4 * scale), LevelExecutor(delay=0.8 * scale)
    started = time.monotonic()
    run_dir = root / "simulated"
    result = await run_pipeline(
        small_task(data), config, agents=agents, executor=executor, run_dir=run_dir, console=False
    )  # fmt: skip
    took, critical = time.monotonic() - started, critical_path(run_dir)
    inside = result.total_duration_seconds
    counted = f"{len(agents.calls)} calls, {len(executor.ran)} scripts"
    print(f"simulated run: {counted}, {took:.2f} s, critical {critical:.2f} s")
    table.row("wall-clock time / critical path", took / critical, 1.15, "x")
    table.row("overhead of the orchestrator, share of the run", 100 * (inside - critical) / inside, 1 / scale, "%")
    table.row("slowest change of phase", 1000 * slowest_change(run_dir), 100, "ms")


async def replayed(root: Path, data: Path, table: Table) -> None:
    """A finished run of default size, taken up again."""
    task, config, run_dir = small_task(data), PipelineConfig(**PRINTED), root / "default"
    agents = MindAgents(Wordy())
    await run_pipeline(task, config, agents=agents, executor=LevelExecutor(), run_dir=run_dir, console=False)
    size = (run_dir / "journal.jsonl").stat().st_size / 1e6
    idle, started = MindAgents(Wordy()), time.monotonic()
    await run_pipeline(
        task, config, agents=idle, executor=LevelExecutor(), run_dir=run_dir, resume=True, console=False
    )  # fmt: skip
    seconds = time.monotonic() - started
    assert idle.calls == []
    print(f"run of default size: {len(agents.calls)} calls, journal of {size:.1f} MB")
    table.row("replay of a finished run of default size", seconds, 5, "s")


async def through_the_sdk(root: Path, data: Path) -> None:
    """A small run with everything real, so that the SDK's memory counts."""
    config = settings(M=1, T=1, K=1, L=2, R=1, client_reuse="clear", model="sonnet", **PRINTED)
    async with MessagesServer(MindBrain()) as server:
        await run_pipeline(
            small_task(data), config, base_url=server.base_url, run_dir=root / "real", console=False
        )  # fmt: skip


def main() -> int:
    """Measure everything in one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the latencies, no run through the SDK")
    quick = parser.parse_args().quick
    table = Table()
    with tempfile.TemporaryDirectory(prefix="mle-star-bench-") as name:
        root = Path(name)
        data = write_data(root / "data")
        asyncio.run(simulated(root, data, table, 0.25 if quick else 1.0))
        asyncio.run(replayed(root, data, table))
        if not quick:
            asyncio.run(through_the_sdk(root, data))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    table.row("peak memory of the orchestrator's process", peak, 300, "MB")
    return int(table.missed)


if __name__ == "__main__":
    sys.exit(main())
