"""Scripts as tasks of a real Ray cluster of two machines (`MLE_STAR_SOAK`): processes with folders of their own."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from mle_star.errors import ConfigError
from mle_star.execution import LocalExecutor, detect_gpu_info
from mle_star.execution.executors import Queue
from mle_star.integrations.remote import RemoteExecutor
from mle_star.models import PipelineConfig, TaskDescription
from mle_star.orchestrator import run_pipeline
from mle_star.run.context import Executor
from mle_star.run.events import Notice, ScriptFinished
from mle_star.testing.executor import ExecutorContract, heard
from tests.execution.conftest import request_on
from tests.pipeline.conftest import events, settings, story
from tests.pipeline.mind import Mind, MindAgents, fenced, script

ray: Any = pytest.importorskip("ray")
from ray import exceptions  # noqa: E402

from mle_star.integrations.cluster import (  # noqa: E402
    Mailbox,
    RayCarrier,
    Shares,
    Stoppable,
    _until_done,
    first_line,
    open_executor,
)  # fmt: skip
from mle_star.integrations.hosts import can_host  # noqa: E402
from tests.execution.machines import SMALL  # noqa: E402

CONFIG = PipelineConfig(script_cpus=1)


def ray_executor(cluster: dict[str, Any]) -> Iterator[RemoteExecutor]:
    carrier = RayCarrier(CONFIG, Shares.of(CONFIG))
    yield RemoteExecutor(CONFIG, carrier)
    carrier.close()


executor = pytest.fixture(ray_executor)


class TestRayExecutor(ExecutorContract):
    """The same as for scripts of this machine."""

    @pytest.fixture
    def executor(self, request: pytest.FixtureRequest) -> Iterator[Executor]:
        yield from ray_executor(request.getfixturevalue("cluster"))


async def test_scripts_have_a_share_elsewhere_and_give_it_back(executor: RemoteExecutor, tmp_path: Path) -> None:
    assert executor.announce().slots == 2
    log = tmp_path / "out.log"
    request = request_on(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(600)", output_file=str(log))
    task = asyncio.create_task(executor.run(request))
    await asyncio.wait_for(heard(log, "ready"), 240)  # it comes while the script still runs
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    code = "import os\nprint(os.getcwd(), os.environ['OMP_NUM_THREADS'], repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    raw = await executor.run(request_on(tmp_path, code))
    assert raw.exit_code == 0, raw.stderr
    place, threads, gpus = raw.stdout.split()
    assert str(tmp_path) not in place and (threads, gpus) == ("1", "''")
    assert raw.isolation.sandbox != "" and raw.machine and not raw.reruns


CLIENT = """
import asyncio, sys
from pathlib import Path
from mle_star.integrations.cluster import open_executor
from tests.execution.conftest import request_on
from tests.execution.test_cluster import CONFIG

async def main():
    code = "open('final/submission.csv', 'w').write(open('input/a.csv').read()); print('there')"
    async with open_executor(CONFIG, sys.argv[1]) as executor:
        raw = await executor.run(request_on(Path(sys.argv[2]), code, output_file=sys.argv[2] + "/log"))
        print(executor.announce().slots, raw.stdout.strip(), raw.machine, raw.isolation.sandbox)

asyncio.run(main())
"""


def test_a_process_outside_reaches_the_cluster_through_its_client_port(cluster: dict[str, Any], tmp_path: Path) -> None:
    words = [sys.executable, "-c", CLIENT, cluster["client"], str(tmp_path)]
    root = Path(__file__).parents[2]
    for _ in range(4):  # Ray gives the process that serves a client half a minute to start
        done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=400, check=False)
        if "Starting Ray client server failed" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    slots, output, machine, sandbox = done.stdout.split()
    assert int(slots) >= 1 and output == "there" and machine and sandbox != "none"
    assert (tmp_path / "work" / "final" / "submission.csv").read_text() == "a"
    assert (tmp_path / "log").read_text() == "there\n"


class Lingering(Mind):
    """A mind whose scripts say where they are, and come to no end on one machine."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def script(self, level: float, note: str) -> str:
        stay = f"import os, time\nprint('at', os.getcwd(), flush=True)\nwhile {self.folder!r} in os.getcwd():\n"
        return fenced(f"{stay}    time.sleep(0.1)\n{script(level, note=note)}")


async def test_a_machine_that_dies_in_the_middle_of_a_run_changes_neither_result_nor_cost(
    executor: RemoteExecutor, cluster: dict[str, Any], task: TaskDescription, tmp_path: Path
) -> None:
    doomed, machine = cluster["machines"].popitem()
    config, logs = settings(K=1, R=1), tmp_path / "disturbed" / "logs"

    async def kill_once_it_is_at_work() -> None:
        while not any(doomed in log.read_text(errors="replace") for log in logs.glob("*")):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster["cluster"].remove_node, machine, allow_graceful=False)

    calls, stories = list[int](), list[dict[str, Any]]()
    killing = asyncio.create_task(kill_once_it_is_at_work())
    for name, used in (("disturbed", executor), ("undisturbed", LocalExecutor(config))):
        agents = MindAgents(Lingering(doomed))
        folder = tmp_path / name
        result = await run_pipeline(task, config, run_dir=folder, agents=agents, executor=used, console=False)
        calls.append(len(agents.calls))
        stories.append(story(result))
        killing.cancel()
    assert stories[0] == stories[1] and calls[0] == calls[1]
    ran = events(tmp_path / "disturbed", ScriptFinished)
    assert [event.result.reruns for event in ran if event.result.reruns] == [1]
    assert any("the machine was lost" in log.read_text() for log in logs.glob("*"))
    assert any("ran again" in event.message for event in events(tmp_path / "disturbed", Notice))


async def test_a_run_that_is_lost_holds_no_place_and_waits_for_none() -> None:
    places = Queue(2)
    await places.take("a", "a1")
    await places.take("a", "a2")
    waiting = [asyncio.create_task(places.take(run, ticket)) for run, ticket in (("a", "a3"), ("b", "b1"), ("b", "b2"))]
    await asyncio.sleep(0)
    await places.leave("a")
    await asyncio.wait_for(asyncio.gather(*waiting), 120)
    late = asyncio.create_task(places.take("c", "c1"))
    await places.give("b1")
    await asyncio.wait_for(late, 120)


async def test_output_comes_in_order_until_it_is_closed_and_what_comes_later_is_kept_by_nobody() -> None:
    box = Mailbox()
    waiting = asyncio.create_task(box.take("a"))
    await asyncio.sleep(0)
    for piece in (b"1", b"2", None):
        await box.put("a", piece)
    assert await waiting == ([b"1", b"2"], True)
    waiting = asyncio.create_task(box.take("b"))
    await asyncio.sleep(0)
    await box.close("b")
    assert await waiting == ([], True)
    for name in ("b", "c"):
        await box.close(name)
        await box.put(name, b"late")
    await box.put("d", b"3")
    assert await box.take("d") == ([b"3"], False) and list(box._boxes) == ["a", "d"]


def test_work_is_done_in_a_thread_beside_its_output_and_can_be_stopped_at_any_time(tmp_path: Path) -> None:
    async def work() -> str:
        (tmp_path / "log").write_bytes(b"first")
        await asyncio.sleep(0.7)
        (tmp_path / "log").write_bytes(b"first and last")
        return "done"

    def send(piece: bytes | None) -> None:
        sent.append(piece)
        if piece is None:
            raise exceptions.RayError  # there is no cluster to take it, which is no reason to fail

    sent, until_done = list[bytes | None](), cast(Any, _until_done)
    (tmp_path / "log").touch()
    with (tmp_path / "log").open("rb") as output:
        assert until_done(work(), output, send) == "done"
    assert sent == [b"first", b" and last", None]
    early, late = Stoppable(), Stoppable()
    early.stop()
    with pytest.raises(asyncio.CancelledError):
        early.run(Future[None]())  # type: ignore[arg-type]
    assert late.run(asyncio.sleep(0, "done")) == "done"
    late.stop()


def test_an_error_of_the_cluster_is_told_in_one_line_and_a_host_must_see_folder_and_data(tmp_path: Path) -> None:
    task = exceptions.RayTaskError("f", "trace\n  more\nValueError: no\n", ValueError("no"))
    assert [first_line(one) for one in (task, ValueError("  a\nb"), ValueError())] == [
        "ValueError: no",
        "a",
        "ValueError",
    ]
    (tmp_path / "sign").touch()
    data, offline = (str(tmp_path),), PipelineConfig(model="offline")
    cases = [
        (offline, "sign", data),
        (offline, "none", data),
        (offline, "sign", (*data, "/gone")),
        (CONFIG, "sign", data),
    ]
    answers = [can_host(config, str(tmp_path / sign), folders) for config, sign, folders in cases]
    assert answers == [True, False, False, False]


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
def test_scripts_take_a_share(machines: Machines, settings: dict[str, Any], cpus: int, gpus: float, slots: int) -> None:
    shares = Shares.among(PipelineConfig(num_parallel_solutions=2, **settings), machines)
    assert (shares.cpus, shares.gpus, shares.slots) == (cpus, gpus, slots)
    assert shares.hardware["gpu_count"] == (1 if gpus else 0)


def test_scripts_are_told_of_the_least_of_the_machines_that_may_be_theirs() -> None:
    shares = Shares.among(PipelineConfig(script_cpus=4), [{"CPU": 16, "GPU": 1}])
    begun = {"cuda_available": True, "gpu_count": 1, "gpu_names": ["GPU"], "script_cores": 4}
    shares.learn([])
    assert shares.hardware == begun
    least = {"cpu_cores": 16, "memory_gb": 64, "script_memory_gb": 30}
    shares.learn([{**least, "cards": []}])
    assert shares.hardware == {**begun, **least}, "GPUs that are only said to be there have no memory"
    two = [("A100", "81920 MiB")] * 2
    least = {"cpu_cores": 8, "memory_gb": 32, "script_memory_gb": 7}
    shares.learn([{**least, "cpu_cores": 9, "cards": two}, {**least, "memory_gb": 99, "cards": [("T4", "15360 MiB")]}])
    assert shares.hardware == {**begun, **least, "gpu_names": ["T4"], "gpu_memory": ["15360 MiB"]}


@pytest.mark.parametrize("settings", [{"script_cpus": 9}, {"script_gpus": 1}, {"script_memory_gb": 99}])
def test_what_no_machine_could_run_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="set script_cpus, script_gpus or script_memory_gb lower"):
        Shares.among(PipelineConfig(**settings), [{"CPU": 8, "memory": 1e9}])
    with pytest.raises(ConfigError, match="no machine with a core"):
        Shares.among(PipelineConfig(), [{"CPU": 0}])


async def test_an_open_connection_stays_and_of_gpus_only_claimed_nothing_is_told(cluster: dict[str, Any]) -> None:
    open_it: Callable[..., Any] = open_executor
    async with open_it(CONFIG, "") as executor:
        assert isinstance(executor, RemoteExecutor)
        found = executor.announce().machines or {}
        assert found["cpu_cores"] == 1 and found["script_memory_gb"] > 0
    assert ray.is_initialized()
    machine = cluster["cluster"].add_node(num_cpus=1, num_gpus=1, object_store_memory=SMALL)
    try:
        async with open_it(CONFIG, "") as executor:
            found, slots = executor.announce().machines, executor.announce().slots
            assert found["gpu_count"] == 1 and slots == 1
            assert ("gpu_memory" in found) == bool(detect_gpu_info().get("gpu_memory"))
    finally:
        cluster["cluster"].remove_node(machine)
