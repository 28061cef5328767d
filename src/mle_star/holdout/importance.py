"""Which columns a solution leans on: hidden rows are asked about once more for each column, with that column permuted.

One run of the script is enough: its test file holds all the copies. A column whose copy is answered much worse matters.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mle_star.data.rows import TableRows, Unsupported
from mle_star.data.values import is_number
from mle_star.holdout.answers import read_answers
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data, Truth, View, all_but, link_rest

MOST_COLUMNS = 40
MOST_ROWS = 12_000
FEWEST_COPIES = 50


@dataclass(frozen=True)
class Permuted:
    """The view with its copies: of the hidden rows as they are, then of them with each column permuted."""

    scorer: Scorer
    view: View
    columns: tuple[str, ...]
    count: int

    def importance(self, submission: Path) -> list[tuple[str, float]]:
        """By how much the score is worse without each column, by a submission that was made on the view."""
        answers = read_answers(self.scorer.data, submission, self.view).hidden
        first = len(self.scorer.data.truth) - self.count * (1 + len(self.columns))
        scores = []
        for block in range(1 + len(self.columns)):
            places = range(first + block * self.count, first + (block + 1) * self.count)
            scores.append(self.scorer.score(answers, places))
        sign = 1 if self.scorer.metric.higher_is_better else -1
        worse = {column: sign * (scores[0] - score) for column, score in zip(self.columns, scores[1:], strict=True)}
        return sorted(worse.items(), key=lambda pair: -pair[1])


def permuted_view(scorer: Scorer, hidden: Sequence[int], target: Path, *, seed: int) -> Permuted:
    """Write the view; `Unsupported` says why there can be none."""
    data = scorer.data
    if data.test is None or data.sample is None or data.labels is not None or data.rule.kind == "time":
        raise Unsupported("columns are permuted only where there are a test file and a sample, and no order of time")
    layout, dice = data.layout, random.Random(seed)
    asked = set(data.test.table.columns)
    left_out = {layout.key, *layout.target.names}
    columns = [c for c in data.train.table.columns if c in asked and c not in left_out][:MOST_COLUMNS]
    count = min(len(hidden), MOST_ROWS // (1 + len(columns)))
    if not columns or count < FEWEST_COPIES:
        raise Unsupported("there are too few hidden rows, or too many columns")
    rows = sorted(dice.sample(list(hidden), count))
    virtual = _with_copies(data, rows, 1 + len(columns))
    keys, copies = virtual.keys[len(data.truth) :], []
    for number, column in enumerate([None, *columns]):
        changes = _keys(data.test, layout.key, keys[number * count : (number + 1) * count])
        for name in [column] if column else ():
            changes[name] = data.train.values([name], rows)[0]
            dice.shuffle(changes[name])
        copies += data.train.edited(rows, data.test, layout.target.names, changes)
    changed = {*data.label_files, *(t.name for t in (layout.train, layout.test, layout.sample) if t is not None)}
    link_rest(data.folder, target, changed)
    data.train.write(target / layout.train.name, all_but(hidden, data.train.count))
    wanted = data.sample.edited([0] * len(copies), data.sample, changes=_keys(data.sample, layout.key, keys))
    for asked_for, added in ((data.test, copies), (data.sample, wanted)):
        asked_for.write(target / asked_for.table.name, range(asked_for.count, asked_for.count + len(added)), added)
    places = range(len(data.truth), len(virtual.truth))
    view = View(target.name, target, tuple(places), tuple(-1 - place for place in places), 0)
    return Permuted(Scorer(virtual, scorer.metric), view, tuple(columns), count)


def _keys(rows: TableRows, key: str | None, names: Sequence[str]) -> dict[str, list[Any]]:
    """What rows are called, as a file holds it."""
    return {} if key is None else {key: rows.typed(key, names)}


def _with_copies(data: Data, rows: Sequence[int], blocks: int) -> Data:
    """The data with the truth of every copy behind that of the rows, and keys that nobody has."""
    truth = Truth(tuple([*column, *[column[row] for row in rows] * blocks] for column in data.truth.columns))
    keys, count = list(data.keys) or [""] * len(data.truth), len(rows) * blocks
    if data.layout.key is not None:
        known = [*data.keys, *data.test.column(data.layout.key)] if data.test else data.keys
        numbers = [int(float(key)) for key in known if is_number(key)]
        if len(numbers) == len(known):
            last = max(numbers)
            keys += [str(last + 1 + number) for number in range(count)]
        else:
            keys += [f"copy-{number}" for number in range(count)]
    return replace(data, truth=truth, keys=keys)
