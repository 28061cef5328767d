"""Names of columns, targets and files stand in scripts exactly as they are, whatever they hold."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mle_star.offline.rules import models, moves, sections
from mle_star.offline.rules.profile import Profile, look
from mle_star.offline.rules.reading import read_setting
from mle_star.offline.rules.script import first_script
from tests.offline.small_tasks import TASKS

NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """A task with usual names."""
    return look(read_setting(TASKS["log_loss_wide"](tmp_path_factory.mktemp("names") / "input").system))


@given(column=NAMES, target=NAMES, file=NAMES, prefix=NAMES)
@example(column='a"b\\', target='"""', file="x\ny", prefix="{k}_")
@example(column="\u2028", target="\\", file="\U0001f600\n", prefix='"')
@settings(max_examples=60, deadline=None)
def test_any_name_gives_a_script_that_holds_it_exactly(
    plain: Profile, column: str, target: str, file: str, prefix: str
) -> None:
    columns = tuple(replace(c, name=column) if c.kind == "category" else c for c in plain.columns)
    train = replace(plain.train, name=file, sample={target: plain.train.sample["grade"]})
    odd = replace(plain, columns=columns, targets=(target,), train=train, wide_prefix=prefix)
    script = first_script(odd, models.BY_KEY["linear"], 30_000)
    code = script.with_section("features", moves.apply(list(moves.MOVES), script.sections["features"], odd)).render()
    code.encode()
    held = {node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)}
    assert {column, target, f"./input/{file}", prefix} <= held
    parsed = sections.parse(code)
    assert parsed is not None and parsed.render() == code
