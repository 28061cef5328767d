"""The engineer as leakage checker: planted leaks are found, clean look-alikes are left alone."""

from __future__ import annotations

import ast

import pytest

from mle_star.engineer.rules import corrections, leakage
from tests.engineer.leaky_scripts import CLEAN, LEAKY


def test_enough_leaks_and_look_alikes_are_planted() -> None:
    assert len(LEAKY) >= 20
    assert len(CLEAN) >= 20


@pytest.mark.parametrize("name", LEAKY)
def test_a_planted_leak_is_found_in_a_block_of_the_script(name: str) -> None:
    found = leakage.find_leaks(LEAKY[name])
    assert found
    assert all(leak.block in LEAKY[name] for leak in found)


def test_most_leaks_are_corrected_and_no_correction_breaks_a_script() -> None:
    mended = 0
    for code in LEAKY.values():
        for leak in leakage.find_leaks(code):
            corrected = corrections.corrected(code, leak.block)
            ast.parse(code.replace(leak.block, corrected, 1))
            mended += corrected != leak.block
    assert mended >= len(LEAKY) / 2


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_script_is_not_flagged(name: str) -> None:
    assert leakage.find_leaks(CLEAN[name]) == []
