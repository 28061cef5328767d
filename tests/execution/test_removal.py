"""What scripts leave behind goes, however deep, long or locked it is; and nothing that a link leads to goes with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mle_star.execution import execute_in_run
from mle_star.execution.artifacts import add_fitted, forget_fitted, listing
from mle_star.execution.workspace import remove_entry
from mle_star.run.events import Notice
from mle_star.run.folder import RunFolder
from mle_star.run.journal import read_journal
from tests.execution.conftest import OpenRun, scored
from tests.execution.users import driver, unprivileged_python


def nest(folder: Path, depth: int, name: str) -> None:
    """Folders within folders, deeper than any path can be named."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)
        here = inner
    os.close(here)


@contextmanager
def held_fast(folder: Path) -> Iterator[None]:
    """A folder that nobody can change, not even its owner."""
    try:
        subprocess.run(["chattr", "+i", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be made immutable here")
    number = folder.stat().st_ino
    try:
        yield
    finally:
        (moved,) = [path for path in folder.parents[1].rglob(folder.name) if path.stat().st_ino == number]
        subprocess.run(["chattr", "-i", moved], check=True)


@pytest.mark.parametrize(("depth", "name"), [(1100, "d"), (60, "n" * 255)])
def test_a_tree_of_any_depth_goes(depth: int, name: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    nest(tree, depth, name)
    assert remove_entry(tree)
    assert not tree.exists()


LOCKED = """
import os, sys
from pathlib import Path
from mle_star.execution.workspace import remove_entry

folder = Path(sys.argv[1]) / "mine"
(folder / "tree").mkdir(parents=True)
(folder / "file").write_text("mine")
(folder / "file").chmod(0o400)
here = os.open(folder / "tree", os.O_RDONLY)
for _ in range(60):
    os.mkdir("n" * 200, dir_fd=here)
    inner = os.open("n" * 200, os.O_RDONLY, dir_fd=here)
    os.link(folder / "file", "hard", dst_dir_fd=here)
    os.symlink(folder, "soft", dir_fd=here)
    os.fchmod(here, 0)
    os.close(here)
    here = inner
folder.chmod(0o711)
print(remove_entry(folder / "tree"), (folder / "tree").exists())
print(oct(folder.stat().st_mode), oct((folder / "file").stat().st_mode))
"""


def test_a_deep_tree_of_locked_folders_goes_and_nothing_else_is_opened(open_folder: Path) -> None:
    """Root passes every lock, so somebody else removes here."""
    python, who = unprivileged_python()
    said, _ = driver(python, "-c", LOCKED, str(open_folder), **who).communicate(timeout=240)
    assert said.decode().splitlines() == ["True False", "0o40711 0o100400"]


def test_what_a_script_has_fitted_is_kept_and_forgotten_however_deep(tmp_path: Path) -> None:
    made, kept = tmp_path / "made", RunFolder(tmp_path).model
    made.mkdir()
    nest(made, 1050, "a")
    assert len(listing(made)) == 1050
    add_fitted(tmp_path, made)
    assert listing(kept).keys() == listing(made).keys()
    forget_fitted(tmp_path)
    assert not kept.exists() and remove_entry(made)


async def test_what_cannot_be_removed_is_set_aside_and_a_warning_of_the_run(open_run: OpenRun) -> None:
    assert remove_entry(Path("never was"))
    with open_run() as run:
        (run.work_dir / "held").mkdir()
        (run.work_dir / "held" / "file").touch()
        with held_fast(run.work_dir / "held"):
            assert (await execute_in_run(scored(0.7))).score == 0.7
        assert sorted(entry.name for entry in run.work_dir.iterdir()) == ["final", "input", "solution.py"]
        notices = [event for event in read_journal(run.journal.path) if isinstance(event, Notice)]
    words = f"{run.work_dir} cannot be emptied of what a script left: a fresh folder took its place"
    assert ("warning", words) in [(notice.level, notice.message) for notice in notices]
