"""The intervals part of `truth.py`: how often the truth lies within 95 %, on invented data, for rows few and many."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.holdout.coverage import WORLDS, World, coverage

ROWS = (40, 100, 400)
SHORTLIST, TEST = 6, 400
LEAST = 0.9
"""Below this it is no longer the noise of some hundred repeats."""


def measure(repeats: int) -> int:
    """Print the table; the exit code: 1 when an interval holds too seldom."""
    cases = [(world, count, many) for many in (1, SHORTLIST) for world in WORLDS for count in ROWS]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(cases, pool.map(partial(_held, repeats=repeats), cases), strict=True))
    columns = [f"{n} rows" for n in ROWS] + [f"best of {SHORTLIST}, {n} rows" for n in ROWS]
    print(f"| metric | {' | '.join(columns)} |")
    for world in WORLDS:
        shares = [found[world, count, many] for many in (1, SHORTLIST) for count in ROWS]
        print(f"| {world.name} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |")
    return 0 if min(found.values()) >= LEAST else 1


def _held(case: tuple[World, int, int], repeats: int) -> float:
    world, count, shortlist = case
    return coverage(world, count, shortlist=shortlist, test=TEST if shortlist > 1 else 0, repeats=repeats)
