"""The whole of it from Python: `fit` runs the method on a table, and a `Run` answers for what came of it."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mle_star.config import load_config
from mle_star.errors import ConfigError
from mle_star.execution.harness import complete
from mle_star.models import FinalResult, Measure, PipelineConfig
from mle_star.orchestrator import run_pipeline
from mle_star.results import Model, load_model, read_result, score_in_words
from mle_star.results.source import prepared
from mle_star.run.folder import RunFolder, find_run
from mle_star.search.setup import check_credentials, choose_folder
from mle_star.views import text, write_report
from mle_star.views.display import quiet_progress
from mle_star.views.shelf import leaderboard_rows

__all__ = ["Model", "Run", "fit", "load_model"]


def fit(
    data: Any,
    target: str | None = None,
    *,
    metric: str | None = None,
    maximize: bool | None = None,
    drop: Sequence[str] = (),
    model: str | None = None,
    preset: str | None = None,
    time_limit: int | None = None,
    run_dir: Path | str | None = None,
    quiet: bool = False,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> "Run":
    """Run the whole method on a data frame, a table, a zip, a data folder or a task folder; wait for the result.

    `preset` is quick, good, best or letter, `time_limit` is in seconds, `settings` are any of `PipelineConfig` by name,
    and `options` those of `run_pipeline`. Columns in `drop` are left out.
    It works under a running event loop, too, and writes the report.
    """
    if target is not None and not isinstance(target, str):  # `fit(X, y)` is how others are called
        kind = type(target).__name__  # type: ignore[unreachable]
        raise ConfigError(f"target: expected the name of a column, not {kind}; put it into the data: X.assign(y=y)")
    given = {"model": model, "preset": preset, "time_limit_seconds": time_limit, **(settings or {})}
    config = load_config({name: value for name, value in given.items() if value is not None})
    if options.get("agents") is None:
        check_credentials(config, options.get("base_url"))
    source, place = Path(data) if isinstance(data, str) else data, None if run_dir is None else Path(run_dir)
    made = prepared(source, config, place, drop=drop, target=target, metric=metric, maximize=maximize)
    with made as (task, folder, _), quiet_progress(shown=not quiet) as listener:
        folder = choose_folder(task, config, folder).root
        listeners = [*options.pop("listeners", ()), listener]
        complete(run_pipeline(task, config, run_dir=folder, listeners=listeners, console=False, **options))
    write_report(folder)
    return Run(folder, config)


@dataclass(frozen=True)
class Run:
    """A finished run: how good it is, what it predicts, how it came about."""

    path: Path
    settings: PipelineConfig | None = None
    """The user's own, where they are known: `predict` asks no run's folder what a script may reach."""

    @classmethod
    def load(cls, name: str | Path) -> "Run":
        """A run by its folder, its name, the beginning of its name, or `latest`."""
        return cls(find_run(name).resolve())

    @property
    def result(self) -> FinalResult:
        """Everything that it found."""
        return read_result(self.path)

    @property
    def score(self) -> float | None:
        """The score of the solution."""
        return self.result.final_solution.score

    @property
    def expected(self) -> Measure | None:
        """What to expect on new rows, how sure that is, and who measured it."""
        return self.result.expected

    @property
    def submission(self) -> Path | None:
        """The predictions for the rows of the test file, where the data have one."""
        path = RunFolder(self.path).submission
        return path if path.is_file() and self.result.has_test else None

    @property
    def script(self) -> str:
        """The solution."""
        return self.result.final_solution.content

    @property
    def report(self) -> Path:
        """The page that says why; written when it is missing."""
        path = RunFolder(self.path).report
        return path if path.is_file() else write_report(self.path)

    def predict(self, data: Any) -> Any:
        """Predictions for new rows: a data frame, or the path of a table."""
        return load_model(self.path, settings=self.settings).predict(data)

    def leaderboard(self) -> Any:
        """Every script that has a score, the best first, as a data frame."""
        import pandas

        return pandas.DataFrame(leaderboard_rows(self.path))

    def __repr__(self) -> str:
        return f"Run({self.path.name!r}: {score_in_words(self.result)})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the score in a sentence, the best scripts, and where the report is."""
        cells = "".join(
            f"<tr><td style='text-align:left'>{html.escape(row['step'])}</td><td>{text.score(row['score'])}</td>"
            f"<td>{'✓' if row['chosen'] else ''}</td></tr>"
            for row in leaderboard_rows(self.path)[:5]
        )
        here, page = Path.cwd().resolve(), self.report.resolve()
        link = page.relative_to(here).as_posix() if page.is_relative_to(here) else page.as_uri()
        return (
            f"<p><b>{html.escape(self.path.name)}</b>: {html.escape(score_in_words(self.result))}</p>"
            f"<table><tr><th>script</th><th>score</th><th>final solution</th></tr>{cells}</table>"
            f'<p><a href="{html.escape(link)}" target="_blank">Report</a></p>'
        )
