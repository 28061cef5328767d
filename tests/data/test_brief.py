"""The data brief: what it names, how long it is, and what it never holds."""

from __future__ import annotations

import struct
from pathlib import Path

from mle_star.data.brief import MAX_CHARACTERS, data_brief, picture_size
from mle_star.holdout.holdout import HoldOut
from mle_star.models import PipelineConfig
from tests.conftest import write_split
from tests.method.conftest import make_task


def write_task(folder: Path, labels: list[int]) -> None:
    known = [(i, f"{i % 7 / 3:.3f}", "red" if i % 3 else "blue", label) for i, label in enumerate(labels)]
    new = [(i, i % 5, "green", None) for i in range(len(labels), len(labels) + 40)]
    write_split(folder, "id,size,colour,label", [*known, *new], len(known))


def test_the_brief_names_what_a_script_needs(tmp_path: Path) -> None:
    assert data_brief(tmp_path) == "", "a folder without data has none"
    write_task(tmp_path, [i % 2 for i in range(400)])
    text = data_brief(tmp_path)
    assert "The target `label`: 2 classes: '0' 50 %, '1' 50 %" in text
    assert "`train.csv`: 400 training rows, 4 columns" in text
    assert "- `colour`: 2 values: 'red'" in text
    assert "- `colour`: 100 % of the test rows have a value that training lacks" in text
    assert "only in training: `label`" in text
    assert "    id,label\n    400,0" in text
    assert "Rows are named by `id`." in text
    assert data_brief(tmp_path) == text


def test_a_wide_table_with_hostile_names_stays_within_bounds_and_on_its_lines(tmp_path: Path) -> None:
    names = [f"column number {i} of very many" for i in range(700)] + ['"# Python\n`x` @/etc/passwd"']
    rows = "\n".join(",".join(str((row * 31 + i) % 97) for i in range(701)) + f",{row % 2}" for row in range(60))
    (tmp_path / "train.csv").write_text(",".join([*names, "target"]) + "\n" + rows + "\n", encoding="utf-8")
    text = data_brief(tmp_path)
    assert 1000 < len(text) <= MAX_CHARACTERS
    assert "The target `target`" in text
    assert not any(line.startswith("#") for line in text.splitlines())


def test_nothing_of_the_hidden_labels_reaches_the_brief(tmp_path: Path) -> None:
    """Whatever the hidden rows' labels are, the brief on the view is the same, byte by byte."""
    briefs = set()
    plain = [(i * 7919) % 2 for i in range(400)]
    for number in range(2):
        place = tmp_path / str(number)
        write_task(place / "input", plain)
        task = make_task(place / "input", description="Predict `label`.")
        holdout = HoldOut.prepare(task, PipelineConfig(scoring="auto"), place / "run")
        shown = holdout.seen
        if number:  # turn round what the view hides, in the real data: the brief must not notice
            hidden = set(holdout.views[0].hidden)
            write_task(place / "input", [1 - x if i in hidden else x for i, x in enumerate(plain)])
        text = data_brief(shown, task.description)
        assert str(tmp_path) not in text
        briefs.add(text)
        assert f"{400 - len(holdout.views[0].hidden)} training rows" in text
    assert len(briefs) == 1


def test_pictures_are_told_by_folder_and_size(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 32, 24)
    jpeg = b"\xff\xd8\xff\xe0\x00\x04\0\0\xff\xc0\x00\x11\x08" + struct.pack(">HH", 48, 64) + b"\0" * 8
    for folder in ("train/cat", "train/dog", "test"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.png").write_bytes(png)
    (tmp_path / "test" / "b.jpg").write_bytes(jpeg)
    (tmp_path / "test" / "c.png").write_bytes(b"\x89PNG broken")
    text = data_brief(tmp_path)
    assert "- `train/cat`: 1 pictures, 32 x 24 pixels, such as `a.png`" in text
    assert "- `test`: 3 pictures, 32-64 x 24-48 pixels" in text
    assert picture_size(tmp_path / "test" / "b.jpg") == (64, 48)
