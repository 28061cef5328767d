"""Runs whose disk is full from the n-th event on: `python -m tests.pipeline.full_disk FOLDER DATA MODE FIRST EVERY`.

FOLDER lies on a small file system of its own, which is filled to the last byte (MODE `disk`), or so far that only
scripts, which write more than the run itself, find no room (`script`); `journal` lets only the journal, as the largest
file, grow no more. The log lies there, too. Each run is then taken up again with room to spare. One JSON line tells how
an undisturbed run went and how many events it has, and one how each of the others did: the n-th event is FIRST and
from there on every EVERYth.
"""

import asyncio
import json
import os
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from mle_star import ExecutionRawResult, PipelineError, run_pipeline
from mle_star.run.context import ScriptRequest
from mle_star.run.events import AnyEvent, RunFinished, SubmissionKept
from mle_star.run.journal import read_journal
from tests.pipeline.conftest import near_task, settings, submitted
from tests.pipeline.mind import LevelExecutor, MindAgents, crash

SCRIPT_BYTES, LEFT_BYTES = 2 << 20, 1 << 20


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
    def __init__(self, folder: Path, data: Path, mode: str, number: int = sys.maxsize) -> None:
        self.folder, self.data, self.mode, self.number = folder, data, mode, number
        self.filler, self.run_dir = folder / "filler", folder / "run"
        self.heard, self.kept_before, self.agents = 0, False, MindAgents()

    def __call__(self, event: AnyEvent) -> None:
        self.heard += 1
        if self.heard < self.number:
            self.kept_before = self.kept_before or isinstance(event, SubmissionKept)
        elif self.heard == self.number and self.mode != "journal":
            self._fill()
        elif self.heard == self.number:
            size = (self.run_dir / "journal.jsonl").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _fill(self) -> None:
        handle = os.open(self.filler, os.O_WRONLY | os.O_CREAT, 0o644)
        with suppress(OSError):
            while True:
                os.write(handle, b"\0" * 65536)
        if self.mode == "script":
            os.ftruncate(handle, os.fstat(handle).st_size - LEFT_BYTES)
        os.close(handle)

    async def run(self, *, resume: bool = False) -> dict[str, Any]:
        """Run, or go on, and tell what matters of the result; then there is room again."""
        config = settings(K=1, R=1, score_views=2, log_file=str(self.folder / "log.txt"))
        options: dict[str, Any] = {"resume": resume, "listeners": [] if resume else [self], "console": False}
        executor = LevelExecutor(before=write_much if self.mode == "script" else None)
        options |= {"agents": self.agents, "executor": executor, "run_dir": self.run_dir}
        try:
            result = await run_pipeline(near_task(self.data), config, **options)
            submission = submitted(result) if result.submission_path else ""
        finally:
            self.filler.unlink(missing_ok=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        facts = {"stopped_by": result.stopped_by, "score": result.final_solution.score, "submission": submission}
        return {**facts, "warnings": result.warnings}

    async def trial(self) -> dict[str, Any]:
        outcome: dict[str, Any] = {"number": self.number, "error": None}
        try:
            outcome |= await self.run()
        except PipelineError as error:
            outcome["error"] = str(error)
        *_, last = read_journal(self.run_dir / "journal.jsonl")
        outcome["last"] = last.state if isinstance(last, RunFinished) else last.kind
        outcome["files"] = sorted(path.name for path in self.run_dir.iterdir() if path.is_file())
        later = await self.run(resume=True)
        (self.folder / "log.txt").unlink()
        shutil.rmtree(self.run_dir)
        return {**outcome, "kept_before": self.kept_before, "later": later, "debugged": self.agents.count("debugger")}


async def main(folder: Path, data: Path, mode: str, first: int, every: int) -> None:
    disk = Disk(folder, data, mode)
    result = await disk.run()
    sys.stdout.write(json.dumps({"events": disk.heard, **result}) + "\n")
    shutil.rmtree(disk.run_dir)
    for number in range(first, disk.heard + 1, every):
        sys.stdout.write(json.dumps(await Disk(folder, data, mode, number).trial()) + "\n")


if __name__ == "__main__":
    where, source, kind, *rest = sys.argv[1:]
    asyncio.run(main(Path(where), Path(source), kind, *map(int, rest)))
