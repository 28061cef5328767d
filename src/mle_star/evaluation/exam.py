"""The exam of a run: views with hidden labels, what each script said on them, and the grades that only we can give."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mle_star.data.layout import find_layout
from mle_star.data.metrics import Metric, is_own_metric, known_metric
from mle_star.errors import ConfigError
from mle_star.evaluation.grading import Answers, Grade, Judge
from mle_star.evaluation.records import Unsupported
from mle_star.evaluation.split import Split
from mle_star.evaluation.views import Data, View
from mle_star.models import Measure, MetricDirection, PipelineConfig, TaskDescription

REGRADE_SEED = 7919
"""Finalists on few rows are judged anew on views that hide other parts."""


@dataclass
class Exam:
    """One run's views and its judge. `folder` holds what no script may read."""

    judge: Judge
    split: Split
    views: list[View]
    folder: Path
    seed: int
    _again: list[View] = field(default_factory=list)

    @classmethod
    def prepare(cls, task: TaskDescription, config: PipelineConfig, run_dir: Path) -> Exam:
        """Make the views; `Unsupported` says why this task cannot be judged so."""
        folder = Path(task.data_dir).resolve()
        try:
            metric, layout = _metric(task, folder), find_layout(folder, task.description)
        except ConfigError as error:
            raise Unsupported(str(error)) from None
        if metric.formula is None:
            raise Unsupported(f"{metric.name} can only be computed by a script")
        if run_dir.resolve().is_relative_to(folder):
            raise Unsupported("the run's folder lies among the data")
        data = Data.read(layout, folder)
        exam = cls(Judge(data, metric), data.split(seed=config.seed), [], run_dir, config.seed)
        exam.views = exam._make("view", exam.split)
        exam.judge.grade(_first_answers(exam), exam.search_rows)  # can answers of this form be judged at all?
        return exam

    def _make(self, name: str, split: Split) -> list[View]:
        made = []
        for number, hidden in enumerate(split.views):
            label = f"{name}-{number}"
            rows = tuple(sorted((*hidden, *split.select)))
            made.append(self.judge.data.make_view(label, rows, self.folder / "views" / label, seed=self.seed + number))
        return made

    @property
    def seen(self) -> Path:
        """The folder that scripts and agents see as the data of the task."""
        return self.views[0].folder

    @property
    def sample(self) -> Path | None:
        """The sample submission of the real test."""
        data = self.judge.data
        return None if data.sample is None else data.folder / data.sample.table.name

    # --- rows ---

    @property
    def digest(self) -> str:
        """What the scores of this run depend on besides script and data."""
        rows = json.dumps([self.split.views, self.split.select, self.judge.metric.name, [v.order for v in self.views]])
        return hashlib.sha256(rows.encode()).hexdigest()[:16]

    @property
    def search_rows(self) -> list[int]:
        """The hidden rows that the search compares scripts by."""
        return sorted({row for view in self.split.views for row in view})

    @property
    def has_select_rows(self) -> bool:
        """Are there hidden rows that the search never looks at?"""
        return bool(self.split.select)

    def views_again(self) -> list[View]:
        """Views that hide other parts than those of the search, for the final pick; made when first wanted."""
        if not self._again:
            data = self.judge.data
            split = data.split(seed=self.seed + REGRADE_SEED, folds=len(self.split.views))
            self._again = self._make("again", split)
        return self._again

    # --- grades ---

    def measure(self, answers: Answers, rows: Sequence[int] | None = None, printed: float | None = None) -> Measure:
        """The grade of answers on these rows: by default those of the search that they cover."""
        wanted = [row for row in self.search_rows if row in answers.hidden] if rows is None else rows
        return as_measure(self.judge.grade(answers.hidden, wanted, seed=self.seed), printed)

    def baseline(self) -> Measure | None:
        """What a dummy would get."""
        grade = self.judge.baseline(self.search_rows)
        return None if grade is None else as_measure(grade)

    def read(self, paths: Iterable[Path], views: Sequence[View]) -> Answers:
        """What a script said on several views, together; of the real test, what it said first."""
        parts = [self.judge.read(path, view) for path, view in zip(paths, views, strict=False)]
        hidden = {row: said for part in parts for row, said in part.hidden.items()}
        return Answers(hidden, parts[0].real)

    def real_view(self) -> View:
        """The untouched data as a view that hides nothing."""
        data = self.judge.data
        asked = data.test.count if data.test is not None else 0
        return View("real", data.folder, (), tuple(range(asked)), asked)

    def keep(self, submission: Path, step: str, number: int) -> str:
        """Put what a script said on a view into the bank; where it lies, relative to the run's folder."""
        relative = Path("answers") / f"{step.replace('/', '.')}-{number}.csv"
        target = self.folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(submission, target)
        return relative.as_posix()


def as_measure(grade: Grade, printed: float | None = None) -> Measure:
    """A grade as results and events carry it."""
    return Measure(
        score=grade.score, low=grade.low, high=grade.high, rows=grade.rows, measured="harness", printed=printed
    )


def overclaims(measure: Measure, direction: MetricDirection) -> bool:
    """Does a script print a score that lies beyond its worth by more than the width of the interval?"""
    if measure.printed is None or measure.low is None or measure.high is None:
        return False
    sign = 1 if direction is MetricDirection.maximize else -1
    return sign * (measure.printed - measure.score) > measure.high - measure.low


def _metric(task: TaskDescription, folder: Path) -> Metric:
    if not is_own_metric(task.evaluation_metric):
        return known_metric(task.evaluation_metric)
    file = task.evaluation_metric.rsplit(":", 1)[0]
    place = folder if (folder / file).is_file() else folder.parent
    return known_metric(task.evaluation_metric, folder=place, direction=task.metric_direction)


def _first_answers(exam: Exam) -> dict[int, tuple[str, ...]]:
    """What the sample says of the search rows."""
    data = exam.judge.data
    if data.sample is not None:
        example = data.sample.values(list(exam.judge.names), [0])[0]
    else:
        example = list(data.truth[data.labelled[0]])
        if len(example) != len(exam.judge.names):
            raise Unsupported("nothing says what an answer looks like")
    return dict.fromkeys(exam.search_rows, tuple(example))
