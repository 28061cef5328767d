"""The engineer's scripts on small tasks of every kind: they run, print a score and write a valid submission."""

from __future__ import annotations

import csv
import math
import os
from functools import reduce
from pathlib import Path

import pytest

from mle_star.engineer.rules import leakage, merging, models, profile, script, sections
from mle_star.engineer.rules.reading import read_setting
from tests.engineer.conftest import Run
from tests.engineer.small_tasks import TASKS

QUICK = {
    "quadratic_kappa": ("lightgbm",), "r_squared": ("neighbours",), "mean_absolute": ("lightgbm",),
    "many_classes": ("discriminant",), "text": ("nbsvm",),
    "text_value": ("reader",), "as_json": ("xgboost",), "odd_names": ("lightgbm", "xgboost"),
    "with_extra_table": ("hist_boosting",), "one_file": ("extra_trees",),
}  # fmt: skip
"""Models that are quick enough and do not always come from the same family; for other kinds, the linear one."""
SHARED_WORDS = ("titanic", "adult-income", "diamonds", "california", "bike", "spam", "breast", "diabetes")


def chosen(name: str, seen: profile.Profile) -> list[models.Model]:
    """The models that a kind of task is tried with: quick ones, or in a soak those that the engineer prefers."""
    if os.environ.get("MLE_STAR_SOAK"):
        catalogue = models.catalogue(seen)
        return [catalogue[list(TASKS).index(name) % min(len(catalogue), 4)]]  # not the same family every time
    return [models.BY_KEY[key] for key in QUICK.get(name, ("linear",))]


@pytest.mark.parametrize("name", TASKS)
async def test_a_first_script_scores_and_answers_in_the_wanted_shape(
    name: str, tmp_path: Path, run_script: Run
) -> None:
    task = TASKS[name](tmp_path / "input")
    look = profile.look(read_setting(task.system))
    scripts = [script.first_script(look, model, 30_000) for model in chosen(name, look)]
    code = reduce(merging.merge, scripts).render()
    assert leakage.find_leaks(code) == []
    result = await run_script(code)
    assert not result.is_error, result.error_traceback
    assert result.score is not None
    assert math.isfinite(result.score)
    with (tmp_path / "final/submission.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == task.answer_columns
    assert len(rows) == task.rows
    assert all(cell for row in rows for cell in row)


def test_the_catalogue_offers_only_what_the_interpreter_has(tmp_path: Path) -> None:
    system = TASKS["auc"](tmp_path / "input").system
    bare = os.linesep.join(line for line in system.splitlines() if not line.startswith(("catboost", "lightgbm", "xgb")))
    everything = {model.name for model in models.catalogue(profile.look(read_setting(system)))}
    few = {model.name for model in models.catalogue(profile.look(read_setting(bare)))}
    assert few < everything
    assert len(few) >= 3
    assert not any(word in name for name in few for word in ("CatBoost", "LightGBM", "XGBoost"))


def test_a_merged_script_can_be_read_back_section_by_section(tmp_path: Path) -> None:
    look = profile.look(read_setting(TASKS["r_squared"](tmp_path / "input").system))
    first, second = (script.first_script(look, model, 30_000) for model in models.catalogue(look)[:2])
    merged = merging.merge(first, second).render()
    parsed = sections.parse(merged)
    assert parsed is not None
    assert parsed.render() == merged
    assert len(merged) > len(first.render())


def test_nothing_in_the_engineer_names_a_data_set() -> None:
    package = Path(profile.__file__).parent.parent
    for file in package.rglob("*.py"):
        text = file.read_text().lower()
        assert not [word for word in SHARED_WORDS if word in text], file
