"""Work that scripts leave in `./cache`: done once for a view, whatever a script does to it, and nowhere else."""

import asyncio
import os
from pathlib import Path

import pytest

from mle_star.execution import LocalExecutor
from mle_star.execution.kept_work import CACHE, lend, take_back
from mle_star.execution.recorded import execute_in_run
from mle_star.holdout.holdout import HoldOut
from mle_star.models import EvaluationResult, PipelineConfig, TaskDescription
from mle_star.models.enums import PhaseName
from mle_star.run.context import RunContext, RunShared, path_context
from mle_star.run.timing import GROWTH, KEPT, plan_time
from tests.execution.conftest import Kind, OpenRun, script, write_files, write_sizes

CONFIG = PipelineConfig(scoring="auto", score_views=2, time_limit_seconds=3600, more_steps=False)
WORK = """
import csv, os, time
def slow():
    os.makedirs("cache/counts", exist_ok=True)
    try:
        return open("cache/counts/sizes.txt").read()
    except FileNotFoundError:
        print("counted")
        time.sleep(0.5)
        done = str(sum(int(row["size"]) for row in csv.DictReader(open("input/train.csv"))))
        open("cache/counts/sizes.txt", "w").write(done)
        return done
print("sum", slow())
rows = list(csv.DictReader(open("input/test.csv")))
text = "".join(f"{row['id']},{int(int(row['size']) > 25)}\\n" for row in rows)
open("final/submission.csv", "w").write("id,label\\n" + text)
"""
ATTACK = """
import ctypes, os, socket
def tried(act, *more):
    try:
        act(*more)
    except OSError as error:
        pass
tried(os.symlink, "/etc/passwd", "cache/link")
tried(os.symlink, "../input", "cache/folder")
tried(os.mkfifo, "cache/pipe")
tried(os.link, "input/train.csv", "cache/linked")
tried(os.symlink, os.path.realpath("input/train.csv"), "cache/real")
os.makedirs("cache/locked/inner"); open("cache/locked/inner/file", "w").write("x"); os.chmod("cache/locked", 0)
open("cache/a-plain", "w").write("labels of this view")
tried(os.setxattr, "cache/a-plain", "user.m", b"labels")
tried(os.setxattr, "cache", "user.m", b"labels")
tried(os.setxattr, "cache", "system.posix_acl_default", b"\\2\\0\\0\\0" + b"".join(
    bytes([tag, 0, 0, 0]) + b"\\xff" * 4 for tag in (1, 4, 32)))
tried(os.chmod, "cache/a-plain", 0o6755)
os.utime("cache/a-plain", (1, 1))
tried(os.truncate, os.open("cache/holes", os.O_CREAT | os.O_WRONLY), 2**32)
open("cache/large", "wb").write(bytes(3_000_000))
for number in range(10_000):
    open(f"cache/many-{number:05}", "w").close()
deep = "cache"
for _ in range(300):
    deep += "/" + "d" * 10
os.makedirs(deep)
"""
LOOK = """
import os, stat
def look(folder):
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        info = entry.stat(follow_symlinks=False)
        yield entry.name, oct(info.st_mode), info.st_nlink, info.st_mtime > 1000, attributes(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from look(entry.path)
def attributes(path):
    try:
        return os.listxattr(path)
    except (OSError, AttributeError):
        return []
print(len(os.listdir("cache")), "seen", [one for one in look("cache") if "many" not in one[0]], attributes("cache"))
"""


async def run_on(run: RunContext, code: str, note: str) -> EvaluationResult:
    """What comes of a study of the view that it runs on, so that nothing but its own words counts."""
    result = await execute_in_run(script(f"# {note}\n{code}\nprint('Ablation baseline: 1')"), purpose="ablation")
    assert not result.is_error, result.stderr
    return result


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return write_sizes(tmp_path / "data")


@pytest.fixture
def holdout(task: TaskDescription, tmp_path: Path) -> HoldOut:
    return HoldOut.prepare(task.model_copy(update={"evaluation_metric": "accuracy"}), CONFIG, tmp_path / "run")


async def test_work_is_done_once_for_each_view_and_anew_by_final_scripts(open_run: OpenRun, holdout: HoldOut) -> None:
    with open_run(CONFIG, shared=RunShared(holdout=holdout)) as run:
        first = await execute_in_run(script(WORK))
        later = await execute_in_run(script(warm := f"# later\n{WORK}"))
        with path_context(0, run.work_dir):
            beside = await execute_in_run(script(WORK), purpose="submission")
        assert [one.is_error for one in (first, later, beside)] == [False] * 3
        assert ["counted" in one.stdout for one in (first, later, beside)] == [True, False, True]
        assert [one.warm for one in (first, later, beside)] == [False, True, False]
        cold, quick = first.duration_seconds, later.duration_seconds
        assert run.ledger.took("") == 0 < quick < cold == run.ledger.took(warm), "as long without what was left"
        assert (run.solution_seconds, run.ledger.best_seconds()) == (quick, [cold])
        phases: list[tuple[PhaseName, float]] = [("phase2", GROWTH), ("phase3", 1)]
        for phase, growth in phases:
            plan_time(run, phase)
            assert run.budget.rerun_seconds == KEPT * growth * cold, "final scripts begin with nothing"
        assert first.stdout.replace("counted\n", "") == later.stdout
        assert first.score == later.score and first.measure == later.measure, "on both views, of other rows each"
        sums = {(run.run_dir / CACHE / view.folder.name / "counts" / "sizes.txt").read_text() for view in holdout.views}
        assert len(sums) == len(holdout.views) == 2
    with open_run(CONFIG.model_copy(update={"keep_work": False}), shared=RunShared(holdout=holdout)) as run:
        apart = await execute_in_run(script(f"# apart\n{WORK}"))
        assert "counted" in apart.stdout and not apart.warm


@pytest.mark.parametrize("sandbox", ["auto", "namespaces", "none"])
async def test_nothing_but_plain_content_outlives_a_script(open_run: OpenRun, tmp_path: Path, sandbox: Kind) -> None:
    config = PipelineConfig(time_limit_seconds=600, script_disk_gb=0.1, script_files=20_000)  # 2 MB and 400 files
    with open_run(config, LocalExecutor(config, sandbox=sandbox)) as run:
        await run_on(run, ATTACK, "attack")
        seen, kept = await run_on(run, LOOK, "look"), run.run_dir / CACHE / Path(run.task.data_dir).name
        assert (kept / "a-plain").read_text() == "labels of this view"
        files = [entry for entry in kept.rglob("*") if not entry.is_dir()]
        assert 0 < len(files) <= 400 and sum(file.stat().st_size for file in files) <= 2_000_000
        for entry in kept.rglob("*"):
            info = entry.lstat()
            assert entry.is_dir() or (entry.is_file() and not entry.is_symlink() and info.st_nlink == 1)
            assert not info.st_mode & 0o7000 and info.st_mtime > 1000 and not os.listxattr(entry)
        assert not {"link", "folder", "pipe", "real", "large"} & {path.name for path in kept.iterdir()}
        assert seen.warm and "user.m" not in seen.stdout and "acl" not in seen.stdout
        assert [path.name for path in (run.run_dir / CACHE).iterdir()] == [kept.name], "and of no script its folder"


@pytest.mark.parametrize("act", ["os.chmod('cache', 0)", "import shutil; shutil.rmtree('cache')", (
    "os.rmdir('cache'); os.symlink('input', 'cache')"), "os.rmdir('cache'); os.mkfifo('cache')"])  # fmt: skip
async def test_a_folder_that_is_locked_gone_or_none_keeps_nothing(act: str, open_run: OpenRun) -> None:
    with open_run(PipelineConfig(time_limit_seconds=600)) as run:
        await run_on(run, f"import os; {act}", "act")
        after = await run_on(run, LOOK, "look")
        assert "0 seen []" in after.stdout and not after.warm


async def test_a_file_stays_as_the_first_script_wrote_it_and_the_oldest_go_when_it_is_too_much(tmp_path: Path) -> None:
    config, kept = PipelineConfig(script_disk_gb=0.0001, script_files=100), tmp_path / CACHE / "view-0"  # 2 kB, 2 files
    (tmp_path / "work").mkdir()
    for name, text in (("a", "first"), ("a", "second"), ("b", "b"), ("c", "c" * 1500), ("d", "d" * 3000)):
        await lend(kept, tmp_path / "work")
        write_files(tmp_path / "work" / CACHE, name, text=text)
        await take_back(tmp_path / "work", kept, config)
        if (kept / "a").exists():
            assert (kept / "a").read_text() == "first"
        await asyncio.sleep(0.01)
    assert sorted(path.name for path in kept.iterdir()) == ["b", "c"] and await lend(kept, tmp_path / "work")
    (tmp_path / "work" / CACHE / "b").write_text("changed")
    assert (kept / "b").read_text() == "b", "no script writes to what another one reads"


async def test_nobody_is_lent_what_is_still_being_kept(tmp_path: Path) -> None:
    kept, cache = tmp_path / CACHE / "view-0", tmp_path / "work" / CACHE
    for folder in (kept, cache):
        folder.mkdir(parents=True)
    (cache / ("n" * 250)).write_bytes(bytes(40_000_000))
    keeping = asyncio.create_task(take_back(tmp_path / "work", kept, PipelineConfig()))
    while not keeping.done():
        assert sum(path.stat().st_size for path in kept.glob("*")) in (0, 40_000_000)
        await asyncio.sleep(0.001)
    assert [path.name for path in kept.iterdir()] == ["n" * 250] and len(list(kept.parent.iterdir())) == 1
