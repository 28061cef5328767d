"""Rows of a file: read as what the file says, moved into another file, and written so that nobody tells them apart."""

from __future__ import annotations

import csv
import io
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mle_star.data.place import create_data, open_data
from mle_star.data.rows import TableRows, Unsupported, read_rows
from mle_star.data.tables import Form, Table

COLUMNS = ("id", "note", "y", "x")
KNOWN = ["", "1", "-2.5", "plain", " padded ", 'a "quoted" word', "two\nlines", "two\r\nlines", "a,b;c\td|e", "é"]
CELLS = st.one_of(st.sampled_from(KNOWN), st.text('ab0 ,;\t|"\né\xa0\x1f', max_size=6))


class Written(NamedTuple):
    separator: str = ","
    line_end: str = "\n"
    encoding: str = "utf-8"
    is_ended: bool = True
    always_quoted: bool = False
    has_header: bool = True
    suffix: str = ".csv"

    def text(self, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
        text = io.StringIO()
        writer = csv.writer(
            text, delimiter=self.separator, lineterminator=self.line_end,
            quoting=csv.QUOTE_ALL if self.always_quoted else csv.QUOTE_MINIMAL,
        )  # fmt: skip
        writer.writerows([columns, *rows] if self.has_header else rows)
        return text.getvalue() if self.is_ended else text.getvalue().removesuffix(self.line_end)

    def read(self, folder: Path, stem: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> TableRows:
        form = Form("csv", self.encoding, self.separator, has_header=self.has_header)
        table = Table(f"{stem}{self.suffix}", columns, {}, len(rows), True, form)
        with create_data(folder / table.name) as stream:
            stream.write(self.text(columns, rows).encode(self.encoding))
        return read_rows(table, folder)


FORMS = st.builds(
    Written, st.sampled_from([",", ";", "\t", "|"]), st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "utf-16"]), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([".csv", ".csv.gz", ".csv.zip", ".csv.bz2", ".csv.xz"]),
).filter(lambda form: form.is_ended or form.has_header)  # fmt: skip
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=12)


@given(FORMS, ROWS)
@example(
    Written(line_end="\r\n", encoding="utf-8-sig", is_ended=False), [("7", "a  b", "1", "0.5"), ("8", "", "0", " 2")]
)
def test_columns_are_those_that_a_reader_of_every_cell_finds(form: Written, rows: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = form.read(Path(folder), "t", COLUMNS, rows)
        assert found.count == len(rows)
        for place, name in enumerate(COLUMNS):
            assert found.column(name) == [row[place].strip() for row in rows]
        backwards = range(len(rows) - 1, -1, -1)
        assert found.values(["x", "id"], backwards) == [
            [rows[i][3] for i in backwards],
            [rows[i][0] for i in backwards],
        ]


@given(FORMS, ROWS, ROWS, st.randoms(use_true_random=False))
def test_moved_rows_fit_in(form: Written, train: list[tuple[str, ...]], test: list[tuple[str, ...]], dice: Any) -> None:
    """What stays is the same to the byte; what moves is written as the file's own writer writes it."""
    rows = [(x, key, note) for key, note, _, x in test]  # columns in another order, and none for the target
    rows[0] = ("0.5", "7", "first")  # shows whether the file quotes what need not be quoted
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        known = form.read(folder, "train", COLUMNS, train)
        into = form.read(folder, "test", ("x", "id", "note"), rows)
        hidden = sorted(dice.sample(range(len(train)), dice.randint(1, len(train))))
        names = [dice.choice(["r1", "17", 'odd "name"', f"a{form.separator}b"]) for _ in hidden]
        order = dice.sample(range(len(test) + len(hidden)), len(test) + len(hidden))
        moved = known.edited(hidden, into, ["y"], {"id": names})
        into.holding(moved, behind_own=True).write(folder / "out" / into.table.name, order)
        every = [*rows, *((train[i][3], name, train[i][1]) for i, name in zip(hidden, names, strict=True))]
        wanted = form._replace(is_ended=True).text(("x", "id", "note"), [every[i] for i in order])
        with open_data(folder / "out" / into.table.name) as stream:
            assert stream.read().decode(form.encoding) == wanted
        kept = [i for i in range(len(train)) if i not in hidden]
        known.write(folder / "out" / known.table.name, kept)
        left = form._replace(is_ended=form.is_ended or len(train) - 1 in hidden)
        with open_data(folder / "out" / known.table.name) as stream:
            assert stream.read().decode(form.encoding) == (left.text(COLUMNS, [train[i] for i in kept]))


@given(FORMS, FORMS, ROWS, ROWS)
def test_forms_may_mix(one: Written, other: Written, train: list[tuple[str, ...]], test: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        known = one.read(Path(place), "train", COLUMNS, train)
        into = other.read(Path(place), "test", ("x", "id"), [(x, key) for key, _, _, x in test])
        moved = known.edited(range(len(train)), into, (), {"x": ["é"] * len(train)})
        into.holding(moved, behind_own=True).write(Path(place) / "out" / into.table.name, range(len(test) + len(train)))
        again = read_rows(into.table, Path(place) / "out")
        assert again.values(["x", "id"], range(again.count)) == [
            [*(row[3] for row in test), *["é"] * len(train)], [*(row[0] for row in test), *(row[0] for row in train)]
        ]  # fmt: skip


@pytest.mark.parametrize("many", [1, 30_000])
@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ("\n", "blank lines"), ("1,a,0\n", "number of fields"), ('1,"a",0,1,7\n', "number of fields"),
        ("1,a\rb,0,1\n", "number of fields"), ('1,"a\rb",0,\r1\n', "number of fields"),
        ('1,"a,0,1\n', "number of fields"), ('1,a"b,"0,1\n', "number of fields"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_told_apart_are_refused(odd: str, why: str, many: int, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(("id,note,y,x\n" + "1,a,0,1\n" * many + odd + "2,b,1,1\n").encode())
    with pytest.raises(Unsupported, match=why):
        read_rows(Table("t.csv", COLUMNS, {}, 2, True, Form()), tmp_path)


def test_bytes_that_are_no_text_come_back_and_line_ends_of_two_kinds_become_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,note,y,x\n1,a\xff,0,1\r\n2,b,1,1\r\n\n\r\n")
    rows = read_rows(Table("t.csv", COLUMNS, {}, 2, True, Form()), tmp_path, ["note"])
    assert rows.column("note") == ["a\ufffd", "b"]
    rows.write(tmp_path / "kept.csv", [0])
    assert (tmp_path / "kept.csv").read_bytes() == b"id,note,y,x\n1,a\xff,0,1\r\n"
    more = rows.holding(rows.edited([0], rows, ["y"], {"x": ["5"]}), behind_own=True)
    more.write(tmp_path / "mixed.csv", [2, 1, 0])
    assert (tmp_path / "mixed.csv").read_bytes() == b"id,note,y,x\n1,a\xff,,5\n2,b,1,1\n1,a\xff,0,1\n"


def test_rows_with_odd_quotes_are_moved_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b'id,h,w\n1,5",6"\n2,7",8"\n')
    (tmp_path / "test.csv").write_bytes(b"id,h\n9,1\n")
    train = read_rows(Table("train.csv", ("id", "h", "w"), {}, 2, True, Form()), tmp_path)
    test = read_rows(Table("test.csv", ("id", "h"), {}, 1, True, Form()), tmp_path)
    test.holding(train.edited([0, 1], test), behind_own=True).write(tmp_path / "moved.csv", [0, 1, 2])
    assert (tmp_path / "moved.csv").read_bytes() == b'id,h\n9,1\n1,5"\n2,7"\n'


def test_a_file_of_many_megabytes_is_read_by_column_and_written_without_a_change(tmp_path: Path) -> None:
    count, mask = 80_000, " ".join(map(str, range(60_000)))  # longer than the cells that `csv` takes by itself
    lines = [f'{i},"n, {i % 7}",{i % 3},{i / 8}' if i % 9 == 0 else f"{i},note,{i % 3},{i / 8}" for i in range(count)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(COLUMNS), *lines, f'{count},"{mask}",0,1']) + "\n")
    rows = read_rows(Table("t.csv", COLUMNS, {}, count, True, Form()), tmp_path, ["y", "note"])
    assert rows.column("y") == [str(i % 3) for i in range(count)] + ["0"] and rows.column("note")[-1] == mask
    assert rows.values(["note", "id"], [9, 10]) == [["n, 2", "note"], ["9", "10"]]
    rows.write(tmp_path / "all.csv", range(count + 1))
    assert (tmp_path / "all.csv").read_bytes() == (tmp_path / "t.csv").read_bytes()
    some = sorted(random.Random(1).sample(range(count), 1000))
    rows.write(tmp_path / "some.csv", some)
    assert (tmp_path / "some.csv").read_text().splitlines()[1:] == [lines[i] for i in some]


def test_a_parquet_file_may_be_left_without_rows(tmp_path: Path) -> None:
    pandas.DataFrame({"id": [1, 2], "note": ["a", "b"]}).to_parquet(tmp_path / "t.parquet", index=False)
    rows = read_rows(Table("t.parquet", ("id", "note"), {}, 2, True, Form("parquet")), tmp_path)
    rows.write(tmp_path / "none.parquet", [])
    left = pandas.read_parquet(tmp_path / "none.parquet")
    assert (len(left), list(left), str(left["id"].dtype)) == (0, ["id", "note"], "int64")
