"""What Ray costs a script: the same ten seconds as a process of this machine and as a task of a local cluster.

`python benchmarks/ray_overhead.py [--seconds 10] [--rounds 5]`; exit code 1 when the target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from mle_star.execution import LocalExecutor
from mle_star.execution.environment import script_environment
from mle_star.integrations.cluster import open_executor
from mle_star.models import PipelineConfig
from mle_star.run.context import Executor, ScriptRequest

CONFIG = PipelineConfig(num_parallel_solutions=1, script_cpus=1)
MOST_SECONDS = 0.5
SCRIPT = (
    "import time\nend = time.perf_counter() + {seconds}\nwhile time.perf_counter() < end:\n    pass\n"
    "open('final/submission.csv', 'w').write(open('input/train.csv').read())\n"
    "print('Final Validation Performance: 0.5')\n"
)


async def seconds_of(executor: Executor, request: ScriptRequest) -> float:
    started = time.perf_counter()
    raw = await executor.run(request)
    assert raw.exit_code == 0 and (Path(request.working_dir) / "final" / "submission.csv").exists(), raw.stderr
    return time.perf_counter() - started


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("data", "work/input", "work/final"):
            (folder / part).mkdir(parents=True)
        (folder / "data" / "train.csv").write_bytes(b"1234567\n" * 1_250_000)
        (folder / "work" / "solution.py").write_text(SCRIPT.format(seconds=words.seconds))
        request = ScriptRequest(
            script_path=str(folder / "work" / "solution.py"), working_dir=str(folder / "work"), timeout_seconds=300,
            env=script_environment(CONFIG), input_dir=str(folder / "data"),
        )  # fmt: skip
        times: dict[str, list[float]] = {"local": [], "ray": []}
        async with open_executor(CONFIG, "") as cluster:
            executors: dict[str, Executor] = {"local": LocalExecutor(CONFIG), "ray": cluster}
            first = {name: await seconds_of(executor, request) for name, executor in executors.items()}
            for _ in range(words.rounds):
                for name, executor in executors.items():
                    times[name].append(await seconds_of(executor, request))
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    print("first, with what happens once: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in first.items()))
    print(f"median of {words.rounds}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in medians.items()))
    overhead = medians["ray"] - medians["local"]
    met = overhead <= MOST_SECONDS
    print(f"overhead of Ray: {overhead:.2f} s, target {MOST_SECONDS} s: {'ok' if met else 'MISSED'}")
    return int(not met)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
