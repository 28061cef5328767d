"""From data to a run in one line and to predictions in three: what is taken in, as it is written, and what is said."""

import csv
import json
import math
import os
import re
import site
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pandas
import pytest
from nbclient import NotebookClient

from mle_star import ConfigError, PipelineConfig, Run, fit, load_model
from mle_star.cli.app import main
from mle_star.cli.model import WRITTEN
from mle_star.cli.options import Shown
from mle_star.cli.run import _accompanied, _notify
from mle_star.data.layout import find_layout
from mle_star.results.finished import export_run
from mle_star.results.rows import read_answers, read_new, texts_of, write_new
from mle_star.results.source import is_data_file, make_task, taken_in, time_in_words
from mle_star.run.folder import callable_name
from tests.conftest import Captured, Patch, write_texts
from tests.data.test_tables import look
from tests.pipeline.conftest import settings
from tests.pipeline.mind import MindAgents
from tests.results.conftest import SOLUTION, fit_houses, house_mind, houses
from tests.views.journals import Invented

ROOT = Path(__file__).parents[2]
SOAK = pytest.mark.skipif("MLE_STAR_SOAK" not in os.environ, reason="a whole run of the rules; `make soak`")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder with the same houses in every form that people have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "houses.csv").write_text(houses(), encoding="utf-8")
    frame = pandas.read_csv("houses.csv")
    frame.to_excel("houses.xlsx", index=False)
    frame.to_parquet("houses.parquet")
    task = {"train.csv": houses(), "task.yaml": "competition_id: x\n"}
    archives = {"one.zip": {"a folder/": "", "whatever.csv": houses()}, "task.zip": task}
    archives["packed.csv.zip"] = archives["one.zip"]
    archives["houses.zip"] = {"in/train.csv": houses(), "in/test.csv": "rooms,kind\n1,small\n2,huge\n"}
    archives["task-inside.zip"] = {f"in/{member}": text for member, text in task.items()}
    for name, members in archives.items():
        with zipfile.ZipFile(name, "w") as archive:
            for member, text in members.items():
                archive.writestr(member, text)
    return write_texts(tmp_path, {"folder/data.csv": houses()})


@pytest.mark.parametrize(
    "source",
    [
        "houses.csv", "houses.xlsx", "houses.parquet", "houses.zip", "one.zip", "packed.csv.zip", "task.zip",
        "task-inside.zip", "folder",
    ],
)  # fmt: skip
def test_whatever_people_have_is_a_task_and_a_dry_run_leaves_nothing(place: Path, capfd: Captured, source: str) -> None:
    before = sorted(place.rglob("*"))
    words = ["run", source, "--target", "price", "--model", "offline", "-M", "1", "-T", "1", "-K", "1", "-L", "1"]
    assert main([*words, "--dry-run"]) == 0
    out, err = capfd.readouterr()
    assert "task: predict price (regression), scored by rmse (lower is better)" in err
    assert "90 rows of 3 columns" in err and (source == "folder" or f"data        {source}\n" in out)
    held = "no test file: rows are held back" in err
    assert held == (source != "houses.zip")
    assert (f"note: {source}: the task.yaml of an archive is not used" in err) == source.startswith("task")
    assert "1 model, 1 path of 1 x 1 refinements, 0 ensembles" in out
    assert "a guess until the first script has run; at most 24 h\n" in out and sorted(place.rglob("*")) == before
    if source == "houses.csv":
        assert main([*words, "--dry-run", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["config"]["scoring"] == "auto"
        assert main([*words, "--dry-run", "--set", "scoring=self_reported"]) == 0
        assert "held back" not in capfd.readouterr().err
        (place / "few.csv").write_text("".join(houses().splitlines(keepends=True)[:60]))  # 59 rows
        assert main([words[0], "few.csv", *words[2:], "--dry-run"]) == 0 and "held back" not in capfd.readouterr().err


def test_a_file_is_taken_into_the_folder_of_its_run_which_has_a_name_or_leaves_no_trace(place: Path) -> None:
    run_dir = place / "runs" / "houses-1"
    assert callable_name(run_dir) == "houses-1"
    assert callable_name(place / "elsewhere" / "houses-1") == str(Path("elsewhere", "houses-1"))
    with taken_in(Path("houses.xlsx"), run_dir) as data:
        guess = make_task(data, run_dir, name="houses", target="price")
    assert [path.name for path in data.iterdir()] == ["train.csv"] and (run_dir / "task.yaml").is_file()
    assert guess.task.competition_id == "houses"
    other = place / "new" / "houses-2"
    with pytest.raises(ConfigError, match="no column 'prize'"), taken_in(Path("houses.csv"), other) as data:
        make_task(data, other, target="prize")
    assert not other.parent.exists()
    with pytest.raises(ConfigError, match="is not empty"), taken_in(Path("houses.csv"), run_dir):
        pass
    assert (run_dir / "task.yaml").is_file()
    (place / "linked").symlink_to("new")
    for error in (ConfigError, KeyError):
        with pytest.raises(error), taken_in(Path("houses.csv"), place / "linked"):
            raise KeyError
        assert (place / "linked").is_symlink(), "what somebody else has made is not removed"
        (place / "new").mkdir(exist_ok=True)
    assert not any((place / "new").iterdir()) and not is_data_file(place / "folder")


def test_messages_call_the_users_file_by_its_name(place: Path, capsys: Captured) -> None:
    (place / "empty.csv").write_text("rooms,price\n")
    (place / "twice.csv").write_text("rooms,rooms,price\n" + "1,2,3\n4,5,6\n" * 20)
    for name, target, code in (("houses.csv", "prize", 1), ("twice.csv", "price", 0), ("houses.xlsx", "price", 0),
                               ("empty.csv", "price", 1)):  # fmt: skip
        assert main(["run", name, "--target", target, "--model", "offline", "--dry-run"]) == code
        err = capsys.readouterr().err
        assert name in err and "train.csv" not in err
    frame = pandas.read_csv("houses.csv")
    with pytest.raises(ConfigError, match=r"the data frame: no column 'prize'"):
        fit(frame, "prize", model="offline")
    with pytest.raises(ConfigError, match=r"target: expected the name of a column, not Series; put it into the data"):
        fit(frame.drop(columns=["price"]), frame["price"], model="offline")


def test_the_sheet_with_the_target_is_read_and_the_others_are_named(place: Path, capsys: Captured) -> None:
    frame = pandas.read_csv("houses.csv")
    with pandas.ExcelWriter("book.xlsx") as book:
        pandas.DataFrame({"Notes": ["made by Ann", "see the wiki"]}).to_excel(book, sheet_name="Read me", index=False)
        frame.to_excel(book, sheet_name="Houses", index=False)
        pandas.DataFrame({"code": ["a"], "words": ["x"]}).to_excel(book, sheet_name="Codes", index=False)
    words = ["run", "book.xlsx", "--model", "offline", "--dry-run"]
    for target in (["--target", "price"], []):
        assert main([*words, *target]) == 0
        err = capsys.readouterr().err
        assert "book.xlsx: sheet 'Houses' is read; not read: 'Read me', 'Codes'" in err
        assert "90 rows of 3 columns" in err and "predict price" in err
    assert main([*words, "--target", "prize"]) == 1
    err = capsys.readouterr().err
    assert "no sheet has a column 'prize'" in err and "'Houses' (rooms, kind, price)" in err and "'Read me'" in err


def test_what_is_said_beside_the_data_reaches_the_agents_without_a_task_file(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b,c\n" + "".join(f"{i},{i / 3},{i / 7}\n" for i in range(30)))
    (tmp_path / "description.md").write_text("# Prices\nPredict `b` of next year.\n")
    guess = make_task(tmp_path, None, target="c")
    assert "Predict `b` of next year." in guess.task.description
    assert find_layout(tmp_path, guess.task.description).target.names == ("c",)


def test_a_guess_of_the_time_grows_with_the_plan_and_the_data_and_ends_at_the_limit(place: Path) -> None:
    small = PipelineConfig(num_parallel_solutions=1, inner_loop_steps=1, outer_loop_steps=1, model="offline")

    def words(**more: int) -> str:
        return time_in_words(small.model_copy(update=more), place / "folder")

    guesses = [words(), *(words(outer_loop_steps=steps, time_limit_seconds=9**9) for steps in (300, 9000))]
    assert [guess.partition(",")[0].split()[2] for guess in guesses] == ["minutes", "hours", "days"]
    assert guesses[0].endswith(", a guess until the first script has run; at most 24 h")
    assert words(time_limit_seconds=60) == "up to the limit of 1 min"


def test_whoever_waits_is_told_how_it_ended(place: Path, capsys: Captured) -> None:
    run_dir = place / "runs" / "done"
    Invented(seed=3).write(run_dir)
    _notify(run_dir, 'echo "$STATE $SCORE" > told.txt; test "$RUN"')
    state, score = (place / "told.txt").read_text().split()
    assert state == "completed" and 0 < float(score) < 1
    with pytest.raises(ValueError, match="planned"), _accompanied(run_dir, Shown(notify="exit 3")):
        raise ValueError("planned")
    assert "--notify: 'exit 3': exit code 3" in capsys.readouterr().err
    _notify(run_dir, "bell")
    assert capsys.readouterr().err == "\a"


def _notebook() -> Any:
    read: Any = nbformat.read
    return read(ROOT / "examples" / "houses.ipynb", 4)


def _shown(cell: Any) -> str:
    return "\n".join(str(output.get("data", output)) for output in cell.get("outputs", []))


def test_the_notebook_was_executed_and_carries_no_trace_of_a_machine() -> None:
    cells = [cell for cell in _notebook().cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    shown = "\n".join(map(_shown, cells))
    assert "measured on hidden rows" in shown and "harness on 20 rows" in shown
    assert "/tmp/" not in shown and "Traceback" not in shown


@pytest.mark.long
@pytest.mark.timeout(900)
@SOAK
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = _notebook()
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell["outputs"], cell["execution_count"] = [], None
    NotebookClient(notebook, timeout=800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [_shown(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "measured on hidden rows" in shown[1] and re.search(r"harness on \d+ rows", shown[2])
    assert "phase1/candidate-0" in shown[3] and "villa" in shown[4]
    printed = [output["text"] for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output]
    assert len(printed) == 1, "nothing but what the cells print: no log"
    assert (next((tmp_path / "runs").iterdir()) / "report.html").is_file()


@pytest.mark.long
@pytest.mark.timeout(900)
@SOAK
def test_one_csv_becomes_predictions_with_three_commands(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    home = write_texts(tmp_path / "home", {"houses.csv": houses(), "new.csv": "kind,rooms\nhuge,2\nsmall,3\n"})
    venv.create(fresh, with_pip=True)
    inside = next((fresh / "lib").glob("python3*/site-packages"))
    # what the package needs comes from here instead of the network; the package itself is installed for real
    (inside / "needed.pth").write_text("\n".join(site.getsitepackages()) + "\n")

    def call(*words: str) -> str:
        env = {**os.environ, "PATH": f"{fresh / 'bin'}:{os.environ['PATH']}", "HOME": str(home)}
        done = subprocess.run(words, cwd=home, env=env, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    call(str(fresh / "bin/python"), "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", str(ROOT))
    assert (fresh / "bin" / "mle-star").is_file() and sys.prefix != str(fresh)
    small = ["-M", "1", "-T", "1", "-K", "1", "-L", "1"]
    output = call("mle-star", "run", "houses.csv", "--target", "price", "--model", "offline", *small)
    for words in ("rows are held back to score by", "a guess until the first script has run", "next: mle-star predict"):
        assert words in output
    call("mle-star", "predict", "latest", "new.csv", "--output", "out.csv")
    with (home / "out.csv").open(newline="") as stream:
        prices = [float(row["price"]) for row in csv.DictReader(stream)]
    assert prices[0] == pytest.approx(201, abs=20) and prices[1] == pytest.approx(11, abs=20)


DAYS = [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(40)]
FRAME = pandas.DataFrame(
    {
        "code": [f"{i:03}" for i in range(40)],
        "day": pandas.to_datetime(DAYS),
        "moment": pandas.to_datetime([f"{day} {i % 24:02}:30:00" for i, day in enumerate(DAYS)]),
        "size": [i * 3 for i in range(40)],
        "weight": [i / 8 if i % 5 else None for i in range(40)],
        "rooms": pandas.array([i % 4 if i % 7 else None for i in range(40)], dtype="Int64"),
        "open": [i % 2 == 0 for i in range(40)],
        "words": [f'a "word", {i}\nmore' if i % 3 else "" for i in range(40)],
    }
)
RECORDS = [
    {"code": f"{i:03}", "day": DAYS[i], "size": i * 3, "inner": {"a": i, "b": "x"}, "tags": ["p", "q"][: i % 3]}
    for i in range(40)
]
EUROPEAN = "".join(f"{1 + i % 28:02}.12.2020;48.{i + 10};{i + 1}.234,5;{i}\n" for i in range(40))
"""Decimal commas, dots for thousands, dates with dots and numbers with a point, all in one file."""
BLANKS = "".join(f"{i},{i % 3},{i * 2}\n" for i in range(40))
COLUMNS = {name: [row[name] for row in RECORDS] for name in ("code", "day", "size")}
WRITERS: dict[str, Callable[[Path], Any]] = {
    "test.csv": lambda path: FRAME.to_csv(path, index=False),
    "blanks.csv": lambda path: path.write_text(f"size ,rooms ,price \n{BLANKS}"),
    "european.csv": lambda path: path.write_text(f"datum;breite;betrag;zahl\n{EUROPEAN}"),
    "test.tsv": lambda path: FRAME.to_csv(path, index=False, sep="\t", encoding="utf-16"),
    "test.parquet": lambda path: FRAME.assign(tags=[["p"] * (i % 3) for i in range(40)]).to_parquet(path),
    "test.xlsx": lambda path: FRAME.drop(columns="words").to_excel(path, index=False),
    "test.jsonl": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in RECORDS)),
    "test.json": lambda path: path.write_text(json.dumps(RECORDS)),
    "inside.json": lambda path: path.write_text(json.dumps({"version": 1, "data": RECORDS})),
    "columns.json": lambda path: path.write_text(json.dumps(COLUMNS)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_rows_of_a_file_are_written_as_that_file_has_them(name: str, tmp_path: Path) -> None:
    given, shown = tmp_path / name, tmp_path / "shown" / name
    WRITERS[name](given)
    table = look(given)
    write_new(read_new(given, table), shown, table.form, table, tmp_path)
    again = look(shown)
    assert again.columns == table.columns and again.sample == table.sample
    assert again.form.kind == table.form.kind and again.form.key == table.form.key
    write_new(read_new(given, table).iloc[:, 1:], shown.with_name(f"new-{name}"), table.form, table, tmp_path)
    assert look(shown.with_name(f"new-{name}")).columns == table.columns[1:]


def test_a_data_frame_is_written_as_the_file_that_was_learned_from(tmp_path: Path) -> None:
    """`fit` on a frame learns from its CSV. One new row has no more than a day, and gaps of every kind."""
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    table = look(tmp_path / "train.csv")
    texts = texts_of(FRAME.convert_dtypes(), table)
    assert {name: list(texts[name]) for name in texts} == table.sample
    one = FRAME.iloc[[3]].assign(moment=pandas.Timestamp("2024-05-05"), words=None, size=pandas.NA)
    assert texts_of(one, table).iloc[0].to_dict() == {
        "code": "003", "day": "2024-04-04", "moment": "2024-05-05 00:00:00", "size": "", "weight": "0.375",
        "rooms": "3", "open": "False", "words": "",
    }  # fmt: skip
    dated = FRAME.assign(day=FRAME["day"].dt.strftime("%d.%m.%Y"), moment=FRAME["moment"].dt.strftime("%d/%m/%Y %H:%M"))
    dated.to_csv(tmp_path / "train.csv", index=False)
    for frame in (FRAME, FRAME.assign(moment=FRAME["moment"].dt.tz_localize("Europe/Paris"))):
        texts = texts_of(frame, look(tmp_path / "train.csv"))
        assert (list(texts["day"]), list(texts["moment"])) == (list(dated["day"]), list(dated["moment"]))
    FRAME.assign(moment=FRAME["moment"].dt.tz_localize("UTC")).to_csv(tmp_path / "train.csv", index=False)
    assert list(texts_of(FRAME, look(tmp_path / "train.csv"))["moment"]) == list(map(str, FRAME["moment"]))
    zoned, dated = FRAME["moment"].dt.tz_localize("Europe/Paris"), FRAME["moment"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    for written in (zoned, dated):
        FRAME.assign(moment=written).to_csv(tmp_path / "train.csv", index=False)
        texts = texts_of(FRAME.assign(moment=zoned), look(tmp_path / "train.csv"))["moment"]
        assert (pandas.to_datetime(texts, utc=True) == zoned).all() and texts[0][-1] == str(written[0])[-1]
    assert list(texts_of(pandas.DataFrame({"a": ["half \ud800"]}, dtype=object), table)["a"]) == ["half ?"]
    with pytest.raises(ConfigError, match="expected a data frame or the path of data, not dict"):
        texts_of({"size": [1]}, table)


ANSWERED: list[tuple[str, str, list[Any]]] = [
    ("None Mild Severe", "None Mild None", ["None", "Mild", "None"]), ("None Mild", "None None None", ["None"] * 3),
    ("true false", "true false true", ["true", "false", "true"]), ("001 010", "010 001 001", ["010", "001", "001"]),
    ("0 1 ", "1 0 1", [1, 0, 1]), ("yes no", "0.25 1 0", [0.25, 1.0, 0.0]), ("1.5 2.25", "3.5  4", [3.5, None, 4.0]),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "cells", "expected"), ANSWERED)
def test_answers_come_back_as_written(labels: str, cells: str, expected: list[Any], tmp_path: Path) -> None:
    rows = "".join(f"00{i};{cell}\n" for i, cell in enumerate(cells.split(" ")))
    write_texts(tmp_path, {"submission.csv": f"id;label\n{rows}"})
    with (tmp_path / "submission.csv").open("rb") as file:
        answers = read_answers(file, ";", "id", {"label": labels.split(" ")})
    assert list(answers["id"]) == ["000", "001", "002"]
    assert [None if cell != cell else cell for cell in answers["label"]] == expected


def test_a_model_of_a_parquet_file_predicts(tmp_path: Path) -> None:
    """Its script was written for a test of separated values, since the file has none beside it."""
    pandas.read_csv(pandas.io.common.StringIO(houses())).to_parquet(tmp_path / "houses.parquet")
    code = SOLUTION.replace(
        'with open("input/train.csv", newline="") as stream:\n    train = list(csv.DictReader(stream))',
        'from pyarrow import parquet\ntrain = parquet.read_table("input/train.parquet").to_pylist()',
    )
    assert "parquet.read_table" in code
    run = fit_houses(tmp_path / "houses.parquet", tmp_path, code, score_views=1)
    answers = run.predict(pandas.DataFrame({"rooms": [3, 4], "kind": ["huge", "small"]}))
    assert list(answers["price"]) == pytest.approx([202, 11], abs=2)


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_lists_stay_lists_in_the_rows_to_predict(suffix: str, tmp_path: Path) -> None:
    """As separated values they would be texts, of which scripts make other words than of lists they learned from."""
    frame = pandas.read_csv(pandas.io.common.StringIO(houses()))
    frame = frame.assign(kind=[[kind, "house"] for kind in frame["kind"]], id=range(1, len(frame) + 1))
    frame, path = frame[["id", "rooms", "kind", "price"]], tmp_path / f"houses.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=suffix == "jsonl")
    code = SOLUTION
    for name in ("train", "test"):
        code = code.replace(
            f'with open("input/{name}.csv", newline="") as stream:\n    {name} = list(csv.DictReader(stream))',
            f'{name} = read("input/{name}.{suffix}")\nassert all(isinstance(row["id"], int) for row in {name})\n'
            f'{name} = [{{**row, "kind": row["kind"][row["kind"].index("house") - 1]}} for row in {name}]',
        )
    reading = {"json": "json.load(open(path))", "jsonl": "list(map(json.loads, open(path)))"}
    read = reading.get(suffix, "__import__('pyarrow.parquet').parquet.read_table(path).to_pylist()")
    run = fit_houses(path, tmp_path, f"import json\nread = lambda path: {read}\n{code}", score_views=1)
    assert run.result.expected is not None and run.result.expected.measured == "harness"
    new = pandas.DataFrame({"rooms": [3, 4], "kind": [["huge", "house"], ["small", "house"]]})
    assert list(run.predict(new)["price"]) == pytest.approx([202, 11], abs=2)
    new.assign(id=[7, 8]).to_parquet(tmp_path / "new.parquet")
    assert list(run.predict(tmp_path / "new.parquet")["price"]) == pytest.approx([202, 11], abs=2)
    exported = {path.name for path in export_run(run.path, tmp_path / "export")}
    assert "predict.py" not in exported, "it reads CSV files, which hold no lists"


@pytest.mark.parametrize("keyed", [True, False])
def test_one_table_of_three_classes_is_scored_by_a_probability_of_each(keyed: bool, tmp_path: Path) -> None:
    rows = [{"id": i, "size": i % 5, "topic": ("news", "art, film", "3")[i % 3]} for i in range(90)]
    pandas.DataFrame(rows)[["id", "size", "topic"][not keyed :]].to_csv(tmp_path / "topics.csv", index=False)
    code = """
import csv
from pathlib import Path
level = 0.5000
with open("input/test.csv", newline="") as stream, open("input/sample_submission.csv", newline="") as sample:
    test, header = list(csv.DictReader(stream)), next(csv.reader(sample))
chances = {"news": 0.5, "art, film": 0.25, "3": 0.25}
with open("final/submission.csv", "w", newline="") as stream:
    rows = [[row.get(name, chances.get(name)) for name in header] for row in test]
    csv.writer(stream).writerows([header, *rows])
print(f"Final Validation Performance: {level}")
"""
    letters = settings(M=1, T=1, K=1, L=1, scoring="auto").model_dump(exclude_unset=True)
    letters, agents = {**letters, "work_dir": str(tmp_path)}, MindAgents(house_mind(code))
    run = fit(tmp_path / "topics.csv", "topic", metric="log_loss", settings=letters, quiet=True, agents=agents)
    expected, baseline = run.result.expected, run.result.baseline
    assert expected is not None and expected.measured == "harness" and expected.low is not None
    assert expected.score == pytest.approx(-math.log(0.5 * 0.25 * 0.25) / 3, abs=0.05)
    assert baseline is not None and baseline.measure.score == pytest.approx(math.log(3), abs=0.01)
    answers, chances = run.predict(pandas.DataFrame({"size": [1, 2]})), {"3": 0.25, "art, film": 0.25, "news": 0.5}
    assert {name: list(answers[name]) for name in answers} == {name: [one, one] for name, one in chances.items()}
    assert [load_model(run.path).example[name] for name in chances] == ["0.3333"] * 3, "as scripts were shown"


def test_predictions_are_written_as_the_name_of_the_file_says(tmp_path: Path, house_run: Run, capsys: Captured) -> None:
    new = {"rooms": [3, 4], "kind": ["huge", "small"], "price": [1, 2]}
    pandas.DataFrame(new).to_csv(tmp_path / "new.csv", index=False)
    command = ["predict", str(house_run.path), str(tmp_path / "new.csv"), "--output", str(tmp_path / "p.PARQUET")]
    assert main(command) == 0 and "new.csv holds price: not used" in capsys.readouterr().err
    written = pandas.read_parquet(tmp_path / "p.PARQUET")
    assert list(written.columns) == ["price"] and written["price"].round(-1).tolist() == [200, 10]
    readers: dict[str, Any] = {".csv": pandas.read_csv, ".tsv": pandas.read_table, ".xlsx": pandas.read_excel}
    assert {*readers, ".parquet"} == {*WRITTEN}
    for suffix, read in readers.items():
        WRITTEN[suffix](written, tmp_path / f"p{suffix}")
        again = read(tmp_path / f"p{suffix}")
        assert list(again.columns) == ["price"] and list(again["price"]) == pytest.approx(list(written["price"]))
