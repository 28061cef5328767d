"""How much of the machine one script may use."""

from __future__ import annotations

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
    """The memory of this machine, or of the container that this process lives in."""
    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    return total
