"""Designs and scripts: clean, self-contained, read back as they were, and at work on small tasks of fifty kinds."""

import ast
import csv
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mle_star.engineer import checks, moves, planning, profile
from mle_star.engineer import design as ed
from mle_star.engineer.brain import serve
from mle_star.engineer.parts.core import Memory
from mle_star.engineer.profile import Profile
from tests.conftest import as_kept
from tests.engineer.conftest import Run, profile_of, quick
from tests.engineer.small_tasks import TASKS

pytestmark = pytest.mark.long

NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=8)
RECALLED, SPOILED = "The models were fitted before", "does not serve, all is fitted again"
EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES


@pytest.fixture(scope="module", params=["mean_absolute", "as_json"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return profile_of(TASKS[request.param](tmp_path_factory.mktemp("design") / "input"))


def everything(seen: Profile) -> ed.Design:
    """A design with every family and every step that suits the task."""
    designs = [planning.first_design(seen, family, 100) for family in ed.fitting_families(seen)]
    pooled = planning.united(designs, "careful")
    return pooled.changed(features={step.key: step.settings(seen) for step in ed.fitting_steps(seen)})


def test_scripts_are_clean_and_a_design_is_read_back_from_its_own_only(seen: Profile, tmp_path: Path) -> None:
    design = everything(seen)
    assert ed.recover(ed.assemble(design)) == design
    assert ed.recover("print('hello')") is None and ed.recover("def broken(:") is None
    deep = f"x = {'-' * 20_000}1\n"  # which no parser can take
    assert ed.settings_in(deep) == {} and ed.recover(deep) is None
    assert "mle_star" not in ed.assemble(design).replace("MLE_STAR", "")
    (tmp_path / "all.py").write_text(ed.assemble(design))
    (tmp_path / "first.py").write_text(ed.assemble(planning.first_design(seen, ed.fitting_families(seen)[0], None)))
    (tmp_path / "study.py").write_text(ed.assemble(planning.study(design, "", 0)))
    rules = ["--isolated", "--line-length", "120", "--target-version", "py310"]
    for command in (["check", "--select", "E,F,W,I,B,UP,SIM,C4,PIE,RET"], ["format", "--check"]):
        words = [sys.executable, "-m", "ruff", *command, *rules, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@given(st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4)))
def test_any_value_is_written_so_that_it_is_read_back(value: object) -> None:
    assert ast.literal_eval(ed.literal(value)) == value


@given(column=NAMES, target=NAMES, file=NAMES)
@example(column='a"b\\', target='"""', file="x\ny")
@example(column="\u2028", target="\\", file="\U0001f600\n")
@settings(max_examples=15, deadline=None)
def test_any_name_gives_a_script_that_holds_it_exactly(seen: Profile, column: str, target: str, file: str) -> None:
    data = {**seen.data, "numbers": [column], "train": {"file": file}}
    odd = replace(seen, data=data, targets=[{**seen.targets[0], "name": target}])
    code = ed.assemble(planning.first_design(odd, ed.families()["linear"], None))
    code.encode()
    design = ed.recover(code)
    assert design is not None and design.data["numbers"] == [column] and design.targets[0]["name"] == target
    assert design.data["train"]["file"] == file


def test_every_move_changes_its_block_and_leaves_a_script_of_ours(seen: Profile) -> None:
    design = planning.united([planning.first_design(seen, f, None) for f in ed.fitting_families(seen)[:3]], "mean")
    script, tried = ed.assemble(design), 0
    for block in ed.sections_of(script).values():
        assert script.count(block) == 1
        for action in moves.actions(block, seen):
            if any(action.title.startswith(f"Train {name} beside") for name in design.models):
                continue
            new = moves.apply(f"First. {action.title}. Then no more.", block, seen)
            after = ed.recover(script.replace(block, new))
            assert new != block and after is not None and after != design
            tried += 1
            if tried % 5 == 0:
                assert ed.recover(ed.assemble(after)) == after
        assert moves.apply("Do something clever.", block, seen) == block
    assert tried > 15


def test_what_a_section_gets_needs_no_import_that_a_script_may_lack() -> None:
    kept = {line for name in ed.ALWAYS for d in ed.definitions_of(name).values() for line in d.imports}
    functions = [part.function for part in (*ed.steps().values(), *ed.all_blends().values())]
    functions += [family.fit for family in ed.families().values()]
    for definition in ed.needed(map(ed.definition_of, functions)):
        assert definition.imports <= kept, definition.name


def test_changes_of_one_model_add_up(seen: Profile) -> None:
    family = ed.families()["lightgbm"]
    name, own = family.name, {"family": family.key, **family.usual(seen)}
    block = ed.assemble(planning.first_design(seen, family, None))
    block = next(text for title, text in ed.sections_of(block).items() if title == f"model: {name}")
    titles = [action.title for action in moves.actions(block, seen)]
    first, second = f"Give {name} larger trees", f"Search the settings of {name}"
    assert first in titles and second in titles
    alone, both = (
        ed.settings_in(moves.apply(plan, block, seen))["models"][name]
        for plan in (f"{first}. Why.", f"{first}. Why. Then, on top of that: {second}. Why.")
    )
    assert alone != own and {key: value for key, value in both.items() if key != "search"} == alone
    assert "search" in both


def test_an_ensemble_has_the_promising_families_that_no_solution_has_come_to(tmp_path: Path) -> None:
    profile = profile_of(TASKS["auc"](tmp_path / "input"))
    boosted, linear = (quick(profile, key) for key in ("lightgbm", "linear"))
    pooled = ed.recover(planning.ensemble([ed.assemble(boosted), ed.assemble(linear)], "", profile))
    assert pooled is not None
    promising = {family.key for family in ed.fitting_families(profile)[:3]}
    assert {own["family"] for own in pooled.models.values()} == {"lightgbm", "linear"} | promising
    assert not promising <= {"lightgbm", "linear"} and pooled.models.items() >= linear.models.items()


def decided(seen: Profile) -> Iterator[str]:
    """What the engineer would do on a task: first designs, how they are combined, and every move with its worth."""
    designs = [planning.first_design(seen, family, 1000) for family in ed.fitting_families(seen)]
    pooled = planning.united(designs, "mean").changed(features={})
    yield from (json.dumps(one) for one in (
        {blend.key: blend.worth(seen) for blend in ed.fitting_blends(seen)}, planning.fold_settings(seen, None),
        {family.key: round(family.worth(seen), 4) for family in ed.fitting_families(seen)},
        vars(designs[0].changed(data={}, doc="")), *(design.models for design in designs),
        planning.variants_of(pooled), planning.study(pooled, "", 5).folds,
    ))  # fmt: skip
    whole = pooled.changed(rows=9000, features={key: {} for key in ("dates", "lags")})
    errors = ("Killed", "ImportError: of xgboost", "ImportError", "in add_dates", "in fit_linear", "unforeseen")
    for turn, error in enumerate(errors * 2):
        after = checks._repaired(whole, error, seen, turn // len(errors))
        new = {key: value for key, value in vars(after).items() if value != vars(whole)[key] and key != "doc"}
        yield f"{error} {turn // len(errors)} {json.dumps(new)}"
    for block in ed.sections_of(ed.assemble(pooled)).values():
        for action in moves.actions(block, seen):
            if " beside " not in action.title or designs[0].models.keys() & set(action.title.split(" beside ")[1:]):
                before: Any = ed.settings_in(block)[action.key]
                after = action.change(before)
                new = {k: v for k, v in after.items() if before.get(k) != v} if isinstance(after, dict) else after
                yield f"{action.worth:.3f} {action.plan} {json.dumps(new)}"


def test_the_engineer_decides_as_it_did(tmp_path: Path) -> None:
    seen = {name: profile_of(task(tmp_path / name / "input")) for name, task in TASKS.items()}
    facts = {name: {**vars(one), "recipe": planning.metric_settings(one.recipe)} for name, one in seen.items()}
    lines = [f"{name}\n{json.dumps(one, ensure_ascii=False)}" for name, one in facts.items()]
    as_kept("engineer/profiles.txt", "\n".join(lines))
    lines = []
    kinds = ("auc", "forecast", "text", "with_extra_table", "log_loss_wide", "mean_absolute", "shop", "map_points")
    for name in (*kinds, "odd_dates"):  # the last has targets below zero, of which no logarithm is learned
        large, huge = replace(seen[name], rows=50_000, width=120), replace(seen[name], rows=50_000_000, rarest=1)
        for one in (seen[name], large, replace(huge, class_count=40 if seen[name].class_count else 0, packages=())):
            lines += [f"--- {name}, {one.rows} rows", *decided(one)]
    as_kept("engineer/decisions.txt", "\n".join(lines))


def test_the_examples_in_the_documents_are_what_the_engineer_writes(tmp_path: Path) -> None:
    names = {"table": "auc", "forecast": "forecast", "text": "text", "joined_tables": "with_extra_table"}
    seen = {file: profile_of(TASKS[task](tmp_path / task / "input")) for file, task in names.items()}
    designs = {file: planning.first_design(one, ed.fitting_families(one)[0], None) for file, one in seen.items()}
    boosted, linear = (planning.first_design(seen["table"], ed.families()[key], None) for key in ("lightgbm", "linear"))
    pooled = planning.united([boosted.changed(features={"counts": {"columns": ["kind"]}}), linear], "weights")
    designs |= {"ensemble": pooled, "study": planning.study(pooled, "", 0)}
    scripts = {f"{file}.py": ed.assemble(design) for file, design in designs.items()}
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        EXAMPLES.mkdir(exist_ok=True)
        for name, text in scripts.items():
            (EXAMPLES / name).write_text(text, encoding="utf-8")
    assert scripts == {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}, (
        "UPDATE_SNAPSHOTS=1 writes them anew"
    )


FAMILIES = {
    "mean_absolute": ("lightgbm",), "many_classes": ("extra_trees",), "text": ("nbsvm",), "text_value": ("linear",),
    "as_json": ("xgboost", "linear"), "odd_names": ("lightgbm", "xgboost", "catboost"), "grouped": ("catboost",),
    "quadratic_kappa": ("hist_boosting",), "r_squared": ("neighbours", "kernel"), "wide": ("linear",),
    "very_wide": ("linear",), "rankings": ("network",), "balanced": ("kernel", "neighbours"),
    "log_error": ("catboost",),
    "forecast": ("lightgbm",), "nested_records": ("nbsvm", "linear"), "lone_classes": ("lightgbm", "xgboost", "linear"),
    "no_id": ("hist_boosting",),
}  # fmt: skip
SAMPLED = {"later_dates": 100, "two_targets": 80, "labels_apart": 90}
"""Where fewer rows are learned from than there are."""
SHARED_WORDS = ("titanic", "adult-income", "diamonds", "california", "bike", "spam", "breast", "diabetes", "movie")


@pytest.mark.parametrize("name", TASKS)
def test_a_first_script_scores_and_answers_in_the_wanted_shape(
    name: str, tmp_path: Path, run_script: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLE_STAR_SHARE", "300")  # with time enough it is always the same
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    task = TASKS[name](tmp_path / "input")
    seen = profile_of(task)
    assert serve.refusal(seen.recipe.metric.name, task.folder, "") == ""
    able = [f.key for f in ed.fitting_families(seen) if f.key in ("linear", "extra_trees", "hist_boosting")]
    design = quick(seen, *FAMILIES.get(name, able[:1]))
    more = {one.key: one.settings(seen) for one in ed.fitting_steps(seen) if (name, one.key) == ("wide", "components")}
    design = design.changed(rows=SAMPLED.get(name, design.rows), features={**design.features, **more})
    code = ed.assemble(design)
    assert ed.recover(code) == design
    printed = run_script(code)
    words, _, score = printed.strip().splitlines()[-1].partition(": ")
    assert words == "Final Validation Performance" and math.isfinite(float(score)), printed
    first = (tmp_path / "final/submission.csv").read_text(encoding="utf-8").splitlines()[0]
    with (tmp_path / "final/submission.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file, delimiter=";" if ";" in first else ",")
    assert header == task.answer_columns and len(rows) == task.rows
    assert all(cell for row in rows for cell in row if name not in ("no_id",))
    if seen.recipe.kind == "label" and task.labels and len(seen.targets) == 1:
        assert {row[-1] for row in rows} <= task.labels
    short = [f"score: {float(score):.2g}"]
    for column, cells in zip(header, zip(*rows, strict=True), strict=True):
        numbers = pd.to_numeric(pd.Series(cells).str.replace(",", "."), errors="coerce")
        if numbers.nunique() > 3:
            shown = [f"{number:.2g}" for number in (numbers.mean(), numbers.std(), numbers.iloc[0], numbers.iloc[-1])]
        else:
            shown = [f"{cell!r} {often}" for cell, often in sorted(Counter(cells).items())[:5]]
        short.append(f"{column}: {', '.join(shown)}")
    as_kept(f"engineer/scripts/{name}.txt", "\n".join(short))


PLAIN = {"train.csv": b"id,x,y\n1,2,3\n", "test.csv": b"id,x\n2,3\n"}
UNABLE: list[tuple[str, dict[str, bytes]]] = [
    ("ndcg", PLAIN), ("expected profit", PLAIN), ("accuracy", {"a.png": b"x", "b.png": b"x"}), ("mae", {"a.wav": b"x"}),
    ("rmse", {"train.csv": b"id,x,y\n1,2,a\n2,3,b\n3,1,c\n", "test.csv": b"id,x\n4,1\n"}),
    ("rmse", {"train.csv": b"id,y\n1,2\n2,3\n", "test.csv": b"id\n3\n"}),
    ("rmse", {"train.csv": b"id,x,y\n1,2,\n2,3,\n3,1,\n", "test.csv": b"id,x\n4,1\n"}),
]  # fmt: skip


def test_what_it_cannot_do_is_said_in_a_line(tmp_path: Path) -> None:
    lines = []
    for number, (metric, files) in enumerate(UNABLE):
        (tmp_path / str(number)).mkdir()
        for name, content in files.items():
            (tmp_path / str(number) / name).write_bytes(content)
        lines.append(serve.refusal(metric, tmp_path / str(number), "Predict `y`."))
    shown = "\n".join(lines).replace(str(tmp_path), "…").replace("closeness, ", "")  # a metric of other tests
    as_kept("engineer/refusals.txt", shown)


def test_nothing_in_the_engineer_names_a_data_set() -> None:
    for file in Path(profile.__file__).parent.rglob("*.py"):
        text = file.read_text().lower()
        assert not [word for word in SHARED_WORDS if word in text], file


def answers(folder: Path) -> dict[str, float]:
    """What was answered, by id."""
    return {str(key): float(value) for key, value in pd.read_csv(folder / "final/submission.csv").to_numpy()}


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("auc", ("catboost", "lightgbm", "xgboost", "extra_trees", "hist_boosting")),
        ("auc", ("linear", "neighbours", "kernel", "network")),
        ("r_squared", ("catboost", "lightgbm", "xgboost", "linear", "kernel", "network")),
        ("text", ("nbsvm", "linear", "lightgbm")),
        ("forecast", ("lightgbm", "linear")),
    ],
)
def test_other_rows_need_no_new_fitting(name: str, families: tuple[str, ...], tmp_path: Path, run_script: Run) -> None:
    design = quick(profile_of(TASKS[name](tmp_path / "input")), *families)
    if name == "text":
        design = design.changed(features={**design.features, "reading": {"alpha": 2.0}, "topics": {"count": 5}})
    (tmp_path / "model").mkdir()
    first, before = run_script(ed.assemble(design)), answers(tmp_path)
    assert RECALLED not in first
    for table in ("test.csv", "sample_submission.csv"):  # other rows to answer: the last twenty, in another order
        head, *rows = (tmp_path / "input" / table).read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "input" / table).write_text("".join([head, *rows[:-21:-1]]), encoding="utf-8")
    again = run_script(ed.assemble(design))
    assert RECALLED in again
    scores = [float(each.splitlines()[-1].rpartition(":")[2]) for each in (first, again)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    given = answers(tmp_path)
    assert len(given) == 20 and given == pytest.approx({key: before[key] for key in given}, rel=1e-4, abs=1e-5)


def test_only_the_same_script_on_the_same_data_takes_what_was_kept_if_it_loads(tmp_path: Path, run_script: Run) -> None:
    code, kept = ed.assemble(quick(profile_of(TASKS["auc"](tmp_path / "input")), "linear")), tmp_path / "model"
    run_script(code)
    assert not kept.exists(), "a script of the search keeps nothing"
    kept.mkdir()
    run_script(code)
    (folder,) = kept.iterdir()
    max(folder.iterdir(), key=lambda path: path.stat().st_size).write_bytes(b"no pickle")
    assert SPOILED in run_script(code) and len(answers(tmp_path)) == 75 and RECALLED in run_script(code)
    assert RECALLED not in run_script(code + "# another script\n")
    train = tmp_path / "input" / "train.csv"
    train.write_text("".join(train.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    assert RECALLED not in run_script(code)


def test_a_forecast_is_fitted_as_far_ahead_as_it_was_made_for_and_later_again(tmp_path: Path, run_script: Run) -> None:
    forecast, test = quick(profile_of(TASKS["forecast"](tmp_path / "input")), "lightgbm"), tmp_path / "input/test.csv"
    ahead, code = forecast.folds["ahead"], ed.assemble(forecast)
    rows, train = (pd.read_csv(path, parse_dates=["date"]) for path in (test, test.with_name("train.csv")))
    assert ahead == (rows["date"].max() - train["date"].max()).days > 1
    (tmp_path / "model").mkdir()
    met = []
    for days in (-400, 1 - ahead, 0, 1):  # as a run on one table refits, on rows long known, then rows of a user
        rows.assign(date=rows["date"] + pd.Timedelta(days=days)).to_csv(test, index=False)
        met.append(RECALLED in run_script(code))
    assert met == [False, True, True, False]


@pytest.mark.parametrize("made", [b"x" * 1000, lambda: None])
def test_what_is_too_large_or_cannot_be_kept_stops_no_script(
    made: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("input", "model"):
        (tmp_path / name).mkdir()
    (tmp_path / "input" / "train.csv").write_text("a\n", encoding="utf-8")
    stopped, memory = (Memory({"train": {"file": "train.csv"}}) for _ in range(2))
    assert stopped.hold([0].copy) == [0] and list((tmp_path / "model").iterdir())
    assert Memory({"train": {"file": "train.csv"}}).open and not list((tmp_path / "model").iterdir())
    memory.room = 500
    assert [memory.hold([thing].copy) for thing in (1, made, 2)] == [[1], [made], [2]]
    memory.close()
    assert "What is fitted is not kept" in capsys.readouterr().out and not list((tmp_path / "model").iterdir())
