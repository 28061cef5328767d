"""Task folders: reading them, and guessing one from whatever lies in a data folder."""

import csv
import gzip
import io
import itertools
import json
import os
import random
import resource
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mle_star import ConfigError, MetricDirection, TaskDescription, TaskType
from mle_star.cli.app import main
from mle_star.data import tables
from mle_star.data.brief import data_brief
from mle_star.data.folder import load_task, write_task
from mle_star.data.guess import guess_task
from mle_star.data.layout import find_layout
from mle_star.data.place import read_pieces
from mle_star.data.tables import Table, read_table
from tests.conftest import Captured, as_kept, write_texts
from tests.data.test_seen import seen

REAL_TASKS = Path(__file__).parents[3] / "shared" / "data"
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "wizards", "brew", "coffee"]


def write_csv(path: Path, header: Sequence[str] | None, rows: Iterable[Sequence[Any]], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as stream:
        writer = csv.writer(stream, **options)
        if header:
            writer.writerow(header)
        writer.writerows(rows)


def folder_of(
    place: Path,
    target: Callable[[int], Any],
    *,
    rows: int = 300,
    features: Callable[[int], list[Any]] = lambda i: [i % 17, round(i * 0.37 % 5, 3), "abc"[i % 3]],
    names: Sequence[str] = ("f1", "f2", "f3"),
    sample: Any = None,
) -> Path:
    """A task with train, test and, when `sample` is given, a sample submission."""
    write_csv(place / "train.csv", ["id", *names, "goal"], ([i, *features(i), target(i)] for i in range(rows)))
    write_csv(place / "test.csv", ["id", *names], ([i, *features(i)] for i in range(rows, rows + 30)))
    if sample is not None:
        write_csv(place / "sample_submission.csv", ["id", "goal"], ([i, sample] for i in range(rows, rows + 30)))
    return place


TARGETS: list[tuple[Callable[[int], Any], Any]] = [
    (lambda i: i % 2, 0.5), (lambda i: i % 2, 0), (lambda i: int(i % 11 == 0), 0),
    (lambda i: "yes" if i % 2 else "no", "no"), (lambda i: f"kind {i % 30}", "kind 0"), (lambda i: 1 + i % 5, 3),
    (lambda i: "abc"[(i % 100 > 71) + (i % 100 > 90)], "a"), (lambda i: min(4, i % 60 // 2), 0),
    (lambda i: i * 1.5, 0), (lambda i: i * 7 % 263, 100), (lambda i: -i / 3, None), (lambda i: i % 9 / 2, 0),
]  # fmt: skip
"""Targets and what the sample submission holds: chances, classes of like and of unlike sizes, numbers."""
ODD_TABLES: list[tuple[list[str] | None, Callable[[int], list[Any]]]] = [
    (["größe", "goal"], lambda i: [f"süß{i}", i % 2]), ([*["x"] * 7, "", "goal"], lambda i: [i] * 8 + [i % 2]),
    (None, lambda i: [5.1 + i / 7, "ab"[i % 2], "bc"[i % 2]]), (None, lambda i: ["ab"[i % 2]] * 2 + ["bc"[i % 2]]),
    (["", "0", "1", "2"], lambda i: [i, i / 7, i % 5, i % 2]),
]  # fmt: skip
NAMED = """
train: id size goal, test: size, sample_submission: id goal; train: id size goal, test: id size, sample: id goal;
train_sample: id size goal, test: id size, sample_submission: id goal; one: id x, two: id x sold;
SERIES, test: id size, sample_submission: id goal; wine_sample: id size goal;
whatever: a target b; whatever: label a b; whatever: a b weight; whatever: a id; train: id size goal, new: id size;
train: label 0 1 2 3; train: 0 1 2 3; train: country 2000 2010 2020 target; train: inf x NaN Infinity y
""".replace("SERIES", ", ".join(f"train_{number:02}: id size goal" for number in range(14)))
"""Tables and their columns: the rows to learn from are the fewer ones where other names say nothing."""
PICTURES = ["images", "train/cat train/dog", "cat dog", "train train_cleaned test", "noisy clean", "input"]
ODD_JSON = (
    '{"a": [1, 2, 3], "goal": [1, 0]}', '{"a": {"x": 1, "y": 2}, "goal": {"x": 1, "y": 0}}', '{"a": 1, "goal": 2}',
    '[{"a": 1, "goal": 0}, 7]', '{"meta": 1, "rows": [{"a": 1, "goal": 0}, {"a": 2}]}', '{"a": "\0"}', "[1, 2]",
    '{"a": 1}\n7\n{"goal": 2}', "[]", '{"a": [], "goal": []}', "{}",
    '[{"a": {"b": {"c": 1}, "d": {}}, "goal": true}, {"a": null, "goal": false}]',
)  # fmt: skip
"""What a file of JSON may be: a table in four forms, or hardly one."""
WANTED: list[dict[str, Any]] = [
    {"direction": MetricDirection.maximize}, {"direction": MetricDirection.minimize}, {"target": "goal"},
    {"target": "f1"}, {"target": "gaol"}, {"metric": "rmse"}, {"metric": "accuracy"}, {"metric": "bleu"},
    {"metric": "roc_auc", "name": "own"}, {"target": "f2", "metric": "log_loss"},
]  # fmt: skip
NUMBERED = (f"target-{number}" for number in (0, 3, 5, 9, 11))
WANTED_OF = (*NUMBERED, "text to text", "pictures-1", "pictures-4", "odd-2", "tables-5")


def test_all_that_targets_texts_pictures_and_odd_tables_tell(tmp_path: Path) -> None:
    chance = random.Random(1)
    for number, (target, sample) in enumerate(TARGETS):
        folder_of(tmp_path / f"target-{number}", target, sample=sample)
    features: list[Callable[[int], list[Any]]] = [
        lambda i: [" ".join(chance.choices(WORDS, k=12))], lambda i: [f"Smith{i}, Mr. John", i],
        lambda i: [" ".join(chance.choices(WORDS, k=12)), i, i % 3, i % 5],
    ]  # fmt: skip
    for number, cells in enumerate(features):
        names = ["message", "a", "b", "c"][: len(cells(0))]
        folder_of(tmp_path / f"text-{number}", lambda i: i % 2, features=cells, names=names)
    classes = [f"Leaf kind {n}" for n in range(99)]
    leaves = folder_of(tmp_path / "a column for each class", lambda i: classes[i % 99], rows=990)
    header = ["id", *(name.replace(" ", "_") for name in classes)]
    write_csv(leaves / "sample_submission.csv", header, ([i, *[1 / 99] * 99] for i in range(30)))
    shown = folder_of(tmp_path / "classes that the test has a column for", lambda i: "xyz"[i % 3])
    write_csv(shown / "test.csv", ["id", "f1", "f2", "f3", "goal"], ([i, 1, 2, "a", ""] for i in range(30)))
    header = ["id", "goal_x", "goal_y", "goal_z"]
    write_csv(shown / "sample_submission.csv", header, ([i, 0.3, 0.3, 0.4] for i in range(30)))
    for number, folders in enumerate(PICTURES):
        for place in (tmp_path / f"pictures-{number}" / name for name in folders.split()):
            place.mkdir(parents=True)
            for i in range(20):
                (place / f"{i}.png").write_bytes(b"\x89PNG")
    write_csv(tmp_path / "pictures-0" / "train.csv", ["id", "label"], ([i, "ab"[i % 2]] for i in range(20)))
    for number, (head, row) in enumerate(ODD_TABLES):
        write_csv(tmp_path / f"odd-{number}" / "train.csv", head, map(row, range(50)), encoding="cp1252")
    for number, named in enumerate(NAMED.replace("\n", " ").split(";")):
        for name, columns in (table.split(":") for table in named.split(",")):
            numbers, count = range(len(columns.split())), 20 if name.strip() == "two" else 60
            words = "c" if "country" in columns else ""
            rows = [[f"{words * (n == 0)}{i * (n + 1) % 37 + i}" for n in numbers] for i in range(count)]
            write_csv(tmp_path / f"tables-{number}" / f"{name.strip()}.csv", columns.split(), rows)
    texts = [" ".join(chance.choices(WORDS, k=12 + i % 9)) for i in range(330)]
    folder_of(tmp_path / "text to text", lambda i: texts[-i], features=lambda i: [texts[i]], names=["f1"], sample="a b")
    three: Callable[[int], list[Any]] = lambda i: [texts[i], i, i % 7]  # noqa: E731
    several = folder_of(tmp_path / "text, pictures and numbers", lambda i: i % 2, features=three, sample=0)
    for place in (several / f"images-{kind}" for kind in range(70)):
        write_texts(place, {"a.png": "", "b.png": ""})
    wide, many = [f"column number {n}" for n in range(150)], {f"table {n:02}": "a,b\n1,2\n" for n in range(40)}
    folder_of(tmp_path / "wide", lambda i: i % 4, features=lambda i: [i * n % 97 for n in range(150)], names=wide)
    write_texts(tmp_path / "wide", {f"{name}.csv": text for name, text in many.items()})
    for number, text in enumerate(ODD_JSON):
        write_texts(tmp_path / f"json-{number}", {"train.json": text})
    lines = [line for one in sorted(tmp_path.iterdir()) for line in (f"=== {one.name}", *seen(one))]
    for number, one in itertools.product(range(len(WANTED)), WANTED_OF):
        try:
            guess = guess_task(tmp_path / one, **WANTED[number])
            known = guess.task.task_type.value, guess.task.evaluation_metric, guess.task.metric_direction.value
            lines.append(f"{WANTED[number]} of {one}: {known} {guess.reasons['evaluation_metric']} {guess.notes}")
        except ConfigError as error:
            lines.append(f"{WANTED[number]} of {one}: {error}")
    lines += [f"{most}: {data_brief(tmp_path / 'wide', most=most)}" for most in (3000, 600, 90)]
    as_kept("data/guesses.txt", "\n".join(lines).replace(str(tmp_path), "…"))


def test_a_csv_of_half_a_gigabyte_is_only_sampled(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    with path.open("wb") as stream:
        stream.write(b"id,x,goal\n" + b"".join(b"%09d,7,0\n" % i for i in range(100_000)))
        stream.seek(1 << 29)  # a hole that takes no room
        stream.write(b"".join(b"%09d,7,1\n" % i for i in range(100_000)))
    write_csv(tmp_path / "test.csv", ["id", "x"], [[1, 7]])
    pieces = read_pieces(path)
    assert pieces is not None and (len(pieces[0]), pieces[2]) == (4, False)
    before, guess = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, guess_task(tmp_path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (guess.targets, guess.task.task_type) == (("goal",), TaskType.classification)
    assert "has 2 different values" in guess.reasons["task_type"]  # the second one stands only at the end of the file
    assert "rows)" not in guess.task.description and grown < 200_000  # kilobytes


def _locked() -> bytes:
    """An archive that says of its table that it wants a password."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("train.csv", "a,b\n1,2\n")
    content = bytearray(whole.getvalue())
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(mark) + place] |= 1
    return bytes(content)


CUT = gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:10] + b"\xff" * 40
UNUSABLE: dict[str, tuple[str, bytes | Path | None, str]] = {
    "an empty file": ("train.csv", b"", "empty"), "a binary file": ("train.csv", b"\0\1\2" * 99, "binary"),
    "a picture": ("train.csv", b"\x89PNG\r\n\x1a\n" + bytes(range(32)), "binary"),
    "a short parquet": ("train.parquet", b"PAR1 no", "cannot be read"),
    "a broken parquet": ("train.parquet", b"PAR1 nonsense PAR1", "cannot be read"),
    "a broken book": ("train.xlsx", b"no archive", "cannot be read"),
    "a broken zip": ("train.csv.zip", b"PK nothing", "cannot be read"),
    "a locked zip": ("train.csv.zip", _locked(), "password"),
    "no gzip": ("train.csv.gz", b"\x1f\x8b nothing", "cannot be read"),
    "a broken gzip": ("train.csv.gz", CUT, "cannot be read"),
    "a broken json": ("train.json", b"{[}", "cannot be read"),
    "deep json": ("train.json", b"[" * 100_000, "cannot be read"),
    "no records": ("train.json", b"[1, 2]", "no JSON records"), "prose": ("train.txt", b"a line of prose\n", "prose"),
    "a dangling link": ("train.csv", Path("gone"), "cannot be read"),
    "a folder": ("train.csv", None, "cannot be read"), "an unknown kind": ("model.bin", b"x", "not a table"),
}  # fmt: skip


def test_a_mistake_of_our_own_is_not_called_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "train.csv", ["id", "x"], [[1, 7]])
    monkeypatch.setattr(tables, "unique_names", None)
    with pytest.raises(TypeError):
        read_table(tmp_path / "train.csv")


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_cannot_be_used_is_one_clear_line_or_beside_good_files_a_note(tmp_path: Path, what: str) -> None:
    name, content, words = UNUSABLE[what]
    if content is None:
        (tmp_path / name).mkdir()
    elif isinstance(content, Path):
        (tmp_path / name).symlink_to(content)
    else:
        (tmp_path / name).write_bytes(content)
    problem = read_table(tmp_path / name)
    assert isinstance(problem, str) and words in problem and "\n" not in problem
    with pytest.raises(ConfigError) as refusal:
        guess_task(tmp_path)
    message = str(refusal.value)
    assert "no data found" in message and "\n" not in message
    assert problem in message or what in ("a dangling link", "a folder", "an unknown kind")
    write_csv(tmp_path / "test.csv", ["x", "goal"], ([i, i % 2] for i in range(50)))
    if problem in message:  # rows to predict do not take its place
        with pytest.raises(ConfigError, match="no training table found"):
            guess_task(tmp_path)
    (tmp_path / "test.csv").unlink()
    (tmp_path / name).rename(tmp_path / f"extra-{name}")
    write_csv(tmp_path / "train.csv", ["x", "goal"], ([i, i % 2] for i in range(50)))
    assert guess_task(tmp_path).targets == ("goal",)


def test_a_parquet_file_that_unfolds_to_all_memory_is_a_line_not_a_crash(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    long = arrow.DictionaryArray.from_arrays(arrow.array([0] * 1000, arrow.int32()), arrow.array(["a" * 20_000_000]))
    bomb = tmp_path / "train.parquet"
    parquet.write_table(arrow.table({"x": long}), bomb, compression="zstd", store_schema=False)
    assert bomb.stat().st_size < 10_000 and "rows of 19 MB" in str(read_table(bomb))
    with pytest.raises(ConfigError, match="no data found"):
        guess_task(tmp_path)


RAGGED = [
    "x,goal\n1,2\n3\n4,5,6\n7,8\n", 'x,goal\n1,0\n2,"open\n' + "2,3\n" * 33_000, " ,\r\nx,goal\r\n1,0\r\n,\r\n2,1\r\n",
    "\ufeffx,goal\n1,0\n2,1\n", "goal\n" + "1\n0\n" * 30, "x,goal\n" + "y" * 200_000 + ",1\n1,0\n2,1\n",
]  # fmt: skip


def test_ragged_and_odd_tables_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    lines = []
    for content in RAGGED:
        (tmp_path / "train.csv").write_bytes(content.encode())
        table = read_table(tmp_path / "train.csv")
        assert isinstance(table, Table) and guess_task(tmp_path).targets == ("goal",)
        lines.append(f"{content[:40]!r}: {len(table.sample['goal'])} rows, {table.whole}, {table.notes}")
    as_kept("data/ragged.txt", "\n".join(lines))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(st.binary(max_size=400), st.text(max_size=400).map(lambda text: text.encode("utf-8", "replace"))),
    suffix=st.sampled_from(["csv", "tsv", "txt", "json", "jsonl", "parquet", "csv.gz", "csv.zip"]),
)
def test_no_content_makes_it_crash_and_its_task_is_read_back(tmp_path: Path, content: bytes, suffix: str) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / f"train.{suffix}").write_bytes(content)
    try:
        guess = guess_task(tmp_path)
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    write_task(guess, tmp_path / "task.yaml")
    assert load_task(tmp_path).evaluation_metric == guess.task.evaluation_metric


def test_what_is_given_or_said_beside_the_data_replaces_the_guess(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "input", lambda i: 1 + i % 5, sample=1)
    with pytest.raises(ConfigError, match=r"the target is to be `f2`, but sample_submission\.csv asks for `goal`"):
        guess_task(folder, target="f2")
    (folder / "sample_submission.csv").unlink()
    guess = guess_task(folder, target="f2", metric="Mean Absolute Error", name="mine")
    assert (guess.targets, guess.task.evaluation_metric, guess.task.metric_direction) == (("f2",), "mae", "minimize")
    assert guess.task.competition_id == "mine" and guess_task(folder, target="f1,f2").targets == ("f1", "f2")
    (folder / "score.py").write_text("def profit(truth, answer): return 1.0")
    profit = guess_task(folder, metric="score.py:profit", direction=MetricDirection.minimize).task
    assert (profit.evaluation_metric, profit.metric_direction) == ("score.py:profit", "minimize")
    (tmp_path / "description.md").write_text("Rate wines.\n\n## Evaluation\nBy the quadratic weighted kappa of all.")
    rated = guess_task(tmp_path).task
    assert (rated.evaluation_metric, rated.metric_direction) == ("quadratic_weighted_kappa", "maximize")
    write_texts(folder.rename(tmp_path / "data").parent, {".old.csv": "a,b\n1,2\n", "old.csv/a.md": ""})
    assert guess_task(tmp_path).task.evaluation_metric == "accuracy", "neither data nor a text of this folder"


GOOD = {
    "competition_id": "prices", "task_type": "regression", "data_modality": "tabular", "evaluation_metric": "rmse",
    "metric_direction": "minimize", "description": "Predict `price`.",
}  # fmt: skip


def task_folder(place: Path, **changes: Any) -> Path:
    (place / "input").mkdir(parents=True, exist_ok=True)
    content = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    (place / "task.yaml").write_text(yaml.safe_dump(content))
    return place


def test_a_task_file_becomes_a_description_with_paths_of_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    expected = TaskDescription.model_validate({**GOOD, "data_dir": str(tmp_path / "input")})
    assert load_task(task_folder(tmp_path)) == expected and load_task(tmp_path / "task.yaml") == expected
    assert load_task(str(tmp_path)) == expected
    moved = load_task(task_folder(tmp_path, data_dir="elsewhere", output_dir="./out"))
    assert (moved.data_dir, moved.output_dir) == (str(tmp_path / "elsewhere"), str(tmp_path / "out"))
    (tmp_path / "input").rmdir()
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(GOOD))
    assert load_task(tmp_path).data_dir == str(tmp_path)


def test_description_and_target_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "description.md").write_text("# Prices\nAll about prices.\n", encoding="utf-8-sig")
    assert load_task(task_folder(tmp_path, description=None)).description == "# Prices\nAll about prices."
    both = load_task(task_folder(tmp_path, target=["cost", "price"])).description
    assert both == "Predict `price`.\n\n# Prices\nAll about prices.\n\nThe target is `cost`, `price`."
    assert "The target" not in load_task(task_folder(tmp_path, target="price")).description
    assert "The target is `rice`." in load_task(task_folder(tmp_path, target="rice")).description  # not part of a word


@pytest.mark.parametrize(
    ("header", "test", "target"),
    [
        (["a", "driver's score", "z"], None, "driver's score"), (["x", "price", "y2"], ["x", "price"], "price"),
        (["x1", *(f"t{i}" for i in range(45)), "x2"], None, ",".join(f"t{i}" for i in range(45))),
        ([" a", "y ", "z"], None, "y"),
    ],
)  # fmt: skip
def test_the_target_asked_for_is_used(header: list[str], test: list[str] | None, target: str, tmp_path: Path) -> None:
    """Whatever a column is called, and whatever else could be guessed: all read it from the description."""
    rows = [[(i * 37 + n * 11) % 997 / 8 for n in range(len(header))] for i in range(60)]
    write_csv(tmp_path / "train.csv", header, rows)
    if test is not None:
        write_csv(tmp_path / "test.csv", test, [row[: len(test)] for row in rows[:20]])
    guess = guess_task(tmp_path, target=target)
    assert {*map(str.strip, find_layout(tmp_path, guess.task.description).target.names)} == {*target.split(",")}


def test_names_of_columns_may_be_numbers_that_go_up(tmp_path: Path) -> None:
    waves = [str(400 + 2 * i) for i in range(6)]
    rows = [[*((i * 37 + n * 11) % 997 / 8 for n in range(6)), "ab"[i % 2]] for i in range(60)]
    write_csv(tmp_path / "train.csv", [*waves, "kind"], rows)
    write_csv(tmp_path / "test.csv", waves, (row[:6] for row in rows[:20]))
    layout = find_layout(tmp_path)
    assert layout.train.columns == (*waves, "kind") and layout.test is not None and not layout.notes
    assert (layout.test.columns, layout.test.rows, layout.target.names) == (tuple(waves), 20, ("kind",))


def test_a_word_for_a_gap_is_a_class_among_others(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", ["size", "rash"], ([i, ("none", "mild")[i % 2]] for i in range(60)))
    task = guess_task(tmp_path, target="rash").task
    assert (task.task_type, task.evaluation_metric) == ("classification", "accuracy")
    assert "2 classes: 'none' 50 %" in data_brief(tmp_path, task.description)


def test_a_corrected_target_counts_whatever_the_description_says(tmp_path: Path) -> None:
    write_csv(tmp_path / "input" / "train.csv", ["sqft", "price", "tax"], ([i, i * 2.5, i / 3] for i in range(50)))
    write_task(guess_task(tmp_path / "input"), tmp_path / "task.yaml")
    text = (tmp_path / "task.yaml").read_text(encoding="utf-8")
    assert "target: tax\n" in text and "Predict `tax`" in text
    (tmp_path / "task.yaml").write_text(text.replace("target: tax\n", "target: price\n"), encoding="utf-8")
    task = load_task(tmp_path)
    assert find_layout(Path(task.data_dir), task.description).target.names == ("price",)
    assert task.description.endswith("\n\nThe target is `price`.")
    write_csv(tmp_path / "input" / "test.csv", ["sqft"], ([i] for i in range(9)))
    write_csv(tmp_path / "input" / "sample_submission.csv", ["id", "tax"], ([i, 0] for i in range(9)))
    with pytest.raises(ConfigError, match=r"task\.yaml: the target is to be `price`, but sample.* asks for `tax`: "):
        load_task(tmp_path)


@pytest.mark.parametrize("cell", ["${:,}", "{:,}", "{} €", "about {}"])
def test_amounts_as_a_target_are_refused_and_not_taken_for_classes(cell: str, tmp_path: Path) -> None:
    numbers = [str(100_000 + i * 977) for i in range(200)] if cell == "about {}" else []
    amounts = [cell.format(100_000 + i * 977) for i in range(200)]
    write_csv(tmp_path / "train.csv", ["size", "price"], enumerate([*numbers[:198], *amounts][:200]))
    with pytest.raises(ConfigError, match=r"price of train\.csv holds cells that are no plain numbers, such as"):
        guess_task(tmp_path, target="price")
    with pytest.raises(ConfigError, match="write them as plain numbers"):
        guess_task(tmp_path, target="price", metric="rmse")
    assert guess_task(tmp_path, target="price", metric="accuracy").task.task_type == "classification"


ODD_FIELDS = """
task_type: null; task_type: regresion; data_modality: smell; metric_direction: null; metric_direction: maximize;
evaluation_metric: null; evaluation_metric: 3; competition_id: ""; description: null; data_dir: nowhere;
data_dir: [a]; target: 2019; target: [x, ""]; metric_dircetion: minimize
"""


def test_a_wrong_task_file_is_refused_with_the_field(tmp_path: Path) -> None:
    lines = []
    with pytest.raises(ConfigError, match=r"no such file; `mle-star init .*` writes one"):
        load_task(tmp_path)
    for field in ODD_FIELDS.replace("\n", " ").split(";"):
        with pytest.raises(ConfigError) as refusal:
            load_task(task_folder(tmp_path, **yaml.safe_load(field)))
        lines.append(f"{field.strip()} => {refusal.value}")
    assert all(str(tmp_path / "task.yaml") in line and "\n" not in line for line in lines)
    as_kept("data/wrong_tasks.txt", "\n".join(lines).replace(str(tmp_path), "…"))


@example("line\x85break")
@example("driver's `score`")
@example("air_quality_index")
@example("other,other")
@given(st.text(min_size=1, max_size=30).filter(str.strip))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_column_name_survives_the_way_through_a_task_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.json").write_text(json.dumps([{name: i % 2, "other": i} for i in range(30)]))
    guess = guess_task(tmp_path, target=name)
    write_task(guess, tmp_path / "task.yaml", force=True)
    assert yaml.safe_load((tmp_path / "task.yaml").read_text(encoding="utf-8"))["target"] == name
    task = load_task(tmp_path)
    assert task.task_type == "classification" and find_layout(tmp_path, task.description).target.names == guess.targets


def test_a_written_guess_is_read_back_and_init_writes_one(data_dir: Path, tmp_path: Path, capsys: Captured) -> None:
    guess, path = guess_task(data_dir), tmp_path / "deep" / "er" / "mine.yaml"
    write_task(guess, path)
    assert load_task(path) == guess.task and all(reason[:40] in path.read_text() for reason in guess.reasons.values())
    (data_dir / "extra.json").write_text("{[}", encoding="utf-8")
    assert main(["init", str(data_dir), "--metric", "auc"]) == 0
    out, err = capsys.readouterr()
    assert "In sample_submission.csv and in train.csv; test.csv lacks it." in out and err == ""
    assert "\nnote  extra.json: cannot be read" in out
    task = load_task(data_dir)
    assert (task.evaluation_metric, task.data_dir) == ("roc_auc", str(data_dir))
    (data_dir / "task.yaml").write_text("mine\n")
    assert main(["init", str(data_dir)]) == 1
    complaint = f"mle-star: error: {data_dir}/task.yaml: exists already; --force overwrites it\n"
    assert capsys.readouterr() == ("", complaint) and (data_dir / "task.yaml").read_text() == "mine\n"
    assert main(["init", str(data_dir), "--force", "--minimize"]) == 0
    assert load_task(data_dir).metric_direction == "minimize"


@pytest.mark.skipif(not os.environ.get("MLE_STAR_SOAK"), reason="a dozen large tables; `make soak`")
@pytest.mark.skipif(not REAL_TASKS.is_dir(), reason="the real data sets are not here")
def test_most_real_tasks_are_guessed_right_from_their_data_alone() -> None:
    folders, wrong = sorted(path.parent for path in REAL_TASKS.glob("*/task.yaml")), []
    for folder in folders:
        truth, guess = load_task(folder), guess_task(folder / "input")
        known = find_layout(folder / "input", truth.description).target.names
        guessed = (guess.targets, guess.task.task_type, guess.task.metric_direction)
        if guessed != (known, truth.task_type, truth.metric_direction):
            wrong.append((folder.name, guessed))
    assert folders and len(wrong) <= 0.2 * len(folders), wrong
