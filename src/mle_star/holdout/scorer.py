"""From answers to a score: in the form that the metric needs, the metric over them, and how sure it is."""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from mle_star.data.columns import is_number, label_order, likely_label
from mle_star.data.formulas import one_against_rest, pair_share, spearman
from mle_star.data.metrics import Metric
from mle_star.data.tables import pointed, with_point
from mle_star.errors import ConfigError
from mle_star.holdout import intervals
from mle_star.holdout.answers import Answers, ByRow, Ungradable, label_of
from mle_star.holdout.views import Columns, Data
from mle_star.models import Measure, ScoreChange
from mle_star.models.texts import quoted

CONSTANT_SHARE = 0.95
LOPSIDED_SHARE = 0.9
FEWEST_COMPARED = 20
STRETCHES = 4
"""Into so many pieces a stretch of time is cut: what is hard in one week is often hard on all of its days."""
Rows = Sequence[Sequence[str]]
Level = tuple[Sequence[ByRow], Sequence[int]]
_LIST_MARKS = re.compile(r"[,;|]")


@dataclass(frozen=True)
class Scorer:
    """Scores answers about the training rows of `data`."""

    data: Data
    metric: Metric
    starts: tuple[str, ...] = ()
    """The first moments of the stretches of time that views hide, in their order."""
    _compared: list[dict[int, tuple[Any, ...]]] = field(default_factory=list, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that hold answers."""
        return self.data.layout.answers

    def problem(self, answers: Answers) -> str:
        """Why answers cannot be meant so, or an empty text: one value nearly everywhere, or values that none can be."""
        rows = [*answers.hidden.values(), *filter(None, answers.real)]
        for place, name in enumerate(self.names):
            cells = [row[place] for row in rows]
            counts = Counter(cells)
            value, often = counts.most_common(1)[0]
            if len(cells) >= FEWEST_COMPARED and often > CONSTANT_SHARE * len(cells) and not self._is_lopsided(place):
                what = f"{often} of {len(cells)} answers in the column {name} are {quoted(value)}"
                return f"{what}: the model tells nothing apart"
            if problem := self._outside(list(counts), place):
                return f"the column {name} {problem}"
        return ""

    def _is_lopsided(self, place: int) -> bool:
        """Is nearly one value right everywhere, so that nearly constant answers can be good ones?"""
        prefix = self.data.layout.target.class_prefix
        if prefix is not None:
            share = self._shares.get(label_of(self.names[place].removeprefix(prefix)), 0.0)
            return not 1 - LOPSIDED_SHARE < share < LOPSIDED_SHARE
        column = self.targets[min(place, len(self.targets) - 1)]
        return Counter(column).most_common(1)[0][1] > LOPSIDED_SHARE * len(column)

    def _outside(self, cells: list[str], place: int) -> str:
        """What is wrong with values that the target cannot have; each value once."""
        needs = self.metric.needs
        if needs == "labels" and len(self.data.layout.target.names) == 1:
            known = set(map(label_of, self.classes))
            strange = next((cell for cell in cells if label_of(cell) not in known), None)
            what = "" if strange is None else f"holds {quoted(strange)}, which is none of the labels"
            return what and f"{what} {_some(sorted(known))}"
        if needs not in ("numbers", "probabilities") or self.metric.by_order:
            return ""
        values = self.numbers([(cell,) for cell in cells])[:, 0]
        least, most = float(values.min()), float(values.max())
        if needs == "probabilities":
            is_wrong = self.metric.proper and (least < 0 or most > 1)
            return f"holds {least:g} to {most:g}, which are no probabilities" if is_wrong else ""
        low, high = self.ranges[place]
        beyond = [value for value in (least, most) if not 2 * low - high <= value <= 2 * high - low]
        return f"holds {beyond[0]:g}, far outside of the target's {low:g} to {high:g}" if beyond else ""

    # --- scoring ---

    def grade(
        self, answers: ByRow, rows: Sequence[int], *, seed: int = 0, parts: int = 0, level: Level = ((), ())
    ) -> tuple[float, float, float]:
        """The metric over these training rows, and the ends of its 95 % interval, by a bootstrap over them.

        With `parts` the interval is for new rows, which have noise of their own: those of the test; without one, as
        many as each of so many parts of these. `level`: scripts that tell how hard these rows are beside others.
        """
        (firsts, others), moments = level, self._members(rows)
        count = len(rows) if moments is None else len(moments)
        beside = count / self.data.test_units if parts and self.data.test_units else parts
        members, left = self._stretches(moments, rows), 1.0
        count = count if members is None else len(members)
        draws = intervals.LEVELLED_DRAWS if firsts else intervals.DRAWS
        truth, scores, drawn = self._drawn([answers, *firsts], rows, members, seed, draws)
        score, figures, telling = float(scores[0]), drawn[:, 0], intervals.telling_rows(self.metric, truth)
        with suppress(Ungradable):
            if firsts:
                _, there, away = self._drawn(firsts, others, self._members(others), seed + 1, draws)
                both, least = drawn[: len(away), 1:] - away[: len(drawn)], len(rows) / (len(rows) + len(others))
                score, left = intervals.levelled(score, figures, scores[1:] - there, both, min(count, telling), least)
        score, finite = min(max(score, self.metric.low), self.metric.high), figures[np.isfinite(figures)] * left**0.5
        more = {"telling": telling / left, "units": count, "beside": beside / left}
        return score, *intervals.interval(self.metric, score, finite, **more)

    def _drawn(
        self, answers: Sequence[ByRow], rows: Sequence[int], members: Sequence[Any] | None, seed: int, draws: int
    ) -> tuple[Any, Any, Any]:
        """The truth of these rows, the scores of several answers on them, and those on draws of them."""
        pairs = [self.pair(one, rows) for one in answers]
        arrays, scores = (pairs[0][0], *(pair[1] for pair in pairs)), np.array([self.compute(*pair) for pair in pairs])
        return arrays[0], scores, intervals.drawn_figures(self.metric, arrays, members, seed, self._labels, draws)

    def score(self, answers: ByRow, rows: Sequence[int]) -> float:
        """The metric over these training rows."""
        return self.compute(*self.pair(answers, rows))

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """While the same answers are scored by many choices of rows: their cells are read once."""
        self._compared.append({})
        try:
            yield
        finally:
            self._compared.pop()

    def pair(self, answers: ByRow, rows: Sequence[int]) -> tuple[Any, Any]:
        """The truth about these training rows and the answers, in the form that the metric needs."""
        if not self._compared or self.metric.needs == "frames":
            return self.arrays(self._targets_of(rows), [answers[row] for row in rows])
        known = self._compared[-1]
        if id(answers) not in known:
            order = sorted(answers)
            both = self.arrays(self._targets_of(order), [answers[row] for row in order])
            known[id(answers)] = answers, np.array(order), *both
        _, order, truth, predicted = known[id(answers)]
        places = np.searchsorted(order, rows)
        return truth[places], predicted[places]

    def compute(self, truth: Any, predicted: Any) -> float:
        """The metric over arrays in the form that it needs; what the classes are, all rows of the task say."""
        try:
            score = self.metric.compute(truth, predicted, self._labels)
        except (TypeError, ValueError, ConfigError) as error:
            raise Ungradable(f"{self.metric.name} cannot be computed: {error}") from None
        if not math.isfinite(score):
            raise Ungradable(f"{self.metric.name} of these answers is {score}")
        return score

    def _members(self, rows: Sequence[int]) -> list[Any] | None:
        """The positions in `rows` of each group or moment, in their order; None where every row stands for itself."""
        if self.data.units is None:
            return None
        _, number = np.unique([self.data.units[row] for row in rows], return_inverse=True)
        order = np.argsort(number, kind="stable")
        return list(np.split(order, np.flatnonzero(np.diff(number[order])) + 1))

    def _stretches(self, members: list[Any] | None, rows: Sequence[int]) -> list[Any] | None:
        """What is drawn as a whole: days that follow each other are no separate observations either.

        These are the stretches of time that views hide, where there are several.
        """
        units = self.data.units
        if members is None or units is None or self.data.rule.kind != "time" or len(members) <= STRETCHES:
            return members
        number = [bisect_right(self.starts, units[rows[moment[0]]]) for moment in members]
        ends = [0, *(np.flatnonzero(np.diff(number)) + 1), len(members)]
        if len(ends) < STRETCHES:
            ends = [len(members) * piece // STRETCHES for piece in range(STRETCHES + 1)]
        return [np.concatenate(members[first:last]) for first, last in pairwise(ends)]

    def compare(self, new: ByRow, old: ByRow, rows: Sequence[int]) -> ScoreChange:
        """How much better `new` is than `old` on these rows, and how sure that is: both on the same draws of them."""
        members, sign = self._stretches(self._members(rows), rows), 1 if self.metric.higher_is_better else -1
        _, scores, drawn = self._drawn([new, old], rows, members, 0, intervals.FEW_DRAWS)
        known = sign * (drawn[:, 0] - drawn[:, 1])[np.isfinite(drawn).all(axis=1)]
        units = len(rows) if members is None else len(members)
        error = float(known.std()) * math.sqrt(units / max(units - 1, 1)) if len(known) else 0.0
        wins = float(np.mean((known > 0) + (known == 0) / 2)) if len(known) else 0.5
        return ScoreChange(difference=sign * float(scores[0] - scores[1]), error=error, wins=wins, rows=len(rows))

    def agreement(self, first: Rows, second: Rows) -> float:
        """How far two sets of answers agree; 1: wholly. They are read as the metric reads them.

        Probabilities and values are compared as such, the order where only that counts, else labels.
        """
        metric, needs = self.metric, self.metric.needs
        if needs not in ("numbers", "probabilities"):
            pairs = [pair for rows in zip(first, second, strict=True) for pair in zip(*rows, strict=True)]
            return float(np.mean([label_of(one) == label_of(other) for one, other in pairs]))
        a, b = self.numbers(first), self.numbers(second)
        if metric.likeliest:
            likely = [np.argsort(-chances, axis=1)[:, : metric.likeliest] for chances in (a, b)]
            return float(np.mean([np.isin(*pair).mean() for pair in zip(*likely, strict=True)]))
        if metric.proper:
            return _concordance(a, b)
        if needs == "probabilities" and self.data.layout.target.class_prefix is not None:
            with suppress(ValueError):  # do the ranks of one tell the rows apart that the other takes for a class?
                ways = [one_against_rest(x.argmax(axis=1), y, pair_share) for x, y in ((a, b), (b, a))]
                return float(2 * np.mean(ways) - 1)
        by_order = needs == "probabilities" or metric.by_order
        columns = [i for i in range(a.shape[1]) if len(np.unique(a[:, i])) > 1]
        agree = [spearman(a[:, i], b[:, i]) if by_order else _concordance(a[:, [i]], b[:, [i]]) for i in columns]
        return float(np.mean(agree)) if columns else float(np.array_equal(a, b))

    # --- arrays ---

    @cached_property
    def _truth(self) -> Columns:
        """The targets of every training row."""
        truth, form = self.data.truth, (self.data.layout.labels or self.data.layout.train).form
        return self.plain(truth, form.separator) if form.decimal == "," else truth

    def plain(self, columns: Sequence[Sequence[str]], separator: str) -> Columns:
        """Targets of a file with such a separator; where the metric takes numbers, without decimal commas."""
        takes_numbers = self.metric.needs in ("numbers", "frames")
        return tuple(pointed(column, separator) if takes_numbers else column for column in columns)

    def _targets_of(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """The targets of these training rows."""
        return list(zip(*([column[row] for row in rows] for column in self._truth), strict=True))

    @cached_property
    def targets(self) -> list[Sequence[str]]:
        """The targets of the labelled rows, by column."""
        return [[column[row] for row in self.data.labelled] for column in self._truth]

    @property
    def classes(self) -> list[str]:
        """Those of the (first) target."""
        return self._all_classes[0]

    @cached_property
    def _all_classes(self) -> list[list[str]]:
        """The labels of each target, each as it is mostly spelled, in the order that scripts and samples use."""
        common = [reversed(Counter(column).most_common()) for column in self.targets]
        spelled = [{label_of(cell): cell for cell, _ in cells} for cells in common]
        return [sorted(cells.values(), key=label_order) for cells in spelled]

    @cached_property
    def _labels(self) -> list[list[str]]:
        """These as a metric of labels compares them: the rows at hand may lack some."""
        return [list(map(label_of, classes)) for classes in self._all_classes] if self.metric.needs == "labels" else []

    @cached_property
    def _shares(self) -> dict[str, float]:
        """The share of the rows that each class of the (first) target has."""
        often = Counter[str]()
        for cell, count in Counter(self.targets[0]).items():
            often[label_of(cell)] += count
        return {label: count / len(self.targets[0]) for label, count in often.items()}

    @cached_property
    def ranges(self) -> list[tuple[float, float]]:
        """The lowest and the highest value of each target that is a number."""
        different = [self.numbers([(cell,) for cell in Counter(column)]) for column in self.targets]
        return [(float(values.min()), float(values.max())) for values in different]

    def arrays(self, truth: Rows, answers: Rows) -> tuple[Any, Any]:
        """Truth and answers in the form that the metric needs."""
        needs = self.metric.needs
        if needs == "numbers":
            return _one_column(self.numbers(truth)), _one_column(self.numbers(answers))
        if needs == "probabilities":
            return self._by_target(truth, _places), self._chances(answers)
        if needs in ("labels", "texts"):
            return _spelt(truth, label_of), _spelt(answers, label_of)
        if needs == "rankings":
            return _spelt(truth, label_of), _spelt(answers, lambda guesses: " ".join(map(label_of, guesses.split())))
        if needs == "grades":
            return self._by_target(truth, _places), self._by_target(answers, self._grades)
        if needs == "label sets":
            return self._sets(truth, answers)
        if needs == "frames":
            return self._frame(truth, self.data.layout.target.names), self._frame(answers, self.names)
        raise Ungradable(f"{self.metric.name} can only be computed by a script")

    def _pointed(self, cell: str) -> str:
        """A number in an answer, which may have a decimal comma where the training table has some."""
        return with_point(cell) if "," in cell and self.data.layout.train.form.decimal == "," else cell

    def _frame(self, rows: Sequence[Sequence[str]], names: Sequence[str]) -> Any:
        """A data frame; a column of nothing but numbers holds them as such."""
        import pandas

        frame = pandas.DataFrame(rows, columns=list(names))
        for name in names:
            cells = list(map(self._pointed, frame[name]))
            if all(map(is_number, cells)):
                frame[name] = list(map(float, cells))
        return frame

    def numbers(self, rows: Sequence[Sequence[str]]) -> Any:
        """Answers as finite numbers."""
        try:
            values = np.array([[float(self._pointed(cell)) for cell in row] for row in rows])
        except ValueError:
            strange = next((cell for row in rows for cell in row if not is_number(self._pointed(cell))), "")
            raise Ungradable(f"an answer is no number: {quoted(strange)}") from None
        if not np.isfinite(values).all():
            raise Ungradable("an answer is not a finite number")
        return values

    @cached_property
    def _are_marks(self) -> bool:
        """Is every target a label that a row has or has not?"""
        return all(label_of(cell) in ("0", "1") for column in self.targets for cell in Counter(column))

    def _sets(self, truth: Rows, answers: Rows) -> tuple[Any, ...]:
        """A column for each label: the targets, where they are marks; else the labels that the only target lists."""
        if self._are_marks:
            return tuple(np.array([[label_of(c) == "1" for c in row] for row in rows]) for rows in (truth, answers))
        if len(self.targets) > 1 or len(self.names) > 1 or any(map(_LIST_MARKS.search, Counter(self.targets[0]))):
            raise Ungradable(f"{self.metric.name} needs targets of 0 and 1, or one that lists labels between blanks")
        lists = [[set(map(label_of, row[0].split())) for row in rows] for rows in (truth, answers)]
        labels = sorted(set[str]().union(*lists[0], *lists[1]))
        return tuple(np.array([[label in found for label in labels] for found in rows]) for rows in lists)

    def _by_target(self, rows: Sequence[Sequence[str]], read: Callable[[Sequence[str], list[str]], Any]) -> Any:
        """The column of each target, read by its classes."""
        columns, known = list(zip(*rows, strict=True)), self._all_classes
        if len(columns) != len(known):
            raise Ungradable(f"{self.metric.name} needs {len(known)} columns, one for each target, not {len(columns)}")
        return _one_column(np.column_stack([read(*pair) for pair in zip(columns, known, strict=True)]))

    def _grades(self, answers: Sequence[str], classes: list[str]) -> Any:
        """Grades by their place in the order of the classes; a number between two of them goes to the nearer one."""
        if not all(map(is_number, classes)):
            return _places(answers, classes)
        steps = np.array([float(label) for label in classes])
        return np.abs(self.numbers([(cell,) for cell in answers]) - steps[None, :]).argmin(axis=1)

    def _chances(self, answers: Rows) -> Any:
        """A column of probabilities for each class; of several targets with two classes each, by row and target."""
        values, classes = self.numbers(answers), self.classes
        prefix = self.data.layout.target.class_prefix
        if prefix is None:
            many = next((known for known in self._all_classes if len(known) != 2), classes)
            if len(many) != 2 or values.shape[1] != len(self._all_classes):
                raise Ungradable(f"{self.metric.name} needs a probability for each of the {len(many)} classes")
            first = np.array([likely_label(known) == known[0] for known in self._all_classes])
            chance = np.where(first, 1 - values, values)
            chances = np.stack([1 - chance, chance], axis=-1)
            return chances[:, 0] if len(first) == 1 else chances
        column = {label_of(name.removeprefix(prefix)): index for index, name in enumerate(self.names)}
        if absent := [label for label in classes if label_of(label) not in column]:
            raise Ungradable(f"there is no column for the class {absent[0]!r}")
        return values[:, [column[label_of(label)] for label in classes]]

    # --- a yardstick ---

    def baseline(self, rows: Sequence[int]) -> Measure | None:
        """What a dummy gets that knows nothing but the labels' frequencies: majority, median or prior."""
        with suppress(Ungradable):
            score, low, high = self.grade(dict.fromkeys(rows, self.usual_answer()), rows)
            return Measure(score=score, low=low, high=high, rows=len(rows), measured="harness")
        return None

    def usual_answer(self) -> tuple[str, ...]:
        """What the dummy says of every row."""
        targets = self.targets
        if self.metric.needs == "numbers":
            return tuple(map(_median, targets))
        if self.metric.needs != "probabilities":
            return tuple(Counter(column).most_common(1)[0][0] for column in targets)
        prefix = self.data.layout.target.class_prefix
        if prefix is not None:
            return tuple(str(self._shares.get(label_of(name.removeprefix(prefix)), 0.0)) for name in self.names)
        if any(len(classes) != 2 for classes in self._all_classes):
            return ()
        pairs = zip(map(label_of, map(likely_label, self._all_classes)), targets, strict=True)
        return tuple(str(sum(label_of(cell) == label for cell in cells) / len(cells)) for label, cells in pairs)


def _one_column(values: Any) -> Any:
    return values[:, 0] if values.shape[1] == 1 else values


def _places(cells: Sequence[str], classes: list[str]) -> Any:
    """Labels as places among the classes."""
    place = {label_of(label): index for index, label in enumerate(classes)}
    if (unknown := next((cell for cell in cells if label_of(cell) not in place), None)) is not None:
        raise Ungradable(f"{quoted(unknown)} is none of the classes {_some(classes)} of the training rows")
    return np.array([place[label_of(cell)] for cell in cells])


def _some(labels: Sequence[str]) -> str:
    """Ten of these labels."""
    return f"[{', '.join(map(quoted, labels[:10]))}]"


def _spelt(rows: Sequence[Sequence[str]], spelling: Callable[[str], str]) -> Any:
    """Texts as they are compared."""
    return _one_column(np.array([list(map(spelling, row)) for row in rows]))


def _median(cells: Sequence[str]) -> str:
    """The middle value, in the spelling of the file."""
    try:
        ordered = sorted(cells, key=lambda cell: float(cell if is_number(cell) else with_point(cell)))
    except ValueError as error:
        raise Ungradable(f"a target is no number: {error}") from None
    return ordered[len(ordered) // 2]


def _concordance(a: Any, b: Any) -> float:
    """One less the squared distance of two sets of rows, by that of rows which have nothing to do with each other."""
    by_chance = (a.var(axis=0) + b.var(axis=0) + (a.mean(axis=0) - b.mean(axis=0)) ** 2).sum()
    return float(1 - ((a - b) ** 2).sum(axis=1).mean() / by_chance) if by_chance else float(np.array_equal(a, b))


def by_class(data: Data, metric: Metric) -> Data:
    """The data; one table of more than two classes has an answer column for each, where the metric takes chances."""
    layout, target = data.layout, data.layout.target
    alone = layout.test is None is layout.sample and len(target.names) == 1
    if metric.needs != "probabilities" or not alone or not target.columns[0].holds_classes:
        return data
    plain = replace(layout, target=target._replace(class_prefix=None), answers=target.names)
    classes = tuple(Scorer(replace(data, layout=plain), metric).classes)
    if len(classes) <= 2 or layout.key in classes:
        return data
    return replace(data, layout=replace(layout, target=target._replace(class_prefix=""), answers=classes))
