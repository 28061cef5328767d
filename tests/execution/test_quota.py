"""What a script may leave on disk: seen while it runs, and said to whoever fixes the script."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

import pytest

from mle_star.execution import Limits, LocalExecutor, debug_text, execute_in_run
from mle_star.execution.limits import DiskQuota
from mle_star.execution.workspace import remove_entry
from mle_star.models import PipelineConfig
from tests.execution.conftest import OpenRun, scored, script
from tests.execution.users import driver, unprivileged_python

LIMITS = dataclasses.replace(Limits.of(PipelineConfig()), disk_bytes=20_000_000, files=2000)

ON_DISK = "more than 0.0 GB on disk"
FILLERS = {
    "a file": ("open('big', 'wb').write(os.urandom(40_000_000))", ON_DISK),
    "a file without a name": (
        "file = open('big', 'wb')\nos.remove('big')\nfile.write(os.urandom(40_000_000))\nfile.flush()", ON_DISK,
    ),
    "many files": (
        "os.mkdir('many')\nfor number in range(5000):\n    open(f'many/{number}', 'w').close()", "more than 2000 files",
    ),
    "the temporary folder": ("open(os.environ['TMPDIR'] + '/big', 'wb').write(os.urandom(40_000_000))", ON_DISK),
    "nested folders": ("for _ in range(60):\n    os.mkdir('n' * 200)\n    os.chdir('n' * 200)", "nested deeper"),
}  # fmt: skip


@pytest.mark.parametrize("what", FILLERS)
async def test_a_script_that_fills_the_disk_is_ended_with_the_cause(what: str, open_run: OpenRun) -> None:
    body, cause = FILLERS[what]
    waiting = f"import os, time\n{body}\ntime.sleep(600)\nprint('Final Validation Performance: 1.0')"
    with open_run(executor=LocalExecutor(limits=LIMITS)) as run:
        result = await execute_in_run(script(waiting))
        assert result.is_error and result.exit_code == -9
        assert cause in debug_text(result)
        assert sorted(os.listdir(run.work_dir)) == ["final", "input"]  # noqa: PTH208
        assert (await execute_in_run(scored(0.5))).score == 0.5


def test_links_to_the_data_and_holes_of_a_file_take_no_room_but_links_of_a_script_are_counted(tmp_path: Path) -> None:
    def link(folder: str, count: int) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        for number in range(count):
            (tmp_path / folder / f"{folder}{number}").symlink_to("/")

    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**9)
    link("input", 2500)
    disk = DiskQuota(LIMITS, [tmp_path])
    assert disk.look(os.getpid()) == ""
    link("many", 2100)
    assert "more than 2000 files" in disk.look(os.getpid())
    remove_entry(tmp_path / "many")
    for number in range(2100):
        (tmp_path / "input" / f"more{number}").symlink_to("/")
    assert "more than 2000 files" in disk.look(os.getpid())


LOOK = """
import os, sys
from pathlib import Path
from mle_star.execution import Limits
from mle_star.execution.limits import DiskQuota
from mle_star.execution.workspace import remove_entry
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
    """Root looks into every folder, so somebody else looks here."""
    python, who = unprivileged_python()
    modes = ",".join(map(str, (0o700, 0o300, 0o600, 0o000)))
    said, _ = driver(python, "-c", LOOK, str(open_folder), modes, **who).communicate(timeout=240)
    fine, *hidden = said.decode().splitlines()
    assert fine == "['', '']" and len(hidden) == 3
    assert all("cannot look into (dark)" in line for line in hidden)
    assert hidden[0].startswith("['', "), "it may be about to end"


def test_a_script_never_gets_more_than_half_of_what_is_free(tmp_path: Path) -> None:
    endless = dataclasses.replace(LIMITS, disk_bytes=10**18)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert DiskQuota(endless, [tmp_path])._allowed[tmp_path.stat().st_dev] == pytest.approx(free / 2, rel=0.2)
    settings = PipelineConfig(script_disk_gb=1.5, script_files=7)
    assert (Limits.of(settings).disk_bytes, Limits.of(settings).files) == (1_500_000_000, 7)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no second disk here")
def test_each_disk_is_scored_by_its_own_room(tmp_path: Path) -> None:
    """A small /tmp in memory says nothing of the room that the working folder has."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        other = Path(place)
        quota = DiskQuota(LIMITS, [tmp_path, other])
        quota._allowed[other.stat().st_dev] = 1_000_000  # as if it had no more than twice that
        (tmp_path / "large").write_bytes(bytes(5_000_000))
        assert quota.look(os.getpid()) == ""
        (other / "large").write_bytes(bytes(2_000_000))
        assert "more than 0.0 GB on disk" in quota.look(os.getpid())
        (other / "large").unlink()
        (tmp_path / "larger").write_bytes(bytes(LIMITS.disk_bytes))
        assert "on disk in its folder and /tmp" in quota.look(os.getpid())
