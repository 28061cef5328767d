"""`mle-star run` and `mle-star resume`: from a folder to a run folder with submission, script and report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mle_star.cli.options import (
    EXIT_NO_SUBMISSION,
    FLAGS,
    NOTHING,
    Given,
    Maximize,
    Metric,
    Output,
    Run,
    Serve,
    Target,
    complete_run,
    takes_settings,
)
from mle_star.cli.printing import advise, note, plain, tell
from mle_star.cli.task import prepared, time_in_words
from mle_star.errors import ConfigError, PipelineError, RunInterrupted

if TYPE_CHECKING:
    from mle_star.models import PipelineConfig, TaskDescription

Data = Annotated[
    Path | None,
    typer.Argument(
        metavar="DATA", help="A table (.csv, .xlsx, .parquet, ...), a zip, a folder with data, or one with task.yaml."
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="RUN", help="Start from the recorded results of another run.", autocompletion=complete_run
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only warnings, errors and the summary at the end.")]
AsJson = Annotated[bool, typer.Option("--json", help="One event a line, as JSON, on standard output.")]
Display = Annotated[
    str, typer.Option("--display", help="auto, rich (a moving screen), plain (a line for each event), or a plugin's.")
]
Mlflow = Annotated[str | None, typer.Option(metavar="URI", help="Mirror the run to an MLflow server or database.")]
Notify = Annotated[
    str | None,
    typer.Option(
        metavar="CMD", help="Run this at the end; it finds RUN, STATE and SCORE in the environment. `bell` rings."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show plan and forecast, and do nothing.")]


@takes_settings(*FLAGS)
def run(
    folder: Data = None,
    target: Target = None,
    metric: Metric = None,
    maximize: Maximize = None,
    output: Output = None,
    given: Given = NOTHING,
    parent: From = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    display: Display = "auto",
    serve: Serve = False,
    mlflow: Mlflow = None,
    notify: Notify = None,
    dry_run: DryRun = False,
) -> None:
    """Run the whole method on a task; everything it does is kept in the run's folder.

    Ctrl-C once finishes with the best so far, twice stops at once; `mle-star resume` continues later. `--target` and
    `--metric` replace what task.yaml says.

    \b
    Examples:
      mle-star run houses.csv --target price --model offline
      mle-star run titanic/ --model offline
      mle-star run competition.zip --max-budget 5 --notify 'notify-send "$RUN: $SCORE"'
      mle-star run data/ --target price --metric rmse --time-limit 2h --max-budget 5
      mle-star run titanic/ --base-url http://127.0.0.1:8080 --model qwen --set prices_file=prices.yaml
      mle-star run titanic/ --executor ray://head.example:10001
      mle-star run titanic/ -M 2 -T 1 -K 2 -L 1 --dry-run
      mle-star run --from titanic-20260131 --set outer_loop_steps=6

    \b
    Exit codes:
      0 a result (and a submission, where there is a test file)
      1 wrong input        2 a test file, but no submission
      3 the pipeline failed
      130 interrupted
    """
    from mle_star.run.finding import find_run

    words, mode = (target, metric, maximize), _mode(display, quiet=quiet, as_json=as_json)

    def start(task: TaskDescription, settings: PipelineConfig, place: Path | None, fork_from: Path | None) -> None:
        if dry_run:
            _show_plan(task, settings, place, as_json=as_json)
            return
        if mode not in ("json", "quiet"):
            tell(f"time: {time_in_words(task, settings)}; Ctrl-C finishes with the best so far")
        start_run(task, settings, place, mode=mode, serve=serve, mlflow=mlflow, fork_from=fork_from, notify=notify)

    if parent is not None:
        if folder is not None or words != (None, None, None):
            raise ConfigError("--from takes the task of the other run: give no folder, target or metric")
        parent = find_run(parent)
        start(*_continued(parent, given), output, parent)
        return
    if folder is None:
        raise ConfigError("name a task folder or a data folder, or another run with --from")
    settings = given.load()
    with prepared(folder, words, settings, output, dry=dry_run) as (task, place):
        start(task, settings, place, None)


@takes_settings("time_limit_seconds", "max_budget_usd", "executor")
def resume(
    run_folder: Run,
    given: Given = NOTHING,
    quiet: Quiet = False,
    as_json: AsJson = False,
    display: Display = "auto",
    serve: Serve = False,
    mlflow: Mlflow = None,
    notify: Notify = None,
) -> None:
    """Resume a run where it was stopped; what is recorded costs nothing again.

    The run continues with its own settings. Those given here replace them, another preset (`--set preset=good`)
    replaces their sizes, and only the steps that they touch are done again. Time and money of the earlier part count
    towards the limits.

    \b
    Examples:
      mle-star resume titanic-20260131
      mle-star resume titanic-20260131 --max-budget 10 --time-limit 12h
      mle-star resume titanic-20260131 --executor ray
    """
    task, settings = _continued(run_folder, given)
    for words in _spent_limits(run_folder, settings):
        note(words)
    mode = _mode(display, quiet=quiet, as_json=as_json)
    start_run(task, settings, run_folder, mode=mode, serve=serve, mlflow=mlflow, resume=True, notify=notify)


def _mode(display: str, *, quiet: bool, as_json: bool) -> str:
    """The renderer's name."""
    return "json" if as_json else "quiet" if quiet else display


def _continued(run_dir: Path, given: Given) -> tuple[TaskDescription, PipelineConfig]:
    """The task and the settings of another run, those given now among them."""
    from mle_star.run.folder import first_line, last_config

    return first_line(run_dir).task, given.load(last_config(run_dir))


def _spent_limits(run_dir: Path, settings: PipelineConfig) -> list[str]:
    """What must be raised before a run can do anything new."""
    from mle_star.run.folder import RunFolder, spent_by
    from mle_star.run.journal import read_journal

    spent, money = spent_by(read_journal(RunFolder(run_dir).journal)), settings.max_budget_usd
    amounts = {
        "time": (spent.seconds, settings.time_limit_seconds, f"{spent.seconds:.0f} of {settings.time_limit_seconds} s"),
        "money": (spent.usd, money, f"{spent.usd:.2f} of {money or 0:g} USD"),
    }
    flags = {"time": FLAGS["time_limit_seconds"], "money": FLAGS["max_budget_usd"]}
    return [
        f"the {name} limit is used up ({words}): only what is recorded is used; raise it with {flags[name]}"
        for name, (used, limit, words) in amounts.items()
        if limit is not None and used >= limit
    ]


# --- the run -------------------------------------------------------------------------------------------------


def start_run(
    task: TaskDescription,
    config: PipelineConfig,
    output: Path | None,
    *,
    mode: Any,
    serve: bool = False,
    mlflow: str | None = None,
    resume: bool = False,
    fork_from: Path | None = None,
    notify: str | None = None,
    advice: bool = True,
) -> Path:
    """Run, show it, write the report, tell whoever waits; the run's folder. The exit code says how it ended."""
    import asyncio

    from mle_star.orchestrator import run_pipeline
    from mle_star.run.finding import callable_name
    from mle_star.search.setup import choose_folder
    from mle_star.views.display import make_display

    folder = choose_folder(task, config, output)
    stopped, name = "", callable_name(folder.root)
    with (
        _notified(folder.root, notify),
        _served(folder.root, serve),
        _mirrored(folder.root, mlflow),
        make_display(mode, run_dir=folder.root) as listener,
    ):
        work = run_pipeline(
            task,
            config,
            run_dir=folder.root,
            resume=resume,
            fork_from=fork_from,
            listeners=[listener],
            signals=True,
            console=False,
        )
        try:
            result = asyncio.run(work)
        except RunInterrupted as error:
            stopped = str(error)
        except KeyboardInterrupt:  # before the run itself heeds signals
            if not folder.journal.is_file():
                raise
            stopped = f"stopped by Ctrl-C; `mle-star resume {name}` continues from here"
        except PipelineError:
            _write_report(folder.root)
            raise
        _write_report(folder.root)
    if stopped:  # said last, below the summary
        raise RunInterrupted(stopped)
    if result.has_test and not result.submission_path:
        raise typer.Exit(EXIT_NO_SUBMISSION)
    if advice and mode not in ("json", "quiet"):
        advise(f"mle-star predict {name} NEW.csv", f"mle-star report {name} --open")
    return folder.root


@contextmanager
def _notified(run_dir: Path, command: str | None) -> Iterator[None]:
    """Call the user's command when the run is over, however it ended; `bell` rings the terminal's."""
    try:
        yield
    finally:
        if command == "bell":
            typer.echo("\a", err=True, nl=False)
        elif command is not None:
            from mle_star.execution.programs import call_command
            from mle_star.views.shelf import glance

            seen = glance(run_dir) if (run_dir / "journal.jsonl").exists() else None
            outcome = {"RUN": str(run_dir), "STATE": seen.state if seen else "failed"}
            outcome["SCORE"] = "" if seen is None or seen.score is None else f"{seen.score:g}"
            if problem := call_command(command, outcome):
                tell(f"mle-star: --notify: {problem}")


@contextmanager
def _served(run_dir: Path, wanted: bool) -> Iterator[None]:
    """The live page, for as long as the run goes."""
    if not wanted:
        yield
        return
    from mle_star.views.live import LiveServer

    server = LiveServer(run_dir)
    tell(f"live page: {server.start()}")
    try:
        yield
    finally:
        server.stop()


@contextmanager
def _mirrored(run_dir: Path, uri: str | None) -> Iterator[None]:
    """The run in MLflow, as it goes; what the server missed is not lost."""
    if uri is None:
        yield
        return
    from mle_star.integrations.mlflow import MlflowMirror, without_password

    with MlflowMirror(run_dir, uri) as mirror:
        yield
    if mirror.behind:
        words = f" ({mirror.problem})" if mirror.problem else ""
        again = f"mle-star mlflow {run_dir} {without_password(uri)}"
        note(f"MLflow missed the end of the run{words}; send it with: {again}")


def _write_report(run_dir: Path) -> None:
    """The page for people; a run is worth more than its report."""
    from mle_star.views import write_report

    try:
        write_report(run_dir)
    except Exception as error:
        tell(f"mle-star: the report could not be written: {error}")


def _show_plan(task: TaskDescription, config: PipelineConfig, output: Path | None, *, as_json: bool) -> None:
    """What a run would do and is expected to take."""
    from mle_star.basics.texts import plural
    from mle_star.run.forecast import Forecaster
    from mle_star.search.setup import check_inputs, choose_folder

    check_inputs(task, config)
    forecast, folder = Forecaster(task, config).forecast(), choose_folder(task, config, output)
    if as_json:
        plan: dict[str, Any] = {
            "task": task.model_dump(mode="json"),
            "config": config.model_dump(mode="json"),
            "forecast": forecast.model_dump(mode="json", exclude={"at", "step", "kind"}),
            "run_folder": str(folder.root),
        }
        typer.echo(json.dumps(plan))
        return
    c = config
    money = "unknown for this model" if forecast.cost_usd is None else f"about {forecast.cost_usd:.2f} USD"
    limit = "no limit" if c.max_budget_usd is None else f"limit {c.max_budget_usd:g} USD"
    lines = {
        "task": f"{task.competition_id} ({task.evaluation_metric}, {task.metric_direction.value})",
        "data": task.data_dir,
        "model": c.model,
        "plan": f"{plural(c.num_retrieved_models, 'model')}, {plural(c.num_parallel_solutions, 'path')} of "
        f"{c.outer_loop_steps} x {c.inner_loop_steps} refinements, "
        f"{plural(c.ensemble_rounds if c.num_parallel_solutions > 1 else 0, 'ensemble')}",
        "forecast": f"{forecast.calls} calls, {forecast.scripts} scripts, repairs included ({forecast.basis})",
        "money": f"{money}, {limit}",
        "time": time_in_words(task, config),
        "run folder": str(folder.root),
    }
    for name, words in lines.items():
        typer.echo(f"{name:12}{plain(words)}")
