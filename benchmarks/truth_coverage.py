"""The intervals part of `truth.py`: how often the truth lies within 95 %, on invented data, for rows few and many."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.holdout.coverage import FIRSTS, WORLDS, World, coverage

ROWS = (40, 100, 400)
CHOICES = {"one script": (1, False), "best of 6": (6, False), "best of a search of 20": (20, True)}
TEST = 400
LEAST = 0.9
"""Below this it is no longer the noise of some hundred repeats."""
Case = tuple[World, int, str, int]


def measure(repeats: int) -> int:
    """Print the tables; the exit code: 1 when an interval holds too seldom.

    After each share: the width beside that from the kept rows alone, with the share of this before it.
    """
    cases = [
        (world, n, choice, firsts) for choice in CHOICES for world in WORLDS for n in ROWS for firsts in (0, FIRSTS)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(cases, pool.map(partial(_held, repeats=repeats), cases), strict=True))
    for choice in CHOICES:
        print(f"\n| {choice} | {' | '.join(f'{count} rows' for count in ROWS)} |\n|{' --- |' * (1 + len(ROWS))}")
        for world in WORLDS:
            cells = list[str]()
            for count in ROWS:
                (before, wide), (share, width) = (found[world, count, choice, firsts] for firsts in (0, FIRSTS))
                beside = f" ({100 * before:.1f} %, width {width / wide:.2f})" if choice != "one script" else ""
                cells.append(f"{100 * share:.1f} %{beside}")
            print(f"| {world.name} | {' | '.join(cells)} |")
    return 0 if min(share for share, _ in found.values()) >= LEAST else 1


def _held(case: Case, repeats: int) -> tuple[float, float]:
    world, count, choice, firsts = case
    scripts, search = CHOICES[choice]
    test = TEST if scripts > 1 else 0
    return coverage(world, count, scripts, test=test, repeats=repeats, search=search, firsts=firsts)
