"""Scores of a run's submissions, computed anew: by hidden rows and, if there is one, by an answers file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from mle_star.data.layout import find_layout
from mle_star.data.rows import Unsupported
from mle_star.errors import ConfigError
from mle_star.execution.scoring import answers_of, compared, incumbent
from mle_star.holdout.answers import Ungradable, read_answers
from mle_star.holdout.holdout import HoldOut, metric_of
from mle_star.holdout.scorer import Scorer
from mle_star.holdout.views import Data
from mle_star.models import Measure, PipelineConfig, TaskDescription
from mle_star.run.events import AnyEvent, HoldOutPrepared, RunFinished, RunStarted
from mle_star.run.folder import RunFolder, config_of, with_own_data
from mle_star.run.journal import read_journal
from mle_star.run.ledger import Ledger, ScriptRun


@dataclass(frozen=True)
class Rescored:
    """One submission of a run: what its script printed, what the search and the other hidden rows say, the truth."""

    step: str
    printed: float | None
    search: Measure | None = None
    select: Measure | None = None
    truth: float | None = None
    problem: str = ""


def rescore(run_dir: Path, answers: Path | None = None) -> list[Rescored]:
    """Every submission of a run, in order; the one that was submitted comes last."""
    folder = RunFolder(run_dir).open()
    events = list(read_journal(folder.journal))
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    if started is None:
        raise ConfigError(f"{run_dir}: the journal has no first line")
    config, task = config_of(events) or started.config, with_own_data(folder, started.task)
    holdout = _holdout(events, task, config, folder.root)
    if holdout is None and answers is None:
        raise ConfigError(
            "the scores of this run are those that its scripts printed: give --answers FILE to check them"
        )
    ledger = Ledger.of(events)
    scored = ledger.scored()
    scorer = holdout.scorer if holdout is not None else _scorer(task)
    truth = None if answers is None else _Truth.read(scorer, answers)
    found: dict[str, Rescored] = {}
    for run in ledger.runs.values():
        if run.purpose == "solution" and not run.result.is_error and (run.result.answers or run.result.submission):
            found[run.step] = _of_run(run, scored, folder.root, holdout, truth)
    handed = next((e for e in reversed(events) if isinstance(e, RunFinished)), None)
    if folder.submission.is_file():
        expected = None if handed is None or handed.result is None else handed.result.expected
        worth, problem = (None, "") if truth is None else truth.of(folder.submission)
        found["final/submission.csv"] = Rescored("final/submission.csv", None, None, expected, worth, problem)
    return list(found.values())


def _holdout(events: list[AnyEvent], task: TaskDescription, config: PipelineConfig, run_dir: Path) -> HoldOut | None:
    prepared = next((event for event in reversed(events) if isinstance(event, HoldOutPrepared)), None)
    if prepared is None or prepared.why_not:
        return None
    try:
        holdout = HoldOut.prepare(task, config, run_dir, write=False)
    except (Unsupported, Ungradable, OSError) as error:
        raise ConfigError(f"the data in {task.data_dir} can no longer be split as the run did: {error}") from None
    if holdout.digest != prepared.digest:
        raise ConfigError(
            f"the hidden rows of the run cannot be drawn again: the data in {task.data_dir} have changed since, "
            "or another version of mle-star made the run"
        )
    return holdout


def _scorer(task: TaskDescription) -> Scorer:
    folder = Path(task.data_dir)
    try:
        return Scorer(Data.read(find_layout(folder, task.description), folder), metric_of(task, folder))
    except Unsupported as error:
        raise ConfigError(f"submissions of this task cannot be scored here: {error}") from None


def _of_run(
    event: ScriptRun, scored: list[ScriptRun], root: Path, holdout: HoldOut | None, truth: _Truth | None
) -> Rescored:
    printed = event.score if event.result.measure is None else event.result.measure.printed
    search = select = worth = None
    problem = ""
    if holdout is not None and event.result.answers and event not in scored:
        problem = "scored by other hidden rows, or with other packages"
    elif holdout is not None and event.result.answers:
        try:
            answers = holdout.read([root / path for path in event.result.answers], holdout.views)
            search = compared(holdout, root, scored[: scored.index(event)], answers, len(event.result.answers))
            best = incumbent(holdout, scored)
            reference = None if best is None else answers_of(holdout, root, best)
            select = holdout.measure(answers, holdout.select_rows, reference=reference, ahead=True)
        except (OSError, Ungradable) as error:
            problem = str(error)
    if truth is not None and event.result.submission is not None:
        worth, why = truth.of(root / event.result.submission)
        problem = problem or why
    return Rescored(event.step, printed, search, select, worth, problem)


@dataclass(frozen=True)
class _Truth:
    """The labels of the real test."""

    scorer: Scorer
    labels: list[list[str]]

    @classmethod
    def read(cls, scorer: Scorer, path: Path) -> _Truth:
        """The labels in the test's order: by key, else as they stand; a column for each class counts as its largest."""
        data, sample, key = scorer.data, scorer.data.layout.sample, scorer.data.layout.key
        separator = sample.form.separator if sample is not None and sample.form.kind == "csv" else ","
        try:
            with path.open(encoding="utf-8-sig", newline="") as stream:
                rows = list(csv.DictReader(stream, delimiter=separator, skipinitialspace=True))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        if len(rows) != data.asked:
            raise ConfigError(f"{path} has {len(rows)} rows, the test {data.asked}")
        if key is not None and rows and key in rows[0]:
            by_key = {row[key].strip(): row for row in rows}
            if missing := [name for name in data.asked_keys if name not in by_key]:
                raise ConfigError(f"{path} lacks {len(missing)} values of {key}, such as {missing[0]!r}")
            rows = [by_key[name] for name in data.asked_keys]
        columns = scorer.plain(list(zip(*(_labels(scorer, row, path) for row in rows), strict=True)), separator)
        return cls(scorer, list(map(list, zip(*columns, strict=True))))

    def of(self, submission: Path) -> tuple[float | None, str]:
        """The score of a submission, or why it has none."""
        try:
            answers = read_answers(self.scorer.data, submission, self.scorer.data.real_view())
            return self.scorer.compute(*self.scorer.arrays(self.labels, list(answers.real))), ""
        except (OSError, ValueError, ConfigError) as error:
            return None, str(error)


def _labels(scorer: Scorer, row: dict[str, str], path: Path) -> list[str]:
    target = scorer.data.layout.target
    if set(target.names) <= set(row):
        return [row[name].strip() for name in target.names]
    if target.class_prefix is not None and set(scorer.names) <= set(row):
        return [max(scorer.names, key=lambda name: float(row[name])).removeprefix(target.class_prefix)]
    raise ConfigError(f"{path} lacks the column {target.names[0]}")
