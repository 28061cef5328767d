"""The local executor keeps the contract in each of its forms, says what confines a script, cuts no output silently."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star import execution as ex
from mle_star.execution.limits import MAX_OUTPUT_BYTES, DiskQuota
from mle_star.execution.process import NOTE, Keeper, LogFile
from mle_star.execution.workspace import remove_entry
from mle_star.models import PipelineConfig
from mle_star.run.context import ScriptRequest
from mle_star.testing.executor import ExecutorContract
from tests.execution.conftest import OpenRun, printed_by_user, request_for, scored, script, write_files

LIMITS = dataclasses.replace(ex.Limits.of(PipelineConfig()), tasks=200, memory_bytes=2 * 10**9, grace_seconds=1.0)
CONFINED = "writes only in the working directory"


class TestConfined(ExecutorContract):
    """By bubblewrap; and without it, by a kernel that lets users make namespaces."""

    @pytest.fixture(params=["auto", "namespaces"])
    def executor(self, request: pytest.FixtureRequest) -> ex.LocalExecutor:
        return ex.LocalExecutor(limits=LIMITS, sandbox=request.param)

    async def test_it_says_so(self, executor: ex.LocalExecutor, request_for: Callable[..., ScriptRequest]) -> None:
        raw, expected = await executor.run(request_for("print(1)")), executor.announce().isolation
        assert raw.isolation.sandbox in ("bubblewrap+seccomp", "namespaces+seccomp")
        assert raw.isolation.network_blocked and CONFINED in raw.isolation.limits
        assert (expected.sandbox, expected.network_blocked) == (raw.isolation.sandbox, True)


class TestUnconfined(ExecutorContract):
    """No namespaces, no control groups: what is left in most containers."""

    @pytest.fixture
    def executor(self) -> ex.LocalExecutor:
        return ex.LocalExecutor(limits=LIMITS, sandbox="none", use_cgroups=False)

    async def test_it_says_so_once_and_claims_nothing_more(
        self, executor: ex.LocalExecutor, request_for: Callable[..., ScriptRequest], caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            raw = await executor.run(request_for("print(1)"))
        assert (raw.isolation.sandbox, raw.isolation.network_blocked) == ("seccomp", True)
        assert CONFINED not in raw.isolation.limits
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
    whole = b"".join(chunks)
    text = keeper.text()
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

    limits = ex.Limits.of(PipelineConfig())
    assert (limits.output_bytes, limits.tail_bytes, MAX_OUTPUT_BYTES) == (100 << 20, 1 << 20, 100 << 20)
    keeper = Keeper(10, 100, Full(None, 0))
    with pytest.raises(OSError):
        keeper.feed(b"Final Validation Performance: 0.5\n")
    assert keeper.text() == "Final Validation Performance: 0.5\n"


async def test_past_the_cap_the_script_goes_on_and_its_last_line_counts(tmp_path: Path) -> None:
    code, log = scored(0.5, "for i in range(100_000):\n    print(i, 'x' * 50)").content, tmp_path / "out.log"
    cutting = dataclasses.replace(LIMITS, head_bytes=2000, tail_bytes=1000, output_bytes=5000)
    raw = await ex.LocalExecutor(limits=cutting).run(request_for(tmp_path, code, output_file=str(log)))
    assert raw.exit_code == 0
    assert raw.stdout.startswith("0 xxx") and ex.parse_score(raw.stdout) == 0.5
    assert len(raw.stdout) < 4000
    assert "warning: the output was cut" in raw.stdout.splitlines()[-1]
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
        result = await ex.execute_in_run(script(waiting))
        assert result.is_error and result.exit_code == -9
        assert cause in ex.debug_text(result)
        assert sorted(os.listdir(run.work_dir)) == ["final", "input"]  # noqa: PTH208
        assert (await ex.execute_in_run(scored(0.5))).score == 0.5


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
    modes = ",".join(map(str, (0o700, 0o300, 0o600, 0o000)))
    fine, *hidden = printed_by_user(LOOK, str(open_folder), modes)
    assert fine == "['', '']" and len(hidden) == 3
    assert all("cannot look into (dark)" in line for line in hidden)
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
