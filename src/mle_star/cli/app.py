"""The frame of the `mle-star` command: which commands there are, and how errors read."""

import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from mle_star.cli import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_WRONG_INPUT, plain
from mle_star.cli.options import PANEL_OF, with_settings
from mle_star.errors import ConfigError, CredentialError, JournalError, MleStarError, RunInterrupted

# The modules and their commands, each the name of a function, in the order of the help. A module is loaded when one of
# its commands is called. To add a command: write a typer function (`Annotated[..., Option(...)]` in its
# signature, docstring = help, first line = summary, an "Examples:" paragraph behind `\b`, `Annotated[Given, ...]`
# for options of settings), raise `MleStarError` for what the user can fix, `typer.Exit(code)` for the exit codes.
MODULES = {
    "task": "demo init",
    "run": "run resume",
    "model": "predict leaderboard compare promote score export",
    "runs": "runs report show diff watch ui",
    "integrations": "sweep kaggle mlebench mlflow",
    "doctor": "doctor",
}
ERROR = "mle-star: error"
MANY = 20
"""With more options than these the help of a command shows them by what they are about."""
_DOCUMENTED = re.compile(r'^def (\w+)\((?:(?!^def ).)*?:\n    """(.+?)(?:"""|\n)', re.MULTILINE | re.DOTALL)
COMMANDS = {name: module for module, names in MODULES.items() for name in names.split()}

# The base of typer's usage errors has no public name of its own in all versions.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class _PlainFlags:
    """A flag takes no value: its help says no `<bool>`. Many options stand in panels."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = " "
            if param.param_type_name == "option" and len(params) > MANY:
                param.rich_help_panel = PANEL_OF.get(param.name)
        return params


class _Command(_PlainFlags, TyperCommand):
    """A command."""


class _Group(_PlainFlags, TyperGroup):
    """All commands."""


def build_app(called: Sequence[str] = tuple(COMMANDS)) -> typer.Typer:
    """The application; of the commands outside `called` only name and summary."""
    app = typer.Typer(
        name="mle-star",
        cls=_Group,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    summaries = _summaries()
    for name in COMMANDS:
        if name in called:
            function = load(name)
            words = inspect.cleandoc(function.__doc__ or "").replace("[", r"\[")  # no markup: `pip install 'x[y]'`
            parts = (part if "\b" in part else part.replace("\n", " ") for part in words.split("\n\n"))
            app.command(name, cls=_Command, help="\n\n".join(parts))(with_settings(function))
        else:
            app.command(name, help=summaries[name])(lambda: None)
    return app


def _summaries() -> dict[str, str]:
    """The first line of each command's help, read without loading what the commands need."""
    found: dict[str, str] = {}
    for module in MODULES:
        found |= dict(_DOCUMENTED.findall(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")))
    return found


def load(name: str) -> Callable[..., None]:
    """The function of a command."""
    return cast(Callable[..., None], getattr(import_module(f"mle_star.cli.{COMMANDS[name]}"), name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; an error is one line unless `--debug` is given."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"] or ["--help"]
    typed = words
    if "_MLE_STAR_COMPLETE" in os.environ:  # a shell asks what may follow
        typed = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]
    called = [word for word in typed if not word.startswith("-")][:1]
    try:
        code = build_app(called)(words, prog_name="mle-star", standalone_mode=False)
        sys.stdout.flush()
        if code == EXIT_INTERRUPTED:  # newer versions of typer make this of Ctrl-C, older ones `Abort`
            raise KeyboardInterrupt
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
    return EXIT_WRONG_INPUT if isinstance(error, ConfigError | CredentialError | JournalError) else EXIT_FAILED


def _explain(error: Exception) -> int:
    if isinstance(error, _UsageError):
        formatted: Any = error  # typer's own errors know how to phrase themselves
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        return _fail(formatted.format_message() + hint, EXIT_WRONG_INPUT)
    if isinstance(error, MleStarError):
        return _fail(str(error), exit_code(error), "mle-star" if isinstance(error, RunInterrupted) else ERROR)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror}", EXIT_WRONG_INPUT)
    return _fail(f"unexpected {type(error).__name__}: {error} (`--debug` shows where)", EXIT_FAILED)


def _fail(message: str, code: int, prefix: str = ERROR) -> int:
    """One line, whatever the message holds: names of files and columns come from outside."""
    sys.stderr.write(f"{prefix}: {' '.join(plain(message).split())}\n")
    return code


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mle-star {version('mle-star')}")
        raise typer.Exit


def _options(
    version: Annotated[bool, Option("--version", is_eager=True, callback=_version, help="Show the version.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error; also after a command.")] = False,
) -> None:
    """Give it a table or a folder of data; get back a fitted model, a readable script and a score with an interval.

    \b
    Examples:
      mle-star demo                        try it on an example: two minutes, no key
      mle-star run data.csv --target price --model offline
                                           your own table, no key
      mle-star run data.csv --target price --max-budget 5
                                           the same with Claude, for 5 dollars at most
      mle-star predict latest new.csv      predict new rows with the newest run
      mle-star init data/                  for a folder: guess the task, write task.yaml

    \b
    Exit codes:
      0 a result (and a submission, where there is a test file)
      1 wrong input        2 a test file, but no submission
      3 the pipeline failed
      130 interrupted (Ctrl-C twice; once finishes with the best so far)
    """


if __name__ == "__main__":
    sys.exit(main())
