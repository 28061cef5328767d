"""How much of the machine one script may use."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from mle_star.execution.environment import concurrent_scripts, usable_cores
from mle_star.models import PipelineConfig

GIB = 1024**3
MAX_OUTPUT_BYTES = 100 * 1024 * 1024
"""What is kept on disk of each stream."""


@dataclass(frozen=True)
class Limits:
    """The limits of one script besides its time. Output beyond `output_bytes` is dropped, not a reason to stop."""

    memory_bytes: int
    tasks: int = 1024
    file_bytes: int = 8 * GIB
    open_files: int = 4096
    disk_bytes: int = 50 * 10**9
    files: int = 500_000
    output_bytes: int = MAX_OUTPUT_BYTES
    head_bytes: int = 4 * 1024 * 1024
    tail_bytes: int = 1024 * 1024
    grace_seconds: float = 5.0
    hurry_seconds: float = 0.5

    @classmethod
    def of(cls, config: PipelineConfig) -> Limits:
        """The limits that a configuration and this machine ask for."""
        if config.script_memory_gb is not None:
            memory = int(config.script_memory_gb * 1e9)
        else:
            memory = int(0.9 * machine_memory() / concurrent_scripts(config))
        return cls(
            memory_bytes=memory,
            tasks=max(1024, 64 * usable_cores()),
            disk_bytes=int(config.script_disk_gb * 1e9),
            files=config.script_files,
        )


def machine_memory() -> int:
    """The memory of this machine, or of the container or the job that this process lives in."""
    total = int(psutil.virtual_memory().total)
    for path in memory_files(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")):
        with suppress(OSError, ValueError):
            total = min(total, int(path.read_text()))
    return total


def memory_files(groups: Path, own: Path) -> list[Path]:
    """Where limits on memory may stand: at the top, and at every step down to the group of this process."""
    steps: tuple[str, ...] = ()
    with suppress(OSError, ValueError):
        paths = [line.split(":", 2)[2] for line in own.read_text().splitlines() if line.startswith("0:")]
        steps = next((parts for path in paths if ".." not in (parts := Path(path.lstrip("/")).parts)), ())
    return [groups.joinpath(*steps[:count], "memory.max") for count in range(len(steps) + 1)]
