"""New rows reach a script as those of its own test did, whatever holds them, and its answers come back as written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from mle_star.api import Run
from mle_star.cli.app import main
from mle_star.cli.model import WRITTEN
from mle_star.data.tables import Table, read_table
from mle_star.errors import ConfigError
from mle_star.results.rows import read_answers, read_new, texts_of, write_new
from tests.results.conftest import SOLUTION, fit_houses, houses

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


def european(path: Path) -> None:
    """Decimal commas, dots for thousands, dates with dots and numbers with a point, all in one file."""
    rows = [f"{1 + i % 28:02}.12.2020;48.{i + 10};{i + 1}.234,5;{i}" for i in range(40)]
    path.write_text("\n".join(["datum;breite;betrag;zahl", *rows, ""]), encoding="utf-8")


WRITERS: dict[str, Callable[[Path], Any]] = {
    "test.csv": lambda path: FRAME.to_csv(path, index=False),
    "blanks.csv": lambda path: path.write_text(
        "size ,rooms ,price \n" + "".join(f"{i},{i % 3},{i * 2}\n" for i in range(40)), encoding="utf-8"
    ),
    "european.csv": european,
    "test.tsv": lambda path: FRAME.to_csv(path, index=False, sep="\t", encoding="utf-16"),
    "test.parquet": lambda path: FRAME.assign(tags=[["p"] * (i % 3) for i in range(40)]).to_parquet(path),
    "test.xlsx": lambda path: FRAME.drop(columns="words").to_excel(path, index=False),
    "test.jsonl": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in RECORDS)),
    "test.json": lambda path: path.write_text(json.dumps(RECORDS)),
    "inside.json": lambda path: path.write_text(json.dumps({"version": 1, "data": RECORDS})),
    "columns.json": lambda path: path.write_text(
        json.dumps({name: [row[name] for row in RECORDS] for name in ("code", "day", "size")})
    ),
}


def looked_at(path: Path) -> Table:
    """A file as everything here sees it."""
    table = read_table(path)
    assert isinstance(table, Table), table
    return table


@pytest.mark.parametrize("name", WRITERS)
def test_rows_of_a_file_are_written_as_that_file_has_them(name: str, tmp_path: Path) -> None:
    given, shown = tmp_path / name, tmp_path / "shown" / name
    WRITERS[name](given)
    table = looked_at(given)
    write_new(read_new(given, table), shown, table.form, table, tmp_path)
    again = looked_at(shown)
    assert again.columns == table.columns
    assert again.sample == table.sample
    assert again.form.kind == table.form.kind and again.form.key == table.form.key


def test_a_data_frame_is_written_as_the_file_that_was_learned_from(tmp_path: Path) -> None:
    """`fit` on a frame learns from its CSV. One new row has no more than a day, and gaps of every kind."""
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    table = looked_at(tmp_path / "train.csv")
    texts = texts_of(FRAME.convert_dtypes(), table)
    assert {name: list(texts[name]) for name in texts} == table.sample
    one = FRAME.iloc[[3]].assign(moment=pandas.Timestamp("2024-05-05"), words=None, size=pandas.NA)
    assert texts_of(one, table).iloc[0].to_dict() == {
        "code": "003", "day": "2024-04-04", "moment": "2024-05-05 00:00:00", "size": "", "weight": "0.375",
        "rooms": "3", "open": "False", "words": "",
    }  # fmt: skip
    dated = FRAME.assign(day=FRAME["day"].dt.strftime("%d.%m.%Y"), moment=FRAME["moment"].dt.strftime("%d/%m/%Y %H:%M"))
    dated.to_csv(tmp_path / "train.csv", index=False)
    zoned = FRAME.assign(moment=FRAME["moment"].dt.tz_localize("Europe/Paris"))
    for frame in (FRAME, zoned):
        texts = texts_of(frame, looked_at(tmp_path / "train.csv"))
        assert (list(texts["day"]), list(texts["moment"])) == (list(dated["day"]), list(dated["moment"]))
    with pytest.raises(ConfigError, match="a data frame or the path of a table is wanted, not dict"):
        texts_of({"size": [1]}, table)


@pytest.mark.parametrize(
    ("labels", "cells", "expected"),
    [
        (["None", "Mild", "Severe"], ["None", "Mild", "None"], ["None", "Mild", "None"]),
        (["None", "Mild"], ["None", "None", "None"], ["None", "None", "None"]),
        (["true", "false"], ["true", "false", "true"], ["true", "false", "true"]),
        (["001", "010"], ["010", "001", "001"], ["010", "001", "001"]),
        (["0", "1", ""], ["1", "0", "1"], [1, 0, 1]),
        (["yes", "no"], ["0.25", "1", "0"], [0.25, 1.0, 0.0]),
        (["1.5", "2.25"], ["3.5", "", "4"], [3.5, None, 4.0]),
    ],
)
def test_answers_come_back_as_written(labels: list[str], cells: list[str], expected: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "submission.csv"
    path.write_text("id;label\n" + "".join(f"00{i};{cell}\n" for i, cell in enumerate(cells)), encoding="utf-8")
    answers = read_answers(path, ";", "id", {"label": labels})
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
    run = fit_houses(tmp_path / "houses.parquet", tmp_path, code)
    answers = run.predict(pandas.DataFrame({"rooms": [3, 4], "kind": ["huge", "small"]}))
    assert list(answers["price"]) == pytest.approx([202, 11], abs=2)


def test_predictions_are_written_as_the_name_of_the_file_says(tmp_path: Path, house_run: Run) -> None:
    pandas.DataFrame({"rooms": [3, 4], "kind": ["huge", "small"]}).to_csv(tmp_path / "new.csv", index=False)
    command = ["predict", str(house_run.path), str(tmp_path / "new.csv"), "--output", str(tmp_path / "p.PARQUET")]
    assert main(command) == 0
    written = pandas.read_parquet(tmp_path / "p.PARQUET")
    assert list(written.columns) == ["price"] and written["price"].round(-1).tolist() == [200, 10]
    readers: dict[str, Any] = {".csv": pandas.read_csv, ".tsv": pandas.read_table, ".xlsx": pandas.read_excel}
    assert {*readers, ".parquet"} == {*WRITTEN}
    for suffix, read in readers.items():
        WRITTEN[suffix](written, tmp_path / f"p{suffix}")
        again = read(tmp_path / f"p{suffix}")
        assert list(again.columns) == ["price"] and list(again["price"]) == pytest.approx(list(written["price"]))
