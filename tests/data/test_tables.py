"""Tables are read as they are written, moved row by row so that nobody tells them apart, and described in a brief."""

import csv
import io
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mle_star.data.brief import MAX_CHARACTERS, data_brief
from mle_star.data.layout import find_layout
from mle_star.data.place import create_data, open_data
from mle_star.data.rows import TableRows, read_rows
from mle_star.data.tables import Form, Table, Unsupported, name_of_test, read_table
from mle_star.engineer.parts.reading import read_table as read_in_script
from mle_star.engineer.profile import table_settings
from mle_star.holdout.holdout import HoldOut
from mle_star.models import PipelineConfig
from tests.conftest import as_kept, write_split
from tests.method.conftest import make_task

COLUMNS = ("id", "note", "y", "x")
KNOWN = ["", "1", "-2.5", "plain", " padded ", 'a "quoted" word', "two\nlines", "two\r\nlines", "a,b;c\td|e", "é"]
CELLS = st.one_of(st.sampled_from(KNOWN), st.text('ab0 ,;\t|"\né\xa0\x1f', max_size=6))


def look(path: Path) -> Table:
    table = read_table(path)
    assert isinstance(table, Table), table
    return table


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tables which scripts of the current folder see as `./input`."""
    (tmp_path / "input").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_scripts_read(table: Table) -> pandas.DataFrame:
    """The frame that the engineer's scripts make of the file."""
    frame = read_in_script(table_settings(table))
    assert isinstance(frame, pandas.DataFrame)
    return frame


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_any_encoding_is_read(encoding: str, separator: str, place: Path) -> None:
    rows = [["Größe", "n"], ["groß", "1.5"], ["klein", "2.5"]]
    (place / "table.csv").write_text("\n".join(map(separator.join, rows)) + "\n", encoding=encoding)
    table = look(place / "table.csv")
    assert table.sample == {"Größe": ["groß", "klein"], "n": ["1.5", "2.5"]}
    assert as_scripts_read(table).to_dict("list") == {"Größe": ["groß", "klein"], "n": [1.5, 2.5]}


def test_a_mark_of_utf_8_does_not_hide_another_encoding(place: Path) -> None:
    (place / "table.csv").write_bytes(b"\xef\xbb\xbfname,n\ngro\xdf,1.5\nklein,2.5\n")
    table = look(place / "table.csv")
    assert (table.form.encoding, table.sample["n"]) == ("cp1252", ["1.5", "2.5"])
    assert tuple(as_scripts_read(table)) == table.columns
    rows = read_rows(table, place)
    rows.write(place / "same.csv", range(rows.count))
    assert (place / "same.csv").read_bytes() == (place / "table.csv").read_bytes()


COMMAS = [
    "a;b\n81,25;x\n7,5;y\n", "a;b\n1.234,5;x\n7,25;y\n", "a;b\n-0,5;x\n;y\n", 'a,b\n"81,25",x\n"7,5",y\n',
    'a,b\n"1,234",x\n"7,500",y\n', "a;b\n1.5;x\n2.25;y\n", "a;b\n1,234;x\n7,500;y\n",
    "a;b\n" + "1.234,5;01.12.2015\n2.234,5;02.12.2015\n" * 20, "a, b\n81, x\n7, y\n",
]  # fmt: skip


def test_commas_in_decimals_are_read_and_texts_and_dates_stay(place: Path) -> None:
    lines = []
    for number, content in enumerate(COMMAS):
        (place / f"{number}.csv").write_text(content)
        table = look(place / f"{number}.csv")
        lines.append(f"{content!r}: {table.sample} {as_scripts_read(table).to_dict('list')}")
    as_kept("data/commas.txt", "\n".join(lines))


def test_every_form_of_a_table_is_the_same_table(place: Path) -> None:
    kinds = ["ab", "c d", "e\u2028f"] * 10  # the last one holds what only some readers take for the end of a line
    frame = pandas.DataFrame({"id": range(30), "x": [i / 4 for i in range(30)], "kind": kinds})
    frame.to_csv(place / "a.csv", index=False)
    frame.to_csv(place / "b.csv.gz", index=False)
    frame.to_csv(place / "c.csv.zip", index=False)
    frame.to_csv(place / "d.tsv", index=False, sep="\t")
    frame.to_excel(place / "e.xlsx", index=False)
    frame.to_parquet(place / "f.parquet")
    frame.to_json(place / "g.json", orient="records")
    (place / "h.jsonl").write_text(frame.to_json(orient="records", lines=True, force_ascii=False), encoding="utf-8-sig")
    (place / "i.json").write_text(json.dumps({"rows": frame.to_dict("records")}), encoding="utf-8-sig")
    (place / "j.json").write_text(json.dumps(frame.to_dict("list")), encoding="utf-8-sig")
    for path in sorted(path for path in place.iterdir() if path.is_file()):
        table = look(path)
        assert (table.columns, table.rows, table.whole) == (("id", "x", "kind"), 30, True), path
        assert [float(cell) for cell in table.sample["x"]] == list(frame["x"]), path
        pandas.testing.assert_frame_equal(as_scripts_read(table), frame, check_dtype=False)


def test_lists_and_nested_records_keep_their_shape_and_a_long_table_is_sampled_and_counted(tmp_path: Path) -> None:
    records = '[{"tags": ["a"], "at": {"x": 1.5, "of": {"y": "X"}}}, {"tags": [], "z": null}]'
    (tmp_path / "train.json").write_text(records)
    wanted = {"tags": [["a"], []], "at.x": ["1.5", ""], "at.of.y": ["X", ""], "z": ["", ""]}
    assert look(tmp_path / "train.json").sample == wanted
    rows = read_rows(look(tmp_path / "train.json"), tmp_path)
    assert rows.column("at.x") == ["1.5", ""] and rows.values(["at.of.y", "z"], [1, 0]) == [[None, "X"], [None, None]]
    with pytest.raises(Unsupported, match=r"at\.x lies inside of objects"):
        rows.edited([0], rows, ["at.x"])  # else a label would stay in there
    (tmp_path / "test.json").write_text('[{"tags": [], "at": {"of": {"y": "Y"}}, "z": 1}]')
    assert rows.edited([0], read_rows(look(tmp_path / "test.json"), tmp_path))[0]["at"] == {"of": {"y": "X"}}
    pandas.DataFrame({"code": ["007", "8"]}).to_excel(tmp_path / "train.xlsx", index=False)
    assert look(tmp_path / "train.xlsx").sample == {"code": ["007", "8"]}
    path, dice = tmp_path / "long.csv", random.Random(1)
    lines = [",".join(str(dice.randint(0, 9)) for _ in range(30)) for _ in range(80_000)]
    path.write_text("\n".join([",".join(f"c{i}" for i in range(30)), *lines]))
    table = look(path)
    assert (table.rows, table.whole) == (80_000, False) and 5_000 < len(table.sample["c0"]) < 30_000
    frame = pandas.read_csv(path)
    frame.to_parquet(tmp_path / "long.parquet", row_group_size=7_001)
    sample = look(tmp_path / "long.parquet").sample["c0"]
    assert sample == [str(cell) for cell in frame["c0"][:: -(-len(frame) // len(sample))]] and len(sample) < 30_000


def write(folder: Path, **tables: dict[str, list[Any]]) -> Path:
    for name, columns in tables.items():
        pandas.DataFrame(columns).to_csv(folder / f"{name}.csv", index=False)
    return folder


IDS = list(range(9))
KINDS: dict[str, list[Any]] = {"id": [1, 2, 3], "x": [1, 2, 3], "kind": ["a", "b", "a"]}
NUMBERS: dict[str, list[Any]] = {"T": [1.5, 2.5, 2.5], "RH": [3, 4, 4]}
SPLIT: dict[str, Any] = {"train": {"id": IDS, "x": IDS}, "train_labels": {"id": IDS, "grade": [1, 2, 3] * 3}}
NEW: dict[str, Any] = {"test": {"id": [4], "x": [1]}}
BOTH: dict[str, Any] = {"train": {"id": [1, 2], "x": [1, 2], "a": [1, 2], "b": [2, 1]}, **NEW}
WORDS = (
    "Predict `a` and `b`.", "The target is `b`. Mind `a`.", "Mind `a`.", "Mind `b`, then `a`.",
    "The targets: `b`, `x`.", "The target is `b`.\nThe target is `b`, `a`.\nMind `x`.",
    "The target is `a`.\nThe target is `b` of old.",
)  # fmt: skip
LAYOUTS: list[tuple[dict[str, Any], str]] = [
    # a submission that repeats the test table has no key
    ({"train": {**NUMBERS, "NO2": [1, 2, 3]}, "test": NUMBERS, "sample_submission": {"NO2": [0] * 3, **NUMBERS}}, ""),
    # labels of their own are joined by what both share, unless the training table has a target
    ({**SPLIT, **NEW, "shops": {"shop": [1]}, "sample_submission": {"id": [4], "grade": [1]}}, ""),
    ({**SPLIT, "train": {"id": IDS, "x": IDS, "y": [0, 1, 1] * 3}, **NEW}, ""),
    ({**{f"train_{n}": KINDS for n in range(8)}, **{f"shops_{n}": {"shop": [1]} for n in range(8)}}, ""),
    # one column for each class
    ({"train": KINDS, **NEW, "sample_submission": {"id": [4], "kind_a": [0.5], "kind_b": [0.5]}}, ""),
    ({"train": {**KINDS, "b": [1] * 3, "a": [2] * 3}, **NEW, "sample_submission": {"id": [4], "a": [1], "b": [0]}}, ""),
    *((BOTH, words) for words in WORDS),
    ({"train": BOTH["train"]}, "Mind `b`, then `a`."),
    *(({"more": {f"n{n}": [1, 2] for n in range(count)}, "a": {"n0": [1, 2]}}, "") for count in (11, 12)),
]


def test_the_layout_and_the_description_tell_keys_targets_and_answers(tmp_path: Path) -> None:
    lines = []
    for number, (frames, words) in enumerate(LAYOUTS):
        (tmp_path / str(number)).mkdir()
        layout = find_layout(write(tmp_path / str(number), **frames), words)
        others = [table.name for table in (layout.labels, *layout.others) if table]
        target = (layout.target.names, layout.answers, layout.target.class_prefix, layout.target.reason)
        lines.append(f"{[*frames]} {words}: {(layout.train.name, layout.key, layout.labels_key, *target, others)}")
    as_kept("data/layouts.txt", "\n".join(lines))


def test_a_second_look_at_a_table_costs_nothing_and_a_changed_one_is_looked_at_anew(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("a,b\n1,x\n2,y\n")
    while (first := look(path)) is not look(path):  # in the first moments it could change without a trace
        time.sleep(0.05)
    assert first.column("a") is look(path).column("a")
    path.write_text("a,b\n3,x\n4,y\n")
    assert look(path).sample["a"] == ["3", "4"]


def write_task(folder: Path, labels: list[int]) -> None:
    known = [(i, f"{i % 7 / 3:.3f}", "red" if i % 3 else "blue", label) for i, label in enumerate(labels)]
    new = [(i, i % 5, "green", None) for i in range(len(labels), len(labels) + 40)]
    write_split(folder, "id,size,colour,label", [*known, *new], len(known))


def test_a_wide_table_with_hostile_names_stays_within_bounds_and_on_its_lines(tmp_path: Path) -> None:
    names = [f"column number {i} of very many" for i in range(700)] + ['"# Python\n`x` @/etc/passwd"']
    rows = "\n".join(",".join(str((row * 31 + i) % 97) for i in range(701)) + f",{row % 2}" for row in range(60))
    (tmp_path / "train.csv").write_text(",".join([*names, "target"]) + "\n" + rows + "\n", encoding="utf-8")
    text = data_brief(tmp_path)
    assert 1000 < len(text) <= MAX_CHARACTERS and "The target `target`" in text
    assert not any(line.startswith("#") for line in text.splitlines())


def test_nothing_of_the_hidden_labels_reaches_the_brief(tmp_path: Path) -> None:
    """Whatever the hidden rows' labels are, the brief on the view is the same, byte by byte."""
    assert data_brief(tmp_path) == "", "a folder without data has none"
    briefs, plain = set(), [(i * 7919) % 2 for i in range(400)]
    for number in range(2):
        place = tmp_path / str(number)
        write_task(place / "input", plain)
        assert "- `colour`: 100 % of the test rows have a value that training lacks" in data_brief(place / "input")
        task = make_task(place / "input", description="Predict `label`.")
        holdout = HoldOut.prepare(task, PipelineConfig(scoring="auto"), place / "run")
        if number:  # turn round what the view hides, in the real data: the brief must not notice
            hidden = set(holdout.views[0].hidden)
            write_task(place / "input", [1 - x if i in hidden else x for i, x in enumerate(plain)])
        text = data_brief(holdout.seen, task.description)
        assert str(tmp_path) not in text
        briefs.add(text)
        assert f"{400 - len(holdout.views[0].hidden)} training rows" in text
    assert len(briefs) == 1


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
    st.sampled_from([".csv", ".csv.gz", ".csv.zip", ".csv.bz2", ".csv.xz", ".CSV.GZ"]),
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
        back = range(len(rows) - 1, -1, -1)
        assert found.values(["x", "id"], back) == [[rows[i][3] for i in back], [rows[i][0] for i in back]]


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
    (tmp_path / "mac.csv").write_bytes(b'id,note,y,x\r1,"a",0,1\r2,b,1,1\r')
    mac = read_rows(Table("mac.csv", COLUMNS, {}, 2, True, Form()), tmp_path)
    assert mac.holding(mac.edited([0, 1], mac)).column("note") == mac.column("note") == ["a", "b"]
    rows.write(tmp_path / "kept.csv", [0])
    assert (tmp_path / "kept.csv").read_bytes() == b"id,note,y,x\n1,a\xff,0,1\r\n"
    rows.holding(rows.edited([0], rows, ["y"], {"x": ["5"]}), behind_own=True).write(tmp_path / "mixed.csv", [2, 1, 0])
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
    read_rows(table := look(tmp_path / "t.parquet"), tmp_path).write(tmp_path / "none.parquet", [])
    left = pandas.read_parquet(tmp_path / "none.parquet")
    seen = len(left), list(left), str(left["id"].dtype), name_of_test(table)
    assert seen == (0, ["id", "note"], "int64", "test.csv")
