"""The frame of the `mle-star` command: which commands there are, and how errors read."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from mle_star.errors import (
    AgentError,
    BudgetExceeded,
    ExecutionError,
    MleStarError,
    Phase1Error,
    PipelineError,
    RunInterrupted,
)

EXIT_WRONG_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 1, 3, 130


class Command(NamedTuple):
    """A command and where it lives; `summary` is the first line of its docstring, kept here for a quick `--help`."""

    name: str
    target: str
    summary: str


# One line per command. A module is imported only when its command is called. To add one: write a typer function
# (`Annotated[..., typer.Option(...)]` in its signature, docstring = help, first line = summary, an "Examples:"
# paragraph behind `\b`), raise `MleStarError` for anything the user can mend, `typer.Exit(code)` for the exit
# codes, and add its line here.
COMMANDS: tuple[Command, ...] = (
    Command(
        "demo",
        "mle_star.cli.demo:demo",
        "Build an example task and run the whole method on it: no key, no internet, about two minutes.",
    ),
    Command("init", "mle_star.cli.init:init", "Look at a data folder and write its task.yaml, every guess explained."),
    Command(
        "run", "mle_star.cli.run:run", "Run the whole method on a task; everything it does is kept in the run's folder."
    ),
    Command(
        "resume",
        "mle_star.cli.run:resume",
        "Resume a run where it was stopped; what is recorded costs nothing again.",
    ),
    Command(
        "sweep",
        "mle_star.cli.sweep:sweep",
        "Run many tasks, each with several seeds, within one budget; `--resume` goes on after whatever stopped it.",
    ),
    Command(
        "doctor",
        "mle_star.cli.doctor:doctor",
        "Check SDK, credentials, interpreter, GPUs, sandbox and disk; say what to do about each problem.",
    ),
    Command(
        "report",
        "mle_star.cli.runs:report",
        "Write report.html of a run anew from its journal; also while the run is going.",
    ),
    Command("runs", "mle_star.cli.runs:runs", "List runs: task, model, score, cost, time, state."),
    Command(
        "show",
        "mle_star.cli.runs:show",
        "Show one step of a run: prompt, reply, script, output, score. Without a step, list them.",
    ),
    Command(
        "score",
        "mle_star.cli.score:score",
        "Score every submission of a run anew: by its hidden rows and, with --answers, by the truth.",
    ),
    Command("diff", "mle_star.cli.runs:diff", "Compare two scripts of a run."),
    Command(
        "leaderboard",
        "mle_star.cli.model:leaderboard",
        "Rank the scripts of one run or of several by their score; without a run, those of all runs, task by task.",
    ),
    Command(
        "compare",
        "mle_star.cli.model:compare",
        "Compare two runs: scores, cost, time, and the settings in which they differ.",
    ),
    Command(
        "predict",
        "mle_star.cli.model:predict",
        "Predict new rows with the solution of a run: its own script, in the sandbox, with the rows as its test file.",
    ),
    Command(
        "export",
        "mle_star.cli.model:export",
        "Write a folder that runs on its own: script, data, fitted state, requirements, Dockerfile, model card.",
    ),
    Command(
        "promote",
        "mle_star.cli.model:promote",
        "Hand over another script of a finished run: solution.py, result, submission and report become its own.",
    ),
    Command(
        "watch",
        "mle_star.cli.runs:watch",
        "Serve the live page of a run, also of one in another process; end with Ctrl-C.",
    ),
    Command(
        "kaggle",
        "mle_star.cli.kaggle:kaggle",
        "Get a competition of Kaggle as a task folder, submit a run, see its public score beside our promise.",
    ),
    Command(
        "mlebench",
        "mle_star.cli.mlebench:mlebench",
        "Solve a competition of MLE-bench: task from its folders, submission where it is graded.",
    ),
    Command("mlflow", "mle_star.cli.mlflow:mlflow", "Send a run, or what is missing of it, to an MLflow server."),
    Command(
        "ui",
        "mle_star.cli.ui:ui",
        "Serve one page with all runs: live ones on top, searchable, two of them compared; end with Ctrl-C.",
    ),
)

HELP = """Hand over a task and a folder of data; get back a validated submission, a readable script and a report.

\b
Examples:
  mle-star demo                       the whole method on an example, now
  mle-star init data/                 guess the task, write data/task.yaml
  mle-star run data/ --model offline  the whole method, without a key
  mle-star run data.csv --target price --max-budget 5
                                      one table, with Claude, for five dollars at most
  mle-star predict latest new.csv     the model at work on new rows

\b
Exit codes:
  0 a result (and a submission, where there is a test file)
  1 wrong input        2 a test file, but no submission
  3 the pipeline failed
  130 interrupted
"""

# The base of typer's usage errors has no public name of its own in all versions.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def _flags_without_type(params: Sequence[Any]) -> None:
    """A flag takes no value: its help says no `<bool>`."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = " "


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        params = list[Any](super().get_params(ctx))
        _flags_without_type(params)
        return params


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        params = list[Any](super().get_params(ctx))
        _flags_without_type(params)
        return params


def build_app(loaded: Sequence[str] | None = None) -> typer.Typer:
    """The application; of the commands outside `loaded` only name and summary. None loads every one."""
    app = typer.Typer(
        name="mle-star", cls=_Group, help=HELP, pretty_exceptions_enable=False,
        rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback()(_options)
    for command in COMMANDS:
        if loaded is None or command.name in loaded:
            function = _load(command.target)
            words = inspect.cleandoc(function.__doc__ or "").replace("[", r"\[")  # no markup: `pip install 'x[y]'`
            app.command(command.name, cls=_Command, help=words)(function)
        else:
            app.command(command.name, help=command.summary)(lambda: None)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; an error is one line unless `--debug` is given."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"] or ["--help"]
    called = next((word for word in words if not word.startswith("-")), "")
    completing = "_MLE_STAR_COMPLETE" in os.environ  # a shell asks what may follow
    try:
        code = build_app(None if completing else [called])(words, prog_name="mle-star", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED, prefix="mle-star")
    except BrokenPipeError:
        # The reader has gone (`mle-star runs | head`): say nothing, and keep Python from trying again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_WRONG_INPUT
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _explain(error)
    return code if isinstance(code, int) else 0


def exit_code(error: BaseException) -> int:
    """The exit code that an error ends the command with."""
    if isinstance(error, RunInterrupted):
        return EXIT_INTERRUPTED
    failed = isinstance(error, PipelineError | Phase1Error | ExecutionError | AgentError | BudgetExceeded)
    return EXIT_FAILED if failed else EXIT_WRONG_INPUT


def _explain(error: Exception) -> int:
    if isinstance(error, _UsageError):
        formatted: Any = error  # typer's own errors know how to phrase themselves
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        return _fail(formatted.format_message() + hint, EXIT_WRONG_INPUT)
    if isinstance(error, MleStarError):
        return _fail(str(error), exit_code(error))
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror}", EXIT_WRONG_INPUT)
    return _fail(f"unexpected {type(error).__name__}: {error} (`--debug` shows where)", EXIT_FAILED)


def _fail(message: str, code: int, prefix: str = "mle-star: error") -> int:
    """One line, whatever the message holds: names of files and columns come from outside."""
    line = "".join(char if char.isprintable() else " " for char in message)
    sys.stderr.write(f"{prefix}: {' '.join(line.split())}\n")
    return code


def _load(target: str) -> Any:
    module, _, function = target.partition(":")
    return getattr(import_module(module), function)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mle-star {version('mle-star')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works after a command, too.")
    ] = False,
) -> None:
    """`main` has already taken `--debug` out; both are declared for the help."""


if __name__ == "__main__":
    sys.exit(main())
