"""What the engineer sees when it looks at a task's data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mle_star.data import metrics as data_metrics
from mle_star.data.columns import describe
from mle_star.engineer.rules.metrics import RECIPES, find_metric
from mle_star.engineer.rules.profile import Profile, look
from mle_star.engineer.rules.reading import parts_of, read_setting, tried_plans
from mle_star.engineer.rules.script import metric_imports
from mle_star.errors import ConfigError
from tests.engineer.shop import system_prompt, write_shop
from tests.engineer.small_tasks import TASKS


def look_at(name: str, folder: Path) -> Profile:
    """The profile of a small task."""
    return look(read_setting(TASKS[name](folder / "input").system))


@pytest.mark.parametrize(
    ("name", "kind", "metric"),
    [
        ("auc", "binary", "roc_auc"), ("log_loss_wide", "multiclass", "log_loss"), ("r_squared", "regression", "r2"),
        ("quadratic_kappa", "ordinal", "quadratic_weighted_kappa"),
        ("macro_f1", "multiclass", "f1_macro"), ("as_json", "binary", "roc_auc"),
        ("balanced", "binary", "balanced_accuracy"), ("two_targets", "regression", "rmse"), ("text", "binary", "f1"),
        ("many_classes", "multiclass", "log_loss"), ("labels_apart", "binary", "roc_auc"),
    ],
)  # fmt: skip
def test_task_kind_and_metric_are_recognised(name: str, kind: str, metric: str, tmp_path: Path) -> None:
    seen = look_at(name, tmp_path)
    assert (seen.kind, seen.metric.name) == (kind, metric)
    assert seen.id == "id"


def test_columns_are_typed_by_what_they_hold(tmp_path: Path) -> None:
    seen = look(read_setting(write_shop(tmp_path / "input")))
    kinds = {column.name: column.kind for column in seen.columns}
    assert kinds == {
        "age": "number", "city": "category", "income": "number", "visits": "number", "price": "messy number",
        "joined": "date", "note": "category",
    }  # fmt: skip
    assert seen.targets == ("bought",)  # not the column beside it that the test table lacks, too


def test_a_wide_submission_names_classes(tmp_path: Path) -> None:
    seen = look_at("log_loss_wide", tmp_path)
    assert (seen.targets, seen.wide_prefix) == (("grade",), "grade_")


def test_later_and_mixed_test_rows_are_told_apart(tmp_path: Path) -> None:
    later, mixed = look_at("later_dates", tmp_path / "a"), look_at("mixed_dates", tmp_path / "b")
    assert (later.later_test, later.mixed_dates) == ("when", "")
    assert (mixed.later_test, mixed.mixed_dates) == ("", "when")


def test_places_are_found_by_what_their_columns_hold(tmp_path: Path) -> None:
    assert look_at("map_points", tmp_path).location == ("lat", "lon")


def test_further_tables_are_seen(tmp_path: Path) -> None:
    assert [table.name for table in look_at("with_extra_table", tmp_path).extras] == ["shops.csv"]


def test_targets_are_judged_together(tmp_path: Path) -> None:
    seen = look_at("two_kinds", tmp_path)
    assert (seen.targets, seen.kind, seen.mixed_classes) == (("high", "wide"), "multiclass", True)
    assert seen.target_classes == (("0", "1"), ("no", "none", "yes"))
    signs = look_at("two_targets", tmp_path / "signs")
    assert not signs.positive_target  # the second one is, the first is not


def test_without_pyarrow_parquet_files_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = TASKS["as_parquet"](tmp_path / "input").system
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ConfigError, match="pip install pyarrow"):
        look(read_setting(system))


@pytest.mark.parametrize("name", RECIPES)
def test_every_metric_that_scripts_compute_agrees_with_the_registry(name: str) -> None:
    """The expression in a script and the formula of the program give one figure for the same answers."""
    dice, metric = numpy.random.default_rng(3), data_metrics.known_metric(name)
    served = find_metric(name)
    assert served.higher == metric.higher_is_better
    for classes in (2, 4):
        y = dice.integers(0, classes, 200)
        chances = dice.dirichlet(numpy.ones(classes), 200)
        truth, answer = (y, chances) if served.kind == "probability" else (y, chances.argmax(axis=1))
        given: tuple[Any, Any] = (truth, answer)
        if served.kind == "number":
            truth = dice.gamma(2.0, 3.0, 200)
            answer = truth + dice.normal(0, 0.1, 200)
            given = (truth, answer)
        elif name == "gini":
            if classes > 2:
                continue
            given = (truth.astype(float), answer[:, 1])
        elif metric.needs == "labels":
            given = (truth.astype(str), answer.astype(str))
        scope: dict[str, Any] = {"np": numpy, "y": truth, "p": answer}
        for line in metric_imports(served):
            exec(line, scope)
        assert eval(served.expression(classes), scope) == pytest.approx(metric.compute(*given), rel=1e-6)


def test_a_metric_that_scripts_cannot_compute_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot compute ndcg; it knows average_precision, "):
        find_metric("ndcg")
    with pytest.raises(ConfigError, match="unknown metric 'expected profit'"):
        find_metric("expected profit")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Area under the ROC curve (AUC)", "roc_auc"), ("F1 of the class 1", "f1"),
        ("Root Mean Squared Logarithmic Error", "rmsle"), ("macro-averaged F1", "f1_macro"),
        ("mean column-wise RMSE", "mcrmse"), ("multi-class log loss", "log_loss"),
        ("Quadratic Weighted Kappa (QWK)", "quadratic_weighted_kappa"),
        ("area under the precision-recall curve", "average_precision"),
    ],
)  # fmt: skip
def test_metrics_in_words_are_understood(words: str, name: str) -> None:
    assert find_metric(words).name == name


@given(st.lists(st.one_of(st.text(max_size=12), st.integers().map(str), st.floats().map(str)), max_size=30))
def test_any_column_can_be_described(cells: list[str]) -> None:
    column = describe("x", cells)
    assert 0 <= column.gaps <= 1
    assert column.distinct <= len(cells)


@given(st.text(alphabet="#`~ \nab-", max_size=200))
def test_any_prompt_can_be_taken_apart(text: str) -> None:
    parts = parts_of(text)
    assert len(parts) >= 1


def test_headings_inside_a_description_do_not_hide_the_data_folder(tmp_path: Path) -> None:
    task = "Predict `y`.\n\n# Data\n\nSee below.\n\n# Metric\n\nWhatever you like."
    setting = read_setting(system_prompt(tmp_path, "mae", "minimize", task))
    assert (setting.metric, setting.direction) == ("mae", "minimize")
    assert setting.data_folder == str(tmp_path.resolve())
    assert setting.description == task
    assert setting.has("lightgbm") and not setting.has("torch")


def test_a_history_of_plans_is_read_with_its_failures() -> None:
    text = "# Tried\n\n## Plan: one\ntwo lines\n## Score: 0.5\n\n## Plan: other\n## Score: N/A (evaluation failed)\n"
    assert tried_plans(text) == [("one\ntwo lines", 0.5), ("other", None)]
