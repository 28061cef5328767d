"""The sample: the task's data with about a tenth of the training rows, on which scripts are met and repaired first."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mle_star.data.layout import find_layout
from mle_star.data.place import DataFolder
from mle_star.data.rows import TableRows, Unsupported, read_rows
from mle_star.holdout.views import link_rest

SHARE = 0.1
FEWEST_ROWS = 5000
"""Tables with fewer rows are never sampled."""
SMALL_FILE = 2**19
MOST_FILES = 5000
MOST_COPIED = 2**30
MOST_CLASSES = 200
EACH_CLASS = 10
"""So many rows of each class are in the sample, or all there are: a split by class must work as it does on all rows."""


@dataclass(frozen=True)
class Sample:
    """Where the sample lies, how many training rows it has, and of how many."""

    folder: Path
    rows: int
    of: int


def write_sample(data: DataFolder, target: Path, description: str, seed: int) -> Sample | None:
    """Write the sample below `target`, the same for the same data and seed; None where the table is small.

    `Unsupported` and `ConfigError` say what else stands in the way.
    """
    files = list(islice(data.files(), MOST_FILES + 1))
    if len(files) > MOST_FILES or max((status.st_size for _, status in files), default=0) < SMALL_FILE:
        return None
    layout = find_layout(data.root, description)
    if layout.train.rows < FEWEST_ROWS:
        return None
    if not data.is_whole:
        raise Unsupported("other things lie among the data")
    if layout.labels is not None:
        raise Unsupported("the labels lie in a table of their own")
    target.mkdir(parents=True, exist_ok=True)
    others = sum(status.st_size for path, status in files if Path(path) != data.root / layout.train.name)
    if others > MOST_COPIED and target.stat().st_dev != data.root.stat().st_dev:
        raise Unsupported("the other files lie on another disk and are too large to be copied")
    train = read_rows(layout.train, data.root, layout.target.names)
    places = _choose(train, layout.target.names, seed)
    folder = target / f"sample-{len(places)}"
    link_rest(data.root, folder, {layout.train.name})
    train.write(folder / layout.train.name, places)
    return Sample(folder, len(places), train.count)


def _choose(train: TableRows, targets: Sequence[str], seed: int) -> list[int]:
    """A tenth of the rows by chance, in their order, with some of every class."""
    chosen = set(random.Random(seed).sample(range(train.count), max(1, int(SHARE * train.count))))
    for name in targets:
        values = train.column(name)
        if len(set(values)) > MOST_CLASSES:
            continue
        have = Counter(values[place] for place in chosen)
        for place, value in enumerate(values):
            if have[value] < EACH_CLASS and place not in chosen:
                chosen.add(place)
                have[value] += 1
    return sorted(chosen)
