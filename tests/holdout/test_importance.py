"""Permuted columns: one submission tells which columns the answers rest on."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pandas
import pytest

from mle_star.data.layout import find_layout
from mle_star.data.metrics import known_metric
from mle_star.data.rows import Unsupported
from mle_star.holdout.explain import permuted_view
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data


def write_task(folder: Path, key: str) -> Path:
    """The target is the sum of `strong` and a little of `weak`; `noise` is what it is called."""
    folder.mkdir()
    dice = random.Random(2)

    def rows(first: int, count: int, target: bool) -> str:
        lines = []
        for number in range(first, first + count):
            strong, weak, noise = dice.random(), dice.random(), dice.random()
            cells = [f"{key}{number}", f"{strong:.4f}", f"{weak:.4f}", f"{noise:.4f}"]
            lines.append(",".join([*cells, f"{strong + 0.2 * weak:.4f}"] if target else cells))
        return "\n".join(lines) + "\n"

    (folder / "train.csv").write_text("id,strong,weak,noise,y\n" + rows(0, 400, True))
    (folder / "test.csv").write_text("id,strong,weak,noise\n" + rows(1000, 60, False))
    (folder / "sample_submission.csv").write_text("id,y\n" + "".join(f"{key}{n},0.5\n" for n in range(1000, 1060)))
    return folder


@pytest.mark.parametrize("key", ["", "row-", "none for training", "and a column for the label"])
def test_a_column_that_answers_lean_on_matters_and_noise_does_not(key: str, tmp_path: Path) -> None:
    nameless, labelled = key == "none for training", key == "and a column for the label"
    folder = write_task(tmp_path / "data", "" if nameless or labelled else key)
    if labelled:  # it is empty, and stays so
        pandas.read_csv(folder / "test.csv").assign(y="").to_csv(folder / "test.csv", index=False)
    if nameless:
        pandas.read_csv(folder / "train.csv").drop(columns="id").to_csv(folder / "train.csv", index=False)
    data = Data.read(find_layout(folder, "Predict `y`."), folder)
    hidden = list(range(0, 400, 4))
    made = permuted_view(Scorer(data, known_metric("rmse")), hidden, tmp_path / "permuted", seed=1)
    assert (made.columns, made.count) == (("strong", "weak", "noise"), 100)
    with (tmp_path / "permuted" / "test.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    with (tmp_path / "permuted" / "train.csv").open(newline="") as stream:
        known = list(csv.DictReader(stream))
    assert (len(rows), len(known)) == (400, 300) and {row.get("y") for row in rows} == {"" if labelled else None}
    assert len({row["id"] for row in (rows if nameless else (*rows, *known))}) == (400 if nameless else 700)
    for block, column in enumerate(made.columns, 1):
        copies = rows[100 * block : 100 * (block + 1)]
        assert sorted(row[column] for row in copies) == sorted(row[column] for row in rows[:100])
        assert [row[column] for row in copies] != [row[column] for row in rows[:100]]
        assert all(
            [row[other] for row in copies] == [row[other] for row in rows[:100]]
            for other in made.columns
            if other != column
        )
    submission = tmp_path / "submission.csv"
    body = "".join(f"{row['id']},{float(row['strong']) + 0.2 * float(row['weak'])}\n" for row in reversed(rows))
    submission.write_text("id,y\n" + body)
    found = made.importance(submission)
    assert [column for column, _ in found] == ["strong", "weak", "noise"]
    worse = dict(found)
    assert worse["strong"] > 5 * worse["weak"] / 2 > 0
    assert worse["noise"] == pytest.approx(0.0, abs=1e-9)


def test_copies_have_keys_in_the_type_of_the_file(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "data", "")
    for name in ("train", "test"):
        pandas.read_csv(folder / f"{name}.csv").to_parquet(folder / f"{name}.parquet", index=False)
        (folder / f"{name}.csv").unlink()
    data = Data.read(find_layout(folder, ""), folder)
    scorer = Scorer(data, known_metric("rmse"))
    with pytest.raises(Unsupported, match="too few hidden rows"):
        permuted_view(scorer, range(20), tmp_path / "permuted", seed=1)
    made = permuted_view(scorer, range(0, 400, 4), tmp_path / "permuted", seed=1)
    rows = pandas.read_parquet(tmp_path / "permuted" / "test.parquet")
    assert rows["id"].dtype == "int64" and not set(rows["id"]) & set(range(1060))
    answers = rows.assign(y=rows["strong"] + 0.2 * rows["weak"])[["id", "y"]]
    answers.to_csv(tmp_path / "submission.csv", index=False)
    assert [column for column, _ in made.importance(tmp_path / "submission.csv")] == ["strong", "weak", "noise"]
