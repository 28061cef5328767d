"""Working directories, made when missing and emptied wholly, and the submissions that scripts leave in them."""

import csv
import io
import os
import shutil
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from mle_star import execution as ex
from mle_star.data.place import MAX_LINE
from mle_star.errors import ExecutionError
from mle_star.execution import check_submission_format, get_submission_info, verify_submission
from mle_star.execution.artifacts import forget_fitted, listing, save_fitted
from mle_star.execution.recorded import execute_in_run
from mle_star.execution.submission import find_sample_submission, read_facts
from mle_star.execution.workspace import make_harmless, remove_entry, reset_working_directory
from mle_star.run.events import Notice
from mle_star.run.folder import RunFolder
from mle_star.run.journal import read_journal
from tests.conftest import Patch, as_kept
from tests.execution.conftest import OpenRun, printed_by_user, scored, script, write_files


@pytest.mark.req("REQ-EX-001")
def test_a_fresh_directory_is_filled_and_a_used_one_left_alone(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "deep" / "base"
    assert ex.setup_working_directory("deep/base") == str(base)
    (base / "input" / "mine.csv").write_text("a\n")
    assert ex.setup_working_directory("deep/base") == str(base)
    assert (base / "input" / "mine.csv").read_text() == "a\n" and (base / "final").is_dir()


@pytest.mark.req("REQ-EX-002")
def test_final_is_emptied_without_following_links(tmp_path: Path) -> None:
    precious, final = tmp_path / "precious", tmp_path / "work" / "final"
    precious.mkdir(0o755)
    (precious / "file").write_text("mine")
    write_files(final, "nested/deep/old.csv", "submission.csv", ".hidden")
    (final / ".folder").mkdir()
    for name in ("link", "nested/deep/link"):
        (final / name).symlink_to(precious)
    (final / "nested" / "loop").symlink_to(final)
    os.mkfifo(final / "nested" / "fifo")
    (final / "nested" / "deep").chmod(0)
    ex.clean_output_directory(str(tmp_path / "work"))
    assert list(final.iterdir()) == []
    final.rmdir()
    final.symlink_to(precious)
    for place in ("work", "missing"):
        ex.clean_output_directory(str(tmp_path / place))
        assert (tmp_path / place / "final").is_dir() and not (tmp_path / place / "final").is_symlink()
    assert (precious / "file").read_text() == "mine" and precious.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("sweep", [ex.setup_working_directory, reset_working_directory])
def test_a_link_in_place_of_a_directory_goes_its_target_stays(sweep: Callable[[str], object], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    write_files(victim, "input/file", "final/file", "file")
    victim.chmod(0o500)
    before, work = sorted(victim.rglob("*")), Path(ex.prepare_path_directory(tmp_path, "main"))
    remove_entry(work)
    work.symlink_to(victim)
    sweep(str(work))
    assert not work.is_symlink()
    assert (sorted(victim.rglob("*")), victim.stat().st_mode & 0o777) == (before, 0o500) and work.is_dir()


@pytest.mark.req("REQ-EX-005")
def test_a_script_replaces_what_was_there_even_a_link_or_a_folder(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    work = tmp_path / "work"
    work.mkdir()
    (work / "solution.py").symlink_to(victim)
    path = ex.write_script(script("x = 'ä'\r\n"), str(work))
    assert path == str(work / "solution.py") and Path(path).read_bytes() == "x = 'ä'\r\n".encode()
    assert victim.read_text() == "mine"
    (work / "other.py").mkdir()
    ex.write_script(script("y = 2"), str(work), "other.py")
    assert (work / "other.py").read_text() == "y = 2"
    assert sorted(entry.name for entry in work.iterdir()) == ["other.py", "solution.py"]


ENDING = (
    "|  \n\t|exit()|x = 1\nexit (2)|import sys\nsys.exit(1)|# never call exit()|import os\nos._exit(0)|quit()|"
    "app.quit()|cm.exit()"
)


@pytest.mark.req("REQ-EX-006", "REQ-EX-044")
def test_a_script_that_would_end_itself_is_refused_and_not_written(tmp_path: Path) -> None:
    lines = []
    for content in ENDING.split("|"):
        with pytest.raises(ValueError, match=r".") as refused:
            ex.write_script(script(content), str(tmp_path))
        lines.append(f"{content!r}: {refused.value}")
    as_kept("execution/refused.txt", "\n".join(lines))
    assert list(tmp_path.iterdir()) == []
    ex.write_script(script("sys.exitcode = 1\ncm.__exit__(None)\nexits(1)\nmy_quit(1)"), str(tmp_path))


def test_the_data_are_linked_and_what_is_in_their_place_goes_where_the_directory_is_ours(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "images").mkdir(parents=True)
    (data / "train.csv").write_text("new")
    ours, users = Path(ex.prepare_path_directory(tmp_path / "run" / "work", "path-0")), tmp_path / "users"
    ex.link_input_data(str(data), str(ours))
    assert (ours / "input" / "train.csv").is_symlink() and (ours / "input" / "images").is_symlink()
    (ours / "input" / "train.csv").unlink()
    ex.setup_working_directory(str(users))
    names = ("input/train.csv", "input/planted.csv", "notes.txt")
    write_files(ours, *names, text="forged")
    write_files(users, *names, text="the user's own")
    for work in (ours, users):
        ex.link_input_data(str(data), str(work))
    assert (ours / "input" / "train.csv").read_text() == "new"
    assert sorted(entry.name for entry in (ours / "input").iterdir()) == ["images", "train.csv"]
    reset_working_directory(str(users))
    assert {(users / name).read_text() for name in names} == {"the user's own"}
    with pytest.raises(ExecutionError, match="gone"):
        ex.link_input_data(str(tmp_path / "nowhere"), str(users))
    (tmp_path / "by link").symlink_to(users)
    reset_working_directory(ex.setup_working_directory(str(tmp_path / "by link")))
    assert (tmp_path / "by link").is_symlink() and (users / "final").is_dir()


def test_between_two_scripts_our_directory_is_made_anew(tmp_path: Path) -> None:
    """Attributes, modes, times and access lists are of a folder: only another folder has none of them."""
    work = Path(ex.prepare_path_directory(str(tmp_path), "path-1"))
    write_files(work, "catboost_info/log", "model.bin", "final/submission.csv")
    places = [work, work / "input", work / "final"]
    held = [os.open(place, os.O_RDONLY) for place in places]  # so long their numbers are not given to others
    for place in places[::-1]:
        place.chmod(0)
    assert reset_working_directory(str(work))
    assert not {os.fstat(number).st_ino for number in held} & {place.stat().st_ino for place in places}
    for number in held:
        os.close(number)
    assert {place.stat().st_mode & 0o700 for place in places} == {0o700}
    assert sorted(entry.name for entry in work.iterdir()) == ["final", "input"] and not list((work / "final").iterdir())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".path-1.mle-star-work", "path-1"]
    for label in ("", "..", "a/b", "/abs"):  # none leads out of the run
        with pytest.raises(ValueError, match="plain name"):
            ex.prepare_path_directory(str(tmp_path), label)


def test_after_a_script_its_folders_are_open_and_no_program_of_it_runs_as_its_owner(tmp_path: Path) -> None:
    made = [tmp_path / name for name in ("set-uid", "set-gid", "final/both")]
    (tmp_path / "final").mkdir()
    (tmp_path / "plain").touch(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    for path, mode in zip(made, (0o4755, 0o2711, 0o6777), strict=True):
        path.touch()
        path.chmod(mode)
    make_harmless(str(tmp_path), set_ids=False)
    assert made[0].stat().st_mode & 0o7777 == 0o4755
    make_harmless(str(tmp_path), set_ids=True)
    assert [path.stat().st_mode & 0o7777 for path in made] == [0o755, 0o711, 0o777]
    for folder in (tmp_path / "final", tmp_path):
        folder.chmod(0o055)
    make_harmless(str(tmp_path), set_ids=False)
    assert [folder.stat().st_mode & 0o777 for folder in (tmp_path, tmp_path / "final")] == [0o755, 0o755]


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


LOCKED = """
import os, sys
from pathlib import Path
from mle_star.execution.workspace import remove_entry
folder = Path(sys.argv[1]) / "mine"
(folder / "tree").mkdir(parents=True)
(folder / "file").write_text("mine")
(folder / "file").chmod(0o400)
os.chdir(folder / "tree")
for _ in range(60):
    os.link(folder / "file", "hard")
    os.symlink(folder, "soft")
    os.mkdir("n" * 200)
    os.chdir("n" * 200)
    os.chmod("..", 0)
os.chdir("/")
folder.chmod(0o711)
print(remove_entry(folder / "tree"), (folder / "tree").exists())
print(oct(folder.stat().st_mode), oct((folder / "file").stat().st_mode))
"""


def test_a_deep_tree_of_locked_folders_goes_and_nothing_else_is_opened(open_folder: Path) -> None:
    assert printed_by_user(LOCKED, str(open_folder)) == ["True False", "0o40711 0o100400"]


def test_a_tree_of_any_depth_goes_and_what_a_script_has_fitted_is_kept_and_forgotten(tmp_path: Path) -> None:
    tree, made, kept = tmp_path / "tree", tmp_path / "made", RunFolder(tmp_path).model
    for folder, depth, name in ((tree, 60, "n" * 255), (made, 1010, "a")):
        folder.mkdir()
        nest(folder, depth, name)
    assert save_fitted(tmp_path, made) and listing(kept).keys() == {"a/" * depth + "file" for depth in range(1010)}
    forget_fitted(tmp_path)
    assert not kept.exists() and remove_entry(made) and remove_entry(tree) and not made.exists() and not tree.exists()


async def test_what_cannot_be_removed_is_set_aside_and_a_warning_of_the_run(open_run: OpenRun) -> None:
    assert remove_entry(Path("never was"))
    with open_run() as run:
        held = run.work_dir / "held"
        held.mkdir()
        (held / "file").touch()
        number = held.stat().st_ino
        if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", held], check=False).returncode:
            pytest.skip("nothing can be made immutable here, not even for its owner")
        try:
            assert (await execute_in_run(scored(0.7))).score == 0.7
        finally:
            (moved,) = [path for path in run.run_dir.rglob("held") if path.stat().st_ino == number]
            subprocess.run(["chattr", "-i", moved], check=True)
        assert sorted(entry.name for entry in run.work_dir.iterdir()) == ["final", "input", "solution.py"]
        notices = [event for event in read_journal(run.journal.path) if isinstance(event, Notice)]
    words = f"{run.work_dir} cannot be emptied of what a script left: a fresh folder took its place"
    assert ("warning", words) in [(notice.level, notice.message) for notice in notices]


SAMPLE = "id,label\n1,0\n2,0\n3,0\n"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in ("input", "final"):
        (tmp_path / name).mkdir()
    return tmp_path


def submit(work: Path, text: str | bytes, name: str = "submission.csv") -> None:
    (work / "final" / name).write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.mark.req("REQ-EX-024")
def test_a_submission_exists_when_a_plain_file_has_bytes(work: Path) -> None:
    assert not verify_submission(str(work / "nowhere")) and not verify_submission(str(work))
    submit(work, "")
    assert not verify_submission(str(work))
    submit(work, "x")
    assert verify_submission(str(work)) and not verify_submission(str(work), "other.csv")
    submit(work, "x", "other.csv")
    assert verify_submission(str(work), "other.csv")
    (work / "elsewhere.csv").write_text("x")
    (work / "final" / "link.csv").symlink_to(work / "elsewhere.csv")
    os.mkfifo(work / "final" / "fifo.csv")
    (work / "final" / "folder.csv").mkdir()
    for name in ("link.csv", "fifo.csv", "folder.csv", "../elsewhere.csv"):
        assert not verify_submission(str(work), name) and not get_submission_info(str(work), name)["exists"]


@pytest.mark.req("REQ-EX-025")
def test_rows_are_counted_without_header_and_absence_has_a_path(work: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(work)
    path = str(work / "final" / "submission.csv")
    assert get_submission_info(".") == {"exists": False, "path": path, "size_bytes": 0, "row_count": None}
    texts = {"a\n1\n2\n3\n": 3, "a\n1\n2\n3": 3, "": 0, "a\n": 0, "a": 0, "a\n\n1\n \n": 3}
    for text, rows in texts.items():
        submit(work, text)
        known = {"exists": True, "path": path, "size_bytes": len(text), "row_count": rows}
        assert get_submission_info(str(work)) == known


TABLES = """
id,label/1,0/2,0/3,0/ \ufeffid,label/1,0/2,0/3,0/ id,label/3,1/2,1/1,1/ id_,_label/1,0/2,0/3,0/
id,label/ id,label/1,0/2/3,0/ id,label/1/2/3/ id,label/1,\udcff/ label,id/0,1/0,2/0,3/ id,target/1,0/2,0/3,0/
id,label/1,0/2,0/ id,label/1,0/2,0/4,0/ id,label/0,0/7,0/8,0/ id,label/1,0/2,0/3,0/3,0/ id,label/1,0/2,/3,nan/
"""
"""Submissions, their line ends spelled as `/`, blanks as `_`."""


def test_differences_from_the_sample_are_said_and_a_table_read_only_as_far_as_it_may_go(work: Path) -> None:
    (work / "input" / "sample_submission.csv").write_text(SAMPLE)
    lines, tables = [], [table.replace("/", "\n").replace("_", " ") for table in TABLES.split()]
    for text in ("", *tables, SAMPLE.replace("\n", "\r\n"), "x" * (MAX_LINE + 1)):
        submit(work, text.encode("utf-8", "surrogateescape"))
        lines += [ascii(text[:99]), *check_submission_format(str(work))]
    as_kept("execution/submissions.txt", "\n".join(lines))
    data = b"id,label\n1,0\n2,0\n3,0\n4,0\n\n\n\n"
    assert read_facts(io.BytesIO(data), most_cells=10).rows == 4
    with pytest.raises(csv.Error, match="far more values"):
        read_facts(io.BytesIO(data + b"5,0\n"), most_cells=10)
    submit(work, "id,label\n" + "".join(f"{number},0\n" for number in range(9000)))
    assert check_submission_format(str(work)) == ["the submission has more than 1006 rows, sample_submission.csv has 3"]


def test_a_sea_of_blank_lines_is_not_read_to_its_end_and_a_large_table_not_held(work: Path) -> None:
    for text in (b"\n" * 30_000_000, b"id,label\r\n1,0" + b"\r\n" * 15_000_000):
        submit(work, text)
        begun = time.thread_time()
        assert "blank lines" in check_submission_format(str(work))[0]
        assert time.thread_time() - begun < 10  # of computing; to its end it would be half a minute
    submit(work, b"id,a,b,c,d,e,f,g\n" + b"1,0.25,0.25,0.25,0.25,0.25,0.25,0.25\n" * 20_000)
    tracemalloc.start()
    try:
        assert check_submission_format(str(work)) == []
        assert tracemalloc.get_traced_memory()[1] < 3_000_000  # held, they were sixteen
    finally:
        tracemalloc.stop()


def test_a_mask_in_run_lengths_is_a_cell_like_any_other(work: Path) -> None:
    mask = " ".join(f"{start} 1" for start in range(0, 200_000, 2))
    (work / "input" / "sample_submission.csv").write_text(f"id,mask\n1,{mask}\n2,0 1\n")
    submit(work, f"id,mask\n1,{mask}\n2,\n")
    assert len(mask) > 131_072 * 5
    before = csv.field_size_limit()
    assert check_submission_format(str(work)) == ["column 'mask' is empty in 1 rows: every row needs a prediction"]
    assert csv.field_size_limit() == before, "others read tables, too"


@pytest.mark.req("REQ-FN-018")
def test_of_several_samples_none_is_taken(work: Path) -> None:
    for name in ("train_subsample.csv", "subject_samples.csv"):
        (work / "input" / name).write_text("id,other\n1,2\n")
    assert find_sample_submission(str(work)) is None
    submit(work, "anything\n1\n")
    assert check_submission_format(str(work)) == [], "without a sample only the shape is checked"
    for name in ("SampleSub.csv", "SampleSubmission.csv"):
        (work / "input" / name).write_text(SAMPLE)
        assert find_sample_submission(str(work)) == work / "input" / name
        (work / "input" / name).unlink()
    for name in ("sample_submission.csv", "sample_submission_stage2.csv"):
        (work / "input" / name).write_text(SAMPLE)
    submit(work, "id,other\n1,1\n")
    assert find_sample_submission(str(work)) is None and check_submission_format(str(work)) == []
