"""Labels and ids come out of a script spelt as they went in, and numbers out of the words around them."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

from mle_star.engineer.rules import models, script
from mle_star.engineer.rules.profile import look
from mle_star.engineer.rules.reading import read_setting
from tests.engineer.small_tasks import Row, table, write


def labelled(labels: list[str]) -> list[Row]:
    """Rows with labels that take turns."""
    return [{**row, "id": f"{n:03}", "y": labels[n % len(labels)]} for n, row in enumerate(table(60))]


def loaded(tmp_path: Path, rows: list[Row]) -> dict[str, Any]:
    """The names that a script has after loading the data and taking the target."""
    look_at = look(read_setting(write(tmp_path / "input", rows, "y", metric="accuracy").system))
    made = script.first_script(look_at, models.BY_KEY["linear"], 30_000)
    parts = [*made.imports, made.settings, made.sections["load"], made.sections["target"]]
    names: dict[str, Any] = {"profile": look_at}
    exec("\n".join(parts), names)
    return names


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["None", "yes", "NA"], ["NA", "None", "yes"]), (["-", "?"], ["-", "?"]), (["x", "none"], ["none", "x"]),
        (["01", "02"], ["01", "02"]), (["9", "10", ""], ["9", "10"]), (["2", "NA", "1"], ["1", "2"]),
        (["true", "false"], ["false", "true"]), (["NA", "", "low"], ["NA", "low"]), (["0", "1"], [0, 1]),
        (["0.5", "1"], ["0.5", "1"]),
    ],
)  # fmt: skip
def test_labels_keep_their_spelling(
    labels: list[str], classes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = loaded(tmp_path, labelled(labels))
    assert list(names["classes"]) == classes
    assert set(names["profile"].classes) == set(map(str, classes))
    with (tmp_path / "input/train.csv").open(newline="") as stream:
        told = [row["y"] for row in csv.DictReader(stream) if row["y"] in map(str, classes)]
    assert [str(names["classes"][number]) for number in names["y"]] == told


def test_ids_keep_their_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = loaded(tmp_path, labelled(["a", "b"]))
    assert names["test"]["id"].tolist() == [f"{n:03}" for n in range(45, 60)]


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        (["y"], 'submission["y"] = submission[ID].map(pd.Series(classes[answer.argmax(axis=1)], index=test[ID]))'),
        ([f"p_{label}" for label in "abcdefghij"], 'if "p_" + str(label) in submission:'),
        ([f"{{_{label}" for label in "abcdefghijk"], 'submission["{_" + str(label)] = '),
    ],
)
def test_probabilities_are_written_as_the_sample_wants_them(answers: list[str], line: str, tmp_path: Path) -> None:
    rows = [{**row, "y": "abcdefghijk"[n % 11]} for n, row in enumerate(table(66))]
    seen = look(read_setting(write(tmp_path / "input", rows, "y", metric="log_loss", answers=answers).system))
    assert line in script.submit(seen)


def test_numbers_are_read_out_of_amounts_with_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spelt = {"30 deg": 30, "5 sec": 5, "$1,200.5": 1200.5, "-3 Eur": -3, "€ 7": 7, ".5%": 0.5, "": 0}
    rows = [{**row, "y": n % 2, "x": f"{n} e"} for n, row in enumerate(table(90))]
    for row, cell in zip(rows, spelt, strict=False):
        row["x"] = cell
    names = loaded(tmp_path, rows)
    assert names["train"]["x"].fillna(0).tolist()[:7] == [*spelt.values()]


@pytest.mark.parametrize("key", ["lightgbm", "xgboost", "catboost", "hist_boosting"])
def test_classes_of_one_row_can_be_learned(key: str, tmp_path: Path) -> None:
    rows = [{**row, "y": f"lone {n}" if n < 20 else "ab"[n % 2]} for n, row in enumerate(table(2100))]
    seen = look(read_setting(write(tmp_path / "input", rows, "y", metric="log_loss").system))
    section = re.sub(r"(n_estimators|iterations|max_iter)=\d+", r"\1=3", models.section(models.BY_KEY[key], seen))
    names: dict[str, Any] = {"np": numpy, "THREADS": 1, "MODELS": {}}
    exec("\n".join([*models.imports(models.BY_KEY[key], seen), section]), names)
    y = numpy.unique([row["y"] for row in rows[:400]], return_inverse=True)[1]
    x = pandas.DataFrame({"n0": [row["n0"] for row in rows[:400]]})
    (p,) = names[f"fit_{key}"](x, y, [x], 42)
    assert p.shape == (400, 22)
