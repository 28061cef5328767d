"""Scripts as tasks and runs as actors of a real Ray cluster of two machines (`MLE_STAR_SOAK`), which are processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mle_star import ConfigError, FinalResult, PipelineConfig, TaskDescription, run_pipeline
from mle_star.execution import LocalExecutor, detect_gpu_info
from mle_star.execution.executors import Queue
from mle_star.integrations.campaign import Campaign
from mle_star.integrations.remote import RemoteExecutor
from mle_star.run.context import Executor
from mle_star.run.events import AgentFinished, Notice, RunFinished, RunResumed, ScriptFinished
from mle_star.testing.executor import ExecutorContract
from tests.execution.conftest import request_on
from tests.pipeline.conftest import events, settings, story
from tests.pipeline.mind import Mind, MindAgents, fenced, script

ray: Any = pytest.importorskip("ray")
from ray import exceptions  # noqa: E402

from mle_star.integrations import cluster as rc  # noqa: E402
from mle_star.integrations.hosts import Hosts, RunHost, SharedQueue, can_host, find_hosts  # noqa: E402
from tests.execution.machines import SMALL  # noqa: E402

CONFIG = PipelineConfig(script_cpus=1)


def ray_executor(cluster: dict[str, Any]) -> Iterator[RemoteExecutor]:
    carrier = rc.RayCarrier(rc.Shares.of(CONFIG))
    yield RemoteExecutor(CONFIG, carrier)
    carrier.close()


executor = pytest.fixture(ray_executor)


class TestRayExecutor(ExecutorContract):
    """The same as for scripts of this machine."""

    @pytest.fixture
    def executor(self, request: pytest.FixtureRequest) -> Iterator[Executor]:
        yield from ray_executor(request.getfixturevalue("cluster"))


async def test_scripts_have_a_share_elsewhere(executor: RemoteExecutor, tmp_path: Path) -> None:
    assert executor.announce().slots == 2
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
    config, logs = settings(K=1, R=1, scoring="self_reported", diversity=()), tmp_path / "disturbed" / "logs"

    async def kill_once_it_is_at_work() -> None:
        while not any(doomed in log.read_text(errors="replace") for log in logs.glob("*")):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster["cluster"].remove_node, machine, allow_graceful=False)

    calls, stories = list[int](), list[dict[str, Any]]()
    killing = asyncio.create_task(kill_once_it_is_at_work())
    for name, used in (("disturbed", executor), ("undisturbed", LocalExecutor(config))):
        agents = MindAgents(Lingering(doomed))
        result = await run_pipeline(task, config, run_dir=tmp_path / name, agents=agents, executor=used, console=False)
        calls.append(len(agents.calls))
        stories.append(story(result))
        killing.cancel()
    assert stories[0] == stories[1] and calls[0] == calls[1]
    ran = events(tmp_path / "disturbed", ScriptFinished)
    assert [event.result.reruns for event in ran if event.result.reruns] == [1]
    assert any("the machine was lost" in log.read_text() for log in logs.glob("*"))
    assert any("ran again" in event.message for event in events(tmp_path / "disturbed", Notice))


async def test_a_task_has_ended_once_it_has_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    RunHost(str(tmp_path))
    assert Path.cwd() == tmp_path, "files that settings name are named from there"
    monkeypatch.setattr("ray._private.auto_init_hook.enable_auto_connect", False)  # there is no cluster to cancel it
    done, going = Future[None](), Future[None]()
    done.set_result(None)
    assert [await rc.ended(SimpleNamespace(future=lambda: one), 0.1) for one in (done, going)] == [True, False]  # noqa: B023
    going.set_result(None)


async def test_a_run_that_is_lost_holds_no_place_and_waits_for_none(caplog: pytest.LogCaptureFixture) -> None:
    def lost(*_: str) -> None:
        raise exceptions.RayError

    await SharedQueue(SimpleNamespace(take=SimpleNamespace(remote=lost))).take("a", "a1")
    assert caplog.messages == ["the queue of the campaign is lost: "]
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
    box = rc.Mailbox()
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


async def test_output_is_sent_while_work_is_done_and_its_end_whatever_comes_of_it(tmp_path: Path) -> None:
    def send(piece: bytes | None) -> None:
        sent.append(piece)
        if piece is None:
            raise exceptions.RayError  # there is no cluster to take it, which is no reason to fail

    sent, log = list[bytes | None](), tmp_path / "log"
    log.write_bytes(b"first")
    with log.open("rb") as output, pytest.raises(OSError, match="no"), rc.sent_meanwhile(output, send):
        await asyncio.sleep(0.7)
        log.write_bytes(b"first and last")
        raise OSError("no")
    assert sent == [b"first", b" and last", None]


def test_an_error_of_the_cluster_is_told_in_one_line_and_a_host_must_see_folder_and_data(tmp_path: Path) -> None:
    task = exceptions.RayTaskError("f", "trace\n  more\nValueError: no\n", ValueError("no"))
    found = [rc.first_line(one) for one in (task, ValueError("  a\nb"), ValueError())]
    assert found == ["ValueError: no", "a", "ValueError"]
    (tmp_path / "sign").touch()
    data, offline = (str(tmp_path),), PipelineConfig(model="offline")
    gone = (*data, "/gone")
    cases = [(offline, "sign", data), (offline, "none", data), (offline, "sign", gone), (CONFIG, "sign", data)]
    answers = [can_host(config, str(tmp_path / sign), folders) for config, sign, folders in cases]
    assert answers == [True, False, False, False]


@pytest.mark.parametrize(
    ("machines", "settings", "cpus", "gpus", "slots"),
    [
        ([{"CPU": 16}], {}, 8, 0.0, 2),
        ([{"CPU": 16}, {"CPU": 16}], {}, 16, 0.0, 2),
        ([{"CPU": 16}, {"CPU": 0}], {"script_cpus": 4}, 4, 0.0, 4),
        ([{"CPU": 16}, {"CPU": 0}], {}, 8, 0.0, 2),
        ([{"CPU": 8, "GPU": 2}, {"CPU": 8}], {}, 4, 1.0, 2),
        ([{"CPU": 8, "GPU": 1}], {"script_gpus": 0.5, "script_cpus": 1}, 1, 0.5, 2),
        ([{"CPU": 8, "GPU": 4}], {"script_gpus": 0}, 4, 0.0, 2),
        ([{"CPU": 8, "memory": 10e9}], {"script_memory_gb": 4, "script_cpus": 1}, 1, 0.0, 2),
    ],
)
def test_scripts_take_a_share(machines: Any, settings: dict[str, Any], cpus: int, gpus: float, slots: int) -> None:
    shares = rc.Shares.among(PipelineConfig(num_parallel_solutions=2, **settings), machines)
    assert (shares.cpus, shares.gpus, shares.slots) == (cpus, gpus, slots)
    assert shares.hardware["gpu_count"] == (1 if gpus else 0)


def test_scripts_are_told_of_the_least_of_the_machines_that_may_be_theirs() -> None:
    shares = rc.Shares.among(PipelineConfig(script_cpus=4), [{"CPU": 16, "GPU": 1}])
    begun = {"cuda_available": True, "gpu_count": 1, "gpu_names": ["GPU"], "script_cores": 4}
    shares.learn([])
    assert shares.hardware == begun
    least = {"cpu_cores": 16, "memory_gb": 64, "script_memory_gb": 30}
    shares.learn([{**least, "cards": []}])
    assert shares.hardware == {**begun, **least}, "GPUs that are only said to be there have no memory"
    two, least = [("A100", "81920 MiB")] * 2, {"cpu_cores": 8, "memory_gb": 32, "script_memory_gb": 7}
    shares.learn([{**least, "cpu_cores": 9, "cards": two}, {**least, "memory_gb": 99, "cards": [("T4", "15360 MiB")]}])
    assert shares.hardware == {**begun, **least, "gpu_names": ["T4"], "gpu_memory": ["15360 MiB"]}


@pytest.mark.parametrize("settings", [{"script_cpus": 9}, {"script_gpus": 1}, {"script_memory_gb": 99}])
def test_what_no_machine_could_run_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="set script_cpus, script_gpus or script_memory_gb lower"):
        rc.Shares.among(PipelineConfig(**settings), [{"CPU": 8, "memory": 1e9}])
    with pytest.raises(ConfigError, match="no machine with a core"):
        rc.Shares.among(PipelineConfig(), [{"CPU": 0}])


async def test_an_open_connection_stays_and_of_gpus_only_claimed_nothing_is_told(cluster: dict[str, Any]) -> None:
    open_it: Callable[..., Any] = rc.open_executor
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


HOSTED = settings(M=1, K=1, L=1, R=1, executor="ray", model="offline", script_cpus=1, scoring="self_reported")


async def scripted(task: TaskDescription, config: PipelineConfig, **options: Any) -> FinalResult:
    """The pipeline with a scripted mind, which does what the first words of the task's description say."""
    run_dir, calls = Path(options["run_dir"]), 0
    with run_dir.with_suffix(".hosts").open("a") as stream:
        stream.write(f"{os.getpid()}\n")

    async def before(label: str, agent: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 5 and len(hosts(run_dir)) == 1:
            if task.description.startswith("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            if task.description.startswith("wait"):
                run_dir.with_suffix(".waits").touch()
                await asyncio.Event().wait()

    return await run_pipeline(task, config, agents=MindAgents(before=before), **options)


def hosts(run_dir: Path) -> list[int]:
    return [int(line) for line in run_dir.with_suffix(".hosts").read_text().split()]


def campaign_of(folder: Path, task: TaskDescription, *does: str) -> Campaign:
    tasks = [
        task.model_copy(update={"competition_id": f"{word}-{number}", "description": f"{word} {task.description}"})
        for number, word in enumerate(does)
    ]
    return Campaign.create(folder, tasks, 1, HOSTED, at_once=len(tasks))


@pytest.mark.usefixtures("cluster")
async def test_each_run_is_an_actor_and_a_lost_one_costs_no_more(task: TaskDescription, tmp_path: Path) -> None:
    entries = await campaign_of(tmp_path / "c", task, "go", "die").run(scripted)
    assert [(entry.state, entry.message) for entry in entries] == [("finished", "")] * 2
    calm, lost = (tmp_path / "c" / entry.folder for entry in entries)
    assert (len(hosts(calm)), len(hosts(lost))) == (1, 2) and len({os.getpid(), *hosts(calm), *hosts(lost)}) == 4
    assert len(events(lost, RunResumed)) == 1 and all(event.result.machine for event in events(calm, ScriptFinished))
    assert len(events(calm, AgentFinished)) == len(events(lost, AgentFinished))
    results = [FinalResult.model_validate_json((folder / "result.json").read_text()) for folder in (calm, lost)]
    stories = [{name: value for name, value in story(one).items() if name != "task"} for one in results]
    assert stories[0] == stories[1] and sorted(path.name for path in (tmp_path / "c").glob(".sign*")) == []


@pytest.mark.usefixtures("cluster")
async def test_a_stopped_campaign_stops_its_actors_and_goes_on_later(task: TaskDescription, tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path / "c", task, "wait")
    running = asyncio.create_task(campaign.run(scripted))
    run_dir = tmp_path / "c" / campaign.entries[0].folder
    while not run_dir.with_suffix(".waits").exists():
        assert not running.done()
        await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [event.state for event in events(run_dir, RunFinished)] == ["interrupted"]
    assert [entry.state for entry in campaign.entries] == ["waiting"]
    again = await Campaign.open(tmp_path / "c").run(scripted)
    assert [entry.state for entry in again] == ["finished"] and len(hosts(run_dir)) == 2


async def test_a_machine_that_joins_the_cluster_later_gets_runs_too(cluster: dict[str, Any], tmp_path: Path) -> None:
    hosts = Hosts(scripted, partial(find_hosts, HOSTED, tmp_path, (str(tmp_path),)), rc.Shares.of(HOSTED), None)
    assert [len(await hosts.look_around()) for _ in range(2)] == [len(rc.living_machines()), 0]
    joined = cluster["cluster"].add_node(num_cpus=1, object_store_memory=SMALL)
    try:
        twice = await asyncio.gather(hosts.look_around(), hosts.look_around())
        assert list(twice) == [[joined.node_id], []]
    finally:
        cluster["cluster"].remove_node(joined)
