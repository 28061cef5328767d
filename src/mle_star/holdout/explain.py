"""What explains the score of a solution: the columns that it depends on, and how its answers look beside the truth.

For the importance of columns hidden rows are asked about once more for each column, with that column permuted. One run
of the script is enough: its test file holds all the copies. A column whose copy is answered much worse matters.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mle_star.data.columns import is_number
from mle_star.data.tables import Unsupported
from mle_star.holdout.answers import Answers, Ungradable, read_answers
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data, View, all_but, link_rest

MOST_CLASSES = 8
"""With more of them, the rarer ones are counted together."""
OTHER = "other"
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
        blocks = range(0, self.count * (1 + len(self.columns)), self.count)
        scores = [self.scorer.score(answers, range(first, first + self.count)) for first in blocks]
        sign = 1 if self.scorer.metric.higher_is_better else -1
        worse = {column: sign * (scores[0] - score) for column, score in zip(self.columns, scores[1:], strict=True)}
        return sorted(worse.items(), key=lambda pair: -pair[1])


def permuted_view(scorer: Scorer, hidden: Sequence[int], target: Path, *, seed: int) -> Permuted:
    """Write the view; `Unsupported` says why there can be none."""
    data = scorer.data
    if data.test is None or data.sample is None or data.labels is not None or data.rule.kind == "time":
        raise Unsupported("columns are permuted only where there are a test file and a sample, and no order of time")
    layout, dice = data.layout, random.Random(seed)
    known = {*data.test.table.columns} - {layout.key, *layout.target.names}
    columns = [c for c in data.train.table.columns if c in known][:MOST_COLUMNS]
    count = min(len(hidden), MOST_ROWS // (1 + len(columns)))
    if not columns or count < FEWEST_COPIES:
        raise Unsupported("there are too few hidden rows, or too many columns")
    rows = sorted(dice.sample(list(hidden), count))
    copies = data.train.edited(rows, data.train)
    for column, cells in zip(columns, data.train.values(columns, rows), strict=True):
        dice.shuffle(cells)
        copies += data.train.edited(rows, data.train, changes={column: cells})
    places, blocks = range(len(copies)), 1 + len(columns)
    truth = tuple([*[column[row] for row in rows] * blocks, *column] for column in data.truth)
    labelled = [len(copies) + row for row in data.labelled]
    virtual = replace(data, train=data.train.holding(copies), truth=truth, labelled=labelled)
    names = _new_keys(data, places) if layout.key is not None else {}
    view = View(target.name, target, tuple(places), tuple(-1 - place for place in places), names)
    link_rest(layout.folder, target, {*data.label_files, *(table.name for table in layout.roles)})
    data.train.write(target / layout.train.name, all_but(hidden, data.train.count))
    virtual.write_test_files(view)
    return Permuted(Scorer(virtual, scorer.metric), view, tuple(columns), count)


def _new_keys(data: Data, places: Sequence[int]) -> dict[int, str]:
    """Keys that nobody has."""
    known = [*data.keys, *data.test_keys]
    numbers = [int(float(key)) for key in known if is_number(key)]
    first = max(numbers) + 1 if len(numbers) == len(known) else None
    return {p: f"copy-{number}" if first is None else str(first + number) for number, p in enumerate(places)}


# --- what is taken for what ------------------------------------------------------------------------------------------


def confusion(scorer: Scorer, answers: Answers) -> dict[str, Any]:
    """Which classes these answers on hidden rows take for which, as `SolutionExamined` names it; the rows alone where
    there are no classes."""
    known, needs = {"rows": len(answers.hidden)}, scorer.metric.needs
    if not answers.hidden or needs not in ("probabilities", "labels", "grades"):
        return known
    try:
        truth, predicted = scorer.pair(answers.hidden, sorted(answers.hidden))
    except Ungradable:
        return known
    is_rank = needs == "probabilities" and (predicted.min() < -1e-9 or predicted.max() > 1 + 1e-9)
    if truth.ndim > 1 or is_rank:
        return known
    names = scorer.classes
    if needs == "labels":
        spelled, _ = scorer.arrays([[name] for name in names], [(name,) for name in names])
        return _confused([str(one) for one in spelled], [str(one) for one in truth], [str(one) for one in predicted])
    likely = predicted.argmax(axis=1) if needs == "probabilities" else predicted
    return _confused(names, [names[int(place)] for place in truth], [names[int(place)] for place in likely])


def overlap(scorer: Scorer, first: Answers, second: Answers, rows: Sequence[int]) -> str:
    """How far two scripts err alike on these rows, and which is right where the other is not; empty if none can say."""
    needs = scorer.metric.needs
    both = [row for row in rows if row in first.hidden and row in second.hidden]
    if not both or needs in ("rankings", "frames", "files", "label sets"):  # of sets each script may know other labels
        return ""
    (truth, one), (_, other) = scorer.pair(first.hidden, both), scorer.pair(second.hidden, both)
    if needs == "numbers":
        errors = [np.ravel(given - truth) for given in (one, other)]
        nearer = np.sign(abs(errors[1]) - abs(errors[0]))
        words = f"the first is nearer to the truth on {(nearer > 0).sum()}, the second on {(nearer < 0).sum()}"
    else:
        chances = needs == "probabilities"
        right = [np.ravel((given.argmax(axis=-1) if chances else given) == truth) for given in (one, other)]
        errors = [1.0 - hit for hit in right]
        if chances:
            errors = [1 - np.ravel(np.take_along_axis(given, truth[..., None], -1)) for given in (one, other)]
        mine, theirs = right
        alone, other_alone, none = ((mine & ~theirs).sum(), (theirs & ~mine).sum(), (~mine & ~theirs).sum())
        words = f"{alone} are right in the first alone, {other_alone} in the second alone, {none} in neither"
    first_errors, second_errors = errors
    varied = min(first_errors.std(), second_errors.std()) > 0
    alike = f"errors correlate by {np.corrcoef(first_errors, second_errors)[0, 1].round(2) + 0:.2f}; " if varied else ""
    return f"{alike}of {first_errors.size} answers {words}"


def _confused(classes: list[str], truth: list[str], predicted: list[str]) -> dict[str, Any]:
    kept = classes
    if len(classes) > MOST_CLASSES:
        largest = {name for name, _ in Counter(truth).most_common(MOST_CLASSES - 1)}
        kept = [*(name for name in classes if name in largest), OTHER]
    place = {name: index for index, name in enumerate(kept)}
    table: Any = np.zeros((len(kept), len(kept)), np.int64)
    np.add.at(table, tuple([place.get(one, len(kept) - 1) for one in labels] for labels in (truth, predicted)), 1)
    return {"rows": len(truth), "classes": kept, "confusion": table.tolist()}
