"""Runs whose disk is full from the n-th event on: `python -m tests.pipeline.full_disk FOLDER DATA MODE FIRST EVERY`.

FOLDER lies on a small file system of its own, which is filled to the last byte (MODE `disk`), or so far that only
scripts, which write more than the run itself, find no room (`script`); `journal` lets only the journal, as the largest
file, grow no more. The log lies there, too. Each run is then taken up again with room to spare. One JSON line tells how
an undisturbed run went and how many events it has, and one how each of the others did: the n-th event is FIRST and
from there on every EVERYth.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from mle_star.errors import PipelineError
from mle_star.models import ExecutionRawResult, FinalResult
from mle_star.orchestrator import run_pipeline
from mle_star.run.context import ScriptRequest
from mle_star.run.events import AnyEvent, RunFinished, SubmissionKept
from mle_star.run.journal import read_journal
from tests.conftest import small_task
from tests.method.conftest import crash
from tests.pipeline.conftest import settings
from tests.pipeline.mind import LevelExecutor, MindAgents

CONFIG = settings(M=2, T=1, K=1, L=2, R=1)
SCRIPT_BYTES = 2 << 20
LEFT_BYTES = 1 << 20


async def write_much(request: ScriptRequest) -> ExecutionRawResult | None:
    """A script that writes much, and says what Python says when it cannot."""
    model = Path(request.working_dir, "model.bin")
    try:
        model.write_bytes(b"\0" * SCRIPT_BYTES)
    except OSError as error:
        return crash(f"OSError: {error}")
    model.unlink()
    return None


class Disk:
    """A disk that is full from the n-th event on."""

    def __init__(self, folder: Path, mode: str, number: int) -> None:
        self.filler, self.mode, self.number = folder / "filler", mode, number
        self.journal = folder / "run" / "journal.jsonl"
        self.heard, self.kept_before = 0, False
        self.agents = MindAgents()

    def __call__(self, event: AnyEvent) -> None:
        """Count, and fill the disk when the time has come."""
        self.heard += 1
        if self.heard < self.number:
            self.kept_before = self.kept_before or isinstance(event, SubmissionKept)
        elif self.heard == self.number and self.mode != "journal":
            self._fill()
        elif self.heard == self.number:
            size = self.journal.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _fill(self) -> None:
        handle = os.open(self.filler, os.O_WRONLY | os.O_CREAT, 0o644)
        with suppress(OSError):
            while True:
                os.write(handle, b"\0" * 65536)
        if self.mode == "script":
            os.ftruncate(handle, os.fstat(handle).st_size - LEFT_BYTES)
        os.close(handle)

    def empty(self) -> None:
        """There is room again."""
        self.filler.unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


async def one(folder: Path, data: Path, disk: Disk, *, resume: bool) -> FinalResult:
    """Run, or go on."""
    config = CONFIG.model_copy(update={"log_file": str(folder / "log.txt")})
    executor = LevelExecutor(before=write_much if disk.mode == "script" else None)
    task = small_task(data)
    return await run_pipeline(
        task, config, agents=disk.agents, executor=executor, run_dir=folder / "run", resume=resume,
        listeners=[] if resume else [disk], console=False,
    )  # fmt: skip


def facts(result: FinalResult) -> dict[str, Any]:
    """What matters of a result."""
    path = Path(result.submission_path)
    return {
        "stopped_by": result.stopped_by,
        "score": result.final_solution.score,
        "submission": path.read_text(encoding="utf-8") if result.submission_path else "",
        "warnings": result.warnings,
    }


async def trial(folder: Path, data: Path, mode: str, number: int) -> dict[str, Any]:
    """One run with a full disk, and what became of it later."""
    disk = Disk(folder, mode, number)
    outcome: dict[str, Any] = {"number": number, "error": None}
    try:
        outcome.update(facts(await one(folder, data, disk, resume=False)))
    except PipelineError as error:
        outcome["error"] = str(error)
    finally:
        disk.empty()
    events = list(read_journal(disk.journal))
    last = events[-1]
    outcome |= {
        "kept_before": disk.kept_before,
        "last": last.state if isinstance(last, RunFinished) else last.kind,
        "files": sorted(path.name for path in (folder / "run").iterdir() if path.is_file()),
        "later": facts(await one(folder, data, disk, resume=True)),
        "debugged": disk.agents.count("debugger"),
    }
    (folder / "log.txt").unlink()
    shutil.rmtree(folder / "run")
    return outcome


async def main(folder: Path, data: Path, mode: str, first: int, every: int) -> None:
    """The undisturbed run, and every trial."""
    disk = Disk(folder, mode, sys.maxsize)
    result = await one(folder, data, disk, resume=False)
    sys.stdout.write(json.dumps({"events": disk.heard, **facts(result)}) + "\n")
    shutil.rmtree(folder / "run")
    for number in range(first, disk.heard + 1, every):
        sys.stdout.write(json.dumps(await trial(folder, data, mode, number)) + "\n")


if __name__ == "__main__":
    where, source, kind, *rest = sys.argv[1:]
    asyncio.run(main(Path(where), Path(source), kind, *map(int, rest)))
