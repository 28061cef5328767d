"""Which GPUs there are, and who gets them. `python -m mle_star.execution.gpu` prints what was found."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from mle_star.execution.environment import concurrent_scripts
from mle_star.models import PipelineConfig

QUERY_SECONDS = 5


def detect_gpu_info() -> dict[str, Any]:
    """Ask `nvidia-smi`; any trouble means that there is no GPU. Never raises."""
    nothing: dict[str, Any] = {"cuda_available": False, "gpu_count": 0, "gpu_names": []}
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=QUERY_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return nothing
    names = [line.strip() for line in answer.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    if not names:
        return nothing
    return {"cuda_available": True, "gpu_count": len(names), "gpu_names": names}


detect_gpu = detect_gpu_info


def gpus_for_path(gpu_count: int, path: int | None, config: PipelineConfig) -> list[int] | None:
    """A path's own GPUs when there are enough for all that run at once; None leaves every GPU visible."""
    sharers = concurrent_scripts(config)
    if path is None or sharers < 2 or gpu_count < sharers:
        return None
    return list(range(path % sharers, gpu_count, sharers))


def script_slots(gpu_count: int, config: PipelineConfig) -> int:
    """How many scripts may really run at once: one, when there are GPUs but fewer than scripts."""
    wanted = concurrent_scripts(config)
    return 1 if 0 < gpu_count < wanted else wanted


if __name__ == "__main__":
    sys.stdout.write(json.dumps(detect_gpu_info(), indent=2) + "\n")
