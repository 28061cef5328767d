"""Names of columns, targets and files stand in scripts exactly as they are, whatever they hold."""

from __future__ import annotations

import ast
import csv
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mle_star.data import tables
from mle_star.engineer.rules import models, moves, sections
from mle_star.engineer.rules.profile import Profile, look
from mle_star.engineer.rules.reading import read_setting
from mle_star.engineer.rules.script import first_script
from mle_star.engineer.rules.tables import Table
from tests.engineer.small_tasks import TASKS

NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """A task with usual names."""
    return look(read_setting(TASKS["log_loss_wide"](tmp_path_factory.mktemp("names") / "input").system))


@given(column=NAMES, target=NAMES, file=NAMES, prefix=NAMES)
@example(column='a"b\\', target='"""', file="x\ny", prefix="{k}_")
@example(column="\u2028", target="\\", file="\U0001f600\n", prefix='"')
@settings(max_examples=60)
def test_any_name_gives_a_script_that_holds_it_exactly(
    plain: Profile, column: str, target: str, file: str, prefix: str
) -> None:
    columns = tuple(replace(c, name=column) if c.kind == "category" else c for c in plain.columns)
    train = Table(replace(plain.train.file, name=file, sample={target: plain.train.sample["grade"]}))
    odd = replace(plain, columns=columns, targets=(target,), train=train, wide_prefix=prefix)
    script = first_script(odd, models.BY_KEY["linear"], 30_000)
    code = script.with_section("features", moves.apply(list(moves.MOVES), script.sections["features"], odd)).render()
    code.encode()
    held = {node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)}
    assert {column, target, f"./input/{file}", prefix} <= held
    parsed = sections.parse(code)
    assert parsed is not None and parsed.render() == code


@given(st.lists(st.text("ab.1 ,", max_size=4), min_size=2, max_size=6), st.booleans())
@example(["", "x", "x", "x.1", ""], False)
@example(["id", "f", "y"], True)
def test_columns_are_called_what_pandas_calls_them(header: list[str], spaced: bool) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", encoding="utf-8", newline="") as stream:
            for row in (header, ["1"] * len(header), ["2"] * len(header)):
                csv.writer(stream).writerow([row[0], *(f" {cell}" for cell in row[1:])] if spaced else row)
        table = tables.read_table(path)
        assert isinstance(table, tables.Table)
        assume(table.form.has_header)
        frame = pandas.read_csv(path, skipinitialspace=table.form.dialect.blanks)
    assert list(table.columns) == list(frame.columns)
    assert list(table.sample[table.columns[-1]]) == ["1", "2"]
