"""Leaks in the data are named before a run, and nothing that is only a good feature."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mle_star.cli.app import main
from mle_star.data.leaks import leaks_in
from mle_star.run.events import HoldOutPrepared, Notice
from mle_star.run.journal import read_journal
from tests.conftest import Captured, Patch

COUNT = 300
DICE = np.random.default_rng(5)
PRICE, NOISE = DICE.lognormal(9, 1, COUNT), DICE.normal(size=COUNT)
SORT = DICE.choice(["red", "green", "blue"], COUNT)
PLAIN = {"a": NOISE.round(3), "b": DICE.integers(0, 9, COUNT)}


@pytest.mark.parametrize(
    ("columns", "target", "words"),
    [
        ({"net": PRICE * 0.9 + NOISE * 50}, PRICE, "`net` alone tells `y` almost exactly"),
        ({"order": -np.log(PRICE)}, PRICE, "`order` alone tells"),
        ({"code": [len(s) for s in SORT]}, SORT, "`code` alone tells"),
        ({"text": [f"a {s}" for s in SORT], "code": [len(s) for s in SORT]}, SORT, "`text`, `code` alone each tell"),
        ({"id": range(COUNT)}, np.sort(PRICE), "`id` orders `y`"),
        ({"near": PRICE * np.exp(NOISE * 0.4)}, PRICE, ""),  # a good feature
        ({"near": [s if n < 0.8 else "red" for s, n in zip(SORT, NOISE, strict=True)]}, SORT, ""),
        ({"id": range(COUNT)}, PRICE, ""), ({"name": [f"n{i}" for i in range(COUNT)]}, SORT, ""),
        ({"rare": [int(i < 2) for i in range(COUNT)]}, [int(i < 2) for i in range(COUNT)], ""),  # too few to be sure
    ],
)  # fmt: skip
def test_a_column_that_tells_the_target_is_named(tmp_path: Path, columns: Any, target: Any, words: str) -> None:
    pd.DataFrame({**columns, **PLAIN, "y": target}).to_csv(tmp_path / "train.csv", index=False)
    found = leaks_in(tmp_path, "Predict `y`.")
    assert len(found) == bool(words) and all(words in one for one in found)


def test_rows_of_the_test_among_the_training_rows_and_columns_that_it_lacks_are_named(tmp_path: Path) -> None:
    table = pd.DataFrame({"id": range(COUNT), **PLAIN, "after": PRICE, "y": PRICE})
    table.to_csv(tmp_path / "train.csv", index=False)
    table[200:].assign(a=lambda some: some["a"] + (some["id"] % 2) / 9)[["id", "a", "b"]].to_csv(tmp_path / "test.csv")
    found = leaks_in(tmp_path, "The target is `y`.")
    assert found == [
        "50 % of the rows of test.csv are in train.csv, too",
        "`after`: in train.csv only, of no use for predictions",
    ]


@pytest.mark.long
def test_patients_stay_together_and_a_leak_is_named_or_not(tmp_path: Path, monkeypatch: Patch, capfd: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    who = DICE.integers(0, 45, COUNT)
    ill = DICE.integers(0, 2, 45)[who]
    persons = {"patient_id": who, "p": DICE.normal(size=45)[who], **PLAIN, "billed": ill * 7 + 1, "ill": ill}
    pd.DataFrame(persons).to_csv("patients.csv", index=False)
    small = ["-M", "1", "-T", "1", "-K", "1", "-L", "1", "-R", "1", "--set", "score_views=1", "--model", "offline"]
    words = ["run", "patients.csv", "--target", "ill", *small]
    for more, problem in ((["--drop", "biled"], "--drop biled: there is no such column; did you mean billed?"),
                          (["--group", "patient"], "group: 'patient' is no column of patients.csv")):  # fmt: skip
        assert main([*words, *more, "--dry-run"]) == 1 and problem in capfd.readouterr().err
    assert main([*words, "--output", "one"]) == 0
    shown = capfd.readouterr()
    assert "rows of one patient_id are alike, so they stay together; `--group none` to change" in shown.err + shown.out
    events = list(read_journal(Path("one/journal.jsonl")))
    (prepared,) = [event for event in events if isinstance(event, HoldOutPrepared)]
    notices = [event.message for event in events if isinstance(event, Notice)]
    assert prepared.rule.startswith("groups: ") and any("`billed` alone tells `ill`" in one for one in notices)
    assert "`billed` alone tells" in Path("one/report.html").read_text(encoding="utf-8")
    view = Path("one/views/view-0")
    known, hidden = (set(pd.read_csv(view / name)["patient_id"]) for name in ("train.csv", "test.csv"))
    assert hidden and not known & hidden
    assert main(["score", "one"]) == 0, "the rows can be drawn again"
    assert main([*words, "--drop", "billed", "--output", "two", "--split", "random"]) == 0
    assert "billed" not in pd.read_csv("two/data/train.csv") and "`billed` alone" not in capfd.readouterr().err
    assert main(["predict", "two", "patients.csv", "--output", "out.csv"]) == 0 and len(pd.read_csv("out.csv")) == COUNT
