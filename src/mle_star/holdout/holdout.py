"""The hold-out of a run: views with hidden labels, the answers of each script, their scores, and blends of them."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain, permutations
from math import inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mle_star.data.columns import is_missing
from mle_star.data.layout import find_layout, samples_among
from mle_star.data.metrics import Metric, known_metric
from mle_star.data.tables import Form, Unsupported, with_point
from mle_star.errors import ConfigError
from mle_star.holdout.answers import Answers, Ungradable, read_answers
from mle_star.holdout.intervals import after_more_rows
from mle_star.models import Measure, MetricDirection, PipelineConfig, ScoreChange, TaskDescription
from mle_star.models.texts import plural

if TYPE_CHECKING:  # a run that hides no rows does without numpy
    from mle_star.holdout.scorer import Scorer
    from mle_star.holdout.split import Split
    from mle_star.holdout.views import Data, View

MOST_STEPS = 20
HALVINGS = 5
"""So often rows are cut in halves, each of which scores what the other would choose."""


@dataclass
class HoldOut:
    """One run's views and its scorer. `folder` holds what no script may read."""

    scorer: Scorer
    split: Split
    views: list[View]
    folder: Path
    seed: int
    used: int | None = None
    """So many views the search has compared scripts on; None: on all of its own."""
    firsts: tuple[Answers, ...] = ()
    """What scripts have answered that no score had chosen."""

    @classmethod
    def prepare(cls, task: TaskDescription, config: PipelineConfig, run_dir: Path, *, write: float = inf) -> HoldOut:
        """Make the first `write` views and plan the others; `Unsupported` says why this task cannot be scored so."""
        from mle_star.holdout.scorer import Scorer, by_class
        from mle_star.holdout.views import Data

        folder = Path(task.data_dir).resolve()
        try:
            metric, layout = metric_of(task, folder), find_layout(folder, task.description)
        except ConfigError as error:
            raise Unsupported(str(error)) from None
        if metric.formula is None:
            raise Unsupported(f"{metric.name} can only be computed by a script")
        if run_dir.resolve().is_relative_to(folder):
            raise Unsupported("the run's folder lies among the data")
        data = by_class(Data.read(layout, config), metric)
        split, units = data.split(seed=config.seed, folds=config.score_views), data.units
        starts = () if units is None else tuple(sorted(min(units[row] for row in view) for view in split.views))
        holdout = cls(Scorer(data, metric, starts), split, [], run_dir, config.seed)
        holdout._put_first_what_can_be_scored()
        for number, hidden in enumerate(holdout.split.views):
            make, name = data.make_view if number < write else data.plan_view, f"view-{number}"
            holdout.views.append(make(name, hidden, run_dir / "views" / name, seed=config.seed + number))
        if metric.needs == "numbers":
            _ = holdout.scorer.ranges  # a target that is no number would be held against every script
        return holdout

    def _put_first_what_can_be_scored(self) -> None:
        """Every script runs on the first view: what it hides, and what is kept of that, must be enough for a score."""
        kept, views = {*self.split.select}, self.split.views
        problems = {view: self._problem({*view} - kept, kept.intersection(view)) for view in views}
        ranked = sorted(views, key=lambda view: (kept.issuperset(view), bool(problems[view])))
        self.split = self.split._replace(views=tuple(ranked))
        if problem := problems[self.split.views[0]]:
            raise Unsupported(problem)

    def _problem(self, *parts: Iterable[int]) -> str:
        """Why the metric says nothing of these parts of the rows; empty where the truth scores as well as elsewhere."""
        from mle_star.holdout.split import ONE_VIEW_ROWS

        scorer, data, example = self.scorer, self.scorer.data, _example(self)
        is_truth = scorer.metric.needs in ("labels", "numbers") and scorer.names == data.layout.target.names
        few = data.labelled if is_truth and len(data.labelled) < ONE_VIEW_ROWS else ()
        truth = {row: _targets_of(data, row) for row in few}
        for rows in filter(None, map(sorted, parts)):
            try:
                scorer.score(dict.fromkeys(rows, example), rows)
            except Ungradable as error:
                return str(error)
            if truth and scorer.score(truth, rows) != scorer.score(truth, list(few)):
                return f"{scorer.metric.name} says nothing of {len(rows)} rows such as these: some class is too rare"
        return ""

    @property
    def seen(self) -> Path:
        """The folder that scripts and agents see as the data of the task."""
        return self.views[0].folder

    @property
    def sample(self) -> Path | None:
        """The sample submission of the real test; none where another lies beside it: which one counts is unknown."""
        data = self.scorer.data
        if data.sample is None:
            return None
        name = data.sample.table.name
        beside = [table for table in data.layout.others if table.name.count("/") == name.count("/")]
        return None if len(samples_among([data.sample.table, *beside])) > 1 else data.layout.folder / name

    # --- rows ---

    @property
    def digest(self) -> str:
        """What the scores of this run depend on besides script and data."""
        rows = json.dumps([self.split.views, self.split.select, self.scorer.metric.name, [v.order for v in self.views]])
        return hashlib.sha256(rows.encode()).hexdigest()[:16]

    @cached_property
    def hidden_rows(self) -> list[int]:
        """All rows whose labels some view hides."""
        return sorted({row for view in self.split.views for row in view})

    @cached_property
    def search_rows(self) -> list[int]:
        """The hidden rows that the search compares scripts by."""
        return self.compared_rows(self.used)

    @property
    def search_views(self) -> int:
        """How many views the search uses; the others are for the end of a run."""
        return sum(not set(self.split.select).issuperset(view) for view in self.split.views)

    def compared_rows(self, views: int | None) -> list[int]:
        """Those that the search compares scripts by which run on so many views."""
        return sorted({*chain(*self.split.views[:views])}.difference(self.split.select))

    @cached_property
    def select_rows(self) -> list[int]:
        """The hidden rows that the search never looked at: the expected score comes from them."""
        return sorted({*self.hidden_rows}.difference(self.search_rows))

    def select_halves(self) -> Iterator[Sequence[list[int]]]:
        """These rows in two halves, a few times and both ways round; what belongs together stays together."""
        rows, units, dice = self.select_rows, self.scorer.data.units, random.Random(self.seed)
        names = {row: str(row) if units is None else units[row] for row in rows}
        order = sorted(set(names.values()))
        for _ in range(HALVINGS):
            dice.shuffle(order)
            first = set(order[: len(order) // 2])
            yield from permutations([row for row in rows if (names[row] in first) is which] for which in (True, False))

    # --- scores ---

    def measure(
        self, answers: Answers, rows: Sequence[int] | None = None, *, printed: float | None = None, ahead: bool = False
    ) -> Measure:
        """The score of answers on these rows, by default those of the search, as far as they cover them."""
        covered = _covered(answers, self.search_rows if rows is None else rows)
        shares = [share for view, share in self._learned_from if not view.isdisjoint(covered)] if ahead else []
        is_slow, by_time = self.scorer.metric.needs == "frames", self.scorer.data.rule.kind == "time"
        known = self.firsts if ahead and not is_slow and not by_time else ()  # stretches of time are hard as wholes
        able = [one.hidden for one in known if one.hidden.keys() >= {*covered, *self.search_rows}]
        parts, level = len(shares) if by_time else int(ahead), (able, self.search_rows)
        score, low, high = self.scorer.grade(answers.hidden, covered, seed=self.seed, parts=parts, level=level)
        if ahead:
            low, high = after_more_rows(self.scorer.metric, score, low, high, fmean(shares))
        views, goal = sum(answers.hidden.keys() >= {*view} for view in self.split.views), self.horizon if ahead else ""
        more: dict[str, Any] = {"rows": len(covered), "measured": "harness", "printed": printed, "views": views}
        return Measure(score=score, low=low, high=high, ahead=goal, **more)

    @cached_property
    def horizon(self) -> str:
        """What an expected score is for where there is no test: a series is told ahead as far as a view hides."""
        data, units = self.scorer.data, self.scorer.data.units
        if data.test_rows or units is None or self.scorer.data.rule.kind != "time":
            return "" if data.test_rows else "as many new rows"
        moments = sorted({units[row] for row in self.split.views[0]})
        first, last = (datetime.fromisoformat(moments[place]) for place in (0, -1))
        days = (last - first) / timedelta(days=1) * len(moments) / max(len(moments) - 1, 1)
        values = f"{plural(len(moments), 'value')} of {self.scorer.data.rule.column}"
        return f"the next {f'{days:.0f} days' if days >= 2 else values}"

    @cached_property
    def _learned_from(self) -> list[tuple[frozenset[int], float]]:
        """The rows that each view hides, and the share of the labelled rows that it leaves."""
        return [(frozenset(view), self.scorer.data.share_left(view)) for view in self.split.views]

    def figure(self, answers: Answers, rows: Sequence[int]) -> float:
        """The score alone, without its interval."""
        return self.scorer.score(answers.hidden, _covered(answers, rows))

    def compare(self, new: Answers, old: Answers, rows: Sequence[int]) -> ScoreChange | None:
        """One set of answers against another on those of the rows that both have; None where there are none."""
        both = [row for row in rows if row in new.hidden and row in old.hidden]
        with suppress(Ungradable):
            return self.scorer.compare(new.hidden, old.hidden, both) if both else None
        return None

    def baseline(self, answers: Answers | None = None) -> Measure | None:
        """What a dummy would get on the hidden rows that these answers are for, else on those of the search's views."""
        known = {*chain(*self.split.views[: self.search_views])} if answers is None else answers.hidden
        return self.scorer.baseline([row for row in self.hidden_rows if row in known])

    def read(self, paths: Iterable[Path], views: Sequence[View]) -> Answers:
        """What a script said on several views, together; of the real test, what it said first."""
        parts = [read_answers(self.scorer.data, path, view) for path, view in zip(paths, views, strict=False)]
        return Answers({row: answer for part in parts for row, answer in part.hidden.items()}, parts[0].real)

    def keep(self, submission: Path, name: str, number: int) -> str:
        """Put what a script said on a view into the predictions; where it lies, relative to the run's folder."""
        relative = Path("answers") / f"{name}-{number}.csv"
        (target := self.folder / relative).parent.mkdir(exist_ok=True)
        shutil.copyfile(submission, target)
        return relative.as_posix()


def _covered(answers: Answers, rows: Sequence[int]) -> list[int]:
    """Those of the rows that there is an answer for."""
    if not (covered := [row for row in rows if row in answers.hidden]):
        raise Ungradable("there is no answer for any of the hidden rows")
    return covered


def overclaims(measure: Measure, direction: MetricDirection) -> bool:
    """Does a script print a score that lies beyond its worth by more than the width of the interval?"""
    if measure.printed is None or measure.low is None or measure.high is None:
        return False
    sign = 1 if direction is MetricDirection.maximize else -1
    return sign * (measure.printed - measure.score) > measure.high - measure.low


def metric_of(task: TaskDescription, folder: Path) -> Metric:
    """The metric of a task, a function of the user's beside the data included."""
    place = folder if (folder / task.evaluation_metric.rpartition(":")[0]).is_file() else folder.parent
    return known_metric(task.evaluation_metric, folder=place, direction=task.metric_direction)


def _targets_of(data: Data, row: int) -> tuple[str, ...]:
    """The targets of a row."""
    return tuple(column[row] for column in data.truth)


def _example(holdout: HoldOut) -> tuple[str, ...]:
    """An answer as the sample has it."""
    data, scorer = holdout.scorer.data, holdout.scorer
    if data.sample is None and data.layout.target.class_prefix is None:
        example = _targets_of(data, data.labelled[0])
        if len(example) != len(scorer.names):
            raise Unsupported("nothing says what an answer looks like")
        return example
    example = () if data.sample is None else tuple(data.sample.column(name)[0] for name in scorer.names)
    is_blank = not example or any(map(is_missing, example))  # it only says where answers belong
    return scorer.usual_answer() if is_blank else example


# --- blends: answers averaged by weights, without training anything, and how far two sets of them agree ------------


def find_weights(scorer: Scorer, predictions: Mapping[str, Answers], rows: Sequence[int]) -> dict[str, float]:
    """Weights by name (Caruana): the member that helps most is added again and again, repeats included.

    Only members that answer all of `rows` take part; the weights add up to one.
    """
    members = {name: a.hidden for name, a in predictions.items() if all(row in a.hidden for row in rows)}
    if not (pairs := {name: scorer.pair(hidden, rows) for name, hidden in members.items()}):
        return {}
    truth = next(iter(pairs.values()))[0]
    sign = 1 if scorer.metric.higher_is_better else -1
    chosen, best, total = list[str](), float("-inf"), 0.0
    for step in range(1, MOST_STEPS + 1):
        figures: dict[str, float] = {}
        for name, (_, predicted) in pairs.items():
            with suppress(ValueError):
                figures[name] = sign * scorer.metric.compute(truth, (total + predicted) / step)
        name = max(figures, key=lambda one: figures[one], default="")  # the first of equals
        if not name or figures[name] <= best:
            break
        best, total = figures[name], total + pairs[name][1]
        chosen.append(name)
    return {name: count / len(chosen) for name, count in Counter(chosen).items()}


def blended(predictions: Mapping[str, Answers], weights: Mapping[str, float]) -> Answers:
    """The weighted mean of the members' answers."""
    members = [(weight, predictions[name]) for name, weight in weights.items()]

    def mean(cells: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        try:
            rows = [[weight * _number(cell) for cell in row] for (weight, _), row in zip(members, cells, strict=True)]
        except ValueError as error:
            raise Ungradable(f"an answer is no number: {error}") from None
        return tuple(repr(sum(column)) for column in zip(*rows, strict=True))

    shared = set.intersection(*(set(answers.hidden) for _, answers in members))
    hidden = {row: mean([answers.hidden[row] for _, answers in members]) for row in shared}
    return Answers(hidden, tuple(map(mean, zip(*(answers.real for _, answers in members), strict=False))))


def _number(text: str) -> float:
    """A number, with a decimal point or a decimal comma."""
    return float(with_point(text) if "," in text else text)


# --- the program of a blend --------------------------------------------------------------------------------

_SCRIPT = Path(__file__).with_name("blend.py.txt")


def blend_script(weights: list[float], scorer: Scorer) -> str:
    """The program for these weights, with all that tells its rows and its numbers apart."""
    layout = scorer.data.layout
    form = layout.sample.form if layout.sample is not None and layout.sample.form.kind == "csv" else Form()
    key = layout.key if scorer.data.test_keys or not scorer.data.test_rows else None
    known = {"key": key, "answers": list(scorer.names), "separator": form.separator, "decimal": form.decimal}
    return _SCRIPT.read_text(encoding="utf-8").format(weights=[round(weight, 6) for weight in weights], **known)
