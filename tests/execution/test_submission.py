"""Submissions: there or not, how long, and whether they fit the sample."""

from __future__ import annotations

import csv
import io
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from mle_star.data.place import MAX_LINE
from mle_star.execution import check_submission_format, get_submission_info, verify_submission
from mle_star.execution.submission import find_sample_submission, read_facts

SAMPLE = "id,label\n1,0\n2,0\n3,0\n"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in ("input", "final"):
        (tmp_path / name).mkdir()
    return tmp_path


def submit(work: Path, text: str | bytes, name: str = "submission.csv") -> None:
    data = text.encode() if isinstance(text, str) else text
    (work / "final" / name).write_bytes(data)


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
def test_rows_are_counted_without_header_and_absence_has_a_path(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    path = str(work / "final" / "submission.csv")
    assert get_submission_info(".") == {"exists": False, "path": path, "size_bytes": 0, "row_count": None}
    texts = {"a\n1\n2\n3\n": 3, "a\n1\n2\n3": 3, "": 0, "a\n": 0, "a": 0, "a\n\n1\n \n": 3}
    for text, rows in texts.items():
        submit(work, text)
        known = {"exists": True, "path": path, "size_bytes": len(text), "row_count": rows}
        assert get_submission_info(str(work)) == known


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SAMPLE, []),
        ("\ufeff" + SAMPLE, []),
        (SAMPLE.replace("\n", "\r\n"), []),
        ("id,label\n3,1\n2,1\n1,1\n", []),
        ("id , label\n1,0\n2,0\n3,0\n", []),
        ("", ["missing or empty"]),
        ("id,label\n", ["no rows"]),
        ("id,label\n1,0\n2\n3,0\n", ["1 rows do not have the header's 2 columns (first at line 3)"]),
        (b"id,label\n1,\xff\n", ["not a readable UTF-8 CSV file"]),
        (bytes(MAX_LINE + 1), ["lines beyond all length"]),
        ("label,id\n0,1\n0,2\n0,3\n", ["wrong order"]),
        ("id,target\n1,0\n2,0\n3,0\n", ["missing ['label']; not wanted ['target']"]),
        ("id,label\n1,0\n2,0\n", ["2 rows, sample_submission.csv has 3", "1 ids of sample_submission.csv are missing"]),
        ("id,label\n1,0\n2,0\n4,0\n", ["missing in column 'id': '3'", "are not ids of sample_submission.csv: '4'"]),
        ("id,label\n0,0\n7,0\n8,0\n", ["no value of column 'id' matches", "'0' instead of '1'"]),
        ("id,label\n1,0\n2,0\n3,0\n3,0\n", ["4 rows", "1 repeated ids"]),
        ("id,label\n1,0\n2,\n3,nan\n", ["column 'label' is empty in 2 rows"]),
    ],
)
def test_differences_from_the_sample_are_said_in_words(text: str | bytes, words: list[str], work: Path) -> None:
    (work / "input" / "sample_submission.csv").write_text(SAMPLE)
    submit(work, text)
    problems = "\n".join(check_submission_format(str(work)))
    assert bool(problems) is bool(words)
    for word in words:
        assert word in problems


def test_a_table_is_read_only_as_far_as_a_submission_may_go(work: Path) -> None:
    text = b"id,label\n1,0\n2,0\n3,0\n4,0\n\n\n\n"
    assert read_facts(io.BytesIO(text), most_cells=10).rows == 4
    with pytest.raises(csv.Error, match="far more values"):
        read_facts(io.BytesIO(text + b"5,0\n"), most_cells=10)
    (work / "input" / "sample_submission.csv").write_text(SAMPLE)
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
