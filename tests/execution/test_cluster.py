"""Scripts as tasks of a real Ray cluster of two machines, which are processes here with folders of their own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mle_star.errors import ConfigError
from mle_star.execution.remote import RemoteExecutor
from mle_star.models import PipelineConfig
from mle_star.run.context import Executor, ScriptRequest
from mle_star.testing.executor import PLAIN_ENV, ExecutorContract, heard

ray: Any = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

from mle_star.execution.cluster import RayCarrier, Shares, open_executor  # noqa: E402

CONFIG = PipelineConfig(script_cpus=1)
SMALL: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A head without cores of its own, and two machines with one each, by their folders."""
    if not os.environ.get("MLE_STAR_SOAK"):
        pytest.skip("a cluster takes a while to start: make soak")
    made: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    machines = {}
    for name in ("one", "two"):
        folder = str(tmp_path_factory.mktemp(name))
        more = {key: value for key, value in SMALL.items() if key != "include_dashboard"}
        machines[folder] = made.add_node(num_cpus=1, env_vars={"MLE_STAR_NODE_DIR": folder}, **more)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield {"cluster": made, "machines": machines}
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def executor(cluster: dict[str, Any]) -> Iterator[RemoteExecutor]:
    carrier = RayCarrier(CONFIG, Shares.of(CONFIG))
    yield RemoteExecutor(CONFIG, carrier)
    carrier.close()


class TestRayExecutor(ExecutorContract):
    """The same as for scripts of this machine."""

    @pytest.fixture
    def executor(self, cluster: dict[str, Any]) -> Iterator[Executor]:
        carrier = RayCarrier(CONFIG, Shares.of(CONFIG))
        yield RemoteExecutor(CONFIG, carrier)
        carrier.close()


def request_on(folder: Path, code: str, **fields: Any) -> ScriptRequest:
    for name in ("data", "work/input", "work/final"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "data" / "a.csv").write_text("a")
    (folder / "work" / "solution.py").write_text(code)
    return ScriptRequest(
        script_path=str(folder / "work" / "solution.py"), working_dir=str(folder / "work"), timeout_seconds=120,
        env=PLAIN_ENV, input_dir=str(folder / "data"), **fields,
    )  # fmt: skip


async def test_scripts_fill_the_cluster_and_hand_over_what_they_made(executor: RemoteExecutor, tmp_path: Path) -> None:
    code = (
        "import os\nprint(os.getcwd(), os.environ['OMP_NUM_THREADS'], repr(os.environ['CUDA_VISIBLE_DEVICES']))\n"
        "open('final/submission.csv', 'w').write(open('input/a.csv').read())"
    )
    assert executor.slots == 2
    raw = await executor.run(request_on(tmp_path, code))
    assert raw.exit_code == 0, raw.stderr
    place, threads, gpus = raw.stdout.split()
    assert str(tmp_path) not in place and (threads, gpus) == ("1", "''")
    assert (tmp_path / "work" / "final" / "submission.csv").read_text() == "a"
    assert raw.isolation.sandbox != "" and raw.machine and not raw.reruns
    failed = await executor.run(request_on(tmp_path, "raise SystemExit(3)"))
    assert failed.exit_code == 3


async def test_a_cancelled_script_ends_on_its_machine(executor: RemoteExecutor, tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    request = request_on(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(600)", output_file=str(log))
    task = asyncio.create_task(executor.run(request))
    await asyncio.wait_for(heard(log, "ready"), 100)  # it comes while the script still runs
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    raw = await executor.run(request_on(tmp_path, "print('the slot is free')"))
    assert raw.stdout == "the slot is free\n"


async def test_a_script_whose_machine_dies_runs_again_elsewhere(
    executor: RemoteExecutor, cluster: dict[str, Any], tmp_path: Path
) -> None:
    log, end = tmp_path / "out.log", time.time() + 15
    code = (
        f"import os, time\nprint('at', os.getcwd(), '!', flush=True)\nwhile time.time() < {end}:\n    time.sleep(0.1)\n"
    )
    task = asyncio.create_task(executor.run(request_on(tmp_path, code + "print('done')", output_file=str(log))))
    await asyncio.wait_for(heard(log, "!"), 100)
    folder = next(folder for folder in cluster["machines"] if folder in log.read_text())
    cluster["cluster"].remove_node(cluster["machines"].pop(folder), allow_graceful=False)
    raw = await asyncio.wait_for(task, 200)
    assert raw.exit_code == 0 and raw.stdout.endswith("done\n") and raw.reruns == 1
    assert folder not in raw.stdout and "the machine was lost" in log.read_text()


Machines = list[dict[str, float]]


@pytest.mark.parametrize(
    ("machines", "settings", "cpus", "gpus", "slots"),
    [
        ([{"CPU": 16}], {}, 8, 0.0, 2),
        ([{"CPU": 16}, {"CPU": 16}], {}, 16, 0.0, 2),
        ([{"CPU": 16}, {"CPU": 0}], {"script_cpus": 4}, 4, 0.0, 4),
        ([{"CPU": 8, "GPU": 2}, {"CPU": 8}], {}, 4, 1.0, 2),
        ([{"CPU": 8, "GPU": 1}], {"script_gpus": 0.5, "script_cpus": 1}, 1, 0.5, 2),
        ([{"CPU": 8, "GPU": 4}], {"script_gpus": 0}, 4, 0.0, 2),
        ([{"CPU": 8, "memory": 10e9}], {"script_memory_gb": 4, "script_cpus": 1}, 1, 0.0, 2),
    ],
)
def test_a_script_takes_its_share_of_the_cluster(
    machines: Machines, settings: dict[str, Any], cpus: int, gpus: float, slots: int
) -> None:
    shares = Shares.among(PipelineConfig(num_parallel_solutions=2, **settings), machines)
    assert (shares.cpus, shares.gpus, shares.slots) == (cpus, gpus, slots)
    assert shares.hardware["gpu_count"] == (1 if gpus else 0)


@pytest.mark.parametrize("settings", [{"script_cpus": 9}, {"script_gpus": 1}, {"script_memory_gb": 99}])
def test_what_no_machine_could_run_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="set script_cpus, script_gpus or script_memory_gb lower"):
        Shares.among(PipelineConfig(**settings), [{"CPU": 8, "memory": 1e9}])
    with pytest.raises(ConfigError, match="no machine with a core"):
        Shares.among(PipelineConfig(), [{"CPU": 0}])


async def test_an_open_connection_is_used_and_left_open(cluster: dict[str, Any]) -> None:
    open_it: Callable[..., Any] = open_executor
    async with open_it(CONFIG, "") as executor:
        assert isinstance(executor, RemoteExecutor)
    assert ray.is_initialized()
