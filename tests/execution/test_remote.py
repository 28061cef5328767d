"""Scripts on machines that share no disk with the run: the contract, the journey of the data, and lost machines."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from mle_star.errors import ExecutionError
from mle_star.execution import Limits, LocalExecutor, debug_text, execute_in_run, link_input_data
from mle_star.execution.executors import Queue
from mle_star.execution.workspace import remove_entry
from mle_star.integrations.node import Node
from mle_star.integrations.remote import Delivery, MachineLost, Parcel, RemoteExecutor, collect, pack, put, unpack
from mle_star.models import ExecutionRawResult, PipelineConfig
from mle_star.run.context import Executor
from mle_star.run.events import Notice, ScriptFinished
from mle_star.testing.executor import ExecutorContract, heard
from tests.conftest import write_texts
from tests.execution.conftest import OpenRun, request_on, scored
from tests.execution.test_workspace import nest

CONFIG = PipelineConfig()
LIMITS = dataclasses.replace(Limits.of(CONFIG), grace_seconds=1.0)


class Elsewhere:
    """A carrier to machines that are folders here; it loses as many machines as it is told to."""

    def __init__(self, folder: Path, lost: int = 0, lost_on_the_way: int = 0) -> None:
        self.slots, self.hardware = 2, dict[str, Any]()
        self.nodes = [Node(folder / name, name) for name in ("one", "two")]
        self.turns = itertools.cycle(self.nodes)
        self.executor, self.lost, self.lost_on_the_way = LocalExecutor(CONFIG, limits=LIMITS), lost, lost_on_the_way
        self.sent: list[tuple[str, str, int]] = []
        self.ran: list[str] = []

    async def run(self, parcel: Parcel, hear: Callable[[bytes], None], machine: str | None) -> Delivery:
        if machine is None:
            machine = next(self.turns).machine
        node = next(node for node in self.nodes if node.machine == machine)
        if missing := node.missing(parcel.data):
            return Delivery(node.machine, missing=missing)
        self.ran.append(node.machine)
        if self.lost:
            self.lost -= 1
            hear(b"half a")
            raise MachineLost(f"{node.machine} is gone")
        log = node.folder / f"log-{len(self.ran)}"
        log.touch()
        with log.open("rb") as file:
            tail = asyncio.create_task(self._tail(file, hear))
            try:
                return await node.run(parcel, self.executor, log)
            finally:
                tail.cancel()
                hear(file.read())

    async def _tail(self, file: BinaryIO, hear: Callable[[bytes], None]) -> None:
        while True:
            hear(file.read())
            await asyncio.sleep(0.02)

    async def store(self, machine: str, digest: str, offset: int, chunk: bytes, last: bool) -> None:
        self.sent.append((machine, digest, len(chunk)))
        if self.lost_on_the_way:
            self.lost_on_the_way -= 1
            raise MachineLost(f"{machine} is gone")
        next(node for node in self.nodes if node.machine == machine).store(digest, "me", offset, chunk, last)


class TestRemoteExecutor(ExecutorContract):
    """The same as for scripts of this machine."""

    @pytest.fixture
    def executor(self, tmp_path: Path) -> Executor:
        return RemoteExecutor(CONFIG, Elsewhere(tmp_path / "elsewhere"))


async def test_each_file_goes_to_each_machine_once_however_many_scripts_want_it(tmp_path: Path) -> None:
    carrier = Elsewhere(tmp_path / "elsewhere")
    executor, request = RemoteExecutor(CONFIG, carrier), request_on(tmp_path)
    assert (executor.announce().slots, executor.announce().is_here) == (2, False)
    write_texts(tmp_path / "data", {"b.csv": "b", "same.csv": "a"})
    own = [request_on(tmp_path / number, input_dir=request.input_dir) for number in "1234"]
    results = await asyncio.gather(*map(executor.run, own))
    assert [raw.stdout for raw in results] == ["a\n"] * 4
    assert set(carrier.ran) == {"one", "two"} and {raw.machine for raw in results} == {"one", "two"}
    assert len(carrier.sent) == len(set(carrier.sent)) == 4, "two contents, two machines"
    (tmp_path / "data" / "a.csv").write_text("new")
    assert (await executor.run(request)).stdout == "new\n"
    assert len(carrier.sent) == 5
    (tmp_path / "data" / "a.csv").write_bytes(b"0123456789" * 4_000_000)
    size = "import os\nprint(os.path.getsize('input/a.csv'))"
    assert (await executor.run(request_on(tmp_path, size))).stdout == "40000000\n"
    assert [size for _, _, size in carrier.sent[5:]] == [1 << 24, 1 << 24, 40_000_000 - (1 << 25)], "piece by piece"


@pytest.mark.parametrize("linked", [False, True])
async def test_data_that_a_machine_sees_under_the_same_path_are_not_sent(linked: bool, tmp_path: Path) -> None:
    """A hidden entry among the data makes them be shown by links."""
    node, request = Node(tmp_path / "there", "one"), request_on(tmp_path)
    (tmp_path / "data" / "a.csv").write_text("shared")
    if linked:
        link_input_data(str(tmp_path / "data"), request.working_dir)
        request = request.model_copy(update={"input_dir": None})
    parcel = pack(request, CONFIG)
    delivery = await node.run(parcel, LocalExecutor(CONFIG), tmp_path / "log", shared_data=True)
    assert delivery.raw is not None and delivery.raw.stdout == "shared\n", delivery.raw
    assert not [path for name in ("files", "views") for path in (tmp_path / "there" / name).iterdir()]
    gone = dataclasses.replace(parcel, data_dir=str(tmp_path / "gone"))
    with pytest.raises(ExecutionError, match="the data folder is gone"):
        await node.run(gone, LocalExecutor(CONFIG), tmp_path / "log", shared_data=True)


def test_of_files_whose_sender_was_lost_or_that_change_on_their_way_nothing_stays(tmp_path: Path) -> None:
    node = Node(tmp_path, "one")
    files = node.folder / "files"
    with pytest.raises(ExecutionError, match="changed while it was sent"):
        node.store("0" * 64, "me", 0, b"something", True)
    assert not list(files.iterdir())
    for name, age in ((".old.sender", 7200), (".new.sender", 0)):
        (files / name).write_text("half")
        os.utime(files / name, (time.time() - age,) * 2)
    Node(tmp_path, "one")
    assert [path.name for path in files.iterdir()] == [".new.sender"]


def test_the_store_of_a_machine_is_its_user_s_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Node(tmp_path / "deep" / "store", "one").folder
    finally:
        os.umask(before)
    assert store.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(ExecutionError, match="is a link or a file: set MLE_STAR_NODE_DIR to"):
            Node(tmp_path / name, "one")
    for mode in (0o770, 0o707):
        store.chmod(mode)
        with pytest.raises(ExecutionError, match="written to by others: set MLE_STAR_NODE_DIR to"):
            Node(store, "one")
    store.chmod(0o755)
    assert Node(store, "one").missing([]) == ()
    if os.getuid() == 0:  # only root can give a folder away
        os.chown(store, 65533, 65533)
        with pytest.raises(ExecutionError, match=r"somebody else \(user 65533\): set MLE_STAR_NODE_DIR to"):
            Node(store, "one")


async def test_a_free_place_goes_to_the_run_that_has_had_fewest_scripts() -> None:
    turns, order, go_on = Queue(1), list[str](), asyncio.Event()

    async def script(run: str, name: str) -> None:
        async with turns.slot(run):
            order.append(name)
            await go_on.wait()

    names = [("ahead", "a1"), ("ahead", "a2"), ("ahead", "a3"), ("behind", "b1"), ("behind", "b2")]
    scripts = [asyncio.create_task(script(*words)) for words in names]
    await asyncio.sleep(0)
    assert order == ["a1"]
    scripts[1].cancel()
    await asyncio.wait({scripts[1]})
    go_on.set()
    await asyncio.gather(*scripts, return_exceptions=True)
    assert order == ["a1", "b1", "b2", "a3"]
    first = turns.slot("a")  # free again; and a place that comes with the cancellation is passed on
    await first.__aenter__()
    waiting = asyncio.create_task(turns.slot("b").__aenter__())
    await asyncio.sleep(0)
    await first.__aexit__(None, None, None)  # gives the place to the one that waits
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    async with turns.slot("c"):
        pass


async def test_a_script_whose_machine_is_lost_runs_again_once_on_record(open_run: OpenRun, tmp_path: Path) -> None:
    carrier = Elsewhere(tmp_path / "elsewhere", lost=1)
    with open_run(executor=RemoteExecutor(CONFIG, carrier)) as run:
        result = await execute_in_run(scored(0.5))
        assert result.score == 0.5 and carrier.ran == ["one", "two"]
        (event,) = [event for event in run.journal.events if isinstance(event, ScriptFinished)]
        assert (event.result.machine, event.result.reruns) == ("two", 1)
        assert any("ran again" in event.message for event in run.journal.events if isinstance(event, Notice))
        log = next((run.run_dir / "logs").iterdir()).read_text()
        assert "half a" in log and "one is gone" in log and "Final Validation" in log
        carrier.lost = 9
        result = await execute_in_run(scored(0.6))
    assert result.is_error and "the machine was lost each time" in debug_text(result)


async def test_a_machine_that_is_lost_while_data_are_sent_to_it_is_no_fault_of_the_script(tmp_path: Path) -> None:
    carrier, request = Elsewhere(tmp_path / "elsewhere", lost_on_the_way=1), request_on(tmp_path)
    raw = await RemoteExecutor(CONFIG, carrier).run(request)
    assert (raw.stdout, raw.machine, raw.reruns, carrier.ran) == ("a\n", "two", 0, ["two"])
    assert "lost" not in raw.stderr
    with pytest.raises(ExecutionError, match="was lost while data were sent to it"):
        await RemoteExecutor(CONFIG, Elsewhere(tmp_path / "nowhere", lost_on_the_way=9)).run(request)


async def test_data_in_use_are_not_removed_to_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mle_star.integrations.node.RESERVE_BYTES", 1 << 60)  # no disk has room enough
    carrier = Elsewhere(tmp_path / "elsewhere")
    executor, place = RemoteExecutor(CONFIG, carrier), tmp_path / "reading"
    code = "import time\nprint('begun', flush=True)\ntime.sleep(2)\nprint(open('input/a.csv').read())"
    request = request_on(place, code, output_file=str(tmp_path / "log"))
    reading = asyncio.create_task(executor.run(request))
    await heard(tmp_path / "log", "begun")
    for node in carrier.nodes:
        node.store("0" * 64, "me", 0, b"more", False)
    assert (await reading).stdout == "begun\na\n"
    for node in carrier.nodes:
        node.store("0" * 64, "me", 0, b"more", False)
        assert not [path for name in ("views", "work") for path in (node.folder / name).iterdir()]


async def test_where_nothing_confines_a_script_changed_data_are_thrown_away(tmp_path: Path) -> None:
    carrier = Elsewhere(tmp_path / "elsewhere")
    carrier.executor = LocalExecutor(CONFIG, sandbox="none")
    executor = RemoteExecutor(CONFIG, carrier)
    request = request_on(tmp_path, "open('input/a.csv', 'w').write('forged')\nopen('final/submission.csv', 'w')")
    (tmp_path / "data" / "a.csv").write_text("true")
    raw = await executor.run(request)
    assert raw.exit_code == 1 and "changed the files in ./input" in raw.stderr
    assert not (tmp_path / "work" / "final" / "submission.csv").exists()
    for node in carrier.nodes:
        assert all(path.read_text() == "true" for path in (node.folder / "files").iterdir())
    assert (await executor.run(request_on(tmp_path))).stdout == "true\n"
    assert (tmp_path / "data" / "a.csv").read_text() == "true"


def test_of_what_a_script_submits_only_plain_files_within_bounds_come_back_however_deep(tmp_path: Path) -> None:
    final = tmp_path / "final"
    final.mkdir()
    for number in range(1001):
        (final / f"{number:04}").write_text("x")
    (final / "0000").unlink()
    (final / "0000").symlink_to("/etc/passwd")
    with (final / "0001").open("wb") as file:
        file.truncate(2 << 30)
    found, left = collect(final)
    assert len(found) == 999 and left == ["0001"] and "0000" not in found
    (tmp_path / "link").symlink_to(final)
    assert collect(tmp_path / "link") == ({}, []), "a link in its place leads nowhere"
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    nest(here, 1010, "a")
    found, left = collect(here)
    assert (len(found), left) == (1000, ["a/" * depth + "file" for depth in range(1000, 1010)])
    deepest = {left[-1]: b"x"}
    put(deepest, there, "one")
    assert collect(there) == (deepest, [])
    assert remove_entry(here) and remove_entry(there)


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../escaped", ""])
def test_a_machine_cannot_put_files_elsewhere(name: str, tmp_path: Path) -> None:
    raw = ExecutionRawResult(stdout="", stderr="", exit_code=0, duration_seconds=1.0, timed_out=False)
    delivery = Delivery("one", raw, {name: b"x"})
    (tmp_path / "work").mkdir()
    with pytest.raises(ExecutionError, match="sent a file named"):
        unpack(delivery, str(tmp_path / "work"))
    assert [path.name for path in tmp_path.rglob("*")] == ["work", "final"]
