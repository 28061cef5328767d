"""Which GPUs there are, and who gets them. `python -m mle_star.execution.gpu` prints what was found."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import Any

from mle_star.execution.environment import concurrent_scripts
from mle_star.execution.programs import ask_program, find_program
from mle_star.models import PipelineConfig

QUERY_SECONDS = 5


def detect_gpu_info() -> dict[str, Any]:
    """Ask `nvidia-smi`; any trouble means that there is no GPU. Never raises."""
    nothing: dict[str, Any] = {"cuda_available": False, "gpu_count": 0, "gpu_names": []}
    program = find_program("nvidia-smi")
    if program is None:
        return nothing
    try:
        answer = ask_program([program, "--query-gpu=name,memory.total", "--format=csv,noheader"], QUERY_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return nothing
    lines = [line.strip() for line in answer.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return nothing
    told = [[part.strip() for part in line.partition(",")[::2]] for line in lines]
    names, memory = [name for name, _ in told], [size for _, size in told if size]
    found = {"cuda_available": True, "gpu_count": len(names), "gpu_names": names}
    return {**found, "gpu_memory": memory} if memory else found


detect_gpu = detect_gpu_info


def visible_gpus(gpu_count: int) -> list[str]:
    """The GPUs that this process was given: all, or those that its own CUDA_VISIBLE_DEVICES names, in its own words.

    A word is an index, or the id of a GPU or of a slice of one; as CUDA has it, a word that is neither ends the list.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [str(index) for index in range(gpu_count)]

    def is_gpu(word: str) -> bool:
        return int(word) < gpu_count if word.isdecimal() else gpu_count > 0 and word.startswith(("GPU-", "MIG-"))

    return list(itertools.takewhile(is_gpu, (word.strip() for word in given.split(","))))


def gpus_for_slot(gpus: list[str], slot: int, config: PipelineConfig) -> list[str] | None:
    """A slot's own GPUs: as many as `script_gpus` says, a fraction being a share of one, else an even share.

    Where there are too few for that, one script runs at a time, and None leaves every GPU visible to it.
    """
    share = config.script_gpus
    if share is not None and gpus:
        width = max(1, int(share))
        first = int(slot * share) % len(gpus) // width * width
        return gpus[first : first + width] if share else []
    sharers = concurrent_scripts(config)
    if sharers < 2 or len(gpus) < sharers:
        return None
    return gpus[slot % sharers :: sharers]


def script_slots(gpus: list[str], config: PipelineConfig) -> int:
    """How many scripts may really run at once: as many as the GPUs have room for."""
    wanted, share = concurrent_scripts(config), config.script_gpus
    if share is not None and gpus:
        return max(1, min(wanted, int(len(gpus) / share))) if share else wanted
    return 1 if 0 < len(gpus) < wanted else wanted


if __name__ == "__main__":
    sys.stdout.write(json.dumps(detect_gpu_info(), indent=2) + "\n")
