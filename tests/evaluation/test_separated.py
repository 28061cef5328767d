"""Files of separated values cut at the bytes: what comes out is what reading and writing every cell would give."""

from __future__ import annotations

import csv
import io
import os
import random
import tempfile
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mle_star.data.dialect import Dialect
from mle_star.data.tables import Form, Table
from mle_star.evaluation.cells import MOST_DIGITS, Coded, Packed, codes_of, counted, cut_column, taken, whole_numbers
from mle_star.evaluation.keys import numbers_of
from mle_star.evaluation.records import FileRows, _settle, named, write_rows
from mle_star.evaluation.scan import scan
from mle_star.evaluation.separated import LARGE_BYTES, Separated, Unsupported, alike, read_separated, written

COLUMNS = ("id", "note", "y", "x")
KNOWN = ["", "1", "-2.5", "plain", " padded ", 'a "quoted" word', "two\nlines", "two\r\nlines", "a,b;c\td|e", "é"]
CELLS = st.one_of(st.sampled_from(KNOWN), st.text('ab0 ,;\t|"\né\xa0\x1f', max_size=6))


class Written(NamedTuple):
    """A file as somebody may have written it."""

    rows: list[tuple[str, ...]]
    separator: str
    line_end: str
    encoding: str
    is_ended: bool
    always_quoted: bool

    @property
    def content(self) -> bytes:
        """Its bytes."""
        text = io.StringIO()
        writer = csv.writer(
            text, delimiter=self.separator, lineterminator=self.line_end,
            quoting=csv.QUOTE_ALL if self.always_quoted else csv.QUOTE_MINIMAL,
        )  # fmt: skip
        writer.writerows([COLUMNS, *self.rows])
        whole = text.getvalue()
        return (whole if self.is_ended else whole.removesuffix(self.line_end)).encode(self.encoding)

    @property
    def table(self) -> Table:
        """What a survey would say of it."""
        return Table("t.csv", COLUMNS, {}, len(self.rows), True, Form("csv", self.encoding, Dialect(self.separator)))


def files(cells: st.SearchStrategy[str], *, always_quoted: st.SearchStrategy[bool]) -> st.SearchStrategy[Written]:
    """Files of such cells, in all the ways that files are written."""
    return st.builds(
        Written, st.lists(st.tuples(cells, cells, cells, cells), min_size=1, max_size=12),
        st.sampled_from([",", ";", "\t", "|"]), st.sampled_from(["\n", "\r\n"]),
        st.sampled_from(["utf-8", "utf-8-sig", "cp1252"]), st.booleans(), always_quoted,
    )  # fmt: skip


FILES = st.one_of(
    files(CELLS, always_quoted=st.booleans()),
    files(st.text("ab0. é\xa0\x1f", max_size=30), always_quoted=st.just(False)),
)
PLAIN = Written([("7", "a  b", "1", "0.5"), ("8", "", "0", " 2")], ",", "\r\n", "utf-8-sig", False, False)
BARE = Written([("7", "a.b", "1", "0.5"), ("8", "", "0", "2"), ("9", "é", "", "")], ",", "\r\n", "utf-8", False, False)


def opened(made: Written, folder: Path) -> Separated:
    (folder / "t.csv").write_bytes(made.content)
    return read_separated(made.table, folder / "t.csv")


@given(FILES)
@example(PLAIN)
@example(BARE)
@example(BARE._replace(always_quoted=True))
def test_records_and_columns_are_those_that_a_reader_of_every_cell_finds(made: Written) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = opened(made, Path(folder))
        text = made.content.decode(made.encoding)
        said = list(csv.reader(io.StringIO(text, newline=""), delimiter=made.separator))[1:]
        rows = [[cell.strip() for cell in row] for row in said]
        longest = max(len(cell.encode()) for row in said for cell in row)
        assert found.count == len(rows) == len(made.rows)
        assert [list(row) for row in zip(*found.columns(COLUMNS), strict=True)] == rows
        backwards = range(len(rows) - 1, -1, -1)
        assert found.cells(["x", "id"], backwards) == [[rows[place][3], rows[place][0]] for place in backwards]
        for first, last in ((3, 0), (1, 1), (0, 2)):
            for place, cells in enumerate(found.plain_cells(range(len(rows)), first, last)):
                between = made.separator.join(said[place][first : 4 - last])
                assert cells is None or cells == [*said[place][:first], between, *said[place][4 - last :]]
        for index, name in enumerate(COLUMNS):
            near = found.column_near_an_end(name)
            assert near is None or list(near) == [row[index] for row in rows]
            assert near is not None or not found.is_plain or longest > 20
        by_arrow = found._columns_by_arrow(["y", "note"])
        if made.encoding == "cp1252":
            assert by_arrow is None
        elif by_arrow is not None:
            assert list(map(list, by_arrow)) == [[row[2] for row in rows], [row[1] for row in rows]]


@given(FILES, st.integers(1, 40), st.integers(1, 40))
def test_a_file_that_is_looked_at_in_pieces_has_the_same_records(made: Written, block: int, chunk: int) -> None:
    whole, pieces = (scan(made.content, made.separator, *sizes) for sizes in ((), (block, chunk)))
    assert whole.starts.tolist() == pieces.starts.tolist()
    assert (whole.is_quoted, whole.is_plain) == (pieces.is_quoted, pieces.is_plain)
    assert whole.is_quoted or whole.separators == pieces.separators


KEYS = st.one_of(
    st.tuples(st.just(""), st.integers(0, 10**19).map(str)),
    st.tuples(st.sampled_from(["r", "row_", "a long name of a row "]), st.from_regex(r"[0-9]{1,9}", fullmatch=True)),
    st.tuples(st.just(""), st.text("ab01 é\0-", max_size=12)),
)


@given(st.lists(KEYS, min_size=1, max_size=30), st.booleans(), st.booleans(), st.integers(0, 40))
@example([("", "7"), ("", "10"), ("", "123456789012345678")], True, True, 0)
@example([("r", "09"), ("r", "10")], False, True, 0)
@example([("", "9999999999999999999"), ("", "1")], True, True, 20)
@example([("", "aaaaaaaaaaaaaaaa"), ("", "9d1JBBuJ9MBNGhF1")], True, True, 20)  # the same, when told by one number
@example([("r", "0000000"), ("", "")], False, False, 35)
@example([("r", "0000000"), ("", "")], True, False, 35)
def test_a_column_without_texts_says_what_its_texts_say(
    keys: list[tuple[str, str]], from_left: bool, same: bool, around: int
) -> None:
    cells = [(keys[0][0] if same else before) + behind for before, behind in keys]
    lines = [f"{cell},,x" if from_left else f"x,,{cell}" for cell in cells]
    data = b"," * around + "\n".join(lines).encode() + b"," * around  # near the ends of a file words are cut elsewhere
    lengths = [len(line.encode()) for line in lines]
    begins = around + np.cumsum([0, *(length + 1 for length in lengths[:-1])])
    found = cut_column(
        np.frombuffer(data, np.uint8), begins, begins + lengths, ord(","), 0, from_left=from_left, encoding="utf-8"
    )  # fmt: skip
    texts = [cell.strip() for cell in cells]
    assert found is not None and list(found) == texts and [found[place] for place in range(len(texts))] == texts
    assert taken(found, [0, -1]) == [texts[0], texts[-1]] and found[1:3] == texts[1:3]
    assert counted(found) == Counter(texts)
    codes = codes_of(found).tolist()
    assert [codes[i] == codes[0] for i in range(len(texts))] == [text == texts[0] for text in texts]
    assert numbers_of(found) == numbers_of(texts)
    if all(33 <= ord(letter) < 127 for cell in cells for letter in cell):
        assert isinstance(found, Packed | Coded), "without an object for each"
        held = Packed(np.array([text.encode() for text in texts], "S40").view(np.uint64).reshape(-1, 5), sizes(texts))
        assert list(held) == texts and numbers_of(held) == numbers_of(texts)
        before = keys[0][0] if same else ""
        digits = [text.removeprefix(before) for text in texts]
        numbers = whole_numbers(held, before)
        assert (numbers is not None) == all(digit.isdecimal() and len(digit) <= MOST_DIGITS for digit in digits)
        assert numbers is None or numbers[0].tolist() == list(map(int, digits))


def sizes(texts: list[str]) -> Any:
    return np.array([len(text) for text in texts])


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5), CELLS)
def test_rows_like_an_example_are_written_as_if_one_by_one(rows: list[tuple[str, str]], other: str) -> None:
    table = Table("s.csv", ("id", "y", "x"), {}, 0, True, Form())
    example, columns = {"id": "0", "y": other, "x": "1"}, [list(column) for column in zip(*rows, strict=True)]
    made = alike(example, {"id": columns[0], "x": columns[1]}, table, len(rows))
    plainly = [{"id": one, "y": other, "x": two} for one, two in rows]
    assert [row if isinstance(row, bytes) else written(row, table) for row in made] == [
        written(row, table) for row in plainly
    ]


def plainly(made: Written, found: Separated, hidden: list[int], names: dict[int, str], order: list[int]) -> bytes:
    """A file with all rows and the hidden ones once more, as it would be written cell by cell."""
    end = made.line_end.encode()
    own = [found.record(place).rstrip(b"\r\n") + end for place in range(found.count)]
    rows = [dict(zip(COLUMNS, cells, strict=True)) for cells in found.cells(COLUMNS, hidden, bare=False)]
    moved: list[dict[str, Any]] = [
        named({k: v for k, v in row.items() if k != "y"}, "id", names.get(place))
        for place, row in zip(hidden, rows, strict=True)
    ]
    records = [*own, *(written(row, made.table) + end for row in moved)]
    mark = b"\xef\xbb\xbf" if made.encoding == "utf-8-sig" else b""
    return mark + found.header + b"".join(records[place] for place in order)


@given(FILES, st.randoms(use_true_random=False))
@example(PLAIN, random.Random(1))
@example(BARE, random.Random(1))
def test_rows_are_taken_out_and_moved_as_if_every_cell_were_written_anew(made: Written, dice: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = opened(made, Path(folder))
        rows, target = FileRows(made.table, Path("t.csv"), found.count, found), Path(folder) / "out.csv"
        hidden = sorted(dice.sample(range(found.count), dice.randint(0, found.count)))
        names = {place: dice.choice(["r1", "17", 'odd "name"', f"a{made.separator}b"]) for place in hidden[::2]}
        order = dice.sample(range(found.count + len(hidden)), found.count + len(hidden))
        write_rows(target, rows, None, rows.moved(hidden, made.table, {"y"}, "id", names), order)
        assert target.read_bytes() == plainly(made, found, hidden, names, order)
        kept = [place for place in range(found.count) if place not in hidden]
        write_rows(target, rows, kept, [], None)
        whole = made.content if made.is_ended or not kept or kept[-1] < found.count - 1 else made.content + b"\n"
        records = [found.record(place) for place in hidden]
        assert len(target.read_bytes()) == len(whole) - sum(map(len, records))
        again = read_separated(made.table, target)
        assert again.cells(COLUMNS, range(again.count)) == found.cells(COLUMNS, kept)


@pytest.mark.parametrize("quoted", ['"n, 2"', "n 2"])
def test_a_file_of_many_megabytes_is_read_by_column_and_written_without_a_change(quoted: str, tmp_path: Path) -> None:
    count = 80_000
    notes = [quoted if i % 1000 == 0 else f"a note of number {i % 7}" for i in range(count)]
    labels = ["9" if i == 12_345 else str(i % 3) for i in range(count)]  # one that a sample does not hold
    lines = [f"{i},{note},{label},{i / 8}" for i, (note, label) in enumerate(zip(notes, labels, strict=True))]
    (tmp_path / "t.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    assert (tmp_path / "t.csv").stat().st_size > LARGE_BYTES
    table = Table("t.csv", COLUMNS, {}, count, True, Form())
    rows = FileRows(table, tmp_path / "t.csv", count, read_separated(table, tmp_path / "t.csv"))
    assert list(rows.column("y")) == labels
    if quoted == "n 2":
        assert isinstance(rows.column("y"), Coded) and isinstance(rows.column("id"), Packed)
        assert list(rows.column("id")) == [str(i) for i in range(count)] and numbers_of(rows.column("id")) is not None
    assert rows.values(["note", "id"], [5000, 5001]) == [[quoted.strip('"'), "5000"], ["a note of number 3", "5001"]]
    write_rows(tmp_path / "all.csv", rows, range(count), [], None)
    assert (tmp_path / "all.csv").read_bytes() == (tmp_path / "t.csv").read_bytes()
    kept = [i for i in range(count) if i % 3]
    write_rows(tmp_path / "some.csv", rows, kept, [], None)
    assert (tmp_path / "some.csv").read_text().splitlines()[1:] == [lines[i] for i in kept]


@pytest.mark.parametrize("many", [1, LARGE_BYTES // 8])
@pytest.mark.parametrize(("odd", "why"), [("\n", "blank lines"), ("1,a,0\n", "number of fields")])
def test_rows_that_cannot_be_told_apart_are_refused(odd: str, why: str, many: int, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,note,y,x\n" + "1,a,0,1\n" * many + odd + "2,b,1,1\n")
    table = Table("t.csv", COLUMNS, {}, 2, True, Form())
    with pytest.raises(Unsupported, match=why):
        read_separated(table, tmp_path / "t.csv").columns(["y"])


@pytest.mark.parametrize("odd", [b"\r", b"\0", b'"'])
def test_a_return_a_zero_or_a_quote_inside_of_a_cell_is_nothing_plain(odd: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,note,y,x\r\n1,a" + odd + b"b,0,1\r\n2,b,1,1" + b"\r\n")
    found = read_separated(Table("t.csv", COLUMNS, {}, 2, True, Form()), tmp_path / "t.csv")
    assert list(found.plain_cells(range(found.count), 1, 1))[:1] == [None]
    assert not found.is_plain or odd == b"\0"


def test_lines_that_end_in_two_ways_are_moved_with_the_line_end_of_the_header(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,note,y,x\n1,a,0,1\r\n2,b,1,1\r\n")
    found = read_separated(Table("t.csv", COLUMNS, {}, 2, True, Form()), tmp_path / "t.csv")
    assert list(map(bytes, found.ended([1, 0]))) == [b"2,b,1,1\n", b"1,a,0,1\n"]
    assert found.columns(["x", "id"]) == [["1", "1"], ["1", "2"]] and not found.is_plain


def test_what_cannot_be_brought_to_a_disk_is_left_to_the_system() -> None:
    seen, file = os.pipe()
    _settle(file, Event())
    assert os.read(seen, 1) == b""  # nobody holds the other end any more
    os.close(seen)
