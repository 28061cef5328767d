"""A run in a process of its own, to be killed: `python -m tests.pipeline.driver RUN DATA [--resume] [--real]`.

`--real` goes through SDK, CLI and loopback API; else the mind answers by the agents' protocol. Scripts are always real.
Every question that reaches the mind is a line of `calls.log` beside the run folder.
"""

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from starlette.responses import Response

from mle_star import FinalResult, run_pipeline
from mle_star.engineer.server import BrainReply, BrainRequest, MessagesServer
from tests.pipeline.conftest import near_task, settings
from tests.pipeline.mind import MindAgents, MindBrain

CONFIG = settings(M=2, T=1, K=1, L=2, R=1, score_views=2, client_reuse="clear", model="sonnet")
CALL_USD = 0.003  # what the CLI charges for the mind's token counts; the same run costs the same either way


def note(log: Path, agent: str) -> None:
    """One line that a kill cannot tear: the file is opened to append, and the line is short."""
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, f"{agent}\n".encode())
    os.close(handle)


@dataclass
class LoggingBrain(MindBrain):
    log: Path = field(default_factory=Path)

    async def reply(self, request: BrainRequest) -> BrainReply | Response:
        note(self.log, request.agent)
        return await super().reply(request)


async def drive(run_dir: Path, data_dir: Path, *, resume: bool, real: bool) -> FinalResult:
    log, task = run_dir.parent / "calls.log", near_task(data_dir)
    if not real:

        async def before(label: str, agent: str) -> None:
            note(log, agent)

        agents = MindAgents(cost_usd=CALL_USD, delay=0.02, before=before, paths_alike=True)
        return await run_pipeline(task, CONFIG, agents=agents, run_dir=run_dir, resume=resume, console=False)
    async with MessagesServer(LoggingBrain(log=log)) as server:
        return await run_pipeline(task, CONFIG, base_url=server.base_url, run_dir=run_dir, resume=resume, console=False)


if __name__ == "__main__":
    run_folder, data, *flags = sys.argv[1:]
    asyncio.run(drive(Path(run_folder), Path(data), resume="--resume" in flags, real="--real" in flags))
