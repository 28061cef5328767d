"""Views: the files that scripts see, with labels taken out, and what comes back from them."""

import csv
import json
import math
import random
import shutil
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.data.brief import data_brief
from mle_star.data.guess import guess_task
from mle_star.data.layout import find_layout
from mle_star.data.metrics import known_metric
from mle_star.data.place import MARK
from mle_star.data.rows import read_rows
from mle_star.data.tables import Unsupported
from mle_star.errors import ConfigError
from mle_star.holdout.answers import Answers, Ungradable, read_answers, write_answers
from mle_star.holdout.holdout import HoldOut, blended, find_weights
from mle_star.holdout.keys import Numbers, fresh_keys, label_files, numbers_of
from mle_star.holdout.related import Rule, moments_in
from mle_star.holdout.scorer import Scorer, by_class
from mle_star.holdout.split import _mixed, split_rows
from mle_star.holdout.views import Data, View
from mle_star.models import PipelineConfig
from tests.method.conftest import make_task

ROWS, TEST = 200, 30
CSV_FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "csv": (".csv", {}), "semicolons": (".csv", {"sep": ";"}), "tsv": (".tsv", {"sep": "\t"}), "gz": (".csv.gz", {}),
    "zip": (".csv.zip", {}), "bz2": (".csv.bz2", {}), "utf-16": (".csv", {"encoding": "utf-16"}),
    "quoted": (".csv", {"quoting": csv.QUOTE_ALL, "lineterminator": "\r\n"}),
}  # fmt: skip


def table(count: int, start: int, *, target: bool) -> list[dict[str, Any]]:
    """Rows; `told` is known of a row only afterwards, so that the test does not have it."""
    dice, rows = random.Random(start), []
    for i in range(start, start + count):
        x = dice.random()
        text = dice.choice(["plain", "with, comma", 'with "quotes"', "two\nlines", "é\u2028two\x85three", ""])
        row: dict[str, Any] = {"id": f"r{i}", "x": round(x, 3), "note": text}
        rows.append({"hint": int(x > 0.5), **row, "y": int(x > 0.5)} if target else row)
    return rows


def write(folder: Path, form: str) -> Path:
    """A task in one of the forms that files have."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = table(ROWS, 0, target=True), table(TEST, 1000, target=False)
    sample = [{"id": row["id"], "y": int(row is test[-1])} for row in reversed(test)]  # it has an order of its own
    for name, rows in (("train", train), ("test", test), ("sample_submission", sample)):
        kind = "csv" if name == "sample_submission" else form
        if kind in CSV_FORMS:
            suffix, options = CSV_FORMS[kind]
            pandas.DataFrame(rows).to_csv(folder / f"{name}{suffix}", index=False, **options)
        elif kind == "parquet":
            pandas.DataFrame(rows).to_parquet(folder / f"{name}.parquet", index=False)
        else:
            rows = [{**row, "place": {"town": {"name": row["id"]}}} for row in rows]
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (folder / f"{name}.{kind}").write_text(json.dumps(rows) if kind == "json" else lines, encoding="utf-8")
    (folder / "readme.md").write_text("untouched")
    return folder


def opened(folder: Path) -> Data:
    return Data.read(find_layout(folder, "Predict `y`."))


def tables(folder: Path, **frames: dict[str, Any]) -> Path:
    """A task of these tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in frames.items():
        pandas.DataFrame(columns).to_csv(folder / f"{name}.csv", index=False)
    return folder


def viewed(folder: Path) -> tuple[Data, View, tuple[int, ...]]:
    """The data, a view of them beside their folder, and the rows that it hides."""
    data = opened(folder)
    hidden = data.split(seed=3).views[0]
    return data, data.make_view("v", hidden, folder.parent / "view", seed=9), hidden


def change(folder: Path, name: str, **columns: Any) -> None:
    """A table with other columns; None takes one out."""
    path = folder / f"{name}.csv"
    gone = [column for column, cells in columns.items() if cells is None]
    frame = pandas.read_csv(path, keep_default_na=False).drop(columns=gone)
    frame.assign(**{c: cells for c, cells in columns.items() if c not in gone}).to_csv(path, index=False)


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    path = next(path for path in folder.iterdir() if path.name.split(".")[0] == name)
    layout = find_layout(folder, "Predict `y`.")
    found = {t.name: t for t in (layout.train, layout.test, layout.sample) if t is not None}
    rows = read_rows(found[path.name], folder)
    columns = rows.table.columns
    return [dict(zip(columns, row, strict=True)) for row in zip(*map(rows.column, columns), strict=True)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task of plain tables."""
    return write(tmp_path / "data", "csv")


@pytest.mark.parametrize("form", [*CSV_FORMS, "json", "jsonl", "parquet"])
def test_a_view_moves_rows_and_loses_none(form: str, tmp_path: Path) -> None:
    _, view, hidden = viewed(write(tmp_path / "data", form))
    before, after = rows_of(tmp_path / "data", "train"), rows_of(tmp_path / "view", "train")
    assert after == [row for place, row in enumerate(before) if place not in set(hidden)]
    test, shown = rows_of(tmp_path / "data", "test"), rows_of(tmp_path / "view", "test")
    columns = ["id", "x", "note", *(["place.town.name"] if "json" in form else [])]
    moved = [{k: before[place][k] for k in columns} | {"id": view.names[place]} for place in hidden]
    assert sorted(map(str, shown)) == sorted(map(str, [*test, *moved])), "no label, and nothing that tells it"
    assert [row["id"] for row in shown[:TEST]] != [row["id"] for row in test]  # mixed
    wanted = rows_of(tmp_path / "view", "sample_submission")
    shown_ids = {test[-1]["id"], *view.names.values()}  # hidden rows are shown as the first row of the sample is
    assert [(row["id"], int(row["y"])) for row in wanted] == [(row["id"], row["id"] in shown_ids) for row in shown]
    assert (tmp_path / "view" / "readme.md").read_text() == "untouched" and len(view.order) == TEST + len(hidden)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_hidden_row_has_no_label_where_the_test_file_has_an_empty_column_for_it(form: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", form)
    path = next(folder.glob("test.*"))
    if form == "jsonl":
        path.write_text("".join(json.dumps({**json.loads(line), "y": None}) + "\n" for line in path.open()))
    else:
        frame = pandas.DataFrame(table(TEST, 1000, target=False)).assign(y=pandas.array([None] * TEST, dtype="Int64"))
        frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path, index=False)
    data, _, _ = viewed(folder)
    shown = read_rows(find_layout(tmp_path / "view", "Predict `y`.").test or data.train.table, tmp_path / "view")
    assert shown.count > TEST and set(shown.column("y")) == {""}


@pytest.mark.parametrize(
    ("states", "quote"),
    [
        (['active    ,"a, b"', "gone      , c"], ""), (['active,"a, b"', ' gone,"c, d"'], ""),
        (['"active"," c"', '"gone","d"'], '"'),
    ],
)  # fmt: skip
def test_hidden_rows_look_to_the_byte_like_the_rows_of_the_test(states: list[str], quote: str, tmp_path: Path) -> None:
    """Blanks around cells and quotes that nobody needs would tell the two apart, or say another thing."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, numbers, answer in (("train", range(ROWS), ",{}"), ("test", range(1000, 1000 + TEST), "")):
        head = "id,state,note" + (",y" if answer else "") + "\n"
        lines = [f"{quote}{n}{quote},{states[n % 2]}{answer.format(n % 3)}\n" for n in numbers]
        (folder / f"{name}.csv").write_text(head + "".join(lines))
    viewed(folder)
    shown = (tmp_path / "view" / "test.csv").read_text().splitlines()[1:]
    assert len(shown) > TEST
    assert {line.partition(",")[2] for line in shown} == set(states), "as they stand in the test file"
    assert all(line.partition(",")[0].strip(quote).isdigit() and line.startswith(quote) for line in shown)


def submit(path: Path, answer: dict[str, Any]) -> Path:
    """A submission by key, its rows in any order."""
    ids = random.Random(1).sample(list(answer), len(answer))
    pandas.DataFrame({"id": ids, "y": [answer[i] for i in ids]}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda answers: answers.popitem(), "^the submission has 69 rows, the test file 70: answer every one$"),
        (lambda answers: answers.update(odd=1), "^the submission has 71 rows, the test file 70: answer every one$"),
        (lambda answers: (answers.pop("r1000"), answers.update(odd=1)), "missing, such as 'r1000'"),
    ],
)  # fmt: skip
def test_answers_that_cannot_be_scored_say_why(folder: Path, tmp_path: Path, change: Any, words: str) -> None:
    data, view, _ = viewed(folder)
    answers = {row["id"]: 1 for row in rows_of(tmp_path / "view", "test")}
    change(answers)
    with pytest.raises(Ungradable, match=words):
        read_answers(data, submit(tmp_path / "s.csv", answers), view)


@pytest.mark.parametrize(
    ("head", "piece", "times", "words"),
    [
        (b"", b"\n", 8_000_000, "it consists of blank lines"),
        (b"id,y\n", b"r1000,1\n", 2_000_000, "the submission has more than 1140 rows, the test file 70"),
        (b"id,y\n", b",", 20_000_000, "its lines are too long"),
        (b"id,y\nr1000,1\n", b"z,", 2_000_000, "differ in length"),
        (b"", b"", 0, "the submission is empty"),
    ],
)
def test_a_submission_does_not_fill_memory(folder: Path, head: bytes, piece: bytes, times: int, words: str) -> None:
    data, view, _ = viewed(folder)
    (submission := folder.parent / "s.csv").write_bytes(head + piece * times)
    begun = time.thread_time()
    tracemalloc.start()
    try:
        with pytest.raises(Ungradable, match=words):
            read_answers(data, submission, view)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert time.thread_time() - begun < 30


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("with_test", [True, False])
def test_without_a_sample_chances_have_a_column_for_each_class(key: bool, with_test: bool, tmp_path: Path) -> None:
    """A metric of probabilities asks for them, and only for labels where another one scores."""
    rows = {**({"id": range(500, 800)} if key else {}), "x": [n / 7 for n in range(300)]}
    kinds = [("red", "10", "9")[n % 3] for n in range(300)]
    tests = {"test": {**({"id": range(40)} if key else {}), "x": rows["x"][:40]}} if with_test else {}
    folder = tables(tmp_path / "data", train={**rows, "kind": kinds}, **tests)
    labels, words = (guess_task(folder, target="kind", metric=m).task.description for m in ("accuracy", "log_loss"))
    assert find_layout(folder, labels).answers == ("kind",)
    task = make_task(folder, description="Predict `kind`. A model may give a probability for each class.")
    assert HoldOut.prepare(task, PipelineConfig(), tmp_path / "run", write=0).scorer.names == ("kind",)
    plain = Data.read(find_layout(folder, "Predict `kind`."))
    assert (by_class(plain, known_metric("log_loss")) is plain) is with_test, "beside a test, as it was asked for"
    hidden = (data := Data.read(find_layout(folder, words))).split(seed=3).views[0]
    view = data.make_view("v", hidden, tmp_path / "view", seed=9)
    assert data.layout.answers == find_layout(view.folder, words).answers == ("9", "10", "red")
    assert find_layout(view.folder, words).target.class_prefix == ""
    scorer = Scorer(data, known_metric("log_loss"))
    sure = {row: tuple(str(float(kinds[row] == name)) for name in scorer.names) for row in hidden}
    dummy = scorer.baseline(hidden)
    assert dummy is not None and dummy.score == pytest.approx(math.log(3), abs=0.01)
    assert scorer.score(sure, hidden) < 1e-9


def test_one_table_alone_gets_a_test_file_and_a_sample_that_overwrite_nothing(folder: Path, tmp_path: Path) -> None:
    """Views link what they do not change: a file of the same name there is the user's own, under a second name."""
    (folder / "test.csv").write_bytes(b"\0\1\2" * 99)
    (folder / "sample_submission.csv").write_bytes(b"")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    data, view, hidden = viewed(folder)
    shown, wanted = (pandas.read_csv(view.folder / name) for name in ("test.csv", "sample_submission.csv"))
    assert list(shown.columns) == ["hint", "id", "x", "note"] and list(wanted.columns) == ["id", "y"]
    assert list(shown["id"]) == list(wanted["id"]) and set(shown["id"]) == set(view.names.values())
    answers = read_answers(data, view.folder / "sample_submission.csv", view)
    assert set(answers.hidden) == set(hidden) and answers.real == ()
    data.write_example(tmp_path / "example")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_rows_without_a_key_are_told_by_their_place_and_decimal_commas_are_numbers(tmp_path: Path) -> None:
    folder, dice = tmp_path / "data", random.Random(2)
    folder.mkdir()
    numbers = [(dice.randint(1, 99) / 4, dice.randint(0, 9)) for _ in range(ROWS + TEST)]
    lines = [f"{x:.2f}".replace(".", ",") + f";{n}" for x, n in numbers]
    goals = [f"{2 * x:.1f}".replace(".", ",") for x, _ in numbers]
    with_goal = [f"{line};{goal}" for line, goal in zip(lines, goals, strict=True)]
    (folder / "train.csv").write_text("\n".join(["x;n;goal", *with_goal[:ROWS]]) + "\n")
    (folder / "test.csv").write_text("\n".join(["x;n", *lines[ROWS:]]) + "\n")
    (folder / "sample_submission.csv").write_text("\n".join(["goal;x;n", *(f"0,5;{r}" for r in lines[ROWS:])]) + "\n")
    data = Data.read(find_layout(folder))
    assert data.layout.key is None
    hidden = data.split(seed=1).views[0]
    view = data.make_view("v", hidden, tmp_path / "view", seed=2)
    shown = pandas.read_csv(view.folder / "test.csv", sep=";", decimal=",")
    sample = pandas.read_csv(view.folder / "sample_submission.csv", sep=";", decimal=",")
    assert list(sample["x"]) == list(shown["x"])
    sample["goal"] = 2 * shown["x"] + 1
    for decimal in ",.":  # a script may write the points that it reckons with
        sample.to_csv(tmp_path / "s.csv", sep=";", decimal=decimal, index=False)
        answers, scorer = read_answers(data, tmp_path / "s.csv", view), Scorer(data, known_metric("mae"))
        assert scorer.score(answers.hidden, hidden) == pytest.approx(1.0, abs=0.06)  # goals are rounded
        write_answers(data, answers, tmp_path / "real.csv")
        real = pandas.read_csv(tmp_path / "real.csv", sep=";", decimal=",")
        assert list(real["goal"]) == pytest.approx([2 * x + 1 for x, _ in numbers[ROWS:]])
        assert list(real["x"]) == [x for x, _ in numbers[ROWS:]] and b"\r" not in (tmp_path / "real.csv").read_bytes()


@pytest.mark.parametrize("by_time", [False, True])
def test_labels_in_a_file_of_their_own_are_taken_out_of_it(folder: Path, by_time: bool) -> None:
    frame = pandas.read_csv(folder / "train.csv")
    frame[["id", "y"]].sample(ROWS - 1, random_state=1).to_csv(folder / "train_labels.csv", index=False)  # one has none
    days = pandas.date_range("2024-01-01", periods=ROWS + TEST)
    change(folder, "train", y=None, hint=None, day=days[:ROWS] if by_time else 1)
    change(folder, "test", day=days[ROWS:] if by_time else 1)
    data = opened(folder)
    assert (data.rule.kind == "time") is by_time, "then the rows after the hidden ones go, too"
    for number, hidden in enumerate(data.split(seed=3).views):
        view = data.make_view("v", hidden, folder.parent / f"view-{number}", seed=9)
        for name in ("train.csv", "train_labels.csv"):
            assert {f"r{place}" for place in data.stays(hidden)} >= set(pandas.read_csv(view.folder / name)["id"])
        new = set(view.names.values())
        assert len(new) == len(hidden) and new <= set(pandas.read_csv(view.folder / "test.csv")["id"])


def sample_of(columns: str, rows: int, key: bool = True) -> Callable[[Path], None]:
    """A sample submission of these columns and so many rows; without a key, the other tables have none either."""

    def written(folder: Path) -> None:
        for name in () if key else ("train", "test"):
            change(folder, name, id=None)
        cells = {"id": [f"r{1000 + i}" for i in range(rows)], "row": range(rows), "y": [0] * rows}
        tables(folder, sample_submission={name: cells[name] for name in columns.split()})

    return written


def numbered_again(folder: Path) -> None:
    for name, count in (("train", ROWS), ("test", TEST), ("sample_submission", TEST)):
        change(folder, name, id=range(count))
    tables(folder, visits={"id": range(ROWS), "visits": range(ROWS)})


def numbered_elsewhere(folder: Path) -> None:
    numbered_again(folder)
    change(folder, "train", id=None)


def keys_twice(folder: Path) -> None:
    for name in ("test", "sample_submission"):
        change(folder, name, id=[f"r{1000 + i // 2}" for i in range(TEST)])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda folder: tables(folder, train={"id": range(20), "y": [0, 1] * 10}), "20 labelled rows are too few"),
        (sample_of("y", TEST), "sample_submission.csv has no id"),
        (lambda folder: change(folder, "train", id=[f"r{i // 2}" for i in range(ROWS)]), "occur more than once"),
        (sample_of("row y", TEST), "sample_submission.csv has no id"),
        (sample_of("id y", TEST - 5), "does not ask for the rows of test.csv"),
        (sample_of("y", TEST - 5, key=False), "does not ask for the rows of test.csv"),
        (sample_of("y", TEST + 5, key=False), "does not ask for the rows of test.csv"),
        (numbered_elsewhere, "the training rows have no id"),
        (numbered_again, "values of id occur more than once"), (keys_twice, "occur more than once in the test"),
        (lambda folder: tables(folder, history={"id": ["r1"], "y": [0]}), r"history\.csv holds the target"),
        (lambda folder: tables(folder, test={"id": [], "x": []}), r"test\.csv has a header and no rows: write"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_honestly_says_so(folder: Path, made: Callable[[Path], None], words: str) -> None:
    made(folder)
    with pytest.raises(Unsupported, match=words):
        opened(folder)


def solved(data: Data, view: View) -> pandas.DataFrame:
    """The answers to the real test of a script that knows what `x` tells, and is right on most hidden rows as well."""
    shown = pandas.read_csv(view.folder / "test.csv")
    answers = pandas.DataFrame({"id": shown.get("id", shown.index), "y": (shown["x"] > 0.5).astype(int)})
    answers = answers.sample(frac=1, random_state=1) if "id" in shown else answers
    answers.to_csv(view.folder.parent / "s.csv", index=False)
    read = read_answers(data, view.folder.parent / "s.csv", view)
    wrong = sum(int(float(data.train.column("x")[row]) > 0.5) != int(data.truth[0][row]) for row in view.hidden)
    score, low, high = Scorer(data, known_metric("accuracy")).grade(read.hidden, view.hidden)
    assert low < score == 1 - wrong / len(view.hidden) <= high and wrong < 3, "x is rounded"
    write_answers(data, read, view.folder.parent / "final" / "real.csv")
    return pandas.read_csv(view.folder.parent / "final" / "real.csv")


@pytest.mark.parametrize("numbered", ["apart", "nowhere", "from 0 again"])
def test_answers_come_back_for_the_real_test_whatever_keys_hidden_rows_get(folder: Path, numbered: str) -> None:
    if numbered != "apart":
        change(folder, "train", id=None if numbered == "nowhere" else range(ROWS))
        change(folder, "test", id=range(TEST))
        change(folder, "sample_submission", id=range(TEST)[::-1])
    data, view, _ = viewed(folder)
    shown, wanted = (pandas.read_csv(view.folder / name)["id"] for name in ("test.csv", "sample_submission.csv"))
    real, test = solved(data, view), pandas.read_csv(folder / "test.csv")
    assert set(shown) == set(wanted) and shown.is_unique and set(test["id"]) < set(shown)
    assert list(real["id"]) == list(test["id"])[::-1] and list(real["y"])[::-1] == [int(x > 0.5) for x in test["x"]]


@pytest.mark.parametrize("key", ["id", ""])
def test_without_a_sample_answers_are_those_of_the_test_file_in_its_order(folder: Path, key: str) -> None:
    """Where the test rows have no key, an `id` that a script makes up is none."""
    (folder / "sample_submission.csv").unlink()
    if not key:
        change(folder, "test", id=None)
    data, view, _ = viewed(folder)
    test = pandas.read_csv(folder / "test.csv")
    wanted = pandas.DataFrame({**({"id": test["id"]} if key else {}), "y": (test["x"] > 0.5).astype(int)})
    pandas.testing.assert_frame_equal(solved(data, view), wanted)


@given(st.sampled_from(["classes", "quantiles", "groups", "random"]), st.integers(60, 7000), st.integers(0, 99))
def test_hidden_rows_are_disjoint_seeded_and_of_the_right_size(kind: Any, count: int, seed: int) -> None:
    dice = random.Random(seed)
    values = [str(dice.randint(0, 40)) for _ in range(count)]
    split = split_rows(Rule(kind, "c", ""), values, seed=seed)
    assert split == split_rows(Rule(kind, "c", ""), values, seed=seed)
    few = count < 5000 or (kind == "groups" and len(set(values)) < 100)
    assert len(split.views) == 5
    hidden = {row for part in split.views for row in part}
    assert sum(map(len, split.views)) == len(hidden) <= count
    search = hidden - set(split.select)
    assert search and set(split.select) < hidden
    for_search = split.views[: 1 if not few else 3 if count >= 1500 else 5]
    assert all(search & set(part) for part in for_search), "every view has rows for the search, or the first ones alone"
    assert search <= {row for part in for_search for row in part}
    (alone,) = split_rows(Rule(kind, "c", ""), values, seed=seed, folds=1).views
    assert few or alone == split.views[0], "the views for the end of a run change nothing in the search"
    if kind != "groups":
        assert all(abs(len(part) - 0.2 * count) <= 2 for part in split.views)
        assert len(split.select) == pytest.approx(len(hidden) * {1: 0.9, 3: 0.6, 5: 1 / 3}[len(for_search)], abs=5)
    else:
        owners = [{values[row] for row in rows} for rows in (search, split.select, set(range(count)) - hidden)]
        assert all(not a & b for i, a in enumerate(owners) for b in owners[i + 1 :])


@given(st.lists(st.sampled_from("aaaaaaaabbc"), min_size=1, max_size=60), st.integers(0, 9), st.data())
def test_every_class_has_its_share_of_any_number_of_rows(values: list[str], seed: int, data: st.DataObject) -> None:
    most = data.draw(st.integers(0, len(values)))
    drawn, whole = (_mixed(Rule("classes", "c", ""), values, seed, count) for count in (most, len(values)))
    assert len(set(drawn)) == len(drawn) == most
    assert drawn == whole[:most] or len(values) > 8 * most, "as if all had been looked at"
    for label in set(values):
        share = values.count(label) * most / len(values)
        assert abs(sum(values[place] == label for place in drawn) - share) <= 1.5
    labels = ["rare"] * 40 + ["usual"] * 960
    parts = split_rows(Rule("classes", "c", ""), labels, seed=seed).views
    assert [sum(labels[row] == "rare" for row in part) for part in parts] == [8] * 5


HOURS = [1_577_836_800 + 3600 * i for i in range(390)]
DAYS = [
    "%Y-%m-%d %H:%M:%S+00:00", "%Y-%m-%dT%H:%M:%S+02:00", "%Y-%m-%dT%H:%M:%S.000Z", "%Y-%m-%dT%H:%M", "%d-%b-%y",
    "%B %d, %Y", "%Y.%m.%d", "%Y-%m-%d",
]  # fmt: skip


def later_task(folder: Path, train: Sequence[Any], test: Sequence[Any], name: str = "when") -> Path:
    dice = random.Random(1)
    known, unknown = ({name: values, "x": [dice.random() for _ in values]} for values in (train, test))
    return tables(folder, train={**known, "y": [int(x > 0.5) for x in known["x"]]}, test=unknown)


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        *(("when", [day.strftime(form) for day in pandas.date_range("2021-01-01", periods=390, freq="D")], "time")
          for form in DAYS),
        ("unix_time", HOURS, "time"), ("timestamp", [1000 * t for t in HOURS], "time"),
        ("event_time", [-1, *HOURS[1:]], "time"),
        ("sale_year", [*(2000 + i // 20 for i in range(300)), *[2015] * 90], "time"),
        ("candidate_id", HOURS, "classes"), ("mileage", HOURS, "classes"),
        ("year", [*(2000 + i // 20 for i in range(300)), *(2000 + i // 6 for i in range(90))], "classes"),
        ("year", [2019] * 3 + [2020] * 387, "classes"),
    ],
)  # fmt: skip
def test_a_later_test_is_seen_in_dates_and_numbers(tmp_path: Path, name: str, values: list[Any], kind: str) -> None:
    data = opened(later_task(tmp_path / "data", values[:300], values[300:], name))
    assert data.rule.kind == kind
    if kind == "time":
        hidden, *earlier = data.split(seed=1).views
        for stretch in earlier:
            stays, cells = data.stays(stretch), data.train.column(name)
            order = moments_in(name, cells)
            last = max(order[cells[row]] for row in stays if cells[row] in order)
            assert last < min(order[cells[row]] for row in stretch)
            assert len(stays) >= 150 and set(stretch) <= set(data.split(seed=1).select) - set(hidden)
        assert min(hidden) > 200 and max(hidden) == 299 and len(hidden) < 100, "the last ones"
        assert data.rule.column == name and data.units is not None
        assert name != "when" or list(data.units) == sorted(data.units)


@pytest.mark.parametrize(("name", "form"), [("date", "%Y-%m-%d"), ("day", "%Y%m%d"), ("timestamp", "%s")])
def test_a_date_that_is_the_key_is_still_a_date(tmp_path: Path, name: str, form: str) -> None:
    days = pandas.date_range("2021-01-01", periods=400, freq="D", tz="UTC")
    dates = [str(int(day.timestamp())) if form == "%s" else day.strftime(form) for day in days]
    train, test = {name: dates[:300], "y": [i * 7 % 100 / 3 for i in range(300)]}, {name: dates[300:]}
    data = opened(tables(tmp_path, train=train, test=test, sample_submission={**test, "y": [0] * 100}))
    assert (data.layout.key, data.rule.kind, data.rule.column) == (name, "time", name)
    hidden, earlier = data.split(seed=1).views
    assert (hidden, earlier) == (tuple(range(240, 300)), tuple(range(180, 240)))
    made = data.make_view("earlier", earlier, tmp_path / "earlier", seed=1)
    assert rows_of(made.folder, "train")[-1][name] == dates[179] and len(rows_of(made.folder, "train")) == 180
    shown = [row[name] for row in rows_of(made.folder, "test")]
    assert shown == dates[180:240] == [row[name] for row in rows_of(made.folder, "sample_submission")], "no day later"
    assert data.make_view("v", hidden, tmp_path / "view", seed=1).names == {}, "no day gets another one"


def test_of_a_moment_of_most_rows_some_are_hidden_and_every_view_leaves_half(tmp_path: Path) -> None:
    months = [*(f"2021-01-{1 + i % 5:02}" for i in range(20)), *["2021-02-01"] * 980]
    large = opened(later_task(tmp_path / "large", months, ["2021-03-01"] * 50))
    assert large.rule.kind == "time" and len(large.split(seed=1).views[0]) <= 400
    days = [f"{day:%Y-%m-%d}" for day in pandas.date_range("2021-01-01", periods=1000, freq="D")]
    data = opened(later_task(tmp_path / "data", ["unknown"] * 20 + days, ["2023-12-01"] * 50))
    for view in data.split(seed=1).views:
        assert {*range(20)} <= {*data.stays(view)}
    ties = opened(later_task(tmp_path / "ties", [days[0]] * 600 + days[1:401], ["2023-12-01"] * 50))
    assert len(ties.split(seed=1).views) > 1 and all(len(ties.stays(view)) >= 500 for view in ties.split(seed=1).views)


@pytest.mark.parametrize("seed", range(8))
def test_one_large_group_is_never_hidden_with_most_rows(seed: int) -> None:
    sites = [*["large"] * 900, *(f"site {number // 25}" for number in range(100))]
    split = split_rows(Rule("groups", "site", ""), sites, seed=seed)
    assert split.views and all(0 < len(view) < 400 for view in split.views)
    for view in split.views:
        hidden = {sites[place] for place in view}
        assert not hidden & {site for place, site in enumerate(sites) if place not in set(view)}, "whole groups"


def test_numbers_that_gaps_write_in_another_way_are_no_other_groups(folder: Path) -> None:
    for name, count in (("train", ROWS), ("test", TEST)):
        floors = pandas.Series([float(i % 10) for i in range(count)])
        floors = floors.where(floors.index % 17 != 3) if name == "train" else floors.astype(int)
        change(folder, name, floor=floors)
    assert "0.0" in (folder / "train.csv").read_text() and opened(folder).rule.kind == "classes"


def test_a_blend_takes_what_helps_and_leaves_out_what_does_not(tmp_path: Path) -> None:
    goals = [float(i % 17) for i in range(ROWS)]
    train = {"id": range(ROWS), "x": range(ROWS), "y": goals}
    folder = tables(tmp_path / "data", train=train, test={"id": range(900, 910), "x": range(10)})
    scorer = Scorer(opened(folder), known_metric("rmse"))
    dice, rows = random.Random(4), list(range(ROWS))

    def says(noise: float, bias: float = 0.0) -> Answers:
        hidden: dict[int, tuple[str, ...]] = {row: (str(goals[row] + bias + dice.gauss(0, noise)),) for row in rows}
        return Answers(hidden, tuple((str(bias),) for _ in range(10)))

    predictions = {"low": says(1.0, -1.0), "high": says(1.0, 1.0), "noise": says(9.0)}
    weights = find_weights(scorer, {**predictions, "one row": Answers({0: ("0.0",)}, ())}, rows)
    assert set(weights) == {"low", "high"} and sum(weights.values()) == pytest.approx(1.0)
    whole = blended(predictions, weights)
    best = min(scorer.score(predictions[name].hidden, rows) for name in predictions)
    assert scorer.score(whole.hidden, rows) < 0.8 * best
    assert [float(cell) for (cell,) in whole.real] == pytest.approx([weights["high"] - weights["low"]] * 10)
    assert scorer.compare(whole.hidden, predictions["noise"].hidden, rows).wins == 1.0
    assert scorer.compare(predictions["noise"].hidden, whole.hidden, rows).wins == 0.0
    with_commas = {"a": Answers({0: ("1,5",)}, ()), "b": Answers({0: ("2.5",)}, ())}
    assert blended(with_commas, {"a": 0.5, "b": 0.5}).hidden == {0: ("2.0",)} and find_weights(scorer, {}, rows) == {}


@pytest.mark.parametrize(
    ("classes", "likely"), [("01", "1"), ("12", "2"), (["5", "10"], "10"), (["-1", "1"], "1"), (["no", "Yes"], "Yes")]
)
def test_a_single_probability_is_that_of_the_larger_number(classes: Sequence[str], likely: str, folder: Path) -> None:
    """A script writes `predict_proba[:, 1]`; the metric of a near-perfect one is near-perfect."""
    plain = pandas.read_csv(folder / "train.csv")["y"]
    change(folder, "train", y=[f"${y}" for y in plain])
    assert Scorer(opened(folder), known_metric("rmse")).baseline(range(ROWS)) is None, "no plain numbers"
    change(folder, "train", y=[classes[y] for y in plain])
    data = opened(folder)
    answers: dict[int, tuple[str, ...]] = {i: ("0.9" if data.truth[0][i] == likely else "0.1",) for i in range(ROWS)}
    assert Scorer(data, known_metric("roc_auc")).score(answers, range(ROWS)) == 1.0
    scorer = Scorer(data, known_metric("log_loss"))
    assert scorer.score(answers, range(ROWS)) == pytest.approx(-math.log(0.9))
    share, dummy = data.truth[0].count(likely) / ROWS, scorer.baseline(range(ROWS))
    alike: dict[int, tuple[str, ...]] = dict.fromkeys(range(ROWS), (str(share),))
    assert dummy is not None and dummy.score == pytest.approx(scorer.score(alike, range(ROWS)))
    assert f"a single probability is that of '{likely}'" in data_brief(folder, "Predict `y`.")


def test_rows_numbered_in_the_order_of_their_labels_get_other_numbers(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"id": range(ROWS), "x": 1.5, "y": [int(i >= ROWS // 2) for i in range(ROWS)]})
    test, sample = ({"id": range(900, 900 + TEST), name: [cell] * TEST} for name, cell in (("x", 1.5), ("y", 0)))
    folder = tables(tmp_path / "data", train=frame.to_dict("list"), test=test, sample_submission=sample)
    data, view, hidden = viewed(folder)
    shown, wanted = (pandas.read_csv(view.folder / name) for name in ("test.csv", "sample_submission.csv"))
    assert list(shown["id"]) == list(wanted["id"]) and shown["id"].min() == 900
    new = [int(view.names[place]) for place in hidden]
    assert sorted(new) == list(range(930, 930 + len(hidden))) and new != sorted(new)
    for end in ("", ".0"):  # keys that pandas made numbers of
        submitted = {f"{i}{end}": int(i % 2) for i in shown["id"]}
        answers = read_answers(data, submit(tmp_path / "s.csv", submitted), view)
        assert answers.hidden == {place: (str(int(view.names[place]) % 2),) for place in hidden}
    mixed = frame.sample(frac=1, random_state=1)
    known, others = (some.to_dict("list") for some in (mixed[:150], mixed[150:].drop(columns="y")))
    tables(folder, train=known, test=others, sample_submission={"id": others["id"], "y": others["x"]})
    data = opened(folder)
    view = data.make_view("v", [0, 1, 2], tmp_path / "mixed", seed=2)
    submitted = {str(i): i for i in (*known["id"][:3], *others["id"])}
    answers = read_answers(data, submit(tmp_path / "s.csv", submitted), view)
    assert view.names == {} and answers.hidden == {place: (str(known["id"][place]),) for place in range(3)}
    alike = [*others["id"][:-1], f"0{others['id'][0]}"]  # no number, but a key of its own
    tables(folder, train=known, test={**others, "id": alike}, sample_submission={"id": alike, "y": others["x"]})
    data = opened(folder)
    answers = read_answers(data, submit(tmp_path / "s.csv", dict(zip(alike, alike, strict=True))), data.real_view())
    assert [cell for (cell,) in answers.real] == list(map(str, alike))


@given(
    st.sampled_from([("", ""), ("row-", ""), ("", ".x"), ("no ", "a")]),
    st.lists(st.integers(0, 10**20), min_size=1, max_size=9),
    st.sampled_from([0, 3, 25]),
)
def test_keys_are_numbered_by_what_is_between_letters(around: tuple[str, str], numbers: list[int], width: int) -> None:
    digits = [str(number).zfill(width) for number in numbers]
    keys = [each.join(around) for each in digits]
    wanted = Numbers(around, min(numbers), max(numbers), len(digits[0]), sorted(set(numbers)) == numbers, len(keys))
    assert numbers_of(keys) == wanted
    assert [numbers_of(odd) for odd in ([*keys, "x"], [*keys, "".join(around)], [])] == [None] * 3
    new, first = fresh_keys(numbers_of(keys), [], [5, 6], seed=1), max(numbers) + 1
    assert sorted(new.values()) == sorted(str(n).zfill(wanted.width).join(around) for n in (first, first + 1))
    low, high, over = (numbers_of(keys) for keys in (["1", "2", "3"], ["4", "6"], ["3", "9"]))
    assert low and high and over and low.lies_apart(high) and high.lies_apart(low)
    assert not low.lies_apart(over) and not over.lies_apart(low)
    assert (low.counts_rows, high.counts_rows) == (True, False)


def test_files_named_by_key_go_with_their_rows(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for part, keys in (("train", range(ROWS)), ("test", range(900, 902 + TEST))):  # two that no table has
        (folder / part).mkdir(parents=True)
        for key in keys:
            (folder / part / f"{key}.png").write_bytes(b"picture of %d" % key)
    sample = {"id": range(900, 900 + TEST), "y": [0] * TEST}
    tables(folder, train={"id": range(ROWS), "y": [i % 2 for i in range(ROWS)]}, sample_submission=sample)
    data, view, hidden = viewed(folder)
    assert data.test_rows == TEST
    wanted = pandas.read_csv(view.folder / "sample_submission.csv")["id"]
    assert len(wanted) == TEST + len(hidden) and not (view.folder / "test.csv").exists()
    assert {f"{key}.png" for key in wanted} == {file.name for file in (view.folder / "test").iterdir()}
    for key in (900 + TEST, 901 + TEST):
        assert (folder / "test" / f"{key}.png").read_bytes() == b"picture of %d" % key, "no file of the user's changes"
    assert len(list((view.folder / "train").iterdir())) == ROWS - len(hidden)
    for place in hidden:
        assert (view.folder / "test" / f"{view.names[place]}.png").read_bytes() == b"picture of %d" % place
    answers = read_answers(data, view.folder / "sample_submission.csv", view)
    assert set(answers.hidden) == set(hidden) and len(answers.real) == TEST
    write_answers(data, answers, tmp_path / "real.csv")
    assert (tmp_path / "real.csv").read_text() == (folder / "sample_submission.csv").read_text()


def test_no_key_leads_a_file_out_of_the_view(tmp_path: Path) -> None:
    sample = {"id": [f"../elsewhere/{key}" for key in range(900, 900 + TEST)], "y": [0] * TEST}
    tables(tmp_path / "data", train={"id": range(ROWS), "y": [0, 1] * (ROWS // 2)}, sample_submission=sample)
    for key in range(ROWS):
        (tmp_path / "data" / f"{key}.png").touch()
    _, view, _ = viewed(tmp_path / "data")
    assert len(list(view.folder.glob("*.png"))) == ROWS and not (tmp_path / "elsewhere").exists()


def test_what_links_lead_to_is_in_the_view(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "notes.txt").write_text("far away")
    (folder / "notes.txt").symlink_to("../store/notes.txt")
    view = opened(folder).make_view("v", [1, 2, 3], tmp_path / "deep" / "down" / "view", seed=1)
    assert (view.folder / "notes.txt").read_text() == "far away"


def keyed_files(folder: Path, places: Callable[[int, int], str]) -> Path:
    """A task of one table and a file for each row; `places` says where, by number and label."""
    for number in range(100):
        for name in places(number, number % 2).split():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(str(number % 2))
    numbers = range(100)
    return tables(folder, train={"id": numbers, "x": [n * 7 % 11 for n in numbers], "y": [n % 2 for n in numbers]})


def test_folders_that_tell_the_label_of_a_file_are_no_place_to_hide_it(tmp_path: Path) -> None:
    labelled = keyed_files(tmp_path / "labelled", lambda number, label: f"images/{label}/{number}.png")
    with pytest.raises(Unsupported, match="tell their labels"):
        opened(labelled).make_view("v", [1, 2, 3], tmp_path / "view", seed=1)
    evenly = keyed_files(tmp_path / "evenly", lambda row, label: f"images/{row % 3}/{row}.png images/{row}.txt")
    view = opened(evenly).make_view("v", [1, 2, 3], tmp_path / "view", seed=1)
    assert len(list(view.folder.rglob("*.png"))) == 100
    assert len(list(view.folder.rglob("*.txt"))) == 97, "annotations of hidden rows are left out"


def test_labels_that_belong_to_rows_by_their_place_alone_are_not_passed_over(tmp_path: Path) -> None:
    tables(tmp_path, X_train={"a": range(90), "b": range(90)}, y_train={"y": [i % 2 for i in range(90)]})
    with pytest.raises(ConfigError, match=r"y_train\.csv holds the labels of X_train\.csv and shares no key"):
        find_layout(tmp_path, "Predict `y`.")


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_sample_with_types_keeps_them(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    train = pandas.DataFrame({"id": range(100), "x": [n % 7 for n in range(100)], "y": [n % 2 for n in range(100)]})
    test = train[:20].assign(id=range(200, 220))
    for name, frame in (("train", train), ("test", test[["id", "x"]]), ("sample_submission", test[["id", "y"]])):
        path = folder / f"{name}.{form}"
        frame.to_json(path, orient="records") if form == "json" else frame.to_parquet(path, index=False)
    path = opened(folder).make_view("v", [1, 2, 3], tmp_path / "view", seed=1).folder / f"sample_submission.{form}"
    rows = json.loads(path.read_text()) if form == "json" else pandas.read_parquet(path).to_dict("records")
    assert len(rows) == 23 and {type(row["id"]) for row in rows} == {int}


def test_fractions_are_not_cut_to_fit_a_file_of_whole_numbers(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", "parquet")
    frame = pandas.read_parquet(folder / "test.parquet")
    frame.assign(x=range(len(frame))).to_parquet(folder / "test.parquet", index=False)
    with pytest.raises(Unsupported, match=r"x holds whole numbers in test\.parquet only"):
        opened(folder).make_view("v", [1, 2, 3], tmp_path / "view", seed=1)


def _zip(path: Path, *sources: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for source in sources:
            archive.write(source, source.name)


LEFT_LYING: dict[str, Callable[[Path, Path], Any]] = {
    "titanic.zip": lambda folder, path: _zip(path, folder / "train.csv", folder / "test.csv"),
    "train.csv.zip": lambda folder, path: _zip(path, folder / "train.csv", folder / "test.csv"),
    "all.tar.gz": lambda folder, path: shutil.make_archive(str(path)[:-7], "gztar", folder, "train.csv"),
    "shut.zip": lambda folder, path: path.write_bytes(b"with a password, or of a kind that nobody opens here"),
    "shut.tar": lambda folder, path: path.write_bytes(b"no archive that opens"),
    "train.csv.bak": lambda folder, path: shutil.copy(folder / "train.csv", path),
    "train.pkl": lambda folder, path: path.write_bytes(b"any table"),
    "all.db": lambda folder, path: path.write_bytes(b"any table"),
    "y_train.npy": lambda folder, path: path.write_bytes(b"any array"),
    ".ipynb_checkpoints/train-checkpoint.csv": lambda folder, path: shutil.copy(folder / "train.csv", path),
    "sub/.ipynb_checkpoints/train-checkpoint.csv": lambda folder, path: shutil.copy(folder / "train.csv", path),
    "a/b/c/train.csv": lambda folder, path: shutil.copy(folder / "train.csv", path),
    "old.csv": lambda folder, path: path.write_text((folder / "train.csv").read_text().replace("y\n", "outcome\n", 1)),
    "train_solution.csv.gz": lambda folder, path: pandas.read_csv(folder / "train.csv").to_csv(path, index=False),
    "torn.csv": lambda folder, path: path.write_text("".join(f"{i},{i % 7}{',' * (i == 9)}\n" for i in range(ROWS))),
    "a/b/c/train.json": lambda folder, path: pandas.read_csv(folder / "train.csv").to_json(path, orient="records"),
    "runs/old/journal.jsonl": lambda folder, path: [path.write_text("{}\n"), (path.parent / MARK).write_text("")],
}


def test_what_may_hold_labels_beside_the_tables_is_shown_in_no_view(folder: Path, tmp_path: Path) -> None:
    for name, put in LEFT_LYING.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        put(folder, folder / name)
    (folder / "features.npy").write_bytes(b"pixels")
    (folder / "shops.csv").write_text("shop,size\n" + "".join(f"{i},{i % 9}\n" for i in range(ROWS)))
    _zip(folder / "images.zip", folder / "features.npy")
    data = opened(folder)
    view = data.make_view("view-0", list(range(50)), tmp_path / "view", seed=1)
    shown = {path.relative_to(view.folder).as_posix() for path in view.folder.rglob("*") if path.is_file()}
    tables = {"train.csv", "test.csv", "sample_submission.csv", "shops.csv"}
    assert shown == tables | {"features.npy", "images.zip", "readme.md"}
    is_none = (".ipynb_checkpoints", "runs")
    assert data.label_files == {name for name in LEFT_LYING if name.split("/")[0] not in is_none}


def test_labels_under_another_name_are_found_in_tables_too_large_to_be_looked_at_whole(tmp_path: Path) -> None:
    """A cell of two lines counts as two rows, until the files are read."""
    count, dice = 21_000, random.Random(1)
    labels = [dice.randint(0, 2) for _ in range(count)]
    notes = ["two\nlines" if n % 50 == 0 else "one" for n in range(count)]
    copies = {"copy": [f"{n} " for n in labels], "late": [*labels[:5000], *labels[:-5000]], "size": range(count)}
    tables(tmp_path, train={"id": range(count), "note": notes, "y": labels}, test={"id": range(count, count + 9)})
    tables(tmp_path, **{name: {"place": range(count), "outcome": cells} for name, cells in copies.items()})
    pandas.DataFrame({"outcome": labels}).to_json(tmp_path / "small.json", orient="records")
    assert label_files(find_layout(tmp_path, "Predict `y`.")) == {"copy.csv", "small.json"}
