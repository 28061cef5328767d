"""The fitted model: new rows go through the solution's own script, in the sandbox, as its test file.

Larger than planned: exports and promoted scripts are made here, too.
"""

import csv
import html
import logging
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from mle_star.config import PREFIX, load_config
from mle_star.data.columns import is_missing, is_number, moments_of
from mle_star.data.layout import Layout, find_layout
from mle_star.data.place import DataFolder
from mle_star.data.tables import Form, Table
from mle_star.errors import ConfigError, ExecutionError
from mle_star.execution import LocalExecutor, artifacts, exception_line, outcome, workspace
from mle_star.execution.environment import script_environment
from mle_star.execution.harness import complete
from mle_star.execution.kept_work import lend
from mle_star.execution.submission import open_submission
from mle_star.holdout.views import SAMPLE_NAME, link_rest
from mle_star.models import FinalResult, PipelineConfig, SolutionPhase, SolutionScript
from mle_star.models.texts import score, some_of
from mle_star.results.rows import read_answers, read_new, texts_of, write_new
from mle_star.run.context import Executor, ScriptRequest
from mle_star.run.folder import RunFolder, find_run, is_running, with_own_data
from mle_star.run.timing import LAST_SHARE, SHARE

logger = logging.getLogger(__name__)

OWN_SETTINGS = ("python", "model_caches", "allow_network", "allow_outside_links", "require_sandbox")
"""What decides what a script can reach: a run's folder may come from someone else, so it does not say."""


def load_model(run: str | Path, *, executor: Executor | None = None, settings: PipelineConfig | None = None) -> "Model":
    """The model of a finished run, by its folder, its name or `latest`; `settings` or the environment confine it."""
    run_dir = find_run(run)
    result = read_result(run_dir)
    data = Path(with_own_data(RunFolder(run_dir), result.task).data_dir)
    if not data.is_dir():
        raise ConfigError(f"the training data of {run_dir.name} are gone ({data}): without them nothing is fitted")
    config = _with_own_settings(result.config, settings or load_config())
    return Model(run_dir.resolve(), result, find_layout(data.resolve(), result.task.description), config, executor)


@dataclass(frozen=True, repr=False)
class Model:
    """The solution of a run, ready to predict. `config` is the run's, with the user's `OWN_SETTINGS`."""

    run_dir: Path
    result: FinalResult
    layout: Layout
    config: PipelineConfig
    executor: Executor | None = None

    @property
    def features(self) -> list[str]:
        """The columns that new rows must have, the key of a row aside, unless that is a date."""
        left_out = {*self.targets} if self._is_dated else {*self.targets, self.layout.key}
        return [name for name in self._predicted.columns if name not in left_out]

    @property
    def _is_dated(self) -> bool:
        """Are rows named by a moment, of which scripts make features?"""
        key, table = self.layout.key, self._predicted
        return key in table.sample and bool(moments_of(table.column(key), table.sample[key]))

    @property
    def targets(self) -> tuple[str, ...]:
        """What is predicted."""
        return self.layout.target.names

    @property
    def _predicted(self) -> Table:
        """The table whose rows are predicted: the test's, or the training table itself."""
        return self.layout.test or self.layout.train

    def predict(self, new: Any, *, timeout_seconds: float | None = None) -> Any:
        """Predictions for new rows, a data frame or the path of a table, as a data frame in the same order."""
        is_file = isinstance(new, (str, Path))
        frame = read_new(Path(new), self._predicted) if is_file else texts_of(new, self._predicted)
        rows = self._checked(frame, str(new) if is_file else "the new rows")
        with FileLock(str(self.run_dir / ".predict.lock")):
            answers = self._answers(rows, timeout_seconds)
        key = self.layout.key
        if key in answers.columns:
            answers = answers.drop(columns=[key])
            if key in frame.columns:
                answers.insert(0, key, frame[key].to_numpy())
        if not is_file:
            answers.index = new.index
        return answers

    def __repr__(self) -> str:
        return f"Model({self.run_dir.name!r}: {self._words()})"

    def _repr_html_(self) -> str:
        """What a notebook shows: what it predicts from what, and how well."""
        return f"<p><b>{html.escape(self.run_dir.name)}</b>: {html.escape(self._words())}</p>"

    def _words(self) -> str:
        what = f"predicts {some_of(list(self.targets), 5)} from {some_of(self.features, 8)}"
        return f"{what}; {score_in_words(self.result)}"

    @property
    def example(self) -> dict[str, str]:
        """A row of a submission: the first of the task's sample, else what views write where the task has none."""
        if self.layout.sample is not None:
            return {name: str(cells[0]) if cells else "" for name, cells in self.layout.sample.sample.items()}
        usual = {name: Counter(map(str, self._labels(name))).most_common(1)[0][0] for name in self.targets}
        answers = {name: usual.get(name, f"{1 / len(self.layout.answers):.4f}") for name in self.layout.answers}
        return {self.layout.key: "", **answers} if self.layout.key else answers

    def _labels(self, target: str) -> list[Any]:
        """Values that a target has in the training rows."""
        table = self.layout.target.table
        return [] if table is None else table.sample[target]

    # --- checks ---

    def _checked(self, frame: Any, name: str) -> Any:
        """The new rows with the columns of the training data, in their order, or one line that says what is wrong."""
        if not len(frame):
            raise ConfigError(f"{name}: there are no rows to predict")
        if absent := [column for column in self.features if column not in frame.columns]:
            known = some_of(self.features, 20)
            raise ConfigError(f"{name} lacks {some_of(absent, 5)}; the model was trained on {known}")
        for column in self.features:
            if column in self._predicted.sample and self._predicted.column(column).kind == "number":
                _refuse_words(column, frame[column], name)
        key, wanted = self.layout.key, [column for column in self._predicted.columns if column not in self.targets]
        if key is not None and not self._is_dated and (key not in frame.columns or frame[key].duplicated().any()):
            frame = frame.assign(**{key: [str(number) for number in range(len(frame))]})
        if unknown := [column for column in frame.columns if column not in {*self._predicted.columns, *self.targets}]:
            logger.warning("%s: columns that the training data do not have are left out: %s", name, ", ".join(unknown))
        return frame.reindex(columns=wanted, fill_value="")

    # --- the script ---

    def _answers(self, rows: Any, timeout_seconds: float | None) -> Any:
        shown = self.run_dir / "work" / "new"
        self._show(rows, shown)
        try:
            return self._read(self.execute(self.result.final_solution, shown, "predict", timeout_seconds), rows)
        finally:
            for left in (shown, self.run_dir / "work" / "predict"):
                workspace.remove_entry(left)

    def execute(self, script: SolutionScript, shown: Path, label: str, timeout_seconds: float | None = None) -> Path:
        """Run a script of this run on the data in `shown`, with what it fitted before; the folder in which it worked.

        A script that fails with what it fitted before runs once more without it.
        """
        config, seen = self.config, DataFolder(shown, ours=self.run_dir)
        before, data = seen.stamp(), DataFolder(self.layout.folder, ours=self.run_dir)
        digest = artifacts.fitted_digest(script.content, data)
        work = Path(workspace.prepare_path_directory(self.run_dir / "work", label))
        workspace.reset_working_directory(str(work))
        workspace.link_input_data(str(shown), str(work), ours=self.run_dir)
        if (self.run_dir / "solution").is_dir():
            shutil.copytree(self.run_dir / "solution", work / "solution", dirs_exist_ok=True)
        complete(lend(None, work))
        recalled = artifacts.restore_fitted(self.run_dir, work, digest)
        log = self.run_dir / "logs" / f"{label}.log"
        log.parent.mkdir(exist_ok=True)
        limit = timeout_seconds or config.script_timeout_seconds or config.time_limit_seconds
        share = LAST_SHARE * limit / max(1, len(list((work / "solution").glob("member_*.py"))))
        known = {"MLE_STAR_SECONDS": f"{limit:.0f}", SHARE: f"{share:.1f}"}
        request = ScriptRequest(
            script_path=workspace.write_script(script, str(work)),
            working_dir=str(work),
            timeout_seconds=limit,
            env=script_environment(config.model_copy(update={"num_parallel_solutions": 1})) | known,
            input_dir=str(shown) if seen.is_whole else None,
            hidden=workspace.hidden_from(self.run_dir, self.layout.folder, seen),
            output_file=str(log),
        )
        raw = complete((self.executor or LocalExecutor(config)).run(request))
        if seen.changed_since(before):  # possible only where nothing confines it
            raise ExecutionError(f"{outcome.CHANGED_DATA}; restore {self.layout.folder}")
        if recalled and raw.exit_code != 0 and not raw.timed_out:
            logger.warning("the script failed with what it had kept in ./%s: it is run again without", artifacts.STATE)
            artifacts.forget_fitted(self.run_dir)
            return self.execute(script, shown, label, timeout_seconds)
        if raw.timed_out:
            raise ExecutionError(f"the script of {self.run_dir.name} took more than {request.timeout_seconds:g} s")
        if raw.exit_code != 0:
            why = exception_line(raw.stderr) or f"exit code {raw.exit_code}"
            raise ExecutionError(f"the script of {self.run_dir.name} failed on these rows: {why}; see {log}")
        if artifacts.listing(work / artifacts.STATE) != recalled:
            artifacts.save_fitted(self.run_dir, work / artifacts.STATE, digest)
        return work

    def _show(self, rows: Any, folder: Path) -> None:
        """The data of the run with the new rows as its test file."""
        test, sample = self.layout.test, self.layout.sample
        link_rest(self.layout.folder, folder, {table.name for table in (test, sample) if table is not None})
        name, form = self.layout.test_file  # as in the views that the script was made for
        write_new(rows, folder / name, form, self._predicted, self.layout.folder)
        example = self.example
        blank = rows.assign(**{name: value for name, value in example.items() if name not in rows.columns})
        if sample is not None:
            write_new(blank[list(example)], folder / sample.name, sample.form, sample, self.layout.folder)
        elif test is None:
            write_new(blank[list(example)], folder / SAMPLE_NAME, Form(), self._predicted, self.layout.folder)

    def _read(self, work: Path, rows: Any) -> Any:
        """The script's answers, one for each row, in their order."""
        separator = self.layout.sample.form.separator if self.layout.sample else ","
        labels = {name: self._labels(name) for name in self.targets}
        with open_submission(str(work)) as file:
            if file is None:
                raise ExecutionError(f"the script of {self.run_dir.name} wrote no predictions")
            try:
                answers = read_answers(file, separator, self.layout.key, labels)
            except (csv.Error, ValueError) as error:
                raise ExecutionError(f"the predictions of {self.run_dir.name} cannot be read: {error}") from None
        if len(answers) != len(rows):
            raise ExecutionError(f"the script gave {len(answers)} predictions for {len(rows)} rows")
        key = self.layout.key
        if key is not None and key in answers.columns:
            place = {text: number for number, text in enumerate(answers[key])}
            order = [place.get(value, -1) for value in rows[key]]
            if -1 not in order and len(set(order)) == len(order):
                answers = answers.iloc[order]
        names = [name for name in answers.columns if name == key or name not in rows.columns]
        return answers[names].reset_index(drop=True)


def _refuse_words(column: str, cells: Any, name: str) -> None:
    """Words where all training rows hold numbers are a mistake that a script would only choke on."""
    texts = enumerate((str(cell).strip() for cell in cells), 1)  # as cells of the training data are looked at
    wrong = [(number, text) for number, text in texts if not is_missing(text) and not is_number(text)]
    if wrong:
        (number, cell), count = wrong[0], f" ({len(wrong)} such rows)" if len(wrong) > 1 else ""
        raise ConfigError(f"{name}, row {number}: {column} is {cell!r}, and all training rows hold numbers{count}")


def _with_own_settings(config: PipelineConfig, own: PipelineConfig) -> PipelineConfig:
    """The settings of a run with those of the user's that decide what a script can reach; says what is ignored."""
    usual = PipelineConfig()
    chosen = {name: getattr(config, name) for name in OWN_SETTINGS}
    ignored = {name: value for name, value in chosen.items() if value not in (getattr(own, name), getattr(usual, name))}
    if ignored:
        words = ", ".join(f"{name}={value!r}" for name, value in ignored.items())
        names = ", ".join(f"{PREFIX}{name.upper()}" for name in ignored)
        logger.warning("of the run's settings, %s are ignored: to allow them, set %s yourself", words, names)
    return config.model_copy(update={name: getattr(own, name) for name in OWN_SETTINGS})


def read_result(run_dir: Path) -> FinalResult:
    """The result of a run; `ConfigError` when it has none yet."""
    path = RunFolder(run_dir).result
    try:
        result = FinalResult.model_validate_json(path.read_bytes())
    except OSError:
        if is_running(run_dir):
            raise ConfigError(f"{run_dir.name} is still running; wait for its end") from None
        raise ConfigError(f"{run_dir} has no result yet; `mle-star resume {run_dir.name}` continues it") from None
    except ValueError:
        raise ConfigError(f"{path} is damaged; `mle-star resume {run_dir.name}` writes it again") from None
    if not result.final_solution.content.strip():
        raise ConfigError(f"{run_dir} has no solution")
    return result


def score_in_words(result: FinalResult) -> str:
    """The score of a result, the interval, and who measured it."""
    task, expected = result.task, result.expected
    harness = expected is not None and expected.measured == "harness"
    number = expected.words if expected is not None and harness else score(result.final_solution.score)
    words = f"{task.evaluation_metric} {number} ({task.metric_direction.better_word} is better)"
    return f"{words}, measured on hidden rows" if harness else f"{words}, self-reported"


def script_of(content: str, score: float | None = None) -> SolutionScript:
    """A script as the final solution of a run."""
    return SolutionScript(content=content, phase=SolutionPhase.final, score=score)
