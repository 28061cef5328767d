"""Executors keep the contract, here and elsewhere, say what confines a script, cut no output silently, lose no data."""

import asyncio
import dataclasses
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star import ExecutionError, ExecutionRawResult, PipelineConfig
from mle_star import execution as ex
from mle_star.execution.executors import Queue
from mle_star.execution.limits import DiskQuota
from mle_star.execution.process import NOTE, Keeper, LogFile, ScriptProcess
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.workspace import remove_entry
from mle_star.integrations.node import Node
from mle_star.integrations.remote import Delivery, MachineLost, Parcel, RemoteExecutor, collect, pack, put, unpack
from mle_star.run.context import Executor, ScriptRequest
from mle_star.run.events import Notice, ScriptFinished
from mle_star.testing.executor import ExecutorContract, heard
from tests.conftest import Logs, Patch, write_texts
from tests.execution.conftest import OpenRun, printed_by_user, request_for, request_on, scored, script, write_files
from tests.execution.test_workspace import nest

LIMITS = dataclasses.replace(ex.Limits.of(PipelineConfig()), tasks=200, memory_bytes=2 * 10**9, grace_seconds=1.0)
HELD = (
    *("time", "memory 2.0 GB", "processes 200", "file size 8.6 GB", "open files 4096"),
    "disk 50.0 GB and 500000 files",
)
BOXED = ("reads only what it is given", "writes only in the working directory", "no root")


class TestConfined(ExecutorContract):
    """By bubblewrap; and without it, by a kernel that lets users make namespaces."""

    @pytest.fixture(params=["auto", "namespaces"])
    def executor(self, request: pytest.FixtureRequest) -> ex.LocalExecutor:
        return ex.LocalExecutor(limits=LIMITS, sandbox=request.param)

    async def test_it_says_so(self, executor: ex.LocalExecutor, request_for: Callable[..., ScriptRequest]) -> None:
        raw, expected = await executor.run(request_for("print(1)")), executor.announce().isolation
        assert raw.isolation.sandbox in ("bubblewrap+seccomp", "namespaces+seccomp")
        assert raw.isolation.network_blocked and raw.isolation.limits == (*HELD, *BOXED)
        assert (expected.sandbox, expected.network_blocked) == (raw.isolation.sandbox, True)


class TestUnconfined(ExecutorContract):
    """No namespaces, no control groups: what is left in most containers."""

    @pytest.fixture
    def executor(self) -> ex.LocalExecutor:
        return ex.LocalExecutor(limits=LIMITS, sandbox="none", use_cgroups=False)

    async def test_it_says_so_once_and_claims_nothing_more(
        self, executor: ex.LocalExecutor, request_for: Callable[..., ScriptRequest], caplog: Logs
    ) -> None:
        for _ in range(2):
            raw = await executor.run(request_for("print(1)"))
        assert (raw.isolation.sandbox, raw.isolation.network_blocked) == ("seccomp", True)
        assert raw.isolation.limits == (*HELD, *BOXED[2:][: os.getuid()])
        warnings = [record.getMessage() for record in caplog.records if "unconfined" in record.getMessage()]
        assert len(warnings) == 1 and "your files, your programs are open" in warnings[0]


@pytest.mark.parametrize("sandbox", ["auto", "namespaces"])
async def test_thousands_of_files_beside_another_show(sandbox: Literal["auto", "namespaces"], tmp_path: Path) -> None:
    """Then the data are shown piece by piece, which makes an order that no argument of a program can hold."""
    data, run = tmp_path / "data", tmp_path / "data" / "runs" / "one"
    work = Path(ex.prepare_path_directory(run / "work", "main"))
    secrets = [data / ".DS_Store", run / "journal.jsonl"]
    write_files(data, *map(str, (*secrets, *range(3000))), text="1")
    ex.link_input_data(str(data), str(work), ours=run)
    code = (
        "import os\nprint(sum(int(open(f'input/{name}').read()) for name in os.listdir('input')))\n"
        f"for path in {list(map(str, secrets))}:\n"
        "    try:\n        open(path)\n    except OSError:\n        print('held')\n"
        "print([number for number in os.listdir('/proc/self/fd') if int(number) > 3])\n"
        "open('final/submission.csv', 'w').close()\n"
    )
    raw = await ex.LocalExecutor(limits=LIMITS, sandbox=sandbox).run(request_for(work, code))
    assert raw.stdout.splitlines() == ["3000", "held", "held", "[]"], raw.stderr
    assert (work / "final" / "submission.csv").exists()


@pytest.mark.req("REQ-EX-038")
@given(st.lists(st.binary(max_size=40), max_size=40), st.integers(1, 30), st.integers(1, 30))
def test_short_output_is_whole_and_long_output_keeps_both_ends(chunks: list[bytes], head: int, tail: int) -> None:
    keeper = Keeper(head, tail, LogFile(None, 0))
    for chunk in chunks:
        keeper.feed(chunk)
    whole, text = b"".join(chunks), keeper.text()
    assert keeper.total == len(whole)
    if len(whole) <= head + tail:
        assert text == whole.decode("utf-8", "replace")
    else:
        assert text.startswith(whole[:head].decode("utf-8", "replace"))
        assert whole[-tail:].decode("utf-8", "replace") in text
        assert f"{len(whole) - head - tail} bytes of output left out" in text
        assert text.splitlines()[-1].startswith(f"{NOTE} warning: the output was cut")


@pytest.mark.req("REQ-EX-038")
def test_a_disk_that_is_full_for_a_moment_costs_the_log_and_not_the_output() -> None:
    class Full(LogFile):
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    keeper = Keeper(10, 100, Full(None, 0))
    with pytest.raises(OSError):
        keeper.feed(b"Final Validation Performance: 0.5\n")
    assert keeper.text() == "Final Validation Performance: 0.5\n"


async def test_past_the_cap_the_script_goes_on_and_its_last_line_counts(tmp_path: Path) -> None:
    code, log = scored(0.5, "for i in range(100_000):\n    print(i, 'x' * 50)").content, tmp_path / "out.log"
    cutting = dataclasses.replace(LIMITS, head_bytes=2000, tail_bytes=1000, output_bytes=5000)
    raw = await ex.LocalExecutor(limits=cutting).run(request_for(tmp_path, code, output_file=str(log)))
    assert raw.exit_code == 0 and raw.stdout.startswith("0 xxx") and ex.parse_score(raw.stdout) == 0.5
    assert len(raw.stdout) < 4000 and "warning: the output was cut" in raw.stdout.splitlines()[-1]
    assert log.stat().st_size < 11_000 and "more bytes were not stored" in log.read_text()


QUOTA = dataclasses.replace(ex.Limits.of(PipelineConfig()), disk_bytes=20_000_000, files=2000)
ON_DISK = "more than 0.0 GB on disk"


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("file.write(os.urandom(40_000_000))", ON_DISK),
        ("os.remove('big')\nfile.write(os.urandom(40_000_000))\nfile.flush()", ON_DISK),
        ("for number in range(5000):\n    open(f'final/{number}', 'w').close()", "more than 2000 files"),
        ("open(os.environ['TMPDIR'] + '/big', 'wb').write(os.urandom(40_000_000))", ON_DISK),
        ("for _ in range(60):\n    os.mkdir('n' * 200)\n    os.chdir('n' * 200)", "nested deeper"),
    ],
    ids=["a file", "a file without a name", "many files", "the temporary folder", "nested folders"],
)
async def test_a_script_that_fills_the_disk_is_ended_with_the_cause(body: str, cause: str, open_run: OpenRun) -> None:
    waiting = f"import os, time\nfile = open('big', 'wb')\n{body}\ntime.sleep(600)"
    with open_run(executor=ex.LocalExecutor(limits=QUOTA)) as run:
        result = await execute_in_run(script(waiting))
        assert result.is_error and result.exit_code == -9 and cause in ex.debug_text(result)
        assert sorted(os.listdir(run.work_dir)) == ["final", "input"]  # noqa: PTH208
        assert (await execute_in_run(scored(0.5))).score == 0.5


def test_links_to_the_data_and_holes_of_a_file_take_no_room_but_links_of_a_script_are_counted(tmp_path: Path) -> None:
    def link(folder: str, count: int) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        for number in range(count):
            (tmp_path / folder / f"{folder}{number}").symlink_to("/")

    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**9)
    link("input", 120)
    disk = DiskQuota(dataclasses.replace(QUOTA, files=100), [tmp_path])
    assert disk.look(os.getpid()) == ""
    link("many", 110)
    assert "more than 100 files" in disk.look(os.getpid())
    remove_entry(tmp_path / "many")
    for number in range(110):
        (tmp_path / "input" / f"more{number}").symlink_to("/")
    assert "more than 100 files" in disk.look(os.getpid())


LOOK = """
import os, sys
from pathlib import Path
from mle_star.execution import Limits
from mle_star.execution.limits import DiskQuota
from mle_star.models import PipelineConfig
folder = Path(sys.argv[1]) / "mine"
(folder / "dark").mkdir(parents=True)
disk = DiskQuota(Limits.of(PipelineConfig()), [folder])
for mode in map(int, sys.argv[2].split(",")):
    (folder / "dark").chmod(0o700)
    (folder / "dark" / "file").touch()
    (folder / "dark").chmod(mode)
    print([disk.look(os.getpid()) for _ in range(2)])
"""


def test_a_folder_that_hides_what_is_in_it_ends_the_script(open_folder: Path) -> None:
    fine, *hidden = printed_by_user(LOOK, str(open_folder), ",".join(map(str, (0o700, 0o300, 0o600, 0o000))))
    assert fine == "['', '']" and len(hidden) == 3 and all("cannot look into (dark)" in line for line in hidden)
    assert hidden[0].startswith("['', "), "it may be about to end"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no second disk here")
def test_a_script_gets_at_most_half_of_what_is_free_and_each_disk_is_scored_by_its_own_room(tmp_path: Path) -> None:
    """A small /tmp in memory says nothing of the room that the working folder has."""
    settings = PipelineConfig(script_disk_gb=1.5, script_files=7)
    assert (ex.Limits.of(settings).disk_bytes, ex.Limits.of(settings).files) == (1_500_000_000, 7)
    endless = dataclasses.replace(QUOTA, disk_bytes=10**18)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert DiskQuota(endless, [tmp_path])._allowed[tmp_path.stat().st_dev] == pytest.approx(free / 2, rel=0.2)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        other = Path(place)
        quota = DiskQuota(QUOTA, [tmp_path, other])
        quota._allowed[other.stat().st_dev] = 1_000_000  # as if it had no more than twice that
        (tmp_path / "large").write_bytes(bytes(5_000_000))
        assert quota.look(os.getpid()) == ""
        (other / "large").write_bytes(bytes(2_000_000))
        assert "more than 0.0 GB on disk" in quota.look(os.getpid())
        (other / "large").unlink()
        (tmp_path / "larger").write_bytes(bytes(QUOTA.disk_bytes))
        assert "on disk in its folder and /tmp" in quota.look(os.getpid())


@pytest.mark.parametrize(("took", "pause"), [(0.0, 0.5), (0.06, 1.2)])
async def test_looking_takes_a_small_share_of_a_core(took: float, pause: float, tmp_path: Path) -> None:
    looked, process = list[float](), ScriptProcess([])

    class Looking(DiskQuota):
        def look(self, pid: int) -> str:
            looked.append(time.monotonic())
            time.sleep(took)
            return "enough" if len(looked) > 2 else ""

    process.pid = 7
    async with Looking(QUOTA, [tmp_path]).enforced(process):
        while len(looked) < 2:
            await asyncio.sleep(0.01)
    assert looked[1] - looked[0] >= pause


CONFIG = PipelineConfig()


class Elsewhere:
    """A carrier to machines that are folders here; it loses as many machines as it is told to."""

    def __init__(self, folder: Path, lost: int = 0, lost_on_the_way: int = 0) -> None:
        self.slots, self.hardware = 2, dict[str, Any]()
        self.nodes = [Node(folder / name, name) for name in ("one", "two")]
        self.turns = itertools.cycle(self.nodes)
        self.executor, self.lost, self.lost_on_the_way = ex.LocalExecutor(CONFIG, limits=LIMITS), lost, lost_on_the_way
        self.sent: list[tuple[str, str, int]] = []
        self.ran: list[str] = []

    async def run(self, parcel: Parcel, hear: Callable[[bytes], None], machine: str | None) -> Delivery:
        if machine is None:
            machine = next(self.turns).machine
        node = next(node for node in self.nodes if node.machine == machine)
        if missing := node.missing(parcel):
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
    assert (await executor.run(request)).stdout == "new\n" and len(carrier.sent) == 5
    (tmp_path / "data" / "a.csv").write_bytes(b"0123456789" * 4_000_000)
    size = "import os\nprint(os.path.getsize('input/a.csv'))"
    assert (await executor.run(request_on(tmp_path, size))).stdout == "40000000\n"
    assert [size for _, _, size in carrier.sent[5:]] == [1 << 24, 1 << 24, 40_000_000 - (1 << 25)], "piece by piece"
    (tmp_path / "data" / "a.csv").write_text("a")
    for path in (tmp_path / "elsewhere").glob("*/[fv]i*/*"):
        remove_entry(path)  # what a machine has lost is sent again
    assert (await executor.run(request)).stdout == "1\n", "the size of it"


@pytest.mark.parametrize("linked", [False, True])
async def test_data_that_a_machine_sees_under_the_same_path_are_not_sent(linked: bool, tmp_path: Path) -> None:
    """A hidden entry among the data makes them be shown by links."""
    node, request = Node(tmp_path / "there", "one"), request_on(tmp_path)
    (tmp_path / "data" / "a.csv").write_text("shared")
    if linked:
        ex.link_input_data(str(tmp_path / "data"), request.working_dir)
        request = request.model_copy(update={"input_dir": None})
    parcel = pack(request, PipelineConfig(shared_data=True))
    delivery = await node.run(parcel, ex.LocalExecutor(CONFIG), tmp_path / "log")
    assert delivery.raw is not None and (delivery.raw.stdout, parcel.folders) == ("shared\n", {}), delivery.raw
    assert not [path for name in ("files", "views") for path in (tmp_path / "there" / name).iterdir()]
    gone = dataclasses.replace(parcel, request=request.model_copy(update={"input_dir": str(tmp_path / "gone")}))
    with pytest.raises(ExecutionError, match="the data folder is gone"):
        await node.run(gone, ex.LocalExecutor(CONFIG), tmp_path / "log")


def test_the_store_of_a_machine_is_its_user_s_alone_and_keeps_nothing_that_did_not_arrive_whole(tmp_path: Path) -> None:
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
    before = os.umask(0)
    try:
        store = Node(tmp_path / "deep" / "store", "one").folder
    finally:
        os.umask(before)
    assert store.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(ExecutionError, match=r"is no folder of yours, .*: set MLE_STAR_NODE_DIR to"):
            Node(tmp_path / name, "one")
    for mode in (0o770, 0o707):
        store.chmod(mode)
        with pytest.raises(ExecutionError, match="others can write to it: set MLE_STAR_NODE_DIR to"):
            Node(store, "one")
    store.chmod(0o755)
    Node(store, "one")
    if os.getuid() == 0:  # only root can give a folder away
        os.chown(store, 65533, 65533)
        with pytest.raises(ExecutionError, match=r"is no folder of yours, .*: set MLE_STAR_NODE_DIR to"):
            Node(store, "one")


async def test_a_free_place_goes_to_the_run_that_has_had_fewest_scripts() -> None:
    turns, order, go_on = Queue(1), list[str](), asyncio.Event()

    async def script(run: str, name: str) -> None:
        async with turns.slot(run):
            order.append(name)
            await go_on.wait()

    names = [("ahead", "a1"), ("ahead", "a2"), ("ahead", "a3"), ("behind", "b1"), ("behind", "b2")]
    scripts = [asyncio.create_task(script(*words)) for words in names]
    while not order:
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
    assert result.is_error and "the machine was lost each time" in ex.debug_text(result)


async def test_a_machine_that_is_lost_while_data_are_sent_to_it_is_no_fault_of_the_script(tmp_path: Path) -> None:
    carrier, request = Elsewhere(tmp_path / "elsewhere", lost_on_the_way=1), request_on(tmp_path)
    raw = await RemoteExecutor(CONFIG, carrier).run(request)
    assert (raw.stdout, raw.machine, raw.reruns, carrier.ran) == ("a\n", "two", 0, ["two"]) and "lost" not in raw.stderr
    with pytest.raises(ExecutionError, match="was lost while data were sent to it"):
        await RemoteExecutor(CONFIG, Elsewhere(tmp_path / "nowhere", lost_on_the_way=9)).run(request)


async def test_data_in_use_are_not_removed_to_make_room(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("mle_star.integrations.node.RESERVE_BYTES", 1 << 60)  # no disk has room enough
    carrier = Elsewhere(tmp_path / "elsewhere")
    executor, place = RemoteExecutor(CONFIG, carrier), tmp_path / "reading"
    code = "import time\nprint('begun', flush=True)\ntime.sleep(2)\nprint(open('input/a.csv').read())"
    reading = asyncio.create_task(executor.run(request_on(place, code, output_file=str(tmp_path / "log"))))
    await heard(tmp_path / "log", "begun")
    for node in carrier.nodes:
        node.store("0" * 64, "me", 0, b"more", False)
    assert (await reading).stdout == "begun\na\n"
    for node in carrier.nodes:
        node.store("0" * 64, "me", 0, b"more", False)
        assert not [path for name in ("views", "work") for path in (node.folder / name).iterdir()]
    views, size = carrier.nodes[0].folder / "views", 256 << 20
    for age, name in ((1, "late"), (9, "early"), (5, "middle")):  # what was used last stays
        (views / name).mkdir()
        with (views / name / "a").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        os.link(views / name / "a", views.parent / "files" / name)
        os.utime(views / name, (time.time() - age, time.time() - age))
    monkeypatch.setattr("mle_star.integrations.node.RESERVE_BYTES", (shutil.disk_usage(views).free + size // 2) // 2)
    carrier.nodes[0].store("0" * 64, "me", 0, b"more", False)
    assert {path.name for path in views.iterdir()} == {"late", "middle"}


async def test_where_nothing_confines_a_script_changed_data_are_thrown_away(tmp_path: Path) -> None:
    carrier = Elsewhere(tmp_path / "elsewhere")
    carrier.executor = ex.LocalExecutor(CONFIG, sandbox="none")
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


def test_of_what_a_script_submits_plain_files_within_bounds_come_back_and_to_no_other_place(tmp_path: Path) -> None:
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
    here.mkdir()
    there.mkdir()
    nest(here, 1010, "a")
    found, left = collect(here)
    assert (len(found), left) == (1000, ["a/" * depth + "file" for depth in range(1000, 1010)])
    deepest = {left[-1]: b"x"}
    put(deepest, there, "one")
    assert collect(there) == (deepest, []) and remove_entry(here) and remove_entry(there)
    raw = ExecutionRawResult(stdout="", stderr="", exit_code=0, duration_seconds=1.0, timed_out=False)
    for name in ("../escaped", str(tmp_path / "escaped"), "a/../../escaped", ""):
        with pytest.raises(ExecutionError, match="sent a file named"):
            unpack(Delivery("one", raw, {name: b"x"}), str(tmp_path / "work"))
    assert [path.name for path in (tmp_path / "work").rglob("*")] == ["final"] and not (tmp_path / "escaped").exists()
