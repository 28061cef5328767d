"""`mle-star run` and `mle-star resume`: from a folder to a run folder with submission, script and report."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from mle_star.cli import EXIT_NO_SUBMISSION, advise, note, options, plain, tell
from mle_star.cli.options import AS_USUAL, NO_SETTINGS, NOTHING_WANTED, Given, Output, Run, Shown, Wanted
from mle_star.errors import ConfigError, PipelineError, RunInterrupted
from mle_star.execution.environment import call_command
from mle_star.models import PipelineConfig, TaskDescription
from mle_star.models.texts import duration, plural
from mle_star.orchestrator import run_pipeline
from mle_star.results.source import guess_lines, is_data_file, prepared, time_in_words
from mle_star.run.folder import RunFolder, callable_name, first_line, last_config, spent_by
from mle_star.run.forecast import Forecaster
from mle_star.run.journal import read_journal
from mle_star.search.setup import check_credentials, check_inputs, choose_folder
from mle_star.views import write_report
from mle_star.views.display import make_display
from mle_star.views.shelf import glance
from mle_star.views.text import money

if TYPE_CHECKING:
    from mle_star.integrations.mlflow import MlflowMirror


def run(
    folder: Annotated[
        Path | None, Argument(metavar="DATA", help="A table, a zip, a folder with data, or one with task.yaml.")
    ] = None,
    wanted: Wanted = NOTHING_WANTED,
    output: Output = None,
    given: Given = NO_SETTINGS,
    parent: Annotated[
        Path | None, Option("--from", metavar="RUN", help="Start from the results of another run.", **options.NAMED)
    ] = None,
    view: Shown = AS_USUAL,
    drop: Annotated[
        list[str] | None, Option("--drop", metavar="COLUMN", help="Ignore a column of a single table; repeatable.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show plan and forecast, then end.")] = False,
) -> None:
    """Find the best script and model for a task. Everything that happens is kept in the run's folder.

    Press Ctrl-C once to finish with the best so far, twice to stop at once; `mle-star resume` continues later.
    `--target` and `--metric` replace what task.yaml says.

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
      130 interrupted (Ctrl-C twice; once finishes with the best so far)
    """
    if parent is not None:
        if folder is not None or wanted != NOTHING_WANTED or drop:
            raise ConfigError("--from takes the task of the other run: give no folder, target, metric or --drop")
        task, settings = _continued(parent, given)
        begun: Any = nullcontext((task, output))
    elif folder is None:
        raise ConfigError("name a task folder or a data folder, or another run with --from")
    else:
        settings = given.load()
        begun = announced_task(folder, settings, output, wanted, dry=dry_run, drop=drop or ())
    with begun as (task, place):
        if dry_run:
            data = folder if folder is not None and is_data_file(folder) else task.data_dir
            _show_plan(task, settings, place, str(data), as_json=view.as_json)
            return
        if view.talks:
            tell(f"time: {time_in_words(settings, Path(task.data_dir))}; Ctrl-C finishes with the best so far")
        start_run(task, settings, place, view, fork_from=parent)


def resume(
    run_folder: Run,
    given: Annotated[Given, "time_limit_seconds", "max_budget_usd", "executor"] = NO_SETTINGS,
    view: Shown = AS_USUAL,
) -> None:
    """Resume a run where it was stopped. What is recorded is not paid for again.

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
    start_run(task, settings, run_folder, view, resume=True)


def _continued(run_dir: Path, given: Given) -> tuple[TaskDescription, PipelineConfig]:
    """The task and the settings of another run, those given now among them."""
    return first_line(run_dir).task, given.load(last_config(run_dir))


def _spent_limits(run_dir: Path, settings: PipelineConfig) -> list[str]:
    """What must be raised before a run can do anything new."""
    spent = spent_by(read_journal(RunFolder(run_dir).journal))
    limits = {"time": ("time_limit_seconds", spent.seconds, duration), "money": ("max_budget_usd", spent.usd, money)}
    return [
        f"the {name} limit is used up ({show(used)} of {show(limit)}): only what is recorded is used; "
        f"raise it with {options.FLAGS[setting]}"
        for name, (setting, used, show) in limits.items()
        if (limit := getattr(settings, setting)) is not None and used >= limit
    ]


@contextmanager
def announced_task(
    source: Path,
    settings: PipelineConfig,
    output: Path | None,
    wanted: Wanted = NOTHING_WANTED,
    *,
    dry: bool = False,
    drop: Sequence[str] = (),
) -> Iterator[tuple[TaskDescription, Path | None]]:
    """The task of what was named on the command line, and the run's folder; says what was guessed."""
    if not dry and is_data_file(source):
        check_credentials(settings, None)  # nothing is copied for a model that cannot be asked
    with prepared(source, settings, output, dry=dry, note=note, drop=drop, **wanted._asdict()) as (task, folder, guess):
        for line in guess_lines(guess, source, hides_rows=settings.scoring == "auto") if guess else ():
            tell(line)
        data, named = Path(task.data_dir).resolve(), source if source.is_dir() else source.parent
        if not is_data_file(source) and named.resolve() not in (data, *data.parents):
            note(f"the data lie outside of {named}: {data}")  # scripts see what lies there
        yield task, folder


# --- the run -------------------------------------------------------------------------------------------------


def start_run(
    task: TaskDescription, config: PipelineConfig, output: Path | None, view: Shown, *, advice: bool = True, **how: Any
) -> Path:
    """Run, show it, write the report, call what was to be called; the run's folder. The exit code says how it ended.

    `how` is passed to `run_pipeline`.
    """
    folder, stopped = choose_folder(task, config, output), None
    run_dir, name = folder.root, callable_name(folder.root)
    with _accompanied(run_dir, view), make_display(view.mode, run_dir=run_dir) as listener:
        how |= {"run_dir": run_dir, "listeners": [listener], "signals": True, "console": False}
        try:
            result = asyncio.run(run_pipeline(task, config, **how))
        except PipelineError as error:
            stopped = error
        except KeyboardInterrupt:  # before the run itself heeds signals
            if not folder.journal.is_file():
                raise
            stopped = RunInterrupted(f"stopped by Ctrl-C; `mle-star resume {name}` continues from here")
        try:
            write_report(run_dir)
        except Exception as error:  # a run is worth more than its report
            tell(f"mle-star: the report could not be written: {error}")
    if stopped is not None:  # last, below the summary
        raise stopped
    if result.has_test and not result.submission_path:
        raise typer.Exit(EXIT_NO_SUBMISSION)
    if advice and view.talks:
        advise(f"mle-star predict {name} NEW.csv", f"mle-star report {name} --open")
    return run_dir


@contextmanager
def _accompanied(run_dir: Path, view: Shown) -> Iterator[None]:
    """The live page and the mirror in MLflow while it runs; the user's command when it is over."""
    with ExitStack() as stack:
        if view.notify is not None:
            stack.callback(_notify, run_dir, view.notify)
        if view.serve:
            from mle_star.views.live import LiveServer

            server = LiveServer(run_dir)
            tell(f"live page: {server.start()}")
            stack.callback(server.stop)
        if view.mlflow is not None:
            from mle_star.integrations.mlflow import MlflowMirror

            mirror = MlflowMirror(run_dir, view.mlflow)
            stack.callback(_say_what_is_missing, mirror, run_dir, view.mlflow)
            stack.enter_context(mirror)
        yield


def _notify(run_dir: Path, command: str) -> None:
    """Call the user's command with how the run ended; `bell` rings the terminal's."""
    if command == "bell":
        typer.echo("\a", err=True, nl=False)
        return
    seen = glance(run_dir) if (run_dir / "journal.jsonl").exists() else None
    outcome = {"RUN": str(run_dir), "STATE": seen.state if seen else "failed"}
    outcome["SCORE"] = "" if seen is None or seen.score is None else f"{seen.score:g}"
    if problem := call_command(command, outcome):
        tell(f"mle-star: --notify: {problem}")


def _say_what_is_missing(mirror: "MlflowMirror", run_dir: Path, uri: str) -> None:
    from mle_star.integrations.mlflow import without_password

    if mirror.behind:
        words = f" ({mirror.problem})" if mirror.problem else ""
        command = f"mle-star mlflow {run_dir} {without_password(uri)}"
        note(f"MLflow missed the end of the run{words}; send it with: {command}")


def _show_plan(task: TaskDescription, config: PipelineConfig, output: Path | None, data: str, *, as_json: bool) -> None:
    """What a run would do and is expected to take."""
    check_inputs(task, config)
    forecast, folder = Forecaster(task, config).forecast(), str(choose_folder(task, config, output).root)
    if as_json:
        parts = {"task": task, "config": config, "forecast": forecast}
        left_out = {"at", "step", "kind"}
        plan: dict[str, Any] = {name: part.model_dump(mode="json", exclude=left_out) for name, part in parts.items()}
        typer.echo(json.dumps({**plan, "run_folder": folder}))
        return
    c = config
    cost = "unknown for this model" if forecast.cost_usd is None else f"about {money(forecast.cost_usd)}"
    limit = "no limit" if c.max_budget_usd is None else f"limit {money(c.max_budget_usd)}"
    at_most = "up to " * c.more_steps
    lines = {
        "task": f"{task.competition_id} ({task.evaluation_metric}, {task.metric_direction.value})",
        "data": data,
        "model": c.model,
        "plan": f"{plural(c.num_retrieved_models, 'model')}, {at_most}{plural(c.num_parallel_solutions, 'path')} of "
        f"{c.outer_loop_steps} x {c.inner_loop_steps} refinements{', more while the time lasts' * c.more_steps}, "
        f"{at_most}{plural(c.ensemble_rounds if c.num_parallel_solutions > 1 else 0, 'ensemble')}",
        "forecast": f"{forecast.calls} calls, {forecast.scripts} scripts, repairs included ({forecast.basis})",
        "money": f"{cost}, {limit}",
        "time": time_in_words(config, Path(task.data_dir)),
        "run folder": folder,
    }
    for name, words in lines.items():
        typer.echo(f"{name:12}{plain(words)}")
