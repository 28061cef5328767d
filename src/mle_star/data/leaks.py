"""What in the data tells the target without anything being learned: said before a run, which goes on."""

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mle_star.data.columns import Column, is_apart, named
from mle_star.data.layout import Layout, find_layout, labels_of
from mle_star.data.tables import Table
from mle_star.errors import ConfigError
from mle_star.models.texts import printable

logger = logging.getLogger(__name__)

LOOKED_AT, FEWEST_ROWS, FEWEST_FEATURES = 4000, 40, 2
DETERMINED = 0.96
"""From so much of what there is to be known on, a column nearly determines the target."""
ORDERED = 0.5
REPEATED = 0.01
LISTED = 5


def leaks_in(folder: Path, description: str = "") -> list[str]:
    """A sentence on each kind of leak; each is checked on other rows than it was found on."""
    kinds = (_telling_columns, _order_of_rows, _repeated_rows, _known_too_late)
    try:
        layout = find_layout(folder, description)
        return [words for find in kinds for words in find(layout)]
    except ConfigError:
        return []
    except Exception:  # a look at odd data ends no run
        logger.exception("the data could not be searched for leaks")
        return []


def _telling_columns(layout: Layout) -> Iterator[str]:
    train, test = layout.train, layout.test
    names = [c for c in train.columns if c not in (*layout.target.names, layout.key)]
    names = [c for c in names if train.column(c).kind not in ("constant", "list")]
    if test is not None:  # only what the test has as well, and not with other values throughout
        names = [c for c in names if c in test.columns]
        names = [c for c in names if not is_apart(train.column(c), train.sample[c], test.sample[c])]
    if len(names) < FEWEST_FEATURES:
        return
    for target in _targets(layout):
        if found := [n for n in names if _share_known(train, target, train.column(n), train.sample[n]) > DETERMINED]:
            what = "tells" if len(found) == 1 else "each tell"
            words = f"{named(found, LISTED)} alone {what} {named([target.name])} almost exactly"
            drop = f"leave it out (`--drop {printable(found[0])}`)"
            yield f"{words}: if it is not known when predictions are made, {drop}"


def _order_of_rows(layout: Layout) -> Iterator[str]:
    """Keys in whose order the target changes: in the test they may tell nothing."""
    train, key = layout.train, layout.key
    if key is None or key not in train.columns or any(train.column(name).kind == "date" for name in train.columns):
        return
    numbers = [(re.findall(r"\d+", str(cell)) or [""])[-1] for cell in train.sample[key]]
    about = Column(key, "number", len(numbers), distinct=len(set(numbers)), numeric=all(numbers))
    for target in _targets(layout):
        if about.numeric and _share_known(train, target, about, numbers) > ORDERED:
            yield f"{named([key])} orders {named([target.name])}: rows with near numbers have near answers"


def _repeated_rows(layout: Layout) -> Iterator[str]:
    train, test = layout.train, layout.test
    shared = [c for c in train.columns if test is not None and c in test.columns]
    shared = [c for c in shared if c not in (*layout.target.names, layout.key) and not train.column(c).names_rows]
    if test is None or len(shared) < FEWEST_FEATURES:
        return
    ours, theirs = (list(zip(*([*map(str, one.sample[c])] for c in shared), strict=True)) for one in (train, test))
    known = set(ours)
    share = sum(row in known for row in theirs) / max(len(theirs), 1)
    if share > REPEATED and len(known) > 0.2 * len(ours):  # where most rows are alike, they are no copies
        yield f"{100 * share:.0f} % of the rows of {test.name} are in {train.name}, too"


def _known_too_late(layout: Layout) -> Iterator[str]:
    train, test = layout.train, layout.test
    if test is not None and test.form.has_header == train.form.has_header:
        gone = [name for name in train.columns if name not in (*test.columns, *layout.target.names, layout.key)]
        if gone:
            yield f"{named(gone, LISTED)}: in {train.name} only, of no use for predictions"


# --- a model of one column --------------------------------------------------------------------------------------------


def _targets(layout: Layout) -> list[Column]:
    """The first targets, where enough rows of the training table have them."""
    train = layout.train
    columns = layout.target.columns[:5] if layout.target.table is train else []
    return [c for c in columns if c.kind != "list" and len(labels_of(train.sample[c.name])) >= FEWEST_ROWS]


def _share_known(train: Table, target: Column, column: Column, cells: Sequence[Any]) -> float:
    """How much of what there is to know of the target one column tells: of one half of the rows, from the other.

    The target is looked at as classes by number, or as ranks.
    """
    import numpy as np
    import pandas

    answers, classes = train.sample[target.name], target.holds_classes or not target.numeric
    labels = set(labels_of(answers))
    there = [place for place, answer in enumerate(answers) if str(answer) in labels]
    places = np.random.default_rng(0).permutation(there)[:LOOKED_AT]
    known = pandas.Series([str(answers[place]) for place in places], dtype=object)
    truth = pandas.factorize(known)[0] if classes else pandas.to_numeric(known, errors="coerce").rank().to_numpy()
    texts, half = [str(cells[place]) for place in places], len(places) // 2
    old, new = truth[:half], truth[half:]
    if column.numeric and column.distinct > 20:
        numbers = pandas.to_numeric(pandas.Series(texts, dtype=object), errors="coerce")
        values = numbers.fillna(numbers.min() - 1).to_numpy(float)
        order = np.argsort(values[:half], kind="stable")
        xs, ys, wanted = values[:half][order], old[order], values[half:]
        right = np.clip(np.searchsorted(xs, wanted), 1, half - 1)
        nearer = np.where(wanted - xs[right - 1] < xs[right] - wanted, right - 1, right)
        guess = ys[nearer] if classes else (ys[right - 1] + ys[right]) / 2
    else:
        usual = (lambda some: some.mode()[0]) if classes else "mean"
        by_value = pandas.Series(old).groupby(np.array(texts[:half], dtype=object)).agg(usual)
        rest = pandas.Series(old).mode()[0] if classes else np.nanmean(old)
        guess = pandas.Series(texts[half:], dtype=object).map(by_value).fillna(rest).to_numpy()
    if not classes:
        spread = float(((new - new.mean()) ** 2).mean())
        return 1 - float(((new - guess) ** 2).mean()) / spread if spread else 0.0
    usual_share = float(np.bincount(new).max() / len(new))
    others = (1 - usual_share) * len(new)
    return (float((guess == new).mean()) - usual_share) / (1 - usual_share) if others >= 5 else 0.0
