"""What the engineer sees when it looks at a task's data, and reads in a prompt."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.data.columns import EPOCH
from mle_star.data.layout import find_layout
from mle_star.data.tables import TICK_NS, _looked_at
from mle_star.engineer.brain import parts_of, serve
from mle_star.engineer.design import fitting_families
from mle_star.engineer.parts.reading import read_data
from mle_star.engineer.profile import Profile, look
from mle_star.holdout.split import find_rule
from tests.engineer.conftest import profile_of, question
from tests.engineer.small_tasks import TASKS, system_prompt


def test_a_look_ahead_reads_what_is_looked_at_and_says_nothing_of_what_it_cannot_read(tmp_path: Path) -> None:
    request = question(TASKS["shop"](tmp_path / "input").system)
    for path in request.folder.iterdir():  # a file that has just changed is read anew each time
        os.utime(path)
    time.sleep(2 * TICK_NS / 1e9)
    serve.look_ahead(request.folder, request.description)
    before = _looked_at.cache_info().misses
    assert request.profile.rows
    assert _looked_at.cache_info().misses == before
    serve.look_ahead(tmp_path / "nowhere", "")


def test_names_of_two_words_now_and_then_are_read_word_by_word(tmp_path: Path) -> None:
    for second, texts in ((3, ["name"]), (2, [])):  # 1.3 words on average are enough
        rows = (f"{i},{'Ann B' if i % 10 < second else 'Ann'}{i},{i % 2}" for i in range(200))
        assert seen_in(tmp_path / f"names-{second}", "id,name,y", rows).data["texts"] == texts


def seen_in(folder: Path, head: str, rows: Iterable[str], metric: str = "accuracy") -> Profile:
    """What is seen of a training table with the target `y`."""
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text("".join(f"{row}\n" for row in (head, *rows)))
    return look(metric, folder, "Predict `y`.", ("sklearn",))


def test_the_class_that_is_looked_for_comes_last_and_gini_sorts_classes_and_amounts(tmp_path: Path) -> None:
    seen = profile_of(TASKS["odd_names"](tmp_path / "input"))
    assert seen.targets[0]["classes"] == ["no", "yes"]
    rows = [f"{i},{i % 7},{1 + i % 2}" for i in range(40)]
    for metric, classes in (("roc_auc", ["1", "2"]), ("f1", ["2", "1"])):  # a probability is of the larger number
        assert seen_in(tmp_path, "id,x,y", rows, metric).targets[0]["classes"] == classes
    for count, kind in ((2, "binary"), (5, "regression")):
        seen = seen_in(tmp_path, "id,x,y", (f"{i},{i % 7},{i % count}" for i in range(200)), "gini")
        assert (seen.recipe.metric.name, seen.kind) == ("gini", kind)


def test_only_what_the_interpreter_has_is_offered(tmp_path: Path) -> None:
    system = TASKS["auc"](tmp_path / "input").system
    bare = "\n".join(line for line in system.splitlines() if not line.startswith(("catboost", "lightgbm", "xgb")))
    few, every = ({family.key for family in fitting_families(question(text).profile)} for text in (bare, system))
    assert few < every and len(few) >= 3 and not few & {"lightgbm", "xgboost", "catboost"}


@given(st.text(alphabet="#`~ \nab-", max_size=200))
def test_any_prompt_can_be_taken_apart(text: str) -> None:
    assert len(parts_of(text)) >= 1


def test_headings_inside_a_description_do_not_hide_the_data_folder_and_failures_are_read(tmp_path: Path) -> None:
    task = "Predict `y`.\n\n# Data\n\nSee below.\n\n# Metric\n\nWhatever you like."
    request = question(system_prompt(tmp_path, "mae", "minimize", task))
    assert (request.metric, request.folder, request.description) == ("mae", tmp_path.resolve(), task)
    assert "lightgbm" in request.packages and "sklearn" in request.packages and "torch" not in request.packages
    facts = {"metric": "rmse", "scores": [0.5, None]}
    text = "# Tried\n\n## Plan: one\ntwo lines\n## Score: 0.5\n\n## Plan: other\n## Score: N/A (evaluation failed)\n"
    request = question("", f"{text}\n# Facts\n\n```json\n{json.dumps(facts)}\n```")
    assert request.metric == "rmse"
    assert [(plan.strip(), score) for plan, score in request.tried] == [("one\ntwo lines", 0.5), ("other", None)]


def test_every_class_counts_also_of_a_long_table_sorted_by_class(tmp_path: Path) -> None:
    rows = [f"{i},{i % 11},{'abcd'[4 * i // 30_000]}" for i in range(30_000)]
    seen = seen_in(tmp_path, "id,x,y", [*rows, "30000,1,rare"])
    assert seen.targets[0]["classes"] == ["a", "b", "c", "d", "rare"] and seen.rarest == 1


@pytest.mark.parametrize(
    "form",
    ["%d.%m.%Y %H:%M:%S", "%d-%m-%Y %H:%M", "%d/%m/%y", "%d.%m.%y", "%d/%m/%y %H:%M", "%d/%m/%Y %I:%M %p", "%m/%d/%y"],
)
def test_days_and_months_are_told_apart_by_the_whole_column(form: str, tmp_path: Path) -> None:
    days = [datetime(2021, 1 + i % 12, 1 + i % 28, i % 24, i % 60) for i in range(60)]
    seen = seen_in(tmp_path, "id,when,y", (f"{i},{day.strftime(form)},{i % 2}" for i, day in enumerate(days)))
    assert seen.data["dates"] == {"when": form}


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("spoken", lambda day: f"{day:%d %B %Y %H:%M}"), ("zoned", lambda day: f"{day:%Y-%m-%dT%H:%M}+02:00"),
        ("timestamp", lambda day: str(int((day - EPOCH).total_seconds()))),
        ("eventTime", lambda day: str(int((day - EPOCH).total_seconds()))), ("plain", lambda day: f"{day:%Y-%m-%d}"),
    ],
)  # fmt: skip
def test_engineer_and_hold_out_agree_on_time(name: str, spelled: Callable[[datetime], str], tmp_path: Path) -> None:
    days = [datetime(2021, 1, 1) + timedelta(hours=9 * i) for i in range(120)]
    cells = [spelled(day) if i % 30 != 7 else "unknown" for i, day in enumerate(days)]
    rows = [f"{i},{cell},{i % 5}" for i, cell in enumerate(cells)]
    (tmp_path / "test.csv").write_text(f"id,{name},x\n" + "".join(f"{row}\n" for row in rows[90:]))
    seen = seen_in(tmp_path, f"id,{name},x,y", (f"{row},{i % 2}" for i, row in enumerate(rows[:90])))
    rule = find_rule(find_layout(tmp_path))
    assert (seen.later, rule.kind, rule.column) == (name, "time", name)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `input` of the folder in which the test is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input").mkdir()
    return tmp_path / "input"


def test_one_gap_changes_no_key_and_no_day(inside: Path) -> None:
    """pandas makes numbers with a point of a column of whole numbers that has a gap."""
    (inside / "shops.csv").write_text("shop,size\n" + "".join(f"{i},{i * 10}\n" for i in range(5)))
    rows = (f"{i},{'' if i == 7 else 20210101 + i % 28},{'' if i == 9 else i % 5},{i % 2}" for i in range(60))
    seen = seen_in(inside, "id,day,shop,y", rows)
    assert seen.data["dates"] == {"day": "%Y%m%d"} and seen.data["lookups"]
    train, _ = read_data(seen.data, None, {"kind": "plain"}, 1)
    assert train["day"].isna().sum() == 1 and train["size"].isna().sum() == 1


def test_an_id_that_only_the_test_has_is_no_number_of_a_wide_table(inside: Path) -> None:
    names = [f"x{i}" for i in range(70)]
    rows = [",".join(str((i * n) % 17 / 4) for n in range(70)) for i in range(60)]
    keyed = "".join(f"r{i},{row}\n" for i, row in enumerate(rows))
    (inside / "test.csv").write_text(",".join(["id", *names]) + "\n" + keyed)
    answers = "".join(f"r{i},0\n" for i in reversed(range(60)))
    (inside / "sample_submission.csv").write_text(f"id,y\n{answers}")
    seen = seen_in(inside, ",".join([*names, "y"]), (f"{row},{i % 2}" for i, row in enumerate(rows)))
    _, test = read_data(seen.data, None, {"kind": "plain"}, 1)
    assert list(test["id"][:3]) == ["r0", "r1", "r2"]
