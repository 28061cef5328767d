"""`mle-star run` and `mle-star resume`: from a folder to a run folder with submission, script and report."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mle_star.cli.names import Run, complete_executor, complete_run
from mle_star.cli.task import plain, prepared, time_in_words
from mle_star.errors import ConfigError, PipelineError, RunInterrupted

if TYPE_CHECKING:
    from mle_star.models import PipelineConfig, TaskDescription

EXIT_NO_SUBMISSION, EXIT_INTERRUPTED = 2, 130
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


Folder = Annotated[
    Path | None,
    typer.Argument(
        metavar="DATA", help="A table (.csv, .xlsx, .parquet, ...), a zip, a folder with data, or one with task.yaml."
    ),
]
Target = Annotated[str | None, typer.Option(help="The column to predict; ignores task.yaml.")]
Metric = Annotated[str | None, typer.Option(help="Such as auc, rmse, logloss; ignores task.yaml.")]
Maximize = Annotated[bool | None, typer.Option("--maximize/--minimize", help="Which way the metric is better.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The run's folder; runs/NAME-TIME if not given.")]
Model = Annotated[str | None, typer.Option(help="Model name or alias; `offline` needs no key and no internet.")]
BaseUrl = Annotated[
    str | None, typer.Option(help="A server that speaks the Messages API: a gateway, or a model on this machine.")
]
Count = Annotated[int | None, typer.Option("-M", "--models", help="M: models to look up in Phase 1.")]
Outer = Annotated[int | None, typer.Option("-T", "--outer-steps", help="T: rounds of ablation per path.")]
Inner = Annotated[int | None, typer.Option("-K", "--inner-steps", help="K: attempts on each block.")]
PathCount = Annotated[int | None, typer.Option("-L", "--paths", help="L: refinement paths, side by side.")]
Rounds = Annotated[int | None, typer.Option("-R", "--rounds", help="R: ensemble plans to try.")]
TimeLimit = Annotated[str | None, typer.Option(help="Wall-clock limit: seconds, or 90m, 12h, 1d.")]
ScriptTimeout = Annotated[str | None, typer.Option(help="Limit of one script: 90, 15m; else by what was measured.")]
MaxBudget = Annotated[float | None, typer.Option(help="Money limit in US dollars.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A YAML file with settings.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting; may be given several times.")
]
PresetName = Annotated[
    str | None, typer.Option("--preset", help="quick, good, best: sizes, roles, efforts; letter: as specified.")
]
Knowledge = Annotated[
    Path | None, typer.Option("--knowledge", metavar="DIR", help="Knowledge files (*.md) for the agents.")
]
Python = Annotated[str | None, typer.Option(help="The interpreter for scripts; else the one that runs mle-star.")]
Executor = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where scripts run: local, ray, ray://HOST:PORT, or a plugin's.",
        autocompletion=complete_executor,
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Run a script again even if the same one ran before.")]
References = Annotated[
    list[Path] | None,
    typer.Option("--reference", help="A text that the script may not copy; repeatable."),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="RUN", help="Start from the recorded results of another run.", autocompletion=complete_run
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say only warnings, errors and, at the end, the summary.")]
AsJson = Annotated[bool, typer.Option("--json", help="One event a line, as JSON, on standard output.")]
Show = Annotated[
    str, typer.Option("--display", help="auto, rich (a moving screen), plain (a line for each event), or a plugin's.")
]
Serve = Annotated[bool, typer.Option("--serve", help="Serve a live page of the run to this machine's browsers.")]
Mlflow = Annotated[str | None, typer.Option(metavar="URI", help="Mirror the run to an MLflow server or database.")]
Notify = Annotated[
    str | None,
    typer.Option(
        metavar="CMD", help="Run this at the end; it finds RUN, STATE and SCORE in the environment. `bell` rings."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show plan and forecast, and do nothing.")]


def run(
    folder: Folder = None,
    target: Target = None,
    metric: Metric = None,
    maximize: Maximize = None,
    output: Output = None,
    model: Model = None,
    base_url: BaseUrl = None,
    preset: PresetName = None,
    models: Count = None,
    outer_steps: Outer = None,
    inner_steps: Inner = None,
    paths: PathCount = None,
    rounds: Rounds = None,
    time_limit: TimeLimit = None,
    script_timeout: ScriptTimeout = None,
    max_budget: MaxBudget = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    python: Python = None,
    executor: Executor = None,
    no_cache: NoCache = False,
    knowledge: Knowledge = None,
    references: References = None,
    parent: From = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    display: Show = "auto",
    serve: Serve = False,
    mlflow: Mlflow = None,
    notify: Notify = None,
    dry_run: DryRun = False,
) -> None:
    """Run the whole method on a task; everything it does is kept in the run's folder.

    Ctrl-C once finishes with the best so far, twice stops at once; `mle-star resume` continues later.

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
    given = {
        "model": model,
        "base_url": base_url,
        "preset": preset,
        "num_retrieved_models": models,
        "outer_loop_steps": outer_steps,
        "inner_loop_steps": inner_steps,
        "num_parallel_solutions": paths,
        "ensemble_rounds": rounds,
        "time_limit_seconds": seconds_of("--time-limit", time_limit),
        "script_timeout_seconds": seconds_of("--script-timeout", script_timeout),
        "max_budget_usd": max_budget,
        "python": python,
        "executor": executor,
        "knowledge": str(knowledge.absolute()) if knowledge else None,
        "use_cache": False if no_cache else None,
        "reference_files": [str(path.absolute()) for path in references] if references else None,
    }
    from mle_star.run.finding import find_run

    explicit = explicit_settings(given, assignments)
    guess_words = (target, metric, maximize)
    options = _Options(_mode(display, quiet=quiet, as_json=as_json), serve, dry_run, as_json, notify, mlflow)
    if parent is not None:
        if folder is not None or any(word is not None for word in guess_words):
            raise ConfigError("--from takes the task of the other run: give no folder, target or metric")
        parent = find_run(parent)
        task, settings = _of_run(parent, explicit, config)
    else:
        if folder is None:
            raise ConfigError("name a task folder or a data folder, or another run with --from")
        from mle_star.config import load_config

        settings = load_config(explicit, config)
        with prepared(folder, guess_words, settings, output, dry=dry_run) as (task, place):
            _start(task, settings, place, None, options)
        return
    _start(task, settings, output, parent, options)


class _Options(NamedTuple):
    """How a run is shown, and what is done at its end."""

    mode: Any
    serve: bool
    dry_run: bool
    as_json: bool
    notify: str | None
    mlflow: str | None


def _start(
    task: TaskDescription, settings: PipelineConfig, output: Path | None, parent: Path | None, options: _Options
) -> None:
    if options.dry_run:
        _show_plan(task, settings, output, as_json=options.as_json)
        return
    if options.mode not in ("json", "quiet"):
        typer.echo(f"time: {time_in_words(task, settings)}; Ctrl-C finishes with the best so far", err=True)
    run_dir = start_run(
        task, settings, output, mode=options.mode, serve=options.serve, mlflow=options.mlflow, fork_from=parent,
        notify=options.notify,
    )  # fmt: skip
    _advise_on(run_dir, options.mode)


def resume(
    run_folder: Run,
    time_limit: TimeLimit = None,
    max_budget: MaxBudget = None,
    executor: Executor = None,
    assignments: Assignments = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    display: Show = "auto",
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
    limit = seconds_of("--time-limit", time_limit)
    given = {"time_limit_seconds": limit, "max_budget_usd": max_budget, "executor": executor}
    explicit = explicit_settings(given, assignments)
    task, settings = _of_run(run_folder, explicit, None)
    for note in _spent_limits(run_folder, settings):
        typer.echo(f"note: {note}", err=True)
    mode = _mode(display, quiet=quiet, as_json=as_json)
    start_run(task, settings, run_folder, mode=mode, serve=serve, mlflow=mlflow, resume=True, notify=notify)
    _advise_on(run_folder, mode)


def _spent_limits(run_dir: Path, settings: PipelineConfig) -> list[str]:
    """What must be raised before a run can do anything new."""
    from mle_star.run.folder import RunFolder, spent_by
    from mle_star.run.journal import read_journal

    spent, money = spent_by(read_journal(RunFolder(run_dir).journal)), settings.max_budget_usd
    only = "only what is recorded is taken over"
    notes = []
    if spent.seconds >= settings.time_limit_seconds:
        used = f"{spent.seconds:.0f} of {settings.time_limit_seconds} s"
        notes.append(f"the time limit is used up ({used}): {only}; raise it with --time-limit")
    if money is not None and spent.usd >= money:
        notes.append(
            f"the money limit is used up ({spent.usd:.2f} of {money:g} USD): {only}; raise it with --max-budget"
        )
    return notes


def seconds_of(option: str, text: str | None) -> int | None:
    """`90`, `90s`, `15m`, `12h`, `1d` as seconds."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip().lower())
    seconds = round(float(found.group(1)) * _UNITS[found.group(2)]) if found else 0
    if seconds < 1:
        raise ConfigError(f"{option} {text!r}: write seconds, or a number with s, m, h or d, such as 90m")
    return seconds


def explicit_settings(given: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """What was really given: options first, `--set` last."""
    from mle_star.config import parse_assignments

    return {
        **{name: value for name, value in given.items() if value is not None},
        **parse_assignments(assignments or []),
    }


def _of_run(run_dir: Path, explicit: dict[str, Any], file: Path | None) -> tuple[TaskDescription, PipelineConfig]:
    """The task and the settings of another run, changed by what was said anew."""
    from mle_star.config import load_config
    from mle_star.run.folder import first_line, last_config

    return first_line(run_dir).task, load_config(explicit, file, base=last_config(run_dir))


# --- the run -------------------------------------------------------------------------------------------------


def _mode(display: str, *, quiet: bool, as_json: bool) -> str:
    """The renderer's name."""
    return "json" if as_json else "quiet" if quiet else display


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
) -> Path:
    """Run, show it, write the report, tell whoever waits; the run's folder. The exit code says how it ended."""
    from mle_star.orchestrator import run_pipeline
    from mle_star.pipeline.setup import choose_folder
    from mle_star.views.display import make_display

    folder = choose_folder(task, config, output)
    stopped: RunInterrupted | None = None
    with (
        _notified(folder.root, notify),
        _served(folder.root, serve),
        _mirrored(folder.root, mlflow),
        make_display(mode, run_dir=folder.root) as listener,
    ):
        try:
            result = asyncio.run(
                run_pipeline(
                    task, config, run_dir=folder.root, resume=resume, fork_from=fork_from, listeners=[listener],
                    signals=True, console=False,
                )
            )  # fmt: skip
        except PipelineError as error:
            if not isinstance(error, RunInterrupted):
                _write_report(folder.root)
                raise
            stopped = error
        _write_report(folder.root)
    if stopped is not None:  # said last, below the summary
        typer.echo(f"mle-star: {stopped}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if result.has_test and not result.submission_path:
        raise typer.Exit(EXIT_NO_SUBMISSION)
    return folder.root


def advise(*lines: str) -> None:
    """What to try next."""
    for line in lines:
        typer.echo(f"next: {line}", err=True)


def _advise_on(run_dir: Path, mode: str) -> None:
    """What people do with a run that is done, where somebody reads along."""
    from mle_star.run.finding import callable_name

    if mode not in ("json", "quiet"):
        name = callable_name(run_dir)
        advise(f"mle-star predict {name} NEW.csv", f"mle-star report {name} --open")


@contextmanager
def _notified(run_dir: Path, command: str | None) -> Iterator[None]:
    """Call the user's command when the run is over, however it ended; `bell` rings the terminal's."""
    try:
        yield
    finally:
        if command == "bell":
            typer.echo("\a", err=True, nl=False)
        elif command is not None:
            from mle_star.execution.notice import call_command
            from mle_star.views.shelf import glance

            seen = glance(run_dir) if (run_dir / "journal.jsonl").exists() else None
            told = {"RUN": str(run_dir), "STATE": seen.state if seen else "failed"}
            told["SCORE"] = "" if seen is None or seen.score is None else f"{seen.score:g}"
            if problem := call_command(command, told):
                typer.echo(f"mle-star: --notify: {problem}", err=True)


@contextmanager
def _served(run_dir: Path, wanted: bool) -> Iterator[None]:
    """The live page, for as long as the run goes."""
    if not wanted:
        yield
        return
    from mle_star.views.live import LiveServer

    server = LiveServer(run_dir)
    typer.echo(f"live page: {server.start()}", err=True)
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
        typer.echo(f"note: MLflow missed the end of the run{words}; send it with: {again}", err=True)


def _write_report(run_dir: Path) -> None:
    """The page for people; a run is worth more than its report."""
    from mle_star.views import write_report

    try:
        write_report(run_dir)
    except Exception as error:
        typer.echo(f"mle-star: the report could not be written: {error}", err=True)


def _show_plan(task: TaskDescription, config: PipelineConfig, output: Path | None, *, as_json: bool) -> None:
    """What a run would do and is expected to take."""
    from mle_star.basics.texts import plural
    from mle_star.pipeline.setup import check_inputs, choose_folder
    from mle_star.run.forecast import Forecaster

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
