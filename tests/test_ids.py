"""A test has the same name in every process, so that workers agree and a failure can be run again by its name.

The workers of `make test` have other hashes, times and addresses each, and stop when they have found other names.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from tools import mutate

ROOT = Path(__file__).parents[1]


def test_the_names_of_tests_hold_neither_address_nor_folder(request: pytest.FixtureRequest) -> None:
    names = [item.nodeid for item in request.session.items]
    assert len(set(names)) == len(names)
    odd = re.compile(rf"0x[0-9a-f]{{6,}}|{re.escape(tempfile.gettempdir())}/|{re.escape(str(ROOT))}/")
    assert [name for name in names if odd.search(name)] == []


def test_every_test_that_a_mutation_is_shown_to_exists() -> None:
    for name in {name for tests in mutate.TESTS.values() for name in tests}:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        assert not test or re.search(rf"def {test.partition('[')[0]}\b", (ROOT / path).read_text(encoding="utf-8")), (
            name
        )
