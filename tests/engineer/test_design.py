"""Designs and scripts: what is assembled is clean, self-contained, and read back as it was."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mle_star.engineer import moves, planning
from mle_star.engineer.checks import foreign_block, leaks
from mle_star.engineer.design import (
    Design,
    assemble,
    families,
    fitting_blends,
    fitting_families,
    fitting_steps,
    literal,
    recover,
    sections_of,
    settings_in,
)
from mle_star.engineer.profile import Profile, look
from tests.conftest import as_kept
from tests.engineer.conftest import profile_of
from tests.engineer.small_tasks import TASKS

NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=8)


@pytest.fixture(scope="module", params=["mean_absolute", "as_json"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return profile_of(TASKS[request.param](tmp_path_factory.mktemp("design") / "input"))


def everything(seen: Profile) -> Design:
    """A design with every family and every step that suits the task."""
    designs = [planning.first_design(seen, family, 100) for family in fitting_families(seen)]
    pooled = planning.united(designs, "careful")
    return pooled.changed(features={step.key: step.settings(seen) for step in fitting_steps(seen)})


def test_scripts_are_clean_and_a_design_is_read_back_from_its_own_only(seen: Profile, tmp_path: Path) -> None:
    design = everything(seen)
    assert recover(assemble(design)) == design
    assert recover("print('hello')") is None and recover("def broken(:") is None
    assert "mle_star" not in assemble(design).replace("MLE_STAR", "")
    (tmp_path / "all.py").write_text(assemble(design))
    (tmp_path / "first.py").write_text(assemble(planning.first_design(seen, fitting_families(seen)[0], None)))
    (tmp_path / "study.py").write_text(assemble(planning.study(design, "", 0)))
    rules = ["--isolated", "--line-length", "120", "--target-version", "py310"]
    for command in (["check", "--select", "E,F,W,I,B,UP,SIM,C4,PIE,RET"], ["format", "--check"]):
        words = [sys.executable, "-m", "ruff", *command, *rules, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES


@given(st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4)))
def test_any_value_is_written_so_that_it_is_read_back(value: object) -> None:
    assert ast.literal_eval(literal(value)) == value


@given(column=NAMES, target=NAMES, file=NAMES)
@example(column='a"b\\', target='"""', file="x\ny")
@example(column="\u2028", target="\\", file="\U0001f600\n")
@settings(max_examples=15, deadline=None)
def test_any_name_gives_a_script_that_holds_it_exactly(seen: Profile, column: str, target: str, file: str) -> None:
    data = {**seen.data, "numbers": [column], "train": {"file": file}}
    odd = replace(seen, data=data, targets=[{**seen.targets[0], "name": target}])
    code = assemble(planning.first_design(odd, families()["linear"], None))
    code.encode()
    design = recover(code)
    assert design is not None and design.data["numbers"] == [column] and design.targets[0]["name"] == target
    assert design.data["train"]["file"] == file


def test_every_move_changes_its_block_and_leaves_a_script_of_ours(seen: Profile) -> None:
    design = planning.united([planning.first_design(seen, f, None) for f in fitting_families(seen)[:3]], "mean")
    script = assemble(design)
    tried = 0
    for block in sections_of(script).values():
        assert script.count(block) == 1
        for action in moves.actions(block, seen):
            if any(action.title.startswith(f"Train {name} beside") for name in design.models):
                continue
            new = moves.apply(f"First. {action.title}. Then no more.", block, seen)
            after = recover(script.replace(block, new))
            assert new != block and after is not None and after != design
            tried += 1
            if tried % 5 == 0:
                assert recover(assemble(after)) == after
        assert moves.apply("Do something clever.", block, seen) == block
    assert tried > 15


def test_changes_of_one_model_add_up(seen: Profile) -> None:
    family = families()["lightgbm"]
    name, own = family.name, {"family": family.key, **family.usual(seen)}
    block = assemble(planning.first_design(seen, family, None))
    block = next(text for title, text in sections_of(block).items() if title == f"model: {name}")
    titles = [action.title for action in moves.actions(block, seen)]
    first, second = f"Give {name} larger trees", f"Search the settings of {name}"
    assert first in titles and second in titles
    alone, both = (
        settings_in(moves.apply(plan, block, seen))["models"][name]
        for plan in (f"{first}. Why.", f"{first}. Why. Then, on top of that: {second}. Why.")
    )
    assert alone != own and {key: value for key, value in both.items() if key != "search"} == alone
    assert "search" in both


def test_no_logarithm_is_learned_of_what_may_be_negative(tmp_path: Path) -> None:
    for lowest, able in ((-5, False), (0, True)):
        folder = tmp_path / str(lowest) / "input"
        folder.mkdir(parents=True)
        rows = "".join(f"{i},{i % 7},{lowest + i % 31}.5\n" for i in range(80))
        (folder / "train.csv").write_text("id,x,y\n" + rows)
        profile = look("rmse", folder, "Predict `y`.", ("sklearn",))
        block = sections_of(assemble(planning.first_design(profile, families()["linear"], None)))["target"]
        titles = [action.title for action in moves.actions(block, profile)]
        assert ("Learn the logarithm of the target" in titles) is able


def test_an_ensemble_has_the_promising_families_that_no_solution_has_come_to(tmp_path: Path) -> None:
    profile = profile_of(TASKS["auc"](tmp_path / "input"))
    boosted, linear = (planning.first_design(profile, families()[key], None) for key in ("lightgbm", "linear"))
    pooled = recover(planning.ensemble([assemble(boosted), assemble(linear)], "", profile))
    assert pooled is not None
    promising = {family.key for family in fitting_families(profile)[:3]}
    assert {own["family"] for own in pooled.models.values()} == {"lightgbm", "linear"} | promising
    assert not promising <= {"lightgbm", "linear"}


def decided(seen: Profile) -> Iterator[str]:
    """What the engineer would do on a task: first designs, how they are combined, and every move with its worth."""
    designs = [planning.first_design(seen, family, 1000) for family in fitting_families(seen)]
    pooled = planning.united(designs, "mean").changed(features={})
    yield from (json.dumps(one) for one in (
        {blend.key: blend.worth(seen) for blend in fitting_blends(seen)}, planning.fold_settings(seen, None),
        {family.key: round(family.worth(seen), 4) for family in fitting_families(seen)},
        vars(designs[0].changed(data={}, doc="")), *(design.models for design in designs),
        planning.variants_of(pooled), planning.study(pooled, "", 5).folds,
    ))  # fmt: skip
    for block in sections_of(assemble(pooled)).values():
        for action in moves.actions(block, seen):
            if " beside " not in action.title or designs[0].models.keys() & set(action.title.split(" beside ")[1:]):
                before: Any = settings_in(block)[action.key]
                after = action.change(before)
                new = {k: v for k, v in after.items() if before.get(k) != v} if isinstance(after, dict) else after
                yield f"{action.worth:.3f} {action.plan} {json.dumps(new)}"


def test_the_engineer_decides_as_it_did(tmp_path: Path) -> None:
    seen = {name: profile_of(task(tmp_path / name / "input")) for name, task in TASKS.items()}
    facts = {name: {**vars(one), "recipe": planning.metric_settings(one.recipe)} for name, one in seen.items()}
    lines = [f"{name}\n{json.dumps(one, ensure_ascii=False)}" for name, one in facts.items()]
    as_kept("engineer/profiles.txt", "\n".join(lines))
    lines = []
    for name in ("auc", "forecast", "text", "with_extra_table", "log_loss_wide", "mean_absolute", "shop", "map_points"):
        large, huge = replace(seen[name], rows=50_000, width=120), replace(seen[name], rows=50_000_000, rarest=1)
        for one in (seen[name], large, replace(huge, class_count=40 if seen[name].class_count else 0, packages=())):
            lines += [f"--- {name}, {one.rows} rows", *decided(one)]
    as_kept("engineer/decisions.txt", "\n".join(lines))


EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"


def test_the_examples_in_the_documents_are_what_the_engineer_writes(tmp_path: Path) -> None:
    names = {"table": "auc", "forecast": "forecast", "text": "text", "joined_tables": "with_extra_table"}
    seen = {file: profile_of(TASKS[task](tmp_path / task / "input")) for file, task in names.items()}
    designs = {file: planning.first_design(one, fitting_families(one)[0], None) for file, one in seen.items()}
    boosted, linear = (planning.first_design(seen["table"], families()[key], None) for key in ("lightgbm", "linear"))
    pooled = planning.united([boosted.changed(features={"counts": {"columns": ["kind"]}}), linear], "weights")
    designs |= {"ensemble": pooled, "study": planning.study(pooled, "", 0)}
    scripts = {f"{file}.py": assemble(design) for file, design in designs.items()}
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        EXAMPLES.mkdir(exist_ok=True)
        for name, text in scripts.items():
            (EXAMPLES / name).write_text(text, encoding="utf-8")
    assert scripts == {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}, (
        "UPDATE_SNAPSHOTS=1 writes them anew"
    )


def test_a_script_that_no_parser_can_take_is_somebody_elses_script() -> None:
    deep = f"x = {'-' * 20_000}1\n"
    assert settings_in(deep) == {} and leaks(deep) == [] and foreign_block(deep, [])[0] == deep
